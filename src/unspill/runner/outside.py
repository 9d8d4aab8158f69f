# SPDX-License-Identifier: Apache-2.0
"""Watches what the person does to the live directories of a sandbox while commands are alive in it.

An overlay keeps the names that were looked up in it. What is renamed below it stays as it was for everybody inside: a
file that was saved by a rename is the old one, a deleted one still opens, and a moved one has two names. So whenever
names come or go outside, the overlay is refreshed, which drops all names that nothing inside uses, and again until both
sides agree. What was taken away outside and may have been written by its old name is remembered: such a change is held
as a conflict. What was changed is found in the layers alone, as always.

Directories are watched from the top on, up to a bound, and not those that others fill: git's own, and packages. Nothing
waits for the thread that watches.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from _thread import allocate_lock, start_new_thread
from collections import deque

from unspill.host import libc
from unspill.host.overlay import is_whiteout
from unspill.model.run import TakenAway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    # A root, and a path in it
    Name = tuple[bytes, bytes]
    # Refreshes. Of names that came or went it returns those that are not the same inside; of names that went those that
    # are in a layer by now. None where it did not look
    Look = Callable[[Collection[Name], Collection[Name]], tuple[set[Name], set[Name]] | None]

    # Inode, kind and ctime of what is inside; zeros for nothing, None where nobody can tell
    There = tuple[int, int, int] | None

_MOST_WATCHED = 8192
_LEFT_OUT = frozenset((b".git", b".hg", b".jj", b".svn", b"node_modules", b"site-packages"))
# Two ticks of the slowest clock that kernels have
_TICKS_NS = 20_000_000
# Until the next look at what is not the same yet, and at the latest: some names never are, such as one that is masked
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 60.0
# After a look that took long
_LONGEST_REST_S = 1.0
# So many directories are begun to be watched before others get their turn, and that pause
_AT_ONCE, _TURN_S = 64, 0.001
_GONE = libc.IN_DELETE | libc.IN_MOVED_FROM


class Outside:
    """Watches some live directories until it is closed, and calls `look` when names have come or gone in them.

    Raises:
        OSError: the user has no inotify instance, descriptor or thread left.
    """

    def __init__(self, roots: Sequence[bytes], look: Look) -> None:
        self._roots = roots
        self._look = look
        # Guards what follows; it is never held during a look
        self._lock = allocate_lock()
        self._inotify = libc.inotify_init()
        try:
            self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            os.close(self._inotify)
            raise
        self.is_closed = False
        # Whether the kernel has no more watches for this user
        self.lacks_watches = False
        self._numbers: dict[int, Name] = {}
        # Directories with their numbers, and with those in them that are watched
        self._watched: dict[Name, tuple[int, set[Name]]] = {}
        # Directories that are yet to be watched, and whether they came while somebody watched those above
        self._waiting: deque[tuple[Name, bool]] = deque(((root, b""), False) for root in roots)
        self._begun_ns = time.time_ns()
        # Watched directories in which no name came or went unseen since the span began
        self._known: set[Name] = set()
        # Names that came or went since the last look, that are not the same inside yet, and that went
        self._changed: set[Name] = set()
        self._stale: set[Name] = set()
        self._gone: set[Name] = set()
        # Names that went, and that a layer has
        self._written: set[Name] = set()
        self._uppers: dict[bytes, bytes] = {}
        try:
            start_new_thread(self._run, ())
        except RuntimeError as error:
            self._close_all()
            raise OSError(errno.EAGAIN, str(error)) from error

    def begin(self, uppers: dict[bytes, bytes]) -> None:
        """Take note of the layer of each root that is mounted now: it shows what is there."""
        with self._lock:
            self._drain()
            self._uppers = uppers
            self._begun_ns = time.time_ns()
            self._known = set(self._watched)
            for names in (self._changed, self._stale, self._gone, self._written):
                names.clear()

    def catch_up(self, look: Look) -> None:
        """Have inside what is outside by now, as far as nothing there uses the old names."""
        self._settle(look)
        with self._lock:
            if not self.is_closed:
                # The thread may wait for events that were taken in here
                os.write(self._wake_write, b"x")

    def _settle(self, look: Look) -> None:
        with self._lock:
            self._drain()
            changed, gone = self._changed | self._stale, set(self._gone)
            self._changed = set()
        found = look(changed, gone)
        with self._lock:
            if found is None:
                self._changed |= changed
                return
            stale, written = found
            self._written |= written
            self._stale = (self._stale - changed) | stale
            # What does not show any more, and no layer has, can't be written by its old name. Another look may be at
            # the names that this one was not asked for
            self._gone -= (((gone & changed) - stale) | written) - self._changed

    def excuse(self, paths: Collection[bytes]) -> None:
        """Take note that these went because unspill has put something there, not the person."""
        with self._lock:
            self._drain()
            for names in (self._gone, self._written):
                names.difference_update({(root, path) for root, path in names if root + b"/" + path in paths})

    def taken_away(self) -> tuple[tuple[bytes, TakenAway], ...]:
        """Return by root what was taken away and may have been written, and what was watched."""
        with self._lock:
            self._drain()
            taken = self._written | {name for name in self._gone if self.is_in_layer(name)}
            known = set(self._known)

        def of(root: bytes) -> TakenAway:
            names, watched = ({path for above, path in found if above == root} for found in (taken, known))
            return TakenAway(names=frozenset(names), watched=frozenset(watched))

        return tuple((root, of(root)) for root in self._uppers if root in self._roots)

    def is_in_layer(self, name: Name) -> bool:
        """Tell whether a layer has something at a path that may be what was there, or was made from it."""
        root, path = name
        place = self._uppers.get(root, b"") + b"/" + path
        try:
            return not is_whiteout(os.lstat(place))
        except OSError:
            return False

    def close(self) -> None:
        """End the watching, without waiting for it."""
        with self._lock:
            if not self.is_closed:
                self._drain()
                self.is_closed = True
                os.write(self._wake_write, b"x")

    def _close_all(self) -> None:
        self.is_closed = True
        for fd in (self._wake_read, self._wake_write, self._inotify):
            os.close(fd)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._inotify, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        pause_s = _FIRST_PAUSE_S
        try:
            while not self.is_closed:
                with self._lock:
                    has_more = self._watch_next()
                    is_open = bool(self._stale)
                if has_more:
                    # Whoever waits for the lock gets it only where this thread sleeps
                    time.sleep(_TURN_S)
                    continue
                happened = bool(poll.poll(pause_s * 1000 if is_open else None))
                begun = time.monotonic()
                if self.is_closed or not self._has_work():
                    continue
                self._settle(self._look)
                # Where much happens at once the commands inside shall have time for something else
                cost_s = time.monotonic() - begun
                pause_s = max(_FIRST_PAUSE_S, cost_s) if happened else min(2 * pause_s, _LONGEST_PAUSE_S)
                time.sleep(min(cost_s, _LONGEST_REST_S))
        finally:
            with self._lock:
                self._close_all()

    def _has_work(self) -> bool:
        with self._lock:
            while not self.is_closed and self._is_woken():
                continue
            self._drain()
            return bool(self._changed or self._stale)

    def _is_woken(self) -> bool:
        try:
            return bool(os.read(self._wake_read, 4096))
        except BlockingIOError:
            return False

    def _watch_next(self) -> bool:
        """Watch the next directories that wait for it; tell whether there may be more."""
        for _ in range(_AT_ONCE):
            if not self._waiting or self.is_closed:
                return False
            self._watch(*self._waiting.popleft())
        return True

    def _watch(self, name: Name, is_new: bool) -> None:
        root, path = name
        place = root + b"/" + path
        if len(self._watched) < _MOST_WATCHED:
            try:
                number = libc.inotify_add_watch(self._inotify, place)
                self._numbers[number], self._watched[name] = name, (number, set())
                above = root, path.rpartition(b"/")[0]
                if path and above in self._watched:
                    self._watched[above][1].add(name)
                is_old = os.lstat(place).st_ctime_ns < self._begun_ns - _TICKS_NS
                # The person may have changed a new one that a run made before it was watched
                if is_old or (is_new and not self.is_in_layer(name)):
                    self._known.add(name)
            except OSError as error:
                # It is gone or closed to us, or there are no more
                self.lacks_watches |= error.errno == errno.ENOSPC
                return
        elif not is_new:
            return
        prefix = path + b"/" if path else b""
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    inner = root, prefix + entry.name
                    if is_new:
                        self._changed.add(inner)
                    if entry.name not in _LEFT_OUT and entry.is_dir(follow_symlinks=False):
                        self._waiting.append((inner, is_new))
        except OSError:
            self._known.discard(name)

    def _drain(self) -> None:
        """Take in what has happened since."""
        if self.is_closed:
            return
        for number, what, entry in libc.inotify_read(self._inotify):
            if what & libc.IN_Q_OVERFLOW:
                self._start_again()
                return
            above = self._numbers.get(number)
            if above is None:
                continue
            if what & libc.IN_IGNORED:
                self._forget(above)
                continue
            root, path = above
            name = root, path + b"/" + entry if path else entry
            self._changed.add(name)
            if what & _GONE:
                self._gone.add(name)
            if what & libc.IN_ISDIR:
                self._forget(name)
                if not what & _GONE and entry not in _LEFT_OUT:
                    self._waiting.append((name, True))

    def _start_again(self) -> None:
        """Watch everything anew: events were lost."""
        for name in list(self._watched):
            self._forget(name)
        self._waiting = deque(((root, b""), False) for root in self._roots)
        # Whatever it was, it is to be seen inside
        self._changed.update((root, b"") for root in self._roots)

    def _forget(self, name: Name) -> None:
        """Watch a directory no more, nor those in it."""
        number, inside = self._watched.pop(name, (-1, set()))
        self._known.discard(name)
        if self._numbers.get(number) == name:
            del self._numbers[number]
            libc.inotify_rm_watch(self._inotify, number)
        for inner in inside:
            self._forget(inner)


def is_same(found: os.stat_result | None, there: There, *, has_inodes: bool, is_known: bool) -> bool:
    """Tell whether what is inside is what is outside.

    Unless it `has_inodes`, directories have other numbers there, and only one that `is_known` can be told by its time.
    """
    if there is None:
        return True
    inode, kind, ctime_ns = there
    if found is None or not kind:
        return found is None and not kind
    # The upper half may say which filesystem it is of
    is_same_inode = (inode ^ found.st_ino) & 0xFFFF_FFFF == 0
    if stat.S_ISDIR(found.st_mode):
        is_same_directory = is_same_inode if has_inodes else is_known and ctime_ns == found.st_ctime_ns
        return kind == stat.S_IFDIR and is_same_directory
    # A number is soon used again
    return kind == stat.S_IFMT(found.st_mode) and is_same_inode and ctime_ns == found.st_ctime_ns
