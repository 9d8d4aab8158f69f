# SPDX-License-Identifier: Apache-2.0
"""Runs a command inside a half-built rootfs: as uid 0 of a sandbox in which only its tree is writable.

It reaches the given hosts and nothing else, by way of a proxy. An address that is not public is reached only where it
is itself one of those hosts, with its port: the person named it as the mirror.
"""

from __future__ import annotations

import os

from unspill.errors import RootCallerRefused, RootfsError, SandboxUnavailable
from unspill.host.rootfs_base import look_at_top
from unspill.host.seccomp import build_filter
from unspill.layers.places import spill_dir
from unspill.layers.remove import remove_tree
from unspill.model.event import OutputChunk
from unspill.model.layer import RunId
from unspill.model.plan import ProxyNetwork
from unspill.model.policy import Policy
from unspill.model.record import Record
from unspill.model.rootfs import Installed, Progress
from unspill.model.run import Exited, LimitReached, NeverStarted, Signalled, TimedOut
from unspill.plan.install import LIMITS, InstallInput, build_install
from unspill.runner.perform import perform
from unspill.runner.wishes import Wishes
from unspill.sandbox.gate import make_gate
from unspill.sandbox.opening import choose_engine, get_facts
from unspill.sandbox.upkeep import find_own_locations
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.egress import Traffic
    from unspill.model.event import Event
    from unspill.model.facts import Facts
    from unspill.model.plan import Plan
    from unspill.model.policy import EngineName, Limits, Profile
    from unspill.model.run import Outcome
    from unspill.network.resolve import Endpoint
    from unspill.runner.perform import Performed

    Report = Callable[[Progress], None]

STEP = "installing packages"
_LONGEST_LINE = 512
_FAILED_TO_START = 125


class InstallGround(Record):
    """What installing needs of this host: the state directory, what the host can do, and what was decided.

    `cancel_fd` becomes readable to give up; `report` is told how many packages there are already. `may_fork`: nobody
    else is in this process.
    """

    state: bytes
    facts: Facts
    engine: EngineName
    profile: Profile = "default"
    limits: Limits = LIMITS
    cancel_fd: int | None = None
    report: Report | None = None
    may_fork: bool = False


def open_ground(policy: Policy | None = None, *, may_fork: bool = False, report: Report | None = None) -> InstallGround:
    """Find out what installing needs, without a project.

    Raises:
        RootCallerRefused: the caller is root and the policy does not allow that.
        HostError: this machine can't.
        StoreError: the state directory can't be used.
    """
    decided = policy or Policy()
    if os.getuid() == 0 and not decided.allow_root:
        raise RootCallerRefused("unspill does not install packages for root")
    state = find_own_locations().state
    with Store.open(state) as store:
        facts = get_facts(store, decided, ())
    return InstallGround(
        state=state,
        facts=facts,
        engine=choose_engine(decided, facts),
        profile=decided.profile,
        report=report,
        may_fork=may_fork,
    )


def install(tree: bytes, argv: Sequence[bytes], hosts: Sequence[str], *, ground: InstallGround) -> Installed:
    """Run a command inside the tree, and return how it ended and what it said.

    Raises:
        RootfsError: the tree can't be shown.
        PolicyError: a host can't be understood.
        SandboxUnavailable: we failed, not the command; nothing of it is alive.
    """
    directories, links = _look_at_top(tree)
    plan = build_install(
        InstallInput(
            tree=tree,
            directories=directories,
            links=links,
            argv=tuple(argv),
            hosts=tuple(hosts),
            facts=ground.facts,
            engine=ground.engine,
            filter=build_filter(os.uname().machine, ground.profile),
            limits=ground.limits,
        )
    )
    performed, traffic = _perform(plan, ground)
    return _installed(performed, traffic)


class _Counting:
    """Tells how far apk is, which begins a line with `( 3/12)` for the third package of twelve."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._line = b""

    def __call__(self, event: Event) -> None:
        if not isinstance(event, OutputChunk) or event.stream != "stdout":
            return
        *lines, rest = (self._line + event.chunk).split(b"\n")
        self._line = rest[-_LONGEST_LINE:]
        for line in lines:
            done, slash, total = line[1:].partition(b")")[0].partition(b"/")
            # It is padded to the width of the total
            done = done.strip()
            if line[:1] == b"(" and slash and done.isdigit() and total.isdigit() and len(line) <= _LONGEST_LINE:
                self._report(Progress(step=STEP, done=int(done), total=int(total), unit="package"))


def find_endpoints(hosts: Sequence[str]) -> frozenset[Endpoint]:
    """Return the exact addresses among the hosts: these are reached even if they are not public.

    Raises:
        PolicyError: a host can't be understood.
    """
    from unspill.network.resolve import Endpoint
    from unspill.policy.addresses import pack_address
    from unspill.policy.egress import WEB_PORTS, parse_rules

    found = []
    for rule in parse_rules(hosts).allowed:
        packed = pack_address(rule.host)
        ports = WEB_PORTS if rule.port is None else (rule.port,)
        found += [Endpoint(address=packed, port=port) for port in ports if packed]
    return frozenset(found)


def _look_at_top(tree: bytes) -> tuple[tuple[bytes, ...], tuple[tuple[bytes, bytes], ...]]:
    try:
        fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RootfsError(f"The half-built rootfs can't be read: {error.strerror}.") from None
    try:
        return look_at_top(fd, "that is being made")
    finally:
        os.close(fd)


def _perform(plan: Plan, ground: InstallGround) -> tuple[Performed, Traffic | None]:
    hosts = plan.network.hosts if isinstance(plan.network, ProxyNetwork) else ()
    gate = make_gate(plan.network, is_own_process=ground.may_fork, endpoints=find_endpoints(hosts))
    run = RunId(os.urandom(8).hex())
    spilled = spill_dir(ground.state, run)
    wishes = Wishes(
        run=run,
        spill_dir=spilled,
        on_event=None if ground.report is None else _Counting(ground.report),
        cancel_fd=ground.cancel_fd,
        may_fork=ground.may_fork,
        on_listener=None if gate is None else gate.serve,
    )
    try:
        performed = perform(plan, ground.facts, wishes)
    finally:
        traffic = None if gate is None else gate.close()
        remove_tree(spilled)
    return performed, traffic


def _installed(performed: Performed, traffic: Traffic | None) -> Installed:
    outcome = performed.outcome
    if isinstance(outcome, NeverStarted) and outcome.exit_code == _FAILED_TO_START:
        raise SandboxUnavailable(outcome.reason, remedy=outcome.remedy)
    said = (performed.stdout.kept() + performed.stderr.kept()).decode("utf-8", "backslashreplace")
    lines = [line for line in said.splitlines() if line.strip()]
    if outcome != Exited(code=0):
        refused = () if traffic is None else traffic.denials
        lines += [f"the sandbox refused {denial.place} ({denial.rule})" for denial in refused]
        lines.append(_ended(outcome))
    return Installed(ok=outcome == Exited(code=0), output="\n".join(map(_printable, lines)))


def _ended(outcome: Outcome) -> str:
    match outcome:
        case Exited():
            return f"it ended with {outcome.code}"
        case Signalled():
            return f"it was ended by the signal {outcome.signal}"
        case TimedOut():
            return f"it was ended after {outcome.after_s:.0f} s"
        case LimitReached():
            return f"it was ended because it took more than its {outcome.limit}: {outcome.bound}"
        case NeverStarted():
            return outcome.reason
    return "it was given up"


def _printable(line: str) -> str:
    """Return a line of a package's script as it may be shown on a terminal."""
    return "".join(char if char.isprintable() else "�" for char in line.expandtabs())
