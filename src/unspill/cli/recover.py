# SPDX-License-Identifier: Apache-2.0
"""`unspill recover`: put the last copy of a lost or damaged database back."""

from __future__ import annotations

from unspill.changes.quote import quote
from unspill.changes.render import safe_text
from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command
from unspill.cli.telling import recovered_lines, when_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.options import Arguments
    from unspill.sandbox.upkeep import Recovered

COMMAND = Command(
    name="recover",
    summary="Put the last copy of a lost or damaged database back. Removes nothing.",
    options=EVERYWHERE,
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.upkeep import recover_now

    done = recover_now()
    if arguments.flag("--json"):
        from unspill.cli.json_form import recovered_form

        print_json(recovered_form(done))
    else:
        print("\n".join(_lines(done)))
    return 0


def _lines(done: Recovered) -> Iterator[str]:
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
