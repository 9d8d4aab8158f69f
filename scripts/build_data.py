# SPDX-License-Identifier: Apache-2.0
"""Adds to a wheel what is made from the tables of the command line: manual pages, and completions for three shells."""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPLETIONS = {
    "bash": "share/bash-completion/completions/unspill",
    "zsh": "share/zsh/site-functions/_unspill",
    "fish": "share/fish/vendor_completions.d/unspill.fish",
}


class DataHook(BuildHookInterface):
    """Writes these files for one build, and removes them afterwards."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files, and name them to the build."""
        del version
        sys.path.insert(0, str(Path(self.root, "src")))
        from unspill.cli.completion import SCRIPTS
        from unspill.cli.manual import pages

        date = time.strftime("%Y-%m-%d", time.gmtime(float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())))
        self._place = tempfile.TemporaryDirectory()
        files = {f"share/man/man1/{name}": text for name, text in pages(date).items()}
        files |= {COMPLETIONS[shell]: text for shell, text in SCRIPTS.items()}
        for name, text in files.items():
            path = Path(self._place.name, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(path)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files."""
        del version, build_data, artifact_path
        self._place.cleanup()
