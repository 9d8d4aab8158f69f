# SPDX-License-Identifier: Apache-2.0
"""What knowing the changes costs: it must follow the change, not the project.

A run that changes one file in a large project against the same in a small one, and reading many changes against
`find -printf` over the same layer. The trees are kept between runs of this benchmark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from measuring import Case, Options, Turns, kept_directory, parse_options, report, scratch

from unspill import Limits, Policy, Sandbox

SMALL = 1_000
SIZE_BAR = 1.2
FIND_BAR = 3.5
FILES_PER_DIRECTORY = 25
POLICY = Policy(limits=Limits(layer_entries=None, layer_bytes=None))


def main() -> None:
    options = parse_options(__doc__ or "")
    large = options.pick(10_000, 100_000, 1_000_000)
    with scratch():
        cases = [measure_size(large, options), measure_changes(large, options)]
    report("scan", cases, options, [f"large project: {large} files"])


def measure_size(large: int, options: Options) -> Case:
    sandboxes = {size: Sandbox(make_tree(size)) for size in (SMALL, large)}
    turns = Turns(seconds=options.pick(2, 12, 30), rounds=options.pick(40, 100, 300))

    def change_one(sandbox: Sandbox) -> Callable[[], None]:
        def change() -> None:
            result = sandbox.run(["sh", "-c", "echo more >> d0/d7/f3"], after="discard")
            assert len(result.changes) == 1, result.changes

        return change

    turns.run({str(size): change_one(sandbox) for size, sandbox in sandboxes.items()})
    for sandbox in sandboxes.values():
        sandbox.close()
    name, few = str(large), str(SMALL)
    words = f"run and scan of one change in {large} files, against {SMALL}"
    return Case(words, turns.fast(name), "ms", turns.fast(few), SIZE_BAR, samples=turns.samples[name])


def measure_changes(large: int, options: Options) -> Case:
    """Read the changes of a run that are held: what is applied is moved out of its layer."""
    turns = Turns(seconds=options.pick(3, 12, 40), rounds=options.pick(12, 15, 40))
    with Sandbox(make_tree(large), name="changes", policy=POLICY) as sandbox:
        # A fifth of all files, in all of the directories
        result = sandbox.run(
            "find . -name 'f[05]' -o -name 'f1[05]' -o -name f20 | xargs -d '\\n' sed -i '$a x'", after="hold"
        )
        assert result.exit_code == 0, result.stderr
        count = len(result.changes)
        assert count >= large // 5, count
        upper = os.fsdecode(next(change.layer for change in result.changes if change.layer))

        def find() -> None:
            command = ["find", upper, "-printf", "%y %m %s %T@ %C@ %i %p\\n"]
            lines = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.count(b"\n")
            assert lines > count, lines

        def scan() -> None:
            assert len(sandbox.changes()) == count

        turns.run({"find": find, "scan": scan})
        sandbox.discard()
    words = f"scan of {count} changes, against find -printf"
    return Case(words, turns.fast("scan"), "ms", turns.fast("find"), FIND_BAR, samples=turns.samples["scan"])


def make_tree(files: int) -> Path:
    """Return a tree of that many small files; made once, by renaming a finished one into place."""
    kept = kept_directory()
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
    try:
        making.rename(tree)
    except OSError:
        # Another benchmark has made it meanwhile
        shutil.rmtree(making)
    return tree


if __name__ == "__main__":
    main()
