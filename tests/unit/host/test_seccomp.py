# SPDX-License-Identifier: Apache-2.0
"""The finished program against the rules, run by an interpreter that knows only what the kernel does."""

import itertools
import random
import subprocess
import sys
from errno import EAFNOSUPPORT, ENOSYS, ENOTTY, EPERM
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.host.seccomp_interpreter import ALLOW, ERRNO, JUMP, Call, check, instructions, run
from unspill.errors import HostError
from unspill.host.bwrap import build_filter
from unspill.host.seccomp_rules import (
    AUDIT_ARCHES,
    AllowCall,
    Refuse,
    RefuseIf,
    assemble,
    classify,
    numbers_of,
    program_for,
    verdicts,
)

if TYPE_CHECKING:
    from unspill.host.seccomp_rules import Verdict
    from unspill.model.policy import Profile

MACHINES: Final = ("x86_64", "aarch64")
PROFILES: "Final[tuple[Profile, ...]]" = ("default", "strict")
AUDIT_ARCH_I386, AUDIT_ARCH_ARM = 0x40000003, 0x40000028
X32_BIT = 0x40000000
# The arguments that any rule looks for, and their neighbours
TELLING: Final = (
    *(0, 1, 2, 3, 10, 16, 17, 38, 40, 0x5412, 0x5413, 0x541C, 0x5423, 0x11, 0x10000011, 0x20000),
    *(0x40049409, 0x5000943F, 0x80086601, 0xC0406618, 0xFFFFFFFF),
)

every_filter = pytest.mark.parametrize(("machine", "profile"), list(itertools.product(MACHINES, PROFILES)))


def expected(verdict: "Verdict", arguments: tuple[int, ...]) -> int:
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


@every_filter
def test_every_number_gets_the_verdict_of_the_rules(machine: str, profile: "Profile") -> None:
    program, source = build_filter(machine, profile), random.Random(4)
    newest = len(verdicts(machine, profile)) - 1
    for number in range(newest + 51):
        verdict = classify(machine, profile, number)
        cases = [(value,) * 6 for value in TELLING] + [drawn_arguments(source) for _ in range(20)]
        for arguments in cases:
            call = Call(AUDIT_ARCHES[machine], number, arguments)
            assert run(program, call)[0] == expected(verdict, arguments), (number, verdict, arguments)


@every_filter
def test_a_number_that_is_not_known_does_not_exist(machine: str, profile: "Profile") -> None:
    newest = len(verdicts(machine, profile)) - 1
    unknown = [newest + 1, 511, 512, 547, 1000, 2**31, 2**32 - 1]
    for number in unknown + [X32_BIT | number for number in range(newest + 50)]:
        assert run(build_filter(machine, profile), Call(AUDIT_ARCHES[machine], number))[0] == ERRNO | ENOSYS
        assert classify(machine, profile, number) == classify(machine, profile, -1)


@every_filter
@pytest.mark.parametrize("arch", [AUDIT_ARCH_I386, AUDIT_ARCH_ARM, 0, 0xFFFFFFFF, *AUDIT_ARCHES.values()])
def test_no_call_of_another_architecture_exists(machine: str, profile: "Profile", arch: int) -> None:
    if arch == AUDIT_ARCHES[machine]:
        arch ^= X32_BIT
    for number in range(600):
        assert run(build_filter(machine, profile), Call(arch, number))[0] == ERRNO | ENOSYS


@every_filter
def test_a_call_costs_at_most_13_instructions_or_14_with_an_argument_or_16_for_an_ioctl(
    machine: str, profile: "Profile"
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
def test_what_is_checked_in_is_what_the_rules_say(machine: str, profile: "Profile") -> None:
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


VERDICTS: "Final[tuple[Verdict, ...]]" = (
    AllowCall(),
    Refuse(error=EPERM, why="one"),
    Refuse(error=EPERM, why="another"),
    Refuse(error=ENOSYS, why="one"),
    RefuseIf(argument=0, test="has-a-bit-of", values=(0x11, 0x20000), error=EPERM, why="bits"),
    RefuseIf(argument=1, test="is-none-of", values=(0, 0x5401, 0x5402, 0xFFFFFFFF), error=ENOTTY, why="at the ends"),
    RefuseIf(argument=5, test="is-none-of", values=(1, 2, 10, 16), error=EAFNOSUPPORT, why="none of"),
)


def assert_follows(program: bytes, known: "list[Verdict]", source: random.Random) -> None:
    """Fail if a program for an architecture 7 gives any call another verdict than it has been told."""
    for number, verdict in enumerate(known):
        arguments = drawn_arguments(source)
        assert run(program, Call(7, number, arguments))[0] == expected(verdict, arguments), (number, verdict)
    assert run(program, Call(7, len(known)))[0] == ERRNO | ENOSYS


@given(st.lists(st.tuples(st.sampled_from(VERDICTS), st.integers(1, 4)), min_size=1, max_size=60), st.randoms())
def test_any_list_of_verdicts_becomes_a_program_that_follows_it(
    runs: "list[tuple[Verdict, int]]", source: random.Random
) -> None:
    known = [verdict for verdict, length in runs for _ in range(length)]
    program = assemble(7, known)
    check(program)
    assert_follows(program, known, source)


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
