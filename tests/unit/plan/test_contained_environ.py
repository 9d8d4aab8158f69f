# SPDX-License-Identifier: Apache-2.0
"""The variables of a command in container mode."""

import pytest

from unspill.errors import UsageError
from unspill.plan.environ import contained_environ

FIXED = {
    b"HOME": b"/project",
    b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/project/.packages/bin",
    b"PIP_TARGET": b"/project/.packages",
    b"PYTHONPATH": b"/project/.packages",
    b"PYTHONDONTWRITEBYTECODE": b"1",
    b"TMPDIR": b"/tmp",
    b"LANG": b"C.UTF-8",
}


def test_nothing_of_the_caller_comes_in_but_the_terminal() -> None:
    outside = {b"AWS_SECRET_ACCESS_KEY": b"x", b"LD_PRELOAD": b"/x.so", b"PATH": b"/evil", b"TERM": b"xterm"}
    assert contained_environ(b"/project", (), outside, ()) == FIXED | {b"TERM": b"xterm"}


def test_what_the_person_names_comes_in_and_what_the_caller_sets_is_last() -> None:
    outside = {b"MY_VAR": b"1", b"OTHER": b"2"}
    found = contained_environ(b"/project", ("MY_VAR",), outside, ((b"LANG", b"C"), (b"X", b"3")))
    assert found == FIXED | {b"MY_VAR": b"1", b"LANG": b"C", b"X": b"3"}


def test_what_the_person_names_by_its_beginning_comes_in_as_in_a_sandbox() -> None:
    outside = {b"FOO_A": b"1", b"FOO_TOKEN": b"2", b"LD_PRELOAD": b"3", b"OTHER": b"4"}
    assert contained_environ(b"/project", ("FOO_*", "LD_*"), outside, ()) == FIXED | {b"FOO_A": b"1"}


def test_a_variable_that_never_enters_a_sandbox_is_refused() -> None:
    with pytest.raises(UsageError, match="LD_PRELOAD"):
        contained_environ(b"/project", (), {}, ((b"LD_PRELOAD", b"/x.so"),))
