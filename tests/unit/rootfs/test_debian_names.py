# SPDX-License-Identifier: Apache-2.0
"""What a wish for a Debian rootfs may name, and what it is turned into."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import RootfsError
from unspill.rootfs.debian_names import (
    MIRROR,
    SECURITY_MIRROR,
    TIER_1,
    TIER_2,
    Archive,
    archives_of,
    checked_suite,
    is_package,
    packages_of,
    sources_list,
    variant_of,
)


@pytest.mark.parametrize("name", ["bash", "g++", "libstdc++6", "python3.11", "7zip", "r-base-core", "libc6-dev"])
def test_names_of_packages_are_taken(name: str) -> None:
    assert is_package(name)


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
    assert not is_package(name)
    with pytest.raises(RootfsError, match="can't be the name of a package"):
        packages_of(1, (name,))


@given(st.text())
def test_whatever_passes_is_one_plain_word(text: str) -> None:
    if is_package(text):
        assert text.isascii()
        assert not set(text) & set(" \t\n,:;/$'\"\\*?!()=~")
        assert text[0].isalnum()


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid", "stable", "bookworm-backports"])
def test_suites_are_taken(suite: str) -> None:
    assert checked_suite(suite) == suite


@pytest.mark.parametrize("suite", ["-x", "a", "Bookworm", "bookworm main", "../x", "bookworm/x", "12", "x-", "[x]"])
def test_what_is_no_suite_is_refused(suite: str) -> None:
    with pytest.raises(RootfsError, match="can't be a suite"):
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
    assert len(variant_of(("git",))) == 8


def test_debians_own_archives_are_the_default_with_updates_and_security() -> None:
    assert archives_of("", "trixie") == (
        Archive(address=MIRROR, suites=("trixie", "trixie-updates")),
        Archive(address=SECURITY_MIRROR, suites=("trixie-security",)),
    )
    assert archives_of("", "sid") == (Archive(address=MIRROR, suites=("sid",)),)


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        ("https://m.example.org/debian/", [("https://m.example.org/debian", ("bookworm",))]),
        ("http://m.example.org:8080/d", [("http://m.example.org:8080/d", ("bookworm",))]),
        ("file:/srv/mirror", [("copy:/srv/mirror", ("bookworm",))]),
        ("file:///srv/mirror/", [("copy:/srv/mirror", ("bookworm",))]),
        ("copy:/srv/mirror", [("copy:/srv/mirror", ("bookworm",))]),
        (
            "https://m.example.org/d bookworm bookworm-updates https://m.example.org/s bookworm-security",
            [
                ("https://m.example.org/d", ("bookworm", "bookworm-updates")),
                ("https://m.example.org/s", ("bookworm-security",)),
            ],
        ),
    ],
)
def test_a_mirror_is_an_address_or_several_with_their_suites(mirror: str, expected: list[tuple[str, object]]) -> None:
    assert [(archive.address, archive.suites) for archive in archives_of(mirror, "bookworm")] == expected


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
    with pytest.raises(RootfsError, match="can't be a mirror"):
        archives_of(mirror, "bookworm")


@given(st.text(alphabet="abz:/.-[]=@ \n#trusedy", max_size=40))
def test_no_mirror_writes_an_option_into_the_sources(mirror: str) -> None:
    try:
        archives = archives_of(mirror, "bookworm")
    except RootfsError:
        return
    text = sources_list(archives)
    assert not set(text) & set("[]#@=")
    assert all(len(line.split()) == 4 for line in text.splitlines())


def test_a_list_of_sources_names_the_keyring_where_there_is_one() -> None:
    archives = (Archive(address="https://m.example.org/d", suites=("a1", "b1")),)
    assert sources_list(archives) == "deb https://m.example.org/d a1 main\ndeb https://m.example.org/d b1 main\n"
    assert sources_list(archives, "/k.gpg").startswith("deb [signed-by=/k.gpg] https://m.example.org/d a1 main\n")
