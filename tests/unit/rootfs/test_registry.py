# SPDX-License-Identifier: Apache-2.0
"""What is ready is found by its name and its manifest, and goes, like what was fetched, when nobody uses it."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rootfs.making import SPEC, SmallSource, fill_small, left_over, make
from tests.unit.rootfs.serving import Page, Web
from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified, UsageError
from unspill.model.rootfs import Rootfs, RootfsKey, RootfsManifest, RootfsSpec
from unspill.rootfs.download import Part, Version, fetch
from unspill.rootfs.layout import NameLock, Staging, sweep
from unspill.rootfs.registry import (
    LARGEST_MANIFEST as LARGEST,
)
from unspill.rootfs.registry import (
    NotReady,
    Registry,
    empty_downloads,
    measure_downloads,
    to_content,
)
from unspill.rootfs.registry import (
    load_ready as load,
)
from unspill.rootfs.registry import (
    parse_manifest as parse,
)
from unspill.rootfs.registry import (
    read_manifest as read,
)
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


HOLDER = """
import os, sys
from unspill.rootfs.registry import Registry
registry = Registry(os.fsencode(sys.argv[1]))
with registry.hold(registry.get(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


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


MANIFEST = RootfsManifest(
    key=RootfsKey(source="alpine", version="3.23.3", arch="x86_64", tier=1),
    spec=RootfsSpec(source="alpine", packages=("jq",)),
    proof="known",
    packages=(("busybox", "1.37"),),
    fetched=(("a.tar.gz", "00" * 32),),
    left_out=(("device", 3),),
    tree="11" * 32,
    entries=7,
    size_bytes=1 << 40,
    created_ns=1_700_000_000_000_000_000,
)

texts = st.text(max_size=8)
kinds = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=32)
counts = st.integers(0, (1 << 63) - 1)
manifests = st.builds(
    RootfsManifest,
    key=st.builds(RootfsKey, source=texts, version=texts, arch=texts, tier=counts, variant=texts),
    spec=st.builds(
        RootfsSpec,
        source=st.sampled_from(["alpine", "debian", "archive", "oci", "kept"]),
        version=texts,
        packages=st.lists(texts, max_size=3).map(tuple),
        location=texts,
    ),
    proof=st.sampled_from(["pinned", "known", "signed", "same-server", "none"]),
    packages=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    left_out=st.lists(st.tuples(kinds, counts), max_size=3).map(tuple),
    tree=st.text("0123456789abcdef", min_size=64, max_size=64),
    entries=counts,
)


@given(manifest=manifests)
def test_what_is_written_is_read_back(manifest: RootfsManifest) -> None:
    assert parse(to_content(manifest)) == manifest


def test_no_part_of_a_manifest_is_one() -> None:
    content = to_content(MANIFEST).rstrip()
    for end in range(len(content)):
        with pytest.raises(NotReady):
            parse(content[:end])


Change = Callable[[dict[str, Any]], object]
DAMAGES_MANIFEST: dict[str, Change] = {
    "a version to come": lambda top: top.update(version=2),
    "no version": lambda top: top.pop("version"),
    "a version that only equals one": lambda top: top.update(version=True),
    "a field too many": lambda top: top.update(more=1),
    "a field too few": lambda top: top.pop("tree"),
    "a field too many in the key": lambda top: top["key"].update(more=1),
    "a field too few in the wish": lambda top: top["wish"].pop("mirror"),
    "a text as a count": lambda top: top.update(entries="7"),
    "a truth as a count": lambda top: top.update(entries=True),
    "a fraction": lambda top: top.update(entries=7.5),
    "a count below zero": lambda top: top.update(entries=-1),
    "a count beyond all": lambda top: top.update(entries=1 << 63),
    "a count as a text": lambda top: top.update(tree=7),
    "nothing as a text": lambda top: top.update(tree=None),
    "packages as a text": lambda top: top.update(packages="busybox"),
    "packages without versions": lambda top: top.update(packages=["busybox"]),
    "a pair of three": lambda top: top.update(packages=[["a", "b", "c"]]),
    "left out without a count": lambda top: top.update(left_out=[["device", "3"]]),
    "a proof that is none": lambda top: top.update(proof="believe me"),
    "a source that is none": lambda top: top["wish"].update(source="elsewhere"),
    "a key as a list": lambda top: top.update(key=["alpine"]),
    "words as a digest": lambda top: top.update(tree="\x1b[31mred"),
    "a digest that is too short": lambda top: top.update(tree="11" * 31),
    "no digest": lambda top: top.update(tree=""),
    "words as what was left out": lambda top: top.update(left_out=[["k\x1b[2J", 3]]),
    "a sentence as what was left out": lambda top: top.update(left_out=[["all is well", 3]]),
    "nothing as what was left out": lambda top: top.update(left_out=[["", 3]]),
    "something long as what was left out": lambda top: top.update(left_out=[["x" * 33, 3]]),
    "a number without end": lambda top: top.update(entries=float("inf")),
}


@pytest.mark.parametrize("damage", DAMAGES_MANIFEST)
def test_a_manifest_that_says_something_else_is_none(damage: str) -> None:
    top = json.loads(to_content(MANIFEST))
    DAMAGES_MANIFEST[damage](top)
    with pytest.raises(NotReady):
        parse(json.dumps(top).encode())


CONTENTS = {
    "nothing": b"",
    "spaces": b"  \n",
    "no JSON": b"alpine 3.23.3",
    "a list": b"[1]",
    "a text": b'"x"',
    "bytes that are no text": b'{"version": "\xff"}',
    "a field twice": to_content(MANIFEST).replace(b'"version": 1', b'"version": 1, "version": 1', 1),
    "something after it": to_content(MANIFEST) + b"{}",
    "lists without end": b"[" * 100_000,
    "zeros, as after a crash": b"\0" * 500,
    "too much": b" " * LARGEST + to_content(MANIFEST),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_what_is_not_exactly_a_manifest_is_none(content: str) -> None:
    with pytest.raises(NotReady):
        parse(CONTENTS[content])


def test_a_manifest_that_could_not_be_read_back_is_not_written() -> None:
    with pytest.raises(RootfsUnverified):
        to_content(MANIFEST.replace(packages=(("x" * LARGEST, "1"),)))


@pytest.mark.parametrize("kind", ["missing", "link", "directory", "fifo"])
def test_only_a_file_is_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "real").write_bytes(to_content(MANIFEST))
    place = tmp_path / "manifest.json"
    match kind:
        case "link":
            place.symlink_to("real")
        case "directory":
            place.mkdir()
        case "fifo":
            os.mkfifo(place)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert read(fd, b"real") == MANIFEST
        with pytest.raises(NotReady):
            read(fd, b"manifest.json")
    finally:
        os.close(fd)


SIZE = 100_000
DIGEST = "ab" * 32


@pytest.fixture
def directory(tmp_path: Path) -> bytes:
    """A rootfs directory with one rootfs and nothing fetched."""
    registry = Registry(os.fsencode(tmp_path / "rootfs"))
    make(registry)
    return registry.directory


def put(directory: bytes, name: str, size: int = SIZE) -> Path:
    path = Path(os.fsdecode(directory), "downloads", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def left(directory: bytes) -> list[str]:
    top = Path(os.fsdecode(directory), "downloads")
    return sorted(os.fspath(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def test_all_that_nobody_uses_goes_and_is_counted(directory: bytes) -> None:
    for name in (DIGEST, "one.part", "two.part", "debian-amd64-1.lists", "debian-amd64-0/archives/git.deb"):
        put(directory, name)
    put(directory, "one.state", 100)
    counted = measure_downloads(directory)
    assert 5 * SIZE <= counted < 6 * SIZE
    assert empty_downloads(directory) == counted
    assert os.listdir(os.path.join(directory, b"downloads")) == []
    assert (empty_downloads(directory), measure_downloads(directory)) == (0, 0)
    assert len(Registry(directory).list()) == 1


def test_a_download_under_way_is_left_alone(directory: bytes) -> None:
    with Part(os.path.join(directory, b"downloads"), "mine") as part:
        part.start_over(Version(validator='"1"', total=SIZE))
        part.append(b"x" * (SIZE // 2))
        assert empty_downloads(directory) == 0
        part.append(b"y" * (SIZE // 2))
        path = part.finish(part.digest())
    assert os.path.getsize(path) == SIZE
    # Control: the same, when nobody goes on with it
    with Part(os.path.join(directory, b"downloads"), "mine") as part:
        part.append(b"x" * SIZE)
    assert empty_downloads(directory) >= 2 * SIZE
    assert left(directory) == []


def test_a_download_that_can_not_begin_keeps_no_lock(directory: bytes) -> None:
    downloads = os.path.join(directory, b"downloads")
    os.makedirs(downloads + b"/mine.part")
    with pytest.raises(IsADirectoryError), Part(downloads, "mine"):
        pass
    with open(downloads + b"/mine.state") as state:
        fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rmdir(downloads + b"/mine.part")
    with Part(downloads, "mine") as part:
        assert part.size == 0


def test_what_is_whole_stays_as_long_as_somebody_builds(directory: bytes) -> None:
    whole = put(directory, DIGEST)
    with Staging(directory, "alpine"):
        assert empty_downloads(directory) == 0
        assert whole.exists()
    # The dead need nothing
    Path(os.fsdecode(directory), "staging/alpine.0123").mkdir()
    assert empty_downloads(directory) >= SIZE


def test_what_was_removed_is_fetched_again(directory: bytes, web: Web) -> None:
    web.pages["/a.tar"] = Page(b"content")
    downloads = os.path.join(directory, b"downloads")
    for count in (1, 2):
        fetched = fetch(web.address("/a.tar"), downloads, most_bytes=SIZE, report=lambda _progress: None)
        assert Path(os.fsdecode(fetched.path)).read_bytes() == b"content"
        assert web.count("/a.tar") == count
        assert empty_downloads(directory) > 0


def test_where_there_is_no_directory_nothing_is_removed(tmp_path: Path) -> None:
    assert empty_downloads(os.fsencode(tmp_path / "none")) == measure_downloads(os.fsencode(tmp_path / "none")) == 0
    assert list(tmp_path.iterdir()) == []
