# SPDX-License-Identifier: Apache-2.0
"""Copies of the database: whole or not there, for the owner alone, and put back with only what is still there."""

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from unspill.errors import StoreDamaged
from unspill.model.operation import OperationId
from unspill.model.run import LayerId, RunId, SandboxId
from unspill.store.copies import BEFORE_MIGRATION, DAILY, copied_ns, make_copy, put_back
from unspill.store.db import Store
from unspill.store.layers import LayerRow
from unspill.store.migrations import MIGRATIONS
from unspill.store.runs import Owner

OWNER = Owner(pid=1, started=2, boot="boot", pids=3)
GARBAGE = b"not a database at all" * 1000


def copy_path(state: bytes, name: bytes = DAILY) -> bytes:
    return state + b"/copies/" + name


def read_fact(path: bytes) -> str | None:
    with closing(sqlite3.connect(path)) as db:
        row = db.execute("SELECT value FROM facts WHERE key = 'key'").fetchone()
    return None if row is None else row[0]


def files(state: bytes) -> set[bytes]:
    return {name for name in os.listdir(state) if name.startswith(b"store.db")}


def add_layer(store: Store, number: int, *, is_open: bool = False, on_disk: bool = True) -> LayerId:
    sandbox = SandboxId("0" * 16)
    run = store.runs.start(sandbox, argv=(b"make",), cwd=b"/", started_ns=1, owner=OWNER)
    layer = LayerId(f"{number:016x}")
    store.layers.add_open([LayerRow(id=layer, sandbox=sandbox, root=b"/p", run=run.id)])
    if not is_open:
        store.layers.seal(layer, 7)
        store.marks.put(layer, {b"path": 9})
        store.runs.end(run.replace(ended_ns=2, held=True))
    if on_disk:
        os.mkdir(b"%b/layers/%b" % (store.state, layer.encode()))
    return layer


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_a_copy_is_whole_and_for_the_owner_alone_whatever_the_umask(store: Store, umask: int) -> None:
    store.facts.put("key", "value")
    before = os.umask(umask)
    try:
        make_copy(store.transaction, store.state)
    finally:
        os.umask(before)
    path = copy_path(store.state)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert read_fact(path) == "value"
    assert os.listdir(store.state + b"/copies") == [DAILY]


def test_a_state_directory_whose_name_is_not_text_has_copies_too(tmp_path: Path) -> None:
    with Store.open(os.fsencode(tmp_path) + b"/st\xff\n'te") as store:
        store.facts.put("key", "value")
        make_copy(store.transaction, store.state)
        assert read_fact(copy_path(store.state)) == "value"


def test_a_copy_takes_the_place_of_an_older_one_only_when_it_is_whole(store: Store) -> None:
    store.facts.put("key", "old")
    make_copy(store.transaction, store.state)
    store.facts.put("key", "new" * 100_000)
    # In a process of its own: there a file can't grow beyond a bound, as on a full disk
    program = (
        "import os, resource, signal, sys; from unspill.errors import StoreError\n"
        "from unspill.store.copies import make_copy; from unspill.store.db import Store\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); store = Store.open(os.fsencode(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))\n"
        "try: make_copy(store.transaction, store.state)\n"
        "except StoreError as error: print(error.code)\n"
    )
    command: list[str | bytes] = [sys.executable, "-c", program, store.state]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"store\n"
    assert os.listdir(store.state + b"/copies") == [DAILY]
    assert read_fact(copy_path(store.state)) == "old"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    make_copy(store.transaction, store.state)
    assert read_fact(copy_path(store.state)) == "new" * 100_000


def test_what_a_crash_left_of_a_copy_is_in_nobodys_way(store: Store) -> None:
    for suffix in (b".new", b".new-journal"):
        with open(copy_path(store.state) + suffix, "wb") as file:
            file.write(GARBAGE)
    store.facts.put("key", "value")
    make_copy(store.transaction, store.state)
    assert read_fact(copy_path(store.state)) == "value"
    assert os.listdir(store.state + b"/copies") == [DAILY]


def test_a_damaged_database_never_takes_the_place_of_a_good_copy(state: bytes) -> None:
    with Store.open(state) as store:
        layer = add_layer(store, 0xABCDEF0123456789)
        make_copy(store.transaction, state)
    content = Path(os.fsdecode(state), "store.db").read_bytes()
    # One of the places is the table's, the others are indices: a copy of it would have no contradiction any more
    for place in range(content.count(layer.encode())):
        parts = content.split(layer.encode())
        damaged = layer.encode().join(parts[: place + 1]) + b"0" * 16 + layer.encode().join(parts[place + 1 :])
        with open(state + b"/store.db", "wb") as file:
            file.write(damaged)
        with Store.open(state) as store:
            if store.layers.ids() == {layer} and store.marks.of(layer) == {}:
                continue
            with pytest.raises(StoreDamaged):
                make_copy(store.transaction, state)
    with closing(sqlite3.connect(copy_path(state))) as db:
        assert db.execute("SELECT id FROM layers").fetchall() == [(layer,)]


def test_others_may_write_while_a_copy_is_made(state: bytes, store: Store) -> None:
    stop = threading.Event()
    counted = 0

    def count_up() -> None:
        nonlocal counted
        with Store.open(state) as other:
            while not stop.is_set():
                counted += 1
                other.facts.put("key", str(counted))

    thread = threading.Thread(target=count_up)
    thread.start()
    try:
        while counted < 5:
            pass
        for _ in range(20):
            make_copy(store.transaction, state)
            assert int(read_fact(copy_path(state)) or "0") <= counted
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("version", [1, 9, len(MIGRATIONS) - 1])
def test_a_copy_is_made_before_each_migration_and_put_back_it_is_migrated_again(
    state: bytes, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unspill.store.migrations.MIGRATIONS", MIGRATIONS[:version])
    with Store.open(state) as store:
        row = b"INSERT INTO sandboxes (id, project, name, device, inode, created_ns) VALUES (?, x'2f', 'x', 1, 2, 3)"
        store.transaction.change(row.decode(), ("0" * 16,))
        assert os.listdir(state + b"/copies") == []
    monkeypatch.undo()
    Store.open(state).close()
    with closing(sqlite3.connect(copy_path(state, BEFORE_MIGRATION))) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)
        assert db.execute("SELECT name FROM sandboxes").fetchone() == ("x",)
    os.unlink(state + b"/store.db")
    assert put_back(state).copied_ns == copied_ns(state, BEFORE_MIGRATION)
    with Store.open(state) as store:
        assert [sandbox.name for sandbox in store.sandboxes.all()] == ["x"]
        assert store.transaction.rows("PRAGMA user_version") == [(len(MIGRATIONS),)]


def test_a_migration_without_room_for_a_copy_does_not_happen(state: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unspill.store.migrations.MIGRATIONS", MIGRATIONS[:-1])
    Store.open(state).close()
    monkeypatch.undo()
    os.chmod(state + b"/copies", 0o500)
    with pytest.raises(OSError, match="Permission denied"):
        Store.open(state)
    with closing(sqlite3.connect(state + b"/store.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) - 1,)
    os.chmod(state + b"/copies", 0o700)
    Store.open(state).close()


@pytest.mark.parametrize("content", [None, b"", GARBAGE])
def test_the_newest_copy_is_put_back_and_the_damaged_file_kept(state: bytes, content: bytes | None) -> None:
    with Store.open(state) as store:
        store.facts.put("key", "older")
        make_copy(store.transaction, state, BEFORE_MIGRATION)
        store.facts.put("key", "newer")
        make_copy(store.transaction, state)
        store.facts.put("key", "lost")
    os.utime(copy_path(state, BEFORE_MIGRATION), (1, 1))
    os.unlink(state + b"/store.db")
    if content is not None:
        with open(state + b"/store.db", "wb") as file:
            file.write(content)
    done = put_back(state)
    assert done.copied_ns == copied_ns(state)
    if content:
        assert done.database is not None
        assert Path(os.fsdecode(done.database)).read_bytes() == content
    else:
        assert done.database is None
    assert len(files(state)) == (2 if content else 1)
    assert stat.S_IMODE(os.stat(state + b"/store.db").st_mode) == 0o600
    assert sorted(os.listdir(state + b"/copies")) == [BEFORE_MIGRATION, DAILY], "the copies stay"
    with Store.open(state) as store:
        assert store.facts.find("key") == "newer"
        assert store.transaction.rows("PRAGMA journal_mode") == [("wal",)]
        store.check()


def test_the_log_of_the_lost_database_is_not_taken_for_that_of_the_copy(state: bytes) -> None:
    program = (
        "import os, sys; from unspill.store.copies import make_copy; from unspill.store.db import Store\n"
        "store = Store.open(os.fsencode(sys.argv[1])); store.facts.put('key', 'copied')\n"
        "make_copy(store.transaction, store.state); store.facts.put('key', 'logged'); os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, state], check=True)
    assert os.path.getsize(state + b"/store.db-wal") > 0
    with open(state + b"/store.db", "r+b") as file:
        file.write(GARBAGE)
    put_back(state)
    with Store.open(state) as store:
        assert store.facts.find("key") == "copied"
        store.check()


@pytest.mark.parametrize("damage", ["garbage", "too new", "foreign"])
def test_a_copy_that_can_not_be_used_gives_way_to_the_next_and_at_last_to_a_new_database(
    state: bytes, damage: str
) -> None:
    def spoil(path: bytes) -> None:
        if damage == "garbage":
            with open(path, "wb") as file:
                file.write(GARBAGE)
            return
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA application_id = 1" if damage == "foreign" else "PRAGMA user_version = 999")

    with Store.open(state) as store:
        store.facts.put("key", "older")
        make_copy(store.transaction, state, BEFORE_MIGRATION)
        store.facts.put("key", "newer")
        make_copy(store.transaction, state)
    spoil(copy_path(state))
    assert put_back(state).copied_ns == copied_ns(state, BEFORE_MIGRATION)
    with Store.open(state) as store:
        assert store.facts.find("key") == "older"
    spoil(copy_path(state, BEFORE_MIGRATION))
    assert put_back(state).copied_ns is None
    with Store.open(state) as store:
        assert store.facts.find("key") is None
        assert store.transaction.rows("PRAGMA journal_mode") == [("wal",)]


def test_without_shared_memory_what_is_put_back_has_an_ordinary_journal(state: bytes) -> None:
    with Store.open(state) as store:
        store.facts.put("key", "value")
        make_copy(store.transaction, state)
    os.unlink(state + b"/store.db")
    # SQLite can't make the file that it would share
    os.mkdir(state + b"/store.db.new-shm")
    put_back(state)
    with Store.open(state) as store:
        assert store.facts.find("key") == "value"
        assert store.transaction.rows("PRAGMA journal_mode") == [("delete",)]


def test_what_was_open_or_has_gone_since_the_copy_has_no_row_when_it_is_put_back(state: bytes) -> None:
    with Store.open(state) as store:
        kept = add_layer(store, 1)
        gone = add_layer(store, 2, on_disk=False)
        opened = add_layer(store, 3, is_open=True)
        taken = add_layer(store, 4, on_disk=False)
        make_copy(store.transaction, state)
    operation = OperationId("f" * 16)
    os.makedirs(b"%b/operations/%b/tree/%b" % (state, operation.encode(), taken.encode()))
    os.mkdir(state + b"/pending/" + operation.encode())
    os.unlink(state + b"/store.db")
    put_back(state)
    with Store.open(state) as store:
        assert store.layers.ids() == {kept, taken}, "an operation that is under way gives back what it took"
        assert store.marks.of(kept) == {b"path": 9}
        assert store.marks.of(gone) == {}
        assert store.runs.unfinished() == ()
        held = {run.number: run.held for run in store.runs.latest(SandboxId("0" * 16), 9)}
        assert held == {1: True, 2: False, 3: False, 4: True}
        assert store.layers.find(opened) is None
        assert store.runs.known([RunId("0" * 16)]) == set()
