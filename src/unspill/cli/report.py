# SPDX-License-Identifier: Apache-2.0
"""`unspill report`: what happened in a project or in an agent's session, in a few lines or as one page of HTML."""

from __future__ import annotations

import os
import sys
import time

from unspill.changes.render import safe_text
from unspill.cli.log import fates_of, is_bad_ending, moment_text, run_line
from unspill.cli.main import SESSION, Option, open_sandbox, verb
from unspill.cli.output import count_text, decoded, fit, print_json, size_text, when_text
from unspill.errors import UsageError
from unspill.host.dirfd import write_whole
from unspill.policy.paths import quote
from unspill.report.facts import count_endings, gather
from unspill.report.page import Bar, Page, PageRow, PageTable, Tile, render
from unspill.sandbox.project import find_own_locations
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.report.facts import AskedQuestion, ChangedFile, HostReached, ReportFacts
    from unspill.report.page import Tone
    from unspill.store.runs import RunMoment

_FEW = 5
_MOST_FILES = 60
_MOST_PROMPTS = 100
_BARS = 72
_TONES: dict[str, Tone] = {"added": "new", "modified": "change", "deleted": "gone"}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_BAR_TONES: tuple[tuple[Tone, str], ...] = (
    ("change", "changed something"),
    ("plain", "no change"),
    ("bad", "failed or stopped"),
    ("now", "still running"),
)
_FILE_TONES: tuple[tuple[Tone, str], ...] = (
    ("new", "added"),
    ("change", "modified"),
    ("gone", "deleted"),
    ("plain", "several of these"),
)


@verb(
    "Report what happened in this project: runs, changed files, hosts, questions. --html makes a page of it.",
    SESSION.replace(help="only what an agent did in its session (default: the last one)"),
    Option(name="--html", metavar="FILE", help="write one self-contained page to FILE; - is standard output"),
    examples=(
        "unspill report",
        "unspill report --html report.html",
    ),
)
def report(arguments: Arguments) -> int:
    """Say what happened, in lines or as a page."""
    arguments.only_one("--html", "--json")
    sandbox = open_sandbox(arguments)
    session = sandbox.find_session(arguments.value("--session") or None) if arguments.flag("--session") else None
    with Store.open(find_own_locations().state) as store:
        facts = gather(store, sandbox.project, sandbox=arguments.value("--sandbox"), session=session)
    where = arguments.value("--html")
    if arguments.flag("--json"):
        print_json(_form(facts))
    elif where == "-":
        sys.stdout.write(render(make_page(facts)))
    elif where is not None:
        size = _write(where, render(make_page(facts)))
        print(f"Wrote {quote(os.fsencode(where))} ({size_text(size)}).")
    else:
        print("\n".join(map(fit, _lines(facts))))
    return 0


def _write(where: str, text: str) -> int:
    """Put the page at a path, whole or not at all; a link there is replaced and never followed.

    Raises:
        UsageError: it can't be written there.
    """
    content, path = text.encode("utf-8"), os.fsencode(where)
    made = path + b".new-%d" % os.getpid()
    try:
        # It names commands and files: for its owner alone
        fd = os.open(made, _NEW, 0o600)
        try:
            try:
                write_whole(fd, content)
            finally:
                os.close(fd)
            os.rename(made, path)
        except OSError:
            os.unlink(made)
            raise
    except OSError as error:
        raise UsageError(
            f"{where} can't be written: {error.strerror}", remedy="Name a file in a directory that you can write."
        ) from error
    return len(content)


def make_page(facts: ReportFacts) -> Page:
    """Return the page of some facts, in words."""
    well, other, going = count_endings(facts.moments)
    changed = sum(file.size for file in facts.files if file.kind != "deleted")
    denied = sum(one.answer == "denied" for one in facts.questions)
    session = (f"Session {safe_text(facts.session)}",) if facts.session else ()
    return Page(
        title=f"unspill: {quote(os.path.basename(facts.project))}",
        about=(quote(facts.project), *session, f"Made on {when_text(time.time_ns())}"),
        figures=(
            ("runs", str(len(facts.moments)), ", ".join(_endings(well, other, going))),
            ("files changed", str(len(facts.files)), size_text(changed)),
            ("hosts reached", str(len(facts.hosts)), f"{len(facts.refused)} refused"),
            ("questions", str(len(facts.questions) + facts.questions_left_out), f"{denied} denied"),
            ("operations", str(len(facts.operations)), f"{facts.undone} undone"),
        ),
        bars=_bars(facts.moments),
        bar_legend=_BAR_TONES,
        ends=_ends(facts.moments),
        tiles=tuple(map(_tile, facts.files)),
        tile_legend=_FILE_TONES,
        runs=_run_list(facts),
        files=_file_list(facts),
        others=(_host_list(facts), _refused_list(facts), _question_list(facts)),
    )


def _endings(well: int, other: int, going: int) -> list[str]:
    named = ((well, "exit 0"), (other, "failed or stopped"), (going, "still running"))
    return [f"{count} {text}" for count, text in named if count] or ["none yet"]


def _bars(moments: Sequence[RunMoment]) -> tuple[Bar, ...]:
    """Return the runs by time, each bar as long a time as the others."""
    if not moments:
        return ()
    begin, end = moments[0].started_ns, moments[-1].started_ns
    length = (end - begin) // _BARS + 1
    counts: list[dict[Tone, int]] = [{tone: 0 for tone, _meaning in _BAR_TONES} for _bar in range(_BARS)]
    for one in moments:
        counts[(one.started_ns - begin) // length][_bar_tone(one)] += 1
    return tuple(
        Bar(title=f"{when_text(begin + index * length)}: {_bar_text(found)}", counts=tuple(found.items()))
        for index, found in enumerate(counts)
    )


def _bar_tone(one: RunMoment) -> Tone:
    if not one.is_over:
        return "now"
    if not one.is_well:
        return "bad"
    return "change" if one.changed else "plain"


def _bar_text(found: dict[Tone, int]) -> str:
    return ", ".join(f"{found[tone]} {meaning}" for tone, meaning in _BAR_TONES if found[tone])


def _ends(moments: Sequence[RunMoment]) -> tuple[str, str]:
    if not moments:
        return "", ""
    first, last = when_text(moments[0].started_ns), when_text(moments[-1].started_ns)
    return first, "" if first == last else last


def _tile(file: ChangedFile) -> Tile:
    above, _slash, name = file.path.rpartition(b"/")
    top = file.path.partition(b"/")[0] if above else b""
    where = f" in {quote(above)}" if above else ""
    return Tile(
        group=f"{quote(top)}/" if top else "",
        name=quote(name),
        about=f"{size_text(file.size)}{where}, {_kind_text(file)}",
        weight=file.size,
        tone=_TONES[file.kind],
    )


def _kind_text(file: ChangedFile) -> str:
    return file.kind if file.times == 1 else f"{file.kind}, {file.times} times"


def _size_and_times(file: ChangedFile) -> str:
    return size_text(file.size) + (f", {file.times} times" if file.times > 1 else "")


def _run_list(facts: ReportFacts) -> PageTable:
    undone, fates = fates_of(facts.operations)
    dated = []
    for record in facts.runs:
        line = run_line(record, fates.get(record.id, []), undone)
        name = facts.sandboxes.get(record.sandbox, "")
        of = "" if name in ("", "default") else f" ({safe_text(name)})"
        is_bad = is_bad_ending(line.ending)
        tone: Tone = "now" if line.ending == "running" else "bad" if is_bad else "change" if record.changed else "plain"
        cells = (line.name + of, when_text(record.started_ns), line.took, line.ending, line.fate, line.about)
        dated.append((record.started_ns, PageRow(cells=cells, tone=tone)))
    for prompt in facts.prompts[-_MOST_PROMPTS:]:
        text = safe_text(" ".join(prompt.text.split()))
        dated.append((prompt.at_ns, PageRow(cells=(f"{moment_text(prompt.at_ns)}  You asked: {text}",))))
    more = len(facts.moments) - len(facts.runs)
    return PageTable(
        heading="Runs",
        columns=("run", "when", "took", "ended", "changes", "command"),
        rows=tuple(row for _at, row in sorted(dated, key=lambda pair: -pair[0])),
        code=(5,),
        nothing="No runs yet.",
        rest=f"and {count_text(more, 'earlier run')}: see unspill log" if more > 0 else "",
    )


def _file_list(facts: ReportFacts) -> PageTable:
    rows = [
        PageRow(cells=(_kind_text(file), size_text(file.size), quote(file.path)), tone=_TONES[file.kind])
        for file in facts.files[:_MOST_FILES]
    ]
    more = len(facts.files) - len(rows)
    parts = [f"and {count_text(more, 'smaller file')}"] if more > 0 else []
    if facts.unread_operations:
        parts.append(f"{count_text(facts.unread_operations, 'operation')} not counted: what they changed is not kept")
    return PageTable(
        heading="Changed files",
        columns=("what", "size", "file"),
        rows=tuple(rows),
        code=(2,),
        nothing="No file was changed, or all of it was undone.",
        rest="; ".join(parts),
    )


def _host_list(facts: ReportFacts) -> PageTable:
    rows = [
        PageRow(
            cells=(safe_text(host.place), str(host.connections), size_text(host.up), size_text(host.down), _wrong(host))
        )
        for host in facts.hosts
    ]
    left = facts.traffic_left_out
    return PageTable(
        heading="Hosts reached",
        columns=("host", "connections", "sent", "received", "trouble"),
        rows=tuple(rows),
        code=(0,),
        nothing="No run reached a host.",
        rest=f"{left} connections or refusals are not listed" if left else "",
    )


def _wrong(host: HostReached) -> str:
    return ", ".join(host.wrong)


def _refused_list(facts: ReportFacts) -> PageTable:
    rows = [
        PageRow(cells=(safe_text(host.place), str(host.times), host.rule, safe_text(host.reason)), tone="bad")
        for host in facts.refused
    ]
    return PageTable(
        heading="Hosts refused",
        columns=("host", "times", "rule", "why"),
        rows=tuple(rows),
        code=(0,),
        nothing="The proxy refused nothing.",
    )


def _question_list(facts: ReportFacts) -> PageTable:
    rows = [
        PageRow(
            cells=(
                safe_text(_answer_text(one)),
                when_text(one.at_ns),
                safe_text(_what_text(one)),
                safe_text(one.command),
            ),
            tone="new" if one.answer == "allowed" else "bad",
        )
        for one in facts.questions
    ]
    left = facts.questions_left_out
    return PageTable(
        heading="Questions and answers",
        columns=("answer", "when", "asked for", "command"),
        rows=tuple(rows),
        code=(3,),
        nothing="Nothing was asked.",
        rest=f"and {count_text(left, 'earlier question')}: see unspill audit" if left else "",
    )


def _answer_text(one: AskedQuestion) -> str:
    scope = f" ({one.scope})" if one.scope else ""
    by = f" by {one.by}" if one.by else ""
    return f"{one.answer}{scope}{by}" + (f": {one.reason}" if one.reason else "")


def _what_text(one: AskedQuestion) -> str:
    return f"{one.what} {one.about}".rstrip()


def _lines(facts: ReportFacts) -> Iterator[str]:
    """Yield the report for a terminal: sums, and the first few of each list."""
    well, other, going = count_endings(facts.moments)
    of = f", session {safe_text(facts.session)}" if facts.session else ""
    yield f"{quote(facts.project)}{of}"
    since = f", since {moment_text(facts.moments[0].started_ns)}" if facts.moments else ""
    yield f"{count_text(len(facts.moments), 'run')}: {', '.join(_endings(well, other, going))}{since}"
    undone = f", {facts.undone} of them undone" if facts.undone else ""
    yield f"{count_text(len(facts.files), 'file')} changed by {count_text(len(facts.operations), 'operation')}{undone}"
    yield from _first([f"  {file.kind:<8}  {quote(file.path)} ({_size_and_times(file)})" for file in facts.files])
    yield f"{count_text(len(facts.hosts), 'host')} reached, {len(facts.refused)} refused"
    yield from _first([f"  {safe_text(one.place)}: {count_text(one.connections, 'connection')}" for one in facts.hosts])
    yield from _first(
        [f"  ! {safe_text(one.place)}: {one.rule}, {count_text(one.times, 'time')}" for one in facts.refused]
    )
    yield f"{count_text(len(facts.questions) + facts.questions_left_out, 'question')} asked"
    yield from _first([f"  {safe_text(_what_text(one))}: {safe_text(_answer_text(one))}" for one in facts.questions])
    yield "As a page: unspill report --html report.html"


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _FEW
    return [*lines[:_FEW], f"  and {more} more"] if more > 0 else list(lines)


def _form(facts: ReportFacts) -> dict[str, Any]:
    well, other, going = count_endings(facts.moments)
    return {
        "project": decoded(facts.project),
        "session": facts.session,
        "runs": {"total": len(facts.moments), "well": well, "other": other, "running": going},
        "operations": len(facts.operations),
        "undone": facts.undone,
        "files": [{**file.as_dict(), "path": decoded(file.path)} for file in facts.files],
        "hosts": [{**host.as_dict(), "wrong": list(host.wrong)} for host in facts.hosts],
        "refused": [host.as_dict() for host in facts.refused],
        "questions": [one.as_dict() for one in facts.questions],
    }
