# SPDX-License-Identifier: Apache-2.0
"""Consent at the command line: to a content that was shown on this person's terminal, never to a name alone."""

from __future__ import annotations

import os
import sys

from unspill.changes.quote import quote
from unspill.cli.selecting import path_from_project, split_token
from unspill.cli.telling import seen_from_here
from unspill.errors import DeniedError
from unspill.policy.paths import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.model.change import Consent, Hunks, Selection
    from unspill.sandbox.reviews import Review, Reviews
    from unspill.sandbox.sandbox import Sandbox

_ADVISED = 20


def with_consent(selection: Selection, arguments: Arguments, sandbox: Sandbox) -> Selection:
    """Add what the person consents to by --include, and hold each --hunk to what they have seen.

    A token stands for what they were shown on a terminal. Without one, or where it names something else, they are shown
    what would be applied, and asked.

    Raises:
        DeniedError: there is no terminal to ask on, or they did not say yes; nothing was changed.
    """
    words = arguments.values("--include")
    if not (words or selection.hunks):
        return selection
    asking = _Asking(sandbox, is_possible=not arguments.flag("--json") and sys.stdin.isatty() and _is_own_terminal(1))
    consents = [consent for word in words for consent in asking.about_held(word)]
    hunks = tuple(map(asking.about_hunks, selection.hunks))
    return selection.replace(consents=tuple(consents), hunks=hunks)


def show(sandbox: Sandbox, review: Review) -> None:
    """Print a review on a terminal, with the commands that apply what is held in it, and remember that it was shown."""
    sys.stdout.write(review.text)
    for consent in [one for one in review.held if review.is_whole(one)][:_ADVISED]:
        name = quote(_name(sandbox, consent))
        print(f"{name} is held. To apply it as shown: unspill apply --include {_word(consent)}@{consent.token}")
    sys.stdout.flush()
    sandbox.reviews.note(review)


class _Asking:
    """What a person has seen already, and what they must see now."""

    def __init__(self, sandbox: Sandbox, *, is_possible: bool) -> None:
        self._sandbox = sandbox
        self._reviews: Reviews = sandbox.reviews
        self._is_possible = is_possible

    def about_held(self, word: str) -> tuple[Consent, ...]:
        """Return what --include consents to; nothing where nothing needs it."""
        given, token = split_token(word)
        path = os.path.normpath(os.path.join(self._sandbox.project, path_from_project(given, self._sandbox.project)))
        found = self._reviews.held_at(path)
        if token and len(found) == 1 and self._reviews.was_shown(found[0], token):
            return found
        if not found:
            return ()
        self._refuse_unseen(given, f"--include {_word(found[0])}@{found[0].token}", token, found[0])
        review = self._reviews.held_diff(path, colour="NO_COLOR" not in os.environ)
        _print(review)
        for consent in review.held:
            text = f"Apply what is held at {quote(_name(self._sandbox, consent))}, as shown above?"
            self._reviews.ask(consent, text, is_whole=review.is_whole(consent))
        return review.held

    def about_hunks(self, hunks: Hunks) -> Hunks:
        """Return hunks that can be no others than those that the person has seen."""
        found = self._reviews.hunks_at(hunks)
        if hunks.digest and self._reviews.was_shown(found, hunks.digest):
            return hunks.replace(digest=found.digest)
        numbers = ",".join(map(str, hunks.numbers))
        name = _name(self._sandbox, found)
        self._refuse_unseen(os.fsdecode(name), f"--hunk {_word(found)}:{numbers}@{found.token}", hunks.digest, found)
        review = self._reviews.diff([os.fsdecode(os.path.join(found.root, found.path))], colour=False)
        _print(review)
        seen = next((one for one in review.shown if one == found), None)
        if seen is None:
            raise DeniedError(
                f"Not applied: {quote(name)} could not be shown whole, or changed meanwhile.",
                remedy=f"Look again: unspill diff {_word(found)}",
            )
        self._reviews.ask(seen, f"Apply only hunk {numbers} of {quote(name)}, as shown above?", is_whole=True)
        return hunks.replace(digest=seen.digest)

    def _refuse_unseen(self, given: str, option: str, token: str, found: Consent) -> None:
        """Stop where nobody can be shown what would be applied; say so where a token is not for what is held."""
        is_other = bool(token) and not found.digest.startswith(token)
        what = "was not shown on your terminal" if token else "is only a name: give the token of what you were shown"
        what = "is not what you were shown: it changed since" if is_other else what
        if not self._is_possible:
            raise DeniedError(
                f"Not applied: {quote(os.fsencode(given))} {what}.",
                remedy=f"On a terminal: unspill diff {_word(found)}, then unspill apply {option}",
            )
        if is_other:
            print(f"unspill: {quote(os.fsencode(given))} {what}.", file=sys.stderr)


def _is_own_terminal(number: int) -> bool:
    """Tell whether a stream is the terminal that questions are asked on: what is shown elsewhere is not read there."""
    try:
        return os.tcgetpgrp(number) == os.getpgrp()
    except OSError:
        return False


def _print(review: Review) -> None:
    sys.stdout.write(review.text)
    sys.stdout.flush()


def _word(consent: Consent) -> str:
    """Return a path as it can be pasted where the person stands."""
    return shell_word(seen_from_here(os.path.normpath(os.path.join(consent.root, consent.path))))


def _name(sandbox: Sandbox, consent: Consent) -> bytes:
    is_own = consent.root == sandbox.project
    return consent.path if is_own else os.path.join(consent.root, consent.path)
