# SPDX-License-Identifier: Apache-2.0
"""Say in a few lines what an operation did to a repository, or where the work lies that it could not move there."""

from __future__ import annotations

from unspill.changes.quote import quote
from unspill.git.layout import OWN_REFS, short_ref
from unspill.git.state import SYMBOLIC, is_own_ref
from unspill.policy.paths import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.operation import GitStep, RefMove

_MOST_LINES = 21
_MOST_WORDS = 4


def moved_note(step: GitStep) -> str:
    """Say in one line what moved in a repository."""
    assert step.move is not None
    refs = [ref for ref in step.move.refs if not is_own_ref(ref.name, step.members)]
    words = [_moved_word(ref) for ref in refs if not ref.name.endswith(b"HEAD")]
    words += [f"now at {_short(ref.new)}" for ref in refs if ref.name.endswith(b"HEAD") and ref.new is not None]
    more = f" and {len(words) - _MOST_WORDS} more" if len(words) > _MOST_WORDS else ""
    shown = ", ".join(words[:_MOST_WORDS]) + more
    return f"{_where(step.top)}: {shown or 'index or merge state changed'}"


def stayed_note(top: bytes) -> str:
    """Say that what a run did to HEAD or the index is dropped, where nothing of it can arrive under another name."""
    return f"{_where(top)}: you changed it during the run, so HEAD and the index stay as you left them"


def _where(top: bytes) -> str:
    return f"git in {quote(top.rpartition(b'/')[0])}" if b"/" in top else "git"


def _moved_word(ref: RefMove) -> str:
    name = quote(short_ref(ref.name))
    if ref.old is None or ref.new is None:
        return f"new {name}" if ref.old is None else f"{name} deleted"
    return f"{name} {_short(ref.old)} -> {_short(ref.new)}"


def _short(value: bytes | None) -> str:
    text = (value or b"").removeprefix(SYMBOLIC)
    return quote(text.removeprefix(b"refs/heads/")) if text != value else text[:7].decode()


def _git_in(top: bytes) -> str:
    """Return how to call git for a repository, from the root's directory."""
    above = top.rpartition(b"/")[0]
    return f"git -C {shell_word(above)}" if above else "git"


def arrival_notes(step: GitStep) -> list[str]:
    """Say where the work of a run is that its repository could not move with, and how to get it."""
    git = _git_in(step.top)
    lines = ["git: your branches stay as they are, because you changed them too. To get the run's work:"]
    for ref in step.arrival:
        short = ref.name.removeprefix(b"refs/")
        kind = ref.name.removeprefix(OWN_REFS + b"/").split(b"/")[1:2]
        word = shell_word(short)
        if kind == [b"stash"]:
            lines.append(f"  {git} stash apply {word}")
        elif kind in ([b"heads"], [b"HEAD"], [b"log"]):
            lines += [f"  {git} log --oneline HEAD..{word}", f"  {git} merge {word}"]
        else:
            lines.append(f"  {git} show {word}")
    # Where only the locks showed that somebody else moved it
    gone = [ref.name for ref in step.move.refs if ref.new is None] if step.move is not None else []
    return [*lines[:_MOST_LINES], *deletion_notes(step.top, gone)]


def deletion_notes(top: bytes, names: Iterable[bytes]) -> list[str]:
    """Name branches and tags that a run deleted and that stay, because the repository did not move with the run."""
    git = _git_in(top)
    lines = []
    for name in sorted(names):
        for kind, delete in ((b"refs/heads/", "branch -D"), (b"refs/tags/", "tag -d")):
            if name.startswith(kind):
                short = name.removeprefix(kind)
                lines.append(f"git: the run deleted {quote(short)}. You still have it; to delete it too:")
                lines.append(f"  {git} {delete} {shell_word(short)}")
    return lines[:_MOST_LINES]
