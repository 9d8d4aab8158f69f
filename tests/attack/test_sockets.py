# SPDX-License-Identifier: Apache-2.0
"""Doors of the host: Unix sockets of every type, FIFOs, abstract sockets, locks, the network."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena
from tests.support import chosen_views
from unspill.model.plan import Bind, Overlay, ReadOnly, Tmpfs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support import Ground
    from unspill.model.plan import Facts, MountOp

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

TYPES = {"stream": socket.SOCK_STREAM, "dgram": socket.SOCK_DGRAM, "seqpacket": socket.SOCK_SEQPACKET}

KNOCK = """
import threading
for path in %r:
    directory, name = os.path.split(path)
    try: os.chdir(directory)
    except OSError: continue
    if name.endswith(".fifo"):
        try: os.write(os.open(name, os.O_WRONLY | os.O_NONBLOCK), b"x")
        except OSError as error: lost(path, error.strerror)
        else: won(path)
        # Listening is as bad as talking
        try: pipe = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError: pass
        continue
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        knocking = socket.socket(socket.AF_UNIX, kind)
        try: knocking.connect(name); knocking.send(b"x")
        except OSError as error: lost(path, error.strerror)
        else: won(path)
"""


def places(ground: Ground) -> list[Path]:
    """Return directories of the host in which services and people have sockets and FIFOs."""
    home = ".", ".local/bin", ".cargo/bin", ".cache/pip", "project", "project/sub", "playground", ".gnupg", ".ssh"
    more = ".config/app", ".local/share/app", ".vscode-server", "other-project", "allowed", "allowed/deep", ".cache/app"
    own = [ground.home / name for name in (*home, *more)] + [ground.state, ground.top, ground.top / "run-user"]
    for directory in own:
        directory.mkdir(parents=True, exist_ok=True)
    return own


@contextmanager
def doors(directories: Sequence[Path]) -> Iterator[dict[str, socket.socket | int]]:
    """Open a listener of each type, bound by its whole path and by a relative one, and a FIFO with a reader."""
    opened: dict[str, socket.socket | int] = {}
    here = os.getcwd()
    with ExitStack() as stack:
        stack.callback(os.chdir, here)
        for directory in directories:
            os.chdir(directory)
            for kind, number in TYPES.items():
                for way in ("whole", "relative"):
                    listener = stack.enter_context(socket.socket(socket.AF_UNIX, number))
                    name = f"{kind}-{way}-{os.getpid()}.sock"
                    # A path of a socket has at most 108 bytes
                    whole = os.path.join(directory, name)
                    listener.bind(whole if way == "whole" and len(whole) < 108 else name)
                    if kind != "dgram":
                        listener.listen(8)
                    opened[whole] = listener
                    stack.callback(os.unlink, whole)
            fifo = os.path.join(directory, f"{os.getpid()}.fifo")
            os.mkfifo(fifo)
            stack.callback(os.unlink, fifo)
            reader = opened[fifo] = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            stack.callback(os.close, reader)
        os.chdir(here)
        yield opened


def reached(opened: dict[str, socket.socket | int]) -> list[str]:
    """Return the doors at which somebody has knocked, seen from the host."""
    ready, _, _ = select.select(list(opened.values()), [], [], 0)
    # A FIFO whose writer is gone is readable too; it has no byte
    return [path for path, door in opened.items() if door in ready and (not isinstance(door, int) or os.read(door, 1))]


def shared(tmp: Sequence[str] = ("/tmp", "/var/tmp", "/dev/shm")) -> list[Path]:
    return [Path(name) for name in tmp]


@pytest.mark.parametrize("view", chosen_views())
def test_a14_no_socket_and_no_fifo_of_the_host_can_be_reached(
    arena: Arena, known_facts: tuple[str, Facts], view: str
) -> None:
    """Listeners of three types and FIFOs in twenty places, bound by whole and by relative paths; connect and write.
    Control: with plain read-only binds in place of overlays and fresh directories the same script gets through."""
    everywhere = [*places(arena.ground), *shared()]
    readable = (os.fsencode(arena.ground.home / "allowed"),)
    with doors(everywhere) as opened:
        assert len(opened) == 7 * len(everywhere) >= 7 * 12
        script = KNOCK % list(opened)
        for engine in known_facts[1].engines:
            sandbox = arena.ground.sandbox(view=view, readable=readable, engine=engine)
            assert arena.attack(script, sandbox=sandbox).won == (), engine
            assert reached(opened) == [], engine
        with arena.plan_changed(as_plain_binds):
            won = arena.attack(script, sandbox=sandbox).won
        # A rootfs has its playground elsewhere, and the home directory's own lies in it
        shown = everywhere[:6] if view == "rootfs" else everywhere[:7]
        assert {os.path.dirname(path) for path in reached(opened)} >= {os.fspath(path) for path in shown}
        assert len(set(won)) > 40


def as_plain_binds(mounts: Sequence[MountOp]) -> list[MountOp]:
    """Show directories as somebody would who thinks that read-only is enough."""
    plain: list[MountOp] = []
    for operation in mounts:
        if isinstance(operation, Overlay):
            plain.append(Bind(source=operation.lowers[-1], dest=operation.dest, why="naive"))
        elif isinstance(operation, Tmpfs) and operation.dest != b"/run":
            plain.append(Bind(source=operation.dest, dest=operation.dest, why="naive"))
        elif not isinstance(operation, ReadOnly) and not operation.dest.endswith(b"/playground"):
            plain.append(operation)
    return plain


def test_a14_a_socket_that_appears_during_the_run_can_not_be_reached(arena: Arena) -> None:
    """A service starts while the command runs and waits for it.
    Control: that of the test above; nothing here depends on when the socket was made."""
    directories = [arena.ground.home / ".config/app", arena.ground.home / "allowed", arena.ground.home / ".local/bin"]
    for directory in directories:
        directory.mkdir(parents=True)
    names = [os.path.join(directory, name) for directory in directories for name in late_names()]
    script = "print('READY', flush=True); time.sleep(0.5)\n" + KNOCK % names
    readable = (os.fsencode(arena.ground.home / "allowed"),)
    for view in chosen_views():
        with ExitStack() as stack:
            opened: dict[str, socket.socket | int] = {}

            def start(event: object, opened: dict[str, socket.socket | int] = opened, stack: ExitStack = stack) -> None:
                if type(event).__name__ == "OutputChunk" and not opened:
                    opened |= stack.enter_context(doors(directories))

            sandbox = arena.ground.sandbox(view=view, readable=readable)
            assert arena.attack(script, sandbox=sandbox, options={"on_event": start}).won == (), view
            assert opened, view
            assert reached(opened) == [], view


def late_names() -> list[str]:
    return [
        *(f"{kind}-{way}-{os.getpid()}.sock" for kind in TYPES for way in ("whole", "relative")),
        f"{os.getpid()}.fifo",
    ]


def test_a14_no_socket_or_fifo_is_seen_outside_what_the_command_may_see(arena: Arena) -> None:
    """Look for every socket and FIFO of the view `sealed`: those of the project and of what is allowed are dead names.
    Control: the doors are there on the host, and the tests above knock at them."""
    everywhere = [*places(arena.ground), *shared()]
    command = "find / \\( -type s -o -type p \\) -not -path '/proc/*' 2>/dev/null"
    with doors(everywhere) as opened:
        result = arena.ground.sandbox().run(command)
    found = set(result.stdout.kept().decode().splitlines())
    allowed = {
        arena.ground.inside(arena.ground.home / name)
        for name in (".local/bin", ".cargo/bin", ".cache/pip", "project", "project/sub")
    }
    assert {os.path.dirname(path) for path in found} <= allowed
    assert found <= {arena.ground.inside(Path(path)) for path in opened}


ABSTRACT = """
for kind, name in %r:
    knocking = socket.socket(socket.AF_UNIX, kind)
    try: knocking.connect("\\0" + name); knocking.send(b"x")
    except OSError as error: lost(name, error.strerror)
    else: won(name)
if open("/proc/net/unix").read().count("@") - open("/proc/net/unix").read().count("@mine"): won("names are seen")
"""


def test_a15_no_abstract_socket_of_the_host_can_be_reached(arena: Arena) -> None:
    """Listeners of three types on abstract names.
    Control: without `--unshare-net` the same script connects."""
    with ExitStack() as stack:
        names = []
        for kind, number in TYPES.items():
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, number))
            names.append((int(number), f"unspill-{kind}-{os.getpid()}"))
            listener.bind("\0" + names[-1][1])
            if kind != "dgram":
                listener.listen(4)
        script = ABSTRACT % names
        for view in chosen_views():
            assert not arena.attack(script, view=view).won
        with arena.without(b"--unshare-net"):
            assert len(arena.attack(script).won) == 4


def test_a15_no_address_of_the_host_can_be_reached(arena: Arena) -> None:
    """Listeners on the loopback addresses, by TCP and UDP.
    Control: without `--unshare-net` the same script connects."""
    with ExitStack() as stack:
        targets = []
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                listener = stack.enter_context(socket.socket(family, kind))
                listener.bind((address, 0))
                if kind == socket.SOCK_STREAM:
                    listener.listen(4)
                targets.append((int(family), int(kind), listener.getsockname()[:2]))
        script = """
        for family, kind, address in %r:
            knocking = socket.socket(family, kind)
            try: knocking.connect(tuple(address)); knocking.send(b"x"); knocking.settimeout(0.1); knocking.send(b"x")
            except OSError as error: lost(address, error.strerror)
            else: won(address)
        """
        assert not arena.attack(script % targets).won
        with arena.without(b"--unshare-net"):
            assert len(arena.attack(script % targets).won) >= 2


LOCK = """
with open(%r) as file:
    try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error: lost(error.strerror)
    else: print("LOCKED", flush=True)
    try: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error: lost(error.strerror)
    time.sleep(0.3)
"""


@pytest.mark.parametrize("place", ["project/lock", ".local/bin/lock", "allowed/lock", "app/lock"])
def test_a14_a_lock_taken_inside_stops_nobody_outside(arena: Arena, place: str) -> None:
    """Take an exclusive lock and a lease on files of the host that are shown: a program outside that needs them waits.
    Control: through a plain read-only bind the lock of the sandbox is the host's."""
    path = arena.ground.home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    readable = (os.fsencode(arena.ground.home / "allowed"),) if place.startswith("allowed") else ()
    sandbox = arena.ground.sandbox(view="host" if place.startswith("app") else "sealed", readable=readable)
    assert not is_blocked_while(arena, sandbox_script=LOCK % os.fspath(path), path=path, sandbox=sandbox)
    with arena.plan_changed(as_plain_binds):
        assert is_blocked_while(arena, sandbox_script=LOCK % os.fspath(path), path=path, sandbox=sandbox)


def is_blocked_while(arena: Arena, *, sandbox_script: str, path: Path, sandbox: object) -> bool:
    """Tell whether a lock on the host's file is refused while the sandbox has its own."""
    locked = threading.Event()
    blocked: list[bool] = []

    def look(event: object) -> None:
        if type(event).__name__ != "OutputChunk" or locked.is_set():
            return
        locked.set()
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                blocked.append(True)

    tried = arena.attack(sandbox_script, sandbox=sandbox, options={"on_event": look})  # type: ignore[arg-type]
    assert "LOCKED" in tried.lines
    return bool(blocked)
