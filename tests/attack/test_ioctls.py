# SPDX-License-Identifier: Apache-2.0
"""ioctl requests: which ones reach the kernel from a real sandbox, and what the others would do to the person's files.

Most attacks go through the playground, a directory of the person's own filesystem that a command really writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
from contextlib import contextmanager
from errno import EBADF, ENOTTY
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.attack.arena import Arena
from tests.attack.requests import EXT4_IOC_ALLOC_DA_BLKS, EXT4_IOC_MOVE_EXT, REQUESTS
from tests.figures import record_figure
from tests.support import directory_on
from unspill.host.seccomp_rules import IOCTLS
from unspill.layers.trees import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.policy import Profile

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

ALLOWED: Final = {number for _, group in IOCTLS for number in group.values()}
# Those of the list, and of what else the kernel has: nothing, single words, structures, pages, the largest
SIZES: Final = sorted(
    {number >> 16 & 0x3FFF for number in ALLOWED | set(REQUESTS.values())}
    | {0, 1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 72, 80, 96, 104, 128, 192, 256, 1024, 4096, 8192, 16383}
)
# What stands above the 32 bits that the kernel reads: nothing, and what musl sets
ABOVE: Final = ("0", "ffffffff")

SWEEP: Final = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
/* sweep ABOVE SIZE...: every direction, type and number on a descriptor that is none */
int main(int count, char **words) {
    unsigned long above = strtoul(words[1], 0, 16) << 32, answers[4096] = {0}, shown = 0;
    printf("{\"passed\": [");
    for (int at = 2; at < count; at++)
        for (unsigned long direction = 0; direction < 4; direction++)
            for (unsigned long pair = 0; pair < 65536; pair++) {
                unsigned long request = direction << 30 | strtoul(words[at], 0, 10) << 16 | pair;
                int error = syscall(SYS_ioctl, -1, above | request, 0) ? errno : 0;
                answers[error]++;
                if (error != ENOTTY && shown < 1000) printf("%s%lu", shown++ ? ", " : "", request);
            }
    printf("], \"answers\": {");
    for (int error = 0, first = 1; error < 4096; error++)
        if (answers[error]) printf("%s\"%d\": %lu", first ? "" : ", ", error, answers[error]), first = 0;
    printf("}}\n");
}
"""


def on(kind: str) -> pytest.MarkDecorator:
    """Have home, project and state directory of a test on a filesystem of a kind; "encrypted" is ext4 as well."""
    return pytest.mark.parametrize("tmp_path", [kind], indirect=True)


both_profiles = pytest.mark.parametrize("profile", ["default", "strict"])


# What linux/fscrypt.h calls a key by its identifier, and the request that tells the identifier of a directory's key
IDENTIFIER, GET_ENCRYPTION_POLICY_EX = 2, 0xC0096616


def addition_of(raw: bytes) -> bytearray:
    """Return a `struct fscrypt_add_key_arg`, into which the kernel writes the identifier."""
    return bytearray(struct.pack("<II32sII32s", IDENTIFIER, 0, b"", len(raw), 0, b"") + raw)


def removal_of(identifier: bytes) -> bytes:
    """Return a `struct fscrypt_remove_key_arg`."""
    return struct.pack("<II32sI20s", IDENTIFIER, 0, identifier, 0, b"")


def identifier_of(directory: Path) -> bytes:
    """Return the identifier of the key that a directory is encrypted with."""
    argument = bytearray(struct.pack("<Q24s", 24, b""))
    place = os.open(directory, os.O_RDONLY)
    fcntl.ioctl(place, GET_ENCRYPTION_POLICY_EX, argument)
    os.close(place)
    return bytes(argument[16:32])


@contextmanager
def encrypted_directory() -> Iterator[Path]:
    """A directory that is encrypted with a key of its own, as a home directory may be."""
    with directory_on("ext4") as top:
        outside, raw = os.open(top, os.O_RDONLY), os.urandom(64)
        key = addition_of(raw)
        fcntl.ioctl(outside, REQUESTS["FS_IOC_ADD_ENCRYPTION_KEY"], key)
        path = top / "encrypted"
        path.mkdir()
        place = os.open(path, os.O_RDONLY)
        # Version 2: AES-256-XTS for contents, AES-256-CTS for names
        policy = struct.pack("<BBBB4s16s", 2, 1, 4, 3, b"", key[8:24])
        fcntl.ioctl(place, REQUESTS["FS_IOC_SET_ENCRYPTION_POLICY"], policy)
        os.close(place)
        yield path
        # An attack may have removed it; the keys that a user can have are counted, so it must not stay
        fcntl.ioctl(outside, REQUESTS["FS_IOC_ADD_ENCRYPTION_KEY"], addition_of(raw))
        remove_tree(bytes(path))
        fcntl.ioctl(outside, REQUESTS["FS_IOC_REMOVE_ENCRYPTION_KEY"], bytearray(removal_of(bytes(key[8:24]))))
        os.close(outside)


@pytest.fixture(name="tmp_path")
def tmp_path_on_a_filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if not hasattr(request, "param"):
        yield tmp_path
        return
    with encrypted_directory() if request.param == "encrypted" else directory_on(request.param) as path:
        yield path


@both_profiles
def test_a18_of_all_types_numbers_directions_and_known_sizes_only_the_listed_requests_reach_the_kernel(
    arena: Arena, profile: Profile
) -> None:
    """Make an ioctl with each of the 65,536 pairs of type and number, in each direction, with every size that is known,
    with and without bits above the 32 that the kernel reads. Control: without the rule every one reaches the kernel."""
    program = arena.ground.project / "sweep"
    subprocess.run(["gcc", "-O1", "-o", program, "-x", "c", "-"], input=SWEEP, text=True, check=True)
    count = len(SIZES) * 4 * 65536

    def sweep(above: str) -> tuple[list[int], dict[str, int]]:
        words = [arena.ground.inside(program), above, *map(str, SIZES)]
        result = arena.ground.sandbox(profile=profile).run(words)
        assert result.ok, result
        told = json.loads(result.stdout.head + result.stdout.tail)
        return told["passed"], told["answers"]

    for above in ABOVE:
        passed, answers = sweep(above)
        assert sorted(passed) == sorted(ALLOWED)
        assert answers == {str(EBADF): len(ALLOWED), str(ENOTTY): count - len(ALLOWED)}
    with arena.without_rule_of("ioctl", profile):
        assert sweep(ABOVE[0])[1] == {str(EBADF): count}
    record_figure(
        f"ioctl requests tried, {profile}",
        f"{count * len(ABOVE):,}, {len(ALLOWED)} allowed",
        f"65,536 types and numbers, 4 directions, {len(SIZES)} sizes, with and without bits above 32",
    )


DESTROY: Final = """
def above(place, request, argument):
    space = (ctypes.c_char * len(argument)).from_buffer(argument)
    if libc.ioctl(place, ctypes.c_ulong(request | 1 << 32), space) < 0: raise OSError(ctypes.get_errno(), "ioctl")
place = os.open(playground, os.O_RDONLY)
# struct btrfs_ioctl_vol_args_v2 with BTRFS_SUBVOL_SPEC_BY_ID
by_id = bytearray(4096)
struct.pack_into("<qQQ", by_id, 0, 0, 0, 1 << 4)
struct.pack_into("<Q", by_id, 56, subvolume)
attempt("with a bit above", above, place, request, by_id)
attempt("by its number", fcntl.ioctl, place, request, by_id)
"""


@both_profiles
@on("btrfs")
def test_a1_no_subvolume_of_the_person_is_deleted_through_the_playground(arena: Arena, profile: Profile) -> None:
    """On btrfs with user_subvol_rm_allowed: delete a subvolume of the person, anywhere on it, by its number.
    Control: without the rule for ioctls it is gone with everything in it."""
    ground = arena.ground
    photos = ground.home / "photos"
    subprocess.run(["btrfs", "-q", "subvolume", "create", photos], check=True)
    (photos / "a.jpg").write_text("precious")
    told = subprocess.run(["btrfs", "inspect-internal", "rootid", photos], capture_output=True, text=True, check=True)
    request = REQUESTS["BTRFS_IOC_SNAP_DESTROY_V2"]
    script = f"subvolume, playground, request = {int(told.stdout)}, {ground.playground_inside!r}, {request}\n{DESTROY}"
    assert not arena.attack(script, profile=profile).won
    assert (photos / "a.jpg").read_text() == "precious"
    with arena.without_rule_of("ioctl", profile):
        # What the first of the two deletes, the second does not find
        assert arena.attack(script, profile=profile).won == ("with a bit above",)
    assert not photos.exists()


LOCK: Final = """
attempt("remove the key", fcntl.ioctl, os.open(playground, os.O_RDONLY), request, bytearray(removal))
"""


@both_profiles
@on("encrypted")
def test_a1_no_encrypted_home_is_locked_through_the_playground(arena: Arena, profile: Profile) -> None:
    """In an encrypted home directory: take the person's key away from the filesystem.
    Control: without the rule for ioctls the person can't read their own files any more."""
    ground = arena.ground
    thesis = ground.home / "thesis"
    thesis.write_text("precious")
    removal = removal_of(identifier_of(ground.home))
    request = REQUESTS["FS_IOC_REMOVE_ENCRYPTION_KEY"]
    script = f"removal, playground, request = {removal!r}, {ground.playground_inside!r}, {request}\n{LOCK}"
    assert not arena.attack(script, profile=profile).won
    assert thesis.read_text() == "precious"
    with arena.without_rule_of("ioctl", profile):
        assert arena.attack(script, profile=profile).won == ("remove the key",)
    with pytest.raises(OSError, match="Required key not available"):
        thesis.read_text()


OTHERS: Final = """
os.chdir(playground)
there, file = os.open(".", os.O_RDONLY), os.open("file", os.O_RDWR | os.O_CREAT)
os.write(file, b"content")
NODUMP, IMMUTABLE, FSXATTR = 0x40, 0x10, "<IIIII8s"
def page(start, format, *values):
    space = bytearray(4096)
    struct.pack_into(format, space, start, *values)
    return space
def ask(name, place, request, argument=None):
    try: fcntl.ioctl(place, request, argument or bytearray(4096))
    except OSError as error: print("CAME", name, errno.errorcode[error.errno])
    else: print("CAME", name, "done")
r = requests
ask("FITRIM", there, r["FITRIM"], page(0, "<QQQ", 0, 2**64 - 1, 0))
ask("FIFREEZE", there, r["FIFREEZE"])
ask("FITHAW", there, r["FITHAW"])
ask("FIBMAP", file, r["FIBMAP"])
ask("FIDEDUPERANGE", file, r["FIDEDUPERANGE"])
ask("immutable", file, r["FS_IOC_SETFLAGS"], page(0, "<Q", IMMUTABLE))
ask("no backup", file, r["FS_IOC_SETFLAGS"], page(0, "<Q", NODUMP))
ask("no backup by FSSETXATTR", file, r["FS_IOC_FSSETXATTR"], page(0, FSXATTR, 0x80, 0, 0, 0, 0, b""))
if kind == "btrfs":
    ask("make a subvolume", there, r["BTRFS_IOC_SUBVOL_CREATE"], page(8, "<8s", b"made"))
    ask("delete a subvolume", there, r["BTRFS_IOC_SNAP_DESTROY"], page(8, "<8s", b"made"))
    ask("defragment", file, r["BTRFS_IOC_DEFRAG"])
if kind == "ext4":
    ask("add a key", there, r["FS_IOC_ADD_ENCRYPTION_KEY"], key)
    ask("remove a key", there, r["FS_IOC_REMOVE_ENCRYPTION_KEY"], page(0, "<II16s", 2, 0, bytes(key[8:24])))
    ask("encrypt a directory", there, r["FS_IOC_SET_ENCRYPTION_POLICY"])
    ask("EXT4_IOC_ALLOC_DA_BLKS", file, r["ALLOC_DA_BLKS"])
    ask("EXT4_IOC_MOVE_EXT", file, r["MOVE_EXT"], page(4, "<I", 0xffffffff))
"""
# What comes of each where the rule is missing: done, or the kernel's own refusal, which others may pass
OTHERWISE: Final = {
    "any": {
        "FITRIM": "EPERM",
        "FIFREEZE": "EPERM",
        "FITHAW": "EPERM",
        "FIBMAP": "EPERM",
        "immutable": "EPERM",
        "no backup": "done",
        "no backup by FSSETXATTR": "done",
    },
    "btrfs": {"FIDEDUPERANGE": "done", "make a subvolume": "done", "delete a subvolume": "done", "defragment": "done"},
    "ext4": {
        "FIDEDUPERANGE": "ENOTSUP",
        "add a key": "done",
        "remove a key": "done",
        "encrypt a directory": "ENOTEMPTY",
        "EXT4_IOC_ALLOC_DA_BLKS": "done",
        "EXT4_IOC_MOVE_EXT": "EBADF",
    },
    "xfs": {"FIDEDUPERANGE": "done"},
}


@both_profiles
@pytest.mark.parametrize("tmp_path", ["btrfs", "ext4", "xfs"], indirect=True)
def test_a1_nothing_else_is_asked_of_the_filesystem_of_the_person(
    arena: Arena, profile: Profile, request: pytest.FixtureRequest
) -> None:
    """In the playground on btrfs, ext4 and XFS: make and delete subvolumes, add keys, freeze, trim, move extents, set
    attributes that backups and other programs obey. Control: without the rule for ioctls each is done, or comes as far
    as the kernel's own check."""
    kind = request.node.callspec.params["tmp_path"]
    key = addition_of(os.urandom(64))
    numbers = REQUESTS | {"ALLOC_DA_BLKS": EXT4_IOC_ALLOC_DA_BLKS, "MOVE_EXT": EXT4_IOC_MOVE_EXT}
    given = f"kind, key, requests = {kind!r}, {key!r}, {numbers!r}\nplayground = {arena.ground.playground_inside!r}\n"

    def came() -> dict[str, str]:
        lines = arena.attack(given + OTHERS, profile=profile).lines
        return dict(line.removeprefix("CAME ").rsplit(" ", 1) for line in lines if line.startswith("CAME "))

    expected = OTHERWISE["any"] | OTHERWISE[kind]
    assert came() == dict.fromkeys(expected, "ENOTTY")
    with arena.without_rule_of("ioctl", profile):
        assert came() == expected
