# SPDX-License-Identifier: Apache-2.0
"""Names as words of a shell."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unspill.plan.explain import Refusal, remedy_of
from unspill.policy.hosts import Refused
from unspill.policy.paths import shell_word

NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name)


@settings(max_examples=40)
@given(st.lists(NAMES, min_size=1, max_size=5))
def test_a_shell_reads_a_word_as_exactly_the_name(names: list[bytes]) -> None:
    words = [shell_word(name) for name in names]
    assert all(word.isascii() and word.isprintable() for word in words)
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {' '.join(words)}"], capture_output=True, check=True)
    assert done.stdout == b"".join(name + b"\0" for name in names)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        (b"src/main.py", "src/main.py"),
        (b"sp ace", "'sp ace'"),
        (b"x$(id)", "'x$(id)'"),
        (b"it's", "'it'\\''s'"),
        (b"a\nb\xff", "$'a\\x0ab\\xff'"),
        (b"", "''"),
    ],
)
def test_words(name: bytes, word: str) -> None:
    assert shell_word(name) == word


@pytest.mark.parametrize("name", [b"a;touch PWNED", b"$(id)", b"`id`", b"a\nb", b"a' b"])
def test_what_is_proposed_against_a_refusal_can_be_pasted(name: bytes) -> None:
    path = b"/srv/" + name + b"/x"
    outside = Refusal(kind="outside", path=path, rule="outside the roots")
    assert f"`--root {shell_word(b'/srv/' + name)}`" in remedy_of(outside, is_write=True, home=b"/home/ann")
    assert f"`--readable {shell_word(path)}`" in remedy_of(outside, is_write=False, home=b"/home/ann")


def test_a_host_that_is_proposed_is_one_word() -> None:
    refused = Refused("host", "it is not among the allowed hosts")
    assert "`--allow-host api.example.org`" in refused.remedy("api.example.org", 443)
    assert "`--allow-host 'x;id'`" in refused.remedy("x;id", 443)
