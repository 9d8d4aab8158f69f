# SPDX-License-Identifier: Apache-2.0
"""Obtain permissions: a request is checked, decided, asked if need be, recorded, and remembered if the answer says so.

`decide` is pure: by the policy and by what was granted before it says allow, ask or deny, and which rule it was. A
refusal of the configuration is stronger than a grant, which may be older than it. One `obtain` for everybody who needs
something. It returns a Permit or raises; nothing is ever done half. What can't be recorded is not allowed.
"""

from __future__ import annotations

import time
from threading import Lock

from unspill.changes.render import safe_text
from unspill.errors import DeniedError
from unspill.model.permission import (
    Allowed,
    AsRoot,
    Denied,
    Egress,
    MaskedSecret,
    ReadablePath,
    WritableRoot,
)
from unspill.model.policy import SCOPES
from unspill.permissions.approvers import SECOND_NS, Withdrawing, to_asked
from unspill.permissions.audit import answer_event, decision_event, request_event
from unspill.permissions.question import (
    WAIT_S,
    check_request,
    denial_text,
    make_question,
)
from unspill.policy.hosts import covered
from unspill.policy.paths import contains, show
from unspill.record import Record
from unspill.store.permissions import key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unspill.model.permission import (
        Answer,
        Grant,
        GrantId,
        Question,
        Request,
        RequestId,
    )
    from unspill.model.policy import Policy, Rules, Scope, Stance
    from unspill.permissions.approvers import Approver
    from unspill.permissions.audit import Audit
    from unspill.store.permissions import GrantTable, Recent, RequestTable

_DAY_NS = 86_400 * SECOND_NS
# No answer means no
_DENIED = ("denied", "expired")


class Allow(Record):
    """Nobody need be asked. `grant` is the one that was used, if it was one; `others` are those for its other hosts."""

    rule: str
    grant: GrantId | None = None
    others: tuple[GrantId, ...] = ()


class Ask(Record):
    """A person decides; `scopes` are for how long they may."""

    rule: str
    scopes: tuple[Scope, ...]


class Deny(Record):
    """Nobody is asked, because the answer is known."""

    rule: str
    remedy: str = ""


def decide(
    request: Request,
    policy: Policy,
    grants: Iterable[Grant] = (),
    of_hosts: tuple[Grant, ...] = (),
    *,
    now_ns: int,
) -> Decision:
    """Return what becomes of a request, and the rule that decided.

    `of_hosts` are grants for its project, of each of its hosts and whatever the command.
    """
    rules = policy.permissions
    configured = _configured(request, policy)
    if configured is not None:
        return configured
    scopes = _shortened(request.scopes, rules.longest)
    for grant in grants:
        if grant.scope in scopes and grant.covers(request, now_ns):
            return Allow(rule=f"grant {grant.id}", grant=grant.id)
    if of_hosts and "project" in scopes and all(grant.is_valid(now_ns) for grant in of_hosts):
        first, *others = (grant.id for grant in of_hosts)
        return Allow(rule=f"grant {first}", grant=first, others=tuple(others))
    if request.one_time_only:
        return Ask(rule="this is asked every time", scopes=scopes)
    return Ask(rule="no rule and no grant covers it", scopes=scopes)


def _configured(request: Request, policy: Policy) -> Decision | None:
    """Return what the configuration says by itself."""
    if isinstance(request, ReadablePath | MaskedSecret):
        hidden = next((path for path in policy.hidden if contains(path, request.path)), None)
        if hidden is not None:
            return Deny(rule=f"hidden = {show(hidden)}", remedy="Remove it from `hidden` in your own configuration.")
    allowing = _allowing(request, policy)
    if allowing:
        return Allow(rule=allowing)
    stance: Stance = getattr(policy.permissions, request.setting)
    return _forbidden(request.setting) if stance == "deny" else None


def _allowing(request: Request, policy: Policy) -> str:
    """Return the setting that allows a request without a question; empty for none."""
    match request:
        case WritableRoot(path=path) if any(contains(root, path) for root in policy.roots):
            return "roots"
        case ReadablePath(path=path) if any(contains(readable, path) for readable in policy.readable):
            return "readable"
        case Egress(hosts=hosts) if hosts and covered(hosts, (*policy.network.hosts, *policy.network.private_hosts)):
            return "network.hosts"
        case AsRoot() if policy.allow_root:
            return "allow_root"
        case _:
            return ""


def _forbidden(setting: str) -> Deny:
    return Deny(
        rule=f"permissions.{setting} = deny",
        remedy=f'Set `{setting} = "ask"` under [permissions] in your own configuration to be asked about it.',
    )


def _shortened(scopes: tuple[Scope, ...], longest: Scope) -> tuple[Scope, ...]:
    return tuple(scope for scope in scopes if SCOPES.index(scope) <= SCOPES.index(longest))


class Broker:
    """Obtains permissions for one sandbox; used by any of its threads."""

    __slots__ = (
        *("_approver", "_audit", "_grants", "_home", "_now_ns", "_own"),
        *("_policy", "_requests", "_under_way", "_wait_s"),
    )

    def __init__(
        self,
        approver: Approver,
        *,
        grants: GrantTable,
        requests: RequestTable,
        audit: Audit,
        policy: Policy,
        home: bytes,
        own: tuple[bytes, ...],
        wait_s: float = WAIT_S,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._approver = approver
        self._grants = grants
        self._requests = requests
        self._audit = audit
        self._policy = policy
        self._home = home
        self._own = own
        self._wait_s = wait_s
        self._now_ns = now_ns
        self._under_way: dict[RequestId, Question] = {}

    def obtain_all(self, requests: tuple[Request, ...]) -> tuple[Permit, ...]:
        """Return permits for all requests, or none: nobody is asked about one while another is refused anyway.

        Raises:
            DeniedError: one of them was denied.
            UsageError: one of them is malformed; nobody was asked.
        """
        for request in requests:
            check_request(request, home=self._home, own=self._own)
        for request in requests:
            match decide(request, self._policy, now_ns=self._now_ns()):
                case Deny(rule=rule, remedy=remedy):
                    self._audit.append(decision_event(request, "denied", rule))
                    raise _refusal(request, rule, remedy)
        return tuple(map(self.obtain, requests))

    def obtain(self, request: Request) -> Permit:
        """Return a permit for a request, from the policy, a grant or a person.

        Raises:
            DeniedError: it was denied. The caller does not do it in any other way either.
            UsageError: the request is malformed; nobody was asked.
        """
        check_request(request, home=self._home, own=self._own)
        now_ns = self._now_ns()
        found = () if request.one_time_only else self._grants.matching(request, now_ns)
        of_hosts = self._grants.of_hosts(request, now_ns) if isinstance(request, Egress) else ()
        match decide(request, self._policy, found, of_hosts, now_ns=now_ns):
            case Deny(rule=rule, remedy=remedy):
                self._audit.append(decision_event(request, "denied", rule))
                raise _refusal(request, rule, remedy)
            case Allow(rule=rule, grant=grant, others=others):
                for used in (*filter(None, (grant,)), *others):
                    self._use(used, request, now_ns)
                return Permit(request, rule, grant)
            case Ask(scopes=scopes):
                return self._ask(make_question(request, scopes, wait_s=self._wait_s))

    def withdraw(self, run: str) -> None:
        """Take back what a run has asked for and nobody has answered: it is over. Whoever asked is denied it."""
        for question in tuple(self._under_way.values()):
            if question.request.run == run and isinstance(self._approver, Withdrawing):
                self._approver.withdraw(question)

    def _use(self, grant: GrantId, request: Request, now_ns: int) -> None:
        # What the configuration names is not recorded here: the record of the run has it
        if not self._grants.use(grant, now_ns):
            raise _refusal(request, "the grant was revoked at this moment", "Ask again.")
        self._audit.append(decision_event(request, "allowed", f"grant {grant}"))

    def _ask(self, question: Question) -> Permit:
        request = question.request
        self._record_question(question)
        self._audit.append(request_event(question))
        answer: Answer = Denied(digest=question.digest, by="unspill", reason="the question was interrupted")
        self._under_way[question.id] = question
        try:
            answer = _checked(question, self._approver.ask(question))
        except Exception as error:
            answer = Denied(digest=question.digest, by="unspill", reason=f"the approver failed: {type(error).__name__}")
        finally:
            self._under_way.pop(question.id, None)
            try:
                self._record_end(question, answer)
            finally:
                self._audit.append(answer_event(question, answer))
        if isinstance(answer, Denied):
            raise _refusal(request, answer.reason, answer.remedy)
        if answer.scope == "once":
            return Permit(request, f"answer of {answer.by}")
        granted_ns = self._now_ns()
        scope = answer.scope
        parts: tuple[Request, ...] = (request,)
        if scope == "project" and isinstance(request, Egress):
            scope, parts = "always", request.for_project()
        granted = [
            self._grants.add(
                part,
                scope,
                granted_ns=granted_ns,
                expires_ns=granted_ns + self._policy.permissions.grant_days * _DAY_NS,
                granted_by=answer.by,
            )
            for part in parts
        ]
        for grant in granted:
            self._grants.use(grant.id, granted_ns)
        return Permit(request, f"answer of {answer.by}", granted[0].id)

    def _record_end(self, question: Question, answer: Answer) -> None:
        if isinstance(answer, Denied) and answer.is_unseen:
            # Else a program without a terminal could use up what its person may be asked
            self._requests.forget(question.id)
        self._requests.close(question.id, "allowed" if isinstance(answer, Allowed) else "denied")

    def _record_question(self, question: Question) -> None:
        """Record that a person is asked, unless they denied too much of late.

        Raises:
            DeniedError: it was.
        """
        now_ns = self._now_ns()
        asked = to_asked(question, now_ns)
        key = key_of(question.request)
        rules = self._policy.permissions
        since_ns = now_ns - int(rules.denial_window_s * SECOND_NS)
        pause = self._requests.add_unless(asked, since_ns, lambda recent: find_pause(recent, key, now_ns, rules))
        if pause is not None:
            self._audit.append(decision_event(question.request, "denied", f"pause: {pause.reason}"))
            raise _refusal(question.request, f"nobody is asked right now, because {pause.reason}", pause.remedy)


class Permit:
    """A permission in the hands of who asked for it: good for that very request, and for one use.

    Whoever performs takes it just before; a second use, or another request than the one that was allowed, is refused.
    `rule` says what or who allowed it.
    """

    __slots__ = ("_lock", "grant", "request", "rule")

    def __init__(self, request: Request, rule: str, grant: GrantId | None = None) -> None:
        self.request = request
        self.rule = rule
        self.grant = grant
        # Taken by the first use and never given back.
        self._lock = Lock()

    def take(self, request: Request) -> None:
        """Use it up for a request.

        Raises:
            DeniedError: it is for another request, or was used already.
        """
        if request != self.request:
            raise DeniedError("Permission denied: this is not what was allowed.", remedy="Ask again.")
        if not self._lock.acquire(blocking=False):
            raise DeniedError("Permission denied: it was given once and has been used.", remedy="Ask again.")


class Pause(Record):
    """Nobody is asked for a while; `setting` of [permissions] is the limit that was reached."""

    reason: str
    setting: str
    wait_s: float

    @property
    def remedy(self) -> str:
        """What helps."""
        minutes = max(1, -int(-self.wait_s // 60))
        return f"Wait {minutes} min. In your own configuration you can allow it, or raise `permissions.{self.setting}`."


def find_pause(recent: Iterable[Recent], key: str, now_ns: int, rules: Rules) -> Pause | None:
    """Return why a question must wait, if it must.

    Only what was denied counts, no answer included, and never what was allowed. A question that is still open may yet
    be denied, so it counts among all: else a hundred at once would be put before anybody has denied one. A question
    that was never put before anybody is not in `recent`. The store counts, so this holds for all processes that ask
    about one project.
    """
    window_s = rules.denial_window_s
    counted = [asked for asked in recent if asked.asked_ns > now_ns - window_s * SECOND_NS and asked.state != "allowed"]
    same = sorted(asked.asked_ns for asked in counted if asked.key == key and asked.state in _DENIED)
    if len(same) >= rules.max_same_denials:
        reason = f"the same was denied {len(same)} times"
        return Pause(
            reason=reason, setting="max_same_denials", wait_s=_until(same[-rules.max_same_denials], window_s, now_ns)
        )
    moments = sorted(asked.asked_ns for asked in counted)
    if len(moments) >= rules.max_denials:
        reason = f"{len(moments)} questions were denied or are still open"
        return Pause(reason=reason, setting="max_denials", wait_s=_until(moments[-rules.max_denials], window_s, now_ns))
    return None


def _checked(question: Question, answer: Answer) -> Answer:
    """Return an answer only if it is one to this question and no wider than was offered."""
    if isinstance(answer, Denied):
        return answer.replace(digest=question.digest)
    if not isinstance(answer, Allowed) or answer.digest != question.digest or answer.scope not in question.scopes:
        return Denied(digest=question.digest, by="unspill", reason="the answer was not for this question")
    return answer


def _refusal(request: Request, reason: str, remedy: str) -> DeniedError:
    reason = safe_text(reason)
    because = f"Why: {reason}." if reason else ""
    refusal = DeniedError(denial_text(request), remedy=" ".join(filter(None, (because, safe_text(remedy)))))
    refusal.reason = reason
    return refusal


def _until(oldest_ns: int, window_s: float, now_ns: int) -> float:
    # A moment of the future comes from a clock that was set back; that must not pause for longer than the window
    return min(window_s, max(0.0, oldest_ns / SECOND_NS + window_s - now_ns / SECOND_NS))


if TYPE_CHECKING:
    Decision = Allow | Ask | Deny
