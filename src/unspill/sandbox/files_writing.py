# SPDX-License-Identifier: Apache-2.0
"""Writing and editing files as a run would: what is written is a change like any other, judged and undone like one.

A write that fails leaves nothing, not even the directories that it made. An edit replaces what it has read, or nothing:
the run that writes holds the sandbox's lock and compares the digest first.
"""

from __future__ import annotations

from unspill.errors import FileError, SandboxUnavailable, UsageError
from unspill.model.policy import MIB
from unspill.policy.paths import show
from unspill.record import Record
from unspill.sandbox.files_reading import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import After
    from unspill.sandbox.files_inside import Inside, Path
    from unspill.sandbox.result import RunResult

MOST_WRITTEN = 100 * MIB
MOST_EDITED = 16 * MIB
_TRIES = 5
_TMPFS = b"1021994"

# Not by a new file and a rename: mode, owner, attributes and links to it stay, and a link is followed, as in a command
_WRITE = """\
trap '' XFSZ
[ ! -d "$1" ] || no is_directory
made=1
if [ -e "$1" ] || [ -L "$1" ]; then
    [ "$2" != new ] || no exists
    made=0
fi
[ ! -e "$1" ] || [ -f "$1" ] || no not_a_file
if [ "$3" ]; then
    said=$({ sha256sum <"$1"; } 2>&1) || no changed
    [ "${said%% *}" = "$3" ] || no changed
fi
above=${1%/*}
said=$(mkdir -p -- "${above:-/}" 2>&1) || no - "$said"
said=$({ cat >"$1"; } 2>&1) || no - "$said"
said=$(stat -L -f -c '%t' -- "$1" 2>&1) || no - "$said"
printf 'ok %s %s\\n' "$made" "$said"
"""

_FOR_WRITING = "cat mkdir sha256sum sleep stat"
# As READING has them
WRITING = ("write", _WRITE, _FOR_WRITING)


class Written(Record):
    """A file that was written, and the run that did it: `result.operation` says what was applied and what is held.

    Not `lasts` where it lies in a directory that is made anew for each run, as /tmp: the next run does not see it.
    `replaced` is how many places an edit changed.
    """

    path: bytes
    size: int
    is_new: bool
    lasts: bool
    result: RunResult
    replaced: int = 0


def write_file(
    inside: Inside,
    path: Path,
    content: str | bytes,
    *,
    replace: bool = True,
    digest: str = "",
    after: After | None = None,
    cancel_fd: int | None = None,
) -> Written:
    """Write a file whole; with a digest only where it has that content."""
    if after == "discard":
        raise UsageError("a file that is thrown away at once can't be written", remedy="Use `hold` or `apply`.")
    raw = to_bytes(content)
    where = inside.resolve(path)
    if len(raw) > MOST_WRITTEN:
        raise FileError(f"{show(where)}: more than {MOST_WRITTEN} bytes", kind="too_large")
    words = (where, "any" if replace else "new", digest)
    answer, result = inside.act(*WRITING, words, stdin=raw, after=after, cancel_fd=cancel_fd)
    made, _space, kind = answer.strip().partition(b" ")
    if made not in (b"0", b"1") or not kind.isalnum():
        raise SandboxUnavailable(f"{show(where)}: an answer from inside that can't be understood")
    lasts = bool(result.changes) or not result.sandboxed or kind != _TMPFS
    return Written(path=where, size=len(raw), is_new=made == b"1", lasts=lasts, result=result)


def edit_file(
    inside: Inside,
    path: Path,
    old: str | bytes,
    new: str | bytes,
    *,
    replace_all: bool = False,
    after: After | None = None,
    cancel_fd: int | None = None,
) -> Written:
    """Replace a text of a file by another. Where another run was faster, look again what there is to replace."""
    from hashlib import sha256

    before, behind = to_bytes(old), to_bytes(new)
    if not before or before == behind:
        raise UsageError("there must be something to replace, and something else to put there")
    for left in reversed(range(_TRIES)):
        found = read_bytes(inside, path, 0, MOST_EDITED, cancel_fd)
        if found.has_more:
            raise FileError(f"{show(found.path)}: more than {MOST_EDITED} bytes", kind="too_large")
        count = _count(found.path, found.content, before, replace_all=replace_all)
        content, digest = found.content.replace(before, behind), sha256(found.content).hexdigest()
        try:
            written = write_file(inside, path, content, digest=digest, after=after, cancel_fd=cancel_fd)
        except FileError as error:
            if error.kind != "changed" or not left:
                raise
            continue
        return written.replace(replaced=count)
    raise AssertionError


def _count(path: bytes, content: bytes, wanted: bytes, *, replace_all: bool) -> int:
    count = content.count(wanted)
    if not count:
        raise FileError(f"{show(path)}: the text to replace is not there", kind="not_found_in_file")
    if count > 1 and not replace_all:
        raise FileError(
            f"{show(path)}: the text to replace is there {count} times",
            kind="ambiguous",
            count=count,
            remedy="Give more of the text around it, or replace all.",
        )
    return count


def to_bytes(content: str | bytes) -> bytes:
    """Return what is to be written, a text as UTF-8.

    Raises:
        UsageError: it has halves of characters.
    """
    if isinstance(content, bytes):
        return content
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError("the text is not Unicode", remedy="Give bytes.") from None
