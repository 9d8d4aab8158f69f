# SPDX-License-Identifier: Apache-2.0
"""`unspill status`: what the state directory holds, and what that costs."""

from __future__ import annotations

from unspill.changes.quote import quote, show_line
from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command
from unspill.cli.telling import count_text, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.options import Arguments
    from unspill.sandbox.status import RootfsSizes, Status

COMMAND = Command(
    name="status",
    summary="Say what unspill keeps for all projects and what that takes on the disk.",
    options=EVERYWHERE,
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.upkeep import get_status

    status = get_status()
    if arguments.flag("--json"):
        from unspill.cli.json_form import status_form

        print_json(status_form(status))
    else:
        print("\n".join(_lines(status)))
    return 0


def _lines(status: Status) -> Iterator[str]:
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
