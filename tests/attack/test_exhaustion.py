# SPDX-License-Identifier: Apache-2.0
"""Taking too much: processes, memory, shared memory, temporary file systems, disk, inodes, output."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.seccomp.rules import numbers_of
from tests.attack.arena import END, Arena, drop, python
from tests.figures import record_figure
from tests.support import NO_CACHES, chosen_views, short
from unspill import LimitReached, Limits, OutputChunk
from unspill.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.run import LimitName

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

MIB = 1 << 20

FORK_BOMB = """
made = 0
def bomb():
    global made
    try: child = os.fork()
    except OSError as error: print("REFUSED", errno.errorcode[error.errno], flush=True); return False
    if not child:
        try:
            while True: os.fork()
        except OSError: pass
        time.sleep(30); os._exit(0)
    made += 1
    return made < 200
while bomb(): pass
time.sleep(0.2)
alive = len([name for name in os.listdir("/proc") if name.isdecimal()])
print("ALIVE", alive, flush=True)
if alive > 64: won(alive, "processes")
"""


@pytest.fixture
def crowd() -> Iterator[None]:
    """A hundred other processes of the same user on the host."""
    others = [subprocess.Popen(["sleep", "100"]) for _ in range(100)]
    yield
    for other in others:
        other.kill()
    for other in others:
        other.wait()


@pytest.mark.usefixtures("crowd")
def test_b1_a_fork_bomb_meets_its_bound_whatever_else_the_user_runs(arena: Arena) -> None:
    """Fork without end under a bound of 64 while a hundred other processes of the user are alive.
    Control: with a higher bound the same script gets more; and a bound set outside the namespace, which counts the
    user's other processes, does not even let bwrap start."""
    begun = time.monotonic()
    tried = arena.attack(FORK_BOMB, options={"limits": short(processes=64)})
    assert not tried.won
    assert "REFUSED EAGAIN" in tried.lines
    assert time.monotonic() - begun < 10
    [alive] = [int(line.split()[1]) for line in tried.lines if line.startswith("ALIVE")]
    assert alive > 50
    assert arena.attack(FORK_BOMB, options={"limits": short(processes=250)}).won
    words = ["prlimit", "--nproc=64", os.fsdecode(arena.ground.bwrap), "--unshare-user", "--ro-bind", "/", "/", "true"]
    assert subprocess.run(words, capture_output=True, check=False).returncode != 0


WATCHERS = """
held = 0
while libc.inotify_init() >= 0: held += 1
print("HELD", held, flush=True)
time.sleep(0.3)
"""


def can_watch() -> bool:
    """Tell whether a program on the host could still have an inotify instance, as editors and build tools need."""
    fd = int(ctypes.CDLL(None).inotify_init())
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def test_b1_what_the_kernel_counts_by_user_is_not_all_for_the_sandbox(arena: Arena) -> None:
    """Take every inotify instance that the user may have, in two sandboxes at once.
    Control: a bwrap call that does the same leaves none to the host."""
    seen: list[bool] = []

    def look(event: object) -> None:
        if isinstance(event, OutputChunk):
            seen.append(can_watch())

    with ThreadPoolExecutor(2) as pool:
        sandboxes = [arena.ground.sandbox(name) for name in ("one", "two")]
        runs = [pool.submit(sandbox.run, python(WATCHERS), on_event=look) for sandbox in sandboxes]
        assert all(b"HELD" in run.result().stdout.head for run in runs)
    assert len(seen) >= 2
    assert all(seen)
    words = [os.fsdecode(arena.ground.bwrap), "--ro-bind", "/", "/", "--unshare-user", *python(WATCHERS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as naive:
        assert naive.stdout is not None
        assert naive.stdout.readline().startswith(b"HELD")
        assert not can_watch()


BOUNDS = """
import resource
print(*(resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)))
"""


def test_b1_pending_signals_and_message_queues_are_not_all_for_the_sandbox(arena: Arena) -> None:
    """Ask how many signals may wait and how large queues may be, which the kernel counts by user.
    Control: a bwrap call has all that the user has."""
    kinds = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)
    whole = [resource.getrlimit(kind)[1] for kind in kinds]
    halves = [most if most == resource.RLIM_INFINITY else most // 2 for most in whole]
    inside = arena.ground.sandbox().run(python(BOUNDS)).stdout.head.splitlines()[0]
    assert list(map(int, inside.split())) == halves
    words = [os.fsdecode(arena.ground.bwrap), "--ro-bind", "/", "/", "--unshare-user", *python(BOUNDS)]
    naive = subprocess.run(words, capture_output=True, check=True)
    assert list(map(int, naive.stdout.splitlines()[0].split())) == whole


AT_ONCE = """
hidden = os.open("hidden", os.O_RDWR | os.O_CREAT); os.unlink("hidden")
call("fallocate", libc.fallocate(hidden, 1, ctypes.c_long(0), ctypes.c_long(1 << 26)))
call("io_setup", libc.syscall(%d, 1, ctypes.byref(ctypes.c_ulong())))
os.posix_fallocate(hidden, 0, 1 << 16)
print("TAKEN", os.fstat(hidden).st_blocks * 512)
"""


def test_b4_a_disk_and_what_the_machine_counts_are_not_taken_at_once(arena: Arena) -> None:
    """Take blocks of the disk without writing them, and requests that are counted for the whole machine.
    What programs ask of the C library still works. Control: without the filter both calls take what they want."""
    script = AT_ONCE % numbers_of(os.uname().machine)["io_setup"]
    tried = arena.attack(script)
    assert not tried.won
    assert f"TAKEN {1 << 16}" in tried.lines
    with arena.without_filter():
        assert set(arena.attack(script).won) == {"fallocate", "io_setup"}


EAT = """
import mmap
chunks = []
def take(kind):
    if kind == "heap": chunks.append(bytearray(b"x") * (8 << 20))
    if kind == "mmap":
        chunk = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, 8 << 20, 4096): chunk[at] = 1
        chunks.append(chunk)
    if kind == "stack":
        import threading
        threading.stack_size(64 << 20)
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
taken, kind = 0, %r
try:
    while taken < 400: take(kind); taken += 8
except (MemoryError, OSError, RuntimeError): pass
print("TAKEN", taken)
if taken >= 400: won(taken)
"""


@pytest.mark.parametrize("kind", ["heap", "mmap", "stack"])
def test_b2_memory_ends_at_its_bound(arena: Arena, kind: str) -> None:
    """Take 400 MiB under a bound of 200 MiB: by malloc, by mmap, by the stacks of threads.
    Control: without the bound the same script has them."""
    tried = arena.ground.sandbox().run(python(EAT % kind), limits=short(memory_bytes=200 * MIB))
    assert b"WON" not in tried.stdout.kept()
    assert not tried.ok or END.encode() in tried.stdout.kept()
    assert arena.attack(EAT % kind, options={"limits": short(memory_bytes=None)}).won


def test_b2_a_sandbox_is_the_first_to_go_when_the_host_runs_out_of_memory(arena: Arena) -> None:
    """Look at what the kernel's out-of-memory killer looks at.
    Control: the process that started the run has not been offered like this."""
    script = """
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if open(f"/proc/{pid}/oom_score_adj").read().strip() != "1000": won(pid)
    """
    assert not arena.attack(script).won
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "1000"


SIZES = """
budget = %d
for line in open("/proc/self/mountinfo"):
    words = line.split()
    point, kind = words[4].encode().decode("unicode_escape"), words[words.index("-") + 1]
    try: found = os.statvfs(point)
    except FileNotFoundError: continue  # another mount lies over it
    # What lies on the disk is bounded by watching it, the rest by its own size
    if found.f_flag & os.ST_RDONLY or kind not in ("tmpfs", "devtmpfs", "ramfs") or not os.path.isdir(point): continue
    if not os.access(point, os.W_OK): continue
    size = found.f_blocks * found.f_frsize
    print("SIZE", point, size)
    if not size or size > budget: won(point, size)
"""

FILL = """
# Where the home is the project, it lies on the disk
for place in {"/dev/shm", "/run", "/tmp", "/var/tmp", os.path.expanduser("~")} - {"/workspace"}:
    written = 0
    try:
        with open(place + "/fill", "wb") as file:
            while written < 256 << 20: written += file.write(bytes(1 << 20))
    except OSError: pass
    try: os.unlink(place + "/fill")
    except OSError: pass
    if written >= 256 << 20: won(place)
attempt("file in /dev", os.mkdir, "/dev/made")
attempt("file in /", os.mkdir, "/made")
"""


@pytest.mark.parametrize("view", chosen_views())
def test_b3_every_file_system_in_memory_has_a_size(arena: Arena, view: str) -> None:
    """Ask every writable mount in memory for its size, and fill each.
    Control: without `--size` they are as large as half of the memory."""
    limits = Limits(tmp_bytes=32 * MIB)
    tried = arena.attack(SIZES % (64 * MIB), view=view, limits=limits)
    assert not tried.won
    assert len([line for line in tried.lines if line.startswith("SIZE")]) >= 4
    assert not arena.attack(FILL, view=view, limits=limits).won
    with arena.options_changed(without_sizes):
        assert len(arena.attack(SIZES % (64 * MIB), view=view, limits=limits).won) >= 4
        assert "/dev/shm" in arena.attack(FILL, view=view, limits=limits).won


def without_sizes(options: list[bytes]) -> list[bytes]:
    sizes = {b"--size " + options[index + 1] for index, word in enumerate(options) if word == b"--size"}
    return drop(options, *sizes)


ENTRIES = """
made = 0
for place in %r:
    os.makedirs(place, exist_ok=True)
    for number in range(%d):
        os.close(os.open(f"{place}/{number}", os.O_CREAT | os.O_WRONLY)); made += 1
time.sleep(3)
"""


@pytest.mark.parametrize(
    ("places", "limit"),
    [
        (["/tmp/d"], "tmp_entries"),
        (["/dev/shm"], "tmp_entries"),
        (["/run/d"], "tmp_entries"),
        (["d"], "layer_entries"),
        (["PLAYGROUND"], "playground_entries"),
        pytest.param(["CACHE"], "layer_entries", marks=NO_CACHES),
    ],
)
def test_b4_entries_are_bounded_wherever_they_are_made(arena: Arena, places: list[str], limit: LimitName) -> None:
    """Make thousands of empty files: in the project, a cache, the playground, and in memory, where `--size` does not
    count them. Control: without the bound the same script ends by itself."""
    (arena.ground.home / ".cache/pip").mkdir(parents=True)
    names = {"PLAYGROUND": f"{arena.ground.home}/playground", "CACHE": f"{arena.ground.home}/.cache/pip/d"}
    script = ENTRIES % ([names.get(place, place) for place in places], 3000)
    result = arena.ground.sandbox().run(python(script), limits=short(layer_entries=1000))
    assert result.outcome == LimitReached(limit=limit, bound=1000)
    assert result.duration_s < 3
    assert not result.held
    assert (
        arena.ground.sandbox().run(python(script.replace("sleep(3)", "sleep(0)")), limits=short(layer_entries=None)).ok
    )


HIDE = {
    "plain": "target = open('big', 'wb')",
    "many": "target = None",
    "closed directory": "os.mkdir('d'); target = open('d/big', 'wb'); os.chmod('d', 0o300)",
    "no search": "os.mkdir('d'); target = open('d/big', 'wb'); os.chmod('d', 0o400)",
    "closed file": "target = open('big', 'wb'); os.chmod('big', 0)",
    "playground": "target = open(os.path.expanduser('~/playground/big'), 'wb')",
    "cache": "target = open(os.path.expanduser('~/.cache/pip/big'), 'wb')",
    "deep": "[(os.mkdir('d'), os.chdir('d')) for _ in range(600)]; target = open('big', 'wb')",
}

WRITE = """
{hide}
for number in range(96):
    if target is None:
        with open(f"part-{{number}}", "wb") as part: part.write(bytes(1 << 20))
    else: target.write(bytes(1 << 20)); target.flush()
time.sleep(4)
"""


@pytest.mark.parametrize("way", [pytest.param(way, marks=NO_CACHES if way == "cache" else ()) for way in HIDE])
def test_b4_bytes_are_bounded_however_they_are_hidden(arena: Arena, way: str) -> None:
    """Write 96 MiB under a bound of 16 MiB: in one file, in many, where the walk may not look, outside the layer.
    Control: without the bound the same script ends by itself."""
    (arena.ground.home / ".cache/pip").mkdir(parents=True)
    script = WRITE.format(hide=HIDE[way])
    result = arena.ground.sandbox().run(python(script), limits=short(layer_bytes=16 * MIB))
    limit: LimitName = "playground_bytes" if way == "playground" else "layer_bytes"
    assert result.outcome == LimitReached(limit=limit, bound=16 * MIB)
    assert result.duration_s < 4
    assert not result.held
    assert arena.ground.left_behind() == []
    unbounded = script.replace("sleep(4)", "sleep(0)")
    assert arena.ground.sandbox().run(python(unbounded), limits=short(layer_bytes=None)).ok


@pytest.mark.any_bwrap
def test_b4_deleted_files_are_stopped_at_the_reserve_of_the_disk(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write to a file that has no name any more: no walk finds it, so what is left of the disk is what counts.
    Control: with a reserve of nothing the same script ends by itself."""
    from unspill.runner import watch

    script = """
    hidden = open("hidden", "wb"); os.unlink("hidden")
    for _ in range(256): hidden.write(bytes(1 << 20)); hidden.flush()
    time.sleep(5)
    """
    found = os.statvfs(arena.ground.state)
    # As if the disk were nearly full: free are 32 MiB more than must be kept. Others may free some meanwhile
    monkeypatch.setattr(watch, "FREE_SPACE_KEPT", found.f_bavail * found.f_frsize - 32 * MIB)
    result = arena.ground.sandbox().run(python(script), limits=short())
    assert isinstance(result.outcome, LimitReached)
    assert result.outcome.limit == "free_space"
    assert result.duration_s < 5
    monkeypatch.setattr(watch, "FREE_SPACE_KEPT", 0)
    assert arena.ground.sandbox().run(python(script.replace("sleep(5)", "sleep(0)")), limits=short()).ok


@pytest.mark.any_bwrap
def test_b4_a_slow_walk_gives_no_time_to_fill_the_disk(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the walk take long, and write fast in the pause that follows it.
    Control: if only the clock decides when to walk again the same script writes all it wants."""
    from unspill.runner import watch

    script = """
    for number in range(5000): os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
    time.sleep(0.7)
    with open("big", "wb") as file:
        for _ in range(160): file.write(bytes(1 << 20)); file.flush(); time.sleep(0.005)
    time.sleep(0.6)
    print("WROTE ALL")
    """
    # A walk of five thousand files is short: let the pause be as long as after one of five hundred thousand
    monkeypatch.setattr(watch, "_SHARE", 2000)
    sandbox = arena.ground.sandbox()
    # What others delete on this disk meanwhile hides what the script adds to it, so more than once
    for _ in range(3):
        result = sandbox.run(python(script), limits=short(layer_bytes=80 * MIB))
        assert result.outcome == LimitReached(limit="layer_bytes", bound=80 * MIB)
        if b"WROTE ALL" not in result.stdout.kept():
            break
    assert b"WROTE ALL" not in result.stdout.kept()
    monkeypatch.setattr(watch.UsageWatch, "_is_time_to_walk", lambda self, _grown: time.monotonic() >= self._next_walk)
    assert b"WROTE ALL" in sandbox.run(python(script), limits=short(layer_bytes=80 * MIB)).stdout.kept()


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.any_bwrap
@pytest.mark.timeout(900)
def test_b5_a_flood_of_output_costs_bounded_memory(arena: Arena, full: bool) -> None:
    """Print more than a gibibyte (ten with --full) as fast as a pipe takes it.
    Control: the bytes did arrive, and a caller who keeps them all grows by as much."""
    total = (10_000 if full else 1_100) * MIB
    highest, received, stop = [resident_bytes()], [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.01):
            highest.append(resident_bytes())

    def count(event: object) -> None:
        if isinstance(event, OutputChunk):
            received[0] += len(event.chunk)

    thread = threading.Thread(target=sample)
    thread.start()
    limits = Limits(wall_s=600 if full else 50, output_bytes=64 << 30, kept_bytes=MIB, layer_bytes=None)
    sandbox = arena.ground.sandbox()
    try:
        before = resident_bytes()
        result = sandbox.run(f"yes | head -c {total}", limits=limits.replace(output_bytes=total), on_event=count)
    finally:
        stop.set()
        thread.join()
    assert result.ok
    assert received[0] == result.stdout.total == total
    assert result.stdout.left_out > 0
    assert len(result.stdout.kept()) <= 2 * MIB
    growth = max(highest) - before
    assert growth < 64 * MIB
    record_figure("output flood: growth of our process", f"{growth / MIB:.0f} MiB", f"{total // MIB} MiB printed")
    kept: list[bytes] = []
    sandbox.run("yes | head -c 134217728", on_event=lambda event: kept.append(getattr(event, "chunk", b"")))
    assert resident_bytes() - before > 96 * MIB


@pytest.mark.any_bwrap
def test_b5_output_beyond_its_bound_ends_the_run(arena: Arena) -> None:
    """Print for ever, to both streams, and hold them open.
    Control: that a larger flood passes under a larger bound is shown above."""
    begun = time.monotonic()
    result = arena.ground.sandbox().run("yes >&2 & yes", limits=short(output_bytes=8 * MIB))
    assert result.outcome == LimitReached(limit="output", bound=8 * MIB)
    assert time.monotonic() - begun < 10


@pytest.mark.any_bwrap
def test_b4_long_commands_do_not_fill_the_state_directory(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give commands of a megabyte each, as lists of arguments and as texts, and one in a directory of that length.
    Control: with a bound that is higher than they are long, the database grows by all of them."""
    sandbox = arena.ground.sandbox(after="discard")
    database = arena.ground.state / "store.db"

    def grown() -> int:
        before = size_of(database)
        assert sandbox.run(["true", *["x" * 100_000] * 10]).ok
        assert sandbox.run(f"true {'x' * MIB}").ok
        return size_of(database) - before

    assert grown() < MIB // 2
    with pytest.raises(UsageError, match="longer than any path"):
        sandbox.run("true", working_dir="/" + "x/" * MIB)
    monkeypatch.setattr("unspill.store.runs.KEPT_COMMAND_BYTES", 4 * MIB)
    assert grown() > 2 * MIB - MIB // 2


def size_of(database: Path) -> int:
    """Return the size of a database with what is not yet written back to it."""
    return sum(path.stat().st_size for path in database.parent.glob(database.name + "*"))


def shared_bytes() -> int:
    """Return what the machine has in memory that no process has for itself alone."""
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:")]
    return int(line.split()[1]) * 1024


def settled_bytes() -> int:
    """Return the same once the kernel has taken apart what earlier runs had."""
    found, deadline = shared_bytes(), time.monotonic() + 5
    while time.monotonic() < deadline:
        time.sleep(0.3)
        last, found = found, shared_bytes()
        if last - found < MIB:
            break
    return found


SHARED = {
    "file in memory": """
held = [os.memfd_create("x") for _ in range(4)]
for fd in held:
    for _ in range(128): os.write(fd, bytes(1 << 20))
""",
    "shared mapping": """
import mmap
held = mmap.mmap(-1, 512 << 20)
for at in range(0, 512 << 20, 4096): held[at] = 1
""",
    "System V": """
libc.shmat.restype = ctypes.c_void_p
key = libc.shmget(0, ctypes.c_size_t(512 << 20), 0o600)
ctypes.memset(libc.shmat(key, None, 0), 1, 512 << 20)
""",
    "tmpfs": """
for place in ("/tmp", "/var/tmp"):
    with open(place + "/x", "wb") as file:
        for _ in range(256): file.write(bytes(1 << 20))
""",
}


@pytest.mark.parametrize("way", SHARED)
def test_b2_memory_that_no_process_has_for_itself_is_stopped_at_the_reserve_of_the_host(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Take 512 MiB that no rlimit counts: in files in memory, shared mappings, System V segments, tmpfs.
    Control: with a reserve of nothing the same script ends by itself."""
    from unspill.runner import watch

    script = SHARED[way] + "time.sleep(3)\n"
    limits = short(memory_bytes=200 * MIB)
    before = settled_bytes()
    # As if the machine had no more than this; what others take and free meanwhile is not counted
    monkeypatch.setattr(watch, "free_memory", lambda: 640 * MIB - (shared_bytes() - before))
    result = arena.ground.sandbox().run(python(script), limits=limits)
    assert isinstance(result.outcome, LimitReached)
    assert result.outcome.limit == "free_memory"
    assert result.duration_s < 3
    monkeypatch.setattr(watch, "FREE_MEMORY_KEPT", 0)
    assert arena.ground.sandbox().run(python(script.replace("sleep(3)", "sleep(0)")), limits=limits).ok
