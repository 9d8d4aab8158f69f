# SPDX-License-Identifier: Apache-2.0
"""Runs in a rootfs: what a command finds around it, what it can write, what is left of that."""

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.rootfs_tree import make_small_tree
from tests.support import HOST_ROOT, Ground, kinds, printed
from unspill import Sandbox
from unspill.errors import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

PACKAGES = "/workspace/.packages"


@pytest.fixture
def tree(ground: Ground) -> Path:
    """A root file system of one static program."""
    return make_small_tree(ground.top / "trees" / "small")


def inside(ground: Ground, tree: Path | str, **settings: Any) -> Sandbox:
    return ground.sandbox(view="rootfs", rootfs=os.fspath(tree), **settings)


def test_the_root_is_the_rootfs_and_the_project_is_the_workspace(ground: Ground, tree: Path) -> None:
    ground.write("mine.txt", "mine\n")
    sandbox = inside(ground, tree)
    assert printed(sandbox.run("pwd; cat mine.txt; ls /bin/busybox")).split() == ["/workspace", "mine", "/bin/busybox"]
    assert printed(sandbox.run("ls /usr/bin")) == ""
    result = sandbox.run("echo test > /workspace/test.txt", after="apply")
    assert kinds(result.changes) == {"test.txt": "added"}
    assert (ground.project / "test.txt").read_text() == "test\n"
    assert printed(sandbox.run("cat /workspace/test.txt")) == "test\n"


@pytest.mark.parametrize("place", ["/root/evil", "/evil", "/etc/passwd", "/bin/sh", "/usr/evil"])
def test_the_rootfs_is_read_only(ground: Ground, tree: Path, place: str) -> None:
    before = sorted(os.fspath(path) for path in tree.rglob("*"))
    result = inside(ground, tree).run(f"echo evil > {place}")
    assert not result.ok
    assert b"Read-only" in result.stderr.kept()
    assert sorted(os.fspath(path) for path in tree.rglob("*")) == before


def test_tmp_is_fresh_for_each_run_and_kept_where_the_policy_says_so(ground: Ground, tree: Path) -> None:
    fresh = inside(ground, tree)
    assert fresh.run("echo x > /tmp/test.txt && cat /tmp/test.txt").ok
    assert not fresh.run("cat /tmp/test.txt").ok
    kept = inside(ground, tree, tmp="persistent")
    assert kept.run("echo x > /tmp/test.txt").ok
    assert printed(kept.run("cat /tmp/test.txt")) == "x\n"
    assert not fresh.run("cat /tmp/test.txt").ok


def test_variables_are_a_fixed_set(ground: Ground, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("CARGO_HOME", "/home/ann/.cargo")
    lines = printed(inside(ground, tree).run(["/bin/env"])).splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert "MY_TOKEN" not in found
    assert "CARGO_HOME" not in found
    assert found["HOME"] == "/workspace"
    assert found["TMPDIR"] == "/tmp"
    assert found["LANG"] == "C.UTF-8"
    assert found["PIP_TARGET"] == found["PYTHONPATH"] == PACKAGES
    assert found["PYTHONDONTWRITEBYTECODE"] == "1"
    places = found["PATH"].split(":")
    assert {"/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin", f"{PACKAGES}/bin"} <= set(places)
    assert places[-1] == f"{PACKAGES}/bin"


def test_a_text_is_run_by_bash_where_there_is_one_and_by_sh_elsewhere(ground: Ground, tree: Path) -> None:
    assert printed(inside(ground, HOST_ROOT).run("echo ${BASH_VERSION:+bash}")) == "bash\n"
    assert printed(inside(ground, tree).run("echo ${BASH_VERSION:-none}")) == "none\n"


def test_python_is_the_rootfs_own_and_leaves_no_bytecode(ground: Ground) -> None:
    ground.write("module.py", "x = 1\n")
    result = inside(ground, HOST_ROOT).run("python3 --version && python3 -c 'import module, sys; print(sys.prefix)'")
    assert printed(result).splitlines()[-1] == "/usr"
    assert kinds(result.changes) == {}


def test_what_pip_installs_lands_in_the_workspace_and_is_found_there(ground: Ground) -> None:
    with zipfile.ZipFile(ground.project / "demo-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("demo.py", "print('found')\n")
        wheel.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        wheel.writestr("demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("demo-1.0.dist-info/RECORD", "")
    sandbox = inside(ground, HOST_ROOT)
    result = sandbox.run("pip install --quiet --no-index ./demo-1.0-py3-none-any.whl", after="apply")
    assert result.ok, result.stderr.kept()
    assert (ground.project / ".packages/demo.py").is_file()
    assert printed(sandbox.run("python3 -m demo")) == "found\n"


def test_without_a_network_there_is_no_resolver(ground: Ground, tree: Path) -> None:
    assert printed(inside(ground, tree).run("cat /etc/resolv.conf")) == ""


def test_a_directory_is_mounted_where_the_policy_says_and_read_only(ground: Ground, tree: Path) -> None:
    skills = ground.home / "skills"
    skills.mkdir()
    (skills / "one.md").write_text("one\n")
    for place in ("/skills", "/home/ann/skills", "/usr/share/app/skills"):
        sandbox = inside(ground, tree, mounts=((place.encode(), os.fsencode(skills)),))
        assert printed(sandbox.run(f"cat {place}/one.md")) == "one\n"
        assert not sandbox.run(f"echo two > {place}/one.md").ok
    assert (skills / "one.md").read_text() == "one\n"


def test_a_place_that_a_sandbox_has_itself_is_refused(ground: Ground, tree: Path) -> None:
    skills = ground.home / "skills"
    skills.mkdir()
    with pytest.raises(UsageError, match="is taken"):
        inside(ground, tree, mounts=((b"/workspace/skills", os.fsencode(skills)),))


def test_several_projects_share_one_rootfs(ground: Ground, tree: Path) -> None:
    other = ground.home / "other"
    other.mkdir()
    first = inside(ground, tree)
    second = ground.sandbox(project=other, view="rootfs", rootfs=os.fspath(tree))
    assert first.run("touch a", after="apply").ok
    assert second.run("touch b", after="apply").ok
    assert ([path.name for path in ground.project.iterdir()], [path.name for path in other.iterdir()]) == (["a"], ["b"])


def test_the_host_is_not_visible_at_all(ground: Ground, tree: Path) -> None:
    sandbox = inside(ground, tree)
    for path in (ground.home, Path("/usr/bin/python3"), Path("/opt/unspill-ci"), ground.state):
        assert path.exists()
        assert not sandbox.run(f"ls -d {path}").ok
