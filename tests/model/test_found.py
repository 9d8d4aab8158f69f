# SPDX-License-Identifier: Apache-2.0
"""What the model found, each as a person would type it. Every script starts with three texts of 24 lines."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import Ground, directory_on
from unspill import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.any_bwrap]

# What a terminal has shown may be applied by its token, which is told to whoever lacks it
START = """
for name in f g d/a; do seq -f "$name%g" 24 > $name; done
hunk() {
    script -qec "unspill diff ${1%:*}" /dev/null > /dev/null
    unspill apply --hunk "$(unspill apply --hunk "$1" 2>&1 | sed -n 's/.*--hunk \\(.*@.*\\)/\\1/p')" > /dev/null
}
"""
Shell = Callable[[str], str]


@pytest.fixture
def shell(ground: Ground) -> Shell:
    """Runs a script in the project; what fails in it ends it, and so does the test."""
    (ground.project / "d").mkdir()
    path = os.pathsep.join([os.fspath(Path(sys.executable).parent), os.environ["PATH"]])

    def run(script: str) -> str:
        words = ["bash", "-euc", START + script]
        done = subprocess.run(
            words, cwd=ground.project, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def expect(shell: Shell, script: str, *, printed: str) -> None:
    """Run a script and compare what it prints, without the spaces around lines."""
    lines = [line.strip() for line in shell(script).splitlines()]
    assert lines == [line.strip() for line in printed.strip().splitlines()]


def test_after_a_hunk_is_undone_commands_see_what_two_runs_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/ONE/' g"
    unspill run -q --hold -c "sed -i '22s/.*/TWO/' g"
    hunk g:1; unspill undo > /dev/null
    unspill run -q --discard -- grep -E 'ONE|TWO' g
    unspill apply > /dev/null; grep -E 'ONE|TWO' g"""
    expect(shell, script, printed="ONE\nTWO\nONE\nTWO")


def test_a_discarded_hunk_comes_back_when_its_discard_is_undone_after_another_apply(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/' g"
    unspill discard --hunk g:1 > /dev/null; unspill apply > /dev/null; unspill undo > /dev/null
    unspill undo op1 > /dev/null
    unspill run -q --discard -- grep -E 'ONE|TWO' g
    unspill apply; grep -E 'ONE|TWO' g"""
    printed = "ONE\nTWO\nApplied 1 change (op 5). Undo: unspill undo\nM g\nONE\nTWO"
    expect(shell, script, printed=printed)


def test_the_only_hunk_of_a_file_can_be_applied_after_its_undo(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '3s/.*/t2/' f"; hunk f:1; unspill undo > /dev/null
    unspill apply > /dev/null; grep -c t2 f; unspill changes"""
    expect(shell, script, printed="1\nNothing is held.")


def test_a_hunk_that_is_undone_below_a_later_run_is_no_edit_of_the_person(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '12s/.*/t1/' f"; hunk f:1
    unspill run -q --hold -c "sed -i '2d' f"
    unspill undo op1 > /dev/null
    unspill apply --theirs f; wc -l < f; grep -c t1 f"""
    expect(shell, script, printed="Applied 1 change (op 3). Undo: unspill undo\nM f\n23\n1")


def test_a_hunk_that_is_undone_and_redone_leaves_nothing_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '3s/.*/t2/' g"; hunk g:1; unspill undo > /dev/null; unspill redo > /dev/null
    unspill changes; unspill apply; grep -c t2 g"""
    expect(shell, script, printed="Nothing is held.\nNothing is held.\n1")


def test_lines_that_are_undone_can_be_applied_with_the_others(shell: Shell, ground: Ground) -> None:
    shell("""unspill run -q --hold -c "sed -i '2s/.*/A/;3s/.*/B/;22s/.*/C/' g" """)
    from unspill import Hunks, Selection

    sandbox = ground.sandbox()
    sandbox.apply(Selection(hunks=(Hunks(path=b"g", numbers=(), lines=(1, 3)),)))
    sandbox.undo()
    operation = sandbox.apply()
    assert (operation.left, operation.notes) == ((), ())
    assert [line for line in (ground.project / "g").read_text().split() if line in "ABC"] == ["A", "B", "C"]


@pytest.mark.parametrize("change", ["sed -i '12s/.*/RUN/' f", "chmod 755 f"])
def test_a_file_that_the_person_deleted_does_not_come_back(shell: Shell, change: str) -> None:
    script = f"""
    unspill run -q --hold -c "{change}"; rm f
    unspill apply > /dev/null 2>&1 || echo $?
    test ! -e f; unspill changes | tail -n 1"""
    lines = shell(script).split("\n")
    assert lines[0] == "6"
    assert lines[1].split() == ["A", "f"]


def test_a_file_that_another_sandbox_deleted_does_not_come_back(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '3s/.*/RUN/' d/a"; unspill run -q --hold --sandbox b -c "rm d/a"
    unspill apply --sandbox b > /dev/null
    unspill apply > /dev/null 2>&1 || echo $?
    test ! -e d/a"""
    expect(shell, script, printed="6")


def test_when_the_last_hunk_of_a_file_is_applied_nothing_of_it_is_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '12s/.*/RUN/' f"; hunk f:1
    sed -i '3s/.*/MINE/' f
    unspill changes
    unspill run -q -- grep MINE f
    unspill run -q -- sh -c 'echo x >> f'; tail -n 1 f"""
    expect(shell, script, printed="Nothing is held.\nMINE\nx")


def test_what_was_undone_is_no_edit_in_the_way_of_a_held_deletion(shell: Shell) -> None:
    script = """
    unspill run -q --hold --sandbox b -c "rm f"; unspill run -q -c "sed -i '2s/.*/X/' f"; unspill undo > /dev/null
    unspill apply --sandbox b"""
    expect(shell, script, printed="Applied 1 change (op 3). Undo: unspill undo\nD f")


def test_what_was_undone_and_redone_is_no_edit_in_the_way_of_a_held_deletion(shell: Shell) -> None:
    script = """
    unspill run -q -c "sed -i '2s/.*/X/' f"; unspill run -q --hold -c "rm f"
    unspill undo > /dev/null; unspill redo > /dev/null
    unspill apply"""
    expect(shell, script, printed="Applied 1 change (op 4). Undo: unspill undo\nD f")


def test_what_was_undone_and_redone_is_not_told_as_an_edit_of_the_person(shell: Shell) -> None:
    script = """
    unspill run -q -c "sed -i '2s/.*/X/' f"; unspill run -q --hold -c "sed -i '12s/.*/Y/' f"
    unspill undo > /dev/null; unspill redo > /dev/null
    unspill apply"""
    expect(shell, script, printed="Applied 1 change (op 4). Undo: unspill undo\nM f")


def test_what_is_as_the_run_left_it_is_not_told_as_merged(shell: Shell) -> None:
    """What is held is folded before the redo, since nothing is left of g."""
    script = """
    unspill run -q --hold -c "sed -i '22it4' g; sed -i '2d' d/a"; unspill apply d/a > /dev/null
    unspill run -q --apply -c "sed -i '22d' g"; unspill undo > /dev/null
    unspill run -q --hold -c "sed -i '3s/.*/t5/' d/a"; unspill changes > /dev/null; unspill redo > /dev/null
    unspill apply; head -2 d/a | tail -1"""
    expect(shell, script, printed="Applied 1 change (op 5). Undo: unspill undo\nM d/a\nd/a3")


def test_a_redo_that_merged_can_be_undone(shell: Shell) -> None:
    script = """
    unspill run -q -c "sed -i '23s/.*/t6/' d/a; echo t8 > d/n2"; unspill undo > /dev/null
    unspill run -q --hold -c "sed -i '22it13' d/a"; unspill apply > /dev/null
    unspill redo > /dev/null; grep -E 't6|t13' d/a
    unspill undo op1 > /dev/null
    grep -E 't6|t13' d/a; test ! -e d/n2"""
    expect(shell, script, printed="t13\nt6\nt13")


def test_commits_that_arrived_beside_a_moved_branch_are_held_again_with_their_files(shell: Shell) -> None:
    script = """
    git config --global user.name P; git config --global user.email p@example.org
    git init -q -b main; git add -A; git commit -qm base
    unspill run -q --hold -c "mv f d/n2; git add -A; git commit -qm t4"
    rm g; git add -A; git commit -qm t6
    unspill apply > /dev/null 2>&1 || true; unspill undo > /dev/null
    unspill changes | grep -E ' (D f|A d/n2|R f => d/n2)$' | wc -w"""
    assert shell(script).strip() in ("4", "5")


def test_a_held_edit_that_an_applied_run_moved_is_held_again_after_its_undo(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/EDIT/' f"
    unspill run -q -c "mv f n1" 2> /dev/null; unspill undo > /dev/null
    unspill changes; unspill run -q --discard -- grep EDIT f; test ! -e n1"""
    expect(shell, script, printed="1 modified\nM f\nEDIT")


def test_permissions_of_the_run_and_an_edit_of_the_person_are_merged(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "chmod 755 f"; sed -i '2s/.*/MINE/' f
    unspill apply > /dev/null; stat -c %a f; grep MINE f"""
    expect(shell, script, printed="755\nMINE")


def test_an_undo_keeps_the_permissions_that_the_person_changed(shell: Shell) -> None:
    script = """
    unspill run -q -c "sed -i '2s/.*/X/' g"; chmod 755 g
    unspill undo > /dev/null; stat -c %a g; sed -n 2p g"""
    expect(shell, script, printed="755\ng2")


def test_what_the_person_undid_by_hand_is_not_counted(shell: Shell) -> None:
    script = """
    unspill run -q -c "sed -i '2s/.*/X/' f g"; sed -i '2s/.*/g2/' g
    unspill undo | head -n 1; unspill redo | head -n 1"""
    printed = """Undid op 1 (1 change), recorded as op 2. Redo: unspill redo
    Redid op 1 (1 change), recorded as op 3. Undo: unspill undo"""
    expect(shell, script, printed=printed)


def test_permissions_that_are_there_already_are_not_skipped(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "chmod 755 f"
    unspill run -c "chmod 755 f; echo x > n" 2>&1 | grep -c skipped || true"""
    expect(shell, script, printed="0")


def test_in_the_library_too_a_side_for_one_path_applies_nothing_else(shell: Shell, ground: Ground) -> None:
    from unspill import Selection

    shell("""unspill run -q --hold -c "sed -i '2s/.*/X/' f g" """)
    operation = ground.sandbox().apply(Selection(sides=((b"f", "theirs"),)))
    assert operation.changed == 1
    assert "X" not in (ground.project / "g").read_text()


def test_permissions_of_the_project_itself_are_held_again_after_an_undo(shell: Shell) -> None:
    script = """
    chmod 755 .; unspill run -q --hold -c "chmod 700 ."
    unspill apply > /dev/null; stat -c %a .; unspill undo > /dev/null; stat -c %a .
    unspill run -q --discard -- stat -c %a ."""
    expect(shell, script, printed="700\n755\n700")


def test_a_redo_that_could_do_nothing_can_be_tried_again(shell: Shell) -> None:
    script = """
    mkdir d/e; unspill run -q -c "mv d/a d/e/n"; unspill undo > /dev/null; rm -r d
    unspill redo > /dev/null 2>&1 || echo $?
    mkdir -p d/e; unspill redo > /dev/null; wc -l < d/e/n"""
    expect(shell, script, printed="6\n24")


def test_what_a_later_held_run_deleted_does_not_come_back_by_an_undo_beneath_it(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo 1 > n"; unspill run -q -c "echo 2 >> n; echo m > m" 2> /dev/null
    unspill run -q --hold -c "rm n"; unspill undo op1 > /dev/null
    unspill changes; unspill run -q --discard -- ls"""
    expect(shell, script, printed="Nothing is held.\nd\nf\ng")


def test_held_permissions_of_a_directory_are_seen_after_an_undo_and_a_redo_in_it(shell: Shell) -> None:
    script = """
    chmod 755 d; unspill run -q --hold -c "chmod 700 d"
    unspill run -q -c "ln -s /etc d/out; echo x > n" 2> /dev/null
    unspill undo > /dev/null; unspill run -q --discard -- stat -c %a d
    unspill redo > /dev/null; unspill run -q --discard -- stat -c %a d; unspill changes | grep -c mode"""
    expect(shell, script, printed="700\n700\n1")


@pytest.mark.parametrize("command", ["sed -i.bak 2s/.*/X/ f", "mv f f.bak; sed 2s/.*/X/ f.bak > f"])
def test_a_file_that_a_run_kept_under_another_name_is_new(shell: Shell, command: str) -> None:
    script = f"""
    sleep 0.05; unspill run -q --hold -c "{command}"
    unspill apply > /dev/null; sed -n 2p f; sed -n 2p f.bak"""
    expect(shell, script, printed="X\nf2")


def test_permissions_that_the_person_gave_the_project_are_not_held_by_an_undo(shell: Shell) -> None:
    script = """
    chmod 755 .; unspill run -q --hold -c "echo n > n"; unspill apply > /dev/null; chmod 700 .
    unspill undo > /dev/null; unspill changes; unspill run -q --discard -- stat -c %a ."""
    expect(shell, script, printed="1 added\nA n\n700")


def test_a_file_of_the_person_is_not_in_the_way_of_permissions_that_a_run_gave_the_project(shell: Shell) -> None:
    script = """
    chmod 755 .; unspill run -q --hold -c "echo n > n"; echo p > p
    unspill run -q -c "chmod 700 ."; stat -c %a ."""
    expect(shell, script, printed="700")


def test_a_directory_comes_back_though_the_file_in_its_place_was_written_again(shell: Shell) -> None:
    script = """
    mkdir e; unspill run -q -c "rmdir e; echo x > e"; rm e; echo x > e
    unspill undo > /dev/null; stat -c %F e"""
    expect(shell, script, printed="directory")


def test_a_run_may_take_back_what_was_made_in_a_directory_that_a_held_run_closed(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "mkdir e; echo 1 > e/n; chmod 500 e"
    unspill run -q --hold -c "chmod 700 e; rm e/n; chmod 500 e"
    unspill changes; unspill run -q --discard -- stat -c %a e
    find "$UNSPILL_STATE_DIR" -type d -exec chmod u+rwx {} +"""
    expect(shell, script, printed="1 added\nA e/\n500")


def test_a_directory_that_the_person_deleted_is_not_held_for_itself(shell: Shell) -> None:
    script = """
    mkdir e; sleep 0.05; unspill run -q --hold -c "echo 1 > e/n; echo 2 > m"; rmdir e
    unspill discard e/n > /dev/null; unspill changes; unspill run -q --discard -- ls"""
    expect(shell, script, printed="1 added\nA m\nd\nf\ng\nm")


def test_a_held_new_directory_that_came_along_with_a_run_is_held_again_after_its_undo(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "mkdir e; echo 1 > m"; unspill run -q -c "echo 2 > e/n"; ls
    unspill undo > /dev/null; unspill changes"""
    expect(shell, script, printed="d\ne\nf\ng\n2 added\nA e/\nA m")


def test_a_held_deletion_of_what_was_applied_stays_when_an_older_run_is_undone(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo 1 > n"; unspill run -q -c "echo 2 >> n; echo m > m" 2> /dev/null
    unspill apply > /dev/null; unspill run -q --hold -c "rm n"; unspill undo op1 > /dev/null
    unspill run -q -c "echo o > o"; unspill changes"""
    expect(shell, script, printed="1 deleted\nD n")


def test_a_file_that_a_run_could_not_see_is_not_replaced(shell: Shell) -> None:
    script = """
    mkdir e; unspill run -q --hold -c "echo 1 > e/n"; rmdir e; echo mine > e
    unspill run -q --hold -c "rm -r e; echo run > e"
    unspill apply > /dev/null 2>&1 || echo $?; cat e"""
    expect(shell, script, printed="6\nmine")


def test_a_text_that_a_later_held_run_deletes_is_not_lost(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo text > n; echo 2 > m"; unspill run -q --hold -c "rm n"
    grep -rq text "$UNSPILL_STATE_DIR/layers"; unspill apply > /dev/null
    grep -rq text "$UNSPILL_STATE_DIR/operations"; cat m"""
    expect(shell, script, printed="2")


def test_what_a_later_held_run_takes_back_does_not_hide_what_the_person_makes_there(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo run > n; sed -i '2s/.*/ONE/' g"
    unspill run -q --hold -c "rm n; sed -i '2s/.*/g2/' g"
    echo mine > n; sed -i '5s/.*/MINE/' g
    unspill changes; unspill run -q --discard -- cat n; unspill run -q -- sed -n 5p g
    unspill run -q -c "echo more >> g"; tail -n 1 g"""
    expect(shell, script, printed="Nothing is held.\nmine\nMINE\nmore")


def test_a_directory_that_a_run_made_anew_with_the_same_files_still_has_them(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "cp -a d /tmp/d; rm -r d; cp -a /tmp/d d; echo x > d/new"
    unspill run -q --discard -- ls d"""
    expect(shell, script, printed="a\nnew")


def test_an_undo_leaves_a_file_in_the_place_of_a_directory_that_a_later_run_holds(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/t5/' d/a"; (unspill apply d/a; unspill undo) > /dev/null
    unspill run -q --hold -c "rm -r d; echo t10 > d"; (unspill redo; unspill undo) > /dev/null 2>&1
    unspill run -q --discard -- cat d"""
    expect(shell, script, printed="t10")


def test_a_directory_with_an_edited_file_stays_whatever_held_runs_made_of_it(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/t2/' d/a"; sed -i '3it4' d/a
    unspill run -q --hold -c "rm f"; (unspill apply f; unspill undo) > /dev/null 2>&1
    unspill run -q --hold -c "mv d n1"; unspill redo > /dev/null 2>&1
    unspill apply > /dev/null 2>&1 || echo $?; grep t4 d/a"""
    expect(shell, script, printed="6\nt4")


def test_a_directory_comes_back_though_somebody_deleted_the_file_in_its_place(shell: Shell) -> None:
    script = """
    unspill run -q --apply -c "rm -r d; echo t1 > d"; rm d; unspill undo op1 > /dev/null; head -n 1 d/a"""
    expect(shell, script, printed="d/a1")


def test_a_redo_replaces_a_directory_in_which_the_person_deleted_a_file(shell: Shell) -> None:
    script = """
    unspill run -q --apply -c "rm -r d; echo t1 > d"; unspill undo > /dev/null; rm d/a
    unspill redo > /dev/null; cat d"""
    expect(shell, script, printed="t1")


def test_undo_means_no_operation_by_which_a_run_only_dropped_what_it_took_back(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '23s/.*/t3/' g; mkdir d/n2"; hunk g:1
    unspill run -q --apply -c "rmdir d/n2"; unspill undo | grep -o "op 1"; tail -n 2 g | head -n 1"""
    expect(shell, script, printed="op 1\ng23")


def test_an_edit_just_before_a_command_in_a_reused_sandbox_is_no_conflict(ground: Ground) -> None:
    text = ground.project / "text"
    text.write_text("one\ntwo\n")
    with ground.sandbox() as sandbox:
        for number in range(8):
            sandbox.run("true", after="discard", reuse=True)
            text.write_text(f"one\n{number}\n")
            result = sandbox.run("echo three >> text", after="apply", reuse=True)
            assert result.operation is not None
            assert result.operation.left == ()


def test_a_discard_of_all_but_what_the_project_has_leaves_nothing_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo X > f; echo m > m"; echo X > f; unspill discard m > /dev/null
    unspill changes; unspill undo > /dev/null; unspill changes | tail -n 1"""
    expect(shell, script, printed="Nothing is held.\nA m")


def test_a_run_that_closed_a_directory_with_a_touched_file_is_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "touch d/a; chmod 400 d; echo n > n"; unspill changes | tail -n 2"""
    expect(shell, script, printed="m d/  [mode 755 to 400]\nA n")


def test_what_a_later_run_deleted_stays_held_after_an_undo_and_a_redo_beneath_it(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "mkdir e; echo n > e/n; sed -i '3s/.*/t1/' f"; unspill apply > /dev/null
    unspill run -q --hold -c "rm -r e; sed -i '3s/.*/f3/' f"; (unspill undo; unspill redo) > /dev/null
    unspill changes | grep -o '^  . [ef]'"""
    expect(shell, script, printed="D e\nM f")


def test_a_redo_leaves_no_directory_over_a_file_that_took_its_place(shell: Shell) -> None:
    script = """
    git config --global user.name P; git config --global user.email p@example.org
    git init -q -b main; git add -A; git commit -qm base
    unspill run -q --hold -c "sed -i '3d' d/a; git add -A; git commit -qm t1"
    echo t2 >> f; git commit -qam t2; unspill apply > /dev/null
    rm -r d; echo t3 > d; git add -A; git commit -qm t3; (unspill undo; unspill redo) > /dev/null
    unspill changes; unspill run -q --discard -- cat d"""
    expect(shell, script, printed="Nothing is held.\nt3")


def test_what_an_operation_left_deleted_with_its_directory_and_was_applied_since_is_not_held_again(
    shell: Shell,
) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/t1/' d/a; rm f"; unspill run -q --apply -c "mv -T d m" || echo $?
    (unspill apply d; unspill undo op1) > /dev/null; unspill changes; ls"""
    expect(shell, script, printed="1 deleted\nD f\nf\ng")


def test_a_directory_that_a_run_only_made_again_is_not_held_when_the_person_deletes_it(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "mv -T d m; mkdir d"; rm -r d; unspill changes
    (unspill apply m/a; unspill undo) > /dev/null; unspill changes"""
    expect(shell, script, printed="2 added\nA m/\nA m/a\n2 added\nA m/\nA m/a")


def test_files_of_a_directory_that_a_run_moved_and_made_again_are_applied_beside_what_is_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/t1/' g"
    unspill run -q --apply -c "mv -T d m; mkdir d; echo t2 > d/a"; unspill changes; head -n 1 m/a; cat d/a"""
    expect(shell, script, printed="1 modified\nM g\nd/a1\nt2")


def test_a_dry_run_of_an_undo_knows_that_a_directory_is_not_empty(shell: Shell) -> None:
    script = """
    unspill run -q --apply -c "rm -r d"; unspill run -q --apply -c "mkdir d; echo t1 > d/n"
    unspill undo op1 > /dev/null; unspill undo --dry-run 2>&1 | grep -o 'd: conflict.*'"""
    expect(shell, script, printed="d: conflict: the directory is not empty")


def test_directories_in_each_other_that_the_person_deleted_are_not_held_for_what_was_deleted_in_them(
    shell: Shell,
) -> None:
    script = """
    mkdir -p e/k; echo t1 > e/k/n; unspill run -q --hold -c "mv e/k/n n"; rm -r e; unspill changes"""
    expect(shell, script, printed="1 added\nA n")


@pytest.mark.parametrize("what", ["d/n2", ""])
def test_an_undone_discard_is_held_again_though_a_later_run_made_the_directory_anew(shell: Shell, what: str) -> None:
    script = f"""
    unspill run -q --hold -c "mv d/a d/n2; chmod 755 f"; unspill discard {what} > /dev/null
    unspill run -q --hold -c "rm -r d; mkdir d; echo t1 > d/a"; unspill undo > /dev/null
    unspill run -q --discard -- sh -c 'head -n 1 d/n2; cat d/a'"""
    expect(shell, script, printed="d/a1\nt1")


def test_a_held_file_that_a_redo_took_away_beneath_it_is_no_new_file(shell: Shell) -> None:
    """It was made from the file that is gone, whatever lay beneath it in between."""
    script = """
    rm -f bin; printf 'a\\n' > bin; unspill run -q --hold -c "rm bin"
    (unspill apply bin; unspill restore bin --from op1) > /dev/null
    unspill run -q --hold -c "echo t15 > bin"; (unspill undo; unspill undo; unspill redo) > /dev/null
    unspill apply bin 2>&1 | grep -o 'bin: conflict.*'; ls"""
    expect(shell, script, printed="bin: conflict: it was deleted in the meantime\nd\nf\ng")


def test_an_undo_of_a_session_leaves_alone_what_its_run_took_back(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo t1 > n"; unspill run -q --apply --session s1 -c "rm n"
    unspill log | grep -q discard
    unspill undo --session s1 2>&1 | head -n 1; unspill changes; ls"""
    expect(shell, script, printed="unspill: nothing of session s1 is left to undo\nNothing is held.\nd\nf\ng")


def test_what_is_no_text_any_more_replaces_a_text_of_which_the_person_changed_the_permissions(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "printf 't1\\\\0' > f"; chmod 755 f; unspill apply 2>&1 | grep 'f:'
    stat -c %a f; tr '\\0' . < f; chmod 644 f; unspill run -q --hold -c "chmod 755 f"
    printf 't2\\0' > f; unspill apply > /dev/null 2>&1; stat -c %a f; tr '\\0' . < f"""
    expect(shell, script, printed="f: merged with your edits\n755\nt1.755\nt2.")


def test_an_undo_is_merged_though_the_operation_was_killed_before_it_was_recorded(shell: Shell) -> None:
    script = """
    unspill run -q -c "sed -i '2s/.*/RUN/' g"; unspill undo > /dev/null
    python -c "if True:
        import os, unspill, unspill.apply.operate
        unspill.apply.operate.finish = lambda *_: os._exit(9)
        unspill.Sandbox('.').redo()" || test $? = 9
    sed -n 2p g; sed -i '5s/.*/MINE/' g; unspill undo > /dev/null; sed -n '2p;5p' g"""
    expect(shell, script, printed="RUN\ng2\nMINE")


def test_a_discard_that_is_done_again_takes_away_what_a_later_run_has_written_beside(shell: Shell) -> None:
    """Its undo restores a deletion of the whole directory beneath what the later run has put into it."""
    script = """
    unspill run -q --hold --session s1 -c "echo 1 > d/n"; unspill run -q -c "rm -r d"
    unspill discard d > /dev/null; unspill run -q --hold -c "seq 3 > d/n; mkdir e"; unspill undo > /dev/null
    unspill changes | grep d/; unspill redo > /dev/null; unspill changes"""
    expect(shell, script, printed="D d/a\nA d/n\n2 added\nA d/n\nA e/")


def test_what_a_redo_leaves_of_a_replaced_directory_stays_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "rm -r d; echo > d; mkdir e"; unspill apply > /dev/null; unspill undo > /dev/null
    rm d/a; mkdir d/a; unspill redo > /dev/null 2>&1 || true; unspill changes"""
    expect(shell, script, printed="1 replaced\nT d  [was a directory, is a file]")


def test_an_undo_takes_away_what_is_in_a_directory_that_it_must_leave(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo > d/n"; rm -r d
    unspill apply > /dev/null; echo > d/mine; unspill undo > /dev/null 2>&1 || true; ls d; unspill changes"""
    expect(shell, script, printed="mine\n1 added\nA d/n")


def test_a_version_comes_back_from_an_operation_that_was_redone_after_it_was_written_again(shell: Shell) -> None:
    script = """
    unspill run -q -c "rm f"; unspill undo > /dev/null; cp f same; cat same > f; rm same; unspill redo op1 > /dev/null
    unspill restore f --from op1 > /dev/null; wc -l < f"""
    expect(shell, script, printed="24")


def test_what_a_run_takes_back_is_let_go_of_where_the_person_deleted_it(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '22it14' f"; rm f; unspill run -q --hold -c "sed -i '22d' f"; unspill changes"""
    expect(shell, script, printed="Nothing is held.")


def test_an_undo_puts_back_what_a_redo_of_a_part_displaced(shell: Shell) -> None:
    script = """
    unspill run -q -c "mv g n"; chmod 755 n; unspill undo > /dev/null 2>&1 || true; cp -p g g.new; mv g.new g
    unspill redo > /dev/null; unspill undo > /dev/null 2>&1 || true; wc -l < g"""
    expect(shell, script, printed="24")


def test_an_undo_of_a_redone_discard_holds_nothing_again_that_was_applied_since(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/t1/' f"; unspill discard > /dev/null; unspill undo > /dev/null
    unspill run -q --sandbox b --apply -c "sed -i '22it2' f"; unspill run -q --hold -c "sed -i '3it4' f"
    unspill undo op2 > /dev/null; unspill apply f > /dev/null; unspill undo op4 > /dev/null; unspill changes"""
    expect(shell, script, printed="Nothing is held.")


@pytest.mark.parametrize("way", ["an apply", "an undo"])
def test_what_a_run_takes_back_is_let_go_of_where_the_person_wrote_before_it_was_folded(shell: Shell, way: str) -> None:
    between = {
        "an apply": "echo mine > n; unspill apply > /dev/null 2>&1 || true",
        "an undo": "unspill apply f > /dev/null; unspill undo > /dev/null; echo mine > n; unspill redo > /dev/null",
    }
    script = f"""
    unspill run -q --hold -c "mv f n"; {between[way]}
    unspill run -q --hold -c "echo > g"; unspill run -q --hold -c "rm n"; unspill changes; cat n"""
    expect(shell, script, printed="1 modified\nM g\nmine")


def test_a_held_deletion_comes_back_with_a_redo_where_the_person_made_a_file_of_the_directory(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo > d/a"; unspill run -q --apply -c "rm -r d; mkdir e"; unspill undo > /dev/null
    rm -r d; echo mine > d; unspill redo > /dev/null; unspill changes; cat d"""
    expect(shell, script, printed="1 deleted\nD d\nmine")


def test_what_an_undo_put_back_is_an_edit_though_a_redo_was_rolled_back_since(shell: Shell) -> None:
    """The redo is killed before it has written its end, so the next one takes it back."""
    script = """
    unspill run -q --apply -c "sed -i 3d g"; unspill run -q --hold -c "sed -i '2s/.*/RUN/' g"
    unspill undo op1 > /dev/null
    python -c "if True:
        import os, unspill, unspill.apply.operate
        unspill.apply.operate.write_end = lambda *_: os._exit(9)
        unspill.Sandbox('.').redo()" || test $? = 9
    unspill apply > /dev/null 2>&1 || true; sed -n 2,3p g; unspill changes"""
    expect(shell, script, printed="g2\ng3\n1 modified\nM g")


def test_a_hunk_that_was_discarded_is_held_again_though_the_rest_of_the_file_was_applied_since(shell: Shell) -> None:
    script = """
    echo > n; unspill run -q --hold -c "rm n; sed -i '22s/.*/RUN/; 2d' f"
    unspill discard --hunk f:1 > /dev/null
    unspill apply > /dev/null; unspill undo op1 > /dev/null; unspill changes; unspill diff | grep '^[-+]f'"""
    expect(shell, script, printed="1 modified\nM f\n-f2")


def test_what_the_project_has_merged_already_is_not_held_any_more_after_an_apply_of_it(shell: Shell) -> None:
    script = """
    unspill run -q --sandbox b --hold -c "sed -i '12i5' g; sed -i 2s/.*/6/ f"; unspill apply --sandbox b f > /dev/null
    unspill run -q --hold -c "sed -i 23s/.*/7/ f"; unspill undo > /dev/null; unspill apply --overwrite f > /dev/null
    unspill apply --sandbox b f > /dev/null; unspill changes --sandbox b"""
    expect(shell, script, printed="1 modified\nM g")


def test_what_was_applied_beside_a_background_run_hides_no_edit_after_its_end(shell: Shell) -> None:
    """Where something else is still held."""
    script = """
    echo > gone; unspill run -q -d -- sleep 1000 > /dev/null; echo mine >> f
    unspill run -q -c "echo run >> f; echo run >> g; rm gone; ln -s d l" 2> /dev/null; unspill stop > /dev/null
    echo mine >> g; echo back > gone; ln -sfn e l
    unspill changes; unspill run -q --discard -- sh -c 'tail -qn 1 g gone; readlink l'"""
    expect(shell, script, printed="1 modified\nM f\nmine\nback\ne")


@pytest.mark.parametrize("last", ["touch d/a; echo last > n", "chmod 700 d"])
def test_what_is_written_after_the_last_checkpoint_is_applied_though_others_are_let_go_of(
    shell: Shell, last: str
) -> None:
    """What a checkpoint has applied leaves the layer, which changes directories of it."""
    script = f"""
    unspill run -q -d -c 'until test -e end; do sleep 0.05; done; {last}; touch done; exec sleep 1000' > /dev/null
    unspill run -q -- sh -c "echo run >> d/a"; touch end; sleep 1
    unspill stop > /dev/null; unspill changes; stat -c %a d; tail -n 1 d/a; cat n 2> /dev/null || true"""
    expect(
        shell,
        script,
        printed=f"Nothing is held.\n{'700' if 'chmod' in last else '755'}\nrun" + ("" if "chmod" in last else "\nlast"),
    )


def test_a_directory_of_a_held_run_is_named_whose_mode_a_run_changed_that_only_deleted_in_it(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo > keep; mkdir -p e/k; echo > e/k/n"
    unspill run --apply -c "rm e/k/n; chmod 700 e/k" 2>&1 | grep '!'; unspill changes | head -1"""
    expect(shell, script, printed="! e/k: skipped: an earlier held run changed it too\n3 added")


def test_a_directory_that_a_run_took_away_is_the_one_that_this_run_saw(shell: Shell) -> None:
    """An earlier one had changed its permissions; since then the person has put something into it."""
    script = """
    unspill run -q --hold -c "chmod 700 d"; echo > d/n2
    unspill run -q --apply -c "mv -fT d m" 2> /dev/null; unspill apply d; ls m"""
    expect(shell, script, printed="Applied 3 changes (op 2). Undo: unspill undo\nD d/\nD d/a\nD d/n2\na\nn2")


def test_a_file_is_applied_whose_path_in_the_layer_is_longer_than_the_kernel_takes(shell: Shell) -> None:
    script = """
    project=$PWD; name=$(printf 'x%.0s' $(seq 200))
    for _ in $(seq $(((4070 - ${#PWD}) / 201))); do mkdir $name; cd $name; done
    length=$((4080 - ${#PWD})); inside=${PWD#"$project/"}; cd "$project"
    unspill run -q -c "cd $inside; echo new > $(printf 'y%.0s' $(seq $length))"
    cd $inside; cat y*"""
    expect(shell, script, printed="new")


def test_a_text_that_the_person_edited_is_not_lost_with_a_directory_that_a_later_run_took_away(shell: Shell) -> None:
    """What is left of both runs is folded into one layer."""
    script = """
    unspill run -q --hold -c "sed -i '12s/.*/run/' d/a"; sed -i '12imine' d/a
    unspill run -q --hold -c "rm -rf d; echo > n; echo >> g"
    unspill apply g > /dev/null; unspill apply 2>&1 | grep '!'; grep mine d/a"""
    expect(shell, script, printed="! d/a: conflict: it changed in the project during or after the run\nmine")


def test_a_file_in_place_of_a_directory_is_held_where_the_person_edited_and_then_deleted_that(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sleep 2; rm -rf d; echo run > d" & sleep 1
    sed -i 2d d/a; wait; rm -rf d
    unspill apply 2>&1 | grep '!'; test ! -e d"""
    expect(shell, script, printed="! d: conflict: it was deleted in the meantime")


def test_a_directory_is_not_taken_away_again_whose_permissions_the_person_changed_since(shell: Shell) -> None:
    script = """
    mkdir e; unspill run -q -c "rmdir e"; unspill undo > /dev/null; chmod 700 e
    unspill redo 2>&1 | grep '!'; stat -c %a e"""
    expect(shell, script, printed="! e: conflict: it has changed since\n700")


def test_permissions_that_the_person_has_set_back_already_are_undone(shell: Shell) -> None:
    script = """
    unspill run -q -c "chmod 700 d"; chmod 755 d; unspill undo; unspill run -q -c "mkdir e"; chmod 700 e
    unspill undo 2>&1 | grep '!'"""
    expect(
        shell,
        script,
        printed="Undid op 1 (0 changes), recorded as op 2. Redo: unspill redo\n! e: conflict: it has changed since",
    )


def test_a_binary_file_is_put_again_by_a_redo_where_a_later_run_changed_the_permissions_alone(shell: Shell) -> None:
    script = r"""
    unspill run -q -c "printf 'a\0' > f"; unspill undo > /dev/null; unspill run -q -c "chmod 600 f"
    unspill redo > /dev/null; stat -c '%a %s' f"""
    expect(shell, script, printed="600 2")


@pytest.mark.parametrize("first", ["sed -i 1s/.*/run/ f", ": > f"])
@pytest.mark.parametrize("second", ["chmod 600 f", "echo later >> f"])
def test_lines_that_were_added_since_are_not_lost_where_a_later_run_changed_the_file_too(
    shell: Shell, first: str, second: str
) -> None:
    script = f"""
    unspill run -q -c "{first}"; unspill run -q -c "{second}"; echo mine >> f
    unspill undo op1 > /dev/null 2>&1 || true; grep -E 'later|mine' f"""
    expect(shell, script, printed="later\nmine" if "later" in second else "mine")


def test_a_hunk_that_is_kept_from_being_applied_beside_another_file_stays_held(shell: Shell, ground: Ground) -> None:
    from unspill import Hunks, Selection

    shell("""unspill run -q --hold -c "sed -i '2s/.*/A/;22s/.*/B/' f g" """)
    sandbox = ground.sandbox()
    first = tuple(Hunks(path=path, numbers=(1,)) for path in (b"f", b"g"))
    with (ground.project / "g").open("r+"):
        assert [left.path for left in sandbox.apply(Selection(hunks=first)).left] == [b"g"]
    assert sandbox.apply().left == ()
    for name in "fg":
        assert [line for line in (ground.project / name).read_text().split() if line in "AB"] == ["A", "B"]


def test_the_persons_lines_stay_when_a_hunk_beside_them_is_discarded(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/' g"; sed -i '12s/.*/MINE/' g
    unspill discard --hunk g:1 > /dev/null; unspill apply; grep -E 'ONE|MINE|TWO' g; unspill changes"""
    printed = "Applied 1 change (op 2). Undo: unspill undo\nM g\ng: merged with your edits\nMINE\nTWO\nNothing is held."
    expect(shell, script, printed=printed)


def test_when_all_hunks_of_a_run_are_discarded_beside_the_persons_lines_nothing_is_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/' g"; sed -i '12s/.*/MINE/' g
    unspill discard --hunk g:1,3 > /dev/null; unspill changes; grep -E 'ONE|MINE|TWO' g
    unspill undo > /dev/null; unspill apply > /dev/null; grep -E 'ONE|MINE|TWO' g"""
    expect(shell, script, printed="Nothing is held.\nMINE\nONE\nMINE\nTWO")


def test_a_deletion_by_the_person_is_a_conflict_after_a_hunk_was_discarded_too(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/' f g"; rm f
    unspill discard --hunk g:1 > /dev/null
    unspill apply > /dev/null 2>&1 || echo $?
    unspill apply > /dev/null 2>&1 || echo $?
    test ! -e f; grep -E 'ONE|TWO' g"""
    expect(shell, script, printed="6\n6\nTWO")


def test_when_all_hunks_of_a_run_are_applied_beside_the_persons_lines_nothing_is_held(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/' g"; sed -i '12s/.*/MINE/' g
    hunk g:1,3; unspill changes; grep -E 'ONE|MINE|TWO' g
    unspill undo > /dev/null; unspill apply > /dev/null; grep -E 'ONE|MINE|TWO' g"""
    expect(shell, script, printed="Nothing is held.\nONE\nMINE\nTWO\nONE\nMINE\nTWO")


@pytest.mark.parametrize("size", [200_000, 600_000])
def test_the_rest_of_a_large_text_is_applied_after_one_of_its_hunks(shell: Shell, size: int) -> None:
    script = f"""
    seq -f %07g {size // 8} > big; unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/;42s/.*/LAST/' big"
    hunk big:1; hunk big:1; unspill apply > /dev/null; grep -E '[A-Z]' big; unspill changes"""
    expect(shell, script, printed="ONE\nTWO\nLAST\nNothing is held.")


def test_permissions_that_the_person_changed_stay_when_the_rest_of_a_file_is_applied(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/' g"; chmod 755 g
    hunk g:1; stat -c %a g; unspill apply > /dev/null; stat -c %a g; grep -E 'ONE|TWO' g"""
    expect(shell, script, printed="755\n755\nONE\nTWO")


def test_a_file_that_was_deleted_during_a_run_does_not_come_back_by_a_second_apply(shell: Shell) -> None:
    script = """
    unspill run -q --apply -c "echo RUN >> f; echo > n; sleep 2" 2> /dev/null & sleep 1; rm f; wait $! || true
    unspill apply > /dev/null 2>&1 || echo $?
    unspill apply > /dev/null 2>&1 || echo $?
    ls"""
    expect(shell, script, printed="6\n6\nd\ng\nn")


def test_nothing_is_let_go_of_where_not_all_that_is_held_can_be_listed(
    shell: Shell, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("""
    unspill run -q --hold -c "echo > n; echo > o; echo > p"; unspill run -q --hold -c "echo >> g; rm n"
    echo mine > n""")
    with monkeypatch.context() as patch:
        patch.setattr("unspill.changes.scan.MAX_PATH_BYTES", 2)
        assert ground.sandbox().changes().is_cut
    expect(shell, "unspill run -q --discard -- sh -c 'ls; wc -l < g'", printed="d\nf\ng\no\np\n25")


def test_the_persons_lines_do_not_become_the_runs_when_a_hunk_that_removes_them_is_discarded(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/' g"; sed -i '12s/.*/MINE/' g
    unspill discard --hunk g:2 > /dev/null; sed -i '12s/.*/g12/' g
    unspill apply > /dev/null; grep -E 'ONE|MINE|TWO' g"""
    expect(shell, script, printed="ONE\nTWO")


@pytest.mark.parametrize("edit", ["", "sed -i 9s/.*/mine9/ f", "sed -i 5s/.*/f5/ f"])
def test_a_file_that_a_redo_of_a_part_merged_can_be_undone(shell: Shell, edit: str) -> None:
    script = f"""
    unspill run -q -c "sed -i '2s/.*/run/' f g"; echo mine > g; unspill undo > /dev/null 2>&1 || true
    sed -i '5s/.*/min5/' f; unspill redo > /dev/null; {edit}
    unspill undo op1 > /dev/null 2>&1 || true; sed -n '2p;5p;9p' f
    unspill redo > /dev/null; sed -n 2p f"""
    kept = "f5" if "5s" in edit else "min5"
    expect(shell, script, printed=f"f2\n{kept}\n{'mine9' if '9s' in edit else 'f9'}\nrun")


def test_an_undo_skips_what_was_applied_since_of_what_the_operation_left_held(shell: Shell, ground: Ground) -> None:
    from unspill import Hunks, Selection

    shell("""tee k l < f > h; unspill run -q --hold -c "sed -i '2s/.*/ONE/;22s/.*/TWO/' h k l" """)
    sandbox = ground.sandbox()
    sandbox.apply(Selection(hunks=tuple(Hunks(path=name, numbers=(1,)) for name in (b"h", b"k", b"l"))))
    script = """
    unspill apply h > /dev/null; unspill discard k > /dev/null
    unspill undo --dry-run op1 | grep -A 3 skip; unspill undo op1 2> told || echo $?; grep ! told
    unspill changes; grep -E 'ONE|TWO' h k l"""
    why = "what this left held was applied or discarded since"
    expect(
        shell,
        script,
        printed=f"""Would skip:
        ! k: conflict: {why}
        ! h: conflict: it has changed since
        Undid op 1 (1 change), recorded as op 4. Redo: unspill redo
        M l
        6
        ! k: conflict: {why}
        ! h: conflict: it has changed since
        1 modified
        M l
        h:ONE
        h:TWO
        k:ONE""",
    )


def test_a_redo_skips_what_was_discarded_since(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo > n; echo > m; echo > o"; unspill apply > /dev/null; unspill undo > /dev/null
    unspill discard n > /dev/null; unspill apply m > /dev/null
    unspill redo op1 2>&1 | grep -E '!|Redid'; ls; unspill changes"""
    printed = """Redid op 1 (1 change), recorded as op 5. Undo: unspill undo
    ! n: conflict: what this left held was applied or discarded since
    d\nf\ng\nm\no\nNothing is held."""
    expect(shell, script, printed=printed)


def test_a_redo_skips_a_repository_of_which_the_changes_were_discarded_since(shell: Shell) -> None:
    script = """
    git config --global user.name P; git config --global user.email p@example.org
    git init -q -b main; git add -A; git commit -qm base
    unspill run -q --hold -c "echo > n; git add n; git commit -qm run"; unspill apply > /dev/null
    unspill undo > /dev/null; unspill discard > /dev/null
    unspill redo op1 2>&1 | grep !; git log --format=%s; unspill changes"""
    why = "conflict: what this left held was applied or discarded since"
    expect(shell, script, printed=f"! n: {why}\n! .git: {why}\nbase\nNothing is held.")


def test_a_redo_that_changes_nothing_names_itself_for_its_undo(shell: Shell) -> None:
    script = """
    unspill run -q -c "sed -i '2s/.*/X/' f"; unspill run -q -c "echo > n"
    sed -i '2s/.*/f2/' f; unspill undo op1; sed -i '2s/.*/X/' f; unspill redo op1"""
    printed = """Undid op 1 (0 changes), recorded as op 3. Redo: unspill redo
    Redid op 1 (0 changes), recorded as op 4. Undo: unspill undo op4"""
    expect(shell, script, printed=printed)


def test_an_apply_that_finds_everything_done_says_so(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "sed -i 2d f"; sed -i 2d f; unspill apply; unspill changes"""
    printed = "Dropped held changes that your project already has (op 1). Undo: unspill undo op1\nNothing is held."
    expect(shell, script, printed=printed)


def test_status_does_not_advise_to_undo_what_a_run_let_go_of(shell: Shell) -> None:
    script = """
    unspill run -q --hold -c "echo > n"; unspill run -q --apply -c "rm n"; unspill status | grep -E 'last|undo' || true
    unspill run -q --apply -c "echo > n"; unspill status | grep undo"""
    expect(shell, script, printed="next      unspill undo  undo op2")


def test_lines_that_were_edited_without_a_new_time_stay_in_an_undo(shell: Shell) -> None:
    script = """
    unspill run -q -c "sed -i '2s/.*/RUN/' f"; cp -p f old
    sed '20s/f20/you/' old > f; touch -r old f
    unspill undo > /dev/null; grep -E '^(f2|RUN|you)$' f"""
    expect(shell, script, printed="f2\nyou")


def test_a_binary_file_that_was_edited_without_a_new_time_is_a_conflict_for_undo(shell: Shell) -> None:
    script = r"""
    printf 'old\0' > n; unspill run -q -c "printf 'run\0' > n"; cp -p n old
    printf 'you\0' > n; touch -r old n
    unspill undo 2>&1 | grep '!'; head -c 3 n"""
    expect(shell, script, printed="! n: conflict: it has changed since\nyou")


def test_a_large_file_whose_permissions_alone_were_changed_since_is_undone_with_them(shell: Shell) -> None:
    script = """
    seq 99999 > n; unspill run -q -c "echo more >> n"; chmod 600 n
    unspill undo > /dev/null; stat -c %a n; seq 99999 | cmp n"""
    expect(shell, script, printed="600")


def test_a_version_of_an_operation_is_restored_from_the_root_of_the_path(shell: Shell, ground: Ground) -> None:
    other = ground.home / "other"
    other.mkdir()
    (other / "f").write_text("theirs\n")
    (ground.project / "f").write_text("mine\n")
    sandbox = ground.sandbox(after="apply", roots=(os.fsencode(other),))
    sandbox.run(f"echo run > {other}/f; echo run > f")
    sandbox.restore("f", backup="op1")
    sandbox.restore(f"{other}/f", backup="op1")
    assert ((ground.project / "f").read_text(), (other / "f").read_text()) == ("mine\n", "theirs\n")
    sandbox.run("echo run > f")
    with pytest.raises(UsageError, match="did not replace"):
        sandbox.restore(f"{other}/f", backup="op4")


def test_a_restored_file_has_its_access_list_and_a_directory_its_permissions(shell: Shell) -> None:
    script = """
    mkdir e; chmod 750 e; echo > e/n; setfacl -m u:65534:rwx,g::- e/n; setfacl -m u:65534:rx,g::-,d:o::- e
    getfacl -pn e e/n > before; unspill run -q -c "rm -r e"
    unspill restore e/n > /dev/null; getfacl -pn e e/n | diff before - && echo same
    rm -r e; unspill restore e/n > /dev/null; getfacl -pn e e/n | diff before - && echo same"""
    expect(shell, script, printed="same\nsame")


def test_a_directory_of_which_nothing_is_recorded_is_restored_for_its_owner_alone(shell: Shell) -> None:
    script = """
    unspill run -q -c "rm d/a"; rm -r d
    unspill restore d/a | tail -n 1; stat -c %a d"""
    expect(shell, script, printed="d: made again for you alone, since nothing is recorded of its permissions\n700")


@pytest.mark.parametrize("kind", ["xfs"])
def test_a_directory_on_another_filesystem_gets_its_access_lists_back(shell: Shell, kind: str) -> None:
    with directory_on(kind) as project:
        script = f"""
        cd {project}; mkdir -p e/inner; setfacl -m u:65534:rwx,g::-,d:u:65534:rx,d:g::- e; getfacl -pn e > before
        unspill run -q -c "rm -r e"; unspill undo > /dev/null; getfacl -pn e | diff before - && echo same
        unspill redo > /dev/null; unspill undo > /dev/null; getfacl -pn e | diff before - && echo same"""
        expect(shell, script, printed="same\nsame")


def test_an_undo_says_what_it_leaves_though_the_backup_has_become_the_same(shell: Shell) -> None:
    script = """
    ln f other; unspill run -q -c "sed -i '2s/.*/R2/' f"
    sed -i 's/R2/y2/' f; cat f > other
    unspill undo 2>&1 | grep '!'; sed -n 2p f"""
    expect(shell, script, printed="! f: conflict: it has changed since\ny2")


def test_an_undo_says_that_another_hard_link_was_written_since(shell: Shell) -> None:
    script = """
    ln f other; unspill run -q -c "sed -i '2s/.*/RUN/' f"; echo more >> other
    unspill undo 2>&1 | grep '!'; sed -n 2p f"""
    expect(shell, script, printed="! f: refused: its old version was changed through another hard link\nRUN")


def test_permissions_of_a_binary_file_are_redone_though_another_run_has_written_it_since(shell: Shell) -> None:
    script = r"""
    printf 'a\0b' > bin; unspill run -q --sandbox b --apply -c "chmod 600 bin"; unspill undo > /dev/null
    unspill run -q --apply -c "printf 'c\0d' > bin"; unspill redo; stat -c %a bin; head -c 1 bin"""
    printed = """Redid op 1 (1 change), recorded as op 4. Undo: unspill undo
    m bin  [mode 644 to 600]
    bin: your edits since were kept
    600\nc"""
    expect(shell, script, printed=printed)


def test_a_commit_is_redone_after_a_part_of_what_its_undo_held_was_applied_and_undone(shell: Shell) -> None:
    script = """
    git config --global user.name P; git config --global user.email p@example.org
    git init -q -b main; git add -A; git commit -qm base
    commit() { unspill run -q --hold -c "$1; git add -A; git commit -qm '$1'"; }
    commit "echo > n"; unspill apply > /dev/null; commit "echo >> f"
    unspill undo > /dev/null; unspill redo > /dev/null; commit "echo >> g"
    unspill undo > /dev/null; unspill apply g n > /dev/null; unspill undo > /dev/null
    unspill redo op1 2>&1 | grep ! || true; git log --format=%s"""
    expect(shell, script, printed="echo > n\nbase")


def test_a_deletion_is_still_held_after_undo_and_redo_of_a_commit_that_arrived_beside_the_branch(shell: Shell) -> None:
    script = """
    git config --global user.name P; git config --global user.email p@example.org
    git init -q -b main; git add -A; git commit -qm base
    unspill run -q --hold -c "echo run > n; git add n; git commit -qm run"
    unspill run -q --sandbox b --apply -c "echo other > n; git add n; git commit -qm other"
    unspill apply > /dev/null; unspill run -q --hold -c "rm n"; unspill changes
    unspill undo > /dev/null; unspill redo > /dev/null; unspill changes"""
    expect(shell, script, printed="1 deleted\nD n\n1 deleted\nD n")


def test_a_held_deletion_of_what_undo_and_redo_made_a_directory_again_is_applied(shell: Shell) -> None:
    script = """
    unspill run -q --apply -c "rm d/a; mkdir d/a; echo > d/a/n"
    unspill run -q --hold -c "rm -rf d"; unspill run -q --hold -c "mkdir -m 755 d"
    unspill undo > /dev/null; unspill undo op2 > /dev/null; unspill apply > /dev/null; ls d"""
    expect(shell, script, printed="")
