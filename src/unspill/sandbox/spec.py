# SPDX-License-Identifier: Apache-2.0
"""What one run was asked to be, checked: the command and its surroundings, and what becomes of it."""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.policy import After, Limits
    from unspill.model.run import Event, Run
    from unspill.permissions.broker import Desk


class Request(Record):
    """One command as asked for: argv (of a shell, where a text was given), directory, variables, limits.

    `network` was granted to this command, for this time; so were the secrets in `revealed`, by path. `program` is what
    `identify_program` said of it when something was granted, None where nothing was. `stdin` is what it will read.
    """

    argv: tuple[bytes, ...]
    script: bytes | None
    cwd: bytes
    environ: tuple[tuple[bytes, bytes], ...]
    limits: Limits
    network: bool = False
    revealed: tuple[bytes, ...] = ()
    program: str | None = None
    stdin: bytes | int | None = None


class RunWishes(Record):
    """What a caller wants of one run besides the command. `desk` is where hosts are asked for while it runs.

    `on_interrupted` is told of runs of the sandbox without a result: earlier ones that were found, or this one.
    """

    stdin: bytes | int | None = None
    after: After = "apply"
    after_cancel: After = "hold"
    on_event: Callable[[Event], None] | None = None
    cancel_fd: int | None = None
    may_fork: bool = False
    desk: Desk | None = None
    on_interrupted: Callable[[tuple[Run, ...]], None] | None = None
