# SPDX-License-Identifier: Apache-2.0
"""What commands write to a writable rootfs is trusted no more than what they write to the project."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rootfs_tree import BUSYBOX, make_small_tree
from tests.support import NamedByHost, printed
from unspill import RootfsRegistry, RootfsSpec
from unspill.errors import RootfsError, RootfsUnsafe, UsageError
from unspill.layers import lifecycle
from unspill.model.permission import Allowed, Question
from unspill.plan import view
from unspill.sandbox import rootfs_use
from unspill.sandbox.rootfs_use import discard_layers, layers_of

if TYPE_CHECKING:
    from typing import Any

    from tests.support import Ground
    from unspill.model.permission import Answer

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]


class Longest:
    """A person who allows everything for as long as they are offered."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return Allowed(digest=question.digest, by="test", scope=question.scopes[-1])


@pytest.fixture
def tree(ground: Ground) -> Path:
    made = make_small_tree(ground.top / "trees" / "small")
    shutil.copy(BUSYBOX, made / "usr/bin/echo")
    return made


def writable(ground: Ground, tree: Path, approver: Any = None, **settings: Any) -> NamedByHost:
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree), rootfs_writable=True, **settings)
    sandbox = NamedByHost(ground.project, policy=policy, approver=approver)
    ground.opened.append(sandbox)
    return sandbox


def runs_another_unasked(ground: Ground, tree: Path) -> bool:
    """Have a program of the rootfs allowed for as long as it goes, overwrite it, and tell whether that ran unasked.

    What is readable lies in /usr, which makes /usr an overlay that nobody can write to, with the layers in it.
    """
    person = Longest()
    sandbox = writable(ground, tree, person)
    wanted: dict[str, Any] = {"hosts": ["example.org"], "readable": ["/usr/share/doc"]}
    assert sandbox.run(["echo", "benign"], **wanted).stdout.kept() == b"benign\n"
    asked = len(person.asked)
    assert sandbox.run("printf '#!/bin/sh\\necho hostile\\n' > /usr/bin/echo").ok
    assert sandbox.run(["echo", "benign"], **wanted).stdout.kept() == b"hostile\n"
    return len(person.asked) == asked


def test_a_grant_does_not_cover_what_a_command_put_over_a_program_of_the_rootfs(
    ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where an overlay with a command's layers in it counts as the rootfs, the grant covers it."""
    assert not runs_another_unasked(ground, tree)
    monkeypatch.setattr(rootfs_use, "is_written", view.is_writable_mount)
    discard_layers(ground.opened[-1]._project)
    assert runs_another_unasked(ground, tree)


def make_again(tree: Path) -> Path:
    other = make_small_tree(tree.parent / "other")
    shutil.copy(BUSYBOX, other / "usr/bin/echo")
    return other


def test_a_python_that_reads_the_projects_packages_is_allowed_once_only(ground: Ground, tree: Path) -> None:
    (tree / "usr/bin/python3").write_text("#!/bin/sh\necho $PYTHONPATH\n")
    (tree / "usr/bin/python3").chmod(0o755)
    person = Longest()
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree))
    sandbox = NamedByHost(ground.project, policy=policy, approver=person)
    ground.opened.append(sandbox)
    for _ in range(2):
        assert sandbox.run(["python3"], hosts=["example.org"]).stdout.kept() == b"/workspace/.packages\n"
        assert sandbox.run(["echo", "benign"], hosts=["example.org"]).stdout.kept() == b"benign\n"
    assert len(person.asked) == 3
    # The same path is another program in another rootfs
    policy = ground.policy(view="rootfs", rootfs=os.fspath(make_again(tree)))
    other = NamedByHost(ground.project, policy=policy, approver=person)
    ground.opened.append(other)
    assert other.run(["echo", "benign"], hosts=["example.org"]).ok
    assert len(person.asked) == 4


def test_what_can_not_be_merged_is_not_lost(ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a directory that nobody may enter, and run on. Control: as a mere cache, all of it goes at the eighth."""
    sandbox = writable(ground, tree)
    for number in range(lifecycle.FAN + 1):
        assert sandbox.run(f"echo x > /opt/f{number}; [ {number} != 3 ] || {{ mkdir /opt/z; chmod 000 /opt/z; }}").ok
    assert len(printed(sandbox.run("ls /opt")).split()) == lifecycle.FAN + 2
    monkeypatch.setattr(lifecycle, "ROOTFS_OWNER", b"nobody")
    sandbox.run("echo x > /opt/last")
    assert not sandbox.run("ls /opt/f0").ok


def test_too_many_layers_are_refused_with_a_remedy(ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = writable(ground, tree)
    monkeypatch.setattr(rootfs_use, "_MOST_LAYERS", 1)
    for _ in range(2):
        sandbox.run("date > /opt/f")
    with pytest.raises(UsageError, match="more layers"):
        sandbox.run("true")


def test_a_tree_with_layers_is_checked_like_any_other(ground: Ground, tree: Path) -> None:
    sandbox = writable(ground, tree)
    sandbox.run("touch /usr/x")
    assert layers_of(sandbox._project)
    newer = make_again(tree)
    tree.chmod(0o777)
    with pytest.raises(RootfsUnsafe, match="can be changed by others"):
        writable(ground, newer).run("true")


LOCKER = "import fcntl, os, sys, time; fd = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(fd, fcntl.LOCK_EX); "
LOCKER += "print('locked', flush=True); time.sleep(60)"


def test_somebody_who_locks_a_rootfs_is_not_waited_for_without_end(
    ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ground.top / "1.tar"
    with tarfile.open(archive, "w") as made:
        made.add(tree, arcname=".")
    found = RootfsRegistry().pull(RootfsSpec(source="archive", location=os.fspath(archive), label="mine"))
    monkeypatch.setattr(rootfs_use, "_PATIENCE_S", 0.2)
    sandbox = ground.sandbox(view="rootfs", rootfs=found.name)
    words = [sys.executable, "-c", LOCKER, os.fsdecode(os.path.dirname(found.tree))]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == b"locked\n"
        with pytest.raises(RootfsError, match="keeps the rootfs"):
            sandbox.run("true")
        locker.kill()
    assert sandbox.run("true").ok
    # A run's own lock keeps nobody else from running
    fd = os.open(os.path.dirname(found.tree), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert sandbox.run("true").ok
    os.close(fd)


def test_a_kept_tmp_has_nothing_mounted_in_it(ground: Ground) -> None:
    policy = ground.policy(view="sealed", tmp="persistent", readable=(b"/tmp/somewhere",))
    sandbox = NamedByHost(ground.project, policy=policy)
    ground.opened.append(sandbox)
    with pytest.raises(UsageError, match="/tmp can't be kept"):
        sandbox.run("true")


TAKEN = (b"/workspace", b"/workspace/x", b"/playground", b"/run/x", b"/usr")


@pytest.mark.parametrize("path", TAKEN)
def test_nothing_is_shown_on_its_own_path_where_the_sandbox_has_something_else(
    ground: Ground, tree: Path, path: bytes
) -> None:
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree), readable=(path,))
    sandbox = NamedByHost(ground.project, policy=policy)
    ground.opened.append(sandbox)
    with pytest.raises(UsageError, match="at its own path"):
        sandbox.run("true")


def test_a_mount_is_what_its_link_led_to_and_never_a_link_of_the_project(ground: Ground, tree: Path) -> None:
    skills = ground.top / "skills"
    skills.mkdir()
    (skills / "one").touch()
    link = ground.project / "link"
    link.symlink_to(skills)
    outside = ground.home / "skills"
    outside.symlink_to(skills)
    for source, is_allowed in ((link, False), (outside, True)):
        policy = ground.policy(view="rootfs", rootfs=os.fspath(tree), mounts=((b"/skills", os.fsencode(source)),))
        sandbox = NamedByHost(ground.project, policy=policy)
        ground.opened.append(sandbox)
        if is_allowed:
            assert printed(sandbox.run("ls /skills")) == "one\n"
        else:
            with pytest.raises(UsageError, match="is inside the root"):
                sandbox.run("true")


def test_a_wanted_root_around_the_project_moves_nobody_elsewhere(ground: Ground, tree: Path) -> None:
    inner = ground.project / "inner"
    inner.mkdir()
    policy = ground.policy(view="rootfs", rootfs=os.fspath(tree))
    sandbox = NamedByHost(inner, policy=policy, approver=Longest())
    ground.opened.append(sandbox)
    assert printed(sandbox.run("pwd")) == "/workspace\n"
    assert printed(sandbox.run("pwd", roots=[os.fspath(ground.project)])) == "/workspace/inner\n"


def test_what_was_kept_is_what_was_written_whatever_the_policy_says_now(ground: Ground, tree: Path) -> None:
    writable(ground, tree).run("echo tool > /usr/bin/tool")
    newer = make_again(tree)
    policy = ground.policy(view="rootfs", rootfs=os.fspath(newer))
    sandbox = NamedByHost(ground.project, policy=policy)
    ground.opened.append(sandbox)
    made = RootfsRegistry().keep(sandbox, "mine")
    assert (Path(os.fsdecode(made.tree)) / "usr/bin/tool").read_text() == "tool\n"
    shutil.rmtree(tree)
    with pytest.raises(UsageError, match="written nothing"):
        RootfsRegistry().keep(sandbox, "mine")
