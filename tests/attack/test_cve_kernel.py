# SPDX-License-Identifier: Apache-2.0
"""Weaknesses behind single system calls, by their numbers: the call with which each begins is refused.

What is shown is that the entry is closed, whatever kernel is below, not that a kernel has the defect. The filters are
loaded into the real kernel; what they let through is answered before it is made (see `entries_inside.py`).
"""

from __future__ import annotations

import struct
from errno import ENOTTY
from typing import TYPE_CHECKING, Final

import pytest

from tests.attack.ablation_rules import ABOVE_32_BITS, answers
from tests.attack.arena import Arena
from tests.attack.cve_entries import ENTRIES, Entry
from tests.attack.entries_inside import PASSED, RET_ALLOW, RET_ERRNO
from tests.attack.requests import REQUESTS
from tests.kernel.seccomp_box import MACHINE
from unspill.host.bwrap import build_filter
from unspill.host.seccomp_rules import AUDIT_ARCHES, AllowCall, assemble, numbers_of, verdicts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.attack.ablation_rules import Call
    from unspill.host.seccomp_rules import Verdict

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

NUMBERS: Final = numbers_of(MACHINE)
TIOCSTI: Final = REQUESTS["TIOCSTI"]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_cve_the_call_with_which_it_begins_is_refused(entry: Entry, tmp_path: Path) -> None:
    """Make the calls of the attack under the filter.
    Control: under the same filter without the rules for these calls every one is let through."""
    calls: list[Call] = [("native", NUMBERS[name], arguments) for name, arguments in entry.calls]
    known: list[Verdict] = list(verdicts(MACHINE, "default"))
    for name, _ in entry.calls:
        known[NUMBERS[name]] = AllowCall()
    without = assemble(AUDIT_ARCHES[MACHINE], known)
    full = build_filter(MACHINE, "default")
    found = answers([(program, call) for program in (full, without) for call in calls], tmp_path)
    assert PASSED not in found[: len(calls)]
    assert set(found[len(calls) :]) <= {PASSED}


def filter_of_64_bits(request: int) -> bytes:
    """Return a filter that compares all 64 bits of an ioctl's request, of which the kernel reads 32."""
    steps = [
        (0x20, 0, 0, 0),
        (0x15, 0, 5, NUMBERS["ioctl"]),
        (0x20, 0, 0, 16 + 8),
        (0x15, 0, 3, request),
        (0x20, 0, 0, 16 + 12),
        (0x15, 0, 1, 0),
        (0x06, 0, 0, RET_ERRNO | 1),
        (0x06, 0, 0, RET_ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def test_cve_2019_10063_bits_that_the_kernel_does_not_read_change_nothing(tmp_path: Path) -> None:
    """TIOCSTI with bits set above the lower 32, which Flatpak's filter did not take for TIOCSTI.
    Control: a filter that compares all 64 lets it through, and refuses it without those bits."""
    full, naive = build_filter(MACHINE, "default"), filter_of_64_bits(TIOCSTI)
    plain_call: Call = ("native", NUMBERS["ioctl"], (0, TIOCSTI))
    calls: list[Call] = [
        ("native", NUMBERS["ioctl"], (0, TIOCSTI | above << 32)) for above in (1, 0x80000000, 0xFFFFFFFF)
    ]
    assert answers([(full, call) for call in (plain_call, *calls)], tmp_path) == [ENOTTY] * 4
    assert answers([(naive, call) for call in (plain_call, *calls)], tmp_path) == [1, PASSED, PASSED, PASSED]
    assert calls[0][2][1] == TIOCSTI | ABOVE_32_BITS


KEYS: Final = """
call("a keyring", libc.syscall({keyctl}, 1, None))
call("io_uring", libc.syscall({io_uring_setup}, 4, ctypes.create_string_buffer(128)))
call("a user namespace", libc.unshare(0x10000000))
for family in (40, 38):
    try: socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_SEQPACKET)
    except OSError: continue
    won("a socket of family", family)
"""


def test_cve_2016_0728_cve_2022_29582_cve_2021_26708_the_entries_are_closed_in_a_sandbox_too(arena: Arena) -> None:
    """Join a keyring, set up io_uring, open a vsock, make a user namespace, all in a real sandbox.
    Control: without the filter and what else forbids namespaces, all of them succeed."""
    script = KEYS.format(**NUMBERS)
    assert not arena.attack(script).won
    with arena.without_filter(), arena.without(b"--disable-userns", b"--assert-userns-disabled"):
        won = arena.attack(script).won
    assert {"a keyring", "io_uring", "a user namespace", "a socket of family 40"} <= set(won)
