# SPDX-License-Identifier: Apache-2.0
"""Digests that are part of our release: what a mirror serves under these names has to be exactly this.

Only values that several independent public projects pin alike for the file of Alpine's own server are here; none was
taken from one place alone. A version that is missing is no error, it only has a weaker proof.
"""

from __future__ import annotations

# (source, version, architecture): SHA-256 of what is fetched
KNOWN = {
    ("alpine", "3.20.3", "aarch64"): "041fa34a81788242df9e78fa69b97ab45b8ec47ddbf88864755610414a7bf3de",
    ("alpine", "3.20.3", "x86_64"): "d4e6fd67dcf75e40c451560ac7265166c2b72a0f38ddc9aae756a7de3d1efa0c",
    ("alpine", "3.20.10", "aarch64"): "61ac877fdbcee6914731bc22a4ed5668ea3470f201f97a7078931c48b71bbeec",
    ("alpine", "3.20.10", "x86_64"): "0d44a414245f043ae56872a23762e6c9bee585da2cbe4aa81cbd0331eaf53223",
    ("alpine", "3.21.3", "aarch64"): "ead8a4b37867bd19e7417dd078748e2312c0aea364403d96758d63ea8ff261ea",
    ("alpine", "3.21.3", "x86_64"): "1a694899e406ce55d32334c47ac0b2efb6c06d7e878102d1840892ad44cd5239",
    ("alpine", "3.22.1", "x86_64"): "0e5cc5702ad72a4e151f219976ba946d50161c3acce210ef3b122a529aba1270",
    ("alpine", "3.22.5", "aarch64"): "3fbc6285032ed46821b511292633d7b2a6306a2e254f590e92bdafff56cf2f70",
    ("alpine", "3.22.5", "x86_64"): "4b4daa9fe2fc696c4919c4412a4c3d3e770d8fb70292a004a2c72f5096175282",
    ("alpine", "3.22.6", "aarch64"): "821565fa8f3953eefd12497b166b4b50add2f7c57fb312e75862f5867e06fefe",
    ("alpine", "3.22.6", "x86_64"): "27694aaa55fd7a9e3ef596e0ad4eb66802308bb20172b17030cd5f4d8ae9bac2",
    ("alpine", "3.23.2", "x86_64"): "b50bf42e519420ca2be48dd0efa22aa087c708d0602b67d413406533bef9dab5",
    ("alpine", "3.23.3", "aarch64"): "f219bb9d65febed9046951b19f2b893b331315740af32c47e39b38fcca4be543",
    ("alpine", "3.23.3", "x86_64"): "42d0e6d8de5521e7bf92e075e032b5690c1d948fa9775efa32a51a38b25460fb",
    ("alpine", "3.23.4", "aarch64"): "9250667a8affac8f1e98086392f80f43f086626701e9bce33398eb9b6c0bd64c",
    ("alpine", "3.23.4", "x86_64"): "85498865362aa7ebececa0d725a2f2e4db7ac4e4b2850b8df21645afa0d03ee3",
    ("alpine", "3.24.1", "aarch64"): "f55a90f69052c5bd6f92cb09a8f47065970830b194c917a006fb94028e721259",
    ("alpine", "3.24.1", "x86_64"): "41f73e3cf5fa919b8aa5ca6b30dc48f0da2720776d7423e2a7748211456fe081",
    ("alpine", "3.24.2", "aarch64"): "9bf70a7f18ea44094cbb5f70c58f9af129c8214745743db0e68e5502cc2ce773",
    ("alpine", "3.24.2", "x86_64"): "c5ca053cfe1d85c5b96dff8b9bc57045f7f184a30ffb6b65776409ca90388677",
}


def known_digest(source: str, version: str, arch: str) -> str:
    """Return the digest that our release has for a rootfs, nothing if it has none."""
    return KNOWN.get((source, version, arch), "")
