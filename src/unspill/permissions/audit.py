# SPDX-License-Identifier: Apache-2.0
"""The audit: what was asked, answered, run and applied, as JSON lines that are only ever added to.

audit/log-000001, log-000002, ...   one JSON object per line; the last file is written, a full one gets a successor
audit/lock                          locked by whoever writes

Many processes write at once. A writer that dies in the middle of a line spoils that line alone. Events have plain
values, bounded in size, and no content of files. Whoever can write the directory can rewrite it: the audit tells a
person what happened, it proves nothing to others. Loaded by every run.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.errors import StoreError
from unspill.host.dirfd import sync_directory, write_whole
from unspill.model.permission import Allowed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Literal

    from unspill.model.permission import Answer, Grant, Question, Request

    Event = dict[str, Any]
    Verdict = Literal["allowed", "denied"]

FILE_BYTES = 8 * 1024 * 1024
# Of one line, so that a run with a million files does not fill the disk with their names
MOST_PATHS = 1000
MOST_PATH_BYTES = 64 * 1024
MOST_COMMAND_BYTES = 16 * 1024
MOST_SESSION = 200

_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Audit:
    """The audit in one directory, which is made for its owner alone; events of an agent's session name it."""

    __slots__ = ("_directory", "_file_bytes", "_session")

    def __init__(self, directory: bytes, *, session: str = "", file_bytes: int = FILE_BYTES) -> None:
        self._directory = directory
        self._session = session[:MOST_SESSION]
        self._file_bytes = file_bytes

    def append(self, *events: Event, durable: bool = True) -> None:
        """Add events, all of them or none. If `durable`, they are on the disk afterwards.

        Raises:
            StoreError: they can't be written. Something that was to be recorded first must not happen then.
        """
        at_ns = time.time_ns()
        known = {"at_ns": at_ns, "session": self._session} if self._session else {"at_ns": at_ns}
        text = "".join(to_json({**known, **event}) + "\n" for event in events).encode("ascii")
        try:
            lock = self._open_lock()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._write(text, durable=durable)
            finally:
                os.close(lock)
        except OSError as error:
            raise StoreError(
                f"The audit {os.fsdecode(self._directory)} can't be written: {error.strerror}.",
                remedy="Free some disk space: unspill does nothing that it can't record.",
            ) from error

    def _open_lock(self) -> int:
        try:
            return os.open(self._directory + b"/lock", _LOCK, 0o600)
        except FileNotFoundError:
            _make_directory(self._directory)
        return os.open(self._directory + b"/lock", _LOCK, 0o600)

    def _write(self, text: bytes, *, durable: bool) -> None:
        number = max(_log_numbers(self._directory), default=1)
        log = os.open(_log_file(self._directory, number), _APPEND, 0o600)
        try:
            size = os.fstat(log).st_size
            if size >= self._file_bytes:
                os.close(log)
                log = os.open(_log_file(self._directory, number + 1), _APPEND, 0o600)
                size = 0
            if size == 0:
                sync_directory(self._directory)
            elif os.pread(log, 1, size - 1) != b"\n":
                # Somebody died in the middle of the last line
                text = b"\n" + text
            try:
                write_whole(log, text)
                if durable:
                    os.fsync(log)
            except OSError:
                os.ftruncate(log, size)
                raise
        finally:
            os.close(log)

    def events(self, *, newest_first: bool = False) -> Iterator[Event]:
        """Yield what was recorded. A line that can't be read is an event of the kind `unreadable`.

        Raises:
            StoreError: a file can't be read.
        """
        try:
            for number in sorted(_log_numbers(self._directory), reverse=newest_first):
                with open(_log_file(self._directory, number), "rb") as file:
                    lines = file.read().split(b"\n")
                yield from (_parse(line) for line in (lines[::-1] if newest_first else lines) if line)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"The audit {os.fsdecode(self._directory)} can't be read: {error.strerror}.") from error


def request_event(question: Question) -> Event:
    """A person is asked."""
    return {
        "kind": "request",
        "id": question.id,
        "digest": question.digest,
        "offered": list(question.scopes),
        "request": _bounded(question.request),
    }


def answer_event(question: Question, answer: Answer) -> Event:
    """The question was answered, or is over without an answer."""
    said = {"answer": "allowed", "scope": answer.scope} if isinstance(answer, Allowed) else {"answer": "denied"}
    reason = {} if isinstance(answer, Allowed) else {"reason": answer.reason[:500]}
    return {"kind": "answer", "id": question.id, "digest": question.digest, "by": answer.by[:200]} | said | reason


def decision_event(request: Request, answer: Verdict, rule: str) -> Event:
    """A request was decided without a question."""
    return {"kind": "decision", "answer": answer, "rule": rule, "request": _bounded(request)}


def revoke_event(grant: Grant) -> Event:
    """A grant was taken back."""
    return {"kind": "revoke", "grant": grant.id, "scope": grant.scope, "request": _bounded(grant.request)}


def as_text(value: bytes) -> str:
    """Return bytes as a line of the audit has them."""
    return value.decode("utf-8", "surrogateescape")


def command_text(argv: tuple[bytes, ...], *, most_bytes: int, most_words: int | None = None) -> list[str]:
    """Return the words of a command, cut where they are too long or too many, and then saying so."""
    kept: list[str] = []
    left = most_bytes
    for word in argv[:most_words]:
        if len(word) > left:
            return [*kept, as_text(word[:left]), f"[cut: {sum(map(len, argv))} bytes in all]"]
        kept.append(as_text(word))
        left -= len(word) + 1
    return kept if len(kept) == len(argv) else [*kept, f"[cut: {len(argv)} words in all]"]


def path_fields(paths: Iterable[bytes], project: bytes) -> Event:
    """Return the fields of a line that name paths; `more_paths` says how many there was no room for.

    Paths of the project are relative to it, all others absolute.
    """
    named: list[str] = []
    more, room, inside = 0, MOST_PATH_BYTES, project + b"/"
    for path in paths:
        name = path.removeprefix(inside)
        room -= len(name)
        if len(named) < MOST_PATHS and room >= 0:
            named.append(as_text(name))
        else:
            more += 1
    return {"paths": named, "more_paths": more} if more else {"paths": named}


def to_json(value: Any) -> str:
    """Return plain values as JSON in ASCII. Importing `json` would cost each run as much as all else done here."""
    if isinstance(value, str):
        is_plain = value.isascii() and value.isprintable() and '"' not in value and "\\" not in value
        return f'"{value}"' if is_plain else f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, dict):
        return "{" + ",".join([f"{to_json(key)}:{to_json(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _bounded(request: Request) -> dict[str, Any]:
    from unspill.store.permissions import key_of  # lazy: approvals

    command = command_text(request.argv, most_bytes=MOST_COMMAND_BYTES)
    # The whole can be told from the key by whoever has it
    return {"kind": request.kind} | request.audited() | {"argv": command, "key": key_of(request)}


def _make_directory(directory: bytes) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return
    os.chmod(directory, 0o700)


def _log_file(directory: bytes, number: int) -> bytes:
    return b"%b/log-%06d" % (directory, number)


def _log_numbers(directory: bytes) -> list[int]:
    names = (name.removeprefix(b"log-") for name in os.listdir(directory) if name.startswith(b"log-"))
    return [int(name) for name in names if name.isdigit()]


def _parse(line: bytes) -> Event:
    import json  # lazy: json

    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    return event if isinstance(event, dict) else {"kind": "unreadable", "bytes": len(line)}


class _Escapes(dict[int, str]):
    """What stands for a character in a JSON text, by its number."""

    def __missing__(self, code: int) -> str:
        if code < 0x10000:
            return f"\\u{code:04x}"
        high, low = divmod(code - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


_ESCAPES = _Escapes({code: chr(code) for code in range(0x20, 0x7F)} | {ord('"'): '\\"', ord("\\"): "\\\\"})
