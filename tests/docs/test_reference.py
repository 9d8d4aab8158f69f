# SPDX-License-Identifier: Apache-2.0
"""docs/reference.md lists every verb, option, exit code, error, JSON field and entry of the state directory."""

import ast
import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.performing import make_demo
from tests.docs.tables import code, rows_of, section, tables
from tests.rootfs_tree import make_small_tree
from tests.support import run_cli
from unspill import Cancelled, LimitReached, NeverStarted, Signalled, TimedOut, errors
from unspill.cli.main import EVERYWHERE, OUR_FAILURE, VERBS, Option, find_verb
from unspill.cli.permissions import question_form
from unspill.model import run as run_module
from unspill.model.change import Change, Identity
from unspill.model.permission import Grant, NetworkForCommand
from unspill.model.run import exit_code_of
from unspill.permissions.question import make_question
from unspill.store.db import PARTS

DOCUMENT = "docs/reference.md"


def spellings(option: Option) -> list[str]:
    return [f"{name} {option.metavar}".strip() for name in (option.name, option.short) if name]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_is_documented_and_no_other(verb: str) -> None:
    own = [option for option in find_verb(verb).options if option not in EVERYWHERE]
    documented = [code(row[0]) for row in rows_of(DOCUMENT, f"unspill {verb}")]
    assert sorted(documented) == sorted(map(spellings, own))


@pytest.mark.parametrize("verb", VERBS)
def test_the_usage_of_a_verb_is_documented(verb: str) -> None:
    usage = f"`unspill {verb} [options] {find_verb(verb).positional}".rstrip() + "`"
    assert usage in section(DOCUMENT, f"unspill {verb}")


def test_the_options_that_every_verb_has_are_documented() -> None:
    documented = [code(row[0]) for row in rows_of(DOCUMENT, "Command line")]
    assert sorted(documented) == sorted(map(spellings, EVERYWHERE))
    for verb in VERBS:
        assert set(EVERYWHERE) <= set(find_verb(verb).options)


def all_errors(base: type[errors.UnspillError] = errors.UnspillError) -> Iterator[type[errors.UnspillError]]:
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from all_errors(kind)


def test_every_error_is_documented_with_its_codes() -> None:
    _outcomes, rows = tables(section(DOCUMENT, "Exit codes"))
    documented = [(*code(name), *code(stable), int(number)) for name, stable, number, _meaning in rows]
    assert documented == [(kind.__name__, kind.code, kind.exit_code) for kind in all_errors()]


def test_the_exit_codes_of_outcomes_are_documented() -> None:
    rows, _errors = tables(section(DOCUMENT, "Exit codes"))
    assert {(number, *code(kind)) for number, kind, _meaning in rows} == {
        (str(exit_code_of(TimedOut(after_s=1.0))), "TimedOut"),
        (str(exit_code_of(NeverStarted(reason="ours"))), "NeverStarted"),
        ("126", "NeverStarted"),
        ("127", "NeverStarted"),
        ("128 + n", "Signalled"),
        (str(exit_code_of(Cancelled())), "Cancelled"),
        (str(exit_code_of(LimitReached(limit="output", bound=1))), "LimitReached"),
    }
    assert exit_code_of(Signalled(signal=9)) == 128 + 9
    assert exit_code_of(NeverStarted(reason="ours")) == OUR_FAILURE


def test_every_name_of_a_limit_is_documented() -> None:
    # Defined for type checkers only, so it is read from the source
    source = ast.parse(Path(run_module.__file__).read_text("utf-8"))
    (names,) = [
        ast.literal_eval(node.value.slice)
        for node in ast.walk(source)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Subscript)
        and ast.unparse(node.targets[0]) == "LimitName"
    ]
    assert [code(row[0])[0] for row in rows_of(DOCUMENT, "Names of limits")] == list(names)


def test_every_entry_of_the_state_directory_is_documented() -> None:
    documented = {code(row[0])[0] for row in rows_of(DOCUMENT, "State directory")}
    assert documented == {"store.db", "lost-*", *(part.decode() for part in PARTS)}


def fields(name: str) -> set[str]:
    """Return the documented fields of a verb, given as "`run`", or of a form, given as "run"."""
    rows = [row for table in tables(section(DOCUMENT, "JSON")) for row in table]
    return {cells[0]: set(code(cells[1])) for cells in rows}[name]


def test_every_verb_has_its_fields_documented_but_those_that_speak_a_protocol() -> None:
    verbs, _forms = tables(section(DOCUMENT, "JSON"))
    documented = {word.split()[0] for row in verbs for word in code(row[0])}
    # These speak to a person, on a terminal
    assert documented == set(VERBS) - {"attach", "hook", "mcp", "review", "shell"}


def answer(demo: Path, *words: str) -> Any:
    variables = {"HOME": str(demo.parent), "UNSPILL_STATE_DIR": str(demo.parent / "state")}
    result = run_cli(*words, "--json", cwd=demo, variables=variables)
    assert result.stderr == b""
    return json.loads(result.stdout)


@pytest.mark.kernel
def test_json_has_the_documented_fields(tmp_path: Path, bwrap: Path) -> None:
    demo = make_demo(tmp_path / "home")
    (tmp_path / "home" / "state").mkdir(mode=0o700)
    script = "printf '\\377' ; ln -s /etc/passwd link; echo x >> notes.txt; rm main.py; exit 3"
    run = answer(demo, "run", "--hold", "-c", script)
    assert set(run) == fields("`run`")
    assert {"kind", "exit_code", "code"} == set(run["outcome"])
    assert set(run["outcome"]) < fields("outcome")
    assert {"text", "left_out", "bytes_b64"} == set(run["stdout"])
    assert set(run["stdout"]) < fields("output")
    changes = answer(demo, "changes")
    assert changes == run["changes"]
    assert set(changes) == fields("change set")
    (root,) = changes["roots"]
    assert set(root) == fields("root")
    for change in root["changes"]:
        assert {name.removesuffix("_b64") for name in change} <= fields("change")
        assert set(change.get("entry", fields("entry"))) == fields("entry")
    (record,) = answer(demo, "log")["runs"]
    assert set(record) == fields("run")
    assert answer(demo, "show", "run1") == {**record, "connections": [], "denials": [], "ports": []}
    assert set(answer(demo, "diff")) == fields("`diff`")
    assert set(answer(demo, "discard")) == fields("`discard`")
    assert set(answer(demo, "doctor")) == fields("`doctor`")


@pytest.mark.kernel
def test_json_of_operations_has_the_documented_fields(tmp_path: Path, bwrap: Path) -> None:
    demo = make_demo(tmp_path / "home")
    (tmp_path / "home" / "state").mkdir(mode=0o700)
    run = answer(demo, "run", "-c", "echo x >> notes.txt; echo y > Makefile; echo z > .envrc")
    assert set(run) == fields("`run`")
    assert set(run["operation"]) == fields("operation")
    assert [set(left) for left in run["operation"]["left"]] == [fields("left")]
    assert [set(flag) for flag in run["flagged"]] == [fields("flagged")]
    for verb, words in (("undo", ()), ("redo", ()), ("apply", ()), ("restore", ("notes.txt",))):
        assert set(answer(demo, verb, *words)) == fields("operation")
    log = answer(demo, "log")
    assert set(log) == fields("`log`")
    assert answer(demo, "show", "op1") == log["operations"][-1] == run["operation"]
    files = answer(demo, "files")
    assert set(files) == fields("`files`")
    assert [set(file) for file in files["files"]] == [fields("file")] * 2
    backups = [set(backup) for file in files["files"] for backup in file["backups"]]
    assert backups
    assert all(backup == fields("backup") for backup in backups)
    answer(demo, "run", "--working-dir", "playground", "-c", "touch kept")
    assert [set(name) for name in answer(demo, "playground")["names"]] == [fields("name")]
    for verb in ("status", "sandboxes", "playground", "prune", "recover", "report"):
        assert set(answer(demo, verb)) == fields(f"`{verb}`")
    assert set(answer(demo, "forget", "--dry-run", ".")) == fields("`forget`")
    moved = demo.rename(demo.with_name("moved"))
    assert set(answer(moved, "adopt")) == fields("`adopt`")


@pytest.mark.kernel
def test_json_of_permissions_has_the_documented_fields(tmp_path: Path, bwrap: Path) -> None:
    demo = make_demo(tmp_path / "home")
    (tmp_path / "home" / "state").mkdir(mode=0o700)
    answer(demo, "run", "-c", "true")
    assert set(answer(demo, "learn", "-c", "true")) == fields("`learn`")
    assert set(answer(demo, "requests")) == fields("`requests`")
    assert set(answer(demo, "grants")) == fields("`grants`")
    assert set(answer(demo, "grants", "revoke", "--all")) == fields("`grants revoke`")
    assert set(answer(demo, "audit")) == fields("`audit`")
    request = NetworkForCommand(project=b"/p", argv=(b"true",))
    assert set(question_form(make_question(request, request.scopes))) == fields("request")
    assert set(Grant.__match_args__) == fields("grant")


@pytest.mark.kernel
def test_json_of_rootfs_has_the_documented_fields(tmp_path: Path, bwrap: Path) -> None:
    demo = make_demo(tmp_path / "home")
    (tmp_path / "home" / "state").mkdir(mode=0o700)
    with tarfile.open(demo / "small.tar", "w") as archive:
        archive.add(make_small_tree(tmp_path / "tree"), ".")
    digest = hashlib.sha256((demo / "small.tar").read_bytes()).hexdigest()
    made = answer(demo, "rootfs", "pull", "small", "--archive", "small.tar", "--sha256", digest)
    assert set(made) == fields("rootfs")
    listed = answer(demo, "rootfs")
    assert set(listed) == fields("`rootfs`, `rootfs list`")
    assert listed["rootfs"] == [made] == [answer(demo, "rootfs", "info")]
    told = answer(demo, "rootfs", "info", "--tools")
    assert set(told) == fields("`rootfs info --tools`")
    assert {frozenset(tool) for tool in told["tools"]} == {frozenset(fields("tool"))}
    assert set(answer(demo, "rootfs", "use", "small")) == fields("`rootfs use`")
    assert set(answer(demo, "rootfs", "upgrade")) == fields("rootfs") | fields("`rootfs upgrade`")
    assert set(answer(demo, "rootfs", "verify")) == fields("`rootfs verify`")
    assert set(answer(demo, "rootfs", "remove", "--unused")) == fields("`rootfs remove`")


def test_every_field_of_a_change_is_documented() -> None:
    assert {*Change.__match_args__, "path_b64"} == fields("change")
    assert set(Identity.__match_args__) == fields("entry")
