# SPDX-License-Identifier: Apache-2.0
"""What could not be carried over exactly, collected for a person to read.

Bounded: of each sort the first few paths and the number of all. Names can do no harm to a terminal.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Sort = Literal["device", "unreadable", "moving", "attribute", "made device", "lost attribute", "deleted unseen"]

SHOWN_PATHS = 5
SHOWN_BYTES = 200

TEXTS: dict[Sort, str] = {
    "device": "devices, which are not copied",
    "unreadable": "not readable, so the command saw an empty stand-in",
    "moving": "changed while it was copied",
    "attribute": "extended attributes for which the copy has no room",
    "made device": "device nodes made by the command, which a layer can't hold; dropped",
    "lost attribute": "extended attributes of the command for which the layer has no room; dropped",
    "deleted unseen": "deleted by the command, although what is in it could not be copied",
}


class Findings:
    """The findings of one fill or one reduction."""

    def __init__(self) -> None:
        self._counts: dict[Sort, int] = {}
        self._paths: dict[Sort, list[str]] = {}

    def add(self, sort: Sort, path: bytes) -> None:
        self._counts[sort] = self._counts.get(sort, 0) + 1
        paths = self._paths.setdefault(sort, [])
        if len(paths) < SHOWN_PATHS:
            paths.append(show(path))

    def texts(self) -> tuple[str, ...]:
        """Return one line per sort."""
        lines = []
        for sort, count in self._counts.items():
            paths = self._paths[sort]
            more = f" and {count - len(paths)} more" if count > len(paths) else ""
            lines.append(f"{TEXTS[sort]}: {', '.join(paths)}{more}")
        return tuple(lines)


def show(path: bytes) -> str:
    """Return a path in printable characters; of a long one only its end."""
    text = ("..." if len(path) > SHOWN_BYTES else "") + path[-SHOWN_BYTES:].decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
