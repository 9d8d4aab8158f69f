# SPDX-License-Identifier: Apache-2.0
"""A repository that a person and an agent share, and its twin, which gets the person's commands alone."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import Ground
from unspill import RunResult, Sandbox
from unspill.model.run import OutputChunk

KINDS = ("plain", "plain", "packed", "shallow", "sparse", "submodule", "sha256")
FIXED = {"GIT_OPTIONAL_LOCKS": "1", "GIT_EDITOR": "true", "GIT_MERGE_AUTOEDIT": "no", "LC_ALL": "C"}
IDENTITY = (
    "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"
    '[protocol "file"]\n\tallow = always\n'
    "[core]\n\tpackedRefsTimeout = 0\n\tfilesRefLockTimeout = 0\n"
    "[gc]\n\tauto = 0\n\tautoDetach = false\n[maintenance]\n\tauto = false\n[advice]\n\tdetachedHead = false\n"
)
_FIRST = """
for n in 1 2 3; do echo "line $n" > "base$n"; git add "base$n"; git commit -qm "base $n"; done
mkdir -p deep/er; echo x > deep/er/file; git add deep; git commit -qm deep; git branch side; git tag start
"""


def sh(where: Path, text: str, *, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """Run a script as the person."""
    done = subprocess.run(
        ["sh", "-c", text],
        cwd=where,
        env={**os.environ, **FIXED},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not check or done.returncode == 0, (text, done.stdout, done.stderr)
    return done


def lines(where: Path, *words: str) -> list[str]:
    """Return the lines that git prints."""
    done = subprocess.run(["git", *words], cwd=where, env={**os.environ, **FIXED}, capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace").splitlines() if done.returncode == 0 else []


@dataclass
class World:
    """The project with its sandbox, the twin, and the remote that both fetch from."""

    ground: Ground
    top: Path
    kind: str
    project: Path = field(init=False)
    twin: Path = field(init=False)
    remote: Path = field(init=False)
    sandbox: Sandbox = field(init=False)
    other: Sandbox = field(init=False)
    _written: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.top.mkdir()
        self.project, self.twin, self.remote = (self.top / name for name in ("project", "twin", "remote.git"))
        seed = self.top / "seed"
        seed.mkdir()
        sh(seed, f"git init -q{' --object-format=sha256' if self.kind == 'sha256' else ''}; {_FIRST}")
        sh(self.top, "git clone -q --bare seed remote.git")
        self._make(self.project)
        self._make(self.twin)
        shutil.rmtree(seed)
        self.sandbox = self.ground.sandbox(project=self.project, after="apply")
        self.other = self.ground.sandbox("other", project=self.project, after="apply")

    def _make(self, where: Path) -> None:
        depth = "--depth 2 --no-single-branch" if self.kind == "shallow" else ""
        sh(self.top, f"git clone -q {depth} file://{self.remote} {where.name}")
        sh(where, "git branch -q side origin/side")
        if self.kind == "packed":
            sh(where, "git gc -q")
        elif self.kind == "sparse":
            sh(where, "git sparse-checkout set deep")
        elif self.kind == "submodule":
            sh(where, f"git submodule -q add file://{self.remote} lib && git commit -qm 'add lib'")

    def person(self, script: str) -> None:
        """Do the same in both repositories; what fails in one is taken back there."""
        for where in (self.project, self.twin):
            done = sh(where, script, check=False)
            if done.returncode:
                sh(
                    where,
                    "git merge --abort; git rebase --abort; git cherry-pick --abort; git am --abort; true",
                    check=False,
                )

    def name_of(self, sandbox: Sandbox) -> str:
        """Return what a sandbox is called."""
        return "other" if sandbox is self.other else "default"

    def used(self) -> list[Sandbox]:
        """Return the sandboxes that may hold something, and the first one always."""
        return [self.sandbox, *([self.other] if self.other.id in self._written else [])]

    def run(
        self,
        before: str,
        after: str,
        *,
        meanwhile: Callable[[], object] | None,
        then: str,
        sandbox: Sandbox | None = None,
    ) -> RunResult:
        """Run a script in a sandbox; the person does something in the middle of it."""
        used = self.sandbox if sandbox is None else sandbox
        self._written.add(used.id)
        reader, writer = os.pipe()
        reached = threading.Event()
        script = f"{before}\necho '<reached>'; read _answer\n{after}\ntrue"

        def take(event: object) -> None:
            if isinstance(event, OutputChunk) and b"<reached>" in event.chunk:
                reached.set()

        results: list[RunResult] = []

        def run() -> None:
            results.append(used.run(script, stdin=reader, after=then, env=FIXED, on_event=take))  # type: ignore[arg-type]
            reached.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert reached.wait(60)
        try:
            if meanwhile is not None:
                meanwhile()
        finally:
            os.write(writer, b"go\n")
            thread.join(120)
            os.close(reader)
            os.close(writer)
        return results[0]

    def close(self) -> None:
        """Remove everything."""
        for sandbox in (self.sandbox, self.other):
            sandbox.close()
            self.ground.opened.remove(sandbox)
        subprocess.run(["chmod", "-R", "u+rwx", os.fspath(self.top)], check=False, capture_output=True)
        shutil.rmtree(self.top, ignore_errors=True)


@contextmanager
def world(ground: Ground, name: str, kind: str) -> Iterator[World]:
    """Make a world; it goes afterwards."""
    made = World(ground, ground.home / name, kind)
    try:
        yield made
    finally:
        made.close()
