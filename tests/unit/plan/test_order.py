# SPDX-License-Identifier: Apache-2.0
"""Parents are mounted before their children; what is remounted read-only comes after all beneath it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unspill.model.plan import Bind, ReadOnly, Symlink, Tmpfs
from unspill.plan.view import in_mount_order
from unspill.policy.paths import lies_beneath, normalise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import MountOp

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


@given(st.lists(OPERATIONS, max_size=12))
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


@given(st.lists(OPERATIONS, max_size=12))
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
