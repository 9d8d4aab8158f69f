# SPDX-License-Identifier: Apache-2.0
"""Alpine: the mini root file system of a mirror, and the packages of a tier, installed inside by its own apk.

apk checks the signature of each package by the keys of the archive, so the archive's digest vouches for all of it.
Nothing of it runs outside the sandbox that `BuildContext.install` makes. What a mirror says of its releases is no
proof; the tree is somebody else's work, so names in it are looked up by descriptor, as if the tree were the root.
"""

from __future__ import annotations

import os
import stat
import urllib.parse

from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.host.dirfd import find_inside, resolve_inside
from unspill.model.rootfs import Progress, RootfsKey
from unspill.policy.config import find_wrong_field
from unspill.record import Record
from unspill.rootfs.download import fetch, read_text
from unspill.rootfs.source import Filled, Resolved, arch_of, variant_of
from unspill.rootfs.tar import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.model.rootfs import Installed, Proof, RootfsSpec
    from unspill.rootfs.source import BuildContext

MIRROR = "https://dl-cdn.alpinelinux.org/alpine"
ALPINE_BRANCH = "latest-stable"
FLAVOR = "alpine-minirootfs"
_INDEX_BYTES = 1 << 20
_CHECKSUM_BYTES = 4096
_LONGEST_VERSION = 32
_DIGITS = "0123456789"
_KEY = "abcdefghijklmnopqrstuvwxyz_" + _DIGITS
_READ = ("arch", "flavor", "version", "file", "sha256")
# What packages may want to write to: nothing can be made at the top while they are installed
TOP = b"bin etc home lib media mnt opt root sbin srv usr var".split()
_NEEDED = (b"/bin/sh", b"/bin/bash", b"/usr/bin/python3")
# The second is where Alpine keeps it since its /lib is a link
_DATABASES = (b"/lib/apk/db/installed", b"/usr/lib/apk/db/installed")
_MOST_RELEASE = 256
_MOST_DATABASE = 64 << 20
_MOST_PACKAGES = 20_000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# One that is a FIFO must not be waited for
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# (source, version, architecture): SHA-256 of what is fetched
KNOWN = {
    ("alpine", "3.20.3", "aarch64"): "041fa34a81788242df9e78fa69b97ab45b8ec47ddbf88864755610414a7bf3de",
    ("alpine", "3.20.3", "x86_64"): "d4e6fd67dcf75e40c451560ac7265166c2b72a0f38ddc9aae756a7de3d1efa0c",
    ("alpine", "3.20.10", "aarch64"): "61ac877fdbcee6914731bc22a4ed5668ea3470f201f97a7078931c48b71bbeec",
    ("alpine", "3.20.10", "x86_64"): "0d44a414245f043ae56872a23762e6c9bee585da2cbe4aa81cbd0331eaf53223",
    ("alpine", "3.21.3", "aarch64"): "ead8a4b37867bd19e7417dd078748e2312c0aea364403d96758d63ea8ff261ea",
    ("alpine", "3.21.3", "x86_64"): "1a694899e406ce55d32334c47ac0b2efb6c06d7e878102d1840892ad44cd5239",
    ("alpine", "3.22.1", "x86_64"): "0e5cc5702ad72a4e151f219976ba946d50161c3acce210ef3b122a529aba1270",
    ("alpine", "3.22.5", "aarch64"): "3fbc6285032ed46821b511292633d7b2a6306a2e254f590e92bdafff56cf2f70",
    ("alpine", "3.22.5", "x86_64"): "4b4daa9fe2fc696c4919c4412a4c3d3e770d8fb70292a004a2c72f5096175282",
    ("alpine", "3.22.6", "aarch64"): "821565fa8f3953eefd12497b166b4b50add2f7c57fb312e75862f5867e06fefe",
    ("alpine", "3.22.6", "x86_64"): "27694aaa55fd7a9e3ef596e0ad4eb66802308bb20172b17030cd5f4d8ae9bac2",
    ("alpine", "3.23.2", "x86_64"): "b50bf42e519420ca2be48dd0efa22aa087c708d0602b67d413406533bef9dab5",
    ("alpine", "3.23.3", "aarch64"): "f219bb9d65febed9046951b19f2b893b331315740af32c47e39b38fcca4be543",
    ("alpine", "3.23.3", "x86_64"): "42d0e6d8de5521e7bf92e075e032b5690c1d948fa9775efa32a51a38b25460fb",
    ("alpine", "3.23.4", "aarch64"): "9250667a8affac8f1e98086392f80f43f086626701e9bce33398eb9b6c0bd64c",
    ("alpine", "3.23.4", "x86_64"): "85498865362aa7ebececa0d725a2f2e4db7ac4e4b2850b8df21645afa0d03ee3",
    ("alpine", "3.24.1", "aarch64"): "f55a90f69052c5bd6f92cb09a8f47065970830b194c917a006fb94028e721259",
    ("alpine", "3.24.1", "x86_64"): "41f73e3cf5fa919b8aa5ca6b30dc48f0da2720776d7423e2a7748211456fe081",
    ("alpine", "3.24.2", "aarch64"): "9bf70a7f18ea44094cbb5f70c58f9af129c8214745743db0e68e5502cc2ce773",
    ("alpine", "3.24.2", "x86_64"): "c5ca053cfe1d85c5b96dff8b9bc57045f7f184a30ffb6b65776409ca90388677",
}
TIER1_PACKAGES = ("bash", "python3", "py3-pip", "coreutils", "grep", "sed")
TIER2_PACKAGES = ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm")
_MOST_BYTES = 256 << 20
_REPOSITORIES = ("main", "community")
_PORTS = {"http": 80, "https": 443}
_SHOWN_LINES = 12


class AlpineSource:
    """The source `alpine`."""

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Return which Alpine a spec means; where it names no version, the newest of the mirror.

        Raises:
            RootfsUnreachable: the mirror does not answer.
            RootfsUnverified: what it says is not what was pinned, or not what our release knows.
            RootfsError: the spec can't be met.
        """
        if wrong := find_wrong_field(spec):
            raise RootfsError(f"`{wrong[0]}` {wrong[1]}.", remedy="Correct that field.")
        arch = arch_of(spec.arch)
        mirror = mirror_of(spec)
        host_of(mirror)
        version, said = spec.version, ""
        if not version:
            means.report(Progress(step="looking up the newest version"))
            latest = get_latest_version(mirror, arch)
            version, said = latest.version, latest.sha256
        elif not is_version(version):
            raise RootfsError(
                f"{version!a} is not an Alpine version.", remedy="Use one such as 3.23.3, or leave it out."
            )
        sha256, proof = _expected(spec, version, arch, said)
        name = file_name(version, arch)
        return Resolved(
            key=RootfsKey(
                source="alpine", version=version, arch=arch, tier=spec.tier, variant=variant_of(spec.packages)
            ),
            spec=spec,
            fetch=f"{releases_address(mirror, branch_of(version), arch)}/{name}",
            sha256=sha256,
            proof=proof,
        )

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Fetch the archive, unpack it and install the packages.

        Raises:
            RootfsUnreachable: the mirror does not answer.
            RootfsUnverified: the archive is not the one that was resolved.
            RootfsUnsafe: it would write where it must not.
            RootfsError: a package can't be installed.
        """
        spec, key = resolved.spec, resolved.key
        fetched = fetch(
            resolved.fetch, means.downloads, sha256=resolved.sha256, most_bytes=_MOST_BYTES, report=means.report
        )
        means.report(Progress(step="unpacking"))
        unpacked = unpack(fetched.path, tree)
        mirror = mirror_of(spec)
        packages = packages_of(spec)
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


def mirror_of(spec: RootfsSpec) -> str:
    """Return the address that everything of a spec comes from, without a slash at its end."""
    return (spec.mirror or MIRROR).rstrip("/")


def packages_of(spec: RootfsSpec) -> tuple[str, ...]:
    """Return the packages of the tier, and those that the spec has besides."""
    tier = TIER1_PACKAGES if spec.tier == 1 else (*TIER1_PACKAGES, *TIER2_PACKAGES)
    return tuple(dict.fromkeys((*tier, *spec.packages)))


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
        raise RootfsError(f"{address!a} is not a mirror's address.", remedy="Use one that begins with https://")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _expected(spec: RootfsSpec, version: str, arch: str, said: str) -> tuple[str, Proof]:
    """Return the digest that the archive must have, and what speaks for it; `said` is what the mirror's index says."""
    known = known_digest("alpine", version, arch)
    proof: Proof = "pinned" if spec.sha256 else "known" if known else "same-server"
    expected = spec.sha256 or known or said or get_checksum(mirror_of(spec), version, arch)
    if said and said != expected:
        which = "the one that you pinned" if spec.sha256 else "the one that this unspill release knows"
        raise RootfsUnverified(
            f"The mirror says that Alpine {version} for {arch} has the SHA-256 {said}, but {which} is {expected}.",
            remedy="Name the version you pinned (`version`)." if spec.sha256 else "Use another mirror.",
        )
    return expected, proof


def _install(tree: bytes, packages: tuple[str, ...], mirror: str, means: BuildContext) -> Installed:
    # What stands behind the two dashes is no option; no option takes the check of signatures away
    words = [b"/sbin/apk", b"add", b"--no-cache", b"--", *(package.encode("ascii") for package in packages)]
    return means.install(tree, words, [host_of(mirror)])


def _check_installed(installed: Installed, mirror: str) -> None:
    if installed.ok:
        return
    last = "; ".join(line.strip() for line in installed.output.strip().splitlines()[-_SHOWN_LINES:])
    raise RootfsError(
        f"The packages can't be installed from {mirror}: {last}" if last else "The packages can't be installed.",
        remedy="Check that the mirror has this version's packages, then try again. unspill uses nothing half-built.",
    )


def known_digest(source: str, version: str, arch: str) -> str:
    """Return the digest that our release has for a rootfs, nothing if it has none."""
    return KNOWN.get((source, version, arch), "")


class Release(Record):
    """One mini root file system on a mirror, as the mirror describes it."""

    version: str
    file: str
    sha256: str


def is_version(text: str) -> bool:
    """Tell whether a text is a version of Alpine: two numbers or more, between dots."""
    numbers = text.split(".")
    return len(text) <= _LONGEST_VERSION and len(numbers) >= 2 and all(map(_is_number, numbers))


def branch_of(version: str) -> str:
    """Return the branch that a version belongs to: v3.23 of 3.23.3."""
    return "v" + ".".join(version.split(".")[:2])


def file_name(version: str, arch: str) -> str:
    """Return what the archive of a version is called."""
    return f"{FLAVOR}-{version}-{arch}.tar.gz"


def releases_address(mirror: str, branch: str, arch: str) -> str:
    """Return the address of the directory in which a branch's archives lie."""
    return f"{mirror}/{branch}/releases/{arch}"


def get_latest_version(mirror: str, arch: str) -> Release:
    """Ask a mirror for the newest release.

    Raises:
        RootfsUnreachable: it does not answer.
        RootfsError: it has no mini root file system for this architecture.
        RootfsUnverified: what it says can't be understood.
    """
    address = f"{releases_address(mirror, ALPINE_BRANCH, arch)}/latest-releases.yaml"
    return find_release(read_text(address, most_bytes=_INDEX_BYTES), arch, address)


def get_checksum(mirror: str, version: str, arch: str) -> str:
    """Ask a mirror for the digest that it has beside an archive.

    Raises:
        RootfsUnreachable: it does not answer, or has no such version.
        RootfsUnverified: what it says can't be understood.
    """
    name = file_name(version, arch)
    address = f"{releases_address(mirror, branch_of(version), arch)}/{name}.sha256"
    words = read_text(address, most_bytes=_CHECKSUM_BYTES).split()
    if len(words) not in (1, 2) or not is_digest(words[0]) or words[1:] not in ([], [name], [f"*{name}"]):
        raise RootfsUnverified(f"{address} is not the checksum of {name}.")
    return words[0]


def find_release(text: str, arch: str, address: str) -> Release:
    """Return the mini root file system that an index names.

    Raises:
        RootfsError: it names none.
        RootfsUnverified: the index, or what it says of it, has another form than it should.
    """
    found: list[Release] = []
    try:
        for entry in _entries(text):
            if entry.get("flavor") == FLAVOR and entry.get("arch", arch) == arch:
                found.append(_checked(entry, arch))
    except ValueError as error:
        raise RootfsUnverified(f"{address} is not a release index: {error}.") from None
    if not found:
        raise RootfsError(
            f"There is no {FLAVOR} for {arch} in {address}.",
            remedy="Check the mirror's address, or name a version (`version`).",
        )
    if len(set(found)) > 1:
        raise RootfsUnverified(f"{address} names more than one {FLAVOR} for {arch}.")
    return found[0]


def _checked(entry: dict[str, str], arch: str) -> Release:
    release = Release(version=entry.get("version", ""), file=entry.get("file", ""), sha256=entry.get("sha256", ""))
    if not is_version(release.version):
        raise ValueError(f"{release.version!a} is not a version")
    if release.file != file_name(release.version, arch):
        raise ValueError(f"{release.file!a} is not the name of {file_name(release.version, arch)}")
    if not is_digest(release.sha256):
        raise ValueError(f"{release.sha256!a} is not a SHA-256")
    return release


def is_digest(text: str) -> bool:
    """Tell whether a text is a SHA-256 in the form in which mirrors write it."""
    return len(text) == 64 and not text.strip("0123456789abcdef")


def _entries(text: str) -> Iterator[dict[str, str]]:
    """Yield the entries of an index; a line that is no part of one ends it with a ValueError."""
    entry: dict[str, str] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        # Deeper lines are the text of a description
        if not line or line == "---" or line.startswith(("#", "   ")):
            continue
        if line.startswith("-"):
            if entry is not None:
                yield entry
            entry = {}
            line = " " + line[1:]
        if entry is None or (line.strip() and not line.startswith("  ")):
            raise ValueError(f"line {number} has an unknown form")
        if line.strip():
            key, value = _pair(line.strip(), number)
            if key in entry and key in _READ:
                raise ValueError(f"line {number} says {key} again")
            entry[key] = value
    if entry is not None:
        yield entry


def _pair(line: str, number: int) -> tuple[str, str]:
    key, colon, value = line.partition(":")
    if not key or not colon or key.strip(_KEY) or (value and not value.startswith(" ")):
        raise ValueError(f"line {number} has an unknown form")
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return key, value


def _is_number(text: str) -> bool:
    return bool(text) and not text.strip(_DIGITS)


def open_tree(tree: bytes) -> int:
    """Return the descriptor of a tree."""
    return os.open(tree, DIRECTORY)


def check_release(fd: int, version: str) -> None:
    """Return if the tree says that it is this version.

    Raises:
        RootfsUnverified: it says something else; a mirror may have put another archive in the place of this one.
    """
    said = _read_file(fd, b"/etc/alpine-release", _MOST_RELEASE).decode("ascii", "replace").strip()
    if said != version:
        raise RootfsUnverified(f"The archive should be Alpine {version}, but it says that it is {said[:40]!a}.")


def make_top(fd: int) -> None:
    """Make the usual directories at the top that are missing; a link is as good.

    Raises:
        RootfsUnsafe: something else is there.
    """
    for name in TOP:
        _make_directory(fd, name, is_link_fine=True)


def write_repositories(fd: int, addresses: Iterable[str]) -> None:
    """Write the addresses that packages come from, in the place of those that the archive has.

    Raises:
        RootfsUnsafe: a link or something else is in the way.
    """
    etc = _open_made(fd, b"etc")
    try:
        apk = _open_made(etc, b"apk")
    finally:
        os.close(etc)
    try:
        _write_anew(apk, b"repositories", "".join(f"{address}\n" for address in addresses).encode("ascii"))
    finally:
        os.close(apk)


def read_packages(fd: int) -> tuple[tuple[str, str], ...]:
    """Return the packages that apk has recorded, with their versions.

    Raises:
        RootfsError: there is no such record, or it can't be understood.
    """
    text = next(filter(None, (_read_file(fd, path, _MOST_DATABASE) for path in _DATABASES)), b"")
    packages: dict[str, str] = {}
    name = ""
    for line in text.decode("utf-8", "replace").split("\n"):
        if not line:
            name = ""
        elif line.startswith("P:"):
            name = line[2:]
        elif line.startswith("V:") and is_plain(name) and is_plain(line[2:]):
            packages[name] = line[2:]
    if not packages or len(packages) > _MOST_PACKAGES:
        raise RootfsError("unspill can't read the installed packages from apk's records.")
    return tuple(sorted(packages.items()))


def is_plain(text: str) -> bool:
    """Tell whether a text from a record can be shown as it is."""
    return 0 < len(text) <= 128 and text.isascii() and text.isprintable() and " " not in text


def check_complete(fd: int) -> None:
    """Return if the programs are there that every run relies on.

    Raises:
        RootfsError: one is missing, although every package was installed.
    """
    for path in _NEEDED:
        found = find_inside(fd, path)
        if found is None or not stat.S_ISREG(found.st_mode) or not found.st_mode & 0o111:
            raise RootfsError(f"There is no {path.decode()} in it, although all packages were installed.")


def _read_file(fd: int, path: bytes, most_bytes: int) -> bytes:
    """Return the beginning of a file of the tree, nothing where there is none."""
    real = resolve_inside(fd, path)
    if not real:
        return b""
    file = os.open(real, _OLD_FILE, dir_fd=fd)
    try:
        return _read_whole(file, most_bytes) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)


def _read_whole(file: int, most_bytes: int) -> bytes:
    content = b""
    while len(content) < most_bytes and (more := os.read(file, most_bytes - len(content))):
        content += more
    return content


def _make_directory(fd: int, name: bytes, *, is_link_fine: bool = False) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=fd)
    except FileExistsError:
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode) and not (is_link_fine and stat.S_ISLNK(mode)):
            raise RootfsUnsafe(f"/{os.fsdecode(name)} in the archive is not a directory.") from None


def _open_made(fd: int, name: bytes) -> int:
    """Return the descriptor of a directory, made if it is missing; a link is refused."""
    _make_directory(fd, name)
    return os.open(name, DIRECTORY, dir_fd=fd)


def _write_anew(fd: int, name: bytes, content: bytes) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        pass
    except OSError:
        raise RootfsUnsafe(f"/etc/apk/{os.fsdecode(name)} in the archive is not a file.") from None
    file = os.open(name, _NEW_FILE, 0o644, dir_fd=fd)
    try:
        os.write(file, content)
    finally:
        os.close(file)
