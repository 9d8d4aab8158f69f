# SPDX-License-Identifier: Apache-2.0
"""What a run changed is in the project afterwards, in that one only, and what stays held is still that run's."""

import errno
import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.leftovers import tree_of
from tests.support import Event, Ground, kinds
from unspill import Allowed, Hunks, Operation, OutputChunk, Question, RunResult, Sandbox, Selection
from unspill.errors import RootRefused, UsageError
from unspill.permissions.approvers import Callback

pytestmark = pytest.mark.kernel


def applied(ground: Ground, script: str, **options: object) -> RunResult:
    """Run with everything at its default, and take the changes over."""
    result = ground.sandbox(after="apply").run(script, **options)  # type: ignore[arg-type]
    assert result.operation is not None
    return result


def left(result: RunResult) -> dict[bytes, str]:
    assert result.operation is not None
    return {one.path: one.why for one in result.operation.left}


@pytest.mark.rootfs_view
def test_changes_of_every_kind_are_in_the_project_and_undo_brings_back_the_very_files(
    ground: Ground, engine: str
) -> None:
    ground.write("edited", "old\n").chmod(0o640)
    ground.write("dir/gone", "gone\n")
    ground.write("dir/stays", "stays\n")
    (ground.project / "link").symlink_to("edited")
    before, inode = tree_of(ground.project), (ground.project / "edited").stat().st_ino
    result = applied(
        ground,
        "echo new > edited; rm dir/gone; mkdir -p a/b/c; echo deep > a/b/c/d; ln -sfn dir link; chmod 751 a/b; "
        "printf '#!/bin/sh\\n' > tool; chmod 755 tool",
    )
    assert left(result) == {}
    assert not result.held
    assert (ground.project / "edited").read_text() == "new\n"
    assert stat.S_IMODE((ground.project / "edited").stat().st_mode) == 0o640
    assert os.listdir(ground.project / "dir") == ["stays"]
    assert (ground.project / "a/b/c/d").read_text() == "deep\n"
    assert stat.S_IMODE((ground.project / "a/b").stat().st_mode) == 0o751
    assert stat.S_IMODE((ground.project / "tool").stat().st_mode) == 0o755
    assert os.readlink(ground.project / "link") == "dir"
    sandbox = ground.sandbox()
    assert not sandbox.changes()
    after = tree_of(ground.project)
    assert sandbox.undo().left == ()
    assert without_times(tree_of(ground.project)) == without_times(before)
    assert (ground.project / "edited").stat().st_ino == inode
    assert sandbox.redo().left == ()
    assert without_times(tree_of(ground.project)) == without_times(after)


def without_times(tree: dict[str, tuple[int, int, int, bytes]]) -> dict[str, object]:
    """Leave out what a directory's time is: it is no part of a change; those of files are."""
    return {path: (mode, content, 0 if stat.S_ISDIR(mode) else time) for path, (mode, _, time, content) in tree.items()}


@pytest.mark.rootfs_view
@pytest.mark.parametrize("end", ["exit 7", "kill -9 $$"])
def test_whatever_the_exit_code_is(ground: Ground, end: str) -> None:
    result = applied(ground, f"echo x > new; {end}")
    assert not result.ok
    assert (ground.project / "new").read_text() == "x\n"


@pytest.mark.rootfs_view
def test_what_was_cut_short_is_held(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    result = sandbox.run("echo x > new; sleep 60", timeout=0.5)
    assert (result.operation, result.held) == (None, True)
    assert not (ground.project / "new").exists()
    result = ground.sandbox("other", after="apply", after_timeout="apply").run("echo x > new; sleep 60", timeout=0.5)
    assert result.operation is not None
    assert (ground.project / "new").exists()


@pytest.mark.rootfs_view
def test_a_command_that_was_never_started_applies_nothing(ground: Ground) -> None:
    result = ground.sandbox(after="apply").run(["no-such-command"])
    assert (result.operation, result.held) == (None, False)
    assert ground.sandbox().operations() == ()


@pytest.mark.rootfs_view
def test_what_is_never_applied_is_named_and_does_not_stop_the_others(ground: Ground) -> None:
    result = applied(ground, "mkfifo pipe; echo x > free; touch bits; chmod 6755 bits; mkdir sticky; chmod 1777 sticky")
    assert left(result) == {b"pipe": "refused"}
    assert sorted(os.listdir(ground.project)) == ["bits", "free", "sticky"]
    assert stat.S_IMODE((ground.project / "bits").stat().st_mode) == 0o755
    assert stat.S_IMODE((ground.project / "sticky").stat().st_mode) == 0o777
    assert result.operation is not None
    assert [note.partition(":")[0] for note in result.operation.notes] == ["bits", "sticky"]


@pytest.mark.rootfs_view
def test_a_path_that_lies_behind_a_link_by_now_does_not_stop_the_others(ground: Ground) -> None:
    ground.write("moved/file", "old\n")
    ground.write("open", "old\n")
    sandbox = ground.sandbox()
    assert sandbox.run("echo new > moved/file; echo new > open").ok
    (ground.project / "moved").rename(ground.top / "moved")
    (ground.project / "moved").symlink_to(ground.top / "moved")
    operation = sandbox.apply()
    assert {one.path: one.why for one in operation.left} == {b"moved": "conflict", b"moved/file": "conflict"}
    assert (ground.project / "open").read_text() == "new\n"
    assert (ground.top / "moved/file").read_text() == "old\n"


@pytest.mark.rootfs_view
class Index:
    """An application's own index of files, which hears of changes by a callback only."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.heard: list[tuple[str, int, set[bytes]]] = []
        self._is_broken = is_broken

    def take(self, operation: Operation) -> None:
        names = {os.path.relpath(path, operation.project) for path in operation.paths}
        assert len(names) == len(operation.paths)
        self.heard.append((operation.kind, operation.number, names))
        if self._is_broken:
            raise ValueError("no\x1b room")


def listened(ground: Ground, index: Index, **settings: Any) -> Sandbox:
    policy = ground.policy(**{"after": "apply", **settings})
    sandbox = Sandbox(ground.project, policy=policy, approver=Callback(allow), on_change=index.take)
    ground.opened.append(sandbox)
    return sandbox


def allow(question: Question) -> Allowed:
    return Allowed(digest=question.digest, by="test")


def test_an_application_hears_once_of_each_operation_that_changed_the_project(ground: Ground) -> None:
    """Nothing is heard of what is held, discarded or needless."""
    ground.write("edited", "old\n")
    ground.write("dir/file", "x\n")
    index = Index()
    sandbox = listened(ground, index)
    sandbox.run("echo new > edited; rm -r dir; touch made", hosts=["example.org"])
    sandbox.undo()
    sandbox.redo()
    sandbox.run("echo newer > edited; touch held", after="hold")
    sandbox.discard(["held"])
    sandbox.undo()
    sandbox.apply(["edited"])
    sandbox.restore("edited")
    sandbox.run("true")
    sandbox.run("touch thrown", after="discard")
    all_ = {b"edited", b"dir", b"dir/file", b"made"}
    assert index.heard == [
        ("apply", 1, all_),
        ("undo", 2, all_),
        ("redo", 3, all_),
        ("apply", 6, {b"edited"}),
        ("restore", 7, {b"edited"}),
    ]


def test_an_application_hears_of_what_a_cancelled_run_applied(ground: Ground) -> None:
    def give_up(event: Event) -> None:
        if isinstance(event, OutputChunk):
            raise KeyboardInterrupt

    index = Index()
    sandbox = listened(ground, index)
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("touch made; echo x; sleep 9", on_event=give_up, after_cancel="apply")
    assert index.heard == [("apply", 1, {b"made"})]


def test_a_callback_that_fails_does_not_break_the_operation(ground: Ground) -> None:
    """Control: one that works leaves no warning."""
    broken = listened(ground, Index(is_broken=True))
    result = broken.run("touch made")
    said = "`on_change` or `--events` failed after op {}: ValueError: no\\u{{1b}} room"
    assert said.format(1) in result.warnings
    assert (ground.project / "made").exists()
    assert said.format(2) in broken.undo().notes
    assert not (ground.project / "made").exists()
    assert [operation.ending for operation in broken.operations()] == ["done", "done"]
    assert not any("on_change" in warning for warning in listened(ground, Index()).run("touch made").warnings)


def test_a_chosen_path_brings_the_directories_that_it_needs(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert sandbox.run("mkdir -p -m 700 a/b; echo x > a/b/file; echo y > a/other").ok
    operation = sandbox.apply(["a/b/file"])
    assert operation.left == ()
    assert (ground.project / "a/b/file").read_text() == "x\n"
    assert kinds(sandbox.changes()) == {"a/other": "added"}


@pytest.mark.rootfs_view
def test_each_file_goes_to_its_own_root(ground: Ground) -> None:
    library = ground.home / "library"
    library.mkdir()
    (library / "same").write_text("old\n")
    ground.write("same", "old\n")
    sandbox = ground.sandbox(after="apply", roots=(os.fsencode(library),))
    result = sandbox.run(f"echo project > same; echo library > {library}/same; touch {library}/new")
    assert left(result) == {}
    assert ((ground.project / "same").read_text(), (library / "same").read_text()) == ("project\n", "library\n")
    sandbox.undo()
    assert ((ground.project / "same").read_text(), (library / "same").read_text()) == ("old\n", "old\n")
    assert os.listdir(library) == ["same"]


# A version, then entries of a tag, rights and an id each: owner, another user, group, mask, others
LIST = struct.pack(
    "<I" + "HHI" * 5, 2, 1, 6, 2**32 - 1, 2, 6, 65534, 4, 0, 2**32 - 1, 16, 6, 2**32 - 1, 32, 4, 2**32 - 1
)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "control"])
def test_a_file_keeps_its_access_list(ground: Ground, is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the bits of the mask would be those of the group, which the list keeps out."""
    path = ground.write("f", "old\n")
    os.setxattr(path, "system.posix_acl_access", LIST)
    if not is_kept:
        monkeypatch.setattr("unspill.apply.draft.has_access_list", lambda *_given: False)
    applied(ground, "echo new > f")
    assert path.read_text() == "new\n"
    assert ("system.posix_acl_access" in os.listxattr(path)) is is_kept
    assert not is_kept or os.getxattr(path, "system.posix_acl_access") == LIST
    ground.sandbox().undo()
    assert os.getxattr(path, "system.posix_acl_access") == LIST


@pytest.mark.rootfs_view
def test_other_names_of_a_file_keep_their_content(ground: Ground) -> None:
    os.link(ground.write("one", "old\n"), ground.top / "other")
    applied(ground, "echo new > one")
    assert (ground.project / "one").read_text() == "new\n"
    assert (ground.top / "other").read_text() == "old\n"


@pytest.mark.rootfs_view
def test_a_sandbox_that_applies_every_run_keeps_nothing_held(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    for number in range(5):
        assert sandbox.run(f"echo {number} >> file").operation is not None
    assert (ground.project / "file").read_text() == "0\n1\n2\n3\n4\n"
    assert os.listdir(ground.state / "layers") == []
    for _ in range(5):
        sandbox.undo()
    assert os.listdir(ground.project) == []


@pytest.mark.rootfs_view
def test_what_stays_is_one_layer_however_many_runs_left_something(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    for name in ("a", "b", "c"):
        assert sandbox.run(f"mkdir {name}; echo x > {name}/.envrc; echo y > {name}/free").held
    assert len(os.listdir(ground.state / "layers")) == 1
    assert kinds(sandbox.changes()) == {f"{name}/.envrc": "added" for name in ("a", "b", "c")}
    assert sandbox.run("cat a/.envrc b/.envrc c/.envrc").stdout.head == b"x\nx\nx\n"


@pytest.mark.rootfs_view
def test_what_was_reviewed_is_what_is_applied(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert sandbox.run("echo seen > one; echo seen > two").ok
    reviewed = sandbox.changes()
    assert sandbox.run("echo unseen > two; echo unseen > three").ok
    operation = sandbox.apply(reviewed=reviewed)
    assert [(one.path, one.why) for one in operation.left] == [(b"two", "stale")]
    assert os.listdir(ground.project) == ["one"]
    assert kinds(sandbox.changes()) == {"two": "added", "three": "added"}


@pytest.mark.rootfs_view
def test_consent_is_for_one_path(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert sandbox.run("echo x > .envrc; mkdir sub; echo x > sub/.envrc").ok
    operation = sandbox.apply(Selection(included=(b".envrc",)))
    assert [(one.path, one.why) for one in operation.left if one.path.endswith(b".envrc")] == [(b"sub/.envrc", "held")]
    assert os.listdir(ground.project) == [".envrc"]


@pytest.mark.rootfs_view
def test_a_full_disk_leaves_the_project_as_it_was_and_the_changes_held(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full as far as the journal knows: no real one can be filled for one write only."""
    ground.write("file", "old\n")

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("unspill.apply.operate.write_end", full)
        result = ground.sandbox(after="apply").run("echo new > file; touch added")
    assert (result.operation, result.held) == (None, True)
    assert "No space left on device" in result.problem
    assert "because the apply failed" in result.text()
    assert (ground.project / "file").read_text() == "old\n"
    assert os.listdir(ground.state / "pending") == []
    assert ground.sandbox().apply().left == ()
    assert (ground.project / "file").read_text() == "new\n"


@pytest.mark.rootfs_view
def test_nothing_of_it_is_left_in_the_project(ground: Ground) -> None:
    ground.write("file", "old\n")
    applied(ground, "echo new > file")
    ground.sandbox().undo()
    assert [path.name for path in Path(ground.project).iterdir()] == ["file"]


@pytest.mark.rootfs_view
def test_hunks_are_those_of_the_file_however_its_path_is_written(ground: Ground) -> None:
    target = ground.write("f", "".join(f"{number}\n" for number in range(30)))
    for written in (b"f", b"./f", os.fsencode(target)):
        sandbox = ground.sandbox(after="hold")
        assert sandbox.run("sed -i 's/^2$/two/; s/^25$/late/' f").ok
        assert sandbox.apply(Selection(hunks=(Hunks(path=written, numbers=(1,)),))).left == ()
        assert "two\n" in target.read_text()
        assert "late\n" not in target.read_text()
        sandbox.undo()
        sandbox.discard()


def exchange(ground: Ground) -> None:
    """Put another directory in the project's place, with a file of the same name."""
    ground.project.rename(ground.home / "moved")
    ground.project.mkdir()
    (ground.project / "file").write_text("another's\n")


def put_back(ground: Ground) -> None:
    (ground.project / "file").unlink()
    ground.project.rmdir()
    (ground.home / "moved").rename(ground.project)


def test_what_is_held_stays_held_until_the_project_is_back(ground: Ground) -> None:
    ground.write("file", "old\n")
    assert ground.run("echo new > file; echo made > made").held
    exchange(ground)
    for _ in range(2):
        # In this process, and in the next one
        with pytest.raises(RootRefused):
            ground.sandbox().apply()
    assert os.listdir(ground.project) == ["file"]
    put_back(ground)
    assert ground.sandbox().apply().changed == 2
    assert (ground.project / "file").read_text() == "new\n"


def test_a_sandbox_that_holds_nothing_goes_on_with_the_new_directory(ground: Ground) -> None:
    ground.run("true")
    exchange(ground)
    assert ground.run("echo new > file").held
    assert ground.sandbox().apply().changed == 1
    assert (ground.project / "file").read_text() == "new\n"


def test_after_a_discard_the_sandbox_is_the_new_directorys(ground: Ground) -> None:
    assert ground.run("echo made > made").held
    exchange(ground)
    assert ground.sandbox().discard().number == 1
    assert ground.run("echo new > file", after="apply").operation is not None
    assert (ground.project / "file").read_text() == "new\n"


def test_nothing_is_undone_in_another_directory(ground: Ground) -> None:
    ground.write("gone", "old\n")
    assert ground.run("rm gone", after="apply").operation is not None
    exchange(ground)
    with pytest.raises(RootRefused):
        ground.sandbox().undo()
    assert os.listdir(ground.project) == ["file"]
    put_back_and_undo(ground)


def put_back_and_undo(ground: Ground) -> None:
    put_back(ground)
    ground.sandbox().undo()
    assert (ground.project / "gone").read_text() == "old\n"


def test_a_run_whose_project_is_exchanged_meanwhile_is_held(ground: Ground) -> None:
    ground.write("file", "old\n")
    sandbox = ground.sandbox()
    started: list[object] = []

    def swap(event: object) -> None:
        if type(event).__name__ == "OutputChunk" and not started:
            started.append(event)
            exchange(ground)

    result = sandbox.run("echo new > made; echo go; sleep 0.3", after="apply", on_event=swap)
    assert result.ok
    assert result.held
    assert result.operation is None
    assert "is not the directory" in result.problem
    assert os.listdir(ground.project) == ["file"]


def exchange_directory(ground: Ground, way: str) -> Path:
    """Put another, older directory where one is that a run has changed something in; return the person's work in it."""
    here = ground.project / "d"
    here.rename(ground.home / "aside")
    if way == "below a new one":
        here.mkdir()
        here = here / "s"
    (ground.home / "mine").rename(here)
    return ground.project / "d/s/f" if way == "below a new one" else here / "s/f"


EXCHANGED = {"a changed file": "echo new > d/s/f", "a deletion": "rm -r d", "a file in its place": "rm -r d; echo > d"}


@pytest.mark.parametrize(
    ("change", "way"), [*((change, "itself") for change in EXCHANGED), ("a changed file", "below a new one")]
)
@pytest.mark.parametrize("is_compared", [True, False], ids=["compared", "control"])
def test_a_directory_that_was_exchanged_meanwhile_is_not_written_over(
    ground: Ground, change: str, way: str, is_compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.write("d/s/f", "old\n")
    ground.write("../mine/f" if way == "below a new one" else "../mine/s/f", "precious\n")
    assert ground.run(EXCHANGED[change]).held
    work = exchange_directory(ground, way)
    if not is_compared:
        for module in ("apply.bases", "apply.fold", "sandbox.apply"):
            monkeypatch.setattr(f"unspill.{module}.find_moved", lambda *_given: {})
    for _ in range(2):
        # The second time of what the first one has left
        assert bool(ground.sandbox().apply().left) is is_compared
        assert (work.exists() and work.read_text() == "precious\n") is is_compared
        if not is_compared:
            return
    assert not ground.sandbox().apply(Selection(overwrite=(b"d",))).left
    assert not work.exists() or work.read_text() == "new\n"


@pytest.mark.parametrize("is_compared", [True, False], ids=["compared", "control"])
def test_an_exchanged_directory_is_not_written_over_by_what_a_discard_was_undone_for(
    ground: Ground, is_compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No text: what the run saw of a text would tell as well
    ground.write("d/s/f", "old\0\n")
    ground.write("../mine/s/f", "precious\n")
    assert ground.run("echo new > d/s/f; echo other > other").held
    work = exchange_directory(ground, "itself")
    with monkeypatch.context() as patch:
        if not is_compared:
            patch.setattr("unspill.apply.fold.find_moved", lambda *_given: {})
        operation = ground.sandbox().discard(["d"])
        assert operation is not None
        ground.sandbox().undo(operation.number)
    assert bool(ground.sandbox().apply().left) is is_compared
    assert (work.read_text() == "precious\n") is is_compared


@pytest.mark.parametrize("change", EXCHANGED)
@pytest.mark.parametrize("bound", ["_MOST_DIGESTS", "_MOST_DIGESTED", "LARGEST_DIGESTED"])
def test_an_exchanged_directory_is_not_written_over_where_nobody_has_read_its_files(
    ground: Ground, change: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"unspill.apply.bases.{bound}", 0)
    ground.write("d/s/f", "old\0\n")
    ground.write("../mine/s/f", "precious\n")
    assert ground.run(EXCHANGED[change]).held
    work = exchange_directory(ground, "itself")
    # From here on its times don't prove any more that it is another one
    ground.write("d/later", "mine\n")
    for _ in range(2):
        assert ground.sandbox().apply().left
        assert work.read_text() == "precious\n"


@pytest.mark.parametrize("digests", [2000, 0], ids=["all was read", "nothing was read"])
@pytest.mark.parametrize("is_filled", [False, True], ids=["as it was", "filled since"])
@pytest.mark.parametrize("change", ["a deletion", "a file in its place"])
def test_a_directory_that_was_exchanged_in_one_that_is_to_go_is_not_taken_away(
    ground: Ground, change: str, is_filled: bool, digests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unspill.apply.bases._MOST_DIGESTS", digests)
    ground.write("d/s/f", "old\n")
    ground.write("d/s/g", "same\n")
    ground.write("d/other/h", "old\n")
    ground.write("../mine/f", "precious\n")
    ground.write("../mine/g", "same\n")
    assert ground.run(EXCHANGED[change]).held
    (ground.project / "d/s").rename(ground.home / "aside")
    (ground.home / "mine").rename(ground.project / "d/s")
    if is_filled:
        ground.write("d/s/later", "mine\n")
    left = sorted(one.path for one in ground.sandbox().apply().left)
    assert (ground.project / "d/s/f").read_text() == "precious\n"
    if change == "a deletion" and digests:
        assert left == ([b"d/s/f", b"d/s/later"] if is_filled else [b"d/s/f"])
    assert (ground.project / "d/s/g").exists() is (change != "a deletion" or not digests)
    assert (ground.project / "d/other/h").exists() is (change != "a deletion")


def test_a_directory_in_which_somebody_only_made_something_is_no_conflict(ground: Ground) -> None:
    ground.write("d/f", "old\n")
    assert ground.run("echo new > d/f").held
    ground.write("d/mine", "mine\n")
    ground.write("e/mine", "mine\n")
    assert not ground.sandbox().apply().left
    assert (ground.project / "d/f").read_text() == "new\n"


def test_what_is_left_in_a_directory_that_got_other_bits_is_no_conflict_later(ground: Ground) -> None:
    ground.write("d/.envrc", "old\n")
    assert ground.run("chmod 700 d; echo new > d/.envrc").held
    assert [left.path for left in ground.sandbox().apply().left] == [b"d/.envrc"]
    assert not ground.sandbox().apply(Selection(included=(b"d/.envrc",))).left
    assert (ground.project / "d/.envrc").read_text() == "new\n"


def test_what_is_left_of_one_run_is_not_said_to_be_of_the_next(ground: Ground) -> None:
    with ground.sandbox() as sandbox:
        first = sandbox.run("echo x > .envrc; echo a > a", after="apply")
        second = sandbox.run("echo b > b", after="apply")
        assert second.operation is not None
        assert [left.path for left in (first.operation or second.operation).left] == [b".envrc"]
        assert kinds(sandbox.changes(run=first.number)) == {".envrc": "added"}
        with pytest.raises(UsageError, match="run 2 has no held changes"):
            sandbox.changes(run=second.number)


def test_what_several_runs_left_is_of_the_last_of_them(ground: Ground) -> None:
    with ground.sandbox() as sandbox:
        sandbox.run("echo x > .envrc", after="apply")
        last = sandbox.run("mkdir .vscode; echo x > .vscode/tasks.json", after="apply")
        sandbox.run("echo b > b", after="apply")
        assert set(kinds(sandbox.changes(run=last.number))) >= {".envrc"}


@pytest.mark.parametrize("approver", ["nobody", len, 5])
def test_what_can_not_answer_is_refused_when_it_is_given(ground: Ground, approver: Any) -> None:
    with pytest.raises(UsageError, match="not an approver") as refused:
        Sandbox(ground.project, policy=ground.policy(), approver=approver)
    assert "terminal" in refused.value.remedy
    assert getattr(refused.value, "__notes__", None) == [refused.value.remedy]


def test_what_can_answer_is_taken(ground: Ground) -> None:
    known: tuple[Any, ...] = ("terminal", "queue", "deny", None, Callback(lambda question: True))
    for approver in known:
        Sandbox(ground.project, policy=ground.policy(), approver=approver).close()


# As cargo does: each state of the source has a program of its own
BUILD = "mkdir -p build && cc -o build/app-$(cksum < main.c | cut -d' ' -f1) main.c"


@pytest.mark.parametrize(("rules", "flagged"), [("build/\n", [0, 0]), ("*.o\n", [1, 1])])
def test_what_a_build_makes_and_git_ignores_is_not_flagged_each_time(
    ground: Ground, rules: str, flagged: list[int]
) -> None:
    ground.write(".gitignore", rules)
    sandbox = ground.sandbox(after="apply")
    lines = []
    for number in range(2):
        ground.write("main.c", f"int main(void) {{ return {number}; }}\n")
        result = sandbox.run(BUILD)
        assert result.ok, result.stderr.kept()
        lines.append(len(result.flagged))
    assert len(list((ground.project / "build").iterdir())) == 2
    assert lines == flagged
