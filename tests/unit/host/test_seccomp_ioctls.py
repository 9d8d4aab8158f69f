# SPDX-License-Identifier: Apache-2.0
"""The list of ioctl requests against the kernel's own headers, and the filter against the list for every number."""

import itertools
import random
import re
import subprocess
from collections.abc import Iterable
from errno import ENOTTY
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.attack.requests import REQUESTS
from tests.unit.host.seccomp_interpreter import ALLOW, ERRNO, Call, run, said_of_values
from unspill.host.bwrap import build_filter
from unspill.host.seccomp_rules import AUDIT_ARCHES, IOCTLS, numbers_of

if TYPE_CHECKING:
    from unspill.model.policy import Profile

PROFILES: "Final[tuple[Profile, ...]]" = ("default", "strict")
ALLOWED: Final = {name: number for _, group in IOCTLS for name, number in group.items()}
# x86_64 and aarch64 both have the numbers of asm-generic
HEADERS: Final = (
    *("asm-generic/termbits.h", "asm-generic/ioctls.h", "linux/btrfs.h", "linux/fiemap.h", "linux/fs.h"),
    *("linux/fscrypt.h", "linux/fsverity.h", "linux/nsfs.h", "linux/random.h", "linux/seccomp.h", "linux/sockios.h"),
)
DANGEROUS: Final = """
    TIOCSTI TIOCLINUX TIOCSETD TIOCCONS TIOCVHANGUP TIOCSSERIAL
    FS_IOC_SETFLAGS FS_IOC_FSSETXATTR FS_IOC_SETVERSION FS_IOC_SETFSLABEL FS_IOC_ENABLE_VERITY
    FIFREEZE FITHAW FITRIM FIBMAP FIDEDUPERANGE BLKDISCARD BLKZEROOUT BLKROSET BLKFLSBUF
    FS_IOC_SET_ENCRYPTION_POLICY FS_IOC_ADD_ENCRYPTION_KEY
    FS_IOC_REMOVE_ENCRYPTION_KEY FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS
    BTRFS_IOC_SNAP_CREATE BTRFS_IOC_SNAP_CREATE_V2 BTRFS_IOC_SNAP_DESTROY BTRFS_IOC_SNAP_DESTROY_V2
    BTRFS_IOC_SUBVOL_CREATE BTRFS_IOC_SUBVOL_CREATE_V2 BTRFS_IOC_SUBVOL_SETFLAGS BTRFS_IOC_DEFAULT_SUBVOL
    BTRFS_IOC_SET_RECEIVED_SUBVOL BTRFS_IOC_SEND BTRFS_IOC_DEFRAG BTRFS_IOC_DEFRAG_RANGE BTRFS_IOC_RESIZE
    BTRFS_IOC_BALANCE_V2 BTRFS_IOC_SYNC BTRFS_IOC_INO_LOOKUP BTRFS_IOC_TREE_SEARCH
    NS_GET_USERNS NS_GET_PARENT SECCOMP_IOCTL_NOTIF_RECV SECCOMP_IOCTL_NOTIF_SEND SECCOMP_IOCTL_NOTIF_ADDFD
    SIOCSIFFLAGS SIOCSIFADDR SIOCADDRT SIOCBRADDBR RNDADDTOENTCNT RNDADDENTROPY RNDCLEARPOOL
""".split()
# Sign-extended as musl does, one bit, all bits but the sign
ABOVE: Final = (0xFFFFFFFF << 32, 1 << 32, 0x7FFFFFFF << 32)

every_filter = pytest.mark.parametrize(("machine", "profile"), list(itertools.product(AUDIT_ARCHES, PROFILES)))


def header_numbers(names: Iterable[str], scratch: Path) -> dict[str, int]:
    """Return the numbers that the C compiler finds in the installed headers."""
    lines = ["#include <stdio.h>", *(f"#include <{header}>" for header in HEADERS), "int main(void) {"]
    lines += [f'printf("{name} %u\\n", (unsigned){name});' for name in names]
    program = scratch / "numbers"
    subprocess.run(["gcc", "-o", program, "-x", "c", "-"], input="\n".join([*lines, "}"]), text=True, check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", printed)}


def said(machine: str, profile: "Profile", request: int) -> int:
    call = Call(AUDIT_ARCHES[machine], numbers_of(machine)["ioctl"], (0, request, 0, 0, 0, 0))
    return run(build_filter(machine, profile), call)[0]


def test_the_installed_headers_give_every_request_the_same_number(tmp_path: Path) -> None:
    assert header_numbers(ALLOWED, tmp_path) == ALLOWED


def test_what_attacks_begin_with_has_the_numbers_of_the_headers(tmp_path: Path) -> None:
    assert header_numbers(REQUESTS, tmp_path) == REQUESTS


def test_no_request_is_listed_twice_and_each_group_has_a_reason() -> None:
    names = [name for _, group in IOCTLS for name in group]
    assert len(names) == len(set(names)) == len(set(ALLOWED.values()))
    assert all(re.search(r"\w \w", why) for why, _ in IOCTLS)


def test_the_document_says_how_many_are_allowed() -> None:
    text = (Path(__file__).parents[3] / "SECURITY.md").read_text("utf-8")
    assert f"Of ioctls it allows {len(ALLOWED)}, by exact number" in text
    assert f" and all ioctls but {len(ALLOWED)}" in text


@every_filter
def test_of_all_32_bit_numbers_exactly_the_listed_ones_pass(machine: str, profile: "Profile") -> None:
    """Every direction, size, type and number: 2**32 requests, as the ranges between which the program tells apart."""
    call = Call(AUDIT_ARCHES[machine], numbers_of(machine)["ioctl"])
    ranges = said_of_values(build_filter(machine, profile), call, argument=1)
    assert [first for first, _, _ in ranges] == [0, *(last + 1 for _, last, _ in ranges[:-1])]
    assert ranges[-1][1] == 2**32 - 1
    passing = [range(first, last + 1) for first, last, answer in ranges if answer == ALLOW]
    assert sum(map(len, passing)) == len(ALLOWED)
    assert list(itertools.chain(*passing)) == sorted(ALLOWED.values())
    assert {answer for _, _, answer in ranges} == {ALLOW, ERRNO | ENOTTY}


@every_filter
def test_the_ranges_are_what_single_numbers_get(machine: str, profile: "Profile") -> None:
    source, listed = random.Random(6), set(ALLOWED.values())
    near = {number ^ 1 << bit for number in listed for bit in range(32)}
    for request in listed | near | {source.getrandbits(32) for _ in range(2000)}:
        assert said(machine, profile, request) == (ALLOW if request in listed else ERRNO | ENOTTY), hex(request)


@every_filter
def test_bits_that_the_kernel_does_not_read_change_nothing(machine: str, profile: "Profile") -> None:
    for above, number in itertools.product(ABOVE, ALLOWED.values()):
        assert said(machine, profile, above | number) == ALLOW, hex(above | number)
        assert said(machine, profile, above | number ^ 1 << 28) == ERRNO | ENOTTY, hex(above | number)


@every_filter
def test_what_could_harm_the_person_is_refused_by_name(machine: str, profile: "Profile", tmp_path: Path) -> None:
    numbers = header_numbers(DANGEROUS, tmp_path)
    assert numbers.keys() == set(DANGEROUS)
    passing = [name for name, number in numbers.items() if said(machine, profile, number) == ALLOW]
    assert passing == []
