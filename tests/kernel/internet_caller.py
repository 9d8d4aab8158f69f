# SPDX-License-Identifier: Apache-2.0
"""A caller of the library in a namespace that has a network: does what it is asked to, one request after another.

Requests and results are pickled; only the test that started this has the other end.
"""

import asyncio
import gc
import os
import pickle
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from unspill import Policy, RunResult, Sandbox
from unspill.layers.lifecycle import wait_until_clean
from unspill.model.permission import Egress, Question
from unspill.permissions.approvers import Callback

if TYPE_CHECKING:
    from unspill.model.policy import Scope


def run(
    command: str | list[str], settings: dict[str, Any], options: dict[str, Any], name: str = "default"
) -> RunResult:
    """Run a command in a sandbox of the working directory; whatever it asks for is allowed."""
    approver = Callback(lambda question: True)
    with Sandbox(os.getcwd(), name=name, policy=Policy(**settings), approver=approver) as sandbox:
        return sandbox.run(command, **options)


def run_asking(
    command: str, settings: dict[str, Any], options: dict[str, Any], answers: dict[str, Any], name: str
) -> tuple[RunResult, list[dict[str, Any]]]:
    """Run a command and answer what is asked about hosts: with a scope, True or False, perhaps after some seconds."""
    asked: list[dict[str, Any]] = []

    def answer(question: Question) -> "Scope | bool":
        assert isinstance(question.request, Egress)
        asked.append({"text": question.text, "scopes": list(question.scopes), "run": question.request.run})
        found = answers[question.request.hosts[0]]
        said, after_s = found if isinstance(found, tuple) else (found, 0.0)
        time.sleep(after_s)
        return said  # type: ignore[no-any-return]

    with Sandbox(os.getcwd(), name=name, policy=Policy(**settings)) as sandbox:
        return sandbox.run(command, approver=Callback(answer), **options), asked


def run_with_queue(
    command: str, settings: dict[str, Any], options: dict[str, Any]
) -> tuple[RunResult, list[str], list[str]]:
    """Run a command that asks by the queue; return the states of what it asked, as it ran and when it had ended."""
    with Sandbox(os.getcwd(), name="queue", policy=Policy(**settings)) as sandbox:
        requests = sandbox._project.store.requests
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(sandbox.run, command, approver="queue", **options)
            end = time.monotonic() + 10
            while not (waiting := requests.waiting(time.time_ns())) and time.monotonic() < end:
                time.sleep(0.05)
            result = running.result()
        ended = [requests.find(asked.id) for asked in waiting]
        return result, [asked.state for asked in waiting], [asked.state for asked in ended if asked is not None]


def run_all(jobs: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> list[RunResult]:
    """Run several commands at once, each in a thread and a sandbox of its own."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(lambda number: run(*jobs[number], f"of {number}"), range(len(jobs))))


def run_and_cancel(command: str, settings: dict[str, Any], seconds: float) -> bool:
    """Cancel a task that runs a command; tell whether it was cancelled."""

    async def cancel() -> bool:
        with Sandbox(os.getcwd(), policy=Policy(**settings)) as sandbox:
            task = asyncio.create_task(sandbox.arun(command, after="discard"))
            await asyncio.sleep(seconds)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return True
            return False

    return asyncio.run(cancel())


def count() -> tuple[int, int]:
    """Return how many threads and descriptors this process has."""
    gc.collect()
    wait_until_clean()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def limit(descriptors: int) -> None:
    """Bound the descriptors of this process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def used() -> float:
    """Return the processor time that this process has used."""
    return time.process_time()


def reach(address: str, port: int) -> bool:
    """Tell whether this process can connect, without any proxy."""
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True


DUTIES: dict[str, Callable[..., object]] = {
    duty.__name__: duty
    for duty in (run, run_asking, run_with_queue, run_all, run_and_cancel, reach, count, limit, used)
}


def main() -> None:
    # Whatever else is printed must not end up between the results
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            duty, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result: object = DUTIES[duty](*arguments)
        except Exception as error:
            result = error
        pickle.dump(result, results)
        results.flush()


if __name__ == "__main__":
    main()
