# SPDX-License-Identifier: Apache-2.0
"""Which Alpine a spec means, what a mirror says of its releases, and what is read and written in its tree."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.alpine_mirror import Mirror, releases_yaml, serve_mirror
from tests.kernel.alpine_parts import ARCH
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnsafe, RootfsUnverified
from unspill.model.rootfs import RootfsSpec
from unspill.rootfs.alpine import (
    KNOWN,
    TIER1_PACKAGES,
    TIER2_PACKAGES,
    TOP,
    AlpineSource,
    Release,
    branch_of,
    check_complete,
    check_release,
    find_release,
    get_checksum,
    get_latest_version,
    host_of,
    is_version,
    known_digest,
    make_top,
    mirror_of,
    open_tree,
    packages_of,
    read_packages,
    write_repositories,
)
from unspill.rootfs.source import BuildContext, Resolved, variant_of

VERSION, OTHER = "3.99.1", "3.99.0"
DIGEST, WRONG = "a1" * 32, "b2" * 32
KNOWN_VERSION = "3.23.3"


def name_of(version: str, arch: str = ARCH) -> str:
    return f"alpine-minirootfs-{version}-{arch}.tar.gz"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    """A mirror that says what it has, and has only that."""
    with serve_mirror() as served:
        say(served, VERSION, DIGEST)
        yield served


def say(mirror: Mirror, version: str, digest: str, arch: str = ARCH) -> None:
    """Have a mirror say that this is its newest version."""
    text = releases_yaml(version, name_of(version), digest).replace(ARCH, arch)
    mirror.files[f"/alpine/latest-stable/releases/{arch}/latest-releases.yaml"] = text.encode()
    branch = "v" + version.rpartition(".")[0]
    mirror.files[f"/alpine/{branch}/releases/{arch}/{name_of(version, arch)}.sha256"] = digest.encode()


def nothing(*_words: object) -> Any:
    """Stand for means that resolving has no use for."""
    return None


def resolve(served: Mirror, /, **fields: Any) -> Resolved:
    spec = RootfsSpec(source="alpine", **{"mirror": served.address, **fields})
    return AlpineSource().resolve(
        spec, BuildContext(downloads=b"/nowhere", scratch=b"/nowhere", install=nothing, report=nothing)
    )


def test_without_a_version_the_newest_is_meant(mirror: Mirror) -> None:
    resolved = resolve(mirror)
    assert resolved.key.name == f"alpine-{VERSION}-{ARCH}-t1"
    assert resolved.fetch == f"{mirror.address}/v3.99/releases/{ARCH}/{name_of(VERSION)}"
    assert (resolved.sha256, resolved.proof) == (DIGEST, "same-server")


def test_a_named_version_is_not_looked_up_in_the_index(mirror: Mirror) -> None:
    say(mirror, OTHER, WRONG)
    mirror.asked.clear()
    resolved = resolve(mirror, version=OTHER)
    assert (resolved.key.version, resolved.sha256, resolved.proof) == (OTHER, WRONG, "same-server")
    assert mirror.asked == [f"/alpine/v3.99/releases/{ARCH}/{name_of(OTHER)}.sha256"]


def test_a_pinned_digest_is_proof_and_needs_no_mirror(mirror: Mirror) -> None:
    mirror.asked.clear()
    resolved = resolve(mirror, version=VERSION, sha256=WRONG)
    assert (resolved.sha256, resolved.proof) == (WRONG, "pinned")
    assert mirror.asked == []


def test_the_newest_version_must_be_the_pinned_one(mirror: Mirror) -> None:
    assert resolve(mirror, sha256=DIGEST).proof == "pinned"
    with pytest.raises(RootfsUnverified, match="you pinned"):
        resolve(mirror, sha256=WRONG)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_a_digest_of_our_release_is_proof_and_needs_no_mirror(mirror: Mirror, arch: str) -> None:
    mirror.asked.clear()
    resolved = resolve(mirror, version=KNOWN_VERSION, arch=arch)
    assert (resolved.sha256, resolved.proof) == (KNOWN["alpine", KNOWN_VERSION, arch], "known")
    assert mirror.asked == []


def test_a_mirror_that_contradicts_a_digest_of_our_release_is_not_believed(mirror: Mirror) -> None:
    say(mirror, KNOWN_VERSION, WRONG, "x86_64")
    with pytest.raises(RootfsUnverified, match="this unspill release knows"):
        resolve(mirror, arch="x86_64")
    say(mirror, KNOWN_VERSION, KNOWN["alpine", KNOWN_VERSION, "x86_64"], "x86_64")
    assert resolve(mirror, arch="x86_64").proof == "known"


def test_a_person_who_pins_a_digest_is_stronger_than_our_release(mirror: Mirror) -> None:
    resolved = resolve(mirror, version=KNOWN_VERSION, arch="x86_64", sha256=WRONG)
    assert (resolved.sha256, resolved.proof) == (WRONG, "pinned")


def test_every_digest_of_our_release_has_the_form_of_one() -> None:
    assert len(set(KNOWN.values())) == len(KNOWN)
    for (source, version, arch), digest in KNOWN.items():
        assert (source, arch) in (("alpine", "x86_64"), ("alpine", "aarch64"))
        assert re.fullmatch(r"3\.\d+\.\d+ [0-9a-f]{64}", f"{version} {digest}")
    assert known_digest("alpine", "3.99.1", "x86_64") == known_digest("debian", KNOWN_VERSION, "x86_64") == ""


def test_a_version_that_the_mirror_does_not_have_is_unreachable(mirror: Mirror) -> None:
    with pytest.raises(RootfsUnreachable, match="404"):
        resolve(mirror, version="3.98.0")


def test_the_tiers_are_those_of_the_plan() -> None:
    assert TIER1_PACKAGES == ("bash", "python3", "py3-pip", "coreutils", "grep", "sed")
    both = packages_of(RootfsSpec(source="alpine", tier=2))
    assert both == (*TIER1_PACKAGES, *TIER2_PACKAGES)
    assert both[6:] == ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm")


def test_each_tier_and_each_set_of_packages_is_a_rootfs_of_its_own(mirror: Mirror) -> None:
    names = [
        resolve(mirror, **fields).key.name
        for fields in ({}, {"tier": 2}, {"packages": ("jq", "go")}, {"packages": ("go", "jq")}, {"packages": ("go",)})
    ]
    assert names[2] == names[3]
    assert len(set(names)) == 4
    assert names[1] == f"alpine-{VERSION}-{ARCH}-t2"
    assert re.fullmatch(f"alpine-{VERSION}-{ARCH}-t1-p[0-9a-f]{{10}}", names[2])


def test_packages_of_a_wish_come_behind_those_of_the_tier_and_none_twice() -> None:
    assert packages_of(RootfsSpec(source="alpine", packages=("go", "bash"))) == (*TIER1_PACKAGES, "go")
    assert variant_of(()) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"packages": ("--allow-untrusted",)},
        {"packages": ("-p",)},
        {"packages": ("/root/evil.apk",)},
        {"packages": ("go;id",)},
        {"packages": ("",)},
        {"tier": 3},
        {"tier": 0},
        {"version": "edge"},
        {"version": "../3.23.3"},
        {"version": "3.23.3/x"},
        {"arch": "vax"},
        {"sha256": "abc"},
        {"mirror": "ftp://example.org"},
        {"mirror": "file:///etc"},
        {"mirror": "http://example.org/\nhttp://evil.example.org/"},
        {"mirror": "http://me:secret@example.org/"},
        {"mirror": "http://example.org:99999/"},
        {"label": "mine"},
    ],
)
def test_a_wish_that_can_not_be_met_is_refused_before_anything_is_asked(mirror: Mirror, fields: dict[str, Any]) -> None:
    mirror.asked.clear()
    with pytest.raises(RootfsError):
        resolve(mirror, **fields)
    assert mirror.asked == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://dl-cdn.alpinelinux.org/alpine", "dl-cdn.alpinelinux.org:443"),
        ("http://Example.ORG/x", "example.org:80"),
        ("http://127.0.0.1:8080/alpine", "127.0.0.1:8080"),
        ("https://[2001:db8::1]/alpine", "[2001:db8::1]:443"),
    ],
)
def test_the_proxy_is_told_the_host_and_the_port_of_the_mirror(address: str, expected: str) -> None:
    assert host_of(address) == expected


def test_the_usual_mirror_is_alpines_own() -> None:
    assert mirror_of(RootfsSpec(source="alpine")) == "https://dl-cdn.alpinelinux.org/alpine"
    assert mirror_of(RootfsSpec(source="alpine", mirror="http://example.org/a/")) == "http://example.org/a"


RELEASE_DIGEST = "a1" * 32
NAME = f"alpine-minirootfs-3.99.1-{ARCH}.tar.gz"
INDEX = f"/alpine/latest-stable/releases/{ARCH}/latest-releases.yaml"
CHECKSUM = f"/alpine/v3.99/releases/{ARCH}/{NAME}.sha256"
GOOD = releases_yaml("3.99.1", NAME, RELEASE_DIGEST)


@pytest.fixture
def mirror_of_releases() -> Iterator[Mirror]:
    """A mirror that has nothing yet."""
    with serve_mirror() as served:
        yield served


def test_get_latest_version(mirror_of_releases: Mirror) -> None:
    mirror_of_releases.files[INDEX] = GOOD.encode()
    assert get_latest_version(mirror_of_releases.address, ARCH) == Release(
        version="3.99.1", file=NAME, sha256=RELEASE_DIGEST
    )
    assert mirror_of_releases.asked == [INDEX]


def test_get_latest_version_no_minirootfs(mirror_of_releases: Mirror) -> None:
    mirror_of_releases.files[INDEX] = GOOD.replace("flavor: alpine-minirootfs", "flavor: alpine-virt").encode()
    with pytest.raises(RootfsError, match="There is no alpine-minirootfs"):
        get_latest_version(mirror_of_releases.address, ARCH)


def test_a_mirror_without_an_index_is_unreachable(mirror_of_releases: Mirror) -> None:
    with pytest.raises(RootfsUnreachable, match="404"):
        get_latest_version(mirror_of_releases.address, ARCH)


COMPACT = f"""- flavor: alpine-minirootfs
  version: 3.99.1
  file: '{NAME}'
  sha256: "{RELEASE_DIGEST}"
"""


@pytest.mark.parametrize("text", [GOOD, COMPACT, GOOD.replace("\n", "\r\n"), f"# a comment\n{GOOD}", GOOD + GOOD[4:]])
def test_an_index_may_be_written_in_several_ways(text: str) -> None:
    assert find_release(text, ARCH, "here") == Release(version="3.99.1", file=NAME, sha256=RELEASE_DIGEST)


def test_lines_of_a_description_are_no_keys() -> None:
    text = GOOD.replace("    For use in containers", "    version: 6.6.6\n    sha256: nothing")
    assert find_release(text, ARCH, "here").version == "3.99.1"


REFUSED: dict[str, Callable[[str], str]] = {
    "a version that is a path": lambda good: good.replace("version: 3.99.1", "version: ../../3.99.1"),
    "a version with letters": lambda good: good.replace("version: 3.99.1", "version: 3.99.1_rc1"),
    "a version of one number": lambda good: good.replace("3.99.1", "3"),
    "an endless version": lambda good: good.replace("3.99.1", "3." + "9" * 60),
    "a file of another version": lambda good: good.replace(f"file: {NAME}", f"file: {NAME.replace('99.1', '99.0')}"),
    "a file in another directory": lambda good: good.replace(f"file: {NAME}", f"file: ../{NAME}"),
    "a file that is an address": lambda good: good.replace(f"file: {NAME}", f"file: http://example.org/{NAME}"),
    "no file": lambda good: good.replace(f"  file: {NAME}\n", ""),
    "no digest": lambda good: good.replace(f"  sha256: {RELEASE_DIGEST}\n", ""),
    "a short digest": lambda good: good.replace(RELEASE_DIGEST, RELEASE_DIGEST[:-1]),
    "a digest that is none": lambda good: good.replace(RELEASE_DIGEST, "g" * 64),
    "a digest said twice": lambda good: good.replace(
        f"sha256: {RELEASE_DIGEST}", f"sha256: {RELEASE_DIGEST}\n  sha256: {RELEASE_DIGEST}"
    ),
    "two releases": lambda good: good + good[4:].replace("3.99.1", "3.99.2"),
    "a key outside an entry": lambda good: "version: 3.99.1\n" + good,
    "a line of another form": lambda good: good.replace("  flavor: alpine", "  ? flavor: alpine"),
    "a page for people": lambda good: "<html>Not here</html>",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(RootfsUnverified, match="here"):
        find_release(REFUSED[name](GOOD), ARCH, "here")


def test_an_entry_of_another_architecture_is_passed_over() -> None:
    with pytest.raises(RootfsError, match="no alpine-minirootfs for riscv64"):
        find_release(GOOD, "riscv64", "here")


@pytest.mark.parametrize("text", [f"{RELEASE_DIGEST}  {NAME}\n", f"{RELEASE_DIGEST} *{NAME}\n", RELEASE_DIGEST])
def test_the_checksum_beside_an_archive_is_read(mirror_of_releases: Mirror, text: str) -> None:
    mirror_of_releases.files[CHECKSUM] = text.encode()
    assert get_checksum(mirror_of_releases.address, "3.99.1", ARCH) == RELEASE_DIGEST


@pytest.mark.parametrize(
    "text", ["", "nothing", f"{RELEASE_DIGEST}  other.tar.gz", f"{RELEASE_DIGEST}  {NAME} more", RELEASE_DIGEST[:-1]]
)
def test_a_checksum_of_another_form_is_refused(mirror_of_releases: Mirror, text: str) -> None:
    mirror_of_releases.files[CHECKSUM] = text.encode()
    with pytest.raises(RootfsUnverified, match="is not the checksum"):
        get_checksum(mirror_of_releases.address, "3.99.1", ARCH)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3.23.3", True), ("3.23", True), ("3", False), ("3..1", False), ("3.23.", False), ("v3.23", False), ("", False)],
)
def test_versions_are_numbers_between_dots(text: str, expected: bool) -> None:
    assert is_version(text) is expected


def test_a_branch_has_the_first_two_numbers() -> None:
    assert branch_of("3.23.3") == branch_of("3.23") == "v3.23"


ADDRESSES = ("http://example.org/v3.99/main", "http://example.org/v3.99/community")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree, beside a directory of the host."""
    (tmp_path / "host").mkdir()
    made = tmp_path / "tree"
    for name in ("etc/apk", "bin", "usr/bin", "lib/apk/db"):
        (made / name).mkdir(parents=True)
    return made


@pytest.fixture
def fd(tree: Path) -> Iterator[int]:
    """The descriptor of the tree."""
    opened = open_tree(os.fsencode(tree))
    yield opened
    os.close(opened)


def test_the_tree_must_say_that_it_is_the_version(tree: Path, fd: int) -> None:
    with pytest.raises(RootfsUnverified, match="it says that it is ''"):
        check_release(fd, "3.99.1")
    (tree / "etc/alpine-release").write_text("3.99.1\n")
    check_release(fd, "3.99.1")
    with pytest.raises(RootfsUnverified, match=r"should be Alpine 3\.99\.2"):
        check_release(fd, "3.99.2")


def test_a_release_is_not_read_from_the_host(tree: Path, fd: int, tmp_path: Path) -> None:
    (tmp_path / "host/release").write_text("3.99.1\n")
    (tree / "etc/alpine-release").symlink_to(tmp_path / "host/release")
    with pytest.raises(RootfsUnverified):
        check_release(fd, "3.99.1")


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(tree: Path, fd: int) -> None:
    os.mkfifo(tree / "etc/alpine-release")
    with pytest.raises(RootfsUnverified):
        check_release(fd, "3.99.1")


def test_repositories_are_written_anew(tree: Path, fd: int) -> None:
    (tree / "etc/apk/repositories").write_text("http://other.example.org\n")
    write_repositories(fd, ADDRESSES)
    assert (tree / "etc/apk/repositories").read_text() == "".join(f"{address}\n" for address in ADDRESSES)


def test_repositories_are_not_written_through_a_link(tree: Path, fd: int, tmp_path: Path) -> None:
    victim = tmp_path / "host/victim"
    victim.write_text("untouched")
    (tree / "etc/apk/repositories").symlink_to(victim)
    write_repositories(fd, ADDRESSES)
    assert victim.read_text() == "untouched"
    assert not (tree / "etc/apk/repositories").is_symlink()


@pytest.mark.parametrize("link", ["etc", "etc/apk"])
def test_a_directory_that_is_a_link_is_not_written_to(tree: Path, fd: int, tmp_path: Path, link: str) -> None:
    (tree / "etc/apk").rmdir()
    if link == "etc":
        (tree / "etc").rmdir()
    (tree / link).symlink_to(tmp_path / "host")
    with pytest.raises(RootfsUnsafe):
        write_repositories(fd, ADDRESSES)
    assert list((tmp_path / "host").iterdir()) == []


def test_a_directory_in_the_place_of_the_repositories_is_refused(tree: Path, fd: int) -> None:
    (tree / "etc/apk/repositories").mkdir()
    with pytest.raises(RootfsUnsafe):
        write_repositories(fd, ADDRESSES)


def test_the_usual_directories_are_made_and_links_among_them_are_kept(tree: Path, fd: int) -> None:
    (tree / "sbin").symlink_to("usr/bin")
    make_top(fd)
    assert set(map(os.fsencode, os.listdir(tree))) == set(TOP)
    assert (tree / "sbin").is_symlink()


def test_a_file_in_the_place_of_a_usual_directory_is_refused(tree: Path, fd: int) -> None:
    (tree / "var").write_text("")
    with pytest.raises(RootfsUnsafe, match="/var"):
        make_top(fd)


DATABASE = "C:Q1x\nP:bash\nV:5.2-r0\nF:bin\nR:bash\n\nP:a b\nV:1\n\nP:evil\nV:1\x1b[0m\n\nP:musl\nV:1.2-r0\n\n"


@pytest.mark.parametrize("place", ["lib/apk/db", "usr/lib/apk/db"])
def test_packages_are_read_from_apks_own_record(tree: Path, fd: int, place: str) -> None:
    (tree / place).mkdir(parents=True, exist_ok=True)
    (tree / place / "installed").write_text(DATABASE)
    assert read_packages(fd) == (("bash", "5.2-r0"), ("musl", "1.2-r0"))


def test_packages_are_not_read_from_the_host(tree: Path, fd: int, tmp_path: Path) -> None:
    (tmp_path / "host/installed").write_text(DATABASE)
    (tree / "lib/apk/db/installed").symlink_to(tmp_path / "host/installed")
    with pytest.raises(RootfsError, match="can't read the installed packages"):
        read_packages(fd)


def test_programs_are_found_behind_absolute_links_of_the_tree(tree: Path, fd: int) -> None:
    for name in ("bin/busybox", "bin/bash", "usr/bin/python3.99"):
        (tree / name).touch(0o755)
    (tree / "bin/sh").symlink_to("/bin/busybox")
    (tree / "usr/bin/python3").symlink_to("python3.99")
    check_complete(fd)
    (tree / "bin/busybox").unlink()
    with pytest.raises(RootfsError, match="There is no /bin/sh"):
        check_complete(fd)


def test_a_program_of_the_host_is_none_of_the_tree(tree: Path, fd: int, tmp_path: Path) -> None:
    host = tmp_path / "host/sh"
    host.touch(0o755)
    for name in ("bin/sh", "bin/bash", "usr/bin/python3"):
        (tree / name).symlink_to(host)
    assert (tree / "bin/sh").exists()
    with pytest.raises(RootfsError, match="There is no /bin/sh"):
        check_complete(fd)
