# SPDX-License-Identifier: Apache-2.0
"""Write into a live repository what an operation wants, and take it back: objects first, then all that moves.

What moves does so under git's own locks, where what must be true is compared once more, because git gives a person no
other moment in which nothing moves. References are written by value, so it does not matter whether they are loose or
packed by now. Git waits 100 ms for a reference and not at all for the index, so everything is prepared before.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from unspill.apply.journal import journal_of
from unspill.apply.perform import CHANGED, Unfit, do_step, explain_error, problem_of_taking_back, take_back
from unspill.apply.steps import OpenDirs
from unspill.changes.scan import MergedTree
from unspill.errors import UnspillError
from unspill.git.files import LARGEST_FILE
from unspill.git.state import SYMBOLIC, common_of, is_own_ref, owner_of, parse_packed, parse_ref, read_values
from unspill.host.dirfd import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.host.dirfd import Beneath
    from unspill.model.operation import GitEnding, GitMove, GitStep, Operation, RefMove, Step


_MOVED = "you moved it in the meantime"
_BUSY = "git is busy there: {lock} exists. If no git is running, remove it"
_LOCK_PATIENCE_S = 1.0
_LOCK_PAUSE_S = 0.002
_PACKED_LOCK = b"packed-refs.lock"
# Git passes over what ends so, whatever happens to us
_NEW_SUFFIX = b".unspill.lock"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def perform_git(dirs: OpenDirs, step: GitStep) -> tuple[GitEnding, str]:
    """Do what an operation wants of one repository; say what came of it, and why where nothing did.

    Raises:
        OSError: the filesystem fails. What was done so far stays done: roll back.
    """
    repository = RepositoryWriter(dirs, step)
    repository.add_objects()
    reason = _MOVED
    if step.move is not None:
        try:
            repository.move(step.move)
        except Unfit as unfit:
            reason = str(unfit)
        else:
            repository.add_objects()
            return "moved", ""
    if not step.arrival:
        return "left", reason
    try:
        for ref in step.arrival:
            repository.set_ref(ref.name, ref.new)
    except OSError as error:
        for ref in step.arrival:
            repository.set_ref(ref.name, ref.old)
        return "left", explain_error(error)[1]
    repository.add_objects()
    return "arrived", ""


def take_git_back(dirs: OpenDirs, step: GitStep) -> str | None:
    """Undo what was done to a repository, as far as nobody moved it since; tell why not, where that can't be.

    Decides by what is there alone, so it may be repeated. Objects and lines of logs stay.

    Raises:
        OSError: the filesystem fails.
    """
    repository = RepositoryWriter(dirs, step)
    try:
        if not repository.is_there():
            return None
        repository.remove_unwritten()
        for ref in step.arrival:
            if repository.value(ref.name) == ref.new:
                repository.set_ref(ref.name, ref.old)
        return None if step.move is None else repository.move_back(step.move)
    except OSError as error:
        return explain_error(error)[1]


def remove_own_refs(state: bytes, operation: Operation) -> bool:
    """Remove pins and what arrived; tell whether nothing of it is left. A repository that is gone has none."""
    journal = journal_of(state, operation, with_steps=False)
    if journal is None or journal.end is None or not journal.git:
        return True
    is_clean = True
    for step, ending in zip(journal.git, journal.end.git, strict=True):
        root, (_device, inode) = journal.operation.roots[step.root], journal.identities[step.root]
        refs = _own_refs(step, ending)
        try:
            is_same = os.lstat(root).st_ino == inode
        except OSError:
            continue
        if refs and is_same:
            is_clean &= _remove_refs(state, root, step, refs)
    return is_clean


class RepositoryWriter:
    """One live repository, by descriptors."""

    def __init__(self, dirs: OpenDirs, step: GitStep) -> None:
        self._dirs = dirs
        self._step = step
        self._root: Beneath = dirs.roots[step.root]
        self._top = step.top + b"/"
        self._held: list[bytes] = []

    def is_there(self) -> bool:
        """Tell whether it is still a directory."""
        try:
            self._root.directory(self._step.top)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise
        return True

    def add_objects(self) -> None:
        """Give the repository the objects that it does not have yet; those that it has count as used today."""
        for path, place in self._step.objects:
            fd, name = self._dirs.place_of(self._step.root, place, staged=self._step.staged)
            dest_fd = self._made_directory(path.rpartition(b"/")[0])
            dest = path.rpartition(b"/")[2]
            try:
                os.link(name, dest, src_dir_fd=fd, dst_dir_fd=dest_fd, follow_symlinks=False)
            except FileExistsError:
                self._renew(dest_fd, dest)

    def remove(self, refs: Iterable[RefMove]) -> bool:
        """Delete references that still say what they were made to say; tell whether git let us."""
        gone = [ref.name for ref in refs if self.value(ref.name) == ref.new]
        for member in sorted({common_of(owner_of(name, self._step.members)) for name in gone}):
            fd = self._root.directory((self._top + member)[:-1])
            if not _lock_packed(fd):
                return False
            try:
                for name in gone:
                    if common_of(owner_of(name, self._step.members)) == member:
                        self.set_ref(name, None)
            finally:
                os.unlink(_PACKED_LOCK, dir_fd=fd)
        return True

    def move(self, move: GitMove) -> None:
        """Move everything, or nothing.

        Raises:
            Unfit: somebody moved it, or has a lock; nothing was changed.
            OSError: the filesystem fails; nothing was changed, or it will be taken back.
        """
        try:
            self._lock(move.locks)
            self._compare(move)
            self._do(move)
        finally:
            self._unlock()

    def move_back(self, move: GitMove) -> str | None:
        """Take a move back, all of it or nothing; tell why not, where that can't be."""
        try:
            self._lock(move.locks)
            if any(self.value(ref.name) not in (ref.old, ref.new) for ref in move.refs):
                return CHANGED
            for step in move.files:
                problem = problem_of_taking_back(self._dirs, step)
                if problem is not None:
                    return problem
            self._take_back(move.refs, move.files)
        except Unfit as unfit:
            return str(unfit)
        finally:
            self._unlock()
        return None

    def value(self, name: bytes) -> bytes | None:
        """Return the value of a reference."""
        try:
            content = self._read(name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            content = None
        if content is not None:
            return parse_ref(content)
        member = owner_of(name, self._step.members)
        return parse_packed(self._packed(member)).get(name[len(member) :])

    def set_ref(self, name: bytes, value: bytes | None) -> None:
        """Give a reference a value, or delete it; its lock is held where somebody else could write it."""
        if value is None:
            self._delete_ref(name)
            return
        path = self._top + name
        fd = self._made_directory(path.rpartition(b"/")[0])
        self._remove_empty(path)
        self._write(fd, path.rpartition(b"/")[2], value + b"\n")

    def remove_unwritten(self) -> None:
        """Remove what a process that died was about to give the name of a reference."""
        moved = () if self._step.move is None else self._step.move.refs
        names = {ref.name for ref in (*moved, *self._step.arrival)}
        names |= {owner_of(name, self._step.members) + b"packed-refs" for name in names}
        for name in names:
            try:
                fd, last = self._root.parent(self._top + name + _NEW_SUFFIX)
            except (FileNotFoundError, NotADirectoryError):
                continue
            _unlink(fd, last)

    @staticmethod
    def _renew(fd: int, name: bytes) -> None:
        try:
            os.utime(name, dir_fd=fd, follow_symlinks=False)
        except PermissionError:
            # It belongs to somebody else who shares this repository
            return

    def _do(self, move: GitMove) -> None:
        done: list[Step] = []
        try:
            for step in move.files:
                do_step(self._dirs, step)
                done.append(step)
            # What goes makes room for what comes: a branch `n` for a branch `n/x`
            for ref in sorted(move.refs, key=lambda ref: ref.new is not None):
                self.set_ref(ref.name, ref.new)
            for name, lines in move.logs:
                self._append(name, lines)
        except (OSError, Unfit) as error:
            self._take_back(move.refs, done)
            if isinstance(error, OSError):
                raise Unfit(explain_error(error)[1]) from error
            raise

    def _take_back(self, refs: Iterable[RefMove], files: Sequence[Step]) -> None:
        for ref in sorted(refs, key=lambda ref: ref.old is not None):
            if self.value(ref.name) == ref.new:
                self.set_ref(ref.name, ref.old)
        for step in reversed(files):
            take_back(self._dirs, step)

    def _lock(self, names: Iterable[bytes]) -> None:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        place_fd, place = self._dirs.place_of(self._step.root, self._step.lock, staged=self._step.staged)
        for name in names:
            path = self._top + name
            fd = self._made_directory(path.rpartition(b"/")[0])
            while True:
                try:
                    os.link(place, path.rpartition(b"/")[2], src_dir_fd=place_fd, dst_dir_fd=fd, follow_symlinks=False)
                    break
                except FileExistsError:
                    if self._is_own_lock(path):
                        # A process that died had it
                        break
                if time.monotonic() > deadline:
                    raise Unfit(_BUSY.format(lock=os.fsdecode(path)))
                time.sleep(_LOCK_PAUSE_S)
            self._held.append(path)

    def _is_own_lock(self, path: bytes) -> bool:
        found = self._root.find(path)
        return found is not None and found.st_ino == self._step.lock_inode

    def _unlock(self) -> None:
        while self._held:
            path = self._held.pop()
            # Git tells people to remove a lock that is in their way, and somebody else may have it since
            if self._is_own_lock(path):
                fd, name = self._root.parent(path)
                os.unlink(name, dir_fd=fd)

    def _compare(self, move: GitMove) -> None:
        known = {name for name, *numbers in move.known if self._numbers(name) == tuple(numbers)}
        wanted = {name: value for name, value in move.before if name not in known}
        with MergedTree(b"/proc/self/fd/%d/." % self._root.root_fd) as tree:
            found = read_values(tree, self._step.top, self._step.members, wanted)
        if found.problem or any(found.value(name) != value for name, value in wanted.items()):
            raise Unfit(_MOVED)

    def _numbers(self, name: bytes) -> tuple[int, int, int] | None:
        found = self._root.find(self._top + name)
        return None if found is None else (found.st_ino, found.st_size, found.st_ctime_ns)

    def _packed(self, member: bytes) -> bytes:
        try:
            return self._read(member + b"packed-refs")
        except FileNotFoundError:
            return b""

    def _read(self, name: bytes) -> bytes:
        fd, last = self._root.parent(self._top + name)
        try:
            opened = os.open(last, _READ, dir_fd=fd)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            # As very old versions of git wrote HEAD
            return SYMBOLIC + os.readlink(last, dir_fd=fd)
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            os.close(opened)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        with open(opened, "rb") as file:
            return file.read(LARGEST_FILE)

    def _delete_ref(self, name: bytes) -> None:
        member = owner_of(name, self._step.members)
        packed = self._packed(member)
        inner = name[len(member) :]
        if inner in parse_packed(packed):
            self._write(self._root.directory((self._top + member)[:-1]), b"packed-refs", _without_ref(packed, inner))
        path = self._top + name
        try:
            fd, last = self._root.parent(path)
            os.unlink(last, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError):
            return
        self._remove_directories_above(path, 2 + (self._top + member).count(b"/"))

    def _write(self, fd: int, name: bytes, content: bytes) -> None:
        new = name + _NEW_SUFFIX
        try:
            with open(os.open(new, _WRITE, 0o644, dir_fd=fd), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError:
            _unlink(fd, new)
            raise

    def _append(self, name: bytes, lines: bytes) -> None:
        path = self._top + name
        fd = self._made_directory(path.rpartition(b"/")[0])
        self._remove_empty(path)
        log = os.open(path.rpartition(b"/")[2], _APPEND, 0o644, dir_fd=fd)
        try:
            write_whole(log, lines)
            os.fsync(log)
        finally:
            os.close(log)

    def _made_directory(self, path: bytes) -> int:
        """Return the descriptor of a directory, made if it is missing."""
        try:
            return self._root.directory(path)
        except FileNotFoundError:
            above, _, name = path.rpartition(b"/")
            fd = self._made_directory(above)
            os.mkdir(name, 0o777, dir_fd=fd)
            return self._root.directory(path)

    def _remove_empty(self, path: bytes) -> None:
        """Remove directories in which nothing lies any more, where a reference or a log is to be."""
        try:
            fd = self._root.directory(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        with os.scandir(fd) as entries:
            names = [os.fsencode(entry.name) for entry in entries]
        for name in names:
            inner = path + b"/" + name
            if inner in self._held and self._is_own_lock(inner):
                # The lock of a reference that is gone by now
                os.unlink(name, dir_fd=fd)
                self._held.remove(inner)
            else:
                self._remove_empty(inner)
        self._root.forget(path)
        parent, last = self._root.parent(path)
        os.rmdir(last, dir_fd=parent)

    def _remove_directories_above(self, path: bytes, depth: int) -> None:
        """Remove the directories of a reference that are empty now, but for the outermost ones."""
        above = path.rpartition(b"/")[0]
        while above.count(b"/") >= depth:
            self._root.forget(above)
            fd, name = self._root.parent(above)
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError:
                return
            above = above.rpartition(b"/")[0]


def _own_refs(step: GitStep, ending: GitEnding) -> list[RefMove]:
    """Return the references below our own name that were made in a repository."""
    arrived = step.arrival if ending == "arrived" else ()
    moved = step.move.refs if step.move is not None and ending == "moved" else ()
    return [ref for ref in (*arrived, *moved) if is_own_ref(ref.name, step.members) and ref.new is not None]


def _remove_refs(state: bytes, root: bytes, step: GitStep, refs: list[RefMove]) -> bool:
    try:
        with OpenDirs(state) as dirs:
            dirs.open_roots([root], patience_s=1.0)
            repository = RepositoryWriter(dirs, step.replace(root=0))
            return not repository.is_there() or repository.remove(refs)
    except (OSError, UnspillError):
        return False


def _lock_packed(fd: int) -> bool:
    """Take the lock of `packed-refs` for a moment; one that a dead process of ours left is taken over."""
    mark = b"unspill cleaning, pid "
    try:
        with open(os.open(_PACKED_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
            content = file.read(100)
        owner = content.removeprefix(mark).strip()
        if owner == content or not owner.isdigit() or os.path.exists(b"/proc/" + owner):
            return False
        os.unlink(_PACKED_LOCK, dir_fd=fd)
    except FileNotFoundError:
        pass
    try:
        lock = os.open(_PACKED_LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=fd)
    except FileExistsError:
        return False
    try:
        os.write(lock, b"%b%d\n" % (mark, os.getpid()))
    finally:
        os.close(lock)
    return True


def _without_ref(packed: bytes, name: bytes) -> bytes:
    """Return the content of `packed-refs` without one reference, and without what it is peeled to."""
    kept: list[bytes] = []
    is_gone = False
    for line in packed.splitlines(keepends=True):
        is_gone = is_gone if line.startswith(b"^") else line.rstrip(b"\n").partition(b" ")[2] == name
        if not is_gone or line.startswith(b"#"):
            kept.append(line)
    return b"".join(kept)


def _unlink(fd: int, name: bytes) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return
