# SPDX-License-Identifier: Apache-2.0
"""Lines of the audit in words: what a request has no word for leaves no gap, and paths are named up to a bound."""

from typing import Any

import pytest

from unspill.cli.permissions import event_text

OPERATION = {"kind": "operation", "what": "apply", "number": 1, "asked_by": "run", "ending": "done"}
RUN = {"kind": "run", "number": 2, "ending": "Exited 0", "command": ["touch", "a"]}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"kind": "network", "argv": ["git", "fetch"]}, "network for git fetch"),
        ({"kind": "egress", "hosts": ["a.org", "b.org"], "argv": ["true"]}, "egress a.org b.org for true"),
        ({"kind": "readable-path", "path": "/srv/x", "argv": []}, "readable-path /srv/x"),
        ({"kind": "as-root", "argv": []}, "as-root"),
        ({"kind": "as-root"}, "as-root"),
        ("forged", "?"),
    ],
)
def test_a_request_is_told_without_gaps(request_: Any, said: str) -> None:
    assert event_text({"kind": "request", "id": "1", "request": request_}) == f"asked 1: {said}"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (OPERATION, "apply op 1 by run, done"),
        (OPERATION | {"paths": []}, "apply op 1 by run, done"),
        (OPERATION | {"paths": ["a", "b c"]}, "apply op 1 by run, done: a, b c"),
        (OPERATION | {"paths": list("abcdefg")}, "apply op 1 by run, done: a, b, c, d, e and 2 more"),
        (OPERATION | {"paths": ["a"], "more_paths": 3}, "apply op 1 by run, done: a and 3 more"),
        (OPERATION | {"paths": "forged", "more_paths": "x"}, "apply op 1 by run, done: forged"),
        (OPERATION | {"paths": ["a"], "more_paths": "forged"}, "apply op 1 by run, done: a"),
        (RUN, "run 2, Exited 0: touch a"),
        (RUN | {"paths": ["a"]}, "run 2, Exited 0: touch a; changed a"),
        ({"kind": "unreadable", "bytes": 7}, "unreadable line of 7 bytes"),
        ({"kind": "recovered", "n": 7, "prev": "00"}, "recovered"),
    ],
)
def test_a_line_names_what_changed(event: dict[str, Any], said: str) -> None:
    assert event_text(event) == said
