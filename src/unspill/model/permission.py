# SPDX-License-Identifier: Apache-2.0
"""What a sandbox may ask a person for, how it is asked, what is answered, and what is remembered of that.

A Request is complete: whatever an answer depends on is a field of it, and two requests are the same only if every
field is. Nothing here knows a prefix, a pattern or a shell.
"""

from __future__ import annotations

from unspill.model.policy import SCOPES
from unspill.model.run import KEPT_COMMAND_BYTES
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, NewType, Self

    from unspill.model.policy import Scope

    RequestId = NewType("RequestId", str)
    GrantId = NewType("GrantId", str)
else:
    RequestId = GrantId = str


# What is started can't be told for sure, so that a grant could be used for something else later.
UNKNOWN_PROGRAM = "unknown"

# The command is given what the calling program happens to have as its own input, a pipe or a file. A question says so,
# but it is no part of what is granted: else a grant that was given at a terminal would be worth nothing in a script,
# for commands that read no input at all. What this gives away: a granted command that runs its input (`sh`,
# `python3 -`) runs whatever is piped to `unspill run`. Who pipes is the caller, who is trusted; no model and no command
# can, since hooks and MCP pass no input on, and what a model gives as input is known by its digest.
INHERITED = "inherited"


class RequestBase(Record):
    """What all requests say: who asks, and for which command.

    `names` are those of the environment variables that the command gets, sorted; `variables` is the digest of those
    that the caller sets for it, with their values, or nothing where there are none. `script` is the digest of the
    program that is started where it lies in a root, or `UNKNOWN_PROGRAM`, with which it is allowed once only. `stdin`
    is the digest of what the command reads, `UNKNOWN_PROGRAM` where that is not known yet, or `INHERITED`; `stdin_head`
    its beginning.
    Without `argv` it is asked for the sandbox as a whole, whatever runs in it. Where `argv` is only the beginning of a
    long command, `command` is the digest of the whole.

    To add a kind of request: a subclass here, named in `Request`, and a row in `KINDS` of `permissions.question`.
    """

    # Its name in the store, in the audit and in JSON.
    kind: ClassVar[str]
    # The key under [permissions] that says whether anybody is asked.
    setting: ClassVar[str]
    # Answered with Allow or Deny for this one time, and never remembered.
    one_time_only: ClassVar[bool] = False
    # More than a reflex is needed to allow it.
    is_dangerous: ClassVar[bool] = False
    # It can be allowed for every command of its project.
    is_for_project: ClassVar[bool] = False
    # It means nothing without `argv`.
    needs_command: ClassVar[bool] = False
    # Fields that the stored form leaves out while they are empty: requests were stored before there were these fields.
    optional: ClassVar[tuple[str, ...]] = ("variables", "stdin", "stdin_head", "command")

    project: bytes
    sandbox: str = ""
    run: str = ""
    argv: tuple[bytes, ...] = ()
    cwd: bytes = b""
    names: tuple[str, ...] = ()
    script: str = ""
    variables: str = ""
    stdin: str = ""
    stdin_head: bytes = b""
    command: str = ""

    def bounded(self) -> Self:
        """Return what is kept of it: of a long command the beginning, and the digest of the whole in its place."""
        whole = b"\0".join(self.argv)
        if self.command or len(whole) <= KEPT_COMMAND_BYTES:
            return self
        return self.replace(argv=tuple(whole[:KEPT_COMMAND_BYTES].split(b"\0")), command=digest_of(whole))

    def at_scope(self, scope: Scope) -> Self:
        """Return what a grant of that scope remembers: `sandbox` forgets the run, `always` the sandbox as well."""
        asked = self if scope == "once" else self.bounded()
        if asked.stdin == INHERITED and scope != "once":
            asked = asked.replace(stdin="")
        if scope == "sandbox":
            return asked.replace(run="")
        return asked.replace(run="", sandbox="") if scope == "always" else asked

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes that an answer can have."""
        if self.one_time_only:
            return ("once",)
        # That is the same for every program
        for_project = self.argv if self.is_for_project else ()
        if UNKNOWN_PROGRAM in (self.script, self.stdin):
            return ("once", "project") if for_project else ("once",)
        needed = {"run": self.run, "sandbox": self.sandbox, "project": for_project}
        lacking = {scope for scope, of in needed.items() if not of}
        return tuple(scope for scope in SCOPES if scope not in lacking)

    def plain(self) -> dict[str, Any]:
        """Return its fields as JSON can hold them. Bytes that are not UTF-8 are kept, too."""
        said = {field: value for field, value in self.as_dict().items() if value or field not in self.optional}
        return {field: _to_plain(value) for field, value in said.items()}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Self:
        """Return the request that `plain` made these values of.

        Raises:
            KeyError: It has no such field.
            TypeError: A value is not of its field's type, or one is missing.
            ValueError: A text can't stand for bytes.
        """
        types = cls.field_types()
        return cls(**{field: _from_plain(value, types[field]) for field, value in values.items()})

    @classmethod
    def field_types(cls) -> dict[str, str]:
        """Return the type of each field, as it is written in the class."""
        declared: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            declared |= vars(base).get("__annotations__", {})
        return {field: type_ for field, type_ in declared.items() if "ClassVar" not in type_}

    def audited(self) -> dict[str, Any]:
        """Return what the audit keeps of it, and that for ever: no values of variables, no content of files."""
        return self.plain()


class NetworkForCommand(RequestBase):
    """A network, for one command. `mode` is that of the policy: any public host, unless it says `host`."""

    kind = "network"
    setting = "network"
    one_time_only = True
    needs_command = True

    mode: str = "proxy"


class Egress(RequestBase):
    """Named hosts, by way of the proxy. One that is asked for while a command runs is allowed for that run at least.

    `registries` are the package managers of this machine that are configured for them; such a host may be private.
    """

    kind = "egress"
    setting = "egress"
    is_for_project = True
    optional = (*RequestBase.optional, "registries")

    hosts: tuple[str, ...]
    registries: tuple[str, ...] = ()

    def for_project(self) -> tuple[Self, ...]:
        """Return what stands for its hosts one by one, whatever the command: what an answer for the project grants."""
        return tuple(type(self)(project=self.project, hosts=(host,)) for host in self.hosts)


class WritableRoot(RequestBase):
    """One more directory that the sandbox may change, by way of a layer."""

    kind = "writable-root"
    setting = "roots"

    path: bytes


class ReadablePath(RequestBase):
    """One more path that the sandbox sees."""

    kind = "readable-path"
    setting = "readable"

    path: bytes


class MaskedSecret(RequestBase):
    """A secret of the project that the sandbox would not see otherwise."""

    kind = "masked-secret"
    setting = "secrets"

    path: bytes


class HeldPath(RequestBase):
    """A change that is held at apply; `digest` is that of what it leaves, so that nothing else goes in its place.

    For whoever is asked: `why` it is held, what the path `becomes`, the `head` of its content or its target, and how
    many bytes are the `rest` of it. The digest has all of that, so a grant remembers none.
    """

    kind = "held-path"
    setting = "held"
    optional = (*RequestBase.optional, "why", "becomes", "head", "rest")

    root: bytes
    path: bytes
    digest: str
    why: str = ""
    becomes: str = ""
    head: bytes = b""
    rest: str = ""

    def at_scope(self, scope: Scope) -> Self:
        """Return what a grant of that scope remembers."""
        remembered = RequestBase.at_scope(self, scope)
        return remembered if scope == "once" else remembered.replace(why="", becomes="", head=b"", rest="")

    def audited(self) -> dict[str, Any]:
        """Return what the audit keeps of it: the digest stands for the content."""
        return self.replace(head=b"").plain()


class Unsandboxed(RequestBase):
    """A command that runs as if the person had typed it.

    `environ` are the variables that it gets besides the person's own, sorted, each as `NAME=VALUE`.
    """

    kind = "unsandboxed"
    setting = "unsandboxed"
    one_time_only = True
    is_dangerous = True
    needs_command = True
    optional = (*RequestBase.optional, "environ")

    environ: tuple[bytes, ...] = ()

    def audited(self) -> dict[str, Any]:
        """Return what the audit keeps of it: of the variables only their names, since values may be secrets."""
        return self.plain() | {"environ": [_to_plain(pair.partition(b"=")[0]) for pair in self.environ]}


class AsRoot(RequestBase):
    """A sandbox for a caller that is root, where some limits do not hold."""

    kind = "as-root"
    setting = "as_root"
    is_dangerous = True


Request = NetworkForCommand | Egress | WritableRoot | ReadablePath | MaskedSecret | HeldPath | Unsandboxed | AsRoot

REQUESTS: tuple[type[Request], ...] = Request.__args__


class Grant(Record):
    """An answer that is remembered. `request` is what `at_scope` left of the one that was answered."""

    id: GrantId
    request: Request
    scope: Scope
    granted_ns: int
    expires_ns: int
    granted_by: str
    last_used_ns: int = 0
    uses: int = 0

    def covers(self, request: Request, now_ns: int) -> bool:
        """Tell whether it answers a request at that moment: every field is the same, and its time is not over."""
        if self.scope == "once" or self.scope not in request.scopes:
            return False
        return self.is_valid(now_ns) and request.at_scope(self.scope) == self.request

    @property
    def answer(self) -> Scope:
        """The scope of the answer that it is from: one for hosts without a command is for the project."""
        return "project" if isinstance(self.request, Egress) and not self.request.argv else self.scope

    def is_valid(self, now_ns: int) -> bool:
        """Tell whether its time is not over."""
        # A clock that was set back must not lengthen it
        return self.granted_ns <= now_ns < self.expires_ns


class Choice(Record):
    """One answer that is offered; the one without a scope denies."""

    label: str
    scope: Scope | None


class Question(Record):
    """A request as it is put to a person. All text is safe to show as it is, and each line is one line.

    `digest` is that of the request and the id: an answer names it, so it can't be for anything else. `whole` has the
    command in full where `text` had to be cut.
    """

    id: RequestId
    request: Request
    digest: str
    text: str
    lines: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    wait_s: float = 300.0

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes that can be chosen."""
        return tuple(choice.scope for choice in self.choices if choice.scope is not None)


class Allowed(Record):
    """The person, or a program that they trust with it, said yes to exactly this question."""

    digest: str
    by: str
    scope: Scope = "once"


class Denied(Record):
    """Anything else: no, silence, or nobody there to ask.

    `is_unseen` if the question was never put before anybody: such a one does not count as asked.
    """

    digest: str
    by: str
    reason: str = ""
    remedy: str = ""
    is_unseen: bool = False


Answer = Allowed | Denied


def digest_of(said: bytes) -> str:
    """Return the digest that stands for something in a request; nothing for nothing."""
    from hashlib import blake2b  # lazy: approvals

    return blake2b(said, digest_size=32).hexdigest() if said else ""


def _to_plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return list(map(_to_plain, value)) if isinstance(value, tuple) else value


def _from_plain(value: Any, type_: str) -> Any:
    """Return the value of a field that is bytes, str, or a tuple of either, as its type says."""
    is_tuple = type_.startswith("tuple[")
    items = value if is_tuple else [value]
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise TypeError
    if "bytes" in type_:
        items = [item.encode("utf-8", "surrogateescape") for item in items]
    return tuple(items) if is_tuple else items[0]
