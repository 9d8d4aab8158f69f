# SPDX-License-Identifier: Apache-2.0
"""What every run needs of the layers loads nothing that the command line can't afford."""

import subprocess
import sys

NEEDED = "lifecycle locks"

# `functools` and `collections` come with SQLite's own module; `ctypes` every run needs, to look at what it changed.
HEAVY = set(
    "typing dataclasses enum re json contextlib pathlib argparse subprocess socket threading asyncio inspect"
    " tempfile shutil logging datetime signal tomllib hashlib difflib secrets random sqlite3".split()
)


def test_opening_and_closing_a_run_loads_nothing_heavy() -> None:
    imports = "; ".join(f"import unspill.layers.{name}" for name in NEEDED.split())
    program = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}; {imports}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True, text=True)
    assert HEAVY & set(done.stdout.split()) == set()
