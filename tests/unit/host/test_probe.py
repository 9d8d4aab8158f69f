# SPDX-License-Identifier: Apache-2.0
"""Probes as processes, bounded and given nothing; where control groups may be made; which container is detected.

Version 2 of control groups with controllers can't be had here: its tree is made of plain files.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unspill.host.cgroup import find_classic, find_delegated, read_memberships
from unspill.host.probe import ask, child_argv, detect_container, parse_answers, probe_cgroup, run_bounded

DOCKER_GROUPS = "12:pids:/docker/0123\n"
POD_GROUPS = "1:name=systemd:/kubepods/besteffort/pod1\n"


def test_a_program_that_does_not_end_is_killed_and_named() -> None:
    started = time.monotonic()
    ended = run_bounded([b"/bin/sleep", b"60"], timeout_s=0.2)
    assert "no answer in 0.2 seconds" in ended.reason
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (b":", ""),
        (b"exit 3", "exit code 3"),
        (b"echo why >&2; exit 1", "why"),
        (b"kill -9 $$", "killed by signal 9"),
    ],
)
def test_the_reason_is_what_the_program_said_or_how_it_ended(script: bytes, reason: str) -> None:
    assert run_bounded([b"/bin/sh", b"-c", script]).reason == reason


def test_what_a_program_leaves_behind_neither_delays_the_answer_nor_outlives_it() -> None:
    started = time.monotonic()
    ended = run_bounded([b"/bin/sh", b"-c", b"sleep 60 & echo $!"])
    assert time.monotonic() - started < 10
    assert within_a_second(lambda: not is_alive(int(ended.stdout)))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def within_a_second(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 1
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def test_a_program_that_is_not_there_is_a_reason_too() -> None:
    assert "No such file" in run_bounded([b"/nonexistent/program"]).reason


def test_a_probe_sees_neither_our_variables_nor_our_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "1")
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    ended = run_bounded([b"/bin/sh", b"-c", b"env; ls /proc/self/fd"])
    os.close(read_end)
    os.close(write_end)
    assert b"CANARY" not in ended.stdout
    assert str(read_end).encode() not in ended.stdout.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", {}),
        (b"seccomp\t1\t\n", {"seccomp": (1, "")}),
        (
            b"landlock_abi\t7\t\nmount\t0\tInvalid argument\n",
            {"landlock_abi": (7, ""), "mount": (0, "Invalid argument")},
        ),
        (b"seccomp\t1\t", {}),
        (b"seccomp\n", {}),
        (b"seccomp\t-1\t\n", {}),
        (b"seccomp\tyes\t\n", {}),
    ],
)
def test_only_whole_lines_are_answers(text: bytes, expected: dict[str, tuple[int, str]]) -> None:
    assert parse_answers(text) == expected


def test_the_kernel_is_asked_in_a_process_of_its_own() -> None:
    answers, reason = ask(child_argv("kernel"))
    assert reason == ""
    assert set(answers) == {"landlock_abi", "openat2", "seccomp"}
    with open("/proc/self/status", encoding="ascii") as file:
        assert "NoNewPrivs:\t0" in file.read()


def test_a_question_nobody_knows_has_no_answer() -> None:
    assert ask(child_argv("nothing")) == ({}, "")


def make_group(path: Path, *, hands_down: str = "", is_ours: bool = True) -> bytes:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.subtree_control").write_text(hands_down)
    (path / "cgroup.procs").write_text("")
    if not is_ours:
        (path / "cgroup.procs").chmod(0o444)
    return os.fsencode(path)


def test_on_a_made_up_tree_the_nearest_group_that_hands_both_controllers_down_is_taken(tmp_path: Path) -> None:
    make_group(tmp_path, hands_down="cpu memory pids", is_ours=False)
    make_group(tmp_path / "user.service", hands_down="memory pids")
    slice_ = make_group(tmp_path / "user.service/app.slice", hands_down="memory pids")
    own = make_group(tmp_path / "user.service/app.slice/shell.scope")
    place = find_delegated({b"": own})
    assert (place.kind, place.parents) == ("v2", (slice_,))


@pytest.mark.parametrize("hands_down", ["", "memory", "pids", "cpu io", "memorypids"])
def test_on_a_made_up_tree_a_group_without_both_controllers_is_not_taken(hands_down: str, tmp_path: Path) -> None:
    own = make_group(tmp_path / "own", hands_down=hands_down)
    place = find_delegated({b"": own})
    assert place.kind == "none"
    assert "delegated" in place.reason


def test_on_a_made_up_tree_a_group_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    own = make_group(tmp_path / "own", hands_down="memory pids", is_ours=False)
    assert find_delegated({b"": own}).kind == "none"


def test_without_any_version_2_the_reason_says_so() -> None:
    assert "version 2" in find_delegated({}).reason


def test_on_a_made_up_tree_version_1_needs_both_controllers(tmp_path: Path) -> None:
    groups = {name.encode(): make_group(tmp_path / name) for name in ("memory", "pids")}
    place = find_classic(groups)
    assert (place.kind, place.parents) == ("v1", (groups[b"memory"], groups[b"pids"]))
    assert find_classic({b"pids": groups[b"pids"]}).kind == "none"


def test_the_groups_of_this_process_are_directories() -> None:
    memberships = read_memberships()
    assert memberships
    assert all(os.path.isdir(group) for group in memberships.values())


def test_an_ordinary_user_without_delegation_is_told_why() -> None:
    place = probe_cgroup()
    assert place.kind in {"none", "v2"}
    assert bool(place.reason) is (place.kind == "none")


@pytest.mark.root
def test_root_can_make_groups_and_leaves_none_behind() -> None:
    place = probe_cgroup()
    assert place.kind in {"v1", "v2"}, place.reason
    for parent in place.parents:
        assert not [name for name in os.listdir(parent) if name.startswith(b"unspill-probe")]


def made_up(top: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(top)


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        ({}, {}, ""),
        ({}, {"proc/1/cgroup": "0::/\n"}, ""),
        ({}, {"proc/1/cgroup": "0::/init.scope\n"}, ""),
        ({"CODESPACES": "true"}, {}, "codespaces"),
        ({"CODESPACES": "false"}, {}, ""),
        ({"CODESPACES": "true", "GITPOD_WORKSPACE_ID": "1"}, {".dockerenv": ""}, "codespaces"),
        ({"GITPOD_WORKSPACE_ID": "abc"}, {".dockerenv": ""}, "gitpod"),
        ({"container": "podman"}, {".dockerenv": ""}, "docker"),
        ({}, {".dockerenv": ""}, "docker"),
        ({"container": "podman"}, {"proc/1/cgroup": DOCKER_GROUPS}, "podman"),
        ({"container": "oci"}, {}, "oci"),
        ({"container": ""}, {}, ""),
        ({}, {"run/.containerenv": ""}, "podman"),
        ({}, {"proc/1/cgroup": DOCKER_GROUPS}, "docker"),
        ({}, {"proc/1/cgroup": POD_GROUPS}, "kubepods"),
        ({}, {"proc/1/cgroup": "0::/system.slice/containerd.service\n"}, "containerd"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"proc/1/cgroup": "0::/\n"}, "kubernetes"),
    ],
)
def test_a_container_is_detected_in_order_from_made_up_marks(
    tmp_path: Path, environ: dict[str, str], files: dict[str, str], expected: str
) -> None:
    assert detect_container(environ, made_up(tmp_path, files)) == expected
