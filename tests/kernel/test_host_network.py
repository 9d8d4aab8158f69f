# SPDX-License-Identifier: Apache-2.0
"""Networks beside the proxy's: the host's own, which only the person configures, and the listener inside a sandbox."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.terminal_person import at_terminal
from tests.support import Ground, run_cli
from unspill import RunResult, Sandbox
from unspill.errors import PolicyError
from unspill.host import spawner as module
from unspill.host.spawner import make_listener
from unspill.layers.lifecycle import wait_until_clean
from unspill.model.policy import Network
from unspill.permissions.approvers import Callback
from unspill.plan.build import HOST_NETWORK

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

REACH = """
import socket, sys
for family, address in ((socket.AF_UNIX, "\\0" + sys.argv[1]), (socket.AF_INET, ("127.0.0.1", int(sys.argv[2])))):
    with socket.socket(family) as client:
        try:
            client.connect(address)
            print("reached")
        except OSError:
            print("not reached")
"""


@pytest.fixture
def doors() -> Iterator[list[str]]:
    """Listen as programs of the person do, on an abstract name and on loopback; give the name and the port."""
    name = f"unspill-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as loopback:
        abstract.bind(f"\0{name}")
        abstract.listen()
        yield [name, str(loopback.getsockname()[1])]


def reach(ground: Ground, doors: list[str], *, mode: str, network: bool) -> RunResult:
    policy = ground.policy(network=Network(mode=mode))  # type: ignore[arg-type]
    with Sandbox(ground.project, policy=policy, approver=Callback(lambda question: True)) as sandbox:
        return sandbox.run(["python3", "-c", REACH, *doors], network=network)


def test_abstract_sockets_and_loopback_of_the_host_are_reached_which_is_why_it_is_weaker(
    ground: Ground, doors: list[str]
) -> None:
    result = reach(ground, doors, mode="host", network=True)
    assert result.stdout.kept() == b"reached\nreached\n"
    assert HOST_NETWORK in result.warnings


@pytest.mark.parametrize(("mode", "network"), [("host", False), ("proxy", True), ("proxy", False)])
def test_a_run_without_it_reaches_neither(ground: Ground, doors: list[str], mode: str, network: bool) -> None:
    result = reach(ground, doors, mode=mode, network=network)
    assert result.stdout.kept() == b"not reached\nnot reached\n"
    assert HOST_NETWORK not in result.warnings


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_command_on_a_terminal_has_it_only_if_the_person_says_so(
    ground: Ground, doors: list[str], is_asked: bool
) -> None:
    ground.configure('[network]\nmode = "host"\n')
    command = ["--", "python3", "-c", f"import os; assert os.isatty(0)\n{REACH}", *doors]
    words = ("run", *["--network"] * is_asked, *command)
    code, seen = at_terminal(*words, cwd=ground.project, answer="y\n" * is_asked)
    assert code == 0, seen
    answer = "reached" if is_asked else "not reached"
    assert f"{answer}\n{answer}\n" in seen


def test_every_run_that_has_it_says_so(ground: Ground, doors: list[str]) -> None:
    assert [HOST_NETWORK in reach(ground, doors, mode="host", network=True).warnings for _ in range(2)] == [True, True]


def test_whoever_is_not_asked_does_not_get_it(ground: Ground) -> None:
    ground.configure('[network]\nmode = "host"\n')
    done = run_cli("run", "--", "tail", "-n", "+3", "/proc/self/net/dev", cwd=ground.project)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [b"lo:"]
    assert HOST_NETWORK.encode() not in done.stderr


@pytest.mark.parametrize("mode", ["host", "proxy"])
def test_a_file_of_the_project_can_not_choose_the_mode(ground: Ground, mode: str) -> None:
    (ground.project / ".unspill.toml").write_text(f'[network]\nmode = "{mode}"\n')
    with pytest.raises(PolicyError, match=r"network\.mode"):
        Sandbox(ground.project)


def test_an_old_configuration_with_pasta_is_told_what_to_write(ground: Ground) -> None:
    ground.configure('[network]\nmode = "pasta"\n')
    done = run_cli("run", "--", "true", cwd=ground.project)
    assert done.returncode == 125
    assert b'network.mode: "pasta" is no longer supported' in done.stderr
    assert b'Write `mode = "proxy"`' in done.stderr
    with pytest.raises(PolicyError) as refused:
        Sandbox(ground.project, policy=ground.policy(network=Network(mode="pasta")))  # type: ignore[arg-type]
    assert 'Write `mode = "proxy"`' in refused.value.remedy


def test_doctor_calls_it_a_weaker_mode_that_was_configured(ground: Ground) -> None:
    ground.configure(f'bwrap = "{ground.bwrap.decode()}"\n[network]\nmode = "host"\n')
    value = json.loads(run_cli("doctor", "--json", cwd=ground.project).stdout)
    assert value["level"] == "C"
    rows = {row["fact"]: row for row in value["rows"]}
    assert rows["network"]["standing"] == "weak"
    assert "abstract sockets" in rows["network"]["consequence"]


def test_doctor_finds_nothing_weak_in_the_proxy(ground: Ground) -> None:
    ground.configure(f'bwrap = "{ground.bwrap.decode()}"\n[network]\nmode = "proxy"\n')
    value = json.loads(run_cli("doctor", "--json", cwd=ground.project).stdout)
    assert value["level"] in ("A", "B")
    assert {row["standing"] for row in value["rows"] if row["fact"] == "network"} <= {"ok"}


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
    wait_until_clean()
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
