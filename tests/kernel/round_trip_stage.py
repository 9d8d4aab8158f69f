# SPDX-License-Identifier: Apache-2.0
"""The real side of a round trip: a project, a sandbox over it, and a process that may mount and read everything."""

import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.kernel.round_trip_inside import Operation
from tests.support import Ground
from unspill import RunResult, Sandbox
from unspill.layers.lifecycle import OpenRun, drop_run, load_stacks, open_run
from unspill.layers.locks import lock_sandbox
from unspill.model.operation import Operation as Recorded
from unspill.model.run import Exited
from unspill.sandbox.running import _seal_and_apply
from unspill.sandbox.scan import scan_run

INSIDE: Final = Path(__file__).with_name("round_trip_inside.py")
PYTHON: Final = shutil.which("python3", path="/usr/bin:/bin") or sys.executable


class Inside:
    """A process in its own user and mount namespace."""

    def __init__(self) -> None:
        command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, os.fspath(INSIDE), "serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, what: str, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump({"what": what, **request}, self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Stage:
    """One project and its sandbox. Runs are mounts of the sandbox's own layers, without bubblewrap around them."""

    def __init__(self, ground: Ground, inside: Inside, project: Path, dest: Path) -> None:
        self.project = project
        project.mkdir(mode=0o755)
        project.chmod(0o755)
        self._inside = inside
        inside.ask("begin")
        self._dest = os.fsencode(dest)
        self.sandbox = Sandbox(project, policy=ground.policy())
        self._project = self.sandbox._project
        self.is_elsewhere = project.stat().st_dev != os.stat(self._project.store.state).st_dev
        self._tick = os.open(dest.parent, os.O_TMPFILE | os.O_WRONLY, 0o600)

    def edit(self, operations: list[Operation]) -> None:
        """Let a person edit the live tree."""
        self._inside.ask("act", live=os.fsencode(self.project), operations=operations)

    def look(self) -> tuple[dict[bytes, Any], dict[bytes, Any]]:
        """Return pictures of the live tree and of the view."""
        (stack,) = load_stacks(self._project.store, self._project.row.id, self._project.roots)
        return self._inside.ask("look", lowers=list(stack.lowers()), dest=self._dest)  # type: ignore[no-any-return]

    def let_time_pass(self) -> None:
        """Make everything that was changed so far older than what is changed from now on, without waiting.

        A filesystem's clock stands still between two ticks. But an entry that has its time, and whose stamp somebody
        looked at, gets the real time at its next change, and from then on nothing gets an older one.
        """
        for _ in range(2):
            os.fchmod(self._tick, 0o600)
            os.fstat(self._tick)

    def run(self, operations: list[Operation], after: str) -> Recorded | None:
        """Perform operations in a new layer; then hold or apply it, or throw it away."""
        self.let_time_pass()
        project = self._project
        with lock_sandbox(project.store.state, project.row.id):
            under_way = open_run(project.store, project.row, argv=(b"true",), cwd=project.path, roots=project.roots)
            self._perform(under_way, operations)
            changes = scan_run(under_way)
            ended = under_way.run.replace(ended_ns=time.time_ns(), outcome=Exited(code=0), changed=len(changes))
            is_touched = after == "hold" and all(change.is_mere_touch for change in changes)
            if after == "discard" or not changes or is_touched:
                drop_run(project.store, under_way, ended)
                return None
            how: Any = "hold" if after == "hold" else "apply"
            return _seal_and_apply(project, under_way, ended, changes, how, None, None, None).operation

    def _perform(self, under_way: OpenRun, operations: list[Operation]) -> None:
        (stack,) = under_way.stacks
        assert stack.open is not None
        self._inside.ask(
            "run",
            lowers=list(stack.lowers()),
            upper=stack.open.upper,
            work=stack.open.work,
            dest=self._dest,
            operations=operations,
        )

    def close(self) -> None:
        os.close(self._tick)
        self.sandbox.close()


class WholeStage(Stage):
    """The same with real runs: bubblewrap, the spawner and all."""

    def run(self, operations: list[Operation], after: str) -> Recorded | None:
        self.let_time_pass()
        command = [PYTHON, "-c", INSIDE.read_text()]
        result = self.sandbox.run(command, stdin=pickle.dumps(operations), after=after)  # type: ignore[arg-type]
        assert result.ok, result
        return result.operation


LOOK: Final = """
import os, pickle, sys
sys.stdout.buffer.write(pickle.dumps(picture(os.getcwdb())))
"""


class LiveStage(Stage):
    """The same in one live sandbox, which stays while a person edits, applies and undoes."""

    def __init__(self, ground: Ground, inside: Inside, project: Path, dest: Path) -> None:
        super().__init__(ground, inside, project, dest)
        self.live = self.sandbox.live()

    def run(self, operations: list[Operation], after: str) -> Recorded | None:
        self.let_time_pass()
        return self._play(operations, "", after).operation

    def look(self) -> tuple[dict[bytes, Any], dict[bytes, Any]]:
        live, view = super().look()
        seen = pickle.loads(self._play([], LOOK, "hold").stdout.head)
        assert seen == view, [(path, seen.get(path), view.get(path)) for path in sorted({*seen, *view})]
        return live, view

    def _play(self, operations: list[Operation], then: str, after: str) -> RunResult:
        command = [PYTHON, "-c", INSIDE.read_text() + then]
        result = self.live.run(command, stdin=pickle.dumps(operations), after=after)  # type: ignore[arg-type]
        assert result.ok, result
        return result

    def close(self) -> None:
        self.live.close()
        super().close()
