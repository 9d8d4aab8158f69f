# SPDX-License-Identifier: Apache-2.0
"""Eighty secrets are planted all over a machine, and one command looks for them all by every means."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena, python
from tests.attack.canaries import Canary, planted, search, table
from unspill.model.policy import Secrets

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

CANARIES = table()
BEGINNING = CANARIES[0].word.rpartition("-")[0]
IN_CONFIG = Secrets(directories=(b"config",))


def found_by(text: str) -> set[Canary]:
    """Return the canaries that a search says it has won."""
    won = {line.split()[1] for line in text.splitlines() if line.startswith("WON ")}
    return {canary for canary in CANARIES if canary.word in won}


def in_state(ground: Ground) -> set[str]:
    """Return the words of canaries that lie anywhere in the state directory."""
    words = ["grep", "-rhoaE", BEGINNING + "-[0-9]{3}", os.fspath(ground.state)]
    return set(subprocess.run(words, capture_output=True, text=True, check=False).stdout.split())


def test_there_are_at_least_thirty_and_each_is_one_of_a_kind() -> None:
    assert len(CANARIES) >= 30
    assert len({canary.word for canary in CANARIES}) == len(CANARIES) == len({(c.kind, c.where) for c in CANARIES})


def test_a8_none_of_eighty_canaries_is_found_inside_nor_left_in_any_record(arena: Arena, engine: str) -> None:
    """Plant secrets in files, variables, processes, descriptors, sockets, a keyring, shared memory, the project and our
    own directories; read, grep, connect and ask for them all inside; then grep output, plan, records and state.
    Control: the same search on the host itself finds every single one."""
    ground = arena.ground
    with planted(ground, CANARIES, arena.patch) as made:
        sandbox = ground.sandbox(after="apply", secrets=IN_CONFIG)
        attempt = arena.attack(search(ground, CANARIES, made, ("/",)), sandbox=sandbox)
        assert attempt.won == ()
        result = attempt.result
        assert sandbox.run("echo x > new && mkdir made && echo y > made/new").ok
        sandbox.undo()
        texts = [result.stdout.kept(), result.stderr.kept(), repr(result).encode(), repr(sandbox.runs()).encode()]
        texts += [sandbox.explain("true").encode(), sandbox.diff().encode()]
        assert [text for text in texts if BEGINNING.encode() in text] == []
        assert in_state(ground) == {canary.word for canary in CANARIES if canary.kind in ("own", "held")}
        missed = set(CANARIES) - found_outside(ground, search(ground, CANARIES, made, (os.fspath(ground.top),)))
    assert missed == set()


def found_outside(ground: Ground, script: str) -> set[Canary]:
    """Run the search as a person's own command would run: with every variable and descriptor of the caller."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", python(script)[-1]],
        cwd=ground.project,
        capture_output=True,
        text=True,
        check=True,
        close_fds=False,
        timeout=30,
    )
    return found_by(done.stdout)


def test_a8_canaries_that_are_known_secrets_are_not_found_in_view_host(arena: Arena, engine: str) -> None:
    """The same search in view `host`, where the home directory is shown, for all but ordinary files of the person.
    Control: the search of the sealed view has shown on the host that it finds every single one."""
    ordinary = {"Documents/taxes.txt", "other-project/.env", "other-project/src/main.py", ".Xauthority"}
    ordinary |= {".local/share/klipper/history2.lst", "/var/tmp", "/tmp", "/dev/shm"}
    ground = arena.ground
    with planted(ground, CANARIES, arena.patch) as made:
        script = search(ground, CANARIES, made, (os.fspath(ground.top),))
        attempt = arena.attack(script, view="host", secrets=IN_CONFIG)
    assert {canary.where for canary in found_by("\n".join(attempt.lines))} <= ordinary
