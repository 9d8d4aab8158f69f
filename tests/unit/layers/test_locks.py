# SPDX-License-Identifier: Apache-2.0
"""One holder at a time, in threads and in processes; a dead holder holds nothing."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.unit.layers.ground import Ground
from unspill.errors import SandboxUnavailable
from unspill.layers.locks import SandboxLock, lock_sandbox
from unspill.model.run import SandboxId

# Reads a number, waits a moment, writes the next: two at once lose counts.
COUNT = """
import os, sys, time
from unspill.layers.locks import SandboxLock
state, sandbox, file, how = map(os.fsencode, sys.argv[1:])
for _ in range(20):
    lock = SandboxLock(state, sandbox.decode())
    if how == b"wait":
        lock.acquire()
    elif how == b"deadline":
        lock.acquire(30)
    number = int(open(file).read())
    time.sleep(0.001)
    open(file, "w").write(str(number + 1))
    lock.release()
"""


def count_up(ground: Ground, file: Path, how: str) -> int:
    file.write_text("0")
    command: list[str | bytes | Path] = [sys.executable, "-c", COUNT, ground.store.state, ground.sandbox.id, file, how]
    processes = [subprocess.Popen(command) for _ in range(4)]
    codes = {process.wait() for process in processes}
    return int(file.read_text()) if codes == {0} else -1


@pytest.mark.parametrize("how", ["wait", "deadline"])
def test_processes_follow_one_another(ground: Ground, tmp_path: Path, how: str) -> None:
    assert count_up(ground, tmp_path / "count", how) == 80


def test_without_the_lock_they_do_not(ground: Ground, tmp_path: Path) -> None:
    assert count_up(ground, tmp_path / "count", "not at all") != 80


def test_threads_follow_one_another(ground: Ground) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(10):
            with lock_sandbox(ground.store.state, ground.sandbox.id):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 80


def test_a_deadline_ends_the_wait_with_a_remedy(ground: Ground) -> None:
    with lock_sandbox(ground.store.state, ground.sandbox.id):
        begun = time.monotonic()
        with pytest.raises(SandboxUnavailable, match="still active") as failure:
            lock_sandbox(ground.store.state, ground.sandbox.id, timeout_s=0.05)
        assert 0.05 <= time.monotonic() - begun < 5
        assert "--sandbox" in failure.value.remedy
        assert not SandboxLock(ground.store.state, ground.sandbox.id).try_acquire()
    lock_sandbox(ground.store.state, ground.sandbox.id, timeout_s=0).release()


def test_other_sandboxes_have_other_locks(ground: Ground) -> None:
    with (
        lock_sandbox(ground.store.state, ground.sandbox.id),
        lock_sandbox(ground.store.state, SandboxId("0" * 16), timeout_s=0),
    ):
        pass


def test_a_killed_holder_gives_the_lock_back(ground: Ground) -> None:
    program = (
        "import os, sys, time; from unspill.layers.locks import lock_sandbox;"
        " lock = lock_sandbox(os.fsencode(sys.argv[1]), sys.argv[2]); print('held', flush=True); time.sleep(60)"
    )
    command: list[str | bytes] = [sys.executable, "-c", program, ground.store.state, ground.sandbox.id]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert not SandboxLock(ground.store.state, ground.sandbox.id).try_acquire()
        holder.kill()
        holder.wait()
        lock_sandbox(ground.store.state, ground.sandbox.id, timeout_s=5).release()


def test_a_program_that_is_started_meanwhile_does_not_keep_the_lock(ground: Ground) -> None:
    with lock_sandbox(ground.store.state, ground.sandbox.id):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock_sandbox(ground.store.state, ground.sandbox.id, timeout_s=5).release()
    finally:
        child.kill()
        child.wait()


def test_a_lock_is_taken_once_and_released_any_number_of_times(ground: Ground) -> None:
    lock = SandboxLock(ground.store.state, ground.sandbox.id)
    with lock, pytest.raises(RuntimeError):
        lock.try_acquire()
    lock.release()
    assert lock.try_acquire()
    lock.release()


def test_locks_lie_in_the_state_directory_for_their_owner_alone(ground: Ground) -> None:
    before = os.umask(0)
    try:
        lock_sandbox(ground.store.state, ground.sandbox.id).release()
    finally:
        os.umask(before)
    path = os.path.join(ground.store.state, b"locks", ground.sandbox.id.encode())
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(ground.project) == []
