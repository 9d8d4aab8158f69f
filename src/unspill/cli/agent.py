# SPDX-License-Identifier: Apache-2.0
"""`unspill agent`: a coding agent as a whole in a live sandbox, with a home directory of its own that lasts.

Its own edits and its commands are one session. Checkpoints apply what it has changed whenever it pauses, so that the
person sees it in their editor, and each is a point to go back to.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from threading import Event, Thread

from unspill.agents.homes import find_whole_agent, make_home, model_hosts, own_variables, program_places
from unspill.cli.main import EVENTS, Option, open_sandbox, verb
from unspill.cli.run import (
    AFTER,
    ASK,
    ENV,
    PORTS,
    QUIET,
    SESSION,
    RunApprover,
    TerminalOutput,
    person_terminal,
    run_options,
    tell_run,
    wanted_ports,
)
from unspill.errors import DeniedError, UnspillError, UsageError
from unspill.host.libc import RaisingSignals
from unspill.layers.lifecycle import homes_dir
from unspill.layers.trees import remove_tree
from unspill.sandbox.keeper import is_busy
from unspill.sandbox.project import find_own_locations, find_project, resolve_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from unspill.agents.homes import WholeAgent
    from unspill.cli.main import Arguments
    from unspill.model.policy import Policy
    from unspill.sandbox.live import Live
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

# It has said something and pauses; and the longest time without a checkpoint while it goes on
_PAUSE_S, _LONGEST_S = 1.5, 20.0
_LOOK_S = 0.25
_NAMED = 4
_MOST_BESIDE = 10


@verb(
    "Run a coding agent, or any program, as a whole in a sandbox with a home directory of its own that lasts.",
    Option(name="--new-home", help="make its home directory anew, from your own settings as they are now"),
    Option(name="--allow-host", metavar="HOST", repeated=True, help="ask to connect to this host too (repeatable)"),
    Option(name="--readable", metavar="PATH", repeated=True, help="ask to show it this path (repeatable)"),
    ENV,
    *PORTS,
    *AFTER,
    ASK,
    EVENTS,
    SESSION,
    QUIET,
    positional="claude|codex|gemini|opencode|pi|PROGRAM [ARGUMENT ...]",
    takes_command=True,
    examples=(
        "unspill agent claude",
        "unspill agent --hold claude",
    ),
)
def agent(arguments: Arguments) -> int:
    """Run an agent; return its exit code."""
    if not arguments.words:
        raise UsageError("no agent is named", remedy="For example: unspill agent claude")
    given, *rest = arguments.words
    name = os.path.basename(given)
    found = find_whole_agent(name)
    program = shutil.which(given)
    if program is None:
        raise UsageError(f"`{given}` is not on your PATH", remedy=f"Install {found.title}, or correct PATH.")
    session = arguments.value("--session") or f"{name}-{secrets.token_hex(3)}"
    _provide_home(arguments, name, found)
    if all(map(os.isatty, range(3))):
        arguments.add("--tty", "")
    approver = RunApprover(arguments.value("--ask"))
    places = tuple(os.fsencode(place) for place in program_places(program))

    def widen(policy: Policy) -> Policy:
        if policy.view == "rootfs":
            remedy = "Install it in the rootfs, and start it with `unspill run -t`."
            raise UsageError(f"{found.title} is installed on this machine, which a rootfs does not show", remedy=remedy)
        return policy.replace(home=name, readable=(*policy.readable, *places))

    sandbox = _open(arguments, name, approver, session, widen)
    result, streams, known = _run(arguments, sandbox, found, approver, [os.path.realpath(program), *rest])
    code = tell_run(arguments, sandbox, result, streams, known)
    if not arguments.flag("--quiet") and not arguments.flag("--json"):
        _tell_session(sandbox, session)
    return code


def _open(
    arguments: Arguments, name: str, approver: RunApprover, session: str, widen: Callable[[Policy], Policy]
) -> Sandbox:
    """Open the sandbox of the agent's name; where another one has it now, one beside it."""
    is_chosen = arguments.flag("--sandbox")
    for number in range(1, _MOST_BESIDE + 1):
        if not is_chosen:
            arguments.replace("--sandbox", name if number == 1 else f"{name}-{number}")
        sandbox = open_sandbox(arguments, may_fork=True, approver=approver, session=session, widen=widen)
        if is_chosen or number == _MOST_BESIDE or not is_busy(sandbox):
            break
        sandbox.close()
    return sandbox


def _run(
    arguments: Arguments, sandbox: Sandbox, found: WholeAgent, approver: RunApprover, command: list[str]
) -> tuple[RunResult, TerminalOutput, int]:
    options = run_options(arguments)
    env = {**own_variables(found, os.environ), **options["env"]}
    streams = _AgentOutput()
    attached = person_terminal(arguments, sandbox, streams)
    approver.attached = attached
    known = len(sandbox.interrupted_runs)
    # Who exposes a port of this machine has the model there
    hosts = [] if arguments.values("--expose") else model_hosts(found, env)
    hosts += arguments.values("--allow-host")
    known_hosts = sandbox.policy.network.hosts
    if not (hosts or known_hosts or arguments.values("--expose") or sandbox.policy.network.ask):
        _warn(
            arguments, f"{found.title} reaches no host: allow its model's with `unspill agent --allow-host HOST ...`."
        )
    try:
        live = sandbox.live_for(
            # Whatever its arguments are: what is allowed for longer is for the program
            command[:1],
            working_dir=options["working_dir"],
            env=env,
            hosts=[host for host in hosts if host not in known_hosts],
            readable=[os.path.abspath(path) for path in arguments.values("--readable")],
            approver=approver,
        )
    except DeniedError as error:
        error.add_note("Nothing was run. For a model on this machine, use `--expose PORT`: then no host is asked for.")
        raise
    try:
        with RaisingSignals(), live:
            _open_ports(arguments, live)
            show = streams.pass_on if attached is None and not arguments.flag("--json") else streams.keep_back
            with _Checkpoints(live, streams, is_paced=attached is not None):
                result = live.run(
                    command,
                    working_dir=options["working_dir"],
                    env=env,
                    stdin=options["stdin"],
                    after=options["after"],
                    limits=sandbox.policy.limits.replace(wall_s=None),
                    on_event=show,
                    attach=attached,
                    on_wait=options["on_wait"],
                )
    except KeyboardInterrupt as error:
        streams.note_cancelled(error)
        raise
    finally:
        streams.settle()
    return result, streams, known


def _provide_home(arguments: Arguments, name: str, found: WholeAgent) -> None:
    """Make the agent's home directory if there is none, and say from what."""
    locations = find_own_locations()
    place = os.path.join(os.fsdecode(homes_dir(locations.data)), name)
    if arguments.flag("--new-home"):
        remove_tree(os.fsencode(place))
    given = arguments.value("--project")
    project = resolve_project(given) if given else find_project(os.getcwdb())
    made = make_home(place, found, os.fsdecode(locations.home), os.fsdecode(project), os.environ)
    if made is None or arguments.flag("--quiet"):
        return
    names = ", ".join(f"~/{path}" for path in made.copied[:_NAMED])
    more = f" and {len(made.copied) - _NAMED} more" if len(made.copied) > _NAMED else ""
    source = f" from copies of {names}{more}" if made.copied else ""
    print(f"unspill: Made a home directory for {found.title}{source}.", file=sys.stderr)
    for path, why in made.left:
        print(f"unspill: ~/{path} is not copied: {why}.", file=sys.stderr)


def _warn(arguments: Arguments, text: str) -> None:
    if not arguments.flag("--quiet"):
        print(f"unspill: {text}", file=sys.stderr)


def _open_ports(arguments: Arguments, live: Live) -> None:
    wanted = wanted_ports(arguments)
    if wanted is None:
        return
    for inside, host in wanted.publish:
        opened = live.publish(inside, host)
        if wanted.on_open is not None:
            wanted.on_open(opened)
    for port in wanted.expose:
        live.expose(port)


def _tell_session(sandbox: Sandbox, session: str) -> None:
    """Say how all of it is undone, where the summary names only the last part."""
    operations = sandbox.find_session(session).operations
    if len(operations) > 1:
        changes = sum(one.changed for one in operations)
        text = f"Session {session}: {len(operations)} operations, {changes} changes."
        print(f"unspill: {text} Undo all: unspill undo --session {session}", file=sys.stderr)


class _AgentOutput(TerminalOutput):
    """What an agent prints, and when it did last."""

    def __init__(self) -> None:
        super().__init__()
        self.printed_s = time.monotonic()

    def note(self, content: bytes, *, is_in_order: bool = True) -> None:
        self.printed_s = time.monotonic()
        super().note(content, is_in_order=is_in_order)


class _Checkpoints:
    """A thread that takes checkpoints of a live sandbox: at a pause of what it prints, or after a while.

    `is_paced`: what prints nothing changes nothing worth a checkpoint, so one that waits for its person is left alone.
    """

    def __init__(self, live: Live, output: _AgentOutput, *, is_paced: bool) -> None:
        self._live = live
        self._output = output
        self._is_paced = is_paced
        self._taken = time.monotonic()
        self._ended = Event()
        self._thread = Thread(target=self._take_all, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_rest: object) -> None:
        self._ended.set()
        self._thread.join()

    def _take_all(self) -> None:
        while not self._ended.wait(_LOOK_S):
            if self._is_due(time.monotonic()):
                self._taken = time.monotonic()
                try:
                    self._live.checkpoint()
                except UnspillError:
                    continue  # what is not applied now is at its end, and that says why it can't be

    def _is_due(self, now: float) -> bool:
        printed = self._output.printed_s
        has_printed = printed > self._taken
        if has_printed and now - printed >= _PAUSE_S:
            return True
        return (has_printed or not self._is_paced) and now - self._taken >= _LONGEST_S
