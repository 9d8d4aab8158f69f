# SPDX-License-Identifier: Apache-2.0
"""Real programs through the proxy, told of it by our variables: they work where allowed and say so where not."""

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.network.scene import Scene, make_certificate, scene
from unspill.plan.environ import NODE_SCRIPT, proxy_variables

pytestmark = pytest.mark.kernel

URLLIB = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode(), end='')"
JAVA = """
public class Get {
    public static void main(String[] args) throws Exception {
        System.out.write(new java.net.URL(args[0]).openStream().readAllBytes());
        System.out.flush();
    }
}
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for example.org."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the servers serve: a file and a repository."""
    top = tmp_path_factory.mktemp("files")
    (top / "hello").write_text("hello\n")
    work = top / "work"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", os.fspath(work)]
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / "file").write_text("content\n")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", work, top / "repo.git"], check=True)
    subprocess.run(["git", "-C", top / "repo.git", "update-server-info"], check=True)
    return top


@pytest.fixture(scope="module")
def servers(files: Path, certificate: Path) -> Iterator[dict[int, int]]:
    """Web servers of this process, by the port that they stand for."""
    plain = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=os.fspath(files)))
    secure = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=os.fspath(files)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    for site in (plain, secure):
        site.daemon_threads = True
        threading.Thread(target=site.serve_forever, args=(0.05,), daemon=True).start()
    yield {80: int(plain.server_address[1]), 443: int(secure.server_address[1])}
    for site in (plain, secure):
        site.shutdown()
        site.server_close()


def run(stage: Scene, certificate: Path, home: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    (home / "node.cjs").write_bytes(NODE_SCRIPT)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(home),
        "LANG": "C.UTF-8",
        "CURL_CA_BUNDLE": os.fspath(certificate),
        "GIT_SSL_CAINFO": os.fspath(certificate),
        "SSL_CERT_FILE": os.fspath(certificate),
        "GIT_TERMINAL_PROMPT": "0",
        "NODE_EXTRA_CA_CERTS": os.fspath(certificate),
        **proxy_variables(stage.port, node_script=os.fspath(home / "node.cjs")),
    }
    return subprocess.run(argv, env=environ, cwd=home, capture_output=True, text=True, timeout=50, check=False)


FETCH = """
fetch(process.argv[1]).then((answer) => {
  if (!answer.ok) throw new Error(answer.status);
  return answer.text();
}).then((text) => process.stdout.write(text)).catch((error) => { console.error(error); process.exit(1); });
"""
MODULES = """
const url = process.argv[1];
require(url.split(':')[0]).get(url, (answer) => {
  if (answer.statusCode !== 200) { console.error(answer.statusCode); process.exit(1); }
  answer.pipe(process.stdout);
}).on('error', (error) => { console.error(error); process.exit(1); });
"""
CLIENTS = {
    "curl": ("curl", "-sSf"),
    "node's fetch": ("node", "-e", FETCH),
    "node's modules": ("node", "-e", MODULES),
    "python": ("python3", "-c", URLLIB),
}


@pytest.mark.parametrize("url", ["http://example.org/hello", "https://example.org/hello"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_what_is_allowed_and_is_told_what_is_not(
    client: str, url: str, servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    with scene(["example.org"], servers=servers) as stage:
        found = run(stage, certificate, tmp_path, *CLIENTS[client], url)
        refused = run(stage, certificate, tmp_path, *CLIENTS[client], url.replace("example.org", "www.example.org"))
    assert (found.returncode, found.stdout) == (0, "hello\n"), found.stderr
    assert refused.returncode != 0
    assert "403" in refused.stderr
    assert [(denial.host, denial.rule) for denial in stage.proxy.denials()] == [("www.example.org", "host")]


@pytest.mark.parametrize("option", ["--socks5-hostname", "--proxytunnel"])
def test_curl_can_use_socks_and_tunnels_to_a_web_server(
    option: str, servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    with scene(["example.org"], servers=servers) as stage:
        how = (option, f"127.0.0.1:{stage.port}") if option.startswith("--socks") else (option,)
        for url in ("http://example.org/hello", "https://example.org/hello"):
            found = run(stage, certificate, tmp_path, "curl", "-sSf", *how, url)
            assert (found.returncode, found.stdout) == (0, "hello\n"), found.stderr


def test_curl_that_connects_to_one_host_and_asks_tls_for_another_is_refused(
    servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    fronting = ("--connect-to", "www.example.org:443:example.org:443", "https://www.example.org/hello")
    with scene(["example.org"], servers=servers) as stage:
        refused = run(stage, certificate, tmp_path, "curl", "-sSf", *fronting)
    assert refused.returncode != 0
    assert [denial.rule for denial in stage.proxy.denials()] == ["server name"]
    with scene(["example.org", "www.example.org"], servers=servers) as stage:
        allowed = run(stage, certificate, tmp_path, "curl", "-sSf", "https://www.example.org/hello")
    assert allowed.stdout == "hello\n"


def test_git_clones_over_https_from_an_allowed_host_only(
    servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    with scene(["example.org"], servers=servers) as stage:
        cloned = run(stage, certificate, tmp_path, "git", "clone", "-q", "https://example.org/repo.git", "copy")
        refused = run(stage, certificate, tmp_path, "git", "clone", "-q", "https://evil.org/repo.git", "other")
    assert cloned.returncode == 0, cloned.stderr
    assert (tmp_path / "copy" / "file").read_text() == "content\n"
    assert refused.returncode != 0
    assert "403" in refused.stderr


def test_the_jvm_takes_its_proxy_from_our_variable(servers: dict[int, int], certificate: Path, tmp_path: Path) -> None:
    (tmp_path / "Get.java").write_text(JAVA)
    with scene(["example.org"], servers=servers) as stage:
        found = run(stage, certificate, tmp_path, "java", "Get.java", "http://example.org/hello")
        refused = run(stage, certificate, tmp_path, "java", "Get.java", "http://evil.org/hello")
    assert found.stdout == "hello\n", found.stderr
    assert refused.returncode != 0
    assert "403" in refused.stderr


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_on_loopback_is_reached_directly(
    client: str, servers: dict[int, int], certificate: Path, tmp_path: Path
) -> None:
    with scene([]) as stage:
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{servers[80]}/hello"
            found = run(stage, certificate, tmp_path, *CLIENTS[client], url)
            assert (found.returncode, found.stdout) == (0, "hello\n"), found.stderr
    assert stage.proxy.denials() == ()
