# SPDX-License-Identifier: Apache-2.0
"""The tables behind the defaults: what is shown of a home directory and of the host, what can't be a root.

Names below the home directory are relative to it. A directory is in the first two tables only if no
credential lives anywhere below it; that is why `.cargo/bin` is there and `.cargo` is not.
"""

from __future__ import annotations

import posixpath

from unspill.policy.paths import contains, lies_beneath, normalise
from unspill.policy.secrets import find_secret

TOOLCHAINS = (
    b".local/bin",
    b".local/lib",
    b".local/pipx/venvs",
    b".local/share/pipx/venvs",
    b".local/share/uv/tools",
    b".local/share/uv/python",
    b".local/share/mise/installs",
    b".local/share/mise/shims",
    b".local/share/rtx/installs",
    b".local/share/rtx/shims",
    b".local/share/fnm/node-versions",
    b".local/share/virtualenvs",
    b".asdf/bin",
    b".asdf/installs",
    b".asdf/lib",
    b".asdf/plugins",
    b".asdf/shims",
    b".bun/bin",
    b".cabal/bin",
    b".cargo/bin",
    b".deno/bin",
    b".dotnet/sdk",
    b".dotnet/shared",
    b".dotnet/host",
    b".elan/bin",
    b".elan/toolchains",
    b".ghcup/bin",
    b".ghcup/ghc",
    b".jenv/shims",
    b".jenv/versions",
    b".juliaup/bin",
    b".julia/juliaup",
    b".local/go",
    b".nodenv/shims",
    b".nodenv/versions",
    b".npm-global/bin",
    b".npm-global/lib",
    b".nvm/versions",
    b".opam/default",
    b".pyenv/bin",
    b".pyenv/libexec",
    b".pyenv/shims",
    b".pyenv/versions",
    b".rbenv/bin",
    b".rbenv/libexec",
    b".rbenv/shims",
    b".rbenv/versions",
    b".rustup/toolchains",
    b".rvm/bin",
    b".rvm/gems",
    b".rvm/rubies",
    b".sdkman/candidates",
    b".virtualenvs",
    b".volta/bin",
    b".volta/tools",
    b"anaconda3",
    b"go/bin",
    b"mambaforge",
    b"micromamba",
    b"miniconda3",
    b"miniforge3",
)

CACHES = (
    b".cache/bazel",
    b".cache/ccache",
    b".cache/composer",
    b".cache/deno",
    b".cache/electron",
    b".cache/go-build",
    b".cache/mypy",
    b".cache/node",
    b".cache/pip",
    b".cache/pnpm",
    b".cache/pre-commit",
    b".cache/pypoetry",
    b".cache/ruff",
    b".cache/sccache",
    b".cache/uv",
    b".cache/yarn",
    b".cache/zig",
    b".bun/install/cache",
    b".cargo/git",
    b".cargo/registry",
    b".ccache",
    b".conan2/p",
    b".gradle/caches",
    b".gradle/wrapper",
    b".ivy2/cache",
    b".julia/compiled",
    b".julia/packages",
    b".local/share/pnpm/store",
    b".m2/repository",
    b".m2/wrapper",
    b".npm/_cacache",
    b".nuget/packages",
    b".yarn/berry/cache",
    b"go/pkg/mod",
)

# Shown as they are. `/opt` is everybody's: it goes through an overlay, which no socket passes.
SOCKET_FREE = (b"/opt",)

# Never taken from the host in any view: fresh, other people's, or a way into the kernel.
NEVER_SHOWN = (
    b"/boot",
    b"/dev",
    b"/home",
    b"/lost+found",
    b"/media",
    b"/mnt",
    b"/proc",
    b"/root",
    b"/run",
    b"/srv",
    b"/sys",
    b"/tmp",
)

# No root, and nothing beneath them either.
SYSTEM_TREES = (
    b"/bin",
    b"/boot",
    b"/dev",
    b"/etc",
    b"/lib",
    b"/lib32",
    b"/lib64",
    b"/libx32",
    b"/lost+found",
    b"/nix",
    b"/proc",
    b"/root",
    b"/run",
    b"/sbin",
    b"/snap",
    b"/sys",
    b"/usr",
    b"/var",
)

# No root themselves, but what lies beneath may be one.
SHARED_PARENTS = (b"/home", b"/media", b"/mnt", b"/opt", b"/run/media", b"/srv", b"/tmp", b"/var/tmp", b"/var/www")

_PROGRAM_DIRECTORIES = (b"bin", b"sbin", b"shims")


def toolchain_candidates(home: bytes, path: bytes = b"") -> tuple[bytes, ...]:
    """Return the directories that are toolchains if they exist: the table, and program directories on `PATH`."""
    found = [posixpath.join(home, name) for name in TOOLCHAINS]
    for entry in path.split(b":"):
        if not entry.startswith(b"/") or b"\0" in entry:
            continue
        programs = normalise(entry)
        if not lies_beneath(programs, home) or posixpath.basename(programs) not in _PROGRAM_DIRECTORIES:
            continue
        if find_secret(programs, home) is None and not any(contains(known, programs) for known in found):
            found.append(programs)
    return tuple(found)


def cache_candidates(home: bytes) -> tuple[bytes, ...]:
    """Return the directories that are tool caches if they exist."""
    return tuple(posixpath.join(home, name) for name in CACHES)
