# SPDX-License-Identifier: Apache-2.0
"""One line of the audit in words, safe to print whatever is in it: the file may have been written by somebody else."""

from __future__ import annotations

from unspill.changes.render import safe_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 160


def event_text(event: dict[str, Any]) -> str:
    """Return what happened."""
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
        case "operation":
            text = f"{event.get('what')} op {event.get('number')} by {event.get('asked_by')}, {event.get('ending')}"
        case kind:
            text = str(kind)
    shown = safe_text(text)
    return shown if len(shown) <= _MOST else f"{shown[:_MOST]}..."


def _request(event: dict[str, Any]) -> str:
    request = event.get("request")
    if not isinstance(request, dict):
        return "?"
    about = _words(request.get("path") or request.get("hosts") or "")
    command = _words(request.get("argv") or "")
    return " ".join(filter(None, (str(request.get("kind")), about, f"for {command}" if command else "")))


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
