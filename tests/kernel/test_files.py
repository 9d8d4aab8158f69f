# SPDX-License-Identifier: Apache-2.0
"""Files and names of a sandbox: read, listed, written, edited, resolved and removed as its commands would."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kernel.files_errors import ERRORS, SECRET, lay_out
from tests.support import HOST_ROOT, Ground, kinds, printed, run_both, short
from unspill import FileError, Sandbox, SandboxFiles
from unspill.errors import SandboxUnavailable, UsageError
from unspill.model.policy import MIB
from unspill.sandbox.files import SandboxTree, read_bytes

pytestmark = pytest.mark.kernel


def opened(ground: Ground, **settings: Any) -> tuple[Sandbox, SandboxFiles]:
    sandbox = ground.sandbox(**settings)
    return sandbox, SandboxFiles(sandbox)


def shown(sandbox: Sandbox, path: str) -> str:
    """Return a file as a command sees it."""
    return printed(sandbox.run(["cat", path], after="discard"))


@pytest.mark.parametrize("view", ["sealed", "rootfs"])
def test_every_error_has_its_kind_and_leaves_nothing(ground: Ground, engine: str, view: str) -> None:
    lay_out(ground)
    settings = {"view": view, "rootfs": HOST_ROOT} if view == "rootfs" else {"view": view}
    sandbox, files = opened(ground, **settings)
    for case, (kind, call) in ERRORS.items():
        with pytest.raises(FileError) as caught:
            call(files)
        known = {kind, "not_found"} if case.endswith("file of root") and view == "rootfs" else {kind}
        assert caught.value.kind in known, (case, caught.value)
        assert SECRET.strip() not in caught.value.message
    assert not sandbox.changes()
    assert ground.left_behind() == []
    (ground.project / "locked-dir").chmod(0o700)


@pytest.mark.parametrize(
    "call",
    [
        lambda files: files.read(""),
        lambda files: files.read("a\0b"),
        lambda files: files.read("\ud800"),
        lambda files: files.read("a", offset=-1),
        lambda files: files.read("a", limit=101 * MIB),
        lambda files: files.list(depth=0),
        lambda files: files.edit("a", "", "x"),
        lambda files: files.edit("a", "x", "x"),
        lambda files: files.write("a", "\ud800"),
        lambda files: files.write("a", "x", after="discard"),
    ],
)
def test_what_can_not_be_meant_is_refused_without_a_run(ground: Ground, call: Callable[[SandboxFiles], object]) -> None:
    sandbox, files = opened(ground)
    with pytest.raises(UsageError):
        call(files)
    assert sandbox.runs() == ()


def test_a_write_is_held_applied_and_undone_like_a_run(ground: Ground, engine: str) -> None:
    ground.write("file", "old").chmod(0o750)
    sandbox, files = opened(ground)
    written = files.write("file", "new")
    assert (written.size, written.is_new, written.lasts, written.result.held) == (3, False, True, True)
    assert (ground.project / "file").read_text() == "old"
    assert shown(sandbox, "file") == files.read("file").text() == "new"
    assert sandbox.apply().number
    assert (ground.project / "file").read_text() == "new"
    assert (ground.project / "file").stat().st_mode & 0o777 == 0o750
    sandbox.undo()
    assert (ground.project / "file").read_text() == "old"
    assert files.read("file").text() == "new", "an undo of an apply holds the changes again"
    sandbox.discard()
    assert files.read("file").text() == "old"
    made = files.write("some/deep/directory/made", b"\0\xff", after="apply")
    assert made.is_new
    assert kinds(made.result.changes)["some/deep/directory/made"] == "added"
    assert (ground.project / "some/deep/directory/made").read_bytes() == b"\0\xff"
    sandbox.undo()
    assert not (ground.project / "some").exists()


def test_a_guarded_file_stays_held(ground: Ground) -> None:
    (ground.project / ".git/hooks").mkdir(parents=True)
    _sandbox, files = opened(ground)
    written = files.write(".git/hooks/post-checkout", "#!/bin/sh\n", after="apply")
    assert written.result.operation is not None
    assert [left.path for left in written.result.operation.left if left.path.endswith(b"post-checkout")]
    assert not (ground.project / ".git/hooks/post-checkout").exists()
    assert files.read(".git/hooks/post-checkout").content == b"#!/bin/sh\n"


def test_a_masked_secret_is_neither_read_nor_replaced(ground: Ground, engine: str) -> None:
    secret = ground.write(".env", SECRET)
    sandbox, files = opened(ground)
    with pytest.raises(FileError) as caught:
        files.read(".env")
    assert caught.value.kind == "not_found"
    assert files.list().entries == ()
    with pytest.raises(FileError) as caught:
        files.edit(".env", "SECRET", "x")
    assert caught.value.kind == "not_found"
    expected = sandbox.run("echo mine > .env", after="apply")
    sandbox.discard()
    written = files.write(".env", "mine\n", after="apply")
    assert (written.result.held, kinds(written.result.changes)) == (expected.held, kinds(expected.changes))
    assert secret.read_text() == SECRET
    assert files.read(".env").content == b"mine\n"


@pytest.mark.parametrize("name", ["sub/file", "./sub/../sub/file", "/workspace/sub/file", "{host}/sub/file"])
def test_a_project_may_be_named_by_both_of_its_paths(ground: Ground, name: str) -> None:
    ground.write("sub/file", "x")
    _sandbox, files = opened(ground, view="rootfs", rootfs=HOST_ROOT)
    path = name.format(host=ground.project)
    assert files.read(path).content == b"x"
    assert [entry.path for entry in files.list(os.path.dirname(path)).entries] == [b"file"]
    assert files.write(path, "y").path.startswith(b"/workspace/")


def test_a_link_leads_where_it_leads_a_command(ground: Ground, engine: str) -> None:
    ground.write("real", "one")
    sandbox, files = opened(ground)
    sandbox.run("ln -s real link; ln -s /etc/passwd users; ln -s . here; ln -s /tmp/x out")
    assert files.write("link", "two").path.endswith(b"/link")
    assert shown(sandbox, "real") == "two"
    assert files.read("users").text() == shown(sandbox, "users")
    assert [entry.path for entry in files.list("here").entries] == [b"here", b"link", b"out", b"real", b"users"]
    assert {entry.kind for entry in files.list(depth=9).entries} == {"file", "link"}
    assert not files.write("out", "gone").lasts
    assert not files.write("/tmp/x", "gone").lasts
    with pytest.raises(FileError):
        files.read("out")


def test_windows_of_bytes_say_what_they_leave_out(ground: Ground) -> None:
    content = bytes(range(256)) * 8192
    ground.write("file", content)
    _sandbox, files = opened(ground)
    for offset, limit in ((0, 0), (0, 1), (5, 10), (MIB, 2 * MIB), (2 * MIB - 1, 1), (2 * MIB, 1), (9 * MIB, 7)):
        found = files.read("file", offset=offset, limit=limit)
        assert found.content == content[offset : offset + limit]
        assert found.has_more is (offset + limit < len(content))
        assert found.left_out == (len(content) - offset - limit if found.has_more else 0)
        assert found.size == len(content)
    assert files.read("file").left_out == MIB
    with pytest.raises(FileError) as caught:
        files.read("file").text()
    assert caught.value.kind == "not_text"
    assert files.read("/proc/self/status").content.startswith(b"Name:")


def test_windows_of_lines_say_where_they_go_on(ground: Ground) -> None:
    lines = [f"{number}\r\f\n".encode() for number in range(5000)] + [b"last"]
    ground.write("file", b"".join(lines))
    ground.write("wide", b"w" * (3 * MIB) + b"\nnext\n")
    ground.write("heavy", (b"h" * 1000 + b"\n") * 3000)
    _sandbox, files = opened(ground)
    at: int | None = 0
    seen = []
    while at is not None:
        found = files.read_lines("file", offset=at, limit=1700)
        seen += found.content.split(b"\n")[:-1] if found.next_offset else found.content.split(b"\n")
        assert found.count <= 1700
        at = found.next_offset
    assert [line + b"\n" for line in seen[:-1]] + seen[-1:] == lines
    wide = files.read_lines("wide")
    assert (wide.is_cut, wide.count, wide.next_offset, len(wide.content)) == (True, 1, 1, MIB)
    assert files.read_lines("wide", offset=1).text() == "next\n"
    heavy = files.read_lines("heavy", limit=5000)
    assert (heavy.is_cut, heavy.count, heavy.next_offset) == (False, MIB // 1001, MIB // 1001)
    assert files.read_lines("file", offset=9000).content == b""


def test_a_listing_is_bounded_and_says_so(ground: Ground) -> None:
    for number in range(3000):
        ground.write(f"many/{number:04}")
    ground.write("many-1/x")
    (ground.project / "locked").mkdir(mode=0)
    _sandbox, files = opened(ground)
    found = files.list("many", limit=10)
    assert [entry.path for entry in found.entries] == [f"{number:04}".encode() for number in range(10)]
    assert found.left_out == 2990
    assert files.list(depth=1).is_whole
    assert not files.list(depth=2).is_whole
    # A directory is followed by what is in it
    assert [entry.path for entry in files.list(depth=2, limit=4000).entries][-2:] == [b"many-1", b"many-1/x"]
    (ground.project / "locked").chmod(0o700)


def test_a_write_that_fails_midway_leaves_what_was_there(ground: Ground, engine: str) -> None:
    ground.write("file", "old")
    sandbox, files = opened(ground, limits=short(file_bytes=64 * 1024))
    for path in ("file", "made/of/none"):
        with pytest.raises(FileError) as caught:
            files.write(path, bytes(MIB), after="apply")
        assert caught.value.kind == "too_large"
    assert files.read("file").content == b"old"
    assert not sandbox.changes()
    assert [path.name for path in ground.project.iterdir()] == ["file"]
    # Of a command that fails in the same way something is left
    sandbox.run("mkdir made; head -c 1000000 /dev/zero > file")
    assert kinds(sandbox.changes()) == {"file": "modified", "made": "added"}


def test_edits_at_once_lose_nothing(ground: Ground) -> None:
    words = [f"<{number}>" for number in range(8)]
    ground.write("file", "\n".join(words))
    _sandbox, files = opened(ground)

    def edit(word: str) -> int:
        while True:
            try:
                return files.edit("file", word, word.strip("<>") * 2, after="apply").replaced
            except FileError as error:
                if error.kind != "changed":
                    raise

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(edit, words)) == {1}
    assert files.read("file").text() == "\n".join(word.strip("<>") * 2 for word in words)


def test_an_edit_of_what_was_changed_meanwhile_is_refused(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.write("file", "one")
    sandbox, files = opened(ground)
    count = 0

    def read_and_be_overtaken(*arguments: Any) -> Any:
        nonlocal count
        found, count = read_bytes(*arguments), count + 1
        sandbox.run(["sh", "-c", f"echo one {count} > file"])
        return found

    with monkeypatch.context() as patch:
        patch.setattr("unspill.sandbox.files.read_bytes", read_and_be_overtaken)
        with pytest.raises(FileError) as caught:
            files.edit("file", "one", "two")
    assert caught.value.kind == "changed"
    assert files.read("file").text() == f"one {count}\n"


def test_an_edit_replaces_exactly_what_is_named(ground: Ground, engine: str) -> None:
    ground.write("file", b"a\r\n\xff two two \0")
    _sandbox, files = opened(ground)
    assert files.edit("file", "a\r\n", "b\n").replaced == 1
    with pytest.raises(FileError) as caught:
        files.edit("file", "two", "2")
    assert (caught.value.kind, caught.value.count) == ("ambiguous", 2)
    assert files.edit("file", "two", "", replace_all=True).replaced == 2
    assert files.edit("file", b"\xff", b"\\1$x").replaced == 1
    assert files.read("file").content == b"b\n\\1$x   \0"


def test_a_write_waits_for_a_run_and_a_read_does_not(ground: Ground) -> None:
    ground.write("file", "old")
    sandbox, files = opened(ground)
    runner = threading.Thread(target=sandbox.run, args=("echo run > file; sleep 1.5",))
    runner.start()
    time.sleep(0.5)
    assert files.read("file").text() == "old"
    read, write = os.pipe()
    os.write(write, b"x")
    with pytest.raises(SandboxUnavailable, match="gave up"):
        files.write("file", "never", cancel_fd=read)
    os.close(read)
    os.close(write)
    files.write("file", "write")
    assert not runner.is_alive()
    assert files.read("file").text() == "write"


def test_a_run_that_is_alone_sees_what_is_just_being_applied_and_neither_waits_for_ever(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is applied has left the layers to whoever comes, and has the sandbox's lock until it is done."""
    ground.write("file", "one\n")
    sandbox = ground.sandbox()
    first, second = run_both(sandbox, monkeypatch, "echo two >> file", "cat file > copy", alone=True)
    assert (first.held, second.held) == (False, False)
    assert (ground.project / "copy").read_text() == "one\ntwo\n"


def test_what_is_at_a_path_is_what_commands_find_there(ground: Ground, engine: str) -> None:
    ground.write("live", "abc")
    sandbox = ground.sandbox()
    sandbox.run("mkdir held; echo x >held/file; ln -s held link; ln -s nowhere stray; mkfifo pipe; rm live")
    tree = SandboxTree(sandbox)
    assert [tree.look(name).kind for name in ("held", "link", "held/file", "pipe")] == [
        "directory",
        "directory",
        "file",
        "unknown",
    ]
    assert tree.look("held/file").size == 2
    assert [name for name in ("held", "live", "stray", "link/file", "held/file/x") if tree.exists(name)] == [
        "held",
        "link/file",
    ]
    assert tree.directories(".", [b"held", b"link", b"stray", b"pipe", b"none"]) == {b"held", b"link"}
    assert tree.directories(".", []) == frozenset()


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("a/rel/missing/more", "a/b/missing/more"),
        ("a/up/missing", "out/missing"),
        ("a/rel/..", "a"),
        ("a/up/..", ""),
        ("a/./b//c", "a/b/c"),
        ("nowhere/../a/rel", "a/b"),
    ],
)
def test_a_path_leads_by_its_links(ground: Ground, path: str, real: str) -> None:
    sandbox = ground.sandbox()
    printed(sandbox.run("mkdir -p a/b; ln -s b a/rel; ln -s ../out a/up"))
    assert SandboxTree(sandbox).real_path(path) == os.fsencode(f"{ground.inside()}/{real}".rstrip("/"))


def test_a_path_may_end_with_a_newline(ground: Ground) -> None:
    ground.write("odd\n", "x")
    assert SandboxTree(ground.sandbox()).real_path("odd\n") == os.fsencode(f"{ground.inside()}/odd\n")


def test_a_loop_of_links_leads_nowhere(ground: Ground) -> None:
    sandbox = ground.sandbox()
    sandbox.run("ln -s two one; ln -s one two")
    tree = SandboxTree(sandbox)
    with pytest.raises(FileError):
        tree.look("one/x")
    assert not tree.exists("one/x")
    assert tree.real_path("one/x").startswith(os.fsencode(f"{ground.inside()}/"))


def test_directories_are_made_and_trees_removed_as_changes_like_any_other(ground: Ground, engine: str) -> None:
    ground.write("tree/file", "x")
    (ground.project / "link").symlink_to("tree")
    sandbox = ground.sandbox()
    tree = SandboxTree(sandbox)
    tree.make_directory("new/deep")
    tree.make_directory("new/deep")
    tree.remove("link")
    assert kinds(sandbox.changes()) == {"new": "added", "new/deep": "added", "link": "deleted"}
    tree.remove("tree")
    assert kinds(sandbox.changes())["tree"] == "deleted"
    assert (ground.project / "tree/file").exists()


@pytest.mark.parametrize(
    ("verb", "path", "kind"),
    [
        (SandboxTree.look, "none", "not_found"),
        (SandboxTree.look, "file/x", "not_a_directory"),
        (SandboxTree.remove, "none", "not_found"),
        (SandboxTree.remove, "locked", "permission_denied"),
        (SandboxTree.remove, "/usr/bin", "permission_denied"),
        (SandboxTree.make_directory, "file", "exists"),
        (SandboxTree.make_directory, "file/x", "not_a_directory"),
        (SandboxTree.make_directory, "/usr/new", "permission_denied"),
    ],
)
def test_what_can_not_be_done_is_said_and_changes_nothing(
    ground: Ground, verb: Callable[..., object], path: str, kind: str
) -> None:
    ground.write("file", "x")
    ground.write("locked/inner/file", "x")
    ground.write("locked/other", "x")
    (ground.project / "locked/inner").chmod(0o500)
    sandbox = ground.sandbox()
    with pytest.raises(FileError) as caught:
        verb(SandboxTree(sandbox), path)
    assert caught.value.kind == kind
    assert not sandbox.changes()


def test_directories_are_told_from_others_however_many_names_there_are(ground: Ground) -> None:
    """Control: as the words of one command they are more than the kernel takes."""
    (ground.project / "directory").mkdir()
    sandbox = ground.sandbox()
    names = [b"%05d" % number + b"x" * 200 for number in range(12_000)]
    names[7_000:7_000] = [b"directory"]
    assert SandboxTree(sandbox).directories(".", names) == {b"directory"}
    with pytest.raises(UsageError, match="longer than the kernel allows"):
        sandbox.run(["true", *names])


def test_no_names_are_no_directories_and_no_run(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert SandboxTree(sandbox).directories(".", []) == frozenset()
    assert sandbox.runs() == ()
