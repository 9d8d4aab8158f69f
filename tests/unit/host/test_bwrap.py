# SPDX-License-Identifier: Apache-2.0
"""Which bwrap is taken, and which never is."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unspill.errors import BwrapMissing, BwrapUnsafe
from unspill.host import bwrap as module
from unspill.host.bwrap import find_bwrap, why_unsafe


@pytest.fixture
def real(bwrap: Path) -> bytes:
    return os.fsencode(bwrap.resolve())


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A program named bwrap in a directory of the caller's; it says so when it is run."""
    directory = tmp_path / "project" / "bin"
    directory.mkdir(parents=True)
    path = directory / "bwrap"
    path.write_text(f"#!/bin/sh\ntouch {directory}/was-run\n")
    path.chmod(0o755)
    return path


def test_the_systems_bwrap_is_found_on_path(real: bytes, bwrap: Path) -> None:
    assert find_bwrap(None, f"/nonexistent:{bwrap.parent}", []) == real


def test_a_configured_bwrap_is_taken_whatever_path_says(real: bytes, bwrap: Path) -> None:
    assert find_bwrap(os.fsencode(bwrap), "", []) == real


def test_a_link_is_resolved_to_what_will_be_run(real: bytes, tmp_path: Path) -> None:
    (tmp_path / "bwrap").symlink_to(os.fsdecode(real))
    assert find_bwrap(None, os.fspath(tmp_path), []) == real


@pytest.mark.parametrize("path", ["", ":", ".", "bin:usr/bin", "/nonexistent"])
def test_without_an_absolute_directory_that_has_one_it_is_missing(
    path: str, tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake.parent)
    with pytest.raises(BwrapMissing) as refused:
        find_bwrap(None, path, [])
    assert "bubblewrap" in refused.value.remedy


def test_a_configured_bwrap_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BwrapMissing, match="elsewhere"):
        find_bwrap(os.fsencode(tmp_path / "elsewhere"), "/usr/bin", [])


def test_a_fake_bwrap_in_the_project_is_passed_over(real: bytes, bwrap: Path, fake: Path) -> None:
    project = os.fsencode(fake.parent.parent)
    assert find_bwrap(None, f"{fake.parent}:{bwrap.parent}", [project]) == real
    assert not (fake.parent / "was-run").exists()


def test_a_fake_bwrap_alone_is_refused_and_not_run(fake: Path) -> None:
    with pytest.raises(BwrapUnsafe, match="may write") as refused:
        find_bwrap(None, os.fspath(fake.parent), [os.fsencode(fake.parent.parent)])
    assert not (fake.parent / "was-run").exists()
    assert refused.value.remedy


def test_a_fake_bwrap_is_refused_by_its_owner_wherever_it_is(fake: Path) -> None:
    with pytest.raises(BwrapUnsafe, match="not by root"):
        find_bwrap(None, os.fspath(fake.parent), [])


def test_without_any_check_the_fake_would_have_been_taken(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_unsafe", lambda _path: "")
    assert find_bwrap(None, os.fspath(fake.parent), []) == os.fsencode(fake)


def test_a_link_in_the_project_is_refused_even_to_the_real_one(real: bytes, tmp_path: Path) -> None:
    (tmp_path / "bwrap").symlink_to(os.fsdecode(real))
    with pytest.raises(BwrapUnsafe, match="may write"):
        find_bwrap(os.fsencode(tmp_path / "bwrap"), "", [os.fsencode(tmp_path)])


def test_a_root_reached_through_a_link_is_the_same_root(fake: Path, tmp_path: Path) -> None:
    (tmp_path / "other-name").symlink_to(fake.parent.parent)
    with pytest.raises(BwrapUnsafe, match="may write"):
        find_bwrap(None, os.fspath(fake.parent), [os.fsencode(tmp_path / "other-name")])


def test_a_root_whose_name_only_starts_alike_forbids_nothing(real: bytes, bwrap: Path) -> None:
    assert find_bwrap(None, os.fspath(bwrap.parent), [real[:-1], os.path.dirname(real)[:-1]]) == real


def test_a_relative_configured_path_is_refused(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fake.parent)
    with pytest.raises(BwrapUnsafe):
        find_bwrap(b"bwrap", "", [])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (stat.S_IFREG | 0o755, ""),
        (stat.S_IFREG | 0o711, ""),
        (stat.S_IFREG | 0o4755, "setuid"),
        (stat.S_IFREG | 0o2755, "setuid"),
        (stat.S_IFREG | 0o644, "executable"),
        (stat.S_IFDIR | 0o755, "regular"),
        (stat.S_IFIFO | 0o755, "regular"),
    ],
)
def test_a_file_is_judged_by_its_mode(mode: int, expected: str, tmp_path: Path) -> None:
    found = os.stat_result((mode, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    reason = module._why_bad_file(os.fsencode(tmp_path / "none"), found)
    assert expected in reason
    assert bool(reason) is bool(expected)


@pytest.mark.kernel
@pytest.mark.parametrize("mapping", [["--map-current-user"], ["--map-root-user"], []])
def test_in_a_user_namespace_the_systems_bwrap_is_still_the_systems(mapping: list[str], real: bytes) -> None:
    assert judged_in_namespace(mapping, real) == ""


@pytest.mark.kernel
@pytest.mark.parametrize("mapping", [["--map-current-user"], ["--map-root-user"]])
def test_in_a_user_namespace_a_fake_is_still_a_fake_even_where_its_owner_is_called_root(
    mapping: list[str], fake: Path
) -> None:
    assert "not by root" in judged_in_namespace(mapping, os.fsencode(fake))


def judged_in_namespace(mapping: list[str], path: bytes) -> str:
    code = "import os, sys; from unspill.host.bwrap import why_unsafe; print(why_unsafe(os.fsencode(sys.argv[1])))"
    command = ["unshare", "--user", *mapping, sys.executable, "-c", code, os.fsdecode(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def roots_own() -> Iterator[Path]:
    """A copy of bwrap that is root's, in a directory that is."""
    with tempfile.TemporaryDirectory(dir="/var/lib") as directory:
        os.chmod(directory, 0o755)
        path = Path(directory) / "bwrap"
        shutil.copyfile("/bin/true", path)
        path.chmod(0o755)
        yield path


def give_capabilities(path: Path) -> None:
    subprocess.run(["setcap", "cap_net_raw+ep", path], check=True)


SPOILERS: dict[str, Callable[[Path], object]] = {
    "setuid": lambda path: path.chmod(0o4755),
    "capabilities": give_capabilities,
    "writable by users other": lambda path: path.chmod(0o757),
    "owned by uid 65534": lambda path: os.chown(path, 65534, 0),
    "executable": lambda path: path.chmod(0o644),
    "writable by users other than its owner": lambda path: path.parent.chmod(0o775),
}


@pytest.mark.root
def test_a_bwrap_of_root_is_trusted_as_control(roots_own: Path) -> None:
    assert why_unsafe(os.fsencode(roots_own)) == ""


@pytest.mark.root
@pytest.mark.parametrize("reason", SPOILERS)
def test_a_bwrap_of_root_is_refused_when_it_is(reason: str, roots_own: Path) -> None:
    SPOILERS[reason](roots_own)
    assert reason in why_unsafe(os.fsencode(roots_own))
