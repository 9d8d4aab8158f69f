# SPDX-License-Identifier: Apache-2.0
"""The rootfs of a run: which one the policy means, how it is made, the lock that keeps it, layers over a writable one.

On the path of each run in a rootfs: some file look-ups, no network, unless there is none and the policy says how one is
made. The tree itself never changes. What commands write to it (`rootfs_writable`) is in sealed layers of one sandbox,
which are never applied to anything, and stay over the tree that they were written for.

Packages are installed as uid 0 of a sandbox in which only the half-built tree is writable, and only the given hosts are
reached.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from hashlib import blake2b

from unspill.errors import (
    RootCallerRefused,
    RootfsError,
    RootfsUnsafe,
    SandboxUnavailable,
    UsageError,
)
from unspill.host.bwrap import build_filter, find_changeable, find_changeable_way
from unspill.host.dirfd import find_inside, resolve_inside
from unspill.host.libc import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2
from unspill.host.places import find_files_of_others
from unspill.layers.lifecycle import ROOTFS_OWNER, is_empty, rootfs_owner
from unspill.layers.locks import lock_sandbox, spill_dir, upper_dir
from unspill.layers.trees import remove_tree
from unspill.model.permission import UNKNOWN_PROGRAM
from unspill.model.plan import (
    Bind,
    CacheLayer,
    Directory,
    Overlay,
    ProxyNetwork,
    ReadOnly,
    Symlink,
)
from unspill.model.policy import Policy
from unspill.model.rootfs import (
    NOTE,
    Installed,
    Progress,
    Rootfs,
    RootfsSpec,
)
from unspill.model.run import (
    Exited,
    LimitReached,
    NeverStarted,
    OutputChunk,
    RunId,
    SealedLayer,
    Signalled,
    Stack,
    TimedOut,
)
from unspill.network.resolve import Endpoint
from unspill.plan.rootfs import (
    INSTALL_LIMITS,
    OWN_PLACES,
    InstallInput,
    build_install,
)
from unspill.plan.view import is_written
from unspill.policy.config import find_wrong_field
from unspill.policy.defaults import mount_source_problem
from unspill.policy.hosts import WEB_PORTS, pack_address, parse_rules
from unspill.policy.paths import contains, show
from unspill.record import Record
from unspill.rootfs.build import prepare
from unspill.rootfs.layout import (
    let_go,
    look_at_rootfs,
    look_at_top,
    take,
)
from unspill.rootfs.registry import Registry
from unspill.runner.perform import perform
from unspill.runner.watch import RunControl
from unspill.sandbox.project import (
    choose_engine,
    find_own_locations,
    get_facts,
    rootfs_directory,
)
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from unspill.model.plan import (
        Facts,
        MountOp,
        Places,
        Plan,
    )
    from unspill.model.policy import EngineName, Limits, Profile
    from unspill.model.rootfs import RootfsBase, SourceName
    from unspill.model.run import Event, OpenLayer, Outcome, SandboxId, Traffic
    from unspill.rootfs.source import Source
    from unspill.runner.perform import Performed
    from unspill.sandbox.project import Locations, Project

    Report = Callable[[Progress], None]


PULL = "`unspill rootfs pull alpine` makes one; `unspill rootfs list` shows what there is."
USE = "`unspill rootfs use NAME` chooses one of those that `unspill rootfs list` shows."
# The engine `native` takes some sixty where paths are long, and the kernel no more than 500
_MOST_LAYERS = 40
_TREE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST_MANIFEST = 16 << 20
_LOOKUP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 3
_PATIENCE_S, _PAUSE_S = 20.0, 0.02
_REMEDY = "`unspill rootfs keep LABEL` or `unspill rootfs discard`"

STEP = "installing packages"
_LONGEST_LINE = 512
_FAILED_TO_START = 125
SOURCES: dict[SourceName, tuple[str, str]] = {
    "alpine": ("unspill.rootfs.alpine", "AlpineSource"),
    "debian": ("unspill.rootfs.debian", "DebianSource"),
    "archive": ("unspill.rootfs.archive", "ArchiveSource"),
    "oci": ("unspill.rootfs.oci", "OciSource"),
}


def find_rootfs(
    policy: Policy, locations: Locations, roots: tuple[bytes, ...] = (), report: Report | None = None
) -> Rootfs:
    """Return the rootfs of view `rootfs`; where it is missing and the policy says how, it is made first.

    `roots` are what commands may write: a tree in one of them would be theirs. `report` hears how the making goes on.

    Raises:
        RootfsUnsafe: others could change the directory that the policy names, or it shows what stays private.
        RootfsError: there is none, or it can't be made.
    """
    if policy.rootfs.startswith("/"):
        return _find_directory(policy, locations, roots)
    registry = Registry(rootfs_directory(policy, locations))
    found = registry.find(policy.rootfs) if policy.rootfs else registry.current()
    if found is not None:
        return found
    if policy.provision is not None:
        return provide(policy, policy.provision, locations, report)
    named = f"no rootfs {policy.rootfs}" if policy.rootfs else "no rootfs in use"
    is_any = not policy.rootfs and bool(registry.list())
    raise RootfsError(f"There is {named} here.", remedy=USE if is_any else PULL)


def _find_directory(policy: Policy, locations: Locations, roots: tuple[bytes, ...]) -> Rootfs:
    """Return a tree that the person made: never the host's own, nor one that anybody else could change."""
    tree = os.path.realpath(os.fsencode(policy.rootfs))
    own = (locations.state, locations.config, locations.data, rootfs_directory(policy, locations))
    problem = "is the whole file system" if tree == b"/" else ""
    if any(contains(root, tree) or contains(tree, root) for root in roots):
        problem = "is or contains what commands may write, or lies in it"
    problem = problem or mount_source_problem(tree, home=locations.home, own=own)
    problem = problem or _why_changeable(tree, os.fsencode(policy.rootfs))
    if problem:
        raise RootfsUnsafe(
            f"{show(tree)} can't be a rootfs: it {problem}.",
            remedy="Name a directory that only you and root can write, with a root file system in it and nothing else.",
        )
    return Rootfs(name=os.fsdecode(tree), tree=tree)


def _why_changeable(tree: bytes, way: bytes) -> str:
    """Return who else could put something else there, "" where nobody could: each directory above counts too.

    `way` is how it was named: links may lead there.
    """
    found = find_changeable(tree) or find_changeable_way(way)
    if found is None:
        return ""
    return found.reason if found.path == tree else f"{found.reason} ({show(found.path)})"


def writable_directories(project: Project, base: RootfsBase | None) -> tuple[bytes, ...]:
    """Return the directories of the tree that a run may write to, each under a layer; none unless the policy says so.

    Raises:
        UsageError: the tree is somebody else's, which no overlay copies up, or there are too many layers over it.
    """
    if base is None or not project.means.policy.rootfs_writable:
        return ()
    if os.lstat(base.tree).st_uid != os.geteuid():
        raise UsageError(
            f"The rootfs {base.name} can't be writable: it belongs to another user.",
            remedy="Make one of your own with `unspill rootfs pull`.",
        )
    deepest = max(map(len, layers_of(project).values()), default=0)
    if deepest > _MOST_LAYERS:
        raise UsageError(
            "This sandbox has more layers over its rootfs than can be mounted: something in them can't be merged.",
            remedy="`unspill rootfs keep LABEL`, then `unspill rootfs discard`.",
        )
    return tuple(base.tree + top for top in base.directories if top not in OWN_PLACES)


def notes_of(layers: tuple[CacheLayer, ...]) -> tuple[str, ...]:
    """Return what to say of a run that has written to its rootfs, nothing of one that has not."""
    if all(layer.stack.open is None or is_empty(layer.stack.open.upper) for layer in layers):
        return ()
    return (f"{NOTE}what it wrote there stays in this sandbox (`unspill rootfs keep LABEL`, `unspill rootfs discard`)",)


def layered_tree(store: Store, sandbox: SandboxId) -> bytes | None:
    """Return the tree that a sandbox has layers over, None where it has none."""
    rows = store.caches.sealed(rootfs_owner(sandbox))
    return os.path.dirname(rows[-1].path) if rows else None


def layered_trees(store: Store) -> frozenset[bytes]:
    """Return every tree that some sandbox has layers over: without it they would be worth nothing."""
    return frozenset(os.path.dirname(path) for path in store.caches.paths_below(ROOTFS_OWNER))


def discard_layers(project: Project) -> int:
    """Throw away what the sandbox wrote to its rootfs; return how many layers that were."""
    with lock_sandbox(project.store.state, project.row.id):
        rows = project.store.caches.sealed(rootfs_owner(project.row.id))
        if rows:
            project.store.caches.retire(rows)
    return len(rows)


def stacks_over(project: Project, tops: tuple[bytes, ...], layer: OpenLayer) -> tuple[CacheLayer, ...]:
    """Return the layers that the next run would have over its rootfs, with an open one that is only named."""
    stacks = {path: Stack(live=path, device=0, inode=0, open=layer) for path in tops}
    for row in project.store.caches.sealed(rootfs_owner(project.row.id)):
        if row.path in stacks:
            upper = upper_dir(project.store.state, row.id)
            sealed = SealedLayer(id=row.id, upper=upper, mark=layer.mark, run=row.run)
            stacks[row.path] = stacks[row.path].replace(sealed=(*stacks[row.path].sealed, sealed))
    return tuple(CacheLayer(path=path, stack=stack) for path, stack in stacks.items())


def layers_of(project: Project) -> dict[bytes, tuple[bytes, ...]]:
    """Return the sealed uppers, the oldest first, of each directory of the tree that was written to."""
    found: dict[bytes, tuple[bytes, ...]] = {}
    for row in project.store.caches.sealed(rootfs_owner(project.row.id)):
        found[row.path] = (*found.get(row.path, ()), upper_dir(project.store.state, row.id))
    return found


def is_steady_in_rootfs(plan: Plan, path: bytes) -> bool:
    """Tell whether the tree alone decides what is at a path, and no command can write there; it may be nothing."""
    others = tuple(op.dest for op in plan.mounts if not _is_of_tree(plan, op))
    fd = os.open(plan.rootfs, _TREE)
    try:
        if resolve_inside(fd, path, others) is not None:
            return True
        return not any(contains(other, path) for other in others) and _is_missing(fd, path)
    finally:
        os.close(fd)


def is_executable_in_rootfs(plan: Plan, path: bytes) -> bool:
    """Tell whether a path leads to a program of the tree."""
    fd = os.open(plan.rootfs, _TREE)
    try:
        found = find_inside(fd, path)
    finally:
        os.close(fd)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def identify_in_rootfs(plan: Plan, path: bytes) -> str:
    """Return what stands for a program of the tree, or `UNKNOWN_PROGRAM` for a script.

    The same path is another program in another rootfs; and what reads a script may read packages of the project too.
    """
    fd = os.open(plan.rootfs, _TREE)
    try:
        real = resolve_inside(fd, path)
        if not real:
            return UNKNOWN_PROGRAM
        program = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        try:
            is_script = os.read(program, 2) == b"#!"
        finally:
            os.close(program)
    except OSError:
        return UNKNOWN_PROGRAM
    finally:
        os.close(fd)
    return UNKNOWN_PROGRAM if is_script else blake2b(plan.rootfs + _manifest_of(plan), digest_size=32).hexdigest()


def _manifest_of(plan: Plan) -> bytes:
    try:
        with open(os.path.join(os.path.dirname(plan.rootfs), b"manifest.json"), "rb") as file:
            return file.read(_LARGEST_MANIFEST)
    except OSError:
        return b""  # a tree that the person made


def _is_of_tree(plan: Plan, operation: MountOp) -> bool:
    match operation:
        case Directory() | Symlink() | ReadOnly():
            return True
        case Bind():
            return not operation.writable and contains(plan.rootfs, operation.source)
        case Overlay():
            return not is_written(operation) and contains(plan.rootfs, operation.lowers[-1])
    return False


def _is_missing(fd: int, path: bytes) -> bool:
    """Tell whether there is nothing at a path, nor a link on the way to it."""
    try:
        os.close(openat2(fd, path[1:], _LOOKUP, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS))
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def base_of(project: Project) -> RootfsBase:
    """Return what a plan has to know of the rootfs that a sandbox's policy means.

    Raises:
        RootfsError: there is none, or it can't be used.
    """
    for _ in range(_ATTEMPTS):
        found, note = _find_meant(project)
        try:
            base = look_at_rootfs(found.tree, found.name, os.getuid(), is_own=found.manifest is not None)
        except RootfsError:
            # One that is removed at this moment is not meant any more
            if os.path.isdir(found.tree):
                raise
        else:
            return base.replace(note=note)
    raise RootfsError("The rootfs keeps changing.", remedy="Try again.")


def _find_meant(project: Project) -> tuple[Rootfs, str]:
    """Return the rootfs that the policy means, or the one that the sandbox has written to, and what to say of that."""
    found = find_rootfs(project.means.policy, project.locations, project.roots)
    note = ""
    if project.means.policy.rootfs_writable:
        tree = layered_tree(project.store, project.row.id)
        # What was installed over one tree would not fit another
        if tree is not None and tree != found.tree:
            older = _find_by_tree(project, tree)
            if older is not None:
                found = older
                note = f"{NOTE}this sandbox stays on {found.name}, because it has written to it ({_REMEDY})"
            else:
                gone = show(os.path.basename(os.path.dirname(tree)))
                note = f"{NOTE}{gone} is gone, and what this sandbox wrote to it is lost (`unspill rootfs discard`)"
    return found, note


def _find_by_tree(project: Project, tree: bytes) -> Rootfs | None:
    """Return the rootfs with this tree, checked as if the policy named it, None where there is none any more."""
    directory = rootfs_directory(project.means.policy, project.locations)
    if os.path.dirname(os.path.dirname(tree)) == os.path.join(directory, b"roots"):
        return Registry(directory).get(os.fsdecode(os.path.basename(os.path.dirname(tree))))
    if not os.path.isdir(tree):
        return None
    named = project.means.policy.replace(rootfs=os.fsdecode(tree), provision=None)
    return find_rootfs(named, project.locations, project.roots)


def provide_rootfs(project: Project, report: Callable[[Progress], None]) -> Rootfs:
    """Return the rootfs of a project; make it where it is missing and the policy says how, before the first run would.

    Raises:
        RootfsError: it can't be had.
    """
    return find_rootfs(project.means.policy, project.locations, project.roots, report)


class RootfsUse:
    """Keeps the rootfs of a sandbox from being removed while a run uses it; `places` are those that have it."""

    def __init__(self, find_places: Callable[[bool], Places]) -> None:
        """Wait until nobody removes it; if it has gone, the one that is meant now is taken.

        `find_places` returns what the host has, with the rootfs that is meant; if it gets True, it looks anew.

        Raises:
            RootfsError: there is none, or somebody keeps it for themselves.
        """
        end = time.monotonic() + _PATIENCE_S
        is_afresh = False
        while True:
            self.places = find_places(is_afresh)
            base = self.places.rootfs
            if base is None:
                raise RootfsError("There is no rootfs.")
            self._fd = self._lock(base)
            if self._fd is not None:
                return
            if time.monotonic() > end:
                raise RootfsError(
                    f"Another process keeps the rootfs {base.name} locked.",
                    remedy="Find it with `lsof +D` on the directory of the rootfs, and wait for it or stop it.",
                )
            is_afresh = True
            time.sleep(_PAUSE_S)

    @staticmethod
    def _lock(base: RootfsBase) -> int | None:
        """Return a descriptor with the shared lock, -1 where a tree needs none, None where it has to be tried again."""
        if not base.is_own:
            return -1
        directory = os.path.dirname(base.tree)
        if not os.path.isdir(directory):
            return None
        return take(directory, fcntl.LOCK_SH)

    def __enter__(self) -> Places:
        return self.places

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let go of it."""
        if self._fd is not None and self._fd >= 0:
            let_go(self._fd)
            self._fd = None


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
            files_of_others=find_files_of_others(),
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
    from unspill.network.proxy import make_gate  # lazy: proxy

    gate = make_gate(plan.network, is_own_process=ground.may_fork, endpoints=find_endpoints(hosts))
    run = RunId(os.urandom(8).hex())
    spilled = spill_dir(ground.state, run)
    control = RunControl(
        run=run,
        spill_dir=spilled,
        on_event=None if ground.report is None else _Counting(ground.report),
        cancel_fd=ground.cancel_fd,
        may_fork=ground.may_fork,
        on_listener=None if gate is None else gate.serve,
    )
    try:
        performed = perform(plan, ground.facts, control)
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
            return outcome.describe()
        case NeverStarted():
            return outcome.reason
    return "it was cancelled"


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
