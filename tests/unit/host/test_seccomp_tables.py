# SPDX-License-Identifier: Apache-2.0
"""The tables of numbers against two that others made: libseccomp's, and the kernel headers installed here."""

import ctypes
import platform
import re
import runpy
import subprocess
from pathlib import Path
from typing import Final

import pytest

from scripts.seccomp.numbers import KERNEL, STRETCHES
from scripts.seccomp.rules import numbers_of

ROOT: Final = Path(__file__).parents[3]
AUDIT_ARCHES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Not in every libseccomp: added to the kernel after version 2.5.4 of it
NEWER: Final = frozenset(
    """
    cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr
    lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat open_tree_attr
    file_getattr file_setattr listns rseq_slice_yield uretprobe uprobe
    """.split()
)
# What arm64 asks of the header that most machines share
ARM64_WANTS: Final = "RENAMEAT NEW_STAT SET_GET_RLIMIT TIME32_SYSCALLS SYS_CLONE3 MEMFD_SECRET".split()


class LibSeccomp:
    """The two look-ups of the C library."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libseccomp.so.2")
        self.library.seccomp_syscall_resolve_name_arch.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
        self.library.seccomp_syscall_resolve_num_arch.argtypes = (ctypes.c_uint32, ctypes.c_int)
        # Not c_char_p, which would lose the pointer that has to be freed
        self.library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
        self.free = ctypes.CDLL(None).free
        self.free.argtypes = (ctypes.c_void_p,)

    def number(self, machine: str, name: str) -> int:
        return int(self.library.seccomp_syscall_resolve_name_arch(AUDIT_ARCHES[machine], name.encode()))

    def name(self, machine: str, number: int) -> str | None:
        pointer = self.library.seccomp_syscall_resolve_num_arch(AUDIT_ARCHES[machine], number)
        if not pointer:
            return None
        try:
            return ctypes.string_at(pointer).decode()
        finally:
            self.free(pointer)


def newest(machine: str) -> int:
    return max(numbers_of(machine).values())


@pytest.mark.parametrize("machine", STRETCHES)
def test_libseccomp_gives_every_name_the_same_number(machine: str) -> None:
    library = LibSeccomp()
    numbers = numbers_of(machine)
    theirs = {name: library.number(machine, name) for name in numbers}
    unknown = {name for name, number in theirs.items() if number == -1}
    assert unknown <= NEWER
    assert {name: number for name, number in theirs.items() if name not in unknown} == {
        name: number for name, number in numbers.items() if name not in unknown
    }
    assert len(numbers) - len(unknown) > 300


@pytest.mark.parametrize("machine", STRETCHES)
def test_libseccomp_gives_every_number_the_same_name(machine: str) -> None:
    library = LibSeccomp()
    names = {number: name for name, number in numbers_of(machine).items()}
    for number in range(newest(machine) + 1):
        theirs = library.name(machine, number)
        assert theirs == names.get(number) or (theirs is None and names[number] in NEWER), number


def header_numbers(source: str, *options: str) -> dict[str, int]:
    """Return the numbers that the C preprocessor sees."""
    result = subprocess.run(
        ["gcc", "-E", "-dM", *options, "-x", "c", "-"], input=source, capture_output=True, text=True, check=True
    )
    macros: dict[str, str] = dict(re.findall(r"^#define (__NR\w+) (\w+)$", result.stdout, re.MULTILINE))
    resolved = {name: macros.get(value, value) for name, value in macros.items() if name.startswith("__NR_")}
    return {
        name.removeprefix("__NR_"): int(value)
        for name, value in resolved.items()
        if value.isdecimal() and name not in ("__NR_syscalls", "__NR_arch_specific_syscall")
    }


HEADERS: Final = {
    platform.machine(): ("#include <asm/unistd.h>", ()),
    "aarch64": ("#include <asm-generic/unistd.h>", tuple(f"-D__ARCH_WANT_{want}" for want in ARM64_WANTS)),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_installed_headers_give_every_call_the_same_number(machine: str) -> None:
    source, options = HEADERS[machine]
    theirs = header_numbers(source, *options)
    ours = numbers_of(machine)
    assert len(theirs) > 300
    # Headers may be newer than the table, but not within it
    known = {name: number for name, number in theirs.items() if number <= newest(machine)}
    assert {name: ours.get(name) for name in known} == known
    unknown = {name: number for name, number in ours.items() if name not in theirs}
    assert unknown.keys() <= NEWER


@pytest.mark.parametrize("machine", STRETCHES)
def test_no_number_has_two_names_and_gaps_are_where_the_kernel_left_them(machine: str) -> None:
    numbers = numbers_of(machine)
    assert len(set(numbers.values())) == len(numbers) == sum(len(names.split()) for _, names in STRETCHES[machine])
    gaps = set(range(newest(machine) + 1)) - set(numbers.values())
    expected = {"x86_64": {*range(337, 424)}, "aarch64": {*range(244, 260), *range(295, 424)}}
    assert gaps == expected[machine]


def test_the_generated_modules_are_as_the_generator_writes_them() -> None:
    generator = runpy.run_path(str(ROOT / "scripts" / "make_seccomp.py"))
    headers = {
        machine: "".join(f"#define __NR_{name} {number}\n" for name, number in numbers_of(machine).items())
        for machine in STRETCHES
    }
    tables = {machine: generator["read_header"](text) for machine, text in headers.items()}
    numbers = generator["HEAD_OF_NUMBERS"] + generator["render_numbers"](KERNEL, tables)
    assert numbers == (ROOT / "scripts" / "seccomp" / "numbers.py").read_text()
    programs = generator["HEAD_OF_PROGRAMS"] + generator["render_programs"]()
    assert programs == (ROOT / "src" / "unspill" / "host" / "seccomp_tables.py").read_text()


def test_the_generator_refuses_a_header_of_another_kind() -> None:
    generator = runpy.run_path(str(ROOT / "scripts" / "make_seccomp.py"))
    with pytest.raises(SystemExit, match="64-bit"):
        generator["read_header"]("#define __NR_read 0\n#define __NR_write 0\n")
