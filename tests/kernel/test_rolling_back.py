# SPDX-License-Identifier: Apache-2.0
"""An apply that a crash interrupted is rolled back by the next command, unless that would cost somebody their work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ground
from unspill import Sandbox
from unspill.apply import recover
from unspill.apply.journal import Journal, read_journal
from unspill.model.operation import Operation

pytestmark = pytest.mark.kernel

# Dies when everything is done and nothing of that is recorded
CRASH = """
import os, sys
from unspill import Sandbox
from unspill.apply import operate
operate.write_end = lambda *_rest, **_options: os._exit(9)
Sandbox(sys.argv[1]).apply()
"""


def crash(sandbox: Sandbox) -> None:
    """Apply what is held in a process that dies at the end of it."""
    done = subprocess.run([sys.executable, "-c", CRASH, os.fsdecode(sandbox.project)], check=False)
    assert done.returncode == 9


def recovered(ground: Ground, sandbox: Sandbox) -> Operation:
    """Do what the next command does first; return what became of the apply."""
    (operation,) = ground.sandbox(project=Path(os.fsdecode(sandbox.project))).recovered
    assert operation.ending == "rolled back"
    return operation


@pytest.mark.parametrize("is_same", [True, False], ids=["the same inode", "another inode"])
def test_an_apply_before_a_reboot_is_rolled_back_though_the_device_has_another_number(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    """A changed journal stands for the reboot. The control arm: with another inode it is another directory."""
    ground.write("changed", "mine")
    ground.write("deleted", "mine")
    sandbox = ground.sandbox(after="hold")
    assert sandbox.run("echo agent > changed; rm deleted; echo agent > new").held
    crash(sandbox)

    def read(path: bytes) -> Journal | None:
        journal = read_journal(path)
        if journal is None:
            return None
        moved = tuple((device + 1, inode + (not is_same)) for device, inode in journal.identities)
        return journal.replace(identities=moved)

    monkeypatch.setattr(recover, "read_journal", read)
    assert bool(recovered(ground, sandbox).left) != is_same
    names = {path.name: path.read_text() for path in ground.project.iterdir() if path.is_file()}
    assert names == ({"changed": "mine", "deleted": "mine"} if is_same else {"changed": "agent\n", "new": "agent\n"})
