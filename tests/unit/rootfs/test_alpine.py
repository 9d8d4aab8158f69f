# SPDX-License-Identifier: Apache-2.0
"""Which Alpine a spec means, which digest it must have, and what speaks for that digest."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernel.alpine_mirror import Mirror, releases_yaml, serve_mirror
from tests.kernel.alpine_parts import ARCH
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import RootfsSpec
from unspill.rootfs.alpine import (
    KNOWN,
    TIER1_PACKAGES,
    TIER2_PACKAGES,
    AlpineSource,
    host_of,
    known_digest,
    mirror_of,
    packages_of,
)
from unspill.rootfs.source import BuildContext, Resolved, variant_of

VERSION, OTHER = "3.99.1", "3.99.0"
DIGEST, WRONG = "a1" * 32, "b2" * 32
KNOWN_VERSION = "3.23.3"


def name_of(version: str, arch: str = ARCH) -> str:
    return f"alpine-minirootfs-{version}-{arch}.tar.gz"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    """A mirror that says what it has, and has only that."""
    with serve_mirror() as served:
        say(served, VERSION, DIGEST)
        yield served


def say(mirror: Mirror, version: str, digest: str, arch: str = ARCH) -> None:
    """Have a mirror say that this is its newest version."""
    text = releases_yaml(version, name_of(version), digest).replace(ARCH, arch)
    mirror.files[f"/alpine/latest-stable/releases/{arch}/latest-releases.yaml"] = text.encode()
    branch = "v" + version.rpartition(".")[0]
    mirror.files[f"/alpine/{branch}/releases/{arch}/{name_of(version, arch)}.sha256"] = digest.encode()


def nothing(*_words: object) -> Any:
    """Stand for means that resolving has no use for."""
    return None


def resolve(served: Mirror, /, **fields: Any) -> Resolved:
    spec = RootfsSpec(source="alpine", **{"mirror": served.address, **fields})
    return AlpineSource().resolve(
        spec, BuildContext(downloads=b"/nowhere", scratch=b"/nowhere", install=nothing, report=nothing)
    )


def test_without_a_version_the_newest_is_meant(mirror: Mirror) -> None:
    resolved = resolve(mirror)
    assert resolved.key.name == f"alpine-{VERSION}-{ARCH}-t1"
    assert resolved.fetch == f"{mirror.address}/v3.99/releases/{ARCH}/{name_of(VERSION)}"
    assert (resolved.sha256, resolved.proof) == (DIGEST, "same-server")


def test_a_named_version_is_not_looked_up_in_the_index(mirror: Mirror) -> None:
    say(mirror, OTHER, WRONG)
    mirror.asked.clear()
    resolved = resolve(mirror, version=OTHER)
    assert (resolved.key.version, resolved.sha256, resolved.proof) == (OTHER, WRONG, "same-server")
    assert mirror.asked == [f"/alpine/v3.99/releases/{ARCH}/{name_of(OTHER)}.sha256"]


def test_a_pinned_digest_is_proof_and_needs_no_mirror(mirror: Mirror) -> None:
    mirror.asked.clear()
    resolved = resolve(mirror, version=VERSION, sha256=WRONG)
    assert (resolved.sha256, resolved.proof) == (WRONG, "pinned")
    assert mirror.asked == []


def test_the_newest_version_must_be_the_pinned_one(mirror: Mirror) -> None:
    assert resolve(mirror, sha256=DIGEST).proof == "pinned"
    with pytest.raises(RootfsUnverified, match="you pinned"):
        resolve(mirror, sha256=WRONG)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_a_digest_of_our_release_is_proof_and_needs_no_mirror(mirror: Mirror, arch: str) -> None:
    mirror.asked.clear()
    resolved = resolve(mirror, version=KNOWN_VERSION, arch=arch)
    assert (resolved.sha256, resolved.proof) == (KNOWN["alpine", KNOWN_VERSION, arch], "known")
    assert mirror.asked == []


def test_a_mirror_that_contradicts_a_digest_of_our_release_is_not_believed(mirror: Mirror) -> None:
    say(mirror, KNOWN_VERSION, WRONG, "x86_64")
    with pytest.raises(RootfsUnverified, match="this unspill release knows"):
        resolve(mirror, arch="x86_64")
    say(mirror, KNOWN_VERSION, KNOWN["alpine", KNOWN_VERSION, "x86_64"], "x86_64")
    assert resolve(mirror, arch="x86_64").proof == "known"


def test_a_person_who_pins_a_digest_is_stronger_than_our_release(mirror: Mirror) -> None:
    resolved = resolve(mirror, version=KNOWN_VERSION, arch="x86_64", sha256=WRONG)
    assert (resolved.sha256, resolved.proof) == (WRONG, "pinned")


def test_every_digest_of_our_release_has_the_form_of_one() -> None:
    assert len(set(KNOWN.values())) == len(KNOWN)
    for (source, version, arch), digest in KNOWN.items():
        assert (source, arch) in (("alpine", "x86_64"), ("alpine", "aarch64"))
        assert re.fullmatch(r"3\.\d+\.\d+ [0-9a-f]{64}", f"{version} {digest}")
    assert known_digest("alpine", "3.99.1", "x86_64") == known_digest("debian", KNOWN_VERSION, "x86_64") == ""


def test_a_version_that_the_mirror_does_not_have_is_unreachable(mirror: Mirror) -> None:
    with pytest.raises(RootfsUnreachable, match="404"):
        resolve(mirror, version="3.98.0")


def test_the_tiers_are_those_of_the_plan() -> None:
    assert TIER1_PACKAGES == ("bash", "python3", "py3-pip", "coreutils", "grep", "sed")
    both = packages_of(RootfsSpec(source="alpine", tier=2))
    assert both == (*TIER1_PACKAGES, *TIER2_PACKAGES)
    assert both[6:] == ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm")


def test_each_tier_and_each_set_of_packages_is_a_rootfs_of_its_own(mirror: Mirror) -> None:
    names = [
        resolve(mirror, **fields).key.name
        for fields in ({}, {"tier": 2}, {"packages": ("jq", "go")}, {"packages": ("go", "jq")}, {"packages": ("go",)})
    ]
    assert names[2] == names[3]
    assert len(set(names)) == 4
    assert names[1] == f"alpine-{VERSION}-{ARCH}-t2"
    assert re.fullmatch(f"alpine-{VERSION}-{ARCH}-t1-p[0-9a-f]{{10}}", names[2])


def test_packages_of_a_wish_come_behind_those_of_the_tier_and_none_twice() -> None:
    assert packages_of(RootfsSpec(source="alpine", packages=("go", "bash"))) == (*TIER1_PACKAGES, "go")
    assert variant_of(()) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"packages": ("--allow-untrusted",)},
        {"packages": ("-p",)},
        {"packages": ("/root/evil.apk",)},
        {"packages": ("go;id",)},
        {"packages": ("",)},
        {"tier": 3},
        {"tier": 0},
        {"version": "edge"},
        {"version": "../3.23.3"},
        {"version": "3.23.3/x"},
        {"arch": "vax"},
        {"sha256": "abc"},
        {"mirror": "ftp://example.org"},
        {"mirror": "file:///etc"},
        {"mirror": "http://example.org/\nhttp://evil.example.org/"},
        {"mirror": "http://me:secret@example.org/"},
        {"mirror": "http://example.org:99999/"},
        {"label": "mine"},
    ],
)
def test_a_wish_that_can_not_be_met_is_refused_before_anything_is_asked(mirror: Mirror, fields: dict[str, Any]) -> None:
    mirror.asked.clear()
    with pytest.raises(RootfsError):
        resolve(mirror, **fields)
    assert mirror.asked == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://dl-cdn.alpinelinux.org/alpine", "dl-cdn.alpinelinux.org:443"),
        ("http://Example.ORG/x", "example.org:80"),
        ("http://127.0.0.1:8080/alpine", "127.0.0.1:8080"),
        ("https://[2001:db8::1]/alpine", "[2001:db8::1]:443"),
    ],
)
def test_the_proxy_is_told_the_host_and_the_port_of_the_mirror(address: str, expected: str) -> None:
    assert host_of(address) == expected


def test_the_usual_mirror_is_alpines_own() -> None:
    assert mirror_of(RootfsSpec(source="alpine")) == "https://dl-cdn.alpinelinux.org/alpine"
    assert mirror_of(RootfsSpec(source="alpine", mirror="http://example.org/a/")) == "http://example.org/a"
