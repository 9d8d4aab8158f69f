# SPDX-License-Identifier: Apache-2.0
"""Remember what a probe found: facts as text, and the key under which that text stays true.

Every run loads this and not `probe`: it reads two small files and starts nothing. The store keeps the text.
"""

from __future__ import annotations

import os

from unspill.model.plan import Bwrap, Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from unspill.record import Record

_FORMAT = "unspill facts 3"
# Fields that are not one word or number: they have lines of another form
_COMPOUND = ("bwrap", "engines", "problems")
_READERS: dict[str, Callable[[str], Any]] = {"int": int, "bool": "1".__eq__, "bytes": bytes.fromhex}


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
    return can_seal(facts) and bool(facts.engines)


def can_seal(facts: Facts) -> bool:
    """Tell whether bwrap can make a sandbox here, with whichever engine."""
    return facts.namespaces and facts.disable_userns and facts.proc_mount


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
