# SPDX-License-Identifier: Apache-2.0
"""Which rule of a plan refuses an access to a path, and what a person could do to allow it.

Judges by names: a path as the command gave it, through links that the plan itself makes. Whether the host has
something there, or would have refused it too, is for whoever can look. What is proposed never depends on what the
host has: a model that reads it must not learn that.
"""

from __future__ import annotations

import posixpath

from unspill.errors import RootRefused
from unspill.model.plan import Bind, Directory, File, Overlay, ReadOnly, Symlink, Tmpfs
from unspill.model.record import Record
from unspill.plan.visible import find_cover
from unspill.policy.defaults import check_root
from unspill.policy.paths import contains, lies_beneath, normalise, shell_word, show
from unspill.policy.secrets import find_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.model.plan import MountOp

    RefusalKind = Literal["outside", "read-only", "hidden", "masked"]

_MOST_LINKS = 8
_ELSEWHERE = "write to the project, the playground or /tmp instead"
_OF_ROOTFS = "of the rootfs"


class Refusal(Record):
    """Why a path can't be had: `outside` all that is shown, `read-only`, `hidden` by something fresh
    (of a write: its directory is, unless the command has made it), or `masked`.

    `path` is where it really lies.
    """

    kind: RefusalKind
    path: bytes
    rule: str


class Judge:
    """The mounts of one plan, asked many times."""

    def __init__(self, mounts: tuple[MountOp, ...], *, has_rootfs: bool = False) -> None:
        """Take the mounts. In a rootfs nobody expects what the host has, so only masks keep anything from a reader."""
        self._mounts = mounts
        self._has_rootfs = has_rootfs
        self._closed = {operation.dest for operation in mounts if isinstance(operation, ReadOnly)}

    def refusal(self, path: bytes, *, is_write: bool) -> Refusal | None:
        """Return what refuses an access to an absolute path, None where nothing of the plan does."""
        path = normalise(path)
        for _ in range(_MOST_LINKS):
            cover = find_cover(self._mounts, path)
            if not isinstance(cover, Symlink):
                return self._of_write(path, cover) if is_write else self._of_read(path, cover)
            target = posixpath.join(posixpath.dirname(cover.dest), cover.target)
            path = normalise(target + path[len(cover.dest) :])
        return None

    def _of_write(self, path: bytes, cover: MountOp | None) -> Refusal | None:
        match cover:
            case None:
                return Refusal(kind="outside", path=path, rule="outside the roots: the sandbox has nothing there")
            case Bind() if not cover.writable:
                return self._read_only(path, cover)
            case Overlay() if cover.upper is None:
                return self._read_only(path, cover)
            case Tmpfs() if cover.dest in self._closed:
                return self._read_only(path, cover)
            case File() if cover.over:
                return self._read_only(path, cover)
            case Directory():
                return self._read_only(path, cover)
            case Tmpfs() if self._may_lack_parent(path, cover):
                rule = f"its directory is not there: {show(cover.dest)} is fresh: {cover.why}"
                return Refusal(kind="hidden", path=path, rule=rule)
        return None

    def _may_lack_parent(self, path: bytes, cover: Tmpfs) -> bool:
        """Tell whether a path lies in a directory that is there only if the command has made it."""
        parent = posixpath.dirname(path)
        return lies_beneath(parent, cover.dest) and not any(contains(parent, other.dest) for other in self._mounts)

    @staticmethod
    def _read_only(path: bytes, cover: MountOp) -> Refusal:
        return Refusal(kind="read-only", path=path, rule=f"{show(cover.dest)} is read-only: {cover.why}")

    def _of_read(self, path: bytes, cover: MountOp | None) -> Refusal | None:
        match cover:
            case None:
                # Every runtime asks /sys about the machine and does without; it can't be shown anyway
                is_no_news = contains(b"/sys", path) or any(contains(path, other.dest) for other in self._mounts)
                if is_no_news or self._has_rootfs:
                    return None
                return Refusal(kind="outside", path=path, rule="not shown in this view")
            case Tmpfs() if cover.dest in self._closed:
                return Refusal(kind="masked", path=path, rule=f"{show(cover.dest)} is masked: {cover.why}")
            case File() if cover.over and not cover.content:
                return Refusal(kind="masked", path=path, rule=f"{show(cover.dest)} is masked: {cover.why}")
            case Tmpfs() if not self._has_rootfs:
                return Refusal(kind="hidden", path=path, rule=f"{show(cover.dest)} is fresh: {cover.why}")
        return None


def _places(path: bytes) -> tuple[bytes, ...]:
    return posixpath.dirname(path), path


def _can_be_root(place: bytes, home: bytes) -> bool:
    try:
        check_root(place, home=home, own=())
    except RootRefused:
        return False
    return True


def remedy_of(refusal: Refusal, *, is_write: bool, home: bytes) -> str:
    """Return what a person could do to allow it."""
    if is_write and _OF_ROOTFS in refusal.rule:
        return f"Allow it with `rootfs_writable = true` (it then stays in this sandbox), or {_ELSEWHERE}."
    if is_write:
        place = next((place for place in _places(refusal.path) if _can_be_root(place, home)), None)
        if place is None:
            return f"It can't be allowed: {_ELSEWHERE}."
        return (
            f"Allow it with `--root {shell_word(place)}` or `roots` in your own configuration "
            f"(a directory of yours: make it if there is none), or {_ELSEWHERE}."
        )
    word = shell_word(refusal.path)
    if "unspill's own files" in refusal.rule:
        return "It is never shown."
    if "hidden by your policy" in refusal.rule:
        return "Take it out of `hidden`."
    if find_secret(refusal.path, home) is not None:
        return (
            "It is never shown on request: copy what is needed into the project. "
            "Only `readable` in your own configuration shows it, to every run."
        )
    if contains(refusal.path, home):
        return "It is never shown as a whole: name what is needed of it."
    return f"If it is there and a command may know it: `--readable {word}`, or `readable` in your own configuration."
