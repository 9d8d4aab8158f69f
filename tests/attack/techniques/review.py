# SPDX-License-Identifier: Apache-2.0
"""C8 and C9: names and contents that deceive the one who looks at changes."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Final

from tests.attack.arena import Arena
from tests.attack.techniques.case import case
from tests.attack.techniques.record import Listed
from tests.support import run_cli

if TYPE_CHECKING:
    from collections.abc import Callable


LIST: Final = Listed(as_root="anybody")

NAMES: Final = {
    "A newline in a name, to write a line of the summary oneself": (b"x\n5 added, all harmless", b"\n5 added"),
    "An escape sequence in a name, to wipe the screen of the one who reads": (b"x\x1b[2J\x1b[H", b"\x1b["),
    "A carriage return in a name, to write over what stands before it": (b"evil.sh\rgood.txt", b"\r"),
    "A control sequence of one byte in a name": ("x\x9b2Jy".encode(), "\x9b".encode()),
    "Text that runs backwards in a name, to disguise its end": ("x\u202egnp.exe".encode(), "\u202e".encode()),
    "An invisible character in a name, to disguise it as another": ("a\u200bb".encode(), "\u200b".encode()),
    "Characters in a name that only a tag of Unicode would have": ("a\U000e0041b".encode(), "\U000e0041".encode()),
}


def shown_raw(name: bytes, sign: bytes) -> Callable[[Arena], object]:
    """Tell whether what a person is shown of a change has the sign in it as it is."""

    def attack(arena: Arena) -> object:
        one = case(arena)
        one.hold(f"python3 -c \"open({name!r}, 'w').close()\"")
        arena.ground.configure(f"bwrap = {os.fsdecode(arena.ground.bwrap)!r}\nallow_root = true\n")
        texts = [run_cli(word, "--project", one.project, cwd=one.project).stdout for word in ("changes", "diff")]
        texts += ["\n".join(one.sandbox.summary()).encode(), one.sandbox.diff().encode("utf-8", "surrogateescape")]
        assert all(texts), texts
        return [text for text in texts if sign in text]

    return attack


def listed_raw(name: bytes, sign: bytes) -> Callable[[Arena], object]:
    def control(arena: Arena) -> object:
        one = case(arena)
        (layer,) = one.hold(f"python3 -c \"open({name!r}, 'w').close()\"").layers
        told = subprocess.run(["find", layer, "-mindepth", "1", "-print0"], capture_output=True, check=True).stdout
        return sign in told

    return control


for _tries, (_name, _sign) in NAMES.items():
    LIST.add_pair("C8", _tries, shown_raw(_name, _sign), "by a list of the names as they are", listed_raw(_name, _sign))


def breaks_the_reader(arena: Arena) -> object:
    one = case(arena)
    one.hold("python3 -c \"open(b'\\xff\\xfe', 'w').close()\"")
    try:
        "\n".join(one.sandbox.summary()).encode()
        one.sandbox.diff().encode()
    except UnicodeError:
        return True
    return False


def breaks_a_naive_reader(arena: Arena) -> object:
    one = case(arena)
    changes = one.hold("python3 -c \"open(b'\\xff\\xfe', 'w').close()\"")
    try:
        "\n".join(os.fsdecode(change.path) for change in changes).encode()
    except UnicodeError:
        return True
    return False


LIST.add_pair(
    "C8",
    "Bytes in a name that are no text, to break the one who prints it",
    breaks_the_reader,
    "by a list of the names as Python has them",
    breaks_a_naive_reader,
)

LINES: Final = {
    "A carriage return in a line, so that the diff shows another one": (b"evil\rgood\n", b"\r"),
    "An escape sequence in a line, to hide the rest of the diff": (b"x\x1b[8mhidden\n", b"\x1b["),
    "Text that runs backwards in a line": ("x \u202e // harmless\n".encode(), "\u202e".encode()),
    "Invisible characters in a line": ("a\u200b\u2060b\n".encode(), "\u200b".encode()),
    "A link of the terminal in a line (OSC 8)": (b"\x1b]8;;https://example.org\x07here\n", b"\x1b]8"),
    "A line of a megabyte, to push the rest out of sight": (b"x" * (1 << 20) + b"\n", b"x" * 2000),
    "A NUL in a text, so that a tool takes it for another file": (b"text\0more\n", b"\0"),
}


def diff_shows(content: bytes, sign: bytes) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        one = case(arena)
        arena.ground.opened[-1].run(["sh", "-c", "cat > file"], stdin=content)
        shown = one.sandbox.diff()
        assert "file" in shown
        return sign in shown.encode("utf-8", "surrogateescape")

    return attack


def plain_diff_shows(content: bytes, sign: bytes) -> Callable[[Arena], object]:
    def control(arena: Arena) -> object:
        one = case(arena)
        after = one.outside / "after"
        after.write_bytes(content)
        told = subprocess.run(["diff", "-a", "-u", one.project / "file", after], capture_output=True, check=False)
        return sign in told.stdout

    return control


for _tries, (_content, _sign) in LINES.items():
    LIST.add_pair("C9", _tries, diff_shows(_content, _sign), "by `diff -a -u`", plain_diff_shows(_content, _sign))
