# SPDX-License-Identifier: Apache-2.0
"""A grant for this very command is none for what is put in the program's place afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import NamedByHost
from unspill import Sandbox
from unspill.errors import DeniedError
from unspill.model.permission import UNKNOWN_PROGRAM, Allowed, Question
from unspill.model.plan import Plan
from unspill.sandbox import permits, running

if TYPE_CHECKING:
    from typing import Any

    from tests.attack.arena import Arena
    from tests.support import Ground
    from unspill.model.permission import Answer
    from unspill.sandbox.project import Project

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

WRITE = "printf '#!/bin/sh\\necho {}\\n' > {}"

# The words of the command, what is made before it is allowed, and what is overwritten afterwards
PROGRAMS = {
    "a file in the project": ("./tool", "", "tool"),
    "a path with .. behind a link": ("ln/../tool", "mkdir -p deep/er; ln -s deep/er ln;", "deep/tool"),
    "a program below a linked directory": ("ln/tool", "mkdir real; ln -s real ln;", "real/tool"),
    "a relative link": ("./ln", "ln -s tool ln;", "tool"),
    "an absolute link": ("./ln", "ln -s $PWD/tool ln;", "tool"),
    "a program in the playground": ("$HOME/playground/tool", "", "$HOME/playground/tool"),
    "a program found in PATH": ("tool-in-path", "mkdir -p .packages/bin;", ".packages/bin/tool-in-path"),
}


class Longest:
    """A person who allows everything for as long as they are offered."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return Allowed(digest=question.digest, by="test", scope=question.scopes[-1])


def attended(ground: Ground, person: Longest) -> Sandbox:
    sandbox = NamedByHost(ground.project, policy=ground.policy(), approver=person)
    ground.opened.append(sandbox)
    return sandbox


def is_used_for_another(ground: Ground, sandbox: Sandbox, person: Longest, case: str) -> bool:
    """Have a program allowed, exchange it, and tell whether the other one ran without a question."""
    word, before, place = PROGRAMS[case]
    word = word.replace("$HOME/playground", ground.playground_inside)
    sandbox.run(f"{before} {WRITE.format('benign', place)}; chmod 755 {place}", after="hold")
    first = sandbox.run([word], hosts=["example.org"], after="hold")
    assert first.stdout.kept() == b"benign\n", first.text()
    asked = len(person.asked)
    sandbox.run(WRITE.format("hostile", place), after="hold")
    second = sandbox.run([word], hosts=["example.org"], after="hold")
    assert second.stdout.kept() == b"hostile\n", second.text()
    return len(person.asked) == asked


@pytest.mark.parametrize("case", PROGRAMS)
def test_e6_a_grant_does_not_cover_a_program_that_was_exchanged(
    arena: Arena, ground: Ground, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a command allowed for as long as it goes, exchange the program that it starts, and start it again.

    Control: where the request does not say which program it is, the grant covers the other one.
    """
    monkeypatch.setenv("PATH", f"{ground.project}/.packages/bin:/usr/bin:/bin")
    person = Longest()
    sandbox = attended(ground, person)
    assert not is_used_for_another(ground, sandbox, person, case)

    def unidentified(_opened: Project, _plan: Plan) -> str:
        return ""

    with arena.patch.context() as patch:
        patch.setattr("unspill.sandbox.running.identify_program", unidentified)
        sandbox.discard()
        assert is_used_for_another(ground, sandbox, person, case)


def test_e6_a_program_that_was_exchanged_between_the_answer_and_the_run_is_not_run(
    arena: Arena, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchange the program after it was looked at, by a run that came first in the sandbox's queue.

    Control: where nobody looks a second time, the other program has what was allowed to the first.
    """
    person = Longest()
    sandbox = attended(ground, person)
    real = permits.permitted

    def permitted_and_overtaken(*given: Any) -> Any:
        found = real(*given)
        sandbox.run(WRITE.format("hostile", "tool"), after="hold")
        return found

    def attempt() -> bytes:
        sandbox.run(f"{WRITE.format('benign', 'tool')}; chmod 755 tool", after="hold")
        return sandbox.run(["./tool"], hosts=["example.org"], after="hold").stdout.kept()

    assert attempt() == b"benign\n"
    monkeypatch.setattr(permits, "permitted", permitted_and_overtaken)
    with pytest.raises(DeniedError, match="was changed after"):
        attempt()
    with arena.patch.context() as patch:
        patch.setattr(running, "check_program", lambda *_given: None)
        assert attempt() == b"hostile\n"
    assert len(person.asked) == 1


@pytest.mark.view("sealed", reason="a rootfs shows no toolchain; test_rootfs_tree.py has a link of the tree")
def test_e6_a_grant_does_not_cover_a_program_behind_a_link_of_the_hosts_that_was_exchanged(
    arena: Arena, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchange a program that a toolchain outside the project only links to, as tools under development are.

    Control: where every place counts as one that no command can change, the grant covers the other program.
    """
    toolchain = ground.home / ".cargo/bin"
    toolchain.mkdir(parents=True)
    (ground.project / "tool").touch(0o755)
    (toolchain / "linked").symlink_to(ground.project / "tool")
    monkeypatch.setenv("PATH", f"{toolchain}:/usr/bin:/bin")
    person = Longest()
    sandbox = attended(ground, person)

    def ask_twice() -> int:
        asked = len(person.asked)
        for what in ("benign", "hostile"):
            sandbox.run(f"{WRITE.format(what, 'tool')}; chmod 755 tool", after="hold")
            result = sandbox.run(["linked"], hosts=["example.org"], after="hold")
            assert result.stdout.kept() == f"{what}\n".encode(), result.text()
        return len(person.asked) - asked

    assert ask_twice() == 2
    with arena.patch.context() as patch:
        patch.setattr(running, "_is_steady", lambda *_given: True)
        assert ask_twice() == 1


@pytest.mark.parametrize(
    "made",
    [
        "ln -s /proc/self/pagemap odd",
        "ln -s /proc/self/mem odd",
        "ln -s odd odd",
        "mkfifo odd",
        "printf x > odd; chmod 111 odd",
        "truncate -s 3G odd; chmod 600 odd",
    ],
)
def test_e6_a_program_that_can_not_be_read_neither_hangs_nor_breaks_the_question(ground: Ground, made: str) -> None:
    """Ask for a host with a command whose program is a link into /proc, a FIFO, a loop, unreadable or huge.

    Control: the question is asked, and says that the program is not known.
    """
    person = Longest()
    sandbox = attended(ground, person)
    sandbox.run(made, after="hold")
    sandbox.run(["./odd"], hosts=["example.org"], after="hold")
    (question,) = person.asked
    assert question.request.script == UNKNOWN_PROGRAM
    assert question.scopes == ("once",)
