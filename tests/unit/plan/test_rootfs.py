# SPDX-License-Identifier: Apache-2.0
"""View `rootfs`: a tree of our own instead of the host's system directories, and how packages get into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tests.unit.plan.given import FILTER, HOME, PROJECT, STATE, facts, given, places, stack
from unspill.errors import BwrapMissing, UsageError
from unspill.model.plan import (
    Bind,
    Dev,
    Directory,
    File,
    NoNetwork,
    Overlay,
    Plan,
    Proc,
    ProxyNetwork,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from unspill.model.policy import GIB, MIB, Policy
from unspill.model.rootfs import RootfsBase
from unspill.plan.argv import bwrap_options
from unspill.plan.build import build_plan
from unspill.plan.rootfs import FRESH_PLACES, INSTALL_LIMITS, InstallInput, build_install
from unspill.plan.view import is_writable_mount

if TYPE_CHECKING:
    from unspill.model.plan import MountOp, Plan, PlanInput

EMPTY = STATE + b"/empty"
PASSWD = b"root:x:0:0:root:/root:/bin/sh\n"
BASE = RootfsBase(
    name="alpine",
    tree=b"/r",
    directories=(b"/dev", b"/etc", b"/home", b"/opt", b"/tmp", b"/usr", b"/var", b"/workspace"),
    links=((b"/bin", b"usr/bin"), (b"/run", b"/oldroot/etc")),
    shell=b"/bin/bash",
    points=(b"/var/tmp", b"/etc/resolv.conf", b"/etc/passwd"),
    passwd=PASSWD,
    is_own=True,
)
SKILLS = b"/srv/skills"


def rooted(base: RootfsBase = BASE, *, settings: dict[str, Any] | None = None, **values: Any) -> PlanInput:
    """Return the input of a plan in this view."""
    policy = Policy(view="rootfs", rootfs="/r", **(settings or {}))
    return given(policy=policy, places=places(system=(), links=(), rootfs=base), cwd=b"/workspace", gid=1000, **values)


def without_reasons(plan: Plan) -> tuple[MountOp, ...]:
    return tuple(operation.replace(why="") for operation in plan.mounts)


def test_the_whole_plan() -> None:
    layer = stack(PROJECT, sealed=1)
    assert layer.open is not None
    plan = build_plan(rooted(stacks=(layer,)))
    assert without_reasons(plan) == (
        Bind(source=b"/r/etc", dest=b"/etc", why=""),
        Bind(source=b"/r/home", dest=b"/home", why=""),
        Bind(source=b"/r/opt", dest=b"/opt", why=""),
        Bind(source=b"/r/usr", dest=b"/usr", why=""),
        Bind(source=b"/r/var", dest=b"/var", why=""),
        Symlink(target=b"usr/bin", dest=b"/bin", why=""),
        Proc(dest=b"/proc", why=""),
        Dev(dest=b"/dev", why=""),
        Tmpfs(dest=b"/tmp", size_bytes=GIB, mode=0o1777, why=""),
        Tmpfs(dest=b"/run", size_bytes=64 * MIB, why=""),
        Bind(source=places().playground, dest=b"/playground", why="", writable=True),
        Overlay(lowers=layer.lowers(), dest=b"/workspace", why="", upper=layer.open.upper, work=layer.open.work),
        File(content=PASSWD + b"ann:x:1000:1000::/workspace:/bin/bash\n", dest=b"/etc/passwd", over=True, why=""),
        Bind(source=b"/proc/sys", dest=b"/proc/sys", why=""),
        Tmpfs(dest=b"/dev/shm", size_bytes=64 * MIB, mode=0o1777, why=""),
        Tmpfs(dest=b"/var/tmp", size_bytes=GIB, mode=0o1777, why=""),
        File(content=b'[user]\n\temail = "ann@example.org"\n\tname = "Ann"\n', dest=b"/run/unspill-gitconfig", why=""),
        ReadOnly(dest=b"/dev", why=""),
        ReadOnly(dest=b"/", why=""),
    )
    assert (plan.rootfs, plan.skeleton, plan.warnings) == (b"/r", (), ())


def test_bwrap_is_given_the_tree_and_the_workspace() -> None:
    options, _contents = bwrap_options(build_plan(rooted()), facts(), 7)
    text = b" ".join(options)
    assert b"--ro-bind /r/usr /usr" in text
    # The engine `mount` has laid the layer over the project before
    assert b"--bind " + PROJECT + b" /workspace" in text
    assert b"--clearenv" in text
    assert (
        b"--size 1073741824 --perms 1777 --tmpfs /tmp" in text or b"--perms 1777 --size 1073741824 --tmpfs /tmp" in text
    )
    for name, value in ((b"HOME", b"/workspace"), (b"PIP_TARGET", b"/workspace/.packages")):
        assert b"--setenv %b %b" % (name, value) in text
    assert b"--chdir /workspace" in text
    assert b"--uid" not in options


def test_somebodys_own_tree_is_shown_by_overlays() -> None:
    plan = build_plan(rooted(BASE.replace(is_own=False)))
    assert Overlay(lowers=(EMPTY, b"/r/usr"), dest=b"/usr", why="") in without_reasons(plan)
    assert not any(isinstance(op, Bind) and op.source.startswith(b"/r/") for op in plan.mounts)


def test_nothing_that_the_tree_has_at_our_own_places_is_shown() -> None:
    plan = build_plan(rooted())
    assert not any(isinstance(op, Bind) and op.source in (b"/r/tmp", b"/r/dev", b"/r/workspace") for op in plan.mounts)
    assert not any(isinstance(op, Symlink) and op.dest == b"/run" for op in plan.mounts)


def test_a_mount_point_that_the_tree_lacks_is_a_skeletons() -> None:
    plan = build_plan(rooted(settings={"mounts": ((b"/opt/x/y", SKILLS), (b"/skills", SKILLS))}))
    [opt] = [op for op in plan.mounts if op.dest == b"/opt"]
    assert isinstance(opt, Overlay)
    top, below = opt.lowers
    assert (opt.upper, below) == (None, b"/r/opt")
    assert top.startswith(STATE + b"/skeletons/")
    assert [(point.path, point.is_file) for point in plan.skeleton] == [(top + b"/x/y", False)]
    shown = [op.dest for op in plan.mounts if isinstance(op, Overlay) and op.lowers[-1] == SKILLS]
    assert shown == [b"/skills", b"/opt/x/y"]


@pytest.mark.parametrize("point", [b"/var/tmp", b"/etc/passwd"])
def test_a_usual_mount_point_that_is_none_in_the_tree_is_a_skeletons(point: bytes) -> None:
    points = tuple(one for one in BASE.points if one != point)
    plan = build_plan(rooted(BASE.replace(points=points)))
    [made] = plan.skeleton
    assert made.path.endswith(point)
    assert made.is_file == (point == b"/etc/passwd")


def test_skeletons_of_other_mount_points_have_other_names() -> None:
    names = {
        build_plan(rooted(settings={"mounts": ((place, SKILLS),)})).skeleton[0].path.split(b"/skeletons/")[1][:16]
        for place in (b"/opt/a", b"/opt/b", b"/usr/a", b"/opt/a/b")
    }
    assert len(names) == 4


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (b"/bin/x", "/bin is a symlink in the rootfs"),
        (b"/tmp/x", "a sandbox has its own"),
        (b"/workspace", "a sandbox has its own"),
        (b"/etc", "a sandbox has its own"),
        (b"/", "a sandbox has its own"),
    ],
)
def test_a_place_that_is_not_to_be_had_is_refused(place: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_plan(rooted(settings={"mounts": ((place, SKILLS),)}))


@pytest.mark.parametrize("source", [PROJECT, PROJECT + b"/skills"])
def test_what_lies_in_a_root_is_not_mounted_elsewhere(source: bytes) -> None:
    with pytest.raises(UsageError, match="it is inside the root"):
        build_plan(rooted(settings={"mounts": ((b"/skills", source),)}))
    aliases = ((b"/skills", source),)
    linked = rooted(settings={"mounts": ((b"/skills", b"/srv/link"),)})
    with pytest.raises(UsageError, match="it is inside the root"):
        build_plan(linked.replace(places=linked.places.replace(aliases=aliases)))


def test_what_holds_the_project_is_shown_without_it() -> None:
    outer = HOME + b"/work"
    plan = build_plan(
        rooted(settings={"mounts": ((b"/skills", outer),), "readable": (outer,), "hidden": (outer + b"/x",)})
    )
    masks = {op.dest for op in plan.mounts if isinstance(op, Tmpfs) and op.mode == 0o555}
    assert masks == {outer + b"/shop", b"/skills/shop", outer + b"/x", b"/skills/x"}


def test_a_hidden_path_of_the_host_hides_nothing_of_the_tree() -> None:
    plan = build_plan(rooted(settings={"hidden": (b"/usr", b"/etc/passwd")}))
    assert Bind(source=b"/r/usr", dest=b"/usr", why="") in without_reasons(plan)


TOPS = st.sampled_from([b"etc", b"home", b"opt", b"usr", b"var", b"bin", b"skills", b"srv", b"tmp", b"new"])
PLACES = st.lists(TOPS, min_size=1, max_size=4).map(lambda parts: b"/" + b"/".join(parts))


@for_all(
    mounts=st.lists(PLACES, max_size=4, unique=True),
    readable=st.lists(PLACES.map(lambda path: b"/data" + path), max_size=3, unique=True),
    links=st.sets(TOPS),
    is_own=st.booleans(),
    points=st.sets(st.sampled_from(BASE.points)),
    engine=st.sampled_from(["mount", "native"]),
)
def test_nothing_is_ever_mounted_beneath_a_link_or_a_writable_mount(
    mounts: list[bytes], readable: list[bytes], links: set[bytes], is_own: bool, points: set[bytes], engine: Any
) -> None:
    names = (b"etc", b"home", b"opt", b"usr", b"var", b"tmp", b"data")
    base = BASE.replace(
        directories=tuple(b"/" + name for name in names if name not in links),
        links=tuple((b"/" + name, b"/oldroot") for name in sorted(links)),
        points=tuple(sorted(points)),
        is_own=is_own,
    )
    settings = {"mounts": tuple((place, SKILLS) for place in mounts), "readable": tuple(readable)}
    try:
        plan = build_plan(rooted(base, settings=settings, engine=engine))
    except UsageError:
        return
    dests = [op.dest for op in plan.mounts if not isinstance(op, ReadOnly)]
    closed = [op.dest + b"/" for op in plan.mounts if isinstance(op, Symlink) or is_writable_mount(op)]
    assert not [dest for dest in dests if dest.startswith(tuple(closed))]
    # Beneath what is the tree's, only where it has a mount point itself or a skeleton has
    made = {point.path.partition(b"/skeletons/")[2][16:] for point in plan.skeleton}
    of_tree = tuple(op.dest + b"/" for op in plan.mounts if _is_of_tree(op))
    inner = {dest for dest in dests if dest.startswith(of_tree)}
    shown = tuple(op.dest + b"/" for op in plan.mounts if isinstance(op, Overlay) and op.lowers[-1] == SKILLS)
    assert {dest for dest in inner if not dest.startswith(shown)} <= made | set(base.points)
    for dest in dests:
        above = [other for other in dests if dest.startswith(other + b"/")]
        assert all(dests.index(other) < dests.index(dest) for other in above)


def _is_of_tree(operation: MountOp) -> bool:
    match operation:
        case Bind():
            return operation.source.startswith(b"/r/")
        case Overlay():
            return operation.lowers[-1].startswith(b"/r/")
        case Directory():
            return False
    return False


TREE = b"/home/ann/.local/share/unspill/rootfs/staging/alpine.x/tree"
ARGV = (b"/sbin/apk", b"add", b"--no-cache", b"--", b"bash")
GIVEN = InstallInput(
    tree=TREE,
    directories=(b"/bin", b"/etc", b"/usr", b"/tmp", b"/dev", b"/proc"),
    links=((b"/lib", b"usr/lib"), (b"/run", b"/oldroot/home/ann")),
    argv=ARGV,
    hosts=("dl.example.org:443",),
    facts=facts(),
    engine="mount",
    filter=FILTER,
)


def options(plan: Plan) -> tuple[bytes, ...]:
    return bwrap_options(plan, facts(), 10)[0]


def test_the_directories_of_the_tree_are_writable_and_nothing_else_is() -> None:
    plan = build_install(GIVEN)
    writable = {op.dest: op.source for op in plan.mounts if isinstance(op, Bind) and op.writable}
    assert writable == {dest: TREE + dest for dest in (b"/bin", b"/etc", b"/usr")}
    assert isinstance(plan.mounts[-1], ReadOnly)
    assert plan.mounts[-1].dest == b"/"


def test_what_the_sandbox_has_of_its_own_is_never_the_trees() -> None:
    plan = build_install(GIVEN)
    by_place = {op.dest: type(op) for op in plan.mounts if not isinstance(op, ReadOnly)}
    assert (by_place[b"/tmp"], by_place[b"/run"], by_place[b"/proc"]) == (Tmpfs, Tmpfs, Proc)
    links = [op for op in plan.mounts if isinstance(op, Symlink)]
    assert [(op.dest, op.target) for op in links] == [(b"/lib", b"usr/lib")]


def test_the_command_is_uid_0_without_a_capability() -> None:
    words = options(build_install(GIVEN))
    at = words.index(b"--uid")
    assert words[at : at + 4] == (b"--uid", b"0", b"--gid", b"0")
    assert words[words.index(b"--cap-drop") + 1] == b"ALL"
    assert b"--disable-userns" in words
    assert b"--unshare-net" in words


def test_the_command_reaches_the_mirror_only() -> None:
    network = build_install(GIVEN).network
    assert isinstance(network, ProxyNetwork)
    assert network.hosts == ("dl.example.org:443",)
    assert not network.public
    assert isinstance(build_install(GIVEN.replace(hosts=())).network, NoNetwork)


def test_the_variables_are_ours_and_no_address_is_exempt_from_the_proxy() -> None:
    names = dict(build_install(GIVEN).environ)
    assert names[b"HOME"] == b"/root"
    assert names[b"PATH"].endswith(b"/usr/sbin:/usr/bin:/sbin:/bin")
    assert names[b"http_proxy"] == names[b"https_proxy"] == b"http://127.0.0.1:62080"
    assert not {b"no_proxy", b"NO_PROXY"} & set(names)
    assert b"--clearenv" in options(build_install(GIVEN))
    assert not any(name.lower().endswith(b"_proxy") for name, _ in build_install(GIVEN.replace(hosts=())).environ)


def test_the_whole_tree_is_measured_and_the_time_is_bounded() -> None:
    plan = build_install(GIVEN)
    assert plan.measured == (TREE,)
    assert plan.limits == INSTALL_LIMITS
    assert plan.limits.wall_s == 900.0
    assert None not in (plan.limits.memory_bytes, plan.limits.processes, plan.limits.layer_bytes)


def test_bwrap_is_started_in_the_root_and_by_no_shell_of_the_tree() -> None:
    plan = build_install(GIVEN)
    assert (plan.cwd, plan.argv, plan.staged) == (b"/", ARGV, False)
    assert plan.filter == FILTER


def test_without_bwrap_nothing_is_installed() -> None:
    with pytest.raises(BwrapMissing):
        build_install(GIVEN.replace(facts=facts(bwrap=None)))


NAMES = st.binary(min_size=1, max_size=6).filter(lambda name: b"/" not in name and b"\0" not in name and name != b"..")


@for_all(st.sets(NAMES), st.dictionaries(NAMES, st.binary(max_size=20)))
def test_whatever_lies_at_the_top_nothing_is_mounted_below_it(names: set[bytes], links: dict[bytes, bytes]) -> None:
    tops = tuple(b"/" + name for name in sorted(names))
    linked = tuple((b"/" + name, target) for name, target in links.items() if name not in names)
    plan = build_install(GIVEN.replace(directories=tops, links=linked))
    for operation in plan.mounts:
        top = b"/" + operation.dest.split(b"/")[1]
        assert operation.dest == top or top in FRESH_PLACES
