# SPDX-License-Identifier: Apache-2.0
"""What a caller wants beyond the policy for one run: checked, put to the broker, and turned into a wider sandbox.

Nobody is asked before everything else is known to be right: the command, the directories, the hosts, the whole plan.
What a person does apart from any run (answer what waits, take grants back, read the audit) works on the state directory
alone. Loaded only where something is wanted.
"""

from __future__ import annotations

import os

from unspill.errors import PolicyError, UsageError
from unspill.host.places import check_own_place
from unspill.layers.locks import given_up, until_cancelled
from unspill.model.permission import (
    AsRoot,
    Egress,
    GrantId,
    MaskedSecret,
    NetworkForCommand,
    ReadablePath,
    RequestId,
    Unsandboxed,
    WritableRoot,
)
from unspill.permissions.approvers import (
    DenyAll,
    Queue,
    TerminalApprover,
    answer_question,
    find_question,
    open_questions,
)
from unspill.permissions.audit import Audit, revoke_event
from unspill.permissions.broker import Broker
from unspill.plan.view import is_shown, to_host, to_inside
from unspill.policy.hosts import WEB_PORTS, parse_allowed, parse_reachable
from unspill.policy.paths import contains, normalise, quote
from unspill.record import Record
from unspill.sandbox.planning import make_spec
from unspill.sandbox.project import check_approver, checked_roots, find_own_locations, get_facts, own_directories
from unspill.sandbox.result import never_begun, record_run
from unspill.sandbox.review import plan_as_if
from unspill.sandbox.running import check_plain, input_of, occasion_of, outside, run_command, run_plainly
from unspill.sandbox.secrets import find_masks
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from unspill.model.permission import Grant, Question, Request
    from unspill.model.policy import Policy, Scope
    from unspill.permissions.approvers import Approver
    from unspill.permissions.audit import Event
    from unspill.sandbox.planning import RunSpec
    from unspill.sandbox.project import Locations, PathLike, Project, Who
    from unspill.sandbox.result import RunResult

_SHORTEST_ID = 4


class Access(Record):
    """What one run is to have beyond the policy. Paths are absolute and real, hosts are rules in their one form."""

    network: bool = False
    hosts: tuple[str, ...] = ()
    readable: tuple[bytes, ...] = ()
    reveal: tuple[bytes, ...] = ()
    roots: tuple[bytes, ...] = ()


def check_access(
    project: Project,
    *,
    network: bool,
    hosts: Sequence[str],
    readable: Sequence[PathLike],
    reveal: Sequence[PathLike],
    roots: Sequence[PathLike],
) -> Access:
    """Check what a caller access, name by name. Relative paths are seen from the project.

    Raises:
        UsageError: a host is none, or there is nothing at a path.
    """
    for given in (hosts, readable, reveal, roots):
        if isinstance(given, str | bytes):
            raise UsageError(f"this must be a list, not one text: {given!r}")
    if roots and not project.roots:
        raise UsageError("without a project no directory can be changed", remedy="Open a project, or ask for less.")
    return Access(
        network=network,
        hosts=tuple(dict.fromkeys(_host(host) for host in hosts)),
        readable=tuple(dict.fromkeys(_real(project, path) for path in readable)),
        reveal=_masked(project, reveal),
        roots=tuple(dict.fromkeys(_real(project, path, is_directory=True) for path in roots)),
    )


def _masked(project: Project, given: Sequence[PathLike]) -> tuple[bytes, ...]:
    """Return secrets under their own names, whatever they are links to; each must be one that is masked."""
    if not given:
        return ()
    paths = []
    for path in given:
        _real(project, path)
        above, name = os.path.split(_on_host(project, path))
        paths.append(os.path.join(os.path.realpath(above), name))
    find_masks(project, tuple(paths))
    return tuple(dict.fromkeys(paths))


def _host(text: str) -> str:
    try:
        return parse_reachable(text).text
    except PolicyError as error:
        raise UsageError(error.message, remedy=error.remedy) from None


def _on_host(project: Project, given: PathLike) -> bytes:
    """Return the path that is meant: a caller may name it as a command sees it."""
    path = os.path.join(project.path, os.fsencode(given))
    # The host may have a directory of that name too, and the project in it
    if any(contains(root, path) for root in project.roots):
        return path
    return to_host(path, project.means.policy.view, project.roots)


def _real(project: Project, given: PathLike, *, is_directory: bool = False) -> bytes:
    path = _on_host(project, given)
    if b"\0" in path or not os.path.exists(path):
        raise UsageError(f"there is nothing at {quote(path)}", remedy="Nobody was asked.")
    if is_directory and not os.path.isdir(path):
        raise UsageError(f"{quote(path)} is not a directory", remedy="Nobody was asked.")
    return os.path.realpath(path)


def ask_for_missing(
    project: Project, broker: Broker, wanted: Mapping[str, Any], cancel_fd: int | None = None
) -> list[bytes]:
    """Return the directories that a model names as roots; ask about one that is not there, or only behind a link.

    Nothing can come of a yes to that. But if it were refused at once, a model could find out what the host has.
    `wanted` are the arguments of `Sandbox.run`.

    Raises:
        DeniedError: it was denied, in the words in which any other directory is.
        UsageError: it was allowed, and is not there; or a name can't be one.
        SandboxUnavailable: the caller gave up.
    """
    found = []
    for root in wanted["roots"]:
        path = _named_root(project, root)
        real = os.path.realpath(path)
        if any(contains(own, path) for own in project.roots):
            if not any(contains(own, real) for own in project.roots):
                raise UsageError(
                    f"{quote(os.fsencode(root))} is a link out of the project", remedy="Name the directory itself."
                )
        elif real == path and os.path.isdir(path):
            found.append(path)
        else:
            spec = make_spec(project, wanted["command"], wanted["working_dir"], None, None).replace(cancel_fd=cancel_fd)
            _ask_in_vain(project, broker, spec, path)
    return found


def _named_root(project: Project, root: str) -> bytes:
    try:
        return normalise(_on_host(project, root))
    except ValueError as error:
        raise UsageError(f"{error}: {root!a:.60}", remedy="Nobody was asked.") from None


def _ask_in_vain(project: Project, broker: Broker, spec: RunSpec, path: bytes) -> None:
    asked = WritableRoot(project=project.path, sandbox=project.row.id, argv=spec.argv, cwd=spec.cwd, path=path)
    if until_cancelled(lambda: broker.obtain(asked), spec.cancel_fd) is None:
        raise given_up()
    raise UsageError(f"there is no directory {quote(path)}", remedy="Name the directory itself, not a link to it.")


def make_broker(store: Store, policy: Policy, locations: Locations, approver: Who) -> Broker:
    """Return the broker of a sandbox; nobody answers where there is no approver."""
    return Broker(
        _approver(store, approver),
        grants=store.grants,
        requests=store.requests,
        audit=Audit(store.state + b"/audit", session=store.session),
        policy=policy,
        home=locations.home,
        own=own_directories(locations, policy),
        wait_s=policy.permissions.wait_s,
    )


def _approver(store: Store, approver: Who) -> Approver:
    if approver is None or approver == "deny":
        return DenyAll()
    if approver == "queue":
        return Queue(store.requests)
    if approver == "terminal":
        return TerminalApprover(lock=store.state + b"/locks/terminal")
    check_approver(approver)
    assert not isinstance(approver, str)
    return approver


def run_with_more(
    project: Project,
    spec: RunSpec,
    broker: Broker,
    network: bool,
    hosts: Sequence[str],
    readable: Sequence[PathLike],
    reveal: Sequence[PathLike],
    roots: Sequence[PathLike],
    *,
    unsandboxed: bool,
) -> RunResult:
    """Run one command with what is wanted beyond the policy, or without a sandbox if that is what is wanted.

    Raises:
        DeniedError: something of it was denied; nothing was run.
        UsageError: something of it is malformed, or can't be had whoever says yes.
        HostError: no sandbox can be made here, and nobody was asked to do without one.
    """
    if project.means.container:
        raise UsageError("in container mode a command has the whole container", remedy="Ask for nothing else.")
    if unsandboxed:
        if network or hosts or readable or reveal or roots:
            raise UsageError("a command without a sandbox already has full access", remedy="Ask for nothing else.")
        return _run_unsandboxed(project, outside(project, spec), broker)
    project.means.check_sandbox()

    def ask() -> tuple[Project, RunSpec]:
        access = check_access(project, network=network, hosts=hosts, readable=readable, reveal=reveal, roots=roots)
        return permitted(project, spec, access, broker)

    found = until_cancelled(ask, spec.cancel_fd)
    if found is None:
        return never_begun(project)
    wider, granted = found
    return record_run(wider, granted, run_command(wider, granted.replace(broker=broker)))


def _run_unsandboxed(project: Project, spec: RunSpec, broker: Broker) -> RunResult:
    check_plain(spec)
    asked = Unsandboxed(
        project=project.path,
        sandbox=project.row.id,
        argv=spec.argv,
        cwd=spec.cwd,
        environ=tuple(b"%b=%b" % pair for pair in sorted(dict(spec.environ).items())),
        **input_of(spec.stdin),
    )
    permit = until_cancelled(lambda: broker.obtain(asked), spec.cancel_fd)
    if permit is None:
        return never_begun(project)
    permit.take(asked)
    return record_run(project, spec, run_plainly(project, spec, asked.environ))


def permitted(project: Project, spec: RunSpec, access: Access, broker: Broker) -> tuple[Project, RunSpec]:
    """Obtain all that is wanted for one run, and return the sandbox and the command with it.

    Raises:
        DeniedError: something of it was denied; the run must not begin.
        UsageError: something of it is malformed, or can't be had whoever says yes.
    """
    access = _unseen(project, spec, access)
    wider, wider_spec = _with(project, spec, access)
    plan = plan_as_if(wider, wider_spec)
    occasion = occasion_of(wider, wider_spec, plan)
    requests = tuple(_requests(access, occasion, project.means.policy.network.mode))
    for permit, asked in zip(broker.obtain_all(requests), requests, strict=True):
        permit.take(asked)
    return wider, wider_spec.replace(program=occasion["script"])


def _unseen(project: Project, spec: RunSpec, access: Access) -> Access:
    """Leave out what the sandbox has anyway: of that nobody need be asked."""
    roots = tuple(root for root in access.roots if not any(contains(own, root) for own in project.roots))
    readable = access.readable
    if readable:
        mounts = plan_as_if(project, spec).mounts
        hidden = project.means.policy.hidden
        readable = tuple(
            path
            for path in readable
            if not (is_shown(mounts, path) or any(contains(root, path) for root in project.roots))
            or any(contains(place, path) for place in hidden)
        )
    hosts = access.hosts
    if access.network:
        # Any public host is reached on the ports of the web anyway
        hosts = tuple(host for host in hosts if parse_allowed(host).port not in (None, *WEB_PORTS))
    return access.replace(roots=roots, readable=readable, hosts=hosts)


def _with(project: Project, spec: RunSpec, access: Access) -> tuple[Project, RunSpec]:
    policy = project.means.policy
    wider = policy.replace(
        network=policy.network.replace(hosts=tuple(dict.fromkeys((*policy.network.hosts, *access.hosts)))),
        readable=(*policy.readable, *access.readable),
        roots=(*policy.roots, *access.roots),
    )
    roots = checked_roots(project.path if project.roots else None, wider, project.locations)
    # A bwrap that lies in a root must not be run
    facts = get_facts(project.store, wider, roots) if roots != project.roots else project.means.facts
    # Where a root that is wanted has the project in it, it is that root which is the workspace
    cwd = to_inside(to_host(spec.cwd, policy.view, project.roots), policy.view, roots)
    more = spec.replace(network=access.network, revealed=access.reveal, cwd=cwd)
    wider_project = project.replace(roots=roots, warning=check_own_place(roots))
    return wider_project.with_means(policy=wider, facts=facts), more


def _requests(access: Access, occasion: dict[str, Any], mode: str) -> Iterator[Request]:
    for path in access.roots:
        yield WritableRoot(**occasion, path=path)
    for path in access.readable:
        yield ReadablePath(**occasion, path=path)
    for path in access.reveal:
        yield MaskedSecret(**occasion, path=path)
    if access.hosts:
        yield Egress(**occasion, hosts=access.hosts)
    if access.network:
        yield NetworkForCommand(**occasion, mode=mode)


def permit_root(project: bytes, policy: Policy, locations: Locations, store: Store, approver: Who) -> Policy:
    """Obtain that a sandbox is opened for root.

    Raises:
        DeniedError: it was denied.
    """
    asked = AsRoot(project=project)
    make_broker(store, policy, locations, approver).obtain(asked).take(asked)
    return policy.replace(allow_root=True)


class Office:
    """The person's own store of permissions, open while in a `with`."""

    def __init__(self) -> None:
        """Open it.

        Raises:
            StoreError: the state directory can't be used.
        """
        self._store = Store.open(find_own_locations().state)
        self._audit = Audit(self._store.state + b"/audit")

    def __enter__(self) -> Office:
        return self

    def __exit__(self, *_rest: object) -> None:
        self._store.close()

    def waiting(self, project: bytes | None = None) -> tuple[Question, ...]:
        """Return what waits for an answer, the oldest first."""
        return open_questions(self._store.requests, project)

    def find(self, name: str) -> Question:
        """Return what waits under an id, or the beginning of one.

        Raises:
            UsageError: nothing does, or several do.
        """
        known = [question.id for question in self.waiting()]
        return find_question(self._store.requests, RequestId(_the_one(name, known, "request", "unspill requests")))

    def answer(self, question: Question, scope: Scope | None, reason: str = "") -> None:
        """Answer a question; without a scope it is denied.

        Raises:
            UsageError: that scope is not offered, or it is over.
        """
        answer_question(self._store.requests, question, scope=scope, by=_who(), reason=reason)

    def grants(self, project: bytes | None = None) -> tuple[Grant, ...]:
        """Return what is remembered, the newest first."""
        return self._store.grants.all(project)

    def revoke(self, name: str) -> Grant:
        """Take back the grant of an id, or the beginning of one.

        Raises:
            UsageError: there is none, or several.
        """
        known = {grant.id: grant for grant in self.grants()}
        grant = known[GrantId(_the_one(name, known, "grant", "unspill grants"))]
        self._store.grants.revoke(grant.id)
        self._audit.append(revoke_event(grant))
        return grant

    def revoke_all(self, project: bytes | None = None) -> tuple[Grant, ...]:
        """Take back all grants, or those of a project."""
        revoked = tuple(grant for grant in self.grants(project) if self._store.grants.revoke(grant.id))
        if revoked:
            self._audit.append(*map(revoke_event, revoked))
        return revoked

    def events(self) -> Iterator[Event]:
        """Yield what the audit has, the newest first.

        Raises:
            StoreError: it can't be read.
        """
        return self._audit.events(newest_first=True)


def _the_one(name: str, known: Iterable[str], what: str, verb: str) -> str:
    found = [one for one in known if one == name or (len(name) >= _SHORTEST_ID and one.startswith(name))]
    if len(found) == 1:
        return found[0]
    problem = "there are several" if found else "there is no such"
    raise UsageError(f"{problem} {what}: {name!r}", remedy=f"Give its id; see `{verb}`.")


def _who() -> str:
    return f"uid {os.getuid()}"
