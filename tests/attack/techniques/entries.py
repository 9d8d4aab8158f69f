# SPDX-License-Identifier: Apache-2.0
"""C5 to C7: entries that are more than content: second names, nodes that are no files, special bits."""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena
from tests.attack.techniques.case import Case, case, copied, listed, ours
from tests.attack.techniques.record import Listed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from unspill import ChangeSet


LIST: Final = Listed()


def linked_file(change: str, look: Callable[[Path], object]) -> Callable[[Case, Any], object]:
    """The live file has a second name in a store of packages, as package managers make them."""

    def scenario(one: Case, way: Any) -> object:
        store = one.outside / "store"
        os.link(one.project / "file", store)
        before = look(store)
        way(one, one.hold(change))
        return look(store) != before

    return scenario


def in_place(one: Case, changes: ChangeSet) -> None:
    """Write new content and mode into the file that is there."""
    for change in changes:
        if change.entry is not None and change.entry.kind == "file":
            assert change.layer is not None
            source, target = os.fsdecode(change.layer + b"/" + change.path), one.project / os.fsdecode(change.path)
            with open(source, "rb") as file:
                target.write_bytes(file.read())
            target.chmod(stat.S_IMODE(os.lstat(source).st_mode))


def listed_in_place(tries: str, scenario: Callable[[Case, Any], object]) -> None:
    LIST.add_pair(
        "C5",
        tries,
        lambda arena: scenario(case(arena), ours),
        "by writing into the live file",
        lambda arena: scenario(case(arena), in_place),
    )


listed_in_place(
    "Change a file that has a second name in a shared store", linked_file("echo ours > file", lambda p: p.read_bytes())
)
listed_in_place(
    "Empty a file that has a second name in a shared store", linked_file(": > file", lambda p: p.read_bytes())
)
listed_in_place(
    "Make a file executable that has a second name in a shared store",
    linked_file("chmod 755 file", lambda p: p.stat().st_mode),
)


def node_arrives(script: str, is_it: Callable[[int], bool]) -> Callable[[Case, Any], object]:
    def scenario(one: Case, way: Any) -> object:
        way(one, one.hold(script))
        path = one.project / "node"
        return os.path.lexists(path) and is_it(path.lstat().st_mode)

    return scenario


SOCKET: Final = "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('node')\""
listed(LIST, "C6", "Leave a FIFO that whoever opens it waits for", node_arrives("mkfifo node", stat.S_ISFIFO), copied)
listed(LIST, "C6", "Leave a socket in the project", node_arrives(SOCKET, stat.S_ISSOCK), copied)


def hangs(read: Callable[[Case], object], patience_s: float) -> Callable[[Arena], object]:
    """Tell whether whoever reads what is held waits for ever."""

    def attack(arena: Arena) -> object:
        one = case(arena)
        changes = one.hold("rm file; mkfifo file")
        (layer,) = changes.layers
        thread = threading.Thread(target=read, args=(one,), daemon=True)
        thread.start()
        thread.join(patience_s)
        is_alive = thread.is_alive()
        if is_alive:
            os.close(os.open(os.fsdecode(layer) + "/file", os.O_WRONLY | os.O_NONBLOCK))
            thread.join()
        return is_alive

    return attack


def read_it(one: Case) -> object:
    (layer,) = one.sandbox.changes().layers
    with open(os.fsdecode(layer) + "/file", "rb") as file:
        return file.read()


LIST.add_pair(
    "C6",
    "Replace a file by a FIFO, to make the one who looks at the diff wait for ever",
    hangs(lambda one: one.sandbox.diff(), 20.0),
    "by a plain open of what is held",
    hangs(read_it, 0.5),
)

ACL: Final = (
    'python3 -c "import os, struct; e = struct.pack; '
    "os.setxattr('node', 'system.posix_acl_access', e('<I', 2) + e('<HHI', 1, 6, 0xffffffff) "
    "+ e('<HHI', 2, 7, os.getuid()) + e('<HHI', 4, 4, 0xffffffff) "
    "+ e('<HHI', 16, 7, 0xffffffff) + e('<HHI', 32, 4, 0xffffffff))\""
)


def has_access_list(one: Case) -> bool:
    path = one.project / "node"
    return path.exists() and "system.posix_acl_access" in os.listxattr(path)


def bits_arrive(script: str, found: Callable[[Case], object]) -> Callable[[Case, Any], object]:
    def scenario(one: Case, way: Any) -> object:
        way(one, one.hold(script))
        return found(one)

    return scenario


def mode_of(one: Case) -> int:
    return (one.project / "node").stat().st_mode


for _tries, _script, _found in (
    ("Leave a set-user-id program", "cp /bin/true node; chmod 4755 node", lambda one: mode_of(one) & 0o4000),
    ("Leave a set-group-id program", "cp /bin/true node; chmod 2755 node", lambda one: mode_of(one) & 0o2000),
    ("Leave a set-group-id directory", "mkdir node; chmod 2777 node", lambda one: mode_of(one) & 0o2000),
    ("Leave a sticky directory", "mkdir node; chmod 1777 node", lambda one: mode_of(one) & 0o1000),
    ("Leave a file with an access list for others", f"echo x > node; {ACL}", has_access_list),
):
    listed(LIST, "C7", _tries, bits_arrive(_script, _found), copied)
