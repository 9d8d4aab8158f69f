# SPDX-License-Identifier: Apache-2.0
"""What a ChangeSet must say, told from two whole pictures of the merged view and nothing else."""

from typing import Any, Final

Picture = dict[str, list[Any]]
Told = tuple[str, str, tuple[str, ...]]

# By kind: which field of a picture's entry makes which aspect, in the order of the aspects.
ASPECTS: Final = {
    "file": ((3, "content"), (1, "mode"), (4, "mtime"), (2, "xattrs")),
    "dir": ((1, "mode"), (2, "xattrs")),
    "symlink": ((1, "target"),),
    "special": ((1, "mode"),),
}


def expected(before: Picture, after: Picture) -> list[Told]:
    """Return path, kind and aspects of every change, sorted by the components of the paths."""
    told: list[Told] = []
    gone: set[str] = set()
    for path in sorted({*before, *after}, key=components):
        if _parent(path) in gone:
            if path in before:
                gone.add(path)
            if path not in after:
                continue
        told += _one(path, before.get(path), after.get(path), gone)
    return told


def _one(path: str, old: list[Any] | None, new: list[Any] | None, gone: set[str]) -> list[Told]:
    if old is None:
        return [(path, "added", ())]
    if new is None or new[0] != "dir":
        gone.add(path)
    if new is None:
        return [(path, "deleted", ())]
    if old[0] != new[0] or (old[0] == "special" and old[2:] != new[2:]):
        return [(path, "replaced", ())]
    aspects = tuple(aspect for field, aspect in ASPECTS[old[0]] if old[field] != new[field])
    if not aspects:
        return []
    return [(path, "modified" if {"content", "target"}.intersection(aspects) else "metadata", aspects)]


def components(path: str) -> list[bytes]:
    return [] if path == "." else path.encode("latin-1").split(b"/")


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
