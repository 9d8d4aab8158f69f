# SPDX-License-Identifier: Apache-2.0
"""Probes as processes: bounded in time, given nothing, and believed only for whole lines."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unspill.host.probe_process import ask, child_argv, parse_answers, run_bounded


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
