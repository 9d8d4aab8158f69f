# SPDX-License-Identifier: Apache-2.0
"""`unspill recover`: rebuild the store from what lies beside it."""

from __future__ import annotations

from unspill.changes.quote import quote
from unspill.changes.render import safe_text
from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command
from unspill.cli.telling import count_text, recovered_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.options import Arguments
    from unspill.sandbox.upkeep import Repaired

COMMAND = Command(
    name="recover",
    summary="Bring back what a damaged or lost database does not know: held layers, operations. Removes nothing.",
    options=EVERYWHERE,
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.upkeep import recover_now

    repaired = recover_now()
    if arguments.flag("--json"):
        from unspill.cli.json_form import repaired_form

        print_json(repaired_form(repaired))
    else:
        print("\n".join(_lines(repaired)) or "Nothing was missing.")
    return 0


def _lines(repaired: Repaired) -> Iterator[str]:
    found = repaired.recovered
    if found.database is not None:
        yield f"The database was damaged ({safe_text(found.reason)}); it is kept as {quote(found.database)}."
    if found.layers or found.operations:
        layers, operations = count_text(len(found.layers), "held layer"), count_text(len(found.operations), "operation")
        yield f"Brought back {layers} and {operations}."
    for sandbox in found.sandboxes:
        name = safe_text(sandbox.name)
        yield f"  sandbox {name!r} of {quote(sandbox.project)}"
    for operation in repaired.operations:
        yield from (f"  {line}" for line in recovered_lines(operation))
    for path in found.unknown:
        yield f"  ! not understood, left where it is: {quote(path)}"
