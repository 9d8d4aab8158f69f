# SPDX-License-Identifier: Apache-2.0
"""`unspill setup` with the real agents: they read what it writes, it sees when they are not sealed, and takes it back.

Settings are those of `tests/unit/setup/existing.py`; the ways not to be sealed are the table `WAYS`.
"""

import functools
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agents.real.trials import AGENTS, INSTALLED, UNSPILL, VERSIONS, Begun, Trial, begin_claude, facts_of
from tests.architecture.sources import ROOT
from tests.unit.setup.existing import EXISTING
from unspill.setup.edit import Setting, merge, parse
from unspill.setup.scripted_model import ScriptedModel

pytestmark = [pytest.mark.agents, pytest.mark.kernel, pytest.mark.timeout(240)]

FOLDERS: Final = {
    "claude-code": ".claude",
    "codex": ".codex",
    "gemini-cli": ".gemini",
    "opencode": ".config/opencode",
    "qwen-code": ".qwen",
}
MODES: Final = {
    "claude-code": ("hook", "mcp"),
    "codex": ("hook", "mcp"),
    "gemini-cli": ("hook", "mcp"),
    "opencode": ("mcp",),
    "qwen-code": ("mcp",),
}


OWN_WRITERS: Final = {
    "claude-code": {".claude.json"},
    "opencode": {"opencode.json", "opencode.jsonc"},
    "qwen-code": {"settings.json"},
}


class Person:
    """Somebody with a home directory and a project, who has every agent on their PATH."""

    def __init__(self, top: Path, agent: str, mode: str) -> None:
        self.agent, self.mode = agent, mode
        self.home = top / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        subprocess.run(["git", "init", "-q"], cwd=self.project, check=True)
        self.folder = self.home / FOLDERS[agent]
        self.folder.mkdir(parents=True)
        self.variables: dict[str, str] = {}
        self.kept: dict[Path, bytes] = {}
        if agent == "gemini-cli":
            (self.folder / "trustedFolders.json").write_text(json.dumps({str(self.project): "TRUST_FOLDER"}))

    def unspill(self, *words: str) -> "subprocess.CompletedProcess[str]":
        places = [str(INSTALLED / name / "node_modules/.bin") for name in VERSIONS]
        path = ":".join([str(UNSPILL.parent), *places, "/usr/local/bin:/usr/bin:/bin"])
        usual = {"HOME": str(self.home), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        return subprocess.run(
            [str(UNSPILL), *words],
            cwd=self.project,
            env={**usual, **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def setup(self, *words: str) -> dict[str, Any]:
        mode = ("--mode", self.mode) if "--check" not in words else ()
        done = self.unspill("setup", self.agent, "--json", *mode, *words)
        assert done.stdout, done
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if found["sealed"] else 1), done
        return found

    def set_up(self) -> dict[str, Any]:
        return self.setup("--trust") if self.agent == "codex" else self.setup()

    def place(self, name: str) -> Path:
        """Return where a settings file of the agent is."""
        return self.home / name if name == ".claude.json" else self.folder / name

    def change(self, name: str, change: Callable[[str], str]) -> None:
        path = self.place(name)
        text = change(path.read_text())
        assert text != path.read_text()
        path.write_text(text)

    def remember(self) -> None:
        """Keep what the files are now, for `restore`."""
        names = ("settings.json", ".claude.json", "hooks.json", "config.toml", "opencode.json", "trustedFolders.json")
        self.kept = {path: path.read_bytes() for path in map(self.place, names) if path.exists()}

    def restore(self) -> None:
        for path, data in self.kept.items():
            path.write_bytes(data)
        self.variables = {}
        subprocess.run(["git", "clean", "-qfdx"], cwd=self.project, check=True)
        for made in (self.home / "bin", self.home / ".config/unspill"):
            shutil.rmtree(made, ignore_errors=True)

    def give_project(self, name: str, value: object) -> None:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))


@dataclass(frozen=True)
class Way:
    """One way not to be sealed. `seen` is part of the reason or the advice; `always` runs without --full."""

    name: str
    agent: str
    mode: str
    spoil: Callable[[Person], None]
    seen: str
    always: bool = False


def replace(name: str, old: str, new: str) -> Callable[[Person], None]:
    return lambda person: person.change(name, lambda text: text.replace(old, new))


def edit(name: str, **changes: Any) -> Callable[[Person], None]:
    """Return what lays values over a JSON file."""
    return lambda person: person.change(name, lambda text: json.dumps({**json.loads(text), **changes}))


def in_project(name: str, value: object) -> Callable[[Person], None]:
    return lambda person: person.give_project(name, value)


def variable(name: str, value: str) -> Callable[[Person], None]:
    return lambda person: person.variables.update({name: value})


def older(version: str) -> Callable[[Person], None]:
    """Return what puts another version of the agent before the real one."""
    return lambda person: put_before(person, f"echo {version}")


def put_before(person: Person, script: str) -> None:
    """Give the person another program of the agent's name."""
    program = person.home / "bin" / str(VERSIONS[person.agent]["program"])
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    person.variables["PATH"] = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"


def rewriting_hook(person: Person) -> None:
    """Add a hook that gives the model's own command back, as late as possible."""
    program = person.home / "rewrite.py"
    program.write_text(
        "import json, shlex, sys, time\n"
        "event = json.load(sys.stdin)\n"
        "time.sleep(3)\n"
        "given = event['tool_input']\n"
        "said = {'hookEventName': 'PreToolUse', 'permissionDecision': 'allow', 'updatedInput': given}\n"
        "print(json.dumps({'hookSpecificOutput': said}))\n"
    )
    group = {"matcher": "Bash", "hooks": [{"type": "command", "command": f"python3 {program}"}]}

    def add(text: str) -> str:
        whole = json.loads(text)
        whole["hooks"]["PreToolUse"].append(group)
        return json.dumps(whole)

    person.change("settings.json", add)


def project_without_hooks(person: Person) -> None:
    """The folder is not trusted yet; when it is, hooks are off in it."""
    person.give_project(".codex/config.toml", "[features]\nhooks = false\n")


def trusted_project_without_hooks(person: Person) -> None:
    trust = f'[projects."{person.project}"]\ntrust_level = "trusted"\n'
    person.change("config.toml", lambda text: f"{text}\n{trust}")
    project_without_hooks(person)


def only_bash_back(text: str) -> str:
    whole = json.loads(text)
    whole["permissions"]["deny"].remove("Bash")
    return json.dumps(whole)


OPEN = "read a test file in your home directory"
AGAIN = "no longer has what unspill put there"
STOP = " || { echo 'unspill stopped this command.' >&2; exit 2; }"
WAYS: Final = [
    Way("the hook is removed", "claude-code", "hook", edit("settings.json", hooks={}), AGAIN),
    Way("the hook is for another tool", "claude-code", "hook", replace("settings.json", "Bash|", "Bosh|"), AGAIN),
    Way("all hooks are off", "claude-code", "hook", edit("settings.json", disableAllHooks=True), "Remove `disableAll"),
    Way("the settings have a comment", "claude-code", "hook", replace("settings.json", "{", "{ // mine\n"), "ignores"),
    Way(
        "the project switches hooks off",
        "claude-code",
        "hook",
        in_project(".claude/settings.json", {"disableAllHooks": True}),
        "settings of this project",
    ),
    Way("skills run commands", "claude-code", "hook", edit("settings.json", disableSkillShellExecution=False), AGAIN),
    Way(
        "the project lets skills run commands",
        "claude-code",
        "hook",
        in_project(".claude/settings.json", {"disableSkillShellExecution": False}),
        "settings of this project",
    ),
    Way("the settings are broken", "claude-code", "hook", replace("settings.json", "{", "{{"), AGAIN),
    Way(
        "unspill was moved, and the hook does not stop the command",
        "claude-code",
        "hook",
        lambda person: person.change(
            "settings.json",
            lambda text: (
                text.replace(str(UNSPILL), "/gone/unspill").replace(STOP, "").replace('"onFailure": "block"', '"x": 1')
            ),
        ),
        AGAIN,
    ),
    Way(
        "unspill was moved",
        "claude-code",
        "hook",
        replace("settings.json", str(UNSPILL), "/gone/unspill"),
        AGAIN,
    ),
    Way("another hook rewrites the command", "claude-code", "hook", rewriting_hook, OPEN),
    Way("the settings are elsewhere", "claude-code", "hook", variable("CLAUDE_CONFIG_DIR", "/tmp/none"), OPEN),
    Way("the version fails open", "claude-code", "hook", older("2.1.294"), "2.1.295"),
    Way(
        "the agent is not installed",
        "claude-code",
        "hook",
        variable("PATH", "/usr/bin:/bin"),
        "not on your PATH",
    ),
    Way(
        "its own shell is left on",
        "claude-code",
        "mcp",
        lambda person: person.change("settings.json", only_bash_back),
        "its own tool for commands",
        always=True,
    ),
    Way("the server is removed", "claude-code", "mcp", edit(".claude.json", mcpServers={}), AGAIN),
    Way(
        "the server was moved",
        "claude-code",
        "mcp",
        replace(".claude.json", str(UNSPILL), "/gone/unspill"),
        "no command ran",
    ),
    Way(
        "the hook is not trusted",
        "codex",
        "hook",
        replace("config.toml", "trusted_hash", "other"),
        "you have not trusted it",
    ),
    Way("the hook is not the one that was trusted", "codex", "hook", replace("hooks.json", "30", "31"), AGAIN),
    Way(
        "hooks are a feature that is off",
        "codex",
        "hook",
        lambda person: person.change("config.toml", lambda text: f"{text}\n[features]\nhooks = false\n"),
        "switches hooks off",
    ),
    Way(
        "its own sandbox is on",
        "codex",
        "hook",
        replace("config.toml", "danger-full-access", "read-only"),
        "no command ran",
    ),
    Way(
        "the project switches hooks off",
        "codex",
        "hook",
        trusted_project_without_hooks,
        "switches hooks off",
    ),
    Way(
        "the project will switch hooks off once it is trusted",
        "codex",
        "hook",
        project_without_hooks,
        "switches hooks off",
        always=True,
    ),
    Way(
        "its own shell is left on",
        "codex",
        "mcp",
        replace("config.toml", "shell_tool = false", "shell_tool = true"),
        "its own tool for commands",
    ),
    Way("the version fails open", "codex", "hook", older("codex-cli 0.160.0"), "0.166"),
    Way(
        "the folder is not trusted",
        "gemini-cli",
        "hook",
        lambda p: p.place("trustedFolders.json").unlink(),
        "trust the",
    ),
    Way("hooks are off", "gemini-cli", "hook", edit("settings.json", hooksConfig={"enabled": False}), OPEN),
    Way(
        "its own shell is left on",
        "gemini-cli",
        "mcp",
        replace("settings.json", '"run_shell_command",', ""),
        "own tool",
    ),
    Way(
        "the project gives its own shell back",
        "opencode",
        "mcp",
        in_project("opencode.json", {"permission": {"bash": "allow"}}),
        "its own tool for commands",
    ),
    Way(
        "its own shell is left on", "qwen-code", "mcp", replace("settings.json", '"run_shell_command",', ""), "own tool"
    ),
    Way(
        "the configuration of unspill is refused",
        "claude-code",
        "hook",
        lambda p: p.give_project("../.config/unspill/config.toml", f"readable = [{json.dumps(str(p.home))}]\n"),
        "no command ran",
    ),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_full = metafunc.config.getoption("--full")
    if "way" in metafunc.fixturenames:
        ways = [way for way in WAYS if is_full or way.always]
        metafunc.parametrize("way", ways, ids=[f"{way.agent}-{way.mode}-{way.name}" for way in ways])
    elif "number" in metafunc.fixturenames:
        cases = [(agent, mode, number) for agent, modes in MODES.items() for mode in modes for number in range(8)]
        always = [("codex", "hook", 2)]
        metafunc.parametrize(("agent", "mode", "number"), cases if is_full else always)


def is_changed_since(path: Path, written: dict[str, Any] | None, before: bytes) -> bool:
    """Tell whether a file is another than `unspill setup` has left it."""
    if written is None:
        return path.read_bytes() != before
    settings = [Setting(**{**one, "path": tuple(one["path"])}) for one in written["settings"]]
    return merge(written["form"], written["before"] or "", settings).encode() != path.read_bytes()


def test_an_agent_reads_its_settings_and_is_sealed_and_gets_them_back(
    agent: str, mode: str, number: int, tmp_path: Path
) -> None:
    person = Person(tmp_path, agent, mode)
    files = {person.place(name): text.encode() for name, text in EXISTING[agent][number].items()}
    for path, data in files.items():
        path.write_bytes(data)
    found = person.set_up()
    assert found["sealed"], found
    assert found["told"]
    receipt = person.home / ".local/state/unspill/setup" / agent / "receipt.json"
    written = {Path(one["path"]): one for one in json.loads(receipt.read_text())["files"]}
    by_agent = {path for path, data in files.items() if is_changed_since(path, written.get(path), data)}
    # Some write into their own settings whenever they start: what they wrote stays
    assert {path.name for path in by_agent} <= OWN_WRITERS.get(agent, set()), by_agent
    done = person.unspill("setup", agent, "--remove")
    assert done.returncode == 0, done
    for path, data in files.items():
        if path in by_agent:
            left = parse("json", path.read_text())
            assert {**left, **parse("json", data.decode())} == left
            assert str(UNSPILL) not in path.read_text()
        else:
            assert path.read_bytes() == data
    assert not (person.home / ".local/state/unspill/setup" / agent).exists()


def test_the_page_begins_with_a_command_that_does_what_it_shows_and_a_project_that_undoes_it_is_found(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs/coding-agents.md").read_text("utf-8")
    _before, block, _after = page.split("```", 2)
    command, *shown = block.removeprefix("console\n$ unspill ").splitlines()
    person = Person(tmp_path, "claude-code", "hook")
    done = person.unspill(*command.split())
    assert done.stdout.splitlines() == [line.replace("/home/ann", str(person.home)) for line in shown], done
    assert done.returncode == 0
    person.give_project(".claude/settings.json", {"disableAllHooks": True})
    found = person.setup("--check")
    assert not found["sealed"]
    assert "settings of this project" in found["advice"]


def test_the_doctor_names_an_agent_that_is_no_longer_sealed(tmp_path: Path) -> None:
    person = Person(tmp_path, "codex", "hook")
    person.set_up()
    rows = json.loads(person.unspill("doctor", "--json").stdout)["rows"]
    assert [row["value"] for row in rows if row["fact"] == "coding agent"] == ["codex: sealed"]
    replace("config.toml", "trusted_hash", "other")(person)
    told = person.unspill("doctor").stdout
    assert "weak  coding agent    codex: NOT sealed: its commands read a test file in your home directory" in told
    assert "you have not trusted it" in told


def test_what_an_agent_writes_into_its_settings_meanwhile_stays(tmp_path: Path) -> None:
    person = Person(tmp_path, "codex", "hook")
    real = INSTALLED / "codex/node_modules/.bin/codex"
    put_before(person, f'[ "$1" = exec ] && echo "# mine" >> {person.place("config.toml")}\nexec {real} "$@"')
    found = person.set_up()
    assert found["sealed"], found
    text = person.place("config.toml").read_text()
    assert 'sandbox_mode = "danger-full-access"' in text
    person.unspill("setup", "codex", "--remove")
    assert person.place("config.toml").read_text() == "# mine\n"


def test_the_plug_in_of_claude_code_seals_it(tmp_path: Path) -> None:
    """The control is in test_trials.py: without unspill, the same agent reads the key and reaches the server."""

    def begin(trial: Trial, mode: str) -> Begun:
        begun = begin_claude(trial, mode)
        return replace_field(begun, words=[*begun.words, "--plugin-dir", str(ROOT / "deploy/claude-plugin")])

    with ScriptedModel() as model, ScriptedModel() as canary:
        trial = Trial(tmp_path, replace_field(AGENTS["claude-code"], begin=begin), model, canary)
        trial.play("plain")
        found = facts_of(trial)
    assert (found["key seen"], found["network reached"], found["end seen"]) == (False, False, True), model.results
    assert "run sealed by unspill" in "".join(model.requests)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Person]:
    """Somebody for each agent and mode, who has set it up."""

    @functools.cache
    def find(agent: str, mode: str) -> Person:
        person = Person(tmp_path_factory.mktemp(agent), agent, mode)
        assert person.set_up()["sealed"]
        person.remember()
        return person

    return find


def test_a_way_not_to_be_sealed_is_found(way: Way, people: Callable[[str, str], Person]) -> None:
    person = people(way.agent, way.mode)
    way.spoil(person)
    try:
        found = person.setup("--check")
    finally:
        person.restore()
    assert not found["sealed"]
    assert way.seen in f"{found['reason']} {found['advice']}", found
