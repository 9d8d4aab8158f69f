# SPDX-License-Identifier: Apache-2.0
"""Draws operations that can be performed on a tree as it is: what a person or a command may do next.

Few names, contents and times, so that different things often look alike.
"""

import random
from collections.abc import Callable, Collection

from tests.kernel.round_trip_inside import Operation
from tests.kernel.round_trip_oracle import OUTSIDE
from tests.kernel.round_trip_tree import ROOT, Node, Tree, below, join

NAMES = [b"a", b"b", b"c", b"d", b"a.b", b"line\nbreak", b"\xff-\xfe"]
CONTENTS = [b"", b"one\n", b"two\n", b"six\n", b"longer\n" * 9]
TIMES = [1_500_000_000_000_000_001, 1_700_000_000_123_456_789]
FILE_MODES = [0o644, 0o644, 0o600, 0o755, 0o664]
SPECIAL_MODES = [0o4755, 0o2755]
DIR_MODES = [0o755, 0o755, 0o700, 0o775]
CLOSED_MODES = [0o755, 0o555, 0o700, 0o500]
ATTRIBUTES = ["user.note", "user.more"]


class Draw:
    """One source of chance over one tree; each method returns operations that fit, or none."""

    def __init__(
        self,
        chance: random.Random,
        tree: Tree,
        names: list[bytes],
        modes: list[int],
        *,
        often: Collection[bytes],
        inside: bool,
        can_move: Callable[[bytes], bool],
        is_unique: bool,
    ) -> None:
        self._chance = chance
        self._often = often
        self._names = names
        self._modes = modes
        self._tree = tree
        self._inside = inside
        self._can_move = can_move
        self._is_unique = is_unique
        paths = sorted(tree)
        self._files = [path for path in paths if tree[path].kind == "file"]
        self._dirs = [path for path in paths if tree[path].is_dir]
        self._leaves = [path for path in paths if not tree[path].is_dir]

    def draw(self) -> list[Operation]:
        """Return the operations of one thing that somebody does."""
        everybody = [
            self.create, self.create, self.write, self.write, self.replace, self.replace, self.chmod, self.touch,
            self.attribute, self.no_attribute, self.unlink, self.unlink, self.remove, self.mkdir, self.mkdir,
            self.symlink, self.swap, self.rename, self.rename_over, self.become, self.empty, self.move, self.root,
        ]  # fmt: skip
        commands = [self.open, self.link, self.fifo, self.special_mode, self.leading_out, self.come_and_go]
        return self._chance.choice(everybody + commands if self._inside else everybody)()

    def create(self) -> list[Operation]:
        return [("write", self._new(), self._content(), self._time())]

    def write(self) -> list[Operation]:
        # What becomes of special bits depends on who writes and how much
        plain = [path for path in self._files if not self._tree[path].mode & 0o7000]
        return [("write", self._pick(plain), self._content(), self._time())]

    def replace(self) -> list[Operation]:
        return [("replace", self._pick(self._leaves), self._content(), self._time())]

    def chmod(self) -> list[Operation]:
        path = self._pick(self._files + self._dirs[1:])
        return [("chmod", path, self._chance.choice(self._modes if self._tree[path].is_dir else FILE_MODES))]

    def special_mode(self) -> list[Operation]:
        return [("chmod", self._pick(self._files + self._dirs[1:]), self._chance.choice(SPECIAL_MODES))]

    def touch(self) -> list[Operation]:
        return [("touch", self._pick(self._files), self._time())]

    def attribute(self) -> list[Operation]:
        value = self._chance.choice([b"1", b"2"])
        return [("attribute", self._pick(self._files + self._dirs), self._chance.choice(ATTRIBUTES), value)]

    def no_attribute(self) -> list[Operation]:
        path = self._pick([path for path in self._files + self._dirs if self._tree[path].attributes])
        return [("no attribute", path, self._chance.choice(sorted(self._tree[path].attributes)))]

    def open(self) -> list[Operation]:
        return [("open", self._pick(self._files))]

    def unlink(self) -> list[Operation]:
        return [("unlink", self._pick(self._leaves))]

    def remove(self) -> list[Operation]:
        return [("remove", self._pick(self._dirs[1:]))]

    def mkdir(self) -> list[Operation]:
        path = self._new()
        made: list[Operation] = [("mkdir", path, self._chance.choice(self._modes))]
        return made + self._fill(path)

    def symlink(self) -> list[Operation]:
        return [("symlink", self._new(), self._chance.choice([b"a", b"b"]))]

    def leading_out(self) -> list[Operation]:
        return [("symlink", self._new(), OUTSIDE)]

    def fifo(self) -> list[Operation]:
        return [("fifo", self._new())]

    def link(self) -> list[Operation]:
        return [("link", self._pick(self._files), self._new())]

    def swap(self) -> list[Operation]:
        """A file becomes a link to another, or a link leads elsewhere."""
        path = self._pick(self._leaves)
        return [("unlink", path), ("symlink", path, self._chance.choice([b"a", b"b", b"c"]))]

    def rename(self) -> list[Operation]:
        return [("rename", self._pick(self._leaves), self._new())]

    def rename_over(self) -> list[Operation]:
        old, new = self._pick(self._leaves), self._pick(self._leaves)
        # Two names of one file stay what they are
        return [("rename", old, new)] if self._tree[old] is not self._tree[new] else []

    def move(self) -> list[Operation]:
        old = self._pick([path for path in self._dirs[1:] if self._can_move(path)])
        new = self._new()
        return [("rename", old, new)] if not new.startswith(old + b"/") else []

    def become(self) -> list[Operation]:
        """An entry becomes one of another kind."""
        path = self._pick(self._leaves + self._dirs[1:])
        gone: Operation = ("remove" if self._tree[path].is_dir else "unlink", path)
        if self._chance.random() < 0.5:
            return [gone, ("write", path, self._content(), self._time())]
        return [gone, ("mkdir", path, self._chance.choice(self._modes)), *self._fill(path)]

    def empty(self) -> list[Operation]:
        """A directory is deleted and made again."""
        path = self._pick(self._dirs[1:])
        return [("remove", path), ("mkdir", path, self._tree[path].mode & 0o777), *self._fill(path)]

    def come_and_go(self) -> list[Operation]:
        path = self._new()
        return [("write", path, b"gone soon", self._time()), ("unlink", path)]

    def root(self) -> list[Operation]:
        return [("chmod", ROOT, self._chance.choice(self._modes))]

    def _fill(self, path: bytes) -> list[Operation]:
        names = self._chance.sample(self._names, self._chance.choice([0, 0, 1, 2]))
        return [("write", join(path, name), self._content(), self._time()) for name in names]

    def _pick(self, paths: list[bytes]) -> bytes:
        often = [path for path in paths if path in self._often]
        return self._chance.choice(often if often and self._chance.random() < 0.6 else paths)

    def _new(self) -> bytes:
        above = self._chance.choice(self._dirs)
        return self._pick([path for name in self._names if (path := join(above, name)) not in self._tree])

    def _content(self) -> bytes:
        return b"%x\n" % self._chance.getrandbits(64) if self._is_unique else self._chance.choice(CONTENTS)

    def _time(self) -> int:
        return self._chance.choice(TIMES)


def draw(
    seed: int,
    tree: Tree,
    names: list[bytes],
    modes: list[int],
    *,
    often: Collection[bytes] = (),
    inside: bool = False,
    can_move: Callable[[bytes], bool] = lambda _: True,
    is_unique: bool = False,
) -> list[Operation]:
    """Return what somebody does in a tree, by chance, and to some paths more often; nothing where it can't be done.

    With `is_unique` no two files that are written get the same content.
    """
    chance = random.Random(seed)
    try:
        return Draw(
            chance, tree, names, modes, often=often, inside=inside, can_move=can_move, is_unique=is_unique
        ).draw()
    except IndexError:
        return []


def some_paths(chance: random.Random, paths: list[bytes], tree: dict[bytes, Node]) -> set[bytes]:
    """Return one to three of the paths, or directories above them that are there."""
    chosen = set()
    for path in chance.sample(paths, min(len(paths), chance.randint(1, 3))):
        above = path.rpartition(b"/")[0]
        is_wider = above and chance.random() < 0.2 and below(tree, above)
        chosen.add(above if is_wider else path)
    return chosen
