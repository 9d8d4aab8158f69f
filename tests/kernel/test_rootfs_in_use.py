# SPDX-License-Identifier: Apache-2.0
"""Runs keep the rootfs that they began with: neither an upgrade nor a removal beside them disturbs one."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.rootfs_program import TarSource, no_install, silent
from tests.kernel.rootfs_strikes import Scene, make_archive
from tests.support import Ground, printed, short
from unspill import RunResult, Sandbox
from unspill.errors import RootfsError
from unspill.model.rootfs import Rootfs
from unspill.rootfs.build import upgrade, verify
from unspill.rootfs.registry import Registry

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

RUNS = 20
# Reads and executes from the root all the time, until a file appears outside. To look for its name would not do: the
# directory is an overlay, which remembers that there was none.
WORK = """
n=0
while [ "$(echo /signals/*)" = "/signals/*" ]; do
    [ "$(cat /etc/release)" = 1.0 ] || exit 7
    /bin/true && /bin/cat /usr/lib/large > /dev/null || exit 8
    sleep 0.05
    n=$((n + 1))
done
echo "$(cat /etc/release) $n"
"""


@pytest.fixture
def scene(ground: Ground) -> Scene:
    """A registry with one rootfs that has real programs, and an archive with a newer one."""
    top = ground.top / "given"
    top.mkdir()
    scene = Scene(top)
    for version in ("1.0", "2.0"):
        make_archive(top / f"{version}.tar", Path("/bin/busybox").read_bytes())
    (ground.top / "signals").mkdir()
    scene.prepare()
    return scene


def sandbox_of(ground: Ground, registry: Registry, name: str) -> Sandbox:
    """Open a sandbox in the rootfs that is in use."""
    signals = os.fsencode(ground.top / "signals")
    return ground.sandbox(name, view="rootfs", rootfs_dir=registry.directory, mounts=((b"/signals", signals),))


def holders(rootfs: Rootfs) -> int:
    """Return how many shared locks there are on a rootfs."""
    inode = os.stat(os.path.dirname(rootfs.tree)).st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return sum(f":{inode} " in line and "FLOCK" in line and " READ " in line for line in lines)


@contextmanager
def running(ground: Ground, registry: Registry, rootfs: Rootfs, count: int) -> Iterator[list[RunResult]]:
    """Have some runs work in a rootfs; they end with the block, and their results are in the list then."""
    results: list[RunResult] = []
    boxes = [sandbox_of(ground, registry, f"number-{index}") for index in range(count)]
    threads = [
        threading.Thread(target=lambda box=box: results.append(box.run(WORK, limits=short(wall_s=50.0))))
        for box in boxes
    ]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 40
        while holders(rootfs) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        assert holders(rootfs) == count
        yield results
    finally:
        (ground.top / "signals" / "stop").touch()
        for thread in threads:
            thread.join()
        (ground.top / "signals" / "stop").unlink()


def test_an_upgrade_disturbs_none_of_those_who_run_in_the_old_one(ground: Ground, scene: Scene) -> None:
    registry = scene.registry
    (old,) = registry.list()
    newer = TarSource(os.fsencode(scene.top / "2.0.tar"), os.fsencode(scene.log))
    with running(ground, registry, old, RUNS) as results:
        new = upgrade(registry, old, newer, install=no_install, report=silent)
        assert registry.current() == new
        for _ in range(15):
            time.sleep(0.1)
            with pytest.raises(RootfsError, match="Runs are using"):
                registry.remove(old.name, force=True)
            assert registry.remove_unused() == ()
        assert verify(old) == "none"
        assert printed(sandbox_of(ground, registry, "later").run("cat /etc/release")) == "2.0"
        assert results == []
    ended = [printed(result).split() for result in results]
    assert [version for version, _rounds in ended] == ["1.0"] * RUNS
    assert min(int(rounds) for _version, rounds in ended) > 1
    # The control: when they have ended, the old one goes at once
    assert registry.remove_unused() == (old.name,)
    assert registry.list() == (new,)
    record_figure(
        "rootfs, upgraded under running sandboxes", f"0 of {RUNS} runs disturbed", "upgrade, remove and remove_unused"
    )


def test_without_its_lock_a_rootfs_would_be_removed_under_a_run(ground: Ground, scene: Scene) -> None:
    """The control of the lock: a rootfs that goes while somebody runs in it takes the programs away."""
    registry = scene.registry
    (old,) = registry.list()
    with running(ground, registry, old, 1) as results:
        os.rename(os.path.join(old.tree, b"bin/busybox"), os.path.join(old.tree, b"bin/gone"))
        time.sleep(0.5)
    assert not results[0].ok


def test_a_run_that_is_killed_does_not_keep_its_rootfs(ground: Ground, scene: Scene) -> None:
    registry = scene.registry
    (old,) = registry.list()
    result = sandbox_of(ground, registry, "killed").run("sleep 100", limits=short(wall_s=0.3))
    assert not result.ok
    assert holders(old) == 0
    assert registry.remove(old.name, force=True) == old.name
