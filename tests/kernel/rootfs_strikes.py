# SPDX-License-Identifier: Apache-2.0
"""A registry, an archive, and processes that want something of it: many at once, or one that is struck on the way."""

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.kernel.crash_strikes import FAULTS, LIBRARY, MUTATING, OPENING, Call, calls_of
from tests.kernel.rootfs_program import SPEC, TarSource, no_install, silent
from unspill.errors import RootfsError
from unspill.layers.trees import remove_tree
from unspill.model.rootfs import Rootfs
from unspill.rootfs.build import prepare, verify
from unspill.rootfs.registry import Registry

PROGRAM: Final = Path(__file__).with_name("rootfs_program.py")
LIMIT_S: Final = 120


@dataclass(frozen=True)
class Struck:
    """What became of a program: whether it died, what it said, which calls it made that may change something."""

    is_killed: bool
    is_hit: bool
    answer: dict[str, Any]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Scene:
    """A directory for all: the registry, the archive, and the log that counts who unpacked it."""

    top: Path
    version: str = "1.0"

    @property
    def registry(self) -> Registry:
        return Registry(os.fsencode(self.top / "rootfs"))

    @property
    def archive(self) -> Path:
        return self.top / f"{self.version}.tar"

    @property
    def log(self) -> Path:
        return self.top / "log"

    def words(self, action: str) -> list[str]:
        """Return the program."""
        return [sys.executable, "-S", os.fspath(PROGRAM), action, *self.places()]

    def places(self) -> tuple[str, str, str]:
        """Return what the program is told."""
        return os.fspath(self.top / "rootfs"), os.fspath(self.archive), os.fspath(self.log)

    def builds(self) -> int:
        """Return how often the archive was unpacked."""
        return self.log.stat().st_size if self.log.exists() else 0

    def staging(self) -> list[str]:
        """Return what lies in the staging directory."""
        place = self.top / "rootfs" / "staging"
        return sorted(os.listdir(place)) if place.is_dir() else []

    def reset(self) -> None:
        """Forget all that was made."""
        assert remove_tree(os.fsencode(self.top / "rootfs"))
        self.log.unlink(missing_ok=True)

    def prepare(self) -> Rootfs:
        """Make the rootfs, here."""
        source = TarSource(os.fsencode(self.archive), os.fsencode(self.log))
        return prepare(self.registry, SPEC, source, install=no_install, report=silent)

    def run(self, action: str) -> dict[str, Any]:
        """Run the program undisturbed."""
        done = subprocess.run(
            self.words(action),
            env=variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=LIMIT_S,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def strike(self, action: str, call: Call | None = None, fault: str = "killed") -> Struck:
        """Run the program, traced; with a call, that one is its last one, or fails."""
        log = self.top / "trace"
        words = ["strace", "-qq", "-y", "-s", "48", "-e", "signal=none", "-o", os.fspath(log)]
        if call is None or fault != "killed":
            # Stops at the calls of interest only, which is faster; but then strace sends no signals
            words += ["-f", "--seccomp-bpf"]
        words += ["-e", "trace=" + ",".join((*OPENING, *MUTATING))]
        if call is not None:
            words += ["-e", f"inject={call.name}:{FAULTS[fault]}:when={call.number}"]
        done = subprocess.run(
            [*words, *self.words(action)],
            env=variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=LIMIT_S,
        )
        trace = log.read_text(errors="backslashreplace")
        is_killed = done.returncode == -9
        assert is_killed or done.stdout, done
        return Struck(
            is_killed=is_killed,
            is_hit=is_killed or "(INJECTED)" in trace,
            answer=json.loads(done.stdout) if done.stdout else {},
            calls=tuple(calls_of(trace)),
        )


def variables() -> dict[str, str]:
    """Return the environment of the program."""
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.fspath(LIBRARY)}


def make_archive(path: Path, shell: bytes = b"#!/bin/true\n") -> None:
    """Make an archive with one of each kind; its shell is an absolute link."""
    with tarfile.open(path, "w") as archive:
        for name in ("bin", "etc", "usr", "usr/lib", "usr/closed"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o555 if name == "usr/closed" else 0o755
            archive.addfile(entry)
        for name, content in {
            "bin/busybox": shell,
            "etc/release": path.stem.encode(),
            "usr/lib/large": b"x" * 200_000,
        }.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o755 if name.startswith("bin") else 0o644, len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, target, kind in (
            ("bin/sh", "/bin/busybox", tarfile.SYMTYPE),
            ("bin/cat", "busybox", tarfile.SYMTYPE),
            ("bin/true", "busybox", tarfile.SYMTYPE),
            ("bin/sleep", "busybox", tarfile.SYMTYPE),
            ("usr/lib/again", "usr/lib/large", tarfile.LNKTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            archive.addfile(entry)


def problems_of(registry: Registry) -> list[str]:
    """Return what is wrong with a registry that nobody works on: everything that is listed must be whole."""
    found = []
    ready = registry.list()
    for rootfs in ready:
        try:
            verify(rootfs)
        except RootfsError as error:
            found.append(f"listed, but: {error}")
    found += [f"damaged: {name}: {why}" for name, why in registry.damaged()]
    current = registry.current()
    if current is not None and current not in ready:
        found.append(f"current is {current.name}")
    return found
