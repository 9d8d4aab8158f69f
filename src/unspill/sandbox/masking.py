# SPDX-License-Identifier: Apache-2.0
"""Which secrets of a project a run does not see, found in the live directories, and the layers that hide them.

All names of the table are hidden, also those that do not exist: a person may make one while the command runs. Not
hidden are directories of such a name, what is revealed, and files that the person has git track.
"""

from __future__ import annotations

import os
import posixpath
import stat

from unspill.errors import UsageError
from unspill.layers.mask import find_mask
from unspill.layers.stack import load_stacks
from unspill.model.record import Record
from unspill.policy.paths import lies_beneath, show
from unspill.policy.secrets import masked_names, revealed_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.layer import RunId, SealedLayer, Stack
    from unspill.sandbox.opening import Opened
    from unspill.store.db import Store


class Masks(Record):
    """The layer of each root that has one; what git tracks under the names of secrets, each with what follows; and
    the secrets that are there and hidden."""

    layers: tuple[tuple[bytes, bytes], ...] = ()
    tracked: tuple[tuple[bytes, str], ...] = ()
    hidden: tuple[bytes, ...] = ()


_CHANGED_KEY = "secrets changed by "
_DIRECTORY, _SECRET = "directory", "secret"
# A directory of that size has at most some hundred entries on all filesystems
_SMALL = 8192
TRACKED = "is tracked by git, so it is not masked: commands see what is in it"
# Said by each run: git would take what it does not see for deleted
MASKED = (
    "is tracked by git but masked, since a command may have put it into the index: git sees it as deleted inside,"
    " so `git commit -a` would delete it; `git add` it yourself, or `--reveal` it"
)


def find_masks(opened: Opened, revealed: tuple[bytes, ...] = ()) -> Masks:
    """Return the masks of a run; `revealed` are paths that it may see, absolute or relative to the project.

    Raises:
        UsageError: a path of `revealed` is none that would be masked.
        SandboxUnavailable: a mask can't be made.
    """
    if revealed:
        _check_revealed(opened, masked_names(opened.policy.secrets), revealed)
    return _find_masks(opened, revealed)


def _find_masks(opened: Opened, revealed: tuple[bytes, ...]) -> Masks:
    secrets = opened.policy.secrets
    names = masked_names(secrets)
    if not names:
        return Masks()
    layers, tracked, secret = [], [], []
    for root in opened.roots:
        hidden: dict[bytes, tuple[bytes, ...]] = {}
        for path in (b"", *_directories(root, secrets.directories)):
            directory = posixpath.join(root, path) if path else root
            shown = revealed_names((*secrets.reveal, *revealed), opened.project, directory)
            for name, text in _find_shown(opened.store, directory, names, shown):
                if text in (TRACKED, MASKED):
                    tracked.append((posixpath.join(directory, name), text))
                if text in (TRACKED, _DIRECTORY):
                    shown |= {name}
                else:
                    secret.append(posixpath.join(directory, name))
            hidden[path] = tuple(name for name in names if name not in shown) if shown else names
        layer = find_mask(opened.store.state, root, hidden)
        if layer is not None:
            layers.append((root, layer))
    return Masks(layers=tuple(layers), tracked=tuple(tracked), hidden=tuple(secret))


def load_masked(opened: Opened) -> tuple[Stack, ...]:
    """Return the stacks of a sandbox as a run without a grant sees them, so that no change shows what is masked.

    A secret that a run was shown and has changed is not masked: what is held is a change of the person's own file.
    """
    stacks = load_stacks(opened.store, opened.row.id, opened.roots)
    layers = dict(_find_masks(opened, tuple(_changed_secrets(opened, stacks))).layers)
    return tuple(stack.replace(mask=layers.get(stack.live)) for stack in stacks)


def remember_revealed(opened: Opened, run: RunId, revealed: tuple[bytes, ...]) -> None:
    """Keep in mind which secrets a run is shown, before it begins: what it leaves of them in its layer is covered."""
    shown = {posixpath.normpath(posixpath.join(opened.project, path)) for path in revealed}
    opened.store.facts.put(_CHANGED_KEY + run, " ".join(path.hex() for path in shown))


def carry_changed(store: Store, stack: Stack) -> None:
    """Remember for the last run what was remembered for all: their layers are about to become one, under its name."""
    runs = dict.fromkeys(layer.run for layer in stack.sealed)
    texts = {text for run in runs for text in (store.facts.find(_CHANGED_KEY + run) or "").split()}
    if texts:
        store.facts.put(_CHANGED_KEY + stack.sealed[-1].run, " ".join(sorted(texts)))


def with_covers(opened: Opened, stacks: tuple[Stack, ...], revealed: tuple[bytes, ...]) -> tuple[Stack, ...]:
    """Return stacks in which no layer shows a secret that only an earlier run was granted to see.

    Raises:
        SandboxUnavailable: a layer can't be covered.
    """
    if not any(stack.sealed for stack in stacks):
        return stacks
    shown = {posixpath.normpath(posixpath.join(opened.project, path)) for path in revealed}
    return tuple(
        stack.replace(sealed=tuple(_covered(opened.store, stack, layer, shown) for layer in stack.sealed))
        for stack in stacks
    )


def _covered(store: Store, stack: Stack, layer: SealedLayer, shown: set[bytes]) -> SealedLayer:
    names: dict[bytes, tuple[bytes, ...]] = {}
    for path in _changed_in(store, stack, layer):
        if path not in shown:
            directory, name = posixpath.split(path[len(stack.live) + 1 :])
            names[directory] = (*names.get(directory, ()), name)
    return layer.replace(cover=find_mask(store.state, layer.upper, names)) if names else layer


def _changed_secrets(opened: Opened, stacks: tuple[Stack, ...]) -> Iterator[bytes]:
    """Yield the secrets that runs were shown and changed, as far as that is held."""
    for stack in stacks:
        for layer in stack.sealed:
            yield from _changed_in(opened.store, stack, layer)


def _changed_in(store: Store, stack: Stack, layer: SealedLayer) -> Iterator[bytes]:
    for text in (store.facts.find(_CHANGED_KEY + layer.run) or "").split():
        path = bytes.fromhex(text)
        if lies_beneath(path, stack.live) and os.path.lexists(layer.upper + path[len(stack.live) :]):
            yield path


def news_of(opened: Opened, masks: Masks) -> tuple[str, ...]:
    """Return the warnings about tracked secrets: those that are masked, and shown ones as soon as they are others."""
    if not masks.tracked:
        return ()
    texts = tuple(f"{show(os.path.relpath(path, opened.project))} {text}." for path, text in masks.tracked)
    key, said = f"tracked secrets of {opened.row.id}", "\n".join(texts)
    if opened.store.facts.find(key) == said:
        return tuple(text for text in texts if text.endswith(f"{MASKED}."))
    opened.store.facts.put(key, said)
    return texts


def is_about_secret(warning: str) -> bool:
    """Tell whether a run's warning is one of these, which must reach the person."""
    return warning.endswith((f"{TRACKED}.", f"{MASKED}."))


def secret_directories(opened: Opened) -> Iterator[bytes]:
    """Yield the directories of all roots in which names are masked."""
    for root in opened.roots:
        for path in (b"", *_directories(root, opened.policy.secrets.directories)):
            yield posixpath.join(root, path) if path else root


def shown_secrets(opened: Opened) -> tuple[bytes, ...]:
    """Return the files with names of secrets that runs see, because git has them."""
    return tuple(path for path, text in _find_masks(opened, ()).tracked if text == TRACKED)


def _directories(root: bytes, given: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield the directories of the policy below a root, each also where the person's links lead."""
    for path in given:
        whole = posixpath.join(root, path)
        real = os.path.realpath(whole)
        for found in dict.fromkeys((whole, real)):
            if lies_beneath(found, root):
                yield found[len(root) + 1 :]


def _find_shown(
    store: Store, directory: bytes, names: tuple[bytes, ...], shown: frozenset[bytes]
) -> Iterator[tuple[bytes, str]]:
    """Yield the names that are there, each with what it is."""
    files = []
    for name in _find_present(directory, names):
        if name not in shown:
            if _is_directory(directory + b"/" + name):
                yield name, _DIRECTORY
            else:
                files.append(name)
    if files:
        from unspill.sandbox.claims import Claims
        from unspill.sandbox.tracked import find_tracked

        tracked = find_tracked(directory, files, Claims(store, directory))
        for name in files:
            yield name, _SECRET if name not in tracked else TRACKED if tracked[name] else MASKED


def _find_present(directory: bytes, names: tuple[bytes, ...]) -> list[bytes]:
    """Return those names that are there, in the cheaper way: to list a directory, or to ask for each of them."""
    try:
        if os.lstat(directory).st_size <= _SMALL:
            return sorted({*os.listdir(directory)}.intersection(names))
    except OSError:
        pass
    above = directory + b"/"
    return [name for name in names if os.access(above + name, os.F_OK)]


def _is_directory(path: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _check_revealed(opened: Opened, names: tuple[bytes, ...], revealed: tuple[bytes, ...]) -> None:
    places = {
        directory
        for root in opened.roots
        for directory in (root, *(posixpath.join(root, path) for path in opened.policy.secrets.directories))
    }
    for path in revealed:
        above, name = posixpath.split(posixpath.normpath(posixpath.join(opened.project, path)))
        if above not in places or name not in names:
            raise UsageError(
                f"{show(path)} can't be revealed: no secret would be masked there.",
                remedy="Name the file itself: the top directory of a root and those of `[secrets]` have masked names.",
            )
