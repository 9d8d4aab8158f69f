# SPDX-License-Identifier: Apache-2.0
"""A grant is for this very command: not for another program in its place, nor for other variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernel.answering import Person, opened
from tests.support import NamedByHost
from unspill import Rules, Sandbox
from unspill.errors import DeniedError, UsageError
from unspill.model.permission import UNKNOWN_PROGRAM, Allowed, Question
from unspill.model.plan import Plan
from unspill.sandbox import permits, running

if TYPE_CHECKING:
    from typing import Any

    from tests.attack.arena import Arena
    from tests.support import Ground
    from unspill.model.permission import Answer
    from unspill.sandbox.project import Project

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

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
    """A person who allows everything to a command for as long as they are offered."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        scopes = [scope for scope in question.scopes if scope != "project"]
        return Allowed(digest=question.digest, by="test", scope=scopes[-1])


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


# What is made before the tool is allowed, besides `interp`, and which file is exchanged afterwards
INTERPRETERS = {
    "named in full": ("printf '#!%s/interp\\n' $PWD > tool", "interp"),
    "named from the working directory": ("printf '#! ./interp\\n' > tool", "interp"),
    "of the interpreter": ("printf '#!%s/first\\n' $PWD > tool; printf '#!%s/interp\\n' $PWD > first", "interp"),
    "found by env": (
        "mkdir -p .packages/bin; mv interp .packages/bin; printf '#!/usr/bin/env interp\\n' > tool",
        "bin",
    ),
    "behind options of env": ("printf '#!/usr/bin/env -S A=b %s/interp\\n' $PWD > tool", "interp"),
    "in the playground": ("mv interp ~/playground; printf '#!%s/playground/interp\\n' $HOME > tool", "playground"),
    "that is told to run another script": ("printf '#!/bin/sh %s/interp\\n' $PWD > tool", "interp"),
}
PLACES = {"interp": "interp", "bin": ".packages/bin/interp", "playground": "~/playground/interp"}


def is_used_by_another(sandbox: Sandbox, person: Longest, case: str, command: list[str]) -> bool:
    """Have a script allowed, exchange what runs it, and tell whether that ran without a question."""
    before, place = INTERPRETERS[case]
    make = f"{WRITE.format('benign', 'interp')}; chmod 755 interp; {before}"
    assert sandbox.run(f"{make}; chmod 755 tool *; true", after="hold").ok
    first = sandbox.run(command, hosts=["example.org"], after="hold")
    assert first.stdout.kept() == b"benign\n", first.text()
    asked = len(person.asked)
    sandbox.run(WRITE.format("hostile", PLACES[place]), after="hold")
    second = sandbox.run(command, hosts=["example.org"], after="hold")
    assert second.stdout.kept() == b"hostile\n", second.text()
    return len(person.asked) == asked


@pytest.mark.view("sealed", reason="a rootfs has no place for these paths; its own scripts are allowed once only")
@pytest.mark.parametrize("case", INTERPRETERS)
def test_e6_a_grant_does_not_cover_an_interpreter_that_was_exchanged(
    arena: Arena, ground: Ground, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a script allowed for as long as it goes, exchange the program that runs it, and start it again.

    Control: where nobody looks at what runs a script, the grant covers the other one.
    """
    monkeypatch.setenv("PATH", f"{ground.project}/.packages/bin:/usr/bin:/bin")
    person = Longest()
    sandbox = attended(ground, person)
    assert not is_used_by_another(sandbox, person, case, ["./tool"])
    with arena.patch.context() as patch:
        patch.setattr(running, "_interpreter_of", lambda _head: None)
        sandbox.discard()
        assert is_used_by_another(sandbox, person, case, ["./tool"])


@pytest.mark.view("sealed", reason="a rootfs shows no toolchain")
def test_e6_a_grant_for_a_tool_outside_does_not_cover_another_interpreter_in_the_project(
    arena: Arena, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchange the project's own interpreter that a script of a toolchain names, as tools of a virtual environment do.

    Control: where nobody looks at what runs a script, the grant covers the other one.
    """
    toolchain = ground.home / ".cargo/bin"
    toolchain.mkdir(parents=True)
    (toolchain / "outside").write_text(f"#!{ground.project}/interp\n")
    (toolchain / "outside").chmod(0o755)
    monkeypatch.setenv("PATH", f"{toolchain}:/usr/bin:/bin")
    person = Longest()
    sandbox = attended(ground, person)
    assert not is_used_by_another(sandbox, person, "named in full", ["outside"])
    with arena.patch.context() as patch:
        patch.setattr(running, "_interpreter_of", lambda _head: None)
        assert is_used_by_another(sandbox, person, "named in full", ["outside"])


@pytest.mark.view("sealed", reason="the same program is looked for on the host")
def test_e6_a_grant_does_not_cover_another_loader_of_the_project(arena: Arena, ground: Ground) -> None:
    """Give a program a loader in the project, have it allowed, and exchange the loader.

    Control: where nobody looks at what loads a program, the grant covers the other one.
    """
    program = bytearray(Path("/usr/bin/true").read_bytes())
    loader = running._interpreter_of(bytes(program[:8192]))
    assert loader is not None
    assert loader.startswith(b"/")
    start = program.index(loader)
    program[start : start + len(loader)] = b"./loader".ljust(len(loader), b"\0")
    (ground.project / "tool").write_bytes(program)
    (ground.project / "tool").chmod(0o755)
    person = Longest()
    sandbox = attended(ground, person)
    copy = f"cp {os.fsdecode(loader)} loader; chmod 755 loader; "

    def is_covered() -> bool:
        assert sandbox.run(copy, after="hold").ok
        assert sandbox.run(["./tool"], hosts=["example.org"], after="hold").ok
        asked = len(person.asked)
        assert sandbox.run(f"{copy} echo more >> loader", after="hold").ok
        assert sandbox.run(["./tool"], hosts=["example.org"], after="hold").ok
        return len(person.asked) == asked

    assert not is_covered()
    with arena.patch.context() as patch:
        patch.setattr(running, "_interpreter_of", lambda _head: None)
        assert is_covered()


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"", None),
        (b"echo no mark\n", None),
        (b"#!/bin/sh\n", b"/bin/sh"),
        (b"#! \t/bin/sh -eu \nx", b"/bin/sh"),
        (b"#!interp\n", b"./interp"),
        (b"#!/bin/sh script\n", b""),
        (b"#!/bin/sh --rcfile=/x/y\n", b""),
        (b"#!/usr/bin/env python3\n", b"python3"),
        (b"#!/usr/bin/env ./python3\n", b"./python3"),
        (b"#!/usr/bin/env -S python3\n", b""),
        (b"#!/usr/bin/env A=b\n", b""),
        (b"#!/usr/bin/env\n", b""),
        (b"#!\n", b""),
        (b"#!/bin/sh", b""),
        (b"#!/" + b"a" * 300 + b"\n", b""),
        (b"\x7fELF", b""),
        (b"\x7fELF\x02\x01" + b"\xff" * 100, b""),
    ],
)
def test_e6_what_runs_a_file_is_read_as_the_kernel_reads_it(head: bytes, found: bytes | None) -> None:
    """Begin a file in every form. What is unclear is nothing, and so allowed once only.

    Control: what runs a plain script is found.
    """
    assert running._interpreter_of(head) == found


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
    with pytest.raises(DeniedError, match="changed after"):
        attempt()
    with arena.patch.context() as patch:
        patch.setattr(running, "check_program", lambda *_given: None)
        assert attempt() == b"hostile\n"
    assert len(person.asked) == 1


@pytest.mark.view("sealed", reason="a rootfs shows no toolchain; test_rootfs.py has a link of the tree")
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
    # What is allowed for the project is allowed whatever the program
    assert question.scopes == ("once", "project")


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

    monkeypatch.setattr(running, "digest_of", nothing)
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
