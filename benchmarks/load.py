# SPDX-License-Identifier: Apache-2.0
"""Many sandboxes at once against as many bare bwraps: time until all are up, memory, throughput of several callers.

Each sandbox writes a file of its own and lists the project: it must see that one file and no other's. Where the limit
of open files leaves no room for all of them, there are fewer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from measuring import BareBwrap, Case, Options, allow_descriptors, fast, parse_options, pss_of_tree, report, scratch

from unspill import OutputChunk, Sandbox

ALIVE = 500
# The spawner needs the most of a run; besides, both ends need some for themselves and for runs that start and end
DESCRIPTORS_EACH, DESCRIPTORS_BESIDES = 6, 160
UP_BAR = 1.4
MEMORY_BAR = 1.5
THROUGHPUT_BAR = 0.62
SCRIPT = 'echo "$0" > "own-$0"; ls; echo up; read -r _line'


def main() -> None:
    options = parse_options(__doc__ or "")
    wanted = options.pick(60, ALIVE, ALIVE)
    room = allow_descriptors(DESCRIPTORS_BESIDES + DESCRIPTORS_EACH * wanted)
    alive = min(wanted, (room - DESCRIPTORS_BESIDES) // DESCRIPTORS_EACH)
    with scratch() as directory:
        project = directory / "project"
        project.mkdir()
        with Sandbox(project) as sandbox:
            cases = [*measure_alive(sandbox, alive, options), *measure_throughput(sandbox, options)]
    notes = [] if alive == wanted else [f"{alive} sandboxes, not {wanted}: a process may open {room} files"]
    report("load", cases, options, notes)


def measure_alive(sandbox: Sandbox, alive: int, options: Options) -> list[Case]:
    bare = BareBwrap(sandbox.plan(["true"]), sandbox.facts)
    ours_s, bare_s, ours_kib, bare_kib = [], [], [], []
    for _ in range(options.pick(2, 2, 4)):
        seconds, kib = bare_alive(bare, alive)
        bare_s.append(seconds)
        bare_kib.append(kib)
        seconds, kib = ours_alive(sandbox, alive)
        ours_s.append(seconds)
        ours_kib.append(kib)
    return [
        Case(f"{alive} sandboxes up", min(ours_s), "s", min(bare_s), UP_BAR, samples=ours_s),
        Case(f"memory (PSS) of {alive}", min(ours_kib) / 1024, "MiB", min(bare_kib) / 1024, MEMORY_BAR),
    ]


def ours_alive(sandbox: Sandbox, alive: int) -> tuple[float, float]:
    """Start all from one thread each, wait until every one is up, and look that none saw another's file."""
    before = pss_of_tree(os.getpid())
    up = threading.Semaphore(0)
    stdin_read, stdin_write = os.pipe()
    outputs: list[bytes] = [b""] * alive
    failed: list[BaseException] = []

    def run(number: int) -> None:
        def listen(event: object) -> None:
            if isinstance(event, OutputChunk):
                outputs[number] += event.chunk
                if outputs[number].endswith(b"up\n"):
                    up.release()

        try:
            sandbox.run(["sh", "-c", SCRIPT, str(number)], stdin=stdin_read, after="discard", on_event=listen)
        except BaseException as error:
            failed.append(error)
            up.release()

    threading.stack_size(256 * 1024)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(alive)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for _ in threads:
        assert up.acquire(timeout=60)
    seconds = time.monotonic() - begun
    kib = pss_of_tree(os.getpid()) - before
    os.close(stdin_write)
    for thread in threads:
        thread.join()
    os.close(stdin_read)
    if failed:
        raise failed[0]
    for number, output in enumerate(outputs):
        assert output == b"own-%d\nup\n" % number, output
    return seconds, kib


def bare_alive(bare: BareBwrap, alive: int) -> tuple[float, float]:
    """The same with bare bwraps; they write to the project itself, so they only say that they are up."""
    before = pss_of_tree(os.getpid())
    stdin_read, stdin_write = os.pipe()
    outputs = []
    begun = time.monotonic()
    pids = []
    for _ in range(alive):
        reader, writer = os.pipe()
        argv = (b"sh", b"-c", b"ls >/dev/null; echo up; read -r _line")
        pids.append(bare.start(argv, stdin=stdin_read, stdout=writer))
        os.close(writer)
        outputs.append(reader)
    for reader in outputs:
        assert os.read(reader, 16) == b"up\n"
    seconds = time.monotonic() - begun
    kib = pss_of_tree(os.getpid()) - before
    os.close(stdin_write)
    os.close(stdin_read)
    for pid in pids:
        os.waitpid(pid, 0)
    for reader in outputs:
        os.close(reader)
    return seconds, kib


def measure_throughput(sandbox: Sandbox, options: Options) -> list[Case]:
    bare = BareBwrap(sandbox.plan(["true"]), sandbox.facts)
    slices, slice_s = options.pick((4, 0.5), (8, 0.8), (24, 1.0))
    # A disk that stands still for seconds outlasts all slices of the short form: then it has as many more
    attempts = options.pick(5, 1, 1)
    cases = []
    for callers in (2, 8):
        rates: dict[str, list[float]] = {"bare": [], "ours": []}
        made = limit = 0.0
        for _ in range(attempts):
            for _ in range(slices):
                rates["bare"].append(count_runs(callers, slice_s, bare.run) / slice_s)
                rates["ours"].append(count_runs(callers, slice_s, lambda: run_true(sandbox)) / slice_s)
            made, limit = (fast(rates[name], is_rate=True) for name in ("ours", "bare"))
            if made * options.tolerance() >= THROUGHPUT_BAR * limit:
                break
        words = f"runs per second, {callers} callers"
        cases.append(Case(words, made, "runs/s", limit, THROUGHPUT_BAR, at_least=True, samples=rates["ours"]))
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


if __name__ == "__main__":
    main()
