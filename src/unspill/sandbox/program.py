# SPDX-License-Identifier: Apache-2.0
"""Which program a command would start, and for which command exactly something is asked.

A grant for "this very command" must not be one for whatever is put in the program's place afterwards. What lies where
no command can write stays what it is; of a file in a root the digest goes into the request; whatever can't be told for
sure, without following a link on the host's side, is only ever allowed once.

With `network.ask` a running command is asked about, too: a connection to a host that no rule covers waits for the
answer. What is allowed holds for the rest of the run, or for as long as the person says.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2b

from unspill.changes.reader import digest_of_file
from unspill.errors import DeniedError, UnspillError
from unspill.host.dirfd import Beneath
from unspill.layers.locks import upper_dir
from unspill.model.permission import INHERITED, UNKNOWN_PROGRAM, Egress
from unspill.model.plan import Bind, Overlay, Symlink
from unspill.model.run import InheritedInput
from unspill.plan.view import find_cover, is_writable_mount, to_host
from unspill.policy.paths import contains, normalise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from unspill.model.layer import RunId
    from unspill.model.plan import Plan
    from unspill.network.proxy import Ask
    from unspill.permissions.broker import Broker
    from unspill.sandbox.planning import Request
    from unspill.sandbox.project import Project


_MOST_BYTES = 64 << 20
_STEADY = ""
_READ_PACKAGES = (b"python", b"pip")

# The size of a window comes and goes, and no program does anything else because of it
_WINDOW_SIZES = (b"COLUMNS", b"LINES")
_STDIN_SHOWN = 4096
_NOT_ALLOWED = "it was not allowed"


def identify_program(project: Project, plan: Plan) -> str:
    """Return nothing for a program that no command can change, else its digest, or `UNKNOWN_PROGRAM`."""
    name = plan.argv[0]
    if plan.rootfs and os.path.basename(name).startswith(_READ_PACKAGES):
        # PYTHONPATH is ours in this view, and leads to where every command can write
        return UNKNOWN_PROGRAM
    if b"/" not in name:
        return _found_in_path(plan, dict(plan.environ).get(b"PATH", b""), name)
    place = name if name.startswith(b"/") else plan.cwd + b"/" + name.removeprefix(b"./")
    if normalise(place) != place:
        return UNKNOWN_PROGRAM
    if _is_steady(plan, place):
        return _steady(plan, place)
    return _digest_in_root(project, to_host(place, project.means.policy.view, project.roots))


def check_program(project: Project, plan: Plan, allowed: str) -> None:
    """Refuse a program that is not the one that something was allowed to: the run has waited for others since.

    Raises:
        DeniedError: it was exchanged meanwhile.
    """
    if identify_program(project, plan) != allowed:
        raise DeniedError(
            "Permission denied: the program was changed after it was allowed what it asks for.",
            remedy="Run it again, to be asked about the program that is there now.",
        )


def _found_in_path(plan: Plan, path: bytes, name: bytes) -> str:
    """Return nothing where the search ends at a program that no command can change."""
    for directory in path.split(b":"):
        found = os.path.join(directory, name)
        # A link may lead to where a command can write, also one that leads nowhere yet
        if not _is_steady(plan, directory) or not _is_steady(plan, found):
            return UNKNOWN_PROGRAM
        # What can't be executed is passed over by the search
        if _is_executable(plan, found):
            return _steady(plan, found)
    return UNKNOWN_PROGRAM


def _steady(plan: Plan, path: bytes) -> str:
    """Return what stands for a program that no command can change: of a rootfs, which one it is of."""
    if not plan.rootfs:
        return _STEADY
    from unspill.sandbox.rootfs_use import identify_in_rootfs  # lazy: rootfs

    return identify_in_rootfs(plan, path)


def _is_executable(plan: Plan, path: bytes) -> bool:
    if plan.rootfs:
        from unspill.sandbox.rootfs_use import is_executable_in_rootfs  # lazy: rootfs

        return is_executable_in_rootfs(plan, path)
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_steady(plan: Plan, path: bytes) -> bool:
    """Tell whether a path lies in what is shown read-only, through links of the plan at most."""
    if not path.startswith(b"/") or normalise(path) != path:
        return False
    if plan.rootfs:
        from unspill.sandbox.rootfs_use import is_steady_in_rootfs  # lazy: rootfs

        return is_steady_in_rootfs(plan, path)
    cover = find_cover(plan.mounts, path)
    if isinstance(cover, Symlink):
        target = normalise(b"/" + cover.target + path[len(cover.dest) :])
        return b".." not in cover.target.split(b"/") and _is_steady(plan, target)
    if not isinstance(cover, Bind | Overlay) or is_writable_mount(cover):
        return False
    # A link of the host's may lead into a root, where the command can write
    real = os.path.realpath(path)
    return not any(is_writable_mount(op) and contains(op.dest, real) for op in plan.mounts)


def _digest_in_root(project: Project, place: bytes) -> str:
    root = next((root for root in project.roots if contains(root, place) and root != place), None)
    if root is None:
        return UNKNOWN_PROGRAM
    inside = place[len(root) + 1 :]
    for layer in _layers_of(project, root):
        found = _open_plain(layer, inside)
        if found is not None:
            return found
    return UNKNOWN_PROGRAM


def _layers_of(project: Project, root: bytes) -> Iterator[bytes]:
    """Yield the directories that a root is made of, the topmost first, the live one last."""
    rows = [row for row in project.store.layers.sealed(project.row.id) if row.root == root]
    for row in reversed(rows):
        yield upper_dir(project.store.state, row.id)
    yield root


def _open_plain(layer: bytes, inside: bytes) -> str | None:
    """Return the digest of the file that a layer has there, None where it has nothing, or that nobody can tell."""
    with Beneath(os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as tree:
        parts = inside.split(b"/")
        for count in range(1, len(parts) + 1):
            try:
                found = tree.find(b"/".join(parts[:count]))
            except OSError:
                return UNKNOWN_PROGRAM
            if found is None:
                return None
            is_last = count == len(parts)
            # A link, a whiteout or a directory that hides the one below it: too much to be sure of
            if not (stat.S_ISREG if is_last else stat.S_ISDIR)(found.st_mode) or found.st_size > _MOST_BYTES:
                return UNKNOWN_PROGRAM
        try:
            above, name = tree.parent(inside)
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
        except OSError:
            return UNKNOWN_PROGRAM
        return digest_of_file(fd)


def occasion_of(project: Project, request: Request, plan: Plan) -> dict[str, Any]:
    """Return what every request for this command has in common."""
    variables = dict(plan.environ)
    return {
        "project": project.path,
        "sandbox": project.row.id,
        "argv": request.argv,
        "cwd": request.cwd,
        "names": tuple(
            sorted(name.decode("utf-8", "surrogateescape") for name in variables if name not in _WINDOW_SIZES)
        ),
        "script": identify_program(project, plan),
        # What the variables that a caller sets have in common with the same ones another time: their values too
        "variables": _digest_of(b"".join(b"%b=%b\0" % pair for pair in sorted(dict(request.environ).items()))),
        **input_of(request.stdin),
    }


def input_of(stdin: bytes | int | None) -> dict[str, Any]:
    """Return what a request says of what the command reads: a shell runs that as well as its words."""
    if isinstance(stdin, int):
        return {"stdin": INHERITED if isinstance(stdin, InheritedInput) else UNKNOWN_PROGRAM}
    return {"stdin": _digest_of(stdin), "stdin_head": stdin[:_STDIN_SHOWN]} if stdin else {}


def _digest_of(said: bytes) -> str:
    return blake2b(said, digest_size=32).hexdigest() if said else ""


def make_asker(project: Project, request: Request, plan: Plan, broker: Broker, run: RunId) -> Ask:
    """Return what the proxy of a run asks for a host; it says nothing where that is allowed, else why it is not."""
    # Before the command begins: afterwards it may have changed the program that it is
    occasion = occasion_of(project, request, plan) | {"run": run}

    def ask(host: str) -> str:
        asked = Egress(**occasion, hosts=(host,))
        try:
            broker.obtain(asked).take(asked)
        except DeniedError as error:
            return f"{_NOT_ALLOWED} ({error.reason})" if error.reason else _NOT_ALLOWED
        except UnspillError as error:
            return f"it can't be asked for ({error.code})"
        return ""

    return ask
