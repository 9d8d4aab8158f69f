# SPDX-License-Identifier: Apache-2.0
"""What unspill says of a run: no oracle for what is hidden, nothing that harms whoever pastes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import run_cli
from unspill.plan.explain import Judge, Refusal, remedy_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]


def told(ground: Ground, guesses: tuple[str, str]) -> set[str]:
    """Return what is told of two paths that a model guesses, one that exists and one that does not."""
    texts = [ground.run(["stat", guess]).text().replace(guess, "GUESS") for guess in guesses]
    assert all("No such file" in text for text in texts)
    return set(texts)


def test_a8_hints_do_not_tell_which_hidden_paths_exist(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for guessed paths in the home directory and elsewhere, and read from the hints which exist.

    Control: where the host is asked first, what is told of the two differs.
    """
    for directory in (ground.home / ".ssh", ground.home):
        directory.mkdir(exist_ok=True)
        (directory / "real").write_text("k")
    places = [f"{ground.home}/.ssh/", f"{ground.home}/"]
    pairs = [(f"{place}real", f"{place}none") for place in places] + [("/var/lib/dpkg/status", "/var/lib/dpkg/none")]
    assert [len(told(ground, pair)) for pair in pairs] == [1, 1, 1]

    refusal_of = Judge.refusal

    def refusal(judge: Judge, path: bytes, *, is_write: bool) -> Refusal | None:
        found = refusal_of(judge, path, is_write=is_write)
        # In a rootfs nobody misses what the host has, so there only a careless rule could tell of it
        found = found or Refusal(kind="outside", path=path, rule="not shown")
        return found if os.path.lexists(path) else None

    monkeypatch.setattr(Judge, "refusal", refusal)
    assert [len(told(ground, pair)) for pair in pairs] == [2, 2, 2]


HOSTILE: Final = ("a;touch PWNED;", "$(touch PWNED)", "`touch PWNED`", "a\ntouch PWNED\n", "x y")
# What a hint finds in an output has neither blanks nor quotes
PRINTED: Final = (
    "a;touch${IFS}PWNED;",
    "a|touch${IFS}PWNED|a",
    "a&touch${IFS}PWNED&a",
    "a;>PWNED;",
    "*",
    "$HOME",
)


def check_pasted(ground: Ground, path: str, remedy: str) -> None:
    """Paste the option that a remedy proposes into a shell, and for control the same path without quotes."""
    option = remedy.partition("`")[2].rpartition("` or")[0]
    assert option.startswith("--root ")
    pasted = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {option}"], cwd=ground.top, capture_output=True, check=True
    ).stdout.split(b"\0")
    assert pasted == [b"--root", os.path.dirname(path).encode(), b""]
    assert not (ground.top / "PWNED").exists()
    subprocess.run(["bash", "-c", f"printf '%s\\0' --root {path}"], cwd=ground.top, capture_output=True, check=False)
    assert (ground.top / "PWNED").exists() == ("PWNED" in path)


@pytest.mark.parametrize("name", HOSTILE)
def test_c8_a_remedy_can_be_pasted(ground: Ground, name: str) -> None:
    """Name a path so that what is proposed against its refusal does something else in a shell.

    Control: the same path without quotes makes a shell run what is in it.
    """
    path = f"/absent/{name}/x"
    refusal = Judge(ground.sandbox().plan("true").mounts).refusal(path.encode(), is_write=True)
    assert refusal is not None
    check_pasted(ground, path, remedy_of(refusal, is_write=True, home=bytes(ground.home)))


@pytest.mark.parametrize("name", PRINTED)
def test_c8_a_remedy_for_what_a_command_printed_can_be_pasted(ground: Ground, name: str) -> None:
    """Print a path so that what the hint proposes does something else in a shell.

    Control: the same path without quotes makes a shell run what is in it.
    """
    path = f"/absent/{name}/x"
    said = 'printf "tool: %s: Read-only file system\\n" "$1" >&2; exit 1'
    [hint] = ground.run(["sh", "-c", said, "sh", path]).hints
    check_pasted(ground, path, hint.remedy)


@pytest.fixture
def full() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


def test_b5_output_that_can_not_be_written_costs_no_change(ground: Ground, full: int) -> None:
    """Print to a standard output that takes nothing, and change a file.

    Control: the command itself fails where its own output goes there.
    """
    program = Path(sys.executable).with_name("unspill")
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n')
    words = [os.fspath(program), "run", "--apply", "--", "sh", "-c", "echo out; echo kept > kept"]
    done = subprocess.run(words, cwd=ground.project, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == 125
    assert b"stdout could not be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert (ground.project / "kept").read_text() == "kept\n"
    for verb in ("log", "status"):
        done = subprocess.run([program, verb], cwd=ground.project, stdout=full, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, b"Traceback" in done.stderr) == (5, False)
        both = subprocess.run([program, verb], cwd=ground.project, stdout=full, stderr=full, check=False)
        assert both.returncode == 5
    control = subprocess.run(["sh", "-c", "echo out"], stdout=full, stderr=subprocess.DEVNULL, check=False)
    assert control.returncode != 0


def test_b10_a_project_that_a_command_closed_says_how_to_open_it(ground: Ground) -> None:
    """Take the right to enter the project away, so that no later run begins.

    Control: the later run is refused; what the message proposes lets it begin again.
    """
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n')
    run_cli("run", "--hold", "--", "chmod", "000", ".", cwd=ground.project)
    refused = run_cli("run", "--", "true", cwd=ground.project)
    assert refused.returncode != 0
    assert b"`unspill discard`" in refused.stderr
    assert run_cli("discard", cwd=ground.project).returncode == 0
    assert run_cli("run", "--", "true", cwd=ground.project).returncode == 0


@pytest.mark.parametrize("instead", ["link", "file"])
def test_c4_a_backup_is_not_restored_through_a_link(ground: Ground, instead: str) -> None:
    """Replace a directory by a link to another one, and have a file below it restored.

    Control: with the directory back in its place the same restore succeeds.
    """
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n')
    ground.write("d/f", "first")
    ground.write("e/f", "other")
    run_cli("run", "-q", "--apply", "--", "sh", "-c", "echo second > d/f", cwd=ground.project)
    make = {"link": "ln -s e d", "file": "echo x > d"}[instead]
    run_cli("run", "-q", "--apply", "--", "sh", "-c", f"rm -rf d; {make}", cwd=ground.project)
    done = run_cli("restore", "d/f", cwd=ground.project)
    assert done.returncode == 2
    assert b"a link or file took the place of a directory above it" in done.stderr
    assert (ground.project / "e" / "f").read_text() == "other"
    (ground.project / "d").unlink()
    assert run_cli("restore", "d/f", cwd=ground.project).returncode == 0
    assert (ground.project / "d" / "f").read_text() == "second\n"
