# SPDX-License-Identifier: Apache-2.0
"""What is typed after `unspill rootfs`: what it means, and what is refused before anything is asked or fetched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unspill.cli.main import parse
from unspill.cli.rootfs import rootfs, spec_of
from unspill.errors import RootfsError, UsageError
from unspill.model.rootfs import RootfsSpec


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    for name in ("ROOTFS_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "UNSPILL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("fetch",), "unknown word 'fetch'"),
        (("list", "x"), "takes no name"),
        (("use",), "no rootfs given"),
        (("remove",), "no rootfs given"),
        (("remove", "x", "--unused"), "no rootfs given"),
        (("keep",), "no label given"),
        (("pull",), "no source given"),
        (("pull", "arch"), "not a source"),
        (("pull", "alpine", "--tier", "3"), "--tier is not 1 or 2"),
        (("pull", "alpine", "--as", "x"), "--as is for"),
        (("pull", "alpine", "--mirror", "ftp://example.org"), "mirror: must be an address"),
        (("pull", "alpine", "--package", "--root=/"), "packages: each must be"),
        (("pull", "x", "--archive", "a", "--oci", "b"), "--archive and --oci"),
        (("pull", "--archive", "a"), "the rootfs needs one name"),
        (("pull", "x", "--archive", "a", "--as", "y"), "the rootfs needs one name"),
        (("pull", "../x", "--archive", "a"), "label: must be"),
        (("pull", "x", "--archive", "a", "--sha256", "12"), "sha256: must be 64"),
        (("list", "--tools"), "--tools is not for `rootfs list`"),
        (("pull", "alpine", "--unused"), "--unused is not for `rootfs pull`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_typed_wrong_is_named_before_anything_is_asked(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(UsageError) as wrong:
        rootfs.run(parse(rootfs, words))
    assert named in wrong.value.message


@pytest.mark.parametrize("words", ["info", "info x", "use x", "remove x", "verify x", "upgrade", "info --tools"])
def test_one_that_is_not_there_is_an_error_with_a_remedy(words: str) -> None:
    with pytest.raises(RootfsError) as wrong:
        rootfs.run(parse(rootfs, words.split()))
    assert wrong.value.remedy


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        ("alpine", RootfsSpec(source="alpine")),
        (
            "alpine --version 3.23.3 --arch aarch64 --tier 2 --mirror https://example.org/alpine/",
            RootfsSpec(source="alpine", version="3.23.3", arch="aarch64", tier=2, mirror="https://example.org/alpine"),
        ),
        ("debian --package git --package gcc --package git", RootfsSpec(source="debian", packages=("git", "gcc"))),
        ("x --archive /a/b.tar", RootfsSpec(source="archive", label="x", location="/a/b.tar")),
        ("--as x --archive /a/b.tar", RootfsSpec(source="archive", label="x", location="/a/b.tar")),
        ("x --oci /a/b", RootfsSpec(source="oci", label="x", location="/a/b")),
        (
            f"x --archive https://example.org/a.tar --sha256 {'AB' * 32}",
            RootfsSpec(source="archive", label="x", location="https://example.org/a.tar", sha256="ab" * 32),
        ),
    ],
)
def test_words_become_a_wish(words: str, spec: RootfsSpec) -> None:
    assert spec_of(parse(rootfs, ["pull", *words.split()])) == spec


def test_a_relative_path_is_where_the_person_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec_of(parse(rootfs, ["pull", "x", "--archive", "a.tar"])).location == os.fspath(tmp_path / "a.tar")
