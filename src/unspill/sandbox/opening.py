# SPDX-License-Identifier: Apache-2.0
"""Opens everything a sandbox needs, in one place: directories, policy, store, facts, roots.

The only composition root. A second opening in the same process costs some file look-ups; the facts come from the
store and cost no process.
"""

from __future__ import annotations

import os

from unspill.errors import (
    BwrapMissing,
    BwrapUnsafe,
    HostError,
    NamespacesForbidden,
    OverlayUnsupported,
    RootCallerRefused,
)
from unspill.host.bwrap import facts_from_text, facts_key, facts_to_text, find_bwrap, should_keep
from unspill.host.places import check_own_place, find_home
from unspill.policy.defaults import check_root, merge_roots
from unspill.sandbox.project import Means, Project, find_locations, has_mark, own_directories, resolve_project
from unspill.sandbox.settings import load_policy
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unspill.model.plan import Facts
    from unspill.model.policy import EngineName, Policy
    from unspill.sandbox.project import Locations
    from unspill.store.layers import SandboxRow

    PermitRoot = Callable[[bytes, Policy, Locations], Policy]

# What lasts, in the words of bwrap and of the C library: the kernel or the container forbids it, or this bwrap can't.
# A process or memory that can't be had at the moment, and a probe without an answer, are none of these
_REFUSALS = (
    "Operation not permitted",
    "Permission denied",
    "Function not implemented",
    "No permissions to creat",
    "does not support user namespaces",
    "namespaces exceeded (ENOSPC)",
    "Too many users",
    "was not disabled as requested",
    "Read-only file system",
    "Invalid argument",
    "Unknown option",
    "no bwrap",
)
_NONE = "container mode was requested but no container was detected"


def open_project(
    given: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    name: str,
    policy: Policy | None,
    permit_root: PermitRoot | None = None,
) -> Project:
    """Open the sandbox `name` of a project; `permit_root` is asked whether it may be root's.

    Raises:
        DeniedError: it may not.
        UsageError: project, policy or roots are wrong.
        HostError: this machine can't; the remedy says what to do.
        StoreError: the state directory can't be used.
    """
    home = find_home(os.getuid(), os.environb.get(b"HOME"))
    locations = find_locations(home.path, os.environb)
    path = resolve_project(given)
    decided = load_policy(locations, path, policy)
    is_refused = os.getuid() == 0 and not decided.allow_root
    if is_refused and (decided.permissions.as_root != "ask" or permit_root is None):
        raise RootCallerRefused("unspill does not run commands for root")
    roots = checked_roots(path, decided, locations)
    warning = check_own_place(roots)
    if is_refused and permit_root is not None:
        decided = permit_root(path, decided, locations)
    store = Store.open(locations.state)
    means = _find_means(store, decided, roots)
    found = os.stat(path)
    return Project(
        path=path,
        home=home,
        locations=locations,
        roots=roots,
        store=store,
        row=_row_of(store, path, name, found),
        means=means,
        warning=warning,
    )


def _find_means(store: Store, policy: Policy, roots: tuple[bytes, ...]) -> Means:
    try:
        facts = get_facts(store, policy, roots)
        return Means(policy=policy, facts=facts, engine=choose_engine(policy, facts))
    except HostError as error:
        if not policy.container:
            raise
        facts, container = find_container(store, policy, roots, error)
        # What is baked for sandboxes is not seen without one
        return Means(policy=policy.replace(view="host"), facts=facts, engine=None, container=container)


def _row_of(store: Store, project: bytes, name: str, found: os.stat_result) -> SandboxRow:
    """Return the sandbox's row. Where another directory is at its path now, it is that one's if nothing is held."""
    row = store.sandboxes.get_or_create(project, name, found.st_dev, found.st_ino)
    # An open layer may be what a killed run has written, which is about to be held
    if row.inode != found.st_ino and not (store.layers.sealed(row.id) or store.layers.open(row.id)):
        store.sandboxes.move(row.id, found.st_dev, found.st_ino)
        row = row.replace(device=found.st_dev, inode=found.st_ino, marked=False)
    if not row.marked and has_mark(project):
        store.sandboxes.mark(row.id)
        row = row.replace(marked=True)
    return row


def with_held_roots(project: Project) -> Project:
    """Return it with the roots that only some of its runs had, as long as something of those is held.

    For whoever looks at what is held; a run has the roots of its policy, and those that it was allowed.
    """
    held = {row.root for row in project.store.layers.sealed(project.row.id)}.difference(project.roots)
    if not held:
        return project
    return project.replace(roots=(*project.roots, *sorted(root for root in held if os.path.isdir(root))))


def checked_roots(project: bytes, policy: Policy, locations: Locations) -> tuple[bytes, ...]:
    """Return the writable roots, each checked, none inside another.

    Raises:
        RootRefused: one of them can't be a root.
    """
    own = own_directories(locations, policy)
    extra = tuple(os.path.realpath(root) for root in policy.roots)
    for root in (project, *extra):
        check_root(root, home=locations.home, own=own)
    return merge_roots(project, extra)


def get_facts(store: Store, policy: Policy, roots: tuple[bytes, ...], *, afresh: bool = False) -> Facts:
    """Return what this host can do: remembered where nothing it depends on has changed, else found out by running."""
    try:
        bwrap = find_bwrap(policy.bwrap, os.environ.get("PATH", os.defpath), roots)
    except BwrapMissing:
        if not afresh:
            raise
        bwrap = None
    key = "" if bwrap is None else facts_key(bwrap, store.state)
    text = None if afresh or not key else store.facts.find(key)
    facts = None if text is None else facts_from_text(text)
    if facts is None:
        from unspill.host.probe import probe  # lazy: doctor

        facts = probe(bwrap, store.state)
        # A refusal is not remembered: the person may be about to mend the cause
        if key and should_keep(facts):
            store.facts.put(key, facts_to_text(facts))
    return facts


def choose_engine(policy: Policy, facts: Facts) -> EngineName:
    """Return the engine of the policy, or the best one that works.

    Raises:
        HostError: there is no sandbox to be had here, why, and the remedy.
    """
    wanted = policy.engine or next(iter(facts.engines), None)
    if facts.namespaces and facts.disable_userns and facts.proc_mount and wanted in facts.engines:
        return wanted
    raise _refusal(policy, facts)


def _refusal(policy: Policy, facts: Facts) -> HostError:
    from unspill.host.diagnosis import diagnose, find_refusal  # lazy: doctor

    row = find_refusal(diagnose(facts, policy))
    kind = NamespacesForbidden if not (facts.namespaces and facts.disable_userns) else OverlayUnsupported
    if row is None:
        reasons = "; ".join(dict.fromkeys(reason for _name, reason in facts.problems))
        return kind(f"no sandbox can be made here: {reasons}")
    # The first thing that is missing; `unspill doctor` lists the others
    why = row.consequence.removeprefix("No sandbox can be made. ")
    return kind(f"no sandbox can be made here: {why}", remedy=row.remedy)


def is_refused(facts: Facts) -> bool:
    """Tell whether no sandbox can be made here at all; not so where a probe only failed for the moment."""
    needed = ("namespaces", "disable_userns", "proc_mount")
    reasons = [reason for name, reason in facts.problems if name in needed and not getattr(facts, name)]
    return any(refusal in reason for reason in reasons for refusal in _REFUSALS)


def find_container(
    store: Store,
    policy: Policy,
    roots: tuple[bytes, ...],
    error: HostError,
    *,
    environ: Mapping[str, str] = os.environ,
    top: str = "",
) -> tuple[Facts, str]:
    """Return what this host can do, and the container that takes the place of a sandbox that can't be had.

    `error` is why it can't; `environ` and `top` are where a container's marks are looked for.

    Raises:
        HostError: there is no container, or the sandbox fails for a reason that must not be passed over.
    """
    if isinstance(error, BwrapUnsafe):
        raise error
    facts = get_facts(store, policy, roots, afresh=True)
    if facts.can_seal() or not is_refused(facts):
        raise error
    from unspill.host.probe import detect_container  # lazy: unsandboxed runs

    name = detect_container(environ, top)
    if not name:
        remedy = f"Here is why no sandbox can be made: {error.message}. {error.remedy}"
        raise HostError(_NONE, remedy=remedy) from error
    return facts, name
