# SPDX-License-Identifier: Apache-2.0
"""Records of files follow the operations, and the first version displaced on a day has a name."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.sandbox.ledger import DAY_NS, START_NS, Ledger
from unspill.apply.journal import journal_file
from unspill.layers.trees import remove_tree
from unspill.sandbox.history import LONGEST_NAME, Rescanned, backup_name, backups_of, catch_up, files_of, rescan
from unspill.store.operations import FileRow

HOUR_NS = 3600 * 1_000_000_000


def only(ledger: Ledger, *, with_deleted: bool = True) -> FileRow:
    (file,) = files_of(ledger.store, ledger.project, with_deleted=with_deleted)
    return file


def named(ledger: Ledger, file: FileRow) -> dict[bytes, str]:
    return {backup.row.name: backup.where for backup in backups_of(ledger.store, file)}


def content(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_a_new_file_has_a_record_and_no_backup(ledger: Ledger) -> None:
    ledger.apply({b"a/new": b"1"})
    file = only(ledger)
    assert (file.root, file.path, file.is_deleted, file.last_approved_copy_path) == (
        ledger.project,
        b"a/new",
        False,
        b"",
    )
    assert file.last_modified == os.stat(ledger.live(b"a/new")).st_mtime_ns
    assert file.id > 0
    assert backups_of(ledger.store, file) == ()


def test_a_modified_file_has_its_old_version_under_the_name_of_the_day(ledger: Ledger) -> None:
    ledger.write(b"a/file.c", b"old")
    ledger.apply({b"a/file.c": b"new"})
    file = only(ledger)
    assert file.last_approved_copy_path == b"%d-25-10-09-file.c" % file.id
    (backup,) = backups_of(ledger.store, file)
    assert (backup.row.name, backup.where) == (file.last_approved_copy_path, "kept")
    assert content(backup.path) == b"old"


def test_a_deleted_file_keeps_its_record_and_is_listed_only_if_asked(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    ledger.apply({b"f": None})
    assert files_of(ledger.store, ledger.project) == ()
    file = only(ledger)
    assert file.is_deleted
    assert [content(backup.path) for backup in backups_of(ledger.store, file)] == [b"old"]


def test_a_file_that_reappears_has_the_same_record_not_deleted(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    ledger.apply({b"f": None})
    before = only(ledger)
    ledger.apply({b"f": b"again"}, START_NS + HOUR_NS)
    after = only(ledger, with_deleted=False)
    assert (after.id, after.is_deleted) == (before.id, False)
    assert after.last_approved_copy_path == before.last_approved_copy_path


def test_the_first_version_of_a_day_keeps_the_name_and_the_next_day_has_its_own(ledger: Ledger) -> None:
    ledger.write(b"f", b"0")
    for number, at_ns in enumerate((0, HOUR_NS, 2 * HOUR_NS, DAY_NS, DAY_NS + HOUR_NS), start=1):
        ledger.apply({b"f": b"%d" % number}, START_NS + at_ns)
    file = only(ledger)
    backups = backups_of(ledger.store, file)
    assert [(backup.row.name, content(backup.path)) for backup in backups] == [
        (b"%d-25-10-10-f" % file.id, b"3"),
        (b"%d-25-10-09-f" % file.id, b"0"),
    ]
    assert file.last_approved_copy_path == b"%d-25-10-10-f" % file.id
    assert len(ledger.store.operations.all()) == 5, "the other versions are found by their operations"


def test_a_version_that_an_undo_gave_back_is_live_not_lost(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    applied = ledger.apply({b"f": b"new"})
    undone = ledger.reverse(applied, START_NS + HOUR_NS)
    file = only(ledger)
    (backup,) = backups_of(ledger.store, file)
    assert (backup.where, backup.path) == ("live", ledger.live(b"f"))
    assert content(backup.path) == b"old"
    ledger.reverse(undone, START_NS + 2 * HOUR_NS, "redo")
    (backup,) = backups_of(ledger.store, only(ledger))
    assert backup.where == "kept"
    assert content(backup.path) == b"old"


def test_a_backup_that_something_else_took_the_place_of_is_gone(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    ledger.apply({b"f": b"new"})
    (backup,) = backups_of(ledger.store, only(ledger))
    os.unlink(backup.path)
    with open(backup.path, "wb") as file:
        file.write(b"other")
    assert [found.where for found in backups_of(ledger.store, only(ledger))] == ["gone"]


def test_the_undo_of_a_new_file_leaves_a_deleted_record_with_a_backup(ledger: Ledger) -> None:
    applied = ledger.apply({b"new": b"mine"})
    ledger.reverse(applied, START_NS + HOUR_NS)
    file = only(ledger)
    assert file.is_deleted
    assert [content(backup.path) for backup in backups_of(ledger.store, file)] == [b"mine"]


def test_a_file_of_the_same_name_in_another_project_is_another(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path), Ledger(tmp_path, "other")
    for ledger in (first, second):
        ledger.write(b"f", b"old")
        ledger.apply({b"f": b"new"})
    one, other = only(first), only(second)
    assert one.id != other.id
    assert one.last_approved_copy_path != other.last_approved_copy_path
    first.store.close()
    second.store.close()


def test_a_name_is_never_longer_than_the_filesystem_takes() -> None:
    name = backup_name(123, START_NS, b"d/" + b"x" * 255)
    assert name == (b"123-25-10-09-" + b"x" * 255)[:LONGEST_NAME]
    assert len(name) == 255


def test_catching_up_again_changes_nothing(ledger: Ledger) -> None:
    ledger.write(b"f", b"0")
    ledger.apply({b"f": b"1", b"g": b"2"})
    assert [catch_up(ledger.store, ledger.project) for _ in range(3)] == [1, 0, 0]
    ledger.apply({b"f": None})
    assert catch_up(ledger.store, b"/another/project") == 0
    assert catch_up(ledger.store, ledger.project) == 1


def test_many_may_catch_up_at_once(ledger: Ledger) -> None:
    ledger.write(b"f", b"0")
    for number in range(10):
        ledger.apply({b"f": b"%d" % number, b"new%d" % number: b""}, START_NS + number)
    with ThreadPoolExecutor(4) as pool:
        folded = list(pool.map(lambda _n: catch_up(ledger.store, ledger.project), range(4)))
    assert sum(folded) == 10
    assert len(files_of(ledger.store, ledger.project)) == 11


def test_an_operation_that_was_rolled_back_or_has_no_journal_leaves_no_record(ledger: Ledger) -> None:
    ledger.apply({b"f": b"1"}, ending="rolled back")
    os.unlink(journal_file(ledger.state, ledger.apply({b"g": b"1"}).id))
    with open(journal_file(ledger.state, ledger.apply({b"h": b"1"}).id), "r+b") as file:
        file.write(b"damaged")
    assert files_of(ledger.store, ledger.project, with_deleted=True) == ()


def test_directories_and_their_bits_have_no_records(ledger: Ledger) -> None:
    from unspill.apply.journal import End, Journal, write_end, write_journal
    from unspill.model.operation import Entry, Metadata, Step

    operation = ledger.apply({})
    entry = Entry(kind="dir", mode=0o755, inode=1, size=0, mtime_ns=0)
    steps = (
        Step(root=0, path=b"d", action="put", group=0, after=entry),
        Step(root=0, path=b"e", action="take", group=1, before=entry),
        Step(root=0, path=b"f", action="set_metadata", group=2, was=Metadata(mode=0o755), becomes=Metadata(mode=0o700)),
    )
    os.unlink(journal_file(ledger.state, operation.id))
    write_journal(journal_file(ledger.state, operation.id), Journal(operation=operation, steps=steps))
    write_end(journal_file(ledger.state, operation.id), End(done=(0, 1, 2), operation=operation))
    assert files_of(ledger.store, ledger.project, with_deleted=True) == ()


# exists, is_deleted before, has a backup -> None: the record goes; else is_deleted afterwards
TABLE = [
    (True, False, False, False),
    (True, False, True, False),
    (True, True, False, False),
    (True, True, True, False),
    (False, True, True, True),
    (False, True, False, None),
    (False, False, True, True),
    (False, False, False, None),
]


@pytest.mark.parametrize(("exists", "was_deleted", "has_backup", "expected"), TABLE)
def test_each_row_of_the_truth_table(
    ledger: Ledger, exists: bool, was_deleted: bool, has_backup: bool, expected: bool | None
) -> None:
    ledger.write(b"f", b"old")
    operation = ledger.apply({b"f": b"new"})
    file = only(ledger)
    if not has_backup:
        remove_tree(b"%b/operations/%b/tree" % (ledger.state, operation.id.encode()))
    if not exists:
        os.unlink(ledger.live(b"f"))
    ledger.store.files.change(file.replace(is_deleted=was_deleted))
    rescanned = rescan(ledger.store, ledger.project)
    found = ledger.store.files.find(ledger.project, ledger.project, b"f")
    assert (None if found is None else found.is_deleted) is expected
    assert rescanned == Rescanned(
        kept=int(expected is not None),
        changed=int(expected is not None and was_deleted != expected),
        removed=int(expected is None),
    )


def test_a_directory_or_a_link_above_is_not_the_file(ledger: Ledger, tmp_path: Path) -> None:
    ledger.write(b"d/f", b"old")
    ledger.apply({b"d/f": b"new"})
    os.unlink(ledger.live(b"d/f"))
    os.mkdir(ledger.live(b"d/f"))
    rescan(ledger.store, ledger.project)
    assert only(ledger).is_deleted
    os.rmdir(ledger.live(b"d/f"))
    os.rename(ledger.live(b"d"), os.fsencode(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere" / "f").write_text("not ours")
    os.symlink(tmp_path / "elsewhere", ledger.live(b"d"))
    rescan(ledger.store, ledger.project)
    assert only(ledger).is_deleted, "what lies behind a link is somebody else's"


def test_a_root_that_is_not_there_says_nothing_about_its_files(ledger: Ledger) -> None:
    ledger.apply({b"f": b"new"})
    os.rename(ledger.project, ledger.project + b"-unmounted")
    assert rescan(ledger.store, ledger.project) == Rescanned(kept=1)
    os.rename(ledger.project + b"-unmounted", ledger.project)


class Model:
    """What the records should say, by the rules alone."""

    def __init__(self) -> None:
        self.live: dict[bytes, bytes] = {}
        self.deleted: dict[bytes, bool] = {}
        self.names: dict[tuple[bytes, int], bytes] = {}

    def apply(self, changes: dict[bytes, bytes | None], day: int) -> None:
        for path, new in changes.items():
            old = self.live.get(path)
            if old is None and new is None:
                continue
            self.deleted[path] = new is None
            if old is not None:
                self.names.setdefault((path, day), old)
            if new is None:
                del self.live[path]
            else:
                self.live[path] = new


CHANGES = st.dictionaries(st.sampled_from([b"a", b"b", b"d/c"]), st.none() | st.binary(max_size=3), max_size=3)
DAYS = st.lists(st.tuples(CHANGES, st.integers(0, 1), st.booleans()), max_size=8)


@settings(max_examples=40, deadline=None)
@given(days=DAYS)
def test_records_are_what_the_rules_say_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, days: list[tuple[dict[bytes, bytes | None], int, bool]]
) -> None:
    ledger, model, day = Ledger(tmp_path_factory.mktemp("ledger")), Model(), 0
    for changes, later, is_asked in days:
        day += later
        wanted = {path: new for path, new in changes.items() if new is not None or path in model.live}
        model.apply(wanted, day)
        ledger.apply(wanted, START_NS + day * DAY_NS)
        if is_asked:
            catch_up(ledger.store, ledger.project)
    files = {file.path: file for file in files_of(ledger.store, ledger.project, with_deleted=True)}
    assert {path: file.is_deleted for path, file in files.items()} == model.deleted
    assert {file.path for file in files_of(ledger.store, ledger.project)} == set(model.live)
    found = {
        (path, backup.row.name): content(backup.path)
        for path, file in files.items()
        for backup in backups_of(ledger.store, file)
    }
    assert found == {
        (path, backup_name(files[path].id, START_NS + day * DAY_NS, path)): old
        for (path, day), old in model.names.items()
    }
    latest = {path: max((day for known, day in model.names if known == path), default=None) for path in files}
    for path, file in files.items():
        moment = latest[path]
        expected = b"" if moment is None else backup_name(file.id, START_NS + moment * DAY_NS, path)
        assert file.last_approved_copy_path == expected
    ledger.store.close()
