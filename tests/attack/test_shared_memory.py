# SPDX-License-Identifier: Apache-2.0
"""Memory that no process has for itself alone, and so no rlimit counts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.attack.arena import Arena, python
from tests.support import short
from unspill import LimitReached

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

MIB = 1 << 20


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
