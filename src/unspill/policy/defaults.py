# SPDX-License-Identifier: Apache-2.0
"""The tables behind the defaults: what is shown of a home directory and of the host, what can't be a root.

Names below the home directory are relative to it. A directory is in the first two tables only if no
credential lives anywhere below it; that is why `.cargo/bin` is there and `.cargo` is not.

MERGED
[environ] Which environment variables a sandbox may have: by name, never by value.

Three answers: allowed by default, allowed because the person named it, refused whoever asks.

[mounted] Which directories of the host a rootfs may show besides its own, and at which places.

What is private stays private under another name, too: a place inside says nothing about what is shown there.

[roots] Which directories may be writable roots, and how several become a set without overlaps.

Roots come from the command line or the person's configuration, never from a symlink in a project and never from a
model. Paths are resolved before they get here: what is judged is where a directory really lies.
"""

from __future__ import annotations

import posixpath

from unspill.errors import RootRefused
from unspill.policy.paths import (
    contains,
    lies_beneath,
    normalise,
    show,
)
from unspill.policy.secrets import SYSTEM_SECRETS, find_secret, home_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


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


ALLOWED_VARIABLES = frozenset(
    """
    PATH HOME USER LOGNAME SHELL TERM COLORTERM TZ LANG LANGUAGE
    NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE COLUMNS LINES CI
    CC CXX CPP AR CFLAGS CXXFLAGS CPPFLAGS LDFLAGS PKG_CONFIG_PATH SOURCE_DATE_EPOCH
    CARGO_HOME RUSTUP_HOME RUSTUP_TOOLCHAIN RUST_BACKTRACE GOPATH GOROOT GOCACHE GOMODCACHE
    JAVA_HOME NODE_ENV NVM_DIR PYENV_ROOT PYENV_VERSION SDKMAN_DIR VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV
    PYTHONDONTWRITEBYTECODE PYTHONHASHSEED PYTHONUNBUFFERED PYTHONUTF8
    """.split()
)
ALLOWED_PREFIXES = ("LC_",)

# Each makes a program run something before what it was started for, or changes how it finds its code.
REFUSED = frozenset(
    """
    BASH_ENV BASHOPTS ENV GCONV_PATH GLIBC_TUNABLES IFS LOCPATH NLSPATH PERL5OPT PROMPT_COMMAND PS4
    PYTHONHOME PYTHONINSPECT PYTHONSTARTUP RUBYOPT SHELLOPTS
    """.split()
)
REFUSED_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_")

# Secrets, and doors to services outside. Passed on only if the person's configuration names them exactly.
PRIVATE = frozenset("SSH_AUTH_SOCK SSH_AGENT_PID GPG_AGENT_INFO XAUTHORITY DISPLAY WAYLAND_DISPLAY".split())
PRIVATE_PREFIXES = ("DBUS_", "XDG_")
PRIVATE_SUFFIXES = (
    "_KEY",
    "_TOKEN",
    "_SECRET",
    "_PASSWORD",
    "_PASSWD",
    "_PASS",
    "_PASSPHRASE",
    "_CREDENTIALS",
    "_PAT",
    "_AUTH",
)


def is_refused_variable(name: str) -> bool:
    """Tell whether a variable of this name never enters a sandbox."""
    return name in REFUSED or name.startswith(REFUSED_PREFIXES)


def is_private_variable(name: str) -> bool:
    """Tell whether only its exact name in the person's configuration lets it in."""
    upper = name.upper()
    return upper in PRIVATE or upper.startswith(PRIVATE_PREFIXES) or upper.endswith(PRIVATE_SUFFIXES)


def is_variable_name(name: str) -> bool:
    """Tell whether a program could have a variable of this name."""
    return bool(name) and "=" not in name and "\0" not in name


def is_allowed_variable(name: str, configured: tuple[str, ...]) -> bool:
    """Tell whether the caller's variable may enter. `configured` holds names; a last `*` stands for any rest."""
    if not is_variable_name(name) or is_refused_variable(name):
        return False
    if name in configured:
        return True
    if is_private_variable(name):
        return False
    if name in ALLOWED_VARIABLES or name.startswith(ALLOWED_PREFIXES):
        return True
    return any(entry.endswith("*") and name.startswith(entry[:-1]) for entry in configured)


# Each sandbox has its own of these
_TAKEN = (b"/dev", b"/playground", b"/proc", b"/run", b"/sys", b"/tmp", b"/var/run", b"/var/tmp", b"/workspace")


def mount_place_problem(place: bytes) -> str:
    """Return why nothing can be mounted at a place inside, "" where it can."""
    if not place.startswith(b"/") or b"\0" in place or normalise(place) != place:
        return "is not an absolute and normalised path"
    if place == b"/":
        return "is the rootfs itself"
    taken = next((taken for taken in _TAKEN if contains(taken, place)), None)
    return "" if taken is None else f"is not free: a sandbox has its own {show(taken)}"


def mount_places_problem(places: Iterable[bytes]) -> str:
    """Return why places can't be used side by side, "" where they can."""
    known = sorted(places)
    for place in known:
        if known.count(place) > 1:
            return f"{show(place)} is there twice"
        outer = next((outer for outer in known if lies_beneath(place, outer)), None)
        if outer is not None:
            return f"{show(place)} lies inside {show(outer)}"
    return ""


def mount_source_problem(directory: bytes, *, home: bytes, own: tuple[bytes, ...]) -> str:
    """Return why a directory of the host is never mounted. `own` are unspill's own directories."""
    if not directory.startswith(b"/") or b"\0" in directory or normalise(directory) != directory:
        return "is not an absolute and normalised path"
    if contains(directory, home):
        return "is or contains your home directory"
    if any(contains(other, directory) or contains(directory, other) for other in own):
        return "is where unspill keeps its own files"
    if any(contains(kernel, directory) for kernel in (b"/dev", b"/proc", b"/sys", b"/run")):
        return "belongs to the kernel or to services"
    if find_secret(directory, home) is not None:
        return "is never shown to a sandbox"
    inner = next((path for path in (*home_secrets(home), *SYSTEM_SECRETS) if contains(directory, path)), None)
    return "" if inner is None else f"contains {show(inner)}, which is never shown to a sandbox"


def check_root(path: bytes, *, home: bytes, own: tuple[bytes, ...]) -> None:
    """Refuse what can't be a writable root. `own` are unspill's state, configuration and data directories.

    Raises:
        RootRefused: with the reason.
    """
    reason = _refusal(path, home, own)
    if reason:
        raise RootRefused(f"{show(path)} can't be a root: {reason}.")


def _refusal(path: bytes, home: bytes, own: tuple[bytes, ...]) -> str:
    if not path.startswith(b"/") or b"\0" in path or normalise(path) != path:
        return "its path is not absolute and normalised"
    if path == b"/":
        return "it is the whole file system"
    if contains(path, home):
        return "it is your home directory" if path == home else "it contains your home directory"
    for directory in own:
        if contains(directory, path):
            return f"unspill keeps its own files there ({show(directory)})"
        if contains(path, directory):
            return f"it contains unspill's own files ({show(directory)})"
    secret = find_secret(path, home)
    if secret is not None:
        return f"{show(secret)} is never shown to a sandbox"
    return _system_refusal(path, home)


def _system_refusal(path: bytes, home: bytes) -> str:
    if path in SHARED_PARENTS:
        return "it is shared by many things"
    if any(lies_beneath(path, parent) for parent in SHARED_PARENTS):
        return ""
    # A service's account may live below /var; the accounts whose home is /bin or /dev are not meant
    home_is_a_place_to_work = lies_beneath(home, b"/var") or home == b"/root"
    if home_is_a_place_to_work and lies_beneath(path, home):
        return ""
    for tree in SYSTEM_TREES:
        if contains(tree, path):
            return f"{show(tree)} belongs to the system"
    return ""


def merge_roots(project: bytes, extra: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """Return roots of which none contains another, the one that holds the project first.

    A directory inside another root is writable already, so it is dropped. An extra root that contains the project
    takes its place: the person asked for all of it, and two overlays on one tree would hide each other's writes.
    The project stays the working directory.
    """
    given = (project, *extra)
    kept: list[bytes] = []
    for path in given:
        inside_another = any(lies_beneath(path, other) for other in given)
        if not inside_another and path not in kept:
            kept.append(path)
    kept.sort(key=lambda path: not contains(path, project))
    return tuple(kept)
