# SPDX-License-Identifier: Apache-2.0
"""What a package can do while it is installed in a Debian rootfs, and what is left of a build that was ended.

A build runs as root of a namespace. Here a probe runs in its place; the control arm runs the same probe as root of
a plain user namespace with the same ids.
"""

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import lasting, processes_with
from unspill.errors import RootfsError
from unspill.rootfs.compression import Bounds
from unspill.rootfs.debian import enclosed_argv, run

pytestmark = pytest.mark.kernel

UNENCLOSED = "unshare --user --map-root-user --map-auto --mount --pid --fork --".split()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """What a build has to itself, below a directory that nobody else can enter."""
    top = tmp_path / "scratch"
    top.mkdir()
    (top / "subuid").write_text("root:1:65535\n")
    (top / "package").write_text("as it was fetched")
    (top / "package").chmod(0o644)
    tmp_path.chmod(0o700)
    return top


def enclosed(scratch: Path, script: str) -> list[str]:
    """Return the command that runs a shell script in the place of a build."""
    given = {
        "/etc/subuid": scratch / "subuid",
        "/etc/subgid": scratch / "subuid",
        "/given/package": scratch / "package",
    }
    paths = {inside: os.fspath(outside) for inside, outside in given.items()}
    return enclosed_argv(os.fspath(scratch), paths, ["sh", "-c", f"exec >&2; {script}"])


@pytest.fixture
def secret() -> Iterator[Path]:
    """A secret in the home directory that everybody may read, by its mode."""
    path = Path.home() / f"secret-{os.getpid()}"
    path.write_text("the secret")
    path.chmod(0o644)
    yield path
    path.unlink()


def probe(scratch: Path, script: str, *, is_enclosed: bool) -> str:
    """Run a shell script in the place of a build, or as root of a plain user namespace; return what it printed."""
    lines: list[str] = []
    script += "\ntrue"
    if is_enclosed:
        run(enclosed(scratch, script), os.fspath(scratch), {}, on_line=lines.append, wall_s=60)
        return "\n".join(lines)
    argv = [*UNENCLOSED, "sh", "-c", script]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(argv, env=environ, cwd=scratch, stdout=-1, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.rstrip("\n")


def test_the_probe_is_root_of_many_ids_in_both_arms(scratch: Path) -> None:
    script = "id -u; cd /tmp; touch another && chown 33:33 another && stat -c %u:%g another; rm another"
    for is_enclosed in (True, False):
        assert probe(scratch, script, is_enclosed=is_enclosed).splitlines() == ["0", "33:33"]


def test_the_home_directory_is_not_there(scratch: Path, secret: Path) -> None:
    script = f"cat {secret}; ls -A /home /root /run /mnt /srv 2>/dev/null; true"
    assert "the secret" not in probe(scratch, script, is_enclosed=True)
    assert "the secret" in probe(scratch, script, is_enclosed=False)


def test_what_hides_it_can_not_be_taken_away(scratch: Path, secret: Path) -> None:
    script = f"""
        for point in / /usr /given/package /tmp /etc/passwd /proc; do umount $point && echo taken away: $point; done
        for at in $(ls /proc | grep -E '^[0-9]+$'); do cat /proc/$at/root{secret} && echo reached; done
        mount -t proc proc /proc && ls /proc/*/root{secret} && echo reached
        true
    """
    said = probe(scratch, script, is_enclosed=True)
    assert "taken away" not in said
    assert "reached" not in said


def test_files_of_the_caller_are_a_strangers(scratch: Path) -> None:
    script = "echo changed >> {0}; chmod 777 {0}; rm -f {0}; cat {0}"
    assert "as it was fetched" in probe(scratch, script.format("/given/package"), is_enclosed=True)
    assert (scratch / "package").read_text() == "as it was fetched"
    probe(scratch, script.format(scratch / "package"), is_enclosed=False)
    assert not (scratch / "package").exists()


def test_there_is_no_network(scratch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = textwrap.dedent(f"""
            import socket
            try:
                socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 5)
                print("connected")
            except OSError as error:
                print(error.strerror)
        """)
        script = f"/usr/bin/python3 -c '{connect}'"
        assert probe(scratch, script, is_enclosed=True) == "Connection refused"
        assert "connected" in probe(scratch, script, is_enclosed=False)


def test_no_process_of_the_host_is_seen(scratch: Path) -> None:
    word = lasting()
    with subprocess.Popen(["sleep", word]) as sleeping:
        script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        try:
            assert word not in probe(scratch, script, is_enclosed=True)
            assert word in probe(scratch, script, is_enclosed=False)
        finally:
            sleeping.kill()


def test_the_environment_of_the_caller_is_not_handed_on(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "a secret value")
    assert "a secret value" not in probe(scratch, "env; cat /proc/1/environ", is_enclosed=True)


STARTER = """\
import sys
from unspill.rootfs.debian import run

run(sys.argv[2:], sys.argv[1], {}, on_line=lambda line: print(line, flush=True), wall_s=60)
"""


def leave_files_and_wait(word: str) -> str:
    return f"mkdir -p /tmp/a/b && touch /tmp/a/b/c && chown -R 33:33 /tmp/a && echo begun && sleep {word}"


def until(condition: object, seconds: float = 15) -> bool:
    """Wait until a condition holds; tell whether it does."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_an_interrupted_build_leaves_no_process_and_no_file(scratch: Path) -> None:
    word = lasting()

    def interrupt(line: str) -> None:
        if line == "begun":
            assert (scratch / "tmp/a").lstat().st_uid != os.getuid()
            raise KeyboardInterrupt

    argv = enclosed(scratch, leave_files_and_wait(word))
    with pytest.raises(KeyboardInterrupt):
        run(argv, os.fspath(scratch), {}, on_line=interrupt, wall_s=60)
    assert processes_with(word) == []
    assert not (scratch / "tmp").exists()


HANGING = {
    "silently": "sleep {0}",
    "with words": "while :; do echo waiting; sleep 0.01; done; sleep {0}",
    "with a line that has no end": "while :; do printf x; done; sleep {0}",
    "with its output closed": "exec >/dev/null 2>&1; sleep {0}",
    "while a child has its output": "sleep {0} & exit 0",
}


@pytest.mark.parametrize("script", HANGING.values(), ids=HANGING)
def test_a_build_that_hangs_leaves_no_process_and_no_file(scratch: Path, script: str) -> None:
    word = lasting()
    argv = enclosed(scratch, leave_files_and_wait("0") + "; " + script.format(word))
    if script.endswith("exit 0"):
        # Nothing is waited for that outlives the build itself
        run(argv, os.fspath(scratch), {}, wall_s=60)
    else:
        with pytest.raises(RootfsError, match="did not finish in 3 seconds: "):
            run(argv, os.fspath(scratch), {}, wall_s=3)
    assert processes_with(word) == []
    assert not (scratch / "tmp").exists()


def test_no_file_of_a_build_can_grow_without_end(scratch: Path) -> None:
    script = "ulimit -H -f; ulimit -f unlimited; ulimit -H -f"
    grow = "; truncate -s 33G /tmp/f || echo refused"
    bound = str(Bounds().total_bytes // 512)
    assert probe(scratch, script, is_enclosed=False).splitlines() == ["unlimited", "unlimited"]
    assert probe(scratch, "ulimit -H -f" + grow, is_enclosed=True).splitlines()[::2] == [bound, "refused"]
    assert probe(scratch, script, is_enclosed=True).splitlines()[0] == bound
    assert "unlimited" not in probe(scratch, script, is_enclosed=True).splitlines()


def test_a_build_whose_caller_was_killed_ends_and_removes_what_it_made(scratch: Path) -> None:
    word = lasting()
    argv = enclosed(scratch, leave_files_and_wait(word))
    with subprocess.Popen([sys.executable, "-c", STARTER, scratch, *argv], stdout=subprocess.PIPE, text=True) as caller:
        try:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "begun\n"
            assert (scratch / "tmp/a").is_dir()
            assert until(lambda: processes_with(word))
        finally:
            caller.kill()
        caller.wait()
        assert until(lambda: not (scratch / "tmp").exists())
    assert until(lambda: not processes_with(word))


def test_a_build_that_fails_says_how(scratch: Path) -> None:
    with pytest.raises(RootfsError, match="bwrap exited with 7: this went wrong"):
        run(enclosed(scratch, "echo this went wrong; exit 7"), os.fspath(scratch), {}, wall_s=60)


def test_the_last_lines_of_a_build_are_kept(scratch: Path) -> None:
    script = "for i in $(seq 100); do echo line $i; done; echo dlstatus:1:2:x; exit 3"
    with pytest.raises(RootfsError, match=r"exited with 3: line 95; .*; line 100\n"):
        run(enclosed(scratch, script), os.fspath(scratch), {}, wall_s=60)


def test_long_lines_come_in_parts_and_nothing_is_lost(scratch: Path) -> None:
    lines: list[str] = []
    script = "head -c 5000 /dev/zero | tr '\\0' x; echo; echo; echo short; printf end"
    run(enclosed(scratch, script), os.fspath(scratch), {}, on_line=lines.append, wall_s=60)
    assert "".join(lines) == "x" * 5000 + "shortend"
    assert lines[-3:] == ["", "short", "end"]
    assert max(map(len, lines)) == 2000
