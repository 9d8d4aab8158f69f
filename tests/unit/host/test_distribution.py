# SPDX-License-Identifier: Apache-2.0
"""Remedies as a person on each distribution would type them."""

import pytest

from unspill.host.distribution import (
    Distribution,
    install_command,
    parse_os_release,
    read_distribution,
    remedy_for,
)

RELEASES = {
    "debian": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian\n',
    "ubuntu": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n',
    "mint": 'NAME="Linux Mint"\nID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"\n',
    "fedora": 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=41\n',
    "rocky": 'NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n',
    "arch": 'NAME="Arch Linux"\nID=arch\nBUILD_ID=rolling\n',
    "manjaro": 'NAME="Manjaro Linux"\nID=manjaro\nID_LIKE=arch\n',
    "leap": 'NAME="openSUSE Leap"\nID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="15.6"\n',
    "tumbleweed": 'ID="opensuse-tumbleweed"\n',
    "alpine": 'NAME="Alpine Linux"\nID=alpine\nVERSION_ID=3.20.3\n',
    "nixos": 'NAME=NixOS\nID=nixos\nVERSION_ID="24.11"\n',
    "unknown": "NAME='Home Made'\nID=homemade\n",
}
INSTALLS = {
    "debian": "apt install",
    "ubuntu": "apt install",
    "mint": "apt install",
    "fedora": "dnf install",
    "rocky": "dnf install",
    "arch": "pacman -S",
    "manjaro": "pacman -S",
    "leap": "zypper install",
    "tumbleweed": "zypper install",
    "alpine": "apk add",
    "nixos": "environment.systemPackages",
    "unknown": "your distribution",
}
REPAIRS = (
    "bwrap-missing bwrap-unsafe bwrap-0.8 bwrap-0.11 bwrap-0.12 apparmor max-user-namespaces userns-clone "
    "surroundings flatpak proc disable-userns state-filesystem state cgroup root-caller kernel"
).split()


@pytest.mark.parametrize("name", RELEASES)
def test_bubblewrap_is_installed_as_that_distribution_does(name: str) -> None:
    distribution = parse_os_release(RELEASES[name])
    assert INSTALLS[name] in install_command(distribution)
    assert INSTALLS[name] in remedy_for("bwrap-missing", distribution)


@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("name", ["debian", "nixos", "unknown"])
def test_there_is_a_remedy_for_everything_everywhere(repair: str, name: str) -> None:
    assert remedy_for(repair, parse_os_release(RELEASES[name])).strip()  # type: ignore[arg-type]


def test_fields_are_read_quoted_or_not() -> None:
    assert parse_os_release(RELEASES["mint"]) == Distribution(
        id="linuxmint", like=("ubuntu", "debian"), name="Linux Mint", version="22"
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (r'NAME="Bob\"s \$Linux"', 'Bob"s $Linux'),
        ("NAME='Single'", "Single"),
        ("#NAME=Comment", "this Linux"),
        ("NAME", "this Linux"),
        ("", "this Linux"),
    ],
)
def test_odd_lines_do_no_harm(line: str, name: str) -> None:
    assert parse_os_release(line).name == name


def test_the_apparmor_profile_names_the_bwrap_that_is_used() -> None:
    ubuntu = parse_os_release(RELEASES["ubuntu"])
    text = remedy_for("apparmor", ubuntu, bwrap="/usr/local/bin/bwrap")
    assert "profile unspill-bwrap /usr/local/bin/bwrap flags=(unconfined) {\n  userns,\n}" in text
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in text
    assert "\nEND\nsudo apparmor_parser -r /etc/apparmor.d/unspill-bwrap" in text


@pytest.mark.parametrize(
    ("repair", "setting"),
    [("max-user-namespaces", "user.max_user_namespaces=15000"), ("userns-clone", "kernel.unprivileged_userns_clone=1")],
)
def test_a_setting_of_the_kernel_is_given_whole(repair: str, setting: str) -> None:
    text = remedy_for(repair, parse_os_release(RELEASES["debian"]))  # type: ignore[arg-type]
    assert f"echo {setting} | sudo tee /etc/sysctl.d/60-unspill.conf && sudo sysctl --system" in text


def test_settings_on_nixos_go_into_its_configuration() -> None:
    text = remedy_for("max-user-namespaces", parse_os_release(RELEASES["nixos"]))
    assert 'boot.kernel.sysctl."user.max_user_namespaces" = 15000;' in text
    assert "sudo tee" not in text


def test_this_system_has_a_name() -> None:
    assert read_distribution().name
