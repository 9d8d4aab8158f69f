# SPDX-License-Identifier: Apache-2.0
"""The git configuration of a sandbox: the person's identity and harmless settings, nothing that runs or unlocks.

An allow table, not a deny list: a key that a later git makes dangerous is not in it. The person's own file is read
here, so that git never runs on the host; includes are not followed, nothing is expanded.
"""

from __future__ import annotations

from unspill.errors import UsageError

ALLOWED_KEYS = frozenset(
    """
    user.name user.email author.name author.email committer.name committer.email
    init.defaultbranch
    core.autocrlf core.eol core.safecrlf core.quotepath core.abbrev
    core.precomposeunicode core.whitespace core.commentchar
    color.ui column.ui
    advice.detachedhead advice.addignoredfile advice.skippedcherrypicks
    branch.autosetuprebase branch.autosetupmerge branch.sort
    commit.verbose commit.cleanup
    diff.algorithm diff.colormoved diff.context diff.mnemonicprefix diff.noprefix diff.renames diff.renamelimit
    fetch.prune fetch.prunetags
    log.date log.decorate log.abbrevcommit log.follow
    merge.conflictstyle merge.ff merge.renames merge.renamelimit
    pull.rebase pull.ff push.default push.autosetupremote push.followtags
    rebase.autosquash rebase.autostash rebase.updaterefs
    rerere.enabled rerere.autoupdate
    status.short status.branch status.showuntrackedfiles
    tag.sort
    """.split()
)
_SPACES = " \t\r"
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}


def parse_gitconfig(text: str) -> tuple[tuple[str, str], ...]:
    """Return every setting in order as (`section.key` or `section.Sub.key`, value).

    A key without a value is "true". The caller may go on without an identity where this raises.

    Raises:
        UsageError: git could not read this either; with the number of the line.
    """
    return tuple(_Reader(text.removeprefix("\ufeff").replace("\r\n", "\n")).settings())


def filter_identity(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the settings a sandbox may have, keys in lower case, the last value of each."""
    kept: dict[str, str] = {}
    for key, value in pairs:
        lower = key.lower()
        if lower in ALLOWED_KEYS and "\0" not in value:
            kept[lower] = value
    return tuple(sorted(kept.items()))


def to_gitconfig(pairs: tuple[tuple[str, str], ...]) -> str:
    """Return the text of a configuration file with the allowed ones of these settings."""
    lines: list[str] = []
    section = ""
    for key, value in filter_identity(pairs):
        name, _, variable = key.partition(".")
        if name != section:
            section = name
            lines.append(f"[{name}]")
        lines.append(f"\t{variable} = {_quote(value)}")
    return "".join(line + "\n" for line in lines)


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + escaped.replace("\t", "\\t").replace("\b", "\\b") + '"'


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def settings(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        section = ""
        while (char := self._peek()) != "":
            if char in _SPACES or char == "\n":
                self.at += 1
            elif char in "#;":
                self._skip_line()
            elif char == "[":
                section = self._section()
            elif section and char.isascii() and char.isalpha():
                key = self._key()
                found.append((f"{section}.{key}", self._value()))
            else:
                raise self._wrong("neither a section nor a setting")
        return found

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _next(self) -> str:
        char = self._peek()
        self.at += 1
        return char

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _skip_spaces(self) -> None:
        while self._peek() and self._peek() in _SPACES:
            self.at += 1

    def _name(self, more: str) -> str:
        start = self.at
        while (char := self._peek()) and char.isascii() and (char.isalnum() or char in more):
            self.at += 1
        return self.text[start : self.at].lower()

    def _section(self) -> str:
        self.at += 1
        name = self._name("-.")
        if not name:
            raise self._wrong("a section without a name")
        if self._peek() == "]":
            self.at += 1
            return name
        self._skip_spaces()
        if self._next() != '"':
            raise self._wrong("a section that does not end")
        subsection = self._subsection()
        if self._next() != "]":
            raise self._wrong("a section that does not end")
        return f"{name}.{subsection}"

    def _subsection(self) -> str:
        chars: list[str] = []
        while (char := self._next()) != '"':
            if char == "\\":
                char = self._next()
            if char in ("", "\n"):
                raise self._wrong("a section that does not end")
            chars.append(char)
        return "".join(chars)

    def _key(self) -> str:
        return self._name("-")

    def _value(self) -> str:
        self._skip_spaces()
        if self._peek() in ("", "\n"):
            return "true"
        if self._next() != "=":
            raise self._wrong("a setting without `=`")
        self._skip_spaces()
        return self._text()

    def _text(self) -> str:
        chars: list[str] = []
        spaces = ""
        quoted = False
        while (char := self._next()) not in ("", "\n"):
            if not quoted and char in _SPACES:
                spaces += char
                continue
            if not quoted and char in "#;":
                self._skip_line()
                continue
            if char == "\\" and self._peek() in ("", "\n"):
                self.at += 1
                continue
            chars.append(spaces)
            spaces = ""
            if char == '"':
                quoted = not quoted
            else:
                chars.append(self._escaped() if char == "\\" else char)
        if quoted:
            raise self._wrong("a quotation mark that is never closed")
        return "".join(chars)

    def _escaped(self) -> str:
        char = _ESCAPES.get(self._next())
        if char is None:
            raise self._wrong("a backslash before a character that needs none")
        return char

    def _wrong(self, reason: str) -> UsageError:
        line = self.text.count("\n", 0, self.at) + 1
        return UsageError(f"git configuration, line {line}: {reason}.", remedy="Correct it: git can't read it either.")
