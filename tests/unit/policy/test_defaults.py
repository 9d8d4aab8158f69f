# SPDX-License-Identifier: Apache-2.0
"""The tables agree with each other: what is shown of a home holds nothing that is masked."""

from __future__ import annotations

import itertools

import pytest

from unspill.policy.defaults import CACHES, TOOLCHAINS, cache_candidates, toolchain_candidates
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
