# SPDX-License-Identifier: Apache-2.0
"""Refused file accesses, explained: which path, which rule, what would allow it; asked for, because it costs time."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.kernel.leftovers import within
from tests.kernel.test_seccomp_tools import COMPILER, GIT, MULTIPROCESSING, SHELL, STRACE
from tests.support import VIEW_LINES, Ground, is_rootfs_chosen, kinds, lasting, printed, processes_with, run_cli, short
from unspill import RunResult, TimedOut
from unspill.runner.witness import MOST_TOLD

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.kernel


def told(result: RunResult) -> dict[str, str]:
    return {os.fsdecode(denied.path): denied.access for denied in result.denied_paths}


def explained(ground: Ground, command: str | list[str], **settings: Any) -> RunResult:
    return ground.sandbox("explained", explain=True, **settings).run(command, limits=short())


@pytest.fixture
def secret(ground: Ground) -> Path:
    if is_rootfs_chosen():  # where nobody misses the host's files, but the project's
        return ground.write("id_ed25519", "secret")
    path = ground.home / ".ssh" / "id_ed25519"
    path.parent.mkdir(mode=0o700)
    path.write_text("secret")
    return path


@pytest.mark.view("sealed", "host", reason="in a rootfs nobody misses the host's files, so nothing is told of them")
def test_a_hidden_file_that_is_read_is_named_with_its_rule_and_what_would_allow_it(ground: Ground, engine: str) -> None:
    hidden = ground.home / "notes"
    hidden.write_text("hidden")
    result = explained(ground, ["cat", os.fspath(hidden)])
    [denied] = result.denied_paths
    assert (denied.path, denied.access) == (bytes(hidden), "read")
    assert denied.rule == f"{ground.home} is fresh: a home directory of this run only"
    assert f"--readable {hidden}`" in denied.remedy
    allowed = ground.sandbox("allowed", explain=True, readable=(bytes(hidden),)).run(["cat", os.fspath(hidden)])
    assert (printed(allowed), allowed.denied_paths) == ("hidden", ())


@pytest.mark.view("sealed", "host", reason="in a rootfs nobody misses the host's files, so nothing is told of them")
def test_a_key_is_said_to_be_never_shown_on_request_because_it_is_not(ground: Ground, secret: Path) -> None:
    [denied] = explained(ground, ["cat", os.fspath(secret)]).denied_paths
    assert "never shown on request" in denied.remedy
    assert "--" not in denied.remedy
    asked = run_cli("run", "--readable", secret, "--", "cat", secret, cwd=ground.project)
    assert asked.returncode
    assert b"never shown" in asked.stderr
    ground.configure(f"readable = ['{secret}']\n")
    assert run_cli("run", "--", "cat", secret, cwd=ground.project).stdout == b"secret"


@pytest.mark.view("sealed", "host", reason="in a rootfs nobody misses the host's files, so nothing is told of them")
def test_a_write_into_a_hidden_directory_is_told_as_a_write_whether_or_not_it_exists(ground: Ground) -> None:
    other = ground.home / "other"
    other.mkdir()
    texts = []
    for place in (other, ground.home / "never"):
        result = explained(ground, f"echo x > {place}/z; mkdir {place}/z; false")
        [denied] = result.denied_paths
        assert (denied.path, denied.access, denied.times) == (bytes(place / "z"), "write", 2)
        assert f"--root {place}`" in denied.remedy
        assert f"Note: {place}/z was not written: its directory is not there: " in result.text()
        [hint] = ground.run(f"echo x > {place}/z").hints
        assert f"--root {place}`" in hint.remedy
        texts.append((result.text() + hint.text + hint.remedy).replace(place.name, "*"))
    assert texts[0] == texts[1]
    allowed = ground.sandbox("allowed", explain=True, roots=(bytes(other),)).run(f"echo x > {other}/z")
    assert (allowed.ok, allowed.denied_paths) == (True, ())


def test_a_directory_that_is_made_after_a_first_attempt_is_no_refusal(ground: Ground) -> None:
    script = "echo x > ~/.cache/tool/x; mkdir -p ~/.cache/tool; echo x > ~/.cache/tool/x; echo x > /tmp/none/x; true"
    assert told(explained(ground, script)) == {}


def test_a_write_outside_the_roots_is_named_and_the_root_that_is_proposed_allows_it(ground: Ground) -> None:
    other = ground.home / "other"
    other.mkdir()
    shown = ground.sandbox(explain=True, readable=(bytes(other),)).run(f"echo x > {other}/made")
    [denied] = [denied for denied in shown.denied_paths if denied.access == "write"]
    assert denied.path == bytes(other / "made")
    assert "read-only" in denied.rule
    assert f"--root {other}`" in denied.remedy
    assert f"Note: {other}/made was not written" in shown.text()
    assert ground.sandbox(explain=True, roots=(bytes(other),)).run(f"echo x > {other}/made").denied_paths == ()


WRITES: Final = """
import ctypes, os
def attempt(function, *arguments, **named):
    try: function(*arguments, **named)
    except OSError: pass
attempt(os.mkdir, "/a1"); attempt(os.rmdir, "/a2"); attempt(os.unlink, "/a3"); attempt(os.rename, "own", "/a4")
attempt(os.link, "own", "/a5"); attempt(os.symlink, "x", "/a6"); attempt(os.truncate, "/a7", 0)
attempt(os.chmod, "/a8", 0); attempt(os.utime, "/a9"); attempt(os.mkfifo, "/b1")
attempt(os.setxattr, "/b2", "user.x", b"")
attempt(open, "/b3", "w"); attempt(open, "/b4", "a"); attempt(os.open, "/b5", os.O_RDWR); attempt(os.mknod, "/b6")
root = os.open("/", os.O_RDONLY)
attempt(os.mkdir, "c1", dir_fd=root); attempt(os.unlink, "c2", dir_fd=root)
attempt(os.open, "c3", os.O_CREAT, dir_fd=root)
attempt(os.rename, "own", "c4", dst_dir_fd=root)
os.chdir("/usr/.."); attempt(open, "d1", "w"); attempt(open, "./usr/../d2", "w")
how = (ctypes.c_uint64 * 3)(os.O_CREAT, 0o600, 0)
ctypes.CDLL(None).syscall(437, -100, b"/e1", ctypes.byref(how), 24)
"""


def test_every_way_to_write_is_seen(ground: Ground) -> None:
    result = explained(ground, ["python3", "-c", WRITES])
    assert result.ok, result.stderr
    names = {
        f"/{letter}{number}"
        for letter, most in zip("abcde", (9, 6, 4, 2, 1), strict=True)
        for number in range(1, most + 1)
    }
    assert {path for path, access in told(result).items() if access == "write"} == names


@pytest.mark.view("sealed", "host", reason="in a rootfs nobody misses the host's files, so nothing is told of them")
def test_a_program_or_directory_that_is_hidden_is_named_however_it_is_asked_for(ground: Ground) -> None:
    tools = ground.home / "tools"
    tools.mkdir()
    for name in ("run-me", "stat-me", "read-link", "may-i"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    script = (
        f"{tools}/run-me; stat {tools}/stat-me; readlink {tools}/read-link; test -r {tools}/may-i; cd {tools}; cd; true"
    )
    found = told(explained(ground, script))
    assert {os.path.basename(path) for path in found} >= {"run-me", "stat-me", "read-link", "may-i", "tools"}


def test_masks_are_explained_too(ground: Ground) -> None:
    private = ground.home / "shown" / "private"
    private.mkdir(parents=True)
    (private / "file").write_text("x")
    sandbox = ground.sandbox(explain=True, readable=(bytes(private.parent),), hidden=(bytes(private),))
    [denied] = sandbox.run(["cat", os.fspath(private / "file")]).denied_paths
    assert "hidden by your policy" in denied.rule
    assert denied.remedy == "Take it out of `hidden`."


def test_a_secret_of_the_project_is_explained_unless_the_command_has_its_own(ground: Ground) -> None:
    secret = ground.write(".env", "TOKEN=x")
    sandbox = ground.sandbox(explain=True)
    [denied] = sandbox.run(["cat", ".env"]).denied_paths
    assert (denied.path, denied.access) == (os.fsencode(ground.inside(secret)), "read")
    assert "name of a secret" in denied.rule
    assert f"--reveal {ground.inside(secret)}`" in denied.remedy
    assert told(sandbox.run("echo own > .env; cat .env")) == {}


def test_what_is_not_the_sandboxs_doing_is_not_told(ground: Ground) -> None:
    (ground.home / ".config").mkdir(exist_ok=True)
    (ground.home / ".config" / "tool").write_text("of the host")
    script = """
    mkdir ~/.config; echo own > ~/.config/tool; cat ~/.config/tool; cat /tmp/missing missing /etc/none
    echo x > /usr/bin/x; echo x > /etc/passwd; echo x > made; echo x > /tmp/made; echo x > /dev/null
    cat /proc/self/comm
    """
    result = explained(ground, script)
    assert b"own" in result.stdout.kept()
    assert "made" in kinds(result.changes)
    # Of a rootfs it is: with `rootfs_writable` these would be written
    assert told(result) == ({"/usr/bin/x": "write", "/etc/passwd": "write"} if is_rootfs_chosen() else {})


def test_an_access_is_told_once_and_counted(ground: Ground, secret: Path) -> None:
    [denied] = explained(ground, f"for i in 1 2 3; do read x < {secret}; done; true").denied_paths
    assert denied.times == 3


def test_nothing_is_told_unless_it_is_asked_for(ground: Ground, secret: Path) -> None:
    sandbox = ground.sandbox()
    assert sandbox.plan("true").first is None
    assert sandbox.run(["cat", os.fspath(secret)]).denied_paths == ()
    assert told(sandbox.run(["cat", os.fspath(secret)], explain=True)) == {ground.inside(secret): "read"}


def test_a_command_that_fails_and_names_the_path_is_explained_without_being_asked(ground: Ground, secret: Path) -> None:
    result = ground.run(["cat", os.fspath(secret)])
    missing = ground.run(["cat", f"{secret}-that-nobody-has"])
    codes = [hint.code for hint in (*result.hints, *missing.hints)]
    assert codes == (["masked-secret"] if is_rootfs_chosen() else ["denied-path", "denied-path"])
    written = ground.run(["mkdir", "/data"])
    assert [hint.text for hint in written.hints] == ["/data: outside the roots: the sandbox has nothing there."]
    assert ground.run(["cat", "missing"]).hints == ()


def test_the_strict_profile_explains_as_well(ground: Ground, secret: Path) -> None:
    assert told(explained(ground, ["cat", os.fspath(secret)], profile="strict")) == {ground.inside(secret): "read"}


def test_the_command_line_tells_the_person_and_json_a_program(ground: Ground, secret: Path) -> None:
    (ground.home / "a\x1b[31m\nb").write_text("x")
    shown = ground.inside(secret)
    command = ["sh", "-c", f"cat {shown} ~/a*; echo x > /made; cat ~/$(printf 'a\\033[31m\\nb')"]
    done = run_cli("run", "--why", "--", *command, cwd=ground.project)
    text = done.stderr.decode()
    rule = "masked in the project" if is_rootfs_chosen() else f"{ground.home} is fresh"
    assert f"  ! {shown}: read: {rule}" in text
    assert "  ! /made: write: outside the roots" in text
    assert "\x1b[31m\nb" not in text.partition("unspill: the sandbox kept")[2]
    found = json.loads(run_cli("run", "--why", "--json", "--", *command, cwd=ground.project).stdout)["denied_paths"]
    assert {(row["path"], row["access"]) for row in found} >= {(shown, "read"), ("/made", "write")}
    assert all(row["rule"] and row["remedy"] for row in found)


def test_the_configuration_can_ask_for_it(ground: Ground, secret: Path) -> None:
    ground.configure("explain = true\n")
    assert b"the sandbox kept 1 path" in run_cli("run", "--", "cat", ground.inside(secret), cwd=ground.project).stderr
    ground.write(".unspill.toml", "explain = true\n")
    assert run_cli("run", "--", "true", cwd=ground.project).returncode != 0


def test_a_model_does_not_learn_which_files_the_host_has(ground: Ground, secret: Path) -> None:
    result = explained(ground, f"cat {secret} 2>/dev/null; true")
    assert result.denied_paths
    assert "id_ed25519" not in result.text()


ODD: Final = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
for address in (0, 1, 8, 1 << 46, (1 << 64) - 8, 0xDEADBEEF000): libc.openat(-100, ctypes.c_void_p(address), 0, 0)
page = mmap.mmap(-1, 8192)
base = ctypes.addressof(ctypes.c_char.from_buffer(page))
libc.munmap(ctypes.c_void_p(base + 4096), 4096)
page[:4096] = b"/" * 4096
libc.openat(-100, ctypes.c_void_p(base), 0, 0)
for fd in (-1, -101, 1000, 1 << 31, 0): libc.openat(ctypes.c_long(fd), b"relative", 0, 0)
odd = (b"", b"/" + b"x" * 5000, b"/" + b"a/" * 2040, b"/\\xff\\x1b[2J\\n", b"/..//../.", b"." * 300)
for path in odd: libc.openat(-100, path, 1, 0)
libc.syscall(437, -100, b"/how", ctypes.c_void_p(1), 24)
libc.syscall(437, -100, b"/how", None, 24)
libc.rename(None, None)
os.execv("/bin/echo", ["echo", "ok"])
"""


def test_arguments_that_are_none_harm_nobody(ground: Ground) -> None:
    assert printed(explained(ground, ["python3", "-c", ODD])) == "ok\n"


FLOOD: Final = """
import os, threading
def flood(part):
    for number in range(5000):
        try: os.mkdir(f"/{part}-{number}-" + "x" * 200)
        except OSError: pass
threads = [threading.Thread(target=flood, args=(part,)) for part in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("ok")
"""


def test_a_flood_of_accesses_takes_no_more_memory_than_its_bound(ground: Ground) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = ground.sandbox(explain=True).run(["python3", "-c", FLOOD], limits=short(wall_s=50.0))
    assert printed(result) == "ok\n"
    assert len(result.denied_paths) == MOST_TOLD
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.6])
def test_a_run_in_the_middle_of_its_accesses_is_killed_as_any_other(ground: Ground, seconds: float) -> None:
    begun = time.monotonic()
    result = ground.sandbox(explain=True).run("while :; do cat /none; done 2>/dev/null & sleep 60", timeout=seconds)
    assert result.outcome == TimedOut(after_s=seconds)
    assert time.monotonic() - begun < 10


KILLED: Final = (
    VIEW_LINES
    + """
import os, sys
from unspill import Policy, Sandbox, Started
policy = Policy(**VIEW, bwrap=os.fsencode(sys.argv[2]), explain=True, profile=sys.argv[4])
sandbox = Sandbox(sys.argv[1], policy=policy)
sandbox.run(f"sleep {sys.argv[3]} & while :; do cat /none; done 2> /dev/null")
"""
)


@pytest.mark.parametrize("profile", ["default", "strict"])
def test_nothing_survives_a_caller_that_is_killed(ground: Ground, profile: str) -> None:
    word = lasting()
    with subprocess.Popen([sys.executable, "-c", KILLED, ground.project, ground.bwrap, word, profile]) as caller:
        assert within(20, lambda: bool(processes_with(word)))
        caller.kill()
    assert within(10, lambda: not processes_with(word))


def test_many_runs_leave_neither_descriptors_nor_threads(ground: Ground) -> None:
    sandbox = ground.sandbox(explain=True)
    for command in (["true"], ["no-such-program"]):
        sandbox.run(command)
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(10):
        sandbox.run(["true"])
        sandbox.run(["no-such-program"])
        sandbox.run("sleep 5", timeout=0.02)
    assert (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before


@pytest.mark.view("sealed", "host", reason="in a rootfs nobody misses the host's files, so nothing is told of them")
def test_nothing_of_the_host_is_opened_to_tell_of_it(ground: Ground) -> None:
    pipe, place = ground.home / "fifo", ground.home / "socket"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(place))
        server.listen()
        server.setblocking(False)
        result = explained(ground, f"cat {pipe} {place}; echo x > {ground.home}/new/x")
        with pytest.raises(BlockingIOError):
            server.accept()
    new = os.fspath(ground.home / "new" / "x")
    assert told(result) == {os.fspath(pipe): "read", os.fspath(place): "read", new: "write"}


TOOLS: Final = {
    "bash": ["bash", "-c", SHELL],
    "gcc and make": ["sh", "-c", COMPILER],
    "git": ["sh", "-c", GIT],
    "strace": ["sh", "-c", STRACE],
    "python: multiprocessing": ["sh", "-c", f"cat > s.py <<'END'\n{MULTIPROCESSING}\nEND\npython3 s.py"],
    "gdb": ["sh", "-c", "gdb -q -batch -ex run -ex 'echo ok\\n' --args /bin/true 2>/dev/null | tail -n 1"],
    "node": ["node", "-e", "require('fs').writeFileSync('x', 'y'); console.log('ok')"],
    "go": ["sh", "-c", "go version > /dev/null && echo ok"],
}


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_works_while_it_is_explained(ground: Ground, name: str) -> None:
    result = ground.sandbox(explain=True).run(TOOLS[name], limits=short(wall_s=50.0))
    assert printed(result).splitlines()[-1:] == ["ok"]


@pytest.mark.parametrize("command", [["no-such-program"], ["/etc/passwd"], ["true"], ["sh", "-c", "exit 7"]])
def test_a_command_ends_as_it_would_unexplained(ground: Ground, command: list[str]) -> None:
    assert explained(ground, command).outcome == ground.run(command).outcome
