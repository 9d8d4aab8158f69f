# SPDX-License-Identifier: Apache-2.0
"""Live sandboxes: each command has layers and a result of its own, and is as closed in as in a sandbox of its own."""

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.checkpoint_writers import WRITERS
from tests.kernel.test_checkpoints import server, tree
from tests.support import Ground, kinds, lasting, printed, processes_with, short
from unspill import Cancelled, Exited, NeverStarted, OutputChunk, RunResult, Sandbox, Signalled, TimedOut
from unspill.errors import HostError, UsageError
from unspill.host import door, libc, spawner
from unspill.layers.locks import upper_dir
from unspill.model.run import LayerId
from unspill.runner.launcher import stop_launchers
from unspill.runner.live import LiveSandbox
from unspill.sandbox.checkpoints import SpanCopies
from unspill.sandbox.live import Live

pytestmark = [pytest.mark.kernel, pytest.mark.rootfs_view]


@pytest.fixture
def sandbox(ground: Ground) -> Iterator[Sandbox]:
    with ground.sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def live(sandbox: Sandbox) -> Iterator[Live]:
    with sandbox.live() as live:
        yield live


@pytest.mark.bwrap
def test_each_command_has_the_changes_of_its_own(ground: Ground, live: Live) -> None:
    first = live.run("echo one > a", after="hold")
    second = live.run("cat a; echo two > b; rm a", after="hold")
    third = live.run("ls", after="hold")
    found = [kinds(result.changes) for result in (first, second, third)]
    assert found == [{"a": "added"}, {"a": "deleted", "b": "added"}, {}]
    assert second.stdout.head == b"one\n"
    assert third.stdout.head.split() == sorted([b"b", *(os.fsencode(path.name) for path in ground.project.iterdir())])
    assert live._live.built == 1


def test_what_is_applied_lies_in_the_project_and_can_be_undone(ground: Ground, sandbox: Sandbox, live: Live) -> None:
    assert live.run("echo new > f", after="apply").operation is not None
    assert (ground.project / "f").read_text() == "new\n"
    assert live.run("cat f; echo newer > f", after="apply").stdout.head == b"new\n"
    sandbox.undo()
    assert live.run("cat f").stdout.head == b"new\n"


def rename_over(top: Path) -> None:
    (top / "other").write_text("edited\n")
    (top / "other").rename(top / "file")


def replace_directory(top: Path) -> None:
    shutil.rmtree(top / "dir")
    (top / "dir").mkdir()
    (top / "dir/later").write_text("edited\n")


EDITS: dict[str, Callable[[Path], object]] = {
    "in place": lambda top: (top / "file").write_text("edited\n"),
    "renamed over": rename_over,
    "new": lambda top: (top / "fresh").write_text("edited\n"),
    "deleted": lambda top: (top / "file").unlink(),
    "directory replaced": replace_directory,
}


def test_the_next_command_sees_every_edit_of_the_person(ground: Ground, live: Live, full: bool) -> None:
    """A live overlay would go on showing what it has looked up before. With `--full` there are 100 edits."""
    look = "find . -type f -not -path './.git/*' | sort | xargs grep -H ''"
    for edit in (*EDITS.values(),) * (20 if full else 1):
        for path in ground.project.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        ground.write("file", "before\n")
        ground.write("dir/inner", "before\n")
        live.run(look)
        edit(ground.project)
        expected = subprocess.run(["sh", "-c", look], cwd=ground.project, capture_output=True, check=True).stdout
        assert live.run(look).stdout.head == expected
    assert live._live.built == 1
    count = len(EDITS) * (20 if full else 1)
    record_figure("edits between commands of a live sandbox", f"{count} of {count} seen", "by the next command")


# What a command inside writes after each edit, and whether something of the person's lies there
WRITTEN = {
    "in place": ("top/file", True),
    "renamed over": ("top/file", True),
    "new": ("top/fresh", True),
    "deleted": ("top/file", False),
    "directory replaced": ("top/dir/later", True),
}


def test_every_edit_of_the_person_under_a_busy_sandbox_is_seen_by_the_next_command_and_not_overwritten(
    sandbox: Sandbox, ground: Ground, full: bool
) -> None:
    """One of each kind, and 100 with `--full`. What the person has deleted may be written anew, and undone."""
    rounds = 20 if full else 1
    for name, edit in (*EDITS.items(),) * rounds:
        shutil.rmtree(ground.project / "top", ignore_errors=True)
        ground.write("top/file", "before\n")
        ground.write("top/dir/inner", "before\n")
        written, is_conflict = WRITTEN[name]
        look = "find top -type f | sort | xargs grep -H ''"
        with sandbox.live() as live:
            server(live, "apply")
            # An overlay that has looked something up goes on showing it
            live.run(look, after="apply")
            edit(ground.project / "top")
            before = tree(ground.project / "top")
            expected = subprocess.run(["sh", "-c", look], cwd=ground.project, capture_output=True, check=True).stdout
            assert live.run(look, after="apply").stdout.head == expected, name
            operation = live.run(f"echo inside > {written}", after="apply").operation
            assert operation is not None, name
            left = [(os.fsdecode(one.path), one.why) for one in operation.left]
            assert left == [(written, "conflict")] * is_conflict, name
            if not is_conflict:
                sandbox.undo()
            assert tree(ground.project / "top") == before, name
        sandbox.discard()
    count = rounds * len(EDITS)
    record_figure(
        "edits under a busy live sandbox",
        f"{count} of {count} seen, 0 overwritten",
        "in place, renamed over, new, deleted, directory replaced; the same path is then written inside",
    )


def find_stale(ground: Ground, live: Live) -> list[str]:
    """Return the edits deep down in the project that the next command does not see. Nobody touches the top itself."""
    look = "find . -type f -not -path './.git/*' | sort | xargs grep -H ''; cat top/deep/fresh"
    stale = []
    for number, (name, edit) in enumerate(EDITS.items()):
        shutil.rmtree(ground.project / "top/deep", ignore_errors=True)
        ground.write("top/deep/file", "before\n")
        ground.write("top/deep/dir/inner", "before\n")
        live.run(look)
        edit(ground.project / "top/deep")
        expected = subprocess.run(["sh", "-c", look], cwd=ground.project, capture_output=True, check=False).stdout
        stale += [name] if live.run(look).stdout.head != expected else []
        assert live._live.built == 1, number
    return stale


def test_layers_that_stay_attached_show_every_edit_deep_down(
    ground: Ground, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: an overlay that is not told to look again shows what it has looked up before."""
    ground.write("top/deep/file")
    mounts = "grep -c . /proc/self/mountinfo; grep overlay /proc/self/mountinfo"
    with Sandbox(ground.project, policy=ground.policy(), may_fork=True) as sandbox:
        with sandbox.live() as live:
            before = printed(live.run(mounts))
            assert find_stale(ground, live) == []
            assert printed(live.run(mounts)) == before
            live.run("echo x > f", after="discard")
            assert printed(live.run(mounts)) != before
        stop_launchers()
        monkeypatch.setattr(spawner, "refresh", lambda _filesystem: True)
        with sandbox.live() as live:
            assert {"renamed over", "new", "directory replaced"} <= set(find_stale(ground, live))


def test_where_an_overlay_can_not_be_refreshed_it_is_exchanged(
    ground: Ground, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.write("top/deep/file")
    monkeypatch.setattr(spawner, "refresh", lambda _filesystem: False)
    with Sandbox(ground.project, policy=ground.policy(), may_fork=True) as sandbox, sandbox.live() as live:
        assert find_stale(ground, live) == []


def test_a_secret_in_the_place_of_a_directory_is_hidden_from_the_next_command(
    ground: Ground, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: masks that are never found anew go on showing that name."""
    secret = ground.project / ".env"

    def show_directory() -> None:
        secret.unlink(missing_ok=True)
        ground.write(".env/inner", "shown\n")
        assert printed(live.run("cat .env/inner")) == "shown\n"

    def put_secret() -> None:
        shutil.rmtree(secret)
        secret.write_text("TOKEN=1\n")

    for _ in range(10):
        show_directory()
        put_secret()
        assert live.run("cat .env").exit_code != 0
    show_directory()
    monkeypatch.setattr(live._masks, "_last", ((), live._masks.find()))
    monkeypatch.setattr(live._masks, "_look", lambda: ())
    put_secret()
    assert printed(live.run("cat .env")) == "TOKEN=1\n"


def test_in_strict_a_door_stays_as_long_as_nothing_is_written(ground: Ground) -> None:
    with ground.sandbox(profile="strict") as sandbox, sandbox.live() as live:
        live.run("true")
        first = live._live._door
        assert live.run("ls", after="hold").outcome == Exited(code=0)
        assert live._live._door is first
        assert kinds(live.run("echo x > f", after="hold").changes) == {"f": "added"}
        assert kinds(live.run("cat f > g", after="hold").changes) == {"g": "added"}
        assert live._live._door is not first


def test_the_kernel_is_asked_whether_a_process_is_left_and_not_the_door(
    ground: Ground, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: if the door alone were believed, one that lies would leave a process with the layers."""
    monkeypatch.setattr(door.DoorLoop, "_is_quiet", lambda _loop: True)
    with Sandbox(ground.project, policy=ground.policy(), may_fork=True) as sandbox:
        for is_asked in (True, False):
            with sandbox.live() as live:
                live.run("true")
                if not is_asked:
                    monkeypatch.setattr(live._live, "_is_quiet", lambda: True)
                word = lasting()
                live.run(f"sleep {word} & true", after="hold")
                end = time.monotonic() + 20
                # While it becomes another program it has no command line
                while not is_asked and not processes_with(word):
                    assert time.monotonic() < end
                assert bool(processes_with(word)) is not is_asked
                assert live._live.built == 1
            assert processes_with(word) == []


def test_what_is_no_project_stays_between_commands(live: Live) -> None:
    live.run("echo kept > /tmp/x; echo kept > ~/y")
    assert live.run("cat /tmp/x ~/y").stdout.head == b"kept\nkept\n"


@pytest.mark.bwrap
def test_what_a_command_leaves_running_is_ended_with_it_and_named(live: Live) -> None:
    word = lasting()
    result = live.run(f"sleep {word} & setsid sleep {word} & echo started")
    assert result.stdout.head == b"started\n"
    assert processes_with(word) == []
    assert any(word in line for line in result.text().splitlines())
    assert live.run("true").outcome == Exited(code=0)
    assert live._live.built == 1


@pytest.mark.parametrize(
    "command",
    [
        "exec 3> f; sleep {0} &",
        "cd dir; sleep {0} &",
        "(while :; do date > f; done) & sleep 0.05",
        "trap '' TERM HUP INT; (trap '' TERM; sleep {0}) & sh -c 'sleep {0} & sleep {0} & wait' &",
    ],
)
def test_nothing_writes_to_a_layer_that_was_scanned(ground: Ground, live: Live, command: str) -> None:
    ground.write("dir/inner")
    word = lasting()
    result = live.run(command.format(word), after="hold")
    assert processes_with(word) == []
    assert not kinds(live.run("cat f 2>/dev/null; true", after="hold").changes)
    assert isinstance(result.outcome, Exited)


# Each goes on writing when the command has ended, in a way of its own
DAEMONS = (
    "(while :; do date +%N > loop; done) &",
    "setsid sh -c 'while :; do mv a b; mv b a; done' 2>/dev/null & : > a;",
    "exec 7> kept; (trap '' TERM HUP INT; while :; do echo x >&7; done) &",
    "(cd dir && exec sh -c 'while :; do : > made; rm made; done') &",
    ": > bits; (sh -c 'while :; do chmod 600 bits; chmod 644 bits; done' &) ;",
    f"{shlex.join(['python3', '-c', WRITERS['mapper']])} > up & while ! [ -s up ]; do :; done;",
)


def layer_trees(sandbox: Sandbox) -> dict[str, dict[str, tuple[int, bytes]]]:
    """Return what lies in each layer that is held."""
    store = sandbox._project.store
    layers = store.layers.sealed(sandbox._project.row.id)
    return {layer.id: tree(upper_dir(store.state, layer.id)) for layer in layers}


def stamps(top: Path) -> dict[Path, tuple[int, bytes]]:
    """Return of each file when it was last changed, and its content."""
    found = {}
    for path in top.rglob("*"):
        # It may be gone again
        with suppress(OSError):
            found[path] = path.lstat().st_ctime_ns, path.read_bytes() if path.is_file() else b""
    return found


def test_no_daemon_writes_to_a_layer_after_its_scan(ground: Ground, sandbox: Sandbox, live: Live, full: bool) -> None:
    """The time buys 6 spans with one to six daemons each, and 1,000 with `--full`."""
    spans, chance = 1_000 if full else 6, random.Random(1)
    ground.write("dir/inner")
    for number in range(spans):
        chosen = " ".join(chance.sample(DAEMONS, 1 + number % len(DAEMONS)))
        live.run(f"{chosen} echo {number} > number", after="hold")
        before = layer_trees(sandbox)
        assert live.run("cat number", after="hold").stdout.head == b"%d\n" % number
        assert layer_trees(sandbox) == before
        if number % 10 == 9:
            sandbox.discard()
    record_figure(
        "late writes, live sandboxes", "0 layers changed after their scan", f"{spans} spans with 1 to 6 daemons"
    )


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_daemon_that_lives_on_writes_to_the_layer(sandbox: Sandbox, live: Live, ground: Ground, daemon: str) -> None:
    """The control: each of them would have changed it."""
    ground.write("dir/inner")
    run = live.start(f"{daemon} echo up; sleep 1000", after="hold")
    assert run.output(0, timeout=20)[0] == b"up\n"
    layers = Path(os.fsdecode(upper_dir(sandbox._project.store.state, LayerId(""))))
    first, end = stamps(layers), time.monotonic() + 20
    while stamps(layers) == first:
        assert time.monotonic() < end


ENDS = {
    "exit code": ("exit 7", Exited(code=7)),
    "signal": ("kill -TERM $$", Signalled(signal=signal.SIGTERM)),
    "everything killed": ("kill -9 -1", Signalled(signal=signal.SIGKILL)),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_command_ends_as_it_would_elsewhere(live: Live, case: str) -> None:
    command, outcome = ENDS[case]
    assert live.run(command).outcome == outcome
    assert live.run("echo on").stdout.head == b"on\n"


def test_a_command_that_takes_too_long_is_ended_and_the_next_one_runs(live: Live) -> None:
    word = lasting()
    live.run("echo kept > /tmp/x")
    assert live.run(f"sleep {word}", timeout=0.3).outcome == TimedOut(after_s=0.3)
    assert processes_with(word) == []
    assert live.run("cat /tmp/x").stdout.head == b"kept\n"


def test_a_command_can_be_cancelled(live: Live) -> None:
    ours, theirs = os.pipe()
    word = lasting()

    def cancel(_event: object) -> None:
        os.write(theirs, b"x")

    result = live.run(f"echo on; sleep {word}", cancel_fd=ours, on_event=cancel)
    assert result.outcome == Cancelled()
    assert processes_with(word) == []
    for fd in (ours, theirs):
        os.close(fd)
    assert live.run("true").outcome == Exited(code=0)


def test_what_can_not_be_started_is_told_as_elsewhere(sandbox: Sandbox, live: Live, ground: Ground) -> None:
    ground.write("text", "echo said $0")
    (ground.project / "text").chmod(0o755)
    ground.write("plain", "x")
    for words in (["no-such-program"], ["./plain"], ["./none"], ["./text"]):
        plain, joined = sandbox.run(words, after="discard"), live.run(words, after="discard")
        assert (joined.outcome, joined.stdout.head) == (plain.outcome, plain.stdout.head)
    assert isinstance(live.run(["no-such-program"]).outcome, NeverStarted)
    with pytest.raises(UsageError):
        live.run("true", working_dir="/no/such/place")


def test_input_variables_and_long_commands_arrive(live: Live) -> None:
    assert live.run("cat; echo $GIVEN", stdin="typed ", env={"GIVEN": "by env"}).stdout.head == b"typed by env\n"
    long = "x" * 300_000
    assert live.run(f"echo {long} | wc -c").stdout.head.split() == [b"%d" % (len(long) + 1)]


STATUS = """
grep -E '^(Uid|Gid|Groups|NoNewPrivs|Seccomp|Cap|SigIgn|SigBlk|Umask)' /proc/self/status
ulimit -a; ls -l /proc/self/fd | grep -v /proc/ | awk '{print $9}'; env | grep -v '^_=' | sort; pwd
cut -d' ' -f5-6,9 /proc/self/mountinfo | sort -u; cat /proc/self/oom_score_adj; hostname
"""


NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "cgroup", "pid")


@pytest.mark.bwrap
@pytest.mark.parametrize("profile", ["default", "strict"])
def test_a_joined_command_is_as_closed_in_as_a_plain_one(ground: Ground, profile: str) -> None:
    """Identity, capabilities, filter, limits, descriptors, variables, mounts, umask, signals."""
    with ground.sandbox(profile=profile) as sandbox, sandbox.live() as live:
        plain, joined = (run(STATUS, after="discard") for run in (sandbox.run, live.run))
        assert plain.exit_code == joined.exit_code == 0
        seen, expected = (told(result) for result in (joined, plain))
        assert len(expected) > 40
        # What layers are put on; it is empty, and never seen while a command runs
        assert [line for line in seen if line not in expected] == [f"{ground.inside()} rw,nosuid,nodev,relatime tmpfs"]
        assert [line for line in expected if line not in seen] == []


def test_without_what_the_door_takes_on_a_joined_command_is_open(
    ground: Ground, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test before: the filter and what goes with it are the door's to set."""
    monkeypatch.setattr(door.Protection, "take_on", lambda _protection: None)
    # It would start nothing, for it does not have the limits that it should
    monkeypatch.setattr(door.DoorLoop, "_is_changed", lambda _loop: False)
    with Sandbox(ground.project, policy=ground.policy(), may_fork=True) as sandbox, sandbox.live() as live:
        plain, joined = (told(run(STATUS, after="discard")) for run in (sandbox.run, live.run))
    other = {line.split(":")[0] for line in plain if line not in joined}
    assert {"Seccomp", "NoNewPrivs"} <= other


def told(result: RunResult) -> list[str]:
    """Return what STATUS printed; layers have names of their own."""
    return re.sub(r"\b[0-9a-f]{16}$", "LAYER", printed(result), flags=re.MULTILINE).splitlines()


def pids_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


@pytest.mark.bwrap
@pytest.mark.parametrize("profile", ["default", "strict"])
def test_a_joined_command_has_the_namespaces_of_its_sandbox(ground: Ground, profile: str) -> None:
    """Looked at from outside: from inside nobody sees those of pid 1."""
    word = lasting()
    with ground.sandbox(profile=profile) as sandbox, sandbox.live() as live:
        live.start(f"exec sleep {word}", after="discard")
        assert live._live.init is not None
        end = time.monotonic() + 20
        # Until the shell has become the program
        while not pids_with(word):
            assert time.monotonic() < end
        [command] = pids_with(word)
        for name in NAMESPACES:
            joined, own, ours = (os.readlink(f"/proc/{pid}/ns/{name}") for pid in (command, live._live.init[0], "self"))
            assert joined == own != ours


def test_a_live_sandbox_keeps_its_limits_and_says_when_it_is_closed(live: Live) -> None:
    with pytest.raises(UsageError, match="limits"):
        live.run("true", limits=short(open_files=10))
    live.run("true")
    live.close()
    with pytest.raises(UsageError, match="closed"):
        live.run("true")


def test_without_namespaces_of_our_own_it_is_refused(without_own_namespace: Ground) -> None:
    with without_own_namespace.sandbox() as sandbox, pytest.raises(HostError) as refused:
        sandbox.live()
    assert "Sandbox.run" in refused.value.remedy


def test_other_runs_of_the_same_sandbox_go_on_between_its_commands(sandbox: Sandbox, live: Live) -> None:
    live.run("echo 1 > a", after="hold")
    sandbox.run("echo 2 > b", after="hold")
    assert live.run("cat a b", after="hold").stdout.head == b"1\n2\n"


def test_several_threads_share_one(live: Live) -> None:
    done: list[bytes] = []

    def run(number: int) -> None:
        done.append(live.run(f"echo {number} > f{number}; cat f{number}", after="hold").stdout.head)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [b"%d\n" % number for number in range(4)]


def test_nothing_is_left_when_the_caller_is_killed(ground: Ground) -> None:
    word = lasting()
    script = f"""
        from unspill import Sandbox
        with Sandbox({str(ground.project)!r}) as sandbox, sandbox.live() as live:
            live.run("echo kept > held", after="hold")
            live.run("echo lost; sleep {word}", after="hold", on_event=lambda event: print(event, flush=True))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    while b"lost" not in process.stdout.readline():
        continue
    process.kill()
    process.wait()
    process.stdout.close()
    with ground.sandbox() as sandbox:
        assert "held" in kinds(sandbox.changes())
    assert processes_with(word) == []


DOOR = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
[door] = [p for p in os.listdir("/proc") if p.isdecimal() and open(f"/proc/{p}/comm").read().strip() == "unspill-door"]
if libc.ptrace(0x4206, int(door), None, None) == 0: print("traced")
for name in ("environ", "mem", "maps"):
    try: open(f"/proc/{door}/{name}", "rb").read(1); print("read", name)
    except OSError: pass
for name in ("fd", "exe", "root", "cwd"):
    look = os.listdir if name == "fd" else os.readlink
    try: look(f"/proc/{door}/{name}"); print("read", name)
    except OSError: pass
print("words", open(f"/proc/{door}/cmdline").read().strip(chr(0)))
"""


def look_at_door(ground: Ground) -> list[str]:
    with Sandbox(ground.project, policy=ground.policy(), may_fork=True) as sandbox, sandbox.live() as live:
        return printed(live.run(["/usr/bin/python3", "-I", "-c", DOOR])).splitlines()


@pytest.fixture
def own_spawner() -> Iterator[None]:
    """A spawner that is a fork of this process, so that what is changed here is changed there."""
    stop_launchers()
    yield
    stop_launchers()


def test_a_command_can_neither_trace_nor_read_the_door(
    ground: Ground, own_spawner: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: one that is dumpable is traced, and its files in /proc are read."""
    assert look_at_door(ground) == ["words unspill-door"]
    stop_launchers()
    prctl = libc.prctl
    monkeypatch.setattr(libc, "prctl", lambda option, value: option == libc.PR_SET_DUMPABLE or prctl(option, value))
    seen = look_at_door(ground)
    assert {"traced", "read environ", "read fd"} <= set(seen)


def test_a_command_that_stops_the_door_only_ends_its_own_sandbox(live: Live) -> None:
    stop = "kill -STOP $(grep -l unspill-door /proc/[0-9]*/comm | cut -d/ -f3); echo x > f"
    result = live.run(stop, timeout=0.5, after="hold")
    assert result.outcome == TimedOut(after_s=0.5)
    assert kinds(result.changes) == {"f": "added"}
    assert live.run("cat f", after="hold").stdout.head == b"x\n"
    assert live._live.built == 2


def test_a_command_has_its_own_variables_also_where_the_one_before_changed_nothing(live: Live) -> None:
    for word in (None, "one", "two", None):
        env = {} if word is None else {"WORD": word}
        assert live.run("echo ${WORD-none}", env=env).stdout.head == f"{word or 'none'}\n".encode()


@pytest.mark.parametrize("is_control", [False, True], ids=["as it is", "control"])
def test_a_command_that_outlived_its_sandbox_does_not_end_the_next(
    live: Live, monkeypatch: pytest.MonkeyPatch, is_control: bool
) -> None:
    if is_control:
        monkeypatch.setattr(LiveSandbox, "end_with", lambda sandbox, _joined: sandbox.close())
    has_printed, goes_on = threading.Event(), threading.Event()

    def read_slowly(event: object) -> None:
        if isinstance(event, OutputChunk):
            has_printed.set()
            goes_on.wait(60)

    def run() -> None:
        live.run("echo x; exec sleep 1000", after="discard", on_event=read_slowly)

    slow = threading.Thread(target=run)
    slow.start()
    assert has_printed.wait(20)
    # Its door is among all that it kills
    assert live.start("kill -KILL -1; exec sleep 1000", after="discard").wait(20) is not None
    beside = live.start("exec sleep 1000", after="discard")
    assert live._live.built == 2
    goes_on.set()
    slow.join(20)
    assert not slow.is_alive()
    assert (live._live._launched is None) is is_control
    assert is_control or beside.is_alive()


def held_paths(sandbox: Sandbox) -> set[str]:
    return {os.fsdecode(change.path) for change in sandbox.changes()}


def test_an_error_at_the_quiet_point_loses_nothing(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, ground: Ground
) -> None:
    def fail(*_given: object) -> None:
        raise PermissionError(13, "made up")

    with sandbox.live() as live:
        server = live.start("sleep 1000", after="hold")
        live.run("echo 1 > important", after="hold")
        with monkeypatch.context() as patch:
            patch.setattr(SpanCopies, "settle", fail)
            server.kill()
            with pytest.raises(PermissionError):
                server.wait(20)
    assert "important" in held_paths(sandbox)
    with ground.sandbox() as other, other.live() as live:
        assert live.run("cat important").stdout.head == b"1\n"


def test_a_run_that_could_not_begin_beside_others_does_not_count(sandbox: Sandbox, ground: Ground) -> None:
    with sandbox.live() as live:
        server = live.start("read line; echo served > file", after="apply")
        with pytest.raises(UsageError, match="variable"):
            live.run("true", env={"A=B": "x"}, after="apply")
        server.write(b"go\n")
        assert not server.wait(20).unsettled
    assert (ground.project / "file").read_text() == "served\n"


def test_a_command_that_nobody_can_watch_does_not_live_on(
    sandbox: Sandbox, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = lasting()
    live.start(f"sleep {word}", after="hold")
    with monkeypatch.context() as patch:

        def fail(*_given: object) -> None:
            raise OSError(24, "Too many open files")

        patch.setattr("unspill.runner.perform.UsageWatch", fail)
        with pytest.raises(OSError, match="Too many"):
            live.run(f"echo x > written; sleep {word}", after="hold")
    assert processes_with(word) == []
    assert live.run("true", after="hold").outcome == Exited(code=0)


def test_what_others_changed_is_held_when_the_last_run_is_cancelled(sandbox: Sandbox) -> None:
    with sandbox.live() as live:
        terminal = live.terminal(["sleep", "1000"], after="apply", after_cancel="discard")
        done = live.start("echo precious > file", after="apply").wait(20)
        assert done.unsettled
        terminal.close()
    assert "file" in held_paths(sandbox)


def test_a_live_run_and_one_that_is_to_be_alone_wait_for_each_other(sandbox: Sandbox, ground: Ground) -> None:
    waits: list[str] = []
    with sandbox.live() as live, ground.sandbox() as other:
        server = live.start("read line", after="hold")
        alone = threading.Thread(target=lambda: other.run("true", alone=True, on_wait=waits.append))
        alone.start()
        end = time.monotonic() + 20
        while not waits:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert alone.is_alive()
        server.write(b"go\n")
        server.wait(20)
        alone.join(20)
        assert not alone.is_alive()
