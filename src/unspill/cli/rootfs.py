# SPDX-License-Identifier: Apache-2.0
"""`unspill rootfs`: the root file systems of this person, one word for each thing that can be done with them."""

from __future__ import annotations

from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.cli.options import Arguments
    from unspill.sandbox.rootfs import RootfsShelf

_PULL = (
    Option(name="--version", metavar="V", help="pull: this version (default: the newest; of debian, bookworm)"),
    Option(name="--arch", metavar="ARCH", help="pull: this architecture (default: this machine's)"),
    Option(
        name="--tier", metavar="N", help="pull: 1 for a shell, Python and the usual commands, 2 for git, node and more"
    ),
    Option(name="--package", metavar="NAME", repeated=True, help="pull: install this package too; can be repeated"),
    Option(name="--mirror", metavar="URL", help="pull: ask this server instead of the distribution's"),
    Option(
        name="--archive",
        metavar="PLACE",
        help="pull: unpack this archive (tar, plain or compressed): a path or an address",
    ),
    Option(name="--oci", metavar="PATH", help="pull: unpack this OCI layout, a directory or an archive"),
    Option(name="--sha256", metavar="DIGEST", help="pull: what is fetched must have this digest"),
    Option(name="--as", metavar="LABEL", help="pull: call what an archive or OCI layout becomes so"),
)
_OTHERS = (
    Option(name="--tools", help="info: say which runtimes and tools are inside, by running inside"),
    Option(name="--unused", help="remove: all that a newer one has replaced and nobody uses, and what was fetched"),
    Option(name="--force", help="remove: even the one in use"),
)

COMMAND = Command(
    name="rootfs",
    summary="List, fetch, upgrade, choose, remove, verify or describe root file systems for the view `rootfs`.",
    positional="[list|pull|upgrade|use|remove|verify|info|keep|discard] [NAME]",
    most=2,
    options=(*_PULL, *_OTHERS, *EVERYWHERE),
)

# Which options a word has, and whether it needs a name, may have one, or has none
_WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "list": ((), "none"),
    "pull": (tuple(option.name for option in _PULL), "may"),
    "upgrade": ((), "may"),
    "use": ((), "must"),
    "remove": (("--unused", "--force"), "may"),
    "verify": ((), "may"),
    "info": (("--tools",), "may"),
    "keep": ((), "must"),
    "discard": ((), "none"),
}


def run(arguments: Arguments) -> int:
    """Run the verb."""
    word = arguments.words[0] if arguments.words else "list"
    if word not in _WORDS:
        raise UsageError(f"unknown word {word!r}", remedy=f"One of {', '.join(_WORDS)}; see `unspill rootfs --help`.")
    _check(arguments, word)
    from unspill.sandbox.rootfs import RootfsShelf

    return _find(word)(arguments, RootfsShelf(may_fork=True))


def _check(arguments: Arguments, word: str) -> None:
    options, name = _WORDS[word]
    for option in (*_PULL, *_OTHERS):
        if arguments.flag(option.name) and option.name not in options:
            raise UsageError(f"{option.name} is not for `rootfs {word}`", remedy="See `unspill rootfs --help`.")
    has_name = len(arguments.words) > 1
    if has_name and name == "none":
        raise UsageError(f"`rootfs {word}` takes no name")
    if not has_name and word == "keep":
        raise UsageError("which label?", remedy="Say what it is to be called: `unspill rootfs keep LABEL`.")
    if not has_name and name == "must":
        raise UsageError("which rootfs?", remedy="`unspill rootfs list` shows what there is.")


def _find(word: str) -> Callable[[Arguments, RootfsShelf], int]:
    if word in ("pull", "upgrade"):
        from unspill.cli import rootfs_pull

        return rootfs_pull.pull if word == "pull" else rootfs_pull.upgrade
    if word in ("list", "info"):
        from unspill.cli import rootfs_show

        return rootfs_show.show_all if word == "list" else rootfs_show.show_one
    if word in ("keep", "discard"):
        from unspill.cli import rootfs_written

        return rootfs_written.keep if word == "keep" else rootfs_written.discard
    from unspill.cli import rootfs_change

    return {"use": rootfs_change.use, "remove": rootfs_change.remove, "verify": rootfs_change.verify}[word]
