# SPDX-License-Identifier: Apache-2.0
"""What tests of edits at a bad moment share: operations of given steps, opens that end late, versions that are named.

An operation here is a whole one, with its journal, its looks and its record; only no command has to run before it.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from unspill.apply import perform
from unspill.apply.draft import Draft
from unspill.apply.operate import Task, operate
from unspill.apply.steps import OpenDirs, entry_of
from unspill.host.libc import renameat2 as rename
from unspill.model.operation import Entry, Operation, Step
from unspill.store.db import Store

OURS = b"ours\n"


def nothing() -> None:
    """Do nothing."""


class Bench:
    """A project and a state directory, and operations that change or delete files of the project."""

    def __init__(self, base: Path, project: Path | None = None) -> None:
        self.project = project or base / "project"
        self.project.mkdir()
        self.store = Store.open(os.fsencode(base / "state"))
        found = self.project.stat()
        live = os.fsencode(self.project)
        self._sandbox = self.store.sandboxes.get_or_create(live, "default", found.st_dev, found.st_ino).id

    def renew(self, name: str) -> Path:
        """Make a file anew, as another inode than any operation knows."""
        new = self.project / "new"
        new.write_text("base\n")
        return new.rename(self.project / name)

    def operate(
        self, kinds: Mapping[str, str], *, begin: Callable[[], None] = nothing, in_one_group: bool = False
    ) -> Operation:
        """Do an operation; `begin` is called when it is drafted and nothing live has changed yet."""

        def draft(draft: Draft, dirs: OpenDirs) -> None:
            group = draft.next_group()
            for name, kind in kinds.items():
                draft.add(
                    self._step(draft, dirs, os.fsencode(name), kind, group if in_one_group else draft.next_group())
                )

        live = os.fsencode(self.project)
        return operate(
            self.store,
            Task(
                kind="apply",
                sandbox=self._sandbox,
                project=live,
                roots=(live,),
                asked_by="a test",
                draft=draft,
                check=begin,
            ),
        )

    @staticmethod
    def _step(draft: Draft, dirs: OpenDirs, name: bytes, kind: str, group: int) -> Step:
        fd = dirs.roots[0].root_fd
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        step = Step(root=0, path=name, action="take", group=group, before=entry_of(status), staged=draft.is_staged(0))
        if kind == "deleted":
            return step.replace(place=draft.next_place(0))
        place, made = draft.stage(0, fd, name, status, OURS)
        return step.replace(action="put", place=place, after=entry_of(made))


def ready(file: Path, place: Path, kind: str) -> Step:
    """Lay a file and what replaces it out, and return the step that does."""
    file.write_text("base\n")
    place.unlink(missing_ok=True)
    before = entry_of(os.lstat(file))
    if kind == "deleted":
        return Step(root=0, path=b"file", action="take", group=1, place=b"place", before=before)
    place.write_bytes(OURS)
    after = entry_of(os.lstat(place))
    return Step(root=0, path=b"file", action="put", group=1, place=b"place", before=before, after=after)


def named(notes: Iterable[str], name: str) -> bytes:
    """Return what is in the files that the notes of an operation name for a path."""
    found = b""
    for note in notes:
        if note.startswith(f"{name}: ") and note != f"{name}: merged with your edits":
            path = Path(note.rpartition(" ")[2])
            files = [path] if path.is_file() else sorted(inner for inner in path.rglob("*") if inner.is_file())
            assert files, note
            found += b"".join(file.read_bytes() for file in files)
    return found


class Opening:
    """An open(2) that has found its file and has it open only later, as in a process that is kept from running."""

    def __init__(self) -> None:
        self._found = -1

    def begin(self, path: Path) -> None:
        """Find the file. The kernel does not count this as a writer."""
        self._found = os.open(path, os.O_PATH)

    def open(self) -> int:
        """Have it open to add to it."""
        return os.open(f"/proc/self/fd/{self._found}", os.O_WRONLY | os.O_APPEND)

    def finish(self, text: bytes) -> None:
        """Have it open, add to it, and close it, if it was found before."""
        if self._found >= 0:
            fd = self.open()
            os.write(fd, text)
            os.close(fd)
            os.close(self._found)
            self._found = -1


def around_renames(
    monkeypatch: pytest.MonkeyPatch,
    before: Mapping[int, Callable[[], object]],
    after: Mapping[int, Callable[[], object]],
) -> None:
    """Do something right before and right after renames of the live tree, by their number."""
    count = 0

    def renameat2(*arguments: object) -> None:
        nonlocal count
        count += 1
        before.get(count, nothing)()
        rename(*arguments)  # type: ignore[arg-type]
        after.get(count, nothing)()

    monkeypatch.setattr(perform, "renameat2", renameat2)


def asked_last(asked: Callable[[int, bytes], bool | None], dir_fd: int, name: bytes, expected: Entry) -> str | None:
    """Look at an entry and then ask for writers, in the wrong order: what a control arm does instead of `misfit`."""
    if not perform.is_unchanged(dir_fd, name, expected):
        return perform.CHANGED
    is_open = asked(dir_fd, name)
    return perform.UNSURE if is_open is None else perform.BEING_WRITTEN if is_open else None
