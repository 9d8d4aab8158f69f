# SPDX-License-Identifier: Apache-2.0
"""An index that a command writes by hand: what git would check out of it into `.git`, or beside the project."""

import pytest

from tests.kernel.test_git_apply import IDENTITY, do
from tests.support import Ground, printed
from unspill import RunResult
from unspill.model.operation import Skipped

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

COMMIT = "echo {0} > {0} && git add {0} && git commit -qm {0}"

# Adds an entry to an index, with an object that has to be run, as no version of git would
FORGE = r"""
import hashlib, struct, subprocess, sys
index, name = sys.argv[1], sys.argv[2].encode()
where = ["git", "-C", index.removesuffix("/index")]
content = b"#!/bin/sh\necho ran > ran\n"
oid = subprocess.run([*where, "hash-object", "-w", "--stdin"], input=content, capture_output=True, check=True).stdout
text = open(index, "rb").read()
count, at = struct.unpack(">I", text[8:12])[0], 12
for _ in range(count):
    at += (text.index(b"\0", at + 62) - at + 8) // 8 * 8
entry = bytes(24) + struct.pack(">I", 0o100755) + bytes(12) + bytes.fromhex(oid.decode()) + struct.pack(">H", len(name))
entry += name + bytes(8 - (62 + len(name)) % 8)
new = text[:8] + struct.pack(">I", count + 1) + entry + text[12:at]
open(index, "wb").write(new + hashlib.sha1(new).digest())
"""
HOOK = ".git/hooks/post-checkout"
CHECKOUT = "git checkout -q -- . ; git checkout-index -af; git checkout -q HEAD"

# The name of the forged entry, and what a checkout leaves, below the home directory
NAMES = {
    "a hook": (HOOK, "project/ran"),
    "a file beside the project": ("../evil", "evil"),
}


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project that is a repository with one commit and the program that forges an index."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    ground.configure('readable = ["~/.gitconfig"]\n')
    (ground.project / "forge.py").write_text(FORGE)
    do(f"git init -q . && git add forge.py && {COMMIT.format('first')}", ground.project)
    return ground


def lefts(result: RunResult) -> tuple[Skipped, ...]:
    """Return what the apply after a run left."""
    return () if result.operation is None else result.operation.left


@pytest.mark.parametrize("what", NAMES)
def test_an_index_with_a_name_that_git_would_refuse_waits_for_consent(repository: Ground, what: str) -> None:
    name, left = NAMES[what]
    forge = f"python3 forge.py .git/index {name}"
    target = repository.project.parent / left.replace("project", repository.project.name)
    result = repository.sandbox().run(f"{forge} && git ls-files", after="apply")
    assert result.ok
    assert name in printed(result)
    assert [(left.path, left.why) for left in lefts(result)] == [(b".git", "held")]
    do(CHECKOUT, repository.project)
    assert not target.exists()
    # The same without unspill
    do(f"{forge}; {CHECKOUT}; true", repository.project)
    assert target.exists()


# How a repository comes, and where its index is
NEW = {
    "a repository": ("git init -q sub && cp first sub && git -C sub add first", "sub/.git/index"),
    "a submodule": (
        "git init -q .git/modules/sub && mv .git/modules/sub/.git/* .git/modules/sub && rmdir .git/modules/sub/.git"
        " && cp .git/index .git/modules/sub/index && git --git-dir=.git/modules/sub config core.bare true",
        ".git/modules/sub/index",
    ),
    "a worktree": ("git worktree add -q sub", ".git/worktrees/sub/index"),
}


@pytest.mark.parametrize("what", NEW)
def test_the_index_of_a_repository_that_comes_is_looked_at(repository: Ground, what: str) -> None:
    make, index = NEW[what]
    sandbox = repository.sandbox()
    result = sandbox.run(f"{make} && python3 forge.py {index} {HOOK}", after="apply")
    assert result.ok, result.stderr
    assert not (repository.project / index).exists()
    assert any("index" in left.reason for left in lefts(result))


@pytest.mark.parametrize("last", ["git init -q sub", "cp -r .git/HEAD .git/config .git/refs sub/.git"])
def test_a_repository_that_comes_in_parts_is_looked_at(repository: Ground, last: str) -> None:
    make, index = NEW["a repository"]
    sandbox = repository.sandbox()
    assert sandbox.run("mkdir -p sub/.git", after="apply").ok
    assert (repository.project / "sub/.git").is_dir()
    forge = f"{make} && python3 forge.py {index} {HOOK}"
    assert sandbox.run(forge if "init" in last else f"{forge} && rm sub/.git/HEAD", after="apply").ok
    assert sandbox.run(last, after="apply").ok
    assert not (repository.project / index).exists()


def test_a_repository_that_comes_with_an_index_as_git_writes_it_is_applied(repository: Ground) -> None:
    result = repository.sandbox().run(f"{NEW['a repository'][0]} && git -C sub branch -q index", after="apply")
    assert (repository.project / "sub/.git/index").exists(), lefts(result)
