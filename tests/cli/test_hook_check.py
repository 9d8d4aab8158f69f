# SPDX-License-Identifier: Apache-2.0
"""`unspill hook codex --check`, and where a hook may lie: never where its commands could change it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unspill
from tests.architecture.sources import ROOT
from tests.cli.coding_agents import KINDS, Agent
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
    assert ("Codex silently skips the hook" in done.stderr.decode()) == (remedy == TRUST)


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
    also = ["disableSkillShellExecution"] if name == "claude-code" else []
    assert list(json.loads(done.stdout)) == ["hooks", *also], "what is told is not in the way of a redirection"
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


PROGRAM = Path(sys.executable).with_name("unspill")
PACKAGE = Path(unspill.__path__[0]).parent


def make_interpreter(directory: Path) -> Path:
    """Make a virtual environment whose interpreter is the system's, by a link that leads out of any project."""
    (directory / "bin").mkdir(parents=True)
    (directory / "pyvenv.cfg").write_text(f"home = {sys._base_executable.rpartition('/')[0]}\n")  # type: ignore[attr-defined]
    (directory / "bin/python").symlink_to(os.path.realpath(sys.executable))
    site = directory / f"lib/python3.{sys.version_info.minor}/site-packages"
    site.mkdir(parents=True)
    (site / "unspill.pth").write_text(f"{PACKAGE}\n")
    return directory / "bin/python"


def as_script(ground: Ground, place: Path) -> list[str]:
    """A program outside, which names an interpreter."""
    script = ground.top / "bin/unspill"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f"#!{make_interpreter(place / 'venv')}\nfrom unspill.cli.main import main\nmain()\n")
    script.chmod(0o700)
    return [str(script)]


def as_module(ground: Ground, place: Path) -> list[str]:
    return [str(make_interpreter(place / "venv")), "-P", "-m", "unspill"]


def as_link(ground: Ground, place: Path) -> list[str]:
    """A link that leads out."""
    (place / "unspill").symlink_to(PROGRAM)
    return [str(place / "unspill")]


def as_linked_link(ground: Ground, place: Path) -> list[str]:
    """A link outside, by way of one."""
    (place / "bin").symlink_to(PROGRAM.parent)
    (ground.top / "bin").mkdir()
    (ground.top / "bin/unspill").symlink_to(place / "bin/unspill")
    return [str(ground.top / "bin/unspill")]


def as_import_path(ground: Ground, place: Path) -> list[str]:
    return ["env", f"PYTHONPATH={place}", str(PROGRAM)]


def as_missing_import_path(ground: Ground, place: Path) -> list[str]:
    """What is not there can be made."""
    return ["env", f"PYTHONPATH={place / 'later'}", str(PROGRAM)]


def as_installed(ground: Ground, place: Path) -> list[str]:
    """A link at a directory of packages in which unspill lies really outside."""
    (place / "packages").symlink_to(PACKAGE)
    return ["env", f"PYTHONPATH={place / 'packages'}", str(PROGRAM)]


WAYS: list[Callable[[Ground, Path], list[str]]] = [
    as_script,
    as_module,
    as_link,
    as_linked_link,
    as_import_path,
    as_missing_import_path,
    as_installed,
]


def call(words: list[str], agent: Agent, *, cwd: Path) -> "subprocess.CompletedProcess[bytes]":
    event = agent.event_for("echo x") | {"cwd": str(cwd)}
    raw = json.dumps(event).encode()
    return subprocess.run(words, input=raw, cwd=cwd, capture_output=True, check=False, timeout=60)


@pytest.fixture
def agent(ground: Ground) -> Agent:
    return KINDS["claude-code"]("claude-code", ground.project)


@pytest.mark.parametrize("is_named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize("way", WAYS)
def test_unspill_seals_nothing_from_within_the_project(
    way: Callable[[Ground, Path], list[str]], is_named: bool, ground: Ground, agent: Agent
) -> None:
    hook = [*way(ground, ground.project), "hook", "claude-code"]
    other = ground.home / "other"
    other.mkdir()
    options = ["--project", str(ground.project)] if is_named else []
    done = call([*hook, *options], agent, cwd=other if is_named else ground.project)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"can't be a root: " in done.stderr
    assert os.fsencode(ground.project) in done.stderr.partition(b"can't be a root: ")[2]
    # The very same is good for another project
    options = ["--project", str(other)] if is_named else []
    done = call([*hook, *options], agent, cwd=ground.project if is_named else other)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", ["{project}", "", ".", ":/nowhere", "/nowhere:"])
def test_modules_of_the_project_are_loaded_by_no_command_that_the_settings_lead_to(
    path: str, ground: Ground, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = ground.home / "canary"
    for name in ("sitecustomize.py", "json.py", "shlex.py", "unspill.py"):
        (ground.project / name).write_text(f"open({str(canary)!r}, 'w')\n")
    monkeypatch.setenv("PYTHONPATH", path.format(project=ground.project))
    command = agent.consider("echo x").command
    assert command is not None
    done = subprocess.run(["sh", "-c", command], cwd=ground.project, capture_output=True, check=True)
    assert done.stdout == b"x\n"
    assert not canary.exists()
    # The control arm: where Python looks at that variable, they are
    call([str(PROGRAM), "hook", "claude-code"], agent, cwd=ground.project)
    assert canary.exists() is (path != "")


def test_the_project_itself_can_be_no_place_to_import_from(ground: Ground, agent: Agent) -> None:
    done = call([sys.executable, "-m", "unspill", "hook", "claude-code"], agent, cwd=ground.project)
    assert done.returncode == 2
    assert b"Python imports modules from " in done.stderr
    done = call([sys.executable, "-P", "-m", "unspill", "hook", "claude-code"], agent, cwd=ground.project)
    assert done.returncode == 0


def test_a_home_directory_is_refused_as_such(ground: Ground, agent: Agent) -> None:
    done = call([str(PROGRAM), "hook", "claude-code"], agent, cwd=ground.home)
    assert done.returncode == 2
    assert b"it is your home directory." in done.stderr


@pytest.mark.parametrize("name", KINDS)
def test_the_project_is_not_the_one_that_a_model_names(name: str, ground: Ground) -> None:
    """Codex 0.166 has as `cwd` what the model chose; the hook itself is started where the agent stands."""
    other = ground.home / "other"
    (other / ".git").mkdir(parents=True)
    agent = KINDS[name](name, ground.project)
    event = agent.event_for("echo 1 > made") | {"cwd": str(other)}
    command = agent.decide(event["tool_input"], agent.send(json.dumps(event).encode())).command
    assert command is not None
    subprocess.run(["sh", "-c", command], cwd=other, check=False)
    assert not (other / "made").exists()
    # The control arm: a hook that is started there has that project
    agent.project = other
    command = agent.decide(event["tool_input"], agent.send(json.dumps(event).encode())).command
    assert command is not None
    subprocess.run(["sh", "-c", command], cwd=other, check=False)
    assert (other / "made").exists()


def test_the_project_is_that_of_the_agent_wherever_a_command_is_run(ground: Ground, agent: Agent) -> None:
    """Some agents let a model choose the directory, and do not tell the hook."""
    other = ground.home / "other"
    (other / ".git").mkdir(parents=True)
    command = agent.consider("pwd; echo 1 > made").command
    assert command is not None
    subprocess.run(["sh", "-c", command], cwd=other, check=False)
    assert not (other / "made").exists()
    unnamed = [*command.partition(" run ")[0].split(), "run", "--", "bash", "-c", "echo 1 > made"]
    assert subprocess.run(unnamed, cwd=other, check=False).returncode == 0
    assert (other / "made").exists(), "without its name, the project would be the model's choice"


def test_a_command_starts_where_the_agent_stands_behind_a_link_too(ground: Ground, agent: Agent) -> None:
    (ground.project / "sub").mkdir()
    (ground.home / "link").symlink_to(ground.project / "sub")
    command = agent.consider("echo 1 > made").command
    assert command is not None
    variables = {**os.environ, "PWD": str(ground.home / "link")}
    subprocess.run(["sh", "-c", command], cwd=ground.home / "link", env=variables, check=True)
    assert (ground.project / "sub/made").exists()
    assert run_cli("undo", cwd=ground.project).returncode == 0
