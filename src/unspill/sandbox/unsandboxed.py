# SPDX-License-Identifier: Apache-2.0
"""Commands without a sandbox: once as if the person had typed it, or always in container mode.

The first only after a person allowed that very command; it has their whole environment. Container mode runs commands
as plain processes of the container that unspill itself is in. It is weaker than any sandbox and never chosen by itself:
the person's own configuration must say so, a container must be there, and no sandbox to be had in it. The environment
is made anew, and time and output are bounded. Both are recorded like any run; what they change nobody knows, so nothing
is held and nothing can be undone, and the result says so.
"""

from __future__ import annotations

import os
import time

from unspill.errors import UsageError
from unspill.layers.locks import spill_dir, this_process
from unspill.model.change import ChangeSet
from unspill.model.run import Ended, Started
from unspill.permissions.question import is_text
from unspill.plan.environ import contained_environ
from unspill.plan.view import missing_text, to_host
from unspill.runner.plain import perform_plainly
from unspill.runner.watch import Wishes
from unspill.sandbox.audit import record_failure
from unspill.sandbox.result import RunResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.sandbox.planning import Request, RunWishes
    from unspill.sandbox.project import Project


IN_CONTAINER = (
    "container mode: this ran WITHOUT a sandbox, as a plain process of the {name} container that unspill is in. All"
    " that the container has was open to it; what it changed is not known and can't be undone"
)
WARNING = "this ran WITHOUT a sandbox, because it was allowed: what it changed is not known and can't be undone"


def outside(project: Project, request: Request) -> Request:
    """Return a request as it is without a sandbox: in the directory of the host, by a shell that the host has."""
    argv = request.argv
    if project.means.policy.view == "rootfs" and is_text(argv) and not os.access(argv[0], os.X_OK):
        argv = (b"/bin/sh", *argv[1:])
    return request.replace(argv=argv, cwd=to_host(request.cwd, project.means.policy.view, project.roots))


def check_plain(request: Request) -> None:
    """Refuse what can't run outside of a sandbox, before anybody is asked.

    Raises:
        UsageError: the working directory exists in sandboxes only.
    """
    if not os.path.isdir(request.cwd):
        raise UsageError(missing_text(request.cwd))


def run_plainly(project: Project, request: Request, environ: tuple[bytes, ...], wishes: RunWishes) -> RunResult:
    """Run one command without a sandbox, with the variables that were shown besides the person's own."""
    shown = dict(pair.split(b"=", 1) for pair in environ)
    return perform_outside(project, request, dict(os.environb) | shown, wishes, WARNING)


def perform_outside(
    project: Project, request: Request, environ: dict[bytes, bytes], wishes: RunWishes, warning: str
) -> RunResult:
    """Run one command without a sandbox, with exactly these variables; the warning is in its result."""
    begun = time.monotonic()
    runs = project.store.runs
    with project.store.transaction:
        run = runs.start(
            project.row.id,
            argv=request.argv,
            cwd=request.cwd,
            started_ns=time.time_ns(),
            owner=this_process(),
            after_cancel="discard",
        )
        run = runs.mark_unsandboxed(run)
    asked = Wishes(
        run=run.id,
        spill_dir=spill_dir(project.store.state, run.id),
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
        project.store.runs.end(run.replace(ended_ns=time.time_ns()))
        record_failure(project, request, run, error, is_sandboxed=False)
        raise
    ended = run.replace(
        ended_ns=time.time_ns(), outcome=performed.outcome, stdout=performed.stdout, stderr=performed.stderr
    )
    project.store.runs.end(ended)
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
        shown_lines=project.means.policy.shown_lines,
        shown_bytes=project.means.policy.shown_bytes,
    )


def run_contained(project: Project, request: Request, wishes: RunWishes) -> RunResult:
    """Run one command in container mode.

    Raises:
        UsageError: its changes are not to be made in the project at once, or its directory does not exist.
    """
    if wishes.after != "apply":
        raise UsageError(
            f"in container mode changes can't be kept apart, so `{wishes.after}` can't be done",
            remedy="Use `apply`: changes are then made in the project at once.",
        )
    environ = contained_environ(project.path, project.means.policy.environment, os.environb, request.environ)
    check_plain(request)
    return perform_outside(project, request, environ, wishes, IN_CONTAINER.format(name=project.means.container))
