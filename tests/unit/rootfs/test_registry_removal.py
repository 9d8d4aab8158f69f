# SPDX-License-Identifier: Apache-2.0
"""A rootfs goes when nobody uses it, whole, and never before."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.unit.rootfs.making import SmallSource, fill_small, left_over, make
from unspill.errors import RootfsError
from unspill.model.rootfs import Rootfs, RootfsSpec
from unspill.rootfs.layout import NameLock, Staging, sweep
from unspill.rootfs.registry import Registry

ARCH = os.uname().machine
HOLDER = """
import os, sys
from unspill.rootfs.registry import Registry
registry = Registry(os.fsencode(sys.argv[1]))
with registry.hold(registry.get(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """An empty registry."""
    return Registry(os.fsencode(tmp_path / "rootfs"))


def versions(registry: Registry, *numbers: str, tier: int = 1) -> list[Rootfs]:
    """Make some versions of one."""
    return [make(registry, spec=RootfsSpec(source="alpine", version=number, tier=tier)) for number in numbers]


def held(registry: Registry, rootfs: Rootfs) -> subprocess.Popen[str]:
    """Hold one in another process."""
    words = [sys.executable, "-c", HOLDER, os.fsdecode(registry.directory), rootfs.name]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_that_runs_use_is_not_removed_even_by_force(registry: Registry) -> None:
    old, new = versions(registry, "1.0", "2.0")
    registry.use(new.name)
    holder = held(registry, old)
    try:
        for force in (False, True):
            with pytest.raises(RootfsError, match="Runs are using") as caught:
                registry.remove(old.name, force=force)
            assert "ended" in caught.value.remedy
        assert registry.remove_unused() == ()
        assert registry.get(old.name) == old
        # Many may use one at once
        with registry.hold(old), registry.hold(old):
            pass
    finally:
        holder.kill()
        holder.communicate()
    # The control: without its user it goes at once, though that one was killed
    assert registry.remove(old.name) == old.name
    assert registry.list() == (new,)
    assert left_over(registry) == []


def test_the_current_one_goes_only_by_force(registry: Registry) -> None:
    made = make(registry)
    with pytest.raises(RootfsError, match="in use") as caught:
        registry.remove("alpine")
    assert "rootfs use" in caught.value.remedy
    assert registry.current() == made
    assert registry.remove("alpine", force=True) == made.name
    assert registry.current() is None
    assert not os.path.lexists(os.path.join(registry.directory, b"current"))


def test_what_is_not_there_is_not_removed(registry: Registry) -> None:
    make(registry)
    for name in ("debian", "../roots", "", "."):
        with pytest.raises(RootfsError, match="There is no rootfs"):
            registry.remove(name)


def test_what_is_damaged_can_be_removed_by_its_name(registry: Registry) -> None:
    old, _new = versions(registry, "1.0", "2.0")
    registry.use("alpine-2.0")
    os.unlink(os.path.join(registry.roots, old.name.encode(), b"manifest.json"))
    assert registry.get(old.name) is None
    registry.remove(old.name)
    assert registry.damaged() == ()


def test_only_what_a_newer_one_replaced_is_unused(registry: Registry) -> None:
    first, second, third = versions(registry, "3.9", "3.10", "3.11")
    (other,) = versions(registry, "3.9", tier=2)
    labelled = make(registry, spec=RootfsSpec(source="alpine", label="mine", version="1"))
    registry.use(second.name)
    assert registry.remove_unused() == (first.name,)
    assert set(registry.list()) == {second, third, other, labelled}
    registry.use(third.name)
    assert registry.remove_unused() == (second.name,)
    assert left_over(registry) == []


def test_versions_that_are_no_numbers_are_as_old_as_they_are(registry: Registry) -> None:
    first, second = versions(registry, "trixie", "bookworm")
    registry.use(second.name)
    assert registry.remove_unused() == (first.name,)


def test_what_was_kept_of_a_sandbox_is_never_unused(registry: Registry) -> None:
    kept = [make(registry, spec=RootfsSpec(source="kept", label="mine", version=number)) for number in ("1", "2")]
    assert registry.remove_unused() == ()
    assert list(registry.list()) == kept
    registry.remove(kept[1].name)


def test_a_lock_is_given_back_although_a_child_has_its_descriptor(registry: Registry) -> None:
    made = make(registry)
    with registry.hold(made) as hold:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[hold.fd])
    try:
        registry.remove(made.name, force=True)
    finally:
        child.communicate()


def test_one_that_is_being_made_is_left_alone(registry: Registry) -> None:
    old, new = versions(registry, "1.0", "2.0")
    registry.use(new.name)
    with NameLock(registry.directory, old.name):
        assert registry.remove_unused() == ()
    assert registry.remove_unused() == (old.name,)


def test_directories_that_nobody_may_write_are_no_obstacle(registry: Registry) -> None:
    def fill(tree: Path) -> None:
        fill_small(tree)
        (tree / "usr" / "lib").mkdir(parents=True)
        (tree / "usr" / "lib" / "x").touch(0o444)
        for place in ("usr/lib", "usr", "etc", "bin", "."):
            (tree / place).chmod(0o555)

    made = make(registry, SmallSource(fill=fill))
    assert os.stat(os.path.join(made.tree, b"usr")).st_mode & 0o777 == 0o555
    assert os.stat(made.tree).st_mode & 0o777 == 0o555
    assert os.path.exists(os.path.join(made.tree, b"etc/resolv.conf"))
    registry.remove(made.name, force=True)
    assert left_over(registry) == []


def test_a_hold_on_what_has_gone_is_refused(registry: Registry) -> None:
    made = make(registry)
    registry.remove(made.name, force=True)
    with pytest.raises(RootfsError, match="no longer exists"):
        registry.hold(made)


def test_a_hold_waits_for_a_remover_and_finds_that_it_has_gone(registry: Registry) -> None:
    """The remover has the lock; when it lets go, another directory or none is at the place."""
    made = make(registry)
    path = os.path.join(registry.roots, made.name.encode())
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    problems: list[str] = []

    def use() -> None:
        try:
            registry.hold(made).release()
        except RootfsError as error:
            problems.append(str(error))

    user = threading.Thread(target=use)
    user.start()
    time.sleep(0.05)
    assert user.is_alive()
    os.rename(path, os.path.join(registry.directory, b"staging", b"gone.0"))
    user.join(10)
    os.close(fd)
    assert len(problems) == 1


def test_a_hold_on_a_tree_made_by_hand_needs_nothing_around_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    rootfs = Rootfs(name="mine", tree=os.fsencode(tmp_path / "mine"))
    with Registry(os.fsencode(tmp_path / "none")).hold(rootfs) as hold:
        assert os.fstat(hold.fd).st_ino == (tmp_path / "mine").stat().st_ino


def test_only_the_staging_of_the_dead_is_swept(registry: Registry) -> None:
    make(registry)
    with Staging(registry.directory, "alpine-1") as alive:
        dead = os.path.join(registry.directory, b"staging", b"alpine-1.dead")
        os.makedirs(os.path.join(dead, b"tree", b"closed"))
        os.chmod(os.path.join(dead, b"tree", b"closed"), 0)
        assert sweep(registry.directory, "alpine") == 0
        assert sweep(registry.directory, "alpine-1") == 1
        assert left_over(registry) == [os.path.basename(alive.path)]
        assert sweep(registry.directory) == 0
    assert left_over(registry) == []
