# SPDX-License-Identifier: Apache-2.0
"""Secrets inside the project itself: what a command may do to see what is masked, or to have it unmasked later."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena, outside
from unspill import OutputChunk, Selection
from unspill.model.policy import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

CANARY = f"CANARY-{os.urandom(6).hex()}"
IN_CONFIG = Secrets(directories=(b"config",))

# Every trick ends with a look at what it hoped to have uncovered
TRICKS = """
canary = "-".join(%r).encode()
def see(what, *paths):
    for path in paths:
        try:
            with open(path, "rb") as file: content = file.read()
        except OSError as error: lost(what, path, error.strerror); continue
        if canary in content: won(what, path)
def quietly(function, *arguments, **named):
    try: return function(*arguments, **named)
    except OSError: return None
def write(path):
    with open(path, "w") as file: file.write("own")
here = os.getcwd()
both = (".env", "config/.env")
see("read", *both)
see("spellings", "./.env", here + "/.env", "config/../.env", "config/./.env", "/proc/self/cwd/.env", "/proc/1/cwd/.env",
    "/proc/self/root" + here + "/.env", "/dev/fd/../cwd/.env")
for directory in (".", "config"):
    if ".env" in os.listdir(directory): won("listed in", directory)
    for call in (os.lstat, os.readlink, os.listxattr):
        if quietly(call, directory + "/.env") is not None: won(call.__name__, directory)
    fd = os.open(directory, os.O_RDONLY)
    see("by descriptor", f"/proc/self/fd/{fd}/.env")
    for flags in (os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_RDWR, os.O_RDONLY | os.O_NONBLOCK, os.O_WRONLY):
        if quietly(os.open, ".env", flags, dir_fd=fd) is not None: won("open", flags)
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    if libc.name_to_handle_at(fd, b".env", handle, ctypes.byref(mount), 0) == 0: won("a handle of", directory)
    if quietly(os.link, ".env", "linked", src_dir_fd=fd): won("linked")
    quietly(os.rename, directory + "/.env", "renamed")
    see("renamed", "renamed", "linked")
def write_and_unlink(path): write(path); os.unlink(path)
def write_and_move(path): write(path); os.rename(path, "away"); os.unlink("away")
def replace_and_unlink(path): write("other"); os.replace("other", path); os.unlink(path)
def directory(path): os.mkdir(path); os.rmdir(path)
def link(path): os.symlink("nowhere", path); os.unlink(path)
def exchange(path):
    write(path); write("other"); libc.renameat2(-100, path.encode(), -100, b"other", 2); os.unlink(path)
def whiteout(path):
    write(path); libc.renameat2(-100, path.encode(), -100, b"other", 4); os.unlink(path)
for path in both:
    for trick in (write_and_unlink, write_and_move, replace_and_unlink, directory, link, exchange, whiteout):
        quietly(trick, path)
        see(trick.__name__, path, "other")
for call in (os.rename, os.link):
    quietly(call, "config", "moved")
libc.renameat2(-100, b"config", -100, b"empty", 2)
see("moved directory", "moved/.env", "empty/.env")
quietly(os.rename, "moved", "config")
os.chmod("config", 0o700); see("changed directory", *both)
subprocess.run("cp -al config linked; cp -a config copied; tar cf t config; tar xf t -C /tmp", shell=True,
    stderr=subprocess.DEVNULL)
see("copied", "linked/.env", "copied/.env", "t", "/tmp/config/.env")
subprocess.run("mv config elsewhere; mkdir config", shell=True, stderr=subprocess.DEVNULL)
see("moved and made again", *both, "elsewhere/.env")
os.mkdir("u"); os.mkdir("w"); os.mkdir("m")
options = f"lowerdir={here},upperdir={here}/u,workdir={here}/w".encode()
for arguments in ((b"overlay", b"m", b"overlay", 0, options), (here.encode(), b"m", b"none", 4096, None)):
    if libc.mount(*arguments) == 0: won("mounted"); see("mounted", "m/.env")
elsewhere = [f"--exclude-dir={name}" for name in ("proc", "usr", "opt")]
words = ["grep", "-rlsF", "--devices=skip", *elsewhere, canary, "/"]
found = subprocess.run(words, capture_output=True, text=True).stdout
for line in found.splitlines(): won("grep", line)
"""


def tricks() -> str:
    # Not in one piece: the script itself can be read in /proc
    return TRICKS % (CANARY.split("-"),)


def plant(arena: Arena) -> None:
    arena.ground.write(".env", CANARY)
    arena.ground.write("config/.env", CANARY)
    arena.ground.write("config/app.toml", "x")


@contextmanager
def without_masks(arena: Arena) -> Iterator[None]:
    """Let there be no layer of deletions, for the time of the context."""
    with arena.patch.context() as patch:
        patch.setattr("unspill.sandbox.secrets.find_mask", lambda *_arguments: None)
        yield


def test_a9_no_trick_shows_a_masked_secret_of_the_project(arena: Arena, engine: str) -> None:
    """Forty ways to a masked `.env`: spellings, handles, links, made and removed, exchanged, its directory moved,
    copied or mounted again. Control: without the layer of deletions the same script reads it."""
    plant(arena)
    assert not arena.attack(tricks(), secrets=IN_CONFIG).won
    assert CANARY in (arena.ground.project / "config/.env").read_text()
    another = arena.ground.sandbox("another", secrets=IN_CONFIG)
    with without_masks(arena):
        won = " ".join(arena.attack(tricks(), sandbox=another).won)
    assert all(what in won for what in ("read .env", "read config/.env", "listed in", "by descriptor"))


def test_a9_a_second_run_sees_no_more_than_the_first(arena: Arena, engine: str) -> None:
    """Hold what all these tricks left, and look again. Control: without the layer of deletions it is read."""
    plant(arena)
    sandbox = arena.ground.sandbox(secrets=IN_CONFIG)
    arena.attack(tricks(), sandbox=sandbox)
    look = "canary = '-'.join(%r)\nif canary in subprocess.getoutput('grep -r --devices=skip . .; ls -AR'): won('seen')"
    script = look % (CANARY.split("-"),)
    assert not arena.attack(script, sandbox=sandbox).won
    with without_masks(arena):
        assert arena.attack(script, sandbox=sandbox).won


def test_a9_a_secret_made_while_the_command_runs_is_not_seen(arena: Arena, engine: str) -> None:
    """Start where there is no secret, and wait for one. Control: a file by another name, made at the same time, is
    seen."""
    reading, writing = os.pipe()
    script = "print('ready', flush=True); sys.stdin.read(1)\nfor name in ('.env', 'plain'): attempt(name, open, name)"

    def make(event: object) -> None:
        if isinstance(event, OutputChunk) and b"ready" in event.chunk:
            plant(arena)
            arena.ground.write("plain", CANARY)
            os.write(writing, b"x")

    try:
        attempt = arena.attack(script, options={"stdin": reading, "on_event": make})
    finally:
        os.close(reading)
        os.close(writing)
    assert attempt.won == ("plain",)


@pytest.mark.parametrize("path", ["config/.env", "config/deep/.env"])
def test_a9_a_secret_in_a_directory_made_while_the_command_runs_is_not_seen(
    arena: Arena, engine: str, path: str
) -> None:
    """Start where a directory that the policy names does not exist, and wait for it and for a secret in it. Control:
    the same file in a directory that no policy names is seen."""
    reading, writing = os.pipe()
    script = "print('ready', flush=True); sys.stdin.read(1)\n"
    script += f"for name in ({path!r}, 'plain/.env'): attempt(name, open, name)"

    def make(event: object) -> None:
        if isinstance(event, OutputChunk) and b"ready" in event.chunk:
            arena.ground.write(path, CANARY)
            arena.ground.write("plain/.env", CANARY)
            os.write(writing, b"x")

    secrets = Secrets(directories=(b"config", b"config/deep"))
    try:
        attempt = arena.attack(script, options={"stdin": reading, "on_event": make}, secrets=secrets)
    finally:
        os.close(reading)
        os.close(writing)
    assert attempt.won == ("plain/.env",)


def test_a9_a_command_can_make_a_directory_of_secrets_itself(arena: Arena, engine: str) -> None:
    """Make a directory that the policy names, with files in it, over several runs, while the person makes it, too.
    Control: all that the command made is there afterwards, beside what the person made."""
    sandbox = arena.ground.sandbox(secrets=IN_CONFIG)
    assert sandbox.run("mkdir config && echo own > config/own && echo own > config/.env").ok
    assert sandbox.run("cat config/own config/.env && echo more > config/more").stdout.kept() == b"own\nown\n"
    arena.ground.write("config/theirs", "theirs")
    arena.ground.write("config/.env", CANARY)
    assert b"CANARY" not in sandbox.run("cat config/.env").stdout.kept()
    sandbox.apply()
    config = arena.ground.project / "config"
    assert {name: (config / name).read_text() for name in ("own", "more", "theirs", ".env")} == {
        "own": "own\n",
        "more": "more\n",
        "theirs": "theirs",
        ".env": CANARY,
    }


def test_a9_a_forged_index_of_git_unmasks_nothing(arena: Arena, engine: str) -> None:
    """Track a file of one's own under the secret's name, and let the index be applied: git then tracks the secret.
    Control: a tracked file that git really has is shown."""
    plant(arena)
    arena.ground.write(".npmrc", CANARY)
    project = arena.ground.project
    for words in (["init", "-q"], ["add", ".npmrc"]):
        subprocess.run(["git", *words], cwd=project, check=True, capture_output=True)
    sandbox = arena.ground.sandbox(after="apply")
    forge = "write = open('.env', 'w'); write.write('own'); write.close()\n"
    arena.attack(forge + "subprocess.run(['git', 'add', '-f', '.env'], check=True)", sandbox=sandbox)
    sandbox.discard()
    listed = subprocess.run(["git", "ls-files"], cwd=project, check=True, capture_output=True, text=True).stdout
    assert listed.split() == [".env", ".npmrc"]
    look = "canary = '-'.join(%r)\nfor name in ('.env', '.npmrc'):\n    try: text = open(name).read()\n"
    look += "    except OSError: continue\n    if canary in text: won(name)"
    assert arena.attack(look % (CANARY.split("-"),), sandbox=sandbox).won == (".npmrc",)


GUESS = """
def guess(text):
    made = subprocess.run(["git", "hash-object", "-w", "--stdin"], input=text, capture_output=True, check=True).stdout
    subprocess.run(["git", "update-index", "--add", "--cacheinfo", f"100644,{made.decode().strip()},.env"], check=True)
guess(b"PIN=%d\\n")
"""
LOOK = "if os.path.exists('.env'): won(open('.env').read().strip())"


@pytest.mark.parametrize("is_made_later", [False, True])
def test_a9_a_guess_in_the_index_of_git_unmasks_nothing(
    arena: Arena, engine: str, is_made_later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put the digests of guesses at a secret into the index, one with each run; also before there is the secret.

    Control: where it is not kept in mind what commands made an index say, the right guess shows the secret."""
    project = arena.ground.project
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=project, check=True, capture_output=True)

    def play(name: str) -> tuple[str, ...]:
        won: tuple[str, ...] = ()
        sandbox = arena.ground.sandbox(name, after="apply")
        for number in (4820, 4821, 4822, 4821):
            if not is_made_later:
                arena.ground.write(".env", "PIN=4821\n")
            arena.attack(GUESS % number, sandbox=sandbox)
            arena.ground.write(".env", "PIN=4821\n")
            # As a prompt does: the index is written anew, with what it has
            subprocess.run(["git", "update-index", "-q", "--refresh"], cwd=project, check=False, capture_output=True)
            won += arena.attack(LOOK, sandbox=sandbox).won
            if is_made_later:
                (project / ".env").unlink()
        return won

    assert play("first") == ()
    subprocess.run(["git", "update-index", "--force-remove", ".env"], cwd=project, check=True, capture_output=True)

    def nothing(*_arguments: object) -> None:
        return

    monkeypatch.setattr("unspill.sandbox.apply.remember_claims", nothing)
    monkeypatch.setattr("unspill.sandbox.secrets.Claims.has", lambda *_arguments: False)
    assert "PIN=4821" in play("second")


def test_a9_a_tracked_file_that_a_command_changes_and_adds_stays_shown(arena: Arena, engine: str) -> None:
    """Change a file with the name of a secret that git has, add it, and apply both: nothing of it was ever hidden.
    Control: a secret beside it, which git does not have, is masked."""
    project = arena.ground.project
    arena.ground.write(".npmrc", "registry=https://example.org/\n")
    for words in (["init", "-q"], ["add", ".npmrc"]):
        subprocess.run(["git", *words], cwd=project, check=True, capture_output=True)
    sandbox = arena.ground.sandbox(after="apply")
    assert sandbox.run("echo x=1 >> .npmrc && git add .npmrc").ok
    if sandbox.changes():
        sandbox.apply(Selection(included=(b".npmrc",)))
    assert b"x=1" in sandbox.run("cat .npmrc").stdout.kept()
    arena.ground.write(".npmrc", CANARY)
    arena.ground.write(".env", CANARY)
    assert sandbox.run("cat .npmrc").stdout.kept() == CANARY.encode()
    assert CANARY.encode() not in sandbox.run("cat .env").stdout.kept()


FAKE = "echo fake > .env && git add -f .env"
# By each of them an index says later that git tracks a secret; then what the person does, and where
WAYS: dict[str, tuple[str, str]] = {
    "added": (FAKE, ""),
    "added in version 4": (f"{FAKE} && git update-index --index-version 4", ""),
    "an index in place of the index": (f"{FAKE} && cp .git/index i && rm .git/index && mv i .git/index", ""),
    "a repository in place of the repository": (f"rm -rf .git && git init -q && {FAKE}", ""),
    "a new repository": (f"git init -q && {FAKE}", ""),
    "a directory elsewhere": (
        f"cp -a .git meta && rm -rf .git && echo gitdir: meta > .git && {FAKE} && git commit -qm x && "
        "git rm -q --cached .env",
        "git reset -q",
    ),
    "a module's directory": (
        f"git init -q m && mv m/.git m/g && mkdir m/.git && mv m/g m/.git/sub && rm -rf .git && "
        f"echo 'gitdir: m/.git/sub' > .git && {FAKE}",
        "",
    ),
    "undone and redone": (FAKE, "undo redo"),
    "refreshed by the person": (FAKE, "git status; git update-index -q --refresh"),
    "committed": (f"{FAKE} && git commit -qm x", "git reset -q"),
    "committed and removed": (f"{FAKE} && git commit -qm x && git rm -q --cached .env", "git reset -q"),
    "a branch": (f"git branch b && {FAKE} && git commit -qm x && git rm -q --cached .env", "git reset -q HEAD"),
    "moved": (FAKE, "mv"),
    "moved after a reset": (f"{FAKE} && git commit -qm x && git rm -q --cached .env", "git reset -q; mv"),
    "copied": (FAKE, "cp"),
}


@pytest.mark.any_bwrap
@pytest.mark.parametrize("way", WAYS)
def test_a9_no_way_into_an_index_unmasks_a_secret(arena: Arena, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have git track the secret: in another index or repository, by a commit that the person resets to, undone and
    redone, the project moved or copied. Control: where nobody keeps in mind what commands wrote, it is shown."""

    def play(name: str) -> bytes:
        project = arena.ground.project.parent / name
        project.mkdir()
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (
            (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]) if way != "a new repository" else ()
        ):
            subprocess.run(["git", *who, *words], cwd=project, check=True, capture_output=True)
        (project / ".env").write_text(CANARY)
        sandbox = arena.ground.sandbox(name, project=project, after="apply")
        inside, then = WAYS[way]
        identity = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x; "
        assert sandbox.run(identity + inside).ok
        places = tuple(name for name in (b".git", b"meta", b"m") if any(name in c.path for c in sandbox.changes()))
        if places:
            sandbox.apply(Selection(paths=places, included=places))
        sandbox.discard()
        for step in then.replace("undo redo", "undo;redo").split(";"):
            match step.split():
                case ["undo"]:
                    sandbox.undo()
                case ["redo"]:
                    sandbox.redo()
                case ["mv" | "cp" as word]:
                    to = project.with_name(f"{name}-{word}")
                    subprocess.run([word, *(["-a"] if word == "cp" else []), project, to], check=True)
                    project, sandbox = to, arena.ground.sandbox(f"{name}-{word}", project=to, after="apply")
                case ["git", *words]:
                    subprocess.run(["git", *words], cwd=project, check=False, capture_output=True)
        listed = subprocess.run(["git", "ls-files"], cwd=project, check=True, capture_output=True, text=True).stdout
        assert ".env" in listed.split()
        return sandbox.run("cat .env").stdout.kept()

    assert CANARY.encode() not in play("first")
    for name in ("remember_claims", "mark_written"):
        monkeypatch.setattr(f"unspill.sandbox.apply.{name}", lambda *_arguments: None)
    monkeypatch.setattr("unspill.sandbox.secrets.Claims.may_be_made", lambda *_arguments: False)
    monkeypatch.setattr("unspill.sandbox.secrets.Claims.is_told", lambda *_arguments: True)
    monkeypatch.setattr("unspill.sandbox.secrets.Claims.has", lambda *_arguments: False)
    assert CANARY.encode() in play("second")


@pytest.mark.any_bwrap
def test_a9_what_the_person_makes_of_an_applied_file_is_masked(arena: Arena) -> None:
    """Make a file of the secret's name and add it; the person takes both and fills it in, keeps it out of git or not.
    Control: as the command made it, it is shown."""
    project = arena.ground.project
    subprocess.run(["git", "init", "-q"], cwd=project, check=True, capture_output=True)
    sandbox = arena.ground.sandbox()
    assert sandbox.run("echo token= > .env && git add -f .env").ok
    sandbox.apply(Selection(included=(b".env", b".git")))
    assert sandbox.run("cat .env").stdout.kept() == b"token=\n"
    arena.ground.write(".env", CANARY)
    assert CANARY.encode() not in sandbox.run("cat .env").stdout.kept()


def test_a9_an_apply_neither_deletes_nor_replaces_a_masked_secret(arena: Arena, engine: str) -> None:
    """Delete, replace and move the secret's directory, and put files of one's own in its place; all is applied.
    Control: the same script on the host destroys both secrets."""
    plant(arena)
    script = """
    import shutil
    shutil.rmtree("config"); os.mkdir("config")
    for path in (".env", "config/.env", "config/app.toml"):
        with open(path, "w") as file: file.write("own")
    shutil.rmtree("config")
    """
    sandbox = arena.ground.sandbox(after="apply", secrets=IN_CONFIG)
    arena.attack(script, sandbox=sandbox)
    sandbox.apply()
    secrets = [arena.ground.project / name for name in (".env", "config/.env")]
    assert all(path.read_text() == CANARY for path in secrets)
    found = subprocess.run(["grep", "-rlF", CANARY, arena.ground.state], capture_output=True, check=False)
    assert found.stdout == b""
    outside(script, cwd=arena.ground.project)
    assert not any(path.exists() and path.read_text() == CANARY for path in secrets)
