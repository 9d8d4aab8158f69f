# SPDX-License-Identifier: Apache-2.0
"""Variables that a caller sets are part of what a person is asked, and of what they allowed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.kernel.answering import Person, opened
from unspill import Rules
from unspill.errors import UsageError
from unspill.sandbox import running

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

PLANT = "mkdir -p bin; printf '#!/bin/sh\\ntouch \"%s\"\\n' > bin/uptime; chmod 755 bin/uptime"
REFUSED = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "BASH_FUNC_ls%%",
    "PERL5OPT",
    "PYTHONSTARTUP",
)


@pytest.mark.parametrize("name", REFUSED)
def test_e6_no_loader_variable_is_set_for_a_command_without_a_sandbox(ground: Ground, name: str) -> None:
    """Have a harmless command allowed without a sandbox, with a variable that makes any program load other code.

    Control: with a variable that does nothing of the kind the same command is asked about, and runs.
    """
    person = Person()
    sandbox = opened(ground, person, permissions=Rules(unsandboxed="ask"))
    with pytest.raises(UsageError):
        sandbox.run(["ls", "-d", "."], unsandboxed=True, env={name: f"{ground.project}/evil"})
    assert person.asked == []
    assert sandbox.run(["ls", "-d", "."], unsandboxed=True, env={"HARMLESS": "1"}).ok
    assert len(person.asked) == 1


def test_e6_a_question_without_a_sandbox_shows_every_variable(ground: Ground) -> None:
    """Have `uptime` allowed without a sandbox where a PATH of the caller's leads to a program of the project.

    Control: the program of the project does run, so the PATH is what the answer is about.
    """
    person = Person()
    sandbox = opened(ground, person, permissions=Rules(unsandboxed="ask"))
    victim = ground.home / "victim"
    assert sandbox.run(PLANT % victim, after="apply").ok
    path = f"{ground.project}/bin:/usr/bin"
    result = sandbox.run(["uptime"], unsandboxed=True, env={"PATH": path, "A": "x\n\x1b[2Jy"})
    assert result.ok
    assert victim.exists()
    (question,) = person.asked
    assert f"variable:  PATH={path}" in question.lines
    assert 'variable:  "A=x\\n\\u{1b}[2Jy"' in question.lines
    assert question.request.is_dangerous


def test_e6_a_command_without_a_sandbox_gets_the_persons_variables_and_those_shown(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the environment of a command without a sandbox with that of the caller and what the question showed.

    Control: both the caller's own variable and the one that was asked for are there.
    """
    monkeypatch.setenv("OF_THE_PERSON", "1")
    person = Person()
    sandbox = opened(ground, person, permissions=Rules(unsandboxed="ask"))
    result = sandbox.run(["/usr/bin/env", "-0"], unsandboxed=True, env={"ASKED": "2"})
    found = dict(pair.split(b"=", 1) for pair in result.stdout.kept().split(b"\0") if pair)
    assert found == dict(os.environb) | {b"ASKED": b"2"}
    assert found[b"OF_THE_PERSON"] == b"1"


def is_asked_again(ground: Ground, name: str) -> bool:
    """Have a command allowed for the sandbox with one value of a variable, and run it with another."""
    person = Person("sandbox")
    sandbox = opened(ground, person, name=name)
    for value in ("benign", "benign", "hostile"):
        sandbox.run("echo $PYTHONPATH", hosts=["example.org"], env={"PYTHONPATH": f"{ground.project}/{value}"})
    assert len(person.asked) in (1, 2)
    return len(person.asked) == 2


def test_e6_a_grant_does_not_cover_other_values_of_variables(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a command allowed for the whole sandbox, and run it again with the same variables of other values.

    Control: where a request does not say which values they have, the grant covers the other ones.
    """
    assert is_asked_again(ground, "first")

    def nothing(_environ: object) -> str:
        return ""

    monkeypatch.setattr(running, "_digest_of", nothing)
    assert not is_asked_again(ground, "second")


def test_e6_variables_that_the_person_has_do_not_end_a_grant(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a variable of the caller's own environment between two runs of a command that was allowed.

    Control: the tests above, where the caller sets it for the command.
    """
    person = Person("sandbox")
    sandbox = opened(ground, person)
    for value in ("en_US.UTF-8", "C.UTF-8"):
        monkeypatch.setenv("LANG", value)
        assert sandbox.run("true", hosts=["example.org"]).ok
    assert len(person.asked) == 1
