# SPDX-License-Identifier: Apache-2.0
"""The files of a sandbox as its commands see them, for models and for frameworks.

    SandboxPlaces          where commands see the project, the playground and their home: no other path is ever told
    call_read ...   what the tools `read`, `list`, `write` and `edit` do, in words for a model
    Workspace       commands and files for a framework that has its own tools: results and errors, no words

What is written is a change like a command's: held, applied, undone. What a file has follows a line of ours
(`Content:`, `Entries:`) that ends our own words.
"""

from __future__ import annotations

import os
import posixpath
from base64 import b64encode
from codecs import getincrementaldecoder

from unspill.adapters.answers import (
    CONTENT,
    ENTRIES,
    CommandOutput,
    change_lines,
    command_output,
    failure_text,
    many,
    own_failure,
    rest_from,
    result_values,
    text_answer,
    whole_characters,
    window,
)
from unspill.errors import FileError, SandboxUnavailable, UnspillError, UsageError
from unspill.model.run import NeverStarted
from unspill.plan.view import playground_taken, to_inside
from unspill.policy.paths import quote, show
from unspill.record import Record
from unspill.sandbox.files import MOST_BYTES, USUAL_ENTRIES, USUAL_LINES, SandboxFiles, SandboxTree
from unspill.sandbox.planning import playground_of
from unspill.sandbox.result import became

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeVar

    from unspill.adapters.answers import Answer
    from unspill.model.operation import Operation
    from unspill.model.policy import After, Policy
    from unspill.sandbox.files import FileEntry, FileLines, Written
    from unspill.sandbox.planning import Command
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

    Fate = After | Literal["container", "playground"]
    Found = TypeVar("Found")

_MOST_ENTRIES = 1_000_000
# No clock of the kernel can be set as far ahead as a number can say
_LONGEST_S = 366 * 86400.0
# The words of frameworks for our kinds of errors
_CODES = {"not_found": "file_not_found", "not_found_in_file": "string not found", "ambiguous": "multiple occurrences"}
_SAYS_ALL = frozenset({"file_not_found", "is_directory", "permission_denied"})


class SandboxPlaces(Record):
    """The places of a sandbox. `further` are other directories that commands change in layers; `roots` the host's.

    Without a project there is no root, and `project` is the playground: where commands start and paths begin.

    `user` is who its commands are. Not `has_playground` where a root is in its place. Not `is_sealed` where commands
    run without a sandbox: in a container; or, if `is_asked`, where none can be made, each once the user allows it.
    """

    policy: Policy
    project: bytes
    playground: bytes
    home: bytes
    further: tuple[bytes, ...]
    roots: tuple[bytes, ...]
    has_playground: bool
    is_sealed: bool
    is_asked: bool
    user: str

    @property
    def fate(self) -> Fate:
        """What becomes of what a command changes: in a project and in a sandbox, what the policy says."""
        if not self.is_sealed:
            return "container"
        return self.policy.after if self.roots else "playground"

    @property
    def start(self) -> str:
        """What a model calls the place where commands start."""
        return "project" if self.roots else "playground"

    def inside(self, path: bytes) -> bytes:
        """Return where commands see a path of the host, if they do."""
        return to_inside(path, self.policy.view, self.roots)

    def operation(self, operation: Operation) -> Operation:
        """Return an operation with its roots as commands know them."""
        roots = tuple(self.inside(root) for root in operation.roots)
        return operation.replace(project=self.inside(operation.project), roots=roots)


def places_of(sandbox: Sandbox) -> SandboxPlaces:
    """Return what commands of a sandbox see. The one place where adapters look behind the facade for that."""
    project = sandbox._project
    view, roots, home = project.means.policy.view, project.roots, project.home.path
    is_sealed = project.means.engine is not None
    playground = playground_of(project, is_plain=not is_sealed)
    return SandboxPlaces(
        policy=project.means.policy,
        project=to_inside(project.path, view, roots) if roots else playground,
        playground=playground,
        home=home,
        further=tuple(to_inside(root, view, roots) for root in roots if root != project.path),
        roots=roots,
        has_playground=not is_sealed or not playground_taken(view, home, roots),
        is_sealed=is_sealed,
        is_asked=project.means.refusal is not None,
        user="root" if project.means.policy.rootfs_writable else project.home.user,
    )


def call_read(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None) -> Answer:
    """Return lines of a file."""
    offset, limit = given.get("offset", 0), given.get("limit", USUAL_LINES)
    found = SandboxFiles(sandbox, reuse=True).read_lines(given["path"], offset=offset, limit=limit, cancel_fd=cancel_fd)
    raw, count, cut = _bounded(found, sandbox.policy.shown_bytes)
    text = found.replace(content=raw).text()
    following = found.next_offset if count == found.count else offset + count
    notes = _read_notes(found, count, len(raw), following, cut)
    values = {
        "path": quote(found.path),
        "content": text,
        "offset": offset,
        "count": count,
        "next_offset": following,
        "size": found.size,
    }
    answer = text_answer(notes, values)
    # As it is: whether the last line has an end is for the model to see
    return answer.replace(text=f"{answer.text}{CONTENT}\n{text}") if text else answer


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


def call_list(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None) -> Answer:
    """Return what lies in a directory."""
    offset, limit = given.get("offset", 0), given.get("limit", USUAL_ENTRIES)
    found = SandboxFiles(sandbox, reuse=True).list(
        given.get("path", "."), depth=given.get("depth", 1), limit=offset + limit, cancel_fd=cancel_fd
    )
    total = len(found.entries) + found.left_out
    shown = window([_entry_line(entry) for entry in found.entries], offset, limit, sandbox.policy.shown_bytes)
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
    values = {
        "path": name,
        "entries": [{"path": quote(entry.path), "kind": entry.kind, "size": entry.size} for entry in entries],
        "total": total,
        "next_offset": following,
        "is_whole": found.is_whole,
    }
    return text_answer(lines, values)


def _entry_line(entry: FileEntry) -> str:
    if entry.kind == "directory":
        return f"{quote(entry.path)}/"
    return f"{quote(entry.path)}  [{many(entry.size, 'byte') if entry.kind == 'file' else entry.kind}]"


def call_write(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None) -> Answer:
    """Write a file."""
    written = SandboxFiles(sandbox, reuse=True).write(
        given["path"], given["content"], replace=given.get("replace", True), cancel_fd=cancel_fd
    )
    what = "a new file" if written.is_new else "replaced"
    return _answer_written(written, f"Written: {quote(written.path)} ({what}, {many(written.size, 'byte')}).")


def call_edit(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None) -> Answer:
    """Edit a file."""
    replace_all = given.get("replace_all", False)
    written = SandboxFiles(sandbox, reuse=True).edit(
        given["path"], given["old"], given["new"], replace_all=replace_all, cancel_fd=cancel_fd
    )
    places, size = many(written.replaced, "place"), many(written.size, "byte")
    return _answer_written(written, f"Edited: {quote(written.path)} ({places}, now {size}).")


def _answer_written(written: Written, first: str) -> Answer:
    lines = [first, *change_lines(written.result)]
    if not written.lasts:
        lines.append("Note: it lies in a directory that is made anew for each command: the next one does not see it.")
    values = {
        "path": quote(written.path),
        "size": written.size,
        "is_new": written.is_new,
        "replaced": written.replaced,
        "lasts": written.lasts,
        **result_values(written.result),
    }
    return text_answer(lines, values)


class Workspace:
    """Runs commands in a sandbox, and reads and writes the files that they see. Safe to use from several threads.

    Each method does all of what it is asked to or raises an UnspillError: a FileError where it is the file's.
    `cancel_fd` is a descriptor that becomes readable to cancel.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._files = SandboxFiles(sandbox, reuse=True)
        self._tree = SandboxTree(sandbox, reuse=True)

    @property
    def root(self) -> str:
        """Where commands see the project."""
        return show(places_of(self.sandbox).project)

    def run(self, command: Command, most: int | None = None, **options: Any) -> CommandOutput:
        """Run a command and return at most `most` bytes of each stream, by default what the policy keeps.

        The options are those of `Sandbox.run`.

        Raises:
            UsageError: the command or the directory is wrong.
            DeniedError: nothing was run, because the policy or the person said no.
            SandboxUnavailable: we failed, not the command.
        """
        return command_output(self.sandbox, run_or_raise(self.sandbox, command, most, **options), most)

    def run_program(
        self, words: list[str], *, env: dict[str, str], timeout: float | None, cancel_fd: int | None
    ) -> CommandOutput:
        """Run a program for a framework that has nothing but an exit code for what the caller did wrong: that is 2.

        Raises:
            FileError: it lists a directory, and has more to say than is kept: part of it would be taken for all.
            SandboxUnavailable: we failed, not the command.
        """
        try:
            output = self.run(words, env=env, timeout=bounded_timeout(self.sandbox, timeout), cancel_fd=cancel_fd)
        except UsageError as error:
            return CommandOutput(exit_code=2, printed=(b"", b""), notes=(failure_text(error),), was_started=False)
        if output.is_cut and words[0] == "ls":
            raise FileError("the listing is too long", kind="too_large", remedy="List directories in it.")
        return output

    def read(self, path: str, most: int = MOST_BYTES, *, cancel_fd: int | None = None) -> bytes:
        """Return all that a file has, if that is no more than so many bytes."""
        found = _ours(self._files.read, path, limit=most, cancel_fd=cancel_fd)
        if found.has_more:
            raise FileError(f"{show(found.path)}: it has more than {most} bytes", kind="too_large")
        return found.content

    def view(
        self, path: str, offset: int, limit: int, most: int, *, is_text: bool, cancel_fd: int | None = None
    ) -> FileView:
        """Return at most `limit` lines from line `offset` (the first is 0) on, or a whole file of at most `most` bytes.

        `is_text`: by its name the framework takes it for a text. Whether it is one is for its content to say.
        """
        if is_text:
            part = _ours(self._files.read_lines, path, offset=offset, limit=limit, cancel_fd=cancel_fd)
            text = _text_of(part)
            if text is not None:
                return _view_of_lines(part, text, is_wanted=limit > 0)
        found = _ours(self._files.read, path, limit=most, cancel_fd=cancel_fd)
        content = b"" if found.has_more else found.content
        return FileView(content=b64encode(content).decode("ascii"), encoding="base64", is_too_large=found.has_more)

    def entries(self, path: str, *, cancel_fd: int | None = None) -> tuple[FileEntry, ...]:
        """Return what lies in a directory."""
        return _ours(self._files.list, path, limit=_MOST_ENTRIES, cancel_fd=cancel_fd).entries

    def write(self, path: str, content: str | bytes, *, replace: bool = True, cancel_fd: int | None = None) -> Written:
        """Write a whole file; that it would be lost at once is an error."""
        return _kept(_ours(self._files.write, path, content, replace=replace, cancel_fd=cancel_fd))

    def edit(
        self, path: str, old: str, new: str, *, replace_all: bool = False, cancel_fd: int | None = None
    ) -> Written:
        """Replace a text, also where the lines of the file end with a carriage return, which no model sees."""
        try:
            return _kept(_ours(self._files.edit, path, old, new, replace_all=replace_all, cancel_fd=cancel_fd))
        except FileError as error:
            if error.kind != "not_found_in_file" or "\n" not in old or "\r" in old:
                raise
        old, new = (text.replace("\r\n", "\n").replace("\n", "\r\n") for text in (old, new))
        return _kept(_ours(self._files.edit, path, old, new, replace_all=replace_all, cancel_fd=cancel_fd))

    def look(self, path: str, *, cancel_fd: int | None = None) -> FileEntry:
        """Return what is at a path; of a link, where it leads."""
        return _ours(self._tree.look, path, cancel_fd=cancel_fd)

    def entries_followed(self, path: str, *, cancel_fd: int | None = None) -> list[FileEntry]:
        """Return what lies in a directory; of a link to a directory, that it is one."""
        entries = self.entries(path, cancel_fd=cancel_fd)
        links = [entry.path for entry in entries if entry.kind == "link"]
        linked = _ours(self._tree.directories, path, links, cancel_fd=cancel_fd)
        return [entry.replace(kind="directory") if entry.path in linked else entry for entry in entries]

    def exists(self, path: str, *, cancel_fd: int | None = None) -> bool:
        """Tell whether there is something at a path; of a link, where it leads."""
        return _ours(self._tree.exists, path, cancel_fd=cancel_fd)

    def real_path(self, path: str, *, cancel_fd: int | None = None) -> str:
        """Return where a path leads by all its links."""
        return os.fsdecode(_ours(self._tree.real_path, path, cancel_fd=cancel_fd))

    def make_directory(self, path: str, *, cancel_fd: int | None = None) -> None:
        """Make a directory, and those it lies in, unless it is there."""
        _ours(self._tree.make_directory, path, cancel_fd=cancel_fd)

    def remove(self, path: str, *, cancel_fd: int | None = None) -> None:
        """Remove a file, or a directory with all that is in it, but never the project or what that lies in."""
        above, name = posixpath.split(posixpath.join(self.root, path).rstrip("/"))
        target = posixpath.join(self.real_path(above or "/", cancel_fd=cancel_fd), name)
        if f"{self.root}/".startswith(f"{target.rstrip('/')}/"):
            raise UsageError("the project and what it lies in can't be removed", remedy="Remove what is in it.")
        _ours(self._tree.remove, path, cancel_fd=cancel_fd)


class FileView(Record):
    """A part of a text with the numbers of its lines, the first being 1, or a whole file in base64.

    `next_offset` is None where these are the last lines; then `total_lines` is how many there are. `is_cut`: the only
    line is too long, so the end of it is missing. `is_unseen`: no lines were asked for, though there are some.
    `is_too_large`: it is no text and has too many bytes, so nothing of it is shown.
    """

    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    start_line: int | None = None
    end_line: int | None = None
    next_offset: int | None = None
    total_lines: int | None = None
    is_cut: bool = False
    is_unseen: bool = False
    is_too_large: bool = False


def _view_of_lines(part: FileLines, text: str, *, is_wanted: bool) -> FileView:
    if part.count:
        end = part.offset + part.count
        return FileView(
            content=text.replace("\r\n", "\n").removesuffix("\n"),
            start_line=part.offset + 1,
            end_line=end,
            next_offset=part.next_offset,
            total_lines=end if part.next_offset is None else None,
            is_cut=part.is_cut,
        )
    if part.offset and is_wanted:
        raise FileError(f"{show(part.path)}: it has no line {part.offset + 1}", kind="failed")
    return FileView(content="", is_unseen=not is_wanted and part.size > 0)


def _text_of(part: FileLines) -> str | None:
    """Return the lines as text, None where they are none; of a line that is cut the last character may be in part."""
    try:
        text = getincrementaldecoder("utf-8")().decode(part.content, final=not part.is_cut)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _ours(do: Callable[..., Found], *words: Any, **options: Any) -> Found:
    """Do something with files of the sandbox; what goes wrong with files of the host is our failure."""
    try:
        return do(*words, **options)
    except OSError as error:
        raise own_failure(error) from error


def _kept(written: Written) -> Written:
    """Raise where what was written is lost already."""
    if not written.lasts:
        why = "each command finds an empty directory there"
    elif "discarded" in dict(became(written.result)):
        why = "what is written is discarded"
    else:
        return written
    raise FileError(f"{show(written.path)}: it is not kept: {why}", kind="failed")


def run_or_raise(sandbox: Sandbox, command: Command, most: int | None = None, **options: Any) -> RunResult:
    """Run a command; that we failed is raised, whatever it was, and without a path of the host."""
    if options.get("timeout") == float("inf"):
        raise UsageError("the timeout must be a finite number of seconds")
    if most is not None:
        options["limits"] = sandbox.policy.limits.replace(kept_bytes=most)
    result = _ours(sandbox.run, command, reuse=True, **options)
    outcome = result.outcome
    if isinstance(outcome, NeverStarted) and outcome.exit_code == 125:
        raise SandboxUnavailable(f"the sandbox could not be started: {outcome.reason}", remedy=outcome.remedy)
    return result


def bounded_timeout(sandbox: Sandbox, wanted: float | None) -> float | None:
    """Return a time that is never more than the policy's, None where that is meant.

    Raises:
        UsageError: no time can be like that.
    """
    bound = sandbox.policy.limits.wall_s
    if wanted is None:
        return None
    if not wanted > 0:
        raise UsageError(f"timeout_s must be more than 0: {wanted!a:.40}")
    return float(min(wanted, _LONGEST_S if bound is None else bound))


def attempt(do: Callable[..., Found], *words: Any, **options: Any) -> tuple[Found | None, str | None]:
    """Return what a method gives, or a code and what is wrong, for frameworks whose results have a place for both."""
    try:
        return do(*words, **options), None
    except UnspillError as error:
        code = _CODES.get(error.kind, error.kind) if isinstance(error, FileError) else error.code
        return None, f"{code}: {failure_text(error)}"


def transfer(do: Callable[..., Found], path: str, *words: Any, **options: Any) -> tuple[Found | None, str | None]:
    """Do the same for one of many files, by an absolute path; where the code says all, it is all that is told."""
    if not path.startswith("/"):
        return None, "invalid_path"
    found, error = attempt(do, path, *words, **options)
    code = (error or "").partition(":")[0]
    return found, code if code in _SAYS_ALL else error
