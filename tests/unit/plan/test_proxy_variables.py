# SPDX-License-Identifier: Apache-2.0
"""The variables inside: the same proxy for everybody, loopback direct, and none twice."""

import subprocess
from collections import Counter

import pytest

from unspill.plan.environ import PROXY_VARIABLES, proxy_variables


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
