# SPDX-License-Identifier: Apache-2.0
"""What a wish for a Debian rootfs may name: suites, packages and archives, each of one plain shape.

All of it ends in words of apt's command line and in its list of sources, so what has another shape is refused, not
quoted. Nothing is asked of anybody here.
"""

from __future__ import annotations

from unspill.errors import RootfsError
from unspill.model.record import Record
from unspill.model.rootfs import TIERS

DEFAULT_SUITE = "bookworm"
MIRROR = "http://ftp.debian.org/debian"
SECURITY_MIRROR = "http://security.debian.org/debian-security"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

TIER_1 = ("bash", "python3", "python3-pip", "coreutils", "grep", "sed")
TIER_2 = ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm")

_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz")
_DIGITS = frozenset("0123456789")
_PACKAGE = _LOWER | _DIGITS | frozenset("+-.")
_SUITE = _LOWER | _DIGITS | frozenset("-")
_ADDRESS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ/._~:+,-") | _LOWER | _DIGITS
_SCHEMES = ("http", "https", "file", "copy")
_LONGEST = 64
_LONGEST_ADDRESS = 500
_MOST_PACKAGES = 200
# These have neither updates nor a security archive beside them
_ROLLING = frozenset(("sid", "unstable", "experimental"))


class Archive(Record):
    """Suites at one address. A local one is a directory on this machine, which nobody else can reach.

    `named`: by the person, who may trust other keys than Debian's for it.
    """

    address: str
    suites: tuple[str, ...]
    named: bool = False

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine."""
        return self.address.startswith("copy:")


def is_suite(text: str) -> bool:
    """Tell whether a text has the shape of a suite or code name: bookworm, bookworm-security."""
    return 2 <= len(text) <= _LONGEST and text[0] in _LOWER and text[-1] != "-" and _SUITE.issuperset(text)


def is_package(text: str) -> bool:
    """Tell whether a text has the shape of a package's name, and none that apt reads as something else.

    A minus at the end would remove a package.
    """
    return (
        2 <= len(text) <= _LONGEST
        and text[0] in _LOWER | _DIGITS
        and text[-1] not in "-."
        and _PACKAGE.issuperset(text)
    )


def checked_suite(version: str) -> str:
    """Return the suite that a wish means.

    Raises:
        RootfsError: it can't be one.
    """
    if not version:
        return DEFAULT_SUITE
    if not is_suite(version):
        raise RootfsError(
            f"{version[:80]!r} can't be a suite of Debian", remedy="Name a code name, for instance bookworm or trixie."
        )
    return version


def packages_of(tier: int, more: tuple[str, ...]) -> tuple[str, ...]:
    """Return the packages of a tier and those beyond it, each once.

    Raises:
        RootfsError: there is no such tier, or a name can't be a package's.
    """
    if tier not in TIERS:
        raise RootfsError(f"there is no tier {tier}", remedy="Use 1 (a shell, Python) or 2 (also git, curl, Node).")
    wrong = [name for name in more if not is_package(name)]
    if wrong:
        raise RootfsError(
            f"{wrong[0][:80]!r} can't be the name of a package of Debian",
            remedy="A name has two or more small letters, digits and + - . only, and begins with a letter or digit.",
        )
    if len(more) > _MOST_PACKAGES:
        raise RootfsError(f"more than {_MOST_PACKAGES} packages are wished for", remedy="Name fewer.")
    return tuple(dict.fromkeys((*TIER_1, *(TIER_2 if tier > 1 else ()), *more)))


def variant_of(more: tuple[str, ...]) -> str:
    """Return what is short for packages beyond a tier's; the order they were named in does not matter."""
    if not more:
        return ""
    from hashlib import sha256

    return sha256(" ".join(sorted(set(more))).encode()).hexdigest()[:8]


def archives_of(mirror: str, suite: str) -> tuple[Archive, ...]:
    """Return where packages come from: Debian's own servers, or what a person named instead.

    That is an address, or several with the suites that are used there (by default the wished one):
    `https://mirror.example.org/debian bookworm bookworm-updates https://mirror.example.org/security bookworm-security`.
    `file:` and `copy:` name a directory of the same layout.

    Raises:
        RootfsError: it has another shape.
    """
    if not mirror.strip():
        return _default_archives(suite)
    found: list[tuple[str, list[str]]] = []
    for word in mirror.split():
        if ":" in word:
            found.append((_checked_address(word), []))
        elif found and is_suite(word):
            found[-1][1].append(word)
        else:
            raise _bad_mirror(word)
    return tuple(Archive(address=address, suites=tuple(suites) or (suite,), named=True) for address, suites in found)


def _default_archives(suite: str) -> tuple[Archive, ...]:
    if suite in _ROLLING:
        return (Archive(address=MIRROR, suites=(suite,)),)
    return (
        Archive(address=MIRROR, suites=(suite, f"{suite}-updates")),
        Archive(address=SECURITY_MIRROR, suites=(f"{suite}-security",)),
    )


def _checked_address(word: str) -> str:
    """Return an address without a slash at its end; a directory's always begins with `copy:`."""
    scheme, _colon, rest = word.partition(":")
    if scheme not in _SCHEMES or len(word) > _LONGEST_ADDRESS or not _ADDRESS.issuperset(word):
        raise _bad_mirror(word)
    if scheme in ("http", "https"):
        host, _slash, _path = rest.removeprefix("//").partition("/")
        if not rest.startswith("//") or not host or host.startswith((":", "-", ".")):
            raise _bad_mirror(word)
        return word.rstrip("/")
    path = "/" + rest.strip("/")
    if not rest.startswith("/") or ".." in path.split("/") or path == "/":
        raise _bad_mirror(word)
    # In place, apt would leave the packages where they are, where the build does not see them
    return f"copy:{path}"


def _bad_mirror(word: str) -> RootfsError:
    return RootfsError(
        f"{word[:80]!r} can't be a mirror of Debian",
        remedy="Name an address without a user, such as https://mirror.example.org/debian, or file:/a/directory; after"
        " it, the suites to use there.",
    )


def sources_list(archives: tuple[Archive, ...], keyring: str = "") -> str:
    """Return a list of sources for apt."""
    option = f"[signed-by={keyring}] " if keyring else ""
    lines = (f"deb {option}{archive.address} {suite} main\n" for archive in archives for suite in archive.suites)
    return "".join(lines)
