# SPDX-License-Identifier: Apache-2.0
"""The provider of sandboxes for dcode, as dcode's own registry finds and uses it."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deepagents_code.integrations.sandbox_config import SandboxConfig
from deepagents_code.integrations.sandbox_factory import create_sandbox
from deepagents_code.integrations.sandbox_provider import SandboxError, SandboxNotFoundError, SandboxProvider
from deepagents_code.integrations.sandbox_registry import SandboxRegistry

from tests.support import HOST_ROOT, Ground, kinds
from unspill import Sandbox
from unspill.adapters.deepagents import UnspillSandbox
from unspill.adapters.deepagents_code import UnspillProvider

pytestmark = [pytest.mark.kernel, pytest.mark.agents]


@pytest.fixture
def provider(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxProvider]:
    """What dcode's registry makes of our entry point, in the project."""
    ground.configure('after = "hold"\n')
    monkeypatch.chdir(ground.project)
    made = SandboxRegistry(config=SandboxConfig()).create_provider("unspill")
    yield made
    assert isinstance(made, UnspillProvider)
    for name in list(made._opened):
        made.delete(sandbox_id=name)


def test_dcode_finds_the_provider_by_its_entry_point(provider: SandboxProvider) -> None:
    registry = SandboxRegistry(config=SandboxConfig())
    assert registry.is_available("unspill")
    assert "unspill" in registry.available_providers()
    assert type(provider) is UnspillProvider
    # The control arm
    assert not SandboxRegistry(config=SandboxConfig(), include_entry_points=False).is_available("unspill")


def test_dcode_is_told_where_the_project_is(provider: SandboxProvider, ground: Ground) -> None:
    found = SandboxRegistry(config=SandboxConfig()).get_metadata("unspill")
    assert found is not None
    assert (found.name, found.working_dir) == ("unspill", ground.inside())
    assert (found.supports_sandbox_id, found.supports_snapshot_name) == (True, False)
    assert found.install is not None
    assert found.install.command(in_app=True) == "/install unspill --package"
    backend = provider.get_or_create()
    assert backend.execute("pwd").output == f"{found.working_dir}\n"


@pytest.mark.view("sealed", reason="it chooses the other one")
def test_dcode_is_told_where_the_project_is_in_a_rootfs(provider: SandboxProvider, ground: Ground) -> None:
    ground.configure(f'view = "rootfs"\nrootfs = "{HOST_ROOT}"\n')
    assert provider.metadata is not None
    assert provider.metadata.working_dir == "/workspace"


def test_a_sandbox_is_made_used_and_deleted_and_keeps_what_is_held(provider: SandboxProvider, ground: Ground) -> None:
    backend = provider.get_or_create()
    assert isinstance(backend, UnspillSandbox)
    assert backend.execute("echo x > file; cat file").output == "x\n"

    provider.delete(sandbox_id=backend.id)

    with Sandbox(ground.project) as sandbox:
        assert kinds(sandbox.changes()) == {"file": "added"}
    with pytest.raises(SandboxNotFoundError):
        provider.delete(sandbox_id=backend.id)


def test_a_sandbox_is_found_again_by_its_id_and_is_another_than_others(provider: SandboxProvider) -> None:
    first = provider.get_or_create(sandbox_id="review")
    first.execute("echo x > file")
    provider.delete(sandbox_id="review")

    assert provider.get_or_create(sandbox_id="review").execute("cat file").output == "x\n"
    assert provider.get_or_create().execute("ls").output == ""


def test_a_sandbox_is_opened_once_and_for_one_project(provider: SandboxProvider, ground: Ground) -> None:
    first, again = provider.get_or_create(), provider.get_or_create(project=os.fspath(ground.project))
    assert isinstance(first, UnspillSandbox)
    assert isinstance(again, UnspillSandbox)
    assert first.sandbox is again.sandbox
    other = ground.home / "other"
    other.mkdir()
    with pytest.raises(SandboxError, match="is open for another project"):
        provider.get_or_create(project=os.fspath(other))
    assert provider.get_or_create(sandbox_id="second", project=os.fspath(other)).execute("ls").output == ""


def test_what_is_held_is_thrown_away_if_that_is_asked_for(provider: SandboxProvider, ground: Ground) -> None:
    provider.get_or_create().execute("echo x > file")
    provider.delete(sandbox_id="default", discard=True)
    with Sandbox(ground.project) as sandbox:
        assert not sandbox.changes()


def test_the_project_is_that_of_the_person_and_not_where_dcode_s_server_runs(
    provider: SandboxProvider, ground: Ground, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ground.write("src/file", "x\n")
    (ground.project / ".git").mkdir()
    monkeypatch.setenv("DEEPAGENTS_CODE_SERVER_CWD", os.fspath(ground.project / "src"))
    monkeypatch.chdir(tmp_path_factory.mktemp("server"))
    assert provider.get_or_create().execute("cat src/file").output == "x\n"


def test_a_sandbox_that_can_not_be_opened_is_the_framework_s_error(provider: SandboxProvider, ground: Ground) -> None:
    with pytest.raises(SandboxError, match="not/a name"):
        provider.get_or_create(sandbox_id="not/a name")
    with pytest.raises(SandboxError, match="no such setting: colour"):
        provider.get_or_create(colour="red")
    ground.configure("no-such-setting = 1\n")
    assert provider.metadata is not None
    assert Path(provider.metadata.working_dir) == ground.project
    with pytest.raises(SandboxError, match="no-such-setting"):
        provider.get_or_create()


def test_dcode_itself_opens_sets_up_and_closes_a_sandbox(
    provider: SandboxProvider, ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = tmp_path / "setup"
    setup.write_text("echo set up > file\n")

    with create_sandbox("unspill", setup_script_path=os.fspath(setup)) as backend:
        assert backend.execute("cat file").output == "set up\n"

    assert "Unspill sandbox ready: default" in capsys.readouterr().out
    with Sandbox(ground.project) as sandbox:
        assert kinds(sandbox.changes()) == {"file": "added"}


def blocking(call: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a call where an event loop runs, as LangGraph's server does."""

    def checked(*words: Any, **options: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return call(*words, **options)
        raise AssertionError(f"a blocking call in the event loop: {call.__name__}")

    return checked


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("readlink", "scandir", "mkdir", "rename", "unlink", "read", "write"):
        monkeypatch.setattr(os, name, blocking(getattr(os, name)))


@pytest.mark.usefixtures("guarded")
def test_a_sandbox_is_opened_used_and_closed_off_the_event_loop(provider: SandboxProvider) -> None:
    async def use() -> str:
        assert provider.metadata is not None
        backend = provider.get_or_create()
        output = backend.execute("echo x").output
        provider.delete(sandbox_id=backend.id)
        return output

    assert asyncio.run(use()) == "x\n"


@pytest.mark.usefixtures("guarded")
def test_what_is_opened_in_the_event_loop_itself_is_refused_there(ground: Ground) -> None:
    """The control: a server of LangGraph's stopped dcode so."""

    async def use() -> None:
        Sandbox(ground.project).close()

    with pytest.raises(AssertionError, match="in the event loop"):
        asyncio.run(use())
