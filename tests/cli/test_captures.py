# SPDX-License-Identifier: Apache-2.0
"""What every verb prints is what was kept, on terminals of three widths, and colours change no word of it."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cli.captures import KEPT, WIDTHS, capture

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def test_every_verb_looks_as_it_was_kept_at_every_width_and_without_colours() -> None:
    """What looks otherwise on purpose is kept by `python -m tests.cli.captures`: look at it, then at its difference."""
    with ThreadPoolExecutor(len(WIDTHS) + 1) as pool:
        plain = pool.submit(capture, 80, has_colours=False)
        found = dict(zip(WIDTHS, pool.map(capture, WIDTHS), strict=True))
    for columns, text in found.items():
        assert text == (KEPT / f"{columns}.txt").read_text("utf-8"), f"{columns} columns"
    assert re.search(r"\{\d", found[80])
    assert plain.result() == re.sub(r"\{[\d;]*\}", "", found[80]).replace("echo  >", "echo {} >")
