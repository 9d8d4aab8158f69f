# SPDX-License-Identifier: Apache-2.0
"""What people and agents do every day in a repository, as data: all of it is applied with no question.

`before` is done outside by the person, `inside` in a sandbox, `shows` outside on the result, and what it prints tells
whether the work has arrived. Nothing here needs a network.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One kind of work."""

    name: str
    inside: str
    shows: str
    before: str = ""
    # Paths of the result that are shown first, although nobody is asked
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


# Two branches, a file each, and a tracked remote beside the project
BRANCHES = """
git checkout -q -b topic && echo topic > topic.txt && git add -A && git commit -qm topic
git checkout -q main && echo main > main.txt && git add -A && git commit -qm main
"""
REMOTE = """
git clone -q --bare . ../remote.git && git remote add origin ../remote.git
git -C ../remote.git branch far main && git fetch -q origin
"""
# A wheel is an archive of files; making one needs no builder
WHEEL = r"""
python3 - <<'END'
import zipfile
with zipfile.ZipFile("tiny-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tiny/__init__.py", "def main():\n    print('tiny')\n")
    wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("tiny-1.0.dist-info/entry_points.txt", "[console_scripts]\ntiny = tiny:main\n")
    wheel.writestr("tiny-1.0.dist-info/RECORD", "")
END
"""

CASES = [
    Case(
        "commit",
        "echo two >> a.txt && git commit -qam second && git tag v1 && git tag -a v2 -m annotated",
        "git log --format=%s && git tag",
    ),
    Case(
        "a new repository",
        "mkdir fresh && cd fresh && git init -q && echo x > x && git add -A && git commit -qm first",
        "git -C fresh log --format=%s",
    ),
    Case(
        "a new bare repository",
        "git init -q --bare store.git && git push -q ./store.git main",
        "git -C store.git log --format=%s main",
    ),
    Case(
        "checkout of a tracking branch",
        "git checkout -q --track origin/far && git pull -q --ff-only 2>/dev/null; git status -sb | head -1",
        "git status -sb | head -1",
        BRANCHES + REMOTE,
    ),
    Case(
        "branches made, renamed and deleted",
        "git branch -d merged && git branch new && git branch -m topic renamed && git config user.name Grace",
        "git branch --format='%(refname)' && git config user.name",
        BRANCHES + "git checkout -q --track -b merged main && git checkout -q main",
    ),
    Case(
        "a remote added and removed",
        "git remote add other https://example.org/other.git && git remote remove origin",
        "git remote -v",
        REMOTE,
        (".git/config",),
    ),
    Case("merge", "git merge -q -m merged topic", "git log --format=%s | head -1", BRANCHES),
    Case(
        "a merge that stops at a conflict",
        "! git merge -q topic",
        "git status --short",
        "git checkout -q -b topic; echo b > a.txt; git commit -qam b; git checkout -q main; echo c > a.txt; "
        "git commit -qam c",
    ),
    Case("rebase", "git rebase -q main topic", "git log --format=%s", BRANCHES),
    Case(
        "a rebase that stops at a conflict",
        "! git rebase -q main topic",
        "git status --short",
        "git checkout -q -b topic; echo b > a.txt; git commit -qam b; git checkout -q main; echo c > a.txt; "
        "git commit -qam c",
    ),
    Case(
        "cherry-pick, revert, reset, gc",
        "git cherry-pick topic >/dev/null && git revert --no-edit HEAD >/dev/null && git reset -q --hard HEAD^ && "
        "git gc -q",
        "git log --format=%s",
        BRANCHES,
    ),
    Case(
        "stash",
        "echo x >> a.txt && git stash -q && echo y >> a.txt && git stash -q && git stash pop -q",
        "git stash list | wc -l && cat a.txt",
    ),
    Case(
        "clone into the project",
        'git clone -q "file://$PWD/source.git" cloned && git -C cloned commit -q --allow-empty -m further',
        "git -C cloned log --format=%s",
        "git clone -q --bare . source.git",
        ("cloned/Makefile",),
    ),
    Case(
        "worktree add",
        "git worktree add -q -b side side && echo s > side/s && git -C side add -A && git -C side commit -qm side",
        "git -C side log --format=%s && git worktree list | wc -l",
        flags=("side/Makefile",),
    ),
    Case(
        "worktree removed",
        "git worktree remove side && git branch -q -d side",
        "git worktree list | wc -l",
        "git worktree add -q -b side side",
    ),
    Case(
        "submodule add and update",
        'git -c protocol.file.allow=always submodule --quiet add "file://$PWD/source.git" lib && '
        "git commit -qm module && git -c protocol.file.allow=always submodule --quiet update --init --recursive",
        "git submodule status | wc -l && git -C lib log --format=%s",
        "git clone -q --bare . source.git",
        (".git/config", ".gitmodules", "lib/Makefile"),
    ),
    Case(
        "submodule update",
        "git -c protocol.file.allow=always submodule --quiet update --init --recursive",
        "git -C lib log --format=%s",
        "git clone -q --bare . source.git && "
        'git -c protocol.file.allow=always submodule --quiet add "file://$PWD/source.git" lib '
        "&& git commit -qm module && git submodule --quiet deinit -f lib && rm -rf .git/modules",
        ("lib/Makefile",),
    ),
    Case(
        "a module by another name, with a module in it",
        'git -c protocol.file.allow=always submodule --quiet add --name a/b "file://$PWD/outer.git" libs/outer && '
        "git commit -qm module && git -c protocol.file.allow=always submodule --quiet update --init --recursive",
        "git submodule status --recursive | wc -l && git -C libs/outer/deep log --format=%s",
        'git clone -q --bare . inner.git && git clone -q inner.git outer && inner="file://$PWD/inner.git" && '
        'cd outer && git -c protocol.file.allow=always submodule --quiet add "$inner" deep && git commit -qm deep && '
        "cd .. && git clone -q --bare outer outer.git && rm -rf outer",
        (".git/config", ".gitmodules", "libs/outer/Makefile", "libs/outer/deep/Makefile"),
    ),
    Case(
        "sparse checkout",
        "git sparse-checkout set topic",
        "git sparse-checkout list",
        "mkdir topic rest && echo 1 > topic/1 && echo 2 > rest/2 && git add -A && git commit -qm both",
    ),
    Case(
        "plain attributes",
        "printf '* text=auto eol=lf\\n*.py diff=python\\n*.png binary\\nCHANGES merge=union\\n*.psd filter=lfs\\n' "
        "> .gitattributes && git add -A && git commit -qm attributes",
        "git log --format=%s | head -1",
    ),
    Case(
        "pip install into .venv",
        "python3 -m venv .venv && .venv/bin/python -m pip install -q --no-index --no-warn-script-location "
        "--disable-pip-version-check tiny-1.0-py3-none-any.whl",
        ".venv/bin/tiny",
        WHEEL,
        (".venv",),
    ),
    Case(
        "npm install into node_modules",
        "npm install --offline --no-audit --no-fund --silent ./pkg && "
        "mkdir -p node_modules/other/.vscode node_modules/.bin && echo '{}' > node_modules/other/.vscode/settings.json "
        "&& printf '#!/bin/sh\\n' > node_modules/other/cli && chmod +x node_modules/other/cli && "
        "ln -s ../other/cli node_modules/.bin/other",
        "ls node_modules",
        'mkdir pkg && echo \'{"name": "pkg", "version": "1.0.0"}\' > pkg/package.json && echo {} > package.json',
        ("node_modules", "package.json", "package-lock.json"),
    ),
]
