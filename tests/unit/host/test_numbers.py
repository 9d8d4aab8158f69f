# SPDX-License-Identifier: Apache-2.0
"""Descriptors that are made where standard streams are closed."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMBINATIONS = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
# ctypes is loaded first because libffi 3.8 opens a file as it is loaded, and keeps it: that is not ours
MAKE = """
import ctypes, os, sys
for number in {closed}:
    os.close(number)
from unspill.host.job import memory_file
from unspill.host.dirfd import above_standard, make_pair, make_pipe
from unspill.runner.watch import RunPipes
kept = [*make_pair(), *make_pair()]
pipes = RunPipes(has_stdin=False)
numbers = [sock.fileno() for sock in kept]
numbers += [*make_pipe(), memory_file(b"x"), above_standard(os.open("/dev/null", os.O_RDONLY))]
numbers += [pipes.stdout, pipes.stderr, *pipes.theirs]
left = []
for number in {closed}:
    try:
        os.fstat(number)
    except OSError:
        left.append(number)
kept[0].send(b"word")
is_right = min(numbers) > 2 and left == {closed} and kept[1].recv(8) == b"word"
is_right = is_right and not any(os.get_inheritable(number) for number in numbers)
os._exit(0 if is_right else 1)
"""
OCCUPY = """
import os
for number in {closed}:
    os.close(number)
from unspill.host.dirfd import occupy_standard
before = {{n: os.fstat(n).st_ino for n in range(3) if n not in {closed}}}
occupy_standard()
null = os.stat("/dev/null").st_rdev
is_right = all(os.fstat(n).st_rdev == null for n in {closed})
is_right = is_right and before == {{n: os.fstat(n).st_ino for n in before}}
os._exit(0 if is_right else 1)
"""


@pytest.mark.parametrize("closed", COMBINATIONS)
@pytest.mark.parametrize("script", [MAKE, OCCUPY], ids=["made", "occupied"])
def test_no_descriptor_takes_the_number_of_a_closed_stream(script: str, closed: tuple[int, ...]) -> None:
    text = script.format(closed=list(closed))
    done = subprocess.run([sys.executable, "-c", text], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
