# SPDX-License-Identifier: Apache-2.0
"""The caller's end of a live sandbox: starts it, joins commands to it, exchanges the layers that they write to.

Its bwrap is a job like any other whose command only waits. Every overlay that can be written is left out of it,
attached before the first command of several that are alive at once, and detached after the last: so each such span has
layers of its own, and sees the live tree as it is then. Nothing uses a layer that is detached, which the kernel itself
says; otherwise the whole sandbox is ended. Where the kernel says that no process is left, layers may stay for the next
command, if its caller finds them empty; the overlay is told to forget what it has looked up. Whoever joins others has
it told that as well, and while commands are alive so does the watcher outside (`runner.outside`).

What the door says comes from inside. It is believed how a command ended, as a command is believed its own exit code;
whether a layer is still written to is never asked of it. A command can stop it, so nobody waits for it without a bound:
where it does not take what it is sent, or does not start or kill a command in time, the spawner ends the sandbox.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from _thread import allocate_lock
from operator import attrgetter

from unspill.errors import HostError, SandboxUnavailable
from unspill.host.dirfd import DESCRIPTORS_REMEDY, make_pair
from unspill.host.door import (
    ENDED,
    FAILED,
    FRAME_BYTES,
    HAS_OTHERS,
    IS_CHANGED,
    NO_DIRECTORY,
    NO_TERMINAL,
    NOT_AS_BEFORE,
    PASSED,
    QUIET,
    READY,
    STARTED,
    read_frame,
    waiting_program,
)
from unspill.host.job import is_dead, memory_file, receive_bytes, send
from unspill.layers.locks import is_given_up
from unspill.model.plan import File, HostNetwork, Overlay, Plan, Tmpfs
from unspill.model.run import NeverStarted
from unspill.plan.argv import build_fence, handled_rights, rule_rights
from unspill.plan.build import COMMAND_FILE
from unspill.runner.launcher import fresh_directories, launch, make_group_of, temporary_of, umask_of_caller
from unspill.runner.outside import Outside, is_same
from unspill.runner.watch import (
    RunControl,
    RunPipes,
    find_servers,
    identify,
    mount_refused,
    not_entered,
    not_executed,
    outcome_from,
    pid_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from socket import SocketType
    from typing import Any, Protocol

    from unspill.host.cgroup import Group
    from unspill.host.door import Frame
    from unspill.host.job import Overlays
    from unspill.model.plan import Facts, MountOp
    from unspill.model.run import LimitName, Outcome, RunId, TakenAway
    from unspill.runner.launcher import Launched
    from unspill.runner.outside import Name

    # How many there are, and some of them
    Named = tuple[int, list[bytes]]

    class OpenPorts(Protocol):
        """Who opens ports of a sandbox. `enter` is called when it is there, with its number and what listens inside.

        `leave` is called when it has ended. Neither may wait for anything. `known` are the ports inside that are open.
        """

        def enter(self, built: int, listen: Callable[[int], int]) -> None: ...
        def known(self) -> frozenset[int]: ...
        def leave(self) -> None: ...


WAITER = b"/run/unspill-wait"
_SCRIPT_FD = 3
_SCRIPT = b"/dev/fd/%d" % _SCRIPT_FD
_PLACE_BYTES = 4096
# Who does not answer for so long was stopped or killed by a command
_ANSWER_MS = 5_000
_KILLING_S = 5.0
# To start a program may take longer: the disk that it comes from may be slow
_STARTING_S = 30.0
_MOMENT_MS = 500
_KILLED = 137
# So many names are looked up inside at once: the spawner has others to serve
_MOST_ASKED = 500
# The device that every master of a terminal was opened by
_PTMX = os.makedev(5, 2)
# What differs between plans for one sandbox, or is compared by itself
_OF_COMMAND = frozenset(("argv", "cwd", "environ", "limits", "mounts"))
_fields: tuple[str, ...] = Plan.__match_args__
_of_sandbox = attrgetter(*[field for field in _fields if field not in _OF_COMMAND])
_REMEDY = "Run it without a live sandbox."
_AGAIN = "Run the command again."
_CHANGED = "a command inside changed the limits or the priority of the live sandbox, which has ended"
_NO_TTY = "Run it without a terminal: `--no-tty`."


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
    limits = plan.limits.of_sandbox()
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
    """A sandbox that stays between commands; the engine is `mount`, with our own namespaces. Threads may share it."""

    def __init__(self, facts: Facts, *, keeps_layers: bool = False, is_isolated: bool = False) -> None:
        """Prepare one. `keeps_layers`: its caller says by `withdraw` when layers that were used are to be detached.

        `is_isolated`: it ends with a command that left something in it, so that the next finds nothing.
        """
        self._facts = facts
        self._keeps_layers = keeps_layers
        self.is_isolated = is_isolated
        # Whoever has it may change what follows, and talk to the spawner
        self._lock = allocate_lock()
        self._shape: Plan | None = None
        # A plan and the sandbox that it needs
        self._known: tuple[Plan, Plan] | None = None
        self._launched: Launched | None = None
        self._group: Group | None = None
        self._door: SocketType | None = None
        self._init_fd = -1
        # Its pid here, and when it was started
        self.init: tuple[int, int] | None = None
        self._listener: int | None = None
        self._alive: set[Joined] = set()
        self._attached: Overlays = ()
        # By which these are refreshed, whether they have to be, and whether the fence is around others
        self._filesystems: list[int] = []
        self._is_used = False
        self._is_fence_old = False
        # The children of the door and of pid 1, as the kernel lists them
        self._children: list[int] = []
        # What the spawner has still to say, and whether the door has
        self._expected: list[str] = []
        self._is_door_new = False
        # Whether all processes of the one that was launched are dead, and whether there will be no other
        self._is_over = False
        self._is_ended = False
        # How often it was built so far
        self.built = 0
        self.ports: OpenPorts | None = None
        # Ports of servers inside that somebody was told of
        self.told_servers: set[int] = set()
        # The live directories to be watched while commands are alive; whether that could not be, and was not told yet
        self._roots: Sequence[bytes] = ()
        self._outside: Outside | None = None
        self._is_unwatched = self._is_told = False

    def join(self, plan: Plan, control: RunControl, pipes: RunPipes) -> Joined | None:
        """Start a command of a plan inside, over its layers; None where its caller gave up before.

        The sandbox is built first if there is none like it. While commands are alive, others share their layers.

        Raises:
            SandboxUnavailable: it can't be built, or the layers can't be mounted, or others are in use.
            HostError: there are no live sandboxes on such a machine.
        """
        with self._lock:
            if self._is_ended:
                raise SandboxUnavailable("the live sandbox was closed", remedy=_REMEDY)
            shape, overlays = self._shape_of(plan)
            is_like = shape is self._shape or shape == self._shape
            if self._alive and not (is_like and overlays == self._attached):
                raise SandboxUnavailable("the live sandbox is busy with other layers", remedy=_REMEDY)
            if not self._alive and (self._launched is None or not is_like or is_dead(self._init_fd, 0)):
                self._close()
                self._build(shape, control)
                if self.is_isolated:
                    self._watch_memory(plan)
            try:
                return self._join(plan, overlays, control, pipes)
            except BaseException:
                self._close()
                raise

    def _shape_of(self, plan: Plan) -> tuple[Plan, Overlays]:
        """Return the sandbox that a plan needs and what is attached for it; mostly those are as for the last one."""
        if self._known is None or not _is_for_same(plan, self._known[0]):
            self._known = plan, shape_of(plan, os.uname().machine)
        return self._known[1], overlays_of(plan)

    def watch(self, roots: Sequence[bytes]) -> None:
        """Have some live directories watched from the next command on, for as long as the sandbox stays."""
        self._roots = roots

    def tell_unwatched(self) -> bool:
        """Tell whether the live directories can't be watched; once."""
        with self._lock:
            lacks_watches = self._outside is not None and self._outside.lacks_watches
            is_unwatched, self._is_unwatched = self._is_unwatched or (lacks_watches and not self._is_told), False
            self._is_told |= is_unwatched
            return is_unwatched

    def taken_away(self) -> tuple[tuple[bytes, TakenAway], ...]:
        """Return by root which names were taken away outside since the first of these commands began."""
        with self._lock:
            return () if self._outside is None else self._outside.taken_away()

    def excuse(self, paths: Collection[bytes]) -> None:
        """Take note that names went from live directories because unspill has put something there."""
        with self._lock:
            if self._outside is not None:
                self._outside.excuse(paths)

    def _watch_outside(self) -> None:
        """Watch what the person does while commands are alive. Layers were just mounted, or told to forget all."""
        if self._roots and (self._outside is None or self._outside.is_closed):
            try:
                self._outside = Outside(self._roots, self._look_anew)
            except OSError:
                self._outside, self._roots, self._is_unwatched = None, (), True
        if self._outside is not None:
            self._outside.begin({lowers[-1]: upper for lowers, _dest, upper, _work in self._attached if upper})

    def _look_anew(self, changed: Collection[Name], gone: Collection[Name]) -> tuple[set[Name], set[Name]] | None:
        with self._lock:
            if self._launched is None or not self._alive:
                return None
            try:
                return self._look(changed, gone)
            except SandboxUnavailable:
                self._close()
                return None

    def _look(self, changed: Collection[Name], gone: Collection[Name]) -> tuple[set[Name], set[Name]]:
        """Refresh the layers; return which names are not the same inside, and which of some that went a layer has."""
        assert self._outside is not None
        self._refresh()
        stale: set[Name] = set()
        for lowers, dest, upper, _work in self._attached:
            root = lowers[-1]
            # What a layer has is the commands' own, or what is held
            layers = [upper or b"", *lowers[:-1]]
            asked = [
                name
                for name in changed
                if name[0] == root and not any(os.path.lexists(_below(layer, name)) for layer in layers)
            ]
            has_inodes = bool(upper) and _device_of(upper or b"") == _device_of(root)
            for start in range(0, len(asked), _MOST_ASKED):
                some = asked[start : start + _MOST_ASKED]
                [there] = self._ask(("there", tuple(_below(dest, name) for name in some)), "there")
                for name, entry in zip(some, there, strict=True):
                    # A directory that went may have come back, or another with the same time
                    is_known = has_inodes or name not in gone
                    if not is_same(_lstat(_below(root, name)), entry, has_inodes=has_inodes, is_known=is_known):
                        stale.add(name)
        return stale, {name for name in gone if self._outside.is_in_layer(name)}

    def _refresh(self) -> None:
        """Have everything looked up anew that nothing inside uses."""
        self._await_answers()
        assert self._launched is not None
        self._ask(("refresh", len(self._attached)), "refreshed", tuple(self._filesystems))
        # Commands go on to use it
        self._is_used = True

    def _join(self, plan: Plan, overlays: Overlays, control: RunControl, pipes: RunPipes) -> Joined | None:
        if self._alive and self._outside is not None:
            self._outside.catch_up(self._look)
        elif self._alive:
            self._refresh()
        else:
            self._attach(overlays)
            self._watch_outside()
            # A fence is around directories that are there when it is set
            if self._door is None or (plan.profile == "strict" and self._is_fence_old):
                self._ask_for_door(plan)
            self._await_answers()
            self._await_door()
            self._enter_ports()
        if is_given_up(control.cancel_fd):
            if not self._alive:
                self._detach()
            return None
        self._is_used = True
        joined = Joined(self, self._send_command(plan, control, pipes), plan, control)
        self._alive.add(joined)
        return joined

    def leave(self, joined: Joined, *, has_left: bool, is_changed: bool = False) -> tuple[Named, Named]:
        """Take note that a command has ended. With the last one, what they left is killed and the layers are detached.

        They may stay where the caller looks after them, and the kernel says that no process is left to use them.
        Where the door `is_changed`, so that the next command would be, the sandbox is ended.
        Return how many files are lost and processes were killed, and the paths and command lines of some.
        """
        lost: Named = (0, [])
        killed: Named = (0, [])
        with self._lock:
            if joined not in self._alive:
                return lost, killed  # the sandbox has ended before
            self._alive.remove(joined)
            if self._alive:
                return lost, killed
            if has_left:
                [killed] = self._ask(("look",), "seen")
                self._clear()
            if self._launched is not None and self.is_isolated:
                lost = self._end_if_left()
            if self._launched is not None and is_changed:
                self._close()
            if self._launched is not None and not (self._keeps_layers and self._is_quiet()):
                self._detach()
            return lost, killed

    def _end_if_left(self) -> Named:
        """End the sandbox if anything of a command is left in it; return what a plain run tells of that."""
        try:
            self._await_answers()
            is_left, lost = self._ask(("left",), "left")
        except SandboxUnavailable:
            self._close()
            return 0, []
        if is_left or not self._is_quiet():
            self._close()
        found: Named = lost
        return found

    def _is_quiet(self) -> bool:
        """Tell whether the kernel says that nothing but pid 1 and the door is alive.

        Whoever loses its parent comes to the door, and whoever loses the door to pid 1: so in this order.
        """
        try:
            return bool(self._children) and not any(os.pread(fd, 1, 0) for fd in self._children)
        except OSError:
            return False

    def _watch_children(self, door: int) -> None:
        """Open the lists of children of the door and of pid 1, where this kernel has them."""
        self._close_children()
        for pidfd in (door, self._init_fd):
            pid = pid_of(pidfd)
            try:
                self._children.append(os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                self._close_children()
                return
        # Had one ended before, its number could be another's
        if is_dead(door, 0) or is_dead(self._init_fd, 0):
            self._close_children()

    def prepare(self, plan: Plan) -> None:
        """Have the layers of the next command attached or refreshed, and a door made if it needs one.

        The caller goes on meanwhile.
        """
        with self._lock:
            if self._launched is None or self._alive:
                return
            if self._attached and self._is_used:
                # The kernel waits for the other processors, so not when the next command does
                self._launched.ask(("refresh", len(self._attached)), tuple(self._filesystems))
                self._expected.append("refreshed")
            elif not self._attached:
                self._ask_to_attach(overlays_of(plan))
                if plan.profile == "strict":
                    self._ask_for_door(plan)

    def withdraw(self) -> bool:
        """Take away what was attached for a command that does not come; tell whether nothing is attached any more."""
        with self._lock:
            if self._attached and not self._alive:
                self._detach()
            return not self._attached

    def order(self, run: RunId, words: tuple[Any, ...]) -> None:
        """Have the door do something with the command of a run: `("signal", number)` or `("kill",)`."""
        with self._lock:
            for joined in self._alive:
                if joined.run == run:
                    joined.order(words)

    def standstill(self) -> Standstill:
        """Return a block in which everything inside stands still; nothing begins or ends in it."""
        return Standstill(self)

    def mapped(self) -> list[bytes] | None:
        """Return which paths inside are mapped and shared right now, None for too many.

        Raises:
            SandboxUnavailable: it has ended.
        """
        with self._lock:
            self._await_answers()
            if self._launched is None:
                raise SandboxUnavailable("the live sandbox has ended", remedy=_AGAIN)
            found: list[bytes] | None
            [found] = self._ask(("maps",), "mapped")
            return found

    def stop(self) -> list[bytes] | None:
        """Stand everything still until `go`; return which paths inside are mapped and shared, None for too many.

        Raises:
            SandboxUnavailable: it does not stand still; everything goes on.
        """
        self._lock.acquire()
        try:
            self._await_answers()
            is_still, mapped = self._ask(("stop",), "stopped") if self._launched is not None else (False, None)
            if not is_still:
                raise SandboxUnavailable("its processes could not be stopped", remedy=_REMEDY)
        except BaseException:
            self._lock.release()
            raise
        found: list[bytes] | None = mapped
        return found

    def go(self) -> tuple[bool, str]:
        """Let everything go on; return whether it stood still until now, and how it was stopped."""
        try:
            is_still, used = self._ask(("go",), "going")
            return bool(is_still), str(used)
        finally:
            self._lock.release()

    def end(self) -> None:
        """Close it, for good."""
        with self._lock:
            self._is_ended = True
            self._close()

    def end_command(self, joined: Joined) -> None:
        """Kill a command; if no other is alive, with all that it started."""
        with self._lock:
            if self._launched is None or joined not in self._alive:
                return
            if self._alive == {joined}:
                self._clear()
            else:
                joined.order(("kill",))

    def end_with(self, joined: Joined) -> None:
        """End the sandbox if a command is alive in it. A command that outlived its sandbox must not end the next."""
        with self._lock:
            if joined in self._alive:
                self._close()

    def end_if_late(self, joined: Joined) -> bool:
        """End the sandbox if a command is alive in it and its door has nothing to say of that; tell whether it had not.

        Whoever has this lock may have kept the door waiting, so it is given a moment.
        """
        with self._lock:
            if joined not in self._alive or _is_ready(joined.fileno(), select.POLLIN, _MOMENT_MS):
                return False
            self._close()
            return True

    def _watch_memory(self, plan: Plan) -> None:
        """Have it looked at each quiet point what commands left in memory. The plan knows where the home is."""
        assert self._launched is not None
        temporary = tuple((top, {**planned, WAITER: None}) for top, planned in temporary_of(plan))
        self._launched.ask(("watch", fresh_directories(plan), temporary))
        self._expected.append("watched")

    def _build(self, shape: Plan, control: RunControl) -> None:
        pipes = RunPipes(has_stdin=False)
        self._group = make_group_of(shape, self._facts, control.run)
        try:
            quiet = RunControl(run=control.run, spill_dir=b"", may_fork=control.may_fork)
            self._launched = launch(shape, self._facts, quiet, pipes, self._group, None, is_live=True)
            self._is_over = False
            self._wait_until_built(pipes)
        except BaseException:
            self._close()
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
        message = self._message()
        words, descriptors = (None, []) if message is None else message
        match words:
            case ("started",) if descriptors:
                self._init_fd = descriptors[0]
                self.init = identify(self._init_fd)
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
                raise SandboxUnavailable("the spawner process was killed", remedy=_AGAIN)

    def _ask(self, words: tuple[Any, ...], answer: str, descriptors: tuple[int, ...] = ()) -> Any:
        """Ask the spawner for something and return what follows the word of its answer.

        Raises:
            SandboxUnavailable: it answered anything else; the sandbox must be ended.
        """
        assert self._launched is not None
        self._launched.ask(words, descriptors)
        return self._answer(answer)

    def _message(self) -> tuple[Any, list[int]] | None:
        """Return what the spawner says next; the last it says is that all is over."""
        assert self._launched is not None
        message = self._launched.message()
        if message is not None and message[0][0] == "ended":
            _close_all(message[1])
            self._is_over = True
        return message

    def _answer(self, answer: str) -> Any:
        message = self._message()
        words, descriptors = (None, []) if message is None else message
        match words:
            case ("attached",) if answer == "attached":
                self._filesystems = descriptors
                return []
            case ("refreshed", is_done) if answer == "refreshed":
                self._is_used = not is_done
                return []
            case ("made",) if answer == "made":
                if descriptors:
                    self._watch_children(descriptors[0])
                _close_all(descriptors)
                return []
            case (found, *rest) if found == answer:
                return rest
            case ("refused", dest, code, text):
                raise _unavailable(mount_refused(dest, code, text))
            case ("failed", text):
                raise SandboxUnavailable(text, remedy=_REMEDY)
        raise SandboxUnavailable("the live sandbox has ended", remedy=_AGAIN)

    def _ask_for_door(self, plan: Plan) -> None:
        self._close_door()
        fence = None
        if plan.profile == "strict" and self._facts.landlock_abi:
            built = build_fence(plan.mounts, self._facts, plan.network)
            fence = (handled_rights(built), rule_rights(built), built.ports or ())
        assert self._launched is not None
        ours, theirs = make_pair()
        self._door, self._is_door_new = ours, True
        self._is_fence_old = False
        try:
            shares_network = isinstance(plan.network, HostNetwork)
            self._launched.ask(("door", plan.filter, fence, shares_network), (theirs.fileno(),))
            self._expected.append("made")
        finally:
            theirs.close()

    def _await_door(self) -> None:
        """Wait until a new door has entered the sandbox."""
        if not self._is_door_new:
            return
        assert self._door is not None
        self._await_answers()
        self._is_door_new = False
        found = _hear(self._door, _ANSWER_MS)
        if found is None or found[0] != READY or found[1]:
            why = "" if found is None else f": {os.strerror(found[1])}"
            raise SandboxUnavailable(f"the live sandbox can't be entered{why}", remedy=_REMEDY)

    def _send_command(self, plan: Plan, control: RunControl, pipes: RunPipes) -> SocketType:
        """Give a command to the door; return the socket to it."""
        script = next((op.content for op in plan.mounts if isinstance(op, File) and op.dest == COMMAND_FILE), None)
        argv = plan.argv
        given = list(pipes.theirs) if control.terminal is None else []
        script_fd = None
        if script is not None:
            script_fd = memory_file(script)
            given.append(script_fd)
            argv = (*argv[:-1], b". " + _SCRIPT)
        words = (argv, plan.environ, plan.cwd, umask_of_caller())
        try:
            if control.terminal is None:
                return self._ask_door(("run", *words), tuple(given), _ANSWER_MS)
            return self._ask_door(("terminal", *words, *control.terminal.size), tuple(given), _ANSWER_MS)
        finally:
            if script_fd is not None:
                os.close(script_fd)
            pipes.close_theirs()

    def _ask_door(self, words: tuple[Any, ...], descriptors: tuple[int, ...] = (), timeout_ms: int = 0) -> SocketType:
        """Ask the door for something; return the socket that it answers on. It may take so long to take a request.

        Raises:
            SandboxUnavailable: it is gone, or takes none.
        """
        assert self._door is not None
        if timeout_ms:
            _is_ready(self._door.fileno(), select.POLLOUT, timeout_ms)
        ours, theirs = make_pair()
        try:
            send(self._door, words, (theirs.fileno(), *descriptors), may_wait=False)
        except OSError as error:
            ours.close()
            raise SandboxUnavailable(f"the live sandbox has ended: {error}", remedy=_AGAIN) from error
        finally:
            theirs.close()
        return ours

    def open_ports(self) -> None:
        """Have the ports opened that were added since the sandbox was built; those of one that is not come with it."""
        with self._lock:
            if self._launched is not None and self._door is not None:
                self._await_door()
                self._enter_ports()

    def _enter_ports(self) -> None:
        if self.ports is not None:
            self.ports.enter(self.built, self._listen_inside)

    def ask_connection(self, port: int, *, is_ipv6: bool) -> SocketType:
        """Ask for a connection to a port inside; `hear_descriptor` takes it from the socket that is returned.

        Raises:
            SandboxUnavailable: there is no sandbox to connect to.
        """
        with self._lock:
            if self._door is None:
                raise SandboxUnavailable("no command was started yet", remedy="Run one.")
            return self._ask_door(("connect", port, is_ipv6))

    def servers(self) -> tuple[int, ...]:
        """Return the ports that servers inside listen on, as far as they are likely meant for others."""
        with self._lock:
            pid = None if self._init_fd < 0 else pid_of(self._init_fd)
        return () if pid is None else find_servers(pid)

    def _listen_inside(self, port: int) -> int:
        answer = self._ask_door(("listen", port))
        try:
            return hear_descriptor(answer, _ANSWER_MS)
        finally:
            answer.close()

    def started_descriptors(self, *, with_listener: bool) -> list[int]:
        """Return copies of what a caller gets when a command is started: pid 1, and the way out where it has one."""
        if self.init is not None and not with_listener:
            return []
        with self._lock:
            kept = (self._init_fd, self._listener if with_listener else None)
            return [os.dup(fd) for fd in kept if fd is not None and fd >= 0]

    def _clear(self) -> None:
        """Have everything killed; where the door does not say in time that it is, the sandbox is ended."""
        try:
            answer = self._ask_door(("clear",))
        except SandboxUnavailable:
            self._close()
            return
        found = _hear(answer, _ANSWER_MS)
        answer.close()
        if found is None or found[0] != QUIET or any(found[1:]):
            self._close()

    def _attach(self, overlays: Overlays) -> None:
        """Have layers attached; whether they are is among the answers that are awaited next."""
        self._await_answers()
        # Layers that were used show what somebody has looked up, and not always what is there
        if self._attached == overlays and not self._is_used:
            return
        if self._attached:
            self._ask_to_detach()
        self._ask_to_attach(overlays)

    def _ask_to_attach(self, overlays: Overlays) -> None:
        assert self._launched is not None
        self._attached = overlays
        self._is_used, self._is_fence_old = False, True
        self._launched.ask(("attach", overlays))
        self._expected.append("attached")

    def _ask_to_detach(self) -> None:
        self._attached = ()
        self._forget_filesystems()
        self._ask(("detach",), "detached")

    def _forget_filesystems(self) -> None:
        _close_all(self._filesystems)
        self._filesystems = []

    def _await_answers(self) -> None:
        """Hear what the spawner has to say of what it was asked for in advance."""
        while self._expected:
            self._answer(self._expected.pop(0))

    def _detach(self) -> None:
        """Take the layers away; where anything still uses them, the sandbox is ended."""
        try:
            self._await_answers()
            self._ask_to_detach()
        except SandboxUnavailable:
            self._close()

    def close(self) -> None:
        """End the sandbox and return when every process of it is dead."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._close_door()
        if self.ports is not None:
            self.ports.leave()
        self._alive.clear()
        self._attached, self._expected = (), []
        self._forget_filesystems()
        self._close_children()
        launched, self._launched = self._launched, None
        if launched is not None:
            launched.kill()
            while not self._is_over and (message := launched.message()) is not None:
                _close_all(message[1])
                self._is_over = message[0][0] == "ended"
            if not self._is_over:
                launched.wait_for_spawner("")
            launched.close()
        if self._init_fd >= 0:
            is_dead(self._init_fd)
        _close_all(fd for fd in (self._init_fd, self._listener) if fd is not None and fd >= 0)
        self._init_fd, self.init, self._listener = -1, None, None
        if self._group is not None:
            self._group.remove()
            self._group = None
        if self._outside is not None:
            # Until here somebody may have written
            self._outside.close()

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None

    def _close_children(self) -> None:
        _close_all(self._children)
        self._children = []

    def reached(self) -> LimitName | None:
        """Return which bound of the control group was reached, if there is one."""
        with self._lock:
            return None if self._group is None else self._group.reached()

    @property
    def has_group(self) -> bool:
        """Whether a control group bounds it."""
        return self._group is not None


class Standstill:
    """A block in which everything in a live sandbox stands still: `mapped` is what is shared, `lasted_s` how long.

    Afterwards `was_kept` says whether it did to the end, and `used` how it was stopped.
    """

    def __init__(self, sandbox: LiveSandbox) -> None:
        self._sandbox = sandbox
        self.mapped: list[bytes] | None = None
        self.was_kept = False
        self.used = ""
        self.lasted_s = 0.0

    def __enter__(self) -> Standstill:
        self._begun = time.monotonic()
        self.mapped = self._sandbox.stop()
        return self

    def __exit__(self, *_rest: object) -> None:
        self.was_kept, self.used = self._sandbox.go()
        self.lasted_s = time.monotonic() - self._begun


class Joined:
    """One command in a live sandbox, with the words of one in the spawner (`launcher.Launched`)."""

    own_namespace = True

    def __init__(self, sandbox: LiveSandbox, sock: SocketType, plan: Plan, control: RunControl) -> None:
        self._sandbox = sandbox
        self._sock = sock
        self._plan = plan
        self._terminal = control.terminal
        self._has_way_out = control.on_listener is not None
        self.init = sandbox.init
        self.run = control.run
        self._is_over = False
        # When it must be started, and when it must be dead
        self._start_by: float | None = time.monotonic() + _STARTING_S
        self._dead_by: float | None = None
        # Why it was not started, if it was not
        self.failure: Outcome | None = None

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a message."""
        return self._sock.fileno()

    def message(self) -> tuple[Any, list[int]] | None:
        """Return the next message and its descriptors."""
        if self._is_over:
            return None
        found, master = self._hear()
        match found:
            case (kind, _value, _more) if kind == STARTED and (self._terminal is None or master is not None):
                self._start_by = None
                if self._terminal is not None and master is not None:
                    self._terminal.begin(master)
                return ("started",), self._sandbox.started_descriptors(with_listener=self._has_way_out)
            case (kind, _code, place) if kind == FAILED and place == NOT_AS_BEFORE:
                self._sandbox.end_with(self)
                self.failure = NeverStarted(reason=_CHANGED, remedy=_AGAIN)
                return self._end(b"")
            case (kind, code, place) if kind == FAILED and place == NO_TERMINAL:
                self.failure = NeverStarted(reason=f"no terminal can be made: {os.strerror(code)}", remedy=_NO_TTY)
                return self._end(b"")
            case (kind, code, place) if kind == FAILED:
                is_entered = place != NO_DIRECTORY
                self.failure = not_executed(self._plan.argv[0], code) if is_entered else not_entered(code)
                return self._end(b"")
            case (kind, code, rest) if kind == ENDED:
                is_changed = bool(rest & IS_CHANGED)
                return self._end(b'"exit-code": %d}' % code, has_left=bool(rest & HAS_OTHERS), is_changed=is_changed)
        # The door is gone or late, or what comes is not from it
        self._sandbox.end_with(self)
        return self._end(b'"exit-code": %d}' % _KILLED)

    @property
    def deadline(self) -> float | None:
        """When the door must have started it, or have killed it if that was ordered."""
        return self._start_by if self._dead_by is None else self._dead_by

    def give_up(self) -> None:
        """End the sandbox, because its door is late."""
        if self._sandbox.end_if_late(self) and self._start_by is not None:
            self.failure = NeverStarted(reason="the live sandbox was stopped from inside", remedy=_AGAIN)

    def _hear(self) -> tuple[Frame | None, int | None]:
        if self.deadline is not None:
            left_ms = max(0.0, self.deadline - time.monotonic()) * 1000 + 1
            if not _is_ready(self._sock.fileno(), select.POLLIN, left_ms):
                return None, None
        return (_hear(self._sock), None) if self._terminal is None else _hear_with_terminal(self._sock)

    def _end(self, status: bytes, *, has_left: bool = False, is_changed: bool = False) -> tuple[Any, list[int]]:
        self._is_over = True
        lost, killed = self._sandbox.leave(self, has_left=has_left, is_changed=is_changed)
        return ("ended", status, lost, killed), []

    def order(self, words: tuple[Any, ...]) -> None:
        """Have the door do something with this command: `("signal", number)` or `("kill",)`.

        Where it does not kill it in time, whoever waits for the command ends the sandbox.
        """
        if words == ("kill",) and self._dead_by is None:
            self._dead_by = time.monotonic() + _KILLING_S
        try:
            send(self._sock, words, may_wait=False)
        except OSError:
            return  # it has ended, or the door has, or takes no orders

    def kill(self) -> None:
        """Kill it; where it is alone, with every process that commands started."""
        if not self._is_over:
            self._sandbox.end_command(self)

    def wait_for_spawner(self, _run: str) -> None:
        """Wait for the end of everything."""
        self._sandbox.end_with(self)

    def close(self) -> None:
        """Let go; a command that is still alive is killed with its sandbox."""
        if not self._is_over:
            self._sandbox.end_with(self)
        self._sock.close()


def _is_for_same(plan: Plan, other: Plan) -> bool:
    """Tell whether two plans are surely for the same sandbox: one is the other with another command or other layers."""
    if plan.limits is not other.limits and plan.limits.of_sandbox() != other.limits.of_sandbox():
        return False
    if len(plan.mounts) != len(other.mounts):
        return False
    if plan.mounts is not other.mounts:
        pairs = zip(plan.mounts, other.mounts, strict=True)
        if not all(one is two or (_is_exchanged(one, two) and one.dest == two.dest) for one, two in pairs):
            return False
    return _of_sandbox(plan) == _of_sandbox(other)


def _is_exchanged(*operations: MountOp) -> bool:
    return all(isinstance(operation, Overlay) and operation.upper is not None for operation in operations)


def _is_ready(fd: int, event: int, timeout_ms: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(timeout_ms))


def _hear(sock: SocketType, timeout_ms: int | None = None) -> Frame | None:
    """Return what the door says next, None if it is gone, says nothing in time, or something that is no frame."""
    if timeout_ms is not None and not _is_ready(sock.fileno(), select.POLLIN, timeout_ms):
        return None
    try:
        return read_frame(sock.recv(FRAME_BYTES + 1))
    except OSError:
        return None


def _hear_with_terminal(sock: SocketType) -> tuple[Frame | None, int | None]:
    """Return what the door says next, and the master of a terminal, if it sent one; anything else is closed."""
    try:
        raw, descriptors = receive_bytes(sock, FRAME_BYTES + 1)
    except OSError:
        return None, None
    masters = [fd for fd in descriptors if is_terminal_master(fd)]
    _close_all(fd for fd in descriptors if fd not in masters[:1])
    found = read_frame(raw)
    if masters and (found is None or found[0] != STARTED):
        os.close(masters[0])
        return found, None
    return found, masters[0] if masters else None


def hear_descriptor(sock: SocketType, timeout_ms: int = 0) -> int:
    """Return the descriptor that the door passes. It may be anything: the caller checks what it is.

    Raises:
        OSError: the door says why there is none; or it is gone, or says something else.
    """
    if not _is_ready(sock.fileno(), select.POLLIN, timeout_ms):
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    raw, descriptors = receive_bytes(sock, FRAME_BYTES + 1)
    found = read_frame(raw)
    if found is not None and found[0] == PASSED and len(descriptors) == 1:
        return descriptors[0]
    _close_all(descriptors)
    code = found[1] if found is not None and found[0] == FAILED and found[1] > 0 else errno.ECONNABORTED
    raise OSError(code, os.strerror(code))


def is_terminal_master(fd: int) -> bool:
    """Tell whether a descriptor is one of a terminal's own side, and nothing else that somebody may have sent."""
    found = os.fstat(fd)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == _PTMX


def _below(directory: bytes, name: Name) -> bytes:
    return directory + b"/" + name[1]


def _lstat(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _device_of(path: bytes) -> int:
    found = _lstat(path)
    return 0 if found is None else found.st_dev


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
