# SPDX-License-Identifier: Apache-2.0
"""Fetches a file from a mirror: resumed where an earlier attempt stopped, bounded, and checked before it is used.

What is fetched lies under its own digest and is the caller's alone (0600). A digest that the caller does not have is no
proof: whoever answers for the address decides what it is.
"""

from __future__ import annotations

import time

from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.record import Record
from unspill.model.rootfs import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPResponse

    from unspill.rootfs.download_http import Patience
    from unspill.rootfs.download_part import Part, Version

_BLOCK = 1 << 18
_REPORT_S = 0.1
_LONGEST_VALIDATOR = 500


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
    patience: Patience | None = None,
) -> Fetched:
    """Fetch a file into `downloads`, or use the one with this SHA-256 that is there already.

    Whoever asks for the same at the same time waits and uses what was fetched.

    Raises:
        RootfsUnreachable: the server can't be reached or fails; what was fetched is kept for the next attempt.
        RootfsUnverified: it is not what `sha256` says, or bigger than `most_bytes`; nothing is kept.
        RootfsError: the address is refused, or the disk is full.
    """
    from unspill.rootfs.download_http import Patience, check_address

    check_address(address)
    try:
        return _fetch(address, downloads, check_digest(sha256), most_bytes, report, patience or Patience())
    except OSError as error:
        # Those of the network are others by now
        raise RootfsError(
            f"what is fetched can't be kept: {error.strerror or error}",
            remedy="Free some space or choose another rootfs directory; what was fetched so far is kept.",
        ) from None


def read_text(address: str, *, most_bytes: int, patience: Patience | None = None) -> str:
    """Return the text of a small file.

    Raises:
        RootfsUnreachable: the server can't be reached or fails.
        RootfsUnverified: it is no UTF-8 text, or bigger than `most_bytes`.
    """
    from unspill.rootfs.download_http import Patience, open_address

    patience = patience or Patience()
    content = b""

    def ask() -> None:
        nonlocal content
        with open_address(address, most_bytes=most_bytes, patience=patience) as response:
            content, end = b"", response.length
            _check_size(address, end or 0, most_bytes)
            while block := _read(address, response, len(content), end):
                content += block
                _check_size(address, len(content), most_bytes)
            _check_end(address, len(content), end)

    _try_often(ask, patience)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise RootfsUnverified(f"{address} is no text") from None


def check_digest(sha256: str) -> str:
    """Return a SHA-256 in the form that is compared.

    Raises:
        RootfsError: it is none.
    """
    digest = sha256.strip().lower().removeprefix("sha256:")
    if digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
        raise RootfsError(f"{sha256!r} is no SHA-256", remedy="Give 64 hexadecimal digits.")
    return digest


def _fetch(
    address: str,
    downloads: bytes,
    sha256: str,
    most_bytes: int,
    report: Callable[[Progress], None],
    patience: Patience,
) -> Fetched:
    from unspill.rootfs.download_part import Part, find_fetched

    while True:
        if sha256 and (path := find_fetched(downloads, sha256)):
            return Fetched(path=path, sha256=sha256)
        with Part(downloads, _identity(address, sha256), is_pinned=bool(sha256)) as part:
            if not part.fetched_meanwhile:
                return _Download(address, part, sha256, most_bytes, report, patience).run()
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
        patience: Patience,
    ) -> None:
        self._address, self._part, self._sha256, self._most_bytes = address, part, sha256, most_bytes
        self._report, self._patience = report, patience
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
            raise RootfsUnverified(f"{self._address} has the SHA-256 {digest}, but should have {sha256}: it is removed")
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
                error.remedy += f" The next attempt goes on after the {self._part.size} bytes that were fetched."
            raise

    def _ask(self) -> None:
        from unspill.rootfs.download_http import Interrupted, open_address

        part = self._part
        is_whole = part.size == part.version.total
        if part.size and is_whole and self._sha256:
            return
        # One that is whole may be an old one: only its digest could tell
        if part.size and (is_whole or not part.version.validator):
            self._start_over()
        wanted = {"Range": f"bytes={part.size}-", "If-Range": part.version.validator} if part.size else {}
        with open_address(
            self._address, most_bytes=self._most_bytes, patience=self._patience, headers=wanted
        ) as response:
            if response.status != 200 and not self._continues(response):
                self._start_over()
                raise Interrupted(f"{self._address}: the server can't go on where it stopped")
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
        from unspill.rootfs.download_part import Version

        self._part.start_over(Version())

    def _tell(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if last or now - self._reported >= _REPORT_S:
            self._reported = now
            size = self._part.size
            self._report(Progress(step=self._step, done=size, total=size if last else self._part.version.total))


def _try_often(ask: Callable[[], None], patience: Patience) -> None:
    from unspill.rootfs.download_http import Interrupted

    pause = patience.pause
    for attempt in range(1, patience.attempts + 1):
        try:
            return ask()
        except Interrupted as error:
            if attempt == patience.attempts:
                raise RootfsUnreachable(f"{error} (after {attempt} attempts)") from None
        time.sleep(pause)
        pause *= 2
    return None


def _read(address: str, response: HTTPResponse, size: int, end: int | None) -> bytes:
    """Return what has arrived, so that it is kept whatever comes next; nothing at the end."""
    from http.client import HTTPException

    from unspill.rootfs.download_http import Interrupted, describe

    try:
        return response.read1(_BLOCK if end is None else min(_BLOCK, end - size))
    except (OSError, HTTPException, ValueError) as error:
        raise Interrupted(f"{address}: {describe(error)}") from None


def _check_end(address: str, size: int, end: int | None) -> None:
    from unspill.rootfs.download_http import Interrupted

    if end is not None and size != end:
        raise Interrupted(f"{address}: the server stopped after {size} of {end} bytes")


def _check_size(address: str, size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise RootfsUnverified(
            f"{address} is bigger than {most_bytes} bytes, the most that is fetched",
            remedy="Check the address; if it is right, fetch the file yourself and give its path.",
        )


def _version(response: HTTPResponse, length: int | None) -> Version:
    from unspill.rootfs.download_part import Version

    return Version(validator=_validator(response), total=length or 0)


def _validator(response: HTTPResponse) -> str:
    """Return what tells this version of the content from every other, byte by byte; nothing where that is not sure."""
    from email.utils import parsedate_to_datetime

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
    import hashlib

    return hashlib.sha256(f"{address}\n{sha256}".encode()).hexdigest()[:32]
