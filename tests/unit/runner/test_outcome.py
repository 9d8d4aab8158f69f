# SPDX-License-Identifier: Apache-2.0
"""Whose failure it was, from what bwrap says and from nothing else."""

import errno
import locale

import pytest

from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Signalled, TimedOut, exit_code_of
from unspill.runner.hints import hints_from
from unspill.runner.watch import MOUNT_REMEDIES, NO_DIRECTORY, NOT_A_DIRECTORY, mount_refused, outcome_from

Outcome = Exited | Signalled | TimedOut | Cancelled | LimitReached | NeverStarted
STARTED = b'{ "child-pid": 123, "cgroup-namespace": 1 }\n'


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Exited(code=0)),
        (1, Exited(code=1)),
        (127, Exited(code=127)),
        (128, Exited(code=128)),
        (129, Signalled(signal=1)),
        (137, Signalled(signal=9)),
        (192, Signalled(signal=64)),
        (193, Exited(code=193)),
        (255, Exited(code=255)),
    ],
)
def test_a_code_that_bwrap_reports_is_the_commands(code: int, expected: Outcome) -> None:
    status = STARTED + b'{ "exit-code": %d }\n' % code
    assert outcome_from(status, b"bwrap: execvp lie: No such file or directory") == expected


@pytest.mark.parametrize(
    ("stderr", "code", "reason"),
    [
        (b"bwrap: execvp nope: No such file or directory\n", 127, "nope: No such file or directory"),
        (b"bwrap: execvp ./text: Permission denied\n", 126, "./text: Permission denied"),
        (b"bwrap: execvp ./bad: Exec format error\n", 126, "./bad: Exec format error"),
        (b"bwrap: Can't chdir to /x: No such file or directory", 125, NO_DIRECTORY),
        (b"bwrap: Can't chdir to /x: Not a directory", 125, NOT_A_DIRECTORY),
        (
            b"bwrap: Can't chdir to /x: Permission denied",
            125,
            "the working directory can't be entered: Permission denied",
        ),
        (b"bwrap: setting up uid map: Permission denied", 125, "bwrap: setting up uid map: Permission denied"),
        (b"", 125, "bwrap ended without a message"),
        (b"\xff", 125, "\\xff"),
    ],
)
@pytest.mark.parametrize("status", [b"", STARTED])
def test_without_one_the_command_never_ran(status: bytes, stderr: bytes, code: int, reason: str) -> None:
    outcome = outcome_from(status, stderr)
    assert isinstance(outcome, NeverStarted)
    assert (outcome.exit_code, outcome.reason) == (code, reason)
    assert outcome.remedy


def test_the_language_of_the_caller_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.strerror", lambda code: f"Fehler {code}")
    assert locale.setlocale(locale.LC_ALL) is not None
    outcome = outcome_from(b"", b"bwrap: execvp nope: No such file or directory\n")
    assert exit_code_of(outcome) == 127


@pytest.mark.parametrize("code", MOUNT_REMEDIES)
def test_each_refusal_of_the_kernel_has_words_and_a_remedy(code: int) -> None:
    outcome = mount_refused(b"/p\xff", code, "raw")
    assert outcome.exit_code == 125
    assert "/p\\\\xff" in outcome.reason
    assert "raw" not in outcome.reason
    assert outcome.remedy


def test_an_unknown_refusal_is_passed_on() -> None:
    assert "raw words" in mount_refused(b"/p", errno.EIO, "raw words").reason


FAILED: list[Outcome] = [Exited(code=1), Signalled(signal=1), TimedOut(after_s=1.0)]


@pytest.mark.parametrize("outcome", FAILED)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (b"rename: Invalid cross-device link", "rename-across-layers"),
        (b"fatal: hardlink different from source at 'x'", "hard-link-across-layers"),
        (b"open: Value too large for defined data type", "foreign-owner"),
    ],
)
def test_words_of_the_kernel_are_explained(outcome: Outcome, words: bytes, code: str) -> None:
    assert [hint.code for hint in hints_from(outcome, b"", words)] == [code]
    assert [hint.code for hint in hints_from(outcome, words, b"")] == [code]
    assert hints_from(outcome, b"another failure") == ()


@pytest.mark.parametrize("outcome", [Exited(code=0), NeverStarted(reason="x")])
def test_what_went_well_or_never_ran_needs_no_hint(outcome: Outcome) -> None:
    assert hints_from(outcome, b"Invalid cross-device link") == ()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Exited(code=7), 7),
        (Signalled(signal=15), 143),
        (TimedOut(after_s=1.0), 124),
        (Cancelled(), 130),
        (LimitReached(limit="output", bound=1), 137),
        (NeverStarted(reason="x"), 125),
        (NeverStarted(reason="x", exit_code=127), 127),
    ],
)
def test_every_outcome_has_its_exit_code(outcome: Outcome, code: int) -> None:
    assert exit_code_of(outcome) == code
