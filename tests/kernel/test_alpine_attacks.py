# SPDX-License-Identifier: Apache-2.0
"""A package whose script is hostile, and an archive whose links are: nothing of it gets out of the half-built tree.

The control of each attack is the same script, run by the caller without a sandbox, or a bwrap that is used carelessly.
"""

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.kernel.alpine_mirror import VERSION, Mirror
from tests.kernel.alpine_parts import ARCH, Entry, minirootfs, tiny
from tests.support import lasting, processes_with
from unspill.model.plan import Facts
from unspill.model.policy import MIB
from unspill.model.rootfs import Installed, Progress
from unspill.plan.rootfs import INSTALL_LIMITS
from unspill.rootfs.tar import unpack
from unspill.sandbox.rootfs_use import InstallGround, install

pytestmark = pytest.mark.kernel

INDEX = f"/alpine/latest-stable/releases/{ARCH}/latest-releases.yaml"

# Each succeeds if the attack does; none harms the host, for that is where the control runs it
ATTACKS = {
    "reads the home directory": "busybox grep -q hunter2 {secret}",
    "lists the home directory": "busybox ls {outside}",
    "writes outside": "echo planted >{outside}/planted",
    "reaches another server on loopback": "busybox wget -q -O - http://127.0.0.1:{other}/",
    "reaches it past the proxy": "busybox env -u http_proxy busybox wget -q -O - http://127.0.0.1:{other}/",
    "reaches the mirror by another name": "busybox wget -q -O - http://localhost:{mirror}{index}",
    "signals the caller": "kill -0 {pid}",
    "reads the caller's variables": "busybox grep -q PATH /proc/{pid}/environ",
    "makes a user namespace": "busybox unshare -U true",
    "mounts something": "busybox unshare -rm busybox mount -t tmpfs none /mnt",
}


class Other(BaseHTTPRequestHandler):
    """Another server of this host."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"internal\n")

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """The port of a server that nobody named as a mirror."""
    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def installing(known_facts: tuple[str, Facts], tmp_path: Path) -> InstallGround:
    """What installing needs of this host."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    facts = known_facts[1]
    return InstallGround(state=os.fsencode(state), facts=facts, engine=facts.engines[0])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the caller, with a secret."""
    directory = tmp_path / "home"
    directory.mkdir()
    (directory / "secret").write_text("hunter2\n")
    return directory


def unpacked(tmp_path: Path, mirror: Mirror, *extra: Entry) -> bytes:
    """Return a half-built tree that takes its packages from a mirror."""
    archive, tree = tmp_path / "archive", tmp_path / "tree"
    repositories = Entry("etc/apk/repositories", f"{mirror.address}/v3.99/main\n".encode(), 0o644)
    archive.write_bytes(minirootfs(VERSION, [repositories, *extra]))
    tree.mkdir()
    unpack(os.fsencode(archive), os.fsencode(tree))
    return os.fsencode(tree)


def add(tree: bytes, mirror: Mirror, ground: InstallGround, script: str) -> Installed:
    """Install a package with this script."""
    mirror.add(tiny("evil", post_install=script))
    words = [b"/sbin/apk", b"add", b"--no-cache", b"--", b"evil"]
    return install(tree, words, [f"127.0.0.1:{mirror.port}"], ground=ground)


def test_nothing_that_a_script_tries_gets_out_of_the_tree(
    alpine_mirror: Mirror, installing: InstallGround, outside: Path, other_port: int, tmp_path: Path
) -> None:
    words = {
        "secret": outside / "secret",
        "outside": outside,
        "other": other_port,
        "mirror": alpine_mirror.port,
        "index": INDEX,
        "pid": os.getpid(),
    }
    scripts = {name: script.format_map(words) for name, script in ATTACKS.items()}
    tree = unpacked(tmp_path, alpine_mirror)
    tried = [
        f"({script}) >/dev/null 2>&1 && echo {shlex.quote(name)} >>/var/log/done" for name, script in scripts.items()
    ]
    installed = add(tree, alpine_mirror, installing, "\n".join([": >/var/log/done", *tried, "true", ""]))
    assert installed.ok, installed
    assert (Path(os.fsdecode(tree)) / "var/log/done").read_text() == ""
    assert sorted(os.listdir(outside)) == ["secret"]

    bare = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    for name, script in scripts.items():
        control = subprocess.run(["/bin/sh", "-c", script], env=bare, capture_output=True, check=False, timeout=20)
        assert control.returncode == 0, (name, control.stderr)


def test_what_a_script_leaves_running_dies_with_the_installation(
    alpine_mirror: Mirror, installing: InstallGround, tmp_path: Path
) -> None:
    word = lasting()
    script = f"busybox setsid busybox sleep {word} </dev/null >/dev/null 2>&1 &\n"
    assert add(unpacked(tmp_path, alpine_mirror), alpine_mirror, installing, script).ok
    assert processes_with(word) == []

    pid = int(subprocess.check_output(["/bin/sh", "-c", f"{script}echo $!"], timeout=20))
    try:
        assert processes_with(word) != []
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("place", ["tmp", "run", "proc", "dev"])
def test_a_link_of_the_archive_leads_bwrap_to_no_place_of_the_host(
    alpine_mirror: Mirror, installing: InstallGround, outside: Path, tmp_path: Path, place: str
) -> None:
    target = f"/oldroot{outside}"
    tree = unpacked(tmp_path, alpine_mirror, Entry(place, target=target))
    assert os.readlink(os.fsdecode(tree) + f"/{place}") == target
    assert install(tree, [b"/bin/true"], [], ground=installing).ok
    assert sorted(os.listdir(outside)) == ["secret"]

    assert installing.facts.bwrap is not None
    careless: list[str | bytes] = [
        installing.facts.bwrap.path,
        "--bind",
        tree,
        "/",
        "--tmpfs",
        f"/{place}/made",
        "/bin/true",
    ]
    subprocess.run(careless, capture_output=True, check=False, timeout=20)
    assert (outside / "made").exists() is installing.facts.bwrap.symlink_flaw


def test_a_link_that_a_script_leaves_leads_the_next_step_to_no_place_of_the_host(
    alpine_mirror: Mirror, installing: InstallGround, outside: Path, tmp_path: Path
) -> None:
    tree = unpacked(tmp_path, alpine_mirror)
    planted = f"for at in /var/tmp /etc /root /tmp; do rm -rf $at; ln -s /oldroot{outside}/made $at; done; true\n"
    add(tree, alpine_mirror, installing, planted)
    top = Path(os.fsdecode(tree))
    assert (top / "var/tmp").is_symlink()
    assert not any((top / name).is_symlink() for name in ("etc", "root", "tmp"))
    install(tree, [b"/bin/true"], [], ground=installing)
    assert sorted(os.listdir(outside)) == ["secret"]


BOUNDS = {
    "time": (INSTALL_LIMITS.replace(wall_s=0.5), "busybox sleep 60\n", "ended after"),
    "bytes": (
        INSTALL_LIMITS.replace(layer_bytes=32 * MIB),
        "busybox dd if=/dev/zero of=/usr/big bs=1M count=64; busybox sleep 60\n",
        "layer_bytes",
    ),
    "entries": (
        INSTALL_LIMITS.replace(layer_entries=500),
        "busybox mkdir /usr/many; cd /usr/many; busybox seq 2000 | busybox xargs busybox touch; busybox sleep 60\n",
        "layer_entries",
    ),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_script_that_takes_too_much_is_ended(
    alpine_mirror: Mirror, installing: InstallGround, tmp_path: Path, bound: str
) -> None:
    limits, script, words = BOUNDS[bound]
    tree = unpacked(tmp_path, alpine_mirror)
    installed = add(tree, alpine_mirror, installing.replace(limits=limits), script)
    assert not installed.ok
    assert words in installed.output


def test_what_is_refused_is_told(
    alpine_mirror: Mirror, installing: InstallGround, other_port: int, tmp_path: Path
) -> None:
    script = f"busybox wget -q -O - http://127.0.0.1:{other_port}/\n"
    installed = add(unpacked(tmp_path, alpine_mirror), alpine_mirror, installing, script)
    assert not installed.ok
    assert f"the sandbox refused 127.0.0.1:{other_port} (address)" in installed.output


def test_what_a_script_writes_is_shown_without_control_characters(
    alpine_mirror: Mirror, installing: InstallGround, tmp_path: Path
) -> None:
    script = "printf 'a\\033]0;b\\007c\\n'; exit 1\n"
    installed = add(unpacked(tmp_path, alpine_mirror), alpine_mirror, installing, script)
    assert "a�]0;b�c" in installed.output.splitlines()


def test_it_is_told_how_many_packages_are_there_already(
    alpine_mirror: Mirror, installing: InstallGround, tmp_path: Path
) -> None:
    told: list[Progress] = []
    words = [b"/sbin/apk", b"add", b"--no-cache", b"--", b"grep", b"sed"]
    tree, hosts = unpacked(tmp_path, alpine_mirror), [f"127.0.0.1:{alpine_mirror.port}"]
    assert install(tree, words, hosts, ground=installing.replace(report=told.append)).ok
    assert told == [Progress(step="installing packages", done=done, total=2, unit="package") for done in (1, 2)]


def test_without_hosts_there_is_no_network_at_all(
    alpine_mirror: Mirror, installing: InstallGround, tmp_path: Path
) -> None:
    tree = unpacked(tmp_path, alpine_mirror)
    words = [b"/bin/wget", b"-q", b"-O", b"-", f"http://127.0.0.1:{alpine_mirror.port}{INDEX}".encode()]
    assert not install(tree, words, [], ground=installing).ok
    assert install(tree, words, [f"127.0.0.1:{alpine_mirror.port}"], ground=installing).ok
