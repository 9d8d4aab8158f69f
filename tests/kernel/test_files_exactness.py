# SPDX-License-Identifier: Apache-2.0
"""The file verbs see the tree that a run sees, and change it as a run does, whatever was done before.

Random sequences of commands and verbs, held and applied, over a project with a masked secret; the oracle is a Python
inside a run of the same sandbox.
"""

import itertools
import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support import HOST_ROOT, Ground, printed
from unspill import FileError, Sandbox, SandboxFiles

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(600)]

INSIDE: Final = (Path(__file__).parent / "files_inside.py").read_text()
EXAMPLES: Final = 100 if os.environ.get("UNSPILL_TEST_FULL") == "1" else 3
SECRET: Final = b"SECRET-of-the-person\n"
KINDS: Final = {
    "ENOENT": "not_found",
    "EISDIR": "is_directory",
    "ENOTDIR": "not_a_directory",
    "EACCES": "permission_denied",
    "EPERM": "permission_denied",
    "ELOOP": "failed",
    "not a file": "not_a_file",
}
NAMES = [b"a", b"b", b"d/e", b"d/f/g", b"d", b"new\nline", b"-x", b" '\"$(x)\\ ", b"\xff\xfe", b"link", b".env"]
# Links that are there from the beginning, and a path that fails only after its directories were made
NAMES += [b"out", b"here", b"here/e", b"made/of/none/"]
TARGETS: Final = [b"a", b"d", b"link", b"../../x", b"/etc/passwd", b"/etc/shadow", b"/tmp/gone", b"/dev/null", b".env"]
CONTENTS: Final = [b"", b"one\n", b"two\ntwo\n", b"\0\xff\r\n\x1b[31m", b"no newline", bytes(range(256)) * 300]
COMMANDS: Final = {
    "remove": 'rm -rf -- "$1"',
    "directory": 'mkdir -p -- "$1"',
    "link": 'ln -sfn -- "$2" "$1"',
    "home link": 'ln -sfn -- "$HOME" "$1"',
    "hard link": 'ln -f -- "$2" "$1"',
    "rename": 'mv -T -- "$1" "$2"',
    "lock": '[ -d "$1" ] || chmod 000 -- "$1"',
    "mode": '[ -d "$1" ] || chmod 751 -- "$1"',
    "pipe": 'mkfifo -- "$1"',
    # Whoever opens a pipe waits for the other end
    "append": '[ -p "$1" ] || echo more >> "$1"',
}

names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.sampled_from([*COMMANDS]), names, st.sampled_from([*TARGETS, *NAMES])),
    st.tuples(st.just("write"), names, st.sampled_from(CONTENTS)),
    st.tuples(st.just("write"), st.sampled_from([b"out", b"here/e", b"made/of/none/"]), st.sampled_from(CONTENTS)),
    st.tuples(st.just("edit"), names, st.sampled_from([b"two\n", b"o", b"\xff"])),
    st.tuples(st.just("apply everything"), names, names),
)
plays = st.lists(st.tuples(steps, st.sampled_from(["hold", "apply"])), min_size=3, max_size=14)
numbers = itertools.count()


def told(sandbox: Sandbox) -> dict[str, Any]:
    """Return the tree as a program in a run sees it."""
    words = ["/usr/bin/python3", "-I", "-c", INSIDE, *(name.hex() for name in {*NAMES, *TARGETS})]
    answer = json.loads(printed(sandbox.run(words, after="discard")))
    assert isinstance(answer, dict)
    return answer


def read(files: SandboxFiles, path: bytes) -> tuple[str, str]:
    try:
        found = files.read(path)
    except FileError as error:
        return "error", error.kind
    assert not found.has_more
    return "content", found.content.hex()


def compare(sandbox: Sandbox, files: SandboxFiles) -> None:
    """Check that everything is seen as in a run."""
    tree = told(sandbox)
    listing = files.list(depth=64)
    assert (listing.left_out, listing.is_whole) == (0, True)
    seen = {(entry.path.hex(), entry.kind, entry.size) for entry in listing.entries}
    assert seen == {(path, kind, size) for path, kind, _mode, size in tree["entries"]}
    assert len(seen) == len(listing.entries)
    for path, (how, what) in tree["looks"].items():
        expected = (how, what if how == "content" else KINDS[what])
        assert read(files, bytes.fromhex(path)) == expected, bytes.fromhex(path)
        assert SECRET.hex() not in what


def modes(tree: dict[str, Any]) -> dict[str, int]:
    return {path: mode for path, _kind, mode, _size in tree["entries"]}


def write(sandbox: Sandbox, files: SandboxFiles, verb: str, path: bytes, content: bytes, after: Any) -> None:
    """Write or edit a file, and check that this, or nothing, is what happened."""
    before = told(sandbox)
    how, old = before["looks"][path.hex()]
    expected = content
    try:
        if verb == "write":
            written = files.write(path, content, after=after)
        else:
            expected = bytes.fromhex(old).replace(content, b"<%b>" % content) if how == "content" else b""
            written = files.edit(path, content, b"<%b>" % content, replace_all=True, after=after)
    except FileError:
        # Times are no part of what is told, so this is all there is
        assert told(sandbox) == before
        return
    now = told(sandbox)
    if written.lasts:
        assert now["looks"][path.hex()] == ["content", expected.hex()]
    assert {name: mode for name, mode in modes(now).items() if name in modes(before)} == modes(before)


def play(sandbox: Sandbox, files: SandboxFiles, played: list[Any]) -> None:
    for (what, path, other), after in played:
        if what in ("write", "edit"):
            write(sandbox, files, what, path, other, after)
        elif what == "apply everything":
            if sandbox.changes():
                sandbox.apply()
        else:
            sandbox.run(["/bin/sh", "-c", COMMANDS[what], "sh", path, other], after=after, timeout=20)


@pytest.mark.parametrize("view", ["sealed", "rootfs"])
def test_the_verbs_see_and_change_what_a_run_sees(ground: Ground, engine: str, view: str) -> None:
    """The time buys random sequences of verbs and commands, each in a real sandbox."""
    chosen = {"view": "rootfs", "rootfs": HOST_ROOT} if view == "rootfs" else {"view": view}

    # To find a smaller example takes longer than a test may
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(played=plays)
    def check(played: list[Any]) -> None:
        number = next(numbers)
        project = ground.home / f"project-{number}"
        (project / "d").mkdir(parents=True)
        (project / "a").write_bytes(b"two\n")
        (project / "d/e").write_bytes(b"one\n")
        (project / "here").symlink_to("d")
        (project / "out").symlink_to("/tmp/gone")
        (project / ".env").write_bytes(SECRET)
        sandbox = ground.sandbox(f"of {number}", project=project, **chosen)
        play(sandbox, files := SandboxFiles(sandbox), played)
        compare(sandbox, files)
        sandbox.apply() if sandbox.changes() else None
        compare(sandbox, files)
        assert SECRET in {path.read_bytes() for path in project.rglob(".env") if path.is_file()}

    check()
