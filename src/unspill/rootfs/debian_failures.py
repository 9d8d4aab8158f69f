# SPDX-License-Identifier: Apache-2.0
"""Says what went wrong with a program that makes a Debian rootfs, and what to do about it, from what it said last.

The programs run with English messages. What matches nothing is shown as it is.
"""

from __future__ import annotations

from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.rootfs.debian_child import Ended

_SHOWN_LINES = 6
_SHOWN_CHARACTERS = 1500


class _Cause(Record):
    marks: tuple[str, ...]
    kind: type[RootfsError]
    what: str
    remedy: str


# The first that matches counts
_CAUSES = (
    _Cause(
        marks=("No space left on device", "Disk quota exceeded", "You don't have enough free space"),
        kind=RootfsError,
        what="the disk is full",
        remedy="Free some space: `unspill rootfs remove --unused`; or choose another rootfs directory.",
    ),
    _Cause(
        marks=(
            "NO_PUBKEY",
            "BADSIG",
            "EXPKEYSIG",
            "REVKEYSIG",
            "is not signed",
            "Hash Sum mismatch",
            "unexpected size",
            "couldn't be verified",
            "cannot be authenticated",
            "is expired",
            "is not valid yet",
            "doesn't contain a signature",
            "Clearsigned file isn't valid",
        ),
        kind=RootfsUnverified,
        what="what the archive offers is not signed with a key that counts, is damaged, or its signature has expired",
        remedy="Check the clock and the mirror; a key of your own archive belongs in /etc/apt/trusted.gpg.d.",
    ),
    _Cause(
        marks=("Unable to locate package", "has no installation candidate", "Couldn't find any package by"),
        kind=RootfsError,
        what="a package is not in this suite",
        remedy="Look for its name at packages.debian.org, or choose another suite.",
    ),
    _Cause(
        marks=("unmet dependencies", "Unable to correct problems"),
        kind=RootfsError,
        what="packages can't be installed together",
        remedy="Name fewer packages, or let the mirror's suites be those of one release.",
    ),
    _Cause(
        marks=("does not have a Release file", "404  Not Found", "404 Not Found", "no such file or directory"),
        kind=RootfsUnreachable,
        what="the archive does not have this suite or one of its files",
        remedy="Check the suite's name; one that is not supported any more is at Debian's archive of old releases: name"
        " that as the mirror.",
    ),
    _Cause(
        marks=(
            "Temporary failure resolving",
            "Could not resolve",
            "Could not connect",
            "Connection refused",
            "Connection timed out",
            "Network is unreachable",
            "Connection failed",
            "Unable to connect",
            "Failed to fetch",
        ),
        kind=RootfsUnreachable,
        what="the archive can't be reached",
        remedy="Check the network and the proxy, or name another mirror, or a directory: file:/a/mirror; what"
        " apt has fetched already, if anything, is kept.",
    ),
    _Cause(
        marks=("newuidmap", "newgidmap", "uid_map", "gid_map", "no line matching user"),
        kind=RootfsError,
        what="the subordinate ids of this user can't be used",
        remedy="Have /etc/subuid and /etc/subgid give this user at least 65536 ids, and have newuidmap be setuid root.",
    ),
    _Cause(
        marks=("unshare failed", "unshare: ", "Operation not permitted"),
        kind=RootfsError,
        what="this machine does not let an ordinary user make the namespaces that a build needs",
        remedy="Run `unspill doctor`; or build on another machine, and use the tree or an archive of it here.",
    ),
)


def explain_failure(ended: Ended, program: str) -> RootfsError:
    """Return the error that tells how a program failed."""
    folded = ended.said.casefold()
    for cause in _CAUSES:
        marks = tuple(mark.casefold() for mark in cause.marks)
        if any(mark in folded for mark in marks):
            said = _shown(ended.tail, marks)
            return cause.kind(f"{cause.what} ({program} exited with {ended.code}: {said})", remedy=cause.remedy)
    return RootfsError(
        f"{program} exited with {ended.code}: {_shown(ended.tail, ())}",
        remedy="Read what it said; nothing half-built is used.",
    )


def _shown(tail: tuple[str, ...], marks: tuple[str, ...]) -> str:
    """Return on one line what matters of the last lines: what names the cause, and other errors."""
    chosen = [line for line in tail if line.startswith("E:") or any(mark in line.casefold() for mark in marks)]
    lines = [line.strip() for line in dict.fromkeys(chosen or tail)]
    return "; ".join(lines[-_SHOWN_LINES:])[-_SHOWN_CHARACTERS:] or "(it said nothing)"
