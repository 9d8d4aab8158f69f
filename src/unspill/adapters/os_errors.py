# SPDX-License-Identifier: Apache-2.0
"""What a failed file operation of a sandbox is in Python's own words, for frameworks that expect those."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.errors import FileError

_KINDS: dict[str, type[OSError]] = {
    "not_found": FileNotFoundError,
    "is_directory": IsADirectoryError,
    "not_a_directory": NotADirectoryError,
    "permission_denied": PermissionError,
    "exists": FileExistsError,
}


def to_os_error(error: FileError) -> OSError:
    """Return the builtin exception for what was wrong, with our message and what would help."""
    return _KINDS.get(error.kind, OSError)(" ".join(filter(None, (error.message, error.remedy))))
