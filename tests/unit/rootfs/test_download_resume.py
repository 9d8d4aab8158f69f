# SPDX-License-Identifier: Apache-2.0
"""Downloads that are cut off: only the rest is asked for, and parts of two versions never become one file."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rootfs.serving import Page, Web
from unspill.errors import RootfsUnreachable, RootfsUnverified
from unspill.rootfs.download import Fetched, Timeouts, fetch

CONTENT = random.Random(5).randbytes(900_000)
OTHER = random.Random(6).randbytes(900_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ONCE = Timeouts(attempts=1)
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


def get(web: Web, downloads: Path, **options: Any) -> Fetched:
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


@pytest.mark.parametrize("digest", ["", DIGEST], ids=["without digest", "with digest"])
@pytest.mark.parametrize(("mark", "resumed"), MARKS.values(), ids=MARKS)
def test_the_next_attempt_asks_only_for_the_rest(
    web: Web, tmp_path: Path, mark: dict[str, Any], resumed: bool, digest: str
) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, stop_after=400_000, **mark), Page(CONTENT, **mark)]
    with pytest.raises(RootfsUnreachable, match="400000 of 900000") as caught:
        get(web, tmp_path, sha256=digest)
    assert ("continues after the 400000 bytes" in caught.value.remedy) is resumed
    assert content(get(web, tmp_path, sha256=digest)) == CONTENT
    assert web.asked[1].range == ("bytes=400000-" if resumed else "")
    assert web.asked[1].sent == (500_000 if resumed else 900_000)
    assert os.listdir(tmp_path) == [DIGEST]


def test_one_call_goes_on_after_each_cut(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, etag='"one"', stop_after=200_000)] * 3 + [Page(CONTENT, etag='"one"')]
    assert content(get(web, tmp_path, timeouts=OFTEN)) == CONTENT
    assert [asked.range for asked in web.asked] == ["", "bytes=200000-", "bytes=400000-", "bytes=600000-"]
    assert sum(asked.sent for asked in web.asked) == 900_000


def test_a_server_that_knows_no_ranges_sends_it_whole_again(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, etag='"one"', ranges=False, stop_after=400_000), Page(CONTENT, ranges=False)]
    assert content(get(web, tmp_path, timeouts=OFTEN)) == CONTENT
    assert [asked.sent for asked in web.asked] == [400_000, 900_000]


def test_content_that_changed_between_two_parts_is_fetched_whole(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, etag='"one"', stop_after=400_000), Page(OTHER, etag='"two"')]
    assert content(get(web, tmp_path, timeouts=OFTEN)) == OTHER
    assert (web.asked[1].range, web.asked[1].if_range, web.asked[1].status) == ("bytes=400000-", '"one"', 200)


class Mixed:
    """A server that goes on with another version under the mark of the first."""

    @staticmethod
    def pages(last: bytes) -> list[Page]:
        return [
            Page(OTHER, etag='"one"', stop_after=400_000),
            Page(CONTENT, etag='"one"'),
            Page(last, etag='"one"'),
        ]


def test_parts_that_do_not_fit_together_are_dropped_and_fetched_whole_once(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Mixed.pages(CONTENT)
    assert content(get(web, tmp_path, sha256=DIGEST, timeouts=OFTEN)) == CONTENT
    assert [asked.range for asked in web.asked] == ["", "bytes=400000-", ""]
    # Control: without a digest nobody could know
    web.pages["/a.tar"] = Mixed.pages(CONTENT)
    assert content(get(web, tmp_path, timeouts=OFTEN)) == OTHER[:400_000] + CONTENT[400_000:]


def test_what_is_wrong_as_a_whole_too_is_given_up(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Mixed.pages(OTHER)
    with pytest.raises(RootfsUnverified, match=hashlib.sha256(OTHER).hexdigest()):
        get(web, tmp_path, sha256=DIGEST, timeouts=OFTEN)
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
        Page(CONTENT, etag='"one"', stop_after=400_000),
        Page(CONTENT, etag='"one"', headers=headers),
        Page(CONTENT, etag='"one"'),
    ]
    assert content(get(web, tmp_path, timeouts=OFTEN)) == CONTENT
    assert [asked.range for asked in web.asked] == ["", "bytes=400000-", ""]


def test_a_rest_of_another_time_is_not_added(web: Web, tmp_path: Path) -> None:
    moved = {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
    web.pages["/a.tar"] = [
        Page(CONTENT, modified=YESTERDAY, stop_after=400_000),
        Page(CONTENT, modified=YESTERDAY, headers=moved),
        Page(CONTENT, modified=YESTERDAY),
    ]
    assert content(get(web, tmp_path, timeouts=OFTEN)) == CONTENT
    assert [asked.range for asked in web.asked] == ["", "bytes=400000-", ""]


def test_a_part_that_is_longer_than_the_content_is_dropped(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = [
        Page(CONTENT, etag='"one"', stop_after=400_000),
        Page(b"", status=416, headers={"Content-Range": "bytes */100"}),
        Page(CONTENT, etag='"one"'),
    ]
    assert content(get(web, tmp_path, timeouts=OFTEN)) == CONTENT


@pytest.mark.parametrize("digest", ["", DIGEST], ids=["without digest", "with digest"])
def test_a_part_that_is_whole_is_asked_for_again_only_where_no_digest_speaks_for_it(
    web: Web, tmp_path: Path, digest: str
) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, etag='"one"', stop_after=400_000), Page(OTHER, etag='"two"')]
    with pytest.raises(RootfsUnreachable):
        get(web, tmp_path, sha256=digest)
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(CONTENT)
    assert content(get(web, tmp_path, sha256=digest)) == (CONTENT if digest else OTHER)
    assert len(web.asked) == (1 if digest else 2)


DAMAGED_STATES = ["", "{", "[1]", "[" * 10_000, '{"validator": 1}', '{"sha256": "' + "0" * 64 + '"}']


@pytest.mark.parametrize("text", DAMAGED_STATES, ids=range(len(DAMAGED_STATES)))
def test_a_part_with_a_damaged_state_is_dropped(web: Web, tmp_path: Path, text: str) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, etag='"one"', stop_after=400_000), Page(CONTENT, etag='"one"')]
    with pytest.raises(RootfsUnreachable):
        get(web, tmp_path)
    (state,) = tmp_path.glob("*.state")
    state.write_text(text)
    assert content(get(web, tmp_path)) == CONTENT
    assert web.asked[1].range == ""


@pytest.mark.parametrize("digest", ["", DIGEST], ids=["without digest", "with digest"])
def test_a_part_from_before_a_restart_of_the_machine_is_used_only_where_a_digest_speaks_for_the_whole(
    web: Web, tmp_path: Path, digest: str
) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, etag='"one"', stop_after=400_000), Page(CONTENT, etag='"one"')]
    with pytest.raises(RootfsUnreachable):
        get(web, tmp_path, sha256=digest)
    (state,) = tmp_path.glob("*.state")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"boot": "another"}))
    assert content(get(web, tmp_path, sha256=digest)) == CONTENT
    assert web.asked[1].range == ("bytes=400000-" if digest else "")


@pytest.mark.parametrize("digest", ["", DIGEST], ids=["without digest", "with digest"])
def test_a_process_that_is_killed_is_followed_by_one_that_asks_for_the_rest(
    web: Web, tmp_path: Path, digest: str
) -> None:
    web.pages["/a.tar"] = [Page(CONTENT, etag='"one"', stall_after=600_000), Page(CONTENT, etag='"one"')]
    command = [sys.executable, "-c", FETCH_IN_A_PROCESS, web.address("/a.tar"), os.fspath(tmp_path), digest]
    with subprocess.Popen(command) as first:
        while not any(part.stat().st_size == 600_000 for part in tmp_path.glob("*.part")):
            assert first.poll() is None
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
    second = subprocess.run(command, check=True, capture_output=True, text=True)
    assert second.stdout.strip() == DIGEST
    assert (web.asked[1].range, web.asked[1].sent) == ("bytes=600000-", 300_000)
    assert (tmp_path / DIGEST).read_bytes() == CONTENT
    assert os.listdir(tmp_path) == [DIGEST]


def test_a_full_disk_is_told_and_what_was_fetched_is_kept(web: Web, tmp_path: Path) -> None:
    web.pages["/a.tar"] = Page(CONTENT, etag='"one"')
    command = [sys.executable, "-c", FETCH_IN_A_PROCESS, web.address("/a.tar"), os.fspath(tmp_path), DIGEST]
    full = subprocess.run([*command, "500000"], check=False, capture_output=True, text=True)
    assert "RootfsError: unspill can't store the download: File too large" in full.stderr
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == DIGEST
    assert (web.asked[1].range, web.asked[1].sent) == ("bytes=500000-", 400_000)
