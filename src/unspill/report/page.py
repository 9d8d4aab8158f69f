# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page: figures, a timeline, a map of rectangles, tables. Pure: it knows texts and numbers.

Every text may be a stranger's, so no text becomes markup: elements are made by `_tag`, which escapes and cuts all that
it did not make itself. The page has no script and asks for nothing; its policy refuses both, should something slip in.
It works at any width, in light and dark, and its size follows the number of its rows.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    Tone = Literal["new", "change", "gone", "plain", "bad", "now"]
    Rectangle = tuple[float, float, float, float]

MOST_TILES = 160
# Of any text; a longer one is cut
MOST_CHARACTERS = 300
_MOST_GROUPS = 24
# The map as it is laid out, in pixels of a desktop: its rectangles are shares of that, its letters are not
_WIDTH, _HEIGHT = 1040.0, 420.0
_GAP = 1.5
# The smallest rectangle with room for a name, and for a second line
_NAMED, _TALL = (46.0, 20.0), 38.0
# No file is so small that it can't be pointed at
_LEAST_SHARE = 0.0008


class Tile(Record):
    """One rectangle of the map. Those of a `group` are side by side; `count` is how many files it stands for."""

    group: str
    name: str
    about: str
    weight: int
    tone: Tone
    count: int = 1


class Bar(Record):
    """Some time of the timeline: when it was, and how many runs of each tone."""

    title: str
    counts: tuple[tuple[Tone, int], ...] = ()


class PageRow(Record):
    """A row of a table. `tone` marks its first cell; a row of one cell goes over all columns."""

    cells: tuple[str, ...]
    tone: Tone = "plain"


class PageTable(Record):
    """A table with a heading; `code` are the columns with what machines read. `rest` says what is not in it."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[PageRow, ...]
    code: tuple[int, ...] = ()
    nothing: str = ""
    rest: str = ""


class Page(Record):
    """All that a page shows. Legends are tones with their meaning."""

    title: str
    about: tuple[str, ...]
    figures: tuple[tuple[str, str, str], ...]
    bars: tuple[Bar, ...]
    bar_legend: tuple[tuple[Tone, str], ...]
    ends: tuple[str, str]
    tiles: tuple[Tile, ...]
    tile_legend: tuple[tuple[Tone, str], ...]
    runs: PageTable
    files: PageTable
    others: tuple[PageTable, ...]


class _Html(str):
    """A text that is markup already."""

    __slots__ = ()


def render(page: Page) -> str:
    """Return the page as HTML."""
    digest = b64encode(sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = _tag(
        "head",
        _tag("meta", charset="utf-8"),
        _tag("meta", http_equiv="Content-Security-Policy", content=policy),
        _tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _tag("meta", name="referrer", content="no-referrer"),
        _tag("meta", name="color-scheme", content="light dark"),
        _tag("title", page.title),
        # The one text that must not be escaped, and none of it is a stranger's
        _tag("style", _Html(_STYLE)),
    )
    body = _tag("body", _tag("main", *_sections(page)))
    return "<!doctype html>\n" + _tag("html", head, body, lang="en") + "\n"


def squarify(weights: Sequence[float], area: Rectangle) -> list[Rectangle]:
    """Return a rectangle for each weight, the largest of which come first; together they fill the area.

    Weights are laid in rows along the shorter side. A row takes the next weight as long as its worst rectangle comes
    closer to a square by that.
    """
    x, y, width, height = area
    left = sum(weights)
    placed: list[Rectangle] = []
    at = 0
    while at < len(weights):
        side = min(width, height)
        scale = width * height / left if left > 0 else 0.0
        end = at + 1
        while end < len(weights) and _worst(weights[at : end + 1], side, scale) <= _worst(weights[at:end], side, scale):
            end += 1
        row = sum(weights[at:end])
        depth = row * scale / side if side > 0 else 0.0
        begun = 0.0
        for weight in weights[at:end]:
            length = side * weight / row if row > 0 else 0.0
            if width >= height:
                placed.append((x, y + begun, depth, length))
            else:
                placed.append((x + begun, y, length, depth))
            begun += length
        if width >= height:
            x, width = x + depth, max(0.0, width - depth)
        else:
            y, height = y + depth, max(0.0, height - depth)
        left -= row
        at = end
    return placed


def fold(tiles: Sequence[Tile], most: int = MOST_TILES) -> list[Tile]:
    """Return at most so many tiles, the largest first: of each group one stands for the small ones that had no room."""
    ordered = sorted(tiles, key=lambda tile: (-tile.weight, tile.group, tile.name))
    if len(ordered) <= most:
        return ordered
    kept, small = ordered[: most - _MOST_GROUPS], ordered[most - _MOST_GROUPS :]
    by_group: dict[str, list[Tile]] = {}
    for tile in small:
        by_group.setdefault(tile.group, []).append(tile)
    groups = sorted(by_group.items(), key=lambda item: -sum(tile.weight for tile in item[1]))
    folded = [_folded(group, members) for group, members in groups[: _MOST_GROUPS - 1]]
    rest = [tile for _group, members in groups[_MOST_GROUPS - 1 :] for tile in members]
    return sorted([*kept, *folded, *([_folded("", rest)] if rest else [])], key=lambda tile: -tile.weight)


def _folded(group: str, members: Sequence[Tile]) -> Tile:
    tones = {tile.tone for tile in members}
    count = sum(tile.count for tile in members)
    return Tile(
        group=group,
        name=f"{count} more in {group}" if group else f"{count} more",
        about="folded: small files",
        weight=sum(tile.weight for tile in members),
        tone=tones.pop() if len(tones) == 1 else "plain",
        count=count,
    )


def _worst(row: Sequence[float], side: float, scale: float) -> float:
    """Return how far from a square the worst rectangle of a row is: its longer side by its shorter one."""
    total = sum(row)
    depth = total * scale / side if side > 0 else 0.0
    lengths = [side * weight / total if total > 0 else 0.0 for weight in row]
    shapes = [max(depth / length, length / depth) if depth > 0 and length > 0 else float("inf") for length in lengths]
    return max(shapes)


def _tag(element: str, *children: str, **attributes: str) -> _Html:
    """Return an element. Children and values are escaped and cut, unless they are elements; `class_` means `class`."""
    given = "".join(f' {name.rstrip("_").replace("_", "-")}="{_safe(value)}"' for name, value in attributes.items())
    if element in _VOID:
        return _Html(f"<{element}{given}>")
    inner = "".join(child if isinstance(child, _Html) else _safe(child) for child in children)
    return _Html(f"<{element}{given}>{inner}</{element}>")


def _sections(page: Page) -> list[_Html]:
    figures = [
        _tag("div", _tag("b", value), _tag("span", label), _tag("small", detail), class_="figure")
        for label, value, detail in page.figures
    ]
    sections = [
        _tag("header", _tag("h1", page.title), *(_tag("p", line) for line in page.about)),
        _tag("div", *figures, class_="figures"),
    ]
    if page.bars:
        ends = _tag("div", *(_tag("span", end) for end in page.ends), class_="ends")
        sections.append(_section("Timeline", _timeline(page.bars), ends, _legend(page.bar_legend)))
    if page.tiles:
        listed = _tag("details", _tag("summary", "As a list, the largest first"), _table(page.files))
        sections.append(_section(page.files.heading, _map(page.tiles), _legend(page.tile_legend), listed))
    else:
        sections.append(_section(page.files.heading, _table(page.files)))
    return [*sections, *(_section(one.heading, _table(one)) for one in (*page.others, page.runs))]


def _section(heading: str, *parts: _Html) -> _Html:
    return _tag("section", _tag("h2", heading), *parts)


def _legend(tones: Sequence[tuple[Tone, str]]) -> _Html:
    swatch = _tag("rect", width="100%", height="100%")
    items = [
        _tag("li", _tag("svg", swatch, class_=f"swatch {tone}", aria_hidden="true"), meaning) for tone, meaning in tones
    ]
    return _tag("ul", *items, class_="legend")


def _timeline(bars: Sequence[Bar]) -> _Html:
    highest = max(1, *(sum(count for _tone, count in bar.counts) for bar in bars))
    width = 100 / len(bars)
    drawn = []
    for index, bar in enumerate(bars):
        below, parts = 100.0, []
        for tone, count in bar.counts:
            height = 100 * count / highest
            below -= height
            if count:
                parts.append(_rectangle((index * width + width * 0.08, below, width * 0.84, height), tone))
        if parts:
            drawn.append(_tag("g", _tag("title", bar.title), *parts))
    return _tag("svg", *drawn, class_="timeline", role="img", aria_label=f"Runs over time, at most {highest} at once")


def _map(tiles: Sequence[Tile]) -> _Html:
    """Return the map: groups side by side, and in each its tiles."""
    total = sum(tile.weight for tile in tiles) or 1
    groups: dict[str, list[tuple[float, Tile]]] = {}
    for tile in fold(tiles):
        groups.setdefault(tile.group, []).append((max(tile.weight, total * _LEAST_SHARE), tile))
    ordered = sorted(groups.values(), key=lambda group: -sum(weight for weight, _tile in group))
    areas = squarify([sum(weight for weight, _tile in group) for group in ordered], (0, 0, _WIDTH, _HEIGHT))
    drawn = []
    for area, group in zip(areas, ordered, strict=True):
        members = sorted(group, key=lambda pair: -pair[0])
        places = squarify([weight for weight, _tile in members], _inset(area, _GAP))
        drawn += [_tile(tile, _inset(place, _GAP / 2)) for (_weight, tile), place in zip(members, places, strict=True)]
    count = sum(tile.count for tile in tiles)
    return _tag("svg", *drawn, class_="map", role="img", aria_label=f"Map of {count} changed files by size")


def _tile(tile: Tile, place: Rectangle) -> _Html:
    x, y, width, height = place
    where = f"{tile.group} " if tile.group and tile.count == 1 else ""
    parts = [
        _tag("title", f"{where}{tile.name}: {tile.about}"),
        _tag("rect", width="100%", height="100%", class_=tile.tone),
    ]
    if width >= _NAMED[0] and height >= _NAMED[1]:
        parts.append(_tag("text", tile.name, x="6", y="15"))
        if height >= _TALL:
            parts.append(_tag("text", tile.about, x="6", y="30", class_="about"))
    shares = (100 * x / _WIDTH, 100 * y / _HEIGHT, 100 * width / _WIDTH, 100 * height / _HEIGHT)
    return _tag("svg", *parts, **_geometry(shares))


def _inset(place: Rectangle, by: float) -> Rectangle:
    x, y, width, height = place
    return (
        x + min(by, width / 4),
        y + min(by, height / 4),
        max(width - 2 * by, width / 2),
        max(height - 2 * by, height / 2),
    )


def _rectangle(shares: Rectangle, tone: Tone) -> _Html:
    return _tag("rect", class_=tone, **_geometry(shares))


def _geometry(shares: Rectangle) -> dict[str, str]:
    """Return where something is, in percent: letters beside it keep their size on a phone."""
    return {name: f"{share:.2f}%" for name, share in zip(("x", "y", "width", "height"), shares, strict=True)}


def _table(given: PageTable) -> _Html:
    rest = [_tag("p", given.rest, class_="rest")] if given.rest else []
    if not given.rows:
        return _tag("div", _tag("p", given.nothing, class_="rest"), *rest)
    head = _tag("thead", _tag("tr", *(_tag("th", name, scope="col") for name in given.columns)))
    body = _tag("tbody", *(_table_row(given, row) for row in given.rows))
    return _tag("div", _tag("table", head, body), *rest, class_="wide")


def _table_row(given: PageTable, row: PageRow) -> _Html:
    if len(row.cells) == 1:
        return _tag("tr", _tag("td", row.cells[0], colspan=str(len(given.columns))), class_="whole")
    cells = []
    for index, (text, name) in enumerate(zip(row.cells, given.columns, strict=True)):
        inner = _tag("code", text) if index in given.code else text
        cells.append(_tag("td", inner, data_name=name, class_=row.tone if index == 0 else "cell"))
    return _tag("tr", *cells)


def _safe(text: str) -> str:
    """Return a text that is no markup, and no longer than anybody reads."""
    return escape(text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…")


_VOID = ("meta",)
_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1c2128; --dim: #57606a; --line: #d8dee4; --card: #f6f8fa;
  --new: #1a7f37; --change: #0b5cad; --gone: #b3261e; --plain: #636c76; --bad: #b3261e; --now: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161b; --text: #e6edf3; --dim: #9aa4af; --line: #30363d;
  --card: #1b2129; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1088px; margin: 0 auto; padding: 24px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 10px; }
header p { margin: 0; color: var(--dim); overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 20px; }
.figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.figure b { display: block; font-size: 26px; line-height: 1.2; }
.figure span { display: block; }
.figure small { color: var(--dim); }
.timeline, .map { display: block; width: 100%; }
.timeline { height: 110px; border-bottom: 1px solid var(--line); }
.map { height: 420px; }
.map text { fill: #fff; font-size: 12px; }
.map text.about { opacity: 0.85; font-size: 11px; }
.ends { display: flex; justify-content: space-between; color: var(--dim); font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; padding: 0; margin: 10px 0 0;
  font-size: 13px; color: var(--dim); }
.legend li { display: flex; align-items: center; gap: 6px; }
.swatch { width: 12px; height: 12px; border-radius: 3px; }
.new { fill: var(--new); } .change { fill: var(--change); } .gone { fill: var(--gone); } .plain { fill: var(--plain); }
.bad { fill: var(--bad); } .now { fill: var(--now); }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
details { margin-top: 14px; }
summary { cursor: pointer; color: var(--dim); margin-bottom: 8px; }
th { text-align: left; font-weight: 600; color: var(--dim); font-size: 13px; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:last-child, th:last-child { padding-right: 0; }
td { overflow-wrap: anywhere; min-width: 5.5em; }
td.bad, td.gone { color: var(--bad); font-weight: 600; }
td.new { color: var(--new); } td.change { color: var(--change); } td.now { color: var(--now); }
@media (prefers-color-scheme: dark) { td.bad, td.gone { color: #ff8b84; } td.new { color: #5fc97d; }
  td.change { color: #7db4f0; } td.now { color: #e0ab48; } }
td[data-name="when"], td[data-name="took"], td[data-name="ended"] { white-space: nowrap; }
tr.whole td { background: var(--card); padding: 6px 10px; white-space: pre-wrap; }
code { font: 13px/1.45 ui-monospace, monospace; }
.rest { color: var(--dim); font-size: 13px; margin: 8px 0 0; }
@media (max-width: 640px) {
  main { padding: 16px; }
  .figures { grid-template-columns: 1fr 1fr; }
  .figure:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .map { height: 340px; }
  thead { display: none; }
  table, tbody { display: block; }
  tr { display: flex; flex-wrap: wrap; gap: 0 14px; border-bottom: 1px solid var(--line); padding: 8px 0; }
  td { display: block; border: 0; padding: 0; min-width: 0; }
  td:has(code) { flex-basis: 100%; }
  td.cell:not(:has(code))::before { content: attr(data-name) " "; color: var(--dim); font-size: 12px; }
  td.cell:empty { display: none; }
  tr.whole td { flex-basis: 100%; }
}
@media print { .figure { break-inside: avoid; } tr { break-inside: avoid; } }
"""
