# SPDX-License-Identifier: Apache-2.0
"""The one table of what is held and what is flagged, and how a path finds its row in it. docs/held.md is made from it.

Held is what runs when a person merely enters, looks at or opens the project; flagged is what runs when they build,
test, install, push or ask an agent. Most rows go by names, which are folded. The rules at the end go by place, content
or kind, and `apply.guard` finds out which changes they mean.
"""

from __future__ import annotations

from unspill.policy.git import GIT_NAMES
from unspill.policy.paths import alias_of, fold, is_odd
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    Verdict = Literal["ordinary", "flagged", "held"]
    Opinion = tuple[Verdict, str]


# Where package managers put what they install; nobody opens these as a project of their own
PACKAGE_TREES = frozenset(b"node_modules bower_components .venv venv .tox .nox __pypackages__ site-packages".split())
# More paths than this with one reason below one directory become one line
LINES_AT_MOST = 20


ORDINARY: Opinion = ("ordinary", "")
_RANK = {"ordinary": 0, "flagged": 1, "held": 2}


class GuardRow(Record):
    """One row: what is meant, the verdict, the reason as a person reads it, and the verdict on a deletion.

    `files` match the end of a path, `directories` themselves and all that is in them, both wherever they lie and with
    slashes between several components. `suffixes` are what follows the last dot of a name, `stems` what is before the
    first, `endings` how a name ends. `but` are names in the directories that the row does not mean. A row without names
    is a rule, and `what` says in words what it means.
    """

    verdict: Verdict
    reason: str
    what: str = ""
    files: tuple[bytes, ...] = ()
    directories: tuple[bytes, ...] = ()
    suffixes: tuple[bytes, ...] = ()
    stems: tuple[bytes, ...] = ()
    endings: tuple[bytes, ...] = ()
    but: tuple[bytes, ...] = ()
    deleted: Verdict = "ordinary"

    @property
    def opinion(self) -> Opinion:
        """What a path in this row gets."""
        return self.verdict, self.reason


def _row(verdict: Verdict, reason: str, *, deleted: Verdict = "ordinary", **names: bytes) -> GuardRow:
    """Return a row whose names are words of one text."""
    split: dict[str, Any] = {key: tuple(text.split()) for key, text in names.items()}
    return GuardRow(verdict=verdict, reason=reason, deleted=deleted, **split)


# It runs when a person merely enters, looks at or opens the project
HELD = (
    _row("held", "it configures unspill in this project", files=b".unspill.toml", deleted="held"),
    _row("held", "direnv runs it when you enter the directory", files=b".envrc"),
    _row(
        "held",
        "autoenv runs it when you enter or leave the directory",
        files=b".autoenv .autoenv.zsh .autoenv_leave.zsh .autoenv.leave",
    ),
    # mise trusts a file by its path, so a trusted one that changes runs its hooks at the next prompt
    _row(
        "held",
        "mise runs its hooks when you enter the directory",
        files=b"""
            mise.toml .mise.toml mise.local.toml .mise.local.toml .config/mise.toml .config/mise.local.toml .rtx.toml
            """,
        directories=b".config/mise .mise",
    ),
    _row(
        "held",
        "VS Code can start programs from it when you open the folder",
        directories=b".vscode",
        suffixes=b"code-workspace",
        but=b"extensions.json *.code-snippets",
    ),
    _row(
        "held",
        "JetBrains editors can start programs from it when you open the folder",
        directories=b".idea .run .fleet",
    ),
    _row(
        "held",
        "the editor can start programs from it when you open the folder",
        files=b".kateproject .ycm_extra_conf.py",
        directories=b".zed .helix .nova .vs .theia .lapce",
        suffixes=b"sublime-project sublime-workspace",
    ),
    _row(
        "held",
        "vim or Emacs runs it when you open a file beside it",
        files=b"""
            .vimrc _vimrc .exrc _exrc .gvimrc .nvimrc .nvim.lua .lvimrc .local.vimrc .dir-locals.el .dir-locals-2.el
            """,
        directories=b".vim .nvim",
    ),
    _row(
        "held",
        "editors and agents build and start a container from it when you open the folder",
        files=b".devcontainer.json",
        directories=b".devcontainer",
    ),
    _row("held", "R runs it when you open the project", files=b".rprofile .rdata"),
    # The same files keep the rules that bind an agent, so their deletion is held too
    _row(
        "held",
        "agents start servers and hooks from it when they open the project",
        files=b"""
            .mcp.json mcp.json .claude.json opencode.json opencode.jsonc crush.json .crush.json .aider.conf.yml
            """,
        directories=b"""
            .claude .claude-plugin .cursor .codex .gemini .qwen .opencode .windsurf .roo .cline .kiro .continue .amazonq
            .augment .factory .junie .trae .crush .agents .github/hooks
            """,
        deleted="held",
    ),
    _row(
        "held",
        "a shell or the desktop runs it at start-up, if this directory is your home or linked to it",
        files=b"""
            .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin
            .zlogout .kshrc .cshrc .tcshrc .login .xinitrc .xprofile .xsession .xsessionrc .pam_environment .tmux.conf
            .screenrc
            """,
        directories=b".config/fish .config/autostart .config/systemd .config/environment.d .ssh",
    ),
    _row(
        "held",
        "git, Mercurial or Jujutsu runs what it names",
        files=b".gitconfig .hgrc .hg/hgrc .hg/hgrc-not-shared",
        directories=b".config/git .config/hg .config/jj",
    ),
    _row(
        "held",
        "Jujutsu runs what it names",
        files=b"""
            .jj/repo/config.toml .jj/config.toml .jj/workspace-config.toml .jj/repo/config-id .jj/workspace-config-id
            """,
    ),
)
# It runs when a person builds, tests, installs, pushes or asks an agent
FLAGGED = (
    _row(
        "flagged",
        "runs when you build",
        files=b"""
            justfile .justfile build.rs build.zig build.xml build.sbt pom.xml meson.build meson_options.txt sconstruct
            sconscript wscript configure configure.ac configure.in autogen.sh cmakelists.txt cmakepresets.json
            build.bazel workspace workspace.bazel module.bazel .bazelrc tiltfile earthfile vagrantfile procfile
            skaffold.yaml gradlew gradle.properties gradle-wrapper.properties mvnw maven-wrapper.properties
            rust-toolchain rust-toolchain.toml clippy.toml .cargo/config .cargo/config.toml cargo.toml go.mod go.work
            package.swift rebar.config mix.exs stack.yaml setup.hs dune-project directory.build.props
            directory.build.targets taskfile.yml taskfile.yaml fabfile.py tasks.py flake.nix shell.nix default.nix
            devbox.json buck .buckconfig
            """,
        suffixes=b"mk gradle kts cmake bzl csproj fsproj vbproj vcxproj sln targets gemspec podspec cabal nix",
        stems=b"makefile gnumakefile rakefile gulpfile gruntfile jakefile dockerfile containerfile",
    ),
    _row(
        "flagged",
        "runs when you start its services",
        files=b"compose.yaml compose.yml compose.override.yaml compose.override.yml",
        suffixes=b"dockerfile containerfile service desktop",
        stems=b"docker-compose",
    ),
    _row(
        "flagged",
        "runs when you install or build the package",
        files=b"""
            package.json pyproject.toml setup.py setup.cfg manifest.in pipfile .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs
            pnpmfile.cjs pnpm-workspace.yaml bunfig.toml deno.json deno.jsonc binding.gyp pip.conf .pypirc .condarc
            environment.yml environment.yaml gemfile podfile composer.json project.json lerna.json nx.json turbo.json
            nuget.config .lfsconfig requirements.txt requirements.in requirements-dev.txt requirements-test.txt
            dev-requirements.txt test-requirements.txt requirements_dev.txt constraints.txt
            """,
        directories=b".yarn",
    ),
    _row(
        "flagged",
        "runs when you test, check or format",
        files=b"""
            conftest.py tox.ini noxfile.py pytest.ini .pytest.ini mypy.ini .mypy.ini .pylintrc pylintrc .flake8
            .coveragerc .eslintrc.js .eslintrc.cjs .prettierrc.js .prettierrc.cjs .prettierrc.mjs .babelrc.js
            .stylelintrc.js .lintstagedrc .lintstagedrc.js .lintstagedrc.json .rubocop.yml .clangd .gdbinit .lldbinit
            .irbrc .pryrc .ripgreprc ipython_config.py .swcrc .babelrc .mocharc.js .mocharc.cjs
            """,
    ),
    _row(
        "flagged",
        "Python runs it whenever it starts with this directory on its path",
        files=b"sitecustomize.py usercustomize.py",
        suffixes=b"pth",
    ),
    _row(
        "flagged",
        "runs when you commit or push, if its hooks are installed",
        files=b"""
            .pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml lefthook.yaml .lefthook.yml lefthook.toml
            .overcommit.yml .huskyrc .huskyrc.js .huskyrc.json .releaserc .releaserc.js .czrc
            """,
        directories=b".husky .githooks .git-hooks .lefthook",
    ),
    _row(
        "flagged",
        "runs in your continuous integration",
        files=b"""
            .gitlab-ci.yml .travis.yml appveyor.yml .appveyor.yml azure-pipelines.yml bitbucket-pipelines.yml .drone.yml
            .woodpecker.yml cloudbuild.yaml .cirrus.yml buildspec.yml action.yml action.yaml
            """,
        directories=b"""
            .github/workflows .github/actions .gitlab .circleci .buildkite .woodpecker .forgejo/workflows
            .gitea/workflows .azure-pipelines .ci
            """,
        stems=b"jenkinsfile",
    ),
    _row(
        "flagged",
        "decides what the next install fetches and runs",
        files=b"""
            package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock bun.lockb deno.lock poetry.lock
            uv.lock pdm.lock pipfile.lock pylock.toml cargo.lock go.sum go.work.sum gemfile.lock composer.lock
            flake.lock mix.lock gradle.lockfile packages.lock.json podfile.lock conda-lock.yml mise.lock
            module.bazel.lock package.resolved pubspec.lock
            """,
    ),
    _row(
        "flagged",
        "chooses which interpreter or tool you run",
        files=b"""
            .tool-versions .python-version .node-version .nvmrc .ruby-version .java-version .go-version .sdkmanrc
            .terraform-version pyvenv.cfg .env .env.local .flaskenv
            """,
        directories=b".direnv",
    ),
    _row(
        "flagged",
        "agents follow it when you ask them something",
        files=b"""
            agents.md agents.override.md claude.md claude.local.md gemini.md qwen.md .cursorrules .windsurfrules
            .clinerules .roorules .goosehints .aider.conf.yaml copilot-instructions.md
            """,
        directories=b".clinerules .github/instructions .github/prompts .github/agents",
    ),
    _row("flagged", "is in a directory for programs", directories=b"bin sbin .bin"),
    # Programs as configuration: `vite.config.ts` and the many like it
    _row(
        "flagged",
        "runs when you build or test",
        endings=b"""
            .config.js .config.cjs .config.mjs .config.jsx .config.ts .config.cts .config.mts .config.tsx
            """,
    ),
)

# By place, content or kind. `what` and the reasons stand in docs/held.md as they are.
HOOK = GuardRow(
    what="`.git/hooks/*` except `*.sample`; files in the directory that the live `core.hooksPath` names; the target of "
    "a live hook that is a symlink",
    verdict="held",
    reason="git runs this hook automatically",
    deleted="flagged",
)
SETTINGS = GuardRow(
    what="`.git/config`, `.git/config.worktree`, those of modules, worktrees and bare repositories, and files that "
    "the live settings include, where a key changes that is not in the list below",
    verdict="held",
    reason="changes settings that git acts on",
    deleted="held",
)
DRIVERS = GuardRow(
    what="`.gitattributes` and `.git/info/attributes` with a new line that names a driver: `filter=`, `diff=` or "
    "`merge=`, except git's own drivers and `lfs`",
    verdict="held",
    reason="makes git run a filter, diff or merge driver on files",
)
MODULES = GuardRow(
    what="`.gitmodules` with a command, or with an unusual address or path, or a path outside the project",
    verdict="held",
    reason="changes submodules in a way that git acts on",
)
LEADS_OUT = GuardRow(
    what="`.git` as a file, `gitdir`, `commondir`, `.hg/sharedpath`, `.jj/repo` and `git_target` that point outside "
    "the root, or to anything but the repository of a worktree",
    verdict="held",
    reason="points git outside the project",
)
GIT_LINK = GuardRow(
    what="`.git`, `.gitattributes` or `.gitmodules` as a symlink; any symlink in a git directory except `HEAD`; one in "
    "place of the work tree that the live `core.worktree` names, or above it",
    verdict="held",
    reason="git follows this symlink",
)
COMPLETES = GuardRow(
    what="`HEAD`, `objects`, `refs`, `commondir` or a `.git` file that turns a directory into a repository where "
    "settings, attributes or hooks already exist, or a directory behind a symlink",
    verdict="held",
    reason="turns this directory into a git repository with settings or hooks that git runs",
)
PROGRAM = GuardRow(
    what="a file that the live settings run: `core.fsmonitor`, `filter.*`, `diff.*`, `core.pager` and the like",
    verdict="held",
    reason="your git settings run it when you look at the project",
)
UNKNOWN = GuardRow(
    what="anything else in `.git`; an executable there; a file named like git's settings among references, logs and "
    "so on that does not have their content",
    verdict="held",
    reason="unspill does not know this part of a git directory to be harmless",
)
UNREADABLE = GuardRow(
    what="any of git's files above that can't be read or parsed, or has more than 256 KiB",
    verdict="held",
    reason="unspill can't read it, so it can't tell what git would run",
)
TEMPLATE = GuardRow(
    what="`.tool-versions` with a template",
    verdict="held",
    reason="mise runs its template when you enter the directory",
)
LINK_OUT = GuardRow(
    what="a new symlink that points outside the root, or whose target is unclear (`name/..`); not the "
    "`bin/python` of a virtual environment",
    verdict="held",
    reason="this symlink points outside the project",
)
SECRET = GuardRow(
    what="a file with the name of a secret (`.env`, `.npmrc`, `id_rsa`, ...: see docs/secrets.md) in the top "
    "directory of a root or a directory of `[secrets]`",
    verdict="held",
    reason="this is the place of a secret that commands can't see",
    deleted="held",
)
SECRET_BELOW = GuardRow(
    what="a directory of `[secrets]`, or one above it, that is deleted or replaced",
    verdict="held",
    reason="it may contain secrets that the command could not see",
    deleted="held",
)
PROJECT_MARK = GuardRow(
    what="`.git`, `.hg` or `.jj` in the top directory of a root, if it is replaced",
    verdict="held",
    reason="marks the top of your project; without it, a directory further up may count as the project",
    deleted="held",
)
GONE_WITH_IT = GuardRow(
    what="a directory that contains something whose own deletion is held, or over 500,000 files, if it is replaced",
    verdict="held",
    reason="it contains files that unspill does not delete without your approval",
    deleted="held",
)
OPEN_GIT = GuardRow(
    what="the top directory of a root, `.git` and everything in it, if they become writable for everyone",
    verdict="held",
    reason="lets everyone on this machine put hooks and settings into your repository",
)
CLOSED_ROOT = GuardRow(
    what="the top directory of a root, if you could no longer list or enter it",
    verdict="held",
    reason="locks you out of your own project",
)
REPOSITORY = GuardRow(
    what="a repository further down, `.git` as a directory, if it is replaced, by itself or with a directory above it",
    verdict="flagged",
    reason="deletes a repository and its history",
    deleted="flagged",
)
MODULE = GuardRow(
    what="the repository of a submodule in `.git/modules`, if it is replaced",
    verdict="held",
    reason="deletes a submodule's repository and its history",
    deleted="held",
)
OPEN_TO_ALL = GuardRow(
    what="a file or directory that becomes writable for everyone; a program that gets the set-user or set-group bit",
    verdict="flagged",
    reason="lets others on this machine write to it or run it as you",
)
TODO = GuardRow(
    what="the steps of a rebase that run commands: `.git/rebase-merge/git-rebase-todo`, `.git/sequencer/todo`",
    verdict="flagged",
    reason="contains commands that run when the rebase continues",
)
ADDRESS = GuardRow(
    what="`.git/config`, those of modules, worktrees and bare repositories, files that the live settings include, and "
    "`.gitmodules` with an address that is new or changes; not the first addresses of a repository that is new itself",
    verdict="flagged",
    reason="changes where git fetches from or pushes to",
)
HIDDEN = GuardRow(
    what="`.git/index` that newly marks files as assume-unchanged or skip-worktree; not those that a sparse checkout "
    "leaves out",
    verdict="flagged",
    reason="makes `git status` and `git diff` hide changes",
)
ALTERNATES = GuardRow(
    what="`.git/objects/info/alternates`", verdict="held", reason="makes git read objects from elsewhere"
)
REPLACED_OBJECT = GuardRow(
    what="`.git/refs/replace/*`, `.git/info/grafts`",
    verdict="held",
    reason="makes git show content or history that nobody committed",
)
SHALLOW = GuardRow(
    what="`.git/shallow` of a repository that you had, if it gets another line",
    verdict="held",
    reason="cuts off history, and git's next clean-up deletes what it cut off",
)
EXECUTABLE = GuardRow(
    what="a file that is new and executable, or becomes executable", verdict="flagged", reason="is a new executable"
)
PACKAGES = GuardRow(
    what="the rows above that match by name, and executables, in `node_modules`, `bower_components`, `.venv`, `venv`, "
    "`.tox`, `.nox`, `__pypackages__`, `site-packages`: one line for each such directory",
    verdict="flagged",
    reason="installed packages run when you use them",
)
PARTS_OF_GIT = GuardRow(
    what="in `.git`: objects, references, logs, index, `HEAD` and the like, messages, the state of merges, rebases, "
    "bisections and stashes, `*.sample` hooks, `info/exclude`, worktrees and modules whose pointers stay inside",
    verdict="ordinary",
    reason="git only reads it",
)
RULES = (
    HOOK, SETTINGS, DRIVERS, MODULES, LEADS_OUT, GIT_LINK, COMPLETES, PROGRAM, UNKNOWN, UNREADABLE, TEMPLATE, LINK_OUT,
    SECRET, SECRET_BELOW, PROJECT_MARK, GONE_WITH_IT, OPEN_GIT, CLOSED_ROOT, ALTERNATES, REPLACED_OBJECT, SHALLOW,
    REPOSITORY, MODULE, ADDRESS, HIDDEN, OPEN_TO_ALL, TODO, EXECUTABLE, PACKAGES, PARTS_OF_GIT,
)  # fmt: skip


if TYPE_CHECKING:
    # By the last component: all components that a path has to end with, and the row
    Endings = dict[bytes, list[tuple[list[bytes], GuardRow]]]


class Index:
    """The rows, arranged for a quick look at many paths.

    `parts`, `suffixes` and `stems` are for the first look: a path that shares nothing with them is in no row.
    """

    def __init__(self, rows: tuple[GuardRow, ...], others: frozenset[bytes]) -> None:
        """Arrange rows; `others` are names that are in none and yet worth a second look."""
        self._files: Endings = {}
        self._directories: Endings = {}
        # Directories that rows name only to say where their names lie
        self._above: Endings = {}
        self._last: list[tuple[bytes, GuardRow]] = []
        self.suffixes: dict[bytes, GuardRow] = {}
        self.stems: dict[bytes, GuardRow] = {}
        for row in rows:
            for table, names in ((self._files, row.files), (self._directories, row.directories)):
                for ending in (name.split(b"/") for name in names):
                    table.setdefault(ending[-1], []).append((ending, row))
                    for end in range(1, len(ending)):
                        self._above.setdefault(ending[end - 1], []).append((ending[:end], row))
            self._last += [(ending, row) for ending in row.endings]
            self.suffixes |= dict.fromkeys(row.suffixes, row)
            self.stems |= dict.fromkeys(row.stems, row)
        self._kept = frozenset(
            name.rpartition(b"/")[2] for row in rows if row.deleted == "held" for name in (*row.files, *row.directories)
        )
        self.parts = frozenset(self._files) | frozenset(self._directories) | frozenset(self._above) | others
        self._rows = rows
        self._others = others
        self._aliases: dict[str, str] = {}

    def fold(self, path: bytes) -> bytes:
        """Return a path in the spelling that rows have."""
        names = path.lower().split(b"/")
        if not any(map(is_odd, names)):
            return b"/".join(names)
        return fold(path, self._aliases or self._find_aliases())

    def _find_aliases(self) -> dict[str, str]:
        """Return the names that are held by their short alias; few runs need them."""
        named = (name for row in self._rows if row.verdict == "held" for name in (*row.files, *row.directories))
        self._aliases = {alias_of(name): name.decode("ascii") for name in (*named, *self._others) if b"/" not in name}
        return self._aliases

    def find(self, parts: list[bytes]) -> GuardRow | None:
        """Return the strictest row that a folded path is in."""
        return _strictest(self._matches(parts))

    def find_below(self, parts: list[bytes]) -> GuardRow | None:
        """Return the strictest row whose names would be reached through a link at this folded path."""
        return _strictest([row for ending, row in self._above.get(parts[-1], ()) if parts[-len(ending) :] == ending])

    def find_kept(self, parts: list[bytes]) -> GuardRow | None:
        """Return a row that holds the deletion of this folded path."""
        if parts[-1] not in self._kept:
            return None
        return next((row for row in self._matches(parts) if row.deleted == "held"), None)

    def _matches(self, parts: list[bytes]) -> list[GuardRow]:
        name = parts[-1]
        rows = [row for ending, row in self._files.get(name, ()) if parts[-len(ending) :] == ending]
        for part in sorted(self._directories.keys() & parts, key=parts.index):
            for end in _ends_of(part, parts):
                for ending, row in self._directories[part]:
                    if parts[max(0, end - len(ending)) : end] == ending and not _is_excepted(name, row):
                        rows.append(row)
        stem, dot, _ = name.partition(b".")
        for key, table in ((name.rpartition(b".")[2] if dot else b"", self.suffixes), (stem, self.stems)):
            if key in table:
                rows.append(table[key])
        rows += [row for ending, row in self._last if name.endswith(ending)]
        return rows


INDEX = Index((*HELD, *FLAGGED), GIT_NAMES)


def worst(*opinions: Opinion) -> Opinion:
    """Return the strictest of some verdicts, the first of equals."""
    return max(opinions, key=lambda opinion: _RANK[opinion[0]], default=ORDINARY)


def package_top(parts: list[bytes]) -> int:
    """Return how many components lead to the outermost tree of installed packages, 0 if the path is in none."""
    if PACKAGE_TREES.isdisjoint(parts):
        return 0
    return next(end for end, part in enumerate(parts, 1) if part in PACKAGE_TREES)


def gather(flags: list[tuple[bytes, str]]) -> tuple[tuple[bytes, str], ...]:
    """Make one line of many paths that share a reason and their first component."""
    groups: dict[tuple[bytes, str], list[bytes]] = {}
    for path, reason in flags:
        groups.setdefault((path.partition(b"/")[0], reason), []).append(path)
    lines: list[tuple[bytes, str]] = []
    for (top, reason), paths in groups.items():
        if len(paths) > LINES_AT_MOST:
            lines.append((top, f"{len(paths)} files: {reason}"))
        else:
            lines += [(path, reason) for path in paths]
    return tuple(lines)


def _ends_of(part: bytes, parts: list[bytes]) -> Iterator[int]:
    """Yield how many components lead to each one that is called `part`."""
    end = 0
    for _ in range(parts.count(part)):
        end = parts.index(part, end) + 1
        yield end


def _strictest(rows: list[GuardRow]) -> GuardRow | None:
    return next((row for row in rows if row.verdict == "held"), rows[0] if rows else None)


def _is_excepted(name: bytes, row: GuardRow) -> bool:
    return bool(row.but) and (name in row.but or b"*." + name.rpartition(b".")[2] in row.but)
