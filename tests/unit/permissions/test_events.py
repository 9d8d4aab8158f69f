# SPDX-License-Identifier: Apache-2.0
"""What of a request the audit keeps: enough to tell, bounded, and no secrets."""

import json

from tests.unit.permissions.given import PROJECT
from unspill.model.permission import Unsandboxed
from unspill.permissions.audit import MOST_COMMAND_BYTES, decision_event, request_event
from unspill.permissions.question import make_question


def test_of_variables_only_the_names_are_kept() -> None:
    request = Unsandboxed(project=PROJECT, argv=(b"make",), environ=(b"MODE=fast", b"TOKEN=canary=1"))
    question = make_question(request, request.scopes)
    for event in (request_event(question), decision_event(request, "denied", "a rule")):
        assert event["request"]["environ"] == ["MODE", "TOKEN"]
        assert "canary" not in json.dumps(event)


def test_a_long_command_is_cut() -> None:
    event = decision_event(
        Unsandboxed(project=PROJECT, argv=(b"make", b"x" * 10 * MOST_COMMAND_BYTES)), "denied", "a rule"
    )
    assert len(json.dumps(event)) < 2 * MOST_COMMAND_BYTES
    assert "[cut: 163844 bytes in all]" in event["request"]["argv"]
