# SPDX-License-Identifier: Apache-2.0
"""What a consent is for: everything that is held at or below a path, by the digest of its whole content.

A name alone would let in whatever a later run has put there. The digest is made of the sealed layers when something is
shown, and made again when it is applied.
"""

from __future__ import annotations

from unspill.apply.guard import lies_in
from unspill.changes.reader import Reader
from unspill.permissions.question import digest_of_held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.git.repository import Repository
    from unspill.model.change import Change, RootChanges
    from unspill.model.operation import Skipped
    from unspill.store.permissions import ShownTable

# Of so many groups of paths and so many bytes at most the tokens are told unasked
_TOLD = 20
_TOLD_BYTES = 64 << 20


class HeldPart:
    """What needs consent in one root."""

    def __init__(
        self, part: RootChanges, held: Iterable[tuple[bytes, str]], repositories: Iterable[Repository] = ()
    ) -> None:
        self.root = part.root
        self.held = tuple(held)
        self._changes = {change.path: change for change in part.changes}
        # A repository that is held moves as a whole
        self._together = [
            (frozenset((repository.top, *(repository.top + b"/" + name for name in repository.replaced()))), repository)
            for repository in repositories
            if repository.problem or repository.replaced()
        ]
        self._digests: dict[bytes, str] = {}

    def names(self, path: bytes) -> set[bytes]:
        """Return the held paths that a consent to a path is for: those at or below it, and what they need above.

        A repository that is held is not what a file in it needs: who is asked about a hook is shown only the hook.
        """
        named = {name for names, _ in self._together for name in names}
        concerned = {name for name, _ in self.held if name not in named and _concerns(name, path)}
        return concerned | {name for name in named if _is_at(name, path)}

    def covered(self, path: bytes) -> tuple[Change, ...]:
        """Return the changes that a consent to a path lets in, by path."""
        paths = {name for name in self.names(path) if lies_in(name, path) or path == b"." or self._does_more(name)}
        for names, repository in self._together:
            if any(_is_at(name, path) for name in names):
                paths |= repository.paths
        return tuple(self._changes[name] for name in sorted(paths) if name in self._changes)

    def digest(self, path: bytes) -> str:
        """Return what stands for all that a consent to a path lets in; nothing where it lets nothing in.

        Raises:
            SandboxUnavailable: A layer no longer holds what was scanned.
            OSError: A file can't be read.
        """
        if path not in self._digests:
            self._digests[path] = self._digest(path)
        return self._digests[path]

    def size(self, path: bytes) -> int:
        """Return how many bytes the digest of a path is made of."""
        return sum(change.entry.size for change in self.covered(path) if change.entry is not None)

    def outermost(self) -> list[bytes]:
        """Return the held paths that need not be named together with one above them."""
        named = [(name, why) for names, repository in self._together for name in names for why in [repository.problem]]
        return [path for path, _ in outermost(sorted((*self.held, *named)))]

    def _digest(self, path: bytes) -> str:
        from hashlib import blake2b

        covered = self.covered(path)
        if not covered:
            return ""
        digest = blake2b(digest_size=32)
        with Reader(self.root) as reader:
            for change in covered:
                digest.update(b"%d %b %b\n" % (len(change.path), change.path, digest_of_held(change, reader).encode()))
        return digest.hexdigest()

    def _does_more(self, name: bytes) -> bool:
        """Tell whether a directory above does more than come to be: that is not needed to name what is in it."""
        change = self._changes.get(name)
        return change is not None and change.kind != "added"


def digest_of_hunks(path: bytes, old: bytes, new: bytes) -> str:
    """Return what stands for the hunks between two texts, whichever of them are chosen."""
    from hashlib import blake2b

    digest = blake2b(b"hunks %d %b %d " % (len(path), path, len(old)), digest_size=32)
    digest.update(old)
    digest.update(new)
    return digest.hexdigest()


def outermost(held: Iterable[tuple[bytes, str]]) -> list[tuple[bytes, str]]:
    """Return of held paths in order those that are not in another one that is held for the same reason."""
    found: list[tuple[bytes, str]] = []
    for path, why in held:
        if not found or found[-1][1] != why or not lies_in(path, found[-1][0]):
            found.append((path, why))
    return found


def with_tokens(
    lefts: Sequence[Skipped], parts: Sequence[HeldPart], roots: Sequence[bytes], shown: ShownTable, sandbox: str
) -> tuple[Skipped, ...]:
    """Return what was left, with tokens where consent is missing: as many as can be told without much reading."""
    by_root = {part.root: part for part in parts}
    told, size, last = 0, 0, None
    result = []
    for left in lefts:
        part = by_root.get(roots[left.root]) if left.why == "held" else None
        is_inside = last is not None and (last.root, last.reason) == (left.root, left.reason)
        if part is None or told == _TOLD or (is_inside and last is not None and lies_in(left.path, last.path)):
            result.append(left)
            continue
        last, told = left, told + 1
        size += part.size(left.path)
        digest = readable_digest(part, left.path) if size <= _TOLD_BYTES else ""
        token = shown.token_of(sandbox, part.root, left.path, digest) if digest else ""
        result.append(left.replace(digest=digest, token=token))
    return tuple(result)


def readable_digest(part: HeldPart, path: bytes) -> str:
    """Return the digest of a path, nothing where it can't be read."""
    try:
        return part.digest(path)
    except OSError:
        return ""


def _is_at(name: bytes, path: bytes) -> bool:
    return path == b"." or lies_in(name, path)


def _concerns(name: bytes, path: bytes) -> bool:
    return _is_at(name, path) or lies_in(path, name)
