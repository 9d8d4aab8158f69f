# SPDX-License-Identifier: Apache-2.0
"""The text that a model reads, string by string, and why a program could not find a host."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.model.change import Change, ChangeSet, Identity, RootChanges
from unspill.model.operation import Operation, OperationId, Skipped
from unspill.model.plan import HostNetwork, NoNetwork, ProxyNetwork
from unspill.model.run import (
    Cancelled,
    Denial,
    Exited,
    Hint,
    LimitReached,
    NeverStarted,
    Output,
    RunId,
    Signalled,
    TimedOut,
)
from unspill.sandbox.result import Cut, RunResult, cut_text, network_hints, truncate

NOTHING = ChangeSet(roots=())
FILE = Identity(kind="file", mode=0o644, inode=1, size=1, ctime_ns=1)
ONE = ChangeSet(roots=(RootChanges(root=b"/p", changes=(Change(path=b"new", kind="added", entry=FILE),)),))


def result(outcome: Any, stdout: bytes = b"", stderr: bytes = b"", **fields: Any) -> RunResult:
    whole = {
        "run": RunId("r"),
        "number": 1,
        "outcome": outcome,
        "stdout": Output(head=stdout),
        "stderr": Output(head=stderr),
        "changes": NOTHING,
        "held": False,
        "duration_s": 0.1,
        **fields,
    }
    return RunResult(**whole)


@pytest.mark.parametrize(
    ("outcome", "stdout", "stderr", "text"),
    [
        (Exited(code=0), b"out\n", b"", "out\n"),
        (Exited(code=0), b"out", b"", "out\n"),
        (Exited(code=0), b"", b"", "No output received from command\n"),
        (Exited(code=0), b"", b"err\n", "err\n"),
        (Exited(code=0), b"out\n", b"err\n", "out\nerr\n"),
        (Exited(code=0), b"out", b"err", "out\nerr\n"),
        (Exited(code=3), b"out\n", b"err\n", "out\nerr\nExit code: 3\n"),
        (Exited(code=1), b"", b"", "Exit code: 1\n"),
        (Exited(code=0), b"\xff\xc3(\n", b"", "\\xff\\xc3(\n"),
        (Signalled(signal=9), b"out\n", b"", "out\nExit code: 137 (signal 9)\n"),
        (TimedOut(after_s=600.0), b"out\n", b"", "out\nCommand timed out after 600s\nExit code: 124\n"),
        (TimedOut(after_s=0.5), b"", b"", "Command timed out after 0.5s\nExit code: 124\n"),
        (Cancelled(), b"", b"", "Command was cancelled\nExit code: 130\n"),
        (
            LimitReached(limit="output", bound=10),
            b"y\n",
            b"",
            "y\nCommand killed: it printed more than 10 bytes (`limits.output_bytes`)\nExit code: 137\n",
        ),
        (
            NeverStarted(reason="x: No such file or directory", remedy="Install it.", exit_code=127),
            b"",
            b"",
            "ERROR: command could not be started: x: No such file or directory. Install it.\nExit code: 127\n",
        ),
        (
            NeverStarted(reason="no namespaces", remedy="Run `unspill doctor`."),
            b"",
            b"",
            "ERROR: sandbox could not be started: no namespaces. Run `unspill doctor`.\n",
        ),
        (NeverStarted(reason="no"), b"", b"", "ERROR: sandbox could not be started: no.\n"),
    ],
)
def test_the_text_of_each_outcome(outcome: Any, stdout: bytes, stderr: bytes, text: str) -> None:
    assert result(outcome, stdout, stderr).text() == text


def test_changes_follow_the_output() -> None:
    held = result(Exited(code=0), b"out\n", changes=ONE, held=True)
    assert held.text() == "out\n\nChanges (held, not in the project):\n1 added\n  A new\n"
    discarded = result(Exited(code=2), changes=ONE)
    assert discarded.text() == "Exit code: 2\n\nChanges (discarded, the project is unchanged):\n1 added\n  A new\n"


OPERATION = Operation(
    id=OperationId("0" * 16),
    number=7,
    kind="apply",
    sandbox="s",
    project=b"/p",
    roots=(b"/p",),
    at_ns=0,
    asked_by="run",
    changed=1,
)
HELD = Skipped(root=0, path=b".envrc", why="held", reason="direnv runs it when you enter the directory")
TWO = ChangeSet(
    roots=(
        RootChanges(
            root=b"/p", changes=tuple(Change(path=path, kind="added", base_kind=None) for path in (b".envrc", b"new"))
        ),
    )
)
NOT_APPLIED = "Not applied (held: later commands see it, the project does not have it):"
REASON = "  ! .envrc: needs the user's approval: direnv runs it when you enter the directory"


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"operation": OPERATION}, ["Changes (applied to the project):", "2 added", "  A .envrc", "  A new"]),
        (
            {"operation": OPERATION.replace(left=(HELD,)), "held": True},
            ["Changes (applied to the project):", "1 added", "  A new", NOT_APPLIED, REASON],
        ),
        ({"operation": OPERATION.replace(number=0, left=(HELD,)), "held": True}, [NOT_APPLIED, REASON]),
        (
            {"held": True, "problem": "the disk is full"},
            [
                "Changes (held, not in the project because the apply failed: the disk is full):",
                "2 added",
                "  A .envrc",
                "  A new",
            ],
        ),
    ],
)
def test_a_model_is_told_what_was_applied_and_what_was_not(values: dict[str, Any], lines: list[str]) -> None:
    text = result(Exited(code=0), changes=TWO).replace(**values).text()
    assert text.splitlines() == ["No output received from command", "", *lines]
    # A model can't consent on the person's behalf
    assert "--include" not in text


def test_git_is_one_line_and_its_settings_are_not() -> None:
    names = (b".git/HEAD", b".git/config", b".git/objects/aa", b"sub/.git/index", b"x.git/HEAD")
    part = RootChanges(root=b"/p", changes=tuple(Change(path=name, kind="added") for name in names))
    text = result(Exited(code=0), changes=ChangeSet(roots=(part,)), held=True).text()
    assert text.splitlines()[3:] == [
        "5 added",
        "  A .git/config",
        "  A x.git/HEAD",
        "  . .git/: 2 internal git files",
        "  . sub/.git/: 1 internal git file",
    ]


def test_hints_come_after_the_exit_code() -> None:
    hint = Hint(code="x", text="Something was refused.", remedy="Do this.")
    assert result(Exited(code=1), b"out\n", hints=(hint,)).text() == (
        "out\nExit code: 1\nNote: Something was refused. Do this.\n"
    )


def test_long_output_is_cut_after_50_lines_in_the_words_of_the_seeds() -> None:
    whole = "".join(f"{number}\n" for number in range(1, 121))
    text = result(Exited(code=0), whole.encode()).text()
    shown = "".join(f"{number}\n" for number in range(1, 51))
    assert text == f"{shown}\n// ... (output truncated: showing first 50 of 120 lines, output too long) ...\n"


def test_fifty_lines_are_not_cut() -> None:
    whole = "".join(f"{number}\n" for number in range(50))
    assert result(Exited(code=0), whole.encode()).text() == whole


def test_how_many_lines_can_be_set() -> None:
    text = result(Exited(code=1), b"1\n2\n3\n", shown_lines=2).text()
    assert text == "1\n2\n\n// ... (output truncated: showing first 2 of 3 lines, output too long) ...\nExit code: 1\n"


def test_long_lines_are_cut_by_bytes() -> None:
    text = result(Exited(code=0), b"x" * 100, shown_bytes=10).text()
    told = "output truncated: showing first 1 of 1 lines, the last in part with 90 bytes left out, output too long"
    assert text == "x" * 10 + f"\n\n// ... ({told}) ...\n"


def test_a_text_that_is_cut_by_bytes_where_a_line_ends_has_no_line_in_part() -> None:
    """Control: one byte less, and it has."""
    assert cut_text("one\ntwo\nthree", 50, 7) == Cut(
        text="one\ntwo", lines=2, total=3, is_cut=True, is_part=False, left_out=6
    )
    assert cut_text("one\ntwo\nthree", 50, 8).text == "one\ntwo"
    assert cut_text("one\ntwo\nthree", 50, 6) == Cut(
        text="one\ntw", lines=2, total=3, is_cut=True, is_part=True, left_out=7
    )


def test_what_was_left_out_is_counted() -> None:
    output = Output(head=b"first\n", tail=b"last\n", left_out=1000)
    text = result(Exited(code=0)).replace(stdout=output).text()
    assert text == "first\n\n// ... (1000 bytes left out) ...\nlast\n"


@given(text=st.text(max_size=200), lines=st.integers(1, 10), size=st.integers(1, 100))
def test_a_cut_text_is_a_beginning_of_the_whole(text: str, lines: int, size: int) -> None:
    shown = truncate(text, lines, size)
    if shown == text:
        assert text.count("\n") < lines
        return
    kept, _, notice = shown.rpartition("\n\n// ... (output truncated: showing first ")
    assert text.startswith(kept)
    assert len(kept.encode("utf-8", "surrogatepass")) <= size
    assert kept.count("\n") < lines
    raw, end = text.encode(), len(kept.encode())
    is_part = kept.count("\n") + 1 == lines and end < len("\n".join(text.split("\n")[:lines]).encode())
    is_part |= kept.count("\n") + 1 < lines and raw[end : end + 1] != b"\n"
    part = f", the last in part with {len(raw) - end} bytes left out" if is_part else ""
    assert notice == f"{kept.count(chr(10)) + 1} of {text.count(chr(10)) + 1} lines{part}, output too long) ..."


def test_a_result_knows_its_exit_code() -> None:
    assert result(Exited(code=4)).exit_code == 4
    assert not result(Exited(code=4)).ok
    assert result(Exited(code=0)).ok
    assert not result(TimedOut(after_s=1.0)).ok


def test_a_command_does_not_fill_the_text_with_what_it_was_refused() -> None:
    denials = tuple(Denial(host=f"{n}.example.org", port=443, rule="host", remedy="Ask.") for n in range(1000))
    lines = result(Exited(code=1), denials=denials).text().splitlines()
    assert lines[-2:] == ["Network: 9.example.org:443 was refused. Ask.", "Network: 990 more were refused."]
    assert len(lines) < 20


WORDS = {
    "curl": b"curl: (6) Could not resolve host: example.org\n",
    "git": b"fatal: unable to access 'https://example.org/': Could not resolve host: example.org\n",
    "wget": b"wget: unable to resolve host address 'example.org'\n",
    "python": b"urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>\n",
    "node": b"npm error errno EAI_AGAIN\n",
    "go": b"dial tcp: lookup example.org: connection refused\n",
    "java": b"Caused by: java.nio.channels.UnresolvedAddressException\n",
    "a socket": b"OSError: [Errno 101] Network is unreachable\n",
}
FAILED = Exited(code=1)


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_a_failed_look_up_is_explained(words: bytes) -> None:
    for outputs in ((Output(head=words), Output()), (Output(), Output(head=b"x", tail=words, left_out=9))):
        (off,) = network_hints(NoNetwork(), FAILED, *outputs)
        assert (off.code, bool(off.remedy)) == ("network-off", True)
        (by_proxy,) = network_hints(ProxyNetwork(hosts=("example.org",)), FAILED, *outputs)
        assert by_proxy.code == "network-by-proxy"
        assert network_hints(HostNetwork(), FAILED, *outputs) == ()


def test_other_failures_have_other_reasons() -> None:
    assert network_hints(NoNetwork(), FAILED, Output(head=b"No such file or directory"), Output()) == ()
    never = NeverStarted(reason="Network is unreachable")
    assert network_hints(NoNetwork(), never, Output(head=WORDS["curl"])) == ()
