# SPDX-License-Identifier: Apache-2.0
"""E6: requests that are not the one that was allowed, but look like it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena
from tests.attack.techniques.office import DAY_NS, NOW_NS, egress
from tests.attack.techniques.record import Listed
from tests.attack.techniques.vectors import CLASSES, Class
from unspill.model.permission import Grant, GrantId
from unspill.model.policy import Policy
from unspill.permissions.broker import Allow, decide

if TYPE_CHECKING:
    from collections.abc import Callable


LIST: Final = Listed(as_root="anybody")


def remembered(allowed: str) -> Grant:
    request = egress(b"/bin/sh", b"-c", allowed.encode())
    grant = GrantId("4" * 16)
    kept = request.at_scope("always")
    return Grant(
        id=grant, request=kept, scope="always", granted_ns=NOW_NS, expires_ns=NOW_NS + DAY_NS, granted_by="ann"
    )


def hits(_arena: Arena, one: Class) -> list[str]:
    """Return the vectors for which something that was remembered is used."""
    found = []
    for allowed, asked in one.vectors():
        request = egress(b"/bin/sh", b"-c", asked.encode())
        if isinstance(decide(request, Policy(), [remembered(allowed)], now_ns=NOW_NS + 1), Allow):
            found.append(asked)
    return found


def all_fall(_arena: Arena, one: Class) -> bool:
    missed = [asked for allowed, asked in one.vectors() if not one.falls(asked, allowed) or asked == allowed]
    assert missed == [], missed
    return True


for _class in CLASSES:
    LIST.add_pair(
        "E6",
        f"Beside a command that was allowed, {_class.name} ({len(_class.vectors())} vectors)",
        partial(hits, one=_class),
        f"by a memory that compares as `{_class.falls.__name__.replace('_', ' ')}`",
        partial(all_fall, one=_class),
    )

OTHERWISE: Final[dict[str, dict[str, Any]]] = {
    "in another directory": {"cwd": b"/home/ann/project/evil"},
    "in another project": {"project": b"/home/ann/evil", "cwd": b"/home/ann/evil"},
    "with another variable": {"names": ("HOME", "LD_PRELOAD", "PATH")},
    "with a program that was changed": {"script": "c" * 64},
    "for one more host": {"hosts": ("example.org", "evil.example.net")},
    "for a host below it": {"hosts": ("evil.example.org",)},
}


def asked_otherwise(change: dict[str, Any], *, by_command: bool = False) -> Callable[[Arena], object]:
    def attack(_arena: Arena) -> object:
        request = egress(b"/bin/sh", b"-c", b"ls", **change)
        if by_command:
            return request.argv == remembered("ls").request.argv
        return isinstance(decide(request, Policy(), [remembered("ls")], now_ns=NOW_NS + 1), Allow)

    return attack


for _how, _change in OTHERWISE.items():
    LIST.add_pair(
        "E6",
        f"Make the same request {_how}",
        asked_otherwise(_change),
        "by a memory that compares the command alone",
        asked_otherwise(_change, by_command=True),
    )
