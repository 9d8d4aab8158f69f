# SPDX-License-Identifier: Apache-2.0
"""The standby of hooks: what it does is what the whole program would have done, and it serves nobody it should not."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import unspill
from tests.support import Ground, is_gone, lasting, processes_with, run_cli, starts
from unspill.layers.locks import find_standby, standby_files
from unspill.standby.handover import ACCEPTED

pytestmark = pytest.mark.kernel

PLACE = Path(unspill.__file__).with_name("standby")
CLIENT = [sys.executable, "-IS", os.fspath(PLACE / "client.py")]
FELL_BACK = 99
# The client, but for this: where it would become the whole program, it ends
ONLY_HELPED = f"""
import posix, sys
sys.path.append({os.fspath(PLACE)!r})
import handover
posix.execv = lambda *_words: posix._exit({FELL_BACK})
"""
EVENT = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "session_id": "one"}
DEADLINE_S = 30


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "UNSPILL_NO_STANDBY"}


def helped(*words: str, before: str = "", prefix: tuple[str, ...] = (), **options: Any) -> Any:
    """Start a client that has nobody but the standby; `before` it begins, do this."""
    program = f"{ONLY_HELPED}\n{before}\nhandover.main()"
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": variables()}
    return subprocess.Popen([*prefix, sys.executable, "-IS", "-c", program, *words], **{**given, **options})


def ended(process: Any) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out.decode("utf-8", "backslashreplace"), err.decode()


def sealed(ground: Ground, text: str, *options: str) -> tuple[str, ...]:
    place = ("--project", os.fspath(ground.project), "--working-dir", ".")
    given = options if "--stdin" in options else ("--no-stdin", *options)
    return ("run", *given, "--session", "codex-1", "--ask", "queue", *place, "--", "bash", "-c", "--", text)


def ask_hook(ground: Ground, text: str, words: list[str] = CLIENT) -> "subprocess.CompletedProcess[bytes]":
    event = json.dumps({**EVENT, "tool_input": {"command": text}}).encode()
    return subprocess.run(
        [*words, "hook", "claude-code"],
        input=event,
        capture_output=True,
        cwd=ground.project,
        env=variables(),
        timeout=DEADLINE_S,
        check=False,
    )


def state(ground: Ground) -> bytes:
    return os.fsencode(ground.state)


def is_up(ground: Ground) -> int:
    return find_standby(state(ground)) if os.path.exists(standby_files(state(ground))[1]) else 0


def is_stopped(ground: Ground) -> bool:
    """Have a standby end, also one that is only about to begin."""
    with open(standby_files(state(ground))[0], "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if (pid := find_standby(state(ground))) != 0:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)
            return False
    return True


@pytest.fixture
def standby(ground: Ground) -> Iterator[int]:
    """A standby that the first hook of an agent has left behind."""
    ground.configure('after = "apply"\n')
    ground.write("file", "content\n")
    assert ask_hook(ground, "true").returncode == 0
    pid = until(lambda: is_up(ground))
    yield pid
    until(lambda: is_stopped(ground))


def run_helped(ground: Ground, text: str, *options: str, **more: Any) -> tuple[int, str, str]:
    return ended(helped(*sealed(ground, text, *options), cwd=ground.project, **more))


def tree(top: Path) -> dict[str, tuple[int, bytes]]:
    paths = [path for path in top.rglob("*") if path.is_file()]
    return {str(path.relative_to(top)): (path.stat().st_mode, path.read_bytes()) for path in paths}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("echo out; echo err >&2; exit 3", ()),
        ("cat file; echo new > made; rm file; mkdir d; umask", ()),
        ("kill -TERM $$", ()),
        ("no-such-program; cat", ()),
        ("echo $TERM $HOME $UNSPILL_STATE_DIR; pwd; ulimit -n", ()),
        ("seq 1 100000", ("--quiet",)),
        ("echo x > kept", ("--hold",)),
        ("echo x > gone", ("--discard",)),
        ("echo late > late; sleep 60", ("--timeout", "0.3")),
        ("echo ünï ✓; printf '\\377'", ()),
        ("true", ("--sandbox", "a/b")),
        ("true", ("--no-such-option",)),
    ],
)
def test_a_run_ends_as_it_does_without_the_standby(
    ground: Ground, standby: int, text: str, options: tuple[str, ...]
) -> None:
    found = []
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    alone = {"env": {**variables(), "UNSPILL_NO_STANDBY": "1"}, **streams}
    for project in (ground.project, ground.home / "another"):
        project.mkdir(exist_ok=True)
        (project / "file").write_text("content\n")
        # From the second one on they share a live sandbox
        for given in (sealed(ground, "true"), sealed(ground, text, *options)):
            words = [word.replace(os.fspath(ground.project), os.fspath(project)) for word in given]
            start = helped(*words, cwd=project, umask=0o027) if project == ground.project else None
            code, out, err = ended(start or subprocess.Popen([*CLIENT, *words], cwd=project, umask=0o027, **alone))
        assert code != FELL_BACK
        told = [text.replace(os.fspath(project), "PROJECT") for text in (out, err)]
        found.append((code, *told, tree(project)))
    assert found[0] == found[1]


def test_a_hook_answers_as_it_does_without_the_standby(ground: Ground, standby: int) -> None:
    event = json.dumps({**EVENT, "tool_input": {"command": "echo x"}}).encode()
    alone = run_cli("hook", "claude-code", cwd=ground.project, stdin=event)
    reading, writing = os.pipe()
    os.write(writing, event)
    os.close(writing)
    answer = ended(helped("hook", "claude-code", cwd=ground.project, stdin=reading))
    assert answer == (0, alone.stdout.decode(), alone.stderr.decode())
    os.close(reading)
    reading, writing = os.pipe()
    os.write(writing, b"{}")
    os.close(writing)
    code, out, err = ended(helped("hook", "claude-code", cwd=ground.project, stdin=reading))
    assert (code, out) == (2, "")
    assert "Nothing was run." in err
    os.close(reading)


def test_what_it_answers_is_run_by_the_standby(ground: Ground, standby: int) -> None:
    answer = json.loads(ask_hook(ground, "echo x > made; echo out").stdout)
    command = answer["hookSpecificOutput"]["updatedInput"]["command"]
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=ground.project, env=variables(), capture_output=True, check=True
    )
    assert done.stdout == b"out\n"
    assert (ground.project / "made").exists()
    [session] = json.loads(run_cli("sessions", "--json", cwd=ground.project).stdout)["sessions"]
    assert "claude-code-one" in session.values()


@pytest.mark.parametrize(
    ("leave", "find"),
    [
        ("echo x > /tmp/left", "ls -A /tmp"),
        ("echo x > ~/left", "ls -A ~"),
        ("sleep 1000.75 & echo", "pgrep -fx 'sleep 1000.75'"),
    ],
)
def test_nothing_that_a_command_left_is_found_by_the_next(ground: Ground, standby: int, leave: str, find: str) -> None:
    # From the second one on they share a live sandbox
    before = [run_helped(ground, find) for _ in range(3)][-1]
    assert run_helped(ground, leave)[0] == 0
    assert run_helped(ground, find)[:2] == before[:2]


def test_the_configuration_and_the_project_are_read_for_each_command(ground: Ground, standby: int) -> None:
    assert "Applied" in run_helped(ground, "echo 1 > first")[2] or (ground.project / "first").exists()
    ground.configure('after = "hold"\n')
    run_helped(ground, "echo 2 > second")
    assert not (ground.project / "second").exists()
    assert run_helped(ground, "cat second")[1] == "2\n"
    ground.write(".unspill.toml", "nonsense = 1\n")
    code, out, err = run_helped(ground, "echo 3")
    assert (code, out) == (125, "")
    assert "nonsense" in err
    ground.write(".unspill.toml", 'hidden = ["file"]\n')
    assert run_helped(ground, "cat file")[1] == ""
    (ground.project / ".unspill.toml").unlink()
    assert run_helped(ground, "cat file")[1] == "content\n"


def test_commands_at_once_run_beside_each_other(ground: Ground, standby: int) -> None:
    held, go = os.pipe()
    first = helped(*sealed(ground, "read -r line; echo 1 > first", "--stdin"), cwd=ground.project, stdin=held)
    assert run_helped(ground, "echo 2 > second")[0] == 0
    assert (ground.project / "second").exists()
    assert first.poll() is None
    os.write(go, b"go\n")
    assert ended(first)[0] == 0
    assert (ground.project / "first").exists()
    os.close(held)
    os.close(go)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_client_that_is_asked_to_end_takes_its_command_with_it(ground: Ground, standby: int, number: int) -> None:
    word = lasting()
    process = helped(*sealed(ground, f"echo half > half; sleep {word}"), cwd=ground.project)
    assert starts(word)
    process.send_signal(number)
    code, _out, err = ended(process)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    until(lambda: not processes_with(word))
    if number != signal.SIGKILL:
        assert "Cancelled" in err
    until(lambda: "half" in run_cli("changes", cwd=ground.project).stdout.decode())
    assert not (ground.project / "half").exists()
    assert run_helped(ground, "cat half")[1] == "half\n"


def test_a_command_whose_standby_is_killed_is_never_run_again(ground: Ground, standby: int) -> None:
    word = lasting()
    process = helped(*sealed(ground, f"echo half >> half; sleep {word}"), cwd=ground.project)
    assert starts(word)
    children = Path(f"/proc/{standby}/task/{standby}/children").read_text().split()
    for pid in (standby, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    code, _out, err = ended(process)
    assert code == 125
    assert "was killed" in err
    until(lambda: not processes_with(word))
    # The next is sealed by the whole program, which finds what is left
    done = subprocess.run(
        [*CLIENT, *sealed(ground, "cat half; cat ~/.ssh/id_rsa")],
        cwd=ground.project,
        env=variables(),
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"half\n"
    assert not (ground.project / "half").exists()


def test_a_standby_that_hangs_is_passed_over_and_does_nothing_later(ground: Ground, standby: int) -> None:
    os.kill(standby, signal.SIGSTOP)
    words = sealed(ground, "echo once >> once")
    subprocess.run([*CLIENT, *words], cwd=ground.project, env=variables(), capture_output=True, check=True)
    os.kill(standby, signal.SIGCONT)
    assert run_helped(ground, "cat once")[1] == "once\n"


@pytest.mark.parametrize(
    ("name", "prefix", "before"),
    [
        ("nothing", (), ""),
        ("user namespace", ("unshare", "--user", "--map-current-user"), ""),
        ("mount namespace", ("unshare", "--user", "--map-current-user", "--mount"), ""),
        ("no new rights", ("setpriv", "--no-new-privs"), ""),
        ("limits", ("prlimit", "--nofile=512:512"), ""),
        ("language", ("env", "LC_ALL=de_DE.ISO-8859-1"), ""),
        ("terminal", (), "import os, pty; os.dup2(pty.openpty()[1], 2)"),
        ("owner", (), "posix.getuid = lambda: 12345"),
    ],
)
def test_only_who_is_treated_by_the_kernel_as_the_standby_is_served(
    ground: Ground, standby: int, name: str, prefix: tuple[str, ...], before: str
) -> None:
    words = sealed(ground, "echo x > made")
    code = ended(helped(*words, cwd=ground.project, prefix=prefix, before=before))[0]
    assert code == (0 if name == "nothing" else FELL_BACK)
    assert (ground.project / "made").exists() == (name == "nothing")


def test_no_verb_but_those_of_hooks_is_served(ground: Ground, standby: int) -> None:
    for words in (("undo",), ("approve", "1"), ("--version",), ()):
        assert ended(helped(*words, cwd=ground.project))[0] == FELL_BACK


def test_no_sandbox_reaches_it(ground: Ground, standby: int) -> None:
    path = os.fsdecode(standby_files(state(ground))[1])
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    reach = f"python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('{path}'); print('reached')\""
    assert run_helped(ground, reach)[1] == ""
    assert run_cli("run", "--", "bash", "-c", reach, cwd=ground.project).stdout == b""
    # It is there to be reached
    assert subprocess.run(["bash", "-c", reach], capture_output=True, check=True).stdout == b"reached\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x05short",
        b"\0\0\0\x0bx\0/\0x\0run\0=",
        b"\0\0\0\x0b18\0/\x001\0run\0",
        b"\0\0\0\x0418\0/",
    ],
)
def test_what_is_no_request_ends_the_connection_and_no_more(ground: Ground, standby: int, raw: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        place = os.open(ground.state / "locks", os.O_PATH)
        client.connect(f"/proc/self/fd/{place}/standby")
        os.close(place)
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        client.settimeout(DEADLINE_S)
        assert client.recv(1) != ACCEPTED
    assert run_helped(ground, "echo well")[1] == "well\n"
    assert find_standby(state(ground)) == standby


def test_it_ends_with_the_agent_that_it_was_started_for(ground: Ground) -> None:
    agent = "import subprocess, sys; subprocess.run(sys.argv[1:], input=b'{}'); sys.stdin.read()"
    words = [sys.executable, "-c", agent, "/bin/sh", "-c", '"$@" || true', "sh", *CLIENT, "hook", "claude-code"]
    process = subprocess.Popen(
        words, cwd=ground.project, env=variables(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    pid = until(lambda: is_up(ground))
    assert process.poll() is None
    process.communicate(timeout=DEADLINE_S)
    until(lambda: is_gone(pid))
    assert not os.path.exists(standby_files(state(ground))[1])


@pytest.mark.parametrize("how", ["idle", "replaced", "removed"])
def test_it_ends_when_nobody_comes_or_unspill_or_its_state_is_another(ground: Ground, how: str) -> None:
    version = ground.home / "version"
    version.write_text("1")
    with ground.sandbox():
        lock = os.open(standby_files(state(ground))[0], os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    program = (
        "import sys; from unspill.standby import server as s; s._LOOK_S = 0.02;"
        f"s._version = lambda: s._identity({os.fspath(version)!r});"
        f"s.IDLE_S = {0.1 if how == 'idle' else 60}; s.serve()"
    )
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{lock}', "bash", sys.executable, "-c", program],
        pass_fds=[lock],
        env=variables(),
        stdin=subprocess.DEVNULL,
    )
    os.close(lock)
    if how != "idle":
        until(lambda: is_up(ground))
        assert process.poll() is None
    if how == "replaced":
        version.write_text("2")
    if how == "removed":
        (ground.state / "locks" / "standby").unlink()
    assert process.wait(DEADLINE_S) == 0
    assert is_up(ground) == 0


def test_it_is_listed_and_stopped_by_the_command_line(ground: Ground, standby: int) -> None:
    assert f"Process {standby} stands by" in run_cli("ps", cwd=ground.project).stdout.decode()
    assert json.loads(run_cli("ps", "--json", cwd=ground.project).stdout)["standby"] == standby
    run_cli("stop", cwd=ground.project)
    until(lambda: is_gone(standby))
    assert json.loads(run_cli("ps", "--json", cwd=ground.project).stdout)["standby"] is None
    # The next hook has another one
    assert ask_hook(ground, "true").returncode == 0
    assert until(lambda: is_up(ground)) != standby


def test_whoever_wants_none_has_none(ground: Ground) -> None:
    with ground.sandbox():
        event = json.dumps({**EVENT, "tool_input": {"command": "true"}}).encode()
        words = [*CLIENT, "hook", "claude-code"]
        subprocess.run(words, input=event, capture_output=True, cwd=ground.project, check=True)
    assert not os.path.exists(standby_files(state(ground))[0])
