# SPDX-License-Identifier: Apache-2.0
"""Opening: for the owner alone, of a known version, by many at once; a damaged file is read rightly or named so."""

import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unspill.errors import StoreDamaged, StoreError, StoreTooNew
from unspill.layers.lifecycle import sweep
from unspill.model.operation import Entry, Operation, OperationId, Skipped
from unspill.model.run import LayerId, RunId, SandboxId
from unspill.store.connection import as_blob, as_float, as_id, as_int, as_text
from unspill.store.db import PARTS, Store
from unspill.store.layers import LayerRow
from unspill.store.migrations import MIGRATIONS, migrate
from unspill.store.operations import BackupRow
from unspill.store.runs import Owner

OPEN = "import os, sys; from unspill.store.db import Store; store = Store.open(os.fsencode(sys.argv[1]))"

# What the command line can't afford to load; `functools` and `collections` come with SQLite's own module.
HEAVY = set(
    "typing dataclasses enum re json contextlib pathlib argparse subprocess socket threading asyncio inspect"
    " tempfile shutil logging datetime signal tomllib hashlib difflib secrets random sqlite3".split()
)


def mode(path: bytes) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def python(program: str, *arguments: bytes) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> int:
    process.communicate()
    return process.returncode


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o027])
def test_everything_is_for_the_owner_alone_whatever_the_umask(state: bytes, umask: int) -> None:
    before = os.umask(umask)
    try:
        with Store.open(state) as store:
            store.facts.put("key", "value")
            modes = {name: mode(os.path.join(state, name)) for name in os.listdir(state)}
    finally:
        os.umask(before)
    assert mode(state) == 0o700
    assert modes.pop(b"empty") == 0o755
    assert {name for name, bits in modes.items() if bits == 0o600} == {b"store.db", b"store.db-wal", b"store.db-shm"}
    assert {name for name, bits in modes.items() if bits == 0o700} == set(PARTS) - {b"empty"}


@pytest.mark.parametrize("part", PARTS, ids=os.fsdecode)
def test_a_part_that_was_lost_is_made_again_as_it_was(state: bytes, part: bytes) -> None:
    with Store.open(state) as store:
        store.facts.put("key", "value")
        before = mode(os.path.join(state, part))
    os.rmdir(os.path.join(state, part))
    with Store.open(state) as store:
        assert store.facts.find("key") == "value"
    assert mode(os.path.join(state, part)) == before


def test_directories_above_are_made_for_the_owner_alone_too(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Store.open(os.fsencode(tmp_path / "local" / "state" / "unspill")).close()
    finally:
        os.umask(before)
    assert [mode(os.fsencode(tmp_path / part)) for part in ("local", "local/state")] == [0o700, 0o700]


def test_sqlite_alone_would_let_others_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with sqlite3.connect(tmp_path / "plain.db") as plain:
            plain.execute("CREATE TABLE t (a)")
    finally:
        os.umask(before)
    plain.close()
    assert mode(os.fsencode(tmp_path / "plain.db")) == 0o644


@pytest.mark.parametrize("bits", [0o750, 0o705, 0o711, 0o770, 0o777])
def test_a_directory_that_others_may_enter_is_refused_with_the_remedy(state: bytes, bits: int) -> None:
    Store.open(state).close()
    os.chmod(state, bits)
    with pytest.raises(StoreError, match="other users") as refusal:
        Store.open(state)
    assert refusal.value.remedy == f"Run: chmod 700 {os.fsdecode(state)}"
    os.chmod(state, 0o700)
    Store.open(state).close()


def test_a_directory_of_another_user_is_refused() -> None:
    with pytest.raises(StoreError, match="belongs to user 0"):
        Store.open(b"/usr")


def test_a_link_to_a_directory_is_refused(state: bytes, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    os.symlink("elsewhere", state)
    with pytest.raises(StoreError, match="not a directory"):
        Store.open(state)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_place_where_nothing_can_be_made_is_refused_with_a_remedy() -> None:
    with pytest.raises(StoreError, match="can't be created") as refusal:
        Store.open(b"/proc/unspill/state")
    assert "UNSPILL_STATE_DIR" in refusal.value.remedy


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_directory_that_was_removed_is_made_again(state: bytes, part: bytes) -> None:
    Store.open(state).close()
    place = os.path.join(state, part)
    os.rmdir(place)
    Store.open(state).close()
    assert os.listdir(place) == []
    assert mode(place) == (0o755 if part == b"empty" else 0o700)


def test_a_file_in_the_place_of_a_part_is_named_with_the_remedy(state: bytes) -> None:
    Store.open(state).close()
    place = os.path.join(state, b"layers")
    os.rmdir(place)
    os.symlink(b"/tmp", place)
    with pytest.raises(StoreError) as refused:
        Store.open(state)
    assert f"mv {os.fsdecode(place)} " in refused.value.remedy


def test_a_store_of_a_newer_unspill_is_refused(state: bytes) -> None:
    Store.open(state).close()
    with sqlite3.connect(state + b"/store.db") as newer:
        newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    newer.close()
    with pytest.raises(StoreTooNew, match=f"version {len(MIGRATIONS) + 1}"):
        Store.open(state)


@pytest.mark.parametrize("version", range(len(MIGRATIONS)))
def test_a_store_of_any_older_version_is_brought_up_to_date(
    state: bytes, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(state).close()
    os.unlink(state + b"/store.db")
    monkeypatch.setattr("unspill.store.migrations.MIGRATIONS", MIGRATIONS[:version])
    Store.open(state).close()
    monkeypatch.undo()
    with Store.open(state) as store:
        assert store.transaction.rows("PRAGMA user_version") == [(len(MIGRATIONS),)]
        store.sandboxes.get_or_create(b"/project", "default", 1, 2)
        store.facts.put("key", "value")
        assert store.grants.all() == ()
        assert store.requests.waiting(0) == ()


def test_a_migration_that_fails_leaves_the_old_version(state: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def m999_broken(_db: object) -> None:
        raise OSError("no space")

    with Store.open(state) as store:
        monkeypatch.setattr("unspill.store.migrations.MIGRATIONS", (*MIGRATIONS, m999_broken))
        with pytest.raises(OSError, match="no space"):
            migrate(store.transaction, len(MIGRATIONS))
        assert store.transaction.rows("PRAGMA user_version") == [(len(MIGRATIONS),)]


def test_what_is_trusted_moves_out_of_the_cache(state: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [step.__name__.partition("_")[2] for step in MIGRATIONS]
    trusted = ("claims about 2f70", "claims of all directories", "made by commands below 2f70", "secrets changed by 12")
    cached = ("claimed", "made", "secrets found below 2f70", "tracked secrets of 12")
    with monkeypatch.context() as patch:
        patch.setattr("unspill.store.migrations.MIGRATIONS", MIGRATIONS[: names.index("trust")])
        with Store.open(state) as store:
            for key in (*trusted, *cached):
                store.facts.put(key, key)
    with Store.open(state) as store:
        every = (*trusted, *cached)
        assert [key for key in every if store.trust.find(key) == key] == [*trusted]
        assert [key for key in every if store.facts.find(key) == key] == [*cached]


def test_migrations_are_numbered_in_order() -> None:
    assert [step.__name__[:5] for step in MIGRATIONS] == [f"m{n:03}_" for n in range(1, len(MIGRATIONS) + 1)]


@pytest.mark.parametrize("part", ["layers", "operations", "pending", "copies"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_missing_or_empty_database_beside_what_it_should_know_is_damage(
    state: bytes, part: str, is_there: bool
) -> None:
    Store.open(state).close()
    os.mkdir(os.path.join(state, part.encode(), b"0123456789abcdef"))
    os.unlink(state + b"/store.db")
    if is_there:
        os.close(os.open(state + b"/store.db", os.O_CREAT | os.O_WRONLY, 0o600))
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="missing or empty") as refusal:
            Store.open(state)
        assert "unspill recover" in refusal.value.remedy


@pytest.mark.parametrize("content", [b"", b"hello\n"], ids=["empty", "no database"])
def test_a_database_that_is_refused_is_closed(state: bytes, content: bytes) -> None:
    Store.open(state).close()
    os.mkdir(state + b"/layers/0123456789abcdef")
    with open(state + b"/store.db", "wb") as file:
        file.write(content)
    # The traceback keeps all that was at hand
    with pytest.raises(StoreDamaged) as refusal:
        Store.open(state)
    held = [os.path.realpath(b"/proc/self/fd/" + name) for name in os.listdir(b"/proc/self/fd")]
    assert refusal.value.__traceback__ is not None
    assert not any(path.startswith(os.path.realpath(state)) for path in held)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_nothing_is_written_to_a_database_that_has_been_removed_or_replaced(
    state: bytes, store: Store, is_replaced: bool
) -> None:
    os.rename(state + b"/store.db", state + b"/elsewhere.db")
    if is_replaced:
        os.close(os.open(state + b"/store.db", os.O_CREAT | os.O_WRONLY, 0o600))
    with pytest.raises(StoreDamaged, match="removed or replaced") as refusal:
        store.facts.put("key", "value")
    assert "unspill recover" in refusal.value.remedy
    with pytest.raises(StoreDamaged, match="removed or replaced"), store.durable:
        pytest.fail("a transaction began")
    os.rename(state + b"/elsewhere.db", state + b"/store.db")
    store.facts.put("key", "value")


def test_what_an_older_unspill_kept_beside_the_database_goes_when_it_is_brought_up_to_date(
    state: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unspill.store.migrations.MIGRATIONS", MIGRATIONS[:17])
    Store.open(state).close()
    monkeypatch.undo()
    os.mkdir(state + b"/manifests")
    os.close(os.open(state + b"/manifests/0123456789abcdef", os.O_CREAT | os.O_WRONLY, 0o600))
    Store.open(state).close()
    assert not os.path.lexists(state + b"/manifests")


def test_held_runs_are_found_by_their_index(store: Store) -> None:
    said: list[str] = []
    store.transaction._sqlite.set_trace_callback(said.append)
    store.runs.drop_held(SandboxId("0" * 16))
    store.transaction._sqlite.set_trace_callback(None)
    (sql,) = (sql for sql in said if sql.startswith("UPDATE"))
    (plan,) = store.transaction.rows(f"EXPLAIN QUERY PLAN {sql}")
    assert str(plan[-1]).endswith("INDEX runs_held (sandbox=?)")
    store.transaction.change("DROP INDEX runs_held")
    (plan,) = store.transaction.rows(f"EXPLAIN  QUERY PLAN {sql}")
    assert str(plan[-1]).endswith("(sandbox=?)"), "the control arm: every run of the sandbox is read"
    assert "runs_held" not in str(plan[-1])


def test_without_shared_memory_an_ordinary_journal_is_used(state: bytes) -> None:
    Store.open(state).close()
    os.unlink(state + b"/store.db")
    os.mkdir(state + b"/store.db-shm")
    with Store.open(state) as store:
        store.facts.put("key", "value")
        assert store.transaction.rows("PRAGMA journal_mode") == [("truncate",)]
    with Store.open(state) as store:
        assert store.facts.find("key") == "value"


def test_a_write_ahead_log_is_used_where_it_works(store: Store) -> None:
    assert store.transaction.rows("PRAGMA journal_mode") == [("wal",)]


def test_many_processes_make_one_store_together(state: bytes) -> None:
    program = OPEN + "; print(store.sandboxes.get_or_create(b'/p', 'default', 1, 2).id)"
    processes = [python(program, state) for _ in range(8)]
    answers = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 8
    assert len(answers) == 1


def test_opening_loads_nothing_heavy(state: bytes) -> None:
    program = f"import sys; before = set(sys.modules); {OPEN}; print(*sorted(set(sys.modules) - before))"
    process = subprocess.run([sys.executable, "-I", "-S", "-c", PATH + program, state], capture_output=True, check=True)
    loaded = set(process.stdout.decode().split())
    assert "_sqlite3" in loaded
    assert loaded & HEAVY == set()
    assert "unspill.store.copies" not in loaded, "a copy is made once a day"


PATH = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r};"


def test_threads_share_a_store_without_mixing_their_transactions(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2)

    def count_up(_number: int) -> None:
        for _ in range(50):
            with store.transaction:
                value = int(store.facts.find("count") or "0")
                store.facts.put("count", str(value + 1))
            assert store.sandboxes.get_or_create(b"/p", "default", 1, 2) == sandbox

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count_up, range(8)))
    assert store.facts.find("count") == "400"


COUNT_UP = f"""{OPEN}
from time import sleep
for _ in range(50):
    with store.transaction:
        count = int(store.facts.find("count") or "0")
        sleep(0.001)
        store.facts.put("count", str(count + 1))
"""


def test_processes_share_a_store_without_losing_updates(state: bytes) -> None:
    processes = [python(COUNT_UP, state) for _ in range(4)]
    assert [end(process) for process in processes] == [0] * 4
    with Store.open(state) as store:
        assert store.facts.find("count") == "200"


def test_without_a_transaction_updates_are_lost(state: bytes) -> None:
    """The control arm: the same increments, each read and write on its own."""
    program = COUNT_UP.replace("with store.transaction:", "if True:")
    for _ in range(20):
        processes = [python(program, state) for _ in range(4)]
        assert [end(process) for process in processes] == [0] * 4
        with Store.open(state) as store:
            counted = int(store.facts.find("count") or "0")
            store.facts.forget()
        if counted < 200:
            return
    pytest.fail("nothing was ever lost, so the test above shows nothing")


def test_a_fork_opens_a_connection_of_its_own(store: Store) -> None:
    store.facts.put("key", "parent")
    pid = os.fork()
    if pid == 0:
        try:
            store.facts.put("key", "child")
            os._exit(0 if store.facts.find("key") == "child" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.facts.find("key") == "child"
    store.facts.put("key", "parent again")
    assert store.facts.find("key") == "parent again"


def test_an_exception_takes_the_whole_transaction_back(store: Store) -> None:
    def fail_half_way() -> None:
        with store.transaction:
            store.facts.put("outer", "1")
            with store.transaction:
                store.facts.put("inner", "1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert store.facts.find("outer") is None
    assert store.facts.find("inner") is None
    store.facts.put("after", "1")
    assert store.facts.find("after") == "1"


def test_a_process_killed_in_a_transaction_leaves_nothing_of_it(state: bytes) -> None:
    program = OPEN + "\nwith store.transaction:\n  store.facts.put('key', 'half')\n  os.kill(os.getpid(), 9)"
    assert end(python(program, state)) == -9
    with Store.open(state) as store:
        assert store.facts.find("key") is None


def test_a_statement_that_fails_is_an_error_of_the_store_with_a_remedy(store: Store) -> None:
    with pytest.raises(StoreError, match="no such table") as failure:
        store.transaction.rows("SELECT * FROM missing")
    assert failure.value.remedy
    with pytest.raises(StoreError):
        store.transaction.change("INSERT INTO missing VALUES (1)")
    with pytest.raises(StoreError):
        store.transaction.change_each("INSERT INTO missing VALUES (?)", [(1,)])
    store.facts.put("still", "works")


def test_text_that_is_none_is_damage(store: Store) -> None:
    store.transaction.change("INSERT INTO facts VALUES ('key', CAST(x'ff' AS TEXT))")
    with pytest.raises(StoreDamaged):
        store.facts.find("key")


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
