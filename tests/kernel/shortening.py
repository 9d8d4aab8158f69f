# SPDX-License-Identifier: Apache-2.0
"""Make what failed shorter, so that a person can read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeVar


class Shortenable(Protocol):
    """A sequence of actions that can do without some of them."""

    def shorter(self) -> Iterable[Self]: ...


T = TypeVar("T", bound=Shortenable)


def shortened(sequence: T, fails: Callable[[T], object], attempts: int) -> T:
    """Leave out what is not needed to fail, as far as a bounded number of attempts gets."""
    candidates = iter(sequence.shorter())
    while attempts and (candidate := next(candidates, None)) is not None:
        attempts -= 1
        if fails(candidate):
            sequence, candidates = candidate, iter(candidate.shorter())
    return sequence
