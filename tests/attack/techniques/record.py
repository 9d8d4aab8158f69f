# SPDX-License-Identifier: Apache-2.0
"""A technique: one way to attack, and the same attack where the defence is missing.

Both are functions of an arena that tell whether the attacker got what they wanted. A technique whose second function
does not succeed proves nothing and has no place in the list; test_techniques.py runs both of every one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Attack = Callable[[Arena], object]
    Removal = Callable[[Arena], AbstractContextManager[object]]


@dataclass(frozen=True)
class Technique:
    """One entry of the list. `row` is that of the threat model, `number` the technique's within it.

    `as_root` says what becomes of it for a root caller with `allow_root`: it fails there too, it succeeds (then
    SECURITY.md says so), or it has nothing to do with who calls. `needs_flaw`: only a bwrap that follows links while it
    sets up (before 0.12) can show that it works.
    """

    row: str
    number: int
    tries: str
    removed: str
    attack: Attack
    control: Attack
    as_root: str = "fails"
    why_root: str = ""
    needs_flaw: bool = False

    @property
    def id(self) -> str:
        return f"{self.row}.{self.number}"


@dataclass(frozen=True)
class Defence:
    """Something that can be taken away from a sandbox, and what it is called."""

    name: str
    removal: Removal

    def __and__(self, other: Defence) -> Defence:
        """Return both: where two defences overlap the control is without either."""

        def both(arena: Arena) -> ExitStack:
            stack = ExitStack()
            stack.enter_context(self.removal(arena))
            stack.enter_context(other.removal(arena))
            return stack

        return Defence(f"{self.name} and {other.name}", both)


class Listed:
    """Collects the techniques of one module, numbered in the order in which they are written."""

    def __init__(self, as_root: str = "fails") -> None:
        self.techniques: list[Technique] = []
        self._as_root = as_root

    def add(self, row: str, tries: str, attack: Attack, without: Defence, **more: Any) -> None:
        """Add an attack whose control is the same attack without a defence."""

        def control(arena: Arena) -> object:
            with without.removal(arena):
                return attack(arena)

        self.add_pair(row, tries, attack, f"without {without.name}", control, **more)

    def add_pair(self, row: str, tries: str, attack: Attack, removed: str, control: Attack, **more: Any) -> None:
        """Add an attack whose control goes another way: by a naive program in the place of ours."""
        number = sum(one.row == row for one in self.techniques) + 1
        named = {"as_root": self._as_root} | more
        self.techniques.append(Technique(row, number, tries, removed, attack, control, **named))


def inside(
    script: str,
    *,
    given: Callable[[Arena], Mapping[str, object]] | None = None,
    settings: Mapping[str, Any] | None = None,
    seen: Callable[[Arena], object] | None = None,
) -> Attack:
    """Return the attack of a script that runs inside.

    Args:
        script: Python; it prints `WON ...` by `won`, `call` or `attempt` where it got something.
        given: Prepares the machine and returns variables that the script has.
        settings: What the policy says besides.
        seen: Tells by a look at the host whether it succeeded, if the script itself can't know.
    """

    def attack(arena: Arena) -> object:
        values = given(arena) if given is not None else {}
        text = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        tried = arena.attack(text + script, **resolved(arena, settings or {}))
        return tried.won if seen is None else seen(arena)

    return attack


def resolved(arena: Arena, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a policy; those that depend on the machine are given as functions of the arena."""
    return {name: value(arena) if callable(value) else value for name, value in settings.items()}


def flags(*words: bytes) -> Defence:
    """Return the defence of some options of bwrap."""
    shown = " and ".join(f"`{word.decode()}`" for word in words)
    return Defence(shown, lambda arena: arena.without(*words))


FILTER: Final = Defence("the filter of system calls", lambda arena: arena.without_filter())
NO_NAMESPACES: Final = flags(b"--disable-userns", b"--assert-userns-disabled")


def merged(*lists: Iterable[Technique]) -> tuple[Technique, ...]:
    """Return several lists as one, by row and number."""
    every = [technique for one in lists for technique in one]
    return tuple(sorted(every, key=lambda one: (one.row[0], int(one.row[1:]), one.number)))
