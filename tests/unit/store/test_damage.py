# SPDX-License-Identifier: Apache-2.0
"""A damaged file is either read rightly or called damaged; nothing in it ever becomes part of a path."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from unspill.errors import StoreDamaged, StoreError
from unspill.layers.lifecycle import sweep
from unspill.model.operation import Entry, Operation, OperationId, Skipped
from unspill.model.run import LayerId, RunId, SandboxId
from unspill.store.connection import as_blob, as_float, as_id, as_int, as_text
from unspill.store.db import Store
from unspill.store.layers import LayerRow
from unspill.store.operations import BackupRow
from unspill.store.runs import Owner

OWNER = Owner(pid=1, started=2, boot="boot", pids=3)


def fill(state: bytes) -> bytes:
    """Make a store with something in every table, and return its file's content."""
    with Store.open(state) as store:
        for number in range(40):
            sandbox = store.sandboxes.get_or_create(b"/project/%d" % number, "default", number, number)
            run = store.runs.start(sandbox.id, argv=(b"make", b"x" * 200), cwd=b"/", started_ns=1, owner=OWNER)
            layer = LayerRow(id=LayerId(f"{number:016x}"), sandbox=sandbox.id, root=b"/project", run=run.id)
            store.layers.add_open([layer])
            store.layers.seal(layer.id, 7)
            store.runs.end(run.replace(ended_ns=2))
            store.facts.put(f"key {number}", "value " * 50)
            store.marks.put(layer.id, {b"path": number})
            store.operations.add(
                Operation(
                    id=OperationId(f"{number:016x}"),
                    number=store.operations.next_number(sandbox.project),
                    kind="apply",
                    sandbox=sandbox.id,
                    project=sandbox.project,
                    roots=(sandbox.project,),
                    at_ns=number,
                    asked_by="ann",
                    left=(Skipped(root=0, path=b"p" * 100, why="conflict", reason="changed"),),
                )
            )
            file = store.files.put(sandbox.project, b"/root", b"path", number, is_deleted=False)
            entry = Entry(kind="file", mode=0o644, inode=1, size=2, mtime_ns=3)
            store.files.add_backup(
                BackupRow(
                    name=b"%d-name" % number,
                    file=file.id,
                    operation=OperationId(f"{number:016x}"),
                    place=b"place",
                    recorded_ns=number,
                    entry=entry,
                )
            )
    return Path(os.fsdecode(state), "store.db").read_bytes()


def read_everything(state: bytes) -> None:
    with Store.open(state) as store:
        for number in range(40):
            sandbox = store.sandboxes.find(b"/project/%d" % number, "default")
            if sandbox is not None:
                store.runs.latest(sandbox.id, 10)
                store.layers.sealed(sandbox.id)
            store.facts.find(f"key {number}")
            store.marks.of(LayerId(f"{number:016x}"))
            for file in store.files.of_project(b"/project/%d" % number, with_deleted=True):
                store.files.backups_of(file.id)
        store.runs.unfinished()
        store.layers.ids()
        store.operations.all()
        store.sandboxes.get_or_create(b"/new", "default", 1, 2)


def outcome(state: bytes, content: bytes) -> str:
    for name in os.listdir(state):
        if name.startswith(b"store.db"):
            os.unlink(os.path.join(state, name))
    fd = os.open(state + b"/store.db", os.O_CREAT | os.O_WRONLY, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
    try:
        read_everything(state)
    except StoreError as error:
        return error.code if error.remedy else "no remedy"
    return "read"


def test_flipped_bits_never_surface_as_anything_but_damage(state: bytes, full: bool) -> None:
    content = fill(state)
    chance = random.Random(20)
    seen = set()
    for _ in range(3000 if full else 120):
        page = chance.randrange(len(content) // 4096)
        place = page * 4096 + chance.randrange(4096)
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        seen.add(outcome(state, bytes(damaged)))
    assert seen <= {"read", "store", "store-damaged", "store-too-new"}
    assert "read" in seen


def test_a_file_cut_at_any_sector_is_damage_or_a_new_store(state: bytes, full: bool) -> None:
    content = fill(state)
    for size in range(512, len(content), 512 if full else 512 * 7):
        assert outcome(state, content[:size]) in {"store", "store-damaged"}, size
    assert outcome(state, b"") == "read"


@pytest.mark.parametrize("content", [b"hello\n", b"\0" * 8192, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_damaged(state: bytes, content: bytes) -> None:
    Store.open(state).close()
    assert outcome(state, content) == "store-damaged"


@pytest.mark.parametrize(
    "name", ["../../../precious", "..", "/etc", "", "0123456789abcde", "0123456789ABCDEF", "0123456789abcde/", "0" * 17]
)
def test_an_id_that_could_be_a_path_is_damage(state: bytes, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious" / "file"
    precious.parent.mkdir()
    precious.write_text("content")
    with Store.open(state) as store:
        run = store.runs.start(SandboxId("0" * 16), argv=(b"true",), cwd=b"/", started_ns=1, owner=OWNER)
        sql = "INSERT INTO layers (id, sandbox, root, run, state) VALUES (?, ?, x'2f', ?, 'open')"
        store.transaction.change(sql, (name, "0" * 16, run.id))
        with pytest.raises(StoreDamaged):
            sweep(store)
        with pytest.raises(StoreDamaged):
            store.layers.open_of_run(RunId(run.id))
    assert precious.read_text() == "content"


@pytest.mark.parametrize(
    ("convert", "cell"),
    [
        (as_text, b"bytes"),
        (as_text, None),
        (as_blob, "text"),
        (as_int, "1"),
        (as_int, 1.5),
        (as_float, "1"),
        (as_id, 7),
        (as_id, "deadbeef"),
    ],
)
def test_a_cell_of_the_wrong_type_is_damage(convert: Callable[[object], object], cell: object) -> None:
    with pytest.raises(StoreDamaged):
        convert(cell)
