# SPDX-License-Identifier: Apache-2.0
"""Many runs at once in one program: how many descriptors each takes there, and what happens when there are no more."""

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.support import Ground
from unspill import OutputChunk, RunResult, Sandbox
from unspill.errors import SandboxUnavailable
from unspill.layers.lifecycle import wait_until_clean

if TYPE_CHECKING:
    from unspill.model.policy import After

pytestmark = pytest.mark.kernel

MOST_EACH = 5
WAITING = "echo up; read -r _line; echo done"


class Alive:
    """A run that waits for its input's end."""

    def __init__(self, sandbox: Sandbox, after: "After") -> None:
        self._up = threading.Event()
        self._reader, self._writer = os.pipe()
        self.result: RunResult | None = None
        self._thread = threading.Thread(target=self._run, args=(sandbox, after))
        self._thread.start()
        assert self._up.wait(30)

    def _run(self, sandbox: Sandbox, after: "After") -> None:
        self.result = sandbox.run(WAITING, stdin=self._reader, after=after, on_event=self._listen)
        self._up.set()

    def _listen(self, event: object) -> None:
        if isinstance(event, OutputChunk):
            self._up.set()

    def end(self) -> RunResult:
        """Let it go on, and return its result."""
        os.close(self._writer)
        self._thread.join(30)
        os.close(self._reader)
        assert self.result is not None
        return self.result


def count_descriptors() -> int:
    wait_until_clean()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("after", ["discard", "hold", "apply"])
def test_a_run_takes_at_most_five_descriptors_of_its_caller(ground: Ground, after: "After") -> None:
    sandboxes = [ground.sandbox(name=f"number-{number}") for number in range(6)]
    for sandbox in sandboxes:
        assert sandbox.run("true").ok
    # The lock of the masks is shared, so the first has one more
    runs = [Alive(sandboxes[0], after)]
    before = count_descriptors()
    runs += [Alive(sandbox, after) for sandbox in sandboxes[1:]]
    # Each has a pipe of this test's as its input
    taken = count_descriptors() - before - 2 * (len(runs) - 1)
    ended = [run.end() for run in runs]
    assert [result.stdout.kept() for result in ended] == [b"up\ndone\n"] * len(runs)
    assert taken / (len(runs) - 1) <= MOST_EACH
    assert count_descriptors() < before


@contextmanager
def no_descriptors() -> Iterator[Callable[[], None]]:
    """Take all descriptors of this process; what is given back lets go of one of them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield lambda: os.close(taken.pop())
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_run_that_finds_no_descriptor_says_what_to_raise_and_leaves_others_alone(ground: Ground) -> None:
    other = Alive(ground.sandbox(name="other"), "hold")
    sandbox = ground.sandbox()
    assert sandbox.run("true").ok
    refused: list[SandboxUnavailable] = []
    with no_descriptors() as give_one_back:
        for _ in range(40):
            try:
                result = sandbox.run("true")
                break
            except SandboxUnavailable as error:
                refused.append(error)
            give_one_back()
    assert result.ok
    assert len(refused) > MOST_EACH
    assert [error.remedy for error in refused if "ulimit -n" not in error.remedy] == []
    assert other.end().stdout.kept() == b"up\ndone\n"


MANY = """
import os, sys, threading
from unspill import OutputChunk, Sandbox
reader, writer = os.pipe()
up, outcomes = threading.Semaphore(0), []
def run():
    def listen(event):
        if isinstance(event, OutputChunk):
            up.release()
    result = sandbox.run("echo up; read -r _line", stdin=reader, after="discard", on_event=listen)
    outcomes.append(result)
    up.release()
with Sandbox(sys.argv[1]) as sandbox:
    threads = [threading.Thread(target=run) for _ in range(30)]
    for thread in threads:
        thread.start()
        up.acquire()
    os.close(writer)
    for thread in threads:
        thread.join()
    refused = [result.outcome for result in outcomes if "Too many open files" in getattr(result.outcome, "reason", "")]
    assert all("ulimit -Hn" in outcome.remedy for outcome in refused), refused
    print(len(refused), sum(result.exit_code == 1 for result in outcomes), sandbox.run("echo next").stdout.kept())
"""


@pytest.mark.parametrize(("limit", "refused"), [(256, 12), (1024, 0)])
def test_a_spawner_without_descriptors_refuses_more_runs_and_goes_on(ground: Ground, limit: int, refused: int) -> None:
    """Both limits of the program are lowered, so nobody can raise them."""
    words = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", sys.executable, "-c", MANY, str(ground.project)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    assert done.stdout == f"{refused} {30 - refused} b'next\\n'\n", done.stderr
