# SPDX-License-Identifier: Apache-2.0
"""The git configuration inside: an identity, nothing that runs or unlocks; read back by the real git."""

from __future__ import annotations

import os
import subprocess
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import UsageError
from unspill.plan.view import ALLOWED_KEYS, filter_identity, parse_gitconfig, to_gitconfig

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


@given(PAIRS)
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


@given(st.text(alphabet='[]a.B"\\ =\n#;1-', max_size=24).map(lambda rest: "[s]\n" + rest))
def test_any_text_is_read_as_git_reads_it_or_refused_as_git_refuses_it(text: str) -> None:
    try:
        ours = parse_gitconfig(text)
    except UsageError:
        assert git_reads(text) is None
    else:
        assert git_reads(text) == ours
