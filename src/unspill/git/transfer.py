# SPDX-License-Identifier: Apache-2.0
"""Which objects of a run a repository can be given: each is what its name says, and nothing that it needs is missing.

Git never rewrites an object that it has, so a wrong one would stay for good; and an object whose history is not there
makes the repository a broken one.
"""

from __future__ import annotations

import os
import zlib

from unspill.git.index import digest
from unspill.git.layout import LARGEST_FILE, is_object_name
from unspill.git.objects import Objects, check_loose, parse
from unspill.git.packs import Broken, Pack
from unspill.git.state import ODD_FORMAT, ODD_INDEX, hash_size_of
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from unspill.git.objects import Object
    from unspill.model.change import Change

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST = 2_000_000

WRONG = "one of its objects is not what its name says"
UNCHECKED = "one of its packs could not be checked: git is needed for that, and refused it or is not installed"


class Transfer(Record):
    """What can be given: paths in the git directory of loose objects and packs. `names` are all objects in them.

    `refused` are paths of what is not what its name says.
    """

    paths: tuple[bytes, ...]
    names: frozenset[bytes]
    refused: tuple[bytes, ...] = ()


def choose_objects(
    live: Objects,
    loose: Mapping[bytes, bytes],
    packs: Mapping[bytes, tuple[bytes, bytes]],
    *,
    hash_size: int,
    may_lack: bool = False,
    ends: Iterable[bytes] = (),
) -> Transfer:
    """Choose what a repository is given.

    Args:
        live: The objects that it has.
        loose: By path in the git directory, where each loose object of the run lies.
        packs: By path in the git directory, where each pack of the run lies, and the index that we made of it.
        hash_size: How many bytes names have.
        may_lack: The repository gets what is missing from elsewhere when it is needed.
        ends: Commits whose parents nobody has: those at which a shallow history ends.
    """
    return _ObjectChooser(live, hash_size, may_lack=may_lack, ends=frozenset(ends)).choose(loose, packs)


class _ObjectChooser:
    def __init__(self, live: Objects, hash_size: int, *, may_lack: bool, ends: frozenset[bytes]) -> None:
        self._live = live
        self._size = hash_size
        self._may_lack = may_lack
        self._ends = ends
        # Of each new object what it needs, and the path that it comes with
        self._needs: dict[bytes, tuple[bytes, ...]] = {}
        self._source: dict[bytes, bytes] = {}
        self._refused: list[bytes] = []

    def choose(self, loose: Mapping[bytes, bytes], packs: Mapping[bytes, tuple[bytes, bytes]]) -> Transfer:
        for path, place in loose.items():
            self._add_loose(path, place)
        for path, (pack, index) in packs.items():
            self._add_pack(path, pack, index)
        if not self._may_lack:
            self._drop_what_lacks_something()
        paths = dict.fromkeys(self._source[name] for name in self._needs)
        return Transfer(paths=tuple(paths), names=frozenset(self._needs), refused=tuple(self._refused))

    def _add_loose(self, path: bytes, place: bytes) -> None:
        name = path[-2 * self._size - 1 :].replace(b"/", b"")
        if self._live.has(name):
            return
        try:
            found = check_loose(os.open(place, _FILE), name, self._size)
        except (Broken, OSError):
            self._refused.append(path)
            return
        self._add(name, found, path)

    def _add_pack(self, path: bytes, place: bytes, index: bytes) -> None:
        try:
            pack = Pack(index, place, self._size)
            objects = Objects((), self._size)
            for count, name in enumerate(pack):
                if count >= _MOST:
                    raise Broken("too many objects")
                if self._live.has(name) or name in self._needs:
                    continue
                offset = pack.find(bytes.fromhex(name.decode()))
                assert offset is not None
                kind = pack.kind_at(offset, objects.raw)
                content = b"" if kind == "blob" else pack.read(offset, objects.raw)[1]
                self._add(name, parse(kind, content, self._size), path)
        except (Broken, OSError, ValueError, IndexError, zlib.error):
            self._refused.append(path)
            for name in [name for name, source in self._source.items() if source == path]:
                self._needs.pop(name, None)

    def _add(self, name: bytes, found: Object, path: bytes) -> None:
        needs = found.needs[:1] if found.kind == "commit" and name in self._ends else found.needs
        self._needs[name] = needs
        self._source[name] = path

    def _drop_what_lacks_something(self) -> None:
        """Leave out what needs an object that is nowhere, and what needs that in turn; a pack goes as a whole."""
        needed_by: dict[bytes, list[bytes]] = {}
        for name, needs in self._needs.items():
            for need in needs:
                needed_by.setdefault(need, []).append(name)
        members: dict[bytes, list[bytes]] = {}
        for name, source in self._source.items():
            members.setdefault(source, []).append(name)
        missing = [need for need in needed_by if need not in self._needs and not self._live.has(need)]
        for name in missing:
            for user in needed_by.get(name, ()):
                if user in self._needs:
                    gone = [other for other in members[self._source[user]] if other in self._needs]
                    missing += gone
                    for other in gone:
                        del self._needs[other]


class NewRepository(Record):
    """What of a repository that comes as a whole is applied: `contents` has what is written anew instead.

    `problem` says why nothing of it is, where one of its objects is not what its name says.
    """

    changes: tuple[Change, ...]
    contents: dict[bytes, bytes]
    problem: str = ""


def check_new_repository(
    changes: Iterable[Change], place_of: Callable[[Change], bytes], indexes: Mapping[bytes, bytes], hash_size: int
) -> NewRepository:
    """Check the objects and the index of a repository that comes as a whole; leave out what git makes anew by itself.

    `hash_size` is that of names, where no configuration comes with it.
    """
    kept: list[Change] = []
    contents: dict[bytes, bytes] = {}
    changes = tuple(changes)
    if problem := _index_problem(changes, place_of, hash_size):
        return NewRepository(changes=(), contents={}, problem=problem)
    for change in changes:
        *_above, first, second, name = (b"", b"", *change.path.split(b"/"))
        if change.entry is None or change.entry.kind != "file":
            kept.append(change)
        elif first == b"objects" and is_object_name(second + name):
            try:
                check_loose(os.open(place_of(change), _FILE), second + name, len(second + name) // 2)
            except (Broken, OSError):
                return NewRepository(changes=(), contents={}, problem=f"{WRONG}: {(second + name)[:12].decode()}")
            kept.append(change)
        elif first == b"objects" and second == b"pack":
            pack = change.path.rpartition(b".")[0] + b".pack"
            if pack not in indexes:
                return NewRepository(changes=(), contents={}, problem=UNCHECKED)
            if name.endswith(b".idx"):
                with open(indexes[pack], "rb") as file:
                    contents[change.path] = file.read()
            kept += [change] if name.endswith((b".pack", b".idx", b".promisor")) else []
        elif not (first == b"objects" and second == b"info" and name != b"alternates"):
            kept.append(change)
    return NewRepository(changes=tuple(kept), contents=contents)


def _index_problem(changes: Iterable[Change], place_of: Callable[[Change], bytes], hash_size: int) -> str:
    """Return why an index among the changes can't be applied, where one can't; submodules have theirs as well."""
    named = [(change, change.path.rpartition(b"/")[2]) for change in changes if change.layer is not None]
    configs = [change for change, name in named if name == b"config" and _is_file(change)]
    sizes = {hash_size_of(_read(place_of(change))) for change in configs} or {hash_size}
    if len(sizes) > 1:
        return ODD_FORMAT
    is_refused = any(name == b"index" and _is_refused(change, place_of, max(sizes)) for change, name in named)
    return ODD_INDEX if is_refused else ""


def _is_refused(change: Change, place_of: Callable[[Change], bytes], hash_size: int) -> bool:
    if not _is_file(change):
        return change.entry is not None and change.entry.kind != "dir"
    content = _read(place_of(change))
    # A branch may have this name, too
    return content.startswith(b"DIRC") and (len(content) >= LARGEST_FILE or not digest(content, hash_size))


def _is_file(change: Change) -> bool:
    return change.entry is not None and change.entry.kind == "file"


def _read(place: bytes) -> bytes:
    with open(os.open(place, _FILE), "rb") as file:
        return file.read(LARGEST_FILE)
