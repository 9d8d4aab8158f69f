# SPDX-License-Identifier: Apache-2.0
"""Which runs are those of the file verbs, told by the very text of their scripts: nothing else can pass for one.

Each verb is a run, so a log of all runs would be one of every look at a file.
"""

from __future__ import annotations

from unspill.policy.paths import show
from unspill.sandbox.files_inside import beginning_of
from unspill.sandbox.files_reading import READING
from unspill.sandbox.files_tree import CHANGING, LOOKING
from unspill.sandbox.files_writing import WRITING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.run import Run
    from unspill.sandbox.sandbox import Sandbox

_READS = {beginning_of(*verb, is_reading=True): verb[0] for verb in (*READING, *LOOKING.values())}
_VERBS = {**_READS, **{beginning_of(*verb, is_reading=False): verb[0] for verb in (WRITING, *CHANGING.values())}}


def runs_but_reads(sandbox: Sandbox, limit: int) -> tuple[tuple[Run, ...], int]:
    """Return the latest runs that are more than a look at a file, the youngest first, and how many are no more."""
    runs, row = sandbox._project.store.runs, sandbox._project.row.id
    return runs.latest(row, limit, but=_READS), sum(runs.count(row, beginning) for beginning in _READS)


def verb_of(run: Run) -> str | None:
    """Return what a file verb did, as `read PATH`; None for any other run."""
    words = b"\0".join(run.argv)
    for beginning, name in _VERBS.items():
        if words.startswith(beginning):
            return f"{name} {show(words[len(beginning) :].partition(bytes(1))[0])}"
    return None
