# SPDX-License-Identifier: Apache-2.0
"""The one table of what is held and what is flagged, and how a path finds its row in it. docs/held.md is made from it.

Held is what runs when a person merely enters, looks at or opens the project; flagged is what runs when they build,
test, install, push or ask an agent. Most rows go by names, which are folded. The rules at the end go by place, content
or kind, and `apply.guard` finds out which changes they mean.
"""

from __future__ import annotations

import json
from sys import stdlib_module_names

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


class PathNames(Record):
    """Names of paths, in the spelling of `INDEX.fold`.

    `files` match the end of a path, `directories` themselves and all that is in them, both wherever they lie and with
    slashes between several components. `patterns` are files with one `*` in their last component. `suffixes` are what
    follows the last dot of a name, `stems` what is before the first, `endings` how a name ends. `but` are names in the
    directories that are not meant.
    """

    files: tuple[bytes, ...] = ()
    directories: tuple[bytes, ...] = ()
    patterns: tuple[bytes, ...] = ()
    suffixes: tuple[bytes, ...] = ()
    stems: tuple[bytes, ...] = ()
    endings: tuple[bytes, ...] = ()
    but: tuple[bytes, ...] = ()


class Origin(PathNames):
    """A program that acts on these names by itself, how that is known, and when it was last seen to.

    `source` is its document or its version. `tried` is the day on which the real program was seen to do it, or who
    tries it again and again; it is empty where only its documents say so.
    """

    tool: str
    source: str
    tried: str = ""


class GuardRow(PathNames):
    """One row: what is meant, the verdict, the reason as a person reads it, and the verdict on a deletion.

    A row without names is a rule, and `what` says in words what it means. A held row says
    where its names come from.
    """

    verdict: Verdict
    reason: str
    what: str = ""
    deleted: Verdict = "ordinary"
    origins: tuple[Origin, ...] = ()

    @property
    def opinion(self) -> Opinion:
        """What a path in this row gets."""
        return self.verdict, self.reason


def _row(verdict: Verdict, reason: str, *origins: Origin, deleted: Verdict = "ordinary", **names: bytes) -> GuardRow:
    """Return a row whose names are words of one text, or come from several tools."""
    split: dict[str, Any] = {key: tuple(text.split()) for key, text in names.items()}
    fields: tuple[str, ...] = PathNames.__match_args__ if origins else ()
    for key in fields:
        split[key] = tuple(name for origin in origins for name in getattr(origin, key))
    return GuardRow(verdict=verdict, reason=reason, deleted=deleted, origins=origins, **split)


def _from(tool: str, source: str, tried: str = "", **names: bytes) -> Origin:
    """Return the names of a tool, which are words of one text."""
    split: dict[str, Any] = {key: tuple(text.split()) for key, text in names.items()}
    return Origin(tool=tool, source=source, tried=tried, **split)


_BY_TESTS = "in every test run"
# It runs when a person merely enters, looks at or opens the project
HELD = (
    _row(
        "held",
        "it configures unspill in this project",
        _from("unspill", "docs/configuration.md", _BY_TESTS, files=b".unspill.toml"),
        deleted="held",
    ),
    _row(
        "held",
        "direnv runs it when you enter the directory",
        _from("direnv", "direnv(1), version 2.32.1", _BY_TESTS, files=b".envrc"),
    ),
    _row(
        "held",
        "autoenv runs it when you enter or leave the directory",
        _from("autoenv", "its README", files=b".autoenv .autoenv.leave"),
        _from("zsh-autoenv", "its README", files=b".autoenv.zsh .autoenv_leave.zsh"),
    ),
    # mise trusts a file by its path, so a trusted one that changes runs its hooks at the next prompt
    _row(
        "held",
        "mise runs its hooks when you enter the directory",
        _from(
            "mise",
            "version 2026.9.15, as `mise hook-env` beside one trusted file",
            "2026-11-16",
            files=b"""
                mise.toml .mise.toml mise.local.toml .mise.local.toml mise/config.toml mise/config.local.toml
                .miserc.toml miserc.toml
                """,
            directories=b".config/mise .mise mise/conf.d",
            patterns=b"mise.*.toml .mise.*.toml mise/config.*.toml",
        ),
        _from(
            "mise, in names that version 2026.9.15 reads no more", "its documents, Configuration", files=b".rtx.toml"
        ),
        _from(
            "mise, for environments in the file that names them",
            "its documents, Config environments",
            patterns=b".miserc.*.toml miserc.*.toml",
        ),
    ),
    _row(
        "held",
        "a hook in your shell acts on it when you enter the directory",
        _from("shadowenv", "its documents, Getting started", directories=b".shadowenv.d"),
        _from(
            "Hermit",
            "its documents, Shell integration",
            files=b"hermit.hcl activate-hermit activate-hermit.fish",
        ),
        _from(
            "pitchfork",
            "its documents, Shell hook",
            files=b"pitchfork.toml pitchfork.local.toml",
        ),
        _from("fnox", "its documents, Shell integration", files=b"fnox.toml", patterns=b"fnox.*.toml"),
        _from("proto", "its documents, proto activate", files=b".prototools", patterns=b".prototools.*"),
        _from("Flox", "its documents, manifest.toml", directories=b".flox"),
        _from("RVM", "its documents, Project .rvmrc", files=b".rvmrc"),
    ),
    _row(
        "held",
        "VS Code can start programs from it when you open the folder",
        _from(
            "VS Code and what is made of it",
            "its documents, Tasks and Workspace Trust",
            directories=b".vscode",
            suffixes=b"code-workspace",
            but=b"extensions.json *.code-snippets",
        ),
    ),
    _row(
        "held",
        "JetBrains editors can start programs from it when you open the folder",
        _from("IntelliJ and its kin", "their documents, Project security", directories=b".idea .run .fleet"),
        _from("Bazel in IntelliJ", "its documents, Import a project", directories=b".ijwb .aswb .clwb .bazelbsp"),
    ),
    _row(
        "held",
        "the editor can start programs from it when you open the folder",
        _from("Kate", "its handbook, Projects", files=b".kateproject"),
        _from("YouCompleteMe", "its README", files=b".ycm_extra_conf.py"),
        _from("Zed", "its documents, Configuring", directories=b".zed"),
        _from("Helix", "its documents, Configuration", directories=b".helix"),
        _from("Nova", "its documents, Project settings", directories=b".nova"),
        _from("Visual Studio", "its documents, tasks.vs.json", directories=b".vs"),
        _from("Theia", "its documents, Preferences", directories=b".theia"),
        _from("Lapce", "its documents, Configuration", directories=b".lapce"),
        _from("Sublime Text", "its documents, Projects", suffixes=b"sublime-project sublime-workspace"),
        _from("Eclipse", "its help, External tools builders", files=b".project", directories=b".externaltoolbuilders"),
        _from("Obsidian", "its help, Plugin security", directories=b".obsidian"),
        _from("Logseq", "its documents, custom.js", files=b"logseq/custom.js"),
    ),
    _row(
        "held",
        "a language server starts programs from it when you open the folder",
        _from("Metals, IntelliJ and others", "the Build Server Protocol, Discovery", directories=b".bsp"),
        _from("SourceKit-LSP", "its documents, buildServer.json", files=b"buildserver.json"),
        _from("rust-analyzer", "its manual, Configuration", files=b"rust-analyzer.toml .rust-analyzer.toml"),
        _from("lua-language-server", "its wiki, Plugins", files=b".luarc.json .luarc.jsonc"),
        _from("Haskell Language Server", "hie-bios, Explicit configuration", files=b"hie.yaml .hie-bios"),
        _from("Merlin", "its wiki, Project configuration", files=b".merlin"),
        _from("Ruby LSP", "its documents, Composed bundle", directories=b".ruby-lsp"),
        _from("neoconf", "its README", files=b".neoconf.json"),
    ),
    _row(
        "held",
        "vim or Emacs runs it when you open a file beside it",
        _from("vim", "version 9.0 with `set exrc`", "2026-11-16", files=b".vimrc _vimrc .exrc"),
        _from("vim", "its help, exrc and runtimepath", files=b"_exrc .gvimrc", directories=b".vim"),
        _from("Neovim", "its help, exrc", files=b".nvimrc .nvim.lua", directories=b".nvim"),
        _from("vim-localvimrc and local_vimrc", "their README", files=b".lvimrc .local.vimrc"),
        _from("lazy.nvim", "its documents, local_spec", files=b".lazy.lua"),
        _from("Emacs", "its manual, Per-directory local variables", files=b".dir-locals.el .dir-locals-2.el"),
    ),
    _row(
        "held",
        "editors and agents build and start a container from it when you open the folder",
        _from(
            "Dev Containers",
            "the specification, devcontainer.json",
            files=b".devcontainer.json",
            directories=b".devcontainer",
        ),
        _from("Gitpod", "its documents, .gitpod.yml", files=b".gitpod.yml"),
        _from("Eclipse Che", "the specification of devfiles", files=b"devfile.yaml .devfile.yaml"),
        _from("CodeSandbox", "its documents, Tasks", directories=b".codesandbox"),
        _from("Firebase Studio", "its documents, dev.nix", directories=b".idx"),
    ),
    _row(
        "held",
        "R runs it when you open the project",
        _from("R", "its help, Startup", files=b".rprofile .rdata .renviron"),
        _from("renv", "its documents, renv::activate", files=b"renv/activate.r"),
    ),
    # The same files keep the rules that bind an agent, so their deletion is held too
    _row(
        "held",
        "agents start servers and hooks from it when they open the project",
        _from(
            "many agents", "the documents of Claude Code, Copilot CLI and Visual Studio", files=b".mcp.json mcp.json"
        ),
        _from("many agents", "the documents of Codex and Amp, Skills", directories=b".agents"),
        _from("Antigravity", "its documents, Rules and workflows", directories=b".agent"),
        _from(
            "Claude Code",
            "its documents, Settings and Hooks",
            files=b".claude.json",
            directories=b".claude .claude-plugin",
        ),
        _from("Cursor", "its documents, Hooks", directories=b".cursor"),
        _from("Codex", "its documents, Configuration", directories=b".codex"),
        _from("Gemini CLI", "its documents, Configuration", directories=b".gemini"),
        _from("Qwen Code", "its documents, Configuration", directories=b".qwen"),
        _from("opencode", "version 1.18.33, a plugin in `.opencode/plugin`", "2026-11-16", directories=b".opencode"),
        _from("opencode", "its documents, Config", files=b"opencode.json opencode.jsonc"),
        _from("Crush", "its README", files=b"crush.json .crush.json", directories=b".crush"),
        _from("aider", "its documents, YAML config file", files=b".aider.conf.yml"),
        _from("Pi", "version 0.73.1, an extension in `.pi/extensions`", "2026-11-16", directories=b".pi"),
        _from("OpenHands", "its documents, Repository customization", directories=b".openhands"),
        _from("Amp", "its manual, Settings and Plugins", directories=b".amp"),
        _from(
            "GitHub Copilot",
            "its documents, Hooks and Language servers",
            files=b".github/lsp.json lsp.json",
            directories=b".github/hooks .github/copilot .github/extensions",
        ),
        _from("Windsurf", "its documents, Cascade hooks", directories=b".windsurf"),
        _from("Roo Code", "its documents, MCP", directories=b".roo"),
        _from("Kilo Code", "its documents, MCP", files=b"kilo.json kilo.jsonc", directories=b".kilocode .kilo"),
        _from("Cline", "its documents, Hooks", directories=b".cline .clinerules/hooks"),
        _from("Kiro", "its documents, Hooks and MCP", directories=b".kiro"),
        _from("Continue", "its documents, Configuration", files=b".continuerc.json", directories=b".continue"),
        _from("Amazon Q", "its documents, MCP", directories=b".amazonq"),
        _from("Augment", "its documents, Hooks", directories=b".augment"),
        _from("Factory", "its documents, Hooks", directories=b".factory"),
        _from("Junie", "its documents, MCP", directories=b".junie"),
        _from("Trae", "its documents, MCP", directories=b".trae"),
        _from("iFlow", "its documents, Hooks", directories=b".iflow"),
        _from("CodeBuddy", "its documents, Hooks", directories=b".codebuddy"),
        _from("Qoder", "its documents, MCP", directories=b".qoder"),
        _from("ZCode", "its documents, Configuration", directories=b".zcode"),
        _from("Grok CLI", "its README", directories=b".grok"),
        _from("Vibe", "its README", directories=b".vibe"),
        _from("gptme", "its documents, Project configuration", files=b"gptme.toml gptme.local.toml"),
        _from("fast-agent", "its documents, Configuration", files=b"fastagent.config.yaml"),
        _from("mcp-agent", "its documents, Configuration", files=b"mcp_agent.config.yaml"),
        _from("Serena", "its documents, Project configuration", directories=b".serena"),
        deleted="held",
    ),
    _row(
        "held",
        "a shell or the desktop runs it at start-up, if this directory is your home or linked to it",
        _from(
            "shells",
            "bash(1), zsh(1), ksh(1), tcsh(1)",
            files=b"""
                .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin
                .zlogout .kshrc .cshrc .tcshrc .login
                """,
            directories=b".config/fish",
        ),
        _from(
            "the desktop",
            "startx(1), systemd(1), the autostart specification",
            files=b".xinitrc .xprofile .xsession .xsessionrc .pam_environment",
            directories=b".config/autostart .config/systemd .config/environment.d",
        ),
        _from("tmux and screen", "tmux(1), screen(1)", files=b".tmux.conf .screenrc"),
        _from("ssh", "ssh_config(5), ProxyCommand", directories=b".ssh"),
    ),
    _row(
        "held",
        "version control runs what it names",
        _from("git", "git-config(1)", _BY_TESTS, files=b".gitconfig", directories=b".config/git"),
        _from("Mercurial", "version 7.2.4, a hook", "2026-11-16", files=b".hg/hgrc"),
        _from("Mercurial", "hgrc(5)", files=b".hgrc .hg/hgrc-not-shared", directories=b".config/hg"),
        _from("Sapling", "its documents, Configuration", files=b".sl/config"),
        _from(
            "Jujutsu",
            "its documents, Config files",
            files=b"""
                .jj/repo/config.toml .jj/config.toml .jj/workspace-config.toml .jj/repo/config-id
                .jj/workspace-config-id
                """,
            directories=b".config/jj",
        ),
        _from("darcs", "its manual, prefs/defaults", files=b"_darcs/prefs/defaults"),
        _from("Pijul", "its manual, Hooks", files=b".pijul/config"),
    ),
)
IN_PROGRAMS = _row("flagged", "is in a directory for programs", directories=b"bin sbin .bin")
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
            devbox.json devenv.yaml pixi.toml guardfile gradle-wrapper.jar buck .buckconfig
            """,
        directories=b".mvn mise-tasks .mise-tasks mise/tasks",
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
        "decides what an install or build fetches and runs",
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
            .irbrc .pryrc .pdbrc .ghci .ocamlinit .iex.exs .rspec .ripgreprc ipython_config.py .swcrc .babelrc
            .mocharc.js .mocharc.cjs
            """,
    ),
    PYTHON_START := _row(
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
            .lefthook.yaml lefthook-local.yml .lefthook-local.yml prek.toml hk.pkl .overcommit.yml .huskyrc .huskyrc.js
            .huskyrc.json simple-git-hooks.json .simple-git-hooks.json captainhook.json grumphp.yml .commitlintrc.js
            .commitlintrc.cjs .releaserc .releaserc.js .czrc
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
    LOCKS := _row(
        "flagged",
        "decides what an install or build fetches and runs",
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
            .terraform-version .ruby-gemset .versions.conf .vfox.toml vfox.toml aqua.yaml pkgx.yaml .pkgx.yaml
            .pdm-python pyvenv.cfg .env .env.local .flaskenv
            """,
        directories=b".direnv",
    ),
    _row(
        "flagged",
        "agents follow it when you ask them something",
        files=b"""
            agents.md agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md crush.md warp.md iflow.md
            codebuddy.md opencode.md .cursorrules .windsurfrules .clinerules .roorules .roomodes .kilocodemodes .rules
            .goosehints .augment-guidelines .openhands_instructions .aider.conf.yaml copilot-instructions.md
            """,
        directories=b".clinerules .github/instructions .github/prompts .github/agents",
    ),
    IN_PROGRAMS,
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
    what="`.git/hooks/*` except `*.sample`; files in the directory that the live `core.hooksPath` or "
    "`init.templateDir` names, in any repository; what a live hook that is a symlink leads to or through",
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
    what="`.gitattributes` and `.git/info/attributes` with a new line that names a driver: `filter=`, `diff=`, "
    "`merge=` or a macro of yours for one, except git's own drivers and `lfs`",
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
TOOL = GuardRow(
    what="a file that a live alias (`alias.x = !...`), `difftool.*.cmd` or `mergetool.*.cmd` names",
    verdict="flagged",
    reason="your git settings run it when you use an alias or a tool of theirs",
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
SOURCED = GuardRow(
    what="a file that a live `.envrc` names, of the project or of a directory above it, or that the `[env]`, `[hooks]` "
    "and `[[watch_files]]` of a live mise configuration in the top directory of a root name; files that those source",
    verdict="held",
    reason="your .envrc or mise settings read it when you enter the directory",
)
LINK_OUT = GuardRow(
    what="a new symlink that points outside the root, or whose target is unclear (`name/..`); not the "
    "`bin/python` of a virtual environment",
    verdict="held",
    reason="this symlink points outside the project",
)
SECRET = GuardRow(
    what="a file with the name of a secret (`.env`, `.npmrc`, `id_rsa`, ...: see docs/secrets.md) in the top "
    "directory of a root or a directory of `[secrets]`, or at a hidden one's place deeper down",
    verdict="held",
    reason="unspill treats a file of this name as a secret",
    deleted="held",
)
SECRET_BELOW = GuardRow(
    what="a directory of `[secrets]` or of hidden secrets, or one above it, that is deleted or replaced",
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
    what="a file or directory that is new and writable for everyone, or becomes so, except a directory with the sticky "
    "bit; a program that gets the set-user or set-group bit",
    verdict="flagged",
    reason="lets others on this machine write to it or run it as you",
)
TODO = GuardRow(
    what="the steps of a rebase that run commands: `.git/rebase-merge/git-rebase-todo`, `.git/sequencer/todo`; a "
    "strategy with a path in it",
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
SHADOWS = GuardRow(
    what="a new reference that git takes for one of yours with the same short name: a tag `main` for a branch `main`",
    verdict="flagged",
    reason="makes a name that you use mean another commit",
)
AUTOSTASH = GuardRow(
    what="`.git/MERGE_AUTOSTASH` and the `autostash` of a rebase",
    verdict="flagged",
    reason="git puts its content into your tree when the merge or rebase ends",
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
    what="a file that is new and executable, or becomes executable, unless git ignored it before the run",
    verdict="flagged",
    reason="is a new executable",
)
PACKAGES = GuardRow(
    what="the rows above that match by name, and executables, in `node_modules`, `bower_components`, `.venv`, `venv`, "
    "`.tox`, `.nox`, `__pypackages__`, `site-packages`: one line for each such directory. Where git ignored the "
    "directory before the run: only if such a file changes that was there before, or one that Python runs when it "
    "starts is added to a directory that was there",
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
    HOOK, SETTINGS, DRIVERS, MODULES, LEADS_OUT, GIT_LINK, COMPLETES, PROGRAM, UNKNOWN, UNREADABLE, TEMPLATE, SOURCED,
    LINK_OUT, SECRET, SECRET_BELOW, PROJECT_MARK, GONE_WITH_IT, OPEN_GIT, CLOSED_ROOT, ALTERNATES, REPLACED_OBJECT,
    SHALLOW, REPOSITORY, MODULE, ADDRESS, HIDDEN, SHADOWS, OPEN_TO_ALL, TODO, AUTOSTASH, TOOL, EXECUTABLE, PACKAGES,
    PARTS_OF_GIT,
)  # fmt: skip


if TYPE_CHECKING:
    # By the last component: all components that a path has to end with, and the row
    Endings = dict[bytes, list[tuple[list[bytes], GuardRow]]]


class Index:
    """The rows, arranged for a quick look at many paths.

    `parts`, `suffixes`, `stems` and `beginnings` of names are for the first look: a path that shares nothing with them
    is in no row.
    """

    def __init__(self, rows: tuple[GuardRow, ...], others: frozenset[bytes]) -> None:
        """Arrange rows; `others` are names that are in none and yet worth a second look."""
        self._files: Endings = {}
        self._directories: Endings = {}
        # Directories that rows name only to say where their names lie
        self._above: Endings = {}
        self._last: list[tuple[bytes, GuardRow]] = []
        # Directories above, how the name begins, how it ends
        self._patterns: list[tuple[list[bytes], bytes, bytes, GuardRow]] = []
        self._suffixes: dict[bytes, GuardRow] = {}
        self.stems: dict[bytes, GuardRow] = {}
        for row in rows:
            for table, names in ((self._files, row.files), (self._directories, row.directories)):
                for ending in (name.split(b"/") for name in names):
                    table.setdefault(ending[-1], []).append((ending, row))
                    self._add_above(ending[:-1], row)
            for *above, name in (pattern.split(b"/") for pattern in row.patterns):
                head, _, tail = name.partition(b"*")
                self._patterns.append((above, head, tail, row))
                self._add_above(above, row)
            self._last += [(ending, row) for ending in row.endings]
            self._suffixes |= dict.fromkeys(row.suffixes, row)
            self.stems |= dict.fromkeys(row.stems, row)
        self._kept = frozenset(
            name.rpartition(b"/")[2] for row in rows if row.deleted == "held" for name in (*row.files, *row.directories)
        )
        self.suffixes = frozenset(self._suffixes)
        self.beginnings = tuple({head for _, head, _, _ in self._patterns})
        self.parts = frozenset(self._files) | frozenset(self._directories) | frozenset(self._above) | others
        self._rows = rows
        self._others = others
        self._aliases: dict[str, str] = {}

    def _add_above(self, above: list[bytes], row: GuardRow) -> None:
        for end in range(1, len(above) + 1):
            self._above.setdefault(above[end - 1], []).append((above[:end], row))

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
        for key, table in ((name.rpartition(b".")[2] if dot else b"", self._suffixes), (stem, self.stems)):
            if key in table:
                rows.append(table[key])
        rows += [row for ending, row in self._last if name.endswith(ending)]
        for above, head, tail, row in self._patterns:
            is_named = name.startswith(head) and name.endswith(tail) and len(name) > len(head) + len(tail)
            if is_named and parts[max(0, len(parts) - 1 - len(above)) : -1] == above:
                rows.append(row)
        return rows


INDEX = Index((*HELD, *FLAGGED), GIT_NAMES)


# What ends a word and what ends a command in a shell
_WORD_ENDS = bytes.maketrans(b"\t\r\"'`<>(){}=,:;&|", b" " * 14 + b"\n" * 3)
# Words of an `.envrc` that read files which it does not name
_READ_BY_DEFAULT = {
    word: tuple(names.split())
    for words, names in {
        b"dotenv dotenv_if_exists": b".env",
        b"flake use_flake": b"flake.nix flake.lock",
        b"nix use_nix": b"shell.nix default.nix",
        b"devenv use_devenv": b"devenv.nix devenv.yaml devenv.lock devenv.local.nix",
        b"devbox use_devbox": b"devbox.json devbox.lock",
        b"guix use_guix": b"guix.scm manifest.scm",
        b"flox use_flox": b".flox/env/manifest.toml",
        b"pipenv layout_pipenv": b"Pipfile Pipfile.lock",
    }.items()
    for word in words.split()
}
# direnv has Python import a module at each prompt, from the directory before its own library
_LAYOUTS_OF_PYTHON = (b"python", b"layout_python", b"pyenv", b"layout_pyenv", b"anaconda", b"poetry", b"uv")
_MODULES = tuple(
    name
    for module in sorted(stdlib_module_names)
    for name in (f"{module}.py".encode(), f"{module}/__init__.py".encode())
)
_SOURCING = frozenset(b"source . source_env source_env_if_exists dotenv dotenv_if_exists".split())
# What mise reads at the prompt of its settings; its tasks run when they are asked for
_MISE_SECTIONS = (b"env", b"hooks", b"watch_files")
MOST_WORDS = 2000


def words_of_shell(text: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the words of an `.envrc`, or of a file that it sources, and whether it sources each.

    Nothing is expanded: of a word that begins with a variable or a command only the path behind it counts.
    """
    for line in text.split(b"\n"):
        comment = 0 if line.startswith(b"#") else line.find(b" #")
        for command in (line if comment < 0 else line[:comment]).translate(_WORD_ENDS).split(b"\n"):
            is_sourced = False
            for word in command.split():
                is_python = word.startswith(_LAYOUTS_OF_PYTHON) and b"layout" in command
                for name in _MODULES if is_python else _READ_BY_DEFAULT.get(word, ()):
                    yield name, not is_python
                yield word.partition(b"/")[2] if word.startswith(b"$") else word, is_sourced
                if word.startswith(b"/"):
                    yield word.lstrip(b"/"), is_sourced
                is_sourced = is_sourced or word in _SOURCING


def words_of_nix(text: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the other Nix files that one names, all of which are read with it."""
    for line in text.split(b"\n"):
        for word in line.partition(b"#")[0].translate(_WORD_ENDS).split():
            if word.endswith(b".nix"):
                yield word, True


def words_of_mise(text: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the words of a configuration of mise that may be paths which it reads at the prompt."""
    section = b""
    for line in map(bytes.strip, text.split(b"\n")):
        if line.startswith(b"["):
            section = line.strip(b"[] ")
        if (section or line).startswith(_MISE_SECTIONS):
            for word in line.partition(b" #")[0].translate(_WORD_ENDS, b"[]").split():
                yield word, b"source" in line


# What unspill tells of once for each content: rows that go by name, and executables
TOLD_ONCE = frozenset(row.reason for row in (*FLAGGED, EXECUTABLE))
# No plain version has one of these: an address, a path, another name for a package, an entry point, a variable
_BEYOND_VERSIONS = frozenset(":/@\\#%$")
_LONGEST_VERSION = 200
_ENDS_OF_ADDRESSES = frozenset(" \t\r\n\"'`<>(),;[]{}")
_ARCHIVES = (".tgz", ".whl", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip", ".crate", ".gem")
# What lock files call packages that come from no registry
_OTHER_SOURCES = tuple(
    "file: link: portal: patch: exec: github: gitlab: bitbucket: gist: git@ git: editable directory path".split()
)
_JSON_MANIFESTS = (b"package.json", b"composer.json")
_LISTS = (b"requirements", b"constraints", b"dev-requirements", b"test-requirements")


def meaning_of_manifest(name: bytes, content: bytes) -> bytes:
    """Return a content without what only says how it is written: JSON that was formatted anew is no news."""
    if name.lower() not in _JSON_MANIFESTS:
        return content
    try:
        return json.dumps(json.loads(content), sort_keys=True).encode()
    except (ValueError, RecursionError):
        return content


def code_of_manifest(name: bytes, content: bytes) -> str | None:
    """Return what a package manifest or lock file says besides names and versions of packages; None for other files.

    Of a lock file that is where packages come from, and which have install scripts. Nothing here is exact: what is in
    doubt counts as code.
    """
    name = name.lower()
    text = content.decode("utf-8", "surrogateescape")
    if name in LOCKS.files:
        return _code_of_lock(text)
    if name in _JSON_MANIFESTS:
        return _code_of_json(text)
    if name in (b"pyproject.toml", b"cargo.toml", b"pipfile"):
        return _code_of_toml(text)
    if name.startswith(_LISTS) and name.endswith((b".txt", b".in")):
        return "\n".join(line for line in text.splitlines() if not _is_plain_requirement(line))
    return None


def _is_plain_version(value: object) -> bool:
    return isinstance(value, str) and len(value) < _LONGEST_VERSION and _BEYOND_VERSIONS.isdisjoint(value)


def _is_plain_requirement(line: str) -> bool:
    words = line.partition(" #")[0].removesuffix("\\").split()
    named = [word for word in words if not (word.startswith("--hash=sha") and "/" not in word)]
    is_option = any(word.startswith("-") for word in named)
    return not is_option and _is_plain_version(" ".join(named)) and not line.strip().endswith(_ARCHIVES)


def _code_of_json(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(found, dict):
        return text
    for key, value in found.items():
        if (key.endswith("ependencies") or key in ("require", "require-dev")) and isinstance(value, dict):
            found[key] = {package: spec for package, spec in value.items() if not _is_plain_version(spec)}
    found.pop("version", None)
    return json.dumps({key: value for key, value in found.items() if value != {}}, sort_keys=True)


def _code_of_toml(text: str) -> str:
    """Return the lines that are no versions. Nothing parses it: a hostile file could take all memory that there is."""
    if '"""' in text or "'''" in text:
        return text
    kept, header, is_list = [], "", False
    for line in map(str.strip, text.splitlines()):
        key, equals, value = (part.strip() for part in line.partition("="))
        if line.startswith("["):
            is_plain = line.endswith("]") and not {'"', "'", "#"} & set(line)
            header, is_list = line.strip("[] ") if is_plain else "", False
        elif is_list and (line == "]" or _is_quoted_version(line.removesuffix(","))):
            is_list = line != "]"
            continue
        elif equals and value == "[":
            is_list = (header, key) == ("project", "dependencies")
            is_list = is_list or header in ("project.optional-dependencies", "dependency-groups")
        elif equals and _is_quoted_version(value) and _is_version_of_package(header, key):
            continue
        kept.append(line)
    return "\n".join(filter(None, kept))


def _is_version_of_package(header: str, key: str) -> bool:
    is_own = key == "version" and header in ("project", "package", "tool.poetry")
    return is_own or header in ("packages", "dev-packages") or header.endswith("dependencies")


def _is_quoted_version(word: str) -> bool:
    word = word.strip()
    return len(word) > 1 and word[0] == word[-1] == '"' and '"' not in word[1:-1] and _is_plain_version(word)


def _code_of_lock(text: str) -> str:
    # An escape may hide an address
    if "\\" in text:
        return text
    others = {line for line in text.splitlines() if any(source in line for source in _OTHER_SOURCES)}
    return "\n".join(sorted({*_origins(text), *_install_scripts(text), *others}))


def _origins(text: str) -> Iterator[str]:
    """Yield where a lock file fetches from: the host of an archive, all of any other address."""
    at = text.find("://")
    while at >= 0:
        start = end = at
        while start and text[start - 1] not in _ENDS_OF_ADDRESSES:
            start -= 1
        while end < len(text) and text[end] not in _ENDS_OF_ADDRESSES:
            end += 1
        address = text[start:end].partition("#")[0]
        scheme, _, rest = address.partition("://")
        yield f"{scheme}://{rest.partition('/')[0]}" if rest.endswith(_ARCHIVES) else address
        at = text.find("://", end)


def _install_scripts(text: str) -> list[str]:
    """Return the packages that npm's lock file says to have install scripts."""
    if "hasInstallScript" not in text:
        return []
    try:
        packages = json.loads(text)["packages"]
        return [name for name, entry in packages.items() if entry.get("hasInstallScript")]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return [text]


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
