# SPDX-License-Identifier: Apache-2.0
"""Probes this host through something that takes features away: a mask of ours, or another sandbox."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from unspill.host.bwrap import facts_from_text
from unspill.model.plan import Facts

MASKS = Path(__file__).with_name("masks.py")
ASK = """
import os, sys
from unspill.host.probe import probe
from unspill.host.bwrap import facts_to_text
sys.stdout.write(facts_to_text(probe(os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2]))))
"""


def asked_through(wrapper: Sequence[str | Path], bwrap: bytes, state: Path) -> Facts:
    """Probe in a process that was started through `wrapper`."""
    command = [*wrapper, sys.executable, "-c", ASK, os.fsdecode(bwrap), state]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    facts = facts_from_text(done.stdout)
    assert facts is not None
    return facts


def masked(masks: Sequence[str], bwrap: bytes, state: Path) -> Facts:
    """Probe without the features that `masks.py` takes away."""
    return asked_through([sys.executable, MASKS, *masks, "--"], bwrap, state)


def nested(bwrap: bytes, state: Path, *options: str) -> list[str | Path]:
    """Return a wrapper that is a sandbox with everything in it, writable only at `state`."""
    sealed = ["--unshare-user", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    return [os.fsdecode(bwrap), *sealed, "--bind", state, state, *options, "--"]
