# SPDX-License-Identifier: Apache-2.0
"""`unspill rootfs use`, `remove` and `verify`."""

from __future__ import annotations

import sys

from unspill.changes.render import safe_text
from unspill.cli.choosing import print_json
from unspill.cli.telling import count_text, size_text
from unspill.errors import RootfsError, UsageError
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.model.rootfs import Proof
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
        removed, freed = shelf.remove_unused(), shelf.empty_downloads()
    else:
        removed, freed = (shelf.remove(arguments.words[1], force=arguments.flag("--force")),), 0
    if arguments.flag("--json"):
        print_json({"removed": list(removed)} | ({"downloads_bytes": freed} if is_unused else {}))
        return 0
    if removed:
        print(f"Removed {', '.join(removed)}.")
    if freed:
        print(f"Removed what was fetched: {size_text(freed)}.")
    if not removed and not freed:
        print("There is nothing to remove.")
    return 0


def verify(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Compare trees with their manifests: one, or all that are ready; one that has changed does not hide the others."""
    from unspill.rootfs.build import PROOFS

    names = [shelf.find(name).name for name in arguments.words[1:]] or [found.name for found in shelf.list()]
    proofs: list[tuple[str, Proof]] = []
    wrong: list[tuple[str, RootfsError]] = []
    for name in names:
        try:
            proofs.append((name, shelf.verify(name)))
        except RootfsError as error:
            wrong.append((name, error))
    if arguments.flag("--json"):
        print_json(
            {
                "verified": [{"rootfs": name, "proof": proof} for name, proof in proofs],
                "failed": [{"rootfs": name, "reason": found.message} for name, found in wrong],
            }
        )
    else:
        for name, proof in proofs:
            print(f"{name} is what it was when it was made. What spoke for it then: {PROOFS[proof]}.")
        if len(proofs) > 1:
            print(f"Verified {count_text(len(proofs), 'tree')}.")
        if not names:
            print(f"There is no rootfs in {show(shelf.directory)}.")
    sys.stdout.flush()
    for _name, found in wrong:
        print(f"unspill: {safe_text(found.message)}\n  {safe_text(found.remedy)}", file=sys.stderr)
    return RootfsError.exit_code if wrong else 0
