# SPDX-License-Identifier: Apache-2.0
"""`unspill requests`: what waits for a person's answer."""

from __future__ import annotations

from unspill.cli.choosing import named_project, print_json
from unspill.cli.options import EVERYWHERE, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.options import Arguments
    from unspill.model.permission import Question

COMMAND = Command(
    name="requests",
    summary="List what waits for your answer in all projects, or in the one that --project names.",
    options=EVERYWHERE,
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.granting import Office

    with Office() as office:
        waiting = office.waiting(named_project(arguments))
    if arguments.flag("--json"):
        from unspill.cli.permission_form import question_form

        print_json({"requests": [question_form(question) for question in waiting]})
    elif waiting:
        print("\n".join(line for question in waiting for line in _lines(question)))
    else:
        print("Nothing waits for an answer.")
    return 0


def _lines(question: Question) -> Iterator[str]:
    yield f"{question.id}  {question.text}"
    for line in (*question.lines, *question.whole):
        yield f"    {line}"
    yield f"    waits:     {round(question.wait_s)} s more"
    dangerous = " --dangerous" if question.request.is_dangerous else ""
    others = [scope for scope in question.scopes if scope != "once"]
    longer = f" [--scope {'|'.join(others)}]" if others else ""
    yield f"    unspill approve {question.id}{dangerous}{longer}, or unspill deny {question.id}"
