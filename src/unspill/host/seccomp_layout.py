# SPDX-License-Identifier: Apache-2.0
"""Lays verdicts out as a classic BPF program: an array of `struct sock_filter`, as bwrap's `--seccomp` reads it.

It is a search tree over ranges of numbers, and so is a check of an argument: where a kernel runs the program for every
call, compares in a row cost a fifth more. What is refused is for `seccomp_rules`; a run takes the finished program from
`seccomp`.
"""

from __future__ import annotations

from errno import ENOSYS

from unspill.host.seccomp_rules import Allow, Refuse, RefuseIf, verdicts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.host.seccomp_rules import Verdict
    from unspill.model.policy import Profile


AUDIT_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Only what kernels since 5.11 can follow ahead of time: they keep a bitmap of the numbers that are always allowed
_LOAD, _JUMP, _IF_EQUAL, _IF_ABOVE, _IF_AT_LEAST, _IF_BITS, _RETURN = 0x20, 0x05, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_RET_ALLOW, _RET_ERRNO = 0x7FFF0000, 0x00050000
# How far a conditional jump reaches, and what may still be put in between
_REACH, _SPARE = 255, 2


if TYPE_CHECKING:
    # What is laid out from a number on, up to the next one's
    Range = tuple[int, Verdict]


def program_for(machine: str, profile: Profile) -> bytes:
    """Return the program for a machine, as uname names it, and a profile.

    Raises:
        HostError: unspill does not know this machine's system calls.
    """
    known = verdicts(machine, profile)
    return assemble(AUDIT_ARCHES[machine], known)


def assemble(arch: int, known: Sequence[Verdict]) -> bytes:
    """Return a program that gives call n the n-th verdict; other numbers and architectures do not exist."""
    program = _Program()
    start = program.tree(_merged(enumerate(known)))
    absent = program.give(_RET_ERRNO | ENOSYS)
    # x32 calls are those of x86_64 with bit 30 set, so they are above as well
    start = program.branch(_IF_ABOVE, len(known) - 1, absent, start)
    start = program.add(_LOAD, _NUMBER)
    absent = program.give(_RET_ERRNO | ENOSYS)
    program.branch(_IF_EQUAL, arch, start, absent)
    program.add(_LOAD, _ARCH)
    return program.to_bytes()


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges without those that the one before them covers as well."""
    found: list[Range] = []
    for first, verdict in ranges:
        if not found or (verdict is not found[-1][1] and _target(verdict) != _target(found[-1][1])):
            found.append((first, verdict))
    return found


def _target(verdict: Verdict) -> object:
    """Return what the program does for a verdict, the same for two that differ only in their reason."""
    match verdict:
        case Allow():
            return _RET_ALLOW
        case Refuse():
            return _RET_ERRNO | verdict.error
        case RefuseIf():
            return verdict.argument, verdict.test, verdict.values, verdict.error


def _values(verdict: RefuseIf) -> list[Range]:
    """Return the ranges of an argument's values, of which only a few are allowed."""
    allowed = set(verdict.values)
    starts = sorted({0, *allowed, *(value + 1 for value in allowed)} - {1 << 32})
    refused = Refuse(error=verdict.error, why=verdict.why)
    return _merged((start, Allow() if start in allowed else refused) for start in starts)


def _weight(verdict: Verdict) -> int:
    """Return how many plain verdicts one weighs: the longer its own check, the nearer to the root it has to be."""
    match verdict:
        case RefuseIf(test="is-none-of"):
            return len(_values(verdict))
        case RefuseIf():
            return 2
    return 1


def _middle(ranges: Sequence[Range]) -> int:
    """Return where to split, so that the deeper half is no deeper than it must be."""
    weights = [_weight(verdict) for _, verdict in ranges]
    total, left, best = sum(weights), 0, (sum(weights), 0, 0)
    for index, weight in enumerate(weights[:-1], start=1):
        left += weight
        heavier = max(left, total - left)
        best = min(best, ((heavier - 1).bit_length(), heavier, index))
    return best[2]


class _Program:
    """Written from its end: jumps only go forwards, so every target exists before what jumps there.

    An instruction's place is the number of instructions from it to the end, itself included.
    """

    def __init__(self) -> None:
        self._backwards: list[bytes] = []
        self._checks: dict[object, int] = {}
        self._returns: dict[int, int] = {}

    def to_bytes(self) -> bytes:
        """Return the whole program."""
        return b"".join(reversed(self._backwards))

    def add(self, code: int, operand: int, yes: int = 0, no: int = 0) -> int:
        """Put one `struct sock_filter` before all others and return its place."""
        self._backwards.append(code.to_bytes(2, "little") + bytes((yes, no)) + operand.to_bytes(4, "little"))
        return len(self._backwards)

    def branch(self, code: int, operand: int, yes: int, no: int) -> int:
        """Add a conditional jump to two places, however far away."""
        yes, no = self._near(yes), self._near(no)
        here = len(self._backwards)
        return self.add(code, operand, here - yes, here - no)

    def _near(self, place: int) -> int:
        distance = len(self._backwards) - place
        return place if distance <= _REACH - _SPARE else self.add(_JUMP, distance)

    def give(self, value: int) -> int:
        """Return the place of an instruction that returns a value; a new one where all others are far away."""
        place = self._returns.get(value, 0)
        if not place or len(self._backwards) - place > _REACH // 2:
            place = self._returns[value] = self.add(_RETURN, value)
        return place

    def tree(self, ranges: Sequence[Range]) -> int:
        """Add the search among ranges of numbers and return its place; the number is loaded."""
        if len(ranges) == 1:
            return self._leaf(ranges[0][1])
        middle = _middle(ranges)
        right = self.tree(ranges[middle:])
        left = self.tree(ranges[:middle])
        return self.branch(_IF_AT_LEAST, ranges[middle][0], right, left)

    def _leaf(self, verdict: Verdict) -> int:
        match verdict:
            case Allow():
                return self.give(_RET_ALLOW)
            case Refuse():
                return self.give(_RET_ERRNO | verdict.error)
            case RefuseIf():
                target = _target(verdict)
                if target not in self._checks:
                    self._checks[target] = self._check(verdict)
                return self._checks[target]

    def _check(self, verdict: RefuseIf) -> int:
        if verdict.test == "is-none-of":
            self.tree(_values(verdict))
        else:
            refused, allowed = self.give(_RET_ERRNO | verdict.error), self.give(_RET_ALLOW)
            for value in verdict.values:
                allowed = self.branch(_IF_BITS, value, refused, allowed)
        return self.add(_LOAD, _ARGUMENTS + 8 * verdict.argument)
