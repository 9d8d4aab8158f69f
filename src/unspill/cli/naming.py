# SPDX-License-Identifier: Apache-2.0
"""How operations are written: `op 5` to read, `op5` to type. A number alone is a run's where both could be meant."""

from __future__ import annotations

from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import Operation
    from unspill.sandbox.sandbox import Sandbox

_ALL = 1_000_000


def is_operation(word: str) -> bool:
    """Tell whether a word can only mean an operation."""
    return word.startswith("op") and word[2:].isdecimal()


def operation_word(word: str) -> str:
    """Return the number or id in a word where an operation is expected: `op5`, `5`, or an id."""
    return word[2:] if is_operation(word) else word


def find_original(sandbox: Sandbox, operation: Operation) -> int | None:
    """Return the number of what an undo takes back or a redo does again; None for other kinds, or if it is pruned."""
    if operation.of is None:
        return None
    known = {one.id: one for one in sandbox.operations(limit=_ALL)}
    reversed_one = known.get(operation.of)
    if operation.kind == "redo" and reversed_one is not None and reversed_one.of is not None:
        reversed_one = known.get(reversed_one.of)
    return None if reversed_one is None else reversed_one.number


def run_text(sandbox: Sandbox, run: str) -> str:
    """Return a run as a person would name it."""
    try:
        return f"run {sandbox.find_run(run).number}"
    except UsageError:
        # Of another sandbox, or too old to be recorded still
        return f"run {run}"
