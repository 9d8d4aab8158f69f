# SPDX-License-Identifier: Apache-2.0
"""A writable rootfs: what commands write to it is one sandbox's alone, and the tree stays as it was."""

import io
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.rootfs_tree import make_small_tree
from tests.support import Ground, kinds, printed, run_both
from unspill import Sandbox
from unspill.errors import RootfsError, UsageError
from unspill.model.rootfs import RootfsSpec
from unspill.rootfs.build import tree_digest
from unspill.sandbox.rootfs import RootfsRegistry, keep_rootfs
from unspill.sandbox.rootfs_use import discard_layers, layers_of

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


@pytest.fixture
def tree(ground: Ground) -> Path:
    return make_small_tree(ground.top / "trees" / "small")


def writable(ground: Ground, tree: Path, name: str = "default", **settings: Any) -> Sandbox:
    return ground.sandbox(name, view="rootfs", rootfs=os.fspath(tree), rootfs_writable=True, **settings)


def test_what_a_command_installs_is_there_for_the_next_one_of_its_sandbox_only(ground: Ground, tree: Path) -> None:
    before = tree_digest(os.fsencode(tree))
    sandbox, other = writable(ground, tree), writable(ground, tree, "other")
    assert sandbox.run("echo tool > /usr/bin/tool && rm /etc/group && mkdir -p /var/lib/pkg").ok
    assert printed(sandbox.run("cat /usr/bin/tool; ls -d /var/lib/pkg; ls /etc")).split() == [
        "tool",
        "/var/lib/pkg",
        "passwd",
        "resolv.conf",
    ]
    assert printed(other.run("ls /usr/bin /var; ls /etc/group")).split() == ["/usr/bin:", "/var:", "tmp", "/etc/group"]
    assert tree_digest(os.fsencode(tree)) == before


def test_the_project_is_changed_as_ever(ground: Ground, tree: Path) -> None:
    result = writable(ground, tree).run("echo a > /workspace/a; echo b > /usr/b", after="apply")
    assert kinds(result.changes) == {"a": "added"}
    assert (ground.project / "a").read_text() == "a\n"


def test_a_run_sees_what_the_one_before_is_just_applying(
    ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such runs wait for each other, also for the apply."""
    sandbox = writable(ground, tree)
    ground.write("file", "one\n")
    first, second = run_both(sandbox, monkeypatch, "echo two >> file", "sleep 1; echo three >> file")
    assert (first.held, second.held) == (False, False)
    assert (ground.project / "file").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("ending", ["discarded", "timed out"])
def test_a_run_that_leaves_nothing_leaves_nothing_there_either(ground: Ground, tree: Path, ending: str) -> None:
    sandbox = writable(ground, tree)
    if ending == "discarded":
        sandbox.run("touch /usr/left", after="discard")
    else:
        sandbox.run("touch /usr/left; dd if=/dev/zero of=/usr/big bs=1M count=40", limits=_small())
    assert not layers_of(sandbox._project)
    assert not sandbox.run("ls /usr/left").ok


def _small() -> Any:
    from unspill import Limits

    return Limits(layer_bytes=8 << 20, wall_s=20.0)


@pytest.mark.any_bwrap
def test_what_was_installed_can_be_discarded(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    sandbox.run("touch /usr/left /etc/left")
    assert discard_layers(sandbox._project) == 2
    assert not sandbox.run("ls /usr/left").ok
    assert discard_layers(sandbox._project) == 0


def test_the_command_seems_to_be_root_and_has_no_capability(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    told = printed(sandbox.run("id -u; id -g; grep Cap /proc/self/status; chown 0:0 /etc/passwd && echo owned"))
    assert told.split()[:2] == ["0", "0"]
    assert {line.split()[1] for line in told.splitlines() if line.startswith("Cap")} == {"0000000000000000"}
    assert told.endswith("owned\n")


def test_an_archive_with_other_owners_is_unpacked(ground: Ground, tree: Path) -> None:
    with tarfile.open(ground.project / "a.tar", "w") as archive:
        member = tarfile.TarInfo("file")
        member.uid = member.gid = 4711
        member.size = 2
        archive.addfile(member, io.BytesIO(b"x\n"))
    assert printed(writable(ground, tree).run("cd /tmp && tar xof /workspace/a.tar && cat file")) == "x\n"


def test_nothing_is_made_at_the_top_and_no_mount_point_is_replaced(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    assert not sandbox.run("mkdir /new").ok
    assert not sandbox.run("rmdir /tmp").ok
    assert not sandbox.run("mv /usr /usr2").ok
    assert printed(sandbox.run("ls -d /tmp /usr")) == "/tmp\n/usr\n"


def test_a_link_that_a_command_plants_leads_no_later_run_out(ground: Ground, tree: Path) -> None:
    """The places that bwrap mounts on are never in what a command can write (CVE-2026-87766)."""
    outside, skills = ground.top / "outside", ground.home / "skills"
    for directory in (outside, skills):
        directory.mkdir()
    sandbox = writable(ground, tree, mounts=((b"/skills", os.fsencode(skills)),))
    planted = f"rm -rf /var/tmp; ln -s /oldroot{outside} /var/tmp; rm /etc/resolv.conf /etc/passwd;"
    planted += f" ln -s /oldroot{outside}/resolv /etc/resolv.conf; ln -s /oldroot{outside}/passwd /etc/passwd"
    assert sandbox.run(planted).ok
    assert sandbox.run("true").ok
    assert os.listdir(outside) == []


def test_what_is_installed_over_one_tree_stays_over_it(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    sandbox.run("echo old > /usr/tool")
    newer = make_small_tree(ground.top / "trees" / "newer")
    (newer / "etc/newer").touch()
    again = writable(ground, newer)
    assert printed(again.run("cat /usr/tool")) == "old\n"
    assert not again.run("ls /etc/newer").ok
    discard_layers(again._project)
    assert writable(ground, newer).run("ls /etc/newer").ok


@pytest.mark.any_bwrap
def test_what_was_installed_can_be_kept_as_a_rootfs_of_its_own(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    sandbox.run("echo tool > /usr/bin/tool; rm /etc/group; mkdir /opt/x")
    made = keep_rootfs(sandbox._project, "mine", lambda progress: None)
    assert re.fullmatch(r"mine-20\d{6}\.\d{6}-\w+", made.name), "its version is when it was kept"
    assert made.manifest is not None
    sandbox.run("echo later > /usr/bin/later")
    again = keep_rootfs(sandbox._project, "mine", lambda progress: None)
    assert again.name > made.name, "in the same second too"
    assert os.path.exists(again.tree + b"/usr/bin/later")
    assert (made.manifest.proof, made.manifest.spec.source) == ("none", "kept")
    discard_layers(sandbox._project)
    kept = ground.sandbox("other", view="rootfs", rootfs="mine")
    assert printed(kept.run("cat /usr/bin/tool; ls -d /opt/x /bin/sh; ls /etc/group || true")).split() == [
        "tool",
        "/bin/sh",
        "/opt/x",
    ]


@pytest.mark.any_bwrap
def test_a_tree_that_a_sandbox_layers_of_over_is_not_removed_as_unused(ground: Ground, tree: Path) -> None:
    registry = RootfsRegistry()
    archives = [ground.top / "1.tar", ground.top / "2.tar"]
    for archive in archives:
        (tree / "etc/release").write_text(archive.name)
        with tarfile.open(archive, "w") as made:
            made.add(tree, arcname=".")
    old, new = (
        registry.pull(RootfsSpec(source="archive", location=os.fspath(archive), label="mine")) for archive in archives
    )
    registry.use(old.name)
    sandbox = ground.sandbox(view="rootfs", rootfs_writable=True)
    sandbox.run("touch /usr/tool")
    registry.use(new.name)
    assert registry.remove_unused() == ()
    assert printed(sandbox.run("cat /etc/release; ls /usr/tool")).split() == ["1.tar/usr/tool"]
    assert registry.discard(sandbox)
    assert registry.remove_unused() == (old.name,)


@pytest.mark.any_bwrap
def test_a_sandbox_that_wrote_nothing_has_nothing_to_keep(ground: Ground, tree: Path) -> None:
    with pytest.raises(UsageError, match="written nothing"):
        keep_rootfs(writable(ground, tree)._project, "mine", lambda progress: None)


@pytest.mark.any_bwrap
def test_what_could_not_be_read_is_counted_in_a_rootfs_that_is_kept(ground: Ground, tree: Path) -> None:
    for path in (tree / "etc" / "closed", tree / "etc" / "open"):
        path.write_text("x")
    (tree / "etc" / "closed").chmod(0)
    sandbox = writable(ground, tree)
    sandbox.run("touch /usr/tool")
    made = keep_rootfs(sandbox._project, "mine", lambda progress: None)
    assert made.manifest is not None
    assert dict(made.manifest.left_out) == {"unreadable": 1}
    assert {name: os.path.getsize(made.tree + b"/etc/" + name) for name in (b"closed", b"open")} == {
        b"closed": 0,
        b"open": 1,
    }


def test_with_another_owner_it_is_refused(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    if os.geteuid():
        host = ground.sandbox("third", view="rootfs", rootfs="/opt/unspill-ci/host-root", rootfs_writable=True)
        with pytest.raises(UsageError, match="belongs to another user"):
            host.run("true")
    assert sandbox.run("true").ok


def test_what_is_mounted_is_never_in_a_directory_that_commands_write(ground: Ground, tree: Path) -> None:
    skills = ground.top / "skills"
    skills.mkdir()
    with pytest.raises(UsageError, match="that commands can write"):
        writable(ground, tree, mounts=((b"/opt/skills", os.fsencode(skills)),)).run("true")


def test_a_run_says_that_it_has_written_there_and_where_it_stays(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    assert [warning for warning in sandbox.run("true").warnings if warning.startswith("rootfs: ")] == []
    assert any("what it wrote there" in warning for warning in sandbox.run("touch /usr/x").warnings)
    newer = make_small_tree(ground.top / "trees" / "newer")
    assert any("stays on" in warning for warning in writable(ground, newer).run("true").warnings)
    shutil.rmtree(tree)
    assert any("is lost" in warning for warning in writable(ground, newer).run("true").warnings)


@pytest.mark.parametrize("how", ["ROOTFS_DIR", "rootfs_dir"])
def test_no_command_writes_where_every_rootfs_lies(
    ground: Ground, tree: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = ground.project / "shelf"
    inside.mkdir()
    if how == "ROOTFS_DIR":
        monkeypatch.setenv("ROOTFS_DIR", os.fspath(inside))
    settings: dict[str, Any] = {"rootfs_dir": os.fsencode(inside)} if how == "rootfs_dir" else {}
    with pytest.raises(UsageError, match="contains unspill's own files"):
        ground.sandbox(view="rootfs", rootfs=os.fspath(tree), **settings)


@pytest.mark.any_bwrap
def test_a_rootfs_that_a_sandbox_has_written_to_is_removed_by_force_only(ground: Ground, tree: Path) -> None:
    archive = ground.top / "1.tar"
    with tarfile.open(archive, "w") as made:
        made.add(tree, arcname=".")
    registry = RootfsRegistry()
    found = registry.pull(RootfsSpec(source="archive", location=os.fspath(archive), label="mine"))
    ground.sandbox(view="rootfs", rootfs_writable=True).run("touch /usr/tool")
    with pytest.raises(RootfsError, match="has written to"):
        registry.remove(found.name)
    assert registry.remove(found.name, force=True) == found.name


def test_the_strict_profile_needs_no_program_of_the_tree(ground: Ground, tree: Path) -> None:
    assert printed(writable(ground, tree, profile="strict").run("echo x > /opt/made; cat /opt/made")) == "x\n"
