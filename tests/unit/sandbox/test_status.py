# SPDX-License-Identifier: Apache-2.0
"""Status names every part of the state directory and what it takes on the disk."""

import os

from tests.unit.layers.ground import Ground, upper, write
from tests.unit.rootfs.making import make
from tests.unit.sandbox.ledger import Ledger
from unspill.layers.lifecycle import playground_dir, sweep
from unspill.rootfs.registry import Registry
from unspill.sandbox.upkeep import status

SIZE = 200_000


def test_an_empty_store_costs_only_its_database(ledger: Ledger) -> None:
    shown = status(ledger.store, ledger.state + b"-data", ledger.state + b"-rootfs")
    assert shown.database_bytes == shown.total_bytes > 0
    assert (shown.held, shown.displaced, shown.aside, shown.pending, shown.spilled_bytes) == ((), (), (), (), 0)
    (project,) = shown.projects
    assert (project.path, project.caches, project.playground_bytes) == (ledger.project, 0, 0)


def test_each_part_is_counted_where_it_belongs(ledger: Ledger) -> None:
    ground = Ground(ledger.store, ledger.project, ledger.sandbox)
    cache = ledger.project + b"-cache"
    os.mkdir(cache)
    opened = ground.open(cache)
    write(upper(opened, 1) + b"/wheel", b"w" * SIZE)
    ground.drop(opened)
    opened = ground.open()
    write(upper(opened) + b"/held", b"h" * SIZE * 2)
    ground.hold(b"small")
    ground.drop(opened)
    ledger.write(b"f", b"o" * SIZE)
    ledger.apply({b"f": b"new"})
    write(ledger.state + b"/runs/" + opened.run.id.encode() + b"/stdout", b"s" * SIZE)
    write(ledger.state + b"/pending/" + b"a" * 16)
    data = ledger.state + b"-data"
    write(playground_dir(data, ledger.project) + b"/note", b"p" * SIZE)
    shown = status(ledger.store, data, ledger.state + b"-rootfs")
    (held,), (displaced,), (project,) = shown.held, shown.displaced, shown.projects
    assert (held.sandbox, held.layers) == (ledger.sandbox, 1)
    assert held.bytes < SIZE, "what was dropped is gone"
    assert displaced.operation in ledger.store.operations.all()
    for size in (displaced.bytes, project.caches, project.playground_bytes, shown.spilled_bytes):
        assert SIZE <= size < SIZE + 40_000
    assert shown.pending == ("a" * 16,)
    whole = held.bytes + displaced.bytes + project.caches + shown.spilled_bytes + shown.database_bytes
    assert shown.total_bytes == whole, "the playground is not in the state directory"


def test_what_was_set_aside_is_named(ledger: Ledger) -> None:
    Ground(ledger.store, ledger.project, ledger.sandbox).hold(b"a")
    (row,) = ledger.store.layers.sealed(ledger.sandbox.id)
    ledger.store.layers.remove([row.id])
    sweep(ledger.store)
    write(ledger.state + b"/store.db.damaged-1", b"x" * SIZE)
    shown = status(ledger.store, ledger.state + b"-data", ledger.state + b"-rootfs")
    assert [os.path.basename(path) for path in shown.aside] == [row.id.encode(), b"store.db.damaged-1"]
    assert os.path.basename(os.path.dirname(shown.aside[0])) == b"layers"
    assert shown.aside_bytes > SIZE


def test_each_rootfs_and_what_was_fetched_is_told_beside_the_state(ledger: Ledger) -> None:
    directory = ledger.state + b"-rootfs"
    shown = status(ledger.store, ledger.state + b"-data", directory)
    assert (shown.rootfs_sizes.rootfs, shown.rootfs_sizes.downloads_bytes) == ((), 0)
    total = shown.total_bytes
    made = make(Registry(directory))
    assert made.manifest is not None
    write(directory + b"/downloads/" + b"a" * 64, b"x" * SIZE)
    write(directory + b"/downloads/debian-x/archives/y.deb", b"x" * SIZE)
    shown = status(ledger.store, ledger.state + b"-data", directory)
    assert shown.rootfs_sizes.rootfs == ((made.name, made.manifest.size_bytes),)
    assert 2 * SIZE <= shown.rootfs_sizes.downloads_bytes < 2 * SIZE + 40_000
    assert shown.total_bytes == total
    os.chmod(directory, 0o777)
    assert status(ledger.store, ledger.state + b"-data", directory).rootfs_sizes.rootfs == (), "not to be trusted"
    os.chmod(directory, 0o700)
