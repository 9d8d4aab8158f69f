# SPDX-License-Identifier: Apache-2.0
"""Make a rootfs: find its source, and install packages as uid 0 of a sandbox.

In that sandbox only the half-built tree is writable, and only the given hosts are reached.
"""

from __future__ import annotations

import os
import sys

from unspill.errors import RootCallerRefused, RootfsError, SandboxUnavailable, UsageError
from unspill.host.bwrap import build_filter
from unspill.layers.locks import spill_dir
from unspill.layers.trees import remove_tree
from unspill.model.layer import RunId
from unspill.model.plan import ProxyNetwork
from unspill.model.policy import Policy
from unspill.model.rootfs import Installed, Progress, RootfsSpec
from unspill.model.run import Exited, LimitReached, NeverStarted, OutputChunk, Signalled, TimedOut
from unspill.network.resolve import Endpoint
from unspill.plan.rootfs import INSTALL_LIMITS, InstallInput, build_install
from unspill.policy.config import find_wrong_field
from unspill.policy.hosts import WEB_PORTS, pack_address, parse_rules
from unspill.record import Record
from unspill.rootfs.build import prepare
from unspill.rootfs.layout import look_at_top
from unspill.rootfs.registry import Registry
from unspill.runner.perform import perform
from unspill.runner.watch import Wishes
from unspill.sandbox.gate import make_gate
from unspill.sandbox.opening import choose_engine, get_facts
from unspill.sandbox.project import find_own_locations
from unspill.sandbox.settings import rootfs_directory
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.plan import Facts, Plan
    from unspill.model.policy import EngineName, Limits, Profile
    from unspill.model.rootfs import Rootfs, SourceName
    from unspill.model.run import Event, Outcome, Traffic
    from unspill.rootfs.source import Source
    from unspill.runner.perform import Performed
    from unspill.sandbox.project import Locations

    Report = Callable[[Progress], None]
    PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]

STEP = "installing packages"
_LONGEST_LINE = 512
_FAILED_TO_START = 125
SOURCES: dict[SourceName, tuple[str, str]] = {
    "alpine": ("unspill.rootfs.alpine", "AlpineSource"),
    "debian": ("unspill.rootfs.debian", "DebianSource"),
    "archive": ("unspill.rootfs.archive", "ArchiveSource"),
    "oci": ("unspill.rootfs.oci", "OciSource"),
}


class InstallGround(Record):
    """What installing needs of this host: the state directory, what the host can do, and what was decided.

    `cancel_fd` becomes readable to give up; `report` is told how many packages there are already. `may_fork`: nobody
    else is in this process.
    """

    state: bytes
    facts: Facts
    engine: EngineName
    profile: Profile = "default"
    limits: Limits = INSTALL_LIMITS
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
    directories, links = _look_at_tree(tree)
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
    found = []
    for rule in parse_rules(hosts).allowed:
        packed = pack_address(rule.host)
        ports = WEB_PORTS if rule.port is None else (rule.port,)
        found += [Endpoint(address=packed, port=port) for port in ports if packed]
    return frozenset(found)


def _look_at_tree(tree: bytes) -> tuple[tuple[bytes, ...], tuple[tuple[bytes, bytes], ...]]:
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


def find_source(name: SourceName) -> Source:
    """Return the source of this name."""
    module, kind = SOURCES[name]
    __import__(module)
    source: Source = getattr(sys.modules[module], kind)()
    return source


class Installer:
    """Runs commands in a half-built rootfs. What that needs of the host is found out when it is first needed."""

    def __init__(self, policy: Policy, *, may_fork: bool = False, report: Report | None = None) -> None:
        self._policy = policy
        self._may_fork = may_fork
        self._report = report
        self._ground: InstallGround | None = None

    def telling(self, report: Report | None) -> Installer:
        """Return one that tells how many packages there are already."""
        return Installer(self._policy, may_fork=self._may_fork, report=report)

    def __call__(self, tree: bytes, argv: Sequence[bytes], hosts: Sequence[str]) -> Installed:
        """Run one command.

        Raises:
            HostError: this machine can't.
            SandboxUnavailable: we failed, not the command.
        """

        if self._ground is None:
            self._ground = open_ground(self._policy, may_fork=self._may_fork, report=self._report)
        return install(tree, argv, hosts, ground=self._ground)


def check_spec(spec: RootfsSpec) -> None:
    """Refuse a spec that nobody could meet.

    Raises:
        UsageError: with the field.
    """
    found = find_wrong_field(spec)
    if found is not None:
        raise UsageError(f"This rootfs can't be made: {found[0]}: {found[1]}", remedy="See `unspill rootfs --help`.")


def provide(policy: Policy, spec: RootfsSpec, locations: Locations, report: Report | None = None) -> Rootfs:
    """Make the rootfs that a policy means as it says, for the run that found none.

    Raises:
        RootfsError: it can't be had, or what is made so is another one than the policy names.
    """
    registry = Registry(rootfs_directory(policy, locations))
    called = spec.label or spec.source
    if policy.rootfs and policy.rootfs.partition("-")[0] != called:
        raise _another(policy.rootfs, called)
    tell = report or ignore_progress
    made = prepare(registry, spec, find_source(spec.source), install=Installer(policy, report=tell), report=tell)
    if not policy.rootfs:
        # Where the directory can only be read, none can be made the one in use
        return registry.current() or made
    found = registry.find(policy.rootfs)
    if found is None:
        raise _another(policy.rootfs, made.name)
    return found


def _another(wanted: str, made: str) -> RootfsError:
    return RootfsError(
        f"There is no rootfs {wanted} here, and `[provision]` would make {made}.",
        remedy="Let `rootfs` and `[provision]` of your configuration name the same one.",
    )


def ignore_progress(_progress: Progress) -> None:
    """Take what nobody wants to hear."""
