# SPDX-License-Identifier: Apache-2.0
"""What somebody who attacked the making of a rootfs got through once, each with the defence taken away beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.rootfs.making import SPEC, SmallSource, fill_small, left_over, make, no_install, silent
from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.model.rootfs import Rootfs, RootfsSpec
from unspill.rootfs import build, layout
from unspill.rootfs import registry as registries
from unspill.rootfs.build import upgrade, verify
from unspill.rootfs.layout import MOST_AT_TOP, look_at_rootfs
from unspill.rootfs.registry import Registry
from unspill.rootfs.source import BuildContext, Filled, Resolved

if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.rootfs import Proof

ARCH = os.uname().machine
OVERLAY = "user.overlay.opaque"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """An empty registry."""
    return Registry(os.fsencode(tmp_path / "above" / "rootfs"))


def renewed(registry: Registry, old: Rootfs, source: SmallSource) -> Rootfs:
    return upgrade(registry, old, source, install=no_install, report=silent)


OLDER = {
    "a release": ("3.99.2", "3.10.0"),
    "shorter": ("3.99.2", "3.99"),
    "a number that only looks larger": ("3.10.0", "3.9.9"),
    "a suite of an earlier day": ("trixie.20261101.1200", "trixie.20251101.1200"),
}


@pytest.mark.parametrize(("version", "older"), OLDER.values(), ids=OLDER)
def test_an_upgrade_never_makes_an_older_version_the_one_in_use(registry: Registry, version: str, older: str) -> None:
    old, source = make(registry, SmallSource(version)), SmallSource(older)
    with pytest.raises(RootfsUnverified, match=f"{older}, which is older than {old.name}") as caught:
        renewed(registry, old, source)
    assert f"--version {older}" in caught.value.remedy
    assert (registry.current(), registry.list(), source.made, left_over(registry)) == (old, (old,), 0, [])
    # Whoever really wants it can have it
    wanted = make(registry, spec=SPEC.replace(version=older))
    assert registry.use(wanted.name) == wanted == registry.current()


def test_without_the_comparison_a_mirror_brings_an_older_version_back(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make(registry, SmallSource("3.99.2"))
    monkeypatch.setattr(build, "is_older", lambda _version, _than: False)
    monkeypatch.setattr(build, "newest", lambda several: several[-1])
    assert renewed(registry, old, SmallSource("3.10.0")).name == f"alpine-3.10.0-{ARCH}-t1"
    assert registry.current() != old


def test_an_upgrade_does_not_go_back_to_a_digest_that_was_there_before(registry: Registry) -> None:
    first = make(registry, SmallSource("0f" * 6))
    second = renewed(registry, first, SmallSource("0e" * 6))
    assert registry.current() == second
    with pytest.raises(RootfsUnverified, match="which is older") as caught:
        renewed(registry, second, SmallSource("0f" * 6))
    assert f"use {first.name}" in caught.value.remedy
    assert registry.current() == second


class Mirror(SmallSource):
    """A source that says itself which digest its content has."""

    def __init__(self, sha256: str, proof: Proof = "same-server") -> None:
        super().__init__()
        self.sha256 = sha256
        self.proof: Proof = proof

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Name the one version."""
        return super().resolve(spec, means).replace(sha256=self.sha256, proof=self.proof)

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Make the tree."""
        return super().fill(resolved, tree, means).replace(fetched=(("small.tar", self.sha256),))


BAD, GOOD = Mirror("bd" * 32), Mirror("60" * 32)
FROM_BAD = SPEC.replace(mirror="https://bad.example.org")
OTHERS = (SPEC, SPEC.replace(mirror="https://good.example.org"), SPEC.replace(mirror="https://good.example.org/a/"))


@pytest.mark.parametrize("spec", OTHERS, ids=repr)
def test_what_one_mirror_served_stands_for_no_other(registry: Registry, spec: RootfsSpec) -> None:
    poisoned = make(registry, BAD, FROM_BAD)
    with pytest.raises(RootfsUnverified, match="made from something else") as caught:
        make(registry, GOOD, spec)
    assert BAD.sha256 in str(caught.value)
    assert GOOD.sha256 in str(caught.value)
    assert registry.list() == (poisoned,)
    # The same mirror, and one that has the very same, are no other
    asked = BAD.asked
    assert make(registry, BAD, FROM_BAD.replace(mirror="https://bad.example.org/")) == poisoned
    assert BAD.asked == asked
    assert make(registry, Mirror(BAD.sha256), spec) == poisoned


def test_an_upgrade_compares_the_digest_too(registry: Registry) -> None:
    old = make(registry, BAD, FROM_BAD)
    with pytest.raises(RootfsUnverified, match="made from something else"):
        renewed(registry, old, GOOD)


def test_what_has_a_proof_does_not_depend_on_its_mirror(registry: Registry) -> None:
    made = make(registry, Mirror("aa" * 32, "known"), FROM_BAD)
    assert make(registry, GOOD, OTHERS[1]) == made


def test_without_the_comparison_one_mirror_poisons_all_others(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = make(registry, BAD, FROM_BAD)
    monkeypatch.setattr(registries, "_meets_mirror", lambda _manifest, _wish: True)
    assert make(registry, GOOD, OTHERS[1]) == poisoned
    monkeypatch.undo()
    monkeypatch.setattr(build, "is_of_digest", lambda _manifest, _sha256: True)
    assert make(registry, GOOD, OTHERS[1]) == poisoned


def uses(registry: Registry, name: str) -> tuple[Callable[[], object], ...]:
    return (
        registry.list,
        registry.current,
        registry.damaged,
        registry.remove_unused,
        lambda: registry.find(name),
        lambda: make(registry),
    )


def test_a_directory_above_that_others_can_write_in_is_refused(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(registry)
    above = Path(os.fsdecode(registry.directory)).parent
    above.chmod(0o777)
    for use in uses(registry, made.name):
        with pytest.raises(RootfsUnsafe, match="above can be changed by others"):
            use()
    with pytest.raises(RootfsUnsafe, match="above can be changed by others"):
        make(Registry(os.fsencode(above / "new")))
    # Where nobody looks, another directory of the caller's is taken for it
    with monkeypatch.context() as patched:
        patched.setattr(layout, "find_changeable", lambda _directory: None)
        os.rename(above / "rootfs", above / "old")
        swapped = Registry(os.fsencode(above / "other"))
        make(swapped, SmallSource("6.6"))
        os.rename(above / "other", above / "rootfs")
        current = registry.current()
        assert current is not None
        assert "6.6" in current.name
    above.chmod(0o1777)
    assert registry.current() is not None, "in a sticky directory nobody can rename it"


def fill_marked(tree: Path) -> None:
    """Make a small tree with marks of an overlay, one on a file that can only be read."""
    fill_small(tree)
    for place in (tree, tree / "etc", tree / "bin" / "busybox"):
        os.setxattr(place, OVERLAY, b"y")
    os.setxattr(tree / "etc" / "release", "user.overlay.metacopy", b"")
    os.setxattr(tree / "etc" / "release", "user.mine", b"1")
    (tree / "etc" / "release").chmod(0o444)


def attributes(tree: bytes) -> set[str]:
    top = Path(os.fsdecode(tree))
    places = [top, *(path for path in top.rglob("*") if not path.is_symlink())]
    return {name for place in places for name in os.listxattr(place) if name.startswith("user.")}


def test_extended_attributes_do_not_come_into_a_tree(registry: Registry) -> None:
    made = make(registry, SmallSource(fill=fill_marked))
    assert attributes(made.tree) == set()
    assert made.manifest is not None
    assert ("xattr", 4) in made.manifest.left_out
    assert os.stat(made.tree + b"/etc/release").st_mode & 0o777 == 0o444
    assert verify(made) == "known"


@pytest.mark.parametrize("place", [b"", b"/etc", b"/bin/busybox"])
@pytest.mark.parametrize("name", [OVERLAY, "user.overlay.redirect"])
def test_a_tree_that_has_such_marks_later_is_not_verified(registry: Registry, place: bytes, name: str) -> None:
    made = make(registry)
    os.setxattr(made.tree + place, "user.mine", b"1")
    assert verify(made) == "known", "the control: an attribute that means nothing to an overlay"
    os.setxattr(made.tree + place, name, b"y")
    with pytest.raises(RootfsUnsafe, match="extended attributes"):
        verify(made)


def test_without_each_of_both_looks_at_attributes_the_other_one_still_finds_them(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_strip", lambda _path, _mode, _taken: None)
    with pytest.raises(RootfsUnsafe, match="extended attributes"):
        make(registry, SmallSource(fill=fill_marked))
    assert registry.list() == ()
    monkeypatch.setattr(build, "is_unsafe", lambda _name: False)
    assert OVERLAY in attributes(make(registry, SmallSource(fill=fill_marked)).tree)


def test_a_name_is_never_one_that_only_begins_so(registry: Registry) -> None:
    # One that was made when such labels were not refused yet
    other = make(registry, spec=RootfsSpec(source="archive", label="alpine.z", location="/nowhere"))
    assert other.name.startswith("alpine.z-")
    assert registry.find("alpine") is None
    assert registry.find("alpine.z") == other
    assert registry.find("alpine.z-1") == other
    real = make(registry)
    assert registry.find("alpine") == registry.find("alpine-1") == real


def _fill_wide(tree: Path) -> None:
    fill_small(tree)
    for number in range(MOST_AT_TOP):
        (tree / f"d{number}").touch()


def test_a_tree_that_no_run_could_use_is_refused_when_it_is_made(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RootfsUnsafe, match=f"more than {MOST_AT_TOP} entries at its top"):
        make(registry, SmallSource(fill=_fill_wide))
    assert (registry.current(), registry.list(), left_over(registry)) == (None, (), [])
    monkeypatch.setattr(build, "MOST_AT_TOP", 1 << 20)
    made = make(registry, SmallSource(fill=_fill_wide))
    assert registry.current() == made
    with pytest.raises(RootfsError, match="entries at its top"):
        look_at_rootfs(made.tree, made.name, os.getuid(), is_own=True)
