# SPDX-License-Identifier: Apache-2.0
"""`files`, `restore`, `status`, `playground`, `prune`, `recover`, and what is said after an interruption."""

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import Event, Ground, run_cli
from unspill import Started

pytestmark = pytest.mark.kernel

DAY_NS = 24 * 3600 * 10**9


def typed(ground: Ground, *words: str, code: int = 0, cwd: Path | None = None) -> str:
    done = run_cli(*words, cwd=cwd or ground.project)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode()


def test_files_lists_records_with_their_backups(ground: Ground) -> None:
    ground.write("dir/edited", "old\n")
    ground.write("gone", "gone\n")
    typed(ground, "run", "-q", "-c", "echo newer > dir/edited; rm gone; touch new")
    lines = typed(ground, "files").splitlines()
    assert [line.split("  ")[0] for line in lines if not line.startswith(" ")] == ["dir/edited", "new"]
    (backup,) = [line for line in lines if line.startswith(" ")]
    day = time.strftime("%y-%m-%d")
    assert backup.endswith(f"-{day}-edited")
    assert "4 bytes" in backup
    assert "gone  (deleted)" in typed(ground, "files", "--deleted")
    assert typed(ground, "files", "new").splitlines()[0].startswith("new  (")
    assert len(typed(ground, "files", "dir").splitlines()) == 2
    assert typed(ground, "files", "nothing") == ""


def test_files_as_json_has_the_seeds_fields(ground: Ground) -> None:
    ground.write("edited", "old\n")
    typed(ground, "run", "-q", "-c", "echo newer > edited; touch new")
    by_path = {file["path"]: file for file in json.loads(typed(ground, "files", "--json"))["files"]}
    edited, new = by_path["edited"], by_path["new"]
    assert edited["root"] == os.fspath(ground.project)
    assert edited["is_deleted"] is False
    assert edited["last_modified"] == (ground.project / "edited").stat().st_mtime_ns
    assert edited["last_approved_copy_path"] == edited["backups"][0]["name"]
    assert Path(edited["backups"][0]["file"]).read_text() == "old\n"
    assert (new["last_approved_copy_path"], new["backups"]) == ("", [])


def test_the_playground_is_shown_and_emptied_and_no_link_leads_out_of_it(ground: Ground) -> None:
    """What would follow links is the control in tests/unit/layers/test_trees.py."""
    precious = ground.home / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine\n")
    assert typed(ground, "playground").endswith(" is empty.\n")
    assert not (ground.home / ".local/share/unspill/playground").exists(), "looking makes nothing"
    script = f"mkdir -p deep/er; ln -s {precious} out; ln -s {precious} deep/er/out; echo x > note; chmod 0 deep/er"
    typed(ground, "run", "-q", "--working-dir", "playground", "-c", script)
    first, *rows, last = typed(ground, "playground").splitlines()
    place = Path(first.partition(": ")[0])
    assert first.startswith(f"{place}: 4 entries, "), "what is closed is not counted"
    assert [row.split()[-1] for row in rows] == ["deep/", "note", "out"]
    assert last == "Delete all of it with --empty."
    value = json.loads(typed(ground, "playground", "--json"))
    assert (value["playground"], value["emptied"], value["left_out"]) == (os.fspath(place), False, 0)
    assert typed(ground, "playground", "--empty").startswith(f"Emptied {place}: deleted 4 entries, ")
    assert list(place.iterdir()) == []
    assert (precious / "file").read_text() == "mine\n"
    assert typed(ground, "playground", "--empty") == f"{place} is empty.\n"


def test_a_playground_is_not_emptied_while_a_run_may_be_using_it(ground: Ground) -> None:
    sandbox = ground.sandbox()
    refused: list[str] = []

    def empty(event: Event) -> None:
        if isinstance(event, Started):
            refused.append(str(run_cli("playground", "--empty", cwd=ground.project).stderr))

    sandbox.run("touch note", working_dir="playground", on_event=empty)
    assert "A run is using the playground." in refused[0]
    assert [name for name, _size in sandbox.empty_playground().names] == [b"note"]
    assert sandbox.playground().entries == 0


def test_a_playground_that_became_a_link_is_left_alone(ground: Ground) -> None:
    precious = ground.write("precious/file", "mine\n")
    sandbox = ground.sandbox()
    sandbox.run("true")
    place = Path(os.fsdecode(sandbox.playground().path))
    place.rmdir()
    place.symlink_to(precious.parent)
    typed(ground, "playground", "--empty", code=7)
    assert precious.read_text() == "mine\n"


def test_a_file_that_the_person_deleted_is_seen(ground: Ground) -> None:
    ground.write("edited", "old\n")
    typed(ground, "run", "-q", "-c", "echo newer > edited; touch new")
    for name in ("edited", "new"):
        (ground.project / name).unlink()
    assert typed(ground, "files") == ""
    assert typed(ground, "files", "--deleted").startswith("edited  (deleted)\n")
    assert "new" not in typed(ground, "files", "--deleted")
    assert typed(ground, "restore", "edited").startswith("Restored edited (op 2). Undo: unspill undo\n")
    assert (ground.project / "edited").read_text() == "old\n"


def test_restore_takes_a_name_that_files_lists(ground: Ground) -> None:
    ground.write("file", "first\n")
    typed(ground, "run", "-q", "-c", "echo second > file")
    typed(ground, "run", "-q", "-c", "echo third > file")
    name = json.loads(typed(ground, "files", "--json"))["files"][0]["backups"][0]["name"]
    typed(ground, "restore", "file", "--from", name)
    assert (ground.project / "file").read_text() == "first\n"
    typed(ground, "restore", "file", "--from", "op2")
    assert (ground.project / "file").read_text() == "second\n"


def test_status_tells_what_is_kept_also_from_outside_of_a_project(ground: Ground) -> None:
    ground.write("file", "x" * 100_000)
    typed(ground, "run", "-q", "-c", "rm file")
    typed(ground, "run", "-q", "--hold", "-c", "head -c 300000 /dev/urandom > big")
    text = typed(ground, "status", "--all", cwd=ground.home)
    assert text.startswith(f"{ground.state}: ")
    assert f"held in sandbox 'default' of {ground.project}: 1 layer\n" in text
    assert f"backups of 1 operation on {ground.project}\n" in text
    value = json.loads(typed(ground, "status", "--json"))
    assert value["held"][0]["bytes"] >= 300_000
    assert value["operations"][0]["bytes"] >= 100_000
    assert value["total_bytes"] >= 400_000
    assert value["pending"] == []
    assert "rootfs" not in text
    assert value["rootfs"] == {
        "directory": os.fspath(ground.home / ".local/share/unspill/rootfs"),
        "ready": [],
        "downloads_bytes": 0,
    }


def test_prune_forgets_what_is_too_old_and_only_says_so_first(ground: Ground) -> None:
    ground.write("file", "old\n")
    typed(ground, "run", "-q", "-c", "echo new > file")
    assert typed(ground, "prune").startswith("There is nothing to delete: ")
    with closing(sqlite3.connect(ground.state / "store.db")) as db, db:
        db.execute("UPDATE operations SET at_ns = at_ns - ?", (8 * DAY_NS,))
        db.execute("UPDATE runs SET started_ns = started_ns - ?, ended_ns = ended_ns - ?", (8 * DAY_NS, 8 * DAY_NS))
    said = typed(ground, "prune", "--dry-run")
    assert said.startswith("Would delete 1 operation, 1 named backup, ")
    assert json.loads(typed(ground, "prune", "--dry-run", "--json"))["dry_run"] is True
    assert typed(ground, "prune") == said.replace("Would delete", "Deleted")
    assert os.listdir(ground.state / "operations") == []
    assert b"there is nothing to undo" in run_cli("undo", cwd=ground.project).stderr


def test_prune_obeys_the_persons_settings(ground: Ground) -> None:
    ground.configure("keep_days = 30")
    typed(ground, "run", "-q", "-c", "touch new")
    with closing(sqlite3.connect(ground.state / "store.db")) as db, db:
        db.execute("UPDATE operations SET at_ns = at_ns - ?", (8 * DAY_NS,))
    assert typed(ground, "prune").startswith("There is nothing to delete: ")


def test_recover_puts_the_copy_of_a_lost_database_back_and_says_what_it_set_aside(ground: Ground) -> None:
    ground.write("file", "old\n")
    typed(ground, "run", "-q", "-c", "echo new > file")
    typed(ground, "run", "-q", "--hold", "-c", "echo known > held")
    assert typed(ground, "recover") == "The database is intact.\n"
    a_day_passes(ground)
    typed(ground, "run", "-q", "--hold", "-c", "echo unknown > later")
    (ground.state / "store.db").write_bytes(b"not a database at all" * 1000)
    for end in ("-wal", "-shm"):
        (ground.state / f"store.db{end}").unlink(missing_ok=True)
    done = run_cli("changes", cwd=ground.project)
    assert done.returncode == 7
    assert b"unspill recover" in done.stderr
    lines = typed(ground, "recover").splitlines()
    assert lines[0].startswith("The database was lost: ")
    assert lines[1].startswith(f"The damaged file is kept as {ground.state}/store.db.damaged-")
    assert lines[2].startswith("Replaced it with the copy of ")
    assert lines[3].startswith("Set aside, ")
    (aside,) = lines[4:]
    assert Path(aside.strip(), "later").read_text() == "unknown\n"
    assert aside.strip() in typed(ground, "status", "--all")
    assert "set aside " in typed(ground, "status")
    assert typed(ground, "changes").splitlines()[-1] == "  A held"
    typed(ground, "undo")
    assert (ground.project / "file").read_text() == "old\n"
    value = json.loads(typed(ground, "recover", "--json"))
    assert value == {"reason": "", "database": None, "copied_ns": None, "interrupted": [], "aside": []}


def a_day_passes(ground: Ground) -> None:
    """Have the next opening take what is recorded as the last daily upkeep for that of yesterday."""
    with closing(sqlite3.connect(ground.state / "store.db")) as db, db:
        assert db.execute("UPDATE facts SET value = value - ? WHERE key = 'pruned'", (DAY_NS,)).rowcount == 1
    typed(ground, "changes")
    assert (ground.state / "copies" / "daily.db").exists()


def interrupt(ground: Ground, *, kill_after: str) -> None:
    """Apply what is held, and die at a certain point of it."""
    program = f"""
import os, sys
import unspill.apply.operate as operate
from unspill.cli.main import main
real = operate.{kill_after}
def last(*arguments, **named):
    real(*arguments, **named)
    os._exit(9)
operate.{kill_after} = last
sys.argv = ["unspill", "apply"]
main()
"""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", program], cwd=ground.project, capture_output=True, check=False)
    assert done.returncode == 9, done.stderr


@pytest.mark.parametrize(
    ("point", "said", "content"),
    [("perform", "Rolled back", "old\n"), ("write_end", "Finished", "new\n")],
)
def test_an_interrupted_operation_is_said_once(ground: Ground, point: str, said: str, content: str) -> None:
    ground.write("file", "old\n")
    assert ground.sandbox().run("echo new > file").ok
    interrupt(ground, kill_after=point)
    done = run_cli("log", cwd=ground.project)
    assert done.stderr.decode() == f"unspill: {said} an interrupted apply (op 1).\n"
    assert (ground.project / "file").read_text() == content
    assert run_cli("log", cwd=ground.project).stderr == b""


def test_a_run_tells_it_too_and_goes_on(ground: Ground) -> None:
    ground.write("file", "old\n")
    assert ground.sandbox().run("echo new > file").ok
    interrupt(ground, kill_after="perform")
    done = run_cli("run", "--", "cat", "file", cwd=ground.project)
    assert (done.returncode, done.stdout) == (0, b"new\n")
    assert done.stderr.decode().startswith("unspill: Rolled back an interrupted apply (op 1).\n")
