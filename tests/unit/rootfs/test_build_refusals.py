# SPDX-License-Identifier: Apache-2.0
"""What fails on the way leaves nothing behind, says why, and does not stand in the way of the next attempt."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.rootfs.making import SPEC, SmallSource, fill_small, left_over, make
from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.model.rootfs import RootfsKey, RootfsSpec
from unspill.rootfs.build import DEEPEST
from unspill.rootfs.registry import LARGEST_MANIFEST as LARGEST
from unspill.rootfs.registry import Registry
from unspill.rootfs.source import BuildContext, Filled, Resolved


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """An empty registry."""
    return Registry(os.fsencode(tmp_path / "rootfs"))


def interrupted(tree: Path) -> None:
    """Be interrupted after a half."""
    fill_small(tree)
    raise KeyboardInterrupt


def defective(tree: Path) -> None:
    """Have a defect."""
    fill_small(tree)
    raise ZeroDivisionError


def unverified(tree: Path) -> None:
    """Find that it is not what it should be."""
    fill_small(tree)
    raise RootfsUnverified("not what it should be")


def full(tree: Path) -> None:
    """Write where there really is no space."""
    fill_small(tree)
    Path("/dev/full").write_text("x")


def unreadable(tree: Path) -> None:
    """Read what can't be read."""
    fill_small(tree)
    Path("/proc/self/mem").read_bytes()


def shell_of_the_host(tree: Path) -> None:
    """Have a shell only where the host has one."""
    (tree / "bin").mkdir()
    (tree / "bin" / "sh").symlink_to("/usr/bin/env")


def without_bottom(tree: Path) -> None:
    """Have more directories in one another than any real one."""
    fill_small(tree)
    fd = os.open(tree, os.O_RDONLY)
    for _ in range(DEEPEST + 2):
        os.mkdir("d", 0o700, dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


FAILURES: dict[str, tuple[Callable[[Path], None], type[BaseException], str | None]] = {
    "interrupted": (interrupted, KeyboardInterrupt, None),
    "a defect": (defective, ZeroDivisionError, None),
    "unverified": (unverified, RootfsUnverified, "not what it should be"),
    "no space": (full, RootfsError, "disk is full"),
    "an I/O error": (unreadable, RootfsError, "Input/output error"),
    "nothing": (lambda _tree: None, RootfsUnsafe, "no /bin/sh"),
    "a shell of the host": (shell_of_the_host, RootfsUnsafe, "no /bin/sh"),
    "without bottom": (without_bottom, RootfsUnsafe, "directories deep"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_leaves_nothing_behind_and_the_next_attempt_succeeds(registry: Registry, failure: str) -> None:
    fill, kind, text = FAILURES[failure]
    with pytest.raises(kind, match=text) as caught:
        make(registry, SmallSource(fill=fill))
    if isinstance(caught.value, RootfsError):
        assert caught.value.remedy
    assert left_over(registry) == []
    assert os.listdir(registry.roots) == []
    assert registry.current() is None
    assert make(registry) == registry.current()
    assert left_over(registry) == []


class Named(SmallSource):
    """A source that takes the parts of a name from somewhere else."""

    def __init__(self, version: str) -> None:
        super().__init__(version)

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Believe what was said."""
        return Resolved(key=RootfsKey(source="alpine", version=self.version, arch="x86_64"), spec=spec)


@pytest.mark.parametrize("version", ["../../../tmp/x", "/", "3.23/..", "3\n4", "3 4", "3\0", "é", "x" * 300, "$(id)"])
def test_a_name_that_a_server_made_up_is_refused(registry: Registry, version: str) -> None:
    with pytest.raises(RootfsUnsafe, match="name of a rootfs"):
        make(registry, Named(version))
    assert left_over(registry) == []
    assert os.listdir(os.path.join(registry.directory, b"locks")) == []


class Talkative(SmallSource):
    """A source whose packages don't fit into any manifest."""

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Say too much."""
        return super().fill(resolved, tree, means).replace(packages=(("x" * LARGEST, "1"),))


def test_a_manifest_that_could_not_be_read_back_ends_the_attempt(registry: Registry) -> None:
    with pytest.raises(RootfsUnverified, match="too long"):
        make(registry, Talkative())
    assert left_over(registry) == []
    assert registry.list() == ()


def test_what_a_dead_builder_left_is_swept_by_the_next_one(registry: Registry) -> None:
    made = make(registry)
    registry.remove(made.name, force=True)
    dead = Path(os.fsdecode(registry.directory), "staging", f"{made.name}.0123456789abcdef")
    (dead / "tree" / "closed").mkdir(parents=True)
    (dead / "tree" / "closed").chmod(0o000)
    (dead / "manifest.json").write_text("{}")
    (dead.parent / "_resolving.0123456789abcdef").mkdir()
    # What belongs to another name is not this one's business
    (dead.parent / "other-1.0.0123456789abcdef").mkdir()
    assert make(registry) == registry.current()
    assert left_over(registry) == [b"other-1.0.0123456789abcdef"]
    registry.remove_unused()
    assert left_over(registry) == []


def test_a_damaged_one_that_runs_still_use_is_not_replaced_under_them(registry: Registry) -> None:
    made = make(registry)
    with registry.hold(made):
        os.unlink(os.path.join(os.path.dirname(made.tree), b"manifest.json"))
        with pytest.raises(RootfsError, match="runs are still using it"):
            make(registry)
        assert os.path.isdir(made.tree)
    assert make(registry) == registry.current()


@pytest.mark.parametrize("place", ["rootfs", "rootfs/roots", "rootfs/locks"])
def test_a_file_where_a_directory_should_be_is_refused(registry: Registry, tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True, mode=0o700)
    (tmp_path / place).touch()
    with pytest.raises(RootfsUnsafe, match="not a directory"):
        make(registry)


@pytest.mark.parametrize("place", ["staging", "downloads", "locks"])
def test_nothing_is_made_where_others_could_write(registry: Registry, place: str) -> None:
    make(registry)
    Path(os.fsdecode(registry.directory), place).chmod(0o777)
    with pytest.raises(RootfsUnsafe, match="written by others"):
        make(registry, spec=SPEC.replace(version="2.0"))


def test_a_link_as_a_lock_is_not_followed(registry: Registry, tmp_path: Path) -> None:
    made = make(registry)
    lock = Path(os.fsdecode(registry.directory), "locks", f"{made.name}.lock")
    lock.unlink()
    lock.symlink_to(tmp_path / "victim")
    with pytest.raises(RootfsError):
        registry.remove(made.name, force=True)
    assert not (tmp_path / "victim").exists()
