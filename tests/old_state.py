# SPDX-License-Identifier: Apache-2.0
"""Put a home and a state directory back that unspill 0.1.0 left on another machine, as if they had been left here.

`tests/fixtures/state-0.1.0.json.z` holds every entry of both. Journals and rows name inodes and moments of that
machine's filesystem, so these are exchanged for the ones that the entries get here. Paths stay what they were.
"""

import base64
import fcntl
import json
import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unspill.layers.trees import remove_tree

ARCHIVE = Path(__file__).parent / "fixtures" / "state-0.1.0.json.z"
TOP = Path("/tmp/unspill-0.1.0")
STORE = TOP / "state" / "store.db"

Json = Any


@dataclass(frozen=True)
class OldState:
    """Where everything lies. Projects are below `home`: main, cut-short, unrecorded and killed."""

    home: Path = TOP / "home"
    state: Path = TOP / "state"


@contextmanager
def unpacked() -> Iterator[OldState]:
    """Put everything back; only one process at a time has it, and it goes afterwards."""
    with open(TOP.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_tree(os.fsencode(TOP))
        try:
            TOP.mkdir(mode=0o700)
            _unpack(json.loads(zlib.decompress(ARCHIVE.read_bytes())))
            yield OldState()
        finally:
            remove_tree(os.fsencode(TOP))


def _unpack(archive: Json) -> None:
    nodes: dict[str, Json] = archive["nodes"]
    first: dict[int, Path] = {}
    for path, node in nodes.items():
        _make(TOP / path, node, first)
    inodes = {node["inode"]: (TOP / path).lstat().st_ino for path, node in nodes.items()}
    for path, node in reversed(nodes.items()):
        _finish(TOP / path, node)
    _Translation(inodes, time.time_ns() - archive["at_ns"], _after_now()).rewrite()


def _make(path: Path, node: Json, first: dict[int, Path]) -> None:
    twin = first.setdefault(node["inode"], path)
    if twin != path:
        os.link(twin, path, follow_symlinks=False)
    elif node["kind"] == "dir":
        path.mkdir(mode=0o700)
    elif node["kind"] == "symlink":
        path.symlink_to(node["target"])
    elif node["kind"] == "whiteout":
        os.mknod(path, stat.S_IFCHR, 0)
    else:
        path.write_bytes(base64.b64decode(node["content"]))


def _finish(path: Path, node: Json) -> None:
    for name, value in node.get("attributes", {}).items():
        os.setxattr(path, name, base64.b64decode(value), follow_symlinks=False)
    os.utime(path, ns=(node["mtime_ns"], node["mtime_ns"]), follow_symlinks=False)
    if node["kind"] != "symlink":
        path.chmod(node["mode"])


def _after_now() -> int:
    """Return a moment of this filesystem that is later than the ctime of everything unpacked."""
    time.sleep(0.01)
    probe = TOP / "moment"
    probe.touch()
    now = probe.stat().st_ctime_ns
    probe.unlink()
    time.sleep(0.01)
    return now


class _Translation:
    """What inodes, moments of the filesystem and times of the clock become.

    Moments keep their order, a microsecond apart, so that all of them lie between the unpacking and the test.
    """

    def __init__(self, inodes: dict[int, int], shift_ns: int, after_ns: int) -> None:
        self._inodes = inodes
        self._device = TOP.stat().st_dev
        self._shift_ns = shift_ns
        self._after_ns = after_ns
        self._moments: dict[int, int] = {}

    def rewrite(self) -> None:
        """Exchange everything in journals, manifests and rows."""
        found: list[int] = []

        def note(moment: int) -> int:
            found.append(moment)
            return moment

        self._all(note)
        self._moments = {old: self._after_ns + 1000 * rank for rank, old in enumerate(sorted(set(found)))}
        for path, values in self._all(self._moments.__getitem__).items():
            lines = [json.dumps(value, separators=(",", ":")).encode() for value in values]
            path.write_bytes(b"".join(b"%08x %b\n" % (zlib.crc32(line), line) for line in lines))
        with closing(sqlite3.connect(STORE)) as db:
            self._update(db)

    def _all(self, moment: Callable[[int], int]) -> dict[Path, list[Json]]:
        """Return the content of every file that names moments, with those that `moment` gives."""
        with closing(sqlite3.connect(STORE)) as db:
            for table in ("layers", "marks"):
                for (mark,) in db.execute(f"SELECT mark_ns FROM {table} WHERE mark_ns"):
                    moment(mark)
            for (marks,) in db.execute("SELECT marks FROM operations"):
                self._marks(marks, moment)
        files: dict[Path, list[Json]] = {}
        for path in (TOP / "state" / "operations").glob("*/journal"):
            files[path] = [self._journal_line(value, moment) for value in _values(path)]
        for path in (TOP / "state" / "manifests").iterdir():
            files[path] = [self._manifest(value, moment) for value in _values(path)]
        return files

    def _journal_line(self, value: Json, moment: Callable[[int], int]) -> Json:
        if isinstance(value, list):
            for entry in (entry for step in value for entry in step[5:7] if entry):
                entry[2] = self._inodes.get(entry[2], entry[2])
                entry[5] = moment(entry[5]) if entry[5] else 0
            return value
        value["operation"]["marks"] = [moment(mark) for mark in value["operation"]["marks"]]
        value["operation"]["at_ns"] += self._shift_ns
        if "identities" in value:
            value["identities"] = [[self._device, self._inodes[inode]] for _device, inode in value["identities"]]
        for residue in value.get("residues", ()):
            residue[3] = moment(residue[3])
            residue[4] = [[name, moment(mark)] for name, mark in residue[4]]
        return value

    def _manifest(self, value: Json, moment: Callable[[int], int]) -> Json:
        value["layer"][3] = moment(value["layer"][3])
        value["overrides"] = [[name, moment(mark)] for name, mark in value["overrides"]]
        value["sandbox"][3:5] = self._device, self._inodes[value["sandbox"][4]]
        return value

    @staticmethod
    def _marks(text: str, moment: Callable[[int], int]) -> str:
        return " ".join(str(moment(int(word))) for word in text.split())

    def _update(self, db: sqlite3.Connection) -> None:
        db.create_function("moment", 1, lambda mark: self._moments[mark] if mark else mark)
        db.create_function("moments", 1, lambda text: self._marks(text, self._moments.__getitem__))
        db.create_function("inode_now", 1, lambda inode: self._inodes.get(inode, inode))
        db.create_function("shifted", 1, lambda at_ns: at_ns + self._shift_ns if at_ns else at_ns)
        db.executescript(f"""
            UPDATE sandboxes SET device = {self._device}, inode = inode_now(inode), created_ns = shifted(created_ns);
            UPDATE layers SET mark_ns = moment(mark_ns);
            UPDATE marks SET mark_ns = moment(mark_ns);
            UPDATE operations SET marks = moments(marks), at_ns = shifted(at_ns);
            UPDATE backups SET inode = inode_now(inode), recorded_ns = shifted(recorded_ns);
            UPDATE runs SET started_ns = shifted(started_ns), ended_ns = shifted(ended_ns);
            UPDATE grants SET granted_ns = shifted(granted_ns), expires_ns = shifted(expires_ns);
            UPDATE requests SET asked_ns = shifted(asked_ns), deadline_ns = shifted(deadline_ns);
        """)


def _values(path: Path) -> list[Json]:
    return [json.loads(line.partition(b" ")[2]) for line in path.read_bytes().splitlines()]
