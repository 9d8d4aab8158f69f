# SPDX-License-Identifier: Apache-2.0
"""A1 and A5: writing to files of the host, by every call that writes and by the set-up of a sandbox."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena, replaced, shown_as_it_is, with_mounts
from tests.attack.techniques.record import Defence, Listed
from unspill import UnspillError
from unspill.model.plan import Bind, File, Tmpfs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from unspill.model.plan import MountOp

LIST: Final = Listed()

# Each changes something below `shown`, a directory of the person's that the sandbox may see: a file `file`, a
# directory `dir` with another one in it.
WAYS: Final = {
    "Create a file in a directory of the host that is shown": "open(shown + '/new', 'w').close()",
    "Append to a file of the host that is shown": "open(shown + '/file', 'a').write('x')",
    "Truncate a file of the host by its name": "os.truncate(shown + '/file', 0)",
    "Truncate a file of the host while opening it": "os.open(shown + '/file', os.O_RDONLY | os.O_TRUNC)",
    "Delete a file of the host": "os.unlink(shown + '/file')",
    "Rename a file of the host": "os.rename(shown + '/file', shown + '/moved')",
    "Exchange two entries of the host by renameat2": (
        "call('exchange', libc.renameat2(-100, (shown + '/file').encode(), -100, (shown + '/dir').encode(), 2))"
    ),
    "Link a file of the host to a second name": "os.link(shown + '/file', shown + '/second')",
    "Make a symlink in a directory of the host": "os.symlink('x', shown + '/link')",
    "Make a directory in one of the host's": "os.mkdir(shown + '/made')",
    "Remove a directory of the host": "os.rmdir(shown + '/dir/empty')",
    "Make a FIFO in a directory of the host": "os.mkfifo(shown + '/fifo')",
    "Bind a socket in a directory of the host": "os.chdir(shown); socket.socket(socket.AF_UNIX).bind('bound')",
    "Set an extended attribute on a file of the host": "os.setxattr(shown + '/file', 'user.x', b'x')",
    "Change the mode of a file of the host": "os.chmod(shown + '/file', 0o777)",
    "Change the times of a file of the host": "os.utime(shown + '/file', (1, 1))",
    "Write into a file of the host at a place of it": (
        "fd = os.open(shown + '/file', os.O_RDWR); os.pwritev(fd, [b'x', b'y'], 4)"
    ),
    "Write to a file of the host through shared memory": (
        "import mmap; fd = os.open(shown + '/file', os.O_RDWR); mmap.mmap(fd, 8)[:1] = b'x'"
    ),
    "Give a file without a name one in a directory of the host": (
        "fd = os.open(shown, os.O_TMPFILE | os.O_RDWR); "
        "call('link', libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, (shown + '/named').encode(), 0x400))"
    ),
    "Copy into a file of the host inside the kernel": (
        "source, fd = os.open('/usr/bin/env', os.O_RDONLY), os.open(shown + '/file', os.O_WRONLY); "
        "os.sendfile(fd, source, 0, 8)"
    ),
    "Open a file of the host again through /proc, for writing": (
        "fd = os.open(shown + '/file', os.O_RDONLY); os.write(os.open(f'/proc/self/fd/{fd}', os.O_WRONLY), b'x')"
    ),
    "Write to a file of the host through the root of another process": (
        "open('/proc/1/root' + shown + '/file', 'w').write('x')"
    ),
    "Write beneath an open directory of the host by dots": (
        "fd = os.open(shown + '/dir/empty', os.O_RDONLY); "
        "os.close(os.open('../../new', os.O_CREAT | os.O_WRONLY, dir_fd=fd))"
    ),
}


def shown(arena: Arena) -> Path:
    """Return a directory of the person's that a policy lets a sandbox see, as it was at first."""
    top = arena.ground.home / "shown"
    if not top.exists():
        (top / "dir/empty").mkdir(parents=True)
        (top / "file").write_bytes(b"original" * 1024)
        os.utime(top / "file", (10**9, 10**9))
    return top


def picture(top: Path) -> dict[str, tuple[object, ...]]:
    """Return all that the host can tell about a tree."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        # A change that leaves size and time as they were would be seen by the attribute or the content
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        names = tuple(os.listxattr(path, follow_symlinks=False))
        found[path.name] = (status.st_mode, status.st_ino, status.st_nlink, int(status.st_mtime), names, content)
    return found


def changes_what_is_shown(way: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        top = shown(arena)
        before = picture(top)
        script = f"shown = {os.fspath(top)!r}\ntry:\n    {way}\nexcept OSError as error: lost(error.strerror)"
        arena.attack(script, readable=(os.fsencode(top),))
        return picture(top) != before

    return attack


def as_it_is(arena: Arena) -> Any:
    """Show the readable directory by a bind that can be written to."""
    path = os.fsencode(arena.ground.home / "shown")
    return arena.plan_changed(lambda mounts: replaced(mounts, path, shown_as_it_is(path, writable=True)))


for _tries, _way in WAYS.items():
    LIST.add("A1", _tries, changes_what_is_shown(_way), Defence("the read-only overlay over it", as_it_is))


def leaves_a_file_in(place: Callable[[Arena], Path]) -> Callable[[Arena], object]:
    """Return an attack that makes a file in a directory of the host, and looks there for it."""

    def attack(arena: Arena) -> object:
        path = place(arena) / f"unspill-left-{os.getpid()}"
        arena.attack(f"attempt('make', os.mkdir, {os.fspath(path)!r})")
        try:
            path.rmdir()
        except FileNotFoundError:
            return False
        return True

    return attack


def written_through(place: Callable[[Arena], Path]) -> Callable[[Arena], Any]:
    """Return the removal that lays the host's own directory over what the sandbox has in its place."""

    def removal(arena: Arena) -> Any:
        bind = shown_as_it_is(place(arena), at=arena.ground.inside(place(arena)), writable=True)

        def open_to_it(mounts: Sequence[MountOp]) -> list[MountOp]:
            if any(op.dest == bind.dest for op in mounts):
                return replaced(mounts, bind.dest, bind)
            return with_mounts(mounts, bind)

        return arena.plan_changed(open_to_it)

    return removal


def _fixed(path: str) -> Callable[[Arena], Path]:
    from pathlib import Path

    return lambda _arena: Path(path)


PLACES: Final[Mapping[str, Callable[[Arena], Any]]] = {
    "the live project": lambda arena: arena.ground.project,
    "the home directory": lambda arena: arena.ground.home,
    "the directory of the sandboxes' own state": lambda arena: arena.ground.state,
    "/tmp": _fixed("/tmp"),
    "/var/tmp": _fixed("/var/tmp"),
    "/dev/shm": _fixed("/dev/shm"),
}
for _name, _place in PLACES.items():
    LIST.add(
        "A1",
        f"Leave a directory in {_name} of the host",
        leaves_a_file_in(_place),
        Defence("what lies over it in the sandbox", written_through(_place)),
    )


# What the link says, and the place beneath it that a plan is asked to mount on; {host} is a directory of the host
SHAPES: Final = {
    "a link to the host in its parent": ("/oldroot{host}", "trap/made"),
    "a link to the host two levels above": ("/oldroot{host}", "trap/deeper/made"),
    "a link with dots in it": ("/oldroot{host}/../{name}", "trap/made"),
    "a relative link": ("../../../../../../../../../../../../oldroot{host}", "trap/made"),
    "a link to a second link": ("second", "trap/made"),
}
OPERATIONS: Final[Mapping[str, Callable[[bytes], MountOp]]] = {
    "an empty directory": lambda dest: Tmpfs(dest=dest, size_bytes=1 << 20, why="naive"),
    "a directory of the system": lambda dest: Bind(source=b"/usr/share", dest=dest, why="naive"),
    "a file of the system": lambda dest: Bind(source=b"/etc/hostname", dest=dest, why="naive"),
    "a generated file": lambda dest: File(content=b"x", dest=dest, why="naive", over=True),
}


def trap(target: str, dest: str) -> Callable[[Arena], object]:
    """Run 1 leaves the link in the project, run 2 is set up with policies that name places beneath it."""

    def attack(arena: Arena) -> object:
        host = arena.ground.top / "host"
        host.mkdir(exist_ok=True)
        link = target.format(host=host, name=host.name)
        arena.attack(f"""
for name, text in (("trap", {link!r}), ("second", "/oldroot{host}")):
    if not os.path.islink(name): os.symlink(text, name)
""")
        path = os.fsencode(arena.ground.project / dest)
        policies: tuple[dict[str, Any], ...] = (
            {},
            {"readable": (path,)},
            {"hidden": (path,)},
            {"roots": (os.path.dirname(path),)},
        )
        for asked in policies:
            try:
                arena.ground.sandbox(**asked).run(["true"])
            except UnspillError:
                continue
        return os.listdir(host)

    return attack


def mounts_beneath(dest: str, operation: Callable[[bytes], MountOp]) -> Defence:
    def removal(arena: Arena) -> Any:
        path = os.fsencode(arena.ground.inside(arena.ground.project / dest))
        return arena.plan_changed(lambda mounts: with_mounts(mounts, operation(path)))

    return Defence("the rule that nothing is mounted beneath what a command can write", removal)


for _name, (_target, _dest) in SHAPES.items():
    LIST.add(
        "A5",
        f"Make the set-up of the next run follow {_name}",
        trap(_target, _dest),
        mounts_beneath(_dest, OPERATIONS["an empty directory"]),
        needs_flaw=True,
    )
for _name, _operation in list(OPERATIONS.items())[1:]:
    LIST.add(
        "A5",
        f"Make the set-up of the next run put {_name} where a link leads to the host",
        trap("/oldroot{host}", "trap/made"),
        mounts_beneath("trap/made", _operation),
        needs_flaw=True,
    )
