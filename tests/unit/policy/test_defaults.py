# SPDX-License-Identifier: Apache-2.0
"""The default tables: what a home shows, which variables enter, and what may be mounted into a rootfs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.policy.defaults import (
    ALLOWED_VARIABLES,
    CACHES,
    TOOLCHAINS,
    cache_candidates,
    is_allowed_variable,
    is_private_variable,
    is_refused_variable,
    mount_place_problem,
    mount_places_problem,
    mount_source_problem,
    toolchain_candidates,
)
from unspill.policy.paths import contains, lies_beneath, normalise
from unspill.policy.secrets import HOME_SECRETS, find_secret, home_secrets, secret_paths

HOME = b"/home/ann"


@pytest.mark.parametrize("table", [TOOLCHAINS, CACHES, HOME_SECRETS], ids=["toolchains", "caches", "secrets"])
def test_names_are_relative_normal_and_not_inside_each_other(table: tuple[bytes, ...]) -> None:
    paths = [b"/" + name for name in table]
    assert [normalise(path) for path in paths] == paths
    assert len(set(paths)) == len(paths)
    assert [pair for pair in itertools.permutations(paths, 2) if lies_beneath(*pair)] == []


def test_nothing_that_is_shown_holds_a_secret_or_lies_in_one() -> None:
    shown = [*toolchain_candidates(HOME), *cache_candidates(HOME)]
    clashes = [
        (path, secret)
        for path, secret in itertools.product(shown, home_secrets(HOME))
        if contains(path, secret) or contains(secret, path)
    ]
    assert clashes == []


def test_no_toolchain_is_a_cache() -> None:
    pairs = itertools.product(toolchain_candidates(HOME), cache_candidates(HOME))
    assert [pair for pair in pairs if contains(*pair) or contains(*reversed(pair))] == []


@pytest.mark.parametrize("name", [b".cargo", b".npm", b".m2", b".gradle", b".cache", b".config", b".local", b"."])
def test_a_directory_that_may_hold_credentials_is_never_shown_whole(name: bytes) -> None:
    assert name not in TOOLCHAINS + CACHES


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (b"/home/ann/tools/x/bin", (b"/home/ann/tools/x/bin",)),
        (b"/usr/bin:/home/ann/tools/sbin/:/home/ann/x/shims", (b"/home/ann/tools/sbin", b"/home/ann/x/shims")),
        (b"/home/ann", ()),
        (b"/home/ann/", ()),
        (b"/home/ann/.ssh/bin", ()),
        (b"/home/ann/.cargo/bin", ()),
        (b"/home/ann/miniconda3/bin", ()),
        (b"/home/ann/documents", ()),
        (b"/home/bob/bin:/home/annabel/bin", ()),
        (b"bin:./bin::", ()),
        (b"/home/ann/../ann/.aws/x/bin", ()),
        (b"/home/ann/a\0/bin", ()),
    ],
    ids=ascii,
)
def test_program_directories_on_path_are_toolchains(path: bytes, found: tuple[bytes, ...]) -> None:
    assert toolchain_candidates(HOME, path)[len(TOOLCHAINS) :] == found


def test_only_root_needs_masks_over_what_only_root_can_read() -> None:
    assert b"/etc/shadow" in secret_paths(HOME, 0)
    assert b"/etc/shadow" not in secret_paths(HOME, 1000)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (HOME + b"/.ssh", HOME + b"/.ssh"),
        (HOME + b"/.ssh/id/x", HOME + b"/.ssh"),
        (HOME + b"/.config/gh/x", HOME + b"/.config/gh"),
        (HOME + b"/.sshx", None),
        (HOME + b"/.config", None),
        (HOME, None),
        (b"/home/annabel/.ssh", None),
        (b"/.ssh", None),
    ],
)
def test_the_secret_that_a_path_lies_in_is_found(path: bytes, found: bytes | None) -> None:
    assert find_secret(path, HOME) == found
    assert (found is not None) == any(contains(secret, path) for secret in home_secrets(HOME))


CONFIGURED = ("MY_VAR", "NPM_*", "MY_API_KEY")


@pytest.mark.parametrize("name", ["PATH", "LANG", "LC_ALL", "LC_TIME", "TERM", "TZ", "MY_VAR", "NPM_X", "MY_API_KEY"])
def test_an_allowed_or_named_variable_enters(name: str) -> None:
    assert is_allowed_variable(name, CONFIGURED)


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "NPM_TOKEN",
        "npm_config__auth",
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "LC_SECRET_TOKEN",
        "DATABASE_URL",
        "MY_VAR2",
        "my_var",
        "http_proxy",
        "",
        "A=B",
        "A\0B",
    ],
)
def test_anything_else_stays_outside(name: str) -> None:
    assert not is_allowed_variable(name, CONFIGURED)


REFUSED = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_",
    "BASH_ENV",
    "ENV",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PERL5OPT",
    "RUBYOPT",
    "SHELLOPTS",
    "BASH_FUNC_ls%%",
    "GLIBC_TUNABLES",
    "PROMPT_COMMAND",
]


@pytest.mark.parametrize("name", REFUSED)
def test_what_runs_code_by_itself_is_refused_whoever_asks(name: str) -> None:
    assert is_refused_variable(name)
    assert not is_allowed_variable(name, (name,))
    assert not is_allowed_variable(name, ("*",))


def test_no_default_is_private_or_refused() -> None:
    assert [name for name in sorted(ALLOWED_VARIABLES) if is_private_variable(name) or is_refused_variable(name)] == []


@given(st.text(alphabet="ABC_TOKEN", min_size=1, max_size=12))
def test_a_pattern_never_lets_a_private_name_in(name: str) -> None:
    if is_private_variable(name):
        assert not is_allowed_variable(name, (name[:-1] + "*", "*"))
        assert is_allowed_variable(name, (name,))


OWN = (b"/home/ann/.local/state/unspill", b"/srv/roots")


@pytest.mark.parametrize("place", [b"/skills", b"/opt/data", b"/home/ann/skills", b"/etc/app", b"/var/lib", b"/tmpx"])
def test_a_place_of_its_own_is_free(place: bytes) -> None:
    assert mount_place_problem(place) == ""


@pytest.mark.parametrize(
    "place",
    [
        b"",
        b"x",
        b"/",
        b"/proc",
        b"/dev/shm",
        b"/sys",
        b"/run/x",
        b"/tmp",
        b"/var/tmp/x",
        b"/workspace",
        b"/a/../b",
        b"/a\0",
    ],
)
def test_a_place_that_a_sandbox_has_itself_is_not_free(place: bytes) -> None:
    assert mount_place_problem(place)


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ([b"/a", b"/b", b"/ab"], ""),
        ([b"/a", b"/a"], "/a appears twice"),
        ([b"/a/b/c", b"/a"], "/a/b/c is inside /a"),
    ],
)
def test_no_place_lies_inside_another(places: list[bytes], problem: str) -> None:
    assert mount_places_problem(places) == problem


@pytest.mark.parametrize("directory", [b"/home/ann/skills", b"/srv/data", b"/opt", b"/var/lib/app", b"/home/bob/x"])
def test_an_ordinary_directory_can_be_mounted(directory: bytes) -> None:
    assert mount_source_problem(directory, home=HOME, own=OWN) == ""


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        (b"/", "home directory"),
        (b"/home", "home directory"),
        (HOME, "home directory"),
        (b"relative", "absolute"),
        (b"/a/../b", "normalised"),
        (b"/srv/roots/x", "its own files"),
        (b"/srv", "its own files"),
        (b"/home/ann/.ssh", "never shown"),
        (b"/home/ann/.ssh/keys", "never shown"),
        (b"/home/ann/.config", "contains"),
        (b"/var", "contains /var/"),
        (b"/proc/1", "kernel"),
        (b"/run/user/1000", "kernel"),
    ],
)
def test_what_is_private_is_never_mounted(directory: bytes, why: str) -> None:
    assert why in mount_source_problem(directory, home=HOME, own=OWN)
