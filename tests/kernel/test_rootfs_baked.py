# SPDX-License-Identifier: Apache-2.0
"""A rootfs that root baked into a machine is used by all and changed by nobody; another person's is used by nobody."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.rootfs_strikes import Scene, make_archive, variables
from unspill.errors import RootfsUnsafe

pytestmark = pytest.mark.root

PERSON = 54321  # a uid and gid that nobody has
OTHER = 54322


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A rootfs that root made, in a place that everybody can reach."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    scene = Scene(top)
    make_archive(scene.archive)
    old = os.umask(0o077)
    scene.prepare()
    os.umask(old)
    yield scene
    shutil.rmtree(top)


def as_person(scene: Scene, action: str) -> dict[str, Any]:
    """Do something as an ordinary person."""
    done = subprocess.run(
        scene.words(action),
        env=variables(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
        user=PERSON,
        group=PERSON,
        extra_groups=[],
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_an_ordinary_person_uses_what_root_baked(scene: Scene) -> None:
    (rootfs,) = scene.registry.list()
    expected = {"name": rootfs.name, "inode": os.stat(rootfs.tree).st_ino}
    assert as_person(scene, "prepare") == expected
    assert as_person(scene, "hold") == expected
    assert scene.builds() == 1


@pytest.mark.parametrize("action", ["another", "remove", "upgrade", "use"])
def test_an_ordinary_person_changes_nothing_of_it(scene: Scene, action: str) -> None:
    answer = as_person(scene, action)
    assert "is read-only" in answer["text"]
    assert "ROOTFS_DIR" in answer["remedy"]
    assert len(scene.registry.list()) == 1
    assert scene.staging() == []


@pytest.mark.parametrize("place", ["", "roots"])
def test_a_directory_of_another_person_is_refused_even_to_root(scene: Scene, place: str) -> None:
    directory = os.path.join(os.fsdecode(scene.registry.directory), place)
    os.chown(directory, OTHER, OTHER)
    assert "belongs to another user" in as_person(scene, "prepare")["text"]
    with pytest.raises(RootfsUnsafe, match="belongs to another user"):
        scene.registry.list()
    # The control: as soon as it is root's it can be used
    os.chown(directory, 0, 0)
    assert as_person(scene, "prepare")["name"] == "small-1.0-any"


@pytest.mark.parametrize("place", ["", "tree"])
def test_a_rootfs_that_another_person_planted_is_not_ready(scene: Scene, place: str) -> None:
    directory = os.path.join(os.fsdecode(scene.registry.roots), "small-1.0-any", place)
    os.chown(directory, OTHER, OTHER)
    assert scene.registry.list() == ()
    assert "is read-only" in as_person(scene, "prepare")["text"]
