# SPDX-License-Identifier: Apache-2.0
"""Each process of a run is killed at every fifth system call: no process survives, and the next start finds on hold
what the command has written.

A point is a role (how deep a process lies below the caller) and the number of its system calls before it dies.
With --full all points are taken, else some of each role. See `tracing` for how the kill is made exact.
"""

import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.figures import record_figure
from tests.kernel.leftovers import mounts_of, state_problems, tree_of
from tests.kernel.tracing import Order, Traced, trace
from tests.support import VIEW_LINES, Ground, run_cli

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.bwrap]

COMMAND = """
cat kept 2>&1; echo hi > new; echo written; echo hi > ~/.cache/pip/wheel
setsid sleep 1000 & sleep 1000 & (trap '' TERM HUP; setsid sleep 1000 &)
sleep 0.05; echo done
"""
STEP = 5
LATE = (90, 92, 94, 96, 98)

COMMAND_LINE = 'echo >&3; read -r go <&4; exec 3>&- 4<&-; exec unspill run -q --hold -c "$1"'
LIBRARY = (
    VIEW_LINES
    + """
import os, sys
from unspill import Policy, Sandbox
project, bwrap, engine, command = sys.argv[1:]
policy = Policy(**VIEW, bwrap=os.fsencode(bwrap), engine=engine, after="hold")
os.write(3, b"x")
os.read(4, 1)
os.close(3)
os.close(4)
result = Sandbox(project, policy=policy).run(command)
os.write(1, result.stdout.kept())
sys.exit(result.exit_code)
"""
)
LIVE = LIBRARY.replace(
    "result = Sandbox(project, policy=policy).run(command)",
    """with Sandbox(project, policy=policy) as sandbox, sandbox.live() as live:
    beside = live.start("read line")
    result = live.run(command)
    beside.kill()
    assert beside.wait().held""",
)
# The keeper outlives its caller, which is therefore not killed here
KEPT = """
import os, sys
from unspill import Sandbox
from unspill.model.run import OutputChunk
from unspill.sandbox.keeper import KeptSandbox, reach_keeper
project, command = sys.argv[1], sys.argv[4]
options = {"working_dir": None, "env": {}, "timeout": None, "after": "hold"}
def tell(event):
    if isinstance(event, OutputChunk):
        os.write(1, event.chunk)
os.write(3, b"x")
os.read(4, 1)
os.close(3)
os.close(4)
with Sandbox(project) as sandbox, KeptSandbox(sandbox, reach_keeper(sandbox, lambda: None)) as kept:
    kept.start("read line", **options)
    result = kept.run(command, on_event=tell, **options)
    kept.link.results("stop")
    sys.exit(result.exit_code)
"""
DEFENCELESS = "import unspill.host.job as strays; strays.kill_strays = lambda *runs, **options: 0\n"
MOUNT_ROLES = ("caller", "spawner's parent", "spawner", "bwrap", "sandbox's pid 1", "command", "its children")
LIVE_ROLES = ("caller", "spawner's parent", "spawner", "bwrap, door", "pid 1, commands", "their children")
KEPT_ROLES = ("caller", "keeper", "spawner's parent", "spawner", "bwrap, door", "pid 1, commands", "their children")
SHARED_ROLES = ("caller", "spawner", "bwrap", "sandbox's pid 1", "command", "its children")

OF_LIVE = {"live sandbox": LIVE_ROLES, "keeper": KEPT_ROLES}

Point = tuple[int, int]


@dataclass(frozen=True)
class Scenario:
    """One way to have a run, on one machine; `roles` are its processes by their depth below the caller."""

    ground: Ground
    way: str
    engine: str = "mount"

    @property
    def roles(self) -> tuple[str, ...]:
        if self.way in OF_LIVE:
            return OF_LIVE[self.way]
        return MOUNT_ROLES if self.engine == "mount" else SHARED_ROLES

    def trace(self, depth: int | None = None, at: int = 0, victim: int | None = None) -> Traced:
        """Have one run, and kill a process of it, or another one at that moment, if a depth is given."""
        project, bwrap = os.fspath(self.ground.project), os.fsdecode(self.ground.bwrap)
        argv = ["/bin/sh", "-c", COMMAND_LINE, "sh", COMMAND]
        if self.way != "command line":
            ways = {"library": LIBRARY, "live sandbox": LIVE, "keeper": KEPT}
            program = ways.get(self.way, DEFENCELESS + LIBRARY)
            argv = [sys.executable, "-c", program, project, bwrap, self.engine, COMMAND]
        return trace(
            Order(
                argv=argv,
                cwd=project,
                environ=dict(os.environ),
                depth=depth,
                at=at,
                victim=victim,
                grace_s=2.0,
                limit_s=30.0,
            )
        )

    def counts(self) -> Counter[int]:
        """Return the number of system calls by depth in a run that nobody disturbs."""
        traced = self.trace()
        assert traced["status"] == 0, traced["output"]
        assert traced["survivors"] == []
        return Counter({int(depth): count for depth, count in traced["counts"].items()})

    def points(self, *, step: int | None, of_each: int) -> list[Point]:
        """Return every `step`-th system call of each process, or some of each."""
        chosen: list[Point] = []
        counts = []
        for _ in range(3):
            # A run over another held layer has more system calls
            hold_something(self.ground)
            counts.append(self.counts())
        # What all of three runs had: under load one may have a process or some system calls more than others
        for depth, count in sorted((counts[0] & counts[1] & counts[2]).items()):
            some = {count * (2 * part + 1) // (2 * of_each) + 1 for part in range(of_each)}
            # Most that a caller does is to start; what it does when the command has ended is in its last tenth
            some |= {count * part // 100 for part in LATE} if depth == 0 else set()
            chosen += [(depth, number) for number in (range(step, count + 1, step) if step else sorted(some))]
        return chosen

    def role(self, depth: int) -> str:
        return self.roles[min(depth, len(self.roles) - 1)]


def prepare(ground: Ground) -> dict[str, tuple[int, int, int, bytes]]:
    """Make a project with a held layer and a tool cache; return what the project is like."""
    ground.write("file", "content")
    (ground.home / ".cache" / "pip").mkdir(parents=True)
    hold_something(ground)
    return tree_of(ground.project)


def hold_something(ground: Ground) -> None:
    """Leave one held layer, which every kill must leave alone."""
    sandbox = ground.sandbox()
    sandbox.discard()
    assert sandbox.run("echo precious > kept").held
    sandbox.close()


def unlike(ground: Ground, before: object, traced: Traced) -> list[str]:
    """Return what is wrong after a kill, before anything is started again."""
    problems = [f"survivor: {survivor}" for survivor in traced["survivors"]]
    if traced["status"] == 0 and "done" not in traced["output"].splitlines():
        problems.append(f"called a success: {traced['output']!r}")
    if tree_of(ground.project) != before:
        problems.append("the project was changed")
    return problems + [f"mount: {mount}" for mount in mounts_of(ground.top)]


def unswept(ground: Ground, traced: Traced, expected: bytes) -> list[str]:
    """Start unspill again in a new process; return what is wrong then."""
    result = run_cli("run", "-q", "--discard", "-c", "cat kept; cat new; true", cwd=ground.project)
    # What was written may be held without being told of, but not the other way round
    is_lost = "written" in traced["output"].splitlines() and not result.stdout.endswith(b"hi\n")
    problems = ["what the command has written is lost"] if is_lost else []
    problems += [] if result.stdout in (expected, expected + b"hi\n") else [f"the next run failed: {result}"]
    return problems + [f"unswept: {problem}" for problem in state_problems(ground.state)]


def kill_at(scenario: Scenario, points: list[Point]) -> tuple[Counter[str], list[Point], list[str]]:
    """Kill at each point; return the number of kills by role, the points that did not come up, and what went wrong."""
    ground = scenario.ground
    before = tree_of(ground.project)
    kills: Counter[str] = Counter()
    missed = []
    problems = []
    for depth, number in points:
        traced = scenario.trace(depth, number)
        missed += [] if traced["killed"] else [(depth, number)]
        kills[scenario.role(depth)] += traced["killed"]
        found = [*unlike(ground, before, traced), *unswept(ground, traced, b"precious\n")]
        problems += [f"{scenario.role(depth)}, system call {number}: {problem}" for problem in found]
        # So that what one run has written is not taken for what the next has
        hold_something(ground)
    return kills, missed, problems


def record(name: str, kills: Counter[str], problems: list[str], step: int) -> None:
    by_role = ", ".join(f"{role} {count}" for role, count in kills.items())
    survivors = sum("survivor" in problem for problem in problems)
    record_figure(
        f"kill points, {name}",
        f"{kills.total()} kills: {survivors} survivors, {len(problems) - survivors} other problems",
        f"SIGKILL at every {step}th system call ({by_role})",
    )


@pytest.mark.parametrize("way", ["command line", "library", "live sandbox"])
def test_a_kill_at_any_system_call_of_a_run_leaves_what_it_has_written_on_hold(
    ground: Ground, way: str, full: bool
) -> None:
    """The time buys one traced run for each kill: a few for each process here, every fifth call with `--full`."""
    prepare(ground)
    scenario = Scenario(ground, way)
    points = scenario.points(step=STEP if full else None, of_each=2)
    kills: Counter[str] = Counter()
    missed = points
    # Which calls there are depends on who runs first: on a busy machine some points do not come up at once
    for _ in range(6):
        struck, missed, problems = kill_at(scenario, missed)
        kills += struck
        assert problems == []
        if len(missed) < 0.1 * len(points):
            break
    record(way, kills, problems, STEP)
    assert set(kills) == set(scenario.roles)
    assert kills.total() >= (200 if full else 10)
    assert kills.total() > 0.9 * len(points)


def test_a_kill_of_a_keeper_or_of_what_it_has_alive_leaves_what_was_written_on_hold(ground: Ground, full: bool) -> None:
    """The time buys one keeper for each kill: few here, one for every fifth call with `--full`."""
    prepare(ground)
    scenario = Scenario(ground, "keeper")
    counts = scenario.counts()
    hold_something(ground)
    if full:
        points = [point for point in scenario.points(step=STEP, of_each=1) if point[0]]
    else:
        # Its last calls are those that hold and end
        parts = {depth: (3, 9) if depth == 1 else (5,) for depth in range(1, len(KEPT_ROLES) - 1)}
        points = [(depth, counts[depth] * part // 10) for depth, some in parts.items() for part in some]
    kills: Counter[str] = Counter()
    missed = points
    for _ in range(6):
        struck, missed, problems = kill_at(scenario, missed)
        kills += struck
        assert problems == []
        if len(missed) < 0.1 * len(points):
            break
    record("keeper", kills, problems, STEP)
    assert set(kills) == {scenario.role(depth) for depth, _number in points}
    assert kills.total() > 0.9 * len(points)


def test_a_kill_leaves_nothing_where_the_spawner_has_no_namespace_of_its_own(
    without_own_namespace: Ground, full: bool
) -> None:
    """The time buys one traced run for each kill, where no namespace ends what is left."""
    prepare(without_own_namespace)
    scenario = Scenario(without_own_namespace, "library", "native")
    points = scenario.points(step=5 * STEP if full else None, of_each=1)
    kills, _missed, problems = kill_at(scenario, points)
    record("engine native without a namespace", kills, problems, 5 * STEP)
    assert problems == []
    assert set(kills) == set(scenario.roles)


@pytest.mark.parametrize("way", ["library", "library without the search for strays"])
def test_a_spawner_without_a_namespace_that_dies_while_a_run_starts_up_takes_it_along(
    without_own_namespace: Ground, full: bool, way: str
) -> None:
    """The control arm lets the caller not look for what has lost its spawner."""
    prepare(without_own_namespace)
    scenario = Scenario(without_own_namespace, way, "native")
    spawner, init = SHARED_ROLES.index("spawner"), SHARED_ROLES.index("sandbox's pid 1")
    count = scenario.counts()[init]
    steps = range(5, count, 10) if full else range(count // 8, count, count // 4)
    survivors = [traced["survivors"] for at in steps if (traced := scenario.trace(init, at, spawner))["killed"]]
    assert len(survivors) > 2
    assert any(survivors) is (way != "library"), survivors


def test_a_kill_in_the_very_first_start_leaves_nothing(ground: Ground, full: bool) -> None:
    """The time buys one first start for each kill, in which everything has to be made."""
    (ground.home / ".cache" / "pip").mkdir(parents=True)
    before = tree_of(ground.project)
    scenario = Scenario(ground, "command line")
    shutil.rmtree(ground.state)
    counts = scenario.counts()
    kills: Counter[str] = Counter()
    problems = []
    step = 5 * STEP
    for depth, count in counts.items():
        for number in range(step, count, step) if full else [count // 2]:
            shutil.rmtree(ground.state, ignore_errors=True)
            traced = scenario.trace(depth, number)
            kills[f"{depth} below" if depth else "caller"] += traced["killed"]
            found = [*unlike(ground, before, traced), *unswept(ground, traced, b"")]
            problems += [f"depth {depth}, system call {number}: {problem}" for problem in found]
    record("first start", kills, problems, step)
    assert problems == []


def test_the_tracer_sees_what_survives() -> None:
    """The control arm: a daemon that nobody holds by a namespace outlives its killed parent."""
    argv = ["/bin/sh", "-c", "echo >&3; read -r go <&4; setsid sleep 1000 & while :; do sleep 0.01; done"]
    order = Order(argv=argv, cwd="/", environ={}, depth=0, at=60, victim=None, grace_s=0.3, limit_s=10.0)
    traced = trace(order)
    assert traced["killed"]
    assert traced["survivors"] == ["depth 1 sleep (S)"]


def test_what_is_unswept_is_seen(ground: Ground) -> None:
    """The control arm of the sweep: a killed caller does leave a layer and a row until the next start."""
    prepare(ground)
    scenario = Scenario(ground, "library")
    caller = scenario.counts()[0]
    seen = []
    for part in (0.3, 0.4, 0.5):
        traced = scenario.trace(0, int(caller * part))
        assert traced["killed"]
        seen.append(state_problems(ground.state))
        assert unswept(ground, traced, b"precious\n") == []
        hold_something(ground)
    assert any(seen)
