# SPDX-License-Identifier: Apache-2.0
"""What a mirror of Alpine's layout serves, made of what a Debian has: a static busybox, musl, bash and python3.

Nothing here is Alpine's own. What is big is made once and kept in the cache of the tests, under a digest of what it is
made of.
"""

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import CACHE

BUSYBOX = Path("/bin/busybox")
MUSL = Path("/lib/x86_64-linux-musl/libc.so")
BASH = Path("/bin/bash")
PYTHON = Path("/usr/bin/python3")
APK = Path(__file__).with_name("alpine_apk.sh")
ARCH = os.uname().machine

_DIRECTORIES = """
bin dev etc etc/apk etc/apk/keys home lib lib/apk lib/apk/db lib64 media mnt opt proc root run sbin srv sys tmp
usr usr/bin usr/lib usr/local usr/sbin usr/share var var/cache var/lib var/log
""".split()
_APPLETS = """
ash awk base64 basename cat chgrp chmod chown cp cut date dd df dirname du echo env expr false find grep gunzip gzip
head hostname id kill ln ls mkdir mkfifo mknod mktemp mv nc od printf ps pwd readlink realpath rm rmdir sed seq setsid
sh sha256sum sleep sort stat sync tail tar tee test timeout touch tr true truncate uname wc wget which whoami xargs
""".split()
_MODULES = "json, os, re, shutil, socket, subprocess, sysconfig, tempfile, threading, typing"


@dataclass(frozen=True)
class Entry:
    """A file of an archive, or a directory, or a link if it has a target."""

    path: str
    content: bytes = b""
    mode: int = 0o755
    target: str = ""
    is_directory: bool = False


@dataclass(frozen=True)
class Package:
    """One package of a mirror."""

    name: str
    version: str = "1.0-r0"
    entries: tuple[Entry, ...] = ()
    post_install: str = "true\n"
    needs: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.apk"


def pack(entries: Iterable[Entry], *, level: int = 1) -> bytes:
    """Return a tar.gz in which everything is root's."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            member = tarfile.TarInfo(entry.path)
            member.mode, member.mtime = entry.mode, 1_700_000_000
            if entry.is_directory:
                member.type = tarfile.DIRTYPE
            elif entry.target:
                member.type, member.linkname = tarfile.SYMTYPE, entry.target
            member.size = len(entry.content)
            archive.addfile(member, io.BytesIO(entry.content))
    return gzip.compress(raw.getvalue(), level, mtime=0)


def pack_package(package: Package) -> bytes:
    """Return a package as the stand-in of apk unpacks it."""
    about = f"pkgname = {package.name}\npkgver = {package.version}\narch = {ARCH}\n"
    return pack(
        [
            Entry(".PKGINFO", about.encode(), 0o644),
            Entry(".post-install", package.post_install.encode()),
            Entry("data.tar.gz", pack(package.entries), 0o644),
        ],
        level=0,
    )


def pack_index(packages: Sequence[tuple[Package, bytes]]) -> bytes:
    """Return an index of packages, with the digest of each."""
    lines = []
    for package, content in packages:
        digest = hashlib.sha256(content).hexdigest()
        lines.append(
            f"C:{digest}\nP:{package.name}\nV:{package.version}\nA:{ARCH}\nS:{len(content)}\n"
            f"D:{' '.join(package.needs)}\n\n"
        )
    return pack([Entry("APKINDEX", "".join(lines).encode(), 0o644)])


def minirootfs(version: str, extra: Iterable[Entry] = ()) -> bytes:
    """Return what stands in for a mini root file system: `extra` takes the place of what has the same path."""
    entries = {path: Entry(path, is_directory=True) for path in _DIRECTORIES}
    entries["tmp"] = Entry("tmp", mode=0o1777, is_directory=True)
    files = [
        Entry("bin/busybox", BUSYBOX.read_bytes()),
        Entry("lib/ld-musl-x86_64.so.1", MUSL.read_bytes()),
        # Absolute, as Alpine's are: on the host they would lead to the host's files
        *(Entry(f"bin/{name}", target="/bin/busybox") for name in _APPLETS),
        Entry("sbin/apk", APK.read_bytes()),
        Entry("etc/alpine-release", f"{version}\n".encode(), 0o644),
        Entry("etc/apk/arch", f"{ARCH}\n".encode(), 0o644),
        Entry("etc/apk/repositories", b"https://example.org/alpine/main\n", 0o644),
        Entry("etc/apk/keys/fixture.rsa.pub", b"not a key\n", 0o644),
        Entry("etc/apk/world", b"", 0o644),
        Entry("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644),
        Entry("etc/group", b"root:x:0:root\n", 0o644),
        Entry("lib/apk/db/installed", b"P:busybox\nV:1.0-r0\n\nP:musl\nV:1.2-r0\n\n", 0o644),
    ]
    entries |= {entry.path: entry for entry in (*files, *extra)}
    return pack(entries.values())


def tiny(name: str, *, post_install: str = "true\n", needs: tuple[str, ...] = ()) -> Package:
    """Return a package with a single small file."""
    note = Entry(f"usr/share/fixture-{name}", f"{name}\n".encode(), 0o644)
    return Package(name, entries=(note,), post_install=post_install, needs=needs)


def big_packages() -> dict[str, tuple[Package, bytes]]:
    """Return the host's bash and python3 as packages, each with its content, and the libraries that they need."""
    made = (
        Package("host-libs", entries=_libraries()),
        Package("bash", "5.2-r0", (Entry("bin/bash", BASH.read_bytes()),), needs=("host-libs",)),
        Package("python3", "3.11-r0", _python(), needs=("host-libs",)),
    )
    return {package.name: (package, _cached(package)) for package in made}


def _cached(package: Package) -> bytes:
    digest = hashlib.sha256(repr(package).encode() + Path(__file__).read_bytes()).hexdigest()
    kept = CACHE / "alpine" / f"{package.name}-{digest[:32]}.apk"
    try:
        return kept.read_bytes()
    except FileNotFoundError:
        pass
    content = pack_package(package)
    kept.parent.mkdir(parents=True, exist_ok=True)
    half = kept.with_suffix(f".{os.getpid()}")
    half.write_bytes(content)
    half.rename(kept)
    return content


def _libraries() -> tuple[Entry, ...]:
    paths = {path for program in (BASH, PYTHON) for path in _needed_by(program)}
    return tuple(Entry(path.lstrip("/"), Path(path).read_bytes()) for path in sorted(paths))


def _needed_by(program: Path) -> list[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in said.splitlines()]
    return [next(word for word in line if word.startswith("/")) for line in words if any("/" in word for word in line)]


def _python() -> tuple[Entry, ...]:
    """Return python3 and as much of its library as a few imports take."""
    asked = (
        f"import {_MODULES}; import sys; print(*(getattr(m, '__file__', '') or '' for m in [*sys.modules.values()]))"
    )
    said = subprocess.run([PYTHON, "-I", "-c", asked], capture_output=True, text=True, check=True).stdout
    real = PYTHON.resolve()
    library = f"/usr/lib/{real.name}/"
    files = sorted({path for path in said.split() if path.startswith(library) and path.endswith(".py")})
    return (
        Entry(f"usr/bin/{real.name}", real.read_bytes()),
        Entry("usr/bin/python3", target=real.name),
        *(Entry(path.lstrip("/"), Path(path).read_bytes(), 0o644) for path in files),
        Entry(f"{library.strip('/')}/lib-dynload", is_directory=True),
    )
