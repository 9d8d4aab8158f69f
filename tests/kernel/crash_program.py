# SPDX-License-Identifier: Apache-2.0
"""The program that is struck: opens the sandbox of a project, which recovers it, then applies, discards or takes back.

Prints one JSON value: the operation's number, or what was raised and whether it is one of unspill's own errors.
"""

import json
import os
import sys

from unspill import Sandbox
from unspill.errors import UnspillError


def main(action: str, project: str) -> dict[str, object]:
    """Do what is asked; return what came of it."""
    try:
        sandbox = Sandbox(project)
        operation = None
        if action != "open":
            acts = {"apply": sandbox.apply, "discard": sandbox.discard}
            operation = acts.get(action, sandbox.undo)()
        sandbox.close()
    except UnspillError as error:
        return {"raised": type(error).__name__, "is_ours": True, "text": str(error)}
    except Exception as error:
        import traceback

        return {"raised": type(error).__name__, "is_ours": False, "text": traceback.format_exc()}
    if operation is None:
        return {"number": 0, "left": []}
    return {"number": operation.number, "left": [[os.fsdecode(left.path), left.why] for left in operation.left]}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
