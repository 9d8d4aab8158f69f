# SPDX-License-Identifier: Apache-2.0
"""Asking and answering on the command line: denied runs, the queue from another process, grants, the audit."""

import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel


def typed(ground: Ground, *words: str, code: int = 0) -> tuple[str, str]:
    """Run the program in the project, without a terminal; return what it printed."""
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def told(ground: Ground, *words: str) -> Any:
    return json.loads(typed(ground, *words, "--json")[0])


@contextmanager
def waiting(ground: Ground, *words: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start a run that waits in the queue; yield it and the id of its question."""
    program = [str(Path(sys.executable).with_name("unspill")), "run", "--ask", "queue", *words]
    run = subprocess.Popen(
        program, cwd=ground.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 20
        while not (found := told(ground, "requests")["requests"]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield run, found[-1]["id"]
    finally:
        run.kill()
        run.communicate()


def ended(run: "subprocess.Popen[str]") -> tuple[int, str, str]:
    stdout, stderr = run.communicate(timeout=20)
    return run.returncode, stdout, stderr


def test_without_a_terminal_a_request_is_denied_and_nothing_is_run(ground: Ground) -> None:
    _, stderr = typed(ground, "run", "--network", "--", "touch", "ran", code=125)
    lines = stderr.splitlines()
    assert lines[0] == "ERROR: Permission denied: Run command with network access: touch ran?"
    assert "terminal" in lines[1]
    assert "--ask queue" in lines[1]
    assert not (ground.project / "ran").exists()


def test_a_request_in_the_queue_is_allowed_from_another_process(ground: Ground) -> None:
    with waiting(ground, "--network", "--", "echo", "hello") as (run, request):
        stdout, _ = typed(ground, "requests")
        assert f"{request}  Run command with network access: echo hello?" in stdout
        assert f"unspill approve {request}" in stdout
        stdout, _ = typed(ground, "approve", request[:8])
        assert stdout == "Allowed (once): Run command with network access: echo hello?\n"
        code, stdout, stderr = ended(run)
    assert (code, stdout) == (0, "hello\n")
    assert f"for: unspill approve {request}" in stderr
    assert typed(ground, "requests")[0] == "No request waits for an answer.\n"


def test_a_request_in_the_queue_is_denied_from_another_process(ground: Ground) -> None:
    with waiting(ground, "--network", "--", "echo", "hello") as (run, request):
        typed(ground, "deny", request, "--reason", "not \x1b[31mtoday")
        code, stdout, stderr = ended(run)
    assert (code, stdout) == (125, "")
    assert "ERROR: Permission denied: Run command with network access: echo hello?" in stderr
    assert "not \\u{1b}[31mtoday" in stderr


def test_what_is_over_can_not_be_answered(ground: Ground) -> None:
    with waiting(ground, "--network", "--", "true") as (run, request):
        typed(ground, "approve", request)
        ended(run)
    for verb in ("approve", "deny"):
        assert "no such request" in typed(ground, verb, request, code=2)[1]
        assert "no request given" in typed(ground, verb, code=2)[1]


def test_network_can_not_be_allowed_for_longer_than_once(ground: Ground) -> None:
    with waiting(ground, "--network", "--", "true") as (_run, request):
        assert "scope" in typed(ground, "approve", request, "--scope", "always", code=2)[1]
        assert "--scope is not one of" in typed(ground, "approve", request, "--scope", "ever", code=2)[1]


def test_what_is_dangerous_needs_more_than_a_reflex(ground: Ground) -> None:
    ground.configure('[permissions]\nunsandboxed = "ask"\n')
    with waiting(ground, "--unsandboxed", "--", "echo", "plain") as (run, request):
        assert "dangerous" in typed(ground, "approve", request, code=2)[1]
        typed(ground, "approve", request, "--dangerous")
        code, stdout, stderr = ended(run)
    assert (code, stdout) == (0, "plain\n")
    assert "WITHOUT a sandbox" in stderr
    assert "not sandboxed" in typed(ground, "log")[0]
    assert not told(ground, "show", "run1")["sandboxed"]


def test_the_queue_gives_up_at_its_deadline(ground: Ground) -> None:
    ground.configure('[permissions]\napprover = "queue"\nwait_s = 0.5\n')
    _, stderr = typed(ground, "run", "--network", "--", "true", code=125)
    assert "nobody answered in time" in stderr


def test_a_remembered_answer_is_listed_used_and_taken_back(ground: Ground) -> None:
    other = ground.top / "other"
    other.mkdir()
    words = ("--root", str(other), "--", "touch", str(other / "file"))
    with waiting(ground, *words) as (run, request):
        typed(ground, "approve", request, "--scope", "always")
        assert ended(run)[0] == 0
    typed(ground, "run", *words)
    (grant,) = told(ground, "grants")["grants"]
    assert (grant["scope"], grant["uses"]) == ("always", 2)
    stdout, _ = typed(ground, "grants")
    assert f"{grant['id']}  Let the sandbox change files in {other}\n" in stdout
    assert "expire" not in stdout
    assert typed(ground, "grants", "--project", "/", "--json")[0] == '{"grants": []}\n'
    assert typed(ground, "grants", "revoke", grant["id"])[0] == "Revoked 1 grant.\n"
    assert typed(ground, "grants")[0] == "Nothing is granted.\n"
    typed(ground, "run", *words, code=125)


def test_hosts_are_allowed_for_a_project_listed_and_taken_back(ground: Ground) -> None:
    with waiting(ground, "--allow-host", "example.org", "--", "true") as (run, request):
        assert "[--scope sandbox|project|always]" in typed(ground, "requests")[0]
        typed(ground, "approve", request, "--scope", "project")
        assert ended(run)[0] == 0
    typed(ground, "run", "--allow-host", "example.org", "--", "sh", "-c", "true")
    (grant,) = told(ground, "grants")["grants"]
    assert (grant["scope"], grant["uses"], grant["request"]["argv"]) == ("project", 2, [])
    stdout, _ = typed(ground, "grants")
    assert f"{grant['id']}  Allow connections to example.org\n" in stdout
    assert "for:       every command in this project" in stdout
    typed(ground, "run", "--allow-host", "example.com", "--", "true", code=125)
    typed(ground, "grants", "revoke", grant["id"])
    typed(ground, "run", "--allow-host", "example.org", "--", "true", code=125)


def test_all_grants_are_taken_back_at_once(ground: Ground) -> None:
    other = ground.top / "other"
    other.mkdir()
    for name in ("a", "b"):
        with waiting(ground, "--root", str(other), "--", "touch", name) as (run, request):
            typed(ground, "approve", request, "--scope", "sandbox")
            ended(run)
    assert told(ground, "grants", "revoke", "--all")["revoked"]
    assert told(ground, "grants")["grants"] == []


@pytest.mark.parametrize(
    "words", [("grants", "revoke"), ("grants", "forget"), ("grants", "revoke", "x", "--all"), ("grants", "--all")]
)
def test_a_grant_that_is_not_named_is_not_taken_back(ground: Ground, words: tuple[str, ...]) -> None:
    typed(ground, *words, code=2)


def test_the_audit_is_listed_with_the_paths_that_changed(ground: Ground) -> None:
    typed(ground, "run", "--network", "--", "true", code=125)
    typed(ground, "run", "-q", "--", "touch", "file")
    stdout, _ = typed(ground, "audit")
    assert "apply op 1 by run, done: file" in stdout
    assert "asked " in stdout
    assert [event["kind"] for event in told(ground, "audit", "--limit", "2")["events"]] == ["operation", "run"]
    assert [event["paths"] for event in told(ground, "audit", "--limit", "2")["events"]] == [["file"], ["file"]]


def test_the_option_that_checked_the_hash_chain_is_gone_and_says_what_to_do(ground: Ground) -> None:
    _, stderr = typed(ground, "audit", "--verify", code=2)
    assert "--verify was removed" in stderr
    assert "copy them to another machine" in stderr


def test_a_forged_audit_can_not_write_to_the_terminal(ground: Ground) -> None:
    typed(ground, "run", "--", "true")
    with open(ground.state / "audit" / "log-000001", "a") as file:
        file.write('{"n":"\\u001b[2J","kind":"\\u001b[2Jx","at_ns":"\\u001b"}\n{"kind":"run","command":{"a":1}}\n')
    stdout, _ = typed(ground, "audit")
    assert "\x1b" not in stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--allow-host", "*.com"), "host"),
        (("--readable", "/there/is/nothing"), "nothing at"),
        (("--root", "/"), "can't be a root"),
        (("--ask", "model"), "--ask"),
    ],
)
def test_what_can_not_be_asked_is_said_at_once(ground: Ground, words: tuple[str, ...], said: str) -> None:
    assert said in typed(ground, "run", *words, "--", "true", code=125)[1]


def test_paths_are_as_seen_from_where_the_person_stands(ground: Ground) -> None:
    (ground.top / "other").mkdir()
    (ground.top / "other" / "file").write_text("here\n")
    ground.configure('[permissions]\napprover = "queue"\n')
    here = os.path.relpath(ground.top / "other", ground.project)
    with waiting(ground, "--readable", here, "--", "cat", f"{ground.top}/other/file") as (run, request):
        typed(ground, "approve", request)
        assert ended(run)[:2] == (0, "here\n")


def on_a_terminal(ground: Ground, keys: bytes, *words: str) -> tuple[int, str]:
    """Type a command of unspill at a terminal, and keys when it asks; return its exit code and what was shown."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [Path(sys.executable).with_name("unspill"), *words],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ground.project, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 4096):
            shown += chunk
            if shown.endswith(b"[y/N] "):
                os.write(ours, keys)
    os.close(ours)
    return program.wait(20), shown.decode()


def test_on_a_terminal_is_shown_what_is_about_to_be_allowed(ground: Ground) -> None:
    with waiting(ground, "--network", "--", "echo", "hello") as (run, request):
        code, shown = on_a_terminal(ground, b"n\n", "approve", request)
        assert (code, "Run command with network access: echo hello?" in shown) == (1, True)
        assert "Nothing was allowed. The request still waits." in shown
        code, shown = on_a_terminal(ground, b"y\n", "approve", request)
        assert (code, "Allowed (once)" in shown) == (0, True)
        assert ended(run)[0] == 0


def test_whoever_knows_what_it_is_need_not_be_shown_it(ground: Ground) -> None:
    with waiting(ground, "--network", "--", "echo", "hello") as (run, request):
        assert on_a_terminal(ground, b"", "approve", "--yes", request)[0] == 0
        assert ended(run)[0] == 0
