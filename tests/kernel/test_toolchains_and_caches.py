# SPDX-License-Identifier: Apache-2.0
"""What a hidden home still shows: toolchains that run but can't be written or talked to, caches copy-on-write."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import Event, Ground, kinds, printed, short
from unspill import LimitReached, OutputChunk, RunResult

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.view("sealed", "host", reason="a rootfs shows neither toolchains nor caches of the home directory"),
    pytest.mark.bwrap,
]


def put(ground: Ground, path: str, content: str = "", mode: int = 0o644) -> Path:
    """Make a file in the person's home."""
    target = ground.home / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)
    target.chmod(mode)
    return target


def test_a_toolchain_runs_from_its_own_path(ground: Ground, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(ground, ".cargo/bin/cargo", "#!/bin/sh\necho cargo of $HOME\n", 0o755)
    put(ground, ".pyenv/versions/3.99/bin/python3.99", "#!/bin/sh\necho python\n", 0o755)
    monkeypatch.setenv("PATH", f"{ground.home}/.cargo/bin:/usr/bin:/bin")
    result = ground.run("cargo; command -v cargo; ~/.pyenv/versions/3.99/bin/python3.99")
    assert printed(result) == f"cargo of {ground.home}\n{ground.home}/.cargo/bin/cargo\npython\n"


def test_a_program_directory_on_the_path_is_a_toolchain(
    ground: Ground, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(ground, "tools/special/bin/special", "#!/bin/sh\necho special\n", 0o755)
    put(ground, "tools/special/secret", "secret")
    assert not ground.run("special").ok
    monkeypatch.setenv("PATH", f"/usr/bin:/bin:{ground.home}/tools/special/bin")
    assert printed(ground.run("special")) == "special\n"
    assert not ground.run("cat ~/tools/special/secret").ok


def test_a_virtual_environment_outside_the_project_is_shown_whole(
    ground: Ground, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A base of its own, which nothing else shows
    base = ground.home / "built" / "python"
    base.joinpath("bin").mkdir(parents=True)
    base.joinpath("lib").mkdir()
    base.joinpath("bin", python).symlink_to(os.path.realpath(sys.executable))
    put(ground, "built/python/lib/note", "of the base")
    put(ground, "built/python/secret", "secret")
    put(ground, f"envs/mine/lib/{python}/site-packages/ours.py", "print('ours')\n")
    put(ground, "envs/mine/pyvenv.cfg", f"home = {base}/bin\ninclude-system-site-packages = false\n")
    ground.home.joinpath("envs", "mine", "bin").mkdir()
    ground.home.joinpath("envs", "mine", "bin", "python").symlink_to(base / "bin" / python)
    put(ground, "envs/other/file", "other")
    monkeypatch.setenv("PATH", f"{ground.home}/envs/mine/bin:/usr/bin:/bin")
    shown = printed(ground.run("find ~/envs ~/built -type f | sort; cat ~/built/python/lib/note"))
    assert [os.path.relpath(line, ground.home) for line in shown.splitlines()[:-1]] == [
        "built/python/lib/note",
        f"envs/mine/lib/{python}/site-packages/ours.py",
        "envs/mine/pyvenv.cfg",
    ]
    assert shown.endswith("of the base")
    assert not ground.run("touch ~/envs/mine/x").ok
    # The control arm: its mark makes it one
    (ground.home / "envs" / "mine" / "pyvenv.cfg").unlink()
    assert ground.run("find ~/envs ~/built -type f").stdout.kept() == b""


def test_a_real_virtual_environment_imports_its_packages(
    ground: Ground, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = ground.home / "envs" / "real"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python3*/site-packages")
    packages.joinpath("ours.py").write_text("print('ours')\n")
    assert not ground.run("python -c 'import ours'").ok
    monkeypatch.setenv("PATH", f"{venv}/bin:/usr/bin:/bin")
    assert printed(ground.run("python -c 'import ours'")) == "ours\n"


@pytest.mark.parametrize("place", ["project/venv", "link", "", ".config", ".ssh/venv"])
def test_no_mark_shows_what_is_private(
    ground: Ground, engine: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    put(ground, "private/bin/tool")
    put(ground, "private/lib/note", "private")
    put(ground, ".config/gh/hosts.yml", "secret")
    put(ground, ".ssh/venv/note", "secret")
    put(ground, "diary", "private")
    ground.write("venv/pyvenv.cfg", f"home = {ground.home}/private/bin\n")
    (ground.home / "link").symlink_to(ground.project / "venv")
    where = ground.project / "venv" if place == "project/venv" else ground.home / place
    if not where.joinpath("pyvenv.cfg").exists():
        put(ground, os.path.relpath(where / "pyvenv.cfg", ground.home), "")
        where.joinpath("pyvenv.cfg").write_text(f"home = {ground.home}/bin\n")
    where.joinpath("bin").mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", f"{where}/bin:/usr/bin:/bin")
    found = ground.run("cat ~/private/lib/note ~/.config/gh/hosts.yml ~/.ssh/venv/note ~/diary")
    assert found.stdout.kept() == b""


def test_a_toolchain_can_not_be_changed(ground: Ground, engine: str) -> None:
    program = put(ground, ".local/bin/tool", "#!/bin/sh\necho real\n", 0o755)
    for attempt in (
        "echo evil > ~/.local/bin/tool",
        "rm -f ~/.local/bin/tool",
        "touch ~/.local/bin/new",
        "chmod 0 ~/.local/bin",
    ):
        assert not ground.run(attempt).ok
    assert program.read_text() == "#!/bin/sh\necho real\n"
    assert printed(ground.run("~/.local/bin/tool")) == "real\n"


def test_no_credential_comes_along_with_a_toolchain(ground: Ground, engine: str) -> None:
    put(ground, ".cargo/bin/cargo", "#!/bin/sh\n", 0o755)
    put(ground, ".rustup/toolchains/stable/bin/rustc", "#!/bin/sh\n", 0o755)
    for secret in (".cargo/credentials.toml", ".cargo/config.toml", ".rustup/settings.toml", ".npmrc", ".pypirc"):
        put(ground, secret, "token")
    assert printed(ground.run("ls -A ~/.cargo ~/.rustup; ls -A ~")) == (
        f"{ground.home}/.cargo:\nbin\n\n{ground.home}/.rustup:\ntoolchains\n.cargo\n.rustup\nplayground\nproject\n"
    )


def test_no_socket_or_fifo_comes_along_with_a_toolchain(ground: Ground, engine: str) -> None:
    directory = put(ground, ".local/bin/tool", "#!/bin/sh\n", 0o755).parent
    # A path of a socket has a hundred bytes at most, so by way of the directory
    back = os.getcwd()
    os.chdir(directory)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind("agent")
        server.listen()
    finally:
        os.chdir(back)
    os.mkfifo(directory / "pipe")
    listener = os.open(directory / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        connect = "import os, socket; os.chdir(os.path.expanduser('~/.local/bin')); "
        connect += "socket.socket(socket.AF_UNIX).connect('agent')"
        assert not ground.run(["python3", "-c", connect], limits=short()).ok
        ground.run("timeout 1 sh -c 'echo leak > ~/.local/bin/pipe'", limits=short())
        try:
            leaked = os.read(listener, 100)
        except BlockingIOError:
            leaked = b""
        assert leaked == b""
        # The control arm: outside, the same write arrives
        with open(directory / "pipe", "wb", buffering=0) as pipe:
            pipe.write(b"heard")
        assert os.read(listener, 100) == b"heard"
    finally:
        os.close(listener)
        server.close()


def test_toolchains_can_be_switched_off(ground: Ground) -> None:
    put(ground, ".cargo/bin/cargo", "#!/bin/sh\n", 0o755)
    assert not ground.sandbox(toolchains=False).run("test -e ~/.cargo").ok


def test_a_cache_is_read_and_added_to_without_touching_the_hosts(ground: Ground, engine: str) -> None:
    wheel = put(ground, ".cache/pip/wheel", "host\n")
    sandbox = ground.sandbox()
    result = sandbox.run("cd ~/.cache/pip && cat wheel && echo new > added && echo changed > wheel")
    assert printed(result) == "host\n"
    assert not result.changes
    assert not result.held
    assert [path.name for path in wheel.parent.iterdir()] == ["wheel"]
    assert wheel.read_text() == "host\n"
    assert printed(sandbox.run("cat ~/.cache/pip/*")) == "new\nchanged\n"


def test_every_sandbox_of_a_project_shares_its_caches_and_other_projects_do_not(ground: Ground, engine: str) -> None:
    put(ground, ".cache/uv/x")
    ground.run("echo ours > ~/.cache/uv/added")
    assert printed(ground.sandbox("second").run("cat ~/.cache/uv/added")) == "ours\n"
    other = ground.home / "other"
    other.mkdir()
    assert not ground.sandbox(project=other).run("cat ~/.cache/uv/added").ok


def test_discarding_leaves_the_caches(ground: Ground, engine: str) -> None:
    put(ground, ".cache/pip/x")
    sandbox = ground.sandbox()
    sandbox.run("echo 1 > ~/.cache/pip/added; echo 2 > file")
    sandbox.discard()
    assert printed(sandbox.run("cat ~/.cache/pip/added; ls")) == "1\n"


def test_many_additions_are_all_seen(ground: Ground, engine: str) -> None:
    put(ground, ".npm/_cacache/x")
    sandbox = ground.sandbox()
    for number in range(12):
        sandbox.run(f"echo {number} > ~/.npm/_cacache/n{number}; rm -f ~/.npm/_cacache/n{number - 3}")
    assert printed(sandbox.run("cat ~/.npm/_cacache/n*")).split() == ["10", "11", "9"]
    assert not (ground.home / ".npm/_cacache/n1").exists()


def test_of_two_runs_at_once_one_is_folded_back_and_the_other_dropped(ground: Ground, engine: str) -> None:
    put(ground, ".cache/pip/x")
    sandboxes = [ground.sandbox(name) for name in ("one", "two")]
    both_run = threading.Barrier(2, timeout=20)
    results: dict[str, RunResult] = {}

    def work(index: int) -> None:
        def meet(event: Event) -> None:
            if isinstance(event, OutputChunk) and event.chunk.startswith(b"ready"):
                both_run.wait()

        name = sandboxes[index].name
        command = f"echo {name} > ~/.cache/pip/{name}; echo ready; sleep 0.2; ls ~/.cache/pip"
        results[name] = sandboxes[index].run(command, on_event=meet, limits=short())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Neither sees the other while both go on
    assert printed(results["one"]).split() == ["ready", "one", "x"]
    assert printed(results["two"]).split() == ["ready", "two", "x"]
    left = printed(sandboxes[0].run("ls ~/.cache/pip")).split()
    assert left in (["one", "x"], ["two", "x"])


def test_a_run_that_outgrew_its_bound_leaves_nothing_in_a_cache(ground: Ground) -> None:
    put(ground, ".cache/pip/x")
    result = ground.run("head -c 4194304 /dev/zero > ~/.cache/pip/big", limits=short(layer_bytes=1 << 20))
    assert isinstance(result.outcome, LimitReached)
    assert printed(ground.run("ls ~/.cache/pip")) == "x\n"
    assert ground.left_behind() == []


def test_caches_can_be_switched_off(ground: Ground) -> None:
    put(ground, ".cache/pip/x")
    assert not ground.sandbox(caches=False).run("test -e ~/.cache/pip").ok


def test_a_cache_that_is_a_link_out_of_the_home_is_not_shown(ground: Ground) -> None:
    secret = ground.top / "elsewhere"
    secret.mkdir()
    (secret / "file").write_text("secret")
    (ground.home / ".cache").mkdir()
    (ground.home / ".cache" / "pip").symlink_to(secret)
    assert not ground.run("cat ~/.cache/pip/file").ok


def test_a_project_inside_a_cache_or_around_one_is_still_a_project(ground: Ground, engine: str) -> None:
    inner = put(ground, ".cache/pip/project/file", "x\n").parent
    result = ground.sandbox(project=inner).run("echo y > file; ls ..")
    assert result.ok
    assert kinds(result.changes) == {"file": "modified"}
    outer = ground.home / ".cache"
    result = ground.sandbox(project=outer).run("echo y > pip/project/file")
    assert kinds(result.changes) == {"pip/project/file": "modified"}
