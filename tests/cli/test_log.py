# SPDX-License-Identifier: Apache-2.0
"""`unspill log`, the names of runs and operations, and `undo --dry-run`."""

import json
import os
import pty
import re
import struct
import subprocess
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.prepared import PROGRAM
from tests.support import Ground, run_cli
from unspill.cli.log import _since, duration_text, is_name, moment_text
from unspill.errors import UsageError

pytestmark = pytest.mark.kernel


def told(ground: Ground, *words: str, code: int = 0) -> str:
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode == code, done
    return (done.stdout if code == 0 else done.stderr).decode()


def lines(ground: Ground, *words: str) -> list[str]:
    return told(ground, "log", *words).splitlines()


def names(ground: Ground, *words: str) -> list[str]:
    return [line.split()[0] for line in lines(ground, *words)]


@pytest.fixture
def busy(ground: Ground) -> Ground:
    """Five runs: applied, held, failed, undone, discarded."""
    ground.configure("")
    ground.write("a", "one\n")
    for options, script in (
        ((), "echo two >> a; mkdir d; echo x > d/deep"),
        (("--hold",), "echo held > held"),
        ((), "exit 3"),
        ((), "echo gone > undone"),
        (("--discard",), "echo x > dropped"),
    ):
        run_cli("run", "-q", *options, "--", "sh", "-c", script, cwd=ground.project)
        if "undone" in script:
            told(ground, "undo")
    return ground


def test_each_run_has_one_line_with_what_became_of_its_changes(busy: Ground) -> None:
    found = lines(busy)
    assert [line.split()[0] for line in found] == ["run5", "run4", "run3", "run2", "run1"]
    fates = ["1 changed, not applied", "1 changed, op2 undone", "no change", "1 changed, held", "3 changed, op1"]
    assert [fate in line for fate, line in zip(fates, found, strict=True)] == [True] * 5
    assert re.fullmatch(r"run3  \d\d:\d\d:\d\d +\d+\.\ds  exit 3  no change +sh -c \"exit 3\"", found[2])
    told(busy, "discard")
    told(busy, "redo")
    assert "1 changed, discarded op4" in lines(busy)[3]
    assert "1 changed, op2  " in lines(busy)[1]


def test_colours_mark_what_failed_and_what_is_held_and_only_where_they_are_wanted(busy: Ground) -> None:
    (busy.project / "a").write_text("one\ntwo\nmine\n")
    bad, held, name = "\x1b[31mexit 3\x1b[0m", "\x1b[33m1 changed, held\x1b[0m", "\x1b[1mrun3\x1b[0m"
    painted = told(busy, "log", "--color", "always")
    assert all(part in painted for part in (bad, held, name))
    plain = told(busy, "log")
    assert re.sub(r"\x1b\[\d*m", "", painted) == plain
    for words in (("show", "run3"), ("show", "op1"), ("blame", "a"), ("status",)):
        assert "\x1b[" in told(busy, *words, "--color", "always"), words
        assert "\x1b" not in told(busy, *words), words
    assert bad in told(busy, "show", "run3", "--color", "always")


def test_a_path_chooses_the_runs_that_changed_it_or_what_is_below(busy: Ground) -> None:
    assert names(busy, "a") == ["run1"]
    assert names(busy, "d") == ["run1"]
    assert names(busy, "d/deep") == ["run1"]
    assert names(busy, "held") == ["run2"]
    assert names(busy, "undone") == ["run4"]
    assert names(busy, "nothing") == []
    inner = run_cli("log", "--project", busy.project, "deep", cwd=busy.project / "d")
    assert inner.stdout.split()[0] == b"run1"


def test_text_time_and_number_choose_too(busy: Ground) -> None:
    assert names(busy, "--grep", "exit") == ["run3"]
    assert names(busy, "--limit", "2") == ["run5", "run4"]
    assert len(names(busy, "--since", "1h")) == 5
    assert names(busy, "--since", "2999-01-01") == []
    assert "--since: 'soon' is not a time" in told(busy, "log", "--since", "soon", code=2)
    run_cli("run", "-q", "--session", "s", "--", "true", cwd=busy.project)
    assert names(busy, "--session", "s") == ["run6"]


def test_operations_are_listed_with_all_of_them(busy: Ground) -> None:
    assert names(busy, "--all") == ["run5", "op3", "op2", "run4", "run3", "run2", "op1", "run1"]


def test_an_edit_and_a_restored_file_have_lines_of_their_own(busy: Ground) -> None:
    told(busy, "restore", "a")
    assert names(busy)[0] == "op4"
    assert "restore" in lines(busy)[0]


def at_terminal(ground: Ground, columns: int, *words: str) -> list[str]:
    """Return what is printed on a terminal of so many columns."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen([PROGRAM, *words], cwd=ground.project, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        try:
            while chunk := os.read(master, 65536):
                shown += chunk
        except OSError:
            pass  # the other side is closed
        process.wait(20)
    os.close(master)
    return shown.decode().splitlines()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_lines_are_cut_to_the_terminal(busy: Ground, columns: int) -> None:
    run_cli("run", "-q", "--", "sh", "-c", f"true {'long ' * 60}", cwd=busy.project)
    found = at_terminal(busy, columns, "log")
    assert [line.split()[0] for line in found] == ["run6", "run5", "run4", "run3", "run2", "run1"]
    assert max(map(len, found)) <= columns
    assert found[0].endswith("…")
    assert "held" in found[4]


def test_runs_and_operations_are_named_in_every_verb(busy: Ground) -> None:
    assert told(busy, "show", "@").startswith("run 5 (")
    assert told(busy, "show", "@-2").startswith("run 3 (")
    assert told(busy, "show", "run1").startswith("run 1 (")
    assert told(busy, "show", "op1").startswith("op 1 (")
    assert "+two" in told(busy, "diff", "run1", "a")
    assert "+two" in told(busy, "diff", "op1")
    assert "+held" in told(busy, "diff", "run2")
    assert told(busy, "undo", "run1").startswith("Undid op 1 (3 changes), recorded as op 4.")
    assert (busy.project / "a").read_text() == "one\n"
    assert told(busy, "redo", "run1").startswith("Redid op 1 ")
    assert told(busy, "undo", "@-4").startswith("Undid op 1 ")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("show", "@-9"), "unspill: there is no run @-9"),
        (("show", "@x"), "unspill: not a run: '@x'"),
        (("show", "run77"), "unspill: no such run: 77"),
        (("show", "77"), "unspill: no such run or operation: 77"),
        (("undo", "run2"), "unspill: no operation applied run 2: its changes are held"),
        (("undo", "run3"), "unspill: no operation applied run 3: it changed nothing, or that is not kept any more"),
        (("undo", "run4"), "unspill: what run 4 changed is undone already, by op 3"),
        (("diff", "2"), None),
    ],
)
def test_what_names_nothing_is_refused(busy: Ground, words: tuple[str, ...], problem: str | None) -> None:
    if problem is None:
        # A number may be a file: of that, nothing is simply nothing
        assert told(busy, *words) == ""
        return
    assert told(busy, *words, code=2).splitlines()[0] == problem


def test_a_file_of_such_a_name_is_a_file_to_diff(ground: Ground) -> None:
    ground.configure("")
    run_cli("run", "-q", "--hold", "--", "sh", "-c", "echo x > op1", cwd=ground.project)
    ground.write("op1", "mine\n")
    assert "+x" in told(ground, "diff", "op1")


def state_of(project: Path) -> dict[str, tuple[float, bytes]]:
    paths = [path for path in project.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ctime, path.read_bytes()) for path in paths}


def test_a_dry_run_says_what_an_undo_would_do_and_changes_nothing(busy: Ground) -> None:
    (busy.project / "d/deep").write_text("mine\n")
    before = state_of(busy.project)
    done = run_cli("undo", "--dry-run", "run1", cwd=busy.project)
    assert done.returncode == 6
    shown = done.stdout.decode().splitlines()
    assert shown[0] == 'Would undo op 1 (1 change) of run 1: sh -c "echo two >> a; mkdir d; echo x > d/deep"'
    assert shown[1:3] == ["  a", "Would skip:"]
    assert "d/deep" in shown[3]
    assert state_of(busy.project) == before
    value = json.loads(run_cli("undo", "--dry-run", "--json", "run1", cwd=busy.project).stdout)
    assert (value["number"], value["changed"], len(value["left"])) == (0, 1, 2)
    # The number of the next operation is not used up, and it does what was said
    undone = run_cli("undo", "run1", cwd=busy.project)
    assert undone.stdout.decode().splitlines()[0].startswith("Undid op 1 (1 change), recorded as op 4.")
    assert busy.left_behind() == [one for one in busy.left_behind() if one.startswith("layers")]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (59.94, "59.9s"), (60, "1m00s"), (3599, "59m59s"), (7260, "2h01m")]
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_moment_is_as_short_as_it_is_clear() -> None:
    now = time.time()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", moment_text(int(now * 1e9)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", moment_text(int((now - 800 * 86_400) * 1e9)))


@pytest.mark.parametrize("given", ["", "h", "1x", "25:99", "2026-13-01", "-1h"])
def test_what_is_no_time_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        _since(given)


@pytest.mark.parametrize(
    ("word", "is_one"), [("run1", True), ("op12", True), ("@", True), ("@-1", True), ("run", False), ("opx", False)]
)
def test_a_name_is_told_from_a_path(word: str, is_one: bool) -> None:
    assert is_name(word) is is_one
