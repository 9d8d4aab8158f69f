# SPDX-License-Identifier: Apache-2.0
"""Syntax colours, found by a process of their own: the text is a stranger's, and a lexer can be made to take forever.

The process reads requests as JSON lines and answers them with the spans of each line. It has a bounded memory, and who
waits too long for it ends it. Without it texts are shown plainly.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    # Where in a line something begins and ends, and what it is
    Span = tuple[int, int, str]

MOST_COLUMNS = 400
_PATIENCE_S = 2.0
_MOST_FAILURES = 3
_MEMORY_BYTES = 1 << 29
_LONGEST_ANSWER = 1 << 22
# What a person tells apart, by the beginning of the name of a token
_KINDS = (
    ("Token.Comment", "comment"),
    ("Token.Keyword", "keyword"),
    ("Token.Literal.String", "string"),
    ("Token.Literal.Number", "number"),
    ("Token.Name.Function", "name"),
    ("Token.Name.Class", "name"),
    ("Token.Name.Tag", "name"),
    ("Token.Generic.Heading", "name"),
)


class Painter:
    """The process that finds colours, started when it is first needed, and again after it was ended."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._failures = 0

    async def spans(self, name: str, lines: Sequence[tuple[str, str]]) -> list[list[Span]]:
        """Return the spans of each line, given with its mark; none where the process has no answer in time."""
        none: list[list[Span]] = [[] for _line in lines]
        if self._failures >= _MOST_FAILURES:
            return none
        async with self._lock:
            try:
                found = await asyncio.wait_for(self._ask(name, lines), _PATIENCE_S)
            except (TimeoutError, OSError, ValueError):
                self._failures += 1
                await self.close()
                return none
        return [[tuple(span) for span in line] for line in found]  # type: ignore[misc]

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _ask(self, name: str, lines: Sequence[tuple[str, str]]) -> list[list[list[int | str]]]:
        if self._process is None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-m", __name__),
                stdin=pipe,
                stdout=pipe,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LONGEST_ANSWER,
            )
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None
        assert writer is not None
        writer.write(json.dumps([name, lines]).encode() + b"\n")
        answer = json.loads(await reader.readline())
        if not isinstance(answer, list) or len(answer) != len(lines):
            raise ValueError("not an answer")
        return answer


def find_spans(name: str, lines: Sequence[tuple[str, str]]) -> list[list[Span]]:
    """Return the spans of lines of a file of some name: those of the old text, and those of the new one."""
    import pygments.lexers  # lazy: colours

    found: list[list[Span]] = [[] for _line in lines]
    try:
        lexer = pygments.lexers.get_lexer_for_filename(name, stripnl=False, ensurenl=False)
    except pygments.util.ClassNotFound:
        return found
    # What both have is coloured as in the new one
    for marks in ("-", "+ "):
        kept = [at for at, (mark, _text) in enumerate(lines) if mark in marks + " "]
        texts = [lines[at][1][:MOST_COLUMNS] for at in kept]
        for at, spans in zip(kept, _spans_of(lexer.get_tokens("\n".join(texts)), len(texts)), strict=True):
            if lines[at][0] in marks:
                found[at] = spans
    return found


def _spans_of(tokens: Iterable[tuple[object, str]], count: int) -> Iterator[list[Span]]:
    line: list[Span] = []
    column, done = 0, 0
    for kind, text in tokens:
        named = str(kind)
        what = next((short for start, short in _KINDS if named.startswith(start)), "")
        for number, piece in enumerate(text.split("\n")):
            if number:
                done += 1
                yield line
                line, column = [], 0
            if piece and what:
                line.append((column, column + len(piece), what))
            column += len(piece)
    while done < count:
        done += 1
        yield line
        line = []


def main() -> None:
    """Answer requests until there are no more."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for request in sys.stdin:
        name, lines = json.loads(request)
        sys.stdout.write(json.dumps(find_spans(name, lines)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
