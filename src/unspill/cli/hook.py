# SPDX-License-Identifier: Apache-2.0
"""`unspill hook`: a command that Claude Code is about to run, read from its hook, becomes the same command sealed.

It must never let a command through as it was: what is not understood ends with 2, which stops the command, and never
with another failure, which would not. The plug-in that has Claude Code call it lies in `agents/claude_code`.
"""

from __future__ import annotations

import json
import os
import sys
from shlex import quote, split

from unspill.agents.plugin import make_plugin
from unspill.cli import hook_edits
from unspill.cli.main import Option, open_sandbox, verb
from unspill.errors import UnspillError, UsageError
from unspill.host.places import check_own_place, find_home, own_words, standby_words
from unspill.policy.defaults import check_root
from unspill.policy.paths import show
from unspill.sandbox.project import find_own_locations, find_project, load_policy, resolve_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.sandbox.sandbox import Sandbox

_STOP = 2
_NOTHING_RUN = "Nothing was run."
_NAME = "claude-code"
_SESSION, _BEFORE = "SessionStart", "PreToolUse"
# What a model is told once per session
SESSION_WORDS = (
    "Shell commands in this session run sealed by unspill: they see this project, nothing else in the home directory, "
    "and have no network. When a command ends, its changes are applied to the project, and the user can undo them. "
    "What it writes elsewhere is lost, and what it leaves running ends with it. If you need a host or a file that is "
    "refused, tell the user: only the user can allow it, with `unspill approve` in another terminal."
)
_MOST_READ = 16 * 1024 * 1024
# One word of a command line has at most 128 KiB, and quotes take some of that
_LONGEST_COMMAND = 100_000
# A text that begins like an option is none
_SHELL = "-- bash -c -- "
# Where the agent's shell stands
_PLACE = "--working-dir ."
_TOOL = "Bash"
_BACKGROUND, _UNSEALED = "run_in_background", "dangerouslyDisableSandbox"
_FIELDS = frozenset(("command", "description", "timeout", _BACKGROUND, _UNSEALED))
# The first version that stops a command if its hook is killed or takes too long
_OLDEST = (2, 1, 295)
# Hooks of 0.2 that are gone: where its settings are, and what to take out of them
_GONE = {
    "codex": (
        "Codex",
        "In ~/.codex/hooks.json delete each hook whose command has `hook codex`. In ~/.codex/config.toml delete "
        '`sandbox_mode = "danger-full-access"`, which gives Codex its own sandbox back, and the tables '
        "`[hooks.state...]` that name hooks.json.",
    ),
    "gemini-cli": (
        "Gemini CLI",
        "In ~/.gemini/settings.json delete each hook whose command has `hook gemini-cli`.",
    ),
}
_INSIDE = {"codex": "codex", "gemini-cli": "gemini"}


@verb(
    "Run Claude Code's commands in the sandbox. Its plug-in calls this before each command.",
    Option(name="--plugin-dir", help="make the plug-in for Claude Code, and print where it is"),
    positional=_NAME,
    most=1,
    examples=('claude --plugin-dir "$(unspill hook claude-code --plugin-dir)"',),
)
def hook(arguments: Arguments) -> int:
    """Answer Claude Code, or make its plug-in."""
    _check_name(arguments.words[0] if arguments.words else "")
    if arguments.flag("--plugin-dir"):
        print(os.fsdecode(make_plugin(find_own_locations().state, standby_words())))
        return 0
    if sys.stdin.isatty():
        raise UsageError("Claude Code has to call this", remedy="Start it with its plug-in: see `unspill hook --help`.")
    try:
        event = _read_event(sys.stdin.buffer.read(_MOST_READ + 1))
        if not _follow(arguments, event):
            _check_version(os.environ)
            _write_answer(_answer(arguments, event))
    except UnspillError as error:
        return _stop(f"{error.message.rstrip('.')}. {error.remedy}".rstrip())
    except Exception as error:
        return _stop(f"{type(error).__name__}: {error}")
    return 0


def _check_name(name: str) -> None:
    """Refuse any agent but the one that has a hook.

    Raises:
        UsageError: with what to take out of the settings, where an earlier unspill has put a hook there.
    """
    if name == _NAME:
        return
    if name not in _GONE:
        raise UsageError(f"no such coding agent: {name!r}", remedy=f"There is {_NAME}.")
    title, remedy = _GONE[name]
    if name == "codex" and not sys.stdin.isatty():
        # 0.2 had its hook for patches end well whatever became of it, and has switched Codex's own sandbox off
        print(json.dumps(_decision("deny", "unspill no longer has hooks for Codex")))
    raise UsageError(
        f"unspill no longer has hooks for {title}, and ran nothing",
        remedy=f"{remedy} Then start it whole in the sandbox: unspill agent {_INSIDE[name]}",
    )


def _check_version(environ: Mapping[str, str]) -> None:
    """Stop where Claude Code is a version that would run a command unsealed without a word.

    It names itself in AI_AGENT: `claude-code_2-1-326_harness`, earlier `claude-code/2.1.120/harness`. Before that it
    only had another variable. Whoever is called by neither is not known to be anything.

    Raises:
        UsageError: it is; with the remedy.
    """
    named = environ.get("AI_AGENT", "").replace("/", "_").replace("-", ".")
    kind, _, rest = named.partition("_")
    if kind == "claude.code":
        numbers = rest.partition("_")[0].split(".")
        version = tuple(int(number) for number in numbers if number.isdecimal())
    elif not named and "CLAUDE_CODE_ENTRYPOINT" in environ:
        version = (0,)
    else:
        return
    if version < _OLDEST:
        wanted = ".".join(map(str, _OLDEST))
        raise UsageError(
            "this version of Claude Code runs a command without the sandbox if its hook is killed",
            remedy=f"Update it to {wanted} or newer: claude update.",
        )


def _follow(arguments: Arguments, event: dict[str, Any]) -> bool:
    """Record what the agent's own file tools do, or what its person asks for; tell whether that is what it says.

    An edit of our own files, or of what makes it call this hook, is refused.
    """
    if event.get("hook_event_name") not in hook_edits.EVENTS:
        return False

    def open_it() -> Sandbox:
        project_of(arguments)
        return open_sandbox(arguments, may_make=True, session=hook_edits.session_of(_NAME, event))

    locations = find_own_locations()
    refused = hook_edits.find_refusal(event, (locations.state, locations.config), os.environb)
    if refused is not None:
        _write_answer(_decision(*refused))
        return True
    try:
        return hook_edits.follow(_NAME, event, open_it)
    except UnspillError as error:
        # The edit is the agent's own and happens anyway
        print(f"unspill: `unspill undo --session` will not know of this: {error.message}", file=sys.stderr)
        return True


def _answer(arguments: Arguments, event: dict[str, Any]) -> dict[str, Any]:
    if event.get("hook_event_name") == _SESSION:
        return {"hookSpecificOutput": {"hookEventName": _SESSION, "additionalContext": SESSION_WORDS}}
    given = _read_arguments(event)
    is_plan = event.get("permission_mode") == "plan"
    session = hook_edits.session_of(_NAME, event)
    in_background = bool(given.get(_BACKGROUND))
    words = _words(arguments, project_of(arguments), session, discard=is_plan, in_background=in_background)
    leaves = bool(given.get(_UNSEALED))
    reason = "sealed by unspill"
    if leaves:
        reason = f"the agent wants to leave its own sandbox ({_UNSEALED}); this command stays {reason}"
    # All arguments are in it: what is returned takes the place of what was given
    return _decision("ask" if leaves else "allow", reason, {**given, "command": seal(given["command"], words)})


def _decision(decision: str, reason: str, updated: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the answer that has an agent use a tool, with other arguments, ask its person, or not use it."""
    said: dict[str, Any] = {
        "hookEventName": _BEFORE,
        "permissionDecision": decision,
        "permissionDecisionReason": reason,
    }
    return {"hookSpecificOutput": said if updated is None else {**said, "updatedInput": updated}}


def seal(text: str, words: str) -> str:
    """Return the command line that runs a shell text sealed; one that is exactly that already is returned as it is."""
    return text if is_sealed(text, words) else words + quote(text)


def is_sealed(text: str, words: str) -> bool:
    """Tell whether a text is, to the byte, what `seal` makes of another: looking like it is not enough."""
    if not text.startswith(words):
        return False
    rest = text[len(words) :]
    try:
        parts = split(rest)
    except ValueError:
        return False
    return len(parts) == 1 and quote(parts[0]) == rest


def _write_answer(answer: dict[str, Any]) -> None:
    """Write the answer, past all buffers: what could not be written must not be found out when it is too late."""
    # What JSON has no form for, an agent's parser would refuse, and take that for no answer
    json.dumps(answer, ensure_ascii=False, allow_nan=False).encode("utf-8", "strict")
    if os.path.samestat(os.fstat(1), os.stat(os.devnull)):
        # So it is too where whoever started this had closed it: to end well without an answer lets the command through
        raise OSError("nobody reads the answer")
    rest = json.dumps(answer).encode() + b"\n"
    while rest:
        rest = rest[os.write(1, rest) :]


def _stop(reason: str) -> int:
    told = "".join(f"{show(line.encode('utf-8', 'surrogatepass'))}\n" for line in (f"unspill: {reason}", _NOTHING_RUN))
    try:
        os.write(2, told.encode("utf-8", "backslashreplace"))
    except OSError:
        return _STOP  # nobody can be told; the status still says it
    return _STOP


def _read_event(raw: bytes) -> dict[str, Any]:
    """Return what the agent sent, an empty one if that is nothing that it could be."""
    if len(raw) > _MOST_READ:
        raise UsageError(f"the input has more than {_MOST_READ} bytes")
    try:
        event = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the input is not JSON: {error}") from error
    return event if isinstance(event, dict) else {}


def _read_arguments(event: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the tool for commands.

    Raises:
        UsageError: anything of it is not as Claude Code is known to send it.
    """
    if event.get("hook_event_name") != _BEFORE:
        raise UsageError(f"this is not the event {_BEFORE}", remedy="Correct the agent's settings.")
    if event.get("tool_name") != _TOOL:
        raise UsageError(f"{event.get('tool_name')!a:.60} can't be sealed", remedy=f"Use the tool {_TOOL}.")
    given = event.get("tool_input")
    if not isinstance(given, dict):
        raise UsageError("the tool has no arguments")
    text = given.get("command")
    if not isinstance(text, str) or not text.strip():
        raise UsageError("there is no command")
    if "\0" in text:
        raise UsageError("the command contains a zero byte")
    if len(text.encode("utf-8", "surrogatepass")) > _LONGEST_COMMAND:
        raise UsageError("the command is too long", remedy="Write it to a file and run that.")
    unknown = sorted(set(given) - _FIELDS)
    if unknown:
        raise UsageError(f"the argument {unknown[0]!a:.60} is not known here, and might lead around the sandbox")
    return given


def _words(arguments: Arguments, project: bytes, session: str, *, discard: bool, in_background: bool) -> str:
    """Return the beginning of every command line that this hook makes, as a shell reads it. The project is named."""
    # Some agents give a shell a pipe that never ends, which a command would wait for
    words = [*(own_words() if in_background else standby_words()), "run", "--no-stdin"]
    if in_background:
        # The agent reads its output and ends it; other commands share its sandbox meanwhile
        words += ["--detach", "--follow"]
    # Somebody who plans wants nothing changed
    words += ["--discard"] if discard else []
    name = arguments.value("--sandbox")
    words += ["--sandbox", name] if name else []
    words += ["--session", session] if session else []
    words += ["--ask", _whom(project), "--project", os.fsdecode(project)]
    return f"{' '.join(map(quote, words))} {_PLACE} {_SHELL}"


def _whom(project: bytes) -> str:
    """Return who answers what these commands ask for: never their terminal, since the agent may type there."""
    approver = load_policy(find_own_locations(), project, None).permissions.approver
    return "deny" if approver == "deny" else "queue"


def project_of(arguments: Arguments) -> bytes:
    """Return the project of every command that the agent runs from where it stands: where it starts this hook.

    Raises:
        UsageError: it can't be one, or commands in it could change this program.
    """
    project = resolve_project(arguments.value("--project") or find_project(os.getcwdb()))
    check_root(project, home=find_home(os.getuid(), os.environb.get(b"HOME")).path, own=())
    check_own_place((project,))
    return project
