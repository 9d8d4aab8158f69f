# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a sandbox as a framework's own exceptions: errors of files are Python's, the rest is as it says.

Our own failure is never taken for one of the command or of its files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from unspill.adapters.answering import own_failure
from unspill.adapters.told import failure_text
from unspill.errors import ApplyFailed, FileError, ProjectBusy, UnspillError, UsageError
from unspill.sandbox.asynchronous import call_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Raised = Callable[[str], Exception]

Found = TypeVar("Found")
_OF_FILES: dict[str, Raised] = {
    "not_found": FileNotFoundError,
    "is_directory": IsADirectoryError,
    "not_a_directory": NotADirectoryError,
    "permission_denied": PermissionError,
    "exists": FileExistsError,
}


async def do_in_thread(
    work: Callable[[int], Found],
    *,
    failed: Raised | None = None,
    usage: Raised | None = None,
    kinds: Mapping[str, Raised] = _OF_FILES,
) -> Found:
    """Do something that takes a `cancel_fd`, without blocking the event loop; cancelling the task cancels it.

    Args:
        work: What to do.
        failed: Makes what is raised where the sandbox failed, from a text; by default that is our own error.
        usage: Makes what is raised where the caller did something wrong; by default our own error.
        kinds: Makes what is raised for some kinds of a FileError, instead of Python's own.
    """
    try:
        return await call_in_thread(work)
    except FileError as error:
        made = kinds.get(error.kind) or _OF_FILES.get(error.kind, OSError)
        raise made(failure_text(error)) from error
    except (ApplyFailed, ProjectBusy):
        # Another try may go well
        raise
    except UnspillError as error:
        make = usage if isinstance(error, UsageError) else failed
        if make is None:
            raise
        raise make(failure_text(error)) from error
    except OSError as error:
        ours = own_failure(error)
        raise (ours if failed is None else failed(failure_text(ours))) from error
