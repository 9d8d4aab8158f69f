# SPDX-License-Identifier: Apache-2.0
"""Writers that go on for ever inside a live sandbox, for tests that take checkpoints under them. Told by their name."""

MAPPER = """
import mmap
with open("mapped", "w+b") as file:
    file.truncate(4096)
    page = mmap.mmap(file.fileno(), 4096)
print("up", flush=True)
number = 0
while True:
    number += 1
    page[:8] = number.to_bytes(8, "little")
"""

# Maps, writes, and lets go of it again: nothing is mapped while it pauses
REMAPPER = """
import mmap, time
with open("remapped", "w+b") as file:
    file.truncate(4096)
print("up", flush=True)
number = 0
while True:
    with open("remapped", "r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
        for _ in range(2000):
            number += 1
            page[:8] = number.to_bytes(8, "little")
    time.sleep(0.002)
"""

MOVER = """
import os, itertools
os.mkdir("dir-0")
open("dir-0/child", "w").write("child")
print("up", flush=True)
for number in itertools.count(1):
    os.rename(f"dir-{number - 1}", f"dir-{number}")
    with open(f"made-{number % 7}", "w") as file:
        file.write(str(number))
    if number % 3 == 0:
        os.unlink(f"made-{number % 7}")
    os.chmod(f"dir-{number}", 0o700 + number % 8)
"""

# Each lives for a moment, writes, and leaves the next one
CHAIN = """
import os, time
print("up", flush=True)
if os.fork():
    time.sleep(1000)
number = 0
while True:
    number += 1
    with open(f"link-{number % 5}", "w") as file:
        file.write(str(number))
    time.sleep(0.001)
    if os.fork():
        os._exit(0)
"""

VFORKS = """
import os
print("up", flush=True)
number = 0
while True:
    number += 1
    out = (os.POSIX_SPAWN_OPEN, 1, f"spawned-{number % 5}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.waitpid(os.posix_spawn("/bin/echo", ["echo", str(number)], os.environ, file_actions=[out]), 0)
"""

# A tracer with a child that writes, as strace has one
TRACER = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
child = os.fork()
if not child:
    libc.ptrace(0, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    number = 0
    while True:
        number += 1
        with open("traced", "w") as file:
            file.write(str(number))
print("up", flush=True)
while True:
    _pid, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        break
    number = os.WSTOPSIG(status)
    libc.ptrace(24, child, None, ctypes.c_void_p(0 if number in (5, 19) else number))
"""

# Wakes itself whenever it was stopped by a signal. Its timers are set again all the time: a stop drops what is about to
# come, and a timer with an interval is set again only when its signal has come
WAKER = """
import signal
signal.signal(signal.SIGCONT, lambda *_: None)
libc = __import__("ctypes").CDLL(None)
import ctypes
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("numbers", ctypes.c_int * 2), ("pad", ctypes.c_char * 48)]
timers = [ctypes.c_void_p() for _ in range(6)]
for timer in timers:
    assert libc.timer_create(1, ctypes.byref(Event(None, (18, 0))), ctypes.byref(timer)) == 0
print("up", flush=True)
number = 0
while True:
    number += 1
    for power, timer in enumerate(timers):
        assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 300000 << power), None) == 0
    with open("woken", "w") as file:
        file.write(str(number))
"""

# Waits for the child of a vfork, which a timer kills whether it is stopped or not. Both have memory of their own
ORPHANER = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("numbers", ctypes.c_int * 2), ("pad", ctypes.c_char * 48)]
print("up", flush=True)
number = 0
while True:
    child = libc.syscall(clone, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0)
    if not child:
        timer = ctypes.c_void_p()
        assert libc.timer_create(1, ctypes.byref(Event(None, (9, 0))), ctypes.byref(timer)) == 0
        assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 60000000), None) == 0
        while True:
            signal.pause()
    number += 1
    with open("orphaned", "w") as file:
        file.write(str(number))
    # Not before: whoever has it stopped has to let go of it first
    os.waitpid(child, 0)
"""

WRITERS = {
    "mapper": MAPPER,
    "remapper": REMAPPER,
    "mover": MOVER,
    "chain": CHAIN,
    "vforks": VFORKS,
    "tracer": TRACER,
    "waker": WAKER,
    "orphaner": ORPHANER,
}
