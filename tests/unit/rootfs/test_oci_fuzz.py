# SPDX-License-Identifier: Apache-2.0
"""Documents of an OCI layout with anything in any place: they are understood, or refused by one of our errors."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rootfs.layouts import OCI, LayoutMaker, Workshop, digest, to_json
from tests.unit.rootfs.test_oci import BASE, wish_for
from tests.unit.rootfs.test_oci_saved import Saved
from unspill.errors import RootfsError
from unspill.rootfs.oci import OciSource

pytestmark = pytest.mark.timeout(600)

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
