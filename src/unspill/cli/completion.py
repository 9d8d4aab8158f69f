# SPDX-License-Identifier: Apache-2.0
"""`unspill completion`: what bash, zsh and fish load to complete our command lines; and what they then ask for.

The scripts only ask `unspill candidates`, which walks the very tables that the parser reads. So they know every option
of the version that is installed, and the sandboxes, runs and held paths of this moment. Nothing is made or changed by
it, and a failure completes nothing. A name that is not plain text is not offered: shells print candidates as they are.
"""

from __future__ import annotations

import os
import time
from itertools import islice

from unspill.cli.main import DEFAULT, PROJECT, SANDBOX, VERBS, Arguments, Option, find_verb, open_sandbox, verb
from unspill.cli.output import print_json, seen_from_here
from unspill.errors import UnspillError, UsageError
from unspill.policy.paths import find_misleading, quote
from unspill.sandbox.project import find_own_locations, find_project
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from unspill.cli.main import Verb
    from unspill.store.layers import SandboxRow

    # A word and what is said about it
    Candidate = tuple[str, str]

_BASH = """\
# Completes unspill in bash. Load it with: source <(unspill completion bash)
_unspill() {
    local i at kind line part=${COMP_WORDS[COMP_CWORD]} glue= words=()
    # bash takes `--name=value` for three words, and replaces the last of them only
    for ((i = 1; i <= COMP_CWORD; i++)); do
        if [[ ( $glue || ${COMP_WORDS[i]} == [=:]* ) && ${#words[@]} -gt 0 ]]; then
            words[${#words[@]} - 1]+=${COMP_WORDS[i]}
        else
            words+=("${COMP_WORDS[i]}")
        fi
        [[ ${COMP_WORDS[i]} == [=:] ]] && glue=yes || glue=
    done
    [[ $part != [=:] ]] || part=
    local whole=${words[${#words[@]} - 1]}
    local begin=${whole%"$part"}
    COMPREPLY=()
    {
        read -r kind at
        while IFS= read -r line; do
            COMPREPLY+=("${line%%$'\\t'*}")
        done
    } < <(command unspill candidates -- "${words[@]}" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"$begin"}")
    case $kind in
        files) compopt -o default ;;
        directories) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$part") ;;
        paths) compopt -o filenames ;;
        words) for i in "${!COMPREPLY[@]}"; do printf -v "COMPREPLY[i]" %q "${COMPREPLY[i]}"; done ;;
        options) [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace ;;
        command)
            if declare -F _command_offset >/dev/null; then
                _command_offset "$((COMP_CWORD - ${#words[@]} + at))"
            elif ((at == ${#words[@]})); then
                mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -c -- "$part")
            else
                compopt -o default
            fi
            ;;
    esac
}
complete -F _unspill unspill
"""
_ZSH = """\
#compdef unspill
# Completes unspill in zsh. Load it with: source <(unspill completion zsh)
_unspill() {
    local kind line value
    local -a lines found
    lines=("${(@f)$(command unspill candidates -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    kind=$lines[1]
    shift lines
    for line in $lines; do
        value=${line%%$'\\t'*}
        found+=("${value//:/\\\\:}:${line#*$'\\t'}")
    done
    case $kind in
        (files) compset -P '--[a-z-]#=' ; _files ;;
        (directories) compset -P '--[a-z-]#=' ; _files -/ ;;
        (command *)
            shift "$((${kind#command } - 1))" words
            shift words
            ((CURRENT -= ${kind#command }))
            ((CURRENT > 1)) || _describe -t values value found
            _normal
            ;;
        (*) _describe -V -t values value found ;;
    esac
}
if [[ $funcstack[1] == _unspill ]]; then
    _unspill "$@"
else
    compdef _unspill unspill
fi
"""
_FISH = """\
# Completes unspill in fish. Load it with: unspill completion fish | source
function __unspill_candidates
    set -l token (commandline -ct)
    set -l words (commandline -opc) "$token"
    set -l lines (command unspill candidates -- $words[2..-1] 2>/dev/null)
    set -l kind (string split ' ' -- "$lines[1]")
    set -l begin (string match -r -- '^--[a-z-]+=' $token)
    set -l rest (string replace -- "$begin" '' $token)
    switch "$kind[1]"
        case files
            printf "$begin%s\\n" (__fish_complete_path "$rest")
        case directories
            printf "$begin%s\\n" (__fish_complete_directories "$rest")
        case command
            set -l first (math $kind[2] + 1)
            complete -C (string join ' ' -- (string escape -- $words[$first..-1]))
    end
    test (count $lines) -gt 1; and printf '%s\\n' $lines[2..-1]
end
complete -c unspill -f -a '(__unspill_candidates)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

# What the value of an option is, by its metavar, where its row of the table does not say it
_VALUES = {
    **dict.fromkeys(("DIR", "PROJECT"), "directories"),
    **dict.fromkeys(("PATH", "FILE", "WHERE", "PLACE"), "files"),
    "RUN": "run",
    "OP": "operation",
}
# What words without an option are
_WORDS = {
    "RUN": "run",
    "OP": "operation",
    "NAME": "sandbox",
    "PATH": "changed",
    "ID": "request",
    "PROJECT": "directories",
}
_OF_VERB = {
    ("restore", "PATH"): "recorded",
    ("files", "PATH"): "recorded",
    ("log", "PATH"): "recorded",
    ("grants", "ID"): "grant",
    ("rootfs", "NAME"): "",
}
# What the shell itself completes
_BY_SHELL = ("files", "directories")
_PATHS = ("changed", "recorded")
_NEWEST = 100
_MOST_PATHS = 1000
_LONGEST_ABOUT = 60


@verb(
    "Print what a shell loads to complete unspill's command lines.",
    positional="bash|zsh|fish",
    most=1,
    examples=(
        "source <(unspill completion bash)",
        "unspill completion zsh > _unspill",
    ),
)
def completion(arguments: Arguments) -> int:
    """Print the script for one shell."""
    shell = arguments.words[0] if arguments.words else os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SCRIPTS:
        raise UsageError(f"no completion for {shell!r}", remedy=f"Name one of these: {', '.join(SCRIPTS)}.")
    if arguments.flag("--json"):
        print_json({"shell": shell, "script": SCRIPTS[shell]})
    else:
        print(SCRIPTS[shell], end="")
    return 0


@verb("Print what a command line could go on with. Shells ask for it.", positional="-- WORD ...", takes_command=True)
def candidates(arguments: Arguments) -> int:
    """Print what the last word could become: first what kind of thing that is, then one candidate a line."""
    kind, found = find_candidates(arguments.words or [""])
    print(kind)
    for word, about in found:
        if word.isprintable() and not find_misleading(word):
            print(f"{word}\t{about}")
    return 0


def find_candidates(words: Sequence[str]) -> tuple[str, list[Candidate]]:
    """Return what the last of these words could become, and the kind of it.

    `words`, `options` and `paths` are listed. `files` and `directories` are completed by the shell; so is `command N`,
    a command line that begins with the Nth of these words, besides what is listed.
    """
    *before, current = words
    if not before:
        return "words", _beginning(current, _first_words(current))
    if before[0] == "help" and len(before) == 1:
        return "words", _beginning(current, _first_words(""))
    if before[0] not in VERBS:
        return "words", []
    return _TypedWords(find_verb(before[0]), before[1:]).candidates(current)


class _TypedWords:
    """A command line behind its verb, read as far as it goes."""

    def __init__(self, verb: Verb, before: Sequence[str]) -> None:
        self._verb = verb
        self._given = Arguments()
        # How many words are behind the verb, where a command begins among them, and the option that lacks its value
        self._count = len(before)
        self._command = -1
        self._open: Option | None = None
        self._takes_options = True
        self._options = {name: one for one in verb.options for name in (one.name, one.short) if name}
        for at, word in enumerate(before):
            self._take(word, at)

    def candidates(self, current: str) -> tuple[str, list[Candidate]]:
        """Return what the word behind all these could become."""
        if self._command >= 0:
            return self._words(current)
        is_option = self._takes_options and current.startswith("-")
        if self._open is not None and not (is_option and self._open.metavar.startswith("[")):
            kind, found = self._values([self._value_kind(self._open)], current)
            if self._open.metavar.startswith("[") and not found:
                return self._words(current)
            return kind, found
        if is_option and "=" in current:
            name, _, value = current.partition("=")
            option = self._options.get(name)
            if option is None or not option.metavar:
                return "words", []
            kind, found = self._values([self._value_kind(option)], value)
            return kind, [(f"{name}={word}", about) for word, about in found]
        if is_option:
            return "options", _beginning(current, self._unused())
        return self._words(current)

    def _take(self, word: str, at: int) -> None:
        if self._command >= 0:
            return
        is_option = self._takes_options and word.startswith("-") and word != "-"
        if self._open is not None and not (is_option and self._open.metavar.startswith("[")):
            self._given.add(self._open.name, word)
            self._open = None
        elif self._takes_options and word == "--":
            self._takes_options = False
            self._command = at + 1 if self._verb.takes_command else -1
        elif is_option:
            name, equals, value = word.partition("=")
            option = self._options.get(name)
            self._open = option if option is not None and option.metavar and not equals else None
            if option is not None and self._open is None:
                self._given.add(option.name, value)
        else:
            self._given.words.append(word)
            self._command = at if self._verb.takes_command else -1

    def _unused(self) -> Iterator[Candidate]:
        for option in self._verb.options:
            if option.repeated or not self._given.flag(option.name):
                yield option.name, option.help

    def _words(self, current: str) -> tuple[str, list[Candidate]]:
        parts = [part.split("|") for part in self._verb.positional.replace("[", "").replace("]", "").split()]
        if self._verb.takes_command:
            at = self._command if self._command >= 0 else self._count
            known = [(word, "") for word in parts[0] if word.islower()] if at == self._count else []
            return f"command {at + 2}", _beginning(current, known)
        is_endless = parts[-1:] == [["..."]]
        parts = [part for part in parts if part != ["..."]]
        if not parts:
            return "options", _beginning(current, self._unused())
        at = len(self._given.words)
        if at >= len(parts) and not is_endless:
            return "words", []
        wanted = parts[min(at, len(parts) - 1)]
        if at + 1 < len(parts) and not any(map(str.islower, wanted)):
            # The first part may be left out
            wanted = [*wanted, *parts[at + 1]]
        literals = [word for word in wanted if word.islower()]
        kinds = [_OF_VERB.get((self._verb.name, word), _WORDS.get(word, "")) for word in wanted if word not in literals]
        kind, found = self._values(kinds, current)
        return kind, [*_beginning(current, [(word, "") for word in literals]), *found]

    def _values(self, kinds: Sequence[str], current: str) -> tuple[str, list[Candidate]]:
        """Return the values of some kinds that begin like the current word."""
        if kinds and kinds[0] in _BY_SHELL:
            return kinds[0], []
        found: list[Candidate] = []
        for kind in kinds:
            if "|" in kind:
                found += [(word, "") for word in kind.split("|")]
            elif kind:
                found += self._known(kind)
        return "paths" if set(kinds) & set(_PATHS) else "words", _beginning(current, found)

    def _value_kind(self, option: Option) -> str:
        return option.values or _VALUES.get(option.metavar, "")

    def _known(self, kind: str) -> list[Candidate]:
        """Return what the store knows of a kind; nothing where there is none, or it can't be read."""
        state = find_own_locations().state
        if not os.path.exists(os.path.join(state, b"store.db")):
            return []
        given = self._given.value(PROJECT.name)
        project = os.path.realpath(os.fsencode(given)) if given else find_project(os.getcwdb())
        try:
            with Store.open(state) as store:
                return list(self._listed(kind, store, project))
        except (UnspillError, OSError):
            return []

    def _listed(self, kind: str, store: Store, project: bytes) -> Iterator[Candidate]:
        if kind == "sandbox":
            yield from ((row.name, "") for row in store.sandboxes.of_project(project))
        elif kind == "operation":
            for done in store.operations.latest(project, _NEWEST):
                yield f"op{done.number}", f"{done.kind}, {done.changed} changed"
        elif kind == "session":
            times = store.sessions.times(project)
            yield from ((name, "") for name in sorted(times, key=lambda name: -times[name][1]))
        elif kind == "request":
            now_ns = time.time_ns()
            yield from ((asked.id, asked.request.kind) for asked in store.requests.waiting(now_ns))
        elif kind == "grant":
            yield from ((grant.id, grant.request.kind) for grant in store.grants.all())
        elif kind == "recorded" and store.operations.latest(project, 1):
            with open_sandbox(self._given) as sandbox:
                rows = sandbox.files(with_deleted=True)
            yield from ((_seen(os.path.join(row.root, row.path)), "") for row in rows[:_MOST_PATHS])
        elif row := store.sandboxes.find(project, self._given.value(SANDBOX.name) or DEFAULT):
            yield from self._of_sandbox(kind, store, row)

    def _of_sandbox(self, kind: str, store: Store, row: SandboxRow) -> Iterator[Candidate]:
        if kind == "run":
            for run in store.runs.latest(row.id, _NEWEST):
                yield f"run{run.number}", _about(run.argv)
        elif kind == "changed" and store.layers.sealed_ids(row.id):
            # A sandbox is opened only where something is held in it
            with open_sandbox(self._given) as sandbox:
                found = sandbox.changes()
            paths = (os.path.join(part.root, change.path) for part in found.roots for change in part.changes)
            yield from ((_seen(path), "") for path in islice(paths, _MOST_PATHS))


def _first_words(current: str) -> Iterator[Candidate]:
    if current.startswith("-"):
        yield "--help", "list the commands"
        yield "--version", "print the version"
        return
    yield from ((name, summary) for name, (_module, summary) in VERBS.items())


def _beginning(current: str, found: Iterable[Candidate]) -> list[Candidate]:
    return [(word, about) for word, about in found if word.startswith(current)]


def _about(argv: Sequence[bytes]) -> str:
    return " ".join(map(quote, argv))[:_LONGEST_ABOUT]


def _seen(path: bytes) -> str:
    """Return a path as it is typed from here; what is no text is no candidate, and shown as what it is not."""
    return os.fsdecode(seen_from_here(path))
