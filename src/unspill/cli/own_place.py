# SPDX-License-Identifier: Apache-2.0
"""Where this very program is run from, and whether that lies in a project, where commands could change it.

What a path leads to is not enough: a link on the way, or a virtual environment whose interpreter is the system's, can
be replaced just the same.
"""

from __future__ import annotations

import os
import sys

from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LINKS = 40
_REMEDY = "Install it outside of the project, and let no PYTHONPATH lead there."


def own_words() -> list[str]:
    """Return how this program is started, whatever the PATH of a shell is and whatever modules lie where it stands."""
    # PYTHONPATH may lead into a project, and an empty part of it does: what lies there would be run before ours
    isolated = [sys.executable, "-E", "-P"]
    program = os.path.abspath(sys.argv[0])
    is_script = os.path.basename(program) == "unspill" and os.access(program, os.X_OK)
    return [*isolated, program] if is_script else [*isolated, "-m", "unspill"]


def check_own_place(project: bytes) -> None:
    """Refuse to work from within the project: commands could change what seals the next one.

    Raises:
        UsageError: with the place that lies in it.
    """
    from unspill.policy.paths import show

    inside = project.rstrip(b"/") + b"/"
    for path in _own_paths():
        for place in _places_on_the_way(os.path.join(os.getcwdb(), os.fsencode(path))):
            if place.startswith(inside):
                told = show(place.rstrip(b"/"))
                reason = f"unspill itself lies in the project, where commands could change it: {told}"
                raise UsageError(reason, remedy=_REMEDY)


def _own_paths() -> Iterator[str]:
    """Yield all that the next start of this program depends on."""
    yield from (word for word in own_words() if word.startswith("/"))
    yield sys.prefix
    yield sys.base_prefix
    yield __file__
    yield from sys.path


def _places_on_the_way(path: bytes) -> Iterator[bytes]:
    """Yield where each name of an absolute path lies really, those that links on the way lead to as well.

    The last one, with a slash behind it, is where all of it ends. What is not there is a place like any other.
    """
    here, names = b"", path.split(b"/")[::-1]
    links = 0
    while names and links <= _MOST_LINKS:
        name = names.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            here = here.rpartition(b"/")[0]
            continue
        place = here + b"/" + name
        yield place
        try:
            target = os.readlink(place)
        except OSError:
            here = place
            continue
        links += 1
        here = b"" if target.startswith(b"/") else here
        names += target.split(b"/")[::-1]
    yield here + b"/"
