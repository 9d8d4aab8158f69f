# SPDX-License-Identifier: Apache-2.0
"""A person's machine in a temporary directory: home, project, state directory, and sandboxes over them.

Fixtures here are offered to a directory of tests by its conftest.py. Nothing touches the real home directory
but the locks of roots, which one user has in one place.
"""

import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.prepared import PREPARED, PROGRAM
from unspill import ChangeSet, Ended, Limits, OutputChunk, Policy, RunResult, Sandbox, Started
from unspill.host.bwrap import facts_key, facts_to_text, find_bwrap
from unspill.host.probe import probe
from unspill.layers.lifecycle import wait_until_clean
from unspill.layers.trees import remove_tree
from unspill.model.plan import Facts, Plan
from unspill.runner.launcher import stop_launchers
from unspill.sandbox.apply import apply_run
from unspill.store.db import Store

Event = Started | OutputChunk | Ended
Command = str | bytes | Sequence[str | bytes | os.PathLike[str] | os.PathLike[bytes]]
# A rootfs with the tools of this machine, made of hard links
MOUNTS = Path("/mnt/unspill-ci")
HOST_ROOT = "/opt/unspill-ci/host-root"
NEWER_BWRAP = "/opt/unspill-ci/bwrap-0.11/bin/bwrap"
NO_CACHES = pytest.mark.view("sealed", "host", reason="a rootfs shows no caches of the home directory")
NO_TOOLCHAINS = pytest.mark.view("sealed", "host", reason="a rootfs shows no toolchains of the home directory")
XDG = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")


def is_rootfs_chosen() -> bool:
    """Tell whether sandboxes are to have a rootfs where a test names no view."""
    return os.environ.get("UNSPILL_TEST_VIEW") == "rootfs"


def chosen_view() -> dict[str, Any]:
    """Return the settings of a policy for the view under test."""
    return {"view": "rootfs", "rootfs": HOST_ROOT} if is_rootfs_chosen() else {}


def shell_of_texts() -> str:
    """Return the shell that runs a command which is given as a text."""
    return "/bin/bash" if is_rootfs_chosen() else "/bin/sh"


# The first lines of a program that opens a sandbox in a process of its own
VIEW_LINES = f"""
import os
VIEW = dict(view="rootfs", rootfs="{HOST_ROOT}") if os.environ.get("UNSPILL_TEST_VIEW") == "rootfs" else dict()
"""


def chosen_views() -> list[str]:
    """Return the views for a test that is run with each."""
    return ["rootfs"] if is_rootfs_chosen() else ["sealed", "host"]


_STRANGER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
if os.fork(): os._exit(0)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def locked_by_a_stranger(directory: Path) -> Iterator[None]:
    """Have an flock on a directory of which the kernel names no process of this user, as if it were another's.

    Who took it has ended, and a child of it still has it.
    """
    words = [sys.executable, "-I", "-c", _STRANGER, os.fspath(directory)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"\n"
        assert stranger.wait() == 0
        yield


class NamedByHost(Sandbox):
    """A sandbox in whose commands a test may name the project and the playground as in view `sealed`."""

    def run(self, command: Command, *arguments: Any, **options: Any) -> RunResult:
        return super().run(self._told(command), *arguments, **options)

    def plan(self, command: Command, **options: Any) -> Plan:
        return super().plan(self._told(command), **options)

    def explain(self, command: Command, **options: Any) -> str:
        return super().explain(self._told(command), **options)

    def _told(self, command: Command) -> Command:
        if self._project.means.policy.view != "rootfs":
            return command
        if isinstance(command, str | bytes):
            return self._renamed(command)
        return [self._renamed(os.fspath(word)) for word in command]

    def _renamed(self, text: str | bytes) -> str | bytes:
        project, playground = self._project.roots[0], self._project.home.path + b"/playground"
        places = {project: b"/workspace", playground: b"/playground"}
        places |= dict.fromkeys((b"~/playground", b"$HOME/playground"), b"/playground")
        for outside, inside in places.items():
            # Not where it is the beginning of another name
            if isinstance(text, bytes):
                text = re.sub(re.escape(outside) + rb"(?![\w.-])", inside, text)
            else:
                text = re.sub(re.escape(os.fsdecode(outside)) + r"(?![\w.-])", inside.decode(), text)
        return text


@dataclass(frozen=True)
class Ground:
    """One person's home, project and state directory; HOME and UNSPILL_STATE_DIR point there."""

    top: Path
    home: Path
    project: Path
    state: Path
    bwrap: bytes
    engine: str | None = None
    opened: list[Sandbox] = field(default_factory=list)

    def policy(self, **settings: Any) -> Policy:
        """Return a policy with the bubblewrap and the engine under test; a run is held unless it is asked otherwise."""
        # A test that chooses the view and says where the rootfs is to come from means another one
        is_chosen = settings.get("view", "rootfs") == "rootfs" and not {"rootfs_dir", "rootfs_writable"} & set(settings)
        usual = chosen_view() if is_chosen else {}
        return Policy(**{"bwrap": self.bwrap, "engine": self.engine, "after": "hold", **usual, **settings})

    def inside(self, path: Path | None = None) -> str:
        """Return where a path of the project, or the project itself, is seen in the view under test."""
        path = self.project if path is None else path
        if not is_rootfs_chosen() or not path.is_relative_to(self.project):
            return os.fspath(path)
        return os.fspath(Path("/workspace", path.relative_to(self.project)))

    @property
    def home_inside(self) -> str:
        """The home directory that a command has in the view under test."""
        return "/workspace" if is_rootfs_chosen() else os.fspath(self.home)

    @property
    def playground_inside(self) -> str:
        """The playground in the view under test."""
        return "/playground" if is_rootfs_chosen() else os.fspath(self.home / "playground")

    def sandbox(self, name: str = "default", *, project: Path | None = None, **settings: Any) -> Sandbox:
        """Open a sandbox; it is closed when the test ends."""
        sandbox = NamedByHost(project or self.project, name=name, policy=self.policy(**settings))
        self.opened.append(sandbox)
        return sandbox

    def run(self, command: str | bytes | list[str], **options: Any) -> RunResult:
        """Run a command in the default sandbox; it must have been started."""
        return self.sandbox().run(command, **options)

    def write(self, path: str, content: str | bytes = "") -> Path:
        """Make a file of the project, and its directories."""
        target = self.project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        return target

    def configure(self, text: str) -> None:
        """Write the person's own configuration file."""
        path = self.home / ".config" / "unspill" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        named = {} if re.search(r"^view *=", text, re.MULTILINE) else chosen_view()
        view = "".join(f"{key} = {value!r}\n" for key, value in named.items())
        path.write_text(view + text)

    def left_behind(self) -> list[str]:
        """Return what lies in the state directory that belongs to a single run."""
        wait_until_clean()
        places = ("layers", "work", "runs")
        found = [path for place in places if (self.state / place).is_dir() for path in (self.state / place).iterdir()]
        return sorted(os.fspath(path.relative_to(self.state)) for path in found)


def kinds(changes: ChangeSet) -> dict[str, str]:
    """Return the kind of change by path."""
    return {os.fsdecode(change.path): change.kind for change in changes}


def printed(result: RunResult) -> str:
    """Return the standard output of a command that ended well."""
    assert result.ok, result
    return result.stdout.kept().decode()


def run_both(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, first: str, second: str, **options: Any
) -> tuple[RunResult, RunResult]:
    """Run a command, and another one that comes right before what the first changed is applied."""
    with ThreadPoolExecutor(1) as pool:
        coming: list[Future[RunResult]] = []

        def apply_late(*given: Any, **named: Any) -> Any:
            monkeypatch.undo()
            coming.append(pool.submit(sandbox.run, second, after="apply", **options))
            time.sleep(0.5)
            return apply_run(*given, **named)

        monkeypatch.setattr("unspill.sandbox.apply.apply_run", apply_late)
        return sandbox.run(first, after="apply"), coming[0].result(20)


_sleeps = itertools.count()


def lasting() -> str:
    """Return an argument for sleep that lasts longer than any test and that no other process has."""
    return f"36{next(_sleeps):02}.{os.getpid()}"


def processes_with(word: str) -> list[str]:
    """Return the command lines on this host that have `word` as an argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(repr(words))
    return found


def starts(word: str) -> bool:
    """Whether a process has `word` as an argument, or soon has: one that was forked has its parent's words at first."""
    deadline = time.monotonic() + 20
    while not (found := processes_with(word)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(found)


def is_gone(pid: int) -> bool:
    """Whether a process has ended. Its parent may leave it a zombie, as a process that adopts orphans may."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def parent_of(word: str) -> int:
    """Return the parent of the process that has a word as an argument."""
    assert starts(word)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                return int(path.with_name("stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    raise AssertionError(word)


@contextmanager
def directory_on(kind: str) -> Iterator[Path]:
    """A new directory on one of the filesystems that .ci/setup mounts; removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="unspill-", dir=MOUNTS / kind / "work"))
    try:
        yield path
    finally:
        remove_tree(bytes(path))


def short(**bounds: Any) -> Limits:
    """Return limits for a test: what hangs is killed soon."""
    return Limits(**{"wall_s": 20.0, **bounds})


def run_cli(
    *words: str | bytes | Path,
    cwd: Path,
    stdin: bytes = b"",
    variables: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> "subprocess.CompletedProcess[bytes]":
    """Run the `unspill` program as a person would; from a copy of a process that has loaded it, which is quicker."""
    return subprocess.run(
        [PROGRAM, *words],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, **(variables or {}), **PREPARED},
        pass_fds=pass_fds,
    )


@pytest.fixture(scope="session")
def trusted_bwrap(bwrap: Path) -> bytes:
    """The bubblewrap under test, checked as a run would."""
    return find_bwrap(os.fsencode(bwrap), "", [])


@pytest.fixture(scope="session")
def known_facts(trusted_bwrap: bytes, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Facts]:
    """What this host can do, found out once for all tests, and the key it is remembered under."""
    state = tmp_path_factory.mktemp("facts")
    state.chmod(0o700)
    facts = probe(trusted_bwrap, os.fsencode(state))
    return facts_key(trusted_bwrap, os.fsencode(state)), facts


@pytest.fixture
def ground(
    tmp_path: Path,
    trusted_bwrap: bytes,
    known_facts: tuple[str, Facts],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Ground]:
    """A machine to run on.

    A test that also asks for `engine` runs once with each engine that works here.
    """
    engine = request.getfixturevalue("engine") if "engine" in request.fixturenames else None
    with made_ground(tmp_path, trusted_bwrap, known_facts, monkeypatch, engine) as made:
        yield made


@contextmanager
def made_ground(
    top: Path, bwrap: bytes, facts: tuple[str, Facts], patch: pytest.MonkeyPatch, engine: str | None = None
) -> Iterator[Ground]:
    """A machine to run on, below a directory; the variables that lead there are set by `patch`."""
    home, state = top / "home", top / "state"
    for directory in (home, state, home / "project"):
        directory.mkdir(mode=0o700)
    patch.setenv("HOME", os.fspath(home))
    patch.setenv("UNSPILL_STATE_DIR", os.fspath(state))
    for name in XDG:
        patch.delenv(name, raising=False)
    store = Store.open(os.fsencode(state))
    store.facts.put(facts[0], facts_to_text(facts[1]))
    store.close()
    made = Ground(top, home, home / "project", state, bwrap, engine)
    if is_rootfs_chosen():
        made.configure("")
    yield made
    for sandbox in made.opened:
        sandbox.close()
    wait_for_watchers()


def wait_for_watchers() -> None:
    """Wait until the watchers of closed sandboxes have ended: the next test may count descriptors."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(map(is_inotify, os.listdir("/proc/self/fd"))):
        time.sleep(0.002)


def is_inotify(number: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{number}") == "anon_inode:inotify"
    except FileNotFoundError:
        return False


@pytest.fixture
def without_own_namespace(ground: Ground, trusted_bwrap: bytes) -> Ground:
    """A host where only bwrap may make user namespaces, as far as unspill knows: for runs with the engine `native`."""
    bwrap = find_bwrap(os.fsencode(find_native_bwrap(os.fsdecode(trusted_bwrap))), "", [])
    state = os.fsencode(ground.state)
    with Store.open(state) as store:
        facts = probe(bwrap, state).replace(own_namespace=False)
        store.facts.put(facts_key(bwrap, state), facts_to_text(facts))
    return replace(ground, bwrap=bwrap)


@pytest.fixture(scope="session", autouse=True)
def no_spawner_survives() -> Iterator[None]:
    """End the spawners of this process after the last test."""
    yield
    stop_launchers()


@functools.cache
def engines_of(bwrap: str | None) -> tuple[str, ...]:
    """Return the engines that a bubblewrap can serve; asked before any fixture exists."""
    if bwrap is None:
        return ("mount",)
    version = subprocess.run([bwrap, "--version"], capture_output=True, text=True, check=False).stdout.split()
    numbers = [int(part) for part in version[-1].split(".")] if version else [0]
    return ("mount", "native") if numbers >= [0, 11] else ("mount",)


def find_native_bwrap(chosen: str) -> str:
    """Return a bubblewrap that mounts overlays itself: the chosen one, or else the newer one."""
    if "native" in engines_of(chosen):
        return chosen
    if not os.path.exists(NEWER_BWRAP):
        pytest.skip(f"there is no {NEWER_BWRAP}; .ci/setup makes it")
    return NEWER_BWRAP


def parametrise_engines(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for an engine once with every one."""
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engines_of(metafunc.config.getoption("--bwrap")))
