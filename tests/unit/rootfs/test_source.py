# SPDX-License-Identifier: Apache-2.0
"""The names of architectures."""

import platform

import pytest

from unspill.errors import RootfsError
from unspill.rootfs.source import ARCH_MAP, DEBIAN_NAMES, OCI_PLATFORMS, arch_of, detect_arch


def test_detect_arch_x86_64() -> None:
    assert detect_arch("x86_64") == "x86_64"


def test_detect_arch_aarch64() -> None:
    assert detect_arch("aarch64") == "aarch64"


def test_detect_arch_arm64_maps_to_aarch64() -> None:
    assert detect_arch("arm64") == "aarch64"


@pytest.mark.parametrize(("machine", "ours"), [("armv7l", "armv7"), ("i686", "x86"), ("i386", "x86")])
def test_older_machines_are_mapped(machine: str, ours: str) -> None:
    assert detect_arch(machine) == ours


@pytest.mark.parametrize("machine", ["riscv64", "s390x", "X86_64", "../x86_64"])
def test_detect_arch_unsupported_raises(machine: str) -> None:
    with pytest.raises(RootfsError, match="not supported") as caught:
        detect_arch(machine)
    assert "aarch64" in caught.value.remedy


def test_this_machine_is_detected() -> None:
    assert detect_arch() == arch_of("") == ARCH_MAP[platform.machine()]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("amd64", "x86_64"),
        ("arm64", "aarch64"),
        ("armhf", "armv7"),
        ("arm/v7", "armv7"),
        ("386", "x86"),
        ("x86", "x86"),
    ],
)
def test_a_wish_may_use_any_of_the_names(name: str, ours: str) -> None:
    assert arch_of(name) == ours


def test_a_wish_for_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(RootfsError, match="sparc is not supported"):
        arch_of("sparc")


def test_every_architecture_has_each_of_its_names() -> None:
    assert set(ARCH_MAP.values()) == set(DEBIAN_NAMES) == set(OCI_PLATFORMS)
