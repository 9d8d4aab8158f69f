# SPDX-License-Identifier: Apache-2.0
"""A6 to A8, A11: names taken for options, secrets read by every way to a file, variables of the caller."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena, naive_bwrap, python, replaced, shown_as_it_is, with_mounts
from tests.attack.techniques.record import Defence, Listed, inside
from unspill import UnspillError
from unspill.model.plan import File, Tmpfs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unspill.model.plan import MountOp

LIST: Final = Listed()


def host_of(arena: Arena) -> Path:
    """Return a directory of the host that an injected option would bind; its path has no white space."""
    host = arena.ground.top / "host"
    host.mkdir(exist_ok=True)
    return host


def as_value(between: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        host = host_of(arena)
        value = between.join(("v", "--bind", os.fspath(host), "/tmp/mnt"))
        return written_to(host, lambda: arena.ground.sandbox().run("echo x > /tmp/mnt/written", env={"GIVEN": value}))

    return attack


def written_to(host: Path, run: Callable[[], object]) -> bool:
    try:
        run()
    except UnspillError:
        return False
    found = (host / "written").exists()
    (host / "written").unlink(missing_ok=True)
    return found


def split_at(between: bytes) -> Defence:
    """Pass the options as one text that is split again, as a shell or a file of lines would."""

    def removal(arena: Arena) -> Any:
        return arena.options_changed(lambda options: [part for part in between.join(options).split(between) if part])

    return Defence("a NUL between two options", removal)


LIST.add("A6", "Put an option of bwrap into a variable, between spaces", as_value(" "), split_at(b" "))
LIST.add("A6", "Put an option of bwrap into a variable, between newlines", as_value("\n"), split_at(b"\n"))


def command_attack(arena: Arena) -> object:
    host = host_of(arena)
    words = ["--bind", os.fspath(host), "/mnt", "sh", "-c", "echo x > /mnt/written"]
    return written_to(host, lambda: arena.ground.sandbox().run(words))


def command_control(arena: Arena) -> object:
    host = host_of(arena)
    words = ["--bind", os.fspath(host), "/mnt", "sh", "-c", "echo x > /mnt/written"]
    return written_to(host, lambda: naive_bwrap(arena.ground.bwrap, *words))


LIST.add_pair(
    "A6",
    "Run a command whose first words are options of bwrap",
    command_attack,
    "by a bwrap call without `--` before the command",
    command_control,
)


def tree(arena: Arena, name: str) -> Path:
    """Return a project whose path, taken as options of an overlay, names the directory of a secret too."""
    secret = arena.ground.top / "secret"
    for directory in (secret, arena.ground.top / "trees" / "a", arena.ground.top / "trees" / "a\\"):
        directory.mkdir(parents=True, exist_ok=True)
    (secret / "key").write_text("canary")
    project = arena.ground.top / "trees" / name.format(secret=os.fspath(secret)[1:])
    project.mkdir(parents=True, exist_ok=True)
    return project


def sees_secret(name: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        result = arena.ground.sandbox(project=tree(arena, name)).run("ls -A")
        return b"key" in result.stdout.kept()

    return attack


def naive_overlay(name: str, escaped: str = "") -> Callable[[Arena], object]:
    """Mount the overlay as most do, with the path in the text of the options."""

    def control(arena: Arena) -> object:
        project = tree(arena, name)
        scratch = Path(tempfile.mkdtemp(dir=arena.ground.top))
        for part in ("upper", "work", "merged"):
            (scratch / part).mkdir()
        lower = "".join(f"\\{char}" if char in escaped else char for char in os.fspath(project))
        options = f"lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work,userxattr"
        script = f"mount -i -t overlay -o {shlex.quote(options)} none {scratch}/merged; ls -A {scratch}/merged"
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
        return "key" in done.stdout

    return control


for _name, _path in {
    "A colon": "a:/{secret}",
    "A comma and a second `lowerdir=`": "a,lowerdir=/{secret}",
}.items():
    LIST.add_pair(
        "A7",
        f"{_name} in the path of a project, to have another directory merged in",
        sees_secret(_path),
        "by `mount -o lowerdir=PATH`",
        naive_overlay(_path),
    )


LIST.add_pair(
    "A7",
    "A backslash before a colon in the path of a project, against those who escape the colon alone",
    sees_secret("a\\:/{secret}"),
    "by `mount -o lowerdir=PATH` with colons escaped but no backslashes",
    naive_overlay("a\\:/{secret}", ":"),
)

CANARY: Final = "canary-" + os.urandom(8).hex()


def plant(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CANARY)
    return os.fspath(path)


READ: Final = """
def look(path):
    try:
        with open(path, "rb") as file: content = file.read()
    except OSError as error: return lost(path, error.strerror)
    if half + other in content.decode("latin-1"): won(path)
half, other = halves
"""
HALVES: Final = (CANARY[:12], CANARY[12:])

# How a path of the host is spelled inside
SPELLINGS: Final = {
    "by its own path": "path",
    "through the root of pid 1": "'/proc/1/root' + path",
    "through the root of the script's own task": "'/proc/thread-self/root' + path",
    "by dots from the working directory": "os.path.relpath(path)",
    "by dots from the working directory in /proc": "'/proc/self/cwd/' + os.path.relpath(path)",
}


def key_given(arena: Arena) -> dict[str, object]:
    # Where the home directory is shown as it is, bwrap could not make it
    (arena.ground.home / "playground").mkdir(exist_ok=True)
    return {"path": plant(arena.ground.home / ".ssh/id_ed25519"), "halves": HALVES}


def shown_home(arena: Arena) -> Any:
    home = os.fsencode(arena.ground.home)
    return arena.plan_changed(lambda mounts: replaced(mounts, home, shown_as_it_is(home)))


HOME: Final = Defence("the empty home directory", shown_home)
for _name, _spelling in SPELLINGS.items():
    LIST.add("A8", f"Read a private key {_name}", inside(f"{READ}look({_spelling})", given=key_given), HOME)


def linked_given(arena: Arena) -> dict[str, object]:
    given = key_given(arena)
    link = arena.ground.project / "link"
    if not link.is_symlink():
        link.symlink_to(arena.ground.home / ".ssh")
    return given


LIST.add(
    "A8",
    "Read a private key by a link that the project has",
    inside(READ + "look('link/id_ed25519')", given=linked_given),
    HOME,
)
LIST.add(
    "A8",
    "Read a private key by a link that the command makes",
    inside(READ + "os.path.islink('own') or os.symlink(path, 'own'); look('own')", given=key_given),
    HOME,
)
LIST.add(
    "A8",
    "Read the source of another project",
    inside(
        READ + "look(path)", given=lambda arena: key_given(arena) | {"path": plant(arena.ground.home / "other/main.c")}
    ),
    HOME,
)
LIST.add(
    "A8",
    "Search everything that is shown for a secret",
    inside(
        READ
        + "words = ['grep', '-rlsF', '--devices=skip', '--exclude-dir=proc', half + other, '/home', '/tmp',"
        + " '/root', '/var', os.path.expanduser('~')]\n"
        + "for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines(): won(line)",
        given=key_given,
    ),
    HOME,
)


def output_of_another(arena: Arena) -> dict[str, object]:
    arena.ground.sandbox("other").run(f"echo {CANARY}")
    return {"top": os.fspath(arena.ground.state), "halves": HALVES}


def shown_state(arena: Arena) -> Any:
    return arena.plan_changed(lambda mounts: with_mounts(mounts, shown_as_it_is(arena.ground.state)))


LIST.add(
    "A8",
    "Read the output and the layers of another sandbox",
    inside(
        READ + "for here, _, names in os.walk(top):\n    for name in names: look(os.path.join(here, name))",
        given=output_of_another,
    ),
    Defence("a state directory that is nowhere to be seen", shown_state),
)


def unmasked(arena: Arena) -> Any:
    def change(mounts: Sequence[MountOp]) -> list[MountOp]:
        masks = {op.dest for op in mounts if isinstance(op, Tmpfs) and op.why.startswith(("secrets", "unspill"))}
        masks |= {op.dest for op in mounts if isinstance(op, File) and op.over}
        return [op for op in mounts if op.dest not in masks or op.dest == b"/"]

    return arena.plan_changed(change)


LIST.add(
    "A8",
    "Read a private key in the view that shows the home directory",
    inside(READ + "look(path)", given=key_given, settings={"view": "host"}),
    Defence("the masks over known secrets", unmasked),
)


VARIABLE: Final = "UNSPILL_CANARY_TOKEN"
VARIABLES: Final[Mapping[str, str]] = {
    "Read a token in the environment": "if half + other in os.environ.values(): won('has it')",
    "Read a token in the environment of pid 1": "look('/proc/1/environ')",
    "Read a token in the environment that a shell starts with": (
        "shown = subprocess.run(['sh', '-c', 'export -p'], capture_output=True, text=True).stdout\n"
        "if half + other in shown: won('shell')"
    ),
}


def with_token(script: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        arena.patch.setenv(VARIABLE, CANARY)
        return arena.attack(f"halves = {HALVES!r}\n{READ}{script}").won

    return attack


def naive_with_token(script: str) -> Callable[[Arena], object]:
    def control(arena: Arena) -> object:
        arena.patch.setenv(VARIABLE, CANARY)
        words = python(f"halves = {HALVES!r}\n{READ}{script}")
        return b"WON" in naive_bwrap(arena.ground.bwrap, "--proc", "/proc", "--unshare-pid", *words).stdout

    return control


for _tries, _script in VARIABLES.items():
    LIST.add_pair("A11", _tries, with_token(_script), "by a bwrap call without `--clearenv`", naive_with_token(_script))


def startup_file(arena: Arena) -> None:
    """Name a file in variables that make programs run it; it lies where the command sees it."""
    arena.ground.write("startup", "echo STARTED\n")
    arena.ground.write("startup.py", "print('STARTED')\n")
    arena.patch.setenv("BASH_ENV", os.fspath(arena.ground.project / "startup"))
    arena.patch.setenv("PYTHONPATH", os.fspath(arena.ground.project))
    arena.patch.setenv("PYTHONSTARTUP", os.fspath(arena.ground.project / "startup.py"))


STARTS: Final[Mapping[str, list[str]]] = {
    "Have bash run a file that BASH_ENV of the caller names": ["bash", "-c", ":"],
    "Have Python import a module that PYTHONPATH of the caller leads to": ["/usr/bin/python3", "-c", "import startup"],
}


def started(words: list[str]) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        startup_file(arena)
        # The project is not the working directory: Python would look there by itself
        return b"STARTED" in arena.ground.sandbox().run(words, working_dir="/usr").stdout.kept()

    return attack


def naive_started(words: list[str]) -> Callable[[Arena], object]:
    def control(arena: Arena) -> object:
        startup_file(arena)
        project = os.fspath(arena.ground.project)
        done = naive_bwrap(arena.ground.bwrap, "--ro-bind", project, project, "--chdir", "/usr", *words)
        return b"STARTED" in done.stdout

    return control


for _tries, _words in STARTS.items():
    LIST.add_pair("A11", _tries, started(_words), "by a bwrap call without `--clearenv`", naive_started(_words))
