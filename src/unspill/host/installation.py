# SPDX-License-Identifier: Apache-2.0
"""Where unspill itself is installed, and which roots it must not have because of that.

A command that can change our own program, or a directory that its Python imports from, gets out of its sandbox. What a
path leads to is not enough: a link on the way can be replaced just the same.
"""

from __future__ import annotations

import os
import stat
import sys

from unspill.errors import RootRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    Kind = Literal["program", "source", "imports"]

_MOST_LINKS = 40
_WHY = "Commands could change it, and it runs outside the sandbox."
_TEXTS: dict[Kind, tuple[str, str]] = {
    "program": (
        "unspill is installed inside it, at {place}. " + _WHY,
        "Install unspill elsewhere: with pipx, or in an environment made by `python3 -m venv ~/.venvs/unspill`.",
    ),
    "source": (
        "unspill runs from its source inside it, at {place}. " + _WHY,
        "To work on unspill itself, run a copy that is installed elsewhere, and not with `pip install -e`.",
    ),
    "imports": (
        "Python imports modules from {place}, where commands could put one that then runs outside the sandbox.",
        "Start it as `unspill` or with `python3 -P`, and let no PYTHONPATH and no .pth file lead into the project.",
    ),
}
_STARTED_INSIDE = (
    "This program imports modules from {place}, where commands could put one that it then runs outside the sandbox. "
    "Start it with `python3 -P`, and keep it outside of the project."
)


def own_words() -> list[str]:
    """Return how this program is started, whatever the PATH of a shell is and whatever modules lie where it stands."""
    # PYTHONPATH may lead into a project, and an empty part of it does: what lies there would be run before ours
    isolated = [sys.executable, "-E", "-P"]
    program = os.path.abspath(sys.argv[0]) if sys.argv else ""
    is_script = os.path.basename(program) == "unspill" and os.path.isfile(program) and os.access(program, os.X_OK)
    return [*isolated, program] if is_script else [*isolated, "-m", "unspill"]


def check_own_place(roots: Sequence[bytes]) -> str:
    """Refuse a root in which commands could change unspill itself, or what its Python imports.

    The directory that Python looks into first, because a program was started in it or from it, is the program's own:
    like all source of a project it is the person's to look at. It is a reason to warn, unless the program is ours.

    Returns:
        The warning, or nothing.

    Raises:
        RootRefused: with the place, and where to install it instead.
    """
    walk = _Walk(roots)
    for kind, path in _own_paths():
        found = walk.find_inside(os.fsencode(path))
        if found is not None:
            root, place = (shown.decode("utf-8", "backslashreplace") for shown in found)
            reason, remedy = _TEXTS[kind]
            raise RootRefused(f"{root} can't be a root: {reason.format(place=place)}", remedy=remedy)
    first = _first_of_a_program()
    found = None if first is None else walk.find_inside(os.fsencode(_absolute(first)))
    return "" if found is None else _STARTED_INSIDE.format(place=found[1].decode("utf-8", "backslashreplace"))


def _own_paths() -> Iterator[tuple[Kind, str]]:
    """Yield all that this program and its next start are made of."""
    for path in dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)):
        yield "program", path
    for word in own_words():
        if word and word.startswith("/"):
            yield "program", word
    yield "source", os.path.dirname(os.path.dirname(__file__))
    for path in sys.path if _first_of_a_program() is None else sys.path[1:]:
        if isinstance(path, str):
            yield "imports", _absolute(path)
    if sys.pycache_prefix:
        yield "imports", sys.pycache_prefix
    site = sys.modules.get("site")
    if getattr(site, "ENABLE_USER_SITE", False) and (user_site := getattr(site, "USER_SITE", None)):
        # Python leaves it out while it does not exist; the next start would find it
        yield "imports", user_site


def _first_of_a_program() -> str | None:
    """Return where Python imports from because of how a program of somebody else was started, if it does."""
    if sys.flags.safe_path or not sys.path or not isinstance(sys.path[0], str):
        return None
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if getattr(spec, "name", "") == "unspill.__main__" else sys.path[0]


def _absolute(path: str) -> str:
    if path.startswith("/"):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except OSError:
        return "/"  # nothing is imported from a directory that is gone


class _Walk:
    """Follows paths name by name. Roots are known by inode, so a bind mount or another spelling hides none."""

    def __init__(self, roots: Sequence[bytes]) -> None:
        self._roots: dict[tuple[int, int], bytes] = {}
        for root in roots:
            try:
                found = os.stat(root)
            except OSError:
                continue
            self._roots[found.st_dev, found.st_ino] = root
        # Places that are no links, and the root that each is
        self._known: dict[bytes, bytes | None] = {b"": None}

    def find_inside(self, path: bytes) -> tuple[bytes, bytes] | None:
        """Return the first place on the way of an absolute path that lies in a root, after that root."""
        here, names = path, []
        while here not in self._known:
            here, _slash, name = here.rpartition(b"/")
            names.append(name)
        links = 0
        while names and links <= _MOST_LINKS:
            name = names.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                here = here.rpartition(b"/")[0]
                continue
            root = self._known[here]
            place = here + b"/" + name
            if root is not None:
                return root, place
            target = self._step(place)
            if target is None:
                here = place
                continue
            links += 1
            here = b"" if target.startswith(b"/") else here
            names += target.split(b"/")[::-1]
        root = self._known[here]
        return None if root is None else (root, here)

    def _step(self, place: bytes) -> bytes | None:
        """Return what a link leads to; remember of anything else which root it is."""
        if place in self._known:
            return None
        root = target = None
        try:
            found = os.lstat(place)
            root = self._roots.get((found.st_dev, found.st_ino))
            target = os.readlink(place) if stat.S_ISLNK(found.st_mode) else None
        except OSError:
            pass  # what is not there could be made
        if target is None:
            self._known[place] = root
        return target
