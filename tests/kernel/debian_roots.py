# SPDX-License-Identifier: Apache-2.0
"""A Debian rootfs that is really built from packages, once: it is kept between runs as long as the code is the same.

The packages that were fetched are kept in any case. All of it lies in the cache directory of the tests.
"""

import fcntl
import hashlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import CACHE
from tests.figures import record_figure
from unspill.model.rootfs import Installed, Progress, Rootfs, RootfsSpec
from unspill.rootfs import debian
from unspill.rootfs.build import prepare
from unspill.rootfs.debian import DEFAULT_SUITE, DebianSource
from unspill.rootfs.registry import Registry
from unspill.rootfs.source import BuildContext

TOP = CACHE / "debian"
SPEC = RootfsSpec(source="debian", packages=("git", "gcc", "libc6-dev"))


@dataclass(frozen=True)
class Workshop:
    """A directory in which rootfs are built; `downloads` has the packages of the last one."""

    registry: Registry
    rootfs: Rootfs

    @property
    def downloads(self) -> Path:
        return TOP / "rootfs" / "downloads"


def no_install(_tree: bytes, _argv: Sequence[bytes], _hosts: Sequence[str]) -> Installed:
    raise AssertionError("packages of Debian are not installed this way")


def means_below(top: Path, downloads: Path | None = None) -> BuildContext:
    """Return the means of a source, below a directory of a test."""
    scratch = top / "scratch"
    scratch.mkdir(parents=True)
    if downloads is None:
        downloads = top / "downloads"
        downloads.mkdir()
    return BuildContext(downloads=bytes(downloads), scratch=bytes(scratch), install=no_install, report=ignore)


def ignore(_progress: Progress) -> None:
    """Take a report and do nothing."""


def reachable_spec() -> RootfsSpec:
    """Return the spec with the archives that this machine installs from: Debian's servers may be out of reach."""
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    listed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    # A machine can have archives of other projects too
    lines = [line for line in listed if line.rpartition(" ")[2].startswith(DEFAULT_SUITE)]
    return SPEC.replace(mirror=" ".join(lines))


@pytest.fixture(scope="session")
def workshop(full: bool) -> Workshop:
    """A rootfs with Python, git and gcc, ready."""
    TOP.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = TOP / "stamp"
    with _locked(TOP / "lock"):
        registry = Registry(bytes(TOP / "rootfs"))
        if full or not stamp.exists() or stamp.read_text() != _code():
            for old in registry.list():
                registry.remove(old.name, force=True)
        begun = time.monotonic()
        is_new = not registry.list()
        rootfs = prepare(registry, reachable_spec(), DebianSource(), install=no_install, report=ignore)
        if is_new:
            note = "tier 1 with git and gcc, packages fetched before if they were the same"
            record_figure("rootfs: building Debian", f"{time.monotonic() - begun:.0f} s", note)
        stamp.write_text(_code())
        return Workshop(registry, rootfs)


def _code() -> str:
    """Return what stands for the code that builds: a rootfs that other code built proves nothing."""
    here = Path(debian.__file__).parent
    parts = [path.read_bytes() for path in sorted(here.glob("debian*.py"))]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
