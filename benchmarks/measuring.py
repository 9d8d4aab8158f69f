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
    """One judged figure: `value` against `baseline`, at most (or, with `at_least`, at least) `bar` times it."""

    case: str
    value: float
    unit: str
    baseline: float
    bar: float | None
    at_least: bool = False
    samples: Sequence[float] = ()

    @property
    def ratio(self) -> float:
        return self.value / self.baseline if self.baseline else float("inf")

    @property
    def ok(self) -> bool:
        if self.bar is None:
            return True
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar

    def to_json(self, with_samples: bool) -> dict[str, Any]:
        row: dict[str, Any] = {
            "case": self.case,
            "value": round(self.value, 4),
            "unit": self.unit,
            "baseline": round(self.baseline, 4),
            "ratio": round(self.ratio, 3),
            "bar": self.bar,
            "ok": self.ok,
        }
        if with_samples:
            row["samples"] = [round(sample, 4) for sample in self.samples]
        return row


@dataclass
class Turns:
    """Runs several things in turns until a time or a number of rounds is reached."""

    seconds: float
    rounds: int
    samples: dict[str, list[float]] = field(default_factory=dict)

    def run(self, things: dict[str, Callable[[], None]]) -> None:
        for name, thing in things.items():
            thing()
            self.samples.setdefault(name, [])
        end = time.monotonic() + self.seconds
        for _ in range(self.rounds):
            for name, thing in things.items():
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
            bar = "" if case.bar is None else f"bar {case.bar:g} {'ok' if case.ok else 'MISSED'}"
            print(f"{case.case:<52}{case.value:>10.2f} {case.unit:<8}{case.ratio:>7.2f}x  {bar}")
        for note in notes:
            print(note)
    rows = [case.to_json(arguments.samples) for case in cases]
    print(json.dumps({"name": name, "cases": rows, "notes": list(notes)}))
