# SPDX-License-Identifier: Apache-2.0
"""`unspill rootfs pull` and `upgrade`: fetch and make a rootfs, and say what speaks for it."""

from __future__ import annotations

import os
import sys

from unspill.cli.choosing import print_json
from unspill.cli.progress import ProgressLine
from unspill.cli.telling import size_text
from unspill.errors import UsageError
from unspill.model.rootfs import RootfsWish
from unspill.policy.rootfs_wish import DISTRIBUTIONS, SCHEMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.model.rootfs import Rootfs, SourceName
    from unspill.sandbox.rootfs import RootfsShelf

_UNPROVED = {
    "same-server": "only the server that it is from speaks for what was fetched",
    "none": "nothing speaks for what was unpacked",
}


def pull(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Make a rootfs."""
    wish = wish_of(arguments)
    with ProgressLine(is_quiet=arguments.flag("--json")) as line:
        made = shelf.pull(wish, report=line.take)
    return _tell(arguments, shelf, made)


def upgrade(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Make what the wish for a rootfs means today."""
    name = arguments.words[1] if len(arguments.words) > 1 else ""
    with ProgressLine(is_quiet=arguments.flag("--json")) as line:
        upgraded = shelf.upgrade(name, report=line.take)
    if not upgraded.is_newer and not arguments.flag("--json"):
        print(f"There is nothing newer than {upgraded.old.name}.")
        return 0
    return _tell(arguments, shelf, upgraded.new, {"newer": upgraded.is_newer})


def wish_of(arguments: Arguments) -> RootfsWish:
    """Return what the command line asks for.

    Raises:
        UsageError: it does not say what, or says it twice.
    """
    source, location, label = _what(arguments)
    tier = arguments.value("--tier") or "1"
    if tier not in ("1", "2"):
        raise UsageError(f"--tier is not 1 or 2: {tier!a}")
    return RootfsWish(
        source=source,
        version=arguments.value("--version") or "",
        arch=arguments.value("--arch") or "",
        tier=int(tier),
        packages=tuple(dict.fromkeys(arguments.values("--package"))),
        mirror=(arguments.value("--mirror") or "").rstrip("/"),
        location=location,
        sha256=(arguments.value("--sha256") or "").lower(),
        label=label,
    )


def _what(arguments: Arguments) -> tuple[SourceName, str, str]:
    """Return source, location and label."""
    name = arguments.words[1] if len(arguments.words) > 1 else ""
    archive, oci, label = (arguments.value(option) for option in ("--archive", "--oci", "--as"))
    if archive is not None and oci is not None:
        raise UsageError("--archive and --oci are two sources", remedy="Give one of them.")
    if archive is None and oci is None:
        if name not in DISTRIBUTIONS or label is not None:
            wrong = f"not a source: {name!a}" if name or label is not None else "pull what?"
            raise UsageError(
                wrong if name not in DISTRIBUTIONS else "--as is for --archive and --oci",
                remedy=f"Pull {' or '.join(DISTRIBUTIONS)}, or name an archive: --archive PATH, --oci PATH.",
            )
        return ("alpine" if name == "alpine" else "debian"), "", ""
    if (not name and label is None) or (name and label is not None and name != label):
        raise UsageError("what is it to be called?", remedy="Give one name: --as LABEL.")
    if archive is not None:
        return "archive", _location(archive), label or name
    return "oci", _location(oci or ""), label or name


def _location(given: str) -> str:
    return given if given.startswith(SCHEMES) else os.path.abspath(given)


def _tell(arguments: Arguments, shelf: RootfsShelf, made: Rootfs, more: dict[str, bool] | None = None) -> int:
    from unspill.cli.rootfs_show import without_lines
    from unspill.rootfs.build import PROOFS

    manifest = made.manifest
    assert manifest is not None
    is_current = shelf.current() == made
    if arguments.flag("--json"):
        from unspill.cli.rootfs_form import rootfs_form

        print_json(rootfs_form(made, is_current=is_current) | (more or {}))
    else:
        use = "It is the rootfs in use." if is_current else f"`unspill rootfs use {made.name}` makes it the one in use."
        holds = f"{manifest.entries:,} files and directories, {size_text(manifest.size_bytes)}"
        print(f"{made.name} is ready: {holds}. {use}")
        print(f"  proof: {PROOFS[manifest.proof]}")
        for what, text in without_lines(manifest.left_out):
            print(f"  {what}: {text}")
    if manifest.proof in _UNPROVED:
        sys.stdout.flush()
        warn_of_proof(made)
    return 0


def warn_of_proof(made: Rootfs) -> None:
    """Say so where nothing that counts speaks for the content."""
    if made.manifest is not None and made.manifest.proof in _UNPROVED:
        print(f"unspill: {_UNPROVED[made.manifest.proof]}; {_advice(made)}", file=sys.stderr)


def _advice(made: Rootfs) -> str:
    assert made.manifest is not None
    digest = made.manifest.fetched[0][1].removeprefix("sha256:") if made.manifest.fetched else ""
    known = f" (this time it was {digest})" if digest else ""
    return f"compare its digest with one from elsewhere{known} and pin it: --sha256 DIGEST"
