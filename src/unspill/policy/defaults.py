# SPDX-License-Identifier: Apache-2.0
"""What a sandbox gets by default (toolchains, caches, variables), and which directories can be roots or mounts.

Names below the home directory are relative to it. A directory is a toolchain or a cache only if no credential lives
anywhere below it; that is why `.cargo/bin` is there and `.cargo` is not. Variables go by name, never by value: allowed
by default, allowed because the person named it, or refused whoever asks. Roots come from the command line or the
person's configuration, never from a symlink in a project and never from a model; paths are resolved before they get
here, so what is judged is where a directory really lies. The default of each setting is that of its field in
`model.policy`.
"""

from __future__ import annotations

import posixpath

from unspill.errors import RootRefused
from unspill.policy.paths import contains, is_normalised, lies_beneath, normalise, show
from unspill.policy.secrets import SYSTEM_SECRETS, find_secret, home_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


TOOLCHAINS = tuple(
    b"""
    .local/bin .local/lib .local/pipx/venvs .local/share/pipx/venvs .local/share/uv/tools .local/share/uv/python
    .local/share/mise/installs .local/share/mise/shims .local/share/rtx/installs .local/share/rtx/shims
    .local/share/fnm/node-versions .local/share/virtualenvs .asdf/bin .asdf/installs .asdf/lib .asdf/plugins .asdf/shims
    .bun/bin .cabal/bin .cargo/bin .deno/bin .dotnet/sdk .dotnet/shared .dotnet/host .elan/bin .elan/toolchains
    .ghcup/bin .ghcup/ghc .jenv/shims .jenv/versions .juliaup/bin .julia/juliaup .local/go .nodenv/shims
    .nodenv/versions .npm-global/bin .npm-global/lib .nvm/versions .opam/default .pyenv/bin .pyenv/libexec .pyenv/shims
    .pyenv/versions .rbenv/bin .rbenv/libexec .rbenv/shims .rbenv/versions .rustup/toolchains .rvm/bin .rvm/gems
    .rvm/rubies .sdkman/candidates .virtualenvs .volta/bin .volta/tools anaconda3 go/bin mambaforge micromamba
    miniconda3 miniforge3
    """.split()
)

CACHES = tuple(
    b"""
    .cache/bazel .cache/ccache .cache/composer .cache/deno .cache/electron .cache/go-build .cache/mypy .cache/node
    .cache/pip .cache/pnpm .cache/pre-commit .cache/pypoetry .cache/ruff .cache/sccache .cache/uv .cache/yarn .cache/zig
    .bun/install/cache .cargo/git .cargo/registry .ccache .conan2/p .gradle/caches .gradle/wrapper .ivy2/cache
    .julia/compiled .julia/packages .local/share/pnpm/store .m2/repository .m2/wrapper .npm/_cacache .nuget/packages
    .yarn/berry/cache go/pkg/mod
    """.split()
)

# Shown as they are. `/opt` is everybody's: it goes through an overlay, which no socket passes.
SOCKET_FREE = (b"/opt",)

# Never taken from the host in any view: fresh, other people's, or a way into the kernel.
NEVER_SHOWN = tuple(b"/boot /dev /home /lost+found /media /mnt /proc /root /run /srv /sys /tmp".split())

# No root, and nothing beneath them either.
SYSTEM_TREES = tuple(
    b"""
    /bin /boot /dev /etc /lib /lib32 /lib64 /libx32 /lost+found /nix /proc /root /run /sbin /snap /sys /usr /var
    """.split()
)

# No root themselves, but what lies beneath may be one.
SHARED_PARENTS = (b"/home", b"/media", b"/mnt", b"/opt", b"/run/media", b"/srv", b"/tmp", b"/var/tmp", b"/var/www")

_PROGRAM_DIRECTORIES = (b"bin", b"sbin", b"shims")

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
_ALLOWED_PREFIXES = ("LC_",)

# Each makes a program run something before what it was started for, or changes how it finds its code.
_REFUSED = frozenset(
    """
    BASH_ENV BASHOPTS ENV GCONV_PATH GLIBC_TUNABLES IFS LOCPATH NLSPATH PERL5OPT PROMPT_COMMAND PS4
    PYTHONHOME PYTHONINSPECT PYTHONSTARTUP RUBYOPT SHELLOPTS
    """.split()
)
_REFUSED_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_")

# Secrets, and doors to services outside. Passed on only if the person's configuration names them exactly.
_PRIVATE = frozenset("SSH_AUTH_SOCK SSH_AGENT_PID GPG_AGENT_INFO XAUTHORITY DISPLAY WAYLAND_DISPLAY".split())
_PRIVATE_PREFIXES = ("DBUS_", "XDG_")
_PRIVATE_SUFFIXES = tuple("_KEY _TOKEN _SECRET _PASSWORD _PASSWD _PASS _PASSPHRASE _CREDENTIALS _PAT _AUTH".split())

# Each sandbox has its own of these
_TAKEN = (b"/dev", b"/playground", b"/proc", b"/run", b"/sys", b"/tmp", b"/var/run", b"/var/tmp", b"/workspace")


def check_root(path: bytes, *, home: bytes, own: tuple[bytes, ...]) -> None:
    """Refuse what can't be a writable root. `own` are unspill's state, configuration and data directories.

    Raises:
        RootRefused: with the reason.
    """
    reason = _root_refusal(path, home, own)
    if reason:
        remedy = "Go into a project first, or use `--no-project`." if path == home else ""
        raise RootRefused(f"{show(path)} can't be a root: {reason}.", remedy=remedy)


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


def toolchain_candidates(home: bytes, path: bytes = b"") -> tuple[bytes, ...]:
    """Return the directories that are toolchains if they exist: the table, and program directories on `PATH`."""
    above = posixpath.join(home, b"")
    found = [above + name for name in TOOLCHAINS]
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
    above = posixpath.join(home, b"")
    return tuple(above + name for name in CACHES)


def is_allowed_variable(name: str, configured: tuple[str, ...]) -> bool:
    """Tell whether the caller's variable may enter. `configured` holds names; a last `*` stands for any rest."""
    if not is_variable_name(name) or is_refused_variable(name):
        return False
    if name in configured:
        return True
    if is_private_variable(name):
        return False
    if name in ALLOWED_VARIABLES or name.startswith(_ALLOWED_PREFIXES):
        return True
    return any(entry.endswith("*") and name.startswith(entry[:-1]) for entry in configured)


def is_refused_variable(name: str) -> bool:
    """Tell whether a variable of this name never enters a sandbox."""
    return name in _REFUSED or name.startswith(_REFUSED_PREFIXES)


def is_private_variable(name: str) -> bool:
    """Tell whether only its exact name in the person's configuration lets it in."""
    upper = name.upper()
    return upper in _PRIVATE or upper.startswith(_PRIVATE_PREFIXES) or upper.endswith(_PRIVATE_SUFFIXES)


def is_variable_name(name: str) -> bool:
    """Tell whether a program could have a variable of this name."""
    return bool(name) and "=" not in name and "\0" not in name


def mount_source_problem(directory: bytes, *, home: bytes, own: tuple[bytes, ...]) -> str:
    """Return why a rootfs never shows a directory of the host. `own` are unspill's own directories.

    The place inside does not matter: what is private stays private under another name, too.
    """
    if not is_normalised(directory):
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


def mount_place_problem(place: bytes) -> str:
    """Return why nothing can be mounted at a place inside, "" where it can."""
    if not is_normalised(place):
        return "is not an absolute and normalised path"
    if place == b"/":
        return "is the rootfs itself"
    taken = next((taken for taken in _TAKEN if contains(taken, place)), None)
    return "" if taken is None else f"is taken: a sandbox has its own {show(taken)}"


def mount_places_problem(places: Iterable[bytes]) -> str:
    """Return why places can't be used side by side, "" where they can."""
    known = sorted(places)
    for place in known:
        if known.count(place) > 1:
            return f"{show(place)} appears twice"
        outer = next((outer for outer in known if lies_beneath(place, outer)), None)
        if outer is not None:
            return f"{show(place)} is inside {show(outer)}"
    return ""


def _root_refusal(path: bytes, home: bytes, own: tuple[bytes, ...]) -> str:
    if not is_normalised(path):
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
        return "many programs share it"
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
