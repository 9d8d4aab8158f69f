# SPDX-License-Identifier: Apache-2.0
"""A process in its own user and mount namespace that works in plain directories and in overlays.

Started as `unshare --user --map-root-user --mount python flatten_inside.py`; one JSON request per line. It sees
what is closed to the user, as far as it is the user's.
"""

import ctypes
import json
import os
import sys
from typing import Any

# Started by its path, so that only its own directory would be searched.
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))

from tests.kernel import exactness_inside

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(at: str, lowers: list[str], upper: str | None) -> None:
    """Mount an overlay, the topmost lower first; read-only without an upper. Paths must be plain."""
    options = f"lowerdir={':'.join(lowers)},userxattr,index=off,metacopy=off"
    if upper is not None:
        options += f",upperdir={upper},workdir={upper}.work,volatile"
    check(libc.mount(b"overlay", at.encode(), b"overlay", 0, options.encode()))


def serve(request: dict[str, Any]) -> dict[str, Any]:
    at, lowers = request["at"], request["lowers"]
    if lowers:
        mount(at, lowers, request["upper"])
    try:
        os.chdir(at)
        return exactness_inside.serve_once(request)
    finally:
        os.chdir("/")
        if lowers:
            check(libc.umount2(at.encode(), 0))


if __name__ == "__main__":
    os.umask(0o022)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
