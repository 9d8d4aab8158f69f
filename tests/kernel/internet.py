# SPDX-License-Identifier: Apache-2.0
"""The test's end of an internet of its own: starts it, has commands run in it, and reads what the servers met.

Everything is done as the ordinary user of the test, in a user namespace.
"""

import importlib.metadata
import json
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.support import chosen_view, is_rootfs_chosen
from tests.unit.network.scene import make_certificate
from unspill import Network, RunResult

CHECKOUT = Path(__file__).parents[2]


class Internet:
    """A caller's host and all that it can reach."""

    def __init__(self, directory: Path, pid: int, bwrap: bytes, engine: str | None = None) -> None:
        self.directory = directory
        self.project = directory / "home" / "project"
        self.bwrap, self.engine = bwrap, engine
        self._enter = ["nsenter", "--preserve-credentials", "-U", "-n", "-m", "-t", str(pid)]
        self._enter += ["env", "-C", os.fspath(self.project)]  # by its path: the old descriptor is of another mount
        self._variables = {
            **{name: os.environ[name] for name in ("PATH", "LANG", "UNSPILL_TEST_VIEW") if name in os.environ},
            "HOME": os.fspath(directory / "home"),
            "UNSPILL_STATE_DIR": os.fspath(directory / "state"),
            "PYTHONPATH": os.fspath(CHECKOUT),
        }
        self._read: dict[str, int] = {}
        self._caller = self._start([sys.executable, "-m", "tests.kernel.internet_caller"])

    def run(self, command: str | list[str], *hosts: str, **options: Any) -> RunResult:
        """Run a command in a sandbox whose policy allows these hosts, trusting our certificate."""
        result = self.ask("run", *self.job(command, *hosts, **options))
        assert isinstance(result, RunResult)
        return result

    def job(self, command: str | list[str], *hosts: str, **options: Any) -> tuple[Any, ...]:
        """Return what a caller needs to know for such a run."""
        given = {"env": {**self.trust(), **options.pop("env", {})}, "timeout": 60.0, "after": "discard", **options}
        return command, self.settings(*hosts, **given.pop("bounds", {})) | given.pop("settings", {}), given

    def settings(self, *hosts: str, **bounds: Any) -> dict[str, Any]:
        """Return the settings of a policy that allows these hosts."""
        return {"bwrap": self.bwrap, "engine": self.engine, "network": Network(hosts=hosts, **bounds), **chosen_view()}

    def reach(self, address: str, port: int = 80) -> bool:
        """Tell whether the caller itself can connect."""
        return bool(self.ask("reach", address, port))

    def cli(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run the `unspill` program in the project."""
        program = [os.fspath(Path(sys.executable).with_name("unspill")), *words]
        return subprocess.run(
            [*self._enter, *program],
            env=self._variables, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def start(
        self, words: Sequence[str], cwd: Path, variables: dict[str, str], **options: Any
    ) -> "subprocess.Popen[bytes]":
        """Start any program of this host in a directory, with these variables besides ours."""
        enter = [*self._enter[:-1], os.fspath(cwd)]
        return subprocess.Popen([*enter, *words], env={**self._variables, **variables}, **options)

    def program(self, module: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a module of the tests as another caller, to its end."""
        return subprocess.run(
            [*self._enter, sys.executable, "-m", module, *words],
            env=self._variables, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def configure(self, text: str) -> None:
        """Write the person's own configuration file."""
        path = self.directory / "home" / ".config" / "unspill" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        view = "".join(f"{key} = {value!r}\n" for key, value in chosen_view().items())
        path.write_text(view + text)

    def trust(self) -> dict[str, str]:
        """Return the variables by which tools learn of our certificate."""
        path = "/workspace/ca.pem" if is_rootfs_chosen() else os.fspath(self.project / "ca.pem")
        names = ("CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT")
        return {**dict.fromkeys((*names, "npm_config_cafile"), path), "GIT_TERMINAL_PROMPT": "0"}

    def met(self) -> list[tuple[str, int]]:
        """Return the address and port of every connection that arrived since the last call."""
        return [(address, int(port)) for address, port in map(str.split, self._take("met"))]

    def asked(self) -> list[str]:
        """Return the names that were asked for since the last call."""
        return sorted({line.split()[0] for line in self._take("asked")})

    def close(self) -> None:
        """End the caller."""
        assert self._caller.stdin is not None
        assert self._caller.stdout is not None
        self._caller.stdin.close()
        self._caller.wait(20)
        self._caller.stdout.close()

    def _take(self, name: str) -> list[str]:
        """Return the lines of a book that are new. It stays: a line that is written just now must not be lost."""
        book = self.directory / name
        new = book.read_bytes()[self._read.get(name, 0) :] if book.exists() else b""
        whole = new[: new.rfind(b"\n") + 1]
        self._read[name] = self._read.get(name, 0) + len(whole)
        return whole.decode().splitlines()

    def _start(self, words: Sequence[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*self._enter, *words],
            env=self._variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, duty: str, *arguments: object) -> Any:
        """Have the caller do something, and return what it returns or raise what it raises."""
        assert self._caller.stdin is not None
        assert self._caller.stdout is not None
        pickle.dump((duty, arguments), self._caller.stdin)
        self._caller.stdin.flush()
        result = pickle.load(self._caller.stdout)
        if isinstance(result, Exception):
            raise result
        return result


@contextmanager
def internet(directory: Path, bwrap: bytes, engine: str | None = None) -> Iterator[Internet]:
    """Start an internet with a caller in it; `directory` is empty."""
    for path in ("home/project", "state", "files"):
        (directory / path).mkdir(mode=0o700, parents=True)
    certificate = make_certificate(directory)
    (directory / "home" / "project" / "ca.pem").write_bytes((directory / "cert.pem").read_bytes())
    assert certificate.exists()
    make_files(directory / "files")
    program = [sys.executable, "-m", "tests.kernel.internet_program", os.fspath(directory)]
    started = subprocess.Popen(
        ["unshare", "-U", "--map-current-user", "--keep-caps", "-n", "-m", *program],
        cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdin is not None
    assert started.stdout is not None
    try:
        line = started.stdout.readline()
        assert line, "the internet could not be started"
        made = Internet(directory, int(line), bwrap, engine)
        try:
            yield made
        finally:
            made.close()
    finally:
        started.stdin.close()
        started.wait(20)
        started.stdout.close()


def make_files(top: Path) -> None:
    """Write what the servers serve: a file, a repository, a package for pip and one for npm."""
    (top / "hello").write_text("hello\n")
    work = top / "work"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", os.fspath(work)]
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / "file").write_text("content\n")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", work, top / "repo.git"], check=True)
    subprocess.run(["git", "-C", top / "repo.git", "config", "http.receivepack", "true"], check=True)
    make_wheel(top / "simple" / "demo")
    make_node_package(top)


def make_wheel(directory: Path) -> None:
    """Write a package for pip that has one module."""
    directory.mkdir(parents=True)
    files = {
        "demo.py": "print('demo of pip')\n",
        "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "demo-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(directory / "demo-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def make_wheels_of(name: str, directory: Path) -> None:
    """Write an installed package and all that it needs as packages for pip, each in a directory of its own."""
    found = importlib.metadata.distribution(name)
    wheel = directory / name.lower() / f"{name}-{found.version}-py3-none-any.whl"
    if wheel.exists():
        return
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in found.files or ():
            # Programs are made anew by pip, and lines about them have no place in a wheel
            if ".." in path.parts or path.suffix == ".pyc":
                continue
            archive.writestr(os.fspath(path), b"" if path.name == "RECORD" else path.read_binary())
    for line in found.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            make_wheels_of(requirement.name, directory)


def make_node_package(top: Path) -> None:
    """Write a package for npm, and what a registry says of it."""
    described = {"name": "demo", "version": "1.0.0", "main": "index.js"}
    contents = {"package.json": json.dumps(described), "index.js": "console.log('demo of npm');\n"}
    with tarfile.open(top / "demo-1.0.0.tgz", "w:gz") as archive:
        for name, text in contents.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, BytesIO(text.encode()))
    version = {**described, "dist": {"tarball": "https://npm.example.org/demo-1.0.0.tgz"}}
    registry = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (top / "demo").write_text(json.dumps(registry))
