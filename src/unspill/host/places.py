# SPDX-License-Identifier: Apache-2.0
"""What the host has: the directories that a plan is laid over, mounts, its own addresses, unspill's installation.

On the path of every run, hence few system calls. What a directory is good for is not decided here: the tables of
candidates come from the caller. A symlink among them counts only if it leads to another candidate. Nothing that a
sandbox asks for may lead back to an address of the host: a service that listens there is often meant for the person
only.

A command that can change our own program, or a directory that its Python imports from, gets out of its sandbox. What a
path leads to is not enough: a link on the way can be replaced just the same.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
import time

from unspill.errors import HostError, RootRefused
from unspill.model.plan import Home, Places
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Literal

    from unspill.model.policy import Policy

    Kind = Literal["program", "source", "imports"]


SYSTEM = (
    b"/usr",
    b"/etc",
    b"/bin",
    b"/sbin",
    b"/lib",
    b"/lib32",
    b"/lib64",
    b"/libx32",
    b"/opt",
    b"/nix",
    b"/gnu",
)
# They are the same in all namespaces: keys, and the shares and files that others have open by SMB
_OF_OTHERS = (b"/proc/keys", b"/proc/key-users", b"/proc/fs/cifs/DebugData", b"/proc/fs/cifs/open_files")
_GIT_CONFIGS = (b".config/git/config", b".gitconfig")
_GIT_CONFIG_BYTES = 256 * 1024
# The state of a socket, in /proc/net/tcp
_LISTENS = "0A"
_IPV4 = "/proc/thread-self/net/fib_trie"
_IPV6 = "/proc/thread-self/net/if_inet6"
_LOCAL = ("/32 host LOCAL",)

_MOST_LINKS = 40
_BARE_REPOSITORY = frozenset((b"HEAD", b"objects", b"refs"))
# Entries of one directory after which the clock is asked again
_TURN = 2048
_WHY = "Commands could change it, and it runs outside the sandbox."
_TEXTS: dict[Kind, tuple[str, str]] = {
    "program": (
        "unspill is installed inside it, at {place}. " + _WHY,
        "Install unspill elsewhere: with pipx, or in an environment made by `python3 -m venv ~/.venvs/unspill`.",
    ),
    "source": (
        "unspill runs from its source inside it, at {place}. " + _WHY,
        "To work on unspill itself, run a copy that is installed elsewhere, and not with `pip install -e`.",
    ),
    "imports": (
        "Python imports modules from {place}, where commands could put one that then runs outside the sandbox.",
        "Start it as `unspill` or with `python3 -P`. No PYTHONPATH and no .pth file may point into the project.",
    ),
}
_STARTED_INSIDE = (
    "This program imports modules from {place}, where commands could put one that it then runs outside the sandbox. "
    "Start it with `python3 -P`, and keep it outside of the project."
)


class WalkBounds(Record):
    """How far a walk goes: levels of directories, entries looked at, files found, and time."""

    depth: int
    entries: int
    found: int
    seconds: float


class NamedFiles(Record):
    """What a walk has found, by path from its top on, the nearest first; whether that is all of it."""

    paths: tuple[bytes, ...] = ()
    entries: int = 0
    is_whole: bool = True


class Mount(Record):
    """One line: `root` is the part of the filesystem that is seen at `point`."""

    root: bytes
    point: bytes
    kind: str
    options: bytes


def read_mounts() -> tuple[Mount, ...]:
    """Return every mount of this process's namespace, in the kernel's order: a later one covers an earlier one."""
    with open("/proc/self/mountinfo", "rb") as file:
        return tuple(map(parse_mount, file.read().splitlines()))


def parse_mount(line: bytes) -> Mount:
    """Read one line of mountinfo."""
    before, _, after = line.partition(b" - ")
    root, point = before.split(b" ", 5)[3:5]
    kind, _source, options = after.split(b" ", 2)
    return Mount(
        root=decode_octal(root), point=decode_octal(point), kind=kind.decode("ascii", "replace"), options=options
    )


def mount_points() -> tuple[bytes, ...]:
    """Return where anything is mounted, each path once, sorted."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = file.read().splitlines()
    return tuple(sorted({decode_octal(line.split(b" ", 5)[4]) for line in lines}))


def mounts_below(root: bytes) -> tuple[bytes, ...]:
    """Return the mount points strictly below a resolved directory, sorted."""
    prefix = root.rstrip(b"/") + b"/"
    return tuple(point for point in mount_points() if point.startswith(prefix) and point != prefix)


def filesystem_of(path: bytes) -> str:
    """Return the kind of filesystem that holds a path, as mountinfo calls it; empty if it can't be told."""
    resolved = os.path.realpath(path)
    best, kind = -1, ""
    try:
        mounts = read_mounts()
    except OSError:
        return ""
    for mount in mounts:
        is_above = resolved == mount.point or resolved.startswith(mount.point.rstrip(b"/") + b"/")
        if is_above and len(mount.point) >= best:
            best, kind = len(mount.point), mount.kind
    return kind


def decode_octal(text: bytes) -> bytes:
    r"""Undo the escapes of mountinfo: space, tab, newline and backslash are written as \040 and so on."""
    if b"\\" not in text:
        return text
    first, *parts = text.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in parts)


def find_places(
    *,
    project: bytes,
    state: bytes,
    playground: bytes,
    policy: Policy,
    home: Home,
    toolchains: Sequence[bytes] = (),
    caches: Sequence[bytes] = (),
    secrets: Sequence[bytes] = (),
    own: Sequence[bytes] = (),
    system: Sequence[bytes] = SYSTEM,
) -> Places:
    """Resolve the project and our own directories, and keep of the candidates those that exist.

    `toolchains` and `caches` are absolute candidates below the home directory, `secrets` are what view "host" masks
    (looked at only where they could show), `own` our configuration and data directories.

    Raises:
        RootRefused: the project is not there or is not a directory.
    """
    has_own_root = policy.view == "rootfs"
    found, links = ((), ()) if has_own_root else find_system(system)
    is_host_view = policy.view == "host"
    shown = (*policy.readable, *(source for _dest, source in policy.mounts))
    _directories, files, absent = sort_by_kind((*shown, *policy.hidden))
    # In view "sealed" a secret can only show below a readable path, or as root's in /etc
    shows_secrets = is_host_view or bool(shown) or os.getuid() == 0
    secret_directories, secret_files, _absent = sort_by_kind(map(os.path.realpath, secrets if shows_secrets else ()))
    led_to = find_linked_files(home.path, secret_directories, (project, *policy.roots))
    return Places(
        project=resolve_project(project),
        state=os.path.realpath(state),
        playground=os.path.realpath(playground),
        home=home.replace(
            toolchains=find_directories(home.path, toolchains) if policy.toolchains and not has_own_root else (),
            caches=find_directories(home.path, caches, owner=os.getuid()) if policy.caches and not has_own_root else (),
        ),
        system=found,
        links=links,
        top=find_other_tops((*found, *(dest for dest, _target in links))) if is_host_view else (),
        sockets=find_sockets((b"/",) if is_host_view else (*found, *shown)),
        mounted=mount_points(),
        secrets=secret_directories,
        secret_files=tuple(dict.fromkeys((*secret_files, *led_to))),
        files=files,
        absent=absent,
        aliases=find_aliases((*((path, path) for path in policy.readable), *policy.mounts)),
        own=tuple(path for path in map(os.path.realpath, own) if _mode_of(path)),
        files_of_others=find_files_of_others(),
        no_playground=(mode := _mode_of(os.path.join(home.path, b"playground"))) != 0 and not stat.S_ISDIR(mode),
    )


def find_linked_files(home: bytes, directories: Sequence[bytes], roots: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the files elsewhere in the home directory that links in these directories of it lead to.

    Tools for dotfiles keep the files themselves in a repository. What lies in a root is masked by its own rules.
    """
    found: dict[bytes, None] = {}
    for directory in directories:
        for path in _links_in(directory) if directory.startswith(home + b"/") else ():
            target = os.path.realpath(path)
            if target.startswith(home + b"/") and not _leads_into(target, [directory, *map(os.path.realpath, roots)]):
                found[target] = None
    return sort_by_kind(found)[1]


def _links_in(directory: bytes) -> list[bytes]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def find_files_of_others() -> tuple[bytes, ...]:
    """Return the files of /proc that this kernel has and that name what other users have."""
    return tuple(path for path in _OF_OTHERS if _mode_of(path))


def find_aliases(shown: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the places at which a path is shown that has a link in it, and where that leads."""
    real = ((place, os.path.realpath(path), path) for place, path in shown)
    return tuple((place, leads) for place, leads, path in real if leads != path)


def resolve_project(project: bytes) -> bytes:
    """Return the real path of a directory.

    Raises:
        RootRefused: there is none at that path.
    """
    resolved = os.path.realpath(project)
    try:
        mode = os.lstat(resolved).st_mode
    except OSError as error:
        raise RootRefused(f"{os.fsdecode(project)}: {error.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise RootRefused(f"{os.fsdecode(project)}: not a directory")
    return resolved


def find_system(names: Sequence[bytes]) -> tuple[tuple[bytes, ...], tuple[tuple[bytes, bytes], ...]]:
    """Return which of the top-level names are directories, and which are links into one of those."""
    directories: list[bytes] = []
    links: list[tuple[bytes, bytes]] = []
    for name in names:
        mode = _mode_of(name)
        if stat.S_ISDIR(mode):
            directories.append(name)
        elif stat.S_ISLNK(mode):
            links.append((name, os.readlink(name)))
    kept = [(name, target) for name, target in links if _leads_into(os.path.join(b"/", target), directories)]
    return tuple(directories), tuple(kept)


def find_other_tops(known: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return every other directory at the top of the host."""
    with os.scandir(b"/") as entries:
        names = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return tuple(sorted(name for name in names if name not in known))


def find_directories(home: bytes, candidates: Sequence[bytes], *, owner: int | None = None) -> tuple[bytes, ...]:
    """Return the candidates that are directories, in their order, each once and by its real path.

    A candidate that a symlink leads to is kept only if it is another candidate, or below one: a link must not show
    a part of the home directory that no table names. With `owner`, only directories of that uid: what belongs to
    somebody else can't be copied up.
    """
    tops: dict[bytes, bool] = {}
    found: dict[bytes, None] = {}
    start = len(home) + 1
    for candidate in candidates:
        slash = candidate.find(b"/", start)
        top = candidate if slash < 0 else candidate[:slash]
        # Most candidates are not there, and one look at ~/.cargo answers for all below it
        exists = tops.get(top)
        if exists is None:
            exists = tops[top] = _mode_of(top) != 0
        if exists and _mode_of(candidate):
            resolved = os.path.realpath(candidate)
            if _is_allowed(home, candidate, resolved, candidates) and _is_directory_of(resolved, owner):
                found[resolved] = None
    return tuple(found)


def find_venvs(path: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return the virtual environments whose programs are on `PATH`, each with the text of the file that marks it.

    One behind a link is left out: the link may lead to where a command can write.
    """
    found = {}
    for entry in path.split(b":"):
        above, name = os.path.split(os.path.normpath(entry)) if entry.startswith(b"/") else (b"", b"")
        if name == b"bin" and (text := _read_regular(above + b"/pyvenv.cfg")) and os.path.realpath(above) == above:
            found[above] = text
    return tuple(found.items())


def find_home(uid: int, home_variable: bytes | None) -> Home:
    """Return the home directory and name of a user.

    HOME is taken only where the user database agrees, or where the directory it names is the user's own.

    Raises:
        HostError: neither names a directory.
    """
    try:
        entry = pwd.getpwuid(uid)
        recorded, user = os.fsencode(entry.pw_dir), entry.pw_name
    except KeyError:
        recorded, user = b"", str(uid)
    for path in (home_variable or b"", recorded):
        if path.startswith(b"/") and (path == recorded or _is_directory_of(os.path.realpath(path), uid)):
            resolved = os.path.realpath(path)
            if _is_directory_of(resolved, None) and resolved != b"/":
                return Home(path=resolved, user=user)
    raise HostError(f"The user {user} has no home directory.", remedy="Set HOME to a directory that you own.")


def find_programs(tree: bytes, directories: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return which programs lie in directories of a tree. One behind a link is left out: it may lead elsewhere."""
    inside = [tree + directory.encode() for directory in directories if not _is_behind_link(tree, directory.encode())]
    return tuple(name for name in names if any(os.path.lexists(b"%b/%b" % (at, name.encode())) for at in inside))


def _is_behind_link(tree: bytes, directory: bytes) -> bool:
    parts = directory.split(b"/")
    return any(os.path.islink(tree + b"/".join(parts[:count])) for count in range(2, len(parts) + 1))


def read_git_configs(home: bytes) -> tuple[bytes, ...]:
    """Return the texts of the person's git configuration in the order git reads them; nothing is included."""
    texts = []
    for name in _GIT_CONFIGS:
        resolved = os.path.realpath(os.path.join(home, name))
        if resolved.startswith(home + b"/"):
            texts.append(_read_regular(resolved))
    return tuple(text for text in texts if text)


def find_sockets(below: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the paths of Unix sockets that somebody has open, that are there and that lie below a directory."""
    with open("/proc/net/unix", "rb") as file:
        text = file.read()
    # A desktop has a thousand of them, and hardly ever one that would be shown
    wanted = tuple(directory.rstrip(b"/") + b"/" for directory in below if b" " + directory in text)
    if not wanted:
        return ()
    # Number, RefCount, Protocol, Flags, Type, St, Inode, Path
    columns = (line.split(None, 7) for line in text.splitlines()[1:])
    paths = {column[7] for column in columns if len(column) == 8 and column[7].startswith(wanted)}
    return tuple(sorted(path for path in paths if stat.S_ISSOCK(_mode_of(path))))


def find_named(top: bytes, names: frozenset[bytes], not_entered: frozenset[bytes], bounds: WalkBounds) -> NamedFiles:
    """Find what is no directory and has one of some names, below a directory but not right in it.

    Follows no link, enters no other filesystem and no git repository, opens no file. Level by level, so that bounds
    cut off what is deepest.
    """
    walk = _NamedWalk(top, names, not_entered, bounds)
    return NamedFiles(paths=tuple(walk.run()), entries=walk.entries, is_whole=not walk.is_cut)


class _NamedWalk:
    """One walk, and how much of its bounds is used up."""

    def __init__(self, top: bytes, names: frozenset[bytes], not_entered: frozenset[bytes], bounds: WalkBounds) -> None:
        self._top, self._names, self._not_entered, self._bounds = top, names, not_entered, bounds
        self._until = time.monotonic() + bounds.seconds
        self.entries = 0
        self.is_cut = False

    def run(self) -> list[bytes]:
        found: list[bytes] = []
        level = [b""]
        try:
            device = os.lstat(self._top).st_dev
            for _ in range(self._bounds.depth + 1):
                below: list[bytes] = []
                for here in level:
                    files, directories = self._look(self._top + b"/" + here if here else self._top, device)
                    prefix = here + b"/" if here else b""
                    found += [prefix + name for name in files] if here else []
                    below += [prefix + name for name in directories]
                    if self._is_over(len(found)):
                        return sorted(found, key=_by_depth)[: self._bounds.found]
                level = below
        except OSError:
            level = [b""]
        self.is_cut = bool(level)
        return sorted(found, key=_by_depth)

    def _look(self, path: bytes, device: int) -> tuple[list[bytes], list[bytes]]:
        """Return the files of a directory that have one of the names, and the directories to go into."""
        files: list[bytes] = []
        directories: list[bytes] = []
        marks = 0
        try:
            status = os.lstat(path)
            if not stat.S_ISDIR(status.st_mode) or status.st_dev != device:
                return [], []
            with os.scandir(path) as entries:
                for entry in entries:
                    self.entries += 1
                    if not self.entries % _TURN and self._is_over(0):
                        break
                    name = entry.name
                    marks += name in _BARE_REPOSITORY
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(name)
                    elif name in self._names:
                        files.append(name)
        except OSError:
            # Somebody removes it meanwhile, or it is not ours to read: commands can't read it either
            return [], []
        if marks == len(_BARE_REPOSITORY):
            return [], []
        return files, [name for name in directories if name not in self._not_entered]

    def _is_over(self, found: int) -> bool:
        bounds = self._bounds
        is_over = self.entries >= bounds.entries or found > bounds.found or time.monotonic() > self._until
        self.is_cut = self.is_cut or is_over
        return is_over


def _by_depth(path: bytes) -> tuple[int, bytes]:
    return path.count(b"/"), path


def sort_by_kind(paths: Iterable[bytes]) -> tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]]:
    """Return which paths are directories, which are files and which are not there; links are followed.

    A socket or FIFO counts as not there: bound into a sandbox, it would still lead to the host.
    """
    kinds: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    for path in paths:
        try:
            mode = os.stat(path).st_mode
        except OSError:
            kinds[2].append(path)
        else:
            kinds[0 if stat.S_ISDIR(mode) else 1 if stat.S_ISREG(mode) else 2].append(path)
    return tuple(kinds[0]), tuple(kinds[1]), tuple(kinds[2])


def _is_allowed(home: bytes, candidate: bytes, resolved: bytes, candidates: Sequence[bytes]) -> bool:
    if resolved == candidate:
        return True
    return resolved.startswith(home + b"/") and _leads_into(resolved, candidates)


def _leads_into(path: bytes, directories: Sequence[bytes]) -> bool:
    return any(path == directory or path.startswith(directory + b"/") for directory in directories)


def _is_directory_of(path: bytes, owner: int | None) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and (owner is None or found.st_uid == owner)


def _mode_of(path: bytes) -> int:
    """Return the mode of what is at a path, 0 if nothing is."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _read_regular(path: bytes) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _GIT_CONFIG_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def listening_ports(pid: int) -> frozenset[int]:
    """Return the TCP ports that somebody listens on in the network of a process; nothing where that can't be read."""
    found: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            text = _read(f"/proc/{pid}/net/{name}")
        except OSError:
            continue
        for line in text.splitlines()[1:]:
            words = line.split(None, 4)
            if len(words) > 3 and words[3] == _LISTENS:
                found.add(int(words[1].rpartition(":")[2], 16))
    return frozenset(found)


def own_addresses() -> frozenset[bytes]:
    """Return the packed addresses; a kernel without IPv6 has none of that kind.

    Raises:
        OSError: the lists can't be read: then nothing can be checked against them.
        ValueError: they are none of the kernel's.
    """
    found = parse_fib_trie(_read(_IPV4))
    try:
        found += parse_if_inet6(_read(_IPV6))
    except FileNotFoundError:
        return frozenset(found)
    return frozenset(found)


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def parse_fib_trie(text: str) -> list[bytes]:
    """Return the local IPv4 addresses: leaves of the tree whose route is `/32 host LOCAL`."""
    found = []
    leaf = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "|--":
            leaf = words[1]
        elif line.strip() in _LOCAL and leaf:
            found.append(bytes(int(part) for part in leaf.split(".")))
    return found


def parse_if_inet6(text: str) -> list[bytes]:
    """Return the IPv6 addresses: the first word of each line, 32 digits."""
    return [bytes.fromhex(line.split()[0]) for line in text.splitlines() if line.strip()]


def own_words() -> list[str]:
    """Return how this program is started, whatever the PATH of a shell is and whatever modules lie where it stands."""
    # PYTHONPATH may lead into a project, and an empty part of it does: what lies there would be run before ours
    isolated = [sys.executable, "-E", "-P"]
    try:
        program = os.path.abspath(sys.argv[0]) if sys.argv else ""
    except FileNotFoundError:
        # The working directory is gone, and with it whatever a relative name meant
        program = ""
    is_script = os.path.basename(program) == "unspill" and os.path.isfile(program) and os.access(program, os.X_OK)
    return [*isolated, program] if is_script else [*isolated, "-m", "unspill"]


def standby_words() -> list[str]:
    """Return how this program is started by way of its standby, which takes a fraction of the time."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [sys.executable, "-IS", os.path.join(package, "standby", "client.py")]


def check_own_place(roots: Sequence[bytes]) -> str:
    """Refuse a root in which commands could change unspill itself, or what its Python imports.

    The directory that Python looks into first, because a program was started in it or from it, is the program's own:
    like all source of a project it is the person's to look at. It is a reason to warn, unless the program is ours.

    Returns:
        The warning, or nothing.

    Raises:
        RootRefused: with the place, and where to install it instead.
    """
    walk = _Walk(roots)
    for kind, path in _own_paths():
        found = walk.find_inside(os.fsencode(path))
        if found is not None:
            root, place = (shown.decode("utf-8", "backslashreplace") for shown in found)
            reason, remedy = _TEXTS[kind]
            raise RootRefused(f"{root} can't be a root: {reason.format(place=place)}", remedy=remedy)
    first = _first_of_a_program()
    found = None if first is None else walk.find_inside(os.fsencode(_absolute(first)))
    return "" if found is None else _STARTED_INSIDE.format(place=found[1].decode("utf-8", "backslashreplace"))


def _own_paths() -> Iterator[tuple[Kind, str]]:
    """Yield all that this program and its next start are made of."""
    for path in dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)):
        yield "program", path
    for word in own_words():
        if word and word.startswith("/"):
            yield "program", word
    yield "source", os.path.dirname(os.path.dirname(__file__))
    for path in sys.path if _first_of_a_program() is None else sys.path[1:]:
        if isinstance(path, str):
            yield "imports", _absolute(path)
    if sys.pycache_prefix:
        yield "imports", sys.pycache_prefix
    site = sys.modules.get("site")
    if getattr(site, "ENABLE_USER_SITE", False) and (user_site := getattr(site, "USER_SITE", None)):
        # Python leaves it out while it does not exist; the next start would find it
        yield "imports", user_site


def _first_of_a_program() -> str | None:
    """Return where Python imports from because of how a program of somebody else was started, if it does."""
    if sys.flags.safe_path or not sys.path or not isinstance(sys.path[0], str):
        return None
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if getattr(spec, "name", "") == "unspill.__main__" else sys.path[0]


def _absolute(path: str) -> str:
    if path.startswith("/"):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except OSError:
        return "/"  # nothing is imported from a directory that is gone


class _Walk:
    """Follows paths name by name. Roots are known by inode, so a bind mount or another spelling hides none."""

    def __init__(self, roots: Sequence[bytes]) -> None:
        self._roots: dict[tuple[int, int], bytes] = {}
        for root in roots:
            try:
                found = os.stat(root)
            except OSError:
                continue
            self._roots[found.st_dev, found.st_ino] = root
        # Places that are no links, and the root that each is
        self._known: dict[bytes, bytes | None] = {b"": None}

    def find_inside(self, path: bytes) -> tuple[bytes, bytes] | None:
        """Return the first place on the way of an absolute path that lies in a root, after that root."""
        here, names = path, []
        while here not in self._known:
            here, _slash, name = here.rpartition(b"/")
            names.append(name)
        links = 0
        while names and links <= _MOST_LINKS:
            name = names.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                here = here.rpartition(b"/")[0]
                continue
            root = self._known[here]
            place = here + b"/" + name
            if root is not None:
                return root, place
            target = self._step(place)
            if target is None:
                here = place
                continue
            links += 1
            here = b"" if target.startswith(b"/") else here
            names += target.split(b"/")[::-1]
        root = self._known[here]
        return None if root is None else (root, here)

    def _step(self, place: bytes) -> bytes | None:
        """Return what a link leads to; remember of anything else which root it is."""
        if place in self._known:
            return None
        root = target = None
        try:
            found = os.lstat(place)
            root = self._roots.get((found.st_dev, found.st_ino))
            target = os.readlink(place) if stat.S_ISLNK(found.st_mode) else None
        except OSError:
            pass  # what is not there could be made
        if target is None:
            self._known[place] = root
        return target
