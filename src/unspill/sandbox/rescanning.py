# SPDX-License-Identifier: Apache-2.0
"""What becomes of the record of a file when somebody looks whether the file is still there.

    the file is   it has a backup   its record
    there         -                 stays, not deleted (any more)
    absent        yes               stays, deleted
    absent        no                goes

A root that is not there itself says nothing about its files.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.host.dirfd import Beneath
from unspill.record import Record
from unspill.sandbox.records import catch_up, is_kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.store.db import Store
    from unspill.store.operations import FileRow

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Rescanned(Record):
    """How many records stay, how many of those changed, and how many are gone."""

    kept: int = 0
    changed: int = 0
    removed: int = 0


def rescan(store: Store, project: bytes) -> Rescanned:
    """Compare the records of a project with what is there."""
    catch_up(store, project)
    return judge_files(store, store.files.of_project(project, with_deleted=True))


def judge_files(store: Store, files: Iterable[FileRow]) -> Rescanned:
    """Renew or remove the records of some files."""
    kept: list[FileRow] = []
    removed: list[int] = []
    changed: list[FileRow] = []
    with _Look(store) as look:
        for file in files:
            after = look.judge(file)
            if after is None:
                removed.append(file.id)
                continue
            kept.append(after)
            if after != file:
                changed.append(after)
    with store.transaction:
        for file in changed:
            store.files.change(file)
        store.files.remove(removed)
    return Rescanned(kept=len(kept), changed=len(changed), removed=len(removed))


class _Look:
    """Looks at live files and at backups, each root opened once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places = Beneath(os.open(store.state + b"/operations", _DIRECTORY))
        self._roots: dict[bytes, Beneath | None] = {}

    def judge(self, file: FileRow) -> FileRow | None:
        """Return the record as it should be, None if it should not be."""
        live = self._root(file.root)
        if live is None:
            return file
        try:
            found = live.find(file.path)
        except OSError as error:
            if error.errno not in _ABSENT:
                return file
            found = None
        backups = [row for row in self._store.files.backups_of(file.id) if is_kept(self._places, row)]
        known = self._store.files.find_backup(file.last_approved_copy_path) if file.last_approved_copy_path else None
        copy = file.last_approved_copy_path if known is not None else backups[0].name if backups else b""
        file = file.replace(last_approved_copy_path=copy)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            return file.replace(is_deleted=False, last_modified=found.st_mtime_ns)
        return file.replace(is_deleted=True) if backups else None

    def _root(self, root: bytes) -> Beneath | None:
        if root not in self._roots:
            try:
                self._roots[root] = Beneath(os.open(root, _DIRECTORY))
            except OSError:
                self._roots[root] = None
        return self._roots[root]

    def __enter__(self) -> _Look:
        return self

    def __exit__(self, *_rest: object) -> None:
        self._places.close()
        for live in self._roots.values():
            if live is not None:
                live.close()
