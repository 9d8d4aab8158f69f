# SPDX-License-Identifier: Apache-2.0
"""Tricks against a memory of permissions, by class: commands that are not the one that was allowed, but look like it.

Each class has a memory that would fall for every one of its vectors, as programs have had it. What was allowed is
always the plain command.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

ALLOWED: Final = ("ls", "git fetch", "npm install")


@dataclass(frozen=True)
class Class:
    """Vectors of one kind: texts for a shell with {} for what was allowed, and the memory that falls for them."""

    name: str
    forms: tuple[str, ...]
    falls: Callable[[str, str], bool]

    def vectors(self) -> list[tuple[str, str]]:
        """Return pairs of what was allowed and what is asked."""
        return [(allowed, form.replace("{}", allowed)) for allowed in ALLOWED for form in self.forms]


def begins_alike(asked: str, allowed: str) -> bool:
    return asked.startswith(allowed)


def first_of_a_chain(asked: str, allowed: str) -> bool:
    return re.split(r"[;&|\n\r]+", asked)[0].strip() == allowed


def any_line(asked: str, allowed: str) -> bool:
    return allowed in (line.strip() for line in asked.splitlines())


def last_of_a_chain(asked: str, allowed: str) -> bool:
    return re.split(r"[;&|\n\r]+", asked)[-1].strip() == allowed


def without_wrappers(asked: str, allowed: str) -> bool:
    wrappers = {"env", "command", "exec", "nohup", "nice", "time", "builtin", "sudo", "setsid", "-", "--"}
    words = [word for word in asked.split() if "=" not in word and word not in wrappers]
    return " ".join(words) == allowed


def same_words(asked: str, allowed: str) -> bool:
    return asked.replace("\u00a0", " ").split() == allowed.split()


def same_when_folded(asked: str, allowed: str) -> bool:
    folded = unicodedata.normalize("NFKD", asked).casefold()
    return "".join(char for char in folded if unicodedata.category(char) not in ("Cf", "Mn")) == allowed


def until_nul(asked: str, allowed: str) -> bool:
    return asked.split("\0", maxsplit=1)[0] == allowed


def same_program_name(asked: str, allowed: str) -> bool:
    first, *rest = asked.split()
    return [os.path.basename(first), *rest] == allowed.split()


def same_after_a_shell(asked: str, allowed: str) -> bool:
    return shlex.split(asked, comments=True) == allowed.split()


CLASSES: Final = (
    Class(
        "append another command by an operator",
        (
            *("{}; id", "{} && id", "{} || id", "{} | sh", "{} & id", "{} |& sh", "{};id", "{}&&id"),
            "{}\nid",
            "{}\r\nid",
        ),
        first_of_a_chain,
    ),
    Class("put another command on a line of its own before it", ("id\n{}", "id\n{}\n", "\nid\n{}"), any_line),
    Class(
        "put another command before it in a chain",
        ("id; {}", "id && {}", "id || {}", "id | {}", "cd /; {}", "f() { id; } ; {}", "alias x=id; {}"),
        last_of_a_chain,
    ),
    Class(
        "append a substitution that runs something",
        ("{} $(id)", "{} `id`", "{} <(id)", "{} >(sh)", "{} ${x:-$(id)}", "{} $((x[$(id)]))", '{} "$(id)"'),
        begins_alike,
    ),
    Class(
        "append a redirection",
        ("{} > x", "{} >> x", "{} < /etc/passwd", "{} 2> x", "{} &> x", "{} >| x", "{} <<< x", "{} <<E\nx\nE"),
        begins_alike,
    ),
    Class(
        "append options and arguments",
        ("{} --upload-pack=x", "{} -c core.pager=id", "{} --exec=id", "{} /", "{} ..", "{} -- x", "{}x", "{}-evil"),
        begins_alike,
    ),
    Class(
        "set a variable for it or start it by another program",
        (
            *("LD_PRELOAD=./x {}", "PATH=. {}", "GIT_SSH_COMMAND=id {}", "BASH_ENV=x {}", "env {}", "env -- {}"),
            *("command {}", "exec {}", "nohup {}", "nice {}", "time {}", "sudo {}", "setsid {}"),
        ),
        without_wrappers,
    ),
    Class("change nothing but white space", (" {}", "{} ", "\t{}", "{}\t", "{}\u00a0", "{}\n", "  {}  "), same_words),
    Class(
        "spell it with other characters that look the same",
        ("{}\u200b", "\ufeff{}", "\u2060{}", "{}\u00ad", "{}\u0301", "\u202a{}\u202c"),
        same_when_folded,
    ),
    Class("end it by a NUL", ("{}\0; id", "{}\0", "{}\0x"), until_nul),
    Class(
        "start another program of the same name",
        ("./{}", "/tmp/{}", "bin/../{}", "../{}", "~/{}"),
        same_program_name,
    ),
    Class(
        "spell it as a shell would read the same words",
        ("{} # x", "''{}", "{} #", '""{}', "{} # $(id)"),
        same_after_a_shell,
    ),
)
