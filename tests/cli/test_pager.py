# SPDX-License-Identifier: Apache-2.0
"""Colours and the pager, on a real terminal: the person's own program, and only text of ours in it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel

LONG = "seq 200 > numbers"
RED, GREEN = b"\x1b[31m", b"\x1b[32m"


def on_terminal(ground: Ground, *words: str, typed: str = "", **variables: str) -> bytes:
    """Run the program on a terminal of 24 rows, and return what comes to it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    left = {name: value for name, value in os.environ.items() if name not in ("PAGER", "LESS", "NO_COLOR")}
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        run = subprocess.Popen(
            [str(Path(sys.executable).with_name("unspill")), *words],
            cwd=ground.project,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**left, "TERM": "xterm", **variables},
        )
        os.close(theirs)
        seen = b""
        try:
            while chunk := terminal.read(4096):
                seen += chunk
                if typed and b":" in chunk[-8:]:
                    terminal.write(typed.encode())
                    typed = ""
        except OSError:
            pass  # so a terminal says that the other end is closed
        assert run.wait(30) == 0
    return seen


def make_pager(directory: Path, name: str = "mine") -> Path:
    """Make a pager that keeps what it was given beside itself."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\ntee {path}.seen\n")
    path.chmod(0o755)
    return path


def seen_by(path: Path) -> bytes | None:
    place = path.with_name(f"{path.name}.seen")
    return place.read_bytes() if place.exists() else None


@pytest.fixture
def held(ground: Ground) -> Ground:
    """A project with more to show than a screen has rows."""
    ground.write(".unspill.toml")
    run_cli("run", "--hold", "-q", "-c", LONG, cwd=ground.project)
    return ground


def test_what_is_more_than_a_screen_goes_to_the_pager_of_the_person(held: Ground) -> None:
    mine = make_pager(held.home / "bin")
    shown = on_terminal(held, "diff", "--color", "never", PAGER=f"{mine} -x")
    given = seen_by(mine)
    assert given is not None
    assert b"\n+200\n" in given
    assert shown.replace(b"\r\n", b"\n") == given


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("log",), {}),
        (("diff", "--no-pager"), {}),
        (("diff", "--json"), {}),
        (("diff",), {"TERM": "dumb"}),
        (("diff",), {"UNSPILL_PAGER": ""}),
        (("diff",), {"UNSPILL_PAGER": "cat"}),
        (("diff",), {"UNSPILL_PAGER": "no-such-pager"}),
        (("changes",), {}),
    ],
)
def test_what_is_short_or_not_wanted_so_is_printed_at_once(
    held: Ground, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    mine = make_pager(held.home / "bin")
    shown = on_terminal(held, *words, **{"PAGER": str(mine), **variables})
    assert b"numbers" in shown
    assert seen_by(mine) is None


def test_beside_a_terminal_there_is_no_pager(held: Ground) -> None:
    mine = make_pager(held.home / "bin")
    assert b"+200\n" in run_cli("diff", cwd=held.project, variables={"UNSPILL_PAGER": str(mine)}).stdout
    assert seen_by(mine) is None


def test_one_of_ones_own_comes_first_and_gets_short_texts_too(held: Ground) -> None:
    own, usual = make_pager(held.home / "bin", "own"), make_pager(held.home / "bin", "usual")
    on_terminal(held, "log", UNSPILL_PAGER=str(own), PAGER=str(usual))
    assert b"run1" in (seen_by(own) or b"")
    assert seen_by(usual) is None


def test_diffs_are_shown_as_git_shows_them_by_the_persons_own_configuration_only(held: Ground) -> None:
    delta, other = make_pager(held.home / "bin", "delta"), make_pager(held.home / "bin", "other")
    (held.home / ".gitconfig").write_text(f"[core]\n\tpager = {delta} --dark\n")
    subprocess.run(["git", "init", "-q", held.project], check=True)
    subprocess.run(["git", "-C", held.project, "config", "core.pager", str(other)], check=True)
    on_terminal(held, "diff", PAGER=str(other) + "-usual")
    assert b"200" in (seen_by(delta) or b"")
    assert seen_by(other) is None


@pytest.mark.parametrize("is_inside", [True, False], ids=["in the project", "control: beside it"])
def test_a_program_that_a_command_could_have_written_is_not_the_pager(held: Ground, is_inside: bool) -> None:
    place = (held.project if is_inside else held.home) / "venv/bin"
    planted = make_pager(place, "less")
    on_terminal(held, "diff", typed="q", PATH=f"{place}:{os.environ['PATH']}")
    assert (seen_by(planted) is None) == is_inside


def test_nothing_but_text_and_our_colours_comes_to_the_pager(ground: Ground) -> None:
    ground.write(".unspill.toml")
    hostile = r"printf 'a\033]0;title\007\033[2Jb\302\233c\r\n' > text; seq 100 >> text; touch \"$(printf 'n\033[2J')\""
    run_cli("run", "--hold", "-q", "-c", hostile, cwd=ground.project)
    mine = make_pager(ground.home / "bin")
    shown = on_terminal(ground, "diff", UNSPILL_PAGER=str(mine))
    given = seen_by(mine) or b""
    assert GREEN in given
    for text in (given, shown):
        rest = re.sub(rb"\x1b\[[0-9;]*m", b"", text).replace(b"\r\n", b"\n")
        assert not set(rest) & {*range(0x20), 0x7F} - {0x0A}
        assert b"\xc2\x9b" not in rest
        assert b"title" in rest


def test_who_has_seen_enough_leaves_without_a_word(held: Ground) -> None:
    run_cli("run", "--hold", "-q", "-c", "seq 100000 > numbers", cwd=held.project)
    shown = on_terminal(held, "diff", UNSPILL_PAGER="head -n 1")
    assert len(shown.splitlines()) == 1


def test_less_shows_a_page_and_waits(held: Ground) -> None:
    shown = on_terminal(held, "diff", typed="q")
    assert b"+1" in shown
    assert b"+200" not in shown
    assert b"\x1b[?1049h" not in shown, "what was read stays on the screen"


@pytest.mark.parametrize(
    ("words", "variables", "is_coloured"),
    [
        ((), {}, False),
        (("--color", "always"), {}, True),
        (("--color=always",), {"NO_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "0"}, False),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        (("--color", "auto"), {}, False),
    ],
)
def test_colours_beside_a_terminal(
    held: Ground, words: tuple[str, ...], variables: dict[str, str], is_coloured: bool
) -> None:
    for verb in ("diff", "changes"):
        done = run_cli(verb, *words, cwd=held.project, variables=variables)
        assert (b"\x1b[" in done.stdout) == is_coloured
        assert done.returncode == 0


def test_colours_on_a_terminal(held: Ground) -> None:
    assert b"\x1b[" in on_terminal(held, "changes")
    assert b"\x1b[" not in on_terminal(held, "changes", NO_COLOR="1")
    assert b"\x1b[" in on_terminal(held, "changes", NO_COLOR="")
    assert b"\x1b[" not in on_terminal(held, "changes", "--color", "never")


def test_another_word_for_colours_is_refused(held: Ground) -> None:
    done = run_cli("changes", "--color", "sometimes", cwd=held.project)
    assert (done.returncode, done.stdout) == (2, b"")
