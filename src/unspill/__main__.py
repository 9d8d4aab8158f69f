# SPDX-License-Identifier: Apache-2.0
"""`python -m unspill` is the command line."""

from __future__ import annotations

if __name__ == "__main__":
    import os
    import sys

    # Ctrl-C in a callback of an import: Python would only print it, and go on
    sys.unraisablehook = lambda swallowed: (
        os._exit(2 if sys.argv[1:2] == ["hook"] else 130)
        if swallowed.exc_type is KeyboardInterrupt
        else sys.__unraisablehook__(swallowed)
    )
    try:
        from unspill.cli.main import main
    except BaseException as error:
        if sys.argv[1:2] != ["hook"]:
            raise
        try:
            os.write(2, f"unspill: {type(error).__name__}: {error}\nNothing was run.\n".encode("utf-8", "replace"))
        finally:
            # Coding agents let a command through where their hook fails in any other way
            os._exit(2)

    main()
