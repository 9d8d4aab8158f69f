# SPDX-License-Identifier: Apache-2.0
"""A spec is met by a rootfs made once, that says what it is; what fails leaves nothing; equal trees have one digest."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rootfs.making import SPEC, SmallSource, fill_small, left_over, make, no_install, silent
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnsafe, RootfsUnverified
from unspill.model.rootfs import Progress, Rootfs, RootfsKey, RootfsSpec
from unspill.rootfs.build import DEEPEST, prepare, tree_digest, upgrade, verify
from unspill.rootfs.registry import LARGEST_MANIFEST as LARGEST
from unspill.rootfs.registry import Registry
from unspill.rootfs.source import BuildContext, Filled, Resolved

ARCH = os.uname().machine
DIGEST = "ab" * 32


class Offline(SmallSource):
    """A source whose server can't be reached."""

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Reach nobody."""
        raise RootfsUnreachable("nobody answers")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """An empty registry."""
    return Registry(os.fsencode(tmp_path / "rootfs"))


def test_prepare_rootfs_idempotent(registry: Registry) -> None:
    source = SmallSource()
    first = make(registry, source)
    inode = os.stat(first.tree).st_ino
    assert make(registry, source) == first
    assert os.stat(first.tree).st_ino == inode
    assert (source.made, source.asked) == (1, 1)


def test_the_manifest_says_what_it_is(registry: Registry) -> None:
    made = make(registry)
    assert made.manifest is not None
    assert made.manifest.key == RootfsKey(source="alpine", version="1.0", arch=ARCH, tier=1)
    assert made.manifest.spec == SPEC
    assert made.manifest.proof == "known"
    assert made.manifest.packages == (("busybox", "1.0"),)
    assert made.manifest.fetched == (("small.tar", DIGEST),)
    assert made.manifest.left_out == (("device", 2),)
    assert (made.manifest.tree, made.manifest.entries, made.manifest.size_bytes) == tree_digest(made.tree)
    assert sorted(os.listdir(os.path.dirname(made.tree))) == [b"manifest.json", b"tree"]
    assert left_over(registry) == []


def test_the_first_one_becomes_the_current_one_and_a_second_does_not(registry: Registry) -> None:
    first = make(registry)
    make(registry, spec=RootfsSpec(source="alpine", version="2.0"))
    assert registry.current() == first
    assert os.readlink(os.path.join(registry.directory, b"current")) == b"roots/" + first.name.encode()


def test_one_whose_maker_died_before_it_was_the_current_one_becomes_it(registry: Registry) -> None:
    made = make(registry)
    os.unlink(os.path.join(registry.directory, b"current"))
    assert make(registry, Offline()) == made == registry.current()


MET = (
    SPEC,
    SPEC.replace(version="1.0"),
    SPEC.replace(version="1"),
    SPEC.replace(arch=ARCH),
    SPEC.replace(mirror="https://mirror.example.org"),
    SPEC.replace(sha256=DIGEST),
    SPEC.replace(sha256=DIGEST.upper()),
)
NOT_MET = (
    SPEC.replace(version="1.1"),
    SPEC.replace(version="1.0.0"),
    SPEC.replace(arch="other"),
    SPEC.replace(tier=2),
    SPEC.replace(packages=("jq",)),
    SPEC.replace(label="mine"),
    SPEC.replace(source="debian"),
    SPEC.replace(location="/nowhere"),
    SPEC.replace(sha256="00" * 32),
)


@pytest.mark.parametrize("spec", MET, ids=repr)
def test_nobody_is_asked_for_what_is_ready(registry: Registry, spec: RootfsSpec) -> None:
    made = make(registry)
    assert make(registry, Offline(), spec) == made


@pytest.mark.parametrize("spec", NOT_MET, ids=repr)
def test_what_is_not_ready_has_to_be_asked_for(registry: Registry, spec: RootfsSpec) -> None:
    make(registry)
    with pytest.raises(RootfsUnreachable):
        make(registry, Offline(), spec)
    assert left_over(registry) == []


def test_one_for_another_machine_does_not_meet_an_open_architecture(registry: Registry) -> None:
    other = make(registry, spec=SPEC.replace(arch="other"))
    assert make(registry) != other


def test_the_newest_of_several_meets_an_open_version(registry: Registry) -> None:
    for version in ("3.9", "3.10", "3.8"):
        make(registry, spec=SPEC.replace(version=version))
    assert make(registry, Offline()).name == f"alpine-3.10-{ARCH}-t1"


def test_an_archive_on_this_disk_is_looked_at_each_time(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "a.tar").touch()
    spec = RootfsSpec(source="archive", label="mine", location=os.fspath(tmp_path / "a.tar"))
    source = SmallSource()
    first = make(registry, source, spec)
    assert make(registry, source, spec) == first
    source.version = "2.0"
    assert make(registry, source, spec) != first
    # Once it has gone, what was made of it still is there
    (tmp_path / "a.tar").unlink()
    assert make(registry, Offline(), spec).name == f"mine-2.0-{ARCH}-t1"


def test_the_same_name_made_from_something_else_than_is_pinned_is_not_returned(registry: Registry) -> None:
    make(registry)
    with pytest.raises(RootfsUnverified, match="made from something else") as caught:
        make(registry, spec=SPEC.replace(sha256="00" * 32))
    assert "remove" in caught.value.remedy


def test_mount_points_are_there_and_nothing_was_made_through_a_link(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "resolv.conf").write_text("nameserver\n")

    def fill(tree: Path) -> None:
        fill_small(tree)
        (tree / "var").symlink_to(tmp_path / "host")
        (tree / "workspace").symlink_to(tmp_path / "missing")
        (tree / "etc" / "resolv.conf").symlink_to(tmp_path / "host" / "resolv.conf")
        (tree / "run").write_text("a file")

    made = make(registry, SmallSource(fill=fill))
    tree = Path(os.fsdecode(made.tree))
    for name in ("tmp", "proc", "dev", "sys", "playground"):
        assert stat.S_ISDIR((tree / name).lstat().st_mode)
    assert (tree / "etc" / "resolv.conf").lstat().st_size == 0
    assert stat.S_ISREG((tree / "etc" / "resolv.conf").lstat().st_mode)
    assert (tree / "run").read_text() == "a file"
    assert os.path.islink(tree / "workspace")
    assert sorted(os.listdir(tmp_path / "host")) == ["resolv.conf"]
    assert (tmp_path / "host" / "resolv.conf").read_text() == "nameserver\n"
    assert not (tmp_path / "missing").exists()


def test_a_resolv_conf_that_is_there_stays(registry: Registry) -> None:
    def fill(tree: Path) -> None:
        fill_small(tree)
        (tree / "etc" / "resolv.conf").write_text("nameserver 192.0.2.1\n")

    made = make(registry, SmallSource(fill=fill))
    assert Path(os.fsdecode(made.tree), "etc/resolv.conf").read_text() == "nameserver 192.0.2.1\n"


def test_a_tree_keeps_its_modes_but_harms_nobody_on_the_host(registry: Registry) -> None:
    modes = {"plain": 0o640, "program": 0o755, "setuid": 0o4755, "setgid": 0o2711, "closed": 0o000, "open": 0o666}

    def fill(tree: Path) -> None:
        fill_small(tree)
        for name, mode in modes.items():
            (tree / name).touch()
            (tree / name).chmod(mode)
        for name, mode in {"tmp": 0o1777, "shut": 0o000, "shut-file": 0o500}.items():
            (tree / name).mkdir()
            (tree / name / "x").touch()
            os.mkfifo(tree / name / "fifo")
            (tree / name).chmod(mode)

    made = make(registry, SmallSource(fill=fill))
    tree = Path(os.fsdecode(made.tree))
    kept = {name: stat.S_IMODE((tree / name).stat().st_mode) for name in (*modes, "tmp", "shut", "shut-file")}
    assert kept == {
        "plain": 0o640,
        "program": 0o755,
        "setuid": 0o755,
        "setgid": 0o711,
        "closed": 0o400,
        "open": 0o644,
        "tmp": 0o1755,
        "shut": 0o500,
        "shut-file": 0o500,
    }
    assert made.manifest is not None
    assert made.manifest.left_out == (("device", 2), ("fifo", 3), ("setuid", 2))
    assert os.listdir(tree / "shut-file") == ["x"]


def test_progress_is_told(registry: Registry) -> None:
    told: list[Progress] = []
    prepare(registry, SPEC, SmallSource(), install=no_install, report=told.append)
    assert [progress.step for progress in told] == ["resolving", "checking"]


def renewed(registry: Registry, old: Rootfs, source: SmallSource) -> Rootfs:
    """Upgrade one."""
    return upgrade(registry, old, source, install=no_install, report=silent)


def test_an_upgrade_makes_a_new_one_beside_the_old_one_and_switches(registry: Registry) -> None:
    old = make(registry)
    before = tree_digest(old.tree), os.stat(old.tree).st_ino
    new = renewed(registry, old, SmallSource("2.0"))
    assert new.name == f"alpine-2.0-{ARCH}-t1"
    assert registry.current() == new
    assert registry.get(old.name) == old
    assert (tree_digest(old.tree), os.stat(old.tree).st_ino) == before
    assert new.manifest is not None
    assert new.manifest.spec == SPEC
    assert registry.remove_unused() == (old.name,)


def test_an_upgrade_without_news_changes_nothing(registry: Registry) -> None:
    old = make(registry)
    source = SmallSource()
    assert renewed(registry, old, source) == old
    assert (source.asked, source.made) == (1, 0)


def test_an_upgrade_of_another_one_than_the_current_one_does_not_switch(registry: Registry) -> None:
    current = make(registry)
    other = make(registry, spec=SPEC.replace(tier=2))
    renewed(registry, other, SmallSource("2.0"))
    assert registry.current() == current


def test_an_upgrade_to_what_is_ready_already_switches(registry: Registry) -> None:
    old = make(registry)
    new = make(registry, spec=SPEC.replace(version="2.0"))
    assert registry.current() == old
    assert renewed(registry, old, SmallSource("2.0")) == new == registry.current()


def test_a_pinned_version_stays_in_an_upgrade(registry: Registry) -> None:
    old = make(registry, spec=SPEC.replace(version="1.0"))
    assert renewed(registry, old, SmallSource("2.0")) == old


def test_an_upgrade_that_fails_leaves_the_old_one_in_use(registry: Registry) -> None:
    old = make(registry)
    with pytest.raises(RootfsUnreachable):
        renewed(registry, old, Offline())
    assert registry.current() == old
    with pytest.raises(RootfsError, match="by hand"):
        renewed(registry, Rootfs(name="/mine", tree=b"/mine"), SmallSource())


def test_a_rootfs_that_is_as_it_was_made_is_verified_and_its_proof_told(registry: Registry) -> None:
    assert verify(make(registry)) == "known"


def test_a_rootfs_with_one_bit_changed_is_not(registry: Registry) -> None:
    made = make(registry)
    place = Path(os.fsdecode(made.tree), "etc", "release")
    place.write_text("smalm\n")
    with pytest.raises(RootfsUnverified, match="a digest in this release") as caught:
        verify(made)
    assert made.name in caught.value.remedy
    place.write_text("small\n")
    assert verify(made) == "known"


def test_a_rootfs_that_can_not_be_read_is_not_said_to_have_changed(registry: Registry) -> None:
    made = make(registry)
    place = Path(os.fsdecode(made.tree), "etc", "release")
    place.chmod(0)
    with pytest.raises(RootfsError, match="release") as caught:
        verify(made)
    assert not isinstance(caught.value, RootfsUnverified)


def test_a_tree_made_by_hand_can_not_be_verified(tmp_path: Path) -> None:
    with pytest.raises(RootfsUnverified, match="by hand"):
        verify(Rootfs(name="mine", tree=os.fsencode(tmp_path)))


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


Entry = tuple[str, int, bytes]
Spec = dict[tuple[bytes, ...], Entry]

names = st.sampled_from([b"a", b"b", b"c", b"ab", b"\xff", b"e", b"1:a"])
contents = st.sampled_from([b"", b"x", b"xy", b"f1:a644:0:", b"e", b"long" * 50_000])
kinds = st.one_of(
    st.tuples(st.just("file"), st.sampled_from([0o644, 0o755, 0o400, 0o4755]), contents),
    st.tuples(st.just("link"), st.just(0), st.sampled_from([b"a", b"/a", b"a/b", b"x1:y"])),
    st.tuples(st.just("directory"), st.sampled_from([0o755, 0o700, 0o1777]), st.just(b"")),
)
specs = st.dictionaries(st.lists(names, min_size=1, max_size=3).map(tuple), kinds, max_size=8)


def usable(spec: Spec) -> Spec:
    """Return those entries whose parents are directories, with the directories that are missing."""
    whole: Spec = {}
    for path, entry in sorted(spec.items()):
        above = [path[:end] for end in range(1, len(path))]
        if all(whole.get(parent, ("directory", 0o755, b""))[0] == "directory" for parent in above):
            whole |= {parent: ("directory", 0o755, b"") for parent in above if parent not in whole}
            whole[path] = entry
    return whole


@contextmanager
def trees(*wanted: tuple[Spec, bool]) -> Iterator[list[Path]]:
    """Make trees on the disk, each in the order of names or in the opposite one."""
    top = Path(tempfile.mkdtemp())
    try:
        yield [laid(top / str(index), spec, backwards) for index, (spec, backwards) in enumerate(wanted)]
    finally:
        shutil.rmtree(top)


def laid(top: Path, spec: Spec, backwards: bool) -> Path:
    """Make one tree."""
    top.mkdir()
    order = sorted(spec, key=lambda path: path[::-1] if backwards else path, reverse=backwards)
    for path in sorted(order, key=len):
        kind, mode, content = spec[path]
        place = os.path.join(os.fsencode(top), *path)
        if kind == "link":
            os.symlink(content, place)
            continue
        if kind == "directory":
            os.mkdir(place)
        else:
            Path(os.fsdecode(place)).write_bytes(content)
        os.chmod(place, mode)
    return top


def naive(top: bytes) -> dict[bytes, tuple[int, bytes]]:
    """Return all there is to see of a tree."""
    found: dict[bytes, tuple[int, bytes]] = {b"": (os.lstat(top).st_mode, b"")}
    for parent, directories, files in os.walk(top):
        for name in [*directories, *files]:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, top)] = (mode, content)
    return found


@given(first=specs.map(usable), second=specs.map(usable), same=st.booleans(), data=st.data())
def test_digests_are_equal_if_and_only_if_the_trees_are(
    first: Spec, second: Spec, same: bool, data: st.DataObject
) -> None:
    if same:
        second = dict(first)
    elif first:
        # Close relatives are what a weak encoding would take for one
        second = usable(first | {data.draw(st.sampled_from(sorted(first))): data.draw(kinds)})
    with trees((first, False), (second, True)) as (one, other):
        one_digest, other_digest = tree_digest(os.fsencode(one)), tree_digest(os.fsencode(other))
        seen = naive(os.fsencode(one))
        assert (one_digest[0] == other_digest[0]) == (seen == naive(os.fsencode(other)))
        assert one_digest[1] == len(seen) - 1
        assert one_digest[2] == sum(len(content) for mode, content in seen.values() if stat.S_ISREG(mode))


def base(top: Path) -> None:
    """Make a tree with one of each."""
    (top / "d").mkdir()
    (top / "d" / "f").write_bytes(b"content")
    (top / "l").symlink_to("d/f")
    (top / "big").write_bytes(b"\0" * (1 << 20))


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def relink(place: Path, target: str) -> None:
    """Have a link lead elsewhere."""
    place.unlink()
    place.symlink_to(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a bit": lambda top: flip(top / "d" / "f", 3),
    "the last bit of a large file": lambda top: flip(top / "big", -1),
    "one byte more than is read at once": lambda top: (top / "big").write_bytes(b"\0" * ((1 << 20) + 1)),
    "a name": lambda top: (top / "d" / "f").rename(top / "d" / "g"),
    "a file's mode": lambda top: (top / "d" / "f").chmod(0o600),
    "a directory's mode": lambda top: (top / "d").chmod(0o700),
    "the top's mode": lambda top: top.chmod(0o711),
    "a link's target": lambda top: relink(top / "l", "d/g"),
    "a link that became what it leads to": lambda top: os.replace(top / "d" / "f", top / "l"),
    "an empty directory": lambda top: (top / "e").mkdir(),
    "an empty file": lambda top: (top / "e").touch(),
    "a fifo": lambda top: os.mkfifo(top / "e"),
    "a file that moved up": lambda top: (top / "d" / "f").rename(top / "f"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_makes_another_digest(tmp_path: Path, change: str) -> None:
    (tmp_path / "top").mkdir()
    base(tmp_path / "top")
    before = tree_digest(os.fsencode(tmp_path / "top"))
    CHANGES[change](tmp_path / "top")
    assert tree_digest(os.fsencode(tmp_path / "top"))[0] != before[0]


def test_times_hard_links_and_the_place_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    base(tmp_path / "one")
    (tmp_path / "one" / "same").write_bytes(b"content")
    before = tree_digest(os.fsencode(tmp_path / "one"))
    os.utime(tmp_path / "one" / "d" / "f", ns=(1, 1))
    (tmp_path / "one" / "same").unlink()
    (tmp_path / "one" / "same").hardlink_to(tmp_path / "one" / "d" / "f")
    (tmp_path / "one").rename(tmp_path / "two")
    assert tree_digest(os.fsencode(tmp_path / "two")) == before


def test_a_fifo_is_not_waited_for_and_a_link_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "away").symlink_to("/proc")
    (tmp_path / "nowhere").symlink_to("/nonexistent")
    assert tree_digest(os.fsencode(tmp_path))[1:] == (3, 0)


def test_a_tree_without_bottom_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(DEEPEST + 2):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises(RootfsUnsafe):
        tree_digest(os.fsencode(tmp_path))
