# SPDX-License-Identifier: Apache-2.0
"""The file that a download grows in, and what has to be known to go on with it after a kill.

`<identity>.state` is locked by flock while somebody fetches and says which version of the content the `.part` beside
it has the beginning of. Whoever waited for the lock finds in it what was fetched meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os

from unspill.host.writing import sync_directory
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_MOST_STATE = 1 << 14
_BLOCK = 1 << 20


class Version(Record):
    """Which version of the content a server has: what `If-Range` needs, and how long the content is (or 0)."""

    validator: str = ""
    total: int = 0


class Part:
    """A download under way; a context in which nobody else fetches the same.

    `is_pinned` says that the whole will be checked against a digest.
    """

    def __init__(self, downloads: bytes, identity: str, *, is_pinned: bool = False) -> None:
        self._downloads = downloads
        self._is_pinned = is_pinned
        self._stem = os.path.join(downloads, identity.encode())
        self._state = self._file = -1
        self.fetched_meanwhile = ""
        self.version = Version()
        self.size = 0

    def __enter__(self) -> Self:
        os.makedirs(self._downloads, mode=0o700, exist_ok=True)
        try:
            self._lock()
        except BaseException:
            # A lock that stays behind in this process would let the next attempt wait for itself
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._file, self._state):
            if fd >= 0:
                os.close(fd)
        self._file = self._state = -1

    def start_over(self, version: Version) -> None:
        """Forget what there is, and remember which version comes now."""
        os.ftruncate(self._file, 0)
        self.size, self.version = 0, version
        self._save({"validator": version.validator, "total": version.total, "boot": _boot()})

    def append(self, block: bytes) -> None:
        """Add to the end."""
        view = memoryview(block)
        while view:
            written = os.pwrite(self._file, view, self.size)
            self.size += written
            view = view[written:]

    def digest(self) -> str:
        """Return the SHA-256 of what is there."""
        return digest_of(self._file)

    def finish(self, digest: str) -> bytes:
        """Give the file its final name, which is its digest, and return its path."""
        path = os.path.join(self._downloads, digest.encode())
        os.fsync(self._file)
        os.rename(self._stem + b".part", path)
        sync_directory(self._downloads)
        self._save({"sha256": digest})
        os.unlink(self._stem + b".state")
        return path

    def drop(self) -> None:
        """Remove all of it."""
        for ending in (b".part", b".state"):
            try:
                os.unlink(self._stem + ending)
            except FileNotFoundError:
                continue

    def _lock(self) -> None:
        while True:
            self._state = _open(self._stem + b".state")
            fcntl.flock(self._state, fcntl.LOCK_EX)
            state = self._load()
            if os.fstat(self._state).st_nlink:
                self._resume(state)
                return
            # Somebody was done while we waited: this is no longer the state, but it tells the result
            if digest := state.get("sha256"):
                self.fetched_meanwhile = str(digest)
                return
            self.__exit__()

    def _resume(self, state: dict[str, Any]) -> None:
        self._file = _open(self._stem + b".part")
        size = os.fstat(self._file).st_size
        validator, total = state.get("validator"), state.get("total")
        # After a crash of the machine the file may have a hole where its newest content was
        sound = self._is_pinned or state.get("boot") == _boot()
        known = isinstance(validator, str) and isinstance(total, int)
        if sound and known and size and (validator or size == total):
            self.version, self.size = Version(validator=str(validator), total=int(total or 0)), size
        else:
            os.ftruncate(self._file, 0)

    def _load(self) -> dict[str, Any]:
        try:
            state = json.loads(os.pread(self._state, _MOST_STATE, 0))
        except (ValueError, RecursionError):
            return {}
        return state if isinstance(state, dict) else {}

    def _save(self, state: dict[str, Any]) -> None:
        os.ftruncate(self._state, 0)
        os.pwrite(self._state, json.dumps(state).encode(), 0)


def find_fetched(downloads: bytes, digest: str) -> bytes | None:
    """Return the path of what has this SHA-256, if it was fetched earlier and still has it."""
    path = os.path.join(downloads, digest.encode())
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return path if digest_of(fd) == digest else None
    finally:
        os.close(fd)


def digest_of(fd: int, algorithm: str = "sha256") -> str:
    """Return the digest of a file from its start, without moving its position."""
    summer = hashlib.new(algorithm)
    at = 0
    while block := os.pread(fd, _BLOCK, at):
        summer.update(block)
        at += len(block)
    return summer.hexdigest()


def _open(path: bytes) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
