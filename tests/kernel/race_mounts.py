# SPDX-License-Identifier: Apache-2.0
"""Applies what a sandbox holds where something is mounted inside its project, in namespaces of its own.

Run as a program: project, directory to mount on, what to mount (a directory, or nothing for an empty filesystem), and
whether to go without openat2. Prints what was left and why, and what is seen below the mount point afterwards.
"""

import errno
import json
import os
import sys

from unspill import Policy, Sandbox
from unspill.host import dirfd
from unspill.host.libc import CLONE_NEWNS, CLONE_NEWUSER, MS_PRIVATE, MS_REC, mount, unshare

MS_BIND = 0x1000


def missing(*_arguments: object) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def main(project: str, point: str, source: str, way: str, bwrap: str) -> None:
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
    if source:
        mount(os.fsencode(source), os.fsencode(point), None, MS_BIND, None)
    else:
        mount(b"none", os.fsencode(point), b"tmpfs", 0, None)
        with open(f"{point}/f", "w") as file:
            file.write("mounted\n")
    if way == "stepwise":
        vars(dirfd)["openat2"] = missing
    with Sandbox(project, policy=Policy(bwrap=os.fsencode(bwrap))) as sandbox:
        done = sandbox.apply()
    left = {os.fsdecode(one.path): [one.why, one.reason] for one in done.left}
    seen = {name: open(f"{point}/{name}").read() for name in sorted(os.listdir(point))}  # noqa: SIM115
    print(json.dumps({"left": left, "seen": seen, "changed": done.changed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
