# SPDX-License-Identifier: Apache-2.0
"""The table over all pairs of kinds."""

import itertools
from typing import TYPE_CHECKING

import pytest

from unspill.changes.scan import BASE_KINDS, TABLE, UPPER_KINDS

if TYPE_CHECKING:
    from unspill.changes.scan import BaseKind, UpperKind

PAIRS = list(itertools.product(UPPER_KINDS, BASE_KINDS))


@pytest.mark.parametrize(("upper", "base"), PAIRS)
def test_every_pair_of_kinds_is_listed(upper: "UpperKind", base: "BaseKind") -> None:
    assert TABLE[upper, base]


def test_nothing_else_is_listed() -> None:
    assert set(TABLE) == set(PAIRS)


@pytest.mark.parametrize(("upper", "base"), PAIRS)
def test_a_verdict_fits_its_pair(upper: "UpperKind", base: "BaseKind") -> None:
    match upper, base:
        case ("none", _) | ("whiteout", "none"):
            wanted = "nothing"
        case "whiteout", _:
            wanted = "deleted"
        case _, "none":
            wanted = "added"
        case "opaque", "dir":
            wanted = "compare hidden directory"
        case "dir", "dir":
            wanted = "compare directories"
        case _:
            wanted = f"compare {upper}s" if upper == base else "replaced"
    assert TABLE[upper, base] == wanted
