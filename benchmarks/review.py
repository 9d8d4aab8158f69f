# SPDX-License-Identifier: Apache-2.0
"""What the review screen costs on a real terminal: its first picture, its longest pause, and its memory.

The first picture of many held changes against `unspill changes`. Then somebody scrolls and picks at once, while what is
held or flagged is still being found out: the pause is from a key to what it changes on the screen.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from pathlib import Path

from measuring import (
    Case,
    Options,
    Turns,
    compiled_environ,
    fast,
    parse_options,
    report,
    run_program,
    scratch,
    timed,
    unspill_program,
)

from unspill import Limits, Policy, Sandbox

PICTURE_BAR = 3.0
PAUSE_MS = 100.0
MEMORY_BAR = 3.0
FILES_PER_DIRECTORY = 1_000
ROWS, COLUMNS = 40, 120
POLICY = Policy(limits=Limits(layer_entries=None, layer_bytes=None))
# Down, a screen down, pick, to the end, to the start, pick everything: all of them change something on the screen
KEYS = b"jjjj" + b"\x06\x06\x06" + b"  " + b"Gg" + b"\x06 \x06 " + b"Gkkk" + b"AA"
_PATIENCE_S = 120.0
_QUIET_S = 0.05
_MAKE = """
import os, sys
for d in range(int(sys.argv[1]) // {0}):
    for f in range({0}):
        with open(f"d{{d}}/f{{f:04}}.txt", "w") as file:
            file.write("new\\n")
"""


def main() -> None:
    options = parse_options(__doc__ or "")
    count = options.pick(10_000, 20_000, 100_000)
    with scratch() as directory:
        project = directory / "project"
        for number in range(count // FILES_PER_DIRECTORY):
            (project / f"d{number}").mkdir(parents=True)
        with Sandbox(project, policy=POLICY) as sandbox:
            script = _MAKE.format(FILES_PER_DIRECTORY)
            assert sandbox.run(["python3", "-c", script, str(count)], after="hold").ok
        cases = measure(project, count, compiled_environ(directory), options)
    report("review", cases, options, [f"{count} held changes; the keys are pressed while the rest is still read"])


def measure(project: Path, count: int, environ: dict[str, str], options: Options) -> list[Case]:
    program = unspill_program()
    pauses: list[list[float]] = []
    memory: list[float] = []
    pictures: list[float] = []

    def show() -> None:
        with Screen([program, "review", "--project", str(project)], environ) as screen:
            pictures.append(timed(lambda: screen.wait_for(f"{count} held".encode())))
            pauses.append([screen.press(key) for key in KEYS])
            memory.append(screen.peak_kib())

    def changes() -> None:
        run_program([program, "changes", "--project", str(project)], environ, is_quiet=True)

    turns = Turns(seconds=options.pick(8, 25, 90), rounds=options.pick(3, 4, 5))
    turns.run({"changes": changes, "review": show})
    # The first has compiled what is loaded. Other jobs only ever slow a key down, and hardly the same one each time
    longest = [min(times) for times in zip(*pauses[1:], strict=True)]
    pictures = pictures[1:]
    own = peak_of([program, "changes", "--project", str(project)], environ)
    words = f"first picture of {count} changes, against `unspill changes`"
    return [
        Case(words, fast(pictures), "ms", turns.fast("changes"), PICTURE_BAR, samples=pictures),
        Case("longest pause after a key, against 100 ms", max(longest), "ms", PAUSE_MS, 1.0, samples=longest),
        Case("peak memory, against `unspill changes`", max(memory), "KiB", own, MEMORY_BAR, samples=memory),
    ]


class Screen:
    """A program on a terminal, and somebody who presses keys there."""

    def __init__(self, words: list[str], environ: dict[str, str]) -> None:
        self._pid, self._fd = pty.fork()
        if not self._pid:
            try:
                os.execve(words[0], words, {**environ, "TERM": "xterm-256color"})
            finally:
                os._exit(127)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.kill(self._pid, signal.SIGWINCH)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_details: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._fd)

    def wait_for(self, text: bytes) -> None:
        """Read until something was drawn."""
        drawn = b""
        while text not in drawn:
            drawn = drawn[-4096:] + self._read(_PATIENCE_S)

    def press(self, key: int) -> float:
        """Press a key when the screen rests; return the milliseconds until it changes something."""
        while select.select([self._fd], [], [], _QUIET_S)[0]:
            self._read(0)
        os.write(self._fd, bytes([key]))
        begun = time.perf_counter()
        self._read(_PATIENCE_S)
        return (time.perf_counter() - begun) * 1000

    def peak_kib(self) -> float:
        """Return the most memory that the program ever had."""
        return _peak_kib(self._pid)

    def _read(self, patience_s: float) -> bytes:
        assert select.select([self._fd], [], [], patience_s)[0], "nothing more is drawn"
        return os.read(self._fd, 1 << 16)


def peak_of(words: list[str], environ: dict[str, str]) -> float:
    """Return the most memory that a program has until it ends."""
    nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(words[0], words, environ, file_actions=nowhere)
    _pid, status, used = os.wait4(pid, 0)
    assert status == 0, status
    return float(used.ru_maxrss)


def _peak_kib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
