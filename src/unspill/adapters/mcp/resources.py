# SPDX-License-Identifier: Apache-2.0
"""What a client can read besides the results of tools: what runs printed, and the diff of what is held.

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

from unspill.errors import UsageError
from unspill.model.run import Output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_types import BlobResourceContents

    from unspill.adapters.mcp.outputs import Outputs
    from unspill.adapters.mcp.projects import Projects
    from unspill.sandbox.sandbox import Sandbox

PART = 128 * 1024
_SCHEME = "unspill"
_STREAMS = ("stdout", "stderr")
_TEXT = "text/plain"
# Bytes of the longest character, less one
_SPLIT = 3


def prefix_of(projects: Projects, sandbox: Sandbox) -> str:
    """Return how the addresses of a project's resources begin."""
    if projects.is_one:
        return f"{_SCHEME}://"
    return f"{_SCHEME}://projects/{quote(projects.name_of(sandbox), safe='')}/"


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
            description=f"What a run printed to {stream}, as far as it was kept, from byte `start` on.",
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


def read_resource(projects: Projects, outputs: Outputs, uri: str) -> list[TextResourceContents | BlobResourceContents]:
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
            whole = sandbox.diff().encode("utf-8", "surrogateescape")
            part = whole[start : start + PART]
            return list(_parts(address, "text/x-diff", start, part, start, start + len(part), len(whole)))
        case ["runs", number, ("stdout" | "stderr") as stream] if number.isascii() and number.isdigit():
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
    address: str, kind: str, asked: int, part: bytes, start: int, end: int, total: int
) -> Iterator[TextResourceContents]:
    """Yield the part that begins at `start`, and what there is to say of it where it is not all."""
    if end < total:
        part = _whole_characters(part)
        end = start + len(part)
    uri = f"{address}?start={start}" if start else address
    yield TextResourceContents(uri=uri, mime_type=kind, text=part.decode("utf-8", "backslashreplace"))
    follows = f"{address}?start={end}" if end < total else ""
    said = [f"Bytes {start} to {end} of {total} are above."]
    said += [f"Bytes {asked} to {start} were not kept."] if start > asked else []
    said += [f"What follows is {follows}"] if follows else []
    if len(said) > 1:
        yield TextResourceContents(uri=follows or address, mime_type=_TEXT, text=" ".join(said))


def _whole_characters(part: bytes) -> bytes:
    """Leave out the beginning of a character that goes on in the next part, unless there is nothing else."""
    for count in range(1, min(_SPLIT, len(part) - 1) + 1):
        if part[-count] >= 0xC0:
            return part[:-count]
        if part[-count] < 0x80:
            break
    return part


def _start_of(query: str, uri: str) -> int:
    if not query:
        return 0
    values = parse_qs(query, keep_blank_values=True)
    text = values.get("start", [""])[0]
    if set(values) != {"start"} or not text.isascii() or not text.isdigit() or len(text) > 15:
        raise _unknown(uri)
    return int(text)


def _unknown(uri: str) -> UsageError:
    return UsageError(f"there is no such resource: {uri!a:.120}", remedy="See resources/templates/list.")
