# SPDX-License-Identifier: Apache-2.0
"""Shell blocks of a document: found, split into commands and compared with what the commands print.

    ```console          commands after `$ `, continued after `> `, each followed by exactly what it prints;
    $ unspill run -- ls `...` stands for any text in a line, and alone on a line for any number of lines
    README.md
    ```
    ```sh               a script; only its success counts
    unspill diff
    ```
    ```python           a program; only its success counts,
    import unspill      unless a block `output` follows, with exactly what it prints
    ```

A comment `<!-- not run: reason -->` on the line above leaves out a block.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

RUN: Final = frozenset({"console", "sh", "python"})
OTHER_NAMES: Final = frozenset(
    {"bash", "shell", "zsh", "shell-session", "shellsession", "terminal", "py", "python3", "pycon"}
)
FENCE: Final = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w-]*)")
_END: Final = "END-OF-BLOCK"
NOT_RUN: Final = re.compile(r"^\s*<!-- not run: (?P<reason>.*\S) -->\s*$")


class BadBlock(ValueError):
    """A block that cannot be understood, with the line where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block; `line` is that of its first content line, `not_run` the reason to leave it out."""

    language: str
    line: int
    content: tuple[str, ...]
    not_run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to run, and the lines it must print; None when they do not matter."""

    line: int
    script: str
    expected: tuple[str, ...] | None


def find_blocks(document: str) -> Iterator[Block]:
    """Yield the fenced blocks of a document in order.

    Raises:
        BadBlock: A fence is never closed.
    """
    lines = document.splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        closing = re.compile(rf"^ *{opening['fence'][0]}{{{len(opening['fence'])},}} *$")
        end = next((at for at in range(number + 1, len(lines)) if closing.match(lines[at])), None)
        if end is None:
            raise BadBlock(f"line {number + 1}: the block is never closed")
        note = NOT_RUN.match(lines[number - 1]) if number else None
        yield Block(
            language=opening["language"],
            line=number + 2,
            content=tuple(line.removeprefix(opening["indent"]) for line in lines[number + 1 : end]),
            not_run=note["reason"] if note else None,
        )
        number = end + 1


def steps(block: Block) -> tuple[Step, ...]:
    """Split a block into what is to be run.

    Raises:
        BadBlock: A console block does not begin with a command.
    """
    if block.language != "console":
        script = "\n".join(block.content)
        if block.language == "python":
            script = f"python3 - <<'{_END}'\n{script}\n{_END}"
        return (Step(line=block.line, script=script, expected=None),)
    found: list[Step] = []
    for number, line in enumerate(block.content, block.line):
        if line.startswith("$ "):
            found.append(Step(line=number, script=line.removeprefix("$ "), expected=()))
        elif not found:
            raise BadBlock(f"line {number}: output before the first command")
        else:
            found[-1] = _continued(found[-1], line)
    return tuple(found)


def _continued(step: Step, line: str) -> Step:
    if line.startswith("> ") and not step.expected:
        return Step(line=step.line, script=f"{step.script}\n{line.removeprefix('> ')}", expected=())
    return Step(line=step.line, script=step.script, expected=(*(step.expected or ()), line))


def matches(expected: tuple[str, ...], printed: str) -> bool:
    """Tell whether `printed` is what the document shows, blank lines at the end apart."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "..." else ".*".join(map(re.escape, line.rstrip().split("..."))) + r" *\n"
        for line in _without_blank_end(expected)
    )
    lines = _without_blank_end(tuple(printed.splitlines()))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


def _without_blank_end(lines: tuple[str, ...]) -> tuple[str, ...]:
    end = len(lines)
    while end and not lines[end - 1].strip():
        end -= 1
    return lines[:end]
