# SPDX-License-Identifier: Apache-2.0
"""What a caller wants beyond the policy for one run: checked, put to the desk, and turned into a wider sandbox.

Nobody is asked before everything else is known to be right: the command, the directories, the hosts, the whole plan.
Loaded only where something is wanted.
"""

from __future__ import annotations

import os

from unspill.changes.digest import digest_of_file
from unspill.changes.quote import quote
from unspill.errors import PolicyError, UsageError
from unspill.layers.places import upper_dir
from unspill.model.permission import (
    AsRoot,
    Egress,
    MaskedSecret,
    NetworkForCommand,
    ReadablePath,
    Unsandboxed,
    WritableRoot,
)
from unspill.model.record import Record
from unspill.permissions.approver import DenyAll
from unspill.permissions.audit import Audit
from unspill.permissions.desk import Desk
from unspill.plan.visible import is_shown
from unspill.policy.egress import parse_allowed
from unspill.policy.paths import contains
from unspill.sandbox.opening import checked_roots, get_facts
from unspill.sandbox.planning import get_places, make_plan
from unspill.sandbox.recording import record_run
from unspill.sandbox.running import run_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from unspill.model.permission import Request as Asked
    from unspill.model.plan import Plan
    from unspill.model.policy import Policy
    from unspill.model.rules import ApproverName
    from unspill.permissions.approver import Approver
    from unspill.sandbox.locations import Locations
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.planning import Request
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.running import RunWishes
    from unspill.store.db import Store

    Who = Approver | ApproverName | None


# The size of a window comes and goes, and no program does anything else because of it
_SIZES = (b"COLUMNS", b"LINES")


class Wanted(Record):
    """What is wanted for one run, as a caller says it. Relative paths are seen from the project.

    `plain` is without a sandbox, and then there is nothing else to want.
    """

    network: bool = False
    hosts: Sequence[str] = ()
    readable: Sequence[str] = ()
    reveal: Sequence[str] = ()
    roots: Sequence[str] = ()
    plain: bool = False


class Wants(Record):
    """The same, checked: paths are absolute and real, hosts are rules in their one form."""

    network: bool = False
    hosts: tuple[str, ...] = ()
    readable: tuple[bytes, ...] = ()
    reveal: tuple[bytes, ...] = ()
    roots: tuple[bytes, ...] = ()


def make_desk(store: Store, policy: Policy, locations: Locations, approver: Who) -> Desk:
    """Return the desk of a sandbox; nobody answers where there is no approver."""
    return Desk(
        _approver(store, approver),
        grants=store.grants,
        requests=store.requests,
        audit=Audit(store.state + b"/audit"),
        policy=policy,
        home=locations.home,
        own=(locations.state, locations.config, locations.data),
        wait_s=policy.permissions.wait_s,
    )


def _approver(store: Store, approver: Who) -> Approver:
    if approver is None or approver == "deny":
        return DenyAll()
    if approver == "queue":
        from unspill.permissions.queue import Queue

        return Queue(store.requests)
    if approver == "terminal":
        from unspill.permissions.terminal import Terminal

        return Terminal(lock=store.state + b"/locks/terminal")
    if isinstance(approver, str):
        raise UsageError(f"not an approver: {approver!r}", remedy="Choose `terminal`, `queue` or `deny`.")
    return approver


def run_with_more(opened: Opened, request: Request, wishes: RunWishes, desk: Desk, wanted: Wanted) -> RunResult:
    """Run one command with what is wanted beyond the policy, or without a sandbox if that is what is wanted.

    Raises:
        DeniedError: something of it was denied; nothing was run.
        UsageError: something of it is malformed, or can't be had whoever says yes.
    """
    if wanted.plain:
        if any((wanted.network, wanted.hosts, wanted.readable, wanted.reveal, wanted.roots)):
            raise UsageError("a command without a sandbox has all there is", remedy="Ask for nothing else.")
        from unspill.sandbox.unsandboxed import check_plain, run_plainly

        check_plain(request)
        asked = Unsandboxed(project=opened.project, sandbox=opened.row.id, argv=request.argv, cwd=request.cwd)
        desk.obtain(asked).take(asked)
        return record_run(opened, request, run_plainly(opened, request, wishes))
    wider, request = permitted(opened, request, to_wants(opened, wanted), desk)
    return record_run(wider, request, run_request(wider, request, wishes))


def to_wants(opened: Opened, wanted: Wanted) -> Wants:
    """Check what is wanted, name by name.

    Raises:
        UsageError: a host is none, or there is nothing at a path.
    """
    for given in (wanted.hosts, wanted.readable, wanted.reveal, wanted.roots):
        if isinstance(given, str | bytes):
            raise UsageError(f"a list is wanted, not one text: {given!r}")
    return Wants(
        network=wanted.network,
        hosts=tuple(dict.fromkeys(_host(host) for host in wanted.hosts)),
        readable=tuple(dict.fromkeys(_real(opened.project, path) for path in wanted.readable)),
        reveal=_masked(opened, wanted.reveal),
        roots=tuple(dict.fromkeys(_real(opened.project, path, is_directory=True) for path in wanted.roots)),
    )


def _masked(opened: Opened, given: Sequence[str]) -> tuple[bytes, ...]:
    """Return secrets under their own names, whatever they are links to; each must be one that is masked."""
    if not given:
        return ()
    paths = []
    for path in given:
        _real(opened.project, path)
        above, name = os.path.split(os.path.join(opened.project, os.fsencode(path)))
        paths.append(os.path.join(os.path.realpath(above), name))
    from unspill.sandbox.masking import find_masks

    find_masks(opened, tuple(paths))
    return tuple(dict.fromkeys(paths))


def _host(text: str) -> str:
    try:
        return parse_allowed(text).text
    except PolicyError as error:
        raise UsageError(error.message, remedy=error.remedy) from None


def _real(project: bytes, given: str | bytes, *, is_directory: bool = False) -> bytes:
    path = os.path.join(project, os.fsencode(given))
    if b"\0" in path or not os.path.exists(path):
        raise UsageError(f"there is nothing at {quote(path)}", remedy="Nobody was asked.")
    if is_directory and not os.path.isdir(path):
        raise UsageError(f"{quote(path)} is not a directory", remedy="Nobody was asked.")
    return os.path.realpath(path)


def permitted(opened: Opened, request: Request, wants: Wants, desk: Desk) -> tuple[Opened, Request]:
    """Obtain all that is wanted for one run, and return the sandbox and the command with it.

    Raises:
        DeniedError: something of it was denied; the run must not begin.
        UsageError: something of it is malformed, or can't be had whoever says yes.
    """
    wants = _unseen(opened, request, wants)
    wider, wider_request = _with(opened, request, wants)
    plan = _plan_as_if(wider, wider_request)
    requests = tuple(_requests(wants, _occasion(opened, request, plan)))
    for permit, asked in zip(desk.obtain_all(requests), requests, strict=True):
        permit.take(asked)
    return wider, wider_request


def _unseen(opened: Opened, request: Request, wants: Wants) -> Wants:
    """Leave out what the sandbox has anyway: of that nobody need be asked."""
    roots = tuple(root for root in wants.roots if not any(contains(own, root) for own in opened.roots))
    readable = wants.readable
    if readable:
        mounts = _plan_as_if(opened, request).mounts
        hidden = opened.policy.hidden
        readable = tuple(
            path for path in readable if not is_shown(mounts, path) or any(contains(place, path) for place in hidden)
        )
    return wants.replace(roots=roots, readable=readable)


def _with(opened: Opened, request: Request, wants: Wants) -> tuple[Opened, Request]:
    policy = opened.policy
    wider = policy.replace(
        network=policy.network.replace(hosts=tuple(dict.fromkeys((*policy.network.hosts, *wants.hosts)))),
        readable=(*policy.readable, *wants.readable),
        roots=(*policy.roots, *wants.roots),
    )
    roots = checked_roots(opened.project, wider, opened.locations)
    # A bwrap that lies in a root must not be run
    facts = get_facts(opened.store, wider, roots) if roots != opened.roots else opened.facts
    more = request.replace(network=wants.network, revealed=wants.reveal)
    return opened.replace(policy=wider, roots=roots, facts=facts), more


def _plan_as_if(opened: Opened, request: Request) -> Plan:
    from unspill.sandbox.reading import stacks_as_if

    places = get_places(opened)
    return make_plan(opened, request, places, *stacks_as_if(opened, places))


def _occasion(opened: Opened, request: Request, plan: Plan) -> dict[str, Any]:
    variables = dict(plan.environ)
    return {
        "project": opened.project,
        "sandbox": opened.row.id,
        "argv": request.argv,
        "cwd": request.cwd,
        "names": tuple(sorted(name.decode("utf-8", "surrogateescape") for name in variables if name not in _SIZES)),
        "script": _program_digest(opened, request, variables.get(b"PATH", b"")),
    }


def _requests(wants: Wants, occasion: dict[str, Any]) -> Iterator[Asked]:
    for path in wants.roots:
        yield WritableRoot(**occasion, path=path)
    for path in wants.readable:
        yield ReadablePath(**occasion, path=path)
    for path in wants.reveal:
        yield MaskedSecret(**occasion, path=path)
    if wants.hosts:
        yield Egress(**occasion, hosts=wants.hosts)
    if wants.network:
        yield NetworkForCommand(**occasion)


def _program_digest(opened: Opened, request: Request, path: bytes) -> str:
    """Return the digest of the program that would be started, if it lies in a root: it may change after the answer."""
    for place in _candidates(request, path):
        root = next((root for root in opened.roots if contains(root, place)), None)
        found = _first_file(_layers_over(opened, root), place[len(root) + 1 :]) if root else None
        if found is None and os.path.isfile(place):
            found = place
        if found is not None:
            return digest_of_file(os.open(found, os.O_RDONLY | os.O_CLOEXEC)) if root else ""
    return ""


def _candidates(request: Request, path: bytes) -> Iterable[bytes]:
    name = request.argv[0]
    where = (request.cwd,) if b"/" in name else tuple(path.split(b":"))
    return (os.path.normpath(os.path.join(directory, name)) for directory in where)


def _layers_over(opened: Opened, root: bytes) -> tuple[bytes, ...]:
    rows = [row for row in opened.store.layers.sealed(opened.row.id) if row.root == root]
    return tuple(upper_dir(opened.store.state, row.id) for row in reversed(rows))


def _first_file(uppers: Iterable[bytes], inside: bytes) -> bytes | None:
    return next((path for upper in uppers if os.path.isfile(path := os.path.join(upper, inside))), None)


def permit_root(project: bytes, policy: Policy, locations: Locations, store: Store, approver: Who) -> Policy:
    """Obtain that a sandbox is opened for root.

    Raises:
        DeniedError: it was denied.
    """
    asked = AsRoot(project=project)
    make_desk(store, policy, locations, approver).obtain(asked).take(asked)
    return policy.replace(allow_root=True)
