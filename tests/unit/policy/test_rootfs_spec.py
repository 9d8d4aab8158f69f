# SPDX-License-Identifier: Apache-2.0
"""A spec for a rootfs has plain signs only: what it says becomes part of addresses, paths and commands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.model.rootfs import RootfsSpec
from unspill.policy.config import find_wrong_field, is_rootfs_label, is_rootfs_name, is_web_address

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "spec",
    [
        {"source": "alpine"},
        {"source": "alpine", "version": "3.23.0_rc1", "arch": "x86_64", "tier": 2, "sha256": DIGEST},
        {"source": "alpine", "mirror": "http://127.0.0.1:8000/alpine", "packages": ("g++", "py3-numpy", "a.b_c")},
        {"source": "alpine", "mirror": "https://[2001:db8::1]:8443/a%20b"},
        {"source": "debian", "version": "bookworm"},
        {"source": "archive", "location": "/srv/root.tar.zst", "label": "mine", "sha256": DIGEST},
        {"source": "archive", "location": "https://example.org/root.tar.gz", "label": "mine"},
        {"source": "oci", "location": "/srv/layout", "label": "py3.12", "version": "3.12-slim"},
    ],
    ids=str,
)
def test_a_plain_wish_passes(spec: dict[str, Any]) -> None:
    assert find_wrong_field(RootfsSpec(**spec)) is None


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("source", {"source": "image"}),
        ("source", {"source": ""}),
        ("version", {"source": "alpine", "version": "../3"}),
        ("version", {"source": "alpine", "version": ".."}),
        ("version", {"source": "alpine", "version": "3-x86"}),
        ("version", {"source": "alpine", "version": "-3"}),
        ("arch", {"source": "alpine", "arch": "x86/64"}),
        ("tier", {"source": "alpine", "tier": 0}),
        ("tier", {"source": "alpine", "tier": True}),
        ("packages", {"source": "debian", "packages": ("-o=APT::x",)}),
        ("packages", {"source": "debian", "packages": ("git;id",)}),
        ("packages", {"source": "debian", "packages": ("",)}),
        ("packages", {"source": "debian", "packages": tuple(f"p{n}" for n in range(257))}),
        ("mirror", {"source": "alpine", "mirror": "file:///etc"}),
        ("mirror", {"source": "alpine", "mirror": "https://"}),
        ("mirror", {"source": "alpine", "mirror": "https:///alpine"}),
        ("mirror", {"source": "alpine", "mirror": "https://ann:secret@example.org/"}),
        ("mirror", {"source": "alpine", "mirror": "https://example.org/?a"}),
        ("mirror", {"source": "alpine", "mirror": "https://example.org/\n"}),
        ("mirror", {"source": "alpine", "mirror": "https://example.org/" + "a" * 1024}),
        ("location", {"source": "archive", "label": "x", "location": "root.tar"}),
        ("location", {"source": "archive", "label": "x"}),
        ("location", {"source": "oci", "label": "x", "location": "https://example.org/x"}),
        ("sha256", {"source": "alpine", "sha256": DIGEST.upper()}),
        ("sha256", {"source": "alpine", "sha256": DIGEST[1:]}),
        ("label", {"source": "archive", "location": "/x", "label": "a-b"}),
        ("label", {"source": "archive", "location": "/x", "label": "1"}),
        ("label", {"source": "archive", "location": "/x", "label": "alpine"}),
        ("label", {"source": "archive", "location": "/x", "label": "alpine.z"}),
        ("label", {"source": "oci", "location": "/x", "label": "debian_12"}),
        ("label", {"source": "archive", "location": "/x"}),
        ("label", {"source": "alpine", "label": "mine"}),
        ("location", {"source": "alpine", "location": "/x.tar"}),
        ("mirror", {"source": "archive", "location": "/x", "label": "x", "mirror": "https://example.org"}),
        ("packages", {"source": "oci", "location": "/x", "label": "x", "packages": ("git",)}),
    ],
    ids=str,
)
def test_the_first_field_that_can_not_be_met_is_named(field: str, spec: dict[str, Any]) -> None:
    found = find_wrong_field(RootfsSpec(**spec))
    assert found is not None
    assert found[0] == field
    assert found[1]


@given(st.text(max_size=12))
def test_no_text_that_passes_leaves_its_directory_or_becomes_an_option(text: str) -> None:
    for is_right in (is_rootfs_name, is_rootfs_label):
        if is_right(text):
            assert text.isascii()
            assert text.isprintable()
            assert not set(text) & set("/ \\'\"$&;|<>")
            assert text[0] not in "-."
    if is_web_address(text):
        assert text.isascii()
        assert " " not in text


@pytest.mark.parametrize("label", ["alpine", "alpine.z", "alpine_z", "debian", "debian.12.3", "oci._", "archive_old"])
def test_nothing_is_called_as_if_it_were_of_a_source(label: str) -> None:
    assert not is_rootfs_label(label)
    # The control: it is the beginning alone that is wrong
    assert is_rootfs_label(f"my{label}")
    assert is_rootfs_label(
        label.replace("alpine", "alpines").replace("debian", "deb").replace("oci", "oc").replace("ve", "v")
    )
