# SPDX-License-Identifier: Apache-2.0
"""A person at a terminal of their own, who starts a program: what did the program leave for their shell to read?"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tests.attack.arena import END

if TYPE_CHECKING:
    from pathlib import Path

PERSON: Final = """
import fcntl, os, subprocess, sys, termios, tty
master, terminal = os.openpty()
os.setsid()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
tty.setraw(terminal)
with open(sys.argv[1], "wb") as out:
    subprocess.run(sys.argv[2:], stdin=terminal, stdout=out, stderr=terminal, timeout=30, close_fds=False)
os.set_blocking(terminal, False)
try: print("typed", os.read(terminal, 100).decode())
except BlockingIOError: print("typed nothing")
"""


def typed_at(top: Path, *words: str, pass_fds: tuple[int, ...] = ()) -> str:
    """Return what a program that a person started typed on their terminal; its script must have come to its end."""
    log = top / "printed"
    command = [sys.executable, "-I", "-c", PERSON, str(log), *words]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50, pass_fds=pass_fds)
    assert END in log.read_text(), told
    return told.stdout.strip()
