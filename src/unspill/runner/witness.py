# SPDX-License-Identifier: Apache-2.0
"""Hears of every file that a command names, and keeps which of them its plan refuses.

It tells and never decides: the kernel makes each call as if nobody had looked. What it keeps is bounded, whatever the
command does; what it could not see is not told.
"""

from __future__ import annotations

import os
import select

from unspill.host import libc
from unspill.host.notices import Notices
from unspill.model.plan import Overlay
from unspill.model.run import FileDenial
from unspill.plan.denied import Judge, remedy_of
from unspill.policy.paths import contains

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.host.notices import Access, Notice
    from unspill.model.plan import Plan
    from unspill.plan.denied import Refusal

MOST_TOLD = 256
# Where the command may have made something of the same name by itself
_MAY_BE_INSIDE = ("hidden", "secret")
# Where names are everybody's on this machine. Elsewhere a mere look may also go out to another host, where directories
# are mounted when they are named. /tmp is among them because programs look there for hundreds of names that nobody has
_PUBLIC = (
    b"/usr/",
    b"/etc/",
    b"/opt/",
    b"/var/",
    b"/bin/",
    b"/sbin/",
    b"/lib/",
    b"/lib64/",
    b"/proc/",
    b"/dev/",
    b"/tmp/",
)
_MOST_KEPT = 2048
_RETRIES = 16
_MOST_REMEMBERED = 20_000
_LONGEST_REMEMBERED = 512


class Witness:
    """One run's file accesses, judged by its plan."""

    def __init__(self, plan: Plan) -> None:
        self._has_rootfs = bool(plan.rootfs)
        self._judge = Judge(plan.mounts, frozenset(_secrets(plan)), has_rootfs=self._has_rootfs)
        self._home = dict(plan.environ).get(b"HOME", b"/")
        # A build names the same few thousand paths over and over
        self._judged: dict[tuple[bytes, bool], Refusal | None] = {}
        self._found: dict[tuple[bytes, bool], tuple[Refusal, int]] = {}

    def serve(self, listener: int, stop: int) -> None:
        """Answer the kernel until every process that could be told of is dead, or `stop` is readable."""
        notices = Notices(listener)
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        waiting.register(stop, select.POLLIN)
        while True:
            ready = dict(waiting.poll())
            if stop in ready or not ready.get(listener, 0) & select.POLLIN:
                return
            self._serve_one(notices)

    def _serve_one(self, notices: Notices) -> None:
        notice = notices.next()
        if notice is None:
            return
        try:
            for access in notices.accesses(notice):
                self._look(notices, notice, access)
        except (OSError, ValueError):
            pass  # nothing to tell of a call whose arguments are none
        finally:
            notices.go_on(notice)

    def _look(self, notices: Notices, notice: Notice, access: Access) -> None:
        refusal = self._refusal(access)
        if refusal is None or not notices.is_alive(notice):
            return
        key = refusal.path, access.is_write
        place = os.path.dirname(refusal.path) if access.is_write else refusal.path
        if refusal.kind in _MAY_BE_INSIDE and _is_inside(notice.pid, place):
            if access.is_write:
                # Some programs make a directory only after the first attempt has failed
                self._found.pop(key, None)
            return
        if key in self._found or len(self._found) < _MOST_KEPT:
            _refusal, times = self._found.get(key, (refusal, 0))
            self._found[key] = refusal, times + 1

    def _refusal(self, access: Access) -> Refusal | None:
        key = access.path, access.is_write
        if key in self._judged:
            return self._judged[key]
        refusal = self._judge.refusal(access.path, is_write=access.is_write)
        if refusal is not None and access.is_write and refusal.kind == "hidden":
            # In /tmp only the host could say whether it has that directory, and it would say it to a model
            refusal = refusal if contains(self._home, refusal.path) else None
        if len(self._judged) >= _MOST_REMEMBERED:
            self._judged.clear()
        if len(access.path) <= _LONGEST_REMEMBERED:
            self._judged[key] = refusal
        return refusal

    def denied(self) -> tuple[FileDenial, ...]:
        """Return what the plan refused and the host would not have refused by itself.

        Of private places the host is not asked: whoever reads this may be the model that chose the paths, and must not
        learn which of them exist. Called when the run is over: asked earlier, the host's answer would take longer for
        what it has, and the command could tell.
        """
        found: list[FileDenial] = []
        for (_path, is_write), (refusal, times) in self._found.items():
            if len(found) < MOST_TOLD and self._is_ours(refusal, is_write=is_write):
                found.append(self._denial(refusal, times, is_write=is_write))
        return tuple(found)

    def _is_ours(self, refusal: Refusal, *, is_write: bool) -> bool:
        """Tell whether it is the sandbox that refuses, and not what the host would say by itself."""
        if self._has_rootfs:
            return True  # the host has other files at the same paths
        if is_write:
            parent = os.path.dirname(refusal.path)
            return refusal.kind in ("outside", "hidden") or any(
                os.access(path, os.W_OK) for path in (refusal.path, parent)
            )
        return self._is_private(refusal) or os.path.lexists(refusal.path)

    def _is_private(self, refusal: Refusal) -> bool:
        """Tell whether it is the person's alone to know what exists at a path."""
        return refusal.kind == "secret" or contains(self._home, refusal.path) or not refusal.path.startswith(_PUBLIC)

    def _denial(self, refusal: Refusal, times: int, *, is_write: bool) -> FileDenial:
        return FileDenial(
            path=refusal.path,
            access="write" if is_write else "read",
            rule=refusal.rule,
            remedy=remedy_of(refusal, is_write=is_write, home=self._home),
            times=times,
        )


def _secrets(plan: Plan) -> Iterator[bytes]:
    """Yield the paths in roots that a mask has deleted."""
    for operation in plan.mounts:
        if isinstance(operation, Overlay) and operation.mask is not None:
            for directory, _names, files in os.walk(operation.mask):
                below = os.path.relpath(directory, operation.mask)
                yield from (os.path.normpath(os.path.join(operation.dest, below, name)) for name in files)


def _is_inside(pid: int, path: bytes) -> bool:
    """Tell whether a process has something at a path of its own, without leaving its root."""
    root = os.open(b"/proc/%d/root" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_RETRIES):
            try:
                os.close(libc.openat2(root, path, os.O_PATH | os.O_NOFOLLOW, libc.RESOLVE_IN_ROOT))
                return True
            except BlockingIOError:
                continue  # something was renamed or mounted meanwhile, wherever on this machine
        return False
    except OSError:
        return False
    finally:
        os.close(root)
