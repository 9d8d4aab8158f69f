# SPDX-License-Identifier: Apache-2.0
"""Lines of the audit in words: what a request has no word for leaves no gap, and one is not several."""

from typing import Any

import pytest

from unspill.cli.audit import _verify
from unspill.cli.audit_text import event_text
from unspill.permissions.audit_verify import Verified


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


@pytest.mark.parametrize(("lines", "files", "said"), [(1, 1, "1 line in 1 file,"), (2, 3, "2 lines in 3 files,")])
def test_one_line_and_one_file_are_not_several(
    lines: int, files: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _verify(Verified(lines=lines, files=files, hash="x"), as_json=False) == 0
    assert said in capsys.readouterr().out
