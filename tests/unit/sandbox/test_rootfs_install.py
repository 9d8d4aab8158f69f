# SPDX-License-Identifier: Apache-2.0
"""What an installation may reach although it is not public: the exact addresses that the person named, and no more."""

import os
from pathlib import Path

import pytest

from tests.unit.plan.given import facts
from unspill.errors import PolicyError, RootfsError
from unspill.network.resolve import AddressRules, Endpoint
from unspill.policy.hosts import Refused
from unspill.sandbox.rootfs_use import InstallGround, find_endpoints, install

LOOPBACK = bytes((127, 0, 0, 1))


def test_an_address_that_was_named_is_reached_on_its_port() -> None:
    assert find_endpoints(["127.0.0.1:8080"]) == {Endpoint(address=LOOPBACK, port=8080)}
    assert find_endpoints(["[::1]:8080"]) == {Endpoint(address=bytes(15) + b"\1", port=8080)}
    assert {endpoint.port for endpoint in find_endpoints(["10.0.0.7"])} == {80, 443}


@pytest.mark.parametrize("host", ["mirror.example.org:80", "*.example.org", "mirror.example.org"])
def test_a_name_never_opens_an_address_that_is_not_public(host: str) -> None:
    assert find_endpoints([host]) == frozenset()


def test_other_ports_and_addresses_stay_closed() -> None:
    rules = AddressRules(endpoints=find_endpoints(["127.0.0.1:8080"]))
    rules.check(LOOPBACK, 8080)
    for packed, port in ((LOOPBACK, 8081), (bytes((127, 0, 0, 2)), 8080), (bytes((10, 0, 0, 1)), 8080)):
        with pytest.raises(Refused):
            rules.check(packed, port)


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(PolicyError):
        find_endpoints(["http://example.org/"])


def ground(state: Path) -> InstallGround:
    return InstallGround(state=os.fsencode(state), facts=facts(), engine="mount")


def test_a_tree_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RootfsError, match="can't be read"):
        install(os.fsencode(tmp_path / "none"), [b"/bin/true"], [], ground=ground(tmp_path))


def test_a_tree_with_hundreds_of_entries_at_its_top_is_refused(tmp_path: Path) -> None:
    for number in range(257):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(RootfsError, match="more than 256"):
        install(os.fsencode(tmp_path), [b"/bin/true"], [], ground=ground(tmp_path))
