# SPDX-License-Identifier: Apache-2.0
"""Where we are, and why a thing that failed may have failed: for the text that a person reads.

Nothing here decides what works; that was found out by running it. Only reads files.
"""

from __future__ import annotations

import os

from unspill.host.places import filesystem_of
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import Facts

# Name of the cause, the setting, and the value of it that forbids user namespaces.
_SYSCTLS = (
    ("max-user-namespaces", "/proc/sys/user/max_user_namespaces", "0"),
    ("userns-clone", "/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("apparmor", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)
_MARKS = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"), ("/run/systemd/container", "nspawn"))
_GROUP_WORDS = ("docker", "kubepods", "lxc", "libpod", "containerd")


class Surroundings(Record):
    """The place this process runs in, as far as it can be seen."""

    boot_id: str
    flatpak: bool
    container: str
    merged_usr: bool
    state_filesystem: str


def find_surroundings(state_dir: bytes) -> Surroundings:
    """Look around; what can't be read is empty."""
    return Surroundings(
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        flatpak="FLATPAK_ID" in os.environ or os.path.exists("/.flatpak-info"),
        container=find_container(),
        merged_usr=os.path.islink("/bin") and os.path.realpath("/bin") == "/usr/bin",
        state_filesystem=filesystem_of(state_dir),
    )


def find_container() -> str:
    """Return the name of what seems to surround this process, for people: there is no reliable mark."""
    for path, name in _MARKS:
        if os.path.exists(path):
            return name
    named = os.environ.get("container", "")  # noqa: SIM112
    if named:
        return named
    if os.getpid() == 1 or _read("/proc/1/comm") == "bwrap":
        return "bwrap"
    groups = _read("/proc/1/cgroup")
    return next((word for word in _GROUP_WORDS if word in groups), "")


def find_causes(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return the settings of this host that explain why namespaces do not work, by name."""
    if facts.namespaces and facts.own_namespace:
        return ()
    causes = []
    for name, path, forbidding in _SYSCTLS:
        if _read(path) == forbidding:
            setting = path.removeprefix("/proc/sys/").replace("/", ".")
            causes.append((name, f"{setting} is {forbidding}"))
    if not causes and not facts.namespaces and facts.bwrap is not None:
        causes.append(("surroundings", "something around this process forbids it: a sandbox or a security module"))
    return tuple(causes)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65_536).strip()
    except OSError:
        return ""
