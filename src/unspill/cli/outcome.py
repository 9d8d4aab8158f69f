# SPDX-License-Identifier: Apache-2.0
"""What became of a run's changes, for the person who started it: the grave things first."""

from __future__ import annotations

from unspill.changes.render import applied_part, count_changes, safe_text, summary_lines, without_own_files
from unspill.cli.telling import count_text, flagged_lines, indented, left_lines, without_git

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.change import ChangeSet
    from unspill.model.operation import Operation
    from unspill.sandbox.result import RunResult


def outcome_lines(result: RunResult, sandbox: str, project: bytes) -> list[str]:
    """Return the lines of a summary; the ones that do not begin with a space are sentences."""
    if result.operation is not None:
        return _applied(result, result.operation, sandbox)
    what = f"held in sandbox {sandbox!r}" if result.held else "discarded"
    lines = _listed(result.changes, f"{what}, run {result.number}; the project is not touched", project)
    if result.problem:
        lines.append(f"not applied: {safe_text(result.problem)}")
        lines.append("  unspill apply tries again")
    return lines


def _applied(result: RunResult, operation: Operation, sandbox: str) -> list[str]:
    lines = []
    if operation.number:
        done = applied_part(result.changes, operation)
        what = f"applied as op {operation.number} (undo: unspill undo)"
        heading, *listed = _listed(done, what, operation.project)
        left = {left.path for left in operation.left}
        flagged = [(path, reason) for path, reason in result.flagged if path not in left]
        lines += [heading, *flagged_lines(flagged), *without_git(listed, operation)]
    elif not operation.left:
        lines += _listed(result.changes, "nothing of it had to be applied", operation.project)
    lines += [f"  {safe_text(note)}" for note in operation.notes]
    if operation.left:
        lines.append(f"{count_text(len(operation.left), 'path')} not applied, held in sandbox {sandbox!r}:")
        lines += left_lines(operation)
    return lines


def _listed(changes: ChangeSet, what: str, project: bytes) -> list[str]:
    count = count_changes(changes)
    listed = summary_lines(changes, fold_git=True, project=project)[bool(count) :]
    # A commit is many files of git's own, which one line stands for
    plain = count_changes(change for part in changes.roots for change in without_own_files(part.changes))
    return [f"{plain or ('only git' if count else 'only times of files')}: {what}", *indented(listed)]
