# SPDX-License-Identifier: Apache-2.0
"""Where sequences of operations are played: straight on overlay mounts, or through whole sandboxes.

An engine is given a fresh place per sequence. It makes a live tree there, then plays runs one on top of the other
and tells for each what the view was before and after, and what the scan says about it.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tests.kernel.exactness_oracle import Picture
from tests.support import Ground
from unspill import Sandbox
from unspill.changes.scan import scan
from unspill.model.change import ChangeSet

HERE: Final = Path(__file__).parent
INSIDE: Final = HERE / "exactness_inside.py"
MOUNTING: Final = HERE / "exactness_mounts.py"
# The interpreter of the tests may lie where a sandbox shows nothing.
PYTHON: Final = shutil.which("python3", path="/usr/bin:/bin") or sys.executable


@dataclass(frozen=True, kw_only=True)
class Played:
    """One run: the merged view before and after it, its change set, and what was done."""

    before: Picture
    after: Picture
    changes: ChangeSet
    done: list[str]


class Stage(Protocol):
    """One live tree and the runs over it."""

    def play(self, seeds: list[int]) -> Played:
        """Perform one operation per seed in a new run on top of the earlier ones."""
        ...

    def whole(self) -> ChangeSet:
        """Return the change set of all runs against the live tree."""
        ...

    def leave(self) -> None:
        """Let go of everything but the files."""
        ...


class Engine(Protocol):
    """Makes stages."""

    def stage(self, place: Path, seeds: list[int]) -> Stage:
        """Make a live tree in `place` by performing one operation per seed."""
        ...


class Mounts:
    """Overlay mounts in a namespace of one long-lived process, which is fast enough for thousands of sequences."""

    def __init__(self) -> None:
        command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, os.fspath(MOUNTING)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def stage(self, place: Path, seeds: list[int]) -> Stage:
        self.ask(base=os.fspath(place), layers=None, seeds=seeds, closed=False)
        return MountedStage(self, place)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class MountedStage:
    """Layers that are mounted by the process of a Mounts and scanned here, outside of its namespace."""

    def __init__(self, mounts: Mounts, place: Path) -> None:
        self._mounts = mounts
        self._place = place
        self._layers: list[str] = []

    def play(self, seeds: list[int]) -> Played:
        new = f"layer{len(self._layers)}"
        request = {"base": os.fspath(self._place), "layers": self._layers, "new": new}
        answer = self._mounts.ask(**request, seeds=seeds, closed=True)
        changes = scan(self._paths([new]), self._paths(self._layers), self._live())
        self._layers.insert(0, new)
        return Played(changes=changes, **answer)

    def whole(self) -> ChangeSet:
        return scan(self._paths(self._layers), (), self._live())

    def leave(self) -> None:
        pass

    def _live(self) -> bytes:
        return os.fsencode(self._place / "live")

    def _paths(self, layers: list[str]) -> list[bytes]:
        return [os.fsencode(self._place / layer) for layer in layers]


class Sandboxes:
    """Real sandboxes with one of unspill's own engines, everything included."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def stage(self, place: Path, seeds: list[int]) -> Stage:
        project = place / "live"
        project.mkdir(parents=True)
        request = json.dumps({"seeds": seeds, "closed": False})
        subprocess.run([PYTHON, INSIDE], cwd=project, input=request, text=True, stdout=subprocess.DEVNULL, check=True)
        return SandboxStage(Sandbox(project, policy=self._ground.policy()))


class SandboxStage:
    """One sandbox; each run is a run of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def play(self, seeds: list[int]) -> Played:
        request = json.dumps({"seeds": seeds, "closed": False}).encode()
        result = self._sandbox.run([PYTHON, "-c", INSIDE.read_text()], stdin=request)
        assert result.ok, result
        return Played(changes=result.changes, **json.loads(result.stdout.kept()))

    def whole(self) -> ChangeSet:
        return self._sandbox.changes()

    def leave(self) -> None:
        self._sandbox.discard()
        self._sandbox.close()
