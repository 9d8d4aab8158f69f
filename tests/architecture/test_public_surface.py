# SPDX-License-Identifier: Apache-2.0
"""What `import unspill` offers is what it lists, and it costs nothing but the standard library."""

import inspect
import json
import subprocess
import sys

import unspill

LOADED = """
import json, sys
before = set(sys.modules)
import unspill
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def test_every_listed_name_can_be_imported() -> None:
    assert [name for name in unspill.__all__ if not hasattr(unspill, name)] == []


def test_every_public_name_is_listed() -> None:
    public = {
        name for name in vars(unspill) if not name.startswith("_") and not inspect.ismodule(getattr(unspill, name))
    }
    machinery = {"TYPE_CHECKING", "annotations"}
    assert public - set(unspill.__all__) == machinery
    assert dir(unspill) == sorted(unspill.__all__)


def test_no_name_is_listed_twice() -> None:
    assert len(unspill.__all__) == len(set(unspill.__all__))


def test_importing_loads_the_standard_library_alone() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOADED], text=True, stdout=subprocess.PIPE, check=True).stdout
    assert set(json.loads(loaded)) - sys.stdlib_module_names == {"unspill"}
