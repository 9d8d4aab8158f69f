# SPDX-License-Identifier: Apache-2.0
"""Every option and every mount of a plan, taken away alone, with what overlaps it switched off: its attack succeeds."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.attack.ablation_flags import (
    LAYERS,
    NOT_A_DEFENCE,
    SINGLE,
    Given,
    category_of,
    defences,
    given_to_bwrap,
    parse,
)
from tests.attack.arena import (
    Arena,
    drop,
    judge,
    key_of_the_user,
    processes_with,
    python,
    replaced,
    shown_as_it_is,
    wait_until,
)
from tests.attack.starting import started, with_contents
from tests.attack.terminals import typed_at
from tests.figures import record_figure
from tests.support import HOST_ROOT, chosen_views, is_rootfs_chosen
from unspill import NeverStarted
from unspill.errors import SandboxUnavailable
from unspill.host.job import memory_file
from unspill.model.plan import Overlay
from unspill.model.policy import Network
from unspill.policy.paths import contains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.attack.ablation_flags import Defence
    from tests.support import Ground
    from unspill.model.plan import MountOp, Plan

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

USERNS: Final = 'call("a user namespace", libc.unshare(0x10000000))'
CAPABILITIES: Final = """
for line in open("/proc/self/status"):
    if line.startswith(("CapPrm", "CapEff", "CapBnd")) and int(line.split()[1], 16): won(line.strip())
"""
# In two parts: pid 1 has this script on its own command line
# Under either of its names, put together here so that no script of this text is taken for it
SPAWNER: Final = """
shown = open("/proc/1/cmdline", "rb").read()
if b"spawner" b"_main" in shown or b"unspill" b"-spawner" in shown: won("sees what started bwrap")
"""
NAMESPACE: Final = 'if os.readlink("/proc/self/ns/{0}") == {1!r}: won("is in the {0} namespace of the host")'
QUEUE: Final = 'call("a message queue of the host", libc.msgget({}, 0))'
CONNECT: Final = """
connection = socket.socket()
connection.settimeout(5)
attempt("reaches a port of the host", connection.connect, ("127.0.0.1", {}))
"""
NAME: Final = 'if os.uname().nodename == {!r}: won("knows the name of the host")'
PLACE: Final = 'if os.getcwd() != {!r}: won("is elsewhere", os.getcwd())'
URING: Final = 'call("io_uring", libc.syscall(425, 4, ctypes.create_string_buffer(128)))'
DEVICES: Final = """
harmless = "null zero full random urandom tty ptmx pts shm".split()
for name in os.listdir("/dev"):
    if name not in harmless and not os.path.islink("/dev/" + name): won(name)
"""


def attacked(arena: Arena, script: str) -> bool:
    """Tell whether a script achieved anything; a run that bwrap did not start achieved nothing."""
    result = arena.ground.sandbox().run(python(script))
    return False if isinstance(result.outcome, NeverStarted) else bool(judge(result))


def starts(arena: Arena) -> bool:
    return not isinstance(arena.ground.sandbox().run(["true"]).outcome, NeverStarted)


@contextmanager
def message_queue() -> Iterator[int]:
    """A System V message queue of the host, by its key."""
    libc, key, create, remove = ctypes.CDLL(None), 0x756E0000 | os.getpid() & 0xFFFF, 0o1600, 0
    queue = libc.msgget(key, create)
    assert queue >= 0
    try:
        yield key
    finally:
        libc.msgctl(queue, remove, None)


def host_attack(kind: str) -> Callable[[Arena], bool]:
    """Return an attack on a namespace of the host, with something of the host's to find in it."""

    def attack(arena: Arena) -> bool:
        with ExitStack() as stack:
            script = NAMESPACE.format(kind, os.readlink(f"/proc/self/ns/{kind}"))
            if kind == "ipc":
                script += "\n" + QUEUE.format(stack.enter_context(message_queue()))
            if kind == "net":
                listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                script += "\n" + CONNECT.format(listener.getsockname()[1])
            result = arena.ground.sandbox().run(python(script))
            won = () if isinstance(result.outcome, NeverStarted) else judge(result).won
            # Where something is to be found, it is found exactly where the namespace is the host's
            assert len(won) in ((0, 2) if kind in ("ipc", "net") else (0, 1))
            return bool(won)

    return attack


def script_attack(script: str) -> Callable[[Arena], bool]:
    return lambda arena: attacked(arena, script)


def with_capabilities(options: list[bytes]) -> list[bytes]:
    """Ask for all capabilities before they are dropped: for ordinary users bwrap drops them by itself too."""
    at = options.index(b"--hostname") if b"--cap-drop" not in options else options.index(b"--cap-drop")
    return [*options[:at], b"--cap-add", b"ALL", *options[at:]]


def without(*flags: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda options: drop(options, *flags)


def with_host(option: bytes, instead: Sequence[bytes], *gone: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Return a change that shows what is on the host in the place of what bwrap makes."""

    def change(options: list[bytes]) -> list[bytes]:
        left = drop(options, *gone) if gone else options
        at = left.index(option)
        return [*left[:at], *instead, *left[at + 2 :]]

    return change


DEV_SHM: Final = b"--perms 1777 --size 67108864 --tmpfs /dev/shm"
# The attack; how the option is taken away; what overlaps it and is switched off, with the filter or without
CASES: Final[dict[bytes, tuple[Any, ...]]] = {
    b"--unshare-ipc": (host_attack("ipc"), without(b"--unshare-ipc")),
    b"--unshare-pid": (script_attack(SPAWNER), without(b"--unshare-pid")),
    b"--unshare-net": (host_attack("net"), without(b"--unshare-net")),
    b"--unshare-uts": (host_attack("uts"), without(b"--unshare-uts"), without(b"--hostname unspill")),
    b"--unshare-cgroup-try": (host_attack("cgroup"), without(b"--unshare-cgroup-try")),
    b"--disable-userns": (
        script_attack(USERNS),
        without(b"--disable-userns"),
        without(b"--assert-userns-disabled"),
        "filter",
    ),
    b"--assert-userns-disabled": (
        script_attack(USERNS),
        without(b"--assert-userns-disabled"),
        without(b"--disable-userns"),
        "filter",
    ),
    b"--cap-drop": (script_attack(CAPABILITIES), without(b"--cap-drop ALL"), with_capabilities),
    b"--hostname": (script_attack(NAME.format(os.uname().nodename)), without(b"--hostname unspill")),
    b"--proc": (script_attack(SPAWNER), with_host(b"--proc", (b"--ro-bind", b"/proc", b"/proc"))),
    b"--dev": (
        script_attack(DEVICES),
        with_host(b"--dev", (b"--dev-bind", b"/dev", b"/dev"), b"--remount-ro /dev", DEV_SHM),
    ),
    b"--seccomp": (script_attack(URING), None, "filter-is-it"),
}


@pytest.mark.parametrize("flag", sorted(CASES), ids=os.fsdecode)
def test_an_option_that_is_taken_away_lets_its_attack_succeed(arena: Arena, flag: bytes) -> None:
    """Each option with an attack that runs inside. Control: with it the attack fails, whatever overlaps it is off."""
    attack, change, *overlaps = CASES[flag]
    assert not attack(arena)
    with ExitStack() as stack:
        if flag == b"--seccomp":
            stack.enter_context(arena.without_filter())
        else:
            if "filter" in overlaps:
                stack.enter_context(arena.without_filter())
            others = [one for one in overlaps if callable(one)]
            for other in others:
                with arena.options_changed(other):
                    assert not attack(arena), "the option alone does not stop it"
            stack.enter_context(arena.options_changed(composed(change, *others)))
        assert attack(arena)


# The door of a live sandbox enters every namespace, or none at all, and takes on some defences itself
IN_LIVE: Final = {
    b"--unshare-ipc": "not entered",
    b"--unshare-pid": "not entered",
    b"--unshare-net": "not entered",
    b"--unshare-uts": "not entered",
    b"--unshare-cgroup-try": "not entered",
    b"--disable-userns": "closed by the door",
    b"--assert-userns-disabled": "closed by the door",
    b"--cap-drop": "closed by the door",
    b"--hostname": "open",
    b"--proc": "open",
    b"--dev": "open",
    b"--seccomp": "closed by the door",
}


@pytest.mark.parametrize("flag", sorted(CASES), ids=os.fsdecode)
@pytest.mark.usefixtures("through_live")
def test_an_option_that_is_taken_away_opens_a_live_sandbox_no_further(arena: Arena, flag: bytes) -> None:
    """What overlaps it is off, as in a plain run, where the attack succeeds."""
    attack, change, *overlaps = CASES[flag]
    assert not attack(arena)
    others = [one for one in overlaps if callable(one)]
    with ExitStack() as stack:
        if len(others) < len(overlaps):
            stack.enter_context(arena.without_filter())
        if change is not None:
            stack.enter_context(arena.options_changed(composed(change, *others)))
        try:
            found = "open" if attack(arena) else "closed by the door"
        except SandboxUnavailable:
            found = "not entered"
    assert found == IN_LIVE[flag]


def composed(*changes: Callable[[list[bytes]], list[bytes]]) -> Callable[[list[bytes]], list[bytes]]:
    def change(options: list[bytes]) -> list[bytes]:
        for one in changes:
            options = one(options)
        return options

    return change


def direct_survivors(arena: Arena, given: Given, options: Sequence[bytes]) -> bool:
    """Kill bwrap itself, as nobody who watches it would see, and tell whether its command lives on."""
    mark = f"unspill-ablation-{os.urandom(4).hex()}"
    command = ["sh", "-c", "while :; do sleep 1; done", mark]
    bwrap = started(given, arena.ground.bwrap, options, command, stdin=subprocess.DEVNULL)
    # The shell of the command, not bwrap, whose command line has the mark as well
    inside = f"sleep 1; done\0{mark}"
    try:
        assert wait_until(lambda: [pid for pid in processes_with(inside) if not is_bwrap(pid)])
        bwrap.kill()
        bwrap.wait()
        # Twice: a listing of /proc may leave out one that lives while others come and go
        return not wait_until(lambda: not processes_with(mark) and not processes_with(mark), 0.7)
    finally:
        for pid in processes_with(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_bwrap(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith("bwrap")
    except OSError:
        return True


def test_without_die_with_parent_a_command_outlives_a_bwrap_that_is_killed(arena: Arena) -> None:
    """bwrap with the options of a plan, started without the spawner that would kill its group as well."""
    given = given_to_bwrap(arena)
    assert not direct_survivors(arena, given, given.options)
    without = drop(given.options, b"--die-with-parent")
    # A listing of /proc may leave out one that lives
    assert any(direct_survivors(arena, given, without) for _ in range(3))


TYPE: Final = "import fcntl, termios\nattempt('type', fcntl.ioctl, 0, termios.TIOCSTI, b'!')"


def typed(arena: Arena, given: Given, options: Sequence[bytes]) -> str:
    """Return what a command that has a person's terminal as its input typed there."""
    memory = memory_file(b"\0".join(options) + b"\0")
    shell, fds = with_contents(given)
    words = [*shell, os.fsdecode(arena.ground.bwrap), "--args", str(memory), "--", *python(TYPE)]
    try:
        return typed_at(arena.ground.top, *words, pass_fds=(memory, *fds))
    finally:
        for fd in (memory, *fds):
            os.close(fd)


def test_without_a_new_session_a_command_types_on_the_terminal_that_it_is_given(arena: Arena) -> None:
    """bwrap with the options of a plan on a person's terminal; off are the pipes, the spawner's session, the filter."""
    given = given_to_bwrap(arena)
    at = given.options.index(b"--seccomp")
    options = [*given.options[:at], *given.options[at + 2 :]]
    assert typed(arena, given, options) == "typed nothing"
    assert typed(arena, given, drop(options, b"--new-session")) == "typed !"


def test_without_clearenv_a_command_has_the_variables_of_who_starts_bwrap(arena: Arena) -> None:
    """bwrap with the options of a plan, started with a canary; off is the empty environment that the spawner gives."""
    given = given_to_bwrap(arena)

    def seen(options: Sequence[bytes]) -> bool:
        variables = {**os.environ, "UNSPILL_CANARY": "CANARY"}
        run = started(given, arena.ground.bwrap, options, ["/usr/bin/env"], env=variables, stdout=subprocess.PIPE)
        output, _ = run.communicate(timeout=30)
        assert run.returncode == 0
        return b"CANARY" in output

    assert not seen(given.options)
    assert seen(drop(given.options, b"--clearenv"))


def test_without_chdir_a_command_is_not_where_it_was_asked_to_be(arena: Arena) -> None:
    """The spawner's own directory is the root, so that is where it would be."""
    script = PLACE.format(os.fspath(arena.ground.project))
    assert not attacked(arena, script)
    with arena.without(b"--chdir " + os.fsencode(arena.ground.inside())):
        assert attacked(arena, script)


def test_without_unshare_user_no_command_starts(arena: Arena) -> None:
    """Ordinary users get a user namespace in any case; asked for, it is what `--disable-userns` needs, and bwrap starts
    nothing where it can't keep that. With that off as well, and the filter, a command makes namespaces."""
    assert starts(arena)
    with arena.without(b"--unshare-user"):
        assert not starts(arena)
    with arena.without_filter():
        assert not attacked(arena, USERNS)
        with arena.without(b"--unshare-user", b"--disable-userns", b"--assert-userns-disabled"):
            assert attacked(arena, USERNS)


IN_TESTS_OF_THEIR_OWN: Final = {b"--die-with-parent", b"--new-session", b"--clearenv", b"--chdir", b"--unshare-user"}


def test_every_single_option_has_a_case() -> None:
    assert not CASES.keys() & IN_TESTS_OF_THEIR_OWN
    assert CASES.keys() | IN_TESTS_OF_THEIR_OWN == SINGLE
    print(f"{len(SINGLE)} single options, each of them missed when it is taken away")
    record_figure("ablation: single options of bwrap", f"{len(SINGLE)} of {len(SINGLE)}", "overlapping defences off")


MIB: Final = 1 << 20
VIEWS: Final = chosen_views()
SURVEY: Final = """
import json
def asked(path):
    found = os.stat(path)
    # The same mode again: the mount is asked before the owner is
    try: os.chmod(path, stat.S_IMODE(found.st_mode))
    except OSError as error: refusal = error.errno
    else: refusal = 0
    space = os.statvfs(path)
    identity = [found.st_dev, found.st_ino]
    says = stat.S_ISREG(found.st_mode) and bool(open(path, "rb").read(1))
    return {"read-only": refusal == errno.EROFS, "size": space.f_blocks * space.f_frsize, "identity": identity,
            "time": found.st_mtime_ns, "says something": says}
print("SURVEY", json.dumps({path: asked(path) for path in %r if os.path.exists(path)}))
"""


def furnished(ground: Ground) -> dict[str, Any]:
    """Fill the person's home with what a plan may show or hide, and return the policy that does so."""
    for name in (".cache/pip", ".cargo/bin", ".ssh", "read", "hid", "project"):
        (ground.home / name).mkdir(parents=True, exist_ok=True)
    (ground.home / ".gitconfig").write_text("[user]\n\tname = Ada\n")
    (ground.home / ".netrc").write_text("machine example.org password CANARY\n")
    ground.write("kept", "x")
    return {
        "readable": (os.fsencode(ground.home / "read"),),
        "hidden": (os.fsencode(ground.home / "hid"),),
        "limits": ground.policy().limits.replace(tmp_bytes=32 * MIB),
    }


def survey(arena: Arena, places: Sequence[bytes], **settings: Any) -> dict[str, dict[str, Any]]:
    """Return what is to be said of places, from inside."""
    # Without a key of the user there is nothing that the files of keys could say
    with key_of_the_user():
        tried = arena.attack(SURVEY % sorted(map(os.fsdecode, places)), **settings)
    [line] = [line for line in tried.lines if line.startswith("SURVEY ")]
    found: dict[str, dict[str, Any]] = json.loads(line.removeprefix("SURVEY "))
    return found


def is_open(defence: Defence, seen: dict[str, dict[str, Any]]) -> bool:
    """Tell whether what a defence is for can be done."""
    place = os.fsdecode(defence.place)
    if place not in seen:
        return False
    match defence.category:
        case "read-only" | "remount":
            return not seen[place]["read-only"]
        case "size":
            assert defence.size is not None
            return bool(seen[place]["size"] > defence.size)
        case "mask" if place.startswith("/proc/"):
            # What is bound there is of the spawner's own /proc
            return bool(seen[place]["says something"])
        case _:
            # An overlay has other identities than what is below it, but the same times
            there = os.stat(place)
            is_same = seen[place]["identity"] == [there.st_dev, there.st_ino]
            return is_same or bool(seen[place]["time"] == there.st_mtime_ns)


def without_the(
    index: int, all_of: Callable[[Sequence[bytes]], list[Defence]]
) -> Callable[[list[bytes]], Sequence[bytes]]:
    return lambda options: all_of(options)[index].weaker


def read_only_overlays(plan: Plan) -> list[bytes]:
    return [one.dest for one in plan.mounts if isinstance(one, Overlay) and one.upper is None]


@pytest.mark.parametrize("view", VIEWS)
def test_a_mount_option_that_is_taken_away_opens_its_place(arena: Arena, view: str) -> None:
    """Every one of a plan with all that a plan can have. Control: with all options each place is closed.
    A read-only bind of an overlay that is read-only itself is taken away further below, with the overlay."""
    settings = {"view": view, "engine": "mount", **furnished(arena.ground)}
    given = given_to_bwrap(arena, **settings)
    shown = read_only_overlays(given.plan)

    def all_of(options: Sequence[bytes]) -> list[Defence]:
        return [one for one in defences(options) if one.category != "read-only" or one.place not in shown]

    found = all_of(given.options)
    places = [defence.place for defence in found]
    intact = survey(arena, places, **settings)
    assert [defence.what for defence in found if is_open(defence, intact)] == []
    closed = []
    for index, defence in enumerate(found):
        # The names of layers differ from run to run, so it is taken away anew
        with arena.options_changed(without_the(index, all_of)):
            # Other tests write to places that all share, which changes their times between two looks
            if not any(is_open(defence, survey(arena, places, **settings)) for _ in range(3)):
                closed.append(defence.what)
    assert closed == []
    report(f"view {view}, engine mount", given.options, found, len(shown))


def report(plan: str, options: Sequence[bytes], found: Sequence[Defence], shown: int) -> None:
    """Count anew what is in the options, by their names alone, and print and record the figures."""
    names = Counter(option.name for option in parse(options))
    counted = {
        "read-only": names[b"--ro-bind"] - shown,
        "mask": names[b"--tmpfs"] + names[b"--ro-bind-data"],
        "remount": names[b"--remount-ro"],
        "size": names[b"--size"],
    }
    assert Counter(defence.category for defence in found) == counted
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items()))
    print(f"{plan}: {len(found)} mount options, each of them missed when it is taken away: {text}")
    record_figure(f"ablation: mount options, {plan}", f"{len(found)} of {sum(counted.values())}", text)


PLANS: Final[dict[str, dict[str, Any]]] = {
    **{view: {"view": view} for view in VIEWS},
    "hosts": {"network": Network(hosts=("example.org",))},
    "strict": {"profile": "strict"},
}


@pytest.mark.parametrize("plan", PLANS)
def test_every_option_of_a_plan_is_a_defence_with_a_case_or_stated_as_none(
    arena: Arena, engine: str, plan: str
) -> None:
    """With every engine. Control: an option that nobody has judged is not accepted."""
    options = given_to_bwrap(arena, engine=engine, **PLANS[plan], **furnished(arena.ground)).options
    parsed = parse(options)
    assert [word for option in parsed for word in option.words] == list(options)
    counted = Counter(category_of(option) for option in parsed)
    assert all(counted[kind] for kind in ("single", "read-only", "mask", "remount", "size", LAYERS))
    singles = [option.name for option in parsed if option.name in SINGLE]
    assert sorted(singles) == sorted(SINGLE), "one of them is missing, or there twice"
    assert all(len(reason) > 20 for reason in NOT_A_DEFENCE.values())
    with pytest.raises(KeyError):
        parse([*options, b"--share-net"])


WRITE: Final = """
for place in %r:
    with open(os.path.join(place, "written"), "w") as file: file.write("x")
"""


def test_a_layer_that_is_taken_away_lets_writes_reach_the_directory_below(arena: Arena, engine: str) -> None:
    """Each writable mount of a plan but the playground, which is really written on purpose.
    Control: with all layers in place nothing arrives."""
    ground = arena.ground
    settings = {"engine": engine, **furnished(ground)}
    parsed = parse(given_to_bwrap(arena, **settings).options)
    playground = os.fsencode(ground.playground_inside)
    layers = [one.dest for one in parsed if category_of(one) == LAYERS and one.dest != playground]
    below = [ground.project] if is_rootfs_chosen() else [ground.project, ground.home / ".cache/pip"]
    assert layers == [os.fsencode(ground.inside(path)) for path in below]
    script = WRITE % [os.fsdecode(dest) for dest in layers]
    arena.attack(script, **settings)
    assert [path for path in below if (path / "written").exists()] == []
    for dest, path in zip(layers, below, strict=True):
        with arena.plan_changed(writable({dest: path})):
            arena.attack(script, name=f"over {len(dest)}", **settings)
        assert [one for one in below if (one / "written").exists()] == [path]
        (path / "written").unlink()


@pytest.mark.parametrize("view", VIEWS)
def test_a_read_only_layer_that_is_taken_away_lets_writes_through(arena: Arena, engine: str, view: str) -> None:
    """Each directory that is only shown: replaced by a bind that may be written. Control: each is read-only."""
    settings = {"view": view, "engine": engine, **furnished(arena.ground)}
    shown = read_only_overlays(given_to_bwrap(arena, **settings).plan)
    assert len(shown) >= 2
    assert all(one["read-only"] for one in survey(arena, shown, **settings).values())
    for dest in shown:
        # A layer above shows what is below it, so one that lies in another is taken away with that
        opened = [one for one in shown if contains(one, dest)]
        with arena.plan_changed(writable({one: below_of(one, view) for one in opened})):
            seen = survey(arena, shown, **settings)
        assert {place for place, one in seen.items() if not one["read-only"]} == set(map(os.fsdecode, opened))
    print(f"view {view}, engine {engine}: {len(shown)} read-only layers, each of them missed")


def below_of(dest: bytes, view: str) -> Path:
    """Return the directory of the host that a read-only layer shows."""
    in_tree = Path(HOST_ROOT + os.fsdecode(dest))
    return in_tree if view == "rootfs" and in_tree.exists() else Path(os.fsdecode(dest))


def writable(opened: Mapping[bytes, Path]) -> Callable[[tuple[MountOp, ...]], Sequence[MountOp]]:
    """Return a change of a plan that shows some directories of the host as they are, to be written."""

    def change(mounts: Sequence[MountOp]) -> Sequence[MountOp]:
        for dest, path in opened.items():
            mounts = replaced(mounts, dest, shown_as_it_is(path, at=os.fsdecode(dest), writable=True))
        return mounts

    return change
