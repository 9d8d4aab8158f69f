# SPDX-License-Identifier: Apache-2.0
"""What is in deploy/ fits the program: every command and option that it names exists, and systemd takes the units."""

import configparser
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unspill
from unspill.cli.main import find_verb, parse
from unspill.errors import UsageError

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = ("unspill-rootfs.service", "unspill-rootfs.timer")
VERBS = {name: find_verb(name) for name in ("rootfs", "run", "doctor")}
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "VOLUME", "WORKDIR"}
CALLED = re.compile(r"(?:^|[ /`])unspill (?P<words>(?:rootfs|run|doctor)\b[^`&|;\n]*)")


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each on one line."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    found = [line.partition(" ") for line in whole.splitlines() if line.strip()]
    return [(instruction, rest.strip()) for instruction, _, rest in found]


def unit(name: str) -> configparser.RawConfigParser:
    # A key may stand there several times; the last is enough to know that the file can be read
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string((DEPLOY / name).read_text())
    return parser


def commands_of(name: str) -> list[str]:
    """Return the commands of ours that a file has."""
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    if name == "README.md":
        text = text.replace("pull\n--archive", "pull --archive")
    return [match["words"].strip() for match in CALLED.finditer(text)]


def test_the_registry_is_told_how_the_server_is_started() -> None:
    script = runpy.run_path(str(ROOT / "scripts/make_server.py"))
    text = (DEPLOY / "server.json").read_text()
    assert text == script["make_server"](), "run scripts/make_server.py"
    server = json.loads(text)
    # What the registry demands; it knows the package as ours by the name in its README
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"])
    assert len(server["description"]) <= 100
    assert f"<!-- mcp-name: {server['name']} -->\n" in (ROOT / "README.md").read_text()
    [package] = server["packages"]
    assert server["version"] == package["version"] == unspill.__version__
    words = [argument["value"] for argument in package["packageArguments"]]
    assert [package["identifier"], *words] == ["unspill", "mcp"]
    parse(find_verb(words[0]), words[1:])


def test_the_dockerfile_has_known_instructions_and_ends_as_an_ordinary_user() -> None:
    found = dockerfile()
    assert {instruction for instruction, _ in found} <= INSTRUCTIONS
    assert [rest for instruction, rest in found if instruction == "USER"] == ["unspill"]
    stages = [rest for instruction, rest in found if instruction == "FROM"]
    named = {stage.split(" AS ")[1] for stage in stages if " AS " in stage}
    copied = {match[1] for _, rest in found if (match := re.match(r"--from=(\S+)", rest))}
    assert copied <= named
    assert stages[-1] in named


def test_the_dockerfile_names_the_variable_that_the_program_reads() -> None:
    (place,) = [rest for instruction, rest in dockerfile() if instruction == "ENV"]
    assert place == "ROOTFS_DIR=/opt/unspill/rootfs"
    assert "ROOTFS_DIR=/var/lib/unspill/rootfs" in (DEPLOY / "unspill-rootfs.service").read_text()


def test_the_script_that_builds_the_image_uses_the_options_that_the_readme_explains() -> None:
    script = (DEPLOY / "build-image").read_text()
    subprocess.run(["bash", "-n", DEPLOY / "build-image"], check=True)
    named = set(re.findall(r"--security-opt (\S+?)\)?\s", script))
    assert named == {"unmask=ALL", "seccomp=unconfined"}
    explained = (DEPLOY / "README.md").read_text()
    assert [option for option in named if f"`--security-opt {option}`" not in explained] == []
    paths = re.findall(r"\$here/([\w./-]+)", script)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    settings = {name for instruction, name in dockerfile() if instruction == "ARG"}
    assert set(re.findall(r"--build-arg (\w+)=", script)) <= {setting.partition("=")[0] for setting in settings}


@pytest.mark.parametrize("name", ["Dockerfile", "unspill-rootfs.service", "README.md"])
def test_every_command_that_is_named_exists_with_its_options(name: str) -> None:
    found = commands_of(name)
    assert found
    for words in found:
        verb, *rest = shlex.split(words.replace("$UNSPILL_PULL", "alpine --tier 2"))
        parse(VERBS[verb], rest)


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(UsageError):
        parse(VERBS["rootfs"], ["pull", "alpine", "--no-such-option"])


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_can_be_read(name: str) -> None:
    assert "Unit" in unit(name)


def test_the_service_is_an_ordinary_users_and_has_no_more_rights_than_it_needs() -> None:
    service = unit("unspill-rootfs.service")["Service"]
    assert service["User"] not in ("", "root", "0")
    assert service["CapabilityBoundingSet"] == ""
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["ProtectHome"]) == ("yes", "strict", "yes")


@pytest.mark.kernel
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze", path="/usr/bin:/bin")
    assert analyze is not None, "the package systemd is not installed"
    program = Path(sys.executable).with_name("unspill")
    for name in UNITS:
        text = (DEPLOY / name).read_text().replace("/usr/local/bin/unspill", str(program))
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [analyze, "verify", "--man=no", *(tmp_path / name for name in UNITS)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_UNIT_PATH": f"{tmp_path}:/usr/lib/systemd/system", "LANG": "C.UTF-8"},
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if "unspill" in line]
    assert (done.returncode, said) == (0, [])
