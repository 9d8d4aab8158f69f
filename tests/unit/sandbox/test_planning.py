# SPDX-License-Identifier: Apache-2.0
"""Where a run with the host's network asks for names."""

import os
from pathlib import Path

import pytest

from unspill.sandbox import planning


@pytest.mark.parametrize(
    ("made", "found"),
    [("a file", "resolv.conf"), ("a link", "run/stub-resolv.conf"), ("a dead link", ""), ("a directory", ""), ("", "")],
)
def test_the_resolver_file_is_where_the_link_leads_or_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, found: str
) -> None:
    place, target = tmp_path / "resolv.conf", tmp_path / "run" / "stub-resolv.conf"
    target.parent.mkdir()
    if made.endswith("link"):
        place.symlink_to(target)
    if made == "a link":
        target.touch()
    elif made == "a file":
        place.touch()
    elif made == "a directory":
        place.mkdir()
    monkeypatch.setattr(planning, "_RESOLVER_FILE", os.fsencode(place))
    assert planning._find_resolver_file() == (os.fsencode(tmp_path / found) if found else b"")
