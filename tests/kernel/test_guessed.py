# SPDX-License-Identifier: Apache-2.0
"""What is guessed from the words of a command that failed: which path was refused, or which profile refused it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import is_rootfs_chosen, printed, run_cli

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Ground

pytestmark = pytest.mark.kernel

of_the_host = pytest.mark.view(
    "sealed", "host", reason="in a rootfs nobody misses the host's files, so nothing is told of them"
)


@pytest.fixture
def secret(ground: Ground) -> Path:
    if is_rootfs_chosen():  # where nobody misses the host's files, but the project's
        return ground.write("id_ed25519", "secret")
    path = ground.home / ".ssh" / "id_ed25519"
    path.parent.mkdir(mode=0o700)
    path.write_text("secret")
    return path


def test_the_shell_that_speaks_is_not_what_was_refused(ground: Ground) -> None:
    result = ground.run("echo x > /etc/x")
    assert [hint.text.partition(":")[0] for hint in result.hints] == ["/etc/x"]
    assert "/usr" not in result.text()


def test_a_command_that_fails_and_names_the_path_is_explained_without_being_asked(ground: Ground, secret: Path) -> None:
    result = ground.run(["cat", os.fspath(secret)])
    missing = ground.run(["cat", f"{secret}-that-nobody-has"])
    codes = [hint.code for hint in (*result.hints, *missing.hints)]
    assert codes == (["masked-secret"] if is_rootfs_chosen() else ["denied-path", "denied-path"])
    written = ground.run(["mkdir", "/data"])
    assert [hint.text for hint in written.hints] == ["/data: the sandbox does not include this path."]
    assert ground.run(["cat", "missing"]).hints == ()


@of_the_host
def test_a_hidden_file_that_is_read_is_named_with_its_rule_and_what_would_allow_it(ground: Ground, engine: str) -> None:
    hidden = ground.home / "notes"
    hidden.write_text("hidden")
    [hint] = ground.run(["cat", os.fspath(hidden)]).hints
    assert hint.text.startswith(f"{hidden}: hidden: {ground.home} is empty in the sandbox")
    assert f"--readable {hidden}`" in hint.remedy
    allowed = ground.sandbox("allowed", readable=(bytes(hidden),)).run(["cat", os.fspath(hidden)])
    assert (printed(allowed), allowed.hints) == ("hidden", ())


@of_the_host
def test_a_key_is_said_to_be_never_shown_on_request_because_it_is_not(ground: Ground, secret: Path) -> None:
    [hint] = ground.run(["cat", os.fspath(secret)]).hints
    assert "No option shows it" in hint.remedy
    assert "--" not in hint.remedy
    asked = run_cli("run", "--readable", secret, "--", "cat", secret, cwd=ground.project)
    assert asked.returncode
    assert b"never shown" in asked.stderr
    ground.configure(f"readable = ['{secret}']\n")
    assert run_cli("run", "--", "cat", secret, cwd=ground.project).stdout == b"secret"


@of_the_host
def test_a_write_into_a_hidden_directory_is_told_alike_whether_or_not_it_exists(ground: Ground) -> None:
    other = ground.home / "other"
    other.mkdir()
    texts = []
    for place in (other, ground.home / "never"):
        result = ground.run(f"echo x > {place}/z")
        [hint] = result.hints
        assert hint.text.startswith(f"{place}/z: its directory does not exist: ")
        assert f"--root {place}`" in hint.remedy
        texts.append((result.text() + hint.text + hint.remedy).replace(place.name, "*"))
    assert texts[0] == texts[1]
    assert ground.sandbox("allowed", roots=(bytes(other),)).run(f"echo x > {other}/z").ok


def test_a_write_outside_the_roots_is_named_and_the_root_that_is_proposed_allows_it(ground: Ground) -> None:
    other = ground.home / "other"
    other.mkdir()
    [hint] = ground.sandbox(readable=(bytes(other),)).run(f"echo x > {other}/made").hints
    assert hint.text.startswith(f"{other}/made: {other} is read-only: ")
    assert f"--root {other}`" in hint.remedy
    allowed = ground.sandbox("allowed", roots=(bytes(other),)).run(f"echo x > {other}/made")
    assert (allowed.ok, allowed.hints) == (True, ())


def test_masks_are_explained_too(ground: Ground) -> None:
    private = ground.home / "shown" / "private"
    private.mkdir(parents=True)
    (private / "file").write_text("x")
    sandbox = ground.sandbox(readable=(bytes(private.parent),), hidden=(bytes(private),))
    [hint] = sandbox.run(["cat", os.fspath(private / "file")]).hints
    assert "hidden by your policy" in hint.text
    assert hint.remedy == "Remove it from `hidden`."


SERVER: Final = "import socket; socket.socket(socket.AF_UNIX).bind('place')"


def test_the_strict_profile_is_named_where_it_refuses_a_unix_socket(ground: Ground) -> None:
    refused = ground.sandbox("strict", profile="strict").run(["python3", "-c", SERVER])
    assert [hint.code for hint in refused.hints] == ["strict-profile"]
    assert 'Note: `profile = "strict"` blocks Unix sockets' in refused.text()
    assert ground.run(["python3", "-c", SERVER]).ok
