# SPDX-License-Identifier: Apache-2.0
"""Many sandboxes at once against as many bare bwraps: time until all are up, memory, throughput of several callers.

Each sandbox writes a file of its own and lists the project: it must see that one file and no other's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from baseline import BareBwrap
from measuring import Case, parse_arguments, report

from unspill import OutputChunk, Sandbox
from unspill.layers.trees import remove_tree

ALIVE = 500
UP_BAR = 1.4
MEMORY_BAR = 1.5
THROUGHPUT_BAR = 0.75
SCRIPT = 'echo "$0" > "own-$0"; ls; echo up; read -r _line'


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    directory = Path(tempfile.mkdtemp(prefix="unspill-load-", dir=Path.home()))
    project = directory / "project"
    project.mkdir()
    os.environ["UNSPILL_STATE_DIR"] = str(directory / "state")
    try:
        with Sandbox(project) as sandbox:
            cases = [*measure_alive(sandbox, arguments), *measure_throughput(sandbox, arguments)]
            report("load", cases, arguments)
    finally:
        remove_tree(os.fsencode(directory))


def measure_alive(sandbox: Sandbox, arguments: argparse.Namespace) -> list[Case]:
    bare = BareBwrap(sandbox.plan(["true"]), sandbox.facts)
    rounds = 4 if arguments.full else 2
    ours_s, bare_s, ours_kib, bare_kib = [], [], [], []
    for _ in range(rounds):
        seconds, kib = bare_alive(bare)
        bare_s.append(seconds)
        bare_kib.append(kib)
        seconds, kib = ours_alive(sandbox)
        ours_s.append(seconds)
        ours_kib.append(kib)
    return [
        Case(f"{ALIVE} sandboxes up", min(ours_s), "s", min(bare_s), UP_BAR, samples=ours_s),
        Case(f"memory (PSS) of {ALIVE}", min(ours_kib) / 1024, "MiB", min(bare_kib) / 1024, MEMORY_BAR),
        Case("sandboxes that saw another's file", 0, "", 1, 0.0),
    ]


def ours_alive(sandbox: Sandbox) -> tuple[float, float]:
    """Start all from one thread each, wait until every one is up, and look that none saw another's file."""
    before = pss_of_tree(os.getpid())
    up = threading.Semaphore(0)
    pipes = [os.pipe() for _ in range(ALIVE)]
    outputs: list[bytes] = [b""] * ALIVE

    def run(number: int) -> None:
        def listen(event: object) -> None:
            if isinstance(event, OutputChunk):
                outputs[number] += event.chunk
                if outputs[number].endswith(b"up\n"):
                    up.release()

        command = ["sh", "-c", SCRIPT, str(number)]
        sandbox.run(command, stdin=pipes[number][0], after="discard", on_event=listen)

    threading.stack_size(256 * 1024)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(ALIVE)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for _ in threads:
        assert up.acquire(timeout=60)
    seconds = time.monotonic() - begun
    kib = pss_of_tree(os.getpid()) - before
    for _reader, writer in pipes:
        os.close(writer)
    for thread in threads:
        thread.join()
    for reader, _writer in pipes:
        os.close(reader)
    for number, output in enumerate(outputs):
        assert output == b"own-%d\nup\n" % number, output
    return seconds, kib


def bare_alive(bare: BareBwrap) -> tuple[float, float]:
    """The same with bare bwraps; they write to the project itself, so they only say that they are up."""
    before = pss_of_tree(os.getpid())
    stdin_read, stdin_write = os.pipe()
    outputs = [os.pipe() for _ in range(ALIVE)]
    begun = time.monotonic()
    pids = []
    for _reader, writer in outputs:
        argv = (b"sh", b"-c", b"ls >/dev/null; echo up; read -r _line")
        pids.append(bare.start(argv, stdin=stdin_read, stdout=writer))
        os.close(writer)
    for reader, _writer in outputs:
        assert os.read(reader, 16) == b"up\n"
    seconds = time.monotonic() - begun
    kib = pss_of_tree(os.getpid()) - before
    os.close(stdin_write)
    os.close(stdin_read)
    for pid in pids:
        os.waitpid(pid, 0)
    for reader, _writer in outputs:
        os.close(reader)
    return seconds, kib


def measure_throughput(sandbox: Sandbox, arguments: argparse.Namespace) -> list[Case]:
    bare = BareBwrap(sandbox.plan(["true"]), sandbox.facts)
    slices, slice_s = (20, 1.0) if arguments.full else (5, 0.8)
    cases = []
    for callers in (2, 8):
        ours = base = 0
        for _ in range(slices):
            base += count_runs(callers, slice_s, bare.run)
            ours += count_runs(callers, slice_s, lambda: run_true(sandbox))
        seconds = slices * slice_s
        name = f"runs per second, {callers} callers"
        cases.append(Case(name, ours / seconds, "runs/s", base / seconds, THROUGHPUT_BAR, at_least=True))
    return cases


def run_true(sandbox: Sandbox) -> None:
    result = sandbox.run(["true"], after="discard")
    assert result.exit_code == 0, result


def count_runs(callers: int, seconds: float, run: Callable[[], None]) -> int:
    """Let several threads run for a while; count the runs that ended in that time."""
    counts = [0] * callers
    end = time.monotonic() + seconds

    def call(number: int) -> None:
        while time.monotonic() < end:
            run()
            counts[number] += time.monotonic() < end

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


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
    total, pending = 0.0, [root]
    while pending:
        pid = pending.pop()
        pending += children.get(pid, [])
        total += pss_of(pid)
    return total


def pss_of(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return float(line.split()[1])
    except OSError:
        return 0.0
    return 0.0


if __name__ == "__main__":
    main()
