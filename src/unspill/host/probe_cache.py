# SPDX-License-Identifier: Apache-2.0
"""Facts as text, and the key under which that text stays true: what lets a run start without any probe.

On the path of every run: reads two small files, starts nothing. Where the text is kept is the store's matter.
"""

from __future__ import annotations

import os

from unspill.model.plan import Bwrap, Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FORMAT = "unspill facts 2"
_NUMBERS = ("uid", "gid", "landlock_abi")
_TEXTS = ("kernel", "boot_id", "cgroup", "container", "state_filesystem")
_ANSWERS = (
    "namespaces",
    "disable_userns",
    "proc_mount",
    "own_namespace",
    "lowerdir_plus",
    "seccomp",
    "openat2",
    "flatpak",
    "merged_usr",
)


def facts_key(bwrap: bytes, state_dir: bytes) -> str:
    """Return what the facts depend on and what can change without a word to us.

    Inside another sandbox or a container the boot is the same, but the user or pid namespace is not.

    Raises:
        OSError: bwrap or the state directory is not there.
    """
    found = os.stat(bwrap)
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot_id = file.read().strip().decode("ascii")
    parts = (
        _FORMAT,
        boot_id,
        os.uname().release,
        *(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns),
        *(os.getuid(), os.getgid(), os.stat(state_dir).st_dev),
        *(os.stat("/proc/self/ns/user").st_ino, os.stat("/proc/self/ns/pid").st_ino),
        int("FLATPAK_ID" in os.environ),
        _group_above(),
    )
    return " ".join(map(str, parts))


def should_keep(facts: Facts) -> bool:
    """Tell whether facts may be remembered: a refusal may not, since its remedy changes nothing that a key sees."""
    return facts.namespaces and facts.disable_userns and facts.proc_mount and bool(facts.engines)


def _group_above() -> str:
    """Return the control group above that of this process: a login by ssh has none delegated, a desktop has.

    Its own group has another name in every terminal, and says no more.
    """
    try:
        with open("/proc/self/cgroup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    own = next((line[3:] for line in lines if line.startswith(b"0::")), b"")
    return os.path.dirname(own).decode("utf-8", "backslashreplace")


def facts_to_text(facts: Facts) -> str:
    """Write facts as lines of a name and a value."""
    lines = [_FORMAT]
    lines += [f"{name} {getattr(facts, name)}" for name in _NUMBERS]
    lines += [f"{name} {_one_line(getattr(facts, name))}" for name in _TEXTS]
    lines += [f"{name} {int(getattr(facts, name))}" for name in _ANSWERS]
    lines += [f"engines {','.join(facts.engines)}"]
    if facts.bwrap is not None:
        lines += [f"bwrap {_bwrap_to_text(facts.bwrap)}"]
    lines += [f"problem {name} {_one_line(reason)}" for name, reason in facts.problems]
    return "\n".join(lines) + "\n"


def facts_from_text(text: str) -> Facts | None:
    """Read what `facts_to_text` wrote; None for anything else, which then has to be found out again."""
    head, _, rest = text.partition("\n")
    if head != _FORMAT:
        return None
    values: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    for line in rest.splitlines():
        name, _, value = line.partition(" ")
        if name == "problem":
            problem, _, reason = value.partition(" ")
            problems.append((problem, reason))
        else:
            values[name] = value
    try:
        return _facts(values, tuple(problems))
    except (KeyError, ValueError):
        return None


def _facts(values: dict[str, str], problems: tuple[tuple[str, str], ...]) -> Facts:
    fields: dict[str, Any] = {name: int(values[name]) for name in _NUMBERS}
    fields |= {name: values[name] for name in _TEXTS}
    fields |= {name: values[name] == "1" for name in _ANSWERS}
    fields["engines"] = tuple(values["engines"].split(",")) if values["engines"] else ()
    bwrap = values.get("bwrap")
    return Facts(
        bwrap=None if bwrap is None else _bwrap_from_text(bwrap),
        problems=problems,
        **fields,
    )


def _bwrap_to_text(bwrap: Bwrap) -> str:
    numbers = (bwrap.device, bwrap.inode, int(bwrap.has_overlay), int(bwrap.symlink_flaw))
    return " ".join((bwrap.path.hex(), *map(str, numbers), _one_line(bwrap.version)))


def _bwrap_from_text(text: str) -> Bwrap:
    path, device, inode, has_overlay, symlink_flaw, version = text.split(" ", 5)
    return Bwrap(
        path=bytes.fromhex(path),
        version=version,
        device=int(device),
        inode=int(inode),
        has_overlay=has_overlay == "1",
        symlink_flaw=symlink_flaw == "1",
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
