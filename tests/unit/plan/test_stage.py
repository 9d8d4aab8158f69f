# SPDX-License-Identifier: Apache-2.0
"""Which directories bwrap may go to by itself: those that no command can have made."""

from __future__ import annotations

import pytest

from tests.unit.plan.given import HOME, PROJECT, facts, given
from unspill.plan.argv import bwrap_options
from unspill.plan.build import build_plan
from unspill.plan.view import command_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import Plan


def plan(cwd: bytes) -> Plan:
    return build_plan(given(cwd=cwd, argv=(b"true",)))


@pytest.mark.parametrize("cwd", [PROJECT, HOME + b"/playground", b"/tmp", HOME])
def test_bwrap_goes_to_what_the_plan_mounts(cwd: bytes) -> None:
    assert not plan(cwd).staged


@pytest.mark.parametrize(
    "cwd",
    [
        PROJECT + b"/sub",
        HOME + b"/playground/sub",
        b"/dev/fd/3",
        b"/proc/self/fd/3",
        b"/proc",
        b"/dev",
        b"/proc/sys/kernel",
        b"/usr/share",
        b"/",
        HOME + b"/made",
    ],
)
def test_to_everything_else_a_shell_goes(cwd: bytes) -> None:
    made = plan(cwd)
    assert made.staged
    options, _contents = bwrap_options(made, facts(), 8)
    assert options[options.index(b"--chdir") + 1] == b"/"
    words = command_words(made, 7)
    assert (words[:2], words[3:]) == ((b"/bin/sh", b"-c"), (b"sh", cwd, b"true"))


def test_by_hand_the_shell_speaks_on_stderr_and_closes_nothing() -> None:
    script = command_words(plan(b"/usr/share"))[2]
    assert b">&2" in script
    assert b">&-" not in script
