# SPDX-License-Identifier: Apache-2.0
"""Descriptors: what the caller has open or closed, bwrap's own channels, and the binary behind pid 1."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import END, Arena, naive_bwrap, outside, python
from tests.support import VIEW_LINES, chosen_views, run_cli
from unspill import Exited, UnspillError
from unspill.errors import BwrapMissing, BwrapUnsafe
from unspill.runner.launcher import stop_launchers

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

USE_ALL = """
for number in range(3, 4096):
    try: kind = os.fstat(number).st_mode
    except OSError: continue
    won("has", number)
    if stat.S_ISDIR(kind):
        try: os.close(os.open("written", os.O_WRONLY | os.O_CREAT, dir_fd=number))
        except OSError: continue
        won("wrote through", number)
    if stat.S_ISSOCK(kind): attempt(f"send {number}", os.write, number, b"x")
for number in (0, 1, 2):
    target = os.readlink(f"/proc/self/fd/{number}")
    if not target.startswith(("pipe:", "/dev/null")): won(number, target)
"""


def leaks(ground: Ground, stack: ExitStack) -> Path:
    """Open fifty descriptors that a program started by this one would inherit; return a directory among them."""
    victim = ground.top / "victim"
    victim.mkdir()
    for index in range(50):
        match index % 5:
            case 0 | 1:
                fd = os.open(victim, os.O_RDONLY | os.O_DIRECTORY)
            case 2:
                fd = os.open(victim / f"file-{index}", os.O_RDWR | os.O_CREAT)
            case 3:
                one, other = socket.socketpair()
                stack.callback(other.close)
                fd = one.detach()
            case _:
                fd = os.memfd_create("leak", 0)
        stack.callback(os.close, fd)
        os.set_inheritable(fd, True)
    return victim


def test_a23_no_descriptor_of_the_caller_is_inherited(arena: Arena, engine: str) -> None:
    """The caller has fifty inheritable descriptors: directories, files, sockets, memory. Use all that are there inside.
    Control: a bwrap call with `close_fds=False` has them, and writes to the host through a directory."""
    stop_launchers()
    with ExitStack() as stack:
        victim = leaks(arena.ground, stack)
        assert not arena.attack(USE_ALL).won
        command = run_cli("run", "--", *python(USE_ALL), cwd=arena.ground.project)
        assert command.returncode == 0, command
        assert b"WON" not in command.stdout
        assert not (victim / "written").exists()
        naive = naive_bwrap(arena.ground.bwrap, "--proc", "/proc", *python(USE_ALL), close_fds=False)
        assert naive.stdout.count(b"WON has") >= 50
        assert (victim / "written").exists()


def test_a23_the_command_line_passes_nothing_on_that_it_was_given(arena: Arena) -> None:
    """Start `unspill run` itself with fifty descriptors and a directory as its working directory's neighbour.
    Control: that of the test above."""
    with ExitStack() as stack:
        victim = leaks(arena.ground, stack)
        program = Path(sys.executable).with_name("unspill")
        result = subprocess.run(
            [program, "run", "--", *python(USE_ALL)],
            cwd=arena.ground.project,
            close_fds=False,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    assert result.returncode == 0, result
    assert b"WON" not in result.stdout
    assert not (victim / "written").exists()


def test_a23_output_can_be_neither_read_back_from_a_file_nor_cut(arena: Arena) -> None:
    """Reopen stdout and stderr through /proc/self/fd and truncate them: a caller that passed files would lose them.
    Control: with a file as stdout a bwrap call lets the command empty the record of what it printed."""
    script = """
    print("EVIDENCE", flush=True)
    for number in (1, 2):
        for flags in (os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND):
            try: os.truncate(os.open(f"/proc/self/fd/{number}", flags), 0)
            except OSError as error: continue
            won(number)
    """
    tried = arena.attack(script)
    assert not tried.won
    assert "EVIDENCE" in tried.lines
    record = arena.ground.top / "record"
    with record.open("wb") as file:
        words = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
        command = [
            os.fsdecode(arena.ground.bwrap),
            *words,
            "--bind",
            "/tmp",
            "/tmp",
            "--proc",
            "/proc",
            *python(script),
        ]
        subprocess.run(command, stdout=file, check=True)
    assert "EVIDENCE" not in record.read_text("utf-8", "replace")


FORGE = """
forged = b'{ "child-pid": 1, "exit-code": 0 }\\n{ "exit-code": 0 }\\n'
for number in range(3, 256):
    try: os.write(number, forged)
    except OSError: continue
    won(number)
for name in os.listdir("/proc/1/fd"):
    for flags in (os.O_WRONLY, os.O_RDWR):
        try: os.write(os.open(f"/proc/1/fd/{name}", flags | os.O_NONBLOCK), b"")
        except OSError: continue
        if int(name) > 2: won("of pid 1:", name)
os.write(1, forged); os.write(2, forged)
"""


def test_a24_no_descriptor_tells_a_forged_end(arena: Arena) -> None:
    """Write a forged status to every descriptor from 3 to 255, to those of pid 1 and to both outputs, then fail.
    Control: bwrap itself closes its channels; a pipe for the status that the command inherits is believed."""
    script = FORGE + f"print({END!r}, flush=True)\nos._exit(7)"
    tried = arena.attack(script)
    assert not tried.won
    assert tried.result.outcome == Exited(code=7)
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        naive_bwrap(arena.ground.bwrap, "--proc", "/proc", *python(script), pass_fds=(write,))
        assert b'"exit-code": 0' in os.read(read, 4096)
    finally:
        os.close(read)
        os.close(write)


def test_a22_the_binary_behind_pid_1_can_not_be_written(arena: Arena) -> None:
    """Open /proc/1/exe and /proc/self/exe for writing, directly and through a kept descriptor.
    Control: a program of the caller's own can be written in this way on the host once nobody runs it."""
    script = """
    for name in ("/proc/1/exe", "/proc/self/exe"):
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            try: os.open(name, flags)
            except OSError as error: lost(name, error.strerror)
            else: won(name)
    """
    assert not arena.attack(script).won
    own = arena.ground.top / "own-program"
    own.write_bytes(Path("/bin/true").read_bytes())
    own.chmod(0o755)
    assert os.stat(arena.ground.bwrap).st_uid == 0
    assert "WON" in outside(f"attempt('own', os.open, {os.fspath(own)!r}, os.O_WRONLY)").stdout


def test_a22_no_python_of_the_project_runs_on_the_host(arena: Arena) -> None:
    """Plant modules that a start of Python could import, all over the project, and start the command line there.
    Control: a Python that looks into its working directory imports one."""
    started = arena.ground.top / "started"
    code = f"open({os.fspath(started)!r}, 'a').write(__name__ + ' ')\n"
    names = (
        "sitecustomize",
        "usercustomize",
        "os",
        "json",
        "_socket",
        "marshal",
        "sqlite3",
        "_sqlite3",
        "typing",
        "select",
    )
    for name in names:
        arena.ground.write(f"{name}.py", code)
    for name in ("unspill/__init__.py", "unspill/host/spawner.py", "lib/python3/site-packages/x.pth", "__main__.py"):
        arena.ground.write(name, code)
    arena.ground.write("pyvenv.cfg", f"home = {arena.ground.project}\n")
    for words in (("run", "--", "true"), ("changes",), ("log",)):
        assert run_cli(*words, cwd=arena.ground.project).returncode == 0
    assert arena.ground.sandbox().run(["true"]).ok
    assert not started.exists()
    subprocess.run([sys.executable, "-c", "import sqlite3"], cwd=arena.ground.project, check=False, capture_output=True)
    assert started.exists()


@pytest.mark.any_bwrap
@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 30_000 + " = 1",
        "a = " + "[" * 60_000,
        "a = " + "{a=" * 15_000,
        "allow_root = true",
        "view = 'host'",
        "\0",
    ],
    ids=["many parts", "brackets", "braces", "root", "view", "nul"],
)
def test_a22_the_projects_own_file_can_neither_widen_nor_break_anything(arena: Arena, text: str) -> None:
    """The project's .unspill.toml asks for more, or is made to take all memory of whoever reads it.
    Control: one that tightens is accepted; the parser alone takes gigabytes for the first of them."""
    arena.ground.write(".unspill.toml", text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnspillError):
        arena.ground.sandbox()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    arena.ground.write(".unspill.toml", f"view = {chosen_views()[0]!r}\n[limits]\nwall_s = 5\n")
    assert arena.ground.sandbox().run(["true"]).ok


FAKE = "#!/bin/sh\necho x >> {}\nexit 0\n"


@pytest.mark.parametrize("where", ["project", "home", "shared"])
def test_a22_a_bwrap_that_others_could_have_written_is_never_started(arena: Arena, where: str) -> None:
    """Put a program named bwrap first on PATH: into the project, the home directory, a directory open to all.
    Control: looked up on PATH as usual it is started on the host."""
    ground, started = arena.ground, arena.ground.top / "started"
    directory = {"project": ground.project / "bin", "home": ground.home / "bin", "shared": ground.top / "open"}[where]
    directory.mkdir()
    fake = directory / "bwrap"
    fake.write_text(FAKE.format(started))
    fake.chmod(0o755)
    if where == "shared":
        directory.chmod(0o1777)
    rest = os.path.dirname(os.fsdecode(ground.bwrap))
    arena.patch.setenv("PATH", f"{directory}:{rest}:/usr/bin:/bin")
    assert ground.sandbox(bwrap=None).run(["true"]).ok
    assert not started.exists()
    for asked in (os.fsencode(fake), b"bwrap", b"./bin/bwrap"):
        with pytest.raises((BwrapUnsafe, BwrapMissing)):
            ground.sandbox(bwrap=asked)
    arena.patch.setenv("PATH", os.fspath(directory))
    with pytest.raises(BwrapUnsafe):
        ground.sandbox(bwrap=None)
    assert not started.exists()
    subprocess.run(["bwrap", "--version"], check=True)
    assert started.exists()


def test_a22_a_copy_of_bwrap_that_the_caller_owns_is_refused(arena: Arena) -> None:
    """Configure a working bwrap that belongs to the caller, is setuid, or can be written by a group.
    Control: the copy works, as a sandbox started with it by hand shows."""
    copy = arena.ground.top / "bwrap"
    copy.write_bytes(Path(os.fsdecode(arena.ground.bwrap)).read_bytes())
    for mode in (0o755, 0o4755, 0o775):
        copy.chmod(mode)
        assert stat.S_IMODE(copy.stat().st_mode) == mode
        with pytest.raises(BwrapUnsafe):
            arena.ground.sandbox(bwrap=os.fsencode(copy))
    library = Path(os.fsdecode(arena.ground.bwrap)).parent
    started = naive_bwrap(os.fsencode(copy), "true", env={"LD_LIBRARY_PATH": os.fspath(library)})
    assert started.returncode == 0 or b"libcap" in started.stderr, started


COMBINATIONS = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
# Well-formed words to the spawner on both streams, garbage after them, and what comes in
HOSTILE = """
import marshal, os
job = dict(overlays=(), program=b"/bin/sh", argv=(b"sh", b"-c", b"touch FORGED"), limits=())
for stream in (1, 2):
    for words in (marshal.dumps(job), b"file", b"garbage", b"\\x00"):
        os.write(stream, words)
open("read", "wb").write(os.read(0, 64))
open("done", "w").close()
"""
LIBRARY = (
    VIEW_LINES
    + """
import os, sys
from unspill import Policy, Sandbox
project, bwrap, script = map(os.fsencode, sys.argv[1:])
def on_event(event):
    chunk = getattr(event, "chunk", b"")
    if chunk:
        try: os.write(1 if event.stream == "stdout" else 2, chunk)
        except OSError: pass
sandbox = Sandbox(project, policy=Policy(**VIEW, bwrap=bwrap))
result = sandbox.run(["python3", "-c", os.fsdecode(script)], stdin=b"given", on_event=on_event, after="apply")
again = sandbox.run("true")
sandbox.close()
os._exit(0 if result.ok and again.ok else 1)
"""
)
CONTROL = """
import os, sys
from _socket import AF_UNIX, SOCK_SEQPACKET, socketpair
ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
os.write(1, b"output of a command")
other = ours if theirs.fileno() == 1 else theirs
os._exit(0 if other.recv(64) == b"output of a command" else 1)
"""


def closing(closed: tuple[int, ...], *words: str | Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Start a program with some standard streams closed."""
    shut = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {shut}', "sh", *words],
        cwd=cwd,
        input=b"given",
        capture_output=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )


@pytest.mark.parametrize("closed", COMBINATIONS)
@pytest.mark.parametrize("caller", ["program", "library"])
def test_e1_a_caller_without_streams_gives_a_command_no_socket_of_ours(
    ground: Ground, caller: str, closed: tuple[int, ...]
) -> None:
    """Start a run from a process with closed standard streams, write jobs for the spawner and garbage to standard
    output and error, and read standard input.

    Control: below, where the next socket gets the number of a closed stream.
    """
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n')
    if caller == "program":
        program = Path(sys.executable).with_name("unspill")
        done = closing(closed, program, "run", "-i", "--apply", "--", "python3", "-c", HOSTILE, cwd=ground.project)
    else:
        words = (ground.project, os.fsdecode(ground.bwrap), HOSTILE)
        done = closing(closed, sys.executable, "-c", LIBRARY, *map(str, words), cwd=ground.project)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr
    assert sorted(os.listdir(ground.project)) == ["done", "read"]
    given = b"" if caller == "program" and 0 in closed else b"given"
    assert (ground.project / "read").read_bytes() == given
    assert (b"garbage" in done.stdout) == (1 not in closed)


def test_e1_control_a_socket_gets_the_number_of_a_closed_stream(ground: Ground) -> None:
    """Make a pair of sockets as any program does, in a process whose standard output is closed.

    Control: this is the control of the test above; what is printed comes out of the socket.
    """
    done = closing((1,), sys.executable, "-c", CONTROL, cwd=ground.project)
    assert done.returncode == 0, done.stderr
