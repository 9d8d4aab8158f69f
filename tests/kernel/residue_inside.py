# SPDX-License-Identifier: Apache-2.0
"""A process in its own user and mount namespace: overlay mounts as in the exactness suite, and a plain apply.

Started as `unshare --user --map-root-user --mount python residue_inside.py`; one JSON request per line. Here every
directory of the caller can be read, so a copy into the live tree and a scan of it meet no closed doors.
"""

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from tests.kernel import exactness_mounts
from unspill.changes.scan import scan


def apply(live: bytes, changes: list[dict[str, Any]]) -> None:
    """Copy the entries of changes into a live tree, by names and without any care."""
    directories: list[tuple[bytes, bytes]] = []
    for change in changes:
        path = change["path"].encode("latin-1")
        target, source = os.path.join(live, path), os.path.join(os.fsencode(change["layer"]), path)
        if change["entry"] == "dir":
            if not os.path.isdir(target) or os.path.islink(target):
                remove(target)
                os.mkdir(target)
            directories.append((source, target))
            continue
        remove(target)
        if change["entry"] is not None:
            copy(source, target)
    for source, target in reversed(directories):
        dress(source, target)


def remove(target: bytes) -> None:
    if os.path.isdir(target) and not os.path.islink(target):
        shutil.rmtree(target)
    elif os.path.lexists(target):
        os.unlink(target)


def copy(source: bytes, target: bytes) -> None:
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
        return
    if stat.S_ISREG(status.st_mode):
        shutil.copyfile(source, target)
    else:
        os.mknod(target, status.st_mode, status.st_rdev)
    dress(source, target)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def dress(source: bytes, target: bytes) -> None:
    """Make attributes and mode the same. Names stay as stored: beneath an overlay they are read like that too."""
    for name in filter(is_own, os.listxattr(target)):
        os.removexattr(target, name)
    for name in filter(is_own, os.listxattr(source)):
        os.setxattr(target, name, os.getxattr(source, name))
    os.chmod(target, stat.S_IMODE(os.lstat(source).st_mode))


def is_own(name: str) -> bool:
    return name.startswith("user.overlay.overlay.") or (name.startswith("user.") and name[5:13] != "overlay.")


def told(layer: str, live: str) -> list[list[Any]]:
    changes = scan([os.fsencode(layer)], [], os.fsencode(live))
    assert not changes.findings, changes.findings
    return [[change.path.decode("latin-1"), change.kind, list(change.aspects)] for change in changes]


def serve(request: dict[str, Any]) -> Any:
    if "changes" in request:
        apply(os.fsencode(request["live"]), request["changes"])
        return None
    if "scan" in request:
        return told(request["scan"], request["live"])
    return exactness_mounts.serve(request)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
