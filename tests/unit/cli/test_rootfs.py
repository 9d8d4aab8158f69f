# SPDX-License-Identifier: Apache-2.0
"""What is typed after `unspill rootfs`, what is refused before anything is fetched, and what `list` and `info` say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.rootfs.making import make
from unspill.cli.main import parse
from unspill.cli.rootfs import rootfs, spec_of, without_lines
from unspill.errors import RootfsError, UsageError
from unspill.model.rootfs import RootfsSpec
from unspill.rootfs.registry import Registry


@pytest.fixture
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    for name in ("ROOTFS_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "UNSPILL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_home")
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


@pytest.mark.usefixtures("_home")
@pytest.mark.parametrize("words", ["info", "info x", "use x", "remove x", "verify x", "upgrade", "info --tools"])
def test_one_that_is_not_there_is_an_error_with_a_remedy(words: str) -> None:
    with pytest.raises(RootfsError) as wrong:
        rootfs.run(parse(rootfs, words.split()))
    assert wrong.value.remedy


@pytest.mark.usefixtures("_home")
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


@pytest.mark.usefixtures("_home")
def test_a_relative_path_is_where_the_person_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec_of(parse(rootfs, ["pull", "x", "--archive", "a.tar"])).location == os.fspath(tmp_path / "a.tar")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry that the command line sees."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "UNSPILL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROOTFS_DIR", os.fspath(tmp_path / "rootfs"))
    return Registry(os.fsencode(tmp_path / "rootfs"))


def listed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert rootfs.run(parse(rootfs, ["list"])) == 0
    return capsys.readouterr().out.splitlines()


def test_packages_beyond_the_tier_tell_two_apart(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    make(registry)
    head, row = listed(capsys)
    assert (head.split()[-1], row.split()[-1]) == ("proof", "known"), "no column for what none has"
    make(registry, spec=RootfsSpec(source="debian", version="1", packages=("gcc", "libc6-dev")))
    make(registry, spec=RootfsSpec(source="debian", version="2", packages=("a1", "b1", "c1", "d1", "e1", "f1")))
    head, plain, two, six = listed(capsys)
    assert head.split()[-1] == "packages"
    assert plain.endswith("known")
    assert two.endswith("known  gcc, libc6-dev")
    assert six.endswith("known  a1, b1, c1, d1 and 2 more")


def test_bits_were_removed_and_entries_left_out() -> None:
    assert without_lines((("device", 2), ("setgid", 5), ("setuid", 1), ("xattr", 3))) == [
        ("left out", "device: 2, xattr: 3"),
        ("removed", "setuid bits of 1 file, setgid bits of 5 files"),
    ]
    assert without_lines((("setgid", 5),)) == [("removed", "setgid bits of 5 files")]
    assert without_lines(()) == []


def test_what_a_manifest_says_does_not_reach_the_terminal_as_it_is() -> None:
    assert without_lines([("k\x1b[2J", 3)]) == [("left out", "k\\u{1b}[2J: 3")]
