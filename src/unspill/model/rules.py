# SPDX-License-Identifier: Apache-2.0
"""What a person's configuration says about requests for more than a sandbox has: a part of every Policy.

The requests themselves are in `model.permission`, which a run that asks for nothing never loads.
"""

from __future__ import annotations

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Scope = Literal["once", "run", "sandbox", "always"]
    Stance = Literal["ask", "deny"]
    ApproverName = Literal["terminal", "queue", "deny"]

# From the shortest to the longest.
SCOPES: tuple[Scope, ...] = ("once", "run", "sandbox", "always")


class Rules(Record):
    """Which requests are put to a person at all, and for how long the answer may hold.

    A project's own file can only turn `ask` into `deny` and shorten. `approver` is whom the command line asks, `wait_s`
    how long a question waits for its answer.
    """

    network: Stance = "ask"
    egress: Stance = "ask"
    roots: Stance = "ask"
    readable: Stance = "ask"
    secrets: Stance = "ask"
    held: Stance = "ask"
    unsandboxed: Stance = "deny"
    as_root: Stance = "deny"
    longest: Scope = "always"
    grant_days: int = 30
    approver: ApproverName = "terminal"
    wait_s: float = 300.0
