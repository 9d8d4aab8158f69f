# SPDX-License-Identifier: Apache-2.0
"""Small trees for tests of the copy engine, and what lies in a layer in words."""

import os
import stat
from pathlib import Path
from typing import Final

# Where each filesystem of the tests is; None stands for pytest's temporary directory.
FILESYSTEMS: Final = {
    "ext4": None,
    "xfs": Path("/opt/unspill-ci/fs/xfs/work"),
    "btrfs": Path("/opt/unspill-ci/fs/btrfs/work"),
}
HOSTILE: Final = [b"line\nbreak", b"\xff\xfe", b"-rf", b" spaces ", b"a:b,c\\d", b"x" * 255, b"\x1b[2J", b"..."]

WHITEOUT: Final = "whiteout"


def build(root: Path, entries: dict[str, str | None]) -> None:
    """Make files with a text, and directories, which have None or end with a slash. Parents come by themselves."""
    for path, text in entries.items():
        at = root / path
        if text is None:
            at.mkdir(parents=True, exist_ok=True)
        elif text == WHITEOUT:
            at.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(at, stat.S_IFCHR, 0)
        else:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text)


def form(layer: Path) -> dict[str, str]:
    """Say what each entry of a layer is: a whiteout, an opaque or plain directory, a link, a file and its text."""
    found: dict[str, str] = {}
    for here, names, others in os.walk(layer):
        for name in (*names, *others):
            path = Path(here, name)
            found[str(path.relative_to(layer))] = _word(path)
    return found


def _word(path: Path) -> str:
    status = path.lstat()
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFCHR:
            return WHITEOUT if status.st_rdev == 0 and stat.S_IMODE(status.st_mode) == 0 else "device"
        case stat.S_IFDIR:
            is_opaque = "user.overlay.opaque" in os.listxattr(path)
            return "opaque" if is_opaque else "dir"
        case stat.S_IFLNK:
            return f"-> {os.readlink(path)}"
        case stat.S_IFREG:
            return path.read_text()
        case _:
            return "special"


def traces(root: Path) -> dict[bytes, tuple[int, ...]]:
    """Return all about a tree that any write, even one that changes nothing, would leave a trace in."""
    found: dict[bytes, tuple[int, ...]] = {}
    for here, names, others in os.walk(bytes(root)):
        for name in (b".", *names, *others):
            status = os.lstat(os.path.join(here, name))
            found[os.path.join(here, name)] = (
                status.st_ino, status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
            )  # fmt: skip
    return found
