# SPDX-License-Identifier: Apache-2.0
"""What a caller of the library chooses of what is held, as a Selection."""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.model.change import Selection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def to_selection(given: Selection | Sequence[str | bytes]) -> Selection:
    """Return a list of paths as a Selection.

    Raises:
        UsageError: it is one text, whose letters would be taken for paths.
    """
    if isinstance(given, Selection):
        return given
    if isinstance(given, str | bytes):
        raise UsageError("a selection is a list of paths, not one text", remedy="Give a list, or a Selection.")
    return Selection(
        paths=tuple(path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape") for path in given)
    )
