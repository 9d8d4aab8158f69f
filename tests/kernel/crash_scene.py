# SPDX-License-Identifier: Apache-2.0
"""A project and a sandbox that holds changes of every kind over it, made once by real runs and put back at will.

Among them are commits in two repositories: in one of them nobody else moved, in the other the person committed too.

All but the directories' own inodes is made anew each time, so the layers' time marks are set anew as well: between
what was there before the runs and what a person wrote since.
"""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.crash_copies import Image, capture, rebuild
from tests.support import Ground

EDITED = b"edited by a person"
# Texts of forty lines that the runs and the person change: the first run line 5, the second line 20, the person line 35
MERGED = ("merged", "merged_twice")
HELD = b".envrc"

# Where the person has moved a repository on since the runs: the commit is there before, on a branch of its own
MOVED = "lib/.git/refs/heads/main"
MOVED_TO = "lib/.git/refs/heads/person"
REPOSITORIES = (".", "lib")
_GIT = """
import subprocess
def git(where, *words):
    fixed = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "gc.auto=0")
    subprocess.run(["git", *fixed, "-C", where, *words], check=True)
def change(where, content):
    with open(where + "/tracked", "w") as file:
        file.write(content)
    git(where, "add", "tracked")
"""

# What the live project has before the runs
BEFORE = (
    _GIT
    + """
import os
def write(path, content=None, mode=0o644):
    with open(path, "wb") as file:
        file.write(b"before " + os.fsencode(path) if content is None else content)
    os.chmod(path, mode)
for directory in ("src", "src/deep", "closed", "gone", "gone/inner", "gone/empty", "was_dir", "was_dir/inner", "dress",
                  "dress_closed", "closed_gone", "opened"):
    os.mkdir(directory)
for number in range(8):
    write(f"src/modified{number}")
    write(f"src/deleted{number}")
for path in ("edited", "was_file", "was_file_too", "becomes_link", "to_chmod", "to_touch", "to_attribute",
             "gone/one", "gone/inner/two", "was_dir/one", "was_dir/inner/two", "closed/file", "closed/other",
             "closed_gone/file", "dress/file", "opened/file", "becomes_empty", "twin", "executable"):
    write(path)
for path in ("merged", "merged_twice"):
    write(path, b"".join(b"%d %s\\n" % (number, os.fsencode(path)) for number in range(1, 41)))
write("empty", b"")
write("secret", mode=0o000)
write("secret_gone", mode=0o000)
write("large", os.urandom(70000))
write("line\\nbreak")
write(b"not \\xff\\xfe text")
write(b"gone/\\xff", b"lost?")
os.link("twin", "src/twin")
os.symlink("src/modified0", "link")
os.symlink("nowhere", "gone/link")
os.symlink("was_dir", "link_to_dir")
os.setxattr("to_attribute", "user.colour", b"red")
os.setxattr("dress", "user.colour", b"red")
os.chmod("closed", 0o555)
os.chmod("closed_gone", 0o555)
os.chmod("opened", 0o555)
os.setxattr("dress_closed", "user.colour", b"red")
os.chmod("dress_closed", 0o555)
os.mkdir("lib")
for where in (".", "lib"):
    git(where, "init", "-q", "--template=", "-b", "main")
    change(where, "first")
    git(where, "commit", "-qm", "first")
change(".", "second")
git(".", "commit", "-qm", "second")
git(".", "branch", "old")
git(".", "pack-refs", "--all")
git("lib", "checkout", "-q", "-b", "person")
change("lib", "of the person")
git("lib", "commit", "-qm", "of the person")
git("lib", "checkout", "-q", "main")
for path in [os.path.join(here, name) for here, _, names in os.walk(".") for name in names]:
    os.utime(path, ns=(10**18, 10**18 + len(path)), follow_symlinks=False)
"""
)

# The runs, one layer each: between them changes of all kinds
RUNS = (
    _GIT
    + """
import os, shutil
def write(path, content=b"first run", mode=0o644):
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
for number in range(8):
    write(f"src/modified{number}", b"modified %d" % number)
    os.unlink(f"src/deleted{number}")
shutil.rmtree("gone")
shutil.rmtree("was_dir"); write("was_dir", b"a file now")
os.unlink("was_file"); os.mkdir("was_file"); write("was_file/inner")
os.unlink("was_file_too"); os.symlink("src", "was_file_too")
os.unlink("becomes_link"); os.symlink("edited", "becomes_link")
os.chmod("to_chmod", 0o600)
os.utime("to_touch", ns=(1, 5 * 10**17))
os.setxattr("to_attribute", "user.colour", b"blue"); os.setxattr("to_attribute", "user.size", b"1")
os.setxattr("dress", "user.colour", b"blue"); os.chmod("dress", 0o750)
os.chmod("closed", 0o755); write("closed/file"); os.unlink("closed/other"); write("closed/new")
os.chmod("closed", 0o555)
os.chmod("closed_gone", 0o755); shutil.rmtree("closed_gone")
os.chmod("dress_closed", 0o755); os.setxattr("dress_closed", "user.colour", b"blue"); os.chmod("dress_closed", 0o555)
os.chmod("opened", 0o755); write("opened/file")
write("becomes_empty", b"")
write("empty", b"not empty any more")
write("twin", b"only this name")
write("edited", b"edited by the run")
for path in ("merged", "merged_twice"):
    text = open(path, "rb").read()
    write(path, text.replace(b"\\n5 ", b"\\nthe first run: 5 "))
write(".envrc", b"export EVIL=1")
# What the amended commit was is on no branch any more: it gets a reference of ours
change(".", "of the run")
git(".", "commit", "-q", "--amend", "-m", "of the run")
git(".", "branch", "-q", "-D", "old")
git(".", "checkout", "-q", "-b", "topic")
change("lib", "of the run")
git("lib", "commit", "-qm", "of the run")
""",
    _GIT
    + """
import os
def write(path, content=b"second run", mode=0o644):
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
write("large", os.urandom(90000))
os.chmod("secret", 0o600); write("secret", b"another secret", 0o000)
os.unlink("secret_gone")
write("secret_new", b"a new secret", 0o000)
write("setuid", b"#!/bin/sh", 0o4755)
write("executable", b"#!/bin/sh", 0o755)
write("line\\nbreak"); write(b"not \\xff\\xfe text"); write(b"new \\xff\\n"); write("new_empty", b"")
os.makedirs("new/deep/er"); write("new/deep/er/file"); os.mkdir("new/empty"); write("new/file", mode=0o640)
os.link("new/file", "new/same_file"); os.symlink("file", "new/link"); os.symlink("missing", "dangling")
os.unlink("link"); os.symlink("src/modified1", "link")
os.mkdir("new/closed"); write("new/closed/file"); os.chmod("new/closed", 0o555)
os.mkdir("new/shut"); write("new/shut/file"); os.chmod("new/shut", 0o000)
os.setxattr("new/file", "user.colour", b"green"); os.setxattr("new/deep", "user.colour", b"green")
write("src/modified0", b"modified twice")
text = open("merged_twice", "rb").read()
write("merged_twice", text.replace(b"\\n20 ", b"\\nthe second run: 20 "))
write("was_file/second")
change(".", "of the second run")
git(".", "commit", "-qm", "of the second run")
git(".", "tag", "made")
""",
)


@dataclass(frozen=True)
class Scene:
    """The places, and what is in them at the beginning."""

    project: Path
    state: Path
    project_image: Image
    state_image: Image

    def reset(self) -> None:
        """Make everything what it was, with the live project older than the layers but for one file and one branch."""
        rebuild(os.fsencode(self.project), self.project_image)
        rebuild(os.fsencode(self.state), self.state_image)
        mark = self._later_moment()
        with closing(sqlite3.connect(self.state / "store.db", isolation_level=None)) as db:
            db.execute("UPDATE layers SET mark_ns = ?", (mark,))
        (self.project / MOVED).write_bytes((self.project / MOVED_TO).read_bytes())
        edited = self.project / "edited"
        edited.write_bytes(EDITED)
        os.utime(edited, ns=(10**18, 10**18))
        for name in MERGED:
            merged = self.project / name
            merged.write_bytes(merged.read_bytes().replace(b"\n35 ", b"\nthe person: 35 "))
            os.utime(merged, ns=(10**18, 10**18))

    def _later_moment(self) -> int:
        """Return a moment of the project's filesystem after everything that was made there."""
        last = self.project.stat().st_ctime_ns
        probe = self.project.parent / "moment"
        while True:
            probe.write_bytes(b"")
            now = probe.stat().st_ctime_ns
            probe.unlink()
            if now > last:
                return now
            time.sleep(0.001)


def make_scene(ground: Ground, project: Path, *, is_elsewhere: bool = False) -> Scene:
    """Make a project, run the commands over it and hold what they changed.

    What a project elsewhere has that its owner can't read is read by another mode for a moment, whose ctime would be a
    conflict after a crash: such a project has nothing of that kind here.
    """
    before, *runs = [text.replace("0o000", "0o500") if is_elsewhere else text for text in (BEFORE, *RUNS)]
    subprocess.run([sys.executable, "-c", before], cwd=project, check=True)
    with closing(ground.sandbox(project=project)) as sandbox:
        for command in runs:
            result = sandbox.run(["python3", "-c", command], after="hold")
            assert result.ok, result
    return Scene(project, ground.state, capture(os.fsencode(project)), capture(os.fsencode(ground.state)))
