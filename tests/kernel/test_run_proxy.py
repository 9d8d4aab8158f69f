# SPDX-License-Identifier: Apache-2.0
"""A run with a proxy on any machine: no internet is needed to be refused by it.

Whatever happens to the spawner, to the caller or to the run, the caller keeps neither thread nor descriptor of it.
"""

import os
import signal
import threading
import time

import pytest

from tests.kernel.test_kill_points import MOUNT_ROLES, STEP, Scenario, kill_at, prepare, record
from tests.support import Ground
from tests.unit.network.scene import wait_until
from unspill import Exited, RunResult, Sandbox
from unspill.errors import PolicyError, SandboxUnavailable
from unspill.layers.lifecycle import wait_until_clean
from unspill.model.policy import Network
from unspill.runner.launcher import get_launcher

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

NETWORK = Network(hosts=("example.org",))
REFUSED = "curl -sS http://evil.org/"


def counted() -> tuple[int, int]:
    """Return how many threads and descriptors this process has when nothing works beside any more."""
    wait_until_clean()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def is_refused(result: RunResult) -> bool:
    assert b"unspill: evil.org:80 was refused" in result.stdout.kept(), result
    return [(denial.host, denial.rule) for denial in result.denials] == [("evil.org", "host")]


@pytest.mark.bwrap
def test_every_engine_has_a_proxy(ground: Ground, engine: str) -> None:
    assert is_refused(ground.sandbox(network=NETWORK).run(REFUSED))


@pytest.mark.bwrap
def test_a_spawner_without_a_namespace_of_its_own_makes_the_listener_too(without_own_namespace: Ground) -> None:
    sandbox = without_own_namespace.sandbox(network=NETWORK, engine="native")
    assert not sandbox.facts.own_namespace
    assert is_refused(sandbox.run(REFUSED))


@pytest.mark.bwrap
def test_the_profile_strict_leads_to_the_proxy_too(ground: Ground) -> None:
    assert is_refused(ground.sandbox(network=NETWORK, profile="strict").run(REFUSED))


@pytest.mark.bwrap
def test_a_spawner_that_is_killed_takes_the_run_with_it_and_the_proxy_goes_too(ground: Ground) -> None:
    sandbox = ground.sandbox(network=NETWORK)
    assert is_refused(sandbox.run(REFUSED))
    before = counted()
    launcher = get_launcher(own_namespace=True)
    killer = threading.Timer(0.5, os.kill, (launcher.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(SandboxUnavailable, match="spawner"):
        sandbox.run("sleep 60")
    killer.join()
    assert is_refused(sandbox.run(REFUSED))
    wait_until(lambda: counted() == before)


@pytest.mark.bwrap
def test_a_thread_of_the_caller_may_end_before_the_next_run(ground: Ground) -> None:
    results: list[RunResult] = []
    for number in range(3):
        sandbox = ground.sandbox(f"thread {number}", network=NETWORK)
        thread = threading.Thread(target=lambda box: results.append(box.run(REFUSED)), args=(sandbox,))
        thread.start()
        thread.join()
    assert list(map(is_refused, results)) == [True] * 3


@pytest.mark.bwrap
def test_a_caller_that_forks_meanwhile_keeps_its_proxy_and_its_child_has_none(ground: Ground) -> None:
    sandbox = ground.sandbox(network=NETWORK)
    sandbox.run("true")
    results: list[RunResult] = []
    running = threading.Thread(target=lambda: results.append(sandbox.run(f"sleep 1; {REFUSED}")))
    running.start()
    time.sleep(0.5)
    child = os.fork()
    if not child:
        time.sleep(1.5)
        os._exit(len(os.listdir("/proc/self/task")))
    running.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert is_refused(results[0])


@pytest.mark.bwrap
def test_a_host_that_can_not_be_understood_stops_the_run_before_it_begins(ground: Ground) -> None:
    before = counted()
    with pytest.raises(PolicyError, match="not a host that can be allowed"):
        Sandbox(ground.project, policy=ground.policy(network=Network(hosts=("127.1",)))).run("true")
    assert ground.left_behind() == []
    wait_until(lambda: counted()[0] == before[0])


@pytest.mark.bwrap
def test_runs_with_and_without_a_proxy_follow_one_another(ground: Ground) -> None:
    with_proxy, without = ground.sandbox(network=NETWORK), ground.sandbox()
    for _ in range(2):
        assert is_refused(with_proxy.run(REFUSED))
        plain = without.run("env | grep -ci proxy")
        assert (plain.outcome, plain.stdout.kept()) == (Exited(code=1), b"0\n")
        assert plain.denials == ()


@pytest.mark.timeout(1800)
def test_a_kill_at_any_system_call_of_a_run_with_a_proxy_leaves_nothing(ground: Ground, full: bool) -> None:
    """Also of the child that makes the listener: it is below the spawner, as bubblewrap is."""
    prepare(ground)
    ground.configure('[network]\nhosts = ["example.org"]\n')
    scenario = Scenario(ground, "command line")
    step = 5 * STEP
    kills, _missed, problems = kill_at(scenario, scenario.points(step=step if full else None, of_each=1))
    record("command line with a proxy", kills, problems, step)
    assert problems == []
    assert set(kills) == set(MOUNT_ROLES)
