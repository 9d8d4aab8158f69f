# SPDX-License-Identifier: Apache-2.0
"""`unspill review`: the screen, or where its extra is not installed, a question about each hunk in turn.

Both use the same lists and the same choice of what is picked (`unspill.tui`); only the screen needs Textual.
"""

from __future__ import annotations

import os
import sys

from unspill.changes.render import safe_text
from unspill.changes.scan import CollectorPaused
from unspill.cli.main import operation_word
from unspill.cli.output import advised, count_text, fit, operation_exit_code, print_operation, wants_colour
from unspill.errors import DeniedError, UsageError
from unspill.policy.paths import quote, wrap
from unspill.tui.model import shown_lines
from unspill.tui.source import HeldSource, PastSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.cli.main import Arguments
    from unspill.model.change import Side
    from unspill.sandbox.sandbox import Sandbox
    from unspill.tui.model import Detail, Shown

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "hunk": "\033[36m", "note": "\033[1m"}
_END = "\033[0m"
_DONE = {"apply": "Applied", "discard": "Discarded"}
_ANSWERS = {
    "y": "apply it",
    "n": "leave it held",
    "a": "apply it and the rest of the file",
    "s": "leave the rest of the file held",
    "o": "take your version",
    "t": "take the run's version",
    "b": "take both, between markers",
    "x": "discard the whole file",
    "q": "ask no more, and do what was answered so far",
}
_SIDES: dict[str, Side] = {"o": "ours", "t": "theirs", "b": "markers"}


def run_review(arguments: Arguments, sandbox: Sandbox) -> int:
    """Show what is held, or what was done, on a screen; without its extra, ask about each hunk."""
    colour = wants_colour(arguments.value("--color"))
    source = _source_of(arguments, sandbox)
    if arguments.flag("--plain"):
        return _review_plainly(source, sandbox, colour=colour)
    try:
        # Thousands of classes are made, and all of them stay
        with CollectorPaused():
            from unspill.tui.app import ReviewApp  # lazy: review
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "unspill":
            raise
        install = f"{sys.executable} -m pip install '.[tui]'"
        print("unspill: The extra `tui` is not installed: plain questions instead of the screen.", file=sys.stderr)
        print(f"  For the screen, run in a checkout of unspill: {install}", file=sys.stderr)
        return _review_plainly(source, sandbox, colour=colour)
    for name in ("COLUMNS", "LINES"):
        # A shell that exports them leaves them behind when the terminal is resized, and Textual would believe them
        os.environ.pop(name, None)
    app = ReviewApp(source, colour=colour)
    app.run()
    for operation in (*app.done, *app.undone):
        what = _DONE.get(operation.kind, "Undid")
        print(f"{what} {count_text(operation.changed, 'change')} (op {operation.number}).")
        for note in operation.notes:
            print(fit(f"  {safe_text(note)}"))
    if app.done:
        print(advised("Undo: unspill undo{at}", sandbox))
    return app.return_code or 0


def _source_of(arguments: Arguments, sandbox: Sandbox) -> HeldSource | PastSource:
    """Return what is to be looked through.

    Raises:
        UsageError: there is no such operation or session, or background runs use the sandbox.
    """
    arguments.only_one("--op", "--session")
    given = arguments.value("--op")
    if given is not None:
        operation, _steps = sandbox.find_operation(operation_word(given))
        return PastSource(sandbox, (operation,), f"Operation {operation.number}")
    if arguments.flag("--session"):
        session = sandbox.find_session(arguments.value("--session") or None)
        return PastSource(sandbox, session.operations, f"Session {quote(os.fsencode(session.name))}", session.name)
    if sandbox.has_keeper:
        raise UsageError(
            f"background runs use sandbox {sandbox.name!r}",
            remedy=f"Apply what they hold by `unspill apply`, or end them first: unspill stop {sandbox.name}",
        )
    return HeldSource(sandbox)


def _review_plainly(source: HeldSource | PastSource, sandbox: Sandbox, *, colour: bool) -> int:
    if isinstance(source, PastSource):
        return _ask_to_undo(source, sandbox, colour=colour)
    questions = _Questions(source, colour=colour)
    questions.ask_all()
    return questions.finish(sandbox)


def _ask_to_undo(source: PastSource, sandbox: Sandbox, *, colour: bool) -> int:
    for entry in source.load().entries:
        _print_lines(shown_lines(source.detail(entry)), colour=colour)
    if _answer(f"Undo {source.title[:1].lower()}{source.title[1:]}?", "yn") != "y":
        return 0
    code = 0
    for operation in source.undo():
        print_operation(
            sandbox, operation, f"Undid {count_text(operation.changed, 'change')}", nothing="Nothing undone."
        )
        code = code or operation_exit_code(operation)
    return code


class _Done(Exception):
    """The person wants to be asked no more."""


class _Questions:
    """A question about each hunk of what is held, and about each file that has none."""

    def __init__(self, source: HeldSource, *, colour: bool) -> None:
        self._source = source
        self._colour = colour
        self._picks = source.load()
        findings = source.find_out(self._picks)
        self._picks.held, self._picks.flagged = findings.held, findings.flagged
        self._shown: dict[int, Detail] = {}
        self._given_up: list[int] = []

    def ask_all(self) -> None:
        """Ask until there is nothing more, or the person has enough."""
        try:
            for at in self._picks.visible:
                self._ask(at)
        except _Done:
            return

    def finish(self, sandbox: Sandbox) -> int:
        """Apply and discard what the person said; what has changed since it was shown is left and told."""
        picks, code = self._picks, 0
        if not len(picks):
            print("Nothing is held.")
            return 0
        _fresh, same = self._source.look_again(picks, self._shown)
        for at in [at for at in picks.picked() if at not in same]:
            picks.drop(at)
            print(
                f"unspill: {quote(picks.entries[at].path)} changed since it was shown, so it stays held.",
                file=sys.stderr,
            )
        dropped = picks.only(*self._given_up).choice() if self._given_up else None
        if any(picks.counts()):
            choice = picks.choice()
            operation = sandbox.apply(choice.selection, reviewed=choice.reviewed)
            applied = f"Applied {count_text(operation.changed, 'change')}"
            print_operation(sandbox, operation, applied, nothing="Nothing was applied.")
            code = operation_exit_code(operation)
        if dropped is not None:
            operation = sandbox.discard(dropped.dropped)
            print_operation(sandbox, operation, f"Discarded {count_text(operation.changed, 'change')}", nothing="")
        elif not any(picks.counts()):
            print("Nothing was changed; it is all still held.")
        return code

    def _ask(self, at: int) -> None:
        picks = self._picks
        detail = self._shown[at] = self._source.detail(picks.entries[at])
        if at in picks.flagged:
            print(fit(f"Look first: {picks.flagged[at]}"))
        if detail.merge is not None and detail.merge.clashes:
            self._ask_about_clashes(at, detail)
        elif detail.digest and {line.hunk for line in detail.lines} and at not in picks.held:
            self._ask_about_hunks(at, detail)
        else:
            self._ask_about_all(at, detail)

    def _ask_about_all(self, at: int, detail: Detail) -> None:
        picks, name = self._picks, quote(self._picks.entries[at].path)
        _print_lines(shown_lines(detail), colour=self._colour)
        known = "tnxq" if detail.conflict else "ynxq"
        answer = self._take(at, f"{name}: apply it?", known)
        if answer == "t":
            picks.overwritten.add(at)
        if answer in ("y", "t") and (detail.consent is None or self._agrees(at, detail)):
            span = picks.span(at)
            picks.set_all(span, picked=True)

    def _agrees(self, at: int, detail: Detail) -> bool:
        """Ask as for any consent: what was typed before the question does not count."""
        assert detail.consent is not None
        text = f"{quote(detail.consent.path)} is held: {self._picks.held[at]}. Apply it as shown above?"
        try:
            self._source.sandbox.reviews.ask(detail.consent, text, is_whole=detail.is_whole)
        except DeniedError:
            return False
        self._picks.consents[at] = detail.consent
        if detail.consent.is_there:
            self._picks.overwritten.add(at)
        return True

    def _ask_about_hunks(self, at: int, detail: Detail) -> None:
        lines = shown_lines(detail)
        _print_lines([line for line in lines if line.kind == "note" and not line.part], colour=self._colour)
        hunks = sorted({line.part for line in lines if line.kind == "hunk"})
        rest = ""
        for hunk in hunks:
            if not rest:
                _print_lines([line for line in lines if line.part == hunk], colour=self._colour)
                name = quote(self._picks.entries[at].path)
                answer = self._take(at, f"{name}, hunk {hunk} of {len(hunks)}: apply it?", "ynasxq")
                rest = answer if answer in "asx" else ""
            if "a" in (rest, answer) or answer == "y":
                self._picks.toggle_lines(at, detail.numbers_of(hunk), detail)
            if rest in ("s", "x"):
                return

    def _ask_about_clashes(self, at: int, detail: Detail) -> None:
        assert detail.merge is not None
        picks, count = self._picks, len(detail.merge.clashes)
        picks.sides[at], picks.merges[at] = [None] * count, detail.merge_digest
        lines = shown_lines(detail, picks.sides[at])
        for clash in range(count):
            _print_lines([one for one in lines if one.part == clash + 1 and one.kind != "text"], colour=self._colour)
            name = quote(picks.entries[at].path)
            answer = self._take(at, f"{name}, conflict {clash + 1} of {count}: whose lines?", "otbnxq")
            if answer not in _SIDES:
                return
            picks.resolve(at, _SIDES[answer], clash)
        picks.set_all(picks.span(at), picked=True)

    def _take(self, at: int, question: str, known: str) -> str:
        answer = _answer(question, known)
        if answer == "x":
            self._given_up.append(at)
        if answer == "q":
            raise _Done
        return answer


def _answer(question: str, known: str) -> str:
    """Return the letter that somebody answers with; who says nothing more has had enough."""
    while True:
        try:
            given = input(f"{question} [{','.join(known)},?] ").strip().lower()
        except EOFError:
            print()
            return known[-1]
        if given[:1] and given[:1] in known:
            return given[:1]
        for letter in known:
            print(f"  {letter}  {_ANSWERS[letter]}")


def _print_lines(lines: Sequence[Shown], *, colour: bool) -> None:
    columns = os.get_terminal_size(1).columns
    for line in lines:
        text = wrap(line.mark + line.text if line.kind == "text" else line.text, columns)
        paint = _COLOURS.get(line.mark if line.kind == "text" else line.kind) if colour else None
        print(f"{paint}{text}{_END}" if paint else text)
