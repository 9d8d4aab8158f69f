# SPDX-License-Identifier: Apache-2.0
"""unspill beside other ways to seal a command, on the same tasks, against no sandbox at all.

First what a command can read of a home that has secrets in it, whether it can write there or has a way to the network,
and what can be taken back of what it did. Then, measured in turns: a start, 1,000 files written, `git status` in 20,000
files, an install from a wheel without a network. docs/comparison.md has the tables, which `--write` puts there.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import pwd
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

BENCHMARKS: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, os.fspath(BENCHMARKS))

from measuring import Case, Options, compiled_environ, make_parser, report, scratch, timed  # noqa: E402
from peers.candidates import (  # noqa: E402
    LIVE,
    NONE,
    PEERS,
    SRT_SETTINGS,
    UNSPILL,
    CannotRun,
    Peer,
    Place,
    close_all,
    missing,
    prepare_image,
    version_of,
)

DOCUMENT: Final = BENCHMARKS.parent / "docs" / "comparison.md"
MARKS: Final = ("<!-- made by benchmarks/peers/compare.py --write -->", "<!-- end -->")
PYTHON: Final = "/usr/bin/python3"
# What a home has that a command has no business with; `.env` lies in the project
SECRETS: Final = (
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".netrc",
    ".npmrc",
    ".config/gh/hosts.yml",
    ".kube/config",
    ".gnupg/private-keys-v1.d/planted.key",
    ".bash_history",
    ".mozilla/firefox/planted.default/cookies.sqlite",
    "Documents/letter-of-mine.txt",
)
WRITTEN: Final = "written-by-a-command"
# A datagram's socket that is connected sends nothing: it only asks for a way to an address that belongs to nobody
PROBE: Final = """\
import json, os, socket, sys
def is_read(path):
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False
def leads_out():
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
            found.connect(("192.0.2.1", 9))
        return True
    except OSError:
        return False
wanted = json.load(open("probe.json"))
try:
    open(wanted["written"], "w").close()
except OSError:
    pass
print(json.dumps({"read": [path for path in wanted["paths"] if is_read(path)], "network": leads_out()}))
"""
EFFECTS: Final = {
    "a git commit": "git -c user.name=n -c user.email=e commit -q --allow-empty -m more",
    "an edit": "echo changed >> edited",
    "a deletion": "rm deleted",
    "an ignored file's edit": "echo changed >> ignored/edited",
    "an ignored file's deletion": "rm ignored/deleted",
    "chmod": "chmod 600 mode",
}
MANY_FILES: Final = 1000
# What is fast comes more often in a turn, and nothing only once: the first may pay for what another tool has left
TURN_SAMPLES, TURN_MS = 5, 300.0
WRITE: Final = f"mkdir out && i=0 && while [ $i -lt {MANY_FILES} ]; do echo $i > out/$i; i=$((i + 1)); done"
INSTALL: Final = f"{PYTHON} -m pip install -q --no-index --no-deps --target out planted-1.0-py3-none-any.whl"


@dataclass(frozen=True)
class Task:
    """One thing that is measured."""

    name: str
    script: str


@dataclass
class Findings:
    """What was found out about one tool."""

    peer: Peer
    version: str
    times: dict[str, list[float]] = field(default_factory=dict)
    read: tuple[str, ...] = ()
    writes_home: bool = False
    has_network: bool = False
    done: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    is_thrown_away: bool = False


class PeerOptions(Options):
    """The options that only this comparison has."""

    table: bool
    commands: bool
    write: bool
    prepare: bool


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--table", action="store_true", help="print only the tables of the document")
    parser.add_argument("--commands", action="store_true", help="only print how each tool is run")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/comparison.md")
    parser.add_argument("--prepare", action="store_true", help="first make the image of podman's containers")
    options = parser.parse_args(namespace=PeerOptions())
    if options.commands:
        print("\n".join(command_lines()))
        return
    if options.prepare:
        prepare_image(os.environ)
    with scratch() as directory:
        found, skipped = compare(directory, options)
    lines = [*tables(found, skipped), "", *command_lines()]
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        DOCUMENT.write_text("\n".join([before + MARKS[0], "", *lines, "", MARKS[1] + after]))
    if options.table:
        print("\n".join(lines))
        return
    if not options.json:
        print("\n".join(lines), end="\n\n")
    report("compare", cases(found), options, [f"{name}: {reason}" for name, reason in skipped.items()])


def compare(directory: Path, options: Options) -> tuple[list[Findings], dict[str, str]]:
    """Return what was found out about each tool that works here, and why the others were left out."""
    end = time.monotonic() + options.pick(6, 35, 400)
    home = make_home(directory / "home")
    project = make_project(home / "project", options.pick(1000, 20_000, 20_000))
    environ = compiled_environ(directory)
    environ |= {"HOME": os.fspath(home), "TMPDIR": os.fspath(directory / "tmp"), "LANG": "C.UTF-8"}
    # So each of our two forms has a state of its own, and does not clean up after the other
    del environ["UNSPILL_STATE_DIR"]
    Path(environ["TMPDIR"]).mkdir()
    own_home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    skipped: dict[str, str] = {}
    places: list[Place] = []
    before = os.environ["HOME"]
    os.environ["HOME"] = os.fspath(home)
    try:
        for peer in PEERS:
            variables = {**environ, "HOME": os.fspath(own_home)} if peer.has_own_home else environ
            place = Place(peer, project, own_home if peer.has_own_home else home, variables)
            reason = missing(peer, variables) or first_failure(place)
            if reason is None:
                places.append(place)
            elif peer in (NONE, UNSPILL, LIVE):
                raise SystemExit(f"{peer.name}: {reason}")
            else:
                skipped[peer.name] = reason
        found = {place.peer.name: Findings(place.peer, version_of(place.peer, place.environ)) for place in places}
        for place in places:
            probe(place, found[place.peer.name])
            small = make_small_project(home / re.sub(r"\W+", "-", place.peer.name))
            try_to_undo(replace(place, project=small, sandbox=None, live=None), found[place.peer.name])
        tasks = tasks_of()
        for number, task in enumerate(tasks):
            if not options.short:
                places[0].run(task.script)
            now = time.monotonic()
            measure(task, places, found, now + (end - now) / (len(tasks) - number))
    finally:
        close_all(places)
        os.environ["HOME"] = before
    return list(found.values()), skipped


def tasks_of() -> list[Task]:
    """Return what is measured."""
    tasks = [
        Task("start", "true"),
        Task("write 1,000 files", WRITE),
        Task("git status, 20,000 files", "git status --porcelain"),
    ]
    asked = subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False)
    return [*tasks, Task("pip install", INSTALL)] if asked.returncode == 0 else tasks


def first_failure(place: Place) -> str | None:
    """Open a place and run something there, which also warms it up; return why that failed, if it did."""
    try:
        place.open()
        place.run("true")
    except CannotRun as error:
        close_all([place])
        return f"it does not work here: {error}"
    return None


def measure(task: Task, places: Sequence[Place], found: Mapping[str, Findings], end: float) -> None:
    """Have all tools do one task in turns, every other round backwards; each begins with the same project.

    There is one round at least, whatever the time.
    """
    index = places[0].project / ".git/index"
    kept = index.read_bytes()
    number = 0
    while number == 0 or time.monotonic() < end:
        for place in places[:: -1 if number % 2 else 1]:
            samples: list[float] = []
            while len(samples) < 2 or (len(samples) < TURN_SAMPLES and sum(samples) < TURN_MS):
                # Only where it was changed: to whoever looks, an index that was just written is a new one
                if index.read_bytes() != kept:
                    index.write_bytes(kept)
                shutil.rmtree(place.project / "out", ignore_errors=True)
                samples.append(timed(functools.partial(place.run, task.script)))
            found[place.peer.name].times.setdefault(task.name, []).extend(samples)
            if number and time.monotonic() > end:
                break
        number += 1
    index.write_bytes(kept)
    shutil.rmtree(places[0].project / "out", ignore_errors=True)


def probe(place: Place, found: Findings) -> None:
    """Find out what a command reads of the home, whether it writes there, and whether it has a way to the network."""
    paths = {os.fspath(place.home / name): name for name in SECRETS}
    paths[os.fspath(place.project / ".env")] = "the project's .env"
    written = place.home / WRITTEN
    (place.project / "probe.json").write_text(json.dumps({"paths": list(paths), "written": os.fspath(written)}))
    planted = plant(place.home)
    try:
        said = json.loads(place.run(f"{PYTHON} probe.py").splitlines()[-1])
        found.writes_home = written.exists()
    finally:
        written.unlink(missing_ok=True)
        for path in planted:
            remove_planted(path)
    found.read = tuple(paths[path] for path in said["read"])
    found.has_network = said["network"]


def plant(home: Path) -> list[Path]:
    """Make what a home does not have yet of the secrets that are looked for; return what was made."""
    made: list[Path] = []
    for name in SECRETS:
        path = home / name
        for directory in [*reversed(path.relative_to(home).parents)][1:]:
            with suppress(FileExistsError):
                (home / directory).mkdir(mode=0o700)
                made.insert(0, home / directory)
        with suppress(FileExistsError):
            with path.open("x") as file:
                file.write("planted by a benchmark of unspill\n")
            path.chmod(0o600)
            made.insert(0, path)
    return made


def remove_planted(path: Path) -> None:
    """Remove one thing that was made, unless somebody has put something into it."""
    with suppress(OSError):
        path.rmdir() if path.is_dir() else path.unlink()


def make_home(home: Path) -> Path:
    """Make a home as somebody has it who works with all of these tools."""
    home.mkdir()
    (home / ".srt-settings.json").write_text(json.dumps(SRT_SETTINGS))
    (home / ".gitconfig").write_text("[user]\nname = n\nemail = e@example.org\n")
    return home


def make_project(project: Path, files: int) -> Path:
    """Make a project with so many files that git tracks, and a wheel to install."""
    for number in range(files):
        directory = project / f"d{number % 200}"
        if number < 200:
            directory.mkdir(parents=True)
        (directory / f"f{number}").write_text(f"{number}\n")
    (project / ".gitignore").write_text("out\n.env\nprobe*\n*.whl\n")
    (project / ".env").write_text("TOKEN=planted\n")
    (project / "probe.py").write_text(PROBE)
    make_wheel(project)
    make_repository(project)
    return project


def make_small_project(project: Path) -> Path:
    """Make a project of which every kind of thing is changed."""
    (project / "ignored").mkdir(parents=True)
    for name in ("edited", "deleted", "mode", "ignored/edited", "ignored/deleted"):
        (project / name).write_text(f"{name}\n")
        (project / name).chmod(0o644)
    (project / ".gitignore").write_text("ignored\n")
    make_repository(project)
    return project


def make_repository(project: Path) -> None:
    """Put all of a project into a new git repository.

    Its files are older than its index, as they usually are: otherwise git reads them again each time, in any sandbox.
    """
    for path in project.rglob("*"):
        os.utime(path, (1.7e9, 1.7e9))
    name = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "gc.auto=0")
    for words in (["init", "-q"], ["add", "-A"], [*name, "commit", "-q", "-m", "first"], ["status"]):
        subprocess.run(["git", *words], cwd=project, check=True, stdout=subprocess.DEVNULL)


def make_wheel(directory: Path) -> None:
    """Make a wheel with a hundred modules and no dependency."""
    info = "planted-1.0.dist-info"
    files = {f"planted/m{number}.py": f"VALUE = {number}\n" for number in range(100)}
    files["planted/__init__.py"] = ""
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: unspill\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / "planted-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def try_to_undo(place: Place, found: Findings) -> None:
    """Have a command change things, then take them back with the tool's own means, and compare."""
    first = state_of(place.project)
    # A person is not as fast as this: within the second in which the index was written, git overlooks a chmod
    made = int((place.project / ".git/index").stat().st_mtime)
    while place.peer is NONE and int(time.time()) == made:
        time.sleep(0.05)
    place.open()
    try:
        place.run("; ".join(f"({words}) 2>&1" for words in EFFECTS.values()) + "; true")
        after = state_of(place.project)
        found.done = tuple(name for name in EFFECTS if after[name] != first[name])
        if place.undo(first["a git commit"]):
            last = state_of(place.project)
            found.undone = tuple(name for name in found.done if last[name] == first[name])
        before = state_of(place.project)
        if place.throw_away("echo thrown > edited; rm -f mode"):
            found.is_thrown_away = state_of(place.project) == before
    finally:
        place.close()


def state_of(project: Path) -> dict[str, str]:
    """Return what each effect changes: contents, permission bits, or where the branch is."""

    def content(name: str) -> str:
        path = project / name
        return path.read_text() if path.exists() else "missing"

    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True).stdout
    mode = project / "mode"
    return {
        "a git commit": head.strip(),
        "an edit": content("edited"),
        "a deletion": content("deleted"),
        "an ignored file's edit": content("ignored/edited"),
        "an ignored file's deletion": content("ignored/deleted"),
        "chmod": oct(stat.S_IMODE(mode.stat().st_mode)) if mode.exists() else "missing",
    }


def cases(found: Sequence[Findings]) -> list[Case]:
    """Return the judged figures. Of the others nothing is demanded; of unspill, what it promises."""
    none = found[0]
    made: list[Case] = []
    for task, samples in none.times.items():
        bare = min(samples)
        made += [
            Case(f"{task}: {one.peer.name}", min(one.times[task]), "ms", bare, None, samples=one.times[task])
            for one in found
            if task in one.times
        ]
    for one in found:
        is_ours = one.peer in (UNSPILL, LIVE)
        read_bar = 0.0 if is_ours else None
        read, undone = float(len(one.read)), float(len(one.undone))
        made.append(Case(f"secrets read: {one.peer.name}", read, "files", len(none.read), read_bar, is_counted=True))
        bar = 1.0 if is_ours else None
        made.append(
            Case(f"undone: {one.peer.name}", undone, "effects", len(EFFECTS), bar, at_least=True, is_counted=True)
        )
    return made


def tables(found: Sequence[Findings], skipped: Mapping[str, str]) -> list[str]:
    """Return the tables of the document: times, then what a command can do and what can be taken back."""
    none = found[0]
    tasks = list(none.times)
    machine = f"Linux {platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [f"Measured on {time.strftime('%Y-%m-%d')}: {machine}.", ""]
    lines += row("", "version", *tasks) + row("---", "---", *("---:" for _ in tasks))
    for one in found:
        lines += row(one.peer.name, one.version, *(figure(one, none, task) for task in tasks))
    for name, reason in skipped.items():
        lines += row(name, "not measured", *(reason if task == tasks[0] else "" for task in tasks))
    lines += ["", *row("", "secrets read", "writes into home", "way to the network", "undone", "thrown away")]
    lines += row(*("---" for _ in range(6)))
    for one in found:
        lines += row(
            one.peer.name,
            f"{len(one.read)} of {len(SECRETS) + 1}",
            "yes" if one.writes_home else "no",
            "yes" if one.has_network else "no",
            told_undo(one),
            "yes" if one.is_thrown_away else "no",
        )
    return lines


def told_undo(one: Findings) -> str:
    refused = [name for name in EFFECTS if name not in one.done]
    told = f"{len(one.undone)} of {len(one.done)}"
    told += f" (by `{one.peer.undo.replace(' -q', '')}`)" if one.peer is NONE else ""
    return told + (f"; {', '.join(refused)} failed" if refused else "")


def figure(one: Findings, none: Findings, task: str) -> str:
    value = min(one.times[task])
    return f"{value:.0f} ms ({value / min(none.times[task]):.1f}×)"


def row(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


def command_lines() -> list[str]:
    """Return how each tool is run, for the document."""
    lines = [*row("", "command", "note"), *row("---", "---", "---")]
    for peer in PEERS:
        words = f"`{peer.words}`" + (f", after `{peer.opening}`" if peer.opening else "")
        lines += row(peer.name, words, peer.note)
    return lines


if __name__ == "__main__":
    main()
