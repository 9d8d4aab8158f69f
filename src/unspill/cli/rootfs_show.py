# SPDX-License-Identifier: Apache-2.0
"""`unspill rootfs list` and `unspill rootfs info`: what is ready, where it is from, what is inside."""

from __future__ import annotations

from unspill.changes.render import safe_text
from unspill.cli.choosing import print_json
from unspill.cli.telling import count_text, size_text, when_text
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.cli.options import Arguments
    from unspill.model.rootfs import Rootfs, RootfsManifest
    from unspill.sandbox.rootfs import RootfsShelf

_HEAD = ("", "name", "source", "version", "arch", "tier", "size", "proof", "packages")
_MOST_PACKAGES = 40
_MOST_LISTED = 4
_BITS = ("setuid", "setgid")


def show_all(arguments: Arguments, shelf: RootfsShelf) -> int:
    """List what is ready."""
    found, current, damaged = shelf.list(), shelf.current(), shelf.damaged()
    if arguments.flag("--json"):
        from unspill.cli.rootfs_form import rootfs_form

        print_json(
            {
                "directory": show(shelf.directory),
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
        print(f"There is no rootfs in {show(shelf.directory)}. `unspill rootfs pull alpine` makes one.")
    for name, reason in damaged:
        print(f"can't be used: {safe_text(name)}: {safe_text(reason)}")
    return 0


def _row(rootfs: Rootfs, *, is_current: bool) -> tuple[str, ...]:
    manifest = rootfs.manifest
    assert manifest is not None
    key = manifest.key
    return (
        "*" if is_current else "",
        rootfs.name,
        manifest.wish.source,
        safe_text(key.version),
        safe_text(key.arch),
        str(key.tier or "-"),
        size_text(manifest.size_bytes),
        manifest.proof,
        _added(manifest.wish.packages),
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


def show_one(arguments: Arguments, shelf: RootfsShelf) -> int:
    """Describe one: its manifest, or its tools."""
    name = arguments.words[1] if len(arguments.words) > 1 else ""
    is_json = arguments.flag("--json")
    if arguments.flag("--tools"):
        tools = shelf.tools(name)
        if is_json:
            from unspill.cli.rootfs_form import tools_form

            print_json(tools_form(tools))
        else:
            print(tools.text())
        return 0
    found = shelf.find(name)
    is_current = found == shelf.current()
    if is_json:
        from unspill.cli.rootfs_form import rootfs_form

        print_json(rootfs_form(found, is_current=is_current))
    else:
        print("\n".join(_lines(found, is_current=is_current)))
    return 0


def _lines(rootfs: Rootfs, *, is_current: bool) -> Iterator[str]:
    yield f"{safe_text(rootfs.name)}{', the rootfs in use' if is_current else ''}"
    yield f"  tree:      {show(rootfs.tree)}"
    if rootfs.manifest is None:
        yield "  made by hand: nothing more is known of it"
        return
    yield from _manifest_lines(rootfs.manifest)


def _manifest_lines(manifest: RootfsManifest) -> Iterator[str]:
    from unspill.rootfs.build import PROOFS

    key = manifest.key
    tier = f", tier {key.tier}" if key.tier else ""
    yield f"  source:    {manifest.wish.source}, version {safe_text(key.version)}, {safe_text(key.arch)}{tier}"
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
