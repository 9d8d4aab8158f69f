# SPDX-License-Identifier: Apache-2.0
"""Which environment variables a sandbox may have: by name, never by value.

Three answers: allowed by default, allowed because the person named it, refused whoever asks.
"""

from __future__ import annotations

ALLOWED = frozenset(
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


def is_refused(name: str) -> bool:
    """Tell whether a variable of this name never enters a sandbox."""
    return name in REFUSED or name.startswith(REFUSED_PREFIXES)


def is_private(name: str) -> bool:
    """Tell whether only its exact name in the person's configuration lets it in."""
    upper = name.upper()
    return upper in PRIVATE or upper.startswith(PRIVATE_PREFIXES) or upper.endswith(PRIVATE_SUFFIXES)


def is_name(name: str) -> bool:
    """Tell whether a program could have a variable of this name."""
    return bool(name) and "=" not in name and "\0" not in name


def is_allowed(name: str, configured: tuple[str, ...]) -> bool:
    """Tell whether the caller's variable may enter. `configured` holds names; a last `*` stands for any rest."""
    if not is_name(name) or is_refused(name):
        return False
    if name in configured:
        return True
    if is_private(name):
        return False
    if name in ALLOWED or name.startswith(ALLOWED_PREFIXES):
        return True
    return any(entry.endswith("*") and name.startswith(entry[:-1]) for entry in configured)
