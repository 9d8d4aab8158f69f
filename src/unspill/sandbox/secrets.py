# SPDX-License-Identifier: Apache-2.0
"""Hide a project's secrets from its runs: which ones, the layers that hide them, and when git's index is believed.

All names of the table are hidden, also those that do not exist: a person may make one while the command runs. Not
hidden are directories of such a name, what is revealed, and files that the person has git track.

That a path is in the index says nothing alone: a command may have put it there for a file that it has never seen, and
an apply would bring that index into the project. So an entry that an apply brought counts for nothing from then on,
whoever writes the index next: else a command could have any secret shown, or guess at it. Where a secret was shown
before, or came with the same apply, the command knows it anyway. Commits that commands made can come into an index
later, by `git reset`: once an apply wrote to a repository, a name that is new in its index needs the content that git
has. A new database knows nothing of all that: what the file does not prove is believed only once the person was told.
Indexes are read as data; git itself is never run.

Deeper down a root is searched once a day, after a run, in a thread beside: runs before it see what it will find. What
it finds is hidden from then on, but for what git tracks, by the same rules, and files that commands made and nobody
has changed since.
"""

from __future__ import annotations

import os
import posixpath
import stat
import time

from unspill.errors import UnspillError, UsageError
from unspill.git.files import find_by_name, find_objects
from unspill.host.places import WalkBounds, find_named
from unspill.layers.lifecycle import SEARCH_NAME, do_aside, load_stacks
from unspill.layers.mask import find_mask
from unspill.model.policy import DAY_NS
from unspill.model.run import Exited, Hint
from unspill.policy.git import pointer_target
from unspill.policy.paths import lies_beneath, quote, shell_word
from unspill.policy.secrets import NOT_SEARCHED, masked_names, revealed_names
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from unspill.model.change import ChangeSet
    from unspill.model.policy import Secrets
    from unspill.model.run import Outcome, Output, RunId, SealedLayer, Stack
    from unspill.sandbox.project import Project
    from unspill.store.db import Store

    # Paths, absolute, and the digests that indexes have for them
    Entries = dict[bytes, bytes]


TRACKED = "is tracked by git, so it is not masked: commands see what is in it"
# Said by each run: git would take what it does not see for deleted
MASKED = (
    "is tracked by git but masked, since a command may have put it into the index: git sees it as deleted inside,"
    " so `git commit -a` would delete it; `git add` it yourself, or `--reveal` it"
)
# A database that is new, or was lost, knows nothing of what commands did before
UNTOLD = (
    "is tracked by git and edited, but unspill does not know who added it: git sees it as deleted inside, so"
    " `git commit -a` would delete it; runs see it once this was said on your terminal, or you `git add` it yourself;"
    " if it is not yours, `git rm --cached` it"
)
_STANDINGS = (MASKED, TRACKED, UNTOLD)
# Said once of each: the beginning of a line
HIDDEN = "Hidden from commands: "
_DIRECTORY, _SECRET = "directory", "secret"
# A directory of that size has at most some hundred entries on all filesystems
_SMALL = 8192
# Keys of what the store trusts
_CHANGED = "secrets changed by "
CLAIMED = "claims about "
_CLAIMED_ANYWHERE = "claims of all directories"
_TRUSTED = "tracked by the person in "
_TOLD_OF = "entries that the person was told of in "
_WRITTEN = "repository written by a command: "
_MADE = "made by commands below "
# Keys of facts in the store
_FOUND = "secrets found below "
_VERDICTS = "which of them git tracks, below "
_TOLD = "hidden secrets told of in "
_ANY = "any"
# A search after a run: of an ordinary project it takes a few milliseconds
_BOUNDS = WalkBounds(depth=16, entries=200_000, found=2000, seconds=1.0)
# Each is an entry of the mask, and its directory another one
_MOST_HIDDEN = 500
_MOST_MADE = 1000
_MOST_TOLD = 20
# After so many guesses at one secret no index is believed about it any more
_MOST_GUESSES = 32
_MOST_ANYWHERE = 1024
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LARGEST_POINTER = 4096
# Secrets are small; what is not is taken for one that git does not have
_LARGEST_FILE = 4 << 20
_MOST_LEVELS = 64
# Of an output that is looked through for hints
_TAIL = 16 * 1024
_MOST_HINTS = 3
# Names such as `credentials` and `identity` are words too
_MISSING = (b"no such file", b"not found", b"not exist", b"enoent", b"missing")
# To tell one list of names from another one of the person's own
_MODULUS = (1 << 61) - 1
# Two ticks of the slowest clock that files are stamped by
_TICKS_NS = 20_000_000
# Roots that this process is searching
_searching: set[bytes] = set()
# Of names of secrets: one for each policy of this process
_digests: dict[tuple[bytes, ...], str] = {}
_MARKS = b"\xe2\x80\x98 \xe2\x80\x99 ' \" ` ( ) [ ] < > , = : ;".split()


class Masks(Record):
    """What hides the secrets of a run.

    `layers` has the layer of each root that has one, `tracked` what git tracks under the names of secrets, each with
    what follows, `hidden` the secrets that are there and hidden.
    """

    layers: tuple[tuple[bytes, bytes], ...] = ()
    tracked: tuple[tuple[bytes, str], ...] = ()
    hidden: tuple[bytes, ...] = ()


def find_masks(project: Project, revealed: tuple[bytes, ...] = ()) -> Masks:
    """Return the masks of a run; `revealed` are paths that it may see, absolute or relative to the project.

    Raises:
        UsageError: a path of `revealed` is none that would be masked.
        SandboxUnavailable: a mask can't be made.
    """
    if revealed:
        _check_revealed(project, masked_names(project.means.policy.secrets), revealed)
    return _find_masks(project, revealed)


class KnownMasks:
    """The masks of a project's runs, found anew only if something that they depend on may be another.

    Whoever uses it keeps the masks in place meanwhile (`layers.mask.MaskUse`).
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._last: tuple[object, Masks] | None = None
        # Whether somebody is to look deeper down, as far as the last look says
        self.is_search_due = True

    def find(self) -> Masks:
        """Return the masks of a run that is shown nothing beyond the policy.

        Raises:
            SandboxUnavailable: as of `find_masks`.
        """
        # Looked at first: what changes while they are found is noticed the next time
        seen = self._look()
        if self._last is not None and seen is not None and self._last[0] == seen:
            return self._last[1]
        masks = find_masks(self._project)
        is_plain = seen is not None and not (masks.hidden or masks.tracked)
        self._last = (seen, masks) if is_plain else None
        return masks

    def _look(self) -> object | None:
        """Return what masks without a secret depend on: the roots themselves, and what was found deeper down.

        None where there is more, or where a root was changed so lately that another change may not show.
        """
        secrets = self._project.means.policy.secrets
        self.is_search_due = True
        if secrets.directories:
            return None
        found: list[object] = []
        is_new = True
        for root in self._project.roots:
            deeper = load_found(self._project.store, root)
            is_new &= deeper.is_new(masked_names(secrets))
            now_ns, status = time.time_ns(), os.lstat(root)
            if deeper.hidden or status.st_ctime_ns > now_ns - _TICKS_NS:
                return None
            found.append((status.st_dev, status.st_ino, status.st_ctime_ns))
        self.is_search_due = not is_new
        return found


def load_masked(project: Project) -> tuple[Stack, ...]:
    """Return the stacks of a sandbox as a run without a grant sees them, so that no change shows what is masked.

    A secret that a run was shown and has changed is not masked: what is held is a change of the person's own file.
    """
    stacks = load_stacks(project.store, project.row.id, project.roots)
    layers = mask_finder(project, stacks)()
    return tuple(stack.replace(mask=layers.get(stack.live)) for stack in stacks)


def mask_finder(project: Project, stacks: tuple[Stack, ...]) -> Callable[[], dict[bytes, bytes]]:
    """Return what finds the masks for what is held now, by root: a mask looks as its root does when it is found."""
    changed = tuple(_changed_secrets(project, stacks))
    return lambda: dict(_find_masks(project, changed).layers)


def remember_revealed(project: Project, run: RunId, revealed: tuple[bytes, ...]) -> None:
    """Keep in mind which secrets a run is shown, before it begins: what it leaves of them in its layer is covered."""
    shown = {_absolute(project, path) for path in revealed}
    project.store.trust.put(_CHANGED + run, " ".join(path.hex() for path in shown))


def carry_changed(store: Store, stack: Stack) -> None:
    """Remember for the last run what was remembered for all: their layers are about to become one, under its name."""
    runs = dict.fromkeys(layer.run for layer in stack.sealed)
    texts = {text for run in runs for text in _words(store, _CHANGED + run)}
    if texts:
        store.trust.put(_CHANGED + stack.sealed[-1].run, " ".join(sorted(texts)))


def with_covers(project: Project, stacks: tuple[Stack, ...], revealed: tuple[bytes, ...]) -> tuple[Stack, ...]:
    """Return stacks in which no layer shows a secret that only an earlier run was granted to see.

    Raises:
        SandboxUnavailable: a layer can't be covered.
    """
    changed = project.store.trust.starting_with(_CHANGED) if any(stack.sealed for stack in stacks) else {}
    if not changed:
        return stacks
    shown = {_absolute(project, path) for path in revealed}
    return tuple(
        stack.replace(sealed=tuple(_covered(project.store, changed, stack, layer, shown) for layer in stack.sealed))
        for stack in stacks
    )


def shown_secrets(project: Project, entries: Entries) -> tuple[bytes, ...]:
    """Return the files with names of secrets that runs see, because git has them; `entries` are those of the indexes.

    Deeper down, what is in an index is seen unless it is hidden.
    """
    masks = _find_masks(project, ())
    above = {*_masked_directories(project)}
    hidden = {*masks.hidden}
    deeper = [path for path in entries if posixpath.dirname(path) not in above and path not in hidden]
    return (*(path for path, text in masks.tracked if text == TRACKED), *deeper)


def tracked_warnings(project: Project, masks: Masks) -> tuple[str, ...]:
    """Return the warnings about tracked secrets: those that are masked, and shown ones as soon as they are others."""
    if not masks.tracked:
        return ()
    texts = tuple(_warning(project, *one) for one in masks.tracked)
    key, said = f"tracked secrets of {project.row.id}", "\n".join(texts)
    if project.store.facts.find(key) == said:
        return tuple(text for text in texts if not text.endswith(f"{TRACKED}."))
    project.store.facts.put(key, said)
    return texts


def note_told(project: Project, warnings: Collection[str]) -> None:
    """Believe what the indexes say about secrets, as far as the person was just told so."""
    if any(warning.endswith(f"{UNTOLD}.") for warning in warnings):
        for path, text in _find_masks(project, ()).tracked:
            if text == UNTOLD and _warning(project, path, text) in warnings:
                Claims(project.store, posixpath.dirname(path)).tell(posixpath.basename(path))
        _judge_afresh(project)


def _warning(project: Project, path: bytes, text: str) -> str:
    return f"{quote(os.path.relpath(path, project.path))} {text}."


def hidden_news(project: Project, hidden: Iterable[bytes]) -> tuple[str, ...]:
    """Say which secrets are hidden, of each once in a project."""
    if not (paths := tuple(hidden)):
        return ()
    key = _TOLD + project.path.hex()
    told = (project.store.facts.find(key) or "").split()
    new = [path for path in paths if path.hex() not in {*told}]
    if not new:
        return ()
    project.store.facts.put(key, " ".join((*told, *(path.hex() for path in new))))
    return (f"{hidden_text(new, project.path)}. Show one with --reveal PATH",)


def hidden_text(paths: Sequence[bytes], project: bytes) -> str:
    """Return a line that names hidden secrets, some of very many."""
    names = ", ".join(quote(os.path.relpath(path, project)) for path in paths[:_MOST_TOLD])
    more = len(paths) - _MOST_TOLD
    return f"{HIDDEN}{names}" + (f" and {more} more (`unspill doctor PROJECT` lists them)" if more > 0 else "")


def is_about_secret(warning: str) -> bool:
    """Tell whether a run's warning is one of these, which must reach the person."""
    return warning.startswith(HIDDEN) or warning.endswith(tuple(f"{text}." for text in _STANDINGS))


def mask_hints(hidden: Sequence[bytes], project: bytes, outcome: Outcome, *outputs: Output) -> tuple[Hint, ...]:
    """Return a hint for each masked secret, given by its path, that a failed command named."""
    if not isinstance(outcome, Exited) or not outcome.code:
        return ()
    texts = [(output.tail or output.head)[-_TAIL:] for output in outputs]
    lines = [line for text in texts for line in text.splitlines()]
    found = [path for path in hidden if any(_names(line, path, project) for line in lines)]
    return tuple(_hint(path, project) for path in found[:_MOST_HINTS])


def concerns_git(changes: ChangeSet) -> bool:
    """Tell whether an apply may bring another index, lead to another one, or bring commits."""
    return any(
        change.path.endswith(b"index") or _repository_of(change.path) is not None
        for part in changes.roots
        for change in part.changes
    )


def mark_written(store: Store, changes: ChangeSet) -> None:
    """Keep in mind that a command wrote to repositories; before an apply, and after it, when there may be new ones."""
    inner = {
        posixpath.join(part.root, found)
        for part in changes.roots
        for change in part.changes
        if (found := _repository_of(change.path)) is not None
    }
    for key in {key for path in inner for key in _keys_of(path)}:
        if store.trust.find(key) is None:
            store.trust.put(key, "")


def entries_of(project: Project) -> Entries:
    """Return what the indexes of the live project say about all names of secrets, whether or not they exist."""
    names = masked_names(project.means.policy.secrets)
    found: Entries = {}
    indexes = _Indexes(names)
    for directory in _all_directories(project) if names else ():
        found |= indexes.whole(directory)
    return {path: one for path, one in found.items() if any(lies_beneath(path, root) for root in project.roots)}


def remember_claims(project: Project, before: Entries, shown: Iterable[bytes], changes: ChangeSet) -> None:
    """Keep in mind what an apply made the indexes say; `shown` are the secrets that were not masked before it."""
    own = {posixpath.join(part.root, change.path) for part in changes.roots for change in part.changes}
    known = {*shown}
    entries = entries_of(project)
    _trust_no_others(project, entries)
    for path, digest in entries.items():
        if before.get(path) != digest and path not in known:
            directory, name = posixpath.split(path)
            claims = Claims(project.store, directory)
            # What the person makes of the command's own file later is not for commands
            (claims.doubt if path in own else claims.add)(name, digest)
    _judge_afresh(project)


def forget_untracked(project: Project) -> None:
    """Trust no name any more that is not in an index now: who puts it there next may be another one."""
    _trust_no_others(project, entries_of(project))
    _judge_afresh(project)


def remember_made(project: Project, paths: Iterable[bytes]) -> None:
    """Keep in mind which files with names of secrets an apply brought: commands know them, until somebody edits one."""
    names = frozenset(masked_names(project.means.policy.secrets))
    for root in project.roots:
        made = [path for path in paths if posixpath.basename(path) in names and lies_beneath(path, root)]
        if made:
            words = [word for word in _words(project.store, _MADE + root.hex()) if _is_as_made(word)]
            words += [f"{path.hex()}={status}" for path in made if (status := _status_text(path))]
            project.store.trust.put(_MADE + root.hex(), " ".join(words[-_MOST_MADE:]))


def search_aside(project: Project) -> None:
    """Look for secrets deeper down in a thread, in each root of which that was not done for a day.

    A process that is killed meanwhile leaves that to the next run.
    """
    secrets, store = project.means.policy.secrets, project.store
    names = masked_names(secrets)
    due = [
        root for root in project.roots if names and root not in _searching and not load_found(store, root).is_new(names)
    ]
    if due:
        _searching.update(due)
        if not do_aside(SEARCH_NAME, lambda: _search_all(project, due)):
            _searching.difference_update(due)


def _search_all(project: Project, roots: Iterable[bytes]) -> None:
    for root in roots:
        try:
            known = frozenset(load_found(project.store, root).hidden)
            found = search(project.store, root, project.means.policy.secrets)
            new = [path for path in found.hidden if path not in known]
            for stack in load_stacks(project.store, project.row.id, (root,)) if new else ():
                _remember_seen(project.store, stack, new)
        except (OSError, UnspillError):
            # The disk fails, or somebody removed the directory: another run tries again
            continue
        finally:
            _searching.discard(root)


def search(store: Store, root: bytes, secrets: Secrets) -> FoundSecrets:
    """Look for secrets in all directories below a root, and remember them."""
    names = masked_names(secrets)
    walk = find_named(root, frozenset(names), NOT_SEARCHED, _BOUNDS)
    last = load_found(store, root)
    # What is missing for a moment only comes back; where its directory is gone, so is the reason to hide it
    known = [path for path in last.hidden if os.path.isdir(posixpath.dirname(path))]
    paths = [*known, *(posixpath.join(root, path) for path in walk.paths)]
    made = {word for word in _words(store, _MADE + root.hex()) if _is_as_made(word)}
    paths = [path for path in dict.fromkeys(paths) if f"{path.hex()}={_status_text(path)}" not in made]
    shown = {path for path, text in _judge_tracked(store, paths, _Indexes(names)).items() if text == TRACKED}
    hidden = [path for path in paths if path not in shown]
    found = FoundSecrets(
        at_ns=time.time_ns(),
        is_whole=walk.is_whole and len(hidden) <= _MOST_HIDDEN,
        names=_digest_of(names),
        hidden=tuple(hidden[:_MOST_HIDDEN]),
        tracked=tuple(path for path in paths if path in shown),
    )
    with store.transaction:
        store.facts.put(_FOUND + root.hex(), found.text())
        store.facts.put(_VERDICTS + root.hex(), "")
    return found


def survey_secrets(store: Store, project: bytes, roots: Sequence[bytes], secrets: Secrets) -> FoundSecrets:
    """Search roots now, and return what runs will not see of them, and what they will because git tracks it."""
    names = masked_names(secrets)
    hidden: list[bytes] = []
    tracked: list[bytes] = []
    is_whole = True
    for root in roots if names else ():
        revealed = {posixpath.normpath(posixpath.join(project, path)) for path in secrets.reveal}
        places = [directory for _path, directory in _directories(root, secrets)]
        for directory in places:
            for name, text in _find_shown(store, directory, names, frozenset()):
                if text != _DIRECTORY:
                    (tracked if text == TRACKED else hidden).append(posixpath.join(directory, name))
        found = search(store, root, secrets)
        deeper = [path for path in found.hidden if os.path.lexists(path) and not _is_directory(path)]
        hidden = [path for path in dict.fromkeys((*hidden, *deeper)) if path not in revealed]
        tracked += [path for path in found.tracked if path not in tracked]
        is_whole = is_whole and found.is_whole
    return FoundSecrets(is_whole=is_whole, hidden=tuple(hidden), tracked=tuple(tracked))


class FoundSecrets(Record):
    """What the last search of a root has found: which paths are hidden, and which are not because git tracks them."""

    at_ns: int = 0
    is_whole: bool = True
    names: str = ""
    hidden: tuple[bytes, ...] = ()
    tracked: tuple[bytes, ...] = ()

    def is_new(self, names: tuple[bytes, ...]) -> bool:
        """Tell whether it is less than a day old, and was for these names."""
        return 0 <= time.time_ns() - self.at_ns < DAY_NS and self.names == _digest_of(names)

    def text(self) -> str:
        """Return all of it for the store."""
        lists = (" ".join(path.hex() for path in paths) for paths in (self.hidden, self.tracked))
        return "\n".join((f"{self.at_ns} {self.is_whole:d} {self.names}", *lists))


def load_found(store: Store, root: bytes) -> FoundSecrets:
    """Return what the last search of a root has found; nothing where there was none."""
    lines = (store.facts.find(_FOUND + root.hex()) or "").split("\n")
    if len(lines) != 3:
        return FoundSecrets()
    at_ns, is_whole, names = lines[0].split()
    hidden, tracked = (tuple(bytes.fromhex(word) for word in line.split()) for line in lines[1:])
    return FoundSecrets(at_ns=int(at_ns), is_whole=is_whole == "1", names=names, hidden=hidden, tracked=tracked)


def found_hidden(project: Project, root: bytes) -> tuple[bytes, ...]:
    """Return the paths in a root, from it on, that a search has found and that its policy hides."""
    names = masked_names(project.means.policy.secrets)
    if not names:
        return ()
    paths = load_found(project.store, root).hidden
    return tuple(path[len(root) + 1 :] for path in paths if posixpath.basename(path) in names)


class Claims:
    """The entries of indexes about the secrets of one directory that commands made."""

    def __init__(self, store: Store, directory: bytes) -> None:
        self._store = store
        self._key = CLAIMED + directory.hex()
        self._known = set(_words(store, self._key))
        self._trusted_key = _TRUSTED + directory.hex()
        self._trusted = frozenset(_words(store, self._trusted_key))
        self._directory = directory

    def has(self, name: bytes, digest: bytes) -> bool:
        """Tell whether it was a command that made an index say this."""
        return _word(name, digest) in self._known or f"{name.hex()}={_ANY}" in self._known

    def add(self, name: bytes, digest: bytes) -> None:
        """Remember an entry."""
        mine = {word for word in self._known if word.startswith(name.hex() + "=")}
        if len(mine) >= _MOST_GUESSES:
            self._known -= mine
            self._known.add(f"{name.hex()}={_ANY}")
        elif f"{name.hex()}={_ANY}" not in mine:
            self._known.add(_word(name, digest))
        self._store.trust.put(self._key, " ".join(sorted(self._known)))
        self.doubt(name, digest)

    def doubt(self, name: bytes, digest: bytes) -> None:
        """Remember an entry that says nothing about other contents than its own, wherever it is seen."""
        everywhere = _words(self._store, _CLAIMED_ANYWHERE)
        if _word(name, digest) not in everywhere:
            self._store.trust.put(_CLAIMED_ANYWHERE, " ".join([*everywhere, _word(name, digest)][-_MOST_ANYWHERE:]))

    def doubts(self, name: bytes, digest: bytes) -> bool:
        """Tell whether an entry like this one came with a command."""
        return _word(name, digest) in _words(self._store, _CLAIMED_ANYWHERE)

    def trusts(self, name: bytes) -> bool:
        """Tell whether it was the person who had git track this name, ever since it is in the index."""
        return name.hex() in self._trusted

    def tell(self, name: bytes) -> None:
        """Remember that the person was told what the index says about a name."""
        entries, _ = _find_entries(self._directory, [name])
        words = {*_words(self._store, _TOLD_OF + self._directory.hex()), *(_word(*one) for one in entries.items())}
        self._store.trust.put(_TOLD_OF + self._directory.hex(), " ".join(sorted(words)[-_MOST_ANYWHERE:]))

    def is_told(self, name: bytes, digest: bytes) -> bool:
        """Tell whether the person was told of an entry."""
        return _word(name, digest) in _words(self._store, _TOLD_OF + self._directory.hex())

    def may_be_made(self, name: bytes, digest: bytes, repositories: Iterable[bytes]) -> bool:
        """Tell whether a command may be why an entry is there; its directory may have been moved or copied since."""
        if self.doubts(name, digest):
            return True
        keys = [key for path in repositories for key in _keys_of(path)]
        return not keys or any(self._store.trust.find(key) is not None for key in keys)

    def trust(self, names: Iterable[bytes], tracked: Iterable[bytes]) -> None:
        """Remember which of some names the person has git track."""
        trusted = (self._trusted - {name.hex() for name in names}) | {name.hex() for name in tracked}
        if trusted != self._trusted:
            self._trusted = trusted
            self._store.trust.put(self._trusted_key, " ".join(sorted(trusted)))

    def trust_no_other(self, tracked: Iterable[bytes]) -> None:
        """Forget the names that are not in the index any more."""
        if self._trusted:
            self.trust([bytes.fromhex(word) for word in self._trusted - {name.hex() for name in tracked}], ())


def _find_masks(project: Project, revealed: tuple[bytes, ...]) -> Masks:
    secrets = project.means.policy.secrets
    names = masked_names(secrets)
    if not names:
        return Masks()
    layers, tracked, secret = [], [], []
    for root in project.roots:
        hidden: dict[bytes, tuple[bytes, ...]] = {}
        for path, directory in _directories(root, secrets):
            shown = revealed_names((*secrets.reveal, *revealed), project.path, directory)
            for name, text in _find_shown(project.store, directory, names, shown):
                if text in _STANDINGS:
                    tracked.append((posixpath.join(directory, name), text))
                if text in (TRACKED, _DIRECTORY):
                    shown |= {name}
                else:
                    secret.append(posixpath.join(directory, name))
            hidden[path] = tuple(name for name in names if name not in shown) if shown else names
        for path, text in _find_deeper(project, root, names, revealed):
            above, _, name = path[len(root) + 1 :].rpartition(b"/")
            if text in _STANDINGS:
                tracked.append((path, text))
            # In a directory that the policy names this was decided already
            if text != TRACKED and name not in hidden.get(above, ()):
                hidden[above] = (*hidden.get(above, ()), name)
                secret += [path] if text else []
        layer = find_mask(project.store.state, root, hidden)
        if layer is not None:
            layers.append((root, layer))
    return Masks(layers=tuple(layers), tracked=tuple(tracked), hidden=tuple(secret))


def _find_deeper(
    project: Project, root: bytes, names: tuple[bytes, ...], revealed: tuple[bytes, ...]
) -> Iterator[tuple[bytes, str]]:
    """Yield what a search has found and the policy hides, each with what it is now; nothing for what is not there."""
    found = load_found(project.store, root).hidden
    if not found:
        return
    known = frozenset(names)
    above = {directory for _path, directory in _directories(root, project.means.policy.secrets)}
    shown = {_absolute(project, path) for path in (*project.means.policy.secrets.reveal, *revealed)}
    tracked = _load_verdicts(project.store, root, found)
    for path in found:
        directory, _, name = path.rpartition(b"/")
        if name not in known or path in shown or directory in above:
            continue
        kind = _kind_of(path)
        if kind != _DIRECTORY:
            yield path, tracked.get(path, kind)


def _load_verdicts(store: Store, root: bytes, paths: Sequence[bytes]) -> dict[bytes, str]:
    """Return which of some paths are in an index, and what follows.

    Read anew where an index is another one than the last time, or a file that was in one.
    """
    indexes = _Indexes({path[path.rfind(b"/") + 1 :] for path in paths})
    signature = indexes.signature({path[: path.rfind(b"/")] for path in paths})
    key = _VERDICTS + root.hex()
    first, *words = (store.facts.find(key) or "").split("\n")
    if first == signature:
        known = [(bytes.fromhex(path), status, int(standing)) for path, status, standing in map(str.split, words)]
        if all(_status_text(path) == status for path, status, _ in known):
            return {path: _STANDINGS[standing] for path, _, standing in known}
    found = _judge_tracked(store, paths, indexes)
    lines = [f"{path.hex()} {_status_text(path)} {_STANDINGS.index(text)}" for path, text in found.items()]
    store.facts.put(key, "\n".join((signature, *lines)))
    return found


def _judge_tracked(store: Store, paths: Sequence[bytes], indexes: _Indexes) -> dict[bytes, str]:
    """Return which of some files are in an index, and what follows."""
    by_directory: dict[bytes, list[bytes]] = {}
    for path in paths:
        directory, name = posixpath.split(path)
        by_directory.setdefault(directory, []).append(name)
    found: dict[bytes, str] = {}
    for directory, names in by_directory.items():
        entries, repositories = indexes.entries(directory, names)
        if entries:
            claims = Claims(store, directory)
            tracked = _find_tracked(directory, list(entries), claims, entries, repositories)
            found |= {posixpath.join(directory, name): text for name, text in tracked.items()}
    return found


def _judge_afresh(project: Project) -> None:
    """Have the next run read the indexes again: what commands made of them is known by now."""
    for root in project.roots:
        if project.store.facts.find(_VERDICTS + root.hex()):
            project.store.facts.put(_VERDICTS + root.hex(), "")


def _remember_seen(store: Store, stack: Stack, paths: Sequence[bytes]) -> None:
    """Take what held runs made of files that they saw, since nothing hid them yet, for changes of the person's own."""
    for layer in stack.sealed:
        changed = {
            path.hex()
            for path in paths
            if os.path.lexists(layer.upper + path[len(stack.live) :])
            and os.path.lexists(path)
            and os.lstat(path).st_ctime_ns <= layer.mark.ctime_ns
        }
        known = {*_words(store, _CHANGED + layer.run)}
        if changed - known:
            store.trust.put(_CHANGED + layer.run, " ".join(sorted(changed | known)))


def _covered(store: Store, changed: dict[str, str], stack: Stack, layer: SealedLayer, shown: set[bytes]) -> SealedLayer:
    names: dict[bytes, tuple[bytes, ...]] = {}
    for path in _changed_in(changed, stack, layer):
        if path not in shown:
            directory, name = posixpath.split(path[len(stack.live) + 1 :])
            names[directory] = (*names.get(directory, ()), name)
    return layer.replace(cover=find_mask(store.state, layer.upper, names)) if names else layer


def _changed_secrets(project: Project, stacks: tuple[Stack, ...]) -> Iterator[bytes]:
    """Yield the secrets that runs were shown and changed, as far as that is held."""
    changed = project.store.trust.starting_with(_CHANGED)
    for stack in stacks:
        for layer in stack.sealed:
            yield from _changed_in(changed, stack, layer)


def _changed_in(changed: dict[str, str], stack: Stack, layer: SealedLayer) -> Iterator[bytes]:
    """Yield the secrets that lie in a layer of a run that changed some; `changed` is what each run has changed."""
    for text in changed.get(layer.run, "").split():
        path = bytes.fromhex(text)
        if lies_beneath(path, stack.live) and os.path.lexists(layer.upper + path[len(stack.live) :]):
            yield path


def _directories(root: bytes, secrets: Secrets) -> Iterator[tuple[bytes, bytes]]:
    """Yield the directories of a root in which names are masked, each also where the person's links lead.

    The first of a pair is the path from the root on, the second the whole one.
    """
    yield b"", root
    for path in secrets.directories:
        whole = posixpath.join(root, path)
        for found in dict.fromkeys((whole, os.path.realpath(whole))):
            if lies_beneath(found, root):
                yield found[len(root) + 1 :], found


def _masked_directories(project: Project) -> Iterator[bytes]:
    """Yield the directories in which every name is masked."""
    for root in project.roots:
        for _path, directory in _directories(root, project.means.policy.secrets):
            yield directory


def _all_directories(project: Project) -> dict[bytes, None]:
    """Return the directories in which something is masked, or would be if git did not track it."""
    deeper = (load_found(project.store, root) for root in project.roots)
    paths = (path for found in deeper for path in (*found.hidden, *found.tracked))
    return dict.fromkeys((*_masked_directories(project), *map(posixpath.dirname, paths)))


def _absolute(project: Project, path: bytes) -> bytes:
    return posixpath.normpath(posixpath.join(project.path, path))


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
        tracked = _find_tracked(directory, files, Claims(store, directory), *_find_entries(directory, files))
        for name in files:
            yield name, tracked.get(name, _SECRET)


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
    return _kind_of(path) == _DIRECTORY


def _kind_of(path: bytes) -> str:
    """Return whether a directory or something else is at a path, nothing where nothing is."""
    try:
        return _DIRECTORY if stat.S_ISDIR(os.lstat(path).st_mode) else _SECRET
    except OSError:
        return ""


def _check_revealed(project: Project, names: tuple[bytes, ...], revealed: tuple[bytes, ...]) -> None:
    places = {*_masked_directories(project)}
    for path in revealed:
        whole = _absolute(project, path)
        above, name = posixpath.split(whole)
        # Deeper down it may be that no search has found it yet
        is_deeper = any(lies_beneath(whole, root) for root in project.roots) and os.path.lexists(whole)
        if name not in names or not (above in places or is_deeper):
            raise UsageError(
                f"{quote(path)} can't be revealed: no secret would be masked there.",
                remedy="Name the file itself. `unspill doctor PROJECT` lists those that are hidden.",
            )


def _find_tracked(
    directory: bytes, names: Sequence[bytes], claims: Claims, entries: dict[bytes, bytes], repositories: Sequence[bytes]
) -> dict[bytes, str]:
    """Return the names in a directory that are in the index of its repository, each with what follows."""
    found: dict[bytes, str] = {}
    for name, known in entries.items():
        if claims.has(name, known):
            found[name] = MASKED
        # Git has this content, and a command can read it there; if the person is why, what it is by now does not matter
        elif claims.trusts(name) or _is_object(directory + b"/" + name, known):
            found[name] = TRACKED
        elif claims.may_be_made(name, known, repositories):
            found[name] = MASKED
        else:
            found[name] = TRACKED if claims.is_told(name, known) else UNTOLD
    shown = [name for name, text in found.items() if text == TRACKED and not claims.doubts(name, entries[name])]
    claims.trust(names, shown)
    return found


def _find_entries(directory: bytes, names: Sequence[bytes]) -> tuple[dict[bytes, bytes], tuple[bytes, ...]]:
    """Return the digests that the index of a directory's repository has for some names in it, and that repository."""
    place = _Indexes(()).place_of(directory)
    index = None if place is None else _open(place.index)
    if place is None or index is None:
        return {}, () if place is None else place.repositories
    prefix = directory[len(place.top) + 1 :] + b"/" if directory != place.top else b""
    try:
        objects = find_objects(index, [prefix + name for name in names])
    finally:
        os.close(index)
    return {name: objects[prefix + name] for name in names if prefix + name in objects}, place.repositories


class _IndexPlace(Record):
    """The index of a repository: where it is, the directory that its paths start from, and `.git`.

    Where that is a file, `repositories` are two: the file, and the directory that it belongs to; none where that is
    not known.
    """

    index: bytes
    top: bytes
    repositories: tuple[bytes, ...]


class _Indexes:
    """The indexes of the repositories that directories lie in; each is read once, for some names at any depth."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = frozenset(names)
        self._places: dict[bytes, _IndexPlace | None] = {}
        self._entries: dict[bytes, dict[bytes, bytes]] = {}

    def place_of(self, directory: bytes) -> _IndexPlace | None:
        """Return the index of the nearest repository upwards."""
        passed: list[bytes] = []
        found: _IndexPlace | None = None
        here = directory
        for _ in range(_MOST_LEVELS):
            if here in self._places:
                found = self._places[here]
                break
            passed.append(here)
            is_top, found = _index_in(here)
            if is_top or here == b"/":
                break
            here = here[: here.rfind(b"/")] or b"/"
        self._places.update(dict.fromkeys(passed, found))
        return found

    def signature(self, directories: Iterable[bytes]) -> str:
        """Return a text that is another one when an index of some directories is."""
        places = {place.index for path in sorted(directories) if (place := self.place_of(path)) is not None}
        return " ".join(f"{index.hex()}={_status_text(index)}" for index in sorted(places))

    def entries(self, directory: bytes, names: Iterable[bytes]) -> tuple[dict[bytes, bytes], tuple[bytes, ...]]:
        """Return the digests for some names in a directory, and its repository."""
        place = self.place_of(directory)
        if place is None:
            return {}, ()
        known = self.whole(directory)
        paths = {name: posixpath.join(directory, name) for name in names}
        return {name: known[path] for name, path in paths.items() if path in known}, place.repositories

    def whole(self, directory: bytes) -> Entries:
        """Return all that the index of a directory's repository says about the names, by absolute path."""
        place = self.place_of(directory)
        if place is None:
            return {}
        if place.index not in self._entries:
            fd = _open(place.index)
            found = {} if fd is None else find_by_name(fd, self._names)
            self._entries[place.index] = {posixpath.join(place.top, path): one for path, one in found.items()}
            if fd is not None:
                os.close(fd)
        return self._entries[place.index]


def _index_in(directory: bytes) -> tuple[bool, _IndexPlace | None]:
    """Tell whether a directory is the top of a repository, and return its index."""
    git = directory + b"/.git"
    try:
        status = os.lstat(git)
    except OSError:
        return False, None
    repositories: tuple[bytes, ...] = (git,)
    if not stat.S_ISDIR(status.st_mode):
        # Of a worktree or a module. Wherever it leads: nothing comes of it but whether a digest is there.
        target = pointer_target(_read(git, _LARGEST_POINTER) or b"")
        if target is None or b"\0" in target:
            return True, None
        git = os.path.join(directory, target)
        owner = _owner_of(git)
        repositories = () if owner is None else (*repositories, owner)
    return True, _IndexPlace(index=os.path.join(git, b"index"), top=directory, repositories=repositories)


def _is_object(path: bytes, known: bytes) -> bool:
    content = _read(path, _LARGEST_FILE)
    if content is None:
        return False
    import hashlib  # lazy: tracked secrets

    # Git's own name for a content, nothing that anybody relies on for safety alone
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest() == known


def _open(path: bytes) -> int | None:
    try:
        fd = os.open(path, _FILE)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _read(path: bytes, largest: int) -> bytes | None:
    """Return the content of a regular file that is not too large; of a link, which git tracks too, where it leads."""
    fd = _open(path)
    if fd is None:
        try:
            return os.readlink(path)
        except OSError:
            return None
    with open(fd, "rb") as file:
        content = file.read(largest + 1)
    return content if len(content) <= largest else None


def _repository_of(path: bytes) -> bytes | None:
    """Return the part of a path that ends with the first `.git`."""
    if b".git" not in path.lower():
        return None
    parts = path.split(b"/")
    names = [part.lower() for part in parts]
    return b"/".join(parts[: names.index(b".git") + 1]) if b".git" in names else None


def _owner_of(git: bytes) -> bytes | None:
    """Return the directory `.git` that another one of git's belongs to: of a worktree, of a module."""
    return _repository_of(os.path.realpath(git))


def _trust_no_others(project: Project, entries: Entries) -> None:
    tracked: dict[bytes, list[bytes]] = {}
    for path in entries:
        directory, name = posixpath.split(path)
        tracked.setdefault(directory, []).append(name)
    for directory in _all_directories(project):
        Claims(project.store, directory).trust_no_other(tracked.get(directory, ()))


def _status_text(path: bytes) -> str:
    """Return a text that is another one when a file is written to, replaced or gone."""
    try:
        found = os.lstat(path)
    except OSError:
        return "-"
    return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}"


def _is_as_made(word: str) -> bool:
    path, _, status = word.partition("=")
    return _status_text(bytes.fromhex(path)) == status


def _digest_of(names: tuple[bytes, ...]) -> str:
    if names not in _digests:
        _digests[names] = f"{int.from_bytes(b'/'.join(names), 'big') % _MODULUS:x}"
    return _digests[names]


def _words(store: Store, key: str) -> list[str]:
    return (store.trust.find(key) or "").split()


def _word(name: bytes, digest: bytes) -> str:
    return f"{name.hex()}={digest.hex()}"


def _keys_of(repository: bytes) -> list[str]:
    """Return what a repository is known by: its path, and its inode, which it has under another path too."""
    try:
        return [_WRITTEN + repository.hex(), _WRITTEN + str(os.lstat(repository).st_ino)]
    except OSError:
        return [_WRITTEN + repository.hex()]


def _hint(path: bytes, project: bytes) -> Hint:
    name = os.path.relpath(path, project)
    return Hint(
        code="masked-secret",
        text=f"{quote(name)} is hidden as a secret.",
        remedy=f"Ask to show it to one run with `--reveal {shell_word(name)}`.",
    )


def _names(line: bytes, path: bytes, project: bytes) -> bool:
    name = os.path.basename(path)
    if name not in line or not any(word in line.lower() for word in _MISSING):
        return False
    for mark in _MARKS:
        line = line.replace(mark, b" ")
    # The working directory may be the secret's own
    ways = (path, os.path.relpath(path, project), name)
    return any(os.path.normpath(word) in ways or os.path.normpath(word.rstrip(b".")) in ways for word in line.split())
