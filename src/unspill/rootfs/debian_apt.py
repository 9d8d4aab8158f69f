# SPDX-License-Identifier: Apache-2.0
"""Fetches packages with apt, as the caller, without installing any and without a look at the host's own packages.

apt has a configuration of its own here: which archives, which keys, where its lists and packages lie. It checks every
signature and digest; nothing here can tell it not to. What was fetched stays in the directory for the next time.
"""

from __future__ import annotations

import fcntl
import os

from unspill.errors import RootfsUnverified
from unspill.model.record import Record
from unspill.model.rootfs import Progress
from unspill.rootfs.debian_child import Ended, child_environ, run_child
from unspill.rootfs.debian_failures import explain_failure
from unspill.rootfs.debian_names import KEYRING, Archive, sources_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

HOST_KEYS = "/etc/apt/trusted.gpg.d"
_CONFIG = """\
Dir "{top}/";
Dir::Etc "{top}/etc/";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "{top}/etc/none/";
Dir::Etc::sourcelist "{top}/etc/sources.list";
Dir::Etc::sourceparts "{top}/etc/none/";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{top}/etc/none/";
Dir::Etc::netrc "/dev/null";
Dir::Etc::netrcparts "{top}/etc/none/";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "{top}/etc/keys/";
Dir::State "{top}/";
Dir::State::lists "{top}/lists/";
Dir::State::status "{top}/status";
Dir::Cache "{top}/cache/";
Dir::Cache::archives "{top}/archives/";
Dir::Log "{top}/cache/";
APT::Architecture "{arch}";
APT::Architectures {{ "{arch}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";
Acquire::GzipIndexes "false";
Acquire::PDiffs "false";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
"""


class Deb(Record):
    """A package in the directory: its name, its file there, and where it lies in which archive."""

    name: str
    file: str
    archive: Archive
    path: str


class Apt:
    """apt, over one directory that nobody else uses as long as the block lasts; others wait."""

    def __init__(
        self, top: bytes, suite: str, arch: str, archives: tuple[Archive, ...], report: Callable[[Progress], None]
    ) -> None:
        self.top = top
        self.suite = suite
        self.archives = archives
        self._arch = arch
        self._report = report
        self._lock = -1

    def __enter__(self) -> Self:
        for name in (
            b"",
            b"etc/none",
            b"etc/keys",
            b"lists/partial",
            b"archives/partial",
            b"cache",
            b"nothing/partial",
        ):
            os.makedirs(os.path.join(self.top, name), 0o700, exist_ok=True)
        self._lock = os.open(os.path.join(self.top, b"lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Every apt that is started here has the descriptor too: one that outlives us is waited for
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._configure()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_details: object) -> None:
        os.close(self._lock)

    @property
    def keys(self) -> bytes:
        """The directory of the keys that count."""
        return os.path.join(self.top, b"etc/keys")

    def _configure(self) -> None:
        config = _CONFIG.format(top=os.fsdecode(self.top), arch=self._arch) + self._host_proxies()
        self._write(b"etc/apt.conf", config)
        self._write(b"etc/sources.list", sources_list(self.archives))
        self._write(b"status", "")
        copy_keys(self.keys, with_hosts=any(archive.named for archive in self.archives))

    def _host_proxies(self) -> str:
        """Return the proxies that the host's apt is configured to use; nothing else of its configuration counts."""
        said: list[str] = []
        environ = child_environ(self.top, {"APT_CONFIG": "/dev/null"})
        run_child(["apt-config", "dump"], environ, cwd=self.top, on_line=said.append)
        kept = [line for line in said if line.startswith(("Acquire::http::Proxy", "Acquire::https::Proxy"))]
        return "".join(f"{line}\n" for line in kept if "Detect" not in line.partition(" ")[0])

    def update(self) -> None:
        """Fetch the lists of packages; those that are still new are kept.

        Raises:
            RootfsUnreachable: an archive can't be reached. RootfsUnverified: a signature is missing or wrong.
        """
        self._report(Progress(step="reading package lists"))
        ended = self._apt(["update"])
        if ended.code != 0:
            raise explain_failure(ended, "apt-get update")

    def fetch(self, packages: Sequence[str]) -> tuple[Deb, ...]:
        """Fetch a minimal system and the packages, in the two steps in which they will be installed.

        What a step needs depends on what is there already, so the second is told that the first is installed.
        """
        self._write(b"status", "")
        system = self._fetch(["dist-upgrade"])
        self._write(b"status", self._as_installed(system))
        debs = (*system, *self._fetch(["install", *packages]))
        self._write(b"status", "")
        names = {deb.name for deb in debs}
        missing = [name for name in packages if name not in names]
        if missing:
            # apt takes a name that no package has for a pattern, or for one that several others provide
            raise explain_failure(Ended(code=100, tail=(f"E: Unable to locate package {missing[0]}",)), "apt-get")
        return debs

    def forget_old(self) -> None:
        """Remove packages that the archives do not have any more."""
        self._apt(["-qq", "autoclean"])

    def _fetch(self, words: list[str]) -> tuple[Deb, ...]:
        said: list[str] = []
        nothing = f"Dir::Cache::archives={os.fsdecode(self.top)}/nothing/"
        ended = self._apt(["-o", nothing, "--print-uris", *words], said.append)
        if ended.code != 0:
            raise explain_failure(ended, "apt-get " + words[0])
        listed = [(self._deb(line), int(line.split()[2])) for line in said if line.startswith("'")]
        total = sum(size for _deb, size in listed)
        ended = self._apt(["-o", "APT::Status-Fd=1", "--download-only", *words], self._meter(total))
        if ended.code != 0:
            raise explain_failure(ended, "apt-get " + words[0])
        return tuple(deb for deb, _size in listed)

    def _deb(self, line: str) -> Deb:
        """Return the package of a line: an address in quotes, the name of the file, its size, its digest."""
        from urllib.parse import unquote

        address, file, *_rest = line.split()
        address = unquote(address.strip("'"))
        for archive in sorted(self.archives, key=lambda archive: -len(archive.address)):
            if address.startswith(archive.address + "/"):
                path = address[len(archive.address) + 1 :]
                if "/" not in file and ".." not in path.split("/"):
                    return Deb(name=file.partition("_")[0], file=file, archive=archive, path=path)
        raise RootfsUnverified(f"apt would fetch a package from elsewhere: {address[:200]}")

    def _as_installed(self, debs: tuple[Deb, ...]) -> str:
        said: list[str] = []
        environ = child_environ(self.top)
        for deb in debs:
            ended = run_child(["dpkg-deb", "-f", f"archives/{deb.file}"], environ, cwd=self.top, on_line=said.append)
            if ended.code != 0:
                raise explain_failure(ended, "dpkg-deb")
            said += ["Status: install ok installed", ""]
        return "\n".join(said)

    def _meter(self, total: int) -> Callable[[str], None]:
        def take(line: str) -> None:
            if line.startswith("dlstatus:"):
                percent = line.split(":", 3)[2]
                try:
                    done = int(total * float(percent) / 100)
                except ValueError:
                    return
                self._report(Progress(step="fetching packages", done=done, total=total))

        return take

    def _apt(self, words: list[str], on_line: Callable[[str], None] | None = None) -> Ended:
        environ = child_environ(self.top, {"APT_CONFIG": os.fsdecode(self.top) + "/etc/apt.conf"})
        argv = ["apt-get", "--yes", *words]
        return run_child(argv, environ, cwd=self.top, on_line=on_line, keep_fds=(self._lock,))

    def _write(self, name: bytes, text: str) -> None:
        with open(os.path.join(self.top, name), "w", encoding="utf-8") as file:
            file.write(text)


def copy_keys(to: bytes, *, with_hosts: bool) -> None:
    """Copy the keys that count: Debian's, and for archives of the person's own choice those of the host's apt too."""
    from shutil import copyfile

    for name in os.listdir(to):
        os.unlink(os.path.join(to, name))
    found = [KEYRING.encode()] if os.path.exists(KEYRING) else []
    if with_hosts and os.path.isdir(HOST_KEYS):
        names = sorted(name for name in os.listdir(HOST_KEYS.encode()) if name.endswith((b".gpg", b".asc")))
        found += [os.path.join(HOST_KEYS.encode(), name) for name in names]
    if not found:
        raise RootfsUnverified(
            f"there are no keys of Debian's here ({KEYRING})", remedy="Install the package debian-archive-keyring."
        )
    for number, path in enumerate(found):
        copyfile(path, os.path.join(to, b"%02d" % number + os.path.splitext(path)[1]))
