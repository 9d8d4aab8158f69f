# SPDX-License-Identifier: Apache-2.0
"""Background runs of the command line, and the process that keeps their sandbox alive."""

import errno
import json
import math
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernel.terminal_person import at_terminal
from tests.kernel.twin_world import IDENTITY, sh
from tests.prepared import PREPARED, PROGRAM
from tests.support import Ground, lasting, parent_of, processes_with, run_cli, starts
from unspill.cli.run import TerminalOutput, print_background
from unspill.errors import SandboxUnavailable, UsageError
from unspill.layers.locks import RootLocks, keeper_files
from unspill.runner import background
from unspill.sandbox import keeper
from unspill.sandbox.keeper import from_form, receive, send, to_form
from unspill.store.db import Store

pytestmark = [pytest.mark.kernel, pytest.mark.any_bwrap]

# A shell would say on stderr that its sleep was ended
# Who wishes something moves it there: an empty file would be taken too. It goes at the end: what is removed in the
# moment of a checkpoint, after its copy and before its apply, is seen again
SERVER = (
    "exec 2>/dev/null; trap 'rm -f wish; echo bye; exit' TERM; echo up; "
    "until cat wish; do sleep 0.02; done; while :; do sleep 0.02; done"
)
DEADLINE_S = 30
OPTIONS: dict[str, Any] = {"working_dir": None, "env": {}, "timeout": None, "after": None}


def until(found: Callable[[], Any]) -> Any:
    """Return what is true at last."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


@pytest.fixture
def cli(ground: Ground) -> Iterator[Callable[..., "subprocess.CompletedProcess[bytes]"]]:
    """Runs the program in the project; at the end nothing of it is left."""

    def run(*words: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
        return run_cli(*words, cwd=ground.project, **options)

    yield run
    for link in keeper.find_keepers(os.fsencode(ground.state)):
        # One that ends by itself may be gone in between
        with link, suppress(SandboxUnavailable):
            link.ask("stop")
    until(lambda: not list((ground.state / "locks").glob("*.socket")))


def keepers(cli: Callable[..., Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cli("ps", "--json").stdout)["sandboxes"]
    return found


def sandbox_id(ground: Ground) -> Any:
    return ground.sandbox().id


def tree(top: Path) -> dict[str, bytes]:
    return {os.fspath(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_a_background_run_shares_its_sandbox_with_the_next_runs_until_it_is_stopped(ground: Ground, cli: Any) -> None:
    ground.write("edited", "1\n")
    before = tree(ground.project)
    begun = cli("run", "-d", "-c", SERVER)
    assert begun.stdout == b"Started run 1 in the background. Output: unspill logs 1. Stop: unspill stop 1\n"
    beside = cli("run", "--", "sh", "-c", "echo 2 > edited; echo new > w; mv w wish; echo out; echo err >&2; exit 3")
    assert (beside.returncode, beside.stdout) == (3, b"out\n")
    # A checkpoint at its end
    told = beside.stderr.decode().splitlines()
    assert told[0] == "err"
    assert "Applied as op 1. Undo: unspill undo" in told[1]
    assert "  M edited" in told
    assert (ground.project / "edited").read_text() == "2\n"
    assert until(lambda: b"new" in (found := cli("logs")).stdout and found.stdout) == b"up\nnew\n"
    stopped = cli("stop")
    assert stopped.stdout.decode().splitlines()[0] == "Stopped run 1."
    assert tree(ground.project) == {"edited": b"2\n"}
    assert cli("ps").stdout == b"Nothing runs in the background.\n"
    # What it has printed stays with its record
    assert cli("logs", "1").stdout == b"up\nnew\nbye\n"
    until(lambda: cli("undo").returncode != 0)
    assert tree(ground.project) == before


def test_each_run_beside_it_is_applied_at_its_end_and_the_log_names_all_that_may_have_done_it(
    ground: Ground, cli: Any
) -> None:
    cli("run", "-d", "-c", "echo up > state; sleep 1000")
    code, seen = at_terminal("run", "-c", "until test -e state; do sleep 0.1; done; echo 2 > two", cwd=ground.project)
    assert (code, "2 added. Applied as op 1." in seen) == (0, True), seen
    assert tree(ground.project) == {"state": b"up\n", "two": b"2\n"}
    cli("run", "-c", "echo 3 > three")
    cli("run", "-d", "-c", "echo 4 > four; echo done")
    until(lambda: keepers(cli)[0]["runs"][-1]["alive"] is False)
    cli("stop")
    assert tree(ground.project) == {"state": b"up\n", "two": b"2\n", "three": b"3\n", "four": b"4\n"}
    told = {line.split()[0]: line for line in cli("log").stdout.decode().splitlines()}
    assert "1 changed, op1 (shared), op2 (shared), op3 (shared)" in told["run1"]
    assert "2 changed, op1 (shared)  " in told["run2"]
    assert "1 changed, op2 (shared)  " in told["run3"]
    assert " op3 (shared)  " in told["run4"]
    assert "no change" not in told["run4"]
    # Whoever names a run undoes what it shared
    assert cli("undo", "run4").returncode == 0
    assert not (ground.project / "four").exists()


# Has decided to run without a keeper when another process starts one
OVERTAKEN = """
import subprocess, sys
from unspill.cli import run
from unspill.cli.main import main
real, begun = run._runner, []
program, word = sys.argv.pop(1), sys.argv.pop(1)
def overtaken(*given):
    found = real(*given)
    if not begun:
        begun.append(subprocess.run([program, "run", "-q", "-d", "--", "sleep", word], check=True, capture_output=True))
    return found
run._runner = overtaken
main()
"""


def test_a_run_that_a_background_run_overtakes_shares_its_sandbox(ground: Ground, cli: Any) -> None:
    word = lasting()
    words = [sys.executable, "-P", "-c", OVERTAKEN, PROGRAM, word, "run", "-c", "echo done; touch made"]
    done = subprocess.run(words, cwd=ground.project, capture_output=True, check=False, timeout=50)
    assert (done.returncode, done.stdout) == (0, b"done\n"), done
    assert starts(word)
    assert (ground.project / "made").exists()
    [kept] = keepers(cli)
    assert len(kept["runs"]) == 1, "the background run is alone again"


def test_ps_says_what_runs_and_what_has_ended(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "--sandbox", "other", "--", "sleep", lasting())
    cli("run", "-d", "--sandbox", "other", "-c", "exit 4")
    [kept] = until(lambda: (found := keepers(cli)) and not found[0]["runs"][1]["alive"] and found)
    assert (kept["project"], kept["sandbox"]) == (os.fspath(ground.project), "other")
    assert [(run["number"], run["alive"], run["exit_code"]) for run in kept["runs"]] == [(1, True, None), (2, False, 4)]
    first, second = cli("ps").stdout.decode().splitlines()
    assert first.split()[3:6] == ["running", "other", "sleep"]
    assert second.split()[3:6] == ["exit", "4", "other"]
    assert cli("ps", "--sandbox", "default").stdout == b"Nothing runs in the background.\n"
    assert cli("stop", "2", "--sandbox", "other").returncode == 0
    assert b"no background run 7" in cli("stop", "7", "--sandbox", "other").stderr
    assert cli("stop", "other").stdout == b"Stopped run 1.\n"


def test_following_shows_new_lines_until_the_end(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "-c", SERVER)
    with subprocess.Popen(
        [PROGRAM, "logs", "-f"], cwd=ground.project, stdout=subprocess.PIPE, env={**os.environ, **PREPARED}
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"up\n"
        cli("run", "-c", "echo later > w; mv w wish")
        assert following.stdout.readline() == b"later\n"
        cli("stop", "1")
        assert following.stdout.read() == b"bye\n"
        assert following.wait(DEADLINE_S) == 0


def test_the_keeper_ends_with_its_last_run_and_what_was_changed_is_applied(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "-c", "until test -e go; do sleep 0.02; done; echo x > made")
    cli("run", "-c", "touch go")
    until(lambda: not list((ground.state / "locks").glob("*.socket")))
    # The second run's checkpoint may have seen it when it was empty
    until(lambda: (ground.project / "made").exists() and (ground.project / "made").read_text() == "x\n")
    # The next one is a run like any other
    done = cli("run", "-c", "cat made; echo y > made")
    assert done.stdout == b"x\n"
    assert b"1 modified. Applied as op" in done.stderr


def test_several_at_once_have_one_keeper(ground: Ground, cli: Any) -> None:
    words = [PROGRAM, "run", "-d", "-q", "--", "sleep", lasting()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen(words, cwd=ground.project, env={**os.environ, **PREPARED}, **pipes)  # type: ignore[call-overload]
        for _ in range(3)
    ]
    numbers = [one.communicate(timeout=DEADLINE_S)[0].decode().strip() for one in started]
    assert sorted(numbers) == ["1", "2", "3"]
    [kept] = keepers(cli)
    assert sorted(run["number"] for run in kept["runs"]) == [1, 2, 3]


def test_a_killed_keeper_takes_everything_along_and_what_was_written_is_held(ground: Ground, cli: Any) -> None:
    word = lasting()
    cli("run", "-d", "-c", f"echo x > made; echo up; sleep {word}")
    until(lambda: cli("logs").stdout == b"up\n")
    [kept] = keepers(cli)
    os.kill(kept["pid"], signal.SIGKILL)
    until(lambda: not processes_with(word))
    assert keepers(cli) == []
    # The socket that it has left is in nobody's way
    again = cli("run", "-d", "--", "sleep", lasting())
    assert again.returncode == 0, again.stderr
    assert len(keepers(cli)) == 1
    assert cli("stop").returncode == 0
    assert b"A made" in cli("changes").stdout


def test_the_keepers_own_error_arrives_as_it_was(ground: Ground) -> None:
    """It opens another sandbox than its client means, which nothing but the keeper can notice."""
    sandbox = ground.sandbox()
    stranger = SimpleNamespace(
        id="0" * 16,
        name="default",
        project=sandbox.project,
        policy=sandbox.policy,
        _project=sandbox._project,
    )
    with pytest.raises(SandboxUnavailable, match="the keeper has opened another sandbox") as raised:
        keeper.reach_keeper(stranger, lambda: None)  # type: ignore[arg-type]
    assert raised.value.remedy == "Check UNSPILL_STATE_DIR."


def test_a_signal_to_the_keeper_is_an_orderly_end(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "-c", f"echo x > made; echo up; sleep {lasting()}")
    until(lambda: cli("logs").stdout == b"up\n")
    [kept] = keepers(cli)
    os.kill(kept["pid"], signal.SIGTERM)
    until((ground.project / "made").exists)
    until(lambda: not list((ground.state / "locks").glob("*.socket")))


def test_an_error_at_the_start_arrives(ground: Ground, cli: Any) -> None:
    done = cli("run", "-d", "--working-dir", "missing", "--", "true")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"missing" in done.stderr
    done = cli("run", "-d", "--", "no-such-program")
    assert (done.returncode, done.stdout) == (127, b"")
    assert b"unspill: Command was not started" in done.stderr


def test_what_waits_for_a_background_run_is_told_at_once_what_to_do(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "-c", SERVER)
    done = cli("discard")
    assert done.returncode == 5
    assert b"Background runs use the sandbox 'default'" in done.stderr
    assert b"unspill stop default" in done.stderr
    with pytest.raises(Exception, match="Background runs use"):
        ground.sandbox().apply()
    with pytest.raises(Exception, match="Background runs use"):
        ground.sandbox().run("true", after="hold")
    # What throws its changes away does not wait, and sees the project as it is
    assert cli("run", "--discard", "--", "ls").returncode == 0


def test_what_is_held_beside_a_background_run_is_applied_as_chosen(ground: Ground, cli: Any) -> None:
    ground.write("mine", "before\n")
    ground.sandbox().run("echo earlier > earlier", after="hold")
    cli("run", "-d", "--hold", "-c", SERVER)
    assert cli("apply").stdout == b"Nothing is held.\n"
    # Two checkpoints: what the first has left is applied too
    cli("run", "--hold", "-c", "echo a > a; echo b > b")
    cli("run", "--hold", "-c", "echo c > c; echo ours > mine; echo b2 > b")
    assert not (ground.project / "a").exists()
    assert b"Not listed: what background runs hold" in cli("changes").stderr
    for option in ("--include", "--hunk", "--run"):
        refused = cli("apply", option, "a:1" if option == "--hunk" else "a")
        assert (refused.returncode, b"unspill stop default" in refused.stderr) == (2, True)
    assert cli("apply", "missing").returncode == 2
    chosen = cli("apply", "a")
    assert chosen.stdout == b"Applied 1 change (op 1). Undo: unspill undo\n  A a\n"
    assert b"What earlier runs hold stays held" in chosen.stderr
    ground.write("mine", "edited\n")
    rest = cli("apply")
    assert rest.returncode == 6
    assert b"mine: conflict" in rest.stderr
    assert tree(ground.project) == {"a": b"a\n", "b": b"b2\n", "c": b"c\n", "mine": b"edited\n"}
    assert cli("apply", "--overwrite", "mine").returncode == 0
    assert tree(ground.project)["mine"] == b"ours\n"
    assert cli("undo").returncode == 0
    assert tree(ground.project)["mine"] == b"edited\n"
    assert cli("stop").returncode == 0
    names = {change.path for part in ground.sandbox().changes().roots for change in part.changes}
    assert names == {b"earlier", b"mine"}


def test_what_an_earlier_run_beside_it_left_held_is_told_when_the_last_has_ended(ground: Ground, cli: Any) -> None:
    """And again where git's own files are all that is applied then."""
    ground.write("file", "1\n")
    (ground.home / ".gitconfig").write_text(IDENTITY)
    sh(ground.project, "git init -q -b main; git add -A; git commit -qm one")
    cli("run", "-d", "-c", SERVER)
    ground.write("file", "1\nmine\n")
    sh(ground.project, "git commit -qam mine")
    assert b"! file: conflict" in cli("run", "-c", "echo run >> file").stderr
    assert b"held" not in cli("run", "-c", "git commit -q --allow-empty -m run").stderr
    said = cli("stop").stdout.decode()
    assert "Only git files changed. Applied as op 1." in said
    assert said.endswith("Sandbox 'default' still holds changes: see unspill changes\n")
    assert cli("changes").stdout == b"1 modified\n  M file\n"
    assert "is gone" not in cli("show", "op1").stdout.decode()


def test_what_a_live_sandbox_does_not_have_is_refused_beside_it(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "-c", SERVER)
    more = cli("run", "--network", "--ask", "deny", "--", "true")
    assert b"unspill stop default" in more.stderr
    other = cli("run", "--hold", "--", "true")
    assert b"other commands are alive" in other.stderr
    assert {more.returncode, other.returncode} == {125}
    for option in ("--tty", "--network", "--stdin"):
        done = cli("run", "-d", option, "--", "true")
        assert done.returncode == 125
        assert b"can't be used together" in done.stderr or b"terminal" in done.stderr


def test_input_variables_and_place_of_a_run_beside_it_are_the_callers_own(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "-c", SERVER)
    (ground.project / "below").mkdir()
    command = (PROGRAM, "run", "--env", "MINE=1", "-c", "cat; echo $TERM $MINE; basename $PWD")
    done = subprocess.run(
        command,
        cwd=ground.project / "below",
        input=b"typed\n",
        env={**os.environ, **PREPARED, "TERM": "my-terminal"},
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    # The directory was made after the background run had begun
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"typed\nmy-terminal 1\nbelow\n"


def test_ctrl_c_ends_the_command_beside_it_and_nothing_else(ground: Ground, cli: Any) -> None:
    word = lasting()
    cli("run", "-d", "-c", SERVER)
    with subprocess.Popen(
        [PROGRAM, "run", "-c", f"echo up; sleep {word}"],
        cwd=ground.project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **PREPARED},
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        running.send_signal(signal.SIGINT)
        _out, said = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 130
    assert b"Cancelled. It had changed nothing." in said
    until(lambda: not processes_with(word))
    assert keepers(cli)[0]["runs"][0]["alive"]


def test_a_shell_beside_it_has_a_terminal(ground: Ground, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("run", "-d", "-c", SERVER)
    monkeypatch.setenv("SHELL", "/bin/sh")
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(ground.project)
        os.execv(PROGRAM, [PROGRAM, "shell"])
    printed = b""
    os.write(fd, b"test -t 0 && echo typed > w && mv w wish; echo x > kept; exit 4\r")
    try:
        while chunk := os.read(fd, 1 << 16):
            printed += chunk
    except OSError:
        os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4, printed
    # A checkpoint at its end
    assert b"Applied as op 1" in printed
    assert (ground.project / "kept").read_text() == "x\n"
    assert until(lambda: b"typed" in cli("logs").stdout)


def test_lost_output_is_counted(ground: Ground, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    class Link:
        def ask(self, _what: str, *, run: int, offset: int, timeout: float) -> dict[str, Any]:
            lost, text = (3, b"later") if offset == 0 else (0, b"")
            return {"lost": lost, "text": to_form(text), "next": 8, "end": 8, "run": {"alive": False}}

    assert print_background(Link(), 1, TerminalOutput().pass_on, follow=False) == 0  # type: ignore[arg-type]
    assert capfdbinary.readouterr() == (b"later", b"unspill: 3 bytes of earlier output are lost\n")


def test_only_processes_of_the_user_outside_of_sandboxes_are_served(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "-c", SERVER)
    path = os.fsdecode(keeper_files(os.fsencode(ground.state), sandbox_id(ground))[1])
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    source = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); os.chdir(os.path.dirname(sys.argv[1]));"
        "s.connect(os.path.basename(sys.argv[1])); print(len(s.recv(4)))"
    )
    for prefix, heard in ((), b"4\n"), (("unshare", "--user", "--map-current-user"), b"0\n"):
        words = [*prefix, sys.executable, "-I", "-c", source, path]
        assert subprocess.run(words, capture_output=True, check=True, timeout=DEADLINE_S).stdout == heard
    # From inside of the sandbox there is no such file
    assert cli("run", "--", "ls", path).returncode != 0


def test_a_peer_is_told_from_one_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert keeper.is_own_peer(one)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert not keeper.is_own_peer(one)


@pytest.mark.parametrize(
    "message",
    [
        {"do": "nothing"},
        {"do": "start", "command": 3, "options": {}},
        {"do": "start", "command": "true", "options": {"cancel_fd": 0}},
        {"do": "output", "run": "1", "offset": 0, "timeout": 0.0},
        {"do": "apply", "paths": [1], "globs": [], "overwrite": []},
        {
            "do": "run",
            "command": "true",
            "options": {"working_dir": None, "env": {"A": 1}, "timeout": 1, "after": None},
        },
    ],
)
def test_what_is_no_request_is_an_error_and_no_more(message: dict[str, Any]) -> None:
    """No sandbox is needed to find that out."""
    served = keeper.Keeper.__new__(keeper.Keeper)
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other, pytest.raises(UsageError):
        served._answer(one, message, [])


def test_what_is_no_message_ends_the_connection() -> None:
    for raw in (b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x02[]", b"\0\0\0\x03{]}", b""):
        one, other = socket.socketpair(socket.AF_UNIX)
        with one, other:
            one.sendall(raw)
            one.shutdown(socket.SHUT_WR)
            assert receive(other, 1 << 20) is None


def test_a_result_arrives_as_it_was(ground: Ground) -> None:
    result = ground.run("echo x > f; echo y", after="apply")
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        send(one, {"result": to_form(result)})
        found = receive(other, 1 << 20)
    assert found is not None
    assert from_form(found[0]["result"]) == result


def test_a_store_that_never_had_one_has_no_keepers(tmp_path: Path) -> None:
    with Store.open(bytes(tmp_path / "state")):
        assert list(keeper.find_keepers(bytes(tmp_path / "state"))) == []
    assert list(keeper.find_keepers(bytes(tmp_path / "none"))) == []


@pytest.mark.parametrize("how", ["stop", "stop 1", "signal"])
def test_a_sandbox_whose_door_stands_still_can_be_ended(ground: Ground, cli: Any, how: str) -> None:
    word = lasting()
    cli("run", "-d", "-c", f"echo x > made; echo up; exec sleep {word}")
    until(lambda: cli("logs").stdout == b"up\n")
    # A command could do the same by `kill -STOP 2`
    os.kill(parent_of(word), signal.SIGSTOP)
    if how == "signal":
        os.kill(keepers(cli)[0]["pid"], signal.SIGTERM)
    else:
        stopped = cli(*how.split())
        assert stopped.stdout.splitlines()[0] == b"Stopped run 1.", stopped.stderr
    until(lambda: not list((ground.state / "locks").glob("*.socket")))
    assert not processes_with(word)


def test_what_is_alive_is_listed_until_it_is_dead(ground: Ground, cli: Any) -> None:
    """It is deaf to the first signal, so there is a while between the wish to end it and its end."""
    word = lasting()
    cli("run", "-d", "-c", f"trap '' TERM; echo up; while :; do sleep {word}; done")
    until(lambda: cli("logs").stdout == b"up\n")
    os.kill(keepers(cli)[0]["pid"], signal.SIGTERM)
    assert keepers(cli)[0]["runs"][0]["alive"]
    until(lambda: not keepers(cli))
    assert not processes_with(word)


class _Held:
    """A keeper in this process, with what it waits for made short; nothing can be applied until `let_go`."""

    def __init__(self, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeper, "_LAST_WORDS_S", 0.1)
        monkeypatch.setattr(background, "GRACE_S", 0.1)
        monkeypatch.setattr(background, "DEATH_S", 0.1)
        sandbox = ground.sandbox(after="apply")
        self.state = sandbox._project.store.state
        lock = os.open(keeper_files(self.state, sandbox.id)[0], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.keeper = keeper.Keeper(sandbox, lock)
        self.keeper._is_open.set()
        self._root = os.open(ground.project, os.O_RDONLY | os.O_CLOEXEC)
        self._locks = RootLocks(self.state)
        self._locks.acquire(self._root, time.monotonic() + DEADLINE_S)

    def connect(self) -> keeper.KeeperLink:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        self.keeper._take(theirs)
        return keeper.KeeperLink(ours, os.getpid())

    def let_go(self) -> None:
        self._locks.close()
        os.close(self._root)


@pytest.mark.parametrize("words", [{}, {"run": 1}])
def test_who_stops_runs_hears_how_they_ended_however_long_it_takes_to_apply_what_they_changed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, words: dict[str, Any]
) -> None:
    held = _Held(ground, monkeypatch)
    with held.connect() as asking:
        asking.ask("start", command="echo x > made; echo up; read line", options=OPTIONS)
        until(lambda: asking.ask("output", run=1, offset=0, timeout=1.0)["next"])
        send(asking.sock, {"do": "stop", **words})
        # All bounds are over by then
        until(lambda: held.keeper._live._is_closed)
        held.let_go()
        [result] = from_form(asking.answer()["results"])
    assert result.operation is not None
    assert (ground.project / "made").read_text() == "x\n"


def test_a_client_that_does_not_read_what_its_command_prints_holds_nobody_up(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = _Held(ground, monkeypatch)
    held.let_go()
    with held.connect() as asking, held.connect() as deaf:
        asking.ask("start", command="echo up; read line", options=OPTIONS)
        send(deaf.sock, {"do": "run", "command": "yes", "options": OPTIONS})
        until(lambda: any(since < math.inf for since in held.keeper._waiting.values()))
        assert len(asking.results("stop")) == 1
        # What it has not read yet comes first; this keeper is this process, and lives
        with pytest.raises(SandboxUnavailable, match="is alive, and has closed the connection"):
            list(iter(deaf.answer, None))


def test_what_fails_in_the_keeper_itself_is_told_as_that(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_words: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    held = _Held(ground, monkeypatch)
    held.let_go()
    monkeypatch.setattr(held.keeper._live, "start", fail)
    with held.connect() as asking:
        with pytest.raises(SandboxUnavailable, match=r"the keeper failed: OSError: .*No space left"):
            asking.ask("start", command="true", options=OPTIONS)
        assert asking.results("stop") == ()


def test_ctrl_c_ends_a_run_that_is_followed_and_says_what_became_of_it(ground: Ground, cli: Any) -> None:
    word = lasting()
    with subprocess.Popen(
        [PROGRAM, "run", "-d", "-f", "-c", f"echo x > made; echo up; sleep {word}"],
        cwd=ground.project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **PREPARED},
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"up\n"
        # It asks for more by now, or will: both are right
        following.send_signal(signal.SIGINT)
        _out, said = following.communicate(timeout=DEADLINE_S)
    assert following.returncode == 130
    assert b"1 added. Applied as op 1" in said
    assert said.endswith(b"unspill: Cancelled. Stopped run 1.\n")
    assert b"Traceback" not in said
    assert not processes_with(word)
    assert (ground.project / "made").read_text() == "x\n"


def test_logs_end_where_the_output_ended_when_they_were_asked_for(ground: Ground, cli: Any) -> None:
    cli("run", "-d", "-c", "yes 0123456789abcdef0123456789abcdef")
    assert until(lambda: cli("logs").stdout).startswith(b"0123456789abcdef")
    found = json.loads(cli("logs", "--json").stdout)
    assert found["run"]["alive"]
    assert found["output"]


def test_what_is_printed_meanwhile_is_no_part_of_the_logs(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    class Link:
        """A run that prints another letter each time that somebody looks."""

        def __init__(self) -> None:
            self.asked = 0

        def ask(self, _what: str, *, run: int, offset: int, timeout: float) -> dict[str, Any]:
            self.asked += 1
            assert self.asked < 9
            return {"lost": 0, "text": to_form(b"x"), "next": offset + 1, "end": 2 + self.asked, "run": {"alive": True}}

    assert print_background(Link(), 1, TerminalOutput().pass_on, follow=False) == 0  # type: ignore[arg-type]
    assert capfdbinary.readouterr().out == b"xxx"
