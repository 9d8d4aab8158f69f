# SPDX-License-Identifier: Apache-2.0
"""What is mounted where, as this process sees it: /proc/self/mountinfo, read and decoded.

Only reads; mounting is for `mounts`.
"""

from __future__ import annotations

import os

from unspill.record import Record


class Mount(Record):
    """One line: `root` is the part of the filesystem that is seen at `point`."""

    root: bytes
    point: bytes
    kind: str
    options: bytes


def read_mounts() -> tuple[Mount, ...]:
    """Return every mount of this process's namespace, in the kernel's order: a later one covers an earlier one."""
    with open("/proc/self/mountinfo", "rb") as file:
        return tuple(map(parse_mount, file.read().splitlines()))


def parse_mount(line: bytes) -> Mount:
    """Read one line of mountinfo."""
    before, _, after = line.partition(b" - ")
    root, point = before.split(b" ", 5)[3:5]
    kind, _source, options = after.split(b" ", 2)
    return Mount(
        root=decode_octal(root), point=decode_octal(point), kind=kind.decode("ascii", "replace"), options=options
    )


def mount_points() -> tuple[bytes, ...]:
    """Return where anything is mounted, each path once, sorted."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = file.read().splitlines()
    return tuple(sorted({decode_octal(line.split(b" ", 5)[4]) for line in lines}))


def mounts_below(root: bytes) -> tuple[bytes, ...]:
    """Return the mount points strictly below a resolved directory, sorted."""
    prefix = root.rstrip(b"/") + b"/"
    return tuple(point for point in mount_points() if point.startswith(prefix) and point != prefix)


def filesystem_of(path: bytes) -> str:
    """Return the kind of filesystem that holds a path, as mountinfo calls it; empty if it can't be told."""
    resolved = os.path.realpath(path)
    best, kind = -1, ""
    try:
        mounts = read_mounts()
    except OSError:
        return ""
    for mount in mounts:
        is_above = resolved == mount.point or resolved.startswith(mount.point.rstrip(b"/") + b"/")
        if is_above and len(mount.point) >= best:
            best, kind = len(mount.point), mount.kind
    return kind


def decode_octal(text: bytes) -> bytes:
    r"""Undo the escapes of mountinfo: space, tab, newline and backslash are written as \040 and so on."""
    if b"\\" not in text:
        return text
    first, *parts = text.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in parts)
