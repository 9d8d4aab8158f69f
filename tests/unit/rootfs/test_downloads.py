# SPDX-License-Identifier: Apache-2.0
"""What was fetched goes when nobody needs it, and never under the hands of somebody who fetches or builds."""

import fcntl
import os
from pathlib import Path

import pytest

from tests.unit.rootfs.making import make
from tests.unit.rootfs.serving import Page, Web
from unspill.rootfs.download import Part, Version, fetch
from unspill.rootfs.layout import Staging
from unspill.rootfs.registry import Registry, empty_downloads, measure_downloads

SIZE = 100_000
DIGEST = "ab" * 32


@pytest.fixture
def directory(tmp_path: Path) -> bytes:
    """A rootfs directory with one rootfs and nothing fetched."""
    registry = Registry(os.fsencode(tmp_path / "rootfs"))
    make(registry)
    return registry.directory


def put(directory: bytes, name: str, size: int = SIZE) -> Path:
    path = Path(os.fsdecode(directory), "downloads", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def left(directory: bytes) -> list[str]:
    top = Path(os.fsdecode(directory), "downloads")
    return sorted(os.fspath(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def test_all_that_nobody_uses_goes_and_is_counted(directory: bytes) -> None:
    for name in (DIGEST, "one.part", "two.part", "debian-amd64-1.lists", "debian-amd64-0/archives/git.deb"):
        put(directory, name)
    put(directory, "one.state", 100)
    counted = measure_downloads(directory)
    assert 5 * SIZE <= counted < 6 * SIZE
    assert empty_downloads(directory) == counted
    assert os.listdir(os.path.join(directory, b"downloads")) == []
    assert (empty_downloads(directory), measure_downloads(directory)) == (0, 0)
    assert len(Registry(directory).list()) == 1


def test_a_download_under_way_is_left_alone(directory: bytes) -> None:
    with Part(os.path.join(directory, b"downloads"), "mine") as part:
        part.start_over(Version(validator='"1"', total=SIZE))
        part.append(b"x" * (SIZE // 2))
        assert empty_downloads(directory) == 0
        part.append(b"y" * (SIZE // 2))
        path = part.finish(part.digest())
    assert os.path.getsize(path) == SIZE
    # Control: the same, when nobody goes on with it
    with Part(os.path.join(directory, b"downloads"), "mine") as part:
        part.append(b"x" * SIZE)
    assert empty_downloads(directory) >= 2 * SIZE
    assert left(directory) == []


def test_a_download_that_can_not_begin_keeps_no_lock(directory: bytes) -> None:
    downloads = os.path.join(directory, b"downloads")
    os.makedirs(downloads + b"/mine.part")
    with pytest.raises(IsADirectoryError), Part(downloads, "mine"):
        pass
    with open(downloads + b"/mine.state") as state:
        fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rmdir(downloads + b"/mine.part")
    with Part(downloads, "mine") as part:
        assert part.size == 0


def test_what_is_whole_stays_as_long_as_somebody_builds(directory: bytes) -> None:
    whole = put(directory, DIGEST)
    with Staging(directory, "alpine"):
        assert empty_downloads(directory) == 0
        assert whole.exists()
    # The dead need nothing
    Path(os.fsdecode(directory), "staging/alpine.0123").mkdir()
    assert empty_downloads(directory) >= SIZE


def test_what_was_removed_is_fetched_again(directory: bytes, web: Web) -> None:
    web.pages["/a.tar"] = Page(b"content")
    downloads = os.path.join(directory, b"downloads")
    for count in (1, 2):
        fetched = fetch(web.address("/a.tar"), downloads, most_bytes=SIZE, report=lambda _progress: None)
        assert Path(os.fsdecode(fetched.path)).read_bytes() == b"content"
        assert web.count("/a.tar") == count
        assert empty_downloads(directory) > 0


def test_where_there_is_no_directory_nothing_is_removed(tmp_path: Path) -> None:
    assert empty_downloads(os.fsencode(tmp_path / "none")) == measure_downloads(os.fsencode(tmp_path / "none")) == 0
    assert list(tmp_path.iterdir()) == []
