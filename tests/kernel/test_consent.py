# SPDX-License-Identifier: Apache-2.0
"""What a person lets in is what they saw: reviews and hostile runs interleaved, bytes shown against bytes applied."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.kernel.consent_reviewer import Reviewer, Seen
from unspill.errors import UsageError
from unspill.model.change import Hunks, Selection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Ground
    from unspill import Sandbox

pytestmark = pytest.mark.kernel

BASE = "".join(f"{number}\n" for number in range(40))
# What a hostile run does while the person reads
RUNS = (
    "echo 'export A=1' > .envrc",
    "echo 'export A=2' > .envrc",
    "echo 'evil' >> .envrc",
    "rm -f .envrc; printf 'export A=1\\nevil\\n' > .envrc",
    "rm -f .envrc; ln -s /etc/passwd .envrc",
    "rm -f .envrc; echo 'export A=1' > .envrc; chmod 755 .envrc",
    "sed -i 's/^2$/two/; s/^30$/thirty/' text",
    "sed -i 's/^2$/evil/; s/^two$/2/' text",
    "sed -i '1i first' text",
    "sed -i 's/^15$/fifteen/' text",
)
STEPS = (
    "run",
    "run",
    "run",
    "run",
    "run",
    "diff",
    "diff",
    "pipe",
    "summary",
    "token",
    "token",
    "bare",
    "race",
    "hunk",
    "hunk",
    "hunk race",
)


@dataclass
class Tally:
    """How many applies were of what was shown, of something else, or did not happen."""

    same: int = 0
    differ: list[str] = field(default_factory=list)
    refused: int = 0

    def note(self, what: str, shown: object, applied: object) -> None:
        if applied is None:
            self.refused += 1
        elif shown == applied:
            self.same += 1
        else:
            self.differ.append(f"{what}: shown {shown!r}, applied {applied!r}")


class Table:
    """One project, one sandbox, one reviewer; put in order again for each interleaving."""

    def __init__(self, ground: Ground, reviewer: Reviewer) -> None:
        self._project = ground.project
        self._sandbox: Sandbox = ground.sandbox()
        self._reviewer = reviewer
        self._tally = Tally()
        # What the terminal has ever shown, by the token that it printed with it
        self._shown: dict[str, bytes | None] = {}

    def play(self, seed: int, *, by_name: bool) -> Tally:
        """Play one interleaving; in the control arm consent is by name, as it was before."""
        self._tidy()
        chance = random.Random(seed)
        self._tally = Tally()
        # What was printed last of each kind, whether or not anybody could read it
        self._last: dict[str, Seen] = {}
        self._run(chance.choice(RUNS[:2]))
        self._run(RUNS[6])
        for _ in range(chance.randint(4, 8)):
            step = chance.choice(STEPS)
            if step == "run":
                self._run(chance.choice(RUNS))
            elif step in ("diff", "pipe"):
                self._look(on_terminal=step == "diff")
            elif step == "summary":
                self._last["summary"] = self._reviewer.types("apply", "--glob", ".envr?", on_terminal=False)
            elif by_name:
                self._apply_by_name(step)
            elif step.startswith("hunk"):
                self._apply_hunk(chance.choice(RUNS) if "race" in step else "")
            elif step == "token":
                self._apply_by_token()
            else:
                self._apply_bare(chance.choice(RUNS) if step == "race" else "")
        return self._tally

    def _tidy(self) -> None:
        self._sandbox.discard()
        (self._project / ".envrc").unlink(missing_ok=True)
        (self._project / "text").write_text(BASE)

    def _run(self, script: str) -> None:
        self._sandbox.run(f"touch .envrc; {script}")

    def _look(self, *, on_terminal: bool) -> None:
        seen = self._reviewer.types("diff", on_terminal=on_terminal)
        assert seen.code == 0, seen
        self._last["terminal" if on_terminal else "pipe"] = seen
        self._last["any"] = seen
        if on_terminal and (token := seen.token(".envrc")) is not None:
            self._shown[token] = seen.content(".envrc")

    def _apply_by_token(self) -> None:
        """Paste the token that was printed last, wherever, on a terminal or not; nobody answers a question."""
        for seen in filter(None, (self._last.get("summary"), self._last.get("terminal"))):
            token = seen.token(".envrc")
            if token is not None:
                self._reviewer.types("apply", "--include", f".envrc@{token}", on_terminal=False)
                # One out of a summary is worth something only if the same was on the terminal
                self._judge("token", self._shown.get(token))

    def _apply_bare(self, meanwhile: str) -> None:
        refused = self._reviewer.types("apply", "--include", ".envrc", on_terminal=False)
        assert refused.code in (2, 4, 6), refused
        self._judge("no terminal", None)
        seen = self._reviewer.types("apply", "--include", ".envrc", meanwhile=lambda: self._race(meanwhile))
        self._judge("asked", seen.content(".envrc"))

    def _apply_hunk(self, meanwhile: str) -> None:
        terminal = self._last.get("terminal")
        token = terminal.hunk_token("text") if terminal is not None else None
        if terminal is not None and token is not None:
            seen, options = terminal, (f"text:1@{token}",)
            self._race(meanwhile)
            self._reviewer.types("apply", "--hunk", *options, on_terminal=False)
        else:
            seen = self._reviewer.types("apply", "--hunk", "text:1", meanwhile=lambda: self._race(meanwhile))
        self._judge_hunk(seen)

    def _apply_by_name(self, step: str) -> None:
        """Apply what is there by the name that was read."""
        seen = self._last.get("any")
        if seen is None:
            return
        # Either may be gone by now
        with suppress(UsageError):
            if step.startswith("hunk"):
                self._sandbox.apply(Selection(hunks=(Hunks(path=b"text", numbers=(1,)),)))
                self._judge_hunk(seen)
            else:
                self._sandbox.apply(Selection(paths=(b".envrc",), included=(b".envrc",)))
                self._judge("by name", seen.content(".envrc"))

    def _race(self, script: str) -> None:
        if script:
            self._run(script)

    def _judge(self, what: str, shown: bytes | None) -> None:
        live = self._project / ".envrc"
        applied = None
        if live.is_symlink():
            applied = b"-> " + os.fsencode(live.readlink())
        elif live.exists():
            applied = live.read_bytes()
        self._tally.note(what, shown, applied)
        live.unlink(missing_ok=True)

    def _judge_hunk(self, seen: Seen) -> None:
        live = self._project / "text"
        applied = live.read_text()
        hunk = seen.hunks("text").get(1)
        self._tally.note("hunk", hunk and hunk.applied_to(BASE), None if applied == BASE else applied)
        if applied != BASE:
            self._tidy()


@pytest.fixture(name="table")
def laid(ground: Ground) -> Iterator[Table]:
    """A table for interleavings."""
    ground.write("text", BASE)
    with Reviewer(ground.project, ground.top / "pipe") as reviewer:
        yield Table(ground, reviewer)


def total(tallies: list[Tally]) -> Tally:
    return Tally(
        same=sum(tally.same for tally in tallies),
        differ=[one for tally in tallies for one in tally.differ],
        refused=sum(tally.refused for tally in tallies),
    )


@pytest.mark.timeout(1800)
def test_nothing_is_let_in_but_what_was_shown_on_the_terminal(table: Table, full: bool) -> None:
    count = 500 if full else 40
    found = total([table.play(seed, by_name=False) for seed in range(count)])
    assert found.differ == []
    # Else it would show nothing: both have happened often
    assert found.same >= count / 4
    assert found.refused >= count / 4


def test_control_consent_by_name_lets_in_what_nobody_has_seen(table: Table) -> None:
    found = total([table.play(seed, by_name=True) for seed in range(30)])
    assert len(found.differ) >= 3
