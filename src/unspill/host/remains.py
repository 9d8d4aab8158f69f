# SPDX-License-Identifier: Apache-2.0
"""What is lost at the end of a run: files in the directories in memory, and processes that are killed.

The spawner looks: it has the run's mount namespace still when everybody in it is dead, and it decides when the rest is
killed. Commands choose what is found, so names and numbers are bounded. Nothing is imported, read or executed of what
lies there but one file that is compared.
"""

from __future__ import annotations

import os
import stat

from unspill.host import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    # A directory in memory, and what the plan has made in it: by path the content of files, None of all else
    Temporary = tuple[bytes, dict[bytes, bytes | None]]

_MOST_SEEN = 1000
_MOST_NAMED = 5
_LONGEST = 300
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def find_files(mounts: int, temporary: tuple[Temporary, ...]) -> tuple[int, list[bytes]]:
    """Return how many entries a run has left in its directories in memory, and the paths of some of them.

    `mounts` is its mount namespace, in which nobody is any more. What is in a new directory is not counted.
    """
    base = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc.setns(mounts, libc.CLONE_NEWNS)
        try:
            found: list[bytes] = []
            for top, planned in temporary:
                _look(top, planned, found)
        finally:
            _step_back(base)
    except OSError:
        return 0, []  # not ours to enter
    finally:
        os.close(base)
    return len(found), [path[:_LONGEST] for path in found[:_MOST_NAMED]]


def _step_back(base: int) -> None:
    try:
        libc.setns(base, libc.CLONE_NEWNS)
    except OSError:
        # Better no run than one that starts from another's mounts
        os._exit(1)


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
    # The name of the program is in parentheses and may itself contain some
    state = _read(b"/proc/%b/stat" % pid).rpartition(b")")[2].split()
    return bool(state) and state[0] not in (b"Z", b"X")


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
