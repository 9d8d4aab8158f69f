# SPDX-License-Identifier: Apache-2.0
"""A store in a directory of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from unspill.store.db import Store


@pytest.fixture
def state(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path / "state")


@pytest.fixture
def store(state: bytes) -> Iterator[Store]:
    with Store.open(state) as store:
        yield store
