# SPDX-License-Identifier: Apache-2.0
"""The host's own network: a weaker mode that only the person configures, for a command that a network was granted to.

What makes it weaker is shown for real, beside the same command without it.
"""

import json
import socket
import uuid
from collections.abc import Iterator

import pytest

from tests.support import Ground, run_cli
from unspill import RunResult, Sandbox
from unspill.errors import PolicyError
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
