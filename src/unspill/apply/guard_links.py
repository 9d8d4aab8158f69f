# SPDX-License-Identifier: Apache-2.0
"""Names that the person's own links give to other files: what `.vscode` leads to counts as being in `.vscode`.

Only links in the top directory of a root and in its directories that are in the table count. A command can't add any:
such a link is held.
"""

from __future__ import annotations

import os

from unspill.policy.held import INDEX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class LinkedNames:
    """The files of one root that have another name in the table, by a live link.

    `names` has a component of every such path, for the first look at many.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._links: dict[bytes, list[bytes]] = {}
        for link, path in _links_in(root, []):
            target = os.path.realpath(path)
            if target.startswith(root + b"/"):
                self._links[INDEX.fold(target[len(root) + 1 :])] = link
        self._depths = {path.count(b"/") + 1 for path in self._links}
        self.names = {path.rpartition(b"/")[2] for path in self._links}

    def other_name(self, parts: list[bytes]) -> list[bytes] | None:
        """Return the folded path by which a link leads to this folded one."""
        for end in self._depths:
            link = self._links.get(b"/".join(parts[:end])) if end <= len(parts) else None
            if link is not None:
                return [*link, *parts[end:]]
        return None


def _links_in(directory: bytes, above: list[bytes]) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield the links of a directory and of those in it that the table names: their folded path, and their own."""
    try:
        with os.scandir(directory) as entries:
            found = [entry for entry in entries if entry.is_symlink() or entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in found:
        name = INDEX.fold(entry.name)
        if above or name in INDEX.parts:
            if entry.is_symlink():
                yield [*above, name], entry.path
            elif not above and name != b".git":
                yield from _links_in(entry.path, [name])
