# SPDX-License-Identifier: Apache-2.0
"""E5: a project's own file that asks for more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tests.attack.arena import Arena
from tests.attack.techniques.record import Listed
from unspill import Sandbox, UnspillError

if TYPE_CHECKING:
    from collections.abc import Callable


LIST: Final = Listed(as_root="anybody")

WIDER: Final = {
    "show the whole machine": 'view = "host"',
    "make another directory writable": 'roots = ["{home}/other"]',
    "show a directory of the person's": 'readable = ["{home}/other"]',
    "let a host be reached": '[network]\nhosts = ["example.org"]',
    "take the host's own network": '[network]\nmode = "host"',
    "pass a variable of the caller": 'environment = ["AWS_SECRET_ACCESS_KEY"]',
    "raise a limit": "[limits]\nprocesses = 100000",
    "have no limit of time": "[limits]\nwall_s = 100000",
    "show the project's secrets": "[secrets]\nmask = false",
    "run commands without a sandbox": '[permissions]\nunsandboxed = "ask"',
    "make answers last longer": "[permissions]\ngrant_days = 3000",
    "have root's commands run": "allow_root = true",
    "choose another bwrap": 'bwrap = "/usr/bin/bwrap"',
    "choose another engine": 'engine = "mount"',
}


def configured_by(text: str, *, is_project: bool) -> Callable[[Arena], object]:
    """Tell whether a sandbox opens with that text in the project's file, or in the person's own."""

    def attack(arena: Arena) -> object:
        (arena.ground.home / "other").mkdir(exist_ok=True)
        own = f"bwrap = {os.fsdecode(arena.ground.bwrap)!r}\n" if os.getuid() else ""
        said = text.replace("{home}", os.fspath(arena.ground.home))
        arena.ground.configure(own)
        project = arena.ground.project / ".unspill.toml"
        project.unlink(missing_ok=True)
        if is_project:
            project.write_text(said + "\n")
        else:
            arena.ground.configure(said + "\n" if "bwrap" in said else f"{own}{said}\n")
        try:
            sandbox = Sandbox(arena.ground.project)
        except UnspillError:
            return False
        arena.ground.opened.append(sandbox)
        return True

    return attack


for _what, _text in WIDER.items():
    LIST.add_pair(
        "E5",
        f"A project's own file asks to {_what}",
        configured_by(_text, is_project=True),
        "in the person's own file",
        configured_by(_text, is_project=False),
    )
