# SPDX-License-Identifier: Apache-2.0
"""What a command in a live sandbox costs: against bare bwrap with the same plan, overlays as plain binds.

Cases: `true`, also with the profile `strict`, and without any record or look at the project, which is what the door and
the watch over a command cost by themselves; a command that changes nothing, and one that writes a file and is held
with a layer of its own; the start of a live sandbox up to the end of its first command, and the memory of many of them.
Checkpoints of 100 and of 5,000 changes with a server alive are measured against `cp -a` of these files, and plain runs
that go on at once in one sandbox against as many sandboxes. A command that joins others has everything looked up anew,
so that it sees what the person has edited: it is measured against one for which nobody does that.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from measuring import (
    BareBwrap,
    Case,
    Options,
    Turns,
    fast,
    make_project,
    parse_options,
    pss_of_tree,
    report,
    scratch,
    timed,
)

from unspill import Sandbox
from unspill.model.run import Exited
from unspill.runner.perform import perform
from unspill.sandbox.checkpoints import Checkpoint
from unspill.sandbox.live import Live
from unspill.sandbox.running import make_control

WRITE = "echo x > f"
# By the shell itself: another process would cost as much again, in whatever sandbox
LOOK = "read line < file; echo $line"
HELD_MOST = 40
# Each with its bar, and what it has reached so far
CASES: dict[str, tuple[str, float | None, float | None]] = {
    "true": ("true in a live sandbox", 0.20, 0.6),
    "strict": ("true in a live sandbox, profile strict", 0.20, 0.6),
    "door": ("true in a live sandbox, nothing recorded", 0.35, None),
    "look": ("a file read, nothing changed", 0.25, 0.8),
    "write": ("a file written, with a layer of its own, held", 0.65, 1.3),
    "start": ("a live sandbox until its first command has ended", 1.7, 2.6),
    "plain": ("true in a sandbox of its own", None, None),
}
CHANGED, MANY_CHANGED = 100, 5000
AT_ONCE = 8
CACHED = 20_000
MEMORY_BAR_MIB = 1.6


def main() -> None:
    options = parse_options(__doc__ or "")
    with scratch(Path(tempfile.gettempdir())) as directory, Sandbox(make_project(directory, "project")) as sandbox:
        strict_policy = sandbox.policy.replace(profile="strict")
        with (
            Sandbox(make_project(directory, "strict"), policy=strict_policy) as strict,
            # What is held in one is seen by all runs of it
            Sandbox(make_project(directory, "written")) as written,
            sandbox.live() as live,
            strict.live() as strict_live,
            written.live() as written_live,
            Sandbox(make_project(directory, "busy")) as served,
            Sandbox(make_project(directory, "busier")) as busier,
        ):
            busy, beside = Busy(directory, served, CHANGED), Beside(directory)
            many = Busy(directory, busier, MANY_CHANGED)
            for _ in range(options.pick(1, 2, 10)):
                many.turn()
            joined = joining(directory, options)
            more = [*many.cases(None, (0.3, None)), *joined, memory(sandbox, options.pick(10, 40, 200))]
            many.live.close()
            measure(sandbox, live, strict_live, written, written_live, busy, beside, more, options)
            busy.live.close()
            beside.close()


def measure(
    sandbox: Sandbox,
    live: Live,
    strict: Live,
    written: Sandbox,
    written_live: Live,
    busy: Busy,
    beside: Beside,
    more: list[Case],
    options: Options,
) -> None:
    bare_bwrap = BareBwrap(sandbox.plan(["true"]), sandbox.facts)
    turns = Turns(seconds=options.pick(4, 20, 100), rounds=options.pick(24, 200, 1000))
    held = 0
    started: list[Live] = []

    def write() -> None:
        nonlocal held
        held += 1
        assert written_live.run(WRITE, after="hold").changes

    def start() -> None:
        started.append(sandbox.live())
        run_true(started[-1])

    def tidy() -> None:
        """Do what nobody waits for: it is no part of any case."""
        nonlocal held
        if held > HELD_MOST:
            written.discard()
            held = 0
        while started:
            started.pop().close()

    turns.run(
        {
            "bare": bare_bwrap.run,
            "true": lambda: run_true(live),
            "strict": lambda: run_true(strict),
            "door": lambda: run_unrecorded(live),
            "look": lambda: look(live),
            "write": write,
            "start": start,
            "tidy": tidy,
            "plain": lambda: run_true(sandbox),
            "busy": busy.turn,
            "beside": beside.turn,
        }
    )
    bare = turns.fast("bare")
    cases = [
        Case(words, turns.fast(name), "ms", bare, bar, samples=turns.samples[name], reached=reached)
        for name, (words, bar, reached) in CASES.items()
    ]
    plain = turns.fast("plain")
    cases.append(Case("true in a live sandbox, against one of its own", turns.fast("true"), "ms", plain, 0.6))
    cases += [*busy.cases((1.0, 3.0), (0.5, None)), *more, *beside.cases()]
    report("live", cases, options, [f"bare {bare:.1f} ms"])


class Busy:
    """A live sandbox with a server that rewrites so many files, and a directory with the same files for `cp`."""

    def __init__(self, directory: Path, sandbox: Sandbox, changed: int) -> None:
        self.live = sandbox.live()
        self._changed = changed
        # Whenever it is told to
        server = f"while read word; do for i in $(seq {changed}); do echo $word > f$i; done; echo written; done"
        self._server = self.live.start(server, after="hold")
        self._offset = 0
        self._files, self._dest = directory / f"files-{changed}", directory / f"dest-{changed}"
        self._files.mkdir()
        for number in range(changed):
            (self._files / f"f{number}").write_text("word\n")
        self._taken: list[float] = []
        self._stood: list[float] = []
        self._copied: list[float] = []

    def turn(self) -> None:
        """Have all files written anew, take a checkpoint of that, and copy as many; only the last two are timed."""
        shutil.rmtree(self._dest, ignore_errors=True)
        self._server.write(b"word\n")
        _text, self._offset, _lost = self._server.output(self._offset, timeout=20)
        found: list[Checkpoint] = []
        self._taken.append(timed(lambda: found.append(self.live.checkpoint())))
        assert len(found[0].changes) >= self._changed, found
        self._stood.append(found[0].standstill_s * 1000)
        self._copied.append(timed(lambda: subprocess.run(["cp", "-a", self._files, self._dest], check=True)))

    def cases(self, taken: tuple[float, float | None] | None, stood: tuple[float, float | None]) -> list[Case]:
        """Return both with their bars, and what they have reached; a checkpoint without a bar is only told."""
        copied = fast(self._copied)
        bar, reached = taken or (None, None)
        words = f"{self._changed} changes, against `cp -a`"
        return [
            Case(f"a checkpoint of {words}", fast(self._taken), "ms", copied, bar, reached=reached),
            Case(f"standstill for {words}", fast(self._stood), "ms", copied, stood[0], reached=stood[1]),
        ]


def memory(sandbox: Sandbox, count: int) -> Case:
    """Return what each of so many live sandboxes takes (PSS): its processes, and what the caller has of it."""
    before = pss_of_tree(os.getpid())
    started = [sandbox.live() for _ in range(count)]
    try:
        for live in started:
            run_true(live)
        each = (pss_of_tree(os.getpid()) - before) / 1024 / count
    finally:
        for live in started:
            live.close()
    words = f"memory (PSS) of each of {count} live sandboxes, in MiB"
    return Case(words, each, "MiB", 1.0, MEMORY_BAR_MIB, reached=2.2)


class Joining:
    """A live sandbox with something alive that looks up many names when it is told to, and commands that join it."""

    def __init__(self, sandbox: Sandbox, *, is_refreshed: bool) -> None:
        self.live = sandbox.live()
        if not is_refreshed:
            self.live._live.watch(())
            self.live._live._refresh = lambda: None  # type: ignore[method-assign]
        walk = "while read word; do find many -newer file > /dev/null; echo walked; done"
        self._walker = self.live.start(walk, after="hold")
        self._offset = 0

    def walk(self) -> None:
        self._walker.write(b"word\n")
        _text, self._offset, _lost = self._walker.output(self._offset, timeout=20)

    def join(self) -> float:
        return timed(lambda: run_true(self.live))


def joining(directory: Path, options: Options) -> list[Case]:
    """Return what it costs to join others, with few names cached and with many."""
    project = make_project(directory, "joined")
    (project / "many").mkdir()
    for number in range(CACHED):
        (project / "many" / str(number)).touch()
    with Sandbox(project) as one, Sandbox(project, name="other") as other:
        arms = {"refreshed": Joining(one, is_refreshed=True), "not": Joining(other, is_refreshed=False)}
        few: dict[str, list[float]] = {name: [] for name in arms}
        many: dict[str, list[float]] = {name: [] for name in arms}
        for number in range(options.pick(20, 100, 400)):
            for name, arm in arms.items():
                few[name].append(arm.join())
                if number % 4 == 0:
                    arm.walk()
                    many[name].append(arm.join())
                    # The next one has few names again
                    arm.join()
        for arm in arms.values():
            arm.live.close()
    words = "a command that joins others, against one for which nothing is looked up anew"
    return [
        Case(words, fast(few["refreshed"]), "ms", fast(few["not"]), 1.1),
        # The kernel takes longer for each name that it drops than the rest of a join takes
        Case(f"{words}, {CACHED:,} names cached", fast(many["refreshed"]), "ms", fast(many["not"]), 3.0, reached=6.5),
    ]


class Beside:
    """Runs of one project that go on at once: all in one sandbox, or each in one of its own."""

    def __init__(self, directory: Path) -> None:
        project = make_project(directory, "one")
        self._one = Sandbox(project)
        self._many = [Sandbox(project, name=f"s{number}") for number in range(AT_ONCE)]
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._samples: dict[str, list[float]] = {"hold one": [], "hold many": [], "apply one": [], "apply many": []}

    def turn(self) -> None:
        for name, samples in self._samples.items():
            after: Literal["hold", "apply"] = "hold" if name.startswith("hold") else "apply"
            sandboxes = [self._one] * AT_ONCE if name.endswith("one") else self._many
            samples.append(timed(functools.partial(self._run_all, sandboxes, after)))
            for sandbox in dict.fromkeys(sandboxes):
                sandbox.discard()

    def _run_all(self, sandboxes: list[Sandbox], after: Literal["hold", "apply"]) -> None:
        def run(number: int) -> None:
            assert sandboxes[number].run(f"date +%N > f{number}", after=after).ok

        list(self._pool.map(run, range(AT_ONCE)))

    def cases(self) -> list[Case]:
        found = {name: fast(samples) for name, samples in self._samples.items()}
        return [
            Case(
                f"{AT_ONCE} runs at once in one sandbox, {after}",
                found[f"{after} one"],
                "ms",
                found[f"{after} many"],
                1.11,
            )
            for after in ("hold", "apply")
        ]

    def close(self) -> None:
        self._pool.shutdown()
        for sandbox in (self._one, *self._many):
            sandbox.close()


def run_true(where: Live | Sandbox) -> None:
    result = where.run(["true"], after="hold")
    assert result.exit_code == 0, result


def run_unrecorded(live: Live) -> None:
    """Run `true` over the layers that the last command of a sandbox has left, and keep no record of it."""
    span = live._span
    assert span is not None, "nothing has run in it"
    project = live._project
    control = make_control(project, span.spec, span.under_way.run.id, None)
    plan = span.plan.replace(argv=(b"true",))
    assert perform(plan, project.means.facts, control, live._live).outcome == Exited(code=0)
    live._live.prepare(plan)


def look(live: Live) -> None:
    result = live.run(LOOK, after="hold")
    assert result.stdout.head == b"content\n", result


if __name__ == "__main__":
    main()
