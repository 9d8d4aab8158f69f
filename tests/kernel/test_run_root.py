# SPDX-License-Identifier: Apache-2.0
"""What only root can prepare: root as the caller, files of another group, control groups that outlive a caller."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.answering import Person, opened
from tests.kernel.leftovers import control_groups, state_problems, within
from tests.support import Ground, kinds, printed, run_cli
from unspill import DeniedError, Policy, Rules, Sandbox
from unspill.errors import RootCallerRefused
from unspill.host.cgroup import Group, make_group, sweep_groups
from unspill.host.probe import probe_cgroup
from unspill.model.policy import Limits

pytestmark = [pytest.mark.kernel, pytest.mark.root]

PERSON = 54321  # a uid and gid that nobody has


def test_root_is_refused_with_the_remedy(ground: Ground) -> None:
    with pytest.raises(RootCallerRefused) as refused:
        ground.sandbox()
    assert "ordinary user" in refused.value.remedy
    done = run_cli("run", "--project", ground.project, "--", "touch", "file", cwd=ground.project)
    assert done.returncode == 125
    assert done.stdout == b""
    assert b"allow_root = true" in done.stderr
    assert list(ground.project.iterdir()) == []


def test_root_is_served_where_the_person_configured_it(ground: Ground, engine: str) -> None:
    ground.write("file", "x")
    sandbox = ground.sandbox(allow_root=True)
    result = sandbox.run("id -u; echo y > file; touch new; chmod 600 new")
    assert printed(result) == "0\n"
    assert kinds(result.changes) == {"file": "modified", "new": "added"}
    assert (ground.project / "file").read_text() == "x"


def test_root_inside_has_no_capability_and_no_way_to_the_kernels_settings(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox(allow_root=True)
    status = printed(sandbox.run("grep ^Cap /proc/self/status"))
    assert {line.split()[1] for line in status.splitlines()} == {"0" * 16}
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    result = sandbox.run("echo '|/tmp/evil' > /proc/sys/kernel/core_pattern")
    assert not result.ok
    assert b"Read-only file system" in result.stderr.kept()
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before
    for attempt in ("mount -t tmpfs x /mnt", "chown 1:1 .", "mknod d c 1 3", "unshare -m true"):
        assert not sandbox.run(attempt).ok, attempt
    assert Path("/etc/shadow").read_text()
    assert sandbox.run("cat /etc/shadow").stdout.total == 0


def test_the_level_is_shown_by_doctor_and_on_each_run(ground: Ground) -> None:
    ground.configure(f'allow_root = true\nbwrap = "{os.fsdecode(ground.bwrap)}"\n')
    done = run_cli("doctor", cwd=ground.project)
    assert done.stdout.startswith(b"Level C: ")
    assert done.returncode == 0
    done = run_cli("run", "--project", ground.project, "--", "true", cwd=ground.project)
    assert done.returncode == 0
    assert b"level C" in done.stderr


def test_a_project_can_not_allow_root_by_itself(ground: Ground) -> None:
    ground.write(".unspill.toml", "allow_root = true\n")
    done = run_cli("run", "--project", ground.project, "--", "true", cwd=ground.project)
    assert done.returncode == 125
    assert b"only your own configuration" in done.stderr


@pytest.fixture
def person() -> Iterator[Path]:
    """A home directory of an ordinary person, outside of root's own temporary directory."""
    top = Path(tempfile.mkdtemp(prefix="unspill-test-", dir="/var/tmp"))
    for path in (top, top / "project", top / "state"):
        path.mkdir(exist_ok=True)
        os.chown(path, PERSON, PERSON)
        path.chmod(0o700)
    yield top
    shutil.rmtree(top)


def as_person(top: Path, program: str) -> str:
    """Run Python as the ordinary person, without a group of root's."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=top / "project",
        user=PERSON,
        group=PERSON,
        extra_groups=[],
        env={**os.environ, "HOME": os.fspath(top), "UNSPILL_STATE_DIR": os.fspath(top / "state")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_of_a_foreign_group_is_explained(person: Path, trusted_bwrap: bytes) -> None:
    path = person / "project" / "foreign"
    path.write_text("x")
    os.chown(path, PERSON, 0)
    program = f"""
from unspill import Policy, Sandbox
sandbox = Sandbox({os.fspath(person / "project")!r}, policy=Policy(bwrap={trusted_bwrap!r}, after="hold"))
result = sandbox.run("echo y >> foreign")
print(result.exit_code, [hint.code for hint in result.hints])
print([hint.remedy for hint in result.hints])
result = sandbox.run("rm foreign")
print(result.exit_code, [(change.path, change.kind) for change in result.changes])
"""
    lines = as_person(person, program).splitlines()
    assert lines[0] == "2 ['foreign-owner']"
    assert "doctor PROJECT" in lines[1]
    # Deleting needs no copy, so it works
    assert lines[2] == "0 [(b'foreign', 'deleted')]"
    assert path.read_text() == "x"


def test_doctor_lists_such_files(person: Path) -> None:
    path = person / "project" / "foreign"
    path.write_text("x")
    os.chown(path, PERSON, 0)
    program = f"""
import subprocess, sys
words = [sys.executable, "-m", "unspill", "doctor", {os.fspath(person / "project")!r}]
print(subprocess.run(words, capture_output=True).stdout.decode())
"""
    text = as_person(person, program)
    assert "belong to another user or group" in text
    assert "foreign" in text


def test_a_policy_object_may_allow_root_too(ground: Ground) -> None:
    with Sandbox(ground.project, policy=Policy(bwrap=ground.bwrap, allow_root=True)) as sandbox:
        assert sandbox.run("true").ok


ASKED = Rules(as_root="ask")


def test_root_is_not_asked_about_by_default(ground: Ground) -> None:
    person = Person()
    with pytest.raises(RootCallerRefused):
        opened(ground, person)
    assert person.asked == []


def test_root_is_served_after_a_yes(ground: Ground) -> None:
    person = Person()
    assert printed(opened(ground, person, permissions=ASKED).run("id -u")) == "0\n"
    assert person.texts == ["Open a sandbox as root, where it protects less?"]
    assert person.asked[0].request.is_dangerous


def test_root_is_refused_after_a_no(ground: Ground) -> None:
    with pytest.raises(DeniedError, match="Open a sandbox as root"):
        opened(ground, Person(False), permissions=ASKED)


def test_root_is_refused_where_nobody_answers(ground: Ground) -> None:
    with pytest.raises(RootCallerRefused):
        ground.sandbox(permissions=ASKED)


def test_an_answer_for_root_can_be_remembered(ground: Ground) -> None:
    person = Person("always")
    for _ in range(2):
        assert opened(ground, person, permissions=ASKED).run("true").ok
    assert len(person.asked) == 1


KILLED = """
import os, sys
from unspill import Policy, Sandbox, Started
def on_event(event):
    if isinstance(event, Started):
        os.kill(os.getpid(), 9)
policy = Policy(bwrap=os.fsencode(sys.argv[2]), allow_root=True)
Sandbox(sys.argv[1], policy=policy).run("sleep 1000", on_event=on_event)
"""


# Tests beside this one have groups too
OTHERS, DEAD = f"somebody-else-{os.getpid()}", f"dead-run-{os.getpid()}"


def made(run: str) -> Group:
    group = make_group(probe_cgroup().kind, run, Limits())
    assert group is not None
    return group


@pytest.fixture
def foreign() -> Iterator[Group]:
    """The group of somebody else's run that is about to begin."""
    group = made(OTHERS)
    yield group
    group.remove()


def test_the_next_start_removes_the_group_of_a_killed_caller(ground: Ground, foreign: Group) -> None:
    before = control_groups()
    done = subprocess.run([sys.executable, "-c", KILLED, ground.project, ground.bwrap], check=False, timeout=30)
    assert done.returncode == -9
    left = set(control_groups()) - set(before)
    assert left
    assert ground.sandbox(allow_root=True).run("true").ok
    # Groups of tests beside this one come and go: theirs end with their runs
    assert within(10, lambda: not left & set(control_groups()))
    assert [path for path in control_groups() if OTHERS in path] != []
    assert all("control groups" in problem for problem in state_problems(ground.state))


def test_who_is_still_alive_in_the_group_of_a_dead_run_is_killed(foreign: Group) -> None:
    group = made(DEAD)
    with subprocess.Popen(["sleep", "1000"]) as survivor:
        for member in group.member_files():
            Path(os.fsdecode(member)).write_text(f"{survivor.pid}")
        sweep_groups(probe_cgroup().kind, [DEAD])
        assert within(1, lambda: survivor.poll() == -9)
    sweep_groups(probe_cgroup().kind, [DEAD])
    assert [path for path in control_groups() if DEAD in path] == []
    assert [path for path in control_groups() if OTHERS in path] != []
