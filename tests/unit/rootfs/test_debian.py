# SPDX-License-Identifier: Apache-2.0
"""The parts of building a Debian rootfs that need neither a network nor namespaces."""

import os
import shlex
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.debian_roots import means_below
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import RootfsKey, RootfsSpec
from unspill.rootfs import debian
from unspill.rootfs.debian import (
    MIRROR,
    SECURITY_MIRROR,
    TIER_1,
    TIER_2,
    Build,
    check_host,
    checked_suite,
    explain_failure,
    installed_packages,
    mmdebstrap_argv,
    packages_of,
    sources_of,
)
from unspill.rootfs.source import Resolved, variant_of

SPEC = RootfsSpec(source="debian")

STATUS = """\
Package: bash
Status: install ok installed
Version: 5.2.15-2
Description: a shell
 with a second line
 Version: not a field

Package: gone
Status: deinstall ok config-files
Version: 1

Package: half
Status: install ok half-configured
Version: 1

Package: libc6
Version: 2.36-9
Status: hold ok installed
"""


def tree_with(top: Path, status: str) -> bytes:
    directory = top / "var/lib/dpkg"
    directory.mkdir(parents=True)
    (directory / "status").write_text(status)
    return bytes(top)


def test_packages_that_are_installed_are_listed_by_name(tmp_path: Path) -> None:
    assert installed_packages(tree_with(tmp_path, STATUS)) == (("bash", "5.2.15-2"), ("libc6", "2.36-9"))


def test_no_link_of_the_tree_is_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    tree_with(elsewhere, STATUS)
    for link, target in (("var", elsewhere / "var"), ("var/lib/dpkg/status", elsewhere / "var/lib/dpkg/status")):
        tree = tmp_path / link.replace("/", "_")
        (tree / link).parent.mkdir(parents=True)
        (tree / link).symlink_to(target)
        assert installed_packages(bytes(tree)) == ()


def test_a_tree_that_says_nothing_has_no_known_packages(tmp_path: Path) -> None:
    assert installed_packages(bytes(tmp_path)) == ()
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    os.mkfifo(tmp_path / "var/lib/dpkg/status")
    assert installed_packages(bytes(tmp_path)) == ()


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("E: Unable to locate package nonsense", RootfsError, "not in this suite"),
        ("E: Package 'x' has no installation candidate", RootfsError, "not in this suite"),
        (
            "Err:1 http://x nosuite Release\n  404  Not Found [IP: ::1 80]",
            RootfsUnreachable,
            "does not have this suite",
        ),
        ("Err:1 http://x y InRelease\n  Temporary failure resolving 'x'", RootfsUnreachable, "can't be reached"),
        ("  Could not connect to 127.0.0.1:9. - connect (111: Connection refused)", RootfsUnreachable, "reached"),
        ("W: GPG error: ... NO_PUBKEY 0E98404D386FA1D9", RootfsUnverified, "not signed"),
        ("E: The repository 'copy:/x y Release' is not signed.", RootfsUnverified, "not signed"),
        ("E: Failed to fetch copy:/x.deb  Hash Sum mismatch", RootfsUnverified, "damaged"),
        ("E: Release file for x is expired (invalid since 1d)", RootfsUnverified, "expired"),
        ("E: Write error - write (28: No space left on device)", RootfsError, "disk is full"),
        ("unshare: unshare failed: Operation not permitted", RootfsError, "can't create the namespaces"),
        ("newuidmap: uid range [0-65536) -> [1-65537) not allowed", RootfsError, "subordinate ids"),
        ("E: setup failed: something new", RootfsError, "something new"),
    ],
)
def test_a_failure_is_told_with_its_cause_and_a_remedy(line: str, kind: type[RootfsError], said: str) -> None:
    error = explain_failure("program", 100, ("the line before", *line.split("\n")))
    assert type(error) is kind
    assert said in error.message
    assert line.rsplit("\n", maxsplit=1)[-1].strip() in error.message
    assert "\n" not in error.message
    assert error.remedy


ALL = "apt-get mmdebstrap newuidmap newgidmap unshare bwrap"


class Host:
    """A machine that has what it takes to build."""

    def __init__(self, top: Path) -> None:
        self.top = top
        (top / "bin").mkdir()
        for name in ALL.split():
            self.program(name, "")
        (top / "keyring").touch()
        self.ids("echo 0 1001 1; echo 1 100000 65535; echo 0 1001 1; echo 1 100000 65535")

    def program(self, name: str, script: str) -> None:
        path = self.top / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def ids(self, script: str) -> None:
        """Say what the program prints that enters a namespace and shows its ids."""
        self.program("unshare", script)

    def check(self) -> None:
        check_host(str(self.top / "bin"), str(self.top / "keyring"))


@pytest.mark.parametrize("missing", [*(f"bin/{name}" for name in ALL.split()), "keyring"])
def test_what_is_missing_is_named_with_its_package(tmp_path: Path, missing: str) -> None:
    host = Host(tmp_path)
    host.check()
    (tmp_path / missing).unlink()
    with pytest.raises(RootfsError, match=f"{Path(missing).name} is not installed") as error:
        host.check()
    assert "apt install" in error.value.remedy


@pytest.mark.parametrize(
    "script",
    [
        "echo 'unshare: no line matching user in /etc/subuid' >&2; exit 1",
        "echo 'newuidmap: write to uid_map failed' >&2; exit 1",
        "echo 0 1001 1; echo 1 100000 1000; echo 0 1001 1; echo 1 100000 65535",
        "echo 0 1001 1; echo 1 100000 65535; echo 0 1001 1",
        "exit 1",
    ],
)
def test_missing_ids_are_told(tmp_path: Path, script: str) -> None:
    host = Host(tmp_path)
    host.check()
    host.ids(script)
    with pytest.raises(RootfsError, match="65536 subordinate ids") as error:
        host.check()
    assert "usermod" in error.value.remedy


def test_nothing_on_the_command_line_makes_apt_trust_more(tmp_path: Path) -> None:
    argv = mmdebstrap_argv(Build(SPEC, "amd64", means_below(tmp_path)), "custom", "tar", ["--include=git"])
    assert argv[0] == "mmdebstrap"
    assert "--mode=unshare" in argv
    assert "--include=git" in argv
    assert argv[-5:] == [
        "bookworm",
        "-",
        f"deb {MIRROR} bookworm main",
        f"deb {MIRROR} bookworm-updates main",
        f"deb {SECURITY_MIRROR} bookworm-security main",
    ]
    said = " ".join(argv).lower()
    assert not any(word in said for word in ("trusted=", "unauthenticated", "insecure", "allow"))


class Recorded(Build):
    """A build whose commands are not run but kept."""

    commands: tuple[str, ...] = ()

    def _fetch(self, more: list[str]) -> None:
        self.commands = tuple(more)


def test_a_package_is_one_word_of_apts_command(tmp_path: Path) -> None:
    build = Recorded(SPEC, "amd64", means_below(tmp_path))
    build.fetch_packages(("g++", "libstdc++6"))
    (hook,) = (word for word in build.commands if "install" in word)
    _system, step, _clean = hook.split(";")[0].split(" && ")
    words = shlex.split(step)
    assert words[words.index("install") :] == ["install", "g++", "libstdc++6", ">&2"]
    assert "-oAPT::Cmd::Pattern-Only=true" in words


def test_keys_of_this_machine_count_for_archives_that_the_person_named_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argvs: list[list[str]] = []

    def record(argv: list[str], *_words: object, **_options: object) -> None:
        argvs.append(argv)

    monkeypatch.setattr(debian, "run", record)
    monkeypatch.setattr(debian, "HOST_KEYS", str(tmp_path))
    means = means_below(tmp_path / "means")
    for mirror in ("", "https://mirror.example.org/debian"):
        Build(RootfsSpec(source="debian", mirror=mirror), "amd64", means)._fetch([])
    debians, named = ([word for word in argv if word.startswith("--keyring=")] for argv in argvs)
    assert debians[0] == named[0] == f"--keyring={debian.KEYRING}"
    assert named[1:] == [f"--keyring={tmp_path}"]
    (nothing,) = (Path(word.removeprefix("--keyring=")) for word in debians[1:])
    assert list(nothing.iterdir()) == []


def lists_of(build: Build, date: str, suites: tuple[str, ...] = ("bookworm",)) -> None:
    """Write what apt would have fetched from an archive."""
    top = Path(os.fsdecode(build._means.scratch), "written")
    top.mkdir()
    with tarfile.open(build._lists, "w") as tar:
        for suite in suites:
            (top / suite).write_text(f"Origin: Debian\nDate: {date}\n")
            tar.add(top / suite, f"lists/m.example.org_debian_dists_{suite}_InRelease")


@pytest.fixture
def build(tmp_path: Path) -> Build:
    spec = RootfsSpec(source="debian", mirror="https://m.example.org/debian bookworm bookworm-updates")
    return Build(spec, "amd64", means_below(tmp_path))


def test_the_version_is_when_the_youngest_archive_changed(build: Build) -> None:
    lists_of(build, "Sun, 01 Nov 2026 10:00:00 UTC", ("bookworm", "bookworm-updates"))
    releases = build.read_releases()
    assert releases.version == "bookworm.20261101.1000"
    assert [name for name, _digest in releases.digests] == ["bookworm-updates/InRelease", "bookworm/InRelease"]


def test_an_archive_without_a_signed_list_is_refused(build: Build) -> None:
    lists_of(build, "Sun, 01 Nov 2026 10:00:00 UTC")
    with pytest.raises(RootfsUnverified, match="no signed InRelease"):
        build.read_releases()


def test_what_an_archive_has_by_now_does_not_get_the_name_of_what_it_had(build: Build, tmp_path: Path) -> None:
    """Somebody else may have fetched newer lists between `resolve` and `fill`."""
    spec = RootfsSpec(source="debian", mirror="https://m.example.org/debian bookworm bookworm-updates")
    lists_of(build, "Sun, 01 Nov 2026 12:00:00 UTC", ("bookworm", "bookworm-updates"))
    key = RootfsKey(source="debian", version="bookworm.20261101.1000", arch="amd64", tier=1)
    with pytest.raises(RootfsError, match=r"had bookworm.20261101.1000 and now has bookworm.20261101.1200") as error:
        debian.DebianSource().fill(Resolved(key=key, spec=spec), bytes(tmp_path), build._means)
    assert "Try again" in error.value.remedy


@pytest.mark.parametrize("name", ["a b", 'a"b', "a;b", "a'b", "a$b", "é"])
def test_a_directory_whose_path_apt_could_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RootfsError, match="apt can't work below"):
        Build(SPEC, "amd64", means_below(tmp_path / name))


@pytest.mark.parametrize("name", ["bash", "g++", "libstdc++6", "python3.11", "7zip", "r-base-core", "libc6-dev"])
def test_names_of_packages_are_taken(name: str) -> None:
    assert name in packages_of(1, (name,))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "-o",
        "--allow-unauthenticated",
        "bash-",
        "bash.",
        "bash=5",
        "bash/sid",
        "bash:i386",
        "Bash",
        "a b",
        "a\nb",
        "ab\n",
        "a,b",
        "?essential",
        "./x.deb",
        "/x.deb",
        "http://x",
        "gcc*",
        "$(id)",
        "x" * 65,
    ],
)
def test_what_apt_reads_as_something_else_is_refused(name: str) -> None:
    with pytest.raises(RootfsError, match="can't be the name of a Debian package"):
        packages_of(1, (name,))


@given(st.text())
def test_whatever_passes_is_one_plain_word(text: str) -> None:
    try:
        packages_of(1, (text,))
    except RootfsError:
        return
    assert text.isascii()
    assert not set(text) & set(" \t\n,:;/$'\"\\*?!()=~")
    assert text[0].isalnum()


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid", "stable", "bookworm-backports"])
def test_suites_are_taken(suite: str) -> None:
    assert checked_suite(suite) == suite


@pytest.mark.parametrize("suite", ["-x", "a", "Bookworm", "bookworm main", "../x", "bookworm/x", "12", "x-", "[x]"])
def test_what_is_no_suite_is_refused(suite: str) -> None:
    with pytest.raises(RootfsError, match="can't be a Debian suite"):
        checked_suite(suite)


def test_without_a_version_it_is_the_stable_suite() -> None:
    assert checked_suite("") == "bookworm"


def test_the_second_tier_has_the_first_and_more() -> None:
    assert packages_of(1, ()) == TIER_1 == ("bash", "python3", "python3-pip", "coreutils", "grep", "sed")
    assert packages_of(2, ("gcc", "git")) == (*TIER_1, *TIER_2, "gcc")
    assert {"findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm"} == set(TIER_2)


@pytest.mark.parametrize("tier", [0, 3, -1])
def test_there_is_no_other_tier(tier: int) -> None:
    with pytest.raises(RootfsError, match="no tier"):
        packages_of(tier, ())


def test_the_variant_stands_for_packages_in_any_order() -> None:
    assert variant_of(()) == ""
    assert variant_of(("git", "gcc")) == variant_of(("gcc", "git", "git"))
    assert variant_of(("git",)) != variant_of(("gcc",))


def test_debians_own_archives_are_the_default_with_updates_and_security() -> None:
    assert sources_of("", "trixie") == (
        (MIRROR, "trixie"),
        (MIRROR, "trixie-updates"),
        (SECURITY_MIRROR, "trixie-security"),
    )
    assert sources_of("", "sid") == ((MIRROR, "sid"),)


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        ("https://m.example.org/debian/", [("https://m.example.org/debian", "bookworm")]),
        ("http://m.example.org:8080/d", [("http://m.example.org:8080/d", "bookworm")]),
        ("file:/srv/mirror", [("copy:/srv/mirror", "bookworm")]),
        ("file:///srv/mirror/", [("copy:/srv/mirror", "bookworm")]),
        ("copy:/srv/mirror", [("copy:/srv/mirror", "bookworm")]),
        (
            "https://m.example.org/d bookworm bookworm-updates https://m.example.org/s bookworm-security",
            [
                ("https://m.example.org/d", "bookworm"),
                ("https://m.example.org/d", "bookworm-updates"),
                ("https://m.example.org/s", "bookworm-security"),
            ],
        ),
    ],
)
def test_a_mirror_is_an_address_or_several_with_their_suites(mirror: str, expected: list[tuple[str, str]]) -> None:
    assert list(sources_of(mirror, "bookworm")) == expected


@pytest.mark.parametrize(
    "mirror",
    [
        "bookworm",
        "ftp://m.example.org/debian",
        "https:/m.example.org",
        "https://",
        "https://:80/x",
        "https://user:word@m.example.org/debian",
        "[trusted=yes] https://m.example.org/debian",
        "https://m.example.org/debian [trusted=yes]",
        "https://m.example.org/debian;x",
        "https://m.example.org/debian Main",
        "file:srv/mirror",
        "file:/",
        "file:/srv/../etc",
        "cdrom:/x",
        "https://m.example.org/a%0adeb",
    ],
)
def test_what_is_no_mirror_is_refused(mirror: str) -> None:
    with pytest.raises(RootfsError, match="can't be a Debian mirror"):
        sources_of(mirror, "bookworm")


@given(st.text(alphabet="abz:/.-[]=@ \n#trusedy", max_size=40))
def test_no_mirror_writes_an_option_into_the_sources(mirror: str) -> None:
    try:
        sources = sources_of(mirror, "bookworm")
    except RootfsError:
        return
    for address, suite in sources:
        assert not set(address + suite) & set("[]#@= \n")
