# SPDX-License-Identifier: Apache-2.0
"""The rows that are decided by place, content or kind, each with paths that are in it and others that are nearly so."""

from dataclasses import dataclass, field

from tests.unit.apply.guard_given import FOLDER, GONE, Link, Program, Tree, What
from unspill.apply.guard import DEFAULT_SECRETS
from unspill.model.policy import Secrets
from unspill.policy import held as rows
from unspill.policy.held import GuardRow

SHA = "0123456789abcdef0123456789abcdef01234567"
MINIMAL = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
REMOTE = '[remote "origin"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
EVIL = MINIMAL + "\tfsmonitor = evil\n"
BARE: dict[str, What] = {"HEAD": "ref: refs/heads/main\n", "objects": FOLDER, "refs": FOLDER}


@dataclass(frozen=True)
class Case:
    """A change, and the verdict on one path of it: that of the row, or ordinary where `row` is None."""

    path: str
    after: Tree
    row: GuardRow | None = None
    before: Tree = field(default_factory=dict)
    root: str = "live"
    deleted: bool = False
    secrets: Secrets = DEFAULT_SECRETS
    id: str = ""

    def __str__(self) -> str:
        return f"{self.path} {self.row.reason if self.row else 'ordinary'}{self.id and ': '}{self.id}"


def only(path: str, what: str | Link | Program, row: GuardRow | None, **options: object) -> Case:
    """Return the case of a single path."""
    return Case(path, {path: what}, row, **options)  # type: ignore[arg-type]


def bare(place: str, **others: What) -> dict[str, What]:
    """Return a repository without a working tree."""
    return {f"{place}/{name}": what for name, what in {**BARE, **others}.items()}


def gone(path: str, what: str, row: GuardRow | None) -> Case:
    """Return the case of a deletion."""
    return Case(path, {path: GONE}, row, {path: what}, deleted=True)


HOOKS = [
    only(".git/hooks/pre-commit", Program(), rows.HOOK),
    only(".git/hooks/pre-commit", "not executable yet", rows.HOOK),
    only(".git/hooks/lib/common.sh", "sourced by a hook", rows.HOOK),
    only(".git/hooks/pre-commit.sample", Program(), None),
    only(".git/hooks/deep/pre-commit.sample", Program(), rows.HOOK),
    Case(".git/modules/lib/hooks/update", bare(".git/modules/lib", **{"hooks/update": "#!/bin/sh\n"}), rows.HOOK),
    only(".git/modules/lib/hooks/post-checkout", Program(), rows.UNKNOWN),
    only(".git/worktrees/w/hooks/post-checkout", Program(), rows.HOOK),
    only("sub/.git/hooks/post-merge", Program(), rows.HOOK),
    Case("x.git/hooks/update", bare("x.git", **{"hooks/update": "#!/bin/sh\n"}), rows.HOOK),
    only("src/hooks/useState.ts", "export {}", None),
    gone(".git/hooks/pre-commit", "#!/bin/sh\n", rows.HOOK),
    Case(".git/hooks", {".git/hooks": GONE}, rows.HOOK, {".git/hooks/pre-push": "#!/bin/sh\n"}, deleted=True),
    Case(".git/hooks", {".git/hooks": GONE}, None, {".git/hooks/pre-push.sample": ""}, deleted=True),
    only("scripts/pre-commit", "x", rows.HOOK, before={".git/config": "[core]\n\thooksPath = scripts\n"}),
    only("scripts/x.sample", "x", None, before={".git/config": "[core]\n\thooksPath = scripts\n"}),
    only("scripts/pre-commit", "x", None, before={".git/config": "[core]\n\thooksPath = /elsewhere\n"}),
    only("pre-commit", "x", rows.HOOK, before={".git/config": "[core]\n\thooksPath = .\n"}),
    only("other", "x", None, before={".git/config": "[core]\n\thooksPath = .\n"}),
    only(
        "real/pre-commit",
        "x",
        rows.HOOK,
        before={".git/config": "[core]\n\thooksPath = linked\n", "linked": Link("real"), "real/x": ""},
    ),
    only("app/.husky/pre-commit", "x", rows.HOOK, before={"app/.git/config": "[core]\n\thooksPath = .husky/_\n"}),
]
SETTINGS = [
    only(".git/config", EVIL, rows.SETTINGS),
    Case(".git/config", {".git/config": MINIMAL + REMOTE, ".git/HEAD": SHA}, None, id="a new repository"),
    Case(".git/config", {".git/config": MINIMAL}, rows.SETTINGS, {".git/config": EVIL}),
    Case(".git/config", {".git/config": EVIL + REMOTE}, rows.ADDRESS, {".git/config": EVIL}),
    Case(".git/config", {".git/config": EVIL.replace("evil", "worse")}, rows.SETTINGS, {".git/config": EVIL}),
    only(".git/config.worktree", "[core]\n\tsparseCheckout = true\n", None),
    only(".git/config.worktree", "[core]\n\tpager = evil\n", rows.SETTINGS),
    only(".git/worktrees/w/config.worktree", "[core]\n\tpager = evil\n", rows.SETTINGS),
    Case(".git/modules/lib/config", bare(".git/modules/lib", config=EVIL), rows.SETTINGS),
    Case(".git/modules/a/b/config", bare(".git/modules/a/b", config=EVIL), rows.SETTINGS),
    Case("x.git/config", bare("x.git", config=EVIL), rows.SETTINGS),
    Case("x.git/config", bare("x.git", config=MINIMAL), None),
    Case("x.git/config", {"x.git/config": EVIL}, rows.SETTINGS, bare("x.git")),
    Case("config", {**BARE, "config": EVIL}, rows.SETTINGS),
    only("src/config", "anything at all", None),
    only("shared", "[alias]\n\tx = !evil\n", rows.SETTINGS, before={".git/config": "[include]\n\tpath = ../shared\n"}),
    only(
        "shared", "[user]\n\tname = x\n", None, before={".git/config": '[includeIf "gitdir:/"]\n\tpath = ../shared\n'}
    ),
    gone(".git/config", EVIL, rows.SETTINGS),
    gone(".git/config", REMOTE, None),
    only("config", EVIL, rows.SETTINGS, root="repo/.git"),
    only("lib/config", EVIL, rows.UNKNOWN, root="repo/.git/modules"),
]
ADDRESSED = '[remote "origin"]\n\turl = {}\n'
LISTED = '[submodule "lib"]\n\tpath = lib\n\turl = {}\n'
INITIATED = '[submodule "lib"]\n\turl = {}\n'
HTTPS = "https://example.org/{}.git"


def addressed(url: str, row: GuardRow | None, old: str | None = None, **others: What) -> Case:
    """Return the case of a configuration that you had, and that gets an address."""
    before = {".git/HEAD": SHA, ".git/config": MINIMAL + ("" if old is None else ADDRESSED.format(old)), **others}
    return Case(".git/config", {".git/config": MINIMAL + ADDRESSED.format(url)}, row, before, id=f"{old} {url}")


OUTSIDE = "/elsewhere/x.git"
ADDRESSES = [
    addressed(HTTPS.format("x"), rows.ADDRESS),
    addressed(HTTPS.format("x"), rows.ADDRESS, HTTPS.format("y")),
    addressed("git@example.org:x", rows.ADDRESS, HTTPS.format("y")),
    addressed(OUTSIDE, rows.SETTINGS),
    addressed(OUTSIDE, rows.SETTINGS, HTTPS.format("x")),
    addressed(f"file://{OUTSIDE}", rows.SETTINGS),
    addressed("../x.git", rows.SETTINGS),
    addressed("sub/../../x.git", rows.SETTINGS),
    addressed("linked/x.git", rows.SETTINGS, linked=Link("/elsewhere")),
    addressed("store.git", rows.ADDRESS),
    Case(".git/config", {".git/config": MINIMAL + ADDRESSED.format(OUTSIDE), ".git/HEAD": SHA}, rows.SETTINGS),
    Case("sub/.git/config", {"sub/.git/config": ADDRESSED.format("../x.git"), "sub/.git/HEAD": SHA}, None),
    Case("x.git/config", bare("x.git", config=MINIMAL + ADDRESSED.format(HTTPS)), None),
    Case("x.git/config", bare("x.git", config=MINIMAL + ADDRESSED.format("../x")), rows.SETTINGS),
    Case(".git/config.worktree", {".git/config.worktree": REMOTE}, rows.ADDRESS, {".git/HEAD": SHA}),
    Case(".git/config", {".git/config": '[branch "x"]\n\tremote = origin\n'}, None, {".git/HEAD": SHA}),
    Case(".git/config", {".git/config": '[branch "x"]\n\tremote = .\n'}, None, {".git/HEAD": SHA}),
    Case(".git/config", {".git/config": '[branch "x"]\n\tremote = ../x\n'}, rows.SETTINGS, {".git/HEAD": SHA}),
    only("shared", REMOTE, rows.ADDRESS, before={".git/config": "[include]\n\tpath = ../shared\n"}),
    Case("shared", {"shared": REMOTE, "HEAD": SHA}, rows.ADDRESS, {".git/config": "[include]\n\tpath = ../shared\n"}),
    Case(
        ".git/worktrees/w/config.worktree",
        {".git/worktrees/w/config.worktree": REMOTE, ".git/worktrees/w/HEAD": SHA},
        rows.ADDRESS,
        {".git/HEAD": SHA},
    ),
    only(".gitmodules", LISTED.format(HTTPS), rows.ADDRESS, before={".git/HEAD": SHA}),
    only(".gitmodules", LISTED.format(OUTSIDE), rows.MODULES, before={".git/HEAD": SHA}),
    only(
        ".gitmodules", LISTED.format(OUTSIDE) + "\tbranch = x\n", None, before={".gitmodules": LISTED.format(OUTSIDE)}
    ),
    Case("sub/.gitmodules", {"sub/.gitmodules": LISTED.format(HTTPS), "sub/.git/HEAD": SHA}, None),
    Case(
        ".git/config",
        {".git/config": INITIATED.format(HTTPS)},
        None,
        {".git/config": "", ".git/HEAD": SHA, ".gitmodules": LISTED.format(HTTPS)},
        id="a module of the project",
    ),
    Case(
        ".git/config",
        {".git/config": INITIATED.format(HTTPS), ".gitmodules": LISTED.format(HTTPS)},
        rows.ADDRESS,
        {".git/config": "", ".git/HEAD": SHA},
        id="a module that comes with it",
    ),
]
DRIVERS = [
    only(".gitattributes", "*.txt filter=x\n", rows.DRIVERS),
    only("deep/down/.gitattributes", "*.txt -text merge=x\n", rows.DRIVERS),
    only(".git/info/attributes", "*.txt diff=x\n", rows.DRIVERS),
    only(".gitattributes", "[attr]mine filter=x\n*.txt mine\n", rows.DRIVERS),
    only(".gitattributes", "* text=auto eol=lf\n*.py diff=python\n*.log merge=union -diff\n*.bin filter=lfs\n", None),
    only(".gitattributes", "# *.txt filter=x\n", None),
    only(".git/info/attributes", "*.sh eol=lf\n", None),
    Case(".gitattributes", {".gitattributes": "* text\n*.a filter=x\n"}, None, {".gitattributes": "*.a filter=x\n"}),
    Case(".gitattributes", {".gitattributes": "*.b filter=x\n"}, rows.DRIVERS, {".gitattributes": "*.a filter=x\n"}),
    gone(".gitattributes", "*.a filter=x\n", None),
    only("shared", "* filter=x\n", rows.DRIVERS, before={".git/config": "[core]\n\tattributesFile = shared\n"}),
]
MODULE = '[submodule "lib"]\n\tpath = {path}\n\turl = {url}\n\tupdate = {update}\n'
MODULES = [
    only(".gitmodules", MODULE.format(path="lib", url="../lib.git", update="rebase"), rows.ADDRESS),
    only(".gitmodules", MODULE.format(path="lib", url="../lib.git", update="!evil"), rows.MODULES),
    only(".gitmodules", MODULE.format(path="lib", url="ext::sh", update="none"), rows.MODULES),
    only(".gitmodules", MODULE.format(path="lib", url="-u./evil", update="none"), rows.MODULES),
    only(".gitmodules", MODULE.format(path="../lib", url="x", update="none"), rows.MODULES),
    only(".gitmodules", '[submodule "../x"]\n\tpath = x\n', rows.MODULES),
    only(".gitmodules", "[core]\n\tpager = x\n", rows.MODULES),
    only(".gitmodules", "[submodule", rows.UNREADABLE),
    gone(".gitmodules", "[submodule", None),
]
POINTERS = [
    only("sub/.git", "gitdir: ../.git/modules/sub\n", None),
    only("sub/.git", "gitdir: ../../elsewhere\n", rows.LEADS_OUT),
    only("sub/.git", "gitdir: /elsewhere\n", rows.LEADS_OUT),
    only("sub/.git", "gitdir: name/../../x\n", rows.LEADS_OUT),
    only("sub/.git", "something else\n", rows.LEADS_OUT),
    only(".git/worktrees/w/commondir", "../..\n", None),
    only(".git/worktrees/w/commondir", "../../../x\n", rows.LEADS_OUT),
    only(".git/commondir", "../x\n", rows.LEADS_OUT),
    only(".git/worktrees/w/gitdir", "../../../w/.git\n", None),
    only(".git/worktrees/w/gitdir", "/elsewhere/.git\n", rows.LEADS_OUT),
    Case("fake/commondir", {"fake/HEAD": SHA, "fake/commondir": "../common"}, rows.LEADS_OUT),
    only("docs/commondir", "no git directory", None),
    only(".hg/sharedpath", "/elsewhere/.hg", rows.LEADS_OUT),
    only(".jj/repo", "../../main/.jj/repo", rows.LEADS_OUT),
    only(".jj/repo/store/git_target", "../../../.git", None),
    only(".jj/repo/store/git_target", "/elsewhere/.git", rows.LEADS_OUT),
    gone("sub/.git", "gitdir: ../x\n", None),
]
LINKS = [
    only("sub/.git", Link("../fake"), rows.GIT_LINK),
    only(".gitattributes", Link("attributes"), rows.GIT_LINK),
    only(".gitmodules", Link("modules"), rows.GIT_LINK),
    only(".git/hooks", Link("../tools"), rows.GIT_LINK),
    only(".git/config", Link("../settings"), rows.GIT_LINK),
    only(".git/objects", Link("../store"), rows.GIT_LINK),
    only(".git/HEAD", Link("refs/heads/main"), None),
    only(".git/HEAD", Link("../x"), rows.GIT_LINK),
    Case("x.git/config", {**bare("x.git"), "x.git/config": Link("../evil")}, rows.GIT_LINK),
    only("link", Link("dir/file"), None),
    only("link", Link("{root}/dir/file"), None),
    only("link", Link("../elsewhere"), rows.LINK_OUT),
    only("link", Link("/etc/passwd"), rows.LINK_OUT),
    only("link", Link("name/../file"), rows.LINK_OUT),
    only("deep/link", Link("../file"), None),
    only("node_modules/x", Link("/elsewhere/x"), rows.LINK_OUT),
    Case(".venv/bin/tool", {".venv/pyvenv.cfg": "", ".venv/bin/tool": Link("/usr/bin/python3.11")}, rows.LINK_OUT),
    only("src/bin/python", Link("/usr/bin/python3.11"), rows.LINK_OUT),
    Case("link", {"link": GONE}, None, {"link": Link("/etc")}, deleted=True),
]
COMPLETING = [
    Case("lib/HEAD", {"lib/HEAD": SHA}, rows.COMPLETES, {"lib/objects/x": "", "lib/refs/x": "", "lib/config": EVIL}),
    Case("lib/HEAD", {"lib/HEAD": SHA}, None, {"lib/objects/x": "", "lib/refs/x": "", "lib/config": MINIMAL}),
    Case("lib/HEAD", {"lib/HEAD": SHA}, None, {"lib/objects/x": "", "lib/config": EVIL}),
    Case(
        "lib/HEAD", {"lib/HEAD": SHA}, rows.COMPLETES, {"lib/objects/x": "", "lib/refs/x": "", "lib/hooks/update": ""}
    ),
    Case("s/.git", {"s/.git": "gitdir: ../lib"}, rows.COMPLETES, {"lib/config": EVIL}),
    Case("s/.git", {"s/.git": "gitdir: ../lib"}, None, {"lib/config": MINIMAL}),
]
PROGRAMS = [
    only("t/clean.py", "x", rows.PROGRAM, before={".git/config": '[filter "x"]\n\tclean = python "t/clean.py" %f\n'}),
    only("t/clean.py", "x", None, before={".git/config": "[user]\n\tname = t/clean.py\n"}),
    only("t/mon", "x", rows.PROGRAM, before={".git/config": "[core]\n\tfsmonitor = ./t/mon\n"}),
    only("t/x", "x", rows.PROGRAM, before={".git/config": '[trailer "x"]\n\tcmd = ./t/x\n'}),
    only("t/x", "x", rows.PROGRAM, before={".git/config": '[submodule "x"]\n\tupdate = !t/x\n'}),
    only("merge", "x", None, before={".git/config": '[submodule "x"]\n\tupdate = merge\n'}),
    only("t/x", "x", rows.TOOL, before={".git/config": "[alias]\n\ty = !sh t/x\n"}),
    only("log", "x", None, before={".git/config": "[alias]\n\ty = log\n"}),
    only("t/x", "x", rows.TOOL, before={".git/config": '[mergetool "y"]\n\tcmd = "t/x \\"$LOCAL\\""\n'}),
    only("t/hooks/x", "x", rows.HOOK, before={".git/config": "[init]\n\ttemplateDir = t\n"}),
    only(".git/config.worktree", "[core]\n\tbare = true\n", rows.SETTINGS, before={".git/HEAD": "x"}),
    only("inc", "[core]\n\tbare = true\n", rows.SETTINGS, before={".git/config": "[include]\n\tpath = ../inc\n"}),
    only(".git/config", '[branch "x"]\n\ta\r= 1\n', rows.UNREADABLE, before={".git/config": MINIMAL}),
]
UNKNOWNS = [
    only(".git/whatever", "x", rows.UNKNOWN),
    only(".git/info/whatever", "x", rows.UNKNOWN),
    only(".git/objects/whatever/x", "x", rows.UNKNOWN),
    only(".git/branches/origin", "ext::sh", rows.UNKNOWN),
    only(".git/remotes/origin", "URL: ext::sh", rows.UNKNOWN),
    only(".git/modules/config", EVIL, rows.UNKNOWN),
    only(".git/config.lock", "x", rows.UNKNOWN),
    only(".git/logs/x", "x", rows.UNKNOWN),
    only(".git/rebase-merge/deep/x", "x", rows.UNKNOWN),
    gone(".git/whatever", "x", None),
]
UNREADABLE = [
    only(".git/config", "[core", rows.UNREADABLE),
    only(".git/config", "[core]\n\tx = \0\n", rows.UNREADABLE),
    only(".git/config", "#" * (256 * 1024 + 1), rows.UNREADABLE),
    only(".gitattributes", "#" * (256 * 1024 + 1), rows.UNREADABLE),
]
OTHERS = [
    only(".tool-versions", "node {{ exec(command='evil') }}\n", rows.TEMPLATE),
    only(".git/rebase-merge/git-rebase-todo", "pick 1 x\nexec evil\n", rows.TODO),
    only(".git/rebase-merge/strategy", "x/evil\n", rows.TODO),
    only(".git/rebase-merge/strategy", "ort\n", None),
    only(".git/sequencer/opts", "[options]\n\tstrategy = x/evil\n", rows.TODO),
    only(".git/sequencer/opts", "[options]\n\tmainline = 1\n", None),
    only(".git/MERGE_AUTOSTASH", "x", rows.AUTOSTASH),
    only(".git/rebase-merge/autostash", "x", rows.AUTOSTASH),
    only(".git/BISECT_START", "-f\n", rows.UNKNOWN),
    only(".git/lfs/objects/ab/cd/abcd1", "x", None),
    only(".git/lfs/objects/ab/cd/abcd1", "x", rows.UNKNOWN, before={".git/lfs/objects/ab/cd/abcd1": "y"}),
    only(".git/BISECT_START", "main\n", None),
    only(".git/rebase-merge/git-rebase-todo", "pick 1 exec\n", None),
    only(".git/sequencer/todo", "x evil\n", rows.TODO),
    only(".git/objects/info/alternates", "/elsewhere/objects\n", rows.ALTERNATES),
    only(".git/refs/replace/" + 40 * "1", 40 * "2" + "\n", rows.REPLACED_OBJECT),
    only(".git/info/grafts", 40 * "1" + "\n", rows.REPLACED_OBJECT),
    Case(".git/shallow", {".git/shallow": "1\n"}, rows.SHALLOW, {".git/HEAD": "ref: refs/heads/main\n"}),
    Case(
        ".git/shallow",
        {".git/shallow": "1\n2\n"},
        rows.SHALLOW,
        {".git/HEAD": "ref: refs/heads/main\n", ".git/shallow": "1\n"},
    ),
    Case(
        ".git/shallow",
        {".git/shallow": "1\n"},
        None,
        {".git/HEAD": "ref: refs/heads/main\n", ".git/shallow": "1\n2\n"},
    ),
    Case("new/.git/shallow", {"new/.git/HEAD": "ref: refs/heads/main\n", "new/.git/shallow": "1\n"}, None),
    only("run", Program(), rows.EXECUTABLE),
    Case("run", {"run": Program("new")}, None, {"run": Program("old")}),
    Case("run", {"run": Program("same")}, rows.EXECUTABLE, {"run": "same"}),
    Case("run", {"run": "same"}, None, {"run": Program("same")}),
    only("node_modules/x/package.json", "{}", rows.PACKAGES),
    only("node_modules/x/.vscode/settings.json", "{}", rows.PACKAGES),
    only("node_modules/x/.envrc", "x", rows.PACKAGES),
    only("a/.venv/bin/tool", Program(), rows.PACKAGES),
    only("node_modules/x/index.js", "x", None),
    only("node_modules/x/.git/config", EVIL, rows.SETTINGS),
]
ENVRC = """
# see README.md
source_env_if_exists .envrc.private
PATH_add tools
watch_file settings/vars.toml
export PYTHONPATH=$PWD/src:lib  # not notes.txt
[ -f local.sh ] && . "${HOME}"/../x/y.sh; . "$(pwd)/scripts/a b.sh"
source .venv/bin/activate
use flake
"""
MISE = """
[tools]
node = "20" # not node.js
[tasks.test]
run = "scripts/test.sh"
[env]
_.source = ["./scripts/env.sh"]
_.file = 'vars.env'
[hooks]
enter = "sh scripts/enter.sh"
[[watch_files]]
patterns = ["src/*.rs"]
run = "scripts/watch.sh"
"""
SOURCED = [
    *(
        only(path, "x", rows.SOURCED, before={".envrc": ENVRC}, secrets=Secrets(mask=False))
        for path in ".envrc.private settings/vars.toml scripts/a .venv/bin/activate flake.nix flake.lock b.sh".split()
    ),
    *(
        only(path, "x", None, before={".envrc": ENVRC, "scripts/x": ""})
        for path in "README.md notes.txt src/a.sh sub/.envrc.private source use flake scripts/b".split()
    ),
    *(
        only(path, "x", rows.SOURCED, before={"mise.toml": MISE})
        for path in "scripts/env.sh vars.env scripts/enter.sh scripts/watch.sh src/main.rs".split()
    ),
    *(only(path, "x", None, before={"mise.toml": MISE}) for path in "scripts/test.sh node.js src/sub/a.rs".split()),
    only(
        "nix/shell.nix", "x", rows.SOURCED, before={".envrc": "use flake\n", "flake.nix": "import ./nix/shell.nix {}"}
    ),
    only("Cargo.toml2", "x", None, before={".envrc": "use flake\n", "flake.nix": "lockFile = ./Cargo.toml2;"}),
    only("real/env.sh", "x", rows.SOURCED, before={".envrc": ". e/env.sh", "e": Link("real"), "real/env.sh": ""}),
    only("ENV.SH", "x", rows.SOURCED, before={".envrc": ". env.sh"}),
    only("x.sh", "x", rows.SOURCED, before={".envrc": ". *.sh"}),
    only("sub/x.sh", "x", None, before={".envrc": ". *.sh"}),
    only("sub/x.sh", "x", rows.SOURCED, before={"sub/.envrc": ". ./x.sh"}),
    Case("env.sh", {"env.sh": GONE}, None, {".envrc": ". env.sh", "env.sh": "x"}, deleted=True),
    Case("env.sh", {"env.sh": "x", ".envrc": "x"}, None),
]
RULES = "build/\n*.out\n!keep.out\n/bin\n"
IGNORED = [
    *(
        only(path, Program(), None, before={".gitignore": RULES})
        for path in "build/app sub/build/deep/app a.out sub/a.out bin/tool build/keep.out".split()
    ),
    *(only(path, Program(), rows.EXECUTABLE, before={".gitignore": RULES}) for path in "app keep.out build".split()),
    only("sub/bin/tool", Program(), rows.IN_PROGRAMS, before={".gitignore": RULES}),
    only("app", Program(), None, before={".git/info/exclude": "app\n"}),
    only("sub/app", Program(), None, before={"sub/.gitignore": "/app\n"}),
    only("app", Program(), rows.EXECUTABLE, before={"sub/.gitignore": "app\n"}),
    only("sub/app", Program(), rows.EXECUTABLE, before={".gitignore": "app\n", "sub/.git/HEAD": SHA}),
    only("sub/app", Program(), rows.EXECUTABLE, before={".gitignore": "app\n", "sub/.gitignore": "!app\n"}),
    # What the run itself ignores is not believed, nor a link
    Case("app", {"app": Program(), ".gitignore": "app\n"}, rows.EXECUTABLE),
    Case("app", {"app": Program(), ".gitignore": "app\n"}, rows.EXECUTABLE, {".gitignore": "x\n"}),
    only("app", Program(), rows.EXECUTABLE, before={".gitignore": Link("rules"), "rules": "app\n"}),
    # Another reason to flag or hold it stays one
    only("build/setup.py", Program(), rows.FLAGGED[2], before={".gitignore": RULES}),
    only("build/.envrc", Program(), rows.HELD[1], before={".gitignore": RULES}),
    only("bin/ls", Program(), rows.IN_PROGRAMS, before={".gitignore": RULES, ".envrc": "PATH_add bin", "bin/x": ""}),
]
ORDINARY_IN_GIT = (
    [
        only(f".git/{path}", "x", None)
        for path in f"""
    HEAD ORIG_HEAD FETCH_HEAD MERGE_HEAD MERGE_MSG MERGE_MODE MERGE_RR AUTO_MERGE CHERRY_PICK_HEAD REVERT_HEAD
    REBASE_HEAD BISECT_LOG BISECT_START COMMIT_EDITMSG TAG_EDITMSG SQUASH_MSG index index.lock packed-refs shallow
    description gc.log sharedindex.{SHA} refs/heads/main refs/heads/feature/hooks refs/stash
    refs/remotes/origin/HEAD logs/HEAD logs/refs/stash objects/01/{SHA[2:]}
    objects/01/tmp_obj_x1 objects/pack/pack-{SHA}.pack objects/pack/pack-{SHA}.idx objects/pack/tmp_pack_x
    objects/pack/multi-pack-index objects/info/packs objects/info/commit-graphs/graph-{SHA}.graph info/exclude info/refs
    info/sparse-checkout rebase-merge/head-name rebase-merge/author-script rebase-apply/0001
    sequencer/opts rr-cache/{SHA}/preimage lfs/objects/01/23/{SHA} worktrees/w/HEAD worktrees/w/index
    worktrees/w/logs/HEAD worktrees/w/locked worktrees/info/index worktrees/hooks/HEAD hooks/update.sample
    lfs/cache/locks/refs/heads/config/verifiable
    """.split()
    ]
    + [
        # Branches may be called as anybody likes; what is no branch by its content may not
        only(f".git/{place}/{name}", content, None)
        for place, content in (
            ("refs/heads", f"{SHA}\n"),
            ("refs/remotes/origin", "ref: refs/remotes/origin/main\n"),
            ("logs/refs/heads", f"{'0' * 40} {SHA} A <a@example.org> 1700000000 +0000\tcommit: x\n" * 2),
        )
        for name in ("config", "config.worktree", "hooks/x", "info/attributes", "mise.toml", "bin/x", "mcp.json/y")
    ]
    + [Case(".git/modules/a/b/refs/heads/x", bare(".git/modules/a/b", **{"refs/heads/x": SHA}), None)]
)
IN_CONFIG = Secrets(directories=(b"config", b"a/b"), names=(b"My.Key",))
SECRETS = [
    only(".env", "x", rows.SECRET),
    only(".ENV", "x", rows.SECRET),
    only(".npmrc", Link("elsewhere"), rows.SECRET),
    only(".env", "y", rows.SECRET, before={".env": "x"}),
    gone(".env", "x", rows.SECRET),
    only(".env.example", "x", None),
    only("src/id_rsa", "x", None),
    only("id_rsa", "x", None, secrets=Secrets(mask=False)),
    only("config/id_rsa", "x", None),
    only("config/.env", "x", rows.SECRET, secrets=IN_CONFIG),
    only("Config/ID_RSA", "x", rows.SECRET, secrets=IN_CONFIG),
    only("a/b/my.key", "x", rows.SECRET, secrets=IN_CONFIG),
    only("a/id_rsa", "x", None, secrets=IN_CONFIG),
    Case(".env", {".env/pyvenv.cfg": "x"}, None),
    Case("config", {"config": GONE}, rows.SECRET_BELOW, {"config/x": "x"}, deleted=True, secrets=IN_CONFIG),
    Case("a", {"a": GONE}, rows.SECRET_BELOW, {"a/b/x": "x"}, deleted=True, secrets=IN_CONFIG),
    Case("a", {"a": "now a file"}, rows.SECRET_BELOW, {"a/b/x": "x"}, secrets=IN_CONFIG),
    Case("a/b/x", {"a/b/x": GONE}, None, {"a/b/x": "x"}, deleted=True, secrets=IN_CONFIG),
    Case("ab", {"ab": GONE}, None, {"ab/x": "x"}, deleted=True, secrets=IN_CONFIG),
    Case("config", {"config": GONE}, None, {"config/x": "x"}, deleted=True),
]
CASES = [
    *HOOKS, *SETTINGS, *ADDRESSES, *DRIVERS, *MODULES, *POINTERS, *LINKS, *COMPLETING, *PROGRAMS, *UNKNOWNS,
    *UNREADABLE, *OTHERS, *SOURCED, *IGNORED, *ORDINARY_IN_GIT, *SECRETS,
]  # fmt: skip
