# SPDX-License-Identifier: Apache-2.0
"""What a host must have for full IP networking, and what is said where it has not; the host is made up here."""

from pathlib import Path

import pytest

from unspill.errors import HostError
from unspill.host.bwrap import why_unsafe
from unspill.model.full_network import RESOLVER
from unspill.model.plan import File, PastaNetwork
from unspill.plan.full_network import resolver_operations
from unspill.sandbox import full_network
from unspill.sandbox.full_network import plan_pasta


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with all that is needed: the names of its files stand for those of a real one."""
    for name in ("pasta", "tun"):
        (tmp_path / name).touch(0o755)
    (tmp_path / "resolv.conf").write_text("# comment\nnameserver 127.0.0.53\nsearch example.org\n")
    monkeypatch.setattr(full_network, "_PROGRAMS", (bytes(tmp_path / "pasta"),))
    monkeypatch.setattr(full_network, "_TUN", bytes(tmp_path / "tun"))
    monkeypatch.setattr(full_network, "_RESOLVERS", bytes(tmp_path / "resolv.conf"))
    monkeypatch.setattr(full_network, "ways_out", lambda: (4, 6))
    monkeypatch.setattr(full_network, "own_addresses", lambda: frozenset({b"\x05\x05\x05\x05"}))
    monkeypatch.setattr(full_network, "why_unsafe", lambda _path: "")
    monkeypatch.setattr("os.getuid", lambda: 1000)
    return tmp_path


def test_a_host_that_has_everything(host: Path) -> None:
    assert plan_pasta(has_own_namespace=True) == PastaNetwork(
        program=bytes(host / "pasta"),
        versions=(4, 6),
        own=(b"\x05\x05\x05\x05",),
        resolver_file=bytes(host / "resolv.conf"),
        resolvers=(4,),
    )


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("pasta", "there is no `pasta`"),
        ("trust", "that only root can write"),
        ("tun", "may not open"),
        ("route", "no default route"),
        ("namespace", "outlive"),
        ("user", "not for root"),
        ("addresses", "can't be read"),
    ],
)
def test_what_is_missing_is_said_with_a_remedy(
    host: Path, missing: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing in ("pasta", "tun"):
        (host / missing).unlink()
    elif missing == "route":
        monkeypatch.setattr(full_network, "ways_out", lambda: ())
    elif missing == "trust":
        monkeypatch.setattr(full_network, "why_unsafe", why_unsafe)
    elif missing == "user":
        monkeypatch.setattr("os.getuid", lambda: 0)
    elif missing == "addresses":
        monkeypatch.setattr(full_network, "own_addresses", _unreadable)
    with pytest.raises(HostError, match=said) as refused:
        plan_pasta(has_own_namespace=missing != "namespace")
    assert refused.value.remedy


def _unreadable() -> frozenset[bytes]:
    raise PermissionError


def test_without_a_resolver_file_none_is_replaced(host: Path) -> None:
    (host / "resolv.conf").unlink()
    network = plan_pasta(has_own_namespace=True)
    assert (network.resolver_file, network.resolvers) == (b"", ())
    assert list(resolver_operations(network)) == []


@pytest.mark.parametrize(
    ("place", "over"), [(b"/etc/resolv.conf", True), (b"/run/systemd/resolve/stub-resolv.conf", False)]
)
def test_the_resolver_of_the_link_takes_the_place_of_the_hosts(place: bytes, over: bool) -> None:
    network = PastaNetwork(program=b"/usr/bin/pasta", resolver_file=place, resolvers=(4, 6))
    (file,) = resolver_operations(network)
    assert isinstance(file, File)
    assert (file.dest, file.over) == (place, over)
    assert file.content == f"nameserver {RESOLVER[4]}\nnameserver {RESOLVER[6]}\n".encode()
