# SPDX-License-Identifier: Apache-2.0
"""Turn a request into a question: one line that asks, a few that explain, the answers that are offered.

All that comes from a command goes through `escaping`; nothing else of it ever reaches a screen.
"""

from __future__ import annotations

import os

from unspill.changes.quote import is_mixed_script
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
from unspill.permissions.escaping import is_text, shorten, show_command, show_word, wrap
from unspill.permissions.held import LINK
from unspill.store.request_form import digest_of_question
from unspill.store.shown import SHORTEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.permission import Request
    from unspill.model.rules import Scope

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
