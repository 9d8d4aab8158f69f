# SPDX-License-Identifier: Apache-2.0
"""B1 to B3, B5, B6: taking more than the limits say, and living longer."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena, drop, processes_with, python, wait_until
from tests.attack.techniques.record import Defence, Listed
from tests.support import is_rootfs_chosen, short
from unspill import LimitReached, Limits, Signalled
from unspill.runner import perform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIST: Final = Listed()
MIB: Final = 1 << 20

PROCESSES: Final = """
children = []
try:
    while len(children) < 150:
        child = os.fork()
        if not child: time.sleep(30); os._exit(0)
        children.append(child)
except OSError as error: lost(error.strerror)
print("TAKEN", len(children), flush=True)
"""
THREADS: Final = """
import threading
threading.stack_size(64 << 10)
taken = 0
try:
    while taken < 150: threading.Thread(target=time.sleep, args=(30,), daemon=True).start(); taken += 1
except RuntimeError as error: lost(error)
print("TAKEN", taken, flush=True)
os.write(1, b"the script came to its end\\n"); os._exit(0)
"""


def takes(script: str, limits: Limits) -> Callable[[Arena], object]:
    """Tell whether a script gets more than a hundred of something."""

    def attack(arena: Arena) -> object:
        result = arena.ground.sandbox().run(python(script), limits=limits)
        taken = [int(line.split()[1]) for line in result.stdout.kept().splitlines() if line.startswith(b"TAKEN")]
        # A bound of memory may also end the whole run
        assert taken or isinstance(result.outcome, LimitReached | Signalled), result
        return any(number > 100 for number in taken)

    return attack


@contextmanager
def without_group(arena: Arena) -> Iterator[None]:
    with arena.patch.context() as patch:
        patch.setattr(perform, "make_group_of", lambda *_arguments: None)
        yield


def where_there_is_no_group(attack: Callable[[Arena], object]) -> Callable[[Arena], object]:
    def alone(arena: Arena) -> object:
        with without_group(arena):
            return attack(arena)

    return alone


for _what, _script in {"processes": PROCESSES, "threads": THREADS}.items():
    LIST.add_pair(
        "B1",
        f"Start {_what} without end",
        takes(_script, short(processes=64)),
        "with a higher bound",
        takes(_script, short(processes=400)),
    )
    LIST.add_pair(
        "B1",
        f"Start {_what} without end on a machine where there is no control group",
        where_there_is_no_group(takes(_script, short(processes=64))),
        "with a higher bound",
        where_there_is_no_group(takes(_script, short(processes=400))),
        as_root="succeeds",
        why_root="the kernel does not count the processes of uid 0",
    )

MEMORY: Final = {
    "by allocating it": "chunks.append(bytearray(b'x') * (8 << 20))",
    "by mapping it": "chunk = mmap.mmap(-1, 8 << 20, flags=34); chunk.write(bytes(8 << 20)); chunks.append(chunk)",
}
EAT: Final = """
import mmap
chunks, taken = [], 0
try:
    while taken < 400: {take}; taken += 8
except (MemoryError, OSError): pass
print("TAKEN", 1000 if taken >= 400 else 0)
"""
for _how, _take in MEMORY.items():
    LIST.add_pair(
        "B2",
        f"Take twice the memory of a run {_how}",
        takes(EAT.format(take=_take), short(memory_bytes=200 * MIB)),
        "without the bound",
        takes(EAT.format(take=_take), short(memory_bytes=None)),
    )


def in_home(arena: Arena) -> str:
    """Return where programs write to that write to a home directory: a rootfs has none in memory but for caches."""
    return "/tmp/.cache" if is_rootfs_chosen() else os.fspath(arena.ground.home)


def fills(place: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        path = place or in_home(arena)
        script = f"""
os.makedirs({path!r}, exist_ok=True)
written = 0
try:
    with open({path!r} + "/fill", "wb") as file:
        while written < 96 << 20: written += file.write(bytes(1 << 20))
except OSError as error: lost(error.strerror)
else: won(written)
"""
        return arena.attack(script, limits=Limits(tmp_bytes=32 * MIB)).won

    return attack


def without_sizes(arena: Arena) -> Any:
    def change(options: list[bytes]) -> list[bytes]:
        sizes = {b"--size " + options[index + 1] for index, word in enumerate(options) if word == b"--size"}
        return drop(options, *sizes)

    return arena.options_changed(change)


SIZES: Final = Defence("`--size`", without_sizes)
for _place, _name in {
    "/tmp": "/tmp",
    "/var/tmp": "/var/tmp",
    "/dev/shm": "/dev/shm",
    "/run": "/run",
    "": "the home",
}.items():
    LIST.add("B3", f"Fill {_name}, which lies in memory", fills(_place), SIZES)


def makes(path: str) -> Callable[[Arena], object]:
    return lambda arena: arena.attack(f"attempt('make', os.mkdir, {path!r})").won


def writable(dest: bytes) -> Defence:
    removal = lambda arena: arena.without(b"--remount-ro " + dest)  # noqa: E731
    return Defence(f"`--remount-ro {dest.decode()}`", removal)


LIST.add("B3", "Write to /dev, which lies in memory and has no bound", makes("/dev/made"), writable(b"/dev"))
LIST.add("B3", "Write to the root directory, which lies in memory and has no bound", makes("/made"), writable(b"/"))

FLOODS: Final = {
    "its standard output": "yes",
    "its standard error": "yes >&2",
    "both at once": "yes >&2 & yes",
}


def floods(command: str, limits: Limits) -> Callable[[Arena], object]:
    """Tell whether more gets out than both streams may have together."""

    def attack(arena: Arena) -> object:
        count = [0]

        def measure(event: object) -> None:
            count[0] += len(getattr(event, "chunk", b""))

        cut = f"({command}) 2>&1 | head -c {32 * MIB}" if ">&2" not in command else f"timeout 1 sh -c '{command}'"
        arena.ground.sandbox().run(cut, limits=limits, on_event=measure)
        return count[0] > 12 * MIB

    return attack


for _what, _command in FLOODS.items():
    LIST.add_pair(
        "B5",
        f"Flood the caller with {_what}",
        floods(_command, short(output_bytes=4 * MIB)),
        "with a higher bound",
        floods(_command, short(output_bytes=256 * MIB)),
    )

STUBBORN: Final = {
    "deaf to signals": "trap '' TERM INT HUP QUIT PIPE; sh -c 'trap \"\" TERM; sleep 30' {mark}; sleep 30",
    "as a daemon": "setsid sh -c 'while :; do sleep 1; done' {mark} </dev/null >/dev/null 2>&1 & sleep 30",
    "as the child of a child that has ended": "(setsid sh -c 'setsid sh -c \"sleep 30\" {mark} & exit' &) ; sleep 30",
    "while it holds the output": "sh -c 'sleep 30' {mark} & exec sleep 30 >/dev/null",
    "stopped": "sh -c 'kill -STOP $$; sleep 30' {mark} & sleep 30",
}


def survives(script: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        mark = f"unspill-stubborn-{os.urandom(4).hex()}"
        arena.ground.sandbox().run(script.format(mark=mark), timeout=0.3)
        return processes_with(mark)

    return attack


def survives_a_kill(script: str) -> Callable[[Arena], object]:
    """Kill a bwrap that has no pid namespace and does not tell its children."""

    def control(arena: Arena) -> object:
        mark = f"unspill-stubborn-{os.urandom(4).hex()}"
        words = [os.fsdecode(arena.ground.bwrap), "--ro-bind", "/", "/", "--dev", "/dev"]
        command = [*words, "sh", "-c", script.format(mark=mark)]
        bwrap = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            assert wait_until(lambda: processes_with(mark))
            time.sleep(0.1)
            bwrap.kill()
            bwrap.wait()
            return processes_with(mark)
        finally:
            kill_session(bwrap.pid)
            for pid in processes_with(mark):
                os.kill(pid, 9)

    return control


def kill_session(pid: int) -> None:
    try:
        os.killpg(pid, 9)
    except ProcessLookupError:
        return


for _how, _script in STUBBORN.items():
    LIST.add_pair(
        "B6",
        f"Live on when the time is over: {_how}",
        survives(_script),
        "by a bwrap call without a pid namespace that is killed",
        survives_a_kill(_script),
    )
