# SPDX-License-Identifier: Apache-2.0
"""`unspill grants`: what was allowed for longer than once; `unspill grants revoke`: take it back."""

from __future__ import annotations

import time

from unspill.changes.render import safe_text
from unspill.cli.choosing import named_project, print_json
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.cli.telling import count_text, when_text
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.cli.options import Arguments
    from unspill.model.permission import Grant
    from unspill.sandbox.granting import Office

COMMAND = Command(
    name="grants",
    summary="List what you allowed for longer than once, in all projects or in the one of --project; or take it back.",
    positional="[revoke ID]",
    most=2,
    options=(Option(name="--all", help="with revoke: everything, or everything in that project"), *EVERYWHERE),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.granting import Office

    with Office() as office:
        if not arguments.words:
            return _list(arguments, office)
        if arguments.words[0] != "revoke":
            raise UsageError(f"unknown word {arguments.words[0]!r}", remedy="unspill grants revoke ID")
        revoked = _revoke(arguments, office)
    if arguments.flag("--json"):
        print_json({"revoked": [grant.id for grant in revoked]})
    else:
        print(f"Revoked {count_text(len(revoked), 'grant')}.")
    return 0


def _revoke(arguments: Arguments, office: Office) -> tuple[Grant, ...]:
    is_all = arguments.flag("--all")
    if is_all is (len(arguments.words) == 2):
        raise UsageError("which grant?", remedy="Give one id, or --all; see `unspill grants`.")
    return office.revoke_all(named_project(arguments)) if is_all else (office.revoke(arguments.words[1]),)


def _list(arguments: Arguments, office: Office) -> int:
    if arguments.flag("--all"):
        raise UsageError("--all is for `grants revoke`")
    grants = office.grants(named_project(arguments))
    if arguments.flag("--json"):
        from unspill.cli.permission_form import grant_form

        print_json({"grants": [grant_form(grant) for grant in grants]})
    elif grants:
        print("\n".join(line for grant in grants for line in _lines(grant)))
    else:
        print("Nothing is granted.")
    return 0


def _lines(grant: Grant) -> Iterator[str]:
    from unspill.permissions.question import request_lines, statement_text

    yield f"{grant.id}  {statement_text(grant.request)}"
    for line in request_lines(grant.request):
        yield f"    {line}"
    is_over = grant.expires_ns <= time.time_ns()
    yield f"    scope:     {grant.scope}, {'expired' if is_over else 'until'} {when_text(grant.expires_ns)}"
    used = f"{count_text(grant.uses, 'time')}, last {when_text(grant.last_used_ns)}" if grant.uses else "never"
    yield f"    granted:   {when_text(grant.granted_ns)} by {safe_text(grant.granted_by)}; used {used}"
