# SPDX-License-Identifier: Apache-2.0
"""What a person reviews before they consent: diffs of what is held, to the last byte, and the tokens that name them.

Whoever shows a review on a terminal notes it afterwards. Only then does a token stand for a consent; everything else
is shown and asked about.
"""

from __future__ import annotations

import os

from unspill.changes.diff import MAX_FILE_BYTES, MAX_LINES, diff_lines
from unspill.changes.quote import COLUMNS
from unspill.errors import DeniedError
from unspill.layers.locks import lock_sandbox
from unspill.model.change import ChangeSet, Consent
from unspill.model.permission import Denied, HeldPath
from unspill.permissions.approvers import Terminal
from unspill.permissions.question import make_question
from unspill.record import Record
from unspill.sandbox.choosing import find_held
from unspill.sandbox.consent import digest_of_hunks, readable_digest
from unspill.sandbox.partial import LARGEST, read_partly_chosen
from unspill.sandbox.reading import changes_below, layers_below
from unspill.sandbox.secrets import load_masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.model.change import Change, Hunks
    from unspill.model.layer import Stack
    from unspill.sandbox.consent import HeldPart
    from unspill.sandbox.project import Project

# As good as no bound
_ALL = 1 << 40
_MOST = 200


class Review(Record):
    """A diff, and what it is of. `held` are the held paths in it; `shown` is all that it shows to the last byte."""

    text: str
    held: tuple[Consent, ...] = ()
    shown: tuple[Consent, ...] = ()

    def is_whole(self, consent: Consent) -> bool:
        """Tell whether all that a consent is for is in the text."""
        return consent in self.shown


class Reviews:
    """The reviews of one sandbox. A diff that is never noted counts for nothing."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._table = project.store.shown
        self._sandbox = project.row.id

    def diff(self, paths: Sequence[str], *, colour: bool) -> Review:
        """Return what is held at or below paths: what is named whole, however long; everything only up to a bound."""
        changes, parts = self._look()
        chosen = changes_below(changes, paths)
        wanted = [(part, path) for part in parts for path in part.outermost()[:_MOST]]
        wanted += [(part, path) for part in parts for path in self._in_root(part, map(os.fsencode, paths))]
        return self._review(chosen, dict.fromkeys(wanted), colour=colour, is_bounded=not paths)

    def held_at(self, path: bytes) -> tuple[Consent, ...]:
        """Return what a consent to an absolute path would be for, by root."""
        _changes, parts = self._look()
        return tuple(
            self._consent(part.root, inner, part.digest(inner))
            for part in parts
            for inner in self._in_root(part, [path])
            if part.covered(inner)
        )

    def held_diff(self, path: bytes, *, colour: bool) -> Review:
        """Return all that a consent to an absolute path would let in."""
        changes, parts = self._look()
        wanted = [(part, inner) for part in parts for inner in self._in_root(part, [path]) if part.covered(inner)]
        covered = {part.root: {change.path for change in part.covered(inner)} for part, inner in wanted}
        chosen = changes.replace(
            roots=tuple(
                part.replace(changes=tuple(one for one in part.changes if one.path in covered.get(part.root, ())))
                for part in changes.roots
            )
        )
        return self._review(chosen, dict.fromkeys(wanted), colour=colour, is_bounded=False)

    def hunks_at(self, hunks: Hunks) -> Consent:
        """Return what stands for the hunks of a file as they are now.

        Raises:
            UsageError: there is no such file among the changes, or it has no hunks.
        """
        changes, _parts = self._look()
        file = read_partly_chosen(changes, hunks.replace(digest=""))
        digest = digest_of_hunks(file.change.path, file.old, file.new)
        return self._consent(file.root, file.change.path, digest)

    def note(self, review: Review) -> None:
        """Remember that a review was shown on a terminal."""
        if review.shown:
            self._table.put(self._sandbox, review.shown)

    def was_shown(self, consent: Consent, token: str) -> bool:
        """Tell whether a token names what a consent is for, and that was shown on a terminal."""
        return self._table.has(self._sandbox, consent, token)

    def ask(self, consent: Consent, text: str, *, is_whole: bool) -> None:
        """Ask on the person's terminal about what was just shown there. After a no, no token stands for it any more.

        Raises:
            DeniedError: they did not say yes.
        """
        request = HeldPath(
            project=self._project.path,
            sandbox=self._sandbox,
            root=consent.root,
            path=consent.path,
            digest=consent.digest,
        )
        question = make_question(request, ("once",), wait_s=self._project.means.policy.permissions.wait_s)
        careful = (
            () if is_whole else ("careful:   not all of it could be shown: it is binary, too large or unreadable",)
        )
        question = question.replace(text=text, lines=(*question.lines, *careful))
        answer = Terminal(lock=self._project.store.state + b"/locks/terminal").ask(question)
        if isinstance(answer, Denied):
            if not answer.is_unseen:
                self._table.drop(self._sandbox, consent)
            because = "nobody could be asked" if answer.is_unseen else "you did not agree"
            because += f" ({answer.reason})" if answer.reason else ""
            raise DeniedError(f"Not applied: {because}.", remedy="Nothing was changed; it is still held.")

    def _look(self) -> tuple[ChangeSet, tuple[HeldPart, ...]]:
        try:
            return find_held(self._project, self._stacks())
        except FileNotFoundError:
            # An apply has the layers in its hands right now
            with lock_sandbox(self._project.store.state, self._sandbox):
                return find_held(self._project, self._stacks())

    def _stacks(self) -> tuple[Stack, ...]:
        return tuple(stack for stack in load_masked(self._project) if stack.sealed)

    def _review(
        self, chosen: ChangeSet, wanted: dict[tuple[HeldPart, bytes], None], *, colour: bool, is_bounded: bool
    ) -> Review:
        hunks: list[Consent] = []

        def token(root: bytes, change: Change, texts: tuple[bytes, bytes]) -> str:
            if change.kind != "modified":
                return ""
            hunks.append(self._consent(root, change.path, digest_of_hunks(change.path, *texts)))
            return hunks[-1].token

        seen: set[tuple[bytes, bytes]] = set()
        lines = diff_lines(
            chosen,
            layers_below(self._project, None),
            max_lines=MAX_LINES if is_bounded else _ALL,
            max_file_bytes=MAX_FILE_BYTES if is_bounded else LARGEST,
            columns=COLUMNS if is_bounded else _ALL,
            colour=colour,
            token=token,
            seen=seen,
        )
        there = {(part.root, change.path) for part in chosen.roots for change in part.changes}
        held, shown = [], [consent for consent in hunks if (consent.root, consent.path) in seen]
        for part, path in wanted:
            covered = {(part.root, change.path) for change in part.covered(path)}
            digest = readable_digest(part, path) if covered and covered <= there else ""
            if digest:
                held.append(self._consent(part.root, path, digest))
                shown += held[-1:] if covered <= seen else []
        return Review(text="".join(line + "\n" for line in lines), held=tuple(held), shown=tuple(shown))

    def _in_root(self, part: HeldPart, paths: Iterable[bytes]) -> list[bytes]:
        """Return what paths, absolute or as seen from the project, are called in a root."""
        found = []
        for given in paths:
            path = os.path.normpath(os.path.join(self._project.path, given))
            if (path + b"/").startswith(part.root + b"/"):
                found.append(path[len(part.root) + 1 :] or b".")
            elif (part.root + b"/").startswith(path.rstrip(b"/") + b"/"):
                found.append(b".")
        return found

    def _consent(self, root: bytes, path: bytes, digest: str) -> Consent:
        token = self._table.token_of(self._sandbox, root, path, digest)
        return Consent(root=root, path=path, digest=digest, token=token)
