# SPDX-License-Identifier: Apache-2.0
"""The spawner and the launcher by themselves: what they mount, what a command inherits, and what becomes of strays."""

import errno
import hashlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from socket import socket
from typing import Any

import pytest

from tests.kernel.leftovers import adopt_orphans, descendants, reap_adopted, within
from tests.support import VIEW_LINES, Ground, printed, run_cli
from unspill import Started
from unspill.host.dirfd import make_pair
from unspill.host.job import ARGS_FD, BLOCK_FD, STATUS_FD, Job, kill_strays, memory_file, receive, run_name, send
from unspill.model.run import Exited
from unspill.runner.launcher import Launched, Launcher, get_launcher, stop_launchers
from unspill.runner.watch import outcome_from

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

Overlays = tuple[tuple[tuple[bytes, ...], bytes, bytes | None, bytes | None], ...]

ODD_NAMES = [
    b"a,b",
    b"a:b",
    b"a\\b",
    b"a b",
    b"a\nb",
    b"a'b\"c",
    b"-o",
    b"\xff\xfe",
    b"lowerdir+=x",
    "ü✓".encode(),
    b"%d",
]

# A caller in a process of its own: opens a sandbox, warms its spawner, says so, then does what it is told
CALLER = (
    VIEW_LINES
    + """
import os, sys, time
from unspill import Policy, Sandbox
from unspill.runner.watch import outcome_from
from unspill.model.run import Exited
from unspill.runner.launcher import get_launcher
sandbox = Sandbox(sys.argv[1], policy=Policy(**VIEW, bwrap=os.fsencode(sys.argv[2])))
"""
)


class Direct:
    """One bwrap that sees the whole host, started by a launcher without anything around it."""

    def __init__(self, launcher: Launcher, bwrap: bytes, command: str, overlays: Overlays = ()) -> None:
        options = [b"--dev-bind", b"/", b"/", b"--unshare-pid", b"--die-with-parent", b"--new-session"]
        self.output, theirs = os.pipe()
        null, args = os.open(os.devnull, os.O_RDWR), memory_file(b"".join(option + b"\0" for option in options))
        job = Job(
            overlays=overlays,
            program=bwrap,
            argv=(
                b"bwrap",
                *(b"--args", b"%d" % ARGS_FD, b"--json-status-fd", b"%d" % STATUS_FD),
                *(b"--block-fd", b"%d" % BLOCK_FD),
                *(b"--", b"/bin/sh", b"-c", command.encode("utf-8", "surrogateescape")),
            ),
            limits=(),
        )
        self.launched: Launched = launcher.launch(job, (null, theirs, theirs, args))
        for fd in (theirs, null, args):
            os.close(fd)

    def messages(self) -> list[Any]:
        """Wait for the end; return all that the spawner said."""
        said: list[Any] = []
        while (message := self.launched.message()) is not None:
            words, received = message
            said.append(words)
            for fd in received:
                os.close(fd)
            if words[0] == "ended":
                break
        self.close()
        return said

    def close(self) -> None:
        """Go away, whether it has ended or not."""
        self.launched.close()
        os.close(self.output)

    def text(self) -> str:
        """Wait for the end of a command that must end well; return what it printed."""
        with os.fdopen(os.dup(self.output), "rb") as output:
            text = output.read().decode("utf-8", "surrogateescape")
        started, (ended, told, *left) = self.messages()
        assert (started, ended, left) == (("started",), "ended", [(0, []), (0, [])]), text
        assert outcome_from(told, b"") == Exited(code=0), told
        return text


@pytest.fixture
def launcher() -> Launcher:
    return get_launcher(own_namespace=True)


@pytest.fixture
def layer(tmp_path: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    """A directory to cover, an upper and a work directory; what the kernel left in the last can be removed again."""
    places = [tmp_path / name for name in ("dest", "upper", "work")]
    for place in places:
        place.mkdir()
    yield os.fsencode(places[0]), os.fsencode(places[1]), os.fsencode(places[2])
    subprocess.run(["chmod", "-R", "700", places[2]], check=True)


@pytest.mark.parametrize("count", [1, 120, 300])
def test_a_stack_of_hundreds_of_layers_shows_its_top(
    launcher: Launcher, trusted_bwrap: bytes, layer: tuple[bytes, bytes, bytes], tmp_path: Path, count: int
) -> None:
    dest, upper, work = layer
    lowers = []
    for number in range(count):
        lower = tmp_path / "layers" / f"{number:016x}"
        lower.mkdir(parents=True)
        (lower / "changed by all").write_text(f"{number}\n")
        (lower / f"only {number}").write_text("")
        lowers.append(os.fsencode(lower))
    overlays = ((tuple(reversed(lowers)), dest, upper, work),)
    command = f"cd {os.fsdecode(dest)}; cat 'changed by all'; ls | wc -l; echo new > 'changed by all'"
    assert Direct(launcher, trusted_bwrap, command, overlays).text().split() == [f"{count - 1}", f"{count + 1}"]
    assert os.listdir(upper) == [b"changed by all"]
    assert os.listdir(dest) == []


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_character_of_a_path_is_taken_for_an_option(
    launcher: Launcher, trusted_bwrap: bytes, tmp_path: Path, name: bytes
) -> None:
    places = [os.fsencode(tmp_path / part) + b"/" + name for part in ("low", "lower", "dest", "upper", "work")]
    for place in places:
        os.makedirs(place)
    low, lower, dest, upper, work = places
    Path(os.fsdecode(low), "below").write_text("1\n")
    Path(os.fsdecode(lower), "above").write_text("2\n")
    script = f"cd {tmp_path}/dest; cd ./*; cat below above; echo 3 > new"
    assert Direct(launcher, trusted_bwrap, script, (((lower, low), dest, upper, work),)).text() == "1\n2\n"
    assert os.listdir(upper) == [b"new"]
    os.chmod(work + b"/work", 0o700)


def test_two_runs_at_once_never_see_each_others_layer(ground: Ground) -> None:
    ground.write("file", "original\n")
    wrote, looked = threading.Event(), threading.Event()
    seen: list[str] = []

    def first() -> None:
        command = "echo first > file; echo x > only-first; echo; read go; cat file; ls"
        read, write = os.pipe()

        def on_event(event: object) -> None:
            if not isinstance(event, Started) and not wrote.is_set():
                wrote.set()
                assert looked.wait(20)
                os.close(write)

        seen.append(printed(ground.sandbox("one").run(f"{command}; true", stdin=read, on_event=on_event)))
        os.close(read)

    thread = threading.Thread(target=first)
    thread.start()
    assert wrote.wait(20)
    try:
        second = printed(ground.sandbox("two").run("cat file; ls; echo second > file"))
    finally:
        looked.set()
        thread.join()
    assert second == "original\nfile\n"
    assert seen == ["\nfirst\nfile\nonly-first\n"]


def test_without_a_mount_namespace_of_each_run_the_second_would_see_the_first(tmp_path: Path) -> None:
    """The control arm: the same two overlays in one mount namespace."""
    for name in ("dest", "u1", "w1", "u2", "w2"):
        (tmp_path / name).mkdir()
    mount = "mount -t overlay overlay -o userxattr,lowerdir=dest,upperdir=u{0},workdir=w{0} dest"
    script = f"{mount.format(1)} && touch dest/only-first && {mount.format(2)} && ls dest; chmod 700 w?/work"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout == "only-first\n"


def test_a_command_has_no_capability_and_no_descriptor_but_its_three(ground: Ground, engine: str) -> None:
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    stop_launchers()
    try:
        # Other shells become the last command themselves
        script = 'grep "^Cap\\|^NoNewPrivs" /proc/self/status; ls /proc/$$/fd; true'
        result = ground.sandbox().run(["/bin/sh", "-c", script])
    finally:
        os.close(inherited)
    zero = "0" * 16
    kinds = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    expected = [f"{kind}:\t{zero}" for kind in kinds] + ["NoNewPrivs:\t1", "0", "1", "2"]
    assert printed(result).splitlines() == expected


def test_a_command_begins_with_no_signal_ignored_or_blocked(ground: Ground, engine: str) -> None:
    result = ground.sandbox().run("grep '^SigIgn\\|^SigBlk' /proc/self/status; yes | head -1")
    blocked, ignored, yes = (line.removeprefix("SigBlk:\t") for line in printed(result).splitlines())
    assert (blocked, yes, result.stderr.kept()) == ("0" * 16, "y", b"")
    # 32 and 33 belong to the C library, which ignores them in whatever posix_spawn starts
    assert int(ignored.removeprefix("SigIgn:\t"), 16) & ~(0b11 << 31) == 0


@pytest.mark.parametrize("size", [65_000, 66_000, 130_000, 1 << 20, 3 << 20])
def test_a_long_command_arrives_byte_by_byte(ground: Ground, engine: str, size: int) -> None:
    text = ('0123456789 \\ " ` $ \t' * (size // 20 + 1))[:size]
    result = ground.sandbox().run(f"cat <<'END' | sha256sum\n{text}\nEND\n")
    assert printed(result).split()[0] == hashlib.sha256(f"{text}\n".encode()).hexdigest()


def test_a_long_list_of_words_arrives_byte_by_byte(ground: Ground, engine: str) -> None:
    words = [f"{number}" * 200 for number in range(1000, 2000)]
    result = ground.sandbox().run(["sh", "-c", 'printf "%s\\n" "$@" | sha256sum', "sh", *words])
    assert printed(result).split()[0] == hashlib.sha256(("\n".join(words) + "\n").encode()).hexdigest()


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_job_is_handed_to_the_spawner_alone_although_another_thread_lets_go_of_it(
    is_copied: bool, trusted_bwrap: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: by the number of the shared socket it goes to whoever has that number by then."""
    launcher = get_launcher(own_namespace=True)
    ours, foreign = make_pair()

    def let_go_and_send(control: Any, message: object, descriptors: tuple[int, ...]) -> None:
        number = launcher._control.detach()
        os.dup2(foreign.fileno(), number)
        send(control, message, descriptors)
        if is_copied:
            os.close(number)

    monkeypatch.setattr("unspill.runner.launcher.send", let_go_and_send)
    if not is_copied:
        monkeypatch.setattr("unspill.runner.launcher.copy_of", lambda sock: socket(fileno=sock.fileno()))
    Direct(launcher, trusted_bwrap, "true").launched.close()
    monkeypatch.undo()
    foreign.close()
    stolen = receive(ours)
    ours.close()
    assert (stolen is None) is is_copied
    for descriptor in stolen[1] if stolen else ():
        os.close(descriptor)
    launcher._is_broken = True
    assert Direct(get_launcher(own_namespace=True), trusted_bwrap, "echo next").text() == "next\n"


def test_a_bwrap_that_can_not_be_executed_is_told_and_others_go_on(launcher: Launcher, trusted_bwrap: bytes) -> None:
    staying = Direct(launcher, trusted_bwrap, "sleep 0.3; echo alive")
    (kind, text), ended = Direct(launcher, b"/nowhere/bwrap", "true").messages()
    assert (kind, ended[0]) == ("failed", "ended")
    assert "No such file or directory" in text
    assert staying.text() == "alive\n"


def test_an_overlay_that_can_not_be_mounted_is_told_and_others_go_on(
    launcher: Launcher, trusted_bwrap: bytes, layer: tuple[bytes, bytes, bytes]
) -> None:
    dest, upper, work = layer
    staying = Direct(launcher, trusted_bwrap, "sleep 0.3; echo alive")
    refused, ended = Direct(launcher, trusted_bwrap, "true", (((b"/nowhere",), dest, upper, work),)).messages()
    assert refused[:3] == ("refused", dest, errno.ENOENT)
    assert ended[0] == "ended"
    assert Direct(launcher, trusted_bwrap, "echo next").text() == "next\n"
    assert staying.text() == "alive\n"


def test_a_command_outlives_the_thread_that_started_it(launcher: Launcher, trusted_bwrap: bytes) -> None:
    runs: list[Direct] = []
    thread = threading.Thread(target=lambda: runs.append(Direct(launcher, trusted_bwrap, "sleep 0.3; echo alive")))
    thread.start()
    thread.join()
    assert runs[0].text() == "alive\n"


def test_a_spawner_outlives_the_thread_that_started_it(trusted_bwrap: bytes) -> None:
    stop_launchers()
    started: list[Launcher] = []
    thread = threading.Thread(target=lambda: started.append(get_launcher(own_namespace=True)))
    thread.start()
    thread.join()
    assert Direct(started[0], trusted_bwrap, "echo alive").text() == "alive\n"
    assert get_launcher(own_namespace=True) is started[0]


def test_a_caller_that_goes_away_from_one_run_does_not_disturb_another(
    launcher: Launcher, trusted_bwrap: bytes
) -> None:
    staying = Direct(launcher, trusted_bwrap, "sleep 0.5; echo alive")
    for pause in (0.0, 0.0, 0.002, 0.01, 0.05):
        leaving = Direct(launcher, trusted_bwrap, "sleep 1000")
        time.sleep(pause)
        leaving.close()
    assert staying.text() == "alive\n"
    assert launcher.is_alive()


ENDS = {
    "returns": "",
    "is killed": "os.kill(os.getpid(), 9)",
    "becomes another program": "os.execv('/bin/true', ['true'])",
    "is killed and leaves a fork": "os.fork() and os.kill(os.getpid(), 9); time.sleep(0.5)",
    "ends in a thread": "import threading; threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(9)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_running", [False, True])
def test_the_spawner_ends_when_its_caller(ground: Ground, end: str, is_running: bool) -> None:
    adopt_orphans()
    busy = "import threading; threading.Thread(target=sandbox.run, args=('sleep 1000',), daemon=True).start()"
    lines = [CALLER, "sandbox.run('true')", busy if is_running else "", "time.sleep(0.3)"]
    lines += ["print(get_launcher(own_namespace=True).pid, flush=True)", ENDS[end]]
    caller = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines), ground.project, ground.bwrap], stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    spawner = int(caller.stdout.readline())
    caller.wait(10)
    assert within(0.3, lambda: spawner not in descendants(os.getpid()) or is_zombie(spawner))
    caller.stdout.close()
    # One that ends in order leaves no zombie to somebody who may not reap it
    assert end != "returns" or spawner not in descendants(os.getpid())
    reap_adopted(set())


def is_zombie(pid: int) -> bool:
    return descendants(os.getpid()).get(pid, "").endswith("(Z)")


@pytest.mark.parametrize(
    "first",
    [
        "os.closerange(0, 3)",
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))",
        "os.chdir('/'); os.umask(0o077)",
    ],
)
def test_an_odd_caller_has_its_runs(ground: Ground, first: str) -> None:
    ending = "for _ in range(5): assert sandbox.run('yes | head -1').stdout.head == b'y\\n'\nos._exit(7)"
    script = "\n".join(["import os", first, CALLER, ending])
    done = subprocess.run([sys.executable, "-c", script, ground.project, ground.bwrap], check=False, timeout=30)
    assert done.returncode == 7


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, name: bytes) -> "subprocess.Popen[bytes]":
    """Start a program that stays alive under a name, until the test ends."""
    program = stack.enter_context(subprocess.Popen([name, b"1000"], executable="/bin/sleep"))
    stack.callback(program.kill)
    return program


def test_only_processes_with_the_very_name_of_a_run_are_killed(started: ExitStack) -> None:
    strays = [start(started, run_name("0123")) for _ in range(3)]
    others = [start(started, name) for name in (run_name("01234"), run_name("012"), b"x" + run_name("0123"))]
    assert kill_strays(["0123", "4567"]) == 3
    assert [stray.wait(1) for stray in strays] == [-9, -9, -9]
    assert [other.poll() for other in others] == [None, None, None]
    assert kill_strays(["0123"]) == 0


def test_a_process_that_gets_its_name_a_little_later_is_found(started: ExitStack) -> None:
    script = f"sleep 0.1; exec -a {run_name('89ab').decode()} sleep 1000"
    late = started.enter_context(subprocess.Popen(["bash", "-c", script]))
    started.callback(late.kill)
    assert kill_strays(["89ab"]) == 0
    assert kill_strays(["89ab"], settle_s=0.5) == 1
    assert late.wait(1) == -9


def test_the_next_start_kills_what_is_alive_of_a_run_whose_caller_is_dead(ground: Ground, started: ExitStack) -> None:
    run_cli("run", "-q", "-c", "true", cwd=ground.project)
    with closing(sqlite3.connect(ground.state / "store.db")) as db, db:
        # As a killed caller leaves it: no end, and an owner that nobody is
        db.execute("UPDATE runs SET ended_ns = NULL, owner_started = owner_started + 1")
        ((run,),) = db.execute("SELECT id FROM runs")
    stray = start(started, run_name(run))
    assert run_cli("run", "-q", "-c", "true", cwd=ground.project).returncode == 0
    assert stray.wait(1) == -9
