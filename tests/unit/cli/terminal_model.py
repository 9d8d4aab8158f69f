# SPDX-License-Identifier: Apache-2.0
"""A small model of a terminal: what is switched on after some bytes, of all that can hide, move or divert a text.

Knows no text and no cursor; for those a real terminal emulator is asked (tests/attack/test_consent.py).
"""

from __future__ import annotations

import re

# Escape sequences and strings as one, and the lone controls that shift character sets or end strings
TOKEN = re.compile(
    rb"\x1b\[(?P<csi>[<=>?]?[0-9;:]*[ -/]*[@-~])"
    rb"|\x1b\](?P<osc>[^\x07\x1b\x18]*)(?P<osc_end>\x07|\x1b\\|\x18|$)"
    rb"|\x1b(?P<string>[P_^Xk][^\x1b\x18]*)(?P<string_end>\x1b\\|\x18|$)"
    rb"|\x1b(?P<escape>[ -/]*[0-~\x03])"
    rb"|(?P<control>[\x0e\x0f\x18])"
)
ON_USUALLY = {b"?2", b"?7", b"?25"}


def state_after(text: bytes) -> dict[str, object]:
    """Return all that is not as usual."""
    found: dict[str, object] = {}
    for token in TOKEN.finditer(text):
        kind = token.lastgroup or ""
        if kind.startswith("osc"):
            _string(found, token["osc"], token["osc_end"])
        elif kind.startswith("string"):
            _set(found, "string", not token["string_end"])
        elif token["csi"] is not None:
            _sequence(found, token["csi"])
        elif token["escape"] is not None:
            _escape(found, token["escape"])
        elif token["control"] == b"\x18":
            found.pop("string", None)
        else:
            _set(found, "shift", token["control"] == b"\x0e")
    return found


def _set(found: dict[str, object], name: str, value: object) -> None:
    if value:
        found[name] = value
    else:
        found.pop(name, None)


def _string(found: dict[str, object], content: bytes, end: bytes) -> None:
    number, _, rest = content.partition(b";")
    if end == b"":
        found["string"] = True
    elif end != b"\x18" and number == b"8":
        _set(found, "link", rest.partition(b";")[2])
    elif end != b"\x18" and number in (b"4", b"10", b"11", b"12"):
        found[f"colour {number.decode()}"] = True
    elif number in (b"104", b"110", b"111", b"112"):
        found.pop(f"colour {int(number) - 100}", None)


def _sequence(found: dict[str, object], sequence: bytes) -> None:
    body, final = sequence[:-1], sequence[-1:]
    if final in b"hl":
        prefix = b"?" if body.startswith(b"?") else b""
        for number in body.lstrip(b"?").split(b";"):
            mode = prefix + number
            if mode in (b"?47", b"?1047", b"?1049"):
                mode = b"?1049"
            _set(found, f"mode {mode.decode()}", (final == b"h") is not (mode in ON_USUALLY))
    elif final == b"m" and body.startswith(b">4"):
        _set(found, "keys", body not in (b">4;0", b">4"))
    elif final == b"m":
        _set(found, "attributes", body not in (b"", b"0"))
    elif final == b"u" and body[:1] in (b"=", b">"):
        _set(found, "keyboard", body != b"=0")
    elif final == b"r":
        _set(found, "margins", body)
    elif final == b"i":
        _set(found, "printer", body in (b"5", b"?5"))
    elif final == b"}":
        _set(found, "status line", body != b"0$")


def _escape(found: dict[str, object], sequence: bytes) -> None:
    if sequence[:1] in b"()*+" and len(sequence) == 2:
        _set(found, f"set {chr(sequence[0])}", sequence[1:] != b"B")
    elif sequence in (b"n", b"o"):
        found["shift"] = True
    elif sequence in (b"=", b">"):
        _set(found, "keypad", sequence == b"=")
    elif sequence in (b"<", b"\x03"):
        found.pop({b"<": "mode ?2", b"\x03": "mode ?38"}[sequence], None)
