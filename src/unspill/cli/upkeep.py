# SPDX-License-Identifier: Apache-2.0
"""What unspill keeps for all projects: `unspill status` lists it, `prune` forgets what is old, `recover` mends it."""

from __future__ import annotations

from unspill.changes.quote import quote, show_line
from unspill.changes.render import safe_text
from unspill.cli.options import Option, verb
from unspill.cli.output import count_text, decoded, operation_form, print_json, recovered_lines, size_text, when_text
from unspill.sandbox.upkeep import get_status, prune_now, recover_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from unspill.cli.options import Arguments
    from unspill.sandbox.upkeep import Pruned, Recovered, RootfsSizes, Status


@verb("Say what unspill keeps for all projects and what that takes on the disk.")
def status(arguments: Arguments) -> int:
    """Say what the state directory holds, and what that costs."""
    found = get_status()
    if arguments.flag("--json"):
        print_json(_status_form(found))
    else:
        print("\n".join(_status_lines(found)))
    return 0


@verb(
    "Forget operations, backups and runs of all projects that are older than `keep_days`. Nothing held goes.",
    Option(name="--dry-run", help="only say what would go"),
)
def prune(arguments: Arguments) -> int:
    """Forget what is older than the settings keep."""
    dry_run = arguments.flag("--dry-run")
    pruned = prune_now(dry_run=dry_run)
    if arguments.flag("--json"):
        print_json({"dry_run": dry_run, **_pruned_form(pruned)})
        return 0
    if not (pruned.operations or pruned.runs):
        print("There is nothing to forget.")
        return 0
    word = "Would forget" if dry_run else "Forgot"
    counts = (
        count_text(len(pruned.operations), "operation"),
        count_text(len(pruned.names), "named backup"),
        count_text(len(pruned.runs), "run"),
    )
    print(f"{word} {', '.join(counts)}: {size_text(pruned.bytes)}.")
    return 0


@verb("Put the last copy of a lost or damaged database back. Removes nothing.")
def recover(arguments: Arguments) -> int:
    """Put the last copy of a lost or damaged database back."""
    done = recover_now()
    if arguments.flag("--json"):
        print_json(_recovered_form(done))
    else:
        print("\n".join(_recovered_lines(done)))
    return 0


def _status_lines(status: Status) -> Iterator[str]:
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
        yield _row(status.spilled_bytes, "output of runs that was too long for the database")
    yield _row(status.database_bytes, "database")
    if status.aside:
        yield _row(status.aside_bytes, f"set aside: {', '.join(map(quote, status.aside))}")
    for part in status.projects:
        if part.playground_bytes:
            yield f"outside of it, playground of {quote(part.path)}: {size_text(part.playground_bytes)}"
    yield from _rootfs_lines(status.rootfs_sizes)
    if status.pending:
        yield f"under way or interrupted: {count_text(len(status.pending), 'operation')}"


def _rootfs_lines(sizes: RootfsSizes) -> Iterator[str]:
    where = quote(sizes.directory)
    for name, size in sizes.rootfs:
        yield f"outside of it, rootfs {show_line(name.encode())} in {where}: {size_text(size)}"
    if sizes.downloads_bytes:
        freed = "`unspill rootfs remove --unused` removes it"
        yield f"outside of it, what was fetched for rootfs in {where}: {size_text(sizes.downloads_bytes)} ({freed})"


def _row(size: int, text: str) -> str:
    return f"  {size_text(size):>12}  {text}"


def _recovered_lines(done: Recovered) -> Iterator[str]:
    if not done.reason:
        yield "The database is whole."
    else:
        yield f"The database was lost: {safe_text(done.reason)}"
        if done.database is not None:
            yield f"The damaged file is kept as {quote(done.database)}."
        if done.copied_ns is None:
            yield "There was no copy, so the new database is empty."
        else:
            yield f"The copy of {when_text(done.copied_ns)} took its place."
    for operation in done.interrupted:
        yield from recovered_lines(operation)
    if done.aside:
        yield "Set aside, because the database does not know them. Take what you need, then delete them:"
    for path in done.aside:
        yield f"  {quote(path)}"


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
        "rootfs": {
            "directory": decoded(status.rootfs_sizes.directory),
            "ready": [{"rootfs": name, "bytes": size} for name, size in status.rootfs_sizes.rootfs],
            "downloads_bytes": status.rootfs_sizes.downloads_bytes,
        },
    }


def _pruned_form(pruned: Pruned) -> dict[str, Any]:
    """Return what was forgotten, or would be."""
    return {
        "operations": list(pruned.operations),
        "runs": list(pruned.runs),
        "backups": [decoded(name) for name in pruned.names],
        "bytes": pruned.bytes,
    }


def _recovered_form(done: Recovered) -> dict[str, Any]:
    """Return what was done about a lost or damaged database."""
    return {
        "reason": done.reason,
        "database": None if done.database is None else decoded(done.database),
        "copied_ns": done.copied_ns,
        "interrupted": [operation_form(operation) for operation in done.interrupted],
        "aside": [decoded(path) for path in done.aside],
    }
