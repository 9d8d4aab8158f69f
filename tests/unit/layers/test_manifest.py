# SPDX-License-Identifier: Apache-2.0
"""A sealed layer has a manifest for as long as it has a row; one without a row is set aside, not swept."""

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layers.ground import Ground, ended, write
from unspill.layers.discard import discard_stacks
from unspill.layers.manifest import Manifest, parse, read_manifest, to_line, write_manifests
from unspill.layers.places import manifest_file
from unspill.layers.seal import seal_run
from unspill.layers.sweep import lost_layers, sweep, sweep_operations
from unspill.model.layer import LayerId, RunId, SandboxId
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Output, Run, Signalled, TimedOut
from unspill.store.layers import LayerRow
from unspill.store.sandboxes import SandboxRow

PATHS = st.binary(min_size=1, max_size=30)
NUMBERS = st.integers(0, 2**63 - 1)
IDS = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")
OUTCOMES = st.sampled_from(
    [
        None,
        Exited(code=0),
        Exited(code=7),
        Signalled(signal=9),
        TimedOut(after_s=1.5),
        Cancelled(),
        LimitReached(limit="memory", bound=3),
        NeverStarted(reason='no "such"\n\0command é', remedy="\\"),
    ]
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    sandbox, run = draw(IDS), draw(IDS)
    made = Run(
        id=RunId(run),
        number=draw(NUMBERS),
        sandbox=sandbox,
        argv=tuple(draw(st.lists(PATHS, min_size=1, max_size=3))),
        cwd=draw(PATHS),
        started_ns=draw(NUMBERS),
        ended_ns=draw(st.none() | NUMBERS),
        outcome=draw(OUTCOMES),
        stdout=Output(),
        stderr=Output(),
        changed=draw(NUMBERS),
        held=True,
    )
    return Manifest(
        layer=LayerRow(
            id=LayerId(draw(IDS)),
            sandbox=SandboxId(sandbox),
            root=draw(PATHS),
            run=RunId(run),
            mark_ns=draw(NUMBERS),
        ),
        sandbox=SandboxRow(
            id=SandboxId(sandbox),
            project=draw(PATHS),
            name=draw(st.text(max_size=20)),
            device=draw(st.integers(0, 2**64 - 1)),
            inode=draw(st.integers(0, 2**64 - 1)),
            created_ns=draw(NUMBERS),
        ),
        run=draw(st.none() | st.just(made)),
        depth=draw(st.integers(0, 500)),
        overrides=tuple(draw(st.lists(st.tuples(PATHS, NUMBERS), max_size=3))),
    )


def held(ground: Ground) -> list[LayerId]:
    return [row.id for row in ground.store.layers.sealed(ground.sandbox.id)]


def names(ground: Ground, part: bytes = b"manifests") -> list[str]:
    return sorted(os.listdir(os.fsdecode(ground.store.state + b"/" + part)))


@given(manifests())
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    assert parse(to_line(manifest)) == manifest


@given(manifests(), st.randoms(use_true_random=False))
def test_a_manifest_that_was_cut_or_changed_is_none(manifest: Manifest, chance: random.Random) -> None:
    line = to_line(manifest)
    assert parse(line[: chance.randrange(len(line) - 1)]) is None
    damaged = bytearray(line)
    damaged[chance.randrange(len(line) - 1)] ^= 1 << chance.randrange(8)
    assert parse(bytes(damaged)) is None


def test_a_held_run_leaves_a_manifest_and_others_none(ground: Ground) -> None:
    ground.drop(ground.open())
    opened = ground.open()
    seal_run(ground.store, opened, ended(opened))
    assert names(ground) == []
    ground.hold(b"a")
    ground.hold(b"b")
    assert names(ground) == sorted(held(ground))
    first, second = (read_manifest(ground.store.state, layer) for layer in held(ground))
    assert first is not None
    assert second is not None
    assert (first.depth, second.depth) == (0, 1)
    rows = ground.store.layers.sealed(ground.sandbox.id)
    assert (first.layer, second.layer) == tuple(row.replace(seq=0) for row in rows)
    assert first.sandbox == ground.sandbox
    assert first.run == ground.store.runs.find(first.layer.run)
    assert os.stat(manifest_file(ground.store.state, first.layer.id)).st_mode & 0o777 == 0o600


def test_marks_of_single_paths_are_in_the_manifest(ground: Ground) -> None:
    ground.hold(b"a")
    (layer,) = held(ground)
    ground.store.marks.put(layer, {b"\xffpath": 17})
    write_manifests(ground.store, [layer], durable=True)
    manifest = read_manifest(ground.store.state, layer)
    assert manifest is not None
    assert manifest.overrides == ((b"\xffpath", 17),)
    assert names(ground) == [layer]


def test_a_manifest_under_the_name_of_another_layer_is_none(ground: Ground) -> None:
    ground.hold(b"a")
    (layer,) = held(ground)
    other = LayerId("0" * 16)
    os.link(manifest_file(ground.store.state, layer), manifest_file(ground.store.state, other))
    assert read_manifest(ground.store.state, other) is None
    assert read_manifest(ground.store.state, LayerId("1" * 16)) is None


def test_discarding_removes_manifests(ground: Ground) -> None:
    ground.hold(b"a")
    ground.hold(b"b")
    assert discard_stacks(ground.store, ground.sandbox.id) == 2
    assert names(ground) == []


def test_a_layer_that_lost_its_row_is_set_aside_not_swept(ground: Ground) -> None:
    ground.hold(b"precious")
    (layer,) = held(ground)
    ground.store.layers.remove([layer])
    for _ in range(2):
        sweep(ground.store)
    assert names(ground, b"layers") == []
    (aside,) = lost_layers(ground.store.state).values()
    assert os.listdir(aside) == [b"precious"]
    assert read_manifest(ground.store.state, layer) is not None, "it is still needed"


def test_without_its_manifest_such_a_layer_would_be_swept(ground: Ground) -> None:
    """The control arm."""
    ground.hold(b"precious")
    (layer,) = held(ground)
    ground.store.layers.remove([layer])
    os.unlink(manifest_file(ground.store.state, layer))
    sweep(ground.store)
    assert names(ground, b"layers") == []
    assert lost_layers(ground.store.state) == {}


def test_manifests_of_layers_that_are_nowhere_are_swept_unless_an_operation_is_under_way(ground: Ground) -> None:
    ground.hold(b"a")
    (layer,) = held(ground)
    source, copy = (manifest_file(ground.store.state, name) for name in (layer, LayerId("0" * 16)))
    os.link(source, copy)
    pending = ground.store.state + b"/pending/" + b"1" * 16
    write(pending)
    sweep(ground.store)
    assert os.path.exists(copy)
    os.unlink(pending)
    sweep(ground.store)
    assert names(ground) == [layer]


def test_a_missing_manifest_is_written_again(ground: Ground) -> None:
    """Held by an older version, or discarded by a transaction that was taken back."""
    ground.hold(b"a")
    ground.hold(b"b")
    before = [read_manifest(ground.store.state, layer) for layer in held(ground)]
    for layer in held(ground):
        os.unlink(manifest_file(ground.store.state, layer))
    sweep(ground.store)
    assert [read_manifest(ground.store.state, layer) for layer in held(ground)] == before


def test_writing_a_manifest_never_shows_half_of_it_nor_another_name(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.hold(b"a")
    (layer,) = held(ground)
    path = manifest_file(ground.store.state, layer)
    os.unlink(path)

    def fail(_fd: int) -> None:
        assert names(ground) == []
        raise OSError("the disk fails")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="the disk fails"):
        write_manifests(ground.store, [layer], durable=True)
    assert names(ground) == []


def test_without_nameless_files_a_manifest_is_written_all_the_same(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag is taken away, because no such filesystem is here."""
    ground.hold(b"a")
    (layer,) = held(ground)
    before = read_manifest(ground.store.state, layer)
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_WRONLY)
    for _ in range(2):
        write_manifests(ground.store, [layer])
        assert read_manifest(ground.store.state, layer) == before
    os.unlink(manifest_file(ground.store.state, layer))
    write_manifests(ground.store, [layer])
    assert read_manifest(ground.store.state, layer) == before


def test_a_full_disk_keeps_nobody_from_holding_or_starting(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    for module in ("seal", "sweep"):
        monkeypatch.setattr(f"unspill.layers.{module}.write_manifests", fail)
    ground.hold(b"a")
    sweep(ground.store)
    assert len(held(ground)) == 1
    monkeypatch.undo()
    sweep(ground.store)
    assert names(ground) == held(ground)


def test_a_retired_layer_loses_its_manifest_at_once_and_its_directory_when_nobody_uses_it(ground: Ground) -> None:
    ground.hold(b"a")
    (layer,) = held(ground)
    running = ground.open()
    ground.store.layers.retire([layer])
    sweep(ground.store)
    assert names(ground) == []
    assert layer in names(ground, b"layers")
    ground.drop(running)
    sweep(ground.store)
    assert names(ground, b"layers") == []


def test_an_operation_that_never_had_a_journal_is_swept_and_no_other(ground: Ground) -> None:
    operations = ground.store.state + b"/operations/"
    for name in (b"a" * 16, b"b" * 16, b"c" * 16):
        write(operations + name + b"/old/file", b"content")
    write(operations + b"a" * 16 + b"/journal", b"damaged")
    write(ground.store.state + b"/pending/" + b"b" * 16)
    assert sweep_operations(ground.store) == 1
    assert names(ground, b"operations") == ["a" * 16, "b" * 16]
