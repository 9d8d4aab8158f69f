# SPDX-License-Identifier: Apache-2.0
"""What applying and undoing cost: many changed files against `cp -a`, one by size of the project and of its history.

An apply has a backup, a journal and is durable when it returns. `cp -a` over a copy of the project has none of that;
here it is followed by `syncfs` of the one filesystem. It is judged against a `cp -a` that copies; one that may share
blocks (reflink) is shown beside it. Every sample starts from fresh trees and a synchronised filesystem. With `--on DIR`
it is measured on that filesystem too.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measuring import Case, Options, Turns, fast, make_parser, make_project, report, scratch, timed
from scan import POLICY
from scan import make_tree as make_kept_tree

from unspill import Sandbox
from unspill.host.libc import syncfs
from unspill.host.places import filesystem_of

FILES = 20_000
FILES_PER_DIRECTORY = 25
SMALL = 1_000
FEW_RUNS, MANY_RUNS = 100, 20_000
SIZE_BAR = HISTORY_BAR = 1.2
# `cp -a` waits for the disk at every file on ext4 alone. Elsewhere a disk that is fast makes it three times as fast,
# and unspill, which computes, no faster: version 0.2 takes 0.8 to 1.2 of it on XFS there, 0.5 on a slow disk.
COPY_BARS = {"ext4": 0.7, "xfs": 1.6, "btrfs": 1.6}
LINE = b"a line of a file that a command is going to change\n"
# Appends in place, so that every file is copied up and has overlayfs's attributes
CHANGE_ALL = "find . -type f -exec sh -c 'for file; do echo more >> \"$file\"; done' sh {} +"
COPYING, SHARING = "cp -a", "cp -a with reflinks"


class ApplyOptions(Options):
    """The options of this benchmark."""

    on: list[Path]


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--on", metavar="DIR", type=Path, action="append", default=[], help="a further filesystem")
    options = parser.parse_args(namespace=ApplyOptions())
    cases: list[Case] = []
    notes: list[str] = []
    for place in (Path.home(), *options.on):
        files = options.pick(1_000, 5_000, FILES if has_room(place) else 5_000)
        cases += measure_many(place, files, options)
        notes.append(f"{filesystem_of(os.fsencode(place))}: measured with {files} files, times are per {FILES}")
    report("apply", [*cases, measure_size(options), measure_history(options)], options, notes)


def has_room(place: Path) -> bool:
    """Tell whether all files fit there: as a project, its copies and a layer."""
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize > FILES * 8192 * 5


def measure_many(place: Path, files: int, options: Options) -> list[Case]:
    samples: dict[str, list[float]] = {COPYING: [], SHARING: [], "apply": [], "undo": []}
    rounds, seconds = options.pick((2, 4), (3, 12), (6, 300))
    end = time.monotonic() + seconds
    while len(samples["undo"]) < rounds and (not samples["undo"] or time.monotonic() < end):
        with scratch(place) as directory:
            sample(directory, files, samples)
    kind = filesystem_of(os.fsencode(place))
    scale = FILES / files
    times = {name: fast(samples[name]) * scale for name in samples}
    return [
        Case(
            f"{name} of {FILES} changed files on {kind}, against {copy}",
            times[name],
            "ms",
            times[copy],
            COPY_BARS.get(kind) if copy == COPYING else None,
            samples=[one * scale for one in samples[name]],
        )
        for name, copy in (("apply", COPYING), ("undo", COPYING), ("apply", SHARING))
    ]


def sample(directory: Path, files: int, samples: dict[str, list[float]]) -> None:
    """Take one sample of each, on trees that nothing else was done with."""
    project = directory / "project"
    make_tree(project, files)
    flags = {COPYING: "--reflink=never", SHARING: "--reflink=auto"}
    for number in range(len(flags)):
        subprocess.run(["cp", "-a", project, directory / str(number)], check=True)
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    with Sandbox(project, policy=POLICY) as sandbox:
        result = sandbox.run(CHANGE_ALL, after="hold")
        assert result.exit_code == 0, result.stderr
        changes = sandbox.changes()
        assert len(changes) == files, len(changes)
        layer = os.fsdecode(next(change.layer for change in changes if change.layer))

        def copy_all(number: int, flag: str) -> None:
            subprocess.run(["cp", "-a", flag, f"{layer}/.", directory / str(number)], check=True)
            syncfs(top)

        def apply() -> None:
            done = sandbox.apply(reviewed=changes)
            assert (done.changed, done.left) == (files, ()), done

        def undo() -> None:
            done = sandbox.undo()
            assert (done.changed, done.left) == (files, ()), done

        for number, (name, flag) in enumerate(flags.items()):
            syncfs(top)
            samples[name].append(timed(partial(copy_all, number, flag)))
        for name, work in (("apply", apply), ("undo", undo)):
            syncfs(top)
            samples[name].append(timed(work))
    os.close(top)


def measure_size(options: Options) -> Case:
    """Apply one changed file in a large project and in a small one, in turns."""
    large = options.pick(10_000, 100_000, 1_000_000)
    samples: dict[int, list[float]] = {SMALL: [], large: []}
    turns = Turns(seconds=options.pick(1, 8, 60), rounds=options.pick(12, 40, 200))
    with scratch():
        sandboxes = {size: Sandbox(make_kept_tree(size), policy=POLICY) for size in (SMALL, large)}

        def change_one(size: int) -> Callable[[], None]:
            sandbox = sandboxes[size]

            def change() -> None:
                sandbox.run(["sh", "-c", "echo more >> d0/d7/f3"], after="hold")
                changes = sandbox.changes()
                samples[size].append(timed(lambda: sandbox.apply(reviewed=changes)))
                sandbox.undo()

            return change

        turns.run({str(size): change_one(size) for size in samples})
        for sandbox in sandboxes.values():
            sandbox.close()
    words = f"apply of one change in {large} files, against {SMALL}"
    return Case(words, fast(samples[large][1:]), "ms", fast(samples[SMALL][1:]), SIZE_BAR, samples=samples[large][1:])


def measure_history(options: Options) -> Case:
    """Run and apply one change in a sandbox with many earlier runs and in one with few, in turns."""
    turns = Turns(seconds=options.pick(2, 10, 60), rounds=options.pick(30, 150, 600))
    with scratch() as many, scratch() as few:
        things: dict[str, Callable[[], object]] = {}
        for name, directory, runs in (("many", many, MANY_RUNS), ("few", few, FEW_RUNS)):
            os.environ["UNSPILL_STATE_DIR"] = str(directory / "state")
            project = make_project(directory, "project")
            with Sandbox(project) as sandbox:
                run_and_apply(sandbox)
            add_earlier_runs(directory / "state" / "store.db", runs)
            sandbox = Sandbox(project)
            assert sandbox.run("true").number > runs
            things[name] = partial(run_and_apply, sandbox)
        turns.run(things)
    words = f"run and apply of one file after {MANY_RUNS} runs, against {FEW_RUNS}"
    return Case(words, turns.fast("many"), "ms", turns.fast("few"), HISTORY_BAR, samples=turns.samples["many"])


def run_and_apply(sandbox: Sandbox) -> None:
    result = sandbox.run(["sh", "-c", "echo more >> file"], after="apply")
    assert result.operation is not None, result


def add_earlier_runs(database: Path, runs: int) -> None:
    """Repeat the one run in the store, with its operation and the backup of its file, before itself."""
    with sqlite3.connect(database) as store:
        for table, new in (
            ("runs", {"id": "printf('%016x', n)", "number": "number + n"}),
            ("operations", {"id": "printf('%016x', n)", "number": "number + n"}),
            ("backups", {"name": "name || '-' || n", "operation": "printf('%016x', n)"}),
        ):
            columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})") if row[1] != "seq"]
            values = ", ".join(new.get(column, column) for column in columns)
            store.execute(
                f"WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {runs})"
                f" INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}, counted"
            )
        store.execute(f"UPDATE counters SET number = number + {runs}")
        assert store.execute("SELECT count(*) FROM runs").fetchone()[0] == runs + 1
    store.close()


def make_tree(top: Path, files: int) -> None:
    """Make that many files of 1 to 4 KiB."""
    for number in range(files // FILES_PER_DIRECTORY):
        directory = top / f"d{number // 100}" / f"d{number % 100}"
        directory.mkdir(parents=True)
        for name in range(FILES_PER_DIRECTORY):
            (directory / f"f{name}").write_bytes(LINE * (20 + (number + name) % 60))


if __name__ == "__main__":
    main()
