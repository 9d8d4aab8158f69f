# SPDX-License-Identifier: Apache-2.0
"""What a caller wants beyond the policy for one run: checked, put to the broker, and turned into a wider sandbox.

Nobody is asked before everything else is known to be right: the command, the directories, the hosts, the whole plan.
Loaded only where something is wanted.
"""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.host.installation import check_own_place
from unspill.model.permission import (
    AsRoot,
    Egress,
    MaskedSecret,
    NetworkForCommand,
    ReadablePath,
    Unsandboxed,
    WritableRoot,
)
from unspill.permissions.approvers import DenyAll
from unspill.permissions.audit import Audit
from unspill.permissions.broker import Broker
from unspill.plan.view import is_shown, to_host, to_inside
from unspill.policy.egress import WEB_PORTS, parse_allowed
from unspill.policy.paths import contains
from unspill.sandbox.ending import never_begun
from unspill.sandbox.locations import own_directories
from unspill.sandbox.occasion import input_of, occasion_of
from unspill.sandbox.opening import checked_roots, get_facts
from unspill.sandbox.patience import until_cancelled
from unspill.sandbox.reading import plan_as_if
from unspill.sandbox.recording import record_run
from unspill.sandbox.running import run_request
from unspill.sandbox.settings import check_approver
from unspill.sandbox.wanting import to_wants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from unspill.model.permission import Request as Asked
    from unspill.model.policy import ApproverName, Policy
    from unspill.permissions.approvers import Approver
    from unspill.sandbox.locations import Locations
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.requesting import Request
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.running import RunWishes
    from unspill.sandbox.wanting import Wanted, Wants
    from unspill.store.db import Store

    Who = Approver | ApproverName | None


def make_broker(store: Store, policy: Policy, locations: Locations, approver: Who) -> Broker:
    """Return the broker of a sandbox; nobody answers where there is no approver."""
    return Broker(
        _approver(store, approver),
        grants=store.grants,
        requests=store.requests,
        audit=Audit(store.state + b"/audit"),
        policy=policy,
        home=locations.home,
        own=own_directories(locations, policy),
        wait_s=policy.permissions.wait_s,
    )


def _approver(store: Store, approver: Who) -> Approver:
    if approver is None or approver == "deny":
        return DenyAll()
    if approver == "queue":
        from unspill.permissions.approvers import Queue

        return Queue(store.requests)
    if approver == "terminal":
        from unspill.permissions.approvers import Terminal

        return Terminal(lock=store.state + b"/locks/terminal")
    check_approver(approver)
    assert not isinstance(approver, str)
    return approver


def run_with_more(opened: Opened, request: Request, wishes: RunWishes, broker: Broker, wanted: Wanted) -> RunResult:
    """Run one command with what is wanted beyond the policy, or without a sandbox if that is what is wanted.

    Raises:
        DeniedError: something of it was denied; nothing was run.
        UsageError: something of it is malformed, or can't be had whoever says yes.
    """
    if opened.container:
        raise UsageError("in container mode a command has all that the container has", remedy="Ask for nothing else.")
    if wanted.plain:
        if any((wanted.network, wanted.hosts, wanted.readable, wanted.reveal, wanted.roots)):
            raise UsageError("a command without a sandbox has all there is", remedy="Ask for nothing else.")
        from unspill.sandbox.unsandboxed import check_plain, outside, run_plainly

        request = outside(opened, request)
        check_plain(request)
        asked = Unsandboxed(
            project=opened.project,
            sandbox=opened.row.id,
            argv=request.argv,
            cwd=request.cwd,
            environ=tuple(b"%b=%b" % pair for pair in sorted(dict(request.environ).items())),
            **input_of(request.stdin),
        )
        permit = until_cancelled(lambda: broker.obtain(asked), wishes.cancel_fd)
        if permit is None:
            return never_begun(opened)
        permit.take(asked)
        return record_run(opened, request, run_plainly(opened, request, asked.environ, wishes))
    found = until_cancelled(lambda: permitted(opened, request, to_wants(opened, wanted), broker), wishes.cancel_fd)
    if found is None:
        return never_begun(opened)
    return record_run(*found, run_request(*found, wishes.replace(broker=broker)))


def permitted(opened: Opened, request: Request, wants: Wants, broker: Broker) -> tuple[Opened, Request]:
    """Obtain all that is wanted for one run, and return the sandbox and the command with it.

    Raises:
        DeniedError: something of it was denied; the run must not begin.
        UsageError: something of it is malformed, or can't be had whoever says yes.
    """
    wants = _unseen(opened, request, wants)
    wider, wider_request = _with(opened, request, wants)
    plan = plan_as_if(wider, wider_request)
    occasion = occasion_of(wider, wider_request, plan)
    requests = tuple(_requests(wants, occasion, opened.policy.network.mode))
    for permit, asked in zip(broker.obtain_all(requests), requests, strict=True):
        permit.take(asked)
    return wider, wider_request.replace(program=occasion["script"])


def _unseen(opened: Opened, request: Request, wants: Wants) -> Wants:
    """Leave out what the sandbox has anyway: of that nobody need be asked."""
    roots = tuple(root for root in wants.roots if not any(contains(own, root) for own in opened.roots))
    readable = wants.readable
    if readable:
        mounts = plan_as_if(opened, request).mounts
        hidden = opened.policy.hidden
        readable = tuple(
            path
            for path in readable
            if not (is_shown(mounts, path) or any(contains(root, path) for root in opened.roots))
            or any(contains(place, path) for place in hidden)
        )
    hosts = wants.hosts
    if wants.network:
        # Any public host is reached on the ports of the web anyway
        hosts = tuple(host for host in hosts if parse_allowed(host).port not in (None, *WEB_PORTS))
    return wants.replace(roots=roots, readable=readable, hosts=hosts)


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
    # Where a root that is wanted has the project in it, it is that root which is the workspace
    cwd = to_inside(to_host(request.cwd, policy.view, opened.roots), policy.view, roots)
    more = request.replace(network=wants.network, revealed=wants.reveal, cwd=cwd)
    return opened.replace(policy=wider, roots=roots, facts=facts, warning=check_own_place(roots)), more


def _requests(wants: Wants, occasion: dict[str, Any], mode: str) -> Iterator[Asked]:
    for path in wants.roots:
        yield WritableRoot(**occasion, path=path)
    for path in wants.readable:
        yield ReadablePath(**occasion, path=path)
    for path in wants.reveal:
        yield MaskedSecret(**occasion, path=path)
    if wants.hosts:
        yield Egress(**occasion, hosts=wants.hosts)
    if wants.network:
        yield NetworkForCommand(**occasion, mode=mode)


def permit_root(project: bytes, policy: Policy, locations: Locations, store: Store, approver: Who) -> Policy:
    """Obtain that a sandbox is opened for root.

    Raises:
        DeniedError: it was denied.
    """
    asked = AsRoot(project=project)
    make_broker(store, policy, locations, approver).obtain(asked).take(asked)
    return policy.replace(allow_root=True)
