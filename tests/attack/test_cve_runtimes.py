# SPDX-License-Identifier: Apache-2.0
"""Weaknesses of runc and other programs around containers, by number: the same attack here, and where it works."""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING, Final

import pytest

from tests.attack.arena import Arena, naive_bwrap, outside, python, replaced
from tests.attack.victims import host_directory
from unspill import UnspillError
from unspill.errors import BwrapUnsafe
from unspill.host.dirfd import open_beneath, open_stepwise
from unspill.runner.launcher import stop_launchers

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]


LEAKED: Final = 50


def test_cve_2024_21626_a_leaked_directory_is_no_way_to_the_host(arena: Arena) -> None:
    """The caller has the host's directory open and inheritable; use it by number, and as the working directory, as runc
    let a command do. Control: a bwrap call that inherits it reads the host by it."""
    ground = arena.ground
    host = host_directory(ground)
    fd = os.open(host, os.O_RDONLY)
    os.dup2(fd, LEAKED, inheritable=True)
    os.close(fd)
    script = """
    for number in range(3, 256):
        try: won(open(os.open("key", os.O_RDONLY, dir_fd=number)).read())
        except OSError: pass
        try: os.chdir(f"/proc/self/fd/{number}"); won("went to", number)
        except OSError: pass
    """
    stop_launchers()
    try:
        assert not arena.attack(script).won
        for cwd in (f"/proc/self/fd/{LEAKED}", f"/proc/{os.getpid()}/fd/{LEAKED}", "/proc/self/cwd"):
            try:
                assert b"CANARY" not in ground.sandbox().run("cat key; cat ../key", cwd=cwd).stdout.kept()
            except UnspillError:
                continue
        assert b"WON CANARY" in naive_bwrap(ground.bwrap, "--proc", "/proc", *python(script), close_fds=False).stdout
    finally:
        os.close(LEAKED)
        stop_launchers()


def test_cve_2019_5736_the_program_that_started_a_command_can_not_be_written(arena: Arena) -> None:
    """Open what pid 1 and the command run for writing, at once and by a kept descriptor, as runc's own binary was.
    Control: a program that the caller owns, which is why such a bwrap is refused, is written in the same way."""
    script = """
    for name in ("/proc/1/exe", "/proc/self/exe"):
        attempt(f"write {name}", os.open, name, os.O_WRONLY)
        kept = os.open(name, os.O_RDONLY)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            attempt(f"reopen {name}", os.open, f"/proc/self/fd/{kept}", flags)
    """
    assert not arena.attack(script).won
    own = arena.ground.top / "bwrap"
    shutil.copyfile("/bin/true", own)
    own.chmod(0o755)
    with pytest.raises(BwrapUnsafe):
        arena.ground.sandbox(bwrap=os.fsencode(own))
    reopen = (
        f"kept = os.open({os.fspath(own)!r}, os.O_RDONLY)\nos.open(f'/proc/self/fd/{{kept}}', os.O_WRONLY)\nwon('own')"
    )
    assert "WON own" in outside(reopen).stdout


def test_cve_2025_31133_what_masks_are_made_of_can_not_be_replaced(arena: Arena) -> None:
    """Replace `/dev/null` by a link to a kernel setting; runc masked paths by binding what lay there. Read a masked
    file in the next run. Control: without the read-only `/dev` the link is made."""
    ground = arena.ground
    (ground.home / ".netrc").write_text("CANARY")
    script = """
    attempt("unlink", os.unlink, "/dev/null")
    attempt("link", os.symlink, "/proc/sys/kernel/core_pattern", "/dev/null-new")
    attempt("rename", os.rename, "/dev/zero", "/dev/null")
    """
    assert not arena.attack(script, view="host").won
    read = "text = open(os.path.expanduser('~/.netrc')).read()\nif 'CANARY' in text: won('read')"
    assert not arena.attack(read, view="host").won
    with arena.without(b"--remount-ro /dev"):
        assert "link" in arena.attack(script, view="host").won


def test_cve_2026_39822_a_slash_at_the_end_follows_no_link(arena: Arena) -> None:
    """A name of the project is a link to a directory outside; open and apply it with a slash behind it, which Go's
    os.Root followed. Control: O_NOFOLLOW alone opens the directory outside."""
    ground = arena.ground
    host = host_directory(ground)
    (ground.project / "link").symlink_to(host)
    top = os.open(ground.project, os.O_RDONLY)
    try:
        for opens in (open_beneath, open_stepwise):
            for path in (b"link/", b"link/.", b"link//", b"./link/"):
                with pytest.raises((OSError, UnspillError, ValueError)):
                    os.close(opens(top, path, os.O_RDONLY | os.O_DIRECTORY))
        followed = os.open("link/", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        assert os.listdir(followed) == ["key"]
        os.close(followed)
    finally:
        os.close(top)
    sandbox = ground.sandbox()
    assert sandbox.run("rm link; mkdir link; echo x > link/written").ok
    for selected in ("link/", "link/."):
        try:
            sandbox.apply([selected])
        except UnspillError:
            continue
    assert os.listdir(host) == ["key"]


def test_cve_2020_15257_no_abstract_socket_of_the_host_is_reached(arena: Arena) -> None:
    """A service of the person listens on an abstract name, as containerd's shim did for containers with the host's
    network. Control: without the network namespace the command connects."""
    name = f"\0unspill-shim-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(name)
        service.listen()
        script = f"attempt('connect', socket.socket(socket.AF_UNIX).connect, {name!r})"
        assert not arena.attack(script).won
        with arena.without(b"--unshare-net"):
            assert arena.attack(script).won


def test_cve_2022_0811_no_setting_of_the_kernel_is_written(arena: Arena) -> None:
    """Open `kernel.core_pattern` and all other settings for writing, which CRI-O let a pod set.
    Control: without the read-only `/proc/sys` settings of the sandbox's namespaces can be opened; for a root caller
    those of the host, which `test_root_callers.py` shows."""
    script = """
    for top, _, names in os.walk("/proc/sys"):
        for name in names:
            try: os.close(os.open(os.path.join(top, name), os.O_WRONLY))
            except OSError: continue
            won(name)
    """
    assert not arena.attack(script).won
    with arena.plan_changed(lambda mounts: replaced(mounts, b"/proc/sys")):
        assert arena.attack(script).won


def test_cve_2021_4034_a_setuid_program_runs_as_who_started_it(arena: Arena) -> None:
    """Start a setuid program of the system without any argument, as pkexec was, and look at its effective user.
    Control: the same program on the host runs as root."""
    script = """
    process = subprocess.Popen(["/usr/bin/su", "-c", "true"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    time.sleep(0.2)
    [uid] = [line.split()[2] for line in open(f"/proc/{process.pid}/status") if line.startswith("Uid:")]
    if process.poll() is None and uid != str(os.getuid()): won("is", uid)
    process.kill()
    child = os.fork()
    if not child:
        libc.execve(b"/usr/bin/su", (ctypes.c_char_p * 1)(None), (ctypes.c_char_p * 1)(None))
        os._exit(3)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0: won("without arguments")
    """
    assert not arena.attack(script).won
    assert "WON is 0" in outside(script).stdout
