# SPDX-License-Identifier: Apache-2.0
"""What `unspill run` lets a command read: what is piped to it, never a terminal unless that is asked for."""

import os
import pty
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import Ground, run_cli
from unspill import Sandbox

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

UNSPILL = Path(sys.executable).with_name("unspill")
RUN = f"{shlex.quote(os.fspath(UNSPILL))} run -q"

# Lines of a shell, and what they print
LINES = {
    "a pipe": (f"echo hi | {RUN} -- cat", "hi\n"),
    "a file": (f"{RUN} -- cat < input", "one\ntwo\nthree\n"),
    "a here-document": (f"{RUN} -- cat <<END\nhere\nEND", "here\n"),
    "a pipe to a shell text": (f"echo hi | {RUN} -c 'tr a-z A-Z'", "HI\n"),
    "a pipe, asked for": (f"echo hi | {RUN} --stdin -- cat", "hi\n"),
    "a pipe that is not wanted": (f"echo hi | {RUN} --no-stdin -- cat", ""),
    "a file that is not wanted": (f"{RUN} --no-stdin -- cat < input", ""),
    "nothing": (f"{RUN} -- cat < /dev/null", ""),
    "a closed descriptor": (f"{RUN} -- cat <&-", ""),
    "a descriptor that can only be written": (f"{RUN} -- cat 0>&2", ""),
    "a file that can only be written": (f"{RUN} -- cat 0> output", ""),
    "a pipe that the command leaves alone": (f"yes | {RUN} -- echo done", "done\n"),
    "a pipe that the command reads in part": (f"yes | {RUN} -- head -1", "y\n"),
    "the rest of a pipe": (f"(echo a; echo b) | {{ read -r x; {RUN} -- cat; }}", "b\n"),
    "a loop whose first command eats its list": (f"while read -r x; do {RUN} -- echo $x; done < input", "one\n"),
    "a loop": (f"while read -r x; do {RUN} --no-stdin -- echo $x; done < input", "one\ntwo\nthree\n"),
}


@pytest.mark.parametrize("line", LINES)
def test_a_command_reads(ground: Ground, line: str) -> None:
    ground.write("input", "one\ntwo\nthree\n")
    text, expected = LINES[line]
    done = subprocess.run(
        ["bash", "-c", text], cwd=ground.project, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30
    )
    assert (done.stdout.decode(), done.stderr) == (expected, b"")
    assert done.returncode == 0


def test_a_socket_is_read_as_well(ground: Ground) -> None:
    """As a program has it that sshd or node has started."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"hi")
        ours.shutdown(socket.SHUT_WR)
        done = subprocess.run(
            [UNSPILL, "run", "-q", "cat"], cwd=ground.project, stdin=theirs.fileno(), capture_output=True, check=True
        )
    assert done.stdout == b"hi"


def test_what_comes_bit_by_bit_is_passed_on_as_it_comes(ground: Ground) -> None:
    with subprocess.Popen(
        [UNSPILL, "run", "-q", "cat"], cwd=ground.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for word in (b"one\n", b"two\n"):
            program.stdin.write(word)
            assert program.stdout.read(4) == word
        program.stdin.close()
        assert program.wait(10) == 0


def test_a_pipe_that_never_ends_does_not_keep_a_run_from_ending(ground: Ground) -> None:
    read, write = os.pipe()
    begun = time.monotonic()
    done = subprocess.run([UNSPILL, "run", "-q", "true"], cwd=ground.project, stdin=read, check=False)
    os.close(read)
    os.close(write)
    assert done.returncode == 0
    assert time.monotonic() - begun < 10


def test_a_pipe_that_others_read_without_waiting_is_waited_for(ground: Ground) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with subprocess.Popen(
        [UNSPILL, "run", "-q", "cat"], cwd=ground.project, stdin=read, stdout=subprocess.PIPE
    ) as program:
        time.sleep(0.5)
        os.write(write, b"late")
        os.close(write)
        assert program.communicate(timeout=10)[0] == b"late"
    os.close(read)


def test_a_terminal_is_not_read_unless_that_is_asked_for(ground: Ground) -> None:
    for options, expected in (((), b""), (("-i",), b"typed\n")):
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [UNSPILL, "run", "-q", *options, "cat"], cwd=ground.project, stdin=theirs, stdout=subprocess.PIPE
        ) as program:
            os.write(ours, b"typed\n\x04")
            assert program.communicate(timeout=10)[0] == expected
        os.close(theirs)
        os.close(ours)


def test_both_options_at_once_are_an_error(ground: Ground) -> None:
    done = run_cli("run", "--stdin", "--no-stdin", "--", "cat", cwd=ground.project)
    assert done.returncode == 125
    assert b"--stdin and --no-stdin can't be used together" in done.stderr


@pytest.mark.parametrize(
    ("given", "read"), [("text \u00e9\n", b"text \xc3\xa9\n"), (b"\xff", b"\xff"), ("", b""), (None, b"")]
)
def test_the_library_takes_texts_and_bytes(ground: Ground, given: str | bytes | None, read: bytes) -> None:
    assert ground.run("cat", stdin=given).stdout.kept() == read


def test_the_library_takes_descriptors_and_no_input_by_itself(ground: Ground) -> None:
    read, write = os.pipe()
    os.write(write, b"hi")
    os.close(write)
    before = os.dup(0)
    os.dup2(read, 0)
    try:
        sandbox = ground.sandbox()
        assert isinstance(sandbox, Sandbox)
        assert sandbox.run("cat").stdout.kept() == b""
        assert sandbox.run("cat", stdin=read).stdout.kept() == b"hi"
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read)
