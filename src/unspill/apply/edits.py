# SPDX-License-Identifier: Apache-2.0
"""Changes that another program makes to a project, as operations: a coding agent's own file tools write as the person.

Its hook says before and after each call which files it is about. `note_edit` copies what is there; `record_edit` makes
an operation of what has become of it, with the copies for its backups. So an undo has no gap, and takes what the agent
wrote for no edit of the person's. Nothing live is changed here: an operation whose journal is not whole is forgotten.
"""

from __future__ import annotations

import json
import os
import stat
import time

from unspill.apply.journal import (
    End,
    Journal,
    fields_of_entry,
    journal_file,
    operation_dir,
    plain_bytes,
    plain_text,
    staging_name,
    write_end,
    write_journal,
)
from unspill.apply.operate import Marker
from unspill.apply.perform import sync_file
from unspill.apply.recover import finish, forget, settle_mark
from unspill.apply.staging import OperationModes, copy_entry, digest_entry
from unspill.apply.steps import OpenDirs, entry_of, make_entry, make_step, matches, open_root
from unspill.host.dirfd import Beneath, sync_directory
from unspill.layers.trees import remove_tree
from unspill.model.operation import Operation, OperationId
from unspill.policy.paths import lies_beneath
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unspill.model.operation import Action, Entry, Step
    from unspill.store.db import Store
    from unspill.store.layers import SandboxRow

_NOTE = b"note"
_MAY_BE = ("file", "symlink")
# A call that was refused has no end
_FORGOTTEN_S = 24 * 3600


class _Noted(Record):
    """A path before the edit: what was there, and which directories above it were not."""

    root: int
    path: bytes
    was: Entry | None
    missing: tuple[bytes, ...] = ()


def note_edit(state: bytes, key: str, roots: Sequence[bytes], paths: Sequence[bytes]) -> None:
    """Copy what is at some absolute paths, before another program changes it; those in no root are passed over.

    Raises:
        OSError: something can't be read or kept; then there is no note.
    """
    _forget_old(state)
    place = _note_dir(state, key)
    remove_tree(place)
    os.mkdir(place, 0o700)
    try:
        noted: list[_Noted] = []
        for path in dict.fromkeys(paths):
            one = _note(state, roots, path, key, b"%d" % len(noted))
            noted += [] if one is None else [one]
        plain = [
            [one.root, plain_text(one.path), one.was and fields_of_entry(one.was), [*map(plain_text, one.missing)]]
            for one in noted
        ]
        with open(place + b"/" + _NOTE, "w", encoding="ascii") as file:
            json.dump([[plain_text(root) for root in roots], plain], file)
    except BaseException:
        remove_tree(place)
        raise


def record_edit(store: Store, sandbox: SandboxRow, key: str, asked_by: str) -> Operation | None:
    """Record what has become of the files of a note; None where they are as they were, or there is no note.

    Raises:
        OSError: it can't be recorded.
        ProjectBusy: an operation on the project is under way.
    """
    place = _note_dir(store.state, key)
    try:
        with open(place + b"/" + _NOTE, encoding="ascii") as file:
            names, plain = json.load(file)
    except FileNotFoundError:
        return None
    roots = tuple(map(plain_bytes, names))
    noted = [
        _Noted(
            root=root, path=plain_bytes(path), was=was and make_entry(*was), missing=tuple(map(plain_bytes, missing))
        )
        for root, path, was, missing in plain
    ]
    operation = OperationId(os.urandom(8).hex())
    try:
        with Marker(store.state, operation) as marker, OpenDirs(store.state, staging_name(operation)) as dirs:
            dirs.open_roots(roots)
            return _Recording(store, sandbox, dirs, operation, place).run(noted, roots, asked_by, marker)
    finally:
        remove_tree(place)


class _Recording:
    """One operation that is made of what somebody else has done."""

    def __init__(
        self, store: Store, sandbox: SandboxRow, dirs: OpenDirs, operation: OperationId, copies: bytes
    ) -> None:
        self._store = store
        self._sandbox = sandbox
        self._dirs = dirs
        self._id = operation
        self._copies = copies
        self._modes = OperationModes(store.state, operation)
        self._steps: list[Step] = []
        # Directories that have a step
        self._made: set[tuple[int, bytes]] = set()

    def run(self, noted: Sequence[_Noted], roots: tuple[bytes, ...], asked_by: str, marker: Marker) -> Operation | None:
        try:
            journal = self._make(noted, roots, asked_by)
        except BaseException:
            forget(self._store.state, self._id)
            raise
        if journal is None:
            forget(self._store.state, self._id)
            return None
        # From here on what the journal says is true, whatever happens to this process
        marker.must_stay = True
        recorded = finish(self._store, journal)
        marker.must_stay = False
        return recorded

    def _make(self, noted: Sequence[_Noted], roots: tuple[bytes, ...], asked_by: str) -> Journal | None:
        """Write the journal of what has changed; None where that is nothing."""
        state, project = self._store.state, self._sandbox.project
        os.makedirs(operation_dir(state, self._id) + b"/old", 0o700)
        for number, one in enumerate(noted):
            self._add(number, one)
        if not self._steps:
            return None
        paths = tuple(roots[step.root] + b"/" + step.path for step in self._steps)
        done = Operation(
            id=self._id,
            number=self._store.operations.next_number(project),
            kind="edit",
            sandbox=self._sandbox.id,
            project=project,
            roots=roots,
            at_ns=time.time_ns(),
            asked_by=asked_by,
            origin=self._id,
            marks=tuple(settle_mark(self._dirs, index, self._steps) for index in range(len(roots))),
            changed=len(paths),
            paths=paths,
            session=self._store.session,
        )
        found = [os.fstat(root.root_fd) for root in self._dirs.roots]
        journal = Journal(
            operation=done,
            steps=tuple(self._steps),
            identities=tuple((status.st_dev, status.st_ino) for status in found),
            end=End(done=tuple(range(len(self._steps))), operation=done),
        )
        self._write(journal)
        return journal

    def _write(self, journal: Journal) -> None:
        """Write the journal at once with its end: without one it would be taken for something to take back."""
        assert journal.end is not None
        state = self._store.state
        path = journal_file(state, self._id)
        write_journal(path + b".new", journal)
        write_end(path + b".new", journal.end)
        sync_directory(operation_dir(state, self._id) + b"/old")
        os.rename(path + b".new", path)
        for directory in (operation_dir(state, self._id), state + b"/operations", state + b"/pending"):
            sync_directory(directory)

    def _add(self, number: int, noted: _Noted) -> None:
        root = self._dirs.roots[noted.root]
        live = root.find(noted.path)
        if (live is not None and entry_of(live).kind not in _MAY_BE) or _is_as_was(live, noted.was):
            return
        for directory in noted.missing:
            status = root.find(directory)
            is_new = (noted.root, directory) not in self._made
            if status is not None and stat.S_ISDIR(status.st_mode) and is_new:
                self._made.add((noted.root, directory))
                self._steps.append(self._step(noted.root, directory, None, entry_of(status)))
        if noted.was is not None:
            self._keep(number)
        self._steps.append(self._step(noted.root, noted.path, noted.was, None if live is None else entry_of(live)))

    def _step(self, root: int, path: bytes, was: Entry | None, is_now: Entry | None) -> Step:
        """Return the step that leads from what was there to what is; what was kept is at the place of its number."""
        group = len(self._steps) + 1
        place = self._place(group)
        if was is None:
            return make_step(root, path, "put", group, place, None, is_now, staged=self._dirs.staged[root])
        action: Action = "take" if is_now is None else "put"
        fd, name = self._dirs.operations.parent(place)
        copy = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if self._dirs.staged[root]:
            digest = digest_entry(fd, name, copy, self._modes)
            step = make_step(root, path, action, group, b"", was, is_now)
            return step.replace(staged=True, kept=place, digest=digest)
        before = entry_of(copy)
        kept = make_entry(before.kind, before.mode, before.inode, before.size, before.mtime_ns, was.ctime_ns)
        return make_step(root, path, action, group, place, kept, is_now, copied=was.inode)

    def _place(self, group: int) -> bytes:
        return b"%b/old/%d" % (self._id.encode(), group)

    def _keep(self, number: int) -> None:
        """Give the next step the copy of that number."""
        place = self._place(len(self._steps) + 1)
        os.rename(b"%b/%d" % (self._copies, number), b"%b/operations/%b" % (self._store.state, place))
        sync_file(*self._dirs.operations.parent(place))


def _note(state: bytes, roots: Sequence[bytes], path: bytes, key: str, copy: bytes) -> _Noted | None:
    index = next((number for number, root in enumerate(roots) if lies_beneath(path, root)), None)
    if index is None:
        return None
    name = path[len(roots[index]) + 1 :]
    with Beneath(open_root(roots[index])) as root:
        missing = tuple(_missing(root, name))
        status = None if missing else root.find(name)
        if status is None:
            return _Noted(root=index, path=name, was=None, missing=missing)
        was = entry_of(status)
        if was.kind not in _MAY_BE:
            return None
        place = os.open(_note_dir(state, key), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            copy_entry(*root.parent(name), status, place, copy, OperationModes(state, OperationId(key)))
        finally:
            os.close(place)
        return _Noted(root=index, path=name, was=was)


def _missing(root: Beneath, path: bytes) -> Iterator[bytes]:
    """Yield the directories above a path that are not there, the outer ones first."""
    parts = path.split(b"/")[:-1]
    for count in range(1, len(parts) + 1):
        above = b"/".join(parts[:count])
        if root.find(above) is None:
            yield from (b"/".join(parts[:more]) for more in range(count, len(parts) + 1))
            return


def _is_as_was(live: os.stat_result | None, was: Entry | None) -> bool:
    if live is None or was is None:
        return live is None and was is None
    return matches(live, was) and live.st_ctime_ns == was.ctime_ns


def _forget_old(state: bytes) -> None:
    top = state + b"/edits"
    for name in os.listdir(top):
        path = top + b"/" + name
        try:
            if time.time() - os.lstat(path).st_mtime > _FORGOTTEN_S:
                remove_tree(path)
        except FileNotFoundError:
            continue


def _note_dir(state: bytes, key: str) -> bytes:
    return b"%b/edits/%b" % (state, key.encode())
