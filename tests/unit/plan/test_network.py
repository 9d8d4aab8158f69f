# SPDX-License-Identifier: Apache-2.0
"""What a plan says of the network: a namespace of its own but in the one mode that is named, and the way to a proxy."""

from __future__ import annotations

import pytest

from tests.unit.plan.given import facts, given
from unspill.model.plan import PROXY_PORT, Bind, File, HostNetwork, NoNetwork, ProxyNetwork
from unspill.plan.argv import bwrap_options
from unspill.plan.build import HOST_NETWORK, build_plan
from unspill.plan.environ import NODE_SCRIPT_PATH
from unspill.plan.explain import explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import NetworkPlan, Plan

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
