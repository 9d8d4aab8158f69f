# SPDX-License-Identifier: Apache-2.0
"""What a person sees on the terminal, what is guessed of a failure, and how seldom they are asked."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path
from typing import Any, Final

import pytest

from tests.figures import record_figure
from tests.kernel.demo_project import prepare
from tests.kernel.internet import Internet, internet
from tests.kernel.prompts_table import COMMANDS, HOSTS, QUESTIONS
from tests.support import Event, Ground, is_rootfs_chosen, printed, run_cli
from unspill import NeverStarted, OutputChunk

pytestmark = pytest.mark.kernel


def typed(ground: Ground, *words: str, cwd: str = ".") -> tuple[int, str, str]:
    """Run `unspill` in the project; return its code and what it printed."""
    bwrap = os.path.dirname(os.fsdecode(ground.bwrap))
    path = {"PATH": os.pathsep.join([bwrap, os.environ["PATH"]])}
    result = run_cli(*words, cwd=ground.project / cwd, variables=path)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


def streamed(ground: Ground, command: str | list[str]) -> tuple[bytes, object]:
    """Return what a command printed to stderr, as it was streamed, and its outcome."""
    events: list[Event] = []
    result = ground.run(command, on_event=events.append)
    chunks = [event.chunk for event in events if isinstance(event, OutputChunk) and event.stream == "stderr"]
    return b"".join(chunks), result.outcome


def test_words_of_bwrap_are_not_streamed_as_the_commands(ground: Ground, engine: str) -> None:
    printed, outcome = streamed(ground, ["no-such-command"])
    assert printed == b""
    assert isinstance(outcome, NeverStarted)


@pytest.mark.parametrize("count", [1, 3, 2000])
def test_a_command_that_sounds_like_bwrap_is_streamed_whole(ground: Ground, count: int) -> None:
    printed, outcome = streamed(ground, f"yes 'bwrap: mine' | head -n {count} >&2; exit 4")
    assert printed == b"bwrap: mine\n" * count
    assert not isinstance(outcome, NeverStarted)


def test_a_timeout_shows_what_was_withheld(ground: Ground) -> None:
    events: list[Event] = []
    ground.run("echo 'bwrap: mine' >&2; sleep 60", on_event=events.append, timeout=0.7)
    assert OutputChunk(stream="stderr", chunk=b"bwrap: mine\n") in events


def test_the_summary_says_what_changed_where_it_is_and_that_the_project_is_whole(ground: Ground) -> None:
    ground.write("old", "x")
    code, stdout, stderr = typed(ground, "run", "--hold", "--", "sh", "-c", "echo out; rm old; echo y > new")
    assert (code, stdout) == (0, "out\n")
    assert stderr == (
        "unspill: 1 added, 1 deleted. Held in sandbox 'default' (run 1). Apply: unspill apply\n  A new\n  D old\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--discard", "--", "touch", "new"],
            "unspill: 1 added. Discarded (run 1); your project is unchanged.\n  A new\n",
        ),
        (
            ["--hold", "--", "touch", "-d", "2001-01-01", "old"],
            "unspill: Only timestamps changed. Discarded (run 1); your project is unchanged.\n",
        ),
        (
            ["--", "touch", "-d", "2001-01-01", "old"],
            "unspill: Only timestamps changed. Applied as op 1. Undo: unspill undo op1\n",
        ),
        (["--", "touch", "new"], "unspill: 1 added. Applied as op 1. Undo: unspill undo\n  A new\n"),
        (["--", "true"], ""),
        (["-q", "--", "touch", "new"], ""),
    ],
)
def test_the_summary_is_as_short_as_it_can_be(ground: Ground, words: list[str], says: str) -> None:
    ground.write("old", "x")
    _code, _stdout, stderr = typed(ground, "run", *words)
    assert stderr.startswith(says)
    assert bool(stderr) == bool(says)


def test_what_is_not_shown_is_told_when_a_command_is_not_found(ground: Ground) -> None:
    ground.configure('readable = ["~/tools"]')
    note = f"The readable path {ground.home}/tools does not exist."
    for words in (["--", "frob"], ["-c", "frob"]):
        code, _stdout, stderr = typed(ground, "run", *words)
        assert code == 127
        assert note in stderr
    assert note not in typed(ground, "run", "--", "true")[2]


def test_a_path_is_meant_as_seen_from_where_the_person_stands(ground: Ground) -> None:
    ground.write(".unspill.toml")
    ground.write("sub/a", "1\n")
    ground.write("b", "1\n")
    typed(ground, "run", "-q", "--hold", "-c", "echo 2 >> sub/a; echo 2 >> b")
    for path, cwd in (("sub/a", "."), ("a", "sub"), (".", "sub"), (os.fspath(ground.project / "sub"), "sub")):
        code, stdout, _stderr = typed(ground, "diff", path, cwd=cwd)
        assert code == 0
        assert stdout.splitlines()[0] == ("modified a" if cwd == "sub" else "modified sub/a")
        assert "modified b" not in stdout
        assert "/b" not in stdout
    for path, cwd, names in (("..", "sub", ("../b", "a")), (".", ".", ("b", "sub/a"))):
        stdout = typed(ground, "diff", path, cwd=cwd)[1]
        assert {f"modified {name}" for name in names} <= set(stdout.splitlines())


def test_the_log_tells_what_is_held_from_what_is_not(ground: Ground) -> None:
    typed(ground, "run", "-q", "--discard", "--", "touch", "one")
    typed(ground, "run", "-q", "--hold", "--", "touch", "two")
    typed(ground, "run", "-q", "--", "true")
    log = typed(ground, "log")[1].splitlines()
    assert ["no change" in log[0], "1 changed, held" in log[1], "1 changed, not applied" in log[2]] == [
        True,
        True,
        True,
    ]
    typed(ground, "discard")
    assert "held" not in typed(ground, "log")[1]


of_the_host = pytest.mark.view(
    "sealed", "host", reason="in a rootfs nobody misses the host's files, so nothing is told of them"
)


@pytest.fixture
def secret(ground: Ground) -> Path:
    if is_rootfs_chosen():  # where nobody misses the host's files, but the project's
        return ground.write("id_ed25519", "secret")
    path = ground.home / ".ssh" / "id_ed25519"
    path.parent.mkdir(mode=0o700)
    path.write_text("secret")
    return path


def test_the_shell_that_speaks_is_not_what_was_refused(ground: Ground) -> None:
    result = ground.run("echo x > /etc/x")
    assert [hint.text.partition(":")[0] for hint in result.hints] == ["/etc/x"]
    assert "/usr" not in result.text()


def test_a_command_that_fails_and_names_the_path_is_explained_without_being_asked(ground: Ground, secret: Path) -> None:
    result = ground.run(["cat", os.fspath(secret)])
    missing = ground.run(["cat", f"{secret}-that-nobody-has"])
    codes = [hint.code for hint in (*result.hints, *missing.hints)]
    assert codes == (["masked-secret"] if is_rootfs_chosen() else ["denied-path", "denied-path"])
    written = ground.run(["mkdir", "/data"])
    assert [hint.text for hint in written.hints] == ["/data: the sandbox does not include this path."]
    assert ground.run(["cat", "missing"]).hints == ()


@of_the_host
def test_a_hidden_file_that_is_read_is_named_with_its_rule_and_what_would_allow_it(ground: Ground, engine: str) -> None:
    hidden = ground.home / "notes"
    hidden.write_text("hidden")
    [hint] = ground.run(["cat", os.fspath(hidden)]).hints
    assert hint.text.startswith(f"{hidden}: hidden, as {ground.home} is empty in the sandbox")
    assert f"--readable {hidden}`" in hint.remedy
    allowed = ground.sandbox("allowed", readable=(bytes(hidden),)).run(["cat", os.fspath(hidden)])
    assert (printed(allowed), allowed.hints) == ("hidden", ())


@of_the_host
def test_a_key_is_said_to_be_never_shown_on_request_because_it_is_not(ground: Ground, secret: Path) -> None:
    [hint] = ground.run(["cat", os.fspath(secret)]).hints
    assert "No option shows it" in hint.remedy
    assert "--" not in hint.remedy
    asked = run_cli("run", "--readable", secret, "--", "cat", secret, cwd=ground.project)
    assert asked.returncode
    assert b"never shown" in asked.stderr
    ground.configure(f"readable = ['{secret}']\n")
    assert run_cli("run", "--", "cat", secret, cwd=ground.project).stdout == b"secret"


@of_the_host
def test_a_write_into_a_hidden_directory_is_told_alike_whether_or_not_it_exists(ground: Ground) -> None:
    other = ground.home / "other"
    other.mkdir()
    texts = []
    for place in (other, ground.home / "never"):
        result = ground.run(f"echo x > {place}/z")
        [hint] = result.hints
        assert hint.text.startswith(f"{place}/z: its directory does not exist, as ")
        assert f"--root {place}`" in hint.remedy
        texts.append((result.text() + hint.text + hint.remedy).replace(place.name, "*"))
    assert texts[0] == texts[1]
    assert ground.sandbox("allowed", roots=(bytes(other),)).run(f"echo x > {other}/z").ok


def test_a_write_outside_the_roots_is_named_and_the_root_that_is_proposed_allows_it(ground: Ground) -> None:
    other = ground.home / "other"
    other.mkdir()
    [hint] = ground.sandbox(readable=(bytes(other),)).run(f"echo x > {other}/made").hints
    assert hint.text.startswith(f"{other}/made: {other} is read-only: ")
    assert f"--root {other}`" in hint.remedy
    allowed = ground.sandbox("allowed", roots=(bytes(other),)).run(f"echo x > {other}/made")
    assert (allowed.ok, allowed.hints) == (True, ())


def test_masks_are_explained_too(ground: Ground) -> None:
    private = ground.home / "shown" / "private"
    private.mkdir(parents=True)
    (private / "file").write_text("x")
    sandbox = ground.sandbox(readable=(bytes(private.parent),), hidden=(bytes(private),))
    [hint] = sandbox.run(["cat", os.fspath(private / "file")]).hints
    assert "hidden by your policy" in hint.text
    assert hint.remedy == "Remove it from `hidden`."


SERVER: Final = "import socket; socket.socket(socket.AF_UNIX).bind('place')"


def test_the_strict_profile_is_named_where_it_refuses_a_unix_socket(ground: Ground) -> None:
    refused = ground.sandbox("strict", profile="strict").run(["python3", "-c", SERVER])
    assert [hint.code for hint in refused.hints] == ["strict-profile"]
    assert 'Note: `profile = "strict"` blocks Unix sockets' in refused.text()
    assert ground.run(["python3", "-c", SERVER]).ok


def work(net: Internet) -> dict[str, Any]:
    """Have an agent do its day's work."""
    given = base64.b64encode(pickle.dumps((net.settings(*HOSTS), net.trust()))).decode()
    done = net.program("tests.kernel.prompts_day", given)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.timeout(180)
def test_there_are_100_commands_and_each_is_there_once() -> None:
    assert len(COMMANDS) == len(set(COMMANDS)) == 100


@pytest.mark.timeout(180)
def test_100_ordinary_commands_ask_at_most_twice_and_flag_at_most_three_files(
    tmp_path: Path, trusted_bwrap: bytes
) -> None:
    with internet(tmp_path / "internet", trusted_bwrap) as net:
        prepare(net)
        day = work(net)
    unexpected = [step for step in day["steps"] if not step["as_expected"]]
    assert unexpected == [], json.dumps(unexpected, indent=1)
    assert tuple(day["asked"]) == QUESTIONS
    assert [step for step in day["steps"] if step["left"] or step["denials"]] == []
    assert day["held"] == 0
    assert (net.project / ".vscode" / "tasks.json").exists()
    assert (net.project / "docs" / "hello.txt").read_text() == "hello\n"
    flagged = [f"{step['command']}: {line}" for step in day["steps"] for line in step["flagged"]]
    assert len(flagged) <= 3, flagged
    assert [line for line in flagged if "node_modules" in line] == []
    assert "chmod +x scripts/report.sh: ! Review before use: scripts/report.sh (is a new executable)" in flagged
    record_figure("questions in 100 commands", str(len(day["asked"])), "; ".join(day["asked"]))
    record_figure("flagged lines in 100 commands", str(len(flagged)), "; ".join(flagged))
