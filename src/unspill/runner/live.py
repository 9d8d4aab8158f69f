# SPDX-License-Identifier: Apache-2.0
"""The caller's end of a live sandbox: starts it, joins commands to it, exchanges the layers that they write to.

Its bwrap is a job like any other whose command only waits. Every overlay that can be written is left out of it,
attached before a command and detached after it: so each command has layers of its own, and sees the live tree as it
is then. Nothing uses a layer that is detached, which the kernel itself says; otherwise the whole sandbox is ended.

What the door says comes from inside. It is believed how a command ended, as a command is believed its own exit code;
whether a layer is still written to is never asked of it.
"""

from __future__ import annotations

import os
import select

from unspill.errors import HostError, SandboxUnavailable
from unspill.host.dirfd import DESCRIPTORS_REMEDY, make_pair
from unspill.host.door import (
    ENDED,
    FAILED,
    FRAME_BYTES,
    NO_DIRECTORY,
    QUIET,
    READY,
    STARTED,
    read_frame,
    waiting_program,
)
from unspill.host.job import is_dead, memory_file, send
from unspill.layers.locks import is_given_up
from unspill.model.plan import File, Overlay, Tmpfs
from unspill.model.run import NeverStarted
from unspill.plan.argv import build_fence, handled_rights, rule_rights
from unspill.plan.build import COMMAND_FILE
from unspill.runner.launcher import launch, make_group_of, umask_of_caller
from unspill.runner.watch import (
    RunControl,
    RunPipes,
    mount_refused,
    not_entered,
    not_executed,
    outcome_from,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from socket import SocketType
    from typing import Any

    from unspill.host.cgroup import Group
    from unspill.host.job import Overlays
    from unspill.model.plan import Facts, MountOp, Plan
    from unspill.model.run import LimitName, Outcome
    from unspill.runner.launcher import Launched


WAITER = b"/run/unspill-wait"
_SCRIPT_FD = 3
_SCRIPT = b"/dev/fd/%d" % _SCRIPT_FD
_PLACE_BYTES = 4096
# Who does not answer for so long was stopped or killed by a command
_ANSWER_MS = 5_000
_KILLED = 137
_REMEDY = "Run it without a live sandbox."


def shape_of(plan: Plan, machine: str) -> Plan:
    """Return the plan of the sandbox itself: what is exchanged for each command is left out, and its own only waits.

    Raises:
        HostError: there are no live sandboxes on such a machine.
    """
    program = waiting_program(machine)
    if program is None:
        raise HostError(f"Live sandboxes are not possible on {machine}.", remedy=_REMEDY)
    mounts: list[MountOp] = []
    for operation in plan.mounts:
        if isinstance(operation, Overlay) and operation.upper is not None:
            mounts.append(
                Tmpfs(dest=operation.dest, size_bytes=_PLACE_BYTES, mode=0o555, why="layers are attached here")
            )
        elif operation.dest != COMMAND_FILE:
            mounts.append(operation)
    # The last one makes the root read-only
    mounts.insert(len(mounts) - 1, File(content=program, dest=WAITER, mode=0o555, why="keeps the sandbox alive"))
    # What only the caller watches is none of the sandbox's
    limits = plan.limits.replace(wall_s=None, output_bytes=None)
    return plan.replace(
        mounts=tuple(mounts), argv=(WAITER,), cwd=b"/", environ=(), limits=limits, staged=False, warnings=()
    )


def overlays_of(plan: Plan) -> Overlays:
    """Return what is attached for one command, outer places first."""
    found = [
        (op.lowers, op.dest, op.upper, op.work)
        for op in plan.mounts
        if isinstance(op, Overlay) and op.upper is not None
    ]
    return tuple(sorted(found, key=lambda overlay: overlay[1].count(b"/")))


class LiveSandbox:
    """A sandbox that stays between commands. One command at a time; the engine is `mount`, with our own namespaces."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._shape: Plan | None = None
        self._launched: Launched | None = None
        self._group: Group | None = None
        self._door: SocketType | None = None
        self._init_fd = -1
        self._listener: int | None = None
        self._number = 0
        # How often it was built so far
        self.built = 0

    def join(self, plan: Plan, control: RunControl, pipes: RunPipes) -> Joined | None:
        """Start a command of a plan inside, over its layers; None where its caller gave up before.

        The sandbox is built first if there is none like it.

        Raises:
            SandboxUnavailable: it can't be built, or the layers can't be mounted.
            HostError: there are no live sandboxes on such a machine.
        """
        shape = shape_of(plan, os.uname().machine)
        if self._launched is None or shape != self._shape or is_dead(self._init_fd, 0):
            self.close()
            self._build(shape, control)
        try:
            self._ask(("attach", overlays_of(plan)), "attached")
            # A fence is around directories that are there when it is set
            if self._door is None or plan.profile == "strict":
                self._make_door(plan)
            if is_given_up(control.cancel_fd):
                self.detach()
                return None
            self._number += 1
            self._send_command(plan, pipes)
        except BaseException:
            self.close()
            raise
        return Joined(self, self._number, plan)

    def _build(self, shape: Plan, control: RunControl) -> None:
        pipes = RunPipes(has_stdin=False)
        self._group = make_group_of(shape, self._facts, control.run)
        try:
            quiet = RunControl(run=control.run, spill_dir=b"", may_fork=control.may_fork)
            self._launched = launch(shape, self._facts, quiet, pipes, self._group, None, is_live=True)
            self._wait_until_built(pipes)
        except BaseException:
            self.close()
            raise
        finally:
            pipes.close()
        self._shape = shape
        self.built += 1

    def _wait_until_built(self, pipes: RunPipes) -> None:
        """Wait until bwrap has made everything: then its command says a byte."""
        assert self._launched is not None
        poll = select.poll()
        for fd in (self._launched.fileno(), pipes.stdout):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _event in poll.poll():
                if fd != pipes.stdout:
                    self._hear_of_start(pipes)
                elif self._init_fd >= 0 and os.read(fd, 1):
                    return
                elif self._init_fd >= 0:
                    # Its end; the spawner says why
                    poll.unregister(fd)

    def _hear_of_start(self, pipes: RunPipes) -> None:
        assert self._launched is not None
        message = self._launched.message()
        words, descriptors = (None, []) if message is None else message
        match words:
            case ("started",) if descriptors:
                self._init_fd = descriptors[0]
                self._listener = descriptors[1] if len(descriptors) > 1 else None
            case ("started",):
                raise SandboxUnavailable("no descriptor is left for the live sandbox", remedy=DESCRIPTORS_REMEDY)
            case ("refused", dest, code, text):
                raise _unavailable(mount_refused(dest, code, text))
            case ("ended", status, _files, _processes):
                raise _unavailable(outcome_from(status, _read_all(pipes.stderr)))
            case ("failed", text):
                raise SandboxUnavailable(text, remedy="Run `unspill doctor`.")
            case _:
                raise SandboxUnavailable("the spawner process was killed", remedy="Run the command again.")

    def _ask(self, words: tuple[Any, ...], answer: str, descriptors: tuple[int, ...] = ()) -> Any:
        """Ask the spawner for something and return what follows the word of its answer.

        Raises:
            SandboxUnavailable: it answered anything else; the sandbox must be ended.
        """
        assert self._launched is not None
        self._launched.ask(words, descriptors)
        message = self._launched.message()
        match None if message is None else message[0]:
            case (found, *rest) if found == answer:
                return rest
            case ("refused", dest, code, text):
                raise _unavailable(mount_refused(dest, code, text))
            case ("failed", text):
                raise SandboxUnavailable(text, remedy=_REMEDY)
        raise SandboxUnavailable("the live sandbox has ended", remedy="Run the command again.")

    def _make_door(self, plan: Plan) -> None:
        self._close_door()
        fence = None
        if plan.profile == "strict" and self._facts.landlock_abi:
            built = build_fence(plan.mounts, self._facts, plan.network)
            fence = (handled_rights(built), rule_rights(built), built.ports or ())
        ours, theirs = make_pair()
        self._door = ours
        try:
            self._ask(("door", plan.filter, fence), "made", (theirs.fileno(),))
        finally:
            theirs.close()
        found = self.frame(_ANSWER_MS)
        if found is None or found[0] != READY or found[2]:
            why = "" if found is None else f": {os.strerror(found[2])}"
            raise SandboxUnavailable(f"the live sandbox can't be entered{why}", remedy=_REMEDY)

    def _send_command(self, plan: Plan, pipes: RunPipes) -> None:
        assert self._door is not None
        script = next((op.content for op in plan.mounts if isinstance(op, File) and op.dest == COMMAND_FILE), None)
        given, argv = list(pipes.theirs), plan.argv
        script_fd = None
        if script is not None:
            script_fd = memory_file(script)
            given.append(script_fd)
            argv = (*argv[:-1], b". " + _SCRIPT)
        try:
            words = ("run", self._number, argv, plan.environ, plan.cwd, umask_of_caller())
            send(self._door, words, tuple(given))
        except OSError as error:
            raise SandboxUnavailable(f"the live sandbox has ended: {error}", remedy="Run the command again.") from error
        finally:
            if script_fd is not None:
                os.close(script_fd)
            pipes.close_theirs()

    def is_alive(self) -> bool:
        """Tell whether there is a sandbox."""
        return self._launched is not None

    def frame(self, timeout_ms: int | None = None) -> tuple[int, int, int, int] | None:
        """Return what the door says next, None if it is gone, says nothing in time, or something that is no frame."""
        if self._door is None:
            return None
        poll = select.poll()
        poll.register(self._door.fileno(), select.POLLIN)
        if not poll.poll(timeout_ms):
            return None
        try:
            return read_frame(self._door.recv(FRAME_BYTES + 1))
        except OSError:
            return None

    def fileno(self) -> int:
        """Return the descriptor that is readable when the door says something."""
        assert self._door is not None
        return self._door.fileno()

    def started_descriptors(self) -> list[int]:
        """Return copies of what a caller gets when a command is started: pid 1, and the way out where there is one."""
        kept = (self._init_fd,) if self._listener is None else (self._init_fd, self._listener)
        return [os.dup(fd) for fd in kept]

    def processes(self) -> tuple[int, list[bytes]]:
        """Return how many processes are alive that commands started, and the command lines of some."""
        [found] = self._ask(("look",), "seen")
        return found[0], found[1]

    def ask_to_clear(self) -> bool:
        """Ask the door to kill all that commands started, which it answers with a frame; False if it is gone."""
        assert self._door is not None
        try:
            send(self._door, ("clear",))
        except OSError:
            return False
        return True

    def detach(self) -> None:
        """Take the layers of a command away; where anything still uses them, the sandbox is ended."""
        try:
            self._ask(("detach",), "detached")
        except SandboxUnavailable:
            self.close()

    def close(self) -> None:
        """End the sandbox and return when every process of it is dead."""
        self._close_door()
        launched, self._launched = self._launched, None
        if launched is not None:
            launched.kill()
            while (message := launched.message()) is not None and message[0][0] != "ended":
                _close_all(message[1])
            _close_all(() if message is None else message[1])
            if message is None:
                launched.wait_for_spawner("")
            launched.close()
        if self._init_fd >= 0:
            is_dead(self._init_fd)
        _close_all(fd for fd in (self._init_fd, self._listener) if fd is not None and fd >= 0)
        self._init_fd, self._listener = -1, None
        if self._group is not None:
            self._group.remove()
            self._group = None

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None

    def reached(self) -> LimitName | None:
        """Return which bound of the control group was reached, if there is one."""
        return None if self._group is None else self._group.reached()

    @property
    def has_group(self) -> bool:
        """Whether a control group bounds it."""
        return self._group is not None


class Joined:
    """One command in a live sandbox, with the words of one in the spawner (`launcher.Launched`)."""

    own_namespace = True

    def __init__(self, sandbox: LiveSandbox, number: int, plan: Plan) -> None:
        self._sandbox = sandbox
        self._number = number
        self._plan = plan
        # A copy: when the sandbox is ended meanwhile, the number must not come to belong to something else
        self._fd = os.dup(sandbox.fileno())
        self._is_over = False
        self._killed: tuple[int, list[bytes]] = (0, [])
        self._heard: list[tuple[int, int, int, int] | None] = []
        # Why it was not started, if it was not
        self.failure: Outcome | None = None

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a message."""
        return self._fd

    def message(self) -> tuple[Any, list[int]] | None:
        """Return the next message and its descriptors."""
        while not self._is_over:
            found = self._heard.pop(0) if self._heard else self._sandbox.frame()
            match found:
                case (kind, number, _value, _more) if kind == STARTED and number == self._number:
                    return ("started",), self._sandbox.started_descriptors()
                case (kind, number, code, place) if kind == FAILED and number == self._number:
                    is_entered = place != NO_DIRECTORY
                    self.failure = not_executed(self._plan.argv[0], code) if is_entered else not_entered(code)
                    return self._end(b"")
                case (kind, number, code, others) if kind == ENDED and number == self._number:
                    if others:
                        self._killed = self._sandbox.processes()
                        self._clear()
                    return self._end(b'"exit-code": %d}' % code)
                case (kind, _number, _value, _more) if kind in (QUIET, STARTED, FAILED, ENDED):
                    continue
            # The door is gone, or what comes is not from it
            self._sandbox.close()
            return self._end(b'"exit-code": %d}' % _KILLED)
        return None

    def _clear(self) -> None:
        """Have everything killed; where the door does not say in time that it is, the sandbox is ended."""
        if self._sandbox.ask_to_clear():
            while (found := self._sandbox.frame(_ANSWER_MS)) is not None:
                if found[0] == QUIET:
                    if found[2]:
                        break
                    return
                self._heard.append(found)
        self._sandbox.close()

    def _end(self, status: bytes) -> tuple[Any, list[int]]:
        self._is_over = True
        if self._sandbox.is_alive():
            self._sandbox.detach()
        return ("ended", status, (0, []), self._killed), []

    def kill(self) -> None:
        """Kill every process that commands started."""
        if not self._is_over and self._sandbox.is_alive():
            self._clear()

    def wait_for_spawner(self, _run: str) -> None:
        """Wait for the end of everything."""
        self._sandbox.close()

    def close(self) -> None:
        """Let go; a command that is still alive is killed with its sandbox."""
        if not self._is_over:
            self._sandbox.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _unavailable(outcome: Outcome) -> SandboxUnavailable:
    if isinstance(outcome, NeverStarted):
        return SandboxUnavailable(outcome.reason, remedy=outcome.remedy)
    return SandboxUnavailable("the live sandbox ended while it was built", remedy="Run `unspill doctor`.")


def _read_all(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""


def _close_all(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)
