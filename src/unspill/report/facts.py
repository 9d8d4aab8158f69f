# SPDX-License-Identifier: Apache-2.0
"""The facts of a report: runs, files that changed, hosts, questions with their answers; read from store and audit.

Each list is bounded, whatever a project has been through, and what was left out is counted. Reads what is there and
changes nothing.
"""

from __future__ import annotations

from itertools import islice

from unspill.model.operation import reversals_of
from unspill.permissions.audit import Audit, as_text
from unspill.record import Record
from unspill.sandbox.files import READ_BEGINNINGS
from unspill.sandbox.history import find_journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Literal

    from unspill.model.operation import Entry, Operation
    from unspill.model.run import Run, SandboxId
    from unspill.permissions.audit import Event
    from unspill.sandbox.sessions import Session
    from unspill.store.db import Store
    from unspill.store.operations import PromptRow
    from unspill.store.runs import RunMoment

    FileKind = Literal["added", "modified", "deleted"]

MOST_RUNS = 300
MOST_HOSTS = 100
MOST_QUESTIONS = 200
# Journals of so many operations are read, and so many steps: those of the newest
MOST_OPERATIONS = 2000
MOST_STEPS = 200_000
_MOST_EVENTS = 500_000
_ALL = 1_000_000
# What changes files of the project, and is not the reverse of something else
_CHANGING = ("apply", "edit", "restore")


class ChangedFile(Record):
    """A file that operations changed and that was not undone; `size` is what it got, or had before it was deleted.

    The path is relative to the project, or absolute. What git keeps for itself is one such file per repository.
    """

    path: bytes
    kind: FileKind
    size: int
    times: int = 1


class HostReached(Record):
    """A host and port that runs connected to. `wrong` says how those connections ended that did not end well."""

    place: str
    connections: int
    up: int
    down: int
    wrong: tuple[str, ...] = ()


class HostRefused(Record):
    """A host and port that the proxy refused, by which rule."""

    place: str
    rule: str
    times: int
    reason: str = ""


class AskedQuestion(Record):
    """A request, as the audit has it, and what became of it; `by` is who or which rule answered, empty for nobody."""

    at_ns: int
    what: str
    about: str
    command: str
    answer: str = "not answered"
    scope: str = ""
    by: str = ""
    reason: str = ""


class ReportFacts(Record):
    """All that a report tells. `sandboxes` are names by id; `moments` are all runs, `runs` the newest of them."""

    project: bytes
    session: str
    sandboxes: dict[str, str]
    moments: tuple[RunMoment, ...]
    runs: tuple[Run, ...]
    operations: tuple[Operation, ...]
    undone: int
    prompts: tuple[PromptRow, ...]
    files: tuple[ChangedFile, ...]
    unread_operations: int
    hosts: tuple[HostReached, ...]
    refused: tuple[HostRefused, ...]
    traffic_left_out: int
    questions: tuple[AskedQuestion, ...]
    questions_left_out: int


def gather(store: Store, project: bytes, *, sandbox: str | None = None, session: Session | None = None) -> ReportFacts:
    """Read the facts of a project, or of one of its sandboxes, or of a session.

    Raises:
        StoreError: something can't be read.
    """
    known = {row.id: row.name for row in store.sandboxes.of_project(project) if sandbox in (None, row.name)}
    chosen, name = tuple(known), "" if session is None else session.name
    done = [one for one in store.operations.latest(project, _ALL) if one.ending == "done" and one.sandbox in known]
    if session is not None:
        wanted = {one.id for one in session.operations}
        done = [one for one in done if one.id in wanted or one.of is not None]
    undone = reversals_of(done)
    lasting = [one for one in done if one.kind in _CHANGING and one.id not in undone]
    files, unread = _changed_files(store.state, project, lasting)
    hosts, refused, left_out = _traffic(store, chosen, name)
    questions = _questions(store.state, project, None if sandbox is None else chosen, name)
    return ReportFacts(
        project=project,
        session=name,
        sandboxes={str(one): of for one, of in known.items()},
        moments=store.runs.moments(chosen, name, but=READ_BEGINNINGS),
        runs=store.runs.brief(chosen, name, MOST_RUNS, but=READ_BEGINNINGS),
        operations=tuple(done),
        undone=sum(one.id in undone and one.of is None for one in done),
        prompts=() if session is None else session.prompts,
        files=files,
        unread_operations=unread,
        hosts=hosts,
        refused=refused,
        traffic_left_out=left_out,
        questions=tuple(questions[:MOST_QUESTIONS]),
        questions_left_out=max(0, len(questions) - MOST_QUESTIONS),
    )


def _changed_files(
    state: bytes, project: bytes, operations: Sequence[Operation]
) -> tuple[tuple[ChangedFile, ...], int]:
    """Return the files that operations changed, the largest first, and of how many operations nothing is known."""
    journals = []
    room = MOST_STEPS
    for one in operations[:MOST_OPERATIONS]:
        journal = find_journal(state, one)
        if journal is None or journal.end is None or len(journal.end.done) > room:
            continue
        room -= len(journal.end.done)
        journals.append((one, [journal.steps[index] for index in journal.end.done]))
    found: dict[bytes, tuple[Entry | None, Entry | None, int]] = {}
    of_git: dict[bytes, dict[bytes, int]] = {}
    # The oldest come first here, so that each file is what the last one made of it
    for one, steps in reversed(journals):
        for step in steps:
            if step.action == "set_metadata" or "dir" in (
                step.before and step.before.kind,
                step.after and step.after.kind,
            ):
                continue
            path = (one.roots[step.root] + b"/" + step.path).removeprefix(project + b"/")
            above, mark, _inner = path.partition(b".git/")
            if mark and (not above or above.endswith(b"/")):
                of_git.setdefault(above + b".git", {})[path] = step.after.size if step.after is not None else 0
                continue
            first, _last, times = found.get(path, (step.before, None, 0))
            found[path] = first, step.after, times + 1
    files = [file for path, entries in found.items() if (file := _changed_file(path, *entries)) is not None]
    files += [
        ChangedFile(path=path, kind="modified", size=sum(sizes.values()), times=len(sizes))
        for path, sizes in of_git.items()
    ]
    return tuple(sorted(files, key=lambda file: (-file.size, file.path))), len(operations) - len(journals)


def _changed_file(path: bytes, before: Entry | None, after: Entry | None, times: int) -> ChangedFile | None:
    if after is not None:
        kind: FileKind = "added" if before is None else "modified"
        return ChangedFile(path=path, kind=kind, size=after.size, times=times)
    # What was made and deleted again is nothing
    return None if before is None else ChangedFile(path=path, kind="deleted", size=before.size, times=times)


def _traffic(
    store: Store, sandboxes: Sequence[SandboxId], session: str
) -> tuple[tuple[HostReached, ...], tuple[HostRefused, ...], int]:
    """Return the hosts that were reached and those that were refused, the most frequent first."""
    hosts: dict[str, HostReached] = {}
    refused: dict[tuple[str, str], HostRefused] = {}
    left_out = 0
    for traffic in store.traffic.of_runs(sandboxes, session):
        left_out += traffic.left_out
        for made in traffic.connections:
            one = hosts.get(made.place) or HostReached(place=made.place, connections=0, up=0, down=0)
            wrong = () if made.verdict in ("allowed", *one.wrong) else (made.verdict,)
            hosts[made.place] = one.replace(
                connections=one.connections + 1,
                up=one.up + made.up,
                down=one.down + made.down,
                wrong=(*one.wrong, *wrong),
            )
        for denial in traffic.denials:
            key = (denial.place, denial.rule)
            earlier = refused.get(key)
            refused[key] = HostRefused(
                place=denial.place,
                rule=denial.rule,
                times=denial.times + (earlier.times if earlier is not None else 0),
                reason=denial.reason,
            )
    most = sorted(hosts.values(), key=lambda one: (-one.connections, one.place))
    often = sorted(refused.values(), key=lambda one: (-one.times, one.place, one.rule))
    left_out += len(most[MOST_HOSTS:]) + len(often[MOST_HOSTS:])
    return tuple(most[:MOST_HOSTS]), tuple(often[:MOST_HOSTS]), left_out


def _questions(state: bytes, project: bytes, sandboxes: Sequence[str] | None, session: str) -> list[AskedQuestion]:
    """Return what was asked or decided by a rule, the newest first. Anybody may have written the audit."""
    answers: dict[str, Event] = {}
    found: list[AskedQuestion] = []
    for event in islice(Audit(state + b"/audit").events(newest_first=True), _MOST_EVENTS):
        kind, request = event.get("kind"), event.get("request")
        if kind == "answer":
            answers[str(event.get("id"))] = event
        if kind not in ("request", "decision") or not isinstance(request, dict):
            continue
        if request.get("project") != as_text(project) or (session and event.get("session") != session):
            continue
        if sandboxes is not None and request.get("sandbox") not in sandboxes:
            continue
        said = answers.pop(str(event.get("id")), {}) if kind == "request" else event
        found.append(_asked(event, request, said))
    return found


def _asked(event: Event, request: dict[str, Any], said: Event) -> AskedQuestion:
    at_ns = event.get("at_ns")
    return AskedQuestion(
        at_ns=at_ns if isinstance(at_ns, int) and 0 <= at_ns < 1 << 63 else 0,
        what=str(request.get("kind")),
        about=_words(request.get("path") or request.get("hosts") or ""),
        command=_words(request.get("argv") or ""),
        answer=str(said.get("answer") or "not answered"),
        scope=str(said.get("scope") or ""),
        by=str(said.get("by") or said.get("rule") or ""),
        reason=str(said.get("reason") or ""),
    )


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def count_endings(moments: Iterable[RunMoment]) -> tuple[int, int, int]:
    """Return how many runs ended with exit code 0, how many ended otherwise, and how many still go on."""
    well = other = going = 0
    for one in moments:
        well += one.is_over and one.is_well
        other += one.is_over and not one.is_well
        going += not one.is_over
    return well, other, going
