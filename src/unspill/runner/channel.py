# SPDX-License-Identifier: Apache-2.0
"""What a first program tells its caller: that it is about to become the command, or why it could not.

The command never has this socket, so nothing here can be forged by it. Where file accesses are to be explained, the
descriptor by which the kernel tells them comes this way too, and a thread listens to it while the run goes on.
"""

from __future__ import annotations

import os
import sys
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, SCM_RIGHTS, SHUT_RD, SOL_SOCKET
from _thread import allocate_lock, start_new_thread

from unspill.errors import SandboxUnavailable
from unspill.host.numbers import above_standard, make_pair
from unspill.model.run import Exited, NeverStarted, Signalled
from unspill.runner.outcome import not_entered, not_executed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import Plan
    from unspill.model.run import FileDenial, Outcome
    from unspill.runner.witness import Witness

_LONGEST = 8192
_COMMAND = b"command"
_DIRECTORY = b"directory"


class Channel:
    """The caller's end, from before the run is launched until every process of it is dead."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ours, self._theirs = make_pair()
        self._said: list[bytes] = []
        self._witness: Witness | None = None
        self._stop = -1
        self._is_listening = allocate_lock()
        if plan.first is not None and plan.first.notices:
            from unspill.runner.witness import Witness

            self._witness = Witness(plan)

    def theirs(self) -> int:
        """Return the descriptor that the run gets."""
        return self._theirs.fileno()

    def launched(self) -> None:
        """Let go of the run's end, and listen where there is something to be told.

        Raises:
            SandboxUnavailable: there can't be another thread, and the command would wait for it for ever.
        """
        self._theirs.close()
        if self._witness is not None:
            self._stop = above_standard(os.eventfd(0, os.EFD_CLOEXEC))
            self._is_listening.acquire()
            try:
                start_new_thread(self._listen, (self._witness,))
            except RuntimeError:
                self._is_listening.release()
                raise SandboxUnavailable("nobody can hear of file accesses: no more threads for this user") from None

    def _listen(self, witness: Witness) -> None:
        try:
            words, descriptors = self._receive(0)
            self._said.append(words)
            for listener in descriptors:
                try:
                    witness.serve(listener, self._stop)
                finally:
                    os.close(listener)
        except OSError:
            return  # nothing is told then; whether the command was started does not depend on it
        finally:
            self._is_listening.release()

    def _receive(self, flags: int) -> tuple[bytes, list[int]]:
        words, ancillary, _flags, _address = self._ours.recvmsg(_LONGEST, CMSG_SPACE(4), MSG_CMSG_CLOEXEC | flags)
        rights = [data for level, kind, data in ancillary if (level, kind) == (SOL_SOCKET, SCM_RIGHTS)]
        return words, [int.from_bytes(data[:4], sys.byteorder) for data in rights]

    def end(self) -> None:
        """Hear what is left to be heard. Every process of the run is dead, or was never made."""
        self._theirs.close()
        if self._stop >= 0:
            os.eventfd_write(self._stop, 1)
            self._ours.shutdown(SHUT_RD)
            with self._is_listening:
                os.close(self._stop)
                self._stop = -1
        try:
            while words := self._receive(MSG_DONTWAIT)[0]:
                self._said.append(words)
        except OSError:
            pass  # there is no more
        self._ours.close()

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return how the command ended, from how the first program did that should have become it."""
        if isinstance(outcome, NeverStarted):
            # What could not be started then was our own program
            return outcome.replace(exit_code=125)
        if not isinstance(outcome, Exited | Signalled):
            return outcome
        failures = [words.split(b" ", 2)[1:] for words in self._said if words.startswith(b"failed ")]
        for first, rest in failures:
            if first == _COMMAND:
                return not_executed(self._plan.argv[0], int(rest))
            if first == _DIRECTORY:
                return not_entered(int(rest))
            what = rest.decode("utf-8", "backslashreplace")
            return NeverStarted(reason=f"{os.strerror(int(first))}: {what}", remedy="Run `unspill doctor`.")
        if b"ready" not in self._said:
            return NeverStarted(
                reason="the program that runs before the command did not come to its end",
                remedy="It needs Python 3.7 or later, and some 16 MiB of memory: look at `limits`.",
            )
        return outcome

    def denied(self) -> tuple[FileDenial, ...]:
        """Return the file accesses that the plan refused, as far as they were told."""
        return () if self._witness is None else self._witness.denied()
