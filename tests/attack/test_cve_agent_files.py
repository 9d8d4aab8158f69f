# SPDX-License-Identifier: Apache-2.0
"""Files by which a command of an agent would act later, by number: each waits for consent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena
from unspill import Selection

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel]


def applied(ground: Ground, script: str, *included: str) -> dict[str, str]:
    """Run a command, take its changes over, and return what was left and why."""
    sandbox = ground.sandbox()
    assert sandbox.run(["sh", "-c", script]).ok
    operation = sandbox.apply(Selection(included=tuple(map(os.fsencode, included))))
    return {os.fsdecode(one.path): one.why for one in operation.left}


def held_until_named(ground: Ground, script: str, path: str) -> None:
    """See that a path waits for consent and all else does not, then that it arrives once it is named."""
    left = applied(ground, f"{script}; echo x > ordinary")
    assert "held" in {why for name, why in left.items() if name == path or path.startswith(name + "/")}, left
    assert (ground.project / "ordinary").exists()
    before = (ground.project / path).read_bytes() if (ground.project / path).exists() else None
    assert before is None or b"evil" not in before
    ground.sandbox().apply(Selection(included=(os.fsencode(path),)))
    assert b"evil" in (ground.project / path).read_bytes()


def test_cve_2026_25725_settings_of_an_agent_that_did_not_exist_are_held_too(arena: Arena) -> None:
    """Create `.claude/settings.json` with a hook in a project that had none. Claude Code protected it only where it
    existed. Control: named by the person it arrives."""
    held_until_named(
        arena.ground, 'mkdir .claude; echo \'{"hooks": "evil"}\' > .claude/settings.json', ".claude/settings.json"
    )


def test_cve_2025_53773_an_editors_settings_can_not_grant_approval(arena: Arena) -> None:
    """Write `chat.tools.autoApprove` into `.vscode/settings.json`, as was done with Copilot.
    Control: named by the person it arrives."""
    arena.ground.write(".vscode/settings.json", "{}\n")
    script = 'echo \'{"chat.tools.autoApprove": true, "x": "evil"}\' > .vscode/settings.json'
    held_until_named(arena.ground, script, ".vscode/settings.json")


def test_cve_2025_54135_a_new_server_of_an_agent_is_held(arena: Arena) -> None:
    """Create `.cursor/mcp.json` with a command; Cursor started it without a question.
    Control: named by the person it arrives."""
    held_until_named(arena.ground, 'mkdir .cursor; echo \'{"command": "evil"}\' > .cursor/mcp.json', ".cursor/mcp.json")


def test_cve_2025_54136_a_server_that_was_there_is_held_when_it_changes(arena: Arena) -> None:
    """Change the command of a server that the person has approved before; Cursor knew it by its name only.
    Control: named by the person it arrives."""
    arena.ground.write(".cursor/mcp.json", '{"command": "harmless"}\n')
    held_until_named(arena.ground, 'echo \'{"command": "evil"}\' > .cursor/mcp.json', ".cursor/mcp.json")


@pytest.mark.parametrize(
    "path", [".mcp.json", ".claude/settings.local.json", ".codex/config.toml", ".gemini/settings.json"]
)
def test_cve_2025_59536_what_an_agent_would_start_from_a_project_is_held(arena: Arena, path: str) -> None:
    """Write the files from which agents start hooks and servers when a project is opened.
    Control: named by the person each arrives."""
    held_until_named(arena.ground, f"mkdir -p $(dirname {path}); echo evil > {path}", path)


@pytest.mark.parametrize("path", [".Cursor/mcp.json", ".cursor/MCP.JSON", ".VSCODE/tasks.json", ".vscode./tasks.json"])
def test_cve_2025_59944_a_name_in_other_letters_is_the_same_name(arena: Arena, path: str) -> None:
    """Write protected files under names that differ in case, or by a dot that some filesystems drop, as with Cursor.
    Control: a comparison of the names as they are finds none of them."""
    held_until_named(arena.ground, f"mkdir -p $(dirname {path}); echo evil > {path}", path)
    assert path not in (".cursor/mcp.json", ".vscode/tasks.json")


def test_cve_2026_39861_nothing_is_written_through_a_link_that_a_command_made(arena: Arena) -> None:
    """Run 1 makes a link to a file outside, which is even consented to; run 2 writes to the name.
    Claude Code's own part, outside the sandbox, wrote through the link. Control: a plain write to the name does so."""
    ground = arena.ground
    victim = ground.home / "victim"
    victim.write_text("original")
    left = applied(ground, f"ln -s {victim} notes.txt")
    assert left == {"notes.txt": "held"}
    assert applied(ground, "true", "notes.txt") == {}
    assert (ground.project / "notes.txt").is_symlink()
    sandbox = ground.sandbox()
    assert sandbox.run("rm notes.txt; echo overwritten > notes.txt").ok
    sandbox.apply()
    assert victim.read_text() == "original"
    assert (ground.project / "notes.txt").read_text() == "overwritten\n"
    assert not (ground.project / "notes.txt").is_symlink()
    sandbox.undo()
    (ground.project / "notes.txt").write_text("overwritten")
    assert victim.read_text() == "overwritten"
