# SPDX-License-Identifier: Apache-2.0
"""An OCI layout on disk as a source: a directory, an archive of one, or an archive of `docker save`.

Where it has several, `version` is the tag of the one that is meant, or `sha256` pins it: its manifest, an index that
leads to it, or the archive as a whole. Nothing is ever fetched from a registry. Documents are read as what anybody may
have written: bounded, each field checked for its type. Every blob is checked against its digest before it is used, and
what is used are the bytes that were checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat

from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnsafe, RootfsUnverified
from unspill.host.dirfd import resolve_inside
from unspill.model.rootfs import Progress, RootfsKey
from unspill.record import Record
from unspill.rootfs.archive import check_tree, copy_given, is_remote, label_of, open_given
from unspill.rootfs.compression import Bounds, open_chunks, shown
from unspill.rootfs.download import check_digest, digest_of
from unspill.rootfs.registry import unique_fields
from unspill.rootfs.source import OCI_PLATFORMS, Filled, Resolved, arch_of
from unspill.rootfs.tar import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Self

    from unspill.model.rootfs import RootfsSpec
    from unspill.rootfs.source import BuildContext

    Document = dict[str, Any]

MOST_DOCUMENT_BYTES = 4 << 20
MOST_ENTRIES = 512
_MOST_DEPTH = 32
_LONGEST_TEXT = 1024
_MOST_BLOB_BYTES = 1 << 40
_LENGTHS = {"sha256": 64, "sha512": 128}
_HEX = frozenset("0123456789abcdef")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1 << 20
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_MOST_NESTED = 3
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+:/@")
_LONGEST_SHOWN = 48
# Those of a variant are content for every machine of the architecture
_VARIANTS = {"amd64": ("", "v1"), "arm64": ("", "v8"), "arm": ("", "v7"), "386": ("",)}
_SAVED = "manifest.json"
_TAR = ("", "+gzip", "+zstd")
_DOCKER_TAR = ("", ".gzip", ".zstd")
LAYERS = frozenset(
    [f"application/vnd.oci.image.layer.v1.tar{ending}" for ending in _TAR]
    + [f"application/vnd.docker.image.rootfs.diff.tar{ending}" for ending in _DOCKER_TAR]
)
_VERSION_DIGITS = 12


class OciSource:
    """The source `oci`."""

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Return which rootfs a layout has: its version is the beginning of the manifest's digest.

        Raises:
            RootfsUnreachable: the layout can't be read.
            RootfsUnverified: it is not what is pinned, or a document is not what its digest says.
            RootfsUnsafe: a document can't be understood.
            RootfsError: nothing in it fits the spec, or several do.
        """
        if is_remote(spec.location):
            raise RootfsError(
                f"{spec.location} is an address, but unspill reads an OCI layout from disk",
                remedy="Copy it first: `skopeo copy docker://NAME oci:DIRECTORY:TAG`.",
            )
        label = label_of(spec)
        arch = arch_of(spec.arch)
        means.report(Progress(step="reading"))
        with Layout(spec.location, means) as layout:
            choice = _choose(layout, spec, arch)
        return Resolved(
            key=RootfsKey(source=label, version=choice.identity[:_VERSION_DIGITS], arch=arch),
            spec=spec,
            fetch=spec.location,
            sha256=choice.identity,
            proof="pinned" if spec.sha256 else "none",
        )

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Unpack the layers of the manifest that was resolved, each checked against its digests.

        Raises:
            RootfsUnreachable: the layout can't be read.
            RootfsUnverified: something of it is not what it should be, or was changed meanwhile.
            RootfsUnsafe: a layer would write where it must not.
            RootfsError: it is no root file system.
        """

        with Layout(resolved.fetch, means) as layout:
            choice = _choose(layout, resolved.spec, resolved.key.arch)
            if choice.identity != resolved.sha256:
                raise RootfsUnverified(
                    f"{resolved.fetch} has the SHA-256 {choice.identity}, but had {resolved.sha256} a moment before",
                    remedy="Try again when no program writes to it.",
                )
            left_out = unpack_layers(layout, choice.layers, tree, means)
            archive = (("archive", layout.archive_digest),) if layout.archive_digest else ()
        check_tree(tree, resolved.fetch)
        fetched = (*archive, *choice.chain, *_blobs(choice))
        if not any(digest == f"sha256:{choice.identity}" for _, digest in choice.chain):
            # What names it does so by a SHA-512
            fetched = (*fetched, ("identity", f"sha256:{choice.identity}"))
        return Filled(proof=resolved.proof, fetched=fetched, left_out=left_out)


def _choose(layout: Layout, spec: RootfsSpec, arch: str) -> OciChoice:
    pinned = check_digest(spec.sha256)
    if layout.has("oci-layout") and layout.has("index.json"):
        version = get_text(
            parse_document(layout.read_document("oci-layout"), "oci-layout"), "imageLayoutVersion", "oci-layout"
        )
        if not version.startswith("1."):
            raise RootfsError(f"{spec.location} is an OCI layout of version {version!r}, which unspill does not know")
        return choose(layout, tag=spec.version, arch=arch, pinned=pinned)
    if layout.has("manifest.json"):
        return choose_saved(layout, tag=spec.version, arch=arch, pinned=pinned)
    raise no_layout(spec.location)


def _blobs(choice: OciChoice) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"layer {number}", str(layer.blob.digest if layer.blob else layer.diff_id))
        for number, layer in enumerate(choice.layers, 1)
    )


class Digest(Record):
    """What a blob is known by."""

    algorithm: str
    value: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"


class Descriptor(Record):
    """What one document says of another one, or of a layer. `platform` is empty where nothing is said of it."""

    kind: str
    digest: Digest
    size: int
    platform: tuple[str, str, str] | None = None
    ref: str = ""


def parse_document(content: bytes, what: str) -> Document:
    """Return a JSON object.

    Raises:
        RootfsUnsafe: it is none, or one that goes beyond all measure or says something twice.
    """
    document = parse_json(content, what)
    if not isinstance(document, dict):
        raise wrong(what, "it is not a JSON object")
    return document


def parse_json(content: bytes, what: str) -> object:
    """Return what a JSON text says, with the same care."""
    try:
        document = json.loads(content.decode(), object_pairs_hook=unique_fields, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise wrong(what, f"it can't be read: {reason}") from None
    _check_depth(document, what)
    return document


def parse_descriptor(found: object, what: str) -> Descriptor:
    """Return what a document says of a blob.

    Raises:
        RootfsUnsafe: a field is missing or of the wrong type.
    """
    if not isinstance(found, dict):
        raise wrong(what, "a descriptor is not an object")
    size = found.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MOST_BLOB_BYTES:
        raise wrong(what, "a descriptor has no size")
    annotations = get_object(found, "annotations", what)
    return Descriptor(
        kind=get_text(found, "mediaType", what),
        digest=parse_digest(found.get("digest"), what),
        size=size,
        platform=parse_platform(found["platform"], what) if "platform" in found else None,
        ref=get_text(annotations, "org.opencontainers.image.ref.name", what),
    )


def parse_digest(found: object, what: str) -> Digest:
    """Return a digest; it becomes a path, so nothing but its hexadecimal digits passes.

    Raises:
        RootfsUnsafe: it is none, or of an algorithm that is not accepted.
    """
    algorithm, _, value = found.partition(":") if isinstance(found, str) else ("", "", "")
    if len(value) != _LENGTHS.get(algorithm) or not _HEX.issuperset(value):
        raise wrong(what, f"{str(found)[:150]!r} is not a SHA-256 or SHA-512 digest")
    return Digest(algorithm=algorithm, value=value)


def parse_platform(found: object, what: str) -> tuple[str, str, str]:
    """Return the system, architecture and variant of a platform, or of a config, which has the same fields."""
    if not isinstance(found, dict):
        raise wrong(what, "a platform is not an object")
    system, arch, variant = (get_text(found, field, what) for field in ("os", "architecture", "variant"))
    return system, arch, variant


def get_text(document: Document, field: str, what: str) -> str:
    """Return a text, the empty one where there is none; it can be printed, and be a path."""
    found = document.get(field, "")
    if not is_text(found):
        raise wrong(what, f"{field} is not plain text, or too long")
    return str(found)


def is_text(found: object) -> bool:
    """Tell whether something is a text without signs that steer a terminal or are not Unicode."""
    return isinstance(found, str) and len(found) <= _LONGEST_TEXT and found.isprintable()


def get_list(document: Document, field: str, what: str) -> list[Any]:
    """Return a list, which must be there."""
    found = document.get(field)
    if not isinstance(found, list) or len(found) > MOST_ENTRIES:
        raise wrong(what, f"{field} is not a list, or has more than {MOST_ENTRIES} entries")
    return found


def get_object(document: Document, field: str, what: str) -> Document:
    """Return an object, the empty one where there is none."""
    found = document.get(field)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise wrong(what, f"{field} is not an object")
    return found


def wrong(what: str, why: str) -> RootfsUnsafe:
    """Return the refusal of a document."""
    return RootfsUnsafe(f"{what}: {why}", remedy="Make the OCI layout again, for example with `skopeo copy`.")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _check_depth(document: object, what: str) -> None:
    level: list[Any] = [document]
    for _ in range(_MOST_DEPTH):
        level = [found for found in level if isinstance(found, dict | list)]
        if not level:
            return
        inner: list[Any] = []
        for found in level:
            inner += found.values() if isinstance(found, dict) else found
        level = inner
    raise wrong(what, "it is nested too deeply")


class Layout:
    """A layout that is open; `archive_digest` is that of the archive it was in, if it was in one."""

    def __init__(self, location: str, means: BuildContext) -> None:
        self._location = location
        self._means = means
        self._fd = -1
        self.archive_digest = ""

    def __enter__(self) -> Self:
        path = os.fsencode(self._location)
        if not os.path.isdir(path):
            path = self._unpack(path)
        try:
            self._fd = os.open(path, _DIRECTORY)
        except OSError as error:
            raise RootfsUnreachable(f"{self._location} can't be read: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def has(self, path: str) -> bool:
        """Tell whether the layout has a file."""
        return resolve_inside(self._fd, path.encode()) is not None

    def read_document(self, path: str) -> bytes:
        """Return the content of a small file.

        Raises:
            RootfsError: it is missing, or too big.
        """
        fd = self._open(path)
        try:
            content = b""
            while block := os.read(fd, _BLOCK):
                content += block
                if len(content) > MOST_DOCUMENT_BYTES:
                    raise RootfsUnsafe(f"{path} is bigger than {MOST_DOCUMENT_BYTES} bytes")
            return content
        finally:
            os.close(fd)

    def read_blob(self, descriptor: Descriptor, what: str) -> bytes:
        """Return the content of a document, which is what its descriptor says.

        Raises:
            RootfsUnverified: it is not.
            RootfsError: it is missing, or too big.
        """
        content = self.read_document(path_of(descriptor.digest))
        found = Digest(
            algorithm=descriptor.digest.algorithm,
            value=hashlib.new(descriptor.digest.algorithm, content).hexdigest(),
        )
        check_blob(what, found, len(content), descriptor)
        return content

    def read_blob_document(self, descriptor: Descriptor, what: str) -> Document:
        """Return a document of a blob."""
        return parse_document(self.read_blob(descriptor, what), what)

    def copy(self, path: str, algorithm: str) -> tuple[int, Digest, int]:
        """Return a descriptor of a private copy of a file, which the caller closes, its digest, and its size."""
        fd = self._open(path)
        if self.archive_digest:
            # Unpacked by us, to a place where nobody else writes
            return fd, Digest(algorithm=algorithm, value=digest_of(fd, algorithm)), os.fstat(fd).st_size
        try:
            copy = copy_given(fd, self._means.scratch, self._means.report, algorithm=algorithm)
        finally:
            os.close(fd)
        return copy.fd, Digest(algorithm=algorithm, value=copy.digest), copy.size

    def copy_blob(self, descriptor: Descriptor, what: str) -> int:
        """Return a descriptor of a private copy of a blob that is what its descriptor says; the caller closes it.

        Raises:
            RootfsUnverified: it is not what it should be.
            RootfsError: it is missing.
        """
        fd, digest, size = self.copy(path_of(descriptor.digest), descriptor.digest.algorithm)
        try:
            check_blob(what, digest, size, descriptor)
        except RootfsUnverified:
            os.close(fd)
            raise
        return fd

    def _open(self, path: str) -> int:
        real = resolve_inside(self._fd, path.encode())
        if real is None:
            raise RootfsUnverified(f"{self._location} is incomplete: it has no {path}")
        try:
            fd = os.open(real, _FILE, dir_fd=self._fd)
        except OSError as error:
            raise RootfsUnreachable(f"{self._location}: {path} can't be read: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise RootfsUnsafe(f"{self._location}: {path} is not a file")
        return fd

    def _unpack(self, path: bytes) -> bytes:
        target = os.path.join(self._means.scratch, b"layout")
        fd = open_given(path)
        try:
            copy = copy_given(fd, self._means.scratch, self._means.report)
        finally:
            os.close(fd)
        try:
            os.mkdir(target, 0o700)
            unpack(copy.fd, target)
        except RootfsUnsafe as error:
            raise RootfsUnsafe(f"{shown(path)} is not the archive of an OCI layout: {error.message}") from None
        finally:
            os.close(copy.fd)
        self.archive_digest = copy.digest
        return target


def path_of(digest: Digest) -> str:
    """Return where a layout has the blob of a digest."""
    return f"blobs/{digest.algorithm}/{digest.value}"


def check_blob(what: str, digest: Digest, size: int, descriptor: Descriptor) -> None:
    """Check that a blob is what its descriptor says.

    Raises:
        RootfsUnverified: it has another digest or size.
    """
    if digest != descriptor.digest:
        raise RootfsUnverified(f"{what} has the digest {digest}, but should have {descriptor.digest}")
    if size != descriptor.size:
        raise RootfsUnverified(f"{what} has {size} bytes, but should have {descriptor.size}")


def no_layout(location: str) -> RootfsError:
    """Return the error that there is something else at a location."""
    return RootfsError(
        f"{location} is not an OCI layout: it has neither oci-layout and index.json nor manifest.json",
        remedy="Make one with `skopeo copy docker://NAME oci:DIRECTORY:TAG`; a plain tar is for --archive"
        ' (`source = "archive"`).',
    )


class OciLayer(Record):
    """A layer: where it is, and the digest of it uncompressed. `blob` is None where `path` alone says where it is."""

    path: str
    diff_id: Digest
    blob: Descriptor | None = None


class OciChoice(Record):
    """What is unpacked; `identity` is the SHA-256 of the manifest (or of the config, where there is none).

    `chain` are the digests on the way there, by name: whoever pinned one of them pinned the content.
    """

    identity: str
    layers: tuple[OciLayer, ...]
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


def choose(layout: Layout, *, tag: str, arch: str, pinned: str) -> OciChoice:
    """Return the one that is meant; `arch` is our name of the architecture.

    Raises:
        RootfsUnverified: none has the pinned digest, or a document is not what it should be.
        RootfsUnsafe: a document can't be understood.
        RootfsError: none fits, or several do.
    """
    found = _IndexWalk(layout, tag).find()
    by_tag = [leaf for leaf in found if not tag or any(matches_tag(ref, tag) for ref in leaf.refs)]
    if tag and not by_tag:
        raise RootfsError(
            f"the OCI layout has nothing with the tag {tag!r}", remedy=f"It has these tags: {_refs(found)}."
        )
    if pinned and pinned != layout.archive_digest:
        by_tag = _keep_pinned(by_tag, pinned)
    platforms = {str(leaf.chain[-1].digest): _platform(layout, leaf) for leaf in by_tag}
    fitting = {digest for digest, platform in platforms.items() if fits_platform(platform, arch)}
    if not fitting:
        raise no_platform(platforms.values(), arch)
    leaves = [leaf for leaf in by_tag if str(leaf.chain[-1].digest) in fitting]
    if len(fitting) > 1:
        raise RootfsError(
            f"the OCI layout has {len(fitting)} manifests that match",
            remedy=f"Name a tag (`version`) or pin a manifest (`sha256`). It has these tags: {_refs(leaves)}.",
        )
    return _read_choice(layout, leaves[0], arch)


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


class _IndexWalk:
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
                raise wrong(what, "it refers to far too many others")
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


def _read_choice(layout: Layout, leaf: _Leaf, arch: str) -> OciChoice:
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
    return OciChoice(
        identity=hashlib.sha256(content).hexdigest(),
        layers=tuple(
            OciLayer(path="", blob=blob, diff_id=diff_id) for blob, diff_id in zip(blobs, diff_ids, strict=True)
        ),
        chain=tuple(zip(names, digests, strict=True)),
    )


def _check_kind(document: Document, descriptor: Descriptor, what: str) -> None:
    if get_text(document, "mediaType", what) not in ("", descriptor.kind):
        raise wrong(what, "its media type differs from the one in the descriptor")


def no_platform(platforms: Iterable[tuple[str, str, str]], arch: str) -> RootfsError:
    """Return the error that nothing is for an architecture."""
    there = sorted({plain("/".join(filter(None, platform))) or "nothing known" for platform in platforms})
    return RootfsError(
        f"the OCI layout has nothing for {arch} (linux/{OCI_PLATFORMS[arch]}); it is for: {', '.join(there[:16])}",
        remedy="Copy it again for this architecture, or name another one (`arch`).",
    )


def _refs(leaves: list[_Leaf]) -> str:
    return ", ".join(sorted({f"'{plain(ref)}'" for leaf in leaves for ref in leaf.refs})[:16]) or "none"


def plain(text: str) -> str:
    """Return a word of a layout for a message of ours: short, and without the spaces that would make it a sentence."""
    shown = "".join(sign if sign in _PLAIN else "?" for sign in text[:_LONGEST_SHOWN])
    return f"{shown}..." if len(text) > _LONGEST_SHOWN else shown


def choose_saved(layout: Layout, *, tag: str, arch: str, pinned: str) -> OciChoice:
    """Return the one that is meant; what is pinned is the digest of its config.

    Raises:
        RootfsUnverified: it does not have the pinned digest, or is not what it should be.
        RootfsUnsafe: a document can't be understood.
        RootfsError: none fits, or several do.
    """
    entry = _find_saved(layout, tag)
    path = get_text(entry, "Config", _SAVED)
    content = layout.read_document(path)
    digest = hashlib.sha256(content).hexdigest()
    named = parse_digest("sha256:" + path.rpartition("/")[2].removesuffix(".json"), _SAVED)
    if digest != named.value:
        raise RootfsUnverified(f"the config has the digest sha256:{digest}, but should have {named}")
    if pinned not in ("", digest, layout.archive_digest):
        raise RootfsUnverified(f"the config has the SHA-256 {digest}, but {pinned} is pinned")
    paths = [found for found in get_list(entry, "Layers", _SAVED) if is_text(found)]
    diff_ids = check_config(parse_document(content, "the config"), len(paths), arch)
    return OciChoice(
        identity=digest,
        layers=tuple(OciLayer(path=found, diff_id=diff_id) for found, diff_id in zip(paths, diff_ids, strict=True)),
        chain=(("config", f"sha256:{digest}"),),
    )


def _find_saved(layout: Layout, tag: str) -> Document:
    entries = parse_json(layout.read_document(_SAVED), _SAVED)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise wrong(_SAVED, "it is not a list of objects")
    tags = [_tags_of(entry) for entry in entries]
    fitting: list[Document] = [
        entry
        for entry, names in zip(entries, tags, strict=True)
        if not tag or any(matches_tag(name, tag) for name in names)
    ]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(sorted({f"'{plain(name)}'" for names in tags for name in names})[:16]) or "none"
    raise RootfsError(
        f"{_SAVED} has {len(fitting)} entries that match", remedy=f"Name a tag (`version`). It has these tags: {there}."
    )


def _tags_of(entry: Document) -> list[str]:
    # Null where it has none
    found = get_list(entry, "RepoTags", _SAVED) if entry.get("RepoTags") is not None else []
    return [tag for tag in found if is_text(tag)]


def unpack_layers(
    layout: Layout, layers: Sequence[OciLayer], tree: bytes, means: BuildContext, bounds: Bounds | None = None
) -> tuple[tuple[str, int], ...]:
    """Unpack all layers and return what was left out, by kind.

    Raises:
        RootfsUnverified: a layer is not what it should be, or damaged.
        RootfsUnsafe: a layer is of a kind that can't be had, would write where it must not, or it is all too much.
    """
    for layer in layers:
        if layer.blob is not None and layer.blob.kind not in LAYERS:
            raise _refuse_layer(layer.blob.kind)
    left = bounds or Bounds()
    left_out: dict[str, int] = {}
    for number, layer in enumerate(layers, 1):
        means.report(Progress(step="unpacking layers", done=number - 1, total=len(layers), unit="layer"))
        what = f"layer {number}"
        fd = _open_layer(layout, layer, what)
        try:
            made = _check_uncompressed(fd, layer.diff_id, left, what)
            unpacked = unpack(fd, tree, bounds=left, whiteouts=True)
        finally:
            os.close(fd)
        left = left.replace(total_bytes=left.total_bytes - made, entries=left.entries - unpacked.entries)
        for kind, count in unpacked.left_out:
            left_out[kind] = left_out.get(kind, 0) + count
    return tuple(sorted(left_out.items()))


def _open_layer(layout: Layout, layer: OciLayer, what: str) -> int:
    if layer.blob is not None:
        return layout.copy_blob(layer.blob, what)
    fd, _digest, _size = layout.copy(layer.path, layer.diff_id.algorithm)
    return fd


def _check_uncompressed(fd: int, expected: Digest, bounds: Bounds, what: str) -> int:
    """Check the digest of what comes out of a layer, and return how much that is; the descriptor stands as before."""
    summer, made = hashlib.new(expected.algorithm), 0
    chunks = open_chunks(fd, bounds)
    try:
        for chunk, _read in chunks:
            summer.update(chunk)
            made += len(chunk)
    finally:
        chunks.close()
    os.lseek(fd, 0, os.SEEK_SET)
    found = Digest(algorithm=expected.algorithm, value=summer.hexdigest())
    if found != expected:
        raise RootfsUnverified(f"{what} has uncompressed the digest {found}, but should have {expected}")
    return made


def _refuse_layer(kind: str) -> RootfsUnsafe:
    if "encrypted" in kind:
        why = "it is encrypted"
    elif "nondistributable" in kind or "foreign" in kind:
        why = "it is not distributed with the other layers"
    else:
        why = "unspill does not know this kind"
    return RootfsUnsafe(f"a layer can't be used, {why}: {kind[:100]!r}", remedy="Use one with plain layers.")
