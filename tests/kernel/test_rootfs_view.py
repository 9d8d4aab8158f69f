# SPDX-License-Identifier: Apache-2.0
"""The view `rootfs`: what a command sees of a tree of its own, what it can write, which variables it has."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kernel.answering import Person, opened
from tests.kernel.git_cases import WHEEL
from tests.kernel.small_tree import make_tree
from tests.support import HOST_ROOT, Ground, kinds, printed, short
from unspill import Exited, LimitReached, Rules, UnspillError
from unspill.errors import RootfsError
from unspill.model.policy import Network

if TYPE_CHECKING:
    from unspill import Sandbox

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


@pytest.mark.slow
def test_what_pip_installs_goes_to_the_project_and_the_next_run_has_it(ground: Ground) -> None:
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


def test_a_command_without_a_sandbox_runs_in_the_directory_that_is_meant(ground: Ground) -> None:
    ground.write("sub/file", "x")
    sandbox = opened(ground, Person(), view="rootfs", rootfs=HOST_ROOT, permissions=Rules(unsandboxed="ask"))
    for cwd in (None, "sub", "/workspace/sub", os.fspath(ground.project / "sub")):
        result = sandbox.run("pwd", unsandboxed=True, cwd=cwd)
        assert printed(result) == f"{ground.project / 'sub' if cwd else ground.project}\n"


def test_a_project_may_be_named_by_both_of_its_paths(ground: Ground, engine: str) -> None:
    ground.write("sub/file", "x")
    sandbox = rooted(ground)
    for cwd in ("sub", "/workspace/sub", os.fspath(ground.project / "sub")):
        assert printed(sandbox.run("pwd", cwd=cwd)) == "/workspace/sub\n"


def test_a_refused_write_is_explained_by_the_rootfs(ground: Ground) -> None:
    result = rooted(ground).run("mkdir /etc/evil; cat /etc/passwd /etc/none /tmp/none; false")
    [hint] = result.hints
    assert hint.text.startswith("/etc/evil: /etc is read-only: ")
    assert "of the rootfs" in hint.text
    assert "`rootfs_writable = true`" in hint.remedy


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
