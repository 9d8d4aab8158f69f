# SPDX-License-Identifier: Apache-2.0
"""Which container is detected, from made-up variables and a made-up root: in which order, and from what."""

from pathlib import Path

import pytest

from unspill.host.surroundings import find_engine

DOCKER_GROUPS = "12:pids:/docker/0123\n"
POD_GROUPS = "1:name=systemd:/kubepods/besteffort/pod1\n"


def made_up(top: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(top)


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        ({}, {}, ""),
        ({}, {"proc/1/cgroup": "0::/\n"}, ""),
        ({}, {"proc/1/cgroup": "0::/init.scope\n"}, ""),
        ({"CODESPACES": "true"}, {}, "codespaces"),
        ({"CODESPACES": "false"}, {}, ""),
        ({"CODESPACES": "true", "GITPOD_WORKSPACE_ID": "1"}, {".dockerenv": ""}, "codespaces"),
        ({"GITPOD_WORKSPACE_ID": "abc"}, {".dockerenv": ""}, "gitpod"),
        ({"container": "podman"}, {".dockerenv": ""}, "docker"),
        ({}, {".dockerenv": ""}, "docker"),
        ({"container": "podman"}, {"proc/1/cgroup": DOCKER_GROUPS}, "podman"),
        ({"container": "oci"}, {}, "oci"),
        ({"container": ""}, {}, ""),
        ({}, {"run/.containerenv": ""}, "podman"),
        ({}, {"proc/1/cgroup": DOCKER_GROUPS}, "docker"),
        ({}, {"proc/1/cgroup": POD_GROUPS}, "kubepods"),
        ({}, {"proc/1/cgroup": "0::/system.slice/containerd.service\n"}, "containerd"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"proc/1/cgroup": "0::/\n"}, "kubernetes"),
    ],
)
def test_a_container_is_detected_in_order_from_made_up_marks(
    tmp_path: Path, environ: dict[str, str], files: dict[str, str], expected: str
) -> None:
    assert find_engine(environ, made_up(tmp_path, files)) == expected
