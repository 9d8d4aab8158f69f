# SPDX-License-Identifier: Apache-2.0
"""A rootfs as a JSON value."""

from __future__ import annotations

from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.rootfs import Rootfs
    from unspill.sandbox.tools import Tools


def rootfs_form(rootfs: Rootfs, *, is_current: bool) -> dict[str, Any]:
    """Return a rootfs with all that its manifest says."""
    form: dict[str, Any] = {"rootfs": rootfs.name, "current": is_current, "tree": show(rootfs.tree)}
    manifest = rootfs.manifest
    if manifest is None:
        return form
    return form | {
        "source": manifest.wish.source,
        "version": manifest.key.version,
        "arch": manifest.key.arch,
        "tier": manifest.key.tier,
        "proof": manifest.proof,
        "packages": [{"name": name, "version": version} for name, version in manifest.packages],
        "fetched": [{"name": name, "sha256": digest} for name, digest in manifest.fetched],
        "left_out": dict(manifest.left_out),
        "tree_sha256": manifest.tree,
        "entries": manifest.entries,
        "bytes": manifest.size_bytes,
        "created_ns": manifest.created_ns,
    }


def tools_form(tools: Tools) -> dict[str, Any]:
    """Return what is inside a rootfs, and the words for a prompt."""
    return {
        "rootfs": tools.rootfs,
        "system": tools.system,
        "release": tools.release,
        "libc": tools.libc,
        "arch": tools.arch,
        "tools": [tool.as_dict() for tool in tools.tools],
        "hosts": list(tools.hosts),
        "tmp": tools.tmp,
        "writable": tools.writable,
        "mounts": list(tools.mounts),
        "text": tools.text(),
    }
