# SPDX-License-Identifier: Apache-2.0
"""Manifests: one small file per sealed layer that says what the layer is, without the database.

A line of checksum and JSON. The store stays the truth while it can be read; a layer whose row is gone although its
manifest is there is never taken for garbage. A manifest goes in the transaction in which its layer's row does.
"""

from __future__ import annotations

import os

from unspill.layers.places import manifest_file
from unspill.model.layer import LayerId, RunId, SandboxId
from unspill.model.record import Record
from unspill.model.run import Output, Run
from unspill.store.cells import is_id
from unspill.store.layers import LayerRow
from unspill.store.outcomes import to_cells, to_outcome
from unspill.store.sandboxes import SandboxRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from unspill.store.db import Store

VERSION = 1
_LARGEST = 64 << 20


class Manifest(Record):
    """A layer, the sandbox and the run that it belongs to, and how many layers of its stack lie below it."""

    layer: LayerRow
    sandbox: SandboxRow
    run: Run | None
    depth: int
    overrides: tuple[tuple[bytes, int], ...] = ()


def write_manifests(store: Store, layers: Iterable[LayerId], *, durable: bool = False) -> None:
    """Write what the store knows about sealed layers; one that it does not know is passed over."""
    for layer in layers:
        row = store.layers.find(layer)
        if row is not None:
            write_manifest(store, row, durable=durable)


def write_manifest(store: Store, row: LayerRow, *, durable: bool = False) -> None:
    """Write what the store knows about a layer that is sealed."""
    manifest = _describe(store, row)
    if manifest is not None:
        save(manifest_file(store.state, row.id), to_line(manifest), durable=durable)


def remove_manifests(state: bytes, layers: Iterable[LayerId]) -> None:
    """Remove manifests, in the transaction that removes the layers' rows: taken back, the next sweep writes them."""
    for layer in layers:
        try:
            os.unlink(manifest_file(state, layer))
        except FileNotFoundError:
            continue


def read_manifest(state: bytes, layer: LayerId) -> Manifest | None:
    """Return what a manifest says; None where there is none that is whole and of this very layer."""
    try:
        fd = os.open(manifest_file(state, layer), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            manifest = parse(file.read(_LARGEST))
    except OSError:
        return None
    return manifest if manifest is not None and manifest.layer.id == layer else None


def save(path: bytes, line: bytes, *, durable: bool) -> None:
    """Put a small file in its place, whole or not at all, and never under another name; `durable`: also on the disk."""
    parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = os.path.basename(path)
        try:
            fd = os.open(b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=parent)
        except OSError:
            # A filesystem without nameless files. What a crash leaves there has no right checksum.
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=parent)
            name = b""
        with open(fd, "wb") as file:
            file.write(line)
            file.flush()
            if durable:
                os.fsync(fd)
            if name:
                _give_name(fd, name, parent)
        if durable:
            os.fsync(parent)
    finally:
        os.close(parent)


def _give_name(fd: int, name: bytes, parent: int) -> None:
    source = b"/proc/self/fd/%d" % fd
    try:
        # With a descriptor of the directory the link is followed, without one it is not
        os.link(source, name, dst_dir_fd=parent, follow_symlinks=True)
    except FileExistsError:
        os.unlink(name, dir_fd=parent)
        os.link(source, name, dst_dir_fd=parent, follow_symlinks=True)


def _describe(store: Store, row: LayerRow) -> Manifest | None:
    sandbox = store.sandboxes.find_id(row.sandbox)
    if sandbox is None:
        return None
    stack = [other.id for other in store.layers.sealed(row.sandbox) if other.root == row.root]
    return Manifest(
        layer=row,
        sandbox=sandbox,
        run=store.runs.find(row.run),
        depth=stack.index(row.id) if row.id in stack else len(stack),
        overrides=tuple(store.marks.of(row.id).items()),
    )


def to_line(manifest: Manifest) -> bytes:
    """Return the content of a manifest's file."""
    # `json` itself would cost each run that holds something 2 ms; this part of it is built in.
    from _json import encode_basestring_ascii as quote
    from zlib import crc32

    def text(value: bytes) -> str:
        return quote(value.decode("utf-8", "surrogateescape"))

    layer, sandbox, run = manifest.layer, manifest.sandbox, manifest.run
    fields = {
        "version": str(VERSION),
        "layer": f'["{layer.id}", {text(layer.root)}, "{layer.run}", {layer.mark_ns}]',
        "sandbox": f'["{sandbox.id}", {text(sandbox.project)}, {quote(sandbox.name)}, {sandbox.device},'
        f" {sandbox.inode}, {sandbox.created_ns}]",
        "depth": str(manifest.depth),
        "overrides": "[" + ", ".join(f"[{text(path)}, {mark}]" for path, mark in manifest.overrides) + "]",
        "run": "null",
    }
    if run is not None:
        words = ", ".join(map(text, run.argv))
        ended = "null" if run.ended_ns is None else run.ended_ns
        outcome = "null" if run.outcome is None else _plain(to_cells(run.outcome), quote)
        fields["run"] = (
            f"[{run.number}, [{words}], {text(run.cwd)}, {run.started_ns}, {ended}, {outcome}, {run.changed}]"
        )
    line = ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()
    return b"%08x %b\n" % (crc32(line), line)


def _plain(cells: tuple[Any, ...], quote: Any) -> str:
    texts = ("null" if cell is None else quote(cell) if isinstance(cell, str) else str(cell) for cell in cells)
    return f"[{', '.join(texts)}]"


def parse(content: bytes) -> Manifest | None:
    """Return a manifest from the content of its file, None where that is not whole or of another form."""
    import json
    from zlib import crc32

    checksum, _, line = content.removesuffix(b"\n").partition(b" ")
    if checksum != b"%08x" % crc32(line):
        return None
    value = json.loads(line)
    if value.get("version") != VERSION:
        return None
    layer, root, run, mark_ns = value["layer"]
    sandbox, project, name, device, inode, created_ns = value["sandbox"]
    # Whoever can forge a checksum still can't name a path
    if not (is_id(layer) and is_id(run) and is_id(sandbox)):
        return None
    return Manifest(
        layer=LayerRow(
            id=LayerId(layer), sandbox=SandboxId(sandbox), root=_bytes(root), run=RunId(run), mark_ns=mark_ns
        ),
        sandbox=SandboxRow(
            id=SandboxId(sandbox),
            project=_bytes(project),
            name=name,
            device=device,
            inode=inode,
            created_ns=created_ns,
        ),
        run=None if value["run"] is None else _to_run(RunId(run), sandbox, value["run"]),
        depth=value["depth"],
        overrides=tuple((_bytes(path), mark) for path, mark in value["overrides"]),
    )


def _to_run(run: RunId, sandbox: str, value: list[Any]) -> Run:
    number, argv, cwd, started_ns, ended_ns, outcome, changed = value
    return Run(
        id=run,
        number=number,
        sandbox=sandbox,
        argv=tuple(map(_bytes, argv)),
        cwd=_bytes(cwd),
        started_ns=started_ns,
        ended_ns=ended_ns,
        outcome=None if outcome is None else to_outcome(*outcome),
        stdout=Output(),
        stderr=Output(),
        changed=changed,
        held=True,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
