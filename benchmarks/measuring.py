# SPDX-License-Identifier: Apache-2.0
"""Interleaved measurements and the one JSON line every benchmark ends with.

The machine is never quiet: cases are measured in turns within one run and only their ratios are judged.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One judged figure: `value` against `baseline`, at most (or, with `at_least`, at least) `bar` times it.

    Without a baseline, because what it is measured with is not installed, there is no judgement either.
    """

    case: str
    value: float
    unit: str
    baseline: float | None
    bar: float | None
    at_least: bool = False
    samples: Sequence[float] = ()

    @property
    def ratio(self) -> float | None:
        if self.baseline is None:
            return None
        return self.value / self.baseline if self.baseline else float("inf")

    @property
    def ok(self) -> bool | None:
        if self.ratio is None:
            return None
        if self.bar is None:
            return True
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar

    def to_json(self, with_samples: bool) -> dict[str, Any]:
        row: dict[str, Any] = {
            "case": self.case,
            "value": round(self.value, 4),
            "unit": self.unit,
            "baseline": None if self.baseline is None else round(self.baseline, 4),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "bar": self.bar,
            "ok": self.ok,
        }
        if with_samples:
            row["samples"] = [round(sample, 4) for sample in self.samples]
        return row


@dataclass
class Turns:
    """Runs several things in turns until a time or a number of rounds is reached.

    Every other round goes backwards: what one leaves to be done is not always paid for by the same other.
    """

    seconds: float
    rounds: int
    samples: dict[str, list[float]] = field(default_factory=dict)

    def run(self, things: dict[str, Callable[[], None]]) -> None:
        for name, thing in things.items():
            thing()
            self.samples.setdefault(name, [])
        end = time.monotonic() + self.seconds
        for number in range(self.rounds):
            for name, thing in list(things.items())[:: -1 if number % 2 else 1]:
                begun = time.perf_counter()
                thing()
                self.samples[name].append((time.perf_counter() - begun) * 1000)
            if time.monotonic() > end:
                break

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])


def parse_arguments(description: str) -> argparse.Namespace:
    """Return the options every benchmark has."""
    return make_parser(description).parse_args()


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options every benchmark has, for those that have further ones."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    parser.add_argument("--samples", action="store_true", help="with the raw samples")
    parser.add_argument("--full", action="store_true", help="larger and longer")
    return parser


def report(name: str, cases: Sequence[Case], arguments: argparse.Namespace, notes: Sequence[str] = ()) -> None:
    """Print a table for people, unless only JSON is wanted, and the JSON line last."""
    if not arguments.json:
        for case in cases:
            verdict = {True: "ok", False: "MISSED", None: "not judged"}[case.ok]
            bar = "" if case.bar is None else f"bar {case.bar:g} {verdict}"
            ratio = "-" if case.ratio is None else f"{case.ratio:.2f}x"
            print(f"{case.case:<56}{case.value:>10.2f} {case.unit:<8}{ratio:>8}  {bar}")
        for note in notes:
            print(note)
    rows = [case.to_json(arguments.samples) for case in cases]
    print(json.dumps({"name": name, "cases": rows, "notes": list(notes)}))
