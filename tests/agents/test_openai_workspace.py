# SPDX-License-Identifier: Apache-2.0
"""Files by the sandbox interface of the OpenAI agents SDK: the tree that commands see, and nothing else of the host."""

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agents.sandbox import Manifest, SandboxPathGrant
from agents.sandbox.errors import (
    ApplyPatchDiffError,
    ExecNonZeroError,
    InvalidManifestPathError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.files import EntryKind
from agents.sandbox.session import SandboxSession

from tests.agents.openai_given import opened
from tests.support import Ground, kinds
from unspill import Secrets
from unspill.adapters.openai_agents import UnspillClient
from unspill.errors import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.asyncio, pytest.mark.agents]


@pytest_asyncio.fixture
async def workspace(ground: Ground) -> AsyncIterator[SandboxSession]:
    """A started workspace, over a sandbox that holds changes."""
    started = await opened(ground)
    yield started
    await started.aclose()


async def test_file_methods_and_commands_see_one_tree_and_the_project_is_not_touched(
    ground: Ground, workspace: SandboxSession
) -> None:
    ground.write("old.txt", "old\n")
    await workspace.write(Path("new/file"), io.BytesIO(b"by a method\0\xff"))
    await workspace.exec("echo by a command > other; echo more >> old.txt")
    assert (await workspace.exec("cat new/file")).stdout == b"by a method\0\xff"
    assert (await workspace.read(Path("other"))).read() == b"by a command\n"
    assert (await workspace.read(Path(ground.inside(), "old.txt"))).read() == b"old\nmore\n"
    assert kinds(ground.sandbox().changes()) == {
        "new": "added", "new/file": "added", "old.txt": "modified", "other": "added"
    }  # fmt: skip
    assert [path.name for path in ground.project.iterdir()] == ["old.txt"]
    assert (ground.project / "old.txt").read_text() == "old\n"


async def test_what_is_written_is_applied_where_the_policy_says_so_and_undone(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    workspace = await UnspillClient(sandbox).create()
    await workspace.start()
    await workspace.write(Path("file"), io.BytesIO(b"x"))
    assert (ground.project / "file").read_bytes() == b"x"
    sandbox.undo()
    with pytest.raises(WorkspaceReadNotFoundError):
        await workspace.read(Path("file"))


async def test_reading_fails_as_the_sdk_expects(ground: Ground, workspace: SandboxSession) -> None:
    ground.write("dir/file", "x")
    with pytest.raises(WorkspaceReadNotFoundError):
        await workspace.read(Path("missing"))
    with pytest.raises(IsADirectoryError):
        await workspace.read(Path("dir"))
    for outside in (Path("../diary"), Path("/etc/passwd")):
        with pytest.raises(InvalidManifestPathError):
            await workspace.read(outside)
    assert await workspace.read_bounded(Path("dir/file"), max_bytes=10) == b"x"
    ground.write("long", "y" * 10_000)
    assert await workspace.read_bounded(Path("long"), max_bytes=10) == b"y" * 10


async def test_a_link_leads_no_further_than_the_sandbox(ground: Ground, workspace: SandboxSession) -> None:
    (ground.home / "diary").write_text("secret")
    (ground.project / "link").symlink_to(ground.home / "diary")
    with pytest.raises(WorkspaceReadNotFoundError):
        await workspace.read(Path("link"))
    with pytest.raises(OSError, match="it is not kept"):
        await workspace.write(Path("link"), io.BytesIO(b"mine"))
    assert (ground.home / "diary").read_text() == "secret"


async def test_a_masked_secret_is_not_read(ground: Ground, workspace: SandboxSession) -> None:
    ground.write(".env", "TOKEN=1")
    with pytest.raises(WorkspaceReadNotFoundError):
        await workspace.read(Path(".env"))
    # Control: where the person does not want that
    revealing = await opened(ground, secrets=Secrets(mask=False))
    assert (await revealing.read(Path(".env"))).read() == b"TOKEN=1"


async def test_text_is_not_written_as_bytes(workspace: SandboxSession) -> None:
    with pytest.raises(WorkspaceWriteTypeError):
        await workspace.write(Path("file"), io.StringIO("x"))


async def test_a_write_that_would_not_last_is_an_error(ground: Ground) -> None:
    workspace = await opened(ground, Manifest(extra_path_grants=(SandboxPathGrant(path="/tmp"),)))
    with pytest.raises(OSError, match="finds an empty directory"):
        await workspace.write(Path("/tmp/x"), io.BytesIO(b"x"))


async def test_directories_are_listed_made_moved_and_removed(ground: Ground, workspace: SandboxSession) -> None:
    ground.write("a/file", "12345")
    (ground.project / "link").symlink_to("a")
    await workspace.mkdir("b/c", parents=True)
    await workspace.mv("a/file", "b/c/moved")
    entries = {entry.path.rpartition("/")[2]: entry for entry in await workspace.ls(".")}
    assert {name: entry.kind for name, entry in entries.items()} == {
        "a": EntryKind.DIRECTORY, "b": EntryKind.DIRECTORY, "link": EntryKind.SYMLINK
    }  # fmt: skip
    (moved,) = await workspace.ls("b/c")
    assert (moved.path, moved.size, moved.kind) == (f"{ground.inside()}/b/c/moved", 5, EntryKind.FILE)
    assert await workspace.same_file("b/c/moved", "b/c/../c/moved")
    await workspace.rm("b", recursive=True)
    with pytest.raises(ExecNonZeroError):
        await workspace.ls("b")
    assert (ground.project / "a/file").read_text() == "12345"


async def test_a_patch_is_made_inside(ground: Ground, workspace: SandboxSession) -> None:
    ground.write("old.py", "a = 1\nb = 2\n")
    await workspace.apply_patch({"type": "update_file", "path": "old.py", "diff": "@@\n a = 1\n-b = 2\n+b = 3\n"})
    await workspace.apply_patch({"type": "create_file", "path": "new.py", "diff": "+c = 4\n"})
    assert (await workspace.exec("cat old.py new.py")).stdout.split() == b"a = 1 b = 3 c = 4".split()
    with pytest.raises(ApplyPatchDiffError, match="already exists"):
        await workspace.apply_patch({"type": "create_file", "path": "old.py", "diff": "+d\n"})
    await workspace.apply_patch({"type": "delete_file", "path": "old.py"})
    assert kinds(ground.sandbox().changes()) == {"new.py": "added", "old.py": "deleted"}
    assert (ground.project / "old.py").read_text() == "a = 1\nb = 2\n"


async def test_no_archive_is_made_of_the_workspace_and_none_put_into_it(workspace: SandboxSession) -> None:
    for attempt in (workspace.persist_workspace(), workspace.hydrate_workspace(io.BytesIO())):
        with pytest.raises(UsageError, match="the sandbox keeps it"):
            await attempt


async def test_an_archive_that_leads_out_of_the_workspace_reaches_nothing(
    ground: Ground, workspace: SandboxSession
) -> None:
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        link = tarfile.TarInfo("door")
        link.type, link.linkname = tarfile.SYMTYPE, str(ground.home)
        tar.addfile(link)
        for name in ("door/planted", "../planted", f"{ground.home}/planted"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    evil.seek(0)
    await workspace.write(Path("evil.tar"), evil)
    await workspace.exec("tar -P -xf evil.tar")
    assert not (ground.home / "planted").exists()
    # Control: unpacked here, by what believes it
    evil.seek(0)
    with tarfile.open(fileobj=evil) as tar:
        tar.extraction_filter = lambda member, _path: member
        tar.extractall(ground.project)
    assert (ground.home / "planted").read_bytes() == b"evil"


async def test_archives_are_unpacked_by_the_sdk_into_the_sandbox(ground: Ground, workspace: SandboxSession) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("inner/file")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    archive.seek(0)
    await workspace.extract("in.tar", archive)
    assert (await workspace.exec("cat inner/file")).stdout == b"x"
    assert [*ground.project.iterdir()] == []
