# SPDX-License-Identifier: Apache-2.0
"""Something mounted below a root: the kernel refuses an overlay there, so the run says what to do.

The mounts are made in a user namespace of the test's own, where an ordinary person may mount.
"""

import os
import subprocess
import sys

import pytest

from tests.support import Ground

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

ENTER = ["unshare", "--map-current-user", "--mount", "--keep-caps", "sh", "-ec"]
# bwrap refuses to start with ambient capabilities
DROP = 'exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'


def with_mount(ground: Ground, program: str, *mount: str) -> "subprocess.CompletedProcess[str]":
    """Run Python where a tmpfs lies on `mount`."""
    steps = "; ".join(["true", *(f"mount -t tmpfs none '{path}'" for path in mount)])
    words = [*ENTER, f"{steps}; {DROP}", "sh", sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


RUN = """
from unspill import Policy, Sandbox, UnspillError
try:
    sandbox = Sandbox({project!r}, policy=Policy(bwrap={bwrap!r}, engine={engine!r}, after="hold"))
    result = sandbox.run("echo x > mnt/file; echo y > file; cat mnt/file file")
    print(result.exit_code, result.stdout.kept().decode().split(), [change.path for change in result.changes])
except UnspillError as error:
    print(type(error).__name__, error.message, "|", error.remedy)
"""


def test_a_mount_below_a_root_is_named_with_the_remedy(ground: Ground, engine: str) -> None:
    mount = ground.project / "mnt"
    mount.mkdir()
    program = RUN.format(project=os.fspath(ground.project), bwrap=ground.bwrap, engine=engine)
    done = with_mount(ground, program, os.fspath(mount))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UsageError ")
    assert f"mounted on {mount}" in done.stdout
    assert "| Unmount it, mount it outside the project, or choose a project directory without it" in done.stdout
    # The control arm: without the mount the same run works
    assert with_mount(ground, program).stdout == "0 ['x', 'y'] [b'file', b'mnt/file']\n"


def test_a_mount_beside_the_root_does_not_matter(ground: Ground, engine: str) -> None:
    (ground.project / "mnt").mkdir()
    beside = ground.home / "project-mnt"
    beside.mkdir()
    program = RUN.format(project=os.fspath(ground.project), bwrap=ground.bwrap, engine=engine)
    done = with_mount(ground, program, os.fspath(beside))
    assert done.stdout == "0 ['x', 'y'] [b'file', b'mnt/file']\n"


NESTED = ["--unshare-user", "--unshare-pid", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]


def test_inside_another_sandbox_it_seals_as_well(ground: Ground, engine: str) -> None:
    (ground.project / "mnt").mkdir()
    program = RUN.format(project=os.fspath(ground.project), bwrap=ground.bwrap, engine=engine)
    words = [os.fsdecode(ground.bwrap), *NESTED, sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "0 ['x', 'y'] [b'file', b'mnt/file']\n", done.stderr
    assert list((ground.project / "mnt").iterdir()) == []


def test_inside_a_sandbox_that_forbids_namespaces_it_refuses_and_says_why(ground: Ground) -> None:
    program = RUN.format(project=os.fspath(ground.project), bwrap=ground.bwrap, engine=None)
    words = [os.fsdecode(ground.bwrap), *NESTED, "--disable-userns", sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("NamespacesForbidden "), done
    assert list(ground.project.iterdir()) == []
