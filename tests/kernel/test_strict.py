# SPDX-License-Identifier: Apache-2.0
"""The profile `strict`: it takes some system calls away, says that this is all, and changes nothing else."""

from __future__ import annotations

import json
import textwrap
from typing import Final

import pytest

from tests.kernel.test_seccomp_tools import COMPILER, GIT, SHELL, SQLITE, SUBPROCESS
from tests.support import Ground, kinds, printed, run_cli
from unspill import Exited, RunResult, Signalled, TimedOut

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap, pytest.mark.rootfs_view]

SELF: Final = """
import json, os, signal, sys
with open("/proc/self/environ", "rb") as file: environ = sorted(file.read().decode("latin-1").split("\\0"))
with open("/proc/self/status") as file: status = dict(line.rstrip().split(":", 1) for line in file)
print(json.dumps({
    "environ": environ,
    "descriptors": [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")],
    "signals": [status[name] for name in ("SigBlk", "SigCgt", "ShdPnd")],
    "ignored": int(status["SigIgn"], 16) & ~(1 << 12 | 1 << 24),
    "umask": status["Umask"], "groups": status["Groups"], "caps": status["CapEff"], "nnp": status["NoNewPrivs"],
    "parent": os.getppid(), "cwd": os.getcwd(), "argv": sys.argv[1:], "session": os.getsid(0) > 0,
}))
"""


def run_strict(ground: Ground, command: str | list[str], **options: object) -> RunResult:
    return ground.sandbox("strict", profile="strict").run(command, **options)  # type: ignore[arg-type]


def outcomes(ground: Ground, command: str | list[str], **options: object) -> tuple[object, object]:
    """Return how a command ends under both profiles."""
    plain = ground.sandbox().run(command, **options)  # type: ignore[arg-type]
    return plain.outcome, run_strict(ground, command, **options).outcome


def test_a_command_runs_and_its_changes_are_caught_as_ever(ground: Ground, engine: str) -> None:
    ground.write("kept", "old")
    result = run_strict(ground, "echo new > made; echo more >> kept; mkdir d; mv made d/; cat d/made")
    assert printed(result) == "new\n"
    assert kinds(result.changes) == {"d": "added", "d/made": "added", "kept": "modified"}


def test_a_command_is_started_as_in_the_default_profile(ground: Ground) -> None:
    command = ["/usr/bin/python3", "-I", "-c", SELF, "--", "a b", "", "\udcff", "ü"]
    options = {"env": {"EMPTY": "", "ODD": "a=b\nc", "LC_CTYPE": "POSIX"}}
    plain = json.loads(printed(ground.sandbox().run(command, **options)))  # type: ignore[arg-type]
    assert json.loads(printed(run_strict(ground, command, **options))) == plain


def test_signals_are_not_ignored_by_the_command(ground: Ground) -> None:
    look = "grep SigIgn /proc/self/status; yes | head -n 1; kill -PIPE $$; echo survived"
    plain, strict = ground.sandbox().run(look), run_strict(ground, look)
    assert strict.outcome == plain.outcome == Signalled(signal=13)
    assert strict.stdout.kept() == plain.stdout.kept()


COMMANDS: Final[dict[str, str | list[str]]] = {
    "succeeds": ["true"],
    "fails": ["false"],
    "its own code": "exit 77",
    "not found": ["no-such-program-anywhere", "x"],
    "not found, by path": ["/usr/bin/no-such-program"],
    "not executable": ["/etc/passwd"],
    "a directory": ["/usr"],
    "no interpreter": ["./broken"],
    "a script without a first line": ["./plain", "word"],
    "a program of the project": ["./script", "word"],
    "a signal": "kill -9 $$",
    "code 126": "exit 126",
    "code 127": "exit 127",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_ends_or_fails_to_start_exactly_as_in_the_default_profile(
    ground: Ground, command: str | list[str]
) -> None:
    for name, text in {
        "broken": "#!/no/such/sh\n",
        "plain": "test $1 = word\n",
        "script": "#!/bin/sh\nexit 5\n",
    }.items():
        ground.write(name, text).chmod(0o755)
    plain, strict = outcomes(ground, command)
    assert strict == plain


def test_a_command_that_forges_our_words_changes_nothing(ground: Ground) -> None:
    result = run_strict(ground, "for i in 3 4 5 6 7 8 9; do echo failed command 2 >&$i; done 2>/dev/null; exit 3")
    assert result.outcome == Exited(code=3)


def test_a_run_that_is_ended_while_it_starts_is_ended(ground: Ground) -> None:
    for seconds in (0.001, 0.01, 0.02, 0.04):
        result = run_strict(ground, "sleep 60", timeout=seconds)
        assert result.outcome == TimedOut(after_s=seconds)


DEVICES: Final = """
head -c 3 /dev/urandom > /dev/null
ls /dev/pts /proc / > /dev/stderr
echo x > /dev/full || echo ok
"""
TEMPORARY: Final = """
f=$(mktemp)
d=$(mktemp -d)
mv $f $d/
ln -s $d ~/link
mkfifo $d/fifo
rm -r $d
echo ok
"""
SERVE: Final = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server: socket.create_connection(server.getsockname())
print("ok")
"""
UNIX: Final = """
import socket
with socket.socket(socket.AF_UNIX) as server: server.bind("place")
print("ok")
"""
TOOLS: Final = {
    "bash": ["bash", "-c", SHELL],
    "gcc and make": ["sh", "-c", COMPILER],
    "git": ["sh", "-c", GIT],
    "python: subprocess and a terminal": ["python3", "-c", textwrap.dedent(SUBPROCESS)],
    "python: sqlite": ["python3", "-c", textwrap.dedent(SQLITE)],
    "node": ["node", "-e", "require('fs').writeFileSync('x', 'y'); console.log('ok')"],
    "the devices": ["sh", "-c", DEVICES],
    "temporary files": ["sh", "-ec", TEMPORARY],
    "a server on loopback": ["python3", "-c", SERVE],
    "the playground": ["sh", "-c", "cd ~/playground && echo ok > f && cat f"],
}


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_works(ground: Ground, name: str) -> None:
    result = run_strict(ground, TOOLS[name])
    assert printed(result).splitlines()[-1:] == ["ok"]


def test_the_policys_own_paths_can_be_used(ground: Ground) -> None:
    second, shown = ground.home / "second", ground.top / "shown"
    for directory in (second, shown):
        directory.mkdir()
        (directory / "file").write_text("old\n")
    sandbox = ground.sandbox(profile="strict", roots=(bytes(second),), readable=(bytes(shown),))
    assert printed(sandbox.run(f"echo new > {second}/made; cat {shown}/file")) == "old\n"
    assert not sandbox.run(f"echo new > {shown}/made").ok


def test_what_the_profile_says_it_takes_away_is_gone(ground: Ground) -> None:
    refused = run_strict(ground, ["python3", "-c", UNIX])
    assert b"Address family not supported" in refused.stderr.kept()
    assert printed(ground.run(["python3", "-c", UNIX])) == "ok\n"


def test_it_says_once_that_it_has_no_landlock_fence(ground: Ground) -> None:
    said = b'unspill: `profile = "strict"` refuses more system calls; it has no Landlock fence. unspill says this once.'
    ground.configure('profile = "strict"\n')
    results = [run_cli("run", "--", "true", cwd=ground.project).stderr for _ in range(2)]
    assert [said in result for result in results] == [True, False]
    other = ground.top / "other"
    other.mkdir()
    assert said not in run_cli("run", "--project", other, "--", "true", cwd=other).stderr


def test_the_default_profile_says_nothing_of_landlock(ground: Ground) -> None:
    assert not any("Landlock" in warning for warning in ground.run("true").warnings)
    assert any("Landlock" in warning for warning in run_strict(ground, "true").warnings)
