# SPDX-License-Identifier: Apache-2.0
"""A caller with uid 0: refused, or without the rights that make root dangerous, and every technique tried as such."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena, replaced
from tests.attack.techniques.every import TECHNIQUES
from tests.attack.test_kernel_surface import CAPABILITIES, REMOUNT, WRITABLE_SETTINGS
from tests.support import Ground
from unspill.errors import RootCallerRefused

if TYPE_CHECKING:
    from tests.attack.techniques.record import Technique
    from unspill import Policy

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.root]

READ_CLOSED = """
for path in %r:
    try: content = open(path, "rb").read()
    except OSError as error: lost(path, error.strerror)
    else:
        if content: won(path)
"""


def test_a10_a_root_caller_is_refused(arena: Arena) -> None:
    """Root asks for a sandbox in which a command would read what only root may read.
    Control: with `allow_root`, the refusal taken away, the same command reads some of it."""
    with pytest.raises(RootCallerRefused):
        arena.ground.sandbox()
    closed = [path for path in files_of("/etc") if not os.stat(path).st_mode & 0o004 and os.stat(path).st_size]
    assert "/etc/shadow" in closed
    assert arena.attack(READ_CLOSED % closed, allow_root=True).won


def files_of(top: str) -> list[str]:
    found = [os.path.join(here, name) for here, _directories, names in os.walk(top) for name in names]
    return [path for path in found if os.path.isfile(path)]


def test_a10_a_project_can_not_allow_root_by_itself(arena: Arena) -> None:
    """The project's own file asks for `allow_root`.
    Control: that of the test above."""
    from unspill import Sandbox, UnspillError

    (arena.ground.project / ".unspill.toml").write_text("allow_root = true\n")
    with pytest.raises(UnspillError):
        Sandbox(arena.ground.project)


def test_a3_a_root_caller_who_is_let_in_can_not_write_a_setting(arena: Arena) -> None:
    """Root's command opens every file of /proc and /sys for writing; core_pattern would be code on the host.
    Control: without the read-only /proc/sys it opens hundreds, core_pattern among them. Nothing is written."""
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    won = set(arena.attack(WRITABLE_SETTINGS, allow_root=True).won)
    assert not {path for path in won if path.startswith(("/proc/sys", "/sys"))}
    with arena.plan_changed(lambda mounts: replaced(mounts, b"/proc/sys")):
        weaker = set(arena.attack(WRITABLE_SETTINGS, allow_root=True).won)
    assert "/proc/sys/kernel/core_pattern" in weaker
    assert len(weaker) > 100
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def test_a2_a_root_caller_who_is_let_in_has_no_capability(arena: Arena) -> None:
    """Root's command remounts, unmounts, mounts; all capability sets are read.
    Control: without `--cap-drop ALL` it has capabilities, and without the filter it mounts."""
    assert not arena.attack(REMOUNT, allow_root=True).won
    assert not arena.attack(CAPABILITIES, allow_root=True).won
    with arena.without(b"--cap-drop ALL", b"--disable-userns", b"--assert-userns-disabled"):
        assert arena.attack(CAPABILITIES, allow_root=True).won
        with arena.without_filter():
            assert "mount tmpfs" in arena.attack(REMOUNT, allow_root=True).won


class RootGround(Ground):
    """A machine whose root insists."""

    def policy(self, **settings: Any) -> Policy:
        return super().policy(**{"allow_root": True, **settings})


@pytest.mark.parametrize(
    "technique", [one for one in TECHNIQUES if one.as_root != "anybody"], ids=lambda technique: technique.id
)
def test_a_technique_fails_for_root_unless_it_is_listed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, technique: Technique
) -> None:
    rooted = RootGround(**{field.name: getattr(ground, field.name) for field in fields(ground)})
    succeeded = bool(technique.attack(Arena(rooted, monkeypatch)))
    assert succeeded is (technique.as_root == "succeeds"), technique.tries
