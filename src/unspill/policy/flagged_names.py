# SPDX-License-Identifier: Apache-2.0
"""Rows of what is flagged: it runs when a person builds, tests, installs, pushes or asks an agent. Data only."""

from __future__ import annotations

from unspill.policy.row import Row

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
