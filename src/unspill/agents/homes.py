# SPDX-License-Identifier: Apache-2.0
"""Home directories of coding agents that run as a whole in a sandbox: each agent has one of its own, which lasts.

A new one gets copies of the agent's own settings and login, of which only what is named here is copied: a file of
settings may also hold tokens of other tools, and commands that would not be found. Later starts touch nothing in it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from tempfile import mkdtemp
from urllib.parse import urlsplit

from unspill.errors import UsageError
from unspill.layers.trees import remove_tree
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

_LARGEST = 1 << 20
_MOST_FILES = 1000
# Where an agent looks instead of its place in the home directory, if the person says so
_MOVED = {".claude.json": "CLAUDE_CONFIG_DIR", ".claude": "CLAUDE_CONFIG_DIR", ".codex": "CODEX_HOME"}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Strings come first, so that nothing inside of one is taken for a comment or a comma
_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)


class Copied(Record):
    """A file or directory of the person's home that the agent gets a copy of.

    Of settings in a `form` it gets the `keys`; `by_project` are those that have a member for each project, of which it
    gets the one that it is started in. `added` are put into them.
    """

    path: str
    form: str = ""
    keys: tuple[str, ...] = ()
    by_project: tuple[str, ...] = ()
    is_by_project: bool = False
    added: tuple[tuple[str, object], ...] = ()


class WholeAgent(Record):
    """One agent. `hosts` are those of its model; `variables` are the beginnings of the names of its own variables."""

    title: str
    hosts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    files: tuple[Copied, ...] = ()


class NewHome(Record):
    """What a new home directory was made from: what was copied, and what could not be, with why."""

    copied: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()


def find_whole_agent(program: str) -> WholeAgent:
    """Return what is known of an agent by its program; of any other program nothing is copied."""
    name = os.path.basename(program)
    return WHOLE_AGENTS.get(name) or WholeAgent(title=name)


def own_variables(agent: WholeAgent, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the person's that are the agent's own, such as the key of its model."""
    moved = _MOVED.values()
    return {name: value for name, value in environ.items() if name.startswith(agent.variables) and name not in moved}


def model_hosts(agent: WholeAgent, variables: Mapping[str, str]) -> list[str]:
    """Return the hosts of an agent's model: those that its own variables name, or else the usual ones."""
    named = [urlsplit(value).hostname for name, value in variables.items() if name.endswith("_BASE_URL")]
    if not named:
        return [*agent.hosts]
    return [host for host in named if host and host not in ("localhost", "127.0.0.1", "::1")]


def program_places(program: str) -> tuple[str, ...]:
    """Return what a sandbox must show for a program to run: the file, and the installation that it is a part of."""
    real = os.path.realpath(program)
    places = [real]
    parts = real.split("/")
    if "node_modules" in parts:
        places.append("/".join(parts[: parts.index("node_modules") + 1]))
    for link in (program, real):
        above = os.path.dirname(os.path.dirname(link))
        if os.path.exists(f"{above}/pyvenv.cfg"):
            places.append(above)
    return tuple(dict.fromkeys(places))


def make_home(place: str, agent: WholeAgent, home: str, project: str, environ: Mapping[str, str]) -> NewHome | None:
    """Make a home directory from copies of the person's settings; None if it is there already.

    Raises:
        UsageError: it can't be made.
    """
    if os.path.lexists(place):
        return None
    try:
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        made = mkdtemp(prefix=".new-", dir=os.path.dirname(place))
        try:
            found = _fill(made, agent, home, project, environ)
            os.rename(made, place)
        except BaseException:
            remove_tree(os.fsencode(made))
            raise
    except FileExistsError:
        return None
    except OSError as error:
        raise UsageError(f"the home directory {place} can't be made: {error.strerror}") from error
    return found


def _fill(made: str, agent: WholeAgent, home: str, project: str, environ: Mapping[str, str]) -> NewHome:
    copied, left = [], []
    for one in agent.files:
        source = _source(one.path, home, environ)
        is_there = os.path.exists(source)
        try:
            for path, content in _contents(one, source, project):
                dest = f"{made}/{path}"
                os.makedirs(os.path.dirname(dest), 0o700, exist_ok=True)
                with open(os.open(dest, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(content)
            copied += [one.path] if is_there else []
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            left.append((one.path, getattr(error, "strerror", None) or str(error)))
    return NewHome(copied=tuple(copied), left=tuple(left))


def _source(path: str, home: str, environ: Mapping[str, str]) -> str:
    top, _slash, rest = path.partition("/")
    moved = environ.get(_MOVED.get(top, ""))
    if not moved:
        return os.path.join(home, path)
    return os.path.join(moved, rest or top)


def _contents(one: Copied, source: str, project: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of which the agent gets a copy, and what is in each."""
    if one.added and not os.path.lexists(source):
        yield one.path, _chosen(one, b"", project)
        return
    if not stat.S_ISDIR(os.stat(source).st_mode):
        content = _read(source)
        yield one.path, _chosen(one, content, project) if one.form else content
        return
    count = 0
    for directory, _names, files in os.walk(source):
        for name in sorted(files):
            path = f"{directory}/{name}"
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            count += 1
            if count > _MOST_FILES:
                raise ValueError(f"it has more than {_MOST_FILES} files")
            yield one.path + path[len(source) :], _read(path)


def _read(path: str) -> bytes:
    # O_NONBLOCK: a FIFO would wait for ever
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            raise ValueError("it is not a small file")
        return file.read()


def _chosen(one: Copied, content: bytes, project: str) -> bytes:
    said = _PARSERS[one.form](content.decode("utf-8-sig"))
    if not isinstance(said, dict):
        raise ValueError("its settings are no object")
    kept: dict[str, Any] = {key: said[key] for key in one.keys if key in said}
    for key in one.by_project:
        members = said.get(key)
        if isinstance(members, dict) and project in members:
            kept[key] = {project: _without_servers(members[project])}
    if one.is_by_project:
        kept |= {project: said[project]} if project in said else {}
    kept |= dict(one.added)
    text = json.dumps(kept, indent=2) + "\n" if one.form == "json" else dump_toml(kept)
    return text.encode()


def _without_servers(value: Any) -> Any:
    """Return what an agent remembers of a project, without what leads to other tools."""
    if not isinstance(value, dict):
        return value
    return {key: one for key, one in value.items() if key in ("hasTrustDialogAccepted", "trust_level")}


def _parse_json(text: str) -> Any:
    """Return what a JSON text says. Agents let people write comments, and a comma behind the last member."""
    without = _LAST_COMMA.sub(r"\1", _COMMENT.sub(r"\1", text))
    return json.loads(without) if without.strip() else {}


def dump_toml(value: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return settings as a TOML text.

    Raises:
        ValueError: there is something in them that this does not write: a date, a list of tables.
    """
    plain = {key: one for key, one in value.items() if not isinstance(one, dict)}
    try:
        lines = [f"{_toml_name((key,))} = {_toml(one)}\n" for key, one in plain.items()]
    except TypeError as error:
        raise ValueError(str(error)) from None
    header = [f"[{_toml_name(path)}]\n"] if path and (plain or not value) else []
    tables = [dump_toml(one, (*path, key)) for key, one in value.items() if isinstance(one, dict)]
    text = "".join((*header, *lines, *tables))
    if not path and tomllib.loads(text) != value:
        raise ValueError("a list of tables")
    return text


def _toml_name(path: tuple[str, ...]) -> str:
    return ".".join(key if _BARE_KEY.fullmatch(key) else _toml(key) for key in path)


def _toml(value: Any) -> str:
    # A text of JSON is one of TOML but for one character
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


_PARSERS: dict[str, Callable[[str], Any]] = {"json": _parse_json, "toml": tomllib.loads}
_GEMINI_KEYS = ("security", "general", "ui", "model", "telemetry", "privacy", "context", "selectedAuthType", "theme")


def _gemini_files(place: str, notes: str) -> tuple[Copied, ...]:
    return (
        Copied(path=f"{place}/settings.json", form="json", keys=_GEMINI_KEYS),
        Copied(path=f"{place}/trustedFolders.json", form="json", is_by_project=True),
        Copied(path=f"{place}/oauth_creds.json"),
        Copied(path=f"{place}/google_accounts.json"),
        Copied(path=f"{place}/installation_id"),
        Copied(path=f"{place}/{notes}"),
    )


WHOLE_AGENTS = {
    "claude": WholeAgent(
        title="Claude Code",
        hosts=("api.anthropic.com", "console.anthropic.com", "claude.ai", "platform.claude.com"),
        variables=("ANTHROPIC_", "CLAUDE_", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "MAX_THINKING_TOKENS"),
        files=(
            Copied(
                path=".claude.json",
                form="json",
                keys=(
                    "hasCompletedOnboarding",
                    "lastOnboardingVersion",
                    "theme",
                    "editorMode",
                    "verbose",
                    "userID",
                    "oauthAccount",
                    "primaryApiKey",
                    "customApiKeyResponses",
                    "bypassPermissionsModeAccepted",
                ),
                by_project=("projects",),
            ),
            Copied(
                path=".claude/settings.json",
                form="json",
                keys=("model", "theme", "language", "outputStyle", "permissions", "attribution", "includeCoAuthoredBy"),
            ),
            Copied(path=".claude/.credentials.json", form="json", keys=("claudeAiOauth", "organizationUuid")),
            Copied(path=".claude/CLAUDE.md"),
            Copied(path=".claude/commands"),
            Copied(path=".claude/agents"),
            Copied(path=".claude/skills"),
        ),
    ),
    "codex": WholeAgent(
        title="Codex",
        hosts=("api.openai.com", "chatgpt.com", "auth.openai.com"),
        variables=("OPENAI_", "CODEX_"),
        files=(
            Copied(
                path=".codex/config.toml",
                form="toml",
                keys=(
                    "model",
                    "model_provider",
                    "model_providers",
                    "model_reasoning_effort",
                    "model_reasoning_summary",
                    "model_verbosity",
                    "approval_policy",
                    "personality",
                    "tui",
                ),
                by_project=("projects",),
                # Inside of ours its own sandbox can't be made
                added=(("sandbox_mode", "danger-full-access"),),
            ),
            Copied(path=".codex/auth.json"),
            Copied(path=".codex/AGENTS.md"),
            Copied(path=".codex/prompts"),
            Copied(path=".codex/skills"),
        ),
    ),
    "gemini": WholeAgent(
        title="Gemini CLI",
        hosts=(
            "generativelanguage.googleapis.com",
            "cloudcode-pa.googleapis.com",
            "oauth2.googleapis.com",
            "accounts.google.com",
        ),
        variables=("GEMINI_", "GOOGLE_API_KEY", "GOOGLE_GEMINI_", "GOOGLE_GENAI_", "GOOGLE_CLOUD_PROJECT"),
        files=_gemini_files(".gemini", "GEMINI.md"),
    ),
    "qwen": WholeAgent(
        title="Qwen Code",
        variables=("QWEN_", "OPENAI_", "DASHSCOPE_"),
        files=_gemini_files(".qwen", "QWEN.md"),
    ),
    "opencode": WholeAgent(
        title="opencode",
        hosts=("opencode.ai", "models.dev"),
        variables=("OPENCODE_",),
        files=(
            *(
                Copied(
                    path=f".config/opencode/{name}",
                    form="json",
                    keys=(
                        "$schema",
                        "theme",
                        "model",
                        "small_model",
                        "provider",
                        "autoupdate",
                        "share",
                        "agent",
                        "keybinds",
                        "tui",
                    ),
                )
                for name in ("opencode.json", "opencode.jsonc")
            ),
            Copied(path=".config/opencode/AGENTS.md"),
            Copied(path=".local/share/opencode/auth.json"),
        ),
    ),
    "cn": WholeAgent(title="Continue", variables=("CONTINUE_",), files=(Copied(path=".continue/config.yaml"),)),
    "pi": WholeAgent(
        title="pi",
        variables=("PI_",),
        files=(
            Copied(path=".pi/agent/settings.json"),
            Copied(path=".pi/agent/models.json"),
            Copied(path=".pi/agent/auth.json"),
            Copied(path=".pi/agent/AGENTS.md"),
        ),
    ),
}
