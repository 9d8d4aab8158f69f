# SPDX-License-Identifier: Apache-2.0
"""What shows through in the home directory: playground, git identity, toolchains, caches, readable paths.

Each is shown on its own path. Nothing is mounted inside a root, a cache or the playground, whose content may be
what an earlier command left there.

MERGED
[gitconfig] The git configuration of a sandbox: the person's identity and harmless settings, nothing that runs or
unlocks.

An allow table, not a deny list: a key that a later git makes dangerous is not in it. The person's own file is read
here, so that git never runs on the host; includes are not followed, nothing is expanded.
"""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.model.plan import (
    Bind,
    File,
    Overlay,
    Point,
    Tmpfs,
)
from unspill.plan.rootfs import read_only_overlay
from unspill.plan.view import playground_inside
from unspill.policy.paths import contains, lies_beneath, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unspill.model.plan import CacheLayer, MountOp, PlanInput
    from unspill.model.policy import View


GIT_CONFIG_IN_HOST_VIEW = b"/run/unspill-gitconfig"
# Laid over the home directory that view `host` shows, which has no place for the playground
_SKELETON, _PLAYGROUND = b"/skeletons/home", b"playground"
_NOT_READABLE = (b"/dev", b"/proc", b"/run", b"/sys", b"/tmp", b"/var/tmp")


def home_operations(given: PlanInput, warnings: list[str]) -> Iterator[MountOp]:
    """Yield the home directory itself, the git configuration and the playground."""
    home = given.places.home.path
    git_config = _git_config(given.places.home.identity)
    if given.policy.view == "rootfs":
        yield File(content=git_config, dest=GIT_CONFIG_IN_HOST_VIEW, why="your git identity, no credentials")
    elif given.policy.view == "sealed":
        size = given.policy.limits.tmp_bytes
        yield Tmpfs(dest=home, size_bytes=size, mode=0o700, why="a home directory of this run only")
        if git_config:
            yield File(content=git_config, dest=home + b"/.gitconfig", why="your git identity, no credentials")
    else:
        yield _whole_home(given, warnings)
        yield File(content=git_config, dest=GIT_CONFIG_IN_HOST_VIEW, why="your git identity, no credentials")
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


def _whole_home(given: PlanInput, warnings: list[str]) -> MountOp:
    home = given.places.home.path
    problem = overlay_problem(given, home, is_read_only=True)
    if not problem:
        why = "view host shows it, read-only, without its secrets and sockets"
        return Overlay(lowers=(given.places.state + _SKELETON, home), dest=home, why=why, points=(_PLAYGROUND,))
    # A plain bind would show it, but read-only stops neither a socket nor a FIFO nor a lock
    warnings.append(f"Your home directory is not shown: {problem}.")
    return Tmpfs(dest=home, size_bytes=given.policy.limits.tmp_bytes, mode=0o700, why="a home of this run only")


def home_skeleton(given: PlanInput) -> tuple[Point, ...]:
    """Return what has to be there of our own for the home directory to be shown."""
    return (Point(path=given.places.state + _SKELETON + b"/" + _PLAYGROUND),) if given.policy.view == "host" else ()


def _git_config(identity: tuple[tuple[str, str], ...]) -> bytes:
    if not identity:
        return b""

    return to_gitconfig(identity).encode("utf-8", "surrogateescape")


def _playground_problem(given: PlanInput) -> str:
    home = given.places.home.path
    problem = playground_taken(given.policy.view, home, [stack.live for stack in given.stacks])
    if not problem and given.policy.view == "host" and given.engine == "native" and given.places.no_playground:
        # bwrap would follow a link that is there
        return f"{show(home)}/playground is there and is no directory"
    return problem


def playground_taken(view: View, home: bytes, roots: Sequence[bytes]) -> str:
    """Tell which root is in the place of the playground, "" where none is."""
    dest = playground_inside(view, home)
    if view == "rootfs":
        return ""
    root = next((root for root in roots if contains(dest, root) or contains(root, dest)), None)
    return "" if root is None else f"its place is taken by the root {show(root)}"


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
        problem = f"{show(inside[0])} lies in it" if inside else overlay_problem(given, cache.path)
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
            why="tool cache; what is added never reaches your own",
        )


def shown_operations(given: PlanInput, caches: tuple[CacheLayer, ...], warnings: list[str]) -> Iterator[MountOp]:
    """Yield the readable paths of the policy and, where the home is empty, the toolchains."""
    places = given.places
    covered = [stack.live for stack in given.stacks] + [cache.path for cache in caches]
    covered.append(playground_inside(given.policy.view, places.home.path))
    for path in sorted(given.policy.readable):
        check_readable(given, path)
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
            yield read_only_overlay(given, path, "readable by your policy, without its sockets")
    if given.policy.toolchains and given.policy.view == "sealed":
        yield from _toolchain_operations(given, covered, warnings)


def _toolchain_operations(given: PlanInput, covered: list[bytes], warnings: list[str]) -> Iterator[MountOp]:
    for path in sorted(given.places.home.toolchains):
        if any(contains(other, path) for other in covered):
            continue
        problem = overlay_problem(given, path, is_read_only=True)
        if problem:
            warnings.append(f"The toolchain {show(path)} is not shown: {problem}.")
            continue
        covered.append(path)
        yield read_only_overlay(given, path, "toolchain, without its sockets")


def check_readable(given: PlanInput, path: bytes) -> None:
    """Refuse a readable path that would undo what the views are for.

    Raises:
        UsageError: it is or contains the home directory or unspill's own files, or is made fresh in each run.
    """
    kept_private = (given.places.home.path, given.places.state, *given.places.own)
    for private in kept_private:
        if contains(path, private) or (private != given.places.home.path and contains(private, path)):
            raise UsageError(
                f"{show(path)} can't be readable: {show(private)} stays private.",
                remedy="Name the directories below it that are needed, or choose the view `host`.",
            )
    if path in _NOT_READABLE or any(contains(kernel, path) for kernel in (b"/dev", b"/proc", b"/sys")):
        raise UsageError(f"{show(path)} can't be readable: a sandbox has its own.", remedy="Remove it from `readable`.")


def overlay_problem(given: PlanInput, path: bytes, *, is_read_only: bool = False) -> str:
    """Tell why the kernel would refuse an overlay over `path`, "" where it would not."""
    point = find_mount_beneath(given, path)
    if point is not None:
        return f"something is mounted on {show(point)}, inside it"
    if contains(path, given.places.state) and not is_read_only:
        return "unspill's state directory lies in it"
    return ""


def find_mount_beneath(given: PlanInput, path: bytes) -> bytes | None:
    """Return a mount point of the host strictly beneath `path`."""
    beneath = path + b"/"
    return next((point for point in given.places.mounted if point.startswith(beneath)), None)


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


def parse_gitconfig(text: str) -> tuple[tuple[str, str], ...]:
    """Return every setting in order as (`section.key` or `section.Sub.key`, value).

    A key without a value is "true". The caller may go on without an identity where this raises.

    Raises:
        UsageError: git could not read this either; with the number of the line.
    """
    return tuple(_Reader(text.removeprefix("\ufeff").replace("\r\n", "\n")).settings())


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
                raise self._wrong("neither a section nor a setting")
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
        self._skip_spaces()
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
