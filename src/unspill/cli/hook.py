# SPDX-License-Identifier: Apache-2.0
"""`unspill hook`: what a coding agent is about to run, read from its hook, becomes the same command sealed.

It must never let a command through as it was: what is not understood ends with 2, which stops the command, and never
with another failure, which would not.

`AGENTS` has what each agent sends and takes for an answer, only as its documentation or its source says. What all of
them share: the hook reads one JSON object, exit status 2 stops the command and gives the agent what is on stderr, any
other failure lets the command through.
"""

from __future__ import annotations

import json
import os
import sys
from shlex import quote, split

from unspill.cli import hook_edits
from unspill.cli.main import Option, open_sandbox, parse, verb
from unspill.errors import UnspillError, UsageError
from unspill.host.places import check_own_place, find_home, own_words, standby_words
from unspill.policy.defaults import check_root
from unspill.policy.paths import show
from unspill.record import Record
from unspill.sandbox.project import find_own_locations, find_project, load_policy, resolve_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.sandbox.sandbox import Sandbox

_STOP = 2
_NOTHING_RUN = "Nothing was run."
_SESSION = "SessionStart"
# What a model is told once per session
TOLD = "Shell commands in this session run sealed by unspill"
SESSION_WORDS = (
    f"{TOLD}: they see this project, nothing else in the home directory, and have no network. When a command ends, its "
    "changes are applied to the project, and the user can undo them. What it writes elsewhere is lost, and what it "
    "leaves running ends with it. If you need a host or a file that is refused, tell the user: only the user can allow "
    "it, with `unspill approve` in another terminal."
)
_MOST_READ = 16 * 1024 * 1024
# One word of a command line has at most 128 KiB, and quotes take some of that
_LONGEST_COMMAND = 100_000
# A text that begins like an option is none
_SHELL = "-- bash -c -- "
# Where the agent's shell stands. Nothing here is for that shell to expand: Gemini CLI refuses `$(...)` as an injection
_PLACE = "--working-dir ."
# Also where this program can't be started, or is killed: agents let a command through at any other failure, and Codex
# where there is no reason with it
_OR_STOP = f" || {{ echo 'unspill stopped this command.' >&2; exit {_STOP}; }}"


class CodingAgent(Record):
    """One agent. `fields` are those that its tool has besides the command.

    `background` is the field that asks for a command nobody waits for, `unsealed` the one that asks to leave the
    agent's own sandbox. `asks`: a hook can make it ask the person. `returned` is the field of an answer that has the
    new arguments. `decides`: the answer also says whether the command is allowed. `warning` is what to know before its
    settings are used. `oldest` is the first version that stops a command if its hook is killed or takes too long.
    `also` are settings without which it runs commands that it asks no hook about.
    """

    event: str
    tool: str
    fields: frozenset[str]
    matcher: str
    settings: str
    timeout: int
    background: str = ""
    unsealed: str = ""
    asks: bool = False
    returned: str = "updatedInput"
    decides: bool = True
    warning: str = ""
    oldest: tuple[int, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    also: tuple[tuple[str, object], ...] = ()


AGENTS = {
    "claude-code": CodingAgent(
        event="PreToolUse",
        tool="Bash",
        fields=frozenset(("description", "timeout", "run_in_background", "dangerouslyDisableSandbox")),
        # The others run commands too: they are stopped, and the agent is told which one to use
        matcher="Bash|Monitor|PowerShell",
        settings="~/.claude/settings.json",
        timeout=30,
        background="run_in_background",
        unsealed="dangerouslyDisableSandbox",
        asks=True,
        # Without it, a hook that can't be started lets the command through
        extra=(("onFailure", "block"),),
        # A skill has what stands in it between !` and ` run before the model reads it
        also=(("disableSkillShellExecution", True),),
        oldest=(2, 1, 295),
    ),
    "codex": CodingAgent(
        event="PreToolUse",
        tool="Bash",
        fields=frozenset(),
        matcher="^Bash$",
        settings="~/.codex/hooks.json",
        timeout=30,
        warning=(
            "Codex silently skips a hook that you have not trusted, and runs commands without the sandbox.\n"
            "  Trust this one in Codex (type /hooks), then check that it is called: unspill hook codex --check"
        ),
    ),
    "gemini-cli": CodingAgent(
        event="BeforeTool",
        tool="run_shell_command",
        # `delay_ms` is only looked at together with `is_background`
        fields=frozenset(("description", "dir_path", "directory", "is_background", "delay_ms")),
        matcher="^run_shell_command$",
        settings="~/.gemini/settings.json",
        timeout=30_000,
        background="is_background",
        returned="tool_input",
        decides=False,
        warning=(
            "Gemini CLI silently skips every hook in a folder that it does not trust.\n"
            "  Trust the folder before you let it run commands there."
        ),
    ),
}

# Checking Codex
_INSTALL = "Put what `unspill hook codex --settings` prints into that file."
_TRUST = "Start `codex`, type /hooks, switch it on if it is off, and trust it."
_UNSEEN = "Not checked: options of `codex`, its profiles, and settings that your organisation manages."
_OTHERS = "There are other PreToolUse hooks: if one of them rewrites commands as well, the last one to finish wins."


@verb(
    "Run a coding agent's commands in the sandbox. The agent calls this as its hook before each command.",
    Option(name="--hold", help="hold changes instead of applying them"),
    Option(name="--quiet", short="-q", help="print no summary after the command's output"),
    Option(name="--confirm", help="let the agent ask you before each command, if it can"),
    Option(name="--settings", help="print the configuration for the agent, and read nothing"),
    Option(name="--check", help="check that Codex calls it: installed, and trusted by you"),
    positional="|".join(AGENTS),
    most=1,
    examples=("unspill hook claude-code --settings",),
)
def hook(arguments: Arguments) -> int:
    """Answer a coding agent, print its settings, or check that it calls this."""
    agent = _agent(arguments)
    if arguments.flag("--check"):
        return _check(agent)
    if arguments.flag("--settings"):
        if agent.warning:
            print(f"unspill: {agent.warning}", file=sys.stderr, flush=True)
        print(json.dumps(_all_settings(arguments), indent=2))
        return 0
    if sys.stdin.isatty():
        raise UsageError("a coding agent has to call this", remedy="`--settings` prints its configuration.")
    try:
        event = _read_event(sys.stdin.buffer.read(_MOST_READ + 1))
        if not _follow(arguments, event):
            _check_version(agent, os.environ)
            _write_answer(_answer(agent, arguments, event))
    except UnspillError as error:
        return _stop(f"{error.message.rstrip('.')}. {error.remedy}".rstrip())
    except Exception as error:
        return _stop(f"{type(error).__name__}: {error}")
    return 0


def _check_version(agent: CodingAgent, environ: Mapping[str, str]) -> None:
    """Stop where the agent is known to be a version that would run a command unsealed without a word.

    Claude Code names itself in AI_AGENT: `claude-code_2-1-326_harness`, earlier `claude-code/2.1.120/harness`. Before
    that it only had another variable. Whoever is called by neither is not known to be anything.

    Raises:
        UsageError: it is; with the remedy.
    """
    if not agent.oldest:
        return
    named = environ.get("AI_AGENT", "").replace("/", "_").replace("-", ".")
    kind, _, rest = named.partition("_")
    if kind == "claude.code":
        numbers = rest.partition("_")[0].split(".")
        version = tuple(int(number) for number in numbers if number.isdecimal())
    elif not named and "CLAUDE_CODE_ENTRYPOINT" in environ:
        version = (0,)
    else:
        return
    if version < agent.oldest:
        wanted = ".".join(map(str, agent.oldest))
        raise UsageError(
            "this version of Claude Code runs a command without the sandbox if its hook is killed",
            remedy=f"Update it to {wanted} or newer: claude update.",
        )


def _follow(arguments: Arguments, event: dict[str, Any]) -> bool:
    """Record what the agent's own file tools do, or what its person asks for; tell whether that is what it says.

    An edit of our own files is refused.
    """
    name = arguments.words[0]
    if event.get("hook_event_name") not in hook_edits.EVENTS[name]:
        return False

    def open_it() -> Sandbox:
        project_of(arguments)
        return open_sandbox(arguments, may_make=True, session=hook_edits.session_of(name, event))

    try:
        locations = find_own_locations()
        refused = hook_edits.find_refusal(
            name, event, (locations.state, locations.config), lambda: project_of(arguments)
        )
        if refused is not None:
            _write_answer(_refusal_form(AGENTS[name], *refused))
            return True
        return hook_edits.follow(name, event, open_it)
    except UnspillError as error:
        # The edit is the agent's own and happens anyway
        print(f"unspill: `unspill undo --session` will not know of this: {error.message}", file=sys.stderr)
        return True


def _answer(agent: CodingAgent, arguments: Arguments, event: dict[str, Any]) -> dict[str, Any]:
    if event.get("hook_event_name") == _SESSION:
        return {"hookSpecificOutput": {"hookEventName": _SESSION, "additionalContext": SESSION_WORDS}}
    given = _read_arguments(agent, event)
    text = given["command"]
    is_plan = event.get("permission_mode") == "plan"
    in_background = bool(agent.background and given.get(agent.background))
    session = hook_edits.session_of(arguments.words[0], event)
    words = _words(arguments, project_of(arguments), session, discard=is_plan, in_background=in_background)
    leaves = bool(agent.unsealed and given.get(agent.unsealed))
    reason = "sealed by unspill"
    if leaves:
        reason = f"the agent wants to leave its own sandbox ({agent.unsealed}); this command stays {reason}"
    ask = leaves or arguments.flag("--confirm")
    return _answer_form(agent, given, seal(text, words), reason=reason, ask=ask)


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


def _agent(arguments: Arguments) -> CodingAgent:
    name = arguments.words[0] if arguments.words else ""
    if name not in AGENTS:
        raise UsageError(f"no such coding agent: {name!r}", remedy=f"There are {', '.join(AGENTS)}.")
    if arguments.flag("--confirm") and not AGENTS[name].asks:
        raise UsageError(f"a hook can't make {name} ask", remedy="Leave out --confirm.")
    return AGENTS[name]


def _read_event(raw: bytes) -> dict[str, Any]:
    """Return what the agent sent, an empty one if that is nothing that it could be."""
    if len(raw) > _MOST_READ:
        raise UsageError(f"the input has more than {_MOST_READ} bytes")
    try:
        event = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the input is not JSON: {error}") from error
    return event if isinstance(event, dict) else {}


def _read_arguments(agent: CodingAgent, event: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the agent's tool.

    Raises:
        UsageError: anything of it is not as the agent is known to send it.
    """
    if event.get("hook_event_name") != agent.event:
        raise UsageError(f"this is not the event {agent.event}", remedy="Correct the agent's settings.")
    if event.get("tool_name") != agent.tool:
        raise UsageError(f"{event.get('tool_name')!a:.60} can't be sealed", remedy=f"Use the tool {agent.tool}.")
    given = event.get("tool_input")
    if not isinstance(given, dict):
        raise UsageError("the tool has no arguments")
    _check_arguments(agent, given)
    return given


def _check_arguments(agent: CodingAgent, given: dict[str, Any]) -> None:
    text = given.get("command")
    if not isinstance(text, str) or not text.strip():
        raise UsageError("there is no command")
    if "\0" in text:
        raise UsageError("the command contains a zero byte")
    if len(text.encode("utf-8", "surrogatepass")) > _LONGEST_COMMAND:
        raise UsageError("the command is too long", remedy="Write it to a file and run that.")
    unknown = sorted(set(given) - agent.fields - {"command"})
    if unknown:
        raise UsageError(f"the argument {unknown[0]!a:.60} is not known here, and might lead around the sandbox")


def _words(
    arguments: Arguments, project: bytes, session: str = "", *, discard: bool, in_background: bool = False
) -> str:
    """Return the beginning of every command line that this hook makes, as a shell reads it.

    The project is named: some agents let a model say where a command is run.
    """
    # Some agents give a shell a pipe that never ends, which a command would wait for
    words = [*(own_words() if in_background else standby_words()), "run", "--no-stdin"]
    if in_background:
        # The agent reads its output and ends it; other commands share its sandbox meanwhile
        words += ["--detach", "--follow"]
    if discard:
        # Somebody who plans wants nothing changed
        words.append("--discard")
    elif arguments.flag("--hold"):
        words.append("--hold")
    if arguments.flag("--quiet"):
        words.append("--quiet")
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
    """Return the project of every command that the agent runs from where it stands.

    That is where it starts this hook. The `cwd` of the event is no help: Codex writes there what the model chose for
    one command, so any other project of the person could be named.

    Raises:
        UsageError: it can't be one, or commands in it could change this program.
    """
    project = resolve_project(arguments.value("--project") or find_project(os.getcwdb()))
    check_root(project, home=find_home(os.getuid(), os.environb.get(b"HOME")).path, own=())
    check_own_place((project,))
    return project


def _own_command(arguments: Arguments, program: list[str]) -> str:
    words = [*program, "hook", arguments.words[0]]
    words += [name for name in ("--hold", "--quiet", "--confirm") if arguments.flag(name)]
    for name in ("--project", "--sandbox"):
        value = arguments.value(name)
        if value is not None:
            words += [name, os.path.abspath(value) if name == "--project" else value]
    return " ".join(map(quote, words)) + _OR_STOP


def _answer_form(agent: CodingAgent, given: dict[str, Any], command: str, *, reason: str, ask: bool) -> dict[str, Any]:
    """Return the answer that has an agent run `command` in place of its own.

    All arguments are in it: some versions replace theirs with what they get, others lay it over them.
    """
    said: dict[str, Any] = {"hookEventName": agent.event}
    if agent.decides:
        said |= {"permissionDecision": "ask" if ask else "allow", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {**said, agent.returned: {**given, "command": command}}}


def _refusal_form(agent: CodingAgent, reason: str, may_ask: bool) -> dict[str, Any]:
    """Return the answer that has an agent not use a tool, or ask its person where it can and they may allow it."""
    if not agent.decides:
        return {"decision": "deny", "reason": reason}
    decision = "ask" if may_ask and agent.asks else "deny"
    said = {"hookEventName": agent.event, "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": said}


def _settings_form(agent: CodingAgent, command: str) -> dict[str, Any]:
    """Return the part of an agent's settings that makes it call a hook before it runs a command."""
    return {"hooks": {agent.event: [{"matcher": agent.matcher, "hooks": [_hook_form(agent, command)]}]}}


def _hook_form(agent: CodingAgent, command: str) -> dict[str, Any]:
    return {"type": "command", "command": command, "timeout": agent.timeout, **dict(agent.extra)}


def hook_groups(name: str, program: str = "") -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return what `setup` adds to an agent's hooks, by event: first what seals its commands, then the rest."""
    agent = AGENTS[name]
    command = f"{program or ' '.join(map(quote, standby_words()))} hook {name}"
    (group,) = _settings_form(agent, command + _OR_STOP)["hooks"][agent.event]
    told = {"hooks": [_telling(agent, command)]}
    return ((agent.event, group), *_edit_groups(name, command), (_SESSION, told))


def _edit_groups(name: str, command: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return what else an agent calls this for, by event: its own edits, and what its person asks for."""
    hook = _telling(AGENTS[name], command)
    before, after, prompt = hook_edits.EVENTS[name]
    tools = {"matcher": hook_edits.matcher_of(name), "hooks": [hook]}
    return (before, tools), (after, tools), (prompt, {"hooks": [hook]})


def _telling(agent: CodingAgent, command: str) -> dict[str, Any]:
    """Return a hook that stops nothing, even if unspill is not there any more."""
    return {"type": "command", "command": f"{command} || true", "timeout": agent.timeout}


def _all_settings(arguments: Arguments) -> dict[str, Any]:
    command = _own_command(arguments, standby_words())
    settings = _settings_form(_agent(arguments), command)
    telling = command.removesuffix(_OR_STOP)
    told = {"hooks": [_telling(_agent(arguments), telling)]}
    for event, group in (*_edit_groups(arguments.words[0], telling), (_SESSION, told)):
        settings["hooks"].setdefault(event, []).append(group)
    return settings | dict(_agent(arguments).also)


def _check(agent: CodingAgent) -> int:
    if agent is not AGENTS["codex"]:
        raise UsageError("--check only works for Codex", remedy="Leave out --check.")
    told = check_codex(agent)
    print(show(told.encode("utf-8", "surrogateescape")))
    return 0


def check_codex(agent: CodingAgent = AGENTS["codex"]) -> str:
    """Return the sentence that says that Codex will call our hook: it skips one that nobody has trusted without a word.

    Reads the files in which Codex 0.166 keeps hooks and the trust in them, and asks Codex itself nothing. What it does
    not see is said with the answer.

    Raises:
        UsageError: it will not, or that can't be known; with the reason and what to do.
    """
    home = _codex_home()
    path = os.path.join(home, "hooks.json")
    groups = _read_groups(path)
    config = _read_config(os.path.join(home, "config.toml"))
    places = [(group, hook) for group, entry in enumerate(groups) for hook in range(len(entry["hooks"]))]
    ours = [place for place in places if _is_printed(agent, groups[place[0]].get("matcher"), _hook_at(groups, place))]
    if not ours:
        raise UsageError(f"{path} has no hook that this unspill prints", remedy=_INSTALL)
    for name in (os.path.join(home, "config.toml"), *_project_configs()):
        features = _table(_read_config(name), "features")
        if features.get("hooks", features.get("codex_hooks")) is False:
            raise UsageError(f"{name} switches hooks off", remedy="Remove `hooks = false` under `[features]`.")
    states = _table(_table(config, "hooks"), "state")
    reasons = [_why_skipped(_table(states, _trust_key(path, place)), groups, place) for place in ours]
    if all(reasons):
        raise UsageError(f"Codex silently skips the hook in {path}: {reasons[0]}", remedy=_TRUST)
    edits = [place for place in places if groups[place[0]].get("matcher") == hook_edits.matcher_of("codex")]
    others = len(places) > 1 + len(edits) or _table(config, "hooks").get("PreToolUse")
    told = f"Codex calls the hook in {path}: it is installed and you have trusted it. {_UNSEEN}"
    return f"{told} {_OTHERS}" if others else told


def _project_configs() -> list[str]:
    """Return the project's own settings for Codex, from here up: they count once the folder is trusted."""
    here, top = os.getcwd(), os.fsdecode(find_project(os.getcwdb()))
    found = [os.path.join(here, ".codex/config.toml")]
    while here != top and here != "/":
        here = os.path.dirname(here)
        found.append(os.path.join(here, ".codex/config.toml"))
    return found


def _why_skipped(state: dict[str, Any], groups: list[dict[str, Any]], place: tuple[int, int]) -> str:
    if state.get("enabled") is False:
        return "it is switched off."
    trusted = state.get("trusted_hash")
    if trusted is None:
        return "you have not trusted it."
    if trusted != trust_hash(groups[place[0]].get("matcher"), _hook_at(groups, place)):
        return "it is not the one that you trusted, or your Codex records trust differently from 0.166."
    return ""


def trust_hash(matcher: object, hook: dict[str, Any], event: str = "pre_tool_use") -> str:
    """Return what Codex records of a hook that is trusted: a digest of all that it does, with the defaults."""
    import hashlib  # lazy: hook

    whole: dict[str, object] = {"event_name": event, "hooks": [{"async": False, **hook}]}
    if matcher is not None:
        whole["matcher"] = matcher
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _is_printed(agent: CodingAgent, matcher: object, entry: dict[str, Any]) -> bool:
    """Tell whether a hook is, to the letter, what `--settings` prints for some options."""
    found = {"hooks": {agent.event: [{"matcher": matcher, "hooks": [entry]}]}}
    # Earlier versions did not know the standby
    for program in (standby_words(), own_words()):
        try:
            words = split(str(entry.get("command")).removesuffix(_OR_STOP))
            given = parse(hook, words[len(program) + 1 :])
            if found == _settings_form(_agent(given), _own_command(given, program)):
                return True
        except (ValueError, UsageError):
            continue
    return False


def _trust_key(path: str, place: tuple[int, int]) -> str:
    return f"{path}:pre_tool_use:{place[0]}:{place[1]}"


def _hook_at(groups: list[dict[str, Any]], place: tuple[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = groups[place[0]]["hooks"][place[1]]
    return found


def _codex_home() -> str:
    """Return where Codex keeps its settings, written as Codex writes it: trust is recorded under that name."""
    given = os.environ.get("CODEX_HOME")
    return os.path.realpath(given) if given else os.path.normpath(os.path.expanduser("~/.codex"))


def _read_groups(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            whole = json.load(file)
    except FileNotFoundError:
        raise UsageError(f"Codex has no hooks: there is no {path}", remedy=_INSTALL) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"Codex can't read {path}, so it calls no hook: {error}", remedy=_INSTALL) from error
    # One field that it does not know, and Codex leaves the whole file out
    unknown = sorted(set(whole) - {"description", "hooks"}) if isinstance(whole, dict) else ["no object"]
    groups = [] if unknown else _table(whole, "hooks").get("PreToolUse", [])
    is_known = isinstance(groups, list) and all(
        isinstance(group, dict)
        and isinstance(group.get("hooks"), list)
        and all(isinstance(hook, dict) for hook in group["hooks"])
        for group in groups
    )
    if unknown or not is_known:
        reason = unknown[0] if unknown else "PreToolUse"
        raise UsageError(f"Codex can't read {path}, so it calls no hook: {reason!a:.60}", remedy=_INSTALL)
    return groups


def _read_config(path: str) -> dict[str, Any]:
    import tomllib  # lazy: hook

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read, so unspill can't tell whether you trust the hook: {error}") from error


def _table(whole: dict[str, Any], name: str) -> dict[str, Any]:
    found = whole.get(name)
    return found if isinstance(found, dict) else {}
