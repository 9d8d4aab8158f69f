# SPDX-License-Identifier: Apache-2.0
"""Which addresses are asked, where a redirect may lead, whom we trust, and which way requests take."""

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.rootfs.serving import Page, Web
from unspill.errors import RootfsError, RootfsUnreachable
from unspill.rootfs.download import Timeouts, check_address, fetch, read_text

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
