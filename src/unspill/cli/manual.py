# SPDX-License-Identifier: Apache-2.0
"""The manual pages: unspill(1) and one for each verb, made from the tables that the parser reads.

A build of the wheel writes them below share/man/man1. Nothing at run time loads this.
"""

from __future__ import annotations

from textwrap import wrap

from unspill import __version__
from unspill.cli.main import EVERYWHERE, VERBS, find_verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.main import Option, Verb

# What can change without an option
_VARIABLES = {
    "NO_COLOR": "If set, output has no colours.",
    "FORCE_COLOR": "If set to anything but 0, output has colours even if it is not on a terminal.",
    "UNSPILL_PAGER": "The pager of diff, log and show. Without it, git's own for diffs, PAGER, and less.",
    "UNSPILL_STATE_DIR": "Where unspill keeps runs, held changes and backups; an absolute path.",
    "ROOTFS_DIR": "Where root file systems for the view rootfs are kept; an absolute path.",
}
_FILES = {
    "~/.config/unspill/config.toml": "Your own configuration.",
    ".unspill.toml": "The configuration of a project, in its top directory. It can only tighten yours.",
    "~/.local/state/unspill": "What unspill keeps. Only you can read it.",
}
_ABOUT = (
    "unspill runs a shell command, yours or an AI agent's, sealed by bubblewrap. Your project lies under a"
    " copy-on-write layer, your home directory is hidden, and the network is off. When the command ends, unspill shows"
    " what it changed, applies that to your project as one step, and can undo that step."
)
_STATUS = (
    "With run, shell and agent it is the command's own; 125 means that unspill itself failed. With all others 0 means"
    " that all was done, 2 that unspill does not understand the command line, 6 that something was skipped."
)
# mandoc wants lines of at most 80 characters
_LINE = 66


def pages(date: str) -> dict[str, str]:
    """Return every page by the name of its file."""
    found = {"unspill.1": [*_head("unspill", "run anything, spill nothing", date), *_overview()]}
    for name, (_module, summary) in VERBS.items():
        found[f"unspill-{name}.1"] = [*_head(f"unspill-{name}", summary, date), *_page(find_verb(name))]
    return {name: "".join(f"{line}\n" for line in lines) for name, lines in found.items()}


def _overview() -> Iterator[str]:
    yield from (".SH SYNOPSIS", r".B unspill", r".I COMMAND", r"[\fIoptions\fR]", ".br", r".B unspill \-\-version")
    yield from (".SH DESCRIPTION", *_lines(_ABOUT), ".SH COMMANDS")
    for name, (_module, summary) in VERBS.items():
        yield from (".TP", rf".BR unspill\-{_text(name)} (1)", *_sentence(summary))
    yield from (".SH OPTIONS", "Every command has these:")
    yield from _options(EVERYWHERE)
    for heading, entries in (("ENVIRONMENT", _VARIABLES), ("FILES", _FILES)):
        yield f".SH {heading}"
        for name, text in entries.items():
            yield from (".TP", rf"\fI{_text(name)}\fR", *_lines(text))
    yield from (".SH EXIT STATUS", *_lines(_STATUS), ".SH SEE ALSO", ".BR bwrap (1)")


def _page(verb: Verb) -> Iterator[str]:
    yield from (".SH SYNOPSIS", rf".B unspill {_text(verb.name)}", r"[\fIoptions\fR]", *_lines(verb.positional))
    yield from (".SH DESCRIPTION", *_lines(verb.summary), ".SH OPTIONS")
    yield from _options(verb.options)
    yield from (".SH EXAMPLES", ".nf", *map(_text, verb.examples), ".fi") if verb.examples else ()
    yield from (".SH SEE ALSO", ".BR unspill (1)")


def _head(name: str, summary: str, date: str) -> Iterator[str]:
    yield r".\" Made from the tables of the command line"
    yield f'.TH {_text(name.upper())} 1 "{date}" "unspill {_text(__version__)}" "User Commands"'
    yield from (".SH NAME", *_lines(summary, begin=rf"{_text(name)} \- "))


def _options(options: tuple[Option, ...]) -> Iterator[str]:
    for option in options:
        names = ", ".join(rf"\fB{_text(name)}\fR" for name in (option.short, option.name) if name)
        value = rf" \fI{_text(option.metavar)}\fR" if option.metavar else ""
        yield from (".TP", names + value, *_sentence(option.help))


def _sentence(text: str) -> list[str]:
    return _lines(f"{text[:1].upper()}{text[1:]}.")


def _lines(text: str, begin: str = "") -> list[str]:
    """Return words as short lines of roff."""
    # Escapes make a line longer: room is left for some
    first, *rest = wrap(f"{begin}{text}", _LINE, break_on_hyphens=False) or [""]
    lines = [begin + _text(first.removeprefix(begin)), *map(_text, rest)]
    return [line for line in lines if line]


def _text(text: str) -> str:
    """Return words as roff shows them: nothing in them is a request, an escape or a dash to be broken."""
    safe = text.replace("`", "").replace("\\", r"\(rs").replace("-", r"\-").replace("~", r"\(ti").replace("^", r"\(ha")
    safe = safe.replace('"', r"\(dq").replace("'", r"\(aq")
    return rf"\&{safe}" if safe.startswith((".", r"\(aq")) else safe
