# SPDX-License-Identifier: Apache-2.0
"""What is wanted beyond the policy: asked for, given to this command alone, and nothing runs where it is denied."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.answering import Person, opened
from tests.support import Ground, is_rootfs_chosen, kinds, printed
from unspill import Callback, DeniedError, Network, Question, Rules, Sandbox, UnspillError
from unspill.errors import UsageError

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
        {"network": True, "cwd": "missing"},
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
        {"unsandboxed": True, "cwd": "playground"},
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
        (["touch", "a"], {"cwd": "sub"}),
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
