# SPDX-License-Identifier: Apache-2.0
"""What the shell says that goes to the working directory for bwrap: nothing, or why the command was not started.

It closes its end before it becomes the command, so nothing here can be forged by the command.
"""

from __future__ import annotations

import errno
import os

from unspill.host.numbers import make_pipe
from unspill.model.run import Exited, NeverStarted
from unspill.runner.outcome import not_entered, not_executed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import Plan
    from unspill.model.run import Outcome

_LONGEST = 64
_DIRECTORIES = {b"none": errno.ENOENT, b"file": errno.ENOTDIR, b"closed": errno.EACCES}
_PROGRAMS = {b"program": errno.ENOENT, b"mode": errno.EACCES}


class Stage:
    """The caller's end of the pipe, from before the run is launched until every process of it is dead."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ours, self._theirs = make_pipe()
        self._said = b""

    def theirs(self) -> int:
        """Return the descriptor that the run gets."""
        return self._theirs

    def launched(self) -> None:
        """Let go of the run's end."""
        self._close_theirs()

    def end(self) -> None:
        """Hear what there is to be heard. Every process of the run is dead, or was never made."""
        self._close_theirs()
        if self._ours >= 0:
            self._said = os.read(self._ours, _LONGEST).strip()
            os.close(self._ours)
            self._ours = -1

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return how the command ended, from how the shell did that should have become it."""
        if isinstance(outcome, NeverStarted):
            # What could not be started then was the shell
            return outcome.replace(exit_code=125)
        if not isinstance(outcome, Exited) or not self._said:
            return outcome
        if self._said in _DIRECTORIES:
            return not_entered(_DIRECTORIES[self._said])
        return not_executed(self._plan.argv[0], _PROGRAMS.get(self._said, errno.EACCES))

    def _close_theirs(self) -> None:
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1
