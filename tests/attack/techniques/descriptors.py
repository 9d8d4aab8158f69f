# SPDX-License-Identifier: Apache-2.0
"""A23, E1, E3: descriptors, streams, directories and variables that a command gets or asks for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena, naive_bwrap, python, replaced, shown_as_it_is
from tests.attack.techniques.record import Defence, Listed
from unspill import UnspillError
from unspill.runner.launcher import stop_launchers

if TYPE_CHECKING:
    from collections.abc import Callable


LIST: Final = Listed()

USE: Final = {
    "directory": (
        "Write to the host through a directory that the caller has open",
        "try: os.close(os.open('written', os.O_WRONLY | os.O_CREAT, dir_fd=number)); won(number)",
    ),
    "file": (
        "Write to a file of the host that the caller has open",
        "try: os.write(number, b'written'); won(number)",
    ),
    "socket": (
        "Talk on a connection that the caller has open",
        "try: os.write(number, b'written'); won(number)",
    ),
    "memory": (
        "Read what the caller keeps in memory that has a descriptor",
        "try: content = os.pread(number, 100, 0); won(content) if b'canary' in content else None",
    ),
    "pipe": ("Read from a pipe that the caller has open", "try: won(os.read(number, 10))"),
}


def opened(arena: Arena, kind: str) -> tuple[int, list[int]]:
    """Open something that a program started by this one would inherit; return its descriptor, and all to close."""
    victim = arena.ground.top / "victim"
    victim.mkdir(exist_ok=True)
    match kind:
        case "directory":
            fd = os.open(victim, os.O_RDONLY)
            every = [fd]
        case "file":
            fd = os.open(victim / "file", os.O_RDWR | os.O_CREAT)
            every = [fd]
        case "socket":
            one, other = socket.socketpair()
            fd = one.detach()
            every = [fd, other.detach()]
        case "memory":
            fd = os.memfd_create("leak", 0)
            os.write(fd, b"canary")
            every = [fd]
        case _:
            fd, write = os.pipe()
            os.write(write, b"canary")
            every = [fd, write]
    os.set_inheritable(fd, True)
    return fd, every


def script_for(kind: str, fd: int) -> str:
    # A descriptor of that number may be something of the script's own: only what is of the right kind counts
    tests = {"directory": "S_ISDIR", "file": "S_ISREG", "socket": "S_ISSOCK", "memory": "S_ISREG", "pipe": "S_ISFIFO"}
    return f"""
for number in range(3, 64):
    try: mode = os.fstat(number).st_mode
    except OSError: continue
    if not stat.{tests[kind]}(mode): continue
    {USE[kind][1]}
    except OSError as error: lost(error.strerror)
"""


def leaks(kind: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        stop_launchers()
        fd, every = opened(arena, kind)
        try:
            return arena.attack(script_for(kind, fd)).won
        finally:
            for one in every:
                os.close(one)

    return attack


def leaks_naively(kind: str) -> Callable[[Arena], object]:
    def control(arena: Arena) -> object:
        fd, every = opened(arena, kind)
        try:
            words = ("--proc", "/proc", *python(script_for(kind, fd)))
            return b"WON" in naive_bwrap(arena.ground.bwrap, *words, close_fds=False).stdout
        finally:
            for one in every:
                os.close(one)

    return control


for _kind, (_tries, _) in USE.items():
    LIST.add_pair("A23", _tries, leaks(_kind), "by a bwrap call that inherits descriptors", leaks_naively(_kind))

FORGED: Final = '{"jsonrpc": "2.0", "id": 1, "result": "forged"}'
CALLER: Final = """
import subprocess, sys
from unspill import Policy, Sandbox
project, bwrap, way, command = sys.argv[1:5]
print("the caller's own line", flush=True)
if way == "ours":
    with Sandbox(project, policy=Policy(bwrap=bwrap.encode(), after="hold", allow_root=True)) as sandbox:
        sandbox.run(["/usr/bin/python3", "-I", "-c", command])
else:
    naive = [bwrap, "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc"]
    subprocess.run([*naive, "/usr/bin/python3", "-I", "-c", command])
"""
WRITES: Final = {
    "Write a forged message to the caller's standard output": f"print({FORGED!r}, flush=True)",
    "Write a forged message to the caller's standard error": f"import os; os.write(2, {FORGED!r}.encode())",
    "Write a forged message to every descriptor there is": f"""
import os
for fd in range(256):
    try: os.write(fd, {FORGED!r}.encode())
    except OSError: pass
""",
    "Write a forged message to the output of pid 1": f"""
import os
for fd in (1, 2):
    try: os.write(os.open("/proc/1/fd/%d" % fd, os.O_WRONLY), {FORGED!r}.encode())
    except OSError: pass
""",
}


def forges(script: str, way: str) -> Callable[[Arena], object]:
    """Tell whether a command's message is on the streams of a program that speaks a protocol there."""

    def attack(arena: Arena) -> object:
        given = (os.fspath(arena.ground.project), os.fsdecode(arena.ground.bwrap), way, script)
        words = [sys.executable, "-c", CALLER, *given]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
        assert "the caller's own line" in done.stdout, done
        assert done.returncode == 0, done
        return "forged" in done.stdout + done.stderr

    return attack


for _tries, _script in WRITES.items():
    LIST.add_pair(
        "E1", _tries, forges(_script, "ours"), "by a command that inherits the streams", forges(_script, "naive")
    )


def started_in(place: Callable[[Arena], str], **options: Any) -> Callable[[Arena], object]:
    """Ask for a working directory; it is a success if the command runs there and finds the secret."""

    def attack(arena: Arena) -> object:
        secret = arena.ground.home / "private"
        secret.mkdir(exist_ok=True)
        (arena.ground.home / "playground").mkdir(exist_ok=True)
        (secret / "canary").write_text("x")
        link = arena.ground.project / "way"
        if not link.is_symlink():
            link.symlink_to(secret)
        try:
            result = arena.ground.sandbox().run("ls -A", working_dir=place(arena), **options)
        except UnspillError:
            return False
        return b"canary" in result.stdout.kept()

    return attack


def shown_home(arena: Arena) -> Any:
    home = os.fsencode(arena.ground.home)
    return arena.plan_changed(lambda mounts: replaced(mounts, home, shown_as_it_is(home)))


for _tries, _place in {
    "Ask for a working directory outside, by its path": lambda arena: os.fspath(arena.ground.home / "private"),
    "Ask for a working directory outside, by dots": (
        lambda arena: os.path.relpath(arena.ground.home / "private", arena.ground.inside())
    ),
    "Ask for a working directory outside, by way of /proc": (
        lambda arena: "/proc/self/root" + os.fspath(arena.ground.home / "private")
    ),
}.items():
    LIST.add("E3", _tries, started_in(_place), Defence("the empty home directory", shown_home))

PRELOADED: Final = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void started(void) {
    int fd = open(CANARY, O_CREAT | O_WRONLY, 0600);
    if (fd >= 0) close(fd);
}
"""


def preloads(*, naive: bool) -> Callable[[Arena], object]:
    """Give LD_PRELOAD to a command: nothing on the host may load it, bwrap least of all."""

    def attack(arena: Arena) -> object:
        canary = arena.ground.top / "loaded"
        library = arena.ground.project / "evil.so"
        if not library.exists():
            words = ["gcc", "-shared", "-fPIC", f'-DCANARY="{canary}"', "-o", os.fspath(library), "-x", "c", "-"]
            subprocess.run(words, input=PRELOADED, text=True, check=True)
        given = {"LD_PRELOAD": os.fspath(library)}
        if naive:
            naive_bwrap(arena.ground.bwrap, "true", env={**os.environ, **given})
        else:
            try:
                arena.ground.sandbox().run(["true"], env=given)
            except UnspillError:
                return False
        return canary.exists()

    return attack


LIST.add_pair(
    "E3",
    "Give a variable to a command that makes every program load a library",
    preloads(naive=False),
    "by a bwrap call that has the variable itself",
    preloads(naive=True),
)
