# SPDX-License-Identifier: Apache-2.0
"""Performs given operations for real and takes pictures: in a live tree, on a mounted view, or inside a sandbox.

Stands alone, because it is also sent into sandboxes as the text of a command. Started as `unshare --user
--map-root-user --mount python round_trip_inside.py serve` it answers pickled requests; there nothing is closed to it.
"""

import ctypes
import os
import pickle
import stat
import sys
from typing import Any

Operation = tuple[Any, ...]


def act(operation: Operation) -> None:
    """Perform one operation in the working directory."""
    verb, path, *rest = operation
    match verb:
        case "write":
            _write(path, *rest)
        case "replace":
            _write(path + b"~", *rest)
            os.rename(path + b"~", path)
        case "chmod":
            os.chmod(path, rest[0])
        case "touch":
            os.utime(path, ns=(rest[0], rest[0]))
        case "attribute":
            os.setxattr(path, *rest)
        case "no attribute":
            os.removexattr(path, rest[0])
        case "open":
            os.close(os.open(path, os.O_RDWR))
        case "unlink":
            os.unlink(path)
        case "remove":
            _remove(path)
        case "mkdir":
            os.mkdir(path)
            os.chmod(path, rest[0])
        case "symlink":
            os.symlink(rest[0], path)
        case "fifo":
            os.mkfifo(path)
        case "link":
            os.link(path, rest[0], follow_symlinks=False)
        case "rename":
            os.rename(path, rest[0])
        case _:
            raise ValueError(verb)


def _write(path: bytes, content: bytes, mtime: int) -> None:
    is_new = not os.path.lexists(path)
    with open(path, "wb") as file:
        file.write(content)
    if is_new:
        os.chmod(path, 0o644)
    os.utime(path, ns=(mtime, mtime))


def _remove(path: bytes) -> None:
    """Remove a directory as `rm -r` does, which takes no notice of names that are listed but not there."""
    for name in os.listdir(path):
        inner = os.path.join(path, name)
        if os.path.isdir(inner) and not os.path.islink(inner):
            _remove(inner)
        elif os.path.lexists(inner):
            os.unlink(inner)
    os.rmdir(path)


def picture(root: bytes) -> dict[bytes, tuple[Any, ...]]:
    """Return every entry below and including `root` in the fields that count."""
    found = {b".": _look(root)}
    pending = [b""]
    while pending:
        prefix = pending.pop()
        for name in os.listdir(os.path.join(root, prefix)):
            path = os.path.join(prefix, name)
            # In a directory that one layer alone has (the person deleted the live one) the kernel lists whiteouts
            if not os.path.lexists(os.path.join(root, path)):
                continue
            look = found[path] = _look(os.path.join(root, path))
            if look[0] == "dir":
                pending.append(path)
    return found


def _look(path: bytes) -> tuple[Any, ...]:
    status = os.lstat(path)
    mode = stat.S_IMODE(status.st_mode)
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFREG:
            with open(path, "rb") as file:
                return "file", mode, _attributes(path), file.read(), status.st_mtime_ns
        case stat.S_IFDIR:
            return "dir", mode, _attributes(path)
        case stat.S_IFLNK:
            return "symlink", os.readlink(path)
    return "special", mode


def _attributes(path: bytes) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")}


class Overlay:
    """A mount on `dest`, for as long as the context lasts; `lowers` have the topmost first."""

    def __init__(self, lowers: list[bytes], upper: bytes | None, work: bytes | None, dest: bytes) -> None:
        self._dest = dest
        options = b"lowerdir=" + b":".join(lowers) + b",userxattr,metacopy=off"
        if upper is not None and work is not None:
            options += b",upperdir=" + upper + b",workdir=" + work + b",index=off,volatile"
        self._options = options
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> bytes:
        self._check(self._libc.mount(b"overlay", self._dest, b"overlay", 0, self._options))
        return self._dest

    def __exit__(self, *_details: object) -> None:
        os.chdir("/")
        self._check(self._libc.umount2(self._dest, 0))

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Holder:
    """Keeps the directories of a live tree open, so that no new one gets the number of one that is gone.

    Directories are told apart by that number and by what they look like. One that is made anew, gets the old number and
    looks the same is taken for the old one; whether that happens is the filesystem's choice, so it must not here.
    """

    def __init__(self) -> None:
        self._held: list[int] = []

    def hold(self, root: bytes) -> None:
        for here, _, _ in os.walk(root):
            self._held.append(os.open(here, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))

    def let_go(self) -> None:
        while self._held:
            os.close(self._held.pop())


_holder = Holder()


def serve(request: dict[str, Any]) -> Any:
    match request["what"]:
        case "begin":
            _holder.let_go()
        case "act":
            _holder.hold(request["live"])
            os.chdir(request["live"])
            for operation in request["operations"]:
                act(operation)
        case "run":
            with Overlay(request["lowers"], request["upper"], request["work"], request["dest"]) as dest:
                os.chdir(dest)
                for operation in request["operations"]:
                    act(operation)
        case "look":
            lowers = request["lowers"]
            live = picture(lowers[-1])
            if len(lowers) == 1:
                return live, live
            with Overlay(lowers, None, None, request["dest"]) as dest:
                return live, picture(dest)
    os.chdir("/")
    return None


def serve_all() -> None:
    """Answer requests until there are no more; an exception is an answer as well."""
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = serve(request)
        except OSError as error:
            answer = error
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve_all()
    else:
        for given in pickle.load(sys.stdin.buffer):
            act(given)
