# SPDX-License-Identifier: Apache-2.0
"""`unspill hook`: what a coding agent is about to run, read from its hook, becomes the same command sealed.

It must never let a command through as it was: what is not understood ends with 2, which stops the command, and never
with another failure, which would not.
"""

from __future__ import annotations

import os
import sys

from unspill.cli.hook_agents import AGENTS, answer_form, settings_form
from unspill.cli.options import EVERYWHERE, Command, Option, parse
from unspill.errors import UnspillError, UsageError
from unspill.host.installation import check_own_place, own_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.cli.hook_agents import CodingAgent
    from unspill.cli.options import Arguments

_STOP = 2
_NOTHING = "Nothing was run."
_MOST_READ = 16 * 1024 * 1024
# One word of a command line has at most 128 KiB, and quotes take some of that
_LONGEST = 100_000
# A text that begins like an option is none
_SHELL = "-- bash -c -- "
# Where the agent's shell stands. Nothing here is for that shell to expand: Gemini CLI refuses `$(...)` as an injection
_PLACE = "--working-dir ."
# Also where this program can't be started, or is killed: agents let a command through at any other failure, and Codex
# where there is no reason with it
_OR_STOP = f" || {{ echo 'unspill stopped this command.' >&2; exit {_STOP}; }}"

COMMAND = Command(
    name="hook",
    summary="Be the hook of a coding agent: read what it is about to run, answer with the same command sealed.",
    positional="|".join(AGENTS),
    most=1,
    options=(
        Option(name="--hold", help="have changes held instead of applied"),
        Option(name="--quiet", short="-q", help="have no summary after the command's output"),
        Option(name="--confirm", help="have the agent ask you before each command, where it can"),
        Option(name="--settings", help="print what makes the agent call it, for its settings, and read nothing"),
        Option(name="--check", help="say whether Codex will call it: installed, and trusted by you"),
        *EVERYWHERE,
    ),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    import json

    agent = _agent(arguments)
    if arguments.flag("--check"):
        return _check(agent)
    if arguments.flag("--settings"):
        if agent.warning:
            print(f"unspill: {agent.warning}", file=sys.stderr, flush=True)
        print(json.dumps(settings_form(agent, _own_command(arguments)), indent=2))
        return 0
    if sys.stdin.isatty():
        raise UsageError("this is for a coding agent to call", remedy="`--settings` prints what makes it call it.")
    try:
        _put(_answer(agent, arguments, sys.stdin.buffer.read(_MOST_READ + 1)))
    except UnspillError as error:
        return _stop(f"{error.message.rstrip('.')}. {error.remedy}".rstrip())
    except Exception as error:
        return _stop(f"{type(error).__name__}: {error}")
    return 0


def _check(agent: CodingAgent) -> int:
    from unspill.cli.hook_check import check_codex
    from unspill.policy.paths import show

    if agent is not AGENTS["codex"]:
        raise UsageError("only what Codex does with its hooks can be checked", remedy="Leave out --check.")
    told = check_codex(lambda matcher, hook: _is_printed(agent, matcher, hook))
    print(show(told.encode("utf-8", "surrogateescape")))
    return 0


def _is_printed(agent: CodingAgent, matcher: object, hook: dict[str, Any]) -> bool:
    """Tell whether a hook is, to the letter, what `--settings` prints for some options."""
    from shlex import split

    try:
        words = split(str(hook.get("command")).removesuffix(_OR_STOP))
        given = parse(COMMAND, words[len(own_words()) + 1 :])
        printed = settings_form(_agent(given), _own_command(given))
    except (ValueError, UsageError):
        return False
    return printed == {"hooks": {agent.event: [{"matcher": matcher, "hooks": [hook]}]}}


def _put(answer: dict[str, Any]) -> None:
    """Write the answer, past all buffers: what could not be written must not be found out when it is too late."""
    import json

    # What JSON has no form for, an agent's parser would refuse, and take that for no answer
    json.dumps(answer, ensure_ascii=False, allow_nan=False).encode("utf-8", "strict")
    if os.path.samestat(os.fstat(1), os.stat(os.devnull)):
        # So it is too where whoever started this had closed it: to end well without an answer lets the command through
        raise OSError("nobody reads the answer")
    rest = json.dumps(answer).encode() + b"\n"
    while rest:
        rest = rest[os.write(1, rest) :]


def _stop(reason: str) -> int:
    from unspill.policy.paths import show

    told = "".join(f"{show(line.encode('utf-8', 'surrogatepass'))}\n" for line in (f"unspill: {reason}", _NOTHING))
    try:
        os.write(2, told.encode("utf-8", "backslashreplace"))
    except OSError:
        return _STOP  # nobody can be told; the status still says it
    return _STOP


def _agent(arguments: Arguments) -> CodingAgent:
    name = arguments.words[0] if arguments.words else ""
    if name not in AGENTS:
        raise UsageError(f"no such coding agent: {name!r}", remedy=f"There are {', '.join(AGENTS)}.")
    if arguments.flag("--confirm") and not AGENTS[name].asks:
        raise UsageError(f"a hook can't make {name} ask", remedy="Leave out --confirm.")
    return AGENTS[name]


def _answer(agent: CodingAgent, arguments: Arguments, raw: bytes) -> dict[str, Any]:
    event, given = _read(agent, raw)
    text = given["command"]
    is_plan = event.get("permission_mode") == "plan"
    words = _words(arguments, _project(arguments), discard=is_plan)
    leaves = bool(agent.unsealed and given.get(agent.unsealed))
    reason = "sealed by unspill"
    if leaves:
        reason = f"the agent wants to leave its own sandbox ({agent.unsealed}); this command stays {reason}"
    ask = leaves or arguments.flag("--confirm")
    return answer_form(agent, given, seal(text, words), reason=reason, ask=ask)


def _read(agent: CodingAgent, raw: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the agent sent, and its tool's arguments.

    Raises:
        UsageError: anything of it is not as the agent is known to send it.
    """
    import json

    if len(raw) > _MOST_READ:
        raise UsageError(f"more than {_MOST_READ} bytes were sent")
    try:
        event = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"what was sent is no JSON: {error}") from error
    if not isinstance(event, dict) or event.get("hook_event_name") != agent.event:
        raise UsageError(f"this is not the event {agent.event}", remedy="Correct the agent's settings.")
    if event.get("tool_name") != agent.tool:
        raise UsageError(f"{event.get('tool_name')!a:.60} can't be sealed", remedy=f"Use the tool {agent.tool}.")
    given = event.get("tool_input")
    if not isinstance(given, dict):
        raise UsageError("the tool has no arguments")
    _check_arguments(agent, given)
    return event, given


def _check_arguments(agent: CodingAgent, given: dict[str, Any]) -> None:
    text = given.get("command")
    if not isinstance(text, str) or not text.strip():
        raise UsageError("there is no command")
    if "\0" in text:
        raise UsageError("the command has a zero byte, which no shell can be given")
    if len(text.encode("utf-8", "surrogatepass")) > _LONGEST:
        raise UsageError("the command is too long", remedy="Write it to a file and run that.")
    unknown = sorted(set(given) - agent.fields - {"command"})
    if unknown:
        raise UsageError(f"the argument {unknown[0]!a:.60} is not known here, and might lead around the sandbox")
    if agent.background and given.get(agent.background):
        remedy = "Run it in the foreground, with a time limit."
        raise UsageError("the sandbox runs nothing in the background: other commands would wait for it", remedy=remedy)


def _words(arguments: Arguments, project: bytes, *, discard: bool) -> str:
    """Return the beginning of every command line that this hook makes, as a shell reads it.

    The project is named: some agents let a model say where a command is run.
    """
    from shlex import quote

    # Some agents give a shell a pipe that never ends, which a command would wait for
    words = [*own_words(), "run", "--no-stdin"]
    if discard:
        # Somebody who plans wants nothing changed
        words.append("--discard")
    elif arguments.flag("--hold"):
        words.append("--hold")
    if arguments.flag("--quiet"):
        words.append("--quiet")
    name = arguments.value("--sandbox")
    words += ["--sandbox", name] if name else []
    words += ["--ask", _whom(project), "--project", os.fsdecode(project)]
    return f"{' '.join(map(quote, words))} {_PLACE} {_SHELL}"


def _whom(project: bytes) -> str:
    """Return who answers what these commands ask for: never their terminal, since the agent may type there."""
    from unspill.sandbox.locations import find_own_locations
    from unspill.sandbox.settings import load_policy

    approver = load_policy(find_own_locations(), project, None).permissions.approver
    return "deny" if approver == "deny" else "queue"


def seal(text: str, words: str) -> str:
    """Return the command line that runs a shell text sealed; one that is exactly that already is returned as it is."""
    from shlex import quote

    return text if is_sealed(text, words) else words + quote(text)


def is_sealed(text: str, words: str) -> bool:
    """Tell whether a text is, to the byte, what `seal` makes of another: looking like it is not enough."""
    from shlex import quote, split

    if not text.startswith(words):
        return False
    rest = text[len(words) :]
    try:
        parts = split(rest)
    except ValueError:
        return False
    return len(parts) == 1 and quote(parts[0]) == rest


def _own_command(arguments: Arguments) -> str:
    from shlex import quote

    words = [*own_words(), "hook", arguments.words[0]]
    words += [name for name in ("--hold", "--quiet", "--confirm") if arguments.flag(name)]
    for name in ("--project", "--sandbox"):
        value = arguments.value(name)
        if value is not None:
            words += [name, os.path.abspath(value) if name == "--project" else value]
    return " ".join(map(quote, words)) + _OR_STOP


def _project(arguments: Arguments) -> bytes:
    """Return the project of every command that the agent runs from where it stands.

    That is where it starts this hook. The `cwd` of the event is no help: Codex writes there what the model chose for
    one command, so any other project of the person could be named.

    Raises:
        UsageError: it can't be one, or commands in it could change this program.
    """
    from unspill.host.places import find_home
    from unspill.policy.defaults import check_root
    from unspill.sandbox.project import find_project, resolve_project

    project = resolve_project(arguments.value("--project") or find_project(os.getcwdb()))
    check_root(project, home=find_home(os.getuid(), os.environb.get(b"HOME")).path, own=())
    check_own_place((project,))
    return project
