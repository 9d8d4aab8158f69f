# SPDX-License-Identifier: Apache-2.0
"""Names of a sandbox: looked at, resolved, made and removed as its commands would."""

import os
from collections.abc import Callable

import pytest

from tests.support import Ground, kinds, printed
from unspill import FileError
from unspill.errors import UsageError
from unspill.sandbox.files import SandboxTree

pytestmark = pytest.mark.kernel


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
