# SPDX-License-Identifier: Apache-2.0
"""The journal of one operation, a file that says what will be done and later what was, and where the rest of it lies.

Three lines at most, each a checksum and a JSON value: the header, the steps, the end. Only a line whose checksum is
right counts, so a line that was being written when the machine stopped is as good as none. Without its end the
operation is rolled back; with it, it is finished. Nothing else is needed to do either.
"""

from __future__ import annotations

import json
import os
from operator import attrgetter
from zlib import crc32

from unspill.apply.steps import make_entry, make_step
from unspill.changes.scan import CollectorPaused
from unspill.host.dirfd import write_whole
from unspill.model.operation import GitMove, GitStep, Metadata, Operation, OperationId, RefMove, Skipped
from unspill.policy.paths import moved
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.operation import Action, Attributes, GitEnding, Step

    # A root, a path, and the inode of what is held there: 0 for nothing, -1 for a deletion, smaller for a directory
    HeldAfter = tuple[bytes, bytes, int]

# Of the first one, repositories were written file by file
FIRST_VERSION, VERSION = 1, 2
# What journals call the actions of steps
_WRITTEN: dict[Action, str] = {"put": "put", "take": "take", "set_metadata": "dress"}
_ACTIONS: dict[str, Action] = {word: action for action, word in _WRITTEN.items()}

# As many flagged paths of an operation are written down
_MOST_FLAGGED = 1000

_fields_of_step = attrgetter("root", "action", "group", "staged", "was", "before", "after")
fields_of_entry = attrgetter("kind", "mode", "inode", "size", "mtime_ns", "ctime_ns")


class Residue(Record):
    """The layer that replaces the ones an operation took: its root, its mark, and the paths whose mark is older.

    With `seq` it lies right above that place among the layers, not on top of all.
    """

    layer: str
    root: bytes
    run: str
    mark_ns: int
    overrides: tuple[tuple[bytes, int], ...] = ()
    seq: int = 0


class Taken(Record):
    """A layer whose upper directory became part of an operation, with all that makes it a layer again."""

    layer: str
    root: bytes
    run: str = ""
    mark_ns: int = 0
    seq: int = 0
    overrides: tuple[tuple[bytes, int], ...] = ()


class Settled(Record):
    """What is held after an operation: the new layers, and each path at which something else is held than before.

    None where nothing of what the operation took is held any more.
    """

    residues: tuple[Residue, ...] = ()
    held: tuple[HeldAfter, ...] | None = None


class End(Record):
    """What came of an operation: the steps that were done, and all that its record needs besides.

    `restored` are layers that another operation took and that are held again. What was held before is in the trees of
    the journal; `held` says at which paths that is otherwise now (`Settled`).
    """

    done: tuple[int, ...]
    operation: Operation
    residues: tuple[Residue, ...] = ()
    dropped: tuple[str, ...] = ()
    restored: tuple[Taken, ...] = ()
    git: tuple[GitEnding, ...] = ()
    held: tuple[HeldAfter, ...] | None = None


class Journal(Record):
    """A journal as it was read. `end` is None where the operation was interrupted.

    `identities` are device and inode of each root. `staging` is the name of a directory in those roots that lie on
    another filesystem than our own state. `paths` are those, by root, that a discard was about; none for all.
    """

    operation: Operation
    steps: tuple[Step, ...]
    git: tuple[GitStep, ...] = ()
    identities: tuple[tuple[int, int], ...] = ()
    trees: tuple[Taken, ...] = ()
    staging: bytes = b""
    paths: tuple[tuple[bytes, bytes], ...] = ()
    end: End | None = None
    version: int = VERSION

    @property
    def done(self) -> tuple[int, ...] | None:
        """The indices of the steps that were done, None where that was never written."""
        return None if self.end is None else self.end.done


def write_journal(path: bytes, journal: Journal) -> None:
    """Write a journal without its end and make it durable; its directory is the caller's business."""
    header = {
        "version": VERSION,
        "operation": _plain_operation(journal.operation),
        "identities": journal.identities,
        "trees": list(map(_plain_taken, journal.trees)),
        "staging": plain_text(journal.staging),
        "git": list(map(_plain_git_step, journal.git)),
        "paths": [[plain_text(root), plain_text(path)] for root, path in journal.paths],
    }
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_whole(fd, _line(header) + _line(list(map(_plain_step, journal.steps))))
        os.fsync(fd)
    finally:
        os.close(fd)


def write_end(path: bytes, end: End) -> None:
    """Add the end to a journal and make it durable; if that fails, there is none.

    Raises:
        OSError: it can't be written.
        Unsettled: it can't be written, nor taken away again.
    """
    value = {
        "done": end.done,
        "operation": _plain_operation(end.operation),
        "residues": [
            [rest.layer, plain_text(rest.root), rest.run, rest.mark_ns, _plain_marks(rest.overrides), rest.seq]
            for rest in end.residues
        ],
        "dropped": end.dropped,
        "restored": list(map(_plain_taken, end.restored)),
        "git": end.git,
        "held": None
        if end.held is None
        else [[plain_text(root), plain_text(at), inode] for root, at, inode in end.held],
    }
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    size = os.fstat(fd).st_size
    try:
        write_whole(fd, _line(value))
        os.fsync(fd)
    except BaseException as error:
        _cut(fd, size, error)
        raise
    finally:
        os.close(fd)


class Unsettled(Exception):
    """Nobody can tell whether the end of a journal is durable: the next start goes by what it finds there."""


def read_journal(path: bytes, *, with_steps: bool = True) -> Journal | None:
    """Read a journal; None where there is none that was ever complete enough to act upon.

    Raises:
        OSError: it is there but can't be read.
    """
    try:
        with open(path, "rb") as file:
            lines = [_checked(line) for line in file.read().split(b"\n")[:3]]
    except FileNotFoundError:
        return None
    if len(lines) < 2 or lines[0] is None or lines[1] is None:
        return None
    header = json.loads(lines[0])
    end = json.loads(lines[2]) if len(lines) > 2 and lines[2] is not None else None
    with CollectorPaused():
        steps = tuple(map(_step_from, json.loads(lines[1]))) if with_steps else ()
    if end is not None and "held" not in end and end["residues"]:
        # Journals of unspill 0.2 don't say it: what was applied or discarded is no longer held
        roots = header["operation"]["roots"]
        at = [[roots[steps[index].root], plain_text(steps[index].path)] for index in end["done"]] if with_steps else []
        end["held"] = [[*one, 0] for one in (*at, *header.get("paths", ()))]
    return Journal(
        operation=_operation_from(header["operation"]),
        steps=steps,
        git=tuple(map(_git_step_from, header.get("git", ()))),
        identities=tuple((device, inode) for device, inode in header["identities"]),
        trees=tuple(map(_taken_from, header["trees"])),
        staging=plain_bytes(header["staging"]),
        paths=tuple((plain_bytes(root), plain_bytes(path)) for root, path in header.get("paths", ())),
        end=None if end is None else _end_from(end),
        version=header["version"],
    )


def journal_of(state: bytes, operation: Operation, *, with_steps: bool = True) -> Journal | None:
    """Read the journal of a recorded operation; its roots are where the record has them, since a project may move.

    Raises:
        OSError: it is there but can't be read.
    """
    journal = read_journal(journal_file(state, operation.id), with_steps=with_steps)
    if journal is None or journal.operation.project == operation.project:
        return journal
    return _moved(journal, operation.project)


# operations/ID/journal        what will be done, and what was
# operations/ID/tree/LAYER     a layer that was applied; what it displaced lies where its own entries were
# operations/ID/old, stage     what went away, and copies made for this operation
# operations/ID/residue/LAYER  what stays held, until it becomes a layer
# operations/ID/bases/LAYER    the repository as it stood before a layer that was applied
# operations/ID/kept/STEP      what a person edited while it changed hands
# operations/ID/loan           the mode of an entry that has another one for a moment
# pending/ID                   there for as long as the operation is under way, and locked by whoever performs it; names
#                              the roots that something may be staged in
def operation_dir(state: bytes, operation: OperationId) -> bytes:
    """Return the directory of an operation."""
    return b"%b/operations/%b" % (state, operation.encode())


def journal_file(state: bytes, operation: OperationId) -> bytes:
    """Return the journal of an operation."""
    return operation_dir(state, operation) + b"/journal"


def tree_dir(state: bytes, operation: OperationId, layer: str) -> bytes:
    """Return where a layer is that an operation took."""
    return b"%b/tree/%b" % (operation_dir(state, operation), layer.encode())


def residue_dir(state: bytes, operation: OperationId, layer: str) -> bytes:
    """Return where a residue is until it becomes a layer."""
    return b"%b/residue/%b" % (operation_dir(state, operation), layer.encode())


def kept_base_dir(state: bytes, operation: OperationId, layer: str) -> bytes:
    """Return where the repository is kept as it stood before a layer that an operation took."""
    return b"%b/bases/%b" % (operation_dir(state, operation), layer.encode())


def kept_entry(state: bytes, operation: OperationId, step: int) -> bytes:
    """Return where an edited entry is kept that lay at the place of a step."""
    return b"%b/kept/%d" % (operation_dir(state, operation), step)


def staging_name(operation: OperationId) -> bytes:
    """Return the name of the hidden directory of an operation in roots on other mounts."""
    return b".unspill-" + operation.encode()


def marker_file(state: bytes, operation: OperationId) -> bytes:
    """Return the marker of an operation that is under way."""
    return b"%b/pending/%b" % (state, operation.encode())


def _line(value: object) -> bytes:
    text = json.dumps(value, separators=(",", ":"), check_circular=False).encode()
    return b"%08x %b\n" % (crc32(text), text)


def _checked(line: bytes) -> bytes | None:
    checksum, _, text = line.partition(b" ")
    return text if text and checksum == b"%08x" % crc32(text) else None


def _cut(fd: int, size: int, cause: BaseException) -> None:
    # A rollback while there is an end would be taken for something that was done if it were interrupted
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    except OSError:
        raise Unsettled from cause


def plain_text(value: bytes) -> str:
    """Return a path as JSON can have it."""
    return value.decode("utf-8", "surrogateescape")


def plain_bytes(value: str) -> bytes:
    """Return the path that `plain_text` was given."""
    return value.encode("utf-8", "surrogateescape")


def _optional_text(value: bytes | None) -> str | None:
    return None if value is None else plain_text(value)


def _optional_bytes(value: str | None) -> bytes | None:
    return None if value is None else plain_bytes(value)


def _plain_operation(operation: Operation) -> dict[str, Any]:
    return {
        **operation.as_dict(),
        "project": plain_text(operation.project),
        "roots": [plain_text(root) for root in operation.roots],
        "left": [[one.root, plain_text(one.path), one.why, one.reason] for one in operation.left],
        "flagged": [[plain_text(path), reason] for path, reason in operation.flagged[:_MOST_FLAGGED]],
        "paths": [],
    }


def _operation_from(value: dict[str, Any]) -> Operation:
    return Operation(
        **value
        | {
            "id": OperationId(value["id"]),
            "project": plain_bytes(value["project"]),
            "roots": tuple(map(plain_bytes, value["roots"])),
            "runs": tuple(value["runs"]),
            "marks": tuple(value["marks"]),
            "notes": tuple(value["notes"]),
            "flagged": tuple((plain_bytes(path), reason) for path, reason in value["flagged"]),
            "paths": (),
            "left": tuple(
                Skipped(root=root, path=plain_bytes(path), why=why, reason=reason)
                for root, path, why, reason in value["left"]
            ),
        }
    )


def _end_from(value: dict[str, Any]) -> End:
    return End(
        done=tuple(value["done"]),
        operation=_operation_from(value["operation"]),
        residues=tuple(
            Residue(
                layer=layer,
                root=plain_bytes(root),
                run=run,
                mark_ns=mark_ns,
                overrides=_marks_from(overrides),
                seq=rest[0] if rest else 0,
            )
            for layer, root, run, mark_ns, overrides, *rest in value["residues"]
        ),
        dropped=tuple(value["dropped"]),
        restored=tuple(map(_taken_from, value.get("restored", ()))),
        git=tuple(value.get("git", ())),
        held=_held_from(value.get("held")),
    )


def _held_from(plain: list[Any] | None) -> tuple[HeldAfter, ...] | None:
    return None if plain is None else tuple((plain_bytes(root), plain_bytes(path), at) for root, path, at in plain)


def _plain_taken(tree: Taken) -> list[Any]:
    return [tree.layer, plain_text(tree.root), tree.run, tree.mark_ns, tree.seq, _plain_marks(tree.overrides)]


def _taken_from(plain: list[Any]) -> Taken:
    layer, root, *rest = plain
    if not rest:
        # As unspill 0.1 wrote it
        return Taken(layer=layer, root=plain_bytes(root))
    run, mark_ns, seq, overrides = rest
    return Taken(
        layer=layer, root=plain_bytes(root), run=run, mark_ns=mark_ns, seq=seq, overrides=_marks_from(overrides)
    )


def _plain_marks(marks: tuple[tuple[bytes, int], ...]) -> list[Any]:
    return [[plain_text(path), mark] for path, mark in marks]


def _marks_from(plain: list[Any]) -> tuple[tuple[bytes, int], ...]:
    return tuple((plain_bytes(path), mark) for path, mark in plain)


def _plain_step(step: Step) -> list[Any]:
    """Return a step as JSON can write it: the fields that each has, and the others only where there is one of them."""
    root, action, group, staged, was, before, after = _fields_of_step(step)
    plain = [
        root,
        plain_text(step.path),
        _WRITTEN[action],
        group,
        plain_text(step.place),
        before and fields_of_entry(before),
        after and fields_of_entry(after),
    ]
    if staged or was or step.becomes or step.kept or step.digest or step.says or step.copied:
        metadata = [_plain_metadata(was), _plain_metadata(step.becomes)]
        plain += [*metadata, int(staged), plain_text(step.kept), step.digest.hex(), step.says.hex()]
        plain += [step.copied] if step.copied else []
    return plain


def _step_from(plain: list[Any]) -> Step:
    root, path, word, group, place, before, after, *rest = plain
    entries = before and make_entry(*before), after and make_entry(*after)
    if not rest:
        return make_step(root, plain_bytes(path), _ACTIONS[word], group, plain_bytes(place), *entries)
    was, becomes, staged, kept, digest, says, *copied = rest
    return make_step(
        root,
        plain_bytes(path),
        _ACTIONS[word],
        group,
        plain_bytes(place),
        *entries,
        _metadata_from(was),
        _metadata_from(becomes),
        bool(staged),
        plain_bytes(kept),
        bytes.fromhex(digest),
        bytes.fromhex(says),
        *copied,
    )


def _plain_metadata(found: Metadata | None) -> list[Any] | None:
    return None if found is None else [found.mode, [[name, value.hex()] for name, value in found.attributes]]


def _metadata_from(plain: list[Any] | None) -> Metadata | None:
    if plain is None:
        return None
    attributes: Attributes = tuple((name, bytes.fromhex(text)) for name, text in plain[1])
    return Metadata(mode=plain[0], attributes=attributes)


def _plain_git_step(step: GitStep) -> dict[str, Any]:
    return {
        **step.as_dict(),
        "top": plain_text(step.top),
        "members": list(map(plain_text, step.members)),
        "objects": [[plain_text(path), plain_text(place)] for path, place in step.objects],
        "move": step.move and _plain_move(step.move),
        "arrival": [_plain_ref(ref) for ref in step.arrival],
        "lock": plain_text(step.lock),
    }


def _git_step_from(plain: dict[str, Any]) -> GitStep:
    return GitStep(
        **plain
        | {
            "top": plain_bytes(plain["top"]),
            "members": tuple(map(plain_bytes, plain["members"])),
            "objects": tuple((plain_bytes(path), plain_bytes(place)) for path, place in plain["objects"]),
            "move": plain["move"] and _move_from(plain["move"]),
            "arrival": tuple(_ref_from(ref) for ref in plain["arrival"]),
            "dependent": tuple(plain["dependent"]),
            "committed": tuple(plain.get("committed", ())),
            "lock": plain_bytes(plain["lock"]),
        }
    )


def _moved(journal: Journal, new: bytes) -> Journal:
    """Return the journal of a project whose directory was renamed since."""
    old = journal.operation.project

    def there(operation: Operation) -> Operation:
        return operation.replace(project=new, roots=tuple(moved(root, old, new) for root in operation.roots))

    end = journal.end
    if end is not None:
        end = end.replace(
            operation=there(end.operation),
            residues=tuple(rest.replace(root=moved(rest.root, old, new)) for rest in end.residues),
            restored=tuple(tree.replace(root=moved(tree.root, old, new)) for tree in end.restored),
            held=None if end.held is None else tuple((moved(root, old, new), *rest) for root, *rest in end.held),
        )
    return journal.replace(
        operation=there(journal.operation),
        trees=tuple(tree.replace(root=moved(tree.root, old, new)) for tree in journal.trees),
        paths=tuple((moved(root, old, new), path) for root, path in journal.paths),
        end=end,
    )


def _plain_move(move: GitMove) -> dict[str, Any]:
    return {
        "refs": [_plain_ref(ref) for ref in move.refs],
        "files": [_plain_step(step) for step in move.files],
        "logs": [[plain_text(name), plain_text(lines)] for name, lines in move.logs],
        "before": [[plain_text(name), _optional_text(value)] for name, value in move.before],
        "after": [[plain_text(name), _optional_text(value)] for name, value in move.after],
        "known": [[plain_text(name), *numbers] for name, *numbers in move.known],
        "locks": list(map(plain_text, move.locks)),
    }


def _move_from(plain: dict[str, Any]) -> GitMove:
    return GitMove(
        refs=tuple(_ref_from(ref) for ref in plain["refs"]),
        files=tuple(map(_step_from, plain["files"])),
        logs=tuple((plain_bytes(name), plain_bytes(lines)) for name, lines in plain["logs"]),
        before=tuple((plain_bytes(name), _optional_bytes(value)) for name, value in plain["before"]),
        after=tuple((plain_bytes(name), _optional_bytes(value)) for name, value in plain["after"]),
        known=tuple((plain_bytes(name), inode, size, ctime) for name, inode, size, ctime in plain["known"]),
        locks=tuple(map(plain_bytes, plain["locks"])),
    )


def _plain_ref(ref: RefMove) -> list[str | None]:
    return [plain_text(ref.name), _optional_text(ref.old), _optional_text(ref.new)]


def _ref_from(plain: list[Any]) -> RefMove:
    name, old, new = plain
    return RefMove(name=plain_bytes(name), old=_optional_bytes(old), new=_optional_bytes(new))
