# SPDX-License-Identifier: Apache-2.0
"""A plan as bwrap options: exact for each engine, and no name can be taken for an option (A6)."""

from __future__ import annotations

import random

import pytest

from tests.unit.plan.given import HOME, PROJECT, STATE, facts, given, stack
from unspill.errors import HostError, NamespacesForbidden, OverlayUnsupported, UsageError
from unspill.model.plan import Bind, Dev, File, Overlay, Plan, Proc, ReadOnly, Symlink, Tmpfs
from unspill.model.policy import Limits
from unspill.plan.argv import bare_options, bwrap_options
from unspill.plan.build import build_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import MountOp
    from unspill.model.policy import EngineName

FLAGS = (
    b"--unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try "
    b"--disable-userns --assert-userns-disabled --cap-drop ALL --die-with-parent --new-session "
    b"--hostname unspill"
).split()
WRITABLE = Overlay(lowers=(b"/s2", b"/s1", b"/p"), dest=b"/p", upper=b"/u", work=b"/w", why="")
SHOWN = Overlay(lowers=(b"/empty", b"/t"), dest=b"/t", why="")


def plan(*mounts: MountOp, engine: EngineName = "mount") -> Plan:
    return Plan(
        engine=engine,
        bwrap=b"/usr/bin/bwrap",
        mounts=mounts,
        environ=((b"A", b"1"),),
        cwd=b"/p",
        argv=(b"true",),
        limits=Limits(),
        filter=b"",
    )


def options(*mounts: MountOp, engine: EngineName = "mount") -> list[bytes]:
    made, _contents = bwrap_options(plan(*mounts, engine=engine), facts(), 7)
    assert list(made[: len(FLAGS)]) == FLAGS
    assert list(made[-6:]) == [b"--clearenv", b"--setenv", b"A", b"1", b"--chdir", b"/p"]
    return list(made[len(FLAGS) : -6])


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (Bind(source=b"/a", dest=b"/b", why=""), "--ro-bind /a /b"),
        (Bind(source=b"/a", dest=b"/b", why="", writable=True), "--bind /a /b"),
        (Tmpfs(dest=b"/t", size_bytes=5, mode=0o1777, why=""), "--perms 1777 --size 5 --tmpfs /t"),
        (Tmpfs(dest=b"/t", size_bytes=5, mode=0o700, why=""), "--perms 0700 --size 5 --tmpfs /t"),
        (Proc(dest=b"/proc", why=""), "--proc /proc"),
        (Dev(dest=b"/dev", why=""), "--dev /dev"),
        (Symlink(target=b"usr/bin", dest=b"/bin", why=""), "--symlink usr/bin /bin"),
        (File(content=b"x", dest=b"/f", why=""), "--perms 0644 --file 7 /f"),
        (File(content=b"", dest=b"/f", mode=0o444, over=True, why=""), "--perms 0444 --ro-bind-data 7 /f"),
        (ReadOnly(dest=b"/", why=""), "--remount-ro /"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_operation_has_its_options(operation: MountOp, expected: str) -> None:
    assert options(operation) == expected.encode().split()


@pytest.mark.parametrize(
    ("engine", "writable", "shown"),
    [
        ("mount", "--bind /p /p", "--ro-bind /t /t"),
        (
            "native",
            "--overlay-src /p --overlay-src /s1 --overlay-src /s2 --overlay /u /w /p",
            "--overlay-src /t --overlay-src /empty --ro-overlay /t",
        ),
    ],
)
def test_each_engine_has_its_own_way_to_an_overlay(engine: EngineName, writable: str, shown: str) -> None:
    assert options(WRITABLE, engine=engine) == writable.encode().split()
    assert options(SHOWN, engine=engine) == shown.encode().split()


@pytest.mark.parametrize("engine", ["mount", "native"])
def test_the_baseline_differs_in_the_overlays_only(engine: EngineName) -> None:
    whole = build_plan(given(engine=engine))
    bare, contents = bare_options(whole, facts(), 7)
    live = whole.replace(
        mounts=tuple(
            Bind(source=op.lowers[-1], dest=op.dest, why=op.why, writable=op.upper is not None)
            if isinstance(op, Overlay)
            else op
            for op in whole.mounts
        )
    )
    assert (bare, contents) == bwrap_options(live, facts(), 7)


def test_generated_files_are_numbered_in_order() -> None:
    one, two = (File(content=name, dest=b"/" + name, why="") for name in (b"one", b"two"))
    made, contents = bwrap_options(plan(one, SHOWN, two), facts(), 40)
    assert contents == (b"one", b"two")
    assert [made[made.index(b"--file", made.index(dest) - 3) + 1] for dest in (b"/one", b"/two")] == [b"40", b"41"]


def test_the_filter_of_system_calls_is_the_last_content() -> None:
    one = File(content=b"one", dest=b"/one", why="")
    made, contents = bwrap_options(plan(one).replace(filter=b"program"), facts(), 40)
    assert contents == (b"one", b"program")
    assert made[-2:] == (b"--seccomp", b"41")
    without, _contents = bwrap_options(plan(one), facts(), 40)
    assert without == made[:-2]


def test_a_kernel_that_can_not_filter_runs_nothing() -> None:
    with pytest.raises(HostError, match="can't filter system calls") as refused:
        bwrap_options(plan().replace(filter=b"program"), facts(seccomp=False), 40)
    assert refused.value.remedy


@pytest.mark.parametrize("missing", ["namespaces", "disable_userns"])
def test_without_its_namespaces_there_is_no_sandbox(missing: str) -> None:
    with pytest.raises(NamespacesForbidden) as refused:
        bwrap_options(plan(), facts(**{missing: False}), 7)
    assert refused.value.remedy


def test_without_its_own_proc_there_is_no_sandbox() -> None:
    with pytest.raises(HostError, match="/proc"):
        bwrap_options(plan(Proc(dest=b"/proc", why="")), facts(proc_mount=False), 7)


@pytest.mark.parametrize(
    "broken",
    [
        plan(Bind(source=b"/a\0--bind", dest=b"/b", why="")),
        plan(Symlink(target=b"a\0", dest=b"/b", why="")),
        plan().replace(cwd=b"/a\0b"),
        plan().replace(environ=((b"A\0", b""),)),
        plan().replace(environ=((b"A", b"\0"),)),
        plan().replace(hostname="a\0b"),
    ],
)
def test_a_nul_never_reaches_the_options(broken: Plan) -> None:
    with pytest.raises(UsageError, match="NUL"):
        bwrap_options(broken, facts(), 7)


def test_the_native_engine_refuses_more_layers_than_fit_into_a_page() -> None:
    few, many = (stack(PROJECT, sealed=count) for count in (50, 120))
    bwrap_options(build_plan(given(engine="native", stacks=(few,))), facts(), 7)
    bwrap_options(build_plan(given(engine="mount", stacks=(many,))), facts(), 7)
    with pytest.raises(OverlayUnsupported, match="121 layers") as refused:
        bwrap_options(build_plan(given(engine="native", stacks=(many,))), facts(), 7)
    assert refused.value.remedy


ARITY = {
    **dict.fromkeys((b"--bind", b"--ro-bind", b"--symlink", b"--file", b"--ro-bind-data", b"--setenv"), 2),
    **dict.fromkeys((b"--tmpfs", b"--proc", b"--dev", b"--remount-ro", b"--perms", b"--size", b"--chdir"), 1),
    **dict.fromkeys((b"--hostname", b"--cap-drop", b"--overlay-src", b"--ro-overlay", b"--seccomp"), 1),
    **dict.fromkeys([flag for flag in FLAGS if flag.startswith((b"--unshare", b"--dis", b"--as"))], 0),
    **dict.fromkeys((b"--die-with-parent", b"--new-session", b"--clearenv"), 0),
    b"--overlay": 3,
}


def parse(made: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
    """Read options as bwrap does: a name, then as many values as it takes, whatever they look like."""
    parsed = []
    rest = list(made)
    while rest:
        count = 1 + ARITY[rest[0]]
        parsed.append(tuple(rest[:count]))
        assert len(parsed[-1]) == count
        del rest[:count]
    return parsed


PIECES = [
    *(b"--bind / -- -x --args \n \t \r \x1b[2J \xff \xc3\x28 , : \\ ' \" $HOME `id` ; & | * ? ~ # = %s".split(b" ")),
    *("ü \u202e \u200b 名".encode().split(b" ")),
    b" ",
    b"a" * 200,
]


def hostile_name(chance: random.Random) -> bytes:
    name = b"".join(chance.choices(PIECES, k=chance.randint(1, 6))).replace(b"/", b"").replace(b"\0", b"")
    return name if name.strip(b".") else b"--"


def count_of_names(request: pytest.FixtureRequest) -> int:
    return 10_000 if request.config.getoption("--full") else 500


@pytest.mark.parametrize("engine", ["mount", "native"])
def test_no_name_is_taken_for_an_option(engine: EngineName, request: pytest.FixtureRequest) -> None:
    chance = random.Random(6)
    for _ in range(count_of_names(request)):
        live = b"%s/%s/%s" % (HOME, hostile_name(chance), hostile_name(chance))
        extra = ((hostile_name(chance).replace(b"=", b"") or b"N", hostile_name(chance)),)
        layers = STATE + b"/" + hostile_name(chance)
        whole = build_plan(given(engine=engine, stacks=(stack(live, layers=layers),), cwd=live, extra_environ=extra))
        parsed = parse(bwrap_options(whole, facts(), 7)[0])
        options = [option for option in parsed if option[0] not in (b"--perms", b"--size", b"--overlay-src")]
        assert [option[-1] for option in options if option[0] in MOUNTING] == [op.dest for op in whole.mounts]
        assert [option[1:] for option in options if option[0] == b"--setenv"] == list(whole.environ)
        assert options[-2:] == [(b"--chdir", live), (b"--seccomp", b"8")]
        flags = [part for option in parsed if option[0] not in MOUNTING for part in option][: len(FLAGS)]
        assert flags == FLAGS


MOUNTING = frozenset(
    b"--bind --ro-bind --symlink --file --tmpfs --proc --dev --remount-ro --overlay --ro-overlay".split()
)
