# SPDX-License-Identifier: Apache-2.0
"""The caller's end of the spawner: starts it once per interpreter, makes jobs of plans and hands them over.

The caller may be big and have threads, so it never forks: the spawner is a new program (posix_spawn). The command
line is small and has one thread: there the spawner is a fork of it, which saves starting Python twice. Every run loads
this file, so it has sockets and locks from where `socket` and `threading` have them, without what those two load.
"""

from __future__ import annotations

import atexit
import errno
import os
import select
import sys
from _socket import socket
from _thread import allocate_lock

from unspill.errors import SandboxUnavailable
from unspill.host.dirfd import copy_of, make_pair, make_pipe
from unspill.host.job import (
    ARGS_FD,
    BLOCK_FD,
    FIRST_FILE_FD,
    STATUS_FD,
    Job,
    is_dead,
    memory_files,
    receive,
    run_name,
    send,
)
from unspill.layers.locks import is_given_up
from unspill.model.plan import (
    PROXY_PORT,
    Bind,
    File,
    Overlay,
    ProxyNetwork,
    Tmpfs,
)
from unspill.model.run import Exited, NeverStarted
from unspill.plan.argv import bwrap_options
from unspill.plan.view import command_words
from unspill.runner.watch import not_entered, not_executed, rlimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.host.cgroup import Group
    from unspill.host.job import Temporary
    from unspill.model.plan import Facts, Plan
    from unspill.model.run import Outcome, RunId
    from unspill.runner.watch import RunControl, RunPipes


_WITH_PARENT = b"--die-with-parent"
# What the shell says, and which error that is
_DIRECTORIES = {b"none": errno.ENOENT, b"file": errno.ENOTDIR, b"closed": errno.EACCES}
_PROGRAMS = {b"program": errno.ENOENT, b"mode": errno.EACCES}
_LONGEST = 64
_STATUS_BYTES = 4096
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DYING_MS = 5000
_SETTLING_S = 0.05
_IN_FLIGHT = "A program of yours keeps too many file descriptors in its sockets: end it, or raise `ulimit -Hn`."
_lock = allocate_lock()  # protects _launchers: two threads must not start two spawners
_launchers: dict[tuple[int, bool], Launcher] = {}


def get_launcher(*, own_namespace: bool, may_fork: bool = False) -> Launcher:
    """Return this interpreter's spawner, starting it where there is none (or none in this process after a fork)."""
    key = (os.getpid(), own_namespace)
    with _lock:
        launcher = _launchers.get(key)
        if launcher is None or not launcher.is_alive():
            if launcher is not None:
                launcher.stop()
            launcher = _start_by_fork(own_namespace) if may_fork else _start_by_program(own_namespace)
            _launchers[key] = launcher
        return launcher


def close_launchers() -> None:
    """Let the spawners of this process end while it does something else; `stop_launchers` waits for them."""
    with _lock:
        for (pid, _kind), launcher in _launchers.items():
            if pid == os.getpid():
                launcher.close()


def stop_launchers() -> None:
    """End the spawners of this process and wait for them."""
    close_launchers()
    with _lock:
        for key in [key for key in _launchers if key[0] == os.getpid()]:
            _launchers.pop(key).stop()


class Launcher:
    """A spawner process and the socket to it."""

    def __init__(self, control: socket, pid: int, *, own_namespace: bool) -> None:
        self._control = control
        self.own_namespace = own_namespace
        self._is_broken = False
        self._spawner_fd: int | None = None
        self._is_greeted = False
        self.pid = pid

    def launch(self, job: Job, descriptors: tuple[int, ...]) -> Launched:
        """Start a job; the descriptors are duplicated, the caller keeps and closes its own.

        Raises:
            SandboxUnavailable: the spawner is gone.
            OSError: no descriptor is left.
        """
        ours, theirs = make_pair()
        try:
            # A copy: whoever finds the spawner dead closes the socket, and its number may be another's a moment later
            with _lock:
                control = copy_of(self._control)
            try:
                send(control, job.as_dict(), (theirs.fileno(), *descriptors))
            finally:
                control.close()
        except (OSError, ValueError) as error:  # ValueError: another thread has closed it before
            ours.close()
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # the spawner is well, and so are the other runs
            if isinstance(error, OSError) and error.errno == errno.ETOOMANYREFS:
                raise SandboxUnavailable(f"no descriptor can be sent: {error.strerror}", remedy=_IN_FLIGHT) from error
            # The process may take a moment longer to end than its socket
            self._is_broken = True
            raise SandboxUnavailable(f"the spawner process is gone: {error}") from error
        finally:
            theirs.close()
        return Launched(ours, self)

    def is_alive(self) -> bool:
        """Tell whether the spawner still answers. Not by waitpid: a program may reap what it does not know."""
        return not self._is_broken and not _is_hung_up(self._control)

    def wait_until_dead(self) -> None:
        """Wait for the end of a spawner whose socket has ended, which the kernel closes first."""
        with _lock:
            self._is_broken = True
            if self._control.fileno() < 0:
                return  # another thread has seen its end already
            # Without a greeting it has not started anything
            self._read_greeting()
            # A copy: when the next spawner is started, this one is let go of
            fd = None if self._spawner_fd is None else os.dup(self._spawner_fd)
            control = copy_of(self._control)
        if fd is not None:
            while not is_dead(fd, _DYING_MS) and _is_hung_up(control):
                continue
            os.close(fd)
        control.close()

    def know_spawner(self) -> None:
        """Have the descriptor of a spawner that has said something: when it dies, there may be none to be had."""
        if not self._is_greeted:
            with _lock:
                self._read_greeting()

    def _read_greeting(self) -> None:
        if not self._is_greeted and self._control.fileno() >= 0:
            self._is_greeted = True
            message = receive(self._control)
            self._spawner_fd = message[1][0] if message and message[1] else None

    def close(self) -> None:
        """Close what this process has of a spawner, which then ends."""
        self._is_broken = True
        self._control.close()
        if self._spawner_fd is not None:
            os.close(self._spawner_fd)
            self._spawner_fd = None

    def stop(self) -> None:
        """End the spawner and with it every run it started; reap it, for not every pid 1 would."""
        self.close()
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return  # the program has reaped it, or lets the kernel do so
        try:
            if is_dead(fd, _DYING_MS):
                os.waitpid(self.pid, 0)
        except ChildProcessError:
            return
        finally:
            os.close(fd)


class Launched:
    """One run in the spawner: what it says about it, and the means to kill it."""

    # Why its command was not started: bwrap's status says that
    failure = None
    # Known when the spawner tells of its start
    init: tuple[int, int] | None = None
    # The spawner always answers
    deadline = None

    def __init__(self, reply: socket, launcher: Launcher) -> None:
        self._reply = reply
        self._launcher = launcher
        self.own_namespace = launcher.own_namespace

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a message."""
        return self._reply.fileno()

    def message(self) -> tuple[Any, list[int]] | None:
        """Return the next message and its descriptors, None if the spawner is gone."""
        message = receive(self._reply)
        if message is not None:
            self._launcher.know_spawner()
        return message

    def ask(self, words: tuple[Any, ...], descriptors: tuple[int, ...] = ()) -> None:
        """Ask for something that only a live sandbox does; the answer is the next message."""
        try:
            send(self._reply, words, descriptors)
        except OSError:
            return  # it has ended: its last words are still to be read

    def kill(self) -> None:
        """Ask for the death of every process of the run."""
        try:
            self._reply.send(b"k")
        except OSError:
            return  # it has ended, or the spawner has and took all with it

    def give_up(self) -> None:
        """Nothing is late here."""

    def wait_for_spawner(self, run: str) -> None:
        """Wait for the death of a spawner that does not answer any more, and of all that it started for a run."""
        self._launcher.wait_until_dead()
        if not self._launcher.own_namespace:
            from unspill.host.job import kill_strays  # lazy: native engine

            kill_strays((run,), settle_s=_SETTLING_S)

    def close(self) -> None:
        """Let go; a run that is still alive is killed."""
        self._reply.close()


def make_group_of(plan: Plan, facts: Facts, run: RunId) -> Group | None:
    """Return a control group that bounds a plan, None where there is none to be had."""
    if facts.cgroup == "none":
        return None
    from unspill.host.cgroup import make_group  # lazy: control groups

    return make_group(facts.cgroup, run, plan.limits)


def launch(
    plan: Plan,
    facts: Facts,
    control: RunControl,
    pipes: RunPipes,
    group: Group | None,
    report: StartReport | None,
    *,
    is_live: bool = False,
) -> Launched | None:
    """Start the bwrap of a plan; None where its caller gave up before.

    Of one that `is_live`, the command is pid 1 inside, and outlives all others.
    """
    # The shell that becomes the command has its descriptor before the files: it can't name one above 9
    told = () if report is None else (report.theirs(),)
    options, contents = bwrap_options(plan, facts, first_fd=FIRST_FILE_FD + len(told))
    umask = umask_of_caller()
    # Not every engine needs it, but only in a pid namespace does nothing outlive a spawner that is killed
    own_namespace = plan.engine == "mount" or facts.own_namespace
    if own_namespace:
        options = _without_parent(options)
    given = memory_files((b"\0".join(options) + b"\0", *contents))
    job = Job(
        overlays=_overlays(plan),
        program=plan.bwrap,
        argv=(
            run_name(control.run),
            *(b"--args", b"%d" % ARGS_FD, b"--json-status-fd", b"%d" % STATUS_FD),
            *(b"--block-fd", b"%d" % BLOCK_FD),
            *((b"--as-pid-1", b"--") if is_live else (b"--",)),
            *command_words(plan, FIRST_FILE_FD),
        ),
        limits=rlimits(plan.limits, has_group=group is not None),
        cgroups=() if group is None else group.member_files(),
        umask=umask,
        kept=_kept_below(plan),
        port=PROXY_PORT if isinstance(plan.network, ProxyNetwork) else 0,
        temporary=temporary_of(plan) if own_namespace and not is_live else (),
        live=is_live,
    )
    try:
        descriptors = (*pipes.theirs, given[0], *told, *given[1:])
        launcher = get_launcher(own_namespace=own_namespace, may_fork=control.may_fork)
        # The last moment: what is sent now may be at work before anybody hears that it was given up
        if is_given_up(control.cancel_fd):
            return None
        try:
            return launcher.launch(job, descriptors)
        except SandboxUnavailable:
            # The spawner was killed since the last run: the next one is as good
            return get_launcher(own_namespace=own_namespace, may_fork=control.may_fork).launch(job, descriptors)
    finally:
        for fd in given:
            os.close(fd)
        pipes.close_theirs()
        if report is not None:
            report.launched()


def _without_parent(options: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Leave out that the sandbox dies with bwrap: the spawner kills it, when it has seen what is still running.

    The spawner is the pid 1 of all of it, so nothing outlives that one either. Elsewhere the option stays.
    """
    if _WITH_PARENT not in options:
        return options
    # No word of a person's comes before it, so this is the option and not a value
    at = options.index(_WITH_PARENT)
    return (*options[:at], *options[at + 1 :])


def temporary_of(plan: Plan) -> tuple[Temporary, ...]:
    """Return the directories in memory in which something may be lost, and what the plan has made in each."""
    places = (dict(plan.environ).get(b"HOME", b""), b"/var/tmp", b"/run")
    fresh = fresh_directories(plan)
    tops = [place for place in places if place in fresh]
    made = {op.dest: op.content if isinstance(op, File) and not op.over else None for op in plan.mounts}
    return tuple((top, {dest: made[dest] for dest in made if dest.startswith(top + b"/")}) for top in tops)


def _overlays(plan: Plan) -> tuple[tuple[tuple[bytes, ...], bytes, bytes | None, bytes | None], ...]:
    if plan.engine != "mount":
        return ()
    found = [(op.lowers, op.lowers[-1], op.upper, op.work) for op in plan.mounts if isinstance(op, Overlay)]
    # Each is mounted on its own lower directory: one that holds another must not come after it and cover it
    return tuple(sorted(found, key=lambda overlay: overlay[1].count(b"/")))


def _kept_below(plan: Plan) -> tuple[bytes, ...]:
    """Return the directories that bwrap would find behind a read-only overlay, as in view `host` the home is."""
    shown = [op.lowers[-1] + b"/" for op in plan.mounts if isinstance(op, Overlay) and op.upper is None]
    return tuple(
        source for source in kept_directories(plan) if plan.engine == "mount" and source.startswith(tuple(shown))
    )


def kept_directories(plan: Plan) -> tuple[bytes, ...]:
    """Return what a plan lets its command write to that outlives it."""
    return tuple(op.source for op in plan.mounts if isinstance(op, Bind) and op.writable)


def fresh_directories(plan: Plan) -> tuple[bytes, ...]:
    """Return the places of its directories in memory."""
    return tuple(op.dest for op in plan.mounts if isinstance(op, Tmpfs))


def umask_of_caller() -> int:
    """Return this process's umask without the moment in which another thread would see a changed one."""
    fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        after = os.read(fd, _STATUS_BYTES).partition(b"\nUmask:")[2]
    finally:
        os.close(fd)
    return int(after.split(None, 1)[0], 8) if after else 0o022


class StartReport:
    """Why a command was not started, from the shell that goes to its working directory for bwrap (`plan.view`).

    A pipe, from before the run is launched until every process of it is dead. The shell closes its end before it
    becomes the command, so the command can't forge anything here.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ours, self._theirs = make_pipe()
        self._said = b""

    def theirs(self) -> int:
        """Return the descriptor that the run gets."""
        return self._theirs

    def launched(self) -> None:
        """Let go of the run's end."""
        self._close_theirs()

    def end(self) -> None:
        """Hear what there is to be heard. Every process of the run is dead, or was never made."""
        self._close_theirs()
        if self._ours >= 0:
            self._said = os.read(self._ours, _LONGEST).strip()
            os.close(self._ours)
            self._ours = -1

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return how the command ended, from how the shell did that should have become it."""
        if isinstance(outcome, NeverStarted):
            # What could not be started then was the shell
            return outcome.replace(exit_code=125)
        if not isinstance(outcome, Exited) or not self._said:
            return outcome
        if self._said in _DIRECTORIES:
            return not_entered(_DIRECTORIES[self._said])
        return not_executed(self._plan.argv[0], _PROGRAMS.get(self._said, errno.EACCES))

    def _close_theirs(self) -> None:
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1


def _is_hung_up(control: socket) -> bool:
    poll = select.poll()
    poll.register(control.fileno(), 0)
    return bool(poll.poll(0))


def _start_by_program(own_namespace: bool) -> Launcher:
    ours, theirs = make_pair()
    program = os.path.join(_PACKAGE, "host", "spawner_main.py")
    argv = [sys.executable, "-I", "-S", program, "own" if own_namespace else "shared", str(os.getpid())]
    # The socket is above the standard streams, which may be closed here
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)]
    actions += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    try:
        # A session of its own: Ctrl-C on the caller's terminal is the caller's to handle
        pid = os.posix_spawn(sys.executable, argv, {}, file_actions=actions, setsid=True)
    except OSError as error:
        raise SandboxUnavailable(f"could not start the spawner process: {error}") from error
    finally:
        theirs.close()
    return Launcher(ours, pid, own_namespace=own_namespace)


def _start_by_fork(own_namespace: bool) -> Launcher:
    ours, theirs = make_pair()
    me = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return Launcher(ours, pid, own_namespace=own_namespace)
    try:
        from unspill.host.spawner import place_descriptors, run_spawner  # lazy: spawner

        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        place_descriptors([null, null, null, theirs.detach()])
        os.set_inheritable(3, False)
        run_spawner(socket(fileno=3), me, own_namespace=own_namespace)
    finally:
        os._exit(0)


def _forget_launchers() -> None:
    """Let go, in a fork of a caller, of the caller's spawners, and of a lock that no thread here will release."""
    global _lock  # noqa: PLW0603
    _lock = allocate_lock()
    while _launchers:
        _launchers.popitem()[1].close()


os.register_at_fork(after_in_child=_forget_launchers)
atexit.register(stop_launchers)
