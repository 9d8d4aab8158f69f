# SPDX-License-Identifier: Apache-2.0
"""What a command in a live sandbox costs: against bare bwrap with the same plan, overlays as plain binds.

Cases: `true`, also with the profile `strict`; a command that changes nothing, and one that writes a file and is held
with a layer of its own; the start of a live sandbox up to the end of its first command. A checkpoint of 100 changes
with a server alive is measured against `cp -a` of these files, and plain runs that go on at once in one sandbox against
as many sandboxes.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from measuring import BareBwrap, Case, Options, Turns, fast, make_project, parse_options, report, scratch, timed

from unspill import Sandbox
from unspill.sandbox.checkpoints import Checkpoint
from unspill.sandbox.live import Live

WRITE = "echo x > f"
LOOK = "cat file"
HELD_MOST = 40
CASES = {
    "true": "true in a live sandbox",
    "strict": "true in a live sandbox, profile strict",
    "look": "a file read, nothing changed",
    "write": "a file written, with a layer of its own, held",
    "start": "a live sandbox until its first command has ended",
    "plain": "true in a sandbox of its own",
}
CHANGED = 100
AT_ONCE = 8
# Rewrites the files whenever it is told to
SERVER = f"while read word; do for i in $(seq {CHANGED}); do echo $word > f$i; done; echo written; done"


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
        ):
            busy, beside = Busy(directory, served), Beside(directory)
            measure(sandbox, live, strict_live, written, written_live, [busy, beside], options)
            busy.live.close()
            beside.close()


def measure(
    sandbox: Sandbox,
    live: Live,
    strict: Live,
    written: Sandbox,
    written_live: Live,
    more: list[Busy | Beside],
    options: Options,
) -> None:
    bare_bwrap = BareBwrap(sandbox.plan(["true"]), sandbox.facts)
    turns = Turns(seconds=options.pick(4, 25, 100), rounds=options.pick(24, 200, 1000))
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
            "look": lambda: look(live),
            "write": write,
            "start": start,
            "tidy": tidy,
            "plain": lambda: run_true(sandbox),
            **{type(one).__name__: one.turn for one in more},
        }
    )
    bare = turns.fast("bare")
    cases = [
        Case(words, turns.fast(name), "ms", bare, None, samples=turns.samples[name]) for name, words in CASES.items()
    ]
    plain = turns.fast("plain")
    cases.append(Case("true in a live sandbox, against one of its own", turns.fast("true"), "ms", plain, 0.6))
    cases += [case for one in more for case in one.cases()]
    report("live", cases, options, [f"bare {bare:.1f} ms"])


class Busy:
    """A live sandbox with a server that rewrites 100 files, and a directory with the same files for `cp`."""

    def __init__(self, directory: Path, sandbox: Sandbox) -> None:
        self.live = sandbox.live()
        self._server = self.live.start(SERVER, after="hold")
        self._offset = 0
        self._files, self._dest = directory / "files", directory / "dest"
        self._files.mkdir()
        for number in range(CHANGED):
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
        assert len(found[0].changes) >= CHANGED, found
        self._stood.append(found[0].standstill_s * 1000)
        self._copied.append(timed(lambda: subprocess.run(["cp", "-a", self._files, self._dest], check=True)))

    def cases(self) -> list[Case]:
        copied = fast(self._copied)
        return [
            Case("a checkpoint of 100 changes, against `cp -a`", fast(self._taken), "ms", copied, None),
            Case("how long all stood still for it, against `cp -a`", fast(self._stood), "ms", copied, None),
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


def look(live: Live) -> None:
    result = live.run(LOOK, after="hold")
    assert result.stdout.head == b"content\n", result


if __name__ == "__main__":
    main()
