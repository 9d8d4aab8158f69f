# SPDX-License-Identifier: Apache-2.0
"""Which container this process seems to run in: by what hosted workspaces, engines and orchestrators leave.

There is no reliable mark, and whoever starts unspill could make one up. So this never decides anything by itself:
only a person's own configuration can give it a meaning. Only reads.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")
_MOST = 65_536


def find_engine(environ: Mapping[str, str], top: str = "") -> str:
    """Return the name of the container engine or workspace around this process, "" where there seems to be none.

    `environ` are the variables of this process, `top` is a directory to look in instead of `/`.
    """
    if environ.get("CODESPACES") == "true":
        return "codespaces"
    if environ.get("GITPOD_WORKSPACE_ID"):
        return "gitpod"
    if os.path.exists(top + "/.dockerenv"):
        return "docker"
    if environ.get("container"):
        return environ["container"]
    if os.path.exists(top + "/run/.containerenv"):
        return "podman"
    groups = _read(top + "/proc/1/cgroup")
    found = next((word for word in _GROUPS if word in groups), "")
    # With cgroups of their own, which is usual by now, pods have no other mark
    return found or ("kubernetes" if environ.get("KUBERNETES_SERVICE_HOST") else "")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST)
    except OSError:
        return ""
