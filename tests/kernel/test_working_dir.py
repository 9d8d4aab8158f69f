# SPDX-License-Identifier: Apache-2.0
"""Where a command starts: the project, a place in it, anywhere that exists, the playground."""

import os
from pathlib import Path

import pytest

from tests.support import Ground, kinds, printed
from unspill.errors import UsageError

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap, pytest.mark.rootfs_view]


@pytest.mark.parametrize("given", [None, "", "."])
def test_the_project_is_the_default(ground: Ground, engine: str, given: str | None) -> None:
    assert printed(ground.run("pwd", cwd=given)) == f"{ground.inside()}\n"


def test_the_callers_own_directory_does_not_matter(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/usr")
    assert printed(ground.run("pwd")) == f"{ground.inside()}\n"


@pytest.mark.parametrize("given", ["sub/dir", "./sub//dir/", "sub/../sub/dir"])
def test_what_is_not_absolute_is_relative_to_the_project(ground: Ground, engine: str, given: str) -> None:
    ground.write("sub/dir/file", "found\n")
    result = ground.run("pwd; cat file", cwd=given)
    assert printed(result) == f"{ground.inside()}/sub/dir\nfound\n"


def test_an_absolute_path_is_kept(ground: Ground, engine: str) -> None:
    ground.write("sub/file")
    assert printed(ground.run("pwd", cwd=os.fspath(ground.project / "sub"))) == f"{ground.inside()}/sub\n"
    # There is no restriction: what may be written there is the sandbox's business
    assert printed(ground.run("pwd; touch x 2>/dev/null || echo read-only", cwd="/usr/bin")) == "/usr/bin\nread-only\n"


@pytest.mark.parametrize("given", ["/tmp", "/"])
def test_a_directory_that_every_sandbox_has_will_do(ground: Ground, given: str) -> None:
    assert printed(ground.run("pwd", cwd=given)) == f"{given}\n"


def test_playground_is_a_name_of_its_own(ground: Ground, engine: str) -> None:
    result = ground.run("pwd; echo kept > note", cwd="playground")
    assert printed(result) == f"{ground.playground_inside}\n"
    assert not result.changes
    assert printed(ground.run("cat note", cwd=ground.playground_inside)) == "kept\n"
    assert printed(ground.run("cat ~/playground/note")) == "kept\n"


def test_a_place_in_the_playground_may_be_new_there(ground: Ground) -> None:
    ground.run("mkdir -p clone/deep", cwd="playground")
    assert printed(ground.run("pwd", cwd=f"{ground.playground_inside}/clone/deep")).endswith("/playground/clone/deep\n")
    missing = f"{ground.playground_inside}/other"
    with pytest.raises(UsageError) as refused:
        ground.run("pwd", cwd=missing)
    assert refused.value.message == f"ERROR: Working directory does not exist: {missing}"


@pytest.mark.parametrize("given", ["missing", "/no/such/directory", "sub/missing"])
def test_a_directory_that_is_not_there_is_refused_in_the_words_of_the_seeds(
    ground: Ground, engine: str, given: str
) -> None:
    ground.write("sub/file")
    whole = Path(given) if given.startswith("/") else Path(ground.inside()) / given
    with pytest.raises(UsageError) as refused:
        ground.run("pwd", cwd=given)
    assert refused.value.message == f"ERROR: Working directory does not exist: {whole}"
    assert ground.left_behind() == []


def test_it_is_refused_too_where_only_the_sandbox_could_have_known(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    sandbox.run("touch file")
    with pytest.raises(UsageError) as refused:
        sandbox.run("pwd", cwd="missing")
    assert refused.value.message == f"ERROR: Working directory does not exist: {ground.inside()}/missing"


def test_a_file_is_no_directory(ground: Ground, engine: str) -> None:
    ground.write("file")
    sandbox = ground.sandbox()
    for expected in (f"ERROR: Working directory is not a directory: {ground.inside()}/file",) * 2:
        with pytest.raises(UsageError) as refused:
            sandbox.run("pwd", cwd="file")
        assert refused.value.message == expected
        # The second time with something held, where the host's answer may be out of date
        sandbox.run("touch other")


def test_a_directory_of_an_earlier_run_will_do(ground: Ground, engine: str) -> None:
    sandbox = ground.sandbox()
    sandbox.run("mkdir -p made/deep; echo x > made/deep/f")
    assert printed(sandbox.run("pwd; cat f", cwd="made/deep")) == f"{ground.inside()}/made/deep\nx\n"
    assert not (ground.project / "made").exists()


def test_a_directory_that_an_earlier_run_removed_is_not_there(ground: Ground, engine: str) -> None:
    ground.write("dir/file")
    sandbox = ground.sandbox()
    sandbox.run("rm -r dir")
    with pytest.raises(UsageError, match="ERROR: Working directory does not exist: "):
        sandbox.run("pwd", cwd="dir")


def test_a_link_is_followed_inside_the_sandbox_only(ground: Ground, engine: str) -> None:
    ground.write("real/file", "x")
    (ground.project / "link").symlink_to("real")
    assert printed(ground.run("pwd -P; ls", cwd="link")) == f"{ground.inside()}/real\nfile\n"
    outside = ground.home / "private"
    outside.mkdir()
    (ground.project / "out").symlink_to(outside)
    with pytest.raises(UsageError, match="does not exist"):
        ground.run("pwd", cwd="out")


def test_a_hidden_place_of_the_host_is_not_there(ground: Ground) -> None:
    (ground.home / "Documents").mkdir()
    with pytest.raises(UsageError, match="ERROR: Working directory does not exist: "):
        ground.run("pwd", cwd=os.fspath(ground.home / "Documents"))


def test_nul_and_invalid_names_are_refused(ground: Ground) -> None:
    with pytest.raises(UsageError):
        ground.run("pwd", cwd="a\0b")


def test_writes_count_wherever_the_command_started(ground: Ground, engine: str) -> None:
    ground.write("a/b/file")
    assert kinds(ground.run("touch new ../up", cwd="a/b").changes) == {"a/b/new": "added", "a/up": "added"}
