# SPDX-License-Identifier: Apache-2.0
"""`unspill rootfs pull alpine` from the first word to a run, with a mirror of the same layout on loopback.

Its `apk` is a stand-in: see tests/kernel/alpine_parts.py.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.alpine_mirror import NEWER, VERSION, Mirror, serve_mirror, small_packages
from tests.kernel.alpine_parts import tiny
from tests.support import Ground, lasting, run_cli

pytestmark = pytest.mark.kernel


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    """A mirror with small packages."""
    with serve_mirror(small_packages()) as served:
        yield served


def test_an_alpine_is_pulled_used_and_upgraded(ground: Ground, mirror: Mirror) -> None:
    words = ("rootfs", "pull", "alpine", "--mirror", mirror.address)
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode == 0, done.stderr.decode()
    told = done.stdout.decode()
    assert told.startswith(f"alpine-{VERSION}-")
    assert "It is the rootfs in use." in told
    # A checksum from the same server is no proof, and that is said
    assert "proof: only a checksum from the server that the content is from, which is no proof" in told
    assert b"only the server that it came from vouches for this rootfs" in done.stderr
    made = json.loads(run_cli("rootfs", "info", "alpine", "--json", cwd=ground.project).stdout)
    assert (made["source"], made["version"], made["tier"], made["proof"]) == ("alpine", VERSION, 1, "same-server")
    assert "bash" in [package["name"] for package in made["packages"]]
    ground.configure('view = "rootfs"\nrootfs = "alpine"\n')
    ran = run_cli("run", "-q", "--", "cat", "/etc/alpine-release", cwd=ground.project)
    assert ran.stdout.decode().strip() == VERSION, ran.stderr.decode()
    mirror.publish(NEWER)
    upgraded = run_cli("rootfs", "upgrade", "--json", cwd=ground.project)
    assert json.loads(upgraded.stdout)["version"] == NEWER, upgraded.stderr.decode()
    ran = run_cli("run", "-q", "--", "cat", "/etc/alpine-release", cwd=ground.project)
    assert ran.stdout.decode().strip() == NEWER
    removed = run_cli("rootfs", "remove", "--unused", "--json", cwd=ground.project)
    told = json.loads(removed.stdout)
    assert told["removed"] == [made["rootfs"]]
    assert told["downloads_bytes"] > 0, "the archives that both were made from"


def test_a_mirror_that_is_gone_is_told_with_a_remedy(ground: Ground, mirror: Mirror) -> None:
    words = ("rootfs", "pull", "alpine", "--mirror", mirror.address + "/nothing")
    done = run_cli(*words, cwd=ground.project)
    assert (done.returncode, done.stdout) == (8, b"")
    assert b"404" in done.stderr
    assert b"use an archive on disk" in done.stderr


def is_running(word: str) -> bool:
    """Tell whether any process has this word as an argument."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in process.read_bytes().split(b"\0"):
                return True
    return False


@pytest.mark.timeout(60)
def test_ctrl_c_while_packages_are_installed_ends_them_and_leaves_nothing(ground: Ground, mirror: Mirror) -> None:
    duration = lasting()
    mirror.add(tiny("sleeper", post_install=f"sleep {duration}\n"))
    program = str(Path(sys.executable).with_name("unspill"))
    words = [program, "rootfs", "pull", "alpine", "--mirror", mirror.address, "--package", "sleeper"]
    with subprocess.Popen(words, cwd=ground.project, stderr=subprocess.PIPE, start_new_session=True) as run:
        while not is_running(duration):
            assert run.poll() is None
            time.sleep(0.05)
        os.killpg(run.pid, signal.SIGINT)
        _none, said = run.communicate(timeout=30)
    assert run.returncode == 130
    assert said.endswith(b"unspill: cancelled; nothing was changed\n")
    assert not is_running(duration)
    registry = ground.home / ".local/share/unspill/rootfs"
    assert list((registry / "roots").iterdir()) == list((registry / "staging").iterdir()) == []
