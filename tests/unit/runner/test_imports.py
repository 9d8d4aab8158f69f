# SPDX-License-Identifier: Apache-2.0
"""What `unspill run` loads: starting must cost little more than starting Python."""

import subprocess
import sys

HEAVY = (
    "typing dataclasses enum re json contextlib functools collections pathlib argparse subprocess socket threading "
    "asyncio inspect tempfile shutil logging datetime signal tomllib hashlib difflib secrets random ipaddress"
).split()

WAY = "unspill.cli.main, unspill.cli.run, unspill.sandbox.sandbox"


def loaded_by(modules: str) -> set[str]:
    """Return all that an import loads into a Python as bare as it gets."""
    path = [entry for entry in sys.path if entry]
    program = f"import sys; sys.path[:0] = {path!r}\nimport {modules}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_heavy_is_loaded_on_the_way_of_a_run() -> None:
    loaded = loaded_by(WAY)
    assert "unspill.sandbox.sandbox" in loaded
    # The database's own C module needs functools, and ctypes of Python 3.14 threading; there is no way around either
    assert sorted((loaded - loaded_by("_sqlite3, ctypes")) & set(HEAVY)) == []
