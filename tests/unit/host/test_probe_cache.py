# SPDX-License-Identifier: Apache-2.0
"""Facts as text: nothing is lost, nothing damaged is believed, and the key changes when the host does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.host.bwrap import facts_from_text, facts_key, facts_to_text, should_keep
from unspill.model.plan import Bwrap, Facts

WORDS = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
LINES = st.lists(WORDS.filter(bool), max_size=4).map(" ".join)
HEAVY = {"json", "re", "typing", "enum", "subprocess", "dataclasses", "ctypes", "socket", "tempfile", "shutil"}


def binaries() -> st.SearchStrategy[Bwrap]:
    return st.builds(
        Bwrap,
        path=st.binary(min_size=1, max_size=40),
        version=LINES,
        device=st.integers(min_value=0),
        inode=st.integers(min_value=0),
        has_overlay=st.booleans(),
        symlink_flaw=st.booleans(),
    )


def facts() -> st.SearchStrategy[Facts]:
    answers = "namespaces disable_userns proc_mount own_namespace lowerdir_plus seccomp openat2 flatpak merged_usr"
    return st.builds(
        Facts,
        uid=st.integers(0, 2**32),
        gid=st.integers(0, 2**32),
        kernel=LINES,
        boot_id=LINES,
        bwrap=st.none() | binaries(),
        engines=st.sampled_from([(), ("mount",), ("mount", "native")]),
        landlock_abi=st.integers(0, 20),
        cgroup=st.sampled_from(["v1", "v2", "none"]),
        container=LINES,
        state_filesystem=WORDS,
        problems=st.lists(st.tuples(WORDS.filter(bool), LINES), max_size=4).map(tuple),
        **dict.fromkeys(answers.split(), st.booleans()),
    )


@given(facts())
def test_facts_come_back_as_they_were(given_facts: Facts) -> None:
    assert facts_from_text(facts_to_text(given_facts)) == given_facts


@given(facts(), st.data())
def test_a_text_that_lost_a_line_is_not_believed(given_facts: Facts, data: st.DataObject) -> None:
    lines = facts_to_text(given_facts).splitlines()
    optional = {"bwrap", "problem"}
    needed = [number for number, line in enumerate(lines) if line.split(" ")[0] not in optional]
    del lines[data.draw(st.sampled_from(needed))]
    assert facts_from_text("\n".join(lines)) is None


@given(facts())
def test_a_refusal_is_never_remembered(given_facts: Facts) -> None:
    works = given_facts.namespaces and given_facts.disable_userns and given_facts.proc_mount
    assert should_keep(given_facts) is bool(works and given_facts.engines)


@pytest.mark.parametrize("text", ["", "\n", "{}", "unspill facts 0\nuid 1\n", "unspill facts 1\n"])
def test_anything_else_is_not_believed(text: str) -> None:
    assert facts_from_text(text) is None


@given(facts())
def test_what_an_older_version_found_is_found_out_anew(given_facts: Facts) -> None:
    """It named an engine that copied the project."""
    old = facts_to_text(given_facts).replace("unspill facts 3\n", "unspill facts 1\n", 1)
    assert facts_from_text(old.replace("\nengines mount", "\nengines mount,copy")) is None


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "bwrap"
    shutil.copyfile("/bin/true", path)
    return path


def key_of(binary: Path, state: Path) -> str:
    return facts_key(os.fsencode(binary), os.fsencode(state))


def test_the_key_stays_while_nothing_changes(binary: Path, tmp_path: Path) -> None:
    assert key_of(binary, tmp_path) == key_of(binary, tmp_path)


def test_the_key_changes_with_the_binary(binary: Path, tmp_path: Path) -> None:
    before = key_of(binary, tmp_path)
    binary.chmod(0o4755)
    changed = key_of(binary, tmp_path)
    other = tmp_path / "other"
    shutil.copy2(binary, other)
    other.replace(binary)
    assert len({before, changed, key_of(binary, tmp_path)}) == 3


def test_the_key_changes_with_the_filesystem_of_the_state(binary: Path, tmp_path: Path) -> None:
    assert key_of(binary, tmp_path) != key_of(binary, Path("/dev/shm"))


@pytest.mark.kernel
def test_the_key_is_another_inside_a_sandbox(binary: Path, tmp_path: Path) -> None:
    code = "from unspill.host.bwrap import facts_key; print(facts_key(*map(os.fsencode, sys.argv[1:])))"
    inside = subprocess.run(
        ["unshare", "--user", sys.executable, "-c", f"import os, sys; {code}", binary, tmp_path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert inside != key_of(binary, tmp_path)
    assert inside.split()[:9] == key_of(binary, tmp_path).split()[:9]


def test_a_missing_binary_has_no_key(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        key_of(tmp_path / "none", tmp_path)


@pytest.mark.parametrize("module", ["places", "bwrap"])
def test_what_every_run_loads_loads_nothing_heavy(module: str) -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}; import unspill.host.{module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert f"unspill.host.{module}" in loaded
    assert HEAVY.isdisjoint(loaded)
