# SPDX-License-Identifier: Apache-2.0
"""Another person on the same machine: state, playground, outputs and processes of ours are out of reach.

Root plays both parts: it starts a run as one ordinary user and attacks it as another.
"""

from __future__ import annotations

import os
import pwd
import select
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import END, python, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.root]

OWNER, OTHER = "unspill-ci", "unspill-other"

OURS = """
import os, sys, time
os.umask(0)
from unspill import Limits, OutputChunk, Policy, Sandbox
policy = Policy(bwrap=os.fsencode(sys.argv[2]), limits=Limits(kept_bytes=1000), after="hold")
sandbox = Sandbox(sys.argv[1], policy=policy)
sandbox.run("yes SECRET-OUTPUT | head -c 100000; echo SECRET > kept; echo SECRET > ~/playground/kept")
print("FIRST", flush=True)
hold = "umask 0; echo SECRET > second; chmod 777 . ~/playground; mkfifo pipe; sleep 60"
started = lambda event: print("RUNNING", flush=True) if type(event).__name__ == "Started" else None
sandbox.run(["sh", "-c", hold], on_event=started, env={"TOKEN": "SECRET" + "-VARIABLE"})
"""

THEIRS = """
top, pids = %r, %r
for here, directories, files in os.walk(top):
    for name in files:
        path = os.path.join(here, name)
        try: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1)
        except OSError: continue
        won("read", path)
    if here.startswith((top + "/home/state", top + "/home/.local")):
        if os.access(here, os.R_OK): won("listed", here)
        changes = ((os.mkdir, here + "/planted"), (os.chmod, here, 0o777), (os.rename, here, here + "-away"))
        for function, *arguments in changes:
            try: function(*arguments)
            except OSError: continue
            won(function.__name__, here)
for pid in pids:
    readers = {"environ": open, "mem": open, "maps": open, "stack": open, "io": open, "syscall": open, "pagemap": open,
               "root": os.readlink, "cwd": os.readlink, "exe": os.readlink, "fd/0": os.readlink, "fd/3": os.readlink,
               "ns/user": os.readlink, "ns/mnt": os.readlink, "fd": os.listdir, "map_files": os.listdir}
    for name, reader in readers.items():
        try:
            found = reader(f"/proc/{pid}/{name}")
            if reader is open: found.read(1)
        except OSError: continue
        won(f"/proc/{pid}/{name}")
    for number in (signal.SIGCONT, signal.SIGTERM, 0):
        try: os.kill(pid, number)
        except OSError: continue
        won("signal", pid, number)
    call(f"ptrace {pid}", libc.ptrace(16, pid, 0, 0))
    opened = libc.syscall(434, pid, 0)
    if opened >= 0: call(f"pidfd_getfd {pid}", libc.syscall(438, opened, 3, 0))
    try: words = open(f"/proc/{pid}/cmdline", "rb").read().split(bytes(1))
    except FileNotFoundError: continue  # it has just ended
    for line in words:
        if b"SECRET-VARIABLE" in line: won("variable on a command line")
for line in open("/proc/net/unix"):
    path = line.split(None, 7)[7:]
    if path and ("unspill" in path[0] or top in path[0]):
        knocking = socket.socket(socket.AF_UNIX)
        try: knocking.connect(path[0].strip())
        except OSError: continue
        won("connected", path[0])
"""


@contextmanager
def both_users(bwrap: Path) -> Iterator[tuple[Path, list[int]]]:
    """Start a run as the owner, with an open umask, in a directory that everybody may enter; end it afterwards."""
    top = Path(tempfile.mkdtemp(prefix="unspill-two-", dir="/var/tmp"))
    owner = pwd.getpwnam(OWNER)
    home = top / "home"
    for path in (home, home / "project", home / "state"):
        path.mkdir(mode=0o755)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    top.chmod(0o755)
    (home / "state").chmod(0o700)
    environ = {"HOME": os.fspath(home), "UNSPILL_STATE_DIR": os.fspath(home / "state/unspill"), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-c", OURS, os.fspath(home / "project"), os.fspath(bwrap)]
    ours = subprocess.Popen(
        words, user=OWNER, group=OWNER, extra_groups=[], env=environ, stdout=subprocess.PIPE, text=True, cwd=home
    )
    try:
        assert ours.stdout is not None
        assert [ours.stdout.readline().strip() for _ in range(2)] == ["FIRST", "RUNNING"]
        assert wait_until(lambda: len(processes_of(owner.pw_uid, ours.pid)) >= 4)
        yield top, processes_of(owner.pw_uid, ours.pid)
    finally:
        ours.kill()
        ours.wait()
        assert ours.stdout is not None
        ours.stdout.close()
        subprocess.run(["rm", "-rf", top], check=True)


def processes_of(uid: int, first: int) -> list[int]:
    """Return a process and all below it that belong to a user."""
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            if os.stat(f"/proc/{name}").st_uid == uid:
                parents[int(name)] = int(words[1])
        except OSError:
            continue
    found = [first]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def attack_as_other(top: Path, pids: list[int]) -> set[str]:
    script = python(THEIRS % (os.fspath(top), pids))
    done = subprocess.run(
        ["/usr/bin/python3", *script[1:]],
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        # Within one session the kernel lets everybody send SIGCONT
        start_new_session=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert END in done.stdout, done.stderr[-2000:]
    return {line[4:] for line in done.stdout.splitlines() if line.startswith("WON ")}


def test_a26_another_user_reads_and_changes_nothing_of_ours(bwrap: Path) -> None:
    """While a run of one user goes on, with umask 0, another reads, lists, plants, renames, signals, traces, connects.
    Control: with the directories opened up, or with the same user, the same script succeeds."""
    with both_users(bwrap) as (top, pids):
        assert attack_as_other(top, pids) == set()
        for path in (top / "home").rglob("*"):
            if "project" not in path.parts and not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o055)
        won = attack_as_other(top, [])
        assert any(what.startswith("read ") and what.endswith("store.db") for what in won)
        assert any("playground" in what for what in won)
        assert any("SECRET-OUTPUT" in Path(what[5:]).read_text("latin-1") for what in won if what.endswith("/stdout"))


def test_a26_nothing_of_ours_lies_in_the_shared_directories(bwrap: Path) -> None:
    """Look for new entries of the owner in /tmp, /var/tmp, /dev/shm and /run while a run goes on.
    Control: the directory that this test itself makes in /var/tmp is found by the same look."""
    uid = pwd.getpwnam(OWNER).pw_uid
    before = entries_of(uid)
    with both_users(bwrap) as (top, _pids):
        assert entries_of(uid) - before == set()
        os.chown(top, uid, -1)
        assert entries_of(uid) - before == {os.fspath(top)}


APPLY = """
import os, sys, time
from unspill import Policy, Sandbox
from unspill.layers import locks
if sys.argv[3] == "taken for ours": locks.find_own_flock = lambda _fd: 1
sandbox = Sandbox(sys.argv[1], policy=Policy(bwrap=os.fsencode(sys.argv[2])))
print("RUNS", flush=True)
result = sandbox.run("echo new > file")
print("APPLIED", result.operation.number, flush=True)
"""
LOCK = (
    "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); "
    "print('LOCKED', flush=True); sys.stdin.read()"
)


@pytest.mark.parametrize("lock", ["another user's", "taken for ours"])
def test_a26_the_lock_that_another_user_takes_on_a_project_stops_no_apply(bwrap: Path, lock: str) -> None:
    """Another user who may read a project's directory locks it, and a run of its owner changes a file.
    Control: where the lock is taken for one of the owner's own, nothing is applied as long as it is there."""
    top = Path(tempfile.mkdtemp(prefix="unspill-two-", dir="/var/tmp"))
    owner, project = pwd.getpwnam(OWNER), top / "home" / "project"
    try:
        project.mkdir(parents=True)
        top.chmod(0o755)
        for path in (project.parent, project):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        environ = {"HOME": os.fspath(project.parent), "PATH": "/usr/bin:/bin"}
        theirs = [sys.executable, "-I", "-c", LOCK, os.fspath(project)]
        ours = [sys.executable, "-c", APPLY, os.fspath(project), os.fspath(bwrap), lock]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": "/", "extra_groups": []}
        with subprocess.Popen(theirs, user=OTHER, group=OTHER, **pipes) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"LOCKED\n"
            with subprocess.Popen(ours, user=OWNER, group=OWNER, env=environ, **pipes) as run:
                assert run.stdout is not None
                assert run.stdout.readline() == b"RUNS\n"
                is_applied = bool(select.select([run.stdout], [], [], 30 if lock == "another user's" else 3)[0])
                assert is_applied == (project / "file").exists() == (lock == "another user's")
                other.kill()
                assert run.stdout.readline() == b"APPLIED 1\n"
    finally:
        subprocess.run(["rm", "-rf", top], check=True)


def entries_of(uid: int) -> set[str]:
    found = set()
    for top in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/dev/mqueue"):
        if os.path.isdir(top):
            found |= {entry.path for entry in os.scandir(top) if entry.stat(follow_symlinks=False).st_uid == uid}
    return found


@pytest.mark.parametrize("planted", ["directory", "link", "open"])
def test_a26_a_state_directory_that_another_user_planted_is_refused(bwrap: Path, planted: str) -> None:
    """Another user makes the state directory first, or a link in its place, or it is open to all.
    Control: a directory of the owner's own at the same place is used."""
    top = Path(tempfile.mkdtemp(prefix="unspill-planted-", dir="/var/tmp"))
    owner, other = pwd.getpwnam(OWNER), pwd.getpwnam(OTHER)
    state, project = top / "state", top / "project"
    try:
        top.chmod(0o1777)
        project.mkdir()
        os.chown(project, owner.pw_uid, owner.pw_gid)
        make_planted(state, top / "elsewhere", planted, owner, other)
        refused = start_as_owner(bwrap, project, state)
        assert "StoreError" in refused.stderr, refused
        subprocess.run(["rm", "-rf", state], check=True)
        state.mkdir(mode=0o700)
        os.chown(state, owner.pw_uid, owner.pw_gid)
        assert "FIRST" in start_as_owner(bwrap, project, state).stdout
    finally:
        subprocess.run(["rm", "-rf", top], check=True)


def make_planted(
    state: Path, elsewhere: Path, planted: str, owner: pwd.struct_passwd, other: pwd.struct_passwd
) -> None:
    if planted == "link":
        elsewhere.mkdir(mode=0o700)
        os.chown(elsewhere, other.pw_uid, other.pw_gid)
        state.symlink_to(elsewhere)
        os.lchown(state, other.pw_uid, other.pw_gid)
        return
    state.mkdir()
    user = other if planted == "directory" else owner
    os.chown(state, user.pw_uid, user.pw_gid)
    state.chmod(0o777)


def start_as_owner(bwrap: Path, project: Path, state: Path) -> subprocess.CompletedProcess[str]:
    environ = {"HOME": pwd.getpwnam(OWNER).pw_dir, "UNSPILL_STATE_DIR": os.fspath(state), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-c", OURS.partition("hold =")[0], os.fspath(project), os.fspath(bwrap)]
    return subprocess.run(
        words,
        user=OWNER,
        group=OWNER,
        extra_groups=[],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
