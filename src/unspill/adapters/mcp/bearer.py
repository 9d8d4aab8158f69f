# SPDX-License-Identifier: Apache-2.0
"""The token that clients of the HTTP server show: kept in a file of the person's own, made if there is none.

It is never an argument of a program, which others could see in `ps`, never a variable and never logged.
"""

from __future__ import annotations

import hmac
import os
import stat

from unspill.errors import UsageError
from unspill.host.writing import write_whole
from unspill.policy.paths import show
from unspill.store.state import make_parents

# 32 random bytes are 43 letters
_LEAST = 32
_MOST = 512
_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=")


class Token:
    """What a client must show. It has no text form, so that no message or traceback ever has it."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def is_given(self, shown: bytes) -> bool:
        """Tell whether this is it, in a time that does not depend on where the two differ."""
        return hmac.compare_digest(shown, self._value)


def load_token(path: bytes) -> Token:
    """Return the token in a file, which is made with a new one if it is missing.

    Raises:
        UsageError: somebody else owns the file or can read it, or what it holds is no token.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _refused(path, f"can't be read: {error.strerror}") from error
    try:
        _make(path)
        return _read(path)
    except OSError as error:
        raise _refused(path, f"can't be made: {error.strerror}") from error


def _read(path: bytes) -> Token:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        content = os.read(fd, _MOST + 1) if stat.S_ISREG(found.st_mode) else b""
    finally:
        os.close(fd)
    if not stat.S_ISREG(found.st_mode):
        raise _refused(path, "is not a file")
    if found.st_uid != os.geteuid():
        raise _refused(path, f"belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        raise _refused(path, "can be read by other users", f"Run: chmod 600 {show(path)}")
    token = content.strip()
    if not _LEAST <= len(token) <= _MOST or not _LETTERS.issuperset(token):
        raise _refused(path, f"holds no token of at least {_LEAST} letters and digits")
    return Token(token)


def _make(path: bytes) -> None:
    """Make the file whole: two servers that start at once agree on one token, and a crash leaves no empty file."""
    import secrets

    make_parents(path)
    # Not the number of this process: in a container it is the same at each start, and a draft may have been left
    draft = b"%b.%b" % (path, secrets.token_hex(8).encode())
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        write_whole(fd, secrets.token_urlsafe(32).encode() + b"\n")
        os.fsync(fd)
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.close(fd)
        os.unlink(draft)


def _refused(path: bytes, why: str, remedy: str = "") -> UsageError:
    remedy = remedy or "Name another file, or remove it: one is made with a new token."
    return UsageError(f"the token file {show(path)} {why}", remedy=remedy)
