# SPDX-License-Identifier: Apache-2.0
"""What it costs to hear of every file that a command names: more than a tenth, so it is asked for."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests.figures import record_figure
from unspill import Exited

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = pytest.mark.kernel

HEAVY: Final = {
    "tar, 5,000 small files": "mkdir out && tar -xf many.tar -C out",
    "git status, 5,000 files": "git status > /dev/null",
    "gcc, 8 files": "for i in 1 2 3 4 5 6 7 8; do gcc -c main.c -o $i.o; done",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_it_costs_is_known(ground: Ground, full: bool) -> None:
    """File-heavy commands with and without, by turns, in open sandboxes. More than a tenth, so it is off by default."""
    setup = """
    mkdir many; cd many; i=0
    while [ $i -lt 5000 ]; do echo $i > f$i; i=$((i+1)); done; cd ..; tar -cf many.tar many
    git init -q .; git add many; git -c user.name=a -c user.email=a@example.org commit -qm x
    printf '#include <%s.h>\\n' stdio stdlib unistd string > main.c
    echo 'int main(void) { return puts("x"); }' >> main.c
    """
    assert ground.sandbox(after="apply").run(setup).ok
    sandboxes = {name: ground.sandbox(str(name), after="discard", explain=name) for name in (False, True)}
    for what, command in HEAVY.items():
        took: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(5 if full else 3):
            for name, sandbox in sandboxes.items():
                begun = time.monotonic()
                result = sandbox.run(command)
                took[name].append(time.monotonic() - begun)
                assert result.outcome == Exited(code=0)
        plain, explained_s = (statistics.median(took[name]) for name in (False, True))
        record_figure(
            f"explained file accesses: {what}",
            f"{explained_s / plain:.2f} times",
            f"{explained_s * 1000:.0f} ms against {plain * 1000:.0f} ms; off by default",
        )
        print(f"{what}: {explained_s / plain:.2f} times")
