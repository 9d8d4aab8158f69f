# SPDX-License-Identifier: Apache-2.0
"""From what a caller asks for to a Plan: the command, the working directory, the environment, what the host has.

Everything is checked here, before a layer is made or a process started.
"""

from __future__ import annotations

import os
import time

from unspill.errors import UsageError
from unspill.host.places import find_places, read_git_configs
from unspill.host.seccomp import build_filter
from unspill.layers.playground import playground_dir
from unspill.model.plan import FirstInput, HostNetwork, NoNetwork, Overlay, PlanInput, ProxyNetwork
from unspill.model.record import Record
from unspill.plan.build import build_plan
from unspill.plan.working_dir import missing_text, not_a_directory_text, resolve_working_dir
from unspill.policy.defaults import cache_candidates, toolchain_candidates
from unspill.policy.secrets import secret_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unspill.model.layer import Stack
    from unspill.model.plan import CacheLayer, MountOp, NetworkPlan, Places, Plan
    from unspill.model.policy import Limits, Policy
    from unspill.sandbox.opening import Opened

# The kernel takes 128 KiB in one argument and 2 MiB in all; a longer script goes in by a descriptor
_LONGEST_ARGUMENT = 120 * 1024

# A sandbox that runs many short commands looks around once a second, not for each of them
_PLACES_S = 1.0
_found: dict[bytes, tuple[Opened, float, Places]] = {}
_planned: dict[bytes, tuple[PlanInput, Plan]] = {}
_LARGEST_COMMAND = 1920 * 1024
_POINTER = 9
# bwrap takes 9000 with its own options; beyond this a shell hands them over
_MOST_WORDS = 4096


class Request(Record):
    """One command as asked for: argv (of a shell, where a text was given), directory, variables, limits.

    `network` was granted to this command, for this time; so were the secrets in `revealed`, by path. `program` is what
    `identify_program` said of it when something was granted, None where nothing was.
    """

    argv: tuple[bytes, ...]
    script: bytes | None
    cwd: bytes
    environ: tuple[tuple[bytes, bytes], ...]
    limits: Limits
    network: bool = False
    explain: bool = False
    revealed: tuple[bytes, ...] = ()
    program: str | None = None


def make_request(
    opened: Opened,
    command: str | bytes | Sequence[str | bytes],
    cwd: str | None,
    env: Mapping[str, str] | None,
    limits: Limits | None,
) -> Request:
    """Check what a caller asks for.

    Raises:
        UsageError: the command is empty or has a NUL, or the directory is none.
    """
    if isinstance(command, str | bytes):
        text = _encode(command)
        script = text if len(text) > _LONGEST_ARGUMENT else None
        argv: tuple[bytes, ...] = (b"/bin/sh", b"-c", text)
        is_empty = not text.strip()
    else:
        argv = tuple(map(_encode, command))
        script = _script_of_words(argv)
        is_empty = not argv or not argv[0]
    if is_empty:
        raise UsageError("Command cannot be empty")
    if any(b"\0" in word for word in argv):
        raise UsageError("the command contains NUL")
    return Request(
        argv=argv,
        script=script,
        cwd=checked_working_dir(opened, cwd),
        environ=tuple((_encode(name), _encode(value)) for name, value in (env or {}).items()),
        limits=opened.policy.limits if limits is None else limits,
    )


def _encode(word: str | bytes) -> bytes:
    try:
        return os.fsencode(word)
    except UnicodeEncodeError:
        raise UsageError(f"not a text: {word!a}", remedy="Give bytes where it is not Unicode.") from None


def _script_of_words(argv: tuple[bytes, ...]) -> bytes | None:
    """Return a script that runs a command of more words than bwrap takes, None where it takes them."""
    longest = max(map(len, argv), default=0)
    if longest > _LONGEST_ARGUMENT or sum(map(len, argv)) + _POINTER * len(argv) > _LARGEST_COMMAND:
        raise UsageError("the command is longer than the kernel takes", remedy="Pass it by stdin or a file.")
    if len(argv) <= _MOST_WORDS:
        return None
    return b"exec " + b" ".join(b"'" + word.replace(b"'", b"'\\''") + b"'" for word in argv) + b"\n"


def checked_working_dir(opened: Opened, cwd: str | None) -> bytes:
    """Return the working directory; one of a root must exist there unless an earlier run may have made it.

    Of all other paths only the sandbox knows what is there, so bwrap has the last word: the host's own answer would
    tell a model which files exist where it can't look.

    Raises:
        UsageError: with the text that a model is shown.
    """
    resolved = resolve_working_dir(cwd, opened.project, opened.home.path)
    is_in_root = any(resolved == root or resolved.startswith(root + b"/") for root in opened.roots)
    if not is_in_root or any(_held_layers(opened)):
        return resolved
    if not os.path.lexists(resolved):
        raise UsageError(missing_text(resolved))
    if not os.path.isdir(resolved):
        raise UsageError(not_a_directory_text(resolved))
    return resolved


def _held_layers(opened: Opened) -> tuple[object, ...]:
    return opened.store.layers.sealed(opened.row.id)


def get_places(opened: Opened) -> Places:
    """Find what the host has of what a plan may show; for a second what was found last is good enough."""
    last = _found.get(opened.project)
    if last is not None and last[0] is opened and time.monotonic() - last[1] < _PLACES_S:
        return last[2]
    places = _find_places(opened)
    _found[opened.project] = (opened, time.monotonic(), places)
    return places


def _find_places(opened: Opened) -> Places:
    home = opened.home.path
    configs = read_git_configs(home)
    named = opened.home
    if configs:
        from unspill.plan.gitconfig import filter_identity, parse_gitconfig

        pairs: list[tuple[str, str]] = []
        for text in configs:
            try:
                pairs += parse_gitconfig(text.decode("utf-8", "replace"))
            except UsageError:
                continue  # git itself will complain about it; a sandbox without an identity does no harm
        named = named.replace(identity=filter_identity(tuple(pairs)))
    return find_places(
        project=opened.project,
        state=opened.locations.state,
        playground=playground_dir(opened.locations.data, opened.project),
        policy=opened.policy,
        home=named,
        toolchains=toolchain_candidates(home, os.environb.get(b"PATH", b"")),
        caches=cache_candidates(home),
        secrets=secret_paths(home, os.getuid()),
        own=(opened.locations.config, opened.locations.data),
    )


def make_plan(
    opened: Opened,
    request: Request,
    places: Places,
    stacks: tuple[Stack, ...],
    caches: tuple[CacheLayer, ...],
) -> Plan:
    """Return the whole sandbox of one run.

    A run like the last one, but for its command and its layers, gets the last plan with those exchanged.

    Raises:
        UnspillError: as `build_plan`.
        HostError: unspill does not know this machine's system calls.
    """
    given = PlanInput(
        policy=opened.policy.replace(limits=request.limits, explain=opened.policy.explain or request.explain),
        facts=opened.facts,
        places=places,
        engine=opened.engine,
        stacks=stacks,
        caches=caches,
        argv=request.argv,
        cwd=request.cwd,
        filter=build_filter(os.uname().machine, opened.policy.profile),
        environ=tuple(os.environb.items()),
        extra_environ=request.environ,
        command_file=request.script,
        network=_plan_network(opened, is_granted=request.network),
        first=_first_input(opened.policy, is_explained=opened.policy.explain or request.explain),
    )
    last = _planned.get(opened.project)
    if last is not None and _is_like(last[0], given):
        return _with_layers(last[1], given)
    plan = build_plan(given)
    _planned[opened.project] = (given, plan)
    return plan


def _first_input(policy: Policy, *, is_explained: bool) -> FirstInput | None:
    """Return what the host has for a first program, None where the run needs none."""
    if policy.profile != "strict" and not is_explained:
        return None
    from unspill.host.first import find_interpreters, read_first_program

    notices = b""
    if is_explained:
        from unspill.host.seccomp_notices import build_notices

        notices = build_notices(os.uname().machine)
    return FirstInput(source=read_first_program(), interpreters=find_interpreters(), notices=notices)


def _plan_network(opened: Opened, *, is_granted: bool) -> NetworkPlan:
    """Return what a run reaches: what its policy names, and what was granted to this one command."""
    network = opened.policy.network
    if is_granted and network.mode == "host":
        from unspill.sandbox.full_network import find_resolver_file

        return HostNetwork(resolver_file=find_resolver_file())
    if is_granted and network.mode == "pasta":
        from unspill.sandbox.full_network import plan_pasta

        return plan_pasta(has_own_namespace=opened.engine == "mount" or opened.facts.own_namespace)
    if not is_granted and not network.hosts:
        return NoNetwork()
    from unspill.policy.egress import parse_rules

    # What can't be understood is refused before anything is started
    parse_rules(network.hosts)
    return ProxyNetwork(
        hosts=network.hosts, public=is_granted, up_bytes=network.up_bytes, down_bytes=network.down_bytes
    )


def _is_like(last: PlanInput, given: PlanInput) -> bool:
    return (
        given.places is last.places
        and given.facts is last.facts
        and given.command_file is None is last.command_file
        and (given.cwd, given.environ, given.extra_environ) == (last.cwd, last.environ, last.extra_environ)
        and given.policy == last.policy
        and given.filter is last.filter
        and given.network == last.network
        and [stack.live for stack in given.stacks] == [stack.live for stack in last.stacks]
        and [cache.path for cache in given.caches] == [cache.path for cache in last.caches]
    )


def _with_layers(plan: Plan, given: PlanInput) -> Plan:
    stacks = {stack.live: stack for stack in (*given.stacks, *(cache.stack for cache in given.caches))}
    return plan.replace(argv=given.argv, mounts=tuple(_with_layer(op, stacks) for op in plan.mounts))


def _with_layer(op: MountOp, stacks: dict[bytes, Stack]) -> MountOp:
    if not isinstance(op, Overlay) or op.dest not in stacks:
        return op
    stack = stacks[op.dest]
    assert stack.open is not None
    return op.replace(lowers=stack.lowers(), upper=stack.open.upper, work=stack.open.work, mask=stack.mask)
