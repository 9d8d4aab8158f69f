# SPDX-License-Identifier: Apache-2.0
"""Which system calls name a file, and the filter that has the kernel tell somebody outside before it makes them.

It refuses nothing: refusing is for the filter of every run, which is stronger where both have something to say.
Assembled when it is asked for, since few runs want to be told.
"""

from __future__ import annotations

from unspill.host.seccomp_layout import AUDIT_ARCHES, Tell, assemble
from unspill.host.seccomp_rules import Allow, numbers_of
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.host.seccomp_layout import Laid

NO_DIRECTORY = -1
_AT_EMPTY_PATH = 0x1000
_O_WRITES = 0o1 | 0o2 | 0o100 | 0o1000


class Named(Record):
    """One file that a call names: the arguments that hold the directory and the path, and where the flags are.

    Without flags `is_write` says it. `in_memory`: the argument is the address of the flags.
    """

    path: int
    directory: int = NO_DIRECTORY
    is_write: bool = False
    flags: int | None = None
    in_memory: bool = False


_WRITTEN = (Named(path=0, is_write=True),)
_WRITTEN_AT = (Named(path=1, directory=0, is_write=True),)
_READ = (Named(path=0),)
_READ_AT = (Named(path=1, directory=0),)

NAMING: dict[str, tuple[Named, ...]] = {
    "open": (Named(path=0, flags=1),),
    "openat": (Named(path=1, directory=0, flags=2),),
    "openat2": (Named(path=1, directory=0, flags=2, in_memory=True),),
    "rename": (Named(path=0, is_write=True), Named(path=1, is_write=True)),
    "renameat": (*_WRITTEN_AT, Named(path=3, directory=2, is_write=True)),
    "renameat2": (*_WRITTEN_AT, Named(path=3, directory=2, is_write=True)),
    "link": (Named(path=1, is_write=True),),
    "linkat": (Named(path=3, directory=2, is_write=True),),
    "symlink": (Named(path=1, is_write=True),),
    "symlinkat": (Named(path=2, directory=1, is_write=True),),
    **dict.fromkeys(("creat", "mkdir", "rmdir", "unlink", "mknod", "truncate", "chmod", "chown", "lchown"), _WRITTEN),
    **dict.fromkeys(("utime", "utimes", "setxattr", "lsetxattr", "removexattr", "lremovexattr"), _WRITTEN),
    **dict.fromkeys(("mkdirat", "unlinkat", "mknodat", "fchmodat", "fchmodat2", "fchownat"), _WRITTEN_AT),
    **dict.fromkeys(("futimesat", "utimensat", "setxattrat", "removexattrat"), _WRITTEN_AT),
    **dict.fromkeys(("stat", "lstat", "access", "readlink", "chdir", "execve"), _READ),
    **dict.fromkeys(("newfstatat", "faccessat", "faccessat2", "readlinkat", "execveat", "statx"), _READ_AT),
}
# fstat is made by these with an empty name: nothing to tell, and half of what some programs do
_FLAGS_OF_EMPTY = {"newfstatat": 3, "statx": 2}


def build_notices(machine: str) -> bytes:
    """Return the filter for a machine, as uname names it.

    Raises:
        HostError: unspill does not know this machine's system calls.
    """
    numbers = numbers_of(machine)
    found: list[Laid] = [Allow()] * (max(numbers.values()) + 1)
    for name in NAMING:
        if name not in numbers:
            continue
        argument = _FLAGS_OF_EMPTY.get(name)
        found[numbers[name]] = Tell() if argument is None else Tell(argument=argument, unless=_AT_EMPTY_PATH)
    return assemble(AUDIT_ARCHES[machine], found)


def naming_calls(machine: str) -> dict[int, tuple[Named, ...]]:
    """Return what each call names, by its number on a machine."""
    numbers = numbers_of(machine)
    return {numbers[name]: named for name, named in NAMING.items() if name in numbers}


def is_writing(flags: int) -> bool:
    """Tell whether an open with these flags may change something."""
    return bool(flags & _O_WRITES)
