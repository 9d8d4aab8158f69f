# SPDX-License-Identifier: Apache-2.0
"""The plug-in for Claude Code: `claude_code/` beside this file, with the program that its hooks start filled in.

A hook must not look for `unspill` on the PATH: a sealed command may have put another one into a directory of the
project that comes first there. So each start of the agent gets a copy that names this very program.
"""

from __future__ import annotations

import json
import os
from shlex import quote
from tempfile import mkstemp

from unspill.errors import UsageError
from unspill.store.db import make_state_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "claude_code")
_FILES = (".claude-plugin/plugin.json", "hooks/hooks.json")
_PROGRAM = "UNSPILL"


def make_plugin(state: bytes, words: Sequence[str]) -> bytes:
    """Write the plug-in into the state directory, where no command can reach it, and return where it is.

    Raises:
        StoreError: the state directory is not ours alone.
        UsageError: it can't be written.
    """
    make_state_dir(state)
    place = os.path.join(state, b"plugins", b"claude-code")
    program = json.dumps(" ".join(map(quote, words)))[1:-1]
    try:
        for name in _FILES:
            with open(os.path.join(_SHIPPED, name), encoding="utf-8") as file:
                text = file.read().replace(_PROGRAM, program)
            path = os.path.join(place, os.fsencode(name))
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            # Another agent may be reading the last one
            descriptor, beside = mkstemp(dir=os.path.dirname(path))
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(beside, path)
    except OSError as error:
        where = os.fsdecode(place)
        raise UsageError(
            f"the plug-in {where} can't be written: {error.strerror}", remedy="Make room there."
        ) from error
    return place
