# SPDX-License-Identifier: Apache-2.0
"""System calls by every number and entry, and ioctl requests: what the filter alone refuses."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import subprocess
import sys
from contextlib import contextmanager
from errno import EBADF, ENOTTY
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from scripts.seccomp.rules import IOCTLS, Refuse, RefuseIf, classify, numbers_of, verdicts
from tests.attack.ablation_rules import ABOVE_32_BITS, ENOSYS, FAMILIES, X32_BIT, answer_of
from tests.attack.ablation_rules import INSIDE as TELLING_INSIDE
from tests.attack.arena import Arena, python
from tests.attack.entries_inside import PASSED
from tests.attack.entries_outside import passing
from tests.attack.requests import EXT4_IOC_ALLOC_DA_BLKS, EXT4_IOC_MOVE_EXT, REQUESTS
from tests.figures import record_figure
from tests.kernel.seccomp_box import FOREIGN, INSIDE, MACHINE
from tests.support import chosen_views, directory_on, run_cli
from unspill.host.bwrap import build_filter
from unspill.layers.trees import remove_tree
from unspill.runner.launcher import stop_launchers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.attack.ablation_rules import Call
    from unspill.model.policy import Profile

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

NUMBERS: Final = numbers_of(MACHINE)
SOCKET_FAMILIES: Final = {f"socket {number}" for number in range(46)}
ORDINARY: Final = {"socket 1", "socket 2", "socket 10", "socket 16"}
TERMINAL: Final = {"TIOCSTI", "TIOCSTI with a bit above", "TIOCSETD"}
DANGEROUS: Final = set(
    "io_uring_setup userfaultfd memfd_secret perf_event_open name_to_handle_at fanotify_init kcmp set_mempolicy mbind "
    "keyctl open_tree".split()
)


def achieved(arena: Arena, **settings: Any) -> set[str]:
    """Make every attempt of the filter's own tests inside a sandbox and return those that worked."""
    words = [f"{name}={number}" for name, number in NUMBERS.items()]
    command = ["/usr/bin/python3", "-I", "-c", INSIDE.read_text(), "attempts", *words]
    result = arena.ground.sandbox(**settings).run(command)
    assert result.ok, result
    told: dict[str, str] = json.loads(result.stdout.head + result.stdout.tail)
    return {name for name, outcome in told.items() if outcome == "done"}


@contextmanager
def key_of_the_person(name: bytes) -> Iterator[None]:
    """Have a session keyring with one key in it, which every process started from here on inherits.

    The one afterwards leads to the user's own keyring, as that of a login does: other tests look for keys there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    join, link, session, users = 1, 8, -3, -4
    stop_launchers()
    assert libc.syscall(NUMBERS["keyctl"], join, None) > 0
    assert libc.syscall(NUMBERS["add_key"], b"user", name, b"canary", 6, session) > 0
    yield
    stop_launchers()
    assert libc.syscall(NUMBERS["keyctl"], join, None) > 0
    assert libc.syscall(NUMBERS["keyctl"], link, users, session) == 0


KEYS: Final = """
n, name = %r, %r
SEARCH, READ, SESSION = 10, 11, -3
key = call("search", libc.syscall(n["keyctl"], SEARCH, SESSION, b"user", name, 0))
if key > 0:
    space = ctypes.create_string_buffer(64)
    length = libc.syscall(n["keyctl"], READ, key, space, 64)
    if length > 0: won("read", space.raw[:length].decode())
call("request", libc.syscall(n["request_key"], b"user", name, None, 0))
call("find what was left", libc.syscall(n["keyctl"], SEARCH, SESSION, b"user", name + b"-left", 0))
call("leave", libc.syscall(n["add_key"], b"user", name + b"-left", b"by the command", 14, SESSION))
"""


def test_a13_no_key_of_the_person_is_read_and_none_is_left(arena: Arena) -> None:
    """A key lies in the session keyring of the person: search it, read it, request it, leave one for the next run.
    Control: without the filter the command reads the key, and the next one finds what it left."""
    name = b"unspill-canary"
    script = KEYS % (NUMBERS, name)
    with key_of_the_person(name):
        assert not arena.attack(script).won
        with arena.without_filter():
            assert set(arena.attack(script).won) == {"search", "read canary", "request", "leave"}
            assert "find what was left" in arena.attack(script).won
        assert not arena.attack(script).won


def test_a16_no_family_of_sockets_opens_but_four(arena: Arena, engine: str) -> None:
    """Open sockets of all families, 0 to 45, of every type: vsock knows no network namespace.
    Control: without the filter a vsock opens."""
    assert achieved(arena) & SOCKET_FAMILIES == ORDINARY
    with arena.without_filter():
        assert achieved(arena) & SOCKET_FAMILIES > ORDINARY


def test_a17_nothing_can_be_typed_on_a_terminal_of_the_commands_own(arena: Arena) -> None:
    """Make a terminal inside, take it as the controlling one, and type: with TIOCSTI, with a bit set above the 32 that
    the kernel reads (CVE-2019-10063), load a line discipline. Control: without the filter all of them work."""
    assert not achieved(arena) & TERMINAL
    with arena.without_filter():
        assert achieved(arena) >= TERMINAL


# A person at a terminal starts a program; afterwards, what did their shell get to read?
PERSON: Final = """
import fcntl, os, subprocess, sys, termios, tty
master, terminal = os.openpty()
os.setsid()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
tty.setraw(terminal)
out = open(sys.argv[1], "wb")
subprocess.run(sys.argv[2:], stdin=terminal, stdout=out, stderr=terminal, timeout=30)
os.set_blocking(terminal, False)
try: print("typed", os.read(terminal, 100).decode())
except BlockingIOError: print("typed nothing")
"""

TYPE: Final = """
import termios
places = [0, 1, 2]
try: places.append(os.open("/dev/tty", os.O_RDWR))
except OSError: pass
for place in places:
    for request in (termios.TIOCSTI, termios.TIOCSTI | 1 << 32):
        call(f"type on {place}", libc.syscall(%d, place, ctypes.c_ulong(request), ctypes.c_char_p(b"!")))
"""


def typed_at(top: Path, *words: str | Path | bytes) -> str:
    """Return what a program that a person started left in the input of their terminal; it must have come to its end."""
    log = top / "printed"
    command = [sys.executable, "-I", "-c", PERSON, log, *words]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    assert "the script came to its end" in log.read_text()
    return told.stdout.strip()


def test_a17_nothing_is_typed_on_the_terminal_of_the_person(arena: Arena) -> None:
    """A person at a terminal runs `unspill run`; the command types on all that it has and on /dev/tty.
    Control: a bwrap call that leaves the terminal to the command gets "!" into the person's shell; with nothing but
    the filter besides it does not."""
    attack = python(TYPE % NUMBERS["ioctl"])
    top, bwrap = arena.ground.top, arena.ground.bwrap
    arena.ground.configure(f"bwrap = {os.fsdecode(bwrap)!r}")
    unspill: list[str | Path] = [
        sys.executable,
        "-m",
        "unspill",
        "run",
        "--project",
        arena.ground.project,
        "--",
        *attack,
    ]
    assert typed_at(top, *unspill) == "typed nothing"
    naive: list[str | bytes] = [bwrap, "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev"]
    assert typed_at(top, *naive, *attack).startswith("typed !!")
    (top / "filter").write_bytes(build_filter(MACHINE, "default"))
    filtered = ["/bin/sh", "-c", f'exec "$@" 9<{top}/filter', "sh", *naive, "--seccomp", "9"]
    assert typed_at(top, *filtered, *attack) == "typed nothing"


def test_a18_calls_that_are_often_broken_do_not_exist(arena: Arena, engine: str) -> None:
    """Use io_uring, userfaultfd, memfd_secret, perf events, file handles, fanotify, kcmp, placement of memory.
    Control: without the filter every one of them works in the same sandbox."""
    assert not achieved(arena) & DANGEROUS
    with arena.without_filter():
        assert achieved(arena) >= DANGEROUS


@pytest.mark.parametrize("profile", ["default", "strict"])
def test_a18_every_refused_number_gives_the_error_of_the_rules(arena: Arena, profile: Profile) -> None:
    """Make every system call that the profile refuses, and every number that has none, with impossible arguments.
    Control: without the filter dozens of them come as far as their arguments."""
    expected = {
        number: verdict.error
        for number, verdict in enumerate(verdicts(MACHINE, profile))
        if isinstance(verdict, Refuse)
    }
    command = ["/usr/bin/python3", "-I", "-c", INSIDE.read_text(), "numbers", *map(str, expected)]

    def errors() -> dict[int, int]:
        result = arena.ground.sandbox(profile=profile).run(command)
        return {int(number): error for number, error in json.loads(result.stdout.head + result.stdout.tail).items()}

    assert errors() == expected
    with arena.without_filter():
        bare = errors()
    assert sum(bare[number] != expected[number] for number in expected) >= 30


def test_a18_the_strict_profile_also_refuses_to_reach_into_other_processes(arena: Arena) -> None:
    """In the profile `strict`: trace, read and write the memory of others, take descriptors, open Unix sockets.
    Control: in the profile `default`, where debuggers work, all of it works."""
    reach = {"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "socket 1", "socket 16"}
    assert not achieved(arena, profile="strict") & reach
    assert achieved(arena, profile="default") >= reach


def test_a18_a_project_can_make_the_filter_stricter_but_not_weaker(arena: Arena) -> None:
    """The project's own file asks for the profile `default` where the person's says `strict`.
    Control: with a file that asks for `strict` where the person's says `default` runs are strict."""
    ground = arena.ground
    ground.write(".unspill.toml", 'profile = "default"\n')
    words = ["run", "--", "/usr/bin/python3", "-c", "import socket; socket.socket(socket.AF_UNIX)"]
    own = f"bwrap = {os.fsdecode(ground.bwrap)!r}\n"
    ground.configure(own + 'profile = "strict"\n')
    refused = run_cli(*words, cwd=ground.project)
    assert refused.returncode != 0
    assert b"profile" in refused.stderr
    ground.configure(own)
    assert run_cli(*words, cwd=ground.project).returncode == 0
    ground.write(".unspill.toml", 'profile = "strict"\n')
    assert b"Address family not supported" in run_cli(*words, cwd=ground.project).stderr


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has these ways into the kernel")
def test_a19_no_call_gets_in_by_the_entry_for_32_bit_programs(arena: Arena, engine: str) -> None:
    """A program that makes every call by `int 0x80`, and one with the bit of x32.
    Control: without the filter `int 0x80` answers with the process's own number."""
    program = arena.ground.project / "foreign"
    subprocess.run(["gcc", "-O1", "-o", program, "-x", "c", "-"], input=FOREIGN, text=True, check=True)

    def results() -> list[int]:
        result = arena.ground.sandbox().run([os.fspath(program), "all"])
        told: list[int] = json.loads(result.stdout.head + result.stdout.tail)
        return told

    _pid, *refused = results()
    assert set(refused) == {-38}
    with arena.without_filter():
        pid, same_pid, *_rest = json.loads(arena.ground.sandbox().run([os.fspath(program)]).stdout.head)
    assert pid == same_pid


@pytest.mark.parametrize("view", chosen_views())
def test_a18_every_process_of_a_run_is_filtered(arena: Arena, engine: str, view: str) -> None:
    """In each view, look at pid 1, the command, and what it starts by a shell in a session of its own.
    Control: without the filter in the plan none of them has one."""
    # Pid 1 is bwrap's own and sets its filter when it has started the command, a moment later where others run
    command = "for i in 1 2 3 4 5 6 7 8; do grep -q 'Seccomp:.2' /proc/1/status && break; sleep 0.1; done;"
    command += "grep -h Seccomp: /proc/1/status /proc/self/status; setsid sh -c 'grep Seccomp: /proc/self/status'"
    assert arena.ground.sandbox(view=view).run(command).stdout.head == b"Seccomp:\t2\n" * 3
    with arena.without_filter():
        assert arena.ground.sandbox(view=view).run(command).stdout.head == b"Seccomp:\t0\n" * 3


PROFILES: Final[tuple[Profile, ...]] = ("default", "strict")
SWEPT: Final = 1024
# Since 6.13 the kernel shows these to no filter; they are allowed, and whoever makes them by hand is killed or refused
UNFILTERED: Final = ("uretprobe", "uprobe")
FAR: Final = (2**31, 2**31 + 1, 2**32 - 2, X32_BIT | 2**31)
TELLING: Final = (
    *(*range(FAMILIES), 0x5413, 0x40049409, 0x80086601),
    *REQUESTS.values(),
    *(1 << place for place in range(32)),
    0xFFFFFFFF,
)


def told(arena: Arena, profile: Profile, calls: Sequence[Call]) -> list[int]:
    """Return the error of each call inside, PASSED if no filter of ours refused it."""
    text = json.dumps(calls, separators=(",", ":"))
    with passing() as mark:
        command = ["/usr/bin/python3", "-I", "-c", TELLING_INSIDE.read_text(), "told", text, mark]
        result = arena.ground.sandbox(profile=profile).run(command)
    assert result.ok, result
    found: list[int] = json.loads(result.stdout.head + result.stdout.tail)
    assert len(found) == len(calls)
    return found


def every_native_number() -> list[int]:
    shown_to_none = {number for name, number in numbers_of(MACHINE).items() if name in UNFILTERED}
    return [number for number in (*range(SWEPT), *FAR) if number not in shown_to_none]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_number_by_the_native_entry_is_what_the_table_says(arena: Arena, profile: Profile) -> None:
    """Numbers 0 to 1023 and far ones. Control: without the filter not one of them is refused."""
    calls: list[Call] = [("native", number, ()) for number in every_native_number()]
    expected = [answer_of(classify(MACHINE, profile, number), ()) for _, number, _ in calls]
    assert told(arena, profile, calls) == expected
    with arena.without_filter():
        assert set(told(arena, profile, calls)) == {PASSED}
    passed = expected.count(PASSED)
    print(f"{profile}: {passed} numbers pass, {len(expected) - passed} are refused, 0 are not in the table")
    assert passed + len(UNFILTERED) == sum(answer_of(one, ()) == PASSED for one in verdicts(MACHINE, profile))
    record_figure(
        f"system call numbers classified, {profile}",
        f"{len(calls) + len(UNFILTERED)}, 0 unclassified",
        f"0 to {SWEPT - 1} and far ones; {passed} pass with arguments of 0; int 0x80 and x32: all of as many refused",
    )


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has these ways into the kernel")
@pytest.mark.parametrize("profile", PROFILES)
def test_every_number_by_the_entries_of_32_bit_programs_does_not_exist(arena: Arena, profile: Profile) -> None:
    """All numbers by `int 0x80` and with the bit of x32. Control: without the filter not one of them is refused."""
    calls: list[Call] = [("int80", number, ()) for number in (*range(SWEPT), *FAR)]
    calls += [("native", X32_BIT | number, ()) for number in range(SWEPT)]
    assert set(told(arena, profile, calls)) == {ENOSYS}
    with arena.without_filter():
        assert set(told(arena, profile, calls)) == {PASSED}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_argument_that_a_rule_looks_at_is_what_the_table_says(arena: Arena, profile: Profile) -> None:
    """Each call with a rule for an argument, with each telling value of it, with and without bits above 32.
    Control: without the filter not one of them is refused."""
    checked = [(number, one) for number, one in enumerate(verdicts(MACHINE, profile)) if isinstance(one, RefuseIf)]
    calls: list[Call] = []
    for (number, verdict), value, above in product(checked, TELLING, (0, ABOVE_32_BITS)):
        calls.append(("native", number, (*(0,) * verdict.argument, value | above)))
    expected = [answer_of(classify(MACHINE, profile, number), arguments) for _, number, arguments in calls]
    assert told(arena, profile, calls) == expected
    assert len(set(expected)) >= 3
    with arena.without_filter():
        assert set(told(arena, profile, calls)) == {PASSED}


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has these calls")
def test_what_the_kernel_shows_to_no_filter_does_nothing_for_a_command(arena: Arena) -> None:
    """Two calls are for a page that the kernel itself maps when somebody traces; make them by hand.
    Control: under an empty filter too the answer is the kernel's own: the process is killed, or told ENXIO."""
    script = """
    for number in %r:
        child = os.fork()
        if not child:
            result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
            os._exit(ctypes.get_errno() if result == -1 else 0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("STATUS", status)
        if status not in (-signal.SIGILL, errno.ENXIO, errno.ENOSYS): won(number, status)
    """ % [numbers_of(MACHINE)[name] for name in UNFILTERED]
    inside = arena.attack(script)
    assert not inside.won
    with arena.without_filter():
        assert arena.attack(script).lines == inside.lines


ALLOWED: Final = {number for _, group in IOCTLS for number in group.values()}
# Those of the list, and of what else the kernel has: nothing, single words, structures, pages, the largest
SIZES: Final = sorted(
    {number >> 16 & 0x3FFF for number in ALLOWED | set(REQUESTS.values())}
    | {0, 1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 72, 80, 96, 104, 128, 192, 256, 1024, 4096, 8192, 16383}
)
# What stands above the 32 bits that the kernel reads: nothing, and what musl sets
ABOVE: Final = ("0", "ffffffff")

SWEEP: Final = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
/* sweep ABOVE SIZE...: every direction, type and number on a descriptor that is none */
int main(int count, char **words) {
    unsigned long above = strtoul(words[1], 0, 16) << 32, answers[4096] = {0}, shown = 0;
    printf("{\"passed\": [");
    for (int at = 2; at < count; at++)
        for (unsigned long direction = 0; direction < 4; direction++)
            for (unsigned long pair = 0; pair < 65536; pair++) {
                unsigned long request = direction << 30 | strtoul(words[at], 0, 10) << 16 | pair;
                int error = syscall(SYS_ioctl, -1, above | request, 0) ? errno : 0;
                answers[error]++;
                if (error != ENOTTY && shown < 1000) printf("%s%lu", shown++ ? ", " : "", request);
            }
    printf("], \"answers\": {");
    for (int error = 0, first = 1; error < 4096; error++)
        if (answers[error]) printf("%s\"%d\": %lu", first ? "" : ", ", error, answers[error]), first = 0;
    printf("}}\n");
}
"""


def on(kind: str) -> pytest.MarkDecorator:
    """Have home, project and state directory of a test on a filesystem of a kind; "encrypted" is ext4 as well."""
    return pytest.mark.parametrize("tmp_path", [kind], indirect=True)


both_profiles = pytest.mark.parametrize("profile", ["default", "strict"])


# What linux/fscrypt.h calls a key by its identifier, and the request that tells the identifier of a directory's key
IDENTIFIER, GET_ENCRYPTION_POLICY_EX = 2, 0xC0096616


def addition_of(raw: bytes) -> bytearray:
    """Return a `struct fscrypt_add_key_arg`, into which the kernel writes the identifier."""
    return bytearray(struct.pack("<II32sII32s", IDENTIFIER, 0, b"", len(raw), 0, b"") + raw)


def removal_of(identifier: bytes) -> bytes:
    """Return a `struct fscrypt_remove_key_arg`."""
    return struct.pack("<II32sI20s", IDENTIFIER, 0, identifier, 0, b"")


def identifier_of(directory: Path) -> bytes:
    """Return the identifier of the key that a directory is encrypted with."""
    argument = bytearray(struct.pack("<Q24s", 24, b""))
    place = os.open(directory, os.O_RDONLY)
    fcntl.ioctl(place, GET_ENCRYPTION_POLICY_EX, argument)
    os.close(place)
    return bytes(argument[16:32])


@contextmanager
def encrypted_directory() -> Iterator[Path]:
    """A directory that is encrypted with a key of its own, as a home directory may be."""
    with directory_on("ext4") as top:
        outside, raw = os.open(top, os.O_RDONLY), os.urandom(64)
        key = addition_of(raw)
        fcntl.ioctl(outside, REQUESTS["FS_IOC_ADD_ENCRYPTION_KEY"], key)
        path = top / "encrypted"
        path.mkdir()
        place = os.open(path, os.O_RDONLY)
        # Version 2: AES-256-XTS for contents, AES-256-CTS for names
        policy = struct.pack("<BBBB4s16s", 2, 1, 4, 3, b"", key[8:24])
        fcntl.ioctl(place, REQUESTS["FS_IOC_SET_ENCRYPTION_POLICY"], policy)
        os.close(place)
        yield path
        # An attack may have removed it; the keys that a user can have are counted, so it must not stay
        fcntl.ioctl(outside, REQUESTS["FS_IOC_ADD_ENCRYPTION_KEY"], addition_of(raw))
        remove_tree(bytes(path))
        fcntl.ioctl(outside, REQUESTS["FS_IOC_REMOVE_ENCRYPTION_KEY"], bytearray(removal_of(bytes(key[8:24]))))
        os.close(outside)


@pytest.fixture(name="tmp_path")
def tmp_path_on_a_filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if not hasattr(request, "param"):
        yield tmp_path
        return
    with encrypted_directory() if request.param == "encrypted" else directory_on(request.param) as path:
        yield path


@pytest.mark.slow
@both_profiles
def test_a18_of_all_types_numbers_directions_and_known_sizes_only_the_listed_requests_reach_the_kernel(
    arena: Arena, profile: Profile, full: bool
) -> None:
    """Make an ioctl with each of the 65,536 pairs of type and number, in each direction, with every size that is known,
    with and without bits above the 32 that the kernel reads. Control: without the rule every one reaches the kernel.

    The rule is the same in both profiles: of `strict` the bits above and some sizes are tried with `--full` only.
    """
    program = arena.ground.project / "sweep"
    subprocess.run(["gcc", "-O1", "-o", program, "-x", "c", "-"], input=SWEEP, text=True, check=True)
    is_whole = full or profile == "default"
    of_allowed = {request >> 16 & 0x3FFF for request in ALLOWED}
    sizes = [size for number, size in enumerate(SIZES) if is_whole or size in of_allowed or number % 4 == 0]
    count = len(sizes) * 4 * 65536

    def sweep(above: str) -> tuple[list[int], dict[str, int]]:
        words = [arena.ground.inside(program), above, *map(str, sizes)]
        result = arena.ground.sandbox(profile=profile).run(words)
        assert result.ok, result
        told = json.loads(result.stdout.head + result.stdout.tail)
        return told["passed"], told["answers"]

    for above in ABOVE if is_whole else ABOVE[:1]:
        passed, answers = sweep(above)
        assert sorted(passed) == sorted(ALLOWED)
        assert answers == {str(EBADF): len(ALLOWED), str(ENOTTY): count - len(ALLOWED)}
    with arena.without_rule_of("ioctl", profile):
        assert sweep(ABOVE[0])[1] == {str(EBADF): count}
    record_figure(
        f"ioctl requests tried, {profile}",
        f"{count * len(ABOVE):,}, {len(ALLOWED)} allowed",
        f"65,536 types and numbers, 4 directions, {len(sizes)} sizes, with and without bits above 32",
    )


DESTROY: Final = """
def above(place, request, argument):
    space = (ctypes.c_char * len(argument)).from_buffer(argument)
    if libc.ioctl(place, ctypes.c_ulong(request | 1 << 32), space) < 0: raise OSError(ctypes.get_errno(), "ioctl")
place = os.open(playground, os.O_RDONLY)
# struct btrfs_ioctl_vol_args_v2 with BTRFS_SUBVOL_SPEC_BY_ID
by_id = bytearray(4096)
struct.pack_into("<qQQ", by_id, 0, 0, 0, 1 << 4)
struct.pack_into("<Q", by_id, 56, subvolume)
attempt("with a bit above", above, place, request, by_id)
attempt("by its number", fcntl.ioctl, place, request, by_id)
"""


@both_profiles
@on("btrfs")
def test_a1_no_subvolume_of_the_person_is_deleted_through_the_playground(arena: Arena, profile: Profile) -> None:
    """On btrfs with user_subvol_rm_allowed: delete a subvolume of the person, anywhere on it, by its number.
    Control: without the rule for ioctls it is gone with everything in it."""
    ground = arena.ground
    photos = ground.home / "photos"
    subprocess.run(["btrfs", "-q", "subvolume", "create", photos], check=True)
    (photos / "a.jpg").write_text("precious")
    told = subprocess.run(["btrfs", "inspect-internal", "rootid", photos], capture_output=True, text=True, check=True)
    request = REQUESTS["BTRFS_IOC_SNAP_DESTROY_V2"]
    script = f"subvolume, playground, request = {int(told.stdout)}, {ground.playground_inside!r}, {request}\n{DESTROY}"
    assert not arena.attack(script, profile=profile).won
    assert (photos / "a.jpg").read_text() == "precious"
    with arena.without_rule_of("ioctl", profile):
        # What the first of the two deletes, the second does not find
        assert arena.attack(script, profile=profile).won == ("with a bit above",)
    assert not photos.exists()


LOCK: Final = """
attempt("remove the key", fcntl.ioctl, os.open(playground, os.O_RDONLY), request, bytearray(removal))
"""


@both_profiles
@on("encrypted")
def test_a1_no_encrypted_home_is_locked_through_the_playground(arena: Arena, profile: Profile) -> None:
    """In an encrypted home directory: take the person's key away from the filesystem.
    Control: without the rule for ioctls the person can't read their own files any more."""
    ground = arena.ground
    thesis = ground.home / "thesis"
    thesis.write_text("precious")
    removal = removal_of(identifier_of(ground.home))
    request = REQUESTS["FS_IOC_REMOVE_ENCRYPTION_KEY"]
    script = f"removal, playground, request = {removal!r}, {ground.playground_inside!r}, {request}\n{LOCK}"
    assert not arena.attack(script, profile=profile).won
    assert thesis.read_text() == "precious"
    with arena.without_rule_of("ioctl", profile):
        assert arena.attack(script, profile=profile).won == ("remove the key",)
    with pytest.raises(OSError, match="Required key not available"):
        thesis.read_text()


OTHERS: Final = """
os.chdir(playground)
there, file = os.open(".", os.O_RDONLY), os.open("file", os.O_RDWR | os.O_CREAT)
os.write(file, b"content")
NODUMP, IMMUTABLE, FSXATTR = 0x40, 0x10, "<IIIII8s"
def page(start, format, *values):
    space = bytearray(4096)
    struct.pack_into(format, space, start, *values)
    return space
def ask(name, place, request, argument=None):
    try: fcntl.ioctl(place, request, argument or bytearray(4096))
    except OSError as error: print("CAME", name, errno.errorcode[error.errno])
    else: print("CAME", name, "done")
r = requests
ask("FITRIM", there, r["FITRIM"], page(0, "<QQQ", 0, 2**64 - 1, 0))
ask("FIFREEZE", there, r["FIFREEZE"])
ask("FITHAW", there, r["FITHAW"])
ask("FIBMAP", file, r["FIBMAP"])
ask("FIDEDUPERANGE", file, r["FIDEDUPERANGE"])
ask("immutable", file, r["FS_IOC_SETFLAGS"], page(0, "<Q", IMMUTABLE))
ask("no backup", file, r["FS_IOC_SETFLAGS"], page(0, "<Q", NODUMP))
ask("no backup by FSSETXATTR", file, r["FS_IOC_FSSETXATTR"], page(0, FSXATTR, 0x80, 0, 0, 0, 0, b""))
if kind == "btrfs":
    ask("make a subvolume", there, r["BTRFS_IOC_SUBVOL_CREATE"], page(8, "<8s", b"made"))
    ask("delete a subvolume", there, r["BTRFS_IOC_SNAP_DESTROY"], page(8, "<8s", b"made"))
    ask("defragment", file, r["BTRFS_IOC_DEFRAG"])
if kind == "ext4":
    ask("add a key", there, r["FS_IOC_ADD_ENCRYPTION_KEY"], key)
    ask("remove a key", there, r["FS_IOC_REMOVE_ENCRYPTION_KEY"], page(0, "<II16s", 2, 0, bytes(key[8:24])))
    ask("encrypt a directory", there, r["FS_IOC_SET_ENCRYPTION_POLICY"])
    ask("EXT4_IOC_ALLOC_DA_BLKS", file, r["ALLOC_DA_BLKS"])
    ask("EXT4_IOC_MOVE_EXT", file, r["MOVE_EXT"], page(4, "<I", 0xffffffff))
"""
# What comes of each where the rule is missing: done, or the kernel's own refusal, which others may pass
OTHERWISE: Final = {
    "any": {
        "FITRIM": "EPERM",
        "FIFREEZE": "EPERM",
        "FITHAW": "EPERM",
        "FIBMAP": "EPERM",
        "immutable": "EPERM",
        "no backup": "done",
        "no backup by FSSETXATTR": "done",
    },
    "btrfs": {"FIDEDUPERANGE": "done", "make a subvolume": "done", "delete a subvolume": "done", "defragment": "done"},
    "ext4": {
        "FIDEDUPERANGE": "ENOTSUP",
        "add a key": "done",
        "remove a key": "done",
        "encrypt a directory": "ENOTEMPTY",
        "EXT4_IOC_ALLOC_DA_BLKS": "done",
        "EXT4_IOC_MOVE_EXT": "EBADF",
    },
    "xfs": {"FIDEDUPERANGE": "done"},
}


@both_profiles
@pytest.mark.parametrize("tmp_path", ["btrfs", "ext4", "xfs"], indirect=True)
def test_a1_nothing_else_is_asked_of_the_filesystem_of_the_person(
    arena: Arena, profile: Profile, request: pytest.FixtureRequest
) -> None:
    """In the playground on btrfs, ext4 and XFS: make and delete subvolumes, add keys, freeze, trim, move extents, set
    attributes that backups and other programs obey. Control: without the rule for ioctls each is done, or comes as far
    as the kernel's own check."""
    kind = request.node.callspec.params["tmp_path"]
    key = addition_of(os.urandom(64))
    numbers = REQUESTS | {"ALLOC_DA_BLKS": EXT4_IOC_ALLOC_DA_BLKS, "MOVE_EXT": EXT4_IOC_MOVE_EXT}
    given = f"kind, key, requests = {kind!r}, {key!r}, {numbers!r}\nplayground = {arena.ground.playground_inside!r}\n"

    def came() -> dict[str, str]:
        lines = arena.attack(given + OTHERS, profile=profile).lines
        return dict(line.removeprefix("CAME ").rsplit(" ", 1) for line in lines if line.startswith("CAME "))

    expected = OTHERWISE["any"] | OTHERWISE[kind]
    assert came() == dict.fromkeys(expected, "ENOTTY")
    with arena.without_rule_of("ioctl", profile):
        assert came() == expected
