# SPDX-License-Identifier: Apache-2.0
"""Layers under real mounts: what the kernel shows at their root, and what it leaves in their work directories."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.unit.layers.ground import Ground, ended, layers_of, leave_work
from unspill.layers.lifecycle import OpenRun, seal_run

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

OPTIONS = b"userxattr,index=off,metacopy=off,volatile,lowerdir=%b,upperdir=%b,workdir=%b"


def mounted(opened: OpenRun, at: Path, script: str) -> str:
    """Run a script in a directory where a run's layer is mounted over its root."""
    (layer,) = layers_of(opened)
    options = OPTIONS % (b":".join(opened.stacks[0].lowers()), layer.upper, layer.work)
    whole = f'mount -t overlay overlay -o "$1" "$2" && cd "$2" && {script}'
    command: list[str | bytes] = ["unshare", "-Urm", "sh", "-c", whole, "sh", options, os.fsencode(at)]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode().strip()


@pytest.fixture
def at(tmp_path: Path) -> Path:
    path = tmp_path / "merged"
    path.mkdir()
    return path


def test_the_root_looks_like_the_live_one(ground: Ground, at: Path) -> None:
    os.chmod(ground.project, 0o751)
    os.setxattr(ground.project, "user.mine", b"value")
    opened = ground.open()
    assert mounted(opened, at, "stat -c %a . && getfattr --only-values -n user.mine .") == "751\nvalue"


def test_with_a_plain_upper_it_would_not(ground: Ground, at: Path) -> None:
    os.chmod(ground.project, 0o751)
    opened = ground.open()
    os.chmod(layers_of(opened)[0].upper, 0o700)
    assert mounted(opened, at, "stat -c %a .") == "700"


def test_what_a_run_holds_is_what_the_next_one_sees(ground: Ground, at: Path) -> None:
    Path(os.fsdecode(ground.project), "old").write_text("old")
    first = ground.open()
    mounted(first, at, "rm old; echo new > new; chmod 700 .")
    seal_run(ground.store, first, ended(first))
    second = ground.open()
    assert mounted(second, at, "ls; cat new; stat -c %a .") == "new\nnew\n700"
    assert os.listdir(ground.project) == [b"old"]
    (stack,) = seal_run(ground.store, second, ended(second))
    assert len(stack.sealed) == 1, "looking is no change"


def test_nothing_is_left_of_a_real_work_directory(ground: Ground, at: Path) -> None:
    opened = ground.open()
    mounted(opened, at, "mkdir d; touch d/file; rm -r d; touch file")
    seal_run(ground.store, opened, ended(opened))
    assert ground.left() == {b"layers": 1, b"work": 0, b"runs": 0}


def test_the_work_directories_of_other_tests_are_like_real_ones(ground: Ground, at: Path) -> None:
    real, made = ground.open(), ground.open()
    mounted(real, at, "true")
    leave_work(made)
    assert shape(layers_of(real)[0].work) == shape(layers_of(made)[0].work)


def shape(work: bytes) -> list[tuple[bytes, int]]:
    """Return names and modes from the top down; each directory is opened up on the way."""
    found = []
    waiting = [work]
    while waiting:
        path = waiting.pop()
        state = os.lstat(path)
        if path != work:
            found.append((os.path.relpath(path, work), state.st_mode))
        if stat.S_ISDIR(state.st_mode):
            os.chmod(path, 0o700)
            waiting += [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return found
