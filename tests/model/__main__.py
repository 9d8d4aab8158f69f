# SPDX-License-Identifier: Apache-2.0
"""Plays a slice of random sequences, or makes what a record says failed small.

    python -m tests.model --mode files --seeds 0:2500 --seconds 7200 --record FILE
    python -m tests.model --shrink FILE

The same seed makes the same steps, as long as unspill does the same. With UNSPILL_TEST_FULL=1 the figures are recorded.
"""

import argparse
import json
import time
from pathlib import Path

from tests.figures import record_figure
from tests.model.driver import Case
from tests.model.shrink import Shrinker
from tests.model.slices import SliceRecord, machine, make_world, play_slice
from tests.prepared import started_by_copies
from unspill.runner.launcher import stop_launchers

MODES = ("files", "git", "background", "command line")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="files", choices=MODES)
    parser.add_argument("--seeds", default="0:100", help="from:to")
    parser.add_argument("--seconds", type=float, default=7200, help="stop after this time")
    parser.add_argument("--record", type=Path, default=Path("/dev/null"), help="go on where this file ends")
    parser.add_argument("--where", help="make projects and state below this directory")
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="make small what a record says failed")
    parser.add_argument("--rule", default="", help="of which rules; by default all")
    parser.add_argument("--each", type=int, default=1, help="how many of each rule")
    given = parser.parse_args()
    with started_by_copies():
        if given.shrink:
            shrink_record(given.shrink, given.rule, given.each, given.where)
        else:
            first, last = map(int, given.seeds.split(":"))
            play(given.record, range(first, last), given.mode, given.seconds, given.where)
        stop_launchers()


def play(file: Path, seeds: range, mode: str, seconds: float, where: str | None) -> None:
    record, begun = SliceRecord(file, mode), time.monotonic()
    for played in play_slice(record, seeds, mode, seconds, where):
        if played.failure is not None:
            print(f"seed {played.seed}: {str(played.failure)[:300]}", flush=True)
    different = len(record.different)
    record_figure(f"model, {mode}", f"{different} differences", record.told)
    print(f"{mode}: {different} differences; {record.told}; {time.monotonic() - begun:.0f} seconds", flush=True)


def shrink_record(file: Path, rule: str, each: int, where: str | None) -> None:
    """Print the shortest sequences of each rule as shell scripts."""
    cases: dict[str, list[dict[str, object]]] = {}
    for line in file.read_text().splitlines():
        case = json.loads(line)
        if rule in case.get("rule", ""):
            cases.setdefault(case.get("rule", ""), []).append(case)
    cases.pop("", None)
    for name, found in sorted(cases.items(), key=lambda one: -len(one[1])):
        print(f"\n## {name}: {len(found)} sequences", flush=True)
        for case in sorted(found, key=lambda one: len(one["played"]))[:each]:  # type: ignore[arg-type]
            with machine(where) as home:
                small = Shrinker(case["played"], name, Case(str(case["mode"]), home), make_world)  # type: ignore[arg-type]
                is_failing = small.shrink()
            print(f"\n### seed {case['seed']}, {case['mode']}\n")
            print(f"```sh\n{small.script}```\nseen: {small.failure}" if is_failing else "not seen again", flush=True)


if __name__ == "__main__":
    main()
