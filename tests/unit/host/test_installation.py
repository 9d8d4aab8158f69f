# SPDX-License-Identifier: Apache-2.0
"""Which roots unspill can't have because it lies there itself, or because its Python imports from there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import unspill
from unspill.errors import RootRefused
from unspill.host.places import check_own_place, own_words

PACKAGE = Path(unspill.__path__[0])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root in which nothing of unspill lies."""
    (tmp_path / "root").mkdir()
    assert not check_own_place([os.fsencode(tmp_path / "root")])
    return tmp_path / "root"


def refusal(root: Path) -> str:
    """Return why a directory can't be a root, nothing if it can."""
    try:
        check_own_place([b"/nowhere", os.fsencode(root)])
    except RootRefused as error:
        return error.message
    return ""


def lead(link: Path, target: Path) -> str:
    link.symlink_to(target)
    return os.fspath(link)


Change = Callable[[pytest.MonkeyPatch, Path], object]
CHANGES: dict[str, tuple[str, Change]] = {
    "the environment": ("installed", lambda patch, root: patch.setattr(sys, "prefix", f"{root}/.venv")),
    "the root as environment": ("installed", lambda patch, root: patch.setattr(sys, "prefix", f"{root}")),
    "the standard library": ("installed", lambda patch, root: patch.setattr(sys, "base_prefix", f"{root}/python")),
    "its machine code": ("installed", lambda patch, root: patch.setattr(sys, "base_exec_prefix", f"{root}/python")),
    "the interpreter": ("installed", lambda patch, root: patch.setattr(sys, "executable", f"{root}/bin/python")),
    "a link to the interpreter": (
        "installed",
        lambda patch, root: patch.setattr(sys, "executable", lead(root / "python", Path(sys.executable))),
    ),
    "an interpreter by a link to a link": (
        "installed",
        lambda patch, root: (
            lead(root / "python", Path(sys.executable)),
            patch.setattr(sys, "executable", lead(root.parent / "python", Path("root/python"))),
        ),
    ),
    "directories of packages": (
        "imports",
        lambda patch, root: patch.setattr(sys, "path", [*sys.path, f"{root}/packages"]),
    ),
    "a directory that leads to packages elsewhere": (
        "imports",
        lambda patch, root: patch.setattr(sys, "path", [*sys.path, lead(root / "packages", PACKAGE.parent)]),
    ),
    "a link outside that leads in": (
        "imports",
        lambda patch, root: patch.setattr(sys, "path", [*sys.path, lead(root.parent / "packages", root)]),
    ),
    "a way that goes in and out again": (
        "imports",
        lambda patch, root: patch.setattr(sys, "path", [*sys.path, f"{root}/sub/../../packages"]),
    ),
    "the directory where it stands": ("imports", lambda patch, root: patch.setattr(sys, "path", [*sys.path, ""])),
    "a relative directory": ("imports", lambda patch, root: patch.setattr(sys, "path", [*sys.path, "lib"])),
    "the compiled modules": ("imports", lambda patch, root: patch.setattr(sys, "pycache_prefix", f"{root}/cache")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_root_with_a_part_of_unspill_is_refused(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word, change = CHANGES[name]
    monkeypatch.chdir(root)
    change(monkeypatch, root)
    assert word in refusal(root)
    assert os.fspath(root) in refusal(root)
    (root.parent / "other").mkdir()
    assert not refusal(root.parent / "other")


@pytest.mark.parametrize("above", [PACKAGE, PACKAGE.parent, PACKAGE.parent.parent])
def test_its_own_source_can_not_be_a_root(above: Path) -> None:
    """An editable installation: to develop unspill in its own sandbox."""
    assert "unspill runs from its source" in refusal(above) or "is installed inside" in refusal(above)


def test_a_user_site_that_does_not_exist_yet_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = sys.modules["site"]
    monkeypatch.setattr(site, "USER_SITE", f"{root}/lib/python/site-packages")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert not refusal(root)
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert "imports" in refusal(root)


START = """
import sys
from unspill.host.places import check_own_place
print(check_own_place([sys.argv[1].encode()]))
"""


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [
        (["-c", START], True),
        (["-P", "-c", START], False),
        (["-I", "-c", START], False),
        (["{root}/program.py"], True),
        (["-P", "{root}/program.py"], False),
        (["{root}/../program.py"], False),
        (["-m", "program"], True),
    ],
)
def test_a_program_that_python_lets_import_from_the_root_is_warned(
    words: list[str], is_warned: bool, root: Path
) -> None:
    for place in (root, root.parent):
        (place / "program.py").write_text(START)
    words = [word.format(root=root) if word != START else word for word in words]
    done = subprocess.run(
        [sys.executable, *words, os.fspath(root)], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("This program imports modules from ") is is_warned
    assert (os.fspath(root) in done.stdout) is is_warned


def test_what_only_passes_by_a_root_is_no_reason(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody inside can replace the root itself."""
    monkeypatch.setattr(sys, "path", [*sys.path, f"{root}/../packages", f"{root}x", os.fspath(root.parent)])
    assert not refusal(root)


def test_links_without_end_and_directories_that_are_gone_are_no_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(root.parent / "a", root.parent / "b")
    lead(root.parent / "b", root.parent / "a")
    gone = root.parent / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", "lib", f"{root.parent}/a/lib", *sys.path])
    assert not refusal(root)


def test_a_root_is_found_behind_a_bind_mount(root: Path) -> None:
    (root / "lib").mkdir()
    (root.parent / "mounted").mkdir()
    program = f"""
import os, sys
from unspill.host.places import check_own_place
sys.path.append({os.fspath(root.parent / "mounted/lib")!r})
check_own_place([{os.fsencode(root)!r}])
"""
    mount = f"mount --bind {root} {root.parent}/mounted"
    for before, expected in (("true", 0), (mount, 1)):
        words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh"]
        done = subprocess.run([*words, sys.executable, "-P", "-c", program], capture_output=True, check=False)
        assert done.returncode == expected, done.stderr
    assert b"Python imports modules from" in done.stderr


def test_a_directory_by_the_name_of_the_program_is_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is for `python -P` that reads its program from a terminal, in a project that is called unspill."""
    project = tmp_path / "unspill"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "argv", [""])
    assert own_words()[-2:] == ["-m", "unspill"]
    assert not refusal(project)
