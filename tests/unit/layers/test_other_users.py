# SPDX-License-Identifier: Apache-2.0
"""A26: another user of the host can neither read nor replace anything of ours."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.layers.ground import Ground, upper, write
from unspill.errors import StoreError
from unspill.store.db import Store

pytestmark = pytest.mark.root

OWNER, STRANGER = "unspill-ci", "unspill-other"


def as_user(name: str, act: Callable[[], object]) -> bool:
    """Do something as another user, in a process of its own; tell whether it was possible."""
    pid = os.fork()
    if pid == 0:
        try:
            user = pwd.getpwnam(name)
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            act()
            os._exit(0)
        except (OSError, StoreError):
            os._exit(1)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1)
    return code == 0


@pytest.fixture
def state(tmp_path: Path) -> bytes:
    """A state directory of an ordinary user with a layer whose root everyone may write, made without a umask."""
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "project").chmod(0o777)
    for path in (home, home / "project"):
        os.chown(path, pwd.getpwnam(OWNER).pw_uid, pwd.getpwnam(OWNER).pw_gid)

    def fill() -> None:
        os.umask(0)
        store = Store.open(os.fsencode(home / "state"))
        project = os.fsencode(home / "project")
        ground = Ground(store, project, store.sandboxes.get_or_create(project, "default", 1, 2))
        opened = ground.open()
        write(upper(opened) + b"/file", b"content")
        os.chmod(upper(opened) + b"/file", 0o666)
        store.close()

    assert as_user(OWNER, fill)
    return os.fsencode(home / "state")


def attempts(state: bytes, layer: bytes) -> dict[str, Callable[[], object]]:
    return {
        "list the directory": lambda: os.listdir(state),
        "list the layers": lambda: os.listdir(state + b"/layers"),
        "read the database": lambda: os.open(state + b"/store.db", os.O_RDONLY),
        "read a file of a layer": lambda: os.open(layer + b"/file", os.O_RDONLY),
        "write a file of a layer": lambda: os.open(layer + b"/file", os.O_WRONLY),
        "add a file to a layer": lambda: write(layer + b"/planted"),
        "take a lock": lambda: os.open(state + b"/locks/0123456789abcdef", os.O_CREAT | os.O_RDWR),
        "replace the directory": lambda: os.rename(state, state + b".old"),
        "open the store": lambda: Store.open(state),
    }


def test_another_user_reaches_nothing_of_the_state(state: bytes) -> None:
    (layer,) = (os.path.join(state, b"layers", name) for name in os.listdir(state + b"/layers"))
    assert os.stat(layer).st_mode & 0o777 == 0o777
    tried = attempts(state, layer)
    assert [what for what, act in tried.items() if as_user(STRANGER, act)] == []
    assert as_user(OWNER, tried["read a file of a layer"])


def test_without_the_private_directories_another_user_reaches_the_layers(state: bytes) -> None:
    (layer,) = (os.path.join(state, b"layers", name) for name in os.listdir(state + b"/layers"))
    os.chmod(state, 0o755)
    os.chmod(state + b"/layers", 0o755)
    tried = attempts(state, layer)
    reached = [what for what, act in tried.items() if as_user(STRANGER, act)]
    assert reached == [
        "list the directory",
        "list the layers",
        "read a file of a layer",
        "write a file of a layer",
        "add a file to a layer",
    ]


def test_a_directory_that_another_user_made_beforehand_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o1777)
    trap = os.fsencode(public / "state")
    assert as_user(STRANGER, lambda: os.mkdir(trap, 0o700))
    assert not as_user(OWNER, lambda: Store.open(trap))
    assert as_user(OWNER, lambda: Store.open(os.fsencode(public / "own")))
