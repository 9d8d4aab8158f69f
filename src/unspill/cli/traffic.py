# SPDX-License-Identifier: Apache-2.0
"""What a run reached and what it was refused: lines for a person, values for a program.

Hosts are printable in these records already; remedies are ours.
"""

from __future__ import annotations

from unspill.changes.render import safe_text
from unspill.cli.telling import LIMIT, count_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from unspill.model.traffic import Connection, Denial


def refused_lines(denials: Sequence[Denial]) -> list[str]:
    """Return the lines of a summary; the ones that begin with a space belong to the first."""
    lines = [f"the network refused {count_text(len(denials), 'destination')} to the command:"]
    for denial in denials[:LIMIT]:
        times = "" if denial.times == 1 else f", {denial.times} times"
        lines.append(f"  ! {safe_text(denial.place)}: {denial.rule}{times}")
        lines.append(f"      {safe_text(denial.remedy)}")
    if len(denials) > LIMIT:
        lines.append(f"  ! and {len(denials) - LIMIT} more: see --json")
    return lines


def connection_lines(connections: Sequence[Connection]) -> list[str]:
    """Return one line a host and port: how many connections, how many bytes, and how those ended that went wrong."""
    hosts: dict[str, list[Connection]] = {}
    for made in connections:
        hosts.setdefault(made.place, []).append(made)
    lines = [f"  {safe_text(place)}: {_sum(found)}" for place, found in list(hosts.items())[:LIMIT]]
    if len(hosts) > LIMIT:
        lines.append(f"  and {len(hosts) - LIMIT} more: see --json")
    return lines


def traffic_form(connections: Sequence[Connection], denials: Sequence[Denial]) -> dict[str, Any]:
    """Return both as values, under the names that a RunResult has for them."""
    return {
        "connections": [made.as_dict() for made in connections],
        "denials": [denial.as_dict() for denial in denials],
    }


def _sum(found: list[Connection]) -> str:
    up, down = sum(made.up for made in found), sum(made.down for made in found)
    text = f"{count_text(len(found), 'connection')}, {up} bytes up, {down} bytes down"
    wrong = sorted({made.verdict for made in found} - {"allowed"})
    return f"{text} ({', '.join(wrong)})" if wrong else text
