# SPDX-License-Identifier: Apache-2.0
"""Whatever a command is, a shell that reads the sealed line hands on exactly that, as one word."""

import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unspill.cli.hook import is_sealed, seal

WORDS = "printf %s. "
HOSTILE = st.text(st.sampled_from("'\"\\`$(){}[];&|<>!#*?~ \t\n\r-+=ax\x01\x7f\u00e9\u2028\U0001f600"), max_size=40)
TEXTS = st.one_of(HOSTILE, st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))


@pytest.mark.parametrize("shell", ["/bin/sh", "bash"])
@settings(max_examples=150)
@given(text=TEXTS)
def test_a_shell_reads_back_exactly_what_was_sealed(shell: str, text: str) -> None:
    done = subprocess.run([shell, "-c", seal(text, WORDS)], capture_output=True, check=True)
    assert done.stdout == text.encode() + b"."
    assert done.stderr == b""


@given(text=TEXTS)
def test_nothing_of_a_sealed_line_is_left_for_a_shell_to_expand(text: str) -> None:
    line = seal(text, WORDS)
    # shlex puts all into single quotes, and those into double ones
    unquoted = re.sub(r"""'[^']*'|"'+\"""", "", line.removeprefix(WORDS))
    assert re.fullmatch(r"[\w@%+=:,./-]*", unquoted, re.ASCII)


@given(text=TEXTS)
def test_sealing_what_is_sealed_changes_nothing(text: str) -> None:
    once = seal(text, WORDS)
    assert is_sealed(once, WORDS)
    assert seal(once, WORDS) == once


@given(text=TEXTS, tail=HOSTILE)
def test_a_line_with_anything_behind_it_is_sealed_only_if_it_is_one_word_still(text: str, tail: str) -> None:
    line = seal(text, WORDS) + tail
    if is_sealed(line, WORDS):
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True)
        assert seal(done.stdout.decode()[:-1], WORDS) == line
