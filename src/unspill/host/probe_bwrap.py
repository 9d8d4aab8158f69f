# SPDX-License-Identifier: Apache-2.0
"""What one bwrap binary really does here: namespaces, /proc, its own overlays, its symlink flaw.

Every answer comes from a bwrap that was run; nothing is concluded from a version.
"""

from __future__ import annotations

import os

from unspill.host.probe_child import check, prepare
from unspill.host.probe_process import ask, child_argv, run_bounded

_SEALED = (
    b"--unshare-user", b"--unshare-all", b"--cap-drop", b"ALL", b"--die-with-parent", b"--new-session",
    b"--ro-bind", b"/", b"/",
)  # fmt: skip
_NOTHING = (b"--", b"/bin/sh", b"-c", b":")
_PROC_IS_OURS = (b"--", b"/bin/sh", b"-c", b'read -r pid rest </proc/self/stat && test "$pid" -lt 100')


def bwrap_version(bwrap: bytes) -> str:
    """Return what the binary calls itself, for people only."""
    words = run_bounded([bwrap, b"--version"]).stdout.decode("utf-8", "replace").split()
    return words[-1] if words else ""


def why_no_namespaces(bwrap: bytes) -> str:
    """Return why a command can't be run in new namespaces of every kind, each used as a run does.

    Filters of container engines let a namespace be made and then refuse to name the host in it.
    """
    return run_bounded([bwrap, *_SEALED, b"--hostname", b"unspill", *_NOTHING]).reason


def why_userns_stay(bwrap: bytes) -> str:
    """Return why a command can't be kept from making user namespaces; bwrap itself tries to make one."""
    return run_bounded([bwrap, *_SEALED, b"--disable-userns", b"--assert-userns-disabled", *_NOTHING]).reason


def why_no_proc(bwrap: bytes) -> str:
    """Return why a /proc of the sandbox's own can't be mounted; where it can, its pids start at 1."""
    return run_bounded([bwrap, *_SEALED, b"--proc", b"/proc", *_PROC_IS_OURS]).reason


def why_no_native(bwrap: bytes, scratch: bytes) -> str:
    """Return why bwrap can't mount an overlay of its own with its upper below `scratch`."""
    prepare(scratch)
    lower, upper, work, merged = (os.path.join(scratch, part) for part in (b"lower", b"upper", b"work", b"merged"))
    overlay = (b"--overlay-src", lower, b"--overlay", upper, work, merged, b"--chdir", scratch, b"--")
    answers, reason = ask([bwrap, *_SEALED, *overlay, *child_argv("write")])
    value, why = answers.get("write", (0, "no answer"))
    if reason or not value:
        return reason or why
    try:
        check(scratch)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def knows_overlay(why_no: str) -> bool:
    """Tell from the native engine's failure whether bwrap has overlays at all."""
    return "Unknown option" not in why_no


def has_symlink_flaw(bwrap: bytes, scratch: bytes) -> tuple[bool, str]:
    """Tell whether bwrap follows a symlink out of the sandbox when it makes a mount point (CVE-2026-87766).

    Where it can't be told, the answer is yes, with the reason.
    """
    outside = os.path.join(scratch, b"outside")
    os.mkdir(outside)
    # At set-up time the host's root is /oldroot; everything this can reach is our own scratch directory.
    made, _reason = makes_directory_through(bwrap, scratch, b"/oldroot" + outside)
    if made or os.listdir(outside):
        return True, ""
    made, reason = makes_directory_through(bwrap, scratch, None)
    return (False, "") if made else (True, reason or "bwrap made no mount point even where it may")


def makes_directory_through(bwrap: bytes, scratch: bytes, link: bytes | None) -> tuple[bool, str]:
    """Let bwrap make a directory below a bound one, through a symlink or (None) a plain directory.

    Returns whether the directory is there afterwards, seen from the host, and why bwrap failed.
    """
    bound = os.path.join(scratch, b"bound-plain" if link is None else b"bound-link")
    between = os.path.join(bound, b"between")
    os.mkdir(bound)
    if link is None:
        os.mkdir(between)
    else:
        os.symlink(link, between)
    place = os.path.join(between if link is None else link.removeprefix(b"/oldroot"), b"made")
    options = (b"--bind", bound, bound, b"--dir", os.path.join(between, b"made"))
    ended = run_bounded([bwrap, *_SEALED, *options, *_NOTHING])
    return os.path.isdir(place), ended.reason
