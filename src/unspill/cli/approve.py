# SPDX-License-Identifier: Apache-2.0
"""`unspill approve ID`: say yes to what waits."""

from __future__ import annotations

from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments
    from unspill.model.rules import Scope

COMMAND = Command(
    name="approve",
    summary="Allow what waits for your answer under this id; see `unspill requests`.",
    positional="ID",
    most=1,
    options=(
        Option(name="--scope", metavar="SCOPE", help="for how long: once (the default), run, sandbox or always"),
        Option(name="--dangerous", help="needed for what leaves the sandbox, or makes it weaker"),
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
        office.answer(question, scope)
    if arguments.flag("--json"):
        print_json({"request": question.id, "answer": "allowed", "scope": scope})
    else:
        print(f"Allowed ({scope}): {question.text}")
    return 0


def request_word(arguments: Arguments) -> str:
    """Return the id that was given.

    Raises:
        UsageError: none was.
    """
    if not arguments.words:
        raise UsageError("which request?", remedy="Give its id; see `unspill requests`.")
    return arguments.words[0]


def _scope(arguments: Arguments) -> Scope:
    from unspill.model.rules import SCOPES

    given = arguments.value("--scope") or "once"
    for scope in SCOPES:
        if scope == given:
            return scope
    raise UsageError(f"--scope is not one of {', '.join(SCOPES)}: {given!r}")
