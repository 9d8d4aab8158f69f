# SPDX-License-Identifier: Apache-2.0
"""What a command in a live sandbox costs: against bare bwrap with the same plan, overlays as plain binds.

Cases: a command that changes nothing, one that writes a file and is held with a layer of its own, both also with the
profile `strict`; the start of a live sandbox up to the end of its first command.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from measuring import BareBwrap, Case, Options, Turns, make_project, parse_options, report, scratch

from unspill import Sandbox
from unspill.sandbox.sandbox import Live

WRITE = "echo x > f"
HELD_MOST = 40


def main() -> None:
    options = parse_options(__doc__ or "")
    with scratch(Path(tempfile.gettempdir())) as directory, Sandbox(make_project(directory, "project")) as sandbox:
        strict_policy = sandbox.policy.replace(profile="strict")
        with (
            Sandbox(make_project(directory, "strict"), policy=strict_policy) as strict,
            sandbox.live() as live,
            strict.live() as strict_live,
        ):
            measure(sandbox, live, strict_live, options)


def measure(sandbox: Sandbox, live: Live, strict: Live, options: Options) -> None:
    bare_bwrap = BareBwrap(sandbox.plan(["true"]), sandbox.facts)
    turns = Turns(seconds=options.pick(4, 25, 100), rounds=options.pick(24, 200, 1000))
    held = 0

    def write() -> None:
        nonlocal held
        held += 1
        if held > HELD_MOST:
            sandbox.discard()
            held = 1
        assert live.run(WRITE, after="hold").changes

    turns.run(
        {
            "bare": bare_bwrap.run,
            "true": lambda: run_true(live),
            "strict": lambda: run_true(strict),
            "write": write,
            "plain": lambda: run_true(sandbox),
            "start": lambda: start(sandbox),
        }
    )
    bare = turns.fast("bare")
    cases = [
        Case(words, turns.fast(name), "ms", bare, bar, samples=turns.samples[name])
        for name, words, bar in (
            ("true", "true in a live sandbox", None),
            ("strict", "true in a live sandbox, profile strict", None),
            ("write", "a file written, with a layer of its own, held", None),
            ("start", "a live sandbox until its first command has ended", None),
            ("plain", "true in a sandbox of its own", None),
        )
    ]
    report("live", cases, options, [f"bare {bare:.1f} ms"])


def run_true(where: Live | Sandbox) -> None:
    result = where.run(["true"], after="hold")
    assert result.exit_code == 0, result


def start(sandbox: Sandbox) -> None:
    with sandbox.live() as live:
        run_true(live)


if __name__ == "__main__":
    main()
