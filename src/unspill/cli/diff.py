# SPDX-License-Identifier: Apache-2.0
"""`unspill diff`: what is held, or what a run or an operation changed, line by line."""

from __future__ import annotations

import os
import sys

from unspill.cli.choosing import open_sandbox, print_json
from unspill.cli.naming import operation_word
from unspill.cli.options import EVERYWHERE, RUN, Command, Option
from unspill.cli.selecting import path_from_project
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.sandbox.sandbox import Sandbox

COMMAND = Command(
    name="diff",
    summary="Show what is held as a unified diff; with PATH only what lies at or below it.",
    positional="[PATH ...]",
    most=None,
    options=(RUN, Option(name="--op", metavar="OP", help="what this operation changed: op5"), *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    sandbox = open_sandbox(arguments)
    paths = [os.fsdecode(path_from_project(word, sandbox.project)) for word in arguments.words]
    operation = arguments.value("--op")
    if operation is not None and arguments.flag("--run"):
        raise UsageError("--run and --op were both given", remedy="Give one of them.")
    as_json = arguments.flag("--json")
    if sys.stdout.isatty() and operation is None and not as_json and not arguments.flag("--run"):
        return _review(arguments.words, paths, sandbox)
    colour = sys.stdout.isatty() and not as_json and "NO_COLOR" not in os.environ
    text = sandbox.diff(
        paths,
        run=arguments.value("--run"),
        operation=None if operation is None else operation_word(operation),
        colour=colour,
    )
    if not text and operation is None:
        _check_paths(arguments.words, sandbox.project)
    if as_json:
        print_json({"sandbox": sandbox.name, "diff": text})
    else:
        sys.stdout.write(text)
    return 0


def _review(words: list[str], paths: list[str], sandbox: Sandbox) -> int:
    """Show what is held on a terminal, which counts: what was seen to its end can be named by its token."""
    from unspill.cli.consent import show

    review = sandbox.reviews.diff(paths, colour="NO_COLOR" not in os.environ)
    if not review.text:
        _check_paths(words, sandbox.project)
    show(sandbox, review)
    return 0


def _check_paths(words: list[str], project: bytes) -> None:
    """Say so where an operation was meant, which is no path: of a path, nothing is simply nothing.

    Raises:
        UsageError: a word names an operation, and nothing lies there.
    """
    for word in words:
        is_operation = word.startswith("op") and word[2:].isdigit()
        if is_operation and not os.path.lexists(os.path.join(project, path_from_project(word, project))):
            raise UsageError(f"there is nothing at {word!r}", remedy=f"For an operation: unspill diff --op {word}")
