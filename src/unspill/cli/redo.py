# SPDX-License-Identifier: Apache-2.0
"""`unspill redo`: do again what an undo took back."""

from __future__ import annotations

from unspill.cli.choosing import open_sandbox
from unspill.cli.options import EVERYWHERE, Command
from unspill.cli.reversing import reverse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="redo",
    summary="Do again what an undo took back, by default the last.",
    positional="[OP]",
    most=1,
    options=EVERYWHERE,
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    sandbox = open_sandbox(arguments)
    return reverse(arguments, sandbox, sandbox.redo)
