# SPDX-License-Identifier: Apache-2.0
"""`unspill rootfs use`, `remove` and `verify`."""

from __future__ import annotations

from unspill.cli.choosing import print_json
from unspill.cli.telling import count_text
from unspill.errors import UsageError
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.sandbox.rootfs import RootfsShelf


def use(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Choose the one for policies that name none."""
    chosen = shelf.use(arguments.words[1])
    if arguments.flag("--json"):
        print_json({"used": chosen.name})
    else:
        print(f"{chosen.name} is the rootfs in use. What runs already keeps the one that it has.")
    return 0


def remove(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Remove one, or all that nobody needs."""
    is_unused = arguments.flag("--unused")
    if is_unused is (len(arguments.words) > 1) or (is_unused and arguments.flag("--force")):
        raise UsageError("which rootfs?", remedy="Give one name, or --unused alone; see `unspill rootfs list`.")
    if is_unused:
        removed = shelf.remove_unused()
    else:
        removed = (shelf.remove(arguments.words[1], force=arguments.flag("--force")),)
    if arguments.flag("--json"):
        print_json({"removed": list(removed)})
    elif removed:
        print(f"Removed {', '.join(removed)}.")
    else:
        print("There is nothing to remove.")
    return 0


def verify(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Compare trees with their manifests: one, or all that are ready."""
    from unspill.rootfs.verify import PROOFS

    names = arguments.words[1:] or [found.name for found in shelf.list()]
    proofs = [(shelf.find(name).name, shelf.verify(name)) for name in names]
    if arguments.flag("--json"):
        print_json({"verified": [{"rootfs": name, "proof": proof} for name, proof in proofs]})
        return 0
    for name, proof in proofs:
        print(f"{name} is what it was when it was made. What spoke for it then: {PROOFS[proof]}.")
    if not proofs:
        print(f"There is no rootfs in {show(shelf.directory)}.")
    elif len(proofs) > 1:
        print(f"Verified {count_text(len(proofs), 'tree')}.")
    return 0
