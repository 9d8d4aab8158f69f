# SPDX-License-Identifier: Apache-2.0
"""The facade for every rootfs of a person: what is ready, what is fetched and made, what goes.

    registry = RootfsRegistry()
    made = registry.pull(RootfsSpec(source="alpine", tier=2))
    print(registry.tools(made.name).text())
    with Sandbox(project, policy=Policy(view="rootfs", rootfs=made.name)) as sandbox: ...

A rootfs never changes. An upgrade makes another one; runs that use the old one keep it until they end. Packages are
installed as uid 0 of a sandbox in which only the half-built tree is writable and only the given hosts are reached.
"""

from __future__ import annotations

import os
import sys
import time

from unspill.errors import RootCallerRefused, RootfsError, SandboxUnavailable, UsageError
from unspill.host.rootfs_base import look_at_top
from unspill.host.seccomp import build_filter
from unspill.layers.flatten import flatten
from unspill.layers.locks import lock_sandbox, spill_dir
from unspill.layers.trees import remove_tree
from unspill.model.layer import RunId
from unspill.model.plan import ProxyNetwork
from unspill.model.policy import Policy
from unspill.model.rootfs import Installed, Progress, RootfsKey, RootfsSpec
from unspill.model.run import Exited, LimitReached, NeverStarted, OutputChunk, Signalled, TimedOut
from unspill.network.resolve import Endpoint
from unspill.plan.rootfs import INSTALL_LIMITS, InstallInput, build_install
from unspill.policy.addresses import pack_address
from unspill.policy.egress import WEB_PORTS, parse_rules
from unspill.policy.rootfs_spec import find_wrong, is_label
from unspill.record import Record
from unspill.rootfs.build import obtain, prepare, upgrade, verify
from unspill.rootfs.registry import Registry, empty_downloads
from unspill.rootfs.source import Filled, Resolved, detect_arch
from unspill.runner.perform import perform
from unspill.runner.watch import Wishes
from unspill.sandbox.gate import make_gate
from unspill.sandbox.opening import choose_engine, get_facts
from unspill.sandbox.rootfs_use import (
    PULL,
    RootfsUse,
    discard_layers,
    find_rootfs,
    layered_trees,
    layers_of,
    rootfs_directory,
)
from unspill.sandbox.upkeep import find_own_locations, find_own_policy
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.plan import Facts, Plan
    from unspill.model.policy import EngineName, Limits, Profile
    from unspill.model.rootfs import Proof, Rootfs, RootfsBase, SourceName
    from unspill.model.run import Event, Outcome
    from unspill.model.traffic import Traffic
    from unspill.rootfs.source import Means, Source
    from unspill.runner.perform import Performed
    from unspill.sandbox.locations import Locations
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.sandbox import Sandbox
    from unspill.sandbox.tools import Tools

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
_PAUSE_S = 0.2


class Upgraded(Record):
    """What became of one rootfs: `new` takes its place; `is_newer` is false where there is nothing newer."""

    old: Rootfs
    new: Rootfs

    @property
    def is_newer(self) -> bool:
        """Whether there is another one now."""
        return self.old.name != self.new.name


class RootfsRegistry:
    """Every rootfs below one directory."""

    def __init__(
        self, directory: PathLike | None = None, *, policy: Policy | None = None, may_fork: bool = False
    ) -> None:
        """Look at a directory, which need not be there yet.

        Args:
            directory: Where every rootfs lies; by default where the policy, ROOTFS_DIR or the person's file says.
            policy: What sandboxes that install packages may use; by default the person's configuration file.
            may_fork: This process is small and has one thread.

        Raises:
            UsageError: a setting or a variable is wrong.
        """
        self._locations = find_own_locations()
        decided = policy if policy is not None else find_own_policy(self._locations)
        if directory is not None:
            decided = decided.replace(rootfs_dir=os.path.realpath(os.fsencode(directory)))
        self._policy = decided
        self.directory = rootfs_directory(decided, self._locations)
        self._registry = Registry(self.directory)
        self._install = Installer(decided, may_fork=may_fork)

    def list(self) -> tuple[Rootfs, ...]:
        """Return those that are ready, by name."""
        return self._registry.list()

    def damaged(self) -> tuple[tuple[str, str], ...]:
        """Return the names of those that can't be used, and why."""
        return self._registry.damaged()

    def current(self) -> Rootfs | None:
        """Return the one in use where a policy names none."""
        return self._registry.current()

    def find(self, name: str = "") -> Rootfs:
        """Return one by its name or the beginning of it; without a name the one that the policy means.

        Raises:
            RootfsError: there is none.
        """
        if name.startswith("/") or not name:
            wanted = name or self._policy.rootfs
            return find_rootfs(self._policy.replace(rootfs=wanted, provision=None), self._locations)
        found = self._registry.find(name, cut_anywhere=True)
        if found is None:
            raise RootfsError(f"There is no rootfs {name!a} here.", remedy=PULL)
        return found

    def pull(self, spec: RootfsSpec, *, report: Report | None = None) -> Rootfs:
        """Return a rootfs that meets a spec, fetched and made where none is ready.

        The first one becomes the one in use.

        Raises:
            UsageError: no source could meet the spec.
            RootfsError: it can't be had; nothing half-built is used.
        """
        check_spec(spec)
        source = find_source(spec.source)
        return prepare(
            self._registry, spec, source, install=self._install.telling(report), report=report or _tell_nobody
        )

    def upgrade(self, name: str = "", *, report: Report | None = None) -> Upgraded:
        """Make what the spec for a rootfs means today; where the old one was in use, the new one is.

        Raises:
            RootfsError: there is no such rootfs, or the newer one can't be had.
        """
        old = self.find(name)
        if old.manifest is None or old.manifest.spec.source not in SOURCES:
            raise RootfsError(f"{old.name} has no source that could have a newer one.", remedy="Make it anew yourself.")
        source = find_source(old.manifest.spec.source)
        new = upgrade(self._registry, old, source, install=self._install.telling(report), report=report or _tell_nobody)
        return Upgraded(old=old, new=new)

    def use(self, name: str) -> Rootfs:
        """Make one the one in use.

        Raises:
            RootfsError: there is no such rootfs, or the directory can only be read.
        """
        return self._registry.use(name)

    def remove(self, name: str, *, force: bool = False) -> str:
        """Remove one that no run uses; the one in use only with `force`. Return its whole name.

        Raises:
            RootfsError: there is no such rootfs, it is in use, or runs use it.
        """
        found = self._registry.find(name)
        if found is not None and not force and found.name in self._layered():
            raise RootfsError(
                f"Some sandbox has written to {found.name}; without it, that is worth nothing.",
                remedy="`unspill rootfs keep` or `discard` in its project first, or --force.",
            )
        return self._registry.remove(name, force=force)

    def remove_unused(self) -> tuple[str, ...]:
        """Remove those that a newer one has replaced and nobody uses; return their names.

        One that a sandbox has written to, in its layer, stays as long as that layer does.
        """
        return self._registry.remove_unused(self._layered())

    def _layered(self) -> tuple[str, ...]:
        """Return the names of those that some sandbox has written to."""
        with Store.open(self._locations.state) as store:
            trees = layered_trees(store)
        return tuple(found.name for found in self.list() if found.tree in trees)

    def empty_downloads(self) -> int:
        """Remove what was fetched and nobody uses right now; return how many bytes of the disk that gave back.

        Raises:
            RootfsError: the directory can only be read.
        """
        return empty_downloads(self.directory)

    def keep(self, sandbox: Sandbox, label: str, *, report: Report | None = None) -> Rootfs:
        """Make what a sandbox with a writable rootfs has made of it a rootfs of its own; the sandbox keeps it too.

        Raises:
            UsageError: it has written nothing there, or the label is none.
            RootfsError: it can't be made.
        """

        return keep_rootfs(sandbox._opened, label, report or _tell_nobody)

    def discard(self, sandbox: Sandbox) -> int:
        """Throw away what a sandbox has written to its rootfs; return how many layers that were."""
        return discard_layers(sandbox._opened)

    def verify(self, name: str = "") -> Proof:
        """Read the whole tree of one, and return what speaks for its content.

        Raises:
            RootfsUnverified: it is not what it was when it was made.
            RootfsError: there is no such rootfs.
        """
        return verify(self.find(name))

    def tools(self, name: str = "") -> Tools:
        """Return which runtimes and tools are inside, found out by a run inside.

        Raises:
            RootfsError: there is no such rootfs, or it can't be asked.
            HostError: this machine can't run anything in it.
        """
        from unspill.sandbox.tools import ask_inside  # lazy: rootfs

        return ask_inside(self.find(name), self.directory, self._policy, self._locations)


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
    found = find_wrong(spec)
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
    tell = report or _tell_nobody
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


def keep_rootfs(opened: Opened, label: str, report: Callable[[Progress], None]) -> Rootfs:
    """Make what the sandbox sees of its rootfs a rootfs of its own, called by `label`; the sandbox keeps its layers.

    Raises:
        UsageError: the sandbox has written nothing to a rootfs.
        RootfsError: it can't be made.
    """
    if not is_label(label):
        raise UsageError(
            f"not a label for a rootfs: {label!a}",
            remedy="Use small letters, digits, `.` and `_`, a letter first, and not the name of a source there.",
        )
    # Whatever the policy says by now: the tree that the layers were written for
    opened = opened.replace(policy=opened.policy.replace(view="rootfs", rootfs_writable=True))
    with lock_sandbox(opened.store.state, opened.row.id), RootfsUse(opened) as places:
        base = places.rootfs
        tree = b"" if base is None else base.tree
        layers = {path: uppers for path, uppers in layers_of(opened).items() if os.path.dirname(path) == tree}
        if base is None or not layers:
            raise UsageError(
                "This sandbox has written nothing to its rootfs.",
                remedy="Set `rootfs_writable = true`, and install something with `unspill run`.",
            )
        registry = Registry(rootfs_directory(opened.policy, opened.locations))
        while True:
            spec = RootfsSpec(source="kept", version=time.strftime("%Y%m%d.%H%M%S", time.gmtime()), label=label)
            made, is_new = obtain(registry, spec, _Kept(base, layers), install=_install_nothing, report=report)
            if is_new:
                return made
            # Of this very second there is one already, which may hold something else
            time.sleep(_PAUSE_S)


class _Kept:
    """The tree of a base with the layers of one sandbox over it."""

    def __init__(self, base: RootfsBase, layers: dict[bytes, tuple[bytes, ...]]) -> None:
        self._base = base
        self._layers = layers

    def resolve(self, spec: RootfsSpec, means: Means) -> Resolved:
        key = RootfsKey(source=spec.label, version=spec.version, arch=detect_arch())
        return Resolved(key=key, spec=spec)

    def fill(self, resolved: Resolved, tree: bytes, means: Means) -> Filled:
        unreadable = 0
        for top in self._base.directories:
            os.mkdir(tree + top, 0o755)
            source = self._base.tree + top
            unreadable += flatten(source, self._layers.get(source, ()), tree + top)
        for dest, target in self._base.links:
            os.symlink(target, tree + dest)
        left_out = (("unreadable", unreadable),) if unreadable else ()
        return Filled(proof="none", fetched=(("base", self._base.name),), left_out=left_out)


def _install_nothing(tree: bytes, argv: Sequence[bytes], hosts: Sequence[str]) -> Installed:
    raise RootfsError("Nothing is installed into what is kept.")


def _tell_nobody(_progress: Progress) -> None:
    """Take what nobody wants to hear."""
