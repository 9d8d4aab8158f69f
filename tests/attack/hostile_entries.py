# SPDX-License-Identifier: Apache-2.0
"""Archives with hostile entries, as a table: names and links that lead out, kinds nobody needs, tricks of layers.

Each says what it does to an extractor that trusts it. They are tried by test_hostile_archives.py.
"""

import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.attack.archive_world import (
    EVIL,
    PLAIN,
    SMUGGLED,
    UP,
    Hostile,
    World,
    fixed,
    has,
    is_in_tree,
    overwrites,
    plants,
    readers_disagree,
    removes_outside,
    smuggles,
)
from tests.attack.tar_crafting import (
    BLOCK,
    END,
    entry,
    folder,
    hard,
    link,
    long_name,
    pax,
)
from unspill.errors import RootfsUnsafe


def outside(world: World, name: str = "") -> bytes:
    return os.fsencode(world.outside / name)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


LEADING_OUT: Final = (
    Hostile("dot-dot", fixed(entry(UP + b"/planted", EVIL)), plants, RootfsUnsafe),
    Hostile("dot-dot-inside", fixed(folder(b"a/"), entry(b"a/../" + UP + b"/planted", EVIL)), plants, RootfsUnsafe),
    Hostile("dot-dot-folder", fixed(folder(UP + b"/planted/")), plants, RootfsUnsafe),
    Hostile(
        "dot-dot-link", fixed(link(UP + b"/planted", b"/")), lambda n: n.extract().planted.is_symlink(), RootfsUnsafe
    ),
    Hostile("absolute", lambda w: entry(outside(w, "planted"), EVIL) + END, plants, RootfsUnsafe),
    Hostile("absolute-twice", lambda w: entry(b"/" + outside(w, "planted"), EVIL) + END, plants, RootfsUnsafe),
    Hostile("pax-path", fixed(pax((b"path", UP + b"/planted")), entry(b"plain", EVIL)), plants, RootfsUnsafe),
    Hostile(
        "pax-path-absolute",
        lambda w: pax((b"path", outside(w, "planted"))) + entry(b"plain", EVIL) + END,
        plants,
        RootfsUnsafe,
    ),
    Hostile("long-name", fixed(long_name(UP + b"/planted"), entry(b"plain", EVIL)), plants, RootfsUnsafe),
    Hostile(
        "link-then-write", lambda w: link(b"l", outside(w)) + entry(b"l/planted", EVIL) + END, plants, RootfsUnsafe
    ),
    Hostile("relative-link-then-write", fixed(link(b"l", UP), entry(b"l/planted", EVIL)), plants, RootfsUnsafe),
    Hostile("link-chain", fixed(link(b"b", UP), link(b"a", b"b"), entry(b"a/planted", EVIL)), plants, RootfsUnsafe),
    Hostile(
        "link-below-link",
        fixed(
            folder(b"d/"),
            link(b"d/l", b".."),
            link(b"m", b"d/l/../outside/.."),
            link(b"n", b"m/../outside"),
            link(b"o", b"n"),
            entry(b"l2", EVIL),
            link(b"p", UP),
            entry(b"./p/./planted", EVIL),
        ),
        plants,
        RootfsUnsafe,
    ),
    Hostile("link-then-folder-in-it", fixed(link(b"l", UP), folder(b"l/planted/")), plants, RootfsUnsafe),
    Hostile(
        "link-by-pax-target",
        fixed(pax((b"linkpath", UP)), link(b"l", b"plain"), entry(b"l/planted", EVIL)),
        plants,
        RootfsUnsafe,
    ),
    Hostile(
        "link-by-long-target",
        fixed(long_name(UP, b"K"), link(b"l", b"plain"), entry(b"l/planted", EVIL)),
        plants,
        RootfsUnsafe,
    ),
    Hostile(
        "file-over-link",
        fixed(link(b"f", UP + b"/victim"), entry(b"f", EVIL)),
        overwrites,
        None,
        lambda tree: not (tree / "f").is_symlink() and (tree / "f").read_bytes() == EVIL,
    ),
    Hostile(
        "folder-over-link",
        fixed(link(b"d", UP), folder(b"d/", 0o777)),
        lambda n: mode_of(n.extract().outside) == 0o777,
        RootfsUnsafe,
    ),
    Hostile("link-over-folder", fixed(folder(b"d/"), link(b"d", UP)), has(tarfile.TarInfo.issym), RootfsUnsafe),
    Hostile("link-to-the-tree-itself", fixed(link(b"./", UP)), has(tarfile.TarInfo.issym), RootfsUnsafe),
)

# Each step down has a short name, a link, and a real one, so long that sixteen of them are as long as a path may be
_STEPS: Final = [b"%c" % letter for letter in b"abcdefghijklmnop"]
_LONG: Final = b"d" * 247
_TO_THE_TOP: Final = b"/".join(_STEPS) + b"/" + b"l" * 254


def long_link(name: bytes, target: bytes) -> bytes:
    return long_name(name) + long_name(target, b"K") + link(b"plain", b"plain")


def past_a_check(*parts: bytes) -> Callable[[World], bytes]:
    """Return an archive whose link `escape` leads to what is above the tree, on a way too long for `realpath`."""
    chain, above = [], b""
    for step in _STEPS:
        chain += [long_name(above + _LONG + b"/"), folder(b"plain"), long_link(above + step, _LONG)]
        above += _LONG + b"/"
    chain += [long_link(_TO_THE_TOP, b"../" * len(_STEPS)), long_link(b"escape", _TO_THE_TOP + b"/" + UP)]
    return fixed(*chain, *parts)


LONG_CHAINS: Final = (
    # CVE-2025-4517
    Hostile(
        "long-chain-then-write",
        past_a_check(entry(b"escape/planted", EVIL)),
        lambda n: n.extract_checked().planted.read_bytes() == EVIL,
        RootfsUnsafe,
    ),
    # CVE-2025-4330
    Hostile(
        "long-chain-then-hard-link",
        past_a_check(hard(b"h", b"escape/victim"), entry(b"h", EVIL)),
        lambda n: n.extract_checked().victim.read_bytes() == EVIL,
        RootfsUnsafe,
    ),
    # CVE-2025-4138
    Hostile(
        "long-chain-leads-out",
        past_a_check(),
        lambda n: (n.extract_checked().tree / "escape" / "victim").exists(),
        RootfsUnsafe,
    ),
    # CVE-2024-12718
    Hostile(
        "long-chain-then-mode",
        past_a_check(folder(b"escape/folder/", 0o777)),
        lambda n: mode_of(n.extract_checked().outside / "folder") == 0o777,
        RootfsUnsafe,
    ),
    Hostile(
        "mode-through-a-link-that-came-later",
        fixed(folder(b"d/"), folder(b"d/folder/"), link(b"l", b"d"), folder(b"l/folder/", 0o777), link(b"l", UP)),
        lambda n: mode_of(n.extract_at_once().outside / "folder") == 0o777,
        RootfsUnsafe,
    ),
    # CVE-2025-4435: what goes on after an entry that it refuses, or means to
    Hostile(
        "more-after-what-is-refused",
        fixed(link(b"l", UP), entry(UP + b"/planted", EVIL), entry(b"l/planted", EVIL), entry(b"after", EVIL)),
        lambda n: n.extract().planted.exists() and (n.world.tree / "after").exists(),
        RootfsUnsafe,
    ),
)


HARD_LINKS: Final = (
    Hostile("hard-link-up", fixed(hard(b"h", UP + b"/victim"), entry(b"h", EVIL)), overwrites, RootfsUnsafe),
    Hostile(
        "hard-link-absolute",
        lambda w: hard(b"h", outside(w, "victim")) + entry(b"h", EVIL) + END,
        overwrites,
        RootfsUnsafe,
    ),
    Hostile(
        "hard-link-by-pax",
        fixed(pax((b"linkpath", UP + b"/victim")), hard(b"h", b"plain"), entry(b"h", EVIL)),
        overwrites,
        RootfsUnsafe,
    ),
    Hostile(
        "hard-link-to-link",
        fixed(link(b"l", UP + b"/victim"), hard(b"h", b"l"), entry(b"h", EVIL)),
        overwrites,
        RootfsUnsafe,
    ),
    Hostile(
        "hard-link-through-link",
        fixed(link(b"l", UP), hard(b"h", b"l/victim"), entry(b"h", EVIL)),
        overwrites,
        RootfsUnsafe,
    ),
    Hostile("hard-link-to-folder", fixed(folder(b"d/"), hard(b"h", b"d")), has(tarfile.TarInfo.islnk), RootfsUnsafe),
    Hostile("hard-link-to-nothing", fixed(hard(b"h", b"none")), has(tarfile.TarInfo.islnk), RootfsUnsafe),
    Hostile("hard-link-to-itself", fixed(PLAIN, hard(b"plain", b"./plain")), has(tarfile.TarInfo.islnk), RootfsUnsafe),
    Hostile(
        "hard-link-with-content",
        fixed(PLAIN, entry(b"h", SMUGGLED, kind=b"1", target=b"plain")),
        smuggles,
        RootfsUnsafe,
    ),
)

KINDS: Final = (
    Hostile("device", fixed(entry(b"null", kind=b"3")), has(tarfile.TarInfo.ischr), RootfsUnsafe),
    Hostile("block-device", fixed(entry(b"etc/disk", kind=b"4")), has(tarfile.TarInfo.isblk), RootfsUnsafe),
    Hostile("device-near-dev", fixed(entry(b"development/null", kind=b"3")), has(tarfile.TarInfo.ischr), RootfsUnsafe),
    Hostile("device-named-dev", fixed(entry(b"dev", kind=b"3")), has(tarfile.TarInfo.ischr), RootfsUnsafe),
    Hostile(
        "device-in-dev",
        fixed(folder(b"dev/"), entry(b"dev/null", kind=b"3"), entry(b"./dev/disk/a", kind=b"4")),
        has(tarfile.TarInfo.isdev),
        None,
        lambda tree: os.listdir(tree / "dev") == [],
    ),
    Hostile("fifo", fixed(entry(b"pipe", kind=b"6")), is_in_tree(lambda tree: (tree / "pipe").is_fifo()), RootfsUnsafe),
    Hostile(
        "setuid",
        fixed(entry(b"su", EVIL, mode=0o4755)),
        is_in_tree(lambda tree: mode_of(tree / "su") == 0o4755),
        None,
        lambda tree: mode_of(tree / "su") == 0o755,
    ),
    Hostile(
        "setgid-folder",
        fixed(folder(b"mail/", 0o3777)),
        is_in_tree(lambda tree: mode_of(tree / "mail") == 0o3777),
        None,
        lambda tree: mode_of(tree / "mail") == 0o1777,
    ),
    Hostile(
        "folder-nobody-may-enter",
        fixed(folder(b"d/", 0), entry(b"d/f", EVIL)),
        is_in_tree(lambda tree: mode_of(tree / "d") == 0),
        None,
        lambda tree: mode_of(tree / "d") == 0o700,
    ),
    Hostile(
        "sparse",
        fixed(entry(b"hole", b"", kind=b"S", magic=b"ustar  \0")),
        has(lambda member: member.type == tarfile.GNUTYPE_SPARSE),
        RootfsUnsafe,
    ),
    Hostile(
        "sparse-by-pax",
        fixed(pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"1099511627776")), PLAIN),
        has(lambda member: "GNU.sparse.realsize" in member.pax_headers),
        RootfsUnsafe,
    ),
    Hostile("unknown-kind", fixed(entry(b"x", kind=b"Z")), has(lambda member: member.type == b"Z"), RootfsUnsafe),
    Hostile("several-volumes", fixed(entry(b"x", kind=b"M")), has(lambda member: member.type == b"M"), RootfsUnsafe),
)

NAMES: Final = (
    Hostile("no-name", fixed(entry(b"", EVIL)), has(lambda member: member.name == ""), RootfsUnsafe),
    Hostile("name-of-the-tree", fixed(entry(b".", EVIL)), has(lambda member: member.name == "."), RootfsUnsafe),
    Hostile("name-of-what-is-above", fixed(folder(b"..")), has(lambda member: member.name == ".."), RootfsUnsafe),
    Hostile("nul-in-name", fixed(pax((b"path", b"etc/passwd\0.txt")), PLAIN), readers_disagree, RootfsUnsafe),
    Hostile(
        "nul-in-target",
        fixed(pax((b"linkpath", b"a\0b")), link(b"l", b"x")),
        has(lambda member: "\0" in member.linkname),
        RootfsUnsafe,
    ),
    Hostile(
        "file-with-slash",
        fixed(entry(b"plain/", bytes(BLOCK))),
        has(lambda member: member.isreg() and member.name.endswith("/")),
        RootfsUnsafe,
    ),
    Hostile("link-with-slash", fixed(entry(b"l/", kind=b"2", target=UP)), has(tarfile.TarInfo.issym), RootfsUnsafe),
    Hostile(
        "name-too-long",
        fixed(long_name(b"n" * 256), PLAIN),
        has(lambda member: len(member.name) == 256),
        RootfsUnsafe,
    ),
    Hostile(
        "path-too-long",
        fixed(long_name(b"/".join([b"n" * 200] * 21)), PLAIN),
        has(lambda member: len(member.name) > 4096),
        RootfsUnsafe,
    ),
    Hostile(
        "path-too-deep",
        fixed(long_name(b"/".join([b"n"] * 200)), PLAIN),
        has(lambda member: member.name.count("/") == 199),
        RootfsUnsafe,
    ),
    Hostile(
        "target-too-long",
        fixed(long_name(b"t" * 5000, b"K"), link(b"l", b"x")),
        has(lambda member: len(member.linkname) == 5000),
        RootfsUnsafe,
    ),
    Hostile("link-to-nothing", fixed(link(b"l", b"")), has(tarfile.TarInfo.issym), RootfsUnsafe),
    Hostile(
        "two-extended-headers",
        fixed(pax((b"path", b"a")), pax((b"path", b"b")), PLAIN),
        readers_disagree,
        RootfsUnsafe,
    ),
    Hostile(
        "two-long-names",
        fixed(long_name(b"from-gnu"), pax((b"path", b"from-pax")), PLAIN),
        readers_disagree,
        RootfsUnsafe,
    ),
    Hostile(
        "one-name-for-all",
        fixed(pax((b"path", b"etc/passwd"), kind=b"g"), PLAIN),
        lambda n: n.names() == ["etc/passwd"],
        RootfsUnsafe,
    ),
    Hostile(
        "not-utf-8",
        fixed(entry(b"\xff\xfe\x1b[2J", EVIL)),
        has(lambda member: member.name.encode("utf-8", "surrogateescape") == b"\xff\xfe\x1b[2J"),
        None,
        lambda tree: os.listdir(os.fsencode(tree)) == [b"\xff\xfe\x1b[2J"],
    ),
    Hostile("file-then-folder", fixed(PLAIN, folder(b"plain/")), has(tarfile.TarInfo.isdir), RootfsUnsafe),
    Hostile("folder-then-file", fixed(folder(b"plain/"), PLAIN), has(tarfile.TarInfo.isreg), RootfsUnsafe),
    Hostile("file-below-file", fixed(PLAIN, entry(b"plain/f", EVIL)), has(lambda m: m.name == "plain/f"), RootfsUnsafe),
    Hostile(
        "the-last-of-two-holds",
        fixed(entry(b"f", b"first", mode=0o600), entry(b"./f", b"last")),
        lambda n: n.names() == ["f", "f"] or n.names() == ["f", "./f"],
        None,
        lambda tree: (tree / "f").read_bytes() == b"last" and mode_of(tree / "f") == 0o644,
    ),
    Hostile(
        # CVE-2026-87766: harmless in the tree; where it would be a mount point, the plan refuses it
        "oldroot-is-a-link",
        fixed(link(b"oldroot", b"/"), link(b"newroot", UP)),
        is_in_tree(lambda tree: (tree / "newroot" / "victim").exists()),
        None,
        lambda tree: os.readlink(tree / "oldroot") == "/",
    ),
)

LAYERS: Final = (
    Hostile(
        "whiteout-of-the-folder",
        fixed(folder(b"d/"), entry(b".wh..")),
        lambda n: os.listdir(n.extract_layer().tree) == [],
        RootfsUnsafe,
        whiteouts=True,
    ),
    Hostile("whiteout-of-what-is-above", fixed(entry(b".wh...")), removes_outside, RootfsUnsafe, whiteouts=True),
    Hostile(
        "whiteout-of-nothing",
        fixed(entry(b".wh.")),
        removes_outside,
        RootfsUnsafe,
        whiteouts=True,
    ),
    Hostile(
        "whiteout-through-link",
        fixed(link(b"l", UP), entry(b"l/.wh.victim")),
        removes_outside,
        RootfsUnsafe,
        whiteouts=True,
    ),
    Hostile(
        "opaque-through-link",
        fixed(link(b"l", UP), entry(b"l/.wh..wh..opq")),
        removes_outside,
        RootfsUnsafe,
        whiteouts=True,
    ),
    Hostile("opaque-above", fixed(entry(UP + b"/.wh..wh..opq")), removes_outside, RootfsUnsafe, whiteouts=True),
    Hostile(
        "whiteout-of-a-link",
        fixed(link(b"l", UP), entry(b".wh.l")),
        has(lambda member: member.name == ".wh.l"),
        None,
        lambda tree: (tree / "l").is_symlink(),
        whiteouts=True,
    ),
    Hostile(
        "whiteout-that-is-a-link",
        fixed(link(b".wh.d", UP)),
        has(tarfile.TarInfo.issym),
        RootfsUnsafe,
        whiteouts=True,
    ),
    Hostile(
        "folder-with-the-name-of-a-whiteout",
        fixed(entry(b".wh.d/f", EVIL)),
        has(lambda member: member.name == ".wh.d/f"),
        RootfsUnsafe,
        whiteouts=True,
    ),
    Hostile(
        "whiteout-of-a-whiteout",
        fixed(entry(b".wh..wh.aufs")),
        has(lambda member: member.name == ".wh..wh.aufs"),
        RootfsUnsafe,
        whiteouts=True,
    ),
    Hostile(
        "layer-with-link-then-write",
        fixed(link(b"l", UP), entry(b"l/planted", EVIL)),
        plants,
        RootfsUnsafe,
        whiteouts=True,
    ),
)

ENTRIES: Final = (*LEADING_OUT, *LONG_CHAINS, *HARD_LINKS, *KINDS, *NAMES, *LAYERS)
