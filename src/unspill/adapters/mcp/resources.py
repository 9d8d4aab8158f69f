# SPDX-License-Identifier: Apache-2.0
"""What a client can read besides the results of tools: what runs of its server printed, and the diff of what is held.

    unspill://runs/7/stdout   unspill://runs/7/stderr   unspill://changes/diff

With several projects each begins with `unspill://projects/NAME/`. One reading returns a part; what follows it says how
much there is and where to go on (`?start=BYTE`).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, unquote, urlsplit

from mcp_types import Resource, ResourceLink, ResourceTemplate, TextResourceContents

from unspill.adapters.reviewing import held_diff
from unspill.adapters.window import whole_characters
from unspill.errors import UsageError
from unspill.model.run import Output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_types import BlobResourceContents

    from unspill.adapters.mcp.outputs import Outputs, Own
    from unspill.adapters.mcp.projects import Projects
    from unspill.sandbox.sandbox import Sandbox

PART = 128 * 1024
_SCHEME = "unspill"
_STREAMS = ("stdout", "stderr")
_TEXT = "text/plain"


def prefix_of(projects: Projects, sandbox: Sandbox) -> str:
    """Return how the addresses of a project's resources begin."""
    if projects.is_one:
        return f"{_SCHEME}://"
    return f"{_SCHEME}://projects/{quote(projects.name_of(sandbox), safe='')}/"


def is_address(given: object) -> bool:
    """Tell whether something is the address of a resource, where a path is expected."""
    return isinstance(given, str) and given.startswith(f"{_SCHEME}://")


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
    ]


def list_templates(projects: Projects) -> list[ResourceTemplate]:
    """Return the addresses of what runs printed."""
    prefix = f"{_SCHEME}://" if projects.is_one else f"{_SCHEME}://projects/{{project}}/"
    return [
        ResourceTemplate(
            uri_template=f"{prefix}runs/{{number}}/{stream}{{?start}}",
            name=f"{stream} of a run",
            description=f"What a command of this server printed to {stream}, as far as it was kept, from `start` on.",
            mime_type=_TEXT,
        )
        for stream in _STREAMS
    ]


def link_to(prefix: str, run: int, stream: str) -> ResourceLink:
    """Return where all that was kept of a run's output is, for an answer that does not show all of it."""
    return ResourceLink(
        uri=f"{prefix}runs/{run}/{stream}",
        name=f"{stream} of run {run}",
        description=f"What it printed to {stream}, as far as it was kept.",
        mime_type=_TEXT,
    )


def read_resource(
    projects: Projects, outputs: Outputs, own: Own, uri: str
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
            if not own.has_run(sandbox, int(number)):
                raise _unknown(uri, "Only what commands of this server have printed can be read.")
            found = sandbox.find_run(int(number))
            output = found.stdout if stream == "stdout" else found.stderr
            heard = outputs.find(sandbox, found.number, stream) if output.left_out and output.file is None else None
            output = output if heard is None else Output(head=heard)
            return list(_parts(address, _TEXT, start, *_read(output, start)))
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
        yield TextResourceContents(uri=follows or address, mime_type=_TEXT, text=" ".join(said))


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
