# SPDX-License-Identifier: Apache-2.0
"""A caller that was started without standard streams: what a command prints goes nowhere, least of all to us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import VIEW_LINES

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

COMBINATIONS = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
# Well-formed words to the spawner on both streams, garbage after them, and what comes in
HOSTILE = """
import marshal, os
job = dict(overlays=(), program=b"/bin/sh", argv=(b"sh", b"-c", b"touch FORGED"), limits=())
for stream in (1, 2):
    for words in (marshal.dumps(job), b"file", b"garbage", b"\\x00"):
        os.write(stream, words)
open("read", "wb").write(os.read(0, 64))
open("done", "w").close()
"""
LIBRARY = (
    VIEW_LINES
    + """
import os, sys
from unspill import Policy, Sandbox
project, bwrap, script = map(os.fsencode, sys.argv[1:])
def on_event(event):
    chunk = getattr(event, "chunk", b"")
    if chunk:
        try: os.write(1 if event.stream == "stdout" else 2, chunk)
        except OSError: pass
sandbox = Sandbox(project, policy=Policy(**VIEW, bwrap=bwrap))
result = sandbox.run(["python3", "-c", os.fsdecode(script)], stdin=b"given", on_event=on_event, after="apply")
again = sandbox.run("true")
sandbox.close()
os._exit(0 if result.ok and again.ok else 1)
"""
)
CONTROL = """
import os, sys
from _socket import AF_UNIX, SOCK_SEQPACKET, socketpair
ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
os.write(1, b"output of a command")
other = ours if theirs.fileno() == 1 else theirs
os._exit(0 if other.recv(64) == b"output of a command" else 1)
"""


def closing(closed: tuple[int, ...], *words: str | Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Start a program with some standard streams closed."""
    shut = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {shut}', "sh", *words],
        cwd=cwd,
        input=b"given",
        capture_output=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )


@pytest.mark.parametrize("closed", COMBINATIONS)
@pytest.mark.parametrize("caller", ["program", "library"])
def test_e1_a_caller_without_streams_gives_a_command_no_socket_of_ours(
    ground: Ground, caller: str, closed: tuple[int, ...]
) -> None:
    """Start a run from a process with closed standard streams, write jobs for the spawner and garbage to standard
    output and error, and read standard input.

    Control: below, where the next socket gets the number of a closed stream.
    """
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n')
    if caller == "program":
        program = Path(sys.executable).with_name("unspill")
        done = closing(closed, program, "run", "-i", "--apply", "--", "python3", "-c", HOSTILE, cwd=ground.project)
    else:
        words = (ground.project, os.fsdecode(ground.bwrap), HOSTILE)
        done = closing(closed, sys.executable, "-c", LIBRARY, *map(str, words), cwd=ground.project)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr
    assert sorted(os.listdir(ground.project)) == ["done", "read"]
    given = b"" if caller == "program" and 0 in closed else b"given"
    assert (ground.project / "read").read_bytes() == given
    assert (b"garbage" in done.stdout) == (1 not in closed)


def test_e1_control_a_socket_gets_the_number_of_a_closed_stream(ground: Ground) -> None:
    """Make a pair of sockets as any program does, in a process whose standard output is closed.

    Control: this is the control of the test above; what is printed comes out of the socket.
    """
    done = closing((1,), sys.executable, "-c", CONTROL, cwd=ground.project)
    assert done.returncode == 0, done.stderr
