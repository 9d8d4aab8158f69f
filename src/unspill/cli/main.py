# SPDX-License-Identifier: Apache-2.0
"""The `unspill` program: finds the verb, imports the module that has it, turns errors into text and exit codes.

Only this package prints or exits. To add a verb, write a function with `@verb(...)` (see `options.py`) in the module
where it belongs, and name it in `VERBS`.
"""

from __future__ import annotations

import os
import sys

from unspill import __version__
from unspill.cli.options import help_text, parse
from unspill.errors import DeniedError, SandboxUnavailable, UnspillError, UsageError
from unspill.host.dirfd import occupy_standard
from unspill.host.libc import ignore_interrupts
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from unspill.cli.options import Verb

# The verbs as the overview lists them: the module that has each one, and what it does
VERBS = {
    "run": ("run", "run a command sealed; then apply, hold or discard what it changed"),
    "undo": ("history", "take an operation back, whatever the command was"),
    "redo": ("history", "do again what an undo took back"),
    "changes": ("review", "list what is held"),
    "diff": ("review", "show what is held, or what an operation changed, line by line"),
    "apply": ("review", "bring what is held into the project"),
    "discard": ("review", "drop what is held; undo brings it back"),
    "log": ("history", "list runs and operations"),
    "show": ("history", "show one run or one operation"),
    "files": ("review", "list the files that operations touched, and their backups"),
    "restore": ("review", "bring a file back from a backup"),
    "requests": ("permissions", "list what waits for your answer"),
    "approve": ("permissions", "allow what waits"),
    "deny": ("permissions", "deny what waits"),
    "grants": ("permissions", "list or take back what you allowed for longer than once"),
    "audit": ("permissions", "list what was asked, answered, run and applied"),
    "rootfs": ("rootfs", "list, fetch, choose, check and remove root file systems for the view `rootfs`"),
    "mcp": ("mcp", "serve the tools of a sandbox to any client that speaks MCP"),
    "hook": ("hook", "be the hook of a coding agent, so that its commands are run sealed"),
    "status": ("upkeep", "say what is kept, and what that takes on the disk"),
    "prune": ("upkeep", "forget what is too old to be kept"),
    "recover": ("upkeep", "put the last copy of a lost database back"),
    "doctor": ("doctor", "say what this machine can do, and what to do about the rest"),
}

OUR_FAILURE = 125
# Coding agents let a command through where their hook fails in any other way
STOPPED = 2
_SIGINT = 2
_FULL = "Let standard output go somewhere that can be written."


def main() -> NoReturn:
    """Entry point of the `unspill` program. Does not return.

    Leaves without taking the interpreter apart, which would take as long as starting it.
    """
    is_hook = sys.argv[1:2] == ["hook"]
    try:
        code = _run_program()
    except BaseException:
        if not is_hook:
            raise
        code = STOPPED
    os._exit(STOPPED if is_hook and code else code)


def _run_program() -> int:
    _fill_closed_streams()
    code = run_words(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 141
    # The spawner is on its way out; left to a container's pid 1 that reaps nobody, it would stay a zombie
    launcher = sys.modules.get("unspill.runner.launcher")
    if launcher is not None:
        launcher.stop_launchers()
    return code


def _fill_closed_streams() -> None:
    """Let a standard stream that whoever started this program had closed lead nowhere, before anything is opened."""
    occupy_standard()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115


def run_words(words: list[str]) -> int:
    """Run one command line and return its exit code."""
    verb = words[0] if words else "--help"
    try:
        code = _run_verb(verb, words[1:])
        # Here and not at the end of the program: whoever reads may have gone away
        sys.stdout.flush()
        return code
    except UnspillError as error:
        return _complain(error, verb)
    except KeyboardInterrupt as error:
        ignore_interrupts()
        _say_notes(error, "cancelled; nothing was changed")
        return 128 + getattr(error, "number", _SIGINT)
    except BrokenPipeError as error:
        _forget_output()
        _say_notes(error)
        return 141
    except Exception as error:
        problem = _output_problem() if isinstance(error, OSError) else ""
        if problem:
            _forget_output()
            return _complain(SandboxUnavailable(f"standard output: {problem}", remedy=_FULL), verb)
        # A defect must not end with a code that the command could have had
        sys.excepthook(type(error), error, error.__traceback__)
        return _complain(SandboxUnavailable(f"{type(error).__name__}: {error}"), verb)


def _run_verb(verb: str, words: list[str]) -> int:
    if verb in ("--help", "-h", "help"):
        return _print_overview()
    if verb == "--version":
        return _print_version()
    if verb not in VERBS:
        raise UsageError(f"unknown command {verb!r}", remedy="See `unspill --help`.")
    found = find_verb(verb)
    arguments = parse(found, words)
    if arguments.flag("--help"):
        print(help_text(found))
        return 0
    return found.run(arguments)


def find_verb(name: str) -> Verb:
    """Import the one module that has a verb, and return it."""
    module = f"unspill.cli.{VERBS[name][0]}"
    __import__(module)
    found: Verb = getattr(sys.modules[module], name)
    return found


def _output_problem() -> str:
    """Return why what is printed can't be written, nothing if it can: what is left to be written fails once more."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _forget_output() -> None:
    """Let Python flush what nobody reads into nothing when it ends, instead of complaining."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)


def _complain(error: UnspillError, verb: str) -> int:
    # A text for models begins with the word that they are told to look for
    is_denied = isinstance(error, DeniedError)
    _say(f"{'ERROR' if is_denied else 'unspill'}: {_safe(error.message.removeprefix('ERROR: '))}")
    if error.remedy:
        # The output of a command may be on the same terminal
        mark = "unspill: " if verb == "run" and sys.stderr.isatty() else ""
        _say(f"{mark}  {_safe(error.remedy)}")
    # The remedy is a note as well
    _say_notes(error, but=error.remedy)
    # `run` passes the command's own codes through, so ours must be one that it is known for
    return OUR_FAILURE if verb == "run" else error.exit_code


def _say_notes(error: BaseException, otherwise: str = "", *, but: str = "") -> None:
    """Say what became of the run that an exception ended, if there was one."""
    for note in getattr(error, "__notes__", [otherwise]):
        if note != but:
            _say(f"unspill: {_safe(note)}")


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except OSError:
        return  # nobody can be told; the exit code still says it


def _safe(text: str) -> str:
    """Return a message without what would do something to a terminal: arguments may be a stranger's words."""
    return show(text.encode("utf-8", "surrogateescape"))


def _print_overview() -> int:
    print("unspill: run anything, spill nothing\n\nusage: unspill COMMAND [options]\n")
    for name, (_module, summary) in VERBS.items():
        print(f"  {name:<10}{summary}")
    print("\n`unspill COMMAND --help` tells more.")
    return 0


def _print_version() -> int:
    print(f"unspill {__version__}")
    return 0
