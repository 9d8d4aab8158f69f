# SPDX-License-Identifier: Apache-2.0
"""README, ARCHITECTURE, SECURITY and the glossary: short, complete, and true of the code that is there."""

import re

import pytest

import unspill
from tests.docs.tables import ROOT, section
from unspill.cli.main import VERBS
from unspill.model.policy import Policy
from unspill.policy.config import ENGINES, VIEWS

PACKAGE = ROOT / "src" / "unspill"
PATH = re.compile(r"`((?:[\w.*-]+/)*[\w*-]+\.(?:py|md|toml))`")
# In the person's or a project's directory, not in this one
ELSEWHERE = {".unspill.toml", "config.toml", "unspill/config.toml", "main.py", "notes.txt"}


def text_of(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


@pytest.mark.parametrize(
    ("document", "words"),
    [("README.md", 805), ("ARCHITECTURE.md", 2989), ("SECURITY.md", 2650), ("docs/concepts.md", 1985)],
)
def test_an_overview_stays_short(document: str, words: int) -> None:
    assert len(text_of(document).split()) <= words


def test_every_package_is_in_the_code_map() -> None:
    listed = section("ARCHITECTURE.md", "Code map")
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    drawn = {word for line in listed.splitlines() for word in re.findall(r"^[a-z]+(?: \| [a-z]+)*(?=  )", line)}
    assert {name for line in drawn for name in line.split(" | ")} == packages | {"errors"}
    assert set(re.findall(r"^- \*\*(\w+)\*\*", listed, re.MULTILINE)) == packages


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_is_there(document: str) -> None:
    named = set(PATH.findall(text_of(document))) - ELSEWHERE
    missing = [name for name in named if not any((*ROOT.glob(name), *PACKAGE.rglob(name)))]
    assert missing == []


@pytest.mark.parametrize("word", sorted({*VERBS, *VIEWS, *ENGINES} - {"blame", "completion", "init", "log", "show"}))
def test_a_word_of_the_command_line_is_in_the_glossary(word: str) -> None:
    assert re.search(rf"\b{word}\b", text_of("docs/concepts.md"))


@pytest.mark.parametrize(
    "name",
    sorted(
        set(unspill.__all__) - {"__version__", "RunResult", "UnspillError", "Started", "Ended", "Output", "OutputChunk"}
    ),
)
def test_a_public_name_is_in_the_glossary(name: str) -> None:
    spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    assert re.search(rf"\b({name}|{spelled})\b", text_of("docs/concepts.md"), re.IGNORECASE)


def test_the_readme_says_what_is_not_protected_from() -> None:
    limits = section("README.md", "What it does not protect from")
    for word in ("kernel", "gVisor", "virtual machine", "seccomp", "unread", "Secrets inside the project", "root"):
        assert word in limits


def test_the_readme_leads_with_undo_as_runs_are_applied() -> None:
    assert Policy().after == "apply"
    (first, *_rest) = [line for line in text_of("README.md").splitlines() if line.startswith("$ ")][1:]
    assert first == "$ unspill undo"
