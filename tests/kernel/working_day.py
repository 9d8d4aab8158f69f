# SPDX-License-Identifier: Apache-2.0
"""A working day of 50 commands as a person types them, and a comparison with the same day without unspill."""

import os
import re
import select
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kernel.internet import Internet

HOSTS: Final = ("example.org", "pip.example.org", "npm.example.org")

# Each line is typed as it is. Outside, the same line is typed without `unspill run --`, or with `sh -c` for
# `unspill run -c`. A person is needed twice: VS Code starts programs by what is in `.vscode`, and one host is new.
LOOKING = """
unspill run -- git status --short --branch
unspill run -- git log --oneline --stat
unspill run -- grep -rn --include=*.py 'def ' src
unspill run -c "find . -name '*.py' -not -path './.git/*' | sort"
unspill run -- sort -r < README.md
"""

EDITING = """
unspill run -- git switch -c squares
unspill run -- sed -i s/3.14/3.14159/ src/shapes.py
printf '\\n\\ndef square(side):\\n    return side * side\\n' | unspill run -c 'cat >> src/shapes.py'
unspill run -- patch -p1 -i checks/data/greeting.diff
unspill run -- cp -a src backup
unspill run -- git mv README.md GUIDE.md
unspill run -- ln -s GUIDE.md README.md
unspill run -- chmod +x scripts/report.sh
unspill run -- git mv checks/data checks/samples
unspill run -c 'mkdir docs && mv checks/samples docs/data'
unspill run -- rm -rf backup
unspill run -- git diff --stat
"""

BUILDING = """
unspill run -- make
unspill run -- ./build/hello
unspill run -- gcc -Wall -O2 -c src/hello.c -o build/hello.o
unspill run -c 'make clean && make -j2'
unspill run -- scripts/report.sh
unspill run -- tar czf build/src.tar.gz src scripts
unspill run -c 'mkdir build/copy && tar xzf build/src.tar.gz -C build/copy'
unspill run -c 'mkdir .vscode && echo "{}" > .vscode/settings.json'
unspill run -c 'python3 -m zipapp src -o build/shapes.pyz -m shapes:main && python3 build/shapes.pyz'
echo 'create table t(n); insert into t values (1), (2); select sum(n) from t;' | unspill run -- sqlite3 build/notes.db
"""

PACKAGES = """
unspill run -- python3 -m venv .venv
unspill run -- .venv/bin/pip install pytest
unspill run -- .venv/bin/python -c 'import pytest'
unspill run -- .venv/bin/pip list --format=freeze
unspill run -- npm install demo
unspill run -- node -e "require('demo')"
unspill run -- git clone https://example.org/repo.git vendor/repo
unspill run -- git clone . build/clone
"""

TESTING = """
unspill run -- python3 -m unittest discover -s checks
unspill run -- .venv/bin/pytest -q checks
unspill run -- node --test checks/
unspill run -c 'exit 3'
unspill run -c 'python3 -m http.server 8123 -b ::1 & curl -s --retry 9 --retry-connrefused [::1]:8123/GUIDE.md; kill $!'
unspill run -c 'for n in 1 2 3; do (sleep 0.1; echo $n > build/$n.txt) & done; wait'
unspill run -- node scripts/watch.js
"""

GIT = """
unspill run -- git add -A
unspill run -- git commit -m 'Add squares'
unspill run -c 'echo draft >> Makefile && git stash && git switch -q main && git stash pop && git commit -qam Draft'
unspill run -- git rebase main squares
unspill run -c 'git switch main && git merge --no-ff --no-edit squares && git branch -d squares'
unspill run -- git tag -a v0.1 -m 'First version'
unspill run -- git revert --no-edit HEAD~1
unspill run --allow-host www.example.org -- curl -sS -o hello.html https://www.example.org/hello
"""

DAY: Final = tuple(
    line for part in (LOOKING, EDITING, BUILDING, PACKAGES, TESTING, GIT) for line in part.strip().splitlines()
)

FILES: Final = {
    ".gitignore": ".vscode/\nbuild/\nnode_modules/\n__pycache__/\n.venv/\nvendor/\n.pytest_cache/\n",
    "checks/data/greeting.diff": "--- a/src/hello.c\n+++ b/src/hello.c\n@@ -3,4 +3,4 @@\n int main(void) {\n"
    '-    puts("hello");\n+    puts("good morning");\n     return 0;\n }\n',
    "scripts/watch.js": "const fs = require('fs');\n"
    "fs.watch('src', (kind, name) => { console.log('saw', name); process.exit(0); });\n"
    "setTimeout(() => fs.appendFileSync('src/index.js', '// edited\\n'), 100);\n"
    "setTimeout(() => process.exit(1), 5000);\n",
}

SAID_BY_GIT: Final = "what git says"
# Files whose bytes say when or where they were made, in a form that is not plain text
_DATED: Final = (".pyc", ".tar.gz", ".zip", ".pyz", ".dist-info/RECORD")
# What git has to say about a repository, but for the names of commits, which depend on the second they were made in
_GIT: Final = """
git for-each-ref --format='%(refname) %(objecttype) %(tree)%(*tree) %(contents:subject)' refs/heads refs/tags refs/stash
git symbolic-ref HEAD; git log --branches --tags --topo-order --format='%T %s'; git status --porcelain; git stash list
"""
_NEVER_THE_SAME: Final = (
    (re.compile(rb"\b[0-9a-f]{7,40}\b"), b"HASH"),
    (re.compile(rb"\b\d+(\.\d+)? ?(ms|s)\b"), b"TIME"),
    (re.compile(rb"(duration_ms):? [\d.]+"), rb"\1 TIME"),
    (re.compile(rb"Date: .*"), b"DATE"),
)


@dataclass(frozen=True)
class Typed:
    """What one line did."""

    line: str
    exit_code: int
    stdout: bytes
    stderr: bytes
    questions: int


class Person:
    """Somebody at a terminal who says yes to whatever is asked there, and counts it."""

    def __init__(self, net: Internet, variables: dict[str, str]) -> None:
        self._net, self._variables = net, variables
        self._master, slave = os.openpty()
        self._terminal = os.ttyname(slave)
        # Kept open: what nobody has open any more is gone
        self._slave = slave

    def close(self) -> None:
        """Leave the terminal."""
        os.close(self._master)
        os.close(self._slave)

    def type(self, line: str, cwd: Path) -> Typed:
        """Type a line at a shell of this terminal; its output goes into pipes, as in a script."""
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            # A leader of a session that opens a terminal has it as its own from then on
            words = ["setsid", "--wait", "bash", "-c", f"exec 9<>{self._terminal} 9>&-; {line}"]
            process = self._net.start(
                words, cwd, self._variables, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
            )  # fmt: skip
            questions = self._answer_until_end(process)
            stdout.seek(0)
            stderr.seek(0)
            return Typed(line, process.returncode, stdout.read(), stderr.read(), questions)

    def agree(self, command: str, cwd: Path) -> Typed:
        """Type a command whose output is read on the terminal too, where it asks."""
        return self.type(f"{command} <{self._terminal} >{self._terminal} 2>&1", cwd)

    def _answer_until_end(self, process: "subprocess.Popen[bytes]") -> int:
        questions, seen, last = 0, b"", 0.0
        deadline = time.monotonic() + 120
        while process.poll() is None:
            assert time.monotonic() < deadline, process.args
            if select.select([self._master], [], [], 0.02)[0]:
                seen += os.read(self._master, 65536)
                last = time.monotonic()
            elif seen.endswith(b" ") and time.monotonic() - last > 0.6:
                # A line that waits for its end, for long enough to have read it: sooner nobody would be believed
                os.write(self._master, b"y\n")
                questions, seen = questions + 1, b""
        return questions


def as_outside(line: str) -> str:
    """Return a line as it is typed without unspill."""
    line = re.sub(r"unspill run (--allow-host \S+ )?-- ", "", line)
    return line.replace("unspill run -c ", "sh -c ")


class Look:
    """What a project has in it; read again only where something was written since the last look."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}

    def entries(self) -> dict[str, str]:
        """Return each entry with its kind, mode and content, and for the repository what git says."""
        found = {SAID_BY_GIT: self._git_says()}
        for directory, names, files in os.walk(self._project):
            names[:] = [name for name in names if name != ".git"]
            for name in [*names, *files]:
                path = os.path.join(directory, name)
                found[os.path.relpath(path, self._project)] = self._entry(path)
        return found

    def _git_says(self) -> str:
        done = subprocess.run(["sh", "-c", _GIT], cwd=self._project, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def _entry(self, path: str) -> str:
        now = os.lstat(path)
        stamp = (now.st_mode, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        if path not in self._known or self._known[path][0] != stamp:
            self._known[path] = stamp, f"{stat.filemode(now.st_mode)} {self._content(path)}"
        return self._known[path][1]

    def _content(self, path: str) -> str:
        if os.path.islink(path):
            return os.readlink(path).replace(os.fspath(self._project), "PROJECT")
        if os.path.isfile(path) and not path.endswith(_DATED):
            return repr(Path(path).read_bytes().replace(os.fsencode(self._project), b"PROJECT"))
        return ""


def without_path(text: bytes, project: Path) -> bytes:
    """Return text that names the project by no path, and nothing that differs from one minute to the next."""
    text = text.replace(os.fsencode(project), b"PROJECT")
    for pattern, word in _NEVER_THE_SAME:
        text = pattern.sub(word, text)
    return text


def differences(inside: dict[str, str], outside: dict[str, str]) -> dict[str, str]:
    """Return the entries that are not the same in both projects, each with a line about it."""
    return {
        name: f"{name}: {inside.get(name, 'nothing')[:300]} but outside {outside.get(name, 'nothing')[:300]}"
        for name in sorted({*inside, *outside})
        if inside.get(name) != outside.get(name)
    }


def make_same(names: Iterable[str], project: Path, twin: Path) -> None:
    """Have these entries of a project be what they are in its twin."""
    for name in (".git" if name == SAID_BY_GIT else name for name in names):
        old, new = project / name, twin / name
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
        if new.is_file() and not new.is_symlink():
            old.write_bytes(new.read_bytes().replace(os.fsencode(twin), os.fsencode(project)))
            old.chmod(new.stat().st_mode)
        elif new.is_dir() and not new.is_symlink():
            shutil.copytree(new, old, symlinks=True)
        elif new.is_symlink():
            old.symlink_to(new.readlink())
