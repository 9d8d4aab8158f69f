# SPDX-License-Identifier: Apache-2.0
"""What a command prints, on a real terminal and beside one."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel

HOSTILE = r"printf 'a\033]0;title\007\033[31mred\033[0m\033[6n\n'; printf '\033]52;c;eA==\007' >&2; printf '\033'"


def printed(ground: Ground, *, is_terminal: bool) -> bytes:
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    program = str(Path(sys.executable).with_name("unspill"))
    with os.fdopen(ours, "rb", buffering=0) as reader:
        run = subprocess.Popen(
            [program, "run", "--quiet", "-c", HOSTILE],
            cwd=ground.project,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        text = b""
        try:
            while chunk := reader.read(4096):
                text += chunk
        except OSError:
            pass  # so a terminal says that the other end is closed
        assert run.wait(30) == 0
    return text


def test_a_terminal_gets_colours_and_obeys_nothing_else(ground: Ground) -> None:
    text = printed(ground, is_terminal=True)
    assert rb"a\x1b]0;title\x07" in text
    assert b"\x1b[31mred\x1b[0m" in text
    assert rb"\x1b[6n" in text
    assert rb"\x1b]52;c;eA==\x07" in text
    assert text.replace(b"\x1b[31m", b"").replace(b"\x1b[0m", b"").count(b"\x1b") == 0


def test_what_is_no_terminal_gets_every_byte(ground: Ground) -> None:
    text = printed(ground, is_terminal=False)
    assert b"a\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[6n\n" in text
    assert b"\x1b]52;c;eA==\x07" in text
    assert text.count(b"\x1b") == 6


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--", "./x\x1b]0;title\x07"),
        ("run", "--timeout", "\x1b[2J", "--", "true"),
        ("run", "--\x1b[2J", "--", "true"),
        ("undo", "\x1b[2J"),
        ("\x1b[2J",),
    ],
)
def test_words_of_a_stranger_do_nothing_to_a_terminal_in_our_own_lines(ground: Ground, words: tuple[str, ...]) -> None:
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode != 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"x1b" in done.stderr
