# SPDX-License-Identifier: Apache-2.0
"""Downloads: what is kept, what is refused, and what a server may do to us."""

import hashlib
import os
import random
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rootfs.serving import Page, Web
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import Progress
from unspill.rootfs.download import Fetched, Timeouts, check_digest, fetch, read_text

CONTENT = random.Random(5).randbytes(700_000)
OTHER = random.Random(6).randbytes(700_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
MOST = 10 << 20
USUAL = Timeouts(attempts=3, pause=0.01)
HURRIED = Timeouts(silence=0.4, headers=0.6, window=0.4, least_bytes=1000, attempts=3, pause=0.01)


def get(web: Web, downloads: Path, path: str = "/a.tar", **options: Any) -> Fetched:
    given: dict[str, Any] = {"most_bytes": MOST, "report": lambda _: None, "timeouts": USUAL, **options}
    return fetch(web.address(path), os.fsencode(downloads), **given)


def test_download_rootfs(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT)
    fetched = get(web, tmp_path, sha256=DIGEST)
    assert fetched == Fetched(path=os.fsencode(tmp_path / DIGEST), sha256=DIGEST)
    assert Path(os.fsdecode(fetched.path)).read_bytes() == CONTENT
    assert os.listdir(tmp_path) == [DIGEST]


def test_download_rootfs_checksum_mismatch(web: Web, tmp_path: Path) -> None:
    flipped = bytearray(CONTENT)
    flipped[350_000] ^= 1
    web.pages["/a.tar"] = Page(bytes(flipped))
    with pytest.raises(RootfsUnverified) as caught:
        get(web, tmp_path, sha256=DIGEST)
    assert DIGEST in caught.value.message
    assert hashlib.sha256(flipped).hexdigest() in caught.value.message
    assert caught.value.remedy
    assert os.listdir(tmp_path) == []
    # Control: the same bytes pass where nobody says what they should be
    assert get(web, tmp_path).sha256 == hashlib.sha256(flipped).hexdigest()


def test_a_swapped_checksum_and_file_pass_only_where_the_checksum_is_the_servers(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(OTHER)
    web.pages["/a.tar.sha256"] = Page(f"{hashlib.sha256(OTHER).hexdigest()}  a.tar\n".encode())
    told = read_text(web.address("/a.tar.sha256"), most_bytes=200).split()[0]
    assert get(web, tmp_path, sha256=told).sha256 == told
    with pytest.raises(RootfsUnverified):
        get(web, tmp_path, sha256=DIGEST)


def test_what_is_fetched_is_the_persons_alone_and_can_not_be_executed(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT)
    previous = os.umask(0)
    try:
        fetched = get(web, tmp_path / "new")
    finally:
        os.umask(previous)
    assert stat.S_IMODE(os.stat(fetched.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700


def test_what_was_fetched_is_used_again_without_asking(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT)
    get(web, tmp_path, sha256=DIGEST)
    assert get(web, tmp_path, sha256=f"sha256:{DIGEST.upper()}").sha256 == DIGEST
    assert web.count("/a.tar") == 1


def test_what_was_fetched_and_is_no_longer_itself_is_fetched_again(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT)
    path = Path(os.fsdecode(get(web, tmp_path, sha256=DIGEST).path))
    path.write_bytes(OTHER)
    assert Path(os.fsdecode(get(web, tmp_path, sha256=DIGEST).path)).read_bytes() == CONTENT
    assert web.count("/a.tar") == 2


def test_without_a_digest_it_is_always_asked_for(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [Page(CONTENT), Page(OTHER)]
    first, second = get(web, tmp_path), get(web, tmp_path)
    assert (first.sha256, second.sha256) == (DIGEST, hashlib.sha256(OTHER).hexdigest())
    assert Path(os.fsdecode(first.path)).read_bytes() == CONTENT


def test_an_empty_file_is_a_file(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(b"")
    assert get(web, tmp_path).sha256 == hashlib.sha256().hexdigest()


def test_a_link_in_the_place_of_a_part_is_not_written_through(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT, stop_after=1000)
    with pytest.raises(RootfsUnreachable):
        get(web, tmp_path)
    (part,) = tmp_path.glob("*.part")
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    part.unlink()
    part.symlink_to(victim)
    with pytest.raises(RootfsError, match="can't store the download"):
        get(web, tmp_path)
    assert victim.read_bytes() == b"mine"


def test_a_directory_that_can_not_be_written_is_told(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RootfsError, match="can't store the download") as caught:
        get(web, tmp_path / "file")
    assert "rootfs directory" in caught.value.remedy


def test_progress_goes_up_to_the_whole(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT, block=100_000, pause=0.05)
    told: list[Progress] = []
    get(web, tmp_path, report=told.append, timeouts=Timeouts())
    assert [progress.done for progress in told] == sorted(progress.done for progress in told)
    assert told[-1] == Progress(step="fetching a.tar", done=len(CONTENT), total=len(CONTENT))
    assert {progress.total for progress in told} == {len(CONTENT)}
    assert len(told) > 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 204, 304])
def test_an_answer_that_will_not_change_is_not_asked_for_again(web: Web, tmp_path: Path, status: int) -> None:
    web.pages["/a.tar"] = Page(b"", status=status)
    with pytest.raises(RootfsUnreachable, match=str(status)) as caught:
        get(web, tmp_path)
    assert caught.value.remedy
    assert web.count("/a.tar") == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_a_few_times(web: Web, tmp_path: Path, status: int) -> None:
    web.pages["/a.tar"] = Page(b"", status=status)
    with pytest.raises(RootfsUnreachable, match=f"{status}.*after 3 attempts"):
        get(web, tmp_path)
    assert web.count("/a.tar") == 3
    web.pages["/a.tar"] = [Page(b"", status=status), Page(b"", status=status), Page(CONTENT)]
    assert get(web, tmp_path).sha256 == DIGEST


def test_nobody_listening_is_told(web: Web, tmp_path: Path) -> None:
    with Web() as gone:
        address = gone.address("/a.tar")
    with pytest.raises(RootfsUnreachable, match="refused") as caught:
        fetch(address, os.fsencode(tmp_path), most_bytes=MOST, report=print, timeouts=USUAL)
    assert "Check the network" in caught.value.remedy


SLOW = {
    "nothing after the first bytes": Page(CONTENT, stall_after=5000),
    "no headers": Page(CONTENT, slow_headers=0.3),
    "a few bytes now and then": Page(CONTENT, block=10, pause=0.05),
    "a few chunks now and then": Page(CONTENT, block=10, pause=0.05, chunked=True),
}


@pytest.mark.parametrize("page", SLOW.values(), ids=SLOW)
def test_a_server_that_takes_too_long_is_given_up(web: Web, tmp_path: Path, page: Page) -> None:
    web.pages["/a.tar"] = page
    begun = time.monotonic()
    with pytest.raises(RootfsUnreachable):
        get(web, tmp_path, timeouts=HURRIED.replace(attempts=1))
    assert time.monotonic() - begun < 20


def test_a_slow_server_that_keeps_the_least_speed_is_waited_for(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT[:10_000], block=1000, pause=0.05)
    timeouts = USUAL.replace(window=0.2, least_bytes=1, attempts=1)
    assert get(web, tmp_path, timeouts=timeouts).sha256 == hashlib.sha256(CONTENT[:10_000]).hexdigest()


TOO_MUCH = {
    "told in advance": Page(CONTENT),
    "told too late": Page(CONTENT, chunked=True),
    "endless": Page(endless=True),
    "endless chunks": Page(endless=True, chunked=True),
    "a length beyond all bounds": Page(CONTENT, length=1 << 80),
}


@pytest.mark.parametrize("page", TOO_MUCH.values(), ids=TOO_MUCH)
def test_more_than_the_most_is_refused_and_nothing_is_kept(web: Web, tmp_path: Path, page: Page) -> None:
    web.pages["/a.tar"] = page
    with pytest.raises(RootfsUnverified, match="bigger than 600000"):
        get(web, tmp_path, most_bytes=600_000)
    assert os.listdir(tmp_path) == []
    with pytest.raises(RootfsUnverified, match="bigger than 600000"):
        read_text(web.address("/a.tar"), most_bytes=600_000, timeouts=USUAL)


def test_exactly_the_most_is_accepted(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT, chunked=True)
    assert get(web, tmp_path, most_bytes=len(CONTENT)).sha256 == DIGEST


def test_two_who_fetch_at_once_fetch_once(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = web.pages["/b.tar"] = Page(CONTENT, block=100_000, pause=0.05)
    found: list[Fetched] = []

    def work(path: str, sha256: str) -> None:
        found.append(get(web, tmp_path, path, sha256=sha256, timeouts=Timeouts()))

    crowd = [threading.Thread(target=work, args=case) for case in [("/a.tar", DIGEST), ("/b.tar", "")] * 4]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    assert found == [Fetched(path=os.fsencode(tmp_path / DIGEST), sha256=DIGEST)] * 8
    assert (web.count("/a.tar"), web.count("/b.tar")) == (1, 1)
    assert os.listdir(tmp_path) == [DIGEST]


def test_whoever_waits_for_one_that_fails_fetches_itself(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, stall_after=1000), Page(CONTENT)]
    failed: list[RootfsError] = []

    def fail() -> None:
        try:
            get(web, tmp_path, timeouts=HURRIED.replace(attempts=1))
        except RootfsError as error:
            failed.append(error)

    first = threading.Thread(target=fail)
    first.start()
    while not list(tmp_path.glob("*.part")):
        time.sleep(0.01)
    assert get(web, tmp_path).sha256 == DIGEST
    first.join()
    assert len(failed) == 1


def test_a_text_is_read_whole(web: Web) -> None:
    web.pages["/index"] = Page("ä: 1\n".encode())
    assert read_text(web.address("/index"), most_bytes=6) == "ä: 1\n"


def test_what_is_no_text_is_refused(web: Web) -> None:
    web.pages["/index"] = Page(b"\xff\xfe")
    with pytest.raises(RootfsUnverified, match="not text"):
        read_text(web.address("/index"), most_bytes=100)


def test_a_text_that_stops_early_is_read_again(web: Web) -> None:
    web.pages["/index"] = [Page(b"whole", stop_after=3), Page(b"whole", chunked=True, stop_after=3), Page(b"whole")]
    assert read_text(web.address("/index"), most_bytes=100, timeouts=USUAL) == "whole"


@pytest.mark.parametrize("digest", ["abc", "g" * 64, "0" * 63, "sha512:" + "0" * 64, "../" + "0" * 61])
def test_what_is_no_digest_is_refused_before_anything_is_asked(web: Web, tmp_path: Path, digest: str) -> None:
    with pytest.raises(RootfsError, match="not a SHA-256"):
        get(web, tmp_path, sha256=digest)
    assert web.asked == []
    assert check_digest("sha256:" + "A" * 64) == "a" * 64
