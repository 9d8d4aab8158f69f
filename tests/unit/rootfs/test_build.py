# SPDX-License-Identifier: Apache-2.0
"""A spec is met by what is ready, or by a rootfs made once, that says what it is."""

import os
import stat
from pathlib import Path

import pytest

from tests.unit.rootfs.making import SPEC, SmallSource, fill_small, left_over, make, no_install, silent
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import Progress, Rootfs, RootfsKey, RootfsSpec
from unspill.rootfs.build import prepare, tree_digest, upgrade, verify
from unspill.rootfs.registry import Registry
from unspill.rootfs.source import BuildContext, Resolved

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
