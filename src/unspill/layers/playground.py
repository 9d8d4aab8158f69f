# SPDX-License-Identifier: Apache-2.0
"""The playground: a scratch directory that stays, one per project, for its owner alone.

It lies in the data directory, not in the state directory, because what a person keeps there is theirs.
"""

from __future__ import annotations

import os

from unspill.errors import StoreError
from unspill.layers.stack import stat_root
from unspill.store.state import make_parents


def playground_dir(data: bytes, project: bytes) -> bytes:
    """Return a project's playground, made if there is none; `data` is the data directory of unspill.

    Raises:
        StoreError: it can't be made, or is not ours.
    """
    return _own_dir(os.path.join(data, b"playground", project_key(project)), "playground")


def tmp_dir(data: bytes, project: bytes, sandbox: str) -> bytes:
    """Return the /tmp of a sandbox whose temporary files outlive a run, made if there is none.

    Raises:
        StoreError: as of the playground.
    """
    key = project_key(project) + b"-" + project_key(os.fsencode(sandbox))
    return _own_dir(os.path.join(data, b"tmp", key), "directory for temporary files")


def _own_dir(path: bytes, what: str) -> bytes:
    try:
        make_parents(path)
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(
            f"The {what} {os.fsdecode(path)} can't be made: {error.strerror}.",
            remedy="Look for free space and rights there, or point XDG_DATA_HOME elsewhere.",
        ) from error
    found = stat_root(path)
    if found.st_uid != os.geteuid():
        raise StoreError(f"The {what} {os.fsdecode(path)} belongs to user {found.st_uid}.", remedy="Move it away.")
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def project_key(project: bytes) -> bytes:
    """Return a name for a project's path: readable, and different for different paths.

    FNV-1a of 64 bits: the person chooses these paths, so nobody is there to be defended against, and hashlib
    would cost each start of the command line 3 ms.
    """
    key = 0xCBF29CE484222325
    for byte in project:
        key = (key ^ byte) * 0x100000001B3 & 0xFFFF_FFFF_FFFF_FFFF
    readable = bytes(byte for byte in os.path.basename(project) if chr(byte).isascii() and chr(byte).isalnum())
    return b"%b-%016x" % (readable[:32], key)
