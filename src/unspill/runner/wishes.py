# SPDX-License-Identifier: Apache-2.0
"""What a caller wants of one run besides its plan."""

from __future__ import annotations

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.event import Event
    from unspill.model.layer import RunId


class Wishes(Record):
    """What the caller wants of one run besides the plan.

    `stdin` is bytes, a descriptor to read from, or None for /dev/null; `cancel_fd` becomes readable to give up.
    `on_listener` is given the listening socket of a plan with a proxy, before the command is let go, and owns it.
    `waited_s` says how long the command has waited for a person's answer so far, which is not its own time.
    `returns_raised`: an exception that cancels the run, of the caller's own or a Ctrl-C, is returned and not raised.
    """

    run: RunId
    spill_dir: bytes
    stdin: bytes | int | None = None
    on_event: Callable[[Event], None] | None = None
    cancel_fd: int | None = None
    on_listener: Callable[[int], None] | None = None
    may_fork: bool = False
    waited_s: Callable[[], float] | None = None
    returns_raised: bool = False
