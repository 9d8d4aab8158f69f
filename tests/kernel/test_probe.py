# SPDX-License-Identifier: Apache-2.0
"""The probes against this kernel, whole and with one feature after the other taken away."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.masked_host import asked_through, masked, nested
from unspill.host.bwrap import facts_from_text, facts_to_text, find_bwrap
from unspill.host.probe import (
    SCRATCH_PREFIX,
    has_symlink_flaw,
    makes_directory_through,
    probe,
    scratch_directory,
)
from unspill.model.plan import Facts

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

FILESYSTEMS = Path("/opt/unspill-ci/fs")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state: with, odd\\ name"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def trusted(bwrap: Path) -> bytes:
    return find_bwrap(os.fsencode(bwrap), "", [])


def reason(facts: Facts, name: str) -> str:
    return dict(facts.problems)[name]


def version_of(facts: Facts) -> tuple[int, ...]:
    assert facts.bwrap is not None
    return tuple(int(part) for part in re.findall(r"\d+", facts.bwrap.version))


def test_everything_that_runs_need_works_here(trusted: bytes, state: Path) -> None:
    facts = probe(trusted, os.fsencode(state))
    assert facts.bwrap is not None
    assert facts.bwrap.path == trusted
    assert facts.namespaces
    assert facts.disable_userns
    assert facts.proc_mount
    assert facts.own_namespace
    assert facts.engines[0] == "mount"
    assert facts.seccomp
    assert facts.openat2
    assert (facts.uid, facts.gid) == (os.getuid(), os.getgid())


def test_nothing_is_left_in_the_state_directory(trusted: bytes, state: Path) -> None:
    probe(trusted, os.fsencode(state))
    assert list(state.iterdir()) == []


def test_the_native_engine_is_there_where_bwrap_has_overlays(trusted: bytes, state: Path) -> None:
    usage = subprocess.run([trusted, "--help"], capture_output=True, text=True, check=True).stdout
    facts = probe(trusted, os.fsencode(state))
    assert facts.bwrap is not None
    assert facts.bwrap.has_overlay is ("--overlay " in usage)
    assert ("native" in facts.engines) is facts.bwrap.has_overlay


def test_the_symlink_flaw_is_seen_in_every_bwrap_before_0_12(trusted: bytes, state: Path) -> None:
    facts = probe(trusted, os.fsencode(state))
    assert facts.bwrap is not None
    assert facts.bwrap.symlink_flaw is (version_of(facts) < (0, 12))
    assert "symlink_flaw" not in dict(facts.problems)


def test_a_plain_directory_in_the_way_is_not_taken_for_the_flaw(trusted: bytes, state: Path) -> None:
    outside = state / "outside"
    outside.mkdir()
    made, why = makes_directory_through(trusted, os.fsencode(state), None)
    assert made, why
    assert list(outside.iterdir()) == []


def test_a_bwrap_that_follows_no_link_has_no_flaw(trusted: bytes, state: Path, tmp_path: Path) -> None:
    careful = tmp_path / "careful"
    # Like bwrap from 0.12 on, which refuses symlinks in destinations, made of whichever one is under test
    careful.write_text(f'#!/bin/sh\ncase "$*" in *bound-link*) exit 1;; esac\nexec {os.fsdecode(trusted)} "$@"\n')
    careful.chmod(0o755)
    assert has_symlink_flaw(os.fsencode(careful), os.fsencode(state)) == (False, "")


def test_a_bwrap_that_can_make_nothing_is_taken_for_flawed(state: Path) -> None:
    is_flawed, why = has_symlink_flaw(b"/bin/false", os.fsencode(state))
    assert is_flawed
    assert why


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_both_overlay_engines_work_on(kind: str, trusted: bytes) -> None:
    work = FILESYSTEMS / kind / "work"
    if not work.is_dir():
        pytest.skip(f"no {kind} is mounted at {work}; .ci/setup does it")
    facts = probe(trusted, os.fsencode(work))
    assert facts.state_filesystem == kind
    assert facts.engines[0] == "mount"


def test_the_mount_engine_works_on_tmpfs(trusted: bytes, shared_memory: Path) -> None:
    facts = probe(trusted, os.fsencode(shared_memory))
    assert facts.state_filesystem == "tmpfs"
    assert facts.engines[0] == "mount"


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    with scratch_directory(b"/dev/shm") as path:
        yield Path(os.fsdecode(path))


def test_a_state_directory_on_an_overlay_leaves_no_engine(trusted: bytes, tmp_path: Path) -> None:
    for part in ("lower", "upper", "work", "merged"):
        (tmp_path / part).mkdir()
    facts = masked([f"overlay-state={tmp_path}"], trusted, tmp_path / "merged")
    assert facts.state_filesystem == "overlay"
    assert facts.engines == ()
    assert facts.own_namespace
    assert "Invalid argument" in reason(facts, "mount")


def test_a_state_directory_that_is_not_there_leaves_no_engine(trusted: bytes, tmp_path: Path) -> None:
    facts = probe(trusted, os.fsencode(tmp_path / "missing"))
    assert facts.engines == ()
    assert "No such file" in reason(facts, "state")


def test_without_bwrap_nothing_is_claimed(state: Path) -> None:
    facts = probe(None, os.fsencode(state))
    assert facts.bwrap is None
    assert (facts.namespaces, facts.disable_userns, facts.proc_mount) == (False, False, False)
    assert facts.own_namespace
    assert {"bwrap", "namespaces", "native"} <= set(dict(facts.problems))


def test_a_limit_of_no_user_namespaces_is_found_and_named(trusted: bytes, state: Path) -> None:
    facts = masked(["no-more-namespaces"], trusted, state)
    assert not facts.namespaces
    assert not facts.own_namespace
    assert facts.engines == ()
    assert reason(facts, "max-user-namespaces") == "user.max_user_namespaces is 0"


def test_inside_a_sandbox_that_forbids_namespaces_no_sandbox_is_promised(trusted: bytes, state: Path) -> None:
    facts = asked_through(nested(trusted, state, "--disable-userns"), trusted, state)
    assert not facts.namespaces
    assert not facts.own_namespace
    assert "surroundings" in dict(facts.problems)


def test_inside_a_sandbox_that_allows_namespaces_all_works_again(trusted: bytes, state: Path) -> None:
    facts = asked_through(nested(trusted, state), trusted, state)
    assert facts.namespaces
    assert facts.disable_userns
    assert facts.engines[0] == "mount"


def test_a_proc_with_something_mounted_over_it_can_not_be_mounted_anew(trusted: bytes, state: Path) -> None:
    facts = masked(["covered-proc"], trusted, state)
    assert facts.namespaces
    assert not facts.proc_mount
    assert "proc" in reason(facts, "proc_mount")


def test_where_only_bwrap_may_use_namespaces_ours_is_not_claimed(trusted: bytes, state: Path) -> None:
    facts = masked(["own-namespace"], trusted, state)
    assert facts.namespaces
    assert not facts.own_namespace
    assert "mount" not in facts.engines
    assert facts.bwrap is not None
    assert ("native" in facts.engines) is facts.bwrap.has_overlay


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("landlock", {"landlock_abi": 0}),
        ("fsopen", {"lowerdir_plus": False}),
    ],
)
def test_a_system_call_that_is_missing_is_missed(
    mask: str, expected: dict[str, object], trusted: bytes, state: Path
) -> None:
    facts = masked([mask], trusted, state)
    assert differences(facts, probe(trusted, os.fsencode(state))) == expected
    assert set(expected) <= {name for name, _reason in facts.problems}


def test_openat2_is_missed_by_us_and_by_a_bwrap_that_can_not_do_without_it(trusted: bytes, state: Path) -> None:
    facts = masked(["openat2"], trusted, state)
    whole = probe(trusted, os.fsencode(state))
    assert whole.bwrap is not None
    expected: dict[str, object] = {"openat2": False}
    if version_of(whole) >= (0, 12):
        # It starts nothing then, so that it is without its flaw is not known either
        expected |= {"namespaces": False, "disable_userns": False, "proc_mount": False, "engines": ("mount",)}
        expected |= {"bwrap": whole.bwrap.replace(symlink_flaw=True)}
    assert differences(facts, whole) == expected
    assert {"openat2"} | (set(expected) & {"namespaces"}) <= {name for name, _reason in facts.problems}


def differences(facts: Facts, whole: Facts) -> dict[str, object]:
    """Return what is not as it is on the whole machine, without the reasons."""
    found = {name: value for name, value in facts.as_dict().items() if value != whole.as_dict()[name]}
    found.pop("problems")
    return found


def test_facts_survive_being_written_and_read(trusted: bytes, state: Path) -> None:
    facts = probe(trusted, os.fsencode(state))
    assert facts_from_text(facts_to_text(facts)) == facts


def test_a_killed_probe_leaves_a_directory_that_the_next_one_removes(trusted: bytes, state: Path) -> None:
    left = state / os.fsdecode(SCRATCH_PREFIX + b"0123")
    (left / "mount/work/work").mkdir(parents=True)
    (left / "mount/work/work").chmod(0)
    with scratch_directory(os.fsencode(state)) as held:
        assert not left.exists()
        probe(trusted, os.fsencode(state))
        assert os.path.isdir(held)
    assert list(state.iterdir()) == []


def test_a_flatpak_application_is_recognised(trusted: bytes, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not probe(trusted, os.fsencode(state)).flatpak
    monkeypatch.setenv("FLATPAK_ID", "org.example.Editor")
    assert probe(trusted, os.fsencode(state)).flatpak
