# SPDX-License-Identifier: Apache-2.0
"""Who may change a sandbox's layers and a live root: locks, the process that owns a run, and where all of it lies.

An flock belongs to the descriptor it was taken with, so each holder opens the file anew, and the kernel gives
the lock back when its holder dies. The files lie where only their owner can open them, never in a project. Ids come
checked from the store, so none of them is a path. A pid alone is reused; with its start time and the boot it is unique.

Nobody waits for a lock or for a person's answer longer than the caller does. An operation that was given up before its
first step does not happen later, when the lock is free; an answer that comes too late is recorded and used for nothing.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import select
import stat
import time

from unspill.errors import HostError, ProjectBusy, SandboxUnavailable
from unspill.host.dirfd import above_standard
from unspill.layers.trees import open_private, remove_tree
from unspill.lazy import lazy_module
from unspill.store.runs import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any, Self, TypeVar

    from unspill.model.run import LayerId, RunId, SandboxId
    from unspill.store.runs import UnfinishedRun

    Found = TypeVar("Found")
else:
    threading = lazy_module("threading")  # lazy: approvals


DROPPED_SUFFIX = b".dropped"

# A pid of another pid namespace can't be looked up from here. Its run is left alone until it is older than any
# run should be: a layer swept from under a living run would be worse than one that stays for a day.
FOREIGN_NS = 24 * 3600 * 1_000_000_000

_SHORTEST_S, _LONGEST_S = 0.0005, 0.02
_ROOT_PAUSE_S = 0.002
# The kernel shows its locks page by page; one that is there is missed where others are given back in between
_LOOKS = 10
# By pid: a fork carries this along, but is another process.
_owners: dict[int, Owner] = {}

# Who waits longer than this hears what for
_TOLD_AFTER_S = 0.2
# Runs of this process that go on: one that is not here and has no end was interrupted
_going_on: set[str] = set()

# Below the home directory that the user database names: variables differ between two processes of one user
_ROOT_LOCKS = b".local/state/unspill-roots.lock"
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class GivenUp(Exception):
    """The caller does not wait any longer."""


class LayerMissing(SandboxUnavailable):
    """A held layer is not in its place. Without the sandbox's lock that is no loss: an operation may have it."""


class SandboxLock:
    """The right to change a sandbox's stack. Not shared between threads: each makes its own."""

    __slots__ = ("_fd", "_path")

    def __init__(self, state: bytes, sandbox: SandboxId) -> None:
        self._path = lock_file(state, sandbox)
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free; tell whether it was."""
        return self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def acquire(self, timeout_s: float | None = None) -> None:
        """Wait for the lock.

        Raises:
            SandboxUnavailable: someone else still had it when the time was over.
        """
        if timeout_s is None:
            self._take(fcntl.LOCK_EX)
            return
        deadline = time.monotonic() + timeout_s
        pause = _SHORTEST_S
        while not self.try_acquire():
            left = deadline - time.monotonic()
            if left <= 0:
                raise SandboxUnavailable(
                    "Another run of this sandbox is still active.",
                    remedy="Wait for it, or use another sandbox: --sandbox NAME.",
                )
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_S)

    def release(self) -> None:
        """Give the lock back; a lock that is not held stays so."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _take(self, how: int) -> bool:
        if self._fd is not None:
            raise RuntimeError("this lock is already held")
        fd = _open(self._path)
        try:
            fcntl.flock(fd, how)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError as error:
            os.close(fd)
            raise _unavailable(error) from error
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def __enter__(self) -> Self:
        if self._fd is None:
            self.acquire()
        return self

    def __exit__(self, *_rest: object) -> None:
        self.release()


def lock_sandbox(state: bytes, sandbox: SandboxId, timeout_s: float | None = None) -> SandboxLock:
    """Return the sandbox's lock, held: `with lock_sandbox(state, sandbox): ...`.

    Raises:
        SandboxUnavailable: someone else still had it when the time was over, or background runs have it.
    """
    lock = SandboxLock(state, sandbox)
    if not lock.try_acquire():
        refuse_kept(state, sandbox)
        lock.acquire(timeout_s)
    return lock


class StackUse:
    """Being one of those who stand on a sandbox's sealed layers without the sandbox's lock.

    Runs share it, unless one is to be alone. An apply that is alone with the layers may give them away entry by entry,
    and must copy where it is not. Whoever needs the lock too takes it after this, or does not wait for this.
    """

    __slots__ = ("_fd", "is_alone")

    def __init__(self, state: bytes, sandbox: SandboxId) -> None:
        """Try to be the only one, and join the others if there are some; `is_alone` says which. The lock must be held.

        This waits for nobody: a run that is alone may itself wait for the lock, at its end. Until then it keeps the
        layers in place as we would.
        """
        self._fd: int | None = _open(lock_file(state, sandbox) + b".use")
        try:
            self.is_alone = self.try_take(fcntl.LOCK_EX)
            if not self.is_alone:
                self.try_take(fcntl.LOCK_SH)
        except BaseException:
            self.release()
            raise

    def try_take(self, how: int) -> bool:
        """Change what this is, if nobody stands in the way; tell whether it is changed.

        Raises:
            SandboxUnavailable: the filesystem failed.
        """
        assert self._fd is not None
        try:
            return _try_flock(self._fd, how)
        except OSError as error:
            raise _unavailable(error) from error

    def release(self) -> None:
        """Leave the layers, for good."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.release()


class RunUse(StackUse):
    """The same for a run: it waits until it may begin, and can be given up meanwhile."""

    __slots__ = ()

    def __init__(
        self,
        state: bytes,
        sandbox: SandboxId,
        cancel_fd: int | None,
        *,
        alone: bool = False,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for others; `alone`, for all of them. `on_wait` is called if that takes longer than a moment.

        Raises:
            GivenUp: the caller gave up before.
        """
        self._fd = _open(lock_file(state, sandbox) + b".use")
        self.is_alone = alone
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            wait_until(lambda: self.try_take(how), cancel_fd, on_wait)
        except BaseException:
            self.release()
            raise


class OperationUse(StackUse):
    """The same for an operation that takes the layers away: no run begins to stand on them meanwhile."""

    __slots__ = ()

    def __init__(self, state: bytes, sandbox: SandboxId) -> None:
        """Take them; the sandbox's lock must be held, so that only runs can be in the way.

        Raises:
            SandboxUnavailable: a run stands on them.
        """
        self._fd = _open(lock_file(state, sandbox) + b".use")
        try:
            self.is_alone = self.try_take(fcntl.LOCK_EX)
            if not self.is_alone:
                raise still_active()
        except BaseException:
            self.release()
            raise


class RootLocks:
    """The right to change live directories, against all processes of this user, whatever their state directory.

    Each root, by device and inode, is a byte of one file in the user's home directory. No other user can open that
    file, while anybody who may read a directory can lock it. Earlier versions locked the directory. That lock is taken
    too where it is free, so that they wait for us, and we wait for it while a process of this user has it. Two users
    who change one tree at once do not wait for each other: each step checks what it finds there.
    """

    __slots__ = ("_fd",)

    def __init__(self, state: bytes) -> None:
        """Open the file; it is in the state directory for a user without a home directory that can be written."""
        self._fd = _open_root_locks(state)

    def acquire(self, root: int, deadline: float, check: Callable[[], None] | None = None) -> None:
        """Wait for the right to change a directory; closing its descriptor and this one gives it back.

        `check` raises where nobody waits for it any more.

        Raises:
            ProjectBusy: another process of this user still had it at the deadline.
        """
        while not self._try_acquire(root):
            _pause_until(deadline, "another operation on this project is still running", check)
        while not _try_flock(root):
            holder = find_own_flock(root)
            if holder is None:
                return
            _pause_until(deadline, f"process {holder}, one of yours, has locked the project's directory", check)

    def close(self) -> None:
        """Give all of it back."""
        os.close(self._fd)

    def _try_acquire(self, root: int) -> bool:
        found = os.fstat(root)
        at = (found.st_dev << 40 ^ found.st_ino) % (1 << 62)
        # struct flock: type and whence, start, length, pid; `struct` need not be loaded for it
        words = (fcntl.F_WRLCK, at, 1, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, b"".join(word.to_bytes(8, "little") for word in words))
        except BlockingIOError:
            return False
        except OSError as error:
            raise _unavailable(error) from error
        return True


def find_own_flock(directory: int) -> int | None:
    """Return the process of this user that has an flock on a directory, None if it is another user's or unknown."""
    # By inode alone: btrfs shows another device here than `stat` does
    inode = b":%d" % os.fstat(directory).st_ino
    for _ in range(_LOOKS):
        holders = _read_flocks(inode)
        if holders:
            return next((int(pid) for pid in holders if _owner_of(pid) == os.getuid()), None)
        time.sleep(_ROOT_PAUSE_S)
    return None


def _read_flocks(inode: bytes) -> list[bytes]:
    with open(b"/proc/locks", "rb") as file:
        lines = [line.split() for line in file]
    return [line[4] for line in lines if line[1] == b"FLOCK" and line[5].endswith(inode)]


def _owner_of(pid: bytes) -> int:
    try:
        return os.stat(b"/proc/" + pid).st_uid
    except OSError:
        return -1


def _try_flock(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pause_until(deadline: float, reason: str, check: Callable[[], None] | None) -> None:
    if check is not None:
        check()
    if time.monotonic() > deadline:
        raise ProjectBusy(reason)
    time.sleep(_ROOT_PAUSE_S)


def _open_root_locks(state: bytes) -> int:
    try:
        path = os.path.join(os.fsencode(pwd.getpwuid(os.getuid()).pw_dir), _ROOT_LOCKS)
        try:
            return os.open(path, _LOCK_FILE, 0o600)
        except FileNotFoundError:
            _make_above(path)
            return os.open(path, _LOCK_FILE, 0o600)
    except (KeyError, OSError):
        return _open(state + b"/locks/roots")


def _make_above(path: bytes) -> None:
    """Make the two directories above a file of the home directory."""
    state = os.path.dirname(path)
    for directory in (os.path.dirname(state), state):
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            continue


def make_in_use(path: bytes) -> int:
    """Make a directory of `work` that no row names; while the descriptor that is returned is open, no sweep removes it.

    Raises:
        OSError: it can't be made.
    """
    while True:
        os.mkdir(path, 0o700)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            # A sweep found it before it was locked
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.lexists(path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def remove_unused(path: bytes) -> bool:
    """Remove what is at a path of `work`, unless a living process has it in use; tell whether it is gone."""
    try:
        fd = open_private(path)
    except OSError:
        return remove_tree(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return remove_tree(path)
    except OSError:
        return False
    finally:
        os.close(fd)


def this_process() -> Owner:
    """Return what identifies the calling process.

    Raises:
        HostError: /proc can't be read.
    """
    pid = os.getpid()
    if pid not in _owners:
        started = started_at(pid)
        if started is None:
            raise HostError("/proc does not show this process.", remedy="Mount /proc.")
        with open(b"/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        pids = os.stat(b"/proc/self/ns/pid").st_ino
        _owners[pid] = Owner(pid=pid, started=started, boot=boot, pids=pids)
    return _owners[pid]


def may_live(run: UnfinishedRun) -> bool:
    """Tell whether a process of a run that was abandoned may be alive: one of this boot that nobody has looked for."""
    return run.owner.boot == this_process().boot


def is_abandoned(run: UnfinishedRun) -> bool:
    """Tell whether the owner of an unfinished run is dead."""
    me = this_process()
    if run.owner.boot != me.boot:
        return True
    if run.owner.pids != me.pids:
        return time.time_ns() - run.started_ns > FOREIGN_NS
    return run.owner.pid != me.pid and started_at(run.owner.pid) != run.owner.started


def begin_going_on(run: RunId) -> None:
    """Remember that this process performs a run."""
    _going_on.add(run)


def end_going_on(run: RunId) -> None:
    """Forget it, whether or not it has an end."""
    _going_on.discard(run)


def is_left(run: UnfinishedRun) -> bool:
    """Tell whether nobody performs an unfinished run any more: its owner is dead, or was interrupted."""
    return is_abandoned(run) or (run.owner == this_process() and run.id not in _going_on)


def upper_dir(state: bytes, layer: LayerId) -> bytes:
    """Return the upper directory of a layer."""
    return b"%b/layers/%b" % (state, layer.encode())


def dropped_dir(state: bytes, layer: LayerId) -> bytes:
    """Return where an upper directory lies from when it is dropped until it is removed."""
    return upper_dir(state, layer) + DROPPED_SUFFIX


def base_dir(state: bytes, layer: LayerId) -> bytes:
    """Return where the repository is kept as it stood when the run began that a sealed layer is of."""
    return b"%b/bases/%b" % (state, layer.encode())


def work_dir(state: bytes, layer: LayerId) -> bytes:
    """Return the work directory of an open layer."""
    return os.path.join(state, b"work", layer.encode())


def base_link(state: bytes, layer: LayerId) -> bytes:
    """Return the link to the repository as it stood when the run began that an open layer is of."""
    return work_dir(state, layer) + b"/base"


def spill_dir(state: bytes, run: RunId) -> bytes:
    """Return the directory for output of a run that a row can't hold; whoever spills makes it, 0700."""
    return b"%b/runs/%b" % (state, run.encode())


def still_active() -> SandboxUnavailable:
    """Return the error for an operation on layers on which a run stands."""
    return SandboxUnavailable(
        "A run of this sandbox is still active.", remedy="Wait for it or stop it, then try again."
    )


def missing_layer(path: bytes, live: bytes) -> LayerMissing:
    """Return the error for a held layer over a root that is not in the state directory."""
    name, mode = os.fsdecode(path), stat.S_IMODE(os.lstat(live).st_mode)
    return LayerMissing(
        f"The held layer {name} is missing; the changes in it are lost.",
        remedy=f"Put it back from a backup. To keep what else is held and go on without it: mkdir -m {mode:o} {name}",
    )


def lock_file(state: bytes, sandbox: SandboxId) -> bytes:
    """Return the file that stands for a sandbox's lock."""
    return b"%b/locks/%b" % (state, sandbox.encode())


def keeper_files(state: bytes, sandbox: SandboxId) -> tuple[bytes, bytes]:
    """Return the file that the keeper of a sandbox has locked as long as it lives, and the socket it listens on."""
    path = lock_file(state, sandbox)
    return path + b".keeper", path + b".socket"


def standby_files(state: bytes) -> tuple[bytes, bytes]:
    """Return the file that the standby of this user has locked as long as it serves, and the socket it listens on."""
    return state + b"/locks/standby.lock", state + b"/locks/standby"


def find_standby(state: bytes) -> int:
    """Return the process that is the standby of this user, 0 if there is none."""
    try:
        fd = os.open(standby_files(state)[0], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pid = os.read(fd, 32)
        return int(pid) if pid.isdigit() else 0
    finally:
        os.close(fd)
    return 0


def has_keeper(state: bytes, sandbox: SandboxId) -> bool:
    """Tell whether a sandbox has a keeper, or had one that was killed."""
    return os.path.exists(keeper_files(state, sandbox)[1])


class SandboxKept(SandboxUnavailable):
    """Another process has a sandbox for its background runs."""


def refuse_kept(state: bytes, sandbox: SandboxId) -> None:
    """Refuse to wait for a sandbox whose background runs another process keeps: nobody knows when they end.

    Raises:
        SandboxKept: with how to end them.
    """
    pid, name, server = _read_kept(state, sandbox)
    # What begins waits itself, and says nothing here yet; a keeper that ends has no socket any more
    if pid and pid != str(os.getpid()) and (server or has_keeper(state, sandbox)):
        end = f"They end with process {pid}, {server}" if server else f"End them: unspill stop {name}"
        raise SandboxKept(
            f"Background runs use the sandbox {name!r}.", remedy=f"{end}. Or use another sandbox: --sandbox NAME."
        )


def refuse_served(state: bytes, sandbox: SandboxId) -> None:
    """Do the same only for background runs of a server, which has them for itself.

    Raises:
        SandboxUnavailable: with how they end.
    """
    if _read_kept(state, sandbox)[2]:
        refuse_kept(state, sandbox)


def tell_kept(fd: int, name: str, server: str = "") -> None:
    """Write into a keeper's file, which is locked, that nobody is to wait for this process; `server` is what it is."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()} {name}\n{server}".encode(), 0)


def _read_kept(state: bytes, sandbox: SandboxId) -> tuple[str, str, str]:
    """Return the process that has background runs, the name of their sandbox, and which server; empty without one."""
    try:
        fd = os.open(keeper_files(state, sandbox)[0], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return "", "", ""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        first, _end, server = os.read(fd, 4096).decode("utf-8", "replace").partition("\n")
        pid, _space, name = first.partition(" ")
        return pid, name, server
    finally:
        os.close(fd)
    return "", "", ""


def _open(path: bytes) -> int:
    try:
        return os.open(path, _LOCK_FILE, 0o600)
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The sandbox can't be locked: {error.strerror}.", remedy="Check for free space in the state directory."
    )


def started_at(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the boot; None if it is dead."""
    try:
        with open(b"/proc/%d/stat" % pid, "rb") as file:
            # The name of the program is in parentheses and may itself contain some.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A killed process stays a zombie until its parent looks.
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def wait_for_lock(
    state: bytes, sandbox: SandboxId, cancel_fd: int | None, on_wait: Callable[[], None] = lambda: None
) -> SandboxLock | None:
    """Return the sandbox's lock, held, or None if the caller gave up before it was free.

    Raises:
        SandboxUnavailable: background runs have it, which may take for ever.
    """
    lock = SandboxLock(state, sandbox)

    def attempt() -> bool:
        if lock.try_acquire():
            return True
        refuse_kept(state, sandbox)
        return False

    try:
        wait_until(attempt, cancel_fd, on_wait)
    except GivenUp:
        lock.release()
        return None
    return lock


def wait_until(attempt: Callable[[], bool], cancel_fd: int | None, on_wait: Callable[[], None]) -> None:
    """Try again and again; `on_wait` is called once, if it does not succeed within a moment.

    Raises:
        GivenUp: the caller gave up before.
    """
    begun = time.monotonic()
    is_told = False
    while not attempt():
        waited_s = time.monotonic() - begun
        if not is_told and waited_s > _TOLD_AFTER_S:
            is_told = True
            on_wait()
        # Whoever closes a run has the lock for some milliseconds, an apply longer
        pause_s = min(max(waited_s / 8, _SHORTEST_S), _LONGEST_S)
        if cancel_fd is None:
            time.sleep(pause_s)
        elif is_given_up(cancel_fd, max(1, int(pause_s * 1000))):
            raise GivenUp
    # Whoever gave up while it was not free has done so before, even if it is free by now
    if is_given_up(cancel_fd):
        raise GivenUp


def lock_unless_given_up(state: bytes, sandbox: SandboxId, cancel_fd: int | None) -> SandboxLock:
    """Return the sandbox's lock, held: `with lock_unless_given_up(state, sandbox, cancel_fd): ...`.

    Raises:
        SandboxUnavailable: the caller gave up before it was free.
    """
    lock = wait_for_lock(state, sandbox, cancel_fd)
    if lock is None:
        raise given_up()
    return lock


def refuse_given_up(cancel_fd: int | None) -> None:
    """Go on only for a caller that still waits.

    Raises:
        SandboxUnavailable: it has given up.
    """
    if is_given_up(cancel_fd):
        raise given_up()


def given_up() -> SandboxUnavailable:
    """Return what is raised where the caller gave up."""
    return SandboxUnavailable("cancelled by the caller; nothing was changed", remedy="Try again if you still want it.")


def is_given_up(cancel_fd: int | None, wait_ms: int = 0) -> bool:
    """Tell whether a caller has given up, or does so within a time."""
    if cancel_fd is None:
        return False
    poll = select.poll()
    poll.register(cancel_fd, select.POLLIN)
    return bool(poll.poll(wait_ms))


def until_cancelled(work: Callable[[], Found], cancel_fd: int | None) -> Found | None:
    """Do what may take long in a thread of its own; return None if the caller gives up before it is done."""
    if cancel_fd is None:
        return work()
    waited = _Waited(work)
    threading.Thread(target=waited.do, name="unspill-question", daemon=True).start()
    found: Found | None = waited.result(cancel_fd)
    return found


class _Waited:
    """Something that is done in another thread. Whoever comes last closes the descriptor by which they meet."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._fd = above_standard(os.eventfd(0, os.EFD_CLOEXEC))
        self._lock = threading.Lock()
        self._is_done = self._is_left = False
        self._found: Any = None
        self._error: BaseException | None = None

    def do(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._is_done = True
            if self._is_left:
                os.close(self._fd)
            else:
                os.eventfd_write(self._fd, 1)

    def result(self, cancel_fd: int) -> Any:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(cancel_fd, select.POLLIN)
        poll.poll()
        with self._lock:
            if not self._is_done:
                self._is_left = True
                return None
        os.close(self._fd)
        if self._error is not None:
            raise self._error
        return self._found
