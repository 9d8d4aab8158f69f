# SPDX-License-Identifier: Apache-2.0
"""`unspill report`: what it says, and its page in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import Ground, run_cli
from unspill.model.run import Connection, Denial, Traffic
from unspill.report.facts import MOST_RUNS
from unspill.store.db import Store

pytestmark = pytest.mark.kernel

# Debian's program of Chromium that has no window
BROWSER = "chromium-headless-shell"
HOSTILE = '"><script>document.title=1</script><img src=x onerror=alert(1)>'
MANY = 20_000


def told(ground: Ground, *words: str, code: int = 0) -> str:
    done = run_cli("report", *words, cwd=ground.project)
    assert done.returncode == code, done
    return (done.stdout if code == 0 else done.stderr).decode()


def complaints(page: Path, profile: Path) -> list[str]:
    """Open a page in a browser and return all that its console says; what the page is then is checked to be whole."""
    done = subprocess.run(
        [
            BROWSER,
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        check=True,
        timeout=60,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(profile)},
    )
    assert done.stdout.rstrip().endswith("</html>")
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture
def busy(ground: Ground) -> Ground:
    """Runs of an agent's session and of a person: applied, failed, undone, denied, with hostile names and commands."""
    ground.configure("")
    ground.write("old.txt", "old\n")
    script = f"echo '{HOSTILE}' > notes.txt; rm old.txt; mkdir -p src; head -c 5000 /dev/zero > src/big"
    for words in (
        ("run", "-q", "--", "sh", "-c", script),
        ("run", "-q", "--session", "s1", "--", "sh", "-c", "echo x > '<b>&.html'"),
        ("run", "-q", "--", "sh", "-c", "exit 3"),
        ("run", "-q", "--", "sh", "-c", "echo x > undone"),
        ("undo",),
        ("run", "-q", "--session", "s1", "--ask", "deny", "--allow-host", "asked.example", "--", "true"),
    ):
        run_cli(*words, cwd=ground.project)
    with Store.open(os.fsencode(ground.state)) as store:
        (row,) = store.sandboxes.of_project(os.fsencode(ground.project))
        run = store.runs.brief([row.id], "s1", 1)[0]
        made = Connection(
            host="far.example", port=443, address="192.0.2.1", up=9, down=2048, started_ns=1, ended_ns=2, verdict="cut"
        )
        refused = Denial(host="no.example", port=443, rule="host", remedy="x", times=3, reason=HOSTILE)
        store.traffic.put(run.id, Traffic(connections=(made, made), denials=(refused,)))
    return ground


def test_the_report_sums_up_runs_files_hosts_and_questions(busy: Ground) -> None:
    found = json.loads(told(busy, "--json"))
    assert found["runs"] == {"total": 4, "well": 3, "other": 1, "running": 0}
    assert (found["operations"], found["undone"]) == (4, 1)
    files = {file["path"]: (file["kind"], file["size"]) for file in found["files"]}
    # What was undone is not there any more
    assert files == {
        "src/big": ("added", 5000),
        "notes.txt": ("added", len(HOSTILE) + 1),
        "old.txt": ("deleted", 4),
        "<b>&.html": ("added", 2),
    }
    assert [(one["place"], one["connections"], one["wrong"]) for one in found["hosts"]] == [
        ("far.example:443", 2, ["cut"])
    ]
    assert [(one["place"], one["times"]) for one in found["refused"]] == [("no.example:443", 3)]
    assert [(one["about"], one["answer"]) for one in found["questions"]] == [("asked.example", "denied")]
    text = told(busy)
    for part in (
        "4 runs: 3 exit 0, 1 failed",
        "added     src/big (4.9 KiB)",
        "! no.example:443",
        "asked.example: denied",
    ):
        assert part in text
    found = json.loads(told(busy, "--session", "s1", "--json"))
    assert found["runs"]["total"] == 1
    assert [file["path"] for file in found["files"]] == ["<b>&.html"]
    assert len(found["hosts"]) == len(found["refused"]) == len(found["questions"]) == 1
    told(busy, "--session", "nobody", code=2)


def test_the_page_opens_in_a_browser_without_an_error(busy: Ground, tmp_path: Path) -> None:
    assert shutil.which(BROWSER)
    page = tmp_path / "report.html"
    assert told(busy, "--html", str(page)).startswith("Wrote ")
    assert complaints(page, tmp_path / "profile") == []
    assert "onerror" in page.read_text()
    # The control arm: the same text as markup is seen
    spoiled = tmp_path / "spoiled.html"
    spoiled.write_text(page.read_text().replace("</main>", f"{HOSTILE}</main>"))
    assert len(complaints(spoiled, tmp_path / "profile")) >= 2


def test_the_page_replaces_a_link_and_leaves_alone_what_it_leads_to(ground: Ground, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    page = tmp_path / "report.html"
    page.symlink_to(precious)
    told(ground, "--html", str(page))
    assert precious.read_text() == "mine"
    assert (page.is_symlink(), page.stat().st_mode & 0o777) == (False, 0o600)
    assert "can't be written" in told(ground, "--html", str(tmp_path / "no" / "where"), code=2)
    assert sorted(path.name for path in tmp_path.iterdir() if "report" in path.name) == ["report.html"]


def test_twenty_thousand_runs_give_a_page_of_bounded_size(ground: Ground) -> None:
    run_cli("run", "-q", "--", "true", cwd=ground.project)
    with closing(sqlite3.connect(ground.state / "store.db")) as store, store:
        names = [row[1] for row in store.execute("PRAGMA table_info(runs)") if row[1] != "seq"]
        others = {
            "id": "printf('%016x', n)",
            "number": "n",
            "started_ns": "started_ns + n * 1000000000",
            "outcome_number": "n % 3",
            "argv": "CAST('sh' || char(0) || '-c' || char(0) || n || ? AS BLOB)",
        }
        store.execute(
            f"WITH RECURSIVE count(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM count WHERE n < {MANY})"
            f" INSERT INTO runs ({', '.join(names)}) SELECT {', '.join(others.get(name, name) for name in names)}"
            " FROM runs, count WHERE number = 1",
            (HOSTILE * 9,),
        )
    page = told(ground, "--html", "-")
    assert f"<b>{MANY}</b>" in page
    assert f"and {MANY - MOST_RUNS} earlier runs: see unspill log" in page
    assert len(page) < 400_000
