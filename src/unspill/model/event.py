# SPDX-License-Identifier: Apache-2.0
"""What a caller may see while a run goes on."""

from __future__ import annotations

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import RunId
    from unspill.model.run import Outcome, StreamName


class Started(Record):
    """The command is about to be let go; all limits are set."""

    run: RunId


class OutputChunk(Record):
    """Bytes as they arrived; a character may be split between two chunks."""

    stream: StreamName
    chunk: bytes


class Ended(Record):
    """Every process of the run is dead."""

    run: RunId
    outcome: Outcome


if TYPE_CHECKING:
    Event = Started | OutputChunk | Ended
