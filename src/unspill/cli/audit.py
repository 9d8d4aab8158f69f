# SPDX-License-Identifier: Apache-2.0
"""`unspill audit`: what was asked, answered, run and applied; `--verify` checks that nothing of it was changed."""

from __future__ import annotations

from unspill.cli.choosing import print_json
from unspill.cli.options import EVERYWHERE, Command, Option
from unspill.cli.telling import count_text, when_text
from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.cli.options import Arguments
    from unspill.permissions.audit_verify import Verdict

CHANGED = 7
_LARGEST = 1 << 63

COMMAND = Command(
    name="audit",
    summary="List what was asked, answered, run and applied, the youngest first; or check that record.",
    options=(
        Option(name="--verify", help="check that no line was changed, moved or taken away"),
        Option(name="--limit", metavar="N", help="how many (default 20)"),
        *EVERYWHERE,
    ),
)


def run(arguments: Arguments) -> int:
    """Run the verb."""
    from unspill.sandbox.granting import Office

    limit = arguments.value("--limit") or "20"
    if not limit.isdecimal():
        raise UsageError(f"--limit is not a number: {limit!r}", remedy="Give a whole number.")
    with Office() as office:
        if arguments.flag("--verify"):
            return _verify(office.verify(), as_json=arguments.flag("--json"))
        events = list(office.events())[::-1][: int(limit)]
    if arguments.flag("--json"):
        print_json({"events": events})
    elif not events:
        print("Nothing is recorded yet.")
    else:
        from unspill.cli.audit_text import event_text

        for event in events:
            print(f"{_number(event, 'n'):>7}  {when_text(_number(event, 'at_ns'))}  {event_text(event)}")
    return 0


def _number(event: dict[str, Any], key: str) -> int:
    found = event.get(key)
    return found if isinstance(found, int) and 0 <= found < _LARGEST else 0


def _verify(verdict: Verdict, *, as_json: bool) -> int:
    from unspill.permissions.audit_verify import Verified

    is_whole = isinstance(verdict, Verified)
    if as_json:
        print_json({"whole": is_whole, **verdict.as_dict()})
    elif isinstance(verdict, Verified):
        lines, files = count_text(verdict.lines, "line"), count_text(verdict.files, "file")
        print(f"The audit is whole: {lines} in {files}, the last is {verdict.hash}.")
        if verdict.recovered:
            print(f"  A crash was mended at: {', '.join(map(str, verdict.recovered))}.")
        if verdict.lost:
            lost = count_text(verdict.lost, "line")
            print(f"  The power went, and with it the last {lost} about runs or operations.")
    else:
        where = f"file {verdict.file}, line {verdict.line}" if verdict.line else f"file {verdict.file}"
        print(f"The audit is NOT whole: {where}: {verdict.reason}.")
    return 0 if is_whole else CHANGED
