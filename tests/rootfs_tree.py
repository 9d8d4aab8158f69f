# SPDX-License-Identifier: Apache-2.0
"""A small root file system for tests: Debian's static busybox under the names of its applets."""

import os
import shutil
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
APPLETS = (
    "sh ls cat id touch mkdir rm chown chmod tar cp mv ln whoami env mount echo sleep head tail wc sort grep sed true "
    "false readlink stat find du date printf test mkfifo nc wget ps kill dd"
).split()
DIRECTORIES = "bin sbin usr/bin usr/lib etc var/tmp root home opt srv mnt lib tmp proc dev run workspace".split()


def make_small_tree(tree: Path) -> Path:
    """Make it, with links as Alpine has them: absolute ones."""
    for name in DIRECTORIES:
        (tree / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, tree / "bin/busybox")
    for applet in APPLETS:
        os.symlink("/bin/busybox", tree / "bin" / applet)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\n")
    (tree / "etc/resolv.conf").touch()
    return tree
