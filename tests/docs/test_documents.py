# SPDX-License-Identifier: Apache-2.0
"""Every shell and Python block of README.md, ARCHITECTURE.md, SECURITY.md and docs/ is run, in order, in a new home.

Links between documents lead to files and headings that are there.
"""

import re
import time
from pathlib import Path

import pytest

from tests.docs.blocks import OTHER_NAMES, BadBlock, Step, find_blocks
from tests.docs.performing import PROJECT, TIMEOUT_S, make_demo, perform, steps_of, verify

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Its blocks prepare a machine for the tests; `.ci/run` does the same
RUN_DOCUMENTS = [name for name in DOCUMENTS if name != "CONTRIBUTING.md"]
LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(#(?P<anchor>[^)]*))?\)")
HEADING = re.compile(r"^#+ (?P<words>.*)$", re.MULTILINE)
# A block that another test runs, in a place that these have not
ELSEWHERE = re.compile(r"run by (?P<test>tests/[\w/]+\.py)")
INSTALL = re.compile(r"(sudo )?(apt|apt-get|dnf|pacman|zypper|apk|pip|pipx|uv|git clone|python3? -m (venv|pip))\b")


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The project of the documents, in a home of its own."""
    return make_demo(tmp_path / "home")


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("document", RUN_DOCUMENTS)
def test_commands_print_what_the_document_shows(document: str, demo: Path, tmp_path: Path, bwrap: Path) -> None:
    """The time buys every command of the document, run for real in a new home."""
    found = steps_of((ROOT / document).read_text("utf-8"))
    verify(document, found, perform(found, demo, tmp_path / "steps"))


@pytest.mark.parametrize("document", RUN_DOCUMENTS)
def test_only_commands_that_install_something_are_left_out(document: str) -> None:
    left_out = [
        line.removeprefix("$ ")
        for block in find_blocks((ROOT / document).read_text("utf-8"))
        if block.not_run is not None and not is_run_elsewhere(document, block.not_run)
        for line in block.content
        if line.strip()
    ]
    assert [line for line in left_out if not INSTALL.match(line)] == []


def is_run_elsewhere(document: str, reason: str) -> bool:
    """Tell whether the reason names a test that there is, and that reads this document."""
    named = ELSEWHERE.search(reason)
    return named is not None and f'"{document}"' in (ROOT / named["test"]).read_text("utf-8")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_shell_block_hides_behind_another_name(document: str) -> None:
    blocks = find_blocks((ROOT / document).read_text("utf-8"))
    assert [block.line for block in blocks if block.language in OTHER_NAMES] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_of_the_project(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    targets = {match["target"] for match in LINK.finditer(text)} - {""}
    local = {target for target in targets if "://" not in target}
    assert [target for target in local if not (ROOT / document).parent.joinpath(target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_headings(document: str) -> None:
    path = ROOT / document
    found = [match for match in LINK.finditer(path.read_text("utf-8")) if match["anchor"]]
    local = [(path.parent / match["target"] if match["target"] else path, match["anchor"]) for match in found]
    assert [anchor for target, anchor in local if anchor not in anchors_of(target)] == []


def anchors_of(document: Path) -> set[str]:
    """Return what a browser jumps to in a document: its headings in small letters, with hyphens for blanks."""
    headings = [match["words"].lower() for match in HEADING.finditer(document.read_text("utf-8"))]
    return {re.sub(r"[^\w -]", "", words).replace(" ", "-") for words in headings}


def test_steps_share_one_shell_and_one_directory(demo: Path, tmp_path: Path) -> None:
    found = [
        Step(line=1, script="mkdir sub && cd sub && name=value", expected=()),
        Step(line=2, script='basename "$PWD"; echo $name', expected=("sub", "value")),
        Step(line=3, script="cd ..\ncat main.py", expected=None),
        Step(line=4, script='basename "$PWD" >&2', expected=("demo",)),
    ]
    results = perform(found, demo, tmp_path / "steps")
    assert results == [(0, ""), (0, "sub\nvalue\n"), (0, PROJECT["main.py"]), (0, "demo\n")]
    verify("example", found, results)


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (Step(line=7, script="echo no; false", expected=("no",)), "ended with 1"),
        (Step(line=7, script="exit 3", expected=()), "ended with 1"),
        (Step(line=7, script="false\ntrue", expected=None), "ended with 1"),
        (Step(line=7, script="echo two", expected=("one",)), "but the document shows:\none"),
    ],
)
def test_the_first_difference_is_reported_with_its_line(step: Step, complaint: str, demo: Path, tmp_path: Path) -> None:
    found = [step, Step(line=9, script="true", expected=())]
    with pytest.raises(pytest.fail.Exception, match=f"example:7(.|\n)*{complaint}"):
        verify("example", found, perform(found, demo, tmp_path / "steps"))


def test_an_output_block_is_what_the_program_before_it_prints(demo: Path, tmp_path: Path) -> None:
    page = "```python\nprint(6 * 7)\n```\n\n```output\n{}\n```\n"
    verify("example", steps_of(page.format(42)), perform(steps_of(page.format(42)), demo, tmp_path / "right"))
    with pytest.raises(pytest.fail.Exception, match="but the document shows:\n43"):
        verify("example", steps_of(page.format(43)), perform(steps_of(page.format(43)), demo, tmp_path / "wrong"))


def test_an_output_block_of_nothing_is_an_error() -> None:
    with pytest.raises(BadBlock, match="line 2"):
        steps_of("```output\n42\n```\n")


def test_what_a_document_leaves_running_is_ended(demo: Path, tmp_path: Path) -> None:
    found = [Step(line=1, script="sleep 1000 & echo $!", expected=("...",))]
    ((status, printed),) = perform(found, demo, tmp_path / "steps")
    assert status == 0
    deadline = time.monotonic() + 10
    while is_alive(int(printed)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(int(printed))


def is_alive(pid: int) -> bool:
    """Tell whether a process still runs; one that only waits to be reaped by init does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
