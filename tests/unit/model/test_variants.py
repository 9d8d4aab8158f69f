# SPDX-License-Identifier: Apache-2.0
"""Small rules that live with the records themselves."""

import pytest

from unspill.model.change import Change, ChangeSet, RootChanges
from unspill.model.run import LayerId, OpenLayer, Output, RunId, SealedLayer, Stack, TimeMark

MARK = TimeMark(ctime_ns=1)


def sealed(name: str) -> SealedLayer:
    return SealedLayer(id=LayerId(name), upper=name.encode(), mark=MARK, run=RunId("r"))


def test_the_topmost_layer_is_the_first_lower_and_the_live_one_the_last() -> None:
    layer = OpenLayer(id=LayerId("o"), upper=b"/o", work=b"/w", mark=MARK, run=RunId("r"))
    stack = Stack(live=b"/live", device=1, inode=2, sealed=(sealed("old"), sealed("new")), open=layer)
    assert stack.lowers() == (b"new", b"old", b"/live")
    assert Stack(live=b"/live", device=1, inode=2).lowers() == (b"/live",)


def test_an_output_knows_how_much_there_was() -> None:
    output = Output(head=b"abc", tail=b"yz", left_out=10)
    assert output.total == 15
    assert output.kept() == b"abcyz"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change(path=b"f", kind="metadata", aspects=("mtime",)), True),
        (Change(path=b"f", kind="metadata", aspects=("mode",)), False),
        (Change(path=b"f", kind="metadata", aspects=("mode", "mtime")), False),
        (Change(path=b"f", kind="modified", aspects=("mtime",)), False),
    ],
)
def test_a_mere_touch_is_a_new_time_and_nothing_else(change: Change, expected: bool) -> None:
    assert change.is_mere_touch is expected


def test_a_change_set_is_what_its_roots_hold() -> None:
    one, two = Change(path=b"a", kind="added"), Change(path=b"b", kind="deleted")
    changes = ChangeSet(roots=(RootChanges(root=b"/p", changes=(one,)), RootChanges(root=b"/q", changes=(two,))))
    assert list(changes) == [one, two]
    assert len(changes) == 2
    assert changes
    assert not ChangeSet(roots=(RootChanges(root=b"/p", changes=()),), findings=("x",))
