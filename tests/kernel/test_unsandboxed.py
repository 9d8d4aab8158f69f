# SPDX-License-Identifier: Apache-2.0
"""A command without a sandbox: off by default, asked each time, labelled everywhere; also where none can be made.

That none can be made is real: there is no bubblewrap, or a user namespace allows no others in it.
"""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.answering import Person, opened
from tests.kernel.masked_host import MASKS
from tests.kernel.terminal_person import ASKED, UNSPILL, seated
from tests.kernel.terminal_person import Person as TerminalPerson
from tests.support import Ground, printed, run_cli
from unspill import DeniedError, Rules
from unspill.adapters.tools import call_tool
from unspill.errors import BwrapMissing, BwrapUnsafe, UsageError
from unspill.layers.lifecycle import playground_dir

pytestmark = [pytest.mark.kernel, pytest.mark.rootfs_view]


def test_a_command_without_a_sandbox_is_denied_without_a_question_by_default(ground: Ground) -> None:
    person = Person()
    with pytest.raises(DeniedError, match="Run command WITHOUT a sandbox: true"):
        opened(ground, person).run(["true"], unsandboxed=True)
    assert person.asked == []


def test_a_command_without_a_sandbox_runs_plainly_and_is_labelled(ground: Ground, tmp_path: Path) -> None:
    person = Person()
    sandbox = opened(ground, person, permissions=Rules(unsandboxed="ask"))
    events: list[Any] = []
    result = sandbox.run(
        f"echo out; echo err >&2; cat; echo x > {tmp_path}/plain; exit 3",
        unsandboxed=True,
        stdin=b"in\n",
        on_event=events.append,
    )
    assert (result.exit_code, result.stdout.kept(), result.stderr.kept()) == (3, b"out\nin\n", b"err\n")
    assert (tmp_path / "plain").read_text() == "x\n"
    assert not result.sandboxed
    assert "WITHOUT a sandbox" in result.text()
    assert len(events) >= 4
    assert person.asked[0].request.is_dangerous
    assert [choice.label for choice in person.asked[0].choices] == ["Allow", "Deny"]
    (recorded,) = sandbox.runs()
    assert not recorded.sandboxed
    sandbox.run("true")
    assert [run.sandboxed for run in sandbox.runs()] == [True, False]


def test_a_command_without_a_sandbox_ends_in_time_and_takes_its_children_with_it(ground: Ground) -> None:
    sandbox = opened(ground, Person(), permissions=Rules(unsandboxed="ask"))
    result = sandbox.run("sleep 300 & echo begun; sleep 300", unsandboxed=True, timeout=0.5)
    assert result.exit_code == 124
    assert result.stdout.kept() == b"begun\n"
    assert result.duration_s < 10


def test_a_command_that_is_not_there_is_not_started_without_a_sandbox_either(ground: Ground) -> None:
    sandbox = opened(ground, Person(), permissions=Rules(unsandboxed="ask"))
    assert sandbox.run(["there-is-no-such-command"], unsandboxed=True).exit_code == 127


NO_BWRAP = b"/there/is/no/bwrap"
ASKING = '[permissions]\nunsandboxed = "ask"\n'


def test_where_there_is_no_bubblewrap_a_command_runs_once_somebody_allows_it(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person, bwrap=NO_BWRAP, permissions=Rules(unsandboxed="ask"))
    for count in (1, 2):
        result = sandbox.run("pwd; echo made > file", unsandboxed=True)
        assert printed(result) == f"{ground.project}\n"
        assert len(person.asked) == count, "it is asked each time"
        assert [choice.label for choice in person.asked[-1].choices] == ["Allow", "Deny"]
        assert not result.sandboxed
        assert "WITHOUT a sandbox" in result.text()
    assert (ground.project / "file").read_text() == "made\n"
    assert [run.sandboxed for run in sandbox.runs()] == [False, False]


@pytest.mark.bwrap
@pytest.mark.parametrize("options", [{}, {"network": True}, {"after": "discard"}, {"hosts": ["example.org"]}], ids=str)
def test_where_none_can_be_made_nothing_else_runs_and_nobody_is_asked(ground: Ground, options: dict[str, Any]) -> None:
    person = Person()
    sandbox = opened(ground, person, bwrap=NO_BWRAP, permissions=Rules(unsandboxed="ask"))
    for _ in range(2):
        with pytest.raises(BwrapMissing, match="There is no bwrap"):
            sandbox.run(["touch", "file"], **options)
    with pytest.raises(BwrapMissing):
        sandbox.plan("true")
    assert person.asked == []
    assert not (ground.project / "file").exists()


@pytest.mark.bwrap
def test_where_none_can_be_made_nothing_is_asked_by_default(ground: Ground) -> None:
    person = Person()
    with pytest.raises(BwrapMissing):
        opened(ground, person, bwrap=NO_BWRAP)
    assert person.asked == []


@pytest.mark.bwrap
def test_a_bubblewrap_that_somebody_may_have_planted_is_not_passed_over(ground: Ground) -> None:
    planted = ground.top / "bwrap"
    planted.write_text("#!/bin/sh\n")
    planted.chmod(0o777)
    with pytest.raises(BwrapUnsafe):
        opened(ground, Person(), bwrap=os.fsencode(planted), permissions=Rules(unsandboxed="ask"))


def test_where_nobody_can_be_asked_or_somebody_says_no_nothing_runs(ground: Ground) -> None:
    sandbox = opened(ground, Person(answer=False), bwrap=NO_BWRAP, permissions=Rules(unsandboxed="ask"))
    for approver in (None, "deny", "terminal"):
        with pytest.raises(DeniedError, match="Run command WITHOUT a sandbox: touch file"):
            sandbox.run(["touch", "file"], unsandboxed=True, approver=approver)
    assert not (ground.project / "file").exists()


WITHOUT: dict[str, tuple[tuple[str, ...], str, str]] = {
    "no bubblewrap on PATH": ((), "/there/is/nothing", "There is no bwrap on PATH"),
    "no user namespace": (("no-more-namespaces",), os.environ["PATH"], "no sandbox can be made here"),
}


@pytest.mark.bwrap
@pytest.mark.parametrize(("masks", "path", "why"), WITHOUT.values(), ids=WITHOUT.keys())
def test_a_person_at_a_terminal_types_a_word_and_the_result_is_labelled(
    ground: Ground, masks: tuple[str, ...], path: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes two seconds: a person has to read what is asked."""
    monkeypatch.setenv("PATH", path)
    program = [os.fspath(MASKS), *masks, "--", UNSPILL]
    words = ["run", "--unsandboxed", "--json", "-c", "echo said; echo made > file"]

    def seen_by(person: TerminalPerson) -> None:
        with seated(person, *program, *words, cwd=ground.project, program=sys.executable, streams="0 2") as process:
            if asked:
                person.wait_for(ASKED)
                time.sleep(0.8)
                (word,) = re.findall(r"type this word first: ([a-z]{5})\r\n", person.seen)
                person.type(f"{word} y\n")
            printed_json, _ = process.communicate(timeout=30)
            person.look(0.05)
            codes.append(process.returncode)
            texts.append(printed_json)

    codes: list[int] = []
    texts: list[bytes] = []
    for asked in (False, True):
        ground.configure(ASKING if asked else "")
        person = TerminalPerson()
        try:
            seen_by(person)
        finally:
            person.hang_up()
        assert (why in person.seen) is not asked, "the control: by default it is refused"
        assert ('`unsandboxed = "ask"`' in person.seen) is not asked
    assert codes == [125, 0]
    result = json.loads(texts[1])
    assert result["stdout"]["text"] == "said\n"
    assert result["sandboxed"] is False
    assert any("WITHOUT a sandbox" in warning for warning in result["warnings"])
    assert (ground.project / "file").read_text() == "made\n"


def test_without_a_terminal_it_is_denied_where_none_can_be_made_too(ground: Ground) -> None:
    ground.configure(f"bwrap = {os.fsdecode(NO_BWRAP)!r}\n{ASKING}")
    done = run_cli("run", "--unsandboxed", "--ask", "deny", "--", "touch", "file", cwd=ground.project)
    assert done.returncode == 125
    assert b"ERROR: Permission denied: Run command WITHOUT a sandbox: touch file?" in done.stderr
    assert not (ground.project / "file").exists()


def test_a_model_has_to_ask_for_it_and_is_told_that_it_ran_without_a_sandbox(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person, bwrap=NO_BWRAP, permissions=Rules(unsandboxed="ask"))
    refused = call_tool(sandbox, "run", {"command": "touch file"})
    assert refused.values["error"] == "bwrap-missing"
    assert person.asked == []
    answer = call_tool(sandbox, "run", {"command": "touch file", "unsandboxed": True})
    assert len(person.asked) == 1
    assert "Note: this ran WITHOUT a sandbox" in answer.text
    assert answer.values["sandboxed"] is False
    assert (ground.project / "file").exists()
    sealed = call_tool(ground.sandbox("other"), "run", {"command": "true", "unsandboxed": True})
    assert sealed.is_error, "the control: where there is a sandbox, a model can't ask for this"


@pytest.mark.parametrize("has_bwrap", [True, False])
def test_the_playground_is_where_a_command_without_a_sandbox_finds_it(ground: Ground, has_bwrap: bool) -> None:
    settings: dict[str, Any] = {} if has_bwrap else {"bwrap": NO_BWRAP}
    person = Person()
    sandbox = opened(ground, person, permissions=Rules(unsandboxed="ask"), **settings)
    place = os.fsdecode(playground_dir(os.fsencode(ground.home / ".local/share/unspill"), os.fsencode(ground.project)))
    for number, given in enumerate(("playground", ground.playground_inside)):
        assert (
            printed(sandbox.run(f"pwd; echo kept > note{number}", working_dir=given, unsandboxed=True)) == f"{place}\n"
        )
        assert f"directory: {place}" in person.asked[-1].lines
    if has_bwrap:
        assert printed(sandbox.run("cat note0 note1", working_dir="playground")) == "kept\nkept\n"
    (ground.home / "playground").mkdir()
    own = os.fspath(ground.home / "playground")
    assert printed(sandbox.run("pwd", working_dir="playground", unsandboxed=True)) == f"{place}\n"
    assert printed(sandbox.run("pwd", working_dir=own, unsandboxed=True)) == f"{own}\n", "this one is the person's"
    with pytest.raises(UsageError, match="does not exist"):
        sandbox.run("pwd", working_dir=f"{ground.playground_inside}/missing", unsandboxed=True)
