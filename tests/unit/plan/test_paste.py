# SPDX-License-Identifier: Apache-2.0
"""The command that `--explain` prints is pasted into a real shell, as the ordinary user, with hostile names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.plan.given import stack
from tests.unit.plan.ground import Ground
from unspill.model.plan import Bind, Dev, Overlay, PlanInput, Proc, Tmpfs
from unspill.plan.build import build_plan
from unspill.plan.explain import paste_command

if TYPE_CHECKING:
    from unspill.model.policy import EngineName

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

NAMES = (b"shop", b"a b", b"a,b:c\\d", b"q'q\"q$HOME`id`", b"new\nline\n", b"\xff\x1b[31m", b"--bind", "übung".encode())
SHELLS = (["sh"], ["bash"], ["bash", "--posix"])


def paste(given: PlanInput, shell: list[str]) -> subprocess.CompletedProcess[bytes]:
    text = paste_command(build_plan(given), given.facts)
    assert all(char == "\n" or " " <= char <= "~" for char in text)
    return subprocess.run(shell, input=text.encode("ascii"), capture_output=True, check=False)


ENGINES: tuple[EngineName, ...] = ("mount", "native")


LOOK = """
cat kept && echo written >kept && cat kept && touch new &&
ls -A "$HOME" && cat "$HOME/secret"; cut -d' ' -f5 /proc/self/mountinfo; exit 7
"""


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_pasted_command_gives_the_sandbox_of_the_plan(tmp_path: Path, name: bytes) -> None:
    ground = Ground(tmp_path, name)
    for engine in ENGINES:
        given = ground.given("/bin/sh", "-c", LOOK, engine=engine)
        result = paste(given, ["sh"])
        assert result.returncode == 7, result.stderr
        assert result.stdout.startswith(b"live\nwritten\n.gitconfig\nplayground\nwork\n")
        assert b"canary" not in result.stdout
        assert sorted(os.listdir(ground.project)) == [b"kept"]
        assert Path(os.fsdecode(ground.project), "kept").read_text() == "live\n"
        assert mount_points(result.stdout) == planned_points(given)


def mount_points(output: bytes) -> set[bytes]:
    lines = [line for line in output.splitlines() if line.startswith(b"/")]
    # What --dev brings along: its devices and terminals
    inside_dev = {line for line in lines if line.startswith(b"/dev/") and line != b"/dev/shm"}
    return {unescaped(line) for line in lines if line not in inside_dev}


def unescaped(line: bytes) -> bytes:
    for escape, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        line = line.replace(escape, char)
    return line


def planned_points(given: PlanInput) -> set[bytes]:
    mounts = build_plan(given).mounts
    kinds = (Bind, Overlay, Tmpfs, Proc, Dev)
    return {b"/"} | {operation.dest for operation in mounts if isinstance(operation, kinds)}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_every_shell_reads_every_byte_of_the_command(tmp_path: Path, shell: list[str]) -> None:
    ground = Ground(tmp_path)
    every_byte = bytes(range(1, 256))
    given = ground.given("/usr/bin/printf", "%s|", every_byte, b"-n", b"", b"\n", b"%d\\", b"trailing\n\n")
    result = paste(given, shell)
    assert result.stdout == every_byte + b"|-n||\n|%d\\|trailing\n\n|", result.stderr


def test_nothing_is_left_of_the_scratch_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scr atch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", os.fspath(scratch))
    ground = Ground(tmp_path)
    given = ground.given("/bin/sh", "-c", "mkdir -p deep/er && chmod 0 deep/er && chmod 0 deep")
    assert paste(given, ["sh"]).returncode == 0
    assert list(scratch.iterdir()) == []


def test_the_pasted_command_has_the_filter(tmp_path: Path) -> None:
    """Control: without one in the plan the same command is not filtered."""
    ground = Ground(tmp_path)
    for engine in ENGINES:
        given = ground.given("/usr/bin/grep", "Seccomp:", "/proc/self/status", engine=engine)
        assert paste(given, ["sh"]).stdout == b"Seccomp:\t2\n"
        assert paste(given.replace(filter=b""), ["sh"]).stdout == b"Seccomp:\t0\n"


def test_generated_files_are_exact_and_git_reads_them(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    given = ground.given("/usr/bin/git", "config", "--global", "user.name")
    assert paste(given, ["sh"]).stdout == b'A "q" \\ Ann\n'


def test_held_changes_are_seen_and_stay_as_they_are(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    layers = ground.state + b"/layers"
    held = stack(ground.project, sealed=2, layers=layers)
    for number, content in enumerate((b"older\n", b"newer\n")):
        ground.write(b"%s/s%d/upper/kept" % (layers, number), content)
    for engine in ENGINES:
        given = ground.given("/bin/sh", "-c", "cat kept; echo x >kept", engine=engine, stacks=(held,))
        result = paste(given, ["sh"])
        assert result.stdout == b"newer\n", result.stderr
        assert Path(os.fsdecode(layers), "s1", "upper", "kept").read_text() == "newer\n"
        assert Path(os.fsdecode(ground.project), "kept").read_text() == "live\n"
