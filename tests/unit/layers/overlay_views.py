# SPDX-License-Identifier: Apache-2.0
"""A program that lets the kernel judge: do merged uppers show the same as the stack they were merged from?

    unshare -Urm python overlay_views.py DIRECTORY SEED...

For each seed it writes random layers through real overlay mounts over a random live tree, merges the newest uppers,
and compares what both stacks show over that tree, and over another one that took its place. Prints a line per
difference.
"""

import ctypes
import errno
import os
import random
import shutil
import stat
import sys
from collections.abc import Iterator

from unspill.layers.lifecycle import merge_uppers

NAMES = [b"a", b"b", b"c", b"d"]
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(lowers: list[bytes], at: bytes, upper: bytes | None = None, work: bytes | None = None) -> None:
    options = b"userxattr,index=off,metacopy=off,lowerdir=" + b":".join(lowers)
    if upper is not None and work is not None:
        options += b",volatile,upperdir=" + upper + b",workdir=" + work
    if LIBC.mount(b"overlay", at, b"overlay", 0, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), options)


def unmount(at: bytes) -> None:
    if LIBC.umount2(at, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def random_path(chance: random.Random, top: bytes) -> bytes:
    return os.path.join(top, *(chance.choice(NAMES) for _ in range(chance.randint(1, 3))))


def clear(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def change(chance: random.Random, top: bytes) -> None:
    """Do one random thing below a directory; what the kernel refuses does not happen."""
    path, other = random_path(chance, top), random_path(chance, top)
    what = chance.choice("file file dir dir link fifo clear clear renew renew move mode attribute".split())
    if what in ("file", "dir", "link", "fifo") and chance.random() < 0.5:
        clear(path)
    match what:
        case "file":
            fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK, 0o644)
            os.write(fd, b"%d" % chance.randrange(1000))
            os.close(fd)
        case "dir":
            os.mkdir(path)
        case "link":
            os.symlink(chance.choice([b"a", b"../b", b"/usr"]), path)
        case "fifo":
            os.mkfifo(path)
        case "clear":
            clear(path)
        case "renew":
            clear(path)
            os.mkdir(path)
            os.mkdir(os.path.join(path, chance.choice(NAMES)))
        case "move":
            os.rename(path, other)
        case "mode":
            os.chmod(path, chance.choice([0o755, 0o700, 0o711]))
        case "attribute":
            os.setxattr(path, chance.choice(["user.x", "user.overlay.opaque"]), b"y")


def change_much(chance: random.Random, top: bytes, count: int) -> None:
    for _ in range(count):
        try:
            change(chance, top)
        except OSError as error:
            if error.errno in (errno.EIO, errno.ESTALE, errno.EPROTO):
                raise


def view(top: bytes, *, strict: bool) -> Iterator[tuple[object, ...]]:
    """Yield all that a command could see of a tree, in order.

    Where a live directory vanished under a whiteout, the kernel lists the whiteout's name though nothing is there:
    not strict leaves such names out.
    """
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        full = os.path.join(top, path)
        if not strict and not os.path.lexists(full):
            continue
        state = os.lstat(full)
        names = os.listxattr(full, follow_symlinks=False) if not stat.S_ISLNK(state.st_mode) else []
        seen: list[object] = [path, oct(state.st_mode), state.st_mtime_ns]
        seen += [(name, os.getxattr(full, name)) for name in sorted(names) if name.startswith("user.")]
        if stat.S_ISDIR(state.st_mode):
            waiting += [os.path.join(path, name) for name in sorted(os.listdir(full))]
        elif stat.S_ISREG(state.st_mode):
            with open(full, "rb") as file:
                seen.append(file.read())
        elif stat.S_ISLNK(state.st_mode):
            seen.append(os.readlink(full))
        yield tuple(seen)


def seen_over(lowers: list[bytes], at: bytes, *, strict: bool) -> list[tuple[object, ...]]:
    mount(lowers, at)
    try:
        return list(view(at, strict=strict))
    finally:
        unmount(at)


def judge(base: bytes, seed: int) -> Iterator[str]:
    chance = random.Random(seed)
    live, other, at = (os.path.join(base, part) for part in (b"live", b"other", b"at"))
    for path in (live, other, at):
        os.mkdir(path)
    change_much(chance, live, 25)
    change_much(chance, other, 25)
    uppers: list[bytes] = []
    for number in range(chance.randint(2, 8)):
        upper, work = base + b"/upper%d" % number, base + b"/work%d" % number
        os.mkdir(upper, 0o755)
        os.mkdir(work)
        mount([*reversed(uppers), live], at, upper, work)
        change_much(chance, at, chance.randint(1, 15))
        unmount(at)
        uppers.append(upper)
    older = chance.randrange(len(uppers) - 1)
    for number, tree in enumerate((live, other)):
        below = (tree, *uppers[:older])
        merged = base + b"/merged%d" % number
        os.mkdir(merged)
        merge_uppers(tuple(uppers[older:]), below, merged)
        expected = seen_over([*reversed(uppers), tree], at, strict=tree == live)
        # A read-only overlay needs two lowers at least; an empty one below the live tree changes nothing.
        os.makedirs(base + b"/empty", exist_ok=True)
        found = seen_over([merged, *reversed(below), base + b"/empty"], at, strict=tree == live)
        if found != expected:
            yield f"seed {seed}: {sorted(map(repr, set(expected) ^ set(found)))}"


def main() -> None:
    for seed in map(int, sys.argv[2:]):
        base = os.fsencode(sys.argv[1]) + b"/%d" % seed
        os.mkdir(base)
        for difference in judge(base, seed):
            print(difference)
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
