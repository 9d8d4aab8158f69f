# SPDX-License-Identifier: Apache-2.0
"""Requests as bytes, one form for each, and the digests that bind answers and grants to them.

The form is JSON with sorted keys in ASCII; paths and arguments that are not UTF-8 keep every byte. What is read back
must be exactly what would be written, so there is no second way to say the same.
"""

from __future__ import annotations

from unspill.errors import StoreDamaged
from unspill.model.permission import REQUESTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.permission import Request, RequestId

_KINDS = {kind.kind: kind for kind in REQUESTS}
_BYTES = frozenset(("project", "cwd", "path", "root", "stdin_head", "head"))
_BYTES_LISTS = frozenset(("argv", "environ"))
_TEXT_LISTS = frozenset(("names", "hosts"))
# Left out where there is nothing to say: the form of a request that has none is older than these fields
_OPTIONAL = frozenset(("variables", "environ", "stdin", "stdin_head", "why", "becomes", "head", "rest"))


def plain_request(request: Request) -> dict[str, Any]:
    """Return a request as JSON can hold it."""
    said = {field: value for field, value in request.as_dict().items() if value or field not in _OPTIONAL}
    return {"kind": request.kind} | {field: _plain(field, value) for field, value in said.items()}


def to_form(request: Request) -> bytes:
    """Return the one form of a request."""
    import json

    return json.dumps(plain_request(request), sort_keys=True, separators=(",", ":")).encode("ascii")


def from_form(form: bytes) -> Request:
    """Read a request back.

    Raises:
        StoreDamaged: it is not exactly what `to_form` writes.
    """
    import json

    try:
        values = json.loads(form)
        kind = _KINDS[values.pop("kind")]
        request: Request = kind(**{field: _value(field, value) for field, value in values.items()})
        if to_form(request) == form:
            return request
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise StoreDamaged("The store holds a request that is not understood.")


def digest_of_question(identity: RequestId, request: Request) -> str:
    """Return what an answer is bound to: this request, asked this one time."""
    return _hash(b"question\0%b\0%b" % (identity.encode("ascii"), to_form(request)))


def key_of(request: Request) -> str:
    """Return what requests have in common that differ in nothing but their run and sandbox."""
    return _hash(b"key\0" + to_form(request.at_scope("always")))


def _hash(form: bytes) -> str:
    from hashlib import blake2b

    return blake2b(form, digest_size=32).hexdigest()


def _plain(field: str, value: Any) -> Any:
    if field in _BYTES:
        return value.decode("utf-8", "surrogateescape")
    if field in _BYTES_LISTS:
        return [item.decode("utf-8", "surrogateescape") for item in value]
    return list(value) if field in _TEXT_LISTS else value


def _value(field: str, value: Any) -> Any:
    items = value if field in _BYTES_LISTS | _TEXT_LISTS else [value]
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise TypeError
    if field in _BYTES:
        return value.encode("utf-8", "surrogateescape")
    if field in _BYTES_LISTS:
        return tuple(item.encode("utf-8", "surrogateescape") for item in items)
    return tuple(items) if field in _TEXT_LISTS else value
