# SPDX-License-Identifier: Apache-2.0
"""What a run does and leaves, on every engine: output, exit code, a held layer, an untouched project."""

import os
from pathlib import Path

import pytest

from tests.support import Ground, kinds, printed, shell_of_texts
from unspill import Exited, Policy, Sandbox, UnspillError
from unspill.errors import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


def tree_of(top: Path) -> dict[str, bytes | None]:
    """Return every path below a directory, with its content where it is a file."""
    return {os.fspath(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


def test_what_a_command_writes_is_held_and_the_project_is_not_touched(ground: Ground, engine: str) -> None:
    ground.write("kept", "same\n")
    ground.write("edited", "original\n")
    ground.write("removed", "gone soon\n")
    before = tree_of(ground.project)
    result = ground.run("echo test > file.txt && echo modified > edited && rm removed && mkdir -p d/e")
    assert result.outcome == Exited(code=0)
    assert result.held
    assert kinds(result.changes) == {
        "d": "added",
        "d/e": "added",
        "edited": "modified",
        "file.txt": "added",
        "removed": "deleted",
    }
    assert tree_of(ground.project) == before


def test_a_command_that_fails_still_holds_what_it_wrote(ground: Ground, engine: str) -> None:
    result = ground.run("echo x > file; false")
    assert result.outcome == Exited(code=1)
    assert result.held
    assert kinds(ground.sandbox().changes()) == {"file": "added"}


def test_a_held_layer_is_seen_by_the_next_run(ground: Ground, engine: str) -> None:
    ground.write("a", "1")
    sandbox = ground.sandbox()
    sandbox.run("echo 2 > a; echo new > b")
    assert printed(sandbox.run("cat a b")) == "2\nnew\n"
    sandbox.run("rm a; echo more >> b")
    assert printed(sandbox.run("ls; cat b")) == "b\nnew\nmore\n"
    assert kinds(sandbox.changes()) == {"a": "deleted", "b": "added"}


def test_a_sandbox_is_reopened_by_its_name(ground: Ground, engine: str) -> None:
    with Sandbox(ground.project, policy=ground.policy()) as first:
        first.run("echo x > file")
    with Sandbox(ground.project, policy=ground.policy()) as again:
        assert printed(again.run("cat file")) == "x\n"


def test_another_sandbox_of_the_project_sees_nothing_of_it(ground: Ground, engine: str) -> None:
    ground.sandbox().run("echo x > file")
    other = ground.sandbox("other")
    assert printed(other.run("ls -A")) == ""
    assert not other.changes()


def test_what_is_discarded_is_not_seen_again(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo x > file")
    sandbox.run("echo y > other")
    assert sandbox.discard().number == 1
    assert not sandbox.changes()
    assert printed(sandbox.run("ls -A")) == ""
    assert sandbox.discard().number == 0
    assert ground.left_behind() == []


def test_a_run_may_throw_its_changes_away(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo held > file")
    result = sandbox.run("cat file; echo changed > file; touch new", after="discard")
    assert printed(result) == "held\n"
    assert not result.held
    assert kinds(result.changes) == {"file": "modified", "new": "added"}
    assert printed(sandbox.run("ls; cat file")) == "file\nheld\n"


def test_the_policy_may_throw_changes_away(ground: Ground) -> None:
    sandbox = ground.sandbox(after="discard")
    assert kinds(sandbox.run("touch file").changes) == {"file": "added"}
    assert not sandbox.changes()


def test_the_changes_of_one_run_can_be_asked_for(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    first = sandbox.run("echo 1 > file; touch a")
    second = sandbox.run("echo 2 > file; rm a; touch b")
    assert kinds(sandbox.changes(run=first.number)) == {"a": "added", "file": "added"}
    assert kinds(sandbox.changes(run=second.run)) == {"a": "deleted", "b": "added", "file": "modified"}
    assert kinds(sandbox.changes()) == {"b": "added", "file": "added"}
    with pytest.raises(UsageError, match="no such run: 99"):
        sandbox.changes(run=99)


def test_a_run_that_changes_nothing_holds_nothing(ground: Ground, engine: str) -> None:
    ground.write("file", "x")
    result = ground.run("cat file; ls -R; test -e missing || true")
    assert not result.held
    assert not result.changes
    assert ground.left_behind() == []


def test_what_was_made_and_removed_within_a_run_is_no_change(ground: Ground, engine: str) -> None:
    ground.write("dir/file", "x")
    result = ground.run("touch dir/new && rm dir/new && mkdir -p d/e && rm -r d")
    assert not result.changes
    assert not result.held
    assert ground.left_behind() == []


def test_nothing_is_left_in_the_project_or_of_a_run(ground: Ground, engine: str) -> None:
    ground.write("file", "x")
    held = ground.run("echo y > file; mkdir d; chmod 0 d")
    assert held.held
    assert len([name for name in ground.left_behind() if not name.startswith("layers/")]) == 0
    ground.sandbox().discard()
    assert ground.left_behind() == []
    assert tree_of(ground.project) == {"file": b"x"}


def test_shell_syntax_works(ground: Ground, engine: str) -> None:
    ground.write("test_one")
    ground.write("other")
    assert printed(ground.run("ls | grep test")) == "test_one\n"
    result = ground.run("echo test > file.txt 2>&1 && cat file.txt; (exit 3) || echo $((1+2)) `echo x` $(echo y)")
    assert printed(result) == "test\n3 x y\n"


def test_a_list_of_words_needs_no_shell(ground: Ground) -> None:
    assert printed(ground.run(["printf", "%s|", "a b", "$HOME", "*", "\n", ""])) == "a b|$HOME|*|\n||"


def test_a_shell_text_of_a_mebibyte_is_run(ground: Ground, engine: str) -> None:
    text = "x=" + "a" * (1 << 20) + "\necho ${#x} $0; echo $# >&2; exit 7"
    result = ground.run(text)
    assert result.exit_code == 7
    assert result.stdout.kept().split()[0] == b"1048576"
    assert result.stderr.kept() == b"0\n"


def test_a_command_may_have_more_words_than_bwrap_takes(ground: Ground) -> None:
    words = ["it's", "", "$HOME", "a b\n", *map(str, range(20_000))]
    show = "import sys; print(len(sys.argv), sys.argv[1:5], sys.argv[-1])"
    result = ground.run(["python3", "-c", show, *words])
    assert printed(result) == f"20005 {words[:4]} 19999\n"


def test_a_word_that_the_kernel_would_not_take_is_refused_with_the_remedy(ground: Ground) -> None:
    for words in (["a" * (1 << 20)], ["a" * 100_000] * 30):
        with pytest.raises(UsageError) as refused:
            ground.run(["echo", *words])
        assert "stdin" in refused.value.remedy
    assert ground.run(["true", *["a" * 100_000] * 15]).ok


@pytest.mark.parametrize("command", ["", "  \n", [], [""]])
def test_an_empty_command_is_refused_in_the_words_of_the_seeds(ground: Ground, command: str | list[str]) -> None:
    with pytest.raises(UsageError, match=r"^Command cannot be empty$"):
        ground.run(command)


def test_a_command_with_nul_is_refused(ground: Ground) -> None:
    with pytest.raises(UsageError, match="NUL"):
        ground.run("echo a\0b")


def test_a_text_that_is_no_unicode_is_refused(ground: Ground) -> None:
    for command in ("echo \ud800", ["echo", "\ud800"]):
        with pytest.raises(UsageError, match="not a text"):
            ground.run(command)
    assert ground.run(b"echo \xff").stdout.kept() == b"\xff\n"


def test_a_project_that_is_not_there_is_refused(ground: Ground) -> None:
    with pytest.raises(UsageError, match="no such project directory"):
        Sandbox(ground.top / "missing", policy=Policy())


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "a\nb"])
def test_a_name_that_is_none_is_refused(ground: Ground, name: str) -> None:
    with pytest.raises(UsageError, match="not a name for a sandbox"):
        ground.sandbox(name)


def test_an_earlier_run_is_in_the_log_with_all_it_said(ground: Ground) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo out; echo err >&2; touch file; exit 4")
    sandbox.run(["true"])
    latest, first = sandbox.runs()
    assert (latest.number, first.number) == (2, 1)
    assert first.argv == (shell_of_texts().encode(), b"-c", b"echo out; echo err >&2; touch file; exit 4")
    assert first.cwd == os.fsencode(ground.inside())
    assert first.outcome == Exited(code=4)
    assert (first.stdout.head, first.stderr.head) == (b"out\n", b"err\n")
    assert (first.changed, first.held) == (1, True)
    assert (latest.changed, latest.held) == (0, False)
    assert sandbox.find_run(first.id) == first == sandbox.find_run(1)


def test_every_error_of_ours_has_a_code_and_an_exit_code(ground: Ground) -> None:
    with pytest.raises(UnspillError) as refused:
        ground.run("")
    assert (refused.value.code, refused.value.exit_code) == ("usage", 2)
