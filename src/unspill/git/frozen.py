# SPDX-License-Identifier: Apache-2.0
"""A repository as it stood when a run began: a layer between the project and what the run writes.

Without it, a person's commit between a command's `git add` and `git commit` becomes the parent of a commit that reverts
it. The layer has copies of HEAD, the index, the state of a merge and the logs, all references as one `packed-refs`, and
hides what is absent and every lock. Objects, settings and working files are the live ones; a live log may name objects
that what is held hides. One layer serves all runs until something of this changes.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from unspill.git.files import LOCKS, SPARSE, STASH_LOG, STATE_DIRECTORIES, STATE_FILES, part_of
from unspill.host.overlay import OPAQUE
from unspill.layers.lifecycle import own_attributes
from unspill.layers.mask import find_layer, hide
from unspill.layers.trees import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.git.state import GitState

_GIT = b"/.git"
_COPIED = (b"HEAD", b"index", SPARSE, *STATE_FILES)
_COPIED_DIRECTORIES = (*STATE_DIRECTORIES, b"logs")
_WATCHED = (*_COPIED, STASH_LOG, b"packed-refs", b"config")
_TRIES = 20
_PAUSE_S = 0.005
_FRESH_S = 2.0
_MOST_MODULES = 1000
_LINKS_OF_A_LEAF = 2


def find_frozen(state_dir: bytes, root: bytes) -> bytes | None:
    """Return the layer that shows the repository of a root as it stands now, None where there is none to be shown.

    Raises:
        OSError: it can't be made.
    """
    top = root + _GIT
    try:
        if not stat.S_ISDIR(os.lstat(top).st_mode):
            return None
        _wait_for_locks(top)
        about = _about(root)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    for attempt in range(_TRIES):
        try:
            return find_layer(state_dir, about, _Filler(root, about))
        except (_NotNow, PermissionError):
            return None
        except _Moved as moved:
            # Somebody commits right now: the next try sees all of it, or none
            about = moved.about
            time.sleep(_PAUSE_S * (attempt > 2))
        except FileNotFoundError:
            about = _about(root)
    return None


def keep_frozen(layer: bytes, dest: bytes) -> None:
    """Make a second layer of the same files, which stays when the first is not needed any more.

    Raises:
        OSError: it can't be made.
    """
    if os.path.lexists(dest):
        return  # whoever made it was killed right after: it came by a rename, so it is complete
    new = dest + b".new"
    remove_tree(new)
    os.makedirs(os.path.dirname(dest), 0o700, exist_ok=True)
    waiting = [b""]
    for path in waiting:
        source, copy = layer + path, new + path
        found = os.lstat(source)
        os.mkdir(copy, 0o700)
        for name in os.listxattr(source):
            if name.startswith("user."):
                os.setxattr(copy, name, os.getxattr(source, name))
        with os.scandir(source) as entries:
            for entry in entries:
                inner = path + b"/" + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(inner)
                else:
                    os.link(layer + inner, new + inner, follow_symlinks=False)
        os.chmod(copy, stat.S_IMODE(found.st_mode) | 0o700)
    os.rename(new, dest)


def keep_objects(root: bytes, layer: bytes) -> None:
    """Give the objects that the repository of a root has a second name each in a layer.

    What is held needs them, whatever git removes from the repository later: the commit that a run built on is nobody's
    once it was amended. On another filesystem than the repository's nothing is kept.
    """
    try:
        for member in git_directories_in(root + _GIT):
            if not os.path.lexists(member + b"/commondir"):
                _link_objects(member + b"/objects", layer + member[len(root) :] + b"/objects")
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EACCES):
            raise


def _link_objects(source: bytes, dest: bytes) -> None:
    os.makedirs(dest, exist_ok=True)
    for directory in _names(source):
        if len(directory) != 2 and directory != b"pack":
            continue
        above = dest + b"/" + directory
        os.makedirs(above, exist_ok=True)
        try:
            names = _names(source + b"/" + directory)
        except PermissionError:
            continue
        for name in names:
            if part_of(b"objects/%b/%b" % (directory, name)) in ("object", "pack") or name.endswith(b".idx"):
                try:
                    os.link(source + b"/" + directory + b"/" + name, above + b"/" + name, follow_symlinks=False)
                except OSError as error:
                    # Kept before, removed by git right now, somebody else's, or with too many names
                    if error.errno not in (errno.EEXIST, errno.ENOENT, errno.EPERM, errno.EACCES, errno.EMLINK):
                        raise


def git_directories_in(top: bytes) -> Iterator[bytes]:
    """Yield the git directory itself, and those of its worktrees and submodules."""
    yield top
    for name in _names(top + b"/worktrees"):
        if os.path.lexists(top + b"/worktrees/" + name + b"/HEAD"):
            yield top + b"/worktrees/" + name
    waiting = [top + b"/modules"]
    for directory in waiting:
        for name in _names(directory):
            inner = directory + b"/" + name
            if os.path.lexists(inner + b"/HEAD"):
                yield from git_directories_in(inner)
            elif len(waiting) < _MOST_MODULES:
                waiting.append(inner)


class _Moved(Exception):
    def __init__(self, about: bytes) -> None:
        self.about = about


class _NotNow(Exception):
    """It is no repository that can be frozen."""


def _wait_for_locks(top: bytes) -> None:
    """Give whoever is writing the index or HEAD a moment to finish; a lock that is old belongs to nobody."""
    for _ in range(_TRIES):
        ages = [_age_s(top + b"/" + name) for name in (b"index.lock", b"HEAD.lock")]
        if not any(age is not None and age < _FRESH_S for age in ages):
            return
        time.sleep(_PAUSE_S)


def _age_s(path: bytes) -> float | None:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return None


def _about(root: bytes) -> bytes:
    """Return a text that differs as soon as anything differs that a layer would have."""
    lines = [repr((_look(root), _look(root + _GIT))).encode(), root]
    for member in git_directories_in(root + _GIT):
        names = [*_WATCHED, b"refs"]
        lines += [line for name in names if (line := _line(member + b"/" + name)) is not None]
        for directory in (b"refs", *STATE_DIRECTORIES):
            lines += _lines_below(member + b"/" + directory)
        # A line is added together with a reference that moves, and a log that loses lines comes by a rename
        lines += _directories_below(member + b"/logs")
    return b"frozen\n" + b"\n".join(lines)


def _look(path: bytes) -> tuple[int, int, tuple[tuple[str, bytes], ...]]:
    found = os.lstat(path)
    return stat.S_IMODE(found.st_mode), found.st_gid, tuple(own_attributes(path).items())


def _line(path: bytes) -> bytes | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # The times of a directory that only had a lock in it for a moment say nothing
    when = (0, 0) if stat.S_ISDIR(found.st_mode) else (found.st_mtime_ns, found.st_ctime_ns)
    return b"%b %o %d %d %d %d" % (path, found.st_mode, found.st_ino, found.st_size, *when)


def _lines_below(top: bytes) -> list[bytes]:
    lines, waiting = [], [top]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name.endswith(b".lock"):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        found = entry.stat(follow_symlinks=False)
                        lines.append(b"%b %d %d %d" % (entry.path, found.st_ino, found.st_size, found.st_ctime_ns))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return sorted(lines)


def _directories_below(top: bytes) -> list[bytes]:
    lines, waiting = [], [top]
    for directory in waiting:
        try:
            found = os.lstat(directory)
            lines.append(b"%b %o %d %d" % (directory, found.st_mode, found.st_ino, found.st_mtime_ns))
            # Each directory in it is one link to it more: most have none
            if stat.S_ISDIR(found.st_mode) and found.st_nlink != _LINKS_OF_A_LEAF:
                with os.scandir(directory) as entries:
                    waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            continue
    return sorted(lines)


def _names(directory: bytes) -> list[bytes]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


class _Filler:
    """Makes the layer that a text is about."""

    def __init__(self, root: bytes, about: bytes) -> None:
        self._root = root
        self._about = about

    def __call__(self, layer: bytes) -> None:
        """Make it at a path.

        Raises:
            _Moved: something was changed meanwhile.
            _NotNow: it is of a form that can't be frozen.
        """
        from unspill.changes.scan import MergedTree  # lazy: git
        from unspill.git.state import read_state  # lazy: git

        with MergedTree(self._root) as tree:
            state = read_state(tree, _GIT[1:])
        if state is None or state.problem:
            raise _NotNow
        writer = _LayerWriter(layer, self._root)
        for member in state.members:
            writer.add_member(member, state)
        writer.finish()
        now = _about(self._root)
        if now != self._about:
            raise _Moved(now)


class _LayerWriter:
    """Fills one layer."""

    def __init__(self, layer: bytes, root: bytes) -> None:
        self._layer = layer
        self._root = root
        self._whiteout = b""
        self._directories: dict[bytes, None] = {b"": None}
        os.mkdir(layer, 0o700)

    def add_member(self, member: bytes, state: GitState) -> None:
        """Write what one git directory of the repository has, and hide what it has not."""
        top = _GIT + b"/" + member
        for name in _COPIED:
            self._copy_or_hide(top + name)
        for directory in _COPIED_DIRECTORIES:
            self._copy_directory(top + directory)
        for name in LOCKS:
            self._hide(top + name)
        if b"worktrees/" not in member:
            self._write_refs(top, member, state)

    def finish(self) -> None:
        """Give the directories the look that they have in the project."""
        for directory in reversed(self._directories):
            path = self._layer + directory
            try:
                mode, group, attributes = _look(self._root + directory)
            except FileNotFoundError:
                mode, group, attributes = 0o755, -1, ()
            for name, value in attributes:
                os.setxattr(path, name, value)
            if group in os.getgroups() and os.lstat(path).st_gid != group:
                os.chown(path, -1, group)
            os.chmod(path, mode)

    def _write_refs(self, top: bytes, member: bytes, state: GitState) -> None:
        refs = top + b"refs"
        self._make(refs)
        os.setxattr(self._layer + refs, OPAQUE, b"y")
        lines = []
        for full, value in sorted(state.refs.items()):
            name = full[len(member) :]
            if not full.startswith(member + b"refs/"):
                continue
            if value.startswith(b"ref: "):
                self._write(top + name, value + b"\n")
            else:
                lines.append(b"%b %b\n" % (value, name))
        # Git ignores what it doesn't know. GitPython, and so aider, reads no file that says nothing of peeling
        self._write(top + b"packed-refs", b"# pack-refs with: sorted not-peeled \n" + b"".join(lines))

    def _make(self, path: bytes) -> None:
        """Make a directory of the layer and those above it."""
        above = path
        missing = []
        while above not in self._directories:
            missing.append(above)
            above = above.rpartition(b"/")[0]
        for directory in reversed(missing):
            os.mkdir(self._layer + directory, 0o700)
            self._directories[directory] = None

    def _copy_or_hide(self, path: bytes) -> None:
        try:
            found = os.lstat(self._root + path)
        except (FileNotFoundError, NotADirectoryError):
            # Nothing is hidden in a directory that is not there either
            if os.path.isdir(self._root + path.rpartition(b"/")[0]):
                self._hide(path)
            return
        if stat.S_ISREG(found.st_mode):
            self._copy(path, found)
        elif stat.S_ISLNK(found.st_mode):
            self._make(path.rpartition(b"/")[0])
            os.symlink(os.readlink(self._root + path), self._layer + path)

    def _copy(self, path: bytes, found: os.stat_result) -> None:
        self._make(path.rpartition(b"/")[0])
        source = os.open(self._root + path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            dest = os.open(self._layer + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                while os.sendfile(dest, source, None, 1 << 30):
                    pass
                os.fchmod(dest, stat.S_IMODE(found.st_mode))
                # Git's test for entries that were written in the same moment needs the very time
                os.utime(dest, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(dest)
        finally:
            os.close(source)

    def _copy_directory(self, path: bytes) -> None:
        if not os.path.isdir(self._root + path):
            self._copy_or_hide(path)
            return
        self._make(path)
        os.setxattr(self._layer + path, OPAQUE, b"y")
        for name in _names(self._root + path):
            inner = path + b"/" + name
            if os.path.isdir(self._root + inner) and not os.path.islink(self._root + inner):
                self._copy_directory(inner)
            else:
                self._copy_or_hide(inner)

    def _hide(self, path: bytes) -> None:
        self._make(path.rpartition(b"/")[0])
        self._whiteout = hide(self._layer + path, self._whiteout)

    def _write(self, path: bytes, content: bytes) -> None:
        self._make(path.rpartition(b"/")[0])
        with open(self._layer + path, "xb") as file:
            file.write(content)
        os.chmod(self._layer + path, 0o644)
