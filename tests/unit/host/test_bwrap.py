# SPDX-License-Identifier: Apache-2.0
"""Which bwrap is taken and which never is, whose directories are trusted, and what is remembered of a host."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import BwrapMissing, BwrapUnsafe
from unspill.host import bwrap as module
from unspill.host.bwrap import (
    facts_from_text,
    facts_key,
    facts_to_text,
    find_bwrap,
    find_changeable,
    find_changeable_way,
    should_keep,
    why_unsafe,
)
from unspill.model.plan import Bwrap, Facts


@pytest.fixture
def real(bwrap: Path) -> bytes:
    return os.fsencode(bwrap.resolve())


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A program named bwrap in a directory of the caller's; it says so when it is run."""
    directory = tmp_path / "project" / "bin"
    directory.mkdir(parents=True)
    path = directory / "bwrap"
    path.write_text(f"#!/bin/sh\ntouch {directory}/was-run\n")
    path.chmod(0o755)
    return path


def test_the_systems_bwrap_is_found_on_path(real: bytes, bwrap: Path) -> None:
    assert find_bwrap(None, f"/nonexistent:{bwrap.parent}", []) == real


def test_a_configured_bwrap_is_taken_whatever_path_says(real: bytes, bwrap: Path) -> None:
    assert find_bwrap(os.fsencode(bwrap), "", []) == real


def test_a_link_is_resolved_to_what_will_be_run(real: bytes, tmp_path: Path) -> None:
    (tmp_path / "bwrap").symlink_to(os.fsdecode(real))
    assert find_bwrap(None, os.fspath(tmp_path), []) == real


@pytest.mark.parametrize("path", ["", ":", ".", "bin:usr/bin", "/nonexistent"])
def test_without_an_absolute_directory_that_has_one_it_is_missing(
    path: str, tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake.parent)
    with pytest.raises(BwrapMissing) as refused:
        find_bwrap(None, path, [])
    assert "bubblewrap" in refused.value.remedy


def test_a_configured_bwrap_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BwrapMissing, match="elsewhere"):
        find_bwrap(os.fsencode(tmp_path / "elsewhere"), "/usr/bin", [])


def test_a_fake_bwrap_in_the_project_is_passed_over(real: bytes, bwrap: Path, fake: Path) -> None:
    project = os.fsencode(fake.parent.parent)
    assert find_bwrap(None, f"{fake.parent}:{bwrap.parent}", [project]) == real
    assert not (fake.parent / "was-run").exists()


def test_a_fake_bwrap_alone_is_refused_and_not_run(fake: Path) -> None:
    with pytest.raises(BwrapUnsafe, match="may write") as refused:
        find_bwrap(None, os.fspath(fake.parent), [os.fsencode(fake.parent.parent)])
    assert not (fake.parent / "was-run").exists()
    assert refused.value.remedy


def test_a_fake_bwrap_is_refused_by_its_owner_wherever_it_is(fake: Path) -> None:
    with pytest.raises(BwrapUnsafe, match="not by root"):
        find_bwrap(None, os.fspath(fake.parent), [])


def test_without_any_check_the_fake_would_have_been_taken(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_unsafe", lambda _path: "")
    assert find_bwrap(None, os.fspath(fake.parent), []) == os.fsencode(fake)


def test_a_link_in_the_project_is_refused_even_to_the_real_one(real: bytes, tmp_path: Path) -> None:
    (tmp_path / "bwrap").symlink_to(os.fsdecode(real))
    with pytest.raises(BwrapUnsafe, match="may write"):
        find_bwrap(os.fsencode(tmp_path / "bwrap"), "", [os.fsencode(tmp_path)])


def test_a_root_reached_through_a_link_is_the_same_root(fake: Path, tmp_path: Path) -> None:
    (tmp_path / "other-name").symlink_to(fake.parent.parent)
    with pytest.raises(BwrapUnsafe, match="may write"):
        find_bwrap(None, os.fspath(fake.parent), [os.fsencode(tmp_path / "other-name")])


def test_a_root_whose_name_only_starts_alike_forbids_nothing(real: bytes, bwrap: Path) -> None:
    assert find_bwrap(None, os.fspath(bwrap.parent), [real[:-1], os.path.dirname(real)[:-1]]) == real


def test_a_relative_configured_path_is_refused(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fake.parent)
    with pytest.raises(BwrapUnsafe):
        find_bwrap(b"bwrap", "", [])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (stat.S_IFREG | 0o755, ""),
        (stat.S_IFREG | 0o711, ""),
        (stat.S_IFREG | 0o4755, "setuid"),
        (stat.S_IFREG | 0o2755, "setuid"),
        (stat.S_IFREG | 0o644, "executable"),
        (stat.S_IFDIR | 0o755, "regular"),
        (stat.S_IFIFO | 0o755, "regular"),
    ],
)
def test_a_file_is_judged_by_its_mode(mode: int, expected: str, tmp_path: Path) -> None:
    found = os.stat_result((mode, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    reason = module._why_bad_file(os.fsencode(tmp_path / "none"), found)
    assert expected in reason
    assert bool(reason) is bool(expected)


@pytest.mark.kernel
@pytest.mark.parametrize("mapping", [["--map-current-user"], ["--map-root-user"], []])
def test_in_a_user_namespace_the_systems_bwrap_is_still_the_systems(mapping: list[str], real: bytes) -> None:
    assert judged_in_namespace(mapping, real) == ""


@pytest.mark.kernel
@pytest.mark.parametrize("mapping", [["--map-current-user"], ["--map-root-user"]])
def test_in_a_user_namespace_a_fake_is_still_a_fake_even_where_its_owner_is_called_root(
    mapping: list[str], fake: Path
) -> None:
    assert "not by root" in judged_in_namespace(mapping, os.fsencode(fake))


def judged_in_namespace(mapping: list[str], path: bytes) -> str:
    code = "import os, sys; from unspill.host.bwrap import why_unsafe; print(why_unsafe(os.fsencode(sys.argv[1])))"
    command = ["unshare", "--user", *mapping, sys.executable, "-c", code, os.fsdecode(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def roots_own() -> Iterator[Path]:
    """A copy of bwrap that is root's, in a directory that is."""
    with tempfile.TemporaryDirectory(dir="/var/lib") as directory:
        os.chmod(directory, 0o755)
        path = Path(directory) / "bwrap"
        shutil.copyfile("/bin/true", path)
        path.chmod(0o755)
        yield path


def give_capabilities(path: Path) -> None:
    subprocess.run(["setcap", "cap_net_raw+ep", path], check=True)


SPOILERS: dict[str, Callable[[Path], object]] = {
    "setuid": lambda path: path.chmod(0o4755),
    "capabilities": give_capabilities,
    "writable by users other": lambda path: path.chmod(0o757),
    "owned by uid 65534": lambda path: os.chown(path, 65534, 0),
    "executable": lambda path: path.chmod(0o644),
    "writable by users other than its owner": lambda path: path.parent.chmod(0o775),
}


@pytest.mark.root
def test_a_bwrap_of_root_is_trusted_as_control(roots_own: Path) -> None:
    assert why_unsafe(os.fsencode(roots_own)) == ""


@pytest.mark.root
@pytest.mark.parametrize("reason", SPOILERS)
def test_a_bwrap_of_root_is_refused_when_it_is(reason: str, roots_own: Path) -> None:
    SPOILERS[reason](roots_own)
    assert reason in why_unsafe(os.fsencode(roots_own))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "above" / "place"
    path.mkdir(parents=True)
    for directory in (path, path.parent):
        directory.chmod(0o755)
    return path


CASES = {
    "the usual": ("place", 0o755, ""),
    "nobody else may even look": ("place", 0o700, ""),
    "a group may write": ("place", 0o775, "can be changed by others"),
    "all may write": ("place", 0o757, "can be changed by others"),
    "all may write, though it is sticky": ("place", 0o1777, "can be changed by others"),
    "all may write above": ("above", 0o777, "can be changed by others"),
    "others but the group may write above": ("above", 0o757, "can be changed by others"),
    "all may write above, where it is sticky": ("above", 0o1777, ""),
}


@pytest.mark.parametrize(("which", "mode", "reason"), CASES.values(), ids=CASES)
def test_a_mode_by_which_others_could_replace_it_is_found(place: Path, which: str, mode: int, reason: str) -> None:
    changed = place if which == "place" else place.parent
    changed.chmod(mode)
    found = find_changeable(os.fsencode(place))
    assert (found.reason if found else "") == reason
    assert found is None or found.path == os.fsencode(changed)


def test_a_group_of_the_caller_alone_is_nobody_else_and_any_other_group_is(place: Path) -> None:
    person = pwd.getpwuid(os.geteuid())
    is_alone = grp.getgrgid(person.pw_gid).gr_name == person.pw_name
    place.parent.chmod(0o775)
    assert (find_changeable(os.fsencode(place)) is None) == is_alone
    others = [group for group in os.getgroups() if group != person.pw_gid]
    for group in others[:1]:
        os.chown(place.parent, -1, group)
        place.parent.chmod(0o775)
        assert find_changeable(os.fsencode(place)) is not None


def test_what_is_no_directory_or_of_somebody_else_is_found(place: Path) -> None:
    (place / "file").touch()
    (place / "link").symlink_to("/")
    for name, reason in (("file", "is not a directory"), ("link", "is not a directory"), ("none", "can't be read")):
        found = find_changeable(os.fsencode(place / name))
        assert found is not None
        assert found.reason.startswith(reason)
    assert find_changeable(b"/usr") is None


def _other(place: Path) -> Path:
    """Lead from a place in an open directory to another directory of the caller's own."""
    other = place.parent.parent / "other"
    other.mkdir()
    (place.parent / "link").symlink_to(other)
    return place.parent / "link"


@pytest.mark.parametrize("below", ["", "deeper/still", "./..//other"])
@pytest.mark.parametrize(("mode", "is_found"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_link_that_others_could_have_laid_is_found(place: Path, below: str, mode: int, is_found: bool) -> None:
    way = _other(place) / below
    place.parent.chmod(mode)
    assert (find_changeable_way(os.fsencode(way)) is not None) == is_found
    # The control: where the way ends nothing is wrong
    assert find_changeable(os.fsencode(place.parent.parent / "other")) is None


def test_a_link_behind_a_link_is_found_too_and_a_loop_has_an_end(place: Path) -> None:
    way = _other(place)
    first = place.parent.parent / "first"
    first.symlink_to("above/link")
    assert find_changeable_way(os.fsencode(first)) is None
    place.parent.chmod(0o777)
    found = find_changeable_way(os.fsencode(first))
    assert found is not None
    assert found.path == os.fsencode(way.parent)
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    assert find_changeable_way(os.fsencode(place / "a")) is not None


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
    answers = "namespaces disable_userns proc_mount own_namespace lowerdir_plus seccomp openat2 flatpak"
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
    sealed = given_facts.namespaces and given_facts.disable_userns and given_facts.proc_mount and given_facts.seccomp
    assert should_keep(given_facts) is bool(sealed and given_facts.engines)


@given(facts())
def test_what_a_busy_machine_did_not_answer_is_never_remembered(given_facts: Facts) -> None:
    slow = given_facts.replace(problems=(*given_facts.problems, ("openat2", "no answer in 60 seconds")))
    assert not should_keep(slow)


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
