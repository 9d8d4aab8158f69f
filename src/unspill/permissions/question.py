# SPDX-License-Identifier: Apache-2.0
"""Turn a request for a permission into the question that a person is asked: its words, its answers, and its check.

`KINDS`, at the end, has a row for each kind of request: what is asked, what explains it, what is checked. A request
that is malformed, hopeless or too long to be looked at is put to nobody. Checks look at names only; whether a directory
exists is known to whoever sees the sandbox's own view of it.

All that comes from a command is escaped before it reaches a screen, and more strictly than by `changes.quote`, because
somebody decides by it within seconds: besides what does not print, also marks that combine, blanks, letters that run
from right to left and signs that look like ASCII are spelt out as `\\u{...}`.
"""

from __future__ import annotations

import os
import unicodedata
from hashlib import blake2b

from unspill.changes.scan import digest_of, read_up_to
from unspill.errors import DeniedError, PolicyError, RootRefused, UsageError
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
from unspill.model.policy import REGISTRIES
from unspill.policy.config import MODES
from unspill.policy.defaults import check_root, is_refused_variable
from unspill.policy.hosts import parse_allowed, parse_private, parse_reachable
from unspill.policy.paths import LONGEST_PATH, contains, escaped, find_misleading, is_mixed_script, is_normalised
from unspill.policy.secrets import find_secret
from unspill.record import Record
from unspill.store.permissions import SHORTEST, digest_of_question

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from unspill.changes.scan import Reader
    from unspill.model.change import Change
    from unspill.model.permission import Request
    from unspill.model.policy import Scope

WAIT_S = 300.0
COLUMNS = 300
COMMAND_BYTES = 256 * 1024

_MOST_HOSTS = 50
_MOST_VARIABLES = 20
# Of all their names, and of those that are set without a sandbox with their values
_BYTES_OF_VARIABLES = 16 * 1024
_MOST_CHARACTERS_OF_WHY = 500
# All of a link's target is shown, and so much of a file's content
_MOST_TARGET_BYTES = 4096
_MOST_CONTENT_BYTES = 200
_LINK = "a symbolic link"

_LABELS: dict[Scope, str] = {
    "once": "Allow once",
    "run": "Allow for this run",
    "sandbox": "Allow in this sandbox",
    "project": "Allow every command in this project to connect there",
    "always": "Always allow in this project",
}
# An answer is never for more than the very command that it was asked for
_LABELS_OF_COMMANDS: dict[Scope, str] = _LABELS | {
    "sandbox": "Allow this very command in this sandbox",
    "always": "Always allow this very command in this project",
}

# The shell of this host, and those that a rootfs may have
_SHELLS = (b"/bin/sh", b"/bin/bash", b"/usr/bin/bash")
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"'}
_LETTERS_AND_DIGITS = frozenset(("Lu", "Ll", "Lt", "Lo", "Nd"))
_FROM_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN"))
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_HEX_DIGITS = frozenset("0123456789abcdef")


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
    return KINDS[type(request)].text(request)


def statement_text(request: Request) -> str:
    """Return what a grant says, in the words in which it was asked."""
    return question_text(request).removesuffix("?")


def request_lines(request: Request) -> tuple[str, ...]:
    """Return what explains a request besides the line that asks."""
    return tuple(_lines(request, is_cut=False))


def denial_text(request: Request) -> str:
    """Return what a refused caller is told; nothing was run."""
    return f"Permission denied: {question_text(request)}"


def check_request(request: Request, *, home: bytes, own: tuple[bytes, ...]) -> None:
    """Refuse a request that can't be put to a person. `own` are unspill's state, configuration and data directories.

    Raises:
        UsageError: it is malformed.
        RootRefused: no person may make that directory a root.
        DeniedError: it is well-formed, but never granted.
    """
    _check_common(request)
    _demand(bool(request.argv) or not request.needs_command, "names no command")
    KINDS[type(request)].check(request, home, own)


def describe_held(change: Change) -> str:
    """Return what a path becomes, in words."""
    entry = change.entry
    if entry is None:
        return "nothing: it is deleted"
    if entry.kind != "file":
        return _LINK if entry.kind == "symlink" else f"a {entry.kind}"
    said = [f"a file of {entry.size} byte{'' if entry.size == 1 else 's'}"]
    said += ["executable"] if entry.mode & 0o111 else []
    said += ["writable by everybody"] if entry.mode & 0o002 else []
    said += ["with the same content"] if change.kind == "metadata" else []
    return ", ".join(said)


def head_of_held(change: Change, reader: Reader) -> tuple[bytes, str]:
    """Return the beginning of what a change leaves at a path, and the number of bytes that follow, if any do.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    entry = change.entry
    if entry is None or entry.kind != "file":
        return (change.target or b"")[:_MOST_TARGET_BYTES], ""
    head = read_up_to(reader.open_after(change), _MOST_CONTENT_BYTES)
    return head, str(entry.size - len(head)) if entry.size > len(head) else ""


def digest_of_held(change: Change, reader: Reader) -> str:
    """Return the digest of a change: what becomes of the path, its kind, mode and attributes, its content or target.

    A deletion has one too, so that a grant to delete is no grant to write; and a file that goes is no directory.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    entry = change.entry
    gone = change.base_kind or "" if change.kind in ("deleted", "replaced") else ""
    parts: tuple[str, ...] = ("deleted", gone)
    if entry is not None:
        parts = ("left", gone, entry.kind, f"{entry.mode & 0o7777:o}", digest_of(change, reader) or "")
        parts += tuple(f"{name}={value.hex()}" for name, value in reader.attributes_after(change))
    return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=32).hexdigest()


def show_word(word: bytes) -> str:
    """Return an argument or a path: bare if no shell would see more in it than a word, else in quotes with escapes."""
    text = word.decode("utf-8", "surrogateescape")
    if text and not find_misleading(text) and all(map(_is_bare, text)):
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


def is_text(argv: tuple[bytes, ...]) -> bool:
    """Tell whether a command was given as a text, which the usual shell runs."""
    return len(argv) == 3 and argv[0] in _SHELLS and argv[1] == b"-c"


def _is_bare(character: str) -> bool:
    return character in _BARE or (not character.isascii() and _is_plain(character))


def _is_plain(character: str) -> bool:
    """Tell whether a character can be shown as it is: it takes its place in the line, and looks like no other."""
    if character.isascii():
        return character.isprintable()
    return (
        unicodedata.category(character) in _LETTERS_AND_DIGITS
        and unicodedata.bidirectional(character) not in _FROM_RIGHT_TO_LEFT
        and unicodedata.normalize("NFKC", character) == character
    )


def _lines(request: Request, *, is_cut: bool) -> Iterator[str]:
    kind = KINDS[type(request)]
    yield f"project:   {shorten(show_word(request.project))}"
    if request.cwd and request.cwd != request.project:
        yield f"directory: {shorten(show_word(request.cwd))}"
    if request.argv and not kind.names_command:
        yield f"command:   {_command_text(request)}"
    if request.stdin == UNKNOWN_PROGRAM:
        yield "input:     whatever it is given while it runs"
    elif request.stdin == INHERITED:
        yield "input:     whatever is piped to `unspill run`; a remembered answer holds for any input"
    elif request.stdin:
        yield f"input:     {shorten(show_word(request.stdin_head), 200)}"
    yield from kind.lines(request)
    script = request.argv[2].split() if is_text(request.argv) else request.argv
    for word in (*script[:50], *kind.words(request)):
        if is_mixed_script(word):
            yield f"careful:   {shorten(show_word(word), 100)} mixes letters that look alike"
    if is_cut:
        yield f"careful:   this is not all of it: {len(b' '.join(request.argv))} bytes in {len(request.argv)} arguments"


def _subjects(request: Request) -> tuple[str, ...]:
    """Return what a question is about besides a command."""
    return KINDS[type(request)].subjects(request, tuple(map(show_word, (request.project, request.cwd))))


def _whole(request: Request) -> Iterator[str]:
    for subject in _subjects(request):
        yield from _wrap(subject)
    for number, word in enumerate(request.argv):
        yield f"argument {number}:"
        yield from _wrap(show_word(word))


def _wrap(shown: str, columns: int = 100) -> list[str]:
    """Return shown text in lines that a mark at their beginning tells from everything else."""
    return [f"| {shown[start : start + columns]}" for start in range(0, len(shown), columns)] or ["| "]


def _command_text(request: Request) -> str:
    return shorten(show_command(request.argv)) + _rest_of(request)


def _rest_of(request: Request) -> str:
    """Return what stands for the rest of a command of which only the beginning is kept."""
    return f" [and more; digest of all of it: {request.command}]" if request.command else ""


def _egress_text(request: Egress) -> str:
    whom = f" for: {_command_text(request)}" if request.argv else ""
    return f"Allow connections to {shorten(_show_hosts(request))}{whom}?"


def _egress_lines(request: Egress) -> Iterator[str]:
    if not request.argv:
        yield "for:       every command in this project"
    if request.registries:
        yield f"because:   your own {' and '.join(request.registries)} is configured for this"


def _show_hosts(request: Egress) -> str:
    return ", ".join(show_word(host.encode("utf-8", "surrogateescape")) for host in request.hosts)


def _network_lines(request: NetworkForCommand) -> Iterator[str]:
    if request.mode == "host":
        yield "careful:   it can reach everything that listens on this machine and its network (`network.mode`)"
    else:
        yield "reaches:   any public host, by HTTP, HTTPS or SOCKS through a proxy; no raw sockets, UDP or ping"


def _unsandboxed_lines(request: Unsandboxed) -> Iterator[str]:
    yield "careful:   it can read, change and send everything that you can"
    for pair in request.environ:
        yield f"variable:  {shorten(show_word(pair))}"


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
        yield f"{'leads to' if request.becomes == _LINK else 'has'}:".ljust(11) + shorten(show_word(request.head), 400)
    yield f"digest:    {request.digest}"
    yield f"token:     {shorten(show_word(request.path))}@{request.digest[:SHORTEST]}"


def _held_words(request: HeldPath) -> tuple[bytes, ...]:
    return (request.path, request.head) if request.becomes == _LINK else (request.path,)


def _show_script(script: bytes) -> str:
    text = script.decode("utf-8", "surrogateescape")
    # What starts with a quote, or does not end where it seems to, could be taken for the quoted form of something else
    if text and text.strip() == text and text[0] != '"' and not find_misleading(text) and all(map(_is_plain, text)):
        return text
    return _quoted(text)


def _quoted(text: str) -> str:
    misleading = find_misleading(text)
    shown = (escaped(char) if at in misleading else _in_quotes(char) for at, char in enumerate(text))
    return '"' + "".join(shown) + '"'


def _in_quotes(character: str) -> str:
    return _ESCAPES.get(character) or (character if _is_plain(character) else escaped(character))


def _check_common(request: Request) -> None:
    _demand(is_normalised(request.project), "has a project that is not absolute and normalised")
    _demand(not request.cwd or is_normalised(request.cwd), "has a directory that is not absolute and normalised")
    _demand(not any(b"\0" in word for word in request.argv), "has a command with NUL in it")
    _demand(not request.argv or bool(request.argv[0]), "has a command without a name")
    _demand(not request.command, "has only the beginning of its command")
    _demand(
        all(name and _NAME_CHARACTERS.issuperset(name) for name in request.names),
        "has a name that no variable can have",
    )
    _demand(list(request.names) == sorted(set(request.names)), "has names that are not sorted")
    _demand(request.script in ("", UNKNOWN_PROGRAM) or _is_digest(request.script), "has an invalid digest")
    _demand(not request.variables or _is_digest(request.variables), "has an invalid digest of variables")
    is_named = request.stdin in ("", UNKNOWN_PROGRAM, INHERITED)
    _demand(is_named or _is_digest(request.stdin), "has an invalid digest of input")
    for path in (request.project, request.cwd, getattr(request, "path", b"")):
        _demand(len(path) <= LONGEST_PATH, "has a path that is longer than any can be")
    if _size(request.names) > _BYTES_OF_VARIABLES:
        raise DeniedError(
            f"Permission denied: the command gets {len(request.names)} variables, too many to ask about.",
            remedy="Set fewer variables for it.",
        )
    if _size(request.argv) > COMMAND_BYTES:
        raise DeniedError(
            f"Permission denied: the command has more than {COMMAND_BYTES} bytes, too many to ask about.",
            remedy="Put it into a file and run that.",
        )


def _check_network(request: NetworkForCommand, _home: bytes, _own: tuple[bytes, ...]) -> None:
    _demand(request.mode in MODES, "names no kind of network")


def _check_egress(request: Egress, _home: bytes, _own: tuple[bytes, ...]) -> None:
    hosts = request.hosts
    _demand(0 < len(hosts) <= _MOST_HOSTS, f"names {len(hosts)} hosts, not 1 to {_MOST_HOSTS}")
    _demand(set(request.registries) <= set(REGISTRIES), "names no package manager")
    for host in hosts:
        _check_host(host, is_private=bool(request.registries))


def _check_writable(request: WritableRoot, home: bytes, own: tuple[bytes, ...]) -> None:
    check_root(request.path, home=home, own=own)


def _check_visible(request: ReadablePath | MaskedSecret, home: bytes, own: tuple[bytes, ...]) -> None:
    _demand(is_normalised(request.path), "has a path that is not absolute and normalised")
    _refuse_private(request.path, home, own)


def _check_held(request: HeldPath, _home: bytes, _own: tuple[bytes, ...]) -> None:
    _demand((request.why + request.becomes).isprintable(), "has a reason that can't be shown")
    _demand(len(request.why) + len(request.becomes) <= _MOST_CHARACTERS_OF_WHY, "has a reason that is too long")
    _demand(len(request.head) <= _MOST_TARGET_BYTES, "shows too much content")
    _demand(not request.rest or (request.rest.isdecimal() and len(request.rest) < 20), "has no number of bytes")
    _demand(is_normalised(request.root), "has a root that is not absolute and normalised")
    _demand(_is_relative(request.path), "has a path that is not relative and normalised")
    _demand(_is_digest(request.digest), "has no digest of the content")


def _check_unsandboxed(request: Unsandboxed, _home: bytes, _own: tuple[bytes, ...]) -> None:
    """Refuse variables without a sandbox that nobody could judge, or that make any program run something else."""
    environ = request.environ
    names = [pair.partition(b"=")[0].decode("utf-8", "surrogateescape") for pair in environ]
    _demand(all(name and _NAME_CHARACTERS.issuperset(name) for name in names), "sets a name that no variable can have")
    _demand(all(b"=" in pair and b"\0" not in pair for pair in environ), "sets a variable without a value")
    _demand(names == sorted(set(names)), "sets variables that are not sorted")
    for name in names:
        if is_refused_variable(name):
            raise UsageError(
                f"The variable {name} is never set for a command without a sandbox.",
                remedy="If the command needs it, write it into the command itself, where whoever is asked sees it.",
            )
    if len(environ) > _MOST_VARIABLES or _size(environ) > _BYTES_OF_VARIABLES:
        raise DeniedError(
            f"Permission denied: {len(environ)} variables with {_size(environ)} bytes are set, too many to ask about.",
            remedy="Write the needed ones into the command itself.",
        )


def _check_host(host: str, *, is_private: bool) -> None:
    """Demand that a host is written as the proxy and the configuration write it, and in the one form of it."""
    no_host = f"names something that is no host: {show_word(host.encode('utf-8', 'replace'))}"
    try:
        is_rule = parse_allowed(host, is_local=is_private).text == host
    except PolicyError:
        is_rule = False
    _demand(is_rule, no_host)
    try:
        (parse_private if is_private else parse_reachable)(host)
    except PolicyError as error:
        # Of an address that is never reached nobody need be asked
        raise UsageError(error.message, remedy=error.remedy) from None


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


def _size(words: tuple[bytes, ...] | tuple[str, ...]) -> int:
    """Return the length of words with something between them: empty ones take room too."""
    return sum(len(word) + 1 for word in words) - 1


def _is_relative(path: bytes) -> bool:
    return bool(path) and is_normalised(b"/" + path)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and _HEX_DIGITS.issuperset(text)


def _demand(is_met: bool, otherwise: str) -> None:
    if not is_met:
        raise UsageError(f"The request {otherwise}.", remedy="This is the caller's mistake: nobody was asked.")


def _check_nothing(_request: Request, _home: bytes, _own: tuple[bytes, ...]) -> None:
    """Where all that counts is checked of every request."""


class RequestKind(Record):
    """What one kind of request adds to a question, and to the check of what all have in common.

    `text` is the line that asks, `lines` explain, `words` are looked at for letters that look alike. `subjects` are
    shown whole where the question had to cut something; they are given the project and the directory.
    """

    text: Callable[..., str]
    names_command: bool = False
    lines: Callable[..., Iterable[str]] = lambda _request: ()
    words: Callable[..., tuple[bytes, ...]] = lambda _request: ()
    subjects: Callable[..., tuple[str, ...]] = lambda _request, places: places
    check: Callable[..., None] = _check_nothing


def _kind_with_path(text: str, check: Callable[..., None]) -> RequestKind:
    """Return the row of a kind that is about one path, which goes into the gap of the text."""
    return RequestKind(
        text=lambda request: text.format(shorten(show_word(request.path))),
        words=lambda request: (request.path,),
        subjects=lambda request, places: (show_word(request.path), *places),
        check=check,
    )


KINDS: dict[type[Request], RequestKind] = {
    NetworkForCommand: RequestKind(
        text=lambda request: f"Run command with network access: {_command_text(request)}?",
        names_command=True,
        lines=_network_lines,
        check=_check_network,
    ),
    Egress: RequestKind(
        text=_egress_text,
        names_command=True,
        lines=_egress_lines,
        subjects=lambda request, places: (_show_hosts(request), *places),
        check=_check_egress,
    ),
    WritableRoot: _kind_with_path("Let the sandbox change files in {}?", _check_writable),
    ReadablePath: _kind_with_path("Let the sandbox read {}?", _check_visible),
    MaskedSecret: _kind_with_path("Show the secret {} to the sandbox?", _check_visible),
    HeldPath: _kind_with_path("Apply the held change of {}?", _check_held).replace(
        lines=_held_lines,
        words=_held_words,
        subjects=lambda request, places: (show_word(request.root), show_word(request.path), *places),
    ),
    Unsandboxed: RequestKind(
        text=lambda request: f"Run command WITHOUT a sandbox: {_command_text(request)}?",
        names_command=True,
        lines=_unsandboxed_lines,
        words=lambda request: request.environ,
        subjects=lambda request, places: (*places, *map(show_word, request.environ)),
        check=_check_unsandboxed,
    ),
    AsRoot: RequestKind(text=lambda _request: "Open a sandbox as root, where it protects less?"),
}
