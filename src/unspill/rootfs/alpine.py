# SPDX-License-Identifier: Apache-2.0
"""Alpine: the mini root file system of a mirror, and the packages of a tier, installed inside by its own apk.

apk checks the signature of each package by the keys of the archive, so the archive's digest vouches for all of it.
Nothing of it runs outside the sandbox that `Means.install` makes.
"""

from __future__ import annotations

import hashlib
import os
import urllib.parse

from unspill.errors import RootfsError, RootfsUnverified
from unspill.model.rootfs import Progress, RootfsKey
from unspill.policy.rootfs_wish import find_wrong
from unspill.rootfs.alpine_releases import (
    MIRROR,
    branch_of,
    file_name,
    get_checksum,
    get_latest_version,
    is_version,
    releases_address,
)
from unspill.rootfs.alpine_tree import (
    check_complete,
    check_release,
    make_top,
    open_tree,
    read_packages,
    write_repositories,
)
from unspill.rootfs.arch import wished_arch
from unspill.rootfs.download import fetch
from unspill.rootfs.known import known_digest
from unspill.rootfs.source import Filled, Resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.rootfs import Installed, Proof, RootfsWish
    from unspill.rootfs.source import Means

TIER1_PACKAGES = ("bash", "python3", "py3-pip", "coreutils", "grep", "sed")
TIER2_PACKAGES = ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm")

_MOST_BYTES = 256 << 20
_REPOSITORIES = ("main", "community")
_PORTS = {"http": 80, "https": 443}
_SHOWN_LINES = 12


class AlpineSource:
    """The source `alpine`."""

    def resolve(self, wish: RootfsWish, means: Means) -> Resolved:
        """Return which Alpine a wish means; where it names no version, the newest of the mirror.

        Raises:
            RootfsUnreachable: the mirror does not answer.
            RootfsUnverified: what it says is not what was pinned, or not what our release knows.
            RootfsError: the wish can't be met.
        """
        if wrong := find_wrong(wish):
            raise RootfsError(f"`{wrong[0]}` {wrong[1]}.", remedy="Correct the wish for the rootfs.")
        arch = wished_arch(wish.arch)
        mirror = mirror_of(wish)
        host_of(mirror)
        version, said = wish.version, ""
        if not version:
            means.report(Progress(step="asking for the newest version"))
            latest = get_latest_version(mirror, arch)
            version, said = latest.version, latest.sha256
        elif not is_version(version):
            raise RootfsError(f"{version!a} is no version of Alpine.", remedy="Give one such as 3.23.3, or none.")
        sha256, proof = _expected(wish, version, arch, said)
        name = file_name(version, arch)
        return Resolved(
            key=RootfsKey(
                source="alpine", version=version, arch=arch, tier=wish.tier, variant=variant_of(wish.packages)
            ),
            wish=wish,
            fetch=f"{releases_address(mirror, branch_of(version), arch)}/{name}",
            sha256=sha256,
            proof=proof,
        )

    def fill(self, resolved: Resolved, tree: bytes, means: Means) -> Filled:
        """Fetch the archive, unpack it and install the packages.

        Raises:
            RootfsUnreachable: the mirror does not answer.
            RootfsUnverified: the archive is not the one that was resolved.
            RootfsUnsafe: it would write where it must not.
            RootfsError: a package can't be installed.
        """
        from unspill.rootfs.unpack import unpack

        wish, key = resolved.wish, resolved.key
        fetched = fetch(
            resolved.fetch, means.downloads, sha256=resolved.sha256, most_bytes=_MOST_BYTES, report=means.report
        )
        means.report(Progress(step="unpacking"))
        unpacked = unpack(fetched.path, tree)
        mirror = mirror_of(wish)
        packages = packages_of(wish)
        fd = open_tree(tree)
        try:
            check_release(fd, key.version)
            make_top(fd)
            write_repositories(fd, (f"{mirror}/{branch_of(key.version)}/{name}" for name in _REPOSITORIES))
            means.report(Progress(step="installing packages", total=len(packages), unit="package"))
            _check_installed(_install(tree, packages, mirror, means), mirror)
            check_complete(fd)
            installed = read_packages(fd)
        finally:
            os.close(fd)
        name = resolved.fetch.rpartition("/")[2]
        return Filled(
            proof=resolved.proof, packages=installed, fetched=((name, fetched.sha256),), left_out=unpacked.left_out
        )


def mirror_of(wish: RootfsWish) -> str:
    """Return the address that everything of a wish comes from, without a slash at its end."""
    return (wish.mirror or MIRROR).rstrip("/")


def packages_of(wish: RootfsWish) -> tuple[str, ...]:
    """Return the packages of the tier, and those that the wish has besides."""
    tier = TIER1_PACKAGES if wish.tier == 1 else (*TIER1_PACKAGES, *TIER2_PACKAGES)
    return tuple(dict.fromkeys((*tier, *wish.packages)))


def variant_of(packages: tuple[str, ...]) -> str:
    """Return what is short for packages beyond the tier's, whatever their order; nothing for none."""
    if not packages:
        return ""
    return "p" + hashlib.sha256("\n".join(sorted(set(packages))).encode()).hexdigest()[:10]


def host_of(address: str) -> str:
    """Return the host and the port of an address, as a rule of the proxy has them.

    Raises:
        RootfsError: the address has none.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        host, port = "", 0
    if not host:
        raise RootfsError(f"{address!a} is no address of a mirror.", remedy="Give one that begins with https://")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _expected(wish: RootfsWish, version: str, arch: str, said: str) -> tuple[str, Proof]:
    """Return the digest that the archive must have, and what speaks for it; `said` is what the mirror's index says."""
    known = known_digest("alpine", version, arch)
    proof: Proof = "pinned" if wish.sha256 else "known" if known else "same-server"
    expected = wish.sha256 or known or said or get_checksum(mirror_of(wish), version, arch)
    if said and said != expected:
        which = "the one that you pinned" if wish.sha256 else "the one that our release knows"
        raise RootfsUnverified(
            f"The mirror says that Alpine {version} for {arch} has the SHA-256 {said}; {which} is {expected}.",
            remedy="Name the version that you pinned (`version`)." if wish.sha256 else "Use another mirror.",
        )
    return expected, proof


def _install(tree: bytes, packages: tuple[str, ...], mirror: str, means: Means) -> Installed:
    # What stands behind the two dashes is no option; no option takes the check of signatures away
    words = [b"/sbin/apk", b"add", b"--no-cache", b"--", *(package.encode("ascii") for package in packages)]
    return means.install(tree, words, [host_of(mirror)])


def _check_installed(installed: Installed, mirror: str) -> None:
    if installed.ok:
        return
    last = "; ".join(line.strip() for line in installed.output.strip().splitlines()[-_SHOWN_LINES:])
    raise RootfsError(
        f"The packages can't be installed from {mirror}: {last}" if last else "The packages can't be installed.",
        remedy="Check that the mirror has this version's packages, then try again; nothing half-built is used.",
    )
