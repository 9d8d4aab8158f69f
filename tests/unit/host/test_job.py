# SPDX-License-Identifier: Apache-2.0
"""Messages between a caller and its spawner."""

from __future__ import annotations

import marshal
import os
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
