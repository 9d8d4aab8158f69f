# SPDX-License-Identifier: Apache-2.0
"""Whose failure it was, and which paths in the output of a command that failed its plan explains."""

from __future__ import annotations

import errno
import locale
import os
from pathlib import Path

import pytest

from tests.unit.plan.given import HOME, PROJECT, given
from unspill.model.plan import Overlay, Plan
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Signalled, TimedOut, exit_code_of
from unspill.plan.build import build_plan
from unspill.runner.hints import hints_about, hints_from, link_hints
from unspill.runner.watch import MOUNT_REMEDIES, NO_DIRECTORY, NOT_A_DIRECTORY, mount_refused, outcome_from

FAILED = Exited(code=1)
KEY = HOME + b"/.ssh/id_ed25519"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return build_plan(given())


LINES = {
    b"cat: " + KEY + b": No such file or directory": KEY,
    b"mkdir: cannot create directory \xe2\x80\x98/data\xe2\x80\x99: Read-only file system": b"/data",
    b"sh: 1: cannot create /usr/lib/x: Read-only file system": b"/usr/lib/x",
    b"FileNotFoundError: [Errno 2] No such file or directory: '/srv/sets/a.csv'": b"/srv/sets/a.csv",
    b'open("/bin/x", O_CREAT) = -1 EROFS (Read-only file system)': b"/usr/bin/x",
    b"/bin/sh: 1: cannot create /etc/x: Read-only file system": b"/etc/x",
    b"/bin/sh: 1: cannot create x: Read-only file system": None,
    b"/bin/bash: line 1: /etc/x: Read-only file system": b"/etc/x",
    b"/usr/lib/x: Read-only file system": b"/usr/lib/x",
    b"/srv/sets/a.csv: No such file or directory": b"/srv/sets/a.csv",
    b"/bin/sh: 1: cannot create " + HOME + b"/other/z: Directory nonexistent": HOME + b"/other/z",
    b"/bin/sh: 1: cannot create /tmp/other/z: Directory nonexistent": None,
    b"mkdir: cannot create directory '/usr/none/x': No such file or directory": None,
    b"touch: cannot touch '" + HOME + b"/other/z': No such file or directory": HOME + b"/other/z",
    b"error: No such file or directory: /tmp/missing": None,
    b"error: No such file or directory: missing": None,
    b"error: No such file or directory: " + PROJECT + b"/missing": None,
    b"error: No such file or directory: /usr/include/missing.h": None,
    b"error: Permission denied: /data": None,
    b"looked at " + KEY: None,
}


@pytest.mark.parametrize(("line", "path"), LINES.items())
def test_a_path_is_explained_where_a_rule_is_likely_the_reason(plan: Plan, line: bytes, path: bytes | None) -> None:
    hints = hints_about(plan, FAILED, b"", b"some words\n" + line + b"\nmore")
    assert [hint.text.partition(": ")[0] for hint in hints] == ([] if path is None else [path.decode()])
    assert all(hint.remedy for hint in hints)


def over(plan: Plan, *layers: Path) -> Plan:
    """Return a plan whose project consists of these directories, the topmost first."""
    upper, *lowers = map(os.fsencode, layers)
    mounts = tuple(
        op.replace(upper=upper, lowers=tuple(lowers)) if isinstance(op, Overlay) and op.dest == PROJECT else op
        for op in plan.mounts
    )
    assert mounts != plan.mounts
    return plan.replace(mounts=mounts)


SEEN = {
    "cat: out/x: No such file or directory": "out",
    "open out/x: no such file or directory": "out",
    "ENOENT: no such file or directory, open 'out/x'": "out",
    "main.c:1:10: fatal error: out/x.h: No such file or directory": "out",
    "make: *** No rule to make target 'out/x', needed by 'all'.  Stop.": "out",
    "sh: 1: cd: can't cd to out": "out",
    "cat: through/x: No such file or directory": "out",
    "cat: ./dir/../out/x: No such file or directory": "out",
    "cat: dir/low/x: No such file or directory": "dir/low",
    "cat: in/x: No such file or directory": None,
    "cat: circle/x: No such file or directory": None,
    "cat: shown/x: No such file or directory": None,
    "cat: deleted/x: No such file or directory": None,
    "cat: replaced/x: No such file or directory": None,
    "looked at out/x": None,
}


@pytest.mark.parametrize(("line", "link"), SEEN.items())
def test_a_link_that_leads_out_is_named_where_an_error_names_its_path(
    plan: Plan, tmp_path: Path, line: str, link: str | None
) -> None:
    """The uppermost layer decides; one that is hidden by it is none, and none is ever followed by the host."""
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for layer in (upper, lower):
        (layer / "dir").mkdir(parents=True)
    outside = os.fsdecode(HOME) + "/shared"
    for path, target in {
        "upper/out": "../../shared",
        "upper/through": os.fsdecode(PROJECT) + "/out",
        "upper/in": "dir",
        "upper/circle": "circle",
        "upper/shown": "/usr/share",
        "lower/dir/low": outside,
        "lower/deleted": outside,
        "lower/replaced": outside,
    }.items():
        (tmp_path / path).symlink_to(target)
    # A whiteout is a device, which an ordinary user can't make; anything else that is no directory hides as well
    (upper / "deleted").touch()
    (upper / "replaced").mkdir()
    hints = link_hints(over(plan, upper, lower), FAILED, b"", f"some words\n{line}\n".encode())
    named = [hint.text.partition(" is a link")[0] for hint in hints]
    assert named == ([] if link is None else [f"{os.fsdecode(PROJECT)}/{link}"])
    assert all(f"to {outside}, which" in hint.text and f"`--root {outside}`" in hint.remedy for hint in hints)


def test_any_output_will_do_for_links_too(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/\x1b[2J")
    odd = b"/\0 //// /.. " + b"/x" * 10_000 + b" \xff/ : /: '/' x x/ ../shop/x " + PROJECT + b"/x"
    hints = link_hints(over(plan, tmp_path, tmp_path), FAILED, odd + b" No such file or directory", b"\n" * 100_000)
    assert len(hints) == 1
    assert hints[0].text.isprintable()
    assert hints[0].remedy.isprintable()


@pytest.mark.parametrize("outcome", [Exited(code=0), TimedOut(after_s=1.0), Signalled(signal=9)])
def test_nothing_is_looked_for_where_the_command_did_not_fail_by_itself(plan: Plan, outcome: Exited) -> None:
    assert hints_about(plan, outcome, next(iter(LINES))) == ()


def test_hints_are_few_different_and_safe_to_print(plan: Plan) -> None:
    names = [HOME + b"/\x1b[2J%d" % (number % 7) for number in range(50)]
    output = b"".join(b"cat: " + name + b": No such file or directory\n" for name in names)
    hints = hints_about(plan, FAILED, output)
    assert len({hint.text for hint in hints}) == len(hints) == 3
    assert all(hint.text.isprintable() and hint.remedy.isprintable() for hint in hints)


def test_any_output_will_do(plan: Plan) -> None:
    odd = b"/\0 //// /.. " + b"/x" * 10_000 + b" \xff/ : /: '/'"
    hints_about(plan, FAILED, odd + b" No such file or directory Read-only file system", b"\n" * 100_000)


@pytest.mark.parametrize(
    "line",
    [
        "mkdir: cannot create directory \u2018{}\u2019: No such file or directory",
        "/bin/sh: 1: cannot create {}: Directory nonexistent",
        "cp: cannot create regular file '{}': No such file or directory",
        "ln: failed to create symbolic link '{}': No such file or directory",
    ],
)
def test_what_was_to_be_made_is_allowed_by_a_root_and_not_by_showing_it(plan: Plan, line: str) -> None:
    [hint] = hints_about(plan, FAILED, line.format(f"{HOME.decode()}/sets/out/d").encode())
    assert f"--root {HOME.decode()}/sets/out`" in hint.remedy
    assert "--readable" not in hint.remedy


@pytest.mark.parametrize(
    "line",
    [
        "bash: line 1: {}: No such file or directory",
        "/bin/sh: line 1: {}: No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: '{}'",
    ],
)
def test_where_words_do_not_say_which_it_was_both_remedies_are_given(plan: Plan, line: str) -> None:
    place = f"{HOME.decode()}/sets/out"
    [hint] = hints_about(plan, FAILED, line.format(place + "/d").encode())
    assert f"--readable {place}/d`" in hint.remedy
    assert f"If the command tried to write it: allow it with `--root {place}`" in hint.remedy
    [read] = hints_about(plan, FAILED, line.format(f"{HOME.decode()}/notes").encode())
    assert "tried to write" not in read.remedy


REFUSED = [
    b"OSError: [Errno 97] Address family not supported by protocol",
    b"socket: Address family not supported by protocol",
    b"listen EAFNOSUPPORT: address family not supported by protocol /tmp/x.sock",
]


@pytest.mark.parametrize("output", REFUSED)
def test_a_refused_socket_is_laid_to_the_strict_profile_where_it_is_one(plan: Plan, output: bytes) -> None:
    strict = plan.replace(profile="strict")
    [hint] = hints_about(strict, FAILED, output)
    assert hint.code == "strict-profile"
    assert 'profile = "strict"' in hint.text
    assert hints_about(plan, FAILED, output) == ()
    assert hints_about(strict, FAILED, b"cat: x: Permission denied") == ()


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


FAILED_OUTCOME: list[Outcome] = [Exited(code=1), Signalled(signal=1), TimedOut(after_s=1.0)]


@pytest.mark.parametrize("outcome", FAILED_OUTCOME)
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
