# SPDX-License-Identifier: Apache-2.0
"""From what a caller asks for to a checked RunSpec, and from that and what the host has to a Plan.

A spec is checked before a layer is made or a process started. Its paths are those inside the sandbox, as the command
and whoever reads about it will see them. What the host has is looked for once a second: a sandbox runs many short
commands one after the other.
"""

from __future__ import annotations

import os
import time

from unspill.errors import HostError, UsageError
from unspill.host.bwrap import build_filter
from unspill.host.places import find_places, read_git_configs
from unspill.layers.lifecycle import lasting_home_dir, make_skeleton, playground_dir, tmp_dir
from unspill.model.plan import (
    HostNetwork,
    NoNetwork,
    PlanInput,
    ProxyNetwork,
)
from unspill.plan.build import build_plan
from unspill.plan.view import (
    PLAYGROUND_WORKING_DIR,
    filter_identity,
    missing_text,
    not_a_directory_text,
    parse_gitconfig,
    playground_inside,
    resolve_working_dir,
    to_host,
    to_inside,
)
from unspill.policy.defaults import cache_candidates, toolchain_candidates
from unspill.policy.secrets import secret_paths
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unspill.model.operation import Operation
    from unspill.model.plan import (
        CacheLayer,
        NetworkPlan,
        Places,
        Plan,
    )
    from unspill.model.policy import After, Limits
    from unspill.model.run import Event, Run, Stack
    from unspill.permissions.broker import Broker
    from unspill.runner.live import LiveSandbox
    from unspill.runner.watch import AttachedTerminal
    from unspill.sandbox.ports import Ports
    from unspill.sandbox.project import PathLike, Project

    # A text for a shell, or words
    Command = str | bytes | Sequence[PathLike]


# A sandbox that runs many short commands looks around once a second, not for each of them
_PLACES_S = 1.0
_RESOLVER_FILE = b"/etc/resolv.conf"
_found: dict[bytes, tuple[Project, float, Places]] = {}

# The kernel takes 128 KiB in one argument and 2 MiB in all; a longer script goes in by a descriptor
_LONGEST_ARGUMENT = 120 * 1024
_LARGEST_COMMAND = 1920 * 1024
_POINTER = 9
# bwrap takes 9000 with its own options; beyond this a shell hands them over
_MOST_WORDS = 4096


def get_places(project: Project, *, afresh: bool = False) -> Places:
    """Find what the host has of what a plan may show; for a second what was found last is good enough."""
    last = None if afresh else _found.get(project.path)
    if last is not None and last[0] is project and time.monotonic() - last[1] < _PLACES_S:
        return last[2]
    places = _find_places(project)
    _found[project.path] = (project, time.monotonic(), places)
    return places


def _find_places(project: Project) -> Places:
    home = project.home.path
    configs = read_git_configs(home)
    named = project.home
    if configs:
        pairs: list[tuple[str, str]] = []
        for text in configs:
            try:
                pairs += parse_gitconfig(text.decode("utf-8", "replace"))
            except UsageError:
                continue  # git itself will complain about it; a sandbox without an identity does no harm
        named = named.replace(identity=filter_identity(tuple(pairs)))
    places = find_places(
        project=project.path,
        state=project.locations.state,
        playground=playground_dir(project.locations.data, project.path),
        policy=project.means.policy,
        home=named,
        toolchains=toolchain_candidates(home, os.environb.get(b"PATH", b"")),
        caches=cache_candidates(home),
        secrets=secret_paths(home, os.getuid()),
        own=(project.locations.config, project.locations.data),
    )
    if project.means.policy.view == "rootfs":
        from unspill.sandbox.rootfs_use import base_of  # lazy: rootfs

        places = places.replace(rootfs=base_of(project))
    if project.means.policy.tmp == "persistent":
        places = places.replace(tmp=tmp_dir(project.locations.data, project.path, project.row.name))
    if project.means.policy.home:
        home_dir = lasting_home_dir(project.locations.data, project.means.policy.home)
        places = places.replace(lasting_home=home_dir)
    return places


def make_plan(
    project: Project,
    spec: RunSpec,
    places: Places,
    stacks: tuple[Stack, ...],
    caches: tuple[CacheLayer, ...],
    rootfs_layers: tuple[CacheLayer, ...] = (),
) -> Plan:
    """Return the whole sandbox of one run.

    Raises:
        UnspillError: as `build_plan`.
        HostError: unspill does not know this machine's system calls, or container mode makes no sandbox.
    """
    project.means.check_sandbox()
    if project.means.engine is None:
        raise HostError("container mode has no sandbox", remedy="`unspill doctor` shows what is missing here.")
    base = places.rootfs
    given = PlanInput(
        policy=project.means.policy.replace(limits=spec.limits),
        facts=project.means.facts,
        places=places,
        engine=project.means.engine,
        stacks=stacks,
        caches=caches if base is None else (),
        rootfs_layers=() if base is None else rootfs_layers,
        argv=spec.argv,
        cwd=spec.cwd,
        filter=build_filter(os.uname().machine, project.means.policy.profile),
        environ=tuple(os.environb.items()),
        extra_environ=spec.environ,
        command_file=spec.script,
        network=_plan_network(project, is_granted=spec.network),
        uid=0 if base is not None and project.means.policy.rootfs_writable else None,
        gid=os.getgid(),
    )
    plan = build_plan(given)
    if plan.skeleton:
        make_skeleton(plan.skeleton)
    return plan


def _plan_network(project: Project, *, is_granted: bool) -> NetworkPlan:
    """Return what a run reaches: what its policy names, and what was granted to this one command."""
    network = project.means.policy.network
    if is_granted and network.mode == "host":
        return HostNetwork(resolver_file=_find_resolver_file())
    if not is_granted and not network.hosts and not network.ask:
        return NoNetwork()
    from unspill.policy.hosts import parse_rules  # lazy: proxy

    # What can't be understood is refused before anything is started
    parse_rules(network.hosts)
    return ProxyNetwork(
        hosts=network.hosts,
        ask=network.ask,
        asking_s=project.means.policy.permissions.wait_s if network.ask else 0.0,
        public=is_granted,
        up_bytes=network.up_bytes,
        down_bytes=network.down_bytes,
    )


def _find_resolver_file() -> bytes:
    """Return where /etc/resolv.conf really is, nothing if it is nowhere."""
    found = os.path.realpath(_RESOLVER_FILE)
    return found if os.path.isfile(found) else b""


class RunSpec(Record):
    """What a caller wants of one run: the command, what becomes of its changes, and how the caller follows it.

    `argv` is a shell's where a text was given. `network` was granted to this command, for this time; so were the
    secrets in `revealed`, by path. `program` is what `identify_program` said of it when something was granted, None
    where nothing was. `broker` is where hosts are asked for while it runs. `on_interrupted` is told of runs of the
    sandbox without a result: earlier ones that were found, or this one. `on_change` is told what was applied. `live` is
    the sandbox that it joins, where it is to have none of its own; there it can have a `terminal` and open `ports`.
    `alone`: no other run of the sandbox goes on beside it. `on_wait` is told what it waits for.
    """

    argv: tuple[bytes, ...]
    script: bytes | None
    cwd: bytes
    environ: tuple[tuple[bytes, bytes], ...]
    limits: Limits
    stdin: bytes | int | None = None
    after: After = "apply"
    after_cancel: After = "hold"
    on_event: Callable[[Event], None] | None = None
    on_interrupted: Callable[[tuple[Run, ...]], None] | None = None
    on_change: Callable[[Operation], None] | None = None
    cancel_fd: int | None = None
    may_fork: bool = False
    network: bool = False
    revealed: tuple[bytes, ...] = ()
    program: str | None = None
    broker: Broker | None = None
    live: LiveSandbox | None = None
    terminal: AttachedTerminal | None = None
    alone: bool = False
    on_wait: Callable[[str], None] | None = None
    ports: Ports | None = None


def make_spec(
    project: Project,
    command: Command,
    working_dir: PathLike | None,
    env: Mapping[str, str] | None,
    limits: Limits | None,
    *,
    is_plain: bool = False,
) -> RunSpec:
    """Check what a caller asks for; `is_plain` if it is to run without a sandbox.

    Raises:
        UsageError: the command is empty or has a NUL, or the directory is none.
    """
    # In view `rootfs` that finds the rootfs, and makes it if need be, before anybody is locked out
    shell = _shell(project)
    if isinstance(command, str | bytes):
        text = _encode(command)
        script = text if len(text) > _LONGEST_ARGUMENT else None
        # A shell takes what begins like an option for one; a space before it means nothing
        argv: tuple[bytes, ...] = (shell, b"-c", b" " + text if text.startswith((b"-", b"+")) else text)
        is_empty = not text.strip()
    else:
        argv = tuple(map(_encode, command))
        script = _script_of_words(argv)
        is_empty = not argv or not argv[0]
    if is_empty:
        raise UsageError("Command cannot be empty")
    if any(b"\0" in word for word in argv):
        raise UsageError("the command contains NUL")
    given = None if working_dir is None else os.fsdecode(working_dir)
    return RunSpec(
        argv=argv,
        script=script,
        cwd=checked_working_dir(project, given, is_plain=is_plain or project.means.engine is None),
        environ=tuple((_encode(name), _encode(value)) for name, value in (env or {}).items()),
        limits=project.means.policy.limits if limits is None else limits,
    )


def _shell(project: Project) -> bytes:
    """Return what runs a text: /bin/sh of this host, or the best shell that the rootfs has."""
    if project.means.policy.view != "rootfs" or project.means.engine is None:
        return b"/bin/sh"

    base = get_places(project).rootfs
    return b"/bin/sh" if base is None else base.shell


def _encode(word: PathLike) -> bytes:
    try:
        return os.fsencode(word)
    except UnicodeEncodeError:
        raise UsageError(f"not a text: {word!a}", remedy="Give bytes where it is not Unicode.") from None


def _script_of_words(argv: tuple[bytes, ...]) -> bytes | None:
    """Return a script that runs a command of more words than bwrap takes, None where it takes them."""
    longest = max(map(len, argv), default=0)
    if longest > _LONGEST_ARGUMENT or sum(map(len, argv)) + _POINTER * len(argv) > _LARGEST_COMMAND:
        raise UsageError("the command is longer than the kernel allows", remedy="Pass it through stdin or a file.")
    if len(argv) <= _MOST_WORDS:
        return None
    return b"exec " + b" ".join(b"'" + word.replace(b"'", b"'\\''") + b"'" for word in argv) + b"\n"


def playground_of(project: Project, *, is_plain: bool = False) -> bytes:
    """Return where commands find the playground; without a sandbox that is its real place, made if there is none.

    Raises:
        StoreError: it can't be made, or is not ours.
    """
    if is_plain:
        return playground_dir(project.locations.data, project.path)
    return playground_inside(project.means.policy.view, project.home.path)


def checked_working_dir(project: Project, working_dir: str | None, *, is_plain: bool = False) -> bytes:
    """Return the working directory; one of a root must exist there unless an earlier run may have made it.

    Of all other paths only the sandbox knows what is there, so bwrap has the last word: the host's own answer would
    tell a model which files exist where it can't look.

    Raises:
        UsageError: with the text that a model is shown.
    """
    view, roots = project.means.policy.view, project.roots
    is_real = is_plain and (working_dir == PLAYGROUND_WORKING_DIR or not roots)
    playground = playground_of(project, is_plain=is_real)
    # Without a project that is where a command starts
    top = to_inside(project.path, view, roots) if roots else playground
    resolved = resolve_working_dir(working_dir, top, playground)
    if working_dir is not None and working_dir.startswith("/"):
        # A caller may know the project by its path on the host; no model has to learn that
        resolved = to_inside(resolved, view, roots)
    on_host = to_host(resolved, view, roots)
    is_in_root = any(on_host == root or on_host.startswith(root + b"/") for root in roots)
    if not is_in_root or os.path.isdir(on_host) or project.store.layers.sealed_ids(project.row.id):
        return resolved
    is_missing = not os.path.lexists(on_host)
    raise UsageError(missing_text(resolved) if is_missing else not_a_directory_text(resolved))
