# SPDX-License-Identifier: Apache-2.0
"""The facade for every rootfs of a person: what is ready, what is fetched and made, what goes.

    registry = RootfsRegistry()
    made = registry.pull(RootfsSpec(source="alpine", tier=2))
    print(registry.tools(made.name).text())
    with Sandbox(project, policy=Policy(view="rootfs", rootfs=made.name)) as sandbox: ...

A rootfs never changes. An upgrade makes another one; runs that use the old one keep it until they end.

Which runtimes and tools one has is asked by a run inside it; nothing is concluded from the host. What is inside may be
a stranger's, and the answer goes into prompts: of what that run prints only names of our own table, directories of our
own list and numbers survive.
"""

from __future__ import annotations

import os
import re
import time
from tempfile import mkdtemp

from unspill.errors import RootfsError, UsageError
from unspill.layers.lifecycle import playground_dir
from unspill.layers.locks import lock_file, lock_sandbox, spill_dir
from unspill.layers.trees import flatten, remove_tree
from unspill.model.policy import (
    KIB,
    MIB,
    Limits,
    Policy,
)
from unspill.model.rootfs import (
    INSTALLERS,
    OTHERS,
    PROGRAM_DIRECTORIES,
    RUNTIMES,
    Installed,
    Progress,
    RootfsKey,
    RootfsSpec,
)
from unspill.model.run import Exited
from unspill.policy.config import is_rootfs_label
from unspill.record import Record
from unspill.rootfs.build import (
    obtain,
    prepare,
    upgrade,
    verify,
)
from unspill.rootfs.registry import Registry, empty_downloads
from unspill.rootfs.source import Filled, Resolved, detect_arch
from unspill.sandbox.planning import get_places
from unspill.sandbox.project import find_own_locations, find_own_policy, rootfs_directory
from unspill.sandbox.rootfs_use import (
    PULL,
    SOURCES,
    Installer,
    RootfsUse,
    check_spec,
    discard_layers,
    find_rootfs,
    find_source,
    ignore_progress,
    layered_trees,
    layers_of,
)
from unspill.sandbox.sandbox import Sandbox
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Iterable,
        Iterator,
        Sequence,
    )

    from unspill.model.policy import Tmp
    from unspill.model.rootfs import Proof, Rootfs, RootfsBase
    from unspill.rootfs.source import BuildContext
    from unspill.sandbox.project import Locations, PathLike, Project
    from unspill.sandbox.sandbox import Sandbox

    Report = Callable[[Progress], None]


_PAUSE_S = 0.2

# Those that do not tell by `--version`; nothing: they have no version, or would wait for something
_ASKED = {
    "go": "version",
    "java": "-version",
    "lua": "-v",
    "unzip": "-v",
    "perl": "-v",
    "ssh": "-V",
    "openssl": "version",
}
_UNASKED = ("sh", "find", "xargs", "vi", "gzip", "bzip2", "busybox", "xz", "zip", "sqlite3")
_SYSTEMS = ("alpine", "debian", "ubuntu", "fedora", "arch", "opensuse-leap", "rocky", "almalinux", "void", "wolfi")
_LIBCS = ("musl", "glibc")
_TOOLS_SANDBOX = "tools"
_MOST_LINES = 256
_LONGEST_LINE = 512
_LONGEST_VERSION = 32
_TOOLS_LIMITS = Limits(
    wall_s=30.0,
    output_bytes=1 * MIB,
    kept_bytes=64 * KIB,
    layer_bytes=16 * MIB,
    layer_entries=1000,
    # The kernel's own bound: what is on the disk is only looked at now and then
    file_bytes=1 * MIB,
    tmp_bytes=16 * MIB,
    processes=64,
)
_TOOLS_SCRIPT = """\
PATH={path}; LC_ALL=C; export PATH LC_ALL; nl='
'
ask() {{
    case $1 in {unasked}) return ;; {cases} *) set -- "$1" "$2" --version ;; esac
    "$2" "$3" </dev/null 2>&1
}}
for name in {names}; do
    place=
    # Not by `command -v`: a busybox may say that all its applets are built in
    for top in {tops}; do [ -f "$top/$name" ] && [ -x "$top/$name" ] && place=$top/$name && break; done
    [ "$place" ] || continue
    said=$(ask "$name" "$place")
    said=${{said#"$nl"}}
    printf '%s\\t%s\\t%s\\n' "$name" "$place" "${{said%%"$nl"*}}"
done
for file in /lib/ld-musl-*; do [ -e "$file" ] && printf '@libc\\t-\\tmusl\\n'; done
for file in /lib/ld-linux* /lib64/ld-linux* /lib/*/ld-linux*; do
    [ -e "$file" ] && printf '@libc\\t-\\tglibc\\n' && break
done
if [ -r /etc/os-release ]; then
    while IFS= read -r line; do
        case $line in
            ID=*) printf '@system\\t-\\t%s\\n' "${{line#ID=}}" ;;
            VERSION_ID=*) printf '@release\\t-\\t%s\\n' "${{line#VERSION_ID=}}" ;;
        esac
    done </etc/os-release
fi
"""
_PACKAGES = "/workspace/.packages"


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
            self._registry, spec, source, install=self._install.telling(report), report=report or ignore_progress
        )

    def upgrade(self, name: str = "", *, report: Report | None = None) -> Upgraded:
        """Make what the spec for a rootfs means today; where the old one was in use, the new one is.

        Raises:
            RootfsError: there is no such rootfs, or the newer one can't be had.
        """
        old = self.find(name)
        if old.manifest is None or old.manifest.spec.source not in SOURCES:
            raise RootfsError(f"{old.name} has no source to look for a newer one.", remedy="Make it again yourself.")
        source = find_source(old.manifest.spec.source)
        new = upgrade(
            self._registry, old, source, install=self._install.telling(report), report=report or ignore_progress
        )
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
                f"A sandbox has written to {found.name}, and would lose what it wrote.",
                remedy="Run `unspill rootfs keep` or `discard` in its project first, or add --force.",
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
        return keep_rootfs(sandbox._project, label, report or ignore_progress)

    def discard(self, sandbox: Sandbox) -> int:
        """Throw away what a sandbox has written to its rootfs; return how many layers that were."""
        return discard_layers(sandbox._project)

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
        return ask_inside(self.find(name), self.directory, self._policy, self._locations)


def keep_rootfs(project: Project, label: str, report: Callable[[Progress], None]) -> Rootfs:
    """Make what the sandbox sees of its rootfs a rootfs of its own, called by `label`; the sandbox keeps its layers.

    Raises:
        UsageError: the sandbox has written nothing to a rootfs.
        RootfsError: it can't be made.
    """
    if not is_rootfs_label(label):
        raise UsageError(
            f"not a label for a rootfs: {label!a}",
            remedy="Use lower-case letters, digits, `.` and `_`, a letter first, and not the name of a source there.",
        )
    # Whatever the policy says by now: the tree that the layers were written for
    project = project.with_means(policy=project.means.policy.replace(view="rootfs", rootfs_writable=True))
    with (
        lock_sandbox(project.store.state, project.row.id),
        RootfsUse(lambda afresh: get_places(project, afresh=afresh)) as places,
    ):
        base = places.rootfs
        tree = b"" if base is None else base.tree
        layers = {path: uppers for path, uppers in layers_of(project).items() if os.path.dirname(path) == tree}
        if base is None or not layers:
            raise UsageError(
                "This sandbox has written nothing to its rootfs.",
                remedy="Set `rootfs_writable = true`, and install something with `unspill run`.",
            )
        registry = Registry(rootfs_directory(project.means.policy, project.locations))
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

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        key = RootfsKey(source=spec.label, version=spec.version, arch=detect_arch())
        return Resolved(key=key, spec=spec)

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
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


class RootfsTool(Record):
    """One program of a rootfs; the version is empty where it does not tell."""

    name: str
    path: str
    version: str = ""


class Tools(Record):
    """What a rootfs offers, and what a command finds around it. `text()` is for an agent's prompt."""

    rootfs: str
    arch: str
    tools: tuple[RootfsTool, ...]
    system: str = ""
    release: str = ""
    libc: str = ""
    hosts: tuple[str, ...] = ()
    tmp: Tmp = "fresh"
    writable: bool = False
    mounts: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it in words."""
        return tools_text(self)


def ask_inside(rootfs: Rootfs, directory: bytes, policy: Policy, locations: Locations) -> Tools:
    """Run once inside a rootfs and return what it has. `policy` is the person's; `directory` is where every rootfs is.

    Raises:
        RootfsError: the run did not end by itself.
        HostError: this machine can't.
    """
    alone = Policy(
        view="rootfs",
        rootfs=rootfs.name,
        rootfs_dir=directory,
        toolchains=False,
        caches=False,
        after="discard",
        after_timeout="discard",
        limits=_TOOLS_LIMITS,
        engine=policy.engine,
        bwrap=policy.bwrap,
        allow_root=policy.allow_root,
    )
    project = _empty_project(locations.home)
    try:
        with Sandbox(project, name=_TOOLS_SANDBOX, policy=alone) as sandbox:
            result = sandbox.run(["/bin/sh", "-c", script()])
    finally:
        _forget_playground(locations.data, project)
        _forget_rows(locations.state, project)
        remove_tree(project)
    if not isinstance(result.outcome, Exited):
        raise RootfsError(
            f"unspill could not list the tools in {rootfs.name}: {type(result.outcome).__name__}.",
            remedy="Try a command there: `unspill run -- sh`.",
        )
    said = result.stdout.kept().decode("utf-8", "replace")
    arch = os.uname().machine if rootfs.manifest is None else rootfs.manifest.key.arch
    return read_answer(said).replace(
        rootfs=rootfs.name,
        arch=arch,
        hosts=policy.network.hosts,
        tmp=policy.tmp,
        writable=policy.rootfs_writable,
        mounts=tuple(place.decode("utf-8", "backslashreplace") for place, _directory in policy.mounts),
    )


def script() -> str:
    """Return what is run inside: plain sh, and nothing but what a shell has itself."""
    cases = " ".join(f'{name}) set -- "$1" "$2" {asked} ;;' for name, asked in _ASKED.items())
    names = " ".join((*RUNTIMES, *INSTALLERS, *OTHERS))
    return _TOOLS_SCRIPT.format(
        path=":".join(PROGRAM_DIRECTORIES),
        tops=" ".join(PROGRAM_DIRECTORIES),
        names=names,
        unasked="|".join(_UNASKED),
        cases=cases,
    )


def read_answer(said: str) -> Tools:
    """Return what a run told, of which nothing is believed that is not on our own lists."""
    tools: dict[str, RootfsTool] = {}
    facts: dict[str, str] = {}
    known = frozenset((*RUNTIMES, *INSTALLERS, *OTHERS))
    for name, place, rest in _fields(said):
        if name in known and any(place == f"{directory}/{name}" for directory in PROGRAM_DIRECTORIES):
            tools.setdefault(name, RootfsTool(name=name, path=place, version=version_in(rest)))
        elif name == "@libc" and rest in _LIBCS:
            # Of both it is glibc: a Debian may have musl for compiling
            facts["libc"] = rest
        elif name == "@system" and rest.strip("\"'") in _SYSTEMS:
            facts["system"] = rest.strip("\"'")
        elif name == "@release":
            facts["release"] = version_in(rest, is_short=True)
    order = (*RUNTIMES, *INSTALLERS, *OTHERS)
    found = Tools(rootfs="", arch="", tools=tuple(tools[name] for name in order if name in tools))
    return found.replace(**facts)


def _fields(said: str) -> Iterator[tuple[str, str, str]]:
    for line in said.split("\n")[:_MOST_LINES]:
        name, _, rest = line[:_LONGEST_LINE].partition("\t")
        place, _, rest = rest.partition("\t")
        yield name, place, rest


def version_in(line: str, *, is_short: bool = False) -> str:
    """Return the version in what a program printed: numbers with dots, one letter after them at most.

    `is_short`: a number without a dot is one, too.
    """
    # busybox calls itself what it is not
    if "not GNU" in line:
        return ""
    numbers = r"[0-9]{1,8}(?:\.[0-9]{1,8}){0,4}" if is_short else r"[0-9]{1,8}(?:\.[0-9]{1,8}){1,4}"
    found = re.search(rf"(?<![0-9.]){numbers}(?:[a-z][0-9]{{0,3}})?", line)
    return found[0] if found and len(found[0]) <= _LONGEST_VERSION else ""


def _forget_playground(data: bytes, project: bytes) -> None:
    """Remove what the rootfs wrote beside the project: nobody wants it, and it could be large."""
    remove_tree(playground_dir(data, os.path.realpath(project)))


def _forget_rows(state: bytes, project: bytes) -> None:
    """Forget the sandbox and its one run: no other will ever have this project."""
    with Store.open(state) as store:
        row = store.sandboxes.find(os.path.realpath(project), _TOOLS_SANDBOX)
        if row is None:
            return
        runs = [run.id for run in store.runs.latest(row.id, 1)]
        with store.transaction:
            store.runs.remove_all(runs)
            store.sandboxes.remove(row.id)
    for run in runs:
        remove_tree(spill_dir(state, run))
    for ending in (b"", b".use"):
        remove_tree(lock_file(state, row.id) + ending)


def _empty_project(home: bytes) -> bytes:
    """Return a new empty directory that a sandbox may have as its project, of which nobody else knows."""
    above = os.path.join(home, b".cache", b"unspill")
    try:
        os.makedirs(above, 0o700, exist_ok=True)
        return mkdtemp(prefix=b"tools-", dir=above)
    except OSError:
        return mkdtemp(prefix=b"unspill-tools-")


def tools_text(tools: Tools) -> str:
    """Return the words."""
    named = {tool.name: tool for tool in tools.tools}
    lines = [f"System: {_system(tools)}. Nothing of the machine around it is visible."]
    for title, names in (("Runtimes", RUNTIMES), ("Package managers", INSTALLERS), ("Tools", OTHERS)):
        found = [named[name] for name in names if name in named]
        if found:
            lines.append(f"{title}: {_listed(found)}.")
    return "\n".join([*lines, *_surroundings(tools, has_pip="pip" in named)])


def _system(tools: Tools) -> str:
    name = " ".join(filter(None, (tools.system.capitalize() or "Linux", tools.release)))
    return ", ".join(filter(None, (name, tools.libc, tools.arch)))


def _listed(found: Iterable[RootfsTool]) -> str:
    return ", ".join(f"{tool.name} {tool.version}".rstrip() for tool in found)


def _surroundings(tools: Tools, *, has_pip: bool) -> Iterator[str]:
    if tools.hosts:
        yield f"Network: only {', '.join(tools.hosts)}, by the proxy that the variables name."
    else:
        yield "Network: none."
    yield "Files: the project is at /workspace, which is also HOME and where commands start; it can be written."
    gone = ["/tmp", "/var/tmp", "/run", "/dev/shm"]
    if tools.tmp == "persistent":
        gone.remove("/tmp")
        yield "/tmp can be written and is kept from command to command."
    yield "/playground can be written and is kept, but is no part of the project."
    if tools.writable:
        gone.remove("/var/tmp")
        yield "The directories of the system can be written too, as root; what is changed there stays in this sandbox."
    places = f"{', '.join(gone[:-1])} and {gone[-1]}"
    yield f"{places} can be written, but what is written there is gone when the command has ended."
    yield "The rest is read-only." if tools.writable else "The rest is read-only: nothing can be installed there."
    if tools.mounts:
        yield f"Read-only besides: {', '.join(tools.mounts)}."
    if has_pip:
        yield f"pip installs into {_PACKAGES}, where Python finds it."
