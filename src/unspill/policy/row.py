# SPDX-License-Identifier: Apache-2.0
"""A row of the table of held and flagged paths: names, a verdict, and the reason as a person reads it."""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Verdict = Literal["ordinary", "flagged", "held"]


class Row(Record):
    """Names that get one verdict, and the reason as a person reads it.

    `files` match the end of a path, `directories` themselves and all that is in them, both wherever they lie and with
    slashes between several components. `suffixes` are what follows the last dot of a name, `stems` what is before the
    first, `endings` how a name ends. `but` are names in the directories that the row does not mean. `deleted` is the
    verdict on a deletion.
    """

    verdict: Verdict
    reason: str
    files: tuple[bytes, ...] = ()
    directories: tuple[bytes, ...] = ()
    suffixes: tuple[bytes, ...] = ()
    stems: tuple[bytes, ...] = ()
    endings: tuple[bytes, ...] = ()
    but: tuple[bytes, ...] = ()
    deleted: Verdict = "ordinary"
