# SPDX-License-Identifier: Apache-2.0
"""Explains what only looks like a failure of the command: words and paths in its output that the sandbox is behind.

Costs nothing where nothing fails. Output is words of a stranger and may not name what was refused: these are hints,
no more. Never asks the host what it has there, so a model that reads a hint does not learn it: of a link in a root
only its own text is read, which the command can read too.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat

from unspill.model.plan import Overlay
from unspill.model.run import Exited, Hint, NeverStarted
from unspill.plan.explain import Judge, link_remedy, remedy_of
from unspill.policy.paths import contains, lies_beneath, normalise, quote
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unspill.model.plan import Plan
    from unspill.model.run import Outcome, Output
    from unspill.plan.explain import Refusal


_EXPLAINED = (
    (
        os.strerror(errno.EROFS).encode(),
        "read-only",
        "The command tried to write where the sandbox is read-only (EROFS).",
        "Write to the project, the playground or /tmp. `--root DIR` allows another directory.",
    ),
    (
        os.strerror(errno.EXDEV).encode(),
        "rename-across-layers",
        "The overlay can't rename a whole directory of the project (EXDEV).",
        "Use `mv`, which copies instead. For `git mv DIR`, move the files one by one, or use `mv` and `git add -A`.",
    ),
    (
        b"hardlink different from source",
        "hard-link-across-layers",
        "A clone inside the project can't share files with it: in the overlay a hard link becomes a separate file.",
        "Use `git clone --no-hardlinks`, or clone to `/tmp` or the playground.",
    ),
    (
        os.strerror(errno.EOVERFLOW).encode(),
        "foreign-owner",
        "The command tried to change a file of another owner or group, which the overlay can't copy (EOVERFLOW).",
        "`unspill doctor PROJECT` lists these files. Make them yours: chown -R YOU:YOURGROUP.",
    ),
)
_TAIL = 16 * 1024
_MOST = 3
_LONGEST_PATH = 4096
# Said by shells and by the tools that make files, where the directory is missing
_NO_DIRECTORY = b"Directory nonexistent"
_MAKING = (_NO_DIRECTORY, b"cannot create", b"can't create", b"failed to create", b"cannot touch")
# Said by bash of `<` and `>` alike, by Python of every mode
_UNCLEAR = (b": line ", b"FileNotFoundError")
# Of what lies behind a link, in whatever letters: said by libc, Go and node, dash, dash's cd, make
_NOT_THERE = (
    b"no such file or directory",
    b"read-only file system",
    b"directory nonexistent",
    b"can't cd to",
    b"no rule to make target",
)
_MOST_WORDS = 1000
_MOST_LINKS = 40
_QUOTES = (b"\xe2\x80\x98", b"\xe2\x80\x99", b"'", b'"', b"`", b"(", b")", b",", b"=")


def find_hints(plan: Plan, outcome: Outcome, stdout: Output, stderr: Output) -> tuple[Hint, ...]:
    """Return all hints for a run that ended so: those about a path take the place of the one that names none."""
    guessed = hints_from(outcome, stdout.tail or stdout.head, stderr.tail or stderr.head)
    outputs = stdout.kept(), stderr.kept()
    named = (*hints_about(plan, outcome, *outputs), *link_hints(plan, outcome, *outputs))
    return (*(hint for hint in guessed if not named or hint.code != "read-only"), *named)


def server_hints(ports: Sequence[int]) -> tuple[Hint, ...]:
    """Return how to reach servers that listened inside; nothing where there was none."""
    if not ports:
        return ()
    named = ", ".join(map(str, ports[:_MOST])) + (f" and {len(ports) - _MOST} more" if len(ports) > _MOST else "")
    text = f"A server inside listened on port{'s' if len(ports) > 1 else ''} {named}; nothing outside can reach it."
    return (Hint(code="server-inside", text=text, remedy=f"To publish it on 127.0.0.1: unspill run -p {ports[0]}"),)


def hints_from(outcome: Outcome, *outputs: bytes) -> tuple[Hint, ...]:
    """Return explanations for what only looks like the command's failure. Words in an output are a hint, no more."""
    if outcome == Exited(code=0) or isinstance(outcome, NeverStarted):
        return ()
    return tuple(
        Hint(code=name, text=text, remedy=remedy)
        for words, name, text, remedy in _EXPLAINED
        if any(words in output for output in outputs)
    )


def hints_about(plan: Plan, outcome: Outcome, *outputs: bytes) -> tuple[Hint, ...]:
    """Return a hint for each path that was named with an error and that a rule of the plan refuses.

    One more where the profile `strict` is likely what refused a socket.
    """
    if not isinstance(outcome, Exited) or not outcome.code:
        return ()
    judge, home = Judge(plan.mounts, has_rootfs=bool(plan.rootfs)), dict(plan.environ).get(b"HOME", b"/")
    found: dict[bytes, Hint] = {}
    for named in _named(outputs):
        refusal = judge.refusal(named.path, is_write=named.is_write)
        if refusal is not None and _is_telling(refusal, home, is_missing=named.is_missing) and len(found) < _MOST:
            found[refusal.path] = Hint(
                code="denied-path",
                text=f"{quote(refusal.path)}: {refusal.rule}.",
                remedy=_remedy(judge, named, refusal, home),
            )
    return (*found.values(), *_strict_hints(plan, outputs))


def link_hints(plan: Plan, outcome: Outcome, *outputs: bytes) -> tuple[Hint, ...]:
    """Return a hint for each link in a root that leads to where the command can't go, if an error names its path."""
    if not isinstance(outcome, Exited) or not outcome.code:
        return ()
    judge, home = Judge(plan.mounts, has_rootfs=bool(plan.rootfs)), dict(plan.environ).get(b"HOME", b"/")
    is_write = any(os.strerror(errno.EROFS).encode() in output[-_TAIL:] for output in outputs)
    found: dict[bytes, Hint] = {}
    for path in _suspects(plan.cwd, outputs):
        leading = _leads_out(plan, path)
        if leading is None or leading[0] in found or len(found) == _MOST:
            continue
        link, target = leading
        refusal = judge.refusal(target, is_write=False) or (judge.refusal(target, is_write=True) if is_write else None)
        if refusal is not None:
            which = "is read-only" if refusal.kind == "read-only" else "the sandbox does not show"
            text = f"{quote(link)} is a link that leads out of the project, to {quote(target)}, which {which}."
            found[link] = Hint(code="link-leads-out", text=text, remedy=link_remedy(refusal, home))
    return tuple(found.values())


def _suspects(cwd: bytes, outputs: tuple[bytes, ...]) -> list[bytes]:
    """Return what may be paths in lines that speak of something missing, as they are seen from a directory."""
    found: dict[bytes, None] = {}
    for output in outputs:
        for line in output[-_TAIL:].splitlines():
            if any(words in line.lower() for words in _NOT_THERE):
                found |= dict.fromkeys(word.rstrip(b":;.") for word in _words(line))
    paths = (word for word in list(found)[:_MOST_WORDS] if word and len(word) <= _LONGEST_PATH and b"\0" not in word)
    return [normalise(posixpath.join(cwd, word)) for word in paths]


def _leads_out(plan: Plan, path: bytes) -> tuple[bytes, bytes] | None:
    """Return the link by which a path leads out of every root, and where that leads; None if it does not."""
    roots = [op for op in plan.mounts if isinstance(op, Overlay) and op.upper is not None]
    for _ in range(_MOST_LINKS):
        root = next((op for op in roots if lies_beneath(path, op.dest)), None)
        found = None if root is None else _first_link(root, path)
        if found is None:
            return None
        link, text = found
        target = normalise(posixpath.join(posixpath.dirname(link), text))
        if not any(contains(op.dest, target) for op in roots):
            return link, target
        path = normalise(target + path[len(link) :])
    return None


def _first_link(root: Overlay, path: bytes) -> tuple[bytes, bytes] | None:
    """Return the first link on the way to a path in a root, and its text. The host never follows one itself."""
    layers: tuple[bytes, ...] = (*filter(None, (root.upper,)), *root.lowers)
    at = b""
    for name in path[len(root.dest) + 1 :].split(b"/"):
        at += b"/" + name
        directories: list[bytes] = []
        for layer in layers:
            try:
                mode = os.lstat(layer + at).st_mode
                if stat.S_ISLNK(mode) and not directories:
                    return root.dest + at, os.readlink(layer + at)
            except OSError:
                continue
            if not stat.S_ISDIR(mode):
                # What is not a directory hides all that lies below it, a deletion too
                break
            directories.append(layer)
        layers = tuple(directories)
    return None


class _Named(Record):
    """A path in a line of output, and what the line says of it; `is_unclear`: not whether it was to be written."""

    path: bytes
    is_write: bool
    is_missing: bool
    is_unclear: bool


def _remedy(judge: Judge, named: _Named, refusal: Refusal, home: bytes) -> str:
    remedy = remedy_of(refusal, is_write=named.is_write, home=home)
    written = judge.refusal(named.path, is_write=True) if named.is_unclear else None
    if written is None:
        return remedy
    other = remedy_of(written, is_write=True, home=home)
    return f"{remedy} If the command tried to write it: {other[0].lower()}{other[1:]}"


def _named(outputs: tuple[bytes, ...]) -> Iterator[_Named]:
    """Yield the absolute paths in lines that speak of a missing or read-only file."""
    read_only, missing = (os.strerror(code).encode() for code in (errno.EROFS, errno.ENOENT))
    errors = (read_only, missing, _NO_DIRECTORY)
    for output in outputs:
        for line in output[-_TAIL:].splitlines():
            if not any(error in line for error in errors):
                continue
            is_missing = read_only not in line
            is_write = not is_missing or any(words in line for words in _MAKING)
            for word in _words(_without_speaker(line, errors)):
                path = word.rstrip(b":;.")
                if path.startswith(b"/") and len(path) <= _LONGEST_PATH and b"\0" not in path:
                    is_unclear = not is_write and any(words in line for words in _UNCLEAR)
                    yield _Named(path=path, is_write=is_write, is_missing=is_missing, is_unclear=is_unclear)


def _without_speaker(line: bytes, errors: tuple[bytes, ...]) -> bytes:
    """Take away the program that a line begins with: `/bin/sh: 1: ...`, but not what an error follows at once."""
    first, _colon, rest = line.partition(b": ")
    return rest if first.startswith(b"/") and not rest.startswith(errors) else line


def _words(line: bytes) -> list[bytes]:
    for mark in _QUOTES:
        line = line.replace(mark, b" ")
    return line.split()


def _is_telling(refusal: Refusal, home: bytes, *, is_missing: bool) -> bool:
    """Tell whether a rule is likely the reason: what a temporary directory does not have, nobody else has either."""
    if refusal.kind == "hidden":
        return is_missing and contains(home, refusal.path)
    return refusal.kind != "read-only" or not is_missing


def _strict_hints(plan: Plan, outputs: tuple[bytes, ...]) -> Iterator[Hint]:
    """Name the profile where it is likely what refused a socket."""
    # What the filter answers; the other families that it refuses are rare
    words = os.strerror(errno.EAFNOSUPPORT).encode().lower()
    if plan.profile == "strict" and any(words in output[-_TAIL:].lower() for output in outputs):
        yield Hint(
            code="strict-profile",
            text='`profile = "strict"` blocks Unix sockets.',
            remedy='If the command needs one, set `profile = "default"` in your configuration.',
        )
