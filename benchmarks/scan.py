# SPDX-License-Identifier: Apache-2.0
"""What knowing the changes costs: it must follow the change, not the project.

A run that changes one file in a large project against the same in a small one, and reading 20,000 changes against
`find -printf` over the same layer. The trees are kept between runs of this benchmark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from measuring import Case, Turns, parse_arguments, report

from unspill import Limits, Policy, Sandbox
from unspill.layers.trees import remove_tree

SMALL = 1_000
SIZE_BAR = 1.2
CHANGES = 20_000
FIND_BAR = 2.5
FILES_PER_DIRECTORY = 25


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    large = 1_000_000 if arguments.full else 100_000
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unspill-benchmarks"
    state = Path(tempfile.mkdtemp(prefix="unspill-scan-", dir=Path.home()))
    os.environ["UNSPILL_STATE_DIR"] = str(state)
    try:
        cases = [measure_size(kept, large, arguments), measure_changes(kept, large)]
        report("scan", cases, arguments, [f"large project: {large} files"])
    finally:
        remove_tree(os.fsencode(state))


def measure_size(kept: Path, large: int, arguments: argparse.Namespace) -> Case:
    sandboxes = {size: Sandbox(make_tree(kept, size)) for size in (SMALL, large)}
    turns = Turns(seconds=30 if arguments.full else 12, rounds=300 if arguments.full else 100)

    def change_one(sandbox: Sandbox) -> Callable[[], None]:
        def change() -> None:
            result = sandbox.run(["sh", "-c", "echo more >> d0/d7/f3"], after="discard")
            assert len(result.changes) == 1, result.changes

        return change

    turns.run({str(size): change_one(sandbox) for size, sandbox in sandboxes.items()})
    return Case(
        f"run and scan of one change in {large} files, against {SMALL}",
        turns.median(str(large)),
        "ms",
        turns.median(str(SMALL)),
        SIZE_BAR,
        samples=turns.samples[str(large)],
    )


def measure_changes(kept: Path, large: int) -> Case:
    policy = Policy(limits=Limits(layer_entries=None, layer_bytes=None))
    sandbox = Sandbox(make_tree(kept, large), name="changes", policy=policy)
    # every fifth file of the tree, so that the changes lie in thousands of directories
    result = sandbox.run(
        f"find . -name 'f[05]' -o -name 'f1[05]' -o -name f20 | head -n {CHANGES} | xargs -d '\\n' sed -i '$a x'"
    )
    assert result.exit_code == 0, result.stderr
    upper = next(change.layer for change in result.changes if change.layer)
    turns = Turns(seconds=15, rounds=15)

    def find() -> None:
        command = ["find", os.fsdecode(upper), "-printf", "%y %m %s %T@ %C@ %i %p\\n"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def scan() -> None:
        assert len(sandbox.changes()) == len(result.changes)

    turns.run({"find": find, "scan": scan})
    count = len(result.changes)
    sandbox.discard()
    name = f"scan of {count} changes, against find -printf"
    return Case(name, turns.median("scan"), "ms", turns.median("find"), FIND_BAR, samples=turns.samples["scan"])


def make_tree(kept: Path, files: int) -> Path:
    """Return a tree of that many small files; made once, by renaming a finished one into place."""
    tree = kept / f"tree-{files}"
    if tree.exists():
        return tree
    making = kept / f"making-{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    for number in range(files // FILES_PER_DIRECTORY):
        directory = making / f"d{number // 100}" / f"d{number % 100}"
        directory.mkdir(parents=True)
        fd = os.open(directory, os.O_RDONLY)
        for name in range(FILES_PER_DIRECTORY):
            file = os.open(f"f{name}", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
            os.write(file, b"content\n")
            os.close(file)
        os.close(fd)
    making.rename(tree)
    return tree


if __name__ == "__main__":
    main()
