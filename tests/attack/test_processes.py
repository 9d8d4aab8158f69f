# SPDX-License-Identifier: Apache-2.0
"""Other processes: those of the host, those of another sandbox, and bwrap's own inside."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any

import pytest

from tests.attack.arena import END, Arena, naive_bwrap, processes_with, python, wait_until
from tests.support import kinds
from unspill import Exited, Signalled

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

LOOK = """
mark, pids = "".join(%r), %r
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try: words = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError: continue
    if mark.encode() in words and b"lost(" not in words:
        won("sees", pid)
        pids.append(int(pid))
for pid in pids:
    attempt(f"signal {pid}", os.kill, pid, 0)
    call(f"pidfd {pid}", libc.syscall(434, pid, 0))
    for name in ("environ", "mem", "maps", "root/etc", "cwd", "fd"):
        try: os.stat(f"/proc/{pid}/{name}")
        except OSError: continue
        won(f"/proc/{pid}/{name}")
for pid in pids:
    try: os.kill(pid, signal.SIGTERM)
    except OSError: continue
    won("killed", pid)
"""


def test_a12_no_process_of_the_host_is_seen_or_reached(arena: Arena, engine: str) -> None:
    """A process of the same user runs on the host: look for it, signal it, read its memory and files.
    Control: without `--unshare-pid` the same script finds and kills it."""
    mark = f"unspill-victim-{os.getpid()}"
    parts = [mark[:9], mark[9:]]
    victim = subprocess.Popen(["sh", "-c", "while :; do sleep 1; done", mark])
    try:
        # A sandbox has few processes, so its own numbers are small
        pids = [pid for pid in (victim.pid, os.getpid(), os.getppid()) if pid > 64]
        assert not arena.attack(LOOK % (parts, pids)).won
        assert victim.poll() is None
        naive = naive_bwrap(arena.ground.bwrap, "--unshare-user", "--proc", "/proc", *python(LOOK % (parts, [])))
        assert f"WON sees {victim.pid}" in naive.stdout.decode()
        assert wait_until(lambda: victim.poll() is not None)
    finally:
        victim.kill()
        victim.wait()


def test_a12_no_process_of_another_sandbox_is_seen_or_reached(arena: Arena) -> None:
    """Two sandboxes of one spawner: the second looks for the command of the first and signals it.
    Control: without `--unshare-pid` the second finds the first one's command and kills it."""
    mark = f"unspill-other-{os.getpid()}"
    assert not victim_of(arena, mark, lambda: arena.attack(LOOK % ([mark[:9], mark[9:]], []), name="attacker").won)

    def with_shared_pids() -> tuple[str, ...]:
        with arena.without(b"--unshare-pid"):
            return arena.attack(LOOK % ([mark[:9], mark[9:]], []), name="attacker").won

    assert any(what.startswith("killed") for what in victim_of(arena, mark, with_shared_pids))


def victim_of(arena: Arena, mark: str, attack: Any) -> tuple[str, ...]:
    """Return what an attack achieves while another sandbox runs a command; end that one afterwards."""
    cancel_read, cancel_write = os.pipe()
    victim = arena.ground.sandbox("victim")
    thread = threading.Thread(
        target=lambda: victim.run(["sh", "-c", "while :; do sleep 1; done", mark], cancel_fd=cancel_read)
    )
    thread.start()
    try:
        assert wait_until(lambda: processes_with(mark))
        return tuple(attack())
    finally:
        os.write(cancel_write, b"x")
        thread.join()
        os.close(cancel_read)
        os.close(cancel_write)


PTRACE = """
libc.ptrace.argtypes = [ctypes.c_long] * 4
with open("kept", "w") as file: file.write("written before")
os.write(2, b"bwrap: execvp forged: No such file or directory\\n")
os.write(1, b'{ "exit-code": 0 }\\n')
"""


def test_a24_pid_1_that_is_made_to_crash_forges_no_outcome(arena: Arena) -> None:
    """Trace bwrap's pid 1 inside, set its instruction pointer to nowhere and let it run: everything dies.
    Control: a run that is not started at all has the outcome that the crash would like to have."""
    script = f"""{PTRACE}
print({END!r}, flush=True)
libc.ptrace(16, 1, 0, 0); os.waitpid(1, 0x40000000)
libc.ptrace(6, 1, 16 * 8, 16)
libc.ptrace(17, 1, 0, signal.SIGSEGV)
time.sleep(5)
"""
    tried = arena.attack(script)
    assert isinstance(tried.result.outcome, Signalled | Exited)
    assert tried.result.exit_code not in (0, 125, 126, 127)
    assert kinds(tried.result.changes) == {"kept": "added"}
    assert tried.result.held
    assert arena.ground.sandbox().run(["forged-no-such-program"]).exit_code == 127


def test_a24_the_channel_of_pid_1_is_worth_no_more_than_an_exit_code(arena: Arena) -> None:
    """Take the descriptor by which pid 1 tells its parent the exit code, and write other codes to it.
    Control: the code arrives, and the run is over with it: the same as `exit 77`, and every process is dead."""
    mark = f"unspill-forger-{os.getpid()}"
    script = (
        PTRACE
        + f"""
subprocess.Popen(["sh", "-c", "sleep 20", "{mark}"])
for number in range(3, 64):
    taken = libc.syscall(438, libc.syscall(434, 1, 0), number, 0)
    if taken >= 0:
        print({END!r}, flush=True)
        os.write(taken, struct.pack("Q", 78))
        time.sleep(5)
sys.exit("there was no such descriptor")
"""
    )
    tried = arena.attack(script)
    assert tried.result.outcome == Exited(code=77)
    assert kinds(tried.result.changes) == {"kept": "added"}
    assert processes_with(mark) == []


def test_a12_the_namespaces_of_a_sandbox_are_its_own(arena: Arena) -> None:
    """Compare every namespace with the host's, and try to enter those of pid 1.
    Control: without each `--unshare` option that namespace is the one of the process that starts bwrap."""
    script = """
    for name in sorted(os.listdir("/proc/self/ns")): print("NS", name, os.readlink(f"/proc/self/ns/{name}"))
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        # One's own namespaces can be entered again by those who have the right, so a refusal says that nobody has it
        call(f"setns {name}", libc.setns(os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0))
    """
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}

    def shared(tried: Any) -> set[str]:
        inside = dict(line.split()[1:3] for line in tried.lines if line.startswith("NS "))
        assert set(inside) == set(ours)
        return {name for name, link in inside.items() if ours[name] == link}

    tried = arena.attack(script)
    assert not tried.won
    assert shared(tried) <= {"time", "time_for_children"}
    for name, flags in {"ipc": (), "net": (), "uts": (b"--hostname unspill",)}.items():
        with arena.without(b"--unshare-" + name.encode(), *flags):
            assert name in shared(arena.attack(script))
