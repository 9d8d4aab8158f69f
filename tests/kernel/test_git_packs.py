# SPDX-License-Identifier: Apache-2.0
"""Packs that commands bring: git checks each of them in a sandbox, whatever the machine's top directory has.

What CI keeps below /opt must not decide this, so the machine is a view of this one with another /opt, or with none.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.twin_world import IDENTITY
from tests.support import Ground

pytestmark = pytest.mark.kernel

PYTHON = "/mnt/python"
SIZES = (100, 1_000, 100_000) if os.environ.get("UNSPILL_TEST_FULL") == "1" else (100, 1_000)
WORK = {
    "clone": 'git clone -q "file://$PWD/up.git" sub',
    "fetch": 'git fetch -q "file://$PWD/up.git" main:topic',
    "gc": "echo more >> file; git commit -qam more; git gc -q",
    "repack": "echo more >> file; git commit -qam more; git repack -adq",
}


def machine(*options: str, opt: bool = True) -> list[str]:
    """Return a wrapper that shows this machine with an /opt where nothing is mounted, or without one."""
    words = ["bwrap"]
    for path in map(Path, sorted(entry.path for entry in os.scandir("/"))):
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir() and path.name not in ("opt", "mnt"):
            words += ["--dev-bind", str(path), str(path)]
    words += ["--dir", "/opt/tool"] if opt else []
    return [*words, "--dir", "/mnt", "--ro-bind", sys.prefix, PYTHON, *options, "--"]


def unspill(ground: Ground, wrapper: list[str], *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the program on a machine."""
    command = [*wrapper, f"{PYTHON}/bin/python", "-P", "-m", "unspill", *words]
    return subprocess.run(command, cwd=ground.project, capture_output=True, text=True, timeout=600, check=False)


def import_history(repository: Path, word: str, objects: int) -> None:
    """Fill a repository's main with a history of so many objects: each commit brings a text and a tree."""
    lines = []
    for number in range(objects // 3 + 1):
        text = f"{word} {number}\n"
        lines.append(
            f"commit refs/heads/main\ncommitter Ada <ada@example.org> {1_000_000_000 + number} +0000\ndata 1\nx\n"
            f"M 100644 inline file\ndata {len(text)}\n{text}\n"
        )
    subprocess.run(["git", "fast-import", "--quiet"], cwd=repository, input="".join(lines), text=True, check=True)


def git(where: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=where, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def packed(ground: Ground) -> Callable[[int], Ground]:
    """What fills a project under git, and a repository of another history in it, with so many objects."""

    def fill(objects: int) -> Ground:
        (ground.home / ".gitconfig").write_text(IDENTITY)
        git(ground.project, "init", "-q")
        import_history(ground.project, "own", objects)
        git(ground.project, "reset", "-q", "--hard")
        (ground.project / ".git/info/exclude").write_text("/up.git\n/sub\n")
        git(ground.project, "init", "-q", "--bare", "up.git")
        import_history(ground.project / "up.git", "other", objects)
        return ground

    return fill


@pytest.mark.timeout(900)
@pytest.mark.parametrize("opt", [True, False], ids=["with /opt", "without /opt"])
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("objects", SIZES)
def test_a_pack_that_a_command_brings_is_applied(
    packed: Callable[[int], Ground], work: str, objects: int, opt: bool
) -> None:
    ground = packed(objects)
    done = unspill(ground, machine(opt=opt), "run", "--json", "-c", WORK[work])
    answer = json.loads(done.stdout)
    assert answer["outcome"]["exit_code"] == 0, answer
    assert answer["operation"]["left"] == [], answer
    changed = ground.project / "sub" if work == "clone" else ground.project
    assert list((changed / ".git/objects/pack").glob("*.pack"))
    assert git(changed, "fsck", "--full", "--strict") == ""
    count = int(git(changed, "rev-list", "--objects", "--count", "topic" if work == "fetch" else "HEAD"))
    assert count >= objects


@pytest.fixture
def cloned(packed: Callable[[int], Ground]) -> Ground:
    """A project in which a clone with a pack is held."""
    ground = packed(100)
    assert unspill(ground, machine(), "run", "--hold", "-c", WORK["clone"]).returncode == 0
    return ground


def said_of_pack(ground: Ground, *options: str) -> list[str]:
    """Apply on a machine, and return what is said of the repository that stays, and what to type."""
    done = unspill(ground, machine(*options), "apply")
    assert not (ground.project / "sub/.git").exists()
    lines = done.stderr.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  ! sub/.git: "))
    return [line.strip() for line in lines[at : at + 2]]


AGAIN = "unspill apply (tries again), or unspill discard sub/.git"


def test_a_check_that_git_is_missing_for_says_so_and_can_be_tried_again(cloned: Ground) -> None:
    without_git = ("--ro-bind", "/dev/null", "/usr/bin/git")
    said = said_of_pack(cloned, *without_git)
    assert said == ["! sub/.git: refused: git could not check one of its packs: git is not installed", AGAIN]
    assert unspill(cloned, machine(), "apply").returncode == 0
    assert git(cloned.project / "sub", "fsck", "--full", "--strict") == ""


def test_a_check_that_does_not_start_says_why_and_can_be_tried_again(cloned: Ground) -> None:
    cloned.configure("[limits]\nwall_s = 0.001\n")
    said = said_of_pack(cloned)
    reason = "Command timed out after 0.001s"
    assert said == [f"! sub/.git: refused: git could not check one of its packs: {reason}", AGAIN]
    cloned.configure("")
    assert unspill(cloned, machine(), "apply").returncode == 0
    assert git(cloned.project / "sub", "fsck", "--full", "--strict") == ""


def test_a_pack_that_git_refuses_is_told_in_the_words_of_git(cloned: Ground) -> None:
    broken = "cd sub/.git/objects/pack; chmod u+w *.pack; printf broken | dd of=$(ls *.pack) conv=notrunc"
    assert unspill(cloned, machine(), "run", "--hold", "-c", broken).returncode == 0
    said = said_of_pack(cloned)
    assert said == [
        "! sub/.git: refused: git refused one of its packs: fatal: pack signature mismatch",
        "unspill discard sub/.git",
    ]
