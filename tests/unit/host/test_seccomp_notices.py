# SPDX-License-Identifier: Apache-2.0
"""The filter that tells of file accesses, run by an interpreter that knows only what the kernel does."""

from __future__ import annotations

import ast
from typing import Final

import pytest

from tests.unit.host.seccomp_interpreter import ALLOW, Call, check, run
from unspill.host.first import find_interpreters, read_first_program
from unspill.host.seccomp_layout import AUDIT_ARCHES
from unspill.host.seccomp_notices import NAMING, build_notices, is_writing, naming_calls
from unspill.host.seccomp_rules import numbers_of

USER_NOTIF: Final = 0x7FC00000
AT_EMPTY_PATH: Final = 0x1000
every_machine = pytest.mark.parametrize("machine", AUDIT_ARCHES)


@every_machine
def test_exactly_the_calls_that_name_a_file_are_told(machine: str) -> None:
    program = build_notices(machine)
    check(program)
    for name, number in numbers_of(machine).items():
        said, _steps = run(program, Call(AUDIT_ARCHES[machine], number))
        assert said == (USER_NOTIF if name in NAMING else ALLOW), name


@every_machine
@pytest.mark.parametrize(("name", "argument"), [("newfstatat", 3), ("statx", 2)])
def test_what_is_asked_of_an_open_file_is_not_told(machine: str, name: str, argument: int) -> None:
    arguments = tuple(AT_EMPTY_PATH if index == argument else 0 for index in range(6))
    call = Call(AUDIT_ARCHES[machine], numbers_of(machine)[name], arguments)
    assert run(build_notices(machine), call)[0] == ALLOW


@every_machine
def test_each_call_that_is_told_can_be_read(machine: str) -> None:
    numbers = numbers_of(machine)
    assert set(naming_calls(machine)) == {numbers[name] for name in NAMING if name in numbers}
    assert all(named.path < 6 for found in NAMING.values() for named in found)


def test_an_open_that_can_change_something_is_told_from_one_that_reads() -> None:
    assert [is_writing(flags) for flags in (0, 1, 2, 0o100, 0o1000, 0o2000000)] == [
        False,
        True,
        True,
        True,
        True,
        False,
    ]


def test_the_first_program_is_understood_by_pythons_that_are_much_older() -> None:
    tree = ast.parse(read_first_program(), feature_version=(3, 7))
    imported = {
        name.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported <= {"__future__", "_signal", "_socket", "ctypes", "os", "signal", "sys", "typing"}


def test_the_first_program_imports_nothing_once_it_runs() -> None:
    tree = ast.parse(read_first_program())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert functions
    assert not any(isinstance(node, ast.Import | ast.ImportFrom) for body in functions for node in ast.walk(body))


def test_the_systems_python_comes_first() -> None:
    assert find_interpreters()[0] == b"/usr/bin/python3"
