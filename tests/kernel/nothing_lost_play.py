# SPDX-License-Identifier: Apache-2.0
"""Plays sequences in which runs are also interrupted and killed, and follows every version of every file.

A version is the content of a file; no two that are written are alike. It counts from the end of the run that left it,
or from the moment when it is live, and may go only by the person's own edit of the live file. After every step each one
is looked for in the project, the held layers and the directories of operations. At the end it is got back: by a look at
the live tree and at the view, by undos, redos and restores. What a later run has written over while it was held is only
looked for: it lies in a layer below.
"""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.kernel.crash_copies import contents
from tests.kernel.round_trip_inside import Operation
from tests.kernel.round_trip_play import KINDS as UNDISTURBED
from tests.kernel.round_trip_play import Game, Sequence, Step
from tests.kernel.round_trip_stage import INSIDE, PYTHON, WholeStage
from tests.kernel.round_trip_tree import Node, Tree, ancestors
from tests.support import VIEW_LINES
from unspill import Sandbox
from unspill.apply.journal import operation_dir
from unspill.errors import UsageError
from unspill.layers.locks import upper_dir
from unspill.model.operation import Operation as Recorded

KINDS = [*UNDISTURBED, *("run, cancel",) * 2, *("run, kill",) * 2]
SIGNALS = {"cancel": signal.SIGINT, "kill": signal.SIGKILL}

CALLER = (
    VIEW_LINES
    + """
import os, signal, sys
from unspill import OutputChunk, Policy, Sandbox
project, bwrap, after_cancel, *command = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)

def tell(event):
    if isinstance(event, OutputChunk):
        os.write(1, event.chunk)

policy = Policy(**VIEW, bwrap=os.fsencode(bwrap), after="apply", after_cancel=after_cancel)
Sandbox(project, policy=policy).run(command, stdin=sys.stdin.buffer.read(), on_event=tell)
"""
)
Act = Callable[[], object]
WAIT = "\nimport time\nprint('written', flush=True)\ntime.sleep(3600)\n"


class InterruptedStage(WholeStage):
    """Real runs, of which some are interrupted when they have written all: by Ctrl-C, or by a kill of their caller."""

    after_cancel = "hold"

    def run(self, operations: list[Operation], after: str) -> Recorded | None:
        if after not in SIGNALS:
            return super().run(operations, after)
        self.let_time_pass()
        policy = self.sandbox.policy
        words: list[str | Path] = [
            sys.executable,
            "-c",
            CALLER,
            self.project,
            os.fsdecode(policy.bwrap or b""),
            self.after_cancel,
        ]
        with subprocess.Popen(
            [*words, PYTHON, "-c", INSIDE.read_text() + WAIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as caller:
            assert caller.stdin is not None
            assert caller.stdout is not None
            assert caller.stderr is not None
            caller.stdin.write(pickle.dumps(operations))
            caller.stdin.close()
            first = caller.stdout.readline()
            assert first == b"written\n", (first, caller.stdout.read(), caller.stderr.read())
            caller.send_signal(SIGNALS[after])
        # What another process would do next
        self.sandbox.close()
        self.sandbox = Sandbox(self.project, policy=policy)
        self._project = self.sandbox._project
        return None


class VersionGame(Game):
    """One sequence, and every version that there was in it."""

    is_unique = True

    def __init__(self, stage: InterruptedStage) -> None:
        super().__init__(stage)
        # Where each version was seen, and which ones a later run has written over while they were held
        self._paths: dict[bytes, set[bytes]] = {}
        self._covered: set[bytes] = set()
        self.versions = 0
        self.reached: Counter[str] = Counter()

    def problems(self, sequence: Sequence) -> list[str]:
        found = super().problems(sequence)
        self.versions = len(self._paths)
        if found:
            return found
        return [*self.told, *lost] if (lost := self._unreached()) else []

    def _play(self, step: Step) -> list[str]:
        self._follow(self._oracle.live)
        live, view = written(self._oracle.live), written(self._oracle.view())
        found = super()._play(step)
        view_now = written(self._oracle.view())
        if step.kind == "person":
            for gone in live - written(self._oracle.live):
                self._paths.pop(gone, None)
        else:
            self._follow(self._oracle.view())
            if step.kind.startswith("run"):
                self._covered |= view - view_now - live
        # What comes back below the changes of a later run
        self._covered |= {content for layer in self._oracle.stack for content in written(layer.entries)}
        self._covered -= view_now
        return [*self._missing(), *found]

    def _follow(self, tree: Tree) -> None:
        for path, node in tree.items():
            if node.kind == "file" and node.content:
                self._paths.setdefault(node.content, set()).add(path)

    def _missing(self) -> list[str]:
        """Look for every version on the disk: in the project, in what is held, and in what operations keep."""
        project = self._stage._project
        places = [
            project.path,
            *(upper_dir(project.store.state, row.id) for row in project.store.layers.sealed(project.row.id)),
        ]
        done = [one.id for one in self._stage.sandbox.operations(limit=1000) if one.ending == "done"]
        places += [operation_dir(project.store.state, name) for name in done]
        kept = set().union(*(contents(place) for place in places))
        return [f"lost: {content!r} of {sorted(self._paths[content])}" for content in set(self._paths) - kept]

    def _unreached(self) -> list[str]:
        """Get every version back that no later run has written over; return those that nothing brings."""
        left = set(self._paths) - self._covered
        sandbox = self._stage.sandbox

        def done() -> list[Recorded]:
            return [one for one in sandbox.operations(limit=1000) if one.ending == "done"]

        def undos() -> list[Act]:
            return [partial(sandbox.undo, one.number) for one in done() if one.kind != "undo"]

        def one_by_one() -> Iterator[Act]:
            for one in done():
                if one.kind != "undo":
                    yield from (partial(sandbox.undo, one.number), partial(sandbox.redo, one.number))

        def after_discard() -> Iterator[Act]:
            yield sandbox.discard
            # Looked up now: what a redo discarded again is brought back by an undo of that redo
            yield from one_by_one()

        def redos() -> list[Act]:
            return [partial(sandbox.redo, one.number) for one in reversed(done())]

        # Where a directory is in the way of a file after a redo, or before an undo, it is restored at another time
        ways: list[tuple[str, Callable[[], Iterable[Act]]]] = [
            ("live or held", lambda: [lambda: None]),
            ("undo", one_by_one),
            # What a later run holds may hide what an undo holds again
            ("discard and undo", after_discard),
            ("undo", undos),
            ("restore", lambda: self._restores(sandbox, left)),
            ("redo", redos),
            ("restore", lambda: self._restores(sandbox, left)),
        ]
        for way, acts in ways:
            for act in acts():
                if not left:
                    return []
                try:
                    act()
                except UsageError:
                    continue
                live, view = self._stage.look()
                seen = {look[3] for tree in (live, view) for look in tree.values() if look[0] == "file"}
                self.reached[way] += len(left & seen)
                left -= seen
        return [f"nothing brings back {content!r} of {sorted(self._paths[content])}" for content in left]

    def _restores(self, sandbox: Sandbox, left: set[bytes]) -> Iterable[Act]:
        numbers = [one.number for one in sandbox.operations(limit=1000) if one.ending == "done"]
        for content in list(left):
            for path, number in itertools.product(self._paths[content], numbers):
                if content in left:
                    yield partial(self._restore, sandbox, path, f"op{number}")

    def _restore(self, sandbox: Sandbox, path: bytes, backup: str) -> None:
        try:
            sandbox.restore(path, backup)
        except UsageError as error:
            if "is a directory now" not in error.message and "can't be restored" not in error.message:
                raise
            self._clear_the_way(path)
            sandbox.restore(path, backup)

    def _clear_the_way(self, path: bytes) -> None:
        """Move away what is there now, as the refusal says: a directory, or what is where one was."""
        project = os.fsencode(self._stage.project)
        for above in reversed(ancestors(path)):
            full = project + b"/" + above
            if os.path.lexists(full) and (os.path.islink(full) or not os.path.isdir(full)):
                os.rename(full, b"%b-moved-%d" % (project, time.monotonic_ns()))
        if os.path.isdir(project + b"/" + path):
            os.rename(project + b"/" + path, b"%b-moved-%d" % (project, time.monotonic_ns()))


def written(tree: Mapping[bytes, Node | None]) -> set[bytes]:
    """Return the contents of the files of a tree or a layer."""
    return {node.content for node in tree.values() if node is not None and node.kind == "file" and node.content}
