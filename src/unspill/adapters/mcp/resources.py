# SPDX-License-Identifier: Apache-2.0
"""What clients can reach: the projects that the operator offers, their tools, and resources to read.

    unspill://runs/7/stdout   unspill://runs/7/stderr   unspill://changes/diff

With several projects an address begins with `unspill://projects/NAME/`, and each tool takes an argument `project` more.
A client chooses among the projects and never adds one: the roots that it names are not read. It can read the output of
this server's calls only, for others use the sandbox too, and the person may have shown their own runs more.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from mcp_types import Resource, ResourceLink, ResourceTemplate, TextResourceContents, Tool, ToolAnnotations

from unspill.adapters.answers import whole_characters
from unspill.adapters.files import places_of
from unspill.adapters.review import held_diff
from unspill.adapters.tools import tools_of
from unspill.errors import UsageError
from unspill.model.run import Output, OutputChunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_types import BlobResourceContents

    from unspill.adapters import tools as our_tools
    from unspill.adapters.answers import Answer
    from unspill.model.run import Event, StreamName
    from unspill.sandbox.sandbox import Sandbox

PART = 128 * 1024
_SCHEME = "unspill"
# Claude Code would otherwise keep tools back until a model searches for them
_ALWAYS = {"anthropic/alwaysLoad": True}
_PROJECT = "project"
_STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
_PLAIN = "text/plain"
_MOST_KEPT = 32 * 1024 * 1024
_WIDEST = {"maximum": max, "minimum": min}
_DIFFERING = {"minimum": "At least", "maximum": "At most", "default": "By default"}


class Projects:
    """Sandboxes by the name of their project. `default` is the one that is meant where none is named, if there is."""

    def __init__(
        self, sandboxes: Sequence[Sandbox], *, default: Sandbox | None = None, may_apply: bool = False
    ) -> None:
        """Name them.

        Raises:
            UsageError: there is none, or one is there twice.
        """
        if not sandboxes:
            raise UsageError("there is no project to serve", remedy="Name one: --project DIR")
        self.may_apply = may_apply
        # A tool is there for all of them or for none
        self.has_background = all(sandbox._project.means.has_live for sandbox in sandboxes)
        self._named = name_all(sandboxes)
        self._default = sandboxes[0] if len(sandboxes) == 1 else default

    @property
    def named(self) -> Mapping[str, Sandbox]:
        """All of them."""
        return self._named

    @property
    def is_one(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self._named) == 1

    def name_of(self, sandbox: Sandbox) -> str:
        """Return the name of one."""
        return next(name for name, known in self._named.items() if known is sandbox)

    def find(self, name: object) -> Sandbox:
        """Return the sandbox that a name means, or the default where there is no name.

        Raises:
            UsageError: it means none.
        """
        if name is None and self._default is not None:
            return self._default
        found = self._named.get(name) if isinstance(name, str) else None
        if found is None:
            problem = "which project?" if name is None else f"there is no project {name!a:.80}"
            raise UsageError(problem, remedy=f"`{_PROJECT}` is one of: {', '.join(self._named)}.")
        return found

    def choose(self, arguments: Mapping[str, Any]) -> tuple[Sandbox, dict[str, Any]]:
        """Return the sandbox that the arguments of a tool mean, and what is left of them for the tool."""
        if self.is_one:
            return self.find(None), dict(arguments)
        rest = dict(arguments)
        return self.find(rest.pop(_PROJECT, None)), rest

    def tools(self) -> list[Tool]:
        """Return what a client is told of the tools."""
        options = {"may_apply": self.may_apply, "has_background": self.has_background}
        boxes = {name: tools_of(sandbox, **options) for name, sandbox in self._named.items()}
        columns = zip(*boxes.values(), strict=True)
        return [self._tool(dict(zip(boxes, tools, strict=True))) for tools in columns]

    def _tool(self, tools: Mapping[str, our_tools.Tool]) -> Tool:
        first = next(iter(tools.values()))
        schemas = {name: one.schema for name, one in tools.items()}
        return Tool(
            name=first.name,
            description=_description(tools),
            input_schema=first.schema if self.is_one else self._with_project(join_schemas(schemas)),
            annotations=ToolAnnotations(
                read_only_hint=first.is_read_only,
                # In the project it can be undone; the playground and whatever the network leads to have no undo
                destructive_hint=not first.is_read_only,
                open_world_hint=first.name == "run" and any(map(_has_world, self._named.values())),
            ),
            _meta=_ALWAYS,
        )

    def _with_project(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        said = {"type": "string", "enum": list(self._named), "description": "The project that it is about."}
        required = list(schema.get("required", ()))
        if self._default is None:
            required.insert(0, _PROJECT)
        else:
            said["default"] = self.name_of(self._default)
        return {**schema, "properties": {_PROJECT: said, **schema["properties"]}, "required": required}


def name_all(sandboxes: Sequence[Sandbox]) -> dict[str, Sandbox]:
    """Return sandboxes by the last part of their project's path, or by all of it if two share that part.

    Raises:
        UsageError: one is there twice.
    """
    short = [os.path.basename(sandbox.project) for sandbox in sandboxes]
    named: dict[str, Sandbox] = {}
    for sandbox, name in zip(sandboxes, short, strict=True):
        word = (name if short.count(name) == 1 else sandbox.project).decode("utf-8", "backslashreplace")
        if word in named:
            raise UsageError(f"a project is named twice: {word!a}")
        named[word] = sandbox
    return named


def _description(tools: Mapping[str, our_tools.Tool]) -> str:
    texts = {one.description for one in tools.values()}
    if len(texts) == 1:
        return next(iter(texts))
    return "\n\n".join(f"In project {name}:\n{one.description}" for name, one in tools.items())


def _has_world(sandbox: Sandbox) -> bool:
    policy = sandbox.policy
    if not places_of(sandbox).is_sealed:
        return True
    stances = (policy.permissions.network, policy.permissions.egress)
    return bool(policy.network.hosts or policy.network.ask or "ask" in stances)


def join_schemas(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one schema for all projects, given each project's: what is true of all, and by name where they differ.

    A bound is the widest one; a call is checked against the schema of its own project.
    """
    first = next(iter(schemas.values()))
    properties = {
        key: _join({name: schema["properties"][key] for name, schema in schemas.items() if key in schema["properties"]})
        for key in first["properties"]
    }
    return {**first, "properties": properties}


def _join(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one argument: as it is where all say the same of it."""
    each = list(given.values())
    first = each[0]
    if all(one == first for one in each):
        return dict(first)
    joined = {key: value for key, value in first.items() if all(one.get(key) == value for one in each)}
    for key, widest in _WIDEST.items():
        if key not in joined and all(key in one for one in each):
            joined[key] = widest(one[key] for one in each)
    differing = [key for key in _DIFFERING if len({one.get(key) for one in each}) > 1]
    return {**joined, "description": " ".join(_told(given, differing))}


def _told(given: Mapping[str, Mapping[str, Any]], differing: Sequence[str]) -> Iterator[str]:
    texts = {name: str(one.get("description", "")) for name, one in given.items()}
    is_same = len(set(texts.values())) == 1
    if is_same:
        yield next(iter(texts.values()))
    for name, one in given.items():
        said = [] if is_same else [texts[name]]
        said += [f"{_DIFFERING[key]} {_shown(one[key])}." for key in differing if key in one]
        if said:
            yield f"In project {name}: {' '.join(said)}"


def _shown(value: object) -> str:
    return format(value, "g") if isinstance(value, float) else str(value)


def list_resources(projects: Projects) -> list[Resource]:
    """Return what is always there."""
    return [
        Resource(
            uri=f"{prefix_of(projects, sandbox)}changes/diff",
            name="changes/diff" if projects.is_one else f"{name}: changes/diff",
            description="What commands changed and the project does not have yet, as a unified diff.",
            mime_type="text/x-diff",
        )
        for name, sandbox in projects.named.items()
        if places_of(sandbox).roots
    ]


def list_templates(projects: Projects) -> list[ResourceTemplate]:
    """Return the addresses of what runs printed."""
    prefix = f"{_SCHEME}://" if projects.is_one else f"{_SCHEME}://projects/{{project}}/"
    return [
        ResourceTemplate(
            uri_template=f"{prefix}runs/{{number}}/{stream}{{?start}}",
            name=f"{stream} of a run",
            description=f"What a command of this server printed to {stream}, as far as it was kept, from `start` on.",
            mime_type=_PLAIN,
        )
        for stream in _STREAMS
    ]


def prefix_of(projects: Projects, sandbox: Sandbox) -> str:
    """Return how the addresses of a project's resources begin."""
    if projects.is_one:
        return f"{_SCHEME}://"
    return f"{_SCHEME}://projects/{quote(projects.name_of(sandbox), safe='')}/"


def is_address(given: object) -> bool:
    """Tell whether something is the address of a resource, where a path is expected."""
    return isinstance(given, str) and given.startswith(f"{_SCHEME}://")


def link_to(prefix: str, run: int, stream: str) -> ResourceLink:
    """Return where all that was kept of a run's output is, for an answer that does not show all of it."""
    return ResourceLink(
        uri=f"{prefix}runs/{run}/{stream}",
        name=f"{stream} of run {run}",
        description=f"What it printed to {stream}, as far as it was kept.",
        mime_type=_PLAIN,
    )


def read_resource(
    projects: Projects, history: CallHistory, uri: str
) -> list[TextResourceContents | BlobResourceContents]:
    """Return a part of a resource, and what to read next.

    Raises:
        UsageError: there is no such resource.
    """
    try:
        split = urlsplit(uri)
    except ValueError:
        raise _unknown(uri) from None
    words = [unquote(word) for word in f"{split.netloc}{split.path}".split("/")]
    start = _start_of(split.query, uri)
    sandbox = projects.find(None) if projects.is_one else None
    if not projects.is_one and len(words) > 2 and words[0] == "projects":
        sandbox, words = projects.find(words[1]), words[2:]
    if split.scheme != _SCHEME or sandbox is None:
        raise _unknown(uri)
    address = uri.partition("?")[0]
    match words:
        case ["changes", "diff"]:
            text, notes = held_diff(sandbox)
            whole = text.encode("utf-8", "surrogateescape")
            part = whole[start : start + PART]
            return list(_parts(address, "text/x-diff", start, part, start, start + len(part), len(whole), notes))
        case ["runs", number, ("stdout" | "stderr") as stream] if _is_number(number):
            if not history.has_run(sandbox, int(number)):
                raise _unknown(uri, "Only what commands of this server have printed can be read.")
            found = sandbox.find_run(int(number))
            output = found.stdout if stream == "stdout" else found.stderr
            kept = history.printed(sandbox, found.number, stream) if output.left_out and output.file is None else None
            output = output if kept is None else Output(head=kept)
            return list(_parts(address, _PLAIN, start, *_read(output, start)))
    raise _unknown(uri)


def _read(output: Output, start: int) -> tuple[bytes, int, int, int]:
    """Return what was kept from a byte on, where the next part begins, and how many bytes there were."""
    total = output.total
    if output.file is not None:
        with contextlib.suppress(OSError):
            fd = os.open(output.file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                part, kept = os.pread(fd, PART, start), os.fstat(fd).st_size
            finally:
                os.close(fd)
            if start < kept:
                return part, start, start + len(part), total
    if not output.left_out:
        output = Output(head=output.kept())
    tail_at = total - len(output.tail)
    if start < len(output.head):
        part = output.head[start : start + PART]
        return part, start, start + len(part), total
    begin = max(start, tail_at)
    part = output.tail[begin - tail_at : begin - tail_at + PART]
    return part, begin, begin + len(part), total


def _parts(
    address: str, kind: str, asked: int, part: bytes, start: int, end: int, total: int, notes: Sequence[str] = ()
) -> Iterator[TextResourceContents]:
    """Yield the part that begins at `start`, and what there is to say of it where it is not all."""
    if end < total:
        # What goes on in the next part is left to it, unless there is nothing else
        part = whole_characters(part) or part
        end = start + len(part)
    uri = f"{address}?start={start}" if start else address
    yield TextResourceContents(uri=uri, mime_type=kind, text=part.decode("utf-8", "backslashreplace"))
    follows = f"{address}?start={end}" if end < total else ""
    said = [f"Bytes {asked} to {start} were not kept."] if start > asked else []
    said += [f"What follows is {follows}"] if follows else []
    said = [*notes, *([f"Bytes {start} to {end} of {total} are above.", *said] if said else [])]
    if said:
        yield TextResourceContents(uri=follows or address, mime_type=_PLAIN, text=" ".join(said))


def _start_of(query: str, uri: str) -> int:
    if not query:
        return 0
    values = parse_qs(query, keep_blank_values=True)
    text = values.get("start", [""])[0]
    if set(values) != {"start"} or not _is_number(text):
        raise _unknown(uri)
    return int(text)


def _is_number(text: str) -> bool:
    """Tell whether it is one that the store could have, and that Python reads."""
    return text.isascii() and text.isdigit() and len(text) < 16


def _unknown(uri: str, remedy: str = "See resources/templates/list.") -> UsageError:
    return UsageError(f"there is no such resource: {uri!a:.120}", remedy=remedy)


class OutputBuffer:
    """All that one run prints, up to a bound. It keeps nothing of a stream that prints more: that has a file."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._streams: dict[StreamName, bytearray | None] = {"stdout": bytearray(), "stderr": bytearray()}

    def take(self, event: Event) -> None:
        """Look at an event of the run."""
        if isinstance(event, OutputChunk) and (kept := self._streams[event.stream]) is not None:
            kept += event.chunk
            if len(kept) > self._most:
                self._streams[event.stream] = None

    def whole(self, stream: str) -> bytes | None:
        """Return a stream, None where it was too long."""
        kept = self._streams["stderr" if stream == "stderr" else "stdout"]
        return None if kept is None else bytes(kept)


class CallHistory:
    """What this server's calls did: their runs and operations, and what the last runs printed. Used by any thread.

    The record of a run has only both ends of a stream, and only what is longer than memory holds has a file. What lies
    between is kept here, as far as a bound.
    """

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()  # protects the fields below
        self._runs: set[tuple[str, int]] = set()
        self._operations: set[tuple[str, int]] = set()
        self._printed: dict[tuple[str, int, str], bytes] = {}
        self._bytes = 0

    def add(self, sandbox: Sandbox, tool: str, answer: Answer) -> None:
        """Take note of what a call did. What file tools print is between them and their scripts."""
        run, operation = answer.values.get("run"), answer.values.get("operation")
        with self._lock:
            if run and tool == "run":
                self._runs.add((sandbox.id, run))
            if operation:
                self._operations.add((sandbox.id, operation))

    def has_run(self, sandbox: Sandbox, run: int) -> bool:
        """Tell whether it was a call that ran it."""
        with self._lock:
            return (sandbox.id, run) in self._runs

    def has_operation(self, sandbox: Sandbox, operation: int) -> bool:
        """Tell whether it was a call that applied it."""
        with self._lock:
            return (sandbox.id, operation) in self._operations

    def keep(self, sandbox: Sandbox, run: int, stream: str, whole: bytes | None) -> None:
        """Keep what a run printed to a stream; the oldest ones go where there is no room."""
        if whole is None:
            return
        key = (sandbox.id, run, stream)
        with self._lock:
            self._bytes += len(whole) - len(self._printed.pop(key, b""))
            self._printed[key] = whole
            while self._bytes > self._most:
                self._bytes -= len(self._printed.pop(next(iter(self._printed))))

    def printed(self, sandbox: Sandbox, run: int, stream: str) -> bytes | None:
        """Return what a run printed to a stream, if it is kept."""
        with self._lock:
            return self._printed.get((sandbox.id, run, stream))
