# SPDX-License-Identifier: Apache-2.0
"""Completion, asked of bash, zsh and fish themselves: each loads our script as a person would, and completes a line."""

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import Ground, run_cli
from unspill.cli.completion import SCRIPTS, find_candidates
from unspill.cli.main import VERBS, find_verb

pytestmark = pytest.mark.kernel

# readline splits a line at these, and hands over the words
BREAKS = re.compile(r"[=:]|[^\s=:]+")
END = "---"
Lines = Sequence[str]
Words = set[str]
Ask = Callable[[Lines, Path], list[Words]]


def environment() -> dict[str, str]:
    """Return variables with which a shell finds the program under test."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "dumb"}


def shell(words: list[str], script: str, cwd: Path) -> str:
    """Run a script by a shell that has nothing of anybody's settings."""
    done = subprocess.run(
        [*words, script], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stderr == ""
    return done.stdout


def by_bash(lines: Lines, cwd: Path) -> list[Words]:
    """Return what the function offers that `complete` registered, called with the variables that readline sets."""
    script = """
        source <(unspill completion bash)
        compopt() { [[ " $* " != *" default "* ]] || COMPREPLY+=(FILES); }
        read -r _ _ name _ < <(complete -p unspill)
    """
    for line in lines:
        words = BREAKS.findall(line) + ([""] if line.endswith(" ") else [])
        script += f"""
            COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
            "$name" unspill {shlex.quote(words[-1])} {shlex.quote(words[-2])}
            printf '%s\\n' "${{COMPREPLY[@]}}" {END}
        """
    return divided(shell(["bash", "--norc", "-c"], script, cwd))


def by_zsh(lines: Lines, cwd: Path) -> list[Words]:
    """Return what an interactive zsh on a terminal offers: its compadd tells which words match the line."""
    with tempfile.TemporaryDirectory() as place:
        found = Path(place, "found")
        Path(place, ".zshrc").write_text(f"""
            autoload -Uz compinit; compinit -u; source <(unspill completion zsh)
            compadd() {{
                local -a hits
                (( $@[(I)-[OAD]*] )) || {{ builtin compadd -O hits "$@"; print -rl -- $hits >> {found}; }}
                builtin compadd "$@"
            }}
            now() {{ zle complete-word; zle kill-buffer; print -r -- {END} >> {found}; }}
            zle -C complete-word .complete-word _main_complete; zle -N now; bindkey '^X' now
            zle-line-init() {{ zle -D zle-line-init; print -r -- {END} >> {found}; }}; zle -N zle-line-init
        """)
        ours, theirs = pty.openpty()
        started = subprocess.Popen(
            ["zsh", "-d", "-i"],
            cwd=cwd,
            env={**environment(), "ZDOTDIR": place},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        try:
            for number, line in enumerate(["", *lines]):
                os.write(ours, f"{line}\x18".encode() if line else b"")
                deadline = time.monotonic() + 50
                while not has_ended(found, number + 1, ours):
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
        finally:
            started.kill()
            started.wait()
            os.close(ours)
        return divided(found.read_text())[1:]


def has_ended(found: Path, count: int, terminal: int) -> bool:
    """Tell whether so many lines were completed; what zsh prints meanwhile is read, or it would wait."""
    with contextlib.suppress(OSError):
        os.read(terminal, 65536)
    return found.exists() and found.read_text().count(f"{END}\n") >= count


def by_fish(lines: Lines, cwd: Path) -> list[Words]:
    """Return what fish's own `complete -C` answers."""
    script = "unspill completion fish | source\n"
    script += "".join(f"complete -C {shlex.quote(line)}; echo {END}\n" for line in lines)
    return divided(shell(["fish", "--no-config", "-c"], script, cwd))


def divided(text: str) -> list[Words]:
    """Return the words that were offered for each line, without what is said about them."""
    parts = text.split(f"{END}\n")[:-1]
    return [{line.partition("\t")[0] for line in part.splitlines() if line} for part in parts]


@pytest.fixture(params=[by_bash, by_zsh, by_fish])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Each of the shells."""
    asked: Ask = request.param
    return asked


def test_verbs_options_and_values_are_completed(ground: Ground, ask: Ask) -> None:
    (ground.home / "other").mkdir()
    lines = {
        "unspill ": set(VERBS),
        "unspill pl": {"playground"},
        "unspill run --ti": {"--timeout"},
        "unspill playground --e": {"--empty"},
        "unspill run --ask ": {"terminal", "queue", "deny"},
        "unspill approve --scope=al": {"--scope=always"},
        "unspill ps --project o": {"other"},
        "unspill ps --project=o": {"--project=other"},
        "unspill run -q -- mkfif": {"mkfifo"},
        "unspill completion ": set(SCRIPTS),
        "unspill nothing ": set(),
    }
    for (line, expected), found in zip(lines.items(), ask(list(lines), ground.home), strict=True):
        # bash replaces only what is behind `=`; a directory may have its slash already
        assert {word.rstrip("/") for word in found} in (expected, {word.rpartition("=")[2] for word in expected}), line


def test_what_there_is_in_the_project_is_completed(ground: Ground, ask: Ask) -> None:
    ground.write(".unspill.toml")
    ground.write("sub/kept")
    run_cli("run", "-c", "echo a > 'one file'; echo b > sub/two", cwd=ground.project)
    run_cli(
        "run", "--hold", "--sandbox", "trial", "-c", "echo c > sub/three; echo d > 'sub/a four'", cwd=ground.project
    )
    run_cli("run", "--session", "review-7", "--", "true", cwd=ground.project)
    lines = {
        "unspill changes --sandbox ": {"default", "trial"},
        "unspill show ": {"run1", "run2", "op1"},
        "unspill show run": {"run1", "run2"},
        "unspill undo ": {"op1"},
        "unspill undo --session ": {"review-7"},
        "unspill apply --sandbox trial ": {"three", "a four"},
        "unspill restore ": {"two"},
    }
    found = ask(list(lines), ground.project / "sub")
    for (line, expected), words in zip(lines.items(), found, strict=True):
        # zsh and fish offer a name as it is typed
        names = {word.replace("\\", "") for word in words if word.startswith("/") is False}
        assert names >= expected, line
        assert names <= expected | {"run1", "run2"}, line


def test_a_name_that_speaks_to_the_terminal_is_not_offered(ground: Ground, ask: Ask) -> None:
    run_cli(
        "run",
        "--hold",
        "-c",
        "touch plain $(printf 'x\\033]0;title\\007') $(printf 'y\\342\\200\\256z')",
        cwd=ground.project,
    )
    assert len(json.loads(run_cli("changes", "--json", cwd=ground.project).stdout)["roots"][0]["changes"]) == 3
    assert ask(["unspill apply "], ground.project) == [{"plain"}]


def test_bash_types_no_name_that_would_run_something(ground: Ground) -> None:
    run_cli("run", "--session", "$(touch ran)", "--", "true", cwd=ground.project)
    (words,) = by_bash(["unspill undo --session "], ground.project)
    assert words == {"\\$\\(touch\\ ran\\)"}


def test_a_program_of_the_project_s_own_is_not_asked(ground: Ground, ask: Ask) -> None:
    ground.write("unspill", "#!/bin/sh\ntouch ran\n").chmod(0o755)
    ask(["./unspill sh"], ground.project)
    assert not (ground.project / "ran").exists()


def test_asking_makes_nothing_and_fails_without_a_word(ground: Ground) -> None:
    state = ground.home / "none"
    for words in (("show", ""), ("apply", ""), ("changes", "--sandbox", "")):
        done = run_cli("candidates", "--", *words, cwd=ground.project, variables={"UNSPILL_STATE_DIR": str(state)})
        assert (done.returncode, done.stderr) == (0, b"")
    assert not state.exists()
    (ground.state / "store.db").write_bytes(b"this is no database" * 100)
    done = run_cli("candidates", "--", "show", "", cwd=ground.project)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"words\n", b"")


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_is_offered_and_no_other(verb: str) -> None:
    kind, found = find_candidates([verb, "--"])
    assert kind == "options"
    assert [word for word, _about in found] == [option.name for option in find_verb(verb).options]
    assert all(about for _word, about in found)


def test_an_option_that_was_given_is_offered_again_only_if_it_is_repeatable() -> None:
    words = {
        word for word, _about in find_candidates(["run", "--env", "A=1", "--quiet", "--project", "--json", "--"])[1]
    }
    assert "--env" in words
    assert "--json" in words, "that was a value"
    assert not words & {"--quiet", "--project"}


@pytest.mark.parametrize(
    ("words", "at"), [(("run", ""), 2), (("run", "-q", "--", "a"), 4), (("run", "ls", "-l", "--js"), 2)]
)
def test_a_command_begins_where_the_parser_finds_it(words: tuple[str, ...], at: int) -> None:
    assert find_candidates(words) == (f"command {at}", [])


def test_the_verb_that_shells_ask_is_not_listed() -> None:
    assert "candidates" not in VERBS
    assert find_verb("candidates").takes_command


def test_without_a_shell_its_own_is_meant_and_another_is_refused(ground: Ground) -> None:
    done = run_cli("completion", cwd=ground.project, variables={"SHELL": "/usr/bin/fish"})
    assert done.stdout.decode() == SCRIPTS["fish"]
    done = run_cli("completion", "tcsh", cwd=ground.project)
    assert done.returncode == 2
    assert b"bash, zsh, fish" in done.stderr
