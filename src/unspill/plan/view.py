# SPDX-License-Identifier: Apache-2.0
"""What a command sees: the mounts that every sandbox has, where things are inside, and the git configuration it gets.

The root itself is bwrap's empty tmpfs, so what is not named here does not exist inside. Each directory of the host is
shown on its own path, but for view `rootfs`, which has a tree of its own (`plan.rootfs`) and the project at
`/workspace`. Of the mounts that cover a path the deepest decides, of two at one place the later. Nothing is mounted
inside a root, a cache or the playground, whose content may be what an earlier command left there.

The git configuration has the person's identity and harmless settings by an allow table: a key that a later git makes
dangerous is not in it. The person's own file is read here, so that git never runs on the host; includes are not
followed, nothing is expanded.
"""

from __future__ import annotations

import posixpath

from unspill.errors import SandboxUnavailable, UsageError
from unspill.model.plan import (
    Bind,
    Dev,
    File,
    Overlay,
    Point,
    Proc,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from unspill.model.policy import MIB
from unspill.policy.defaults import NEVER_SHOWN, SOCKET_FREE
from unspill.policy.paths import LONGEST_PATH, contains, lies_beneath, normalise, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from unspill.model.plan import (
        CacheLayer,
        MountOp,
        Places,
        Plan,
        PlanInput,
    )
    from unspill.model.policy import View


WORKSPACE = b"/workspace"
PLAYGROUND = b"/playground"
LASTING_HOME = b"/run/unspill-home"
PLAYGROUND_WORKING_DIR = "playground"
# The git identity, where HOME is no fresh directory
GIT_CONFIG_FILE = b"/run/unspill-gitconfig"
_MOST_LINKS = 8
_SHELL = b"/bin/sh"
_STDERR = 2
_FRESH_HOME = "a home directory for this run only"
# Says on its descriptor why the command can't be started, and closes that before it becomes the command
_SCRIPT = (
    b'cd -- "$1" 2>/dev/null || { if [ -d "$1" ]; then echo closed; elif [ -e "$1" ]; then echo file; '
    b"else echo none; fi >&%(fd)d; exit 125; }; shift; "
    b'case "$1" in */*) [ -f "$1" ] && [ -x "$1" ];; -*) false;; *) command -v "$1" >/dev/null;; esac || '
    b'{ if [ -e "$1" ]; then echo mode; else echo program; fi >&%(fd)d; exit 125; }; '
    b'%(close)sexec "$@"'
)

ALLOWED_KEYS = frozenset(
    """
    user.name user.email author.name author.email committer.name committer.email
    init.defaultbranch
    core.autocrlf core.eol core.safecrlf core.quotepath core.abbrev
    core.precomposeunicode core.whitespace core.commentchar
    color.ui column.ui
    advice.detachedhead advice.addignoredfile advice.skippedcherrypicks
    branch.autosetuprebase branch.autosetupmerge branch.sort
    commit.verbose commit.cleanup
    diff.algorithm diff.colormoved diff.context diff.mnemonicprefix diff.noprefix diff.renames diff.renamelimit
    fetch.prune fetch.prunetags
    log.date log.decorate log.abbrevcommit log.follow
    merge.conflictstyle merge.ff merge.renames merge.renamelimit
    pull.rebase pull.ff push.default push.autosetupremote push.followtags
    rebase.autosquash rebase.autostash rebase.updaterefs
    rerere.enabled rerere.autoupdate
    status.short status.branch status.showuntrackedfiles
    tag.sort
    """.split()
)
_SPACES = " \t\r"
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}
SHARED_MEMORY_BYTES = 64 * MIB
RUN_BYTES = 64 * MIB
STICKY = 0o1777
# Laid over the home directory that view `host` shows, which has no place for the playground
_SKELETON, _PLAYGROUND = b"/skeletons/home", b"playground"
_NOT_READABLE = (b"/dev", b"/proc", b"/run", b"/sys", b"/tmp", b"/var/tmp")
_MASK_BYTES = 4096


def to_inside(path: bytes, view: View, roots: Sequence[bytes]) -> bytes:
    """Return where a path of the host is seen in a sandbox, if it is seen at all.

    The first root is the one that holds the project; without a project there is none.
    """
    if view == "rootfs" and roots and contains(roots[0], path):
        return WORKSPACE + path[len(roots[0]) :]
    return path


def to_host(path: bytes, view: View, roots: Sequence[bytes]) -> bytes:
    """Return which path of the host is seen at a path in a root; others are returned as they are."""
    if view == "rootfs" and roots and contains(WORKSPACE, path):
        return roots[0] + path[len(WORKSPACE) :]
    return path


def playground_inside(view: View, home: bytes) -> bytes:
    """Return where the playground is; it never lies in a root."""
    return PLAYGROUND if view == "rootfs" else home + b"/playground"


def playground_taken(view: View, home: bytes, roots: Sequence[bytes]) -> str:
    """Tell which root is in the place of the playground, "" where none is."""
    dest = playground_inside(view, home)
    if view == "rootfs":
        return ""
    root = next((root for root in roots if contains(dest, root) or contains(root, dest)), None)
    return "" if root is None else f"the root {show(root)} is in its place"


def resolve_working_dir(working_dir: str | None, project: bytes, playground: bytes) -> bytes:
    """Return the absolute working directory; whether it exists is checked elsewhere.

    None or an empty string is the project, the word `playground` is that one, anything else that is not absolute is
    relative to the project.

    Raises:
        UsageError: no path can be like that.
    """
    if not working_dir:
        return project
    if working_dir == PLAYGROUND_WORKING_DIR:
        return playground
    path = working_dir.encode("utf-8", "surrogateescape")
    try:
        resolved = normalise(posixpath.join(project, path))
    except ValueError as error:
        raise UsageError(f"Not a working directory: {show(path[:LONGEST_PATH])} ({error}).") from error
    if len(resolved) > LONGEST_PATH:
        raise UsageError(
            f"Not a working directory: {show(path[:100])}... ({len(resolved)} bytes, longer than any path)."
        )
    return resolved


def missing_text(working_dir: bytes) -> str:
    """Return what a model is told if the directory is not there."""
    return f"ERROR: Working directory does not exist: {show(working_dir)}"


def not_a_directory_text(working_dir: bytes) -> str:
    """Return what a model is told if it is something else."""
    return f"ERROR: Working directory is not a directory: {show(working_dir)}"


def find_cover(operations: Iterable[MountOp], path: bytes) -> MountOp | None:
    """Return the operation that decides what is at `path`, None where only bwrap's empty root is."""
    cover: MountOp | None = None
    for operation in operations:
        if not path.startswith(operation.dest) or isinstance(operation, ReadOnly):
            continue
        if contains(operation.dest, path) and (cover is None or contains(cover.dest, operation.dest)):
            cover = operation
    return cover


def follow_links(operations: Sequence[MountOp], path: bytes) -> tuple[bytes, MountOp | None] | None:
    """Return where a path leads through links that the plan makes, and what decides there; None if there is no end."""
    for _ in range(_MOST_LINKS):
        cover = find_cover(operations, path)
        if not isinstance(cover, Symlink):
            return path, cover
        target = posixpath.join(posixpath.dirname(cover.dest), cover.target)
        path = normalise(target + path[len(cover.dest) :])
    return None


def is_shown(operations: Iterable[MountOp], path: bytes) -> bool:
    """Tell whether the host's own file or directory at `path` is seen there, through links that the plan makes."""
    found = follow_links(tuple(operations), path)
    cover = None if found is None else found[1]
    match cover:
        case Bind():
            return cover.source == cover.dest
        case Overlay():
            return cover.lowers[-1] == cover.dest
    return False


def is_writable_mount(operation: MountOp) -> bool:
    """Tell whether earlier runs may have left anything there, symlinks included."""
    match operation:
        case Bind():
            return operation.writable
        case Overlay():
            return operation.upper is not None
    return False


def is_written(operation: MountOp) -> bool:
    """Tell whether what is seen there may be a command's work, though this run may only read it."""
    return is_writable_mount(operation) or (isinstance(operation, Overlay) and operation.written)


def check_no_mounts_beneath_roots(operations: Iterable[MountOp]) -> None:
    """Make sure that bwrap makes no mount point in what a sandboxed command may have written.

    bwrap before 0.12 follows symlinks while it makes mount points (CVE-2026-87766): one of them, left by an
    earlier run, would make it write to the host.

    Raises:
        SandboxUnavailable: the plan has such a mount; that is a defect of ours.
    """
    operations = tuple(operations)
    writable = tuple(outer.dest + b"/" for outer in operations if is_writable_mount(outer))
    for inner in operations:
        if inner.dest.startswith(writable):
            raise SandboxUnavailable(f"the plan mounts something inside a writable directory: {show(inner.dest)}")


def in_mount_order(operations: Iterable[MountOp]) -> tuple[MountOp, ...]:
    """Return the operations parents first, else as given; each ReadOnly after all that lies beneath it.

    bwrap performs them one by one, and a later one hides what it covers. What lies beneath a path has more components
    than it, so counting them is enough.
    """
    given = tuple(operations)
    mounts = [operation for operation in given if not isinstance(operation, ReadOnly)]
    remounts = [operation for operation in given if isinstance(operation, ReadOnly)]
    mounts.sort(key=_depth)
    remounts.sort(key=_depth, reverse=True)
    return (*mounts, *remounts)


def is_staged(mounts: Sequence[MountOp], cwd: bytes) -> bool:
    """Tell whether not bwrap itself but a shell that it starts has to go to the working directory.

    bwrap still has the host's /proc open when it does, and a symlink that an earlier command left, or a path like
    /dev/fd/3, leads through that descriptor to the host's whole file system (as CVE-2024-21626 did). So it is given
    only directories that the plan itself mounts: no mount lies below what a command can write. For all others it
    starts a shell in `/`, which has no descriptor but its own. When bwrap looks the program up it has closed that
    descriptor, so that is its own affair.
    """
    return not any(isinstance(op, Bind | Overlay | Tmpfs) and op.dest == cwd for op in mounts)


def command_words(plan: Plan, fd: int = _STDERR) -> tuple[bytes, ...]:
    """Return what bwrap starts: the command, or a shell that goes to its directory and becomes it.

    `fd` is where the shell says why it could not: by hand that is stderr, which the command keeps.
    """
    if not plan.staged:
        return plan.argv
    close = b"exec %d>&-; " % fd if fd > _STDERR else b""
    return (_SHELL, b"-c", _SCRIPT % {b"fd": fd, b"close": close}, b"sh", plan.cwd, *plan.argv)


def _depth(operation: MountOp) -> int:
    return 0 if operation.dest == b"/" else operation.dest.count(b"/")


def parse_gitconfig(text: str) -> tuple[tuple[str, str], ...]:
    """Return every setting in order as (`section.key` or `section.Sub.key`, value).

    A key without a value is "true". The caller may go on without an identity where this raises.

    Raises:
        UsageError: git could not read this either; with the number of the line.
    """
    return tuple(_Reader(text.removeprefix("\ufeff").replace("\r\n", "\n")).settings())


def filter_identity(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the settings a sandbox may have, keys in lower case, the last value of each."""
    kept: dict[str, str] = {}
    for key, value in pairs:
        lower = key.lower()
        if lower in ALLOWED_KEYS and "\0" not in value:
            kept[lower] = value
    return tuple(sorted(kept.items()))


def to_gitconfig(pairs: tuple[tuple[str, str], ...]) -> str:
    """Return the text of a configuration file with the allowed ones of these settings."""
    lines: list[str] = []
    section = ""
    for key, value in filter_identity(pairs):
        name, _, variable = key.partition(".")
        if name != section:
            section = name
            lines.append(f"[{name}]")
        lines.append(f"\t{variable} = {_quote(value)}")
    return "".join(line + "\n" for line in lines)


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + escaped.replace("\t", "\\t").replace("\b", "\\b") + '"'


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def settings(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        section = ""
        while (char := self._peek()) != "":
            if char in _SPACES or char == "\n":
                self.at += 1
            elif char in "#;":
                self._skip_line()
            elif char == "[":
                section = self._section()
            elif section and char.isascii() and char.isalpha():
                key = self._key()
                found.append((f"{section}.{key}", self._value()))
            else:
                raise self._wrong("this is neither a section nor a setting")
        return found

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _next(self) -> str:
        char = self._peek()
        self.at += 1
        return char

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _skip_spaces(self) -> None:
        while self._peek() and self._peek() in _SPACES:
            self.at += 1

    def _name(self, more: str) -> str:
        start = self.at
        while (char := self._peek()) and char.isascii() and (char.isalnum() or char in more):
            self.at += 1
        return self.text[start : self.at].lower()

    def _section(self) -> str:
        self.at += 1
        name = self._name("-.")
        if not name:
            raise self._wrong("a section without a name")
        if self._peek() == "]":
            self.at += 1
            return name
        self._skip_spaces()
        if self._next() != '"':
            raise self._wrong("a section that does not end")
        subsection = self._subsection()
        if self._next() != "]":
            raise self._wrong("a section that does not end")
        return f"{name}.{subsection}"

    def _subsection(self) -> str:
        chars: list[str] = []
        while (char := self._next()) != '"':
            if char == "\\":
                char = self._next()
            if char in ("", "\n"):
                raise self._wrong("a section that does not end")
            chars.append(char)
        return "".join(chars)

    def _key(self) -> str:
        return self._name("-")

    def _value(self) -> str:
        # Git takes a carriage return here for an error, though it is a space everywhere else
        while self._peek() in (" ", "\t"):
            self.at += 1
        if self._peek() in ("", "\n"):
            return "true"
        if self._next() != "=":
            raise self._wrong("a setting without `=`")
        self._skip_spaces()
        return self._text()

    def _text(self) -> str:
        chars: list[str] = []
        spaces = ""
        quoted = False
        while (char := self._next()) not in ("", "\n"):
            if not quoted and char in _SPACES:
                spaces += char
                continue
            if not quoted and char in "#;":
                self._skip_line()
                continue
            if char == "\\" and self._peek() in ("", "\n"):
                self.at += 1
                continue
            chars.append(spaces)
            spaces = ""
            if char == '"':
                quoted = not quoted
            else:
                chars.append(self._escaped() if char == "\\" else char)
        if quoted:
            raise self._wrong("a quotation mark that is never closed")
        return "".join(chars)

    def _escaped(self) -> str:
        char = _ESCAPES.get(self._next())
        if char is None:
            raise self._wrong("a backslash before a character that needs none")
        return char

    def _wrong(self, reason: str) -> UsageError:
        line = self.text.count("\n", 0, self.at) + 1
        return UsageError(f"git configuration, line {line}: {reason}.", remedy="Correct it: git can't read it either.")


def system_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the host's system directories, read-only, and the links among them."""
    places = given.places
    shown = places.system if given.policy.view == "sealed" else (*places.system, *places.top)
    for path in dict.fromkeys(shown):
        if path in NEVER_SHOWN:
            continue
        if path in places.top:
            yield _read_only_overlay(given, path, "view host shows it, read-only, without its sockets")
        elif any(contains(shared, path) for shared in SOCKET_FREE):
            yield _read_only_overlay(given, path, "software outside /usr, without its sockets")
        else:
            yield Bind(source=path, dest=path, why=_why_shown(path))
    for dest, target in places.links:
        if dest not in NEVER_SHOWN:
            yield Symlink(target=target, dest=dest, why="a symlink on this host too")


def kernel_operations(files_of_others: Sequence[bytes]) -> Iterator[MountOp]:
    """Yield /proc, without the files of it that no namespace divides and that name what others have, and /dev."""
    yield Proc(dest=b"/proc", why="the sandbox's own processes")
    for path in files_of_others:
        yield File(content=b"", dest=path, mode=0o444, over=True, why="it names what other programs and users have")
    # For a caller with uid 0 the files below are writable without any capability (core_pattern)
    yield Bind(source=b"/proc/sys", dest=b"/proc/sys", why="no kernel setting can be changed")
    yield Dev(dest=b"/dev", why="null, zero, random, tty and pseudo-terminals")
    yield Tmpfs(dest=b"/dev/shm", size_bytes=SHARED_MEMORY_BYTES, mode=STICKY, why="shared memory for this run only")
    yield ReadOnly(dest=b"/dev", why="no new devices can be created")


def fresh_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the directories that start empty and end with the run."""
    size = given.policy.limits.tmp_bytes
    if given.policy.tmp == "persistent" and given.places.tmp:
        _check_nothing_in_tmp(given)
        yield Bind(source=given.places.tmp, dest=b"/tmp", writable=True, why="temporary files that outlive the run")
    else:
        yield Tmpfs(dest=b"/tmp", size_bytes=size, mode=STICKY, why="temporary files for this run only")
    if not given.rootfs_layers:
        yield Tmpfs(dest=b"/var/tmp", size_bytes=size, mode=STICKY, why="temporary files for this run only")
    yield Tmpfs(dest=b"/run", size_bytes=RUN_BYTES, why="none of the host's sockets")
    if given.policy.view == "sealed":
        yield Symlink(target=b"../run", dest=b"/var/run", why="where older programs look for /run")


def home_operations(given: PlanInput, warnings: list[str]) -> Iterator[MountOp]:
    """Yield the home directory itself, the git configuration and the playground."""
    home = given.places.home.path
    git_config = _git_config(given.places.home.identity)
    if given.policy.view == "rootfs":
        yield File(content=git_config, dest=GIT_CONFIG_FILE, why="your git identity, no credentials")
    elif given.policy.view == "sealed":
        size = given.policy.limits.tmp_bytes
        yield Tmpfs(dest=home, size_bytes=size, mode=0o700, why=_FRESH_HOME)
        if git_config or given.places.lasting_home:
            dest = GIT_CONFIG_FILE if given.places.lasting_home else home + b"/.gitconfig"
            yield File(content=git_config, dest=dest, why="your git identity, no credentials")
    else:
        yield _whole_home(given, warnings)
        yield File(content=git_config, dest=GIT_CONFIG_FILE, why="your git identity, no credentials")
    if given.places.lasting_home:
        yield Bind(
            source=given.places.lasting_home, dest=LASTING_HOME, writable=True, why="a home directory that lasts"
        )
    problem = _playground_problem(given)
    if problem:
        warnings.append(f"There is no playground: {problem}.")
    else:
        yield Bind(
            source=given.places.playground,
            dest=playground_inside(given.policy.view, home),
            why="scratch directory that outlives the run",
            writable=True,
        )


def home_inside(places: Places) -> bytes:
    """Return where HOME leads to: the home directory itself, or one that lasts.

    That one lies beside it: in a directory that commands write, nothing may be mounted.
    """
    return LASTING_HOME if places.lasting_home else places.home.path


def home_skeleton(given: PlanInput) -> tuple[Point, ...]:
    """Return what has to be there of our own for the home directory to be shown."""
    return (Point(path=given.places.state + _SKELETON + b"/" + _PLAYGROUND),) if given.policy.view == "host" else ()


def shown_operations(given: PlanInput, caches: tuple[CacheLayer, ...], warnings: list[str]) -> Iterator[MountOp]:
    """Yield the readable paths of the policy and, where the home is empty, the toolchains."""
    places = given.places
    covered = [stack.live for stack in given.stacks] + [cache.path for cache in caches]
    covered.append(playground_inside(given.policy.view, places.home.path))
    for path in sorted(given.policy.readable):
        _check_readable(given, path)
        if path in places.absent:
            warnings.append(f"The readable path {show(path)} does not exist.")
        elif any(contains(other, path) for other in covered):
            continue
        elif path in places.files:
            yield Bind(source=path, dest=path, why="readable by your policy")
        elif problem := overlay_problem(given, path):
            warnings.append(f"The readable path {show(path)} is not shown: {problem}.")
        else:
            covered.append(path)
            yield _read_only_overlay(given, path, "readable by your policy, without its sockets")
    if given.policy.toolchains and given.policy.view == "sealed":
        yield from _toolchain_operations(given, covered, warnings)


def chosen_caches(given: PlanInput, warnings: list[str]) -> tuple[CacheLayer, ...]:
    """Return the caches to show: none that has to do with a root, lies in another or holds a hidden path."""
    if not given.policy.caches:
        return ()
    roots = [stack.live for stack in given.stacks]
    chosen: list[CacheLayer] = []
    for cache in sorted(given.caches, key=lambda cache: cache.path):
        if any(contains(other.path, cache.path) for other in chosen):
            continue
        if any(contains(root, cache.path) for root in roots):
            continue
        inside = [path for path in (*roots, *given.policy.hidden) if lies_beneath(path, cache.path)]
        problem = f"{show(inside[0])} is inside it" if inside else overlay_problem(given, cache.path)
        if problem:
            warnings.append(f"The cache {show(cache.path)} is not shown: {problem}.")
        else:
            chosen.append(cache)
    return tuple(chosen)


def cache_operations(caches: tuple[CacheLayer, ...]) -> Iterator[MountOp]:
    """Yield the caches, copy-on-write."""
    for cache in caches:
        layer = cache.stack.open
        yield Overlay(
            lowers=cache.stack.lowers(),
            dest=cache.path,
            upper=None if layer is None else layer.upper,
            work=None if layer is None else layer.work,
            why="tool cache; additions never reach your own cache",
        )


def check_hidden(given: PlanInput) -> None:
    """Refuse a hidden path that has to do with a root.

    Raises:
        UsageError: with what to do instead.
    """
    for hidden in given.policy.hidden:
        for root in (stack.live for stack in given.stacks):
            if contains(hidden, root):
                raise UsageError(f"{show(hidden)} can't be hidden: the root {show(root)} is there.")
            if lies_beneath(hidden, root):
                raise UsageError(
                    f"{show(hidden)} can't be hidden: it is inside the root {show(root)}.",
                    remedy="Move it out of the project, or remove it from `hidden`.",
                )


def without_hidden(given: PlanInput, operations: list[MountOp]) -> list[MountOp]:
    """Return the operations less those that would show a hidden path or something below it."""
    if not given.policy.hidden:
        return operations
    return [operation for operation in operations if not _is_hidden(given, operation)]


def mask_operations(given: PlanInput, operations: list[MountOp]) -> list[MountOp]:
    """Return the masks that `operations` need: over hidden paths, secrets and live sockets in something that is shown.

    A masked directory is an empty read-only tmpfs, a masked file an empty file. Masks are mounted only over what the
    host owns.
    """
    masks = _Masks(given, operations)
    places = given.places
    for path in sorted(given.policy.hidden):
        if path not in places.absent:
            masks.add(path, "hidden by your policy", is_file=path in places.files)
    for path in (places.state, *places.own):
        masks.add(path, "unspill's own files")
    for path in sorted(places.secrets):
        masks.add_secret(path, is_file=False)
    for path in sorted(places.secret_files):
        masks.add_secret(path, is_file=True)
    for path in masks.reachable(places.sockets):
        masks.add_socket(path)
    for stack in given.stacks:
        # Beside its layer it would be seen with its secrets
        masks.add_root(stack.live, is_elsewhere=given.policy.view == "rootfs" and stack is given.stacks[0])
    return masks.made


def overlay_problem(given: PlanInput, path: bytes, *, is_read_only: bool = False) -> str:
    """Tell why the kernel would refuse an overlay over `path`, "" where it would not."""
    point = find_mount_beneath(given, path)
    if point is not None:
        return f"something is mounted on {show(point)}, inside it"
    if contains(path, given.places.state) and not is_read_only:
        return "unspill's state directory is inside it"
    return ""


def find_mount_beneath(given: PlanInput, path: bytes) -> bytes | None:
    """Return a mount point of the host strictly beneath `path`."""
    beneath = path + b"/"
    return next((point for point in given.places.mounted if point.startswith(beneath)), None)


def _why_shown(path: bytes) -> str:
    return "system settings" if path == b"/etc" else "programs and libraries"


def _read_only_overlay(given: PlanInput, path: bytes, why: str) -> Overlay:
    """Return an overlay that shows a directory read-only, and none of its sockets and FIFOs.

    The kernel wants two lower directories where there is no upper one; the first is always empty.
    """
    return Overlay(lowers=(given.places.state + b"/empty", path), dest=path, why=why)


def _check_nothing_in_tmp(given: PlanInput) -> None:
    """Refuse to keep a /tmp in which something else would be mounted: what commands left there may be links."""
    view = given.policy.view
    roots = [stack.live for stack in given.stacks]
    inside = (to_inside(root, view, roots) for root in roots)
    for path in (*inside, *given.policy.readable):
        if lies_beneath(path, b"/tmp"):
            raise UsageError(
                f"/tmp can't be kept: {show(path)} is inside it.",
                remedy='Set `tmp = "fresh"`, or move that directory elsewhere.',
            )


def _whole_home(given: PlanInput, warnings: list[str]) -> MountOp:
    home = given.places.home.path
    problem = overlay_problem(given, home, is_read_only=True)
    if not problem:
        why = "view host shows it, read-only, without its secrets and sockets"
        return Overlay(lowers=(given.places.state + _SKELETON, home), dest=home, why=why, points=(_PLAYGROUND,))
    # A plain bind would show it, but read-only stops neither a socket nor a FIFO nor a lock
    warnings.append(f"Your home directory is not shown: {problem}.")
    return Tmpfs(dest=home, size_bytes=given.policy.limits.tmp_bytes, mode=0o700, why=_FRESH_HOME)


def _git_config(identity: tuple[tuple[str, str], ...]) -> bytes:
    return to_gitconfig(identity).encode("utf-8", "surrogateescape")


def _playground_problem(given: PlanInput) -> str:
    home = given.places.home.path
    problem = playground_taken(given.policy.view, home, [stack.live for stack in given.stacks])
    if not problem and given.policy.view == "host" and given.engine == "native" and given.places.no_playground:
        # bwrap would follow a link that is there
        return f"{show(home)}/playground exists and is not a directory"
    return problem


def _toolchain_operations(given: PlanInput, covered: list[bytes], warnings: list[str]) -> Iterator[MountOp]:
    for path in sorted(given.places.home.toolchains):
        if any(contains(other, path) for other in covered):
            continue
        problem = overlay_problem(given, path, is_read_only=True)
        if problem:
            warnings.append(f"The toolchain {show(path)} is not shown: {problem}.")
            continue
        covered.append(path)
        yield _read_only_overlay(given, path, "toolchain, without its sockets")


def _check_readable(given: PlanInput, path: bytes) -> None:
    """Refuse a readable path that would undo what the views are for.

    Raises:
        UsageError: it is or contains the home directory or unspill's own files, or is made fresh in each run.
    """
    kept_private = (given.places.home.path, given.places.state, *given.places.own)
    for private in kept_private:
        if contains(path, private) or (private != given.places.home.path and contains(private, path)):
            raise UsageError(
                f"{show(path)} can't be readable: {show(private)} is private.",
                remedy="Name the directories below it that commands need, or choose the view `host`.",
            )
    if path in _NOT_READABLE or any(contains(kernel, path) for kernel in (b"/dev", b"/proc", b"/sys")):
        raise UsageError(f"{show(path)} can't be readable: a sandbox has its own.", remedy="Remove it from `readable`.")


def _is_hidden(given: PlanInput, operation: MountOp) -> bool:
    if operation.dest == b"/proc/sys" or not isinstance(operation, Bind | Overlay | Symlink):
        return False
    place = operation.dest if given.policy.view != "rootfs" else _source_of(operation)
    return any(contains(hidden, place) for hidden in given.policy.hidden)


def _source_of(operation: Bind | Overlay | Symlink) -> bytes:
    """Return whose directory it is: what a rootfs has at a path is not what the host has there."""
    match operation:
        case Bind():
            return operation.source
        case Overlay():
            return operation.lowers[-1]
    return b""


class _Masks:
    def __init__(self, given: PlanInput, operations: list[MountOp]) -> None:
        self.given = given
        self.made: list[MountOp] = []
        self._seen = list(operations)

    def add(self, path: bytes, why: str, *, is_file: bool = False) -> None:
        if not any(self._shown_at(path)):
            return
        root = next((s.live for s in self.given.stacks if contains(s.live, path)), None)
        if root is not None:
            raise UsageError(
                f"{show(path)} can't be masked: it is inside the root {show(root)}.",
                remedy="Choose a smaller directory as the root.",
            )
        for place in tuple(self._shown_at(path)):
            self._cover(place, why, is_file=is_file)

    def add_root(self, root: bytes, *, is_elsewhere: bool) -> None:
        for place in tuple(self._shown_at(root) if is_elsewhere else self._shown_beneath(root)):
            self._cover(place, "the root, which is seen where a layer covers it", is_file=False)

    def _shown_at(self, path: bytes) -> Iterator[bytes]:
        """Yield where a path of the host is seen: at its own, and beneath what the policy shows elsewhere."""
        if is_shown(self._seen, path):
            yield path
        yield from self._shown_beneath(path)

    def _shown_beneath(self, path: bytes) -> Iterator[bytes]:
        for dest, source in dict.fromkeys((*self.given.policy.mounts, *self.given.places.aliases)):
            if contains(source, path) and any(op.dest == dest for op in self._seen):
                yield dest + path[len(source) :]

    def _cover(self, path: bytes, why: str, *, is_file: bool) -> None:
        mask: MountOp
        if is_file:
            mask = File(content=b"", dest=path, mode=0o444, over=True, why=why)
            self.made.append(mask)
        else:
            mask = Tmpfs(dest=path, size_bytes=_MASK_BYTES, mode=0o555, why=why)
            self.made += (mask, ReadOnly(dest=path, why="an empty mask stays empty"))
        self._seen.append(mask)

    def add_secret(self, path: bytes, *, is_file: bool) -> None:
        named = any(contains(path, readable) for readable in self.given.policy.readable)
        if not named:
            self.add(path, "secrets or other people's files", is_file=is_file)

    def reachable(self, sockets: tuple[bytes, ...]) -> list[bytes]:
        """Return the sockets below what a plain bind shows; an overlay shows them, but nobody answers."""
        binds = tuple(operation.dest + b"/" for operation in self._seen if self._passes_sockets(operation))
        return sorted(path for path in sockets if path.startswith(binds))

    def _passes_sockets(self, operation: MountOp | None) -> bool:
        return isinstance(operation, Bind) and operation.source == operation.dest

    def add_socket(self, path: bytes) -> None:
        if not self._passes_sockets(find_cover(self._seen, path)):
            return
        directory = posixpath.dirname(path)
        needed = (self.given.places.home.path, self.given.cwd, *(op.dest for op in self._seen))
        # Its directory, because a restarted service makes a new socket; not where that would hide more
        if any(contains(directory, other) for other in needed):
            self.add(path, "a socket of the host", is_file=True)
        else:
            self.add(directory, "a socket of the host")
