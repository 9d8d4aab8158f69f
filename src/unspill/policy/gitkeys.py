# SPDX-License-Identifier: Apache-2.0
"""Which settings of a repository may change with no question: an allow table of keys, some only with harmless values.

Everything else is held: git runs what core.fsmonitor, filters, pagers, aliases and many more name, and later versions
add others. A setting that goes away counts as changed, because it may have been what kept another one off.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    Settings = tuple[tuple[str, str], ...]
    # What the value has to be: anything, an address, a way to update, a name, the work tree of a new module, a path
    Check = Literal["any", "address", "update", "name", "work tree", "path"]

# `*` stands for one subsection, whatever it is called
ORDINARY: dict[str, Check] = {
    "branch.*.remote": "address",
    "branch.*.pushremote": "address",
    "branch.*.*": "any",
    "remote.*.url": "address",
    "remote.*.fetch": "name",
    "remote.*.tagopt": "name",
    "remote.*.gh-resolved": "any",
    "user.name": "any",
    "user.email": "any",
    "user.signingkey": "name",
    "user.useconfigonly": "any",
    "submodule.active": "any",
    "submodule.*.url": "address",
    "submodule.*.active": "any",
    "submodule.*.update": "update",
    "submodule.*.branch": "name",
    "submodule.*.ignore": "name",
    "submodule.*.shallow": "any",
    "submodule.*.fetchrecursesubmodules": "any",
    "core.repositoryformatversion": "any",
    "core.sparsecheckout": "any",
    "core.sparsecheckoutcone": "any",
    "index.sparse": "any",
    "extensions.worktreeconfig": "any",
    "lfs.repositoryformatversion": "any",
}
# How a repository is stored, decided when it is made
FORMAT: dict[str, Check] = {
    "core.filemode": "any",
    "core.bare": "any",
    "core.worktree": "work tree",
    "core.logallrefupdates": "any",
    "core.symlinks": "any",
    "core.ignorecase": "any",
    "core.precomposeunicode": "any",
    "extensions.objectformat": "any",
    "extensions.compatobjectformat": "any",
    "extensions.refstorage": "any",
    "extensions.preciousobjects": "any",
    "extensions.relativeworktrees": "any",
    "extensions.noop": "any",
}
# Of `.gitmodules`, which comes with the project's own history
OF_MODULES: dict[str, Check] = {
    "submodule.*.path": "path",
    "submodule.*.url": "address",
    "submodule.*.update": "update",
    "submodule.*.branch": "name",
    "submodule.*.ignore": "name",
    "submodule.*.shallow": "any",
    "submodule.*.fetchrecursesubmodules": "any",
}
# Passed to other programs as options
EXCLUDED = frozenset({"branch.*.mergeoptions"})
# Gone as a whole with a branch, a remote or a module
_SECTIONS = ("branch", "remote", "submodule")
_UPDATES = frozenset(("checkout", "rebase", "merge", "none"))
_SCHEMES = frozenset(("http", "https", "ssh", "git", "file", "git+ssh", "ssh+git", "ftp", "ftps"))


def changed_keys(before: Settings, after: Settings) -> list[str]:
    """Return the keys whose values are not the same in the same order, sorted."""
    old, new = _by_key(before), _by_key(after)
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def unusual_keys(before: Settings | None, after: Settings, is_work_tree: Callable[[str], bool]) -> list[str]:
    """Return the patterns of the changed keys of a configuration that are not ordinary, sorted.

    Args:
        before: None where there was no configuration, so that the repository is new.
        after: Settings in order, keys as `section.Sub.key`.
        is_work_tree: Tells whether a value leads to the work tree that belongs to the repository.
    """
    allowed = ORDINARY if before is not None else ORDINARY | FORMAT
    new = _by_key(after)
    found = set()
    for key in changed_keys(before or (), after):
        pattern = pattern_of(key)
        if key not in new and pattern.partition(".")[0] in _SECTIONS:
            continue
        check = None if pattern in EXCLUDED else allowed.get(pattern) or allowed.get(_any_key(pattern))
        if check is None or not all(_passes(check, value, is_work_tree) for value in new.get(key, ())):
            found.add(pattern)
    return sorted(found)


def unusual_modules(after: Settings) -> list[str]:
    """Return the patterns of the keys of a `.gitmodules` that are not ordinary, sorted."""
    found = set()
    for key, value in after:
        pattern = pattern_of(key)
        check = OF_MODULES.get(pattern)
        name = key.partition(".")[2].rpartition(".")[0]
        if check is None or not _passes(check, value) or ".." in name.replace("\\", "/").split("/"):
            found.add(pattern)
    return sorted(found)


def pattern_of(key: str) -> str:
    """Return a key with `*` for its subsection: safe to show, since the rest of a key is plain ASCII."""
    section, _, rest = key.partition(".")
    _, dot, variable = rest.rpartition(".")
    return f"{section}.*.{variable}" if dot else f"{section}.{rest}"


def _any_key(pattern: str) -> str:
    return pattern.rpartition(".")[0] + ".*"


def _by_key(settings: Settings) -> dict[str, list[str]]:
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
        case "path":
            parts = value.replace("\\", "/").split("/")
            # git itself has lost a carriage return at the end of one, and checked another path out (CVE-2025-48384)
            is_plain = value.isprintable() and not value.startswith(("-", "/"))
            return is_plain and ".." not in parts and ".git" not in value.lower().split("/")


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


def _has_encoded_control(address: str) -> bool:
    """Tell whether an address hides a control character: decoded, it would begin another line of what git tells."""
    codes = [part[:2].lower() for part in address.split("%")[1:]]
    return any(code[:1] in ("0", "1") or code == "7f" for code in codes)
