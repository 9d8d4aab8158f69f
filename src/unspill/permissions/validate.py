# SPDX-License-Identifier: Apache-2.0
"""Refuse what no person should be asked: requests that are malformed, hopeless, or too long to be looked at.

Names only; whether a directory exists is known to whoever sees the sandbox's own view of it.
"""

from __future__ import annotations

from unspill.errors import DeniedError, PolicyError, RootRefused, UsageError
from unspill.model.permission import (
    INHERITED,
    UNKNOWN_PROGRAM,
    Egress,
    HeldPath,
    MaskedSecret,
    NetworkForCommand,
    ReadablePath,
    Unsandboxed,
    WritableRoot,
)
from unspill.permissions.escaping import show_word
from unspill.permissions.held import HEAD_BYTES
from unspill.policy.config import MODES
from unspill.policy.defaults import check_root, is_refused_variable
from unspill.policy.hosts import parse_allowed, parse_reachable
from unspill.policy.paths import contains, is_normalised
from unspill.policy.secrets import find_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.permission import Request

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
