# SPDX-License-Identifier: Apache-2.0
"""One run from the lock to the record of its end: layers, plan, perform, scan; apply, hold or drop.

Whatever happens in between, what the command has written is kept as `after_cancel` says; if this process is killed,
the next one that opens the project holds it.

A grant for "this very command" must not be one for whatever is put in the program's place afterwards. What lies where
no command can write stays what it is; of a file in a root the digest goes into the request; whatever can't be told for
sure, without following a link on the host's side, is only ever allowed once. With `network.ask` a connection to a host
that no rule covers waits for an answer while the command runs.

A command without a sandbox runs once as if the person had typed it, after they allowed that very command; or always, in
container mode, as a plain process of the container that unspill itself is in. That is weaker than any sandbox and never
chosen by itself: the person's own configuration must say so, and no sandbox be had. Both are recorded like any run;
what they change nobody knows, so nothing is held and nothing can be undone, and the result says so.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from unspill.errors import (
    DeniedError,
    SandboxUnavailable,
    UnspillError,
    UsageError,
)
from unspill.host.dirfd import DESCRIPTORS_REMEDY, Beneath
from unspill.host.libc import DeferredSignals
from unspill.layers.lifecycle import drop_run, find_hidden, has_others, load_stacks, open_run, seal_run
from unspill.layers.locks import (
    GivenUp,
    RunUse,
    end_going_on,
    is_left,
    keeper_files,
    lock_sandbox,
    refuse_kept,
    spill_dir,
    this_process,
    upper_dir,
    wait_for_lock,
)
from unspill.layers.mask import MaskUse
from unspill.lazy import lazy_module
from unspill.model.change import ChangeSet
from unspill.model.permission import INHERITED, UNKNOWN_PROGRAM, Egress, digest_of
from unspill.model.plan import (
    Bind,
    NoNetwork,
    Overlay,
    ProxyNetwork,
    Symlink,
)
from unspill.model.run import Cancelled, Ended, InheritedInput, LimitReached, NeverStarted, Started, TimedOut
from unspill.plan.environ import contained_environ
from unspill.plan.view import (
    find_cover,
    is_writable_mount,
    missing_text,
    not_a_directory_text,
    playground_taken,
    to_host,
)
from unspill.policy.paths import contains, normalise, quote
from unspill.runner.perform import perform
from unspill.runner.watch import (
    FREE_SPACE_KEPT,
    NO_DIRECTORY,
    NOT_A_DIRECTORY,
    RunControl,
    free_bytes,
)
from unspill.sandbox.planning import get_places, make_plan, playground_of
from unspill.sandbox.result import (
    Applied,
    RunResult,
    hidden_notes,
    make_result,
    never_begun,
    record_failure,
    with_hints,
)
from unspill.sandbox.scan import (
    end_interrupted,
    find_bases,
    hold_failed,
    hold_of_sandbox,
    is_unwritten,
    keep_base_objects,
    keep_bases,
    keep_seen,
    remove_unchanged,
    scan_run,
    tell_cancelled,
    when_settled,
    with_last_look,
)
from unspill.sandbox.secrets import find_masks, remember_revealed, with_covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from unspill.layers.lifecycle import OpenRun
    from unspill.layers.locks import SandboxLock, StackUse
    from unspill.model.plan import Places, Plan
    from unspill.model.policy import After
    from unspill.model.run import Outcome, Run, RunId, Traffic
    from unspill.network.proxy import Ask, Gate
    from unspill.permissions.broker import Broker
    from unspill.runner.perform import Performed
    from unspill.sandbox import beside, rootfs_use
    from unspill.sandbox.checkpoints import SpanCopies
    from unspill.sandbox.planning import RunSpec
    from unspill.sandbox.project import Project
    from unspill.sandbox.secrets import Masks
else:
    beside = lazy_module("unspill.sandbox.beside")  # lazy: changes
    rootfs_use = lazy_module("unspill.sandbox.rootfs_use")  # lazy: rootfs


_TOO_LARGE = ("layer_bytes", "layer_entries", "free_space", "free_inodes")
_NOT_EXECUTED = (126, 127)
_NOT_IN_ROOTFS = "`unspill rootfs info --tools` lists what the rootfs has; `pull --package NAME` adds to it."

_MOST_BYTES = 64 << 20
_STEADY = ""
# The kernel follows no more scripts than these, one the interpreter of the other, and reads so much of each
_MOST_INTERPRETERS = 6
_LINE_BYTES = 256
# Of a program, enough for what is before its code
_HEAD_BYTES = 8192
_LITTLE_64_BITS = b"\x02\x01"
_LOADER = b"\x03\0\0\0"
_READ_PACKAGES = (b"python", b"pip")
# The size of a window comes and goes, and no program does anything else because of it
_WINDOW_SIZES = (b"COLUMNS", b"LINES")
_STDIN_SHOWN = 4096
_NOT_ALLOWED = "it was not allowed"
IN_CONTAINER = (
    "container mode: this ran WITHOUT a sandbox, as a plain process of the {name} container that unspill is in. All"
    " that the container has was open to it; what it changed is not known and can't be undone"
)
WARNING = "this ran WITHOUT a sandbox, because it was allowed: what it changed is not known and can't be undone"


def run_command(project: Project, spec: RunSpec) -> RunResult:
    """Run one command in a sandbox; or, in container mode, without one.

    Raises:
        HostError: no sandbox can be made here.
        UsageError: the working directory does not exist in the sandbox.
        DeniedError: another program is in the place of the one that something was allowed to.
        SandboxUnavailable: we failed; what the command may have written is kept as that of a cancelled run.
    """
    if project.means.container:
        return run_contained(project, spec)
    project.means.check_sandbox()
    try:
        return _run_in_turn(project, spec)
    except (OSError, SandboxUnavailable) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise SandboxUnavailable(f"too many open files: {cause.strerror}", remedy=DESCRIPTORS_REMEDY) from error


def refuse_full_disk(project: Project) -> None:
    """Refuse a run where the disk has no room for its layers.

    Raises:
        SandboxUnavailable: it is nearly full.
    """
    if free_bytes(project.store.state) < FREE_SPACE_KEPT:
        raise SandboxUnavailable(
            "the disk that holds the layers is nearly full", remedy="Free some space, or `unspill discard`."
        )


def _run_in_turn(project: Project, spec: RunSpec) -> RunResult:
    refuse_full_disk(project)
    end_interrupted(project.store)
    use = begin_use(project, spec)
    if use is None:
        return never_begun(project)
    with use:
        return _run(project, spec, use)


def begin_use(project: Project, spec: RunSpec) -> RunUse | None:
    """Wait until a run may begin, beside others; return its use of the stack, None where its caller gave up.

    Raises:
        SandboxUnavailable: background runs use the sandbox.
    """
    try:
        # What two runs add to a rootfs can't be told apart, so such runs wait for each other
        alone = spec.alone or project.means.policy.rootfs_writable
        state, sandbox = project.store.state, project.row.id
        use = RunUse(state, sandbox, spec.cancel_fd, alone=alone, on_wait=lambda: tell_waiting(project, spec))
    except GivenUp:
        return None
    try:
        if spec.after != "discard":
            if not _wait_for_ending(project, spec, use):
                use.release()
                return None
            hold_left(project, spec)
    except BaseException:
        use.release()
        raise
    return use


def _wait_for_ending(project: Project, spec: RunSpec, use: RunUse) -> bool:
    """Refuse a run beside those that a keeper has; wait for one that ends, so that this run sees what it changed.

    A run that is alone waits for any that is being applied. False if the caller gave up before.

    Raises:
        SandboxUnavailable: background runs use the sandbox.
    """
    state, sandbox = project.store.state, project.row.id
    if use.is_alone or os.path.exists(keeper_files(state, sandbox)[0]):
        refuse_kept(state, sandbox)
        lock = wait_for_lock(state, sandbox, spec.cancel_fd, lambda: tell_waiting(project, spec))
        if lock is None:
            return False
        lock.release()
    return True


def hold_left(project: Project, spec: RunSpec) -> None:
    """Hold what an earlier run left that has no end, so that the next one sees it."""
    left = [run for run in project.store.runs.unfinished() if run.keeps and run.sandbox == project.row.id]
    if any(map(is_left, left)):
        with lock_sandbox(project.store.state, project.row.id):
            tell_interrupted(spec, hold_of_sandbox(project))


def tell_waiting(project: Project, spec: RunSpec) -> None:
    """Say at once what a run waits for."""
    if spec.on_wait is None:
        return
    unfinished = {run.id for run in project.store.runs.unfinished()}
    others = [run for run in project.store.runs.latest(project.row.id, 100) if run.id in unfinished]
    reason = "an operation on this sandbox"
    if others:
        reason = f"run {others[-1].number} of this sandbox ({' '.join(map(quote, others[-1].argv))[:60]})"
    spec.on_wait(reason)


def tell_interrupted(spec: RunSpec, runs: tuple[Run, ...]) -> None:
    if spec.on_interrupted is not None:
        spec.on_interrupted(runs)


def _run(project: Project, spec: RunSpec, use: StackUse) -> RunResult:
    if project.means.policy.view == "rootfs":
        with use_rootfs(project) as places:
            return _run_with_masks(project, spec, use, places)
    return _run_with_masks(project, spec, use)


def use_rootfs(project: Project) -> rootfs_use.RootfsUse:
    """Return what keeps the rootfs of a project in place, in a block that begins with where everything is."""
    return rootfs_use.RootfsUse(lambda afresh: get_places(project, afresh=afresh))


def _run_with_masks(project: Project, spec: RunSpec, use: StackUse, places: Places | None = None) -> RunResult:
    with MaskUse(project.store.state):
        masks = find_masks(project, spec.revealed)
        return _run_masked(project, spec, use, masks, places or get_places(project))


def _run_masked(project: Project, spec: RunSpec, use: StackUse, masks: Masks, places: Places) -> RunResult:
    begun = time.monotonic()
    under_way = when_settled(
        project,
        lambda: open_run(
            project.store,
            project.row,
            argv=spec.argv,
            cwd=spec.cwd,
            roots=project.roots,
            caches=places.home.caches,
            masks=masks.layers,
            bases=find_bases(project),
            rootfs=writable_rootfs(project, places),
            after_cancel=spec.after_cancel,
            limits=spec.limits,
        ),
    )
    try:
        return _run_opened(project, spec, use, masks, places, under_way, begun)
    finally:
        end_going_on(under_way.run.id)


def _run_opened(
    project: Project,
    spec: RunSpec,
    use: StackUse,
    masks: Masks,
    places: Places,
    under_way: OpenRun,
    begun: float,
) -> RunResult:
    try:
        if spec.revealed:
            remember_revealed(project, under_way.run.id, spec.revealed)
        under_way = under_way.replace(stacks=with_covers(project, under_way.stacks, spec.revealed))
        plan = _checked_plan(project, spec, places, under_way)
        gate = open_gate(project, spec, under_way, plan)
        performed, changes, traffic = _perform_and_scan(project, spec, under_way, plan, gate)
        if spec.live is not None:
            under_way = under_way.replace(taken_away=spec.live.taken_away())
        performed = with_hints(project, plan, performed, masks)
    except BaseException as error:
        with lock_sandbox(project.store.state, project.row.id):
            tell_interrupted(spec, hold_failed(project, spec, under_way, error))
        raise
    result = None
    try:
        with DeferredSignals():
            result = close_run(project, spec, masks, under_way, plan, performed, changes, traffic, begun, use)
            if performed.raised is not None:
                raise performed.raised
        if spec.on_event is not None:
            spec.on_event(Ended(run=under_way.run.id, outcome=performed.outcome))
        return result
    except BaseException as error:
        if result is not None:
            tell_cancelled(project, spec, result, error)
        raise


def close_run(
    project: Project,
    spec: RunSpec,
    masks: Masks,
    under_way: OpenRun,
    plan: Plan,
    performed: Performed,
    changes: ChangeSet,
    traffic: Traffic | None,
    begun: float,
    use: StackUse | None = None,
    copies: SpanCopies | None = None,
) -> RunResult:
    """Apply, hold or drop what a run has changed, and record its end. With `copies` there were checkpoints before.

    `use` is the run's of its stack, where it does not have the sandbox's lock.
    """
    is_dropped = _is_dropped(performed.outcome)
    after = after_of(project, spec, performed.outcome)
    since = None if copies is None else copies.since(under_way)
    told = changes if since is None else since
    changed = sum(not change.is_mere_touch for change in told)
    ended = ended_run(under_way.run, performed).replace(changed=changed)
    if traffic is not None:
        project.store.traffic.put(under_way.run.id, traffic)
    notes = hidden_notes(find_hidden(under_way.stacks), project.path)
    if under_way.rootfs and not is_dropped and after != "discard":
        notes += rootfs_use.notes_of(under_way.rootfs)
    # A new time alone is applied, but not held
    is_nothing = not changes or (after == "hold" and copies is None and not changed)
    if is_nothing or after == "discard" or is_dropped:
        drop_run(project.store, under_way, ended, fold=not is_dropped, rootfs=after != "discard")
        applied = Applied()
    else:
        lock, is_kept = (None, False) if use is None else _wait_for_turn(project, spec)
        try:
            if is_kept:
                apart = beside.apart_from_kept(project, under_way)
                applied = _hold_apart(project, under_way, ended, changes, apart)
            else:
                applied = _seal_and_apply(project, under_way, ended, changes, after, use, copies, since)
        finally:
            if lock is not None:
                lock.release()
        if isinstance(performed.outcome, NeverStarted) and applied.is_held:
            tell_interrupted(spec, (ended.replace(held=True),))
    refuse_bad_directory(performed.outcome, spec.cwd)
    duration_s = time.monotonic() - begun
    return make_result(project, under_way.run, plan, performed, told, applied, traffic, masks, duration_s, notes)


def _wait_for_turn(project: Project, spec: RunSpec) -> tuple[SandboxLock | None, bool]:
    """Return the sandbox's lock, which a run needs to change the stack; True if background runs have taken it since."""
    try:
        return wait_for_lock(project.store.state, project.row.id, None, lambda: tell_waiting(project, spec)), False
    except SandboxUnavailable:
        return None, True


def writable_rootfs(project: Project, places: Places) -> tuple[bytes, ...]:
    if not project.means.policy.rootfs_writable:
        return ()

    return rootfs_use.writable_directories(project, places.rootfs)


def _checked_plan(project: Project, spec: RunSpec, places: Places, under_way: OpenRun) -> Plan:
    """Return the plan of a run. What was allowed to one program is not for another that is in its place by now."""
    plan = make_plan(project, spec, places, under_way.stacks, under_way.caches, under_way.rootfs)
    if spec.program is not None:
        check_program(project, plan, spec.program)
    return plan


def _seal_and_apply(
    project: Project,
    under_way: OpenRun,
    ended: Run,
    changes: ChangeSet,
    after: After,
    use: StackUse | None,
    copies: SpanCopies | None,
    since: ChangeSet | None,
) -> Applied:
    is_beside = use is not None and has_others(project.store, under_way)
    if is_beside and (apart := beside.find_apart(project, under_way, changes)) is not None:
        return _hold_apart(project, under_way, ended, changes, apart)
    keep_bases(project, under_way, changes)
    is_seen = after != "apply" or any(stack.sealed for stack in under_way.stacks)
    if is_seen or under_way.taken_away:
        # What is applied at once needs no texts
        keep_seen(project, under_way, changes, None if copies is None else copies.explained, may_read=is_seen)
    if after != "apply":
        remove_unchanged(changes, under_way)
    stacks = seal_run(project.store, under_way, ended)
    if is_beside:
        stacks = load_stacks(project.store, project.row.id, project.roots)
    if use is not None:
        # From here on the layers are nobody's but the apply's, unless others stand on them
        use.release()
    # Checkpoints may have put all of it into the project
    applied = Applied(is_held=copies is None or bool(project.store.layers.sealed_ids(project.row.id)))
    if after == "apply":
        from unspill.sandbox.apply import apply_run  # lazy: apply

        if copies is None or since is None:
            applied = apply_run(project, under_way.run.id, changes, stacks, beside=under_way.beside)
        else:
            wanted = copies.only(changes, since)
            applied = apply_run(project, under_way.run.id, wanted, stacks, copies.own, under_way.beside)
            # What a checkpoint has left, or somebody has undone since, stays in the layer
            left = bool(project.store.layers.sealed_ids(project.row.id))
            applied = applied.replace(is_held=applied.is_held or left)
    is_whole = not (applied.operation and applied.operation.number)
    if after == "apply" and is_whole and project.store.layers.sealed_ids(project.row.id):
        # After an apply that did nothing the whole layer is held as if nobody had tried
        if not is_seen and copies is None:
            keep_seen(project, under_way, changes)
        remove_unchanged(changes, under_way)
    if applied.is_held:
        keep_base_objects(project, under_way)
    return applied


def _hold_apart(
    project: Project,
    under_way: OpenRun,
    ended: Run,
    changes: ChangeSet,
    apart: beside.Apart,
) -> Applied:
    keep_seen(project, under_way, changes)
    moved = beside.move_apart(project, under_way, apart, changes)
    keep_bases(project, moved, changes)
    remove_unchanged(changes, moved)
    seal_run(project.store, moved, ended.replace(sandbox=moved.run.sandbox))
    keep_base_objects(project, moved)
    return Applied(is_held=True, apart=apart)


def refuse_bad_directory(outcome: Outcome, cwd: bytes) -> None:
    """Raise what would have been raised before, had the host known what only the sandbox has."""
    if isinstance(outcome, NeverStarted) and outcome.reason in (NO_DIRECTORY, NOT_A_DIRECTORY):
        text = missing_text if outcome.reason == NO_DIRECTORY else not_a_directory_text
        raise UsageError(text(cwd))


def open_gate(project: Project, spec: RunSpec, under_way: OpenRun, plan: Plan) -> Gate | None:
    """Return the way out of a run, None where it has none of ours."""
    if isinstance(plan.network, NoNetwork):
        return None
    from unspill.network.proxy import make_gate  # lazy: proxy

    ask = None
    if isinstance(plan.network, ProxyNetwork) and plan.network.ask and spec.broker is not None:
        ask = make_asker(project, spec, plan, spec.broker, under_way.run.id)
    return make_gate(plan.network, is_own_process=spec.may_fork, ask=ask)


def _perform_and_scan(
    project: Project, spec: RunSpec, under_way: OpenRun, plan: Plan, gate: Gate | None
) -> tuple[Performed, ChangeSet, Traffic | None]:
    if spec.live is not None:
        spec.live.watch(project.roots)
    try:
        performed = perform(plan, project.means.facts, make_control(project, spec, under_way.run.id, gate), spec.live)
    finally:
        traffic = None if gate is None else gate.close()
        if spec.ports is not None:
            traffic = spec.ports.settle(traffic)
        if spec.broker is not None:
            spec.broker.withdraw(under_way.run.id)
    performed, changes = look_at_layers(performed, plan, under_way)
    return performed, changes, traffic


def make_control(project: Project, spec: RunSpec, run: RunId, gate: Gate | None) -> RunControl:
    """Return what the caller wants of a run besides its plan."""
    return RunControl(
        run=run,
        spill_dir=spill_dir(project.store.state, run),
        stdin=spec.stdin,
        on_event=spec.on_event,
        cancel_fd=spec.cancel_fd,
        may_fork=spec.may_fork,
        on_listener=None if gate is None else gate.serve,
        waited_s=None if gate is None else gate.waited_s,
        # Whoever gives up is told so when what the command has written is safe
        returns_raised=True,
        terminal=spec.terminal,
    )


def look_at_layers(performed: Performed, plan: Plan, under_way: OpenRun) -> tuple[Performed, ChangeSet]:
    """Return how a run ended and what it changed. Nothing can write its layers any more."""
    performed = with_remedy(performed, plan)
    # If bwrap itself is killed, nobody says that the command was started, but it may have written something
    if isinstance(performed.outcome, NeverStarted) and is_unwritten(under_way):
        return performed, ChangeSet(roots=())
    return with_last_look(performed, under_way, plan.limits), scan_run(under_way)


def with_remedy(performed: Performed, plan: Plan) -> Performed:
    """Say where to look for a program that a rootfs does not have."""
    outcome = performed.outcome
    if plan.rootfs and isinstance(outcome, NeverStarted) and outcome.exit_code in _NOT_EXECUTED:
        return performed.replace(outcome=outcome.replace(remedy=_NOT_IN_ROOTFS))
    return performed


def _is_dropped(outcome: Outcome) -> bool:
    """A layer over its bound is not kept because of that bound."""
    return isinstance(outcome, LimitReached) and outcome.limit in _TOO_LARGE


def after_of(project: Project, spec: RunSpec, outcome: Outcome) -> After:
    """What was cut short is applied only where the person says so."""
    if isinstance(outcome, Cancelled | NeverStarted):
        return spec.after_cancel
    if spec.after == "apply" and isinstance(outcome, TimedOut | LimitReached):
        return project.means.policy.after_timeout
    return spec.after


def ended_run(run: Run, performed: Performed) -> Run:
    return run.replace(
        ended_ns=time.time_ns(), outcome=performed.outcome, stdout=performed.stdout, stderr=performed.stderr
    )


def identify_program(project: Project, plan: Plan) -> str:
    """Return nothing for a program that no command can change, else its digest, or `UNKNOWN_PROGRAM`.

    What a program is run by is a part of it: the interpreter of a script, and the interpreter's own, to the last.
    """
    parts: list[str] = []
    name: bytes | None = plan.argv[0]
    for _ in range(_MOST_INTERPRETERS):
        if name is None:
            break
        part, head = (UNKNOWN_PROGRAM, b"") if not name else _look_at(project, plan, name)
        if part == UNKNOWN_PROGRAM:
            return part
        parts += [part] * bool(part)
        name = _interpreter_of(head)
    if name is not None:
        return UNKNOWN_PROGRAM
    return digest_of("".join(parts).encode()) if len(parts) > 1 else "".join(parts)


def _look_at(project: Project, plan: Plan, name: bytes) -> tuple[str, bytes]:
    """Return what stands for one file that is executed, and how it begins."""
    if plan.rootfs and os.path.basename(name).startswith(_READ_PACKAGES):
        # PYTHONPATH is ours in this view, and leads to where every command can write
        return UNKNOWN_PROGRAM, b""
    if b"/" not in name:
        place = _found_in_path(plan, dict(plan.environ).get(b"PATH", b""), name)
    else:
        place = name if name.startswith(b"/") else plan.cwd + b"/" + name.removeprefix(b"./")
    if not place or normalise(place) != place:
        return UNKNOWN_PROGRAM, b""
    if _is_steady(plan, place):
        return _steady(plan, place)
    return _digest_in_root(project, to_host(place, project.means.policy.view, project.roots))


def _interpreter_of(head: bytes) -> bytes | None:
    """Return what the kernel starts for a file that begins so: None for the file itself, nothing if that is unclear."""
    if head.startswith(b"\x7fELF"):
        return _loader_of(head)
    if not head.startswith(b"#!"):
        return None
    line, end, _rest = head[2:_LINE_BYTES].partition(b"\n")
    program, _blank, argument = line.replace(b"\t", b" ").strip(b" ").partition(b" ")
    argument = argument.strip(b" ")
    if not end or not program:
        return b""
    if os.path.basename(program) == b"env":
        # It starts what it is given; options and variables may make that anything
        return b"" if b" " in argument or b"=" in argument or argument.startswith(b"-") else argument
    if argument and (not argument.startswith(b"-") or b"/" in argument or b" " in argument):
        # Most interpreters would run this instead of the script
        return b""
    # Looked for in the working directory, not in PATH
    return program if b"/" in program else b"./" + program


def _loader_of(head: bytes) -> bytes | None:
    """Return the program that loads an ELF file with a head like this, None if there is none, nothing if unclear."""
    if head[4:6] != _LITTLE_64_BITS:
        return b""
    table, size, count = (int.from_bytes(head[at : at + width], "little") for at, width in ((32, 8), (54, 2), (56, 2)))
    for start in range(table, table + size * count, size or 1):
        entry = head[start : start + 40]
        if len(entry) < 40:
            return b""
        if entry[:4] == _LOADER:
            at, length = (int.from_bytes(entry[part : part + 8], "little") for part in (8, 32))
            return head[at : at + length].rstrip(b"\0") if at + length <= len(head) else b""
    return None


def check_program(project: Project, plan: Plan, allowed: str) -> None:
    """Refuse a program that is not the one that something was allowed to: the run has waited for others since.

    Raises:
        DeniedError: it was exchanged meanwhile.
    """
    if identify_program(project, plan) != allowed:
        raise DeniedError(
            "Permission denied: the program changed after its request was allowed.",
            remedy="Run it again to be asked about the program as it is now.",
        )


def _found_in_path(plan: Plan, path: bytes, name: bytes) -> bytes:
    """Return where the search ends, if that is at a program that no command can change, else nothing."""
    for directory in path.split(b":"):
        found = os.path.join(directory, name)
        # A link may lead to where a command can write, also one that leads nowhere yet
        if not _is_steady(plan, directory) or not _is_steady(plan, found):
            return b""
        # What can't be executed is passed over by the search
        if _is_executable(plan, found):
            return found
    return b""


def _steady(plan: Plan, path: bytes) -> tuple[str, bytes]:
    """Return what stands for a program that no command can change: of a rootfs, which one it is of."""
    if plan.rootfs:
        return rootfs_use.identify_in_rootfs(plan, path), b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return UNKNOWN_PROGRAM, b""
    try:
        return (_STEADY, os.pread(fd, _HEAD_BYTES, 0)) if stat.S_ISREG(os.fstat(fd).st_mode) else (UNKNOWN_PROGRAM, b"")
    finally:
        os.close(fd)


def _is_executable(plan: Plan, path: bytes) -> bool:
    if plan.rootfs:
        return rootfs_use.is_executable_in_rootfs(plan, path)
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_steady(plan: Plan, path: bytes) -> bool:
    """Tell whether a path lies in what is shown read-only, through links of the plan at most."""
    if not path.startswith(b"/") or normalise(path) != path:
        return False
    if plan.rootfs:
        return rootfs_use.is_steady_in_rootfs(plan, path)
    cover = find_cover(plan.mounts, path)
    if isinstance(cover, Symlink):
        target = normalise(b"/" + cover.target + path[len(cover.dest) :])
        return b".." not in cover.target.split(b"/") and _is_steady(plan, target)
    if not isinstance(cover, Bind | Overlay) or is_writable_mount(cover):
        return False
    # A link of the host's may lead into a root, where the command can write
    real = os.path.realpath(path)
    return not any(is_writable_mount(op) and contains(op.dest, real) for op in plan.mounts)


def _digest_in_root(project: Project, place: bytes) -> tuple[str, bytes]:
    root = next((root for root in project.roots if contains(root, place) and root != place), None)
    if root is None:
        return UNKNOWN_PROGRAM, b""
    inside = place[len(root) + 1 :]
    for layer in _layers_of(project, root):
        found = _open_plain(layer, inside)
        if found is not None:
            return found
    return UNKNOWN_PROGRAM, b""


def _layers_of(project: Project, root: bytes) -> Iterator[bytes]:
    """Yield the directories that a root is made of, the topmost first, the live one last."""
    rows = [row for row in project.store.layers.sealed(project.row.id) if row.root == root]
    for row in reversed(rows):
        yield upper_dir(project.store.state, row.id)
    yield root


def _open_plain(layer: bytes, inside: bytes) -> tuple[str, bytes] | None:
    """Return the digest and the head of the file that a layer has there, None where it has nothing."""
    from unspill.changes.scan import digest_of_file  # lazy: approvals

    with Beneath(os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as tree:
        parts = inside.split(b"/")
        for count in range(1, len(parts) + 1):
            try:
                found = tree.find(b"/".join(parts[:count]))
            except OSError:
                return UNKNOWN_PROGRAM, b""
            if found is None:
                return None
            is_last = count == len(parts)
            # A link, a whiteout or a directory that hides the one below it: too much to be sure of
            if not (stat.S_ISREG if is_last else stat.S_ISDIR)(found.st_mode) or found.st_size > _MOST_BYTES:
                return UNKNOWN_PROGRAM, b""
        try:
            above, name = tree.parent(inside)
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
        except OSError:
            return UNKNOWN_PROGRAM, b""
        head = os.pread(fd, _HEAD_BYTES, 0)
        return digest_of_file(fd), head


def occasion_of(project: Project, spec: RunSpec, plan: Plan) -> dict[str, Any]:
    """Return what every request for this command has in common."""
    variables = dict(plan.environ)
    return {
        "project": project.path,
        "sandbox": project.row.id,
        "argv": spec.argv,
        "cwd": spec.cwd,
        "names": tuple(
            sorted(name.decode("utf-8", "surrogateescape") for name in variables if name not in _WINDOW_SIZES)
        ),
        "script": identify_program(project, plan),
        # What the variables that a caller sets have in common with the same ones another time: their values too
        "variables": digest_of(b"".join(b"%b=%b\0" % pair for pair in sorted(dict(spec.environ).items()))),
        **input_of(spec.stdin),
    }


def input_of(stdin: bytes | int | None) -> dict[str, Any]:
    """Return what a request says of what the command reads: a shell runs that as well as its words."""
    if isinstance(stdin, int):
        return {"stdin": INHERITED if isinstance(stdin, InheritedInput) else UNKNOWN_PROGRAM}
    return {"stdin": digest_of(stdin), "stdin_head": stdin[:_STDIN_SHOWN]} if stdin else {}


def make_asker(project: Project, spec: RunSpec, plan: Plan, broker: Broker, run: RunId) -> Ask:
    """Return what the proxy of a run asks for a host; it says nothing where that is allowed, else why it is not."""
    # Before the command begins: afterwards it may have changed the program that it is
    occasion = occasion_of(project, spec, plan) | {"run": run}

    def ask(host: str) -> str:
        asked = Egress(**occasion, hosts=(host,))
        try:
            broker.obtain(asked).take(asked)
        except DeniedError as error:
            return f"{_NOT_ALLOWED} ({error.reason})" if error.reason else _NOT_ALLOWED
        except UnspillError as error:
            return f"it can't be asked for ({error.code})"
        return ""

    return ask


def outside(project: Project, spec: RunSpec) -> RunSpec:
    """Return what to run as it is without a sandbox: in the directory of the host, by a shell that the host has."""
    from unspill.permissions.question import is_text  # lazy: unsandboxed runs

    argv = spec.argv
    if project.means.policy.view == "rootfs" and is_text(argv) and not os.access(argv[0], os.X_OK):
        argv = (b"/bin/sh", *argv[1:])
    return spec.replace(argv=argv, cwd=_dir_outside(project, spec.cwd))


def _dir_outside(project: Project, cwd: bytes) -> bytes:
    """Return where a working directory really is; the playground's place inside means the playground, if it is free."""
    view, roots = project.means.policy.view, project.roots
    place = playground_of(project)
    is_playground = contains(place, cwd) and not playground_taken(view, project.home.path, roots)
    if is_playground and not os.path.isdir(cwd):
        return playground_of(project, is_plain=True) + cwd[len(place) :]
    return to_host(cwd, view, roots)


def check_plain(spec: RunSpec) -> None:
    """Refuse what can't run outside of a sandbox, before anybody is asked.

    Raises:
        UsageError: the working directory exists in sandboxes only.
    """
    if not os.path.isdir(spec.cwd):
        raise UsageError(missing_text(spec.cwd))


def run_plainly(project: Project, spec: RunSpec, environ: tuple[bytes, ...]) -> RunResult:
    """Run one command without a sandbox, with the variables that were shown besides the person's own."""
    shown = dict(pair.split(b"=", 1) for pair in environ)
    return perform_outside(project, spec, dict(os.environb) | shown, WARNING)


def perform_outside(project: Project, spec: RunSpec, environ: dict[bytes, bytes], warning: str) -> RunResult:
    """Run one command without a sandbox, with exactly these variables; the warning is in its result."""
    from unspill.runner.plain import perform_plainly  # lazy: unsandboxed runs

    begun = time.monotonic()
    runs = project.store.runs
    with project.store.transaction:
        run = runs.start(
            project.row.id,
            argv=spec.argv,
            cwd=spec.cwd,
            started_ns=time.time_ns(),
            owner=this_process(),
            after_cancel="discard",
        )
        run = runs.mark_unsandboxed(run)
    control = RunControl(
        run=run.id,
        spill_dir=spill_dir(project.store.state, run.id),
        stdin=spec.stdin,
        on_event=spec.on_event,
        cancel_fd=spec.cancel_fd,
    )
    if spec.on_event is not None:
        spec.on_event(Started(run=run.id))
    try:
        performed = perform_plainly(spec.argv, spec.cwd, environ, spec.limits, control)
    except BaseException as error:
        error.add_note("It ran without a sandbox: what it has changed is not known and can't be undone.")
        project.store.runs.end(run.replace(ended_ns=time.time_ns()))
        record_failure(project, spec, run, error, is_sandboxed=False)
        raise
    ended = run.replace(
        ended_ns=time.time_ns(), outcome=performed.outcome, stdout=performed.stdout, stderr=performed.stderr
    )
    project.store.runs.end(ended)
    if spec.on_event is not None:
        spec.on_event(Ended(run=run.id, outcome=performed.outcome))
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


def run_contained(project: Project, spec: RunSpec) -> RunResult:
    """Run one command in container mode.

    Raises:
        UsageError: its changes are not to be made in the project at once, or its directory does not exist.
    """
    if spec.after != "apply":
        raise UsageError(
            f"container mode can't keep changes apart, so `{spec.after}` is not possible",
            remedy="Use `apply`: commands then change the project directly.",
        )
    top = project.path if project.roots else playground_of(project, is_plain=True)
    environ = contained_environ(top, project.means.policy.environment, os.environb, spec.environ)
    spec = outside(project, spec)
    check_plain(spec)
    return perform_outside(project, spec, environ, IN_CONTAINER.format(name=project.means.container))
