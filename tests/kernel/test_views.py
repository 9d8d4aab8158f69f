# SPDX-License-Identifier: Apache-2.0
"""The two views: `sealed` shows no home directory, `host` all but what is secret; the playground is in both."""

import dataclasses
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CACHE
from tests.support import HOST_ROOT, Ground, is_rootfs_chosen, kinds, printed
from unspill import UnspillError

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

SECRETS = (".ssh/id_ed25519", ".aws/credentials", ".netrc", ".git-credentials", ".config/gh/hosts.yml", ".gnupg/key")


def furnish(ground: Ground) -> None:
    """Fill the home directory with what a person has there."""
    for path in (*SECRETS, "Documents/letter", ".bashrc"):
        target = ground.home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"content of {path}\n")


@pytest.mark.view("sealed", reason="about the home directory of that view")
def test_a_sealed_home_is_empty_but_for_project_and_playground(ground: Ground, engine: str) -> None:
    furnish(ground)
    assert printed(ground.run("ls -A ~")).split() == ["playground", "project"]
    for path in (*SECRETS, "Documents/letter", ".bashrc"):
        assert not ground.run(["cat", os.fspath(ground.home / path)]).ok


@pytest.mark.view("sealed", reason="about the home directory of that view")
def test_a_sealed_home_can_be_written_and_is_gone_afterwards(ground: Ground, engine: str) -> None:
    assert printed(ground.run("mkdir -p ~/.config/x && echo y > ~/.config/x/z && cat ~/.config/x/z")) == "y\n"
    assert not (ground.home / ".config").exists()
    assert not ground.run("test -e ~/.config/x").ok


@pytest.mark.view("sealed", reason="about the home directory of that view")
def test_other_homes_and_places_are_not_there(ground: Ground, engine: str) -> None:
    top = set(printed(ground.run("ls /")).split())
    assert {"usr", "etc", "bin", "lib", "tmp", "proc", "dev", "run"} <= top
    assert not {"root", "srv", "mnt", "media", "boot", "sys"} & top
    assert printed(ground.run("ls -A /run")) == ""


@pytest.mark.view("sealed", reason="about the home directory of that view")
def test_the_directories_on_the_way_to_the_project_show_nothing_else(ground: Ground, engine: str) -> None:
    (ground.top / "sibling").mkdir()
    assert printed(ground.run(["ls", "-A", os.fspath(ground.top)])).split() == ["home"]


@pytest.mark.view("sealed", "host", reason="about the view host")
def test_the_host_view_shows_the_home_without_its_secrets(ground: Ground) -> None:
    furnish(ground)
    (ground.home / "playground").mkdir()
    sandbox = ground.sandbox(view="host")
    assert (
        printed(sandbox.run("cat ~/Documents/letter ~/.bashrc")) == "content of Documents/letter\ncontent of .bashrc\n"
    )
    for path in SECRETS:
        result = sandbox.run(["cat", os.fspath(ground.home / path)])
        assert b"content of" not in result.stdout.kept()
    # The control arm: whoever is not in the sandbox reads them
    assert all((ground.home / path).read_text().startswith("content of") for path in SECRETS)


@pytest.mark.view("sealed", "host", reason="about the view host")
def test_the_host_view_is_read_only_outside_the_project(ground: Ground) -> None:
    furnish(ground)
    sandbox = ground.sandbox(view="host")
    assert not sandbox.run("echo x > ~/Documents/letter").ok
    assert not sandbox.run("echo x > ~/new").ok
    result = sandbox.run("echo x > file; cat file")
    assert printed(result) == "x\n"
    assert kinds(result.changes) == {"file": "added"}
    assert not (ground.project / "file").exists()


@pytest.mark.view("sealed", "host", reason="about the view host")
def test_the_host_view_works_in_a_home_without_anything(ground: Ground) -> None:
    assert printed(ground.sandbox(view="host").run("echo works")) == "works\n"


@pytest.mark.view("sealed", "host", reason="about the view host")
def test_the_host_view_shows_other_top_directories(ground: Ground) -> None:
    top = set(printed(ground.sandbox(view="host").run("ls /")).split())
    assert {"usr", "var"} <= top
    assert not {"root", "srv", "mnt", "media", "boot"} & top


@pytest.mark.view("sealed", "host", reason="about the view host")
def test_no_socket_of_the_host_is_reached_in_the_host_view(ground: Ground) -> None:
    directory = ground.home / "sockets"
    directory.mkdir()
    path = directory / "agent"
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect({os.fspath(path)!r})"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))
        server.listen()
        assert not ground.sandbox(view="host").run(["python3", "-c", connect]).ok
        client = socket.socket(socket.AF_UNIX)
        client.connect(os.fspath(path))
        client.close()


@pytest.mark.view("sealed", "host", reason="about the view host")
def test_unspills_own_files_are_not_seen_in_the_host_view(ground: Ground) -> None:
    ground.configure("")
    sandbox = ground.sandbox(view="host")
    sandbox.run("touch file")
    for path in (ground.state, ground.home / ".config/unspill", ground.home / ".local/share/unspill"):
        assert path.is_dir()
        assert any(path.iterdir())
        assert sandbox.run(f"ls -A '{path}'").stdout.total == 0


def test_a_readable_path_shows_through(ground: Ground, engine: str) -> None:
    furnish(ground)
    letter, bashrc = os.fsencode(ground.home / "Documents"), os.fsencode(ground.home / ".bashrc")
    sandbox = ground.sandbox(readable=(letter, bashrc))
    home = ground.home
    shown = printed(sandbox.run(f"cat {home}/Documents/letter {home}/.bashrc"))
    assert shown == "content of Documents/letter\ncontent of .bashrc\n"
    assert not sandbox.run(f"echo x > {home}/Documents/letter").ok
    assert not sandbox.run(f"rm {home}/Documents/letter").ok
    assert (ground.home / "Documents/letter").read_text() == "content of Documents/letter\n"


def test_the_whole_home_can_not_be_made_readable(ground: Ground) -> None:
    for path in (ground.home, ground.top, Path("/"), ground.state):
        with pytest.raises(UnspillError, match="can't be readable"):
            ground.sandbox(readable=(os.fsencode(path),)).run("true")


def test_a_hidden_path_is_hidden(ground: Ground, engine: str) -> None:
    furnish(ground)
    documents = os.fsencode(ground.home / "Documents")
    (ground.home / "Documents/deep/er").mkdir(parents=True)
    command = ["sh", "-c", 'cat "$1"/letter; ls -A "$1"/deep', "sh", os.fspath(ground.home / "Documents")]
    assert printed(ground.sandbox(readable=(documents,)).run(command)) == "content of Documents/letter\ner\n"
    sandbox = ground.sandbox(readable=(documents,), hidden=(documents + b"/letter", documents + b"/deep"))
    assert printed(sandbox.run(command)) == ""


def test_a_hidden_path_of_the_system_is_hidden(ground: Ground, engine: str) -> None:
    """In a rootfs it is the host's path that is hidden, and nothing of the tree."""
    assert printed(ground.run("cat /etc/hostname"))
    sandbox = ground.sandbox(hidden=(b"/etc/hostname", b"/usr/share/doc"))
    seen = printed(sandbox.run("cat /etc/hostname; ls -A /usr/share/doc"))
    assert bool(seen) == is_rootfs_chosen()


def test_the_playground_persists_and_is_one_per_project(ground: Ground, engine: str) -> None:
    ground.run("echo 1 > ~/playground/note; stat -c %a ~/playground")
    other = ground.home / "other"
    other.mkdir()
    assert printed(ground.sandbox("second").run("cat ~/playground/note")) == "1\n"
    assert printed(ground.sandbox(project=other).run("ls -A ~/playground")) == ""
    assert not (ground.home / "playground").exists()
    (kept,) = (ground.home / ".local/share/unspill/playground").glob("*/note")
    assert kept.read_text() == "1\n"
    assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_a_persons_own_playground_is_left_alone(ground: Ground) -> None:
    own = ground.home / "playground"
    own.mkdir()
    (own / "mine").write_text("mine")
    assert printed(ground.run("ls -A ~/playground; echo x > ~/playground/new")) == ""
    assert [path.name for path in own.iterdir()] == ["mine"]


@pytest.mark.view("sealed", "host", reason="in a rootfs it has a place of its own")
@pytest.mark.parametrize("view", ["sealed", "host"])
def test_without_a_playground_the_run_says_why(ground: Ground, view: str) -> None:
    project = ground.home / "playground"
    project.mkdir()
    result = ground.sandbox(project=project, view=view).run("true")
    assert result.ok
    assert any(f"There is no playground: the root {project} " in warning for warning in result.warnings)


VIEWS = ["rootfs"] if is_rootfs_chosen() else ["sealed", "host", "rootfs"]


def view_of(name: str) -> dict[str, Any]:
    return {"view": "rootfs", "rootfs": HOST_ROOT} if name == "rootfs" else {"view": name}


def place_in(view: str) -> str:
    return "/playground" if view == "rootfs" else "~/playground"


def kept(ground: Ground) -> Path:
    """Where the person finds it."""
    (found,) = (ground.home / ".local/share/unspill/playground").iterdir()
    return found


@pytest.fixture(params=["beside the home", "in the home"])
def somewhere(request: pytest.FixtureRequest, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """A machine with its state directory elsewhere, or where it is by default: beneath what view `host` shows."""
    if request.param == "in the home":
        monkeypatch.delenv("UNSPILL_STATE_DIR")
    return ground


@pytest.mark.parametrize("view", VIEWS)
def test_the_playground_can_be_written_and_is_kept(view: str, somewhere: Ground, engine: str) -> None:
    sandbox = somewhere.sandbox(**view_of(view))
    result = sandbox.run("pwd; mkdir deep && echo kept > deep/note && rm -f gone", working_dir="playground")
    assert printed(result).strip().endswith("/playground")
    assert not [warning for warning in result.warnings if "playground" in warning]
    assert not result.changes, "it is no part of the project"
    assert printed(sandbox.run(f"cat {place_in(view)}/deep/note; rm -r {place_in(view)}/deep")) == "kept\n"
    assert list(kept(somewhere).iterdir()) == []
    assert not (somewhere.home / "playground").exists(), "nothing is made in the home directory"


@pytest.mark.parametrize("view", VIEWS)
def test_it_is_explained_as_it_is_and_the_printed_command_has_it_too(view: str, somewhere: Ground, engine: str) -> None:
    explained = somewhere.sandbox(**view_of(view)).explain(f"echo pasted > {place_in(view)}/note")
    (line,) = [line for line in explained.splitlines() if "scratch directory that outlives the run" in line]
    assert ": writable from " in line
    command = explained[explained.index("sh <<'UNSPILL'") :]
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (kept(somewhere) / "note").read_text() == "pasted\n"


@pytest.mark.view("sealed", reason="about the view host")
@pytest.mark.parametrize("own", ["directory", "file", "link", "dangling"])
def test_what_the_person_has_there_is_neither_seen_nor_touched(own: str, somewhere: Ground, engine: str) -> None:
    place, elsewhere = somewhere.home / "playground", somewhere.home / "elsewhere"
    elsewhere.mkdir()
    if own == "directory":
        place.mkdir()
        (place / "mine").write_text("mine")
    elif own == "file":
        place.write_text("mine")
    else:
        place.symlink_to(elsewhere if own == "link" else somewhere.home / "nowhere")
    before = os.lstat(place)
    sandbox = somewhere.sandbox(view="host")
    result = sandbox.run("echo x > ~/playground/new; ls -A ~/playground")
    if engine == "native" and own != "directory":
        assert any("There is no playground: " in warning for warning in result.warnings)
    else:
        assert printed(result) == "new\n"
        assert (kept(somewhere) / "new").read_text() == "x\n"
    assert not list(elsewhere.iterdir())
    assert os.lstat(place)[:9] == before[:9]
    assert not (somewhere.home / "nowhere").exists()


@pytest.mark.view("sealed", reason="about the view host")
def test_the_rest_of_the_home_stays_read_only_in_the_host_view(somewhere: Ground, engine: str) -> None:
    (somewhere.home / "letter").write_text("mine")
    sandbox = somewhere.sandbox(view="host")
    for text in (
        "echo x > ~/letter",
        "echo x > ~/new",
        "mkdir ~/other",
        "rmdir ~/playground",
        "mv ~/playground ~/other",
        f"echo x > {kept(somewhere) if sandbox.run('true').ok else ''}/behind",
        "touch ~/.local/share/unspill/x",
    ):
        assert not sandbox.run(text).ok, text
    assert (somewhere.home / "letter").read_text() == "mine"
    assert sorted(path.name for path in somewhere.home.iterdir()) == [".local", "letter", "project"]
    assert list(kept(somewhere).iterdir()) == []


@pytest.fixture
def outside_tmp(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """A machine whose home does not lie in /tmp, where the directories of tests are: that is to be kept itself."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as top:
        home = Path(top, "home")
        (home / "project").mkdir(parents=True)
        monkeypatch.setenv("HOME", os.fspath(home))
        yield dataclasses.replace(ground, home=home, project=home / "project")


@pytest.mark.view("sealed", reason="about the view host")
def test_temporary_files_that_outlive_a_run_do_so_in_the_host_view(outside_tmp: Ground, engine: str) -> None:
    """They lie beneath the home directory as well, and were read-only where that is shown."""
    sandbox = outside_tmp.sandbox(view="host", tmp="persistent")
    assert printed(sandbox.run("echo 1 > /tmp/note; cat /tmp/note")) == "1\n"
    assert printed(sandbox.run("cat /tmp/note")) == "1\n"


@pytest.mark.view("sealed", reason="about the view host")
def test_the_profile_strict_lets_it_be_written_too(ground: Ground, engine: str) -> None:
    for view in ("sealed", "host"):
        sandbox = ground.sandbox(view=view, profile="strict")
        assert printed(sandbox.run("echo x > ~/playground/x && cat ~/playground/x")) == "x\n"
