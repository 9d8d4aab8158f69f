# SPDX-License-Identifier: Apache-2.0
"""What a person sees on the terminal, beyond the documents: whose words they are, and that they help."""

import os

import pytest

from tests.support import Event, Ground, run_cli
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
            "unspill: Only timestamps changed. Held in sandbox 'default' (run 1). ",
        ),
        (
            ["--", "touch", "-d", "2001-01-01", "old"],
            "unspill: Only timestamps changed. Applied as op 1. Undo: unspill undo\n",
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
        assert stdout.splitlines()[0] == "modified sub/a"
        assert "modified b" not in stdout
    for path, cwd in (("..", "sub"), (".", ".")):
        stdout = typed(ground, "diff", path, cwd=cwd)[1]
        assert "modified b" in stdout
        assert "modified sub/a" in stdout


def test_the_log_tells_what_is_held_from_what_is_not(ground: Ground) -> None:
    typed(ground, "run", "-q", "--discard", "--", "touch", "one")
    typed(ground, "run", "-q", "--hold", "--", "touch", "two")
    typed(ground, "run", "-q", "--", "true")
    log = typed(ground, "log")[1].splitlines()
    assert ["no change" in log[0], "1 changed, held" in log[1], "1 changed  " in log[2]] == [True, True, True]
    typed(ground, "discard")
    assert "held" not in typed(ground, "log")[1]
