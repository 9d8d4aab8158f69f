# SPDX-License-Identifier: Apache-2.0
"""OCI layouts as a source: layers one over the other, which manifest is meant, and what speaks for it."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rootfs.layouts import (
    DOCKER,
    SHELL,
    Entry,
    Fields,
    LayoutMaker,
    Workshop,
    device,
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
from unspill.rootfs.oci import OciSource
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
