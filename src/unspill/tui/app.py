# SPDX-License-Identifier: Apache-2.0
"""The review screen: a list, what there is to see of its entries, and what is done with those that are picked.

Lists, texts and operations are read and done in a thread, so the screen never waits. What was shown is what is applied:
before that everything is looked at again, and what has changed meanwhile is shown instead.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from functools import partial
from types import MappingProxyType
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.filter import NoColor
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from unspill.changes.render import safe_text, skipped_reason
from unspill.changes.scan import CollectorPaused
from unspill.errors import UnspillError
from unspill.policy.paths import quote, show_line
from unspill.record import Record
from unspill.tui.colours import Painter
from unspill.tui.model import Detail, PickedChanges, Picks, Shown, carry, shown_lines
from unspill.tui.source import Findings, HeldSource, PastSource
from unspill.tui.widgets import DiffView, FileList, Pane, WordLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual import events
    from textual.timer import Timer

    from unspill.model.change import Side
    from unspill.model.operation import Operation

# Below so many columns there is room for one pane
NARROW = 70
# So many entries are kept as they were shown
_MOST_DETAILS = 200
_CHUNK = 200
_SWITCH_S = 0.0005
_REST_S = 0.05
_BOLD, _PLAIN, _REVERSE = Style(bold=True), Style(), Style(reverse=True)
_KEYS = {
    "space": "pick",
    "a": "apply",
    "d": "discard",
    "?": "help",
    "q": "quit",
    "h": "hold",
    "u": "undo",
    "/": "search",
    "tab": "other pane",
}
_KEYS_OF_PAST = ("u", "?", "q", "/", "tab")
HELP = """\
Move        arrows or j k, PgUp PgDn, g G (first, last)
Panes       Tab; Enter opens a file, Esc goes back
Hunks       ] and [ go to the next and the last hunk
Search      / then a word, n and N for the next and last

Pick        Space: a file, a directory with all in it;
            in the diff a line, or on @@ the hunk
            x picks the hunk around the cursor
            A picks all but what needs a look, or none
            [x] picked   [~] in part   [-] stays held
Fold        - and + hide and show what is in a directory

Apply       a: what is picked goes into your project
Discard     d: what is picked is dropped
Hold        h: leave it held, go on to the next
Undo        u: take the last of these back

Conflicts   o yours, t the run's, b both with markers:
            the one at the cursor, in the list all of a file

Letters     A added  M modified  D deleted
            T another kind of file  m other bits
held        needs your consent: read it to its end, then
            pick it       flagged  look at it first
edited      you changed it too: it is merged
changed     it is not what you looked at: look again

Mouse       click a line, click its [ ], use the wheel
Quit        q: what you did not apply stays held
"""


class TextPage(ModalScreen[None]):
    """A text over the screen, until a key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter,space", "dismiss", show=False)]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Make it."""
        with VerticalScroll(id="page"):
            yield Static(self._text, markup=False)


class YesNoPage(ModalScreen[bool]):
    """A question that only `y` answers with yes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Make it."""
        with VerticalScroll(id="page"):
            yield Static(f"{self._text}\n\ny = yes, any other key = no", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Take the answer."""
        event.stop()
        self.dismiss(event.key == "y")


class ReviewApp(App[None]):
    """The screen of one list. `done` are the operations that were done here, for whoever started it."""

    CSS = """
    Screen { layout: vertical; }
    WordLine { height: 1; }
    #panes { height: 1fr; }
    #files { width: 42%; max-width: 70; scrollbar-size-vertical: 1; overflow-x: hidden; }
    #diff { width: 1fr; border-left: solid ansi_bright_black; scrollbar-size-vertical: 1; overflow-x: hidden; }
    FileList, DiffView {
        scrollbar-color: ansi_bright_black; scrollbar-color-hover: ansi_white; scrollbar-color-active: ansi_white;
        scrollbar-background: ansi_default; scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default;
    }
    .narrow #message { height: 2; }
    #search { height: 1; border: none; padding: 0; display: none; }
    .narrow #files { width: 1fr; }
    .narrow #diff { border: none; }
    TextPage, YesNoPage { align: center middle; }
    #page { width: auto; max-width: 100%; height: auto; max-height: 100%; border: solid ansi_default; padding: 0 1; }
    #page Static { width: auto; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # All but these are done where keys arrive, so that none that is typed fast overtakes another
        Binding("q,ctrl+c", "quit", show=False, priority=False),
        Binding("question_mark", "help", show=False, priority=True),
        Binding("tab,shift+tab", "switch", show=False, priority=True),
        Binding("enter,right,l", "read", show=False, priority=True),
        Binding("left", "go_back", show=False, priority=True),
        Binding("escape", "leave", show=False, priority=True),
        Binding("slash", "search", show=False, priority=True),
        Binding("space", "pick", show=False, priority=True),
        Binding("x", "pick_hunk", show=False, priority=True),
        Binding("A", "pick_all", show=False, priority=True),
        Binding("a", "apply", show=False, priority=True),
        Binding("d", "discard", show=False, priority=True),
        Binding("h", "hold", show=False, priority=True),
        Binding("u", "undo", show=False, priority=True),
        Binding("o", "resolve('ours')", show=False, priority=True),
        Binding("t", "resolve('theirs')", show=False, priority=True),
        Binding("b", "resolve('markers')", show=False, priority=True),
        Binding("right_square_bracket", "part(1)", show=False, priority=True),
        Binding("left_square_bracket", "part(-1)", show=False, priority=True),
        Binding("minus", "fold(True)", show=False, priority=True),
        Binding("plus", "fold(False)", show=False, priority=True),
        Binding("n", "next_match(1)", show=False, priority=True),
        Binding("N", "next_match(-1)", show=False, priority=True),
    ]

    def __init__(self, source: HeldSource | PastSource, *, colour: bool) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        if not colour:
            self._filters.append(NoColor())
        self.colour = colour
        self.source = source
        self.done: list[Operation] = []
        self.undone: list[Operation] = []
        self.picks = Picks.empty()
        self.details: dict[int, Detail] = {}
        self.seen: set[tuple[bytes, bytes]] = set()
        self._painter = Painter()
        self._switch_s = sys.getswitchinterval()
        self._wanted = ""
        self.message = "Reading changes ..."
        self._is_busy = True
        self._is_found_out = False
        self._rest: Timer | None = None
        self.is_reading = False
        self.is_narrow = False
        self.columns = 80

    def compose(self) -> ComposeResult:
        """Make the panes."""
        yield WordLine("title")
        with Horizontal(id="panes"):
            yield FileList(self.source.sandbox.project, can_pick=self.source.can_pick)
            yield DiffView()
        yield Input(id="search", placeholder="search", compact=True)
        yield WordLine("message")
        yield WordLine("keys")

    @property
    def files(self) -> FileList:
        """The list."""
        return self.query_one(FileList)

    @property
    def diff(self) -> DiffView:
        """What there is to see of an entry."""
        return self.query_one(DiffView)

    def on_mount(self) -> None:
        """Begin to read."""
        # A key passes through several threads, and each would wait so long for the one that reads
        sys.setswitchinterval(_SWITCH_S)
        self.files.focus()
        self._draw_bars()
        self._work(self._load, self._show_list)

    async def on_unmount(self) -> None:
        """End what was started."""
        sys.setswitchinterval(self._switch_s)
        await self._painter.close()

    def on_resize(self, event: events.Resize) -> None:
        """Give the panes what room there is."""
        self.columns = event.size.width
        self.is_narrow = self.columns < NARROW
        self.screen_stack[0].set_class(self.is_narrow, "narrow")
        self._arrange()
        self._draw_bars()

    def _arrange(self) -> None:
        """Show both panes, or the one that somebody looks at, and give it the keys."""
        # At once, not by a style: the next key may have been pressed already
        self.files.display = not (self.is_narrow and self.is_reading)
        self.diff.display = not self.is_narrow or self.is_reading
        self.screen_stack[0].set_focus(self.diff if self.is_reading else self.files)

    @property
    def is_ready(self) -> bool:
        """Whether all is known about the list, and nothing is being done."""
        return self._is_found_out and not self._is_busy

    # Reading

    def _work(self, job: Callable[[], object], then: Callable[..., None]) -> None:
        """Do something in a thread, and then something on the screen with what came of it."""

        async def run() -> None:
            try:
                found = await asyncio.to_thread(job)
            except (UnspillError, OSError) as error:
                if self._is_open:
                    self._fail(error)
                return
            if self._is_open:
                then(found)

        self.run_worker(run(), exit_on_error=True)

    @property
    def _is_open(self) -> bool:
        """Whether there still are panes: somebody may have quit while something was read."""
        return self.is_running and bool(self.screen_stack) and bool(self.screen_stack[0].query(FileList))

    def _fail(self, error: UnspillError | OSError) -> None:
        self._is_busy = False
        text = error.message if isinstance(error, UnspillError) else str(error)
        remedy = error.remedy if isinstance(error, UnspillError) else ""
        self.say(" ".join(filter(None, (f"Not done: {text}.", remedy))))

    def _load(self) -> Picks:
        with CollectorPaused():
            return self.source.load()

    def _show_list(self, picks: Picks) -> None:
        """Show another list; what is only read now is not looked through for garbage any more."""
        gc.freeze()
        self.picks = picks
        self.details = {}
        self._is_busy = False
        self._is_found_out = False
        if self.message == "Reading changes ...":
            self.message = ""
        self.files.show(picks)
        if not len(picks):
            self.say("Nothing is held." if self.source.can_pick else "Nothing was changed.")
            self.diff.show(0, [], picks, can_pick=False)
        self._draw_bars()
        self._show_entry()
        self._work(partial(self._find_out, picks), partial(self._show_findings, picks))

    def _find_out(self, picks: Picks) -> Findings:
        with CollectorPaused():
            return self.source.find_out(picks)

    def _show_findings(self, picks: Picks, findings: Findings) -> None:
        if picks is not self.picks:
            return
        self._is_found_out = True
        picks.held, picks.flagged, picks.edited = findings.held, findings.flagged, set(findings.edited)
        for at in picks.held:
            if picks.why_not(at):
                picks.drop(at)
        self.details = {at: one for at, one in self.details.items() if at not in picks.held}
        self.files.refresh()
        self._draw_bars()
        self._show_entry()

    def on_pane_moved(self, event: Pane.Moved) -> None:
        """Show what the cursor is on."""
        if event.by_person:
            self.message = ""
        if event.pane is self.files:
            self._show_entry(rests=False)
        else:
            self._paint()
        self._draw_bars()

    def _show_entry(self, *, rests: bool = True) -> None:
        """Show what there is to see of the entry that the cursor is on, when the cursor rests there."""
        at = self.files.place
        if self._rest is not None:
            self._rest.stop()
            self._rest = None
        if at is None:
            return
        known = self.details.get(at)
        if known is not None:
            self._show_detail(self.picks, at, known)
            return
        if self.diff.lines:
            self.diff.show(at, [], self.picks, can_pick=False)
        if rests:
            self._read_entry()
        else:
            # Who scrolls by does not want to know
            self._rest = self.set_timer(_REST_S, self._read_entry)

    def _read_entry(self) -> None:
        if not self._is_open:
            return
        at, picks = self.files.place, self.picks
        if at is not None:
            self._work(lambda: self.source.detail(picks.entries[at]), partial(self._keep_detail, picks, at))

    def _keep_detail(self, picks: Picks, at: int, detail: Detail) -> None:
        if picks is not self.picks:
            return
        while len(self.details) >= _MOST_DETAILS:
            del self.details[next(iter(self.details))]
        self.details[at] = detail
        if detail.merge is not None and at not in picks.sides:
            picks.merges[at] = detail.merge_digest
            if detail.merge.clashes:
                picks.sides[at] = [None] * len(detail.merge.clashes)
        elif detail.conflict and at not in picks.sides:
            picks.sides[at] = [None]
        if picks.state[at] and picks.why_not(at):
            picks.drop(at)
        self.files.refresh()
        self._show_detail(picks, at, detail)

    def _show_detail(self, picks: Picks, at: int, detail: Detail) -> None:
        """Make the lines of an entry in a thread: there may be many."""
        sides = tuple(picks.sides.get(at, ())) if detail.merge is not None else ()

        def show(lines: list[Shown]) -> None:
            if picks is self.picks and self.files.place == at:
                self.diff.show(at, lines, picks, can_pick=bool(detail.digest))
                self._draw_bars()
                self.call_after_refresh(self._paint)

        self._work(lambda: shown_lines(detail, sides), show)

    def _paint(self) -> None:
        """Have the lines on the screen coloured by what they say."""
        diff, at = self.diff, self.diff.place
        if not self.colour or at is None or not diff.lines or at >= len(self.picks):
            return
        name = show_line(self.picks.entries[at].path.rpartition(b"/")[2])
        for chunk in {line // _CHUNK for line in diff.seen_lines}:
            lines = [
                (number, diff.lines[number])
                for number in range(chunk * _CHUNK, min(len(diff.lines), (chunk + 1) * _CHUNK))
                if diff.lines[number].kind == "text"
            ]
            if lines and lines[0][0] not in diff.spans:
                diff.spans.update({number: [] for number, _line in lines})
                self.run_worker(self._paint_chunk(diff.lines, name, lines))

    async def _paint_chunk(self, shown: Sequence[Shown], name: str, lines: list[tuple[int, Shown]]) -> None:
        spans = await self._painter.spans(name, [(line.mark, line.text) for _number, line in lines])
        if self._is_open and shown is self.diff.lines:
            self.diff.spans.update({number: found for (number, _line), found in zip(lines, spans, strict=True)})
            self.diff.refresh()

    # Bars

    def say(self, text: str) -> None:
        """Tell the person something."""
        self.message = text
        self._draw_bars()

    def _draw_bars(self) -> None:
        self.query_one("#title", WordLine).say(self._title(), _REVERSE)
        self.query_one("#message", WordLine).say(self.message or self._remark(), _BOLD)
        keys = _KEYS if self.source.can_pick else {key: _KEYS[key] for key in _KEYS_OF_PAST}
        segments: list[Segment] = []
        room = self.columns
        for key, what in keys.items():
            room -= len(key) + len(what) + 3
            if room >= 0:
                segments += [Segment(f" {key}", _BOLD), Segment(f" {what} ")]
        self.query_one("#keys", WordLine).show(*segments)

    def _title(self) -> str:
        """Say what the list is of, and how much of it is picked."""
        picks, count = self.picks, len(self.picks)
        if not self.source.can_pick:
            return f"{self.source.title}: {count} {'change' if count == 1 else 'changes'}"
        whole, partly = picks.counts()
        waiting = sum(1 for at in picks.held if at not in picks.consents)
        text = f"{count} {self.source.title}, {whole + partly} picked"
        text += f" ({partly} in part)" if partly else ""
        return text + (f", {waiting} need{'s' * (waiting == 1)} consent" if waiting else "")

    def _remark(self) -> str:
        """Say what is remarkable about the entry that the cursor is on."""
        at = self.files.place
        if at is None:
            return ""
        picks = self.picks
        if at in picks.changed:
            return "It changed since you looked at it. Look again."
        if at in picks.sides and None in picks.sides[at]:
            return "Conflict: o takes yours, t the run's" + (", b both with markers." if at in picks.merges else ".")
        if at in picks.edited and at in picks.merges:
            return "You changed it too: your changes and the run's are merged."
        if at in picks.held:
            return f"Held: {picks.held[at]}."
        if at in picks.flagged:
            return f"Look first: {picks.flagged[at]}."
        return ""

    # Moving

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys to a page that lies over the screen, and to what is searched for."""
        if len(self.screen_stack) > 1:
            return action == "quit"
        return action == "leave" or not isinstance(self.focused, Input)

    def action_go_back(self) -> None:
        """Go to the list."""
        self.action_leave()

    def action_switch(self) -> None:
        """Go to the other pane."""
        self.is_reading = not self.is_reading
        self._arrange()

    def action_read(self) -> None:
        """Go to what there is to see of an entry."""
        self.is_reading = True
        self._arrange()
        self.call_after_refresh(self._paint)

    def action_leave(self) -> None:
        """Go to the list, or end a search."""
        entered = self.query_one("#search", Input)
        self.is_reading = self.is_reading and entered.display
        entered.display = False
        self._arrange()

    def action_part(self, step: int) -> None:
        """Go to the next hunk or conflict."""
        self.diff.next_part(step)

    def action_fold(self, folded: bool) -> None:
        """Hide what is in a directory, or show it."""
        at = self.files.place
        if at is not None:
            self.picks.fold(at, folded=folded)
            self.files.resize_lines()

    def action_help(self) -> None:
        """Explain the keys."""
        self.push_screen(TextPage(HELP))

    def action_search(self) -> None:
        """Ask for what to look for."""
        entered = self.query_one("#search", Input)
        entered.value = ""
        entered.display = True
        # Before the next key, which would do something else
        self.screen.set_focus(entered)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look for it."""
        self._wanted = event.value
        event.input.display = False
        self._arrange()
        self.action_next_match(1)

    def action_next_match(self, step: int) -> None:
        """Go to the next place that has what is looked for: in the list a name, in the other pane a line."""
        if not self._wanted:
            return
        found = self._next_line(step) if self.is_reading else self._next_entry(step)
        if not found:
            self.say(f"Not found: {show_line(self._wanted.encode('utf-8', 'surrogateescape'))}")

    def _next_entry(self, step: int) -> bool:
        at = self.files.place
        found = None if at is None else self.picks.find(self._wanted, at, step)
        if found is not None:
            row = self.picks.reveal(found)
            self.files.resize_lines()
            self.files.go(row)
        return found is not None

    def _next_line(self, step: int) -> bool:
        lines, wanted = self.diff.lines, self._wanted.lower()
        for number in range(1, len(lines) + 1):
            at = (self.diff.line + step * number) % len(lines)
            if wanted in lines[at].text.lower():
                self.diff.go_line(at)
                return True
        return False

    # Picking

    def on_pane_pressed(self, event: Pane.Pressed) -> None:
        """Do what a click is for."""
        self.is_reading = event.pane is self.diff
        if event.on_mark:
            self.action_pick()
        elif event.pane is self.files and self.is_narrow:
            self.action_read()

    def action_pick(self) -> None:
        """Pick what the cursor is on, or drop it."""
        at = self.files.place
        if at is None or not self.source.can_pick:
            return
        if self.is_reading:
            self._pick_line(at)
        elif self._pick_entry(at):
            self.files.go(self.files.cursor + 1)

    def _pick_entry(self, at: int) -> bool:
        """Pick an entry or drop it; tell whether that could be done at once."""
        self._note_seen()
        picks = self.picks
        before = picks.state[at]
        if picks.state[at] != 1 and at in picks.held and at not in picks.consents:
            self._consent(at)
        elif picks.why_not(at) == "conflict" and not picks.entries[at].below:
            self.say(self._remark())
        else:
            picks.toggle(at)
            picks.changed.discard(at)
        self._redraw()
        return picks.state[at] != before or bool(picks.entries[at].below)

    def _pick_line(self, at: int) -> None:
        if self.diff.place != at or not self.diff.lines:
            return
        line = self.diff.lines[self.diff.line]
        if line.kind == "text" and line.number and self.diff.numbers:
            self._pick_numbers(at, {line.number})
            self.diff.go(self.diff.cursor + 1)
        elif line.kind == "hunk" and self.diff.numbers:
            self._pick_numbers(at, self.diff.numbers[line.part])
        elif not self.diff.numbers:
            self._pick_entry(at)

    def action_pick_hunk(self) -> None:
        """Pick the hunk around the cursor, or drop it."""
        at, diff = self.files.place, self.diff
        part = diff.lines[diff.line].part if diff.lines else 0
        if at is not None and self.source.can_pick and part in diff.numbers:
            self._pick_numbers(at, diff.numbers[part])

    def _pick_numbers(self, at: int, numbers: set[int] | frozenset[int]) -> None:
        self._note_seen()
        if at in self.picks.held and at not in self.picks.consents:
            self._consent(at)
        if not self.picks.why_not(at):
            self.picks.toggle_lines(at, numbers, self.details[at])
        self._redraw()

    def action_pick_all(self) -> None:
        """Pick everything that needs no closer look, or nothing."""
        if self.source.can_pick and len(self.picks):
            self.picks.toggle_all()
            left = sum(1 for at in (*self.picks.held, *self.picks.sides) if self.picks.why_not(at))
            if left:
                self.say(f"Not picked: {left} that you have to look at first.")
            self._redraw()

    def _note_seen(self) -> None:
        at = self.diff.place
        if at is not None and self.diff.is_seen and at < len(self.picks) and at in self.details:
            entry = self.picks.entries[at]
            self.seen.add((entry.root, entry.path))

    def _consent(self, at: int) -> None:
        """Let the person consent to something held by picking it, once they have seen all that they consent to."""
        detail, entry = self.details.get(at), self.picks.entries[at]
        if detail is None or detail.consent is None:
            self.say("It is still being read.")
            return
        missing = [path for path in sorted(detail.covers) if (entry.root, path) not in self.seen]
        if missing:
            what = "it" if missing == [entry.path] else quote(missing[0])
            self.say(f"Held: {self.picks.held[at]}. Read {what} to the end first, then pick it.")
        elif detail.is_whole:
            self._agree(at, detail)
        else:
            text = f"{quote(entry.path)} is held: {self.picks.held[at]}.\n\nNot all of it could be shown. Pick it?"
            self.push_screen(YesNoPage(text), lambda yes: self._agree(at, detail) if yes else None)

    def _agree(self, at: int, detail: Detail) -> None:
        assert detail.consent is not None
        self.picks.consents[at] = detail.consent
        if detail.consent.is_there:
            self.picks.overwritten.add(at)
        if not self.picks.why_not(at):
            self.picks.state[at] = 1
        self._redraw()

    def action_hold(self) -> None:
        """Leave an entry held, and go on."""
        at = self.files.place
        if at is not None and self.source.can_pick:
            self.picks.keep(at)
            self.files.go(self.files.cursor + 1)
            self._redraw()

    def action_resolve(self, side: Side) -> None:
        """Choose a side: of the conflict that the cursor is on, or of all that an entry has."""
        at = self.files.place
        detail = None if at is None else self.details.get(at)
        if at is None or detail is None or at not in self.picks.sides:
            self.say("There is no conflict here.")
            return
        if detail.merge is None:
            self._choose_whole(at, side)
        else:
            line = self.diff.lines[self.diff.line] if self.is_reading and self.diff.lines else None
            clash = line.part - 1 if line is not None and line.kind in ("clash", "side") else None
            self.picks.resolve(at, side, clash)
            self._show_detail(self.picks, at, detail)
        if not self.picks.why_not(at):
            self.picks.state[at] = 1
        self._redraw()

    def _choose_whole(self, at: int, side: Side) -> None:
        """Take the run's version of what can't be merged, or leave it."""
        if side == "theirs":
            self.picks.resolve(at, side)
            self.picks.overwritten.add(at)
            self.say("The run's version will replace yours; undo brings yours back.")
        elif side == "ours":
            self.picks.overwritten.discard(at)
            self.picks.sides[at] = [None]
            self.picks.keep(at)
            self.say("Yours stays. Pick it and press d to discard the run's.")
        else:
            self.say("It is no text that can have both versions.")

    def _redraw(self) -> None:
        self.files.refresh()
        self.diff.refresh()
        self._draw_bars()

    # Doing

    def action_apply(self) -> None:
        """Apply what is picked, or what the cursor is on."""
        at = self.files.place
        if at is not None and not any(self.picks.counts()) and self.source.can_pick:
            # What is held has to be picked first, on purpose
            self.say(self._remark()) if self.picks.why_not(at) else self._pick_entry(at)
        if any(self.picks.counts()):
            self._operate("Applied", self.picks, self._apply)

    def action_discard(self) -> None:
        """Discard what is picked, or what the cursor is on."""
        at, picks = self.files.place, self.picks
        if at is not None and not any(picks.counts()):
            # Nobody has to read what goes away
            picks = picks.only(at)
        if at is not None:
            self._operate("Discarded", picks, self._discard)

    def _apply(self, choice: PickedChanges) -> Operation:
        return self.source.sandbox.apply(choice.selection, reviewed=choice.reviewed)

    def _discard(self, choice: PickedChanges) -> Operation:
        return self.source.sandbox.discard(choice.dropped)

    def _operate(self, done: str, picks: Picks, do: Callable[[PickedChanges], Operation]) -> None:
        source = self.source
        if self._is_busy or isinstance(source, PastSource):
            return
        shown = dict(self.details)
        self._is_busy = True
        self.say("Looking again, then it is done ...")

        def work() -> Outcome:
            with CollectorPaused():
                fresh, same = source.look_again(picks, shown)
                changed = frozenset(at for at in picks.picked() if at not in same)
                if changed:
                    return Outcome(picks=fresh, same=same, changed=changed)
                operation = do(picks.choice())
                return Outcome(picks=source.load(), operation=operation)

        self._work(work, partial(self._show_outcome, done, picks))

    def _show_outcome(self, done: str, before: Picks, outcome: Outcome) -> None:
        """Show what was done and the list that is left, or what has changed and was not done therefore."""
        fresh = outcome.picks
        places = fresh.place_of()
        if outcome.operation is None:
            carry(before, fresh, outcome.same.items())
            keys = [(before.entries[at].root, before.entries[at].path) for at in sorted(outcome.changed)]
            fresh.changed = {places[key] for key in keys if key in places}
            self._show_list(fresh)
            self._go_to([places[key] for key in keys if key in places])
            self.say(f"Nothing was done: {_named(keys)} changed since you looked. Look again.")
            return
        operation = outcome.operation
        self.done += [operation] if operation.number else []
        text = "Nothing was done."
        if operation.number:
            what = "change" if operation.changed == 1 else "changes"
            text = f"{done} {operation.changed} {what} (op {operation.number}). u undoes it."
        left = [(operation.roots[one.root], one.path) for one in operation.left]
        if left:
            text += f" Left: {_named(left)}: {skipped_reason(operation.left[0])}"
        text += "".join(f" {safe_text(note)}." for note in operation.notes[:1])
        at = self.files.cursor
        self._show_list(fresh)
        self.files.go(at)
        self._go_to([places[key] for key in left if key in places])
        self.say(text)

    def _go_to(self, places: Sequence[int]) -> None:
        if places:
            row = self.picks.reveal(places[0])
            self.files.resize_lines()
            self.files.go(row)

    def action_undo(self) -> None:
        """Undo the last operation that was done here, or those that the list is of."""
        source = self.source
        if self._is_busy:
            return
        if isinstance(source, PastSource):
            self._is_busy = True
            self.say("Undoing ...")
            self._work(source.undo, self._show_undone)
        elif not self.done:
            self.say("Nothing was done here yet. To undo what was done before: unspill undo")
        else:
            self._is_busy = True
            last = self.done.pop()
            self._work(lambda: self._undo_one(last), self._show_undone)

    def _undo_one(self, last: Operation) -> tuple[Operation, ...]:
        return (self.source.sandbox.undo(last.number),)

    def _show_undone(self, undone: Sequence[Operation]) -> None:
        done = [one for one in undone if one.number]
        known = {one.id: one.number for one in self.source.sandbox.operations(limit=200)}
        numbers = [known.get(one.of, one.number) if one.of else one.number for one in done]
        left = sum(len(one.left) for one in undone)
        text = f"Undid {', '.join(f'op {number}' for number in numbers)}." if done else "Nothing was undone."
        self.message = text + (f" {left} left as they are, because they changed since." if left else "")
        self.undone += done
        if isinstance(self.source, PastSource):
            self._is_busy = False
            self._draw_bars()
        else:
            self._work(self._load, self._show_list)


class Outcome(Record):
    """What came of an operation, with the list afterwards; without one, what was `changed` and what is the `same`."""

    picks: Picks
    operation: Operation | None = None
    same: Mapping[int, int] = MappingProxyType({})
    changed: frozenset[int] = frozenset()


def _named(keys: Sequence[tuple[bytes, bytes]]) -> str:
    first = quote(keys[0][1])
    return first if len(keys) == 1 else f"{first} and {len(keys) - 1} more"
