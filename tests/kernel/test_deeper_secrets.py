# SPDX-License-Identifier: Apache-2.0
"""Secrets below the top directory of a project: found once a day after a run, told of once, hidden from then on."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel.test_project_secrets import SECRET, run_revealing, state_holds
from tests.support import Ground, kinds, printed, run_cli
from unspill import Sandbox, Selection
from unspill.errors import UsageError
from unspill.layers.lifecycle import wait_until_clean
from unspill.model.policy import DAY_NS, Secrets
from unspill.policy.secrets import SECRET_NAMES
from unspill.sandbox import secrets

pytestmark = pytest.mark.kernel

# By kind of project: what git tracks of it, the directories where people keep secrets, and where nobody looks
KINDS = {
    "django": ("manage.py", ("config", "src/settings/local/keys", "deploy/stage"), "venv/lib/python3/site-packages/x"),
    "rails": ("Gemfile", ("config", "config/credentials", "lib/tasks/a/b/c"), ""),
    "node": ("package.json", ("packages/api", "packages/web/app/env", "infra"), "node_modules/dotenv"),
    "rust": ("Cargo.toml", ("crates/server", "crates/server/tests/data", "xtask/a/b/c/d"), ""),
    "go": ("go.mod", ("cmd/app", "internal/auth/testdata/keys", "deployments"), ""),
    "java": ("pom.xml", ("src/main/resources", "service/src/main/resources/config", "ci"), ""),
    "terraform": ("main.tf", ("modules/network", "environments/prod/eu/west", "scripts"), ""),
    "android": ("build.gradle", ("app", "app/src/release/res/raw/x", "fastlane"), "ui/node_modules/x"),
    "monorepo": ("nx.json", ("apps/api", "apps/web/a/b/c/d", "libs/shared/config"), "apps/api/node_modules/y/z"),
    "notebooks": ("", ("analysis", "analysis/2026/august/raw/in", "data/keys"), ""),
}
DEPTHS = range(7)
EACH = 20
LOOK = "grep -rIl --exclude-dir=.git SECRET . | sort"


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not cut a search short."""
    monkeypatch.setattr(secrets, "_BOUNDS", secrets._BOUNDS.replace(seconds=60.0))


def git(where: Path, *words: str) -> None:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *who, *words], cwd=where, check=True, capture_output=True)


def searched(sandbox: Sandbox, command: str = "true") -> Sandbox:
    """Run something, and wait for the search after it."""
    assert sandbox.run(command).ok
    wait_until_clean()
    return sandbox


def next_day(sandbox: Sandbox) -> None:
    """Have the next run search again."""
    project = sandbox._project
    for root in project.roots:
        found = secrets.load_found(project.store, root)
        project.store.facts.put(secrets._FOUND + root.hex(), found.replace(at_ns=found.at_ns - DAY_NS).text())


def told(sandbox: Sandbox, command: str = "true") -> list[str]:
    """Return the names that a run says are hidden."""
    lines = [text for text in sandbox.run(command).warnings if text.startswith(secrets.HIDDEN)]
    return [name for text in lines for name in text.removeprefix(secrets.HIDDEN).partition(". Show")[0].split(", ")]


def plant(top: Path, kind: str, offset: int) -> tuple[set[str], set[str]]:
    """Make one project; return the paths of its secrets, and of what has such a name but is not hidden."""
    mark, places, packages = KINDS[kind]
    planted: set[str] = set()
    for number in range(EACH):
        name = os.fsdecode(SECRET_NAMES[(offset + number * 7) % len(SECRET_NAMES)])
        depth = DEPTHS[number % len(DEPTHS)]
        parts = (f"{places[number % len(places)]}/d1/d2/d3/d4/d5/d6".split("/") * 2)[:depth]
        planted.add("/".join((*parts, name)))
    shown = {f"{packages}/.npmrc"} if packages else set()
    for path in (*planted, *shown, "fixtures/server.key"):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(SECRET)
    if mark:
        (top / mark).touch()
        git(top, "init", "-q")
        git(top, "add", mark, "fixtures")
        return planted, {*shown, "fixtures/server.key"}
    return {*planted, "fixtures/server.key"}, shown


def test_after_the_first_day_no_planted_secret_can_be_read(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of each project is the control arm: it reads all but those in the top directory."""
    took: list[float] = []
    real = secrets.search

    def timed(*given: object) -> secrets.FoundSecrets:
        begun = time.perf_counter()
        try:
            return real(*given)  # type: ignore[arg-type]
        finally:
            took.append(time.perf_counter() - begun)

    monkeypatch.setattr(secrets, "search", timed)
    count = tracked = 0
    for index, kind in enumerate(KINDS):
        top = ground.home / kind
        top.mkdir()
        planted, shown = plant(top, kind, index * 13)
        sandbox = ground.sandbox(project=top)
        first = printed(sandbox.run(LOOK)).split()
        assert set(first) == {f"./{path}" for path in planted | shown if "/" in path}
        wait_until_clean()
        second = sandbox.run(LOOK)
        assert set(printed(second).split()) == {f"./{path}" for path in shown}
        assert (told(sandbox), len(took)) == ([], index + 1)
        names = " ".join(second.warnings)
        assert [path for path in planted if "/" in path and path not in names] == []
        count, tracked = count + len(planted), tracked + ("fixtures/server.key" in shown)
    assert count >= 10 * EACH
    record_figure(
        "secrets planted at depths 0 to 6",
        f"{count}: 0 readable after the first day",
        f"ten kinds of project, each told once; {tracked} more that git tracks are shown; a search took at most"
        f" {max(took) * 1000:.0f} ms, after the run",
    )


def test_what_is_found_is_told_once_and_when_it_is_asked_for(ground: Ground) -> None:
    ground.write(".env", SECRET)
    ground.write("config/.env", SECRET)
    sandbox = ground.sandbox()
    assert told(sandbox) == [".env"]
    wait_until_clean()
    assert told(sandbox) == ["config/.env"]
    assert told(sandbox) == []
    failed = sandbox.run("cat config/.env")
    assert [hint.text for hint in failed.hints] == ["config/.env is hidden as a secret."]
    assert failed.hints[0].remedy.endswith("`--reveal config/.env`.")


def test_the_command_line_waits_for_the_search_and_doctor_makes_one(ground: Ground) -> None:
    ground.write("config/.env", SECRET)
    assert run_cli("run", "--", "cat", "config/.env", cwd=ground.project).stdout.decode() == SECRET
    second = run_cli("run", "--", "cat", "config/.env", cwd=ground.project)
    assert second.stdout == b""
    assert second.stderr.decode().startswith(
        "cat: config/.env: No such file or directory\n"
        "unspill: Hidden from commands: config/.env. Show one with --reveal PATH\n"
    )
    ground.write("other/.env", SECRET)
    done = run_cli("doctor", ground.project, cwd=ground.home).stdout.decode()
    assert "note  config/.env, other/.env are hidden from commands\n" in done
    assert run_cli("run", "-q", "--", "cat", "other/.env", cwd=ground.project).stdout == b""


def test_it_is_looked_for_once_a_day_beside_the_run(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    real = secrets.search

    def noted(*given: object) -> secrets.FoundSecrets:
        threads.append(threading.current_thread().name)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(secrets, "search", noted)
    sandbox = searched(searched(ground.sandbox()))
    assert threads == ["unspill-aside"]
    next_day(sandbox)
    ground.write("a/b/c/id_ed25519", SECRET)
    searched(searched(sandbox))
    assert threads == ["unspill-aside"] * 2
    assert not sandbox.run("cat a/b/c/id_ed25519").ok
    searched(ground.sandbox(secrets=Secrets(names=(b"my.key",))))
    assert threads == ["unspill-aside"] * 3


def test_a_search_that_fails_is_made_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.write("config/.env", SECRET)
    sandbox = ground.sandbox()
    with monkeypatch.context() as patch:
        patch.setattr(secrets, "find_named", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        searched(sandbox, "cat config/.env")
    searched(sandbox, "cat config/.env")
    assert not sandbox.run("cat config/.env").ok


def test_packages_repositories_and_directories_are_not_hidden(ground: Ground) -> None:
    ground.write("node_modules/a/.npmrc", "visible\n")
    ground.write("a/node_modules/a/b/.env", "visible\n")
    ground.write("venv/lib/site-packages/key.pem", "visible\n")
    ground.write("backend/.env/bin/python", "visible\n")
    git(ground.project, "init", "-q", "--bare", "mirror.git")
    ground.write("mirror.git/refs/heads/credentials", "visible\n")
    ground.write(".git/refs/heads/identity", "visible\n")
    sandbox = searched(ground.sandbox())
    assert printed(sandbox.run("grep -rl visible . | wc -l")).split() == ["6"]


def test_every_root_is_searched(ground: Ground) -> None:
    second = ground.home / "second"
    (second / "deep").mkdir(parents=True)
    (second / "deep/.env").write_text(SECRET)
    sandbox = searched(ground.sandbox(roots=(os.fsencode(second),)))
    assert not sandbox.run(f"cat {second}/deep/.env").ok


@pytest.mark.rootfs_view
def test_a_hidden_file_looks_absent_and_its_directory_as_outside(ground: Ground, engine: str) -> None:
    ground.write("a/b/.env", SECRET)
    ground.write("a/b/seen", "visible\n")
    (ground.project / "a/b").chmod(0o750)
    os.utime(ground.project / "a/b", (1_234_567_890, 1_234_567_890))
    sandbox = searched(ground.sandbox())
    result = sandbox.run("stat -c '%a %Y' a/b; ls -A a/b; cat a/b/seen; cat a/b/.env; find . -name .env")
    assert result.stdout.kept() == b"750 1234567890\nseen\nvisible\n"
    assert not sandbox.changes()


def test_what_a_command_makes_in_its_place_is_its_own_and_held(ground: Ground) -> None:
    secret = ground.write("config/.env", SECRET)
    sandbox = searched(ground.sandbox(after="apply"))
    result = sandbox.run("echo own > config/.env; echo x > config/other; cat config/.env")
    assert (printed(result), result.held, kinds(sandbox.changes())) == ("own\n", True, {"config/.env": "added"})
    assert (secret.read_text(), (ground.project / "config/other").read_text()) == (SECRET, "x\n")
    assert printed(sandbox.run("cat config/.env")) == "own\n"
    assert "SECRET" not in sandbox.diff()
    (left,) = sandbox.apply(Selection(included=(b"config/.env",))).left
    assert left.why == "conflict"
    sandbox.apply(Selection(included=(b"config/.env",), overwrite=(b"config/.env",)))
    assert secret.read_text() == "own\n"
    sandbox.undo()
    assert secret.read_text() == SECRET
    assert not state_holds(ground, SECRET)
    sandbox.discard()
    assert not sandbox.run("cat config/.env").ok


@pytest.mark.parametrize("command", ["rm -rf a", "mv a c", "rm -rf a; mkdir a", "rm -rf a; echo x > a"])
def test_a_directory_with_a_hidden_file_in_it_does_not_go_without_consent(ground: Ground, command: str) -> None:
    secret = ground.write("a/b/id_rsa", SECRET)
    ground.write("a/b/other", "x")
    sandbox = searched(ground.sandbox(after="apply"))
    assert sandbox.run(command).held
    assert secret.read_text() == SECRET


def test_without_the_memory_of_it_the_directory_goes(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control arm."""
    secret = ground.write("a/b/id_rsa", SECRET)
    sandbox = searched(ground.sandbox(after="apply"))
    monkeypatch.setattr("unspill.sandbox.review.found_hidden", lambda *_: ())
    assert not sandbox.run("rm -rf a").held
    assert not secret.exists()


def test_a_grant_shows_one_and_a_change_of_it_is_held(ground: Ground) -> None:
    secret = ground.write("config/.env", SECRET)
    sandbox = ground.sandbox()
    # Also before anything was found
    assert printed(run_revealing(sandbox, "cat config/.env", b"config/.env")) == SECRET
    searched(sandbox)
    result = run_revealing(sandbox, "echo more >> config/.env", b"config/.env", after="apply")
    assert (kinds(result.changes), result.held) == ({"config/.env": "modified"}, True)
    assert not sandbox.run("cat config/.env").ok
    assert not sandbox.apply(Selection(included=(b"config/.env",))).left
    assert secret.read_text() == SECRET + "more\n"
    for path in (b"config/other", b"none/.env"):
        with pytest.raises(UsageError, match="can't be revealed"):
            run_revealing(sandbox, "true", path)
    assert (
        printed(ground.sandbox(secrets=Secrets(reveal=(b"config/.env",))).run("cat config/.env")) == SECRET + "more\n"
    )


def test_a_change_that_a_run_made_before_it_was_found_stays_a_change(ground: Ground) -> None:
    ground.write("config/.env", SECRET)
    sandbox = searched(ground.sandbox(), "echo more >> config/.env")
    assert kinds(sandbox.changes()) == {"config/.env": "modified"}
    assert not sandbox.run("cat config/.env").ok
    assert not sandbox.apply(Selection(included=(b"config/.env",))).left
    assert (ground.project / "config/.env").read_text() == SECRET + "more\n"


def test_a_file_that_a_command_made_stays_visible_until_the_person_edits_it(ground: Ground) -> None:
    sandbox = searched(ground.sandbox(after="apply"), "mkdir backend; echo DEBUG=1 > backend/.env")
    assert printed(sandbox.run("cat backend/.env")) == "DEBUG=1\n"
    ground.write("backend/.env", SECRET)
    next_day(sandbox)
    searched(sandbox)
    assert not sandbox.run("cat backend/.env").ok


def test_what_is_not_there_any_more_is_forgotten_with_its_directory(ground: Ground) -> None:
    secret = ground.write("a/.env", SECRET)
    sandbox = searched(ground.sandbox(after="apply"))
    secret.unlink()
    next_day(sandbox)
    searched(sandbox)
    secret.write_text(SECRET)
    assert not sandbox.run("cat a/.env").ok
    secret.unlink()
    secret.parent.rmdir()
    next_day(sandbox)
    searched(sandbox)
    assert secrets.load_found(sandbox._project.store, os.fsencode(ground.project)).hidden == ()


def test_git_decides_as_soon_as_the_person_has_it_track_one(ground: Ground) -> None:
    ground.write("config/.env", SECRET)
    git(ground.project, "init", "-q")
    sandbox = searched(ground.sandbox())
    assert not sandbox.run("cat config/.env").ok
    git(ground.project, "add", "-f", "config/.env")
    shown = sandbox.run("cat config/.env")
    assert printed(shown) == SECRET
    assert any(text.startswith("config/.env is tracked by git, so it is not masked") for text in shown.warnings)
    git(ground.project, "rm", "-q", "--cached", "config/.env")
    assert not sandbox.run("cat config/.env").ok


def test_a_command_can_not_have_one_shown_by_adding_it_to_the_index(ground: Ground) -> None:
    secret = ground.write("config/.env", SECRET)
    git(ground.project, "init", "-q")
    sandbox = searched(ground.sandbox(after="apply"))
    assert sandbox.run("echo fake > config/.env && git add -f config/.env").ok
    sandbox.discard()
    result = sandbox.run("cat config/.env")
    assert b"SECRET" not in result.stdout.kept()
    assert any(text.startswith("config/.env is tracked by git but masked") for text in result.warnings)
    next_day(sandbox)
    searched(sandbox)
    assert not sandbox.run("cat config/.env").ok
    git(ground.project, "add", "-f", "config/.env")
    assert printed(sandbox.run("cat config/.env")) == secret.read_text()


def test_an_entry_that_a_command_made_beforehand_shows_nothing_later(ground: Ground) -> None:
    """The file comes after the entry; a guess at what is in it is no way to learn it either."""
    git(ground.project, "init", "-q")
    ground.write("config/app.toml", "x")
    sandbox = searched(ground.sandbox(after="apply"))
    blob = f'printf "{SECRET.strip()}\\n" | git hash-object -w --stdin'
    assert sandbox.run(f'git update-index --add --cacheinfo "100644,$({blob}),config/.env"').ok
    ground.write("config/.env", SECRET)
    next_day(sandbox)
    searched(sandbox)
    assert not sandbox.run("cat config/.env").ok


def test_what_commands_do_to_tracked_files_does_not_hide_them(ground: Ground) -> None:
    (ground.home / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n")
    ground.write("tests/key.pem", "one\n")
    git(ground.project, "init", "-q")
    git(ground.project, "add", ".")
    git(ground.project, "commit", "-qm", "first")
    sandbox = searched(ground.sandbox(after="apply"))
    assert sandbox.run("echo two > tests/key.pem && git commit -qam two").ok
    ground.write("tests/key.pem", "three\n")
    next_day(sandbox)
    searched(sandbox)
    assert printed(sandbox.run("cat tests/key.pem && git status --short")) == "three\n M tests/key.pem\n"


def test_a_very_large_project_is_searched_as_far_as_the_bounds_go(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        ground.write(f"a/{number}")
    ground.write("a/.env", SECRET)
    ground.write("a/b/.env", SECRET)
    root = os.fsencode(ground.project)
    with monkeypatch.context() as patch:
        patch.setattr(secrets, "_BOUNDS", secrets._BOUNDS.replace(entries=200))
        sandbox = searched(ground.sandbox())
    found = secrets.load_found(sandbox._project.store, root)
    assert (found.is_whole, found.hidden) == (False, (root + b"/a/.env",))
    next_day(sandbox)
    searched(sandbox)
    found = secrets.load_found(sandbox._project.store, root)
    assert (found.is_whole, found.hidden) == (True, (root + b"/a/.env", root + b"/a/b/.env"))


def test_a_fork_waits_for_a_search_that_uses_the_store(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork of a process with a thread inside SQLite, a mutex of SQLite's would stay locked for ever."""
    begun, end = threading.Event(), threading.Event()
    work = secrets._search_all

    def search_slowly(*given: object) -> None:
        begun.set()
        assert end.wait(20)
        work(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(secrets, "_search_all", search_slowly)
    with ground.sandbox() as sandbox:
        sandbox.run("true")
        assert begun.wait(20)
        threading.Timer(0.1, end.set).start()
        pid = os.fork()
        if not pid:
            os._exit(0 if end.is_set() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
