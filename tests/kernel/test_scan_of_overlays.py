# SPDX-License-Identifier: Apache-2.0
"""Layers as the kernel writes them: each thing a command can do, on a real overlay mount, and what the scan says."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from unspill.changes.scan import scan
from unspill.layers.trees import remove_tree
from unspill.model.change import Change, ChangeSet

pytestmark = pytest.mark.kernel

PLACES = {
    "ext4": None,
    "xfs": Path("/opt/unspill-ci/fs/xfs/work"),
    "btrfs": Path("/opt/unspill-ci/fs/btrfs/work"),
    "tmpfs": Path("/dev/shm"),
}
STAMP = 1_600_000_000


@dataclass(frozen=True)
class Overlay:
    """A live tree, and layers that commands leave over it."""

    top: Path
    uppers: Path

    def run(self, command: str, *, below: tuple[str, ...] = (), name: str = "upper") -> Path:
        """Run a command in the merged view of the live tree and the layers `below`, the topmost first."""
        upper, work, merged = self.uppers / name, self.uppers / f"{name}.work", self.top / "merged"
        for directory in (upper, work, merged):
            directory.mkdir(exist_ok=True)
        upper.chmod(0o755)
        lowers = ":".join([*(f"{self.uppers}/{layer}" for layer in below), f"{self.top}/live"])
        options = f"lowerdir={lowers},upperdir={upper},workdir={work},userxattr,index=off,metacopy=off,volatile"
        script = f'mount -t overlay overlay -o "$1" {merged} && cd {merged} && umask 022 && {command}'
        inside = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-ec", script, "-", options]
        subprocess.run(inside, check=True, timeout=30)
        return upper

    def scan(self, *layers: str, below: tuple[str, ...] = ()) -> ChangeSet:
        above = [os.fsencode(self.uppers / layer) for layer in layers or ("upper",)]
        beneath = [os.fsencode(self.uppers / layer) for layer in below]
        return scan(above, beneath, os.fsencode(self.top / "live"))


@pytest.fixture(params=PLACES)
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Overlay]:
    """A live tree on the filesystem of temporary files, with its layers on this or another filesystem."""
    place = PLACES[request.param]
    uppers = Path(tempfile.mkdtemp(prefix="unspill-test-", dir=place)) if place else tmp_path / "uppers"
    uppers.mkdir(exist_ok=True)
    live = tmp_path / "live"
    for name in ("a", "b", "d/x", "d/y", "d/e/z", "gone/one", "gone/two"):
        path = live / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
        os.utime(path, (STAMP, STAMP))
    os.symlink("a", live / "link")
    os.setxattr(live / "b", "user.note", b"kept")
    os.link(live / "a", live / "hard")
    with (live / "sparse").open("wb") as file:
        file.truncate(100 << 20)
    for directory, _, _ in os.walk(live):
        os.chmod(directory, 0o755)
    yield Overlay(tmp_path, uppers)
    remove_tree(os.fsencode(uppers))


def told(changes: ChangeSet) -> list[str]:
    return [" ".join([change.kind, os.fsdecode(change.path), *change.aspects]) for change in changes]


PYTHON = shutil.which("python3", path="/usr/bin:/bin") or "python3"

CASES: dict[str, tuple[str, list[str]]] = {
    "reading changes nothing": ("cat a b d/x > /dev/null; ls -laR > /dev/null", []),
    "deletions share one whiteout inode": ("rm b d/x", ["deleted b", "deleted d/x"]),
    "a deleted directory is one change": ("rm -r gone", ["deleted gone"]),
    "a directory made again hides the old one": (
        "rm -r d && mkdir d && echo new > d/x",
        ["deleted d/e", "modified d/x content mtime", "deleted d/y"],
    ),
    "a directory instead of a file": ("rm b && mkdir b && touch b/x", ["replaced b", "added b/x"]),
    "a file instead of a directory": ("rm -r gone && echo x > gone", ["replaced gone"]),
    "a renamed new directory is opaque over nothing": ("mkdir n && touch n/f && mv n m", ["added m", "added m/f"]),
    "a new directory moved over an emptied one": (
        "rm -r gone && mkdir n && touch n/one && mv n gone",
        ["modified gone/one content mtime", "deleted gone/two"],
    ),
    "a renamed file is a deletion and an addition": ("mv b c", ["deleted b", "added c"]),
    "a directory moved as mv does it": (
        "mv gone went",
        ["deleted gone", "added went", "added went/one", "added went/two"],
    ),
    "opening for writing without writing": ("exec 3<>b", []),
    "writing the same content again is a mere touch": (
        "cat b > /tmp/$$; cat /tmp/$$ > b; rm /tmp/$$",
        ["metadata b mtime"],
    ),
    "a mere touch": ("touch b", ["metadata b mtime"]),
    "a touch that is taken back": (f"touch b && touch -d @{STAMP} b", []),
    "another mode": ("chmod 600 b", ["metadata b mode"]),
    "a mode that is taken back": ("chmod 600 b && chmod 644 b", []),
    "a setuid bit": ("chmod u+s b", ["metadata b mode"]),
    "a file made and deleted in a live directory": ("touch d/new && rm d/new", []),
    "a touched directory": ("touch d gone .", []),
    "another mode of a directory": ("chmod 700 d", ["metadata d mode"]),
    "another mode of the project itself": ("chmod 700 .", ["metadata . mode"]),
    "one byte of a sparse file": (
        "printf x | dd of=sparse bs=1 seek=50000000 conv=notrunc status=none",
        ["modified sparse content mtime"],
    ),
    "a symlink set anew": ("ln -sfn b link", ["modified link target"]),
    "a symlink set anew to the same": ("rm link && ln -s a link", []),
    "a fifo and a socket": (
        f"mkfifo p && {PYTHON} -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'",
        ["added p", "added s"],
    ),
    "a closed directory with something in it": (
        "mkdir n && touch n/f && chmod 0 n && chmod 0 b",
        ["metadata b mode", "added n", "added n/f"],
    ),
    "a memory-mapped write": (
        f'{PYTHON} -c \'import mmap; f = open("b", "r+b"); mmap.mmap(f.fileno(), 0)[0:1] = b"X"\''
        f" && touch -d @{STAMP} b",
        ["modified b content"],
    ),
}


@pytest.mark.parametrize(("command", "wanted"), CASES.values(), ids=CASES)
def test_what_a_command_does_is_told_exactly(overlay: Overlay, command: str, wanted: list[str]) -> None:
    overlay.run(command)
    changes = overlay.scan()
    assert told(changes) == wanted
    assert changes.findings == ()


def only(changes: ChangeSet) -> Change:
    [change] = changes
    assert isinstance(change, Change)
    return change


def test_the_kernel_leaves_the_marks_that_are_not_counted(overlay: Overlay) -> None:
    upper = overlay.run("exec 3<>b; rm a; touch d/n && rm d/n")
    assert "user.overlay.origin" in os.listxattr(upper / "b")
    assert {"user.overlay.impure", "user.overlay.uuid"} & set(os.listxattr(upper))
    assert (upper / "d").is_dir()
    assert os.lstat(upper / "a").st_nlink > 1
    assert told(overlay.scan()) == ["deleted a"]


FORGE = (
    f"{PYTHON} -c '"
    "import os\n"
    'for name in ("opaque", "whiteout", "redirect", "metacopy", "origin", "foo", "overlay.opaque"):\n'
    '    os.setxattr("d", "user.overlay." + name, b"y")\n'
    '    os.setxattr("b", "user.overlay." + name, b"y")'
    "'"
)


def test_marks_forged_by_a_command_are_its_own_attributes_and_delete_nothing(overlay: Overlay) -> None:
    upper = overlay.run(FORGE)
    assert "user.overlay.overlay.opaque" in os.listxattr(upper / "d")
    assert told(overlay.scan()) == ["metadata b xattrs", "metadata d xattrs"]


def test_the_same_mark_set_from_outside_does_delete(overlay: Overlay) -> None:
    """The control: the exact name means what the kernel means by it."""
    upper = overlay.run("touch d/n && rm d/n")
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    assert told(overlay.scan()) == ["deleted d/e", "deleted d/x", "deleted d/y"]


def test_a_command_can_not_forge_a_whiteout(overlay: Overlay) -> None:
    overlay.run("! mknod forged c 0 0 2>/dev/null; ! mknod d/forged c 0 0 2>/dev/null")
    assert told(overlay.scan()) == []


def test_a_changed_hard_link_is_reported_as_broken(overlay: Overlay) -> None:
    overlay.run("echo more >> a")
    change = only(overlay.scan())
    assert (change.path, change.broke_link) == (b"a", True)


def test_attributes_survive_a_copy_up(overlay: Overlay) -> None:
    upper = overlay.run("echo more >> b")
    assert os.getxattr(upper / "b", "user.note") == b"kept"
    assert only(overlay.scan()).aspects == ("content", "mtime")


def test_modes_are_as_the_command_left_them_after_a_scan(overlay: Overlay) -> None:
    upper = overlay.run("mkdir n && touch n/f && chmod 0 n/f n")
    overlay.scan()
    assert stat.S_IMODE(os.lstat(upper / "n").st_mode) == 0


def test_runs_on_top_of_each_other_are_told_one_by_one_and_together(overlay: Overlay) -> None:
    overlay.run("rm -r d && echo one > new && echo more >> b", name="first")
    overlay.run("mkdir d && echo x > d/x && rm new", name="second", below=("first",))
    overlay.run("rm -r d && echo again > new", name="third", below=("second", "first"))
    assert told(overlay.scan("first")) == ["modified b content mtime", "deleted d", "added new"]
    assert told(overlay.scan("second", below=("first",))) == ["added d", "added d/x", "deleted new"]
    assert told(overlay.scan("third", below=("second", "first"))) == ["deleted d", "added new"]
    together = overlay.scan("third", "second", "first")
    assert told(together) == ["modified b content mtime", "deleted d", "added new"]
