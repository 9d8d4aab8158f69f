# SPDX-License-Identifier: Apache-2.0
"""Debian, built from the distribution's own signed packages by an ordinary user with subordinate ids.

First apt fetches, as the caller and without running anything of a package; it checks Debian's signatures. Then
`mmdebstrap` installs, without network and without sight of the caller's files (see `debian_build`). What it made is
unpacked like any archive: all files are the caller's, without devices and without bits that give rights away.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsError, RootfsUnverified
from unspill.model.rootfs import Progress, RootfsKey
from unspill.rootfs.arch import DEBIAN_NAMES, detect_arch, wished_arch
from unspill.rootfs.debian_apt import Apt
from unspill.rootfs.debian_build import build
from unspill.rootfs.debian_host import check_host
from unspill.rootfs.debian_mirror import lay_mirror, read_releases
from unspill.rootfs.debian_names import archives_of, checked_suite, packages_of, sources_list, variant_of
from unspill.rootfs.debian_sources import default_archives
from unspill.rootfs.debian_status import installed_packages
from unspill.rootfs.source import Filled, Resolved
from unspill.rootfs.unpack import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.rootfs import RootfsWish
    from unspill.rootfs.debian_mirror import Releases
    from unspill.rootfs.source import Means

# They end in apt's configuration and in its command line
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@:,")


class DebianSource:
    """Debian's packages. The version to wish for is a suite; `wish.mirror` can name other archives than Debian's."""

    def resolve(self, wish: RootfsWish, means: Means) -> Resolved:
        """Return which rootfs a wish means: its version is the suite, and when its archives last changed.

        Raises:
            RootfsError: a name in it can't be one, this machine can't build or run such a rootfs, or an archive can't
                be reached or trusted.
        """
        suite = checked_suite(wish.version)
        packages_of(wish.tier, wish.packages)
        if wish.sha256 or wish.location:
            raise RootfsError(
                "a Debian rootfs is made of many packages: it has no location, and no digest to pin",
                remedy="Debian's signatures speak for them; to pin one, make an archive of it and use that.",
            )
        arch = _arch(wish.arch)
        check_host()
        with _open_apt(suite, arch, wish, means) as apt:
            apt.update()
            version = _version(suite, read_releases(apt))
        key = RootfsKey(source="debian", version=version, arch=arch, tier=wish.tier, variant=variant_of(wish.packages))
        return Resolved(key=key, wish=wish, proof="signed")

    def fill(self, resolved: Resolved, tree: bytes, means: Means) -> Filled:
        """Fetch packages, build, and unpack what was built.

        Raises:
            RootfsError: an archive can't be reached or trusted, a package is unknown, or its installation fails.
        """
        key, wish = resolved.key, resolved.wish
        suite = checked_suite(wish.version)
        packages = packages_of(key.tier, wish.packages)
        with _open_apt(suite, key.arch, wish, means) as apt:
            releases = _up_to_date(apt, suite, key.version)
            lay_mirror(os.path.join(means.scratch, b"mirror"), apt, key.arch, apt.fetch(packages))
            apt.forget_old()
        tar = build(means.scratch, suite, key.arch, packages, apt.archives, epoch=releases.epoch, report=means.report)
        means.report(Progress(step="unpacking"))
        unpacked = unpack(tar, tree)
        os.unlink(tar)
        return Filled(
            proof="signed", packages=installed_packages(tree), fetched=releases.digests, left_out=unpacked.left_out
        )


def _open_apt(suite: str, arch: str, wish: RootfsWish, means: Means) -> Apt:
    """Return apt over the directory in which what these archives have is kept."""
    from hashlib import sha256

    if not _PLAIN.issuperset(means.scratch + means.downloads):
        raise RootfsError(
            f"apt can't work below {os.fsdecode(means.downloads)!a}",
            remedy="Choose a rootfs directory whose path has letters, digits and . - _ + only.",
        )
    archives = archives_of(wish.mirror, suite) if wish.mirror.strip() else default_archives(suite)
    name = f"debian-{arch}-{sha256(sources_list(archives).encode()).hexdigest()[:12]}"
    return Apt(os.path.join(means.downloads, name.encode()), suite, arch, archives, means.report)


def _up_to_date(apt: Apt, suite: str, version: str) -> Releases:
    """Return what the lists are that apt has; they are fetched again if they are not those of the version.

    Raises:
        RootfsError: the archive has another version by now: its content would get the name of the older one.
    """
    try:
        releases = read_releases(apt)
    except RootfsUnverified:
        releases = None
    if releases is None or _version(suite, releases) != version:
        apt.update()
        releases = read_releases(apt)
        if (found := _version(suite, releases)) != version:
            raise RootfsError(
                f"the archive of Debian changed meanwhile: it had {version}, and has {found} now",
                remedy="Try again; what was fetched already is kept.",
            )
    return releases


def _version(suite: str, releases: Releases) -> str:
    import time

    return time.strftime(f"{suite}.%Y%m%d.%H%M", time.gmtime(releases.epoch))


def _arch(wish: str) -> str:
    ours, here = wished_arch(wish), detect_arch()
    if ours != here and (ours, here) != ("x86", "x86_64"):
        raise RootfsError(
            f"a Debian rootfs for {ours} can't be built on {here}: its programs run during the installation",
            remedy=f"Build it on a machine of that kind; an archive of the result can be used here for {here} only.",
        )
    return DEBIAN_NAMES[ours]
