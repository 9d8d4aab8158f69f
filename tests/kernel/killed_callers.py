# SPDX-License-Identifier: Apache-2.0
"""Processes that have a run going on, to be killed: what the tests of that share."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import VIEW_LINES, Ground, lasting

Callers = list["subprocess.Popen[bytes]"]

CALLER = (
    VIEW_LINES
    + """
import json, os, sys
from unspill import Callback, Limits, OutputChunk, Policy, Sandbox
project, bwrap, name, command, settings = sys.argv[1:]
settings = json.loads(settings)
limits = Limits(**settings.pop("limits", {}))
options = settings.pop("options", {})
settings["roots"] = tuple(map(os.fsencode, settings.pop("roots", ())))
policy = Policy(**VIEW, bwrap=os.fsencode(bwrap), **settings)
sandbox = Sandbox(project, name=name, policy=policy, approver=Callback(lambda question: "once"))

def tell(event):
    if isinstance(event, OutputChunk):
        os.write(1, event.chunk)

print(sandbox.run(command, on_event=tell, limits=limits, **options).outcome)
"""
)


@pytest.fixture
def callers() -> Iterator[Callers]:
    """The processes that a test starts; they go with it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for caller in started:
        caller.kill()
        caller.wait()
        assert caller.stdout is not None
        caller.stdout.close()


def start(callers: Callers, ground: Ground, command: str, name: str = "default", **settings: Any) -> int:
    """Start a process with a run, wait until its command has written all, and return its pid."""
    script = f"{command}; echo written; sleep {lasting()}"
    words = (sys.executable, "-c", CALLER, ground.project, os.fsdecode(ground.bwrap), name, script)
    settings = {"engine": ground.engine, **settings}
    callers.append(subprocess.Popen([*words, json.dumps(settings)], stdout=subprocess.PIPE))
    assert callers[-1].stdout is not None
    assert callers[-1].stdout.readline() == b"written\n"
    return callers[-1].pid


def kill(callers: Callers, ground: Ground, command: str, name: str = "default", **settings: Any) -> None:
    """Have a process killed while its run goes on."""
    start(callers, ground, command, name, **settings)
    callers[-1].kill()
    callers[-1].wait()
