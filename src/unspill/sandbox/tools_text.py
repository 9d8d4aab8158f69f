# SPDX-License-Identifier: Apache-2.0
"""What a rootfs offers, in words for an agent's prompt: short, and nothing in it that a stranger could have written."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.sandbox.tools import Tool, Tools

_PACKAGES = "/workspace/.packages"


def tools_text(tools: Tools) -> str:
    """Return the words."""
    from unspill.sandbox.tools import INSTALLERS, OTHERS, RUNTIMES

    named = {tool.name: tool for tool in tools.tools}
    lines = [f"System: {_system(tools)}. Nothing of the machine around it is visible."]
    for title, names in (("Runtimes", RUNTIMES), ("Package managers", INSTALLERS), ("Tools", OTHERS)):
        found = [named[name] for name in names if name in named]
        if found:
            lines.append(f"{title}: {_listed(found)}.")
    return "\n".join([*lines, *_surroundings(tools, has_pip="pip" in named)])


def _system(tools: Tools) -> str:
    name = " ".join(filter(None, (tools.system.capitalize() or "Linux", tools.release)))
    return ", ".join(filter(None, (name, tools.libc, tools.arch)))


def _listed(found: Iterable[Tool]) -> str:
    return ", ".join(f"{tool.name} {tool.version}".rstrip() for tool in found)


def _surroundings(tools: Tools, *, has_pip: bool) -> Iterator[str]:
    if tools.hosts:
        yield f"Network: only {', '.join(tools.hosts)}, by the proxy that the variables name."
    else:
        yield "Network: none."
    yield "Files: the project is at /workspace, which is also HOME and where commands start; it can be written."
    gone = ["/tmp", "/var/tmp", "/run", "/dev/shm"]
    if tools.tmp == "persistent":
        gone.remove("/tmp")
        yield "/tmp can be written and is kept from command to command."
    yield "/playground can be written and is kept, but is no part of the project."
    if tools.writable:
        gone.remove("/var/tmp")
        yield "The directories of the system can be written too, as root; what is changed there stays in this sandbox."
    places = f"{', '.join(gone[:-1])} and {gone[-1]}"
    yield f"{places} can be written, but what is written there is gone when the command has ended."
    yield "The rest is read-only." if tools.writable else "The rest is read-only: nothing can be installed there."
    if tools.mounts:
        yield f"Read-only besides: {', '.join(tools.mounts)}."
    if has_pip:
        yield f"pip installs into {_PACKAGES}, where Python finds it."
