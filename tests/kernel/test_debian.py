# SPDX-License-Identifier: Apache-2.0
"""A Debian rootfs, built from Debian's packages by an ordinary user: where they come from, and what they can do."""

import hashlib
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.building import made_once
from tests.kernel.debian_roots import SPEC, Workshop, means_below, no_install, reachable_spec
from tests.support import Ground, kinds, lasting, printed, processes_with
from unspill import RunResult
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import RootfsManifest, RootfsSpec
from unspill.rootfs.build import prepare
from unspill.rootfs.compression import Bounds
from unspill.rootfs.debian import Build, DebianSource, enclosed_argv, packages_of, run
from unspill.rootfs.source import DEBIAN_NAMES, detect_arch
from unspill.rootfs.tar import unpack

pytestmark = pytest.mark.kernel

PROGRAM = """\
#include <stdio.h>
int main(void) { printf("compiled inside\\n"); return 0; }
"""


def run_in(workshop: Workshop, ground: Ground, command: str) -> RunResult:
    """Run a command with the Debian rootfs as its root."""
    return ground.sandbox(view="rootfs", rootfs=os.fsdecode(workshop.rootfs.tree)).run(command)


def manifest_of(workshop: Workshop) -> RootfsManifest:
    assert workshop.rootfs.manifest is not None
    return workshop.rootfs.manifest


@pytest.mark.timeout(600)
def test_an_ordinary_user_builds_it_and_signatures_speak_for_it(workshop: Workshop) -> None:
    assert os.geteuid() != 0
    manifest = manifest_of(workshop)
    assert manifest.proof == "signed"
    assert workshop.rootfs.name.startswith("debian-bookworm.2")
    assert {name for name, _digest in manifest.fetched} == {
        "bookworm/InRelease",
        "bookworm-updates/InRelease",
        "bookworm-security/InRelease",
    }


@pytest.mark.timeout(600)
def test_its_packages_are_listed_with_their_versions(workshop: Workshop) -> None:
    packages = dict(manifest_of(workshop).packages)
    assert {"bash", "python3", "python3-pip", "coreutils", "grep", "sed", "git", "gcc"} <= set(packages)
    assert packages["gcc"].startswith("4:12.")


@pytest.mark.timeout(600)
def test_all_of_it_is_the_callers_without_bits_that_give_rights_away(workshop: Workshop) -> None:
    found = 0
    for directory, names, files in os.walk(workshop.rootfs.tree):
        for name in names + files:
            entry = os.lstat(os.path.join(directory, name))
            found += 1
            assert entry.st_uid == os.getuid()
            assert not entry.st_mode & (stat.S_ISUID | stat.S_ISGID)
            assert stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode) or stat.S_ISLNK(entry.st_mode)
    assert found > 5000
    # It is because they were left out, not because Debian had none
    assert dict(manifest_of(workshop).left_out)["setuid"] > 0


@pytest.mark.timeout(600)
def test_nothing_in_it_tells_of_the_machine_that_built_it(workshop: Workshop) -> None:
    etc = Path(os.fsdecode(workshop.rootfs.tree), "etc")
    assert "copy:" not in (etc / "apt/sources.list").read_text()
    assert (etc / "resolv.conf").read_text() == ""
    assert not (etc / "hostname").exists()
    home = os.fsencode(Path.home())
    told = [path for path in etc.rglob("*") if path.is_file() and home in path.read_bytes()]
    assert told == []


@pytest.mark.timeout(600)
def test_asking_again_builds_nothing(workshop: Workshop) -> None:
    source = DebianSource()
    again = prepare(
        workshop.registry, reachable_spec(), source, install=no_install, report=lambda _progress: pytest.fail("built")
    )
    assert again == workshop.rootfs


@pytest.mark.timeout(600)
def test_python_of_the_rootfs_runs(workshop: Workshop, ground: Ground) -> None:
    result = run_in(workshop, ground, "python3 -c 'import sys, ssl, sqlite3; print(sys.prefix, sys.version_info[:2])'")
    assert printed(result) == "/usr (3, 11)\n"


@pytest.mark.timeout(600)
def test_it_is_debian_whatever_the_host_is(workshop: Workshop, ground: Ground) -> None:
    assert "ID=debian\n" in printed(run_in(workshop, ground, "cat /etc/os-release"))


@pytest.mark.timeout(600)
def test_git_makes_a_repository_in_the_project(workshop: Workshop, ground: Ground) -> None:
    ground.write("a.txt", "one\n")
    command = (
        "git init -q . && git config user.name A && git config user.email a@example.org"
        " && git add a.txt && git commit -qm first && git log --format=%s && pwd"
    )
    result = run_in(workshop, ground, command)
    assert printed(result) == "first\n/workspace\n"
    assert ".git" in kinds(result.changes)
    assert not (ground.project / ".git").exists()


@pytest.mark.timeout(600)
def test_a_compiler_makes_a_program_that_runs(workshop: Workshop, ground: Ground) -> None:
    ground.write("p.c", PROGRAM)
    result = run_in(workshop, ground, "gcc -O1 -o p p.c && ./p")
    assert printed(result) == "compiled inside\n"
    assert kinds(result.changes) == {"p": "added"}


@pytest.mark.timeout(600)
def test_pip_and_the_package_manager_are_there(workshop: Workshop, ground: Ground) -> None:
    result = run_in(workshop, ground, "pip --version && dpkg -l gcc | tail -1 && apt-get --version | head -1")
    lines = printed(result).splitlines()
    assert lines[0].startswith("pip ")
    assert lines[1].startswith("ii")


@pytest.mark.timeout(600)
def test_apt_does_not_try_to_become_another_user_where_there_is_one(workshop: Workshop, ground: Ground) -> None:
    written = Path(os.fsdecode(workshop.rootfs.tree), "etc/apt/apt.conf.d/99mmdebstrap")
    assert written.read_text() == 'APT::Sandbox::User "root";\n'
    tree = os.fsdecode(workshop.rootfs.tree)
    sandbox = ground.sandbox(view="rootfs", rootfs=tree, rootfs_writable=True)
    # There is no network: what matters is that it gets as far as asking for it
    said = printed(sandbox.run("apt-get -o Acquire::Retries=0 update 2>&1; true"))
    assert "Err:1 " in said
    assert not re.search(refusal := "seteuid|setegid|setgroups", said)
    # Control: as Debian has it
    assert re.search(refusal, printed(sandbox.run("apt-get -o APT::Sandbox::User=_apt update 2>&1; true")))


@pytest.mark.timeout(600)
def test_a_command_changes_nothing_of_the_rootfs(workshop: Workshop, ground: Ground) -> None:
    result = run_in(workshop, ground, "touch /usr/bin/planted /etc/planted; ls /usr/bin/planted /etc/planted")
    assert not result.ok
    assert not Path(os.fsdecode(workshop.rootfs.tree), "usr/bin/planted").exists()


ARCH = DEBIAN_NAMES[detect_arch()]
PACKAGES = packages_of(SPEC.tier, SPEC.packages)
SUITES = ("bookworm", "bookworm-updates", "bookworm-security")


@dataclass(frozen=True)
class Directory:
    """An archive in a directory."""

    top: Path

    @property
    def mirror(self) -> str:
        return f"file:{self.top} {' '.join(SUITES)}"

    @property
    def main(self) -> Path:
        return self.top / "dists/bookworm"

    def replace(self, path: Path, content: bytes) -> None:
        """Write a file anew: its old content has other names elsewhere."""
        path.unlink()
        path.write_bytes(content)

    def build(self, top: Path) -> Build:
        return Build(RootfsSpec(source="debian", mirror=self.mirror), ARCH, means_below(top))


@pytest.fixture(scope="module")
def laid_out(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was fetched for the workshop, as an archive of its own with all suites at one address."""
    return made_once(tmp_path_factory, "archive", lambda top: lay_out(workshop, top)) / "mirror"


def lay_out(workshop: Workshop, top: Path) -> None:
    kept = top / "kept"
    for ending in ("lists", "packages"):
        (kept / ending).mkdir(parents=True)
        (path,) = workshop.downloads.glob(f"debian-*.{ending}")
        unpack(bytes(path), bytes(kept / ending))
    mirror = top / "mirror"
    for path in (kept / "lists/lists").glob("*_dists_*"):
        if path.is_file():
            to = mirror / "dists" / path.name.rpartition("_dists_")[2].replace("_", "/")
            to.parent.mkdir(parents=True, exist_ok=True)
            path.rename(to)
    lists = "".join(path.read_text() for path in mirror.glob(f"dists/*/main/binary-{ARCH}/Packages"))
    places = {Path(name).name: name for name in re.findall("^Filename: (.*)$", lists, re.MULTILINE)}
    for path in (kept / "packages/archives").glob("*.deb"):
        # In a file's name apt writes the colon of a version so, and an archive leaves that part out
        name = re.sub("_[^_]*%3a", "_", path.name)
        to = mirror / places[name]
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)


@pytest.fixture
def directory(laid_out: Path, tmp_path: Path) -> Directory:
    """An archive for one test, of hard links."""
    shutil.copytree(laid_out, tmp_path / "mirror", copy_function=os.link)
    return Directory(tmp_path / "mirror")


@pytest.fixture
def offline(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """An archive in a directory; whatever would go to the network is led to where nobody listens."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    return directory


@pytest.mark.timeout(600)
def test_a_directory_of_packages_is_enough_without_a_network(offline: Directory, tmp_path: Path) -> None:
    build = offline.build(tmp_path / "build")
    build.fetch_lists()
    build.fetch_packages(PACKAGES)
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    (path,) = (tmp_path / "build/downloads").glob("debian-*.packages")
    unpack(bytes(path), bytes(fetched))
    assert {"gcc", "git", "python3", "dpkg"} <= {path.name.partition("_")[0] for path in fetched.rglob("*.deb")}


@pytest.mark.timeout(600)
def test_a_rootfs_is_built_from_a_directory_alone(offline: Directory, tmp_path: Path, full: bool) -> None:
    source, means = DebianSource(), means_below(tmp_path / "means")
    spec = RootfsSpec(source="debian", mirror=offline.mirror, packages=SPEC.packages)
    resolved = source.resolve(spec, means)
    assert resolved.proof == "signed"
    assert resolved.key.name.startswith("debian-bookworm.2")
    if full:
        tree = tmp_path / "tree"
        tree.mkdir()
        filled = source.fill(resolved, bytes(tree), means)
        assert dict(filled.packages)["git"]
        assert os.fspath(offline.top) not in (tree / "etc/apt/sources.list").read_text()


@pytest.mark.timeout(600)
def test_a_package_with_one_flipped_byte_is_refused(directory: Directory, tmp_path: Path) -> None:
    (package,) = directory.top.rglob("bash_*.deb")
    content = bytearray(package.read_bytes())
    content[len(content) // 2] ^= 1
    directory.replace(package, bytes(content))
    build = directory.build(tmp_path / "build")
    build.fetch_lists()
    with pytest.raises(RootfsUnverified):
        build.fetch_packages(("bash",))


@pytest.mark.timeout(600)
def test_what_was_fetched_before_something_failed_is_used(directory: Directory, tmp_path: Path) -> None:
    build = directory.build(tmp_path / "build")
    build.fetch_lists()
    (missing,) = directory.top.rglob("git_*.deb")
    missing.rename(tmp_path / "git.deb")
    with pytest.raises(RootfsUnreachable):
        build.fetch_packages(("git",))
    # The others are not there any more
    for package in directory.top.rglob("*.deb"):
        package.unlink()
    (tmp_path / "git.deb").rename(missing)
    build.fetch_packages(("git",))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["InRelease", "main/binary-{arch}/Packages"])
def test_a_list_with_one_changed_word_is_refused(directory: Directory, tmp_path: Path, name: str) -> None:
    path = directory.main / name.format(arch=ARCH)
    directory.replace(path, path.read_bytes().replace(b"Debian", b"debian", 1))
    with pytest.raises(RootfsUnverified):
        directory.build(tmp_path / "build").fetch_lists()


@pytest.mark.timeout(600)
def test_an_archive_without_a_signature_is_refused_though_all_its_digests_are_right(
    directory: Directory, tmp_path: Path
) -> None:
    """The control arm is apt that was told to trust it."""
    index = directory.main / f"main/binary-{ARCH}/Packages"
    content = index.read_bytes().replace(b"Maintainer: ", b"Maintainer: nobody ", 1)
    directory.replace(index, content)
    (directory.main / "InRelease").unlink()
    digest = hashlib.sha256(content).hexdigest()
    release = (
        f"Suite: stable\nCodename: bookworm\nArchitectures: {ARCH}\nComponents: main\n"
        f"Date: Sat, 14 Nov 2026 00:00:00 UTC\nSHA256:\n {digest} {len(content)} main/binary-{ARCH}/Packages\n"
    )
    (directory.main / "Release").write_text(release)
    with pytest.raises(RootfsUnverified, match="not signed"):
        directory.build(tmp_path / "build").fetch_lists()
    argv = ["mmdebstrap", "--mode=unshare", "--variant=extract", "--format=null", f"--architectures={ARCH}"]
    argv += ['--aptopt=APT::Sandbox::User "root"', "--skip=check/signed-by", "bookworm", "-"]
    enter = ["unshare", "--user", "--map-root-user", "--map-auto", "--"]
    argv = [*enter, *argv, f"deb [trusted=yes] copy:{directory.top} bookworm main"]
    environ = {"PATH": "/usr/sbin:/usr/bin:/bin", "TMPDIR": os.fspath(tmp_path), "LANG": "C.UTF-8"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
def test_a_package_that_does_not_exist_is_told(directory: Directory, tmp_path: Path) -> None:
    build = directory.build(tmp_path / "build")
    build.fetch_lists()
    # apt would take the second for a pattern that many packages match
    for name in ("no-such-package", "bas.h"):
        with pytest.raises(RootfsError, match="not in this suite"):
            build.fetch_packages(("bash", name))


@pytest.mark.timeout(600)
def test_a_suite_that_does_not_exist_is_told(directory: Directory, tmp_path: Path) -> None:
    shutil.rmtree(directory.main)
    with pytest.raises(RootfsUnreachable, match="does not have this suite"):
        directory.build(tmp_path / "build").fetch_lists()


@pytest.mark.timeout(600)
def test_an_archive_that_nobody_serves_is_unreachable(tmp_path: Path) -> None:
    spec = RootfsSpec(source="debian", mirror="http://127.0.0.1:9/debian")
    with pytest.raises(RootfsUnreachable, match="can't be reached") as error:
        DebianSource().resolve(spec, means_below(tmp_path))
    assert "file:/" in error.value.remedy


UNENCLOSED = "unshare --user --map-root-user --map-auto --mount --pid --fork --".split()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """What a build has to itself, below a directory that nobody else can enter."""
    top = tmp_path / "scratch"
    top.mkdir()
    (top / "subuid").write_text("root:1:65535\n")
    (top / "package").write_text("as it was fetched")
    (top / "package").chmod(0o644)
    tmp_path.chmod(0o700)
    return top


def enclosed(scratch: Path, script: str) -> list[str]:
    """Return the command that runs a shell script in the place of a build."""
    given = {
        "/etc/subuid": scratch / "subuid",
        "/etc/subgid": scratch / "subuid",
        "/given/package": scratch / "package",
    }
    paths = {inside: os.fspath(outside) for inside, outside in given.items()}
    return enclosed_argv(os.fspath(scratch), paths, ["sh", "-c", f"exec >&2; {script}"])


@pytest.fixture
def secret() -> Iterator[Path]:
    """A secret in the home directory that everybody may read, by its mode."""
    path = Path.home() / f"secret-{os.getpid()}"
    path.write_text("the secret")
    path.chmod(0o644)
    yield path
    path.unlink()


def probe(scratch: Path, script: str, *, is_enclosed: bool) -> str:
    """Run a shell script in the place of a build, or as root of a plain user namespace; return what it printed."""
    lines: list[str] = []
    script += "\ntrue"
    if is_enclosed:
        run(enclosed(scratch, script), os.fspath(scratch), {}, on_line=lines.append, wall_s=60)
        return "\n".join(lines)
    argv = [*UNENCLOSED, "sh", "-c", script]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(argv, env=environ, cwd=scratch, stdout=-1, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.rstrip("\n")


def test_the_probe_is_root_of_many_ids_in_both_arms(scratch: Path) -> None:
    script = "id -u; cd /tmp; touch another && chown 33:33 another && stat -c %u:%g another; rm another"
    for is_enclosed in (True, False):
        assert probe(scratch, script, is_enclosed=is_enclosed).splitlines() == ["0", "33:33"]


def test_the_home_directory_is_not_there(scratch: Path, secret: Path) -> None:
    script = f"cat {secret}; ls -A /home /root /run /mnt /srv 2>/dev/null; true"
    assert "the secret" not in probe(scratch, script, is_enclosed=True)
    assert "the secret" in probe(scratch, script, is_enclosed=False)


def test_what_hides_it_can_not_be_taken_away(scratch: Path, secret: Path) -> None:
    script = f"""
        for point in / /usr /given/package /tmp /etc/passwd /proc; do umount $point && echo taken away: $point; done
        for at in $(ls /proc | grep -E '^[0-9]+$'); do cat /proc/$at/root{secret} && echo reached; done
        mount -t proc proc /proc && ls /proc/*/root{secret} && echo reached
        true
    """
    said = probe(scratch, script, is_enclosed=True)
    assert "taken away" not in said
    assert "reached" not in said


def test_files_of_the_caller_are_a_strangers(scratch: Path) -> None:
    script = "echo changed >> {0}; chmod 777 {0}; rm -f {0}; cat {0}"
    assert "as it was fetched" in probe(scratch, script.format("/given/package"), is_enclosed=True)
    assert (scratch / "package").read_text() == "as it was fetched"
    probe(scratch, script.format(scratch / "package"), is_enclosed=False)
    assert not (scratch / "package").exists()


def test_there_is_no_network(scratch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = textwrap.dedent(f"""
            import socket
            try:
                socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 5)
                print("connected")
            except OSError as error:
                print(error.strerror)
        """)
        script = f"/usr/bin/python3 -c '{connect}'"
        assert probe(scratch, script, is_enclosed=True) == "Connection refused"
        assert "connected" in probe(scratch, script, is_enclosed=False)


def test_no_process_of_the_host_is_seen(scratch: Path) -> None:
    word = lasting()
    with subprocess.Popen(["sleep", word]) as sleeping:
        script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        try:
            assert word not in probe(scratch, script, is_enclosed=True)
            assert word in probe(scratch, script, is_enclosed=False)
        finally:
            sleeping.kill()


def test_the_environment_of_the_caller_is_not_handed_on(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "a secret value")
    assert "a secret value" not in probe(scratch, "env; cat /proc/1/environ", is_enclosed=True)


STARTER = """\
import sys
from unspill.rootfs.debian import run

run(sys.argv[2:], sys.argv[1], {}, on_line=lambda line: print(line, flush=True), wall_s=60)
"""


def leave_files_and_wait(word: str) -> str:
    return f"mkdir -p /tmp/a/b && touch /tmp/a/b/c && chown -R 33:33 /tmp/a && echo begun && sleep {word}"


def until(condition: object, seconds: float = 15) -> bool:
    """Wait until a condition holds; tell whether it does."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_an_interrupted_build_leaves_no_process_and_no_file(scratch: Path) -> None:
    word = lasting()

    def interrupt(line: str) -> None:
        if line == "begun":
            assert (scratch / "tmp/a").lstat().st_uid != os.getuid()
            raise KeyboardInterrupt

    argv = enclosed(scratch, leave_files_and_wait(word))
    with pytest.raises(KeyboardInterrupt):
        run(argv, os.fspath(scratch), {}, on_line=interrupt, wall_s=60)
    assert processes_with(word) == []
    assert not (scratch / "tmp").exists()


HANGING = {
    "silently": "sleep {0}",
    "with words": "while :; do echo waiting; sleep 0.01; done; sleep {0}",
    "with a line that has no end": "while :; do printf x; done; sleep {0}",
    "with its output closed": "exec >/dev/null 2>&1; sleep {0}",
    "while a child has its output": "sleep {0} & exit 0",
}


@pytest.mark.parametrize("script", HANGING.values(), ids=HANGING)
def test_a_build_that_hangs_leaves_no_process_and_no_file(scratch: Path, script: str) -> None:
    word = lasting()
    argv = enclosed(scratch, leave_files_and_wait("0") + "; " + script.format(word))
    if script.endswith("exit 0"):
        # Nothing is waited for that outlives the build itself
        run(argv, os.fspath(scratch), {}, wall_s=60)
    else:
        with pytest.raises(RootfsError, match="did not finish in 3 seconds: "):
            run(argv, os.fspath(scratch), {}, wall_s=3)
    assert processes_with(word) == []
    assert not (scratch / "tmp").exists()


def test_no_file_of_a_build_can_grow_without_end(scratch: Path) -> None:
    script = "ulimit -H -f; ulimit -f unlimited; ulimit -H -f"
    grow = "; truncate -s 33G /tmp/f || echo refused"
    bound = str(Bounds().total_bytes // 512)
    assert probe(scratch, script, is_enclosed=False).splitlines() == ["unlimited", "unlimited"]
    assert probe(scratch, "ulimit -H -f" + grow, is_enclosed=True).splitlines()[::2] == [bound, "refused"]
    assert probe(scratch, script, is_enclosed=True).splitlines()[0] == bound
    assert "unlimited" not in probe(scratch, script, is_enclosed=True).splitlines()


def test_a_build_whose_caller_was_killed_ends_and_removes_what_it_made(scratch: Path) -> None:
    word = lasting()
    argv = enclosed(scratch, leave_files_and_wait(word))
    with subprocess.Popen([sys.executable, "-c", STARTER, scratch, *argv], stdout=subprocess.PIPE, text=True) as caller:
        try:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "begun\n"
            assert (scratch / "tmp/a").is_dir()
            assert until(lambda: processes_with(word))
        finally:
            caller.kill()
        caller.wait()
        assert until(lambda: not (scratch / "tmp").exists())
    assert until(lambda: not processes_with(word))


def test_a_build_that_fails_says_how(scratch: Path) -> None:
    with pytest.raises(RootfsError, match="bwrap exited with 7: this went wrong"):
        run(enclosed(scratch, "echo this went wrong; exit 7"), os.fspath(scratch), {}, wall_s=60)


def test_the_last_lines_of_a_build_are_kept(scratch: Path) -> None:
    script = "for i in $(seq 100); do echo line $i; done; echo dlstatus:1:2:x; exit 3"
    with pytest.raises(RootfsError, match=r"exited with 3: line 95; .*; line 100\n"):
        run(enclosed(scratch, script), os.fspath(scratch), {}, wall_s=60)


def test_long_lines_come_in_parts_and_nothing_is_lost(scratch: Path) -> None:
    lines: list[str] = []
    script = "head -c 5000 /dev/zero | tr '\\0' x; echo; echo; echo short; printf end"
    run(enclosed(scratch, script), os.fspath(scratch), {}, on_line=lines.append, wall_s=60)
    assert "".join(lines) == "x" * 5000 + "shortend"
    assert lines[-3:] == ["", "short", "end"]
    assert max(map(len, lines)) == 2000
