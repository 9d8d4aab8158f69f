# SPDX-License-Identifier: Apache-2.0
"""A program that does one thing with unspill and writes down what is imported once a certain path has changed.

Started with one argument, JSON: `words` for the command line or `code` for the library, `watched` the path, `seen` the
file to write to, `taken_away` to do without loading ahead, `fails` to have the disk fail after the steps.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def look(path: str) -> tuple[int, ...] | None:
    """Return what tells one state of a path from another."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def watch(path: str, seen: str) -> Callable[[str, tuple[Any, ...]], None]:
    before = look(path)
    fd = os.open(seen, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    has_changed = False

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal has_changed
        # At whatever happens: what fails is taken back, and looks as before
        has_changed = has_changed or look(path) != before
        if event == "import" and has_changed:
            os.write(fd, f"{arguments[0]}\n".encode())

    return note


def fail(*_arguments: object) -> int:
    raise OSError(5, "Input/output error")


def main() -> None:
    order = json.loads(sys.argv[1])
    if order["taken_away"]:
        from unspill.cli import run
        from unspill.sandbox import apply

        vars(apply).update(_TO_THE_END=(), _TO_TELL=(), _OF_REPOSITORIES=())
        vars(run).update(_LOADED=())
    if order["fails"]:
        from unspill.apply import operate

        vars(operate).update(settle_mark=fail)
    # Of this program alone: what a test loads, unspill may still have to load
    for name in [name for name in sys.modules if name == "json" or name.startswith(("json.", "_json"))]:
        del sys.modules[name]
    if "code" in order:
        sys.addaudithook(watch(order["watched"], order["seen"]))
        exec(order["code"], {"project": order["project"]})
        return
    from unspill.cli.main import main as cli

    sys.argv = ["unspill", *order["words"]]
    sys.addaudithook(watch(order["watched"], order["seen"]))
    cli()


if __name__ == "__main__":
    main()
