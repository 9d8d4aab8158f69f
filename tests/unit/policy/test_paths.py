# SPDX-License-Identifier: Apache-2.0
"""Paths: one spelling each, words of a shell, quoted for a screen, and what can be a writable root (D27, D28)."""

from __future__ import annotations

import posixpath
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unspill.errors import RootRefused
from unspill.plan.explain import Refusal, remedy_of
from unspill.policy.defaults import check_root, merge_roots
from unspill.policy.hosts import Refused
from unspill.policy.paths import (
    COLUMNS,
    contains,
    find_misleading,
    is_mixed_script,
    lies_beneath,
    normalise,
    quote,
    shell_word,
    show,
    show_line,
)

NAMES = st.lists(st.sampled_from([b"a", b"b", b"a-x", b".", b"..", b"", b"\xff", b"\n"]), max_size=6)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/", b"/"),
        (b"//", b"/"),
        (b"//a", b"/a"),
        (b"///a//b/", b"/a/b"),
        (b"/a/./b/../c", b"/a/c"),
        (b"/../..", b"/"),
        (b"/a\n/\xff", b"/a\n/\xff"),
    ],
)
def test_each_path_has_one_spelling(path: bytes, expected: bytes) -> None:
    assert normalise(path) == expected


@pytest.mark.parametrize("path", [b"", b"a", b"./a", b"~/a", b"/a\0b"])
def test_what_is_not_an_absolute_path_is_refused(path: bytes) -> None:
    with pytest.raises(ValueError):
        normalise(path)


@given(NAMES)
def test_a_normalised_path_is_its_own_normal_form(names: list[bytes]) -> None:
    path = normalise(b"/" + b"/".join(names))
    assert normalise(path) == path
    assert path == b"/" or not path.endswith(b"/")
    assert b"//" not in path


@given(NAMES, NAMES)
def test_containment_is_that_of_components(one: list[bytes], other: list[bytes]) -> None:
    outer, inner = (normalise(b"/" + b"/".join(names)) for names in (one, other))
    assert contains(outer, inner) == (posixpath.commonpath([outer, inner]) == outer)
    assert lies_beneath(inner, outer) == (contains(outer, inner) and inner != outer)


@given(st.binary())
def test_a_shown_path_has_nothing_that_moves_a_cursor(path: bytes) -> None:
    assert show(path).isprintable()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/a b", "/a b"),
        ("/ü".encode(), "/ü"),
        (b"/\xff", "/\\xff"),
        (b"/\x1b[2J\n", "/\\x1b[2J\\n"),
        ("/a\u202eb".encode(), "/a\\u202eb"),
    ],
)
def test_a_path_is_shown_as_text(path: bytes, expected: str) -> None:
    assert show(path) == expected


HOME = b"/home/ann"
OWN = (HOME + b"/.local/state/unspill", HOME + b"/.config/unspill", HOME + b"/.local/share/unspill")

REFUSED = [
    b"/",
    b"",
    b"relative",
    b"/home/ann/../ann/x",
    b"/home/ann/x/",
    b"/home/ann/a\0b",
    HOME,
    b"/home",
    *(b"/usr /etc /bin /sbin /lib /lib64 /boot /dev /proc /sys /run /var /tmp /opt /srv /mnt /media".split()),
    *(b"/usr/local/src/x /etc/x /bin/x /dev/shm/x /proc/self/cwd /sys/x /run/user/1000/x /var/lib/x".split()),
    *(b"/var/tmp /var/www /run/media /root /root/x /nix/store /snap/x".split()),
    OWN[0],
    OWN[0] + b"/layers/x",
    HOME + b"/.local/state",
    HOME + b"/.local",
    HOME + b"/.config",
    OWN[1],
    HOME + b"/.ssh",
    HOME + b"/.ssh/x",
    HOME + b"/.config/gcloud/x",
    HOME + b"/.mozilla",
]

ACCEPTED = [
    HOME + b"/shop",
    HOME + b"/.dotfiles",
    HOME + b"/.config/nvim",
    HOME + b"/a b,c:d\\e\n",
    b"/home/bob/shared",
    b"/home/annabel",
    *(b"/tmp/x /var/tmp/x /srv/x /opt/x /mnt/x /media/x /var/www/x /run/media/ann/disk/x".split()),
    *(b"/workspace /app /usrlocal /etcetera".split()),
]


@pytest.mark.parametrize("path", REFUSED, ids=ascii)
def test_a_directory_that_holds_other_things_is_no_root(path: bytes) -> None:
    with pytest.raises(RootRefused) as refused:
        check_root(path, home=HOME, own=OWN)
    assert refused.value.remedy


@pytest.mark.parametrize("path", ACCEPTED, ids=ascii)
def test_a_directory_of_ones_own_is_a_root(path: bytes) -> None:
    check_root(path, home=HOME, own=OWN)


@pytest.mark.parametrize(
    ("home", "path", "accepted"),
    [
        (b"/root", b"/root/x", True),
        (b"/root", b"/root", False),
        (b"/var/lib/jenkins", b"/var/lib/jenkins/x", True),
        (b"/var/lib/jenkins", b"/var/lib/jenkins", False),
        (b"/var/lib/jenkins", b"/var/lib", False),
        (b"/", b"/usr/x", False),
        (b"/bin", b"/bin/x", False),
        (b"/dev", b"/dev/shm/x", False),
        (b"/nonexistent", b"/usr/x", False),
    ],
    ids=ascii,
)
def test_a_home_below_a_system_directory_can_be_worked_in(home: bytes, path: bytes, accepted: bool) -> None:
    if accepted:
        check_root(path, home=home, own=())
        return
    with pytest.raises(RootRefused):
        check_root(path, home=home, own=())


def test_the_message_shows_no_control_character() -> None:
    with pytest.raises(RootRefused) as refused:
        check_root(b"/etc/\x1b[2J", home=HOME, own=OWN)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("project", "extra", "expected"),
    [
        (b"/a/proj", (b"/a/proj-x", b"/a/proj/sub"), (b"/a/proj", b"/a/proj-x")),
        (b"/a/proj/sub", (b"/a/proj-x", b"/a/proj"), (b"/a/proj", b"/a/proj-x")),
        (b"/a/proj", (), (b"/a/proj",)),
        (b"/a/proj", (b"/a/proj", b"/a/proj"), (b"/a/proj",)),
        (b"/z", (b"/a", b"/b/c", b"/b"), (b"/z", b"/a", b"/b")),
        (b"/a/b/c", (b"/a/b", b"/a"), (b"/a",)),
    ],
)
def test_overlapping_roots_become_one(project: bytes, extra: tuple[bytes, ...], expected: tuple[bytes, ...]) -> None:
    assert merge_roots(project, extra) == expected


PATHS = st.lists(st.sampled_from([b"a", b"ab", b"a-b", b"b"]), min_size=1, max_size=4).map(
    lambda names: normalise(b"/" + b"/".join(names))
)


@given(PATHS, st.lists(PATHS, max_size=6))
def test_merged_roots_cover_all_and_never_each_other(project: bytes, extra: list[bytes]) -> None:
    roots = merge_roots(project, tuple(extra))
    assert contains(roots[0], project)
    assert len(set(roots)) == len(roots)
    assert set(roots) <= {project, *extra}
    for path in (project, *extra):
        assert sum(contains(root, path) for root in roots) == 1
    assert not any(lies_beneath(one, other) for one in roots for other in roots)


NAMES_TO_QUOTE = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name)


@settings(max_examples=40)
@given(st.lists(NAMES_TO_QUOTE, min_size=1, max_size=5))
def test_a_shell_reads_a_word_as_exactly_the_name(names: list[bytes]) -> None:
    words = [shell_word(name) for name in names]
    assert all(word.isascii() and word.isprintable() for word in words)
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {' '.join(words)}"], capture_output=True, check=True)
    assert done.stdout == b"".join(name + b"\0" for name in names)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        (b"src/main.py", "src/main.py"),
        (b"sp ace", "'sp ace'"),
        (b"x$(id)", "'x$(id)'"),
        (b"it's", "'it'\\''s'"),
        (b"a\nb\xff", "$'a\\x0ab\\xff'"),
        (b"", "''"),
    ],
)
def test_words(name: bytes, word: str) -> None:
    assert shell_word(name) == word


@pytest.mark.parametrize("name", [b"a;touch PWNED", b"$(id)", b"`id`", b"a\nb", b"a' b"])
def test_what_is_proposed_against_a_refusal_can_be_pasted(name: bytes) -> None:
    path = b"/srv/" + name + b"/x"
    outside = Refusal(kind="outside", path=path, rule="outside the roots")
    assert f"`--root {shell_word(b'/srv/' + name)}`" in remedy_of(outside, is_write=True, home=b"/home/ann")
    assert f"`--readable {shell_word(path)}`" in remedy_of(outside, is_write=False, home=b"/home/ann")


def test_a_host_that_is_proposed_is_one_word() -> None:
    refused = Refused("host", "it is not among the allowed hosts")
    assert "`--allow-host api.example.org`" in refused.remedy("api.example.org", 443)
    assert "`--allow-host 'x;id'`" in refused.remedy("x;id", 443)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"src/a.c", "src/a.c"),
        ("grün".encode(), "grün"),
        ("日本".encode(), "日本"),
        (b"-rf", "-rf"),
        (b"", '""'),
        (b" a", '" a"'),
        (b"a b", '"a b"'),
        (b'a"b', r'"a\"b"'),
        (b"it's", '"it\'s"'),
        (b"a\\nb", r'"a\\nb"'),
        (b"a\nb", r'"a\nb"'),
        (b"a\rb\tc", r'"a\rb\tc"'),
        (b"\x1b[2J", r'"\u{1b}[2J"'),
        (b"\xff\xfe", r'"\xff\xfe"'),
        (b"\xc2\x9b", r'"\u{9b}"'),
        ("a\u202eb".encode(), r'"a\u{202e}b"'),
        ("a\u200bb".encode(), r'"a\u{200b}b"'),
        ("a\u00a0b".encode(), r'"a\u{a0}b"'),
        ("a\u2028b".encode(), r'"a\u{2028}b"'),
        ("\U000e0041".encode(), r'"\u{e0041}"'),
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),
    ],
)
def test_a_name_is_shown_so_that_it_can_not_be_mistaken(name: bytes, shown: str) -> None:
    assert quote(name) == shown


LOOKS_LIKE_ANOTHER = {
    "a Cyrillic letter in .git": (".g\u0456t/config", r'".g\u{456}t/config"'),
    "a Greek letter in a name": ("c\u03bfnfig", r'"c\u{3bf}nfig"'),
    "letters of Cherokee": ("R\u13aaED", r'"R\u{13aa}ED"'),
    "letters from right to left in a word": ("a\u05d0b", r'"a\u{5d0}b"'),
    "a whole name that could be ASCII": (".\u0458\u0458/config", r'".\u{458}\u{458}/config"'),
    "a whole word that could be ASCII": ("\u0441\u043e\u0440\u0443.py", r'"\u{441}\u{43e}\u{440}\u{443}.py"'),
    "bold letters": ("\U0001d41a.sh", r'"\u{1d41a}.sh"'),
    "wide letters": ("\uff0e\uff45\uff4e\uff56", r'"\u{ff0e}\u{ff45}\u{ff4e}\u{ff56}"'),
    "another shape of g": (".\u0261it", r'".\u{261}it"'),
    "a slash that is none": ("a\u2215b", r'"a\u{2215}b"'),
    "dots that are none": ("\u2025/x", r'"\u{2025}/x"'),
    "a filler": ("Makefile\u3164", r'"Makefile\u{3164}"'),
    "a selector": ("Makefile\ufe0f", r'"Makefile\u{fe0f}"'),
    "a joiner": ("Make\u034ffile", r'"Make\u{34f}file"'),
    "a blank of Braille": ("x\u2800", r'"x\u{2800}"'),
}
PLAINLY_OF_ONE_SCRIPT = (
    *("файл.txt", "отчёт_\u0441_фото.txt", "план-\u0430", "αρχείο.txt", "שלום.txt", "日本語/файл"),
    *("文件.txt", "報告v2.txt", "报告\uff08终稿\uff09.docx", "ファイル", "한글abc"),
    *("größe", "naïve.txt", "e\u0301té", "\u0131ş\u0131k", "1º_semestre"),
)


@pytest.mark.parametrize("case", LOOKS_LIKE_ANOTHER)
def test_a_name_that_looks_like_another_is_shown_with_what_it_is_made_of(case: str) -> None:
    name, shown = LOOKS_LIKE_ANOTHER[case]
    assert quote(name.encode()) == shown
    assert find_misleading(show(name.encode())) == set()


@pytest.mark.parametrize("name", PLAINLY_OF_ONE_SCRIPT)
def test_a_name_that_is_plainly_of_one_script_stays_readable(name: str) -> None:
    assert quote(name.encode()) == show(name.encode()) == name


@pytest.mark.parametrize("case", LOOKS_LIKE_ANOTHER)
def test_without_looking_for_them_they_would_be_shown_as_they_are(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: none of them is escaped as something that does not print."""
    monkeypatch.setattr("unspill.policy.paths.find_misleading", lambda _text: set())
    name, _ = LOOKS_LIKE_ANOTHER[case]
    assert quote(name.encode()) == show(name.encode()) == name


@given(st.text(alphabet=st.sampled_from("ag\u0430\u0456ж文/._-\u2215"), max_size=12))
def test_no_word_that_is_shown_mixes_latin_with_what_looks_like_it(name: str) -> None:
    assert not is_mixed_script(quote(name.encode()).encode())


@given(st.binary(max_size=40))
def test_what_is_shown_of_a_name_is_printable_and_can_be_sent_anywhere(name: bytes) -> None:
    shown = quote(name)
    assert shown.isprintable()
    shown.encode("utf-8")


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_two_names_are_never_shown_alike(one: bytes, other: bytes) -> None:
    assert (quote(one) == quote(other)) == (one == other)


@given(st.text(max_size=12), st.text(max_size=12))
def test_two_texts_are_never_shown_alike(one: str, other: str) -> None:
    raw = one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass")
    assert (quote(raw[0]) == quote(raw[1])) == (raw[0] == raw[1])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain text", "plain text"),
        (b"\tx\ty", "        x       y"),
        (b"a\rb", r"a\rb"),
        (b"red \x1b[31m", r"red \u{1b}[31m"),
        (b"back\\slash", "back\\slash"),
        (b"latin \xe9", r"latin \xe9"),
        ("if \u2066x".encode(), r"if \u{2066}x"),
    ],
)
def test_a_line_of_content_is_shown_without_its_tricks(line: bytes, shown: str) -> None:
    assert show_line(line) == shown


@pytest.mark.parametrize("character", [b"x", "é".encode(), "💾".encode(), b"\xff"])
def test_a_long_line_is_cut_with_its_length(character: bytes) -> None:
    line = character * 10_000
    shown = show_line(line)
    assert shown.endswith(f" [cut: {len(line)} bytes in this line]")
    assert len(shown) < COLUMNS + 60


def test_a_line_of_exactly_the_width_is_not_cut() -> None:
    assert show_line(b"x" * COLUMNS) == "x" * COLUMNS
    assert show_line("💾".encode() * COLUMNS) == "💾" * COLUMNS


@given(st.binary(max_size=3000).filter(lambda line: b"\n" not in line))
def test_what_is_shown_of_a_line_is_printable_and_bounded(line: bytes) -> None:
    shown = show_line(line)
    assert shown.isprintable()
    assert len(shown) < COLUMNS + 60


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (b"paypal", False),
        ("p\u0430ypal".encode(), True),
        ("файл.txt".encode(), False),
        ("файл".encode(), False),
        ("grün".encode(), False),
        ("日本語abc".encode(), False),
    ],
)
def test_names_that_mix_scripts_that_look_alike_are_found(name: bytes, wanted: bool) -> None:
    assert is_mixed_script(name) == wanted
