# SPDX-License-Identifier: Apache-2.0
"""What package managers print about their configuration, in their own words, and which hosts follow from it."""

import pytest

from unspill.network.registries import Configured, read_apt, read_cargo, read_go, read_npm, read_pip

# As pip 23 and 25 print it, shortened
PIP = """\
Looking in indexes: https://ann:****@mirror.example.org:8443/simple, http://mirror.lan/simple
3 location(s) to search for versions of pip:
* file:///opt/wheels/
* https://ann:****@mirror.example.org:8443/simple/pip/
* http://mirror.lan/simple/pip/
Fetching project page and analyzing links: https://ann:****@mirror.example.org:8443/simple/pip/
  Found link https://files.example.org/a/pip-1.0.tar.gz#sha256=1 (from https://mirror.example.org/), version: 1.0
  Found link https://files.example.org/b/pip-1.1.tar.gz (from https://mirror.example.org/simple/pip/), version: 1.1
Available versions: 1.1, 1.0
"""
CARGO = """\
[source.crates-io]
replace-with = "mirror"
[source.mirror]
registry = "sparse+https://cargo.example.org:8443/index/"
[registries.ours]
index = "sparse+https://ours.example.org/index/"
"""


def test_pip_says_where_it_looks_and_where_it_finds_files() -> None:
    found = read_pip(PIP)
    assert found.urls == ("https://ann:****@mirror.example.org:8443/simple/pip/", "http://mirror.lan/simple/pip/")
    assert found.linked == ("https://files.example.org",)
    # No password goes inside
    assert dict(found.variables) == {
        "PIP_INDEX_URL": "https://mirror.example.org:8443/simple",
        "PIP_EXTRA_INDEX_URL": "http://mirror.lan/simple",
        "PIP_TRUSTED_HOST": "mirror.lan",
    }


def test_npm_says_its_registry_and_those_of_scopes() -> None:
    said = """{"registry": "https://ann:secret@npm.example.org/", "@ours:registry": "http://nexus:8081/npm/",
        "replace-registry-host": "never", "json": true}"""
    found = read_npm(said)
    assert found.urls == ("https://ann:secret@npm.example.org/", "http://nexus:8081/npm/")
    assert found.variables == (("npm_config_registry", "https://npm.example.org/"),)


@pytest.mark.parametrize(
    ("said", "urls"),
    [
        ("https://go.example.org,direct\nsum.example.org\n", ("https://go.example.org", "https://sum.example.org")),
        (
            "http://a.lan|https://b.lan\nsum.x+1a+key https://c.lan\n",
            ("http://a.lan", "https://b.lan", "https://c.lan"),
        ),
        ("https://go.example.org\noff\n", ("https://go.example.org",)),
    ],
)
def test_go_says_its_proxies_and_its_checksum_database(said: str, urls: tuple[str, ...]) -> None:
    assert read_go(said).urls == urls


def test_go_without_a_proxy_has_no_host_to_name() -> None:
    assert "GOPROXY=direct" in read_go("direct\noff\n").problem


def test_apt_says_its_sources() -> None:
    said = "http://a.example.org/debian\nhttp://a.example.org/debian-security\ncdrom:[Disk]/\nhttps://b.example.org/x\n"
    assert read_apt(said).urls == ("http://a.example.org", "https://b.example.org")


def test_cargo_is_read_from_its_settings_and_from_what_its_index_says() -> None:
    said = CARGO + '\0cargo.example.org-1a2b\0{"dl": "https://dl.example.org/crates", "api": null}'
    assert read_cargo(said) == Configured(
        urls=("https://cargo.example.org:8443/index/", "https://ours.example.org/index/"),
        linked=("https://dl.example.org",),
    )


def test_cargo_without_settings_is_known_by_the_index_that_it_asked() -> None:
    said = '\0index.example.org-1949cf8c\0{"dl": "https://static.example.org/crates"}'
    assert read_cargo(said) == Configured(urls=("https://index.example.org/",), linked=("https://static.example.org",))
    assert "did not reach its registry" in read_cargo("").problem


@pytest.mark.parametrize("read", [read_pip, read_npm, read_apt])
def test_what_is_not_understood_names_no_host(read: object) -> None:
    for said in ("", "\0", "{", "[]", "* ", "Found link", "* x://[", '{"registry": 1}'):
        assert callable(read)
        assert read(said).urls == ()
