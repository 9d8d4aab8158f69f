# SPDX-License-Identifier: Apache-2.0
"""Which words of a failed command are taken for a masked secret."""

import pytest

from unspill.model.run import Exited, Output, TimedOut
from unspill.sandbox.secrets import mask_hints

PROJECT = b"/home/ada/project"
HIDDEN = (PROJECT + b"/.env", PROJECT + b"/config/.npmrc", PROJECT + b"/credentials")


def named(line: bytes, code: int = 1) -> list[str]:
    return [hint.text for hint in mask_hints(HIDDEN, PROJECT, Exited(code=code), Output(), Output(head=line))]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"cat: .env: No such file or directory\n", ".env"),
        (b"cat: ./.env: No such file or directory\n", ".env"),
        (b"FileNotFoundError: [Errno 2] No such file or directory: '/home/ada/project/.env'\n", ".env"),
        (b"Error: ENOENT: no such file or directory, open '/home/ada/project/config/.npmrc'\n", "config/.npmrc"),
        (b"the file .npmrc does not exist.\n", "config/.npmrc"),
        (b"cannot find .env: missing.\n", ".env"),
        (b"ls: cannot access \xe2\x80\x98.env\xe2\x80\x99: No such file or directory\n", ".env"),
        (b"credentials not found.\n", "credentials"),
    ],
)
def test_a_missing_file_that_is_masked_is_named(line: bytes, name: str) -> None:
    assert named(line) == [f"{name} is hidden as a secret."]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"cat: other/.env: No such file or directory\n",
        b"cat: .env.example: No such file or directory\n",
        b"cat: /elsewhere/.env: No such file or directory\n",
        b"wrong credentials\n",
        b"reading .env\nx: not found\n",
    ],
)
def test_other_words_are_no_masked_file(line: bytes) -> None:
    assert not named(line)


def test_a_command_that_did_not_fail_gets_no_hint() -> None:
    line = b"cat: .env: No such file or directory\n"
    assert not named(line, code=0)
    assert not mask_hints(HIDDEN, PROJECT, TimedOut(after_s=1), Output(head=line))
