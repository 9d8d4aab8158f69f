# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a sandbox as exceptions of a framework: none is taken for another."""

import asyncio
from typing import Any

import pytest

from unspill.adapters.aio import do_in_thread
from unspill.errors import ApplyFailed, FileError, ProjectBusy, SandboxUnavailable, UsageError


class Failed(Exception):
    """What a framework has for a sandbox that failed."""


class Missing(Exception):
    """What a framework has for a file that is not there."""


def raised_for(error: Exception, **options: Any) -> BaseException:
    """Return what a caller meets where this is raised inside."""

    def work(_cancel_fd: int) -> None:
        raise error

    with pytest.raises(Exception) as caught:
        asyncio.run(do_in_thread(work, **options))
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileError("f: it", kind="not_found"), FileNotFoundError),
        (FileError("f: it", kind="is_directory"), IsADirectoryError),
        (FileError("f: it", kind="not_a_directory"), NotADirectoryError),
        (FileError("f: it", kind="permission_denied"), PermissionError),
        (FileError("f: it", kind="exists"), FileExistsError),
        (FileError("f: it", kind="too_large"), OSError),
        (UsageError("it"), ValueError),
        (SandboxUnavailable("it"), Failed),
        (ProjectBusy("it"), ProjectBusy),
        (ApplyFailed("it"), ApplyFailed),
        (OSError(20, "it", "/secret/path"), Failed),
        (PermissionError(13, "it", "/secret/path"), Failed),
    ],
)
def test_each_error_has_one_exception_with_our_words(error: Exception, kind: type[Exception]) -> None:
    met = raised_for(error, failed=Failed, usage=ValueError)
    assert type(met) is kind
    assert "it" in str(met)
    assert "/secret/path" not in str(met)


def test_a_framework_can_have_its_own_for_a_kind_of_file_error() -> None:
    kinds = {"not_found": Missing}
    assert type(raised_for(FileError("f: it", kind="not_found"), kinds=kinds)) is Missing
    assert type(raised_for(FileError("f: it", kind="exists"), kinds=kinds)) is FileExistsError


def test_without_any_our_own_errors_stay_and_those_of_the_host_become_such() -> None:
    error = UsageError("it")
    assert raised_for(error) is error
    met = raised_for(OSError(20, "it", "/secret/path"))
    assert type(met) is SandboxUnavailable
    assert str(met) == "the sandbox failed: it"
