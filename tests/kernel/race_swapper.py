# SPDX-License-Identifier: Apache-2.0
"""Another process that exchanges a directory and a link to somewhere else, as often as it can.

Run as a program it swaps while `go` exists, and puts things back in order before it answers that it has stopped.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

_AT_FDCWD = -100
_EXCHANGE = 2
_BATCH = 16


def serve(directory: bytes, link: bytes) -> None:
    """Swap from each line of input to the next; answer each second line with the number of swaps in between."""
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    exchange.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    os.set_blocking(0, False)
    while (word := _read(wait=True)) == b"go\n":
        swaps = 0
        print("going", flush=True)
        while (word := _read(wait=False)) is None:
            # An even number, so that everything is where it belongs whenever the next word is looked for
            for _ in range(_BATCH):
                assert exchange(_AT_FDCWD, directory, _AT_FDCWD, link, _EXCHANGE) == 0, ctypes.get_errno()
            swaps += _BATCH
        print(swaps, flush=True)
        if word != b"stop\n":
            break


def _read(*, wait: bool) -> bytes | None:
    os.set_blocking(0, wait)
    try:
        return os.read(0, 100)
    except BlockingIOError:
        return None


class Swapper:
    """The process: swaps go on between `start` and `stop`."""

    def __init__(self, directory: Path, link: Path) -> None:
        command = [sys.executable, "-S", __file__, os.fspath(directory), os.fspath(link)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.swaps = 0

    def start(self) -> None:
        """Let it swap; it has begun when this returns."""
        assert self._say(b"go\n") == b"going\n"

    def stop(self) -> None:
        """Stop it when everything is where it belongs."""
        self.swaps += int(self._say(b"stop\n"))

    def _say(self, word: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word)
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._process.communicate(timeout=20)


if __name__ == "__main__":
    serve(os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2]))
