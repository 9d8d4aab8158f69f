# SPDX-License-Identifier: Apache-2.0
"""A process in its own user and mount namespace that mounts one overlay per request and works in it.

Started as `unshare --user --map-root-user --mount python exactness_mounts.py`; one JSON request per line.
"""

import ctypes
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from tests.kernel import exactness_inside

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(base: str, layers: list[str], new: str) -> None:
    """Mount the layers, the topmost first, and the live tree under a new layer, all named relative to `base`."""
    os.chdir(base)
    beneath = [*layers, "live"]
    for name in (new, f"{new}.work", "merged"):
        os.makedirs(name, exist_ok=True)
    os.chmod(new, stat.S_IMODE(os.stat(beneath[0]).st_mode))
    for name in os.listxattr(beneath[0]):
        if name.startswith("user.") and not name.startswith("user.overlay."):
            os.setxattr(new, name, os.getxattr(beneath[0], name))
    options = f"lowerdir={':'.join(beneath)},upperdir={new},workdir={new}.work"
    options += ",userxattr,index=off,metacopy=off,volatile"
    check(libc.mount(b"overlay", b"merged", b"overlay", 0, options.encode()))


def serve(request: dict[str, Any]) -> dict[str, Any]:
    base = request["base"]
    if request["layers"] is None:
        os.makedirs(os.path.join(base, "live"))
        os.chdir(os.path.join(base, "live"))
        return exactness_inside.serve_once(request)
    mount(base, request["layers"], request["new"])
    try:
        os.chdir("merged")
        return exactness_inside.serve_once(request)
    finally:
        os.chdir("/")
        check(libc.umount2(os.path.join(base, "merged").encode(), 0))


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
