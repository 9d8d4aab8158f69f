# SPDX-License-Identifier: Apache-2.0
"""A root file system of our own, from the spec for one to what a plan has to know of it.

A *rootfs* is immutable once it is ready. (A *root*, without the `fs`, is a writable directory of the project.)
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    SourceName = Literal["alpine", "debian", "archive", "oci", "kept"]
    # What speaks for the content: a digest that the person pinned, one in our release, the distribution's signature,
    # or only a checksum from the very server that the content is from, or nothing at all
    Proof = Literal["pinned", "known", "signed", "same-server", "none"]

TIERS = (1, 2)
# The same in words, from the strongest
PROOFS = {
    "pinned": "the digest that you pinned",
    "known": "a digest in this release of unspill",
    "signed": "the distribution's signature",
    "same-server": "only a checksum from the server that the content is from, which is no proof",
    "none": "none",
}
# Programs that are told of, where a rootfs has them
RUNTIMES = ("python3", "node", "perl", "ruby", "php", "java", "go", "rustc", "lua")
INSTALLERS = ("apk", "apt-get", "dnf", "pacman", "pip", "npm", "cargo", "gem")
OTHERS = (
    *("bash", "sh", "busybox", "git", "gcc", "g++", "clang", "make", "cmake", "curl", "wget", "ssh", "rsync"),
    *("tar", "gzip", "bzip2", "xz", "zstd", "zip", "unzip", "jq", "awk", "sed", "grep", "find", "xargs", "diff"),
    *("patch", "rg", "sqlite3", "openssl", "vi"),
)
PROGRAM_DIRECTORIES = tuple(f"{top}/{name}" for top in ("/usr/local", "/usr", "") for name in ("sbin", "bin"))
# How a warning about a rootfs begins: a person is always shown those
NOTE = "rootfs: "


class RootfsSpec(Record):
    """What somebody asks for. Empty fields are for the source to fill: the newest version, this machine's architecture.

    `location` is the archive or OCI layout on disk (or an archive's address), `label` what the result is called where
    the source has no name of its own. `sha256` pins what is fetched: the archive, or the OCI manifest.
    """

    source: SourceName
    version: str = ""
    arch: str = ""
    tier: int = 1
    packages: tuple[str, ...] = ()
    mirror: str = ""
    location: str = ""
    sha256: str = ""
    label: str = ""


class RootfsKey(Record):
    """What tells one rootfs from every other: it is also the name of its directory.

    `source` is the source's name or a label; `variant` is short for packages beyond the tier's; tier 0 is none.
    """

    source: str
    version: str
    arch: str
    tier: int = 0
    variant: str = ""

    @property
    def name(self) -> str:
        """Return the name of the directory."""
        tier = f"t{self.tier}" if self.tier else ""
        return "-".join(part for part in (self.source, self.version, self.arch, tier, self.variant) if part)


class RootfsManifest(Record):
    """What is known of a rootfs that is ready; it lies beside the tree.

    `fetched` are the digests of what was fetched, by name; `proof` says what spoke for them. `tree` is the digest of
    the whole tree. `left_out` counts what an archive had and the tree does not have (devices, setuid bits), by kind.
    `spec` is what an upgrade repeats.
    """

    key: RootfsKey
    spec: RootfsSpec
    proof: Proof
    packages: tuple[tuple[str, str], ...] = ()
    fetched: tuple[tuple[str, str], ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()
    tree: str = ""
    entries: int = 0
    size_bytes: int = 0
    created_ns: int = 0


class Rootfs(Record):
    """A rootfs that is ready: `tree` is its directory; one that the person made by hand has no manifest."""

    name: str
    tree: bytes
    manifest: RootfsManifest | None = None


class RootfsBase(Record):
    """What a plan has to know of a rootfs: `directories` and `links` are the entries at its top; some are `empty`.

    `shell` runs commands that are given as a text; `points` are those of the usual mount points that are directories
    of it (or, in /etc, plain files), reached without a link. `passwd` is its /etc/passwd where that is such a file and
    does not know the caller. `is_own`: we unpacked it, so it has neither sockets nor FIFOs. `note` is what whoever runs
    something in it has to be told.
    """

    name: str
    tree: bytes
    directories: tuple[bytes, ...]
    empty: tuple[bytes, ...] = ()
    links: tuple[tuple[bytes, bytes], ...] = ()
    shell: bytes = b"/bin/sh"
    points: tuple[bytes, ...] = ()
    passwd: bytes = b""
    is_own: bool = False
    note: str = ""


class Progress(Record):
    """How far a step of making a rootfs is; `total` is 0 where nobody knows. What has no `unit` is bytes."""

    step: str
    done: int = 0
    total: int = 0
    unit: str = ""


class Installed(Record):
    """How a command that was run inside a half-built rootfs ended, and what it said."""

    ok: bool
    output: str = ""
