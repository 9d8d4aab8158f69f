# SPDX-License-Identifier: Apache-2.0
"""The spawner: a small process with one thread that starts bwrap for a whole interpreter.

It is pid 1 of a pid namespace in a user namespace of its own (identity mapping), so that killing it kills every run at
once, whatever else happens, and so that a run's overlays can be mounted without root. It never carries an overlay
itself: each run has its own mount namespace. It ends when its socket does.

    caller ──jobs──▶ parent ── waits for ──▶ spawner (pid 1) ──▶ bwrap ──▶ sandbox's pid 1 ──▶ command

Nothing is forked with Python in it: the spawner itself steps into the run's mount namespace, starts bwrap there by
vfork and execve, and steps back. It has full capabilities in its own user namespace; execve by an ordinary uid drops
them all, since nothing is inheritable or ambient. Only a listening socket on the loopback of a sandbox takes a child: a
process that has left its network namespace can't come back to the host's without being root there.

At the end of a run it looks what is lost with it: files in the directories in memory, and processes that are killed.
Commands choose what is found, so names and numbers are bounded, and nothing that lies there is executed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import stat
import sys
from _socket import (
    AF_INET,
    AF_UNIX,
    SOCK_SEQPACKET,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
    socketpair,
)
from _socket import (
    socket as Socket,
)

from unspill.host import libc
from unspill.host.job import (
    Job,
    is_dead,
    receive,
    receive_job,
    send,
)
from unspill.host.libc import enter_own_namespaces, show_own_processes, write_setting
from unspill.host.overlay import MountRefused, attach, make_mountable, make_overlays, mount_overlays, refresh
from unspill.lazy import lazy_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from unspill.host import door, stopper
    from unspill.host.job import Overlays, Temporary
else:
    door = lazy_module("unspill.host.door")  # lazy: live sandboxes
    stopper = lazy_module("unspill.host.stopper")  # lazy: live sandboxes
    # The module around it makes enums of all its numbers, which costs more than all of this
    import _signal as signal


_NAME = b"unspill-spawner"
_MOST_SEEN = 1000
_IPC_TABLES = (b"/proc/sysvipc/shm", b"/proc/sysvipc/sem", b"/proc/sysvipc/msg")
_MOST_NAMED = 5
_LONGEST = 300
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# A flag of a process in /proc/PID/stat (include/linux/sched.h)
_PF_EXITING = 0x4

# The mount namespaces of bwrap and of the sandbox's pid 1
_BOTH = 2
# Numbers that a job's descriptors get in bwrap; nothing else of the spawner's may have one of them
RESERVED = 64
_SOCKET_FD = 3
# Of a run that is alive: its reply, bwrap, what bwrap tells, the sandbox's pid 1, two mount namespaces. There is always
# room for what comes with one more job: the kernel drops what does not fit, and then nobody could be answered.
_DESCRIPTORS_EACH, _ROOM = 6, 80
_NS_GET_USERNS = 0xB701
_IP_FREEBIND = 15
_SO_REUSEADDR = 2
_LOOPBACK = "127.0.0.1"
# As many as may wait for the proxy while it is busy; the kernel cuts it to what it allows
_BACKLOG = 1024


def find_files(mounts: int, temporary: tuple[Temporary, ...]) -> tuple[int, list[bytes]]:
    """Return how many entries a run has left in its directories in memory, and the paths of some of them.

    `mounts` is its mount namespace, in which nobody is any more. What is in a new directory is not counted.
    """
    try:
        with OtherMounts(mounts):
            return _named(temporary)
    except OSError:
        return 0, []  # not ours to enter


def _named(temporary: tuple[Temporary, ...]) -> tuple[int, list[bytes]]:
    found: list[bytes] = []
    for top, planned in temporary:
        _look(top, planned, found)
    return len(found), [path[:_LONGEST] for path in found[:_MOST_NAMED]]


class OtherMounts:
    """A block in another mount namespace, from which this process comes back or does not go on."""

    __slots__ = ("_base", "_mounts")

    def __init__(self, mounts: int) -> None:
        self._mounts = mounts

    def __enter__(self) -> None:
        self._base = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc.setns(self._mounts, libc.CLONE_NEWNS)
        except OSError:
            os.close(self._base)
            raise

    def __exit__(self, *_rest: object) -> None:
        try:
            libc.setns(self._base, libc.CLONE_NEWNS)
        except OSError:
            # Better no run than one that starts from another's mounts
            os._exit(1)
        os.close(self._base)


def _look(directory: bytes, planned: dict[bytes, bytes | None], found: list[bytes]) -> None:
    """Add what a directory has that is not planned; go on in those that only lead to something planned.

    No link is followed: nobody is alive who could put one in the place of what was just looked at.
    """
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(found) >= _MOST_SEEN:
                    return
                path, is_directory = entry.path, entry.is_dir(follow_symlinks=False)
                if path in planned:
                    found += [] if _is_unchanged(path, planned[path]) else [path]
                elif is_directory and any(place.startswith(path + b"/") for place in planned):
                    _look(path, planned, found)
                else:
                    found.append(path + b"/" if is_directory else path)
    except OSError:
        return  # it is not there any more


def _entry_at(path: bytes) -> tuple[int, int, int] | None:
    """Return inode, kind and ctime of an entry, zeros where there is none, None where that can't be told."""
    try:
        fd = libc.openat2(None, path, os.O_PATH | os.O_NOFOLLOW, libc.RESOLVE_NO_SYMLINKS)
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0, 0
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        return found.st_ino, stat.S_IFMT(found.st_mode), found.st_ctime_ns
    finally:
        os.close(fd)


def _is_unchanged(path: bytes, content: bytes | None) -> bool:
    if content is None:
        return True
    try:
        fd = os.open(path, _FILE)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        is_same_size = stat.S_ISREG(found.st_mode) and found.st_size == len(content)
        return is_same_size and os.read(fd, len(content) + 1) == content
    finally:
        os.close(fd)


def find_processes(init: int) -> tuple[int, list[bytes]]:
    """Return how many processes are alive below the pid 1 of a sandbox, and the command lines of some of them."""
    found: list[bytes] = []
    waiting = _children(init)
    while waiting and len(found) < _MOST_SEEN:
        pid = waiting.pop(0)
        if _is_alive(pid):
            found.append(pid)
        waiting += _children(int(pid))
    return len(found), [_command(pid) for pid in found[:_MOST_NAMED]]


def _children(pid: int) -> list[bytes]:
    # Whoever has lost its parent is a child of pid 1
    return _read(b"/proc/%d/task/%d/children" % (pid, pid)).split()


def _is_alive(pid: bytes) -> bool:
    # The name of the program is in parentheses and may itself contain some. A process that is exiting stays in state
    # R until its memory is given back: git's helpers do so after git itself.
    state = _read(b"/proc/%b/stat" % pid).rpartition(b")")[2].split()
    return bool(state) and state[0] not in (b"Z", b"X") and not int(state[6]) & _PF_EXITING


def _command(pid: bytes) -> bytes:
    words = _read(b"/proc/%b/cmdline" % pid).rstrip(b"\0").replace(b"\0", b" ")
    return (words or _read(b"/proc/%b/comm" % pid).rstrip(b"\n"))[:_LONGEST]


def _read(path: bytes) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


class Leftovers:
    """What commands have left in the memory of a sandbox that stays: files in its directories, and objects of IPC.

    `tops` are all its directories in memory; `temporary` are those of which a run tells what it has left.
    """

    def __init__(self, init_fd: int, mounts: int, tops: tuple[bytes, ...], temporary: tuple[Temporary, ...]) -> None:
        """Remember what is there before the first command. `init_fd` is its pid 1, `mounts` its mount namespace."""
        self._mounts, self._tops, self._temporary = mounts, tops, temporary
        self._tables: list[int] = []
        self._queues = -1
        try:
            self._open_tables(init_fd)
            with OtherMounts(mounts):
                self._before = _list_memory(tops)
        except OSError:
            self.close()
            raise

    def _open_tables(self, init_fd: int) -> None:
        """Open what lists the objects of IPC: it shows those of the namespace that it was opened in."""
        libc.setns(init_fd, libc.CLONE_NEWIPC)
        try:
            self._tables += [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in _IPC_TABLES]
            self._queues = libc.mount_detached(b"mqueue")
        finally:
            try:
                # Not back to the host's, which is another user namespace's; this process needs none
                libc.unshare(libc.CLONE_NEWIPC)
            except OSError:
                os._exit(1)

    def find(self) -> tuple[bool, tuple[int, list[bytes]]]:
        """Return whether anything is left, and what a plain run tells of that."""
        is_left = any(_has_rows(fd) for fd in self._tables) or bool(os.listdir(self._queues))
        with OtherMounts(self._mounts):
            if _list_memory(self._tops) == self._before:
                return is_left, (0, [])
            return True, _named(self._temporary)

    def close(self) -> None:
        """Let go."""
        for fd in (*self._tables, self._queues):
            if fd >= 0:
                os.close(fd)
        self._tables, self._queues = [], -1


def _has_rows(table: int) -> bool:
    os.lseek(table, 0, os.SEEK_SET)
    # The first line has the names of the columns
    return os.read(table, 4096).count(b"\n") > 1


def _list_memory(tops: tuple[bytes, ...]) -> list[tuple[bytes, tuple[int, ...]]]:
    """Return all entries of directories in memory, of what is mounted in them only the name."""
    found: list[tuple[bytes, tuple[int, ...]]] = []
    for top in tops:
        seen = os.lstat(top)
        found.append((top, (seen.st_mode, seen.st_uid, seen.st_gid)))
        waiting = [top]
        while waiting and len(found) < _MOST_SEEN:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    now = entry.stat(follow_symlinks=False)
                    if now.st_dev != seen.st_dev:
                        found.append((entry.path, ()))
                        continue
                    kept: tuple[int, ...] = (now.st_mode, now.st_uid, now.st_gid, now.st_ino)
                    if stat.S_ISDIR(now.st_mode):
                        waiting.append(entry.path)
                    else:
                        kept += (now.st_size, now.st_mtime_ns, now.st_ctime_ns)
                    found.append((entry.path, kept))
    return sorted(found)


class SpawnedRun:
    """One bwrap from fork to the death of all its processes."""

    def __init__(self, job: Job, reply: Socket, bwrap: int, told: int, block: int) -> None:
        self.job = job
        self.reply = reply
        self.bwrap = bwrap
        self.bwrap_fd = os.pidfd_open(bwrap)
        self.status: int | None = None
        self.told = told
        self.is_init_known = False
        self.block: int | None = block
        self.text = b""
        self.init = 0
        self.init_fd: int | None = None
        self.awaited: tuple[int, ...] = ()
        self.mounts: list[int] = []
        self.is_ended = False
        self.processes: tuple[int, list[bytes]] = (0, [])

    def read_init(self) -> None:
        """Take bwrap's word for the pid of the sandbox's pid 1, which `block` holds back until limits are set."""
        chunk = os.read(self.told, 4096)
        self.text += chunk
        # bwrap writes the pid with one write(2) and the rest later: that is read at the end
        self.init = _number_after(self.text, b'"child-pid":')
        self.is_init_known = bool(self.init) or not chunk
        if self.init:
            self._release()

    def _release(self) -> None:
        assert self.block is not None
        try:
            self.init_fd = self._open_init()
            self._hold_mounts()
            self._set_limits()
            self._tell_start(self.init_fd)
            os.write(self.block, b"x")
        except OSError as error:
            self.kill()
            try_send(self.reply, ("failed", f"limits: {error}"))
            return
        os.close(self.block)
        self.block = None

    def _open_init(self) -> int:
        found = os.pidfd_open(self.init)
        # If it has died since bwrap's word, its pid may be another process's
        if not self._is_of_bwrap() or is_dead(found, 0):
            os.close(found)
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        return found

    def _is_of_bwrap(self) -> bool:
        return _read(b"/proc/%d/stat" % self.init).rpartition(b")")[2].split()[1:2] == [b"%d" % self.bwrap]

    def _set_limits(self) -> None:
        for kind, wanted in self.job.limits:
            hard = resource.prlimit(self.init, kind)[1]
            bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.prlimit(self.init, kind, (bound, bound))
        for path in self.job.cgroups:
            write_setting(path, b"%d" % self.init)
        # If the host runs out of memory, this is what may go first: RLIMIT_DATA does not count all kinds of it
        write_setting(b"/proc/%d/oom_score_adj" % self.init, b"1000")

    def _tell_start(self, init_fd: int) -> None:
        """Give the caller what it watches the run by, and the listener inside if one is wanted."""
        if not self.job.port:
            send(self.reply, ("started",), (init_fd,))
            return

        listener = make_listener(self.init, self.job.port)
        try:
            if is_dead(init_fd, 0):
                # Then its pid may have been another process's already when its namespace was looked for
                raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
            send(self.reply, ("started",), (init_fd, listener))
        finally:
            os.close(listener)

    def _hold_mounts(self) -> None:
        """Keep the mount namespaces of the run until its end is told.

        Otherwise its processes take them apart while they die, and everybody waits for that; nothing can be written
        through a mount that no process has.
        """
        for pid in (self.bwrap, self.init):
            try:
                self.mounts.append(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                continue  # not ours to look into where the spawner has no namespace of its own; it only takes longer

    def hear(self) -> None:
        """Take what comes from the caller. Nothing but "kill" ever does: a byte, or the end of one that went away."""
        _try_read(self.reply)
        self.kill()

    def kill(self) -> None:
        """Kill the sandbox's pid 1, with which the kernel kills all others, or bwrap while there is none."""
        self.is_ended = True
        if self.init_fd is not None:
            libc.kill_pidfd(self.init_fd)
        elif self.status is None:
            self._kill_group()

    def _kill_group(self) -> None:
        # Only while bwrap is not reaped: its pid, which names the group, can't belong to anyone else. The process
        # itself as well: just forked, it may not have made the group yet
        for kill in (os.killpg, os.kill):
            try:
                kill(self.bwrap, libc.SIGKILL)
            except ProcessLookupError:
                continue

    def reap(self) -> bool:
        """Reap bwrap if it has ended; tell whether every process of this run is dead."""
        if self.status is None:
            if os.waitid(os.P_PID, self.bwrap, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            if self.job.temporary and not self.is_ended:
                # The command has ended by itself; what it leaves behind is alive until we kill it
                self.processes = find_processes(self.init)
            # What bwrap started dies with it by PDEATHSIG, or by this if it had not come that far
            self._kill_group()
            self.status = os.waitpid(self.bwrap, 0)[1]
            self.kill()
        return self.init_fd is None or is_dead(self.init_fd, 0)

    def descriptors(self) -> tuple[int, ...]:
        """Return what to wait for now."""
        if self.status is not None:
            return () if self.init_fd is None else (self.init_fd,)
        told = () if self.is_init_known else (self.told,)
        return (self.bwrap_fd, self.reply.fileno(), *told)

    def finish(self) -> None:
        """Tell the caller, with the descriptor by which it sees for itself, and let go of everything."""
        files: tuple[int, list[bytes]] = (0, [])
        if self.job.temporary and len(self.mounts) == _BOTH:
            files = find_files(self.mounts[-1], self.job.temporary)
        self._read_rest()
        init = () if self.init_fd is None else (self.init_fd,)
        try_send(self.reply, ("ended", self.text, files, self.processes), init)
        self.reply.close()
        for fd in (self.bwrap_fd, self.told, self.block, self.init_fd, *self.mounts):
            if fd is not None:
                os.close(fd)

    def _read_rest(self) -> None:
        """Read how the command ended. Nobody is left to write that; if somebody were, others must not wait for it."""
        os.set_blocking(self.told, False)
        try:
            while chunk := os.read(self.told, 4096):
                self.text += chunk
        except BlockingIOError:
            return


class LiveRun(SpawnedRun):
    """A sandbox that stays: its command only waits, others are started by a door, over layers that come and go.

    A request is one message. "door" brings a socket for it; "attach" has overlays with their places inside, and gives
    their filesystems away; "refresh" brings these, and has them look everything up anew; "there" asks what is at some
    paths; "detach" takes all of them away; "watch" says where commands may leave something in memory, "left" asks for
    that; "look" is for what runs there, "maps" for what it has mapped; "stop" stands everything still until "go";
    anything else is the end.
    """

    def __init__(self, job: Job, reply: Socket, bwrap: int, told: int, block: int) -> None:
        super().__init__(job, reply, bwrap, told, block)
        door.take_name(_NAME)
        self.door = 0
        # Each with its descriptor
        self.doors: dict[int, int] = {}
        self.attached: list[bytes] = []
        self.stopper: stopper.Stopper | None = None
        self.leftovers: Leftovers | None = None

    def descriptors(self) -> tuple[int, ...]:
        """Wait for the doors as well: the pid 1 of their namespace does not end before they are reaped.

        A dead one may have to wait for that: it is its tracer's first.
        """
        return (*super().descriptors(), *(fd for pid, fd in self.doors.items() if _is_unreaped(pid)))

    def finish(self) -> None:
        """Let go of the doors too."""
        super().finish()
        for fd in self.doors.values():
            os.close(fd)
        if self.leftovers is not None:
            self.leftovers.close()

    def hear(self) -> None:
        """Do what the caller asks for, and answer."""
        try:
            message = receive(self.reply)
        except (OSError, EOFError, TypeError, ValueError):
            message = None
        if message is None or self.init_fd is None or len(self.mounts) != _BOTH:
            self.kill()
            return
        words, descriptors = message
        try:
            self._answer(words, descriptors)
        except MountRefused as refused:
            try_send(self.reply, ("refused", refused.dest, refused.errno, refused.text))
        except OSError as error:
            try_send(self.reply, ("failed", f"live sandbox: {error}"))
        finally:
            for fd in descriptors:
                os.close(fd)

    def _answer(self, words: Any, descriptors: list[int]) -> None:
        match words:
            case ("door", program, fence, shares_network):
                if not descriptors:
                    # The kernel drops descriptors that do not fit
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                protection = door.Protection(self.job.limits, program, fence, shares_network=shares_network)
                made = self._make_door(descriptors[0], protection)
                try_send(self.reply, ("made",), (made,))
            case ("attach", overlays):
                self._attach(overlays)
            case ("detach",):
                try_send(self.reply, ("detached",) if self._detach() else ("busy",))
            case ("refresh", count):
                try_send(self.reply, ("refreshed", len(descriptors) == count and all(map(refresh, descriptors))))
            case ("there", paths):
                with OtherMounts(self.mounts[-1]):
                    found = tuple(map(_entry_at, paths))
                try_send(self.reply, ("there", found))
            case ("watch", tops, temporary):
                assert self.init_fd is not None
                self.leftovers = Leftovers(self.init_fd, self.mounts[-1], tops, temporary)
                try_send(self.reply, ("watched",))
            case ("left",):
                try_send(self.reply, ("left", *((False, (0, [])) if self.leftovers is None else self.leftovers.find())))
            case ("look",):
                is_there = self.door in self._living_doors()
                try_send(self.reply, ("seen", find_processes(self.door) if is_there else (0, [])))
            case ("stop",):
                self._stop()
            case ("maps",):
                try_send(self.reply, ("mapped", self._make_stopper().mapped()))
            case ("go",):
                is_still, used = self._go()
                try_send(self.reply, ("going", is_still, used))
            case _:
                self.kill()

    def _stop(self) -> None:
        """Stand everything still, and tell what is mapped there; or tell that it goes on."""
        self._go()
        found = self._make_stopper(self.job.cgroups)
        try:
            is_still = found.stop()
            mapped = found.mapped() if is_still else None
        except BaseException:
            found.release()
            raise
        self.stopper = found if is_still else None
        try_send(self.reply, ("stopped", is_still, mapped))

    def _make_stopper(self, member_files: tuple[bytes, ...] = ()) -> stopper.Stopper:
        """Return what stands the sandbox still, but its doors."""
        assert self.init_fd is not None
        found = stopper.Stopper(self.init, self._living_doors(), member_files)
        if is_dead(self.init_fd, 0):
            # Then its pid may have been another process's already when its namespace was looked for
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        return found

    def _living_doors(self) -> list[int]:
        """Return the pids of the doors that are alive: that of a dead one may be a command's by now."""
        return [pid for pid, fd in self.doors.items() if not is_dead(fd, 0)]

    def kill(self) -> None:
        """Let go of everybody first: the dead wait for whoever traces them."""
        self._go()
        super().kill()

    def _go(self) -> tuple[bool, str]:
        """Let everything go on, and tell whether it stood still until now, and how it was stopped."""
        found, self.stopper = self.stopper, None
        if found is None:
            return False, ""
        is_still = found.is_still()
        found.release()
        return is_still, found.used

    def _make_door(self, to: int, protection: door.Protection) -> int:
        """Fork the process that starts commands inside, and return its descriptor, which stays ours.

        It is not dumpable from before the fork on. One that is not dumpable can't say that it may go first if the host
        runs out of memory, so that is said before. Whoever is alive inside can send it signals from its first moment
        on. Here one would raise in a fork that still is a spawner, so they wait until it is none.
        """
        assert self.init_fd is not None
        home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        begin_read, begin_write = os.pipe()
        before = _read(b"/proc/self/oom_score_adj").strip()
        write_setting(b"/proc/self/oom_score_adj", b"1000")
        libc.prctl(libc.PR_SET_DUMPABLE, 0)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            libc.setns(self.init_fd, libc.CLONE_NEWPID)
            try:
                self.door = os.fork()
                if not self.door:
                    door.be_door(self.init_fd, to, begin_read, protection)
            finally:
                libc.setns(home, libc.CLONE_NEWPID)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            libc.prctl(libc.PR_SET_DUMPABLE, 1)
            write_setting(b"/proc/self/oom_score_adj", before)
            os.close(home)
            os.close(begin_read)
        try:
            # One that is waited for must not be closed: another would get its number, and nobody would wait for that
            for pid in [pid for pid, fd in self.doors.items() if fd not in self.awaited]:
                os.close(self.doors.pop(pid))
            self.doors[self.door] = os.pidfd_open(self.door)
            for path in self.job.cgroups:
                write_setting(path, b"%d" % self.door)
            os.write(begin_write, b"x")
            return self.doors[self.door]
        finally:
            os.close(begin_write)

    def _attach(self, overlays: Overlays) -> None:
        for _lowers, _dest, _upper, work in overlays:
            if work is not None:
                make_mountable(work)
        # Here the lower directories are as the host has them
        made = make_overlays(overlays)
        try:
            with OtherMounts(self.mounts[-1]):
                for (fd, _filesystem), (_lowers, dest, _upper, _work) in zip(made, overlays, strict=True):
                    attach(fd, dest)
                    self.attached.append(dest)
            try_send(self.reply, ("attached",), tuple(filesystem for _fd, filesystem in made))
        finally:
            for pair in made:
                for fd in pair:
                    os.close(fd)

    def _detach(self) -> bool:
        """Take the overlays away, and tell whether nothing used them: the kernel knows.

        What could not be taken away stays, and what could is gone: nothing writes to a layer that is not mounted.
        """
        with OtherMounts(self.mounts[-1]):
            try:
                while self.attached:
                    libc.umount(self.attached[-1])
                    self.attached.pop()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
        return not self.attached


def try_send(to: Socket, message: object, descriptors: tuple[int, ...] = ()) -> bool:
    """Tell whether a message was sent: the other end may be gone."""
    try:
        send(to, message, descriptors)
    except OSError:
        return False
    return True


def _number_after(text: bytes, key: bytes) -> int:
    start = text.find(key)
    if start < 0:
        return 0
    return int(text[start + len(key) :].split(b",")[0].split(b"}")[0])


class Starter:
    """Starts bwraps from one process, each in a mount namespace of its own."""

    def __init__(self) -> None:
        self._base = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        # Python ignores SIGPIPE, and execve keeps that; the command begins with no signal ignored or blocked
        self._ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]

    def start(self, job: Job, descriptors: Sequence[int]) -> int:
        """Start a job's bwrap, leading a process group of its own, with `descriptors` as 0, 1, 2, ...

        Raises:
            MountRefused: an overlay can't be mounted.
            OSError: there is no process to be had.
        """
        if not job.overlays:
            return self._spawn(job, descriptors)
        libc.unshare(libc.CLONE_NEWNS)
        try:
            # Until here the namespace was a slave of the host's; from here on it is this run's alone
            libc.mount(None, b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)
            mount_overlays(job.overlays, job.kept)
            return self._spawn(job, descriptors)
        finally:
            self._step_back()

    def _step_back(self) -> None:
        try:
            libc.setns(self._base, libc.CLONE_NEWNS)
        except OSError:
            # Better no run than one that starts from another's overlays
            os._exit(1)

    def _spawn(self, job: Job, descriptors: Sequence[int]) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(descriptors)]
        own_umask = os.umask(job.umask)
        try:
            return os.posix_spawn(
                job.program,
                job.argv,
                {},
                file_actions=actions,
                setpgroup=0,
                setsigmask=(),
                setsigdef=self._ignored,
            )
        finally:
            os.umask(own_umask)


def reserve_numbers() -> None:
    """Occupy the low descriptor numbers, so that placing one of a job's descriptors never overwrites another."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    while null < RESERVED:
        null = os.dup(null)
    os.close(null)


def place_descriptors(descriptors: Sequence[int]) -> None:
    """Make `descriptors` 0, 1, 2, ... of this process, and close all others."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, RESERVED) for fd in descriptors]
    for number, fd in enumerate(moved):
        os.dup2(fd, number)
    os.closerange(len(moved), 1 << 20)


class Spawner:
    """The loop of the spawner process."""

    def __init__(self, control: Socket, caller: int | None) -> None:
        self._control = control
        self._caller = caller
        self._starter = Starter()
        self._waiting: dict[int, SpawnedRun] = {}
        self._bwraps: set[int] = set()
        self._most = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED - _ROOM) // _DESCRIPTORS_EACH
        # poll(2) would look at every descriptor of every run each time one of them has something to say
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)
        if caller is not None:
            self._poll.register(caller, select.EPOLLIN)

    def loop(self) -> None:
        """Start what is asked for and report ends, until the caller closes its socket or is dead.

        The socket alone does not tell: a fork of the caller has it too.
        """
        self._greet()
        while True:
            ready = self._serve_all()
            _reap_orphans(self._bwraps)
            if self._caller in ready:
                return
            if self._control.fileno() in ready:
                message = receive_job(self._control)
                if message is None:
                    return
                self._try_start(*message)

    def end_all(self) -> None:
        """Kill what is alive and wait for it. Where this process is a pid 1, the kernel does that by itself."""
        self._poll.unregister(self._control.fileno())
        if self._caller is not None:
            self._poll.unregister(self._caller)
        for run in list(self._waiting.values()):
            run.kill()
        while self._waiting:
            self._serve_all()

    def _greet(self) -> None:
        """Give the caller a descriptor of this process, by which it learns when this and all of its are dead."""
        me = os.pidfd_open(os.getpid())
        try_send(self._control, ("spawner",), (me,))
        os.close(me)

    def _serve_all(self) -> list[int]:
        """Wait until something happens and serve the runs it happened to; return what was ready."""
        ready = [fd for fd, _event in self._poll.poll()]
        for run in {id(run): run for run in map(self._waiting.get, ready) if run}.values():
            self._serve(run, ready)
        return ready

    def _serve(self, run: SpawnedRun, ready: list[int]) -> None:
        if not run.is_init_known and run.told in ready:
            run.read_init()
        if run.status is None and run.reply.fileno() in ready:
            run.hear()
        is_over = (run.status is not None or run.bwrap_fd in ready) and run.reap()
        self._wait_for(run, () if is_over else run.descriptors())
        if is_over:
            self._bwraps.discard(run.bwrap)
            run.finish()

    def _wait_for(self, run: SpawnedRun, descriptors: tuple[int, ...]) -> None:
        """Wait for these descriptors of a run from now on, and for no others of it."""
        for fd in run.awaited:
            if fd not in descriptors:
                del self._waiting[fd]
                self._poll.unregister(fd)
        for fd in descriptors:
            if fd not in run.awaited:
                self._waiting[fd] = run
                self._poll.register(fd, select.EPOLLIN)
        run.awaited = descriptors

    def _try_start(self, job: Job | None, descriptors: list[int]) -> None:
        """Start a job; if there is no process or descriptor to be had for it, others must go on."""
        if job is None or not descriptors:
            return  # more runs than descriptors: the caller's end of the reply is closed already
        reply, given = Socket(fileno=descriptors[0]), descriptors[1:]
        try:
            if len(given) < len(Job.DESCRIPTORS) or len(self._bwraps) >= self._most:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._start(job, reply, given)
        except MountRefused as refused:
            _refuse(reply, ("refused", refused.dest, refused.errno, refused.text))
        except OSError as error:
            _refuse(reply, ("failed", f"could not start bwrap: {error}"))
        finally:
            for fd in given:
                os.close(fd)

    def _start(self, job: Job, reply: Socket, given: list[int]) -> None:
        told_read, told_write = os.pipe()
        block_read, block_write = os.pipe()
        stdio, files = given[: len(Job.DESCRIPTORS)], given[len(Job.DESCRIPTORS) :]
        try:
            pid = self._starter.start(job, (*stdio, told_write, block_read, *files))
            run = _follow(job, reply, pid, told_read, block_write)
            self._bwraps.add(pid)
            self._wait_for(run, run.descriptors())
        except BaseException:
            os.close(told_read)
            os.close(block_write)
            raise
        finally:
            os.close(told_write)
            os.close(block_read)


def _follow(job: Job, reply: Socket, bwrap: int, told: int, block: int) -> SpawnedRun:
    """Return the run of a bwrap; one that can't be followed for want of descriptors must not go on."""
    try:
        return (LiveRun if job.live else SpawnedRun)(job, reply, bwrap, told, block)
    except OSError:
        os.killpg(bwrap, libc.SIGKILL)
        os.waitpid(bwrap, 0)
        raise


def run_spawner(control: Socket, parent: int, *, own_namespace: bool) -> None:
    """Become the spawner of `parent` and return when it is gone. Called in a child that has nothing else to do."""
    os.umask(0o077)
    os.chdir("/")
    # A parent that is out of sight, in another pid namespace, is 0
    caller = os.pidfd_open(parent) if os.getppid() == parent else None
    if caller is None and os.getppid():
        return
    # A caller may ignore it, and then nobody could be waited for
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    allow_many_descriptors()
    reserve_numbers()
    if not own_namespace:
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        spawner = Spawner(control, caller)
        spawner.loop()
        spawner.end_all()
        return
    enter_own_namespaces()
    pid = os.fork()
    if pid:
        control.close()
        _wait_for(pid)
        return
    # unshare(CLONE_NEWUSER) clears it, so only now; a dead parent would leave nobody to reap this process
    libc.prctl(libc.PR_SET_PDEATHSIG, libc.SIGKILL)
    show_own_processes()
    Spawner(control, caller).loop()
    os._exit(0)


def allow_many_descriptors() -> None:
    """Take all descriptors that the host grants."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> NoReturn:
    """Run as a program of its own: descriptor 3 is the socket, the arguments are `own` or `shared`, and the caller."""
    os.closerange(_SOCKET_FD + 1, 1 << 20)
    os.set_inheritable(_SOCKET_FD, False)
    control = Socket(fileno=_SOCKET_FD)
    run_spawner(control, int(sys.argv[2]), own_namespace=sys.argv[1] == "own")
    os._exit(0)


def _reap_orphans(known: set[int]) -> None:
    """Reap what was left to this process by a bwrap that died before its children did."""
    while True:
        try:
            waited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if waited is None or waited.si_pid in known:
            return
        if waited.si_code in (os.CLD_TRAPPED, os.CLD_STOPPED):
            # The kernel tells of what is traced, whatever it is asked for; that is for whoever stopped it
            return
        os.waitpid(waited.si_pid, 0)


def _is_unreaped(pid: int) -> bool:
    """Tell whether a child of this process is still there, be it dead."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _wait_for(pid: int) -> None:
    os.closerange(0, 1 << 20)
    os.waitpid(pid, 0)


def _try_read(reply: Socket) -> None:
    try:
        reply.recv(16)
    except ConnectionError:
        return  # the caller went away without reading what it was told


def _refuse(reply: Socket, words: tuple[object, ...]) -> None:
    try_send(reply, words)
    try_send(reply, ("ended", b"", (0, []), (0, [])))
    reply.close()


def make_listener(init: int, port: int) -> int:
    """Return a socket that listens on a port of the loopback of a sandbox, of which `init` is pid 1.

    Raises:
        OSError: the kernel does not let us in, or there is no process or descriptor to be had.
    """
    # By descriptor from here on: a pid could be somebody else's by then
    namespace = os.open(f"/proc/{init}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    try:
        pid = os.fork()
        if not pid:
            _serve_as_child(theirs, namespace, port)
        theirs.close()
        message = receive(ours)
        os.waitpid(pid, 0)
    finally:
        os.close(namespace)
        ours.close()
        theirs.close()
    if message is None:
        raise OSError("the listener of the sandbox could not be made")
    (problem, text), descriptors = message
    if problem:
        raise OSError(problem, text)
    return descriptors[0]


def _serve_as_child(to: socket, namespace: int, port: int) -> NoReturn:
    """Send the socket out and end, whatever happens: another spawner must not come of this process."""
    try:
        _send_listener(to, namespace, port)
    finally:
        os._exit(0)


def _send_listener(to: socket, namespace: int, port: int) -> None:
    """Make the socket inside and send it out, or why there is none."""
    try:
        # bwrap's own user namespace, in which this user has every capability because it is theirs
        libc.setns(fcntl.ioctl(namespace, _NS_GET_USERNS), libc.CLONE_NEWUSER)
        libc.setns(namespace, libc.CLONE_NEWNET)
        listener = socket(AF_INET, SOCK_STREAM)
        # bwrap may not have brought loopback up yet, and then it has no address
        listener.setsockopt(0, _IP_FREEBIND, 1)
        listener.setsockopt(SOL_SOCKET, _SO_REUSEADDR, 1)
        listener.bind((_LOOPBACK, port))
        listener.listen(_BACKLOG)
        send(to, (0, ""), (listener.fileno(),))
    except OSError as error:
        send(to, (error.errno or -1, f"network of the sandbox: {error.strerror or error}"))
