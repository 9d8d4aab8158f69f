# SPDX-License-Identifier: Apache-2.0
"""Refuse what no person should be asked: requests that are malformed, hopeless, or too long to be looked at.

Names only; whether a directory exists is known to whoever sees the sandbox's own view of it.

MERGED
[escaping] Words of strangers inside a question: shown so that they can't be taken for anything but what they are.

Stricter than `changes.quote`, because somebody decides by it within seconds: besides what does not print, also marks
that combine, blanks, letters that run from right to left and signs that look like ASCII are spelt out as `\\u{...}`.

[held] What a question about a held path names: the digest of everything that applying the change would do there, and
for the eye what becomes of it.

[wording] Turn a request into a question: one line that asks, a few that explain, the answers that are offered.

All that comes from a command goes through `escaping`; nothing else of it ever reaches a screen.
"""

from __future__ import annotations

import os

from unspill.changes.quote import is_mixed_script
from unspill.changes.reader import digest_of, read_up_to
from unspill.errors import (
    DeniedError,
    PolicyError,
    RootRefused,
    UsageError,
)
from unspill.model.permission import (
    INHERITED,
    UNKNOWN_PROGRAM,
    AsRoot,
    Choice,
    Egress,
    HeldPath,
    MaskedSecret,
    NetworkForCommand,
    Question,
    ReadablePath,
    RequestId,
    Unsandboxed,
    WritableRoot,
)
from unspill.policy.config import MODES
from unspill.policy.defaults import check_root, is_refused_variable
from unspill.policy.hosts import parse_allowed, parse_reachable
from unspill.policy.paths import contains, is_normalised
from unspill.policy.secrets import find_secret
from unspill.store.permissions import SHORTEST, digest_of_question

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.changes.reader import Reader
    from unspill.model.change import Change
    from unspill.model.permission import Request
    from unspill.model.policy import Scope


# The shell of this host, and those that a rootfs may have
_SHELLS = (b"/bin/sh", b"/bin/bash", b"/usr/bin/bash")
COLUMNS = 300

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"'}
# Letters by their category, and yet a blank or a stroke: fillers of Hangul, clicks that look like | and !
_MISLEADING = frozenset("\u115f\u1160\u3164\uffa0\u01c0\u01c1\u01c2\u01c3\ua78c")
_LETTERS_AND_DIGITS = frozenset(("Lu", "Ll", "Lt", "Lo", "Nd"))
_FROM_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN"))


def is_text(argv: tuple[bytes, ...]) -> bool:
    """Tell whether a command was given as a text, which the usual shell runs."""
    return len(argv) == 3 and argv[0] in _SHELLS and argv[1] == b"-c"


def is_plain(character: str) -> bool:
    """Tell whether a character can be shown as it is: it takes its place in the line, and looks like no other."""
    if character.isascii():
        return character.isprintable()
    import unicodedata

    return (
        unicodedata.category(character) in _LETTERS_AND_DIGITS
        and unicodedata.bidirectional(character) not in _FROM_RIGHT_TO_LEFT
        and unicodedata.normalize("NFKC", character) == character
        and character not in _MISLEADING
    )


def show_word(word: bytes) -> str:
    """Return an argument or a path: bare if no shell would see more in it than a word, else in quotes with escapes."""
    text = word.decode("utf-8", "surrogateescape")
    if text and all(character in _BARE or (not character.isascii() and is_plain(character)) for character in text):
        return text
    return _quoted(text)


def show_command(argv: tuple[bytes, ...]) -> str:
    """Return a command on one line: what a shell is given as it was written, a list of arguments as words."""
    if is_text(argv):
        return _show_script(argv[2])
    return " ".join(map(show_word, argv))


def shorten(shown: str, columns: int = COLUMNS) -> str:
    """Return shown text with its middle left out and counted where it is too long: both of its ends count."""
    if len(shown) <= columns:
        return shown
    head = columns * 2 // 3
    tail = columns - head
    left_out = len(shown) - head - tail
    return f"{shown[:head]} [... {left_out} characters left out ...] {shown[-tail:]}"


def wrap(shown: str, columns: int = 100) -> list[str]:
    """Return shown text in lines that a mark at their beginning tells from everything else."""
    return [f"| {shown[start : start + columns]}" for start in range(0, len(shown), columns)] or ["| "]


def _show_script(script: bytes) -> str:
    text = script.decode("utf-8", "surrogateescape")
    # What starts with a quote, or does not end where it seems to, could be taken for the quoted form of something else
    if text and text.strip() == text and text[0] != '"' and all(map(is_plain, text)):
        return text
    return _quoted(text)


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if is_plain(character):
        return character
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{{{code:x}}}"


# All of a target is shown, and so much of a content
HEAD_BYTES = 4096
_SHOWN = 200
LINK = "a symbolic link"


def describe_held(change: Change) -> str:
    """Return what a path becomes, in words."""
    entry = change.entry
    if entry is None:
        return "nothing: it is deleted"
    if entry.kind != "file":
        return LINK if entry.kind == "symlink" else f"a {entry.kind}"
    said = [f"a file of {entry.size} byte{'' if entry.size == 1 else 's'}"]
    said += ["executable"] if entry.mode & 0o111 else []
    said += ["writable for everybody"] if entry.mode & 0o002 else []
    said += ["with the content that it has"] if change.kind == "metadata" else []
    return ", ".join(said)


def head_of_held(change: Change, reader: Reader) -> tuple[bytes, str]:
    """Return the beginning of what a change leaves at a path, and the number of bytes that follow, if any do.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    entry = change.entry
    if entry is None or entry.kind != "file":
        return (change.target or b"")[:HEAD_BYTES], ""
    head = read_up_to(reader.open_after(change), _SHOWN)
    return head, str(entry.size - len(head)) if entry.size > len(head) else ""


def digest_of_held(change: Change, reader: Reader) -> str:
    """Return the digest of a change: what becomes of the path, its kind and mode, its content or target.

    A deletion has one too, so that a grant to delete is no grant to write; and a file that goes is no directory.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    from hashlib import blake2b

    entry = change.entry
    gone = change.base_kind or "" if change.kind in ("deleted", "replaced") else ""
    parts: tuple[str, ...] = ("deleted", gone)
    if entry is not None:
        parts = ("left", gone, entry.kind, f"{entry.mode & 0o7777:o}", digest_of(change, reader) or "")
    return blake2b("\0".join(parts).encode("ascii"), digest_size=32).hexdigest()


WAIT_S = 300.0

_LABELS: dict[Scope, str] = {
    "once": "Allow once",
    "run": "Allow for this run",
    "sandbox": "Allow in this sandbox",
    "always": "Always allow in this project",
}
# An answer is never for more than the very command that it was asked for
_LABELS_OF_COMMANDS: dict[Scope, str] = _LABELS | {
    "sandbox": "Allow this very command in this sandbox",
    "always": "Always allow this very command in this project",
}


def make_question(
    request: Request, scopes: tuple[Scope, ...], *, wait_s: float = WAIT_S, identity: RequestId | None = None
) -> Question:
    """Return the question for a request; each has an id of its own, so that no answer fits two."""
    identity = identity or RequestId(os.urandom(8).hex())
    shown = (*_subjects(request), show_command(request.argv))
    is_cut = any(shorten(part) != part for part in shown)
    return Question(
        id=identity,
        request=request,
        digest=digest_of_question(identity, request),
        text=question_text(request),
        lines=tuple(_lines(request, is_cut=is_cut)),
        whole=tuple(_whole(request)) if is_cut else (),
        choices=choices_for(request, scopes),
        wait_s=wait_s,
    )


def choices_for(request: Request, scopes: tuple[Scope, ...]) -> tuple[Choice, ...]:
    """Return the answers to offer: for what is asked every time exactly Allow and Deny."""
    deny = Choice(label="Deny", scope=None)
    if request.one_time_only:
        return (Choice(label="Allow", scope="once"), deny)
    labels = _LABELS_OF_COMMANDS if request.argv else _LABELS
    if isinstance(request, Egress) and request.run:
        # A program connects as often as it likes: once is for this run
        labels, scopes = labels | {"once": labels["run"]}, tuple(scope for scope in scopes if scope != "run")
    return (*(Choice(label=labels[scope], scope=scope) for scope in scopes if scope in request.scopes), deny)


def question_text(request: Request) -> str:
    """Return the line that asks."""
    command = shorten(show_command(request.argv))
    match request:
        case NetworkForCommand():
            return f"Run command with network access: {command}?"
        case Egress(hosts=hosts):
            whom = f" for: {command}" if request.argv else ""
            return f"Allow connections to {shorten(', '.join(_show_host(host) for host in hosts))}{whom}?"
        case WritableRoot(path=path):
            return f"Let the sandbox change files in {shorten(show_word(path))}?"
        case ReadablePath(path=path):
            return f"Let the sandbox read {shorten(show_word(path))}?"
        case MaskedSecret(path=path):
            return f"Show the secret {shorten(show_word(path))} to the sandbox?"
        case HeldPath(path=path):
            return f"Apply the held change of {shorten(show_word(path))}?"
        case Unsandboxed():
            return f"Run command WITHOUT a sandbox: {command}?"
        case AsRoot():
            return "Open a sandbox as root, where it protects less?"


def statement_text(request: Request) -> str:
    """Return what a grant says, in the words in which it was asked."""
    return question_text(request).removesuffix("?")


def request_lines(request: Request) -> tuple[str, ...]:
    """Return what explains a request besides the line that asks."""
    return tuple(_lines(request, is_cut=False))


def denial_text(request: Request) -> str:
    """Return what a refused caller is told; nothing was run."""
    return f"Permission denied: {question_text(request)}"


def _lines(request: Request, *, is_cut: bool) -> Iterator[str]:
    yield f"project:   {shorten(show_word(request.project))}"
    if request.cwd and request.cwd != request.project:
        yield f"directory: {shorten(show_word(request.cwd))}"
    if request.argv and not isinstance(request, NetworkForCommand | Unsandboxed | Egress):
        yield f"command:   {shorten(show_command(request.argv))}"
    if request.stdin == UNKNOWN_PROGRAM:
        yield "input:     whatever it is given while it runs"
    elif request.stdin == INHERITED:
        yield "input:     whatever is piped to `unspill run`; a remembered answer holds for any input"
    elif request.stdin:
        yield f"input:     {shorten(show_word(request.stdin_head), 200)}"
    if isinstance(request, HeldPath):
        yield from _held_lines(request)
    if isinstance(request, NetworkForCommand) and request.mode == "host":
        yield "careful:   it can reach all that listens on this machine and near it (`network.mode`)"
    if isinstance(request, Unsandboxed):
        yield "careful:   it can read, change and send everything that you can"
        for pair in request.environ:
            yield f"variable:  {shorten(show_word(pair))}"
    for word in _words(request):
        if is_mixed_script(word):
            yield f"careful:   {shorten(show_word(word), 100)} mixes letters that look alike"
    if is_cut:
        yield f"careful:   this is not all of it: {len(b' '.join(request.argv))} bytes in {len(request.argv)} arguments"


def _held_lines(request: HeldPath) -> Iterator[str]:
    if request.root != request.project:
        yield f"root:      {shorten(show_word(request.root))}"
    if request.why:
        yield f"because:   {shorten(request.why, 200)}"
    if request.becomes:
        yield f"becomes:   {request.becomes}"
    if request.rest:
        # All of it: what looked like its end would be taken for the end of the file
        yield f"begins:    {show_word(request.head)} and {request.rest} more bytes"
    elif request.head:
        yield f"{'leads to' if request.becomes == LINK else 'has'}:".ljust(11) + shorten(show_word(request.head), 400)
    yield f"digest:    {request.digest}"
    yield f"token:     {shorten(show_word(request.path))}@{request.digest[:SHORTEST]}"


def _words(request: Request) -> tuple[bytes, ...]:
    """Return what may be taken for something else at a glance, a word at a time."""
    script = request.argv[2].split() if is_text(request.argv) else request.argv
    if isinstance(request, Unsandboxed):
        return (*script[:50], *request.environ)
    path = () if isinstance(request, NetworkForCommand | Egress | AsRoot) else (request.path,)
    target = (request.head,) if isinstance(request, HeldPath) and request.becomes == LINK else ()
    return (*script[:50], *path, *target)


def _subjects(request: Request) -> tuple[str, ...]:
    """Return what a question is about besides a command."""
    places = (request.project, request.cwd)
    match request:
        case Egress(hosts=hosts):
            return (", ".join(map(_show_host, hosts)), *map(show_word, places))
        case Unsandboxed(environ=environ):
            return tuple(map(show_word, (*places, *environ)))
        case NetworkForCommand() | AsRoot():
            return tuple(map(show_word, places))
        case HeldPath(root=root, path=path):
            return tuple(map(show_word, (root, path, *places)))
        case _:
            return tuple(map(show_word, (request.path, *places)))


def _whole(request: Request) -> Iterator[str]:
    for subject in _subjects(request):
        yield from wrap(subject)
    for number, word in enumerate(request.argv):
        yield f"argument {number}:"
        yield from wrap(show_word(word))


def _show_host(host: str) -> str:
    return show_word(host.encode("utf-8", "surrogateescape"))


COMMAND_BYTES = 256 * 1024
HOSTS = 50
VARIABLES = 20
WORDS = 500

_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_HEX = frozenset("0123456789abcdef")


def check_request(request: Request, *, home: bytes, own: tuple[bytes, ...]) -> None:
    """Refuse a request that can't be put to a person. `own` are unspill's state, configuration and data directories.

    Raises:
        UsageError: it is malformed.
        RootRefused: no person may make that directory a root.
        DeniedError: it is well-formed, but never granted.
    """
    _check_occasion(request)
    match request:
        case NetworkForCommand(mode=mode):
            _demand(bool(request.argv), "names no command")
            _demand(mode in MODES, "names no kind of network")
        case Unsandboxed(environ=environ):
            _demand(bool(request.argv), "names no command")
            _check_variables(environ)
        case Egress(hosts=hosts):
            _demand(0 < len(hosts) <= HOSTS, f"names {len(hosts)} hosts, not 1 to {HOSTS}")
            for host in hosts:
                _check_host(host)
        case WritableRoot(path=path):
            check_root(path, home=home, own=own)
        case ReadablePath(path=path) | MaskedSecret(path=path):
            _demand(is_normalised(path), "has a path that is not absolute and normalised")
            _refuse_private(path, home, own)
        case HeldPath(root=root, path=path, digest=digest):
            _check_shown(request)
            _demand(is_normalised(root), "has a root that is not absolute and normalised")
            _demand(_is_relative(path), "has a path that is not relative and normalised")
            _demand(_is_digest(digest), "has no digest of the content")


def _check_shown(request: HeldPath) -> None:
    _demand((request.why + request.becomes).isprintable(), "has a reason that can't be shown")
    _demand(len(request.why) + len(request.becomes) <= WORDS, "has a reason that is too long")
    _demand(len(request.head) <= HEAD_BYTES, "shows more of a content than anybody reads")
    _demand(not request.rest or (request.rest.isdecimal() and len(request.rest) < 20), "has no number of bytes")


def _check_occasion(request: Request) -> None:
    _demand(is_normalised(request.project), "has a project that is not absolute and normalised")
    _demand(not request.cwd or is_normalised(request.cwd), "has a directory that is not absolute and normalised")
    _demand(not any(b"\0" in word for word in request.argv), "has a command with NUL in it")
    _demand(not request.argv or bool(request.argv[0]), "has a command without a name")
    _demand(all(name and _NAME.issuperset(name) for name in request.names), "has a name that no variable can have")
    _demand(list(request.names) == sorted(set(request.names)), "has names that are not sorted")
    _demand(request.script in ("", UNKNOWN_PROGRAM) or _is_digest(request.script), "has a digest that is none")
    _demand(not request.variables or _is_digest(request.variables), "has a digest of variables that is none")
    is_named = request.stdin in ("", UNKNOWN_PROGRAM, INHERITED)
    _demand(is_named or _is_digest(request.stdin), "has a digest of input that is none")
    if sum(map(len, request.argv)) > COMMAND_BYTES:
        raise DeniedError(
            f"Permission denied: the command has more than {COMMAND_BYTES} bytes, which nobody can be asked about.",
            remedy="Put it into a file and run that.",
        )


def _check_variables(environ: tuple[bytes, ...]) -> None:
    """Refuse variables without a sandbox that nobody could judge, or that make any program run something else."""
    names = [pair.partition(b"=")[0].decode("utf-8", "surrogateescape") for pair in environ]
    _demand(all(name and _NAME.issuperset(name) for name in names), "sets a name that no variable can have")
    _demand(all(b"=" in pair and b"\0" not in pair for pair in environ), "sets a variable without a value")
    _demand(names == sorted(set(names)), "sets variables that are not sorted")
    for name in names:
        if is_refused_variable(name):
            raise UsageError(
                f"The variable {name} is never set for a command without a sandbox.",
                remedy="Write it into the command itself if it is needed: then it is seen by whoever is asked.",
            )
    if len(environ) > VARIABLES or sum(map(len, environ)) > COMMAND_BYTES:
        raise DeniedError(
            f"Permission denied: {len(environ)} variables are set, more than anybody can be asked about.",
            remedy="Write those that are needed into the command itself.",
        )


def _refuse_private(path: bytes, home: bytes, own: tuple[bytes, ...]) -> None:
    for directory in own:
        if contains(directory, path) or contains(path, directory):
            raise RootRefused(f"{show_word(path)} can't be shown: unspill keeps its own files there.")
    if contains(path, home):
        raise RootRefused(f"{show_word(path)} can't be shown: it is or contains your home directory.")
    if find_secret(path, home) is not None:
        raise RootRefused(
            f"{show_word(path)} is never shown to a sandbox.", remedy="Copy what is needed into the project."
        )


def _is_relative(path: bytes) -> bool:
    return bool(path) and is_normalised(b"/" + path)


def _check_host(host: str) -> None:
    """Demand that a host is written as the proxy and the configuration write it, and in the one form of it."""
    no_host = f"names something that is no host: {show_word(host.encode('utf-8', 'replace'))}"
    try:
        is_rule = parse_allowed(host).text == host
    except PolicyError:
        is_rule = False
    _demand(is_rule, no_host)
    try:
        parse_reachable(host)
    except PolicyError as error:
        # Of an address that is never reached nobody need be asked
        raise UsageError(error.message, remedy=error.remedy) from None


def _is_digest(text: str) -> bool:
    return len(text) == 64 and _HEX.issuperset(text)


def _demand(is_met: bool, otherwise: str) -> None:
    if not is_met:
        raise UsageError(f"The request {otherwise}.", remedy="This is the caller's mistake: nobody was asked.")
