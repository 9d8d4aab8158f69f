# SPDX-License-Identifier: Apache-2.0
"""Which paths run something by their name alone: the rows of the table in docs/held.md, and how a path finds its row.

What git runs is decided by place and content: see `gitpaths`, `gitkeys` and `gitfiles`. Names in rows are folded.
"""

from __future__ import annotations

from unspill.policy.flagged_names import CONFIG_SCRIPTS, FLAGGED
from unspill.policy.paths import alias_of, fold, is_odd
from unspill.policy.git import NAMES
from unspill.policy.held_names import HELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.policy.row import Row

# Where package managers put what they install; nobody opens these as a project of their own
PACKAGE_TREES = frozenset(b"node_modules bower_components .venv venv .tox .nox __pypackages__ site-packages".split())
# More paths than this with one reason below one directory become one line
LINES_AT_MOST = 20


class Index:
    """The rows, arranged for a quick look at many paths.

    `parts`, `suffixes` and `stems` are for the first look: a path that shares nothing with them is in no row.
    """

    def __init__(self, rows: tuple[Row, ...], others: frozenset[bytes]) -> None:
        """Arrange rows; `others` are names that are in none and yet worth a second look."""
        self._files: dict[bytes, list[tuple[list[bytes], Row]]] = {}
        self._directories: dict[bytes, list[tuple[list[bytes], Row]]] = {}
        self._endings: list[tuple[bytes, Row]] = []
        self.suffixes: dict[bytes, Row] = {}
        self.stems: dict[bytes, Row] = {}
        for row in rows:
            for table, names in ((self._files, row.files), (self._directories, row.directories)):
                for name in names:
                    ending = name.split(b"/")
                    table.setdefault(ending[-1], []).append((ending, row))
            self._endings += [(ending, row) for ending in row.endings]
            self.suffixes |= dict.fromkeys(row.suffixes, row)
            self.stems |= dict.fromkeys(row.stems, row)
        self._above = self._find_above(rows)
        self._kept = frozenset(
            name.rpartition(b"/")[2] for row in rows if row.deleted == "held" for name in (*row.files, *row.directories)
        )
        self.parts = frozenset(self._files) | frozenset(self._directories) | frozenset(self._above) | others
        self._rows = rows
        self._others = others
        self._aliases: dict[str, str] = {}

    def fold(self, path: bytes) -> bytes:
        """Return a path in the spelling that rows have."""
        names = path.lower().split(b"/")
        if not any(map(is_odd, names)):
            return b"/".join(names)
        return fold(path, self._aliases or self._find_aliases())

    def _find_aliases(self) -> dict[str, str]:
        """Return the names that are held by their short alias; few runs need them."""
        named = (name for row in self._rows if row.verdict == "held" for name in (*row.files, *row.directories))
        self._aliases = {alias_of(name): name.decode("ascii") for name in (*named, *self._others) if b"/" not in name}
        return self._aliases

    def _find_above(self, rows: tuple[Row, ...]) -> dict[bytes, list[tuple[list[bytes], Row]]]:
        """Arrange the directories that rows name only to say where their names lie."""
        found: dict[bytes, list[tuple[list[bytes], Row]]] = {}
        for row in rows:
            for name in (*row.files, *row.directories):
                names = name.split(b"/")
                for end in range(1, len(names)):
                    found.setdefault(names[end - 1], []).append((names[:end], row))
        return found

    def find(self, parts: list[bytes]) -> Row | None:
        """Return the strictest row that a folded path is in."""
        return _strictest(self._matches(parts))

    def find_below(self, parts: list[bytes]) -> Row | None:
        """Return the strictest row whose names would be reached through a link at this folded path."""
        return _strictest([row for ending, row in self._above.get(parts[-1], ()) if parts[-len(ending) :] == ending])

    def find_kept(self, parts: list[bytes]) -> Row | None:
        """Return a row that holds the deletion of this folded path."""
        if parts[-1] not in self._kept:
            return None
        return next((row for row in self._matches(parts) if row.deleted == "held"), None)

    def _matches(self, parts: list[bytes]) -> list[Row]:
        name = parts[-1]
        rows = [row for ending, row in self._files.get(name, ()) if parts[-len(ending) :] == ending]
        for part in sorted(self._directories.keys() & parts, key=parts.index):
            for end in _ends_of(part, parts):
                for ending, row in self._directories[part]:
                    if parts[max(0, end - len(ending)) : end] == ending and not _is_excepted(name, row):
                        rows.append(row)
        stem, dot, _ = name.partition(b".")
        for key, table in ((name.rpartition(b".")[2] if dot else b"", self.suffixes), (stem, self.stems)):
            if key in table:
                rows.append(table[key])
        rows += [row for ending, row in self._endings if name.endswith(ending)]
        return rows


INDEX = Index((*HELD, *FLAGGED, CONFIG_SCRIPTS), NAMES)


def _ends_of(part: bytes, parts: list[bytes]) -> Iterator[int]:
    """Yield how many components lead to each one that is called `part`."""
    end = 0
    for _ in range(parts.count(part)):
        end = parts.index(part, end) + 1
        yield end


def _strictest(rows: list[Row]) -> Row | None:
    return next((row for row in rows if row.verdict == "held"), rows[0] if rows else None)


def _is_excepted(name: bytes, row: Row) -> bool:
    return bool(row.but) and (name in row.but or b"*." + name.rpartition(b".")[2] in row.but)


def package_top(parts: list[bytes]) -> int:
    """Return how many components lead to the outermost tree of installed packages, 0 if the path is in none."""
    if PACKAGE_TREES.isdisjoint(parts):
        return 0
    return next(end for end, part in enumerate(parts, 1) if part in PACKAGE_TREES)


def gather(flags: list[tuple[bytes, str]]) -> tuple[tuple[bytes, str], ...]:
    """Make one line of many paths that share a reason and their first component."""
    groups: dict[tuple[bytes, str], list[bytes]] = {}
    for path, reason in flags:
        groups.setdefault((path.partition(b"/")[0], reason), []).append(path)
    lines: list[tuple[bytes, str]] = []
    for (top, reason), paths in groups.items():
        if len(paths) > LINES_AT_MOST:
            lines.append((top, f"{len(paths)} files: {reason}"))
        else:
            lines += [(path, reason) for path in paths]
    return tuple(lines)
