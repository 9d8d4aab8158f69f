# SPDX-License-Identifier: Apache-2.0
"""Real programs in real runs, with servers and names of an internet that the test makes.

They work where their host is allowed. Where it is not they fail, say so in their own words, and the result says what
would allow it; then nobody was connected to and no name was asked for.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kernel.internet import Internet, internet
from tests.kernel.internet_program import PUBLIC4, PUBLIC6
from unspill import RunResult

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300), pytest.mark.rootfs_view]

FETCH = """
fetch(process.argv[2]).then((answer) => {
  if (!answer.ok) throw new Error(answer.status);
  return answer.text();
}).then((text) => process.stdout.write(text)).catch((error) => { console.error(error); process.exit(1); });
"""
MODULE = """
require('https').get(process.argv[2], (answer) => answer.pipe(process.stdout))
  .on('error', (error) => { console.error(error); process.exit(1); });
"""
JAVA = """
import java.net.URI;
import java.net.http.*;

public class Get {
    public static void main(String[] args) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(args[0])).build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.print(answer.body());
        System.exit(answer.statusCode() == 200 ? 0 : 1);
    }
}
"""
URLLIB = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1]).read().decode())"
FILES = {"fetch.js": FETCH, "module.js": MODULE, "Get.java": JAVA, "get.py": URLLIB}

PIP = "python3 -m pip install --disable-pip-version-check --no-cache-dir --retries 1 --target lib"
NPM = "npm install --fetch-retries=0 --no-audit --no-fund --no-update-notifier"
# For each: the command, its host, its port, what it prints when allowed, and its own words when not
TOOLS = {
    "curl": ("curl -sSf https://example.org/hello", "example.org", 443, "hello", "403"),
    "curl without TLS": ("curl -sSf http://example.org/hello", "example.org", 80, "hello", "403"),
    "wget": ("wget -nv -O- --ca-certificate=ca.pem https://example.org/hello", "example.org", 443, "hello",
             "Proxy tunneling failed: Host not allowed"),
    "git clone": ("git clone -q https://example.org/repo.git copy && cat copy/file", "example.org", 443, "content",
                  "CONNECT tunnel failed, response 403"),
    "git push": ("git clone -q https://example.org/repo.git copy && cd copy && git -c user.name=a -c user.email=a@b.c "
                 "commit -q --allow-empty -m two && git push -q origin HEAD:new && echo pushed", "example.org", 443,
                 "pushed", "CONNECT tunnel failed, response 403"),
    "pip": (f"{PIP} --index-url https://pip.example.org/simple/ demo && PYTHONPATH=lib python3 -c 'import demo'",
            "pip.example.org", 443, "demo of pip", "Tunnel connection failed: 403 Host not allowed"),
    "npm": (f"{NPM} --registry https://npm.example.org/ demo && node -e 'require(\"demo\")'", "npm.example.org", 443,
            "demo of npm", "403 Host not allowed"),
    "node's fetch": ("node fetch.js https://example.org/hello", "example.org", 443, "hello", "403 Host not allowed"),
    "node's https": ("node module.js https://example.org/hello", "example.org", 443, "hello", "403 Host not allowed"),
    "python": ("python3 get.py https://example.org/hello", "example.org", 443, "hello",
               "Tunnel connection failed: 403 Host not allowed"),
    "java": ("java Get.java http://example.org/hello", "example.org", 80, "hello",
             "unspill: example.org:80 was refused: no rule covers it."),
}  # fmt: skip
# How a tool speaks to the proxy does not depend on bubblewrap; that it is the only way out does, which one tool shows
EACH_TOOL = [pytest.param(tool, marks=[pytest.mark.bwrap] if tool == "curl" else []) for tool in TOOLS]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    """An internet, and a project with small clients in it."""
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        for name, text in FILES.items():
            (made.project / name).write_text(text)
        yield made


@pytest.fixture(autouse=True)
def nothing_met(net: Internet) -> None:
    """Forget what earlier tests did."""
    net.met()
    net.asked()


def printed(result: RunResult) -> str:
    return (result.stdout.kept() + result.stderr.kept()).decode()


@pytest.mark.parametrize("tool", EACH_TOOL)
def test_a_tool_works_where_its_host_is_allowed(tool: str, net: Internet) -> None:
    command, host, port, expected, _ = TOOLS[tool]
    result = net.run(command, host)
    assert expected in printed(result), result.text()
    assert result.ok
    assert result.denials == ()
    assert {(made.host, made.port) for made in result.connections} == {(host, port)}
    assert {made.verdict for made in result.connections} == {"allowed"}
    assert all(made.up and made.down for made in result.connections)
    assert {made.address for made in result.connections} == {address for address, _ in net.met()} <= {PUBLIC4, PUBLIC6}
    assert net.asked() == [host]


@pytest.mark.parametrize("tool", EACH_TOOL)
def test_a_tool_fails_clearly_where_another_host_is_allowed(tool: str, net: Internet) -> None:
    command, host, port, expected, words = TOOLS[tool]
    result = net.run(command, "www.example.org")
    assert not result.ok
    assert expected not in result.stdout.kept().decode()
    assert words in printed(result), result.text()
    (denial,) = result.denials
    assert (denial.host, denial.port, denial.rule) == (host, port, "host")
    assert denial.remedy == (
        f"Run it with `--allow-host {host}`, or add `{host}` to `hosts` under `[network]` in the configuration."
    )
    assert f"Network: {host}:{port} was refused. {denial.remedy}\n" in result.text()
    assert result.connections == ()
    assert (net.met(), net.asked()) == ([], [])


@pytest.mark.parametrize("tool", [tool for tool in EACH_TOOL if tool.values != ("git push",)])
def test_a_tool_fails_clearly_where_there_is_no_network(tool: str, net: Internet) -> None:
    result = net.run(TOOLS[tool][0])
    assert not result.ok
    # npm writes a log into the home directory
    codes = [hint.code for hint in result.hints if hint.code != "not-kept"]
    assert codes == ["network-off"], result.text()
    assert "Note: The network is off. Allow one host with `--allow-host HOST`" in result.text()
    assert (result.connections, result.denials) == ((), ())
    assert (net.met(), net.asked()) == ([], [])


@pytest.mark.bwrap
def test_a_program_that_does_not_know_the_proxy_is_told_apart(net: Internet) -> None:
    result = net.run("unset https_proxy all_proxy HTTPS_PROXY ALL_PROXY; curl -sS https://example.org/", "example.org")
    assert [hint.code for hint in result.hints] == ["network-by-proxy"], result.text()


@pytest.mark.bwrap
def test_a_server_inside_is_reached_without_the_proxy(net: Internet) -> None:
    serve = "python3 -m http.server -b 127.0.0.1 8123 2>log & sleep 1"
    result = net.run(f"{serve}; curl -sSf http://127.0.0.1:8123/fetch.js && curl -sSf http://localhost:8123/get.py")
    assert FETCH in printed(result)
    result = net.run(f"{serve}; curl -sSf http://127.0.0.1:8123/fetch.js", "example.org")
    assert FETCH in printed(result), result.text()
    assert (result.connections, result.denials) == ((), ())


@pytest.mark.bwrap
def test_every_engine_has_the_same_network(engine: str, net: Internet) -> None:
    both = "curl -sSf https://example.org/hello; curl -sSf https://evil.org/hello"
    result = net.run(both, "example.org", settings={"engine": engine})
    assert result.stdout.kept() == b"hello\n", result.text()
    assert [(made.host, made.verdict) for made in result.connections] == [("example.org", "allowed")]
    assert [(denial.host, denial.rule) for denial in result.denials] == [("evil.org", "host")]


def test_a_host_that_was_allowed_to_one_run_is_for_that_run_only(net: Internet) -> None:
    allowed = net.run("curl -sSf https://example.org/hello; curl -sSf https://evil.org/", hosts=["example.org"])
    assert allowed.stdout.kept() == b"hello\n", allowed.text()
    assert [denial.host for denial in allowed.denials] == ["evil.org"]
    net.met()
    again = net.run("curl -sSf https://example.org/hello")
    assert [hint.code for hint in again.hints] == ["network-off"]
    assert net.met() == []


def test_what_a_run_reached_and_what_not_is_in_its_record(net: Internet) -> None:
    both = "curl -sSf https://example.org/hello; curl -sSf https://evil.org/hello"
    result = net.run(both, "example.org", after="hold")
    shown = net.cli("show", f"run{result.number}")
    assert "example.org:443" in shown.stdout, shown
    assert "evil.org:443" in shown.stdout
    assert "--allow-host evil.org" in shown.stdout
    told = json.loads(net.cli("show", "--json", f"run{result.number}").stdout)
    (made,) = told["connections"]
    assert (made["host"], made["port"], made["verdict"]) == ("example.org", 443, "allowed")
    assert made["up"] == result.connections[0].up
    (denial,) = told["denials"]
    assert denial == {
        "host": "evil.org", "port": 443, "rule": "host", "times": 1, "remedy": result.denials[0].remedy,
        "reason": "no rule covers it",
    }  # fmt: skip


def test_the_record_goes_with_the_run(net: Internet) -> None:
    result = net.run("curl -sSf https://example.org/hello", "example.org")
    with closing(sqlite3.connect(next(Path(net.directory / "state").glob("*.db")))) as db:
        assert db.execute("SELECT count(*) FROM traffic WHERE run = ?", (result.run,)).fetchone() == (1,)
        db.execute("DELETE FROM runs WHERE id = ?", (result.run,))
        assert db.execute("SELECT count(*) FROM traffic WHERE run = ?", (result.run,)).fetchone() == (0,)


def test_the_command_line_says_what_was_refused(net: Internet) -> None:
    net.configure('[network]\nhosts = ["example.org"]\n')
    words = ["run", "--discard", "--", "curl", "-sSf", "--cacert", net.trust()["CURL_CA_BUNDLE"]]
    found = net.cli(*words, "https://example.org/hello")
    assert (found.returncode, found.stdout) == (0, "hello\n"), found.stderr
    refused = net.cli(*words, "https://evil.org/hello")
    assert refused.returncode == 22
    assert "unspill: The proxy refused 1 destination:\n  ! evil.org:443: host\n" in refused.stderr
    assert "      Run it with `--allow-host evil.org`, or add `evil.org` to `hosts` under `[network]`" in refused.stderr
    net.configure("")
    off = net.cli(*words, "https://example.org/hello")
    assert off.returncode != 0
    assert "unspill: The network is off.\n  Allow one host with `--allow-host HOST`" in off.stderr
