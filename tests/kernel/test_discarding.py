# SPDX-License-Identifier: Apache-2.0
"""Discarding a part of what is held, or all: the project is not touched, and undo brings it back."""

import errno
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.support import Ground, kinds, lasting, printed, short
from unspill import Sandbox
from unspill.apply import fold
from unspill.apply.draft import Marks
from unspill.errors import ApplyFailed, SandboxUnavailable, UsageError
from unspill.layers.lifecycle import load_stacks
from unspill.layers.residue import build_residue
from unspill.model.change import Hunks, Selection
from unspill.sandbox import apply
from unspill.store.db import Store

pytestmark = [pytest.mark.kernel, pytest.mark.rootfs_view]

NUMBERS = "".join(f"{number}\n" for number in range(1, 41))


def held(ground: Ground) -> Sandbox:
    """Hold two runs that change several things."""
    ground.write("numbers", NUMBERS)
    ground.write("a", "a\n")
    ground.write("old/x", "x\n")
    sandbox = ground.sandbox()
    sandbox.run("sed -i 's/^3$/three/; s/^30$/thirty/' numbers; echo b >> a; mkdir -p new/deep; echo 1 > new/deep/f")
    sandbox.run("rm -r old; echo 2 > new/g; chmod 0100 new; chmod 700 new")
    return sandbox


def test_chosen_changes_go_and_the_rest_is_one_layer(ground: Ground, engine: str) -> None:
    sandbox = held(ground)
    assert sandbox.discard(["a", "new/deep"]).changed == 3
    assert kinds(sandbox.changes()) == {"new": "added", "new/g": "added", "numbers": "modified", "old": "deleted"}
    assert len(ground.left_behind()) == 1
    assert printed(sandbox.run("cat a new/g; ls; ls new")) == "a\n2\na\nnew\nnumbers\ng\n"
    assert (ground.project / "a").read_text() == "a\n"
    assert (ground.project / "old" / "x").exists()


def test_what_is_left_can_be_discarded_again_until_nothing_is_held(ground: Ground) -> None:
    sandbox = held(ground)
    for path in ("old", "new", "numbers", "a"):
        assert sandbox.discard([path]).number
    assert not sandbox.changes()
    assert ground.left_behind() == []
    assert not any(run.held for run in sandbox.runs())


def test_hunks_go_and_the_file_keeps_the_others(ground: Ground) -> None:
    sandbox = held(ground)
    sandbox.run("chmod 600 numbers")
    assert sandbox.discard(Selection(hunks=(Hunks(path=b"numbers", numbers=(1,)),))).changed == 1
    assert printed(sandbox.run("sed -n '3p;30p' numbers; stat -c %a numbers")) == "3\nthirty\n600\n"
    assert kinds(sandbox.changes())["a"] == "modified"


def test_a_file_that_loses_all_its_hunks_is_not_changed_any_more(ground: Ground) -> None:
    sandbox = held(ground)
    assert sandbox.discard(Selection(hunks=(Hunks(path=b"numbers", numbers=(1, 2)),))).changed == 1
    assert "numbers" not in kinds(sandbox.changes())


def test_hunks_of_a_file_narrow_a_path_above_it(ground: Ground) -> None:
    sandbox = held(ground)
    sandbox.discard(Selection(paths=(b".",), hunks=(Hunks(path=b"numbers", numbers=(2,)),)))
    assert kinds(sandbox.changes()) == {"numbers": "modified"}
    assert printed(sandbox.run("sed -n '3p;30p' numbers")) == "three\n30\n"


def test_a_new_directory_stays_while_something_in_it_does(ground: Ground) -> None:
    sandbox = held(ground)
    assert sandbox.discard(Selection(globs=(b"new", b"new/g"))).changed == 1
    assert {"new", "new/deep", "new/deep/f"} <= kinds(sandbox.changes()).keys()


def test_what_is_not_there_is_refused_and_nothing_changes(ground: Ground) -> None:
    sandbox = held(ground)
    before = sandbox.changes()
    with pytest.raises(UsageError, match="b has no changes"):
        sandbox.discard(["a", "b"])
    assert sandbox.changes() == before


def test_closed_directories_stay_as_the_command_left_them(ground: Ground) -> None:
    sandbox = ground.sandbox()
    sandbox.run("mkdir -p d/e; echo x > d/e/x; echo y > y; chmod 000 d/e; chmod 000 d")
    sandbox.discard(["y"])
    assert kinds(sandbox.changes()) == {"d": "added", "d/e": "added", "d/e/x": "added"}
    assert printed(sandbox.run("stat -c %a d; chmod 700 d; stat -c %a d/e; chmod 700 d/e; cat d/e/x")) == "0\n0\nx\n"


def test_a_conflict_is_still_one_after_a_discard_of_something_else(ground: Ground) -> None:
    sandbox = held(ground)
    old = os.lstat(ground.project / "numbers").st_ctime_ns
    (ground.project / "numbers").write_text("mine\n")
    assert os.lstat(ground.project / "numbers").st_ctime_ns > old
    sandbox.discard(["a"])
    with Store.open(os.fsencode(ground.state)) as store:
        (stack,) = load_stacks(store, sandbox.runs()[0].sandbox, (sandbox.project,))  # type: ignore[arg-type]
        marks = Marks([(layer.upper, layer.mark.ctime_ns, store.marks.of(layer.id)) for layer in stack.sealed])
    assert marks.of(b"numbers") <= os.lstat(ground.project / "numbers").st_ctime_ns
    assert marks.of(b"new/g") > os.lstat(ground.project / "numbers").st_ctime_ns
    # The deleted directory keeps its old mark: nobody has looked at what is in it.
    assert marks.of(b"old/x") < marks.of(b"new/g")


def test_layers_that_a_run_stands_on_are_not_taken_away(ground: Ground, engine: str) -> None:
    sandbox = held(ground)
    begun = threading.Event()
    word = lasting()
    reader, writer = os.pipe()
    thread = threading.Thread(
        target=lambda: ground.sandbox().run(
            f"sleep {word}", after="discard", limits=short(), cancel_fd=reader, on_event=lambda _: begun.set()
        )
    )
    thread.start()
    try:
        assert begun.wait(20)
        with pytest.raises(SandboxUnavailable, match="still active"):
            sandbox.discard(["a"])
    finally:
        os.write(writer, b"x")
        thread.join()
        os.close(reader)
        os.close(writer)
    assert sandbox.discard(["a"]).changed == 1


def test_a_failure_leaves_everything_as_it_was(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = held(ground)
    before, layers = kinds(sandbox.changes()), ground.left_behind()

    def fail(*_arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(apply, "take_moment", fail)
        with pytest.raises(ApplyFailed, match="nothing was changed"):
            sandbox.discard(["a"])
    assert (kinds(sandbox.changes()), ground.left_behind()) == (before, layers)


MOMENTS = {
    "apply.fold_entries": False,
    "apply.take_moment": False,
    "operate.write_journal": False,
    "operate.write_end": False,
    "operate.finish": True,
    "recover._move_layer": True,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_discard_that_is_killed_is_done_or_not_and_leaves_nothing_behind(ground: Ground, moment: str) -> None:
    sandbox = held(ground)
    before = kinds(sandbox.changes())
    program = f"""
import os, signal
from unspill import Policy, Sandbox
from unspill.apply import operate, recover
from unspill.sandbox import apply, history
sandbox = Sandbox({os.fspath(ground.project)!r}, policy=Policy(bwrap={ground.bwrap!r}))
{moment} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
sandbox.discard(["a"])
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    check = f"from unspill import Sandbox; Sandbox({os.fspath(ground.project)!r}).close()"
    assert subprocess.run([sys.executable, "-c", check], check=True).returncode == 0
    is_done = MOMENTS[moment]
    wanted = {path: kind for path, kind in before.items() if path != "a" or not is_done}
    assert kinds(sandbox.changes()) == wanted
    assert len(ground.left_behind()) == (1 if is_done else 2)
    if is_done:
        assert sandbox.undo().changed == 1
        assert kinds(sandbox.changes()) == before


def test_undo_brings_back_all_that_was_discarded_layer_by_layer(ground: Ground) -> None:
    sandbox = held(ground)
    before, layers = kinds(sandbox.changes()), ground.left_behind()
    operation = sandbox.discard()
    assert (operation.kind, operation.number, operation.changed) == ("discard", 1, len(before))
    assert ground.left_behind() == []
    assert not any(run.held for run in sandbox.runs())
    assert kinds(sandbox.operation_changes(1)) == before
    assert sandbox.undo().number == 2
    assert (kinds(sandbox.changes()), ground.left_behind()) == (before, layers)
    assert all(run.held for run in sandbox.runs())
    assert sandbox.redo().number == 3
    assert not sandbox.changes()
    assert sandbox.undo().number == 4
    assert (kinds(sandbox.changes()), ground.left_behind()) == (before, layers)


def test_undo_brings_back_a_part_below_what_was_held_later(ground: Ground) -> None:
    sandbox = held(ground)
    before = kinds(sandbox.changes())
    sandbox.discard(Selection(paths=(b"a",), hunks=(Hunks(path=b"numbers", numbers=(2,)),)))
    sandbox.run("echo later > a")
    sandbox.undo()
    assert kinds(sandbox.changes()) == before
    assert printed(sandbox.run("cat a; sed -n '3p;30p' numbers")) == "later\nthree\nthirty\n"


def test_what_the_person_edited_before_a_discard_is_a_conflict_when_it_is_undone(ground: Ground) -> None:
    sandbox = held(ground)
    ground.write("a", "mine\n")
    sandbox.discard(["a", "numbers"])
    sandbox.undo()
    assert [(left.path, left.why) for left in sandbox.apply().left] == [(b"a", "conflict")]
    assert (ground.project / "a").read_text() == "mine\n"


def test_a_discard_is_undone_where_the_project_was_moved_away(ground: Ground) -> None:
    sandbox = held(ground)
    before = kinds(sandbox.changes())
    elsewhere = ground.project.with_name("elsewhere")
    ground.project.rename(elsewhere)
    assert sandbox.discard().number == 1
    elsewhere.rename(ground.project)
    sandbox.undo()
    assert kinds(sandbox.changes()) == before


def test_an_undo_of_what_was_asked_to_be_applied_holds_it_again(ground: Ground) -> None:
    sandbox = held(ground)
    before = kinds(sandbox.changes())
    assert sandbox.apply(["a", "new", "old"]).left == ()
    rest = kinds(sandbox.changes())
    assert rest == {"numbers": "modified"}
    assert sandbox.undo().left == ()
    assert kinds(sandbox.changes()) == before
    assert (ground.project / "a").read_text() == "a\n"
    assert printed(sandbox.run("cat a new/g; ls", after="discard")) == "a\nb\n2\na\nnew\nnumbers\n"
    assert sandbox.redo().left == ()
    assert kinds(sandbox.changes()) == rest
    assert (ground.project / "a").read_text() == "a\nb\n"
    assert sandbox.undo().left == ()
    assert sandbox.apply().left == ()
    assert not sandbox.changes()
    assert not (ground.project / "old").exists()


def test_an_undo_of_what_a_run_applied_by_itself_holds_nothing(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    assert sandbox.run("echo x > x").operation is not None
    sandbox.undo()
    assert not sandbox.changes()
    assert sandbox.redo().changed == 1
    assert (ground.project / "x").exists()


def test_what_is_not_held_any_more_is_not_redone(ground: Ground) -> None:
    sandbox = held(ground)
    sandbox.apply()
    sandbox.undo()
    discarded = sandbox.discard(["a"])
    left = sandbox.redo().left
    assert [(one.name, one.reason) for one in left] == [("a", "what this left held was applied or discarded since")]
    sandbox.undo(discarded.number)
    assert "a" in kinds(sandbox.changes())


def test_a_discard_that_was_undone_and_redone_is_undone_by_its_redo(ground: Ground) -> None:
    sandbox = held(ground)
    before = kinds(sandbox.changes())
    number = sandbox.discard().number
    sandbox.undo()
    redone = sandbox.redo()
    assert not sandbox.changes()
    assert sandbox.undo(number).of == redone.id
    assert kinds(sandbox.changes()) == before


def test_a_backup_that_an_undo_has_put_back_is_not_restored_again(ground: Ground) -> None:
    ground.write("a", "a\n")
    sandbox = ground.sandbox(after="apply")
    operation = sandbox.run("rm a").operation
    assert operation is not None
    sandbox.undo()
    with pytest.raises(UsageError, match="an undo or redo used it"):
        sandbox.restore("a", f"op{operation.number}")
    assert (ground.project / "a").read_text() == "a\n"


def test_an_undo_that_can_not_hold_the_changes_again_is_taken_back_whole(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.write("closed/a", "old\n")
    sandbox = ground.sandbox()
    command = "echo new > closed/a; echo b > closed/b; echo c > c; chmod 555 closed"
    assert sandbox.run(command).held
    assert sandbox.apply().left == ()

    def fail(*arguments: Any) -> None:
        build_residue(*arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(fold, "build_residue", fail)
        with pytest.raises(ApplyFailed, match="nothing was changed"):
            sandbox.undo()
    assert (ground.project / "closed/a").read_text() == "new\n"
    assert not sandbox.changes()
    assert sandbox.undo().left == ()
    assert (ground.project / "closed/a").read_text() == "old\n"
    assert {"c", "closed/a", "closed/b"} <= kinds(sandbox.changes()).keys()


def test_what_a_run_held_and_a_later_one_deleted_is_kept_when_nothing_is_left_to_apply(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert sandbox.run("echo kept > a").held
    assert sandbox.run("rm a", after="apply").ok
    assert not sandbox.changes()
    (operation,) = sandbox.operations()
    assert operation.kind == "discard"
    kept = [path.read_text() for path in (ground.state / "operations" / operation.id).rglob("a") if path.is_file()]
    assert kept == ["kept\n"]


def test_what_can_not_be_let_go_because_the_disk_fails_stays_for_now(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a look belongs to every verb, and its failure is none of theirs."""
    sandbox = ground.sandbox()
    sandbox.run("echo > file", after="hold")

    def fail(*_given: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("unspill.sandbox.sandbox.has_news", lambda _project: True)
    with monkeypatch.context() as patch:
        patch.setattr("unspill.sandbox.apply.fold_changes", fail)
        assert kinds(sandbox.changes()) == {"file": "added"}
    sandbox.apply()
    assert (ground.project / "file").exists()
