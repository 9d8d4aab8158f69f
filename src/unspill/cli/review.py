# SPDX-License-Identifier: Apache-2.0
"""Review what is held: `unspill changes`, `diff`, `apply` and `discard`; bring files back: `files` and `restore`.

A person names paths as seen from where they stand; a sandbox is told them as seen from the project. They consent to a
content that was shown on their terminal, never to a name alone.
"""

from __future__ import annotations

import os
import sys

from unspill.changes.render import named, safe_text, to_plain
from unspill.changes.select import did_you_mean
from unspill.cli.log import absolute_path, find_named, is_name, operation_of
from unspill.cli.main import COLOR, EVENTS, RUN, SESSION, Option, open_sandbox, operation_word, verb
from unspill.cli.output import (
    Elapsed,
    advised,
    change_lines,
    columns,
    count_text,
    decoded,
    directory_here,
    fit,
    include_option,
    operation_exit_code,
    operation_form,
    print_json,
    print_operation,
    seen_from_here,
    size_text,
    wants_colour,
    when_text,
)
from unspill.cli.run import find_kept
from unspill.errors import DeniedError, UsageError
from unspill.model.change import Hunks, Selection
from unspill.model.run import Run
from unspill.policy.paths import quote, shell_word, wrap
from unspill.store.permissions import SHORTEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.model.change import ChangeSet, Consent, Side
    from unspill.model.operation import Operation
    from unspill.sandbox.history import Backup
    from unspill.sandbox.review import Review, Reviews
    from unspill.sandbox.sandbox import Sandbox
    from unspill.store.operations import FileRow

_GLOB = Option(name="--glob", metavar="PATTERN", repeated=True, help="matching paths; ** crosses slashes (repeatable)")
_HUNK = Option(
    name="--hunk",
    metavar="PATH:N[@TOKEN]",
    repeated=True,
    values="changed",
    help="hunks as `diff` numbers them: PATH:1,3 (repeatable)",
)
NOTHING_HELD = "Nothing is held."
_MOST_HUNKS = 100_000
_MOST_ADVISED = 20
_TOKEN_DIGITS = "0123456789abcdef"
_LONGEST_TOKEN = 64


@verb(
    "List held changes: those that your project does not have yet.",
    RUN,
    COLOR,
    examples=(
        "unspill changes",
        "unspill changes --run run2",
    ),
)
def changes(arguments: Arguments) -> int:
    """List what is held, one line a path."""
    sandbox = open_sandbox(arguments)
    if arguments.flag("--json"):
        print_json(to_plain(sandbox.changes(run=arguments.value("--run"))))
        return 0
    with Elapsed("Reading changes"):
        lines = sandbox.summary(
            run=arguments.value("--run"), colour=wants_colour(arguments.value("--color")), here=directory_here()
        )
    print("\n".join(map(fit, lines)) or NOTHING_HELD)
    if sandbox.has_keeper:
        text = "Not listed: what background runs hold until they end. Apply it now: unspill apply{of}"
        print(f"unspill: {advised(text, sandbox)}", file=sys.stderr)
    return 0


@verb(
    "Show held changes as a unified diff, or those of a run or an operation; with PATH, only those at or below it.",
    RUN,
    Option(name="--op", metavar="OP", help="show what this operation changed: op5"),
    SESSION.replace(help="show what an agent's session changed, step by step (default: the last one)"),
    positional="[OP|RUN] [PATH ...]",
    most=None,
    is_paged=True,
    examples=(
        "unspill diff",
        "unspill diff sorted.txt",
        "unspill diff op1",
    ),
)
def diff(arguments: Arguments) -> int:
    """Show what is held, or what a run or an operation changed, line by line."""
    sandbox = open_sandbox(arguments)
    _take_name(arguments, sandbox)
    paths = [os.fsdecode(_path_from_project(word, sandbox.project)) for word in arguments.words]
    given = arguments.only_one("--run", "--op", "--session")
    as_json = arguments.flag("--json")
    if sys.stdout.isatty() and given is None and not as_json:
        return _show_review(arguments, paths, sandbox)
    operation = arguments.value("--op")
    colour = not as_json and wants_colour(arguments.value("--color"))
    if arguments.flag("--session"):
        session = sandbox.find_session(arguments.value("--session") or None)
        parts = (
            sandbox.diff(paths, operation=one.number, colour=colour, here=directory_here())
            for one in session.operations
        )
        text = "".join(parts)
    else:
        wanted = None if operation is None else operation_word(operation)
        with Elapsed("Comparing"):
            run = arguments.value("--run")
            text = sandbox.diff(paths, run=run, operation=wanted, colour=colour, here=directory_here())
    if as_json:
        print_json({"sandbox": sandbox.name, "diff": text})
    else:
        _write_text(text)
        if not text:
            _tell_nothing(arguments, sandbox)
    return 0


@verb(
    "Look through held changes on a screen: pick files, hunks and lines, and apply or discard them.",
    Option(name="--op", metavar="OP", values="operation", help="look at what this operation changed, and undo it: op5"),
    SESSION.replace(help="look at what an agent's session changed, and undo it (default: the last one)"),
    Option(name="--plain", help="no screen: ask about each hunk in turn"),
    COLOR,
    positional="[OP]",
    most=1,
    examples=("unspill review --help",),
)
def review(arguments: Arguments) -> int:
    """Look through what is held, or what was done, and decide."""
    if arguments.flag("--json") or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "`unspill review` needs a terminal",
            remedy="Elsewhere: unspill diff, then unspill apply PATH, or unspill discard PATH",
        )
    sandbox = open_sandbox(arguments)
    if arguments.words:
        arguments.add("--op", operation_of(sandbox, arguments.words[0]).id)
    from unspill.cli.prompt import run_review  # lazy: review

    return run_review(arguments, sandbox)


@verb(
    "Apply held changes to the project, all or those you choose. The rest stays held.",
    _GLOB,
    _HUNK,
    Option(
        name="--include",
        metavar="PATH[@TOKEN]",
        repeated=True,
        values="changed",
        help="consent to a held path (repeatable)",
    ),
    Option(
        name="--overwrite",
        metavar="PATH",
        repeated=True,
        values="changed",
        help="in a conflict, replace your version (repeatable)",
    ),
    Option(
        name="--ours",
        metavar="PATH",
        repeated=True,
        values="changed",
        help="merge; where both changed a line, keep yours (repeatable)",
    ),
    Option(
        name="--theirs",
        metavar="PATH",
        repeated=True,
        values="changed",
        help="merge; where both changed a line, or can't be merged, take the run's (repeatable)",
    ),
    Option(name="--markers", help="merge; where both changed a line, write both between markers"),
    RUN,
    EVENTS,
    positional="[PATH ...]",
    most=None,
    examples=(
        "unspill apply",
        "unspill apply sorted.txt",
        "unspill apply --glob '*.txt'",
    ),
)
def apply(arguments: Arguments) -> int:
    """Apply held changes to the project."""
    sandbox = open_sandbox(arguments)
    operation = _apply_beside(arguments, sandbox) if sandbox.has_keeper else None
    if operation is None:
        selection = _with_named(_selection_of(arguments, sandbox), arguments, sandbox)
        selection = _with_consent(selection, arguments, sandbox)
        with Elapsed("Applying"):
            operation = sandbox.apply(selection, run=arguments.value("--run"))
    if arguments.flag("--json"):
        print_json(operation_form(operation))
    else:
        done = f"Applied {count_text(operation.changed, 'change')}"
        print_operation(sandbox, operation, done, nothing="Nothing was applied." if operation.left else NOTHING_HELD)
    return operation_exit_code(operation)


@verb(
    "Discard held changes, all or those you choose. `unspill undo` restores them.",
    _GLOB,
    _HUNK,
    positional="[PATH ...]",
    most=None,
    examples=(
        "unspill discard sorted.txt",
        "unspill discard",
    ),
)
def discard(arguments: Arguments) -> int:
    """Discard held changes."""
    sandbox = open_sandbox(arguments)
    with Elapsed("Discarding"):
        operation = sandbox.discard(_selection_of(arguments, sandbox))
    if arguments.flag("--json"):
        print_json({"discarded_changes": operation.changed, "operation": operation.number or None})
    elif operation.number:
        count = count_text(operation.changed, "held change")
        print(fit(f"Discarded {count} (op {operation.number}). {advised('Undo: unspill undo{at}', sandbox)}"))
        for line in (*change_lines(sandbox, operation), *(f"  {safe_text(note)}" for note in operation.notes)):
            print(fit(line))
    else:
        print(NOTHING_HELD)
    return 0


@verb(
    "List the files that operations changed, with the names of their backups. See `unspill restore`.",
    Option(name="--deleted", help="also list files that no longer exist"),
    Option(name="--all", help="also list each file of git's own directory, and of those that git ignores"),
    positional="[PATH ...]",
    most=None,
    examples=(
        "unspill files",
        "unspill files --deleted notes.txt",
    ),
)
def files(arguments: Arguments) -> int:
    """List the files that operations have touched, and their backups."""
    sandbox = open_sandbox(arguments)
    tops = [absolute_path(word) for word in arguments.words]
    found = [
        (file, sandbox.backups(file))
        for file in sandbox.files(with_deleted=arguments.flag("--deleted"))
        if not tops or _is_at_or_below(file.root, file.path, tops)
    ]
    if arguments.flag("--json"):
        print_json({"files": [_file_form(file, backups) for file, backups in found]})
        return 0
    trees = {} if arguments.flag("--all") else _find_trees(sandbox, [file for file, _backups in found], tops)
    folded: dict[bytes, list[tuple[FileRow, tuple[Backup, ...]]]] = {}
    for file, backups in found:
        folded.setdefault(trees.get(file.id, os.path.join(file.root, file.path)), []).append((file, backups))
    for place, inside in folded.items():
        if inside[0][0].id in trees:
            _print_tree(sandbox, place, inside)
        else:
            _print_file(sandbox, *inside[0])
    return 0


@verb(
    "Restore a file as it was before an operation, by default from its newest backup. You can undo this.",
    Option(name="--from", metavar="BACKUP", values="operation", help="a name that `files` lists, or an operation: op5"),
    EVENTS,
    positional="PATH",
    most=1,
    examples=(
        "unspill restore notes.txt",
        "unspill restore notes.txt --from op1",
    ),
)
def restore(arguments: Arguments) -> int:
    """Restore an earlier version of a file."""
    if not arguments.words:
        raise UsageError("no file given", remedy="Name one that `unspill files` lists.")
    sandbox = open_sandbox(arguments)
    path = _path_from_project(arguments.words[0], sandbox.project)
    with Elapsed("Restoring"):
        operation = sandbox.restore(path, arguments.value("--from"))
    if arguments.flag("--json"):
        print_json(operation_form(operation))
    else:
        print_operation(sandbox, operation, f"Restored {quote(path)}", nothing="Nothing was restored.")
    return operation_exit_code(operation)


def _show_review(arguments: Arguments, paths: list[str], sandbox: Sandbox) -> int:
    """Show what is held on a terminal, which counts: what was seen to its end can be named by its token."""
    with Elapsed("Comparing"):
        review = _reviews(sandbox).diff(paths, colour=wants_colour(arguments.value("--color")))
    _print_review(sandbox, review)
    if not review.text:
        _tell_nothing(arguments, sandbox)
    return 0


def _reviews(sandbox: Sandbox) -> Reviews:
    reviews = sandbox.reviews
    reviews.here = directory_here()
    return reviews


def _tell_nothing(arguments: Arguments, sandbox: Sandbox) -> None:
    """Say which of the paths that were given has nothing to show, and which one may have been meant."""
    for word in arguments.words:
        meant = (
            did_you_mean(sandbox.changes(), absolute_path(word), directory_here()) if not arguments.flag("--op") else ""
        )
        print(f"unspill: {quote(os.fsencode(word))} has no changes here. {meant}".rstrip(), file=sys.stderr)


def _print_review(sandbox: Sandbox, review: Review) -> None:
    """Print a review on a terminal, with the commands that apply what is held in it, and remember that it was shown."""
    _write(review)
    for consent in [one for one in review.held if review.is_whole(one)][:_MOST_ADVISED]:
        name = quote(_shown_name(sandbox, consent))
        own = "To replace your own with what is shown" if consent.is_there else "To apply it as shown"
        print(f"{name} is held. {own}: {advised('unspill apply{of}', sandbox)} {_include_option(consent)}")
    sys.stdout.flush()
    sandbox.reviews.note(review)


def _take_name(arguments: Arguments, sandbox: Sandbox) -> None:
    """Let a first word that names a run or an operation, and no file, choose whose changes are shown."""
    word = arguments.words[0] if arguments.words else ""
    if not is_name(word) or os.path.lexists(absolute_path(word)):
        return
    del arguments.words[0]
    found = find_named(sandbox, word)
    if isinstance(found, Run) and found.held:
        arguments.add("--run", found.id)
    else:
        arguments.add("--op", operation_of(sandbox, word).id)


def _apply_beside(arguments: Arguments, sandbox: Sandbox) -> Operation | None:
    """Apply what background runs have changed so far, by a checkpoint; None if none of them is alive any more.

    Raises:
        UsageError: it needs what the person was shown, and of what is still being written nothing was shown.
    """
    found = find_kept(sandbox)
    if found is None:
        return None
    with found as kept:
        for name in ("--include", "--hunk", "--run", "--ours", "--theirs", "--markers"):
            if arguments.flag(name):
                raise UsageError(
                    f"{name} can't be used while background runs use sandbox {sandbox.name!r}",
                    remedy=f"End them first: unspill stop {sandbox.name}",
                )
        overwrite = tuple(absolute_path(word) for word in arguments.values("--overwrite"))
        operation, hints = kept.link.apply(_selection_of(arguments, sandbox).replace(overwrite=overwrite))
    lines = ["\n  ".join(filter(None, (hint.text, hint.remedy))) for hint in hints]
    if operation is not None and sandbox.changes():
        lines.append(f"What earlier runs hold stays held until the background runs end: unspill stop {sandbox.name}")
    for line in lines:
        print(f"unspill: {line}", file=sys.stderr)
    return operation


def _selection_of(arguments: Arguments, sandbox: Sandbox) -> Selection:
    """Return what the words, --glob and --hunk choose. Paths are absolute: another root may have the same names."""
    project = sandbox.project
    return Selection(
        paths=tuple(absolute_path(word) for word in arguments.words),
        globs=tuple(_glob_from_project(pattern, project) for pattern in arguments.values("--glob")),
        hunks=tuple(_hunks(text) for text in arguments.values("--hunk")),
        here=directory_here(),
    )


def _with_named(selection: Selection, arguments: Arguments, sandbox: Sandbox) -> Selection:
    """Add what --include, --overwrite, --ours and --theirs name: the held changes at or below it, or all of them.

    With nothing else chosen, only these are meant. What is included is only chosen here: consent is asked for apart.
    What else changed beside something held is not what anybody was shown or asked about.
    """
    words = [split_token(word)[0] for word in arguments.values("--include")]
    included = [absolute_path(word) for word in words]
    overwrite = [absolute_path(word) for word in arguments.values("--overwrite")]
    sides = _sides_of(arguments)
    is_everything, selection = selection.is_everything, selection.replace(sides=sides)
    if not included and not overwrite and all(path == b"." for path, _side in sides):
        return selection
    merged = [path for path, _side in sides if path != b"."]
    held = sandbox.changes()
    if is_everything:
        covered = {path: sandbox.reviews.covered_at(path) for path in included}
        wanted = [_change_that_hides(path, held) for path in (*included, *overwrite, *merged) if not covered.get(path)]
        named = [_as_glob(*one) for path in included for one in covered[path]]
        selection = selection.replace(paths=tuple(dict.fromkeys(wanted)), globs=tuple(dict.fromkeys(named)))
    below = [
        os.path.join(part.root, change.path)
        for part in held.roots
        for change in part.changes
        if _is_at_or_below(part.root, change.path, overwrite)
    ]
    return selection.replace(overwrite=tuple(dict.fromkeys((*overwrite, *below))))


def _sides_of(arguments: Arguments) -> tuple[tuple[bytes, Side], ...]:
    """Return whose lines count where both sides changed them, by path; `--markers` is for all that nothing else is."""
    everywhere: tuple[tuple[bytes, Side], ...] = ((b".", "markers"),) if arguments.flag("--markers") else ()
    ours: list[tuple[bytes, Side]] = [(absolute_path(word), "ours") for word in arguments.values("--ours")]
    theirs: list[tuple[bytes, Side]] = [(absolute_path(word), "theirs") for word in arguments.values("--theirs")]
    return (*everywhere, *ours, *theirs)


def _with_consent(selection: Selection, arguments: Arguments, sandbox: Sandbox) -> Selection:
    """Add what the person consents to by --include, and hold each --hunk to what they have seen.

    A token stands for what they were shown on a terminal. Without one, or where it names something else, they are shown
    what would be applied, and asked.

    Raises:
        DeniedError: there is no terminal to ask on, or they did not say yes; nothing was changed.
    """
    words = arguments.values("--include")
    if not (words or selection.hunks):
        return selection
    dialog = _ConsentDialog(
        sandbox, is_possible=not arguments.flag("--json") and sys.stdin.isatty() and _is_own_terminal(1)
    )
    consents = [consent for word in words for consent in dialog.about_held(word)]
    hunks = tuple(map(dialog.about_hunks, selection.hunks))
    return selection.replace(consents=tuple(consents), hunks=hunks)


class _ConsentDialog:
    """What a person has seen already, and what they must see now."""

    def __init__(self, sandbox: Sandbox, *, is_possible: bool) -> None:
        self._sandbox = sandbox
        self._reviews = _reviews(sandbox)
        self._is_possible = is_possible

    def about_held(self, word: str) -> tuple[Consent, ...]:
        """Return what --include consents to; nothing where nothing needs it."""
        given, token = split_token(word)
        path = absolute_path(given)
        found = self._reviews.held_at(path)
        if token and len(found) == 1 and self._reviews.was_shown(found[0], token):
            return found
        if not found:
            return ()
        self._refuse_unseen(given, _include_option(found[0]), token, found[0])
        review = self._reviews.held_diff(path, colour="NO_COLOR" not in os.environ)
        _write(review)
        for consent in review.held:
            text = f"Apply the held change to {quote(_shown_name(self._sandbox, consent))}, as shown above?"
            self._reviews.ask(consent, text, is_whole=review.is_whole(consent))
        return review.held

    def about_hunks(self, hunks: Hunks) -> Hunks:
        """Return hunks that can be no others than those that the person has seen."""
        found = self._reviews.hunks_at(hunks)
        if hunks.digest and self._reviews.was_shown(found, hunks.digest):
            return hunks.replace(digest=found.digest)
        numbers = ",".join(map(str, hunks.numbers))
        name = _shown_name(self._sandbox, found)
        self._refuse_unseen(os.fsdecode(name), f"--hunk {_typed(found)}:{numbers}@{found.token}", hunks.digest, found)
        review = self._reviews.diff([os.fsdecode(os.path.join(found.root, found.path))], colour=False)
        _write(review)
        seen = next((one for one in review.shown if one == found), None)
        if seen is None:
            raise DeniedError(
                f"Not applied: unspill could not show all of {quote(name)}, or it changed meanwhile.",
                remedy=f"Look again: {advised('unspill diff{of}', self._sandbox)} {_typed(found)}",
            )
        self._reviews.ask(seen, f"Apply only hunk {numbers} of {quote(name)}, as shown above?", is_whole=True)
        return hunks.replace(digest=seen.digest)

    def _refuse_unseen(self, given: str, option: str, token: str, found: Consent) -> None:
        """Stop where nobody can be shown what would be applied; say so where a token is not for what is held."""
        is_other = bool(token) and not found.digest.startswith(token)
        what = "was not shown on your terminal" if token else "needs the token of the version that you reviewed"
        what = "changed after you reviewed it" if is_other else what
        if not self._is_possible:
            text = "On a terminal: unspill diff{of} {path}, then unspill apply{of} {option}"
            raise DeniedError(
                f"Not applied: {quote(os.fsencode(given))} {what}.",
                remedy=advised(text, self._sandbox, path=_typed(found), option=option),
            )
        if is_other:
            print(f"unspill: {quote(os.fsencode(given))} {what}.", file=sys.stderr)


def _is_own_terminal(number: int) -> bool:
    """Tell whether a stream is the terminal that questions are asked on: what is shown elsewhere is not read there."""
    try:
        return os.tcgetpgrp(number) == os.getpgrp()
    except OSError:
        return False


def _write_text(text: str) -> None:
    """Write a diff: on a terminal no row of a long line looks like one that we begin."""
    if sys.stdout.isatty():
        width = columns()
        text = "\n".join(wrap(line, width) for line in text.split("\n"))
    sys.stdout.write(text)


def _write(review: Review) -> None:
    _write_text(review.text)
    sys.stdout.flush()


def _include_option(consent: Consent) -> str:
    return include_option(_typed(consent), f"@{consent.token}", is_there=consent.is_there)


def _typed(consent: Consent) -> str:
    """Return a path as it can be pasted where the person stands."""
    return shell_word(seen_from_here(os.path.normpath(os.path.join(consent.root, consent.path))))


def _shown_name(sandbox: Sandbox, consent: Consent) -> bytes:
    path, here = os.path.join(consent.root, consent.path), directory_here()
    if here.startswith(consent.root + b"/"):
        return os.path.relpath(path, here)
    return consent.path if consent.root == sandbox.project else path


def _path_from_project(word: str, project: bytes) -> bytes:
    """Return a path as seen from the project, absolute where it is not inside."""
    path = absolute_path(word)
    return os.path.relpath(path, project) if (path + b"/").startswith(project + b"/") else path


def _is_at_or_below(root: bytes, path: bytes, tops: Iterable[bytes]) -> bool:
    """Tell whether an entry of a root is one of some absolute paths, or lies below one."""
    return any((root + b"/" + path + b"/").startswith(top + b"/") for top in tops)


def _change_that_hides(path: bytes, held: ChangeSet) -> bytes:
    """Return the directory whose deletion takes an absolute path with it, else the path itself."""
    for part in held.roots:
        for change in part.changes:
            top = os.path.join(part.root, change.path)
            is_gone = change.base_kind == "dir" and change.kind in ("deleted", "replaced")
            if is_gone and path.startswith(top + b"/"):
                return top
    return path


def _as_glob(root: bytes, path: bytes) -> bytes:
    """Return a pattern for one path of a root and nothing in it."""
    return os.path.join(root, _literally(path))


def _literally(path: bytes) -> bytes:
    return b"".join(b"[%c]" % byte if byte in b"*?[" else bytes([byte]) for byte in path)


def _glob_from_project(pattern: str, project: bytes) -> bytes:
    raw = os.fsencode(pattern)
    here = _path_from_project(".", project)
    if raw.startswith(b"/") or here == b"." or here.startswith(b"/"):
        return raw
    # The name of the directory itself is no pattern
    return _literally(here) + b"/" + raw


def _hunks(text: str) -> Hunks:
    name, colon, numbers = text.rpartition(":")
    numbers, token = split_token(numbers)
    chosen: list[int] = []
    for part in numbers.split(","):
        first, dash, last = part.partition("-")
        if not (name and colon and first.isdecimal() and (last.isdecimal() if dash else not last)):
            raise UsageError(f"--hunk needs PATH:N, such as main.py:1,3: {text!r}", remedy="See `unspill diff PATH`.")
        if int(last or first) > _MOST_HUNKS:
            raise UsageError(f"there is no hunk {last or first}", remedy="See `unspill diff PATH`.")
        chosen += range(int(first), int(last or first) + 1)
    return Hunks(path=absolute_path(name), numbers=tuple(dict.fromkeys(chosen)), digest=token)


def split_token(word: str) -> tuple[str, str]:
    """Return a path and the token after it, none for none: what looks like a token is one."""
    path, _, token = word.rpartition("@")
    is_token = path and SHORTEST <= len(token) <= _LONGEST_TOKEN and not token.strip(_TOKEN_DIGITS)
    return (path, token) if is_token else (word, "")


def _find_trees(sandbox: Sandbox, files: list[FileRow], tops: list[bytes]) -> dict[int, bytes]:
    """Return the trees that files are folded into; none of those that the person names, or something in them."""
    return {
        file: tree
        for file, tree in sandbox.trees(files).items()
        if not any((top + b"/").startswith(tree + b"/") for top in tops)
    }


def _print_tree(sandbox: Sandbox, tree: bytes, inside: list[tuple[FileRow, tuple[Backup, ...]]]) -> None:
    project = sandbox.project + b"/"
    place = tree.removeprefix(project) + b"/"
    size = sum(_size_of(os.path.join(file.root, file.path)) for file, _backups in inside)
    kept = [backup.row.entry.size for _file, backups in inside for backup in backups]
    about = f"{count_text(len(inside), 'file')}, {size_text(size)}"
    about += f"; {count_text(len(kept), 'backup')}, {size_text(sum(kept))}" if kept else ""
    what = "git's own" if tree.endswith(b"/.git") else "ignored by git"
    print(fit(f"{quote(place)}  ({about}; {what}, list with --all)"))


def _size_of(path: bytes) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _print_file(sandbox: Sandbox, file: FileRow, backups: tuple[Backup, ...]) -> None:
    path = file.path if file.root == sandbox.project else os.path.join(file.root, file.path)
    state = "deleted" if file.is_deleted else when_text(file.last_modified)
    print(fit(f"{quote(path)}  ({state})"))
    for backup in backups:
        where = "" if backup.where == "kept" else f"  [{backup.where}]"
        size = size_text(backup.row.entry.size)
        print(fit(f"  {when_text(backup.row.recorded_ns)}  {size:>10}  {quote(backup.row.name)}{where}"))


def _file_form(file: FileRow, backups: Iterable[Backup]) -> dict[str, Any]:
    """Return the record of a file with its backups."""
    return {
        "id": file.id,
        **named("root", file.root),
        **named("path", file.path),
        "last_modified": file.last_modified,
        "is_deleted": file.is_deleted,
        "last_approved_copy_path": decoded(file.last_approved_copy_path),
        "backups": [
            {
                **named("name", backup.row.name),
                "operation": backup.row.operation,
                "recorded_ns": backup.row.recorded_ns,
                "size": backup.row.entry.size,
                "where": backup.where,
                "file": decoded(backup.path),
            }
            for backup in backups
        ],
    }
