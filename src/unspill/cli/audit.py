# SPDX-License-Identifier: Apache-2.0
"""`unspill audit`: list what was asked, answered, run and applied.

Each line is safe to print whatever is in it: somebody else may have written the file.
"""

from __future__ import annotations

from itertools import islice

from unspill.changes.render import safe_text
from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.cli.telling import when_text
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.permissions.audit import Event

_LARGEST = 1 << 63
_MOST = 160
_MOST_PATHS = 5

COMMAND = Command(
    name="audit",
    summary="List what was asked, answered, run and applied, the youngest first.",
    options=(Option(name="--limit", metavar="N", help="how many (default 20)"), *EVERYWHERE),
    removed=(("--verify", "Lines have no hashes now. To prove later what they said, copy them to another machine."),),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.granting import Office

    limit = arguments.value("--limit") or "20"
    if not limit.isdecimal():
        raise UsageError(f"--limit is not a number: {limit!r}", remedy="Give a whole number.")
    with Office() as office:
        events = list(islice(office.events(), int(limit)))
    if arguments.flag("--json"):
        print_json({"events": events})
    elif not events:
        print("Nothing is recorded yet.")
    else:
        for event in events:
            print(f"{when_text(_time(event))}  {event_text(event)}")
    return 0


def _time(event: Event) -> int:
    at_ns = event.get("at_ns")
    return at_ns if isinstance(at_ns, int) and 0 <= at_ns < _LARGEST else 0


def event_text(event: Event) -> str:
    """Return what happened, in one line."""
    match event.get("kind"):
        case "request":
            text = f"asked {event.get('id')}: {_request(event)}"
        case "answer":
            reason = f", {event.get('reason')}" if event.get("reason") else ""
            scope = f" ({event.get('scope')})" if event.get("scope") else ""
            text = f"{event.get('answer')}{scope} {event.get('id')} by {event.get('by')}{reason}"
        case "decision":
            text = f"{event.get('answer')} by {event.get('rule')}: {_request(event)}"
        case "revoke":
            text = f"revoked {event.get('grant')}: {_request(event)}"
        case "run":
            sealed = "" if event.get("sandboxed", True) else " WITHOUT a sandbox"
            text = f"run {event.get('number')}{sealed}, {event.get('ending')}: {_words(event.get('command'))}"
            text += f"; changed {_paths(event)}" if event.get("paths") else ""
        case "operation":
            text = f"{event.get('what')} op {event.get('number')} by {event.get('asked_by')}, {event.get('ending')}"
            text += f": {_paths(event)}" if event.get("paths") else ""
        case "unreadable":
            text = f"unreadable line, {event.get('bytes')} bytes"
        case kind:
            text = str(kind)
    shown = safe_text(text)
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]}..."


def _request(event: Event) -> str:
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
