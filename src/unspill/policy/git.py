# SPDX-License-Identifier: Apache-2.0
"""What git would act on: settings, paths in a git directory, and contents of its other files. Allow tables, no disk.

git runs what core.fsmonitor, filters, hooks, pagers, aliases and many more name, and later versions add others. So what
is not known to be harmless here needs a person's consent; `apply.guard_git` asks these functions about each change.
"""

from __future__ import annotations

from unspill.policy.paths import glob_matches, resolve_text
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Set
    from typing import Literal

    GitSettings = tuple[tuple[str, str], ...]
    # What the value has to be: anything, an address, a way to update, a name, the work tree of a new module, a path,
    # where a fetch writes, what git takes for yes or no, that or `on-demand`, a version that git knows
    Check = Literal[
        "any", "address", "update", "name", "work tree", "path", "refspec", "boolean", "recursion", "version"
    ]  # fmt: skip

    # What decides: nothing, its name (hook, unknown), or its content
    GitPlace = Literal[
        "ordinary", "unknown", "hook", "config", "attributes", "pointer", "common", "module", "todo", "alternates",
        "replace", "grafts", "shallow", "strategy", "autostash", "start", "large",
    ]  # fmt: skip


def _keys(table: dict[Check, str]) -> dict[str, Check]:
    return {key: check for check, keys in table.items() for key in keys.split()}


# Settings that may change without a question, by what their value has to be; `*` stands for any one subsection
ORDINARY_KEYS = _keys(
    {
        "address": "branch.*.remote branch.*.pushremote remote.*.url submodule.*.url",
        "update": "submodule.*.update",
        "name": "remote.*.tagopt user.signingkey submodule.*.branch submodule.*.ignore",
        "refspec": "remote.*.fetch",
        "boolean": """
        user.useconfigonly submodule.*.active submodule.*.shallow core.sparsecheckout core.sparsecheckoutcone
        index.sparse extensions.worktreeconfig
        """,
        "recursion": "submodule.*.fetchrecursesubmodules",
        "version": "core.repositoryformatversion",
        "any": """
        branch.*.* remote.*.gh-resolved user.name user.email submodule.active lfs.repositoryformatversion
        """,
    }
)
# How a repository is stored, decided when it is made
FORMAT_KEYS = _keys(
    {
        "work tree": "core.worktree",
        "name": "remote.*.fetch",
        "any": """
        core.filemode core.bare core.logallrefupdates core.symlinks core.ignorecase core.precomposeunicode
        extensions.objectformat extensions.compatobjectformat extensions.refstorage extensions.preciousobjects
        extensions.relativeworktrees extensions.noop
        """,
    }
)
# Of `.gitmodules`, which comes with the project's own history
MODULE_KEYS = _keys(
    {
        "path": "submodule.*.path",
        "address": "submodule.*.url",
        "update": "submodule.*.update",
        "name": "submodule.*.branch submodule.*.ignore",
        "boolean": "submodule.*.shallow",
        "recursion": "submodule.*.fetchrecursesubmodules",
    }
)
# Passed to other programs as options
EXCLUDED_KEYS = frozenset({"branch.*.mergeoptions"})
# Gone as a whole with a branch, a remote or a module
_SECTIONS = ("branch", "remote", "submodule")
# Without one of these git pushes elsewhere
_PUSHED_TO = frozenset(("remote.*.pushurl", "branch.*.pushremote", "remote.pushdefault"))
_BOOLEANS = frozenset(("", "true", "yes", "on", "1", "false", "no", "off", "0"))
_VERSION = "core.repositoryformatversion"
_NO_REFSPEC = frozenset(" ~^:?[\\")
_UPDATES = frozenset(("checkout", "rebase", "merge", "none"))
_SCHEMES = frozenset(("http", "https", "ssh", "git", "file", "git+ssh", "ssh+git", "ftp", "ftps"))
_FILE = "file://"
# What the name of a remote is made of that can't pass for the words around it
_SHOWN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
_LONGEST_SHOWN = 80

GIT = b".git"
GIT_ATTRIBUTES, GIT_MODULES = b".gitattributes", b".gitmodules"
# A directory with these is a git directory, whatever its name
GIT_MARKS = frozenset(b"head objects refs commondir worktrees".split())
# With these names a file steers git if it lies in such a directory
STEERING = frozenset(b"config config.worktree".split())
_STEERING_DIRECTORIES = frozenset(b"hooks info".split())
GIT_NAMES = (
    GIT_MARKS | STEERING | _STEERING_DIRECTORIES | {GIT, GIT_ATTRIBUTES, GIT_MODULES, b".hg", b".jj", b".tool-versions"}
)

_FILES = frozenset(
    b"""
    head orig_head fetch_head rebase_head cherry_pick_head revert_head bisect_head auto_merge squash_msg
    index packed-refs packed-refs.new description gc.log gc.pid renamed-ref add_edit.patch addp-hunk-edit.diff
    edit_description locked gitk.cache fsmonitor--daemon.ipc
    """.split()
)
_BEGINNINGS = (b"merge_", b"bisect_", b"notes_merge_", b"sharedindex.", b"index.stash.", b"next-index-", b"gitgui_")
_ENDINGS = (b"_editmsg",)
_STATE = frozenset(b"rebase-merge rebase-apply sequencer".split())
_STATE_PLACES: dict[bytes, GitPlace] = {
    b"git-rebase-todo": "todo", b"git-rebase-todo.backup": "todo", b"todo": "todo", b"strategy": "strategy",
    b"opts": "strategy", b"autostash": "autostash",
}  # fmt: skip
_IN_INFO = frozenset(b"exclude refs sparse-checkout".split())
_LFS = frozenset(b"objects tmp cache incomplete".split())
_PACK_SUFFIXES = frozenset(b"pack idx rev bitmap keep promisor mtimes midx lock".split())
_STORES = frozenset(b"refs logs reftable lfs rr-cache fsmonitor--daemon objects".split()) | _STATE
_HEX = frozenset(b"0123456789abcdef")

# The hooks that git 2.39 knows; used where a directory of hooks is no directory of its own
HOOKS = tuple(
    b"""
    applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg post-commit
    pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive post-receive post-update
    reference-transaction push-to-checkout pre-auto-gc post-rewrite sendemail-validate fsmonitor-watchman
    post-index-change p4-changelist p4-prepare-changelist p4-post-changelist p4-pre-submit
    """.split()
)

_DRIVEN = (b"filter=", b"diff=", b"merge=")
# Known to git itself or, for lfs, a program that does not run what is in the files
BUILT_IN_DRIVERS = frozenset(
    b"""
    filter=lfs diff=lfs merge=lfs merge=text merge=binary merge=union
    """.split()
) | frozenset(
    b"diff=" + name
    for name in b"""
    default ada bash bibtex cpp csharp css dts elixir fortran fountain golang html java kotlin markdown matlab objc
    pascal perl php python ruby rust scheme tex
    """.split()
)
# What the name of a reference may be made of without meaning anything to another program; few have more
_PLAIN = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+@"
_STEPS = (b"exec ", b"x ", b"exec\t", b"x\t")
_MOST_RULES = 2000


class IgnoreRule(Record):
    """One line of a `.gitignore`: patterns for the components of a path, from the directory of that file on."""

    patterns: tuple[bytes, ...]
    is_negated: bool
    only_directories: bool

    def matches(self, parts: Sequence[bytes], *, is_directory: bool) -> bool:
        """Tell whether the rule means a path, given from the directory of its file on."""
        if self.only_directories and not is_directory:
            return False
        # A class of characters by name is not read: such a rule ignores nothing, and takes back everything
        if any(b"[:" in pattern for pattern in self.patterns):
            return self.is_negated
        return glob_matches(parts, self.patterns)


def unusual_keys(
    before: GitSettings | None,
    after: GitSettings,
    is_work_tree: Callable[[str], bool],
    is_inside: Callable[[str], bool] = lambda _path: False,
) -> list[str]:
    """Return the patterns of the changed keys of a configuration that are not ordinary, sorted.

    Args:
        before: None where there was no configuration, so that the repository is new.
        after: Settings in order, keys as `section.Sub.key`.
        is_work_tree: Tells whether a value leads to the work tree that belongs to the repository.
        is_inside: Tells whether a path leads to somewhere in the project, where what git would run is judged itself.
    """
    allowed = ORDINARY_KEYS if before is not None else ORDINARY_KEYS | FORMAT_KEYS
    new = _by_key(after)
    # Git does not read a repository whose format needs the newer version under the older one
    found = {_VERSION} if "1" in _by_key(before or ()).get(_VERSION, ()) and new.get(_VERSION) != ["1"] else set()
    for key in changed_keys(before or (), after):
        pattern = pattern_of(key)
        if key not in new and pattern.partition(".")[0] in _SECTIONS:
            continue
        check = None if pattern in EXCLUDED_KEYS else allowed.get(pattern) or allowed.get(_any_key(pattern))
        values = new.get(key, ())
        if check is None or not all(_passes(check, value, is_work_tree) for value in values):
            found.add(pattern)
        elif check == "address" and any(_leads_out(value, is_inside) for value in values):
            found.add(f"{pattern} (a local path)")
    return sorted(found)


def unusual_modules(before: GitSettings, after: GitSettings, is_inside: Callable[[str], bool]) -> list[str]:
    """Return the patterns of the keys of a `.gitmodules` that are not ordinary, sorted."""
    found = set()
    for key, value in after:
        pattern = pattern_of(key)
        check = MODULE_KEYS.get(pattern)
        name = key.partition(".")[2].rpartition(".")[0]
        if check is None or not _passes(check, value) or ".." in name.replace("\\", "/").split("/"):
            found.add(pattern)
        # What begins like this goes on from the address of the repository's own remote
        elif check == "address" and (key, value) not in before and not value.startswith(("./", "../")):
            found |= {f"{pattern} (a local path)"} if _leads_out(value, is_inside) else set()
    return sorted(found)


def changed_addresses(before: GitSettings, after: GitSettings) -> list[str]:
    """Say of each address that is new or changes what it was and what it is now, in words that are safe to show."""
    old, new = _by_key(before), _by_key(after)
    found = []
    for key in changed_keys(before, after):
        if ORDINARY_KEYS.get(pattern_of(key)) != "address":
            continue
        # Of a branch it is the name of a remote as a rule, whose own address counts
        values = [
            value for value in new.get(key, ()) if not key.startswith("branch.") or ":" in value or value[:1] == "/"
        ]
        if values:
            was = f"was {_shown_all(old[key])}, " if key in old else ""
            found.append(f"{_shown_key(key)} {was}now {_shown_all(values)}")
    return [*found, *_no_longer_pushed_to(old, new)]


def _no_longer_pushed_to(old: dict[str, list[str]], new: dict[str, list[str]]) -> Iterator[str]:
    """Yield what is gone of where git pushed to, as far as the remote or branch is still there."""
    for key in sorted(old.keys() - new.keys()):
        section = key.rpartition(".")[0] + "."
        if pattern_of(key) in _PUSHED_TO and any(other.startswith(section) for other in new):
            yield f"{_shown_key(key)} was {_shown_all(old[key])}, now nothing"


def changed_keys(before: GitSettings, after: GitSettings) -> list[str]:
    """Return the keys whose values are not the same in the same order, sorted.

    One that goes away is among them, because it may have been what kept another one off.
    """
    old, new = _by_key(before), _by_key(after)
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def pattern_of(key: str) -> str:
    """Return a key with `*` for its subsection: safe to show, since the rest of a key is plain ASCII."""
    section, _, rest = key.partition(".")
    _, dot, variable = rest.rpartition(".")
    return f"{section}.*.{variable}" if dot else f"{section}.{rest}"


def is_address(value: str) -> bool:
    """Tell whether git would only fetch from it: no option, no program, no transport but its own."""
    if value.startswith("-") or not value.isprintable() or _has_encoded_control(value):
        return False
    helper, colons, _ = value.partition("::")
    if colons and all(char.isalnum() or char in "+-." for char in helper):
        return False
    scheme, marks, rest = value.partition("://")
    if marks and scheme.lower() not in _SCHEMES:
        return False
    host = (rest if marks else value).partition("/")[0].rpartition("@")[2]
    return not host.startswith("-")


def local_path(address: str) -> str | None:
    """Return the path on this machine that git takes an address for, None where it takes it for one of a network."""
    if address[: len(_FILE)].lower() == _FILE:
        # Git decodes it, and what is not decoded here may lead anywhere
        return "/" if "%" in address else "/" + address[len(_FILE) :]
    head, colon, _ = address.partition(":")
    return None if colon and "/" not in head else address


def place_of(rest: list[bytes]) -> GitPlace:
    """Say what a path in a git directory is for; `rest` is its folded path from there on."""
    first = rest[0]
    if len(rest) == 1:
        return _place_of_file(first)
    if first == b"hooks":
        return "ordinary" if len(rest) == 2 and rest[1].endswith(b".sample") else "hook"
    if first == b"worktrees":
        return place_of(rest[2:]) if len(rest) > 2 else "unknown"
    if first == b"modules":
        return "module"
    if first == b"info":
        return _place_in_info(rest)
    if rest[:2] == [b"refs", b"replace"]:
        return "replace"
    if first in _STATE:
        return _STATE_PLACES.get(rest[1]) or _known(len(rest) == 2)
    if rest[:2] == [b"lfs", b"objects"]:
        return "large"
    if rest == [b"objects", b"info", b"alternates"]:
        return "alternates"
    return _known(_is_stored(first, rest))


def could_steer(rest: list[bytes]) -> bool:
    """Tell whether a path that is harmless in a git directory would not be so in a second one that lies in there.

    References and their like may be called anything, so that whole repositories fit among them.
    """
    if rest[0] == b"worktrees":
        rest = rest[2:]
    if rest[:2] == [b"objects", b"info"]:
        rest = rest[1:]
    if len(rest) < 2:
        return False
    return rest[-1] in STEERING or rest[-1] == b"commondir" or not _STEERING_DIRECTORIES.isdisjoint(rest[1:-1])


def inside_store(parts: list[bytes]) -> list[bytes]:
    """Return what follows the directory of references, logs or the like that a path in a git directory is in."""
    start = parts.index(GIT)
    end = next((end for end, part in enumerate(parts[start:-1], start + 1) if part in _STORES), len(parts))
    return parts[end:]


def homes_of(parts: list[bytes]) -> set[int]:
    """Return how many components lead to each directory that would make this path steer git if git owned it.

    Directories named `.git` are not among them: they need no second look.
    """
    ends = {index for index, part in enumerate(parts[:-1]) if part in _STEERING_DIRECTORIES}
    if parts[-1] in GIT_MARKS or parts[-1] in STEERING:
        ends.add(len(parts) - 1)
    if GIT in parts:
        top = parts.index(GIT)
        # The name of a module may have slashes in it, so only its shape tells where it begins
        if parts[top + 1 : top + 2] == [b"modules"]:
            ends.update(range(top + 3, len(parts)))
    return ends


def is_object(rest: list[bytes]) -> bool:
    """Tell whether a path that begins with `objects` is where git keeps objects."""
    if len(rest) == 2:
        return rest[1] == b"maintenance.lock" or rest[1].startswith(b"tmp_")
    kind, name = rest[1], rest[-1]
    if kind == b"pack":
        temporary = name.startswith((b"tmp_", b".tmp-", b"multi-pack-index"))
        return len(rest) == 3 and (temporary or name.rpartition(b".")[2] in _PACK_SUFFIXES)
    if kind == b"info":
        return rest[2] in (b"packs", b"http-alternates", b"commit-graph", b"commit-graphs", b"commit-graph.lock")
    if kind.startswith((b"incoming-", b"tmp_objdir-")):
        return is_object([b"objects", *rest[2:]])
    return len(rest) == 3 and len(kind) == 2 and _is_hex(kind) and (_is_hex(name) or name.startswith(b"tmp_obj_"))


def is_object_directory(parts: list[bytes]) -> bool:
    """Tell whether a directory is one of those that hold a repository's objects, the bulk of every change to it."""
    return parts[-3:-1] == [GIT, b"objects"] and parts.count(GIT) == 1


def is_repository_place(parts: list[bytes]) -> bool:
    """Tell whether a path leads to where `.git` keeps repositories: itself, those of modules and of worktrees."""
    names = [part.lower() for part in parts]
    if b".git" not in names:
        return False
    inner = names[len(names) - names[::-1].index(b".git") :]
    return not inner or (len(inner) > 1 and inner[0] in (b"modules", b"worktrees"))


def is_module_place(parts: list[bytes]) -> bool:
    """Tell whether a path leads to where `.git` keeps the repository of a module."""
    names = [part.lower() for part in parts]
    return is_repository_place(parts) and names[len(names) - names[::-1].index(b".git") :][:1] == [b"modules"]


def new_drivers(before: bytes, after: bytes, macros: Set[bytes] = frozenset()) -> list[bytes]:
    """Return the drivers that lines of an attributes file name which it did not have before, some by a macro."""
    known = set(before.split(b"\n"))
    return [word for line in after.split(b"\n") if line not in known for word in _drivers_of(line, macros)]


def driving_macros(*contents: bytes) -> frozenset[bytes]:
    """Return the macros of attributes files that stand for a driver, also by another macro."""
    lines = [line.split() for content in contents for line in content.split(b"\n") if b"[attr]" in line]
    found: set[bytes] = set()
    for _ in lines:
        more = {words[0].partition(b"[attr]")[2] for words in lines if _drivers_of(b" ".join(words), found)}
        if more == found:
            break
        found = more
    return frozenset(found)


def pointer_target(content: bytes) -> bytes | None:
    """Return where the `.git` file of a worktree or module points, None where it is no such file."""
    if not content.startswith(b"gitdir: "):
        return None
    target = content.removeprefix(b"gitdir: ").rstrip(b"\r\n")
    return target if target and b"\n" not in target else None


def is_inner_pointer(place: bytes, target: bytes | None, root: bytes) -> bool:
    """Tell whether a pointer leads to somewhere inside the root."""
    return bool(target) and resolve_text(place, target or b"", root) is not None


def is_usual_common(parts: list[bytes], content: bytes) -> bool:
    """Tell whether a `commondir` is that of a worktree, which leads to the repository it belongs to."""
    return parts[-3:-2] == [b"worktrees"] and content.rstrip(b"\r\n") == b"../.."


def is_reference(content: bytes) -> bool:
    """Tell whether a content is that of a reference: an object's name, or the name of another reference."""
    line = content.removesuffix(b"\n")
    name = line.removeprefix(b"ref: refs/")
    return _is_object_name(line) or (name != line and not name.translate(None, _PLAIN))


def is_log(content: bytes) -> bool:
    """Tell whether a content is that of a reference's log, which is no configuration to git, nor a path."""
    beginnings = (line.split(b" ", 2) for line in content.removesuffix(b"\n").split(b"\n"))
    return all(len(words) == 3 and all(map(_is_object_name, words[:2])) for words in beginnings)


def has_commands(todo: bytes) -> bool:
    """Tell whether the steps of a rebase run commands when it goes on."""
    return any(line.lstrip().startswith(_STEPS) for line in todo.split(b"\n"))


def strategies(content: bytes) -> list[bytes]:
    """Return the lines that name a strategy, of a file that has nothing else or of the options of a sequence."""
    lines = content.split(b"\n")
    return [line for line in lines if b"strategy" in line.lower() or b"=" not in line]


def ignore_rules(content: bytes) -> tuple[IgnoreRule, ...]:
    """Return the rules of a `.gitignore` or `info/exclude` in order; the last one that means a path counts."""
    return tuple(rule for line in content.split(b"\n")[:_MOST_RULES] if (rule := _ignore_rule(line)) is not None)


def _ignore_rule(line: bytes) -> IgnoreRule | None:
    line = line.removesuffix(b"\r")
    text = line.rstrip(b" ")
    if text != line and text.endswith(b"\\"):
        # A space at the end counts if it is escaped
        text += b" "
    is_negated = text.startswith(b"!")
    text = text.removeprefix(b"!") if is_negated else text
    body = text.rstrip(b"/")
    if not body or line.startswith(b"#"):
        return None
    # A slash before the end ties a rule to its directory; without one it means that name at any depth
    is_tied = b"/" in body
    patterns = tuple(part for part in body.split(b"/") if part)
    return IgnoreRule(
        patterns=patterns if is_tied else (b"**", *patterns), is_negated=is_negated, only_directories=body != text
    )


def has_template(content: bytes) -> bool:
    """Tell whether mise would run what a template in a file of versions says."""
    return b"{{" in content or b"{%" in content


def _leads_out(address: str, is_inside: Callable[[str], bool]) -> bool:
    path = local_path(address)
    return path is not None and not is_inside(path)


def _shown_key(key: str) -> str:
    """Return a key, without the name in it where that could pass for other words."""
    return key if len(key) <= _LONGEST_SHOWN and _SHOWN.issuperset(key) else pattern_of(key)


def _shown_all(values: list[str]) -> str:
    return " and ".join(map(_shown_address, values[:2])) + (f" and {len(values) - 2} more" if values[2:] else "")


def _shown_address(value: str) -> str:
    """Return an address as one word that is safe to show, without a password or token that it may have."""
    scheme, marks, rest = value.partition("://")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    if marks and at and user != "git":
        value = f"{scheme}://...@{host}{slash}{path}"
    shown = value.encode("unicode_escape").decode("ascii").replace(" ", "%20")
    return shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + "..."


def _any_key(pattern: str) -> str:
    return pattern.rpartition(".")[0] + ".*"


def _by_key(settings: GitSettings) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in settings:
        found.setdefault(key, []).append(value)
    return found


def _passes(check: Check, value: str, is_work_tree: Callable[[str], bool] = lambda _value: False) -> bool:
    if "\0" in value:
        return False
    match check:
        case "any":
            return True
        case "update":
            return value in _UPDATES
        case "name":
            return not value.startswith(("-", "!"))
        case "address":
            return is_address(value)
        case "work tree":
            return is_work_tree(value)
        case "refspec":
            return _is_usual_refspec(value)
        case "boolean":
            return value.lower() in _BOOLEANS
        case "recursion":
            return value.lower() in _BOOLEANS or value == "on-demand"
        case "version":
            return value in ("0", "1")
        case "path":
            parts = value.replace("\\", "/").split("/")
            # git itself has lost a carriage return at the end of one, and checked another path out (CVE-2025-48384)
            is_plain = value.isprintable() and not value.startswith(("-", "/"))
            return is_plain and ".." not in parts and ".git" not in value.lower().split("/")


def _is_usual_refspec(value: str) -> bool:
    """Tell whether a fetch writes to what it remembers of a remote alone, and not over branches of the person."""
    source, colon, dest = value.removeprefix("+").partition(":")
    if source.startswith("-") or not _is_refspec_side(source.removeprefix("^")):
        return False
    if not colon:
        return True
    is_pair = _is_refspec_side(dest) and not source.startswith("^") and source.count("*") == dest.count("*")
    is_same = dest == source and dest.startswith(("refs/tags/", "refs/notes/"))
    return is_pair and (is_same or dest.startswith("refs/remotes/"))


def _is_refspec_side(name: str) -> bool:
    parts = name.split("/")
    is_plain = name.isprintable() and _NO_REFSPEC.isdisjoint(name) and ".." not in name and name.count("*") <= 1
    return is_plain and all(part and not part.startswith(".") and not part.endswith(".lock") for part in parts)


def _has_encoded_control(address: str) -> bool:
    """Tell whether an address hides a control character: decoded, it would begin another line of what git tells."""
    codes = [part[:2].lower() for part in address.split("%")[1:]]
    return any(code[:1] in ("0", "1") or code == "7f" for code in codes)


def _place_of_file(name: bytes) -> GitPlace:
    if name in STEERING:
        return "config"
    if name == b"shallow":
        return "shallow"
    if name == b"commondir":
        return "common"
    if name == b"gitdir":
        return "pointer"
    if name == b"merge_autostash":
        return "autostash"
    if name == b"bisect_start":
        return "start"
    base = name.removesuffix(b".lock")
    return _known(base in _FILES or base.startswith(_BEGINNINGS) or base.endswith(_ENDINGS))


def _place_in_info(rest: list[bytes]) -> GitPlace:
    if rest[1:] == [b"attributes"]:
        return "attributes"
    return "grafts" if rest[1:] == [b"grafts"] else _known(len(rest) == 2 and rest[1] in _IN_INFO)


def _known(is_known: bool) -> GitPlace:
    return "ordinary" if is_known else "unknown"


def _is_stored(first: bytes, rest: list[bytes]) -> bool:
    """Tell whether it is an object, a reference, a log, or a record of resolved conflicts."""
    if first == b"objects":
        return is_object(rest)
    if first == b"refs" or first == b"reftable":
        return True
    if first == b"logs":
        return rest[1] == b"refs" or rest == [b"logs", b"head"]
    if first == b"rr-cache":
        return len(rest) == 3 and _is_hex(rest[1])
    if first == b"fsmonitor--daemon":
        return rest[1] == b"cookies"
    return first == b"lfs" and rest[1] in _LFS


def _is_hex(name: bytes) -> bool:
    return _HEX.issuperset(name)


def _drivers_of(line: bytes, macros: Set[bytes] = frozenset()) -> list[bytes]:
    if line.lstrip(b" \t\r").startswith(b"#"):
        return []
    words = line.split()
    named = [word for word in words if word.startswith(_DRIVEN) and word not in BUILT_IN_DRIVERS]
    return named + [word for word in words[1:] if word in macros]


def _is_object_name(word: bytes) -> bool:
    return len(word) in (40, 64) and not word.translate(None, b"0123456789abcdef")
