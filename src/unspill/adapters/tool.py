# SPDX-License-Identifier: Apache-2.0
"""The tool `run_command`: its name, what a model is told of it, the schema of its arguments.

One definition for every adapter. The description says what is true of one sandbox: where things are, what is kept,
what the network is, and the bounds. It never names anything of the person's that the sandbox hides.
"""

from __future__ import annotations

from unspill.adapters.seen import seen_in, writable_in
from unspill.policy.paths import show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Literal

    from unspill.adapters.seen import Seen, Writable
    from unspill.model.policy import After, Policy
    from unspill.sandbox.sandbox import Sandbox

    Fate = After | Literal["container"]

NAME = "run_command"

_AFTER = {
    "apply": "what it changes there is applied to the project when it has ended, and the user can undo it",
    "hold": "what it changes there is held: later commands see it, the project has it when the user applies it",
    "discard": "what it changes there is thrown away when it has ended",
}
_GRANTED = {
    "proxy": "reaches any public host, on ports 80 and 443",
    "host": "has the network of the user's machine",
}
_PROXY = (
    "{hosts} are reached through a proxy only, by HTTP, HTTPS or SOCKS; https_proxy and similar variables name it. "
    "Raw sockets, UDP, ping, and programs that do not use the proxy reach nothing."
)


class Tool(Record):
    """What a framework has to know of a tool. `schema` is that of its arguments, as JSON Schema.

    `is_read_only`: it changes nothing of the project or of the sandbox, whatever its arguments are.
    """

    name: str
    description: str
    schema: dict[str, Any]
    is_read_only: bool = False


def run_command_tool(sandbox: Sandbox, name: str = NAME) -> Tool:
    """Return the tool as it is for this sandbox."""
    seen = seen_in(sandbox)
    is_sealed = seen.is_sealed
    files = _files(sandbox) if is_sealed else _files_of_container(show(seen.project))
    network = (
        _network(seen.policy) if is_sealed else ("The command has the network of the container: do not set `network`.",)
    )
    lines = [
        "Run a terminal command in the project's root directory (or specified working directory), return the output.",
        "",
        "File System Permissions:",
        *(f"- {line}" for line in files),
        "",
        "Network Access:",
        *(f"- {line}" for line in network),
        "",
        "Limits:",
        *(f"- {line}" for line in _limits(seen.policy, is_sealed=is_sealed)),
        "",
        "The result begins with how the command ended and what it changed; what follows `Output:` is what it printed.",
        "If the command fails, handle the error gracefully and provide a helpful error message to the user.",
    ]
    return Tool(name=name, description="\n".join(lines), schema=run_schema(sandbox))


def fate_of_changes(sandbox: Sandbox) -> Fate:
    """Return what becomes of what a command changes in the project: what the policy says, if there is a sandbox."""
    seen = seen_in(sandbox)
    return seen.policy.after if seen.is_sealed else "container"


def places_inside(sandbox: Sandbox) -> tuple[str, str]:
    """Return where commands see the project and the playground."""
    seen = seen_in(sandbox)
    return show(seen.project), show(seen.playground)


def make_schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of a tool's arguments: no others than these."""
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _files(sandbox: Sandbox) -> Iterator[str]:
    seen, places = seen_in(sandbox), writable_in(sandbox)
    policy = seen.policy
    yield (
        f"The command runs in a sandbox. It starts in the project directory, {show(seen.project)}, which it can read "
        f"and write; {_AFTER[policy.after]}."
    )
    if seen.further:
        yield f"These can be read and written like the project, and are treated like it: {further_told(seen)}."
    if seen.playground in places.kept:
        playground = show(seen.playground)
        yield f"{playground} can be written too and is kept: a place for experiments, clones and scratch files."
    if b"/tmp" in places.kept:
        yield "/tmp can be written too and is kept from command to command."
    if places.caches:
        yield f"Tool caches can be written too and are kept: {', '.join(map(show, places.caches))}."
    gone = listed([f"the rest of {show(path)}" if path == seen.home else show(path) for path in places.gone])
    yield f"{gone} can be written too, but what is written there is gone when the command has ended."
    if policy.view == "rootfs" and policy.rootfs_writable:
        yield (
            "The directories of the system, such as /usr and /var, can be written as root; what is written there stays "
            "in this sandbox."
        )
    yield f"Everything else is read-only{_visible(seen, places)}"
    if policy.secrets.mask:
        yield "Files of the project with names of secrets, such as .env, are masked: they seem not to exist."


def _visible(seen: Seen, places: Writable) -> str:
    """Return how the sentence goes on that says what can only be read."""
    if places.shows_home:
        return ", the home directory too. What is known to hold credentials is not visible."
    whose = "machine" if seen.policy.view == "rootfs" else "home directory"
    if places.shows_more:
        return f". Little else of the user's {whose} is visible, and only to be read."
    return f". Nothing else of the user's {whose} is visible."


def listed(words: Sequence[str]) -> str:
    """Return words as one reads a list aloud."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def further_told(seen: Seen) -> str:
    """Return the directories besides the project that commands change in layers, as a list."""
    return ", ".join(map(show, seen.further))


def _files_of_container(project: str) -> Iterator[str]:
    yield f"There is no sandbox: the command is a process of a container. It starts in the project, {project}."
    yield "What it changes is changed at once, wherever it is, and can't be undone."


def _network(policy: Policy) -> Iterator[str]:
    network = policy.network
    by_proxy = bool(network.hosts or network.ask)
    if network.hosts:
        yield f"Without asking, only these hosts are reached: {', '.join(network.hosts)}."
    elif network.ask:
        yield "Without asking, no host is reached."
    else:
        yield "By default, there is no access to the network."
    if network.ask:
        which = "any other host" if network.hosts else "each host"
        yield f"The user is asked about {which}, while the command waits for its connection."
    if policy.permissions.network == "deny":
        yield "More than that is not to be had: do not set `network`."
    else:
        by_proxy = by_proxy or network.mode == "proxy"
        yield (
            "If you require it, set `network` to true: the user is asked, for this one command. "
            f"It then {_GRANTED[network.mode]}."
        )
    if by_proxy:
        is_all = network.mode == "proxy" or policy.permissions.network == "deny"
        yield _PROXY.format(hosts="Hosts" if is_all else "Without that, hosts")
    yield "For fetching websites use a tool made for that, if there is one."


def _limits(policy: Policy, *, is_sealed: bool) -> Iterator[str]:
    limits = policy.limits
    if limits.wall_s is not None:
        yield f"A command is ended after {limits.wall_s:g} seconds; `timeout_s` can only make that less."
    if is_sealed and policy.after == "apply" and policy.after_timeout == "hold":
        yield "What a command has changed when its time is over is held, and not applied by itself."
    yield f"Of its output you see at most {policy.shown_lines} lines, from the beginning and from the end."
    if is_sealed:
        yield "Nothing runs on when the command has ended: no background processes, no servers."


def _asked(sandbox: Sandbox) -> str:
    seen = seen_in(sandbox)
    if not seen.is_sealed or seen.policy.permissions.network == "deny":
        return "Leave it false: there is nothing to be asked for."
    return "Whether this command needs the network. The user is asked each time."


def run_schema(sandbox: Sandbox) -> dict[str, Any]:
    """Return the schema of the arguments."""
    seen = seen_in(sandbox)
    wall_s = seen.policy.limits.wall_s
    timeout: dict[str, Any] = {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "End the command after so many seconds.",
    }
    if wall_s is not None:
        timeout["maximum"] = wall_s
        timeout["description"] += " More than the maximum is taken as that."
    properties = {
        "command": {"type": "string", "minLength": 1, "description": "The terminal command to run."},
        "working_dir": {
            "type": "string",
            "description": (
                f"The directory to run it in: absolute, or relative to {show(seen.project)}, which is the default."
                f"{' `playground` is the playground.' if seen.has_playground else ''}"
            ),
        },
        "network": {
            "type": "boolean",
            "default": False,
            "description": _asked(sandbox),
        },
        "timeout_s": timeout,
        "stdin": {"type": "string", "description": "What the command reads from its standard input."},
    }
    return make_schema(properties, "command")
