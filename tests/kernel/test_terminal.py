# SPDX-License-Identifier: Apache-2.0
"""Terminals: a command of a live sandbox has one of its own, and a person's own is as it was, whatever happens."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.support import Ground, kinds, lasting, processes_with
from unspill import Cancelled, Exited, NeverStarted
from unspill.errors import UsageError
from unspill.host.door import STARTED, frame
from unspill.runner.live import _hear_with_terminal, is_terminal_master
from unspill.sandbox.live import Live
from unspill.sandbox.terminal import Terminal

pytestmark = [pytest.mark.kernel, pytest.mark.rootfs_view]

S = 20.0


@pytest.fixture
def live(ground: Ground) -> Iterator[Live]:
    with ground.sandbox() as sandbox, sandbox.live() as live:
        yield live


def read_all(terminal: Terminal) -> bytes:
    """Return all that is printed to the end."""
    return b"".join(iter(lambda: terminal.read(timeout=S), b""))


def read_until(terminal: Terminal, words: bytes) -> bytes:
    """Return what is printed until these words are there."""
    found = b""
    while words not in found:
        chunk = terminal.read(timeout=S)
        assert chunk, found
        found += chunk
    return found


def test_a_command_has_a_terminal_of_its_own(live: Live) -> None:
    command = "tty; stty size; echo x > /dev/tty; cut -d ' ' -f 6-8 /proc/self/stat; echo $$"
    with live.terminal(command, (30, 100)) as terminal:
        lines = read_all(terminal).decode().split("\r\n")
        assert terminal.wait(S).outcome == Exited(code=0)
    assert lines[:3] == ["/dev/pts/0", "30 100", "x"]
    session, number, group = map(int, lines[3].split())
    assert os.major(number) == 136
    # The command leads the session, and is in the foreground
    assert session == group == int(lines[4])


def test_nothing_else_of_the_terminal_is_open_to_the_command(live: Live) -> None:
    with live.terminal(["ls", "-l", "/proc/self/fd"]) as terminal:
        found = re.findall(rb"(\d+) -> (\S+)", read_all(terminal))
    assert [(name, place) for name, place in found if not place.startswith(b"/proc/")] == [
        (name, b"/dev/pts/0") for name in (b"0", b"1", b"2")
    ]


def test_a_program_is_told_of_another_size(live: Live) -> None:
    with live.terminal("trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done") as terminal:
        read_until(terminal, b"ready")
        terminal.resize(50, 132)
        assert b"50 132" in read_all(terminal)


# Says when it is in the foreground, at first and when it goes on
JOB = b"""sh -c 'trap "echo on""ward" CONT; echo for""ward; read line; read line'\r"""


def test_keys_and_jobs_work_in_a_shell(live: Live) -> None:
    with live.shell() as terminal:
        terminal.write(b"PS1='in'; PS1=$PS1'> '\r")
        read_until(terminal, b"in> ")
        terminal.write(JOB)
        read_until(terminal, b"forward")
        terminal.write(b"\x1a")
        assert b"Stopped" in read_until(terminal, b"in> ")
        terminal.write(b"fg\r")
        read_until(terminal, b"onward")
        terminal.write(b"\x03")
        read_until(terminal, b"in> ")
        terminal.write(b"exit 3\r")
        read_all(terminal)
        assert terminal.wait(S).outcome == Exited(code=3)


def test_it_ends_like_any_run(ground: Ground, live: Live) -> None:
    with live.terminal("echo new > f; echo printed", after="hold") as terminal:
        assert read_all(terminal) == b"printed\r\n"
        held = terminal.wait(S)
    with live.terminal("echo newer > g", after="apply") as terminal:
        read_all(terminal)
        applied = terminal.wait(S)
    assert kinds(held.changes) == {"f": "added"}
    assert applied.operation is not None
    assert (ground.project / "g").read_text() == "newer\n"
    # Whoever reads a terminal has its output; the record has none
    assert (held.stdout.total, held.stderr.total) == (0, 0)
    assert live.run("cat f g").stdout.head == b"new\nnewer\n"


def test_whoever_closes_it_ends_the_command(live: Live) -> None:
    word = lasting()
    with live.terminal(f"trap '' HUP INT TERM; echo ready; echo x > f; sleep {word}", after="apply") as terminal:
        read_until(terminal, b"ready")
    assert terminal.wait(S).outcome == Cancelled()
    assert terminal.wait(S).operation is None
    assert processes_with(word) == []
    assert (terminal.fileno(), terminal.read()) == (-1, b"")
    assert live.run("true").outcome == Exited(code=0)


def test_what_never_started_has_no_terminal(live: Live) -> None:
    with live.terminal(["there-is-no-such-program"]) as terminal:
        assert terminal.read(timeout=S) == b""
        assert isinstance(terminal.wait(S).outcome, NeverStarted)


def test_what_is_wrong_is_refused(live: Live) -> None:
    for size in ((0, 80), (24, 1 << 16)):
        with pytest.raises(UsageError, match="size"):
            live.terminal("true", size)
    with pytest.raises(UsageError, match="does not exist"):
        live.terminal("true", working_dir="nowhere")
    with live.terminal("true") as terminal:
        read_all(terminal)
        with pytest.raises(UsageError, match="ended"):
            terminal.write(b"x")
    live.close()
    with pytest.raises(UsageError, match="closed"):
        live.terminal("true")


def test_ten_megabytes_arrive_whole(live: Live) -> None:
    with live.terminal("head -c 10000000 /dev/zero | tr '\\0' x") as terminal:
        assert read_all(terminal) == b"x" * 10_000_000


def test_the_strict_profile_has_terminals(ground: Ground) -> None:
    with ground.sandbox(profile="strict") as sandbox, sandbox.live() as live, live.shell() as terminal:
        terminal.write(b"tty; stty size; echo x > f; exit\r")
        printed = read_all(terminal)
        assert b"/dev/pts/0\r\n24 80" in printed, printed
        assert kinds(terminal.wait(S).changes) == {"f": "added"}


def test_the_persons_shell_is_started_if_the_sandbox_has_it(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell, started in (("/bin/bash", b"bash"), ("/usr/bin/there-is-none", b"sh")):
        monkeypatch.setenv("SHELL", shell)
        with ground.sandbox(view="sealed") as sandbox, sandbox.live() as live, live.shell() as terminal:
            terminal.write(b"ps -o comm= -p $$ | tr a-z A-Z; exit\r")
            assert started.upper() + b"\r\n" in read_all(terminal)


FORGED: dict[str, Callable[[], int]] = {
    "a pipe": lambda: os.pipe()[0],
    "a file": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "another device": lambda: os.open("/dev/full", os.O_RDWR),
    "the other side of a terminal": lambda: os.openpty()[1],
    "a socket": lambda: socket.socket(socket.AF_UNIX).detach(),
}


def leading_to(place: str) -> int:
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{number}") == place
    return count


@pytest.mark.parametrize("kind", [*FORGED, "control"])
def test_only_the_master_of_a_terminal_is_taken_from_the_door(kind: str) -> None:
    """What comes from inside is checked, and closed if it is anything else; the control is a real one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        fd = os.openpty()[0] if kind == "control" else FORGED[kind]()
        socket.send_fds(theirs, [frame(STARTED)], [fd, fd])
        place = os.readlink(f"/proc/self/fd/{fd}")
        before = leading_to(place)
        found, master = _hear_with_terminal(ours)
        assert found is not None
        assert found[0] == STARTED
        is_taken = kind == "control"
        # Only those that lead there: what earlier tests left may be closed at any moment
        assert is_taken or leading_to(place) == before
        assert (master is not None) is is_taken
        assert is_terminal_master(fd) is is_taken
        os.close(fd)
        if master is not None:
            os.close(master)


# Every descriptor of every process that can be looked at, and those that lead to a master
SEARCH = """
import os, glob
found = []
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        place = os.readlink(path)
    except OSError:
        continue
    if place.endswith("ptmx"):
        found.append(place)
print(len(found), "masters")
"""


@pytest.mark.parametrize("is_control", [False, True], ids=["search", "control"])
def test_no_process_inside_reaches_the_master(live: Live, is_control: bool) -> None:
    """The control has a master of its own, which the same search finds."""
    own = "import os; os.openpty()\n" if is_control else ""
    with live.terminal(["python3", "-c", own + SEARCH]) as terminal:
        assert read_all(terminal).endswith(b"1 masters\r\n" if is_control else b"0 masters\r\n")


TYPE_AHEAD = """
import fcntl, os, select, termios, tty
tty.setcbreak(0)
try:
    fcntl.ioctl(0, termios.TIOCSTI, b"!")
except OSError as error:
    print("refused", error.errno)
print("typed", bool(select.select([0], [], [], 0.1)[0]))
"""


def test_a_command_does_not_type_on_its_terminal(live: Live) -> None:
    """The control, without the filter, is A17.1 of the attacks."""
    with live.terminal(["python3", "-c", TYPE_AHEAD]) as terminal:
        assert read_all(terminal) == b"refused 25\r\ntyped False\r\n"
