# SPDX-License-Identifier: Apache-2.0
"""What every benchmark is made of: interleaved measurements, bare bwrap as the baseline, one JSON line at the end.

The machine is never quiet: cases are measured in turns within one run and only their ratios are judged.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from unspill.host.job import memory_file
from unspill.layers.trees import remove_tree
from unspill.model.plan import Facts, Plan
from unspill.plan.argv import bare_options

# With --short a case has a few samples, taken in seconds. Repeated short runs gave ratios up to 1.4 times those of a
# long one; a mistake that matters (a walk of the project, a heavy import) costs more. Where other jobs take the cores,
# what consists of more processes waits more often: there the tolerance grows with the share of waiting (`crowding`).
SHORT_TOLERANCE = 1.5
_ARGS_FD = 3
_T = TypeVar("_T")


class Options(argparse.Namespace):
    """The options every benchmark has."""

    json: bool
    samples: bool
    short: bool
    full: bool

    def pick(self, short: _T, usual: _T, full: _T) -> _T:
        """Return the amount of work that was asked for."""
        return short if self.short else full if self.full else usual

    def tolerance(self) -> float:
        """Return how far a case may miss its bar."""
        return SHORT_TOLERANCE * crowding() if self.short else 1.0


def crowding() -> float:
    """Return how much longer this process has been ready to run than it did run: 1 on a machine with a free core."""
    ran, waited, _slices = (int(word) for word in Path("/proc/self/schedstat").read_text().split())
    return (ran + waited) / ran


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options every benchmark has, for those that have further ones."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    parser.add_argument("--samples", action="store_true", help="with the raw samples")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--full", action="store_true", help="larger and longer")
    amount.add_argument(
        "--short",
        action="store_true",
        help=f"a few seconds; fails if a bar is missed by more than {SHORT_TOLERANCE} times",
    )
    return parser


def parse_options(description: str) -> Options:
    """Return the options every benchmark has."""
    return make_parser(description).parse_args(namespace=Options())


@dataclass(frozen=True)
class Case:
    """One judged figure: `value` against `baseline`, at most (or, with `at_least`, at least) `bar` times it.

    Without a baseline, because what it is measured with is not installed, there is no judgement either. What is counted
    is the same on every machine, so no tolerance is given. `reached` is for a bar that is a goal still: what it is by
    now, to which the short form holds it.
    """

    case: str
    value: float
    unit: str
    baseline: float | None
    bar: float | None
    at_least: bool = False
    is_counted: bool = False
    samples: Sequence[float] = ()
    reached: float | None = None

    def __post_init__(self) -> None:
        if self.value < 0 or (self.baseline is not None and self.baseline <= 0):
            raise ValueError(f"{self.case}: no ratio of {self.value} and {self.baseline}")

    @property
    def ratio(self) -> float | None:
        return None if self.baseline is None else self.value / self.baseline

    def is_ok(self, tolerance: float) -> bool | None:
        if self.ratio is None:
            return None
        if self.bar is None:
            return True
        if self.is_counted:
            tolerance = 1.0
        return self.ratio >= self.bar / tolerance if self.at_least else self.ratio <= self.bar * tolerance

    def to_json(self, tolerance: float, *, with_samples: bool) -> dict[str, Any]:
        row: dict[str, Any] = {
            "case": self.case,
            "value": round(self.value, 4),
            "unit": self.unit,
            "baseline": None if self.baseline is None else round(self.baseline, 4),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "bar": self.bar,
            "ok": self.is_ok(tolerance),
        }
        if with_samples:
            row["samples"] = [round(sample, 4) for sample in self.samples]
        return row


def report(name: str, cases: Sequence[Case], options: Options, notes: Sequence[str] = ()) -> None:
    """Print a table for people, unless only JSON is wanted, and the JSON line last.

    Raises:
        SystemExit: with --short, a bar is missed.
    """
    tolerance = options.tolerance()
    if options.short:
        cases = [case if case.reached is None else replace(case, bar=case.reached) for case in cases]
        notes = [*notes, f"short form, crowding {crowding():.2f}: up to {tolerance:.2f} times a bar is ok"]
    if not options.json:
        for case in cases:
            verdict = {True: "ok", False: "MISSED", None: "not judged"}[case.is_ok(tolerance)]
            bar = "" if case.bar is None else f"bar {case.bar:g} {verdict}"
            ratio = "-" if case.ratio is None else f"{case.ratio:.2f}x"
            print(f"{case.case:<56}{case.value:>10.2f} {case.unit:<8}{ratio:>8}  {bar}")
        for note in notes:
            print(note)
    rows = [case.to_json(tolerance, with_samples=options.samples) for case in cases]
    print(json.dumps({"name": name, "cases": rows, "notes": list(notes)}))
    if options.short and any(row["ok"] is False for row in rows):
        sys.exit(1)


@dataclass
class Turns:
    """Runs several things in turns until a time or a number of rounds is reached.

    Every other round goes backwards: what one leaves to be done is not always paid for by the same other.
    """

    seconds: float
    rounds: int
    samples: dict[str, list[float]] = field(default_factory=dict)

    def run(self, things: dict[str, Callable[[], object]]) -> None:
        for name, thing in things.items():
            thing()
            self.samples.setdefault(name, [])
        end = time.monotonic() + self.seconds
        for number in range(self.rounds):
            for name, thing in list(things.items())[:: -1 if number % 2 else 1]:
                self.samples[name].append(timed(thing))
            if time.monotonic() > end:
                break

    def fast(self, name: str) -> float:
        return fast(self.samples[name])


def fast(samples: Sequence[float], *, is_rate: bool = False) -> float:
    """Return the median of the fastest quarter of some times or rates: other jobs only ever slow things down."""
    return statistics.median(sorted(samples, reverse=is_rate)[: max(1, len(samples) // 4)])


def timed(work: Callable[[], object]) -> float:
    """Return how many milliseconds something takes."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


@contextmanager
def scratch(place: Path | None = None) -> Iterator[Path]:
    """Give a new directory, in the home directory unless said, with a state directory of our own in it."""
    directory = Path(tempfile.mkdtemp(prefix="unspill-benchmark-", dir=place or Path.home()))
    (directory / "state").mkdir(mode=0o700)
    before = os.environ.get("UNSPILL_STATE_DIR")
    os.environ["UNSPILL_STATE_DIR"] = str(directory / "state")
    try:
        yield directory
    finally:
        if before is None:
            del os.environ["UNSPILL_STATE_DIR"]
        else:
            os.environ["UNSPILL_STATE_DIR"] = before
        remove_tree(os.fsencode(directory))


def kept_directory() -> Path:
    """Return where trees and archives that take long to make are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unspill-benchmarks"


def make_project(directory: Path, name: str) -> Path:
    """Return a new project with one file."""
    project = directory / name
    project.mkdir()
    (project / "file").write_text("content\n")
    return project


class BareBwrap:
    """bwrap started by hand with the very same plan, each overlay as a plain bind; as often as wanted."""

    def __init__(self, plan: Plan, facts: Facts) -> None:
        options, contents = bare_options(plan, facts, _ARGS_FD + 1)
        self._bwrap = plan.bwrap
        self._argv = plan.argv
        self._contents = (b"".join(option + b"\0" for option in options), *contents)

    def start(self, argv: Sequence[bytes] = (), *, stdin: int | None = None, stdout: int | None = None) -> int:
        """Start it and return the pid."""
        files = [memory_file(content) for content in self._contents]
        # The streams first: one of the files may take their number
        actions = [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in ((0, stdin), (1, stdout)) if fd is not None]
        actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(files, start=_ARGS_FD)]
        words = [self._bwrap, b"--args", b"%d" % _ARGS_FD, b"--", *(argv or self._argv)]
        pid = os.posix_spawn(self._bwrap, words, {}, file_actions=actions)
        for fd in files:
            os.close(fd)
        return pid

    def run(self) -> None:
        """Start it and wait for its end."""
        wait_for(self.start())


def pss_of_tree(root: int) -> float:
    """Return the proportional memory of a process and all below it, in KiB."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(name))
    total, pending = 0.0, [(root, 0)]
    while pending:
        pid, parent = pending.pop()
        pending += [(child, pid) for child in children.get(pid, [])]
        total += pss_of(pid, parent)
    return total


def pss_of(pid: int, parent: int) -> float:
    """Return the proportional memory of a process in KiB, 0 if it has ended.

    That of one that is not dumpable is hidden. It is a fork: what it has beyond what its parent still shares is its
    own, and of that it has the same part.
    """
    try:
        return _memory_of(pid, "smaps_rollup", "Pss:")
    except PermissionError:
        shared, own, part = (
            _memory_of(parent, "smaps_rollup", key) for key in ("Shared_Dirty:", "Private_Dirty:", "Pss_Anon:")
        )
        return _memory_of(pid, "status", "RssAnon:") - shared + max(0.0, part - own)


def _memory_of(pid: int, file: str, key: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(float(line.split()[1]) for line in lines if line.startswith(key))


def run_program(argv: list[str], environ: dict[str, str] | None = None, *, is_quiet: bool = False) -> None:
    """Run a program to its end, which must be a success; if `is_quiet`, nobody reads what it prints."""
    nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)] if is_quiet else []
    wait_for(os.posix_spawn(argv[0], argv, os.environ if environ is None else environ, file_actions=nowhere))


def wait_for(pid: int) -> None:
    """Wait for a process, which must succeed."""
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status


def allow_descriptors(wanted: int) -> int:
    """Have room for that many descriptors if the hard limit lets us; return how many there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = max(soft, wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised


def unspill_program() -> str:
    """Return the command line's program of this environment."""
    return str(Path(sys.executable).with_name("unspill"))


def compiled_environ(directory: Path) -> dict[str, str]:
    """Return variables with which Python keeps what it has compiled, as if the project were installed from a wheel."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
