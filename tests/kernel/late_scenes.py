# SPDX-License-Identifier: Apache-2.0
"""Every way in which a version leaves the live tree while a program is opening it: the open ends right after it left.

Each scene returns the operation that is to name the edit.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.kernel.race_operation import Opening, around_renames
from tests.support import Ground
from unspill.apply import operate, perform, recover
from unspill.apply.recover import settle_mark
from unspill.errors import ApplyFailed
from unspill.model.operation import Operation

THEIRS = b"theirs\n"


class Scene:
    """A file that was changed in a sandbox, and an editor that opens it at a bad moment."""

    def __init__(self, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ground = ground
        self.monkeypatch = monkeypatch
        self.opening = Opening()
        self.file = ground.write("file", "base\n")
        self.sandbox = ground.sandbox()

    def open_now(self) -> None:
        self.opening.begin(self.file)

    def append(self) -> None:
        """Save the live file, whichever version that is, before the rename."""
        with self.file.open("ab") as file:
            file.write(b"earlier\n")

    def end_open_when(self, module: object, name: str) -> None:
        """Let the open end right before a function of an operation is called."""
        called: Callable[..., object] = getattr(module, name)

        def wrapped(*arguments: object, **options: object) -> object:
            self.opening.finish(THEIRS)
            return called(*arguments, **options)

        self.monkeypatch.setattr(module, name, wrapped)

    def apply(self, command: str = "echo ours > file") -> Operation:
        assert self.sandbox.run(command, after="hold").ok
        return self.sandbox.apply()


def swapped_back(scene: Scene) -> Operation:
    """Ours is live between two renames, because the live file was saved right before the first."""
    around_renames(scene.monkeypatch, {1: scene.append}, {1: scene.open_now})
    scene.end_open_when(operate, "wait_for_opens")
    return scene.apply()


def swapped_back_beside_others(scene: Scene) -> Operation:
    """The same in an operation of which the rest is done."""
    around_renames(scene.monkeypatch, {1: scene.append}, {1: scene.open_now})
    scene.end_open_when(operate, "wait_for_opens")
    return scene.apply("echo ours > file; echo more > other")


def taken_back_at_the_end(scene: Scene) -> Operation:
    """Ours is live until the last look, because leases tell nothing and the displaced file is written late."""
    scene.monkeypatch.setattr(perform, "has_writers", lambda *_: None)
    around_renames(scene.monkeypatch, {1: lambda: late.begin(scene.file)}, {1: scene.open_now})
    late = Opening()

    def write_late(*arguments: object) -> int:
        late.finish(b"earlier\n")
        return settle_mark(*arguments)  # type: ignore[arg-type]

    scene.monkeypatch.setattr(operate, "settle_mark", write_late)
    scene.end_open_when(operate, "wait_for_opens")
    return scene.apply()


def rolled_back(scene: Scene) -> Operation:
    """Ours is live until the disk is found full."""

    def no_space(*_arguments: object) -> None:
        scene.open_now()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    scene.monkeypatch.setattr(operate, "write_end", no_space)
    scene.end_open_when(recover, "wait_for_opens")
    with pytest.raises(ApplyFailed):
        scene.apply()
    return scene.sandbox.operations()[0]


def recovered(scene: Scene) -> Operation:
    """Ours is live from the death of the process that applied it to the next start."""
    assert scene.sandbox.run("echo ours > file", after="hold").ok
    killed(scene.ground)
    scene.open_now()
    scene.end_open_when(recover, "wait_for_opens")
    return scene.ground.sandbox("another").recovered[0]


def killed(ground: Ground) -> None:
    """Apply what is held in a process that dies when its steps are done."""
    program = [sys.executable, "-c", KILLED, os.fspath(ground.project), os.fsdecode(ground.bwrap)]
    done = subprocess.run(program, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr


KILLED = """
import os, signal, sys
from unspill import Policy, Sandbox
from unspill.apply import operate
operate.settle_mark = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Sandbox(sys.argv[1], policy=Policy(bwrap=os.fsencode(sys.argv[2]))).apply()
"""


def undo_swapped_back(scene: Scene) -> Operation:
    """The old version is live between two renames of an undo, because ours was saved right before the first."""
    scene.apply()
    around_renames(scene.monkeypatch, {1: scene.append}, {1: scene.open_now})
    scene.end_open_when(operate, "wait_for_opens")
    return scene.sandbox.undo()


def displaced(scene: Scene) -> Operation:
    """The live file is replaced while an open of it is under way."""
    scene.open_now()
    scene.end_open_when(operate, "sync_done")
    return scene.apply()


def deleted(scene: Scene) -> Operation:
    """The live file is taken away while an open of it is under way."""
    scene.open_now()
    scene.end_open_when(operate, "sync_done")
    return scene.apply("rm file")


def undone(scene: Scene) -> Operation:
    """What was applied is undone while an open of it is under way."""
    scene.apply()
    return displaced_by(scene, scene.sandbox.undo)


def redone(scene: Scene) -> Operation:
    """What was undone is done again while an open of the old version is under way."""
    scene.apply()
    scene.sandbox.undo()
    return displaced_by(scene, scene.sandbox.redo)


def restored(scene: Scene) -> Operation:
    """An old version comes back while an open of the applied one is under way."""
    scene.apply()
    return displaced_by(scene, lambda: scene.sandbox.restore("file"))


def displaced_by(scene: Scene, do: Callable[[], Operation]) -> Operation:
    scene.open_now()
    scene.end_open_when(operate, "sync_done")
    return do()


SCENES = (
    swapped_back,
    swapped_back_beside_others,
    taken_back_at_the_end,
    rolled_back,
    recovered,
    undo_swapped_back,
    displaced,
    deleted,
    undone,
    redone,
    restored,
)
