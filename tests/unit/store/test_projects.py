# SPDX-License-Identifier: Apache-2.0
"""Whole projects: what is moved with one, what is counted on, and what stays of others."""

import pytest

from unspill.model.operation import Operation, OperationId
from unspill.model.run import LayerId, SandboxId
from unspill.policy.paths import moved
from unspill.store.connection import new_id
from unspill.store.db import Store
from unspill.store.layers import LayerRow, SandboxRow
from unspill.store.runs import Owner

OLD, NEW, NEAR = b"/home/ada/old", b"/home/ada/new", b"/home/ada/older"
OWNER = Owner(pid=1, started=1, boot="boot", pids=1)


def make_sandbox(store: Store, project: bytes, name: str = "default") -> SandboxRow:
    return store.sandboxes.get_or_create(project, name, 1, 2)


def add_run(store: Store, sandbox: SandboxRow) -> None:
    store.runs.start(sandbox.id, argv=(b"true",), cwd=sandbox.project, started_ns=1, owner=OWNER)


def add_operation(store: Store, sandbox: SandboxRow, *roots: bytes) -> OperationId:
    done = Operation(
        id=OperationId(new_id()),
        number=store.operations.next_number(sandbox.project),
        kind="apply",
        sandbox=sandbox.id,
        project=sandbox.project,
        roots=roots or (sandbox.project,),
        at_ns=1,
        asked_by="run",
    )
    return store.operations.add(done).id


def move(store: Store, joined: str = "") -> None:
    store.projects.move(OLD, NEW, 7, 8, joined)


@pytest.mark.parametrize(
    ("path", "becomes"),
    [(OLD, NEW), (OLD + b"/lib", NEW + b"/lib"), (NEAR, NEAR), (b"/home/ada", b"/home/ada"), (b"", b"")],
)
def test_only_what_is_at_or_below_a_directory_moves_with_it(path: bytes, becomes: bytes) -> None:
    assert moved(path, OLD, NEW) == becomes


def test_rows_of_a_project_are_at_its_new_path_and_those_of_others_stay(store: Store) -> None:
    sandbox, near = make_sandbox(store, OLD), make_sandbox(store, NEAR)
    operation, other = add_operation(store, sandbox, OLD, b"/srv", OLD + b"/lib"), add_operation(store, near, OLD)
    for row in (sandbox, near):
        layer = LayerRow(id=LayerId(new_id()), sandbox=row.id, root=OLD, run=new_id())  # type: ignore[arg-type]
        store.layers.add_sealed(layer)
        store.files.put(row.project, OLD, b"file", 1, is_deleted=False)
    move(store)
    found = store.sandboxes.find_id(sandbox.id)
    assert found is not None
    assert (found.project, found.device, found.inode) == (NEW, 7, 8)
    there, elsewhere = store.operations.find(operation), store.operations.find(other)
    assert there is not None
    assert (there.project, there.number, there.roots) == (NEW, 1, (NEW, b"/srv", NEW + b"/lib"))
    assert elsewhere is not None
    assert (elsewhere.project, elsewhere.roots) == (NEAR, (OLD,))
    assert [row.root for row in store.layers.sealed(sandbox.id)] == [NEW]
    assert [row.root for row in store.layers.sealed(near.id)] == [OLD]
    assert [row.root for row in store.files.of_project(NEW)] == [NEW]
    assert [row.root for row in store.files.of_project(NEAR)] == [OLD]
    assert store.projects.all() == (NEW, NEAR)


@pytest.mark.parametrize(("before", "since"), [(1, 3), (3, 1), (2, 2)])
def test_what_the_new_path_has_is_counted_on(store: Store, before: int, since: int) -> None:
    rows = make_sandbox(store, OLD), make_sandbox(store, NEW)
    ids = [add_operation(store, row) for row, count in zip(rows, (before, since), strict=True) for _ in range(count)]
    for row, count in zip(rows, (before, since), strict=True):
        for _ in range(count):
            add_run(store, row)
    store.runs.share(rows[1].id, range(1, since + 1))
    move(store)
    assert [one.id for one in reversed(store.operations.latest(NEW, 100))] == ids
    assert [one.number for one in store.operations.latest(NEW, 100)] == list(range(before + since, 0, -1))
    assert store.operations.next_number(NEW) == before + since + 1
    runs = store.runs.latest(rows[0].id, 100)
    assert [run.number for run in runs] == list(range(before + since, 0, -1))
    assert runs[0].shared_with == tuple(range(before + 1, before + since))
    assert store.sandboxes.of_project(NEW) == (store.sandboxes.find_id(rows[0].id),)


@pytest.mark.parametrize("table", ["facts", "trust"])
def test_facts_about_paths_move_and_some_are_joined(store: Store, table: str) -> None:
    kept = getattr(store, table)
    make_sandbox(store, OLD)
    inside = (OLD + b"/lib").hex()
    for key, value in (
        (f"claims about {OLD.hex()}", "one two"),
        (f"claims about {NEW.hex()}", "two three"),
        (f"claims about {inside}", "four"),
        (f"claims about {NEAR.hex()}", "five"),
        (f"found below {OLD.hex()}", "old"),
        (f"found below {NEW.hex()}", "new"),
        ("changed by 12", f"{inside} {NEAR.hex()}"),
    ):
        kept.put(key, value)
    move(store, "claims about ")
    assert kept.starting_with("claims about ") == {
        NEW.hex(): "one three two",
        (NEW + b"/lib").hex(): "four",
        NEAR.hex(): "five",
    }
    assert kept.starting_with("found below ") == {NEW.hex(): "new"}
    assert kept.find("changed by 12") == f"{(NEW + b'/lib').hex()} {NEAR.hex()}"


def test_a_project_that_is_forgotten_takes_its_rows_along_but_what_is_known_of_its_secrets(store: Store) -> None:
    sandbox, near = make_sandbox(store, OLD), make_sandbox(store, NEAR)
    for row in (sandbox, near):
        store.files.put(row.project, row.project, b"file", 1, is_deleted=False)
        store.facts.put(f"tracked secrets of {row.id}", "")
        store.trust.put(f"claims about {row.project.hex()}", "one")
    store.projects.forget(OLD)
    assert store.sandboxes.all() == (near,)
    assert store.files.projects() == (NEAR,)
    assert store.facts.starting_with("tracked secrets of ") == {near.id: ""}
    assert set(store.trust.starting_with("claims about ")) == {OLD.hex(), NEAR.hex()}
    assert store.sandboxes.find_id(SandboxId(sandbox.id)) is None


def test_what_is_known_of_a_project_inside_of_the_old_directory_stays(store: Store) -> None:
    inner = OLD + b"/inner"
    store.sandboxes.get_or_create(OLD, "default", 1, 2)
    store.sandboxes.get_or_create(inner, "default", 1, 3)
    store.trust.put(f"claims about {inner.hex()}", "one")
    store.trust.put(f"claims about {(inner + b'/lib').hex()}", "one")
    store.trust.put(f"claims about {(OLD + b'/lib').hex()}", "one")
    store.texts.put("0" * 16, {(inner, b"file"): b"text"})
    move(store)
    names = {inner, inner + b"/lib", NEW + b"/lib"}
    assert set(store.trust.starting_with("claims about ")) == {name.hex() for name in names}
    assert store.texts.find("0" * 16, inner, b"file") == b"text"
