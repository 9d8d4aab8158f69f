# SPDX-License-Identifier: Apache-2.0
"""What takes longer than a second says so on a terminal, with its time, and leaves the line clean."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import Ground, run_cli
from unspill import Sandbox
from unspill.layers.locks import SandboxLock

pytestmark = pytest.mark.kernel


def start(ground: Ground, *words: str, stderr: int) -> "subprocess.Popen[bytes]":
    program = str(Path(sys.executable).with_name("unspill"))
    return subprocess.Popen(
        [program, *words], cwd=ground.project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
    )


def read_until(terminal: int, wanted: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + 30
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 4096)
    return seen


def test_a_long_apply_says_how_long_it_has_taken_and_leaves_nothing(ground: Ground) -> None:
    run_cli("run", "--hold", "-c", "echo 1 > file", cwd=ground.project)
    sandbox = Sandbox(ground.project)
    ours, theirs = pty.openpty()
    try:
        # Whoever has it makes the other wait, as a long scan would
        with SandboxLock(sandbox._project.store.state, sandbox.id):
            run = start(ground, "apply", stderr=theirs)
            seen = read_until(ours, b"unspill: Applying (2 s)")
        stdout, _ = run.communicate(timeout=30)
        assert run.returncode == 0
        assert stdout.startswith(b"Applied 1 change")
        seen += read_until(ours, b"") if seen.endswith(b"\r\x1b[K") else read_until(ours, b"\r\x1b[K")
        assert seen.endswith(b"\r\x1b[K")
    finally:
        os.close(ours)
        os.close(theirs)
        sandbox.close()


def test_beside_a_terminal_nothing_is_said(ground: Ground) -> None:
    run_cli("run", "--hold", "-c", "echo 1 > file", cwd=ground.project)
    sandbox = Sandbox(ground.project)
    with SandboxLock(sandbox._project.store.state, sandbox.id):
        run = start(ground, "apply", stderr=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(2.5)
    assert run.communicate(timeout=30)[1] == b""
    sandbox.close()


def test_names_are_as_seen_from_where_one_stands_and_are_taken_so(ground: Ground) -> None:
    ground.write(".unspill.toml")
    ground.write("sub/old", "1\n")
    below = ground.project / "sub"
    done = run_cli("run", "--hold", "-c", "echo 2 >> old; echo 3 > 'a new'; echo 4 > ../top", cwd=below)
    for text in (done.stderr, run_cli("changes", cwd=below).stdout):
        assert text.decode().splitlines()[1:] == ['  A "a new"', "  M old", "  A ../top"]
    for name in ("old", "../top", "a new"):
        assert run_cli("apply", name, cwd=below).returncode == 0
    assert run_cli("changes", cwd=below).stdout == b"Nothing is held.\n"
    assert (ground.project / "top").read_text() == "4\n"
    assert run_cli("undo", cwd=ground.project).stdout.decode().splitlines()[1:] == ['  D "sub/a new"']


def test_a_limit_says_its_name_its_unit_and_its_setting(ground: Ground) -> None:
    ground.configure("[limits]\nlayer_bytes = '1 MiB'\nwall_s = 0.5\n")
    done = run_cli("run", "-c", "head -c 3000000 /dev/zero > big", cwd=ground.project)
    assert "unspill: Command killed: it wrote more than 1 MiB (`limits.layer_bytes`)" in done.stderr.decode()
    done = run_cli("run", "--", "sleep", "60", cwd=ground.project)
    assert "unspill: Command timed out after 0.5s (`limits.wall_s`)" in done.stderr.decode()
    done = run_cli("run", "--timeout", "0.4", "--", "sleep", "60", cwd=ground.project)
    assert done.stderr.decode() == "unspill: Command timed out after 0.4s\n"


def test_a_scan_after_a_run_and_a_large_apply_say_how_many_files_they_are_through(ground: Ground) -> None:
    """A hundred thousand files would take as long on any machine; here a tool is slow instead."""
    program = """
import sys, time
from unspill.changes import scan
from unspill.cli import main
from unspill.apply import perform
for module, name in ((scan._Scan, "_leaf"), (perform, "do_step")):
    def slow(*given, _do=getattr(module, name), **named):
        time.sleep(0.01)
        return _do(*given, **named)
    setattr(module, name, slow)
sys.argv = ["unspill", "run", "-c", "for i in $(seq 150); do echo > $i; done"]
main.main()
"""
    ours, theirs = pty.openpty()
    try:
        run = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ground.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        seen = read_until(ours, b"150 added")
        run.communicate(timeout=30)
        assert run.returncode == 0
    finally:
        os.close(ours)
        os.close(theirs)
    steps = re.findall(rb"unspill: (Reading changes: \d+ files|Applying: \d+ of 150 files) \((\d) s\)", seen)
    assert [name.split(b":")[0] for name, _s in steps][:: len(steps) - 1] == [b"Reading changes", b"Applying"]
    assert b"\r\x1b[Kunspill: 150 added" in seen


def test_flagged_paths_headings_and_guesses_are_as_seen_from_where_one_stands(ground: Ground) -> None:
    ground.write(".unspill.toml")
    ground.write("sub/old", "1\n")
    below = ground.project / "sub"
    done = run_cli("run", "-c", "echo all: > Makefile; echo 2 >> old", cwd=below)
    assert b"Review before use: Makefile (" in done.stderr
    assert b"Review before use: Makefile (" in run_cli("show", "op1", cwd=below).stdout
    assert b"Review before use: sub/Makefile (" in run_cli("show", "op1", cwd=ground.project).stdout
    run_cli("run", "--hold", "-c", "echo 3 >> old; echo 4 > ../top", cwd=below)
    for words in (("diff",), ("diff", "--run", "2")):
        headings = [
            line for line in run_cli(*words, cwd=below).stdout.decode().splitlines() if line[:2] in ("mo", "ad")
        ]
        assert headings == ["modified old", "added ../top"]
    assert b"modified old\n" in run_cli("diff", "op1", cwd=below).stdout
    # Those that `patch` reads are as git writes them
    assert b"--- a/sub/old" in run_cli("diff", "old", cwd=below).stdout
    for chosen in (["olt"], ["--hunk", "olt:1"]):
        refused = run_cli("apply", *chosen, cwd=below).stderr
        assert b"unspill: olt has no changes" in refused
        assert b"Did you mean old?" in refused
    assert run_cli("apply", "old", cwd=below).returncode == 0
    assert b"Did you mean ../top?" in run_cli("apply", "../topp", cwd=below).stderr
