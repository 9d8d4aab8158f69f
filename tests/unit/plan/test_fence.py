# SPDX-License-Identifier: Apache-2.0
"""A Landlock fence from the mounts of a plan: pure, so every kernel can be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.given import HOME, PROJECT, facts, given, home, places
from unspill.errors import HostError
from unspill.model.plan import PROXY_PORT, Fence, HostNetwork, NoNetwork, ProxyNetwork
from unspill.model.policy import Policy
from unspill.plan.argv import ACCESS_RIGHTS, build_fence, handled_rights, rule_rights
from unspill.plan.build import build_plan

WRITE_RIGHTS = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13 | 1 << 14


def fence_of(abi: int = 7, **values: Any) -> Fence:
    plan = build_plan(given(**values))
    return build_fence(plan.mounts, facts(landlock_abi=abi), plan.network)


def access(fence: Fence) -> dict[bytes, str]:
    return {rule.path: rule.access for rule in fence.rules}


def test_roots_and_fresh_directories_can_be_written_and_the_system_only_read() -> None:
    found = access(fence_of(places=places(home=home(b".pyenv"))))
    assert {path for path, kind in found.items() if kind == "write"} == {
        *(b"/tmp", b"/var/tmp", b"/run", b"/dev/shm", HOME, HOME + b"/playground", PROJECT)
    }
    assert {found[path] for path in (b"/usr", b"/etc", b"/opt", HOME + b"/.pyenv")} == {"read"}
    assert (found[b"/"], found[b"/dev"], found[b"/proc"]) == ("list", "device", "process")


def test_a_mask_is_only_read() -> None:
    policy = Policy(hidden=(b"/opt/private", b"/etc/hidden"))
    found = access(fence_of(policy=policy, places=places(files=(b"/etc/hidden",))))
    assert {found[path] for path in (b"/opt/private", b"/etc/hidden")} == {"read"}


def test_nothing_but_write_can_change_a_file_that_lies_on_a_disk() -> None:
    assert not (ACCESS_RIGHTS["list"] | ACCESS_RIGHTS["read"]) & WRITE_RIGHTS
    assert not ACCESS_RIGHTS["device"] & (WRITE_RIGHTS & ~(1 << 1 | 1 << 14))
    assert ACCESS_RIGHTS["write"] & WRITE_RIGHTS == WRITE_RIGHTS
    # Neither character nor block devices, nowhere
    assert not any(rights & (1 << 6 | 1 << 11) for rights in ACCESS_RIGHTS.values())


@pytest.mark.parametrize(
    ("abi", "expected"),
    [
        (1, ((1 << 13) - 1, 0, 0)),
        (2, ((1 << 14) - 1, 0, 0)),
        (3, ((1 << 15) - 1, 0, 0)),
        (4, ((1 << 15) - 1, 3, 0)),
        (5, ((1 << 16) - 1, 3, 0)),
        (6, ((1 << 16) - 1, 3, 3)),
        (7, ((1 << 16) - 1, 3, 3)),
        (99, ((1 << 16) - 1, 3, 3)),
    ],
)
def test_all_that_a_kernel_can_fence_is_fenced_and_no_more(abi: int, expected: tuple[int, int, int]) -> None:
    fence = fence_of(abi)
    assert handled_rights(fence) == expected
    assert all(not rights & ~expected[0] for _path, rights in rule_rights(fence))


@pytest.mark.parametrize(
    ("network", "ports"),
    [
        (NoNetwork(), ()),
        (ProxyNetwork(hosts=("example.org",)), (PROXY_PORT,)),
        (HostNetwork(), None),
    ],
)
def test_tcp_leads_to_the_proxy_only_unless_a_network_was_granted_as_such(network: Any, ports: Any) -> None:
    assert fence_of(network=network).ports == ports


def test_a_kernel_without_landlock_has_no_fence() -> None:
    with pytest.raises(HostError, match="no Landlock") as refused:
        fence_of(0)
    assert "5.13" in refused.value.remedy
