# SPDX-License-Identifier: Apache-2.0
"""The sandbox in which packages are installed, as data: what is writable, what is reached, who the command is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plan.given import FILTER, facts
from unspill.errors import BwrapMissing
from unspill.model.plan import Bind, NoNetwork, Plan, Proc, ProxyNetwork, ReadOnly, Symlink, Tmpfs
from unspill.plan.argv import bwrap_options
from unspill.plan.rootfs import FRESH_PLACES, INSTALL_LIMITS, InstallInput, build_install

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


@given(st.sets(NAMES), st.dictionaries(NAMES, st.binary(max_size=20)))
def test_whatever_lies_at_the_top_nothing_is_mounted_below_it(names: set[bytes], links: dict[bytes, bytes]) -> None:
    tops = tuple(b"/" + name for name in sorted(names))
    linked = tuple((b"/" + name, target) for name, target in links.items() if name not in names)
    plan = build_install(GIVEN.replace(directories=tops, links=linked))
    for operation in plan.mounts:
        top = b"/" + operation.dest.split(b"/")[1]
        assert operation.dest == top or top in FRESH_PLACES
