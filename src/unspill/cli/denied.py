# SPDX-License-Identifier: Apache-2.0
"""Which files a sandbox kept from a command, for the person who asked: path, rule, and what would allow it."""

from __future__ import annotations

from unspill.changes.quote import quote
from unspill.changes.render import safe_text
from unspill.cli.telling import LIMIT, count_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.run import FileDenial


def denied_lines(denied: Sequence[FileDenial]) -> list[str]:
    """Return the lines of a summary, refused writes first; the ones that begin with a space belong to the first."""
    ordered = sorted(denied, key=lambda denial: denial.access != "write")
    lines = [f"the sandbox kept {count_text(len(ordered), 'path')} from the command:"]
    for denial in ordered[:LIMIT]:
        times = "" if denial.times == 1 else f", {denial.times} times"
        lines.append(f"  ! {quote(denial.path)}: {denial.access}{times}: {safe_text(denial.rule)}")
        lines.append(f"      {safe_text(denial.remedy)}")
    if len(ordered) > LIMIT:
        lines.append(f"  ! and {len(ordered) - LIMIT} more: see --json")
    return lines
