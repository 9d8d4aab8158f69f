# SPDX-License-Identifier: Apache-2.0
"""Reads paragraphs of fields, the form of dpkg's status, of package indexes and of releases.

Reads only; what it reads was made inside a rootfs, so no link of it is followed and no size of it believed.
"""

from __future__ import annotations

import os
import stat

from unspill.host.beneath import open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

STATUS = b"var/lib/dpkg/status"
_MOST_BYTES = 64 << 20
_MOST_PACKAGES = 50_000


def installed_packages(tree: bytes) -> tuple[tuple[str, str], ...]:
    """Return the packages of a tree with their versions, by name; none where the tree does not say."""
    text = _read_beneath(tree, STATUS)
    found = {
        (fields["package"], fields["version"])
        for fields in paragraphs(text)
        if "package" in fields and "version" in fields and fields.get("status", "").endswith(" installed")
    }
    return tuple(sorted(found))[:_MOST_PACKAGES]


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each paragraph, by their names in small letters; only the first line of each."""
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif line[0] not in " \t":
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.lower(), value.strip())
    if fields:
        yield fields


def _read_beneath(tree: bytes, path: bytes) -> str:
    try:
        tree_fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fd = open_beneath(tree_fd, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    finally:
        os.close(tree_fd)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
