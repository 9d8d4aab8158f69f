# SPDX-License-Identifier: Apache-2.0
"""The sandbox as data: every mount in order, with its reason, and what is run in it.

Each operation is its own type; `plan.argv` turns them into bwrap options, `plan.explain` into text.
Paths are bytes.
"""

from __future__ import annotations

from unspill.model.policy import Limits
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.facts import Facts
    from unspill.model.layer import Stack
    from unspill.model.policy import EngineName, Policy


class Bind(Record):
    """A directory or file of the host, read-only unless `writable`."""

    source: bytes
    dest: bytes
    why: str
    writable: bool = False


class Overlay(Record):
    """Lower directories, the topmost first, under a private upper; read-only when `upper` is None.

    `dest` is always the path of the live lower directory (the last one), so what runs inside sees real paths.
    """

    lowers: tuple[bytes, ...]
    dest: bytes
    why: str
    upper: bytes | None = None
    work: bytes | None = None


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


if TYPE_CHECKING:
    MountOp = Bind | Overlay | Tmpfs | Proc | Dev | Symlink | File | ReadOnly


class Home(Record):
    """What lies in the person's home directory that a sandbox may need: found by `host`, chosen by `plan`.

    `toolchains` and `caches` exist and are directories; `identity` is the person's git name and harmless settings.
    """

    path: bytes
    user: str
    toolchains: tuple[bytes, ...] = ()
    caches: tuple[bytes, ...] = ()
    identity: tuple[tuple[str, str], ...] = ()


class Places(Record):
    """Directories of the host that a plan is laid over, all checked and resolved before.

    `system` are the top-level system directories that exist (b"/usr", b"/etc", b"/opt", b"/nix", b"/lib64", ...);
    `links` the top-level ones that are symlinks, with their targets (merged /usr). `top` (view "host" only) is
    every other top-level directory. `sockets` are paths of live Unix sockets (what a plan shows of them it masks).
    `mounted` are the mount points of the host: the kernel refuses an overlay over a directory that has one below.
    `secrets` and `secret_files` are the directories and files that exist of `policy.secrets.secret_paths`;
    `files` and `absent` say which of the policy's readable and hidden paths are no directories or do not exist.
    `own` are our configuration and data directories that exist. `has_playground`: `$HOME/playground` is a directory.
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
    has_playground: bool = False


class CacheLayer(Record):
    """A tool cache of the person under copy-on-write: `stack` has an upper of this run on top."""

    path: bytes
    stack: Stack


class PlanInput(Record):
    """All that `build_plan` looks at. `filter` is as a Plan has it."""

    policy: Policy
    facts: Facts
    places: Places
    engine: EngineName
    stacks: tuple[Stack, ...]
    caches: tuple[CacheLayer, ...] = ()
    argv: tuple[bytes, ...]
    cwd: bytes
    filter: bytes
    environ: tuple[tuple[bytes, bytes], ...] = ()
    extra_environ: tuple[tuple[bytes, bytes], ...] = ()
    command_file: bytes | None = None


class Plan(Record):
    """The whole sandbox of one run, ready to be printed or performed.

    `filter` is the program that judges each system call, in the kernel's own form; empty: none, as no run has it.
    """

    engine: EngineName
    bwrap: bytes
    mounts: tuple[MountOp, ...]
    environ: tuple[tuple[bytes, bytes], ...]
    cwd: bytes
    argv: tuple[bytes, ...]
    limits: Limits
    filter: bytes
    hostname: str = "unspill"
    warnings: tuple[str, ...] = ()
