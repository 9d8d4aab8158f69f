# SPDX-License-Identifier: Apache-2.0
"""The bubblewrap of this host: the one that may be trusted, what it can do, and its filter of system calls.

Trusted is one that is root's own and written by nobody else; whether it works is for `probe`. A candidate that can't be
trusted is passed over, never repaired. The same looks tell who could put something else in the place of any directory.

What a probe found is remembered as text by the store, under a key that says how long it stays true: a run reads two
small files and starts nothing. The programs of the filter are assembled ahead: to do it here would cost each start
two milliseconds.
"""

from __future__ import annotations

import os
import pwd
import stat

from unspill.errors import BwrapMissing, BwrapUnsafe, HostError
from unspill.host.seccomp_tables import PROGRAMS
from unspill.model.plan import NO_ANSWER, Bwrap, Facts
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from unspill.model.policy import Profile


_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_OVERFLOW_UID = 65534

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40

_built: dict[tuple[str, Profile], bytes] = {}
_FORMAT = "unspill facts 3"
# Fields that are not one word or number: they have lines of another form
_COMPOUND = ("bwrap", "engines", "problems")
_READERS: dict[str, Callable[[str], Any]] = {"int": int, "bool": "1".__eq__, "bytes": bytes.fromhex}


def find_bwrap(configured: bytes | None, path: str, forbidden: Sequence[bytes]) -> bytes:
    """Return the resolved path of a bwrap that only root can have written.

    Args:
        configured: the person's own choice; then no other is looked for.
        path: the value of PATH; its relative entries are ignored.
        forbidden: directories that a sandboxed command may write: the roots and the working directory.

    Raises:
        BwrapMissing: there is none.
        BwrapUnsafe: there is one, but someone else could have written it.
    """
    candidates = _candidates(path) if configured is None else [configured]
    unsafe: list[tuple[bytes, str]] = []
    for candidate in candidates:
        if not os.path.lexists(candidate):
            continue
        resolved = os.path.realpath(candidate)
        reason = _is_inside(candidate, forbidden) or _is_inside(resolved, forbidden) or why_unsafe(resolved)
        if not reason:
            return resolved
        unsafe.append((candidate, reason))
    raise _refusal(configured, unsafe)


def why_unsafe(path: bytes) -> str:
    """Return why this resolved path can't be trusted, an empty string if it can."""
    if not path.startswith(b"/"):
        return "its path is not absolute"
    try:
        found = os.lstat(path)
        parents = [(parent, os.lstat(parent)) for parent in _parents(path)]
    except OSError as error:
        return f"it can't be inspected: {error.strerror}"
    return _why_bad_file(path, found) or _why_bad_owner(path, found, parents)


def _why_bad_file(path: bytes, found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if not found.st_mode & stat.S_IXUSR:
        return "it is not executable"
    if found.st_mode & _SPECIAL_BITS:
        return "it is setuid or setgid"
    try:
        os.getxattr(path, "security.capability", follow_symlinks=False)
    except OSError:
        return ""
    return "it has file capabilities, which amount to setuid"


def _why_bad_owner(path: bytes, found: os.stat_result, parents: list[tuple[bytes, os.stat_result]]) -> str:
    owner = 0 if os.geteuid() and not found.st_uid else owner_of_the_system()
    for place, entry in ((path, found), *parents):
        # In a namespace without root the top directory is often a tmpfs of the caller's, whose entries are mounts
        if entry.st_uid != owner and (place != b"/" or not owner):
            return f"{os.fsdecode(place)} is owned by uid {entry.st_uid}, not by root"
        if entry.st_mode & OTHERS_MAY_WRITE:
            return f"{os.fsdecode(place)} is writable by users other than its owner"
    return ""


def owner_of_the_system() -> int:
    """Return the uid that the system's files have here.

    In a user namespace that maps only its caller, root's files have the overflow uid; and if that caller is
    called 0 there (unshare -r), files of uid 0 are the caller's own.
    """
    try:
        with open("/proc/self/uid_map", "rb") as file:
            extents = [tuple(map(int, line.split())) for line in file]
    except (OSError, ValueError):
        return 0
    has_root = any(first == 0 and count > 1 for first, _outside, count in extents)
    return 0 if has_root else _OVERFLOW_UID


def _candidates(path: str) -> list[bytes]:
    entries = os.fsencode(path).split(b":")
    return [os.path.join(entry, b"bwrap") for entry in entries if entry.startswith(b"/")]


def _parents(path: bytes) -> list[bytes]:
    parents = []
    while path != b"/":
        path = os.path.dirname(path)
        parents.append(path)
    return parents


def _is_inside(path: bytes, directories: Sequence[bytes]) -> str:
    for directory in directories:
        for spelling in {directory.rstrip(b"/"), os.path.realpath(directory).rstrip(b"/")}:
            if spelling and (path == spelling or path.startswith(spelling + b"/")):
                return f"it is inside {os.fsdecode(directory)}, which a sandboxed command may write"
    return ""


def _refusal(configured: bytes | None, unsafe: list[tuple[bytes, str]]) -> BwrapMissing | BwrapUnsafe:
    from unspill.host.diagnosis import remedy_for  # lazy: doctor

    if unsafe:
        listed = "; ".join(f"{os.fsdecode(path)}: {reason}" for path, reason in unsafe)
        return BwrapUnsafe(f"No bwrap can be trusted. {listed}", remedy=remedy_for("bwrap-unsafe"))
    where = "on PATH" if configured is None else f"at {os.fsdecode(configured)}, as configured"
    return BwrapMissing(f"There is no bwrap {where}.", remedy=remedy_for("bwrap-missing"))


class Changeable(Record):
    """Why a directory is not the caller's and root's alone: `reason` is a part of a sentence about `path`."""

    path: bytes
    reason: str


def find_changeable(directory: bytes, *, is_above_only: bool = False) -> Changeable | None:
    """Return the first of a directory and all above it that others could change; None where there is none.

    `directory` is an absolute path without links. The caller's own group of one person is nobody else. With
    `is_above_only` it is some entry, and only the directories above it count.
    """
    path = os.path.dirname(directory) if is_above_only else directory
    while True:
        reason = _why(path, is_above=path != directory)
        if reason:
            return Changeable(path=path, reason=reason)
        if path in (b"/", b""):
            return None
        path = os.path.dirname(path)


def find_changeable_way(path: bytes) -> Changeable | None:
    """Return the first link on the way to an absolute path that others could have laid; None where there is none.

    Where the way ends by now may be the caller's own, and still be another place than the caller means.
    """
    at, todo, left = b"/", path.split(b"/")[::-1], _MOST_LINKS
    while todo:
        name = todo.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            at = os.path.dirname(at)
            continue
        entry = os.path.join(at, name)
        try:
            found = os.lstat(entry)
            target = os.readlink(entry) if stat.S_ISLNK(found.st_mode) else None
        except OSError:
            return None  # what is not there yet leads nowhere
        if target is None:
            at = entry
            continue
        left -= 1
        if found.st_uid not in (0, os.geteuid()) or not left:
            return Changeable(path=entry, reason="is another user's symlink")
        # As seen from an entry of it: so it may be sticky, since that entry is the caller's or root's
        above = find_changeable(entry, is_above_only=True)
        if above is not None:
            return above
        at = b"/" if target.startswith(b"/") else at
        todo += target.split(b"/")[::-1]
    return None


def _why(path: bytes, *, is_above: bool) -> str:
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a directory"
    if found.st_uid not in (0, os.geteuid(), owner_of_the_system()):
        return "belongs to another user"
    if not found.st_mode & OTHERS_MAY_WRITE:
        return ""
    # In a sticky directory such as /tmp nobody else can rename what is the caller's
    if is_above and (found.st_mode & stat.S_ISVTX or _is_private(found)):
        return ""
    return "can be changed by others"


def _is_private(found: os.stat_result) -> bool:
    """Tell whether only a group may write that is the caller's alone: where each person has one, umasks leave it."""
    import grp  # lazy: doctor

    if found.st_mode & stat.S_IWOTH or found.st_uid != os.geteuid():
        return False
    try:
        person, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    is_own = found.st_gid == person.pw_gid and group.gr_name == person.pw_name
    return is_own and set(group.gr_mem) <= {person.pw_name}


def build_filter(machine: str, profile: Profile) -> bytes:
    """Return the program for a machine, as uname names it, and a profile; made once per process.

    Raises:
        HostError: unspill does not know this machine's system calls.
    """
    key = machine, profile
    if key not in _built:
        if machine not in PROGRAMS:
            raise HostError(
                f"unspill has no system call filter for {machine}, and runs no command without one.",
                remedy=f"Use a 64-bit machine of one of these types: {', '.join(PROGRAMS)}.",
            )
        _built[key] = bytes.fromhex(PROGRAMS[machine][profile])
    return _built[key]


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
    is_whole = not any(NO_ANSWER in reason for _name, reason in facts.problems)
    return is_whole and facts.can_seal() and bool(facts.engines)


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
    lines = [_FORMAT, *_fields_to_lines(facts, ""), f"engines {','.join(facts.engines)}"]
    if facts.bwrap is not None:
        lines += _fields_to_lines(facts.bwrap, "bwrap.")
    lines += [f"problem {name} {_one_line(reason)}" for name, reason in facts.problems]
    return "\n".join(lines) + "\n"


def _fields_to_lines(record: Record, prefix: str) -> Iterator[str]:
    for name, value in record.as_dict().items():
        if name not in _COMPOUND:
            text = value.hex() if isinstance(value, bytes) else str(int(value) if isinstance(value, bool) else value)
            yield f"{prefix}{name} {_one_line(text)}"


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
    has_bwrap = any(name.startswith("bwrap.") for name in values)
    try:
        return Facts(
            bwrap=Bwrap(**_fields_from_text(Bwrap, values, "bwrap.")) if has_bwrap else None,
            engines=tuple(engine for engine in ("mount", "native") if engine in values["engines"].split(",")),
            problems=tuple(problems),
            **_fields_from_text(Facts, values, ""),
        )
    except (KeyError, ValueError):
        return None


def _fields_from_text(kind: type[Record], values: dict[str, str], prefix: str) -> dict[str, Any]:
    # A record's annotations are texts
    fields = [(name, type_) for name, type_ in kind.__annotations__.items() if name not in _COMPOUND]
    return {name: _READERS.get(type_, str)(values[prefix + name]) for name, type_ in fields}


def _one_line(text: str) -> str:
    return " ".join(text.split())
