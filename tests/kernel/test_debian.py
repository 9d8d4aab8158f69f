# SPDX-License-Identifier: Apache-2.0
"""A Debian rootfs, really built from Debian's packages by an ordinary user, and what commands do in it."""

import os
import re
import stat
from pathlib import Path

import pytest

from tests.kernel.debian_roots import Workshop, no_install, reachable_spec
from tests.support import Ground, kinds, printed
from unspill import RunResult
from unspill.model.rootfs import RootfsManifest
from unspill.rootfs.build import prepare
from unspill.rootfs.debian import DebianSource

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(600)]

PROGRAM = """\
#include <stdio.h>
int main(void) { printf("compiled inside\\n"); return 0; }
"""


def run_in(workshop: Workshop, ground: Ground, command: str) -> RunResult:
    """Run a command with the Debian rootfs as its root."""
    return ground.sandbox(view="rootfs", rootfs=os.fsdecode(workshop.rootfs.tree)).run(command)


def manifest_of(workshop: Workshop) -> RootfsManifest:
    assert workshop.rootfs.manifest is not None
    return workshop.rootfs.manifest


def test_an_ordinary_user_builds_it_and_signatures_speak_for_it(workshop: Workshop) -> None:
    assert os.geteuid() != 0
    manifest = manifest_of(workshop)
    assert manifest.proof == "signed"
    assert workshop.rootfs.name.startswith("debian-bookworm.2")
    assert {name for name, _digest in manifest.fetched} == {
        "bookworm/InRelease",
        "bookworm-updates/InRelease",
        "bookworm-security/InRelease",
    }


def test_its_packages_are_listed_with_their_versions(workshop: Workshop) -> None:
    packages = dict(manifest_of(workshop).packages)
    assert {"bash", "python3", "python3-pip", "coreutils", "grep", "sed", "git", "gcc"} <= set(packages)
    assert packages["gcc"].startswith("4:12.")


def test_all_of_it_is_the_callers_without_bits_that_give_rights_away(workshop: Workshop) -> None:
    found = 0
    for directory, names, files in os.walk(workshop.rootfs.tree):
        for name in names + files:
            entry = os.lstat(os.path.join(directory, name))
            found += 1
            assert entry.st_uid == os.getuid()
            assert not entry.st_mode & (stat.S_ISUID | stat.S_ISGID)
            assert stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode) or stat.S_ISLNK(entry.st_mode)
    assert found > 5000
    # It is because they were left out, not because Debian had none
    assert dict(manifest_of(workshop).left_out)["setuid"] > 0


def test_nothing_in_it_tells_of_the_machine_that_built_it(workshop: Workshop) -> None:
    etc = Path(os.fsdecode(workshop.rootfs.tree), "etc")
    assert "copy:" not in (etc / "apt/sources.list").read_text()
    assert (etc / "resolv.conf").read_text() == ""
    assert not (etc / "hostname").exists()
    home = os.fsencode(Path.home())
    told = [path for path in etc.rglob("*") if path.is_file() and home in path.read_bytes()]
    assert told == []


def test_asking_again_builds_nothing(workshop: Workshop) -> None:
    source = DebianSource()
    again = prepare(
        workshop.registry, reachable_spec(), source, install=no_install, report=lambda _progress: pytest.fail("built")
    )
    assert again == workshop.rootfs


def test_python_of_the_rootfs_runs(workshop: Workshop, ground: Ground) -> None:
    result = run_in(workshop, ground, "python3 -c 'import sys, ssl, sqlite3; print(sys.prefix, sys.version_info[:2])'")
    assert printed(result) == "/usr (3, 11)\n"


def test_it_is_debian_whatever_the_host_is(workshop: Workshop, ground: Ground) -> None:
    assert "ID=debian\n" in printed(run_in(workshop, ground, "cat /etc/os-release"))


def test_git_makes_a_repository_in_the_project(workshop: Workshop, ground: Ground) -> None:
    ground.write("a.txt", "one\n")
    command = (
        "git init -q . && git config user.name A && git config user.email a@example.org"
        " && git add a.txt && git commit -qm first && git log --format=%s && pwd"
    )
    result = run_in(workshop, ground, command)
    assert printed(result) == "first\n/workspace\n"
    assert ".git" in kinds(result.changes)
    assert not (ground.project / ".git").exists()


def test_a_compiler_makes_a_program_that_runs(workshop: Workshop, ground: Ground) -> None:
    ground.write("p.c", PROGRAM)
    result = run_in(workshop, ground, "gcc -O1 -o p p.c && ./p")
    assert printed(result) == "compiled inside\n"
    assert kinds(result.changes) == {"p": "added"}


def test_pip_and_the_package_manager_are_there(workshop: Workshop, ground: Ground) -> None:
    result = run_in(workshop, ground, "pip --version && dpkg -l gcc | tail -1 && apt-get --version | head -1")
    lines = printed(result).splitlines()
    assert lines[0].startswith("pip ")
    assert lines[1].startswith("ii")


def test_apt_does_not_try_to_become_another_user_where_there_is_one(workshop: Workshop, ground: Ground) -> None:
    written = Path(os.fsdecode(workshop.rootfs.tree), "etc/apt/apt.conf.d/99mmdebstrap")
    assert written.read_text() == 'APT::Sandbox::User "root";\n'
    tree = os.fsdecode(workshop.rootfs.tree)
    sandbox = ground.sandbox(view="rootfs", rootfs=tree, rootfs_writable=True)
    # There is no network: what matters is that it gets as far as asking for it
    said = printed(sandbox.run("apt-get -o Acquire::Retries=0 update 2>&1; true"))
    assert "Err:1 " in said
    assert not re.search(refusal := "seteuid|setegid|setgroups", said)
    # Control: as Debian has it
    assert re.search(refusal, printed(sandbox.run("apt-get -o APT::Sandbox::User=_apt update 2>&1; true")))


def test_a_command_changes_nothing_of_the_rootfs(workshop: Workshop, ground: Ground) -> None:
    result = run_in(workshop, ground, "touch /usr/bin/planted /etc/planted; ls /usr/bin/planted /etc/planted")
    assert not result.ok
    assert not Path(os.fsdecode(workshop.rootfs.tree), "usr/bin/planted").exists()
