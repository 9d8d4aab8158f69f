# SPDX-License-Identifier: Apache-2.0
"""A kernel's view of a filter: checks a classic BPF program as the kernel would and runs it on one call.

Written from the kernel's documentation of the instructions, not from how unspill assembles them.
"""

import struct
from dataclasses import dataclass
from typing import Final

ALLOW: Final = 0x7FFF0000
ERRNO: Final = 0x00050000
LOAD, JUMP, RETURN, BITS = 0x20, 0x05, 0x06, 0x45
TESTS: Final = {
    0x15: lambda value, operand: value == operand,
    0x25: lambda value, operand: value > operand,
    0x35: lambda value, operand: value >= operand,
    0x45: lambda value, operand: value & operand != 0,
}


@dataclass(frozen=True)
class Call:
    """What a filter is given of a system call: `struct seccomp_data`."""

    arch: int
    number: int
    arguments: tuple[int, ...] = (0,) * 6

    def packed(self) -> bytes:
        return struct.pack("<IIQ6Q", self.number & 0xFFFFFFFF, self.arch, 0, *self.arguments)


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    """Return the code, both jump offsets and the operand of each instruction."""
    return list(struct.iter_unpack("<HBBI", program))


def check(program: bytes) -> None:
    """Fail if the kernel would not take the program."""
    found = instructions(program)
    assert 0 < len(found) <= 4096
    for index, (code, yes, no, operand) in enumerate(found):
        if code in TESTS:
            assert index + 1 + max(yes, no) < len(found), index
        elif code == JUMP:
            assert index + 1 + operand < len(found), index
        elif code == LOAD:
            assert operand % 4 == 0, index
            assert operand < 64, index
        else:
            assert code == RETURN, (index, code)
    assert found[-1][0] == RETURN


def run(program: bytes, call: Call) -> tuple[int, int]:
    """Return what the program says about a call, and after how many instructions."""
    found, seen = instructions(program), call.packed()
    accumulator, index, steps = 0, 0, 0
    while True:
        code, yes, no, operand = found[index]
        index, steps = index + 1, steps + 1
        if code == LOAD:
            [accumulator] = struct.unpack_from("<I", seen, operand)
        elif code == JUMP:
            index += operand
        elif code == RETURN:
            return operand, steps
        else:
            index += yes if TESTS[code](accumulator, operand) else no


def said_of_values(program: bytes, call: Call, argument: int) -> list[tuple[int, int, int]]:
    """Return what the program says for every 32-bit value of an argument: the first and last of a range, and that.

    Fails if the program looks at the upper half of the argument or at single bits of it.
    """
    found, seen, said = instructions(program), call.packed(), []
    lower = 16 + 8 * argument
    # Where to go on, and what the accumulator may hold there
    waiting = [(0, 0, 0)]
    while waiting:
        index, low, high = waiting.pop()
        code, yes, no, operand = found[index]
        if code == LOAD:
            assert operand != lower + 4, "the kernel does not read the upper half"
            [word] = struct.unpack_from("<I", seen, operand)
            waiting.append((index + 1, 0, 2**32 - 1) if operand == lower else (index + 1, word, word))
        elif code == JUMP:
            waiting.append((index + 1 + operand, low, high))
        elif code == RETURN:
            said.append((low, high, operand))
        else:
            assert code != BITS or low == high, "single bits make no ranges"
            # The value is in one of these: below the operand, the operand itself, above it
            for first, last in ((low, min(high, operand - 1)), (operand, operand), (max(low, operand + 1), high)):
                if low <= first <= last <= high:
                    waiting.append((index + 1 + (yes if TESTS[code](first, operand) else no), first, last))
    return sorted(said)
