# SPDX-License-Identifier: Apache-2.0
"""Which rule of a plan keeps a path from a command, and what is proposed."""

from __future__ import annotations

import pytest

from tests.unit.plan.given import HOME, PROJECT, given, places
from unspill.errors import RootRefused
from unspill.model.permission import ReadablePath
from unspill.model.plan import Plan
from unspill.model.policy import Policy
from unspill.permissions.question import check_request
from unspill.plan.build import build_plan
from unspill.plan.explain import Judge, Refusal, remedy_of


def plan() -> Plan:
    policy = Policy(hidden=(b"/opt/private", b"/etc/hidden"), readable=(b"/srv/sets",))
    return build_plan(given(policy=policy, places=places(files=(b"/etc/hidden",))))


WRITES = {
    b"/data/out": "outside",
    b"/": "outside",
    b"/srv/other": "outside",
    b"/usr/lib/x": "read-only",
    b"/bin/x": "read-only",
    b"/etc/../etc/passwd": "read-only",
    b"/etc/hidden": "read-only",
    b"/opt/private/x": "read-only",
    b"/srv/sets/a": "read-only",
    b"/proc/sys/kernel/core_pattern": "read-only",
    b"/tmp/x": None,
    b"/var/run/x": None,
    b"/dev/null": None,
    b"/dev/shm/x": None,
    b"/proc/self/comm": None,
    HOME: None,
    HOME + b"/x": None,
    PROJECT.removesuffix(b"shop") + b"x": None,
    HOME + b"/.cache/x": "hidden",
    b"/tmp/made/x": "hidden",
    HOME + b"/playground/x": None,
    PROJECT + b"/src/a": None,
    PROJECT + b"/../../../../usr/x": "read-only",
}
READS = {
    b"/data/in": "outside",
    b"/srv/other": "outside",
    b"/srv/sets/a": None,
    b"/srv": None,
    b"/sys/kernel/mm/transparent_hugepage/enabled": None,
    b"/": None,
    b"/usr/lib/x": None,
    b"/bin/sh": None,
    b"/etc/hidden": "masked",
    b"/opt/private/x": "masked",
    HOME + b"/.ssh/id_ed25519": "hidden",
    b"/tmp/x": "hidden",
    b"/var/run/docker.sock": "hidden",
    b"/dev/null": None,
    b"/proc/1/maps": None,
    PROJECT + b"/src/a": None,
}


@pytest.mark.parametrize(("path", "kind"), WRITES.items())
def test_a_write_is_judged_by_what_covers_its_place(path: bytes, kind: str | None) -> None:
    refusal = Judge(plan().mounts).refusal(path, is_write=True)
    assert (refusal and refusal.kind) == kind


@pytest.mark.parametrize(("path", "kind"), READS.items())
def test_a_read_is_judged_by_what_covers_its_place(path: bytes, kind: str | None) -> None:
    refusal = Judge(plan().mounts).refusal(path, is_write=False)
    assert (refusal and refusal.kind) == kind


def test_the_path_is_told_where_it_really_lies() -> None:
    refusal = Judge(plan().mounts).refusal(b"/bin//../bin/./x", is_write=True)
    assert refusal is not None
    assert refusal.path == b"/usr/bin/x"
    assert refusal.rule == "/usr is read-only: programs and libraries, read-only"


@pytest.mark.parametrize(
    ("path", "is_write", "words"),
    [
        (b"/data/out/x", True, "--root /data/out`"),
        (b"/data", True, "--root /data`"),
        (b"/srv/x", True, "--root /srv/x`"),
        (b"/usr/lib/x", True, "can't be allowed"),
        (HOME + b"/sets/out/x", True, f"--root {HOME.decode()}/sets/out` or `roots` in your own configuration (a dir"),
        (HOME + b"/.ssh/new", True, "can't be allowed"),
        (HOME + b"/sets/a.csv", False, f"--readable {HOME.decode()}/sets/a.csv`"),
        (HOME + b"/.ssh/config", False, "never shown on request"),
        (HOME, False, "never shown as a whole"),
        (b"/opt/private/x", False, "out of `hidden`"),
        (b"/data/\x1b[2J", False, "--readable $'/data/\\x1b[2J'`"),
    ],
)
def test_what_is_proposed_would_help_and_is_safe_to_print(path: bytes, is_write: bool, words: str) -> None:
    refusal = Judge(plan().mounts).refusal(path, is_write=is_write)
    assert refusal is not None
    remedy = remedy_of(refusal, is_write=is_write, home=HOME)
    assert words in remedy
    assert remedy.isprintable()


@pytest.mark.parametrize("path", [HOME + b"/.ssh/id_rsa", HOME + b"/.aws/credentials", HOME + b"/.netrc", HOME])
def test_no_option_is_proposed_that_would_be_refused(path: bytes) -> None:
    for is_write in (False, True):
        refusal = Refusal(kind="hidden", path=path, rule="fresh")
        assert "--" not in remedy_of(refusal, is_write=is_write, home=HOME)
    request = ReadablePath(project=PROJECT, argv=(b"x",), path=path)
    with pytest.raises(RootRefused):
        check_request(request, home=HOME, own=())


def test_a_directory_that_a_mount_needs_is_there() -> None:
    """The project's own parents lie in the fresh home: whoever writes to them needs no hint."""
    judge = Judge(plan().mounts)
    assert judge.refusal(PROJECT[: PROJECT.rindex(b"/")] + b"/x", is_write=True) is None
    refusal = judge.refusal(HOME + b"/other/x", is_write=True)
    assert refusal is not None
    assert refusal.rule == "its directory is not there: /home/ann is fresh: a home directory of this run only"
