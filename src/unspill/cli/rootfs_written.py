# SPDX-License-Identifier: Apache-2.0
"""`unspill rootfs keep` and `discard`: what a sandbox with a writable rootfs has made of it."""

from __future__ import annotations

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.progress import ProgressLine
from unspill.cli.telling import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.sandbox.rootfs import RootfsShelf


def keep(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Make it a rootfs of its own."""
    sandbox = open_sandbox(arguments)
    with ProgressLine(is_quiet=arguments.flag("--json")) as line:
        made = shelf.keep(sandbox, arguments.words[1], report=line.take)
    if arguments.flag("--json"):
        print_json({"kept": made.name})
        return 0
    size = "" if made.manifest is None else f" ({size_text(made.manifest.size_bytes)})"
    print(f"Kept as {made.name}{size}. `unspill rootfs use {made.name}` makes it the one in use.")
    return 0


def discard(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Throw it away."""
    count = shelf.discard(open_sandbox(arguments))
    if arguments.flag("--json"):
        print_json({"discarded_layers": count})
    elif count:
        print("The next run sees the rootfs as it was made.")
    else:
        print("This sandbox has written nothing to its rootfs.")
    return 0
