# SPDX-License-Identifier: Apache-2.0
"""Archives that are hostile as a whole, as a table: bombs, sizes that lie, damage of every kind.

Each says what it does to an extractor that trusts it. They are tried by test_hostile_archives.py.
"""

import bz2
import lzma
import subprocess
import zlib
from collections.abc import Callable
from typing import Final

from tests.attack.archive_world import (
    EVIL,
    PLAIN,
    SMUGGLED,
    Hostile,
    Naive,
    World,
    fixed,
    has,
    smuggles,
)
from tests.attack.tar_crafting import (
    BLOCK,
    END,
    base256,
    entry,
    gzip_member,
    pax,
    record,
    xz_with_dictionary,
    zstd_with_window,
)
from unspill.errors import RootfsUnsafe, RootfsUnverified
from unspill.rootfs.compression import Bounds

# The usual bounds only look at what is larger than 64 MiB; small bombs, for speed, are tried with stricter ones
LARGE_BOMB: Final = 70 << 20
SMALL_BOMB: Final = 8 << 20
STRICT: Final = Bounds(free_bytes=1 << 20)
GOOD: Final = PLAIN + entry(b"more", bytes(3 * BLOCK)) + END


def bomb(compress: Callable[[bytes], bytes], size: int = SMALL_BOMB) -> Callable[[World], bytes]:
    """Return what makes one file of zeros, compressed."""
    return lambda world: compress(entry(b"zeros", bytes(size)) + END)


def is_a_bomb(naive: Naive) -> bool:
    return naive.first().size > 1000 * len(naive.archive)


def gzip(content: bytes) -> bytes:
    return zlib.compress(content, 9, wbits=31)


def unzstd(archive: bytes, *options: str) -> bytes:
    return subprocess.run(["zstd", "-dc", *options], input=archive, capture_output=True, check=True).stdout


def zstd(content: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=content, capture_output=True, check=True).stdout


def unpacks_when_mended(mend: Callable[[bytes], bytes]) -> Callable[[Naive], bool]:
    """Whether the damage is all that is wrong: without it the archive is a good one."""
    return lambda naive: Naive(mend(naive.archive), naive.world).extract().tree.joinpath("plain").exists()


def is_unnoticed(naive: Naive) -> bool:
    """Whether a reader that trusts it does not see the damage."""
    return naive.extract().tree.joinpath("plain").exists()


SIZES: Final = (
    Hostile("gzip-bomb", bomb(gzip, LARGE_BOMB), is_a_bomb, RootfsUnsafe),
    Hostile("bzip2-bomb", bomb(bz2.compress), is_a_bomb, RootfsUnsafe, bounds=STRICT),
    Hostile("xz-bomb", bomb(lambda content: lzma.compress(content, preset=0)), is_a_bomb, RootfsUnsafe, bounds=STRICT),
    Hostile(
        "zstd-bomb",
        bomb(zstd),
        lambda n: len(unzstd(n.archive)) > 1000 * len(n.archive),
        RootfsUnsafe,
        bounds=STRICT,
    ),
    Hostile(
        "bomb-in-a-bomb",
        bomb(lambda content: gzip(gzip(content))),
        lambda n: len(zlib.decompress(zlib.decompress(n.archive, wbits=31), wbits=31)) > SMALL_BOMB,
        RootfsUnverified,
    ),
    Hostile(
        "zeros-behind-the-end",
        lambda w: gzip(PLAIN + END + bytes(SMALL_BOMB)),
        lambda n: len(zlib.decompress(n.archive, wbits=31)) > 1000 * len(n.archive),
        RootfsUnsafe,
        bounds=STRICT,
    ),
    Hostile(
        "xz-dictionary",
        lambda w: xz_with_dictionary(lzma.compress(PLAIN + END, preset=0), 36),
        lambda n: lzma.decompress(n.archive, memlimit=2 << 30) == PLAIN + END,
        RootfsUnsafe,
    ),
    Hostile(
        "zstd-window",
        lambda w: zstd_with_window(PLAIN + END, 30),
        lambda n: unzstd(n.archive, "--memory=2048MB") == PLAIN + END,
        RootfsUnsafe,
    ),
    Hostile(
        "more-entries-than-allowed",
        fixed(*[entry(b"f%d" % number) for number in range(101)]),
        lambda n: len(n.names()) == 101,
        RootfsUnsafe,
        bounds=Bounds(entries=100),
    ),
    Hostile(
        "more-bytes-than-allowed",
        fixed(*[entry(b"f%d" % number, bytes(10_000)) for number in range(20)]),
        lambda n: sum(member.size for member in n.members()) == 200_000,
        RootfsUnsafe,
        bounds=Bounds(total_bytes=100_000),
    ),
    Hostile(
        "larger-file-than-allowed",
        fixed(entry(b"f", bytes(10_001))),
        has(lambda member: member.size == 10_001),
        RootfsUnsafe,
        bounds=Bounds(file_bytes=10_000),
    ),
    Hostile(
        "huge-size",
        fixed(entry(b"f", EVIL, size=base256(1 << 80))),
        lambda n: n.first().size == 1 << 80,
        RootfsUnsafe,
    ),
    Hostile(
        "huge-extended-header",
        fixed(pax((b"comment", b"x" * (2 << 20))), PLAIN),
        has(lambda member: len(member.pax_headers["comment"]) == 2 << 20),
        RootfsUnsafe,
    ),
    Hostile(
        "negative-size",
        fixed(entry(b"f", SMUGGLED, size=base256(-512)), PLAIN),
        lambda n: n.first().size == -512,
        RootfsUnverified,
    ),
    Hostile(
        "signed-octal-size",
        fixed(entry(b"f", EVIL, size=b"-0000000004\0")),
        lambda n: n.first().size == -4,
        RootfsUnverified,
    ),
    Hostile("two-sizes", fixed(pax((b"size", b"0")), entry(b"plain", SMUGGLED)), smuggles, RootfsUnsafe),
    Hostile("folder-with-content", fixed(entry(b"d/", SMUGGLED, kind=b"5")), smuggles, RootfsUnsafe),
    Hostile("link-with-content", fixed(entry(b"l", SMUGGLED, kind=b"2", target=b"x")), smuggles, RootfsUnsafe),
)


DAMAGE: Final = (
    Hostile(
        "header-checksum",
        fixed(entry(b"plain", b"x", checksum=1)),
        unpacks_when_mended(lambda _: GOOD),
        RootfsUnverified,
    ),
    Hostile("cut-in-a-content", lambda w: GOOD[: 3 * BLOCK + 100], is_unnoticed, RootfsUnverified),
    Hostile("cut-in-a-header", lambda w: GOOD[: 2 * BLOCK + 100], is_unnoticed, RootfsUnverified),
    Hostile("cut-between-entries", lambda w: PLAIN, is_unnoticed, RootfsUnverified),
    Hostile("garbage-behind-the-end", lambda w: GOOD + b"garbage" * 200, is_unnoticed, RootfsUnverified),
    Hostile("second-archive-behind-the-first", lambda w: GOOD + SMUGGLED + END, is_unnoticed, RootfsUnverified),
    Hostile("gzip-cut", lambda w: gzip_member(GOOD)[:-9], is_unnoticed, RootfsUnverified),
    Hostile("gzip-checksum", lambda w: gzip_member(GOOD, wrong_checksum=True), is_unnoticed, RootfsUnverified),
    Hostile("gzip-garbage", lambda w: gzip_member(GOOD) + b"garbage", is_unnoticed, RootfsUnverified),
    Hostile("bzip2-cut", lambda w: bz2.compress(GOOD)[:-6], is_unnoticed, RootfsUnverified),
    Hostile("xz-cut", lambda w: lzma.compress(GOOD)[:-6], is_unnoticed, RootfsUnverified),
    Hostile(
        "zstd-cut",
        lambda w: zstd_with_window(GOOD, 20)[:-6],
        unpacks_when_mended(lambda _: unzstd(zstd_with_window(GOOD, 20))),
        RootfsUnverified,
    ),
    Hostile(
        "extended-header-of-nothing",
        fixed(PLAIN, pax((b"path", b"x"))),
        is_unnoticed,
        RootfsUnverified,
    ),
    Hostile(
        "extended-header-that-is-none",
        fixed(entry(b"p", b"99 path=xy\n", kind=b"x"), PLAIN),
        unpacks_when_mended(lambda archive: archive.replace(b"99 path=xy\n", record(b"a", b"bcdef"))),
        RootfsUnverified,
    ),
)

STREAMS: Final = (*SIZES, *DAMAGE)
