# SPDX-License-Identifier: Apache-2.0
"""What a command sees: mounts and their order, holes for what is hidden, a git configuration, and where it starts."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given as for_all
from hypothesis import given as for_any
from hypothesis import strategies as st

from tests.unit.plan.given import HOME, PROJECT, STATE, cache, facts, given, home, places, stack
from unspill.errors import SandboxUnavailable, UsageError
from unspill.model.plan import Bind, Dev, File, Overlay, ReadOnly, Symlink, Tmpfs
from unspill.model.policy import Policy
from unspill.plan.argv import bwrap_options
from unspill.plan.build import build_plan
from unspill.plan.view import (
    ALLOWED_KEYS,
    check_no_mounts_beneath_roots,
    command_words,
    filter_identity,
    find_cover,
    in_mount_order,
    is_shown,
    missing_text,
    not_a_directory_text,
    parse_gitconfig,
    resolve_working_dir,
    to_gitconfig,
)
from unspill.policy.paths import lies_beneath, normalise

if TYPE_CHECKING:
    from typing import Any

    from unspill.model.plan import MountOp, Plan

USR = Bind(source=b"/usr", dest=b"/usr", why="")
BIN = Symlink(target=b"usr/bin", dest=b"/bin", why="")
LOOP = Symlink(target=b"loop", dest=b"/loop", why="")
FRESH_HOME = Tmpfs(dest=b"/home/ann", size_bytes=1, why="")
TOOLS = Overlay(lowers=(b"/e", b"/home/ann/tools"), dest=b"/home/ann/tools", why="")
PLAY = Bind(source=b"/state/play", dest=b"/home/ann/playground", why="", writable=True)
ROOT = Overlay(lowers=(b"/home/ann/p",), dest=b"/home/ann/p", upper=b"/u", work=b"/w", why="")
LAST = ReadOnly(dest=b"/", why="")
ALL: tuple[MountOp, ...] = (USR, BIN, LOOP, Dev(dest=b"/dev", why=""), FRESH_HOME, TOOLS, PLAY, ROOT, LAST)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"/usr", True),
        (b"/usr/bin/x", True),
        (b"/bin", True),
        (b"/bin/x", True),
        (b"/loop/x", False),
        (b"/", False),
        (b"/etc", False),
        (b"/usrlocal", False),
        (b"/home/ann", False),
        (b"/home/ann/.ssh", False),
        (b"/home/ann/tools/bin", True),
        (b"/home/ann/p/x", True),
        (b"/home/ann/playground/x", False),
        (b"/dev/null", False),
    ],
)
def test_a_path_is_shown_where_the_hosts_own_is_seen(path: bytes, shown: bool) -> None:
    assert is_shown(ALL, path) == shown


def test_the_later_of_two_operations_on_one_place_decides() -> None:
    mask = Tmpfs(dest=b"/usr", size_bytes=1, why="")
    assert find_cover((USR, mask), b"/usr/x") == mask
    assert find_cover((mask, USR), b"/usr/x") == USR


def test_the_deepest_operation_decides_whatever_the_order() -> None:
    inner = Tmpfs(dest=b"/usr/local", size_bytes=1, why="")
    assert find_cover((inner, USR), b"/usr/local/x") == inner


@pytest.mark.parametrize("outer", [ROOT, PLAY], ids=["root", "playground"])
@pytest.mark.parametrize(
    "make",
    [
        lambda dest: Tmpfs(dest=dest, size_bytes=1, why=""),
        lambda dest: Bind(source=b"/dev/null", dest=dest, why=""),
        lambda dest: Symlink(target=b"x", dest=dest, why=""),
        lambda dest: File(content=b"", dest=dest, why=""),
        lambda dest: ReadOnly(dest=dest, why=""),
        lambda dest: Overlay(lowers=(b"/x",), dest=dest, why=""),
    ],
    ids=["tmpfs", "bind", "symlink", "file", "remount", "overlay"],
)
def test_nothing_is_mounted_beneath_what_a_command_can_write(outer: Overlay | Bind, make: object) -> None:
    inner = make(outer.dest + b"/x")  # type: ignore[operator]
    with pytest.raises(SandboxUnavailable, match="inside a writable directory"):
        check_no_mounts_beneath_roots((inner, outer))
    check_no_mounts_beneath_roots((make(outer.dest + b"-x"), outer))  # type: ignore[operator]


def test_a_root_may_lie_in_what_is_read_only() -> None:
    check_no_mounts_beneath_roots(ALL)


PATHS = st.lists(st.sampled_from([b"a", b"ab", b"b", b"tmp"]), max_size=5).map(
    lambda names: normalise(b"/" + b"/".join(names))
)
OPERATIONS = st.one_of(
    st.builds(lambda dest: Tmpfs(dest=dest, size_bytes=1, why=""), PATHS),
    st.builds(lambda dest: Bind(source=dest, dest=dest, why=""), PATHS),
    st.builds(lambda dest: Symlink(target=b"x", dest=dest, why=""), PATHS),
    st.builds(lambda dest: ReadOnly(dest=dest, why=""), PATHS),
)


def tmpfs(dest: bytes) -> Tmpfs:
    return Tmpfs(dest=dest, size_bytes=1, why="")


@for_all(st.lists(OPERATIONS, max_size=12))
def test_every_operation_comes_after_those_that_contain_it(operations: list[MountOp]) -> None:
    ordered = in_mount_order(operations)
    assert sorted(map(repr, ordered)) == sorted(map(repr, operations))
    for index, operation in enumerate(ordered):
        for later in ordered[index + 1 :]:
            if isinstance(operation, ReadOnly):
                # Everything it covers is done: what follows are remounts that are not beneath it
                assert isinstance(later, ReadOnly)
                assert not lies_beneath(later.dest, operation.dest)
            elif not isinstance(later, ReadOnly):
                assert not lies_beneath(operation.dest, later.dest)


@for_all(st.lists(OPERATIONS, max_size=12))
def test_operations_on_one_place_keep_their_order(operations: list[MountOp]) -> None:
    ordered = in_mount_order(operations)
    for kind in (Tmpfs, Bind, Symlink, ReadOnly):
        for dest in {operation.dest for operation in operations}:
            before, after = (
                [id(op) for op in some if op.dest == dest and isinstance(op, kind)] for some in (operations, ordered)
            )
            assert before == after


def test_a_project_under_tmp_is_mounted_after_it() -> None:
    project = Bind(source=b"/tmp/x/p", dest=b"/tmp/x/p", why="", writable=True)
    assert in_mount_order([project, tmpfs(b"/tmp")]) == (tmpfs(b"/tmp"), project)


def test_names_that_only_begin_alike_are_not_related() -> None:
    given = (tmpfs(b"/a-b"), tmpfs(b"/a"), tmpfs(b"/ab"))
    assert in_mount_order(given) == given


def test_the_root_is_remounted_last() -> None:
    root, dev = ReadOnly(dest=b"/", why=""), ReadOnly(dest=b"/dev", why="")
    assert in_mount_order([root, dev, tmpfs(b"/dev/shm"), tmpfs(b"/dev")]) == (
        tmpfs(b"/dev"),
        tmpfs(b"/dev/shm"),
        dev,
        root,
    )


def plan(cwd: bytes) -> Plan:
    return build_plan(given(cwd=cwd, argv=(b"true",)))


@pytest.mark.parametrize("cwd", [PROJECT, HOME + b"/playground", b"/tmp", HOME])
def test_bwrap_goes_to_what_the_plan_mounts(cwd: bytes) -> None:
    assert not plan(cwd).staged


@pytest.mark.parametrize(
    "cwd",
    [
        PROJECT + b"/sub",
        HOME + b"/playground/sub",
        b"/dev/fd/3",
        b"/proc/self/fd/3",
        b"/proc",
        b"/dev",
        b"/proc/sys/kernel",
        b"/usr/share",
        b"/",
        HOME + b"/made",
    ],
)
def test_to_everything_else_a_shell_goes(cwd: bytes) -> None:
    made = plan(cwd)
    assert made.staged
    options, _contents = bwrap_options(made, facts(), 8)
    assert options[options.index(b"--chdir") + 1] == b"/"
    words = command_words(made, 7)
    assert (words[:2], words[3:]) == ((b"/bin/sh", b"-c"), (b"sh", cwd, b"true"))


def test_by_hand_the_shell_speaks_on_stderr_and_closes_nothing() -> None:
    script = command_words(plan(b"/usr/share"))[2]
    assert b">&2" in script
    assert b">&-" not in script


SHOP = b"/home/ann/shop"
PLAYGROUND = b"/home/ann/playground"


@pytest.mark.parametrize(
    ("working_dir", "expected"),
    [
        (None, SHOP),
        ("", SHOP),
        (".", SHOP),
        ("sub", b"/home/ann/shop/sub"),
        ("./sub//x/", b"/home/ann/shop/sub/x"),
        ("..", b"/home/ann"),
        ("../../../..", b"/"),
        ("/", b"/"),
        ("/etc", b"/etc"),
        ("//etc/../usr/", b"/usr"),
        ("playground", b"/home/ann/playground"),
        ("./playground", b"/home/ann/shop/playground"),
        ("playground/x", b"/home/ann/shop/playground/x"),
        ("~", b"/home/ann/shop/~"),
        ("a\nb", b"/home/ann/shop/a\nb"),
        ("\udcff", b"/home/ann/shop/\xff"),
    ],
)
def test_a_working_directory_is_relative_to_the_project(working_dir: str | None, expected: bytes) -> None:
    assert resolve_working_dir(working_dir, SHOP, PLAYGROUND) == expected


def test_nul_is_refused() -> None:
    with pytest.raises(UsageError):
        resolve_working_dir("a\0b", SHOP, PLAYGROUND)


def test_the_errors_are_those_a_model_knows() -> None:
    assert missing_text(b"/x") == "ERROR: Working directory does not exist: /x"
    assert not_a_directory_text(b"/x") == "ERROR: Working directory is not a directory: /x"
    assert missing_text(b"/\x1b[2J").isprintable()


TOP = (b"/var", b"/home", b"/root", b"/run", b"/tmp", b"/srv", b"/mnt", b"/sys", b"/proc", b"/dev", b"/data")


def mounts(**values: Any) -> tuple[MountOp, ...]:
    return build_plan(given(**values)).mounts


def hosts(**values: Any) -> tuple[MountOp, ...]:
    found = places(top=TOP, own=(HOME + b"/.config/unspill",)).replace(**values)
    return mounts(policy=Policy(view="host"), places=found)


def is_masked(operations: tuple[MountOp, ...], path: bytes) -> bool:
    cover = find_cover(operations, path)
    if isinstance(cover, File):
        return cover.over and cover.content == b""
    return isinstance(cover, Tmpfs) and ReadOnly(dest=cover.dest, why="an empty mask stays empty") in operations


def test_view_host_shows_the_host_read_only_but_not_what_is_private_or_live() -> None:
    ordered = hosts()
    for path in (b"/usr/x", b"/etc/x", b"/opt/x", b"/var/cache/x", b"/data/x", HOME + b"/notes"):
        assert is_shown(ordered, path), path
    for path in (b"/run/x", b"/tmp/x", b"/var/tmp/x", b"/root/x", b"/home/bob", b"/srv", b"/mnt/c", b"/sys", b"/boot"):
        assert not is_shown(ordered, path), path
    writable = [op.dest for op in ordered if isinstance(op, Bind | Overlay) and getattr(op, "writable", False)]
    assert writable == [HOME + b"/playground"]
    assert is_masked(ordered, STATE + b"/layers")
    assert is_masked(ordered, HOME + b"/.config/unspill/config.toml")


def test_view_host_masks_the_secrets_that_exist() -> None:
    ordered = hosts(
        secrets=(HOME + b"/.ssh", HOME + b"/.config/gcloud", b"/var/lib"),
        secret_files=(HOME + b"/.netrc", HOME + b"/.ssh/config"),
    )
    for path in (HOME + b"/.ssh/id", HOME + b"/.config/gcloud/x", b"/var/lib/x", HOME + b"/.netrc"):
        assert is_masked(ordered, path), path
    assert not is_masked(ordered, HOME + b"/.config/nvim")
    # The directory is masked already: bwrap could not make a mount point in it
    assert HOME + b"/.ssh/config" not in [op.dest for op in ordered]


def test_view_host_has_its_own_git_configuration() -> None:
    plan = build_plan(given(policy=Policy(view="host"), places=places(top=TOP)))
    path = dict(plan.environ)[b"GIT_CONFIG_GLOBAL"]
    assert [op.content for op in plan.mounts if isinstance(op, File) and op.dest == path] == [
        b'[user]\n\temail = "ann@example.org"\n\tname = "Ann"\n'
    ]


@pytest.mark.parametrize("engine", ["mount", "native"])
@pytest.mark.parametrize("is_taken", [False, True])
def test_view_host_has_a_playground_unless_bwrap_would_follow_what_is_there(engine: Any, is_taken: bool) -> None:
    policy, found = Policy(view="host"), places(top=TOP, no_playground=is_taken)
    plan = build_plan(given(policy=policy, places=found, engine=engine))
    has_one = HOME + b"/playground" in [op.dest for op in plan.mounts]
    assert has_one == (not is_taken or engine != "native")
    assert any("There is no playground" in warning for warning in plan.warnings) != has_one
    assert [point.path for point in plan.skeleton] == [STATE + b"/skeletons/home/playground"]


def test_a_socket_is_masked_with_its_directory() -> None:
    ordered = hosts(sockets=(b"/usr/x/daemon/s", b"/etc/agent/s", b"/run/x/s"))
    assert is_masked(ordered, b"/usr/x/daemon/s")
    assert is_masked(ordered, b"/usr/x/daemon/another")
    assert is_masked(ordered, b"/etc/agent/s")
    assert [op.dest for op in ordered].count(b"/run/x") == 0


@pytest.mark.parametrize("path", [b"/etc/s", b"/usr/s"])
def test_a_socket_in_a_directory_that_is_needed_is_masked_alone(path: bytes) -> None:
    ordered = hosts(sockets=(path,))
    assert is_masked(ordered, path)
    assert not is_masked(ordered, path + b"-beside")


@pytest.mark.parametrize("view", ["sealed", "host"])
def test_a_socket_in_an_overlay_needs_no_mask(view: Any) -> None:
    found = places(top=TOP, sockets=(PROJECT + b"/s", b"/opt/x/s", HOME + b"/s", b"/var/x/s"))
    assert mounts(policy=Policy(view=view), places=found) == mounts(
        policy=Policy(view=view), places=found.replace(sockets=())
    )


def test_a_socket_in_the_system_directories_is_masked_in_every_view() -> None:
    found = places(system=(b"/usr", b"/etc", b"/nix"), sockets=(b"/nix/var/nix/daemon-socket/socket",))
    assert is_masked(mounts(places=found), b"/nix/var/nix/daemon-socket/socket")


def test_hidden_paths_that_nothing_shows_need_no_mask() -> None:
    hidden = (HOME + b"/private", b"/srv/x", b"/tmp/x", b"/proc/x")
    assert mounts(policy=Policy(hidden=hidden)) == mounts()


def test_hidden_paths_are_masked_where_they_would_be_seen() -> None:
    policy = Policy(hidden=(b"/etc/secret", b"/usr/x/key", b"/etc/gone"), readable=(b"/srv/doc",))
    ordered = mounts(policy=policy, places=places(files=(b"/usr/x/key",), absent=(b"/etc/gone",)))
    assert is_masked(ordered, b"/etc/secret/x")
    assert is_masked(ordered, b"/usr/x/key")
    assert not is_masked(ordered, b"/etc/gone")


def test_hiding_wins_over_showing() -> None:
    hidden = (HOME + b"/.cargo", b"/srv", b"/opt", HOME + b"/.cache/pip")
    policy = Policy(hidden=hidden, readable=(b"/srv/doc",))
    ordered = mounts(policy=policy, places=places(home=home(b".cargo/bin")), caches=(cache(HOME + b"/.cache/pip"),))
    for path in (*hidden, b"/srv/doc", HOME + b"/.cargo/bin"):
        assert not is_shown(ordered, path), path


def test_a_cache_with_a_hidden_path_in_it_is_not_shown() -> None:
    plan = build_plan(given(policy=Policy(hidden=(HOME + b"/.cache/pip/x",)), caches=(cache(HOME + b"/.cache/pip"),)))
    assert not is_shown(plan.mounts, HOME + b"/.cache/pip")
    assert len(plan.warnings) == 1


@pytest.mark.parametrize("hidden", [PROJECT, PROJECT + b"/x", HOME, b"/"])
def test_a_hidden_path_that_has_to_do_with_a_root_is_refused(hidden: bytes) -> None:
    with pytest.raises(UsageError, match="hidden"):
        mounts(policy=Policy(hidden=(hidden,)))


def test_kernel_settings_stay_read_only_whatever_is_hidden() -> None:
    assert [op for op in mounts(policy=Policy(hidden=(b"/proc",))) if op.dest == b"/proc/sys"]


def test_a_secret_that_the_policy_names_is_shown() -> None:
    policy = Policy(view="host", readable=(HOME + b"/.kube",))
    found = places(top=TOP, secrets=(HOME + b"/.kube", HOME + b"/.ssh"))
    ordered = mounts(policy=policy, places=found)
    assert is_shown(ordered, HOME + b"/.kube/config")
    assert is_masked(ordered, HOME + b"/.ssh")


def test_a_secret_below_a_readable_path_is_masked_in_view_sealed_too() -> None:
    found = places(secrets=(HOME + b"/.config/gcloud",))
    policy = Policy(readable=(HOME + b"/.config",))
    assert is_masked(mounts(policy=policy, places=found), HOME + b"/.config/gcloud/x")


def test_a_root_that_holds_a_secret_is_refused_in_view_host() -> None:
    found = places(top=TOP, secrets=(PROJECT + b"/keys",))
    with pytest.raises(UsageError, match="can't be masked"):
        mounts(policy=Policy(view="host"), places=found, stacks=(stack(PROJECT),))


def test_view_host_without_its_home_where_no_overlay_can_cover_it() -> None:
    plan = build_plan(given(policy=Policy(view="host"), places=places(top=TOP, mounted=(HOME + b"/remote",))))
    assert isinstance(find_cover(plan.mounts, HOME + b"/notes"), Tmpfs)
    assert any("home directory is not shown" in warning for warning in plan.warnings)


VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30) | st.text(
    alphabet=" \t\n\r\b\"\\#;='[]\x1bx", max_size=12
)
PAIRS = st.lists(st.tuples(st.sampled_from(sorted(ALLOWED_KEYS)), VALUES), max_size=6).map(tuple)


def git_reads(text: str) -> tuple[tuple[str, str], ...] | None:
    """Return what the real git makes of it, None where it refuses."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        command = ["git", "config", "--no-includes", "-f", file.name, "--list", "-z"]
        shown = subprocess.run(command, capture_output=True, check=False, cwd="/", env={"PATH": os.defpath})
    if shown.returncode:
        return None
    items = shown.stdout.decode().split("\0")[:-1]
    return tuple((key, value if newline else "true") for key, newline, value in (i.partition("\n") for i in items))


@for_any(PAIRS)
def test_git_reads_back_exactly_what_was_meant(pairs: tuple[tuple[str, str], ...]) -> None:
    text = to_gitconfig(pairs)
    assert git_reads(text) == filter_identity(pairs)
    assert parse_gitconfig(text) == filter_identity(pairs)


DANGEROUS = """
credential.helper credential.https://example.org.helper include.path includeIf.gitdir:/.path
core.hooksPath core.fsmonitor core.pager core.editor core.sshCommand core.askPass core.attributesFile
core.excludesFile core.gitProxy core.worktree core.bare alias.st filter.lfs.clean filter.lfs.process
gpg.program gpg.ssh.program user.signingKey commit.gpgSign commit.template tag.gpgSign url.git@example.org:.insteadOf
http.extraHeader http.proxy http.cookieFile sendemail.smtpPass diff.external diff.tool difftool.x.cmd merge.x.driver
mergetool.x.cmd pager.log sequence.editor init.templateDir uploadpack.packObjectsHook protocol.ext.allow safe.directory
remote.origin.url submodule.x.update interactive.diffFilter web.browser browser.x.cmd man.x.cmd help.browser
trailer.x.command column.ui.x user.name.x
""".split()


@pytest.mark.parametrize("key", DANGEROUS)
def test_nothing_that_runs_or_unlocks_passes(key: str) -> None:
    assert filter_identity(((key, "x"),)) == ()
    assert to_gitconfig(((key, "x"),)) == ""


def test_no_value_can_smuggle_a_setting_in() -> None:
    attack = 'Ann"\n[alias]\n\tst = !sh -c id\n[core]\n\tpager = "id'
    assert git_reads(to_gitconfig((("user.name", attack),))) == (("user.name", attack),)


def test_the_last_value_of_a_key_wins_and_keys_have_no_case() -> None:
    pairs = (("User.Name", "A"), ("user.name", "B"), ("init.defaultBranch", "main"))
    assert filter_identity(pairs) == (("init.defaultbranch", "main"), ("user.name", "B"))


def test_a_value_with_nul_is_dropped() -> None:
    assert filter_identity((("user.name", "a\0b"),)) == ()


CASES = [
    ("", ()),
    ("[user]\n\tname = Ann\n", (("user.name", "Ann"),)),
    ("[user] name = Ann ; comment\n", (("user.name", "Ann"),)),
    ("# x\n; y\n\n[user]\nname=Ann Lee  \n", (("user.name", "Ann Lee"),)),
    ('[user]\nname = "  Ann # Lee "x\n', (("user.name", "  Ann # Lee x"),)),
    ("[user]\nname = a\\\n  b\n", (("user.name", "a  b"),)),
    ('[user]\nname = "a\\n\\t\\\\\\"\\b"\n', (("user.name", 'a\n\t\\"\b'),)),
    ('[url "git@X:"]\ninsteadOf = y\n', (("url.git@X:.insteadof", "y"),)),
    ('[a "q\\"\\\\\\z"]\nb = 1\n', (('a.q"\\z.b', "1"),)),
    ("[a.B]\nc = 1\n", (("a.b.c", "1"),)),
    ("[core]\nbare\n", (("core.bare", "true"),)),
    ("[core]\nbare =\n", (("core.bare", ""),)),
    ("[user]\r\nname = Ann\r\n", (("user.name", "Ann"),)),
    ("\ufeff[user]\nname = Ann", (("user.name", "Ann"),)),
    ("[include]\npath = other\n", (("include.path", "other"),)),
    ("[user]\nname = ünï\n", (("user.name", "ünï"),)),
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text[:30] for text, _expected in CASES])
def test_a_configuration_file_is_read_as_git_reads_it(text: str, expected: object) -> None:
    assert parse_gitconfig(text) == expected
    assert git_reads(text) == expected


WRONG = [
    "[user",
    "[]",
    '[user "x]\n',
    '[user "x"\n',
    "[user]\n= x",
    "[user]\nname Ann",
    '[user]\nname = "Ann\n',
    "[user]\nname = a\\qb\n",
    "[us_er]\n",
    "[user]\n1name = x\n",
    "[user]\nname # x\n",
]


@pytest.mark.parametrize("text", WRONG)
def test_what_git_refuses_is_refused(text: str) -> None:
    assert git_reads(text) is None
    with pytest.raises(UsageError, match="line"):
        parse_gitconfig(text)


def test_a_setting_before_any_section_is_refused_though_git_takes_it() -> None:
    with pytest.raises(UsageError, match="line 1"):
        parse_gitconfig("name = Ann")


@for_any(st.text(alphabet='[]a.B"\\ =\n#;1-', max_size=24).map(lambda rest: "[s]\n" + rest))
def test_any_text_is_read_as_git_reads_it_or_refused_as_git_refuses_it(text: str) -> None:
    try:
        ours = parse_gitconfig(text)
    except UsageError:
        assert git_reads(text) is None
    else:
        assert git_reads(text) == ours
