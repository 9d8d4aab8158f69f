# SPDX-License-Identifier: Apache-2.0
"""Sandboxes without a project: over a directory of their own, which goes with them."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.apart import apart, left  # noqa: F401
from tests.support import printed
from unspill.errors import PolicyError
from unspill.sandbox.sandbox import open_temporary, remove_temporary

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("apart")]


def test_files_and_temporary_files_are_there_for_the_next_run_and_gone_with_the_sandbox() -> None:
    sandbox = open_temporary()
    printed(sandbox.run("echo one >file; echo two >/tmp/file; echo three >.env"))
    assert printed(sandbox.run("cat file /tmp/file .env")) == "one\ntwo\nthree\n"
    project = Path(os.fsdecode(sandbox.project))
    assert list(project.iterdir()) == []
    assert left()
    remove_temporary(sandbox)
    assert not project.exists()
    assert left() == []


def test_two_share_nothing() -> None:
    first, second = open_temporary(), open_temporary()
    first.run("echo x >/tmp/file; echo x >file")
    assert printed(second.run("ls -A . /tmp")) == ".:\n\n/tmp:\n"
    remove_temporary(first)
    assert second.run("true").ok
    remove_temporary(second)


def test_trees_that_resist_are_removed() -> None:
    sandbox = open_temporary()
    sandbox.run("mkdir -p /tmp/a/b; touch /tmp/a/b/c; chmod 0 /tmp/a/b /tmp/a")
    remove_temporary(sandbox)
    assert left() == []


def test_a_policy_may_come_from_a_file(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('environment = ["GREETING"]\n')
    sandbox = open_temporary(os.fspath(policy))
    assert sandbox._project.means.policy.environment == ("GREETING",)
    remove_temporary(sandbox)


def test_it_never_lies_in_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    sandbox = open_temporary()
    assert sandbox.project.startswith(b"/var/tmp/")
    assert printed(sandbox.run("touch /tmp/file; pwd")) == (
        "/workspace\n" if sandbox.view == "rootfs" else os.fsdecode(sandbox.project) + "\n"
    )
    remove_temporary(sandbox)
    assert not os.path.exists(sandbox.project)


@pytest.mark.parametrize("text", [None, "nonsense", "network = 3"])
def test_a_policy_that_can_not_be_read_makes_nothing(tmp_path: Path, text: str | None) -> None:
    policy = tmp_path / "policy.toml"
    if text is not None:
        policy.write_text(text)
    with pytest.raises(PolicyError, match=r"policy\.toml"):
        open_temporary(os.fspath(policy))
    assert left() == []
