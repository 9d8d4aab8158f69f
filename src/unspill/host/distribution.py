# SPDX-License-Identifier: Apache-2.0
"""Which Linux distribution this is, and what a person types on it to repair a thing.

Tables and pure functions, apart from reading /etc/os-release. The name of a distribution decides texts only.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Repair = Literal[
        "bwrap-missing",
        "bwrap-unsafe",
        "bwrap-0.8",
        "bwrap-0.11",
        "bwrap-0.12",
        "apparmor",
        "max-user-namespaces",
        "userns-clone",
        "surroundings",
        "flatpak",
        "proc",
        "disable-userns",
        "state-filesystem",
        "state",
        "cgroup",
        "root-caller",
        "kernel",
    ]

_FILES = ("/etc/os-release", "/usr/lib/os-release")
_DEFAULT_BWRAP = "/usr/bin/bwrap"

# What installs bubblewrap, by the ID or ID_LIKE of os-release.
_INSTALL = {
    "debian": "sudo apt install bubblewrap",
    "ubuntu": "sudo apt install bubblewrap",
    "fedora": "sudo dnf install bubblewrap",
    "rhel": "sudo dnf install bubblewrap",
    "centos": "sudo dnf install bubblewrap",
    "arch": "sudo pacman -S bubblewrap",
    "suse": "sudo zypper install bubblewrap",
    "opensuse": "sudo zypper install bubblewrap",
    "alpine": "sudo apk add bubblewrap",
    "gentoo": "sudo emerge sys-apps/bubblewrap",
    "void": "sudo xbps-install -S bubblewrap",
    "nixos": "add pkgs.bubblewrap to environment.systemPackages and run sudo nixos-rebuild switch",
}
_INSTALL_SOMEHOW = "install the package bubblewrap of your distribution"

_APPARMOR_PROFILE = """\
sudo tee /etc/apparmor.d/unspill-bwrap >/dev/null <<'END'
abi <abi/4.0>,
include <tunables/global>

profile unspill-bwrap {bwrap} flags=(unconfined) {{
  userns,
}}
END
sudo apparmor_parser -r /etc/apparmor.d/unspill-bwrap"""


class Distribution(Record):
    """What os-release says: `like` are the families it belongs to, nearest first."""

    id: str = ""
    like: tuple[str, ...] = ()
    name: str = "this Linux"
    version: str = ""


def read_distribution() -> Distribution:
    """Read os-release where it is; an unknown distribution is no error."""
    for path in _FILES:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return parse_os_release(file.read(65_536))
        except OSError:
            continue
    return Distribution()


def parse_os_release(text: str) -> Distribution:
    """Take the few fields we use; values may be quoted as in a shell."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            fields[key] = _unquote(value.strip())
    return Distribution(
        id=fields.get("ID", ""),
        like=tuple(fields.get("ID_LIKE", "").split()),
        name=fields.get("PRETTY_NAME") or fields.get("NAME") or "this Linux",
        version=fields.get("VERSION_ID", ""),
    )


def install_command(distribution: Distribution) -> str:
    """Return what installs bubblewrap here."""
    for family in (distribution.id, *distribution.like):
        # openSUSE has an ID for each of its editions: opensuse-leap, opensuse-tumbleweed
        found = _INSTALL.get(family) or _INSTALL.get(family.partition("-")[0])
        if found:
            return found
    return _INSTALL_SOMEHOW


def remedy_for(repair: Repair, distribution: Distribution, *, bwrap: str = _DEFAULT_BWRAP) -> str:
    """Return what the person can do, as exactly as it can be said."""
    match repair:
        case "bwrap-missing":
            return f"Install bubblewrap: {install_command(distribution)}"
        case "bwrap-unsafe":
            return (
                f"Install your distribution's bubblewrap ({install_command(distribution)}), which root owns and nobody"
                ' else can write, or name such a one in your configuration: bwrap = "/usr/bin/bwrap"'
            )
        case "bwrap-0.8" | "bwrap-0.11" | "bwrap-0.12":
            return _newer_bwrap(repair.removeprefix("bwrap-"), distribution)
        case "apparmor":
            return _apparmor(distribution, bwrap)
        case "max-user-namespaces" | "userns-clone":
            return _sysctl(repair, distribution)
        case _:
            return _REMEDIES[repair]


_REMEDIES: dict[str, str] = {
    "surroundings": (
        "Start unspill outside the container or sandbox, or let the container make user namespaces: for docker and "
        "podman --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--security-opt systempaths=unconfined; never --privileged."
    ),
    "flatpak": "Install unspill on the host: inside a Flatpak application no sandbox can be made.",
    "proc": (
        "Something covers parts of /proc here, mostly a container: start it with "
        "--security-opt systempaths=unconfined, or start unspill outside it."
    ),
    "disable-userns": (
        "/proc/sys/user must be writable while bwrap sets up a sandbox: in a container use "
        "--security-opt systempaths=unconfined, or start unspill outside it."
    ),
    "state-filesystem": (
        "Keep the state on a local filesystem such as ext4, XFS, btrfs or tmpfs: set UNSPILL_STATE_DIR to a "
        "directory there. Overlays can't have their upper directory on overlayfs, NFS, FUSE or eCryptfs."
    ),
    "state": "Make the directory yours and writable, or set UNSPILL_STATE_DIR to one that is.",
    "cgroup": (
        "Start unspill in a delegated group: systemd-run --user --scope -p Delegate=yes unspill ... Without one, "
        "limits are set per process (rlimits), not per run."
    ),
    "root-caller": "Run unspill as an ordinary user, or set `allow_root = true` in your own configuration.",
    "kernel": "Use Linux 5.13 or later, configured with it.",
}


def _newer_bwrap(version: str, distribution: Distribution) -> str:
    how = install_command(distribution)
    return (
        f"Use bubblewrap {version} or later: {how}, or, if {distribution.name} has only an older one, a newer release"
        " of it; a bwrap built by hand must be root's."
    )


def _apparmor(distribution: Distribution, bwrap: str) -> str:
    return (
        f"AppArmor on {distribution.name} lets only programs with a profile use user namespaces. Give bwrap one:\n"
        f"{_APPARMOR_PROFILE.format(bwrap=bwrap)}\n"
        "Or lift the restriction for all programs: "
        f"{_set_sysctl('kernel.apparmor_restrict_unprivileged_userns=0', distribution)}"
    )


def _sysctl(repair: Repair, distribution: Distribution) -> str:
    if repair == "userns-clone":
        return f"Allow user namespaces: {_set_sysctl('kernel.unprivileged_userns_clone=1', distribution)}"
    return f"Allow user namespaces: {_set_sysctl('user.max_user_namespaces=15000', distribution)}"


def _set_sysctl(setting: str, distribution: Distribution) -> str:
    if "nixos" in (distribution.id, *distribution.like):
        name, _, value = setting.partition("=")
        return f'set boot.kernel.sysctl."{name}" = {value}; and run sudo nixos-rebuild switch'
    return f"echo {setting} | sudo tee /etc/sysctl.d/60-unspill.conf && sudo sysctl --system"


def _unquote(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
        for char in '\\"$`':
            value = value.replace("\\" + char, char)
    return value
