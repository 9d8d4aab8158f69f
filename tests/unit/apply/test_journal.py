# SPDX-License-Identifier: Apache-2.0
"""The journal says the same when it is read, and nothing at all where it was cut off."""

import os
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.apply.journal import End, Journal, Residue, Taken, read_journal, write_end, write_journal
from unspill.model.operation import Entry, Metadata, Operation, OperationId, Skipped, Step

names = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name)
numbers = st.integers(min_value=0, max_value=2**63 - 1)
entries = st.builds(
    Entry,
    kind=st.sampled_from(["file", "dir", "symlink", "special"]),
    mode=st.integers(0, 0o7777),
    inode=numbers,
    size=numbers,
    mtime_ns=st.integers(-(2**62), 2**62),
)
metadata = st.builds(
    Metadata, mode=st.integers(0, 0o7777), attributes=st.lists(st.tuples(st.text(max_size=9), st.binary())).map(tuple)
)
steps = st.builds(
    Step,
    root=st.integers(0, 3),
    path=names,
    action=st.sampled_from(["put", "take", "set_metadata"]),
    group=numbers,
    place=names,
    before=st.none() | entries,
    after=st.none() | entries,
    was=st.none() | metadata,
    becomes=st.none() | metadata,
    staged=st.booleans(),
    kept=names,
    digest=st.binary(max_size=16),
    says=st.binary(max_size=16),
)


def operation(**fields: object) -> Operation:
    given_fields: dict[str, object] = {
        "id": OperationId("00ff00ff00ff00ff"),
        "number": 7,
        "kind": "apply",
        "sandbox": "ab",
        "project": b"/p/\xff\n",
        "roots": (b"/p/\xff\n",),
        "at_ns": 1,
        "asked_by": "person",
    }
    return Operation(**(given_fields | fields))  # type: ignore[arg-type]


def journal(*given_steps: Step) -> Journal:
    return Journal(
        operation=operation(),
        steps=given_steps,
        identities=((1, 2),),
        trees=(Taken(layer="aa", root=b"/p/\xff\n"),),
        staging=b".unspill-x",
    )


def end() -> End:
    left = Skipped(root=0, path=b"a\xff", why="conflict", reason="it has changed since")
    rest = Residue(layer="bb", root=b"/p", run="cc", mark_ns=5, overrides=((b"x\n", 3),))
    return End(done=(0, 2), operation=operation(left=(left,), marks=(9,)), residues=(rest,), dropped=("dd",))


@given(st.lists(steps, max_size=5))
def test_what_was_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, some: list[Step]) -> None:
    path = os.fsencode(tmp_path_factory.mktemp("journal") / "journal")
    written = journal(*some)
    write_journal(path, written)
    assert read_journal(path) == written
    write_end(path, end())
    assert read_journal(path) == written.replace(end=end())


def test_a_journal_has_the_words_that_older_ones_have(tmp_path: Path) -> None:
    """One of before the action had its name of now is read alike, and one of now by whoever wrote that."""
    path = os.fsencode(tmp_path / "journal")
    step = Step(
        root=0, path=b"d", action="set_metadata", group=1, was=Metadata(mode=0o755), becomes=Metadata(mode=0o700)
    )
    write_journal(path, journal(step))
    text = b'[[0,"d","dress",1,"",null,null,[493,[]],[448,[]],0,"","",""]]'
    header, second, _ = (tmp_path / "journal").read_bytes().split(b"\n")
    assert second == b"%08x %b" % (crc32(text), text)
    read = read_journal(path)
    assert read is not None
    assert read.steps == (step,)
    assert b'"left":[]' in header


def test_a_journal_that_was_cut_off_anywhere_says_nothing_or_has_no_end(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "journal")
    step = Step(root=0, path=b"a", action="take", group=1, place=b"p")
    write_journal(path, journal(step))
    prepared = os.path.getsize(path)
    write_end(path, end())
    whole = (tmp_path / "journal").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "journal").write_bytes(whole[:length])
        found = read_journal(path)
        # The last character of a line is the line feed, which nobody needs
        if length < prepared - 1:
            assert found is None
        else:
            assert found is not None
            assert (found.end is None) == (length < len(whole) - 1)


def test_a_flipped_bit_is_never_taken_for_an_end(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "journal")
    write_journal(path, journal())
    prepared = os.path.getsize(path)
    write_end(path, end())
    whole = bytearray((tmp_path / "journal").read_bytes())
    for at in range(prepared, len(whole) - 1):
        whole[at] ^= 1
        (tmp_path / "journal").write_bytes(whole)
        whole[at] ^= 1
        found = read_journal(path)
        assert found is not None
        assert found.end is None


def test_no_journal_at_all_says_nothing(tmp_path: Path) -> None:
    assert read_journal(os.fsencode(tmp_path / "journal")) is None


def test_a_journal_is_never_written_over_another(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "journal")
    write_journal(path, journal())
    with pytest.raises(FileExistsError):
        write_journal(path, journal())
