# SPDX-License-Identifier: Apache-2.0
"""deploy/Dockerfile, really built and run, by rootless buildah and podman; only with `--full`.

No registry is asked: the base is the Debian rootfs of these tests. Packages and their lists come from Debian.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.building import ROOT, build_wheel
from tests.figures import record_figure
from tests.kernel.debian_roots import Workshop

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(1200)]

# What podman must be told so that bubblewrap can work inside; deploy/README.md explains it
OPENED = ("--security-opt", "unmask=ALL", "--security-opt", "seccomp=unconfined")


@dataclass(frozen=True)
class Engine:
    """A container engine with a store of its own."""

    top: Path

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "XDG_RUNTIME_DIR": os.fspath(self.top), "TMPDIR": os.fspath(self.top)}

    def do(self, program: str, *words: str | Path, timeout: float = 600) -> str:
        """Run buildah or podman and return what it printed."""
        store: list[str | Path] = [
            "--root",
            self.top / "store",
            "--runroot",
            self.top / "run",
            "--storage-driver",
            "overlay",
        ]
        command: list[str | Path] = [program, *store, *words]
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=timeout, check=False, cwd=self.top
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def run(self, script: str, *options: str | Path) -> str:
        """Run a shell script in a new container of the baked one."""
        podman = ("--cgroup-manager", "cgroupfs", "--runtime", "runc", "run", "--rm", "--network", "none")
        return self.do(
            "podman", *podman, *options, "--entrypoint", "sh", "localhost/unspill", "-c", f"exec 2>&1; {script}; true"
        )


@pytest.fixture(scope="module")
def baked(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that has built the Dockerfile."""
    for program in ("buildah", "podman", "runc"):
        assert shutil.which(program), f"{program} is not installed: apt install buildah podman runc"
    made = Engine(tmp_path_factory.mktemp("engine"))
    begun = time.monotonic()
    try:
        base = made.do("buildah", "from", "scratch").strip()
        made.do("buildah", "copy", "-q", base, Path(os.fsdecode(workshop.rootfs.tree)), "/")
        # In a rootfs of ours nobody but its owner may write anywhere; apt does as a user of its own
        made.do("buildah", "run", "--isolation", "chroot", base, "--", "chmod", "1777", "/tmp", "/var/tmp")
        made.do("buildah", "commit", "-q", base, "localhost/base")
        (made.top / "wheel").mkdir()
        wheel = build_wheel(made.top / "wheel")
        settings = ("--build-arg", "BASE=localhost/base", "--build-arg", "PACKAGES=bash python3 git")
        how = ("--network", "host", "--isolation", "chroot")
        made.do("buildah", "bud", *how, *settings, "-f", ROOT / "deploy/Dockerfile", "-t", "unspill", wheel.parent)
        record_figure("deploy: building the Dockerfile", f"{time.monotonic() - begun:.0f} s", "rootless buildah")
        yield made
    finally:
        # What belongs to subordinate ids only they can remove
        made.do("buildah", "unshare", "rm", "-rf", made.top / "store", made.top / "run")


def test_commands_are_sealed_on_the_baked_rootfs_where_the_engine_lets_them(baked: Engine) -> None:
    said = baked.run("unspill run -- sh -c 'pwd; python3 -V; touch made; ls /opt'; ls; unspill rootfs list", *OPENED)
    lines = said.splitlines()
    assert lines[0] == "/workspace"
    assert lines[1].startswith("Python 3.")
    assert "made" in lines
    assert "unspill" not in [line.strip() for line in lines]
    assert "* baked-" in " ".join(said.split())


def test_without_that_nothing_runs_and_doctor_says_what_is_missing(baked: Engine) -> None:
    said = baked.run("unspill doctor; unspill run -- touch made; ls")
    assert "Level D" in said
    assert "systempaths=unconfined" in said
    assert "made" not in said.splitlines()


def test_half_of_the_options_are_not_taken_for_all(baked: Engine) -> None:
    said = baked.run("unspill doctor; unspill run -- true && echo ran", "--security-opt", "unmask=ALL")
    assert ("Level D" in said) is ("ran" not in said.splitlines())


def test_container_mode_works_in_a_real_container_if_it_is_configured(baked: Engine) -> None:
    settings = baked.top / "settings"
    settings.mkdir()
    (settings / "config.toml").write_text('view = "rootfs"\ncontainer = true\n')
    mounted = ("--volume", f"{settings}:/home/unspill/.config/unspill:ro")
    said = baked.run("unspill doctor; unspill run -- sh -c 'pwd; touch made'; ls", *mounted)
    assert "Level C" in said
    assert "container mode: this ran WITHOUT a sandbox, as a plain process of the podman container" in said
    assert "made" in said.splitlines()
    # Where a sandbox works, it is used
    assert "container mode" not in baked.run("unspill run -- true", *mounted, *OPENED)
