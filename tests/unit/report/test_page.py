# SPDX-License-Identifier: Apache-2.0
"""The page of a report: rectangles that fill the map, texts that stay texts, and a size that is bounded."""

from __future__ import annotations

import random
from html.parser import HTMLParser

import pytest

from unspill.report import page
from unspill.report.page import Bar, Page, PageRow, PageTable, Tile, fold, render, squarify

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><link rel=stylesheet href=//evil.example>",
    "</title><iframe src=javascript:alert(1)>",
    "' onmouseover='alert(1)",
    "<!-- --><svg onload=alert(1)>",
    "&lt;script&gt;",
)
ELEMENTS = frozenset(
    "html head meta title style body main header h1 h2 p div b span small section svg rect text g ul li table thead"
    " tbody tr th td code details summary".split()
)
ATTRIBUTES = frozenset(
    "lang charset http-equiv content name class x y width height role aria-label aria-hidden scope colspan"
    " data-name".split()
)


class Elements(HTMLParser):
    """Everything in a page that a browser would take for markup or fetch, and all its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ELEMENTS:
            self.found.append(tag)
        self.found += [name for name, _value in attrs if name not in ATTRIBUTES]

    def handle_comment(self, data: str) -> None:
        self.found.append(f"comment {data}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def make_page(texts: tuple[str, ...] = ("text",)) -> Page:
    """Return a page with each of the texts in every place that takes one."""
    text = texts[0]
    rows = tuple(PageRow(cells=(one, one), tone="bad") for one in texts)
    table = PageTable(heading=text, columns=(text, text), rows=(*rows, PageRow(cells=(text,))), code=(1,), rest=text)
    return Page(
        title=text,
        about=texts,
        figures=((text, text, text),),
        bars=tuple(Bar(title=one, counts=(("bad", 2), ("plain", 1))) for one in texts),
        bar_legend=(("bad", text),),
        ends=(text, text),
        tiles=tuple(
            Tile(group=one, name=one, about=one, weight=9 + number, tone="new") for number, one in enumerate(texts)
        ),
        tile_legend=(("new", text),),
        runs=table,
        files=table,
        others=(table.replace(rows=(), nothing=text),),
    )


def test_no_text_becomes_markup_and_all_of_it_is_shown() -> None:
    elements = Elements(render(make_page(HOSTILE)))
    assert elements.found == []
    assert set(HOSTILE) <= set(elements.texts)


def test_a_page_that_does_not_escape_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control arm of the test above."""
    monkeypatch.setattr(page, "escape", lambda text: text)
    assert {"script", "img", "onerror", "link", "iframe", "onload"} <= set(Elements(render(make_page(HOSTILE))).found)


def test_the_policy_allows_the_one_style_and_nothing_else() -> None:
    text = render(make_page())
    (policy,) = [line for line in text.split('"') if line.startswith("default-src")]
    parts = [part.split() for part in policy.replace("&#x27;", "'").split("; ")]
    assert [part[0] for part in parts] == ["default-src", "style-src", "base-uri", "form-action"]
    assert [part[1] for part in parts if part[0] != "style-src"] == ["'none'"] * 3
    assert text.count("<style>") == 1
    assert " style=" not in text


@pytest.mark.parametrize("seed", range(30))
def test_rectangles_fill_the_area_in_proportion_and_do_not_overlap(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((1, 10, 1000)) * chance.random() + 0.01 for _ in range(chance.randint(1, 80))]
    weights = sorted(sizes, reverse=True)
    width, height = chance.uniform(50, 1200), chance.uniform(50, 900)
    placed = squarify(weights, (5, 7, width, height))
    scale = width * height / sum(weights)
    for weight, (x, y, wide, high) in zip(weights, placed, strict=True):
        assert wide * high == pytest.approx(weight * scale, rel=1e-6)
        assert x >= 5 - 1e-6
        assert y >= 7 - 1e-6
        assert x + wide <= 5 + width + 1e-6
        assert y + high <= 7 + height + 1e-6
    for index, (x, y, wide, high) in enumerate(placed):
        for left, top, broad, tall in placed[index + 1 :]:
            across = min(x + wide, left + broad) - max(x, left)
            along = min(y + high, top + tall) - max(y, top)
            assert across < 1e-6 or along < 1e-6


def test_a_hundred_equal_weights_are_near_squares() -> None:
    """What tells it from slices, each as high as the map."""
    shapes = [max(wide / high, high / wide) for _x, _y, wide, high in squarify([1.0] * 100, (0, 0, 1000, 400))]
    assert max(shapes) < 3


def test_what_weighs_nothing_has_a_place_too() -> None:
    assert len(squarify([3.0, 0.0, 0.0], (0, 0, 10, 10))) == 3
    assert len(squarify([0.0], (0, 0, 10, 10))) == 1


def test_many_tiles_are_folded_by_group_and_none_is_lost() -> None:
    chance = random.Random(1)
    tiles = [
        Tile(group=f"d{chance.randint(0, 60)}/", name=f"f{n}", about="", weight=chance.randint(0, 9999), tone="new")
        for n in range(5000)
    ]
    folded = fold(tiles)
    assert len(folded) <= page.MOST_TILES
    assert sum(tile.count for tile in folded) == 5000
    assert sum(tile.weight for tile in folded) == sum(tile.weight for tile in tiles)
    assert max(tiles, key=lambda tile: tile.weight) in folded
    assert len(fold(tiles[:100])) == 100


def test_the_size_of_a_page_follows_its_bounds_and_not_its_texts() -> None:
    texts = tuple("x" * 50_000 + str(number) for number in range(page.MOST_TILES))
    assert len(render(make_page(texts))) < 1_000_000
