# SPDX-License-Identifier: Apache-2.0
"""What is ready is found by its name, and nothing else is ever taken for ready."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.rootfs.making import SPEC, SmallSource, left_over, make
from unspill.errors import RootfsError, RootfsUnsafe, UsageError
from unspill.model.rootfs import RootfsSpec
from unspill.rootfs.registry import NotReady, Registry
from unspill.rootfs.registry import load_ready as load
from unspill.sandbox.project import find_locations, rootfs_dir

ARCH = os.uname().machine


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """An empty registry."""
    return Registry(os.fsencode(tmp_path / "rootfs"))


def test_get_rootfs_dir_default() -> None:
    assert rootfs_dir({}, b"/h/.local/share/unspill") == b"/h/.local/share/unspill/rootfs"
    assert find_locations(b"/h", {}).rootfs == b"/h/.local/share/unspill/rootfs"


def test_the_variable_goes_before_the_configuration_and_that_before_the_default() -> None:
    assert rootfs_dir({}, b"/d", b"/configured") == b"/configured"
    assert rootfs_dir({b"ROOTFS_DIR": b"/baked"}, b"/d", b"/configured") == b"/baked"
    assert rootfs_dir({b"ROOTFS_DIR": b""}, b"/d", b"/configured") == b"/configured"
    assert find_locations(b"/h", {b"ROOTFS_DIR": b"/baked"}).rootfs == b"/baked"


def test_a_relative_rootfs_directory_is_refused() -> None:
    with pytest.raises(UsageError, match="ROOTFS_DIR"):
        rootfs_dir({b"ROOTFS_DIR": b"here"}, b"/d")


def test_is_rootfs_ready_true(registry: Registry) -> None:
    made = make(registry)
    assert load(registry.roots, made.name) == made
    # The host must not matter: there, the absolute link leads to nothing that belongs to the tree
    assert os.readlink(os.path.join(made.tree, b"bin/sh")) == b"/bin/busybox"


def test_is_rootfs_ready_false(registry: Registry) -> None:
    made = make(registry)
    os.unlink(os.path.join(made.tree, b"bin/busybox"))
    for name in (made.name, "alpine-9.9-x86_64-t1", "../roots"):
        with pytest.raises(NotReady):
            load(registry.roots, name)


def test_a_shelf_that_is_not_there_is_empty(registry: Registry) -> None:
    assert registry.list() == ()
    assert registry.find("alpine") is None
    assert registry.current() is None
    assert registry.remove_unused() == ()
    assert not os.path.exists(registry.directory)


def _rewrite(root: Path, **fields: object) -> None:
    path = root / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _behind_link(place: Path) -> None:
    """Move something away, and have a link lead there."""
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


def _empty(place: Path) -> None:
    shutil.rmtree(place)
    place.mkdir()


def _relink(place: Path, target: str) -> None:
    place.unlink()
    place.symlink_to(target)


def _as_file(place: Path) -> None:
    shutil.rmtree(place)
    place.touch()


def _as_link(place: Path) -> None:
    place.rename(place.parent.parent / "r")
    place.symlink_to("../r")


OTHER = {"source": "debian", "version": "12", "arch": ARCH, "tier": 1, "variant": ""}
DAMAGES: dict[str, Callable[[Path], object]] = {
    "half-built: no manifest yet": lambda root: (root / "manifest.json").unlink(),
    "a manifest cut short": lambda root: os.truncate(root / "manifest.json", 100),
    "a manifest of nothing": lambda root: os.truncate(root / "manifest.json", 0),
    "a manifest of another version": lambda root: _rewrite(root, version=2),
    "a manifest of another rootfs": lambda root: _rewrite(root, key=OTHER),
    "a manifest behind a link": lambda root: _behind_link(root / "manifest.json"),
    "no tree": lambda root: (root / "tree").rename(root / "gone"),
    "a tree behind a link": lambda root: _behind_link(root / "tree"),
    "an empty tree": lambda root: _empty(root / "tree"),
    "no shell": lambda root: (root / "tree" / "bin" / "sh").unlink(),
    "a shell that only the host has": lambda root: _relink(root / "tree" / "bin" / "sh", "/usr/bin/env"),
    "a shell that is none": lambda root: (root / "tree" / "bin" / "busybox").chmod(0o644),
    "a directory that all may write": lambda root: root.chmod(0o777),
    "a tree that all may write": lambda root: (root / "tree").chmod(0o777),
    "a file in its place": _as_file,
    "a link in its place": _as_link,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_never_used_and_made_anew(registry: Registry, damage: str) -> None:
    source = SmallSource()
    made = make(registry, source)
    DAMAGES[damage](Path(os.fsdecode(registry.roots), made.name))
    assert registry.list() == ()
    assert registry.get(made.name) is None
    assert registry.find("alpine") is None
    assert registry.current() is None
    assert [name for name, _why in registry.damaged()] == [made.name]
    with pytest.raises(RootfsError):
        registry.use(made.name)
    assert make(registry, source).manifest != made.manifest
    assert source.made == 2
    assert registry.damaged() == ()
    assert left_over(registry) == []


def test_a_name_or_the_beginning_of_one_finds_it(registry: Registry) -> None:
    made = make(registry)
    assert made.name == f"alpine-1.0-{ARCH}-t1"
    for name in (made.name, "alpine", "alpine-1.0", "alpine-1", f"alpine-1.0-{ARCH}"):
        assert registry.find(name) == made
    for name in ("alp", "alpine-", "alpine-1.", "debian", "", ".", "..", "/", f"{made.name}/tree", "alpine\0"):
        assert registry.find(name) is None


def test_what_a_person_types_may_be_cut_anywhere_where_it_can_only_be_one(registry: Registry) -> None:
    made = make(registry)
    for name in ("alp", "alpine-", "alpine-1."):
        assert registry.find(name, cut_anywhere=True) == made
        assert registry.use(name) == made
    for name in ("", ".", "..", "/", "lpine", "alpine\0"):
        assert registry.find(name, cut_anywhere=True) is None
    other = make(registry, spec=RootfsSpec(source="alpine", label="alpine2", version="1"))
    os.unlink(os.path.join(registry.directory, b"current"))
    assert registry.find("alpine", cut_anywhere=True) == made, "a whole part goes before one that is cut"
    assert registry.find("alpine2") == other
    with pytest.raises(RootfsError, match=f"'alp' could be {made.name}, {other.name}"):
        registry.find("alp", cut_anywhere=True)


def test_of_several_that_differ_in_their_version_the_newest_is_meant(registry: Registry) -> None:
    versions = ("3.9", "3.10", "3.9.9")
    for version in versions:
        make(registry, spec=RootfsSpec(source="alpine", version=version))
    assert registry.current() == registry.find(f"alpine-3.9-{ARCH}-t1")
    os.unlink(os.path.join(registry.directory, b"current"))
    found = registry.find("alpine")
    assert found is not None
    assert found.name == f"alpine-3.10-{ARCH}-t1"


def test_the_one_in_use_is_meant_before_a_newer_one(registry: Registry) -> None:
    old = make(registry)
    make(registry, spec=RootfsSpec(source="alpine", version="2.0"))
    assert registry.current() == old
    assert registry.find("alpine") == old
    assert registry.find(registry.use(f"alpine-2.0-{ARCH}").name) == registry.current() == registry.find("alpine")


def test_what_could_be_several_is_not_guessed(registry: Registry) -> None:
    make(registry)
    make(registry, spec=RootfsSpec(source="alpine", tier=2))
    os.unlink(os.path.join(registry.directory, b"current"))
    with pytest.raises(RootfsError, match=f"alpine-1.0-{ARCH}-t2"):
        registry.find("alpine")


@pytest.mark.parametrize("target", ["/etc", "roots/../..", "roots/none", "staging/x", "roots/"])
def test_a_link_that_leads_elsewhere_is_no_current_one(registry: Registry, target: str) -> None:
    make(registry)
    place = os.path.join(os.fsdecode(registry.directory), "current")
    os.unlink(place)
    os.symlink(target, place)
    assert registry.current() is None


@pytest.mark.parametrize("where", ["", "roots"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_in_which_others_can_write_is_refused(registry: Registry, where: str, mode: int) -> None:
    made = make(registry)
    place = Path(os.fsdecode(registry.directory), where)
    old = place.stat().st_mode
    place.chmod(mode)
    for attempt in (
        registry.list,
        registry.current,
        registry.remove_unused,
        lambda: registry.find(made.name),
        lambda: make(registry),
    ):
        with pytest.raises(RootfsUnsafe, match="written by others"):
            attempt()
    place.chmod(old)
    assert registry.find(made.name) == made


def test_a_directory_of_root_is_trusted_and_one_of_another_person_is_not() -> None:
    from unspill.rootfs.layout import is_trusted

    def found(uid: int, mode: int) -> os.stat_result:
        return os.stat_result((0o040000 | mode, 1, 1, 1, uid, 0, 0, 0, 0, 0))

    assert is_trusted(found(0, 0o755))
    assert is_trusted(found(os.geteuid(), 0o700))
    assert not is_trusted(found(os.geteuid() + 1, 0o755))
    assert not is_trusted(found(0, 0o775))


def test_a_directory_that_is_not_there_and_can_not_be_made_is_not_called_read_only(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(RootfsError, match="nope does not exist and can't be created") as caught:
        make(Registry(os.fsencode(tmp_path / "closed/nope")))
    assert "ROOTFS_DIR" in caught.value.remedy


def test_a_baked_directory_that_can_only_be_read_is_used_but_not_changed(registry: Registry) -> None:
    source = SmallSource()
    made = make(registry, source)
    places = [Path(os.fsdecode(registry.directory), name) for name in ("staging", "locks", "downloads", "roots", ".")]
    for place in places:
        place.chmod(0o555)
    try:
        assert registry.current() == made
        assert make(registry, source) == made
        assert (source.made, source.asked) == (1, 1)
        with registry.hold(made):
            pass
        spec = RootfsSpec(source="alpine", version="2.0")
        for attempt in (
            lambda: make(registry, source, spec),
            lambda: registry.use(made.name),
            lambda: registry.remove(made.name, force=True),
            registry.remove_unused,
        ):
            with pytest.raises(RootfsError, match="is read-only") as caught:
                attempt()
            assert "ROOTFS_DIR" in caught.value.remedy
    finally:
        for place in reversed(places):
            place.chmod(0o755)
    assert make(registry, source, SPEC) == made
