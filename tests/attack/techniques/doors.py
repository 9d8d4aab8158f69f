# SPDX-License-Identifier: Apache-2.0
"""A12, A14, A15: other processes, and what they listen on: sockets, FIFOs, shared memory, the host's network."""

from __future__ import annotations

import ctypes
import os
import select
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena, replaced, shown_as_it_is
from tests.attack.techniques.record import Defence, Listed, flags
from tests.attack.test_sockets import as_plain_binds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIST: Final = Listed()
TYPES: Final = {"stream": socket.SOCK_STREAM, "dgram": socket.SOCK_DGRAM, "seqpacket": socket.SOCK_SEQPACKET}

KNOCK: Final = """
try:
    os.chdir(directory)
    knocking = socket.socket(socket.AF_UNIX, kind)
    knocking.connect(name); knocking.send(b"x")
except OSError as error: lost(error.strerror)
else: won(name)
"""
WRITE: Final = """
try: os.write(os.open(os.path.join(directory, name), os.O_WRONLY | os.O_NONBLOCK), b"x")
except OSError as error: lost(error.strerror)
else: won(name)
"""
LISTEN: Final = """
try: pipe = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NONBLOCK)
except OSError as error: lost(error.strerror)
else:
    print("OPEN", flush=True); time.sleep(0.1)
    try: said = os.read(pipe, 100)
    except OSError as error: lost(error.strerror)
    else: won(said) if said else lost("nothing")
"""


@contextmanager
def door(directory: Path, kind: str) -> Iterator[int]:
    """Open a listener, or the reader of a FIFO, in a directory of the host; yield a descriptor to look at."""
    directory.mkdir(parents=True, exist_ok=True)
    path, here = directory / f"door-{os.getpid()}", os.getcwd()
    os.chdir(directory)
    try:
        if kind == "fifo":
            os.mkfifo(path.name)
            descriptor = os.open(path.name, os.O_RDWR | os.O_NONBLOCK)
            listener = None
        else:
            listener = socket.socket(socket.AF_UNIX, TYPES[kind])
            listener.bind(path.name)
            if kind != "dgram":
                listener.listen(4)
            descriptor = listener.fileno()
    finally:
        os.chdir(here)
    try:
        yield descriptor
    finally:
        path.unlink()
        listener.close() if listener is not None else os.close(descriptor)


def knocks(place: str, kind: str) -> Callable[[Arena], object]:
    """Return the attack on one door: it succeeded if the host sees it."""

    def attack(arena: Arena) -> object:
        directory = place_of(arena, place)
        readable = (os.fsencode(directory),) if place == "allowed" else ()
        if place == "allowed":
            directory.mkdir(exist_ok=True)
        values = {"directory": os.fspath(directory), "name": f"door-{os.getpid()}", "kind": int(TYPES.get(kind, 0))}
        script = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        with door(directory, kind) as descriptor:
            arena.attack(script + (WRITE if kind == "fifo" else KNOCK), readable=readable)
            return select.select([descriptor], [], [], 0)[0]

    return attack


def overhears(place: str) -> Callable[[Arena], object]:
    """Return the attack that reads from a FIFO what the person writes to a program of theirs."""

    def attack(arena: Arena) -> object:
        directory = place_of(arena, place)
        script = f"directory, name = {os.fspath(directory)!r}, 'door-{os.getpid()}'\n{LISTEN}"
        with door(directory, "fifo") as descriptor:
            os.write(descriptor, b"said on the host")
            return arena.attack(script).won

    return attack


def place_of(arena: Arena, place: str) -> Path:
    from pathlib import Path

    return Path(place) if place.startswith("/") else arena.ground.home / place


def plain(arena: Arena) -> Any:
    """Show everything by read-only binds, which stop neither sockets nor FIFOs."""
    return arena.plan_changed(as_plain_binds)


OVERLAYS: Final = Defence("overlays and fresh directories, by plain read-only binds", plain)
DOORS: Final = {
    "project": "in the project",
    "allowed": "in a directory that the policy shows",
    ".local/bin": "in a toolchain of the home directory",
    "/tmp": "in /tmp",
    "/dev/shm": "in /dev/shm",
}
for _place, _where in DOORS.items():
    for _kind in (*TYPES, "fifo"):
        _tries = (
            f"Write to a FIFO of the host {_where}"
            if _kind == "fifo"
            else (f"Connect to a {_kind} socket of the host {_where}")
        )
        LIST.add("A14", _tries, knocks(_place, _kind), OVERLAYS)
for _place in ("project", "/tmp"):
    LIST.add("A14", f"Read from a FIFO of the host {DOORS[_place]}", overhears(_place), OVERLAYS)


def hidden_home(arena: Arena) -> Any:
    home = os.fsencode(arena.ground.home)
    (arena.ground.home / "playground").mkdir(exist_ok=True)
    return arena.plan_changed(lambda mounts: replaced(mounts, home, shown_as_it_is(home)))


for _kind in TYPES:
    LIST.add(
        "A14",
        f"Connect to a {_kind} socket in the home directory, as agents of keys have it",
        knocks(".gnupg", _kind),
        Defence("the empty home directory", hidden_home),
    )

NETWORK: Final = flags(b"--unshare-net")


def abstract(kind: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        name = f"\0unspill-{kind}-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, TYPES[kind]) as listener:
            listener.bind(name)
            if kind != "dgram":
                listener.listen(4)
            arena.attack(f"""
knocking = socket.socket(socket.AF_UNIX, {int(TYPES[kind])})
try: knocking.connect({name!r}); knocking.send(b"x")
except OSError as error: lost(error.strerror)
""")
            return select.select([listener], [], [], 0)[0]

    return attack


for _kind in TYPES:
    LIST.add("A15", f"Connect to an abstract {_kind} socket of the host", abstract(_kind), NETWORK)


def names_seen(arena: Arena) -> object:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0unspill-seen-{os.getpid()}")
        return arena.attack(f"if 'unspill-' + 'seen-{os.getpid()}' in open('/proc/net/unix').read(): won('seen')").won


LIST.add("A15", "See the names of the host's abstract sockets", names_seen, NETWORK)


def address(family: socket.AddressFamily, kind: socket.SocketKind, host: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        with socket.socket(family, kind) as listener:
            listener.bind((host, 0))
            if kind == socket.SOCK_STREAM:
                listener.listen(4)
            arena.attack(f"""
knocking = socket.socket({int(family)}, {int(kind)})
knocking.settimeout(2)
try: knocking.connect({listener.getsockname()[:2]!r}); knocking.send(b"x")
except OSError as error: lost(error.strerror)
""")
            return select.select([listener], [], [], 0.05)[0]

    return attack


ADDRESSES: Final = {
    "Connect to a TCP server on the host's loopback": (socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
    "Send to a UDP server on the host's loopback": (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
    "Connect to a TCP server on the host's IPv6 loopback": (socket.AF_INET6, socket.SOCK_STREAM, "::1"),
    "Send to a UDP server on the host's IPv6 loopback": (socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
    "Connect to a server on another address of the loopback network": (
        socket.AF_INET,
        socket.SOCK_STREAM,
        "127.7.7.7",
    ),
}
for _tries, _server in ADDRESSES.items():
    LIST.add("A15", _tries, address(*_server), NETWORK)


def answered(arena: Arena) -> object:
    """A server inside, on the port that a program of the host believes to be the person's own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reached: list[bool] = []

    def look(event: object) -> None:
        if type(event).__name__ == "OutputChunk" and not reached:
            with socket.socket() as person:
                reached.append(person.connect_ex(("127.0.0.1", port)) == 0)

    script = f"""
server = socket.socket(); server.bind(("127.0.0.1", {port})); server.listen()
print("READY", flush=True); time.sleep(0.5)
"""
    arena.attack(script, options={"on_event": look})
    return any(reached)


LIST.add("A15", "Answer on a port of the host's loopback in the place of a service", answered, NETWORK)


FIND: Final = """
found = []
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try: words = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError: continue
    if ("".join(mark)).encode() in words and b"lost(" not in words: found.append(int(pid))
"""
ON_VICTIM: Final = {
    "See the command line of a process of the host": "if found: won('sees')",
    "Send a signal to a process of the host": "for pid in found: attempt('signal', os.kill, pid, 0)",
    "Open a process of the host by pidfd_open": "for pid in found: call('pidfd', libc.syscall(434, pid, 0))",
    "Send a signal to a process of the host by its pidfd": (
        "for pid in found: call('send', libc.syscall(424, libc.syscall(434, pid, 0), 0, None, 0))"
    ),
    "Change the priority of a process of the host": (
        "for pid in found: attempt('nice', os.setpriority, os.PRIO_PROCESS, pid, 19)"
    ),
    "Bind a process of the host to one processor": (
        "for pid in found: attempt('bind', os.sched_setaffinity, pid, {min(os.sched_getaffinity(0))})"
    ),
}


def on_victim(script: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        # A run without a pid namespace of its own shares the spawner's, so the victim is started there
        with sandboxed_victim(arena) as mark:
            return arena.attack(f"mark = {(mark[:9], mark[9:])!r}\n{FIND}{script}", name="attacker").won

    return attack


@contextmanager
def sandboxed_victim(arena: Arena) -> Iterator[str]:
    """A command of another sandbox, under the same spawner."""
    import threading

    from tests.attack.arena import processes_with, wait_until

    mark = f"unspill-victim-{os.urandom(4).hex()}"
    read, write = os.pipe()
    other = arena.ground.sandbox("victim")
    command = ["sh", "-c", "while :; do sleep 1; done", mark]
    thread = threading.Thread(target=lambda: other.run(command, cancel_fd=read))
    thread.start()
    try:
        assert wait_until(lambda: processes_with(mark))
        yield mark
    finally:
        os.write(write, b"x")
        thread.join()
        os.close(read)
        os.close(write)


for _tries, _script in ON_VICTIM.items():
    LIST.add("A12", _tries.replace("of the host", "outside"), on_victim(_script), flags(b"--unshare-pid"))

IPC: Final = flags(b"--unshare-ipc")
libc: Final = ctypes.CDLL(None, use_errno=True)
_CREATE: Final = 0o1666


@contextmanager
def removed_later(kind: str, identity: int) -> Iterator[int]:
    assert identity >= 0
    try:
        yield identity
    finally:
        # IPC_RMID is 0
        match kind:
            case "shm":
                libc.shmctl(identity, 0, None)
            case "msg":
                libc.msgctl(identity, 0, None)
            case _:
                libc.semctl(identity, 0, 0)


def shared_memory(arena: Arena) -> object:
    key = 0x75000000 + os.getpid()
    with removed_later("shm", libc.shmget(key, 4096, _CREATE)):
        return arena.attack(f"call('attach', libc.shmget({key}, 4096, 0))").won


def queue(arena: Arena) -> object:
    key = 0x75000000 + os.getpid()
    with removed_later("msg", libc.msgget(key, _CREATE)):
        return arena.attack(f"call('queue', libc.msgget({key}, 0))").won


def semaphores(arena: Arena) -> object:
    key = 0x75000000 + os.getpid()
    with removed_later("sem", libc.semget(key, 1, _CREATE)):
        return arena.attack(f"call('semaphores', libc.semget({key}, 1, 0))").won


LIST.add("A12", "Attach to shared memory of a process of the host", shared_memory, IPC)
LIST.add("A12", "Open a message queue of a process of the host", queue, IPC)
LIST.add("A12", "Take semaphores of a process of the host", semaphores, IPC)
