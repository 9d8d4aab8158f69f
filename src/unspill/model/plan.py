# SPDX-License-Identifier: Apache-2.0
"""The sandbox of one run as data: every mount in order, with its reason; and all that it is planned from.

Each mount is its own type; `plan.argv` turns them into bwrap options, `plan.explain` into text. Paths are bytes.
"""

from __future__ import annotations

from unspill.model.policy import Limits
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.model.policy import EngineName, Policy, Profile
    from unspill.model.rootfs import RootfsBase
    from unspill.model.run import Stack

    Level = Literal["A", "B", "C", "D"]
    CgroupKind = Literal["v2", "v1", "none"]
    FenceAccess = Literal["list", "read", "device", "process", "write"]


class Bind(Record):
    """A directory or file of the host, read-only unless `writable`."""

    source: bytes
    dest: bytes
    why: str
    writable: bool = False


class Overlay(Record):
    """Lower directories, the topmost first, under a private upper; read-only when `upper` is None.

    Where a view shows real paths, `dest` is the path of the live lower directory, the last one; it is there that the
    engine `mount` mounts, before bwrap shows it at `dest`.
    `mask` is the lower one that hides secrets, where there is one. `written`: commands have written to a lower one.
    `points` are the empty directories in the topmost one, of a read-only overlay, for what is mounted on them.
    """

    lowers: tuple[bytes, ...]
    dest: bytes
    why: str
    upper: bytes | None = None
    work: bytes | None = None
    mask: bytes | None = None
    written: bool = False
    points: tuple[bytes, ...] = ()


class Tmpfs(Record):
    """An empty file system in memory."""

    dest: bytes
    size_bytes: int
    why: str
    mode: int = 0o755


class Proc(Record):
    """The processes of this sandbox only."""

    dest: bytes
    why: str


class Dev(Record):
    """The harmless devices."""

    dest: bytes
    why: str


class Directory(Record):
    """An empty directory that bwrap makes while the root is still private; a mount would cost more."""

    dest: bytes
    why: str


class Symlink(Record):
    """A symlink that bwrap makes while the root is still private."""

    target: bytes
    dest: bytes
    why: str


class File(Record):
    """A generated file, written into a tmpfs that this plan made, or mounted `over` a file of the host."""

    content: bytes
    dest: bytes
    why: str
    mode: int = 0o644
    over: bool = False


class ReadOnly(Record):
    """Remount what an earlier operation made, read-only, without its children."""

    dest: bytes
    why: str


class Point(Record):
    """An empty directory or file of ours that has to be there because something is mounted on it."""

    path: bytes
    is_file: bool = False


class NoNetwork(Record):
    """A network namespace of its own with nothing in it but loopback."""


class ProxyNetwork(Record):
    """The same, with a listener on loopback that leads to this sandbox's proxy.

    `hosts` are the rules it goes by, `private_hosts` those for a private network; `public` is any public host besides;
    others are asked for with `ask`, for `asking_s` of which the command's time stands still. `variables` lead package
    managers to the registries that are among the hosts; `problems` says which could not be found out.
    """

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    variables: tuple[tuple[bytes, bytes], ...] = ()
    problems: tuple[str, ...] = ()
    ask: bool = False
    asking_s: float = 0.0
    public: bool = False
    up_bytes: int | None = None
    down_bytes: int | None = None


class HostNetwork(Record):
    """The host's own namespace: everything that the person reaches, loopback and the local network too.

    `resolver_file` is where /etc/resolv.conf really is, empty if it is nowhere.
    """

    resolver_file: bytes = b""


# Above the ports that the kernel gives out by itself, and unlike those that servers are started on
PROXY_PORT = 62080


class Plan(Record):
    """The whole sandbox of one run, ready to be printed or performed.

    `filter` is the program that judges each system call, in the kernel's own form (empty: none, as no run has it);
    `profile` chose it.
    `uid` is who the command seems to be inside, None: the caller. `rootfs` is the tree that is shown in the place of
    the host's system directories, empty: none; `skeleton` is what has to be made for mount points.
    `staged`: not bwrap but a shell that it starts goes to `cwd` and becomes the command (`plan.view` says why).
    `measured` are directories of ours besides the layers that the bounds of a layer hold for.
    """

    engine: EngineName
    bwrap: bytes
    mounts: tuple[MountOp, ...]
    environ: tuple[tuple[bytes, bytes], ...]
    cwd: bytes
    argv: tuple[bytes, ...]
    limits: Limits
    filter: bytes
    profile: Profile = "default"
    uid: int | None = None
    rootfs: bytes = b""
    skeleton: tuple[Point, ...] = ()
    measured: tuple[bytes, ...] = ()
    staged: bool = False
    network: NetworkPlan = NoNetwork()
    hostname: str = "unspill"
    warnings: tuple[str, ...] = ()


class PlanInput(Record):
    """All that `build_plan` looks at. `filter` and `uid` are as a Plan has them; `gid` is the caller's.

    `rootfs_layers` are what this sandbox has written to the rootfs: one for each top-level directory of its tree.
    """

    policy: Policy
    facts: Facts
    places: Places
    engine: EngineName
    stacks: tuple[Stack, ...]
    caches: tuple[CacheLayer, ...] = ()
    rootfs_layers: tuple[CacheLayer, ...] = ()
    argv: tuple[bytes, ...]
    cwd: bytes
    filter: bytes
    environ: tuple[tuple[bytes, bytes], ...] = ()
    extra_environ: tuple[tuple[bytes, bytes], ...] = ()
    command_file: bytes | None = None
    network: NetworkPlan = NoNetwork()
    uid: int | None = None
    gid: int = 0


class Places(Record):
    """Directories of the host that a plan is laid over, all checked and resolved before.

    `system` are the top-level system directories that exist (b"/usr", b"/etc", b"/opt", b"/nix", b"/lib64", ...);
    `links` the top-level ones that are symlinks, with their targets (merged /usr). `top` (view "host" only) is
    every other top-level directory. `sockets` are paths of live Unix sockets (what a plan shows of them it masks).
    `mounted` are the mount points of the host: the kernel refuses an overlay over a directory that has one below.
    `secrets` and `secret_files` are the directories and files that exist of `policy.secrets.secret_paths`;
    `files` and `absent` say which of the policy's readable and hidden paths are no directories or do not exist.
    `own` are our configuration and data directories that exist. `no_playground`: what
    is at `$HOME/playground` is no directory.
    `aliases` are the places inside of what the policy names by a link, and where that leads.
    `rootfs` is what view "rootfs" shows instead of the system directories; `tmp` and `lasting_home` outlive a run where
    the policy says so. `files_of_others` are the files of /proc that name what other users have, as far as this kernel
    has them.
    """

    project: bytes
    state: bytes
    playground: bytes
    home: Home
    system: tuple[bytes, ...]
    links: tuple[tuple[bytes, bytes], ...] = ()
    top: tuple[bytes, ...] = ()
    sockets: tuple[bytes, ...] = ()
    mounted: tuple[bytes, ...] = ()
    secrets: tuple[bytes, ...] = ()
    secret_files: tuple[bytes, ...] = ()
    files: tuple[bytes, ...] = ()
    absent: tuple[bytes, ...] = ()
    own: tuple[bytes, ...] = ()
    no_playground: bool = False
    aliases: tuple[tuple[bytes, bytes], ...] = ()
    rootfs: RootfsBase | None = None
    tmp: bytes = b""
    lasting_home: bytes = b""
    files_of_others: tuple[bytes, ...] = ()


class Home(Record):
    """What lies in the person's home directory that a sandbox may need: found by `host`, chosen by `plan`.

    `toolchains` and `caches` exist and are directories; `identity` is the person's git name and harmless settings.
    """

    path: bytes
    user: str
    toolchains: tuple[bytes, ...] = ()
    caches: tuple[bytes, ...] = ()
    identity: tuple[tuple[str, str], ...] = ()


class CacheLayer(Record):
    """A tool cache of the person under copy-on-write: `stack` has an upper of this run on top."""

    path: bytes
    stack: Stack


# Of a probe that says nothing: that is no fact of the host
NO_ANSWER = "no answer in"


class Facts(Record):
    """What this kernel, this bwrap and this caller can do, found out by `host.probe`, which runs it.

    `problems` holds the reason for each thing that does not work.
    """

    uid: int
    gid: int
    kernel: str
    boot_id: str
    bwrap: Bwrap | None
    namespaces: bool
    disable_userns: bool
    proc_mount: bool
    own_namespace: bool
    engines: tuple[EngineName, ...]
    lowerdir_plus: bool
    seccomp: bool
    landlock_abi: int
    openat2: bool
    cgroup: CgroupKind
    flatpak: bool
    container: str
    state_filesystem: str = ""
    problems: tuple[tuple[str, str], ...] = ()

    def can_seal(self) -> bool:
        """Tell whether bwrap can make a sandbox here, with whichever engine."""
        return self.namespaces and self.disable_userns and self.proc_mount and self.seccomp


class Bwrap(Record):
    """One bubblewrap binary. `symlink_flaw`: it follows symlinks at set-up (CVE-2026-87766)."""

    path: bytes
    version: str
    device: int
    inode: int
    has_overlay: bool
    symlink_flaw: bool


class Fence(Record):
    """What Landlock lets a process do, independent of every mount: nothing but its rules.

    `ports` are where TCP connections may lead; None: TCP is not fenced.
    """

    abi: int
    rules: tuple[FenceRule, ...]
    ports: tuple[int, ...] | None = ()


class FenceRule(Record):
    """What is allowed at a path and below: `list` names, `read` (and run), use a `device`, ask a `process`, `write`."""

    path: bytes
    access: FenceAccess


if TYPE_CHECKING:
    MountOp = Bind | Overlay | Tmpfs | Proc | Dev | Directory | Symlink | File | ReadOnly
    NetworkPlan = NoNetwork | ProxyNetwork | HostNetwork
