# SPDX-License-Identifier: Apache-2.0
"""The picture at the top of README.md says what a terminal says today, and shows it without help from elsewhere."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.building import load_script
from tests.docs.tables import ROOT

DEMO = load_script("make_demo")
PICTURE = ROOT / "docs" / "demo.svg"


@pytest.mark.kernel
@pytest.mark.slow
def test_the_picture_says_what_a_terminal_says_today(tmp_path: Path, bwrap: Path) -> None:
    """The time buys a real terminal, in which all of it is typed again."""
    lines = DEMO.record(tmp_path)
    assert [DEMO.plain(line) for line in lines] == DEMO.says(PICTURE.read_text("utf-8"))
    assert DEMO.says(DEMO.draw(lines)) == DEMO.says(PICTURE.read_text("utf-8"))


def test_the_picture_is_small_and_loads_nothing() -> None:
    text = PICTURE.read_text("utf-8")
    assert len(text) < 60_000
    assert {node.tag.partition("}")[2] for node in ET.fromstring(text).iter()} == {
        "svg", "style", "rect", "circle", "g", "text", "tspan"
    }  # fmt: skip
    assert re.findall(r"href|url\(|@import|<script", text) == []


def test_the_picture_is_at_the_top_of_the_readme() -> None:
    (image,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text("utf-8").partition("\n## ")[0])
    assert ROOT / image == PICTURE


def test_a_line_keeps_its_colours_and_the_next_begins_with_them() -> None:
    text, names = DEMO.coloured("\x1b[1;31mred\x1b[39m bold", frozenset())
    assert text == '<tspan class="o r">red</tspan><tspan class="o"> bold</tspan>'
    assert DEMO.coloured("<b>\x1b[0m", names) == ('<tspan class="o">&lt;b&gt;</tspan>', frozenset())


def test_more_lines_than_the_terminal_has_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        DEMO.draw(["x"] * 100)
