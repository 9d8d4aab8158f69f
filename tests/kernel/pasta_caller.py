# SPDX-License-Identifier: Apache-2.0
"""A caller whose sandboxes have full IP networking, with one of its defences taken away if that is asked for.

    python -m tests.kernel.pasta_caller BWRAP DUTY [TAKEN AWAY]...

Prints one JSON value. The spawner is a fork of this process, so what is taken away here is missing there too.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import chosen_view
from unspill import Policy, RunResult, Sandbox
from unspill.host import between, pasta
from unspill.host.between import Between
from unspill.host.job import is_dead
from unspill.model import full_network
from unspill.model.policy import Network
from unspill.permissions.approver import Callback
from unspill.runner import perform

PATIENT_S = 20.0


@contextmanager
def sandbox(bwrap: str) -> Iterator[Sandbox]:
    # A state of its own: whoever is asked as often as by all these tests is asked no more for a while
    os.environ["UNSPILL_STATE_DIR"] = tempfile.mkdtemp(dir=Path.home().parent)
    policy = Policy(bwrap=os.fsencode(bwrap), network=Network(mode="pasta"), **chosen_view())
    with Sandbox(os.getcwd(), policy=policy, approver=Callback(lambda question: True), may_fork=True) as opened:
        yield opened


def run(opened: Sandbox, command: str) -> RunResult:
    return opened.run(command, network=True, after="discard", timeout=60)


def take_away_filter() -> None:
    """Close nothing, and have a route for all of IPv6."""
    vars(perform)["_pasta"] = lambda network: (network.program, network.versions, network.resolvers, ())
    full_network.PUBLIC[6] = ("::", 0)


def take_away_no_map_gw() -> None:
    """Let pasta lead its gateway's address to the host's loopback, as it does by default."""
    words = pasta.pasta_words
    vars(pasta)["pasta_words"] = lambda *given: tuple(word for word in words(*given) if word != b"--no-map-gw")


def take_away_between() -> None:
    """Close the networks by routes of the sandbox itself and not by those of a namespace outside."""

    def close_inside(self: Between, closed: tuple[tuple[bytes, int], ...]) -> None:
        for packed, bits in closed:
            self._there.close_network(4 if len(packed) == 4 else 6, packed, bits)

    vars(between)["Between"].close_networks = close_inside
    # On its own interface pasta answers for every address, so whoever asks is answered here too
    between._SETTINGS[4] += ((b"ipv4/conf/all/proxy_arp", b"1"),)


TAKEN: dict[str, Callable[[], None]] = {
    "filter": take_away_filter,
    "no-map-gw": take_away_no_map_gw,
    "between": take_away_between,
}


def reach(bwrap: str) -> object:
    """Run the probe that lies in the project."""
    with sandbox(bwrap) as opened:
        result = run(opened, "python3 probe.py")
    assert result.exit_code == 0, result
    return json.loads(result.stdout.kept())


def output(bwrap: str) -> object:
    """Run the script that lies in the project, and return what it prints."""
    with sandbox(bwrap) as opened:
        result = run(opened, ". ./script")
    assert result.exit_code == 0, result
    return result.stdout.kept().decode()


def fail(bwrap: str) -> object:
    """Run with a pasta that gives up."""
    vars(perform)["_pasta"] = lambda network: (b"/bin/false", network.versions, (), ())
    with sandbox(bwrap) as opened:
        result = run(opened, "echo started")
    return [repr(result.outcome), result.stdout.kept().decode(), len(find_pastas())]


def live(bwrap: str) -> object:
    """Count pastas while a command runs, and when it has ended."""
    with sandbox(bwrap) as opened:
        counted: list[int] = []
        watcher = threading.Thread(target=lambda: counted.append(len(wait_for_pastas())))
        watcher.start()
        run(opened, "sleep 1")
        watcher.join()
        return [counted, len(find_pastas())]


def kill_spawner(bwrap: str) -> object:
    """Kill the spawner while a command runs; tell how many pastas there were, and how many are alive after it."""
    watched: list[int] = []

    def kill() -> None:
        pids = wait_for_pastas()
        watched.extend(map(os.pidfd_open, pids))
        os.kill(parent_of(pids[0]), signal.SIGKILL)

    with sandbox(bwrap) as opened:
        watcher = threading.Thread(target=kill)
        watcher.start()
        try:
            run(opened, "sleep 30")
        except Exception as error:
            said = str(error)
        watcher.join()
    return [said, len(watched), sum(not is_dead(pidfd, 5000) for pidfd in watched)]


def wait_for_pastas() -> list[int]:
    end = time.monotonic() + PATIENT_S
    while time.monotonic() < end:
        if found := find_pastas():
            return found
        time.sleep(0.01)
    raise SystemExit("there is no pasta")


def find_pastas() -> list[int]:
    """Return those below this process."""
    parents = {int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
    return [pid for pid in parents if is_below(pid, parents) and name_of(pid).startswith(("passt", "pasta"))]


def is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def parent_of(pid: int) -> int:
    return int(stat_of(pid).rpartition(")")[2].split()[1] if stat_of(pid) else 0)


def name_of(pid: int) -> str:
    return stat_of(pid).partition("(")[2].rpartition(")")[0]


def stat_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read()
    except OSError:
        return ""


def main() -> None:
    bwrap, duty, *taken = sys.argv[1:]
    for name in taken:
        TAKEN[name]()
    duties = {"reach": reach, "output": output, "fail": fail, "live": live, "kill": kill_spawner}
    print(json.dumps(duties[duty](bwrap)))


if __name__ == "__main__":
    main()
