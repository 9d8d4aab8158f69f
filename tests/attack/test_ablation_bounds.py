# SPDX-License-Identifier: Apache-2.0
"""The bounds of a run, each not set or not looked at once: it can be exceeded then.

Bounds that the spawner sets are left out in one that is forked from this process.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.attack.ablation_flags import given_to_bwrap
from tests.attack.arena import Arena, python
from tests.attack.starting import forked_spawner, started
from tests.support import short
from unspill import LimitReached, OutputChunk, TimedOut
from unspill.host.libc import write_setting
from unspill.runner.watch import rlimits

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

MIB: Final = 1 << 20
BOUNDS: Final = short(open_files=64, file_bytes=MIB, processes=32, memory_bytes=256 * MIB)
EXCEED: Final = {
    resource.RLIMIT_CORE: "if __import__('resource').getrlimit(4)[1] != 0: won('may leave core files')",
    resource.RLIMIT_FSIZE: f"attempt('a large file', os.truncate, os.open('big', os.O_CREAT | os.O_RDWR), {2 * MIB})",
    resource.RLIMIT_NOFILE: "attempt('many files', lambda: [os.open('/dev/null', os.O_RDONLY) for _ in range(80)])",
    resource.RLIMIT_NPROC: """
for number in range(40):
    try: child = os.fork()
    except OSError: break
    if not child: time.sleep(5); os._exit(0)
else: won("many processes")
""",
    resource.RLIMIT_DATA: f"""
import mmap
try: mmap.mmap(-1, {300 * MIB}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
except OSError: pass
else: won("much memory")
""",
}


@pytest.mark.parametrize("kind", [kind for kind, _ in rlimits(BOUNDS, has_group=False)])
def test_a_limit_that_is_not_set_can_be_exceeded(arena: Arena, kind: int) -> None:
    """Each of the limits that a held child gets."""
    options = {"limits": BOUNDS}
    assert not arena.attack(EXCEED[kind], options=options)

    def without(*arguments: Any, **named: Any) -> tuple[tuple[int, int], ...]:
        return tuple(one for one in rlimits(*arguments, **named) if one[0] != kind)

    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.perform.rlimits", without)
        assert arena.attack(EXCEED[kind], options=options)


def test_a_sandbox_that_is_not_offered_to_the_killer_of_processes_is_like_any_other(arena: Arena) -> None:
    """The spawner sets the score that the kernel looks at when memory runs out."""
    script = 'if open("/proc/self/oom_score_adj").read().strip() != "1000": won("is not the first to go")'

    def but_the_score(path: bytes, content: bytes) -> None:
        if not path.endswith(b"oom_score_adj"):
            write_setting(path, content)

    assert not arena.attack(script)
    with forked_spawner(arena, {"unspill.host.spawner.write_setting": but_the_score}):
        assert arena.attack(script)


def test_a_command_that_is_not_held_back_starts_before_its_limits_are_set(arena: Arena) -> None:
    """bwrap with the options of a plan and a pipe to wait for, to which nobody writes."""
    given = given_to_bwrap(arena)
    read, write = os.pipe()

    def begins(*words: bytes) -> bool:
        options, command = [*given.options, *words], ["echo", "began"]
        pipe = {"stdout": subprocess.PIPE, "start_new_session": True}
        with started(given, arena.ground.bwrap, options, command, pass_fds=[read], **pipe) as run:
            assert run.stdout is not None
            told = bool(select.select([run.stdout], [], [], 0.5)[0]) and run.stdout.readline() == b"began\n"
            if not told:
                # The group, with the child that waits: it does not notice that its parent is gone
                os.killpg(run.pid, signal.SIGKILL)
            return told

    try:
        assert not begins(b"--block-fd", b"%d" % read)
        assert begins()
    finally:
        os.close(read)
        os.close(write)


WATCHERS: Final = """
while libc.inotify_init() >= 0: pass
print("held", flush=True)
time.sleep(0.3)
"""


def test_what_the_kernel_counts_by_user_is_taken_whole_where_no_half_is_kept_back(arena: Arena) -> None:
    """Take every inotify instance, and see whether the person can still have one."""

    def is_one_left() -> bool:
        seen: list[bool] = []

        def look(event: object) -> None:
            if isinstance(event, OutputChunk) and b"held" in event.chunk:
                fd = int(ctypes.CDLL(None).inotify_init())
                seen.append(fd >= 0)
                if fd >= 0:
                    os.close(fd)

        assert arena.ground.sandbox().run(python(WATCHERS), on_event=look).ok
        return seen[0]

    with forked_spawner(arena, {}):
        assert is_one_left()
    with forked_spawner(arena, {"unspill.host.libc._COUNTED_BY_USER": ()}):
        assert not is_one_left()


def test_a_run_whose_clock_nobody_looks_at_takes_as_long_as_it_likes(arena: Arena) -> None:
    """A command that lasts longer than it may."""
    sandbox = arena.ground.sandbox()
    assert sandbox.run(["sleep", "0.6"], timeout=0.2).outcome == TimedOut(after_s=0.2)
    with arena.patch.context() as patch:
        patch.setattr("unspill.runner.watch.Watch._check_clock", lambda _watch: None)
        assert sandbox.run(["sleep", "0.6"], timeout=0.2).ok


def test_a_layer_that_nobody_measures_grows_as_it_likes(arena: Arena) -> None:
    """A command that writes more than it may. It is measured while it runs and once more when it is over; each of these
    stops it alone, and nothing does without both."""
    script = "head -c 8M /dev/zero > big; sleep 0.6"
    limits = short(layer_bytes=MIB)
    sandbox = arena.ground.sandbox()
    assert sandbox.run(script, limits=limits).outcome == LimitReached(limit="layer_bytes", bound=MIB)
    watching, last = "unspill.runner.watch.find_excess", "unspill.sandbox.scan.find_excess"
    for looks in ((watching,), (last,), (watching, last)):
        with arena.patch.context() as patch:
            for look in looks:
                patch.setattr(look, lambda *_, **__: None)
            assert sandbox.run(script, limits=limits).ok is (looks == (watching, last))
