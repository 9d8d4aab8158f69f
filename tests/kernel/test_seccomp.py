# SPDX-License-Identifier: Apache-2.0
"""The filter in a real kernel: every refusal with its error, and each attack once more without the filter."""

from __future__ import annotations

import json
from errno import ENOSYS
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from scripts.seccomp.rules import AUDIT_ARCHES, AllowCall, Refuse, RefuseIf, assemble, numbers_of, verdicts
from tests.kernel.seccomp_box import FOREIGN, MACHINE, Box
from unspill.host.bwrap import build_filter

if TYPE_CHECKING:
    from scripts.seccomp.rules import Verdict
    from unspill.model.policy import Profile

pytestmark = [pytest.mark.kernel, pytest.mark.attack, pytest.mark.bwrap]

# Error under the default profile of what works without a filter
REFUSED: Final = {
    "add_key": "EPERM",
    "keyctl": "EPERM",
    "request_key": "EPERM",
    "unshare": "EPERM",
    "clone with NEWUSER": "EPERM",
    "clone with NEWUSER and a bit above": "EPERM",
    "open_tree": "ENOSYS",
    "io_uring_setup": "ENOSYS",
    "userfaultfd": "ENOSYS",
    "memfd_secret": "ENOSYS",
    "fallocate": "ENOTSUP",
    "io_setup": "ENOSYS",
    "perf_event_open": "EPERM",
    "kcmp": "EPERM",
    "name_to_handle_at": "EPERM",
    "fanotify_init": "EPERM",
    "set_mempolicy": "EPERM",
    "mbind": "EPERM",
    "TIOCSTI": "ENOTTY",
    "TIOCSTI with a bit above": "ENOTTY",
    "TIOCSETD": "ENOTTY",
    "socket 40": "EAFNOSUPPORT",
}
REFUSED_IF_STRICT: Final = {
    "ptrace": "EPERM",
    "process_vm_readv": "EPERM",
    "process_vm_writev": "EPERM",
    "pidfd_getfd": "EPERM",
    "personality without randomisation": "EPERM",
    "socket 1": "EAFNOSUPPORT",
    "socket 16": "EAFNOSUPPORT",
}
# What an ordinary user's call is answered without a filter, where it is not made at all
OTHERWISE: Final = {
    "clone3": ("ENOSYS", "EINVAL"),
    "fsopen": ("ENOSYS", "EPERM"),
    "move_mount": ("ENOSYS", "EPERM"),
    "socket 17": ("EAFNOSUPPORT", "EPERM"),
    "socketpair 40": ("EAFNOSUPPORT", "ENOTSUP"),
}
ALLOWED: Final = ("clone", "TIOCGWINSZ", "personality as it is", "socket 2", "socket 10", "socketpair 1")


@pytest.fixture
def box(bwrap: Path, tmp_path: Path) -> Box:
    return Box(bwrap, tmp_path)


@pytest.fixture(scope="module")
def outcomes(bwrap: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What came of every attempt without a filter and under each profile."""
    box = Box(bwrap, tmp_path_factory.mktemp("attempts"))
    return {
        "without": box.attempts(None),
        "default": box.attempts(build_filter(MACHINE, "default")),
        "strict": box.attempts(build_filter(MACHINE, "strict")),
    }


@pytest.mark.parametrize("name", REFUSED)
def test_an_attack_that_works_without_the_filter_is_refused(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    assert outcomes["without"][name] == "done"
    assert outcomes["default"][name] == outcomes["strict"][name] == REFUSED[name]


@pytest.mark.parametrize("name", REFUSED_IF_STRICT)
def test_what_works_by_default_is_refused_by_the_strict_profile(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    assert outcomes["without"][name] == outcomes["default"][name] == "done"
    assert outcomes["strict"][name] == REFUSED_IF_STRICT[name]


@pytest.mark.parametrize("name", OTHERWISE)
def test_the_filter_answers_before_the_kernel_would(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    expected, otherwise = OTHERWISE[name]
    assert outcomes["without"][name] == otherwise
    assert outcomes["default"][name] == outcomes["strict"][name] == expected


@pytest.mark.parametrize("name", ALLOWED)
def test_the_ordinary_form_of_a_call_still_works(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    assert {profile[name] for profile in outcomes.values()} == {"done"}


@pytest.mark.parametrize(("profile", "allowed"), [("default", {1, 2, 10, 16}), ("strict", {2, 10})])
def test_of_all_families_of_sockets_only_the_named_ones_open(
    profile: str, allowed: set[int], outcomes: dict[str, dict[str, str]]
) -> None:
    for number in range(46):
        assert outcomes[profile][f"socket {number}"] == ("done" if number in allowed else "EAFNOSUPPORT"), number


def refused(profile: Profile) -> dict[int, Refuse]:
    """Return what is refused whatever its arguments, by number."""
    found = enumerate(verdicts(MACHINE, profile))
    return {number: verdict for number, verdict in found if isinstance(verdict, Refuse)}


@pytest.mark.parametrize("profile", ["default", "strict"])
def test_every_refused_number_gives_its_error(profile: Profile, box: Box) -> None:
    """Those without a name too. Control: without the filter most of the named ones come as far as their arguments."""
    expected = {number: verdict.error for number, verdict in refused(profile).items()}
    assert box.errors(build_filter(MACHINE, profile), list(expected)) == expected
    bare = box.errors(None, list(expected))
    names = {number: name for name, number in numbers_of(MACHINE).items()}
    differing = {names[number] for number in expected if bare[number] != expected[number] and number in names}
    assert len(differing) >= 35, sorted(differing)


def test_each_rule_alone_is_what_refuses(box: Box) -> None:
    """Many calls are refused by the kernel with the same error: here every rule has one of its own.
    So this turns red for each rule that is taken away, and for each that has another call's number."""
    known: list[Verdict] = list(verdicts(MACHINE, "strict"))
    expected = {number: 1000 + number for number in refused("strict")}
    for number, error in expected.items():
        known[number] = Refuse(error=error, why="its own error")
    program = assemble(AUDIT_ARCHES[MACHINE], known)
    assert box.errors(program, list(expected)) == expected


@pytest.mark.parametrize("name", ["clone", "ioctl", "socket", "socketpair", "personality"])
def test_each_check_of_an_argument_alone_is_what_refuses(name: str, box: Box) -> None:
    """As before, with an error that no kernel gives. Control: without that one check nothing gives it."""
    number = numbers_of(MACHINE)[name]
    known: list[Verdict] = list(verdicts(MACHINE, "strict"))
    check = known[number]
    assert isinstance(check, RefuseIf)
    known[number] = check.replace(error=199)
    came_of = box.attempts(assemble(AUDIT_ARCHES[MACHINE], known))
    expected = {
        "clone": {"clone with NEWUSER", "clone with NEWUSER and a bit above"},
        "ioctl": {"TIOCSTI", "TIOCSTI with a bit above", "TIOCLINUX", "TIOCSETD"},
        "socket": {f"socket {family}" for family in range(46)} - {"socket 2", "socket 10"},
        "socketpair": {"socketpair 30", "socketpair 40"},
        "personality": {"personality without randomisation"},
    }
    assert {what for what, came in came_of.items() if came == "199"} == expected[name]
    known[number] = AllowCall()
    assert "199" not in box.attempts(assemble(AUDIT_ARCHES[MACHINE], known)).values()


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has these ways into the kernel")
def test_a19_no_call_gets_in_by_the_entry_for_32_bit_programs(box: Box) -> None:
    """All numbers by `int 0x80`, and the x32 bit. Control: without the filter a process makes a user namespace."""
    program = box.compile(FOREIGN)
    pid, same_pid, unshared, _ = json.loads(box.run(None, program).stdout)
    assert same_pid == pid
    assert unshared == 0
    for profile in ("default", "strict"):
        _, *results = json.loads(box.run(build_filter(MACHINE, profile), program, "all").stdout)
        assert results == [-ENOSYS] * 1027


def test_the_filter_holds_for_what_the_command_starts(box: Box) -> None:
    """Through fork, a shell and another program. Control: without the filter it works."""
    source = "import os, ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    command = ("sh", "-c", f"(setsid env -i /usr/bin/python3 -I -c '{source}')")
    assert box.run(None, *command).stdout == "0\n"
    assert box.run(build_filter(MACHINE, "default"), *command).stdout == "-1\n"
