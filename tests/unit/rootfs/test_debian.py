# SPDX-License-Identifier: Apache-2.0
"""The parts of building a Debian rootfs that need neither a network nor namespaces."""

import os
import time
from pathlib import Path

import pytest

from tests.support import lasting, processes_with
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.rootfs.debian import _up_to_date
from unspill.rootfs.debian_apt import Apt
from unspill.rootfs.debian_build import mmdebstrap_argv
from unspill.rootfs.debian_child import Ended, child_environ, run_child
from unspill.rootfs.debian_failures import explain_failure
from unspill.rootfs.debian_host import check_host, has_ids
from unspill.rootfs.debian_mirror import list_name
from unspill.rootfs.debian_names import Archive, archives_of
from unspill.rootfs.debian_status import installed_packages, paragraphs

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


def test_fields_are_read_from_paragraphs() -> None:
    assert list(paragraphs("A: 1\nB: x: y\n more\n\n\nA: 2\nnonsense\n")) == [{"a": "1", "b": "x: y"}, {"a": "2"}]


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
        ("unshare: unshare failed: Operation not permitted", RootfsError, "does not let an ordinary user"),
        ("newuidmap: uid range [0-65536) -> [1-65537) not allowed", RootfsError, "subordinate ids"),
        ("E: setup failed: something new", RootfsError, "something new"),
    ],
)
def test_a_failure_is_told_with_its_cause_and_a_remedy(line: str, kind: type[RootfsError], said: str) -> None:
    error = explain_failure(Ended(code=100, tail=("the line before", *line.split("\n"))), "program")
    assert type(error) is kind
    assert said in error.message
    assert line.rsplit("\n", maxsplit=1)[-1].strip() in error.message
    assert "\n" not in error.message
    assert error.remedy


def host_with(top: Path, programs: str) -> str:
    for name in programs.split():
        path = top / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    return os.fspath(top)


ALL = "apt-get mmdebstrap newuidmap newgidmap unshare"


@pytest.mark.parametrize("missing", ALL.split())
def test_a_missing_program_is_named_with_its_package(tmp_path: Path, missing: str) -> None:
    search = host_with(tmp_path, ALL.replace(missing, ""))
    with pytest.raises(RootfsError, match=f"{missing} is needed") as error:
        check_host(search)
    assert "apt install" in error.value.remedy


@pytest.mark.parametrize("missing", ["subuid", "subgid"])
def test_missing_ids_are_told(tmp_path: Path, missing: str) -> None:
    (tmp_path / "bin").mkdir()
    search = host_with(tmp_path / "bin", ALL)
    for name in ("subuid", "subgid"):
        (tmp_path / name).write_text("" if name == missing else f"{os.geteuid()}:100000:65536\n")
    with pytest.raises(RootfsError, match=missing) as error:
        check_host(search, bytes(tmp_path))
    assert "usermod" in error.value.remedy
    (tmp_path / missing).write_text(f"{os.geteuid()}:100000:65536\n")
    check_host(search, bytes(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12345:100000:65536\n", True),
        ("other:1:1\n12345:100000:65536\n", True),
        ("12345:100000:1000\n", False),
        ("1234:100000:65536\n", False),
        ("12345:100000\n", False),
        ("12345:x:y\n", False),
        ("", False),
    ],
)
def test_ids_are_enough_in_one_block_of_this_user(tmp_path: Path, text: str, expected: bool) -> None:
    path = tmp_path / "subuid"
    path.write_text(text)
    assert has_ids(bytes(path), 12345) is expected
    assert not has_ids(bytes(tmp_path / "missing"), 12345)


def test_nothing_on_the_command_line_makes_apt_trust_more() -> None:
    argv = mmdebstrap_argv("bookworm", "amd64", ("bash", "git"), archives_of("", "bookworm"))
    assert argv[0] == "mmdebstrap"
    assert "--mode=unshare" in argv
    assert "--include=bash,git" in argv
    assert argv[-5:] == [
        "bookworm",
        "-",
        "deb copy:/mirror/0 bookworm main",
        "deb copy:/mirror/0 bookworm-updates main",
        "deb copy:/mirror/1 bookworm-security main",
    ]
    said = " ".join(argv).lower()
    assert not any(word in said for word in ("trusted=", "unauthenticated", "insecure", "allow"))


def test_the_environment_of_a_program_is_made_anew_but_for_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "x")
    monkeypatch.setenv("LD_PRELOAD", "/x.so")
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("NO_PROXY", "example.org")
    environ = child_environ(b"/scratch", {"APT_CONFIG": "/c"})
    assert environ == {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/scratch",
        "TMPDIR": "/scratch",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "APT_CONFIG": "/c",
        "https_proxy": "http://proxy.example.org:3128",
        "NO_PROXY": "example.org",
    }


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://m.example.org/debian", b"m.example.org_debian_dists_bookworm_InRelease"),
        ("copy:/srv/a_b", b"_srv_a%5fb_dists_bookworm_InRelease"),
    ],
)
def test_lists_are_found_by_the_names_that_apt_gives_them(address: str, expected: bytes) -> None:
    assert list_name(Archive(address=address, suites=("bookworm",)), "bookworm", "InRelease") == expected


def test_the_last_lines_of_a_program_are_kept(tmp_path: Path) -> None:
    script = "for i in $(seq 100); do echo line $i; done; echo dlstatus:1:2:x; exit 3"
    ended = run_child(["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, cwd=bytes(tmp_path))
    assert ended.code == 3
    assert len(ended.tail) == 40
    assert ended.tail[-1] == "line 100"


PATH = {"PATH": "/usr/bin:/bin"}
HANGING = {
    "silently": "echo begun; sleep $0",
    "with words": "while :; do echo waiting; sleep 0.01; done",
    "with a line that has no end": "while :; do printf x; done",
    "with its output closed": "exec >/dev/null 2>&1; sleep $0",
    "while a child has its output": "sleep $0 & exit 0",
}


@pytest.mark.parametrize("script", HANGING.values(), ids=HANGING)
def test_a_program_that_hangs_is_ended(tmp_path: Path, script: str) -> None:
    word = lasting()
    begin = time.monotonic()
    with pytest.raises(RootfsError, match=r"did not come to an end in 0\.3 seconds"):
        run_child(["sh", "-c", script, word], PATH, cwd=bytes(tmp_path), wall_s=0.3)
    assert time.monotonic() - begin < 10
    # What was started in its group is killed with it, though somebody else reaps it
    while processes_with(word) and time.monotonic() - begin < 10:
        time.sleep(0.01)
    assert processes_with(word) == []


def test_long_lines_come_in_parts_and_nothing_is_lost(tmp_path: Path) -> None:
    lines: list[str] = []
    script = "head -c 5000 /dev/zero | tr '\\0' x; echo; echo; echo short; printf end"
    run_child(["sh", "-c", script], PATH, cwd=bytes(tmp_path), on_line=lines.append)
    assert "".join(lines) == "x" * 5000 + "shortend"
    assert lines[-3:] == ["", "short", "end"]
    assert max(map(len, lines)) == 2000


class Changing(Apt):
    """An archive that has another version after each update; of apt itself nothing runs."""

    def __init__(self, top: Path, hours: tuple[int, ...]) -> None:
        super().__init__(bytes(top), "bookworm", "amd64", MINE, lambda _progress: None)
        self._hours = list(hours)
        (top / "lists").mkdir()
        self.update()

    def update(self) -> None:
        """Take the next version."""
        name = list_name(MINE[0], "bookworm", "InRelease")
        text = f"Date: Sun, 01 Nov 2026 {self._hours.pop(0):02}:00:00 UTC\n"
        Path(os.fsdecode(self.top), "lists", os.fsdecode(name)).write_text(text)


MINE = (Archive(address="http://m.example.org/debian", suites=("bookworm",)),)


def test_what_an_archive_has_by_now_does_not_get_the_name_of_what_it_had(tmp_path: Path) -> None:
    for name, hours in (("same", (10,)), ("again", (11, 10))):
        (tmp_path / name).mkdir()
        assert _up_to_date(Changing(tmp_path / name, hours), "bookworm", "bookworm.20261101.1000").epoch > 0
    (tmp_path / "other").mkdir()
    with pytest.raises(RootfsError, match=r"had bookworm.20261101.1000, and has bookworm.20261101.1200") as error:
        _up_to_date(Changing(tmp_path / "other", (11, 12)), "bookworm", "bookworm.20261101.1000")
    assert "Try again" in error.value.remedy
