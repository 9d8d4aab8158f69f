# SPDX-License-Identifier: Apache-2.0
"""What `docker save` wrote before it wrote OCI layouts."""

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rootfs.layouts import SHELL, Workshop, digest, file, sha256, tar_of, to_json, without_shell
from tests.unit.rootfs.test_oci import fill, wish_for
from unspill.errors import RootfsError, RootfsUnverified

LAYERS = [tar_of(*SHELL, file("a", b"1")), tar_of(file(".wh.a"), file("b", b"2"))]


class Saved:
    """The files of a `docker save`; they can be changed before `pack`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.config: dict[str, Any] = {
            "os": "linux",
            "architecture": "amd64",
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in LAYERS]},
        }
        self.layers = ["one/layer.tar", "two/layer.tar"]
        self.entries: object = None
        self.name = ""

    def write(self) -> Path:
        for number, layer in zip(("one", "two"), LAYERS, strict=True):
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


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "shop")


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
