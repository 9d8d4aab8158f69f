# SPDX-License-Identifier: Apache-2.0
"""What every verb prints for a person, on real terminals of three widths: `python -m tests.cli.captures` keeps it anew.

The verbs are run one after another in a pane of tmux, in a project of their own, by copies of one process that has
loaded the program. What is kept is what is on the screen, row by row. Ids, times, sizes and the place of the project
are the same each time; colours are marks such as `{31}`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from tests.panes import WAIT_S, Pane

WIDTHS: Final = (40, 80, 200)
KEPT: Final = Path(__file__).parents[1] / "fixtures" / "captures"
_ROWS: Final = 180
# As long as the place that stands for it
_PLACE: Final = "/home/ada/projects"
_OVER: Final = "== over "
_COLOUR: Final = r"(\033\[[\d;]*m)"

# What is done, in order. A word before a colon is for the terminal; `=` does it without a capture
STEPS: Final = (
    "= run -q -c 'mkdir src; seq 30 > src/app.py; echo one > notes.txt; echo x > old.txt'",
    "--help",
    "run --help",
    "log --help",
    "run -c 'echo two >> notes.txt; rm old.txt; seq 5 > src/a-file-with-a-long-name-that-fills-a-line.txt; echo hi'",
    "run -- sh -c 'exit 3'",
    "run --timeout 0.3 -- sleep 9",
    "run -c 'echo all: > Makefile; mkdir .vscode; echo {} > .vscode/tasks.json'",
    "run --hold -c 'sed -i s/one/ONE/ notes.txt; echo new > fresh.txt; seq 200 > src/more.py'",
    "run 'a && b'",
    "run --ask deny --allow-host host.example -- true",
    "= run -q --session agent-7 -c 'echo s > by-agent.txt'",
    "changes",
    "diff notes.txt",
    "diff op2",
    "log",
    "log --all --limit 4",
    "log notes.txt",
    "blame notes.txt",
    "show run2",
    "show @",
    "show op2",
    "show 2",
    "sessions",
    "show --session",
    "report",
    "sandboxes",
    "files",
    "status",
    "status --all",
    "requests",
    "grants",
    "audit --limit 6",
    "playground",
    "prune --dry-run",
    "forget --dry-run .",
    "ps",
    "rootfs list",
    "init",
    "apply note.txt",
    "apply fresh.txt",
    "undo --dry-run",
    "undo",
    "redo",
    "restore notes.txt",
    "discard src",
    "apply",
    "undo op2",
    "recover",
    "adopt",
    "stauts",
    "log --limt 3",
)
# Their sizes are those of this machine's disk
_SIZED: Final = ("sandboxes", "status", "status --all", "forget --dry-run .", "prune --dry-run")

_DRIVER: Final = f"""
import os, sys
from unspill.cli import main, run, review, log, history, projects, permissions, upkeep, report
print("{_OVER}0", flush=True)
for line in open(sys.argv[1]):
    number, words = __import__("json").loads(line)
    os.write(1, b"\\033[2J\\033[H\\033[3J")
    child = os.fork()
    if not child:
        sys.argv = ["unspill", *words]
        main.main()
    os.waitpid(child, 0)
    print(f"\\n{_OVER}{{number}}", flush=True)
"""


def capture(columns: int, *, has_colours: bool = True) -> str:
    """Do all steps in a new project, on a terminal so wide; return what was on the screen."""
    base = Path(tempfile.mkdtemp(prefix="u", dir="/var/tmp"))
    try:
        (base / "demo").mkdir()
        (base / "state").mkdir(mode=0o700)
        with _driven(base, columns, has_colours=has_colours) as (pane, orders):
            shown = []
            for number, step in enumerate(STEPS, 1):
                words = shlex.split(step.removeprefix("= "))
                orders.write(json.dumps([number, words]) + "\n")
                orders.flush()
                rows = _wait(pane, number)
                if not step.startswith("= "):
                    text = _steady("\n".join(rows), str(base), is_sized=step in _SIZED)
                    shown.append(f"$ unspill {step}\n{text}\n")
            return "\n".join(shown)
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def _driven(base: Path, columns: int, *, has_colours: bool) -> Iterator[tuple[Pane, TextIO]]:
    pipe = base / "orders"
    os.mkfifo(pipe)
    pane = Pane(base / "socket")
    variables = {
        "HOME": str(base),
        "UNSPILL_STATE_DIR": str(base / "state"),
        "TZ": "UTC",
        "TERM": "screen-256color",
        "NO_COLOR": "" if has_colours else "1",
    }
    given = [f"{name}={value}" for name, value in variables.items()]
    driver = ["env", "-u", "PYTHONPATH", *given, sys.executable, "-P", "-c", _DRIVER, str(pipe)]
    pane.tmux("new-session", "-d", "-x", str(columns), "-y", str(_ROWS), "-c", str(base / "demo"), *driver)
    try:
        with pipe.open("w") as orders:
            _wait(pane, 0)
            yield pane, orders
    finally:
        pane.tmux("kill-server")


def _wait(pane: Pane, number: int) -> list[str]:
    """Return what is on the screen when a step is over."""
    deadline = time.monotonic() + WAIT_S
    while True:
        rows = [row.rstrip() for row in pane.tmux("capture-pane", "-p", "-e").rstrip().splitlines()]
        if rows and re.sub(_COLOUR, "", rows[-1]) == f"{_OVER}{number}":
            while len(rows) > 1 and not rows[-2]:
                del rows[-2]
            return rows[:-1]
        assert time.monotonic() < deadline, (number, rows)
        time.sleep(0.01)


def _steady(text: str, place: str, *, is_sized: bool) -> str:
    """Return a screen without what is another one each time; wherever it was broken."""
    broken = r"(?:\n(?:\| )?)?"
    text = re.sub(broken.join(map(re.escape, place)), lambda found: _instead(found[0], _PLACE), text)
    text = _marked(text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "0123456789abcdef", text)
    text = re.sub("@" + broken + broken.join(["[0-9a-f]"] * 6), lambda found: _instead(found[0], "@abcdef"), text)
    text = re.sub(r"\d\d-\d\d-\d\d-notes", "26-01-01-notes", text)
    text = re.sub(r"\d{4}-\d\d-\d\d", "2026-01-01", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "12:00:00", text)
    text = re.sub(r"\d\.\ds\b", "0.0s", text)
    text = re.sub(r"\b\d+[smh] ago", "1s ago", text)
    if is_sized:
        text = re.sub(r"\d+(?:\.\d)?(?: |\n\| )(?:bytes?|[KMG]iB)", "SIZE", text)
        # Where rows end depends on how long the numbers are
        text = re.sub(r",\n +", ", ", text.replace("\n| ", " "))
        text = re.sub(r" {2,}", "  ", text)
    return text


def _marked(text: str) -> str:
    """Return a text with marks where a colour begins and ends, however tmux has said it."""
    state: set[str] = set()
    rows = []
    for row in text.split("\n"):
        marked = told = ""
        for part in re.split(_COLOUR, row):
            if part[:1] != "\033":
                now = ";".join(sorted(state)) if part.strip() else told
                marked += (f"{{{now}}}" if now != told else "") + part
                told = now
                continue
            for code in part[2:-1].split(";"):
                if code in ("", "0"):
                    state.clear()
                elif code in ("22", "39", "49"):
                    state -= {one for one in state if (code == "22") == (len(one) == 1) and code != "49"}
                else:
                    state = {one for one in state if len(one) != len(code)} | {code}
        rows.append(marked + ("{}" if told else ""))
    return "\n".join(rows)


def _instead(found: str, with_: str) -> str:
    """Return the letters of one text at the places of another one's, which may be broken into rows."""
    letters = iter(with_)
    return re.sub(r"(\n(?:\| )?)|.", lambda part: part[1] or next(letters), found)


def main() -> None:
    """Keep all captures."""
    KEPT.mkdir(exist_ok=True)
    for columns in WIDTHS:
        (KEPT / f"{columns}.txt").write_text(capture(columns), "utf-8")


if __name__ == "__main__":
    main()
