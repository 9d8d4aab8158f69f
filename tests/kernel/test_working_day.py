# SPDX-License-Identifier: Apache-2.0
"""Of 50 ordinary commands at least 48 do by `unspill run` what they do without it, with at most two questions."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.demo_project import prepare
from tests.kernel.internet import Internet, internet, make_wheels_of
from tests.kernel.working_day import (
    DAY,
    FILES,
    HOSTS,
    Look,
    Person,
    Typed,
    as_outside,
    differences,
    make_same,
    without_path,
)

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(600),
    pytest.mark.view("sealed", reason="a virtual environment has the path of the project in it"),
]

# How a run says what to type about a path that was not applied
ADVICE = "      unspill "
# How it begins to tell of a flagged path
FLAG = "  ! Review before use: "
# What must not count as a success, with a part of what is said about it
OTHERWISE = {
    "unspill run -c 'echo made > ../made'; cat ../made": "exit code 1 but outside 0",
    "unspill run -- curl -sS https://www.example.org/hello": "printed b'' but outside b'hello",
    "test $PWD != $HOME/project || echo other > README.md": "README.md: -rw-r--r-- b'other",
    "test $PWD != $HOME/project || git commit -q --allow-empty -m other": "what git says",
    "test $PWD != $HOME/project || git tag other": "what git says",
    "test $PWD != $HOME/project || chmod 600 README.md": "README.md: -rw-------",
    "test $PWD != $HOME/project || ln -s README.md link": "link: lrwxrwxrwx README.md but outside nothing",
    "test $PWD != $HOME/project || echo other": "printed b'other",
}


class Day:
    """One project and its twin: a line is typed in the one with unspill, then in the other one without it."""

    def __init__(self, net: Internet, person: Person) -> None:
        self.project, self.twin = net.project, net.directory / "home" / "outside"
        self._person = person
        self.questions: list[str] = []
        self.failures: list[str] = []
        self.flagged: list[str] = []
        shutil.copytree(self.project, self.twin, symlinks=True)
        self._looks = Look(self.project), Look(self.twin)

    def type(self, line: str) -> None:
        """Type a line in both, and remember what was otherwise with unspill."""
        inside = self._person.type(line, self.project)
        advice = [line.strip() for line in inside.stderr.decode().splitlines() if line.startswith(ADVICE)]
        self.questions += [*(f"{line}: on the terminal" for _ in range(inside.questions)), *advice]
        said = inside.stderr.decode(errors="replace").splitlines()
        self.flagged += [f"{line}: {one.strip()}" for one in said if one.startswith(FLAG)]
        for command in advice:
            self._person.agree(command, self.project)
        outside = self._person.type(as_outside(line), self.twin)
        differing = differences(*(look.entries() for look in self._looks))
        found = [*self._otherwise(inside, outside), *differing.values()]
        if found:
            shown = "\n    ".join([*found[:5], *inside.stderr.decode(errors="replace").splitlines()[-12:]])
            self.failures.append(f"{line}\n    {shown}")
            # The next command is judged by itself
            make_same(differing, self.project, self.twin)

    def _otherwise(self, inside: Typed, outside: Typed) -> list[str]:
        found = []
        if inside.exit_code != outside.exit_code:
            found.append(f"exit code {inside.exit_code} but outside {outside.exit_code}")
        told = [without_path(one.stdout, place) for one, place in ((inside, self.project), (outside, self.twin))]
        if told[0] != told[1]:
            found.append(f"printed {told[0][-300:]!r} but outside {told[1][-300:]!r}")
        return found

    def held(self) -> list[str]:
        """Return the paths that still wait to be applied."""
        told = self._person.type("unspill changes --json", self.project)
        assert told.exit_code == 0, told
        return [change["path"] for root in json.loads(told.stdout)["roots"] for change in root["changes"]]


@contextmanager
def day(directory: Path, bwrap: bytes) -> Iterator[Day]:
    """Prepare a machine whose configuration allows the hosts of packages and repositories."""
    with internet(directory, bwrap) as net:
        prepare(net, **FILES)
        make_wheels_of("pytest", directory / "files" / "simple")
        programs = directory / "home" / ".local" / "bin"
        programs.mkdir(parents=True)
        (programs / "unspill").symlink_to(Path(sys.executable).with_name("unspill"))
        variables = {
            **net.trust(),
            "PIP_INDEX_URL": "https://pip.example.org/simple/",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_PROGRESS_BAR": "off",
            "npm_config_registry": "https://npm.example.org/",
            "npm_config_update_notifier": "false",
            "npm_config_audit": "false",
            "npm_config_fund": "false",
        }
        # Not the tests' own: an ordinary person has the python3 of the system, and no pytest
        path = {"PATH": f"{programs}:/usr/bin:/bin"}
        net.configure(f"environment = {sorted(variables)}\n[network]\nhosts = {list(HOSTS)}\n")
        person = Person(net, {**variables, **path})
        try:
            yield Day(net, person)
        finally:
            person.close()


def test_there_are_50_commands_and_each_is_there_once() -> None:
    assert len(DAY) == len(set(DAY)) == 50


def test_at_least_48_of_50_commands_do_what_they_do_outside_with_at_most_two_questions(
    tmp_path: Path, trusted_bwrap: bytes
) -> None:
    with day(tmp_path / "internet", trusted_bwrap) as typed:
        for line in DAY:
            typed.type(line)
        left = typed.held()
    assert len(typed.failures) <= 2, "\n".join(typed.failures)
    assert len(typed.questions) <= 2, typed.questions
    assert len(typed.flagged) <= 4, typed.flagged
    assert left == []
    failed = "; ".join(line.splitlines()[0].removeprefix("unspill run ") for line in typed.failures)
    record_figure("commands of 50 that did what they do outside", str(50 - len(typed.failures)), f"not: {failed}")
    record_figure("questions in these 50 commands", str(len(typed.questions)), "; ".join(typed.questions))
    record_figure("flagged lines in these 50 commands", str(len(typed.flagged)), "; ".join(typed.flagged))


def test_what_is_not_as_it_is_outside_is_noticed_and_every_question_is_counted(
    tmp_path: Path, trusted_bwrap: bytes
) -> None:
    with day(tmp_path / "internet", trusted_bwrap) as typed:
        for line in OTHERWISE:
            typed.type(line)
        assert [failure.splitlines()[0] for failure in typed.failures] == list(OTHERWISE)
        for failure, words in zip(typed.failures, OTHERWISE.values(), strict=True):
            assert words in failure
        assert typed.questions == []
        typed.type("unspill run -c 'echo true > .envrc; mkdir .vscode; echo {} > .vscode/tasks.json'")
        typed.type("unspill run --allow-host www.example.org -- curl -sS https://www.example.org/hello")
        assert len(typed.questions) == 3, typed.questions
        assert len(typed.failures) == len(OTHERWISE)
