# SPDX-License-Identifier: Apache-2.0
"""Starts `unspill` in a fraction of the time: by a copy of a process that has already loaded what it needs.

To load `unspill` takes 60 ms of CPU and to load the SDK of `unspill mcp` 1.5 seconds, and tests start thousands. The
copy is a child of this process, with the streams, the directory and the variables that `subprocess` would have given,
and ends like any other. Tests of the start itself, of signals and of inherited descriptors start the program as a
person does, and so do all documents.
"""

import functools
import marshal
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import unspill

# Whoever starts the program says by this variable that it may be a copy, and of what
PREPARED: Final = {"UNSPILL_TEST_PREPARED": "commands"}
PREPARED_SERVER: Final = {"UNSPILL_TEST_PREPARED": "server"}
PROGRAM: Final = os.fspath(Path(sys.executable).with_name("unspill"))
# These count when Python starts, which is over in a copy
_EARLY: Final = (b"PYTHON", b"LC_", b"LANG", b"LD_")
_LIMITS: Final = sorted(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))

# Copies itself for each request, as a child of the one who started it. A fork by Python's own means would have the
# wrong parent, which could not wait for it.
SOURCE: Final = """
import gc, sys
gc.disable()
for name in sys.argv[2:]:
    __import__(name)
from unspill.cli.main import main
import ctypes, marshal, os, signal, socket
gc.freeze()
gc.enable()
CLONE, CLONE_PARENT = {"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x8000
here = ctypes.PyDLL(None)

def copy():
    here.PyOS_BeforeFork()
    pid = here.syscall(ctypes.c_long(CLONE), ctypes.c_long(CLONE_PARENT | signal.SIGCHLD), *[ctypes.c_long(0)] * 3)
    if pid:
        here.PyOS_AfterFork_Parent()
    else:
        here.PyOS_AfterFork_Child()
    return pid

link = socket.socket(fileno=int(sys.argv[1]))
while True:
    asked, fds, _, _ = socket.recv_fds(link, 1 << 20, 3)
    if not asked:
        os._exit(0)
    pid = copy()
    if not pid:
        break
    for fd in fds:
        os.close(fd)
    link.send(b"%d" % pid)
link.close()
words, cwd, variables, has_session, mask = marshal.loads(asked)
if has_session:
    os.setsid()
for number, fd in enumerate(fds):
    os.dup2(fd, number)
    os.close(fd)
if cwd is not None:
    os.chdir(cwd)
os.umask(mask)
os.environb.clear()
os.environb.update(variables)
sys.argv = [os.fsdecode(word) for word in words]
sys.path[0] = os.path.dirname(sys.argv[0])
main()
"""
SERVER: Final = ("unspill.adapters.mcp.questions", "unspill.adapters.mcp.server")
_PACKAGE: Final = Path(unspill.__file__).parent
COMMANDS: Final = tuple(
    f"unspill.{path.parent.name}.{path.stem}"
    for path in sorted(_PACKAGE.glob("*/[a-z]*.py"))
    if path.parent.name != "adapters" and not path.stem.endswith(("_main", "_child"))
)


class Preparation:
    """A process that copies itself, and the link to it."""

    def __init__(self, *modules: str) -> None:
        self._lock, self._owner, self._state = threading.Lock(), os.getpid(), state_of(os.environb)
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SOURCE, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fits(self, variables: Mapping[bytes, bytes]) -> bool:
        """Tell whether a process that is started now would have the same settings, limits and signals."""
        return self._owner == os.getpid() and self._state == state_of(variables)

    def start(self, request: bytes, fds: list[int]) -> int:
        """Have a copy made; return its process id."""
        with self._lock:
            socket.send_fds(self._link, [request], fds)
            return int(self._link.recv(100))

    def end(self) -> None:
        """Let the process go; copies go on."""
        self._link.close()
        self._process.wait(20)


def state_of(variables: Mapping[bytes, bytes]) -> object:
    """Return what a process inherits that a copy of another one does not."""
    early = {name: value for name, value in variables.items() if name.startswith(_EARLY)}
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
    return early, limits, ignored, signal.pthread_sigmask(signal.SIG_BLOCK, ())


def current_mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@pytest.fixture(scope="session", autouse=True)
def prepared_programs() -> Iterator[None]:
    """Let `subprocess` start the program by copies where its caller allows it."""
    with started_by_copies():
        yield


@contextmanager
def started_by_copies() -> Iterator[None]:
    """The same, outside of pytest."""
    plain = subprocess._fork_exec  # type: ignore[attr-defined]
    made: list[Preparation] = []

    @functools.cache
    def prepare(modules: tuple[str, ...]) -> Preparation:
        made.append(Preparation(*modules))
        return made[-1]

    def fork_exec(*given: Any) -> int:
        words, _, close_fds, kept, cwd, listed = given[:6]
        variables = dict(line.split(b"=", 1) for line in listed or ())
        wanted = variables.pop(b"UNSPILL_TEST_PREPARED", None)
        if wanted is None:
            return int(plain(*given))
        words = [os.fsencode(word) for word in words]
        preparation = prepare(SERVER if wanted == b"server" else COMMANDS)
        # Whoever hands on more descriptors has a process of its own made
        if words[0] != os.fsencode(PROGRAM) or not close_fds or len(kept) != 1 or not preparation.fits(variables):
            return int(plain(*given))
        streams = [number if fd == -1 else fd for number, fd in enumerate((given[6], given[9], given[11]))]
        request = (words, None if cwd is None else os.fsencode(cwd), variables, bool(given[15]), current_mask())
        return preparation.start(marshal.dumps(request), streams)

    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess._fork_exec = plain  # type: ignore[attr-defined]
        for one in made:
            one.end()
