# SPDX-License-Identifier: Apache-2.0
"""Questions and their answers: `unspill requests`, `approve`, `deny` and `grants`; `audit` lists what came of them.

Also how a run asks while it waits: on the terminal, in the queue that `approve` and `deny` answer, or nobody.
"""

from __future__ import annotations

import sys
import time
from itertools import islice

from unspill.changes.render import safe_text
from unspill.cli.main import Option, named_project, verb
from unspill.cli.output import can_be_asked, count_text, fit, is_agreed, print_json, when_text
from unspill.errors import UsageError
from unspill.model.policy import SCOPES
from unspill.permissions.approvers import DenyAll, Queue, TerminalApprover
from unspill.permissions.question import request_lines, statement_text
from unspill.sandbox.permits import Office
from unspill.sandbox.project import find_own_locations, load_policy
from unspill.store.db import Store
from unspill.store.permissions import plain_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.model.permission import Answer, Grant, Question
    from unspill.model.policy import Scope
    from unspill.permissions.audit import Event

_LARGEST_NS = 1 << 63
_LONGEST_EVENT = 160
_MOST_PATHS = 5


@verb(
    "List the requests that wait for your answer, in all projects or in the one of --project.",
    examples=(
        "unspill requests",
        "unspill requests --json",
    ),
)
def requests(arguments: Arguments) -> int:
    """List what waits for an answer."""
    with Office() as office:
        waiting = office.waiting(named_project(arguments))
    if arguments.flag("--json"):
        print_json({"requests": [question_form(question) for question in waiting]})
    elif waiting:
        print("\n".join(line for question in waiting for line in _question_lines(question)))
    else:
        print("No request waits for an answer.")
    return 0


@verb(
    "Allow a request. `unspill requests` lists their ids.",
    Option(
        name="--scope",
        metavar="SCOPE",
        values="once|run|sandbox|project|always",
        help="for how long: once (the default), run, sandbox, always; project: hosts, for any command",
    ),
    Option(name="--dangerous", help="required for requests that leave or weaken the sandbox"),
    Option(name="--yes", help="answer without being shown it and asked again"),
    positional="ID",
    most=1,
    examples=(
        "unspill approve ID",
        "unspill approve ID --scope always",
    ),
)
def approve(arguments: Arguments) -> int:
    """Say yes to what waits."""
    scope = _scope(arguments)
    with Office() as office:
        question = office.find(_request_id(arguments))
        if question.request.is_dangerous and not arguments.flag("--dangerous"):
            raise UsageError(
                f"this request is dangerous: {question.text}",
                remedy=f"unspill approve {question.id} --dangerous, if you mean it.",
            )
        if not arguments.flag("--yes") and not _is_confirmed(question):
            print("Nothing was allowed. The request still waits.")
            return 1
        office.answer(question, scope)
    if arguments.flag("--json"):
        print_json({"request": question.id, "answer": "allowed", "scope": scope})
    else:
        print(f"Allowed ({scope}): {question.text}")
    return 0


@verb(
    "Deny a request. `unspill requests` lists their ids.",
    Option(name="--reason", metavar="TEXT", help="the reason, shown to whoever asked"),
    positional="ID",
    most=1,
    examples=(
        "unspill deny ID",
        "unspill deny ID --reason 'not today'",
    ),
)
def deny(arguments: Arguments) -> int:
    """Say no to what waits."""
    with Office() as office:
        question = office.find(_request_id(arguments))
        office.answer(question, None, arguments.value("--reason") or "")
    if arguments.flag("--json"):
        print_json({"request": question.id, "answer": "denied"})
    else:
        print(f"Denied: {question.text}")
    return 0


@verb(
    "List or revoke what you allowed for longer than once, in all projects or in the one of --project.",
    Option(name="--all", help="with revoke: everything, or everything in that project"),
    positional="[revoke ID]",
    most=2,
    examples=(
        "unspill grants",
        "unspill grants revoke --all",
    ),
)
def grants(arguments: Arguments) -> int:
    """List grants, or revoke some."""
    with Office() as office:
        if not arguments.words:
            return _list_grants(arguments, office)
        if arguments.words[0] != "revoke":
            raise UsageError(f"unknown word {arguments.words[0]!r}", remedy="unspill grants revoke ID")
        revoked = _revoke(arguments, office)
    if arguments.flag("--json"):
        print_json({"revoked": [grant.id for grant in revoked]})
    else:
        print(f"Revoked {count_text(len(revoked), 'grant')}.")
    return 0


@verb(
    "List what was asked, answered, run and applied, newest first.",
    Option(name="--limit", metavar="N", help="how many to list (default 20)"),
    removed=(("--verify", "Lines have no hashes any more. As a proof, copy them to another machine."),),
    examples=(
        "unspill audit",
        "unspill audit --limit 5",
    ),
)
def audit(arguments: Arguments) -> int:
    """List the events of the audit."""
    limit = arguments.count("--limit", 20)
    with Office() as office:
        events = list(islice(office.events(), limit))
    if arguments.flag("--json"):
        print_json({"events": events})
    elif not events:
        print("Nothing is recorded yet.")
    else:
        for event in events:
            print(fit(f"{when_text(_time(event))}  {event_text(event)}"))
    return 0


def ask_person(whom: str | None, question: Question) -> Answer:
    """Ask whom `--ask` names, or else whom the person's configuration names, and wait for the answer."""
    locations = find_own_locations()
    whom = whom or load_policy(locations, question.request.project, None).permissions.approver
    if whom == "deny":
        return DenyAll().ask(question)
    if whom == "queue":
        return _wait_in_queue(locations.state, question)
    return TerminalApprover(lock=locations.state + b"/locks/terminal").ask(question)


def event_text(event: Event) -> str:
    """Return what happened, in one line that is safe to print: somebody else may have written the file."""
    match event.get("kind"):
        case "request":
            text = f"asked {event.get('id')}: {_requested(event)}"
        case "answer":
            reason = f", {event.get('reason')}" if event.get("reason") else ""
            scope = f" ({event.get('scope')})" if event.get("scope") else ""
            text = f"{event.get('answer')}{scope} {event.get('id')} by {event.get('by')}{reason}"
        case "decision":
            text = f"{event.get('answer')} by {event.get('rule')}: {_requested(event)}"
        case "revoke":
            text = f"revoked {event.get('grant')}: {_requested(event)}"
        case "run":
            sealed = "" if event.get("sandboxed", True) else " WITHOUT a sandbox"
            text = f"run {event.get('number')}{sealed}, {event.get('ending')}: {_words(event.get('command'))}"
            text += f"; changed {_paths(event)}" if event.get("paths") else ""
        case "port":
            text = f"{event.get('what')} port {event.get('inside')} of sandbox {event.get('sandbox')}"
            text += f" at 127.0.0.1:{event.get('host')}" if event.get("what") == "published" else ""
        case "operation":
            text = f"{event.get('what')} op {event.get('number')} by {event.get('asked_by')}, {event.get('ending')}"
            text += f": {_paths(event)}" if event.get("paths") else ""
        case "unreadable":
            text = f"unreadable line of {event.get('bytes')} bytes"
        case kind:
            text = str(kind)
    shown = safe_text(text)
    return shown if len(shown) <= _LONGEST_EVENT else f"{shown[:_LONGEST_EVENT]}..."


def question_form(question: Question) -> dict[str, Any]:
    """Return a question that waits."""
    return {
        "id": question.id,
        "digest": question.digest,
        "text": question.text,
        "lines": list(question.lines),
        "scopes": list(question.scopes),
        "dangerous": question.request.is_dangerous,
        "wait_s": question.wait_s,
        "request": plain_request(question.request),
    }


def _wait_in_queue(state: bytes, question: Question) -> Answer:
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + question.wait_s))
    print(f"unspill: Waiting until {until} for: unspill approve {question.id}", file=sys.stderr, flush=True)
    with Store.open(state) as store:
        return Queue(store.requests).ask(question)


def _request_id(arguments: Arguments) -> str:
    """Return the id that was given.

    Raises:
        UsageError: none was.
    """
    if not arguments.words:
        raise UsageError("no request given", remedy="Give an id that `unspill requests` lists.")
    return arguments.words[0]


def _scope(arguments: Arguments) -> Scope:
    given = arguments.value("--scope") or "once"
    for scope in SCOPES:
        if scope == given:
            return scope
    raise UsageError(f"--scope is not one of {', '.join(SCOPES)}: {given!r}")


def _is_confirmed(question: Question) -> bool:
    """Show on a terminal what is about to be allowed: who told the person this id may have told them another story."""
    if not can_be_asked():
        return True
    for line in (question.text, *question.lines, *question.whole):
        print(f"  {line}")
    return is_agreed("Allow it?")


def _question_lines(question: Question) -> Iterator[str]:
    yield f"{question.id}  {question.text}"
    for line in (*question.lines, *question.whole):
        yield f"    {line}"
    yield f"    waits:     {round(question.wait_s)} s more"
    dangerous = " --dangerous" if question.request.is_dangerous else ""
    others = [scope for scope in question.scopes if scope != "once"]
    longer = f" [--scope {'|'.join(others)}]" if others else ""
    yield f"    unspill approve {question.id}{dangerous}{longer}, or unspill deny {question.id}"


def _list_grants(arguments: Arguments, office: Office) -> int:
    if arguments.flag("--all"):
        raise UsageError("--all is for `grants revoke`")
    grants = office.grants(named_project(arguments))
    if arguments.flag("--json"):
        print_json({"grants": [_grant_form(grant) for grant in grants]})
    elif grants:
        print("\n".join(line for grant in grants for line in _grant_lines(grant)))
    else:
        print("Nothing is granted.")
    return 0


def _revoke(arguments: Arguments, office: Office) -> tuple[Grant, ...]:
    is_all = arguments.flag("--all")
    if is_all is (len(arguments.words) == 2):
        raise UsageError("no grant given", remedy="Give an id that `unspill grants` lists, or --all.")
    return office.revoke_all(named_project(arguments)) if is_all else (office.revoke(arguments.words[1]),)


def _grant_lines(grant: Grant) -> Iterator[str]:
    yield f"{grant.id}  {statement_text(grant.request)}"
    for line in request_lines(grant.request):
        yield f"    {line}"
    is_over = grant.expires_ns <= time.time_ns()
    yield f"    scope:     {grant.answer}, {'expired' if is_over else 'until'} {when_text(grant.expires_ns)}"
    used = f"{count_text(grant.uses, 'time')}, last {when_text(grant.last_used_ns)}" if grant.uses else "never"
    yield f"    granted:   {when_text(grant.granted_ns)} by {safe_text(grant.granted_by)}; used {used}"


def _time(event: Event) -> int:
    at_ns = event.get("at_ns")
    return at_ns if isinstance(at_ns, int) and 0 <= at_ns < _LARGEST_NS else 0


def _requested(event: Event) -> str:
    request = event.get("request")
    if not isinstance(request, dict):
        return "?"
    about = _words(request.get("path") or request.get("hosts") or "")
    command = _words(request.get("argv") or "")
    return " ".join(filter(None, (str(request.get("kind")), about, f"for {command}" if command else "")))


def _paths(event: Event) -> str:
    paths, more = event["paths"], event.get("more_paths")
    if not isinstance(paths, list):
        return str(paths)
    rest = len(paths[_MOST_PATHS:]) + (more if isinstance(more, int) else 0)
    return ", ".join(map(str, paths[:_MOST_PATHS])) + (f" and {rest} more" if rest else "")


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _grant_form(grant: Grant) -> dict[str, Any]:
    """Return a grant."""
    return {
        "id": grant.id,
        "scope": grant.answer,
        "granted_ns": grant.granted_ns,
        "expires_ns": grant.expires_ns,
        "granted_by": grant.granted_by,
        "last_used_ns": grant.last_used_ns,
        "uses": grant.uses,
        "request": plain_request(grant.request),
    }
