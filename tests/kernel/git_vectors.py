# SPDX-License-Identifier: Apache-2.0
"""Ways to have git run something when a person merely looks at a project, as data.

In every script `$CANARY` is a file outside of the project; whatever runs there makes it.
"""

from dataclasses import dataclass

FAKE = """
fake() {
    mkdir -p "$1/objects" "$1/refs"
    echo 'ref: refs/heads/main' > "$1/HEAD"
    printf '[core]\\n\\tbare = false\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = "touch %s; false"\\n' \\
        "$CANARY" > "$1/config"
}
hook() {
    mkdir -p "$(dirname "$1")"
    printf '#!/bin/sh\\ntouch %s\\n' "$CANARY" > "$1"
    chmod +x "$1"
}
"""


@dataclass(frozen=True)
class Vector:
    """What a command does inside, what the person does afterwards, and the paths that decide.

    `before` is done by the person first: some vectors only redirect what the person has set up.
    """

    name: str
    inside: str
    decides: tuple[str, ...]
    looks: str = "git status"
    where: str = "."
    before: str = ""

    def __str__(self) -> str:
        return self.name


VECTORS = [
    Vector(
        "core.fsmonitor",
        'git config core.fsmonitor "touch $CANARY; false"',
        (".git/config",),
    ),
    Vector(
        "a clean filter and the attributes that name it",
        'git config filter.x.clean "touch $CANARY; cat"; echo "*.txt filter=x" > .gitattributes; echo more >> a.txt',
        (".git/config", ".gitattributes"),
        looks="git diff",
    ),
    Vector(
        "a clean filter, added",
        'git config filter.x.clean "touch $CANARY; cat"; echo "*.txt filter=x" > .gitattributes; echo more >> a.txt',
        (".git/config", ".gitattributes"),
        looks="git add a.txt",
    ),
    Vector(
        "diff.external",
        'git config diff.external "touch $CANARY; true"; echo more >> a.txt',
        (".git/config",),
        looks="git diff",
    ),
    Vector(
        "a text conversion",
        'git config diff.x.textconv "touch $CANARY; cat"; echo "*.txt diff=x" > .gitattributes; echo more >> a.txt',
        (".git/config", ".gitattributes"),
        looks="git diff",
    ),
    Vector(
        "core.hooksPath into the work tree",
        "hook tools/post-index-change; git config core.hooksPath tools; echo more >> a.txt",
        (".git/config", "tools/post-index-change"),
        looks="git add a.txt",
    ),
    Vector(
        "a nested bare repository",
        "fake vendor/lib; git config -f vendor/lib/config core.worktree .",
        ("vendor/lib/config",),
        where="vendor/lib",
    ),
    Vector(
        "a .git file that leads to a forged repository",
        'mkdir sub; fake fakegit; echo "gitdir: ../fakegit" > sub/.git',
        ("fakegit/config",),
        where="sub",
    ),
    Vector(
        "a .git file that leads out of the project",
        'mkdir sub; echo "gitdir: ../../outside" > sub/.git',
        ("sub/.git",),
        where="sub",
        before="fake ../outside",
    ),
    Vector(
        "a .git link to a forged repository",
        "mkdir sub; fake fakegit; ln -s ../fakegit sub/.git",
        ("sub/.git", "fakegit/config"),
        where="sub",
    ),
    Vector(
        "a hook",
        "hook .git/hooks/post-index-change; echo more >> a.txt",
        (".git/hooks/post-index-change",),
        looks="git add a.txt",
    ),
    Vector(
        "a hook for checkouts",
        "hook .git/hooks/post-checkout",
        (".git/hooks/post-checkout",),
        looks="git checkout -b other",
    ),
    Vector(
        "a hook that was there and becomes executable",
        "chmod +x .git/hooks/post-checkout",
        (".git/hooks/post-checkout",),
        looks="git checkout -b other",
        before="hook .git/hooks/post-checkout; chmod -x .git/hooks/post-checkout",
    ),
    Vector(
        "hooks that are a link into the work tree",
        "hook tools/post-checkout; rm -r .git/hooks; ln -s ../tools .git/hooks",
        (".git/hooks",),
        looks="git checkout -b other",
    ),
    Vector(
        "config.worktree",
        'git config extensions.worktreeConfig true; git config --worktree core.fsmonitor "touch $CANARY; false"',
        (".git/config.worktree",),
    ),
    Vector(
        "an included file",
        'git config include.path ../evil; git config -f evil core.fsmonitor "touch $CANARY; false"',
        (".git/config", "evil"),
    ),
    Vector(
        "a file that the person includes",
        'git config -f shared core.fsmonitor "touch $CANARY; false"',
        ("shared",),
        before="git config include.path ../shared; git config -f shared user.name Ada",
    ),
    Vector(
        "a directory that the person's hooks are in",
        "hook .githooks/post-checkout",
        (".githooks/post-checkout",),
        looks="git checkout -b other",
        before="git config core.hooksPath .githooks",
    ),
    Vector(
        "what the person's husky runs",
        'echo "touch $CANARY" > .husky/post-checkout',
        (".husky/post-checkout",),
        looks="git checkout -b other",
        before=(
            "mkdir -p .husky/_; git config core.hooksPath .husky/_;"
            "printf '#!/bin/sh\\nsh .husky/post-checkout\\n' > .husky/_/post-checkout; chmod +x .husky/_/post-checkout"
        ),
    ),
    Vector(
        "a program that the person's filter runs",
        'printf "touch $CANARY\\ncat\\n" > tools/clean.sh; echo more >> a.txt',
        ("tools/clean.sh",),
        looks="git diff",
        before=(
            "mkdir tools; echo cat > tools/clean.sh; git config filter.x.clean 'sh tools/clean.sh';"
            "echo '*.txt filter=x' > .gitattributes"
        ),
    ),
    Vector(
        "attributes that use a driver of the person",
        'echo "*.txt diff=x" > .gitattributes; echo more >> a.txt',
        (".gitattributes",),
        looks="git diff",
        before='git config diff.x.textconv "touch $CANARY; cat"',
    ),
    Vector(
        "attributes inside .git",
        'echo "*.txt diff=x" > .git/info/attributes; echo more >> a.txt',
        (".git/info/attributes",),
        looks="git diff",
        before='git config diff.x.textconv "touch $CANARY; cat"',
    ),
    Vector(
        "settings behind a forged commondir",
        "mkdir sub; fake common; fake fakegit; rm -r common/HEAD fakegit/config; echo ../common > fakegit/commondir;"
        'echo "gitdir: ../fakegit" > sub/.git',
        ("fakegit/commondir",),
        where="sub",
    ),
    Vector(
        "a repository hidden among the objects",
        # With an object that is new: else all of it is taken for what git did for itself, and goes
        'mkdir sub; fake .git/objects/fake; echo "gitdir: ../.git/objects/fake" > sub/.git;'
        " git hash-object -w sub/.git",
        (".git/objects/fake/config",),
        where="sub",
    ),
    Vector(
        "a repository hidden among the references",
        'mkdir sub; fake .git/refs/fake; echo "gitdir: ../.git/refs/fake" > sub/.git',
        (".git/refs/fake/config",),
        where="sub",
    ),
    Vector(
        "a repository hidden among the modules",
        'mkdir sub; fake .git/modules/a/b; echo "gitdir: ../.git/modules/a/b" > sub/.git',
        (".git/modules/a/b/config",),
        where="sub",
    ),
    Vector(
        "the settings of a module",
        'git -C lib config core.fsmonitor "touch $CANARY; false"',
        (".git/modules/lib/config",),
        before=(
            "git init -q ../other; git -C ../other commit -q --allow-empty -m x;"
            "git -c protocol.file.allow=always submodule --quiet add ../other lib; git commit -qm module"
        ),
    ),
    Vector(
        "the one file that makes a repository of what lies there",
        "echo 'ref: refs/heads/main' > lib/HEAD",
        ("lib/HEAD",),
        where="lib",
        before="fake lib; git config -f lib/config core.worktree .; rm lib/HEAD",
    ),
    Vector(
        "a .git file that leads to a repository that lies there",
        'mkdir sub; echo "gitdir: ../lib" > sub/.git',
        ("sub/.git",),
        where="sub",
        before="fake lib",
    ),
]
