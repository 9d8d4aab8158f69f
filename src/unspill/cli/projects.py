# SPDX-License-Identifier: Apache-2.0
"""Where a project stands, and whole projects: `unspill status`, `sandboxes`, `forget` and `adopt`."""

from __future__ import annotations

import os
import re
import time

from unspill.changes.render import safe_text
from unspill.cli.log import command_text, moment_text
from unspill.cli.main import COLOR, Option, open_sandbox, verb
from unspill.cli.output import (
    NARROW,
    Elapsed,
    Paint,
    can_be_asked,
    columns,
    count_text,
    cut,
    decoded,
    fit,
    is_agreed,
    print_json,
    size_text,
    table_lines,
)
from unspill.errors import HostError, UnspillError, UsageError
from unspill.policy.paths import quote, shell_word, show_line
from unspill.record import Record
from unspill.sandbox import projects
from unspill.sandbox.history import lets_go
from unspill.sandbox.project import find_former, find_own_locations, find_project, resolve_project
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.cli.output import Style
    from unspill.model.operation import Operation
    from unspill.sandbox.projects import Kept, RootfsSizes, Status
    from unspill.sandbox.sandbox import Sandbox
    from unspill.sandbox.upkeep import SandboxUsage

_LABEL = 10
_FIELD_STYLES: dict[str, Style] = {"problem": "bad", "held": "held", "waiting": "held"}
_FEW = 3


@verb(
    "Show where the project stands: what is held, what happened last, what runs, disk use, and what to do next.",
    Option(name="--all", help="list what unspill keeps of all projects, part by part"),
    COLOR,
    examples=(
        "unspill status",
        "unspill status --all",
        "unspill status --json",
    ),
)
def status(arguments: Arguments) -> int:
    """Say in one screen where the project stands; also where there is none, or no sandbox can be made."""
    with Elapsed("Adding up"):
        found = projects.get_status()
    here = _look_here(arguments)
    if arguments.flag("--json"):
        print_json({**_status_form(found), "here": None if here is None else here.form()})
    elif arguments.flag("--all"):
        print("\n".join(map(fit, _part_lines(found))))
    else:
        paint = Paint(arguments.value("--color"))
        lines = [line for field in _summary(found, here) for line in _field(*field, paint)]
        print("\n".join((*lines, *_advice_lines(list(_advice(here)), paint))))
    return 0


@verb(
    "List the project's sandboxes: what each one holds, how often it was used, and whether something runs in it.",
    examples=(
        "unspill sandboxes",
        "unspill sandboxes --json",
    ),
)
def sandboxes(arguments: Arguments) -> int:
    """List the sandboxes of a project."""
    sandbox = open_sandbox(arguments)
    found = sandbox.sandboxes()
    if arguments.flag("--json"):
        print_json({"project": decoded(sandbox.project), "sandboxes": [one.as_dict() for one in found]})
        return 0
    rows = [_usage_cells(one, is_narrow=0 < columns() < NARROW) for one in found]
    print("\n".join(table_lines(rows, columns())))
    return 0


@verb(
    "Delete all that unspill keeps of PROJECT: history, backups, held changes. The project's own files stay.",
    Option(name="--yes", help="do not ask"),
    Option(name="--dry-run", help="only say what would be deleted"),
    positional="PROJECT",
    most=1,
    examples=(
        "unspill forget --dry-run .",
        "unspill forget --yes .",
    ),
)
def forget(arguments: Arguments) -> int:
    """Forget a project, once the person has said yes to what goes with it."""
    if not arguments.words:
        raise UsageError("no project given", remedy="Name its directory; `unspill forget .` means the one here.")
    locations = find_own_locations()
    with Store.open(locations.state) as store:
        project = _known_path(store, arguments.words[0])
        kept = projects.look_at(store, locations.data, project)
        is_dry = arguments.flag("--dry-run")
        if not is_dry and not arguments.flag("--yes") and not _is_wanted(arguments, kept):
            return 1
        if not is_dry:
            with Elapsed("Deleting"):
                projects.forget(store, locations.data, project)
    if arguments.flag("--json"):
        print_json({"dry_run": is_dry, **_kept_form(kept)})
    elif is_dry:
        print("\n".join(map(fit, _kept_lines(kept))))
    else:
        print(f"Forgot {quote(kept.project)}: freed {size_text(kept.total_bytes)}. Its own files are as they were.")
    return 0


@verb(
    "After you renamed or moved a project: bring its history, held changes and undo to where it is now.",
    positional="[OLDPATH]",
    most=1,
    examples=("unspill adopt ../old",),
)
def adopt(arguments: Arguments) -> int:
    """Give what is kept of a project to the path that its directory has now."""
    locations = find_own_locations()
    given = arguments.value("--project")
    new = resolve_project(os.fsencode(given) if given else find_project(os.getcwdb()))
    with Store.open(locations.state) as store:
        old = _known_path(store, arguments.words[0]) if arguments.words else None
        done = projects.adopt(store, locations.data, old, new)
    if arguments.flag("--json"):
        print_json(
            {
                "old": decoded(done.old),
                "new": decoded(done.new),
                "is_same": done.is_same,
                "runs": done.counts.runs,
                "operations": done.counts.operations,
                "held": list(done.held),
                "shift": done.shift,
            }
        )
        return 0
    counts = f"{count_text(done.counts.runs, 'run')}, {count_text(done.counts.operations, 'operation')}"
    print(f"Adopted {quote(done.old)}: {counts}.")
    if done.held:
        print(f"Held changes came along. See them: unspill changes{_of(done.held[0])}")
    if done.shift:
        print(f"Earlier operations of this directory have new numbers: op1 is now op{done.shift + 1}.")
    if done.counts.grants:
        print(f"Not adopted: {count_text(done.counts.grants, 'grant')}. You are asked again here.")
    if done.playground_left:
        print(f"Not moved, because this project has a playground of its own: {quote(done.playground_left)}")
    if not done.is_same:
        print("It is another directory, perhaps a copy: earlier operations can't be undone in it, and held changes of")
        print("files that it has count as conflicts.")
    return 0


class _Here(Record):
    """Where the project stands that is around the current directory."""

    project: bytes
    sandbox: str
    former_path: bytes | None = None
    sandboxes: tuple[SandboxUsage, ...] = ()
    last: Operation | None = None
    about: str = ""
    waiting: int = 0
    problem: str = ""

    @property
    def own(self) -> SandboxUsage | None:
        """The sandbox that commands use here."""
        return next((one for one in self.sandboxes if one.name == self.sandbox), None)

    def form(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "project": decoded(self.project),
            "sandbox": self.sandbox,
            "former_path": None if self.former_path is None else decoded(self.former_path),
            "sandboxes": [one.as_dict() for one in self.sandboxes],
            "last_operation": None if self.last is None else self.last.number,
            "waiting": self.waiting,
        }


def _look_here(arguments: Arguments) -> _Here | None:
    """Return where the project stands, None where there is none; where nothing was run yet, nothing is opened."""
    locations = find_own_locations()
    given = arguments.value("--project")
    project = os.path.realpath(os.fsencode(given)) if given else find_project(os.getcwdb())
    name = arguments.value("--sandbox") or "default"
    if project in (locations.home, b"/") or not os.path.isdir(project):
        return None
    with Store.open(locations.state) as store:
        is_known = bool(store.sandboxes.of_project(project))
        former = find_former(store, project, os.stat(project))
        waiting = len(store.requests.waiting(time.time_ns(), project))
    here = _Here(project=project, sandbox=name, former_path=former[0] if former else None, waiting=waiting)
    if not is_known:
        return here
    try:
        return _with_sandbox(here, open_sandbox(arguments))
    except (HostError, UsageError) as error:
        return here.replace(problem=error.message)


def _with_sandbox(here: _Here, sandbox: Sandbox) -> _Here:
    done = [one for one in sandbox.operations(limit=1000) if one.ending == "done"]
    last = next((one for one in done if one.changed and not lets_go(one)), None)
    about = ""
    if last is not None and len(last.runs) == 1 and last.of is None:
        try:
            about = command_text(sandbox.find_run(last.runs[0]))
        except UnspillError:
            about = ""
    return here.replace(sandboxes=sandbox.sandboxes(), last=last, about=about)


def _summary(found: Status, here: _Here | None) -> Iterator[tuple[str, str]]:
    if here is None:
        yield "project", "none here"
    else:
        of = "" if here.sandbox == "default" else f", sandbox {here.sandbox!r}"
        yield "project", f"{quote(here.project)}{of}"
        yield from _project_fields(here)
    yield from _disk_fields(found, here)
    if found.aside:
        yield "set aside", f"{size_text(found.aside_bytes)}, see unspill status --all"


def _project_fields(here: _Here) -> Iterator[tuple[str, str]]:
    if here.problem:
        yield "problem", f"{safe_text(here.problem)} (see unspill doctor)"
    holding = [one for one in here.sandboxes if one.held_bytes]
    texts = [_held_text(one) + ("" if one is here.own else f" in sandbox {one.name!r}") for one in holding[:_FEW]]
    more = f", and {len(holding) - _FEW} more sandboxes" if len(holding) > _FEW else ""
    yield "held", "; ".join(texts) + more if texts else "nothing"
    if here.last is not None:
        one = here.last
        yield "last", f"op{one.number} ({one.kind}), {moment_text(one.at_ns)}, {one.changed} changed"
        if here.about:
            yield "", cut(here.about, max(20, (columns() or 80) - _LABEL))
    runs = sum(one.runs for one in here.sandboxes)
    running = sum(one.running for one in here.sandboxes)
    yield "runs", f"{runs}, of which {running} going on now (unspill ps)" if running else str(runs)
    if here.waiting:
        yield "waiting", f"{count_text(here.waiting, 'question')} for you"


def _disk_fields(found: Status, here: _Here | None) -> Iterator[tuple[str, str]]:
    held = sum(part.bytes for part in found.held)
    backups = sum(part.bytes for part in found.displaced)
    caches = sum(part.caches for part in found.projects)
    yield "disk", f"{size_text(found.total_bytes)} in {quote(found.state)}"
    parts = (
        (backups, f"backups of {count_text(len(found.displaced), 'operation')}"),
        (held, "held changes"),
        (caches, "tool caches"),
        (found.spilled_bytes, "long output"),
        (found.database_bytes, "database"),
    )
    yield "", ", ".join(f"{text} {size_text(size)}" for size, text in parts if size)
    if here is not None and len(found.projects) > 1:
        own = sum(part.bytes for part in found.held if part.sandbox.project == here.project)
        own += sum(part.bytes for part in found.displaced if part.operation.project == here.project)
        own += sum(part.caches for part in found.projects if part.path == here.project)
        yield "", f"{size_text(own)} of it for this project (all: unspill status --all)"
    elsewhere = (
        (sum(part.playground_bytes for part in found.projects), "playgrounds"),
        (sum(size for _path, size in found.homes), "agents' homes"),
        (sum(size for _name, size in found.rootfs_sizes.rootfs), "root file systems"),
        (found.rootfs_sizes.downloads_bytes, "downloads for them"),
    )
    texts = [f"{text} {size_text(size)}" for size, text in elsewhere if size]
    if texts:
        yield "", "elsewhere: " + ", ".join(texts)


def _advice(here: _Here | None) -> Iterator[tuple[str, str]]:
    """Yield what to do next, the most urgent first: a command and what it does."""
    if here is None:
        yield "unspill status --all", "see all projects"
        return
    if here.former_path is not None:
        yield "unspill adopt", f"this directory seems to have been {quote(here.former_path)}: bring its history here"
    if here.waiting:
        yield "unspill requests", "see what you are asked"
    for one in [one for one in here.sandboxes if one.held_bytes][:_FEW]:
        yield f"unspill diff{_of(one.name)}", "review what is held" if one is here.own else "review what is held there"
    if here.last is not None and here.last.kind == "undo":
        yield "unspill redo", f"redo what op{here.last.number} undid"
    elif here.last is not None:
        yield "unspill undo", f"undo op{here.last.number}"
    elif not here.sandboxes and here.former_path is None:
        yield "unspill run -- COMMAND", "run something"


def _field(label: str, text: str, paint: Paint) -> Iterator[str]:
    """Yield the lines of one field: it goes on in the next line behind a comma or semicolon only."""
    pieces = re.split("(?<=[,;]) ", text)
    most, row = columns(), pieces[0]
    rows = []
    for piece in pieces[1:]:
        if most and _LABEL + len(row) + 1 + len(piece) > most:
            rows.append(row)
            row = piece
        else:
            row += " " + piece
    style = _FIELD_STYLES.get(label) if text != "nothing" else None
    for index, one in enumerate((*rows, row)):
        name = paint("dim", f"{'' if index else label:<{_LABEL}}")
        yield fit(name + (paint(style, one) if style else one))


def _advice_lines(advice: Sequence[tuple[str, str]], paint: Paint) -> Iterator[str]:
    """Yield commands, each with what it does behind it, or above it on a narrow terminal."""
    width = max((len(command) for command, _text in advice), default=0)
    is_narrow = any(_LABEL + width + 2 + len(text) > columns() > 0 for _command, text in advice)
    for index, (command, text) in enumerate(advice):
        label = paint("dim", f"{'' if index else 'next':<{_LABEL}}")
        if is_narrow:
            yield fit(f"{label}{text}:")
            yield f"{' ' * _LABEL}  {paint('name', command)}"
        else:
            yield f"{label}{paint('name', f'{command:<{width}}')}  {text}"


def _of(sandbox: str) -> str:
    return "" if sandbox == "default" else f" --sandbox {shell_word(os.fsencode(sandbox))}"


def _held_text(one: SandboxUsage) -> str:
    count = "changes" if one.held is None else count_text(one.held, "change")
    return f"{count} ({size_text(one.held_bytes)})"


def _usage_cells(one: SandboxUsage, *, is_narrow: bool) -> tuple[str, ...]:
    name = show_line(one.name.encode("utf-8", "surrogateescape"))
    held = f"{_held_text(one) if one.held_bytes else 'nothing'}"
    used = "never used" if one.last_ns is None else f"{age_text(one.last_ns)} ago"
    running = f"{one.running} running" if one.running else ""
    if is_narrow:
        return name, held, running or used
    return name, f"holds {held}", count_text(one.runs, "run"), used, running


def age_text(at_ns: int) -> str:
    """Return how long ago a moment was, in one unit: 3d, 2h, 5m or 7s."""
    seconds = max(0, (time.time_ns() - at_ns) // 10**9)
    sizes = (("d", 86_400), ("h", 3600), ("m", 60))
    return next((f"{seconds // size}{unit}" for unit, size in sizes if seconds >= size), f"{seconds}s")


def _known_path(store: Store, word: str) -> bytes:
    """Return the project that a person names: the one that a path leads to, or that was at it."""
    given = os.path.abspath(os.fsencode(word))
    real = os.path.realpath(given)
    known = set(projects.known(store))
    return given if given in known and real not in known else real


def _is_wanted(arguments: Arguments, kept: Kept) -> bool:
    """Show what goes, and ask; where nobody can be asked it is refused."""
    if arguments.flag("--json") or not can_be_asked():
        raise UsageError(
            f"{quote(kept.project)} was not forgotten: nobody could be asked",
            remedy="See what goes with --dry-run, then add --yes.",
        )
    print("\n".join(map(fit, _kept_lines(kept))))
    if is_agreed("Delete all of it?"):
        return True
    print("Nothing was deleted.")
    return False


def _kept_lines(kept: Kept) -> Iterator[str]:
    yield f"unspill keeps of {quote(kept.project)}:"
    for held in kept.held:
        name = show_line(held.sandbox.name.encode("utf-8", "surrogateescape"))
        yield f"  changes held in sandbox {name!r}, which the project does not have: {size_text(held.bytes)}"
    counts = kept.counts
    if counts.operations:
        yield f"  the undo of {count_text(counts.operations, 'operation')}: {size_text(kept.backup_bytes)} of backups"
    if counts.runs:
        output = f", {size_text(kept.output_bytes)} of output" if kept.output_bytes else ""
        yield f"  the record of {count_text(counts.runs, 'run')}{output}"
    if kept.cache_bytes:
        yield f"  tool caches: {size_text(kept.cache_bytes)}"
    if kept.playground.entries:
        yield f"  its playground {quote(kept.playground.path)}: {size_text(kept.playground.bytes)}"
    if counts.grants:
        yield f"  {count_text(counts.grants, 'grant')}"
    yield "The project's own files stay as they are. The audit keeps its lines."


def _kept_form(kept: Kept) -> dict[str, Any]:
    return {
        "project": decoded(kept.project),
        "sandboxes": list(kept.sandboxes),
        "held": [{"sandbox": held.sandbox.name, "layers": held.layers, "bytes": held.bytes} for held in kept.held],
        "runs": kept.counts.runs,
        "operations": kept.counts.operations,
        "grants": kept.counts.grants,
        "backup_bytes": kept.backup_bytes,
        "cache_bytes": kept.cache_bytes,
        "output_bytes": kept.output_bytes,
        "playground_bytes": kept.playground.bytes,
    }


def _part_lines(status: Status) -> Iterator[str]:
    yield f"{quote(status.state)}: {size_text(status.total_bytes)}"
    for held in status.held:
        name = show_line(held.sandbox.name.encode("utf-8", "surrogateescape"))
        yield _row(
            held.bytes, f"held in sandbox {name!r} of {quote(held.sandbox.project)}: {count_text(held.layers, 'layer')}"
        )
    by_project: dict[bytes, list[int]] = {}
    for displaced in status.displaced:
        by_project.setdefault(displaced.operation.project, []).append(displaced.bytes)
    for project, sizes in by_project.items():
        yield _row(sum(sizes), f"backups of {count_text(len(sizes), 'operation')} on {quote(project)}")
    for part in status.projects:
        if part.caches:
            yield _row(part.caches, f"tool caches of {quote(part.path)}")
    if status.spilled_bytes:
        yield _row(status.spilled_bytes, "long output of runs")
    yield _row(status.database_bytes, "database")
    if status.aside:
        yield _row(status.aside_bytes, f"set aside: {', '.join(map(quote, status.aside))}")
    for part in status.projects:
        if part.playground_bytes:
            yield f"elsewhere: playground of {quote(part.path)}: {size_text(part.playground_bytes)}"
    for path, size in status.homes:
        yield f"elsewhere: home of agent {quote(os.path.basename(path))}: {size_text(size)}"
    yield from _rootfs_lines(status.rootfs_sizes)
    if status.pending:
        yield f"running or interrupted: {count_text(len(status.pending), 'operation')}"


def _rootfs_lines(sizes: RootfsSizes) -> Iterator[str]:
    where = quote(sizes.directory)
    for name, size in sizes.rootfs:
        yield f"elsewhere: rootfs {show_line(name.encode())} in {where}: {size_text(size)}"
    if sizes.downloads_bytes:
        freed = "remove: unspill rootfs remove --unused"
        yield f"elsewhere: downloads for rootfs in {where}: {size_text(sizes.downloads_bytes)} ({freed})"


def _row(size: int, text: str) -> str:
    return f"  {size_text(size):>12}  {text}"


def _status_form(status: Status) -> dict[str, Any]:
    """Return what the state directory holds."""
    return {
        "state": decoded(status.state),
        "total_bytes": status.total_bytes,
        "database_bytes": status.database_bytes,
        "held": [
            {
                "sandbox": held.sandbox.name,
                "project": decoded(held.sandbox.project),
                "layers": held.layers,
                "bytes": held.bytes,
            }
            for held in status.held
        ],
        "operations": [
            {
                "operation": displaced.operation.id,
                "number": displaced.operation.number,
                "project": decoded(displaced.operation.project),
                "bytes": displaced.bytes,
            }
            for displaced in status.displaced
        ],
        "projects": [
            {
                "project": decoded(part.path),
                "cache_bytes": part.caches,
                "playground": decoded(part.playground),
                "playground_bytes": part.playground_bytes,
            }
            for part in status.projects
        ],
        "spilled_bytes": status.spilled_bytes,
        "aside": [decoded(path) for path in status.aside],
        "aside_bytes": status.aside_bytes,
        "pending": list(status.pending),
        "homes": [{"home": decoded(path), "bytes": size} for path, size in status.homes],
        "rootfs": {
            "directory": decoded(status.rootfs_sizes.directory),
            "ready": [{"rootfs": name, "bytes": size} for name, size in status.rootfs_sizes.rootfs],
            "downloads_bytes": status.rootfs_sizes.downloads_bytes,
        },
    }
