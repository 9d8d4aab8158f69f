# SPDX-License-Identifier: Apache-2.0
"""Which paths run something by their name alone: the rows of the table in docs/held.md, and how a path finds its row.

What git runs is decided by place and content: see `gitpaths`, `gitkeys` and `gitfiles`. Names in rows are folded.

MERGED
[row] A row of the table of held and flagged paths: names, a verdict, and the reason as a person reads it.

[held_names] Rows of what is held: it runs when a person merely enters, looks at or opens the project.

Data only. The agents' rows are held when deleted too, because the same files keep the rules that bind an agent.

[flagged_names] Rows of what is flagged: it runs when a person builds, tests, installs, pushes or asks an agent. Data only.

[other_rows] Rows of what is decided by place, content or kind instead of a name: git's own files, links, executables.

Data only; `apply.guard` finds out which row a change is in. `what` and the reasons stand in docs/held.md as they are.
"""

from __future__ import annotations

from unspill.model.record import Record
from unspill.policy.git import GIT_NAMES
from unspill.policy.paths import alias_of, fold, is_odd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    Verdict = Literal["ordinary", "flagged", "held"]


class Row(Record):
    """Names that get one verdict, and the reason as a person reads it.

    `files` match the end of a path, `directories` themselves and all that is in them, both wherever they lie and with
    slashes between several components. `suffixes` are what follows the last dot of a name, `stems` what is before the
    first, `endings` how a name ends. `but` are names in the directories that the row does not mean. `deleted` is the
    verdict on a deletion.
    """

    verdict: Verdict
    reason: str
    files: tuple[bytes, ...] = ()
    directories: tuple[bytes, ...] = ()
    suffixes: tuple[bytes, ...] = ()
    stems: tuple[bytes, ...] = ()
    endings: tuple[bytes, ...] = ()
    but: tuple[bytes, ...] = ()
    deleted: Verdict = "ordinary"


HELD = (
    Row(
        verdict="held",
        reason="unspill itself obeys it in this project",
        files=(b".unspill.toml",),
        deleted="held",
    ),
    Row(
        verdict="held",
        reason="direnv runs it when you enter the directory",
        files=(b".envrc",),
    ),
    Row(
        verdict="held",
        reason="autoenv runs it when you enter or leave the directory",
        files=(b".autoenv", b".autoenv.zsh", b".autoenv_leave.zsh", b".autoenv.leave"),
    ),
    # mise trusts a file by its path, so a trusted one that changes runs its hooks at the next prompt
    Row(
        verdict="held",
        reason="mise runs its hooks when you enter the directory",
        files=(
            b"mise.toml",
            b".mise.toml",
            b"mise.local.toml",
            b".mise.local.toml",
            b".config/mise.toml",
            b".config/mise.local.toml",
            b".rtx.toml",
        ),
        directories=(b".config/mise", b".mise"),
    ),
    Row(
        verdict="held",
        reason="VS Code starts programs by it when you open the folder",
        directories=(b".vscode",),
        suffixes=(b"code-workspace",),
        but=(b"extensions.json", b"*.code-snippets"),
    ),
    Row(
        verdict="held",
        reason="JetBrains editors start programs by it when you open the folder",
        directories=(b".idea", b".run", b".fleet"),
    ),
    Row(
        verdict="held",
        reason="the editor starts programs by it when you open the folder",
        directories=(b".zed", b".helix", b".nova", b".vs", b".theia", b".lapce"),
        files=(b".kateproject", b".ycm_extra_conf.py"),
        suffixes=(b"sublime-project", b"sublime-workspace"),
    ),
    Row(
        verdict="held",
        reason="vim or Emacs runs it when you open a file beside it",
        files=(
            b".vimrc",
            b"_vimrc",
            b".exrc",
            b"_exrc",
            b".gvimrc",
            b".nvimrc",
            b".nvim.lua",
            b".lvimrc",
            b".local.vimrc",
            b".dir-locals.el",
            b".dir-locals-2.el",
        ),
        directories=(b".vim", b".nvim"),
    ),
    Row(
        verdict="held",
        reason="editors and agents build and start a machine by it when you open the folder",
        files=(b".devcontainer.json",),
        directories=(b".devcontainer",),
    ),
    Row(
        verdict="held",
        reason="R runs it when you open the project",
        files=(b".rprofile", b".rdata"),
    ),
    Row(
        verdict="held",
        reason="agents start servers and hooks by it when they open the project",
        files=(
            b".mcp.json",
            b"mcp.json",
            b".claude.json",
            b"opencode.json",
            b"opencode.jsonc",
            b"crush.json",
            b".crush.json",
            b".aider.conf.yml",
        ),
        directories=(
            b".claude",
            b".claude-plugin",
            b".cursor",
            b".codex",
            b".gemini",
            b".qwen",
            b".opencode",
            b".windsurf",
            b".roo",
            b".cline",
            b".kiro",
            b".continue",
            b".amazonq",
            b".augment",
            b".factory",
            b".junie",
            b".trae",
            b".crush",
            b".agents",
            b".github/hooks",
        ),
        deleted="held",
    ),
    Row(
        verdict="held",
        reason="a shell or the desktop runs it when it starts, if this is or is linked to your home",
        files=(
            b".bashrc",
            b".bash_profile",
            b".bash_login",
            b".bash_logout",
            b".bash_aliases",
            b".profile",
            b".zshrc",
            b".zshenv",
            b".zprofile",
            b".zlogin",
            b".zlogout",
            b".kshrc",
            b".cshrc",
            b".tcshrc",
            b".login",
            b".xinitrc",
            b".xprofile",
            b".xsession",
            b".xsessionrc",
            b".pam_environment",
            b".tmux.conf",
            b".screenrc",
        ),
        directories=(b".config/fish", b".config/autostart", b".config/systemd", b".config/environment.d", b".ssh"),
    ),
    Row(
        verdict="held",
        reason="git, Mercurial or Jujutsu runs what it names",
        files=(b".gitconfig", b".hgrc", b".hg/hgrc", b".hg/hgrc-not-shared"),
        directories=(b".config/git", b".config/hg", b".config/jj"),
    ),
    Row(
        verdict="held",
        reason="Jujutsu runs what it names",
        files=(
            b".jj/repo/config.toml",
            b".jj/config.toml",
            b".jj/workspace-config.toml",
            b".jj/repo/config-id",
            b".jj/workspace-config-id",
        ),
    ),
)


FLAGGED = (
    Row(
        verdict="flagged",
        reason="runs when you build",
        files=tuple(
            b"""
            justfile .justfile build.rs build.zig build.xml build.sbt pom.xml meson.build meson_options.txt sconstruct
            sconscript wscript configure configure.ac configure.in autogen.sh cmakelists.txt cmakepresets.json
            build.bazel workspace workspace.bazel module.bazel .bazelrc tiltfile earthfile vagrantfile procfile
            skaffold.yaml gradlew gradle.properties gradle-wrapper.properties mvnw maven-wrapper.properties
            rust-toolchain rust-toolchain.toml clippy.toml .cargo/config .cargo/config.toml cargo.toml go.mod go.work
            package.swift rebar.config mix.exs stack.yaml setup.hs dune-project directory.build.props
            directory.build.targets taskfile.yml taskfile.yaml fabfile.py tasks.py flake.nix shell.nix default.nix
            devbox.json buck .buckconfig
            """.split()
        ),
        suffixes=tuple(
            b"mk gradle kts cmake bzl csproj fsproj vbproj vcxproj sln targets gemspec podspec cabal nix".split()
        ),
        stems=tuple(b"makefile gnumakefile rakefile gulpfile gruntfile jakefile dockerfile containerfile".split()),
    ),
    Row(
        verdict="flagged",
        reason="runs when you start its services",
        files=(b"compose.yaml", b"compose.yml", b"compose.override.yaml", b"compose.override.yml"),
        suffixes=(b"dockerfile", b"containerfile", b"service", b"desktop"),
        stems=(b"docker-compose",),
    ),
    Row(
        verdict="flagged",
        reason="runs when you install or build the package",
        files=tuple(
            b"""
            package.json pyproject.toml setup.py setup.cfg manifest.in pipfile .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs
            pnpmfile.cjs pnpm-workspace.yaml bunfig.toml deno.json deno.jsonc binding.gyp pip.conf .pypirc .condarc
            environment.yml environment.yaml gemfile podfile composer.json project.json lerna.json nx.json turbo.json
            nuget.config .lfsconfig requirements.txt requirements.in requirements-dev.txt requirements-test.txt
            dev-requirements.txt test-requirements.txt requirements_dev.txt constraints.txt
            """.split()
        ),
        directories=(b".yarn",),
    ),
    Row(
        verdict="flagged",
        reason="runs when you test, check or format",
        files=tuple(
            b"""
            conftest.py tox.ini noxfile.py pytest.ini .pytest.ini mypy.ini .mypy.ini .pylintrc pylintrc .flake8
            .coveragerc .eslintrc.js .eslintrc.cjs .prettierrc.js .prettierrc.cjs .prettierrc.mjs .babelrc.js
            .stylelintrc.js .lintstagedrc .lintstagedrc.js .lintstagedrc.json .rubocop.yml .clangd .gdbinit .lldbinit
            .irbrc .pryrc .ripgreprc ipython_config.py .swcrc .babelrc .mocharc.js .mocharc.cjs
            """.split()
        ),
    ),
    Row(
        verdict="flagged",
        reason="Python runs it whenever it starts with this directory on its path",
        files=(b"sitecustomize.py", b"usercustomize.py"),
        suffixes=(b"pth",),
    ),
    Row(
        verdict="flagged",
        reason="runs when you commit or push, if its hooks are installed",
        files=tuple(
            b"""
            .pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml lefthook.yaml .lefthook.yml lefthook.toml
            .overcommit.yml .huskyrc .huskyrc.js .huskyrc.json .releaserc .releaserc.js .czrc
            """.split()
        ),
        directories=(b".husky", b".githooks", b".git-hooks", b".lefthook"),
    ),
    Row(
        verdict="flagged",
        reason="runs in your continuous integration",
        files=tuple(
            b"""
            .gitlab-ci.yml .travis.yml appveyor.yml .appveyor.yml azure-pipelines.yml bitbucket-pipelines.yml
            .drone.yml .woodpecker.yml cloudbuild.yaml .cirrus.yml buildspec.yml action.yml action.yaml
            """.split()
        ),
        directories=tuple(
            b"""
            .github/workflows .github/actions .gitlab .circleci .buildkite .woodpecker .forgejo/workflows
            .gitea/workflows .azure-pipelines .ci
            """.split()
        ),
        stems=(b"jenkinsfile",),
    ),
    Row(
        verdict="flagged",
        reason="decides what the next install fetches and runs",
        files=tuple(
            b"""
            package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock bun.lockb deno.lock poetry.lock
            uv.lock pdm.lock pipfile.lock pylock.toml cargo.lock go.sum go.work.sum gemfile.lock composer.lock
            flake.lock mix.lock gradle.lockfile packages.lock.json podfile.lock conda-lock.yml mise.lock
            module.bazel.lock package.resolved pubspec.lock
            """.split()
        ),
    ),
    Row(
        verdict="flagged",
        reason="chooses which interpreter or tool you run",
        files=tuple(
            b"""
            .tool-versions .python-version .node-version .nvmrc .ruby-version .java-version .go-version .sdkmanrc
            .terraform-version pyvenv.cfg .env .env.local .flaskenv
            """.split()
        ),
        directories=(b".direnv",),
    ),
    Row(
        verdict="flagged",
        reason="agents follow it when you ask them something",
        files=tuple(
            b"""
            agents.md agents.override.md claude.md claude.local.md gemini.md qwen.md .cursorrules .windsurfrules
            .clinerules .roorules .goosehints .aider.conf.yaml copilot-instructions.md
            """.split()
        ),
        directories=(b".clinerules", b".github/instructions", b".github/prompts", b".github/agents"),
    ),
    Row(
        verdict="flagged",
        reason="is in a directory of programs",
        directories=(b"bin", b"sbin", b".bin"),
    ),
)

# Programs as configuration: `vite.config.ts` and the many like it
CONFIG_SCRIPTS = Row(
    verdict="flagged",
    reason="runs when you build or test",
    endings=tuple(b".config." + suffix for suffix in b"js cjs mjs jsx ts cts mts tsx".split()),
)


class OtherRow(Record):
    """One row: what is meant, the verdict, the reason, and the verdict on a deletion."""

    what: str
    verdict: Verdict
    reason: str
    deleted: Verdict = "ordinary"

    @property
    def opinion(self) -> tuple[Verdict, str]:
        """What a path in this row gets."""
        return self.verdict, self.reason


HOOK = OtherRow(
    what="`.git/hooks/*` but `*.sample`; what is in the directory that the live `core.hooksPath` names, or what a live "
    "hook is a link to",
    verdict="held",
    reason="git runs it by itself: a hook",
    deleted="flagged",
)
SETTINGS = OtherRow(
    what="`.git/config`, `.git/config.worktree`, those of modules, worktrees and bare repositories, and files that "
    "the live settings include, where a key changes that is not in the list below",
    verdict="held",
    reason="changes settings that git acts on",
    deleted="held",
)
DRIVERS = OtherRow(
    what="`.gitattributes` and `.git/info/attributes` with a new line that names a driver: `filter=`, `diff=` or "
    "`merge=`, but not git's own ones and not `lfs`",
    verdict="held",
    reason="makes git run a filter, diff or merge driver on files",
)
MODULES = OtherRow(
    what="`.gitmodules` with a command, or an address or path that is no plain one or leaves the project",
    verdict="held",
    reason="changes modules in a way that git acts on",
)
LEADS_OUT = OtherRow(
    what="`.git` as a file, `gitdir`, `commondir`, `.hg/sharedpath`, `.jj/repo` and `git_target` that lead out of the "
    "root, or to anything but the repository of a worktree",
    verdict="held",
    reason="leads git out of the project",
)
GIT_LINK = OtherRow(
    what="`.git`, `.gitattributes` or `.gitmodules` as a link; any link in a git directory but `HEAD`; a link in "
    "place of the work tree that the live `core.worktree` names, or above it",
    verdict="held",
    reason="git follows this link",
)
COMPLETES = OtherRow(
    what="`HEAD`, `objects`, `refs`, `commondir` or a `.git` file that makes a repository of a directory in which "
    "settings, attributes or hooks lie already, or of one behind a link",
    verdict="held",
    reason="makes a git directory of what lies there, with settings or hooks that git runs",
)
PROGRAM = OtherRow(
    what="a file that the live settings run: `core.fsmonitor`, `filter.*`, `diff.*`, `core.pager` and the like",
    verdict="held",
    reason="your git settings run it when you look at the project",
)
UNKNOWN = OtherRow(
    what="anything else in `.git`; an executable there; what is called like git's settings among references, logs and "
    "the like and is none by its content",
    verdict="held",
    reason="not a part of a git directory that is known to be harmless",
)
UNREADABLE = OtherRow(
    what="any of git's files above that can't be read or parsed, or has more than 256 KiB",
    verdict="held",
    reason="can't be read, so nobody knows what git would run",
)
TEMPLATE = OtherRow(
    what="`.tool-versions` with a template",
    verdict="held",
    reason="mise runs what its template says when you enter the directory",
)
LINK_OUT = OtherRow(
    what="a new link that leads out of the root, or whose text does not say where it leads (`name/..`); not the "
    "`bin/python` of a virtual environment",
    verdict="held",
    reason="a link that leads out of the project",
)
SECRET = OtherRow(
    what="a file by the name of a secret (`.env`, `.npmrc`, `id_rsa`, ...: the table of docs/secrets.md) in the top "
    "directory of a root or a directory of `[secrets]`",
    verdict="held",
    reason="is where a secret of yours belongs, which no command sees",
    deleted="held",
)
SECRET_BELOW = OtherRow(
    what="a directory of `[secrets]`, or one above it, that is deleted or replaced",
    verdict="held",
    reason="in it may lie secrets of yours, which the command did not see",
    deleted="held",
)
PROJECT_MARK = OtherRow(
    what="`.git`, `.hg` or `.jj` in the top directory of a root, if it is replaced",
    verdict="held",
    reason="marks where your project ends; without it a directory further up may be taken for the project",
    deleted="held",
)
GONE_WITH_IT = OtherRow(
    what="a directory in which anything lies whose own deletion is held, or more than 500,000 files, if it is replaced",
    verdict="held",
    reason="with this directory goes what is not deleted without your consent",
    deleted="held",
)
OPEN_GIT = OtherRow(
    what="the top directory of a root, `.git` and what is in it, that become writable for everybody",
    verdict="held",
    reason="lets everybody on this machine put hooks and settings into your repository",
)
CLOSED_ROOT = OtherRow(
    what="the top directory of a root that you could not list or enter any more",
    verdict="held",
    reason="locks you out of your own project",
)
REPOSITORY = OtherRow(
    what="a repository further down, `.git` as a directory, if it is replaced, by itself or with a directory above it",
    verdict="flagged",
    reason="a repository goes, with its history",
    deleted="flagged",
)
MODULE = OtherRow(
    what="the repository of a submodule in `.git/modules`, if it is replaced",
    verdict="held",
    reason="the repository of a submodule goes, with its history",
    deleted="held",
)
OPEN_TO_ALL = OtherRow(
    what="a file or directory that becomes writable for everybody; a program that gets the set-user or set-group bit",
    verdict="flagged",
    reason="lets others on this machine write to it or run it as you",
)
TODO = OtherRow(
    what="the steps of a rebase that run commands: `.git/rebase-merge/git-rebase-todo`, `.git/sequencer/todo`",
    verdict="flagged",
    reason="has commands that run when the rebase goes on",
)
ALTERNATES = OtherRow(
    what="`.git/objects/info/alternates`",
    verdict="held",
    reason="makes git read objects from elsewhere",
)
REPLACED_OBJECT = OtherRow(
    what="`.git/refs/replace/*`, `.git/info/grafts`",
    verdict="held",
    reason="makes git show another content or history than the one that was committed",
)
SHALLOW = OtherRow(
    what="`.git/shallow` of a repository that you had, if it gets another line",
    verdict="held",
    reason="cuts history off, and git's next cleaning removes what lies behind",
)
EXECUTABLE = OtherRow(
    what="a file that is new and executable, or becomes executable",
    verdict="flagged",
    reason="is a new executable",
)
PACKAGES = OtherRow(
    what="the rows above that go by name, and executables, in `node_modules`, `bower_components`, `.venv`, `venv`, "
    "`.tox`, `.nox`, `__pypackages__`, `site-packages`: one line for each such directory",
    verdict="flagged",
    reason="installed packages run when you use them",
)
PARTS_OF_GIT = OtherRow(
    what="in `.git`: objects, references, logs, index, `HEAD` and the like, messages, the state of merges, rebases, "
    "bisections and stashes, `*.sample` hooks, `info/exclude`, worktrees and modules whose pointers stay inside",
    verdict="ordinary",
    reason="git only reads it",
)
OTHERS = (
    HOOK, SETTINGS, DRIVERS, MODULES, LEADS_OUT, GIT_LINK, COMPLETES, PROGRAM, UNKNOWN, UNREADABLE, TEMPLATE, LINK_OUT,
    SECRET, SECRET_BELOW, PROJECT_MARK, GONE_WITH_IT, OPEN_GIT, CLOSED_ROOT, ALTERNATES, REPLACED_OBJECT, SHALLOW,
    REPOSITORY, MODULE, OPEN_TO_ALL, TODO, EXECUTABLE, PACKAGES, PARTS_OF_GIT,
)  # fmt: skip


# Where package managers put what they install; nobody opens these as a project of their own
PACKAGE_TREES = frozenset(b"node_modules bower_components .venv venv .tox .nox __pypackages__ site-packages".split())
# More paths than this with one reason below one directory become one line
LINES_AT_MOST = 20


class Index:
    """The rows, arranged for a quick look at many paths.

    `parts`, `suffixes` and `stems` are for the first look: a path that shares nothing with them is in no row.
    """

    def __init__(self, rows: tuple[Row, ...], others: frozenset[bytes]) -> None:
        """Arrange rows; `others` are names that are in none and yet worth a second look."""
        self._files: dict[bytes, list[tuple[list[bytes], Row]]] = {}
        self._directories: dict[bytes, list[tuple[list[bytes], Row]]] = {}
        self._endings: list[tuple[bytes, Row]] = []
        self.suffixes: dict[bytes, Row] = {}
        self.stems: dict[bytes, Row] = {}
        for row in rows:
            for table, names in ((self._files, row.files), (self._directories, row.directories)):
                for name in names:
                    ending = name.split(b"/")
                    table.setdefault(ending[-1], []).append((ending, row))
            self._endings += [(ending, row) for ending in row.endings]
            self.suffixes |= dict.fromkeys(row.suffixes, row)
            self.stems |= dict.fromkeys(row.stems, row)
        self._above = self._find_above(rows)
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

    def _find_above(self, rows: tuple[Row, ...]) -> dict[bytes, list[tuple[list[bytes], Row]]]:
        """Arrange the directories that rows name only to say where their names lie."""
        found: dict[bytes, list[tuple[list[bytes], Row]]] = {}
        for row in rows:
            for name in (*row.files, *row.directories):
                names = name.split(b"/")
                for end in range(1, len(names)):
                    found.setdefault(names[end - 1], []).append((names[:end], row))
        return found

    def find(self, parts: list[bytes]) -> Row | None:
        """Return the strictest row that a folded path is in."""
        return _strictest(self._matches(parts))

    def find_below(self, parts: list[bytes]) -> Row | None:
        """Return the strictest row whose names would be reached through a link at this folded path."""
        return _strictest([row for ending, row in self._above.get(parts[-1], ()) if parts[-len(ending) :] == ending])

    def find_kept(self, parts: list[bytes]) -> Row | None:
        """Return a row that holds the deletion of this folded path."""
        if parts[-1] not in self._kept:
            return None
        return next((row for row in self._matches(parts) if row.deleted == "held"), None)

    def _matches(self, parts: list[bytes]) -> list[Row]:
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
        rows += [row for ending, row in self._endings if name.endswith(ending)]
        return rows


INDEX = Index((*HELD, *FLAGGED, CONFIG_SCRIPTS), GIT_NAMES)


def _ends_of(part: bytes, parts: list[bytes]) -> Iterator[int]:
    """Yield how many components lead to each one that is called `part`."""
    end = 0
    for _ in range(parts.count(part)):
        end = parts.index(part, end) + 1
        yield end


def _strictest(rows: list[Row]) -> Row | None:
    return next((row for row in rows if row.verdict == "held"), rows[0] if rows else None)


def _is_excepted(name: bytes, row: Row) -> bool:
    return bool(row.but) and (name in row.but or b"*." + name.rpartition(b".")[2] in row.but)


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
