# SPDX-License-Identifier: Apache-2.0
"""What `docker save` wrote before it wrote OCI layouts: a manifest.json that names a config and its layers by path.

It has no digests of its own. The config's is its name, and the config has those of the layers, so all of it is checked.
"""

from __future__ import annotations

import hashlib

from unspill.errors import RootfsError, RootfsUnverified
from unspill.rootfs.oci_choice import Choice, Layer, check_config, matches_tag, plain
from unspill.rootfs.oci_json import get_list, get_text, is_text, parse_digest, parse_document, parse_json, wrong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.rootfs.oci_json import Document
    from unspill.rootfs.oci_layout import Layout

_WHAT = "manifest.json"


def choose_saved(layout: Layout, *, tag: str, arch: str, pinned: str) -> Choice:
    """Return the one that is meant; what is pinned is the digest of its config.

    Raises:
        RootfsUnverified: it does not have the pinned digest, or is not what it should be.
        RootfsUnsafe: a document can't be understood.
        RootfsError: none fits, or several do.
    """
    entry = _find(layout, tag)
    path = get_text(entry, "Config", _WHAT)
    content = layout.read_document(path)
    digest = hashlib.sha256(content).hexdigest()
    named = parse_digest("sha256:" + path.rpartition("/")[2].removesuffix(".json"), _WHAT)
    if digest != named.value:
        raise RootfsUnverified(f"the config has the digest sha256:{digest}, but should have {named}")
    if pinned not in ("", digest, layout.archive_digest):
        raise RootfsUnverified(f"the config has the SHA-256 {digest}, but {pinned} is pinned")
    paths = [found for found in get_list(entry, "Layers", _WHAT) if is_text(found)]
    diff_ids = check_config(parse_document(content, "the config"), len(paths), arch)
    return Choice(
        identity=digest,
        layers=tuple(Layer(path=found, diff_id=diff_id) for found, diff_id in zip(paths, diff_ids, strict=True)),
        chain=(("config", f"sha256:{digest}"),),
    )


def _find(layout: Layout, tag: str) -> Document:
    entries = parse_json(layout.read_document(_WHAT), _WHAT)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise wrong(_WHAT, "it is no list of objects")
    tags = [_tags(entry) for entry in entries]
    fitting: list[Document] = [
        entry
        for entry, names in zip(entries, tags, strict=True)
        if not tag or any(matches_tag(name, tag) for name in names)
    ]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(sorted({f"'{plain(name)}'" for names in tags for name in names})[:16]) or "none"
    raise RootfsError(f"{_WHAT} has {len(fitting)} that fit", remedy=f"Name a tag (`version`). It has these: {there}.")


def _tags(entry: Document) -> list[str]:
    # Null where it has none
    found = get_list(entry, "RepoTags", _WHAT) if entry.get("RepoTags") is not None else []
    return [tag for tag in found if is_text(tag)]
