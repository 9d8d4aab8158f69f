# SPDX-License-Identifier: Apache-2.0
"""git inside: it works with the person's identity, without anything that runs or unlocks, and re-reads nothing."""

import os
import subprocess

import pytest

from tests.support import NO_TOOLCHAINS, Ground, kinds, printed
from unspill.git.files import find_outside

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

CONFIG = """
[user]
    name = Ada Lovelace
    email = ada@example.org
[init]
    defaultBranch = trunk
[alias]
    evil = !echo ran-alias
[credential]
    helper = !echo ran-helper
[core]
    hooksPath = {home}/hooks
    pager = echo ran-pager
    fsmonitor = echo ran-fsmonitor
[include]
    path = {home}/more
[url "https://token@example.org/"]
    insteadOf = https://example.org/
"""


def host_git(ground: Ground, *words: str) -> str:
    """Run git outside, as the person."""
    return subprocess.run(["git", *words], cwd=ground.project, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project under git, with an identity and some dangerous settings in the person's configuration."""
    (ground.home / ".gitconfig").write_text(CONFIG.format(home=ground.home))
    (ground.home / "more").write_text("[user]\n    signingkey = secret-key\n")
    (ground.home / ".git-credentials").write_text("https://user:secret@example.org\n")
    for path in (ground.write("dir/a", "1\n"), ground.write("b", "2\n")):
        # Older than the index: git reads again what may have changed in the very moment it was added
        os.utime(path, (1_000_000_000, 1_000_000_000))
    host_git(ground, "-c", "core.fsmonitor=", "init", "-q")
    host_git(ground, "-c", "core.fsmonitor=", "add", "-A")
    host_git(ground, "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "commit", "-qm", "first")
    return ground


def test_what_reads_references_itself_understands_them_inside(repository: Ground) -> None:
    """GitPython, and so aider, refuses a header that does not mention peeling; git must not take it for a promise."""
    host_git(repository, "-c", "core.hooksPath=/dev/null", "tag", "-a", "-m", "noted", "v1")
    inside = printed(repository.sandbox().run("head -n 1 .git/packed-refs; git show-ref -d"))
    header, _, refs = inside.partition("\n")
    assert header.startswith("# pack-refs with:")
    assert "peeled" in header
    assert refs == host_git(repository, "show-ref", "-d")
    assert "refs/tags/v1^{}" in refs


def test_a_new_repository_can_be_made_and_filled(ground: Ground, engine: str) -> None:
    (ground.home / ".gitconfig").write_text(CONFIG.format(home=ground.home))
    sandbox = ground.sandbox()
    assert sandbox.run("git init -q && echo x > file && git add file && git commit -qm 'a commit'").ok
    log = printed(sandbox.run("git log --format='%an <%ae> %s'; git branch --show-current; git status --short"))
    assert log == "Ada Lovelace <ada@example.org> a commit\ntrunk\n"
    assert not (ground.project / ".git").exists()
    assert ".git" in kinds(sandbox.changes())


def test_work_goes_on_in_a_repository(repository: Ground, engine: str) -> None:
    sandbox = repository.sandbox()
    result = sandbox.run("echo 3 >> b && git diff --stat && git commit -qam second && git log --oneline | wc -l")
    assert printed(result).splitlines()[-1] == "2"
    assert printed(sandbox.run("git log -1 --format='%an %s'")) == "Ada Lovelace second\n"
    assert host_git(repository, "-c", "core.fsmonitor=", "log", "--format=%s") == "first\n"


def test_looking_changes_nothing(repository: Ground, engine: str) -> None:
    result = repository.run("git status --short; git diff; git log --oneline >/dev/null; git branch; git stash list")
    assert printed(result) == "* trunk\n"
    assert kinds(result.changes) == {}
    assert not result.held


def test_git_trusts_its_index_and_reads_no_file_again(repository: Ground, engine: str) -> None:
    index = (repository.project / ".git" / "index").read_bytes()
    sandbox = repository.sandbox()
    opened = "strace -f -qq -e trace=openat -o /tmp/trace git status --short && grep -c '\"b\"\\|dir/a' /tmp/trace"
    assert sandbox.run(opened).stdout.kept() == b"0\n"
    # The control arm: a file that looks changed is read
    result = sandbox.run(f"touch b; {opened}")
    assert int(result.stdout.kept()) > 0
    assert (repository.project / ".git" / "index").read_bytes() == index


def test_nothing_that_runs_or_unlocks_comes_along(repository: Ground, engine: str) -> None:
    hook = repository.home / "hooks" / "post-commit"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\necho ran-hook\n")
    hook.chmod(0o755)
    sandbox = repository.sandbox()
    seen = sandbox.run(
        "git config --list --global; git evil; git commit --allow-empty -m x; git log -1; cat ~/.git-credentials;"
        "printf 'protocol=https\\nhost=example.org\\n\\n' | GIT_TERMINAL_PROMPT=0 git credential fill"
    )
    text = seen.stdout.kept().decode() + seen.stderr.kept().decode()
    assert "user.name=Ada Lovelace" in text
    for forbidden in ("ran-", "secret", "helper", "hookspath", "include", "token", "alias."):
        assert forbidden not in text.lower().replace("evil' is not a git command", "")


def test_the_identity_comes_along_in_the_host_view_too(repository: Ground) -> None:
    sandbox = repository.sandbox(view="host")
    assert sandbox.run("git commit -q --allow-empty -m x").ok
    text = printed(sandbox.run("git log -1 --format='%an %ae'; git config --list --global"))
    assert text.startswith("Ada Lovelace ada@example.org\n")
    assert "helper" not in text


def test_a_repositorys_own_hook_is_kept_in_the_sandbox(repository: Ground, engine: str) -> None:
    result = repository.run(
        "printf '#!/bin/sh\\necho hooked > hooked\\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit;"
        "git commit -q --allow-empty -m x; cat hooked"
    )
    assert printed(result) == "hooked\n"
    assert kinds(result.changes)[".git/hooks/post-commit"] == "added"
    assert not (repository.project / ".git/hooks/post-commit").exists()


def test_a_directory_that_git_can_not_rename_is_explained(repository: Ground) -> None:
    result = repository.run("git mv dir moved")
    assert not result.ok
    (hint,) = result.hints
    assert hint.code == "rename-across-layers"
    assert "EXDEV" in hint.text
    assert "git add -A" in hint.remedy
    assert f"Note: {hint.text} {hint.remedy}" in result.text()
    # The remedy works
    again = repository.run("mv dir moved && git add -A && git status --short")
    assert printed(again) == "R  dir/a -> moved/a\n"


def test_a_clone_that_git_can_not_link_is_explained(repository: Ground) -> None:
    result = repository.run("git clone -q . copy")
    assert not result.ok
    # A helper of git's can outlive the clone that failed; that it was stopped is said too
    (hint,) = [hint for hint in result.hints if hint.code != "stopped-processes"]
    assert hint.code == "hard-link-across-layers"
    # The remedy works
    assert "git clone --no-hardlinks" in hint.remedy
    assert repository.run("git clone -q --no-hardlinks . copy && git -C copy fsck --full").ok


def test_a_file_can_be_moved_by_git(repository: Ground, engine: str) -> None:
    assert printed(repository.run("git mv b c && git status --short")) == "R  b -> c\n"


@NO_TOOLCHAINS
def test_a_clone_is_applied_where_the_home_has_toolchains_and_caches(repository: Ground) -> None:
    for place in (".local/bin/tool", ".cargo/bin/cargo", ".cache/pip/wheel"):
        path = repository.home / place
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    result = repository.run('git clone -q "file://$PWD" vendor', after="apply")
    assert result.ok, result
    assert result.operation is not None
    assert result.operation.left == ()
    assert len(list((repository.project / "vendor" / ".git" / "objects" / "pack").glob("*.idx"))) == 1
    host_git(repository, "-c", "core.fsmonitor=", "-C", "vendor", "fsck", "--full", "--strict")


def test_a_worktree_beside_its_repository_is_told_what_to_show_and_then_works(repository: Ground) -> None:
    safe = ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")
    host_git(repository, *safe, "worktree", "add", "-q", "../tree")
    outside, tree = repository.project / ".git", repository.home / "tree"
    (hint,) = repository.sandbox(project=tree).run("git status").hints
    assert (hint.code, f"`--readable {outside}`" in hint.remedy) == ("git-outside", True)
    shown = repository.sandbox(name="shown", project=tree, readable=(os.fsencode(outside),))
    assert printed(shown.run("git status --short --branch && git log --format=%s")) == "## tree\nfirst\n"
    (hint,) = shown.run("echo new >> b; git commit -qam new").hints
    assert (hint.code, "it is read-only" in hint.text) == ("git-outside", True)
    # A pointer alone leads anywhere: the repository must know the worktree
    other = repository.home / "other"
    other.mkdir()
    (other / ".git").write_bytes((tree / ".git").read_bytes())
    assert not any(hint.code == "git-outside" for hint in repository.sandbox(project=other).run("git status").hints)


def test_a_module_whose_repository_lies_above_it_is_told_what_to_show(ground: Ground) -> None:
    host_git(ground, "init", "-q")
    modules = ground.project / ".git/modules"
    modules.mkdir()
    host_git(ground, "init", "-q", f"--separate-git-dir={modules}/inner", "inner")
    git = modules / "inner"
    assert find_outside(os.fsencode(ground.project / "inner")) is None
    subprocess.run(["git", "config", "core.worktree", "../../../inner"], cwd=git, check=True)
    assert find_outside(os.fsencode(ground.project / "inner")) == os.fsencode(git)
    (hint,) = ground.sandbox(project=ground.project / "inner").run("git status").hints
    assert (hint.code, f"`--readable {git}`" in hint.remedy) == ("git-outside", True)
