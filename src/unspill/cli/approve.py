# SPDX-License-Identifier: Apache-2.0
"""`unspill approve ID`: say yes to what waits."""

from __future__ import annotations

import sys

from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.model.permission import Question
    from unspill.model.policy import Scope

COMMAND = Command(
    name="approve",
    summary="Allow what waits for your answer under this id; see `unspill requests`.",
    positional="ID",
    most=1,
    options=(
        Option(name="--scope", metavar="SCOPE", help="for how long: once (the default), run, sandbox or always"),
        Option(name="--dangerous", help="needed for what leaves the sandbox, or makes it weaker"),
        Option(name="--yes", help="do not show it first; on a terminal you are asked whether that is what you mean"),
        *EVERYWHERE,
    ),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.granting import Office

    scope = _scope(arguments)
    with Office() as office:
        question = office.find(request_word(arguments))
        if question.request.is_dangerous and not arguments.flag("--dangerous"):
            raise UsageError(
                f"this is dangerous: {question.text}",
                remedy=f"unspill approve {question.id} --dangerous, if you mean it.",
            )
        if not arguments.flag("--yes") and not _is_confirmed(question):
            print("Nothing was allowed; it still waits.")
            return 1
        office.answer(question, scope)
    if arguments.flag("--json"):
        print_json({"request": question.id, "answer": "allowed", "scope": scope})
    else:
        print(f"Allowed ({scope}): {question.text}")
    return 0


def _is_confirmed(question: Question) -> bool:
    """Show on a terminal what is about to be allowed: who told the person this id may have told them another story."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    for line in (question.text, *question.lines, *question.whole):
        print(f"  {line}")
    print("Allow it? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def request_word(arguments: Arguments) -> str:
    """Return the id that was given.

    Raises:
        UsageError: none was.
    """
    if not arguments.words:
        raise UsageError("which request?", remedy="Give its id; see `unspill requests`.")
    return arguments.words[0]


def _scope(arguments: Arguments) -> Scope:
    from unspill.model.policy import SCOPES

    given = arguments.value("--scope") or "once"
    for scope in SCOPES:
        if scope == given:
            return scope
    raise UsageError(f"--scope is not one of {', '.join(SCOPES)}: {given!r}")
