# SPDX-License-Identifier: Apache-2.0
"""The guard where there is too much to look at: it takes little time, and what it did not see is held."""

import itertools
import os
import string
import time
from pathlib import Path

import pytest

from tests.unit.apply.guard_given import GONE, judged
from unspill.apply.guard import judge
from unspill.model.change import Change, Identity, RootChanges
from unspill.policy import held as rows

FILE = Identity(kind="file", mode=0o644, inode=1, size=1, ctime_ns=1)
DIRECTORY = Identity(kind="dir", mode=0o755, inode=1, size=1, ctime_ns=1)


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of the person who runs the tests don't count."""
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def settings_with(words: int) -> str:
    """Return a configuration that names many programs."""
    names = itertools.islice(map("".join, itertools.product(string.ascii_lowercase, repeat=3)), words)
    return "[pager]\n\tx = " + " ".join(names) + "\n"


def test_settings_that_name_thousands_of_places_cost_little_and_hold_everything(tmp_path: Path) -> None:
    after = {".git/config": settings_with(15_000), **{f"d{number}/config": "x" for number in range(300)}, "a.txt": "x"}
    start = time.process_time()
    found = dict(judged(tmp_path, after, {".git/HEAD": "x"}).held)
    assert time.process_time() - start < 5
    assert {b".git/config", b"d7/config", b"a.txt"} <= found.keys()


def test_places_named_many_times_hide_none_of_the_person(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[core]\n\thooksPath = tools\n")
    found = judged(tmp_path, {".git/config": "[pager]\n\tx = " + "aaa " * 3000, "tools/x": "x"}, {".git/HEAD": "x"})
    assert b"tools/x" in dict(found.held)


def test_as_many_places_as_somebody_may_have_hold_nothing_else(tmp_path: Path) -> None:
    found = judged(tmp_path, {"zzz.txt": "x", "aab": "x"}, {".git/config": settings_with(1500)})
    assert [path for path, _ in found.held] == [b"aab"]


def test_a_proposed_setting_makes_nobody_look_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def look(path: bytes) -> bytes:
        asked.append(path)
        return path

    monkeypatch.setattr("unspill.apply.guard_git.os.path.realpath", look)
    monkeypatch.setattr("pwd.getpwnam", lambda name: look(name.encode()))
    inside = "[core]\n\thooksPath = /net/example.org/x\n\tpager = ~example/x\n\teditor = tool\n"
    judged(tmp_path, {".git/config": inside}, {".git/HEAD": "x"})
    live = os.fsencode(tmp_path / "live")
    assert live + b"/tool" in asked
    assert [path for path in asked if not path.startswith(live + b"/")] == []


def test_a_directory_that_is_too_large_to_look_through_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unspill.apply.guard.MAX_LOOKS", 50)
    few, many = ({f"d/{place}/{number}": "" for number in range(count) for place in "ab"} for count in (20, 30))
    assert judged(tmp_path / "1", {"d": GONE}, few).held == ()
    assert judged(tmp_path / "2", {"d": GONE}, many).held == ((b"d", rows.GONE_WITH_IT.reason),)


def test_a_directory_that_is_closed_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "live" / "d" / "closed").mkdir(parents=True)
    (tmp_path / "live" / "d" / "closed").chmod(0)
    entry = Change(path=b"d", kind="deleted", base_kind="dir", base_mode=0o755)
    part = RootChanges(root=os.fsencode(tmp_path / "live"), changes=(entry,))
    expected = () if os.geteuid() == 0 else ((b"d", rows.GONE_WITH_IT.reason),)
    assert judge(part).held == expected


def test_twenty_thousand_deleted_files_take_little_time(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / "d" / str(number)).mkdir(parents=True)
        for name in range(500):
            (tmp_path / "d" / str(number) / str(name)).touch()
    part = RootChanges(root=os.fsencode(tmp_path), changes=(Change(path=b"d", kind="deleted", base_kind="dir"),))
    taken = []
    for _ in range(3):
        start = time.process_time()
        assert judge(part).held == ()
        taken.append(time.process_time() - start)
    # 1.5 microseconds a file where it was measured
    assert min(taken) < 20_000 * 15e-6


def test_a_deep_directory_of_held_files_takes_time_for_each_file_once(tmp_path: Path) -> None:
    paths = [b"/".join([b"d"] * depth) for depth in range(1, 200)]
    paths.append(paths[-1] + b"/.vscode")
    changes = [Change(path=path, kind="added", entry=DIRECTORY, layer=b"/none") for path in paths]
    changes += [
        Change(path=paths[-1] + b"/%05d" % number, kind="added", entry=FILE, layer=b"/none") for number in range(5000)
    ]
    part = RootChanges(root=os.fsencode(tmp_path), changes=tuple(changes))
    start = time.process_time()
    assert len(judge(part).held) == len(changes)
    assert time.process_time() - start < 5
