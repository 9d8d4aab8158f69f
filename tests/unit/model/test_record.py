# SPDX-License-Identifier: Apache-2.0
"""Records: frozen, slotted, keyword-only, equal by type and value; and the small rules that live with them."""

from __future__ import annotations

import copy
import pickle

import pytest

from unspill.model.change import Change, ChangeSet, RootChanges
from unspill.model.run import LayerId, OpenLayer, Output, RunId, SealedLayer, Stack, TimeMark
from unspill.record import Record


class Point(Record):
    x: int
    y: int = 0


class Other(Record):
    x: int
    y: int = 0


class Deep(Point):
    z: int = 5


def test_fields_are_given_by_name_and_defaults_fill_the_rest() -> None:
    assert (Point(x=1).x, Point(x=1).y, Point(y=2, x=1).y) == (1, 0, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "Point needs x"),
        ({"y": 1}, "Point needs x"),
        ({"x": 1, "z": 2}, "Point has no z"),
        ({"z": 2}, "Point has no z"),
    ],
)
def test_a_wrong_field_is_named(values: dict[str, int], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Point(**values)


def test_positions_are_not_taken() -> None:
    with pytest.raises(TypeError):
        Point(1, 2)  # type: ignore[call-arg]


def test_nothing_can_be_changed_or_added() -> None:
    point = Point(x=1)
    for name in ("x", "new"):
        with pytest.raises(AttributeError):
            setattr(point, name, 2)
    with pytest.raises(AttributeError):
        del point.x
    assert not hasattr(point, "__dict__")


def test_equality_is_by_type_and_value() -> None:
    assert Point(x=1) == Point(x=1, y=0)
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Other(x=1)
    assert Point(x=1) != (1, 0)
    assert len({Point(x=1), Point(x=1), Other(x=1)}) == 2


def test_replace_makes_another() -> None:
    point = Point(x=1, y=2)
    assert point.replace(y=3) == Point(x=1, y=3)
    assert point == Point(x=1, y=2)
    with pytest.raises(TypeError):
        point.replace(z=1)


def test_fields_are_inherited_in_order() -> None:
    deep = Deep(x=1)
    assert deep.as_dict() == {"x": 1, "y": 0, "z": 5}
    assert repr(deep) == "Deep(x=1, y=0, z=5)"
    assert deep != Point(x=1)


def test_a_record_can_be_matched() -> None:
    match Point(x=1, y=2):
        case Point(x=1, y=found):
            assert found == 2
        case _:
            pytest.fail("no match")


def test_a_record_can_be_copied_and_sent_to_another_process() -> None:
    point = Deep(x=1, z=9)
    assert pickle.loads(pickle.dumps(point)) == point
    assert copy.deepcopy(point) == copy.copy(point) == point


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
