# SPDX-License-Identifier: Apache-2.0
"""`unspill discard`: throw away what is held."""

from __future__ import annotations

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.options import EVERYWHERE, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="discard",
    summary="Throw away everything that this sandbox holds. The project is not touched.",
    options=EVERYWHERE,
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    count = open_sandbox(arguments).discard()
    if arguments.flag("--json"):
        print_json({"discarded_layers": count})
    else:
        print(f"Discarded {count} held layer{'' if count == 1 else 's'}." if count else "Nothing was held.")
    return 0
