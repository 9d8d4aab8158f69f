# SPDX-License-Identifier: Apache-2.0
"""The tree of names that runs of a sandbox see: what is there, where links lead, making and removing.

Beside `SandboxFiles`, which is for contents, and by the same rules.
"""

from __future__ import annotations

from unspill.errors import SandboxUnavailable
from unspill.model.policy import MIB
from unspill.policy.paths import show
from unspill.sandbox.files_inside import Inside
from unspill.sandbox.files_reading import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from unspill.sandbox.files_inside import Path
    from unspill.sandbox.files_reading import EntryKind
    from unspill.sandbox.sandbox import Sandbox

_KINDS: dict[bytes, EntryKind] = {b"d": "directory", b"f": "file"}

_LOOK = """\
said=$(stat -L -c '%s' -- "$1" 2>&1) || no - "$said"
if [ -d "$1" ]; then kind=d; elif [ -f "$1" ]; then kind=f; else kind=-; fi
printf 'ok %s%s\\n' "$kind" "$said"
"""
_EXISTS = 'if [ -e "$1" ]; then printf "ok 1"; else printf "ok 0"; fi\n'
_DIRECTORIES = """\
said=$(cd -- "$1" 2>&1) || no - "$said"
cd -- "$1"; shift
printf 'ok '
for name; do if [ -d "./$name" ]; then printf d; else printf -; fi; done
"""
# The letter keeps a newline at the end of a name; without GNU's `realpath` all but the last part must exist
_REAL = """\
said=$(realpath -m -- "$1" 2>&1 && printf x) || said=$(readlink -f -- "$1" 2>&1 && printf x) || no - "$said"
printf 'ok %s' "$said"
"""
_MAKE = """\
[ -d "$1" ] || [ ! -e "$1" ] || no exists
said=$(mkdir -p -- "$1" 2>&1) || no - "$said"
printf 'ok \\n'
"""
_REMOVE = """\
[ -e "$1" ] || [ -L "$1" ] || no not_found
said=$(rm -rf -- "$1" 2>&1) || no - "$said"
printf 'ok \\n'
"""
# The name of each verb that only looks, its script and the programs that it needs; then of each that changes something
LOOKING = {
    "look": ("look", _LOOK, "stat"),
    "exists": ("exists", _EXISTS, "sh"),
    "directories": ("directories", _DIRECTORIES, "sh"),
    "real": ("real", _REAL, "readlink"),
}
CHANGING = {"make": ("make", _MAKE, "mkdir sleep"), "remove": ("remove", _REMOVE, "rm sleep")}
# The kernel bounds the words of a command, and by the stack's bound, which somebody may have lowered
_MOST_WORDS = 64 * 1024


class SandboxTree:
    """Looks at and changes the names that runs of a sandbox see. Safe to use from several threads.

    Every verb raises FileError, whose `kind` says what it was; UsageError; and SandboxUnavailable where we failed.
    `cancel_fd` is a descriptor that becomes readable to cancel.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._inside = Inside(sandbox)

    def look(self, path: Path, *, cancel_fd: int | None = None) -> Entry:
        """Return what is at a path, which becomes absolute."""
        where = self._inside.resolve(path)
        answer = self._inside.ask(*LOOKING["look"], (where,), 64, cancel_fd)
        if not answer[1:].strip().isdigit():
            raise SandboxUnavailable(f"{show(where)}: an answer from inside that can't be understood")
        return Entry(path=where, kind=_KINDS.get(answer[:1], "unknown"), size=int(answer[1:]))

    def exists(self, path: Path, *, cancel_fd: int | None = None) -> bool:
        """Tell whether there is something at a path; of a link, where it leads."""
        answer = self._inside.ask(*LOOKING["exists"], (self._inside.resolve(path),), 64, cancel_fd)
        return answer == b"1"

    def directories(self, path: Path, names: Collection[bytes], *, cancel_fd: int | None = None) -> frozenset[bytes]:
        """Return those names in a directory that are directories, or links to one."""
        where = self._inside.resolve(path)
        found: set[bytes] = set()
        for part in _parts(names):
            answer = self._inside.ask(*LOOKING["directories"], (where, *part), len(part), cancel_fd)
            found.update(name for name, kind in zip(part, answer.decode("ascii"), strict=True) if kind == "d")
        return frozenset(found)

    def real_path(self, path: Path, *, cancel_fd: int | None = None) -> bytes:
        """Return where a path leads by all its links; what does not exist of it stays as it is."""
        answer = self._inside.ask(*LOOKING["real"], (self._inside.resolve(path),), 1 * MIB, cancel_fd)
        return answer.removesuffix(b"x").removesuffix(b"\n")

    def make_directory(self, path: Path, *, cancel_fd: int | None = None) -> None:
        """Make a directory, and those it lies in, unless it is there."""
        self._inside.act(*CHANGING["make"], (self._inside.resolve(path),), cancel_fd=cancel_fd)

    def remove(self, path: Path, *, cancel_fd: int | None = None) -> None:
        """Remove what is at a path, a directory with all that is in it; a link goes itself."""
        where = self._inside.resolve(path).rstrip(b"/") or b"/"
        self._inside.act(*CHANGING["remove"], (where,), cancel_fd=cancel_fd)


def _parts(names: Collection[bytes]) -> Iterator[list[bytes]]:
    """Yield the names in parts that are few enough for one command."""
    part: list[bytes] = []
    left = _MOST_WORDS
    for name in names:
        # A word has a pointer and a NUL besides
        left -= len(name) + 9
        if part and left < 0:
            yield part
            part, left = [], _MOST_WORDS - len(name) - 9
        part.append(name)
    if part:
        yield part
