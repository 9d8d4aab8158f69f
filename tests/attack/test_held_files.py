# SPDX-License-Identifier: Apache-2.0
"""What needs a person's consent is not had in steps, through links, by modes, or by an index written by hand."""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.attack.guard_steps import BY_LINKS, COMMITS, IN_STEPS, NAMED_PLACES, SOURCED, TOOLS, WORK_TREES, Steps
from tests.kernel.terminal_person import at_terminal
from tests.kernel.test_git_apply import IDENTITY, do
from tests.support import Ground, printed, run_cli
from unspill import RunResult, Sandbox
from unspill.git.objects import Objects
from unspill.model.change import Selection
from unspill.model.operation import Skipped
from unspill.policy.held import HIDDEN, OPEN_TO_ALL, SHADOWS, Index

pytestmark = pytest.mark.kernel

ADA = "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"


def canary(ground: Ground) -> Path:
    return ground.top / "canary"


def do_with_canary(ground: Ground, script: str, where: str = ".") -> None:
    """Run a script outside, as the person."""
    variables = {**os.environ, "CANARY": os.fspath(canary(ground))}
    place = ground.project / where
    if place.is_dir():
        subprocess.run(["sh", "-c", script], cwd=place, env=variables, capture_output=True, check=False, timeout=30)


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project under git with one file."""
    (ground.home / ".gitconfig").write_text(ADA)
    ground.write("a.txt", "one\n")
    do_with_canary(ground, "git init -q && git add -A && git commit -qm first")
    return ground


def take(ground: Ground, steps: Steps) -> Sandbox:
    """Take all steps, each in a run of its own that is applied at once."""
    do_with_canary(ground, steps.before)
    sandbox = ground.sandbox(after="apply")
    for script in steps.runs:
        result = sandbox.run(TOOLS + script, env={"CANARY": os.fspath(canary(ground))})
        assert result.ok, result.stderr.kept()
        assert result.problem == ""
    return sandbox


def fires(ground: Ground, steps: Steps) -> bool:
    """Tell whether looking at the project runs what a command left."""
    canary(ground).unlink(missing_ok=True)
    do_with_canary(ground, steps.looks, steps.where)
    return canary(ground).exists()


def consent_to_all(sandbox: Sandbox) -> None:
    """Apply everything that is held, by name."""
    paths = tuple(change.path for change in sandbox.changes())
    assert paths
    # Yes to what is in a repository that is held as a whole is no yes to the repository
    whole = (b".git",) if any(path.startswith(b".git/") for path in paths) else ()
    sandbox.apply(Selection(included=(*paths, *whole)))


@pytest.mark.attack
@pytest.mark.parametrize("steps", IN_STEPS, ids=str)
def test_e13_a_git_directory_is_not_completed_in_steps(repository: Ground, steps: Steps) -> None:
    """Make a git directory in several runs, each of which changes nothing that git looks at by itself.

    Control: where the person lets the held part pass, looking at the project runs the command.
    """
    sandbox = take(repository, steps)
    assert not fires(repository, steps)
    consent_to_all(sandbox)
    assert fires(repository, steps)


ROUNDABOUT = {
    "a link on the way of another": (
        "mkdir -p c/v1; ln -s v1 c/now; ln -s c/now .vscode",
        "mkdir c/v2; echo 1 > c/v2/tasks.json; ln -sfn v2 c/now",
        b"c/now",
        "rm .vscode",
    ),
    "a module that direnv's layout imports": (
        "echo layout python3 > .envrc",
        "echo 1 > pkgutil.py; mkdir platform; echo 1 > platform/__init__.py",
        b"pkgutil.py",
        "rm .envrc",
    ),
}


@pytest.mark.attack
@pytest.mark.parametrize("way", ROUNDABOUT)
def test_e13_what_the_persons_own_files_lead_to_is_held(ground: Ground, way: str) -> None:
    """Change what a file or link of the person leads to: they are not changed themselves.

    Control: without that file or link it is applied.
    """
    before, script, path, without = ROUNDABOUT[way]
    for is_held, prepare in ((True, before), (False, without)):
        do_with_canary(ground, prepare)
        operation = ground.sandbox(after="apply").run(script).operation
        assert operation is not None
        assert (path in {left.path for left in operation.left}) is is_held
        ground.sandbox().discard()


# A new repository of a submodule, with settings and a hook
MODULE = """
git init -q x; git -C x -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m y
git -C x config core.fsmonitor evil; printf '#!/bin/sh\\n' > x/.git/hooks/post-commit; chmod +x x/.git/hooks/post-commit
mkdir .git/modules; mv x/.git .git/modules/m
"""


@pytest.mark.attack
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "control"])
def test_e13_what_is_held_of_a_repository_does_not_come_along_with_the_rest_of_it(
    repository: Ground, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have the person apply the branches of a new submodule alone: its repository comes whole or not at all.

    Control: where nobody asks what is held of it, its settings and hook come along.
    """
    assert repository.sandbox(after="hold").run(MODULE).held
    sandbox = repository.sandbox()
    if not is_held:
        monkeypatch.setattr("unspill.sandbox.review.still_held", lambda *_given: {})
    operation = sandbox.apply([".git/modules/m/refs"])
    places = [repository.project / ".git/modules/m" / name for name in ("config", "hooks/post-commit")]
    assert [place.exists() for place in places] == [not is_held] * 2
    told = {left.path for left in operation.left if left.why == "held"}
    assert told == ({b".git/modules/m/config", b".git/modules/m/hooks/post-commit"} if is_held else set())


@pytest.mark.attack
@pytest.mark.parametrize("steps", WORK_TREES, ids=str)
def test_e13_a_checkout_does_not_write_where_git_runs_it(repository: Ground, steps: Steps) -> None:
    """Commit a hook or a configuration, and make the work tree a directory of git's own: by `core.worktree`, of the
    repository or of a module, and by a link in place of the work tree.

    Control: where the person lets the held part pass, an ordinary command of git's runs it.
    """
    sandbox = take(repository, steps)
    assert not fires(repository, steps)
    consent_to_all(sandbox)
    assert fires(repository, steps)


@pytest.mark.attack
@pytest.mark.parametrize("steps", BY_LINKS, ids=str)
def test_c3_a_link_above_a_place_that_settings_name_is_held(repository: Ground, steps: Steps) -> None:
    """Put a link in place of a directory above what the person's git settings run.

    Control: where the person lets the link pass, looking at the project runs what lies behind it.
    """
    sandbox = take(repository, steps)
    assert not fires(repository, steps)
    consent_to_all(sandbox)
    assert fires(repository, steps)


@pytest.mark.attack
@pytest.mark.parametrize("steps", NAMED_PLACES, ids=str)
def test_e13_what_settings_lead_to_by_a_detour_is_held(repository: Ground, steps: Steps) -> None:
    """Write to a place that the person's git settings or hooks lead to: through a chain of links or of included
    settings, in another repository of the project, or by a macro.

    Control: where the person lets the held part pass, an ordinary command of git's runs it.
    """
    sandbox = take(repository, steps)
    assert not fires(repository, steps)
    consent_to_all(sandbox)
    assert fires(repository, steps)


FORGE_TREES = """
import hashlib, subprocess
git = lambda *words: subprocess.run(["git", *words], capture_output=True, check=True).stdout.strip().decode()
open("sub/f", "w").write("evil\\n")
git("add", "sub"); tree = git("rev-parse", git("write-tree") + ":sub"); git("reset", "-q", "--hard")
open("b.txt", "w").write("x"); git("add", "b.txt")
text = open(".git/index", "rb").read()
end = text.rindex(b"TREE") if b"TREE" in text else len(text) - 20
kept = b"\\0-1 1\\nsub\\0" + b"1 0\\n" + bytes.fromhex(tree)
text = text[:end] + b"TREE" + len(kept).to_bytes(4, "big") + kept
open(".git/index", "wb").write(text + hashlib.sha1(text).digest())
"""
FORGE_PARENTS = """
import os, struct, subprocess
def git(*words, text=None):
    return subprocess.run(["git", *words], input=text, capture_output=True, check=True).stdout.strip()
lost = git("rev-parse", "topic"); git("branch", "-D", "topic"); git("commit", "-q", "--allow-empty", "-m", "mine")
tip = git("rev-parse", "HEAD").decode(); git("pack-objects", ".git/objects/pack/pack", text=tip.encode() + b"\\n")
os.unlink(f".git/objects/{tip[:2]}/{tip[2:]}")
forged = git("cat-file", "commit", tip).replace(b"\\nauthor", b"\\nparent " + lost + b"\\nauthor", 1) + b"\\n"
name = git("hash-object", "-w", "-t", "commit", "--stdin", text=forged).decode()
pack = subprocess.run(["git", "pack-objects", "--stdout"], input=name.encode(), capture_output=True).stdout
os.unlink(f".git/objects/{name[:2]}/{name[2:]}")
fan = b"".join(struct.pack(">I", number >= int(tip[:2], 16)) for number in range(256))
index = bytes.fromhex("ff744f6300000002") + fan + bytes.fromhex(tip) + bytes(4) + struct.pack(">I", 12) + bytes(40)
place = ".git/objects/pack/pack-" + "0" * 40
open(place + ".pack", "wb").write(pack); open(place + ".idx", "wb").write(index)
"""
LACKING = """
commit=$(printf 'tree %040d\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nx\n' 5 |
  git hash-object -w -t commit --stdin --literally); git update-ref refs/heads/main $commit
"""
SHARED_PRECIOUS = "git checkout -qb topic; git commit -q --allow-empty -m precious; git checkout -q main"


@dataclass(frozen=True)
class Forgery:
    """What the runs do, how the person looks, what they see where the defence holds, and how to take that away."""

    name: str
    runs: tuple[str, ...]
    looks: str
    sees: str
    defence: str
    instead: Any
    before: str = ""

    def __str__(self) -> str:
        return self.name


FORGERIES = [
    Forgery(
        "a line of a log without an end",
        (f"{COMMITS}; h=$(git rev-parse HEAD); printf '%s %s' $h $h >> .git/logs/HEAD",),
        f"{COMMITS}; git reflog",
        "HEAD@{2}",
        "unspill.apply.git_draft.is_log_line",
        lambda _line: True,
    ),
    Forgery(
        "trees in an index that its entries do not have",
        (f"cat > /tmp/forge.py <<'X'\n{FORGE_TREES}X\npython3 /tmp/forge.py",),
        "echo 2 >> a.txt; git add a.txt; git commit -qm mine; git show HEAD:sub/f",
        "good",
        "unspill.apply.git_draft.without_caches",
        lambda text, _size: text,
        before="mkdir sub; echo good > sub/f; git add -A; git commit -qm sub",
    ),
    Forgery(
        "parents in the index of a pack",
        (f"cat > /tmp/forge.py <<'X'\n{FORGE_PARENTS}X\npython3 /tmp/forge.py",),
        "git log --all --format=%s",
        "precious",
        "unspill.apply.git_draft.Objects",
        lambda live, size, written=(), checked=(): Objects([*written, *live], size),
        before=SHARED_PRECIOUS,
    ),
    Forgery(
        "a branch that names itself",
        ("mkdir -p .git/refs/heads; echo 'ref: refs/heads/main' > .git/refs/heads/main",),
        "git log --format=%s",
        "first",
        "unspill.git.state.Repository._odd_symbolic_refs",
        lambda _self: iter(()),
    ),
    Forgery(
        "a rebase of a branch that began elsewhere",
        (
            "git rebase -q --exec false HEAD~1; git rev-parse HEAD~1 > .git/rebase-merge/orig-head; "
            "echo refs/heads/topic > .git/rebase-merge/head-name",
        ),
        "git rebase --abort; git log --format=%s topic",
        "precious",
        "unspill.apply.git_draft.GitDraft._has_odd_rebase",
        lambda _self: False,
        before=f"{COMMITS}; {SHARED_PRECIOUS}",
    ),
    Forgery(
        "resolutions of conflicts",
        (f"{COMMITS}; d=.git/rr-cache/$(printf %040d 1); mkdir -p $d; echo x > $d/preimage; echo y > $d/postimage",),
        "test -e .git/rr-cache || echo none",
        "none",
        "unspill.apply.git_draft.GitDraft.going_along",
        lambda self: [change for change, part in self._repository.changes if part == "along"],
    ),
    Forgery(
        "a mark that objects may be missing",
        (f"{COMMITS}; git repack -adq; touch $(ls .git/objects/pack/*.pack | sed s/pack$/promisor/)", LACKING),
        "git log -p --format=%s",
        "first",
        "unspill.apply.git_draft.has_promisor",
        lambda _config: True,
    ),
]


@pytest.mark.attack
@pytest.mark.parametrize("is_defended", [True, False], ids=["held", "control"])
@pytest.mark.parametrize("forgery", FORGERIES, ids=str)
def test_e13_what_git_believes_of_its_own_files_is_not_forged(
    repository: Ground, forgery: Forgery, is_defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forge what git reads without checking: logs, trees and parents that it remembers, names and marks.

    Control: without the one defence, the person's next commands lose or show something else.
    """
    if not is_defended:
        monkeypatch.setattr(forgery.defence, forgery.instead)
    take(repository, Steps("", forgery.runs, before=forgery.before))
    found = subprocess.run(["sh", "-c", forgery.looks], cwd=repository.project, capture_output=True, check=False)
    assert (forgery.sees in found.stdout.decode()) is is_defended


def test_a_reference_that_shadows_another_is_flagged(repository: Ground) -> None:
    sandbox = repository.sandbox(after="apply")
    result = sandbox.run("git tag v1; git branch other; git tag main; git update-ref refs/remotes/o/main main")
    assert [(path, reason.partition(":")[2]) for path, reason in result.flagged if SHADOWS.reason in reason] == [
        (b".git/refs/tags/main", " main")
    ]


# How a command leads a push to another repository than the person's own
LEADS = {
    "the address of a remote": "git remote set-url origin {evil}",
    "a second address of a remote": "git remote set-url --add origin {evil}",
    "an address with a scheme": "git remote set-url origin file://{evil}",
    "the remote of a branch": "git config branch.main.remote {evil}",
    "the remote that a branch pushes to": "git config branch.main.pushRemote {evil}",
    "an address to push to": "git config remote.origin.pushurl {evil}",
    "another name for an address": "git config url.{evil}.insteadOf $(git remote get-url origin)",
    "another name for an address to push to": "git config url.{evil}.pushInsteadOf $(git remote get-url origin)",
    "settings of the worktree": "git config extensions.worktreeConfig true; "
    "git config --worktree remote.origin.url {evil}",
    "a way down and up": "git remote set-url origin sub/../{relative}",
}
TRACKED = "git clone -q --bare . ../own.git; git remote add origin ../own.git; git push -qu origin main"


@pytest.mark.attack
@pytest.mark.parametrize("lead", LEADS.values(), ids=list(LEADS))
def test_e13_a_push_is_not_led_to_a_repository_that_a_command_made(repository: Ground, lead: str) -> None:
    """Make a repository with a hook in the playground, and let the next push go there: its hook runs as the person.

    Control: where the person lets the held settings pass, the push runs the hook.
    """
    place = f"{repository.playground_inside}/evil.git"
    plant = f"git init -q --bare {place}; hook {place}/hooks/pre-receive; git commit -q --allow-empty -m more"
    sandbox = take(repository, Steps("", (plant,), before=f"{TRACKED}; mkdir sub"))
    (evil,) = repository.home.glob("**/playground/*/evil.git")
    relative = os.path.relpath(evil, repository.project)
    pushing = Steps("", (lead.format(evil=evil, relative=relative),), looks="git push -f")
    sandbox = take(repository, pushing)
    assert not fires(repository, pushing)
    do_with_canary(repository, "git commit -q --allow-empty -m another")
    consent_to_all(sandbox)
    assert fires(repository, pushing)


@pytest.mark.attack
@pytest.mark.parametrize("steps", SOURCED, ids=str)
def test_e13_what_an_allowed_envrc_reads_besides_is_held(ground: Ground, steps: Steps) -> None:
    """Change a file that the person's `.envrc` sources or runs. direnv was allowed that `.envrc` and asks no more.

    Control: where the person lets the file pass, the real direnv runs it at the next prompt.
    """
    sandbox = take(ground, replace(steps, before=f"{steps.before}; direnv allow"))
    enters = replace(steps, looks="direnv export bash")
    assert not fires(ground, enters)
    consent_to_all(sandbox)
    assert fires(ground, enters)


# A name that the table lacked once, of each kind of pattern
FOUND_LATER = (
    "mise/config.toml", "mise.ci.toml", ".mise.ci.local.toml", ".config/mise.ci.toml", ".miserc.toml",
    "mise/conf.d/x.toml", ".bsp/x.json", ".pi/extensions/x.ts", ".openhands/setup.sh", ".amp/settings.json",
    ".sl/config", ".shadowenv.d/500.lisp", "pitchfork.toml", ".clinerules/hooks/PreToolUse", "rust-analyzer.toml",
)  # fmt: skip


@pytest.mark.attack
@pytest.mark.parametrize("with_rows", [True, False])
def test_e13_files_of_further_tools_are_held(ground: Ground, with_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files that mise, build servers, shells' hooks and coding agents act on by themselves.

    Control: with those rows taken out of the table, the files are applied.
    """
    if not with_rows:
        monkeypatch.setattr("unspill.apply.guard.INDEX", Index((), frozenset()))
    script = "; ".join(f"mkdir -p $(dirname {path}); echo x > {path}" for path in FOUND_LATER)
    take(ground, Steps("", (script,)))
    there = {path for path in FOUND_LATER if (ground.project / path).exists()}
    assert there == (set() if with_rows else set(FOUND_LATER))


def told(sandbox: Sandbox, script: str, *, on_terminal: bool = True) -> list[bytes]:
    """Run a script; return the flagged paths that the command line tells of."""
    result = sandbox.run(script)
    assert result.operation is not None
    return [path for path, _reason in sandbox.tell_flagged(result.operation, on_terminal=on_terminal)]


BACK_AND_FORTH = ("echo '#2' >> Makefile", "echo 'all:' > Makefile", "printf 'all:\\n#2\\n' > Makefile")


@pytest.mark.attack
@pytest.mark.parametrize("between", ["nothing", "undo", "an edit", "an agent"])
def test_what_somebody_took_back_is_told_again_though_it_was_told_before(ground: Ground, between: str) -> None:
    """Have a Makefile told, reviewed and taken back; then write the same again, hoping that it is told only once.

    Control: where nobody took it back, the same content is not told again.
    """
    ground.write("Makefile", "all:\n")
    sandbox = ground.sandbox(after="apply")
    assert told(sandbox, BACK_AND_FORTH[0], on_terminal=between != "an agent") == [b"Makefile"]
    if between == "undo":
        sandbox.undo()
    elif between == "an edit":
        ground.write("Makefile", "all:\n")
    else:
        assert told(sandbox, BACK_AND_FORTH[1]) == []
    assert told(sandbox, BACK_AND_FORTH[2]) == ([] if between == "nothing" else [b"Makefile"])


@pytest.mark.attack
@pytest.mark.parametrize("is_looked_at", [True, False])
def test_an_install_script_is_told_though_its_manifest_was_told_today(
    ground: Ground, is_looked_at: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change a harmless version first, then hide an install script in the same file.

    Control: where nobody looks what of a manifest is code, the second change is not told.
    """
    if not is_looked_at:
        monkeypatch.setattr("unspill.sandbox.apply.code_of_manifest", lambda _name, _content: "")
    ground.write("package.json", '{"version": "1.0.0", "dependencies": {"a": "^1.0"}}\n')
    sandbox = ground.sandbox(after="apply")
    assert told(sandbox, "sed -i s/1.0.0/1.0.1/ package.json") == [b"package.json"]
    assert told(sandbox, 'sed -i s/^1.0/^1.1/ package.json; sed -i \'s/{"a/{"b": "2", "a/\' package.json') == []
    evil = """sed -i 's/}}/}, "scripts": {"postinstall": "x"}}/' package.json"""
    assert told(sandbox, evil) == ([b"package.json"] if is_looked_at else [])


def test_the_result_has_every_flag_and_says_which_were_told_on_a_terminal(ground: Ground) -> None:
    ground.write("Makefile", "all:\n")
    sandbox = ground.sandbox(after="apply")
    for on_terminal, expected in ((False, ()), (True, ()), (False, (b"Makefile",))):
        result = sandbox.run("echo '#' >> Makefile; head -n 2 Makefile > x; cat x > Makefile; rm x")
        assert result.operation is not None
        assert ([path for path, _ in result.flagged], result.told) == ([b"Makefile"], expected)
        assert sandbox.find_operation(result.operation.number)[0].flagged == result.flagged
        sandbox.tell_flagged(result.operation, on_terminal=on_terminal)
        sandbox.run("echo 'all:' > Makefile")


@pytest.mark.attack
def test_c7_what_is_new_and_open_to_everybody_is_flagged(ground: Ground) -> None:
    """Make a file and a directory that every user of the machine may write.

    Control: the same file and directory with ordinary modes, a link and a sticky directory are not flagged.
    """
    sandbox = ground.sandbox(after="apply")
    usual = sandbox.run("echo x > a; mkdir d; ln -s a l; mkdir -m 1777 s; echo x > s/f")
    assert usual.flagged == ()
    opened = sandbox.run("umask 0; echo x > b; mkdir e; ln -s a m; chmod 666 a; chmod 777 d")
    assert {path for path, _ in opened.flagged} == {b"b", b"e", b"a", b"d"}
    assert {reason for _, reason in opened.flagged} == {OPEN_TO_ALL.reason}


LINKED = {".hg": "hgrc", ".config": "fish/config.fish", ".github": "hooks/a.json", ".jj": "config.toml"}


@pytest.mark.attack
@pytest.mark.parametrize(("link", "inner"), LINKED.items())
def test_c3_a_link_does_not_bring_a_name_that_is_held(repository: Ground, link: str, inner: str) -> None:
    """Write a file under a harmless name and lead to it by a link that is called like the directory it is held in.

    Control: where the person lets the link pass, the file is there under the name that is held.
    """
    sandbox = take(repository, Steps("", (f"mkdir -p h/$(dirname {inner}); echo x > h/{inner}; ln -s h {link}",)))
    assert (repository.project / "h" / inner).exists()
    assert not (repository.project / link / inner).exists()
    consent_to_all(sandbox)
    assert (repository.project / link / inner).exists()


KEPT = (".unspill.toml", ".mcp.json", ".claude/settings.json", ".git/config", ".github/hooks/h.json")
WAYS = {
    "deleted": "rm -rf {path}",
    "replaced by a directory": "rm -rf {path}; mkdir {path}",
    "replaced by a directory with files": "rm -rf {path}; mkdir {path}; touch {path}/x",
    "deleted with what is above": "rm -rf {top}",
    "replaced with what is above": "rm -rf {top}; echo x > {top}",
}


def content_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


@pytest.mark.attack
@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("place", ["", "sub/"])
def test_e5_rules_that_bind_an_agent_are_not_deleted_by_a_detour(repository: Ground, way: str, place: str) -> None:
    """Delete files whose deletion is held by putting directories in their place, or with the directory above them.

    Control: where the person lets it pass, they are gone.
    """
    kept = [place + path for path in KEPT if not (place and ".git/" in path)]
    do_with_canary(repository, "git config core.fsmonitor false")
    for path in kept:
        if not (repository.project / path).exists():
            repository.write(path, "# x\n")
    contents = {path: content_of(repository.project / path) for path in kept}
    script = "; ".join(way.format(path=path, top=path.partition("/")[0]) for path in kept)
    sandbox = take(repository, Steps("", (script,)))
    assert {path: content_of(repository.project / path) for path in kept} == contents
    consent_to_all(sandbox)
    assert [path for path in kept if content_of(repository.project / path) == contents[path]] == []


def nested(repository: Ground) -> Path:
    """Return a repository inside the project's, with a secret; the project has another one that is not its business."""
    repository.write("other/private.txt", "sibling")
    repository.write("svc/.env", "SECRET=canary\n")
    do_with_canary(repository, "git init -q", "svc")
    return repository.project / "svc"


@pytest.mark.attack
def test_e5_a_project_is_not_made_larger_by_deleting_its_mark(repository: Ground) -> None:
    """In a repository inside another, delete `.git`, so that the next run takes the outer one for the project.

    Control: where the person deletes it before unspill ever ran there, the next run reads and writes the sibling.
    """
    reads = ["run", "-q", "--", "sh", "-c", "cat .env ../other/private.txt; echo owned > ../other/private.txt"]
    inner = nested(repository)
    run_cli("run", "-q", "--", "true", cwd=inner)
    run_cli("run", "-q", "--", "rm", "-rf", ".git", cwd=inner)
    assert (inner / ".git").is_dir()
    assert b"canary" not in run_cli(*reads, cwd=inner).stdout
    # And where the person lets it pass, it is remembered
    assert at_terminal("apply", "--include", ".git", cwd=inner, answer="y\n")[0] == 0
    assert not (inner / ".git").exists()
    assert b"canary" not in run_cli(*reads, cwd=inner).stdout
    assert (repository.project / "other" / "private.txt").read_text() == "sibling"
    inner.rename(inner.with_name("new"))
    assert run_cli(*reads, cwd=inner.with_name("new")).stdout == b"SECRET=canary\nsibling"
    assert (repository.project / "other" / "private.txt").read_text() == "owned\n"


TIGHT = """
profile = "strict"
[secrets]
names = ["my.secret"]
directories = ["sub"]
"""
TRIES = (
    'cat my.secret; python3 -c \'import socket; socket.socket(socket.AF_UNIX).bind("s"); print("bound")\' 2>/dev/null;'
    " true"
)


@pytest.mark.attack
@pytest.mark.parametrize("mark", ["mkdir .jj", "mkdir .hg", "git init -q"])
def test_e5_rules_of_a_project_are_not_left_by_making_another_one_in_it(repository: Ground, mark: str) -> None:
    """Make a project of the directory that the person stands in, so that the file above it is not the project's.

    Control: without that file the secret is read.
    """
    rules = repository.write(".unspill.toml", TIGHT)
    repository.write("sub/my.secret", "canary")
    inner = repository.project / "sub"
    run_cli("run", "-q", "--", "sh", "-c", mark, cwd=inner)
    assert len(list(inner.iterdir())) == 2
    assert run_cli("run", "-q", "--", "sh", "-c", TRIES, cwd=inner).stdout == b""
    rules.unlink()
    assert run_cli("run", "-q", "--", "sh", "-c", TRIES, cwd=inner).stdout == b"canarybound\n"


@pytest.mark.attack
def test_b4_closing_the_project_keeps_nothing_else_from_being_applied(repository: Ground) -> None:
    """Take all rights to the project's own directory away, together with other work.

    Control: where the person lets it pass, the project is closed.
    """
    sandbox = take(repository, Steps("", ("echo x > new; chmod 000 .",)))
    assert (repository.project / "new").exists()
    assert [change.path for change in sandbox.changes()] == [b"."]
    consent_to_all(sandbox)
    assert stat.S_IMODE(repository.project.stat().st_mode) == 0
    repository.project.chmod(0o755)


def modes_of(project: Path) -> list[int]:
    return [stat.S_IMODE((project / name).stat().st_mode) for name in (".", ".git", ".git/hooks")]


@pytest.mark.attack
def test_c7_a_repository_is_not_opened_to_everybody(repository: Ground) -> None:
    """Make the project, `.git` and its hooks writable for everybody, and put a program among the references.

    Control: where the person lets it pass, the modes are those.
    """
    script = "chmod 777 . .git .git/hooks a.txt; mkdir .git/refs/t; echo x > .git/refs/t/run; chmod 755 .git/refs/t/run"
    sandbox = take(repository, Steps("", (script,)))
    assert [mode & 0o002 for mode in modes_of(repository.project)] == [0, 0, 0]
    assert not (repository.project / ".git" / "refs" / "t" / "run").exists()
    consent_to_all(sandbox)
    assert modes_of(repository.project) == [0o777] * 3
    assert (repository.project / ".git" / "refs" / "t" / "run").exists()


COMMIT = "echo {0} > {0} && git add {0} && git commit -qm {0}"

# Adds an entry to an index, with an object that has to be run, as no version of git would
FORGE = r"""
import hashlib, struct, subprocess, sys
index, name = sys.argv[1], sys.argv[2].encode()
where = ["git", "-C", index.removesuffix("/index")]
content = b"#!/bin/sh\necho ran > ran\n"
oid = subprocess.run([*where, "hash-object", "-w", "--stdin"], input=content, capture_output=True, check=True).stdout
text = open(index, "rb").read()
count, at = struct.unpack(">I", text[8:12])[0], 12
for _ in range(count):
    at += (text.index(b"\0", at + 62) - at + 8) // 8 * 8
entry = bytes(24) + struct.pack(">I", 0o100755) + bytes(12) + bytes.fromhex(oid.decode()) + struct.pack(">H", len(name))
entry += name + bytes(8 - (62 + len(name)) % 8)
new = text[:8] + struct.pack(">I", count + 1) + entry + text[12:at]
open(index, "wb").write(new + hashlib.sha1(new).digest())
"""
HOOK = ".git/hooks/post-checkout"
CHECKOUT = "git checkout -q -- . ; git checkout-index -af; git checkout -q HEAD"

# The name of the forged entry, and what a checkout leaves, below the home directory
NAMES = {
    "a hook": (HOOK, "project/ran"),
    "a file beside the project": ("../evil", "evil"),
}


@pytest.fixture
def forging_repository(ground: Ground) -> Ground:
    """A project that is a repository with one commit and the program that forges an index."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    ground.configure('readable = ["~/.gitconfig"]\n')
    (ground.project / "forge.py").write_text(FORGE)
    do(f"git init -q . && git add forge.py && {COMMIT.format('first')}", ground.project)
    return ground


def lefts(result: RunResult) -> tuple[Skipped, ...]:
    """Return what the apply after a run left."""
    return () if result.operation is None else result.operation.left


@pytest.mark.parametrize("what", NAMES)
def test_an_index_with_a_name_that_git_would_refuse_waits_for_consent(forging_repository: Ground, what: str) -> None:
    name, left = NAMES[what]
    forge = f"python3 forge.py .git/index {name}"
    target = forging_repository.project.parent / left.replace("project", forging_repository.project.name)
    result = forging_repository.sandbox().run(f"{forge} && git ls-files", after="apply")
    assert result.ok
    assert name in printed(result)
    assert [(left.path, left.why) for left in lefts(result)] == [(b".git", "held")]
    do(CHECKOUT, forging_repository.project)
    assert not target.exists()
    # The same without unspill
    do(f"{forge}; {CHECKOUT}; true", forging_repository.project)
    assert target.exists()


# How a repository comes, and where its index is
NEW = {
    "a repository": ("git init -q sub && cp first sub && git -C sub add first", "sub/.git/index"),
    "a submodule": (
        "git init -q .git/modules/sub && mv .git/modules/sub/.git/* .git/modules/sub && rmdir .git/modules/sub/.git"
        " && cp .git/index .git/modules/sub/index && git --git-dir=.git/modules/sub config core.bare true",
        ".git/modules/sub/index",
    ),
    "a worktree": ("git worktree add -q sub", ".git/worktrees/sub/index"),
}


@pytest.mark.parametrize("what", NEW)
def test_the_index_of_a_repository_that_comes_is_looked_at(forging_repository: Ground, what: str) -> None:
    make, index = NEW[what]
    sandbox = forging_repository.sandbox()
    result = sandbox.run(f"{make} && python3 forge.py {index} {HOOK}", after="apply")
    assert result.ok, result.stderr
    assert not (forging_repository.project / index).exists()
    assert any("index" in left.reason for left in lefts(result))


@pytest.mark.parametrize("last", ["git init -q sub", "cp -r .git/HEAD .git/config .git/refs sub/.git"])
def test_a_repository_that_comes_in_parts_is_looked_at(forging_repository: Ground, last: str) -> None:
    make, index = NEW["a repository"]
    sandbox = forging_repository.sandbox()
    assert sandbox.run("mkdir -p sub/.git", after="apply").ok
    assert (forging_repository.project / "sub/.git").is_dir()
    forge = f"{make} && python3 forge.py {index} {HOOK}"
    assert sandbox.run(forge if "init" in last else f"{forge} && rm sub/.git/HEAD", after="apply").ok
    assert sandbox.run(last, after="apply").ok
    assert not (forging_repository.project / index).exists()


def test_a_repository_that_comes_with_an_index_as_git_writes_it_is_applied(forging_repository: Ground) -> None:
    result = forging_repository.sandbox().run(f"{NEW['a repository'][0]} && git -C sub branch -q index", after="apply")
    assert (forging_repository.project / "sub/.git/index").exists(), lefts(result)


# How a command makes git overlook a file, and where
HIDING = {
    "assume-unchanged": ("git update-index --assume-unchanged a.txt", "."),
    "skip-worktree": ("git update-index --skip-worktree a.txt", "."),
    "in an index of version 4": ("git update-index --index-version 4 --skip-worktree a.txt", "."),
    "in a new repository": (
        "git init -q sub; cp a.txt sub; cd sub; git add -A; git commit -qm x; git update-index --skip-worktree a.txt",
        "sub",
    ),
}


@pytest.mark.attack
@pytest.mark.parametrize(("hide", "where"), HIDING.values(), ids=list(HIDING))
def test_e13_a_file_that_git_is_told_to_overlook_is_flagged(repository: Ground, hide: str, where: str) -> None:
    """Mark a file in the index so that `git status` and `git diff` are silent about it, and change it.

    Control: git is silent indeed; where the mark is taken away, it shows the change and nothing is flagged.
    """
    sandbox, place = repository.sandbox(after="apply"), repository.project / where
    index = os.fsencode(os.path.normpath(f"{where}/.git/index"))
    hidden = sandbox.run(f"{hide}; echo evil >> a.txt")
    assert (index, f"{HIDDEN.reason}: a.txt") in hidden.flagged
    assert "evil" in (place / "a.txt").read_text()
    assert do("git status --short; git diff", place) == ""
    unmark = "git update-index --no-assume-unchanged a.txt; git update-index --no-skip-worktree a.txt"
    shown = sandbox.run(f"cd {where}; {unmark}; echo >> a.txt")
    assert (shown.ok, shown.flagged) == (True, ())
    assert do("git status --short", place) == " M a.txt\n"


def test_many_overlooked_files_are_one_line(repository: Ground) -> None:
    for number in range(5):
        repository.write(f"b{number}", "x")
    do_with_canary(repository, "git add -A; git commit -qm more")
    result = repository.run("git update-index --assume-unchanged b0 b1 b2 b3 b4", after="apply")
    assert result.flagged == ((b".git/index", f"{HIDDEN.reason}: b0, b1, b2 and 2 more"),)


SPARSE = {
    "directories": "git sparse-checkout set topic",
    "patterns": "git sparse-checkout set --no-cone '/*' '!/rest/'",
    "with a sparse index": "git sparse-checkout set --sparse-index topic",
    "a clone": "git clone -q --sparse --no-hardlinks . sub",
}


@pytest.mark.parametrize("way", SPARSE.values(), ids=list(SPARSE))
def test_files_that_a_sparse_checkout_leaves_out_are_not_flagged(repository: Ground, way: str) -> None:
    repository.write("topic/1", "x")
    repository.write("rest/deep/2", "x")
    do_with_canary(repository, "git add -A; git commit -qm more")
    result = repository.run(way, after="apply")
    assert (result.ok, result.flagged) == (True, ())
    assert "S rest/deep/2" in do(f"git -C {'sub' if 'sub' in way else '.'} ls-files -t", repository.project)


def test_a_file_that_is_there_is_flagged_though_a_sparse_checkout_leaves_it_out(repository: Ground) -> None:
    """Git before 2.36 overlooks it; later versions take the mark away."""
    repository.write("topic/1", "x")
    do_with_canary(repository, "git add -A; git commit -qm more")
    forge = "git sparse-checkout set --no-cone '/*' '!/topic/'; mkdir topic; echo evil > topic/1"
    result = repository.run(forge, after="apply")
    assert result.flagged == ((b".git/index", f"{HIDDEN.reason}: topic/1"),)


# What gives a held file to git, and what git does with it for a person who merely works on
GIVEN = {
    "committed": ("git add -f .envrc; git commit -qm x", "git stash"),
    "committed, then restored": ("git add -f .envrc; git commit -qm x", "git restore ."),
    "staged": ("git add -f .envrc", "git checkout -- ."),
    "committed in a new repository": (
        "git init -q sub; mv .envrc sub; cd sub; git add -A; git commit -qm x",
        "git stash",
    ),
}


@pytest.mark.attack
@pytest.mark.parametrize(("give", "works"), GIVEN.values(), ids=list(GIVEN))
def test_e13_a_held_file_that_a_command_gives_to_git_is_named(repository: Ground, give: str, works: str) -> None:
    """Commit or stage a file that is held: git itself puts it into the tree, with no question.

    Control: git does put it there; one that git was not given stays out and is not named.
    """
    where = "sub" if "sub" in give else "."
    sandbox, place = repository.sandbox(after="apply"), repository.project / where
    plain = sandbox.run("echo evil > .envrc")
    do_with_canary(repository, works)
    assert [note for note in operation_notes(plain) if "held" in note] == []
    assert not (place / ".envrc").exists()
    given = sandbox.run(f"{give}; true")
    (note,) = [note for note in operation_notes(given) if "held" in note]
    git = "git in sub" if where == "sub" else "git"
    assert note == (
        f"{git}: .envrc is held, but the run gave it to git: "
        "`git stash`, `git restore` or a checkout puts it into your tree"
    )
    do_with_canary(repository, works, where)
    assert (place / ".envrc").exists()


def test_a_held_file_in_a_commit_that_only_arrives_is_named(repository: Ground) -> None:
    sandbox = repository.sandbox()
    assert sandbox.run("echo evil > .envrc; git add -f .envrc; git commit -qm x", after="hold").ok
    do_with_canary(repository, "git commit -q --allow-empty -m person")
    notes = [note for note in sandbox.apply().notes if "held" in note]
    assert notes == [
        "git: .envrc is held, but the run committed it: merging or checking out its work puts it into your tree"
    ]


def operation_notes(result: RunResult) -> tuple[str, ...]:
    """Return what the apply after a run has to say."""
    return () if result.operation is None else result.operation.notes
