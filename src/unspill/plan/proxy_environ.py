# SPDX-License-Identifier: Apache-2.0
"""The variables by which programs inside a sandbox find its proxy: a table, each row with its reason.

A convenience, not a defence: whoever ignores them reaches nothing at all. They hold an address inside the sandbox and
no secret.
"""

from __future__ import annotations

from unspill.model.record import Record

# The sandbox's own loopback is reached directly: a server that a test starts is not outside.
DIRECT = ("localhost", "127.0.0.1", "::1")


class Variable(Record):
    """One variable; `{host}`, `{port}`, `{url}`, `{direct}` and `{pattern}` are filled in."""

    name: str
    value: str
    why: str


_JVM = (
    "-Dhttp.proxyHost={host} -Dhttp.proxyPort={port} -Dhttps.proxyHost={host} -Dhttps.proxyPort={port} "
    "-Dhttp.nonProxyHosts={pattern}"
)

TABLE = (
    Variable(name="http_proxy", value="{url}", why="curl and git read only the lower-case one for http"),
    Variable(name="HTTP_PROXY", value="{url}", why="Go, Ruby and many others read the upper-case ones"),
    Variable(name="https_proxy", value="{url}", why="pip, curl, git, wget, cargo"),
    Variable(name="HTTPS_PROXY", value="{url}", why="npm, Go, rustup"),
    # Some clients fail at once on a socks URL if they lack an optional package, even when they do not need it
    Variable(name="all_proxy", value="{url}", why="what has no variable of its own; as http, which all understand"),
    Variable(name="ALL_PROXY", value="{url}", why="the same"),
    Variable(name="no_proxy", value="{direct}", why="loopback is inside"),
    Variable(name="NO_PROXY", value="{direct}", why="loopback is inside"),
    Variable(name="NODE_USE_ENV_PROXY", value="1", why="node's own fetch and http, from 22.21 and 24 on"),
    Variable(name="npm_config_proxy", value="{url}", why="stronger than an .npmrc of the project"),
    Variable(name="npm_config_https_proxy", value="{url}", why="stronger than an .npmrc of the project"),
    Variable(name="npm_config_noproxy", value="{direct}", why="loopback is inside"),
    Variable(name="YARN_HTTP_PROXY", value="{url}", why="yarn reads no other since its second version"),
    Variable(name="YARN_HTTPS_PROXY", value="{url}", why="yarn reads no other since its second version"),
    Variable(name="JAVA_TOOL_OPTIONS", value=_JVM, why="the JVM reads no variable for this; it says so on stderr"),
    Variable(name="ELECTRON_GET_USE_PROXY", value="1", why="its downloader ignores the others without it"),
)

# http.proxy in a configuration of git is stronger than the variables, and the project's own .git/config may have one.
GIT = (("http.proxy", "{url}"),)


def proxy_variables(port: int, *, host: str = "127.0.0.1", git_count: int = 0, node_script: str = "") -> dict[str, str]:
    """Return the variables for a proxy that listens on a port of the sandbox's loopback.

    Args:
        port: The port inside.
        host: The address inside.
        git_count: How many settings of GIT_CONFIG_COUNT there are already; ours come behind them.
        node_script: Where `node_script.SCRIPT` lies inside, if it was put there.
    """
    url = f"http://{host}:{port}"
    filled = {
        "host": host,
        "port": str(port),
        "url": url,
        "direct": ",".join(DIRECT),
        "pattern": "|".join((*DIRECT[:1], "127.*", "[::1]")),
    }
    variables = {row.name: row.value.format_map(filled) for row in TABLE}
    for number, (key, value) in enumerate(GIT, git_count):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value.format_map(filled)
    variables["GIT_CONFIG_COUNT"] = str(git_count + len(GIT))
    if node_script:
        variables["NODE_OPTIONS"] = f"--require {node_script}"
    return variables
