# SPDX-License-Identifier: Apache-2.0
"""bwrap's set-up phase (CVE-2026-87766): mount points beneath symlinks, and the working directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena, naive_bwrap
from tests.support import is_rootfs_chosen
from unspill import RunResult, Sandbox, UnspillError
from unspill.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Ground
    from unspill.model.plan import Facts

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

# Options that make bwrap create a mount point, a directory or a file; {} is the destination
OPERATIONS = {
    "tmpfs": ["--tmpfs", "{}"],
    "ro-bind": ["--ro-bind", "/usr", "{}"],
    "bind": ["--bind", "/usr", "{}"],
    "file": ["--ro-bind", "/etc/passwd", "{}"],
    "null": ["--ro-bind", "/dev/null", "{}"],
    "dir": ["--dir", "{}"],
    "content": ["--file", "0", "{}"],
    "symlink": ["--symlink", "target", "{}"],
    "proc": ["--proc", "{}"],
    "mqueue": ["--mqueue", "{}"],
    "dev": ["--dev", "{}"],
}

# Where the symlink is and what it says: {host} is a directory of the host that nobody may write to
SHAPES = {
    "parent": ("trap", "/oldroot{host}", "trap/made"),
    "grandparent": ("trap", "/oldroot{host}", "trap/deeper/made"),
    "leaf": ("trap", "/oldroot{host}/made", "trap"),
    "trailing slash": ("trap", "/oldroot{host}/made", "trap/"),
    "dots in the link": ("trap", "/oldroot{host}/../{name}", "trap/made"),
    "dots in the path": ("trap", "/oldroot{host}", "trap/deeper/../made"),
    "relative": ("trap", "../../../../../../../../../../../../oldroot{host}", "trap/made"),
    "two links": ("trap", "second", "trap/made"),
    "proc": ("trap", "/proc/self/root/oldroot{host}", "trap/made"),
}

PLACES = ("project", "playground", "cache")


def plant(ground: Ground, host: Path) -> str:
    """Return an attacker's script that leaves every kind of link, under names that a plan could mount on."""
    links = {name: target.format(host=host, name=host.name) for name, (_, target, _) in SHAPES.items()}
    names = ["tmp", "run", "home", ".git", ".venv", ".gitconfig", "playground", "bin", "sub", ".cache", "proc", "dev"]
    directories = tops_of(ground)
    return f"""
    second = {links["parent"]!r}
    for place in {[os.fspath(directory) for directory in directories]!r}:
        os.symlink(second, os.path.join(place, "second"))
        for shape, target in {links!r}.items():
            shape = "shape-" + shape
            os.makedirs(os.path.join(place, shape))
            for name in {names!r}: os.symlink(target, os.path.join(place, shape, name))
        for name, target in zip({names!r}, list({links!r}.values()) * 2):
            os.symlink(target, os.path.join(place, name))
    """


def tops_of(ground: Ground) -> list[Path]:
    """Return what a command can write that outlives it; a rootfs has no caches of the home."""
    tops = [ground.project, ground.home / "playground"]
    return tops if is_rootfs_chosen() else [*tops, ground.home / ".cache/pip"]


def settings(ground: Ground) -> dict[str, dict[str, Any]]:
    """Return policies that ask for something inside what a command can write."""
    project, home = os.fsencode(ground.project), os.fsencode(ground.home)
    return {
        "plain": {},
        "view host": {"view": "host"},
        "readable in the project": {
            "readable": (project + b"/sub", project + b"/shape-parent/bin", project + b"/sub/deeper")
        },
        "readable in the playground": {"readable": (home + b"/playground/sub",)},
        "readable in a cache": {"readable": (home + b"/.cache/pip/sub",)},
        "hidden in the project": {"hidden": (project + b"/sub/made",)},
        "hidden in a cache": {"hidden": (home + b"/.cache/pip/sub/made",)},
        "a root in the project": {"roots": (project + b"/sub",)},
        "a root in the playground": {"roots": (home + b"/playground/sub",)},
        "a root in a cache": {"roots": (home + b"/.cache/pip/sub",)},
    }


def test_a5_a_symlink_of_an_earlier_run_makes_no_set_up_write_to_the_host(arena: Arena) -> None:
    """Run 1 leaves links to the host of every shape in project, playground and cache; run 2 is set up over them, with
    policies that name places beneath them. Control: a bwrap call with a mount point beneath such a link, below."""
    ground = arena.ground
    host = ground.top / "host"
    host.mkdir()
    (ground.home / ".cache/pip").mkdir(parents=True)
    (ground.home / "playground").mkdir()
    arena.patch.setenv("PATH", f"{ground.project}/sub/bin:{ground.home}/playground/bin:/usr/bin:/bin")
    tried = arena.attack(plant(ground, host))
    assert len([change for change in tried.result.changes if change.target]) > 50
    succeeded = set()
    for name, asked in settings(ground).items():
        for cwd in (None, "sub", "shape-parent", "tmp/made"):
            try:
                if ground.sandbox(**asked).run(["true"], working_dir=cwd).ok:
                    succeeded.add(name)
            except UnspillError:
                continue
            finally:
                assert list(host.iterdir()) == [], name
    assert {"plain", "view host", "readable in the project", "a root in the project"} <= succeeded


def test_a5_a_directory_that_a_run_replaced_by_a_link_is_no_way_out(arena: Arena) -> None:
    """The directories that the policy names exist at first; run 1 replaces them by links to the host.
    Control: the same as above."""
    ground = arena.ground
    host = ground.top / "host"
    host.mkdir()
    tops = tops_of(ground)
    for directory in [top / "sub" / name for top in {*tops, ground.home / ".cache/pip"} for name in ("deeper", "bin")]:
        directory.mkdir(parents=True)
    arena.patch.setenv("PATH", f"{ground.project}/sub/bin:{ground.home}/.cache/pip/sub/bin:/usr/bin:/bin")
    arena.attack(f"""
    import shutil
    for place in {[os.fspath(top) for top in tops]!r}:
        shutil.rmtree(place + "/sub", ignore_errors=True)
        os.symlink("/oldroot{host}", place + "/sub")
    """)
    succeeded = set()
    for name, asked in settings(ground).items():
        for cwd in (None, "sub", "sub/deeper", "sub/bin"):
            try:
                if ground.sandbox(**asked).run(["sh", "-c", "echo x > written"], working_dir=cwd).ok:
                    succeeded.add(name)
            except UnspillError:
                continue
            finally:
                assert list(host.iterdir()) == [], name
                assert all(sorted(os.listdir(top / "sub")) == ["bin", "deeper"] for top in tops), name
    assert set(settings(ground)) - succeeded <= {"hidden in the project"}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a5_control_a_mount_point_beneath_a_link_writes_to_the_host(
    ground: Ground, known_facts: tuple[str, Facts], operation: str
) -> None:
    """The control arm of the tests above: naive bwrap calls, on a bwrap that has the flaw.
    Control: this is it."""
    bwrap = known_facts[1].bwrap
    assert bwrap is not None
    written = {shape for shape in SHAPES if naive_call_writes(ground, operation, shape)}
    assert written == (expected_to_write(operation) if bwrap.symlink_flaw else set())


def expected_to_write(operation: str) -> set[str]:
    """Return the shapes that work on a flawed bwrap: a dangling leaf only where it opens a file, by O_CREAT."""
    opens_a_file = operation in ("file", "null", "content")
    return set(SHAPES) - {"trailing slash", "proc"} - (set() if opens_a_file else {"leaf"})


def naive_call_writes(ground: Ground, operation: str, shape: str) -> bool:
    top = ground.top / f"{operation} {shape}"
    host, project = top / "host", top / "project"
    for directory in (top, host, project):
        directory.mkdir()
    link, target, dest = SHAPES[shape]
    os.symlink(target.format(host=host, name=host.name), project / link)
    os.symlink(f"/oldroot{host}", project / "second")
    words = [word.format(f"{project}/{dest}") for word in OPERATIONS[operation]]
    naive_bwrap(ground.bwrap, "--bind", os.fspath(project), os.fspath(project), *words, "true")
    return bool(os.listdir(host))


NUMBERS = range(3, 20)


def victim(ground: Ground) -> Path:
    path = ground.top / "victim.txt"
    path.write_text("canary")
    return path


def go_through(sandbox: Sandbox, cwd: str, target: Path) -> RunResult | None:
    """Read and write a file of the host from a working directory that may be outside; None if it was refused."""
    beyond = ".." + str(target)
    try:
        return sandbox.run(f"cat {beyond}; echo overwritten > {beyond}", working_dir=cwd)
    except UsageError:
        return None


def is_outside(sandbox: Sandbox, cwds: list[str], target: Path) -> bool:
    results = [go_through(sandbox, cwd, target) for cwd in cwds]
    return any(result is not None and b"canary" in result.stdout.kept() for result in results) or (
        target.read_text() != "canary"
    )


@pytest.mark.parametrize("place", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/thread-self/fd/{}"])
def test_a23_a_working_directory_leads_through_no_descriptor_of_bwrap(arena: Arena, ground: Ground, place: str) -> None:
    """Ask for a working directory that is a descriptor which bwrap itself still has open on the host's /proc.

    Control: where bwrap goes there by itself, the file of the host is read and written.
    """
    target = victim(ground)
    cwds = [place.format(number) for number in NUMBERS]
    assert not is_outside(ground.sandbox(), cwds, target)
    with arena.patch.context() as patch:
        patch.setattr("unspill.plan.build.is_staged", lambda *_: False)
        assert is_outside(ground.sandbox(), cwds, target)


@pytest.mark.parametrize("link", ["/proc/self/fd/{}", "/dev/fd/{}", "up/{}"])
def test_a23_a_link_of_an_earlier_run_leads_nowhere_as_a_working_directory(
    arena: Arena, ground: Ground, link: str
) -> None:
    """Leave links to such descriptors in the project, for a later run that starts in one of them.

    Control: where bwrap goes there by itself, the file of the host is read and written.
    """
    target = victim(ground)
    sandbox = ground.sandbox()
    made = [f"ln -s {link.format(number)} d{number}" for number in NUMBERS]
    sandbox.run("ln -s /proc/self/fd up; " + "; ".join(made))
    cwds = [f"d{number}" for number in NUMBERS]
    assert not is_outside(sandbox, cwds, target)
    with arena.patch.context() as patch:
        patch.setattr("unspill.plan.build.is_staged", lambda *_: False)
        assert is_outside(sandbox, cwds, target)


def test_a24_the_pipe_of_the_shell_that_goes_there_is_gone_before_the_command_starts(
    arena: Arena, ground: Ground
) -> None:
    """Write words of that shell to every descriptor from 3 to 255, and look for pipes of pid 1 to take over.

    Control: the shell itself has the pipe, or a program that is not found could not be told.
    """
    (ground.project / "sub").mkdir()
    script = """
    for number in range(3, 256):
        try: os.write(number, b"program")
        except OSError: continue
        won(number)
    for name in os.listdir("/proc/1/fd"):
        try: target = os.readlink(f"/proc/1/fd/{name}")
        except PermissionError: continue
        if int(name) > 2 and "pipe" in target: won("of pid 1:", name)
    """
    for profile in ("default", "strict"):
        assert not arena.attack(script, options={"working_dir": "sub"}, profile=profile).won
        assert ground.sandbox(profile=profile).run(["no-such-program"], working_dir="sub").exit_code == 127


def test_a23_what_goes_to_the_working_directory_leaves_no_descriptor(arena: Arena, ground: Ground) -> None:
    """Look for descriptors in a run that a shell has led to its directory, and for those of its ancestors.

    Control: the search finds one that the command opens itself.
    """
    (ground.project / "sub").mkdir()
    look = """
    for number in range(3, 4096):
        try: os.fstat(number)
        except OSError: continue
        won("has", number)
    """
    assert not arena.attack(look, options={"working_dir": "sub"})
    assert arena.attack("os.open('/', os.O_RDONLY)\n" + look.replace("\n    ", "\n"), options={"working_dir": "sub"})
    assert os.listdir(ground.project / "sub") == []
