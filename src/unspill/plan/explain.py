# SPDX-License-Identifier: Apache-2.0
"""A plan in words: every mount with its reason, the names of variables, the limits, and the command to paste.

Shows names of variables, not values, outside the command. What is printed never contains a control character.
"""

from __future__ import annotations

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
from unspill.plan.paste import paste_command
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.facts import Facts
    from unspill.model.plan import MountOp, NetworkPlan, Plan
    from unspill.model.policy import Limits

# A `struct sock_filter`
_INSTRUCTION = 8


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
        "The same sandbox from a shell, without the limits; only what it writes to the playground stays:",
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


def _describe_network(network: NetworkPlan) -> str:
    match network:
        case NoNetwork():
            return "off, nothing but the sandbox's own loopback"
        case ProxyNetwork():
            hosts = ["any public host"] * network.public + [*network.hosts] + ["what is asked for"] * network.ask
            return f"{', '.join(hosts)}; through a proxy of this run, which is all there is inside"
        case HostNetwork():
            return "THE HOST'S OWN, with its loopback and its neighbours"


def _describe_filter(plan: Plan) -> str:
    if not plan.filter:
        return "not filtered"
    text = (
        f"a filter of {len(plan.filter) // _INSTRUCTION} instructions refuses what no namespace covers: keyrings, "
        "io_uring, rare families of sockets, 32-bit calls; mounts and namespaces once more; all it does not know"
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
