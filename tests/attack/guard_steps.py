# SPDX-License-Identifier: Apache-2.0
"""Detours to what needs a person's consent, as data: runs that are applied at once, and how the person looks then."""

from dataclasses import dataclass

SETTINGS = (
    '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tworktree = %s\\n\\tfsmonitor = "touch %s; false"\\n'
)
EVIL = f'evil() {{ printf \'{SETTINGS}\' "$2" "$CANARY" > "$1"; }}\n'
MARK = "mark() { mkdir -p $1/objects $1/refs; touch $1/objects/k $1/refs/k; echo ref: refs/heads/m > $1/HEAD; }\n"
HOOK = "hook() { mkdir -p $(dirname $1); printf '#!/bin/sh\\ntouch %s\\n' \"$CANARY\" > $1; chmod +x $1; }\n"
TOOLS = EVIL + MARK + HOOK


@dataclass(frozen=True)
class Steps:
    """What each run does, what the person did before and does afterwards, and where."""

    name: str
    runs: tuple[str, ...]
    where: str = "."
    looks: str = "git status"
    before: str = ""

    def __str__(self) -> str:
        return self.name


IN_STEPS = [
    Steps(
        "a repository among references",
        (
            "mkdir -p .git/refs/evil; evil .git/refs/evil/config ../../../sub",
            "mark .git/refs/evil",
            "mkdir -p sub; echo 'gitdir: ../.git/refs/evil' > sub/.git; echo x > sub/file",
        ),
        "sub",
    ),
    Steps(
        "settings of a worktree, marks later",
        (
            "mkdir -p x/wt; printf '[core]\\n\\tbare = false\\n\\tworktree = wt\\n\\trepositoryformatversion = 1\\n"
            "[extensions]\\n\\tworktreeConfig = true\\n' > x/config; evil x/config.worktree wt",
            "mark x",
        ),
        "x",
    ),
    Steps(
        "settings that are shared, a HEAD later",
        (
            "mkdir -p x evil/objects evil/refs wt; touch evil/objects/k evil/refs/k; echo ../evil > x/commondir; "
            'evil evil/config "$PWD/wt"',
            "echo ref: refs/heads/m > x/HEAD",
            "echo 'gitdir: ../x' > wt/.git",
        ),
        "wt",
    ),
    Steps(
        "settings shared with a worktree",
        (
            "mkdir -p x/worktrees/w wt; mark x; rm x/HEAD; echo ../.. > x/worktrees/w/commondir; "
            'evil x/config "$PWD/wt"',
            "echo ref: refs/heads/m > x/worktrees/w/HEAD; echo 'gitdir: ../x/worktrees/w' > wt/.git",
        ),
        "wt",
    ),
    Steps(
        "directories as the last marks",
        ("mkdir -p x/wt; evil x/config wt; echo ref: refs/heads/m > x/HEAD", "mkdir x/objects x/refs"),
        "x",
    ),
    Steps(
        "links as the last marks",
        (
            "mkdir -p x/wt o r; evil x/config wt; echo ref: refs/heads/m > x/HEAD",
            "ln -s ../o x/objects; ln -s ../r x/refs",
        ),
        "x",
    ),
    Steps("a link for settings", ("mkdir -p c x/wt; evil c/settings wt; ln -s ../c/settings x/config", "mark x"), "x"),
    Steps(
        "a link for hooks",
        (
            "mkdir -p x/wt; hook h/post-index-change; ln -s ../h x/hooks; "
            "printf '[core]\\n\\tbare = false\\n\\tworktree = wt\\n' > x/config; echo 1 > x/wt/f",
            "mark x",
        ),
        "x/wt",
        looks="git --git-dir=../../x --work-tree=. add f; cd .. && git add wt/f; git status",
    ),
    Steps(
        "a pointer through a link",
        ("mkdir -p r/x; evil r/x/config ../../s; ln -s r lnk", "mark r/x; mkdir s; echo 'gitdir: ../lnk/x' > s/.git"),
        "s",
    ),
]
BY_LINKS = [
    Steps(
        "above the directory of hooks",
        ("cp -a tools t2; rm -rf tools; hook t2/hooks/post-index-change; ln -s t2 tools",),
        looks="touch a.txt; git add -A",
        before="mkdir -p tools/hooks; touch tools/hooks/x; git config core.hooksPath tools/hooks",
    ),
    Steps(
        "above an included file",
        ("mkdir u; evil u/settings .; rm -rf t; ln -s u t",),
        before="mkdir t; touch t/settings; git config include.path ../t/settings",
    ),
    Steps(
        "above a program",
        ("mkdir u; hook u/mon; rm -rf t; ln -s u t",),
        before="mkdir t; touch t/mon; git config core.fsmonitor ./t/mon",
    ),
]
COMMITS = "git commit -q --allow-empty -m more"
A_TOOL = "mkdir tools; printf '#!/bin/sh\\ncat\\n' > tools/x; chmod +x tools/x"
# What git runs by the person's own settings and links, in places of the project that do not look like it
NAMED_PLACES = [
    Steps(
        "a sample that a hook is a link to",
        ("hook .git/hooks/pre-commit.sample",),
        looks=COMMITS,
        before="ln -s pre-commit.sample .git/hooks/pre-commit",
    ),
    Steps(
        "a link between a hook and its file",
        ("rm tools/y; hook tools/y",),
        looks=COMMITS,
        before=f"{A_TOOL}; ln -s x tools/y; ln -s ../../tools/y .git/hooks/pre-commit",
    ),
    Steps(
        "a link between the directory of hooks and its place",
        ("rm t1; hook t1/hooks/pre-commit",),
        looks=COMMITS,
        before="mkdir -p t2/hooks; touch t2/hooks/x; ln -s t2 t1; ln -s t1 t0; git config core.hooksPath t0/hooks",
    ),
    Steps(
        "a file that a hook in the directory of hooks is a link to",
        ("hook tools/x",),
        looks=COMMITS,
        before=f"{A_TOOL}; mkdir hooks; ln -s ../tools/x hooks/pre-commit; git config core.hooksPath hooks",
    ),
    Steps(
        "settings that included settings include",
        ("evil inc/b .",),
        before="mkdir inc; printf '[include]\\n\\tpath = b\\n' > inc/a; touch inc/b; git config include.path ../inc/a",
    ),
    Steps(
        "hooks that the person's included settings name",
        ("hook tools/pre-commit",),
        looks=COMMITS,
        before=f"{A_TOOL}; git config --global include.path more; git config -f ~/more core.hooksPath tools",
    ),
    Steps(
        "the hooks of a repository further down",
        ("hook inner/tools/pre-commit",),
        "inner",
        looks=COMMITS,
        before=f"git init -q inner; cd inner; {A_TOOL}; git config core.hooksPath tools",
    ),
    Steps(
        "the hooks of a worktree",
        ("hook wt/tools/pre-commit",),
        "wt",
        looks=COMMITS,
        before=f"git config extensions.worktreeConfig true; git worktree add -q wt; cd wt; {A_TOOL}; "
        "git config --worktree core.hooksPath tools",
    ),
    Steps(
        "a filter that is found from the top of the work tree",
        ("printf '#!/bin/sh\\ntouch %s\\ncat\\n' \"$CANARY\" > tools/x",),
        looks="echo 2 >> a.txt; git add a.txt",
        before=f"{A_TOOL}; git config filter.x.clean '\"$(git rev-parse --show-toplevel)/tools/x\"'; "
        "echo '*.txt filter=x' > .gitattributes; git add -A; git commit -qm filter",
    ),
    Steps(
        "a macro of the person's for a filter",
        ("mkdir d; echo '* crypt' > d/.gitattributes; echo 1 > d/x",),
        looks="git add -A",
        before="git config filter.x.clean \"touch $CANARY; cat\"; echo '[attr]crypt filter=x' > .gitattributes; "
        "git add -A; git commit -qm macro",
    ),
]
# A hook and a configuration among the objects of a repository, which a checkout writes into its work tree
COMMITTED_HOOK = "hook post-checkout; git add post-checkout; git commit -qm script"
COMMITTED_SETTINGS = """
evil settings "$PWD"; blob=$(git hash-object -w settings); rm settings
git update-index --add --cacheinfo 100644,$blob,config; git commit -qm settings
"""
A_MODULE = """
git clone -q --bare . source.git
git -c protocol.file.allow=always submodule --quiet add "file://$PWD/source.git" lib; git commit -qm module
"""
TO_HOOKS = "git -C .git/modules/lib checkout .; git checkout -f; touch a.txt; git add a.txt"
WORK_TREES = [
    Steps("the hooks as work tree", (f"{COMMITTED_HOOK}; git config core.worktree hooks",), looks="git checkout ."),
    Steps(
        "the git directory as work tree",
        (f"{COMMITTED_SETTINGS} git config core.worktree .",),
        looks="git stash; git status",
    ),
    Steps(
        "in steps",
        (COMMITTED_HOOK, "mkdir -p sub; echo 'gitdir: ../.git' > sub/.git", "git config core.worktree hooks"),
        looks="git checkout .",
    ),
    Steps(
        "the settings of a worktree",
        (f"{COMMITTED_HOOK}; git config extensions.worktreeConfig true; git config --worktree core.worktree hooks",),
        looks="git checkout .",
    ),
    Steps(
        "a module that was there",
        (
            "cd lib; hook post-index-change; git add -A; git commit -qm script; cd ..; "
            "git config -f .git/modules/lib/config core.worktree ../../hooks",
        ),
        looks=TO_HOOKS,
        before=A_MODULE,
    ),
    Steps(
        "a new module",
        (
            'git clone -q --bare "file://$PWD" .git/modules/lib; cd .git/modules/lib; rm hooks/*; '
            "git config --unset core.bare; "
            "git --work-tree=../../../lib read-tree HEAD; mkdir ../../../lib; cd ../../../lib; "
            "export GIT_DIR=../.git/modules/lib GIT_WORK_TREE=.; hook post-index-change; git add -A; git commit -qm s; "
            "git config core.worktree ../../hooks; git config core.bare false",
        ),
        looks=TO_HOOKS,
    ),
    Steps(
        "a link in place of the work tree",
        (f"cd tree; export GIT_DIR=$PWD/../.git; {COMMITTED_HOOK}; cd ..; rm -rf tree; ln -s .git/hooks tree",),
        looks="cp -a . ../copy; cd ../copy; git checkout -f; cd ..; rm -rf copy",
        before="mkdir tree; git config core.worktree ../tree; cp a.txt tree",
    ),
    Steps(
        "a link above the work tree",
        (f"cd up/hooks; export GIT_DIR=$PWD/../../.git; {COMMITTED_HOOK}; cd ../..; rm -rf up; ln -s .git up",),
        looks="cp -a . ../copy; cd ../copy; git checkout -f; cd ..; rm -rf copy",
        before="mkdir -p up/hooks; git config core.worktree ../up/hooks; cp a.txt up/hooks",
    ),
]

# A shell line that leaves a mark wherever it is read
LINE = "line() { mkdir -p $(dirname $1); printf 'touch %s\\n' \"$CANARY\" > $1; }\n"
TOOLS += LINE
# What a person has in an `.envrc` that direnv may run, and the file of the project that it reads besides
SOURCED = [
    Steps("a local addition", ("line .envrc.mine",), before="echo source_env_if_exists .envrc.mine > .envrc"),
    Steps("a script", ("line scripts/env.sh",), before="echo '. \"$PWD/scripts/env.sh\"' > .envrc"),
    Steps(
        "a script behind a command",
        ("line scripts/env.sh",),
        before="echo '[ -f x ] || source \"$(pwd)/scripts/env.sh\"' > .envrc",
    ),
    Steps(
        "a script of a script",
        ("line scripts/more.sh",),
        before="mkdir scripts; echo '. scripts/more.sh' > scripts/env.sh; echo 'source scripts/env.sh' > .envrc",
    ),
    Steps(
        "a program",
        ("line tools/vars; chmod +x tools/vars",),
        before="echo 'eval \"$(sh tools/vars)\"' > .envrc",
    ),
    Steps(
        "all files of a directory",
        ("line env.d/20-more.sh",),
        before="mkdir env.d; touch env.d/10-x.sh; echo 'for file in env.d/*.sh; do . $file; done' > .envrc",
    ),
    Steps(
        "in a directory further down",
        ("line sub/local.sh",),
        where="sub",
        before="mkdir sub; touch sub/x; echo '. ./local.sh' > sub/.envrc; cd sub",
    ),
    Steps(
        "of a directory above the project",
        ("line env.sh",),
        before='echo ". $PWD/env.sh" > ../.envrc; cd ..',
    ),
    Steps(
        "a link above the script",
        ("line other/env.sh; rm -r scripts; ln -s other scripts",),
        before="mkdir scripts; touch scripts/env.sh; echo 'source scripts/env.sh' > .envrc",
    ),
]
