# SPDX-License-Identifier: Apache-2.0
"""The two panes of the review screen, drawn line by line: only what is seen costs anything, however long they are.

Names and texts are a stranger's. They come here escaped, and are only ever put into segments: nothing in them is taken
for markup or for a sequence of the terminal. Widths are counted in cells, so that wide characters keep to their pane.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import ClassVar

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from unspill.policy.paths import quote
from unspill.tui.model import NOT, PARTLY, WHOLE, Picks, Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.tui.colours import Span

# A diff that is narrower has no numbers of lines
_ROOM_FOR_NUMBERS = 56
_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "replaced": "T", "metadata": "m"}
_MARKS = {NOT: "[ ]", WHOLE: "[x]", PARTLY: "[~]"}
_PLAIN = Style()
_DIM = Style(color="bright_black")
_BOLD = Style(bold=True)
_COLOURS = {
    "A": Style(color="green"),
    "M": Style(color="yellow"),
    "D": Style(color="red"),
    "T": Style(color="red"),
    "m": Style(color="cyan"),
    "-": Style(color="red"),
    "+": Style(color="green"),
    "picked": Style(color="green", bold=True),
    "remark": Style(color="magenta", bold=True),
    "hunk": Style(color="cyan"),
    "clash": Style(color="magenta", bold=True),
    "note": Style(bold=True),
    "keyword": Style(color="magenta"),
    "string": Style(color="yellow"),
    "number": Style(color="cyan"),
    "name": Style(color="blue"),
    "comment": _DIM,
}
# The line with the cursor, in the pane that has the keys and in the other one
_CURSOR = Style(reverse=True)
_QUIET_CURSOR = Style(bold=True, underline=True)


def fit_end(text: str, width: int) -> str:
    """Return a text that takes exactly so many cells; of a longer one the end is kept."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    kept = text[-width:]
    while kept and cell_len(kept) > width - 1:
        kept = kept[1:]
    return set_cell_size("…" + kept, width) if width > 0 else ""


def size_text(size: int) -> str:
    """Return a size in at most five characters."""
    if size < 1000:
        return str(size)
    number = float(size)
    for unit in "KMGTP":
        number /= 1024
        if number < 999.5:
            return f"{number:.1f}{unit}" if number < 9.95 else f"{number:.0f}{unit}"
    return "huge"


@lru_cache(maxsize=4096)
def _rows_of(text: str, width: int) -> int:
    return len(_wrapped(text, width))


@lru_cache(maxsize=4096)
def _wrapped(text: str, width: int) -> tuple[str, ...]:
    """Return the rows that a line takes."""
    if len(text) <= width and text.isascii():
        return (text,)
    return tuple(chop_cells(text, max(2, width))) or ("",)


def _in_words(text: str, width: int, rows: int) -> list[str]:
    """Return a sentence in so many rows, broken between words; what has no room is left out."""
    found = [""]
    for word in text.split(" "):
        longer = f"{found[-1]} {word}" if found[-1] else word
        if cell_len(longer) > width and found[-1] and len(found) < rows:
            found.append(word)
        else:
            found[-1] = longer
    last = found[-1] if cell_len(found[-1]) <= width else set_cell_size(found[-1], width - 1) + "…"
    return [*found[:-1], last]


class WordLine(Widget):
    """A line of words, or a few."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._segments: list[Segment] = []
        self._text = ""
        self._style = _PLAIN

    def show(self, *segments: Segment) -> None:
        """Show other words."""
        self._segments = list(segments)
        self.refresh()

    def say(self, text: str, style: Style) -> None:
        """Show a sentence, on as many lines as there are."""
        self._text, self._style, self._segments = text, style, []
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw it."""
        width = self.size.width
        if self._segments:
            return Strip(self._segments if y == 0 else []).crop_extend(0, width, _PLAIN)
        rows = _in_words(self._text, max(2, width - 1), self.size.height)
        text = f" {rows[y]}" if y < len(rows) else ""
        return Strip([Segment(set_cell_size(text, width), self._style)])


class Pane(ScrollView, can_focus=True):
    """Many lines, one of which has the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False, priority=True),
        Binding("down,j", "move(1)", show=False, priority=True),
        Binding("pageup,ctrl+b", "page(-1)", show=False, priority=True),
        Binding("pagedown,ctrl+f", "page(1)", show=False, priority=True),
        Binding("home,g", "go(0)", show=False, priority=True),
        Binding("end,G", "go(-1)", show=False, priority=True),
    ]

    class Moved(Message):
        """The cursor is on another line; `by_person` if somebody wanted it there."""

        def __init__(self, pane: Pane, *, by_person: bool) -> None:
            super().__init__()
            self.pane = pane
            self.by_person = by_person

    class Pressed(Message):
        """A line was clicked; `on_mark` where it shows whether it is picked."""

        def __init__(self, pane: Pane, *, on_mark: bool) -> None:
            super().__init__()
            self.pane = pane
            self.on_mark = on_mark

    cursor = 0

    @property
    def count(self) -> int:
        """How many lines there are."""
        return 0

    def draw(self, row: int) -> list[Segment]:
        """Return one line."""
        raise NotImplementedError

    def mark_columns(self, _row: int) -> int:
        """Return up to which column a click on a line picks it."""
        return 3

    def action_move(self, by: int) -> None:
        """Go some lines up or down."""
        self.go(self.cursor + by, by_person=True)

    def action_page(self, by: int) -> None:
        """Go a screen up or down."""
        self.go(self.cursor + by * max(1, self.size.height - 1), by_person=True)

    def action_go(self, to: int) -> None:
        """Go to the first or the last line."""
        self.go(to if to >= 0 else self.count - 1, by_person=True)

    def go(self, to: int, *, by_person: bool = False) -> None:
        """Put the cursor on a line, and have it seen."""
        to = max(0, min(to, self.count - 1))
        is_other = to != self.cursor
        self.cursor = to
        top, height = round(self.scroll_y), max(1, self.size.height)
        if to < top or to >= top + height:
            self.scroll_to(y=to if to < top else to - height + 1, animate=False, immediate=True)
        self.refresh()
        if is_other:
            self.post_message(self.Moved(self, by_person=by_person))

    def resize_lines(self) -> None:
        """Take notice that there are more or fewer lines."""
        self.virtual_size = Size(self.size.width, self.count)
        self.cursor = max(0, min(self.cursor, self.count - 1))
        self.refresh()

    def on_resize(self, _event: events.Resize) -> None:
        """Have the lines fit."""
        self.resize_lines()

    def on_focus(self) -> None:
        """Show that the keys are for this pane."""
        self.refresh()

    def on_blur(self) -> None:
        """Show that they are not."""
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where somebody clicked."""
        offset = event.get_content_offset(self)
        row = round(self.scroll_y) + (event.y if offset is None else offset.y)
        if row < self.count:
            self.go(row, by_person=True)
            self.post_message(self.Pressed(self, on_mark=event.x < self.mark_columns(row)))

    def render_line(self, y: int) -> Strip:
        """Draw one line of what is seen."""
        row = round(self.scroll_y) + y
        width = self.scrollable_content_region.width
        if row >= self.count:
            return Strip.blank(width, _PLAIN)
        strip = Strip(self.draw(row)).crop_extend(0, width, _PLAIN)
        if row == self.cursor and self.has_focus:
            # Without colours: some of them could not be read in reverse
            return Strip([Segment(strip.text, _CURSOR)], strip.cell_length)
        return strip.apply_style(_QUIET_CURSOR) if row == self.cursor else strip


class FileList(Pane):
    """What is held, or was done: a line for each path."""

    def __init__(self, project: bytes, *, can_pick: bool) -> None:
        super().__init__(id="files")
        self._project = project
        self._can_pick = can_pick
        self.picks: Picks | None = None

    @property
    def count(self) -> int:
        """How many lines there are."""
        return 0 if self.picks is None else len(self.picks.visible)

    @property
    def place(self) -> int | None:
        """The place in the list of what the cursor is on."""
        return self.picks.visible[self.cursor] if self.picks is not None and self.count else None

    def show(self, picks: Picks) -> None:
        """Show a list."""
        self.picks = picks
        self.resize_lines()

    def draw(self, row: int) -> list[Segment]:
        """Return one line: what is picked, the kind of change, its name, remarks and size."""
        picks = self.picks
        assert picks is not None
        at = picks.visible[row]
        entry = picks.entries[at]
        width = self.scrollable_content_region.width
        segments = self._mark(picks, at) if self._can_pick else [Segment(f"op{entry.group} ", _DIM)]
        letter = "." if entry.change is None else _LETTERS[entry.change.kind]
        segments.append(Segment(letter + " ", _COLOURS.get(letter, _PLAIN)))
        size = entry.change.entry.size if entry.change is not None and entry.change.entry is not None else 0
        is_file = entry.change is not None and not entry.is_directory and entry.change.entry is not None
        tail = f"{size_text(size):>6}" if is_file else " " * 6
        name, word = self._title_of(picks, at), self._remark(picks, at)
        room = width - sum(cell_len(one.text) for one in segments) - len(tail)
        # Where there is no room for a word, its first letter stands for it
        remark = f" {word}" if cell_len(name) + len(word) < room else f" {word[:1].upper()}"
        segments += [
            Segment(fit_end(name, room - len(remark)), _BOLD if entry.is_directory else _PLAIN),
            Segment(remark, _COLOURS["remark"]),
            Segment(tail, _DIM),
        ]
        return segments

    def _mark(self, picks: Picks, at: int) -> list[Segment]:
        mark = picks.mark_of(at)
        text = "[-]" if picks.kept[at] and not mark else _MARKS[mark]
        return [Segment(text + " ", _COLOURS["picked"] if mark else _PLAIN)]

    def _title_of(self, picks: Picks, at: int) -> str:
        entry = picks.entries[at]
        name = quote(entry.path if entry.root == self._project else entry.root + b"/" + entry.path)
        if entry.is_directory:
            name += "/"
        if at in picks.folded:
            name += f" ({entry.below} in it)"
        return name

    @staticmethod
    def _remark(picks: Picks, at: int) -> str:
        if at in picks.changed:
            return "changed"
        if at in picks.sides:
            return "conflict" if None in picks.sides[at] else "resolved"
        found = ((picks.edited, "edited"), (picks.held, "held"), (picks.flagged, "flagged"))
        return next((word for places, word in found if at in places), "")


class DiffView(Pane):
    """What there is to see of one entry."""

    def __init__(self) -> None:
        super().__init__(id="diff")
        self.lines: Sequence[Shown] = ()
        self.place: int | None = None
        self.picks: Picks | None = None
        self.spans: dict[int, list[Span]] = {}
        # Of each hunk the lines that can be picked
        self.numbers: dict[int, frozenset[int]] = {}
        self._starts: list[int] = []
        self._width = 0
        # How many rows were seen without a gap from the first
        self._seen = 0

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._starts[-1] if self._starts else 0

    @property
    def is_seen(self) -> bool:
        """Whether all of it has been on the screen."""
        return bool(self.lines) and self._seen >= self.count

    @property
    def line(self) -> int:
        """The line that the cursor is on."""
        return max(0, bisect_right(self._starts, self.cursor) - 1)

    @property
    def seen_lines(self) -> range:
        """The lines on the screen."""
        top = round(self.scroll_y)
        last = min(self.count, top + self.size.height)
        return range(bisect_right(self._starts, top) - 1, bisect_right(self._starts, max(0, last - 1)))

    def show(self, place: int, lines: Sequence[Shown], picks: Picks, *, can_pick: bool) -> None:
        """Show an entry; the cursor stays where it is if it is the same one. Single lines of few can be picked."""
        is_same = place == self.place and picks is self.picks and bool(self.lines)
        self.place, self.picks, self.lines = place, picks, lines
        hunks: dict[int, list[int]] = {}
        for one in lines if can_pick else ():
            if one.number:
                hunks.setdefault(one.part, []).append(one.number)
        self.numbers = {hunk: frozenset(numbers) for hunk, numbers in hunks.items()}
        self.spans = {}
        if not is_same:
            self.cursor, self._seen = 0, 0
        self._width = 0
        self.resize_lines()
        if not is_same:
            self.scroll_to(y=0, animate=False, immediate=True)
            first = next((at for at, one in enumerate(lines) if one.kind in ("hunk", "clash")), 0)
            self.cursor = self._starts[first] if first and self._starts[first] < self.size.height else 0
        self.note_seen()

    def resize_lines(self) -> None:
        """Find out how many rows each line takes."""
        width = self._room
        if width != self._width:
            line = self.line if self._starts else 0
            self._width = width
            starts, row = [], 0
            for shown in self.lines:
                starts.append(row)
                row += 1 if len(shown.text) <= width and shown.text.isascii() else _rows_of(shown.text, width)
            self._starts = [*starts, row]
            self.cursor = self._starts[min(line, len(self.lines))] if self.cursor else 0
            self._seen = 0
        super().resize_lines()
        self.note_seen()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Remember what was seen."""
        super().watch_scroll_y(old_value, new_value)
        self.note_seen()

    def note_seen(self) -> None:
        """Remember what is on the screen; what was jumped over is not."""
        top = round(self.scroll_y)
        if self.display and self.size.height and top <= self._seen:
            self._seen = max(self._seen, top + self.size.height)

    def next_part(self, step: int) -> None:
        """Go to the next hunk or conflict."""
        order = range(self.line + 1, len(self.lines)) if step > 0 else range(self.line - 1, -1, -1)
        for at in order:
            if self.lines[at].kind in ("hunk", "clash"):
                self.go(self._starts[at])
                return

    def go_line(self, line: int) -> None:
        """Go to a line."""
        self.go(self._starts[line])

    def draw(self, row: int) -> list[Segment]:
        """Return one row of a line."""
        at = max(0, bisect_right(self._starts, row) - 1)
        shown, inner = self.lines[at], row - self._starts[at]
        rows = _wrapped(shown.text, self._width)
        text = rows[inner] if inner < len(rows) else ""
        gutter = self._gutter(shown) if not inner else " " * self._gutter_width
        style = _COLOURS.get(shown.mark if shown.kind == "text" else shown.kind, _PLAIN)
        if shown.kind == "side":
            style = {"o": _COLOURS["+"], "t": _COLOURS["keyword"]}.get(shown.mark, _DIM)
        is_picked = gutter.startswith(("x", "[x]"))
        segments = [Segment(gutter, _COLOURS["picked"] if is_picked else _DIM)]
        mark = (shown.mark or " ") if not inner else "↳" if shown.kind == "text" else " "
        if shown.kind == "text":
            segments.append(Segment(mark, style))
        before = sum(map(len, rows[:inner]))
        return segments + self._painted(text, before, self.spans.get(at, ()), style)

    def mark_columns(self, row: int) -> int:
        """Return up to which column a click on a line picks it."""
        at = max(0, bisect_right(self._starts, row) - 1)
        return 1 << 16 if self.lines[at].kind in ("hunk", "clash") else self._gutter_width + 2

    @property
    def _gutter_width(self) -> int:
        return 14 if self.scrollable_content_region.width >= _ROOM_FOR_NUMBERS else 2

    @property
    def _room(self) -> int:
        """How wide a line may be."""
        return max(8, self.scrollable_content_region.width - self._gutter_width - 1)

    def _gutter(self, shown: Shown) -> str:
        """Return whether a line is picked, and its numbers."""
        picks, place = self.picks, self.place
        if shown.kind == "hunk" and self.numbers.get(shown.part):
            return _MARKS[self._mark_of(shown.part)] + " "
        if shown.kind != "text":
            return ""
        is_picked = picks is not None and place is not None and picks.is_number_picked(place, shown.number)
        mark = "x" if shown.number and is_picked and self.numbers else " "
        if self._gutter_width == 2:
            return f"{mark} "
        return f"{mark} {shown.old or '':>5} {shown.new or '':>5} "

    def _mark_of(self, hunk: int) -> int:
        """Return whether a hunk is picked: not, whole, or partly."""
        if self.picks is None or self.place is None or not self.picks.state[self.place]:
            return NOT
        if self.picks.state[self.place] == WHOLE:
            return WHOLE
        picked = self.numbers[hunk] & self.picks.lines.get(self.place, set())
        return WHOLE if picked == self.numbers[hunk] else PARTLY if picked else NOT

    @staticmethod
    def _painted(text: str, before: int, spans: Sequence[Span], style: Style) -> list[Segment]:
        """Return a piece of a line, which begins so many characters behind its start, in its colours."""
        segments: list[Segment] = []
        at = 0
        for start, end, kind in spans:
            first, last = max(at, start - before), min(len(text), end - before)
            if first < last:
                segments += [Segment(text[at:first], style), Segment(text[first:last], _COLOURS[kind])]
                at = last
        return [*segments, Segment(text[at:], style)]
