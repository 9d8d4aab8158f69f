# SPDX-License-Identifier: Apache-2.0
"""A model's arguments against the schema that it was shown, and the paths by which programs import the tools."""

import importlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.adapters import tools
from unspill.adapters.tools import check_arguments
from unspill.errors import UsageError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "flag": {"type": "boolean"},
        "size": {"type": "number"},
        "name": {"type": "string", "minLength": 1},
        "time": {"type": "number", "exclusiveMinimum": 0, "maximum": 9.5},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "paths": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["text"],
    "additionalProperties": False,
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)

GOOD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the least": ({"text": ""}, {"text": ""}),
    "all": (
        {"text": "a", "flag": False, "size": 1, "count": 9, "paths": ["a", "b"]},
        {"text": "a", "flag": False, "size": 1, "count": 9, "paths": ["a", "b"]},
    ),
    "null is not given": ({"text": "a", "flag": None, "count": None}, {"text": "a"}),
    "a whole number with a point": ({"text": "a", "count": 3.0}, {"text": "a", "count": 3}),
    "a time": ({"text": "", "time": 0.1}, {"text": "", "time": 0.1}),
    "more time than there is": ({"text": "", "time": 10**5000}, {"text": "", "time": 9.5}),
    "endless time": ({"text": "", "time": float("inf")}, {"text": "", "time": 9.5}),
    "a name that is not UTF-8": ({"text": "\udcff"}, {"text": "\udcff"}),
}
KINDS = {
    "text": "a text",
    "flag": "true or false",
    "size": "a number",
    "count": "a whole number",
    "paths": "a list of at most 2 texts",
}


def kind(name: str, shown: object) -> str:
    return f"the argument {name} must be {KINDS[name]}: {shown}"


BAD: dict[str, tuple[Any, str]] = {
    "no object": (["text"], "the arguments are not an object: ['text']"),
    "nothing": (None, "the arguments are not an object: None"),
    "unknown": ({"text": "", "sudo": 1}, "there is no argument 'sudo'"),
    "missing": ({}, "the argument text is missing"),
    "null for what is needed": ({"text": None}, "the argument text is missing"),
    "a number for a text": ({"text": 1}, kind("text", 1)),
    "half a character": ({"text": "\ud800"}, kind("text", "'\\ud800'")),
    "a number for a flag": ({"text": "", "flag": 1}, kind("flag", 1)),
    "a flag for a number": ({"text": "", "size": True}, kind("size", True)),
    "a flag for a count": ({"text": "", "count": True}, kind("count", True)),
    "a part of a number": ({"text": "", "count": 1.5}, kind("count", 1.5)),
    "no number": ({"text": "", "count": float("nan")}, kind("count", "nan")),
    "endless": ({"text": "", "count": float("inf")}, kind("count", "inf")),
    "too small": ({"text": "", "count": 0}, "the argument count must be from 1 to 9: 0"),
    "too large": ({"text": "", "count": 10}, "the argument count must be from 1 to 9: 10"),
    "far too large": (
        {"text": "", "count": 10**5000},
        "the argument count must be from 1 to 9: something too long to be told",
    ),
    "no time": ({"text": "", "time": 0}, "time must be more than 0: 0"),
    "less than no time": ({"text": "", "time": -(10**5000)}, "time must be more than 0: something too long to be told"),
    "a time that is no number": ({"text": "", "time": float("nan")}, "time must be more than 0: nan"),
    "no name": ({"text": "", "name": ""}, "Name cannot be empty"),
    "a text for a list": ({"text": "", "paths": "ab"}, kind("paths", "'ab'")),
    "numbers in a list": ({"text": "", "paths": [1]}, kind("paths", [1])),
    "too many in a list": ({"text": "", "paths": ["a"] * 3}, kind("paths", ["a"] * 3)),
    "a long value": ({"text": ["x" * 100]}, kind("text", "['" + "x" * 58)),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_as_the_schema_says_is_taken(case: str) -> None:
    arguments, expected = GOOD[case]
    assert check_arguments(SCHEMA, arguments) == expected


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_is_refused_with_its_name(case: str) -> None:
    arguments, message = BAD[case]
    with pytest.raises(UsageError) as caught:
        check_arguments(SCHEMA, arguments)
    assert caught.value.message == message


def test_what_there_is_instead_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        check_arguments(SCHEMA, {"nothing": 1})
    assert caught.value.remedy == "There are text, flag, size, name, time, count, paths."
    with pytest.raises(UsageError) as caught:
        check_arguments({"properties": {}}, {"nothing": 1})
    assert caught.value.remedy == "There are none."


EDIT: dict[str, Any] = {
    "properties": {name: {"type": "string"} for name in ("path", "old", "new")},
    "required": ["path", "old", "new"],
}


def test_the_names_that_models_know_from_other_tools_are_taken_beside_ours() -> None:
    expected = {"path": "a", "old": "b", "new": "c"}
    assert check_arguments(EDIT, {"file_path": "a", "old_string": "b", "new_string": "c"}) == expected
    assert check_arguments(EDIT, {"path": "a", "old_string": "b", "new": "c", "file_path": None}) == expected
    assert check_arguments(EDIT, {"path": None, "old_string": "b", "new": "c", "file_path": "a"}) == expected


def test_one_argument_under_two_names_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        check_arguments(EDIT, {"path": "a", "file_path": "a", "old": "b", "new": "c"})
    assert caught.value.message == "file_path and path are the same argument"
    assert caught.value.remedy == "Leave file_path out."


def test_another_name_is_taken_only_by_tools_that_have_the_argument() -> None:
    with pytest.raises(UsageError, match="there is no argument 'file_path'"):
        check_arguments(SCHEMA, {"text": "", "file_path": "a"})


def _is_as_said(name: str, value: Any) -> bool:
    """Say it again, in other words than the code."""
    match name:
        case "text":
            return type(value) is str and not any(
                "\ud800" <= sign <= "\udc7f" or "\udd00" <= sign <= "\udfff" for sign in value
            )
        case "flag":
            return value is True or value is False
        case "size":
            return type(value) in (int, float)
        case "name":
            return _is_as_said("text", value) and value != ""
        case "time":
            return type(value) in (int, float) and value > 0
        case "count":
            return type(value) in (int, float) and value in range(1, 10)
    return type(value) is list and len(value) <= 2 and all(_is_as_said("text", one) for one in value)


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), ANYTHING))
def test_any_value_is_taken_or_refused_and_nothing_else(arguments: Mapping[str, Any]) -> None:
    is_good = arguments.get("text") is not None and all(
        name != "other" and (value is None or _is_as_said(name, value)) for name, value in arguments.items()
    )
    if is_good:
        values = {name: value for name, value in arguments.items() if value is not None}
        if "time" in values:
            values["time"] = min(values["time"], 9.5)
        assert check_arguments(SCHEMA, arguments) == values
        return
    with pytest.raises(UsageError) as caught:
        check_arguments(SCHEMA, arguments)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("calling", "call_run_command"),
        ("tool", "Tool"),
        ("tool", "run_command_tool"),
        ("toolbox", "call_tool"),
        ("toolbox", "tools_of"),
    ],
)
def test_the_paths_that_were_documented_first_still_lead_to_the_tools(path: str, name: str) -> None:
    assert getattr(importlib.import_module(f"unspill.adapters.{path}"), name) is getattr(tools, name)
