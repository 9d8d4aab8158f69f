# SPDX-License-Identifier: Apache-2.0
"""The file verbs of a sandbox: one tree for an agent's file tools and its shell.

    files = SandboxFiles(sandbox)
    files.write("src/app.py", "print(1)\\n")        # held, applied, undone, judged as a run that wrote it
    files.edit("src/app.py", "print(1)", "print(2)")
    files.read("src/app.py").text()
    files.list("src", depth=2).entries

Paths are absolute inside the sandbox, or relative to the project; the project may also be named as on the host. Links
are followed as in a command, and lead no further than there.

Each verb is a run of a few lines of sh, so it sees what any other run sees; nothing is looked up on the host. The
script answers on stdout, `ok ...` or `no KIND` and a message. What can't be answered within the bounds is an error,
never half an answer. What is written is a change like any other, judged and undone like one: a write that fails leaves
nothing, and an edit replaces what it has read, or nothing. Runs of file verbs are told by the very text of their
scripts, so that a log need not name every look at a file.
"""

from __future__ import annotations

import os
import posixpath
import select
import stat

from unspill.errors import FileError, SandboxUnavailable, UsageError
from unspill.lazy import lazy_module
from unspill.model.policy import MIB
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, OutputChunk, Started
from unspill.plan.view import to_inside
from unspill.policy.paths import show
from unspill.record import Record
from unspill.sandbox.planning import playground_of
from unspill.sandbox.result import describe_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
    import threading
    from collections.abc import Callable, Collection, Iterator
    from typing import Literal

    from unspill.errors import FileErrorKind
    from unspill.model.policy import After
    from unspill.model.run import Event, Outcome, Run
    from unspill.sandbox.project import PathLike
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

    EntryKind = Literal["file", "directory", "link", "pipe", "socket", "device", "unknown"]
else:
    hashlib = lazy_module("hashlib")  # lazy: files
    threading = lazy_module("threading")  # lazy: files

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
        "there is no space for it",
        ("No space left on device", "Disk quota exceeded", "Quota exceeded", "File too large"),
    ),
)
_TEXTS: dict[FileErrorKind, str] = {
    **{kind: text for kind, text, _said in reversed(_REASONS)},
    "not_a_file": "it is neither a file nor a directory",
    "exists": "it exists already",
    "changed": "it was changed meanwhile",
}

MOST_BYTES = 100 * MIB
USUAL_BYTES = 1 * MIB
MOST_DEPTH = 64
_LISTING_BYTES = 16 * MIB
_LARGEST = (1 << 63) - 1
_LOOK = """\
said=$(stat -L -c '%s' -- "$1" 2>&1) || no - "$said"
[ ! -d "$1" ] || no is_directory
[ -f "$1" ] || no not_a_file
[ -r "$1" ] || no permission_denied
printf 'ok %s\\n' "$said"
"""
_BYTES = _LOOK + 'if [ "$2" = 0 ]; then exec head -c "$3" -- "$1"; fi\ntail -c "+$(($2 + 1))" -- "$1" | head -c "$3"\n'
_LINES = _LOOK + 'tail -n "+$(($2 + 1))" -- "$1" | head -n "$3" | head -c "$4"\n'
# In batches: the count, a line for each, then the names, which may have newlines. One that vanished has no line
_LIST = """\
said=$(stat -L -c '%f' -- "$1" 2>&1) || no - "$said"
[ -d "$1" ] || no not_a_directory
[ -r "$1" ] && said=$(cd -- "$1" 2>&1) || no permission_denied
cd -- "$1"
printf 'ok '
{
    find . -mindepth 1 -maxdepth "$2" -exec sh -c '
        printf "%s\\n" "$#"
        if said=$(stat -c "%f %s" -- "$@" 2>/dev/null); then
            printf "%s\\n" "$said"
        else
            for name; do stat -c "%f %s" -- "$name" 2>/dev/null || echo "0 0"; done
        fi
        printf "%s\\0" "$@"' sh {} + 2>/dev/null
    printf 'end %s\\n' "$?"
} | head -c "$3"
"""
_FOR_WINDOWS, _FOR_LISTS = "stat head tail", "stat find head sh"
# The name of each verb that only looks, its script and the programs that it needs
READING = (("read", _BYTES, _FOR_WINDOWS), ("read", _LINES, _FOR_WINDOWS), ("list", _LIST, _FOR_LISTS))
_KINDS: dict[int, EntryKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
MOST_WRITTEN = 100 * MIB
MOST_EDITED = 16 * MIB
_TRIES = 5
_TMPFS = b"1021994"
# Not by a new file and a rename: mode, owner, attributes and links to it stay, and a link is followed, as in a command
_WRITE = """\
trap '' XFSZ
[ ! -d "$1" ] || no is_directory
made=1
if [ -e "$1" ] || [ -L "$1" ]; then
    [ "$2" != new ] || no exists
    made=0
fi
[ ! -e "$1" ] || [ -f "$1" ] || no not_a_file
if [ "$3" ]; then
    said=$({ sha256sum <"$1"; } 2>&1) || no changed
    [ "${said%% *}" = "$3" ] || no changed
fi
above=${1%/*}
said=$(mkdir -p -- "${above:-/}" 2>&1) || no - "$said"
said=$({ cat >"$1"; } 2>&1) || no - "$said"
said=$(stat -L -f -c '%t' -- "$1" 2>&1) || no - "$said"
printf 'ok %s %s\\n' "$made" "$said"
"""
_FOR_WRITING = "cat mkdir sha256sum sleep stat"
# As READING has them
WRITING = ("write", _WRITE, _FOR_WRITING)
USUAL_LINES = 2000
USUAL_ENTRIES = 1000
_NAMED_KINDS: dict[bytes, EntryKind] = {b"d": "directory", b"f": "file"}
_LOOK_AT_NAME = """\
said=$(stat -L -c '%s' -- "$1" 2>&1) || no - "$said"
if [ -d "$1" ]; then kind=d; elif [ -f "$1" ]; then kind=f; else kind=-; fi
printf 'ok %s%s\\n' "$kind" "$said"
"""
_EXISTS = 'if [ -e "$1" ]; then printf "ok 1"; else printf "ok 0"; fi\n'
_DIRECTORIES = """\
said=$(cd -- "$1" 2>&1) || no - "$said"
cd -- "$1"; shift
printf 'ok '
for name; do if [ -d "./$name" ]; then printf d; else printf -; fi; done
"""
# The letter keeps a newline at the end of a name; without GNU's `realpath` all but the last part must exist
_REAL = """\
said=$(realpath -m -- "$1" 2>&1 && printf x) || said=$(readlink -f -- "$1" 2>&1 && printf x) || no - "$said"
printf 'ok %s' "$said"
"""
_MAKE = """\
[ -d "$1" ] || [ ! -e "$1" ] || no exists
said=$(mkdir -p -- "$1" 2>&1) || no - "$said"
printf 'ok \\n'
"""
_REMOVE = """\
[ -e "$1" ] || [ -L "$1" ] || no not_found
said=$(rm -rf -- "$1" 2>&1) || no - "$said"
printf 'ok \\n'
"""
# The name of each verb that only looks, its script and the programs that it needs; then of each that changes something
LOOKING = {
    "look": ("look", _LOOK_AT_NAME, "stat"),
    "exists": ("exists", _EXISTS, "sh"),
    "directories": ("directories", _DIRECTORIES, "sh"),
    "real": ("real", _REAL, "readlink"),
}
CHANGING = {"make": ("make", _MAKE, "mkdir sleep"), "remove": ("remove", _REMOVE, "rm sleep")}
# The kernel bounds the words of a command, and by the stack's bound, which somebody may have lowered
_MOST_WORDS = 64 * 1024


class Inside:
    """A way to run scripts on paths of one sandbox."""

    def __init__(self, sandbox: Sandbox, *, reuse: bool) -> None:
        self._sandbox = sandbox
        self._reuse = reuse

    def resolve(self, path: PathLike) -> bytes:
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
        # Without a project commands start in the playground
        top = project.path if project.roots else playground_of(project, is_plain=project.means.engine is None)
        on_host = top if raw == b"." else posixpath.join(top, raw)
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
        result = self._sandbox.run(command, limits=limits, after=after, cancel_fd=cancel_fd, reuse=self._reuse)
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
                # Whoever reads a file and writes it again must not miss what another run writes meanwhile
                alone=True,
                reuse=self._reuse,
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
        self._timer: threading.Timer | None = None

    def __enter__(self) -> _GivingUp:
        # One descriptor that is readable when either is
        self._epoll = select.epoll()
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        self._epoll.register(self._read, select.EPOLLIN)
        if isinstance(self._cancel_fd, int):
            self._epoll.register(self._cancel_fd, select.EPOLLIN)
        self.fd = self._epoll.fileno()
        return self

    def hear(self, event: Event) -> None:
        if isinstance(event, Started):
            self._set_timer()
        if not isinstance(event, OutputChunk) or event.stream != "stdout" or self.is_refused:
            return
        self.said += event.chunk[: max(0, MIB - len(self.said))]
        if self.said.startswith(b"no ") and b"\0" in self.said:
            self.is_refused = True
            os.write(self._write, b"x")

    def _set_timer(self) -> None:
        self._timer = threading.Timer(_WALL_S, self._be_late)
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
            text = f"{show(path)}: {outcome.describe()}"
            raise FileError(text, kind="too_large")
        case Cancelled():
            raise SandboxUnavailable("the caller gave up", remedy="Try again.")
    raise SandboxUnavailable(f"{show(path)}: no answer from the sandbox ({describe_end(outcome).splitlines()[0]})")


def _positive(said: bytes, result: RunResult, path: bytes) -> bytes:
    """Return what follows `ok`, or raise what a script said instead."""
    if said.startswith(b"ok "):
        return said[3:]
    kind, _newline, message = said.partition(b"\0")[0].removeprefix(b"no ").partition(b"\n")
    if not said.startswith(b"no "):
        raise SandboxUnavailable(f"{show(path)}: unspill can't understand the sandbox's answer")
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


class FileBytes(Record):
    """A window of a file, from `offset` on. `size` is that of the whole file as the kernel gives it."""

    path: bytes
    content: bytes
    offset: int
    size: int
    has_more: bool

    @property
    def left_out(self) -> int:
        """How many bytes come after the window; 0 also where the kernel does not tell the size, as in /proc."""
        return max(0, self.size - self.offset - len(self.content)) if self.has_more else 0

    def text(self) -> str:
        """Return the window as UTF-8.

        Raises:
            FileError: it is not (`not_text`).
        """
        return _decode(self.path, self.content)


class FileLines(Record):
    """Lines of a file, from line `offset` (the first is 0) on. `next_offset` is None where these are the last.

    `is_cut`: the only line is longer than the bound, so the end of it is missing.
    """

    path: bytes
    content: bytes
    offset: int
    count: int
    next_offset: int | None
    size: int
    is_cut: bool = False

    def text(self) -> str:
        """Return the lines as UTF-8.

        Raises:
            FileError: they are not (`not_text`).
        """
        return _decode(self.path, self.content)


class FileEntry(Record):
    """One name below a directory, with the path from there. A link is told as itself, with its own size."""

    path: bytes
    kind: EntryKind
    size: int


class Listing(Record):
    """Entries by path; `left_out` more were found. Not `is_whole` where a directory below could not be read."""

    path: bytes
    entries: tuple[FileEntry, ...]
    left_out: int = 0
    is_whole: bool = True


def read_bytes(inside: Inside, path: PathLike, offset: int, limit: int, cancel_fd: int | None = None) -> FileBytes:
    """Return at most `limit` bytes of a file."""
    _check_window(offset, limit, MOST_BYTES)
    where = inside.resolve(path)
    words = (where, str(offset), str(limit + 1))
    size, content = _split(inside.ask("read", _BYTES, _FOR_WINDOWS, words, limit + 1, cancel_fd), where)
    return FileBytes(path=where, content=content[:limit], offset=offset, size=size, has_more=len(content) > limit)


def read_lines(inside: Inside, path: PathLike, offset: int, limit: int, cancel_fd: int | None = None) -> FileLines:
    """Return at most `limit` lines of a file, and at most as many as a mebibyte has."""
    _check_window(offset, limit, _LARGEST - 1)
    where = inside.resolve(path)
    words = (where, str(offset), str(limit + 1), str(USUAL_BYTES + 1))
    size, content = _split(inside.ask("read", _LINES, _FOR_WINDOWS, words, USUAL_BYTES + 1, cancel_fd), where)
    return _cut_lines(where, content, offset, limit).replace(size=size)


def _cut_lines(path: bytes, content: bytes, offset: int, limit: int) -> FileLines:
    """Return the lines of a window that has one more than is wanted, or one byte more than is allowed."""
    is_long = len(content) > USUAL_BYTES
    lines = _by_newline(content[:USUAL_BYTES])
    has_more = is_long or len(lines) > limit
    lines = lines[:limit]
    is_cut = is_long and len(lines) == 1 and not lines[0].endswith(b"\n")
    if is_long and len(lines) > 1 and not lines[-1].endswith(b"\n"):
        lines.pop()
    following = offset + len(lines) if has_more else None
    return FileLines(
        path=path,
        content=b"".join(lines),
        offset=offset,
        count=len(lines),
        next_offset=following,
        size=0,
        is_cut=is_cut,
    )


def _by_newline(content: bytes) -> list[bytes]:
    """Return the lines as tail and head count them: nothing but a newline ends one."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def list_directory(inside: Inside, path: PathLike, depth: int, limit: int, cancel_fd: int | None = None) -> Listing:
    """Return what lies in a directory, and below it down to a depth."""
    if not 1 <= depth <= MOST_DEPTH or limit < 1:
        raise UsageError(f"a depth is from 1 to {MOST_DEPTH}, a limit at least 1")
    where = inside.resolve(path)
    words = (where, str(depth), str(_LISTING_BYTES))
    answer = inside.ask("list", _LIST, _FOR_LISTS, words, _LISTING_BYTES, cancel_fd)
    if len(answer) >= _LISTING_BYTES:
        raise FileError(
            f"{show(where)}: there are too many entries", kind="too_large", remedy="Ask for less depth, or deeper down."
        )
    entries, is_whole = _parse_listing(answer, where)
    entries.sort(key=lambda entry: entry.path.split(b"/"))
    return Listing(path=where, entries=tuple(entries[:limit]), left_out=max(0, len(entries) - limit), is_whole=is_whole)


def _parse_listing(answer: bytes, where: bytes) -> tuple[list[FileEntry], bool]:
    entries: list[FileEntry] = []
    at = 0
    try:
        while not answer.startswith(b"end ", at):
            count, at = _cut(answer, b"\n", at)
            lines = []
            for _number in range(int(count)):
                line, at = _cut(answer, b"\n", at)
                lines.append(line)
            for line in lines:
                name, at = _cut(answer, b"\0", at)
                entries.append(_entry(line, name))
        return entries, answer[at:] == b"end 0\n"
    except (ValueError, OverflowError):
        raise SandboxUnavailable(f"{show(where)}: unspill can't understand the sandbox's answer") from None


def _cut(answer: bytes, end: bytes, at: int) -> tuple[bytes, int]:
    """Return what stands before the next end, and where it goes on: never by a copy of all the rest."""
    found = answer.index(end, at)
    return answer[at:found], found + 1


def _entry(line: bytes, name: bytes) -> FileEntry:
    mode, size = line.split()
    kind = _KINDS.get(stat.S_IFMT(int(mode, 16)), "unknown")
    return FileEntry(path=name.removeprefix(b"./"), kind=kind, size=int(size))


def _split(answer: bytes, where: bytes) -> tuple[int, bytes]:
    size, newline, content = answer.partition(b"\n")
    if not newline or not size.isdigit():
        raise SandboxUnavailable(f"{show(where)}: unspill can't understand the sandbox's answer")
    return int(size), content


def _check_window(offset: int, limit: int, most: int) -> None:
    if not 0 <= offset < _LARGEST or not 0 <= limit <= most:
        raise UsageError(f"an offset is at least 0, a limit from 0 to {most}")


def _decode(path: bytes, content: bytes) -> str:
    if b"\0" in content:
        raise FileError(f"{show(path)}: it is not a text file", kind="not_text")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{show(path)}: it is not UTF-8 text", kind="not_text") from None


class Written(Record):
    """A file that was written, and the run that did it: `result.operation` says what was applied and what is held.

    Not `lasts` where it lies in a directory that is made anew for each run, as /tmp: the next run does not see it.
    `replaced` is how many places an edit changed.
    """

    path: bytes
    size: int
    is_new: bool
    lasts: bool
    result: RunResult
    replaced: int = 0


def write_file(
    inside: Inside,
    path: PathLike,
    content: str | bytes,
    *,
    replace: bool = True,
    digest: str = "",
    after: After | None = None,
    cancel_fd: int | None = None,
) -> Written:
    """Write a file whole; with a digest only where it has that content."""
    if after == "discard":
        raise UsageError("`discard` would throw the file away at once", remedy="Use `hold` or `apply`.")
    raw = to_bytes(content)
    where = inside.resolve(path)
    if len(raw) > MOST_WRITTEN:
        raise FileError(f"{show(where)}: more than {MOST_WRITTEN} bytes", kind="too_large")
    words = (where, "any" if replace else "new", digest)
    answer, result = inside.act(*WRITING, words, stdin=raw, after=after, cancel_fd=cancel_fd)
    made, _space, kind = answer.strip().partition(b" ")
    if made not in (b"0", b"1") or not kind.isalnum():
        raise SandboxUnavailable(f"{show(where)}: unspill can't understand the sandbox's answer")
    lasts = bool(result.changes) or not result.sandboxed or kind != _TMPFS
    return Written(path=where, size=len(raw), is_new=made == b"1", lasts=lasts, result=result)


def edit_file(
    inside: Inside,
    path: PathLike,
    old: str | bytes,
    new: str | bytes,
    *,
    replace_all: bool = False,
    after: After | None = None,
    cancel_fd: int | None = None,
) -> Written:
    """Replace a text of a file by another. Where another run was faster, look again what there is to replace."""
    before, behind = to_bytes(old), to_bytes(new)
    if not before or before == behind:
        raise UsageError("the text to replace is empty, or the same as the new text")
    for left in reversed(range(_TRIES)):
        found = read_bytes(inside, path, 0, MOST_EDITED, cancel_fd)
        if found.has_more:
            raise FileError(f"{show(found.path)}: more than {MOST_EDITED} bytes", kind="too_large")
        count = _count(found.path, found.content, before, replace_all=replace_all)
        content, digest = found.content.replace(before, behind), hashlib.sha256(found.content).hexdigest()
        try:
            written = write_file(inside, path, content, digest=digest, after=after, cancel_fd=cancel_fd)
        except FileError as error:
            if error.kind != "changed" or not left:
                raise
            continue
        return written.replace(replaced=count)
    raise AssertionError


def _count(path: bytes, content: bytes, wanted: bytes, *, replace_all: bool) -> int:
    count = content.count(wanted)
    if not count:
        raise FileError(f"{show(path)}: the text to replace is not there", kind="not_found_in_file")
    if count > 1 and not replace_all:
        raise FileError(
            f"{show(path)}: the text to replace is there {count} times",
            kind="ambiguous",
            count=count,
            remedy="Give more of the text around it, or replace all.",
        )
    return count


def to_bytes(content: str | bytes) -> bytes:
    """Return what is to be written, a text as UTF-8.

    Raises:
        UsageError: it has halves of characters.
    """
    if isinstance(content, bytes):
        return content
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError("the text is not Unicode", remedy="Give bytes.") from None


class SandboxFiles:
    """Reads and writes what runs of a sandbox see. Safe to use from several threads.

    Every verb raises FileError, whose `kind` says what it was; UsageError; and SandboxUnavailable where we failed.
    `cancel_fd` is a descriptor that becomes readable to cancel. `reuse` is as for `Sandbox.run`.
    """

    def __init__(self, sandbox: Sandbox, *, reuse: bool = False) -> None:
        self._inside = Inside(sandbox, reuse=reuse)

    def read(
        self, path: PathLike, *, offset: int = 0, limit: int = USUAL_BYTES, cancel_fd: int | None = None
    ) -> FileBytes:
        """Return at most `limit` bytes of a file, from byte `offset` on."""
        return read_bytes(self._inside, path, offset, limit, cancel_fd)

    def read_lines(
        self, path: PathLike, *, offset: int = 0, limit: int = USUAL_LINES, cancel_fd: int | None = None
    ) -> FileLines:
        """Return at most `limit` lines of a file, from line `offset` on, and no more than a mebibyte."""
        return read_lines(self._inside, path, offset, limit, cancel_fd)

    def list(
        self, path: PathLike = ".", *, depth: int = 1, limit: int = USUAL_ENTRIES, cancel_fd: int | None = None
    ) -> Listing:
        """Return what lies in a directory, down to a depth, sorted; links in it are not followed."""
        return list_directory(self._inside, path, depth, limit, cancel_fd)

    def write(
        self,
        path: PathLike,
        content: str | bytes,
        *,
        replace: bool = True,
        after: After | None = None,
        cancel_fd: int | None = None,
    ) -> Written:
        """Write a file, and make the directories it lies in. What exists keeps its mode.

        Args:
            path: Which file.
            content: All that it shall have.
            replace: If not, a file that exists is an error (`exists`).
            after: `apply` or `hold`; by default the policy's.
            cancel_fd: A descriptor that becomes readable to cancel.
        """
        return write_file(self._inside, path, content, replace=replace, after=after, cancel_fd=cancel_fd)

    def edit(
        self,
        path: PathLike,
        old: str | bytes,
        new: str | bytes,
        *,
        replace_all: bool = False,
        after: After | None = None,
        cancel_fd: int | None = None,
    ) -> Written:
        """Replace the one place where a file has `old`, or all of them.

        It is an error if there is none (`not_found_in_file`) or several (`ambiguous`, with the count); nothing that was
        written meanwhile is lost.
        """
        return edit_file(self._inside, path, old, new, replace_all=replace_all, after=after, cancel_fd=cancel_fd)


class SandboxTree:
    """Looks at and changes the names that runs of a sandbox see. Safe to use from several threads.

    Every verb raises FileError, whose `kind` says what it was; UsageError; and SandboxUnavailable where we failed.
    `cancel_fd` is a descriptor that becomes readable to cancel.
    """

    def __init__(self, sandbox: Sandbox, *, reuse: bool = False) -> None:
        self._inside = Inside(sandbox, reuse=reuse)

    def look(self, path: PathLike, *, cancel_fd: int | None = None) -> FileEntry:
        """Return what is at a path, which becomes absolute."""
        where = self._inside.resolve(path)
        answer = self._inside.ask(*LOOKING["look"], (where,), 64, cancel_fd)
        if not answer[1:].strip().isdigit():
            raise SandboxUnavailable(f"{show(where)}: unspill can't understand the sandbox's answer")
        return FileEntry(path=where, kind=_NAMED_KINDS.get(answer[:1], "unknown"), size=int(answer[1:]))

    def exists(self, path: PathLike, *, cancel_fd: int | None = None) -> bool:
        """Tell whether there is something at a path; of a link, where it leads."""
        answer = self._inside.ask(*LOOKING["exists"], (self._inside.resolve(path),), 64, cancel_fd)
        return answer == b"1"

    def directories(
        self, path: PathLike, names: Collection[bytes], *, cancel_fd: int | None = None
    ) -> frozenset[bytes]:
        """Return those names in a directory that are directories, or links to one."""
        where = self._inside.resolve(path)
        found: set[bytes] = set()
        for part in _parts(names):
            answer = self._inside.ask(*LOOKING["directories"], (where, *part), len(part), cancel_fd)
            found.update(name for name, kind in zip(part, answer.decode("ascii"), strict=True) if kind == "d")
        return frozenset(found)

    def real_path(self, path: PathLike, *, cancel_fd: int | None = None) -> bytes:
        """Return where a path leads by all its links; what does not exist of it stays as it is."""
        answer = self._inside.ask(*LOOKING["real"], (self._inside.resolve(path),), 1 * MIB, cancel_fd)
        return answer.removesuffix(b"x").removesuffix(b"\n")

    def make_directory(self, path: PathLike, *, cancel_fd: int | None = None) -> None:
        """Make a directory, and those it lies in, unless it is there."""
        self._inside.act(*CHANGING["make"], (self._inside.resolve(path),), cancel_fd=cancel_fd)

    def remove(self, path: PathLike, *, cancel_fd: int | None = None) -> None:
        """Remove what is at a path, a directory with all that is in it; a link goes itself."""
        where = self._inside.resolve(path).rstrip(b"/") or b"/"
        self._inside.act(*CHANGING["remove"], (where,), cancel_fd=cancel_fd)


def _parts(names: Collection[bytes]) -> Iterator[list[bytes]]:
    """Yield the names in parts that are few enough for one command."""
    part: list[bytes] = []
    left = _MOST_WORDS
    for name in names:
        # A word has a pointer and a NUL besides
        left -= len(name) + 9
        if part and left < 0:
            yield part
            part, left = [], _MOST_WORDS - len(name) - 9
        part.append(name)
    if part:
        yield part


READ_BEGINNINGS = {beginning_of(*verb, is_reading=True): verb[0] for verb in (*READING, *LOOKING.values())}
_VERBS = {
    **READ_BEGINNINGS,
    **{beginning_of(*verb, is_reading=False): verb[0] for verb in (WRITING, *CHANGING.values())},
}


def runs_but_reads(sandbox: Sandbox, limit: int) -> tuple[tuple[Run, ...], int]:
    """Return the latest runs that do more than look at files, the youngest first, and how many others began since."""
    runs, row = sandbox._project.store.runs, sandbox._project.row.id
    found = runs.latest(row, limit, but=READ_BEGINNINGS)
    since = found[-1].number if len(found) == limit > 0 else 0
    return found, sum(runs.count(row, beginning, since=since) for beginning in READ_BEGINNINGS)


def verb_of(run: Run) -> str | None:
    """Return what a file verb did, as `read PATH`; None for any other run."""
    words = b"\0".join(run.argv)
    for beginning, name in _VERBS.items():
        if words.startswith(beginning):
            return f"{name} {show(words[len(beginning) :].partition(bytes(1))[0])}"
    return None
