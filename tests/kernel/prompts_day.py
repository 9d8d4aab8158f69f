# SPDX-License-Identifier: Apache-2.0
"""An agent at work: runs the commands of the table one after another, applies what is held, counts the questions.

    python -m tests.kernel.prompts_day SETTINGS

Prints one JSON object. Whoever is asked says yes. Flagged lines are those that the command line would print.
"""

import base64
import json
import os
import pickle
import sys
from typing import Any

from tests.kernel.prompts_table import COMMANDS, FAILS, NETWORK
from unspill import Callback, Operation, Policy, Question, Sandbox
from unspill.cli.output import flagged_lines


def main() -> None:
    settings, env = pickle.loads(base64.b64decode(sys.argv[1]))
    asked: list[str] = []

    def answer(question: Question) -> bool:
        asked.append(question.text)
        return True

    with Sandbox(os.getcwd(), policy=Policy(**settings), approver=Callback(answer)) as sandbox:
        steps = [_step(sandbox, line, env) for line in COMMANDS]
        left = len(sandbox.changes())
    print(json.dumps({"asked": asked, "steps": steps, "held": left}))


def _step(sandbox: Sandbox, line: str, env: dict[str, str]) -> dict[str, Any]:
    command = line.removeprefix(NETWORK).removeprefix(FAILS)
    result = sandbox.run(command, env=env, network=line.startswith(NETWORK), timeout=60.0)
    left = []
    flagged = _told(sandbox, result.operation)
    if result.held:
        operation = sandbox.apply(asked_by="agent")
        left = [os.fsdecode(one.path) for one in operation.left]
        flagged += _told(sandbox, operation)
    return {
        "command": command,
        "as_expected": (result.exit_code != 0) is line.startswith(FAILS),
        "text": result.text(),
        "left": left,
        "flagged": flagged,
        "denials": [denial.host for denial in result.denials],
    }


def _told(sandbox: Sandbox, operation: Operation | None) -> list[str]:
    news = () if operation is None else sandbox.tell_flagged(operation, on_terminal=True)
    return [line.strip() for line in flagged_lines(news)]


if __name__ == "__main__":
    main()
