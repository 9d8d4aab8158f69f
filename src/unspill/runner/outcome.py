# SPDX-License-Identifier: Apache-2.0
"""Decides how a run ended, and whose failure it was.

bwrap writes `exit-code` to its status descriptor only if the command was really executed: this, not a guess from
the output, tells our failure from the command's.
"""

from __future__ import annotations

import errno
import os

from unspill.model.run import Exited, NeverStarted, Signalled
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.run import Outcome


NO_DIRECTORY = "the working directory does not exist"
NOT_A_DIRECTORY = "the working directory is not a directory"
MOUNT_REMEDIES = {
    errno.EINVAL: (
        "a file system is mounted below it, which the kernel does not let an ordinary user cover",
        "Unmount it, mount it outside the project, or choose a directory without it as the project.",
    ),
    errno.EPERM: ("the kernel does not let this user mount an overlay", "Run `unspill doctor`."),
    errno.ENOENT: ("it is not there any more", "Check that the directory still exists."),
    errno.ELOOP: (
        "a symlink stands where a directory was",
        "An earlier run replaced a directory on this path; see `unspill changes`.",
    ),
    errno.E2BIG: ("it has more layers than this kernel takes", "Apply or discard what is held."),
}
_EXIT_KEY = b'"exit-code":'
_SIGNALS = 64
# bwrap runs without a locale; os.strerror would speak the caller's language
_ENOENT, _ENOTDIR, _EACCES = "No such file or directory", "Not a directory", "Permission denied"
_CLOSED = (
    "If a command in this sandbox took the right to enter it away, `unspill changes` lists that and "
    "`unspill discard` takes it back; else choose another directory."
)


def outcome_from(status: bytes, stderr: bytes) -> Outcome:
    """Return the outcome of a run that ended by itself, from bwrap's status text."""
    start = status.rfind(_EXIT_KEY)
    if start < 0:
        return _never_started(stderr)
    code = int(status[start + len(_EXIT_KEY) :].split(b"}")[0])
    if 128 < code <= 128 + _SIGNALS:
        return Signalled(signal=code - 128)
    return Exited(code=code)


def not_executed(program: bytes, code: int) -> NeverStarted:
    """Return the outcome of a command that execve(2) refused with an errno."""
    reason = f"{show(program)}: {os.strerror(code)}"
    return _not_executed(reason, is_missing=code == errno.ENOENT)


def not_entered(code: int) -> NeverStarted:
    """Return the outcome of a command whose working directory chdir(2) refused with an errno."""
    reasons = {errno.ENOENT: NO_DIRECTORY, errno.ENOTDIR: NOT_A_DIRECTORY}
    reason = reasons.get(code, f"the working directory can't be entered: {os.strerror(code)}")
    return NeverStarted(reason=reason, remedy=_CLOSED if code == errno.EACCES else "Give a directory that is there.")


def mount_refused(dest: bytes, code: int, text: str) -> NeverStarted:
    """Return the outcome of a run whose overlay could not be mounted."""
    reason, remedy = MOUNT_REMEDIES.get(code, (text, "Run `unspill doctor`."))
    return NeverStarted(reason=f"could not cover {show(dest)!r} with a layer: {reason}", remedy=remedy)


def _never_started(stderr: bytes) -> NeverStarted:
    text = show(stderr.strip()) or "bwrap ended without a word"
    if "bwrap: execvp" in text:
        reason = text.rpartition("bwrap: execvp ")[2]
        return _not_executed(reason, is_missing=_ENOENT in text)
    if "Can't chdir to" in text:
        for words, reason in ((_ENOENT, NO_DIRECTORY), (_ENOTDIR, NOT_A_DIRECTORY)):
            if words in text:
                return NeverStarted(reason=reason, remedy="Give a directory that is there.")
        if _EACCES in text:
            return not_entered(errno.EACCES)
    return NeverStarted(reason=text, remedy="Run `unspill doctor`.")


def _not_executed(reason: str, *, is_missing: bool) -> NeverStarted:
    remedy = "Is it installed on this machine, below a directory that the sandbox shows (`--explain`)?"
    return NeverStarted(reason=reason, remedy=remedy, exit_code=127 if is_missing else 126)
