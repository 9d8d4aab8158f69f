# SPDX-License-Identifier: Apache-2.0
"""`unspill deny ID`: say no to what waits."""

from __future__ import annotations

from unspill.cli.approve import request_word
from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.options import Arguments

COMMAND = Command(
    name="deny",
    summary="Deny what waits for your answer under this id; see `unspill requests`.",
    positional="ID",
    most=1,
    options=(Option(name="--reason", metavar="TEXT", help="what whoever asked is told"), *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.granting import Office

    with Office() as office:
        question = office.find(request_word(arguments))
        office.answer(question, None, arguments.value("--reason") or "")
    if arguments.flag("--json"):
        print_json({"request": question.id, "answer": "denied"})
    else:
        print(f"Denied: {question.text}")
    return 0
