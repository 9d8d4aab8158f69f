# SPDX-License-Identifier: Apache-2.0
"""`unspill learn`: run a command once, ask about each host, and print the settings that would have been enough.

Its changes are held: it may have failed half-way for want of what it is about to be given. What is printed is for the
person's own configuration, and for them to read first: hosts and paths were chosen by the command.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from typing import TYPE_CHECKING

from unspill.cli.main import NO_PROJECT, Option, open_sandbox, verb
from unspill.cli.output import print_json
from unspill.cli.run import (
    ASK,
    ENV,
    QUIET,
    WORKING_DIR,
    RunApprover,
    TerminalOutput,
    given_command,
    run_options,
    tell_run,
)
from unspill.errors import PolicyError
from unspill.host.libc import RaisingSignals
from unspill.model.permission import Egress
from unspill.permissions.approvers import Callback
from unspill.policy.hosts import WEB_PORTS, bracketed, covered, parse_private
from unspill.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.main import Arguments
    from unspill.model.policy import Policy
    from unspill.permissions.approvers import Approver
    from unspill.sandbox.result import RunResult

_HEADER = "# For your own configuration, ~/.config/unspill/config.toml. Read it first: the command chose this."
# In the remedy of a hint: the option that would have helped
_OPTION = re.compile(r"`(--(?:readable|root) [^`]+)`")


class Learned(Record):
    """What a run needed beyond the policy, and what of it was refused."""

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@verb(
    "Run a command once, ask about each host, hold its changes, and print the settings that it needs.",
    Option(name="--shell", short="-c", metavar="TEXT", help="run TEXT with /bin/sh -c instead"),
    Option(name="--yes", help="allow every public host without asking"),
    WORKING_DIR,
    NO_PROJECT,
    Option(name="--timeout", metavar="SECONDS", help="stop it after this time"),
    ENV,
    ASK,
    QUIET,
    positional="-- COMMAND [ARGUMENT ...]",
    takes_command=True,
    examples=(
        "unspill learn --yes -- python3 main.py",
        "unspill learn -c 'sort notes.txt > sorted.txt'",
    ),
)
def learn(arguments: Arguments) -> int:
    """Run a command and print what it needed; return its exit code."""
    command = given_command(arguments)
    approver: Approver = RunApprover(arguments.value("--ask"))
    if arguments.flag("--yes"):
        approver = Callback(lambda question: isinstance(question.request, Egress), name="learn --yes")
    sandbox = open_sandbox(arguments, may_fork=True, approver=approver, widen=_with_questions)
    options = run_options(arguments) | ({} if arguments.flag("--no-project") else {"after": "hold"})
    streams, known = TerminalOutput(), len(sandbox.interrupted_runs)
    is_json = arguments.flag("--json")
    try:
        with RaisingSignals():
            result = sandbox.run(command, on_event=streams.keep_back if is_json else streams.pass_on, **options)
    finally:
        streams.settle()
    learned = find_needs(result, sandbox.policy)
    if is_json:
        print_json(learned.as_dict() | {"exit_code": result.exit_code, "settings": settings_text(learned)})
        return result.exit_code
    code = tell_run(arguments, sandbox, result, streams, known)
    text = settings_text(learned)
    if text:
        print(f"{_HEADER}\n{text}")
    else:
        print("unspill: Your configuration is enough for this command.", file=sys.stderr)
    for host in learned.refused:
        print(f"unspill: {host} was refused, so it is not listed.", file=sys.stderr)
    sys.stdout.flush()
    return code


def find_needs(result: RunResult, policy: Policy) -> Learned:
    """Return what a run needed beyond its policy, as far as the proxy and its output show."""
    network = policy.network
    reached = dict.fromkeys(_rule(made.host, made.port) for made in result.connections if made.address)
    own = (*network.hosts, *network.private_hosts)
    hosts = tuple(rule for rule in reached if not covered([rule], own))
    private = [no for no in result.denials if "`private_hosts`" in no.remedy]
    found = {option: tuple(_paths(result, option)) for option in ("--readable", "--root")}
    return Learned(
        hosts=(*network.hosts, *hosts) if hosts else (),
        private_hosts=tuple(dict.fromkeys((*network.private_hosts, *_private_rules(result)))) if private else (),
        readable=(*_texts(policy.readable), *found["--readable"]) if found["--readable"] else (),
        roots=(*_texts(policy.roots), *found["--root"]) if found["--root"] else (),
        refused=tuple(dict.fromkeys(no.place for no in result.denials if no not in private)),
    )


def settings_text(learned: Learned) -> str:
    """Return settings as TOML, nothing where there are none."""
    lines = [f"{key} = {json.dumps(getattr(learned, key))}" for key in ("readable", "roots") if getattr(learned, key)]
    of_network = [key for key in ("hosts", "private_hosts") if getattr(learned, key)]
    if of_network:
        lines += [""] * bool(lines) + ["[network]"]
        lines += [f"{key} = {json.dumps(getattr(learned, key))}" for key in of_network]
    return "\n".join(lines)


def _with_questions(policy: Policy) -> Policy:
    return policy.replace(network=policy.network.replace(ask=True))


def _rule(host: str, port: int) -> str:
    return bracketed(host) if port in WEB_PORTS else f"{bracketed(host)}:{port}"


def _private_rules(result: RunResult) -> Iterator[str]:
    """Yield the hosts of a private network that were refused; a name that is none is left out."""
    for denial in result.denials:
        if "`private_hosts`" in denial.remedy:
            try:
                # What was not understood is there as it was asked for, with its port
                asked = denial.host.removeprefix("http://").partition("/")[0]
                yield parse_private(_rule(denial.host, denial.port) if denial.port else asked).text
            except PolicyError:
                continue


def _paths(result: RunResult, option: str) -> Iterator[str]:
    """Yield the paths that hints would show or make writable by an option; reading is less, where both would do."""
    for hint in result.hints:
        words = [shlex.split(text) for text in _OPTION.findall(hint.remedy) if text.count("'") % 2 == 0]
        wanted = [pair for pair in words if len(pair) == 2 and pair[1].startswith("/")]
        if wanted and min(name for name, _path in wanted) == option:
            yield from (path for name, path in wanted if name == option)


def _texts(paths: tuple[bytes, ...]) -> list[str]:
    return [path.decode("utf-8", "surrogateescape") for path in paths]
