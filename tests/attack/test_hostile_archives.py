# SPDX-License-Identifier: Apache-2.0
"""Hostile archives: each harms an extractor that trusts it, and none writes anything outside the tree here.

The tables are in hostile_entries.py and hostile_streams.py. Damage of every kind comes on top: bytes flipped at random.
"""

import os
import random
from pathlib import Path

import pytest

from tests.attack.archive_world import UP, Hostile, Naive, World, make_world
from tests.attack.hostile_entries import ENTRIES
from tests.attack.hostile_streams import GOOD, STREAMS
from tests.attack.tar_crafting import END, entry, folder, gzip_member, hard, link, long_name, pax
from tests.figures import record_figure
from unspill.errors import RootfsError, RootfsUnsafe
from unspill.layers.trees import remove_tree
from unspill.rootfs import tar
from unspill.rootfs.tar import USUAL, Bounds, Unpacked, unpack

pytestmark = pytest.mark.attack

ARCHIVES = (*ENTRIES, *STREAMS)
VARIED = b"".join(
    [
        folder(b"./"),
        folder(b"usr/", 0o755),
        entry(b"usr/a", b"content" * 100, mode=0o4755),
        link(b"lib", b"usr/lib"),
        link(b"out", UP),
        hard(b"b", b"usr/a"),
        long_name(b"usr/" + b"n" * 200),
        entry(b"usr/long", b"1"),
        pax((b"path", b"usr/pax"), (b"mtime", b"12.5"), (b"SCHILY.xattr.user.x", b"y")),
        entry(b"pax", b"2"),
        entry(b"dev/null", kind=b"3"),
        entry(b"usr/.wh.a"),
        entry(b"usr/a", b"again"),
        END,
    ]
)


def flipped(chance: random.Random, archive: bytes) -> bytes:
    """Return an archive with some bytes changed; every other time the checksums of its headers are right again."""
    changed = bytearray(archive)
    for _ in range(chance.choice((1, 1, 2, 5))):
        changed[chance.randrange(len(changed))] = chance.choice((0, 0x2F, 0x2E, 0x35, 0xFF, chance.randrange(256)))
    if archive.startswith(b"\x1f\x8b") or chance.random() < 0.3:
        return bytes(changed)
    for begin in range(0, len(changed) - 511, 512):
        if VARIED[begin + 257 : begin + 262] == b"ustar":
            changed[begin + 148 : begin + 156] = b" " * 8
            changed[begin + 148 : begin + 156] = b"%06o\0 " % sum(changed[begin : begin + 512])
    return bytes(changed)


def unpack_bytes(world: World, archive: bytes, *, bounds: Bounds = USUAL, whiteouts: bool = False) -> Unpacked:
    """Unpack from a descriptor: a file for the archive would be part of the surroundings."""
    fd = os.memfd_create("archive")
    try:
        os.write(fd, archive)
        os.lseek(fd, 0, os.SEEK_SET)
        return unpack(fd, os.fsencode(world.tree), bounds=bounds, whiteouts=whiteouts)
    finally:
        os.close(fd)


@pytest.mark.parametrize("hostile", ARCHIVES, ids=lambda hostile: hostile.name)
def test_an_archive_that_harms_others_is_refused_or_made_harmless(hostile: Hostile, tmp_path: Path) -> None:
    trusting = make_world(tmp_path / "trusting")
    assert hostile.harm(Naive(hostile.make(trusting), trusting)), "it does no harm to anybody"

    world = make_world(tmp_path / "ours")
    archive = hostile.make(world)
    before = world.surroundings()
    if hostile.refused is None:
        unpack_bytes(world, archive, bounds=hostile.bounds, whiteouts=hostile.whiteouts)
        assert hostile.harmless(world.tree)
    else:
        with pytest.raises(RootfsError) as refusal:
            unpack_bytes(world, archive, bounds=hostile.bounds, whiteouts=hostile.whiteouts)
        assert type(refusal.value) is hostile.refused
        assert refusal.value.message.isprintable()
        assert refusal.value.remedy
    assert world.surroundings() == before


def test_the_check_that_a_long_chain_passes_stops_a_short_one(tmp_path: Path) -> None:
    """Else it would be no feat to pass it."""
    (short,) = [hostile for hostile in ARCHIVES if hostile.name == "relative-link-then-write"]
    world = make_world(tmp_path / "trusting")
    assert not Naive(short.make(world), world).extract_checked().planted.exists()


def test_nothing_that_follows_a_refused_entry_is_unpacked(tmp_path: Path) -> None:
    (archive,) = [hostile for hostile in ARCHIVES if hostile.name == "more-after-what-is-refused"]
    world = make_world(tmp_path / "ours")
    with pytest.raises(RootfsUnsafe):
        unpack_bytes(world, archive.make(world))
    assert not (world.tree / "after").exists()


def test_every_archive_has_a_name_of_its_own() -> None:
    names = [hostile.name for hostile in ARCHIVES]
    assert len(set(names)) == len(names) > 80
    record_figure("hostile archives", f"{len(names)}: 0 written outside", "each harms an extractor that trusts it")


def test_a_tree_that_is_a_link_is_refused(tmp_path: Path) -> None:
    world = make_world(tmp_path / "ours")
    world.tree.rmdir()
    world.tree.symlink_to(world.outside)
    before = world.surroundings()
    with pytest.raises(RootfsError):
        unpack_bytes(world, GOOD)
    assert world.surroundings() == before


def unpack_while_swapping(world: World) -> None:
    """Exchange a directory for a link after it was made, as somebody with the same rights could."""
    # As many directories as it takes for the first one not to be held open any more
    others = [folder(b"d%d/" % number) for number in range(300)]
    archive = b"".join([folder(b"d/"), *others, entry(b"filler", bytes(2 << 20)), entry(b"d/planted", b"evil"), END])
    (world.tree / "archive").write_bytes(archive)

    def swap(read: int) -> None:
        if (world.tree / "d299").exists() and not (world.tree / "d").is_symlink():
            (world.tree / "d").rmdir()
            (world.tree / "d").symlink_to(world.outside)

    unpack(os.fsencode(world.tree / "archive"), os.fsencode(world.tree), whiteouts=True, report=swap)


def test_a_link_that_appears_while_unpacking_is_not_followed(tmp_path: Path) -> None:
    world = make_world(tmp_path / "ours")
    before = world.surroundings()
    with pytest.raises(RootfsUnsafe):
        unpack_while_swapping(world)
    assert (world.tree / "d").is_symlink()
    assert world.surroundings() == before


def test_a_link_would_be_followed_if_directories_were_opened_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(tmp_path / "ours")
    monkeypatch.setattr(tar, "DIRECTORY", tar.DIRECTORY & ~os.O_NOFOLLOW)
    unpack_while_swapping(world)
    assert world.planted.read_text() == "evil"


@pytest.mark.timeout(1800)
def test_flipped_bytes_end_in_an_error_of_ours_or_in_a_tree(tmp_path: Path, full: bool) -> None:
    count = 20_000 if full else 200
    seed = random.randrange(1 << 32) if full else 5
    chance = random.Random(seed)
    refused = 0
    world = make_world(tmp_path / "ours")
    before = world.surroundings()
    for number in range(count):
        try:
            unpack_bytes(
                world, flipped(chance, VARIED if number % 4 else gzip_member(VARIED)), whiteouts=number % 3 == 0
            )
        except RootfsError:
            refused += 1
        remove_tree(os.fsencode(world.tree))
        world.tree.mkdir()
    assert world.surroundings() == before, f"seed {seed}"
    assert 0 < refused < count
    record_figure(
        "archives with flipped bytes",
        f"{count}: 0 written outside",
        f"{refused} refused, the others differ in contents",
    )
