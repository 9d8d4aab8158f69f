# SPDX-License-Identifier: Apache-2.0
"""Runs with `reuse` share a live sandbox one after another, and nobody can tell: results, files, others' waiting."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prepared import PROGRAM
from tests.support import Ground, kinds
from unspill import DeniedError, RunResult, Sandbox
from unspill.errors import SandboxUnavailable, UnspillError, UsageError
from unspill.layers.locks import SandboxLock
from unspill.runner.live import Joined, LiveSandbox
from unspill.sandbox import live as live_module
from unspill.sandbox.live import Live

pytestmark = [pytest.mark.kernel]

LEAVE_QUEUE = (
    "import ctypes, os; r = ctypes.CDLL(None, use_errno=True); "
    "q = r.mq_open(b'/left', os.O_CREAT | os.O_RDWR, 0o600, None); print('there' if q >= 0 else ctypes.get_errno())"
)
FIND_QUEUE = "import ctypes; print('found' if ctypes.CDLL(None).mq_open(b'/left', 0) >= 0 else 'none')"
# What leaves something, and what prints another line than without it
LEFT = {
    "/tmp": ("echo x > /tmp/left", "ls -A /tmp"),
    "/var/tmp": ("mkdir /var/tmp/left", "ls -A /var/tmp"),
    "/dev/shm": ("echo x > /dev/shm/left", "ls -A /dev/shm"),
    "/run": ("ln -s / /run/left", "ls -A /run | grep -v unspill-wait"),
    "home": ("mkdir -p ~/deep; echo x > ~/deep/left", "ls -A ~"),
    "mode": ("chmod 700 /tmp", "stat -c %a /tmp"),
    "process": ("sleep 1000.5 & echo", "pgrep -fx 'sleep 1000.5'"),
    "shared memory": ("ipcmk -M 10 > /dev/null", "ipcs -m | grep -c 0x"),
    "semaphores": ("ipcmk -S 1 > /dev/null", "ipcs -s | grep -c 0x"),
    "messages": ("ipcmk -Q > /dev/null", "ipcs -q | grep -c 0x"),
    "queue": (f'python3 -c "{LEAVE_QUEUE}"', f'python3 -c "{FIND_QUEUE}"'),
}
SAME: tuple[tuple[Any, dict[str, Any]], ...] = (
    ("cat file; ls -A", {}),
    (["true"], {}),
    ("echo new > made; rm file; mkdir d; ln -s made d/link", {}),
    ("cat made; echo more >> made", {}),
    ("echo out; echo err >&2; exit 3", {}),
    ("kill -TERM $$", {}),
    ("no-such-program", {}),
    (["./no-such-program"], {}),
    ("echo x > ~/lost; echo y > /var/tmp/lost", {}),
    ("sleep 1000.25 & until [ $(head -c 5 /proc/$!/cmdline)_ = sleep_ ]; do :; done; echo started", {}),
    ("cat; echo $WORD; pwd", {"stdin": "given", "env": {"WORD": "word"}, "working_dir": "d"}),
    ("echo late > late; sleep 60", {"timeout": 0.3}),
    ("seq 1 100000", {}),
    ("echo x > dropped", {"after": "discard"}),
    ("echo x > alone", {"alone": True}),
    ("true", {"working_dir": "no/such"}),
    ("true", {"hosts": ["example.org"]}),
    ("head -c 300000 /dev/zero > big", {}),
)


@pytest.fixture(autouse=True)
def file(ground: Ground) -> None:
    ground.write("file", "content\n")


@pytest.fixture
def sandbox(ground: Ground) -> Iterator[Sandbox]:
    with ground.sandbox() as sandbox:
        yield sandbox


def live_of(sandbox: Sandbox) -> Live | None:
    return None if sandbox._reused is None else sandbox._reused._live


def built(sandbox: Sandbox) -> int:
    live = live_of(sandbox)
    return 0 if live is None else live._live.built


def is_alive(sandbox: Sandbox) -> bool:
    live = live_of(sandbox)
    return live is not None and live._live._launched is not None


def printed(result: RunResult) -> str:
    return result.stdout.kept().decode().strip()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def told(sandbox: Sandbox, command: Any, options: dict[str, Any]) -> object:
    """Return all that a caller learns of a run but its number and its time."""
    try:
        result = sandbox.run(command, **options)
    except UnspillError as error:
        return type(error), error.message, error.remedy
    return (
        result.outcome,
        result.stdout,
        result.stderr,
        kinds(result.changes),
        result.held,
        result.hints,
        result.warnings,
        result.flagged,
        result.shared_with,
        None if result.operation is None else (result.operation.kind, result.operation.paths),
    )


@pytest.mark.parametrize("after", ["hold", "apply"])
def test_whatever_a_command_does_its_result_is_that_of_a_plain_run(ground: Ground, after: str) -> None:
    found: dict[bool, list[object]] = {True: [], False: []}
    # At the same path, one after the other: what is told has paths in it
    for reuse, results in found.items():
        ground.write("file", "content\n")
        with ground.sandbox(f"reuse-{reuse}".lower(), after=after) as sandbox:
            for command, options in SAME:
                results.append(told(sandbox, command, {**options, "reuse": reuse}))
            results.append(kinds(sandbox.changes()))
            assert built(sandbox) == (0 if not reuse else pytest.approx(4, abs=3))
            sandbox.discard()
        for path in ("made", "big", "alone", "late", "d/link"):
            (ground.project / path).unlink(missing_ok=True)
        if (ground.project / "d").exists():
            (ground.project / "d").rmdir()
    for (command, _options), reused, plain in zip((*SAME, ("", {})), found[True], found[False], strict=True):
        assert reused == plain, command


def test_commands_that_leave_nothing_share_one_sandbox(sandbox: Sandbox) -> None:
    for command in ("cat file", "echo x > a", "t=$(mktemp) && rm $t", "echo y > b", "exit 3", "true & wait"):
        sandbox.run(command, reuse=True)
    assert built(sandbox) == 1
    assert kinds(sandbox.changes()) == {"a": "added", "b": "added"}


@pytest.mark.parametrize("place", LEFT)
def test_nothing_that_a_command_left_is_found_by_the_next(sandbox: Sandbox, place: str) -> None:
    leave, find = LEFT[place]
    before = printed(sandbox.run(find, reuse=True))
    assert sandbox.run(leave, reuse=True).ok
    assert printed(sandbox.run(find, reuse=True)) == before
    with sandbox.live() as live:
        # It is there to be found: one live sandbox is one machine
        assert live.run(leave).ok
        if place != "process":
            assert printed(live.run(find)) != before


def test_every_directory_in_memory_that_a_command_can_write_is_looked_at(sandbox: Sandbox) -> None:
    mounts = "awk '$0 ~ / - tmpfs / && $6 ~ /^rw/ {print $5}' /proc/self/mountinfo"
    places = printed(sandbox.run(mounts, reuse=True)).split()
    assert len(places) >= 5
    tried = 0
    for place in places:
        number = built(sandbox)
        if sandbox.run(f"echo x > '{place}/left-here'", reuse=True).ok and place != os.fsdecode(sandbox.project):
            tried += 1
            assert sandbox.run(f"test ! -e '{place}/left-here'", reuse=True).ok, place
            assert built(sandbox) == number + 1, place
    assert tried >= 5


def test_runs_at_once_go_on_beside_each_other_and_each_has_its_own_changes(sandbox: Sandbox) -> None:
    held, go = os.pipe()
    results: list[RunResult] = []
    first = threading.Thread(
        target=lambda: results.append(sandbox.run("read -r line; echo 1 > first", stdin=held, reuse=True))
    )
    first.start()
    until(lambda: sandbox._reused is not None and sandbox._reused._is_used)
    second = sandbox.run("echo 2 > second", reuse=True)
    assert kinds(second.changes) == {"second": "added"}
    assert not results
    os.write(go, b"go\n")
    first.join(30)
    os.close(held)
    os.close(go)
    assert kinds(results[0].changes) == {"first": "added"}
    assert results[0].shared_with == second.shared_with == ()


def is_locked(sandbox: Sandbox) -> bool:
    lock = SandboxLock(sandbox._project.store.state, sandbox.id)
    is_free = lock.try_acquire()
    lock.release()
    return not is_free


def test_nobody_waits_for_a_run_that_goes_on_or_for_an_idle_sandbox(ground: Ground) -> None:
    ground.configure('after = "apply"\n')
    sandbox = Sandbox(ground.project)
    held, go = os.pipe()

    def by_a_person(*words: str) -> str:
        done = subprocess.run(
            [PROGRAM, *words], check=False, cwd=ground.project, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with sandbox:
        assert sandbox.run("cat file", reuse=True).ok
        assert is_alive(sandbox)
        by_a_person("run", "--", "sh", "-c", "echo theirs > theirs")
        assert printed(sandbox.run("cat theirs", reuse=True)) == "theirs"
        by_a_person("undo")
        assert printed(sandbox.run("ls theirs || echo gone", reuse=True)) == "gone"
        by_a_person("run", "--hold", "--", "sh", "-c", "echo kept > kept")
        assert printed(sandbox.run("cat kept", reuse=True)) == "kept"
        by_a_person("apply")
        assert (ground.project / "kept").read_text() == "kept\n"
        assert printed(sandbox.run("cat kept", reuse=True)) == "kept"
        assert built(sandbox) == 1
        work = threading.Thread(target=lambda: sandbox.run("read -r line; echo x > mine", stdin=held, reuse=True))
        work.start()
        until(lambda: sandbox._reused is not None and sandbox._reused._is_used)
        by_a_person("run", "--", "sh", "-c", "echo beside > beside")
        assert work.is_alive()
        assert (ground.project / "beside").exists()
        assert not is_locked(sandbox)
        os.write(go, b"go\n")
        work.join(30)
        assert (ground.project / "mine").exists()
        with sandbox.live() as live:
            # A live sandbox of the caller's own has the lock: so there is something to see
            other = threading.Thread(target=lambda: live.run("read -r line", stdin=held))
            other.start()
            until(lambda: is_locked(sandbox))
            os.write(go, b"go\n")
            other.join(30)
    os.close(held)
    os.close(go)


def test_it_is_closed_when_it_is_idle_and_made_anew(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "IDLE_S", 0.2)
    assert sandbox.run("true", reuse=True).ok
    first = live_of(sandbox)
    assert first is None or first._live.built == 1
    until(lambda: live_of(sandbox) is None)
    monkeypatch.setattr(live_module, "IDLE_S", 60.0)
    assert sandbox.run("true", reuse=True).ok
    assert live_of(sandbox) not in (None, first)
    assert is_alive(sandbox)


def test_it_ends_with_its_sandbox_and_can_be_ended_before(ground: Ground) -> None:
    with ground.sandbox() as sandbox:
        assert sandbox.run("true", reuse=True).ok
        ended = live_of(sandbox)
        assert ended is not None
        sandbox.end_reuse()
        assert ended._live._launched is None
        assert sandbox.run("echo x > a", reuse=True).ok
        assert live_of(sandbox) is None
    with ground.sandbox() as sandbox:
        assert sandbox.run("true", reuse=True).ok
        live = live_of(sandbox)
        assert live is not None
    assert live._live._launched is None


@pytest.mark.parametrize("how", ["exit", "killed"])
def test_a_caller_that_dies_while_it_is_idle_leaves_nothing_to_tell_of(ground: Ground, how: str) -> None:
    end = "os._exit(0)" if how == "exit" else "os.kill(os.getpid(), 9)"
    program = f"""
        import os
        from unspill import Sandbox
        sandbox = Sandbox({os.fspath(ground.project)!r})
        assert sandbox.run("cat file", reuse=True).ok
        assert sandbox._reused._live._live.built == 1
        {end}
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False, timeout=30)
    assert done.returncode == (0 if how == "exit" else -signal.SIGKILL)
    with Sandbox(ground.project) as sandbox:
        assert sandbox.interrupted_runs == ()
        assert sandbox.run("cat file").ok
        assert not sandbox.changes()
    assert ground.left_behind() == []


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"network": {"ask": True}}, {}),
        ({}, {"limits": {"processes": 100}}),
    ],
)
def test_where_a_live_sandbox_would_differ_there_is_a_plain_run(
    ground: Ground, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    with ground.sandbox() as usual:
        policy = usual.policy
    if "network" in settings:
        settings = {"network": policy.network.replace(**settings["network"])}
    given: dict[str, Any] = {name: policy.limits.replace(**value) for name, value in options.items()}
    with ground.sandbox(**settings) as sandbox:
        assert printed(sandbox.run("cat file", reuse=True, **given)) == "content"
        assert live_of(sandbox) is None
        with pytest.raises(DeniedError):
            sandbox.run("true", reuse=True, network=True)


def test_where_the_spawner_has_no_namespaces_of_its_own_there_is_a_plain_run(without_own_namespace: Ground) -> None:
    with without_own_namespace.sandbox(engine="native") as sandbox:
        assert printed(sandbox.run("cat file", reuse=True)) == "content"
        assert live_of(sandbox) is None


def test_where_it_can_not_be_built_the_command_is_run_plainly_once(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def refuse(*_rest: object) -> None:
        tried.append(1)
        raise SandboxUnavailable("refused")

    monkeypatch.setattr(LiveSandbox, "_build", refuse)
    for number in range(5):
        assert printed(sandbox.run(f"echo {number} >> count; wc -l < count", reuse=True)) == str(number + 1)
    assert len(tried) == 3, "then there are plain runs only"


def test_a_command_that_was_begun_is_never_run_again(
    ground: Ground, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Joined.message

    def fail(joined: Joined) -> Any:
        found = usual(joined)
        if found is not None and found[0][0] == "ended":
            raise SandboxUnavailable("our own failure")
        return found

    monkeypatch.setattr(Joined, "message", fail)
    with pytest.raises(SandboxUnavailable, match="our own failure"):
        sandbox.run("echo once >> once", reuse=True, after_cancel="hold")
    monkeypatch.undo()
    assert printed(sandbox.run("cat once", reuse=True)) == "once"
    assert not (ground.project / "once").exists()


def test_a_command_that_kills_everything_ends_its_sandbox_alone(sandbox: Sandbox) -> None:
    sandbox.run("kill -9 -1", reuse=True)
    assert printed(sandbox.run("cat file", reuse=True)) == "content"


def test_a_directory_that_does_not_exist_is_the_callers_mistake(sandbox: Sandbox) -> None:
    with pytest.raises(UsageError):
        sandbox.run("true", reuse=True, working_dir="no/such")
    assert sandbox.run("true", reuse=True).ok


def test_a_cancelled_run_is_over_and_the_next_finds_nothing_of_it(sandbox: Sandbox, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    timer = threading.Timer(0.3, lambda: os.write(writing, b"x"))
    timer.start()
    sandbox.run("echo x > half; sleep 1000.125", reuse=True, cancel_fd=reading, after_cancel="discard")
    timer.join()
    os.close(reading)
    os.close(writing)
    assert printed(sandbox.run("ls half || pgrep -fx 'sleep 1000.125' || echo none", reuse=True)) == "none"


def test_one_that_is_closed_when_nobody_is_there_any_more_says_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state was removed meanwhile, and no caller could hear of it."""
    sandbox = ground.sandbox()
    sandbox.run("true", reuse=True)
    reused = sandbox._reused
    assert reused is not None
    (ground.state / "store.db").rename(ground.state / "gone.db")
    monkeypatch.setattr("unspill.sandbox.live.IDLE_S", 0.01)
    # As its own thread does
    reused._close_when_idle()
    assert reused._live is None
    (ground.state / "gone.db").rename(ground.state / "store.db")
