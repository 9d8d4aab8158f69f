# SPDX-License-Identifier: Apache-2.0
"""What a mirror says of its releases: found, or refused with a reason, never guessed at."""

from collections.abc import Callable, Iterator

import pytest

from tests.kernel.alpine_mirror import Mirror, releases_yaml, serve_mirror
from tests.kernel.alpine_parts import ARCH
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.rootfs.alpine import Release, branch_of, find_release, get_checksum, get_latest_version, is_version

DIGEST = "a1" * 32
NAME = f"alpine-minirootfs-3.99.1-{ARCH}.tar.gz"
INDEX = f"/alpine/latest-stable/releases/{ARCH}/latest-releases.yaml"
CHECKSUM = f"/alpine/v3.99/releases/{ARCH}/{NAME}.sha256"
GOOD = releases_yaml("3.99.1", NAME, DIGEST)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    """A mirror that has nothing yet."""
    with serve_mirror() as served:
        yield served


def test_get_latest_version(mirror: Mirror) -> None:
    mirror.files[INDEX] = GOOD.encode()
    assert get_latest_version(mirror.address, ARCH) == Release(version="3.99.1", file=NAME, sha256=DIGEST)
    assert mirror.asked == [INDEX]


def test_get_latest_version_no_minirootfs(mirror: Mirror) -> None:
    mirror.files[INDEX] = GOOD.replace("flavor: alpine-minirootfs", "flavor: alpine-virt").encode()
    with pytest.raises(RootfsError, match="There is no alpine-minirootfs"):
        get_latest_version(mirror.address, ARCH)


def test_a_mirror_without_an_index_is_unreachable(mirror: Mirror) -> None:
    with pytest.raises(RootfsUnreachable, match="404"):
        get_latest_version(mirror.address, ARCH)


COMPACT = f"""- flavor: alpine-minirootfs
  version: 3.99.1
  file: '{NAME}'
  sha256: "{DIGEST}"
"""


@pytest.mark.parametrize("text", [GOOD, COMPACT, GOOD.replace("\n", "\r\n"), f"# a comment\n{GOOD}", GOOD + GOOD[4:]])
def test_an_index_may_be_written_in_several_ways(text: str) -> None:
    assert find_release(text, ARCH, "here") == Release(version="3.99.1", file=NAME, sha256=DIGEST)


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
    "no digest": lambda good: good.replace(f"  sha256: {DIGEST}\n", ""),
    "a short digest": lambda good: good.replace(DIGEST, DIGEST[:-1]),
    "a digest that is none": lambda good: good.replace(DIGEST, "g" * 64),
    "a digest said twice": lambda good: good.replace(f"sha256: {DIGEST}", f"sha256: {DIGEST}\n  sha256: {DIGEST}"),
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


@pytest.mark.parametrize("text", [f"{DIGEST}  {NAME}\n", f"{DIGEST} *{NAME}\n", DIGEST])
def test_the_checksum_beside_an_archive_is_read(mirror: Mirror, text: str) -> None:
    mirror.files[CHECKSUM] = text.encode()
    assert get_checksum(mirror.address, "3.99.1", ARCH) == DIGEST


@pytest.mark.parametrize("text", ["", "nothing", f"{DIGEST}  other.tar.gz", f"{DIGEST}  {NAME} more", DIGEST[:-1]])
def test_a_checksum_of_another_form_is_refused(mirror: Mirror, text: str) -> None:
    mirror.files[CHECKSUM] = text.encode()
    with pytest.raises(RootfsUnverified, match="is not the checksum"):
        get_checksum(mirror.address, "3.99.1", ARCH)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3.23.3", True), ("3.23", True), ("3", False), ("3..1", False), ("3.23.", False), ("v3.23", False), ("", False)],
)
def test_versions_are_numbers_between_dots(text: str, expected: bool) -> None:
    assert is_version(text) is expected


def test_a_branch_has_the_first_two_numbers() -> None:
    assert branch_of("3.23.3") == branch_of("3.23") == "v3.23"
