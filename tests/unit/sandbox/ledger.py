# SPDX-License-Identifier: Apache-2.0
"""A project with operations that were really done, by plain renames: journals, displaced files, rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from unspill.apply.journal import End, Journal, journal_file, operation_dir, read_journal, write_end, write_journal
from unspill.apply.steps import entry_of
from unspill.model.operation import Entry, Operation, OperationId, Step
from unspill.store.db import Store

if TYPE_CHECKING:
    from unspill.model.operation import OperationKind

DAY_NS = 24 * 3600 * 1_000_000_000
# Noon of a day, so that hours around it are the same day in every time zone that a test may run in
START_NS = 1_760_000_000 * 1_000_000_000 // DAY_NS * DAY_NS + DAY_NS // 2


class Ledger:
    """Does operations on one project and reverses them."""

    def __init__(self, base: Path, name: str = "project") -> None:
        self.project = os.fsencode(base / name)
        os.makedirs(self.project, exist_ok=True)
        self.store = Store.open(os.fsencode(base / "state"))
        self.state = self.store.state
        found = os.stat(self.project)
        self.sandbox = self.store.sandboxes.get_or_create(self.project, "default", found.st_dev, found.st_ino)

    def live(self, path: bytes) -> bytes:
        return os.path.join(self.project, path)

    def write(self, path: bytes, content: bytes) -> None:
        """Write a live file as a person would."""
        os.makedirs(os.path.dirname(self.live(path)), exist_ok=True)
        with open(self.live(path), "wb") as file:
            file.write(content)

    def read(self, path: bytes) -> bytes | None:
        try:
            with open(self.live(path), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def apply(self, changes: dict[bytes, bytes | None], at_ns: int = START_NS, **other: object) -> Operation:
        """Put files with a content, take away those with None; what was there lies in the operation's directory."""
        name = OperationId(os.urandom(8).hex())
        os.makedirs(operation_dir(self.state, name) + b"/tree")
        steps = [
            self._step(name, number, path, content) for number, (path, content) in enumerate(sorted(changes.items()))
        ]
        return self._record(name, "apply", steps, at_ns, origin=name, **other)

    def reverse(self, operation: Operation, at_ns: int = START_NS, kind: OperationKind = "undo") -> Operation:
        """Take an operation back, in the same places."""
        name = OperationId(os.urandom(8).hex())
        os.mkdir(operation_dir(self.state, name))
        steps = [_inverse(step) for step in reversed(self.steps(operation))]
        for step in steps:
            self._perform(step)
        return self._record(name, kind, steps, at_ns, origin=operation.origin, of=operation.id)

    def steps(self, operation: Operation) -> tuple[Step, ...]:
        journal = read_journal(journal_file(self.state, operation.id))
        assert journal is not None
        return journal.steps

    def _step(self, name: OperationId, number: int, path: bytes, content: bytes | None) -> Step:
        place = b"%b/tree/%d" % (name.encode(), number)
        after = None
        if content is not None:
            with open(self._place(place), "wb") as file:
                file.write(content)
            after = entry_of(os.lstat(self._place(place)))
        step = Step(
            root=0,
            path=path,
            action="take" if content is None else "put",
            group=number,
            place=place,
            before=self._entry(path),
            after=after,
        )
        self._perform(step)
        return step

    def _perform(self, step: Step) -> None:
        live, place = self.live(step.path), self._place(step.place)
        os.makedirs(os.path.dirname(live), exist_ok=True)
        aside = place + b".aside"
        if step.before is not None:
            os.rename(live, aside)
        if step.action == "put":
            os.rename(place, live)
        if step.before is not None:
            os.rename(aside, place)

    def _entry(self, path: bytes) -> Entry | None:
        try:
            return entry_of(os.lstat(self.live(path)))
        except FileNotFoundError:
            return None

    def _place(self, place: bytes) -> bytes:
        return b"%b/operations/%b" % (self.state, place)

    def _record(
        self, name: OperationId, kind: OperationKind, steps: list[Step], at_ns: int, **other: object
    ) -> Operation:
        operation = Operation(
            id=name,
            number=self.store.operations.next_number(self.project),
            kind=kind,
            sandbox=self.sandbox.id,
            project=self.project,
            roots=(self.project,),
            at_ns=at_ns,
            asked_by="a test",
            changed=len(steps),
        ).replace(**other)
        path = journal_file(self.state, name)
        write_journal(path, Journal(operation=operation, steps=tuple(steps)))
        write_end(path, End(done=tuple(range(len(steps))), operation=operation))
        return self.store.operations.add(operation)


def _inverse(step: Step) -> Step:
    return step.replace(action="take" if step.before is None else "put", before=step.after, after=step.before)
