# SPDX-License-Identifier: Apache-2.0
"""The variables of a command: an allow-list in every view, values that no `ps` shows, secrets never."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import Event, Ground, chosen_views, printed
from unspill import OutputChunk
from unspill.errors import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


def variables(ground: Ground, **options: Any) -> dict[str, str]:
    text = printed(ground.sandbox(**options).run(["env", "-0"]))
    return dict(line.partition("=")[::2] for line in text.split("\0") if line)


@pytest.mark.parametrize("view", chosen_views())
def test_only_allowed_variables_enter(ground: Ground, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LANG": "de_DE.UTF-8",
        "LC_TIME": "C",
        "TERM": "xterm",
        "TZ": "UTC",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "GITHUB_TOKEN": "s3cret",
        "SSH_AUTH_SOCK": "/run/agent",
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus",
        "XDG_RUNTIME_DIR": "/run/user/1",
        "LD_PRELOAD": "/evil.so",
        "PYTHONPATH": "/evil",
        "MY_SETTING": "1",
    }.items():
        monkeypatch.setenv(name, value)
    found = variables(ground, view=view)
    language = {"LANG": "C.UTF-8"} if view == "rootfs" else {"LANG": "de_DE.UTF-8", "LC_TIME": "C"}
    expected = {**language, "TERM": "xterm", "TZ": "UTC"}
    assert {name: found.get(name) for name in ("LANG", "LC_TIME", "TERM", "TZ") if name in found} == expected
    assert "s3cret" not in str(found)
    assert not {"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "LD_PRELOAD", "MY_SETTING"} & set(found)


def test_home_user_and_tmpdir_are_set(ground: Ground, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setenv("USER", "somebody-else")
    found = variables(ground)
    assert found["HOME"] == ground.home_inside
    assert found["TMPDIR"] == "/tmp"
    assert found["USER"] == found["LOGNAME"] != "somebody-else"
    assert found["PWD"] == ground.inside() or "PWD" not in found


@pytest.mark.view("sealed", "host", reason="PATH is fixed in a rootfs; test_rootfs_view.py has all its variables")
def test_the_path_has_only_what_is_there(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/usr/bin:{ground.top}/elsewhere:.:/bin:{ground.state}:/usr/bin")
    assert variables(ground)["PATH"] == "/usr/bin:/bin"


def test_a_configured_variable_enters(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_SETTING", "APP_ONE", "APP_TOKEN"):
        monkeypatch.setenv(name, "1")
    found = variables(ground, environment=("MY_SETTING", "APP_*"))
    assert found["MY_SETTING"] == found["APP_ONE"] == "1"
    assert "APP_TOKEN" not in found
    assert variables(ground, environment=("APP_TOKEN",))["APP_TOKEN"] == "1"


def test_a_call_may_set_variables(ground: Ground, engine: str) -> None:
    given = {"A": "1", "EMPTY": "", "LONG": "x" * 100_000, "ODD": "a\nb=c\t\x7f ünï", "LANG": "C"}
    result = ground.run(["python3", "-c", "import os; print(ascii(dict(os.environ)))"], env=given)
    found = printed(result)
    for name, value in given.items():
        assert f"{name!a}: {value!a}" in found


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH"])
def test_some_variables_never_enter(ground: Ground, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        ground.run("true", env={name: "x"})


@pytest.mark.parametrize("name", ["", "A=B", "A\0"])
def test_a_name_that_no_variable_has_is_refused(ground: Ground, name: str) -> None:
    with pytest.raises(UsageError):
        ground.run("true", env={name: "x"})


def test_values_are_on_no_command_line(ground: Ground, engine: str) -> None:
    secret = "value-that-ps-must-not-show"
    seen: list[str] = []
    looked = threading.Event()

    def look(event: Event) -> None:
        if isinstance(event, OutputChunk) and not looked.is_set():
            looked.set()
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.append(path.read_bytes().decode(errors="replace"))
                except OSError:
                    continue

    result = ground.run("echo $A; sleep 1", env={"A": secret}, on_event=look)
    assert printed(result) == f"{secret}\n"
    assert any("--json-status-fd" in line for line in seen)
    assert not [line for line in seen if secret in line]
