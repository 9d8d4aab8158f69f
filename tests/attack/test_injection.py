# SPDX-License-Identifier: Apache-2.0
"""Names that want to be something else: options of bwrap, options of an overlay, other directories."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena, naive_bwrap
from tests.support import is_rootfs_chosen
from tests.unit.plan.given import facts, given, stack
from unspill import NeverStarted, UnspillError
from unspill.plan.argv import bwrap_options
from unspill.plan.build import build_plan

if TYPE_CHECKING:
    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

TEMPTING = (
    *("--bind", "--", "-", "--args", "3", "--dev-bind", "--share-net", "--uid", "--setenv", "--ro-bind"),
    *(" ", "\t", "\n", "\n\n", "\\", '"', "'", "`id`", "$(id)", "${HOME}", ";", "&", "|", "<", ">", "*", "?", "~", "#"),
    *(",", ":", "\\:", "\\,", "=", "%s", "%n", "lowerdir=", "upperdir=", ",upperdir=", ":/", "..", "...", "userxattr"),
    *("\x1b[2J", "\r", "\x7f", "\x01", "\u202e", "\u200b", "é", "\udcff", "\udc80x", "a" * 200),
)


def hostile_names(count: int, seed: int) -> list[str]:
    """Return names for one directory entry, made of tempting parts: no slash, no NUL, not . or .."""
    chance = random.Random(seed)
    names: dict[str, None] = {}
    while len(names) < count:
        name = "".join(chance.choice(TEMPTING) for _ in range(chance.randint(1, 4))).replace("/", "")
        if name not in ("", ".", "..") and len(os.fsencode(name)) <= 255:
            names[name] = None
    return list(names)


@pytest.mark.timeout(900)
def test_a6_no_name_of_a_project_is_taken_for_an_option(arena: Arena, full: bool) -> None:
    """Really run in projects with hostile names, and look at what the sandbox has become.
    Control: options joined and split at white space, below."""
    script = """
    print("HERE", os.getcwd() == %r, sorted(os.listdir(".")) == ["kept"])
    at_home = os.listdir(os.path.expanduser("~"))
    if at_home != %r and %r not in os.getcwd(): won(at_home)
    for line in open("/proc/net/dev"):
        if ":" in line and not line.strip().startswith("lo:"): won(line)
    if os.path.exists("/oldroot") or os.path.exists("/newroot"): won("root")
    attempt("write to /usr", os.mkdir, "/usr/made")
    """
    for name in hostile_names(1500 if full else 60, seed=6):
        project = arena.ground.top / "projects" / name
        project.mkdir(parents=True)
        (project / "kept").write_text("x")
        home = os.fspath(arena.ground.home)
        there = "/workspace" if is_rootfs_chosen() else os.fspath(project)
        at_home = ["kept"] if is_rootfs_chosen() else ["playground"]
        tried = arena.attack(script % (there, at_home, home), sandbox=arena.ground.sandbox(project=project))
        assert not tried.won, name
        assert "HERE True True" in tried.lines, name
        shutil.rmtree(project)


@pytest.mark.timeout(900)
def test_a6_no_word_of_a_command_is_taken_for_an_option(arena: Arena, full: bool) -> None:
    """Run commands whose first word is an option of bwrap, with a host directory to bind.
    Control: without `--` before the command bwrap takes it as options and writes to the host."""
    host = arena.ground.top / "host"
    host.mkdir()
    write = ["sh", "-c", "echo x > /mnt/written"]
    sandbox = arena.ground.sandbox()
    attack = ["--bind", os.fspath(host), "/mnt", *write]
    assert isinstance(sandbox.run(attack).outcome, NeverStarted)
    assert naive_bwrap(arena.ground.bwrap, *attack).returncode == 0
    assert [path.name for path in host.iterdir()] == ["written"]
    (host / "written").unlink()
    for name in hostile_names(1500 if full else 60, seed=66):
        result = sandbox.run([name, "--bind", os.fspath(host), "/mnt", *write])
        assert isinstance(result.outcome, NeverStarted), name
        assert result.exit_code in (126, 127), name
        assert not result.stdout.total, name
    assert list(host.iterdir()) == []


@pytest.mark.parametrize("command", [[], [""], "", " \n", ["a\0b"], "true\0--bind", ["true", "\0"]])
def test_a6_empty_commands_and_nul_are_refused(arena: Arena, command: Any) -> None:
    """Ask for a command that ends an option early or is none.
    Control: none of them could be passed to any program; that they are refused before anything is made is shown."""
    with pytest.raises(UnspillError):
        arena.ground.sandbox().run(command)
    assert arena.ground.left_behind() == []


def test_a6_names_change_nothing_but_themselves_in_the_options(full: bool) -> None:
    """Compare the options of thousands of projects, commands, directories and variables with those of a plain name.
    Control: options joined and split at white space differ for the same names."""
    plain, naive_differs = b"/home/ann/src/plain", 0
    usual = options_for(plain)
    for name in hostile_names(10_000 if full else 1_500, seed=666):
        project = b"/home/ann/src/" + os.fsencode(name)
        options = options_for(project)
        assert [option.replace(project, plain) for option in options] == usual, name
        naive_differs += b" ".join(options).split() != list(options)
    assert naive_differs > 200


def options_for(project: bytes) -> list[bytes]:
    extra = ((b"GIVEN", project),)
    plan = build_plan(given(stacks=(stack(project),), cwd=project, argv=(project, project), extra_environ=extra))
    return [*bwrap_options(plan, facts(), 7)[0], *plan.argv]


LISTING = """
def look(top):
    for here, directories, names in sorted(os.walk(top)):
        for name in sorted((*directories, *names)): print("SEES", os.path.relpath(os.path.join(here, name), top))
look(".")
"""


def trees(ground: Ground) -> dict[str, Path]:
    """Return projects whose path, taken as an overlay's options, names the directory of secrets too."""
    top, secret = ground.top, ground.top / "secret"
    secret.mkdir()
    (secret / "key").write_text("CANARY")
    beside = os.fspath(secret)[1:]
    names = {
        "colon": f"a:/{beside}",
        "colon in one name": "a:b",
        "comma": f"a,lowerdir=/{beside}",
        "upper": f"a,upperdir=/{beside}",
        "escape": f"a\\:/{beside}",
        "escape at the end": "a\\",
        "double colon": f"a::/{beside}",
        "space": "a b  c",
        "newline": "a\nb",
        "quotes": "a\"b'c",
        "octal": "a\\072b\\054c",
        "percent": "a%3Ab",
    }
    made = {case: top / "trees" / name for case, name in names.items()}
    for path in made.values():
        path.mkdir(parents=True)
        (path / "kept").write_text("x")
    for plain in ("a", "b"):
        (top / "trees" / plain).mkdir(exist_ok=True)
    return made


def test_a7_no_character_of_a_path_is_taken_for_an_overlay_option(arena: Arena, engine: str) -> None:
    """Lay a layer over projects with `:`, `,`, backslash, newline, quotes in their path, one level or many.
    Control: the naive option string `lowerdir=PATH` shows the other directory."""
    for case, project in trees(arena.ground).items():
        sandbox = arena.ground.sandbox(project=project)
        for _ in range(2):
            tried = arena.attack(LISTING + "with open('new', 'a') as file: file.write('x')", sandbox=sandbox)
            seen = [line for line in tried.lines if line.startswith("SEES")]
            assert seen in (["SEES kept"], ["SEES kept", "SEES new"]), case
        assert [change.path for change in sandbox.changes()] == [b"new"], case
        assert os.listdir(project) == ["kept"], case


def test_a7_control_a_naive_option_string_merges_another_directory(arena: Arena) -> None:
    """The control arm of the test above.
    Control: this is it."""
    made = trees(arena.ground)
    shown = naive_overlay(arena.ground.top, made["colon"])
    assert "key" in shown.stdout, shown.stderr
    assert "key" in naive_overlay(arena.ground.top, made["comma"]).stdout


def naive_overlay(top: Path, project: Path) -> subprocess.CompletedProcess[str]:
    scratch = Path(tempfile.mkdtemp(dir=top))
    upper, work, merged = (scratch / name for name in ("upper", "work", "merged"))
    for path in (upper, work, merged):
        path.mkdir()
    script = 'mount -i -t overlay -o "lowerdir=$1,upperdir=$2,workdir=$3,userxattr" none "$4"; ls -A "$4"'
    words = ["unshare", "-rm", "sh", "-c", script, "sh", *map(os.fspath, (project, upper, work, merged))]
    return subprocess.run(words, capture_output=True, text=True, check=False)
