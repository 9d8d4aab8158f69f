# SPDX-License-Identifier: Apache-2.0
"""What a command sees of a list of mounts, in which order they are made, and where it starts."""

from __future__ import annotations

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tests.unit.plan.given import HOME, PROJECT, facts, given
from unspill.errors import SandboxUnavailable, UsageError
from unspill.model.plan import Bind, Dev, File, Overlay, ReadOnly, Symlink, Tmpfs
from unspill.plan.argv import bwrap_options
from unspill.plan.build import build_plan
from unspill.plan.view import (
    check_no_mounts_beneath_roots,
    command_words,
    find_cover,
    in_mount_order,
    is_shown,
    missing_text,
    not_a_directory_text,
    resolve_working_dir,
)
from unspill.policy.paths import lies_beneath, normalise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import MountOp, Plan


USR = Bind(source=b"/usr", dest=b"/usr", why="")
BIN = Symlink(target=b"usr/bin", dest=b"/bin", why="")
LOOP = Symlink(target=b"loop", dest=b"/loop", why="")
FRESH_HOME = Tmpfs(dest=b"/home/ann", size_bytes=1, why="")
TOOLS = Overlay(lowers=(b"/e", b"/home/ann/tools"), dest=b"/home/ann/tools", why="")
PLAY = Bind(source=b"/state/play", dest=b"/home/ann/playground", why="", writable=True)
ROOT = Overlay(lowers=(b"/home/ann/p",), dest=b"/home/ann/p", upper=b"/u", work=b"/w", why="")
LAST = ReadOnly(dest=b"/", why="")
ALL: tuple[MountOp, ...] = (USR, BIN, LOOP, Dev(dest=b"/dev", why=""), FRESH_HOME, TOOLS, PLAY, ROOT, LAST)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"/usr", True),
        (b"/usr/bin/x", True),
        (b"/bin", True),
        (b"/bin/x", True),
        (b"/loop/x", False),
        (b"/", False),
        (b"/etc", False),
        (b"/usrlocal", False),
        (b"/home/ann", False),
        (b"/home/ann/.ssh", False),
        (b"/home/ann/tools/bin", True),
        (b"/home/ann/p/x", True),
        (b"/home/ann/playground/x", False),
        (b"/dev/null", False),
    ],
)
def test_a_path_is_shown_where_the_hosts_own_is_seen(path: bytes, shown: bool) -> None:
    assert is_shown(ALL, path) == shown


def test_the_later_of_two_operations_on_one_place_decides() -> None:
    mask = Tmpfs(dest=b"/usr", size_bytes=1, why="")
    assert find_cover((USR, mask), b"/usr/x") == mask
    assert find_cover((mask, USR), b"/usr/x") == USR


def test_the_deepest_operation_decides_whatever_the_order() -> None:
    inner = Tmpfs(dest=b"/usr/local", size_bytes=1, why="")
    assert find_cover((inner, USR), b"/usr/local/x") == inner


@pytest.mark.parametrize("outer", [ROOT, PLAY], ids=["root", "playground"])
@pytest.mark.parametrize(
    "make",
    [
        lambda dest: Tmpfs(dest=dest, size_bytes=1, why=""),
        lambda dest: Bind(source=b"/dev/null", dest=dest, why=""),
        lambda dest: Symlink(target=b"x", dest=dest, why=""),
        lambda dest: File(content=b"", dest=dest, why=""),
        lambda dest: ReadOnly(dest=dest, why=""),
        lambda dest: Overlay(lowers=(b"/x",), dest=dest, why=""),
    ],
    ids=["tmpfs", "bind", "symlink", "file", "remount", "overlay"],
)
def test_nothing_is_mounted_beneath_what_a_command_can_write(outer: Overlay | Bind, make: object) -> None:
    inner = make(outer.dest + b"/x")  # type: ignore[operator]
    with pytest.raises(SandboxUnavailable, match="inside a writable directory"):
        check_no_mounts_beneath_roots((inner, outer))
    check_no_mounts_beneath_roots((make(outer.dest + b"-x"), outer))  # type: ignore[operator]


def test_a_root_may_lie_in_what_is_read_only() -> None:
    check_no_mounts_beneath_roots(ALL)


PATHS = st.lists(st.sampled_from([b"a", b"ab", b"b", b"tmp"]), max_size=5).map(
    lambda names: normalise(b"/" + b"/".join(names))
)
OPERATIONS = st.one_of(
    st.builds(lambda dest: Tmpfs(dest=dest, size_bytes=1, why=""), PATHS),
    st.builds(lambda dest: Bind(source=dest, dest=dest, why=""), PATHS),
    st.builds(lambda dest: Symlink(target=b"x", dest=dest, why=""), PATHS),
    st.builds(lambda dest: ReadOnly(dest=dest, why=""), PATHS),
)


def tmpfs(dest: bytes) -> Tmpfs:
    return Tmpfs(dest=dest, size_bytes=1, why="")


@for_all(st.lists(OPERATIONS, max_size=12))
def test_every_operation_comes_after_those_that_contain_it(operations: list[MountOp]) -> None:
    ordered = in_mount_order(operations)
    assert sorted(map(repr, ordered)) == sorted(map(repr, operations))
    for index, operation in enumerate(ordered):
        for later in ordered[index + 1 :]:
            if isinstance(operation, ReadOnly):
                # Everything it covers is done: what follows are remounts that are not beneath it
                assert isinstance(later, ReadOnly)
                assert not lies_beneath(later.dest, operation.dest)
            elif not isinstance(later, ReadOnly):
                assert not lies_beneath(operation.dest, later.dest)


@for_all(st.lists(OPERATIONS, max_size=12))
def test_operations_on_one_place_keep_their_order(operations: list[MountOp]) -> None:
    ordered = in_mount_order(operations)
    for kind in (Tmpfs, Bind, Symlink, ReadOnly):
        for dest in {operation.dest for operation in operations}:
            before, after = (
                [id(op) for op in some if op.dest == dest and isinstance(op, kind)] for some in (operations, ordered)
            )
            assert before == after


def test_a_project_under_tmp_is_mounted_after_it() -> None:
    project = Bind(source=b"/tmp/x/p", dest=b"/tmp/x/p", why="", writable=True)
    assert in_mount_order([project, tmpfs(b"/tmp")]) == (tmpfs(b"/tmp"), project)


def test_names_that_only_begin_alike_are_not_related() -> None:
    given = (tmpfs(b"/a-b"), tmpfs(b"/a"), tmpfs(b"/ab"))
    assert in_mount_order(given) == given


def test_the_root_is_remounted_last() -> None:
    root, dev = ReadOnly(dest=b"/", why=""), ReadOnly(dest=b"/dev", why="")
    assert in_mount_order([root, dev, tmpfs(b"/dev/shm"), tmpfs(b"/dev")]) == (
        tmpfs(b"/dev"),
        tmpfs(b"/dev/shm"),
        dev,
        root,
    )


def plan(cwd: bytes) -> Plan:
    return build_plan(given(cwd=cwd, argv=(b"true",)))


@pytest.mark.parametrize("cwd", [PROJECT, HOME + b"/playground", b"/tmp", HOME])
def test_bwrap_goes_to_what_the_plan_mounts(cwd: bytes) -> None:
    assert not plan(cwd).staged


@pytest.mark.parametrize(
    "cwd",
    [
        PROJECT + b"/sub",
        HOME + b"/playground/sub",
        b"/dev/fd/3",
        b"/proc/self/fd/3",
        b"/proc",
        b"/dev",
        b"/proc/sys/kernel",
        b"/usr/share",
        b"/",
        HOME + b"/made",
    ],
)
def test_to_everything_else_a_shell_goes(cwd: bytes) -> None:
    made = plan(cwd)
    assert made.staged
    options, _contents = bwrap_options(made, facts(), 8)
    assert options[options.index(b"--chdir") + 1] == b"/"
    words = command_words(made, 7)
    assert (words[:2], words[3:]) == ((b"/bin/sh", b"-c"), (b"sh", cwd, b"true"))


def test_by_hand_the_shell_speaks_on_stderr_and_closes_nothing() -> None:
    script = command_words(plan(b"/usr/share"))[2]
    assert b">&2" in script
    assert b">&-" not in script


PROJECT = b"/home/ann/shop"
PLAYGROUND = b"/home/ann/playground"


@pytest.mark.parametrize(
    ("working_dir", "expected"),
    [
        (None, PROJECT),
        ("", PROJECT),
        (".", PROJECT),
        ("sub", b"/home/ann/shop/sub"),
        ("./sub//x/", b"/home/ann/shop/sub/x"),
        ("..", b"/home/ann"),
        ("../../../..", b"/"),
        ("/", b"/"),
        ("/etc", b"/etc"),
        ("//etc/../usr/", b"/usr"),
        ("playground", b"/home/ann/playground"),
        ("./playground", b"/home/ann/shop/playground"),
        ("playground/x", b"/home/ann/shop/playground/x"),
        ("~", b"/home/ann/shop/~"),
        ("a\nb", b"/home/ann/shop/a\nb"),
        ("\udcff", b"/home/ann/shop/\xff"),
    ],
)
def test_a_working_directory_is_relative_to_the_project(working_dir: str | None, expected: bytes) -> None:
    assert resolve_working_dir(working_dir, PROJECT, PLAYGROUND) == expected


def test_nul_is_refused() -> None:
    with pytest.raises(UsageError):
        resolve_working_dir("a\0b", PROJECT, PLAYGROUND)


def test_the_errors_are_those_a_model_knows() -> None:
    assert missing_text(b"/x") == "ERROR: Working directory does not exist: /x"
    assert not_a_directory_text(b"/x") == "ERROR: Working directory is not a directory: /x"
    assert missing_text(b"/\x1b[2J").isprintable()
