# SPDX-License-Identifier: Apache-2.0
"""Fetches a file from a mirror: resumed where an earlier attempt stopped, bounded, and checked before it is used.

What is fetched lies under its own digest and is the caller's alone (0600). Certificates are always checked, the proxies
of the environment are used, and a redirect never leads to another scheme. A digest that the caller does not have is no
proof: whoever answers for the address decides what it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import io
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from email.utils import parsedate_to_datetime
from http.client import HTTPException

from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.host.dirfd import sync_directory
from unspill.model.rootfs import Progress
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from http.client import HTTPResponse
    from typing import Any, Self

MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
# Chunks of one byte have six bytes around them: what a server may send in all, so that headers, chunks and trailers
# are bounded too
_WRAPPING = 8
_SPARE_BYTES = 1 << 20
_MOST_STATE = 1 << 14
_DIGEST_BLOCK = 1 << 20
_BLOCK = 1 << 18
_REPORT_S = 0.1
_LONGEST_VALIDATOR = 500


class Interrupted(Exception):
    """A server failed in a way that may be over at the next attempt."""


class Timeouts(Record):
    """How long a server may take, in seconds, and how often it is asked.

    Nothing may arrive for `silence`; the headers may take `headers` in all; of the content at least `least_bytes` have
    to arrive in each `window`. `pause` is before the second attempt, and doubles.
    """

    silence: float = 30.0
    headers: float = 60.0
    window: float = 60.0
    least_bytes: int = 1 << 16
    attempts: int = 4
    pause: float = 0.5


class _PacedReader(io.RawIOBase):
    """Reads a socket, and ends with an error where the server is too slow or sends too much."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, timeouts: Timeouts, most_bytes: int) -> None:
        self._sock, self._raw, self._patience = sock, raw, timeouts
        self._left = most_bytes * _WRAPPING + _SPARE_BYTES
        self._ended = False
        self._least: float = float("inf")
        self._got, self._due = 0, time.monotonic() + timeouts.headers

    def expect_content(self) -> None:
        """Go over from the headers, which have one deadline, to the content, which has a least speed.

        Raises:
            ConnectionError: the server stopped within the headers, which http.client takes for their end.
        """
        if self._ended:
            raise ConnectionError("the server stopped in the middle of its headers")
        self._least, self._got, self._due = self._patience.least_bytes, 0, time.monotonic() + self._patience.window

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (now := time.monotonic()) > self._due:
            if self._got < self._least:
                raise TimeoutError("the server is too slow")
            self._got, self._due = 0, now + self._patience.window
        self._sock.settimeout(self._patience.silence)
        count: int = self._raw.readinto(buffer) or 0
        self._ended |= not count
        self._got += count
        self._left -= count
        if self._left < 0:
            raise ConnectionError("the server sends far more data than expected")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, timeouts: Timeouts, most_bytes: int, **options: Any) -> None:
        super().__init__(sock, **options)
        raw = self.fp.detach()
        self._paced = _PacedReader(sock, raw, timeouts, most_bytes)
        self.fp = io.BufferedReader(self._paced)

    def begin(self) -> None:
        super().begin()
        self._paced.expect_content()


class _PacedHandler(urllib.request.AbstractHTTPHandler):
    """Speaks http and https, and nothing else: urllib's usual opener would read files and FTP as well."""

    def __init__(self, timeouts: Timeouts, most_bytes: int) -> None:
        super().__init__()
        self._patience, self._most_bytes = timeouts, most_bytes

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect_safely, request)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def _connect(self, host: str, **options: Any) -> http.client.HTTPConnection:
        return self._pace(http.client.HTTPConnection(host, **options))

    def _connect_safely(self, host: str, **options: Any) -> http.client.HTTPConnection:
        return self._pace(http.client.HTTPSConnection(host, context=ssl.create_default_context(), **options))

    def _pace(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        def respond(sock: socket.socket, **options: Any) -> _PacedResponse:
            return _PacedResponse(sock, self._patience, self._most_bytes, **options)

        connection.response_class = respond  # type: ignore[assignment]  # a class is asked for
        return connection


def check_address(address: str) -> str:
    """Return the scheme of an address that may be asked for.

    Raises:
        RootfsError: it is no http or https address, or has a password in it.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urllib.parse.urlsplit("")
    # urlsplit drops tabs and newlines without a word
    if not host or parts.scheme not in ("http", "https") or not address.isascii() or _has_blanks(address):
        raise RootfsError(
            f"{address[:200]!a} is not an address that unspill can fetch", remedy="Give one that begins with https://"
        )
    if "@" in parts.netloc:
        raise RootfsError(
            "an address must not contain a user name or a password, because it would end up in logs and messages",
            remedy="Download the file yourself and use its path, or use a mirror without a password.",
        )
    return parts.scheme


def open_address(
    address: str, *, most_bytes: int, timeouts: Timeouts, headers: Mapping[str, str] | None = None
) -> http.client.HTTPResponse:
    """Ask for an address and return the response, after redirects within its scheme.

    Its status is 200; where `headers` ask for a range, also 206 or 416.

    Raises:
        Interrupted: it may work at the next attempt.
        RootfsUnreachable: it will not.
    """
    scheme = check_address(address)
    opener = urllib.request.OpenerDirector()
    opener.addheaders = [("User-Agent", "unspill"), ("Accept-Encoding", "identity")]
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(_PacedHandler(timeouts, most_bytes))
    place, headers = address, dict(headers or {})
    for _ in range(MOST_REDIRECTS + 1):
        response = _request(opener, urllib.request.Request(place, headers=headers), timeouts)
        if response.status not in _REDIRECTS:
            return _accept(response, place, (200, 206, 416) if "Range" in headers else (200,))
        with response:
            place = _follow(place, response.headers.get("Location") or "", scheme)
    raise RootfsUnreachable(f"{address} has more than {MOST_REDIRECTS} redirects")


def _request(opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeouts: Timeouts) -> Any:
    try:
        return opener.open(request, timeout=timeouts.silence)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise RootfsUnreachable(
                f"{request.full_url}: the certificate is not trusted: {reason.verify_message}",
                remedy="Check the clock and the address. For a mirror with its own authority, set SSL_CERT_FILE.",
            ) from None
        raise Interrupted(f"{request.full_url}: {describe(reason)}") from None


def _accept(response: http.client.HTTPResponse, place: str, expected: tuple[int, ...]) -> http.client.HTTPResponse:
    if response.status in expected:
        return response
    with response:
        message = f"{place}: the server answered {response.status} {ascii(response.reason[:100])[1:-1]}"
    if response.status >= 500 or response.status in (408, 425, 429):
        raise Interrupted(message)
    raise RootfsUnreachable(message)


def _follow(place: str, location: str, scheme: str) -> str:
    try:
        target = urllib.parse.urljoin(place, location)
        if location and check_address(target) == scheme:
            return target
    except (RootfsError, ValueError):
        pass
    raise RootfsUnreachable(
        f"{place} redirects to {location[:200]!a}, which is not an {scheme} address without a password",
        remedy="If you trust the new place, use its address directly.",
    )


def describe(error: object) -> str:
    """Return what an error of the network says; a server may have written it, so nothing steers a terminal."""
    return ascii(str(error)[:200] or type(error).__name__)[1:-1]


def _has_blanks(address: str) -> bool:
    return any(character <= " " or character == "\x7f" for character in address)


class Version(Record):
    """Which version of the content a server has: what `If-Range` needs, and how long the content is (or 0)."""

    validator: str = ""
    total: int = 0


class Part:
    """A download under way; a context in which nobody else fetches the same.

    `is_pinned` says that the whole will be checked against a digest.
    """

    def __init__(self, downloads: bytes, identity: str, *, is_pinned: bool = False) -> None:
        self._downloads = downloads
        self._is_pinned = is_pinned
        self._stem = os.path.join(downloads, identity.encode())
        self._state = self._file = -1
        self.fetched_meanwhile = ""
        self.version = Version()
        self.size = 0

    def __enter__(self) -> Self:
        os.makedirs(self._downloads, mode=0o700, exist_ok=True)
        try:
            self._lock()
        except BaseException:
            # A lock that stays behind in this process would let the next attempt wait for itself
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._file, self._state):
            if fd >= 0:
                os.close(fd)
        self._file = self._state = -1

    def start_over(self, version: Version) -> None:
        """Forget what there is, and remember which version comes now."""
        os.ftruncate(self._file, 0)
        self.size, self.version = 0, version
        self._save({"validator": version.validator, "total": version.total, "boot": _boot()})

    def append(self, block: bytes) -> None:
        """Add to the end."""
        view = memoryview(block)
        while view:
            written = os.pwrite(self._file, view, self.size)
            self.size += written
            view = view[written:]

    def digest(self) -> str:
        """Return the SHA-256 of what is there."""
        return digest_of(self._file)

    def finish(self, digest: str) -> bytes:
        """Give the file its final name, which is its digest, and return its path."""
        path = os.path.join(self._downloads, digest.encode())
        os.fsync(self._file)
        os.rename(self._stem + b".part", path)
        sync_directory(self._downloads)
        self._save({"sha256": digest})
        os.unlink(self._stem + b".state")
        return path

    def drop(self) -> None:
        """Remove all of it."""
        for ending in (b".part", b".state"):
            try:
                os.unlink(self._stem + ending)
            except FileNotFoundError:
                continue

    def _lock(self) -> None:
        while True:
            self._state = _open_private(self._stem + b".state")
            fcntl.flock(self._state, fcntl.LOCK_EX)
            state = self._load()
            if os.fstat(self._state).st_nlink:
                self._resume(state)
                return
            # Somebody was done while we waited: this is no longer the state, but it tells the result
            if digest := state.get("sha256"):
                self.fetched_meanwhile = str(digest)
                return
            self.__exit__()

    def _resume(self, state: dict[str, Any]) -> None:
        self._file = _open_private(self._stem + b".part")
        size = os.fstat(self._file).st_size
        validator, total = state.get("validator"), state.get("total")
        # After a crash of the machine the file may have a hole where its newest content was
        sound = self._is_pinned or state.get("boot") == _boot()
        known = isinstance(validator, str) and isinstance(total, int)
        if sound and known and size and (validator or size == total):
            self.version, self.size = Version(validator=str(validator), total=int(total or 0)), size
        else:
            os.ftruncate(self._file, 0)

    def _load(self) -> dict[str, Any]:
        try:
            state = json.loads(os.pread(self._state, _MOST_STATE, 0))
        except (ValueError, RecursionError):
            return {}
        return state if isinstance(state, dict) else {}

    def _save(self, state: dict[str, Any]) -> None:
        os.ftruncate(self._state, 0)
        os.pwrite(self._state, json.dumps(state).encode(), 0)


def find_fetched(downloads: bytes, digest: str) -> bytes | None:
    """Return the path of what has this SHA-256, if it was fetched earlier and still has it."""
    path = os.path.join(downloads, digest.encode())
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return path if digest_of(fd) == digest else None
    finally:
        os.close(fd)


def digest_of(fd: int, algorithm: str = "sha256") -> str:
    """Return the digest of a file from its start, without moving its position."""
    summer = hashlib.new(algorithm)
    at = 0
    while block := os.pread(fd, _DIGEST_BLOCK, at):
        summer.update(block)
        at += len(block)
    return summer.hexdigest()


def _open_private(path: bytes) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Fetched(Record):
    """A file that was fetched, and its digest."""

    path: bytes
    sha256: str


def fetch(
    address: str,
    downloads: bytes,
    *,
    sha256: str = "",
    most_bytes: int,
    report: Callable[[Progress], None],
    timeouts: Timeouts | None = None,
) -> Fetched:
    """Fetch a file into `downloads`, or use the one with this SHA-256 that is there already.

    Whoever asks for the same at the same time waits and uses what was fetched.

    Raises:
        RootfsUnreachable: the server can't be reached or fails; what was fetched is kept for the next attempt.
        RootfsUnverified: it is not what `sha256` says, or bigger than `most_bytes`; nothing is kept.
        RootfsError: the address is refused, or the disk is full.
    """

    check_address(address)
    try:
        return _fetch(address, downloads, check_digest(sha256), most_bytes, report, timeouts or Timeouts())
    except OSError as error:
        # Those of the network are others by now
        raise RootfsError(
            f"unspill can't store the download: {error.strerror or error}",
            remedy="Free some space, or choose another rootfs directory. The part downloaded so far is kept.",
        ) from None


def read_text(address: str, *, most_bytes: int, timeouts: Timeouts | None = None) -> str:
    """Return the text of a small file.

    Raises:
        RootfsUnreachable: the server can't be reached or fails.
        RootfsUnverified: it is no UTF-8 text, or bigger than `most_bytes`.
    """

    timeouts = timeouts or Timeouts()
    content = b""

    def ask() -> None:
        nonlocal content
        with open_address(address, most_bytes=most_bytes, timeouts=timeouts) as response:
            content, end = b"", response.length
            _check_size(address, end or 0, most_bytes)
            while block := _read(address, response, len(content), end):
                content += block
                _check_size(address, len(content), most_bytes)
            _check_end(address, len(content), end)

    _try_often(ask, timeouts)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise RootfsUnverified(f"{address} is not text") from None


def check_digest(sha256: str) -> str:
    """Return a SHA-256 in the form that is compared.

    Raises:
        RootfsError: it is none.
    """
    digest = sha256.strip().lower().removeprefix("sha256:")
    if digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
        raise RootfsError(f"{sha256!r} is not a SHA-256", remedy="Use 64 hexadecimal digits.")
    return digest


def _fetch(
    address: str,
    downloads: bytes,
    sha256: str,
    most_bytes: int,
    report: Callable[[Progress], None],
    timeouts: Timeouts,
) -> Fetched:

    while True:
        if sha256 and (path := find_fetched(downloads, sha256)):
            return Fetched(path=path, sha256=sha256)
        with Part(downloads, _identity(address, sha256), is_pinned=bool(sha256)) as part:
            if not part.fetched_meanwhile:
                return _Download(address, part, sha256, most_bytes, report, timeouts).run()
            if path := find_fetched(downloads, part.fetched_meanwhile):
                return Fetched(path=path, sha256=part.fetched_meanwhile)


class _Download:
    """The attempts to fetch one file."""

    def __init__(
        self,
        address: str,
        part: Part,
        sha256: str,
        most_bytes: int,
        report: Callable[[Progress], None],
        timeouts: Timeouts,
    ) -> None:
        self._address, self._part, self._sha256, self._most_bytes = address, part, sha256, most_bytes
        self._report, self._patience = report, timeouts
        self._step = f"fetching {address.rstrip('/').rpartition('/')[2]}"
        self._reported = 0.0
        self._resumed = part.size > 0

    def run(self) -> Fetched:
        """Fetch it, and once more from its start where its resumed parts do not fit together."""
        part, sha256 = self._part, self._sha256
        self._get()
        if self._resumed and sha256 and part.digest() != sha256:
            self._start_over()
            self._get()
        digest = part.digest()
        if sha256 and digest != sha256:
            part.drop()
            raise RootfsUnverified(
                f"{self._address} has the SHA-256 {digest}, but should have {sha256}; unspill removed it"
            )
        self._tell(last=True)
        return Fetched(path=part.finish(digest), sha256=digest)

    def _get(self) -> None:
        try:
            _try_often(self._ask, self._patience)
        except RootfsUnverified:
            self._part.drop()
            raise
        except RootfsUnreachable as error:
            if self._part.size and self._part.version.validator:
                error.remedy += f" The next attempt continues after the {self._part.size} bytes downloaded so far."
            raise

    def _ask(self) -> None:

        part = self._part
        is_whole = part.size == part.version.total
        if part.size and is_whole and self._sha256:
            return
        # One that is whole may be an old one: only its digest could tell
        if part.size and (is_whole or not part.version.validator):
            self._start_over()
        wanted = {"Range": f"bytes={part.size}-", "If-Range": part.version.validator} if part.size else {}
        with open_address(
            self._address, most_bytes=self._most_bytes, timeouts=self._patience, headers=wanted
        ) as response:
            if response.status != 200 and not self._continues(response):
                self._start_over()
                raise Interrupted(f"{self._address}: the server can't resume the download")
            self._receive(response)

    def _continues(self, response: HTTPResponse) -> bool:
        """Whether a response is the rest of what is there, of the same version."""
        part = self._part
        start, _, total = (response.headers.get("Content-Range") or "").removeprefix("bytes ").partition("/")
        if response.status != 206 or not part.size or start.partition("-")[0] != str(part.size):
            return False
        mark = response.headers.get("ETag" if part.version.validator.startswith('"') else "Last-Modified")
        return total in ("*", str(part.version.total or total)) and mark in (None, part.version.validator)

    def _receive(self, response: HTTPResponse) -> None:
        part = self._part
        length = response.length
        self._resumed |= response.status == 206
        if response.status == 200:
            part.start_over(_version(response, length))
        end = None if length is None else part.size + length
        _check_size(self._address, end or 0, self._most_bytes)
        while block := _read(self._address, response, part.size, end):
            _check_size(self._address, part.size + len(block), self._most_bytes)
            part.append(block)
            self._tell()
        _check_end(self._address, part.size, end)

    def _start_over(self) -> None:

        self._part.start_over(Version())

    def _tell(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if last or now - self._reported >= _REPORT_S:
            self._reported = now
            size = self._part.size
            self._report(Progress(step=self._step, done=size, total=size if last else self._part.version.total))


def _try_often(ask: Callable[[], None], timeouts: Timeouts) -> None:

    pause = timeouts.pause
    for attempt in range(1, timeouts.attempts + 1):
        try:
            return ask()
        except Interrupted as error:
            if attempt == timeouts.attempts:
                raise RootfsUnreachable(f"{error} (after {attempt} attempts)") from None
        time.sleep(pause)
        pause *= 2
    return None


def _read(address: str, response: HTTPResponse, size: int, end: int | None) -> bytes:
    """Return what has arrived, so that it is kept whatever comes next; nothing at the end."""
    try:
        return response.read1(_BLOCK if end is None else min(_BLOCK, end - size))
    except (OSError, HTTPException, ValueError) as error:
        raise Interrupted(f"{address}: {describe(error)}") from None


def _check_end(address: str, size: int, end: int | None) -> None:

    if end is not None and size != end:
        raise Interrupted(f"{address}: the server stopped after {size} of {end} bytes")


def _check_size(address: str, size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise RootfsUnverified(
            f"{address} is bigger than {most_bytes} bytes, the largest that unspill fetches",
            remedy="Check the address. If it is right, download the file yourself and use its path.",
        )


def _version(response: HTTPResponse, length: int | None) -> Version:

    return Version(validator=_validator(response), total=length or 0)


def _validator(response: HTTPResponse) -> str:
    """Return what tells this version of the content from every other, byte by byte; nothing where that is not sure."""
    tag, modified, now = (response.headers.get(name, "") for name in ("ETag", "Last-Modified", "Date"))
    if not f"{tag}{modified}".isprintable() or len(tag) + len(modified) > _LONGEST_VALIDATOR:
        return ""
    if tag:
        return tag if tag.startswith('"') else ""
    try:
        # Two versions within one second have the same time
        settled = (parsedate_to_datetime(now) - parsedate_to_datetime(modified)).total_seconds() > 1
    except (TypeError, ValueError, ArithmeticError):
        return ""
    return modified if settled else ""


def _identity(address: str, sha256: str) -> str:
    return hashlib.sha256(f"{address}\n{sha256}".encode()).hexdigest()[:32]
