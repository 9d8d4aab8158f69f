# SPDX-License-Identifier: Apache-2.0
"""Packages in the very form that Alpine's apk reads (version 2), signed with a key of our own.

A package is three gzip streams one after the other: a signature of the second, what it is, and its files.
"""

import base64
import gzip
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.kernel.alpine_mirror import Mirror
from tests.kernel.alpine_parts import ARCH, Entry, Package

_MTIME = 1_700_000_000


class Signer:
    """An RSA key under the name by which apk finds its public half in /etc/apk/keys."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name, self._private = name, directory / name
        subprocess.run(["openssl", "genrsa", "-out", self._private, "2048"], capture_output=True, check=True)
        words: list[str | Path] = ["openssl", "rsa", "-in", self._private, "-pubout"]
        self.public = subprocess.run(words, capture_output=True, check=True).stdout

    def signed(self, stream: bytes) -> bytes:
        """Return a stream after one that has its signature."""
        words: list[str | Path] = ["openssl", "dgst", "-sha1", "-sign", self._private]
        signature = subprocess.run(words, input=stream, capture_output=True, check=True).stdout
        return _streamed([Entry(f".SIGN.RSA.{self.name}.rsa.pub", signature, 0o644)], is_last=False) + stream

    def key_entry(self) -> Entry:
        """Return the file by which an archive trusts this key."""
        return Entry(f"etc/apk/keys/{self.name}.rsa.pub", self.public, 0o644)


def pack_signed(package: Package, signer: Signer) -> tuple[bytes, str]:
    """Return a package, and its identity as the index has it."""
    data = _streamed(_with_parents(package.entries), is_last=True, has_checksums=True)
    about = {
        "pkgname": package.name,
        "pkgver": package.version,
        "pkgdesc": "a fixture",
        "url": "https://example.org/",
        "size": str(sum(len(entry.content) for entry in package.entries)),
        "arch": ARCH,
        "license": "Apache-2.0",
        "origin": package.name,
        "datahash": hashlib.sha256(data).hexdigest(),
    }
    lines = [f"{name} = {value}\n" for name, value in about.items()] + [f"depend = {name}\n" for name in package.needs]
    script = "#!/bin/sh\n" + package.post_install
    control = _streamed(
        [Entry(".PKGINFO", "".join(lines).encode(), 0o644), Entry(".post-install", script.encode())], is_last=False
    )
    identity = "Q1" + base64.b64encode(hashlib.sha1(control, usedforsecurity=False).digest()).decode()
    return signer.signed(control) + data, identity


def pack_signed_index(packages: Sequence[tuple[Package, bytes, str]], signer: Signer) -> bytes:
    """Return an index of packages."""
    about = "".join(
        f"C:{identity}\nP:{package.name}\nV:{package.version}\nA:{ARCH}\nS:{len(content)}\nI:4096\nT:a fixture\n"
        f"U:https://example.org/\nL:Apache-2.0\no:{package.name}\n"
        + (f"D:{' '.join(package.needs)}\n\n" if package.needs else "\n")
        for package, content, identity in packages
    )
    entries = [Entry("DESCRIPTION", b"fixture", 0o644), Entry("APKINDEX", about.encode(), 0o644)]
    return signer.signed(_streamed(entries, is_last=True))


def with_entry(archive: bytes, added: Entry) -> bytes:
    """Return a tar.gz with one file more."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=made, mode="w:gz", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in old:
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
        member = tarfile.TarInfo(added.path)
        member.size, member.mode = len(added.content), added.mode
        new.addfile(member, io.BytesIO(added.content))
    return made.getvalue()


def version_of(archive: bytes) -> str:
    """Return the version that a mini root file system says it is."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = next(member for member in opened if member.name.removeprefix("./") == "etc/alpine-release")
        file = opened.extractfile(found)
        assert file is not None
        return file.read().decode().strip()


@dataclass
class SignedMirror(Mirror):
    """A mirror whose packages are signed, as apk itself wants them."""

    signer: Signer | None = None
    made: dict[str, tuple[Package, bytes, str]] = field(default_factory=dict)

    def offer(self, packages: Iterable[Package]) -> None:
        """Have these packages, signed."""
        assert self.signer is not None
        self.made |= {package.name: (package, *pack_signed(package, self.signer)) for package in packages}

    def index(self) -> None:
        """Serve the packages of the branch, and an empty second repository."""
        assert self.signer is not None
        directory = f"/alpine/{self.branch}"
        for package, content, _identity in self.made.values():
            self.files[f"{directory}/main/{ARCH}/{package.file}"] = content
        main, other = f"{directory}/main/{ARCH}/APKINDEX.tar.gz", f"{directory}/community/{ARCH}/APKINDEX.tar.gz"
        self.files[main] = pack_signed_index(list(self.made.values()), self.signer)
        self.files[other] = pack_signed_index([], self.signer)


def _with_parents(entries: Iterable[Entry]) -> list[Entry]:
    every = {entry.path: entry for entry in entries}
    parents = {str(parent) for path in every for parent in PurePosixPath(path).parents} - {"."}
    made = {path: Entry(path, is_directory=True) for path in parents - set(every)}
    return sorted((*every.values(), *made.values()), key=lambda entry: entry.path)


def _streamed(entries: Iterable[Entry], *, is_last: bool, has_checksums: bool = False) -> bytes:
    """Return a gzip stream of a tar; one that others follow does not say that it ends."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            member = tarfile.TarInfo(entry.path)
            member.mode, member.mtime, member.size = entry.mode, _MTIME, len(entry.content)
            member.uname = member.gname = "root"
            if entry.is_directory:
                member.type = tarfile.DIRTYPE
            elif entry.target:
                member.type, member.linkname = tarfile.SYMTYPE, entry.target
            if has_checksums and not entry.is_directory:
                content = entry.target.encode() or entry.content
                checksum = hashlib.sha1(content, usedforsecurity=False).hexdigest()
                member.pax_headers = {"APK-TOOLS.checksum.SHA1": checksum}
            archive.addfile(member, io.BytesIO(entry.content))
        end = archive.offset
    return gzip.compress(raw.getvalue() if is_last else raw.getvalue()[:end], 6, mtime=0)
