# SPDX-License-Identifier: Apache-2.0
"""Which runtimes and tools a rootfs has: one run inside it asks, nothing is concluded from the host.

What is inside may be a stranger's, and what is told goes into prompts: of what the run prints only names of our own
table, directories of our own list and numbers survive.

MERGED
[tools_text] What a rootfs offers, in words for an agent's prompt: short, and nothing in it that a stranger could have
written.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsError
from unspill.model.policy import (
    KIB,
    MIB,
    Limits,
    Policy,
)
from unspill.model.run import Exited
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.model.policy import Tmp
    from unspill.model.rootfs import Rootfs
    from unspill.sandbox.locations import Locations


RUNTIMES = ("python3", "node", "perl", "ruby", "php", "java", "go", "rustc", "lua")
INSTALLERS = ("apk", "apt-get", "dnf", "pacman", "pip", "npm", "cargo", "gem")
OTHERS = (
    *("bash", "sh", "busybox", "git", "gcc", "g++", "clang", "make", "cmake", "curl", "wget", "ssh", "rsync"),
    *("tar", "gzip", "bzip2", "xz", "zstd", "zip", "unzip", "jq", "awk", "sed", "grep", "find", "xargs", "diff"),
    *("patch", "rg", "sqlite3", "openssl", "vi"),
)
# Those that do not tell by `--version`; nothing: they have no version, or would wait for something
_ASKED = {
    "go": "version",
    "java": "-version",
    "lua": "-v",
    "unzip": "-v",
    "perl": "-v",
    "ssh": "-V",
    "openssl": "version",
}
_UNASKED = ("sh", "find", "xargs", "vi", "gzip", "bzip2", "busybox", "xz", "zip", "sqlite3")
_DIRECTORIES = tuple(f"{top}/{name}" for top in ("/usr/local", "/usr", "") for name in ("sbin", "bin"))
_SYSTEMS = ("alpine", "debian", "ubuntu", "fedora", "arch", "opensuse-leap", "rocky", "almalinux", "void", "wolfi")
_LIBCS = ("musl", "glibc")
_NAME = "tools"
_MOST_LINES = 256
_LONGEST_LINE = 512
_LONGEST_VERSION = 32
_LIMITS = Limits(
    wall_s=30.0,
    output_bytes=1 * MIB,
    kept_bytes=64 * KIB,
    layer_bytes=16 * MIB,
    layer_entries=1000,
    # The kernel's own bound: what is on the disk is only looked at now and then
    file_bytes=1 * MIB,
    tmp_bytes=16 * MIB,
    processes=64,
)

_SCRIPT = """\
PATH={path}; LC_ALL=C; export PATH LC_ALL; nl='
'
ask() {{
    case $1 in {unasked}) return ;; {cases} *) set -- "$1" "$2" --version ;; esac
    "$2" "$3" </dev/null 2>&1
}}
for name in {names}; do
    place=
    # Not by `command -v`: a busybox may say that all its applets are built in
    for top in {tops}; do [ -f "$top/$name" ] && [ -x "$top/$name" ] && place=$top/$name && break; done
    [ "$place" ] || continue
    said=$(ask "$name" "$place")
    said=${{said#"$nl"}}
    printf '%s\\t%s\\t%s\\n' "$name" "$place" "${{said%%"$nl"*}}"
done
for file in /lib/ld-musl-*; do [ -e "$file" ] && printf '@libc\\t-\\tmusl\\n'; done
for file in /lib/ld-linux* /lib64/ld-linux* /lib/*/ld-linux*; do
    [ -e "$file" ] && printf '@libc\\t-\\tglibc\\n' && break
done
if [ -r /etc/os-release ]; then
    while IFS= read -r line; do
        case $line in
            ID=*) printf '@system\\t-\\t%s\\n' "${{line#ID=}}" ;;
            VERSION_ID=*) printf '@release\\t-\\t%s\\n' "${{line#VERSION_ID=}}" ;;
        esac
    done </etc/os-release
fi
"""


class Tool(Record):
    """One program of a rootfs; the version is empty where it does not tell."""

    name: str
    path: str
    version: str = ""


class Tools(Record):
    """What a rootfs offers, and what a command finds around it. `text()` is for an agent's prompt."""

    rootfs: str
    arch: str
    tools: tuple[Tool, ...]
    system: str = ""
    release: str = ""
    libc: str = ""
    hosts: tuple[str, ...] = ()
    tmp: Tmp = "fresh"
    writable: bool = False
    mounts: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it in words."""

        return tools_text(self)


def ask_inside(rootfs: Rootfs, directory: bytes, policy: Policy, locations: Locations) -> Tools:
    """Run once inside a rootfs and return what it has. `policy` is the person's; `directory` is where every rootfs is.

    Raises:
        RootfsError: the run did not end by itself.
        HostError: this machine can't.
    """
    from unspill.layers.trees import remove_tree
    from unspill.sandbox.sandbox import Sandbox

    alone = Policy(
        view="rootfs",
        rootfs=rootfs.name,
        rootfs_dir=directory,
        toolchains=False,
        caches=False,
        after="discard",
        after_timeout="discard",
        limits=_LIMITS,
        engine=policy.engine,
        bwrap=policy.bwrap,
        allow_root=policy.allow_root,
    )
    project = _empty_project(locations.home)
    try:
        with Sandbox(project, name=_NAME, policy=alone) as sandbox:
            result = sandbox.run(["/bin/sh", "-c", script()])
    finally:
        _forget_playground(locations.data, project)
        _forget_rows(locations.state, project)
        remove_tree(project)
    if not isinstance(result.outcome, Exited):
        raise RootfsError(
            f"{rootfs.name} could not be asked what it has: {type(result.outcome).__name__}.",
            remedy="Look what a command does there: `unspill run -- sh`.",
        )
    said = result.stdout.kept().decode("utf-8", "replace")
    arch = os.uname().machine if rootfs.manifest is None else rootfs.manifest.key.arch
    return read_answer(said).replace(
        rootfs=rootfs.name,
        arch=arch,
        hosts=policy.network.hosts,
        tmp=policy.tmp,
        writable=policy.rootfs_writable,
        mounts=tuple(place.decode("utf-8", "backslashreplace") for place, _directory in policy.mounts),
    )


def script() -> str:
    """Return what is run inside: plain sh, and nothing but what a shell has itself."""
    cases = " ".join(f'{name}) set -- "$1" "$2" {asked} ;;' for name, asked in _ASKED.items())
    names = " ".join((*RUNTIMES, *INSTALLERS, *OTHERS))
    return _SCRIPT.format(
        path=":".join(_DIRECTORIES), tops=" ".join(_DIRECTORIES), names=names, unasked="|".join(_UNASKED), cases=cases
    )


def read_answer(said: str) -> Tools:
    """Return what a run told, of which nothing is believed that is not on our own lists."""
    tools: dict[str, Tool] = {}
    facts: dict[str, str] = {}
    known = frozenset((*RUNTIMES, *INSTALLERS, *OTHERS))
    for name, place, rest in _fields(said):
        if name in known and any(place == f"{directory}/{name}" for directory in _DIRECTORIES):
            tools.setdefault(name, Tool(name=name, path=place, version=version_in(rest)))
        elif name == "@libc" and rest in _LIBCS:
            # Of both it is glibc: a Debian may have musl for compiling
            facts["libc"] = rest
        elif name == "@system" and rest.strip("\"'") in _SYSTEMS:
            facts["system"] = rest.strip("\"'")
        elif name == "@release":
            facts["release"] = version_in(rest, is_short=True)
    order = (*RUNTIMES, *INSTALLERS, *OTHERS)
    found = Tools(rootfs="", arch="", tools=tuple(tools[name] for name in order if name in tools))
    return found.replace(**facts)


def _fields(said: str) -> Iterator[tuple[str, str, str]]:
    for line in said.split("\n")[:_MOST_LINES]:
        name, _, rest = line[:_LONGEST_LINE].partition("\t")
        place, _, rest = rest.partition("\t")
        yield name, place, rest


def version_in(line: str, *, is_short: bool = False) -> str:
    """Return the version in what a program printed: numbers with dots, one letter after them at most.

    `is_short`: a number without a dot is one, too.
    """
    import re

    # busybox calls itself what it is not
    if "not GNU" in line:
        return ""
    numbers = r"[0-9]{1,8}(?:\.[0-9]{1,8}){0,4}" if is_short else r"[0-9]{1,8}(?:\.[0-9]{1,8}){1,4}"
    found = re.search(rf"(?<![0-9.]){numbers}(?:[a-z][0-9]{{0,3}})?", line)
    return found[0] if found and len(found[0]) <= _LONGEST_VERSION else ""


def _forget_playground(data: bytes, project: bytes) -> None:
    """Remove what the rootfs wrote beside the project: nobody wants it, and it could be large."""
    from unspill.layers.lifecycle import playground_dir
    from unspill.layers.trees import remove_tree

    remove_tree(playground_dir(data, os.path.realpath(project)))


def _forget_rows(state: bytes, project: bytes) -> None:
    """Forget the sandbox and its one run: no other will ever have this project."""
    from unspill.layers.locks import lock_file, spill_dir
    from unspill.layers.trees import remove_tree
    from unspill.store.db import Store

    with Store.open(state) as store:
        row = store.sandboxes.find(os.path.realpath(project), _NAME)
        if row is None:
            return
        runs = [run.id for run in store.runs.latest(row.id, 1)]
        with store.transaction:
            store.runs.remove_all(runs)
            store.sandboxes.remove(row.id)
    for run in runs:
        remove_tree(spill_dir(state, run))
    for ending in (b"", b".use"):
        remove_tree(lock_file(state, row.id) + ending)


def _empty_project(home: bytes) -> bytes:
    """Return a new empty directory that a sandbox may have as its project, of which nobody else knows."""
    from tempfile import mkdtemp

    above = os.path.join(home, b".cache", b"unspill")
    try:
        os.makedirs(above, 0o700, exist_ok=True)
        return mkdtemp(prefix=b"tools-", dir=above)
    except OSError:
        return mkdtemp(prefix=b"unspill-tools-")


_PACKAGES = "/workspace/.packages"


def tools_text(tools: Tools) -> str:
    """Return the words."""

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
