# SPDX-License-Identifier: Apache-2.0
"""How the file verbs reach the tree: each is a run of a few lines of sh, so they see what any other run sees.

Nothing is looked up on the host. The script answers on stdout, `ok ...` or `no KIND` and a message; of the message only
the reason at its end is used. What can't be answered within the bounds is an error, never half an answer.
"""

from __future__ import annotations

import os
import posixpath

from unspill.errors import FileError, SandboxUnavailable, UsageError
from unspill.model.policy import MIB
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted
from unspill.plan.view import to_inside
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Timer

    from unspill.errors import FileErrorKind
    from unspill.model.policy import After
    from unspill.model.run import Event, Outcome
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

    Path = str | bytes

_WALL_S = 60.0
# After it a run that writes was given up already, unless this process did not get its turn
_LAST_S = 2 * _WALL_S
_ROOM = 64 * 1024
_LONGEST_REASON = 200
# Directories of the system before those of the caller: a program of the project is not what is meant by `cat`
_PREAMBLE = """\
PATH=/usr/bin:/bin:$PATH; LC_ALL=C; export PATH LC_ALL; unset CDPATH
no() { printf 'no %s\\n%s\\n\\0' "$1" "$2"; END; }
for tool in TOOLS; do command -v "$tool" >/dev/null || no unsupported "$tool"; done
"""
_AT_ONCE, _WAITING = "exit 0", "exec sleep 3600"
_REASONS: tuple[tuple[FileErrorKind, str, tuple[str, ...]], ...] = (
    (
        "not_found",
        "there is no such file or directory",
        ("No such file or directory", "No such file", "Directory nonexistent", "nonexistent directory"),
    ),
    # The last is what mkdir says of a parent that is a file
    ("not_a_directory", "it, or a part of its path, is not a directory", ("Not a directory", "File exists")),
    ("is_directory", "it is a directory", ("Is a directory",)),
    ("permission_denied", "permission denied", ("Permission denied", "Operation not permitted")),
    ("permission_denied", "it is read-only in the sandbox", ("Read-only file system",)),
    (
        "too_large",
        "there is no room for it",
        ("No space left on device", "Disk quota exceeded", "Quota exceeded", "File too large"),
    ),
)
_TEXTS: dict[FileErrorKind, str] = {
    **{kind: text for kind, text, _said in reversed(_REASONS)},
    "not_a_file": "it is neither a file nor a directory",
    "exists": "it exists already",
    "changed": "it was changed meanwhile",
}


class Inside:
    """A way to run scripts on paths of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def resolve(self, path: Path) -> bytes:
        """Return the absolute path inside; `..` is left to the kernel, as for a command.

        Raises:
            UsageError: no path can be like that.
        """
        try:
            raw = os.fsencode(path)
        except UnicodeEncodeError:
            raise UsageError(f"not a path: {path!a}", remedy="Give bytes where it is not Unicode.") from None
        if not raw or b"\0" in raw:
            raise UsageError("a path can't be empty or contain NUL")
        project = self._sandbox._project
        on_host = project.path if raw == b"." else posixpath.join(project.path, raw)
        return to_inside(on_host, project.means.policy.view, project.roots)

    def ask(
        self, name: str, script: str, tools: str, words: tuple[bytes | str, ...], most: int, cancel_fd: int | None
    ) -> bytes:
        """Run a script that only looks, and return what follows its `ok`: at most a little more than `most` bytes.

        Raises:
            FileError: it said no.
            SandboxUnavailable: it gave no answer.
        """
        limits = self._sandbox._project.means.policy.limits.replace(
            wall_s=_WALL_S, kept_bytes=most + _ROOM, output_bytes=2 * (most + _ROOM)
        )
        command = _command(name, script, tools, _AT_ONCE, words)
        # Without a layer nothing could be thrown away, and nothing need be
        after: After = "apply" if self._sandbox._project.means.container else "discard"
        result = self._sandbox.run(command, limits=limits, after=after, cancel_fd=cancel_fd)
        said = result.stdout.kept()
        _check(result.outcome, _path_of(words))
        if result.stdout.left_out:
            raise FileError(f"{show(_path_of(words))}: the answer is too long", kind="too_large")
        return _positive(said, result, _path_of(words))

    def act(
        self, name: str, script: str, tools: str, words: tuple[bytes | str, ...], **options: object
    ) -> tuple[bytes, RunResult]:
        """Run a script that writes. If it says no, the run is given up, and of what it did nothing is left.

        Raises:
            FileError: it said no.
            SandboxUnavailable: it gave no answer.
        """
        limits = self._sandbox._project.means.policy.limits.replace(wall_s=_LAST_S, kept_bytes=1 * MIB)
        # It waits to be killed: what a run that was cancelled has written is dropped here
        command = _command(name, script, tools, _WAITING, words)
        with _GivingUp(options.pop("cancel_fd", None)) as giving_up:
            run: Callable[..., RunResult] = self._sandbox.run
            result = run(
                command,
                limits=limits,
                after_cancel="discard",
                cancel_fd=giving_up.fd,
                on_event=giving_up.hear,
                **options,
            )
        if giving_up.is_late and isinstance(result.outcome, Cancelled):
            raise SandboxUnavailable(f"{show(_path_of(words))}: not written within {_WALL_S:g} s")
        if not giving_up.is_refused:
            _check(result.outcome, _path_of(words))
        return _positive(bytes(giving_up.said), result, _path_of(words)), result


class _GivingUp:
    """Hears a script, and gives its run up when it has said no or nothing in time; so may the caller, by a descriptor.

    Not by the bound of the run: what is then left may be held.
    """

    def __init__(self, cancel_fd: object) -> None:
        self.said = bytearray()
        self.is_refused = False
        self.is_late = False
        self._cancel_fd = cancel_fd
        self._timer: Timer | None = None

    def __enter__(self) -> _GivingUp:
        import select

        # One descriptor that is readable when either is
        self._epoll = select.epoll()
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        self._epoll.register(self._read, select.EPOLLIN)
        if isinstance(self._cancel_fd, int):
            self._epoll.register(self._cancel_fd, select.EPOLLIN)
        self.fd = self._epoll.fileno()
        return self

    def hear(self, event: Event) -> None:
        from unspill.model.run import OutputChunk, Started

        if isinstance(event, Started):
            self._set_timer()
        if not isinstance(event, OutputChunk) or event.stream != "stdout" or self.is_refused:
            return
        self.said += event.chunk[: max(0, MIB - len(self.said))]
        if self.said.startswith(b"no ") and b"\0" in self.said:
            self.is_refused = True
            os.write(self._write, b"x")

    def _set_timer(self) -> None:
        from threading import Timer

        self._timer = Timer(_WALL_S, self._be_late)
        self._timer.daemon = True
        self._timer.start()

    def _be_late(self) -> None:
        self.is_late = True
        os.write(self._write, b"x")

    def __exit__(self, *_rest: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        self._epoll.close()
        os.close(self._read)
        os.close(self._write)


def _command(name: str, script: str, tools: str, end: str, words: tuple[bytes | str, ...]) -> list[bytes | str]:
    preamble = _PREAMBLE.replace("END", end).replace("TOOLS", tools)
    return ["/bin/sh", "-c", preamble + script, f"unspill-{name}", *words]


def beginning_of(name: str, script: str, tools: str, *, is_reading: bool) -> bytes:
    """Return what the words of a verb's run begin with, with NUL between them; the path comes next."""
    words = _command(name, script, tools, _AT_ONCE if is_reading else _WAITING, ())
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _path_of(words: tuple[bytes | str, ...]) -> bytes:
    """Return the path that a script is about, which is its first word."""
    return os.fsencode(words[0])


def _check(outcome: Outcome, path: bytes) -> None:
    """Raise what a script that did not end by itself means."""
    match outcome:
        case Exited(code=0):
            return
        case NeverStarted():
            raise SandboxUnavailable(outcome.reason, remedy=outcome.remedy)
        case LimitReached():
            text = f"{show(path)}: the bound {outcome.limit} = {outcome.bound} was reached"
            raise FileError(text, kind="too_large")
        case Cancelled():
            raise SandboxUnavailable("the caller gave up", remedy="Try again.")
    from unspill.sandbox.result import describe_end

    raise SandboxUnavailable(f"{show(path)}: no answer from inside ({describe_end(outcome).splitlines()[0]})")


def _positive(said: bytes, result: RunResult, path: bytes) -> bytes:
    """Return what follows `ok`, or raise what a script said instead."""
    if said.startswith(b"ok "):
        return said[3:]
    kind, _newline, message = said.partition(b"\0")[0].removeprefix(b"no ").partition(b"\n")
    if not said.startswith(b"no "):
        raise SandboxUnavailable(f"{show(path)}: an answer from inside that can't be understood")
    text = message.decode("utf-8", "backslashreplace").rstrip("\n")
    if kind == b"unsupported":
        tool = show(message.strip()[:_LONGEST_REASON])
        raise SandboxUnavailable(
            f"there is no `{tool}` in the sandbox", remedy="Add it to the rootfs: `pull --package`."
        )
    raise _refusal(path, kind.decode("ascii", "replace"), text, " ".join(hint.remedy for hint in result.hints))


def _refusal(path: bytes, kind: str, message: str, remedy: str) -> FileError:
    for known, text in _TEXTS.items():
        if kind == known:
            return FileError(f"{show(path)}: {text}", kind=known, remedy=remedy)
    for known, text, endings in _REASONS:
        if message.endswith(endings):
            return FileError(f"{show(path)}: {text}", kind=known, remedy=remedy)
    reason = show(message.rpartition(": ")[2].encode("utf-8", "backslashreplace"))[:_LONGEST_REASON]
    return FileError(f"{show(path)}: {reason or 'it failed'}", kind="failed", remedy=remedy)
