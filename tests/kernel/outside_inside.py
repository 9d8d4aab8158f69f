# SPDX-License-Identifier: Apache-2.0
"""What works inside while a person edits outside: one JSON request per line, and one answer. Started as a program.

The first line of a file says which text it is, `id:NUMBER`. Whatever is written here names the text that was meant, so
that a line in another text is found later.
"""

import ctypes
import json
import mmap
import os
import sys
import time
from typing import Any, BinaryIO

TOP = os.getcwd()
held: list[Any] = []
opened: list[BinaryIO] = []
watching: list[int] = []
IN_ALL_EVENTS = 0xFFF


def place(path: str) -> str:
    return os.path.join(TOP, path)


def id_of(text: bytes) -> str:
    return text.partition(b"\n")[0].decode()


def read(path: str) -> bytes:
    with open(place(path), "rb") as file:
        return file.read()


def wait_for(path: str, text: str) -> str:
    """Read a file again and again until it has a text; return when that was."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if read(path).decode() == text:
            return str(time.time_ns())
        time.sleep(0.005)
    raise OSError


def append(path: str, line: str) -> str:
    with open(place(path), "r+b") as file:
        meant = id_of(file.read())
        file.write(f"{line} {meant}\n".encode())
    return meant


def save(path: str, line: str) -> str:
    text = read(path)
    with open(place(path) + ".new", "wb") as file:
        file.write(text + f"{line} {id_of(text)}\n".encode())
    os.rename(place(path) + ".new", place(path))
    return id_of(text)


def create(path: str, line: str) -> str:
    os.makedirs(os.path.dirname(place(path)), exist_ok=True)
    with open(place(path), "xb") as file:
        file.write(f"{line}\n".encode())
    return line


def delete(path: str) -> str:
    meant = id_of(read(path))
    os.unlink(place(path))
    return meant


def move(path: str, to: str) -> str:
    meant = id_of(read(path))
    os.makedirs(os.path.dirname(place(to)), exist_ok=True)
    os.rename(place(path), place(to))
    return meant


def hold(path: str, how: str) -> str:
    """Keep something in use: an open file, a mapped or a watched one, or its directory as the working directory."""
    if how == "directory":
        os.chdir(os.path.dirname(place(path)))
        return ""
    file = open(place(path), "r+b" if how in ("written", "watched") else "rb")  # noqa: SIM115
    meant = id_of(file.read())
    if how == "mapped":
        held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    if how == "watched":
        file.close()
        watch(path)
        return meant
    if how == "written":
        opened.append(file)
    held.append(file)
    return meant


def watch(path: str) -> None:
    """Have the kernel tell of all that happens to a file; that keeps it in use."""
    libc = ctypes.CDLL(None, use_errno=True)
    watching.append(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if libc.inotify_add_watch(watching[-1], os.fsencode(place(path)), IN_ALL_EVENTS) < 0:
        raise OSError(ctypes.get_errno(), path)


def append_held(line: str) -> str:
    file = opened[-1]
    file.seek(0)
    meant = id_of(file.read())
    file.write(f"{line} {meant}\n".encode())
    file.flush()
    return meant


def drop() -> str:
    held.clear()
    opened.clear()
    while watching:
        os.close(watching.pop())
    os.chdir(TOP)
    return ""


DOES: dict[str, Any] = {
    "read": lambda path: read(path).decode(),
    "await": wait_for,
    "append": append,
    "save": save,
    "create": create,
    "delete": delete,
    "move": move,
    "hold": hold,
    "append-held": append_held,
    "drop": drop,
}


def main() -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = [DOES[name](*arguments)]
        except (OSError, IndexError, ValueError):
            answer = []
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
