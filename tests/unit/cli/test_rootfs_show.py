# SPDX-License-Identifier: Apache-2.0
"""What `unspill rootfs list` and `info` say of a rootfs: what tells two apart, and what is not in its tree."""

import os
from pathlib import Path

import pytest

from tests.unit.rootfs.making import make
from unspill.cli.main import parse
from unspill.cli.rootfs import rootfs, without_lines
from unspill.model.rootfs import RootfsSpec
from unspill.rootfs.registry import Registry


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
