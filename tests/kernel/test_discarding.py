# SPDX-License-Identifier: Apache-2.0
"""Throwing away a part of what is held: the rest stays as it was, the project is never touched."""

import os
import subprocess
import sys
import threading

import pytest

from tests.support import Ground, kinds, lasting, printed, short
from unspill import Sandbox
from unspill.errors import SandboxUnavailable, UsageError
from unspill.layers.marks import Marks
from unspill.layers.stack import load_stacks
from unspill.model.selection import Hunks, Selection
from unspill.sandbox import discarding
from unspill.store.db import Store

pytestmark = pytest.mark.kernel

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
    assert sandbox.discard(["a", "new/deep"]) == 3
    assert kinds(sandbox.changes()) == {"new": "added", "new/g": "added", "numbers": "modified", "old": "deleted"}
    assert len(ground.left_behind()) == 1
    assert printed(sandbox.run("cat a new/g; ls; ls new")) == "a\n2\na\nnew\nnumbers\ng\n"
    assert (ground.project / "a").read_text() == "a\n"
    assert (ground.project / "old" / "x").exists()


def test_what_is_left_can_be_discarded_again_until_nothing_is_held(ground: Ground) -> None:
    sandbox = held(ground)
    for path in ("old", "new", "numbers", "a"):
        assert sandbox.discard([path]) > 0
    assert not sandbox.changes()
    assert ground.left_behind() == []
    assert not any(run.held for run in sandbox.runs())


def test_hunks_go_and_the_file_keeps_the_others(ground: Ground) -> None:
    sandbox = held(ground)
    sandbox.run("chmod 600 numbers")
    assert sandbox.discard(Selection(hunks=(Hunks(path=b"numbers", numbers=(1,)),))) == 1
    assert printed(sandbox.run("sed -n '3p;30p' numbers; stat -c %a numbers")) == "3\nthirty\n600\n"
    assert kinds(sandbox.changes())["a"] == "modified"


def test_a_file_that_loses_all_its_hunks_is_not_changed_any_more(ground: Ground) -> None:
    sandbox = held(ground)
    assert sandbox.discard(Selection(hunks=(Hunks(path=b"numbers", numbers=(1, 2)),))) == 1
    assert "numbers" not in kinds(sandbox.changes())


def test_hunks_of_a_file_narrow_a_path_above_it(ground: Ground) -> None:
    sandbox = held(ground)
    sandbox.discard(Selection(paths=(b".",), hunks=(Hunks(path=b"numbers", numbers=(2,)),)))
    assert kinds(sandbox.changes()) == {"numbers": "modified"}
    assert printed(sandbox.run("sed -n '3p;30p' numbers")) == "three\n30\n"


def test_a_new_directory_stays_while_something_in_it_does(ground: Ground) -> None:
    sandbox = held(ground)
    assert sandbox.discard(Selection(globs=(b"new", b"new/g"))) == 1
    assert {"new", "new/deep", "new/deep/f"} <= kinds(sandbox.changes()).keys()


def test_what_is_not_there_is_refused_and_nothing_changes(ground: Ground) -> None:
    sandbox = held(ground)
    before = sandbox.changes()
    with pytest.raises(UsageError, match="nothing changed at b"):
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
    os.utime(ground.project / "numbers")
    assert os.lstat(ground.project / "numbers").st_ctime_ns > old
    sandbox.discard(["a"])
    with Store.open(os.fsencode(ground.state)) as store:
        (stack,) = load_stacks(store, sandbox.runs()[0].sandbox, (sandbox.project,))  # type: ignore[arg-type]
        marks = Marks([(layer.upper, layer.mark.ctime_ns, store.marks.of(layer.id)) for layer in stack.sealed])
    assert marks.of(b"numbers") <= os.lstat(ground.project / "numbers").st_ctime_ns
    assert marks.of(b"new/g") > os.lstat(ground.project / "numbers").st_ctime_ns
    # The deleted directory keeps its old mark: nobody has looked at what is in it.
    assert marks.of(b"old/x") < marks.of(b"new/g")


def test_layers_that_a_run_stands_on_are_not_taken_away(ground: Ground, overlay_engine: str) -> None:
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
        with pytest.raises(SandboxUnavailable, match="still going on"):
            sandbox.discard(["a"])
    finally:
        os.write(writer, b"x")
        thread.join()
        os.close(reader)
        os.close(writer)
    assert sandbox.discard(["a"]) == 1


def test_a_failure_leaves_everything_as_it_was(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = held(ground)
    before, layers = kinds(sandbox.changes()), ground.left_behind()

    def fail(*_arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(discarding, "take_mark", fail)
        with pytest.raises(SandboxUnavailable, match="Nothing was discarded"):
            sandbox.discard(["a"])
    assert (kinds(sandbox.changes()), ground.left_behind()) == (before, layers)


@pytest.mark.parametrize("moment", ["build_residue", "take_mark", "syncfs", "write_manifests", "clean"])
def test_a_discard_that_is_killed_is_done_or_not_and_leaves_nothing_behind(ground: Ground, moment: str) -> None:
    sandbox = held(ground)
    before = kinds(sandbox.changes())
    program = f"""
import os, signal
from unspill import Policy, Sandbox
from unspill.sandbox import discarding
sandbox = Sandbox({os.fspath(ground.project)!r}, policy=Policy(bwrap={ground.bwrap!r}))
discarding.{moment} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
sandbox.discard(["a"])
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    check = f"from unspill import Sandbox; Sandbox({os.fspath(ground.project)!r}).close()"
    assert subprocess.run([sys.executable, "-c", check], check=True).returncode == 0
    is_done = moment in ("write_manifests", "clean")
    wanted = {path: kind for path, kind in before.items() if path != "a" or not is_done}
    assert kinds(sandbox.changes()) == wanted
    assert len(ground.left_behind()) == (1 if is_done else 2)
    assert len(os.listdir(ground.state / "manifests")) == (1 if is_done else 2)
