# SPDX-License-Identifier: Apache-2.0
"""The person's own settings replace; those of a project, of directories above it and of a call can only tighten."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import PolicyError
from unspill.model.policy import Limits, Network, Policy, Rules, Secrets
from unspill.model.rootfs import RootfsSpec
from unspill.policy.config import PROJECT_KEYS, Settings
from unspill.policy.merge import lower_limits, seen_from, tighten, tightest, with_own


def settings(**values: Any) -> Settings:
    return Settings(where="file", **values)


def test_own_tables_replace_what_they_name() -> None:
    own = settings(network=(("hosts", ("example.org",)),), permissions=(("unsandboxed", "ask"),))
    expected = Policy(network=Network(hosts=("example.org",)), permissions=Rules(unsandboxed="ask"))
    assert with_own(Policy(), own) == expected


def test_own_settings_replace_the_defaults() -> None:
    own = settings(view="host", hidden=(b"/x",), caches=False, limits=(("processes", 9), ("wall_s", None)))
    expected = Policy(view="host", hidden=(b"/x",), caches=False, limits=Limits(processes=9, wall_s=None))
    assert with_own(Policy(), own) == expected


def test_silence_changes_nothing() -> None:
    policy = Policy(view="host", environment=("A",), after="discard", shown_lines=3)
    assert with_own(policy, settings()) == policy
    assert tighten(policy, settings()) == policy


LOOSE = Policy(
    view="host",
    rootfs_writable=True,
    tmp="persistent",
    hidden=(b"/a",),
    environment=("A", "B*"),
    limits=Limits(wall_s=None),
    network=Network(hosts=("example.org", "*.example.com"), up_bytes=None, down_bytes=9),
)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"view": "sealed"}, {"view": "sealed"}),
        ({"view": "host"}, {}),
        ({"view": "rootfs"}, {"view": "rootfs"}),
        ({"rootfs_writable": False, "tmp": "fresh"}, {"rootfs_writable": False, "tmp": "fresh"}),
        ({"rootfs_writable": True, "tmp": "persistent"}, {}),
        ({"hidden": (b"/b", b"/a")}, {"hidden": (b"/a", b"/b")}),
        ({"toolchains": False, "caches": False}, {"toolchains": False, "caches": False}),
        ({"toolchains": True, "caches": True}, {}),
        ({"environment": ()}, {"environment": ()}),
        ({"environment": ("B*",)}, {"environment": ("B*",)}),
        ({"profile": "strict"}, {"profile": "strict"}),
        ({"profile": "default"}, {}),
        ({"after": "discard"}, {"after": "discard"}),
        ({"after": "hold", "after_timeout": "discard"}, {"after": "hold", "after_timeout": "discard"}),
        ({"after_cancel": "discard"}, {"after_cancel": "discard"}),
        ({"after": "apply"}, {}),
        ({"shown_lines": 50, "shown_bytes": 1}, {"shown_bytes": 1}),
        ({"limits": (("wall_s", 5.0),)}, {"limits": Limits(wall_s=5.0)}),
        ({"limits": (("wall_s", None), ("processes", 512))}, {}),
        ({"network": (("hosts", ()),)}, {"network": LOOSE.network.replace(hosts=())}),
        ({"network": (("hosts", ("a.example.com",)),)}, {"network": LOOSE.network.replace(hosts=("a.example.com",))}),
        (
            {"network": (("up_bytes", 5), ("down_bytes", 8))},
            {"network": LOOSE.network.replace(up_bytes=5, down_bytes=8)},
        ),
        (
            {"permissions": (("network", "deny"), ("longest", "once"), ("grant_days", 1), ("wait_s", 1.0))},
            {"permissions": Rules(network="deny", longest="once", grant_days=1, wait_s=1.0)},
        ),
        ({"permissions": (("network", "ask"), ("unsandboxed", "deny"), ("approver", "terminal"))}, {}),
        ({"permissions": (("approver", "deny"),)}, {"permissions": Rules(approver="deny")}),
        (
            {"permissions": (("max_denials", 1), ("max_same_denials", 1), ("denial_window_s", 900.0))},
            {"permissions": Rules(max_denials=1, max_same_denials=1, denial_window_s=900.0)},
        ),
    ],
    ids=str,
)
def test_a_project_may_tighten(said: dict[str, Any], expected: dict[str, Any]) -> None:
    assert tighten(LOOSE, settings(**said)) == LOOSE.replace(**expected)


TIGHT = Policy(
    toolchains=False,
    caches=False,
    environment=("A",),
    limits=Limits(wall_s=5.0),
    profile="strict",
    shown_lines=10,
    after="discard",
    network=Network(hosts=("example.org",), up_bytes=5),
    permissions=Rules(network="deny", longest="run", grant_days=2, wait_s=5.0),
)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("view", {"view": "host"}),
        ("rootfs", {"rootfs": "alpine"}),
        ("rootfs_dir", {"rootfs_dir": b"/x"}),
        ("provision", {"provision": RootfsSpec(source="alpine")}),
        ("mounts", {"mounts": ()}),
        ("container", {"container": False}),
        ("rootfs_writable", {"rootfs_writable": True}),
        ("tmp", {"tmp": "persistent"}),
        ("roots", {"roots": ()}),
        ("readable", {"readable": (b"/x",)}),
        ("toolchains", {"toolchains": True}),
        ("caches", {"caches": True}),
        ("environment", {"environment": ("B",)}),
        ("environment", {"environment": ("A", "A*")}),
        ("profile", {"profile": "default"}),
        ("after", {"after": "apply"}),
        ("after_timeout", {"after_timeout": "apply"}),
        ("after_cancel", {"after_cancel": "apply"}),
        ("keep_days", {"keep_days": 1}),
        ("keep_bytes", {"keep_bytes": 1}),
        ("engine", {"engine": "mount"}),
        ("bwrap", {"bwrap": b"/tmp/bwrap"}),
        ("allow_root", {"allow_root": False}),
        ("shown_lines", {"shown_lines": 11}),
        ("limits.wall_s", {"limits": (("wall_s", 5.1),)}),
        ("limits.wall_s", {"limits": (("wall_s", None),)}),
        ("limits.processes", {"limits": (("processes", 513),)}),
        ("limits.nothing", {"limits": (("nothing", 1),)}),
        ("network.hosts", {"network": (("hosts", ("example.org", "www.example.org")),)}),
        ("network.hosts", {"network": (("hosts", ("*.example.org",)),)}),
        ("network.hosts", {"network": (("hosts", ("example.org:22",)),)}),
        ("network.mode", {"network": (("mode", "proxy"),)}),
        ("network.up_bytes", {"network": (("up_bytes", 6),)}),
        ("network.up_bytes", {"network": (("up_bytes", None),)}),
        ("permissions.network", {"permissions": (("network", "ask"),)}),
        ("permissions.unsandboxed", {"permissions": (("unsandboxed", "ask"),)}),
        ("permissions.longest", {"permissions": (("longest", "sandbox"),)}),
        ("permissions.grant_days", {"permissions": (("grant_days", 3),)}),
        ("permissions.wait_s", {"permissions": (("wait_s", 6.0),)}),
        ("permissions.approver", {"permissions": (("approver", "queue"),)}),
        ("permissions.max_denials", {"permissions": (("max_denials", 11),)}),
        ("permissions.max_same_denials", {"permissions": (("max_same_denials", 4),)}),
        ("permissions.denial_window_s", {"permissions": (("denial_window_s", 599.0),)}),
    ],
    ids=str,
)
def test_a_project_that_would_widen_is_an_error(key: str, said: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=f"^file: {key}: ") as wrong:
        tighten(TIGHT, settings(**said))
    assert wrong.value.remedy


@pytest.mark.parametrize("wanted", ["sealed", "host"])
def test_a_project_can_not_leave_the_rootfs_for_the_hosts_own_system(wanted: Any) -> None:
    with pytest.raises(PolicyError, match="shows more than the view `rootfs`"):
        tighten(Policy(view="rootfs"), settings(view=wanted))
    assert tighten(Policy(view="sealed"), settings(view="rootfs")).view == "rootfs"


def test_what_a_project_may_set_is_what_tighten_accepts() -> None:
    fields: set[str] = set(Settings.__match_args__) - {"where"}
    assert set(PROJECT_KEYS) <= fields
    for key in fields - set(PROJECT_KEYS):
        with pytest.raises(PolicyError, match="only your own configuration"):
            tighten(Policy(), settings(**{key: ()}))


def test_a_call_lowers_limits_only() -> None:
    assert lower_limits(Limits(), (("wall_s", 1.0),), "run") == Limits(wall_s=1.0)
    with pytest.raises(PolicyError, match=r"run: limits\.wall_s: 601"):
        lower_limits(Limits(), (("wall_s", 601),), "run")


BOUNDS = st.one_of(st.none(), st.integers(1, 5))
LIMIT_NAMES = ("wall_s", "processes", "layer_bytes")


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    names = st.lists(st.sampled_from(["A", "B", "C*"]), unique=True).map(tuple)
    paths = st.lists(st.sampled_from([b"/a", b"/b"]), unique=True).map(tuple)
    values = {
        "view": st.sampled_from(["sealed", "host", "rootfs"]),
        "tmp": st.sampled_from(["fresh", "persistent"]),
        "rootfs_writable": st.booleans(),
        "hidden": paths,
        "toolchains": st.booleans(),
        "caches": st.booleans(),
        "environment": names,
        "profile": st.sampled_from(["default", "strict"]),
        "after": st.sampled_from(["apply", "hold", "discard"]),
        "after_timeout": st.sampled_from(["apply", "hold", "discard"]),
        "after_cancel": st.sampled_from(["apply", "hold", "discard"]),
        "shown_lines": st.integers(1, 5),
    }
    said = {key: draw(st.one_of(st.none(), kind)) for key, kind in values.items()}
    limits = tuple((name, draw(BOUNDS)) for name in draw(st.sets(st.sampled_from(LIMIT_NAMES))))
    return Settings(where="file", limits=limits, **said)  # type: ignore[arg-type]


def is_no_wider(policy: Policy, than: Policy) -> bool:
    def lower(one: float | None, other: float | None) -> bool:
        return other is None or (one is not None and one <= other)

    return (
        (policy.view, than.view) not in {("host", "sealed"), ("host", "rootfs"), ("sealed", "rootfs")}
        and (policy.tmp, than.tmp) != ("persistent", "fresh")
        and policy.rootfs_writable <= than.rootfs_writable
        and (policy.profile == "strict" or than.profile == "default")
        and (policy.roots, policy.readable, policy.engine) == (than.roots, than.readable, than.engine)
        and set(policy.hidden) >= set(than.hidden)
        and policy.toolchains <= than.toolchains
        and policy.caches <= than.caches
        and set(policy.environment) <= set(than.environment)
        and policy.shown_lines <= than.shown_lines
        and (policy.after != "apply" or than.after == "apply")
        and (policy.after_timeout != "apply" or than.after_timeout == "apply")
        and (policy.after_cancel != "apply" or than.after_cancel == "apply")
        and all(lower(getattr(policy.limits, name), getattr(than.limits, name)) for name in LIMIT_NAMES)
    )


@given(any_settings(), any_settings())
def test_no_project_file_ever_widens(own: Settings, project: Settings) -> None:
    policy = with_own(Policy(), own)
    try:
        tightened = tighten(policy, project)
    except PolicyError:
        return
    assert is_no_wider(tightened, policy)
    assert tighten(tightened, settings(hidden=project.hidden)) == tightened


@given(any_settings(), any_settings(), any_settings())
def test_the_result_is_no_wider_than_either(own: Settings, inner: Settings, outer: Settings) -> None:
    policy = with_own(Policy(), own)
    try:
        one, other = tighten(policy, inner), tighten(policy, outer)
    except PolicyError:
        return
    found = tightest(one, other)
    assert is_no_wider(found, one)
    assert is_no_wider(found, other)
    assert tightest(one, one) == one


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (
            {"network": Network(hosts=("a.example.org", "b.example.org"), up_bytes=5)},
            {"network": Network(hosts=("*.example.org",), up_bytes=None, down_bytes=7)},
            {"network": Network(hosts=("a.example.org", "b.example.org"), up_bytes=5, down_bytes=7)},
        ),
        (
            {"network": Network(hosts=("a.example.org",))},
            {"network": Network(hosts=("b.example.org",))},
            {"network": Network()},
        ),
        (
            {"permissions": Rules(egress="deny", grant_days=3, longest="sandbox", max_denials=5, denial_window_s=60)},
            {"permissions": Rules(held="deny", grant_days=5, longest="once", approver="deny", max_denials=7)},
            {
                "permissions": Rules(
                    egress="deny", held="deny", grant_days=3, longest="once", approver="deny", max_denials=5
                )
            },
        ),
        (
            {"secrets": Secrets(mask=False, names=(b"a",), directories=(b"x",), reveal=(b".env",))},
            {"secrets": Secrets(names=(b"b",), directories=(b"y",), reveal=(b".env",))},
            {"secrets": Secrets(names=(b"a", b"b"), directories=(b"x", b"y"), reveal=(b".env",))},
        ),
        ({"limits": Limits(processes=None)}, {"limits": Limits(processes=20)}, {"limits": Limits(processes=20)}),
    ],
)
def test_of_both_the_tighter_counts(one: dict[str, Any], other: dict[str, Any], expected: dict[str, Any]) -> None:
    assert tightest(Policy(**one), Policy(**other)) == Policy(**expected)


def test_directories_of_secrets_are_seen_from_the_project() -> None:
    said = Settings(where="file", secrets=(("directories", (b"a", b"a/b", b"a/b/c", b"ab", b"d")), ("names", (b"n",))))
    found = dict(seen_from(b"/p/a", said, b"/p").secrets)
    assert found == {"directories": (b"b", b"b/c"), "names": (b"n",)}
