# SPDX-License-Identifier: Apache-2.0
"""What `unspill run` loads: starting must cost little more than starting Python."""

import json
import subprocess
import sys

HEAVY = (
    "typing dataclasses enum re json contextlib functools collections pathlib argparse subprocess socket threading "
    "asyncio inspect tempfile shutil logging datetime signal tomllib hashlib difflib secrets random"
).split()

LOADED = """
import json, sys
import unspill.cli.main, unspill.cli.run, unspill.cli.choosing, unspill.sandbox.sandbox
print(json.dumps(sorted(sys.modules)))
"""


def test_nothing_heavy_is_loaded_on_the_way_of_a_run() -> None:
    bare = {"sys", "builtins"}
    done = subprocess.run([sys.executable, "-I", "-S", "-c", "import json, sys; print(json.dumps(sorted(sys.modules)))"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    bare |= set(json.loads(done.stdout))
    environment = [path for path in sys.path if path]
    program = f"import sys; sys.path[:0] = {environment!r}\n" + LOADED.replace("import json, sys\n", "", 1)
    program = program.replace("print(json.dumps(sorted(sys.modules)))", "print(*sorted(sys.modules))")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "unspill.sandbox.sandbox" in loaded
    assert sorted(name for name in HEAVY if name in loaded and name not in bare - set(HEAVY)) == []
