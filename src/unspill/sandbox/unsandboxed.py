# SPDX-License-Identifier: Apache-2.0
"""One command as if the person had typed it: no layer, no namespace, their whole environment.

Only after `permit_unsandboxed`. It is recorded like any run; what it changed nobody knows, and the result says so.
"""

from __future__ import annotations

import os
import time

from unspill.errors import UsageError
from unspill.layers.owner import this_process
from unspill.layers.places import spill_dir
from unspill.model.change import ChangeSet
from unspill.model.run import Ended, Started
from unspill.permissions.question import is_text
from unspill.plan.view import missing_text, to_host
from unspill.runner.plain import perform_plainly
from unspill.runner.watch import Wishes
from unspill.sandbox.recording import record_failure
from unspill.sandbox.result import RunResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.requesting import Request
    from unspill.sandbox.running import RunWishes

WARNING = "this ran WITHOUT a sandbox, because it was allowed: what it changed is not known and can't be undone"


def outside(opened: Opened, request: Request) -> Request:
    """Return a request as it is without a sandbox: in the directory of the host, by a shell that the host has."""
    argv = request.argv
    if opened.policy.view == "rootfs" and is_text(argv) and not os.access(argv[0], os.X_OK):
        argv = (b"/bin/sh", *argv[1:])
    return request.replace(argv=argv, cwd=to_host(request.cwd, opened.policy.view, opened.roots))


def check_plain(request: Request) -> None:
    """Refuse what can't run outside of a sandbox, before anybody is asked.

    Raises:
        UsageError: the working directory exists in sandboxes only.
    """
    if not os.path.isdir(request.cwd):
        raise UsageError(missing_text(request.cwd))


def run_plainly(opened: Opened, request: Request, environ: tuple[bytes, ...], wishes: RunWishes) -> RunResult:
    """Run one command without a sandbox, with the variables that were shown besides the person's own."""
    shown = dict(pair.split(b"=", 1) for pair in environ)
    return perform_outside(opened, request, dict(os.environb) | shown, wishes, WARNING)


def perform_outside(
    opened: Opened, request: Request, environ: dict[bytes, bytes], wishes: RunWishes, warning: str
) -> RunResult:
    """Run one command without a sandbox, with exactly these variables; the warning is in its result."""
    begun = time.monotonic()
    runs = opened.store.runs
    with opened.store.transaction:
        run = runs.start(
            opened.row.id,
            argv=request.argv,
            cwd=request.cwd,
            started_ns=time.time_ns(),
            owner=this_process(),
            after_cancel="discard",
        )
        run = runs.mark_unsandboxed(run)
    asked = Wishes(
        run=run.id,
        spill_dir=spill_dir(opened.store.state, run.id),
        stdin=wishes.stdin,
        on_event=wishes.on_event,
        cancel_fd=wishes.cancel_fd,
    )
    if wishes.on_event is not None:
        wishes.on_event(Started(run=run.id))
    try:
        performed = perform_plainly(request.argv, request.cwd, environ, request.limits, asked)
    except BaseException as error:
        error.add_note("It ran without a sandbox: what it has changed is not known and can't be undone.")
        opened.store.runs.end(run.replace(ended_ns=time.time_ns()))
        record_failure(opened, request, run, error, is_sandboxed=False)
        raise
    ended = run.replace(
        ended_ns=time.time_ns(), outcome=performed.outcome, stdout=performed.stdout, stderr=performed.stderr
    )
    opened.store.runs.end(ended)
    if wishes.on_event is not None:
        wishes.on_event(Ended(run=run.id, outcome=performed.outcome))
    return RunResult(
        run=run.id,
        number=run.number,
        outcome=performed.outcome,
        stdout=performed.stdout,
        stderr=performed.stderr,
        changes=ChangeSet(roots=()),
        held=False,
        duration_s=time.monotonic() - begun,
        warnings=(warning,),
        sandboxed=False,
        shown_lines=opened.policy.shown_lines,
        shown_bytes=opened.policy.shown_bytes,
    )
