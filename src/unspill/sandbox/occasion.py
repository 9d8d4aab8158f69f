# SPDX-License-Identifier: Apache-2.0
"""For what exactly something is asked: the fields of a request that say which command it is, by all that matters."""

from __future__ import annotations

from unspill.model.permission import INHERITED, UNKNOWN_PROGRAM
from unspill.model.run import InheritedInput
from unspill.sandbox.program import identify_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.plan import Plan
    from unspill.sandbox.project import Project
    from unspill.sandbox.spec import Request

# The size of a window comes and goes, and no program does anything else because of it
_SIZES = (b"COLUMNS", b"LINES")
_SHOWN = 4096


def occasion_of(project: Project, request: Request, plan: Plan) -> dict[str, Any]:
    """Return what every request for this command has in common."""
    variables = dict(plan.environ)
    return {
        "project": project.path,
        "sandbox": project.row.id,
        "argv": request.argv,
        "cwd": request.cwd,
        "names": tuple(sorted(name.decode("utf-8", "surrogateescape") for name in variables if name not in _SIZES)),
        "script": identify_program(project, plan),
        # What the variables that a caller sets have in common with the same ones another time: their values too
        "variables": _digest_of(b"".join(b"%b=%b\0" % pair for pair in sorted(dict(request.environ).items()))),
        **input_of(request.stdin),
    }


def input_of(stdin: bytes | int | None) -> dict[str, Any]:
    """Return what a request says of what the command reads: a shell runs that as well as its words."""
    if isinstance(stdin, int):
        return {"stdin": INHERITED if isinstance(stdin, InheritedInput) else UNKNOWN_PROGRAM}
    return {"stdin": _digest_of(stdin), "stdin_head": stdin[:_SHOWN]} if stdin else {}


def _digest_of(said: bytes) -> str:
    from hashlib import blake2b

    return blake2b(said, digest_size=32).hexdigest() if said else ""
