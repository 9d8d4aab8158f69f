# SPDX-License-Identifier: Apache-2.0
"""An Alpine made from a mirror on loopback: only a whole one is used, and no hostile package or link gets out of it."""

import base64
import hashlib
import io
import os
import shlex
import signal
import stat
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.kernel.alpine_mirror import (
    NEWER,
    VERSION,
    Mirror,
    real_packages,
    serve_mirror,
    serving,
    small_packages,
)
from tests.kernel.alpine_parts import ARCH, Entry, Package, minirootfs, tiny
from tests.kernel.alpine_signed import SignedMirror, Signer, pack_signed, version_of, with_entry
from tests.support import Ground, lasting, processes_with, starts
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.plan import Facts
from unspill.model.policy import MIB
from unspill.model.rootfs import Installed, Progress, Rootfs, RootfsManifest, RootfsSpec
from unspill.plan.rootfs import INSTALL_LIMITS
from unspill.rootfs.alpine import TIER1_PACKAGES, TIER2_PACKAGES, AlpineSource
from unspill.rootfs.build import obtain, prepare
from unspill.rootfs.registry import Registry
from unspill.rootfs.tar import unpack
from unspill.sandbox.rootfs_use import InstallGround, install, open_ground

pytestmark = pytest.mark.kernel

SECRET = "UNSPILL_TEST_SECRET"
Install = Callable[[bytes, object, object], Installed]


def install_ground(facts: Facts, state: Path) -> InstallGround:
    return InstallGround(state=os.fsencode(state), facts=facts, engine=facts.engines[0])


class Maker:
    """Makes rootfs in one directory, from one mirror."""

    def __init__(self, mirror: Mirror, ground: InstallGround, directory: Path) -> None:
        self.mirror, self.ground = mirror, ground
        self.registry = Registry(os.fsencode(directory))
        self.steps: list[Progress] = []

    def spec(self, **fields: object) -> RootfsSpec:
        return RootfsSpec(source="alpine", mirror=self.mirror.address, **fields)  # type: ignore[arg-type]

    def prepare(self, **fields: object) -> Rootfs:
        return prepare(
            self.registry, self.spec(**fields), AlpineSource(), install=self.install, report=self.steps.append
        )

    def obtain(self, **fields: object) -> tuple[Rootfs, bool]:
        return obtain(
            self.registry, self.spec(**fields), AlpineSource(), install=self.install, report=self.steps.append
        )

    def install(self, tree: bytes, argv: object, hosts: object) -> Installed:
        return install(tree, argv, hosts, ground=self.ground)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def installing(known_facts: tuple[str, Facts], tmp_path_factory: pytest.TempPathFactory) -> InstallGround:
    """What installing needs of this host."""
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    return install_ground(known_facts[1], state)


@pytest.fixture
def maker(alpine_mirror: Mirror, installing: InstallGround, tmp_path: Path) -> Maker:
    """An empty directory of rootfs, and a mirror whose bash and python3 are small."""
    return Maker(alpine_mirror, installing, tmp_path / "rootfs")


@pytest.fixture(scope="module")
def built(installing: InstallGround, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Maker, Rootfs]]:
    """One whole rootfs of tier 1, made while the caller had a secret in the environment."""
    with serve_mirror(real_packages()) as served, pytest.MonkeyPatch.context() as patched:
        patched.setenv(SECRET, "hunter2")
        maker = Maker(served, installing, tmp_path_factory.mktemp("shelf") / "rootfs")
        yield maker, maker.prepare()


# Wherever somebody has it: the genuine archive, with its own apk; docs/rootfs.md says how
GENUINE = os.environ.get("UNSPILL_TEST_ALPINE", "")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("keys"), "fixture")


def offered() -> list[Package]:
    """Return the packages of tier 1: small ones, with a script that tells who installs it."""
    return [package for package, _content in small_packages().values() if package.name in TIER1_PACKAGES]


def streams_of(content: bytes) -> list[bytes]:
    """Return the gzip streams of a package, still compressed."""
    found = []
    while content:
        unpacker = zlib.decompressobj(wbits=31)
        unpacker.decompress(content)
        found.append(content[: len(content) - len(unpacker.unused_data)])
        content = unpacker.unused_data
    return found


def files_of(stream: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isreg()}  # type: ignore[union-attr]


def test_a_signed_package_has_the_form_that_apk_reads(signer: Signer, tmp_path: Path) -> None:
    content, identity = pack_signed(tiny("sed"), signer)
    signature, control, data = streams_of(content)
    ((name, signed),) = files_of(signature).items()
    assert name == ".SIGN.RSA.fixture.rsa.pub"
    (tmp_path / "signed").write_bytes(signed)
    (tmp_path / "public").write_bytes(signer.public)
    words: list[str | Path] = [
        "openssl",
        "dgst",
        "-sha1",
        "-verify",
        tmp_path / "public",
        "-signature",
        tmp_path / "signed",
    ]
    assert subprocess.run(words, input=control, capture_output=True, check=True).stdout == b"Verified OK\n"
    assert f"datahash = {hashlib.sha256(data).hexdigest()}\n".encode() in files_of(control)[".PKGINFO"]
    assert base64.b64decode(identity.removeprefix("Q1")) == hashlib.sha1(control, usedforsecurity=False).digest()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        (file,) = (member for member in archive if member.isreg())
    assert file.pax_headers == {"APK-TOOLS.checksum.SHA1": hashlib.sha1(b"sed\n", usedforsecurity=False).hexdigest()}


if GENUINE:

    @pytest.fixture
    def genuine(signer: Signer, installing: InstallGround, tmp_path: Path) -> Iterator[tuple[Maker, str, str]]:
        """The genuine archive with one key more, on a mirror of signed packages; its version and its digest."""
        archive = Path(GENUINE).read_bytes()
        version = version_of(archive)
        with serving(SignedMirror(signer=signer)) as mirror:
            mirror.offer(offered())
            digest = mirror.publish(version, archive=with_entry(archive, signer.key_entry()))
            yield Maker(mirror, installing, tmp_path / "rootfs"), version, digest

    def test_the_genuine_apk_installs_signed_packages(genuine: tuple[Maker, str, str]) -> None:
        maker, version, digest = genuine
        rootfs = maker.prepare(version=version, sha256=digest)
        assert manifest_of(rootfs).proof == "pinned"
        assert set(TIER1_PACKAGES) < set(dict(manifest_of(rootfs).packages))
        assert maker.install(rootfs.tree, [b"/sbin/apk", b"--version"], []).output.startswith("apk-tools ")
        assert "bash-1.0-r0" in maker.install(rootfs.tree, [b"/sbin/apk", b"info", b"-v"], []).output.splitlines()
        assert (tree_of(rootfs) / "var/log/installer").read_text().splitlines()[:2] == ["0", "0"]
        assert {path.lstat().st_uid for path in tree_of(rootfs).rglob("*")} == {os.getuid()}

    @pytest.mark.parametrize("fault", ["another key", "a flipped byte"])
    def test_the_genuine_apk_refuses_what_is_not_signed(
        genuine: tuple[Maker, str, str], fault: str, tmp_path: Path
    ) -> None:
        maker, version, digest = genuine
        mirror = maker.mirror
        assert isinstance(mirror, SignedMirror)
        if fault == "another key":
            mirror.signer = Signer(tmp_path, "stranger")
            mirror.offer(offered())
            mirror.index()
        else:
            path = f"/alpine/{mirror.branch}/main/{ARCH}/sed-1.0-r0.apk"
            content = bytearray(mirror.files[path])
            content[-20] ^= 1
            mirror.files[path] = bytes(content)
        with pytest.raises(RootfsError, match="can't be installed"):
            maker.prepare(version=version, sha256=digest)


def manifest_of(rootfs: Rootfs) -> RootfsManifest:
    assert rootfs.manifest is not None
    return rootfs.manifest


def tree_of(rootfs: Rootfs) -> Path:
    return Path(os.fsdecode(rootfs.tree))


def test_install_packages(built: tuple[Maker, Rootfs]) -> None:
    maker, rootfs = built
    names = dict(manifest_of(rootfs).packages)
    assert {*TIER1_PACKAGES, "busybox", "musl", "host-libs"} == set(names)
    assert (names["bash"], names["python3"]) == ("5.2-r0", "3.11-r0")
    said = maker.install(rootfs.tree, [b"/bin/bash", b"-c", b"python3 --version; python3 -c 'import json'"], [])
    assert said.ok, said
    assert said.output.startswith("Python 3.")
    assert maker.install(rootfs.tree, [b"/sbin/apk", b"info", b"-v"], []).output.splitlines()[0] == "busybox-1.0-r0"


def test_the_manifest_says_what_it_is_and_what_spoke_for_it(built: tuple[Maker, Rootfs]) -> None:
    maker, rootfs = built
    manifest = manifest_of(rootfs)
    assert rootfs.name == manifest.key.name == f"alpine-{VERSION}-{ARCH}-t1"
    assert (manifest.key.tier, manifest.key.version, manifest.key.arch) == (1, VERSION, ARCH)
    assert manifest.proof == "same-server"
    assert manifest.spec == maker.spec()
    assert [name for name, _digest in manifest.fetched] == [f"alpine-minirootfs-{VERSION}-{ARCH}.tar.gz"]
    assert "installing packages" in [step.step for step in maker.steps]


def test_packages_come_from_both_repositories_of_the_versions_branch(built: tuple[Maker, Rootfs]) -> None:
    maker, rootfs = built
    expected = f"{maker.mirror.address}/v3.99/main\n{maker.mirror.address}/v3.99/community\n"
    assert (tree_of(rootfs) / "etc/apk/repositories").read_text() == expected
    assert f"/alpine/v3.99/community/{ARCH}/APKINDEX.tar.gz" in maker.mirror.asked


def test_packages_are_installed_by_uid_0_that_is_the_caller_outside(built: tuple[Maker, Rootfs]) -> None:
    tree = tree_of(built[1])
    assert (tree / "var/log/installer").read_text().splitlines()[:2] == ["0", "0"]
    owners = {path.lstat().st_uid for path in tree.rglob("*")}
    assert owners == {os.getuid()}


def test_packages_see_no_variable_of_the_caller(built: tuple[Maker, Rootfs]) -> None:
    lines = (tree_of(built[1]) / "var/log/installer").read_text().splitlines()[2:]
    seen = dict(line.split("=", 1) for line in lines)
    assert os.environ[SECRET] == "hunter2"
    assert SECRET not in seen
    assert seen["HOME"] == "/root"
    assert seen["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert not {"no_proxy", "NO_PROXY", "USERNAME", "XDG_RUNTIME_DIR"} & set(seen)


def test_a_rootfs_that_is_ready_is_not_asked_for_again(built: tuple[Maker, Rootfs]) -> None:
    maker, rootfs = built
    maker.mirror.asked.clear()
    assert maker.prepare() == rootfs
    assert maker.mirror.asked == []


def test_version_upgrade(maker: Maker) -> None:
    old = maker.prepare()
    maker.mirror.publish(NEWER)
    assert maker.prepare() == old
    new, is_new = maker.obtain()
    assert is_new
    assert (manifest_of(old).key.version, manifest_of(new).key.version) == (VERSION, NEWER)
    assert {rootfs.name for rootfs in maker.registry.list()} == {old.name, new.name}
    assert (tree_of(old) / "etc/alpine-release").read_text() == f"{VERSION}\n"
    assert (tree_of(new) / "etc/alpine-release").read_text() == f"{NEWER}\n"
    assert maker.obtain() == (new, False)


def test_another_tier_is_another_rootfs_with_more_packages(maker: Maker) -> None:
    maker.mirror.add(tiny("extra"))
    one, two = maker.prepare(), maker.prepare(tier=2, packages=("extra",))
    assert (manifest_of(two).key.tier, manifest_of(two).key.variant[:1]) == (2, "p")
    more = set(manifest_of(two).packages) - set(manifest_of(one).packages)
    assert {name for name, _version in more} == {*TIER2_PACKAGES, "extra"}
    assert set(maker.registry.list()) == {one, two}


def test_a_setuid_program_of_a_package_is_none_in_the_rootfs(maker: Maker) -> None:
    maker.mirror.add(tiny("sed", post_install="cp /bin/busybox /usr/bin/su && chmod 4711 /usr/bin/su\n"))
    rootfs = maker.prepare()
    assert stat.S_IMODE((tree_of(rootfs) / "usr/bin/su").stat().st_mode) == 0o711
    assert dict(manifest_of(rootfs).left_out)["setuid"] == 1


FAILURES: dict[str, tuple[Callable[[Mirror], object], type[RootfsError], str]] = {
    "no index of packages": (
        lambda mirror: mirror.answers.update({f"/alpine/v3.99/main/{ARCH}/APKINDEX.tar.gz": 404}),
        RootfsError,
        "APKINDEX.tar.gz: could not be fetched",
    ),
    "the server fails in the middle": (
        lambda mirror: mirror.answers.update({mirror.path_of("grep"): 500}),
        RootfsError,
        "grep-1.0-r0.apk: could not be fetched",
    ),
    "a package ends too early": (
        lambda mirror: mirror.cut.update({mirror.path_of("python3"): 200}),
        RootfsError,
        "python3-1.0-r0",
    ),
    "a package is another one": (
        lambda mirror: mirror.files.update({mirror.path_of("sed"): mirror.files[mirror.path_of("grep")]}),
        RootfsError,
        "UNTRUSTED",
    ),
    "a package is missing": (lambda mirror: _forget(mirror, "bash"), RootfsError, "no such package"),
    "a script fails": (
        lambda mirror: mirror.add(tiny("sed", post_install="exit 3\n")),
        RootfsError,
        "script exited with error 3",
    ),
    "a package has not what it should": (
        lambda mirror: mirror.add(tiny("python3")),
        RootfsError,
        "There is no /usr/bin/python3",
    ),
    "the archive is another version": (
        lambda mirror: mirror.publish(VERSION, archive=minirootfs("3.98.0")),
        RootfsUnverified,
        "should be Alpine 3.99.1",
    ),
    "the archive is not what the index says": (
        lambda mirror: mirror.files.update({_archive(mirror): minirootfs(VERSION, [Entry("etc/evil", b"x")])}),
        RootfsUnverified,
        "SHA-256",
    ),
    "there is no archive": (lambda mirror: mirror.files.pop(_archive(mirror)), RootfsUnreachable, "404"),
    "the archive has no apk": (
        lambda mirror: mirror.publish(VERSION, extra=[Entry("sbin/apk", b"", 0o644)]),
        RootfsError,
        "Permission denied",
    ),
}


def _archive(mirror: Mirror) -> str:
    return f"/alpine/v3.99/releases/{ARCH}/alpine-minirootfs-{VERSION}-{ARCH}.tar.gz"


def _forget(mirror: Mirror, name: str) -> None:
    del mirror.packages[name]
    mirror.index()


@pytest.mark.parametrize("name", FAILURES)
def test_nothing_half_built_is_ever_used(maker: Maker, name: str) -> None:
    spoil, kind, words = FAILURES[name]
    spoil(maker.mirror)
    with pytest.raises(kind, match=words):
        maker.prepare()
    assert maker.registry.list() == ()
    assert maker.registry.current() is None
    left = [path for path in Path(os.fsdecode(maker.registry.directory)).glob("*/*") if path.is_dir()]
    assert left == []


def test_a_mirror_that_swaps_archive_and_checksums_is_found_out_by_a_pinned_digest(maker: Maker) -> None:
    good = maker.mirror.publish(VERSION)
    swapped = maker.mirror.publish(VERSION, extra=[Entry("etc/evil", b"x")])
    for pinned in ({}, {"version": VERSION}):
        with pytest.raises(RootfsUnverified):
            maker.prepare(sha256=good, **pinned)
    assert maker.registry.list() == ()

    believed = manifest_of(maker.prepare())
    assert (believed.proof, believed.fetched[0][1]) == ("same-server", swapped)


def test_packages_are_installed_whatever_the_engine_is(maker: Maker, built: tuple[Maker, Rootfs]) -> None:
    for engine in maker.ground.facts.engines:
        maker.ground = maker.ground.replace(engine=engine)
        assert maker.install(built[1].tree, [b"/bin/sh", b"-c", b"id -u"], []) == Installed(ok=True, output="0"), engine


def test_what_installing_needs_is_found_out_without_a_project(ground: Ground, built: tuple[Maker, Rootfs]) -> None:
    found = open_ground(ground.policy())
    assert found.state == os.fsencode(ground.state)
    assert install(built[1].tree, [b"/bin/true"], [], ground=found).ok
    assert ground.left_behind() == []


def test_after_a_failure_the_next_attempt_succeeds(maker: Maker) -> None:
    maker.mirror.answers[maker.mirror.path_of("sed")] = 503
    with pytest.raises(RootfsError):
        maker.prepare()
    maker.mirror.answers.clear()
    maker.mirror.asked.clear()
    assert maker.prepare().name == f"alpine-{VERSION}-{ARCH}-t1"
    assert _archive(maker.mirror) not in maker.mirror.asked


INDEX = f"/alpine/latest-stable/releases/{ARCH}/latest-releases.yaml"

# Each succeeds if the attack does; none harms the host, for that is where the control runs it
ATTACKS = {
    "reads the home directory": "busybox grep -q hunter2 {secret}",
    "lists the home directory": "busybox ls {outside}",
    "writes outside": "echo planted >{outside}/planted",
    "reaches another server on loopback": "busybox wget -q -O - http://127.0.0.1:{other}/",
    "reaches it past the proxy": "busybox env -u http_proxy busybox wget -q -O - http://127.0.0.1:{other}/",
    "reaches the mirror by another name": "busybox wget -q -O - http://localhost:{mirror}{index}",
    "signals the caller": "kill -0 {pid}",
    "reads the caller's variables": "busybox grep -q PATH /proc/{pid}/environ",
    "makes a user namespace": "busybox unshare -U true",
    "mounts something": "busybox unshare -rm busybox mount -t tmpfs none /mnt",
}


class Other(BaseHTTPRequestHandler):
    """Another server of this host."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"internal\n")

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """The port of a server that nobody named as a mirror."""
    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def installing_apart(known_facts: tuple[str, Facts], tmp_path: Path) -> InstallGround:
    """What installing needs of this host."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    facts = known_facts[1]
    return InstallGround(state=os.fsencode(state), facts=facts, engine=facts.engines[0])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the caller, with a secret."""
    directory = tmp_path / "home"
    directory.mkdir()
    (directory / "secret").write_text("hunter2\n")
    return directory


def unpacked(tmp_path: Path, mirror: Mirror, *extra: Entry) -> bytes:
    """Return a half-built tree that takes its packages from a mirror."""
    archive, tree = tmp_path / "archive", tmp_path / "tree"
    repositories = Entry("etc/apk/repositories", f"{mirror.address}/v3.99/main\n".encode(), 0o644)
    archive.write_bytes(minirootfs(VERSION, [repositories, *extra]))
    tree.mkdir()
    unpack(os.fsencode(archive), os.fsencode(tree))
    return os.fsencode(tree)


def add(tree: bytes, mirror: Mirror, ground: InstallGround, script: str) -> Installed:
    """Install a package with this script."""
    mirror.add(tiny("evil", post_install=script))
    words = [b"/sbin/apk", b"add", b"--no-cache", b"--", b"evil"]
    return install(tree, words, [f"127.0.0.1:{mirror.port}"], ground=ground)


def test_nothing_that_a_script_tries_gets_out_of_the_tree(
    alpine_mirror: Mirror, installing_apart: InstallGround, outside: Path, other_port: int, tmp_path: Path
) -> None:
    words = {
        "secret": outside / "secret",
        "outside": outside,
        "other": other_port,
        "mirror": alpine_mirror.port,
        "index": INDEX,
        "pid": os.getpid(),
    }
    scripts = {name: script.format_map(words) for name, script in ATTACKS.items()}
    tree = unpacked(tmp_path, alpine_mirror)
    tried = [
        f"({script}) >/dev/null 2>&1 && echo {shlex.quote(name)} >>/var/log/done" for name, script in scripts.items()
    ]
    installed = add(tree, alpine_mirror, installing_apart, "\n".join([": >/var/log/done", *tried, "true", ""]))
    assert installed.ok, installed
    assert (Path(os.fsdecode(tree)) / "var/log/done").read_text() == ""
    assert sorted(os.listdir(outside)) == ["secret"]

    bare = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    for name, script in scripts.items():
        control = subprocess.run(["/bin/sh", "-c", script], env=bare, capture_output=True, check=False, timeout=20)
        assert control.returncode == 0, (name, control.stderr)


def test_what_a_script_leaves_running_dies_with_the_installation(
    alpine_mirror: Mirror, installing_apart: InstallGround, tmp_path: Path
) -> None:
    word = lasting()
    script = f"busybox setsid busybox sleep {word} </dev/null >/dev/null 2>&1 &\n"
    assert add(unpacked(tmp_path, alpine_mirror), alpine_mirror, installing_apart, script).ok
    assert processes_with(word) == []

    pid = int(subprocess.check_output(["/bin/sh", "-c", f"{script}echo $!"], timeout=20))
    try:
        assert starts(word)
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("place", ["tmp", "run", "proc", "dev"])
def test_a_link_of_the_archive_leads_bwrap_to_no_place_of_the_host(
    alpine_mirror: Mirror, installing_apart: InstallGround, outside: Path, tmp_path: Path, place: str
) -> None:
    target = f"/oldroot{outside}"
    tree = unpacked(tmp_path, alpine_mirror, Entry(place, target=target))
    assert os.readlink(os.fsdecode(tree) + f"/{place}") == target
    assert install(tree, [b"/bin/true"], [], ground=installing_apart).ok
    assert sorted(os.listdir(outside)) == ["secret"]

    assert installing_apart.facts.bwrap is not None
    careless: list[str | bytes] = [
        installing_apart.facts.bwrap.path,
        "--bind",
        tree,
        "/",
        "--tmpfs",
        f"/{place}/made",
        "/bin/true",
    ]
    subprocess.run(careless, capture_output=True, check=False, timeout=20)
    assert (outside / "made").exists() is installing_apart.facts.bwrap.symlink_flaw


def test_a_link_that_a_script_leaves_leads_the_next_step_to_no_place_of_the_host(
    alpine_mirror: Mirror, installing_apart: InstallGround, outside: Path, tmp_path: Path
) -> None:
    tree = unpacked(tmp_path, alpine_mirror)
    planted = f"for at in /var/tmp /etc /root /tmp; do rm -rf $at; ln -s /oldroot{outside}/made $at; done; true\n"
    add(tree, alpine_mirror, installing_apart, planted)
    top = Path(os.fsdecode(tree))
    assert (top / "var/tmp").is_symlink()
    assert not any((top / name).is_symlink() for name in ("etc", "root", "tmp"))
    install(tree, [b"/bin/true"], [], ground=installing_apart)
    assert sorted(os.listdir(outside)) == ["secret"]


BOUNDS = {
    "time": (INSTALL_LIMITS.replace(wall_s=0.5), "busybox sleep 60\n", "ended after"),
    "bytes": (
        INSTALL_LIMITS.replace(layer_bytes=32 * MIB),
        "busybox dd if=/dev/zero of=/usr/big bs=1M count=64; busybox sleep 60\n",
        "layer_bytes",
    ),
    "entries": (
        INSTALL_LIMITS.replace(layer_entries=500),
        "busybox mkdir /usr/many; cd /usr/many; busybox seq 2000 | busybox xargs busybox touch; busybox sleep 60\n",
        "layer_entries",
    ),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_script_that_takes_too_much_is_ended(
    alpine_mirror: Mirror, installing_apart: InstallGround, tmp_path: Path, bound: str
) -> None:
    limits, script, words = BOUNDS[bound]
    tree = unpacked(tmp_path, alpine_mirror)
    installed = add(tree, alpine_mirror, installing_apart.replace(limits=limits), script)
    assert not installed.ok
    assert words in installed.output


def test_what_is_refused_is_told(
    alpine_mirror: Mirror, installing_apart: InstallGround, other_port: int, tmp_path: Path
) -> None:
    script = f"busybox wget -q -O - http://127.0.0.1:{other_port}/\n"
    installed = add(unpacked(tmp_path, alpine_mirror), alpine_mirror, installing_apart, script)
    assert not installed.ok
    assert f"the sandbox refused 127.0.0.1:{other_port} (address)" in installed.output


def test_what_a_script_writes_is_shown_without_control_characters(
    alpine_mirror: Mirror, installing_apart: InstallGround, tmp_path: Path
) -> None:
    script = "printf 'a\\033]0;b\\007c\\n'; exit 1\n"
    installed = add(unpacked(tmp_path, alpine_mirror), alpine_mirror, installing_apart, script)
    assert "a�]0;b�c" in installed.output.splitlines()


def test_it_is_told_how_many_packages_are_there_already(
    alpine_mirror: Mirror, installing_apart: InstallGround, tmp_path: Path
) -> None:
    told: list[Progress] = []
    words = [b"/sbin/apk", b"add", b"--no-cache", b"--", b"grep", b"sed"]
    tree, hosts = unpacked(tmp_path, alpine_mirror), [f"127.0.0.1:{alpine_mirror.port}"]
    assert install(tree, words, hosts, ground=installing_apart.replace(report=told.append)).ok
    assert told == [Progress(step="installing packages", done=done, total=2, unit="package") for done in (1, 2)]


def test_without_hosts_there_is_no_network_at_all(
    alpine_mirror: Mirror, installing_apart: InstallGround, tmp_path: Path
) -> None:
    tree = unpacked(tmp_path, alpine_mirror)
    words = [b"/bin/wget", b"-q", b"-O", b"-", f"http://127.0.0.1:{alpine_mirror.port}{INDEX}".encode()]
    assert not install(tree, words, [], ground=installing_apart).ok
    assert install(tree, words, [f"127.0.0.1:{alpine_mirror.port}"], ground=installing_apart).ok
