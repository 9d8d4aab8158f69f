# SPDX-License-Identifier: Apache-2.0
"""Masks as directories: what they hide, what they look like, that they are shared and made once, and when they go."""

import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from unspill.errors import SandboxUnavailable
from unspill.layers.mask import MaskUse, find_mask, remove_old_masks

NAMES = (b".env", b"id_rsa")


@pytest.fixture
def state(tmp_path: Path) -> bytes:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return os.fsencode(path)


@pytest.fixture
def live(tmp_path: Path) -> Path:
    path = tmp_path / "live"
    (path / "config" / "deep").mkdir(parents=True)
    return path


def mask_of(state: bytes, live: Path, names: Mapping[bytes, tuple[bytes, ...]]) -> Path:
    found = find_mask(state, os.fsencode(live), names)
    assert found is not None
    return Path(os.fsdecode(found))


def is_whiteout(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def test_a_mask_has_a_whiteout_for_each_name_and_nothing_else(state: bytes, live: Path) -> None:
    mask = mask_of(state, live, {b"": NAMES, b"config/deep": (b".env",)})
    assert sorted(os.listdir(mask)) == [".env", "config", "id_rsa"]
    assert os.listdir(mask / "config") == ["deep"]
    assert all(map(is_whiteout, (mask / ".env", mask / "id_rsa", mask / "config/deep/.env")))


def test_directories_look_like_the_live_ones(state: bytes, live: Path) -> None:
    config = live / "config"
    os.setxattr(config, "user.colour", b"blue")
    config.chmod(0o510)
    os.utime(config, ns=(1, 1_234_567_890_123_456_789))
    live.chmod(0o751)
    mask = mask_of(state, live, {b"": NAMES, b"config": NAMES})
    made = (mask / "config").stat()
    assert (stat.S_IMODE(made.st_mode), made.st_mtime_ns) == (0o510, 1_234_567_890_123_456_789)
    assert os.getxattr(mask / "config", "user.colour") == b"blue"
    assert stat.S_IMODE(mask.stat().st_mode) == 0o751


def test_the_same_mask_serves_all_who_need_the_same(state: bytes, live: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=stat.S_IMODE(live.stat().st_mode))
    first = mask_of(state, live, {b"": NAMES})
    (live / "new").write_text("another time")
    assert mask_of(state, live, {b"": NAMES}) == first == mask_of(state, other, {b"": NAMES})


@pytest.mark.parametrize(
    "change",
    [
        lambda live: live.chmod(0o700),
        lambda live: os.setxattr(live, "user.x", b"y"),
        lambda live: (live / "config").chmod(0o700),
        lambda live: os.utime(live / "config", ns=(5, 5)),
        lambda live: (live / "config/deep").rmdir(),
    ],
)
def test_what_looks_different_gets_another_mask(state: bytes, live: Path, change: object) -> None:
    names = {b"": NAMES, b"config": NAMES, b"config/deep": NAMES}
    live.chmod(0o755)
    first = mask_of(state, live, names)
    change(live)  # type: ignore[operator]
    assert mask_of(state, live, names) != first


def test_other_names_are_another_mask(state: bytes, live: Path) -> None:
    assert mask_of(state, live, {b"": NAMES}) != mask_of(state, live, {b"": NAMES[:1]})


def test_no_names_are_no_mask(state: bytes, live: Path) -> None:
    assert find_mask(state, os.fsencode(live), {b"": (), b"absent": (), b"config": ()}) is None


def test_links_and_files_are_passed_over(state: bytes, live: Path) -> None:
    (live / "link").symlink_to("config")
    (live / "file").write_text("")
    mask = mask_of(state, live, {b"": NAMES, b"link": NAMES, b"file": NAMES, b"file/x": NAMES})
    assert sorted(os.listdir(mask)) == [".env", "id_rsa"]


def test_a_directory_that_does_not_exist_is_hidden_itself(state: bytes, live: Path) -> None:
    mask = mask_of(state, live, {b"": NAMES, b"gone": NAMES, b"config/a/b": NAMES, b"config/a": NAMES, b"no": ()})
    assert sorted(os.listdir(mask)) == [".env", "config", "gone", "id_rsa"]
    assert os.listdir(mask / "config") == ["a"]
    assert all(map(is_whiteout, (mask / "gone", mask / "config/a")))


def test_a_mask_that_only_has_the_name_of_another_is_not_taken_for_it(state: bytes, live: Path) -> None:
    first = mask_of(state, live, {b"": NAMES})
    (first.parent / "about").write_bytes(b"of something else")
    second = mask_of(state, live, {b"": NAMES})
    assert second != first
    assert sorted(os.listdir(second)) == [".env", "id_rsa"]


def test_a_directory_that_its_owner_can_not_write_is_masked(state: bytes, live: Path) -> None:
    live.chmod(0o555)
    try:
        assert is_whiteout(mask_of(state, live, {b"": NAMES}) / ".env")
    finally:
        live.chmod(0o755)


def test_many_at_once_make_one(state: bytes, live: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(mask_of(state, live, {b"": NAMES}))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(os.listdir(state + b"/masks")) == 1


def test_a_mask_that_can_not_be_made_stops_the_run(state: bytes, live: Path) -> None:
    Path(os.fsdecode(state), "masks").write_text("in the way")
    with pytest.raises(SandboxUnavailable, match="can't be masked"):
        find_mask(state, os.fsencode(live), {b"": NAMES})


def test_old_masks_go_unless_somebody_uses_one(state: bytes, live: Path) -> None:
    mask = mask_of(state, live, {b"": NAMES})
    later = time.time_ns() + 10**9
    assert remove_old_masks(state, mask.parent.stat().st_ctime_ns) == 0
    with MaskUse(state):
        assert remove_old_masks(state, later) == 0
    assert mask.is_dir()
    assert remove_old_masks(state, later) == 1
    assert os.listdir(state + b"/masks") == [b".lock"]
    assert mask_of(state, live, {b"": NAMES}) == mask
