# SPDX-License-Identifier: Apache-2.0
"""A store, a project and a sandbox of it; and a way to leave layers as a real mount would."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.layers.ground import Ground
from unspill.store.db import Store


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    (tmp_path / "project").mkdir()
    base = os.fsencode(tmp_path)
    with Store.open(base + b"/state") as store:
        project = base + b"/project"
        yield Ground(store, project, store.sandboxes.get_or_create(project, "default", 1, 2))
