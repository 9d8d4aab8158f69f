# SPDX-License-Identifier: Apache-2.0
"""A real plan's options for bwrap taken apart: which defence each one is, and the options without it.

Generated from the options themselves: what is in no category below has no name here, and a test fails for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from unspill.plan.argv import bwrap_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.attack.arena import Arena
    from unspill.model.plan import Plan

# How many words follow an option
WORDS: Final = {
    **dict.fromkeys(
        (
            b"--unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try "
            b"--disable-userns --assert-userns-disabled --die-with-parent --new-session --clearenv"
        ).split(),
        0,
    ),
    **dict.fromkeys(
        (
            b"--cap-drop --hostname --proc --dev --perms --size --tmpfs --remount-ro --chdir --seccomp --overlay-src "
            b"--ro-overlay --tmp-overlay --dir"
        ).split(),
        1,
    ),
    **dict.fromkeys(b"--ro-bind --bind --symlink --file --ro-bind-data --setenv".split(), 2),
    b"--overlay": 3,
}
# What each single option stands for; `tests/attack/test_ablation_flags.py` has a case for every one
SINGLE: Final = frozenset(name for name, count in WORDS.items() if count == 0) | {
    b"--cap-drop",
    b"--hostname",
    b"--proc",
    b"--dev",
    b"--chdir",
    b"--seccomp",
}
NOT_A_DEFENCE: Final = {
    b"--symlink": "a name for a directory that is shown under its real name as well",
    b"--dir": "an empty directory in the root, which is closed as a whole when all is mounted",
    b"--perms": "there is one user inside, who owns what it is the mode of",
    b"--setenv": "the value of one variable that is allowed by name; that no other is there is --clearenv's",
    b"--file": "a generated file in memory, in place of nothing",
    b"--overlay-src": "the lower directories of the overlay that follows, which is the defence",
}
# Where a directory is writable on purpose; a layer is a mount that the spawner made there before, or a copy
LAYERS: Final = "layer"


@dataclass(frozen=True)
class Option:
    """One option with its words, where it is among all the words, and the `--perms` and `--size` before it."""

    words: tuple[bytes, ...]
    start: int
    modifiers: int = 0
    size: int | None = None

    @property
    def name(self) -> bytes:
        return self.words[0]

    @property
    def dest(self) -> bytes:
        return self.words[-1]

    def __str__(self) -> str:
        return " ".join(map(os.fsdecode, self.words))


@dataclass(frozen=True)
class Defence:
    """One thing that can be taken away: its category, the place it concerns, and all the options without it."""

    category: str
    what: str
    place: bytes
    weaker: tuple[bytes, ...]
    size: int | None = None


def parse(options: Sequence[bytes]) -> list[Option]:
    """Return the options one by one.

    Raises:
        KeyError: one of them is not known here.
    """
    found, at, modifiers, size = [], 0, 0, None
    while at < len(options):
        words = tuple(options[at : at + 1 + WORDS[options[at]]])
        if words[0] in (b"--perms", b"--size"):
            modifiers += len(words)
            size = int(words[1]) if words[0] == b"--size" else size
            found.append(Option(words, at))
        else:
            found.append(Option(words, at, modifiers, size))
            modifiers, size = 0, None
        at += len(words)
    return found


def category_of(option: Option) -> str:
    """Return what kind of defence an option is, empty if it is stated to be none.

    Raises:
        LookupError: nobody has said.
    """
    if option.name in NOT_A_DEFENCE:
        return ""
    if option.name in SINGLE:
        return "single"
    kinds = {
        b"--ro-bind": "read-only",
        b"--ro-bind-data": "mask",
        b"--remount-ro": "remount",
        b"--size": "size",
        b"--tmpfs": "mask",
        b"--bind": LAYERS,
        b"--overlay": LAYERS,
        b"--ro-overlay": "read-only layer",
        b"--tmp-overlay": "read-only layer",
    }
    return kinds[option.name]


def defences(options: Sequence[bytes]) -> Iterator[Defence]:
    """Yield every defence of a plan but for the single ones, each with the options that are left without it."""
    parsed = parse(options)
    for index, option in enumerate(parsed):
        end = option.start + len(option.words)
        instead: tuple[bytes, ...] | None = None
        begin, dest, size = option.start, option.dest, None
        match category_of(option):
            case "read-only" if option.dest != b"/proc/sys":
                instead = (b"--bind", *option.words[1:])
            case "read-only" | "remount":
                instead = ()
            case "size":
                # It belongs to the mount that follows it
                dest, size, instead = next(one.dest for one in parsed[index:] if one.size), int(option.words[1]), ()
            case "mask":
                begin, instead = option.start - option.modifiers, (b"--bind", dest, dest)
        if instead is None:
            continue
        weaker = [*options[:begin], *instead, *options[end:]]
        if category_of(option) == "mask":
            weaker = _without_what_is_in(weaker, dest)
        yield Defence(category_of(option), str(option), dest, tuple(weaker), size)


def _without_what_is_in(options: list[bytes], dest: bytes) -> list[bytes]:
    """Return the options without a remount of what is no mount any more, and without files that were made in it."""
    left: list[bytes] = []
    for option in parse(options):
        is_remount = option.words == (b"--remount-ro", dest)
        is_file = option.name == b"--file" and option.dest.startswith(dest + b"/")
        if is_file:
            del left[len(left) - option.modifiers :]
        if not is_remount and not is_file:
            left += option.words
    return left


@dataclass(frozen=True)
class Given:
    """What bwrap was really given for a run: its options, and what it reads from descriptors `first_fd` on."""

    plan: Plan
    options: tuple[bytes, ...]
    contents: tuple[bytes, ...]
    first_fd: int


def given_to_bwrap(arena: Arena, **settings: Any) -> Given:
    """Run nothing much in a sandbox with these settings and return what bwrap was given for it."""
    seen: list[Given] = []

    def watched(*arguments: Any, **named: Any) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        options, contents = bwrap_options(*arguments, **named)
        seen.append(Given(arguments[0], options, contents, named["first_fd"]))
        return options, contents

    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.launcher.bwrap_options", watched)
        assert arena.ground.sandbox(**settings).run(["true"]).ok
    return seen[0]
