# SPDX-License-Identifier: Apache-2.0
"""Every single option of a plan, taken away alone, with what overlaps it switched off: its attack then succeeds.

That no option of a plan is without a case is shown in `test_ablation_mounts.py`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.attack.ablation_flags import SINGLE, Given, given_to_bwrap
from tests.attack.arena import Arena, drop, judge, processes_with, python, wait_until
from tests.attack.starting import started, with_contents
from tests.attack.terminals import typed_at
from tests.figures import record_figure
from unspill import NeverStarted
from unspill.host.job import memory_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

USERNS: Final = 'call("a user namespace", libc.unshare(0x10000000))'
CAPABILITIES: Final = """
for line in open("/proc/self/status"):
    if line.startswith(("CapPrm", "CapEff", "CapBnd")) and int(line.split()[1], 16): won(line.strip())
"""
# In two parts: pid 1 has this script on its own command line
SPAWNER: Final = 'if b"spawner" b"_main" in open("/proc/1/cmdline", "rb").read(): won("sees what started bwrap")'
NAMESPACE: Final = 'if os.readlink("/proc/self/ns/{0}") == {1!r}: won("is in the {0} namespace of the host")'
QUEUE: Final = 'call("a message queue of the host", libc.msgget({}, 0))'
CONNECT: Final = """
connection = socket.socket()
connection.settimeout(5)
attempt("reaches a port of the host", connection.connect, ("127.0.0.1", {}))
"""
NAME: Final = 'if os.uname().nodename == {!r}: won("knows the name of the host")'
PLACE: Final = 'if os.getcwd() != {!r}: won("is elsewhere", os.getcwd())'
URING: Final = 'call("io_uring", libc.syscall(425, 4, ctypes.create_string_buffer(128)))'
DEVICES: Final = """
harmless = "null zero full random urandom tty ptmx pts shm".split()
for name in os.listdir("/dev"):
    if name not in harmless and not os.path.islink("/dev/" + name): won(name)
"""


def attacked(arena: Arena, script: str) -> bool:
    """Tell whether a script achieved anything; a run that bwrap did not start achieved nothing."""
    result = arena.ground.sandbox().run(python(script))
    return False if isinstance(result.outcome, NeverStarted) else bool(judge(result))


def starts(arena: Arena) -> bool:
    return not isinstance(arena.ground.sandbox().run(["true"]).outcome, NeverStarted)


@contextmanager
def message_queue() -> Iterator[int]:
    """A System V message queue of the host, by its key."""
    libc, key, create, remove = ctypes.CDLL(None), 0x756E0000 | os.getpid() & 0xFFFF, 0o1600, 0
    queue = libc.msgget(key, create)
    assert queue >= 0
    try:
        yield key
    finally:
        libc.msgctl(queue, remove, None)


def host_attack(kind: str) -> Callable[[Arena], bool]:
    """Return an attack on a namespace of the host, with something of the host's to find in it."""

    def attack(arena: Arena) -> bool:
        with ExitStack() as stack:
            script = NAMESPACE.format(kind, os.readlink(f"/proc/self/ns/{kind}"))
            if kind == "ipc":
                script += "\n" + QUEUE.format(stack.enter_context(message_queue()))
            if kind == "net":
                listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                script += "\n" + CONNECT.format(listener.getsockname()[1])
            result = arena.ground.sandbox().run(python(script))
            won = () if isinstance(result.outcome, NeverStarted) else judge(result).won
            # Where something is to be found, it is found exactly where the namespace is the host's
            assert len(won) in ((0, 2) if kind in ("ipc", "net") else (0, 1))
            return bool(won)

    return attack


def script_attack(script: str) -> Callable[[Arena], bool]:
    return lambda arena: attacked(arena, script)


def with_capabilities(options: list[bytes]) -> list[bytes]:
    """Ask for all capabilities before they are dropped: for ordinary users bwrap drops them by itself too."""
    at = options.index(b"--hostname") if b"--cap-drop" not in options else options.index(b"--cap-drop")
    return [*options[:at], b"--cap-add", b"ALL", *options[at:]]


def without(*flags: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda options: drop(options, *flags)


def with_host(option: bytes, instead: Sequence[bytes], *gone: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Return a change that shows what is on the host in the place of what bwrap makes."""

    def change(options: list[bytes]) -> list[bytes]:
        left = drop(options, *gone) if gone else options
        at = left.index(option)
        return [*left[:at], *instead, *left[at + 2 :]]

    return change


DEV_SHM: Final = b"--perms 1777 --size 67108864 --tmpfs /dev/shm"
# The attack; how the option is taken away; what overlaps it and is switched off, with the filter or without
CASES: Final[dict[bytes, tuple[Any, ...]]] = {
    b"--unshare-ipc": (host_attack("ipc"), without(b"--unshare-ipc")),
    b"--unshare-pid": (script_attack(SPAWNER), without(b"--unshare-pid")),
    b"--unshare-net": (host_attack("net"), without(b"--unshare-net")),
    b"--unshare-uts": (host_attack("uts"), without(b"--unshare-uts"), without(b"--hostname unspill")),
    b"--unshare-cgroup-try": (host_attack("cgroup"), without(b"--unshare-cgroup-try")),
    b"--disable-userns": (
        script_attack(USERNS),
        without(b"--disable-userns"),
        without(b"--assert-userns-disabled"),
        "filter",
    ),
    b"--assert-userns-disabled": (
        script_attack(USERNS),
        without(b"--assert-userns-disabled"),
        without(b"--disable-userns"),
        "filter",
    ),
    b"--cap-drop": (script_attack(CAPABILITIES), without(b"--cap-drop ALL"), with_capabilities),
    b"--hostname": (script_attack(NAME.format(os.uname().nodename)), without(b"--hostname unspill")),
    b"--proc": (script_attack(SPAWNER), with_host(b"--proc", (b"--ro-bind", b"/proc", b"/proc"))),
    b"--dev": (
        script_attack(DEVICES),
        with_host(b"--dev", (b"--dev-bind", b"/dev", b"/dev"), b"--remount-ro /dev", DEV_SHM),
    ),
    b"--seccomp": (script_attack(URING), None, "filter-is-it"),
}


@pytest.mark.parametrize("flag", sorted(CASES), ids=os.fsdecode)
def test_an_option_that_is_taken_away_lets_its_attack_succeed(arena: Arena, flag: bytes) -> None:
    """Each option with an attack that runs inside. Control: with it the attack fails, whatever overlaps it is off."""
    attack, change, *overlaps = CASES[flag]
    assert not attack(arena)
    with ExitStack() as stack:
        if flag == b"--seccomp":
            stack.enter_context(arena.without_filter())
        else:
            if "filter" in overlaps:
                stack.enter_context(arena.without_filter())
            others = [one for one in overlaps if callable(one)]
            for other in others:
                with arena.options_changed(other):
                    assert not attack(arena), "the option alone does not stop it"
            stack.enter_context(arena.options_changed(composed(change, *others)))
        assert attack(arena)


def composed(*changes: Callable[[list[bytes]], list[bytes]]) -> Callable[[list[bytes]], list[bytes]]:
    def change(options: list[bytes]) -> list[bytes]:
        for one in changes:
            options = one(options)
        return options

    return change


def direct_survivors(arena: Arena, given: Given, options: Sequence[bytes]) -> bool:
    """Kill bwrap itself, as nobody who watches it would see, and tell whether its command lives on."""
    mark = f"unspill-ablation-{os.urandom(4).hex()}"
    command = ["sh", "-c", "while :; do sleep 1; done", mark]
    bwrap = started(given, arena.ground.bwrap, options, command, stdin=subprocess.DEVNULL)
    # The shell of the command, not bwrap, whose command line has the mark as well
    inside = f"sleep 1; done\0{mark}"
    try:
        assert wait_until(lambda: [pid for pid in processes_with(inside) if not is_bwrap(pid)])
        bwrap.kill()
        bwrap.wait()
        # Twice: a listing of /proc may leave out one that lives while others come and go
        return not wait_until(lambda: not processes_with(mark) and not processes_with(mark), 0.7)
    finally:
        for pid in processes_with(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_bwrap(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith("bwrap")
    except OSError:
        return True


def test_without_die_with_parent_a_command_outlives_a_bwrap_that_is_killed(arena: Arena) -> None:
    """bwrap with the options of a plan, started without the spawner that would kill its group as well."""
    given = given_to_bwrap(arena)
    assert not direct_survivors(arena, given, given.options)
    without = drop(given.options, b"--die-with-parent")
    # A listing of /proc may leave out one that lives
    assert any(direct_survivors(arena, given, without) for _ in range(3))


TYPE: Final = "import fcntl, termios\nattempt('type', fcntl.ioctl, 0, termios.TIOCSTI, b'!')"


def typed(arena: Arena, given: Given, options: Sequence[bytes]) -> str:
    """Return what a command that has a person's terminal as its input typed there."""
    memory = memory_file(b"\0".join(options) + b"\0")
    shell, fds = with_contents(given)
    words = [*shell, os.fsdecode(arena.ground.bwrap), "--args", str(memory), "--", *python(TYPE)]
    try:
        return typed_at(arena.ground.top, *words, pass_fds=(memory, *fds))
    finally:
        for fd in (memory, *fds):
            os.close(fd)


def test_without_a_new_session_a_command_types_on_the_terminal_that_it_is_given(arena: Arena) -> None:
    """bwrap with the options of a plan on a person's terminal; off are the pipes, the spawner's session, the filter."""
    given = given_to_bwrap(arena)
    at = given.options.index(b"--seccomp")
    options = [*given.options[:at], *given.options[at + 2 :]]
    assert typed(arena, given, options) == "typed nothing"
    assert typed(arena, given, drop(options, b"--new-session")) == "typed !"


def test_without_clearenv_a_command_has_the_variables_of_who_starts_bwrap(arena: Arena) -> None:
    """bwrap with the options of a plan, started with a canary; off is the empty environment that the spawner gives."""
    given = given_to_bwrap(arena)

    def seen(options: Sequence[bytes]) -> bool:
        variables = {**os.environ, "UNSPILL_CANARY": "CANARY"}
        run = started(given, arena.ground.bwrap, options, ["/usr/bin/env"], env=variables, stdout=subprocess.PIPE)
        output, _ = run.communicate(timeout=30)
        assert run.returncode == 0
        return b"CANARY" in output

    assert not seen(given.options)
    assert seen(drop(given.options, b"--clearenv"))


def test_without_chdir_a_command_is_not_where_it_was_asked_to_be(arena: Arena) -> None:
    """The spawner's own directory is the root, so that is where it would be."""
    script = PLACE.format(os.fspath(arena.ground.project))
    assert not attacked(arena, script)
    with arena.without(b"--chdir " + os.fsencode(arena.ground.inside())):
        assert attacked(arena, script)


def test_without_unshare_user_no_command_starts(arena: Arena) -> None:
    """Ordinary users get a user namespace in any case; asked for, it is what `--disable-userns` needs, and bwrap starts
    nothing where it can't keep that. With that off as well, and the filter, a command makes namespaces."""
    assert starts(arena)
    with arena.without(b"--unshare-user"):
        assert not starts(arena)
    with arena.without_filter():
        assert not attacked(arena, USERNS)
        with arena.without(b"--unshare-user", b"--disable-userns", b"--assert-userns-disabled"):
            assert attacked(arena, USERNS)


IN_TESTS_OF_THEIR_OWN: Final = {b"--die-with-parent", b"--new-session", b"--clearenv", b"--chdir", b"--unshare-user"}


def test_every_single_option_has_a_case() -> None:
    assert not CASES.keys() & IN_TESTS_OF_THEIR_OWN
    assert CASES.keys() | IN_TESTS_OF_THEIR_OWN == SINGLE
    print(f"{len(SINGLE)} single options, each of them missed when it is taken away")
    record_figure("ablation: single options of bwrap", f"{len(SINGLE)} of {len(SINGLE)}", "overlapping defences off")
