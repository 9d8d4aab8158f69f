# SPDX-License-Identifier: Apache-2.0
"""A mirror of Alpine's layout on loopback: a real server, whose files a test can add to, spoil or withhold.

Serves over plain http, as its address says. It listens on an address that is not public, which a sandbox reaches only
because it is the very one that the person named.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

import pytest

from tests.kernel.alpine_parts import (
    ARCH,
    Entry,
    Package,
    big_packages,
    minirootfs,
    pack_index,
    pack_package,
    tiny,
)
from unspill.rootfs.alpine import TIER1_PACKAGES, TIER2_PACKAGES

# Not one that our release knows a digest of
VERSION = "3.99.1"
NEWER = "3.99.2"

# Tells who installs it, and what is in its environment
TELLING = "{ id -u; id -g; env; } >/var/log/installer\n"


@dataclass
class Mirror:
    """What the server has, by path; what it does instead, by path; and what it was asked for."""

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    packages: dict[str, tuple[Package, bytes]] = field(default_factory=dict)
    branch: str = "v3.99"

    @property
    def address(self) -> str:
        """What a person writes as the mirror."""
        return f"http://127.0.0.1:{self.port}/alpine"

    def publish(self, version: str, *, archive: bytes | None = None, extra: Iterable[Entry] = ()) -> str:
        """Make a version the newest one, and return the digest of its archive."""
        content = plain_minirootfs(version) if archive is None and not extra else archive or minirootfs(version, extra)
        digest = hashlib.sha256(content).hexdigest()
        name = f"alpine-minirootfs-{version}-{ARCH}.tar.gz"
        branch = "v" + ".".join(version.split(".")[:2])
        for place in (branch, "latest-stable"):
            directory = f"/alpine/{place}/releases/{ARCH}"
            self.files[f"{directory}/{name}"] = content
            self.files[f"{directory}/{name}.sha256"] = f"{digest}  {name}\n".encode()
            self.files[f"{directory}/latest-releases.yaml"] = releases_yaml(version, name, digest).encode()
        self.branch = branch
        self.index()
        return digest

    def add(self, *packages: Package) -> None:
        """Add packages, or put others in the place of those with the same names."""
        self.packages |= {package.name: (package, pack_package(package)) for package in packages}
        self.index()

    def index(self) -> None:
        """Serve the packages of the branch, and an empty second repository."""
        directory = f"/alpine/{self.branch}"
        for package, content in self.packages.values():
            self.files[f"{directory}/main/{ARCH}/{package.file}"] = content
        self.files[f"{directory}/main/{ARCH}/APKINDEX.tar.gz"] = pack_index(list(self.packages.values()))
        self.files[f"{directory}/community/{ARCH}/APKINDEX.tar.gz"] = pack_index([])

    def path_of(self, name: str) -> str:
        """Return the path of a package."""
        return f"/alpine/{self.branch}/main/{ARCH}/{self.packages[name][0].file}"


Served = TypeVar("Served", bound=Mirror)


@cache
def plain_minirootfs(version: str) -> bytes:
    """Return the mini root file system of a version, made once for all tests."""
    return minirootfs(version)


@cache
def small_packages() -> dict[str, tuple[Package, bytes]]:
    """Return the packages of both tiers, of which there is little more than the names."""
    names = (*TIER1_PACKAGES, *TIER2_PACKAGES)
    small = {name: tiny(name, post_install=TELLING if name == "coreutils" else "true\n") for name in names}
    for name, path in (("bash", "bin/bash"), ("python3", "usr/bin/python3")):
        small[name] = Package(name, entries=(Entry(path, b"#!/bin/sh\n"),))
    return {name: (package, pack_package(package)) for name, package in small.items()}


@cache
def real_packages() -> dict[str, tuple[Package, bytes]]:
    """Return the packages of both tiers; bash and python3 are the host's."""
    return small_packages() | big_packages()


def releases_yaml(version: str, name: str, digest: str, flavor: str = "alpine-minirootfs") -> str:
    """Return an index of releases in the form of Alpine's."""
    return f"""---
-
  title: "Standard"
  desc: |
    Alpine as it was intended.
    Just enough to get you started.
  branch: v3.99
  arch: {ARCH}
  version: {version}
  flavor: alpine-standard
  file: alpine-standard-{version}-{ARCH}.iso
  iso: alpine-standard-{version}-{ARCH}.iso
  date: 2026-11-01
  sha256: {"0" * 64}
-
  title: "Mini root filesystem"
  desc: |
    Minimal root filesystem.
    For use in containers
    and minimal chroots.
  branch: v3.99
  arch: {ARCH}
  version: {version}
  flavor: {flavor}
  file: {name}
  iso: {name}
  date: 2026-11-01
  time: 12:00:00
  size: 3700000
  sha256: {digest}
  sha512: {"0" * 128}
"""


@contextmanager
def serve_mirror(packages: Mapping[str, tuple[Package, bytes]] | None = None) -> Iterator[Mirror]:
    """Serve a mirror on loopback that has an Alpine and these packages; without packages it has nothing."""
    with serving(Mirror()) as mirror:
        if packages is not None:
            mirror.packages = dict(packages)
            mirror.publish(VERSION)
        yield mirror


@contextmanager
def serving(mirror: Served) -> Iterator[Served]:
    """Serve a mirror on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(mirror))
    mirror.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield mirror
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def alpine_mirror() -> Iterator[Mirror]:
    """A mirror of one test, whose bash and python3 are too small to be of use."""
    with serve_mirror(small_packages()) as served:
        yield served


def _handler(mirror: Mirror) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers from the files of one mirror."""

        def do_GET(self) -> None:
            path = self.path
            mirror.asked.append(path)
            content = mirror.files.get(path)
            status = mirror.answers.get(path, 200 if content is not None else 404)
            if status != 200 or content is None:
                self.send_error(status)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: mirror.cut.get(path, len(content))])

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    return Handler
