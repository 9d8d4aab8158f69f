# SPDX-License-Identifier: Apache-2.0
"""The listener inside a sandbox: made from outside in every namespace that a run can have, or not at all.

Nothing of ours stays inside, and nothing of a failure stays in the spawner.
"""

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from unspill.host import spawner as module
from unspill.host.spawner import make_listener

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

PORT = 62080
# Waits for a word before it connects
CONNECT = f"import socket; input(); print(socket.create_connection(('127.0.0.1', {PORT}), 5).recv(9))"


@pytest.fixture(params=["--unshare-user", "--disable-userns"])
def started(request: pytest.FixtureRequest, bwrap: Path) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """A bare sandbox and its pid 1; also with the second user namespace that bubblewrap makes."""
    extra = ["--unshare-user", *([request.param] if request.param != "--unshare-user" else [])]
    options = [
        "--die-with-parent",
        "--unshare-net",
        "--unshare-pid",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
    ]
    read, write = os.pipe()
    words = [bwrap, *extra, *options, "--info-fd", str(write), "--", "/usr/bin/python3", "-c", CONNECT]
    process = subprocess.Popen(words, pass_fds=(write,), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.close(write)
    told = os.read(read, 4096).decode()  # bubblewrap has more to say there, and dies if it can't
    init = int(told.split('"child-pid":')[1].split(",")[0].split("}")[0])
    yield init, process
    for pid in (init, process.pid):
        if process.poll() is None:
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    os.close(read)


@pytest.fixture
def sandbox(started: tuple[int, object]) -> int:
    """The pid 1 of a bare sandbox that waits."""
    return started[0]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def namespace_of(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def test_a_listener_is_of_the_sandboxs_namespace_and_serves_it(
    started: tuple[int, "subprocess.Popen[bytes]"],
) -> None:
    init, process = started
    with socket.socket(fileno=make_listener(init, PORT)) as listener:
        assert listener.getsockname() == ("127.0.0.1", PORT)
        assert process.stdin is not None
        process.stdin.write(b"now\n")
        process.stdin.flush()
        listener.settimeout(10)
        client, _ = listener.accept()
        with client:
            client.sendall(b"from here")
        assert process.communicate()[0] == b"b'from here'\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", PORT), 5)


def test_this_process_stays_in_its_own_namespaces(sandbox: int) -> None:
    before = [namespace_of(f"/proc/self/ns/{kind}") for kind in ("net", "user")]
    os.close(make_listener(sandbox, PORT))
    assert [namespace_of(f"/proc/self/ns/{kind}") for kind in ("net", "user")] == before


def test_a_listener_is_not_inherited_and_nothing_else_is_left(sandbox: int) -> None:
    before, family = descriptors(), children()
    listener = make_listener(sandbox, PORT)
    assert fcntl.fcntl(listener, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert descriptors() == before + 1
    assert children() == family
    os.close(listener)


def test_a_second_listener_on_the_port_is_refused_and_nothing_is_left(sandbox: int) -> None:
    first = make_listener(sandbox, PORT)
    before, family = descriptors(), children()
    with pytest.raises(OSError, match="network of the sandbox: Address already in use"):
        make_listener(sandbox, PORT)
    assert (descriptors(), children()) == (before, family)
    os.close(first)


def test_the_host_itself_is_no_sandbox() -> None:
    before = descriptors()
    with pytest.raises(OSError, match="network of the sandbox: setns"):
        make_listener(os.getpid(), PORT)
    assert descriptors() == before


def test_a_sandbox_that_is_gone_has_no_listener() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        make_listener(gone.pid, PORT)
    assert descriptors() == before


def test_a_child_that_is_killed_at_work_is_an_error(sandbox: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(module, "_send_listener", die)
    before, family = descriptors(), children()
    with pytest.raises(OSError, match="could not be made"):
        make_listener(sandbox, PORT)
    assert (descriptors(), children()) == (before, family)


def test_a_child_never_goes_on_as_its_parent(sandbox: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(module, "_send_listener", fail)
    me = os.getpid()

    def make_and_mark() -> None:
        try:
            make_listener(sandbox, PORT)
        finally:
            (tmp_path / str(os.getpid())).touch()

    with pytest.raises(OSError, match="could not be made"):
        make_and_mark()
    assert [path.name for path in tmp_path.iterdir()] == [str(me)]
