# SPDX-License-Identifier: Apache-2.0
"""Debian, built from the distribution's own signed packages by an ordinary user with subordinate ids.

`mmdebstrap` does the work, in three steps. The first fetches the lists of packages and the second the packages: both
have the network, and run nothing of a package. The third installs, without a network and without sight of the
caller's files, and writes a tar. That is unpacked like any archive.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from email.utils import parsedate_to_datetime
from hashlib import sha256
from shutil import rmtree, which

from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.host.dirfd import open_beneath
from unspill.model.rootfs import TIERS, Progress, RootfsKey
from unspill.record import Record
from unspill.rootfs.compression import Bounds, too_much
from unspill.rootfs.layout import FREE_SPACE_REMEDY
from unspill.rootfs.source import DEBIAN_NAMES, Filled, Resolved, arch_of, detect_arch, variant_of
from unspill.rootfs.tar import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unspill.model.rootfs import RootfsSpec
    from unspill.rootfs.source import BuildContext

    Sources = tuple[tuple[str, str], ...]

DEFAULT_SUITE = "bookworm"
MIRROR = "http://ftp.debian.org/debian"
SECURITY_MIRROR = "http://security.debian.org/debian-security"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Keys that root trusts on this machine; they count for archives that the person names
HOST_KEYS = "/etc/apt/trusted.gpg.d"
TIER_1 = ("bash", "python3", "python3-pip", "coreutils", "grep", "sed")
TIER_2 = ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm")
# Not the caller's PATH: what is found there decides what is trusted
SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin"
_IDS = 65536

_SUITE = re.compile(r"[a-z][a-z0-9-]{0,62}[a-z0-9]")
# A minus at the end of a name would make apt remove that package
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,62}[a-z0-9+]")
_WEB = re.compile(r"(https?://[A-Za-z0-9][A-Za-z0-9/._~:+,-]{0,400}?)/*")
_DIRECTORY = re.compile(r"(?:file|copy):(?://)?(/[A-Za-z0-9/._~:+,-]{1,400}?)/*")
# apt's configuration has the path of its directory in quotes
_PLAIN_PATH = re.compile(rb"[A-Za-z0-9/._+=@:,-]+")
# These have neither updates nor a security archive
_ROLLING = frozenset(("sid", "unstable", "experimental"))
_MOST_PACKAGES = 200
_MOST_BYTES = Bounds().total_bytes
_FETCH_S = 6 * 3600.0
# A package's script that waits for ever would let everybody wait who wants the same rootfs
_INSTALL_S = 30 * 60.0
_END_S = 30.0
_LONGEST_LINE = 2000
_KEPT_LINES = 40
_LARGEST_STATUS = 64 << 20
_PROXIES = frozenset(("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"))
# Documentation and translations go; what a licence asks for stays. (dpkg's own path-exclude makes mmdebstrap slow.)
_TRIM = """cd "$1/usr/share" && find man info groff lintian locale doc -ignore_readdir_race\
 ! -type d ! -path 'doc/*/copyright' ! -path locale/locale.alias -delete 2>/dev/null || :"""
_STEPS = {
    "I: extracting archives": "unpacking packages",
    "I: installing essential packages": "installing the system",
    "I: installing remaining packages": "installing packages",
    "I: creating tarball": "writing the tree",
}
_FETCHING = re.compile(r"dlstatus:.*Retrieving file (\d+) of (\d+)")

# Runs a command as the root of a user namespace that has the caller's id and all subordinate ones. It ends when its
# standard input does, that is, when unspill says so or is gone. Then every process is killed, and the files of
# subordinate ids are removed, which the caller could not do.
_SCRIPT = """
tmp=$1
ulimit -f "$2"
shift 2
mkdir -p "$tmp"
chown 1:1 "$tmp"
exec 3<&0 </dev/null
"$@" 3<&- &
build=$!
(while read -r line; do :; done <&3; kill -KILL $build) >/dev/null 2>&1 &
code=0
wait $build || code=$?
kill -KILL -1 2>/dev/null || :
for wait in 0 1 2 3; do
    sleep $wait
    rm -rf "$tmp" && break
done
exit $code
"""
_NAMESPACE = "unshare --user --map-root-user --map-auto --pid --fork --".split()
_OUTER = (*_NAMESPACE, "/bin/sh", "-euc", _SCRIPT)
# The namespace in which packages' scripts run has the subordinate ids only: they can't take the mounts of the outer one
# apart, and are strangers to the caller's files
_INNER = "unshare --user --map-users 1,0,65535 --map-groups 1,0,65535 --setuid 0 --setgid 0 --mount --".split()
_ETC = "passwd group alternatives ld.so.cache ld.so.conf ld.so.conf.d debian_version dpkg perl os-release".split()


class DebianSource:
    """Debian's packages. `spec.version` is a suite; `spec.mirror` can name other archives than Debian's."""

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Return which rootfs a spec means: its version is the suite, and when its archives last changed.

        Raises:
            RootfsError: a name in it can't be one, this machine can't build or run such a rootfs, or an archive can't
                be reached or trusted.
        """
        if spec.sha256 or spec.location:
            raise RootfsError(
                "a Debian rootfs is built from many packages, so it has no location and no digest to pin",
                remedy="Debian's signatures protect the packages. To pin a rootfs, make an archive of it and use that.",
            )
        packages_of(spec.tier, spec.packages)
        build = Build(spec, _arch(spec.arch), means)
        check_host()
        build.fetch_lists()
        key = RootfsKey(
            source="debian",
            version=build.read_releases().version,
            arch=build.arch,
            tier=spec.tier,
            variant=variant_of(spec.packages),
        )
        return Resolved(key=key, spec=spec, proof="signed")

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Fetch packages, install them, and unpack what was made.

        Raises:
            RootfsError: an archive can't be reached or trusted, a package is unknown, or its installation fails.
        """
        key, spec = resolved.key, resolved.spec
        build = Build(spec, key.arch, means)
        releases = build.read_releases()
        if releases.version != key.version:
            raise RootfsError(
                f"the Debian archive changed in the meantime: it had {key.version} and now has {releases.version}",
                remedy="Try again. The packages fetched so far are kept.",
            )
        packages = packages_of(key.tier, spec.packages)
        build.fetch_packages(packages)
        tar = build.install(packages, releases.epoch)
        means.report(Progress(step="unpacking"))
        unpacked = unpack(tar, tree)
        os.unlink(tar)
        return Filled(
            proof="signed", packages=installed_packages(tree), fetched=releases.digests, left_out=unpacked.left_out
        )


class Releases(Record):
    """The signed lists of some archives: their digests by name, and the seconds at which the youngest was made."""

    digests: tuple[tuple[str, str], ...]
    epoch: int
    version: str


class Build:
    """The steps of one build. What is fetched is kept in `means.downloads`, by the archives it is from."""

    def __init__(self, spec: RootfsSpec, arch: str, means: BuildContext) -> None:
        if not _PLAIN_PATH.fullmatch(means.scratch + means.downloads):
            raise RootfsError(
                f"apt can't work below {os.fsdecode(means.downloads)!a}",
                remedy="Choose a rootfs directory whose path has only letters, digits and . - _ +",
            )
        self.arch = arch
        self.suite = checked_suite(spec.version)
        self.sources = sources_of(spec.mirror, self.suite)
        self._is_mirror = bool(spec.mirror.strip())
        self._means = means
        self._scratch = os.fsdecode(means.scratch)
        kept = f"debian-{arch}-{sha256(repr(self.sources).encode()).hexdigest()[:12]}"
        self._lists = os.path.join(os.fsdecode(means.downloads), f"{kept}.lists")
        self._packages = os.path.join(os.fsdecode(means.downloads), f"{kept}.packages")

    def fetch_lists(self) -> None:
        """Fetch the archives' lists of packages, which apt checks by their signatures.

        Raises:
            RootfsUnreachable: an archive can't be reached. RootfsUnverified: a signature is missing or wrong.
        """
        self._means.report(Progress(step="reading package lists"))
        self._fetch([f'--extract-hook=tar -cf {self._scratch}/lists.tar -C "$1/var/lib/apt" lists'])
        os.replace(os.path.join(self._scratch, "lists.tar"), self._lists)

    def fetch_packages(self, packages: Sequence[str]) -> None:
        """Fetch the packages that the lists name, and those that they need; what was fetched before is used.

        Raises:
            RootfsUnverified: one is not what the lists say.
            RootfsError: one is not in the lists, or can't be fetched.
        """
        self._means.report(Progress(step="fetching packages"))
        # Without Pattern-Only, apt takes a name that no package has for a pattern
        apt = "APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qy -oAPT::Status-Fd=2 -oAPT::Cmd::Pattern-Only=true"
        cache = '"$1/var/cache/apt"'
        kept = [f"--setup-hook=tar -xf {self._packages} -C {cache}"] if os.path.exists(self._packages) else []
        tar = os.path.join(self._scratch, "packages.tar")
        hooks = [
            # In the two steps in which they are installed: what is there already decides what else is needed
            f"{apt} --download-only install '?essential' apt >&2",
            f"{apt} --download-only install {shlex.join(packages)} >&2",
            f"{apt} autoclean >&2",
        ]
        # Also what was fetched before something failed is kept
        save = f"code=$?; tar -cf {tar}.new -C {cache} archives && mv {tar}.new {tar}; exit $code"
        try:
            self._fetch(
                [
                    "--skip=update",
                    f'--setup-hook=tar -xf {self._lists} -C "$1/var/lib/apt"',
                    *kept,
                    f"--extract-hook={' && '.join(hooks)}; {save}",
                ]
            )
        finally:
            if os.path.exists(tar):
                os.replace(tar, self._packages)

    def install(self, packages: Sequence[str], epoch: int) -> bytes:
        """Install what was fetched, where nothing of the person's can be reached; return the path of a tar of it.

        Raises:
            RootfsError: it can't be installed.
        """
        inside = sources_of("", self.suite) if any(at.startswith("copy:") for at, _ in self.sources) else self.sources
        content = {
            "subuid": "root:1:65535\n",
            "sources.list": "".join(f"deb [signed-by={KEYRING}] {at} {suite} main\n" for at, suite in inside),
        }
        for name, text in content.items():
            with open(os.path.join(self._scratch, name), "w", encoding="ascii") as file:
                file.write(text)
        given = {
            "/etc/subuid": os.path.join(self._scratch, "subuid"),
            "/etc/subgid": os.path.join(self._scratch, "subuid"),
            "/given/sources.list": os.path.join(self._scratch, "sources.list"),
            "/given/lists": self._lists,
            "/given/packages": self._packages,
        }
        for path in given.values():
            # Those who read it inside are strangers; nobody else can enter the directory that it is in
            os.chmod(path, 0o644)
        argv = mmdebstrap_argv(
            self,
            "apt",
            "tar",
            [
                "--skip=update",
                '--setup-hook=tar -xf /given/lists -C "$1/var/lib/apt"',
                '--setup-hook=tar -xf /given/packages -C "$1/var/cache/apt"',
                f"--include={','.join(packages)}",
                "--dpkgopt=force-unsafe-io",
                f"--customize-hook={_TRIM}",
                "--customize-hook=upload /given/sources.list /etc/apt/sources.list",
                "--skip=output/dev",
            ],
        )
        tar = os.path.join(self._means.scratch, b"tree.tar")
        fd = os.open(tar, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            run(
                enclosed_argv(self._scratch, given, argv),
                self._scratch,
                {"TMPDIR": "/tmp", "SOURCE_DATE_EPOCH": str(epoch)},
                on_line=self._tell,
                stdout=fd,
                wall_s=_INSTALL_S,
            )
            if os.fstat(fd).st_size >= _MOST_BYTES:
                raise too_much(f"the tree that the packages made has {_MOST_BYTES} bytes or more")
        finally:
            os.close(fd)
        return tar

    def read_releases(self) -> Releases:
        """Return what the signed lists are that were fetched last.

        Raises:
            RootfsUnverified: an archive has none.
        """
        top = os.path.join(self._means.scratch, b"lists")
        os.makedirs(top)
        unpack(os.fsencode(self._lists), top)
        digests, epoch = [], 0
        for name in sorted(os.listdir(top + b"/lists")):
            if name.endswith(b"_InRelease"):
                with open(os.path.join(top, b"lists", name), "rb") as file:
                    content = file.read()
                suite = os.fsdecode(name).rpartition("_dists_")[2].removesuffix("_InRelease")
                digests.append((f"{suite}/InRelease", sha256(content).hexdigest()))
                epoch = max(epoch, _date_of(content))
        rmtree(top)
        if len(digests) < len(self.sources):
            raise RootfsUnverified("an archive has no signed InRelease", remedy="Use a mirror with a signed InRelease.")
        version = time.strftime(f"{self.suite}.%Y%m%d.%H%M", time.gmtime(epoch))
        return Releases(digests=tuple(digests), epoch=epoch, version=version)

    def _fetch(self, more: list[str]) -> None:
        """Let mmdebstrap run without installing anything, with what apt needs to fetch."""
        os.makedirs(nobodys := os.path.join(self._scratch, "no-keys"), exist_ok=True)
        argv = mmdebstrap_argv(
            self,
            "extract",
            "null",
            [
                f"--keyring={KEYRING}",
                f"--keyring={HOST_KEYS if self._is_mirror and os.path.isdir(HOST_KEYS) else nobodys}",
                '--aptopt=Acquire::Retries "2"',
                '--aptopt=Acquire::http::Timeout "30"',
                '--aptopt=Acquire::https::Timeout "30"',
                *more,
            ],
        )
        proxies = {name: value for name, value in os.environ.items() if name.lower() in _PROXIES}
        run(argv, self._scratch, proxies, on_line=self._tell, wall_s=_FETCH_S)

    def _tell(self, line: str) -> None:
        if found := _FETCHING.match(line):
            done, total = map(int, found.groups())
            self._means.report(Progress(step="fetching packages", done=done, total=total, unit="package"))
        for mark, step in _STEPS.items():
            if line.startswith(mark):
                self._means.report(Progress(step=step))


def mmdebstrap_argv(build: Build, variant: str, form: str, more: Sequence[str]) -> list[str]:
    """Return the command for one step."""
    return [
        "mmdebstrap",
        "--mode=unshare",
        f"--variant={variant}",
        f"--format={form}",
        f"--architectures={build.arch}",
        # Also in the finished tree: inside a sandbox there is one user, so apt can't become the one that it fetches as
        '--aptopt=APT::Sandbox::User "root"',
        "--skip=check/signed-by",
        *more,
        build.suite,
        "-",
        *(f"deb {address} {suite} main" for address, suite in build.sources),
    ]


def enclosed_argv(scratch: str, given: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return a command that runs another as root of the inner namespace: without network, home and other processes.

    It sees the host's /usr, `scratch`/tmp as its /tmp, and the files that are `given` by their paths inside. No filter
    of system calls stands before the kernel, which is the host's: this is less than the sandbox of a run.
    """
    argv = "bwrap --unshare-net --unshare-pid --unshare-ipc --unshare-uts --die-with-parent --cap-add ALL".split()
    argv += "--hostname debian --chdir / --ro-bind /usr /usr --proc /proc --dev /dev".split()
    argv += "--dir /etc --dir /given --dir /root --dir /run --dir /var/tmp --dir /var/lib/dpkg".split()
    argv += ["--bind", os.path.join(scratch, "tmp"), "/tmp"]
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        argv += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]
    for name in _ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for inside, outside in given.items():
        argv += ["--ro-bind", outside, inside]
    return [*argv, "--remount-ro", "/", "--", *_INNER, *command]


def run(
    argv: Sequence[str],
    scratch: str,
    environ: Mapping[str, str],
    *,
    on_line: Callable[[str], None] = lambda _line: None,
    stdout: int = subprocess.DEVNULL,
    wall_s: float,
) -> None:
    """Run a program to its end as root of the outer namespace, with `scratch`/tmp for its files, and read its lines.

    The environment has nothing of the caller's but what is given. However this ends, no process of it is left, and no
    file in `scratch`/tmp. No file can grow beyond the most that an archive may hold.

    Raises:
        RootfsError: it failed, or did not end within `wall_s`.
    """
    tmp = os.path.join(scratch, "tmp")
    made = {"PATH": SEARCH, "HOME": "/root", "TMPDIR": tmp, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    process = subprocess.Popen(
        # Shells count in blocks of 512 bytes
        [*_OUTER, "unspill-debian", tmp, str(_MOST_BYTES // 512), *argv],
        env={**made, **environ},
        cwd=scratch,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    timer = threading.Timer(wall_s, process.stdin.close)
    timer.start()
    tail: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        while raw := process.stderr.readline(_LONGEST_LINE):
            line = raw.decode("utf-8", "replace").rstrip()
            on_line(line)
            if line and not line.startswith(("dlstatus:", "pmstatus:")):
                tail.append(line)
        has_hung = process.stdin.closed
    finally:
        timer.cancel()
        process.stdin.close()
        process.stderr.close()
        with suppress(subprocess.TimeoutExpired):
            # Whatever it still has to remove, it goes on with that by itself
            process.wait(_END_S)
    program = next(word for word in argv if word in ("mmdebstrap", argv[0]))
    if has_hung:
        raise RootfsError(
            f"{program} did not finish in {wall_s:g} seconds: {'; '.join(tail)[-_LONGEST_LINE:]}",
            remedy="Try again, or leave out the package whose installation hangs.",
        )
    if process.returncode != 0:
        raise explain_failure(program, process.returncode, tuple(tail))


# What a program's last lines say, and what that means; the first row that matches counts
_CAUSES: tuple[tuple[str, type[RootfsError], str, str], ...] = (
    (
        "No space left on device|Disk quota exceeded|You don't have enough free space",
        RootfsError,
        "the disk is full",
        FREE_SPACE_REMEDY,
    ),
    (
        "NO_PUBKEY|BADSIG|(EXP|REV)KEYSIG|is not signed|doesn't contain a signature|Clearsigned file isn't valid"
        "|couldn't be verified|cannot be authenticated|Hash Sum mismatch|unexpected size|is expired|is not valid yet",
        RootfsUnverified,
        "the archive is damaged, its signature has expired, or it is not signed with a trusted key",
        "Check the clock and the mirror. For your own archive, put its key in /etc/apt/trusted.gpg.d.",
    ),
    (
        "Unable to locate package|has no installation candidate|Couldn't find any package by",
        RootfsError,
        "a package is not in this suite",
        "Check its name at packages.debian.org, or choose another suite.",
    ),
    (
        "does not have a Release file|404 +Not Found|no such file or directory",
        RootfsUnreachable,
        "the archive does not have this suite or one of its files",
        "Check the suite's name. For an old release, use Debian's archive of old releases as the mirror.",
    ),
    (
        "resolv(e|ing) '|Could not (resolve|connect)|Connection (refused|timed out|failed)|Network is unreachable"
        "|Unable to connect|Failed to fetch",
        RootfsUnreachable,
        "the archive can't be reached",
        "Check the network and the proxy (http_proxy), or use another mirror or a directory: file:/a/mirror.",
    ),
    (
        "newuidmap|newgidmap|[ug]id_map|no line matching user|unshare: |unshare failed|Operation not permitted",
        RootfsError,
        "this user can't create the namespaces that a build needs, with 65536 subordinate ids",
        "Run `unspill doctor`. Root can add ids: usermod --add-subuids 100000-165535"
        " --add-subgids 100000-165535 NAME. Or use another source.",
    ),
)


def explain_failure(program: str, code: int, tail: tuple[str, ...]) -> RootfsError:
    """Return the error that tells how a program failed, from what it said last."""
    kind, what, remedy = RootfsError, "", "Read its output above. unspill uses nothing half-built."
    chosen = [line for line in tail if line.startswith("E:")] or list(tail)
    for marks, its_kind, its_name, its_remedy in _CAUSES:
        named = [line for line in tail if re.search(marks, line, re.IGNORECASE)]
        if named:
            kind, what, remedy = its_kind, its_name, its_remedy
            chosen = [line for line in tail if line in named or line.startswith("E:")]
            break
    said = "; ".join([line.strip() for line in dict.fromkeys(chosen)][-6:])[-1500:]
    said = f"{program} exited with {code}: {said or '(it said nothing)'}"
    return kind(f"{what} ({said})" if what else said, remedy=remedy)


def checked_suite(version: str) -> str:
    """Return the suite that a spec means.

    Raises:
        RootfsError: it can't be one.
    """
    if version and not _SUITE.fullmatch(version):
        raise RootfsError(
            f"{version[:80]!r} can't be a Debian suite", remedy="Use a code name such as bookworm or trixie."
        )
    return version or DEFAULT_SUITE


def packages_of(tier: int, more: tuple[str, ...]) -> tuple[str, ...]:
    """Return the packages of a tier and those beyond it, each once.

    Raises:
        RootfsError: there is no such tier, or a name can't be a package's.
    """
    if tier not in TIERS:
        raise RootfsError(f"there is no tier {tier}", remedy="Use 1 (a shell, Python) or 2 (also git, curl, Node).")
    wrong = [name for name in more if not _PACKAGE.fullmatch(name)]
    if wrong:
        raise RootfsError(
            f"{wrong[0][:80]!r} can't be the name of a Debian package",
            remedy="Use two or more lower-case letters, digits and + - . with a letter or digit first.",
        )
    if len(more) > _MOST_PACKAGES:
        raise RootfsError(f"you asked for more than {_MOST_PACKAGES} packages", remedy="Ask for fewer.")
    return tuple(dict.fromkeys((*TIER_1, *(TIER_2 if tier > 1 else ()), *more)))


def sources_of(mirror: str, suite: str) -> Sources:
    """Return where packages come from, each address with a suite: Debian's servers, or what a person named instead.

    That is an address, or several with the suites that are used there (by default the one that is asked for):
    `https://mirror.example.org/debian bookworm bookworm-updates https://mirror.example.org/security bookworm-security`.
    `file:` and `copy:` name a directory of the same layout.

    Raises:
        RootfsError: it has another shape.
    """
    if not mirror.strip():
        if suite in _ROLLING:
            return ((MIRROR, suite),)
        return ((MIRROR, suite), (MIRROR, f"{suite}-updates"), (SECURITY_MIRROR, f"{suite}-security"))
    found: list[tuple[str, list[str]]] = []
    for word in mirror.split():
        if web := _WEB.fullmatch(word):
            found.append((web[1], []))
        elif (directory := _DIRECTORY.fullmatch(word)) and ".." not in directory[1].split("/"):
            # `copy:` and not `file:`, with which apt leaves packages where they are
            found.append((f"copy:{directory[1]}", []))
        elif found and _SUITE.fullmatch(word):
            found[-1][1].append(word)
        else:
            raise RootfsError(
                f"{word[:80]!r} can't be a Debian mirror",
                remedy="Name an address without a user, such as https://mirror.example.org/debian, or"
                " file:/a/directory; after it, the suites to use there.",
            )
    return tuple((address, name) for address, suites in found for name in suites or (suite,))


def check_host(search: str = SEARCH, keyring: str = KEYRING) -> None:
    """Check that this machine has what a build needs, and that this user has subordinate ids to build with.

    Raises:
        RootfsError: it has not; the remedy says what to install or to set.
    """
    packages = {"mmdebstrap": "mmdebstrap", "newuidmap": "uidmap", "newgidmap": "uidmap"}
    packages |= {"apt-get": "apt", "unshare": "util-linux", "bwrap": "bubblewrap"}
    missing = {name: package for name, package in packages.items() if which(name, path=search) is None}
    if not os.path.exists(keyring):
        missing[keyring] = "debian-archive-keyring"
    for name, package in missing.items():
        raise RootfsError(
            f"{name} is not installed, but a Debian rootfs can't be built without it",
            remedy=f"Install the package {package} (on Debian: apt install {package}), or use another source.",
        )
    argv = [*_NAMESPACE, "cat", "/proc/self/uid_map", "/proc/self/gid_map"]
    done = subprocess.run(argv, env={"PATH": search}, capture_output=True, text=True, check=False)
    if sum(int(line.split()[2]) for line in done.stdout.splitlines()) < 2 * _IDS:
        said = (*done.stderr.splitlines(), f"uid_map: fewer than {_IDS} ids: {done.stdout.split()}")
        raise explain_failure("unshare", done.returncode, said)


def installed_packages(tree: bytes) -> tuple[tuple[str, str], ...]:
    """Return the packages of a tree with their versions, by name; none where the tree does not say.

    It was made inside the rootfs, so no link of it is followed and no size of it believed.
    """
    try:
        tree_fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fd = open_beneath(tree_fd, b"var/lib/dpkg/status", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        finally:
            os.close(tree_fd)
    except OSError:
        return ()
    with open(fd, "rb") as file:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        text = file.read(_LARGEST_STATUS).decode("utf-8", "replace") if is_file else ""
    found = set()
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): *(.*?) *$", paragraph, re.MULTILINE))
        if {"Package", "Version"} <= fields.keys() and fields.get("Status", "").endswith(" installed"):
            found.add((fields["Package"], fields["Version"]))
    return tuple(sorted(found))


def _date_of(release: bytes) -> int:
    found = re.search(rb"^Date: (.+)$", release, re.MULTILINE)
    try:
        return int(parsedate_to_datetime(found[1].decode("ascii")).timestamp()) if found else 0
    except ValueError:
        return 0


def _arch(spec: str) -> str:
    ours, here = arch_of(spec), detect_arch()
    if ours != here and (ours, here) != ("x86", "x86_64"):
        raise RootfsError(
            f"a Debian rootfs for {ours} can't be built on {here}: its programs run during installation",
            remedy="Build it on a machine of that type.",
        )
    return DEBIAN_NAMES[ours]
