# SPDX-License-Identifier: Apache-2.0
"""docs/design/requirements.md is whole: every item of the checklist, and nothing named that does not exist."""

import ast
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

ITEMS = 228
AT_MOST = 8
COMPONENTS_OF_THE_SEEDS = (
    "Bubble Overlay Monitor Request Tool RequestBase ChatPermission Permission Folder FileBase ProjectFiles "
    "ProjectManager build_roots can_wrap prepare_rootfs detect_arch get_latest_version get_rootfs_dir is_rootfs_ready "
    "download_rootfs extract_rootfs install_packages SandboxedShellBackend"
).split()

DOCUMENT = ROOT / "docs" / "design" / "requirements.md"
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$")
TEST = re.compile(r"^`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`$")
RULE = re.compile(r"^rule ([CDU])(\d+)$")
COMPONENT = re.compile(r"^\| (?P<theirs>[^|]+) \| (?P<ours>`unspill[^|]+) \| (?P<shown>[^|]+) \|$")
RULES = {"C": 27, "D": 34, "U": 6}


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
    return matched is not None and 1 <= int(matched[2]) <= RULES[matched[1]]


def test_every_item_is_there_in_order() -> None:
    assert list(rows()) == list(range(1, ITEMS + 1))


def test_everything_that_is_named_exists() -> None:
    unknown = {item: [part for part in parts if not is_known(part)] for item, parts in rows().items()}
    assert {item: parts for item, parts in unknown.items() if parts} == {}


def test_every_item_has_a_test() -> None:
    assert [item for item, parts in rows().items() if not any(map(TEST.match, parts))] == []


def test_every_rule_is_named_and_explained() -> None:
    explained = set(re.findall(r"^\| ([CDU]\d+) \| ", DOCUMENT.read_text("utf-8"), re.MULTILINE))
    named = {part.removeprefix("rule ") for parts in rows().values() for part in parts if RULE.match(part)}
    assert named == explained == {f"{letter}{n}" for letter, count in RULES.items() for n in range(1, count + 1)}


def test_no_test_stands_for_many_items() -> None:
    """One test that is named everywhere proves nothing in particular."""
    named = [part for parts in rows().values() for part in parts if TEST.match(part)]
    assert {part: named.count(part) for part in named if named.count(part) > AT_MOST} == {}


def components() -> list[tuple[str, str]]:
    """Return each name of ours in the table of components, with the test that stands beside it."""
    lines = filter(None, map(COMPONENT.match, DOCUMENT.read_text("utf-8").splitlines()))
    return [(name.strip("`"), line["shown"]) for line in lines for name in line["ours"].split("<br>")]


@pytest.mark.parametrize(("name", "shown"), components())
def test_a_component_is_where_the_table_says(name: str, shown: str) -> None:
    assert is_known(shown)
    assert is_there(name)


def is_there(name: str) -> bool:
    """Tell whether a module, or something that is defined at its top, has this name; frameworks are not imported."""
    path = ROOT / "src" / name.replace(".", "/")
    if path.with_suffix(".py").is_file() or path.is_dir():
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize(
    "name", ["unspill.plan.no_such", "unspill.no_such.build", "unspill.sandbox.sandbox.Sandbox.no"]
)
def test_a_component_that_is_gone_is_noticed(name: str) -> None:
    assert not is_there(name)


def test_the_table_has_every_component_of_the_seeds() -> None:
    text = DOCUMENT.read_text("utf-8").partition("## 1.A")[0]
    assert [name for name in COMPONENTS_OF_THE_SEEDS if name not in text] == []


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("`tests/architecture/test_requirements_map.py::test_every_item_is_there_in_order`", True),
        ("`tests/architecture/test_requirements_map.py::test_no_such_test`", False),
        ("`tests/no_such_file.py::test_x`", False),
        ("later: some day", False),
        ("rule D34", True),
        ("rule D35", False),
        ("rule U7", False),
        ("rule E1", False),
        ("", False),
    ],
)
def test_what_does_not_exist_is_noticed(part: str, expected: bool) -> None:
    assert is_known(part) is expected
