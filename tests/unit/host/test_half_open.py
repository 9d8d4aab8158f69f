# SPDX-License-Identifier: Apache-2.0
"""The mode between two steps of opening a directory says what the directory's own mode was."""

import pytest

from unspill.host.overlay import before_opening, half_open


@pytest.mark.parametrize("mode", range(0o1000))
def test_every_mode_without_special_bits_is_known_again(mode: int) -> None:
    between = half_open(mode)
    assert between & 0o700 == 0o200
    assert before_opening(between) == mode


@pytest.mark.parametrize("mode", [0o755, 0o000, 0o555, 0o200, 0o270, 0o2755, 0o1777, 0o6555])
def test_a_mode_that_nobody_is_about_to_change_is_what_it_is(mode: int) -> None:
    assert before_opening(mode) == mode


@pytest.mark.parametrize("mode", [0o2555, 0o1500, 0o6000])
def test_a_directory_with_special_bits_is_never_opened_wider_than_it_was(mode: int) -> None:
    assert half_open(mode) & ~0o200 & ~mode == 0
