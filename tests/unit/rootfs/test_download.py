# SPDX-License-Identifier: Apache-2.0
"""Downloads: what is kept, refused and resumed, which addresses are asked, and what a server may do to us."""

import hashlib
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rootfs.serving import PROXIES, Page, Web
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import Progress
from unspill.rootfs.download import Fetched, Timeouts, check_address, check_digest, fetch, read_text

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


ONCE = Timeouts(attempts=1)
REFUSED = [
    "",
    "a.tar",
    "/etc/passwd",
    "//example.org/a.tar",
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "ftp://example.org/a.tar",
    "data:text/plain,hello",
    "https:///a.tar",
    "https:a.tar",
    "https://user:secret@example.org/a.tar",
    "https://user@example.org/a.tar",
    "https://@example.org/a.tar",
    "https://example.org:port/a.tar",
    "https://example.org:99999/a.tar",
    "https://[::1/a.tar",
    "https://example.org/a b",
    "https://example.org/a\r\nHost: other",
    "https://exam\tple.org/",
    "https://example.org/ä",
    " https://example.org/",
]


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_are_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(RootfsError) as caught:
        fetch(address, os.fsencode(tmp_path / "new"), most_bytes=100, report=print)
    assert caught.value.remedy
    assert "secret" not in caught.value.message
    assert not (tmp_path / "new").exists()
    with pytest.raises(RootfsError):
        read_text(address, most_bytes=100)


@pytest.mark.parametrize("address", ["https://example.org/a", "HTTP://example.org:8080/a?b=c@d", "https://[::1]:1/"])
def test_addresses_that_are_accepted(address: str) -> None:
    assert check_address(address) in ("http", "https")


def read(address: str) -> str:
    return read_text(address, most_bytes=100, timeouts=ONCE)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_within_the_scheme_is_followed(web: Web, status: int) -> None:
    web.pages["/"] = Page(status=status, location="/there")
    web.pages["/there"] = Page(status=status, location=web.address("/last", host="localhost"))
    web.pages["/last"] = Page(b"text")
    assert read(web.address()) == "text"
    assert web.asked[-1].host == f"localhost:{web.port}"


def test_a_redirect_from_https_to_http_is_refused(web: Web, safe_web: Web) -> None:
    safe_web.pages["/"] = Page(status=302, location=web.address("/there"))
    web.pages["/there"] = Page(b"text")
    with pytest.raises(RootfsUnreachable, match="redirects to") as caught:
        read(safe_web.address())
    assert caught.value.remedy
    assert web.asked == []
    # Control: the same redirect within https works, and one who does not look follows it to http
    safe_web.pages["/there"] = Page(b"safe")
    safe_web.pages["/within"] = Page(status=302, location="/there")
    assert read(safe_web.address("/within")) == "safe"
    with urllib.request.urlopen(safe_web.address()) as response:
        assert response.read() == b"text"


def test_a_redirect_from_http_to_https_is_another_scheme_too(web: Web, safe_web: Web) -> None:
    web.pages["/"] = Page(status=302, location=safe_web.address("/"))
    with pytest.raises(RootfsUnreachable, match="redirects to"):
        read(web.address())
    assert safe_web.asked == []


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/hostname",
        "ftp://127.0.0.1/a",
        "data:text/plain,hello",
        "http://user:secret@127.0.0.1/",
        "//user@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "",
    ],
)
def test_a_redirect_that_leads_elsewhere_is_refused(web: Web, location: str) -> None:
    web.pages["/"] = Page(status=302, location=location)
    with pytest.raises(RootfsUnreachable, match="redirects to"):
        read(web.address())
    assert len(web.asked) == 1


@pytest.mark.parametrize(("redirects", "works"), [(5, True), (6, False)])
def test_five_redirects_are_followed_and_no_more(web: Web, redirects: int, works: bool) -> None:
    for number in range(redirects):
        web.pages[f"/{number}"] = Page(status=302, location=f"/{number + 1}")
    web.pages[f"/{redirects}"] = Page(b"text")
    if works:
        assert read(web.address("/0")) == "text"
    else:
        with pytest.raises(RootfsUnreachable, match="more than 5 redirects"):
            read(web.address("/0"))


def test_a_redirect_to_itself_ends(web: Web) -> None:
    web.pages["/"] = Page(status=302, location="/")
    with pytest.raises(RootfsUnreachable, match="more than 5 redirects"):
        read(web.address())
    assert len(web.asked) == 6


def test_a_resumed_download_is_resumed_behind_its_redirect(web: Web, tmp_path: Path) -> None:
    web.pages["/"] = Page(status=302, location="/there")
    web.pages["/there"] = [Page(b"0123456789", etag='"one"', stop_after=4), Page(b"0123456789", etag='"one"')]
    timeouts = ONCE.replace(attempts=2, pause=0.0)
    fetch(web.address(), os.fsencode(tmp_path), most_bytes=100, report=lambda _: None, timeouts=timeouts)
    assert web.asked[-1].range == "bytes=4-"


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(
    safe_web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe_web.pages["/"] = Page(b"text")
    assert read(safe_web.address()) == "text"
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(RootfsUnreachable, match="certificate is not trusted") as caught:
        read_text(safe_web.address(), most_bytes=100)
    assert "SSL_CERT_FILE" in caught.value.remedy
    assert len(safe_web.asked) == 1


def test_a_certificate_for_another_name_is_refused(safe_web: Web) -> None:
    with pytest.raises(RootfsUnreachable, match="certificate is not trusted"):
        read(safe_web.address(host="127.0.0.1"))


@pytest.fixture
def proxy(web: Web) -> Iterator[Web]:
    """A proxy; `web` has cleared the environment of others."""
    with Web() as proxy:
        yield proxy


def test_the_proxy_of_the_environment_is_used(web: Web, proxy: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.pages["/"] = Page(b"direct")
    proxy.pages["http://mirror.example.org/a"] = Page(b"by proxy")
    monkeypatch.setenv("http_proxy", proxy.address())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert read("http://mirror.example.org/a") == "by proxy"
    assert read(web.address()) == "direct"


def test_https_goes_through_the_proxy_sealed(safe_web: Web, proxy: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    safe_web.pages["/"] = Page(b"text")
    monkeypatch.setenv("https_proxy", proxy.address())
    assert read(safe_web.address()) == "text"
    assert [asked.path for asked in proxy.asked] == [f"localhost:{safe_web.port}"]


CONTENT_RESUMED = random.Random(5).randbytes(900_000)
OTHER_RESUMED = random.Random(6).randbytes(900_000)
DIGEST_RESUMED = hashlib.sha256(CONTENT_RESUMED).hexdigest()
OFTEN = ONCE.replace(attempts=4, pause=0.01)
YESTERDAY = time.time() - 86400

FETCH_IN_A_PROCESS = """
import sys, os, resource
if len(sys.argv) > 4:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), -1))
from unspill.rootfs.download import fetch
fetched = fetch(sys.argv[1], os.fsencode(sys.argv[2]), sha256=sys.argv[3], most_bytes=1 << 24, report=lambda _: None)
print(fetched.sha256)
"""


def get_resumed(web: Web, downloads: Path, **options: Any) -> Fetched:
    given: dict[str, Any] = {"most_bytes": 10 << 20, "report": lambda _: None, "timeouts": ONCE, **options}
    return fetch(web.address("/a.tar"), os.fsencode(downloads), **given)


def content(fetched: Fetched) -> bytes:
    return Path(os.fsdecode(fetched.path)).read_bytes()


# How a server marks the version of what it sends, and whether one can go on with that
MARKS: dict[str, tuple[dict[str, Any], bool]] = {
    "strong tag": ({"etag": '"one"'}, True),
    "weak tag": ({"etag": 'W/"one"'}, False),
    "weak tag and time": ({"etag": 'W/"one"', "modified": YESTERDAY}, False),
    "time": ({"modified": YESTERDAY}, True),
    "time of this very second": ({"modified": time.time() + 3600}, False),
    "strong tag and time": ({"etag": '"one"', "modified": YESTERDAY}, True),
    "nothing": ({}, False),
}


@pytest.mark.parametrize("digest", ["", DIGEST_RESUMED], ids=["without digest", "with digest"])
@pytest.mark.parametrize(("mark", "resumed"), MARKS.values(), ids=MARKS)
def test_the_next_attempt_asks_only_for_the_rest(
    web: Web, tmp_path: Path, mark: dict[str, Any], resumed: bool, digest: str
) -> None:
    web.pages["/a.tar"] = [Page(CONTENT_RESUMED, stop_after=400_000, **mark), Page(CONTENT_RESUMED, **mark)]
    with pytest.raises(RootfsUnreachable, match="400000 of 900000") as caught:
        get_resumed(web, tmp_path, sha256=digest)
    assert ("continues after the 400000 bytes" in caught.value.remedy) is resumed
    assert content(get_resumed(web, tmp_path, sha256=digest)) == CONTENT_RESUMED
    assert web.asked[1].range == ("bytes=400000-" if resumed else "")
    assert web.asked[1].sent == (500_000 if resumed else 900_000)
    assert os.listdir(tmp_path) == [DIGEST_RESUMED]


def test_one_call_goes_on_after_each_cut(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [Page(CONTENT_RESUMED, etag='"one"', stop_after=200_000)] * 3 + [
        Page(CONTENT_RESUMED, etag='"one"')
    ]
    assert content(get_resumed(web, tmp_path, timeouts=OFTEN)) == CONTENT_RESUMED
    assert [asked.range for asked in web.asked] == ["", "bytes=200000-", "bytes=400000-", "bytes=600000-"]
    assert sum(asked.sent for asked in web.asked) == 900_000


def test_a_server_that_knows_no_ranges_sends_it_whole_again(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [
        Page(CONTENT_RESUMED, etag='"one"', ranges=False, stop_after=400_000),
        Page(CONTENT_RESUMED, ranges=False),
    ]
    assert content(get_resumed(web, tmp_path, timeouts=OFTEN)) == CONTENT_RESUMED
    assert [asked.sent for asked in web.asked] == [400_000, 900_000]


def test_content_that_changed_between_two_parts_is_fetched_whole(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [Page(CONTENT_RESUMED, etag='"one"', stop_after=400_000), Page(OTHER_RESUMED, etag='"two"')]
    assert content(get_resumed(web, tmp_path, timeouts=OFTEN)) == OTHER_RESUMED
    assert (web.asked[1].range, web.asked[1].if_range, web.asked[1].status) == ("bytes=400000-", '"one"', 200)


class Mixed:
    """A server that goes on with another version under the mark of the first."""

    @staticmethod
    def pages(last: bytes) -> list[Page]:
        return [
            Page(OTHER_RESUMED, etag='"one"', stop_after=400_000),
            Page(CONTENT_RESUMED, etag='"one"'),
            Page(last, etag='"one"'),
        ]


def test_parts_that_do_not_fit_together_are_dropped_and_fetched_whole_once(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Mixed.pages(CONTENT_RESUMED)
    assert content(get_resumed(web, tmp_path, sha256=DIGEST_RESUMED, timeouts=OFTEN)) == CONTENT_RESUMED
    assert [asked.range for asked in web.asked] == ["", "bytes=400000-", ""]
    # Control: without a digest nobody could know
    web.pages["/a.tar"] = Mixed.pages(CONTENT_RESUMED)
    assert content(get_resumed(web, tmp_path, timeouts=OFTEN)) == OTHER_RESUMED[:400_000] + CONTENT_RESUMED[400_000:]


def test_what_is_wrong_as_a_whole_too_is_given_up(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Mixed.pages(OTHER_RESUMED)
    with pytest.raises(RootfsUnverified, match=hashlib.sha256(OTHER_RESUMED).hexdigest()):
        get_resumed(web, tmp_path, sha256=DIGEST_RESUMED, timeouts=OFTEN)
    assert len(web.asked) == 3
    assert os.listdir(tmp_path) == []


WRONG_RESTS = {
    "another start": {"Content-Range": "bytes 399999-899999/900000"},
    "another length": {"Content-Range": "bytes 400000-899999/900001"},
    "no range at all": {"Content-Range": "lines 1-2/3"},
    "another version": {"ETag": '"two"'},
}


@pytest.mark.parametrize("headers", WRONG_RESTS.values(), ids=WRONG_RESTS)
def test_a_rest_that_is_not_the_one_asked_for_is_not_added(web: Web, tmp_path: Path, headers: dict[str, str]) -> None:
    web.pages["/a.tar"] = [
        Page(CONTENT_RESUMED, etag='"one"', stop_after=400_000),
        Page(CONTENT_RESUMED, etag='"one"', headers=headers),
        Page(CONTENT_RESUMED, etag='"one"'),
    ]
    assert content(get_resumed(web, tmp_path, timeouts=OFTEN)) == CONTENT_RESUMED
    assert [asked.range for asked in web.asked] == ["", "bytes=400000-", ""]


def test_a_rest_of_another_time_is_not_added(web: Web, tmp_path: Path) -> None:
    moved = {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
    web.pages["/a.tar"] = [
        Page(CONTENT_RESUMED, modified=YESTERDAY, stop_after=400_000),
        Page(CONTENT_RESUMED, modified=YESTERDAY, headers=moved),
        Page(CONTENT_RESUMED, modified=YESTERDAY),
    ]
    assert content(get_resumed(web, tmp_path, timeouts=OFTEN)) == CONTENT_RESUMED
    assert [asked.range for asked in web.asked] == ["", "bytes=400000-", ""]


def test_a_part_that_is_longer_than_the_content_is_dropped(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [
        Page(CONTENT_RESUMED, etag='"one"', stop_after=400_000),
        Page(b"", status=416, headers={"Content-Range": "bytes */100"}),
        Page(CONTENT_RESUMED, etag='"one"'),
    ]
    assert content(get_resumed(web, tmp_path, timeouts=OFTEN)) == CONTENT_RESUMED


@pytest.mark.parametrize("digest", ["", DIGEST_RESUMED], ids=["without digest", "with digest"])
def test_a_part_that_is_whole_is_asked_for_again_only_where_no_digest_speaks_for_it(
    web: Web, tmp_path: Path, digest: str
) -> None:
    web.pages["/a.tar"] = [Page(CONTENT_RESUMED, etag='"one"', stop_after=400_000), Page(OTHER_RESUMED, etag='"two"')]
    with pytest.raises(RootfsUnreachable):
        get_resumed(web, tmp_path, sha256=digest)
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(CONTENT_RESUMED)
    assert content(get_resumed(web, tmp_path, sha256=digest)) == (CONTENT_RESUMED if digest else OTHER_RESUMED)
    assert len(web.asked) == (1 if digest else 2)


DAMAGED_STATES = ["", "{", "[1]", "[" * 10_000, '{"validator": 1}', '{"sha256": "' + "0" * 64 + '"}']


@pytest.mark.parametrize("text", DAMAGED_STATES, ids=range(len(DAMAGED_STATES)))
def test_a_part_with_a_damaged_state_is_dropped(web: Web, tmp_path: Path, text: str) -> None:
    web.pages["/a.tar"] = [Page(CONTENT_RESUMED, etag='"one"', stop_after=400_000), Page(CONTENT_RESUMED, etag='"one"')]
    with pytest.raises(RootfsUnreachable):
        get_resumed(web, tmp_path)
    (state,) = tmp_path.glob("*.state")
    state.write_text(text)
    assert content(get_resumed(web, tmp_path)) == CONTENT_RESUMED
    assert web.asked[1].range == ""


@pytest.mark.parametrize("digest", ["", DIGEST_RESUMED], ids=["without digest", "with digest"])
def test_a_part_from_before_a_restart_of_the_machine_is_used_only_where_a_digest_speaks_for_the_whole(
    web: Web, tmp_path: Path, digest: str
) -> None:
    web.pages["/a.tar"] = [Page(CONTENT_RESUMED, etag='"one"', stop_after=400_000), Page(CONTENT_RESUMED, etag='"one"')]
    with pytest.raises(RootfsUnreachable):
        get_resumed(web, tmp_path, sha256=digest)
    (state,) = tmp_path.glob("*.state")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"boot": "another"}))
    assert content(get_resumed(web, tmp_path, sha256=digest)) == CONTENT_RESUMED
    assert web.asked[1].range == ("bytes=400000-" if digest else "")


@pytest.mark.parametrize("digest", ["", DIGEST_RESUMED], ids=["without digest", "with digest"])
def test_a_process_that_is_killed_is_followed_by_one_that_asks_for_the_rest(
    web: Web, tmp_path: Path, digest: str
) -> None:
    web.pages["/a.tar"] = [
        Page(CONTENT_RESUMED, etag='"one"', stall_after=600_000),
        Page(CONTENT_RESUMED, etag='"one"'),
    ]
    command = [sys.executable, "-c", FETCH_IN_A_PROCESS, web.address("/a.tar"), os.fspath(tmp_path), digest]
    with subprocess.Popen(command) as first:
        while not any(part.stat().st_size == 600_000 for part in tmp_path.glob("*.part")):
            assert first.poll() is None
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
    second = subprocess.run(command, check=True, capture_output=True, text=True)
    assert second.stdout.strip() == DIGEST_RESUMED
    assert (web.asked[1].range, web.asked[1].sent) == ("bytes=600000-", 300_000)
    assert (tmp_path / DIGEST_RESUMED).read_bytes() == CONTENT_RESUMED
    assert os.listdir(tmp_path) == [DIGEST_RESUMED]


def test_a_full_disk_is_told_and_what_was_fetched_is_kept(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT_RESUMED, etag='"one"')
    command = [sys.executable, "-c", FETCH_IN_A_PROCESS, web.address("/a.tar"), os.fspath(tmp_path), DIGEST_RESUMED]
    full = subprocess.run([*command, "500000"], check=False, capture_output=True, text=True)
    assert "RootfsError: unspill can't store the download: File too large" in full.stderr
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == DIGEST_RESUMED
    assert (web.asked[1].range, web.asked[1].sent) == ("bytes=500000-", 400_000)


TWICE = Timeouts(attempts=2, pause=0.0)
MOST_RAW = 50_000


class RawServer:
    """Sends fixed bytes to whoever asks."""

    def __init__(self) -> None:
        self.answer: Callable[[socket.socket], None] = lambda _: None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/a"

    def send(self, answer: bytes) -> None:
        self.answer = lambda connection: connection.sendall(answer)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(5)
                while not connection.recv(65536).endswith(b"\r\n\r\n"):
                    pass
                self.answer(connection)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture(scope="module")
def raw() -> Iterator[RawServer]:
    with pytest.MonkeyPatch.context() as patch:
        for name in PROXIES:
            patch.delenv(name, raising=False)
            patch.delenv(name.upper(), raising=False)
        server = RawServer()
        yield server
        server.end()


def get_raw(raw: RawServer) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        fetch(raw.address, os.fsencode(downloads), most_bytes=MOST_RAW, report=lambda _: None, timeouts=TWICE)


ANSWERS = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "the oldest HTTP": b"<html>hello</html>",
    "a status that is no number": b"HTTP/1.1 OK\r\n\r\n",
    "a status beyond all": b"HTTP/1.1 99999 x\r\n\r\n",
    "headers that stop": b"HTTP/1.1 200 OK\r\nContent-Le",
    "a rest that nobody asked for": b"HTTP/1.1 206 x\r\nContent-Range: bytes 0-4/5\r\nContent-Length: 5\r\n\r\nhello",
    "a range refused that nobody asked for": b"HTTP/1.1 416 x\r\nContent-Length: 5\r\n\r\nhello",
    "endless lines": b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * 100_000,
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"A: x\r\n" * 5000,
    "a chunk of no size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello",
    "a chunk of a negative size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello",
    "a chunk that stops": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhello",
    "a trailer without end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 400_000,
    "a redirect to no address": b"HTTP/1.1 302 x\r\nLocation: http://[\r\n\r\n",
    "a redirect to too long a name": b"HTTP/1.1 302 x\r\nLocation: http://" + b"a" * 70 + b".example.org/\r\n\r\n",
    "a redirect that steers the terminal": b"HTTP/1.1 302 x\r\nLocation: http://\x1b[2J/\r\n\r\n",
    "a reason that steers the terminal": b"HTTP/1.1 404 \x1b[2J\r\n\r\n",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_answer_is_unreachable(answer: bytes, raw: RawServer) -> None:
    raw.send(answer)
    with pytest.raises(RootfsUnreachable) as caught:
        get_raw(raw)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 700
    with pytest.raises(RootfsUnreachable):
        read_text(raw.address, most_bytes=MOST_RAW, timeouts=TWICE)


@pytest.mark.timeout(600)
def test_a_connection_that_is_reset_is_told(raw: RawServer) -> None:
    def reset(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()

    raw.answer = reset
    with pytest.raises(RootfsUnreachable):
        get_raw(raw)


ODD = {
    "a tag with signs beyond ASCII": b'ETag: "\xff\xfe"\r\n',
    "a tag over two lines": b'ETag: "a\r\n b"\r\n',
    "a tag without end": b'ETag: "' + b"x" * 60_000 + b'"\r\n',
    "a time beyond all": b"Date: x\r\nLast-Modified: Mon, 01 Jan 99999 00:00:00 +99999999999999\r\n",
    "a length twice": b"Content-Length: 10\r\nContent-Length: 10\r\n",
    "an encoding": b"Content-Encoding: gzip\r\n",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("header", ODD.values(), ids=ODD)
def test_odd_headers_do_not_prevent_a_next_attempt(header: bytes, raw: RawServer) -> None:
    several = [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n" + header + b"\r\n01234", b"", b""]
    several[1] = several[0] + b"56789"

    def answer(connection: socket.socket) -> None:
        connection.sendall(several.pop(0))

    raw.answer = answer
    get_raw(raw)


STATUS = [b"HTTP/1.1 ", b"200 ", b"206 ", b"302 ", b"100 ", b"OK"]
HEADERS = [b"Content-Length: ", b"Transfer-Encoding: chunked", b"Content-Range: bytes 0-4/5", b"Location: ", b"ETag: "]
PIECES = st.sampled_from([*STATUS, *HEADERS, b"\r\n", b"\n", b"\0", b":", b"-1", b"5", b"/a", b"hello", b"\xff", b'"'])
HEADS = st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 x\r\nLocation: "])


@pytest.mark.timeout(600)
@given(head=HEADS, pieces=st.lists(PIECES, max_size=12))
def test_any_answer_ends_in_a_file_or_in_our_error(raw: RawServer, head: bytes, pieces: list[bytes]) -> None:
    raw.send(head + b"".join(pieces))
    with suppress(RootfsError):
        get_raw(raw)
