# SPDX-License-Identifier: Apache-2.0
"""The table of runs, and that of what went out of them: what was run where, how it ended, what it printed.

A run that has an end but no outcome was interrupted: its owner, the process of ours that answers for it, died. Of each
stream at most 64 KiB from the beginning and 64 KiB from the end are in the row, and of a command its first 16 KiB.
Traffic is one row for each run that had a way out, gone with the run.
"""

from __future__ import annotations

from unspill.errors import StoreDamaged
from unspill.lazy import lazy_module
from unspill.model.run import (
    KEPT_COMMAND_BYTES,
    Cancelled,
    Connection,
    Denial,
    Exited,
    LimitReached,
    NeverStarted,
    Output,
    PortTraffic,
    Run,
    RunId,
    SandboxId,
    Signalled,
    TimedOut,
    Traffic,
)
from unspill.record import Record
from unspill.store.connection import (
    Table,
    as_blob,
    as_float,
    as_id,
    as_int,
    as_one_of,
    as_text,
    as_unsigned,
    new_id,
    to_signed,
    to_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from unspill.model.policy import After
    from unspill.model.run import LimitName, Outcome
    from unspill.store.connection import Cell, Row

    OutcomeCells = tuple[str, int | float | None, str | None, str | None]
else:
    json = lazy_module("json")  # lazy: proxy


# Of each stream, at its beginning and at its end
KEPT_BYTES = 64 * 1024
# Of connections and of denials, of which a command can make any number
KEPT_ROWS = 1000
LIMIT_NAMES: tuple[LimitName, ...] = (
    "output",
    "layer_bytes",
    "layer_entries",
    "playground_bytes",
    "playground_entries",
    "tmp_entries",
    "free_space",
    "free_inodes",
    "free_memory",
    "file_bytes",
    "processes",
    "memory",
    "open_files",
)
_COLUMNS = (
    "id, sandbox, number, started_ns, ended_ns, outcome, outcome_number, outcome_text, outcome_remedy,"
    " changed, held, cwd, argv, stdout_left_out, stdout_file, stderr_left_out, stderr_file,"
    " stdout_head, stdout_tail, stderr_head, stderr_tail, sandboxed, argv_left_out, span, session"
)
_OWNED = (
    "id, owner_pid, owner_started, owner_boot, owner_pids, started_ns, sandbox, after_cancel, layer_bytes,"
    " layer_entries"
)


class Owner(Record):
    """The process that answers for a run: no other process of any boot has all four in common.

    `pids` is the inode of its process id namespace: a pid means nothing in another one.
    """

    pid: int
    started: int
    boot: str
    pids: int


class UnfinishedRun(Record):
    """A run without an end, and the process that should give it one.

    `keeps`: what it has written is held if that process dies, unless it is more than the bounds; None is no bound.
    The owner's boot is empty where nothing of the run is alive any more.
    """

    id: RunId
    owner: Owner
    started_ns: int
    sandbox: SandboxId = SandboxId("")
    keeps: bool = True
    layer_bytes: int | None = None
    layer_entries: int | None = None


class RunMoment(Record):
    """When one run was, and in short how it went: what is cheap to read of very many."""

    started_ns: int
    is_over: bool
    is_well: bool
    changed: int


class RunTable(Table):
    """Runs by sandbox and number."""

    __slots__ = ()

    def start(
        self,
        sandbox: SandboxId,
        *,
        argv: tuple[bytes, ...],
        cwd: bytes,
        started_ns: int,
        owner: Owner,
        after_cancel: After = "hold",
        layer_bytes: int | None = None,
        layer_entries: int | None = None,
    ) -> Run:
        """Record a run before anything of it exists; its number is the sandbox's next.

        The last three are for whoever finds it when its owner is dead: what becomes of its changes, and their bounds.
        """
        identity = RunId(new_id())
        words = b"\0".join(argv)
        kept = words[:KEPT_COMMAND_BYTES]
        left_out = len(words) - len(kept)
        with self._db:
            highest = self._db.rows("SELECT max(number) FROM runs WHERE sandbox = ?", (sandbox,))[0][0]
            number = 1 if highest is None else as_int(highest) + 1
            self._db.change(
                "INSERT INTO runs (id, sandbox, number, owner_pid, owner_started, owner_boot, owner_pids,"
                " started_ns, cwd, argv, argv_left_out, after_cancel, layer_bytes, layer_entries, session)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(identity, sandbox, number),
                    *(owner.pid, owner.started, owner.boot, to_signed(owner.pids)),
                    *(started_ns, cwd, kept, left_out, after_cancel, layer_bytes, layer_entries, self._db.session),
                ),
            )
        return Run(
            id=identity,
            number=number,
            sandbox=sandbox,
            argv=tuple(kept.split(b"\0")),
            cwd=cwd,
            started_ns=started_ns,
            ended_ns=None,
            outcome=None,
            stdout=Output(),
            stderr=Output(),
            argv_left_out=left_out,
            session=self._db.session,
        )

    def mark_unsandboxed(self, run: Run) -> Run:
        """Record that a run has no sandbox."""
        self._db.change("UPDATE runs SET sandboxed = 0 WHERE id = ?", (run.id,))
        return run.replace(sandboxed=False)

    def end(self, run: Run) -> None:
        """Record how a run ended and what it printed."""
        outcome = to_cells(run.outcome) if run.outcome is not None else (None, None, None, None)
        stdout, stderr = shorten(run.stdout), shorten(run.stderr)
        self._db.change(
            "UPDATE runs SET ended_ns = ?, outcome = ?, outcome_number = ?, outcome_text = ?, outcome_remedy = ?,"
            " changed = ?, held = ?, stdout_left_out = ?, stdout_file = ?, stderr_left_out = ?, stderr_file = ?,"
            " stdout_head = ?, stdout_tail = ?, stderr_head = ?, stderr_tail = ? WHERE id = ?",
            (
                *(run.ended_ns, *outcome, run.changed, int(run.held)),
                *(stdout.left_out, stdout.file, stderr.left_out, stderr.file),
                *(stdout.head, stdout.tail, stderr.head, stderr.tail, run.id),
            ),
        )

    def find(self, run: RunId) -> Run | None:
        """Return a run by id."""
        rows = self._db.rows(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", (run,))
        return _to_run(rows[0]) if rows else None

    def find_number(self, sandbox: SandboxId, number: int) -> Run | None:
        """Return a sandbox's run by number."""
        sql = f"SELECT {_COLUMNS} FROM runs WHERE sandbox = ? AND number = ?"
        rows = self._db.rows(sql, (sandbox, number))
        return _to_run(rows[0]) if rows else None

    def latest(self, sandbox: SandboxId, count: int, *, but: Iterable[bytes] = ()) -> tuple[Run, ...]:
        """Return a sandbox's last runs, the newest first; without those whose words begin like one of `but`."""
        cells = [cell for beginning in but for cell in (len(beginning), beginning)]
        others = " AND substr(argv, 1, ?) != ?" * (len(cells) // 2)
        sql = f"SELECT {_COLUMNS} FROM runs WHERE sandbox = ?{others} ORDER BY number DESC LIMIT ?"
        return tuple(map(_to_run, self._db.rows(sql, (sandbox, *cells, count))))

    def of_session(self, project: bytes, session: str) -> tuple[Run, ...]:
        """Return the runs of a session in all sandboxes of a project, the oldest first."""
        sql = (
            f"SELECT {_COLUMNS} FROM runs WHERE session = ? AND sandbox IN (SELECT id FROM sandboxes WHERE project = ?)"
            " ORDER BY started_ns"
        )
        return tuple(map(_to_run, self._db.rows(sql, (session, project))))

    def moments(
        self, sandboxes: Sequence[SandboxId], session: str, *, but: Iterable[bytes] = ()
    ) -> tuple[RunMoment, ...]:
        """Return when the runs of some sandboxes were, the oldest first; `session` is empty for all.

        Without those whose words begin like one of `but`.
        """
        rows = self._of(
            "started_ns, ended_ns IS NOT NULL, outcome = 'exited' AND outcome_number = 0, changed",
            *(sandboxes, session, but, "started_ns"),
        )
        return tuple(
            RunMoment(started_ns=as_int(at), is_over=bool(over), is_well=bool(well), changed=as_int(changed))
            for at, over, well, changed in rows
        )

    def brief(
        self, sandboxes: Sequence[SandboxId], session: str, count: int, *, but: Iterable[bytes] = ()
    ) -> tuple[Run, ...]:
        """Return the last runs of some sandboxes, the newest first, without what they printed; else as `moments`."""
        columns = _COLUMNS.replace("stdout_head, stdout_tail, stderr_head, stderr_tail", "x'', x'', x'', x''")
        return tuple(map(_to_run, self._of(columns, sandboxes, session, but, f"started_ns DESC LIMIT {count:d}")))

    def _of(
        self, columns: str, sandboxes: Sequence[SandboxId], session: str, but: Iterable[bytes], order: str
    ) -> Sequence[Row]:
        cells = [cell for beginning in but for cell in (len(beginning), beginning)]
        others = " AND substr(argv, 1, ?) != ?" * (len(cells) // 2)
        which = f"sandbox IN ({', '.join('?' * len(sandboxes))}) AND (session = ? OR ? = '')"
        sql = f"SELECT {columns} FROM runs WHERE {which}{others} ORDER BY {order}"
        return self._db.rows(sql, (*sandboxes, session, session, *cells))

    def count(self, sandbox: SandboxId, beginning: bytes, *, since: int = 0) -> int:
        """Return how many runs of a sandbox, from a number on, have words that begin like this; NUL is between them."""
        sql = "SELECT count(*) FROM runs WHERE sandbox = ? AND number >= ? AND substr(argv, 1, ?) = ?"
        return as_int(self._db.rows(sql, (sandbox, since, len(beginning), beginning))[0][0])

    def unfinished(self) -> tuple[UnfinishedRun, ...]:
        """Return the runs of all sandboxes that have no end yet."""
        return tuple(map(_to_unfinished, self._db.rows(f"SELECT {_OWNED} FROM runs WHERE ended_ns IS NULL")))

    def find_owned(self, run: RunId) -> UnfinishedRun | None:
        """Return a run, ended or not, with the process that answers or answered for it."""
        rows = self._db.rows(f"SELECT {_OWNED} FROM runs WHERE id = ?", (run,))
        return _to_unfinished(rows[0]) if rows else None

    def share(self, sandbox: SandboxId, numbers: Sequence[int]) -> None:
        """Record that runs of a live sandbox shared their layers: what one changed, each may have."""
        text = " ".join(map(str, numbers))
        self._db.change_each(
            "UPDATE runs SET span = ? WHERE sandbox = ? AND number = ?", [(text, sandbox, number) for number in numbers]
        )

    def move(self, run: RunId, sandbox: SandboxId) -> None:
        """Give a run to another sandbox, which has none of its number."""
        self._db.change("UPDATE runs SET sandbox = ? WHERE id = ?", (sandbox, run))

    def disown(self, run: RunId) -> None:
        """Record that the owner of a run is dead, and that nothing of the run is alive: nobody need look again."""
        self._db.change("UPDATE runs SET owner_boot = '' WHERE id = ? AND ended_ns IS NULL", (run,))

    def interrupt(self, run: RunId, ended_ns: int, *, held: bool = False) -> None:
        """Record that the owner of a run is dead; a run that has ended by itself meanwhile keeps its end."""
        sql = "UPDATE runs SET ended_ns = ?, held = ? WHERE id = ? AND ended_ns IS NULL"
        self._db.change(sql, (ended_ns, int(held), run))

    def drop_held(self, sandbox: SandboxId) -> None:
        """Record that nothing of a sandbox's runs is held any more."""
        self._db.change("UPDATE runs SET held = 0 WHERE sandbox = ? AND held", (sandbox,))

    def hold(self, runs: Iterable[RunId]) -> None:
        """Record that something of runs is held."""
        self._db.change_each("UPDATE runs SET held = 1 WHERE id = ?", [(run,) for run in runs])

    def ended_before(self, moment_ns: int) -> tuple[RunId, ...]:
        """Return runs that ended before a moment, hold nothing and are not the last of their sandbox.

        The last one keeps the count of runs.
        """
        rows = self._db.rows(
            "SELECT id FROM runs AS old WHERE ended_ns < ? AND NOT held AND EXISTS (SELECT 1 FROM runs AS later"
            " WHERE later.sandbox = old.sandbox AND later.number > old.number)"
            " AND NOT EXISTS (SELECT 1 FROM layers WHERE layers.run = old.id) ORDER BY seq",
            (moment_ns,),
        )
        return tuple(RunId(as_id(row[0])) for row in rows)

    def remove_all(self, runs: Iterable[RunId]) -> None:
        """Forget runs."""
        self._db.change_each("DELETE FROM runs WHERE id = ?", [(run,) for run in runs])

    def remove(self, run: RunId) -> None:
        """Forget a run."""
        self._db.change("DELETE FROM runs WHERE id = ?", (run,))

    def known(self, names: Iterable[str]) -> set[str]:
        """Return those of the names that are ids of runs."""
        wanted = [name for name in names if name.isascii()]
        found: set[str] = set()
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            sql = f"SELECT id FROM runs WHERE id IN ({', '.join('?' * len(part))})"
            found.update(as_id(row[0]) for row in self._db.rows(sql, part))
        return found


class TrafficTable(Table):
    """Connections, denials and ports by run: one text each, since they are only ever read together."""

    __slots__ = ()

    def put(self, run: RunId, traffic: Traffic) -> None:
        """Record what a run had; the first thousand of each kind."""
        kinds: tuple[tuple[Record, ...], ...] = (traffic.connections, traffic.denials, traffic.ports)
        more = sum(max(0, len(kind) - KEPT_ROWS) for kind in kinds)
        self._db.change(
            "INSERT OR REPLACE INTO traffic (run, connections, denials, ports, left_out) VALUES (?, ?, ?, ?, ?)",
            (
                run,
                _to_text(traffic.connections),
                _to_text(traffic.denials),
                _to_text(traffic.ports),
                traffic.left_out + more,
            ),
        )

    def of_runs(self, sandboxes: Sequence[SandboxId], session: str) -> Iterator[Traffic]:
        """Yield what the runs of some sandboxes had, the oldest first; `session` is empty for all.

        Raises:
            StoreDamaged: a row is none of ours.
        """
        rows = self._db.rows(
            "SELECT run, connections, denials, ports, left_out FROM traffic JOIN runs ON runs.id = traffic.run"
            f" WHERE sandbox IN ({', '.join('?' * len(sandboxes))}) AND (session = ? OR ? = '') ORDER BY started_ns",
            (*sandboxes, session, session),
        )
        return (_to_traffic(as_id(run), *cells) for run, *cells in rows)

    def find(self, run: RunId) -> Traffic | None:
        """Return what a run had, None for one that had no way out.

        Raises:
            StoreDamaged: the row is none of ours.
        """
        rows = self._db.rows("SELECT connections, denials, ports, left_out FROM traffic WHERE run = ?", (run,))
        return _to_traffic(run, *rows[0]) if rows else None


def shorten(output: Output) -> Output:
    """Return the output with no more of it than a row holds; what is cut counts as left out."""
    if len(output.head) <= KEPT_BYTES and len(output.tail) <= KEPT_BYTES:
        return output
    whole = output.kept() if output.left_out == 0 else None
    head = (output.head if whole is None else whole)[:KEPT_BYTES]
    tail = (output.tail if whole is None else whole[len(head) :])[-KEPT_BYTES:]
    return output.replace(head=head, tail=tail, left_out=output.total - len(head) - len(tail))


def to_cells(outcome: Outcome) -> OutcomeCells:
    """Return an outcome as four columns: kind, number, text, remedy.

    Spelt out, so that a new kind of outcome fails the type check here before it is lost.
    """
    match outcome:
        case Exited():
            return "exited", outcome.code, None, None
        case Signalled():
            return "signalled", outcome.signal, None, None
        case TimedOut():
            return "timed-out", outcome.after_s, None, None
        case Cancelled():
            return "cancelled", None, None, None
        case LimitReached():
            return "limit-reached", outcome.bound, outcome.limit, None
        case NeverStarted():
            return "never-started", outcome.exit_code, to_text(outcome.reason), to_text(outcome.remedy)


def to_outcome(kind: Cell, number: Cell, text: Cell, remedy: Cell) -> Outcome | None:
    """Return the outcome of four columns; None for a run that has none.

    Raises:
        StoreDamaged: there is no such outcome.
    """
    match kind:
        case None:
            return None
        case "exited":
            return Exited(code=as_int(number))
        case "signalled":
            return Signalled(signal=as_int(number))
        case "timed-out":
            return TimedOut(after_s=as_float(number))
        case "cancelled":
            return Cancelled()
        case "limit-reached":
            limit = as_one_of(LIMIT_NAMES, text, f"The store has an unknown limit: {text!r}.")
            return LimitReached(limit=limit, bound=as_int(number))
        case "never-started":
            return NeverStarted(reason=as_text(text), remedy=as_text(remedy), exit_code=as_int(number))
        case _:
            raise StoreDamaged(f"The store has an unknown outcome: {kind!r}.")


def _to_run(row: Row) -> Run:
    identity, sandbox, number, started_ns, ended_ns, *rest = row
    outcome, changed, held, cwd, argv = rest[0:4], rest[4], rest[5], rest[6], rest[7]
    stdout_left_out, stdout_file, stderr_left_out, stderr_file = rest[8:12]
    stdout_head, stdout_tail, stderr_head, stderr_tail = rest[12:16]
    return Run(
        id=RunId(as_id(identity)),
        number=as_int(number),
        sandbox=as_id(sandbox),
        argv=tuple(as_blob(argv).split(b"\0")),
        cwd=as_blob(cwd),
        started_ns=as_int(started_ns),
        ended_ns=None if ended_ns is None else as_int(ended_ns),
        outcome=to_outcome(*outcome),
        stdout=_to_output(stdout_head, stdout_tail, stdout_left_out, stdout_file),
        stderr=_to_output(stderr_head, stderr_tail, stderr_left_out, stderr_file),
        changed=as_int(changed),
        held=bool(as_int(held)),
        sandboxed=bool(as_int(rest[16])),
        argv_left_out=as_int(rest[17]),
        shared_with=tuple(found for word in as_text(rest[18]).split() if (found := int(word)) != as_int(number)),
        session=as_text(rest[19]),
    )


def _to_output(head: Cell, tail: Cell, left_out: Cell, file: Cell) -> Output:
    return Output(
        head=as_blob(head),
        tail=as_blob(tail),
        left_out=as_int(left_out),
        file=None if file is None else as_blob(file),
    )


def _to_traffic(run: str, connections: Cell, denials: Cell, ports: Cell, left_out: Cell) -> Traffic:
    try:
        return Traffic(
            connections=tuple(Connection(**fields) for fields in _from_text(as_text(connections))),
            denials=tuple(Denial(**fields) for fields in _from_text(as_text(denials))),
            ports=tuple(PortTraffic(**fields) for fields in _from_text(as_text(ports))),
            left_out=as_int(left_out),
        )
    except (TypeError, ValueError) as error:
        raise StoreDamaged(f"The network record of run {run} can't be read: {error}") from None


def _to_unfinished(row: Row) -> UnfinishedRun:
    identity, pid, started, boot, pids, started_ns, sandbox, after_cancel, layer_bytes, layer_entries = row
    owner = Owner(pid=as_int(pid), started=as_int(started), boot=as_text(boot), pids=as_unsigned(pids))
    return UnfinishedRun(
        id=RunId(as_id(identity)),
        owner=owner,
        started_ns=as_int(started_ns),
        sandbox=SandboxId(as_id(sandbox)),
        keeps=as_text(after_cancel) != "discard",
        layer_bytes=None if layer_bytes is None else as_int(layer_bytes),
        layer_entries=None if layer_entries is None else as_int(layer_entries),
    )


def _to_text(records: Sequence[Record]) -> str:
    return json.dumps([record.as_dict() for record in records[:KEPT_ROWS]], separators=(",", ":"))


def _from_text(text: str) -> list[dict[str, Any]]:
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("not a list")
    return found
