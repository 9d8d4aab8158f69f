# SPDX-License-Identifier: Apache-2.0
"""The type checker sees the files that need a framework here, where the frameworks are; all others elsewhere."""

from pathlib import Path

import pytest

from tests.architecture.frameworks import framework_files
from tests.architecture.sources import ROOT
from tests.architecture.test_tools import check

pytestmark = pytest.mark.agents

CACHE = Path.home() / ".cache" / "unspill-tests"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_is_content_with_the_files_that_need_a_framework() -> None:
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "agents").rglob("*.py")}
    check("mypy", "--cache-dir", CACHE / "mypy-agents", *sorted(framework_files() | here))
