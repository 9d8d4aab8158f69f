# SPDX-License-Identifier: Apache-2.0
"""The view `rootfs`: what a command sees of a tree of its own, what it can write, and that it keeps that tree."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.answering import Person, opened
from tests.kernel.git_cases import WHEEL
from tests.kernel.rootfs_program import TarSource, no_install, silent
from tests.kernel.rootfs_strikes import Scene, make_archive
from tests.kernel.small_tree import make_tree
from tests.rootfs_tree import make_small_tree
from tests.support import HOST_ROOT, Ground, kinds, printed, short
from unspill import Exited, LimitReached, Rules, RunResult, Sandbox, UnspillError
from unspill.errors import RootfsError, UsageError
from unspill.model.policy import Network
from unspill.model.rootfs import Rootfs
from unspill.rootfs.build import upgrade, verify
from unspill.rootfs.registry import Registry

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

MIB = 1 << 20


def rooted(ground: Ground, name: str = "default", **settings: Any) -> Sandbox:
    return ground.sandbox(name, **{"view": "rootfs", "rootfs": HOST_ROOT, **settings})


@pytest.fixture
def tree(ground: Ground) -> Path:
    """A tree that a person has made by hand."""
    return make_tree(ground.top / "tree")


def test_a_write_to_workspace_persists(ground: Ground, engine: str) -> None:
    result = rooted(ground, after="apply").run("echo kept > /workspace/test.txt; pwd; echo $HOME")
    assert printed(result) == "/workspace\n/workspace\n"
    assert (ground.project / "test.txt").read_text() == "kept\n"
    assert kinds(result.changes) == {"test.txt": "added"}


def test_a_write_to_the_rootfs_fails(ground: Ground, engine: str) -> None:
    sandbox = rooted(ground)
    for place in ("/root/evil", "/usr/bin/evil", "/etc/evil", "/evil", "/home/evil", "/opt/evil", "/var/evil"):
        result = sandbox.run(["touch", place])
        assert b"Read-only file system" in result.stderr.kept(), place
    assert not os.path.lexists(HOST_ROOT + "/root/evil")


def test_a_write_to_tmp_does_not_persist(ground: Ground, engine: str) -> None:
    sandbox = rooted(ground)
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
        assert printed(sandbox.run(f"echo x > {place}/test.txt; cat {place}/test.txt")) == "x\n"
        assert not sandbox.run(["cat", f"{place}/test.txt"]).ok


def test_python_works(ground: Ground, engine: str) -> None:
    assert printed(rooted(ground).run("python3 --version")).startswith("Python 3.")


@pytest.mark.any_bwrap
@pytest.mark.slow
def test_what_pip_installs_goes_to_the_project_and_the_next_run_has_it(ground: Ground) -> None:
    """The time buys a real pip in the rootfs, which installs a wheel."""
    sandbox = rooted(ground, after="apply")
    install = "pip install --no-index --disable-pip-version-check -q tiny-1.0-py3-none-any.whl"
    assert sandbox.run(WHEEL + install).ok
    assert printed(sandbox.run("tiny; python3 -c 'import tiny; print(tiny.__file__)'")) == (
        "tiny\n/workspace/.packages/tiny/__init__.py\n"
    )
    assert (ground.project / ".packages/tiny/__init__.py").exists()


def test_the_variables_are_exactly_these(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "EDITOR", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "of the caller")
    monkeypatch.setenv("MINE", "named")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLORTERM", "NO_COLOR", "TZ"):
        monkeypatch.delenv(name, raising=False)
    user = pwd.getpwuid(os.getuid()).pw_name
    text = printed(rooted(ground, environment=("MINE",)).run(["env", "-0"]))
    found = dict(line.partition("=")[::2] for line in text.split("\0") if line)
    found.pop("PWD", None)
    assert found == {
        "HOME": "/workspace",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/workspace/.packages/bin",
        "PIP_TARGET": "/workspace/.packages",
        "PYTHONPATH": "/workspace/.packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "TERM": "xterm",
        "XDG_CACHE_HOME": "/tmp/.cache",
        "npm_config_cache": "/tmp/.cache/npm",
        "GIT_CONFIG_GLOBAL": "/run/unspill-gitconfig",
        "MINE": "named",
    }


def test_the_caller_has_a_name(ground: Ground, tree: Path, engine: str) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    for rootfs in (HOST_ROOT, os.fspath(tree)):
        sandbox = rooted(ground, rootfs=rootfs)
        assert printed(
            sandbox.run("whoami; id -u; cat /etc/passwd | while IFS=: read name x; do echo $name; break; done")
        )
        assert printed(sandbox.run("whoami; id -u")) == f"{user}\n{os.getuid()}\n"


def test_a_text_is_run_by_bash_where_there_is_one_and_by_sh_elsewhere(ground: Ground, tree: Path) -> None:
    assert printed(rooted(ground).run("[[ a == a ]] && echo $BASH")) == "/bin/bash\n"
    (tree / "usr/bin/sh").unlink()
    (tree / "usr/bin/bash").rename(tree / "usr/bin/sh")
    assert printed(rooted(ground, "other", rootfs=os.fspath(tree)).run("echo $0")) == "/bin/sh\n"
    (tree / "usr/bin/sh").unlink()
    with pytest.raises(RootfsError, match="has no /bin/sh"):
        rooted(ground, "third", rootfs=os.fspath(tree)).run("true")


def test_nothing_of_the_host_is_seen_but_what_is_named(ground: Ground, tree: Path, engine: str) -> None:
    sandbox = rooted(ground, rootfs=os.fspath(tree))
    seen = set(printed(sandbox.run(["ls", "-A", "/"])).split())
    own = {"dev", "proc", "run", "tmp", "workspace", "playground"}
    assert seen == own | {path.name for path in tree.iterdir()}
    assert printed(sandbox.run(["ls", "-A", "/home", "/root", "/opt", "/var"])) == (
        "/home:\n\n/opt:\n\n/root:\n\n/var:\ntmp\n"
    )


def test_the_strict_profile_holds(ground: Ground, engine: str) -> None:
    sandbox = rooted(ground, profile="strict")
    assert printed(sandbox.run("echo x > file; cat file /etc/hostname > /dev/null; echo ok")) == "ok\n"
    serve = "import socket; socket.socket(socket.AF_UNIX).bind('place')"
    assert b"Address family not supported" in sandbox.run(["python3", "-c", serve]).stderr.kept()
    assert rooted(ground, "control").run(["python3", "-c", serve]).ok


def test_temporary_files_persist_in_this_sandbox_alone_if_the_policy_says_so(ground: Ground, engine: str) -> None:
    sandbox = rooted(ground, tmp="persistent")
    sandbox.run("echo x > /tmp/test.txt; mkfifo /tmp/pipe")
    assert printed(sandbox.run("cat /tmp/test.txt")) == "x\n"
    assert not rooted(ground, "other", tmp="persistent").run("cat /tmp/test.txt").ok
    assert not rooted(ground).run("cat /tmp/test.txt").ok
    assert printed(rooted(ground, tmp="persistent").run("cat /tmp/test.txt")) == "x\n"
    assert not sandbox.changes()


@pytest.mark.parametrize("place", ["/tmp", "/playground"])
def test_neither_persistent_temporary_files_nor_the_playground_grow_without_bound(ground: Ground, place: str) -> None:
    fill = f"import time\nfor n in range(64): open(f'{place}/{{n}}', 'wb').write(bytes({MIB})); time.sleep(0.05)\n"
    command = ["python3", "-c", fill + "time.sleep(9)"]
    result = rooted(ground, tmp="persistent").run(command, limits=short(layer_bytes=8 * MIB))
    assert result.outcome == LimitReached(limit="playground_bytes", bound=8 * MIB)


@pytest.mark.parametrize("place", ["/skills", "/opt/x/y", "/usr/share/skills", "/new/deep/er", "/home/skills/of/ann"])
def test_a_directory_is_shown_anywhere_and_read_only(ground: Ground, engine: str, place: str) -> None:
    skills = ground.home / "skills"
    skills.mkdir()
    (skills / "skill").write_text("how to\n")
    sandbox = rooted(ground, mounts=((place.encode(), os.fsencode(skills)),))
    assert printed(sandbox.run(f"cat {place}/skill; ls {place}; ls /usr/bin/env")) == "how to\nskill\n/usr/bin/env\n"
    assert not sandbox.run(f"echo x > {place}/skill").ok
    assert not sandbox.run(f"rm -rf {place}/skill").ok
    (skills / "skill").write_text("changed\n")
    assert printed(sandbox.run(f"cat {place}/skill")) == "changed\n"


def test_a_place_behind_a_link_of_the_tree_is_refused_in_words(ground: Ground) -> None:
    (ground.home / "skills").mkdir()
    with pytest.raises(UnspillError, match="/bin is a symlink in the rootfs"):
        rooted(ground, mounts=((b"/bin/skills", os.fsencode(ground.home / "skills")),)).run("true")


def test_a_resolver_is_named_only_with_the_network(ground: Ground, tree: Path, engine: str) -> None:
    host = Path("/etc/resolv.conf").read_text()
    sandbox = opened(ground, Person(), view="rootfs", rootfs=os.fspath(tree), network=Network(mode="host"))
    assert printed(sandbox.run("cat /etc/resolv.conf")) == ""
    assert printed(sandbox.run("cat /etc/resolv.conf", network=True)) == host != ""
    assert printed(sandbox.run("cat /etc/resolv.conf")) == ""


def test_the_resolver_of_the_host_can_not_be_written(ground: Ground, engine: str) -> None:
    sandbox = opened(ground, Person(), view="rootfs", rootfs=HOST_ROOT, network=Network(mode="host"))
    result = sandbox.run("cat /etc/resolv.conf; echo x > /etc/resolv.conf", network=True)
    assert result.stdout.kept() == Path("/etc/resolv.conf").read_bytes()
    assert not result.ok


@pytest.mark.any_bwrap
def test_a_command_without_a_sandbox_runs_in_the_directory_that_is_meant(ground: Ground) -> None:
    ground.write("sub/file", "x")
    sandbox = opened(ground, Person(), view="rootfs", rootfs=HOST_ROOT, permissions=Rules(unsandboxed="ask"))
    for cwd in (None, "sub", "/workspace/sub", os.fspath(ground.project / "sub")):
        result = sandbox.run("pwd", unsandboxed=True, working_dir=cwd)
        assert printed(result) == f"{ground.project / 'sub' if cwd else ground.project}\n"


def test_a_project_may_be_named_by_both_of_its_paths(ground: Ground, engine: str) -> None:
    ground.write("sub/file", "x")
    sandbox = rooted(ground)
    for cwd in ("sub", "/workspace/sub", os.fspath(ground.project / "sub")):
        assert printed(sandbox.run("pwd", working_dir=cwd)) == "/workspace/sub\n"


def test_a_refused_write_is_explained_by_the_rootfs(ground: Ground) -> None:
    result = rooted(ground).run("mkdir /etc/evil; cat /etc/passwd /etc/none /tmp/none; false")
    [hint] = result.hints
    assert hint.text.startswith("/etc/evil: /etc is read-only: ")
    assert "of the rootfs" in hint.text
    assert "`rootfs_writable = true`" in hint.remedy


@pytest.mark.any_bwrap
def test_a_masked_secret_is_revealed_by_the_path_that_is_told(ground: Ground) -> None:
    ground.write(".env", "TOKEN=x\n")
    sandbox = opened(ground, Person(), view="rootfs", rootfs=HOST_ROOT)
    [hint] = sandbox.run(["cat", ".env"]).hints
    told = hint.remedy.partition("`--reveal ")[2].partition("`")[0]
    assert told == ".env"
    assert printed(sandbox.run(["cat", ".env"], reveal=[told])) == "TOKEN=x\n"


def test_many_runs_of_many_sandboxes_do_not_disturb_each_other(ground: Ground, engine: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    sandboxes = [rooted(ground, f"of {number}") for number in range(4)]

    def work(number: int) -> bool:
        script = f"echo {number} > own; sleep 0.1; cat own; ls /tmp; whoami > /tmp/{number}"
        return printed(sandboxes[number % 4].run(script)) == f"{number}\n"

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_a_run_ends_as_anywhere(ground: Ground, engine: str) -> None:
    sandbox = rooted(ground)
    assert sandbox.run("exit 7").outcome == Exited(code=7)
    assert sandbox.run("sleep 60", timeout=0.3).exit_code == 124
    assert sandbox.run(["no-such-program"]).exit_code == 127


def test_a_rootfs_of_roots_is_one_also_where_root_is_not_mapped() -> None:
    """In a user namespace that has the caller alone, all that is root's seems to be somebody else's."""
    ask = f"from unspill.host.bwrap import find_changeable; print(find_changeable({HOST_ROOT.encode()!r}))"
    words = ["unshare", "-U", "--map-current-user", sys.executable, "-c", ask]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "None\n"


PACKAGES = "/workspace/.packages"


@pytest.fixture
def small_tree(ground: Ground) -> Path:
    """A root file system of one static program."""
    return make_small_tree(ground.top / "trees" / "small")


def inside(ground: Ground, tree: Path | str, **settings: Any) -> Sandbox:
    return ground.sandbox(view="rootfs", rootfs=os.fspath(tree), **settings)


def test_the_root_is_the_rootfs_and_the_project_is_the_workspace(ground: Ground, small_tree: Path) -> None:
    ground.write("mine.txt", "mine\n")
    sandbox = inside(ground, small_tree)
    assert printed(sandbox.run("pwd; cat mine.txt; ls /bin/busybox")).split() == ["/workspace", "mine", "/bin/busybox"]
    assert printed(sandbox.run("ls /usr/bin")) == ""
    result = sandbox.run("echo test > /workspace/test.txt", after="apply")
    assert kinds(result.changes) == {"test.txt": "added"}
    assert (ground.project / "test.txt").read_text() == "test\n"
    assert printed(sandbox.run("cat /workspace/test.txt")) == "test\n"


@pytest.mark.parametrize("place", ["/root/evil", "/evil", "/etc/passwd", "/bin/sh", "/usr/evil"])
def test_the_rootfs_is_read_only(ground: Ground, small_tree: Path, place: str) -> None:
    before = sorted(os.fspath(path) for path in small_tree.rglob("*"))
    result = inside(ground, small_tree).run(f"echo evil > {place}")
    assert not result.ok
    assert b"Read-only" in result.stderr.kept()
    assert sorted(os.fspath(path) for path in small_tree.rglob("*")) == before


def test_tmp_is_fresh_for_each_run_and_kept_where_the_policy_says_so(ground: Ground, small_tree: Path) -> None:
    fresh = inside(ground, small_tree)
    assert fresh.run("echo x > /tmp/test.txt && cat /tmp/test.txt").ok
    assert not fresh.run("cat /tmp/test.txt").ok
    kept = inside(ground, small_tree, tmp="persistent")
    assert kept.run("echo x > /tmp/test.txt").ok
    assert printed(kept.run("cat /tmp/test.txt")) == "x\n"
    assert not fresh.run("cat /tmp/test.txt").ok


def test_variables_are_a_fixed_set(ground: Ground, small_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("CARGO_HOME", "/home/ann/.cargo")
    lines = printed(inside(ground, small_tree).run(["/bin/env"])).splitlines()
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


def test_a_text_is_run_by_bash_in_a_whole_rootfs_and_by_sh_in_a_small_one(ground: Ground, small_tree: Path) -> None:
    assert printed(inside(ground, HOST_ROOT).run("echo ${BASH_VERSION:+bash}")) == "bash\n"
    assert printed(inside(ground, small_tree).run("echo ${BASH_VERSION:-none}")) == "none\n"


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


def test_without_a_network_there_is_no_resolver(ground: Ground, small_tree: Path) -> None:
    assert printed(inside(ground, small_tree).run("cat /etc/resolv.conf")) == ""


def test_a_directory_is_mounted_where_the_policy_says_and_read_only(ground: Ground, small_tree: Path) -> None:
    skills = ground.home / "skills"
    skills.mkdir()
    (skills / "one.md").write_text("one\n")
    for place in ("/skills", "/home/ann/skills", "/usr/share/app/skills"):
        sandbox = inside(ground, small_tree, mounts=((place.encode(), os.fsencode(skills)),))
        assert printed(sandbox.run(f"cat {place}/one.md")) == "one\n"
        assert not sandbox.run(f"echo two > {place}/one.md").ok
    assert (skills / "one.md").read_text() == "one\n"


def test_a_place_that_a_sandbox_has_itself_is_refused(ground: Ground, small_tree: Path) -> None:
    skills = ground.home / "skills"
    skills.mkdir()
    with pytest.raises(UsageError, match="is taken"):
        inside(ground, small_tree, mounts=((b"/workspace/skills", os.fsencode(skills)),))


def test_several_projects_share_one_rootfs(ground: Ground, small_tree: Path) -> None:
    other = ground.home / "other"
    other.mkdir()
    first = inside(ground, small_tree)
    second = ground.sandbox(project=other, view="rootfs", rootfs=os.fspath(small_tree))
    assert first.run("touch a", after="apply").ok
    assert second.run("touch b", after="apply").ok
    assert ([path.name for path in ground.project.iterdir()], [path.name for path in other.iterdir()]) == (["a"], ["b"])


def test_the_host_is_not_visible_at_all(ground: Ground, small_tree: Path) -> None:
    sandbox = inside(ground, small_tree)
    for path in (ground.home, Path("/usr/bin/python3"), Path("/opt/unspill-ci"), ground.state):
        assert path.exists()
        assert not sandbox.run(f"ls -d {path}").ok


RUNS = 20
# Reads and executes from the root all the time, until a file appears outside. To look for its name would not do: the
# directory is an overlay, which remembers that there was none.
WORK = """
n=0
while [ "$(echo /signals/*)" = "/signals/*" ]; do
    [ "$(cat /etc/release)" = 1.0 ] || exit 7
    /bin/true && /bin/cat /usr/lib/large > /dev/null || exit 8
    sleep 0.05
    n=$((n + 1))
done
echo "$(cat /etc/release) $n"
"""


@pytest.fixture
def scene(ground: Ground) -> Scene:
    """A registry with one rootfs that has real programs, and an archive with a newer one."""
    top = ground.top / "given"
    top.mkdir()
    scene = Scene(top)
    for version in ("1.0", "2.0"):
        make_archive(top / f"{version}.tar", Path("/bin/busybox").read_bytes())
    (ground.top / "signals").mkdir()
    scene.prepare()
    return scene


def sandbox_of(ground: Ground, registry: Registry, name: str) -> Sandbox:
    """Open a sandbox in the rootfs that is in use."""
    signals = os.fsencode(ground.top / "signals")
    return ground.sandbox(name, view="rootfs", rootfs_dir=registry.directory, mounts=((b"/signals", signals),))


def holders(rootfs: Rootfs) -> int:
    """Return how many shared locks there are on a rootfs."""
    inode = os.stat(os.path.dirname(rootfs.tree)).st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return sum(f":{inode} " in line and "FLOCK" in line and " READ " in line for line in lines)


@contextmanager
def running(ground: Ground, registry: Registry, rootfs: Rootfs, count: int) -> Iterator[list[RunResult]]:
    """Have some runs work in a rootfs; they end with the block, and their results are in the list then."""
    results: list[RunResult] = []
    boxes = [sandbox_of(ground, registry, f"number-{index}") for index in range(count)]
    threads = [
        threading.Thread(target=lambda box=box: results.append(box.run(WORK, limits=short(wall_s=50.0))))
        for box in boxes
    ]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 40
        while holders(rootfs) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        assert holders(rootfs) == count
        yield results
    finally:
        (ground.top / "signals" / "stop").touch()
        for thread in threads:
            thread.join()
        (ground.top / "signals" / "stop").unlink()


@pytest.mark.any_bwrap
def test_an_upgrade_disturbs_none_of_those_who_run_in_the_old_one(ground: Ground, scene: Scene) -> None:
    registry = scene.registry
    (old,) = registry.list()
    newer = TarSource(os.fsencode(scene.top / "2.0.tar"), os.fsencode(scene.log))
    with running(ground, registry, old, RUNS) as results:
        new = upgrade(registry, old, newer, install=no_install, report=silent)
        assert registry.current() == new
        for _ in range(15):
            time.sleep(0.1)
            with pytest.raises(RootfsError, match="Runs are using"):
                registry.remove(old.name, force=True)
            assert registry.remove_unused() == ()
        assert verify(old) == "none"
        assert printed(sandbox_of(ground, registry, "later").run("cat /etc/release")) == "2.0"
        assert results == []
    ended = [printed(result).split() for result in results]
    assert [version for version, _rounds in ended] == ["1.0"] * RUNS
    assert min(int(rounds) for _version, rounds in ended) > 1
    # The control: when they have ended, the old one goes at once
    assert registry.remove_unused() == (old.name,)
    assert registry.list() == (new,)
    record_figure(
        "rootfs, upgraded under running sandboxes", f"0 of {RUNS} runs disturbed", "upgrade, remove and remove_unused"
    )


@pytest.mark.any_bwrap
def test_without_its_lock_a_rootfs_would_be_removed_under_a_run(ground: Ground, scene: Scene) -> None:
    """The control of the lock: a rootfs that goes while somebody runs in it takes the programs away."""
    registry = scene.registry
    (old,) = registry.list()
    with running(ground, registry, old, 1) as results:
        os.rename(os.path.join(old.tree, b"bin/busybox"), os.path.join(old.tree, b"bin/gone"))
        time.sleep(0.5)
    assert not results[0].ok


def test_a_run_that_is_killed_does_not_keep_its_rootfs(ground: Ground, scene: Scene) -> None:
    registry = scene.registry
    (old,) = registry.list()
    result = sandbox_of(ground, registry, "killed").run("sleep 100", limits=short(wall_s=0.3))
    assert not result.ok
    assert holders(old) == 0
    assert registry.remove(old.name, force=True) == old.name
