# SPDX-License-Identifier: Apache-2.0
"""The file verbs with other shells and tools than this machine's, with none, and with such as lie."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kernel.files_errors import ERRORS, lay_out
from tests.kernel.small_tree import make_tree
from tests.support import Ground
from unspill import FileError, Sandbox, SandboxFiles
from unspill.errors import SandboxUnavailable

pytestmark = pytest.mark.kernel

TOOLS = tuple("cat find head mkdir sh sha256sum sleep stat tail".split())


def rooted(ground: Ground, tree: Path) -> tuple[Sandbox, SandboxFiles]:
    sandbox = ground.sandbox(view="rootfs", rootfs=os.fspath(tree))
    return sandbox, SandboxFiles(sandbox)


def tree_of_tools(top: Path, shell: str) -> Path:
    """Make a tree that has what the verbs need and no more: of busybox, or of bash and GNU."""
    if shell == "bash":
        return make_tree(top, ("bash", *(tool for tool in TOOLS if tool != "sh")))
    tree = make_tree(top, ())
    shutil.copy("/usr/bin/busybox", tree / "usr/bin/busybox")
    for name in TOOLS:
        (tree / "usr/bin" / name).unlink(missing_ok=True)
        (tree / "usr/bin" / name).symlink_to("busybox")
    return tree


@pytest.mark.bwrap
@pytest.mark.parametrize("shell", ["busybox", "bash"])
def test_any_shell_and_its_tools_do(ground: Ground, shell: str) -> None:
    lay_out(ground)
    tree = tree_of_tools(ground.top / "tree", shell)
    sandbox, files = rooted(ground, tree)
    for case, (kind, call) in ERRORS.items():
        with pytest.raises(FileError) as caught:
            call(files)
        known = {kind, "not_found"} if case.endswith("file of root") else {kind}
        assert caught.value.kind in known, (case, caught.value)
    assert not sandbox.changes()
    assert files.write("new\nline/-x", b"\0\xff" * 100_000).is_new
    assert files.read("new\nline/-x", offset=99_999, limit=3).content == b"\xff\0\xff"
    assert files.edit("file", "one", "1").replaced == 1
    assert files.read_lines("file").text() == "1 two two\n"
    assert [(entry.path, entry.kind) for entry in files.list("new\nline").entries] == [(b"-x", "file")]
    assert not files.write("/tmp/x", "gone").lasts
    (ground.project / "locked-dir").chmod(0o700)


def test_a_write_that_is_late_leaves_what_was_there(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.write("file", "old")
    tree = tree_of_tools(ground.top / "tree", "bash")
    (tree / "usr/bin/cat").unlink()
    (tree / "usr/bin/cat").write_text("#!/bin/sh\necho half\nsleep 100\n")
    (tree / "usr/bin/cat").chmod(0o755)
    sandbox, files = rooted(ground, tree)
    monkeypatch.setattr("unspill.sandbox.files._WALL_S", 0.5)
    with pytest.raises(SandboxUnavailable, match=r"not written within 0\.5 s"):
        files.write("file", "new", after="apply")
    assert files.read("file").content == b"old"
    assert not sandbox.changes()
    # What the run's own bound ends is held
    assert sandbox.run("cat > file", timeout=0.5, after="apply").held


@pytest.mark.parametrize("answer", ["", "ok", "ok x", "no", "no \\n", "no failed", "ok 1", "end 0", "ok end", "yes"])
def test_an_answer_that_can_not_be_is_our_failure(ground: Ground, answer: str) -> None:
    """A command may have replaced the tools of a rootfs that it may write."""
    tree = tree_of_tools(ground.top / "tree", "bash")
    (tree / "usr/bin/bash").rename(tree / "usr/bin/real")
    (tree / "usr/bin/bash").write_text(f"#!/usr/bin/real\nprintf '{answer}'\n")
    (tree / "usr/bin/bash").chmod(0o755)
    sandbox, files = rooted(ground, tree)
    for call in (lambda: files.read("x"), files.list, lambda: files.write("x", "y"), lambda: files.edit("x", "y", "z")):
        with pytest.raises((SandboxUnavailable, FileError)):
            call()
    assert not sandbox.changes()


def test_a_tree_without_the_tools_is_our_failure_in_words(ground: Ground) -> None:
    tree = make_tree(ground.top / "tree")
    _sandbox, files = rooted(ground, tree)
    for call in (lambda: files.read("x"), files.list, lambda: files.write("x", "y")):
        with pytest.raises(SandboxUnavailable, match=r"there is no `(stat|find|sha256sum)` in the sandbox"):
            call()
