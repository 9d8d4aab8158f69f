# SPDX-License-Identifier: Apache-2.0
"""Runs and outcomes as JSON values: every byte can be had back."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.cli.json_form import outcome_form, output_form, run_form
from unspill.model.layer import RunId
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Output, Run, Signalled, TimedOut


@pytest.mark.parametrize(
    ("outcome", "form"),
    [
        (Exited(code=3), {"kind": "Exited", "exit_code": 3, "code": 3}),
        (Signalled(signal=9), {"kind": "Signalled", "exit_code": 137, "signal": 9}),
        (TimedOut(after_s=1.5), {"kind": "TimedOut", "exit_code": 124, "after_s": 1.5}),
        (Cancelled(), {"kind": "Cancelled", "exit_code": 130}),
        (
            LimitReached(limit="memory", bound=5),
            {"kind": "LimitReached", "exit_code": 137, "limit": "memory", "bound": 5},
        ),
        (
            NeverStarted(reason="r", remedy="m", exit_code=127),
            {"kind": "NeverStarted", "exit_code": 127, "reason": "r", "remedy": "m"},
        ),
        (None, None),
    ],
)
def test_each_outcome_has_its_kind_and_code(outcome: Any, form: Any) -> None:
    assert outcome_form(outcome) == form


@given(head=st.binary(max_size=50), tail=st.binary(max_size=50))
def test_no_byte_of_an_output_is_lost(head: bytes, tail: bytes) -> None:
    form = json.loads(json.dumps(output_form(Output(head=head, tail=tail, left_out=3))))
    exact = base64.b64decode(form["bytes_b64"]) if "bytes_b64" in form else form["text"].encode()
    assert exact == head + tail
    assert form["left_out"] == 3


def test_a_run_is_told_whole() -> None:
    run = Run(
        id=RunId("id"),
        number=4,
        sandbox="s",
        argv=(b"echo", b"\xff"),
        cwd=b"/p",
        started_ns=1,
        ended_ns=None,
        outcome=None,
        stdout=Output(head=b"x", tail=b"y", left_out=1, file=b"/f"),
        stderr=Output(),
    )
    assert run_form(run) == {
        "run": "id",
        "number": 4,
        "argv": ["echo", "\\xff"],
        "cwd": "/p",
        "started_ns": 1,
        "ended_ns": None,
        "outcome": None,
        "stdout": {"text": "xy", "left_out": 1, "file": "/f"},
        "stderr": {"text": "", "left_out": 0},
        "changed": 0,
        "held": False,
        "sandboxed": True,
    }
