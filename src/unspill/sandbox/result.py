# SPDX-License-Identifier: Apache-2.0
"""What a caller gets back from a run: hints and warnings, the text of it that a model reads, and the audit's line.

Our failure is never shown as the command's output: it is one line that starts with `ERROR:`. A hint is made of words in
an output, so it is a guess and no more; what the proxy refused is a Denial instead. Commands choose the names in hints,
so these are escaped and cut.

Lines of the audit are not synchronised: a power cut can take the last ones. If one can't be written, the result says
so: undoing what happened would be worse.
"""

from __future__ import annotations

from unspill.errors import StoreError
from unspill.git.files import find_outside
from unspill.lazy import lazy_module
from unspill.model.change import ChangeSet
from unspill.model.plan import NoNetwork, ProxyNetwork
from unspill.model.run import (
    Cancelled,
    Exited,
    Hint,
    LimitReached,
    NeverStarted,
    Output,
    RunId,
    Signalled,
    TimedOut,
    exit_code_of,
)
from unspill.permissions.audit import (
    Audit,
    as_text,
    command_text,
    path_fields,
)
from unspill.plan.view import to_inside
from unspill.policy.paths import quote, shell_word, show_line
from unspill.record import Record
from unspill.sandbox.secrets import hidden_news, mask_hints, tracked_warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from unspill.model.operation import Operation
    from unspill.model.plan import NetworkPlan, Plan
    from unspill.model.run import Connection, Denial, Outcome, PortTraffic, Remains, Run, Traffic
    from unspill.permissions.audit import Event
    from unspill.runner.perform import Performed
    from unspill.sandbox.beside import Apart
    from unspill.sandbox.planning import RunSpec
    from unspill.sandbox.project import Project
    from unspill.sandbox.secrets import Masks
    from unspill.store.db import Store

    State = Literal["held", "discarded", "applied", "needless", "skipped"]
    OnChange = Callable[[Operation], None]
    from unspill.changes import render
else:
    render = lazy_module("unspill.changes.render")  # lazy: changes


_MOST_DENIALS = 10
_HOST_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:[]_*")
_HEADINGS: dict[State, str] = {
    "held": "Changes (held, not in the project{why}):",
    "discarded": "Changes (discarded, the project is unchanged{why}):",
    "applied": "Changes (applied to the project):",
    "needless": "Changes (nothing to apply, the project already matches):",
    "skipped": "Not applied (held: later commands see it, the project does not have it):",
}

_SECRETS_NAMED = 3
# Of an output that is looked through for hints
_HINT_TAIL = 16 * 1024
ROOT_NOTE = "level C: this ran as root (`allow_root`), less protected than for an ordinary user; see `unspill doctor`"
STRICT_NOTE = '`profile = "strict"` refuses more system calls; it has no Landlock fence. unspill says this once.'
# What follows is the number of the operation
UNHEARD = "`on_change` or `--events` failed after op "
_STRICT_KEY = "said that strict has no Landlock"
# Of curl and git; of getaddrinfo, twice; of node; of wget; of Go; of the JVM; of connect(2)
_NO_HOST = (
    b"Could not resolve host",
    b"Temporary failure in name resolution",
    b"Name or service not known",
    b"EAI_AGAIN",
    b"unable to resolve host",
    b"dial tcp: lookup",
    b"UnknownHostException",
    b"UnresolvedAddressException",
    b"Network is unreachable",
    b"ENETUNREACH",
)
_NETWORK_OFF = Hint(
    code="network-off",
    text="The network is off.",
    remedy="Allow one host with `--allow-host HOST`, or ask for the network with `--network`.",
)
_BY_PROXY = Hint(
    code="network-by-proxy",
    text="Allowed hosts are only reachable through the sandbox's proxy, and this program does not seem to use it.",
    remedy="Point it at the proxy in `$https_proxy`, which speaks HTTP and SOCKS5.",
)
_REMAINS_NAMED = 3
_LONGEST_NAME = 80

_COMMAND_BYTES = 4096
_MOST = 100


class RunResult(Record):
    """One run as it ended. `changes` is what this run changed against what it saw.

    `held` if any of it is kept in the sandbox; `operation` is the apply that followed, with what it skipped and why.
    `flagged` are applied paths that run when somebody builds, tests or pushes; `told` are those of them whose content
    a terminal has shown as flagged before. `problem` says why nothing was applied although it should have been.
    `connections` went out through the sandbox's proxy, `denials` were refused by it, each with what would allow it;
    `ports` is what went through published and exposed ones. `number` is 0 where the caller gave up before the sandbox
    was free; not `sandboxed` where the person allowed that. `project` is where the host has it, `workspace` the root
    that the command saw as `/workspace`, if it did. `shared_with` are the numbers of runs that were alive in the same
    live sandbox: `changes` are theirs too. While some of them are, they are those since the last checkpoint, for
    which everything stood still for `standstill_s`; `unsettled` without one: what was changed is known when the last
    one has ended. `apart` is the sandbox that holds what was changed, where another run has changed the same meanwhile.
    """

    run: RunId
    number: int
    outcome: Outcome
    stdout: Output
    stderr: Output
    changes: ChangeSet
    held: bool
    duration_s: float
    operation: Operation | None = None
    flagged: tuple[tuple[bytes, str], ...] = ()
    told: tuple[bytes, ...] = ()
    problem: str = ""
    hints: tuple[Hint, ...] = ()
    warnings: tuple[str, ...] = ()
    connections: tuple[Connection, ...] = ()
    denials: tuple[Denial, ...] = ()
    ports: tuple[PortTraffic, ...] = ()
    sandboxed: bool = True
    shown_lines: int = 50
    shown_bytes: int = 32 * 1024
    project: bytes = b""
    workspace: bytes = b""
    shared_with: tuple[int, ...] = ()
    unsettled: bool = False
    apart: str = ""
    standstill_s: float | None = None

    @property
    def exit_code(self) -> int:
        """The code that `unspill run` exits with: the command's own, 124 timeout, 125 our failure."""
        return exit_code_of(self.outcome)

    @property
    def ok(self) -> bool:
        return self.outcome == Exited(code=0)

    def text(self) -> str:
        """Return stdout, stderr, the exit code if it is not 0, and what changed, cut to the policy's bounds."""
        if isinstance(self.outcome, NeverStarted):
            return _error_text(self.outcome)
        parts = [self.stdout.text, self.stderr.text]
        printed = "\n".join(part.rstrip("\n") for part in parts if part)
        lines = [] if self.sandboxed else [f"Note: {warning}" for warning in self.warnings]
        lines += [truncate(printed, self.shown_lines, self.shown_bytes)] if printed else []
        lines += [describe_end(self.outcome)] if not self.ok else []
        lines += [f"Note: {hint.text} {hint.remedy}".rstrip() for hint in self.hints]
        lines += network_lines(self.denials)
        if not lines:
            lines.append("No output received from command")
        if self.unsettled:
            lines.append(f"Note: {unsettled_text(self.shared_with)}")
        if self.changes:
            lines += ["", *_change_lines(self)]
        return "\n".join(lines) + "\n"


def unsettled_text(runs: tuple[int, ...]) -> str:
    """Say when what a run changed is known, for which others share its sandbox."""
    names = ", ".join(map(str, runs))
    what = f"run {names} has" if len(runs) == 1 else f"runs {names} have"
    return f"What it changed is taken when {what} ended: they share this sandbox."


def network_lines(denials: tuple[Denial, ...]) -> list[str]:
    """Say what was refused; only some of it, since the command chooses how much there is and how it reads."""
    lines = [f"Network: {place_told(denial)} was refused. {denial.remedy}" for denial in denials[:_MOST_DENIALS]]
    if len(denials) > _MOST_DENIALS:
        lines.append(f"Network: {len(denials) - _MOST_DENIALS} more were refused.")
    return lines


def place_told(denial: Denial) -> str:
    """Return where a connection was to go; what is no host name is the command's own text, and not told as ours."""
    return denial.place if _HOST_LETTERS.issuperset(denial.place) else "something that is not a host name"


def became(result: RunResult) -> list[tuple[State, list[str]]]:
    """Return what became of what a run changed: each state with the lines of what is in it."""
    if not result.changes:
        return []
    operation, changes, project = _as_seen(result)
    if operation is None:
        return [("held" if result.held else "discarded", _listed(changes, project))]
    if not operation.left:
        # Without a number it did nothing: what was held before, and is gone, the project never had
        return [("applied" if operation.number else "needless", _listed(changes, project))]
    skipped: tuple[State, list[str]] = ("skipped", render.skipped_lines(operation))
    if not operation.number:
        return [skipped]
    return [("applied", _listed(render.applied_part(changes, operation), project)), skipped]


def _as_seen(result: RunResult) -> tuple[Operation | None, ChangeSet, bytes]:
    """Return what was done, what changed and the project by the paths that the command knows."""
    operation, changes = result.operation, result.changes
    if not result.workspace:
        return operation, changes, result.project

    def inside(path: bytes) -> bytes:
        return to_inside(path, "rootfs", (result.workspace,))

    if operation is not None:
        roots = tuple(inside(root) for root in operation.roots)
        operation = operation.replace(project=inside(operation.project), roots=roots)
    parts = tuple(part.replace(root=inside(part.root)) for part in changes.roots)
    return operation, changes.replace(roots=parts), inside(result.project)


def _change_lines(result: RunResult) -> list[str]:
    """Say what changed and what became of it, without advice that only the person could follow."""
    why = f" because the apply failed: {result.problem}" if result.problem else ""
    lines = []
    for state, listed in became(result):
        lines += [_HEADINGS[state].format(why=why), *listed]
    return lines


def _listed(changes: ChangeSet, project: bytes) -> list[str]:
    return render.summary_lines(changes, fold_git=True, project=project or None) or ["only timestamps"]


def _error_text(outcome: NeverStarted) -> str:
    remedy = f" {outcome.remedy}" if outcome.remedy else ""
    if outcome.exit_code == 125:
        return f"ERROR: sandbox could not be started: {outcome.reason}.{remedy}\n"
    return f"ERROR: command could not be started: {outcome.reason}.{remedy}\nExit code: {outcome.exit_code}\n"


class Cut(Record):
    """The beginning of a text: how many of its lines that is, and of how many.

    `is_part`: the last of them lacks its end. `left_out` is how many bytes there are after what is shown.
    """

    text: str
    lines: int
    total: int
    is_cut: bool
    is_part: bool
    left_out: int


def cut_text(text: str, lines: int, size: int) -> Cut:
    """Return the first lines of a text, and no more than so many bytes."""
    all_lines = text.split("\n")
    raw = text.encode("utf-8", "surrogatepass")
    shown = len("\n".join(all_lines[:lines]).encode("utf-8", "surrogatepass"))
    cut = raw[: min(shown, size)].decode("utf-8", "ignore")
    end = len(cut.encode("utf-8"))
    if end < shown and cut.endswith("\n"):
        cut, end = cut[:-1], end - 1
    return Cut(
        text=cut,
        lines=cut.count("\n") + 1,
        total=len(all_lines),
        is_cut=end < len(raw),
        is_part=end < shown and raw[end : end + 1] != b"\n",
        left_out=len(raw) - end,
    )


def truncate(text: str, lines: int, size: int) -> str:
    """Cut a text to its first lines and bytes, and say so."""
    cut = cut_text(text, lines, size)
    if not cut.is_cut:
        return text
    part = f", the last in part with {cut.left_out} bytes left out" if cut.is_part else ""
    notice = f"output truncated: showing first {cut.lines} of {cut.total} lines{part}, output too long"
    return f"{cut.text}\n\n// ... ({notice}) ..."


def describe_end(outcome: Outcome) -> str:
    """Return how a run ended, in one line."""
    match outcome:
        case Exited():
            return f"Exit code: {outcome.code}"
        case Signalled():
            return f"Exit code: {128 + outcome.signal} (signal {outcome.signal})"
        case TimedOut():
            return f"Command timed out after {outcome.after_s:g}s\nExit code: 124"
        case Cancelled():
            return "Command was cancelled\nExit code: 130"
        case LimitReached():
            return f"Command killed: {outcome.describe()}\nExit code: 137"
        case NeverStarted():
            return f"Command was not started: {outcome.reason}"


class Applied(Record):
    """What became of a run's changes: the operation that applied them, and whether any of them is held."""

    operation: Operation | None = None
    is_held: bool = False
    flagged: tuple[tuple[bytes, str], ...] = ()
    told: tuple[bytes, ...] = ()
    problem: str = ""
    apart: Apart | None = None


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
        told=applied.told,
        problem=applied.problem if applied.apart is None else str(applied.apart),
        apart="" if applied.apart is None else applied.apart.sandbox,
        duration_s=duration_s,
        hints=(*performed.hints, *_remains_hints(plan, performed)),
        warnings=(
            *_warnings(project, plan, traffic),
            *_news_of_profile(project, plan),
            *notes,
            *tracked_warnings(project, masks),
            *hidden_news(project, masks.hidden),
        ),
        shown_lines=project.means.policy.shown_lines,
        shown_bytes=project.means.policy.shown_bytes,
        connections=() if traffic is None else traffic.connections,
        denials=() if traffic is None else traffic.denials,
        ports=() if traffic is None else traffic.ports,
        project=project.path,
        workspace=project.roots[0] if project.roots and project.means.policy.view == "rootfs" else b"",
    )


def with_hints(project: Project, plan: Plan, performed: Performed, masks: Masks) -> Performed:
    """Return what was performed with what may explain its end, found before any of its changes is applied."""
    if performed.outcome == Exited(code=0):
        return performed

    hints = network_hints(plan.network, performed.outcome, performed.stdout, performed.stderr)
    own = worktree_hints(project.path, performed.outcome, performed.stdout, performed.stderr)
    # What would make git's directory writable makes half a commit
    known = tuple(hint for hint in performed.hints if not own or hint.code not in ("denied-path", "read-only"))
    return performed.replace(hints=(*own, *known, *hints, *_mask_hints(project, masks, performed)))


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
    hidden: tuple[bytes, ...],
    project: bytes,
    name: Callable[[bytes], bytes] | None = None,
    discard: str = "unspill discard",
) -> tuple[str, ...]:
    """Say which entries of a root a run does not see, because their deletion is held.

    `name` is how to type one, `discard` the command that drops its deletion.
    """
    if not hidden:
        return ()
    more = f" and {len(hidden) - _SECRETS_NAMED} more" if hidden[_SECRETS_NAMED:] else ""
    names = ", ".join(quote(path.removeprefix(project + b"/")) for path in hidden[:_SECRETS_NAMED])
    typed = [shell_word(path if name is None else name(path)) for path in hidden]
    words = "PATH ..." if more else " ".join(typed)
    what = "it" if len(hidden) == 1 else "them"
    return (f"This run does not see {names}{more}: held changes delete {what}. To see {what}: {discard} {words}",)


def _remains_hints(plan: Plan, performed: Performed) -> tuple[Hint, ...]:
    remains = performed.remains
    if not (remains.lost or remains.killed):
        return ()

    return remains_hints(remains, dict(plan.environ).get(b"HOME", b""))


def _mask_hints(project: Project, masks: Masks, performed: Performed) -> tuple[Hint, ...]:
    if not masks.hidden:
        return ()
    view, roots = project.means.policy.view, project.roots
    hidden = [to_inside(path, view, roots) for path in masks.hidden]
    return mask_hints(
        hidden, to_inside(project.path, view, roots), performed.outcome, performed.stdout, performed.stderr
    )


def worktree_hints(project: bytes, outcome: Outcome, *outputs: Output) -> tuple[Hint, ...]:
    """Return why git failed in a worktree or module whose repository lies elsewhere."""
    lines = b"".join(_last(output)[-_HINT_TAIL:] for output in outputs)
    is_missing, is_written = b"not a git repository: " in lines, b".lock': Read-only file system" in lines
    if not isinstance(outcome, Exited) or not (is_missing or is_written):
        return ()
    repository = find_outside(project)
    if repository is None or repository not in lines:
        return ()
    if is_missing:
        text = f"The repository of this worktree lies outside of the project, at {quote(repository)}."
        word = shell_word(repository)
        remedy = f"Show it to one run with `--readable {word}`, or to all with `readable` in your configuration."
        return (Hint(code="git-outside", text=text, remedy=remedy),)
    text = f"The repository of this worktree lies outside of the project, at {quote(repository)}: it is read-only."
    return (Hint(code="git-outside", text=text, remedy="Commit without unspill, or run it in the repository itself."),)


def network_hints(network: NetworkPlan, outcome: Outcome, *outputs: Output) -> tuple[Hint, ...]:
    """Return the explanation of a failed command that was looking for a host, if that is what it seems."""
    if isinstance(outcome, NeverStarted) or not any(word in _last(output) for word in _NO_HOST for output in outputs):
        return ()
    match network:
        case NoNetwork():
            return (_NETWORK_OFF,)
        case ProxyNetwork():
            return (_BY_PROXY,)
    return ()


def _last(output: Output) -> bytes:
    return output.tail or output.head


def remains_hints(remains: Remains, home: bytes) -> tuple[Hint, ...]:
    """Return a hint for lost files and one for stopped processes, as far as there were any."""
    hints = []
    if remains.lost:
        names = [_at_home(path, home) for path in remains.paths[:_REMAINS_NAMED]]
        text = f"Not kept, since these directories are temporary: {_named(names, remains.lost)}."
        hints.append(Hint(code="not-kept", text=text, remedy=""))
    if remains.killed:
        what = "1 process that was" if remains.killed == 1 else f"{remains.killed} processes that were"
        names = [_cut(command) for command in remains.commands[:_REMAINS_NAMED]]
        text = f"Stopped {what} still running: {_named(names, remains.killed)}."
        hints.append(Hint(code="stopped-processes", text=text, remedy=""))
    return tuple(hints)


def _at_home(path: bytes, home: bytes) -> str:
    return "~/" + _cut(path[len(home) + 1 :]) if path.startswith(home + b"/") else _cut(path)


def _cut(name: bytes) -> str:
    """Return a command's own words in quotes of ours, so that they can't be a sentence among ours."""
    shown = quote(name)
    if len(shown) <= _LONGEST_NAME:
        return shown
    end = '"' if shown.startswith('"') else ""
    return shown[:_LONGEST_NAME].rstrip("\\") + end + "..."


def _named(names: list[str], count: int) -> str:
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def record_run(project: Project, spec: RunSpec, result: RunResult) -> RunResult:
    """Record a run and tell of what was applied; return its result, with a warning if one of these failed."""
    if not result.run:
        return result
    ending = f"{type(result.outcome).__name__} {exit_code_of(result.outcome)}"
    event = _run(project, spec, result.run, result.number, ending) | {
        "sandboxed": result.sandboxed,
        "connections": len(result.connections),
        "denials": len(result.denials),
        "changed": len(result.changes),
        **path_fields(result.changes.paths(), project.path),
    }
    if result.standstill_s is not None:
        event["standstill_s"] = round(result.standstill_s, 6)
    applied = result.operation if result.operation is not None and result.operation.number else None
    problems = [_note(project.store, event, *(() if applied is None else (_event(applied),)))]
    if applied is not None:
        problems.append(_tell(applied, spec.on_change))
    return result.replace(warnings=(*result.warnings, *filter(None, problems))) if any(problems) else result


def record_failure(
    project: Project, spec: RunSpec, run: Run, error: BaseException, *, is_sandboxed: bool = True
) -> None:
    """Record a run that has no result: we failed, or were interrupted, when it may have begun."""
    event = _run(project, spec, run.id, run.number, f"failed: {type(error).__name__}")
    _note(project.store, event | {"sandboxed": is_sandboxed})


def _run(project: Project, spec: RunSpec, run: str, number: int, ending: str) -> Event:
    network = project.means.policy.network
    return {
        "kind": "run",
        "run": run,
        "number": number,
        "sandbox": project.row.id,
        "project": as_text(project.path),
        "command": command_text(spec.argv, most_bytes=_COMMAND_BYTES, most_words=_MOST),
        "cwd": as_text(spec.cwd),
        "ending": ending,
        "network": network.mode if spec.network else "",
        "hosts": list(network.hosts[:_MOST]),
    }


def record_operation(store: Store, operation: Operation, on_change: OnChange | None = None) -> Operation:
    """Record an operation and tell of it; return it, with a note if one of these failed."""
    if not operation.number:
        return operation
    problems = (_note(store, _event(operation)), _tell(operation, on_change))
    return operation.replace(notes=(*operation.notes, *filter(None, problems))) if any(problems) else operation


def _tell(operation: Operation, on_change: OnChange | None) -> str | None:
    """Call an application back with what changed in its project; return what to say if it raises.

    What is done is done and recorded: a mistake in the callback is a warning, never the operation's failure.
    """
    if on_change is None or not operation.paths or operation.kind == "discard":
        return None
    try:
        on_change(operation)
    except Exception as error:
        why = f"{type(error).__name__}: {str(error)[:_LONGEST_NAME]}"
        return f"{UNHEARD}{operation.number}: {show_line(why.encode('utf-8', 'backslashreplace'))}"
    return None


def _note(store: Store, *events: Event) -> str | None:
    try:
        Audit(store.state + b"/audit", session=store.session).append(*events, durable=False)
    except StoreError as error:
        return error.message
    return None


def _event(operation: Operation) -> Event:
    paths = operation.paths
    if operation.ending == "rolled back":
        # What could not be taken back is what it changed
        paths = tuple(operation.roots[left.root] + b"/" + left.path for left in operation.left)
    return {
        "kind": "operation",
        "operation": operation.id,
        "number": operation.number,
        "what": operation.kind,
        "project": as_text(operation.project),
        "sandbox": operation.sandbox,
        "asked_by": operation.asked_by[:200],
        "ending": operation.ending,
        "of": operation.of,
        "runs": list(operation.runs[:_MOST]),
        "changed": operation.changed,
        "left": len(operation.left),
        **path_fields(paths, operation.project),
    }
