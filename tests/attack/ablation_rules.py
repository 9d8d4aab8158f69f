# SPDX-License-Identifier: Apache-2.0
"""The filter's table taken apart: every rule of it by itself, with a program from which only that rule is missing.

Generated from the verdicts, so that a rule which is added is here too. Nothing is loaded into a kernel here.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scripts.seccomp.rules import AUDIT_ARCHES, AllowCall, Refuse, RefuseIf, assemble, numbers_of, verdicts
from tests.attack.entries_inside import PASSED
from tests.attack.requests import REQUESTS
from unspill.host.bwrap import build_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scripts.seccomp.rules import Verdict
    from unspill.model.policy import Profile

    Call = tuple[str, int, tuple[int, ...]]

INSIDE: Final = Path(__file__).with_name("entries_inside.py")
FAMILIES: Final = 46
ABOVE_32_BITS: Final = 1 << 32
X32_BIT: Final = 1 << 30
NAMED_REQUESTS: Final = {number: name for name, number in REQUESTS.items()}
ENOSYS: Final = 38
# Where the program looks at the architecture and at the highest number, and the codes of these two jumps
ARCH_AT, ARCH_CODE, HIGHEST_AT, HIGHEST_CODE = 1, 0x15, 3, 0x25


@dataclass(frozen=True)
class Rule:
    """One rule: a call that it refuses with `error`, and the filter without it."""

    name: str
    call: Call
    error: int
    without: bytes


def answer_of(verdict: Verdict, arguments: Sequence[int]) -> int:
    """Return the error that a call gets, PASSED if it is let through."""
    match verdict:
        case AllowCall():
            return PASSED
        case Refuse():
            return verdict.error
        case RefuseIf():
            low = (arguments[verdict.argument] if verdict.argument < len(arguments) else 0) % ABOVE_32_BITS
            refused = {
                "has-a-bit-of": any(low & value for value in verdict.values),
                "is-none-of": low not in verdict.values,
            }
            return verdict.error if refused[verdict.test] else PASSED


def rules(machine: str, profile: Profile) -> list[Rule]:
    """Return every rule of a profile's filter."""
    known = verdicts(machine, profile)
    names = {number: name for name, number in numbers_of(machine).items()}
    found = list(_of_the_whole(machine, profile, len(known)))
    for number, verdict in enumerate(known):
        name = names.get(number, f"number {number}")
        for what, weaker, arguments in _weaker(verdict):
            changed = [*known[:number], weaker, *known[number + 1 :]]
            without = assemble(AUDIT_ARCHES[machine], changed)
            error = answer_of(verdict, arguments)
            found.append(Rule(f"{name}{what}", ("native", number, arguments), error, without))
    return found


def _weaker(verdict: Verdict) -> Iterator[tuple[str, Verdict, tuple[int, ...]]]:
    """Yield each part of a verdict: what it is called, the verdict without it, arguments that only it refuses."""
    match verdict:
        case Refuse():
            yield "", AllowCall(), ()
        case RefuseIf(test="has-a-bit-of", values=(mask,)):
            for bit in (1 << place for place in range(32) if mask >> place & 1):
                yield f" with {bit:#x}", verdict.replace(values=(mask & ~bit,)), _at(verdict, bit)
        case RefuseIf(test="is-none-of"):
            # Whatever is not in the list is refused: tried are all families of sockets, and what attacks begin with
            tried = dict(enumerate(map(str, range(FAMILIES)))) if verdict.argument == 0 else NAMED_REQUESTS
            for value in sorted(tried.keys() - set(verdict.values)):
                yield f" {tried[value]}", verdict.replace(values=(*verdict.values, value)), _at(verdict, value)


def _at(verdict: RefuseIf, value: int) -> tuple[int, ...]:
    return (0,) * verdict.argument + (value,)


def _of_the_whole(machine: str, profile: Profile, known: int) -> Iterator[Rule]:
    """Yield the rules for what is in no table: other architectures, and numbers above the newest known."""
    full = build_filter(machine, profile)
    without_highest = without_jump(full, HIGHEST_AT, HIGHEST_CODE, keep="no")
    yield Rule("numbers above the newest", ("native", known, ()), ENOSYS, without_highest)
    yield Rule("numbers with a sign", ("native", 2**31 + 1, ()), ENOSYS, without_highest)
    if machine == "x86_64":
        yield Rule("numbers of x32", ("native", X32_BIT | 39, ()), ENOSYS, without_highest)
        without_arch = without_jump(full, ARCH_AT, ARCH_CODE, keep="yes")
        # getpid has the number 20 by that entry, which is writev by the native one
        yield Rule("another architecture", ("int80", 20, ()), ENOSYS, without_arch)


def without_jump(program: bytes, at: int, code: int, *, keep: str) -> bytes:
    """Return a program in which one jump goes the same way whatever its test says."""
    step = bytearray(program[8 * at : 8 * at + 8])
    assert int.from_bytes(step[:2], "little") == code, "the program begins otherwise than it did"
    step[2:4] = bytes([step[2] if keep == "yes" else step[3]]) * 2
    return program[: 8 * at] + bytes(step) + program[8 * at + 8 :]


def answers(pairs: Sequence[tuple[bytes, Call]], scratch: Path) -> list[int]:
    """Return what the kernel says to each call under the program beside it, PASSED if the program lets it through."""
    asked = scratch / "pairs.json"
    asked.write_text(json.dumps([(program.hex(), call) for program, call in pairs]))
    words: list[str | Path] = ["/usr/bin/python3", "-I", INSIDE, "judged", asked]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=55)
    found: list[int] = json.loads(told.stdout)
    return found
