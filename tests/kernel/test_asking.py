# SPDX-License-Identifier: Apache-2.0
"""What is wanted beyond the policy: asked for with all that matters, given to this command alone, and in the audit."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kernel.answering import Person, opened
from tests.support import Ground, is_rootfs_chosen, kinds, printed, shell_of_texts
from unspill import Callback, DeniedError, Network, Question, Rules, Sandbox, UnspillError
from unspill.errors import UsageError
from unspill.model.permission import INHERITED, UNKNOWN_PROGRAM, HeldPath
from unspill.model.run import InheritedInput, OutputChunk
from unspill.permissions.approvers import RetryQueue, answer_question, find_question
from unspill.permissions.audit import MOST_PATHS, Audit
from unspill.store.permissions import to_form

if TYPE_CHECKING:
    from unspill.model.run import Event

pytestmark = pytest.mark.kernel


@pytest.fixture
def other(ground: Ground) -> Path:
    directory = ground.top / "other"
    directory.mkdir()
    return directory


def test_network_denied_means_that_nothing_is_run(ground: Ground) -> None:
    person = Person(False)
    with pytest.raises(DeniedError) as caught:
        opened(ground, person).run("echo x > ran", network=True)
    assert caught.value.message == "Permission denied: Run command with network access: echo x > ran?"
    assert person.texts == ["Run command with network access: echo x > ran?"]
    assert opened(ground, person).runs() == ()


def test_network_is_asked_each_time_with_two_answers_and_never_stored(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person)
    for _ in range(3):
        assert sandbox.run(["true"], network=True).ok
    assert len(person.asked) == 3
    assert len({question.id for question in person.asked}) == 3
    assert [[choice.label for choice in question.choices] for question in person.asked] == [["Allow", "Deny"]] * 3
    person.answer = "always"
    with pytest.raises(DeniedError):
        sandbox.run(["true"], network=True)
    assert sandbox.run("test -z $HTTPS_PROXY").ok, "the next command has no network"


def test_without_an_approver_all_is_denied_and_it_is_said_what_helps(ground: Ground) -> None:
    with pytest.raises(DeniedError, match="Permission denied: Run command with network access: true") as caught:
        ground.sandbox().run(["true"], network=True)
    assert "terminal" in caught.value.remedy


def test_a_plain_run_asks_nothing_and_loads_nothing_of_it(ground: Ground) -> None:
    person = Person()
    assert opened(ground, person).run("echo x > file; rm file; cat /etc/hostname; true").ok
    assert person.asked == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"network": True, "working_dir": "missing"},
        {"network": True, "env": {"LD_PRELOAD": "x"}},
        {"hosts": ["*.com"]},
        {"hosts": ["localhost"]},
        {"hosts": ["127.0.0.1"]},
        {"hosts": ["example.org", "http://example.org"]},
        {"hosts": "example.org"},
        {"readable": ["/there/is/nothing"]},
        {"roots": ["/"]},
        {"roots": ["/etc"]},
        {"roots": ["/there/is/nothing"]},
        {"roots": ["/etc/passwd"]},
        {"reveal": ["main.c"]},
        {"unsandboxed": True, "working_dir": "missing"},
        {"unsandboxed": True, "working_dir": "/there/is/nothing"},
        {"network": True, "roots": ["/"]},
    ],
    ids=str,
)
def test_everything_is_checked_before_a_person_is_asked(ground: Ground, wanted: dict[str, Any]) -> None:
    ground.write("main.c")
    person = Person()
    with pytest.raises(UnspillError):
        opened(ground, person, permissions=Rules(unsandboxed="ask")).run("echo x", **wanted)
    assert person.asked == []


def test_an_empty_command_is_nobodys_question(ground: Ground) -> None:
    person = Person()
    with pytest.raises(UsageError, match="Command cannot be empty"):
        opened(ground, person).run(" ", network=True)
    assert person.asked == []


def test_what_the_configuration_denies_is_not_asked(ground: Ground, other: Path) -> None:
    person = Person()
    sandbox = opened(ground, person, permissions=Rules(network="deny", egress="deny", roots="deny", readable="deny"))
    for wanted in ({"network": True}, {"hosts": ["example.org"]}, {"roots": [str(other)]}, {"readable": [str(other)]}):
        with pytest.raises(DeniedError, match="Permission denied") as caught:
            sandbox.run("true", **wanted)
        assert "permissions." in caught.value.remedy
    assert person.asked == []


def test_nobody_is_asked_about_one_thing_while_another_is_denied_anyway(ground: Ground, other: Path) -> None:
    person = Person()
    with pytest.raises(DeniedError):
        opened(ground, person, permissions=Rules(network="deny")).run("true", network=True, roots=[str(other)])
    assert person.asked == []


def test_a_granted_root_is_written_for_this_command_alone(ground: Ground, other: Path) -> None:
    person = Person()
    sandbox = opened(ground, person, after="apply")
    result = sandbox.run(f"echo x > {other}/new; echo y > here", roots=[str(other)])
    assert result.ok
    assert (other / "new").read_text() == "x\n"
    assert person.texts == [f"Let the sandbox change files in {other}?"]
    sandbox.undo()
    assert not (other / "new").exists()
    assert not (ground.project / "here").exists()
    assert not sandbox.run(f"echo x > {other}/new").ok


def test_what_is_held_of_a_granted_root_is_seen_applied_and_discarded_later(ground: Ground, other: Path) -> None:
    sandbox = opened(ground, Person())
    sandbox.run(f"echo x > {other}/new; echo y > {other}/two", roots=[str(other)])
    later = opened(ground, Person(False))
    assert kinds(later.changes()) == {"new": "added", "two": "added"}
    assert "+x" in later.diff()
    assert not later.run(f"cat {other}/new").ok, "to look at it is not to have it"
    later.apply([str(other / "new")])
    assert (other / "new").read_text() == "x\n"
    assert later.discard().changed == 1
    assert not (other / "two").exists()


def test_a_readable_path_is_seen_by_this_command_alone(ground: Ground, other: Path) -> None:
    (other / "notes").write_text("read me\n")
    person = Person()
    sandbox = opened(ground, person)
    assert printed(sandbox.run(["cat", str(other / "notes")], readable=[str(other)])) == "read me\n"
    assert not sandbox.run(["cat", str(other / "notes")]).ok
    assert not sandbox.run(f"echo x > {other}/notes", readable=[str(other)]).ok
    assert person.texts[0] == f"Let the sandbox read {other}?"


def test_what_is_seen_anyway_is_not_asked_about(ground: Ground, other: Path) -> None:
    person = Person()
    ground.write("inside/file")
    sandbox = opened(ground, person, roots=(os.fsencode(other),), network=Network(hosts=("*.example.org",)))
    shown = ["inside"] if is_rootfs_chosen() else ["/usr/bin", "inside"]
    assert sandbox.run("true", readable=shown, roots=["inside", str(other)]).ok
    assert sandbox.run("true", hosts=["www.example.org"]).ok
    assert person.asked == []


def test_a_link_is_shown_as_what_it_leads_to(ground: Ground, other: Path) -> None:
    (ground.project / "link").symlink_to(other)
    person = Person()
    opened(ground, person).run("true", roots=["link"])
    assert person.texts == [f"Let the sandbox change files in {other}?"]


def test_a_secret_is_revealed_to_this_command_alone(ground: Ground) -> None:
    ground.write(".env", "TOKEN=x\n")
    person = Person()
    sandbox = opened(ground, person)
    assert printed(sandbox.run("cat .env", reveal=[".env"])) == "TOKEN=x\n"
    assert not sandbox.run("cat .env").ok
    assert person.texts == [f"Show the secret {ground.project}/.env to the sandbox?"]


def test_named_hosts_are_for_this_command_alone(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person)
    assert sandbox.run("test -n $HTTPS_PROXY", hosts=["Example.org", "example.org."]).ok
    assert person.texts == ["Allow connections to example.org for: test -n $HTTPS_PROXY?"]
    assert sandbox.run("test -z $HTTPS_PROXY").ok


def test_who_is_allowed_the_network_need_not_be_asked_about_hosts_of_the_web(ground: Ground) -> None:
    person = Person()
    assert opened(ground, person).run("true", network=True, hosts=["example.org", "example.org:443"]).ok
    assert person.texts == ["Run command with network access: true?"]
    assert opened(ground, person).run("true", network=True, hosts=["example.org:22", "example.org"]).ok
    assert "Allow connections to example.org:22 for: true?" in person.texts


def test_a_remembered_answer_is_for_that_very_command(ground: Ground, other: Path) -> None:
    person = Person("always")
    sandbox = opened(ground, person)
    wanted: dict[str, Any] = {"roots": [str(other)]}
    sandbox.run(["touch", "a"], **wanted)
    sandbox.run(["touch", "a"], **wanted)
    opened(ground, person, "second").run(["touch", "a"], **wanted)
    assert len(person.asked) == 1
    ground.write("sub/file")
    third = ground.top / "third"
    third.mkdir()
    for command, more in (
        (["touch", "b"], {}),
        ("touch a", {}),
        (["touch", "a"], {"working_dir": "sub"}),
        (["touch", "a"], {"env": {"MORE": "1"}}),
        (["touch", "a"], {"readable": [str(third)]}),
    ):
        before = len(person.asked)
        sandbox.run(command, **wanted, **more)
        assert len(person.asked) > before


def test_an_answer_for_a_sandbox_is_not_for_another(ground: Ground, other: Path) -> None:
    person = Person("sandbox")
    for name in ("default", "default", "second"):
        opened(ground, person, name).run(["true"], roots=[str(other)])
    assert len(person.asked) == 2


@pytest.mark.parametrize("is_held", [False, True])
def test_a_program_of_the_project_that_has_changed_is_asked_about_again(
    ground: Ground, other: Path, is_held: bool
) -> None:
    script = ground.write("tool", "#!/bin/sh\ntrue\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    person = Person("always")
    sandbox = opened(ground, person)
    for _ in range(2):
        sandbox.run(["./tool"], roots=[str(other)])
    assert len(person.asked) == 1
    if is_held:
        sandbox.run("echo false >> tool")
    else:
        script.write_text("#!/bin/sh\nfalse\n")
    sandbox.run(["./tool"], roots=[str(other)])
    assert len(person.asked) == 2


def test_an_answer_that_is_taken_back_is_asked_for_again(ground: Ground, other: Path) -> None:
    from unspill.sandbox.permits import Office

    person = Person("always")
    sandbox = opened(ground, person)
    sandbox.run(["true"], roots=[str(other)])
    with Office() as office:
        (grant,) = office.grants()
        office.revoke(grant.id[:6])
    sandbox.run(["true"], roots=[str(other)])
    assert len(person.asked) == 2


def test_an_approver_that_fails_denies(ground: Ground) -> None:
    def fail(_question: Question) -> bool:
        raise ValueError("no")

    sandbox = Sandbox(ground.project, policy=ground.policy(), approver=Callback(fail))
    ground.opened.append(sandbox)
    with pytest.raises(DeniedError, match="Permission denied"):
        sandbox.run("true", network=True)


def test_who_asks_too_often_is_paused(ground: Ground) -> None:
    person = Person(False)
    sandbox = opened(ground, person)
    for _ in range(5):
        with pytest.raises(DeniedError):
            sandbox.run("true", network=True)
    assert len(person.asked) == 3


def test_who_gives_up_while_the_person_thinks_is_free_at_once(ground: Ground) -> None:
    thinking, answered = threading.Event(), threading.Event()

    def think(_question: Question) -> bool:
        thinking.set()
        return answered.wait(30)

    sandbox = Sandbox(ground.project, policy=ground.policy(), approver=Callback(think))
    ground.opened.append(sandbox)

    async def give_up() -> None:
        task = asyncio.create_task(sandbox.arun("echo x > ran", network=True, after="apply"))
        await asyncio.to_thread(thinking.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun = time.monotonic()
    asyncio.run(give_up())
    assert time.monotonic() - begun < 10
    answered.set()
    deadline = time.monotonic() + 10
    while "unspill-question" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert sandbox.runs() == (), "a yes that came too late runs nothing"


def test_an_answer_is_awaited_in_an_event_loop(ground: Ground) -> None:
    person = Person()
    result = asyncio.run(opened(ground, person).arun(["true"], network=True))
    assert result.ok
    person.answer = False
    with pytest.raises(DeniedError):
        asyncio.run(opened(ground, person).arun(["true"], network=True))


class SameAnswer:
    """Always says the same, and remembers what was asked."""

    def __init__(self, answer: str) -> None:
        self.asked: list[Question] = []
        self._answer = answer

    def __call__(self, question: Question) -> str:
        self.asked.append(question)
        return self._answer


def opened_for(ground: Ground, person: SameAnswer) -> Sandbox:
    return Sandbox(ground.project, policy=ground.policy(), approver=Callback(person))  # type: ignore[arg-type]


def test_a_lasting_answer_is_for_the_very_input(ground: Ground) -> None:
    person = SameAnswer("always")
    with opened_for(ground, person) as sandbox:
        for said, count in ((b"echo a", 1), (b"echo a", 1), (b"echo b", 2), (b"", 3), (b"echo a", 3)):
            result = sandbox.run(["sh", "-s"], stdin=said, hosts=["example.org"])
            assert result.ok
            assert len(person.asked) == count


def test_a_person_sees_what_the_command_reads(ground: Ground) -> None:
    person = SameAnswer("once")
    with opened_for(ground, person) as sandbox:
        sandbox.run(["sh", "-s"], stdin=b"curl \x1b[2Jexample.org\n", hosts=["example.org"])
        sandbox.run(["sh", "-s"], stdin=b"x" * 100_000, hosts=["example.org"])
    assert person.asked[0].lines[-1] == 'input:     "curl \\u{1b}[2Jexample.org\\n"'
    assert max(map(len, person.asked[1].lines)) < 300


def test_what_comes_by_a_descriptor_is_allowed_once_or_to_every_command_of_the_project(ground: Ground) -> None:
    person = SameAnswer("once")
    with opened_for(ground, person) as sandbox, open(os.devnull, "rb") as nothing:
        sandbox.run(["sh", "-s"], stdin=nothing.fileno(), hosts=["example.org"])
    assert person.asked[0].scopes == ("once", "project")
    assert person.asked[0].request.stdin == UNKNOWN_PROGRAM


def test_input_that_a_caller_merely_has_does_not_shorten_an_answer_or_need_another(ground: Ground) -> None:
    person = SameAnswer("always")
    with opened_for(ground, person) as sandbox, open(os.devnull, "rb") as nothing:
        inherited = InheritedInput(nothing.fileno())
        for given in (inherited, inherited, None):
            assert sandbox.run(["true"], stdin=given, hosts=["example.org"]).ok
        assert len(person.asked) == 1
        assert person.asked[0].request.stdin == INHERITED
        assert "always" in person.asked[0].scopes
        # Whoever is asked is told that any input will do
        assert any(line.startswith("input:     whatever is piped to `unspill run`") for line in person.asked[0].lines)
        (grant,) = sandbox._project.store.grants.all()
        assert grant.request.stdin == ""


def test_an_answer_for_no_input_is_none_for_a_given_one(ground: Ground) -> None:
    person = SameAnswer("always")
    with opened_for(ground, person) as sandbox, open(os.devnull, "rb") as nothing:
        for given, count in (
            (InheritedInput(nothing.fileno()), 1),
            (b"echo a", 2),
            ("echo a", 2),
            (InheritedInput(nothing.fileno()), 2),
        ):
            assert sandbox.run(["sh", "-s"], stdin=given, hosts=["example.org"]).ok
            assert len(person.asked) == count


@pytest.mark.parametrize(("said", "is_run"), [(b"echo a", True), (b"echo b", False)])
def test_an_answer_that_came_later_is_for_the_very_input(ground: Ground, said: bytes, is_run: bool) -> None:
    with Sandbox(ground.project, policy=ground.policy()) as sandbox:
        requests = sandbox._project.store.requests
        first = RetryQueue(requests, wait_s=0.0)
        with pytest.raises(Exception, match="Permission denied"):
            sandbox.run(["sh", "-s"], stdin=b"echo a", network=True, approver=first)
        (waiting,) = first.left_open
        answer_question(requests, find_question(requests, waiting), scope="once", by="ann")
        second = RetryQueue(requests, wait_s=0.0)
        if is_run:
            assert sandbox.run(["sh", "-s"], stdin=said, network=True, approver=second).stdout.kept() == b"a\n"
        else:
            with pytest.raises(Exception, match="Permission denied"):
                sandbox.run(["sh", "-s"], stdin=said, network=True, approver=second)


def test_a_program_that_applies_what_is_held_has_the_person_asked(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person)
    sandbox.run("echo evil > .envrc; echo fine > file")
    operation = sandbox.apply(asked_by="model")
    assert person.texts == ["Apply the held change of .envrc?"]
    assert operation.left == ()
    assert (ground.project / ".envrc").read_text() == "evil\n"


# What a command leaves, the path, and the lines of the question that are about it
SHOWN: dict[str, tuple[str, str, list[str]]] = {
    "a file": (
        "printf 'echo evil\\033[8m\\n' > .bashrc",
        ".bashrc",
        ["becomes:   a file of 14 bytes", r'has:       "echo evil\u{1b}[8m\n"'],
    ),
    "one that can be run": (
        "echo x > .bashrc; chmod 777 .bashrc",
        ".bashrc",
        ["becomes:   a file of 2 bytes, executable, writable by everybody", r'has:       "x\n"'],
    ),
    "a link": ("ln -s /etc/passwd .bashrc", ".bashrc", ["becomes:   a symbolic link", "leads to:  /etc/passwd"]),
    "a link with letters that look alike": (
        "ln -s /etc/p\u0430sswd .bashrc",
        ".bashrc",
        [
            "becomes:   a symbolic link",
            r'leads to:  "/etc/p\u{430}sswd"',
            r'careful:   "/etc/p\u{430}sswd" mixes letters that look alike',
        ],
    ),
    "a long file, whatever comes where the shown part ends": (
        "{ yes | head -c 180; printf 'exit 0 # the end'; yes | head -c 5000; } > .bashrc",
        ".bashrc",
        [
            "becomes:   a file of 5196 bytes",
            'begins:    "' + r"y\n" * 90 + r"exit 0 # the endy\ny\n" + '" and 4996 more bytes',
        ],
    ),
    "one word": (
        "head -c 5000 /dev/zero | tr '\\0' y > .bashrc",
        ".bashrc",
        ["becomes:   a file of 5000 bytes", "begins:    " + "y" * 200 + " and 4800 more bytes"],
    ),
    "a file with the name of a secret": (
        "echo TOKEN=abc > .npmrc",
        ".npmrc",
        ["becomes:   a file of 10 bytes; its content is not shown because of its name: see `unspill diff`"],
    ),
    "one in disguise": (
        "echo TOKEN=abc > .NpmRC",
        ".NpmRC",
        ["becomes:   a file of 10 bytes; its content is not shown because of its name: see `unspill diff`"],
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_whoever_is_asked_sees_why_it_is_held_and_what_it_becomes(ground: Ground, case: str) -> None:
    command, path, expected = SHOWN[case]
    person = Person(False)
    sandbox = opened(ground, person)
    sandbox.run(command)
    sandbox.apply(asked_by="model")
    (question,) = person.asked
    assert question.text == f"Apply the held change of {path}?"
    labels = ("becomes:", "begins:", "has:", "leads to:", "careful:")
    assert [line for line in question.lines if line.startswith(labels)] == expected
    assert any(line.startswith("because:   ") for line in question.lines)
    assert all(line.isprintable() and len(line) < 1500 for line in question.lines)


def test_what_a_held_file_has_is_not_in_the_audit_nor_in_a_grant(ground: Ground) -> None:
    ground.run(["git", "init", "-q", "."], after="apply")
    with open(ground.project / ".git/config", "a") as file:
        file.write('[remote "x"]\n\turl = https://me:hunter2@example.org/x\n')
    person = Person("always")
    sandbox = opened(ground, person)
    sandbox.run("git config core.fsmonitor ./x")
    assert sandbox.apply(asked_by="model").left == ()
    assert any("hunter2" in line for question in person.asked for line in question.lines)
    kept = [path.read_bytes() for path in (ground.state / "audit").iterdir()]
    assert any(b".git/config" in text for text in kept)
    assert not any(b"hunter2" in text for text in kept)
    (grant,) = sandbox._project.store.grants.all()
    assert b"hunter2" not in to_form(grant.request)


def test_a_reason_that_a_command_chose_is_bounded(ground: Ground) -> None:
    ground.run(["git", "init", "-q", "."], after="apply")
    person = Person(False)
    sandbox = opened(ground, person)
    sandbox.run("printf '[x]\\n\\t%s = 1\\n' $(head -c 200000 /dev/zero | tr '\\0' k) >> .git/config")
    sandbox.apply(asked_by="model")
    (question,) = person.asked
    assert isinstance(question.request, HeldPath)
    assert len(question.request.why) <= 300


def test_a_held_file_to_which_the_person_says_no_stays_held(ground: Ground) -> None:
    sandbox = opened(ground, Person(False))
    sandbox.run("echo evil > .envrc; echo fine > file")
    operation = sandbox.apply(asked_by="model")
    assert [(left.path, left.why) for left in operation.left] == [(b".envrc", "held")]
    assert (ground.project / "file").exists()
    assert not (ground.project / ".envrc").exists()


def test_an_answer_for_a_held_file_is_for_that_content(ground: Ground) -> None:
    person = Person("always")
    sandbox = opened(ground, person)
    for content, count in (("one", 1), ("one", 1), ("two", 2)):
        sandbox.run(f"echo {content} > .envrc; date +%N > file")
        assert sandbox.apply(asked_by="model").left == ()
        assert len(person.asked) == count
        sandbox.undo()


def test_what_changes_while_the_person_is_asked_is_not_applied(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person)
    sandbox.run("echo shown > .envrc")

    def ask(question: Question) -> bool:
        opened(ground, person).run("echo other > .envrc")
        return True

    deceived = Sandbox(ground.project, policy=ground.policy(), approver=Callback(ask))
    ground.opened.append(deceived)
    operation = deceived.apply(asked_by="model")
    assert not (ground.project / ".envrc").exists()
    assert operation.left


def test_a_held_directory_is_never_asked_about_nor_let_in_with_all_it_contains(ground: Ground) -> None:
    ground.run(["git", "init", "-q", "."], after="apply")
    person = Person()
    sandbox = opened(ground, person)
    sandbox.run("mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit")
    sandbox.apply(asked_by="model")
    assert all("pre-commit" in text for text in person.texts), person.texts


def test_a_persons_own_apply_asks_nothing(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person)
    sandbox.run("echo evil > .envrc")
    assert [left.why for left in sandbox.apply().left] == ["held"]
    assert person.asked == []


def audit_of(ground: Ground) -> list[dict[str, Any]]:
    return list(Audit(os.fsencode(ground.state / "audit")).events())


def test_requests_answers_runs_and_operations_are_in_one_audit(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person, after="apply")
    sandbox.run("echo x > file", network=True)
    sandbox.undo()
    person.answer = False
    with pytest.raises(DeniedError):
        sandbox.run("echo x > file", network=True)
    sandbox.run("echo y > file", after="hold")
    sandbox.discard()
    events = audit_of(ground)
    assert [event["kind"] for event in events] == [
        *("request", "answer", "run", "operation", "operation"),
        *("request", "answer", "run", "operation"),
    ]
    assert [event["answer"] for event in events if event["kind"] == "answer"] == ["allowed", "denied"]
    assert [event["what"] for event in events if event["kind"] == "operation"] == ["apply", "undo", "discard"]
    run = events[2]
    assert (run["command"], run["ending"], run["network"]) == (
        [shell_of_texts(), "-c", "echo x > file"],
        "Exited 0",
        "proxy",
    )


def test_the_audit_names_every_path_that_changed(ground: Ground) -> None:
    other = ground.top / "other"
    other.mkdir()
    for name in ("changed", "deleted", "touched"):
        ground.write(name, "old")
    sandbox = opened(ground, Person(), after="apply")
    far = f"{other}/far"
    sandbox.run(f"echo x > changed; rm deleted; mkdir d; touch d/new touched '{far}'; ln -s x l", roots=[str(other)])
    sandbox.undo()
    sandbox.run("touch held kept; echo y > changed", after="hold")
    sandbox.discard(["held"])
    sandbox.discard()
    sandbox.run("true")
    project = {"changed", "d", "d/new", "deleted", "l"}
    assert [(event.get("what", "run"), set(event["paths"])) for event in audit_of(ground) if "paths" in event] == [
        ("run", {*project, far}),
        ("apply", {*project, far}),
        ("undo", {*project, far}),
        ("run", {"changed", "held", "kept"}),
        ("discard", {"held"}),
        ("discard", {"changed", "kept"}),
        ("run", set()),
    ]


def test_of_very_many_paths_the_audit_names_some_and_counts_the_others(ground: Ground) -> None:
    ground.sandbox(after="apply").run(f"seq {MOST_PATHS + 7} | xargs touch")
    for event in audit_of(ground):
        assert (len(event["paths"]), event["more_paths"], event["changed"]) == (MOST_PATHS, 7, MOST_PATHS + 7)


@pytest.mark.parametrize("unsandboxed", [False, True])
def test_a_run_that_its_caller_broke_off_is_in_the_audit_too(ground: Ground, unsandboxed: bool) -> None:
    def give_up(event: Event) -> None:
        if isinstance(event, OutputChunk):
            raise KeyboardInterrupt

    sandbox = opened(ground, Person(), permissions=Rules(unsandboxed="ask"))
    with pytest.raises(KeyboardInterrupt) as raised:
        sandbox.run("echo x; sleep 9", on_event=give_up, unsandboxed=unsandboxed)
    told = "It ran without a sandbox: what it has changed is not known" if unsandboxed else "It had changed nothing."
    assert told in raised.value.__notes__[0]
    *_asked, event = audit_of(ground)
    assert (event["kind"], event["command"]) == ("run", [shell_of_texts(), "-c", "echo x; sleep 9"])
    ending = "failed: KeyboardInterrupt" if unsandboxed else "Cancelled 130"
    assert (event["ending"], event["sandboxed"]) == (ending, not unsandboxed)


def test_a_run_that_can_not_be_recorded_says_so(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert not any("audit" in warning for warning in sandbox.run("true").warnings)
    directory = ground.state / "audit"
    (directory / "lock").unlink()
    (directory / "lock").mkdir()
    assert any("audit" in warning for warning in sandbox.run("true").warnings)
