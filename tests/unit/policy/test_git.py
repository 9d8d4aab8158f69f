# SPDX-License-Identifier: Apache-2.0
"""Settings, attributes and pointers of git: which pass with no question, against a list of those that run something."""

import posixpath
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.policy.git import (
    EXCLUDED_KEYS,
    FORMAT_KEYS,
    ORDINARY_KEYS,
    IgnoreRule,
    changed_addresses,
    changed_keys,
    driving_macros,
    has_commands,
    ignore_rules,
    is_address,
    is_usual_common,
    local_path,
    new_drivers,
    pattern_of,
    pointer_target,
    unusual_keys,
    unusual_modules,
)
from unspill.policy.paths import climbs_after_a_name, resolve_text

GitSettings = tuple[tuple[str, str], ...]
ROOT = b"/home/ann/project"
PLACE = b".git"


def no_tree(_value: str) -> bool:
    return False


# What git 2.39 runs, reads from elsewhere, or trusts because of a setting
DANGEROUS = """
core.fsmonitor core.hookspath core.pager core.editor core.sshcommand core.askpass core.gitproxy core.attributesfile
core.excludesfile core.alternaterefscommand core.protecthfs core.protectntfs core.sharedrepository core.commentchar
alias.status alias.x filter.x.clean filter.x.smudge filter.x.process diff.external diff.x.command diff.x.textconv
diff.tool difftool.x.cmd merge.x.driver merge.tool mergetool.x.cmd include.path includeif.gitdir:/.path
credential.helper credential.https://example.org.helper url.ext::x.insteadof url.x.pushinsteadof gpg.program
gpg.ssh.program gpg.x509.program gpg.ssh.defaultkeycommand commit.gpgsign commit.template tag.gpgsign
http.proxy http.sslverify http.cookiefile http.extraheader init.templatedir interactive.difffilter pager.log pager.diff
protocol.allow protocol.ext.allow protocol.file.allow receive.x remote.x.uploadpack remote.x.receivepack remote.x.proxy
remote.x.vcs remote.x.promisor remote.x.partialclonefilter remote.x.pushurl remote.x.mirror extensions.partialclone
safe.directory safe.barerepository sendemail.sendmailcmd sequence.editor ssh.variant submodule.recurse
submodule.x.command trailer.x.command trailer.x.cmd transfer.fsckobjects uploadpack.packobjectshook
uploadpack.allowfilter web.browser browser.x.cmd man.x.cmd instaweb.httpd guitool.x.cmd lfs.customtransfer.x.path
lfs.url lfs.x.locksverify sendpack.sideband rerere.enabled maintenance.strategy branch.x.mergeoptions gc.auto
core.unknown user.unknown.x
""".split()


@pytest.mark.parametrize("key", DANGEROUS)
@pytest.mark.parametrize("before", [None, ()], ids=["new", "known"])
def test_a_setting_that_may_run_something_is_not_ordinary(key: str, before: tuple[()] | None) -> None:
    assert unusual_keys(before, ((key, "x"),), no_tree) == [pattern_of(key)]


GOOD = {
    "any": "x",
    "address": "https://example.org/x.git",
    "update": "merge",
    "name": "main",
    "refspec": "+refs/heads/*:refs/remotes/origin/*",
    "boolean": "Yes",
    "recursion": "on-demand",
    "version": "0",
}


@pytest.mark.parametrize(("pattern", "check"), ORDINARY_KEYS.items())
def test_an_ordinary_setting_may_come_change_and_go(pattern: str, check: str) -> None:
    key, value = pattern.replace("*", "Some.name"), GOOD[check]
    assert unusual_keys((), ((key, value),), no_tree) == []
    assert unusual_keys(((key, "old"),), ((key, value),), no_tree) == []
    assert unusual_keys(((key, value),), (), no_tree) == []


@pytest.mark.parametrize("key", [key for key, check in FORMAT_KEYS.items() if check == "any"])
def test_the_format_is_chosen_by_a_new_repository_only(key: str) -> None:
    assert unusual_keys(None, ((key, "true"),), no_tree) == []
    assert unusual_keys((), ((key, "true"),), no_tree) == [key]
    assert unusual_keys(((key, "true"),), ((key, "false"),), no_tree) == [key]
    assert unusual_keys(((key, "true"),), ((key, "true"),), no_tree) == []


def test_a_work_tree_is_chosen_by_a_new_repository_only_and_never_changes() -> None:
    good, bad = (("core.worktree", "good"),), (("core.worktree", "bad"),)

    def is_tree(value: str) -> bool:
        return value == "good"

    assert unusual_keys(None, good, is_tree) == []
    for before, after in ((None, bad), (None, good + bad), ((), good), (bad, good), (good, ())):
        assert unusual_keys(before, after, is_tree) == ["core.worktree"]
    assert unusual_keys(bad, bad, is_tree) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("remote.x.url", "ext::sh -c evil"),
        ("remote.x.url", "-u./evil"),
        ("branch.x.remote", "ext::evil"),
        ("branch.x.pushremote", "--evil"),
        ("submodule.x.url", "ssh://-oProxyCommand=evil/x"),
        ("submodule.x.update", "!evil"),
        ("remote.x.fetch", "--upload-pack=evil"),
        ("remote.x.fetch", "+refs/heads/*:refs/heads/*"),
        ("remote.x.fetch", "+refs/heads/*:refs/replace/*"),
        ("remote.x.fetch", "refs/heads/*:refs/remotes/x"),
        ("remote.x.fetch", "a b"),
        ("core.repositoryformatversion", "99"),
        ("core.sparsecheckout", "perhaps"),
        ("extensions.worktreeconfig", "perhaps"),
        ("submodule.x.fetchrecursesubmodules", "perhaps"),
        ("user.signingkey", "-evil"),
        ("user.name", "a\0b"),
    ],
)
def test_an_ordinary_setting_with_a_dangerous_value_is_not(key: str, value: str) -> None:
    assert unusual_keys((), ((key, value),), no_tree) == [pattern_of(key)]
    # The second of two values counts as well
    good = (key, GOOD[ORDINARY_KEYS.get(pattern_of(key), "any")])
    assert unusual_keys((good,), (good, (key, value)), no_tree) == [pattern_of(key)]


@pytest.mark.parametrize(
    "refspec",
    """
    main +main refs/pull/*/head:refs/remotes/origin/pr/* +refs/tags/*:refs/tags/* refs/notes/*:refs/notes/*
    ^refs/heads/dependabot/*
    """.split(),
)
def test_a_refspec_that_writes_over_no_branch_is_ordinary(refspec: str) -> None:
    assert unusual_keys((), (("remote.x.fetch", refspec),), no_tree) == []


def test_a_new_repository_may_be_a_mirror() -> None:
    assert unusual_keys(None, (("remote.x.fetch", "+refs/*:refs/*"),), no_tree) == []


@pytest.mark.parametrize("after", [(), (("core.repositoryformatversion", "0"),)], ids=["gone", "older"])
def test_a_format_does_not_become_an_older_one(after: tuple[tuple[str, str], ...]) -> None:
    before = (("core.repositoryformatversion", "1"),)
    assert unusual_keys(before, after, no_tree) == ["core.repositoryformatversion"]
    assert unusual_keys((), before, no_tree) == []


@pytest.mark.parametrize(
    ("gone", "shown"),
    [
        ("remote.up.pushurl", ["remote.up.pushurl was none, now nothing"]),
        ("branch.main.pushremote", ["branch.main.pushremote was none, now nothing"]),
        ("remote.pushdefault", ["remote.pushdefault was none, now nothing"]),
        ("remote.other.pushurl", []),
        ("remote.up.tagopt", []),
    ],
)
def test_an_address_to_push_to_that_is_gone_is_named(gone: str, shown: list[str]) -> None:
    kept = (("remote.up.url", "https://example.org/up"), ("branch.main.remote", "up"))
    assert changed_addresses((*kept, (gone, "none")), kept) == shown


def test_what_goes_away_counts_as_changed() -> None:
    assert unusual_keys((("core.hookspath", "/dev/null"),), (), no_tree) == ["core.hookspath"]
    assert unusual_keys((("remote.x.pushurl", "x"),), (), no_tree) == []


SETTINGS = st.lists(st.tuples(st.sampled_from(["a.b", "a.c", "user.name"]), st.sampled_from("xy")), max_size=6)


@given(SETTINGS, SETTINGS)
def test_keys_with_the_same_values_in_the_same_order_have_not_changed(
    before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    found = changed_keys(tuple(before), tuple(after))
    for key in ("a.b", "a.c", "user.name"):
        same = [value for name, value in before if name == key] == [value for name, value in after if name == key]
        assert (key in found) is not same


@pytest.mark.parametrize(
    "address",
    """
    https://example.org/x.git http://user@example.org:8080/x ssh://git@example.org/x git@example.org:x/y.git ../x.git
    ./x /srv/x.git file:///srv/x git://example.org/x . origin [::1]:x
    """.split(),
)
def test_plain_addresses_pass(address: str) -> None:
    assert is_address(address)


@pytest.mark.parametrize(
    "address",
    ["ext::sh -c x", "fd::3", "evil::x", "::x", "a.b::x", "foo://example.org", "-x", "ssh://-x/y", "git@-x:y", "a\nb"],
)
def test_addresses_that_run_something_do_not(address: str) -> None:
    assert not is_address(address)


@pytest.mark.parametrize(
    ("address", "path"),
    {
        "/srv/x.git": "/srv/x.git",
        "../x": "../x",
        "x": "x",
        "./a:b": "./a:b",
        "": "",
        "file:///srv/x": "//srv/x",
        "FILE://host/x": "/host/x",
        "file:///srv/%2e%2e/x": "/",
        "https://example.org/x": None,
        "git@example.org:x/y": None,
        "host:/srv/x": None,
    }.items(),
)
def test_an_address_that_git_takes_for_a_path_is_known(address: str, path: str | None) -> None:
    assert local_path(address) == path


ADDRESSES = ("branch.x.remote", "branch.x.pushremote", "remote.x.url", "submodule.x.url")


@pytest.mark.parametrize("key", ADDRESSES)
@pytest.mark.parametrize("value", ["/srv/x.git", "../x", "file:///srv/x", "https://example.org/x"])
def test_a_path_is_ordinary_only_where_it_leads_inside(key: str, value: str) -> None:
    held = [] if value.startswith("https") else [f"{pattern_of(key)} (a local path)"]
    for before in (None, ()):
        assert unusual_keys(before, ((key, value),), no_tree) == held
        assert unusual_keys(before, ((key, value),), no_tree, lambda _path: True) == []


def test_a_module_may_go_on_from_the_address_of_the_remote() -> None:
    relative, absolute = (("submodule.x.url", "../x.git"),), (("submodule.x.url", "/srv/x.git"),)
    assert unusual_modules((), relative, no_tree) == []
    assert unusual_modules((), absolute, no_tree) == ["submodule.*.url (a local path)"]
    assert unusual_modules(absolute, absolute, no_tree) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((), (("remote.a.url", "https://example.org/a"),), ["remote.a.url now https://example.org/a"]),
        (
            (("remote.a.url", "https://example.org/a"),),
            (("remote.a.url", "https://example.org/b"),),
            ["remote.a.url was https://example.org/a, now https://example.org/b"],
        ),
        (
            (("remote.a.url", "git@example.org:a"),),
            (("remote.a.url", "git@example.org:a"), ("remote.a.url", "git@example.org:b")),
            ["remote.a.url was git@example.org:a, now git@example.org:a and git@example.org:b"],
        ),
        ((("remote.a.url", "https://example.org/a"),), (), []),
        ((), (("branch.a.remote", "origin"), ("branch.a.merge", "refs/heads/a:b")), []),
        ((), (("branch.a.remote", "https://example.org/a"),), ["branch.a.remote now https://example.org/a"]),
        ((), (("remote.a b.url", "git@example.org:a"),), ["remote.*.url now git@example.org:a"]),
        ((), (("remote.a.url", "https://me:hunter2@example.org/a"),), ["remote.a.url now https://...@example.org/a"]),
        ((), (("remote.a.url", "ssh://git@example.org/a"),), ["remote.a.url now ssh://git@example.org/a"]),
        ((), (("remote.a.url", "https://ex\u0430mple.org/a b"),), ["remote.a.url now https://ex\\u0430mple.org/a%20b"]),
        (
            (),
            (("remote.a.url", "https://example.org/" + 90 * "a"),),
            [f"remote.a.url now https://example.org/{60 * 'a'}..."],
        ),
    ],
)
def test_an_address_that_changes_is_told_in_words_nobody_can_forge(
    before: GitSettings, after: GitSettings, words: list[str]
) -> None:
    assert changed_addresses(before, after) == words


def test_no_excluded_key_is_listed_as_ordinary() -> None:
    assert EXCLUDED_KEYS.isdisjoint(ORDINARY_KEYS)


PARTS = st.lists(st.sampled_from([b"a", b"b", b"..", b".", b""]), max_size=6)


@given(PARTS, PARTS, st.booleans())
def test_what_resolves_lies_inside_where_it_says(place: list[bytes], target: list[bytes], absolute: bool) -> None:
    where = b"/".join(part for part in place if part in (b"a", b"b"))
    text = (ROOT + b"/" if absolute else b"") + b"/".join(target)
    found = resolve_text(where, text, ROOT)
    plain = posixpath.normpath(posixpath.join(ROOT, where, text))
    if found is not None:
        assert posixpath.normpath(posixpath.join(ROOT, *found)) == plain
    elif not climbs_after_a_name(text):
        assert plain != ROOT
        assert not plain.startswith(ROOT + b"/")


@pytest.mark.parametrize(
    ("target", "outside"),
    [
        (b"../sub", False),
        (b"..", False),
        (b"../..", True),
        (ROOT + b"/x", False),
        (ROOT, False),
        (ROOT + b"-other/x", True),
        (ROOT + b"/../x", True),
        (b"a/../b", True),
        (b"x\0", True),
    ],
)
def test_a_target_leads_outside_or_not(target: bytes, outside: bool) -> None:
    assert (resolve_text(PLACE, target, ROOT) is None) is outside


def test_only_drivers_of_new_lines_count() -> None:
    assert new_drivers(b"*.a filter=x\n", b"*.a filter=x\n*.b filter=y diff=z text\n") == [b"filter=y", b"diff=z"]
    assert new_drivers(b"", b" # x filter=y\n\x0c# filter=y\n") == [b"filter=y"]
    assert new_drivers(b"", b'"a b" filter=y') == [b"filter=y"]
    assert new_drivers(b"*.a filter=x", b"") == []


@pytest.mark.parametrize(
    ("content", "target"),
    [
        (b"gitdir: x\n", b"x"),
        (b"gitdir: x y\r\n", b"x y"),
        (b"gitdir:x", None),
        (b"gitdir: ", None),
        (b"gitdir: a\nb\n", None),
        (b"", None),
    ],
)
def test_a_pointer_is_read_as_git_reads_it(content: bytes, target: bytes | None) -> None:
    assert pointer_target(content) == target


def test_only_a_worktree_shares_its_repository() -> None:
    assert is_usual_common([b".git", b"worktrees", b"w", b"commondir"], b"../..\n")
    assert not is_usual_common([b".git", b"worktrees", b"w", b"commondir"], b"../../..\n")
    assert not is_usual_common([b".git", b"commondir"], b"../..\n")


def test_commands_among_the_steps_of_a_rebase_are_found() -> None:
    assert has_commands(b"pick 1\nexec make\n")
    assert has_commands(b"  x make")
    assert not has_commands(b"pick 1 exec\n# exec x\n")


RULES = rb"""
# a comment
\#file
build/
*.o
!keep.o
/top
doc/*.txt
/a/**
**/deep/x
mid/**/end
x?z
[a-c]1
[!a-c]2
[]-]3
spaced\ \x20
trailing\x20\x20
star**
\!bang
un[closed
dir/*/
**/
!both/
""".replace(rb"\x20", b" ")
SAMPLE_NAMES = (
    b"build top doc a deep x mid end b.o keep.o x.txt xyz a1 d1 a2 d2 ]3 -3 starry un[closed #file !bang dir both"
).split()


def test_rules_mean_what_git_takes_them_for(tmp_path: Path) -> None:
    for lines in (RULES, RULES.replace(b"**/\n", b""), b"*\n!*/\n!*.o\n", b"/*\n!/doc\n", b"a/b/../c\n\\\nx\\\n"):
        paths = [first + b"/" + last for first in SAMPLE_NAMES for last in SAMPLE_NAMES]
        paths += [*SAMPLE_NAMES, b"mid/p/q/end", b"a/b/c", b"spaced  ", b"trailing", b"dir/x/y/z", b"x\\"]
        (tmp_path / ".gitignore").write_bytes(lines)
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
        asks = ["git", "-C", str(tmp_path), "check-ignore", "--no-index", "-z", "--stdin"]
        said = subprocess.run(asks, input=b"\0".join(paths), capture_output=True, check=False).stdout
        rules = ignore_rules(lines)
        assert [path for path in paths if is_ignored(path.split(b"/"), rules)] == said.split(b"\0")[:-1]


def is_ignored(parts: list[bytes], rules: tuple[IgnoreRule, ...]) -> bool:
    """Tell whether rules ignore a file, or a directory above it."""
    for end in range(1, len(parts) + 1):
        meant = [rule for rule in rules if rule.matches(parts[:end], is_directory=end < len(parts))]
        if meant and not meant[-1].is_negated:
            return True
    return False


@pytest.mark.parametrize(("lines", "is_meant"), [(b"[[:alpha:]]\n", False), (b"*\n![[:digit:]]\n", False)])
def test_a_rule_that_is_not_understood_ignores_nothing(lines: bytes, is_meant: bool) -> None:
    assert is_ignored([b"a"], ignore_rules(lines)) is is_meant


@pytest.mark.parametrize(
    ("after", "drivers"),
    [
        (b"* crypt\n", [b"crypt"]),
        (b'"a b" secret\n', [b"secret"]),
        (b"crypt text\n", []),
        (b"* -crypt plain\n", []),
        (b"* filter=lfs\n", []),
    ],
)
def test_a_macro_that_stands_for_a_driver_counts_as_one(after: bytes, drivers: list[bytes]) -> None:
    macros = driving_macros(b"[attr]plain text\n[attr]secret crypt\n[attr]lfs filter=lfs\n", b"[attr]crypt filter=x\n")
    assert macros == {b"crypt", b"secret"}
    assert new_drivers(b"", after, macros) == drivers
