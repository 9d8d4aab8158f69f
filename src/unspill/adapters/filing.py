# SPDX-License-Identifier: Apache-2.0
"""The tools `read`, `write`, `list` and `edit`: files of a sandbox as its commands see them, in words for a model.

What a file has follows a line of ours (`Content:`, `Entries:`) that ends our own words. Host paths are never told.
"""

from __future__ import annotations

from unspill.adapters.answering import Answer, changes_told, values_of_changes
from unspill.adapters.seen import seen_in
from unspill.adapters.tool import Tool, fate_of_changes, further_told, listed, make_schema
from unspill.adapters.window import many, offset_schema, rest_from, whole_characters, window
from unspill.changes.quote import quote
from unspill.policy.paths import show
from unspill.sandbox.files import USUAL_ENTRIES, USUAL_LINES, SandboxFiles
from unspill.sandbox.files_reading import MOST_DEPTH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.adapters.tool import Fate
    from unspill.sandbox.files_reading import Entry, FileLines
    from unspill.sandbox.files_writing import Written
    from unspill.sandbox.sandbox import Sandbox

CONTENT = "Content:"
ENTRIES = "Entries:"
_FATES: dict[Fate, str] = {
    "apply": "What is written in the project is applied to it at once, and can be undone.",
    "hold": "What is written in the project is held: commands see it, the project has it when the user applies it.",
    "discard": "What is written in the project is thrown away at once.",
    "container": "There is no sandbox: what is written is changed at once, and can't be undone.",
}


def read_tool(sandbox: Sandbox) -> Tool:
    """Return the tool `read` as it is for this sandbox."""
    policy = seen_in(sandbox).policy
    return Tool(
        name="read",
        description=(
            f"Read a text file as commands see it. At most {USUAL_LINES} lines and "
            f"{policy.shown_bytes} bytes are returned, and you are told where the rest begins. "
            f"What follows `{CONTENT}` is what the file has."
        ),
        schema=make_schema(
            {
                "path": _path(sandbox, "file"),
                "offset": offset_schema(),
                "limit": _limit("lines", USUAL_LINES),
            },
            "path",
        ),
        is_read_only=True,
    )


def call_read(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None) -> Answer:
    """Return lines of a file."""
    offset, limit = given.get("offset", 0), given.get("limit", USUAL_LINES)
    found = SandboxFiles(sandbox).read_lines(given["path"], offset=offset, limit=limit, cancel_fd=cancel_fd)
    raw, count, cut = _bounded(found, seen_in(sandbox).policy.shown_bytes)
    text = found.replace(content=raw).text()
    following = found.next_offset if count == found.count else offset + count
    notes = _read_notes(found, count, len(raw), following, cut)
    return Answer(
        text="\n".join([*notes, *((CONTENT, text) if text else ("",))]),
        values={
            "path": quote(found.path),
            "content": text,
            "offset": offset,
            "count": count,
            "next_offset": following,
            "size": found.size,
        },
    )


def _read_notes(found: FileLines, count: int, size: int, following: int | None, cut: str) -> list[str]:
    name = quote(found.path)
    if not count:
        what = "is empty" if not found.offset and not found.size else f"has no lines from line {found.offset + 1} on"
        return [f"{name} {what}."]
    if not found.offset and following is None and not cut:
        return [f"{name}: all of it, {many(size, 'byte')}, follows."]
    notes = [f"{name}: lines {found.offset + 1} to {found.offset + count} follow; it has {many(found.size, 'byte')}."]
    if cut:
        notes.append(f"Note: this line is too long: {cut}. See other parts of it with a command.")
    return [*notes, f"Note: it is cut here.{rest_from('read', following)}"] if following is not None else notes


def _bounded(found: FileLines, most: int) -> tuple[bytes, int, str]:
    """Return the whole lines that fit into so many bytes, at least a part of one; their number; what of it is cut."""
    if len(found.content) <= most and not found.is_cut:
        return found.content, found.count, ""
    end = found.content.rfind(b"\n", 0, most) + 1
    if end:
        return found.content[:end], found.content.count(b"\n", 0, end), ""
    part = whole_characters(found.content[:most])
    line = found.content.partition(b"\n")[0]
    left_out = f"{len(line) - len(part)} more" if not found.is_cut or len(line) < len(found.content) else "the others"
    return part, 1, f"its first {many(len(part), 'byte')} follow, {left_out} are left out"


def list_tool(sandbox: Sandbox) -> Tool:
    """Return the tool `list` as it is for this sandbox."""
    return Tool(
        name="list",
        description=(
            "List a directory as commands see it, sorted; links in it are not followed. "
            f"At most {USUAL_ENTRIES} entries are returned, and you are told where the rest begins. "
            f"What follows `{ENTRIES}` are the names, directories with a `/` behind them."
        ),
        schema=make_schema(
            {
                "path": {**_path(sandbox, "directory"), "default": "."},
                "depth": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MOST_DEPTH,
                    "default": 1,
                    "description": "How many levels of directories to list.",
                },
                "offset": {**offset_schema(), "description": "How many entries to skip."},
                "limit": _limit("entries", USUAL_ENTRIES),
            }
        ),
        is_read_only=True,
    )


def call_list(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None) -> Answer:
    """Return what lies in a directory."""
    offset, limit = given.get("offset", 0), given.get("limit", USUAL_ENTRIES)
    found = SandboxFiles(sandbox).list(
        given.get("path", "."), depth=given.get("depth", 1), limit=offset + limit, cancel_fd=cancel_fd
    )
    total = len(found.entries) + found.left_out
    shown = window([_entry_line(entry) for entry in found.entries], offset, limit, seen_in(sandbox).policy.shown_bytes)
    count = len(shown.lines)
    following = offset + count if count and offset + count < total else None
    name = quote(found.path)
    lines = [f"{name}: {total} {'entry' if total == 1 else 'entries'}." if total else f"{name} is empty."]
    if not found.is_whole:
        lines.append("Note: some directories below it could not be read.")
    if count < total:
        part = f"entries {offset + 1} to {offset + count} follow" if count else f"none from entry {offset + 1} on"
        lines.append(f"Note: {part}.{rest_from('list', following)}")
    lines += [ENTRIES, *shown.lines] if count else []
    entries = found.entries[offset : offset + count]
    return Answer(
        text="\n".join(lines) + "\n",
        values={
            "path": name,
            "entries": [{"path": quote(entry.path), "kind": entry.kind, "size": entry.size} for entry in entries],
            "total": total,
            "next_offset": following,
            "is_whole": found.is_whole,
        },
    )


def _entry_line(entry: Entry) -> str:
    name = quote(entry.path)
    match entry.kind:
        case "directory":
            return f"{name}/"
        case "file":
            return f"{name}  [{many(entry.size, 'byte')}]"
    return f"{name}  [{entry.kind}]"


def write_tool(sandbox: Sandbox) -> Tool:
    """Return the tool `write` as it is for this sandbox."""
    return Tool(
        name="write",
        description=(
            f"Write a whole file, as a command would, and make the directories that it lies in. {_writable(sandbox)}"
        ),
        schema=make_schema(
            {
                "path": _path(sandbox, "file"),
                "content": {"type": "string", "description": "All that the file shall have."},
                "replace": {
                    "type": "boolean",
                    "default": True,
                    "description": "If false, a file that exists already is an error, and stays as it is.",
                },
            },
            "path",
            "content",
        ),
    )


def call_write(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None) -> Answer:
    """Write a file."""
    written = SandboxFiles(sandbox).write(
        given["path"], given["content"], replace=given.get("replace", True), cancel_fd=cancel_fd
    )
    what = "a new file" if written.is_new else "replaced"
    return _answer_written(written, f"Written: {quote(written.path)} ({what}, {many(written.size, 'byte')}).")


def edit_tool(sandbox: Sandbox) -> Tool:
    """Return the tool `edit` as it is for this sandbox."""
    return Tool(
        name="edit",
        description=(
            "Replace a text of a file by another, as a command would. The text must be there exactly "
            f"once, unless `replace_all` is set. {_writable(sandbox)}"
        ),
        schema=make_schema(
            {
                "path": _path(sandbox, "file"),
                "old": {
                    "type": "string",
                    "minLength": 1,
                    "description": "The text to replace, exactly as it stands in the file.",
                },
                "new": {"type": "string", "description": "What to put there."},
                "replace_all": {"type": "boolean", "default": False, "description": "Replace it wherever it is."},
            },
            "path",
            "old",
            "new",
        ),
    )


def call_edit(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None) -> Answer:
    """Edit a file."""
    written = SandboxFiles(sandbox).edit(
        given["path"],
        given["old"],
        given["new"],
        replace_all=given.get("replace_all", False),
        cancel_fd=cancel_fd,
    )
    places, size = many(written.replaced, "place"), many(written.size, "byte")
    return _answer_written(written, f"Edited: {quote(written.path)} ({places}, now {size}).")


def _answer_written(written: Written, first: str) -> Answer:
    lines = [first, *changes_told(written.result)]
    if not written.lasts:
        lines.append("Note: it lies in a directory that is made anew for each command: the next one does not see it.")
    return Answer(
        text="\n".join(lines) + "\n",
        values={
            "path": quote(written.path),
            "size": written.size,
            "is_new": written.is_new,
            "replaced": written.replaced,
            "lasts": written.lasts,
            **values_of_changes(written.result),
        },
    )


def _path(sandbox: Sandbox, kind: str) -> dict[str, Any]:
    seen = seen_in(sandbox)
    playground = f" The playground is {show(seen.playground)}." if seen.has_playground else ""
    return {
        "type": "string",
        "minLength": 1,
        "description": f"The {kind}: absolute, or relative to the project, {show(seen.project)}.{playground}",
    }


def _limit(what: str, most: int) -> dict[str, Any]:
    return {
        "type": "integer",
        "minimum": 1,
        "maximum": most,
        "default": most,
        "description": f"How many {what} to return at most.",
    }


def _writable(sandbox: Sandbox) -> str:
    fate = fate_of_changes(sandbox)
    if fate == "container":
        return _FATES[fate]
    seen = seen_in(sandbox)
    places = [seen.project, *([seen.playground] if seen.has_playground else [])]
    places += [b"/tmp"] if seen.policy.tmp == "persistent" else []
    told = [*map(show, places), *(["the directories of the system"] if seen.policy.rootfs_writable else [])]
    further = f" So can {further_told(seen)}, treated like the project." if seen.further else ""
    return (
        f"{listed(told)} can be written.{further} What is written elsewhere is refused, or may be gone before the next "
        f"command. {_FATES[fate]}"
    )
