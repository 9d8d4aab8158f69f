# SPDX-License-Identifier: Apache-2.0
"""What is printed about runs and operations: commands can be pasted, nothing raw reaches a screen, JSON has it all."""

import base64
import io
import json
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.cli.output import (
    LEFT,
    LIMIT,
    ProgressLine,
    advised,
    connection_lines,
    count_text,
    flagged_lines,
    operation_exit_code,
    outcome_form,
    output_form,
    port_lines,
    progress_text,
    recovered_lines,
    refused_lines,
    run_form,
    seen_from_here,
    size_text,
    skipped_lines,
    traffic_form,
)
from unspill.model.operation import Operation, OperationId, Skipped
from unspill.model.rootfs import Progress
from unspill.model.run import (
    Cancelled,
    Connection,
    Denial,
    Exited,
    LimitReached,
    NeverStarted,
    Output,
    PortTraffic,
    Run,
    RunId,
    Signalled,
    TimedOut,
)
from unspill.sandbox.project import find_project

if TYPE_CHECKING:
    from unspill.model.run import Verdict

PROJECT = b"/home/ann/project"


def opened(name: str = "default", project: bytes | None = None) -> Any:
    """Return the sandbox of a project, by default the one that this process stands in."""
    return SimpleNamespace(name=name, project=find_project(os.getcwdb()) if project is None else project)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are named as seen from where this process stands; another test may leave it above the project, at `/`."""
    monkeypatch.chdir(tmp_path)


def operation(*left: Skipped, **values: object) -> Operation:
    base = Operation(
        id=OperationId("0" * 16),
        number=5,
        kind="apply",
        sandbox="s",
        project=PROJECT,
        roots=(b"/home/ann/library", PROJECT),
        at_ns=0,
        asked_by="person",
        left=left,
    )
    return base.replace(**values)


def left(path: bytes, why: str = "conflict", reason: str = "because", root: int = 1) -> Skipped:
    return Skipped(root=root, path=path, why=why, reason=reason)  # type: ignore[arg-type]


def test_a_path_is_named_as_seen_from_where_the_person_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = os.fsencode(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert seen_from_here(top + b"/a/b") == b"a/b"
    assert seen_from_here(top + b"/-a") == b"./-a"
    assert seen_from_here(b"/elsewhere") == b"/elsewhere"


def test_each_reason_has_what_to_type() -> None:
    lines = skipped_lines(
        operation(
            left(b".envrc", "held", "direnv runs it").replace(token="7f3a9c"),
            left(b"large", "held", "direnv runs it"),
            left(b"a", "conflict"),
            left(b"b", "earlier"),
            left(b"c", "refused"),
            left(b"d", "stale"),
            left(b"e", "conflict", root=0),
        ),
        opened(),
    )
    assert lines == [
        "  ! .envrc: held: direnv runs it",
        "      unspill apply --include /home/ann/project/.envrc@7f3a9c",
        "  ! large: held: direnv runs it",
        "      unspill apply --include /home/ann/project/large",
        "  ! a: conflict: because",
        "      unspill diff /home/ann/project/a, then unspill apply --overwrite /home/ann/project/a or unspill discard "
        "/home/ann/project/a",
        "  ! b: skipped: because",
        "      unspill apply (applies everything that is held)",
        "  ! c: refused: because",
        "      unspill discard /home/ann/project/c",
        "  ! d: changed: because",
        "      unspill diff /home/ann/project/d, then unspill apply /home/ann/project/d",
        "  ! /home/ann/library/e: conflict: because",
        "      unspill diff /home/ann/library/e, then unspill apply --overwrite /home/ann/library/e or unspill discard "
        "/home/ann/library/e",
        "  To discard held changes: unspill discard PATH",
    ]


def test_what_an_undo_left_is_found_in_the_backup_of_what_it_takes_back() -> None:
    found = skipped_lines(operation(left(b"a"), left(b"b", "refused"), kind="undo"), opened(), of=3)
    path = "/home/ann/project/a"
    assert found[1] == f"      unspill diff --op op3 {path}, then unspill restore {path} --from op3"
    assert found[2:] == ["  ! b: refused: because"]


def test_a_directory_stands_for_what_was_left_in_it() -> None:
    lines = skipped_lines(
        operation(*(left(b"d" + rest, "held") for rest in (b"", b"/a", b"/b/c")), left(b"e", "held")), opened()
    )
    assert [line for line in lines if "!" in line] == ["  ! d and 2 in it: held: because", "  ! e: held: because"]


def test_advice_names_the_sandbox_and_the_project_where_it_would_fail_without() -> None:
    text = "unspill apply{of}, unspill undo{at} {path}"
    assert advised(text, opened(), path="{of}") == "unspill apply, unspill undo {of}"
    assert advised(text, opened("two"), path="a") == "unspill apply --sandbox two, unspill undo a"
    far = advised(text, opened("two", b"/a {b}"), path="a")
    assert far == "unspill apply --sandbox two --project '/a {b}', unspill undo --project '/a {b}' a"
    hostile = advised("unspill apply{of}", opened("x; y", b"/$(z)\n"))
    assert len(shlex.split(hostile)) == 6
    found = skipped_lines(operation(left(b"a")), opened("two"))
    assert found[1].count("--sandbox two") == 3


def test_there_is_an_end_to_the_list() -> None:
    lines = skipped_lines(operation(*(left(b"%d" % number) for number in range(100))), opened())
    assert len(lines) == 41
    assert lines[-1] == "  ! and 80 more: see unspill changes"
    flags = flagged_lines([(b"%d" % number, f"it runs {number}") for number in range(30)])
    assert flags[0] == "  ! Review before use: 0 (it runs 0)"
    assert flags[-1] == "  ! and 10 more to review"
    assert len(flags) == 21
    named = flagged_lines([(b"a" * 20, "it runs"), *[(b"b" * 20, "it runs")] * 200])
    assert named[0] == f"  ! Review before use: {'a' * 20}, {'b' * 20} (it runs)"
    assert (len(named), named[-1]) == (21, "  ! and 161 more to review")


HOSTILE = b"\x1b]0;x\x07\xe2\x80\xae\n"


def test_nothing_raw_reaches_the_screen() -> None:
    text = HOSTILE.decode()
    told = [
        *skipped_lines(operation(left(HOSTILE, reason=text)), opened()),
        *flagged_lines([(HOSTILE, text)]),
        *recovered_lines(operation(left(HOSTILE), ending="rolled back", notes=(text,))),
    ]
    assert all(line.isprintable() for line in told)


def test_the_exit_code_says_whether_something_was_left() -> None:
    assert operation_exit_code(operation()) == 0
    assert operation_exit_code(operation(left(b"a"))) == LEFT == 6


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"ending": "rolled back"}, ["Rolled back an interrupted apply (op 5)."]),
        ({"ending": "done", "kind": "undo"}, ["Finished an interrupted undo (op 5)."]),
        (
            {"ending": "rolled back", "left": (left(b"a"),)},
            ["Rolled back an interrupted apply (op 5), except for files that changed since: a"],
        ),
        (
            {"ending": "rolled back", "notes": ("a: you edited it",)},
            ["Rolled back an interrupted apply (op 5).", "  a: you edited it"],
        ),
    ],
)
def test_an_interruption_is_told_with_what_was_kept(values: dict[str, object], lines: list[str]) -> None:
    assert recovered_lines(operation(**values)) == lines


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (9 << 50, "9216.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


def test_counts() -> None:
    assert [count_text(number, "path") for number in (0, 1, 2)] == ["0 paths", "1 path", "2 paths"]


def made(host: str = "example.org", port: int = 443, verdict: "Verdict" = "allowed") -> Connection:
    return Connection(
        host=host, port=port, address="93.184.215.14", up=10, down=200, started_ns=1, ended_ns=2, verdict=verdict
    )


def denied(host: str, port: int = 443, times: int = 1) -> Denial:
    return Denial(host=host, port=port, rule="host", remedy="Ask.", times=times)


def test_connections_are_summed_by_host_and_port() -> None:
    lines = connection_lines([made(), made(port=80), made(), made("2a00::1"), made("2a00::1", verdict="cut")])
    assert lines == [
        "  example.org:443: 2 connections, 20 bytes up, 400 bytes down",
        "  example.org:80: 1 connection, 10 bytes up, 200 bytes down",
        "  [2a00::1]:443: 2 connections, 20 bytes up, 400 bytes down (cut)",
    ]


def test_refusals_have_the_rule_and_the_remedy() -> None:
    assert refused_lines([denied("evil.org"), denied("fe80::1", times=3), denied("http://x_y/", 0)]) == [
        "The proxy refused 3 destinations:",
        "  ! evil.org:443: host",
        "      Ask.",
        "  ! [fe80::1]:443: host, 3 times",
        "      Ask.",
        "  ! http://x_y/: host",
        "      Ask.",
    ]


def test_many_hosts_are_cut() -> None:
    many = range(LIMIT + 5)
    assert refused_lines([denied(f"{number}.org") for number in many])[-1] == "  ! and 5 more: see --json"
    assert connection_lines([made(f"{number}.org") for number in many])[-1] == "  and 5 more: see --json"


def test_what_a_command_chose_is_shown_safely() -> None:
    (_, line, _) = refused_lines([denied("evil\x1b[2J\u202e.org")])
    assert line.isprintable()


def test_the_values_of_traffic_are_those_of_the_records() -> None:
    port = PortTraffic(is_published=True, inside=8000, host=8001, connections=2, up=10, down=20)
    form = traffic_form([made()], [denied("evil.org")], [port])
    assert form == {
        "connections": [made().as_dict()],
        "denials": [denied("evil.org").as_dict()],
        "ports": [port.as_dict()],
    }


def test_a_port_has_a_line_with_what_went_through_it() -> None:
    port = PortTraffic(is_published=True, inside=8000, host=8001, connections=1, up=10, down=2048, refused=3, failed=1)
    assert port_lines([port, PortTraffic(is_published=False, inside=11434, host=11434, connections=2)]) == [
        "  published 8000 at 127.0.0.1:8001: 1 connection, 2.0 KiB in, 10 bytes out, 3 refused (too many at once),"
        " 1 found no server",
        "  exposed 11434: 2 connections, 0 bytes in, 0 bytes out",
    ]


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
        "argv_left_out": 0,
    }


@pytest.mark.parametrize(
    ("progress", "plain", "bar"),
    [
        (Progress(step="unpacking"), "unpacking", "unpacking"),
        (Progress(step="fetching", done=2 << 20), "fetching: 2.0 MiB", "fetching: 2.0 MiB"),
        (
            Progress(step="fetching", done=1 << 20, total=4 << 20),
            "fetching: 25% of 4.0 MiB",
            "fetching [######                  ]  25% of 4.0 MiB",
        ),
        (
            Progress(step="fetching", done=9, total=4),
            "fetching: 100% of 4 bytes",
            "fetching [########################] 100% of 4 bytes",
        ),
        (
            Progress(step="installing", done=3, total=12, unit="package"),
            "installing: 25% of 12 packages",
            "installing [######                  ]  25% of 12 packages",
        ),
        (Progress(step="a\x1b]0;x\x07\r\n"), r"a\u{1b}]0;x\u{7}\r\n", r"a\u{1b}]0;x\u{7}\r\n"),
    ],
    ids=str,
)
def test_a_step_in_words(progress: Progress, plain: str, bar: str) -> None:
    assert progress_text(progress, has_bar=False) == plain
    assert progress_text(progress, has_bar=True) == bar


def test_without_a_terminal_there_is_a_line_for_each_step_and_not_for_each_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.isatty", lambda _fd: False)
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    with ProgressLine(is_quiet=False) as line:
        for done in range(1000):
            line.take(Progress(step="fetching", done=done * 4096, total=1000 * 4096))
        line.take(Progress(step="unpacking"))
    assert told.getvalue() == "unspill: fetching (3.9 MiB)\nunspill: unpacking\n"


def test_with_json_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    with ProgressLine(is_quiet=True) as line:
        line.take(Progress(step="fetching", done=1, total=2))
    assert told.getvalue() == ""


def test_a_stream_that_can_not_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.isatty", lambda _fd: False)
    with open("/dev/full", "wb", buffering=0) as full, ProgressLine(is_quiet=False) as line:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(full, write_through=True))
        line.take(Progress(step="fetching"))
        line.take(Progress(step="unpacking"))
