# SPDX-License-Identifier: Apache-2.0
"""Which variables may enter a sandbox, by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.policy.defaults import ALLOWED_VARIABLES, is_allowed_variable, is_private_variable, is_refused_variable

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
