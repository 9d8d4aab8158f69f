# SPDX-License-Identifier: Apache-2.0
"""Two ways to the same verbs: the library, and the command line with `--json`. Both say the same in the same form."""

import base64
import json
import os
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.model.model import Side
from tests.prepared import PREPARED, PROGRAM
from unspill import Hunks, Operation, RunResult, Sandbox, Selection, UnspillError
from unspill.model.run import Output, OutputChunk


class Failure(Exception):
    """The program and the model disagree. Failures with the same `rule` are of one kind."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Refused(Exception):
    """The program said no, with a reason and an exit code or an exception of its own."""


@dataclass
class Told:
    """What unspill said about an operation; its number is 0 if nothing was done."""

    number: int = 0
    id: str = ""
    kind: str = ""
    of: str = ""
    changed: int = 0
    left: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    # Number and id of the run that it follows
    run: tuple[int, str] = (0, "")
    ending: str = "done"


def told_of(operation: Operation | None, run: tuple[int, str] = (0, "")) -> Told:
    if operation is None:
        return Told(run=run)
    left = {one.name: one.why for one in operation.left}
    of = operation.of or ""
    count, notes, ending = operation.changed, operation.notes, operation.ending
    return Told(operation.number, operation.id, operation.kind, of, count, left, notes, run, ending)


class Library:
    """Every verb by the library."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self._opened: dict[tuple[str, str], Sandbox] = {}

    def sandbox(self, name: str = "default", session: str = "") -> Sandbox:
        key = name, session
        if key not in self._opened:
            self._opened[key] = Sandbox(self.project, name=name, session=session)
        return self._opened[key]

    def close(self) -> None:
        for sandbox in self._opened.values():
            sandbox.close()
        self._opened.clear()

    def run(self, name: str, command: str, after: Any, session: str = "", *, reuse: bool = False) -> tuple[Told, bytes]:
        result = _asked(self.sandbox(name, session).run, command, after=after, reuse=reuse)
        _check_run(result)
        return told_of(result.operation, (result.number, result.run)), printed(result.stdout)

    def run_with_edit(self, name: str, command: str, after: Any, edit: Callable[[], None]) -> Told:
        """Run a command that says when the person may edit, and waits until they have."""
        reading, writing = os.pipe()

        def on_event(event: object) -> None:
            if isinstance(event, OutputChunk) and b"ready" in event.chunk:
                edit()
                os.write(writing, b"go\n")

        try:
            result = _asked(self.sandbox(name).run, command, after=after, stdin=reading, on_event=on_event)
        finally:
            os.close(reading)
            os.close(writing)
        _check_run(result)
        return told_of(result.operation, (result.number, result.run))

    def changes(self, name: str) -> dict[str, str]:
        return {one.name: one.kind for one in self.sandbox(name).changes() if not one.is_mere_touch}

    def held_counts(self) -> dict[str, int | None]:
        return {one.name: one.held for one in self.sandbox().sandboxes()}

    def operations(self) -> list[Told]:
        return [told_of(one) for one in self.sandbox().operations(limit=1000)]

    def apply(
        self, name: str, paths: Collection[str] | None = None, side: Side = "", include: Collection[str] = ()
    ) -> Told:
        chosen = tuple(map(os.fsencode, paths or ()))
        selection = Selection(
            paths=chosen,
            overwrite=chosen if side == "overwrite" else (),
            sides=tuple((path, side) for path in chosen) if side in ("ours", "theirs", "markers") else (),
            included=tuple(map(os.fsencode, include)),
        )
        return told_of(_asked(self.sandbox(name).apply, selection))

    def apply_run(self, name: str, run: int) -> Told:
        return told_of(_asked(self.sandbox(name).apply, run=run))

    def apply_part(self, name: str, path: str, numbers: Sequence[int], lines: Sequence[int] = ()) -> Told:
        return told_of(_asked(self.sandbox(name).apply, _part(path, numbers, lines)))

    def discard(self, name: str, paths: Collection[str] | None = None) -> Told:
        selection = Selection(paths=tuple(map(os.fsencode, paths or ())))
        return told_of(_asked(self.sandbox(name).discard, selection))

    def discard_part(self, name: str, path: str, numbers: Sequence[int]) -> Told:
        return told_of(_asked(self.sandbox(name).discard, _part(path, numbers, ())))

    def undo(self, number: int | None, *, dry_run: bool = False) -> Told:
        return told_of(_asked(self.sandbox().undo, number, dry_run=dry_run))

    def redo(self, number: int | None) -> Told:
        return told_of(_asked(self.sandbox().redo, number))

    def undo_session(self, session: str, to: int | None) -> list[Told]:
        return [told_of(one) for one in _asked(self.sandbox().undo_session, session, to=to)]

    def redo_session(self, session: str) -> list[Told]:
        return [told_of(one) for one in _asked(self.sandbox().redo_session, session)]

    def restore(self, path: str, number: int) -> Told:
        return told_of(_asked(self.sandbox().restore, path, f"op{number}"))


def _part(path: str, numbers: Sequence[int], lines: Sequence[int]) -> Selection:
    return Selection(hunks=(Hunks(path=path.encode(), numbers=tuple(numbers), lines=tuple(lines)),))


def _asked(verb: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return verb(*arguments, **options)
    except UnspillError as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def _check_run(result: RunResult) -> None:
    if result.exit_code != 0 or result.problem or result.apart:
        raise Failure("run failed", f"{result.outcome} {result.stderr.text} {result.problem} {result.apart}")


def printed(output: Output) -> bytes:
    if output.file is not None and output.left_out:
        return Path(os.fsdecode(output.file)).read_bytes()
    return output.kept()


class CommandLine(Library):
    """Every verb by the command line; what needs a terminal or has no option there, by the library."""

    def do(self, *words: str) -> tuple[Any, int]:
        """Run the program; return what it says and its exit code."""
        done = subprocess.run(
            [PROGRAM, *words],
            cwd=self.project,
            capture_output=True,
            check=False,
            timeout=60,
            env={**os.environ, **PREPARED},
        )
        if b"Traceback" in done.stderr:
            raise Failure("traceback", f"{words}: {done.stderr.decode()}")
        try:
            return json.loads(done.stdout), done.returncode
        except ValueError:
            raise Refused(f"{words}: {done.returncode} {done.stderr.decode()}") from None

    def _operation(self, *words: str) -> Told:
        got, code = self.do(*words, "--json")
        told = self._told(got)
        if code != (6 if told.left else 0):
            raise Failure("exit code", f"{words}: {code}, but skipped: {told.left}")
        return told

    @staticmethod
    def _told(got: dict[str, Any] | None, run: tuple[int, str] = (0, "")) -> Told:
        if not got:
            return Told(run=run)
        left = {one["path"]: one["why"] for one in got["left"]}
        of = got["of"] or ""
        return Told(got["number"], got["operation"], got["kind"], of, got["changed"], left, got["notes"], run)

    def run(self, name: str, command: str, after: Any, session: str = "", *, reuse: bool = False) -> tuple[Told, bytes]:
        named = ["--session", session] if session else []
        got, code = self.do("run", "--sandbox", name, f"--{after}", *named, "--json", "-c", command)
        if code or got["problem"] or got["apart"]:
            raise Failure("run failed", f"{code} {got['stderr']} {got['problem']} {got['apart']}")
        out = got["stdout"]
        if "file" in out:
            data = Path(out["file"]).read_bytes()
        else:
            data = base64.b64decode(out["bytes_b64"]) if "bytes_b64" in out else out["text"].encode()
        return self._told(got["operation"], (got["number"], got["run"])), data

    def changes(self, name: str) -> dict[str, str]:
        got, _code = self.do("changes", "--sandbox", name, "--json")
        listed = [one for root in got["roots"] for one in root["changes"]]
        return {
            one["path"]: one["kind"]
            for one in listed
            if one["kind"] != "metadata" or set(one.get("aspects", ())) != {"mtime"}
        }

    def held_counts(self) -> dict[str, int | None]:
        got, _code = self.do("sandboxes", "--json")
        return {one["name"]: one["held"] for one in got["sandboxes"]}

    def apply(
        self, name: str, paths: Collection[str] | None = None, side: Side = "", include: Collection[str] = ()
    ) -> Told:
        if include:
            return super().apply(name, paths, side, include)
        return self._operation(*words_of("apply", name, paths, side))

    def apply_run(self, name: str, run: int) -> Told:
        return self._operation("apply", "--sandbox", name, "--run", str(run))

    def discard(self, name: str, paths: Collection[str] | None = None) -> Told:
        return self._discarded(*words_of("discard", name, paths))

    def discard_part(self, name: str, path: str, numbers: Sequence[int]) -> Told:
        return self._discarded("discard", "--sandbox", name, "--hunk", f"{path}:{','.join(map(str, numbers))}")

    def _discarded(self, *words: str) -> Told:
        got, _code = self.do(*words, "--json")
        return self.show(got["operation"]) if got["operation"] else Told()

    def show(self, number: int) -> Told:
        got, _code = self.do("show", f"op{number}", "--json")
        return self._told(got)

    def undo(self, number: int | None, *, dry_run: bool = False) -> Told:
        return self._operation(*words_of("undo", number), *(["--dry-run"] if dry_run else []))

    def redo(self, number: int | None) -> Told:
        return self._operation(*words_of("redo", number))

    def undo_session(self, session: str, to: int | None) -> list[Told]:
        words = [] if to is None else ["--to", f"op{to}"]
        got, _code = self.do("undo", "--session", session, *words, "--json")
        return [self._told(one) for one in got["operations"]]

    def redo_session(self, session: str) -> list[Told]:
        got, _code = self.do("redo", "--session", session, "--json")
        return [self._told(one) for one in got["operations"]]

    def restore(self, path: str, number: int) -> Told:
        return self._operation(*words_of("restore", path, number))

    def start(self, name: str, after: str) -> None:
        """Start a background run that only waits."""
        words = ["run", "-q", "-d", "--sandbox", name, f"--{after}", "-c", "sleep 600"]
        done = subprocess.run(
            [PROGRAM, *words], cwd=self.project, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode:
            raise Failure("run -d failed", f"{done.returncode} {done.stderr.decode()}")

    def stop(self, name: str) -> list[Told]:
        got, _code = self.do("stop", name, "--json")
        return [self._told(one["operation"]) for one in got["results"]]

    def kill_after(self, seconds: float, *words: str) -> None:
        """Run the program and kill it after this time."""
        with self._started(*words) as process:
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            process.wait()
            timer.cancel()

    def interrupt(self, name: str, command: str, after: str, number: int) -> None:
        """Run a command, and end the program by a signal when the command says that it is ready."""
        with self._started("run", "--sandbox", name, f"--{after}", "-c", command) as process:
            assert process.stdout is not None
            if b"ready" not in process.stdout.readline():
                raise Failure("run failed", f"{process.wait()}")
            process.send_signal(number)

    def _started(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [PROGRAM, *words],
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **PREPARED},
        )


def words_of(verb: str, *arguments: Any) -> list[str]:
    """Return what is typed for a verb."""
    match verb, arguments:
        case "apply", [name, paths, "markers"]:
            return [verb, "--sandbox", name, "--markers", *(paths or ())]
        case "apply", [name, paths, side] if side:
            return [verb, "--sandbox", name, *(word for path in paths for word in (f"--{side}", path))]
        case "apply" | "discard", [name, paths, *_side]:
            return [verb, "--sandbox", name, *(paths or ())]
        case "undo" | "redo", [number]:
            return [verb, *([] if number is None else [f"op{number}"])]
        case "restore", [path, number]:
            return [verb, path, "--from", f"op{number}"]
    raise AssertionError(verb)
