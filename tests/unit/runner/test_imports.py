# SPDX-License-Identifier: Apache-2.0
"""What `unspill run` and the layers load: starting must cost little more than starting Python."""

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


NEEDED = "lifecycle locks"

# `functools` and `collections` come with SQLite's own module; `ctypes` every run needs, to look at what it changed,
# and on Python 3.14 it loads `threading`.
HEAVY_FOR_LAYERS = set(
    "typing dataclasses enum re json contextlib pathlib argparse subprocess socket threading asyncio inspect"
    " tempfile shutil logging datetime signal tomllib hashlib difflib secrets random sqlite3".split()
)


def test_opening_and_closing_a_run_loads_nothing_heavy() -> None:
    loaded = loaded_by(", ".join(f"unspill.layers.{name}" for name in NEEDED.split()))
    assert (loaded - loaded_by("ctypes")) & HEAVY_FOR_LAYERS == set()
