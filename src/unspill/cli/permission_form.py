# SPDX-License-Identifier: Apache-2.0
"""Requests, questions and grants as JSON values."""

from __future__ import annotations

from unspill.store.permissions import plain_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.permission import Grant, Question


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


def grant_form(grant: Grant) -> dict[str, Any]:
    """Return a grant."""
    return {
        "id": grant.id,
        "scope": grant.scope,
        "granted_ns": grant.granted_ns,
        "expires_ns": grant.expires_ns,
        "granted_by": grant.granted_by,
        "last_used_ns": grant.last_used_ns,
        "uses": grant.uses,
        "request": plain_request(grant.request),
    }
