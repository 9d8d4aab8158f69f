# SPDX-License-Identifier: Apache-2.0
"""What a run left that is gone now, one line each: files in temporary directories, and processes that were stopped.

Commands choose these names, so they are escaped and cut.
"""

from __future__ import annotations

from unspill.changes.quote import quote, show_line
from unspill.model.run import Hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.run import Remains

_MOST = 3
_LONGEST = 80


def remains_hints(remains: Remains, home: bytes) -> tuple[Hint, ...]:
    """Return a hint for lost files and one for stopped processes, as far as there were any."""
    hints = []
    if remains.lost:
        names = [_cut(_at_home(path, home)) for path in remains.paths[:_MOST]]
        text = f"Not kept, since these directories are temporary: {_listed(names, remains.lost)}."
        hints.append(Hint(code="not-kept", text=text, remedy=""))
    if remains.killed:
        what = "1 process that was" if remains.killed == 1 else f"{remains.killed} processes that were"
        names = [_cut(show_line(command)) for command in remains.commands[:_MOST]]
        text = f"Stopped {what} still running: {_listed(names, remains.killed)}."
        hints.append(Hint(code="stopped-processes", text=text, remedy=""))
    return tuple(hints)


def _at_home(path: bytes, home: bytes) -> str:
    return "~/" + quote(path[len(home) + 1 :]) if path.startswith(home + b"/") else quote(path)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."


def _listed(names: list[str], count: int) -> str:
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
