# SPDX-License-Identifier: Apache-2.0
"""What applying and undoing cost: many changed files against `cp -a` of them, one changed file by size of the project.

An apply has a backup, a journal and is durable when it returns; `cp -a` over a copy of the project has none of that and
is followed by `sync`. Every sample starts from fresh trees and a synchronised disk. With `--on DIR` it is measured on
that filesystem too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measuring import Case, Turns, make_parser, report
from scan import make_tree as make_kept_tree

from unspill import Limits, Policy, Sandbox
from unspill.host.places import filesystem_of
from unspill.layers.trees import remove_tree

FILES = 20_000
FEWER = 5_000
FILES_PER_DIRECTORY = 25
SMALL = 1_000
SIZE_BAR = 1.2
COPY_BARS = {"btrfs": 1.5}
COPY_BAR = 0.7
LINE = b"a line of a file that a command is going to change\n"
# Appends in place, so that every file is copied up and has overlayfs's attributes
CHANGE_ALL = "find . -type f -exec sh -c 'for file; do echo more >> \"$file\"; done' sh {} +"
POLICY = Policy(limits=Limits(layer_entries=None, layer_bytes=None))


def main() -> None:
    arguments = parse_arguments()
    cases: list[Case] = []
    notes: list[str] = []
    for place in (Path.home(), *arguments.on):
        files = FILES if arguments.full and has_room(place) else FEWER
        cases += measure_many(place, files, 6 if arguments.full else 3, 300 if arguments.full else 15)
        notes.append(f"{filesystem_of(os.fsencode(place))}: measured with {files} files, times are per {FILES}")
    cases.append(measure_size(arguments))
    report("apply", cases, arguments, notes)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--on", metavar="DIR", type=Path, action="append", default=[], help="a further filesystem")
    return parser.parse_args()


@contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """Give a directory there, with a state directory of our own in it."""
    directory = Path(tempfile.mkdtemp(prefix="unspill-apply-", dir=place))
    (directory / "state").mkdir(mode=0o700)
    os.environ["UNSPILL_STATE_DIR"] = str(directory / "state")
    try:
        yield directory
    finally:
        remove_tree(os.fsencode(directory))


def has_room(place: Path) -> bool:
    """Tell whether all files fit there: as a project, its copy and a layer."""
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize > FILES * 8192 * 4


def measure_many(place: Path, files: int, rounds: int, seconds: float) -> list[Case]:
    samples: dict[str, list[float]] = {"cp -a": [], "apply": [], "undo": []}
    end = time.monotonic() + seconds
    while len(samples["undo"]) < rounds and (not samples["undo"] or time.monotonic() < end):
        with scratch(place) as directory:
            sample(directory, files, samples)
    kind = filesystem_of(os.fsencode(place))
    bar = COPY_BARS.get(kind, COPY_BAR)
    scale = FILES / files
    copied = statistics.median(samples["cp -a"]) * scale
    return [
        Case(
            f"{name} of {FILES} changed files on {kind}, against cp -a and sync",
            statistics.median(samples[name]) * scale,
            "ms",
            copied,
            bar,
            samples=[one * scale for one in samples[name]],
        )
        for name in ("apply", "undo")
    ]


def sample(directory: Path, files: int, samples: dict[str, list[float]]) -> None:
    """Take one sample of each, on trees that nothing else was done with."""
    project, copy = directory / "project", directory / "copy"
    make_tree(project, files)
    subprocess.run(["cp", "-a", project, copy], check=True)
    with Sandbox(project, policy=POLICY) as sandbox:
        result = sandbox.run(CHANGE_ALL, after="hold")
        assert result.exit_code == 0, result.stderr
        changes = sandbox.changes()
        assert len(changes) == files, len(changes)
        layer = os.fsdecode(next(change.layer for change in changes if change.layer))

        def copy_all() -> None:
            subprocess.run(["cp", "-a", f"{layer}/.", copy], check=True)
            os.sync()

        def apply() -> None:
            done = sandbox.apply(reviewed=changes)
            assert (done.changed, done.left) == (files, ()), done

        def undo() -> None:
            done = sandbox.undo()
            assert (done.changed, done.left) == (files, ()), done

        samples["cp -a"].append(timed(copy_all))
        samples["apply"].append(timed(apply))
        samples["undo"].append(timed(undo))


def measure_size(arguments: argparse.Namespace) -> Case:
    """Apply one changed file in a large project and in a small one, in turns."""
    large = 1_000_000 if arguments.full else 100_000
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unspill-benchmarks"
    samples: dict[int, list[float]] = {SMALL: [], large: []}
    turns = Turns(seconds=60 if arguments.full else 8, rounds=200 if arguments.full else 40)
    with scratch(Path.home()):
        sandboxes = {size: Sandbox(make_kept_tree(kept, size), policy=POLICY) for size in (SMALL, large)}

        def change_one(size: int) -> Callable[[], None]:
            sandbox = sandboxes[size]

            def change() -> None:
                sandbox.run(["sh", "-c", "echo more >> d0/d7/f3"], after="hold")
                changes = sandbox.changes()
                samples[size].append(timed(lambda: sandbox.apply(reviewed=changes), sync=False))
                sandbox.undo()

            return change

        turns.run({str(size): change_one(size) for size in samples})
    return Case(
        f"apply of one change in {large} files, against {SMALL}",
        statistics.median(samples[large][1:]),
        "ms",
        statistics.median(samples[SMALL][1:]),
        SIZE_BAR,
        samples=samples[large][1:],
    )


def timed(work: Callable[[], object], *, sync: bool = True) -> float:
    """Return how many milliseconds something takes, beginning with nothing to write for anybody."""
    if sync:
        os.sync()
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def make_tree(top: Path, files: int) -> None:
    """Make that many files of 1 to 4 KiB."""
    for number in range(files // FILES_PER_DIRECTORY):
        directory = top / f"d{number // 100}" / f"d{number % 100}"
        directory.mkdir(parents=True)
        for name in range(FILES_PER_DIRECTORY):
            (directory / f"f{name}").write_bytes(LINE * (20 + (number + name) % 60))


if __name__ == "__main__":
    main()
