# SPDX-License-Identifier: Apache-2.0
"""An apply that a program wants: the person is asked about each held file, with the digest of what would go there.

Asked while nothing is locked, so what is applied then is only what was looked at: anything else is left as stale.
Directories that are held, or go, are never asked about: an answer for one would be an answer for all that is in it.
"""

from __future__ import annotations

import posixpath

from unspill.changes.reader import Reader
from unspill.errors import DeniedError
from unspill.model.change import Consent
from unspill.model.permission import HeldPath
from unspill.permissions.question import describe_held, head_of_held
from unspill.policy.folding import alias_of, fold
from unspill.policy.project_secrets import masked_names
from unspill.sandbox.applying import apply_held
from unspill.sandbox.choosing import choose
from unspill.sandbox.masking import load_masked
from unspill.sandbox.turn import given_up, lock_unless_given_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unspill.model.change import Change
    from unspill.model.operation import Operation
    from unspill.model.policy import Secrets
    from unspill.permissions.broker import Broker
    from unspill.sandbox.choosing import Choice, Wish
    from unspill.sandbox.opening import Opened

# A reason may name what a command has written
_WHY = 300


def apply_in_turn(opened: Opened, wish: Wish, broker: Broker | None) -> Operation:
    """Apply what is wished for when it is its turn; with a broker, the person is asked about what is held back.

    Raises:
        UsageError: the selection chooses nothing.
        ApplyFailed: the filesystem failed; nothing was changed.
        SandboxUnavailable: the caller gave up; nothing was changed.
    """
    if broker is not None:
        return apply_with_questions(opened, wish, broker)
    with lock_unless_given_up(opened.store.state, opened.row.id, wish.cancel_fd):
        return apply_held(opened, wish)


def apply_with_questions(opened: Opened, wish: Wish, broker: Broker) -> Operation:
    """Apply what is wished for, and of what is held that to which the person says yes.

    Raises:
        UsageError: the selection chooses nothing.
        ApplyFailed: the filesystem failed; nothing was changed.
        SandboxUnavailable: the caller gave up; nothing was changed.
    """
    with lock_unless_given_up(opened.store.state, opened.row.id, wish.cancel_fd):
        stacks = tuple(stack for stack in load_masked(opened) if stack.sealed)
        choice = choose(opened, stacks, wish)
        roots = tuple(stack.live for stack in stacks)
        held = {(roots[left.root], left.path): left.reason for left in choice.left if left.why == "held"}
        asked = tuple(_requests(opened, held, choice)) if held else ()
    allowed = []
    for request in asked:
        try:
            _obtain(broker, request, wish.cancel_fd)
        except DeniedError:
            continue
        allowed.append(Consent(root=request.root, path=request.path, digest=request.digest))
    selection = wish.selection.replace(consents=(*wish.selection.consents, *allowed))
    reviewed = choice.changes if held else wish.reviewed
    with lock_unless_given_up(opened.store.state, opened.row.id, wish.cancel_fd):
        return apply_held(opened, wish.replace(selection=selection, reviewed=reviewed))


def _obtain(broker: Broker, request: HeldPath, cancel_fd: int | None) -> None:
    from unspill.sandbox.patience import until_cancelled

    permit = until_cancelled(lambda: broker.obtain(request), cancel_fd)
    if permit is None:
        raise given_up()
    permit.take(request)


def _requests(opened: Opened, held: dict[tuple[bytes, bytes], str], choice: Choice) -> Iterator[HeldPath]:
    is_secret = _secrets(opened.policy.secrets)
    changes = {(part.root, change.path): change for part in choice.changes.roots for change in part.changes}
    parts = {part.root: part for part in choice.held}
    for (root, path), why in held.items():
        change = changes.get((root, path))
        if change is None or not _is_one_file(change):
            continue
        becomes = describe_held(change)
        with Reader(root) as reader:
            head, rest = (b"", "") if is_secret(path) else head_of_held(change, reader)
        if change.entry is not None and is_secret(path):
            becomes += "; what it has is not shown, because of its name: see `unspill diff`"
        yield HeldPath(
            project=opened.project,
            sandbox=opened.row.id,
            root=root,
            path=path,
            digest=parts[root].digest(path),
            why=why[:_WHY] if why.isprintable() else "",
            becomes=becomes,
            head=head,
            rest=rest,
        )


def _secrets(secrets: Secrets) -> Callable[[bytes], bool]:
    """Return what tells the names of secrets, in whatever spelling some filesystem takes for them.

    Who is asked may be a program: what such a file has is the person's alone.
    """
    names = masked_names(secrets)
    aliases = {alias_of(name): name.decode() for name in names if name.isascii()}
    folded = frozenset(fold(name, aliases) for name in names)
    return lambda path: fold(posixpath.basename(path), aliases) in folded


def _is_one_file(change: Change) -> bool:
    left = None if change.entry is None else change.entry.kind
    return left in (None, "file", "symlink") and change.base_kind != "dir"
