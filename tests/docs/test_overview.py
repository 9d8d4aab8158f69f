# SPDX-License-Identifier: Apache-2.0
"""README, ARCHITECTURE, SECURITY and the glossary: short, complete, and true of the code that is there."""

import re

import pytest

import unspill
import unspill.errors
from tests.docs.blocks import RUN, find_blocks
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
    [("README.md", 790), ("ARCHITECTURE.md", 3013), ("SECURITY.md", 2650), ("docs/concepts.md", 1987)],
)
def test_an_overview_stays_short(document: str, words: int) -> None:
    assert len(text_of(document).split()) <= words


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs" / "guide").glob("*.md")))
def test_a_page_of_the_guide_is_short_begins_with_a_task_and_shows_commands(page: str) -> None:
    text = text_of(f"docs/guide/{page}")
    assert len(text.split()) <= 660
    task = text.split("\n\n")[1]
    assert re.search(r"\b(you|your)\b", task, re.IGNORECASE) or "want" in task
    assert any(block.language in RUN for block in find_blocks(text))


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


@pytest.mark.parametrize(
    "word", sorted({*VERBS, *VIEWS, *ENGINES} - {"blame", "completion", "init", "learn", "log", "report", "show"})
)
def test_a_word_of_the_command_line_is_in_the_glossary(word: str) -> None:
    assert re.search(rf"\b{word}\b", text_of("docs/concepts.md"))


# What an event or a result is made of, and errors, whose docstrings say when they are raised
UNEXPLAINED = {"__version__", "RunResult", "Started", "Ended", "Output", "OutputChunk", "Hint", "Traffic"}
UNEXPLAINED |= {name for name in unspill.__all__ if name in vars(unspill.errors)}


@pytest.mark.parametrize("name", sorted(set(unspill.__all__) - UNEXPLAINED))
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


def test_the_changelog_has_this_version_with_its_day_and_short_entries() -> None:
    text = text_of("CHANGELOG.md")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert re.fullmatch(
        rf"{re.escape(unspill.__version__)} \(\d{{4}}-\d\d-\d\d\)", headings[headings[0] == "Unreleased"]
    )
    entries = re.findall(r"^- (.*)$", text, re.MULTILINE)
    assert [entry for entry in entries if len(entry.split()) > 25] == []
