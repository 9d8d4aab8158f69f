# SPDX-License-Identifier: Apache-2.0
"""What a run leaves that is gone afterwards is named: files in temporary directories, processes that were stopped."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import Ground, kinds, lasting, printed, processes_with, run_cli, short
from unspill import RunResult, TimedOut
from unspill.host import spawner
from unspill.runner import launcher

pytestmark = pytest.mark.kernel

NOT_KEPT = "Not kept, since these directories are temporary: "
HOME_VIEW = pytest.mark.view("sealed", reason="only this view has a temporary home directory")


def said(result: RunResult) -> dict[str, str]:
    """Return what was said of such things, by its code."""
    return {hint.code: hint.text for hint in result.hints if hint.code in ("not-kept", "stopped-processes")}


def test_what_leaves_nothing_there_says_nothing(ground: Ground) -> None:
    (ground.home / ".cache" / "pip").mkdir(parents=True)
    (ground.home / ".cargo" / "bin").mkdir(parents=True)
    command = "echo x > file; echo x > /tmp/a; echo x > /dev/shm/a; echo x > ~/playground/a; ls -a ~ /run /var/tmp"
    assert said(ground.run(command)) == {}
    assert said(ground.run("echo x > ~/.cache/pip/wheel || true")) == {}


@HOME_VIEW
def test_files_in_the_temporary_home_directory_are_named(ground: Ground) -> None:
    result = ground.run("echo x > ~/.foo; mkdir -p ~/.npm/_logs; echo y > ~/.npm/_logs/1")
    (text,) = said(result).values()
    assert sorted(text.removeprefix(NOT_KEPT).removesuffix(".").split(", ")) == ["~/.foo", "~/.npm/"]
    assert f"Note: {text}\n" in result.text()


@HOME_VIEW
def test_files_beside_what_is_shown_of_the_home_directory_are_named(ground: Ground) -> None:
    (ground.home / ".cache" / "pip").mkdir(parents=True)
    result = ground.run("echo x > ~/.cache/other; echo x > ~/.cache/pip/wheel")
    assert said(result) == {"not-kept": f"{NOT_KEPT}~/.cache/other."}


@HOME_VIEW
def test_a_git_configuration_that_is_written_over_is_named(ground: Ground) -> None:
    (ground.home / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.org\n")
    assert said(ground.run("git config --global --list")) == {}
    result = ground.run("git config --global user.name Bob")
    assert said(result) == {"not-kept": f"{NOT_KEPT}~/.gitconfig."}


@pytest.mark.parametrize("place", ["/run", "/var/tmp"])
def test_files_in_other_temporary_directories_are_named(ground: Ground, place: str) -> None:
    assert said(ground.run(f"echo 1 > {place}/app.pid")) == {"not-kept": f"{NOT_KEPT}{place}/app.pid."}


def test_a_few_are_named_and_the_others_are_counted(ground: Ground) -> None:
    text = said(ground.run("cd /var/tmp; for i in $(seq 12); do echo > f$i; done"))["not-kept"]
    assert text.count("/var/tmp/f") == 3
    assert text.endswith(" and 9 more.")


def test_names_are_escaped_and_cut(ground: Ground) -> None:
    command = r"""cd /var/tmp; touch "$(printf 'a\033[31mb\nc')"; touch "$(printf 'x%.0s' $(seq 200))" """
    text = said(ground.run(command))["not-kept"]
    assert "\\u{1b}[31mb\\nc" in text
    assert text.isprintable()
    assert len(text) < 300


def test_of_very_many_files_no_more_than_a_thousand_are_looked_at(ground: Ground) -> None:
    result = ground.run("cd /var/tmp && seq 50000 | xargs touch; mkdir /run/d; cd /run/d && seq 50000 | xargs touch")
    assert said(result)["not-kept"].endswith(" and 997 more.")


def test_a_link_that_leads_out_is_named_and_not_followed(ground: Ground) -> None:
    result = ground.run("ln -s / /var/tmp/all; ln -s /proc/1/root/etc /run/etc")
    assert sorted(said(result)["not-kept"].removeprefix(NOT_KEPT).removesuffix(".").split(", ")) == [
        "/run/etc",
        "/var/tmp/all",
    ]


def test_a_directory_that_is_closed_to_its_owner_is_looked_into_all_the_same(ground: Ground) -> None:
    assert said(ground.run("echo > /var/tmp/x; chmod 000 /var/tmp"))["not-kept"] == f"{NOT_KEPT}/var/tmp/x."


@pytest.mark.parametrize("ending", ["exit 0", "exit 3", "kill -9 $$"])
def test_processes_that_are_alive_at_the_end_are_named(ground: Ground, ending: str) -> None:
    for _ in range(5):
        long = lasting()
        result = ground.run(f"sleep {long} & sleep 0.1; {ending}")
        assert said(result) == {"stopped-processes": f'Stopped 1 process that was still running: "sleep {long}".'}
        assert processes_with(long) == []


def test_of_many_processes_some_are_named_and_all_are_counted(ground: Ground) -> None:
    long = lasting()
    result = ground.run(f"for i in $(seq 20); do setsid sleep {long} & done; sleep 0.2")
    text = said(result)["stopped-processes"]
    assert text.startswith("Stopped 20 processes that were still running: ")
    assert text.endswith(" and 17 more.")


def test_descendants_of_daemons_are_counted_and_the_dead_are_not(ground: Ground) -> None:
    long = lasting()
    # A daemon by double fork that has a child, and one whose child is a zombie
    script = f"import os, time; os.fork() or os._exit(0); time.sleep({long.partition('.')[0]})"
    result = ground.run(f"(setsid sh -c 'sleep {long}; :' &) ; sleep 0.2; python3 -c '{script}' & sleep 0.3; exit 0")
    assert said(result)["stopped-processes"].startswith("Stopped 3 processes that were still running: ")


def test_a_command_line_is_escaped_and_cut(ground: Ground) -> None:
    command = r"""bash -c 'exec -a "$(printf "a\033[31m\nb%.0s" $(seq 60))" sleep 1000' & sleep 0.2"""
    text = said(ground.run(command))["stopped-processes"]
    assert '"a\\u{1b}[31m\\nb' in text
    assert text.endswith('"....')
    assert text.isprintable()
    assert len(text) < 200


def test_a_run_that_is_killed_as_a_whole_names_no_process(ground: Ground) -> None:
    result = ground.run("echo x > /var/tmp/lost; sleep 1000 & sleep 1000", limits=short(wall_s=0.5))
    assert isinstance(result.outcome, TimedOut)
    assert said(result) == {"not-kept": f"{NOT_KEPT}/var/tmp/lost."}


def test_the_summary_has_one_line_each(ground: Ground) -> None:
    done = run_cli("run", "-c", "echo x > /run/a; sleep 1000 & sleep 0.1; echo x > file", cwd=ground.project)
    assert done.stderr.decode().splitlines()[:2] == [
        f"unspill: {NOT_KEPT}/run/a.",
        'unspill: Stopped 1 process that was still running: "sleep 1000".',
    ]
    assert b"Applied as op 1" in done.stderr
    done = run_cli("run", "-q", "-c", "echo x > /run/a; sleep 1000 &", cwd=ground.project)
    assert done.stderr == b""


def test_the_next_run_starts_from_the_spawners_own_mounts(ground: Ground) -> None:
    """The spawner enters the mounts of a run to look, and must not stay there."""
    sandbox = ground.sandbox()
    before = printed(sandbox.run("cat /proc/self/mountinfo | wc -l", after="discard"))
    for number in range(5):
        assert sandbox.run(f"echo {number} > /var/tmp/x; echo {number} > file{number}").ok
    assert printed(sandbox.run("cat /proc/self/mountinfo | wc -l; ls /var/tmp", after="discard")) == before
    assert len(kinds(sandbox.changes())) == 5


def test_where_the_spawner_has_no_namespace_of_its_own_nothing_is_claimed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for a host where only bwrap may make namespaces: the limit that the reference names."""
    monkeypatch.setattr(launcher, "temporary_of", lambda _plan: ())
    assert said(ground.run("echo x > /run/a; sleep 1000 &")) == {}


def given(top: Path, planned: dict[bytes, bytes | None]) -> list[bytes]:
    found: list[bytes] = []
    spawner._look(os.fsencode(top), planned, found)
    return sorted(found)


def test_what_the_plan_has_made_is_not_lost(tmp_path: Path) -> None:
    for name in (".cache/pip/wheel", ".cache/own", ".config/a/b", "file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    top = os.fsencode(tmp_path)
    planned: dict[bytes, Any] = {top + b"/.cache/pip": None, top + b"/file": b"x", top + b"/.config/a/missing": None}
    assert given(tmp_path, planned) == [top + b"/.cache/own", top + b"/.config/a/b"]
    assert top + b"/file" in given(tmp_path, planned | {top + b"/file": b"y"})
    (tmp_path / "file").unlink()
    (tmp_path / "file").symlink_to("/etc/passwd")
    assert top + b"/file" in given(tmp_path, planned)
