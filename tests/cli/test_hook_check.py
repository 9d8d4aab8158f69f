# SPDX-License-Identifier: Apache-2.0
"""`unspill hook codex --check`: it says that Codex calls our hook only where Codex's own files say so.

The digests are those that Codex 0.166 itself printed, for the settings beside them.
"""

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.architecture.sources import ROOT
from tests.support import Ground, run_cli
from unspill.cli.hook import trust_hash

pytestmark = pytest.mark.kernel

ODD = '/home/\u00fcser/it\'s "q"\\ \u2713 \U0001f600/\x7f\tx'
BY_CODEX = {
    "x": "sha256:2c3532e31e90c1c0e8c7b5a1b49c9f751fbf67fdf1f52974fa09f16ddeadab46",
    ODD: "sha256:736936cc7939d9f5318647471841ed0cf26eedb64f84d967ef262071dac468ff",
}


class CodexHome:
    """A home directory of Codex in which our hook is installed and trusted, unless a test says otherwise."""

    def __init__(self, ground: Ground, *options: str) -> None:
        self.project = ground.project
        self.place = ground.home / ".codex"
        self.place.mkdir()
        done = run_cli("hook", "codex", "--settings", *options, cwd=ground.project)
        self.hooks: dict[str, Any] = json.loads(done.stdout)
        self.groups: list[dict[str, Any]] = self.hooks["hooks"]["PreToolUse"]

    def write(self) -> None:
        (self.place / "hooks.json").write_text(json.dumps(self.hooks))

    def trust(self, **more: str) -> None:
        """Write down what Codex does when a person trusts every hook."""
        lines = []
        for group, entry in enumerate(self.groups):
            for number, hook in enumerate(entry["hooks"]):
                lines.append(f'[hooks.state."{self.place}/hooks.json:pre_tool_use:{group}:{number}"]')
                known = {"trusted_hash": json.dumps(trust_hash(entry.get("matcher"), hook)), **more}
                lines += [f"{name} = {value}" for name, value in known.items() if value]
        (self.place / "config.toml").write_text("\n".join(lines) + "\n")

    def check(self, **variables: str) -> "subprocess.CompletedProcess[bytes]":
        return run_cli("hook", "codex", "--check", cwd=self.project, variables=variables)


@pytest.fixture
def codex(ground: Ground) -> CodexHome:
    codex = CodexHome(ground)
    codex.write()
    codex.trust()
    return codex


@pytest.mark.parametrize("command", BY_CODEX)
def test_the_digest_is_the_one_that_codex_records(command: str) -> None:
    assert trust_hash("^Bash$", {"type": "command", "command": command, "timeout": 30}) == BY_CODEX[command]


def test_a_hook_that_is_installed_and_trusted_is_called_and_what_is_not_known_is_said(codex: CodexHome) -> None:
    done = codex.check()
    assert (done.returncode, done.stderr) == (0, b"")
    told = done.stdout.decode()
    assert told.startswith(
        f"Codex calls the hook in {codex.place}/hooks.json: it is installed and you have trusted it."
    )
    assert "Not checked: options of `codex`, its profiles, and settings that your organisation manages." in told
    assert "other PreToolUse hooks" not in told


@pytest.mark.parametrize("options", [("--hold", "--quiet"), ("--sandbox", "it's")])
def test_a_hook_with_options_is_ours_as_well(options: tuple[str, ...], ground: Ground) -> None:
    codex = CodexHome(ground, *options)
    codex.write()
    codex.trust()
    assert codex.check().returncode == 0


def nothing_trusted(codex: CodexHome) -> None:
    (codex.place / "config.toml").write_text("")


def no_config(codex: CodexHome) -> None:
    (codex.place / "config.toml").unlink()


def switched_off(codex: CodexHome) -> None:
    codex.trust(enabled="false")


def another_trusted(codex: CodexHome) -> None:
    codex.trust(trusted_hash='"sha256:00"')


def changed_since(codex: CodexHome) -> None:
    """The trust is in what was there before: the very same hook with another option."""
    hook = codex.groups[0]["hooks"][0]
    hook["command"] = hook["command"].replace(" hook codex ", " hook codex --quiet ")
    codex.write()


def moved_since(codex: CodexHome) -> None:
    """Trust is recorded by position."""
    codex.groups.insert(0, {"hooks": [{"type": "command", "command": "true"}]})
    codex.write()


def features_off(codex: CodexHome) -> None:
    with open(codex.place / "config.toml", "a") as file:
        file.write("[features]\nhooks = false\n")


def config_unreadable(codex: CodexHome) -> None:
    (codex.place / "config.toml").write_text("= nonsense")


def no_file(codex: CodexHome) -> None:
    (codex.place / "hooks.json").unlink()


def no_json(codex: CodexHome) -> None:
    (codex.place / "hooks.json").write_text("{")


def unknown_field(codex: CodexHome) -> None:
    """Codex leaves the whole file out for it."""
    codex.hooks["permissions"] = {}
    codex.write()


def no_groups(codex: CodexHome) -> None:
    codex.hooks["hooks"]["PreToolUse"] = "^Bash$"
    codex.write()


def of_another_unspill(codex: CodexHome) -> None:
    codex.groups[0]["hooks"][0]["command"] = "/usr/bin/unspill hook codex || exit 2"
    codex.write()
    codex.trust()


def of_another_agent(codex: CodexHome) -> None:
    hook = codex.groups[0]["hooks"][0]
    hook["command"] = hook["command"].replace(" hook codex ", " hook claude-code ")
    codex.write()
    codex.trust()


def for_another_tool(codex: CodexHome) -> None:
    codex.groups[0]["matcher"] = "^Read$"
    codex.write()
    codex.trust()


def in_the_background(codex: CodexHome) -> None:
    """Codex does not wait for such a hook, and takes no command from it."""
    codex.groups[0]["hooks"][0]["async"] = True
    codex.write()
    codex.trust()


def that_lets_through(codex: CodexHome) -> None:
    """Where unspill is killed, this one lets the command through."""
    hook = codex.groups[0]["hooks"][0]
    hook["command"] = hook["command"].partition(" || ")[0]
    codex.write()
    codex.trust()


TRUST = "Start `codex`, type /hooks, switch it on if it is off, and trust it."
INSTALL = "Put what `unspill hook codex --settings` prints into that file."
SKIPPED = [
    (nothing_trusted, "you have not trusted it.", TRUST),
    (no_config, "you have not trusted it.", TRUST),
    (switched_off, "it is switched off.", TRUST),
    (another_trusted, "it is not the one that you trusted, or your Codex records trust differently from 0.166.", TRUST),
    (changed_since, "it is not the one that you trusted", TRUST),
    (moved_since, "you have not trusted it.", TRUST),
    (features_off, "config.toml switches hooks off", "Remove `hooks = false` under `[features]`."),
    (config_unreadable, "so unspill can't tell whether you trust the hook", ""),
    (no_file, "Codex has no hooks: there is no ", INSTALL),
    (no_json, "Codex can't read ", INSTALL),
    (unknown_field, "Codex can't read ", INSTALL),
    (no_groups, "Codex can't read ", INSTALL),
    (of_another_unspill, "has no hook that this unspill prints", INSTALL),
    (of_another_agent, "has no hook that this unspill prints", INSTALL),
    (for_another_tool, "has no hook that this unspill prints", INSTALL),
    (in_the_background, "has no hook that this unspill prints", INSTALL),
    (that_lets_through, "has no hook that this unspill prints", INSTALL),
]


@pytest.mark.parametrize(("change", "reason", "remedy"), SKIPPED, ids=[change.__name__ for change, _, _ in SKIPPED])
def test_what_codex_would_skip_is_said_with_the_remedy(change: Any, reason: str, remedy: str, codex: CodexHome) -> None:
    change(codex)
    done = codex.check()
    assert (done.returncode, done.stdout) == (2, b"")
    assert reason in done.stderr.decode()
    assert remedy in done.stderr.decode()


def test_other_hooks_that_could_replace_the_command_are_told_of(codex: CodexHome) -> None:
    codex.groups.append({"hooks": [{"type": "command", "command": "true"}]})
    codex.write()
    done = codex.check()
    assert done.returncode == 0
    assert b"There are other PreToolUse hooks" in done.stdout


def test_the_place_is_written_as_codex_writes_it(codex: CodexHome, ground: Ground) -> None:
    """CODEX_HOME is resolved, the home directory is not."""
    link = ground.top / "link"
    link.symlink_to(ground.home)
    assert codex.check(CODEX_HOME=str(link / ".codex")).returncode == 0
    done = codex.check(HOME=str(link))
    assert b"you have not trusted it" in done.stderr
    shutil.copytree(codex.place, ground.top / "moved")
    assert b"you have not trusted it" in codex.check(CODEX_HOME=str(ground.top / "moved")).stderr


@pytest.mark.parametrize("name", ["codex", "gemini-cli", "claude-code"])
def test_the_settings_are_printed_after_what_to_know_first(name: str, ground: Ground) -> None:
    done = run_cli("hook", name, "--settings", cwd=ground.project)
    assert list(json.loads(done.stdout)) == ["hooks"], "what is told is not in the way of a redirection"
    assert (b"skips" in done.stderr) is (name != "claude-code")
    if name == "codex":
        assert b"unspill hook codex --check" in done.stderr


@pytest.mark.parametrize("name", ["claude-code", "gemini-cli"])
def test_agents_whose_files_are_not_known_are_not_checked(name: str, ground: Ground) -> None:
    done = run_cli("hook", name, "--check", cwd=ground.project)
    assert (done.returncode, done.stdout) == (2, b"")


def test_the_documents_never_switch_codex_own_sandbox_off_before_the_check() -> None:
    for path in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
        text = path.read_text()
        if "danger-full-access" in text:
            assert "hook codex --check" in text[: text.index("danger-full-access")], path
