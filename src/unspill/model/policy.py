# SPDX-License-Identifier: Apache-2.0
"""What a sandbox may see, write and use: the person's decisions as one frozen value.

Paths are bytes, absolute and normalised. Reading files and merging them belong to `policy`. What a sandbox can ask a
person for is in `model.permission`, which a run that asks for nothing never loads.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.model.rootfs import RootfsSpec

    View = Literal["sealed", "host", "rootfs"]
    Tmp = Literal["fresh", "persistent"]
    After = Literal["apply", "hold", "discard"]
    EngineName = Literal["mount", "native"]
    Profile = Literal["default", "strict"]
    NetworkMode = Literal["proxy", "host"]
    Registry = Literal["pip", "npm", "cargo", "go", "apt"]
    Scope = Literal["once", "run", "sandbox", "project", "always"]
    Stance = Literal["ask", "deny"]
    ApproverName = Literal["terminal", "queue", "deny"]


KIB = 1024
DAY_NS = 24 * 3600 * 1_000_000_000
MIB = 1024 * KIB
GIB = 1024 * MIB
# From the shortest to the longest. `project` lasts as long as `always`, and is for hosts, whatever the command.
SCOPES: tuple[Scope, ...] = ("once", "run", "sandbox", "project", "always")
LENGTHS: tuple[Scope, ...] = ("once", "run", "sandbox", "always")
# Package managers that are asked which hosts they are configured for.
REGISTRIES: tuple[Registry, ...] = ("pip", "npm", "cargo", "go", "apt")


class Limits(Record):
    """Bounds of one run; a bound that is hit is named in the result. None means unlimited."""

    wall_s: float | None = 600.0
    output_bytes: int | None = 256 * MIB
    kept_bytes: int = 1 * MIB
    layer_bytes: int | None = 4 * GIB
    layer_entries: int | None = 500_000
    file_bytes: int | None = 4 * GIB
    processes: int | None = 512
    memory_bytes: int | None = 4 * GIB
    open_files: int | None = 4096
    tmp_bytes: int = 1 * GIB

    def of_sandbox(self) -> Limits:
        """Return them without those that only the caller watches, and that no sandbox is built with."""
        return self.replace(wall_s=None, output_bytes=None, kept_bytes=0)


class Network(Record):
    """What every run of a sandbox may reach, and what a network is that was granted to one command.

    `hosts` are reached by every run, by way of the sandbox's own proxy; with `ask` others are asked for while the
    command waits. `mode` is for a granted network: `proxy` (any public host, by the same proxy) or `host` (the host's
    own namespace: weaker, and said so at each run). The bytes bound one run. `private_hosts` are like `hosts`, and may
    have private addresses. `registries` are package managers: every run reaches the hosts that they are configured for.
    """

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    registries: tuple[Registry, ...] = ()
    ask: bool = False
    mode: NetworkMode = "proxy"
    up_bytes: int | None = 1 * GIB
    down_bytes: int | None = 16 * GIB


class Rules(Record):
    """Which requests are put to a person at all, and for how long the answer may hold.

    A project's own file can only turn `ask` into `deny` and shorten. `approver` is whom the command line asks, `wait_s`
    how long a question waits for its answer. After `max_denials` of a project's questions, or `max_same_denials` of one
    and the same, within `denial_window_s` nobody is asked for a while.
    """

    network: Stance = "ask"
    egress: Stance = "ask"
    roots: Stance = "ask"
    readable: Stance = "ask"
    secrets: Stance = "ask"
    held: Stance = "ask"
    unsandboxed: Stance = "deny"
    as_root: Stance = "deny"
    longest: Scope = "always"
    grant_days: int = 30
    approver: ApproverName = "terminal"
    wait_s: float = 300.0
    max_denials: int = 10
    max_same_denials: int = 3
    denial_window_s: float = 600.0


class Secrets(Record):
    """Which secrets of a project a sandbox does not see. `names` are added to those of `policy.secrets`.

    `directories` are relative to each root; of the paths in `reveal` nothing is masked: relative to the project, or
    absolute.
    """

    mask: bool = True
    names: tuple[bytes, ...] = ()
    directories: tuple[bytes, ...] = ()
    reveal: tuple[bytes, ...] = ()


class Policy(Record):
    """Everything a person decided about a sandbox. The defaults are the product's.

    `rootfs` (of view `rootfs`) is a name, or the path of a directory; empty: the one in use. `provision` is how it is
    made where it is missing, `rootfs_dir` where those that are ready lie. `mounts` are (place inside, directory)
    pairs, shown read-only. `home` names a home directory that lasts, instead of an empty one for each run.
    `container`: without a sandbox of our own, in the container that unspill itself runs in.
    """

    view: View = "sealed"
    rootfs: str = ""
    rootfs_writable: bool = False
    rootfs_dir: bytes = b""
    provision: RootfsSpec | None = None
    mounts: tuple[tuple[bytes, bytes], ...] = ()
    tmp: Tmp = "fresh"
    home: str = ""
    container: bool = False
    roots: tuple[bytes, ...] = ()
    readable: tuple[bytes, ...] = ()
    hidden: tuple[bytes, ...] = ()
    toolchains: bool = True
    caches: bool = True
    environment: tuple[str, ...] = ()
    limits: Limits = Limits()
    network: Network = Network()
    permissions: Rules = Rules()
    secrets: Secrets = Secrets()
    profile: Profile = "default"
    after: After = "apply"
    after_timeout: After = "hold"
    after_cancel: After = "hold"
    engine: EngineName | None = None
    bwrap: bytes | None = None
    allow_root: bool = False
    shown_lines: int = 50
    shown_bytes: int = 32 * KIB
    keep_days: int = 7
    keep_bytes: int = 5 * GIB
