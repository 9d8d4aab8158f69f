# SPDX-License-Identifier: Apache-2.0
"""A project with a store in which operations can be done."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sandbox.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path)
    yield made
    made.store.close()
