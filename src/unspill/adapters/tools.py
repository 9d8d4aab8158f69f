# SPDX-License-Identifier: Apache-2.0
"""The tools that an agent is given: their names, descriptions and schemas, and the one way to call them.

    for tool in tools_of(sandbox):
        register(tool.name, tool.description, tool.schema)
    answer = call_tool(sandbox, "read", {"path": "README.md"})

One definition for every adapter. A description says what is true of one sandbox, and never names anything of the
person's that the sandbox hides. A model's arguments can only ask for less than the policy gives; more than that
(`network`, `hosts`, `roots`) goes to the sandbox's approver, who is never the model. `apply` is among the tools only if
the person wants, `output` and `kill` only where the caller has room for background runs. Without a project there is
nothing to review, so the tools for that are left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from unspill.adapters.answers import (
    CHANGES,
    CONTENT,
    DIFF,
    ENTRIES,
    Answer,
    answer_error,
    answer_run,
    own_failure,
    with_interrupted,
)
from unspill.adapters.background import LONGEST_WAIT_S, BackgroundRuns
from unspill.adapters.files import (
    bounded_timeout,
    call_edit,
    call_list,
    call_read,
    call_write,
    places_of,
)
from unspill.adapters.review import MOST_PATHS, call_apply, call_changes, call_diff, call_undo
from unspill.errors import RootRefused, UnspillError, UsageError
from unspill.host.places import find_programs
from unspill.model.plan import Bind, Overlay, ReadOnly, Tmpfs
from unspill.model.rootfs import INSTALLERS, OTHERS, PROGRAM_DIRECTORIES, RUNTIMES
from unspill.plan.view import WORKSPACE, find_cover
from unspill.policy.paths import lies_beneath, show
from unspill.record import Record
from unspill.sandbox.files import MOST_DEPTH, USUAL_ENTRIES, USUAL_LINES
from unspill.sandbox.permits import ask_for_missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from unspill.adapters.answers import Where
    from unspill.adapters.background import JoinedSandbox
    from unspill.adapters.files import Fate, SandboxPlaces
    from unspill.adapters.review import Mine
    from unspill.model.plan import MountOp, Plan
    from unspill.model.policy import Policy
    from unspill.model.run import Event
    from unspill.sandbox.project import Who
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

NAME = "run_command"
_LARGEST = (1 << 53) - 1
_SHOWN = 60
# Of hosts and of directories that one command asks for: a person reads each
_MOST_ASKED = 20
_EMPTY = "{} cannot be empty"
# What models know from the tools of coding agents. Schemas have one name for each
_OTHER_NAMES = {"file_path": "path", "old_string": "old", "new_string": "new"}
_KINDS = {"string": "a text", "boolean": "true or false", "number": "a number", "integer": "a whole number"}
# In the order in which they are told
_TEMPORARY = (b"/tmp", b"/var/tmp", b"/run", b"/dev/shm")

_AFTER = {
    "apply": "What it changes there is applied to the project when it has ended, and the user can undo it",
    "hold": "What it changes there is held: later commands see it, the project has it when the user applies it",
    "discard": "What it changes there is discarded when it has ended",
}
_GRANTED = {
    "proxy": "reaches any public host, on ports 80 and 443",
    "host": "has the network of the user's machine",
}
_DENIED = "Leave it out: the user's policy denies it."
_NOTHING_TO_ASK = "Leave it out: there is no sandbox, and nothing to ask for."
_PROXY = (
    "{hosts} are reached through a proxy only, by HTTP, HTTPS or SOCKS; https_proxy and similar variables name it. "
    "Raw sockets, UDP, ping, and programs that do not use the proxy reach nothing."
)
_CONTAINER_FILES = (
    "There is no sandbox: the command is a process of a container. It starts in the {start}, {project}.",
    "What it changes is changed at once, wherever it is, and can't be undone.",
    "{playground} is kept: a place for experiments, clones and scratch files.",
)
_ASKED_FILES = (
    "No sandbox can be made on this machine. A command runs only if `unsandboxed` is true and the user allows it, each "
    "time. It starts in the {start}, {project}.",
    *_CONTAINER_FILES[1:],
)
_HELD: dict[Fate, str] = {
    "apply": "What commands change is applied to the project at once; only what was not applied is held.",
    "hold": "Everything that commands change in the project is held until the user applies it.",
    "discard": "What commands change in the project is discarded, so nothing is held.",
    "container": "There is no sandbox: what commands change is changed at once, so nothing is held.",
}
_UNDO: dict[Fate, str] = {
    "apply": "Undo what a command or a file tool of yours applied to the project, by default the last operation.",
    "hold": "Undo what a command of yours applied to the project. Only the user applies what is held, "
    "and only the user can undo that: there may be nothing for you to undo.",
    "discard": "Undo what a command of yours applied to the project. What commands change is discarded "
    "here, so there may be nothing for you to undo.",
    "container": "Undo what a command of yours applied to the project. There is no sandbox here, and what "
    "commands change without one can't be undone.",
}
_WRITTEN: dict[Fate, str] = {
    "apply": "What is written in the project is applied to it at once, and can be undone.",
    "hold": "What is written in the project is held: commands see it, the project has it when the user applies it.",
    "discard": "What is written in the project is discarded at once.",
    "container": "There is no sandbox: what is written is changed at once, and can't be undone.",
    "playground": "There is no project: what is written in the playground is kept, and can't be undone.",
}
# Without a project they have nothing to show and nothing to do
_REVIEWING = ("changes", "diff", "undo", "apply")
_OF_BACKGROUND = ("output", "kill")
# What these look at is the same with and without background runs; what those do needs the sandbox for itself
_LOOKING = ("changes", "diff")
_ALONE = ("undo", "apply")


class Tool(Record):
    """What a framework has to know of a tool. `schema` is that of its arguments, as JSON Schema.

    `is_read_only`: it changes nothing of the project or of the sandbox, whatever its arguments are.
    """

    name: str
    description: str
    schema: dict[str, Any]
    is_read_only: bool = False


def tools_of(sandbox: Sandbox, *, may_apply: bool = False, has_background: bool = False) -> tuple[Tool, ...]:
    """Return the tools as they are for this sandbox; `apply` among them only where the person wants that.

    `has_background`: calls are made with `BackgroundRuns`.
    """
    places = places_of(sandbox)
    _run, *others = _names(places, may_apply=may_apply, has_background=has_background)
    run = _run_tool(places, sandbox, has_background=has_background)
    return (run, *(_OTHERS[name][0](places) for name in others))


def _names(places: SandboxPlaces, *, may_apply: bool, has_background: bool) -> list[str]:
    left_out: tuple[str, ...] = _REVIEWING if not places.roots else () if may_apply else ("apply",)
    left_out += () if has_background else _OF_BACKGROUND
    return [name for name in ("run", *_OTHERS) if name not in left_out]


def call_tool(
    sandbox: Sandbox,
    name: str,
    arguments: Mapping[str, Any],
    *,
    on_event: Callable[[Event], None] | None = None,
    cancel_fd: int | None = None,
    approver: Who = None,
    may_apply: bool = False,
    where: Where | None = None,
    is_mine: Mine | None = None,
    background: BackgroundRuns | None = None,
) -> Answer:
    """Do what a model asks for and return what it is told. Nothing is raised for what a model did wrong.

    Args:
        sandbox: Whose tool it is. May be used by several threads at once.
        name: Which tool.
        arguments: What the model gives; nothing of it is believed.
        on_event: Called with what a command prints while it runs.
        cancel_fd: A descriptor that becomes readable to cancel: a run is killed, what has not begun does not happen.
        approver: Who answers for this call, instead of the sandbox's.
        may_apply: As for `tools_of`.
        where: Where the model can read all that a stream of a run had, by the run's number and the stream's name.
        is_mine: Which operations `undo` may take back, of those that runs in this sandbox have applied.
        background: The background runs of this sandbox, if there may be some: then every call is made with them.
    """
    policy, places = sandbox.policy, places_of(sandbox)
    names = _names(places, may_apply=may_apply, has_background=background is not None)
    joined = None
    try:
        if name not in names:
            raise UsageError(f"there is no tool {name!a:.60}", remedy=f"There are {', '.join(names)}.")
        call = _Call(sandbox=sandbox, name=name, arguments=arguments, cancel_fd=cancel_fd, approver=approver)
        call = call.replace(on_event=on_event, where=where, is_mine=is_mine)
        if background is None or name in _LOOKING:
            answer = call.make(background)
        elif name in _OF_BACKGROUND:
            given = check_arguments(_OTHERS[name][0](places).schema, arguments)
            answer = _OTHERS[name][1](background, given, cancel_fd=cancel_fd)
        elif name == "run" and arguments.get("background") is True:
            options = read_arguments(sandbox, arguments, has_background=True)
            answer = background.start(options, cancel_fd)
        else:
            with background.joined(cancel_fd) as joined:
                if joined is not None and name in _ALONE:
                    raise background.refusal(f"`{name}` is not possible beside background runs")
                answer = call.make(background, joined)
        answer = with_interrupted(sandbox, answer)
    except UnspillError as error:
        answer = answer_error(error, policy=policy)
    except OSError as error:
        answer = answer_error(own_failure(error))
    return answer if background is None else background.with_news(answer, joined)


class _Call(Record):
    """A call of a tool, as `call_tool` is given it."""

    sandbox: Sandbox
    name: str
    arguments: Mapping[str, Any]
    cancel_fd: int | None
    approver: Who
    on_event: Callable[[Event], None] | None = None
    where: Where | None = None
    is_mine: Mine | None = None

    def make(self, background: BackgroundRuns | None, joined: JoinedSandbox | None = None) -> Answer:
        """Do it; `joined` is where, while background runs are alive."""
        sandbox, name = self.sandbox, self.name
        # It has all that the tools use of a sandbox
        place: Any = joined or sandbox
        if name == "run":
            options = read_arguments(sandbox, self.arguments, has_background=background is not None)
            more: dict[str, Any] = {"cancel_fd": self.cancel_fd, "approver": self.approver, "on_event": self.on_event}
            result = _run(sandbox, options, **more) if joined is None else joined.run(**options, **more)
            return answer_run(result, policy=sandbox.policy, where=self.where)
        describe, call = _OTHERS[name]
        given = check_arguments(describe(places_of(sandbox)).schema, self.arguments)
        more = {"is_mine": self.is_mine} if name == "undo" else {}
        more |= {"approver": self.approver} if name == "apply" else {}
        return call(place, given, cancel_fd=self.cancel_fd, **more)


def _run(sandbox: Sandbox, options: dict[str, Any], **more: Any) -> RunResult:
    """Run what a model asked for. What it is told of directories does not depend on what the host has there."""
    named = options["roots"]
    if not named or sandbox._project.means.container:
        return sandbox.run(**options, **more, reuse=True)
    try:
        broker = sandbox._broker_of(more["approver"])
        roots = ask_for_missing(sandbox._project, broker, options, more["cancel_fd"])
        return sandbox.run(**{**options, "roots": roots}, **more)
    except RootRefused as error:
        # Others are about directories of the person's that no model has named
        if not any(error.message.startswith(show(os.fsencode(os.path.normpath(root)))) for root in named):
            raise
        raise UsageError(error.message, remedy="Nobody can allow it: do without it.") from error


def run_command_tool(sandbox: Sandbox) -> Tool:
    """Return the tool `run` under its longer name, for an agent that has no other of ours."""
    return _run_tool(places_of(sandbox), sandbox).replace(name=NAME)


def call_run_command(sandbox: Sandbox, arguments: Mapping[str, Any], **options: Any) -> Answer:
    """Run what a model asks for and return what it is told. The options are those of `call_tool`."""
    return call_tool(sandbox, "run", arguments, **options)


def read_arguments(sandbox: Sandbox, arguments: Mapping[str, Any], *, has_background: bool = False) -> dict[str, Any]:
    """Return the arguments of `Sandbox.run` that a model's arguments mean.

    Raises:
        UsageError: one of them is unknown, missing or of another kind.
    """
    given = check_arguments(_run_schema(places_of(sandbox), has_background=has_background), arguments)
    command = given["command"]
    if not command.strip():
        raise UsageError(_EMPTY.format("Command"))
    stdin = given.get("stdin")
    return {
        "command": command,
        "working_dir": given.get("working_dir") or None,
        "network": given.get("network", False),
        "hosts": given.get("hosts", []),
        "roots": given.get("roots", []),
        "unsandboxed": given.get("unsandboxed", False),
        "timeout": bounded_timeout(sandbox, given.get("timeout_s")),
        "stdin": None if stdin is None else stdin.encode("utf-8", "surrogateescape"),
    }


def _by_our_names(known: Mapping[str, Any], arguments: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return arguments by the names that we have for them, where a model uses those of other tools.

    Raises:
        UsageError: one of them is given under both names.
    """
    others = {other: name for other, name in _OTHER_NAMES.items() if other in arguments and name in known}
    for other, name in others.items():
        if arguments[other] is not None and arguments.get(name) is not None:
            raise UsageError(f"{other} and {name} are the same argument", remedy=f"Leave {other} out.")
    ours = {name: value for name, value in arguments.items() if name not in others}
    return {**ours, **{name: arguments[other] for other, name in others.items() if arguments[other] is not None}}


def check_arguments(schema: dict[str, Any], arguments: object) -> dict[str, Any]:
    """Return the arguments that were given, each checked against the schema; null is as if it was not given.

    Only what our schemas use is known here. A number above its maximum is taken as that: it is a bound of the person's,
    and a model that asks for more gets that.

    Raises:
        UsageError: one of them is unknown, missing, or not what the schema says.
    """
    if not isinstance(arguments, Mapping):
        raise UsageError(f"the arguments are not an object: {_shown(arguments)}")
    known = schema["properties"]
    arguments = _by_our_names(known, arguments)
    for name in arguments:
        if name not in known:
            there_are = f"There are {', '.join(known)}." if known else "There are none."
            raise UsageError(f"there is no argument {_shown(name)}", remedy=there_are)
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in schema.get("required", ()):
        if name not in given:
            raise UsageError(f"the argument {name} is missing")
    return {name: _checked(name, known[name], value) for name, value in given.items()}


def _checked(name: str, schema: dict[str, Any], value: object) -> Any:
    found = _of_kind(schema, value)
    if found is None:
        kind = _KINDS.get(schema["type"]) or f"a list of at most {schema['maxItems']} texts"
        raise UsageError(f"the argument {name} must be {kind}: {_shown(value)}")
    match schema["type"]:
        case "integer" if not schema["minimum"] <= found <= schema["maximum"]:
            bounds = f"from {schema['minimum']} to {schema['maximum']}"
            raise UsageError(f"the argument {name} must be {bounds}: {_shown(value)}")
        case "number" if "exclusiveMinimum" in schema and not found > schema["exclusiveMinimum"]:
            raise UsageError(f"{name} must be more than {schema['exclusiveMinimum']}: {_shown(value)}")
        case "number" if "maximum" in schema:
            return min(found, schema["maximum"])
        case "string" if len(found) < schema.get("minLength", 0):
            raise UsageError(_EMPTY.format(name.capitalize()))
    return found


def _of_kind(schema: dict[str, Any], value: object) -> Any:
    """Return the value if it is of the schema's type, None if it is not."""
    match schema["type"]:
        case "string":
            return value if _is_text(value) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "number":
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "integer" if isinstance(value, float) and value.is_integer():
            return int(value)
        case "integer":
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        case _ if isinstance(value, list) and len(value) <= schema["maxItems"]:
            return value if all(map(_is_text, value)) else None
    return None


def _is_text(value: object) -> bool:
    """Tell whether it is a text without halves of characters, but for those that stand for bytes that are not UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """Return a value as it is told back: on one line, not at length, whatever it is."""
    try:
        return f"{value!a:.{_SHOWN}}"
    except (ValueError, RecursionError):
        return "something too long to be told"


def _run_tool(places: SandboxPlaces, sandbox: Sandbox, *, has_background: bool = False) -> Tool:
    policy, is_sealed = places.policy, places.is_sealed
    if is_sealed:
        files, network = [*_files(places, sandbox)], [*_network(policy)]
    else:
        shown = {"start": places.start, "project": show(places.project), "playground": show(places.playground)}
        files = [f"- {line}".format_map(shown) for line in (_ASKED_FILES if places.is_asked else _CONTAINER_FILES)]
        whose = "user's machine" if places.is_asked else "container"
        network = [f"The command has the network of the {whose}: do not set `network`."]
    start = "project's root directory" if places.roots else "playground"
    changed = " and what it changed" if places.roots else ""
    lines = [
        f"Run a terminal command in the {start} (or specified working directory) and return the output.",
        "",
        "File System Permissions:",
        *files,
        "",
        "Network Access:",
        *(f"- {line}" for line in network),
        "",
        "Limits:",
        *(f"- {line}" for line in _limits(places, has_background=has_background)),
        "",
        f"The result begins with how the command ended{changed}; what follows `Output:` is what it printed.",
        "If the command fails, you should handle the error gracefully and provide a helpful error message to the user.",
    ]
    schema = _run_schema(places, has_background=has_background)
    return Tool(name="run", description="\n".join(lines), schema=schema)


def _run_schema(places: SandboxPlaces, *, has_background: bool = False) -> dict[str, Any]:
    wall_s = places.policy.limits.wall_s
    timeout: dict[str, Any] = {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "End the command after so many seconds.",
    }
    if wall_s is not None:
        timeout["maximum"] = wall_s
        timeout["description"] += " More than the maximum is taken as that."
    playground = f' Special case: "playground" is {show(places.playground)}.' if places.has_playground else ""
    where = f"project directory, {show(places.project)}.{playground}" if places.roots else f"playground.{playground}"
    properties = {
        "command": _text("The terminal command to run.", minLength=1),
        "working_dir": _text(
            "The working directory where the command will be executed: an absolute path, or one relative to the "
            f"{places.start}. Defaults to the {where}"
        ),
        "network": _flag(
            _asked(
                places, "network", "Whether to allow network access. Defaults to false. The user is asked each time."
            ),
            default=False,
        ),
        "hosts": _texts(
            _asked(
                places,
                "egress",
                "Hosts that the command must reach, such as `example.org` or `example.org:8443`: less than `network`. "
                "The user is asked.",
            ),
            most=_MOST_ASKED,
        ),
        "roots": _texts(
            _asked(
                places,
                "roots",
                "Directories outside the project that the command must change, as absolute paths. The user is asked "
                "about each. What it changes there is treated like the project.",
            ),
            most=_MOST_ASKED,
        ),
        "timeout_s": timeout,
        "stdin": _text("What the command reads from its standard input."),
    }
    if not places.roots:
        # A directory is changed for a project, or not at all
        del properties["roots"]
    if has_background:
        properties["background"] = _flag(
            "Whether to return at once, with the number of the run, while the command goes on.", default=False
        )
    if places.is_asked:
        asked = "Whether to ask the user to run this command without a sandbox. Nothing runs otherwise."
        properties["unsandboxed"] = _flag(asked, default=False)
    return _schema(properties, "command")


def _asked(places: SandboxPlaces, setting: str, words: str) -> str:
    """Return what is said of an argument that asks for more: its words, unless there is nobody to ask for it."""
    if not places.is_sealed:
        return _NOTHING_TO_ASK
    return _DENIED if getattr(places.policy.permissions, setting) == "deny" else words


def _output_tool(places: SandboxPlaces) -> Tool:
    policy = places.policy
    return Tool(
        name="output",
        description=(
            "Show what a background run has printed, and whether it has ended. "
            f"At most {policy.shown_lines} lines and {policy.shown_bytes} bytes are returned, and you are told where "
            "to go on. What follows `Output:` is what it printed."
        ),
        schema=_schema(
            {
                "run": _number("Which run, by its number."),
                "offset": _number("Where to begin: how many bytes to skip.", least=0, default=0),
                "wait_s": _number(
                    "How many seconds to wait for something new.", least=0, most=LONGEST_WAIT_S, default=0
                ),
            },
            "run",
        ),
        is_read_only=True,
    )


def _kill_tool(_places: SandboxPlaces) -> Tool:
    return Tool(
        name="kill",
        description=(
            "End a background run, and return how it ended and what it changed. "
            "It gets SIGTERM, and SIGKILL two seconds later."
        ),
        schema=_schema({"run": _number("Which run, by its number.")}, "run"),
    )


def _changes_tool(places: SandboxPlaces) -> Tool:
    return Tool(
        name="changes",
        description=(
            "List what is held in the sandbox: changes that later commands see and the project does not have. "
            f"{_HELD[places.fate]} {_bounds(places.policy)} What follows `{CHANGES}` is one line for each path: "
            "A added, M modified, D deleted, T of another type, m with other metadata."
        ),
        schema=_schema({"run": _number("Only what this run changed."), "offset": _offset()}),
        is_read_only=True,
    )


def _diff_tool(places: SandboxPlaces) -> Tool:
    is_masked = places.policy.secrets.mask
    secrets = " What files with names of secrets have, such as .env, is not shown." if is_masked else ""
    return Tool(
        name="diff",
        description=(
            "Show what is held in the sandbox, or what one run or one operation of it changed, as unified diffs."
            f"{secrets} {_bounds(places.policy)} What follows `{DIFF}` is from the files."
        ),
        schema=_schema(
            {
                "paths": _paths(),
                "run": _number("Show what this run changed, if it is held."),
                "operation": _number("Show what this operation changed in the project."),
                "offset": _offset(),
            }
        ),
        is_read_only=True,
    )


def _bounds(policy: Policy) -> str:
    return (
        f"At most {policy.shown_lines} lines and {policy.shown_bytes} bytes are returned, and you are told where the "
        "rest begins."
    )


def _undo_tool(places: SandboxPlaces) -> Tool:
    return Tool(
        name="undo",
        description=(
            f"{_UNDO[places.fate]} Files that changed since are skipped, and you are told why. "
            "Only the user can undo or redo what the user did."
        ),
        schema=_schema({"operation": _number("Which operation, by its number.")}),
    )


def _apply_tool(_places: SandboxPlaces) -> Tool:
    return Tool(
        name="apply",
        description=(
            "Apply what is held to the project, or a part of it. The user is asked about each file that runs by itself "
            "or holds secrets. Files that changed in the project meanwhile are skipped, and you are told why."
        ),
        schema=_schema({"paths": _paths()}),
    )


def _read_tool(places: SandboxPlaces) -> Tool:
    return Tool(
        name="read",
        description=(
            f"Read a text file as commands see it. At most {USUAL_LINES} lines and "
            f"{places.policy.shown_bytes} bytes are returned, and you are told where the rest begins. "
            f"What follows `{CONTENT}` is what the file has."
        ),
        schema=_schema(
            {"path": _path(places, "file"), "offset": _offset(), "limit": _limit("lines", USUAL_LINES)}, "path"
        ),
        is_read_only=True,
    )


def _list_tool(places: SandboxPlaces) -> Tool:
    return Tool(
        name="list",
        description=(
            "List a directory as commands see it, sorted; links in it are not followed. "
            f"At most {USUAL_ENTRIES} entries are returned, and you are told where the rest begins. "
            f"What follows `{ENTRIES}` are the names, directories with a `/` behind them."
        ),
        schema=_schema(
            {
                "path": {**_path(places, "directory"), "default": "."},
                "depth": _number("How many levels of directories to list.", most=MOST_DEPTH, default=1),
                "offset": _offset("entries"),
                "limit": _limit("entries", USUAL_ENTRIES),
            }
        ),
        is_read_only=True,
    )


def _write_tool(places: SandboxPlaces) -> Tool:
    return Tool(
        name="write",
        description=(
            f"Write a whole file, as a command would, and make the directories that it lies in. {_writable(places)}"
        ),
        schema=_schema(
            {
                "path": _path(places, "file"),
                "content": _text("All that the file shall have."),
                "replace": _flag("If false, a file that exists already is an error, and stays as it is.", default=True),
            },
            "path",
            "content",
        ),
    )


def _edit_tool(places: SandboxPlaces) -> Tool:
    return Tool(
        name="edit",
        description=(
            "Replace a text of a file by another, as a command would. The text must be there exactly "
            f"once, unless `replace_all` is set. {_writable(places)}"
        ),
        schema=_schema(
            {
                "path": _path(places, "file"),
                "old": _text("The text to replace, exactly as it stands in the file.", minLength=1),
                "new": _text("What to put there."),
                "replace_all": _flag("Replace it wherever it is.", default=False),
            },
            "path",
            "old",
            "new",
        ),
    )


# Besides `run`, in the order in which they are listed: what a model is told of a tool, and what it does
_OTHERS: dict[str, tuple[Callable[[SandboxPlaces], Tool], Callable[..., Answer]]] = {
    "output": (_output_tool, BackgroundRuns.output),
    "kill": (_kill_tool, BackgroundRuns.kill),
    "changes": (_changes_tool, call_changes),
    "diff": (_diff_tool, call_diff),
    "undo": (_undo_tool, call_undo),
    "read": (_read_tool, call_read),
    "write": (_write_tool, call_write),
    "list": (_list_tool, call_list),
    "edit": (_edit_tool, call_edit),
    "apply": (_apply_tool, call_apply),
}


def _schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of a tool's arguments: no others than these."""
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _text(description: str, **bounds: int) -> dict[str, Any]:
    return {"type": "string", **bounds, "description": description}


def _flag(description: str, *, default: bool) -> dict[str, Any]:
    return {"type": "boolean", "default": default, "description": description}


def _number(description: str, *, least: int = 1, most: int = _LARGEST, **default: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most, **default, "description": description}


def _offset(what: str = "lines") -> dict[str, Any]:
    return _number(f"How many {what} to skip.", least=0, default=0)


def _limit(what: str, most: int) -> dict[str, Any]:
    return _number(f"How many {what} to return at most.", most=most, default=most)


def _paths() -> dict[str, Any]:
    return _texts("Only these files and directories, relative to the project.", most=MOST_PATHS)


def _texts(description: str, *, most: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "maxItems": most, "description": description}


def _path(places: SandboxPlaces, kind: str) -> dict[str, Any]:
    is_apart = places.has_playground and places.playground != places.project
    playground = f" The playground is {show(places.playground)}." if is_apart else ""
    where = f"The {kind}: absolute, or relative to the {places.start}, {show(places.project)}.{playground}"
    return _text(where, minLength=1)


def _writable(places: SandboxPlaces) -> str:
    """Return where file tools can write, and what becomes of that."""
    fate = places.fate
    if fate == "container":
        return _WRITTEN[fate]
    is_apart = places.has_playground and places.playground != places.project
    paths = [places.project, *([places.playground] if is_apart else [])]
    paths += [b"/tmp"] if places.policy.tmp == "persistent" else []
    told = [*map(show, paths), *(["the directories of the system"] if places.policy.rootfs_writable else [])]
    further = f" So can {_comma(places.further)}, treated like the project." if places.further else ""
    return (
        f"{_listed(told)} can be written.{further} What is written elsewhere is refused, or may be gone before the "
        f"next command. {_WRITTEN[fate]}"
    )


def _files(places: SandboxPlaces, sandbox: Sandbox) -> Iterator[str]:
    policy, plan = places.policy, _next_plan(sandbox)
    writable = _expected(places) if plan is None else _planned(places, plan.mounts)
    start = (
        "It normally works in the project directory"
        if places.roots
        else "There is no project: it starts in the playground"
    )
    yield f"- The command runs in a sandbox. {start} and has read-write access to:"
    yield from (f"  - {line}." for line in _writable_places(places, writable))
    whose = "machine" if policy.view == "rootfs" else "home directory"
    if writable.shows_home:
        seen = ", the home directory too. What is known to hold credentials is not visible."
    elif writable.shows_more:
        seen = f". Little else of the user's {whose} is visible, and only to be read."
    else:
        seen = f". Nothing else of the user's {whose} is visible."
    yield f"- Everything else is read-only{seen}"
    if policy.permissions.roots == "ask" and places.roots:
        yield "- If the command must change another directory, name it in `roots`: the user is asked."
    if policy.secrets.mask and places.roots:
        yield "- Files of the project with names of secrets, such as .env, are masked: they seem not to exist."
    if policy.view == "rootfs":
        home = f"the project directory, {show(places.project)}" if places.roots else f"{show(WORKSPACE)}, and not kept"
        yield f"- HOME is {home}."
        names = (*RUNTIMES, *INSTALLERS, *OTHERS)
        found = () if plan is None else find_programs(plan.rootfs, PROGRAM_DIRECTORIES, names)
        has = f" with {', '.join(found)}" if found else ""
        yield (
            f"- The system is not the user's but a root file system of its own{has}. "
            f"`command -v NAME` tells whether it has {'another' if found else 'a'} program."
        )
    else:
        kept = "It is not kept, apart from what is named above." if not writable.shows_home else "It is read-only."
        yield f"- HOME is {show(places.home)}. {kept}"


def _writable_places(places: SandboxPlaces, writable: _Writable) -> Iterator[str]:
    """Yield each place that a command can write, and what becomes of what it writes there."""
    policy = places.policy
    if places.roots:
        yield f"The project directory, {show(places.project)}. {_AFTER[policy.after]}"
    if places.further:
        yield f"{_comma(places.further)}, treated like the project"
    if places.playground in writable.kept:
        playground = show(places.playground)
        yield f"{playground} (playground directory for experiments, clones and scratch files), which is kept"
    if b"/tmp" in writable.kept:
        yield "/tmp, which is kept from command to command"
    if writable.caches:
        yield f"Tool caches, which are kept: {_comma(writable.caches)}"
    gone = _listed([f"the rest of {show(path)}" if path == places.home else show(path) for path in writable.gone])
    yield f"{gone}, but what is written there is gone when the command has ended"
    if policy.view == "rootfs" and policy.rootfs_writable:
        yield (
            "The directories of the system, such as /usr and /var, as root. What is written there stays in this sandbox"
        )


def _listed(words: Sequence[str]) -> str:
    """Return words as one reads a list aloud."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _comma(paths: Sequence[bytes]) -> str:
    return ", ".join(map(show, paths))


def _network(policy: Policy) -> Iterator[str]:
    network = policy.network
    by_proxy = bool(network.hosts or network.ask)
    if network.hosts:
        yield f"Without asking, only these hosts are reached: {', '.join(network.hosts)}."
    elif network.ask:
        yield "Without asking, no host is reached."
    else:
        yield "By default, this tool does not have access to the network."
    if network.ask:
        which = "any other host" if network.hosts else "each host"
        yield f"The user is asked about {which}, while the command waits for its connection."
    stances = policy.permissions
    if stances.egress == "ask":
        by_proxy = True
        yield "If you require access to some hosts only, name them in `hosts`: the user is asked."
    if stances.network == "ask":
        by_proxy = by_proxy or network.mode == "proxy"
        yield (
            "If you require access to the network, you must set the `network` parameter to `true`: the user is asked, "
            f"for this one command. It then {_GRANTED[network.mode]}."
        )
    elif stances.egress == "deny":
        yield "More than that is not to be had: do not set `network` or `hosts`."
    if by_proxy:
        is_all = network.mode == "proxy" or stances.network == "deny"
        yield _PROXY.format(hosts="Hosts" if is_all else "Without that, hosts")
    yield "For fetching websites or web content, you should use a tool made for that instead, if there is one."


def _limits(places: SandboxPlaces, *, has_background: bool) -> Iterator[str]:
    policy, limits = places.policy, places.policy.limits
    if limits.wall_s is not None:
        yield f"A command is ended after {limits.wall_s:g} seconds; `timeout_s` can only make that less."
    if places.fate == "apply" and policy.after_timeout == "hold":
        yield "What a command has changed when its time is over is held, and not applied by itself."
    yield f"Of its output you see at most {policy.shown_lines} lines, from the beginning and from the end."
    if has_background:
        yield (
            "Nothing runs on when the command has ended. For a server or a watcher set `background`: it goes on until "
            "`kill`, beside your other commands, which see its files and reach its ports on 127.0.0.1."
        )
    elif places.is_sealed:
        yield "Nothing runs on when the command has ended: no background processes, no servers."


class _Writable(Record):
    """Where a command can write besides the roots.

    What is in `kept` and in `caches` is there for the next command, what is in `gone` is not. `shows_home`: all of the
    user's home directory is visible; `shows_more`: something of it, or of the user's machine, besides the project.
    """

    kept: tuple[bytes, ...]
    gone: tuple[bytes, ...]
    caches: tuple[bytes, ...] = ()
    shows_home: bool = False
    shows_more: bool = False


def _next_plan(sandbox: Sandbox) -> Plan | None:
    """Return the plan of the next command; None where there is no rootfs yet, and the first command has it made."""
    try:
        return sandbox.plan(["true"])
    except UnspillError:
        return None


def _planned(places: SandboxPlaces, mounts: Sequence[MountOp]) -> _Writable:
    policy, home = places.policy, places.home
    closed = {op.dest for op in mounts if isinstance(op, ReadOnly)}
    fresh = [op.dest for op in mounts if isinstance(op, Tmpfs) and op.dest not in closed]
    shown = [op.dest for op in mounts if isinstance(op, Bind | Overlay) and not _is_written(op)]
    changed = {places.inside(root) for root in places.roots}
    caches = [op.dest for op in mounts if isinstance(op, Overlay) and _is_written(op) and op.dest not in changed]
    shows_machine = policy.view == "rootfs" and bool(policy.mounts or policy.readable)
    return _Writable(
        kept=tuple(op.dest for op in mounts if isinstance(op, Bind) and op.writable),
        gone=(*(path for path in _TEMPORARY if path in fresh), *(path for path in fresh if path not in _TEMPORARY)),
        caches=tuple(path for path in caches if lies_beneath(path, home)),
        shows_home=policy.view == "host" and isinstance(find_cover(mounts, home), Overlay),
        shows_more=any(lies_beneath(path, home) for path in shown) or shows_machine,
    )


def _is_written(operation: Bind | Overlay) -> bool:
    return operation.writable if isinstance(operation, Bind) else operation.upper is not None


def _expected(places: SandboxPlaces) -> _Writable:
    """Return what the policy alone says."""
    policy = places.policy
    is_kept, is_sealed = policy.tmp == "persistent", policy.view == "sealed"
    is_gone = {b"/tmp": not is_kept, b"/var/tmp": not policy.rootfs_writable, places.home: is_sealed}
    return _Writable(
        kept=(places.playground, *((b"/tmp",) if is_kept else ())),
        gone=tuple(path for path in (*_TEMPORARY, places.home) if is_gone.get(path, True)),
        shows_home=policy.view == "host",
        shows_more=bool(policy.mounts or policy.readable),
    )
