# SPDX-License-Identifier: Apache-2.0
"""A root file system of a few programs and the libraries that they need, made by hand as a person would."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

USUAL: Final = ("bash", "cat", "env", "id", "ln", "ls", "mkdir", "rm", "timeout", "touch", "whoami")
PASSWD: Final = "root:x:0:0:root:/root:/bin/sh\n"


def make_tree(tree: Path, programs: tuple[str, ...] = USUAL) -> Path:
    """Make a tree with programs of this machine; /bin and /lib are links, as in most distributions."""
    for name in ("usr/bin", "usr/lib", "etc", "home", "opt", "root", "var/tmp"):
        (tree / name).mkdir(parents=True)
    for program in programs:
        _copy(tree, Path("/usr/bin", program))
    (tree / "usr/bin/sh").symlink_to("bash")
    for name in ("bin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(exist_ok=True)
        (tree / name).symlink_to(f"usr/{name}")
    (tree / "etc/passwd").write_text(PASSWD)
    (tree / "etc/resolv.conf").touch()
    return tree


def _copy(tree: Path, program: Path) -> None:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    for path in (program, *map(Path, libraries)):
        # Where the directory really is: /lib is a link on this machine too
        place = tree / Path(os.path.realpath(path.parent)).relative_to("/") / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy(path, place)
