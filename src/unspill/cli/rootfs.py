# SPDX-License-Identifier: Apache-2.0
"""`unspill rootfs`: the root file systems of this person, one word for each thing that can be done with them."""

from __future__ import annotations

import os
import sys

from unspill.changes.render import safe_text
from unspill.cli.main import Option, open_sandbox, verb
from unspill.cli.output import ProgressLine, count_text, fit, print_json, size_text, when_text
from unspill.errors import RootfsError, UsageError
from unspill.model.rootfs import PROOFS, RootfsSpec
from unspill.policy.config import DISTRIBUTIONS, SCHEMES
from unspill.policy.paths import show
from unspill.sandbox.rootfs import RootfsRegistry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.model.rootfs import Proof, Rootfs, RootfsManifest, SourceName
    from unspill.sandbox.rootfs import Tools


_PULL = (
    Option(name="--version", metavar="V", help="pull: this version (default: the newest; of debian, bookworm)"),
    Option(name="--arch", metavar="ARCH", help="pull: this architecture (default: this machine's)"),
    Option(
        name="--tier", metavar="N", help="pull: 1 for a shell, Python and the usual commands, 2 for git, node and more"
    ),
    Option(name="--package", metavar="NAME", repeated=True, help="pull: install this package too (repeatable)"),
    Option(name="--mirror", metavar="URL", help="pull: use this server instead of the distribution's"),
    Option(
        name="--archive",
        metavar="PLACE",
        help="pull: unpack this archive (tar, plain or compressed): a path or an address",
    ),
    Option(name="--oci", metavar="PATH", help="pull: unpack this OCI layout, a directory or an archive"),
    Option(name="--sha256", metavar="DIGEST", help="pull: require this digest of what is fetched"),
    Option(name="--as", metavar="LABEL", help="pull: name for the imported rootfs"),
)
_OTHERS = (
    Option(name="--tools", help="info: run inside it, and list its runtimes and tools"),
    Option(name="--unused", help="remove: every replaced rootfs that nothing uses, and all downloads"),
    Option(name="--force", help="remove: even the one in use"),
)
_HEAD = ("", "name", "source", "version", "arch", "tier", "size", "proof", "packages")
_MOST_PACKAGES = 40
_MOST_LISTED = 4
_BITS = ("setuid", "setgid")
_UNPROVED = {
    "same-server": "only the server that it came from vouches for this rootfs",
    "none": "nothing vouches for this rootfs",
}


@verb(
    "Manage root file systems for the view `rootfs`: list, fetch, upgrade, choose, remove, verify, describe.",
    *_PULL,
    *_OTHERS,
    positional="[list|pull|upgrade|use|remove|verify|info|keep|discard] [NAME]",
    most=2,
    examples=(
        "unspill rootfs list",
        "unspill rootfs pull --archive root.tar --as mine",
        "unspill rootfs use mine",
    ),
)
def rootfs(arguments: Arguments) -> int:
    """Do what the first word says; list what there is where there is none."""
    word = arguments.words[0] if arguments.words else "list"
    if word not in _WORDS:
        raise UsageError(f"unknown word {word!r}", remedy=f"One of {', '.join(_WORDS)}; see `unspill rootfs --help`.")
    _check(arguments, word)
    return _WORDS[word][0](arguments, RootfsRegistry(may_fork=True))


def _check(arguments: Arguments, word: str) -> None:
    _handler, options, name = _WORDS[word]
    for option in (*_PULL, *_OTHERS):
        if arguments.flag(option.name) and option.name not in options:
            raise UsageError(f"{option.name} is not for `rootfs {word}`", remedy="See `unspill rootfs --help`.")
    has_name = len(arguments.words) > 1
    if has_name and name == "none":
        raise UsageError(f"`rootfs {word}` takes no name")
    if not has_name and word == "keep":
        raise UsageError("no label given", remedy="Name the new rootfs: `unspill rootfs keep LABEL`.")
    if not has_name and name == "must":
        raise UsageError("no rootfs given", remedy="Name one that `unspill rootfs list` shows.")


def pull(arguments: Arguments, registry: RootfsRegistry) -> int:
    """Make a rootfs."""
    spec = spec_of(arguments)
    with ProgressLine(is_quiet=arguments.flag("--json")) as line:
        made = registry.pull(spec, report=line.take)
    return _show_made(arguments, registry, made)


def upgrade(arguments: Arguments, registry: RootfsRegistry) -> int:
    """Make what the spec for a rootfs means today."""
    name = arguments.words[1] if len(arguments.words) > 1 else ""
    with ProgressLine(is_quiet=arguments.flag("--json")) as line:
        upgraded = registry.upgrade(name, report=line.take)
    if not upgraded.is_newer and not arguments.flag("--json"):
        print(f"There is nothing newer than {upgraded.old.name}.")
        return 0
    return _show_made(arguments, registry, upgraded.new, {"newer": upgraded.is_newer})


def spec_of(arguments: Arguments) -> RootfsSpec:
    """Return what the command line asks for.

    Raises:
        UsageError: it does not say what, or says it twice.
    """
    source, location, label = _what(arguments)
    tier = arguments.value("--tier") or "1"
    if tier not in ("1", "2"):
        raise UsageError(f"--tier is not 1 or 2: {tier!a}")
    return RootfsSpec(
        source=source,
        version=arguments.value("--version") or "",
        arch=arguments.value("--arch") or "",
        tier=int(tier),
        packages=tuple(dict.fromkeys(arguments.values("--package"))),
        mirror=(arguments.value("--mirror") or "").rstrip("/"),
        location=location,
        sha256=(arguments.value("--sha256") or "").lower(),
        label=label,
    )


def _what(arguments: Arguments) -> tuple[SourceName, str, str]:
    """Return source, location and label."""
    name = arguments.words[1] if len(arguments.words) > 1 else ""
    archive, oci, label = (arguments.value(option) for option in ("--archive", "--oci", "--as"))
    if archive is not None and oci is not None:
        raise UsageError("--archive and --oci can't be used together", remedy="Use one of them.")
    if archive is None and oci is None:
        if name not in DISTRIBUTIONS or label is not None:
            wrong = f"not a source: {name!a}" if name or label is not None else "no source given"
            raise UsageError(
                wrong if name not in DISTRIBUTIONS else "--as is for --archive and --oci",
                remedy=f"Pull {' or '.join(DISTRIBUTIONS)}, or name an archive: --archive PATH, --oci PATH.",
            )
        return ("alpine" if name == "alpine" else "debian"), "", ""
    if (not name and label is None) or (name and label is not None and name != label):
        raise UsageError("the rootfs needs one name", remedy="Give it with --as LABEL.")
    if archive is not None:
        return "archive", _location(archive), label or name
    return "oci", _location(oci or ""), label or name


def _location(given: str) -> str:
    return given if given.startswith(SCHEMES) else os.path.abspath(given)


def _show_made(
    arguments: Arguments, registry: RootfsRegistry, made: Rootfs, more: dict[str, bool] | None = None
) -> int:
    manifest = made.manifest
    assert manifest is not None
    is_current = registry.current() == made
    if arguments.flag("--json"):
        print_json(rootfs_form(made, is_current=is_current) | (more or {}))
    else:
        use = "It is the rootfs in use." if is_current else f"Use it: unspill rootfs use {made.name}"
        holds = f"{manifest.entries:,} files and directories, {size_text(manifest.size_bytes)}"
        print(f"{made.name} is ready: {holds}. {use}")
        print(f"  proof: {PROOFS[manifest.proof]}")
        for what, text in without_lines(manifest.left_out):
            print(f"  {what}: {text}")
    if manifest.proof in _UNPROVED:
        sys.stdout.flush()
        warn_of_proof(made)
    return 0


def warn_of_proof(made: Rootfs) -> None:
    """Say so where nothing that counts speaks for the content."""
    if made.manifest is not None and made.manifest.proof in _UNPROVED:
        print(f"unspill: {_UNPROVED[made.manifest.proof]}; {_advice(made)}", file=sys.stderr)


def _advice(made: Rootfs) -> str:
    assert made.manifest is not None
    digest = made.manifest.fetched[0][1].removeprefix("sha256:") if made.manifest.fetched else ""
    known = f" (this time it was {digest})" if digest else ""
    return f"compare its digest with one from another place{known}, then pin it: --sha256 DIGEST"


def show_all(arguments: Arguments, registry: RootfsRegistry) -> int:
    """List what is ready."""
    found, current, damaged = registry.list(), registry.current(), registry.damaged()
    if arguments.flag("--json"):
        print_json(
            {
                "directory": show(registry.directory),
                "rootfs": [rootfs_form(one, is_current=one == current) for one in found],
                "damaged": [{"rootfs": safe_text(name), "reason": reason} for name, reason in damaged],
            }
        )
        return 0
    if found:
        rows = [_HEAD, *(_row(one, is_current=one == current) for one in found)]
        if not any(row[-1] for row in rows[1:]):
            rows = [row[:-1] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        print(fit(f"There is no rootfs in {show(registry.directory)}. Make one: unspill rootfs pull alpine"))
    for name, reason in damaged:
        print(f"damaged: {safe_text(name)}: {safe_text(reason)}")
    return 0


def _row(rootfs: Rootfs, *, is_current: bool) -> tuple[str, ...]:
    manifest = rootfs.manifest
    assert manifest is not None
    key = manifest.key
    return (
        "*" if is_current else "",
        rootfs.name,
        manifest.spec.source,
        safe_text(key.version),
        safe_text(key.arch),
        str(key.tier or "-"),
        size_text(manifest.size_bytes),
        manifest.proof,
        _added(manifest.spec.packages),
    )


def _added(packages: tuple[str, ...]) -> str:
    """Return the packages beyond the tier's, by which alone some differ."""
    more = len(packages) - _MOST_LISTED
    named = ", ".join(map(safe_text, packages[:_MOST_LISTED]))
    return f"{named} and {more} more" if more > 0 else named


def without_lines(left_out: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
    """Return what a tree does not have of its archive: entries were left out, of files only bits were removed."""
    found = dict(left_out)
    bits = [f"{kind} bits of {count_text(found[kind], 'file')}" for kind in _BITS if kind in found]
    rest = [f"{safe_text(kind)}: {count}" for kind, count in found.items() if kind not in _BITS]
    lines = (("left out", ", ".join(rest)), ("removed", ", ".join(bits)))
    return [line for line in lines if line[1]]


def show_one(arguments: Arguments, registry: RootfsRegistry) -> int:
    """Describe one: its manifest, or its tools."""
    name = arguments.words[1] if len(arguments.words) > 1 else ""
    is_json = arguments.flag("--json")
    if arguments.flag("--tools"):
        tools = registry.tools(name)
        if is_json:
            print_json(tools_form(tools))
        else:
            print(tools.text())
        return 0
    found = registry.find(name)
    is_current = found == registry.current()
    if is_json:
        print_json(rootfs_form(found, is_current=is_current))
    else:
        print("\n".join(_lines(found, is_current=is_current)))
    return 0


def _lines(rootfs: Rootfs, *, is_current: bool) -> Iterator[str]:
    yield f"{safe_text(rootfs.name)}{', the rootfs in use' if is_current else ''}"
    yield f"  tree:      {show(rootfs.tree)}"
    if rootfs.manifest is None:
        yield "  made by hand: unspill knows nothing more about it"
        return
    yield from _manifest_lines(rootfs.manifest)


def _manifest_lines(manifest: RootfsManifest) -> Iterator[str]:
    key = manifest.key
    tier = f", tier {key.tier}" if key.tier else ""
    yield f"  source:    {manifest.spec.source}, version {safe_text(key.version)}, {safe_text(key.arch)}{tier}"
    yield f"  made:      {when_text(manifest.created_ns)}"
    yield f"  holds:     {manifest.entries:,} files and directories, {size_text(manifest.size_bytes)}"
    yield f"  proof:     {PROOFS[manifest.proof]}"
    for name, digest in manifest.fetched:
        yield f"  fetched:   {safe_text(name)}: {safe_text(digest)}"
    yield f"  digest:    {safe_text(manifest.tree)}"
    for what, text in without_lines(manifest.left_out):
        yield f"  {what + ':':<11}{text}"
    if manifest.packages:
        named = [safe_text(f"{name} {version}") for name, version in manifest.packages[:_MOST_PACKAGES]]
        more = len(manifest.packages) - len(named)
        yield f"  packages:  {', '.join(named)}{f' and {more} more (--json lists them)' if more else ''}"


def use(arguments: Arguments, registry: RootfsRegistry) -> int:
    """Choose the one for policies that name none."""
    chosen = registry.use(arguments.words[1])
    if arguments.flag("--json"):
        print_json({"used": chosen.name})
    else:
        print(f"{chosen.name} is now the rootfs in use. Commands that are running keep theirs.")
    return 0


def remove(arguments: Arguments, registry: RootfsRegistry) -> int:
    """Remove one, or all that nobody needs."""
    is_unused = arguments.flag("--unused")
    if is_unused is (len(arguments.words) > 1) or (is_unused and arguments.flag("--force")):
        raise UsageError("no rootfs given", remedy="Name one that `unspill rootfs list` shows, or use --unused alone.")
    if is_unused:
        removed, freed = registry.remove_unused(), registry.empty_downloads()
    else:
        removed, freed = (registry.remove(arguments.words[1], force=arguments.flag("--force")),), 0
    if arguments.flag("--json"):
        print_json({"removed": list(removed)} | ({"downloads_bytes": freed} if is_unused else {}))
        return 0
    if removed:
        print(f"Removed {', '.join(removed)}.")
    if freed:
        print(f"Removed downloads: {size_text(freed)}.")
    if not removed and not freed:
        print("There is nothing to remove.")
    return 0


def verify(arguments: Arguments, registry: RootfsRegistry) -> int:
    """Compare trees with their manifests: one, or all that are ready; one that has changed does not hide the others."""
    names = [registry.find(name).name for name in arguments.words[1:]] or [found.name for found in registry.list()]
    proofs: list[tuple[str, Proof]] = []
    wrong: list[tuple[str, RootfsError]] = []
    for name in names:
        try:
            proofs.append((name, registry.verify(name)))
        except RootfsError as error:
            wrong.append((name, error))
    if arguments.flag("--json"):
        print_json(
            {
                "verified": [{"rootfs": name, "proof": proof} for name, proof in proofs],
                "failed": [{"rootfs": name, "reason": found.message} for name, found in wrong],
            }
        )
    else:
        for name, proof in proofs:
            print(f"{name} is unchanged since it was made. Proof: {PROOFS[proof]}.")
        if len(proofs) > 1:
            print(f"Verified {count_text(len(proofs), 'tree')}.")
        if not names:
            print(f"There is no rootfs in {show(registry.directory)}.")
    sys.stdout.flush()
    for _name, found in wrong:
        print(f"unspill: {safe_text(found.message)}\n  {safe_text(found.remedy)}", file=sys.stderr)
    return RootfsError.exit_code if wrong else 0


def keep(arguments: Arguments, registry: RootfsRegistry) -> int:
    """Make it a rootfs of its own."""
    sandbox = open_sandbox(arguments)
    with ProgressLine(is_quiet=arguments.flag("--json")) as line:
        made = registry.keep(sandbox, arguments.words[1], report=line.take)
    if arguments.flag("--json"):
        print_json({"kept": made.name})
        return 0
    size = "" if made.manifest is None else f" ({size_text(made.manifest.size_bytes)})"
    print(f"Kept as {made.name}{size}. Use it: unspill rootfs use {made.name}")
    return 0


def discard(arguments: Arguments, registry: RootfsRegistry) -> int:
    """Throw it away."""
    count = registry.discard(open_sandbox(arguments))
    if arguments.flag("--json"):
        print_json({"discarded_layers": count})
    elif count:
        print("Discarded. The next run sees the rootfs as it was made.")
    else:
        print("This sandbox has written nothing to its rootfs.")
    return 0


def rootfs_form(rootfs: Rootfs, *, is_current: bool) -> dict[str, Any]:
    """Return a rootfs with all that its manifest says."""
    form: dict[str, Any] = {"rootfs": rootfs.name, "current": is_current, "tree": show(rootfs.tree)}
    manifest = rootfs.manifest
    if manifest is None:
        return form
    return form | {
        "source": manifest.spec.source,
        "version": manifest.key.version,
        "arch": manifest.key.arch,
        "tier": manifest.key.tier,
        "proof": manifest.proof,
        "packages": [{"name": name, "version": version} for name, version in manifest.packages],
        "fetched": [{"name": name, "sha256": digest} for name, digest in manifest.fetched],
        "left_out": dict(manifest.left_out),
        "tree_sha256": manifest.tree,
        "entries": manifest.entries,
        "bytes": manifest.size_bytes,
        "created_ns": manifest.created_ns,
    }


def tools_form(tools: Tools) -> dict[str, Any]:
    """Return what is inside a rootfs, and the words for a prompt."""
    return {
        "rootfs": tools.rootfs,
        "system": tools.system,
        "release": tools.release,
        "libc": tools.libc,
        "arch": tools.arch,
        "tools": [tool.as_dict() for tool in tools.tools],
        "hosts": list(tools.hosts),
        "tmp": tools.tmp,
        "writable": tools.writable,
        "mounts": list(tools.mounts),
        "text": tools.text(),
    }


# What a word does, which options it has, and whether it needs a name, may have one, or has none
_WORDS: dict[str, tuple[Callable[[Arguments, RootfsRegistry], int], tuple[str, ...], str]] = {
    "list": (show_all, (), "none"),
    "pull": (pull, tuple(option.name for option in _PULL), "may"),
    "upgrade": (upgrade, (), "may"),
    "use": (use, (), "must"),
    "remove": (remove, ("--unused", "--force"), "may"),
    "verify": (verify, (), "may"),
    "info": (show_one, ("--tools",), "may"),
    "keep": (keep, (), "must"),
    "discard": (discard, (), "none"),
}
