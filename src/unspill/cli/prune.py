# SPDX-License-Identifier: Apache-2.0
"""`unspill prune`: forget what is older than the settings keep."""

from __future__ import annotations

from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.cli.telling import count_text, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="prune",
    summary="Forget operations, backups and runs of all projects that are older than `keep_days`. Nothing held goes.",
    options=(Option(name="--dry-run", help="only say what would go"), *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.upkeep import prune_now

    dry_run = arguments.flag("--dry-run")
    pruned = prune_now(dry_run=dry_run)
    if arguments.flag("--json"):
        from unspill.cli.json_form import pruned_form

        print_json({"dry_run": dry_run, **pruned_form(pruned)})
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
