# SPDX-License-Identifier: Apache-2.0
"""Which archives a Debian rootfs is built from where nobody names any: those of this machine's own apt."""

from pathlib import Path

import pytest

from unspill.rootfs.debian_names import Archive, archives_of
from unspill.rootfs.debian_sources import default_archives

STANZAS = """\
# The usual ones
Types: deb deb-src
URIs: http://mirror.example.org/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example.org/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: https://packages.example.org/node
Suites: bookworm
Components: main

Enabled: no
Types: deb
URIs: http://off.example.org/debian
Suites: bookworm
Components: main
"""
LINES = """\
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example.org/debian bookworm main
deb http://mirror.example.org/debian bookworm-updates main # with updates
#deb http://other.example.org/debian bookworm main
deb-src http://other.example.org/debian bookworm main
deb http://mirror.example.org/debian-security bookworm-security main
"""
EXPECTED = (
    Archive(address="http://mirror.example.org/debian", suites=("bookworm", "bookworm-updates")),
    Archive(address="http://mirror.example.org/debian-security", suites=("bookworm-security",)),
)


@pytest.mark.parametrize(("name", "text"), [("sources.list.d/debian.sources", STANZAS), ("sources.list", LINES)])
def test_the_archives_of_this_machines_apt_are_the_default(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert default_archives("bookworm", str(tmp_path)) == EXPECTED
    # Nobody named them, so only Debian's own keys count
    assert not any(archive.named for archive in default_archives("bookworm", str(tmp_path)))


USELESS = {
    "another suite": "deb http://mirror.example.org/debian trixie main\n",
    "security alone": "deb http://mirror.example.org/debian-security bookworm-security main\n",
    "no Debian": "deb http://mirror.example.org/ubuntu bookworm main\n",
    "a password": "deb http://me:secret@mirror.example.org/debian bookworm main\n",
    "a directory": "deb file:/srv/debian bookworm main\n",
    "not main": "deb http://mirror.example.org/debian bookworm contrib\n",
    "nothing": "",
    "not text": "deb \x00\x01 [ [ ]\n",
}


@pytest.mark.parametrize("case", USELESS)
def test_where_it_has_none_of_that_suite_debians_own_are(tmp_path: Path, case: str) -> None:
    (tmp_path / "sources.list").write_text(USELESS[case])
    assert default_archives("bookworm", str(tmp_path)) == archives_of("", "bookworm")


def test_a_machine_without_apt_has_debians_own(tmp_path: Path) -> None:
    assert default_archives("sid", str(tmp_path / "none")) == archives_of("", "sid")
