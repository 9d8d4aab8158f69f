# SPDX-License-Identifier: Apache-2.0
"""One holder at a time, in threads and in processes; a dead holder holds nothing."""

import errno
import fcntl
import os
import pwd
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import locked_by_a_stranger
from tests.unit.layers.ground import Ground
from unspill.errors import ProjectBusy, SandboxUnavailable
from unspill.layers import locks
from unspill.layers.locks import (
    OperationUse,
    RootLocks,
    RunUse,
    SandboxLock,
    StackUse,
    find_own_flock,
    lock_sandbox,
    refuse_given_up,
    wait_for_lock,
)
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


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_lock_that_becomes_free_after_its_caller_gave_up_is_not_taken(
    ground: Ground, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both come between two looks of who waits. Control: the same without giving up."""
    read_end, write_end = os.pipe()
    holder = lock_sandbox(ground.store.state, ground.sandbox.id)
    real = SandboxLock.try_acquire

    def try_late(lock: SandboxLock) -> bool:
        if gives_up:
            os.write(write_end, b"x")
        holder.release()
        return real(lock)

    monkeypatch.setattr(SandboxLock, "try_acquire", try_late)
    found = wait_for_lock(ground.store.state, ground.sandbox.id, read_end)
    monkeypatch.undo()
    assert (found is None) is gives_up
    other = SandboxLock(ground.store.state, ground.sandbox.id)
    assert other.try_acquire() is gives_up
    for lock in filter(None, (found, other)):
        lock.release()
    os.close(read_end)
    os.close(write_end)


def test_locks_lie_in_the_state_directory_for_their_owner_alone(ground: Ground) -> None:
    before = os.umask(0)
    try:
        lock_sandbox(ground.store.state, ground.sandbox.id).release()
    finally:
        os.umask(before)
    path = os.path.join(ground.store.state, b"locks", ground.sandbox.id.encode())
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(ground.project) == []


TAKERS: dict[str, Callable[[bytes, SandboxId], object]] = {
    "a run": lambda state, sandbox: RunUse(state, sandbox, None),
    "an operation": OperationUse,
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_filesystem_that_fails_where_layers_are_taken_is_said(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, taker: str
) -> None:
    def fail(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fcntl, "flock", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SandboxUnavailable, match="can't be locked: No space left on device"):
        TAKERS[taker](ground.store.state, ground.sandbox.id)
    assert os.listdir("/proc/self/fd") == before


def test_an_operation_does_not_wait_for_a_run_that_is_alone(ground: Ground) -> None:
    """Such a run may itself wait for the lock, which the operation has. Control: beside nobody it is alone."""
    state, sandbox = ground.store.state, ground.sandbox.id
    with RunUse(state, sandbox, None, alone=True), StackUse(state, sandbox) as use:
        assert not use.is_alone
    with StackUse(state, sandbox) as use:
        assert use.is_alone


@contextmanager
def root_locked(state: Path, root: Path, patience_s: float = 0.1) -> Iterator[None]:
    """Have the right to change a root, as an operation with this state directory has it."""
    (state / "locks").mkdir(parents=True, exist_ok=True)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    holder = RootLocks(os.fsencode(state))
    try:
        holder.acquire(fd, time.monotonic() + patience_s)
        yield
    finally:
        os.close(fd)
        holder.close()


@pytest.mark.parametrize("gives_up", [True, False])
def test_who_waits_for_a_root_may_give_up(tmp_path: Path, root: Path, gives_up: bool) -> None:
    """Control: who does not give up waits until the time is over."""
    read_end, write_end = os.pipe()
    if gives_up:
        os.write(write_end, b"x")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with root_locked(tmp_path / "one", root):
        (tmp_path / "two" / "locks").mkdir(parents=True)
        other = RootLocks(os.fsencode(tmp_path / "two"))
        with pytest.raises(SandboxUnavailable if gives_up else ProjectBusy):
            other.acquire(fd, time.monotonic() + (600 if gives_up else 0.1), lambda: refuse_given_up(read_end))
        other.close()
    for one in (fd, read_end, write_end):
        os.close(one)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


def test_a_root_is_changed_by_one_process_of_a_user_at_a_time_whatever_the_state_directory(
    tmp_path: Path, root: Path
) -> None:
    with (
        locked_by_a_stranger(root),
        root_locked(tmp_path / "one", root),
        pytest.raises(ProjectBusy, match="another operation"),
        root_locked(tmp_path / "two", root),
    ):
        pass
    with root_locked(tmp_path / "two", root):
        pass


def test_with_a_lock_in_each_state_directory_two_would_change_it(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control; it is also how it is for a user without a home directory."""
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with locked_by_a_stranger(root), root_locked(tmp_path / "one", root), root_locked(tmp_path / "two", root):
        assert list((tmp_path / "one" / "locks").iterdir()) == [tmp_path / "one" / "locks" / "roots"]


def test_two_roots_are_two_locks(tmp_path: Path, root: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with root_locked(tmp_path / "one", root), root_locked(tmp_path / "two", other):
        pass


def test_a_lock_that_another_user_has_on_the_directory_stops_nothing(tmp_path: Path, root: Path) -> None:
    with locked_by_a_stranger(root):
        begun = time.monotonic()
        with root_locked(tmp_path / "state", root, 60):
            assert time.monotonic() - begun < 5


def test_it_would_if_it_were_taken_for_one_of_ours(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: who may read a directory can lock it."""
    monkeypatch.setattr(locks, "find_own_flock", lambda _fd: 1)
    with locked_by_a_stranger(root), pytest.raises(ProjectBusy), root_locked(tmp_path / "state", root):
        pass


def test_a_process_of_the_same_user_that_locks_the_directory_is_waited_for_and_named(
    tmp_path: Path, root: Path
) -> None:
    """As earlier versions of unspill lock it, and people with `flock`."""
    hold = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(); input()"
    words: list[str | Path] = [sys.executable, "-c", hold, root]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ProjectBusy, match=f"process {holder.pid}, one of yours"), root_locked(tmp_path, root):
            pass
        holder.kill()
    with root_locked(tmp_path, root):
        pass


def test_nobody_else_can_open_the_file_of_the_locks(tmp_path: Path, root: Path) -> None:
    with root_locked(tmp_path, root):
        pass
    file = Path(pwd.getpwuid(os.getuid()).pw_dir, os.fsdecode(locks._ROOT_LOCKS))
    found = file.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode), found.st_size) == (os.getuid(), 0o600, 0)


def test_the_directories_of_the_locks_are_made_for_their_owner_alone(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    person = pwd.struct_passwd(("ann", "x", os.getuid(), os.getgid(), "", os.fspath(home), ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: person)
    before = os.umask(0)
    try:
        with root_locked(tmp_path / "state", root):
            pass
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*")}
    assert modes == {".local": 0o700, "state": 0o700, "unspill-roots.lock": 0o600}


# Many locks that come and go: between two pages of /proc/locks some are given back
CHURN = """
import fcntl, os, sys
while os.path.exists(sys.argv[1]):
    held = [os.open(f"{sys.argv[1]}/{number}", os.O_RDWR | os.O_CREAT) for number in range(120)]
    for fd in held:
        fcntl.flock(fd, fcntl.LOCK_EX)
    for fd in held:
        os.close(fd)
"""


@pytest.mark.parametrize("looks", [10, 1])
def test_a_lock_is_found_among_many_that_come_and_go_and_not_with_a_single_look(
    tmp_path: Path, root: Path, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_LOOKS", looks)
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    churning = [subprocess.Popen([sys.executable, "-c", CHURN, place]) for place in places]
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if looks == 1:
            assert any(find_own_flock(fd) is None for _ in range(20_000))
        else:
            assert {find_own_flock(fd) for _ in range(1000)} == {os.getpid()}
    finally:
        os.close(fd)
        for place in places:
            place.rename(place.with_suffix(".gone"))
        for process in churning:
            process.wait(20)
