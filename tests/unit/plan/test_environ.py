# SPDX-License-Identifier: Apache-2.0
"""The variables of a sandbox: those of the caller that enter it, those of its proxy, and those of container mode."""

from __future__ import annotations

import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.unit.plan.given import HOME, PROJECT, given, home, places
from unspill.errors import UsageError
from unspill.model.policy import Policy
from unspill.plan.build import build_plan
from unspill.plan.environ import DEFAULT_PATH, PROXY_VARIABLES, contained_environ, proxy_variables

if TYPE_CHECKING:
    from typing import Any


def environ(outside: dict[bytes, bytes], **values: Any) -> dict[bytes, bytes]:
    return dict(build_plan(given(environ=tuple(outside.items()), **values)).environ)


def test_an_empty_environment_gives_what_every_program_needs() -> None:
    assert environ({}) == {
        b"HOME": HOME,
        b"LANG": b"C.UTF-8",
        b"LOGNAME": b"ann",
        b"PATH": DEFAULT_PATH,
        b"SHELL": b"/bin/sh",
        b"TMPDIR": b"/tmp",
        b"USER": b"ann",
    }


def test_only_allowed_names_come_in() -> None:
    outside = {
        b"LC_ALL": b"C",
        b"TERM": b"xterm",
        b"AWS_SECRET_ACCESS_KEY": b"canary",
        b"SSH_AUTH_SOCK": b"/run/x",
        b"XDG_RUNTIME_DIR": b"/run/user/1000",
        b"LD_PRELOAD": b"/tmp/x.so",
        b"MY_VAR": b"1",
        b"OTHER": b"2",
        b"\xff": b"3",
    }
    inside = environ(outside, policy=Policy(environment=("MY_VAR",)))
    assert set(inside) - set(environ({})) == {b"LC_ALL", b"TERM", b"MY_VAR"}
    assert b"canary" not in inside.values()


def test_home_user_and_tmpdir_are_ours() -> None:
    inside = environ({b"HOME": b"/else", b"USER": b"bob", b"LOGNAME": b"bob", b"TMPDIR": b"/home/ann/t"})
    assert (inside[b"HOME"], inside[b"USER"], inside[b"LOGNAME"]) == (HOME, b"ann", b"ann")
    assert inside[b"TMPDIR"] == b"/tmp"


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        (b"/usr/bin:/bin", b"/usr/bin:/bin"),
        (b"/usr/bin/:/usr/bin:/usr/bin", b"/usr/bin/:/usr/bin"),
        (b"/home/ann/bin:/usr/bin", b"/usr/bin"),
        (b"/home/ann/.cargo/bin:/usr/bin", b"/home/ann/.cargo/bin:/usr/bin"),
        (PROJECT + b"/node_modules/.bin", PROJECT + b"/node_modules/.bin"),
        (b":.:bin:/sbin:", b"/sbin"),
        (b"/snap/bin:/tmp/x:/run/x", DEFAULT_PATH),
        (b"/usr/../etc/x", b"/usr/../etc/x"),
        (b"/opt/x/bin", b"/opt/x/bin"),
        (b"", DEFAULT_PATH),
    ],
)
def test_path_keeps_what_the_plan_shows(outside: bytes, inside: bytes) -> None:
    found = environ({b"PATH": outside}, places=places(home=home(b".cargo/bin")))
    assert found[b"PATH"] == inside


@pytest.mark.parametrize(
    ("outside", "inside"),
    [(b"/bin/bash", b"/bin/bash"), (b"/home/ann/.cargo/bin/nu", b"/bin/sh"), (b"bash", b"/bin/sh")],
)
def test_a_shell_that_is_not_there_becomes_sh(outside: bytes, inside: bytes) -> None:
    assert environ({b"SHELL": outside})[b"SHELL"] == inside


def test_what_the_caller_of_a_run_gives_wins() -> None:
    extra = ((b"PATH", b"/x"), (b"MY_TOKEN", b"given on purpose"))
    inside = environ({b"PATH": b"/usr/bin"}, extra_environ=extra)
    assert (inside[b"PATH"], inside[b"MY_TOKEN"]) == (b"/x", b"given on purpose")


@pytest.mark.parametrize(
    "extra",
    [(b"LD_PRELOAD", b"x"), (b"BASH_ENV", b"x"), (b"", b"x"), (b"A=B", b"x"), (b"A\0", b"x"), (b"A", b"\0")],
    ids=ascii,
)
def test_a_variable_that_can_not_enter_is_an_error_and_not_dropped(extra: tuple[bytes, bytes]) -> None:
    with pytest.raises(UsageError):
        environ({}, extra_environ=(extra,))


FIXED = {
    b"HOME": b"/project",
    b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/project/.packages/bin",
    b"PIP_TARGET": b"/project/.packages",
    b"PYTHONPATH": b"/project/.packages",
    b"PYTHONDONTWRITEBYTECODE": b"1",
    b"TMPDIR": b"/tmp",
    b"LANG": b"C.UTF-8",
}


def test_nothing_of_the_caller_comes_in_but_the_terminal() -> None:
    outside = {b"AWS_SECRET_ACCESS_KEY": b"x", b"LD_PRELOAD": b"/x.so", b"PATH": b"/evil", b"TERM": b"xterm"}
    assert contained_environ(b"/project", (), outside, ()) == FIXED | {b"TERM": b"xterm"}


def test_what_the_person_names_comes_in_and_what_the_caller_sets_is_last() -> None:
    outside = {b"MY_VAR": b"1", b"OTHER": b"2"}
    found = contained_environ(b"/project", ("MY_VAR",), outside, ((b"LANG", b"C"), (b"X", b"3")))
    assert found == FIXED | {b"MY_VAR": b"1", b"LANG": b"C", b"X": b"3"}


def test_what_the_person_names_by_its_beginning_comes_in_as_in_a_sandbox() -> None:
    outside = {b"FOO_A": b"1", b"FOO_TOKEN": b"2", b"LD_PRELOAD": b"3", b"OTHER": b"4"}
    assert contained_environ(b"/project", ("FOO_*", "LD_*"), outside, ()) == FIXED | {b"FOO_A": b"1"}


def test_a_variable_that_never_enters_a_sandbox_is_refused() -> None:
    with pytest.raises(UsageError, match="LD_PRELOAD"):
        contained_environ(b"/project", (), {}, ((b"LD_PRELOAD", b"/x.so"),))


def test_no_variable_is_listed_twice_and_each_has_a_reason() -> None:
    assert [name for name, times in Counter(row.name for row in PROXY_VARIABLES).items() if times > 1] == []
    assert all(row.why for row in PROXY_VARIABLES)


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "all_proxy"])
def test_a_variable_means_the_same_in_both_cases(name: str) -> None:
    variables = proxy_variables(3128)
    assert variables[name] == variables[name.upper()] == "http://127.0.0.1:3128"


def test_loopback_is_reached_directly() -> None:
    variables = proxy_variables(3128)
    assert (
        variables["no_proxy"] == variables["NO_PROXY"] == variables["npm_config_noproxy"] == "localhost,127.0.0.1,::1"
    )
    assert "-Dhttp.nonProxyHosts=localhost|127.*|[::1]" in variables["JAVA_TOOL_OPTIONS"].split()


def test_nothing_is_left_to_fill_in() -> None:
    assert [name for name, value in proxy_variables(1).items() if "{" in value] == []


def test_settings_of_git_come_behind_those_that_are_there() -> None:
    variables = proxy_variables(3128, git_count=2)
    assert variables["GIT_CONFIG_COUNT"] == "3"
    assert variables["GIT_CONFIG_KEY_2"] == "http.proxy"
    assert "GIT_CONFIG_KEY_0" not in variables


def test_git_takes_our_proxy_over_one_of_the_project(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = tmp_path_factory.mktemp("project")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(project), "GIT_CONFIG_NOSYSTEM": "1", **proxy_variables(3128)}
    subprocess.run(["git", "init", "-q", project], check=True, env=environ)
    subprocess.run(["git", "-C", project, "config", "http.proxy", "http://192.0.2.1:1"], check=True, env=environ)
    found = subprocess.run(
        ["git", "-C", project, "config", "--get", "http.proxy"], check=True, env=environ, capture_output=True, text=True
    )
    assert found.stdout == "http://127.0.0.1:3128\n"


def test_node_loads_our_script_only_where_it_was_put() -> None:
    assert "NODE_OPTIONS" not in proxy_variables(3128)
    assert proxy_variables(3128, node_script="/run/x.cjs")["NODE_OPTIONS"] == "--require /run/x.cjs"
