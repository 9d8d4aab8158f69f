# SPDX-License-Identifier: Apache-2.0
"""Finds out what this host can do by doing it, in processes with a time limit and in a scratch directory.

Nothing is concluded from a version or from what is installed. Costs some tenths of a second, so the result is
kept (`probe_cache`); leaves nothing behind.
"""

from __future__ import annotations

import os

from unspill.host.probe_bwrap import (
    bwrap_version,
    has_symlink_flaw,
    knows_overlay,
    why_no_namespaces,
    why_no_native,
    why_no_proc,
    why_userns_stay,
)
from unspill.host.probe_causes import find_causes, find_surroundings
from unspill.host.probe_cgroup import probe_cgroup
from unspill.host.probe_process import ask, child_argv
from unspill.host.probe_scratch import Scratch
from unspill.model.plan import Bwrap, Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.host.probe_process import Answers
    from unspill.model.policy import EngineName

    Problems = list[tuple[str, str]]

_NO_BWRAP = "there is no bwrap to try it with"


def probe(bwrap: bytes | None, state_dir: bytes) -> Facts:
    """Try everything once and return what works, with the reason for each thing that does not.

    `bwrap` comes from `find_bwrap`; None if there is none that may be used. The engines are tried in the state
    directory, where the layers will be. Asks the kernel, whatever the host seems to be.
    """
    problems: Problems = []
    cgroup = probe_cgroup()
    if cgroup.reason:
        problems.append(("cgroup", cgroup.reason))
    try:
        with Scratch(state_dir) as scratch:
            kernel = _ask(problems, scratch.make(b"kernel"), "kernel", ("landlock_abi", "openat2", "seccomp"))
            overlay = _ask(problems, scratch.make(b"mount"), "overlay", ("own_namespace", "mount", "lowerdir_plus"))
            sealed = _try_bwrap(problems, bwrap)
            binary, native = _try_scratch(problems, bwrap, scratch)
            engines = _engines(mount=bool(overlay["mount"]), native=native)
    except OSError as error:
        problems.append(("state", f"{os.fsdecode(state_dir)}: {error.strerror}"))
        kernel, overlay, sealed, binary, engines = {}, {}, {}, None, ()
    surroundings = find_surroundings(state_dir)
    facts = Facts(
        uid=os.getuid(),
        gid=os.getgid(),
        kernel=os.uname().release,
        boot_id=surroundings.boot_id,
        bwrap=binary,
        namespaces=sealed.get("namespaces", False),
        disable_userns=sealed.get("disable_userns", False),
        proc_mount=sealed.get("proc_mount", False),
        own_namespace=bool(overlay.get("own_namespace")),
        engines=engines,
        lowerdir_plus=bool(overlay.get("lowerdir_plus")),
        seccomp=bool(kernel.get("seccomp")),
        landlock_abi=kernel.get("landlock_abi", 0),
        openat2=bool(kernel.get("openat2")),
        cgroup=cgroup.kind,
        flatpak=surroundings.flatpak,
        container=surroundings.container,
        merged_usr=surroundings.merged_usr,
        state_filesystem=surroundings.state_filesystem,
    )
    return facts.replace(problems=tuple((name, _printable(why)) for name, why in (*problems, *find_causes(facts))))


def _ask(problems: Problems, cwd: bytes, kind: str, names: tuple[str, ...]) -> dict[str, int]:
    answers, reason = ask(child_argv(kind), cwd=cwd)
    return {name: _take(problems, answers, name, reason or "could not be tried") for name in names}


def _take(problems: Problems, answers: Answers, name: str, otherwise: str) -> int:
    value, reason = answers.get(name, (0, otherwise))
    if not value:
        problems.append((name, reason))
    return value


def _try_bwrap(problems: Problems, bwrap: bytes | None) -> dict[str, bool]:
    tries = (
        ("namespaces", why_no_namespaces),
        ("disable_userns", why_userns_stay),
        ("proc_mount", why_no_proc),
    )
    reasons = {name: _NO_BWRAP if bwrap is None else why(bwrap) for name, why in tries}
    problems += [(name, reason) for name, reason in reasons.items() if reason]
    return {name: not reason for name, reason in reasons.items()}


def _try_scratch(problems: Problems, bwrap: bytes | None, scratch: Scratch) -> tuple[Bwrap | None, bool]:
    """Try what bwrap does with directories of ours; return the binary, and whether it is an engine."""
    if bwrap is None:
        problems += [("bwrap", _NO_BWRAP), ("native", _NO_BWRAP)]
        return None, False
    found = os.stat(bwrap)
    why_no = why_no_native(bwrap, scratch.make(b"native"))
    flaw, unknown = has_symlink_flaw(bwrap, scratch.make(b"flaw"))
    problems += [(name, reason) for name, reason in (("native", why_no), ("symlink_flaw", unknown)) if reason]
    binary = Bwrap(
        path=bwrap,
        version=bwrap_version(bwrap),
        device=found.st_dev,
        inode=found.st_ino,
        has_overlay=knows_overlay(why_no),
        symlink_flaw=flaw,
    )
    return binary, not why_no


def _engines(*, mount: bool, native: bool) -> tuple[EngineName, ...]:
    """Return what works, the best first."""
    found: list[EngineName] = []
    if mount:
        found.append("mount")
    if native:
        found.append("native")
    return tuple(found)


def _printable(reason: str) -> str:
    """Return one line of a program's or a path's words, with nothing in it that a terminal would obey."""
    line = " ".join(reason.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
