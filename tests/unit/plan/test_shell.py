# SPDX-License-Identifier: Apache-2.0
"""Any bytes survive as words of every shell that is called sh."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.plan.explain import ShellWords, printf_format

VALUES = st.binary(max_size=40).map(lambda value: value.replace(b"\0", b"")) | st.sampled_from(
    [b"-n", b"-", b"%s", b"%", b"\\", b"'", b"a\n\n", b"\n", b"", b"\\n", b"$(id)", b"a b", b"\\045d", b"~", b"{a,b}"]
)
SHELLS = (["dash"], ["bash"], ["bash", "--posix"])


def run(shell: list[str], script: str) -> bytes:
    assert all(char == "\n" or " " <= char <= "~" for char in script)
    return subprocess.run([*shell, "-c", script], capture_output=True, check=True, cwd="/").stdout


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@given(values=st.lists(VALUES, min_size=1, max_size=8))
def test_a_word_is_read_as_exactly_the_bytes_it_stands_for(shell: list[str], values: list[bytes]) -> None:
    words = ShellWords()
    command = "printf '%s|' " + " ".join([words.word(value) for value in values])
    shown = run(shell, "\n".join([*words.assignments, command]))
    assert shown == b"".join(value + b"|" for value in values)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@given(value=st.binary(max_size=60))
def test_a_printf_format_prints_exactly_the_bytes_it_stands_for(shell: list[str], value: bytes) -> None:
    assert run(shell, f"printf '{printf_format(value)}'") == value


def test_plain_words_stay_readable() -> None:
    words = ShellWords()
    assert [words.word(value) for value in (b"/usr/bin", b"a b", b"it's")] == ["/usr/bin", "'a b'", "'it'\\''s'"]
    assert words.assignments == []
