# SPDX-License-Identifier: Apache-2.0
"""Settings go into a text and out of it again, and nothing else in it changes by a byte."""

import json
import os
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.setup.existing import EXISTING
from unspill.errors import UsageError
from unspill.setup.agents import AGENTS_TO_SET_UP, Edit, SetupMeans, plan_edits
from unspill.setup.edit import Setting, look_up, merge, parse, read_json, remove

COMMAND = "/opt/un spill/bin/unspill hook x || { echo 'no \u2713' >&2; exit 2; }"
HOOK = {"matcher": "Bash", "hooks": [{"type": "command", "command": COMMAND, "timeout": 30}]}
CASES = [
    (name, mode, number)
    for name, files in EXISTING.items()
    for mode in AGENTS_TO_SET_UP[name].modes
    for number in range(len(files))
]


def edits_for(name: str, mode: str, number: int) -> list[tuple[Edit, str]]:
    """Return what `setup` does to one row of the table, with the texts that are there."""
    files = EXISTING[name][number]
    means = SetupMeans(
        home="/home/ann",
        environ={},
        hooks=(
            ("BeforeTool" if name == "gemini-cli" else "PreToolUse", HOOK),
            ("BeforeTool" if name == "gemini-cli" else "PreToolUse", {**HOOK, "matcher": "^(Edit|Write)$"}),
            ("SessionStart", {"hooks": HOOK["hooks"]}),
        ),
        server={"command": "/opt/un spill/bin/unspill", "args": ["mcp"]},
        unspill="unspill",
        read=lambda path: files.get(os.path.basename(path)),
        trust=lambda _matcher, _hook, event: f"sha256:{event}",
    )
    return [(edit, files.get(os.path.basename(edit.path), "")) for edit in plan_edits(name, mode, means)]


def has_all(old: Any, new: Any, replaced: list[tuple[str, ...]], path: tuple[str, ...] = ()) -> bool:
    """Tell whether everything of one value is in another, but for what is replaced."""
    if path in replaced:
        return True
    if isinstance(old, dict):
        return isinstance(new, dict) and all(
            key in new and has_all(value, new[key], replaced, (*path, key)) for key, value in old.items()
        )
    if isinstance(old, list):
        return isinstance(new, list) and new[: len(old)] == old
    return bool(old == new)


def is_there(whole: dict[str, Any], setting: Setting) -> bool:
    found = look_up(whole, setting.path)
    return setting.value in found if setting.is_item else bool(found == setting.value)


def test_there_are_eight_files_for_each_agent() -> None:
    assert {name: len(files) for name, files in EXISTING.items()} == dict.fromkeys(AGENTS_TO_SET_UP, 8)


@pytest.mark.parametrize(("name", "mode", "number"), CASES)
def test_an_existing_file_has_both_and_is_the_old_one_afterwards(name: str, mode: str, number: int) -> None:
    for edit, text in edits_for(name, mode, number):
        merged = merge(edit.form, text, edit.settings)
        whole = parse(edit.form, merged)
        assert all(is_there(whole, setting) for setting in edit.settings), merged
        replaced = [setting.path for setting in edit.settings if not setting.is_item]
        assert has_all(parse(edit.form, text), whole, replaced), merged
        assert merge(edit.form, merged, edit.settings) == merged
        assert remove(edit.form, merged, edit.settings, text) == text


@pytest.mark.parametrize(("name", "mode", "number"), CASES)
def test_what_a_person_writes_afterwards_stays_and_the_rest_is_the_old_file(name: str, mode: str, number: int) -> None:
    for edit, text in edits_for(name, mode, number):
        merged = merge(edit.form, text, edit.settings)
        comment = "// later\n" if edit.form == "json" else "# later\n"
        if merged.startswith("\ufeff") or not text.strip():
            continue
        assert remove(edit.form, comment + merged, edit.settings, text) == comment + text


@pytest.mark.parametrize(("name", "mode", "number"), CASES)
def test_settings_that_the_agent_has_written_anew_are_still_removed(name: str, mode: str, number: int) -> None:
    for edit, text in edits_for(name, mode, number):
        if edit.form != "json":
            continue
        anew = json.dumps({"first": 1, **parse("json", merge("json", text, edit.settings)), "last": [2]}, indent=4)
        left = parse("json", remove("json", anew, edit.settings, text))
        assert left == {"first": 1, **parse("json", text), "last": [2]}


def test_what_was_changed_since_is_left_alone() -> None:
    setting = Setting(path=("permission", "bash"), value="deny")
    merged = merge("json", '{"permission": {"bash": "ask"}}', (setting,))
    mine = merged.replace("deny", "allow")
    assert remove("json", mine, (setting,), '{"permission": {"bash": "ask"}}') == mine


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("json", "{"),
        ("json", "[]"),
        ("json", '{"a": 1} {"b": 2}'),
        ("json", '{"hooks": []}'),
        ("json", '{"hooks": {"PreToolUse": {}}}'),
        ("json", '{"a" 1}'),
        ("json", "{/* }"),
        ("toml", "a ="),
        ("toml", "hooks = 1"),
        ("toml", "hooks = {x = 1}"),
    ],
)
def test_a_file_that_can_not_be_edited_is_refused(form: str, text: str) -> None:
    wanted = Setting(path=("hooks", "PreToolUse"), value={"a": 1}) if form == "toml" else None
    with pytest.raises(UsageError):
        merge(form, text, (wanted or Setting(path=("hooks", "PreToolUse"), value=HOOK, is_item=True),))


SPACES = st.sampled_from(["", " ", "\n", "\n  ", "\t", " // c\n", "/* c, } */", "\n    "])
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["", "a", '"', "//", "\u2713", "{", "\\", "\n"])
)
KEYS = st.sampled_from(["hooks", "PreToolUse", "SessionStart", "permissions", "x", 'q"', "\u00fc"])


@st.composite
def json_texts(draw: st.DrawFn, depth: int = 3, *, is_object: bool = False) -> str:
    """Return an object or another value, with spaces and comments between all of its words."""
    kind = "object" if is_object else draw(st.sampled_from(["leaf", "list", "object"] if depth else ["leaf"]))
    if kind == "leaf":
        return json.dumps(draw(LEAVES), ensure_ascii=draw(st.booleans()))
    parts = []
    keys = draw(st.lists(KEYS, max_size=3, unique=True))
    for key in keys:
        value = draw(json_texts(depth - 1, is_object=key == "hooks" and depth == 3))
        if key in ("PreToolUse", "SessionStart") and depth == 2:
            value = f"[{draw(SPACES)}{value}{draw(SPACES)}]"
        name = f"{json.dumps(key)}{draw(SPACES)}:{draw(SPACES)}" if kind == "object" else ""
        parts.append(f"{draw(SPACES)}{name}{value}{draw(SPACES)}")
    comma = draw(SPACES)
    if parts:
        comma = draw(st.sampled_from(["", f",{comma}"]))
    opening, closing = "{}" if kind == "object" else "[]"
    return opening + ",".join(parts) + comma + closing


WANTED = (
    Setting(path=("hooks", "PreToolUse"), value=HOOK, is_item=True),
    Setting(path=("hooks", "SessionStart"), value={"hooks": []}, is_item=True),
    Setting(path=("x",), value=False),
)


@given(json_texts(is_object=True))
@settings(max_examples=60, deadline=None)
def test_any_json_is_the_same_after_merge_and_remove(text: str) -> None:
    merged = merge("json", text, WANTED)
    whole = parse("json", merged)
    assert all(is_there(whole, setting) for setting in WANTED)
    assert remove("json", merged, WANTED, text) == text
    assert remove("json", "/* later */" + merged, WANTED, text) == "/* later */" + text


@given(json_texts(is_object=True))
@settings(max_examples=60, deadline=None)
def test_plain_json_is_read_as_python_reads_it(text: str) -> None:
    value = parse("json", text)
    plain = json.dumps(value)
    assert read_json(plain).value == json.loads(plain) == value


TOML_LINES = st.lists(
    st.sampled_from(
        [
            "a = 1",
            "b = '''\n[features]\n'''",
            "# c",
            "",
            "x = [\n  1, # one\n  [2],\n]",
            "features.y = true",
            'sandbox_mode = "read-only" # why',
            "  'quoted = key' = 1",
        ]
    ),
    unique=True,
    max_size=5,
)
TOML_TABLES = st.lists(
    st.sampled_from(
        [
            "[t]\nx = 1",
            "[[l]]\nx = 1",
            "[features]",
            "[features.z]",
            "[mcp_servers.other]\ncommand = 'x'",
            "[ 'q.q' ]\n# c",
        ]
    ),
    unique=True,
    max_size=4,
)
TOML_WANTED = (
    Setting(path=("mcp_servers", "unspill"), value={"command": "/a b", "args": ["mcp", "\x7f"]}),
    Setting(path=("sandbox_mode",), value="danger-full-access"),
    Setting(path=("features", "shell_tool"), value=False),
)


@given(TOML_LINES, TOML_TABLES, st.sampled_from(["\n", "\r\n"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_toml_is_the_same_after_merge_and_remove(
    lines: list[str], tables: list[str], end: str, is_ended: bool
) -> None:
    text = "\n".join([*lines, *tables]).replace("\n", end) + (end if is_ended else "")
    try:
        tomllib.loads(text)
    except ValueError:
        return
    merged = merge("toml", text, TOML_WANTED)
    whole = tomllib.loads(merged)
    assert all(is_there(whole, setting) for setting in TOML_WANTED)
    assert remove("toml", merged, TOML_WANTED, text) == text
    later = f"# later{end}"
    assert tomllib.loads(remove("toml", later + merged, TOML_WANTED, text)) == tomllib.loads(text)
