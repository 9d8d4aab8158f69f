# SPDX-License-Identifier: Apache-2.0
"""The playground is there, writable and kept in every view, with every engine, and nothing else of the home is."""

import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CACHE
from tests.support import HOST_ROOT, Ground, is_rootfs_chosen, printed

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

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
    result = sandbox.run("pwd; mkdir deep && echo kept > deep/note && rm -f gone", cwd="playground")
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
