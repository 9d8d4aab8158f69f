# SPDX-License-Identifier: Apache-2.0
"""docs/design/requirements.md is whole: every item of the checklist, and nothing named that does not exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

ITEMS = 228

DOCUMENT = ROOT / "docs" / "design" / "requirements.md"
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$")
TEST = re.compile(r"^`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`$")
RULE = re.compile(r"^rule ([CD])(\d+)$")


@cache
def rows() -> dict[int, list[str]]:
    """Return what stands in the last column, by item."""
    found: dict[int, list[str]] = {}
    for line in DOCUMENT.read_text("utf-8").splitlines():
        if matched := ROW.match(line):
            assert int(matched[1]) not in found, f"item {matched[1]} stands there twice"
            found[int(matched[1])] = [part.strip() for part in matched[3].split("<br>")]
    return found


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_known(part: str) -> bool:
    """Tell whether one entry is a test that exists or a rule of the checklist."""
    if matched := TEST.match(part):
        return Path(ROOT / matched[1]).is_file() and matched[2] in functions_of(matched[1])
    matched = RULE.match(part)
    return matched is not None and 1 <= int(matched[2]) <= {"C": 27, "D": 34}[matched[1]]


def test_every_item_is_there_in_order() -> None:
    assert list(rows()) == list(range(1, ITEMS + 1))


def test_everything_that_is_named_exists() -> None:
    unknown = {item: [part for part in parts if not is_known(part)] for item, parts in rows().items()}
    assert {item: parts for item, parts in unknown.items() if parts} == {}


def test_every_item_has_a_test() -> None:
    assert [item for item, parts in rows().items() if not any(map(TEST.match, parts))] == []


def test_every_rule_that_is_named_is_explained() -> None:
    explained = set(re.findall(r"^\| ([CD]\d+) \| ", DOCUMENT.read_text("utf-8"), re.MULTILINE))
    named = {part.removeprefix("rule ") for parts in rows().values() for part in parts if RULE.match(part)}
    assert named == explained


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("`tests/architecture/test_requirements_map.py::test_every_item_is_there_in_order`", True),
        ("`tests/architecture/test_requirements_map.py::test_no_such_test`", False),
        ("`tests/no_such_file.py::test_x`", False),
        ("later: some day", False),
        ("rule D34", True),
        ("rule D35", False),
        ("rule E1", False),
        ("", False),
    ],
)
def test_what_does_not_exist_is_noticed(part: str, expected: bool) -> None:
    assert is_known(part) is expected
