# SPDX-License-Identifier: Apache-2.0
"""The result of a run, put together from what was performed, found and decided: hints and warnings are made here."""

from __future__ import annotations

from unspill.model.change import ChangeSet
from unspill.model.layer import RunId
from unspill.model.run import Cancelled, Exited, Output
from unspill.plan.view import to_inside
from unspill.record import Record
from unspill.sandbox.result import RunResult
from unspill.sandbox.secrets import tracked_warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.operation import Operation
    from unspill.model.plan import Plan
    from unspill.model.run import Hint, Run
    from unspill.model.traffic import Traffic
    from unspill.runner.perform import Performed
    from unspill.sandbox.project import Project
    from unspill.sandbox.secrets import Masks

_NAMED = 3
ROOT_NOTE = "level C: run for root (`allow_root`), which is weaker than for an ordinary user; see `unspill doctor`"
STRICT_NOTE = '`profile = "strict"` refuses more system calls; it has no Landlock fence. unspill says this once.'
_STRICT_KEY = "said that strict has no Landlock"


class Applied(Record):
    """What became of a run's changes: the operation that applied them, and whether any of them is held."""

    operation: Operation | None = None
    is_held: bool = False
    flagged: tuple[tuple[bytes, str], ...] = ()
    problem: str = ""


def make_result(
    project: Project,
    run: Run,
    plan: Plan,
    performed: Performed,
    changes: ChangeSet,
    applied: Applied,
    traffic: Traffic | None,
    masks: Masks,
    duration_s: float,
    notes: tuple[str, ...] = (),
) -> RunResult:
    """Return the result of a run that has ended."""
    return RunResult(
        run=run.id,
        number=run.number,
        outcome=performed.outcome,
        stdout=performed.stdout,
        stderr=performed.stderr,
        changes=changes,
        held=applied.is_held,
        operation=applied.operation,
        flagged=applied.flagged,
        problem=applied.problem,
        duration_s=duration_s,
        hints=(*performed.hints, *_remains_hints(plan, performed)),
        warnings=(
            *_warnings(project, plan, traffic),
            *_news_of_profile(project, plan),
            *notes,
            *tracked_warnings(project, masks),
        ),
        shown_lines=project.means.policy.shown_lines,
        shown_bytes=project.means.policy.shown_bytes,
        connections=() if traffic is None else traffic.connections,
        denials=() if traffic is None else traffic.denials,
        project=project.path,
        workspace=project.roots[0] if project.means.policy.view == "rootfs" else b"",
    )


def with_hints(project: Project, plan: Plan, performed: Performed, masks: Masks) -> Performed:
    """Return what was performed with what may explain its end, found before any of its changes is applied."""
    if performed.outcome == Exited(code=0):
        return performed
    from unspill.sandbox.network_hints import network_hints

    hints = network_hints(plan.network, performed.outcome, performed.stdout, performed.stderr)
    return performed.replace(hints=(*performed.hints, *hints, *_mask_hints(project, masks, performed)))


def never_begun(project: Project) -> RunResult:
    """Return the result of a run that its caller gave up before there was one."""
    return RunResult(
        run=RunId(""),
        number=0,
        outcome=Cancelled(),
        stdout=Output(),
        stderr=Output(),
        changes=ChangeSet(roots=()),
        held=False,
        duration_s=0.0,
        shown_lines=project.means.policy.shown_lines,
        shown_bytes=project.means.policy.shown_bytes,
    )


def _warnings(project: Project, plan: Plan, traffic: Traffic | None) -> tuple[str, ...]:
    faults = () if traffic is None else traffic.faults
    about_us = () if project.means.facts.uid else (ROOT_NOTE,)
    about_caller = (project.warning,) if project.warning else ()
    return (*about_us, *about_caller, *plan.warnings, *faults)


def _news_of_profile(project: Project, plan: Plan) -> tuple[str, ...]:
    """Say once, whatever the project, what `strict` is not: its name promises more than a filter."""
    if plan.profile != "strict" or project.store.facts.find(_STRICT_KEY) is not None:
        return ()
    project.store.facts.put(_STRICT_KEY, "")
    return (STRICT_NOTE,)


def hidden_notes(
    hidden: tuple[bytes, ...], project: bytes, name: Callable[[bytes], bytes] | None = None
) -> tuple[str, ...]:
    """Say which entries of a root a run does not see, because their deletion is held; `name` is how to type one."""
    if not hidden:
        return ()
    from unspill.changes.quote import quote
    from unspill.policy.paths import shell_word

    more = f" and {len(hidden) - _NAMED} more" if hidden[_NAMED:] else ""
    names = ", ".join(quote(path.removeprefix(project + b"/")) for path in hidden[:_NAMED])
    typed = [shell_word(path if name is None else name(path)) for path in hidden]
    words = "PATH ..." if more else " ".join(typed)
    what = "it" if len(hidden) == 1 else "them"
    return (f"This run does not see {names}{more}: held changes delete {what}. To see {what}: unspill discard {words}",)


def _remains_hints(plan: Plan, performed: Performed) -> tuple[Hint, ...]:
    remains = performed.remains
    if not (remains.lost or remains.killed):
        return ()
    from unspill.sandbox.remains_hints import remains_hints

    return remains_hints(remains, dict(plan.environ).get(b"HOME", b""))


def _mask_hints(project: Project, masks: Masks, performed: Performed) -> tuple[Hint, ...]:
    if not masks.hidden:
        return ()
    from unspill.sandbox.secrets import mask_hints

    view, roots = project.means.policy.view, project.roots
    hidden = [to_inside(path, view, roots) for path in masks.hidden]
    return mask_hints(
        hidden, to_inside(project.path, view, roots), performed.outcome, performed.stdout, performed.stderr
    )
