# SPDX-License-Identifier: Apache-2.0
"""Which manifest of an OCI layout is meant: by its tag, its platform and its pinned digest.

The index may lead to others, which may lead to manifests; none is guessed where several fit. What comes out is the
content that is to be unpacked, as the manifest and the config name it.
"""

from __future__ import annotations

import hashlib

from unspill.errors import RootfsError, RootfsUnverified
from unspill.model.record import Record
from unspill.rootfs.arch import OCI_PLATFORMS
from unspill.rootfs.oci_json import (
    MOST_ENTRIES,
    Descriptor,
    get_list,
    get_object,
    get_text,
    parse_descriptor,
    parse_digest,
    parse_document,
    parse_platform,
    wrong,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.rootfs.oci_json import Digest, Document
    from unspill.rootfs.oci_layout import Layout

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_MOST_NESTED = 3
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+:/@")
_LONGEST_SHOWN = 48
# Those of a variant are content for every machine of the architecture
_VARIANTS = {"amd64": ("", "v1"), "arm64": ("", "v8"), "arm": ("", "v7"), "386": ("",)}


class Layer(Record):
    """A layer: where it is, and the digest of it uncompressed. `blob` is None where `path` alone says where it is."""

    path: str
    diff_id: Digest
    blob: Descriptor | None = None


class Choice(Record):
    """What is unpacked; `identity` is the SHA-256 of the manifest (or of the config, where there is none).

    `chain` are the digests on the way there, by name: whoever pinned one of them pinned the content.
    """

    identity: str
    layers: tuple[Layer, ...]
    chain: tuple[tuple[str, str], ...]


class _Leaf(Record):
    """A manifest that an index leads to, with the descriptors on the way; the manifest's own is the last one."""

    chain: tuple[Descriptor, ...]

    @property
    def refs(self) -> list[str]:
        return [descriptor.ref for descriptor in self.chain if descriptor.ref]

    @property
    def digests(self) -> set[str]:
        return {str(descriptor.digest) for descriptor in self.chain}


def choose(layout: Layout, *, tag: str, arch: str, pinned: str) -> Choice:
    """Return the one that is meant; `arch` is our name of the architecture.

    Raises:
        RootfsUnverified: none has the pinned digest, or a document is not what it should be.
        RootfsUnsafe: a document can't be understood.
        RootfsError: none fits, or several do.
    """
    found = _Walk(layout, tag).find()
    by_tag = [leaf for leaf in found if not tag or any(matches_tag(ref, tag) for ref in leaf.refs)]
    if tag and not by_tag:
        raise RootfsError(f"the OCI layout has nothing with the tag {tag!r}", remedy=f"It has these: {_refs(found)}.")
    if pinned and pinned != layout.archive_digest:
        by_tag = _keep_pinned(by_tag, pinned)
    platforms = {str(leaf.chain[-1].digest): _platform(layout, leaf) for leaf in by_tag}
    fitting = {digest for digest, platform in platforms.items() if fits_platform(platform, arch)}
    if not fitting:
        raise no_platform(platforms.values(), arch)
    leaves = [leaf for leaf in by_tag if str(leaf.chain[-1].digest) in fitting]
    if len(fitting) > 1:
        raise RootfsError(
            f"the OCI layout has {len(fitting)} that fit",
            remedy=f"Name a tag (`version`) or pin a manifest (`sha256`). It has these tags: {_refs(leaves)}.",
        )
    return _read(layout, leaves[0], arch)


def matches_tag(ref: str, tag: str) -> bool:
    """Tell whether a name has a tag: some tools write the tag alone, some the whole name."""
    return tag in (ref, ref.rpartition(":")[2])


def fits_platform(platform: tuple[str, str, str], arch: str) -> bool:
    """Tell whether what is for a platform runs on an architecture."""
    system, machine, variant = platform
    wanted = OCI_PLATFORMS[arch].partition("/")[0]
    return system == "linux" and machine == wanted and variant in _VARIANTS[wanted]


def check_config(config: Document, layers: int, arch: str) -> list[Digest]:
    """Return the digests of the uncompressed layers, of a config that fits them and the architecture.

    Raises:
        RootfsError: it is for another machine.
        RootfsUnsafe: it can't be understood, or does not fit.
    """
    if not fits_platform(platform := parse_platform(config, "the config"), arch):
        raise no_platform([platform], arch)
    rootfs = get_object(config, "rootfs", "the config")
    if get_text(rootfs, "type", "the config") != "layers":
        raise wrong("the config", "it has no layers")
    diff_ids = [parse_digest(found, "the config") for found in get_list(rootfs, "diff_ids", "the config")]
    if len(diff_ids) != layers or not layers:
        raise wrong("the config", f"it is for {len(diff_ids)} layers, but there are {layers}")
    return diff_ids


class _Walk:
    """The way from index.json to the manifests; bounded in all, since an index may be named many times."""

    def __init__(self, layout: Layout, tag: str) -> None:
        self._layout = layout
        self._tag = tag
        self._left = MOST_ENTRIES

    def find(self) -> list[_Leaf]:
        """Return the manifests that could be meant."""
        index = parse_document(self._layout.read_document("index.json"), "index.json")
        return list(self._enter(index, "index.json", ()))

    def _enter(self, index: Document, what: str, above: tuple[Descriptor, ...]) -> Iterator[_Leaf]:
        if "layers" in index or "config" in index:
            raise wrong(what, "it could be a manifest as well")
        for found in get_list(index, "manifests", what):
            self._left -= 1
            if self._left < 0 or len(above) > _MOST_NESTED:
                raise wrong(what, "it leads to more than anybody could mean")
            descriptor = parse_descriptor(found, what)
            chain = (*above, descriptor)
            if descriptor.kind in MANIFESTS:
                yield _Leaf(chain=chain)
            # Another tag's may be missing, where somebody copied a part of a layout
            elif descriptor.kind in INDEXES and not self._is_of_another_tag(descriptor):
                inner = self._layout.read_blob_document(descriptor, "an index")
                _check_kind(inner, descriptor, "an index")
                yield from self._enter(inner, "an index", chain)

    def _is_of_another_tag(self, descriptor: Descriptor) -> bool:
        return bool(self._tag and descriptor.ref) and not matches_tag(descriptor.ref, self._tag)


def _keep_pinned(leaves: list[_Leaf], pinned: str) -> list[_Leaf]:
    kept = [leaf for leaf in leaves if f"sha256:{pinned}" in leaf.digests]
    if not kept:
        there = ", ".join(sorted({str(leaf.chain[-1].digest) for leaf in leaves})[:8]) or "none"
        raise RootfsUnverified(f"no manifest has the pinned SHA-256 {pinned}; there are: {there}")
    return kept


def _platform(layout: Layout, leaf: _Leaf) -> tuple[str, str, str]:
    """Return what a manifest is for: where the index does not say it, the config does."""
    descriptor = leaf.chain[-1]
    if descriptor.platform is not None:
        return descriptor.platform
    manifest = layout.read_blob_document(descriptor, "a manifest")
    config = parse_descriptor(manifest.get("config"), "a manifest")
    if config.kind not in CONFIGS:
        return ("", "", "")
    return parse_platform(layout.read_blob_document(config, "a config"), "a config")


def _read(layout: Layout, leaf: _Leaf, arch: str) -> Choice:
    descriptor = leaf.chain[-1]
    content = layout.read_blob(descriptor, "the manifest")
    manifest = parse_document(content, "the manifest")
    _check_kind(manifest, descriptor, "the manifest")
    if "manifests" in manifest:
        raise wrong("the manifest", "it could be an index as well")
    config = parse_descriptor(manifest.get("config"), "the manifest")
    if config.kind not in CONFIGS:
        raise wrong("the manifest", f"it is not of a root file system, but of {config.kind[:100]!r}")
    blobs = [parse_descriptor(found, "the manifest") for found in get_list(manifest, "layers", "the manifest")]
    diff_ids = check_config(layout.read_blob_document(config, "the config"), len(blobs), arch)
    names = [*(f"index {number}" for number in range(1, len(leaf.chain))), "manifest", "config"]
    digests = [str(found.digest) for found in (*leaf.chain, config)]
    return Choice(
        identity=hashlib.sha256(content).hexdigest(),
        layers=tuple(Layer(path="", blob=blob, diff_id=diff_id) for blob, diff_id in zip(blobs, diff_ids, strict=True)),
        chain=tuple(zip(names, digests, strict=True)),
    )


def _check_kind(document: Document, descriptor: Descriptor, what: str) -> None:
    if get_text(document, "mediaType", what) not in ("", descriptor.kind):
        raise wrong(what, "it says another media type than the one who leads there")


def no_platform(platforms: Iterable[tuple[str, str, str]], arch: str) -> RootfsError:
    """Return the error that nothing is for an architecture."""
    there = sorted({plain("/".join(filter(None, platform))) or "nothing known" for platform in platforms})
    return RootfsError(
        f"the OCI layout has nothing for {arch} (linux/{OCI_PLATFORMS[arch]}); it is for: {', '.join(there[:16])}",
        remedy="Copy it anew for this architecture, or name another one (`arch`).",
    )


def _refs(leaves: list[_Leaf]) -> str:
    return ", ".join(sorted({f"'{plain(ref)}'" for leaf in leaves for ref in leaf.refs})[:16]) or "none"


def plain(text: str) -> str:
    """Return a word of a layout for a message of ours: short, and without the spaces that would make it a sentence."""
    shown = "".join(sign if sign in _PLAIN else "?" for sign in text[:_LONGEST_SHOWN])
    return f"{shown}..." if len(text) > _LONGEST_SHOWN else shown
