# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a file of a sandbox: a project that has it all, and the kind that each case is told as."""

import os
from collections.abc import Callable

from tests.support import Ground
from unspill import SandboxFiles
from unspill.model.policy import MIB

SECRET = "SECRET-of-the-person\n"


def lay_out(ground: Ground) -> None:
    """Make what the table of errors is about."""
    ground.write("file", "one two two\n")
    ground.write("dir/inner", "x")
    ground.write("locked", "x").chmod(0)
    (ground.project / "loop").symlink_to("loop")
    (ground.project / "dangling").symlink_to("none/at/all")
    (ground.project / "shadow").symlink_to("/etc/shadow")
    (ground.project / "home").symlink_to(ground.home / "private")
    (ground.project / "locked-dir").mkdir(mode=0)
    os.mkfifo(ground.project / "pipe")
    (ground.home / "private").mkdir()
    (ground.home / "private/key").write_text(SECRET)


ERRORS: dict[str, tuple[str, Callable[[SandboxFiles], object]]] = {
    "read nothing": ("not_found", lambda files: files.read("none")),
    "read below nothing": ("not_found", lambda files: files.read("none/none")),
    "read a directory": ("is_directory", lambda files: files.read("dir")),
    "read lines of a directory": ("is_directory", lambda files: files.read_lines("dir")),
    "read below a file": ("not_a_directory", lambda files: files.read("file/x")),
    "read a file as a directory": ("not_a_directory", lambda files: files.read("file/")),
    "read what is locked": ("permission_denied", lambda files: files.read("locked")),
    "read below what is locked": ("permission_denied", lambda files: files.read("locked-dir/x")),
    "read a pipe": ("not_a_file", lambda files: files.read("pipe")),
    "read a device": ("not_a_file", lambda files: files.read("/dev/zero")),
    "read a loop": ("failed", lambda files: files.read("loop")),
    "read a link to nothing": ("not_found", lambda files: files.read("dangling")),
    "read a link to a file of root": ("permission_denied", lambda files: files.read("shadow")),
    "read through a link to the home": ("not_found", lambda files: files.read("home/key")),
    "read too long a name": ("failed", lambda files: files.read("x" * 256)),
    "list nothing": ("not_found", lambda files: files.list("none")),
    "list a file": ("not_a_directory", lambda files: files.list("file")),
    "list what is locked": ("permission_denied", lambda files: files.list("locked-dir")),
    "write a directory": ("is_directory", lambda files: files.write("dir", "x")),
    "write a new name as a directory": ("is_directory", lambda files: files.write("made/", "x")),
    "write below a file": ("not_a_directory", lambda files: files.write("file/x", "x")),
    "write far below a file": ("not_a_directory", lambda files: files.write("file/x/y/z", "x")),
    "write what is locked": ("permission_denied", lambda files: files.write("locked", "x")),
    "write below what is locked": ("permission_denied", lambda files: files.write("locked-dir/x", "x")),
    "write what is read-only": ("permission_denied", lambda files: files.write("/usr/made", "x")),
    "write far below what is read-only": ("permission_denied", lambda files: files.write("/usr/made/x/y", "x")),
    "write a pipe": ("not_a_file", lambda files: files.write("pipe", "x")),
    "write a link to nothing": ("not_found", lambda files: files.write("dangling", "x")),
    "write a link to a file of root": ("permission_denied", lambda files: files.write("shadow", "x")),
    "write what exists": ("exists", lambda files: files.write("file", "x", replace=False)),
    "write a link as what does not exist": ("exists", lambda files: files.write("dangling", "x", replace=False)),
    "write too much": ("too_large", lambda files: files.write("made", bytes(100 * MIB + 1))),
    "edit nothing": ("not_found", lambda files: files.edit("none", "a", "b")),
    "edit a directory": ("is_directory", lambda files: files.edit("dir", "a", "b")),
    "edit what is not there": ("not_found_in_file", lambda files: files.edit("file", "three", "b")),
    "edit what is there twice": ("ambiguous", lambda files: files.edit("file", "two", "b")),
}
