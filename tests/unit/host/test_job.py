# SPDX-License-Identifier: Apache-2.0
"""Messages between a caller and its spawner."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from unspill.host.dirfd import make_pair
from unspill.host.job import Job, receive, receive_job, send

if TYPE_CHECKING:
    from _socket import socket as Socket

JOB = Job(overlays=(), program=b"/bin/true", argv=(b"true",), limits=())
LONG = JOB.replace(argv=(b"x" * 200_000,))


@pytest.fixture
def pair() -> Iterator[tuple[Socket, Socket]]:
    ours, theirs = make_pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("job", [JOB, LONG])
def test_a_job_arrives_with_its_descriptors(pair: tuple[Socket, Socket], job: Job) -> None:
    with open(os.devnull, "rb") as file:
        send(pair[0], job.as_dict(), (file.fileno(),))
    received = receive_job(pair[1])
    assert received is not None
    found, descriptors = received
    assert found == job
    assert len(descriptors) == 1
    os.close(descriptors[0])


FORGED = {
    "a job without descriptors": marshal.dumps(JOB.as_dict()),
    "a word that means a file": b"file",
    "garbage": b"\xff\x00garbage",
    "a value": marshal.dumps(1),
    "too deep": b"(\x01\x00\x00\x00" * 5000,
}


@pytest.mark.parametrize("case", FORGED)
def test_what_is_written_to_the_socket_without_descriptors_is_no_job(pair: tuple[Socket, Socket], case: str) -> None:
    os.write(pair[0].fileno(), FORGED[case])
    assert receive_job(pair[1]) == (None, [])
    send(pair[0], "still there")
    assert receive(pair[1]) == ("still there", [])


@pytest.mark.parametrize("message", [1, (), {"no": "job"}, {"argv": 3}, "text"])
def test_a_message_that_is_no_job_is_dropped_with_its_descriptors(pair: tuple[Socket, Socket], message: object) -> None:
    reading, writing = os.pipe()
    send(pair[0], message, (writing,))
    os.close(writing)
    assert receive_job(pair[1]) == (None, [])
    assert os.read(reading, 1) == b"", "it is still open"
    os.close(reading)


def test_the_end_of_the_socket_is_no_message(pair: tuple[Socket, Socket]) -> None:
    pair[0].close()
    assert receive_job(pair[1]) is None


# Giving back this much memory takes a process some hundredths of a second, in which it is neither running nor a zombie
EXITING = """
import mmap, os
from unspill.host.spawner import find_processes

def end_slowly(ready, go):
    memory = mmap.mmap(-1, 512 << 20)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
    os.write(ready, b"x")
    os.read(go, 1)
    os._exit(0)

for attempt in range(20):
    (is_ready, ready), (go, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        end_slowly(ready, go)
    os.read(is_ready, 1)
    before, command = find_processes(os.getpid())[0], b"not yet"
    os.write(end, b"x")
    while command:
        with open(f"/proc/{child}/cmdline", "rb") as file:
            command = file.read()
    after = find_processes(os.getpid())[0]
    with open(f"/proc/{child}/stat", "rb") as file:
        state = file.read().rpartition(b")")[2].split()[0]
    os.waitpid(child, 0)
    if state != b"Z":
        break
print(before, after, state)
"""


def test_a_process_that_is_exiting_is_not_taken_for_one_that_still_runs() -> None:
    done = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True, check=True)
    assert done.stdout == "1 0 b'R'\n"


IN_FLIGHT = """
import os, resource, sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socketpair
from unspill.host import job

held = [socketpair(AF_UNIX, SOCK_SEQPACKET) for _ in range(2)]
numbers = (0).to_bytes(4, sys.byteorder) * 200
held[0][0].sendmsg([b"x"], [(SOL_SOCKET, SCM_RIGHTS, numbers)])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
if "plain" in sys.argv:
    held[1][0].sendmsg([b"x"], [(SOL_SOCKET, SCM_RIGHTS, numbers[:4])])
job.send(held[1][0], ("still sent",), (0,))
print(job.receive(held[1][1])[0], resource.getrlimit(resource.RLIMIT_NOFILE) == (100, hard))
"""


def test_a_job_is_sent_although_the_user_has_many_descriptors_on_their_way() -> None:
    """Keep more descriptors in a socket than the soft limit of open files allows. Control: a plain message fails."""
    command = [sys.executable, "-c", IN_FLIGHT]
    sent = subprocess.run(command, capture_output=True, text=True, check=False)
    assert sent.stdout == "('still sent',) True\n", sent.stderr
    plain = subprocess.run([*command, "plain"], capture_output=True, text=True, check=False)
    assert "Too many references" in plain.stderr
