# SPDX-License-Identifier: Apache-2.0
"""The rules of the filter by name, the finished program against them, and the list of ioctl requests."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from errno import EAFNOSUPPORT, ENOSYS, ENOTTY, EOPNOTSUPP, EPERM, errorcode
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.seccomp import rules as seccomp_rules
from scripts.seccomp.rules import (
    AUDIT_ARCHES,
    IOCTLS,
    AllowCall,
    Refuse,
    RefuseIf,
    assemble,
    classify,
    numbers_of,
    program_for,
    verdicts,
)
from tests.attack.requests import REQUESTS
from tests.unit.host.seccomp_interpreter import ALLOW, ERRNO, JUMP, Call, check, instructions, run, said_of_values
from unspill.errors import HostError
from unspill.host.bwrap import build_filter

if TYPE_CHECKING:
    from scripts.seccomp.rules import Verdict
    from unspill.model.policy import Profile

MACHINES: Final = ("x86_64", "aarch64")
PROFILES: Final[tuple[Profile, ...]] = ("default", "strict")

REFUSED: Final = {
    EPERM: """
        add_key keyctl request_key unshare setns mount umount2 pivot_root chroot syslog acct quotactl quotactl_fd
        swapon swapoff reboot kexec_load kexec_file_load create_module init_module finit_module delete_module
        query_module open_by_handle_at name_to_handle_at fanotify_init bpf perf_event_open move_pages mbind
        set_mempolicy set_mempolicy_home_node migrate_pages kcmp modify_ldt uselib ustat lookup_dcookie iopl ioperm
        settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
    """.split(),
    ENOSYS: """
        clone3 open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr statmount listmount
        listns io_uring_setup io_uring_enter io_uring_register userfaultfd memfd_secret file_setattr io_setup
        _sysctl get_kernel_syms nfsservctl getpmsg putpmsg afs_syscall tuxcall security vserver epoll_ctl_old
        epoll_wait_old set_thread_area get_thread_area
    """.split(),
    EOPNOTSUPP: ["fallocate"],
}
STRICT: Final = "ptrace process_vm_readv process_vm_writev pidfd_getfd".split()
CHECKED: Final = {"clone": EPERM, "ioctl": ENOTTY, "socket": EAFNOSUPPORT, "socketpair": EAFNOSUPPORT}
# All that were added since 5.1, read one by one: a number that a newer kernel brings has to be judged before it
# can be put here
ALLOWED_SINCE_5_1: Final = """
    pidfd_send_signal pidfd_open close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2
    landlock_create_ruleset landlock_add_rule landlock_restrict_self process_mrelease futex_waitv cachestat fchmodat2
    map_shadow_stack futex_wake futex_wait futex_requeue lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
    setxattrat getxattrat listxattrat removexattrat file_getattr rseq_slice_yield
""".split()

every_filter = pytest.mark.parametrize(("machine", "profile"), list(itertools.product(MACHINES, PROFILES)))


def errors(machine: str, profile: Profile) -> dict[str, int]:
    """Return the error of each call that is refused whatever its arguments."""
    known = verdicts(machine, profile)
    found = {name: known[number] for name, number in numbers_of(machine).items()}
    return {name: verdict.error for name, verdict in found.items() if isinstance(verdict, Refuse)}


@every_filter
def test_exactly_the_listed_calls_are_refused(machine: str, profile: Profile) -> None:
    listed = {name: error for error, names in REFUSED.items() for name in names}
    if profile == "strict":
        listed |= dict.fromkeys(STRICT, EPERM)
    assert errors(machine, profile) == {name: listed[name] for name in listed if name in numbers_of(machine)}


def test_every_listed_call_is_one_of_some_machine() -> None:
    known = {name for machine in MACHINES for name in numbers_of(machine)}
    assert {name for names in REFUSED.values() for name in names} <= known
    tables = seccomp_rules._REFUSED + seccomp_rules._REFUSED_IF_STRICT
    named = [name for _, _, names in tables for name in names.split(" ")]
    assert set(named) <= known
    assert len(named) == len(set(named))


@every_filter
def test_calls_that_are_judged_by_an_argument(machine: str, profile: Profile) -> None:
    known, numbers = verdicts(machine, profile), numbers_of(machine)
    found = {name: known[numbers[name]] for name in numbers if isinstance(known[numbers[name]], RefuseIf)}
    expected = CHECKED | ({"personality": EPERM} if profile == "strict" else {})
    assert {name: verdict.error for name, verdict in found.items() if isinstance(verdict, RefuseIf)} == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_a_family_of_sockets_is_allowed_by_name_only(machine: str) -> None:
    def families(profile: Profile, name: str) -> tuple[int, ...]:
        verdict = classify(machine, profile, numbers_of(machine)[name])
        assert isinstance(verdict, RefuseIf)
        assert (verdict.argument, verdict.test) == (0, "is-none-of")
        return verdict.values

    assert families("default", "socket") == families("default", "socketpair") == (1, 2, 10, 16)
    assert families("strict", "socket") == (2, 10)
    # A pair is connected to itself alone, and every event loop has one
    assert 1 in families("strict", "socketpair")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_strict_profile_allows_nothing_that_the_default_refuses(machine: str) -> None:
    for usual, strict in zip(verdicts(machine, "default"), verdicts(machine, "strict"), strict=True):
        assert isinstance(usual, AllowCall) or type(usual) is type(strict), (usual, strict)


@pytest.mark.parametrize("profile", PROFILES)
def test_both_machines_judge_a_call_alike(profile: Profile) -> None:
    numbers = [numbers_of(machine) for machine in MACHINES]
    for name in numbers[0].keys() & numbers[1].keys():
        first, second = (classify(machine, profile, numbers_of(machine)[name]) for machine in MACHINES)
        assert first == second, name


@every_filter
def test_a_number_without_a_name_does_not_exist(machine: str, profile: Profile) -> None:
    named = set(numbers_of(machine).values())
    unnamed = [number for number in range(len(verdicts(machine, profile))) if number not in named]
    assert unnamed
    for number in unnamed:
        verdict = classify(machine, profile, number)
        assert isinstance(verdict, Refuse), number
        assert verdict.error == ENOSYS, number


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_added_since_5_1_has_been_judged(machine: str) -> None:
    new = {name for name, number in numbers_of(machine).items() if number >= 424}
    assert new - errors(machine, "default").keys() == set(ALLOWED_SINCE_5_1)


def test_each_refusal_gives_a_reason_and_a_known_error() -> None:
    for machine, profile in itertools.product(MACHINES, PROFILES):
        for verdict in verdicts(machine, profile):
            if not isinstance(verdict, AllowCall):
                assert re.search(r"\w \w", verdict.why) or verdict.why == "obsolete"
                assert verdict.error in errorcode


AUDIT_ARCH_I386, AUDIT_ARCH_ARM = 0x40000003, 0x40000028
X32_BIT = 0x40000000
# The arguments that any rule looks for, and their neighbours
TELLING: Final = (
    *(0, 1, 2, 3, 10, 16, 17, 38, 40, 0x5412, 0x5413, 0x541C, 0x5423, 0x11, 0x10000011, 0x20000),
    *(0x40049409, 0x5000943F, 0x80086601, 0xC0406618, 0xFFFFFFFF),
)


def expected(verdict: Verdict, arguments: tuple[int, ...]) -> int:
    """Return what a verdict means for a call, as the kernel's return value."""
    match verdict:
        case AllowCall():
            return ALLOW
        case Refuse():
            return ERRNO | verdict.error
        case RefuseIf():
            low = arguments[verdict.argument] % 2**32
            holds = {
                "has-a-bit-of": any(low & value for value in verdict.values),
                "is-none-of": low not in verdict.values,
            }
            return ERRNO | verdict.error if holds[verdict.test] else ALLOW


def drawn_arguments(source: random.Random) -> tuple[int, ...]:
    """Return six arguments, often telling ones, sometimes with bits above the lower 32."""
    low = [source.choice(TELLING) if source.random() < 0.8 else source.getrandbits(32) for _ in range(6)]
    high = [source.getrandbits(32) if source.random() < 0.3 else 0 for _ in range(6)]
    return tuple(one | other << 32 for one, other in zip(low, high, strict=True))


@pytest.mark.any_python
@every_filter
def test_every_number_gets_the_verdict_of_the_rules(machine: str, profile: Profile) -> None:
    program, source = build_filter(machine, profile), random.Random(4)
    newest = len(verdicts(machine, profile)) - 1
    for number in range(newest + 51):
        verdict = classify(machine, profile, number)
        cases = [(value,) * 6 for value in TELLING] + [drawn_arguments(source) for _ in range(20)]
        for arguments in cases:
            call = Call(AUDIT_ARCHES[machine], number, arguments)
            assert run(program, call)[0] == expected(verdict, arguments), (number, verdict, arguments)


@pytest.mark.any_python
@every_filter
def test_a_number_that_is_not_known_does_not_exist(machine: str, profile: Profile) -> None:
    newest = len(verdicts(machine, profile)) - 1
    unknown = [newest + 1, 511, 512, 547, 1000, 2**31, 2**32 - 1]
    for number in unknown + [X32_BIT | number for number in range(newest + 50)]:
        assert run(build_filter(machine, profile), Call(AUDIT_ARCHES[machine], number))[0] == ERRNO | ENOSYS
        assert classify(machine, profile, number) == classify(machine, profile, -1)


@every_filter
@pytest.mark.parametrize("arch", [AUDIT_ARCH_I386, AUDIT_ARCH_ARM, 0, 0xFFFFFFFF, *AUDIT_ARCHES.values()])
def test_no_call_of_another_architecture_exists(machine: str, profile: Profile, arch: int) -> None:
    if arch == AUDIT_ARCHES[machine]:
        arch ^= X32_BIT
    for number in range(600):
        assert run(build_filter(machine, profile), Call(arch, number))[0] == ERRNO | ENOSYS


@every_filter
def test_a_call_costs_at_most_13_instructions_or_14_with_an_argument_or_16_for_an_ioctl(
    machine: str, profile: Profile
) -> None:
    program, arch = build_filter(machine, profile), AUDIT_ARCHES[machine]
    ioctl = numbers_of(machine)["ioctl"]
    for number, verdict in enumerate(verdicts(machine, profile)):
        values = verdict.values if isinstance(verdict, RefuseIf) else ()
        near = {(value + step) % 2**32 for value in (0, *values) for step in (-1, 0, 1)}
        steps = max(run(program, Call(arch, number, (value,) * 6))[1] for value in near)
        bound = 16 if number == ioctl else 14 if values else 13
        assert steps <= bound, (number, verdict, steps)


@every_filter
def test_what_is_checked_in_is_what_the_rules_say(machine: str, profile: Profile) -> None:
    program = build_filter(machine, profile)
    assert program == program_for(machine, profile), "run scripts/make_seccomp.py"
    assert build_filter(machine, profile) is program
    check(program)


@pytest.mark.parametrize("machine", ["i686", "armv8l", "riscv64", "aarch64_be", ""])
def test_an_unknown_machine_is_refused_with_a_remedy(machine: str) -> None:
    for function in (build_filter, program_for):
        with pytest.raises(HostError, match=r"system calls?\b") as caught:
            function(machine, "default")
        assert "x86_64, aarch64" in caught.value.remedy


VERDICTS: Final[tuple[Verdict, ...]] = (
    AllowCall(),
    Refuse(error=EPERM, why="one"),
    Refuse(error=EPERM, why="another"),
    Refuse(error=ENOSYS, why="one"),
    RefuseIf(argument=0, test="has-a-bit-of", values=(0x11, 0x20000), error=EPERM, why="bits"),
    RefuseIf(argument=1, test="is-none-of", values=(0, 0x5401, 0x5402, 0xFFFFFFFF), error=ENOTTY, why="at the ends"),
    RefuseIf(argument=5, test="is-none-of", values=(1, 2, 10, 16), error=EAFNOSUPPORT, why="none of"),
)


def assert_follows(program: bytes, known: list[Verdict], source: random.Random) -> None:
    """Fail if a program for an architecture 7 gives any call another verdict than it has been told."""
    for number, verdict in enumerate(known):
        arguments = drawn_arguments(source)
        assert run(program, Call(7, number, arguments))[0] == expected(verdict, arguments), (number, verdict)
    assert run(program, Call(7, len(known)))[0] == ERRNO | ENOSYS


@pytest.mark.any_python
@given(st.lists(st.tuples(st.sampled_from(VERDICTS), st.integers(1, 4)), min_size=1, max_size=60), st.randoms())
def test_any_list_of_verdicts_becomes_a_program_that_follows_it(
    runs: list[tuple[Verdict, int]], source: random.Random
) -> None:
    known = [verdict for verdict, length in runs for _ in range(length)]
    program = assemble(7, known)
    check(program)
    assert_follows(program, known, source)


@pytest.mark.any_python
@pytest.mark.parametrize("kinds", [2, 5, 7])
def test_a_program_longer_than_a_jump_reaches_is_still_right(kinds: int) -> None:
    source = random.Random(kinds)
    known = [VERDICTS[(number * 3 + number // 7) % kinds] for number in range(1700)]
    program = assemble(7, known)
    check(program)
    assert any(code == JUMP for code, _, _, _ in instructions(program))
    assert_follows(program, known, source)


def test_a_run_does_not_load_the_rules() -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from unspill.host.bwrap import build_filter; build_filter('x86_64', 'default')\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert {name for name in loaded.split() if "seccomp" in name} == {"unspill.host.seccomp_tables"}


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

every_ioctl_filter = pytest.mark.parametrize(("machine", "profile"), list(itertools.product(AUDIT_ARCHES, PROFILES)))


def header_numbers(names: Iterable[str], scratch: Path) -> dict[str, int]:
    """Return the numbers that the C compiler finds in the installed headers."""
    lines = ["#include <stdio.h>", *(f"#include <{header}>" for header in HEADERS), "int main(void) {"]
    lines += [f'printf("{name} %u\\n", (unsigned){name});' for name in names]
    program = scratch / "numbers"
    subprocess.run(["gcc", "-o", program, "-x", "c", "-"], input="\n".join([*lines, "}"]), text=True, check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", printed)}


def said(machine: str, profile: Profile, request: int) -> int:
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


@every_ioctl_filter
def test_of_all_32_bit_numbers_exactly_the_listed_ones_pass(machine: str, profile: Profile) -> None:
    """Every direction, size, type and number: 2**32 requests, as the ranges between which the program tells apart."""
    call = Call(AUDIT_ARCHES[machine], numbers_of(machine)["ioctl"])
    ranges = said_of_values(build_filter(machine, profile), call, argument=1)
    assert [first for first, _, _ in ranges] == [0, *(last + 1 for _, last, _ in ranges[:-1])]
    assert ranges[-1][1] == 2**32 - 1
    passing = [range(first, last + 1) for first, last, answer in ranges if answer == ALLOW]
    assert sum(map(len, passing)) == len(ALLOWED)
    assert list(itertools.chain(*passing)) == sorted(ALLOWED.values())
    assert {answer for _, _, answer in ranges} == {ALLOW, ERRNO | ENOTTY}


@pytest.mark.any_python
@every_ioctl_filter
def test_the_ranges_are_what_single_numbers_get(machine: str, profile: Profile) -> None:
    source, listed = random.Random(6), set(ALLOWED.values())
    near = {number ^ 1 << bit for number in listed for bit in range(32)}
    for request in listed | near | {source.getrandbits(32) for _ in range(2000)}:
        assert said(machine, profile, request) == (ALLOW if request in listed else ERRNO | ENOTTY), hex(request)


@every_ioctl_filter
def test_bits_that_the_kernel_does_not_read_change_nothing(machine: str, profile: Profile) -> None:
    for above, number in itertools.product(ABOVE, ALLOWED.values()):
        assert said(machine, profile, above | number) == ALLOW, hex(above | number)
        assert said(machine, profile, above | number ^ 1 << 28) == ERRNO | ENOTTY, hex(above | number)


@every_ioctl_filter
def test_what_could_harm_the_person_is_refused_by_name(machine: str, profile: Profile, tmp_path: Path) -> None:
    numbers = header_numbers(DANGEROUS, tmp_path)
    assert numbers.keys() == set(DANGEROUS)
    passing = [name for name, number in numbers.items() if said(machine, profile, number) == ALLOW]
    assert passing == []
