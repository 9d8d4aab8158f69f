# SPDX-License-Identifier: Apache-2.0
"""`doctor` and the probes on this host: with all it has, and with one feature after the other taken away for real."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.masked_host import asked_through, masked, nested
from tests.support import MOUNTS
from unspill.cli.upkeep import as_json, as_text, exit_code
from unspill.errors import BwrapMissing, BwrapUnsafe, HostError
from unspill.host import probe as host_probe
from unspill.host.bwrap import facts_from_text, facts_to_text, find_bwrap
from unspill.host.diagnosis import diagnose, find_refusal, install_command, survey_project
from unspill.host.probe import SCRATCH_PREFIX, has_symlink_flaw, makes_directory_through, probe, scratch_directory
from unspill.model.plan import Facts
from unspill.model.policy import Policy

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


def told(facts: Facts, policy: Policy | None = None, bwrap_error: HostError | None = None) -> tuple[str, int]:
    """Return what a person reads, and the exit code."""
    found = diagnose(facts, policy or Policy(), bwrap_error=bwrap_error)
    return as_text(facts, found), exit_code(found)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def trusted(bwrap: Path) -> bytes:
    return find_bwrap(os.fsencode(bwrap), "", [])


def test_on_a_host_made_for_the_tests_commands_can_be_run(trusted: bytes, state: Path) -> None:
    text, code = told(probe(trusted, os.fsencode(state)))
    assert code == 0
    assert text.startswith(("Level A: ", "Level B: "))
    assert os.fsdecode(trusted) in text


def test_json_has_the_same_rows_and_all_facts(trusted: bytes, state: Path) -> None:
    facts = probe(trusted, os.fsencode(state))
    found = diagnose(facts, Policy())
    value = json.loads(as_json(facts, found))
    assert exit_code(found) == 0
    assert value["level"] in {"A", "B"}
    assert value["facts"]["engines"] == list(facts.engines)
    assert value["facts"]["bwrap"]["path"] == os.fsdecode(trusted)
    assert {"namespaces", "engines", "cgroup"} <= {row["fact"] for row in value["rows"]}


@pytest.mark.parametrize("mask", ["no-more-namespaces", "covered-proc"])
def test_what_seals_a_run_taken_away_is_level_d_and_exit_code_3(mask: str, trusted: bytes, state: Path) -> None:
    text, code = told(masked([mask], trusted, state))
    assert text.startswith("Level D: ")
    assert code == HostError.exit_code == 3


def test_a_limit_of_no_namespaces_comes_with_the_line_that_lifts_it(trusted: bytes, state: Path) -> None:
    facts = masked(["no-more-namespaces"], trusted, state)
    text, _code = told(facts)
    assert "echo user.max_user_namespaces=15000 | sudo tee" in text


def test_inside_a_sandbox_that_forbids_namespaces_it_says_to_leave_it(trusted: bytes, state: Path) -> None:
    facts = asked_through(nested(trusted, state, "--disable-userns"), trusted, state)
    text, code = told(facts)
    assert code == 3
    assert "outside the container or sandbox" in text


def test_without_bwrap_it_says_what_to_install(state: Path) -> None:
    with pytest.raises(BwrapMissing) as missing:
        find_bwrap(None, "", [])
    text, code = told(probe(None, os.fsencode(state)), bwrap_error=missing.value)
    assert code == 3
    assert f"Install bubblewrap: {install_command()}" in text


def test_a_bwrap_that_others_may_write_is_refused_by_name(state: Path, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o4777)
    with pytest.raises(BwrapUnsafe) as unsafe:
        find_bwrap(os.fsencode(fake), "", [])
    text, code = told(probe(None, os.fsencode(state)), bwrap_error=unsafe.value)
    assert code == 3
    assert "setuid" in text


def test_where_only_bwrap_may_mount_its_overlays_are_used_or_a_newer_one_is_needed(trusted: bytes, state: Path) -> None:
    facts = masked(["own-namespace"], trusted, state)
    text, code = told(facts)
    has_native = "native" in facts.engines
    assert code == (0 if has_native else 3)
    assert ("bwrap mounts overlays" in text) is has_native
    assert ("bubblewrap 0.11 or later" in text) is not has_native


def test_a_project_is_looked_through(trusted: bytes, state: Path, tmp_path: Path) -> None:
    project = tmp_path / "pro\x1b[31mject"
    project.mkdir()
    (project / "a\nb").symlink_to("/etc")
    root = os.fsencode(project)
    facts = probe(trusted, os.fsencode(state))
    found, survey = diagnose(facts, Policy()), survey_project(root)
    text = as_text(facts, found, survey)
    assert exit_code(found) == 0
    assert "1 entries" in text
    assert "symlinks that point outside the project" in text
    assert "\x1b" not in text
    assert "a\\nb" in text
    value = json.loads(as_json(facts, found, survey))
    assert value["findings"] == [{"kind": "link-out", "count": 1, "examples": ["a\\nb"]}]


def run_program(*words: str | Path, state: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"UNSPILL_STATE_DIR": os.fspath(state)} | environ
    code = "from unspill.cli.main import main; main()"
    command = [sys.executable, "-c", code, "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False, cwd="/")


def test_the_program_prints_the_report_and_exits_with_0(state: Path, tmp_path: Path) -> None:
    done = run_program(tmp_path, state=state)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(("Level A: ", "Level B: "))
    assert f"Project {tmp_path}: " in done.stdout


def test_the_program_without_bwrap_on_path_exits_with_3(state: Path) -> None:
    done = run_program("--json", state=state, PATH="")
    assert done.returncode == 3
    value = json.loads(done.stdout)
    assert value["level"] == "D"
    assert value["facts"]["bwrap"] is None


@pytest.mark.root
def test_root_is_refused_unless_configured(trusted: bytes, state: Path) -> None:
    facts = probe(trusted, os.fsencode(state))
    assert facts.namespaces
    assert told(facts)[1] == 3
    text, code = told(facts, Policy(allow_root=True))
    assert code == 0
    assert text.startswith("Level C: ")


@pytest.fixture
def odd_state(tmp_path: Path) -> Path:
    path = tmp_path / "state: with, odd\\ name"
    path.mkdir(mode=0o700)
    return path


def reason(facts: Facts, name: str) -> str:
    return dict(facts.problems)[name]


def version_of(facts: Facts) -> tuple[int, ...]:
    assert facts.bwrap is not None
    return tuple(int(part) for part in re.findall(r"\d+", facts.bwrap.version))


def test_everything_that_runs_need_works_here(trusted: bytes, odd_state: Path) -> None:
    facts = probe(trusted, os.fsencode(odd_state))
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


def test_nothing_is_left_in_the_state_directory(trusted: bytes, odd_state: Path) -> None:
    probe(trusted, os.fsencode(odd_state))
    assert list(odd_state.iterdir()) == []


def test_the_native_engine_is_there_where_bwrap_has_overlays(trusted: bytes, odd_state: Path) -> None:
    usage = subprocess.run([trusted, "--help"], capture_output=True, text=True, check=True).stdout
    facts = probe(trusted, os.fsencode(odd_state))
    assert facts.bwrap is not None
    assert facts.bwrap.has_overlay is ("--overlay " in usage)
    assert ("native" in facts.engines) is facts.bwrap.has_overlay


def test_the_symlink_flaw_is_seen_in_every_bwrap_before_0_12(trusted: bytes, odd_state: Path) -> None:
    facts = probe(trusted, os.fsencode(odd_state))
    assert facts.bwrap is not None
    assert facts.bwrap.symlink_flaw is (version_of(facts) < (0, 12))
    assert "symlink_flaw" not in dict(facts.problems)


def test_a_plain_directory_in_the_way_is_not_taken_for_the_flaw(trusted: bytes, odd_state: Path) -> None:
    outside = odd_state / "outside"
    outside.mkdir()
    made, why = makes_directory_through(trusted, os.fsencode(odd_state), None)
    assert made, why
    assert list(outside.iterdir()) == []


def test_a_bwrap_that_follows_no_link_has_no_flaw(trusted: bytes, odd_state: Path, tmp_path: Path) -> None:
    careful = tmp_path / "careful"
    # Like bwrap from 0.12 on, which refuses symlinks in destinations, made of whichever one is under test
    careful.write_text(f'#!/bin/sh\ncase "$*" in *bound-link*) exit 1;; esac\nexec {os.fsdecode(trusted)} "$@"\n')
    careful.chmod(0o755)
    assert has_symlink_flaw(os.fsencode(careful), os.fsencode(odd_state)) == (False, "")


def test_a_bwrap_that_can_make_nothing_is_taken_for_flawed(odd_state: Path) -> None:
    is_flawed, why = has_symlink_flaw(b"/bin/false", os.fsencode(odd_state))
    assert is_flawed
    assert why


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_both_overlay_engines_work_on(kind: str, trusted: bytes) -> None:
    work = MOUNTS / kind / "work"
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


def test_without_bwrap_nothing_is_claimed(odd_state: Path) -> None:
    facts = probe(None, os.fsencode(odd_state))
    assert facts.bwrap is None
    assert (facts.namespaces, facts.disable_userns, facts.proc_mount) == (False, False, False)
    assert facts.own_namespace
    assert {"bwrap", "namespaces", "native"} <= set(dict(facts.problems))


def test_a_limit_of_no_user_namespaces_is_found_and_named(trusted: bytes, odd_state: Path) -> None:
    facts = masked(["no-more-namespaces"], trusted, odd_state)
    assert not facts.namespaces
    assert not facts.own_namespace
    assert facts.engines == ()
    assert reason(facts, "max-user-namespaces") == "user.max_user_namespaces is 0"


def test_inside_a_sandbox_that_forbids_namespaces_no_sandbox_is_promised(trusted: bytes, odd_state: Path) -> None:
    facts = asked_through(nested(trusted, odd_state, "--disable-userns"), trusted, odd_state)
    assert not facts.namespaces
    assert not facts.own_namespace
    assert "surroundings" in dict(facts.problems)


def test_inside_a_sandbox_that_allows_namespaces_all_works_again(trusted: bytes, odd_state: Path) -> None:
    facts = asked_through(nested(trusted, odd_state), trusted, odd_state)
    assert facts.namespaces
    assert facts.disable_userns
    assert facts.engines[0] == "mount"


def test_a_proc_with_something_mounted_over_it_can_not_be_mounted_anew(trusted: bytes, odd_state: Path) -> None:
    facts = masked(["covered-proc"], trusted, odd_state)
    assert facts.namespaces
    assert not facts.proc_mount
    assert "proc" in reason(facts, "proc_mount")


def test_where_only_bwrap_may_use_namespaces_ours_is_not_claimed(trusted: bytes, odd_state: Path) -> None:
    facts = masked(["own-namespace"], trusted, odd_state)
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
    mask: str, expected: dict[str, object], trusted: bytes, odd_state: Path
) -> None:
    facts = masked([mask], trusted, odd_state)
    assert differences(facts, probe(trusted, os.fsencode(odd_state))) == expected
    assert set(expected) <= {name for name, _reason in facts.problems}


def test_openat2_is_missed_by_us_and_by_a_bwrap_that_can_not_do_without_it(trusted: bytes, odd_state: Path) -> None:
    facts = masked(["openat2"], trusted, odd_state)
    whole = probe(trusted, os.fsencode(odd_state))
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


def test_facts_survive_being_written_and_read(trusted: bytes, odd_state: Path) -> None:
    facts = probe(trusted, os.fsencode(odd_state))
    assert facts_from_text(facts_to_text(facts)) == facts


def test_a_killed_probe_leaves_a_directory_that_the_next_one_removes(trusted: bytes, odd_state: Path) -> None:
    left = odd_state / os.fsdecode(SCRATCH_PREFIX + b"0123")
    closed = left / "mount" / "work" / "work"
    closed.mkdir(parents=True)
    closed.chmod(0)
    with scratch_directory(os.fsencode(odd_state)) as held:
        assert not left.exists()
        probe(trusted, os.fsencode(odd_state))
        assert os.path.isdir(held)
    assert list(odd_state.iterdir()) == []


@pytest.mark.parametrize("moment", ["before it is locked", "while it is locked"])
def test_a_probe_whose_directory_another_one_sweeps_works(
    trusted: bytes, odd_state: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    state = os.fsencode(odd_state)
    swept: list[bytes] = []

    def sweep(path: bytes) -> None:
        if not swept and os.path.basename(path).startswith(SCRATCH_PREFIX):
            swept.append(path)
            with scratch_directory(state):
                assert not os.path.lexists(path)

    def make_and_be_swept(above: bytes, name: bytes) -> bytes:
        path = make(above, name)
        sweep(path)
        return path

    def open_and_be_swept(path: bytes, *rest: int) -> int:
        fd = open_file(path, *rest)
        sweep(path)
        return fd

    make, open_file = host_probe._make, os.open
    if moment == "before it is locked":
        monkeypatch.setattr(host_probe, "_make", make_and_be_swept)
    else:
        monkeypatch.setattr(os, "open", open_and_be_swept)
    facts = probe(trusted, state)
    assert swept
    assert facts.problems == probe(trusted, state).problems
    assert facts.can_seal()
    assert list(odd_state.iterdir()) == []


def test_what_keeps_a_probe_from_its_directory_is_not_called_a_missing_bwrap(trusted: bytes, odd_state: Path) -> None:
    odd_state.chmod(0o500)
    facts = probe(trusted, os.fsencode(odd_state))
    row = find_refusal(diagnose(facts, Policy()))
    assert row is not None
    assert "Permission denied" in row.consequence
    assert row.remedy.startswith("Make the directory yours")
    assert not [row for row in diagnose(facts, Policy()).rows if "bubblewrap" in row.remedy]


def test_a_flatpak_application_is_recognised(trusted: bytes, odd_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not probe(trusted, os.fsencode(odd_state)).flatpak
    monkeypatch.setenv("FLATPAK_ID", "org.example.Editor")
    assert probe(trusted, os.fsencode(odd_state)).flatpak
