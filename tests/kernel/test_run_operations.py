# SPDX-License-Identifier: Apache-2.0
"""Each thing that a command can do to a file, a directory or a link: what is reported, and what the scan reads."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import MOUNTS, Ground, kinds, printed
from unspill.changes.scan import scan
from unspill.layers.trees import remove_tree
from unspill.model.change import Change, ChangeSet

pytestmark = pytest.mark.kernel

STAMP = 981173106  # 2001-02-03 04:05:06 UTC


@dataclass(frozen=True)
class Case:
    """A command, the changes it makes, and what a look at the place shows in the next run."""

    command: str
    changes: dict[str, str] = field(default_factory=dict)
    look: str = "true"
    seen: str = ""
    aspects: dict[str, tuple[str, ...]] = field(default_factory=dict)


CASES = {
    "create an empty file": Case(": > new", {"new": "added"}, "stat -c '%F %a %s' new", "regular empty file 644 0"),
    "create a file": Case("echo text > new", {"new": "added"}, "cat new; stat -c '%a %s' new", "text\n644 5"),
    "create an executable": Case(
        "printf '#!/bin/sh\necho ran' > x; chmod 750 x", {"x": "added"}, "./x; stat -c %a x", "ran\n750"
    ),
    "create in nested directories": Case(
        "mkdir -p n/m && chmod 711 n && echo x > n/m/f",
        {"n": "added", "n/m": "added", "n/m/f": "added"},
        "stat -c %a n n/m; cat n/m/f",
        "711\n755\nx",
    ),
    "create a link to a file": Case("ln -s file l", {"l": "added"}, "readlink l; cat l", "file\none"),
    "create a link to a directory": Case("ln -s dir l", {"l": "added"}, "readlink l; ls l/", "dir\ninner"),
    "create a hard link": Case(
        "ln file twin",
        {"twin": "added"},
        "cat file twin; stat -c %a twin",
        "one\none\n640",
    ),
    "create a FIFO": Case("mkfifo -m 600 pipe", {"pipe": "added"}, "stat -c '%F %a' pipe", "fifo 600"),
    "append": Case("echo two >> file", {"file": "modified"}, "cat file; stat -c %a file", "one\ntwo\n640"),
    "overwrite": Case("echo xxx > file", {"file": "modified"}, "cat file; stat -c %a file", "xxx\n640"),
    "overwrite with the same": Case(f"cp file /tmp/f; cat /tmp/f > file; touch -d @{STAMP} file"),
    "truncate": Case("truncate -s 1 file", {"file": "modified"}, "cat file; stat -c %s file", "o1"),
    "make sparse": Case("truncate -s 1M file", {"file": "modified"}, "stat -c %s file; head -c 3 file", "1048576\none"),
    "read": Case("cat file dir/inner link dirlink/inner exe"),
    "open for writing and write nothing": Case("exec 3<>file; : >> exe"),
    "chmod a file": Case(
        "chmod 600 file",
        {"file": "metadata"},
        "stat -c '%a %Y' file; cat file",
        f"600 {STAMP}\none",
        {"file": ("mode",)},
    ),
    "chmod and back": Case("chmod 600 file; chmod 640 file"),
    "list": Case("ls -laR > /dev/null"),
    "make and remove a directory": Case("mkdir d && rmdir d"),
    "find": Case("find . -name 'i*' | grep -q inner"),
    "chmod a directory": Case(
        "chmod 701 dir", {"dir": "metadata"}, "stat -c %a dir; cat dir/inner", "701\ninner", {"dir": ("mode",)}
    ),
    "rename a file": Case(
        "mv file renamed",
        {"file": "deleted", "renamed": "added"},
        "stat -c '%a %Y' renamed; cat renamed; ls file 2>&1 | grep -c 'No such'",
        f"640 {STAMP}\none\n1",
    ),
    "rename a directory": Case(
        "mv dir moved",
        {"dir": "deleted", "moved": "added", "moved/inner": "added"},
        "stat -c '%a %Y' moved/inner; stat -c %a moved; test ! -e dir && echo gone",
        f"600 {STAMP}\n750\ngone",
    ),
    "move a file into a directory": Case(
        "mv file empty/",
        {"empty/file": "added", "file": "deleted"},
        "cat empty/file; stat -c %Y empty/file",
        f"one\n{STAMP}",
    ),
    "move a tree": Case(
        "mv tree empty/",
        {"empty/tree": "added", "empty/tree/a": "added", "empty/tree/a/b": "added", "empty/tree/a/b/leaf": "added"}
        | {"tree": "deleted"},
        "cat empty/tree/a/b/leaf; test ! -e tree && echo gone",
        "leaf\ngone",
    ),
    "rename an open file": Case(
        "exec 3>>file; mv file other; echo late >&3; exec 3>&-",
        {"file": "deleted", "other": "added"},
        "cat other",
        "one\nlate",
    ),
    "replace an existing file": Case(
        "echo new > draft && mv draft file",
        {"file": "modified"},
        "cat file; ls",
        "new\ndir\ndirlink\nempty\nexe\nfile\nlink\ntree",
    ),
    "delete a file": Case("rm file", {"file": "deleted"}, "test ! -e file && echo gone", "gone"),
    "delete an empty directory": Case("rmdir empty", {"empty": "deleted"}, "test ! -e empty && echo gone", "gone"),
    "delete a tree": Case("rm -r tree", {"tree": "deleted"}, "test ! -e tree && echo gone", "gone"),
    "delete a link, not what it leads to": Case(
        "rm dirlink", {"dirlink": "deleted"}, "cat dir/inner; ls -d dirlink", "inner"
    ),
    "delete an open file": Case("exec 3<file; rm file; cat <&3", {"file": "deleted"}),
    "delete and make a directory anew": Case(
        "rm -r tree && mkdir tree && touch tree/new",
        {"tree/a": "deleted", "tree/new": "added"},
        "ls tree",
        "new",
    ),
    "file becomes directory": Case(
        "rm file && mkdir file && echo x > file/x",
        {"file": "replaced", "file/x": "added"},
        "stat -c '%F %a' file; cat file/x",
        "directory 755\nx",
    ),
    "directory becomes file": Case(
        "rm -r dir && echo x > dir", {"dir": "replaced"}, "stat -c %F dir; cat dir", "regular file\nx"
    ),
    "file becomes link": Case("ln -sf exe file", {"file": "replaced"}, "readlink file", "exe"),
    "link becomes file": Case("rm link && echo x > link", {"link": "replaced"}, "stat -c %F link", "regular file"),
    "directory becomes link": Case("rm -r dir && ln -s tree dir", {"dir": "replaced"}, "cat dir/a/b/leaf", "leaf"),
    "link gets another target": Case(
        "ln -sfn exe link", {"link": "modified"}, "readlink link", "exe", {"link": ("target",)}
    ),
    "set an attribute": Case(
        "python3 -c \"import os; os.setxattr('file', 'user.note', b'hello')\"",
        {"file": "metadata"},
        "python3 -c \"import os; print(os.getxattr('file', 'user.note').decode())\"",
        "hello",
        {"file": ("xattrs",)},
    ),
    "write through mmap": Case(
        "python3 -c \"import mmap; f = open('file', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:1] = b'O'\"",
        {"file": "modified"},
        "cat file",
        "One",
        {"file": ("content", "mtime")},
    ),
}


def furnish(ground: Ground) -> None:
    """Fill the project with one of each, all of the same age."""
    for path, content, mode in (
        ("file", "one\n", 0o640),
        ("exe", "#!/bin/sh\n", 0o755),
        ("dir/inner", "inner\n", 0o600),
        ("tree/a/b/leaf", "leaf\n", 0o644),
    ):
        made = ground.write(path, content)
        made.chmod(mode)
        os.utime(made, (STAMP, STAMP))
    (ground.project / "dir").chmod(0o750)
    (ground.project / "empty").mkdir()
    (ground.project / "link").symlink_to("file")
    (ground.project / "dirlink").symlink_to("dir")


@pytest.mark.rootfs_view
@pytest.mark.parametrize("name", CASES)
def test_is_reported_exactly_and_seen_by_the_next_run(ground: Ground, engine: str, name: str) -> None:
    case = CASES[name]
    furnish(ground)
    live = {path: os.lstat(path) for path in ground.project.rglob("*")}
    sandbox = ground.sandbox()
    result = sandbox.run(f"umask 022; {case.command}")
    assert result.ok, result
    assert kinds(result.changes) == case.changes
    assert result.held == bool(case.changes)
    found = {os.fsdecode(change.path): change.aspects for change in result.changes}
    assert {path: found[path] for path in case.aspects} == case.aspects
    assert kinds(sandbox.changes()) == case.changes
    seen = sandbox.run(case.look)
    assert seen.stdout.kept().decode().rstrip("\n") == case.seen
    now = {path: os.lstat(path) for path in ground.project.rglob("*")}
    assert {path: (s.st_mode, s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for path, s in now.items()} == {
        path: (s.st_mode, s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for path, s in live.items()
    }


@pytest.mark.rootfs_view
@pytest.mark.parametrize("target", ["/etc/passwd", "/", "../../outside", "/nowhere/at/all", "dir/../../x"])
def test_a_link_that_leads_out_is_reported_as_such(ground: Ground, engine: str, target: str) -> None:
    ground.write("dir/inner", "x")
    result = ground.sandbox().run(["ln", "-s", target, "out"])
    (change,) = result.changes
    assert (change.path, change.kind, change.target) == (b"out", "added", os.fsencode(target))
    assert change.leads_out


@pytest.mark.rootfs_view
@pytest.mark.parametrize("target", ["file", "dir/inner", "dir/../file", "."])
def test_a_link_that_stays_inside_is_not_said_to_lead_out(ground: Ground, engine: str, target: str) -> None:
    ground.write("dir/inner", "x")
    ground.write("file", "x")
    (change,) = ground.sandbox().run(["ln", "-s", target, "in"]).changes
    assert not change.leads_out


@pytest.mark.rootfs_view
def test_a_mere_touch_is_told_but_not_held(ground: Ground, engine: str) -> None:
    """Held, the file would hide what the person makes of it; and the project keeps its time."""
    ground.write("file", "x")
    sandbox = ground.sandbox()
    result = sandbox.run("touch -d @1 file")
    (change,) = result.changes
    assert (change.kind, change.aspects, change.is_mere_touch) == ("metadata", ("mtime",), True)
    assert (result.held, sandbox.find_run(result.number).changed) == (False, 0)
    ground.write("file", "the person's")
    assert printed(sandbox.run("cat file")) == "the person's"
    assert not sandbox.changes()


@pytest.mark.rootfs_view
def test_a_touch_beside_a_change_hides_no_edit(ground: Ground, engine: str) -> None:
    ground.write("file", "x")
    sandbox = ground.sandbox()
    assert sandbox.run("touch -d @1 file; echo y > new").held
    ground.write("file", "the person's")
    assert printed(sandbox.run("cat file")) == "the person's"
    assert kinds(sandbox.changes()) == {"new": "added"}


@pytest.mark.rootfs_view
def test_many_files_deep_directories_and_quick_changes_are_all_found(ground: Ground, engine: str) -> None:
    command = """
    for d in 1 2 3 4 5 6 7 8 9 10; do
        mkdir -p "$d/a/b/c/d/e/f/g/h/i"
        for f in $(seq 100); do echo "$f" > "$d/a/b/c/d/e/f/g/h/i/$f"; done
    done
    i=0; while [ $i -lt 2000 ]; do echo $i > busy; i=$((i+1)); done
    rm -r 10; rm 1/a/b/c/d/e/f/g/h/i/1
    """
    sandbox = ground.sandbox()
    result = sandbox.run(command)
    found = kinds(result.changes)
    assert result.ok
    assert set(found.values()) == {"added"}
    assert len(found) == 9 * (10 + 100) - 1 + 1
    assert sandbox.diff(["busy"]).splitlines()[-1] == "+1999"


PLACES = {
    "ext4": None,
    "xfs": MOUNTS / "xfs/work",
    "btrfs": MOUNTS / "btrfs/work",
    "tmpfs": Path("/dev/shm"),
}
SCAN_STAMP = 1_600_000_000


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
        os.utime(path, (SCAN_STAMP, SCAN_STAMP))
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

SCAN_CASES: dict[str, tuple[str, list[str]]] = {
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
    "a touch that is taken back": (f"touch b && touch -d @{SCAN_STAMP} b", []),
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
        f" && touch -d @{SCAN_STAMP} b",
        ["modified b content"],
    ),
}


@pytest.mark.parametrize(("command", "wanted"), SCAN_CASES.values(), ids=SCAN_CASES)
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
