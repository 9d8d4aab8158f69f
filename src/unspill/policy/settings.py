# SPDX-License-Identifier: Apache-2.0
"""What one configuration file says, None where it says nothing; and who may say what.

    key                       your own file      a project's .unspill.toml
    view                      any                one that shows no more than yours
    rootfs, rootfs_dir        any                -
    rootfs_writable           any                only false
    tmp                       any                only "fresh"
    [mounts], [provision]     any                -
    container                 any                -
    roots, readable           any                -
    hidden                    replaces           adds
    toolchains, caches        any                only false
    environment               any                a part of your own list
    after, after_timeout, after_cancel  any      "apply" only where it is yours
    [limits], shown_*         any                only lower
    [network] hosts           any                a part of your own list
    [network] *_bytes         any                only lower
    [network] ask             any                only false
    [network] mode            any                -
    [permissions]             any                "ask" only where it is yours; shorter
    [secrets] names, directories  any            adds
    [secrets] mask, reveal    any                only `mask = true`
    profile                   any                only "strict"
    engine, bwrap, allow_root any                -
    keep_days, keep_bytes     any                -

Anything else is an error, never ignored in silence. What the library's caller passes to one run is the person's own.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.policy import After, EngineName, Profile, Tmp, View
    from unspill.model.rootfs import RootfsSpec

    Bound = int | float | None

VIEWS = ("sealed", "host", "rootfs")
# Each shows less of the host than the one before it
EVER_LESS = ("host", "sealed", "rootfs")
TMP = ("fresh", "persistent")
AFTER = ("apply", "hold", "discard")
ENGINES = ("mount", "native")
PROFILES = ("default", "strict")
MODES = ("proxy", "host")
STANCES = ("ask", "deny")
APPROVERS = ("terminal", "queue", "deny")
# Values that earlier versions knew, each with what to write instead
DROPPED = {
    ("engine", "copy"): (
        "Remove the setting `engine`: unspill then uses `mount` or `native`, whichever works. `unspill doctor` says "
        "which, and what to do where neither does."
    ),
    ("network.mode", "pasta"): (
        'Write `mode = "proxy"`: commands reach any public host by HTTP, HTTPS or SOCKS. For other protocols write '
        '`mode = "host"`: commands get the network of this machine, and nothing that listens on it is protected.'
    ),
}

# What a project's file may set at all; `merge` decides whether the value is tighter.
PROJECT_KEYS = (
    "view",
    "rootfs_writable",
    "tmp",
    "hidden",
    "toolchains",
    "caches",
    "environment",
    "after",
    "after_timeout",
    "after_cancel",
    "limits",
    "network",
    "permissions",
    "profile",
    "secrets",
    "shown_lines",
    "shown_bytes",
)


class Settings(Record):
    """The content of one file. `where` names it in messages; of a table there is only what it sets."""

    where: str
    view: View | None = None
    rootfs: str | None = None
    rootfs_writable: bool | None = None
    rootfs_dir: bytes | None = None
    provision: RootfsSpec | None = None
    mounts: tuple[tuple[bytes, bytes], ...] | None = None
    tmp: Tmp | None = None
    container: bool | None = None
    roots: tuple[bytes, ...] | None = None
    readable: tuple[bytes, ...] | None = None
    hidden: tuple[bytes, ...] | None = None
    toolchains: bool | None = None
    caches: bool | None = None
    environment: tuple[str, ...] | None = None
    limits: tuple[tuple[str, Bound], ...] = ()
    network: tuple[tuple[str, Any], ...] = ()
    permissions: tuple[tuple[str, Any], ...] = ()
    secrets: tuple[tuple[str, Any], ...] = ()
    profile: Profile | None = None
    after: After | None = None
    after_timeout: After | None = None
    after_cancel: After | None = None
    engine: EngineName | None = None
    bwrap: bytes | None = None
    allow_root: bool | None = None
    shown_lines: int | None = None
    shown_bytes: int | None = None
    keep_days: int | None = None
    keep_bytes: int | None = None
