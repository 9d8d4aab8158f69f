# SPDX-License-Identifier: Apache-2.0
"""The home directory of a whole agent: what is copied into it, and what never is."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.agents.homes import (
    WHOLE_AGENTS,
    Copied,
    NewHome,
    WholeAgent,
    dump_toml,
    find_whole_agent,
    make_home,
    model_hosts,
    own_variables,
    program_places,
)

OTHER = "token-of-another-tool"
SERVERS = {"github": {"command": "server", "env": {"GITHUB_TOKEN": OTHER}}}
# What an agent's own files say: what is to be copied, and beside it what never is
SAID: dict[str, dict[str, Any]] = {
    ".claude.json": {
        "theme": "dark",
        "mcpServers": SERVERS,
        "projects": {
            "/home/ann/project": {"hasTrustDialogAccepted": True, "mcpServers": SERVERS, "history": [OTHER]},
            "/home/ann/other": {"hasTrustDialogAccepted": True, "history": [OTHER]},
        },
    },
    ".claude/settings.json": {
        "model": "opus",
        "env": {"OTHER_KEY": OTHER},
        "hooks": {"PreToolUse": [{"hooks": [{"command": f"curl -H {OTHER}"}]}]},
        "apiKeyHelper": f"echo {OTHER}",
    },
    ".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "own"}, "mcpOAuth": {"x": OTHER}},
    ".codex/config.toml": {
        "model": "gpt",
        "sandbox_mode": "read-only",
        "model_providers": {"mine": {"base_url": "http://127.0.0.1:1/v1", "env_key": "MY_KEY"}},
        "mcp_servers": {"github": {"command": "server", "env": {"GITHUB_TOKEN": OTHER}}},
        "projects": {"/home/ann/project": {"trust_level": "trusted"}, "/home/ann/other": {"trust_level": OTHER}},
    },
    ".gemini/settings.json": {"security": {"auth": {"selectedType": "x"}}, "mcpServers": SERVERS},
    ".gemini/trustedFolders.json": {"/home/ann/project": "TRUST_FOLDER", f"/home/ann/{OTHER}": "TRUST_FOLDER"},
    ".qwen/settings.json": {"security": {}, "mcpServers": SERVERS},
    ".config/opencode/opencode.json": {"model": "mock", "mcp": SERVERS},
}
CHOSEN: dict[str, dict[str, Any]] = {
    ".claude.json": {"theme": "dark", "projects": {"/home/ann/project": {"hasTrustDialogAccepted": True}}},
    ".claude/settings.json": {"model": "opus"},
    ".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "own"}},
    ".codex/config.toml": {
        "model": "gpt",
        "model_providers": {"mine": {"base_url": "http://127.0.0.1:1/v1", "env_key": "MY_KEY"}},
        "projects": {"/home/ann/project": {"trust_level": "trusted"}},
        "sandbox_mode": "danger-full-access",
    },
    ".gemini/settings.json": {"security": {"auth": {"selectedType": "x"}}},
    ".gemini/trustedFolders.json": {"/home/ann/project": "TRUST_FOLDER"},
    ".qwen/settings.json": {"security": {}},
    ".config/opencode/opencode.json": {"model": "mock"},
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A person's home, with settings of every agent and secrets of other tools."""
    made = tmp_path / "ann"
    for path, said in SAID.items():
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(dump_toml(said) if path.endswith(".toml") else json.dumps(said))
    for path in (".ssh/id_rsa", ".aws/credentials", ".claude/history.jsonl", ".codex/history.jsonl", ".netrc"):
        (made / path).parent.mkdir(exist_ok=True)
        (made / path).write_text(OTHER)
    (made / ".claude/commands/deep").mkdir(parents=True)
    (made / ".claude/commands/deep/fix.md").write_text("Fix it.")
    (made / ".claude/commands/leads-out").symlink_to(made / ".netrc")
    return made


def make(home: Path, program: str, **environ: str) -> tuple[Path, NewHome | None]:
    place = home.parent / "homes" / program
    agent = find_whole_agent(program)
    return place, make_home(str(place), agent, str(home), "/home/ann/project", environ)


def files_of(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.mark.parametrize("program", WHOLE_AGENTS)
def test_an_agent_gets_its_own_settings_and_nothing_of_other_tools(home: Path, program: str) -> None:
    place, made = make(home, program)
    assert made is not None
    files = files_of(place)
    assert made == NewHome(copied=made.copied)
    there = [one.path for one in WHOLE_AGENTS[program].files if (home / one.path).exists()]
    assert list(made.copied) == there
    assert {path for path in files if path in there} == {path for path in there if (home / path).is_file()}
    for path, content in files.items():
        assert OTHER.encode() not in content, path
        if path in CHOSEN:
            text = content.decode()
            assert (tomllib.loads(text) if path.endswith(".toml") else json.loads(text)) == CHOSEN[path]
    own = {one.path for one in WHOLE_AGENTS[program].files}
    assert own & set(CHOSEN) <= set(files)
    assert place.stat().st_mode & 0o777 == 0o700


def test_directories_are_copied_without_links(home: Path) -> None:
    place, _made = make(home, "claude")
    assert files_of(place / ".claude/commands") == {"deep/fix.md": b"Fix it."}


def test_a_home_that_is_there_is_left_alone(home: Path) -> None:
    place, _made = make(home, "claude")
    (place / ".claude.json").write_text("changed by the agent")
    assert make(home, "claude")[1] is None
    assert (place / ".claude.json").read_text() == "changed by the agent"
    assert os.listdir(place.parent) == ["claude"]


def test_settings_that_the_person_keeps_elsewhere_are_found(home: Path) -> None:
    (home / "elsewhere").mkdir()
    (home / "elsewhere/.claude.json").write_text('{"theme": "light"}')
    (home / "elsewhere/settings.json").write_text('{"model": "sonnet"}')
    place, _made = make(home, "claude", CLAUDE_CONFIG_DIR=str(home / "elsewhere"))
    assert json.loads((place / ".claude.json").read_text()) == {"theme": "light"}
    assert json.loads((place / ".claude/settings.json").read_text()) == {"model": "sonnet"}


def test_what_can_not_be_copied_is_named_and_the_rest_is_there(home: Path) -> None:
    (home / ".claude.json").write_text("{not json")
    (home / ".claude/CLAUDE.md").write_bytes(b"x" * (1 << 20) + b"x")
    os.mkfifo(home / ".claude/agents")
    place, made = make(home, "claude")
    assert made is not None
    assert dict(made.left)[".claude/CLAUDE.md"] == "it is not a small file"
    assert sorted(dict(made.left)) == [".claude.json", ".claude/CLAUDE.md", ".claude/agents"]
    assert (place / ".claude/settings.json").exists()


COMMENTED: dict[str, dict[str, Any] | None] = {
    '\ufeff{\n  // mine\n  "theme": "a // b, }", /* and\n mine */ "verbose": true,\n}\n': {
        "theme": "a // b, }",
        "verbose": True,
    },
    '{"theme": "\\"/*", "userID": [",]", /* last */ ],}': {"theme": '"/*', "userID": [",]"]},
    "": {},
    "  // nothing": {},
    '{"theme": "x", // no end': None,
    "[]": None,
}


@pytest.mark.parametrize("text", COMMENTED)
def test_settings_may_have_comments_and_a_comma_behind_the_last(home: Path, text: str) -> None:
    (home / ".claude.json").write_text(text)
    place, made = make(home, "claude")
    assert made is not None
    assert [path for path, _why in made.left] == ([".claude.json"] if COMMENTED[text] is None else [])
    if COMMENTED[text] is not None:
        assert json.loads((place / ".claude.json").read_text()) == COMMENTED[text]


def test_codex_has_no_sandbox_of_its_own_inside_of_ours_whatever_the_person_has(home: Path) -> None:
    (home / ".codex/config.toml").unlink()
    place, _made = make(home, "codex")
    assert tomllib.loads((place / ".codex/config.toml").read_text()) == {"sandbox_mode": "danger-full-access"}


def test_a_home_that_can_not_be_filled_is_not_left_behind(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unspill.agents.homes._chosen", fail)
    with pytest.raises(KeyboardInterrupt):
        make(home, "claude")
    assert os.listdir(home.parent / "homes") == []


def test_of_any_other_program_nothing_is_copied(home: Path) -> None:
    place, made = make(home, "my-agent")
    assert made == NewHome()
    assert os.listdir(place) == []
    assert find_whole_agent("/opt/x/my-agent") == WholeAgent(title="my-agent")


def test_only_the_agents_own_variables_are_passed_on() -> None:
    environ = {"ANTHROPIC_API_KEY": "k", "CLAUDE_CONFIG_DIR": "/x", "GITHUB_TOKEN": OTHER, "OPENAI_API_KEY": OTHER}
    assert own_variables(WHOLE_AGENTS["claude"], environ) == {"ANTHROPIC_API_KEY": "k"}
    assert own_variables(find_whole_agent("make"), environ) == {}


@pytest.mark.parametrize(
    ("variables", "hosts"),
    [
        ({}, [*WHOLE_AGENTS["claude"].hosts]),
        ({"ANTHROPIC_BASE_URL": "https://models.example.org/v1"}, ["models.example.org"]),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080"}, []),
        ({"ANTHROPIC_BASE_URL": ""}, []),
    ],
)
def test_the_hosts_are_those_of_the_model_that_the_person_uses(variables: dict[str, str], hosts: list[str]) -> None:
    assert model_hosts(WHOLE_AGENTS["claude"], variables) == hosts


def test_a_program_is_shown_with_the_installation_that_it_is_a_part_of(tmp_path: Path) -> None:
    def write(path: str) -> Path:
        made = tmp_path / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("")
        return made

    def link(path: str, target: Path) -> str:
        made = tmp_path / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.symlink_to(target)
        return str(made)

    script = write("npm/lib/node_modules/@x/agent/cli.js")
    assert program_places(link("npm/bin/agent", script)) == (str(script), str(tmp_path / "npm/lib/node_modules"))
    binary = write("share/agent/versions/2.0")
    assert program_places(link("local/bin/agent", binary)) == (str(binary),)
    write("venv/pyvenv.cfg")
    tool = write("venv/bin/tool")
    assert program_places(link("local/bin/tool", tool)) == (str(tool), str(tmp_path / "venv"))


def test_every_copy_is_a_place_in_the_home_directory() -> None:
    for agent in WHOLE_AGENTS.values():
        for one in agent.files:
            assert isinstance(one, Copied)
            assert one.path == os.path.normpath(one.path)
            assert not one.path.startswith(("/", ".."))


PLAIN = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8")))
TABLES = st.recursive(
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), st.one_of(PLAIN, st.lists(PLAIN, max_size=3))),
    lambda inner: st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(TABLES)
def test_settings_are_written_as_toml_reads_them(said: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(said)) == said


@pytest.mark.parametrize("said", [{"list": [{"a": 1}]}, {"deep": {"list": [{"a": 1}]}}])
def test_what_this_does_not_write_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        dump_toml(said)
