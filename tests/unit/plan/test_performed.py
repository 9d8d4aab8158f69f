# SPDX-License-Identifier: Apache-2.0
"""Plans performed by the real bwrap: hostile names, and each defence with the attack that succeeds without it."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.unit.plan.ground import Ground, bwrap, perform
from unspill.errors import SandboxUnavailable
from unspill.host.probe import has_symlink_flaw
from unspill.layers.lifecycle import make_skeleton
from unspill.model.plan import Bind, Overlay, Plan, PlanInput, Tmpfs
from unspill.model.policy import Policy
from unspill.plan.build import build_plan
from unspill.plan.explain import paste_command
from unspill.plan.view import check_no_mounts_beneath_roots

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

NAMES = (b"--bind", b"a b", b"x\n--bind\n", b"a,b:c\\d", b"\xff\xfe", b"-", b"$(touch /tmp/pwned)", b"%s")


def paste(plan: Plan, given: PlanInput) -> subprocess.CompletedProcess[bytes]:
    text = paste_command(plan, given.facts).encode("ascii")
    return subprocess.run(["sh"], input=text, capture_output=True, check=False)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_bwrap_takes_a_hostile_name_for_a_name(tmp_path: Path, name: bytes) -> None:
    ground = Ground(tmp_path, name)
    given = ground.given("/bin/sh", "-c", 'pwd; cat kept; echo "$1"', name, name, engine="native")
    assert given.stacks[0].open is not None
    ground.write(given.stacks[0].open.upper + b"/kept", b"live\n")
    result = perform(given)
    assert result.stdout == ground.project + b"\nlive\n" + name + b"\n", result.stderr


def test_an_option_in_a_name_would_be_obeyed_if_options_were_one_string(tmp_path: Path) -> None:
    ground = Ground(tmp_path, b"x --ro-bind /etc /injected")
    assert perform(ground.given("/bin/ls", "/injected", engine="native")).returncode != 0
    system = "--ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64"
    command = f"{bwrap()} {system} --dir {os.fsdecode(ground.project)} /usr/bin/ls /injected"
    control = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert "passwd" in control.stdout, control.stderr


INSIDE = """
for path in / /usr /etc /dev /proc/sys/kernel /opt; do touch "$path/probe" 2>/dev/null && echo "wrote $path"; done
for path in /tmp /var/tmp /run /dev/shm "$HOME" "$HOME/playground" .; do touch "$path/probe" || echo "not $path"; done
stat -c '%a %n' /tmp /var/tmp /run /dev/shm "$HOME"
grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs)' /proc/self/status
id -u; id -g; cat /proc/sys/kernel/hostname; ls /proc | grep -c '^[0-9]'; ls /sys 2>/dev/null
unshare --user true 2>/dev/null && echo "user namespace"
ls -A "$HOME"
"""


def test_only_the_named_directories_can_be_written_and_no_capability_is_left(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    given = ground.given("/bin/sh", "-c", INSIDE)
    result = paste(build_plan(given), given)
    assert result.stderr == b""
    lines = result.stdout.decode().splitlines()
    assert not [line for line in lines if line.startswith(("wrote", "not", "user namespace"))]
    modes = [f"{mode} {path}" for mode, path in (("1777", "/tmp"), ("1777", "/var/tmp"), ("755", "/run"))]
    assert lines[:4] == [*modes, "1777 /dev/shm"]
    assert lines[4] == f"700 {os.fsdecode(ground.home)}"
    assert [line.split()[1] for line in lines[5:10]] == ["0" * 16] * 5
    assert lines[10].split() == ["NoNewPrivs:", "1"]
    assert lines[11:14] == [str(os.getuid()), str(os.getgid()), "unspill"]
    assert int(lines[14]) < 8
    assert lines[15:] == [".gitconfig", "playground", "probe", "work"]
    assert os.listdir(ground.playground) == [b"probe"]
    assert os.listdir(ground.project) == [b"kept"]


CONNECT = """
import errno, os, socket, sys
client = socket.socket(socket.AF_UNIX)
os.chdir(sys.argv[1])
code = client.connect_ex("s")
print(errno.errorcode[code] if code else "connected")
"""


@pytest.mark.parametrize("defended", [True, False], ids=["overlay", "control: plain bind"])
def test_a_socket_below_a_readable_path_does_not_answer(tmp_path: Path, defended: bool) -> None:
    ground = Ground(tmp_path)
    shown = ground.home + b"/notes"
    ground.write(shown + b"/text", b"")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open("/", os.O_RDONLY)
        os.chdir(shown)
        try:
            server.bind("s")
        finally:
            os.chdir(here)
            os.close(here)
        server.listen()
        given = ground.given("/usr/bin/python3", "-c", CONNECT, shown, policy=Policy(readable=(shown,)))
        plan = build_plan(given)
        if not defended:
            plan = plan.replace(mounts=tuple(as_bind(op) if op.dest == shown else op for op in plan.mounts))
        result = paste(plan, given)
    assert result.stdout.decode().strip() == ("ECONNREFUSED" if defended else "connected"), result.stderr


def as_bind(operation: object) -> Bind:
    assert isinstance(operation, Overlay)
    return Bind(source=operation.dest, dest=operation.dest, why=operation.why)


def test_a_mount_beneath_a_root_would_write_to_the_host_and_is_never_planned(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    victim = tmp_path / "victim"
    victim.mkdir()
    os.symlink(b"/oldroot" + os.fsencode(victim), ground.project + b"/link")
    given = ground.given("/bin/true", engine="native")
    assert given.stacks[0].open is not None
    os.symlink(b"/oldroot" + os.fsencode(victim), given.stacks[0].open.upper + b"/link")
    plan = build_plan(given)
    attack = Tmpfs(dest=ground.project + b"/link/planted", size_bytes=4096, why="")
    with pytest.raises(SandboxUnavailable):
        check_no_mounts_beneath_roots((*plan.mounts, attack))
    assert perform(given).returncode == 0
    assert list(victim.iterdir()) == []
    # The control: what bwrap before 0.12 does with such a plan
    bad = plan.replace(mounts=(*plan.mounts[:-2], attack))
    paste(bad, given)
    assert given.facts.bwrap is not None
    is_flawed, unknown = has_symlink_flaw(given.facts.bwrap.path, os.fsencode(tmp_path))
    assert unknown == ""
    assert [path.name for path in victim.iterdir()] == (["planted"] if is_flawed else [])


SEE_HOST = """
cat "$HOME/notes" "$HOME/.netrc" 2>&1; ls -A "$HOME/.ssh" "$HOME/.local/state" /root /run 2>&1
cat "$HOME/s" 2>&1; touch "$HOME/new" "$HOME/.ssh/new" 2>&1
git config --global user.name; ls -d /var/lib/* 2>/dev/null; echo written >kept; cat kept
touch "$HOME/playground/probe"
"""


def test_view_host_shows_the_home_without_its_secrets(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    for name in (b".ssh/id", b".netrc", b".local/state/x"):
        ground.write(ground.home + b"/" + name, b"canary\n")
    ground.write(ground.home + b"/notes", b"notes\n")
    places = ground.places(
        top=(b"/var", b"/root", b"/run", b"/tmp"),
        secrets=(ground.home + b"/.ssh", b"/var/lib"),
        secret_files=(ground.home + b"/.netrc",),
        own=(ground.home + b"/.local/state",),
    )
    given = ground.given("/bin/sh", "-c", SEE_HOST, policy=Policy(view="host"), places=places)
    plan = build_plan(given)
    make_skeleton(plan.skeleton)
    result = paste(plan, given)
    shown = result.stdout.decode()
    assert "canary" not in shown
    assert shown.startswith("notes\n"), result.stderr
    assert shown.endswith('A "q" \\ Ann\nwritten\n')
    assert shown.count("Read-only file system") == 2
    assert Path(os.fsdecode(ground.project), "kept").read_text() == "live\n"
    assert os.listdir(ground.playground) == [b"probe"]
