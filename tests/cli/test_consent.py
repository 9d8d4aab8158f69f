# SPDX-License-Identifier: Apache-2.0
"""`diff`, `apply` and `run` at a person's terminal: what is asked there, and consent to exactly what was shown."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.terminal_person import ASKED, Person, at_terminal, seated
from tests.support import Ground, kinds, run_cli
from unspill import Callback, Hunks, Question, Sandbox, Selection
from unspill.model.change import Consent

pytestmark = pytest.mark.kernel

SET_ATTRIBUTE = """python3 -c 'import os; os.setxattr(".envrc", "user.late", b"1")'"""
LINES = "".join(f"{number}\n" for number in range(40))


def hold(ground: Ground, script: str) -> None:
    assert ground.sandbox().run(script).ok


def advised(text: str, option: str = "--include") -> str:
    """Return the word that the last advice has for an option."""
    return str(re.findall(rf"{option} (\S+@\w+)", text)[-1])


def summary(ground: Ground) -> str:
    return run_cli("apply", cwd=ground.project).stderr.decode()


def applied(ground: Ground, name: str = ".envrc") -> str | None:
    path = ground.project / name
    return path.read_text() if path.exists() else None


def test_what_was_shown_on_a_terminal_is_applied_by_its_token(ground: Ground) -> None:
    hold(ground, "echo one > .envrc")
    _code, seen = at_terminal("diff", cwd=ground.project)
    assert "+one\n" in seen
    assert advised(seen) == advised(summary(ground))
    # By then nobody need sit at a terminal
    assert run_cli("apply", "--include", advised(seen), cwd=ground.project).returncode == 0
    assert applied(ground) == "one\n"


def test_each_advice_for_a_held_file_over_ones_own_works_when_it_is_followed(ground: Ground) -> None:
    ground.write(".env", "mine\n")
    hold(ground, "echo one > .env")
    _code, seen = at_terminal("diff", cwd=ground.project)
    (words,) = re.findall(r"replace your own with what is shown: unspill (apply .*)", seen)
    assert f"unspill {words.strip()}" in summary(ground)
    # Without the second option it is a conflict, whose advice has both
    done = run_cli("apply", "--include", advised(seen), cwd=ground.project)
    assert (done.returncode, applied(ground, ".env")) == (6, "mine\n")
    assert f"unspill {words.strip()}, or" in done.stderr.decode()
    assert run_cli(*words.split(), cwd=ground.project).returncode == 0
    assert applied(ground, ".env") == "one\n"


@pytest.mark.parametrize(
    "change",
    ["echo two > .envrc", "echo more >> .envrc", "chmod 755 .envrc", "rm .envrc; ln -s a .envrc", SET_ATTRIBUTE],
)
def test_what_changed_after_it_was_shown_is_not_applied_by_the_token(ground: Ground, change: str) -> None:
    hold(ground, "echo one > .envrc")
    word = advised(at_terminal("diff", cwd=ground.project)[1])
    hold(ground, change)
    done = run_cli("apply", "--include", word, cwd=ground.project)
    assert done.returncode == 4
    assert b"ERROR: Not applied: .envrc changed after you reviewed it.\n" in done.stderr
    assert not os.path.lexists(ground.project / ".envrc")


UNSEEN: dict[str, tuple[str, ...]] = {
    "a summary": ("apply",),
    "a summary as JSON": ("apply", "--json"),
    "changes": ("changes",),
    "a diff in a pipe": ("diff",),
    "a diff of the file in a pipe": ("diff", ".envrc"),
    "a diff as JSON": ("diff", "--json"),
}


@pytest.mark.parametrize("how", UNSEEN)
def test_what_was_not_shown_on_a_terminal_was_not_shown(ground: Ground, how: str) -> None:
    hold(ground, "echo one > .envrc")
    run_cli(*UNSEEN[how], cwd=ground.project)
    done = run_cli("apply", "--include", advised(summary(ground)), cwd=ground.project)
    assert done.returncode == 4
    assert b"ERROR: Not applied: .envrc was not shown on your terminal.\n" in done.stderr
    assert applied(ground) is None


def test_a_diff_as_json_or_of_a_run_counts_for_nothing_on_a_terminal_either(ground: Ground) -> None:
    hold(ground, "echo one > .envrc")
    for words in (("diff", "--json"), ("diff", "--run", "1"), ("changes",), ("show", "run1")):
        assert at_terminal(*words, cwd=ground.project)[0] == 0
    assert run_cli("apply", "--include", advised(summary(ground)), cwd=ground.project).returncode == 4


def test_a_name_alone_is_refused_without_a_terminal(ground: Ground) -> None:
    hold(ground, "echo one > .envrc")
    word = advised(at_terminal("diff", cwd=ground.project)[1])
    done = run_cli("apply", "--include", ".envrc", cwd=ground.project)
    assert (done.returncode, done.stdout) == (4, b"")
    assert done.stderr.decode() == (
        "ERROR: Not applied: .envrc needs the token of the version that you reviewed.\n"
        f"  On a terminal: unspill diff .envrc, then unspill apply --include {word}\n"
    )


@pytest.mark.parametrize("streams", ["0", "1", "1 2", "0 2"])
def test_the_question_needs_a_terminal_to_be_read_on_and_to_be_answered_at(ground: Ground, streams: str) -> None:
    hold(ground, "echo one > .envrc")
    person = Person()
    try:
        with seated(person, "apply", "--include", ".envrc", cwd=ground.project, streams=streams) as process:
            process.communicate(timeout=30)
        assert process.returncode == 4
    finally:
        person.hang_up()
    assert applied(ground) is None


def test_as_json_nobody_is_asked(ground: Ground) -> None:
    hold(ground, "echo one > .envrc")
    assert at_terminal("apply", "--json", "--include", ".envrc", cwd=ground.project)[0] == 4


def test_a_name_alone_is_shown_and_asked_about_on_a_terminal(ground: Ground) -> None:
    hold(ground, "echo one > .envrc; touch other")
    code, seen = at_terminal("apply", "--include", ".envrc", cwd=ground.project, answer="y\n")
    assert code == 0
    assert seen.startswith("added .envrc\n--- /dev/null\n+++ b/.envrc\n@@ -0,0 +1 @@\n+one\n")
    assert "Apply the held change to .envrc, as shown above?" in seen
    assert applied(ground) == "one\n"
    assert kinds(ground.sandbox().changes()) == {"other": "added"}


def test_after_a_no_it_is_held_and_its_token_is_worth_nothing(ground: Ground) -> None:
    hold(ground, "echo one > .envrc")
    word = advised(at_terminal("diff", cwd=ground.project)[1])
    code, seen = at_terminal("apply", "--include", ".envrc", cwd=ground.project, answer="n\n")
    assert code == 4
    assert "Not applied: you did not agree." in seen
    assert run_cli("apply", "--include", word, cwd=ground.project).returncode == 4
    assert applied(ground) is None


def test_what_changes_while_the_person_reads_is_not_applied_by_their_yes(ground: Ground) -> None:
    hold(ground, "echo one > .envrc")
    person = Person()
    try:
        with seated(person, "apply", "--include", ".envrc", cwd=ground.project) as process:
            person.wait_for("anything else = Deny] ")
            hold(ground, "echo two > .envrc")
            person.look(0.6)
            person.type("y\n")
            while process.poll() is None:
                person.look(0.05)
        seen = person.look(0.05)
    finally:
        person.hang_up()
    assert process.returncode == 6
    assert ".envrc: held: it changed after you reviewed it" in seen
    assert applied(ground) is None


def test_a_token_that_was_never_on_a_terminal_is_asked_about_there(ground: Ground) -> None:
    hold(ground, "echo one > .envrc")
    word = advised(summary(ground))
    code, seen = at_terminal("apply", "--include", word, cwd=ground.project, answer="y\n")
    assert code == 0
    assert "+one\n" in seen
    assert applied(ground) == "one\n"


def test_an_old_token_is_told_from_a_new_content_on_a_terminal(ground: Ground) -> None:
    hold(ground, "echo one > .envrc")
    word = advised(at_terminal("diff", cwd=ground.project)[1])
    hold(ground, "echo two > .envrc")
    _code, seen = at_terminal("apply", "--include", word, cwd=ground.project, answer="n\n")
    assert "unspill: .envrc changed after you reviewed it.\n" in seen
    assert "+two\n" in seen


def test_one_diff_covers_all_that_is_held_in_a_directory(ground: Ground) -> None:
    hold(ground, "mkdir .vscode; echo 1 > .vscode/tasks.json; echo 2 > .vscode/settings.json")
    word = advised(at_terminal("diff", ".vscode", cwd=ground.project)[1])
    assert word.startswith(".vscode@")
    hold(ground, "echo 3 > .vscode/launch.json")
    assert run_cli("apply", "--include", word, cwd=ground.project).returncode == 4
    word = advised(at_terminal("diff", ".vscode", cwd=ground.project)[1])
    assert run_cli("apply", "--include", word, cwd=ground.project).returncode == 0
    assert sorted(os.listdir(ground.project / ".vscode")) == ["launch.json", "settings.json", "tasks.json"]


def test_a_diff_of_a_part_is_none_of_the_whole(ground: Ground) -> None:
    hold(ground, "mkdir .vscode; echo 1 > .vscode/tasks.json; echo 2 > .vscode/settings.json")
    word = advised(at_terminal("diff", ".vscode/tasks.json", cwd=ground.project)[1])
    whole = advised(summary(ground))
    assert (word.split("@")[0], whole.split("@")[0]) == (".vscode/tasks.json", ".vscode")
    assert run_cli("apply", "--include", whole, cwd=ground.project).returncode == 4
    assert run_cli("apply", "--include", word, cwd=ground.project).returncode == 0
    assert os.listdir(ground.project / ".vscode") == ["tasks.json"]


CUT = {
    "many lines": "seq 3000 > .envrc",
    "a long line": "head -c 1000 /dev/zero | tr '\\0' x > .envrc; echo >> .envrc",
    "a line of tabs": "head -c 100 /dev/zero | tr '\\0' '\\t' > .envrc; echo >> .envrc",
    "a large file": "yes | head -c 600000 > .envrc",
}


@pytest.mark.parametrize("case", CUT)
def test_what_was_cut_was_not_shown_but_is_shown_whole_where_it_is_named(ground: Ground, case: str) -> None:
    hold(ground, CUT[case])
    assert "is held. To apply it as shown" not in at_terminal("diff", cwd=ground.project)[1]
    assert run_cli("apply", "--include", advised(summary(ground)), cwd=ground.project).returncode == 4
    word = advised(at_terminal("diff", ".envrc", cwd=ground.project)[1])
    assert run_cli("apply", "--include", word, cwd=ground.project).returncode == 0


def test_a_binary_content_is_always_asked_about(ground: Ground) -> None:
    hold(ground, "printf 'a\\0b' > .envrc")
    assert "is held. To apply it as shown" not in at_terminal("diff", ".envrc", cwd=ground.project)[1]
    word = advised(summary(ground))
    code, seen = at_terminal("apply", "--include", word, cwd=ground.project, answer="y\n")
    assert code == 0
    assert "careful:   not all of it could be shown: it is binary, too large or unreadable" in seen


def test_ordinary_paths_need_no_token(ground: Ground) -> None:
    hold(ground, "touch plain; echo one > .envrc")
    assert run_cli("apply", "--include", "plain", cwd=ground.project).returncode == 0
    assert os.listdir(ground.project) == ["plain"]


def test_hunks_are_those_that_were_read(ground: Ground) -> None:
    ground.write("text", LINES)
    hold(ground, "sed -i 's/^2$/two/; s/^30$/thirty/' text")
    _code, seen = at_terminal("diff", cwd=ground.project)
    token = re.findall(r"@@ hunk 1@(\w+)", seen)[0]
    assert f"@@ hunk 2@{token}\n" in seen
    hold(ground, "sed -i '1i evil' text")
    done = run_cli("apply", "--hunk", f"text:1@{token}", cwd=ground.project)
    assert done.returncode == 4
    assert b"text changed after you reviewed it" in done.stderr
    hold(ground, "sed -i '1d' text")
    assert run_cli("apply", "--hunk", f"text:1@{token}", cwd=ground.project).returncode == 0
    assert applied(ground, "text") == LINES.replace("2\n", "two\n", 1)


def test_hunks_without_a_token_are_shown_and_asked_about(ground: Ground) -> None:
    ground.write("text", LINES)
    hold(ground, "sed -i 's/^2$/two/; s/^30$/thirty/' text")
    done = run_cli("apply", "--hunk", "text:2", cwd=ground.project)
    assert done.returncode == 4
    assert b"text needs the token" in done.stderr
    assert advised(done.stderr.decode(), "--hunk").startswith("text:2@")
    code, seen = at_terminal("apply", "--hunk", "text:2", cwd=ground.project, answer="y\n")
    assert code == 0
    assert "Apply only hunk 2 of text, as shown above?" in seen
    assert applied(ground, "text") == LINES.replace("30\n", "thirty\n", 1)


def test_a_program_can_consent_by_content_too(ground: Ground) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo one > .envrc")
    (left,) = sandbox.apply().left
    assert left.digest.startswith(left.token)
    assert len(left.digest) == 64
    consent = Consent(root=sandbox.project, path=left.path, digest=left.digest)
    sandbox.run("echo two > .envrc")
    (refused,) = sandbox.apply(Selection(consents=(consent,))).left
    assert (refused.why, refused.reason) == ("held", "it changed after you reviewed it")
    sandbox.run("echo one > .envrc")
    assert sandbox.apply(Selection(consents=(consent,))).left == ()
    assert applied(ground) == "one\n"


def test_hunks_of_a_program_can_be_held_to_a_content(ground: Ground) -> None:
    ground.write("text", LINES)
    sandbox = ground.sandbox()
    sandbox.run("sed -i 's/^2$/two/' text")
    digest = sandbox.reviews.hunks_at(Hunks(path=b"text", numbers=(1,))).digest
    sandbox.run("sed -i 's/^two$/evil/' text")
    with pytest.raises(Exception, match="changed after you reviewed them"):
        sandbox.apply(Selection(hunks=(Hunks(path=b"text", numbers=(1,), digest=digest),)))


def test_a_question_carries_the_token_that_a_summary_prints(ground: Ground) -> None:
    asked: list[Question] = []

    def answer(question: Question) -> bool:
        asked.append(question)
        return True

    sandbox = Sandbox(ground.project, policy=ground.policy(), approver=Callback(answer))
    ground.opened.append(sandbox)
    sandbox.run("echo one > .envrc")
    word = advised(summary(ground))
    assert sandbox.apply(asked_by="model").left == ()
    assert f"token:     {word}" in asked[0].lines


def test_a_group_that_is_large_is_told_without_reading_it(ground: Ground) -> None:
    hold(ground, "truncate -s 70M .envrc")
    assert "      unspill apply --include .envrc\n" in summary(ground)


LATE = {
    "a file": "echo late > d/late",
    "bits": "chmod 777 d",
    "a directory": "mkdir d/e; chmod 777 d/e",
}


@pytest.mark.parametrize("late", LATE)
def test_what_came_into_a_directory_after_its_review_is_not_applied_by_its_token(ground: Ground, late: str) -> None:
    ground.write("d/old", "old\n")
    hold(ground, "echo one > d/.envrc")
    seen = at_terminal("diff", "d", cwd=ground.project)[1]
    hold(ground, LATE[late])
    done = run_cli("apply", "--include", f"d@{advised(seen).partition('@')[2]}", cwd=ground.project)
    assert done.returncode == 0
    assert applied(ground, "d/.envrc") == "one\n"
    assert sorted(os.listdir(ground.project / "d")) == [".envrc", "old"]
    assert (ground.project / "d").stat().st_mode & 0o777 != 0o777
    # Control: whoever names the directory without consent means all of it
    assert run_cli("apply", "d", cwd=ground.project).returncode == 0
    assert (ground.project / "d").stat().st_mode & 0o777 == 0o777 or len(os.listdir(ground.project / "d")) > 2


def test_a_question_about_a_directory_is_about_what_is_held_in_it(ground: Ground) -> None:
    hold(ground, "mkdir d; echo one > d/.envrc; echo two > d/unseen")
    _code, seen = at_terminal("apply", "--include", "d", cwd=ground.project, answer="y\n")
    assert "unseen" not in seen.partition("unspill asks")[0]
    assert os.listdir(ground.project / "d") == [".envrc"]


def test_a_diff_says_that_something_new_is_executable(ground: Ground) -> None:
    hold(ground, "echo one > plain; echo one > program; chmod 755 program")
    seen = run_cli("diff", cwd=ground.project).stdout.decode()
    assert "added program  [mode 755]\n" in seen
    assert "added plain\n" in seen


def test_bits_of_a_new_directory_are_part_of_what_was_reviewed(ground: Ground) -> None:
    hold(ground, "mkdir d; echo one > d/.envrc; echo two > d/file")
    seen = at_terminal("diff", cwd=ground.project)[1]
    hold(ground, "chmod 777 d")
    assert run_cli("apply", "--include", advised(seen), cwd=ground.project).returncode == 4
    assert not (ground.project / "d").exists()


def test_bits_that_came_after_a_review_are_not_applied_with_its_hunks(ground: Ground) -> None:
    ground.write("f", LINES)
    hold(ground, "sed -i '2s/.*/two/; 30s/.*/thirty/' f")
    seen = at_terminal("diff", "f", cwd=ground.project)[1]
    token = re.findall(r"hunk 1@(\w+)", seen)[-1]
    hold(ground, "chmod 777 f")
    assert run_cli("apply", "--hunk", f"f:1@{token}", cwd=ground.project).returncode == 4
    assert (ground.project / "f").read_text() == LINES


def test_a_name_means_the_file_of_one_root(ground: Ground) -> None:
    """Have the person's version of a file replaced in another root that has a file of the same name.

    Control: a path that a program gives relative counts from every root, as it always did.
    """
    library: Path = ground.home / "library"
    library.mkdir()
    for root in (ground.project, library):
        (root / "f").write_text("old\n")
    ground.configure('roots = ["~/library"]')
    run_cli("run", "--hold", "-c", f"echo run > f; echo run > {library}/f", cwd=ground.project)
    for root in (ground.project, library):
        (root / "f").write_text("mine\n")
    assert run_cli("apply", "--overwrite", "f", cwd=ground.project).returncode == 0
    assert (ground.project / "f").read_text() == "run\n"
    assert (library / "f").read_text() == "mine\n"
    Sandbox(ground.project).apply(Selection(overwrite=(b"f",)))
    assert (library / "f").read_text() == "run\n"


def test_another_root_is_reviewed_by_its_path(ground: Ground) -> None:
    library: Path = ground.home / "library"
    library.mkdir()
    ground.configure('roots = ["~/library"]')
    run_cli("run", "--hold", "-c", f"echo one > {library}/.envrc", cwd=ground.project)
    word = advised(at_terminal("diff", f"{library}/.envrc", cwd=ground.project)[1])
    assert word.startswith(f"{library}/.envrc@")
    assert run_cli("apply", "--include", word, cwd=ground.project).returncode == 0
    assert (library / ".envrc").read_text() == "one\n"


# Leads a session on the terminal, then becomes the program; its own streams stay what they are
STARTED = """
import os, sys
os.open(sys.argv[1], os.O_RDWR)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def person() -> Iterator[Person]:
    somebody = Person()
    yield somebody
    somebody.hang_up()


def start(ground: Ground, person: Person, *words: str) -> "subprocess.Popen[str]":
    program = str(Path(sys.executable).with_name("unspill"))
    return subprocess.Popen(
        [sys.executable, "-c", STARTED, os.ttyname(person.slave), program, "run", *words],
        cwd=ground.project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm"},
    )


def ended(run: "subprocess.Popen[str]") -> tuple[int, str, str]:
    stdout, stderr = run.communicate(timeout=30)
    return run.returncode, stdout, stderr


def answer(person: Person, keys: str, times: int = 1) -> None:
    person.wait_for(ASKED, times)
    time.sleep(0.8)
    person.type(keys)


def test_the_person_is_asked_on_the_terminal_and_the_command_runs_after_a_yes(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "--", "echo", "hello")
    answer(person, "y\n")
    assert ended(run) == (0, "hello\n", "")
    assert "Run command with network access: echo hello?" in person.look()


def test_after_anything_else_nothing_runs(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "--", "touch", "ran")
    answer(person, "\n")
    code, stdout, stderr = ended(run)
    assert (code, stdout) == (125, "")
    assert stderr.startswith("ERROR: Permission denied: Run command with network access: touch ran?\n")
    assert not (ground.project / "ran").exists()


def test_the_standard_input_of_the_program_answers_nothing(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "-i", "--", "cat")
    assert run.stdin is not None
    run.stdin.write("y\nyes\n")
    run.stdin.flush()
    answer(person, "n\n")
    assert ended(run)[0] == 125


def test_a_question_that_a_command_prints_is_one_that_nobody_has_asked(ground: Ground, person: Person) -> None:
    forged = "printf '\\nunspill asks:\\n  Run command with network access: true?\\n[y = Allow, anything else = Deny] '"
    run = start(ground, person, "-c", f"{forged}; test -z $HTTPS_PROXY && touch sealed")
    code, stdout, _ = ended(run)
    assert code == 0
    assert "unspill asks" in stdout, "it went where the command's output goes"
    person.type("y\n")
    assert "unspill asks" not in person.look(0.2), "and not to the terminal"
    assert (ground.project / "sealed").exists()


def test_a_command_can_not_reach_the_terminal_to_ask_or_to_answer(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "-c", "echo unspill asks > /dev/tty || echo closed")
    answer(person, "y\n")
    code, stdout, _ = ended(run)
    assert (code, stdout) == (0, "closed\n")


def test_a_longer_answer_spares_the_next_question(ground: Ground, person: Person) -> None:
    other = ground.top / "other"
    other.mkdir()
    words = ("-q", "--root", str(other), "--", "touch", str(other / "file"))
    run = start(ground, person, *words)
    answer(person, "always\n")
    assert ended(run)[0] == 0
    assert ended(start(ground, person, *words))[0] == 0
    assert person.look(0.1).count("unspill asks:") == 1


def test_interrupting_the_question_runs_nothing(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "--", "touch", "ran")
    answer(person, "\x03")
    assert ended(run)[0] == 130
    assert not (ground.project / "ran").exists()


@pytest.mark.parametrize("whom", [(), ("--ask", "deny")], ids=["no terminal", "deny"])
def test_what_was_denied_where_nobody_could_be_asked_is_asked_on_the_terminal(
    ground: Ground, person: Person, whom: tuple[str, ...]
) -> None:
    words = ("--allow-host", "example.org", "--", "echo", "hello")
    for _ in range(4):
        assert run_cli("run", *whom, *words, cwd=ground.project).returncode == 125
    run = start(ground, person, *words)
    answer(person, "y\n")
    assert ended(run)[:2] == (0, "hello\n")


def test_what_the_person_denied_three_times_is_not_asked_again(ground: Ground, person: Person) -> None:
    words = ("--allow-host", "example.org", "--", "echo", "hello")
    for times in (1, 2, 3):
        run = start(ground, person, *words)
        answer(person, "n\n", times)
        assert ended(run)[0] == 125
    code, _, stderr = ended(start(ground, person, *words))
    assert code == 125
    assert "the same was denied 3 times" in stderr
