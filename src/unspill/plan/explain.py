# SPDX-License-Identifier: Apache-2.0
"""A plan in words: every mount with its reason, the command to paste, and which rule refuses a path.

What is printed never contains a control character, and outside the command to paste no value of a variable. A refusal
is judged by names: a path as the command gave it, through links that the plan itself makes. Whether the host has
something there, or would have refused it too, is for whoever can look. What is proposed never depends on what the host
has: a model that reads it must not learn that.
"""

from __future__ import annotations

import posixpath
from binascii import b2a_base64

from unspill.errors import RootRefused
from unspill.model.plan import (
    Bind,
    Dev,
    Directory,
    File,
    HostNetwork,
    NoNetwork,
    Overlay,
    Proc,
    ProxyNetwork,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from unspill.plan.argv import (
    bind_options,
    bwrap_options,
    file_options,
    filter_options,
    is_overlapping,
    mounted_by_bwrap,
    to_options,
)
from unspill.plan.view import command_words, follow_links
from unspill.policy.defaults import check_root
from unspill.policy.paths import contains, lies_beneath, normalise, shell_word, show
from unspill.policy.secrets import find_secret
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from unspill.model.plan import (
        Facts,
        MountOp,
        NetworkPlan,
        Plan,
    )
    from unspill.model.policy import Limits

    RefusalKind = Literal["outside", "read-only", "hidden", "masked"]


_FIRST_FD = 3
# No option has a NUL: what begins with one is a name in the scratch directory.
_SCRATCH = b"\0"
# Bytes in a line, a multiple of 3: only the last may have padding
_BASE64_LINE = 72
# A `struct sock_filter`
_INSTRUCTION = 8
_PRINTABLE = frozenset(range(0x20, 0x7F))
_PRINTF = {byte: chr(byte) for byte in _PRINTABLE if byte not in b"\\'"} | {ord("%"): "%%"}
_ELSEWHERE = "write to the project, the playground or /tmp instead"
_OF_ROOTFS = "of the rootfs"


def explain(plan: Plan, facts: Facts) -> str:
    """Return the explanation; all that follows its last empty line is the command to paste.

    Raises:
        UnspillError: as `bwrap_options`.
    """
    lines = (
        f"engine {plan.engine}, bwrap {show(plan.bwrap)}, host name {plan.hostname}",
        f"network: {_describe_network(plan.network)}",
        f"command {' '.join(repr(show(word)) for word in plan.argv)}",
        f"in {show(plan.cwd)}",
        f"system calls: {_describe_filter(plan)}",
        "",
        "mounts, in order:",
        *_aligned([(describe(operation), operation.why) for operation in plan.mounts]),
        "",
        "variables: " + " ".join(show(name) for name, _value in plan.environ),
        "",
        "limits:",
        *_aligned(list(_limits(plan.limits))),
        *(f"note: {warning}" for warning in plan.warnings),
        "",
        "The same sandbox from a shell, without the limits; it keeps only what it writes to the playground:",
        "",
    )
    return "".join(line + "\n" for line in lines) + paste_command(plan, facts)


def describe(operation: MountOp) -> str:
    """Return one operation in words, without its reason."""
    dest = show(operation.dest)
    match operation:
        case Bind():
            access = "writable" if operation.writable else "read-only"
            source = "" if operation.source == operation.dest else f" from {show(operation.source)}"
            return f"{dest}: {access}{source}"
        case Overlay():
            return f"{dest}: {_describe_overlay(operation)}"
        case Tmpfs():
            return f"{dest}: empty, {_size(operation.size_bytes)}, mode {operation.mode:04o}"
        case Proc():
            return f"{dest}: proc"
        case Dev():
            return f"{dest}: devices"
        case Directory():
            return f"{dest}: empty, read-only"
        case Symlink():
            return f"{dest}: link to {show(operation.target)}"
        case File():
            return f"{dest}: file of {len(operation.content)} bytes, mode {operation.mode:04o}"
        case ReadOnly():
            return f"{dest}: read-only from here on"


def paste_command(plan: Plan, facts: Facts) -> str:
    """Return one command that a person can paste into a shell to be in the same sandbox.

    It is printable ASCII and newlines, for any POSIX shell. Its writes go to a scratch directory of its own that it
    removes, never to a layer. Limits are not part of it.

    Raises:
        UnspillError: as `bwrap_options`.
    """
    bwrap_options(plan, facts, _FIRST_FD)
    return _Paste(plan, facts).text()


class Refusal(Record):
    """Why a path can't be had: `outside` all that is shown, `read-only`, `hidden` by something fresh
    (of a write: its directory is, unless the command has made it), or `masked`.

    `path` is where it really lies.
    """

    kind: RefusalKind
    path: bytes
    rule: str


class Judge:
    """The mounts of one plan, asked many times."""

    def __init__(self, mounts: tuple[MountOp, ...], *, has_rootfs: bool = False) -> None:
        """Take the mounts. In a rootfs nobody expects what the host has, so only masks keep anything from a reader."""
        self._mounts = mounts
        self._has_rootfs = has_rootfs
        self._closed = {operation.dest for operation in mounts if isinstance(operation, ReadOnly)}

    def refusal(self, path: bytes, *, is_write: bool) -> Refusal | None:
        """Return what refuses an access to an absolute path, None where nothing of the plan does."""
        found = follow_links(self._mounts, normalise(path))
        if found is None:
            return None
        return self._of_write(*found) if is_write else self._of_read(*found)

    def _of_write(self, path: bytes, cover: MountOp | None) -> Refusal | None:
        match cover:
            case None:
                return Refusal(kind="outside", path=path, rule="the sandbox does not include this path")
            case Bind() if not cover.writable:
                return self._read_only(path, cover)
            case Overlay() if cover.upper is None:
                return self._read_only(path, cover)
            case Tmpfs() if cover.dest in self._closed:
                return self._read_only(path, cover)
            case File() if cover.over:
                return self._read_only(path, cover)
            case Directory():
                return self._read_only(path, cover)
            case Tmpfs() if self._may_lack_parent(path, cover):
                rule = f"its directory does not exist, as {show(cover.dest)} is empty in the sandbox ({cover.why})"
                return Refusal(kind="hidden", path=path, rule=rule)
        return None

    def _may_lack_parent(self, path: bytes, cover: Tmpfs) -> bool:
        """Tell whether a path lies in a directory that is there only if the command has made it."""
        parent = posixpath.dirname(path)
        return lies_beneath(parent, cover.dest) and not any(contains(parent, other.dest) for other in self._mounts)

    @staticmethod
    def _read_only(path: bytes, cover: MountOp) -> Refusal:
        return Refusal(kind="read-only", path=path, rule=f"{show(cover.dest)} is read-only: {cover.why}")

    def _of_read(self, path: bytes, cover: MountOp | None) -> Refusal | None:
        match cover:
            case None:
                # Every runtime asks /sys about the machine and does without; it can't be shown anyway
                is_no_news = contains(b"/sys", path) or any(contains(path, other.dest) for other in self._mounts)
                if is_no_news or self._has_rootfs:
                    return None
                return Refusal(kind="outside", path=path, rule="not visible in this view")
            case Tmpfs() if cover.dest in self._closed:
                return Refusal(kind="masked", path=path, rule=f"{show(cover.dest)} is hidden: {cover.why}")
            case File() if cover.over and not cover.content:
                return Refusal(kind="masked", path=path, rule=f"{show(cover.dest)} is hidden: {cover.why}")
            case Tmpfs() if not self._has_rootfs:
                rule = f"hidden, as {show(cover.dest)} is empty in the sandbox ({cover.why})"
                return Refusal(kind="hidden", path=path, rule=rule)
        return None


def remedy_of(refusal: Refusal, *, is_write: bool, home: bytes) -> str:
    """Return what a person could do to allow it."""
    if is_write and _OF_ROOTFS in refusal.rule:
        return f"Allow it with `rootfs_writable = true` (the changes stay in this sandbox), or {_ELSEWHERE}."
    if is_write:
        place = next((place for place in _places(refusal.path) if _can_be_root(place, home)), None)
        if place is None:
            return f"It can't be allowed; {_ELSEWHERE}."
        return (
            f"Allow it with `--root {shell_word(place)}` or `roots` in your own configuration "
            f"(create the directory first if it does not exist), or {_ELSEWHERE}."
        )
    word = shell_word(refusal.path)
    if "unspill's own files" in refusal.rule or contains(b"/proc", refusal.path):
        return "Commands can never see it."
    if "hidden by your policy" in refusal.rule:
        return "Remove it from `hidden`."
    if find_secret(refusal.path, home) is not None:
        return (
            "No option shows it to a single command. `readable` in your own configuration would show it to every run."
        )
    if contains(refusal.path, home):
        return "Commands never see all of it. Name the files or directories they need."
    return (
        f"If it exists and the command should see it, add `--readable {word}`, "
        "or list it under `readable` in your own configuration."
    )


def link_remedy(refusal: Refusal, home: bytes) -> str:
    """Return what a person could do about a link that leads to what was refused."""
    if find_secret(refusal.path, home) is not None or not _can_be_root(refusal.path, home):
        return remedy_of(refusal, is_write=refusal.kind == "read-only", home=home)
    word = shell_word(refusal.path)
    return f"If the command needs it, add `--root {word}`, or `--readable {word}` if it only reads it."


class ShellWords:
    """Turns bytes into words of a POSIX shell, safe to print, and keeps the assignments that must stand before them.

    Control characters and whatever is not ASCII never appear raw: such a word becomes a variable that printf fills.
    """

    def __init__(self) -> None:
        self.assignments: list[str] = []

    def word(self, value: bytes) -> str:
        """Return a word that the shell reads as exactly these bytes."""
        if _PRINTABLE.issuperset(value):
            return shell_word(value)
        name = f"v{len(self.assignments)}"
        # $(...) drops newlines at the end, so there is a full stop after them
        self.assignments.append(f"{name}=$(printf '{printf_format(value)}.'); {name}=${{{name}%.}}")
        return f'"${name}"'


def printf_format(value: bytes) -> str:
    """Return a format, to be put between single quotes, for which printf prints exactly these bytes."""
    # `%%` and not octal: dash looks for conversions after it has replaced the escapes
    text = "".join(_PRINTF.get(byte) or f"\\{byte:03o}" for byte in value)
    return "\\055" + text[1:] if text.startswith("-") else text


class _Paste:
    def __init__(self, plan: Plan, facts: Facts) -> None:
        self.plan = plan
        self.words = ShellWords()
        self.steps: list[str] = []
        self.descriptors: list[str] = []
        self._names = 0
        options = to_options(plan, facts, overlay=self._overlay, file=self._file)
        if plan.filter:
            options += filter_options(facts, self._filter())
        self.command = [plan.bwrap, *options, b"--", *command_words(plan)]

    def text(self) -> str:
        run = self._run_line()
        enter = "unshare --map-current-user --mount --keep-caps " if self.plan.engine == "mount" else ""
        lines = [
            "sh <<'UNSPILL'",
            'scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/unspill.XXXXXX") || exit 125',
            # mount(8) would else pass options of more than 256 bytes by a call that does not take them
            "export scratch LC_ALL=C LIBMOUNT_FORCE_MOUNT2=always",
            f"{enter}sh -e <<'INSIDE'",
            'cd "$scratch"',
            *self.words.assignments,
            *self.steps,
            run,
            "INSIDE",
            "code=$?",
            'chmod -R u+rwX "$scratch"; rm -rf "$scratch"',
            "exit $code",
            "UNSPILL",
        ]
        return "\n".join(lines) + "\n"

    def _run_line(self) -> str:
        command = " ".join(self._word(value) for value in self.command)
        # unshare leaves its capabilities in the ambient set; bwrap refuses to start with them
        drop = "setpriv --inh-caps=-all --ambient-caps=-all " if self.plan.engine == "mount" else ""
        return " ".join([f"exec {drop}{command}", *self.descriptors, "</dev/null"])

    def _word(self, value: bytes) -> str:
        if value.startswith(_SCRATCH):
            return '"$scratch"/' + value[1:].decode("ascii")
        return self.words.word(value)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _file(self, operation: File) -> tuple[bytes, ...]:
        name = self._name("file")
        self.steps.append(f"printf '{printf_format(operation.content)}' >{name}")
        if operation.over:
            # Beyond 9 not every shell has descriptors, so a file where the real thing has a pipe
            self.steps.append(f"chmod {operation.mode:o} {name}")
            return bind_options(_SCRATCH + name.encode(), operation.dest, writable=False)
        return file_options(operation, self._descriptor(name))

    def _filter(self) -> int:
        name = self._name("filter")
        pieces = [self.plan.filter[at : at + _BASE64_LINE] for at in range(0, len(self.plan.filter), _BASE64_LINE)]
        lines = [b2a_base64(piece, newline=False).decode("ascii") for piece in pieces]
        self.steps += [f"base64 -d >{name} <<'FILTER'", *lines, "FILTER"]
        return self._descriptor(name)

    def _descriptor(self, name: str) -> int:
        fd = _FIRST_FD + len(self.descriptors)
        self.descriptors.append(f"{fd}<{name}")
        return fd

    def _overlay(self, operation: Overlay) -> tuple[bytes, ...]:
        if self.plan.engine == "native":
            return self._by_bwrap(operation)
        return bind_options(self._mounted(operation), operation.dest, writable=operation.upper is not None)

    def _mounted(self, operation: Overlay) -> bytes:
        merged = self._name("merged")
        lowers = []
        own = operation.lowers
        if is_overlapping(operation):
            own = operation.lowers[1:]
            lowers.append(self._name("empty"))
            self.steps.append(f"mkdir {lowers[0]}; mount -t tmpfs -o nosuid,nodev tmpfs {lowers[0]}")
            self.steps += [f"mkdir {lowers[0]}/{self.words.word(name)}" for name in operation.points]
        for lower in own:
            # A link has a name without the characters that overlay options are made of
            lowers.append(self._name("l"))
            self.steps.append(f"ln -s {self.words.word(lower)} {lowers[-1]}")
        options = f"lowerdir={':'.join(lowers)},metacopy=off,userxattr"
        directories = [merged]
        if operation.upper is not None:
            directories += [self._name("upper"), self._name("work")]
            options += f",upperdir={directories[1]},workdir={directories[2]},index=off,volatile"
        self.steps.append(f"mkdir {' '.join(directories)}")
        self.steps.append(f"mount -t overlay -o {options},nosuid,nodev overlay {merged}")
        return _SCRATCH + merged.encode()

    def _by_bwrap(self, operation: Overlay) -> tuple[bytes, ...]:
        if operation.upper is None:
            return mounted_by_bwrap(operation)
        sources = [part for lower in reversed(operation.lowers) for part in (b"--overlay-src", lower)]
        upper, work = self._name("upper"), self._name("work")
        self.steps.append(f"mkdir {upper} {work}")
        return (*sources, b"--overlay", _SCRATCH + upper.encode(), _SCRATCH + work.encode(), operation.dest)


def _describe_network(network: NetworkPlan) -> str:
    match network:
        case NoNetwork():
            return "off, except for the sandbox's own loopback"
        case ProxyNetwork():
            hosts = ["any public host"] * network.public + [*network.hosts] + ["hosts that you allow"] * network.ask
            return f"{', '.join(hosts)}; only through this run's proxy"
        case HostNetwork():
            return "THE HOST'S OWN, including its loopback and local network"


def _describe_filter(plan: Plan) -> str:
    if not plan.filter:
        return "not filtered"
    text = (
        f"a filter of {len(plan.filter) // _INSTRUCTION} instructions refuses what no namespace covers: keyrings, "
        "io_uring, rare socket families, 32-bit calls; also mounts, namespaces and every unknown call"
    )
    return text if plan.profile == "default" else f"{text}; {plan.profile}: tracing and Unix sockets too; no Landlock"


def _describe_overlay(operation: Overlay) -> str:
    if operation.upper is None:
        return "read-only overlay"
    layers = len(operation.lowers) - 1
    held = f" over {layers} held layer{'s' if layers > 1 else ''}" if layers else ""
    return f"copy-on-write{held}, writes to {show(operation.upper)}"


def _limits(limits: Limits) -> Iterator[tuple[str, str]]:
    for name, bound in limits.as_dict().items():
        if bound is None:
            yield name, "unlimited"
        elif name.endswith("_bytes"):
            yield name, _size(bound)
        else:
            yield name, f"{bound:g}" if isinstance(bound, float) else str(bound)


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} bytes"


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = min(max((len(left) for left, _right in rows), default=0), 48)
    return [f"  {left:<{width}}  {right}" for left, right in rows]


def _places(path: bytes) -> tuple[bytes, ...]:
    return posixpath.dirname(path), path


def _can_be_root(place: bytes, home: bytes) -> bool:
    try:
        check_root(place, home=home, own=())
    except RootRefused:
        return False
    return True
