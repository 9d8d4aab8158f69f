# SPDX-License-Identifier: Apache-2.0
"""A live tree and a layer over it, written down as paths and what is there, and what the guard says of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unspill.apply.guard import DEFAULT_SECRETS, Judged, judge
from unspill.changes.scan import scan
from unspill.model.policy import Secrets


@dataclass(frozen=True)
class Link:
    """A symlink; `{root}` in its target stands for the live tree."""

    target: str


@dataclass(frozen=True)
class Program:
    """An executable file."""

    content: str = "#!/bin/sh\n"


@dataclass(frozen=True)
class Mode:
    """A file, or a directory where `content` is None, with a mode of its own."""

    content: str | None
    mode: int


class Gone:
    """Nothing where something was."""


class Folder:
    """A directory."""


GONE: Final = Gone()
FOLDER: Final = Folder()
What = str | bytes | Link | Program | Mode | Gone | Folder
Tree = Mapping[str, What]


def judged(
    top: Path, after: Tree, before: Tree | None = None, *, root: str = "live", secrets: Secrets = DEFAULT_SECRETS
) -> Judged:
    """Return what the guard says of a layer with `after` over a live tree with `before`."""
    live, upper = top / root, top / "upper"
    live.mkdir(parents=True)
    upper.mkdir()
    make(live, before or {}, live)
    make(upper, after, live)
    (part,) = scan([os.fsencode(upper)], [], os.fsencode(live)).roots
    return judge(part, (), secrets)


def make(place: Path, tree: Tree, root: Path) -> None:
    """Write a tree down."""
    for name, what in tree.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match what:
            case Gone():
                os.mknod(path, 0o020000, 0)
            case Folder():
                path.mkdir(exist_ok=True)
            case Link(target):
                path.symlink_to(target.format(root=root))
            case Program(content):
                path.write_text(content)
                path.chmod(0o755)
            case Mode(content, mode):
                path.mkdir(exist_ok=True) if content is None else path.write_text(content)
                path.chmod(mode)
            case str():
                path.write_text(what)
            case bytes():
                path.write_bytes(what)


def verdict_on(found: Judged, path: str) -> tuple[str, str]:
    """Return the verdict on a path and its reason; one line may stand for all below a directory."""
    for verdict, rows in (("held", found.held), ("flagged", found.flagged)):
        for name, reason in rows:
            if name == os.fsencode(path) or path.startswith(os.fsdecode(name) + "/"):
                return verdict, reason
    return "ordinary", ""
