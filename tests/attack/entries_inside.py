# SPDX-License-Identifier: Apache-2.0
"""Makes system calls by every entry of the kernel, under a filter or without one, and prints as JSON who answered.

No call that a filter lets through is ever made: a second filter, which looks for a mark in the sixth argument, has it
answered with an error that no kernel gives. So every number can be tried, those that end a process or a machine too.

entries_inside.py told CALLS MARK  each call under the filter that this process has: its error, PASSED if let through;
                                   somebody outside answers (`entries_outside.py`), who finds this process by the mark
entries_inside.py judged FILE      the same for (program, call) pairs, each under its own program and nothing else
"""

import ctypes
import json
import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import Final

PASSED, MARK = 1999, 0x756E7370
PR_SET_NO_NEW_PRIVS, SET_MODE_FILTER, NEW_LISTENER = 38, 1, 8
RET_ALLOW, RET_ERRNO, RET_USER_NOTIF = 0x7FFF0000, 0x00050000, 0x7FC00000
# Where the one outside finds the descriptor by which the kernel tells
LISTENER: Final = 63
SECCOMP: Final = {"x86_64": 317, "aarch64": 277}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
PAGES: Final[list[mmap.mmap]] = []

# Both take the address of seven words: the number and six arguments. The mark must not stay in a register, where the
# next call of somebody else would have it as an argument.
#   push rbx; mov rbx, rdi; load rax, rdi, rsi, rdx, r10, r8, r9; syscall; xor r9d, r9d; pop rbx; ret
NATIVE: Final = bytes.fromhex("534889fb488b03488b7b08488b7310488b53184c8b53204c8b43284c8b4b300f054531c95bc3")
#   push rbx, rbp; load eax, ebx, ecx, edx, esi, ebp, edi; int 0x80; cdqe; pop rbp, rbx; ret
INT80: Final = bytes.fromhex("5355488b078b5f088b4f108b57188b77208b6f308b7f28cd8048985d5bc3")


def routine(code: bytes) -> Callable[[int], int]:
    """Return machine code as a function of one address; it lets other threads go on."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    PAGES.append(page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(address)


def by_the_c_library(address: int) -> int:
    """Make a call on a machine that has no code here."""
    words = (ctypes.c_ulong * 7).from_address(address)
    result = int(libc.syscall(*map(ctypes.c_ulong, words)))
    return -ctypes.get_errno() if result == -1 else result


def entries() -> dict[str, Callable[[int], int]]:
    """Return the ways into this machine's kernel by name."""
    if os.uname().machine != "x86_64":
        return {"native": by_the_c_library}
    return {"native": routine(NATIVE), "int80": routine(INT80)}


def error_of(enter: Callable[[int], int], number: int, arguments: list[int]) -> int:
    """Make a marked call and return its error; one that is really made ends this program."""
    words = (ctypes.c_ulong * 7)(number, *arguments[:5], *(0,) * (5 - len(arguments[:5])), MARK)
    result = enter(ctypes.addressof(words))
    if not -4095 <= result < 0:
        sys.exit(f"number {number} was really called: {result}")
    return -result


def observer(answer: int) -> bytes:
    """Return a filter that gives one answer to marked calls of any architecture, and allows all others."""
    sixth = 16 + 8 * 5
    steps = [(0x20, 0, 0, sixth), (0x15, 0, 1, MARK), (0x06, 0, 0, answer), (0x06, 0, 0, RET_ALLOW)]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def load(program: bytes, flags: int = 0) -> int:
    """Load a filter for this thread and return what the kernel says.

    Raises:
        OSError: the kernel does not take it.
    """
    space = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(space))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    result = int(libc.syscall(SECCOMP[os.uname().machine], SET_MODE_FILTER, flags, header))
    if result < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return result


def told(calls: "list[tuple[str, int, list[int]]]") -> "list[int]":
    """Return the error of each call under the filter that this process was started with."""
    ways = entries()
    # An answer weighs less than any refusal
    os.dup2(load(observer(RET_USER_NOTIF), NEW_LISTENER), LISTENER)
    return [error_of(ways[entry], number, arguments) for entry, number, arguments in calls]


def judged(pairs: "list[tuple[str, tuple[str, int, list[int]]]]") -> "list[int]":
    """Return the error of each call under a program of its own, in a process of its own."""
    ways, found = entries(), []
    for program, (entry, number, arguments) in pairs:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            # Of two errors the kernel takes the younger filter's, so this one answers only what the other allows
            load(observer(RET_ERRNO | PASSED))
            load(bytes.fromhex(program))
            os.write(write, b"%d" % error_of(ways[entry], number, arguments))
            os._exit(0)
        os.close(write)
        found.append(int(os.read(read, 16)))
        os.close(read)
        os.waitpid(child, 0)
    return found


if __name__ == "__main__":
    mode, given = sys.argv[1:3]
    if mode == "told":
        print(json.dumps(told(json.loads(given))))
    else:
        with open(given) as file:
            print(json.dumps(judged(json.load(file))))
