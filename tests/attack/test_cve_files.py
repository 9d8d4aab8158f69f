# SPDX-License-Identifier: Apache-2.0
"""Weaknesses of git and of agents by number: what a command plants waits for consent, and looking does not run it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from tests.attack.arena import Arena, replaced, shown_as_it_is
from tests.kernel.git_vectors import FAKE
from tests.kernel.laying import lay
from unspill import Selection

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

IDENTITY: Final = "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"


@pytest.fixture(name="repository")
def repository_fixture(arena: Arena) -> Ground:
    """A project under git with one file."""
    ground = arena.ground
    (ground.home / ".gitconfig").write_text(IDENTITY)
    ground.write("a.txt", "one\n")
    as_person(ground, "git init -q && git add -A && git commit -qm first", ground.project)
    return ground


def canary(ground: Ground) -> Path:
    return ground.top / "canary"


def as_person(ground: Ground, script: str, where: Path) -> None:
    """Run a script outside; whatever it starts of the command's makes the canary."""
    variables = {**os.environ, "CANARY": os.fspath(canary(ground))}
    subprocess.run(["sh", "-c", FAKE + script], cwd=where, env=variables, check=False, capture_output=True, timeout=30)


def held_after(ground: Ground, script: str) -> set[str]:
    """Have a command make changes and apply them; return what is held of them."""
    sandbox = ground.sandbox()
    result = sandbox.run(FAKE + script, env={"CANARY": os.fspath(canary(ground))})
    assert result.ok, result.stderr.kept()
    assert not canary(ground).exists()
    return {os.fsdecode(one.path) for one in sandbox.apply().left if one.why == "held"}


def fires_where_all_is_taken(ground: Ground, script: str, looks: str, where: str = ".") -> bool:
    """Tell whether looking runs something in a copy of the project that has every change of the command."""
    copy = ground.home / "copy"
    shutil.copytree(ground.project, copy, symlinks=True)
    sandbox = ground.sandbox("control")
    assert sandbox.run(FAKE + script, env={"CANARY": os.fspath(canary(ground))}).ok
    lay(sandbox.changes(), copy)
    as_person(ground, looks, copy / where)
    return canary(ground).exists()


def does_not_fire(ground: Ground, looks: str, where: str = ".") -> bool:
    place = ground.project / where
    place.mkdir(exist_ok=True, parents=True)
    as_person(ground, looks, place)
    return not canary(ground).exists()


def test_cve_2026_55607_a_worktree_that_leads_to_a_forged_repository_is_held(repository: Ground) -> None:
    """Make a work tree whose `.git` file leads to settings of the command's, which Claude Code had git obey outside.
    Control: with every change taken over, `git status` in it runs the command's program."""
    script = 'mkdir sub; fake fakegit; echo "gitdir: ../fakegit" > sub/.git'
    assert fires_where_all_is_taken(repository, script, "git status", "sub")
    canary(repository).unlink()
    assert "fakegit/config" in held_after(repository, script)
    assert does_not_fire(repository, "git status", "sub")


def test_cve_2022_24765_no_repository_is_made_above_the_project(arena: Arena, repository: Ground) -> None:
    """Make a `.git` with settings in the directories above the project, which git would find and obey from any place
    below. Control: where the home directory is shown to be written, it is there."""
    script = f"""
    for place in ("..", "../..", "/", "/tmp", {os.fspath(repository.home)!r}):
        try: os.makedirs(os.path.join(place, ".git"), exist_ok=True); open(os.path.join(place, ".git/config"), "w")
        except OSError: pass
    """
    arena.attack(script)
    above = [repository.home, repository.top, *repository.top.parents]
    assert [place for place in above if (place / ".git").exists()] == []
    shown = shown_as_it_is(repository.home, writable=True)
    with arena.plan_changed(lambda mounts: replaced(mounts, os.fsencode(repository.home), shown)):
        arena.attack(script, name="other")
    assert (repository.home / ".git/config").exists()


@pytest.mark.parametrize("name", [".GIT", ".Git", ".g\u200cit", ".git\u200b", "GIT~1", "git~1", ".git ", ".git."])
def test_cve_2014_9390_a_git_directory_by_another_spelling_is_one(repository: Ground, name: str) -> None:
    """Write hooks and settings to names that a filesystem may take for `.git`: other case, characters that are ignored,
    the short alias. Control: a name that is no such spelling is not held."""
    script = f"mkdir -p '{name}/hooks'; echo x > '{name}/config'; hook '{name}/hooks/post-checkout'"
    held = held_after(repository, f"{script}; mkdir legit; echo x > legit/config")
    assert any(path == name or path.startswith(f"{name}/") for path in held), held
    assert not (repository.project / name / "config").exists()
    assert (repository.project / "legit/config").exists()


def module(name: str = "lib", url: str = "https://example.org/lib.git", path: str = "lib") -> str:
    """Return a command that writes a `.gitmodules`."""
    text = f'[submodule "{name}"]\n\turl = {url}\n\tpath = {path}\n'
    return f"printf '%s' '{text}' > .gitmodules"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(module(name="../../evil"), id="CVE-2018-11235"),
        pytest.param(module(url="-u./payload"), id="CVE-2018-17456"),
        pytest.param(module(path="-evil"), id="CVE-2018-17456 by path"),
        pytest.param(module(url="ssh://-oProxyCommand=evil/x"), id="CVE-2017-1000117"),
        pytest.param(module(path='"lib\\r"').replace("\\r", "\r"), id="CVE-2025-48384"),
        pytest.param(module(url="https://example.org/%0ahost=example.com"), id="CVE-2020-5260"),
    ],
)
def test_cve_2018_11235_cve_2018_17456_cve_2017_1000117_cve_2025_48384_cve_2020_5260_a_forged_module_is_held(
    repository: Ground, script: str
) -> None:
    """Write a `.gitmodules` with a name that leads out, an address or path that is an option, a path that ends with a
    carriage return, an address with a newline in it. Control: an ordinary module is taken over without a question."""
    assert held_after(repository, script) == {".gitmodules"}
    assert not (repository.project / ".gitmodules").exists()
    repository.sandbox().discard()
    assert held_after(repository, module()) == set()
    assert (repository.project / ".gitmodules").exists()


def test_cve_2024_32002_a_hook_that_is_written_through_a_link_is_held(repository: Ground) -> None:
    """Make a link in the work tree that leads into `.git`, and write a hook by it.
    Control: with every change taken over, a checkout runs the hook."""
    script = "ln -s .git/hooks payload; hook payload/post-checkout"
    looks = "git checkout -b other"
    assert fires_where_all_is_taken(repository, script, looks)
    canary(repository).unlink()
    assert ".git/hooks/post-checkout" in held_after(repository, script)
    assert does_not_fire(repository, looks)
    repository.sandbox().apply(Selection(included=(b".git/hooks/post-checkout",)))
    assert (repository.project / ".git/hooks/post-checkout").exists()


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
