# SPDX-License-Identifier: Apache-2.0
"""Held layers that an operation has in its hands: who looks at them meanwhile waits, and nothing is called lost."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import Ground, kinds
from unspill import Sandbox, Selection
from unspill.apply.operate import operate
from unspill.changes.scan import scan
from unspill.errors import SandboxUnavailable, UsageError
from unspill.layers.locks import lock_sandbox, lock_unless_given_up
from unspill.model.change import ChangeSet
from unspill.sandbox import apply as applying
from unspill.sandbox import history

pytestmark = pytest.mark.kernel

MOMENT_S: Final = 0.3
LOOKS: Final[dict[str, Callable[[Sandbox], object]]] = {
    "changes": lambda sandbox: kinds(sandbox.changes()) == {"one": "added", "two": "added"},
    "diff": lambda sandbox: "+++ b/two" in sandbox.diff(),
    "summary": lambda sandbox: sandbox.summary()[0] == "2 added",
    "review": lambda sandbox: len(sandbox.reviews.look()[0].roots[0].changes) == 2,
    "a run": lambda sandbox: sandbox.run("cat one two", after="discard").stdout.head == b"1\n2\n",
    "a run that is held": lambda sandbox: sandbox.run("cat one two").stdout.head == b"1\n2\n",
}


@pytest.fixture
def held(ground: Ground) -> Sandbox:
    """A sandbox that holds two runs."""
    sandbox = ground.sandbox()
    assert sandbox.run("echo 1 > one").held
    assert sandbox.run("echo 2 > two").held
    return sandbox


def layer_with(ground: Ground, name: str) -> Path:
    return max((ground.state / "layers").iterdir(), key=lambda path: (path / name).exists())


@contextmanager
def in_hand(ground: Ground, sandbox: Sandbox) -> Iterator[None]:
    """Have a held layer elsewhere for a moment, as an operation has it: with the sandbox's lock."""
    layer = layer_with(ground, "two")
    elsewhere = ground.top / "in-hand"
    is_taken = threading.Event()

    def take() -> None:
        with lock_sandbox(os.fsencode(ground.state), sandbox.id):
            layer.rename(elsewhere)
            is_taken.set()
            time.sleep(MOMENT_S)
            elsewhere.rename(layer)

    thread = threading.Thread(target=take)
    thread.start()
    is_taken.wait()
    yield
    thread.join()


@pytest.mark.parametrize("look", LOOKS)
def test_what_an_operation_has_in_its_hands_is_waited_for(ground: Ground, held: Sandbox, look: str) -> None:
    with in_hand(ground, held):
        assert LOOKS[look](held)


def test_a_discard_that_somebody_undoes_while_it_is_told_of_has_nothing_to_tell(
    ground: Ground, held: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    discard = held.discard()
    assert kinds(held.operation_changes(discard.number)) == {"one": "added", "two": "added"}
    calls: list[int] = []

    def scan_after_an_undo(*layers: Any) -> ChangeSet:
        calls.append(len(layers))
        if len(calls) == 1:
            ground.sandbox().undo()
        return scan(*layers)

    monkeypatch.setattr(history, "scan", scan_after_an_undo)
    assert kinds(held.operation_changes(discard.number)) == {}
    assert kinds(held.changes()) == {"one": "added", "two": "added"}


class NobodyWaits:
    """Layers that are taken as they were before runs waited for them."""

    def __init__(self, *_arguments: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_rest: object) -> None:
        pass

    def release(self) -> None:
        pass


@pytest.mark.parametrize("waits", [True, False], ids=["", "control"])
@pytest.mark.parametrize("verb", ["discard", "redo"])
def test_no_run_begins_on_layers_that_an_operation_takes(
    ground: Ground, held: Sandbox, monkeypatch: pytest.MonkeyPatch, verb: str, waits: bool
) -> None:
    if verb == "redo":
        held.discard()
        held.undo()
    seen: list[bytes] = []
    other = threading.Thread(target=lambda: seen.append(ground.sandbox().run("cat one || echo no").stdout.head))

    def operate_slowly(store: Any, task: Any) -> Any:
        other.start()
        other.join(MOMENT_S if waits else 20)
        assert bool(seen) != waits
        return operate(store, task)

    for module in (applying, history):
        monkeypatch.setattr(module, "operate", operate_slowly)
        if not waits:
            monkeypatch.setattr(module, "OperationUse", NobodyWaits)
    getattr(held, verb)()
    other.join()
    assert seen == [b"no\n" if waits else b"1\n"]


def test_an_undo_that_waited_looks_at_the_layers_anew(
    ground: Ground, held: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operation folded them meanwhile."""
    ground.sandbox().run("echo 3 > two; echo 3 > three", after="apply")
    assert kinds(held.changes()) == {"one": "added", "two": "added"}

    @contextmanager
    def lock_late(*arguments: Any) -> Iterator[object]:
        ground.sandbox().discard(Selection(paths=(b"one",)))
        with lock_unless_given_up(*arguments) as lock:
            yield lock

    monkeypatch.setattr(history, "lock_unless_given_up", lock_late)
    assert held.undo().left == ()
    assert kinds(held.changes()) == {"two": "added"}


@pytest.fixture
def undone_late(ground: Ground, held: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """An undo that waits while somebody else undoes the same, and applies what is held then."""

    @contextmanager
    def lock_late(*arguments: Any) -> Iterator[object]:
        monkeypatch.setattr(history, "lock_unless_given_up", lock_unless_given_up)
        ground.sandbox().undo()
        ground.sandbox().apply()
        with lock_unless_given_up(*arguments) as lock:
            yield lock

    def undo() -> object:
        monkeypatch.setattr(history, "lock_unless_given_up", lock_late)
        return held.undo()

    return undo


@pytest.mark.parametrize("kind", ["discard", "apply"])
def test_of_two_undos_at_once_one_takes_the_operation_back(
    ground: Ground, held: Sandbox, undone_late: Callable[[], object], kind: str
) -> None:
    number = getattr(held, kind)().number
    with pytest.raises(UsageError, match=f"op {number} was undone or redone in the meantime, by op {number + 1}"):
        undone_late()
    assert kinds(held.changes()) == {}
    assert (ground.project / "one").read_text() == "1\n"


def test_if_both_did_layers_would_be_held_that_are_gone(
    held: Sandbox, undone_late: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_refuse_reversed_since", lambda *_: None)
    held.discard()
    undone_late()
    with pytest.raises(SandboxUnavailable, match="is missing"):
        held.changes()


@pytest.mark.parametrize("gone", ["one", "two"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_layer_that_is_gone_is_named_and_the_way_out_keeps_the_rest(
    ground: Ground, held: Sandbox, look: str, gone: str
) -> None:
    layer_with(ground, gone).rename(ground.top / "backup")
    with pytest.raises(SandboxUnavailable, match="is missing; the changes in it are lost") as caught:
        LOOKS[look](held)
    remedy = caught.value.remedy or ""
    command = remedy.rpartition(": ")[2]
    assert command.startswith("mkdir ")
    assert "discard" not in remedy
    subprocess.run(command.split(), check=True)
    left = {"one": "two", "two": "one"}[gone]
    assert kinds(held.changes()) == {left: "added"}
    assert held.apply().left == ()
    assert (ground.project / left).exists()
