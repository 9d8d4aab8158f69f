# SPDX-License-Identifier: Apache-2.0
"""A process that wants a rootfs, or wants one gone: alone, among many, or to be killed on the way.

Run as a program: ACTION DIRECTORY ARCHIVE LOG. It waits for its input to end, and answers with JSON. Its source is a
real one, small: it unpacks a tar archive, and writes a line to a log for each time that it was made to.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence

from unspill.errors import UnspillError
from unspill.model.rootfs import Installed, Progress, Rootfs, RootfsKey, RootfsSpec
from unspill.rootfs.build import prepare, upgrade
from unspill.rootfs.registry import Registry
from unspill.rootfs.source import BuildContext, Filled, Resolved
from unspill.rootfs.tar import unpack

SPEC = RootfsSpec(source="alpine")


class TarSource:
    """A source with one archive, whose name is its version; `dies` is whether the first to unpack it is killed."""

    def __init__(self, archive: bytes, log: bytes, *, dies: bool = False) -> None:
        self._archive = archive
        self._log = log
        self._dies = dies

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Name the version."""
        version = os.path.basename(self._archive).decode().removesuffix(".tar")
        return Resolved(key=RootfsKey(source="small", version=version, arch="any"), spec=spec)

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Write a line, and unpack."""
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, b"x")
            is_first = os.fstat(fd).st_size == 1
        finally:
            os.close(fd)
        unpack(self._archive, tree)
        if is_first and self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return Filled(proof="none")


def no_install(_tree: bytes, _argv: Sequence[bytes], _hosts: Sequence[str]) -> Installed:
    """Install nothing."""
    return Installed(ok=False)


def silent(_progress: Progress) -> None:
    """Tell nobody."""


def act(action: str, registry: Registry, source: TarSource) -> dict[str, object]:
    """Do what is asked for, and say what came of it."""
    if action == "remove":
        return {"removed": registry.remove("small", force=True)}
    if action in ("prepare", "die", "another"):
        spec = SPEC.replace(tier=2) if action == "another" else SPEC
        found = prepare(registry, spec, source, install=no_install, report=silent)
    else:
        found = act_on(action, registry, source)
    try:
        return {"name": found.name, "inode": os.stat(found.tree).st_ino}
    except FileNotFoundError:
        # Nobody holds it, so whoever removes it may have been faster
        return {"name": found.name, "inode": None}


def act_on(action: str, registry: Registry, source: TarSource) -> Rootfs:
    """Do something with the one that is ready."""
    found = registry.find("small")
    assert found is not None
    match action:
        case "upgrade":
            return upgrade(registry, found, source, install=no_install, report=silent)
        case "use":
            return registry.use(found.name)
    with registry.hold(found):
        return found


def main() -> None:
    """Wait until all are there, act, and answer."""
    action, directory, archive, log = sys.argv[1:]
    source = TarSource(os.fsencode(archive), os.fsencode(log), dies=action == "die")
    sys.stdin.read()
    try:
        answer = act(action, Registry(os.fsencode(directory)), source)
    except UnspillError as error:
        answer = {"error": error.code, "text": str(error), "remedy": error.remedy}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
