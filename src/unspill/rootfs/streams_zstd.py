# SPDX-License-Identifier: Apache-2.0
"""zstd streams, by the program `zstd`: the Pythons that unspill supports have no decoder of their own.

A package that brings one would be code of others in our process, and a dependency; the program is a process apart,
with a bound on its memory and without our variables, and every distribution has it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from unspill.errors import RootfsError, RootfsUnverified
from unspill.host.bwrap import why_unsafe
from unspill.rootfs.streams import MADE_BYTES, wants_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen

    from unspill.rootfs.streams import Archive, Chunks
    from unspill.rootfs.tar_bounds import Bounds

COMPLAINT_BYTES = 2000
REMEDY = "Install zstd (a package of every distribution), or compress the archive with gzip or xz."


def unzstd(archive: Archive, bounds: Bounds) -> Chunks:
    """Yield what `zstd` makes of the archive.

    Raises:
        RootfsError: there is no such program, or the archive is a pipe.
        RootfsUnverified: it is damaged or cut short.
        RootfsUnsafe: it needs too much memory.
    """
    try:
        archive.rewind()
    except OSError:
        raise RootfsError("a zstd archive can't be read from a pipe", remedy="Write it to a file first.") from None
    complaints = os.memfd_create("unspill-zstd", os.MFD_CLOEXEC)
    try:
        yield from _run(archive.fd, complaints, bounds)
    finally:
        os.close(complaints)


def _run(fd: int, complaints: int, bounds: Bounds) -> Chunks:
    begin = os.lseek(fd, 0, os.SEEK_CUR)
    process = _start(fd, complaints, bounds)
    assert process.stdout is not None
    made_by = process.stdout.fileno()
    try:
        _widen(made_by)
        while made := os.read(made_by, MADE_BYTES):
            # The position is shared with the program, so it tells how much that has read
            yield made, os.lseek(fd, 0, os.SEEK_CUR) - begin
        if process.wait() != 0:
            raise _refusal(os.pread(complaints, COMPLAINT_BYTES, 0), bounds)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _start(fd: int, complaints: int, bounds: Bounds) -> Popen[bytes]:
    from subprocess import PIPE, Popen

    argv = [find_zstd(), b"-d", b"-c", b"-q", b"--no-progress", b"--memory=%dKiB" % (bounds.memory_bytes >> 10)]
    try:
        return Popen(argv, stdin=fd, stdout=PIPE, stderr=complaints, env={"LC_ALL": "C"}, cwd="/", bufsize=0)
    except OSError as problem:
        raise RootfsError(f"zstd can't be started: {problem.strerror}", remedy=REMEDY) from problem


def _widen(pipe: int) -> None:
    """Let the program run further ahead of us, if the system still allows large pipes."""
    import fcntl

    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, MADE_BYTES)


def _refusal(complaint: bytes, bounds: Bounds) -> RootfsError:
    if b"too much memory" in complaint or b"Window size larger" in complaint:
        return wants_memory(bounds)
    reason = complaint.decode("ascii", "replace").strip().rpartition(" : ")[2]
    return RootfsUnverified(f"the zstd stream of the archive is damaged or cut short: {ascii(reason)[1:-1]}")


def find_zstd() -> bytes:
    """Return the path of a `zstd` that only root can have written.

    Raises:
        RootfsError: there is none.
    """
    for directory in os.get_exec_path():
        path = os.path.realpath(os.path.join(os.fsencode(directory), b"zstd"))
        if os.path.isabs(directory) and os.access(path, os.X_OK) and not why_unsafe(path):
            return path
    raise RootfsError("the archive is compressed with zstd, and there is no program zstd", remedy=REMEDY)
