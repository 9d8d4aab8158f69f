# SPDX-License-Identifier: Apache-2.0
"""A manifest is read back as it was written, or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import RootfsUnverified
from unspill.model.rootfs import RootfsKey, RootfsManifest, RootfsSpec
from unspill.rootfs.registry import LARGEST_MANIFEST as LARGEST
from unspill.rootfs.registry import NotReady, to_content
from unspill.rootfs.registry import parse_manifest as parse
from unspill.rootfs.registry import read_manifest as read

MANIFEST = RootfsManifest(
    key=RootfsKey(source="alpine", version="3.23.3", arch="x86_64", tier=1),
    spec=RootfsSpec(source="alpine", packages=("jq",)),
    proof="known",
    packages=(("busybox", "1.37"),),
    fetched=(("a.tar.gz", "00" * 32),),
    left_out=(("device", 3),),
    tree="11" * 32,
    entries=7,
    size_bytes=1 << 40,
    created_ns=1_700_000_000_000_000_000,
)

texts = st.text(max_size=8)
kinds = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=32)
counts = st.integers(0, (1 << 63) - 1)
manifests = st.builds(
    RootfsManifest,
    key=st.builds(RootfsKey, source=texts, version=texts, arch=texts, tier=counts, variant=texts),
    spec=st.builds(
        RootfsSpec,
        source=st.sampled_from(["alpine", "debian", "archive", "oci", "kept"]),
        version=texts,
        packages=st.lists(texts, max_size=3).map(tuple),
        location=texts,
    ),
    proof=st.sampled_from(["pinned", "known", "signed", "same-server", "none"]),
    packages=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    left_out=st.lists(st.tuples(kinds, counts), max_size=3).map(tuple),
    tree=st.text("0123456789abcdef", min_size=64, max_size=64),
    entries=counts,
)


@given(manifest=manifests)
def test_what_is_written_is_read_back(manifest: RootfsManifest) -> None:
    assert parse(to_content(manifest)) == manifest


def test_no_part_of_a_manifest_is_one() -> None:
    content = to_content(MANIFEST).rstrip()
    for end in range(len(content)):
        with pytest.raises(NotReady):
            parse(content[:end])


Change = Callable[[dict[str, Any]], object]
DAMAGES: dict[str, Change] = {
    "a version to come": lambda top: top.update(version=2),
    "no version": lambda top: top.pop("version"),
    "a version that only equals one": lambda top: top.update(version=True),
    "a field too many": lambda top: top.update(more=1),
    "a field too few": lambda top: top.pop("tree"),
    "a field too many in the key": lambda top: top["key"].update(more=1),
    "a field too few in the wish": lambda top: top["wish"].pop("mirror"),
    "a text as a count": lambda top: top.update(entries="7"),
    "a truth as a count": lambda top: top.update(entries=True),
    "a fraction": lambda top: top.update(entries=7.5),
    "a count below zero": lambda top: top.update(entries=-1),
    "a count beyond all": lambda top: top.update(entries=1 << 63),
    "a count as a text": lambda top: top.update(tree=7),
    "nothing as a text": lambda top: top.update(tree=None),
    "packages as a text": lambda top: top.update(packages="busybox"),
    "packages without versions": lambda top: top.update(packages=["busybox"]),
    "a pair of three": lambda top: top.update(packages=[["a", "b", "c"]]),
    "left out without a count": lambda top: top.update(left_out=[["device", "3"]]),
    "a proof that is none": lambda top: top.update(proof="believe me"),
    "a source that is none": lambda top: top["wish"].update(source="elsewhere"),
    "a key as a list": lambda top: top.update(key=["alpine"]),
    "words as a digest": lambda top: top.update(tree="\x1b[31mred"),
    "a digest that is too short": lambda top: top.update(tree="11" * 31),
    "no digest": lambda top: top.update(tree=""),
    "words as what was left out": lambda top: top.update(left_out=[["k\x1b[2J", 3]]),
    "a sentence as what was left out": lambda top: top.update(left_out=[["all is well", 3]]),
    "nothing as what was left out": lambda top: top.update(left_out=[["", 3]]),
    "something long as what was left out": lambda top: top.update(left_out=[["x" * 33, 3]]),
    "a number without end": lambda top: top.update(entries=float("inf")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_manifest_that_says_something_else_is_none(damage: str) -> None:
    top = json.loads(to_content(MANIFEST))
    DAMAGES[damage](top)
    with pytest.raises(NotReady):
        parse(json.dumps(top).encode())


CONTENTS = {
    "nothing": b"",
    "spaces": b"  \n",
    "no JSON": b"alpine 3.23.3",
    "a list": b"[1]",
    "a text": b'"x"',
    "bytes that are no text": b'{"version": "\xff"}',
    "a field twice": to_content(MANIFEST).replace(b'"version": 1', b'"version": 1, "version": 1', 1),
    "something after it": to_content(MANIFEST) + b"{}",
    "lists without end": b"[" * 100_000,
    "zeros, as after a crash": b"\0" * 500,
    "too much": b" " * LARGEST + to_content(MANIFEST),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_what_is_not_exactly_a_manifest_is_none(content: str) -> None:
    with pytest.raises(NotReady):
        parse(CONTENTS[content])


def test_a_manifest_that_could_not_be_read_back_is_not_written() -> None:
    with pytest.raises(RootfsUnverified):
        to_content(MANIFEST.replace(packages=(("x" * LARGEST, "1"),)))


@pytest.mark.parametrize("kind", ["missing", "link", "directory", "fifo"])
def test_only_a_file_is_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "real").write_bytes(to_content(MANIFEST))
    place = tmp_path / "manifest.json"
    match kind:
        case "link":
            place.symlink_to("real")
        case "directory":
            place.mkdir()
        case "fifo":
            os.mkfifo(place)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert read(fd, b"real") == MANIFEST
        with pytest.raises(NotReady):
            read(fd, b"manifest.json")
    finally:
        os.close(fd)
