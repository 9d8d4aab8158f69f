# SPDX-License-Identifier: Apache-2.0
"""The rules by name: what is refused with which error, on which machine, in which profile."""

import itertools
import re
from errno import EAFNOSUPPORT, ENOSYS, ENOTTY, EPERM, errorcode
from typing import TYPE_CHECKING, Final

import pytest

from unspill.host import seccomp_rules
from unspill.host.seccomp_rules import AllowCall, Refuse, RefuseIf, classify, numbers_of, verdicts

if TYPE_CHECKING:
    from unspill.model.policy import Profile

MACHINES: Final = ("x86_64", "aarch64")
PROFILES: "Final[tuple[Profile, ...]]" = ("default", "strict")

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
        listns io_uring_setup io_uring_enter io_uring_register userfaultfd memfd_secret file_setattr
        _sysctl get_kernel_syms nfsservctl getpmsg putpmsg afs_syscall tuxcall security vserver epoll_ctl_old
        epoll_wait_old set_thread_area get_thread_area
    """.split(),
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


def errors(machine: str, profile: "Profile") -> dict[str, int]:
    """Return the error of each call that is refused whatever its arguments."""
    known = verdicts(machine, profile)
    found = {name: known[number] for name, number in numbers_of(machine).items()}
    return {name: verdict.error for name, verdict in found.items() if isinstance(verdict, Refuse)}


@every_filter
def test_exactly_the_listed_calls_are_refused(machine: str, profile: "Profile") -> None:
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
def test_calls_that_are_judged_by_an_argument(machine: str, profile: "Profile") -> None:
    known, numbers = verdicts(machine, profile), numbers_of(machine)
    found = {name: known[numbers[name]] for name in numbers if isinstance(known[numbers[name]], RefuseIf)}
    expected = CHECKED | ({"personality": EPERM} if profile == "strict" else {})
    assert {name: verdict.error for name, verdict in found.items() if isinstance(verdict, RefuseIf)} == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_a_family_of_sockets_is_allowed_by_name_only(machine: str) -> None:
    def families(profile: "Profile", name: str) -> tuple[int, ...]:
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
def test_both_machines_judge_a_call_alike(profile: "Profile") -> None:
    numbers = [numbers_of(machine) for machine in MACHINES]
    for name in numbers[0].keys() & numbers[1].keys():
        first, second = (classify(machine, profile, numbers_of(machine)[name]) for machine in MACHINES)
        assert first == second, name


@every_filter
def test_a_number_without_a_name_does_not_exist(machine: str, profile: "Profile") -> None:
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
