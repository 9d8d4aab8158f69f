# SPDX-License-Identifier: Apache-2.0
"""The shape of the code: few files, small packages, imports that stand at the top and lead in one direction.

Each bound is a ratchet: it only goes down until it is at its goal. Lines are reported by scripts/shape.py, not bounded.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.building import load_script

# What is there now, and where it is to go
BOUNDS = {
    # Three for coding agents: the verb for whole ones, their homes, a plug-in. Three for the standby: its client in two
    # parts, and itself.
    # One for the log, which was a part of the history. Three for whole projects: rows, what is done to them, verbs.
    # Two for merging: the merge, and what it starts from. One for blame. Two that are made from the tables of the
    # command line: what completes it, and its manual. One for the file that a project begins with, one for the pager.
    # Three for the report: the verb, its facts, its page. One that counts how far long work is.
    # One for the package managers that are asked for their hosts, one for the verb that learns what a command needs
    # Six for the review screen: what is picked, where that is read, its panes, the screen, the program that finds
    # colours, and the questions where there is no screen
    "files": (184, 130),
    # Of `cli`, with `learn`, `report` and the questions that stand for the review screen
    "most_files_in_a_package": (23, 15),
    "circles": (0, 0),
    "modules in circles": (0, 0),
    "class_names_twice": (0, 0),
    # Two for a log that starts in time: the run of a command, and what only file tools need; one for the pager, one for
    # merging, one for package managers, one for sequences on a terminal. Three for the review screen: its verb, itself,
    # and what finds colours in a process of its own
    "late_imports": (99, 80),
    "late_imports_without_a_feature": (0, 0),
    # Two for the client of the standby, whose start is most of what a hook costs
    "private_modules": (4, 0),
    "names of what somebody does": (0, 0),
}
# Steps of the one flow from a command to its result
STEPS = frozenset("opening planning running staging".split())


shape = load_script("shape")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The shape of the package as it is."""
    return measured(shape.load())


def measured(modules: dict[str, Any]) -> dict[str, Any]:
    """Return the shape, and what only the rules about names need."""
    counted: dict[str, Any] = shape.shape(modules)
    counted["modules in circles"] = sum(len(group) for group in counted["circles"])
    counted["names of what somebody does"] = [name for name in modules if is_gerund(name.rpartition(".")[2])]
    return counted


def is_gerund(name: str) -> bool:
    """Tell whether a file is named after an activity, `asking` or `held_asking`, that is no step of the flow."""
    return name not in STEPS and any(re.fullmatch(r".{2,}ing", word) for word in name.split("_"))


def count(value: Any) -> int:
    return value if isinstance(value, int) else len(value)


@pytest.mark.parametrize("what", BOUNDS)
def test_the_code_keeps_its_shape(found: dict[str, Any], what: str) -> None:
    bound, goal = BOUNDS[what]
    assert goal <= bound
    assert count(found[what]) <= bound, found[what]


def test_what_breaks_a_rule_is_seen(tmp_path: Path) -> None:
    """The control arm: a small package in which everything is wrong."""
    files = {
        "host/spawner.py": "import _socket\n",
        "a/asking.py": "from p.b import two\nimport _json\nclass Twice: pass\n",
        "b/two.py": "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from p.a.asking import Twice\nclass Twice: pass\n",
        "b/three.py": "def f():\n    import os\n    import sys  # lazy: x\nj = lazy_module('json')\n",
        "b/four.py": '"""One.\n\nTwo."""\n\n# Three\nx = """\n"""\n',
    }
    for name, text in files.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    seen = measured(shape.load(tmp_path))
    assert (seen["files"], seen["most_files_in_a_package"]) == (5, 3)
    assert seen["circles"] == [["p.a", "p.b"]]
    assert seen["class_names_twice"] == ["Twice"]
    assert (seen["late_imports"], seen["late_imports_without_a_feature"]) == (3, 2)
    assert seen["private_modules"] == ["p.a.asking: _json", "p.host.spawner: _socket"]
    assert seen["names of what somebody does"] == ["p.a.asking"]
    assert seen["packages"]["p.b"]["longest"] == 4


def test_circles_are_found_by_every_way_through_them() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"f2"}, "f2": {"f"}}
    assert shape.circles(edges) == [["a", "b", "c"], ["f", "f2"]]
