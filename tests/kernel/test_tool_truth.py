# SPDX-License-Identifier: Apache-2.0
"""What a model is told of files and network, held against what commands find: in every view and mode, by trying.

Each path in the description is written to, and looked for by the next command. So is every other directory that is
there: none of those may be writable.
"""

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CACHE
from tests.rootfs_tree import make_small_tree
from tests.support import HOST_ROOT, Ground, printed
from unspill import Network, Rules, Sandbox
from unspill.adapters.tools import run_command_tool
from unspill.permissions.approvers import Callback

pytestmark = [pytest.mark.kernel, pytest.mark.view("sealed", reason="the views are chosen here")]

ROOTFS: dict[str, Any] = {"view": "rootfs", "rootfs": HOST_ROOT}
MODES: dict[str, dict[str, Any]] = {
    "sealed": {},
    "sealed, applied": {"after": "apply"},
    "sealed, discarded": {"after": "discard"},
    "sealed, strict": {"profile": "strict"},
    "sealed, with tools": {"made": (".cache/pip", ".npm", ".cargo/bin", ".nvm")},
    "sealed, with a kept /tmp": {"tmp": "persistent"},
    "sealed, with roots": {"roots": ("other", "more")},
    "sealed, with a readable path": {"made": ("shown",), "readable": ("shown",)},
    "host": {"view": "host", "made": (".cache/pip", "Documents")},
    "host, with a kept /tmp": {"view": "host", "tmp": "persistent"},
    "rootfs": ROOTFS,
    "rootfs, with a kept /tmp": {**ROOTFS, "tmp": "persistent"},
    "rootfs, with roots": {**ROOTFS, "roots": ("other",)},
    "rootfs, with mounts": {**ROOTFS, "made": ("skills",), "mounts": ("skills",)},
    "rootfs, writable": {"view": "rootfs", "rootfs_writable": True},
    "no playground": {"project": "playground"},
}
NAME = "probe-of-the-truth"
# Both by any shell, without a process for each directory. What the kernel shows of itself is left out
TRY = """
for place in / "$1"; do find "$place" -maxdepth 5 -type d 2>/dev/null; done | sort -u | while read -r place; do
    case "$place" in /proc*|/sys*|/dev/pts*) continue;; esac
    { true > "$place/$2"; } 2>/dev/null && echo "${place%/}/"
done; true
"""
FIND = f"find / -name {NAME} 2>/dev/null | grep -v ^/proc/; true"


@pytest.fixture
def person(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """A machine whose home does not lie in /tmp: that is a place of its own here."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as top:
        home = Path(top, "home")
        home.mkdir()
        monkeypatch.setenv("HOME", os.fspath(home))
        yield dataclasses.replace(ground, top=Path(top), home=home, project=home / "project")


def open_mode(person: Ground, mode: str) -> Sandbox:
    settings = dict(MODES[mode])
    project = person.home / settings.pop("project", "project")
    for name in (project.name, *settings.pop("made", ()), *settings.get("roots", ())):
        (person.home / name).mkdir(parents=True, exist_ok=True)
    for key in ("roots", "readable"):
        settings[key] = tuple(os.fsencode(person.home / name) for name in settings.get(key, ()))
    settings["mounts"] = tuple(
        (b"/" + name.encode(), os.fsencode(person.home / name)) for name in settings.get("mounts", ())
    )
    if settings.get("rootfs_writable"):
        settings["rootfs"] = os.fspath(make_small_tree(person.top / "tree"))
    sandbox = Sandbox(project, policy=person.policy(**{"after": "hold", **settings}))
    person.opened.append(sandbox)
    return sandbox


class Told:
    """What a description says of files: places by what becomes of what is written there."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.whole = run_command_tool(sandbox).description
        files, _, self.network = self.whole.partition("Network Access:")
        self.lines = files.splitlines()
        self.project = self._paths("It starts in the project directory")
        self.roots = self._paths("treated like it")
        self.kept = self._paths("is kept", "are kept")
        self.gone = self._paths("is gone when the command has ended")
        self.has_system = bool(self._matching("The directories of the system"))

    def _matching(self, *words: str) -> list[str]:
        return [line for line in self.lines if any(word in line for word in words)]

    def _paths(self, *words: str) -> list[str]:
        return [path for line in self._matching(*words) for path in re.findall(r"/[\w./-]*\w", line)]

    def place_of(self, directory: str) -> str:
        """Return the place that says what becomes of a directory: the deepest one that it lies in, "" for none."""
        named = [*self.project, *self.roots, *self.kept, *self.gone]
        return max((path for path in named if f"{directory}/".startswith(f"{path}/")), key=len, default="")


def probed(printed_paths: str) -> set[str]:
    return {line.removesuffix("/") or "/" for line in printed_paths.splitlines()}


@pytest.mark.parametrize("mode", MODES)
def test_each_place_that_is_named_is_as_it_is_told_and_nothing_else_can_be_written(person: Ground, mode: str) -> None:
    hold_against_the_text(person, mode)


@pytest.mark.parametrize("mode", ["sealed", "sealed, with tools", "host", "rootfs"])
def test_with_every_engine_too(person: Ground, engine: str, mode: str) -> None:
    hold_against_the_text(person, mode)


def hold_against_the_text(person: Ground, mode: str) -> None:
    sandbox = open_mode(person, mode)
    told = Told(sandbox)
    after = sandbox.policy.after
    assert len(told.project) == 1
    assert told.gone
    written = probed(printed(sandbox.run(["sh", "-c", TRY, "sh", os.fspath(person.home), NAME])))
    named = {*told.project, *told.roots, *told.kept, *told.gone}
    assert named <= written, "every place that is said to be writable is"
    unnamed = {path for path in written if not told.place_of(path)}
    assert bool(unnamed) == told.has_system, unnamed
    assert "/" not in unnamed
    found = probed(printed(sandbox.run(["sh", "-c", FIND])).replace(f"/{NAME}", "/"))
    lasting = {path for path in written if told.place_of(path) not in told.gone}
    if after == "discard":
        lasting = {path for path in lasting if told.place_of(path) not in (*told.project, *told.roots)}
    assert found == lasting
    live = sandbox.project.decode()
    assert os.path.exists(f"{live}/{NAME}") == (after == "apply")
    if after == "apply":
        sandbox.undo()
        assert not os.path.exists(f"{live}/{NAME}")
    # Nothing but the project, if anything, was written on the person's side; caches and playground lie elsewhere
    others = [path for path in person.home.rglob(NAME) if ".local/share/unspill" not in os.fspath(path)]
    assert [path for path in others if os.fspath(path.parent) != live] == []


@pytest.mark.parametrize("mode", MODES)
def test_the_playground_is_told_of_where_there_is_one_and_only_there(person: Ground, mode: str) -> None:
    sandbox = open_mode(person, mode)
    tool = run_command_tool(sandbox)
    is_told = "`playground` is the playground" in json.dumps(tool.schema)
    assert is_told == any(path.endswith("/playground") for path in Told(sandbox).kept) == (mode != "no playground")
    if is_told:
        assert printed(sandbox.run("pwd", cwd="playground")).strip() in Told(sandbox).kept


@pytest.mark.parametrize("mode", MODES)
def test_what_is_said_to_be_hidden_of_the_home_is_and_what_is_shown_is_too(person: Ground, mode: str) -> None:
    sandbox = open_mode(person, mode)
    (person.home / "letter").write_text("mine")
    told = Told(sandbox).whole
    is_shown = sandbox.run(["cat", os.fspath(person.home / "letter")]).ok
    assert is_shown == ("the home directory too" in told)
    assert is_shown != ("else of the user's" in told)


def test_before_there_is_a_rootfs_nothing_untrue_is_told(person: Ground) -> None:
    """The first command has it made, and the description is wanted before that."""
    later = open_mode(person, "rootfs, with a kept /tmp")
    with_tree = Told(later).lines
    sandbox = Sandbox(
        later.project, name="other", policy=later.policy.replace(rootfs="", rootfs_dir=b"/nowhere/at/all")
    )
    person.opened.append(sandbox)
    assert Told(sandbox).lines == with_tree


CONNECT = """
import json, os, socket, sys

def tried(family, kind, protocol=0, then=lambda sock: sock.connect(("8.8.8.8", 443))):
    try:
        with socket.socket(family, kind, protocol) as sock:
            sock.settimeout(3)
            then(sock)
        return True
    except OSError:
        return False

def said(request):
    host, _, port = os.environ["https_proxy"].removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 5) as sock:
        sock.sendall(request)
        return sock.recv(100).decode("latin-1")

found = {"namespace": os.readlink("/proc/self/ns/net"), "proxy": "https_proxy" in os.environ}
# Connecting a datagram socket sends nothing: it only asks for a route
found["udp"] = tried(socket.AF_INET, socket.SOCK_DGRAM)
found["raw"] = tried(socket.AF_INET, socket.SOCK_RAW, 1, lambda sock: None)
if not found["udp"]:
    found["tcp"] = tried(socket.AF_INET, socket.SOCK_STREAM)
if found["proxy"]:
    found["http"] = said(b"GET http://203.0.113.80/ HTTP/1.1\\r\\nHost: 203.0.113.80\\r\\n\\r\\n")[:8]
    found["https"] = said(b"CONNECT 203.0.113.80:443 HTTP/1.1\\r\\nHost: 203.0.113.80:443\\r\\n\\r\\n")[:8]
    found["socks"] = said(b"\\x05\\x01\\x00") == "\\x05\\x00"
    found["port"] = said(b"CONNECT 8.8.8.8:8080 HTTP/1.1\\r\\nHost: 8.8.8.8:8080\\r\\n\\r\\n").split()[1]
print(json.dumps(found))
"""
BY_PROXY = "are reached through a proxy only, by HTTP, HTTPS or SOCKS"
# What is told, and how a command gets a network, if at all
NETWORKS: dict[str, tuple[dict[str, Any], list[str], bool]] = {
    "none": (
        {"permissions": Rules(network="deny")},
        ["there is no access to the network", "do not set `network`"],
        False,
    ),
    "granted": ({}, ["It then reaches any public host, on ports 80 and 443.", BY_PROXY], True),
    "hosts": (
        {"network": Network(hosts=("example.org",))},
        ["only these hosts are reached: example.org", BY_PROXY],
        False,
    ),
    "asked for": ({"network": Network(ask=True)}, ["The user is asked about each host", BY_PROXY], False),
    "the host's": ({"network": Network(mode="host")}, ["has the network of the user's machine"], True),
    "hosts, else the host's": (
        {"network": Network(mode="host", hosts=("example.org",))},
        [f"Without that, hosts {BY_PROXY}"],
        False,
    ),
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("view", ["sealed", "host", "rootfs"])
def test_the_network_is_what_is_told_of_it(person: Ground, view: str, kind: str) -> None:
    settings, sentences, is_granted = NETWORKS[kind]
    person.project.mkdir()
    shown: dict[str, Any] = ROOTFS if view == "rootfs" else {"view": view}
    sandbox = person.sandbox(**shown, **settings)
    told = Told(sandbox).network
    assert all(sentence in told for sentence in sentences)
    approver = Callback(lambda _question: is_granted)
    options: dict[str, Any] = {"network": True} if is_granted else {}
    result = sandbox.run(["python3", "-c", CONNECT], approver=approver, **options)
    found = json.loads(printed(result))
    assert found["proxy"] == (BY_PROXY in told)
    assert found["udp"] == ("user's machine" in sentences[0])
    assert not found["raw"], "no capability is left for one"
    assert (found["namespace"] == os.readlink("/proc/self/ns/net")) == (kind == "the host's")
    if not found["udp"]:
        assert not found["tcp"]
    if found["proxy"]:
        assert (found["http"], found["https"], found["socks"]) == ("HTTP/1.1", "HTTP/1.1", True)
        assert found["port"] == "403"
    if kind == "granted":
        assert {denial.rule for denial in result.denials if ":8080" in denial.place} == {"port"}
