# SPDX-License-Identifier: Apache-2.0
"""The manual pages, checked and shown by the programs that people read them with."""

import os
import subprocess
from pathlib import Path

import pytest

from unspill.cli.main import VERBS, find_verb
from unspill.cli.manual import pages

DATE = "2026-01-31"


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    """A directory with all pages."""
    for name, text in pages(DATE).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def show(*words: str | Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "200", "MANROFFOPT": ""}
    return subprocess.run(words, env=variables, capture_output=True, text=True, check=False)


def test_there_is_a_page_for_every_verb_and_for_the_program(manual: Path) -> None:
    assert {path.name for path in manual.iterdir()} == {"unspill.1", *(f"unspill-{verb}.1" for verb in VERBS)}


def test_mandoc_has_nothing_to_say_about_them(manual: Path) -> None:
    done = show("mandoc", "-T", "lint", "-W", "style", *sorted(manual.iterdir()))
    # It looks for the pages that others refer to in its own directories
    assert [line for line in done.stdout.splitlines() if "referenced manual not found" not in line] == []
    assert done.stderr == ""


def test_mandoc_sees_a_mistake(manual: Path) -> None:
    page = manual / "unspill.1"
    page.write_text(page.read_text().replace(".SH OPTIONS", ".SX OPTIONS"))
    assert "macro" in show("mandoc", "-T", "lint", page).stdout


def test_man_shows_them_without_a_warning(manual: Path) -> None:
    done = show("man", "--warnings", "--local-file", *sorted(manual.iterdir()))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("SEE ALSO") == len(VERBS) + 1


@pytest.mark.parametrize("verb", ["run", "apply", "rootfs", "shell"])
def test_a_page_shows_every_option_as_it_is_typed(manual: Path, verb: str) -> None:
    text = show("man", "--local-file", manual / f"unspill-{verb}.1").stdout
    found = find_verb(verb)
    for option in found.options:
        names = ", ".join(name for name in (option.short, option.name) if name)
        assert f"\n       {names} {option.metavar}".rstrip() in text
    assert " ".join(f"unspill {verb} [options] {found.positional}".split()) in " ".join(text.split())
