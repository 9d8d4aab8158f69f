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
from unspill.rootfs.debian_build import enclosed_argv
from unspill.rootfs.debian_child import SEARCH, run_child
from unspill.rootfs.tar_bounds import Bounds

pytestmark = pytest.mark.kernel

ENVIRON = {"PATH": SEARCH, "HOME": "/root", "LANG": "C.UTF-8"}
UNENCLOSED = [*"unshare --user --map-root-user --map-auto --mount --pid --fork".split(), "--"]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """What a build has to itself, below a directory that nobody else can enter."""
    top = tmp_path / "scratch"
    for name in ("root", "tmp", "mirror"):
        (top / name).mkdir(parents=True)
    tmp_path.chmod(0o700)
    return top


@pytest.fixture
def secret() -> Iterator[Path]:
    """A secret in the home directory that everybody may read, by its mode."""
    path = Path.home() / f"secret-{os.getpid()}"
    path.write_text("the secret")
    path.chmod(0o644)
    yield path
    path.unlink()


def probe(scratch: Path, script: str, *, enclosed: bool) -> str:
    """Run a shell script in the place of a build, or as root of a plain user namespace; return what it printed."""
    command = ["sh", "-c", script]
    argv = enclosed_argv(bytes(scratch), command) if enclosed else [*UNENCLOSED, *command]
    lines: list[str] = []
    run_child(argv, ENVIRON, cwd=bytes(scratch), on_line=lines.append, patience_s=10)
    return "\n".join(lines)


def test_the_probe_is_root_of_many_ids_in_both_arms(scratch: Path) -> None:
    script = "id -u; cd /tmp; touch another && chown 33:33 another && stat -c %u:%g another; rm another"
    for enclosed in (True, False):
        assert probe(scratch, script, enclosed=enclosed).splitlines() == ["0", "33:33"]


def test_the_home_directory_is_not_there(scratch: Path, secret: Path) -> None:
    script = f"cat {secret}; ls -A /home /root /run /mnt /srv 2>/dev/null; true"
    assert "the secret" not in probe(scratch, script, enclosed=True)
    assert "the secret" in probe(scratch, script, enclosed=False)


def test_what_hides_it_can_not_be_taken_away(scratch: Path, secret: Path) -> None:
    script = f"""
        for point in / /usr /mirror /tmp /etc/passwd /proc; do umount $point && echo taken away: $point; done
        for at in $(ls /proc | grep -E '^[0-9]+$'); do cat /proc/$at/root{secret} && echo reached; done
        mount -t proc proc /proc && ls /proc/*/root{secret} && echo reached
        true
    """
    said = probe(scratch, script, enclosed=True)
    assert "taken away" not in said
    assert "reached" not in said


def test_files_of_the_caller_are_a_strangers(scratch: Path) -> None:
    (scratch / "mirror" / "package").write_text("as it was fetched")
    (scratch / "mirror").chmod(0o755)
    script = "echo changed >> {0}; chmod 777 {0}; rm -f {0}; ls {0}"
    assert "package" in probe(scratch, script.format("/mirror/package"), enclosed=True)
    assert (scratch / "mirror" / "package").read_text() == "as it was fetched"
    probe(scratch, script.format(scratch / "mirror" / "package"), enclosed=False)
    assert not (scratch / "mirror" / "package").exists()


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
        assert "Network is unreachable" in probe(scratch, script, enclosed=True)
        assert "connected" in probe(scratch, script, enclosed=False)


def test_no_process_of_the_host_is_seen(scratch: Path) -> None:
    word = lasting()
    with subprocess.Popen(["sleep", word]) as sleeping:
        script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        try:
            assert word not in probe(scratch, script, enclosed=True)
            assert word in probe(scratch, script, enclosed=False)
        finally:
            sleeping.kill()


def test_the_environment_of_the_caller_is_not_handed_on(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "a secret value")
    assert "a secret value" not in probe(scratch, "env; cat /proc/1/environ", enclosed=True)


STARTER = """\
import sys
from unspill.errors import RootfsError
from unspill.rootfs.debian_build import enclosed_argv
from unspill.rootfs.debian_child import SEARCH, run_child
from unspill.rootfs.tar_bounds import Bounds

def tell(line):
    print(line, flush=True)

argv = enclosed_argv(sys.argv[1].encode(), ["sh", "-c", sys.argv[2]])
run_child(argv, {"PATH": SEARCH}, cwd=sys.argv[1].encode(), on_line=tell, patience_s=10)
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

    argv = enclosed_argv(bytes(scratch), ["sh", "-c", leave_files_and_wait(word)])
    with pytest.raises(KeyboardInterrupt):
        run_child(argv, ENVIRON, cwd=bytes(scratch), on_line=interrupt, patience_s=20)
    assert processes_with(word) == []
    assert list((scratch / "tmp").iterdir()) == []
    (scratch / "tmp").rmdir()


def test_a_build_that_hangs_leaves_no_process_and_no_file(scratch: Path) -> None:
    word = lasting()
    argv = enclosed_argv(bytes(scratch), ["sh", "-c", leave_files_and_wait(word)])
    with pytest.raises(RootfsError, match="did not come to an end in 2 seconds: begun"):
        run_child(argv, ENVIRON, cwd=bytes(scratch), patience_s=20, wall_s=2)
    assert processes_with(word) == []
    assert list((scratch / "tmp").iterdir()) == []


def test_no_file_of_a_build_can_grow_without_end(scratch: Path) -> None:
    script = "ulimit -H -f; ulimit -f unlimited; ulimit -H -f"
    grow = "; truncate -s 33G /tmp/f || echo refused"
    bound = str(Bounds().total_bytes // 512)
    assert probe(scratch, script, enclosed=False).splitlines() == ["unlimited", "unlimited"]
    assert probe(scratch, "ulimit -H -f" + grow, enclosed=True).splitlines()[::2] == [bound, "refused"]
    assert probe(scratch, script, enclosed=True).splitlines()[0] == bound
    assert "unlimited" not in probe(scratch, script, enclosed=True).splitlines()


def test_a_build_whose_caller_was_killed_ends_and_removes_what_it_made(scratch: Path) -> None:
    word = lasting()
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, scratch, leave_files_and_wait(word)], stdout=subprocess.PIPE, text=True
    ) as caller:
        try:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "begun\n"
            assert (scratch / "tmp/a/b").is_dir()
            assert until(lambda: processes_with(word))
        finally:
            caller.kill()
        caller.wait()
        assert until(lambda: not list((scratch / "tmp").iterdir()))
    assert until(lambda: not processes_with(word))


def test_a_build_that_fails_says_how(scratch: Path) -> None:
    argv = enclosed_argv(bytes(scratch), ["sh", "-c", "echo this went wrong >&2; exit 7"])
    ended = run_child(argv, ENVIRON, cwd=bytes(scratch), patience_s=10)
    assert (ended.code, ended.tail) == (7, ("this went wrong",))
