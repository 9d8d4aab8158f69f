# SPDX-License-Identifier: Apache-2.0
"""`python -m unspill.helper` is the helper; with words it starts one, and is then the command line."""

from __future__ import annotations

if __name__ == "__main__":
    import os
    import sys

    try:
        from unspill.cli.main import main
        from unspill.helper.server import serve, start_helper
    except BaseException as error:
        if sys.argv[1:2] != ["hook"]:
            raise
        try:
            os.write(2, f"unspill: {type(error).__name__}: {error}\nNothing was run.\n".encode("utf-8", "replace"))
        finally:
            # Coding agents let a command through where their hook fails in any other way
            os._exit(2)

    if len(sys.argv) > 1:
        start_helper()
        main()
    serve()
