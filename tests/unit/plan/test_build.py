# SPDX-License-Identifier: Apache-2.0
"""The plan as a whole, each rule about what may be mounted where, its network, and plans done by the real bwrap."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tests.unit.plan.given import HOME, PROJECT, STATE, cache, facts, given, home, places, stack
from tests.unit.plan.ground import Ground, bwrap, perform
from unspill.errors import BwrapMissing, RootRefused, SandboxUnavailable, UnspillError, UsageError
from unspill.host.probe import has_symlink_flaw
from unspill.layers.lifecycle import make_skeleton
from unspill.model.plan import (
    PROXY_PORT,
    Bind,
    CacheLayer,
    Dev,
    File,
    HostNetwork,
    NoNetwork,
    Overlay,
    Plan,
    PlanInput,
    Proc,
    ProxyNetwork,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from unspill.model.policy import GIB, MIB, Limits, Policy
from unspill.plan.argv import bwrap_options
from unspill.plan.build import COMMAND_FILE, HOST_NETWORK, build_plan, with_other_layers
from unspill.plan.environ import NODE_SCRIPT_PATH
from unspill.plan.explain import explain, paste_command
from unspill.plan.view import check_no_mounts_beneath_roots, find_cover, is_writable_mount
from unspill.policy.paths import lies_beneath

if TYPE_CHECKING:
    from typing import Any

    from unspill.model.plan import MountOp, NetworkPlan

EMPTY = STATE + b"/empty"


def mounts(**values: Any) -> tuple[MountOp, ...]:
    return build_plan(given(**values)).mounts


def at(dest: bytes, **values: Any) -> MountOp | None:
    found = [op for op in mounts(**values) if op.dest == dest and not isinstance(op, ReadOnly)]
    assert len(found) < 2
    return found[0] if found else None


def without_reasons(plan: Plan) -> tuple[MountOp, ...]:
    return tuple(operation.replace(why="") for operation in plan.mounts)


def test_the_whole_sealed_plan() -> None:
    plan = build_plan(
        given(
            places=places(home=home(b".cargo/bin")),
            caches=(cache(HOME + b"/.cache/pip"),),
            stacks=(stack(PROJECT, sealed=2),),
        )
    )
    layers = STATE + b"/layers"
    assert without_reasons(plan) == (
        Bind(source=b"/usr", dest=b"/usr", why=""),
        Bind(source=b"/etc", dest=b"/etc", why=""),
        Overlay(lowers=(EMPTY, b"/opt"), dest=b"/opt", why=""),
        Symlink(target=b"usr/bin", dest=b"/bin", why=""),
        Symlink(target=b"usr/lib", dest=b"/lib", why=""),
        Symlink(target=b"usr/lib64", dest=b"/lib64", why=""),
        Symlink(target=b"usr/sbin", dest=b"/sbin", why=""),
        Proc(dest=b"/proc", why=""),
        Dev(dest=b"/dev", why=""),
        Tmpfs(dest=b"/tmp", size_bytes=GIB, mode=0o1777, why=""),
        Tmpfs(dest=b"/run", size_bytes=64 * MIB, why=""),
        Bind(source=b"/proc/sys", dest=b"/proc/sys", why=""),
        Tmpfs(dest=b"/dev/shm", size_bytes=64 * MIB, mode=0o1777, why=""),
        Tmpfs(dest=b"/var/tmp", size_bytes=GIB, mode=0o1777, why=""),
        Symlink(target=b"../run", dest=b"/var/run", why=""),
        Tmpfs(dest=HOME, size_bytes=GIB, mode=0o700, why=""),
        File(content=b'[user]\n\temail = "ann@example.org"\n\tname = "Ann"\n', dest=HOME + b"/.gitconfig", why=""),
        Bind(
            source=HOME + b"/.local/share/unspill/playground/shop",
            dest=HOME + b"/playground",
            writable=True,
            why="",
        ),
        Overlay(lowers=(EMPTY, HOME + b"/.cargo/bin"), dest=HOME + b"/.cargo/bin", why=""),
        Overlay(
            lowers=(HOME + b"/.cache/pip",),
            dest=HOME + b"/.cache/pip",
            upper=layers + b"/home_ann_.cache_pip/upper",
            work=layers + b"/home_ann_.cache_pip/work",
            why="",
        ),
        Overlay(
            lowers=(layers + b"/s1/upper", layers + b"/s0/upper", PROJECT),
            dest=PROJECT,
            upper=layers + b"/home_ann_work_shop/upper",
            work=layers + b"/home_ann_work_shop/work",
            why="",
        ),
        ReadOnly(dest=b"/dev", why=""),
        ReadOnly(dest=b"/", why=""),
    )
    assert plan.warnings == ()
    assert (plan.bwrap, plan.engine, plan.cwd) == (b"/usr/bin/bwrap", "mount", PROJECT)
    assert plan.argv == (b"/bin/sh", b"-c", b"true")


def test_every_operation_says_why() -> None:
    hosts = given(policy=Policy(view="host"), places=places(top=(b"/var", b"/home"), sockets=(b"/var/x/s",)))
    for plan in (build_plan(given()), build_plan(hosts)):
        assert [operation for operation in plan.mounts if not operation.why] == []


def test_a_typical_sealed_plan_has_at_most_twenty_mounts() -> None:
    caches = tuple(cache(HOME + b"/" + name) for name in (b".cache/pip", b".npm/_cacache", b".cargo/registry"))
    tools = home(b".local/bin", b".cargo/bin", b".rustup/toolchains", b".nvm/versions")
    plan = build_plan(given(places=places(home=tools), caches=caches))
    assert sum(isinstance(op, Bind | Overlay | Tmpfs | Proc | Dev) for op in plan.mounts) <= 20


def test_limits_decide_the_size_of_what_lies_in_memory() -> None:
    plan = build_plan(given(policy=Policy(limits=Limits(tmp_bytes=5 * MIB))))
    sizes = {op.dest: op.size_bytes for op in plan.mounts if isinstance(op, Tmpfs)}
    assert sizes[b"/tmp"] == sizes[b"/var/tmp"] == sizes[HOME] == 5 * MIB
    assert plan.limits.tmp_bytes == 5 * MIB


def test_a_long_command_is_read_from_a_file() -> None:
    plan = build_plan(given(command_file=b"echo " + b"x" * 200_000))
    assert plan.argv == (b"/bin/sh", b"-c", b". /run/unspill-command")
    files = [op for op in plan.mounts if isinstance(op, File) and op.dest == COMMAND_FILE]
    assert [len(file.content) for file in files] == [200_005]


@pytest.mark.parametrize("live", [b"/tmp/p", b"/var/tmp/a/p", b"/run/media/ann/p", HOME + b"/p", b"/opt/x/p", b"/app"])
def test_a_project_is_seen_wherever_it_lies(live: bytes) -> None:
    ordered = mounts(stacks=(stack(live),), cwd=live)
    cover = find_cover(ordered, live + b"/x")
    assert isinstance(cover, Overlay)
    assert cover.dest == live
    parents = [op for op in ordered if lies_beneath(live, op.dest) and not isinstance(op, ReadOnly)]
    assert all(ordered.index(parent) < ordered.index(cover) for parent in parents)


def test_without_a_project_nothing_is_writable_but_the_playground() -> None:
    ordered = mounts(stacks=(), cwd=HOME)
    assert [op.dest for op in ordered if is_writable_mount(op)] == [HOME + b"/playground"]


def test_a_stack_without_an_open_layer_is_shown_read_only() -> None:
    closed = stack(PROJECT).replace(open=None)
    shown = at(PROJECT, stacks=(closed,))
    assert shown == Overlay(lowers=(EMPTY, PROJECT), dest=PROJECT, why=shown.why if shown else "")


def test_several_roots_have_an_overlay_each() -> None:
    ordered = mounts(stacks=(stack(PROJECT), stack(b"/srv/y")))
    assert [op.dest for op in ordered if isinstance(op, Overlay) and op.upper] == [b"/srv/y", PROJECT]


@pytest.mark.parametrize("view", ["sealed", "host"])
def test_other_layers_make_no_other_difference_to_a_plan(view: Any) -> None:
    """A live sandbox plans once, and puts the layers of each command into that."""
    caches = (cache(HOME + b"/.cache/pip"), cache(HOME + b"/.npm"))
    for roots in ((PROJECT,), (PROJECT, b"/srv/y")):
        first = given(stacks=tuple(map(stack, roots)), caches=caches, policy=Policy(view=view))
        others = tuple(stack(root, sealed=3, layers=b"/elsewhere").replace(mask=b"/mask") for root in roots)
        later = tuple(CacheLayer(path=old.path, stack=stack(old.path, layers=b"/elsewhere")) for old in caches)
        expected = build_plan(first.replace(stacks=others, caches=later))
        every = (*others, *(found.stack for found in later))
        assert with_other_layers(build_plan(first), every) == expected
    assert with_other_layers(build_plan(first), others[1:]) is None


def test_without_an_identity_there_is_no_git_configuration() -> None:
    assert at(HOME + b"/.gitconfig", places=places(home=home().replace(identity=()))) is None


@pytest.mark.parametrize("live", [b"/", b"/home", HOME, b"/usr/x", STATE + b"/x", HOME + b"/.ssh"])
def test_what_can_not_be_a_root_is_refused_by_the_planner_too(live: bytes) -> None:
    with pytest.raises(RootRefused):
        mounts(stacks=(stack(live),))


@pytest.mark.parametrize("path", [b"/", b"", b"home", b"/home/ann/"])
def test_a_home_that_would_cover_everything_is_refused(path: bytes) -> None:
    with pytest.raises(UsageError, match="home directory"):
        mounts(places=places(home=home().replace(path=path)))


def test_without_bwrap_there_is_no_plan() -> None:
    with pytest.raises(BwrapMissing):
        mounts(facts=facts(bwrap=None))


TOOL = HOME + b"/tools/bin"


@pytest.mark.parametrize(
    ("live", "shown"),
    [(TOOL, False), (HOME + b"/tools", False), (TOOL + b"/p", True), (HOME + b"/tools/bin-x", True)],
)
def test_a_toolchain_in_a_root_is_part_of_the_root(live: bytes, shown: bool) -> None:
    values = {"places": places(home=home(b"tools/bin")), "stacks": (stack(live),)}
    toolchain = [op for op in mounts(**values) if op.dest == TOOL and isinstance(op, Overlay) and not op.upper]
    assert bool(toolchain) == shown


def test_a_toolchain_in_another_is_mounted_once() -> None:
    ordered = mounts(places=places(home=home(b"conda/bin", b"conda", b"conda-x")))
    dests = [op.dest for op in ordered if op.why.startswith("toolchain")]
    assert dests == [HOME + b"/conda", HOME + b"/conda-x"]


def test_a_switch_turns_toolchains_and_caches_off() -> None:
    policy = Policy(toolchains=False, caches=False)
    ordered = mounts(policy=policy, places=places(home=home(b".cargo/bin")), caches=(cache(HOME + b"/.cache/pip"),))
    assert not [op for op in ordered if op.dest.startswith(HOME + b"/.c")]


CACHE = HOME + b"/.cache/pip"


@pytest.mark.parametrize(
    ("live", "shown"),
    [(CACHE, False), (HOME + b"/.cache", False), (CACHE + b"/p", False), (HOME + b"/p", True)],
)
def test_a_cache_that_has_to_do_with_a_root_is_not_shown(live: bytes, shown: bool) -> None:
    overlays = [op for op in mounts(stacks=(stack(live),), caches=(cache(CACHE),)) if isinstance(op, Overlay)]
    assert (CACHE in [op.dest for op in overlays if op.why.startswith("tool cache")]) == shown


def test_nothing_is_mounted_in_a_cache() -> None:
    caches = (cache(CACHE), cache(CACHE + b"/wheels"))
    policy = Policy(readable=(CACHE + b"/readable",))
    ordered = mounts(policy=policy, caches=caches, places=places(home=home(b".cache/pip/bin")))
    assert not [op for op in ordered if lies_beneath(op.dest, CACHE)]


@pytest.mark.parametrize("live", [HOME + b"/playground", HOME + b"/playground/p"])
def test_a_root_in_the_place_of_the_playground_wins(live: bytes) -> None:
    plan = build_plan(given(stacks=(stack(live),), cwd=live))
    assert not [op for op in plan.mounts if isinstance(op, Bind) and op.writable]
    assert any("playground" in warning for warning in plan.warnings)


def test_a_toolchain_in_the_persons_own_playground_is_not_mounted_in_ours() -> None:
    assert at(HOME + b"/playground/x/bin", places=places(home=home(b"playground/x/bin"))) is None


@pytest.mark.parametrize("engine", ["mount", "native"])
def test_an_overlay_over_a_mount_point_is_not_tried(engine: str) -> None:
    busy = places(home=home(b"tools"), mounted=(b"/opt/disk", HOME + b"/tools/disk", CACHE + b"/x", b"/", HOME))
    plan = build_plan(given(engine=engine, places=busy, caches=(cache(CACHE),)))
    overlays = [op.dest for op in plan.mounts if isinstance(op, Overlay)]
    assert overlays == [PROJECT]
    assert len(plan.warnings) == 3


def test_a_mount_point_in_a_root_is_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match="mounted on") as refused:
        mounts(places=places(mounted=(PROJECT + b"/disk",)))
    assert "mount it outside the project" in refused.value.remedy
    mounts(places=places(mounted=(PROJECT, PROJECT + b"-x")))


def test_a_state_directory_in_opt_is_masked() -> None:
    found = places(state=b"/opt/unspill")
    assert at(b"/opt", places=found) == Overlay(
        lowers=(b"/opt/unspill/empty", b"/opt"),
        dest=b"/opt",
        why="software outside /usr, without its sockets",
    )
    assert isinstance(at(b"/opt/unspill", places=found), Tmpfs)


def test_readable_paths_are_shown_without_sockets() -> None:
    policy = Policy(readable=(b"/srv/doc", HOME + b"/notes", HOME + b"/notes/sub", HOME + b"/one.txt", b"/gone"))
    plan = build_plan(given(policy=policy, places=places(files=(HOME + b"/one.txt",), absent=(b"/gone",))))
    readable = [op.replace(why="") for op in plan.mounts if op.why.startswith("readable")]
    assert readable == [
        Overlay(lowers=(EMPTY, b"/srv/doc"), dest=b"/srv/doc", why=""),
        Overlay(lowers=(EMPTY, HOME + b"/notes"), dest=HOME + b"/notes", why=""),
        Bind(source=HOME + b"/one.txt", dest=HOME + b"/one.txt", why=""),
    ]
    assert plan.warnings == ("The readable path /gone does not exist.",)


@pytest.mark.parametrize(
    "path",
    [HOME, b"/home", b"/", STATE, STATE + b"/x", HOME + b"/.local", b"/proc", b"/proc/1", b"/sys/x", b"/dev", b"/tmp"],
)
def test_a_readable_path_can_not_undo_the_view(path: bytes) -> None:
    with pytest.raises(UsageError, match="can't be readable"):
        mounts(policy=Policy(readable=(path,)))


PATHS = st.lists(
    st.sampled_from([b"home", b"ann", b"work", b"shop", b".cache", b"pip", b"playground", b"tmp", b"opt"]),
    min_size=1,
    max_size=5,
).map(lambda names: b"/" + b"/".join(names))
SETS = st.lists(PATHS, max_size=3).map(tuple)


@for_all(PATHS, SETS, SETS, SETS, SETS, st.sampled_from(["sealed", "host"]))
def test_no_plan_mounts_anything_where_an_earlier_run_could_write(
    live: bytes,
    toolchains: tuple[bytes, ...],
    caches: tuple[bytes, ...],
    readable: tuple[bytes, ...],
    hidden: tuple[bytes, ...],
    view: str,
) -> None:
    found = places(home=home().replace(toolchains=toolchains), secrets=hidden[:1], sockets=readable)
    values = {
        "places": found,
        "stacks": (stack(live),),
        "caches": tuple(map(cache, caches)),
        "policy": Policy(view=view, readable=readable, hidden=hidden),  # type: ignore[arg-type]
    }
    try:
        plan = build_plan(given(**values))
    except UnspillError as error:
        # Refused for a reason the person can see, never because of the last check, which is for our defects
        assert isinstance(error, UsageError)  # noqa: PT017
        return
    writable = [op.dest for op in plan.mounts if is_writable_mount(op)]
    assert live in writable
    assert not [op for op in plan.mounts for outer in writable if lies_beneath(op.dest, outer)]
    for path in hidden:
        cover = find_cover(plan.mounts, path + b"/x")
        assert cover is None or isinstance(cover, Tmpfs | Proc | Dev | File) or cover.dest == HOME + b"/playground"


PROXY = ProxyNetwork(hosts=("example.org", "*.example.com"))
EVERY: tuple[NetworkPlan, ...] = (NoNetwork(), PROXY, HostNetwork())


def plan(network: NetworkPlan, **extra: bytes) -> Plan:
    return build_plan(
        given(network=network, extra_environ=tuple((name.encode(), value) for name, value in extra.items()))
    )


@pytest.mark.parametrize("network", EVERY)
def test_only_the_host_mode_has_no_namespace_of_its_own(network: NetworkPlan) -> None:
    options, _contents = bwrap_options(plan(network), facts(), 7)
    assert (b"--unshare-net" in options) == (network != HostNetwork())


@pytest.mark.parametrize("network", EVERY)
def test_each_has_its_words(network: NetworkPlan) -> None:
    told = {explain(plan(other), facts()).splitlines()[1] for other in EVERY}
    assert len(told) == len(EVERY)
    assert explain(plan(network), facts()).splitlines()[1].startswith("network: ")


def test_the_host_mode_is_said_with_every_run() -> None:
    assert [HOST_NETWORK in plan(network).warnings for network in EVERY] == [False, False, True]


@pytest.mark.parametrize(
    ("place", "is_shown"),
    [(b"/run/systemd/resolve/stub-resolv.conf", True), (b"/etc/resolv.conf", False), (b"", False)],
)
def test_the_host_mode_finds_names_where_the_host_does(place: bytes, is_shown: bool) -> None:
    shown = Bind(source=place, dest=place, why="names resolve as on the host")
    assert (shown in plan(HostNetwork(resolver_file=place)).mounts) is is_shown
    assert shown not in plan(NoNetwork()).mounts


def test_the_words_name_the_hosts() -> None:
    assert "network: example.org, *.example.com; " in explain(plan(PROXY), facts())
    assert "network: any public host, example.org" in explain(plan(PROXY.replace(public=True)), facts())


@pytest.mark.parametrize("network", EVERY)
def test_only_a_proxy_has_variables_and_a_script(network: NetworkPlan) -> None:
    made = plan(network)
    has_variable = any(name == b"https_proxy" for name, _value in made.environ)
    has_script = any(isinstance(op, File) and op.dest == NODE_SCRIPT_PATH for op in made.mounts)
    assert has_variable is has_script is isinstance(network, ProxyNetwork)


def test_the_variables_lead_to_the_listener() -> None:
    inside = dict(plan(PROXY).environ)
    assert inside[b"https_proxy"] == b"http://127.0.0.1:%d" % PROXY_PORT
    assert (inside[b"GIT_CONFIG_COUNT"], inside[b"GIT_CONFIG_KEY_0"]) == (b"1", b"http.proxy")


def test_what_the_caller_sets_is_stronger() -> None:
    assert dict(plan(PROXY, https_proxy=b"http://127.0.0.1:1").environ)[b"https_proxy"] == b"http://127.0.0.1:1"


def test_settings_of_git_by_the_caller_stay_and_ours_come_behind() -> None:
    own = {"GIT_CONFIG_COUNT": b"1", "GIT_CONFIG_KEY_0": b"user.name", "GIT_CONFIG_VALUE_0": b"Ann"}
    inside = dict(plan(PROXY, **own).environ)
    assert inside[b"GIT_CONFIG_COUNT"] == b"2"
    assert (inside[b"GIT_CONFIG_KEY_0"], inside[b"GIT_CONFIG_KEY_1"]) == (b"user.name", b"http.proxy")


def test_a_count_of_settings_that_is_no_count_breaks_nothing() -> None:
    assert dict(plan(PROXY, GIT_CONFIG_COUNT=b"9" * 5000).environ)[b"GIT_CONFIG_COUNT"] == b"1"


NAMES = (b"--bind", b"a b", b"x\n--bind\n", b"a,b:c\\d", b"\xff\xfe", b"-", b"$(touch /tmp/pwned)", b"%s")


def paste(plan: Plan, given: PlanInput) -> subprocess.CompletedProcess[bytes]:
    text = paste_command(plan, given.facts).encode("ascii")
    return subprocess.run(["sh"], input=text, capture_output=True, check=False)


@pytest.mark.kernel
@pytest.mark.bwrap
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_bwrap_takes_a_hostile_name_for_a_name(tmp_path: Path, name: bytes) -> None:
    ground = Ground(tmp_path, name)
    given = ground.given("/bin/sh", "-c", 'pwd; cat kept; echo "$1"', name, name, engine="native")
    assert given.stacks[0].open is not None
    ground.write(given.stacks[0].open.upper + b"/kept", b"live\n")
    result = perform(given)
    assert result.stdout == ground.project + b"\nlive\n" + name + b"\n", result.stderr


@pytest.mark.kernel
@pytest.mark.bwrap
def test_an_option_in_a_name_would_be_obeyed_if_options_were_one_string(tmp_path: Path) -> None:
    ground = Ground(tmp_path, b"x --ro-bind /etc /injected")
    assert perform(ground.given("/bin/ls", "/injected", engine="native")).returncode != 0
    system = "--ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64"
    command = f"{bwrap()} {system} --dir {os.fsdecode(ground.project)} /usr/bin/ls /injected"
    control = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert "passwd" in control.stdout, control.stderr


INSIDE = """
for path in / /usr /etc /dev /proc/sys/kernel /opt; do touch "$path/probe" 2>/dev/null && echo "wrote $path"; done
for path in /tmp /var/tmp /run /dev/shm "$HOME" "$HOME/playground" .; do touch "$path/probe" || echo "not $path"; done
stat -c '%a %n' /tmp /var/tmp /run /dev/shm "$HOME"
grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs)' /proc/self/status
id -u; id -g; cat /proc/sys/kernel/hostname; ls /proc | grep -c '^[0-9]'; ls /sys 2>/dev/null
unshare --user true 2>/dev/null && echo "user namespace"
ls -A "$HOME"
"""


@pytest.mark.kernel
@pytest.mark.bwrap
def test_only_the_named_directories_can_be_written_and_no_capability_is_left(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    given = ground.given("/bin/sh", "-c", INSIDE)
    result = paste(build_plan(given), given)
    assert result.stderr == b""
    lines = result.stdout.decode().splitlines()
    assert not [line for line in lines if line.startswith(("wrote", "not", "user namespace"))]
    modes = [f"{mode} {path}" for mode, path in (("1777", "/tmp"), ("1777", "/var/tmp"), ("755", "/run"))]
    assert lines[:4] == [*modes, "1777 /dev/shm"]
    assert lines[4] == f"700 {os.fsdecode(ground.home)}"
    assert [line.split()[1] for line in lines[5:10]] == ["0" * 16] * 5
    assert lines[10].split() == ["NoNewPrivs:", "1"]
    assert lines[11:14] == [str(os.getuid()), str(os.getgid()), "unspill"]
    assert int(lines[14]) < 8
    assert lines[15:] == [".gitconfig", "playground", "probe", "work"]
    assert os.listdir(ground.playground) == [b"probe"]
    assert os.listdir(ground.project) == [b"kept"]


CONNECT = """
import errno, os, socket, sys
client = socket.socket(socket.AF_UNIX)
os.chdir(sys.argv[1])
code = client.connect_ex("s")
print(errno.errorcode[code] if code else "connected")
"""


@pytest.mark.kernel
@pytest.mark.bwrap
@pytest.mark.parametrize("defended", [True, False], ids=["overlay", "control: plain bind"])
def test_a_socket_below_a_readable_path_does_not_answer(tmp_path: Path, defended: bool) -> None:
    ground = Ground(tmp_path)
    shown = ground.home + b"/notes"
    ground.write(shown + b"/text", b"")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(shown)
        try:
            server.bind("s")
        finally:
            os.chdir(here)
        server.listen()
        given = ground.given("/usr/bin/python3", "-c", CONNECT, shown, policy=Policy(readable=(shown,)))
        plan = build_plan(given)
        if not defended:
            plan = plan.replace(mounts=tuple(as_bind(op) if op.dest == shown else op for op in plan.mounts))
        result = paste(plan, given)
    assert result.stdout.decode().strip() == ("ECONNREFUSED" if defended else "connected"), result.stderr


def as_bind(operation: object) -> Bind:
    assert isinstance(operation, Overlay)
    return Bind(source=operation.dest, dest=operation.dest, why=operation.why)


@pytest.mark.kernel
@pytest.mark.bwrap
def test_a_mount_beneath_a_root_would_write_to_the_host_and_is_never_planned(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    victim = tmp_path / "victim"
    victim.mkdir()
    os.symlink(b"/oldroot" + os.fsencode(victim), ground.project + b"/link")
    given = ground.given("/bin/true", engine="native")
    assert given.stacks[0].open is not None
    os.symlink(b"/oldroot" + os.fsencode(victim), given.stacks[0].open.upper + b"/link")
    plan = build_plan(given)
    attack = Tmpfs(dest=ground.project + b"/link/planted", size_bytes=4096, why="")
    with pytest.raises(SandboxUnavailable):
        check_no_mounts_beneath_roots((*plan.mounts, attack))
    assert perform(given).returncode == 0
    assert list(victim.iterdir()) == []
    # The control: what bwrap before 0.12 does with such a plan
    bad = plan.replace(mounts=(*plan.mounts[:-2], attack))
    paste(bad, given)
    assert given.facts.bwrap is not None
    is_flawed, unknown = has_symlink_flaw(given.facts.bwrap.path, os.fsencode(tmp_path))
    assert unknown == ""
    assert [path.name for path in victim.iterdir()] == (["planted"] if is_flawed else [])


SEE_HOST = """
cat "$HOME/notes" "$HOME/.netrc" 2>&1; ls -A "$HOME/.ssh" "$HOME/.local/state" /root /run 2>&1
cat "$HOME/s" 2>&1; touch "$HOME/new" "$HOME/.ssh/new" 2>&1
git config --global user.name; ls -d /var/lib/* 2>/dev/null; echo written >kept; cat kept
touch "$HOME/playground/probe"
"""


@pytest.mark.kernel
@pytest.mark.bwrap
def test_view_host_shows_the_home_without_its_secrets(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    for name in (b".ssh/id", b".netrc", b".local/state/x"):
        ground.write(ground.home + b"/" + name, b"canary\n")
    ground.write(ground.home + b"/notes", b"notes\n")
    places = ground.places(
        top=(b"/var", b"/root", b"/run", b"/tmp"),
        secrets=(ground.home + b"/.ssh", b"/var/lib"),
        secret_files=(ground.home + b"/.netrc",),
        own=(ground.home + b"/.local/state",),
    )
    given = ground.given("/bin/sh", "-c", SEE_HOST, policy=Policy(view="host"), places=places)
    plan = build_plan(given)
    make_skeleton(plan.skeleton)
    result = paste(plan, given)
    shown = result.stdout.decode()
    assert "canary" not in shown
    assert shown.startswith("notes\n"), result.stderr
    assert shown.endswith('A "q" \\ Ann\nwritten\n')
    assert shown.count("Read-only file system") == 2
    assert Path(os.fsdecode(ground.project), "kept").read_text() == "live\n"
    assert os.listdir(ground.playground) == [b"probe"]
